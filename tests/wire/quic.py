"""A QUIC connection without an event loop: aioquic's, and a hand on its insides.

`Connection` sends any bytes on any stream, and with `inject` any QUIC frame in a packet that is otherwise good. `first_datagram`
makes the beginning of a connection that will never be finished, to be sent from any address. Waiting has one time-out,
which says that the broker did not answer; nothing is said about its speed.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, Self

from aioquic.buffer import encode_uint_var
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch, SessionTicket

from tests.wire.connection import Closed, Hang

ANSWER_S = 30.0
TURN_S = 0.05
DATAGRAM_BYTES = 65_536


class Connection:
    """One connection. What came is in `data`, by stream; how streams ended in `fin`, `resets` and `stops`; how the connection
    did in `over`. With a `ca`, the certificate of the broker is verified and its socket is connected: the host says at once
    when nobody is there any more."""

    def __init__(
        self,
        address: str,
        *,
        source: str = "127.0.0.1",
        ca: bytes | None = None,
        uni_window: int | None = None,
        ticket: SessionTicket | None = None,
        on_ticket: Callable[[SessionTicket], None] | None = None,
        **options: Any,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.server = (host.strip("[]"), int(port))
        trust = {"server_name": "localhost", "verify_mode": ssl.CERT_NONE}
        if ca is not None:
            trust = {"server_name": self.server[0], "verify_mode": ssl.CERT_REQUIRED, "cadata": ca}
        chosen = {**trust, "max_data": 1 << 30, **options}
        self.quic: Any = QuicConnection(
            configuration=QuicConfiguration(is_client=True, session_ticket=ticket, **chosen),
            session_ticket_handler=on_ticket,
        )
        if uni_window is not None:
            self.quic._local_max_stream_data_uni = uni_window
        self.data: dict[int, bytearray] = {}
        self.fin: set[int] = set()
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.over: Closed | None = None
        self.shaken = False
        self.early_data = False
        self.received_bytes = 0
        self.sent_bytes = 0
        self.heard = time.monotonic()
        self.socket = self._bind(source)
        if ca is not None:
            self.socket.connect(self.server)
        self.quic.connect(self.server, time.monotonic())
        try:
            self.flush()
            self.wait(lambda: self.shaken)
        except (Closed, Hang):
            self.socket.close()
            raise

    def _bind(self, source: str) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind((source, 0))
        sock.setblocking(False)
        return sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.over is None:
            self.quic.close(error_code=0)
            self.flush()
            self.over = Closed("closed here")
        self.socket.close()

    # -- moving datagrams ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        for data, _ in self.quic.datagrams_to_send(time.monotonic()):
            self.datagram(data)

    def datagram(self, data: bytes) -> None:
        self.sent_bytes += len(data)
        try:
            self.socket.sendto(data, self.server)
        except BlockingIOError:
            return  # a lost datagram
        except ConnectionError as error:
            self._gone(error)

    def _gone(self, error: ConnectionError) -> None:
        """The host says that nobody is there; only a connected socket is told."""
        self.over = self.over or Closed(f"the socket says {error.strerror}")

    def turn(self, timeout: float = TURN_S) -> None:
        """Take what came, send what is due; wait at most this long."""
        now = time.monotonic()
        timer = self.quic.get_timer()
        if timer is not None:
            timeout = max(0.0, min(timeout, timer - now))
        waiting = select.poll()  # `select` knows no descriptor above 1023
        waiting.register(self.socket, select.POLLIN)
        ready = waiting.poll(timeout * 1000)
        now = time.monotonic()
        while ready:
            try:
                data = self.socket.recv(DATAGRAM_BYTES)
            except BlockingIOError:
                break
            except ConnectionError as error:
                self._gone(error)
                break
            self.heard = now
            self.received_bytes += len(data)
            self.quic.receive_datagram(data, self.server, now)
        if timer is not None and now >= timer:
            self.quic.handle_timer(now)
        while (event := self.quic.next_event()) is not None:
            self._happened(event)
        self.flush()

    def _happened(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.HandshakeCompleted):
            self.shaken = True
            self.early_data = event.early_data_accepted
        elif isinstance(event, events.StreamDataReceived):
            self.data.setdefault(event.stream_id, bytearray()).extend(event.data)
            if event.end_stream:
                self.fin.add(event.stream_id)
        elif isinstance(event, events.StreamReset):
            self.resets[event.stream_id] = event.error_code
        elif isinstance(event, events.StopSendingReceived):
            self.stops[event.stream_id] = event.error_code
        elif isinstance(event, events.ConnectionTerminated):
            self.over = Closed(event.reason_phrase, event.error_code)

    def wait(self, true: Callable[[], Any], timeout: float = ANSWER_S) -> None:
        until = time.monotonic() + timeout
        while not true():
            if self.over is not None:
                raise self.over
            if time.monotonic() >= until:
                raise Hang(f"no answer for {timeout} s")
            self.turn()

    def linger(self, seconds: float) -> None:
        """Be there, and answer what QUIC must answer."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.over is None:
            self.turn()

    def closed(self, timeout: float = ANSWER_S) -> Closed:
        """How the broker shut the connection."""
        try:
            self.wait(lambda: False, timeout)
        except Closed as over:
            return over
        raise AssertionError("unreachable")

    # -- streams ---------------------------------------------------------------------------------------------------

    def open(self, *frames: bytes) -> int:
        stream: int = self.quic.get_next_available_stream_id()
        self.send(stream, b"".join(frames))
        return stream

    def send(self, stream: int, data: bytes, end: bool = False) -> None:
        if self.over is not None:
            raise self.over
        self.quic.send_stream_data(stream, data, end)
        self.flush()

    def ping(self) -> None:
        self.quic.send_ping(0)
        self.heard = time.monotonic()
        self.flush()

    # -- rudeness --------------------------------------------------------------------------------------------------

    def inject(self, *frames: bytes) -> None:
        """One packet with these QUIC frames as they are, beside the state of the connection."""
        datagrams, packets = _packets(self.quic, Epoch.ONE_RTT, QuicPacketType.ONE_RTT, frames)
        for packet in packets:
            packet.sent_time = time.monotonic()
            self.quic._loss.on_packet_sent(packet=packet, space=self.quic._spaces[Epoch.ONE_RTT])
        for data in datagrams:
            self.datagram(data)

    def move(self, source: str = "127.0.0.1") -> None:
        """From here on the connection comes from another port."""
        self.socket.close()
        self.socket = self._bind(source)


