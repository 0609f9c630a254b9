"""Implements the kernel's QUIC endpoint on aioquic: the same methods and events, slower, for machines without Rust.

The native endpoint has a thread of its own; this one lives on the running loop. Its `fileno` is one end of a pair of
sockets that is readable while events wait, so whoever drives an endpoint drives both the same way:

    UDP socket -> _read -> aioquic -> _collect -> events -> take()
    send() -> StreamQueues.pump -> aioquic -> _transmit -> UDP socket

aioquic raises flow control limits by what has arrived. Here they follow what was taken, or a slow reader would be no
back-pressure at all: `net/quic/engine.py` replaces these two steps, and is the only place that leans on aioquic's inside.
Nothing of a protocol and no limit per address lives here.
"""

import asyncio
import ipaddress
import logging
import os
import socket
from collections import deque
from functools import partial

from aioquic._buffer import Buffer
from aioquic.quic import events
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE, QuicConfiguration
from aioquic.quic.packet import (
    QuicErrorCode,
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from quintet.kernel.items import QuicEvent as Event
from quintet.kernel.items import SocketAddress as Address
from quintet.net.quic.engine import Engine, certificates, private_key, refusal
from quintet.net.quic.events import CLOSED, CONNECTED, DATA, RESET, STOPPED
from quintet.net.quic.twin_streams import EngineConnection, Flow, StreamQueues

logging.getLogger("quic").addHandler(logging.NullHandler())  # aioquic logs here what the event CLOSED says too

HANDSHAKE_S = 5.0  # a handshake that takes longer is given up
DATAGRAMS_PER_READ = 64  # of one wake-up; then other work of the loop has its turn
DATAGRAM_BYTES_MAX = 65_535
SOCKET_BUFFER_BYTES = 4 * 1024 * 1024  # asked for; the system gives what it allows
REASON_BYTES_MAX = 256  # of a CONNECTION_CLOSE


class QuicEndpoint:
    """One UDP socket and its connections. Called from the loop's thread only."""

    def __init__(
        self, host: str, port: int, *, certificate: bytes = b"", key: bytes = b"", client_ca: bytes = b"",
        streams_max: int = 1024, uni_max: int = 0, idle_ms: int = 30_000, keep_alive_ms: int = 0,
        connections_max: int = 10_000, half_open_max: int = 2_000, retry_above: int = 100,
        stream_window: int = 1 << 20, connection_window: int = 4 << 20, send_window: int = 1 << 20,
        write_high: int = 1 << 20, write_low: int = 256 << 10,
    ) -> None:  # fmt: skip
        self._streams_max, self._uni_max = streams_max, uni_max
        self._idle_ms, self._keep_alive_ms = idle_ms, keep_alive_ms
        self._connections_max, self._half_open_max, self._retry_above = connections_max, half_open_max, retry_above
        self._stream_window, self._connection_window = stream_window, connection_window
        self._write_high = write_high
        self._streams = StreamQueues(
            self._tell, self._touch, stream_window=stream_window, connection_window=connection_window,
            send_window=send_window, write_low=write_low,
        )  # fmt: skip
        self._server = self._server_configuration(certificate, key, client_ca) if certificate else None
        self._loop = asyncio.get_running_loop()
        self._retry = QuicRetryTokenHandler()
        self._accepting = True
        self._links: dict[int, EngineConnection] = {}
        self._by_cid: dict[bytes, EngineConnection] = {}
        self._count = 0
        self._events: deque[Event] = deque()
        self._dirty: dict[EngineConnection, None] = {}
        self._flushing = False
        self._figures = dict.fromkeys(
            ("accepted", "refused", "retries", "half_open", "datagrams_in", "datagrams_out", "bytes_in", "bytes_out",
             "wakeups"), 0)  # fmt: skip
        self._socket = _bound(host, port)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._signalled = self._closed = False
        self._loop.add_reader(self._socket, self._read)

    # -- what the owner calls --------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._theirs.fileno()

    def take(self, bytes_max: int) -> list[Event]:
        found: list[Event] = []
        taken = 0
        while self._events and taken < bytes_max:
            event = self._events.popleft()
            if event[0] == DATA:
                _, link, stream, flow = event
                flow.marked = False
                if flow.paused or flow.stopped or not (flow.held or flow.fin):
                    continue
                data = flow.held[0] if len(flow.held) == 1 else b"".join(flow.held)
                flow.held = []
                taken += len(data)
                self._streams.credit(link, stream, flow, len(data))
                event = (DATA, link.number, stream, data, flow.fin)
                if flow.fin:
                    self._streams.tidy(link, stream)
            elif event[0] == CLOSED:
                self._links.pop(event[1], None)
            found.append(event)
        if not self._events and self._signalled:
            self._signalled = False
            self._theirs.recv(64)
        return found

    def hold(self) -> None:
        """Nothing: what a turn of the loop makes is sent by `_flush`, behind it."""

    def flush(self) -> None:
        """Nothing, as `hold`."""

    def send(self, connection: int, stream: int, data: list[bytes], end: bool) -> int:
        link = self._links.get(connection)
        flow = link.flows.get(stream) if link is not None and not link.gone else None
        if link is None or flow is None or flow.silent or flow.end:
            return -1
        for piece in data:
            flow.queue.append(piece)
            flow.queued += len(piece)
        flow.end = end
        link.unfinished.add(stream)
        self._streams.pump(link, stream, flow)
        flow.above = flow.above or flow.queued > self._write_high
        self._touch(link)
        return flow.queued

    def queued(self, connection: int, stream: int) -> int:
        link = self._links.get(connection)
        flow = link.flows.get(stream) if link is not None else None
        return 0 if flow is None else flow.queued

    def open(self, connection: int, bidirectional: bool) -> int:
        link = self._links.get(connection)
        if link is None or link.gone:
            return -1
        number = link.quic.open_stream(bidirectional)
        link.flows[number] = Flow()
        self._touch(link)
        return number

    def pause(self, connection: int, stream: int, paused: bool) -> None:
        link = self._links.get(connection)
        flow = link.flows.get(stream) if link is not None else None
        if link is None or flow is None:
            return
        flow.paused = paused
        if not paused and (flow.held or flow.fin):
            self._streams.mark(link, stream, flow)

    def reset(self, connection: int, stream: int, code: int) -> None:
        link = self._links.get(connection)
        flow = link.flows.get(stream) if link is not None and not link.gone else None
        if link is None or flow is None or flow.silent:
            return
        self._streams.silence(flow)
        self._streams.order(link, stream, flow, partial(link.quic.reset_stream, stream, code))

    def stop(self, connection: int, stream: int, code: int) -> None:
        link = self._links.get(connection)
        flow = link.flows.get(stream) if link is not None and not link.gone else None
        if link is None or flow is None or flow.stopped or flow.fin:
            return
        self._streams.drop(link, stream, flow)
        self._streams.order(link, stream, flow, partial(link.quic.stop_stream, stream, code))

    def shut(self, connection: int, code: int, reason: bytes) -> None:
        link = self._links.get(connection)
        if link is not None and not link.gone:
            text = reason[:REASON_BYTES_MAX].decode("utf-8", "replace")
            link.quic.close(error_code=code, reason_phrase=text)
            self._transmit(link)
            self._gone(link, code, f"closed by us: {text}")

    def set_certificate(self, certificate: bytes, key: bytes, client_ca: bytes) -> None:
        self._server = self._server_configuration(certificate, key, client_ca)

    def set_accepting(self, accepting: bool) -> None:
        self._accepting = accepting

    def connect(self, host: str, port: int, server_name: str, ca: bytes, certificate: bytes, key: bytes) -> int:
        settings = self._configuration(True)
        settings.server_name = server_name
        settings.cadata = ca or None
        if certificate:
            settings.certificate, *settings.certificate_chain = certificates(certificate)
            settings.private_key = private_key(key)
        link = self._begin(Engine(configuration=settings))
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            self._loop.create_task(self._resolve(link, host, port))
        else:
            self._go(link, _resolved(self._socket.family, host, port))
        return link.number

    def figures(self) -> dict[str, int]:
        return {**self._figures, "connections": sum(link.connected for link in self._links.values())}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for link in list(self._links.values()):
            self.shut(link.number, 0, b"")
            self._forget(link)
        self._loop.remove_reader(self._socket)
        for end in (self._socket, self._ours, self._theirs):
            end.close()

    # -- configuration ---------------------------------------------------------------------------------------------

    def _configuration(self, is_client: bool) -> QuicConfiguration:
        return QuicConfiguration(
            is_client=is_client,
            idle_timeout=self._idle_ms / 1000,
            max_data=self._connection_window,
            max_stream_data=self._stream_window,
            congestion_control_algorithm="cubic",
        )

    def _server_configuration(self, certificate: bytes, key: bytes, client_ca: bytes) -> QuicConfiguration:
        if client_ca:
            raise ValueError(
                "certificates of clients are checked by the native kernel only: build it, or do not ask for them"
            )
        settings = self._configuration(False)
        settings.certificate, *settings.certificate_chain = certificates(certificate)
        settings.private_key = private_key(key)
        if settings.private_key.public_key() != settings.certificate.public_key():
            raise ValueError("the private key does not belong to the certificate")
        return settings

    # -- datagrams -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._figures["wakeups"] += 1
        for _ in range(DATAGRAMS_PER_READ):
            try:
                data, address = self._socket.recvfrom(DATAGRAM_BYTES_MAX)
            except OSError:  # no more datagrams, or an ICMP error for an older one
                break
            self._figures["datagrams_in"] += 1
            self._figures["bytes_in"] += len(data)
            link = self._link_of(data, address)
            if link is not None:
                link.quic.receive_datagram(data, address, now=self._loop.time())
                self._collect(link)
                self._dirty[link] = None
        self._flush()

    def _link_of(self, data: bytes, address: Address) -> EngineConnection | None:
        """The connection of a datagram; a new one if it asks for one and may have it."""
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=8)
        except ValueError:
            return None
        link = self._by_cid.get(header.destination_cid)
        if link is not None:
            return link
        settings = self._server
        if settings is None or header.packet_type == QuicPacketType.VERSION_NEGOTIATION or header.version is None:
            return None
        if header.version not in settings.supported_versions:
            self._put(
                encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=settings.supported_versions,
                ),
                address,
            )
            return None
        if header.packet_type != QuicPacketType.INITIAL or len(data) < SMALLEST_MAX_DATAGRAM_SIZE:
            return None
        return self._admit(header, address, settings)

    def _admit(self, header: QuicHeader, address: Address, settings: QuicConfiguration) -> EngineConnection | None:
        half_open = self._figures["half_open"]
        if not self._accepting or len(self._links) >= self._connections_max or half_open >= self._half_open_max:
            self._figures["refused"] += 1
            self._put(refusal(header, QuicErrorCode.CONNECTION_REFUSED), address)
            return None
        original, retried = header.destination_cid, None
        if header.token:
            try:
                original = self._retry.validate_token(
                    address=address, destination_cid=header.destination_cid, token=header.token, now=self._loop.time()
                )
                retried = header.destination_cid
            except ValueError:
                self._put(refusal(header, QuicErrorCode.INVALID_TOKEN), address)
                return None
        elif half_open >= self._retry_above:
            self._ask_again(header, address)
            return None
        quic = Engine(
            configuration=settings, original_destination_connection_id=original, retry_source_connection_id=retried
        )
        link = self._begin(quic)
        link.half_open = True
        self._figures["half_open"] += 1
        for cid in (header.destination_cid, quic.host_cid):
            link.cids.add(cid)
            self._by_cid[cid] = link
        return link

    def _ask_again(self, header: QuicHeader, address: Address) -> None:
        """Retry: the client proves that it receives at its address before it costs us anything."""
        assert header.version is not None
        self._figures["retries"] += 1
        source = os.urandom(8)
        token = self._retry.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=source,
            now=self._loop.time(),
        )
        self._put(
            encode_quic_retry(
                version=header.version,
                source_cid=source,
                destination_cid=header.source_cid,
                original_destination_cid=header.destination_cid,
                retry_token=token,
            ),
            address,
        )

    def _put(self, data: bytes, address: Address) -> None:
        try:
            self._socket.sendto(data, address)
        except OSError:
            return  # as lost on the way: QUIC sends again
        self._figures["datagrams_out"] += 1
        self._figures["bytes_out"] += len(data)

    # -- connections -----------------------------------------------------------------------------------------------

    def _begin(self, quic: Engine) -> EngineConnection:
        quic.limit_streams(self._streams_max, self._uni_max)
        self._count += 1
        link = EngineConnection(self._count, quic)
        self._links[link.number] = link
        link.overdue = self._loop.call_later(HANDSHAKE_S, self._overdue, link)
        return link

    async def _resolve(self, link: EngineConnection, host: str, port: int) -> None:
        try:
            address = await self._loop.run_in_executor(None, _resolved, self._socket.family, host, port)
        except OSError as error:
            self._gone(link, 0, f"{host} is not found: {error.strerror or error}")
        else:
            if not link.gone:
                self._go(link, address)

    def _go(self, link: EngineConnection, address: Address) -> None:
        link.quic.connect(address, now=self._loop.time())
        link.cids.add(link.quic.host_cid)
        self._by_cid[link.quic.host_cid] = link
        self._transmit(link)

    def _overdue(self, link: EngineConnection) -> None:
        if not link.connected and not link.gone:
            self.shut(link.number, 0, b"the handshake took too long")

    def _collect(self, link: EngineConnection) -> None:
        """What aioquic found out, as events."""
        while (event := link.quic.next_event()) is not None:
            if isinstance(event, events.StreamDataReceived):
                self._streams.received(link, event.stream_id, event.data, event.end_stream)
            elif isinstance(event, events.HandshakeCompleted):
                self._connected(link)
            elif isinstance(event, events.StopSendingReceived):
                flow = self._streams.flow(link, event.stream_id)
                if not flow.silent:
                    self._streams.silence(flow)
                    link.unfinished.add(event.stream_id)
                    self._tell((STOPPED, link.number, event.stream_id, event.error_code))
            elif isinstance(event, events.StreamReset):
                flow = self._streams.flow(link, event.stream_id)
                self._streams.drop(link, event.stream_id, flow)
                self._tell((RESET, link.number, event.stream_id, event.error_code))
                self._streams.tidy(link, event.stream_id)
            elif isinstance(event, events.ConnectionIdIssued):
                link.cids.add(event.connection_id)
                self._by_cid[event.connection_id] = link
            elif isinstance(event, events.ConnectionIdRetired):
                link.cids.discard(event.connection_id)
                self._by_cid.pop(event.connection_id, None)
            elif isinstance(event, events.ConnectionTerminated):
                self._ended(link, event)
                self._forget(link)
        if link.quic.ending is not None:
            self._ended(link, link.quic.ending)
        if not link.gone:
            for stream in list(link.unfinished):
                self._streams.pump(link, stream, link.flows[stream])

    def _connected(self, link: EngineConnection) -> None:
        link.connected = True
        address = link.quic.get_peer_address()
        assert address is not None, "a handshake has two sides"
        link.peer = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        self._handshake_over(link)
        self._figures["accepted"] += 1
        self._tell((CONNECTED, link.number, link.peer))
        self._keep_alive(link)

    def _handshake_over(self, link: EngineConnection) -> None:
        """The handshake is over, one way or the other."""
        if link.half_open:
            link.half_open = False
            self._figures["half_open"] -= 1
        if link.overdue is not None:
            link.overdue.cancel()
            link.overdue = None

    def _keep_alive(self, link: EngineConnection) -> None:
        if self._keep_alive_ms and not link.gone:
            if link.alive is not None:
                link.quic.send_ping(0)
                self._transmit(link)
            link.alive = self._loop.call_later(self._keep_alive_ms / 1000, self._keep_alive, link)

    def _ended(self, link: EngineConnection, event: events.ConnectionTerminated) -> None:
        if event.reason_phrase == "Idle timeout":
            self._gone(link, 0, f"idle for {self._idle_ms // 1000} s")
        else:
            who = "closed by peer" if event.frame_type is None else "ended by QUIC"
            self._gone(link, event.error_code, f"{who}: {event.reason_phrase}" if event.reason_phrase else who)

    def _gone(self, link: EngineConnection, code: int, reason: str) -> None:
        if link.gone:
            return
        link.gone = True
        self._handshake_over(link)
        if link.alive is not None:
            link.alive.cancel()
        link.unfinished.clear()
        for flow in link.flows.values():
            flow.queue.clear()
        if link.connected or not link.cids or self._server is None:
            self._tell((CLOSED, link.number, code, reason))
        else:
            self._links.pop(link.number, None)  # CONNECTED was not sent for a client whose handshake failed

    def _forget(self, link: EngineConnection) -> None:
        for cid in link.cids:
            self._by_cid.pop(cid, None)
        if link.timer is not None:
            link.timer.cancel()
        self._dirty.pop(link, None)

    # -- out -------------------------------------------------------------------------------------------------------

    def _touch(self, link: EngineConnection) -> None:
        """Something is to be sent: once, at the end of this turn of the loop."""
        self._dirty[link] = None
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._dirty:
            self._transmit(self._dirty.popitem()[0])

    def _transmit(self, link: EngineConnection) -> None:
        if not link.cids:
            return  # its address is not known yet
        for data, address in link.quic.datagrams_to_send(now=self._loop.time()):
            self._put(data, address)
        if not link.gone:
            self._collect(link)  # new connection ids, which aioquic has just sent to the peer
        at = link.quic.get_timer()
        if link.timer is not None and at != link.timer_at:
            link.timer.cancel()
            link.timer = None
        if link.timer is None and at is not None:
            link.timer = self._loop.call_at(at, self._time, link)
        link.timer_at = at

    def _time(self, link: EngineConnection) -> None:
        link.timer = None
        if self._closed:
            return
        link.quic.handle_timer(now=max(self._loop.time(), link.timer_at or 0))
        self._collect(link)
        if link.cids & self._by_cid.keys():
            self._transmit(link)

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        if not self._signalled and not self._closed:
            self._signalled = True
            self._ours.send(b"!")


def _bound(host: str, port: int) -> socket.socket:
    family, kind, number, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, number)
    try:
        made.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            made.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


def _resolved(family: int, host: str, port: int) -> Address:
    return socket.getaddrinfo(host, port, family=family, type=socket.SOCK_DGRAM)[0][4]
