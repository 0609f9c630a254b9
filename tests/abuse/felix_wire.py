"""A Felix client that shares no code with the broker: aioquic without an event loop, and a hand on its insides.

`Client` sends any bytes on any stream, and with `inject` any QUIC frame in a packet that is otherwise good. `first_datagram`
makes the beginning of a connection that will never be finished, to be sent from any address. Waiting has one time-out,
which says that the broker did not answer; nothing is said about its speed.
"""

import base64
import json
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import Any

from aioquic.buffer import encode_uint_var
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicPacketType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.tls import Epoch, SessionTicket

from tests.abuse.process import Broker

ANSWER_S = 15.0
MAGIC = 0x464C5831
BATCH, ACKED, ACK, OFFSETS, ZSTD, EXTENDED = 0x0001, 0x0008, 0x0010, 0x0020, 0x0040, 0x0080
ALL_FLAGS = 0x00FF
TURN_S = 0.05


class Closed(Exception):
    """The broker shut the connection: the code and the reason it gave."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code:#x} {reason}")
        self.code = code
        self.reason = reason


class Silent(Exception):
    """Nothing came in time."""


# -- frames of Felix --------------------------------------------------------------------------------------------------


def frame(payload: bytes, flags: int = 0, magic: int = MAGIC, version: int = 1, length: int | None = None) -> bytes:
    return struct.pack(">IHHI", magic, version, flags, len(payload) if length is None else length) + payload


def text(type: str, **fields: Any) -> bytes:
    """A JSON frame."""
    return frame(json.dumps({"type": type, **fields}).encode())


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def names(*parts: str | bytes) -> bytes:
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(struct.pack(">H", len(part)) + part for part in raw)


def values(*found: bytes, count: int | None = None) -> bytes:
    head = struct.pack(">I", len(found) if count is None else count)
    return head + b"".join(struct.pack(">I", len(value)) + value for value in found)


def batch(scope: tuple[str, str, str], *found: bytes, request: int | None = None, more: int = 0) -> bytes:
    """0x0001, or 0x0009 with a request id; `more` are flags on top."""
    body = names(*scope) + values(*found)
    if request is None:
        return frame(body, BATCH | more)
    return frame(struct.pack(">QB", request, 2) + body, BATCH | ACKED | more)


def auth(token: str = "alice-key", tenant: str = "t1", flags: int | None = ALL_FLAGS) -> bytes:
    told = {} if flags is None else {"client_flags": flags, "quintet": 1}
    return text("auth", tenant_id=tenant, token=token, **told)


# -- the client -------------------------------------------------------------------------------------------------------


class Client:
    """One connection. What came is in `data`, by stream; how streams ended in `fin`, `resets` and `stops`."""

    def __init__(
        self,
        broker: Broker,
        *,
        source: str = "127.0.0.1",
        uni_window: int | None = None,
        ticket: SessionTicket | None = None,
        on_ticket: Callable[[SessionTicket], None] | None = None,
        **options: Any,
    ) -> None:
        host, _, port = broker.listeners["felix"].rpartition(":")
        self.server = (host, int(port))
        chosen = {"server_name": "localhost", "verify_mode": ssl.CERT_NONE, "max_data": 1 << 30, **options}
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
        self.socket = self._bind(source)
        self.quic.connect(self.server, time.monotonic())
        try:
            self.flush()
            self.wait(lambda: self.shaken)
        except (Closed, Silent):
            self.socket.close()
            raise

    def _bind(self, source: str) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind((source, 0))
        sock.setblocking(False)
        return sock

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        if self.over is None:
            self.quic.close(error_code=0)
            self.flush()
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
                data = self.socket.recv(65_536)
            except (BlockingIOError, ConnectionError):
                break
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
            self.over = Closed(event.error_code, event.reason_phrase)

    def wait(self, true: Callable[[], Any], timeout: float = ANSWER_S) -> None:
        until = time.monotonic() + timeout
        while not true():
            if self.over is not None:
                raise self.over
            if time.monotonic() >= until:
                raise Silent
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

    def login(self, token: str = "alice-key", tenant: str = "t1", flags: int | None = ALL_FLAGS) -> int:
        """A stream of a published client, let in."""
        stream = self.open(auth(token, tenant, flags))
        said = self.read(stream)
        assert said["type"] in ("auth_ok", "ok"), said
        return stream

    def send(self, stream: int, data: bytes, end: bool = False) -> None:
        if self.over is not None:
            raise self.over
        self.quic.send_stream_data(stream, data, end)
        self.flush()

    def take(self, stream: int) -> tuple[int, bytes]:
        """(flags, payload) of the next frame on a stream. EOFError: it ended instead."""

        def whole() -> bool:
            have = self.data.get(stream, b"")
            return len(have) >= 12 and len(have) >= 12 + int.from_bytes(have[8:12], "big")

        self.wait(lambda: whole() or stream in self.fin or stream in self.resets)
        if not whole():
            raise EOFError
        have = self.data[stream]
        magic, version, flags, length = struct.unpack_from(">IHHI", have)
        assert (magic, version) == (MAGIC, 1)
        payload = bytes(have[12 : 12 + length])
        del have[: 12 + length]
        return flags, payload

    def read(self, stream: int) -> dict[str, Any]:
        """The next frame, which must be JSON."""
        flags, payload = self.take(stream)
        assert flags == 0, f"flags {flags:#x}"
        found = json.loads(payload)
        assert isinstance(found, dict)
        return found

    def ask(self, stream: int, data: bytes) -> dict[str, Any]:
        self.send(stream, data)
        return self.read(stream)

    def acked(self, stream: int) -> tuple[int, int, str]:
        """(status, request id, text) of the next frame, which must be the answer to a batch."""
        flags, payload = self.take(stream)
        assert flags == ACK, (hex(flags), payload)
        status, request, size = struct.unpack_from(">BQH", payload)
        return status, request, payload[11 : 11 + size].decode()

    def event_stream(self) -> int:
        """The newest stream that the broker opened."""
        self.wait(lambda: any(number & 3 == 3 for number in self.data))
        return max(number for number in self.data if number & 3 == 3)

    def events(self, stream: int, count: int) -> list[bytes]:
        """So many values of an event stream, in binary frames or in JSON."""
        found: list[bytes] = []
        while len(found) < count:
            flags, payload = self.take(stream)
            if flags == 0:
                said = json.loads(payload)
                one = [said["payload"]] if said["type"] == "event" else said.get("payloads", [])
                found += [base64.b64decode(value) for value in one]
                continue
            at = 8 if flags & OFFSETS else 0
            (number,) = struct.unpack_from(">I", payload, at)
            at += 4
            for _ in range(number):
                (size,) = struct.unpack_from(">I", payload, at)
                found.append(payload[at + 4 : at + 4 + size])
                at += 4 + size
        return found

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


def probe(broker: Broker) -> None:
    """Somebody else connects, publishes and reads."""
    scope = {"tenant_id": "probe", "namespace": "n", "stream": "s"}
    with Client(broker) as client:
        stream = client.login(tenant="probe", flags=0x3F)
        said = client.ask(stream, text("subscribe", **scope, subscription_id=1))
        assert said == {"type": "subscribed", "subscription_id": 1}, said
        client.send(stream, batch(("probe", "n", "s"), b"here", request=1))
        assert client.acked(stream) == (0, 1, "")
        events_ = client.event_stream()
        assert client.read(events_) == {"type": "event_stream_hello", "subscription_id": 1}
        assert client.events(events_, 1) == [b"here"]