def varints(*numbers: int) -> bytes:
    return b"".join(encode_uint_var(number) for number in numbers)


def _packets(quic: Any, epoch: Epoch, kind: QuicPacketType, frames: tuple[bytes, ...]) -> tuple[list[bytes], list[Any]]:
    builder = QuicPacketBuilder(
        host_cid=quic.host_cid,
        is_client=True,
        max_datagram_size=1200,
        packet_number=quic._packet_number,
        peer_cid=quic._peer_cid.cid,
        peer_token=b"",
        version=quic._version,
    )
    builder.start_packet(kind, quic._cryptos[epoch])
    for one in frames:
        builder.start_frame(one[0], len(one)).push_bytes(one[1:])
    found: tuple[list[bytes], list[Any]] = builder.flush()
    quic._packet_number = builder.packet_number
    return found


def first_datagram(*frames: bytes) -> bytes:
    """The Initial of a new connection that will never be finished; with these QUIC frames in place of a ClientHello."""
    quic: Any = QuicConnection(configuration=QuicConfiguration(is_client=True, server_name="localhost"))
    quic.connect(("127.0.0.1", 1), time.monotonic())
    if frames:
        return _packets(quic, Epoch.INITIAL, QuicPacketType.INITIAL, frames)[0][0]
    found: bytes = quic.datagrams_to_send(time.monotonic())[0][0]
    return found
