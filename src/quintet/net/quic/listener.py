"""Accepts the QUIC connections of one UDP door: limits, the sweep for deadlines, counters.

    endpoint -> QuicListener._ready -> Stream -> session.receive -> (broker) ... -> session.take_output -> endpoint.send
    delivery / broker -> Stream (Sink), OutletStream -> endpoint.send

As net/listener.py and net/connection.py do it for TCP, with the same limits; what TCP does per connection is done per
stream (net/quic/streams.py). Output of one turn of the loop goes to the endpoint once per stream. Between turns a connection
keeps its table of streams and nothing else. Knows no protocol and no packet.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.broker.identity.metering import Meter
from quintet.kernel.items import QuicEvent
from quintet.model import limits
from quintet.model.client_address import ClientAddress
from quintet.net.listener import SHUTTING_DOWN, SWEEP_S, Failures, ListenerOptions, Report
from quintet.net.loop import LoopScheduler
from quintet.net.output import OutputBudget
from quintet.net.quic.endpoint import Endpoint, make_endpoint
from quintet.net.quic.events import CLOSED, CONNECTED, DATA, RESET, SENT, STOPPED, WRITABLE
from quintet.net.quic.streams import CODE_LIMIT, Stream
from quintet.net.quic.writers import CONNECTION_HIGH_BYTES, OutletStream, Writer
from quintet.net.turns import Turns
from quintet.protocols.base import LOST, Outlet, StreamSession
from quintet.protocols.options import QuicSection

TAKE_BYTES = limits.MIB  # of one wake-up; then other work of the loop has its turn
EMPTY_US = 60_000_000  # a connection without any stream is shut after this, unless its host is at work on another
CONNECTION_KEPT_BYTES_MAX = 64 * limits.MIB  # of unfinished frames over all streams of a connection
STRANGER_KEPT_BYTES_MAX = 64 * limits.KIB  # ... before anybody authenticated
GOODBYE_STEP_S = 0.02  # between checks whether all output before the close was sent ...
GOODBYE_STEPS_MAX = 20  # ... and how many at most
GOODBYE_STEPS_MIN = 4  # QUIC itself has some to send when the endpoint has none
KEEP_ALIVES_PER_IDLE = 3  # a quiet peer is asked so often within the idle time: two may be lost ...
KEEP_ALIVE_MS_MAX = 10_000  # ... and at least this often, for peers whose own idle time is shorter than ours
STREAM_WINDOW_BYTES = limits.MIB  # a peer may send ahead of what was read, on one stream ...
CONNECTION_WINDOW_BYTES = 16 * limits.MIB  # ... and on all streams of a connection
SEND_WINDOW_BYTES = 4 * limits.MIB  # unacknowledged bytes of a connection

# Application close codes of a connection, beside CODE_LIMIT:
CODE_UNAUTHENTICATED: Final = 0x41
CODE_INTERNAL: Final = 0x49  # an exception in the broker's own code
CODE_REVOKED: Final = 0x52
CODE_SHUTTING_DOWN: Final = 0x53


Identity = tuple[bytes, bytes, bytes]  # certificate, key, authorities of clients: PEM texts, the last may be empty


class QuicConnection:
    """One connection, for the sessions of its streams (Streams) and for the server (recheck, evict, who)."""

    __slots__ = ("_code", "_empty_since", "_handshake_since", "_holds", "_opened_at", "_outlets", "_queued", "_reason", "_streams", "_used", "_waiting",
                 "_watched", "_who", "bytes_in", "bytes_out", "closing", "crowded", "id", "kept", "listener", "meter", "number", "peer", "shared", "turns", "unsent")  # fmt: skip

    def __init__(self, listener: "QuicListener", number: int, peer: str) -> None:
        self.listener = listener
        self.turns = listener.turns
        self.number = number
        self.id = next(listener.turns.connection_ids)
        self.bytes_in = self.bytes_out = 0  # of all its streams; the listener adds them up when it is asked
        self.peer: str = ClientAddress(peer, self.id)
        self.shared: object | None = None
        self.meter: Meter | None = None  # of who has a rate
        self.closing = False  # it is shut at the end of this turn, or is gone
        self.unsent = 0  # bytes queued over all its streams, as far as known
        self.kept = 0  # bytes of unfinished frames over all its streams
        self._code = 0
        self._reason = ""
        self._opened_at = self._handshake_since = listener.monotonic()
        self._empty_since: int | None = self._handshake_since
        self._streams: dict[int, Stream] = {}
        self._outlets: dict[int, OutletStream] = {}
        self._watched: set[Writer] | None = None
        self._waiting: dict[Writer, None] = {}  # for a later turn of the loop, in their order
        self._queued = False  # it is in the queue of turns, or runs now
        self.crowded = False
        self._holds = False  # bytes of the output budget
        self._used = False  # the peer has opened a stream, at least once
        self._who: str | None = None

    @property
    def age_seconds(self) -> float:
        return (self.listener.monotonic() - self._opened_at) / 1e6

    def facts(self) -> dict[str, object]:
        """As Connection.facts has them. QUIC is always TLS 1.3; with which cipher its library does not say."""
        self.measure()  # what streams below their mark had unsent when they last sent may be gone
        streams = self._streams.values()
        return {"seconds": round(self.age_seconds, 3), "bytes_in": self.bytes_in, "bytes_out": self.bytes_out, "unsent_bytes": self.unsent,
                "unanswered": sum(stream.unanswered for stream in streams), "paused": any(stream.paused for stream in streams),
                "tls": "TLSv1.3", "cipher": ""}  # fmt: skip

    # -- for the sessions of its streams ---------------------------------------------------------------------------

    def open(self, gone: Callable[[int], None]) -> Outlet:
        number = -1 if self.closing else self.listener.endpoint.open(self.number, False)
        outlet = OutletStream(self, number, gone)
        if number < 0:
            outlet.ending = True  # there is no such stream: nothing is sent, and `gone` is called soon
            self.listener.loop.call_soon(outlet.gone, LOST)
        else:
            self._outlets[number] = outlet
            self._empty_since = None
        return outlet

    def shut(self, code: int, reason: str) -> None:
        if not self.closing:
            self.closing = True
            self._code, self._reason = code, reason
            if reason:
                self.report_closing(reason, self.turn_facts())
            self.listener.shut_later(self)

    def later(self, writer: Writer) -> None:
        """`writer.go_on` in a later turn: one for all streams of this connection, behind those of other connections."""
        self._waiting[writer] = None
        if not self._queued:
            self._queued = True
            self.turns.later(self._go_on)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        while waiting and not self.closing:
            writer = next(iter(waiting))
            del waiting[writer]
            try:
                writer.go_on()
            except Exception as error:
                self.fault("turn", error)
            if self.turns.over():
                break
        self._waiting = waiting | self._waiting  # those that ran now are the last in the queue
        self._queued = bool(self._waiting) and not self.closing
        if self._queued:
            self.turns.later(self._go_on)

    def turn_facts(self) -> dict[str, object]:
        return {"door": self.listener.options.name, "connection": self.id, "peer": self.peer, "who": self.who}

    def fault(self, where: str, error: Exception) -> None:
        """A session, or a feed of this connection, raised: see QuicListener.fault."""
        self.listener.fault(self, where, error)

    # -- for the server --------------------------------------------------------------------------------------------

    @property
    def who(self) -> str | None:
        """The first that authenticated on any of its streams."""
        if self._who is None:
            for stream in self._streams.values():
                self._who = stream.who
                if self._who is not None:
                    break
        return self._who

    def remember(self, name: str | None) -> None:
        """A stream that ends says who it was of."""
        self._who = self._who or name

    @property
    def kept_max(self) -> int:
        """What its streams may keep of unfinished frames."""
        return (
            CONNECTION_KEPT_BYTES_MAX
            if self.listener.section.open_to_strangers or self.who is not None
            else STRANGER_KEPT_BYTES_MAX
        )

    @property
    def at_work(self) -> bool:
        """An authenticated client has a stream open on it."""
        return not self.closing and bool(self._streams or self._outlets) and self.who is not None

    @property
    def in_reserve(self) -> bool:
        """Without a stream, while another connection of its host is at work: the published client opens connections for
        subscriptions long before the first one. One that had a stream and did not authenticate does not count."""
        if self._streams or self._outlets or (self._used and self.who is None):
            return False
        return self.host in self.listener.hosts_at_work()

    def _end_reserve(self) -> None:
        """Its first stream was opened. If it was in reserve for longer than others have to say who they are, that time begins now:
        the next sweep may come before its peer has sent more than the first bytes."""
        monotonic = self.listener.monotonic()
        if monotonic - self._handshake_since >= limits.HANDSHAKE_US:
            self._handshake_since = monotonic

    @property
    def host(self) -> str:
        return self.peer.rpartition(":")[0]

    def recheck(self) -> None:
        for stream in list(self._streams.values()):
            stream.recheck()
        recheck = getattr(self.shared, "recheck", None)  # subscriptions whose stream was closed before
        if recheck is not None:
            try:
                recheck(self.listener.now())
            except Exception as error:
                self.fault("recheck", error)

    def evict(self, reason: str) -> None:
        self.shut(CODE_SHUTTING_DOWN if reason == SHUTTING_DOWN else CODE_REVOKED, reason)

    # -- for the listener ------------------------------------------------------------------------------------------

    def data(self, number: int, data: bytes, fin: bool) -> None:
        """DATA of one stream, perhaps the first of it."""
        self.bytes_in += len(data)
        stream = self._streams.get(number)
        if stream is None:
            if self.closing or number & 3:
                return  # an outlet carries nothing back
            stream = self._streams[number] = Stream(self, number)
            if not self._used:
                self._used = True
                self._end_reserve()
            self._empty_since = None
            self.watch(stream)
        stream.data(data, fin)
        if self.meter is not None:
            stream.wait(self.meter.received(len(data), self.listener.monotonic()))

    def event(self, kind: int, number: int, event: QuicEvent) -> None:
        """WRITABLE, STOPPED, RESET or SENT of one stream."""
        writer: Writer | None = self._streams.get(number) or self._outlets.get(number)
        if writer is None:
            return
        if kind == WRITABLE:
            writer.writable()
            self._wake_if_uncrowded()
        elif kind == STOPPED:
            writer.gone(event[3])
        elif kind == RESET and isinstance(writer, Stream):
            writer.was_reset(event[3])
        elif kind == SENT:
            writer.die()

    def watch(self, writer: Writer) -> None:
        if self._watched is None:
            self._watched = set()
        self._watched.add(writer)
        self.listener.watch(self)

    def keep(self, stream: Stream) -> None:
        """Its number stays taken until `forget`."""
        self._streams[stream.number] = stream

    def auth_failed(self, count: int, facts: dict[str, object]) -> None:
        self.listener.auth_failed(self, count, facts)

    def report_closing(self, reason: str, facts: dict[str, object]) -> None:
        self.listener.closing(reason, facts)

    def report_reset(self, reason: str, facts: dict[str, object]) -> None:
        self.listener.stream_reset(reason, facts)

    def forget(self, writer: Writer) -> None:
        (self._streams if isinstance(writer, Stream) else self._outlets).pop(writer.number, None)
        if self._watched is not None:
            self._watched.discard(writer)
        if not self._streams and not self._outlets and not self.closing:
            self._empty_since = self.listener.monotonic()
            self.listener.watch(self)

    def crowd(self) -> None:
        """Too much is unsent over all streams, or over all connections: from now on the sweep checks which streams are read."""
        if self.listener.output.full:
            self.listener.output.park(self, self._room_again)
        if not self.crowded:
            self.crowded = True
            self.listener.watch(self)

    def account(self) -> None:
        """What its peer has not taken counts against the bound of all connections, above the mark of one (ADR 16)."""
        if self.closing or not (self.unsent > limits.WRITE_HIGH_BYTES or self._holds):
            return  # `lost` returns what a closing connection holds
        self._holds = self.unsent > limits.WRITE_HIGH_BYTES
        if self._holds:
            self.listener.watch(self)  # streams below their own mark send no event when their bytes are sent
        self.listener.output.hold(self, self.unsent if self._holds else 0)

    def _room_again(self) -> None:
        """Others gave back some of the bound of all connections."""
        try:
            self._wake_if_uncrowded()
        except Exception as error:
            self.fault("room", error)

    def _wake_if_uncrowded(self) -> None:
        if self.crowded and self.unsent <= CONNECTION_HIGH_BYTES and not self.listener.output.full:
            self.crowded = False
            for writer in self._writers():
                writer.wake_if_room()

    def measure(self) -> None:
        for writer in self._writers():
            writer.measure()
        self.account()

    def _writers(self) -> list[Writer]:
        return [*self._streams.values(), *self._outlets.values()]

    def unfinished(self) -> bool:
        """Whether the endpoint still has to give something of it to QUIC."""
        return any(self.listener.endpoint.queued(self.number, writer.number) > 0 for writer in self._writers())

    def check(self, monotonic: int) -> None:
        """Called by the sweep while something has a deadline."""
        if self.who is None and monotonic - self._handshake_since >= limits.HANDSHAKE_US and not self.in_reserve:
            self.shut(CODE_UNAUTHENTICATED, "not authenticated within 5 seconds")
        elif self._empty_since is not None and monotonic - self._empty_since >= EMPTY_US and not self.in_reserve:
            self.shut(CODE_LIMIT, "no stream was open for 60 seconds")
        if self.crowded or (self._holds and self.listener.output.pressed):
            for writer in self._writers():
                writer.watch_unsent()
            self._wake_if_uncrowded()
        if self._holds:
            self.measure()
        for writer in list(self._watched or ()):
            writer.check(monotonic)
            if not writer.watched and self._watched is not None:
                self._watched.discard(writer)
        if not self._watched:
            self._watched = None

    @property
    def watched(self) -> bool:
        waits = self._watched is not None or self._empty_since is not None or self.crowded or self._holds
        return not self.closing and (waits or self.who is None)

    def shut_now(self) -> None:
        self.listener.endpoint.shut(self.number, self._code, self._reason.encode())
        self.lost()

    def lost(self) -> None:
        """The connection is closed: close its streams and return what it holds."""
        self.closing = True
        self.listener.output.drop(self)
        self.listener.closed(self)
        closed = getattr(self.shared, "closed", None)
        for let_go in (*(partial(writer.gone, LOST) for writer in self._writers()), closed):
            try:
                if let_go is not None:
                    let_go()
            except Exception as error:  # the others are closed all the same
                self.fault("closed", error)
        self.shared = None


class QuicListener:
    """Owns the endpoint of a door and its connections."""

    def __init__(
        self,
        options: ListenerOptions,
        section: QuicSection,
        identity: Identity,
        make_session: Callable[[Stream], StreamSession],
        report: Report,
        scheduler: LoopScheduler | None = None,
        output: OutputBudget | None = None,
    ) -> None:
        self.options = options
        self.output = output or OutputBudget()
        self.make_session = make_session
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.loop) if scheduler is None else scheduler.turns
        self.connections: set[QuicConnection] = set()
        self._ended_in = self._ended_out = 0  # bytes of connections that are gone
        self.takes = 0  # times that events were taken from the endpoint
        self.accepted = self.refused = self.cut = self.stalls = self.faults = 0
        self.auth_failures = 0
        self.endpoint: Endpoint
        self.section = section
        self._identity = identity
        self._report = report
        self._scheduler = scheduler
        self._by_number: dict[int, QuicConnection] = {}
        self._watched: set[QuicConnection] = set()
        self._addresses: Counter[str] = Counter()
        self._failures = Failures(options.auth_failures_per_minute)
        self._sweeper: asyncio.TimerHandle | None = None
        self._at_work: set[str] | None = None
        self._touched: dict[Writer, None] = {}
        self._to_shut: list[QuicConnection] = []
        self._soon = False  # a flush is due
        self.running = False  # from `start` until `close_all` is done

    async def start(self) -> None:
        """OSError: it cannot be bound; ValueError: what is wrong with the certificate."""
        section, options, idle_ms = self.section, self.options, self.section.idle_seconds * 1000
        self.endpoint = make_endpoint(
            options.host,
            options.port,
            *self._identity,
            streams_max=section.streams_max,
            uni_max=0,
            idle_ms=idle_ms,
            keep_alive_ms=min(idle_ms // KEEP_ALIVES_PER_IDLE, KEEP_ALIVE_MS_MAX),
            connections_max=options.connections_max,
            half_open_max=section.half_open_max,
            retry_above=section.unproven_handshakes_max,
            stream_window=STREAM_WINDOW_BYTES,
            connection_window=CONNECTION_WINDOW_BYTES,
            send_window=SEND_WINDOW_BYTES,
            write_high=limits.WRITE_HIGH_BYTES,
            write_low=limits.WRITE_LOW_BYTES,
        )
        self.running = True
        self.loop.add_reader(self.endpoint.fileno(), self._ready)
        self._sweep()

    @property
    def address(self) -> str:
        host, port = self.endpoint.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def bytes_in(self) -> int:
        return self._ended_in + sum(connection.bytes_in for connection in self.connections)

    @property
    def bytes_out(self) -> int:
        return self._ended_out + sum(connection.bytes_out for connection in self.connections)

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000

    def set_certificate(self, certificate: bytes, key: bytes, client_ca: bytes) -> None:
        """For connections from now on. ValueError: what is wrong with it, and the old one stays."""
        self.endpoint.set_certificate(certificate, key, client_ca)

    def figures(self) -> dict[str, int]:
        return self.endpoint.figures()

    # -- events ----------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        turns, endpoint = self.turns, self.endpoint
        began = turns.begin()
        self.takes += 1
        self._soon = True  # what this turn makes is flushed below, not by another callback
        try:
            endpoint.hold()
            turns.gather()
            try:
                events = endpoint.take(TAKE_BYTES)
                turns.lone_read.under_way = len(events) == 1  # nobody adds to what it appends
                for event in events:
                    if event[0] == DATA and (connection := self._by_number.get(event[1])) is not None:
                        try:
                            connection.data(event[2], event[3], event[4])
                        except Exception as error:
                            self.fault(connection, "receive", error)
                    else:
                        self._event(event)
            finally:
                turns.finish()  # what needs no disk is answered in the same turn
                self._flush()
        finally:
            if began:
                turns.end(self._ready)

    def _event(self, event: QuicEvent) -> None:
        kind, number = event[0], event[1]
        if kind == CONNECTED:
            self._opened(QuicConnection(self, number, event[2]))
            return
        connection = self._by_number.get(number)
        if connection is None:
            return  # one we shut already
        try:
            if kind == CLOSED:
                connection.lost()
            else:
                connection.event(kind, event[2], event)
        except Exception as error:
            self.fault(connection, "receive", error)

    @property
    def name(self) -> str:
        return self.options.name

    def fault(self, connection: QuicConnection, where: str, error: Exception) -> None:
        """A session raised: its connection ends, and no other; what others were sent in the same turn is not lost."""
        self.faults += 1
        self._report("session_failed", {**connection.turn_facts(), "where": where, "error": repr(error),
                                        "exc_info": error})  # fmt: skip
        connection.shut(CODE_INTERNAL, "internal error")

    def touch(self, writer: Writer) -> None:
        """It has output, or an end, for the endpoint."""
        self._touched[writer] = None
        if not self._soon:
            self._flush_soon()

    def shut_later(self, connection: QuicConnection) -> None:
        self._to_shut.append(connection)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._soon:
            self._soon = True
            self.loop.call_soon(self.turns.run, self._flush)

    def _flush(self) -> None:
        """The end of a turn: everything it made goes to the endpoint, which sends it at once if it is little."""
        if not self.running:
            return
        self._soon = True
        self.endpoint.hold()
        try:
            while self._touched or self._to_shut:
                touched, self._touched = self._touched, {}
                for writer in touched:
                    try:
                        writer.flush()
                    except Exception as error:
                        writer.connection.fault("flush", error)
                ending, self._to_shut = self._to_shut, []
                for connection in ending:
                    if connection in self.connections:
                        connection.shut_now()
        finally:
            self._soon = False
            self.endpoint.flush()

    # -- connections -----------------------------------------------------------------------------------------------

    def _opened(self, connection: QuicConnection) -> None:
        address = connection.host
        self.accepted += 1
        self.connections.add(connection)
        self._by_number[connection.number] = connection
        self._addresses[address] += 1
        self._watched.add(connection)
        blocked = self._failures.blocked(address, self.monotonic())
        waiting = self._waiting() if len(self._watched) > self.options.unauthenticated_max else 0
        reason = self.options.refusal(address, len(self.connections), self._addresses[address], blocked, waiting)
        if reason:
            self.refused += 1
            connection.shut(CODE_LIMIT, reason)

    def _waiting(self) -> int:
        return sum(1 for connection in self._watched if connection.who is None and not connection.in_reserve)

    def hosts_at_work(self) -> set[str]:
        """As of the last sweep, or this one."""
        if self._at_work is None:
            self._at_work = {connection.host for connection in self.connections if connection.at_work}
        return self._at_work

    def auth_failed(self, connection: QuicConnection, count: int, facts: dict[str, object]) -> None:
        """Count them against the address; past the limit, its connections end and new ones are refused for the minute."""
        address = connection.host
        self.auth_failures += count
        self._failures.add(address, self.monotonic(), count)
        self._report("authentication_failed", facts)
        if self._failures.blocked(address, self.monotonic()):
            connection.shut(CODE_LIMIT, "too many failed authentications")

    def closed(self, connection: QuicConnection) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._ended_in += connection.bytes_in
        self._ended_out += connection.bytes_out
        self._by_number.pop(connection.number, None)
        self._watched.discard(connection)
        address = connection.host
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def closing(self, reason: str, facts: dict[str, object]) -> None:
        """We close a connection, or a stream of it: say why, once."""
        self.cut += 1
        self._report("connection_closed", {**facts, "reason": reason})

    def stream_reset(self, reason: str, facts: dict[str, object]) -> None:
        self._report("stream_reset", {**facts, "reason": reason})

    def watch(self, connection: QuicConnection) -> None:
        if not connection.closing:
            self._watched.add(connection)

    # -- time and end ----------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        monotonic = self.monotonic()
        self._at_work = None
        for connection in list(self._watched):
            try:
                connection.check(monotonic)
            except Exception as error:
                self.fault(connection, "tick", error)
            if not connection.watched:
                self._watched.discard(connection)
        self._sweeper = self.loop.call_later(SWEEP_S, self.turns.run, self._sweep)

    def stop_accepting(self) -> None:
        self.endpoint.set_accepting(False)

    def close_all(self, reason: str) -> None:
        """Close all connections when their output was sent or enough time has passed; then close the
        socket. `connections` is empty when it is done."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.endpoint.set_accepting(False)
        self._flush()
        self._goodbye(reason, 0)

    def _goodbye(self, reason: str, step: int) -> None:
        if not self.running:
            return
        again = step < GOODBYE_STEPS_MIN or any(connection.unfinished() for connection in self.connections)
        if self.connections and again and step < GOODBYE_STEPS_MAX:
            self.loop.call_later(GOODBYE_STEP_S, self.turns.run, self._goodbye, reason, step + 1)
            return
        for connection in list(self.connections):
            connection.evict(reason)
        self._flush()
        self.running = False
        self.loop.remove_reader(self.endpoint.fileno())
        self.endpoint.close()
