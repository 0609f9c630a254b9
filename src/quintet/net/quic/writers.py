"""The sending side of the streams of a QUIC connection: what a turn makes goes to the endpoint once, and nobody sends without room.

    session -> Stream -> push .. flush (the end of the turn) -> endpoint.send      what was answered in one call: send_now -> endpoint.send
    delivery -> OutletStream (room, park) -> push .. flush -> endpoint.send

Bytes that the endpoint has not sent count against the stream, its connection and all connections (ADR 16); a peer that takes nothing is
noticed (net/flow_control.py). What is received is net/quic/streams.py's.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from quintet.broker.identity.metering import Meter
from quintet.model import limits
from quintet.net.flow_control import FlowControl
from quintet.net.output import OutputBudget
from quintet.net.quic.endpoint import Endpoint
from quintet.net.turns import Turns
from quintet.protocols.base import TOO_SLOW, Streams, StreamSession

CONNECTION_HIGH_BYTES = 32 * limits.MIB  # unsent over all streams of a connection: above it none of them has room


class StreamListener(Protocol):
    """The listener of a stream's connection (quic.QuicListener)."""

    endpoint: Endpoint
    output: OutputBudget
    loop: asyncio.AbstractEventLoop
    make_session: Callable[[Any], StreamSession]  # of a streams.Stream
    stalls: int

    @property
    def name(self) -> str: ...

    def now(self) -> int: ...

    def monotonic(self) -> int: ...

    def touch(self, writer: "Writer") -> None: ...


class StreamConnection(Streams, Protocol):
    """The connection of a stream (quic.QuicConnection)."""

    turns: Turns
    number: int
    closing: bool
    crowded: bool
    unsent: int
    kept: int
    bytes_out: int

    @property
    def listener(self) -> StreamListener: ...

    @property
    def kept_max(self) -> int: ...

    def later(self, writer: "Writer") -> None: ...

    def watch(self, writer: "Writer") -> None: ...

    def forget(self, writer: "Writer") -> None: ...

    def keep(self, stream: Any) -> None: ...

    def crowd(self) -> None: ...

    def measure(self) -> None: ...

    def account(self) -> None: ...

    def remember(self, name: str | None) -> None: ...

    def turn_facts(self) -> dict[str, object]: ...

    def auth_failed(self, count: int, facts: dict[str, object]) -> None: ...

    def report_closing(self, reason: str, facts: dict[str, object]) -> None: ...

    def report_reset(self, reason: str, facts: dict[str, object]) -> None: ...


class Writer:
    """The sending side of one stream."""

    __slots__ = (
        "_ended", "_flow", "_out", "_out_bytes", "_own_turn", "_queued", "connection", "dead", "ending", "number",
    )  # fmt: skip

    def __init__(self, connection: StreamConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.dead = False  # nothing is sent or received any more
        self.ending = False  # FIN goes, or went, behind the output
        self._ended = False
        self._out: list[bytes] | None = None  # of this turn of the loop
        self._out_bytes = 0
        self._queued = 0  # in the endpoint, when it last said so
        self._flow = FlowControl()
        self._own_turn = False  # this turn belongs to it, and it has sent nothing in it yet

    def turn_facts(self) -> dict[str, object]:
        return {**self.connection.turn_facts(), "stream": self.number}

    def room(self) -> int:
        if self.connection.meter is not None and self._withheld():
            return 0
        return 0 if self.connection.turns.over() and not self._own_turn else self._unsent_room()

    def _withheld(self) -> int:
        """Microseconds until more may be pushed: its user is above its rate."""
        meter = self.connection.meter
        return 0 if meter is None else meter.withheld(self.connection.listener.monotonic())

    def _unsent_room(self) -> int:
        if self.dead or self.ending or self.connection.closing:
            return 0
        if self._queued > limits.WRITE_LOW_BYTES:
            self.measure()
        if self.connection.unsent > CONNECTION_HIGH_BYTES or self.connection.listener.output.full:
            self.connection.crowd()
            return 0
        # One more than the mark: at the mark itself the endpoint will not say when it is writable again.
        return limits.WRITE_HIGH_BYTES + 1 - self._queued - self._out_bytes

    def park(self, call: Callable[[], None]) -> None:
        self._flow.park(call)
        # Otherwise only the turn is over, or its user is above its rate: the endpoint owes no WRITABLE.
        if self._unsent_room() > 0:
            withheld = self._withheld()
            if withheld:
                self.connection.listener.loop.call_later(withheld / 1e6, self.connection.later, self)
            else:
                self.connection.later(self)

    def push(self, data: list[bytes]) -> None:
        """Output for the end of this turn."""
        self._own_turn = False
        if self._out is None:
            self._out = data
        else:
            self._out += data
        size = sum(map(len, data))
        self._out_bytes += size
        self.connection.unsent += size
        if self.connection.meter is not None:
            self._charge(self.connection.meter, size)
        self.connection.listener.touch(self)

    def send_now(self, data: bytes) -> None:
        """As push and flush of one answer, for who has nothing else to send, is not watched, and keeps nothing of this turn waiting:
        it goes to the endpoint, which holds it until the turn ends."""
        self._own_turn = False
        connection, size = self.connection, len(data)
        if connection.meter is not None:
            self._charge(connection.meter, size)
        queued = connection.listener.endpoint.send(connection.number, self.number, [data], False)
        if queued < 0:
            return  # STOPPED or CLOSED is among the events to come
        connection.bytes_out += size
        if queued != self._queued:
            self._count(queued)
            connection.account()
        if queued > limits.WRITE_HIGH_BYTES:
            self.watch_unsent()

    def _charge(self, meter: Meter, size: int) -> None:
        """So much goes out by itself: the next push waits for it (room)."""
        meter.delivered(size, self.connection.listener.monotonic())

    def flush(self) -> None:
        """The turn is over: hand on what it made."""
        data, self._out = self._out or [], None
        size, self._out_bytes = self._out_bytes, 0
        self.connection.unsent -= size  # from here on the endpoint counts it
        finish = self.ending and not self._ended
        if self.dead or not (data or finish):
            return
        self._ended = self.ending
        listener = self.connection.listener
        queued = listener.endpoint.send(self.connection.number, self.number, data, finish)
        if queued < 0:
            return  # STOPPED or CLOSED is among the events to come
        self.connection.bytes_out += size
        if self._flow.watched:
            self._flow.added(size)
        if queued != self._queued:
            self._count(queued)
        self.connection.account()
        if queued > limits.WRITE_HIGH_BYTES or (finish and queued):
            self.watch_unsent()
        elif self._flow.parked is not None and self._unsent_room() > 0:
            self._wake()

    def _count(self, queued: int) -> None:
        self.connection.unsent += queued - self._queued
        self._queued = queued

    def measure(self) -> int:
        if not self.dead:  # below 0: the endpoint does not know it any more
            self._count(max(0, self.connection.listener.endpoint.queued(self.connection.number, self.number)))
        return self._queued

    def writable(self) -> None:
        """The endpoint sent enough."""
        if not self.dead:
            self.measure()
            self.connection.account()
            self._flow.unwatch()
            self._wake()

    def _wake(self) -> None:
        self._flow.wake(self.room, self.park)

    def wake_if_room(self) -> None:
        """The connection as a whole has room again."""
        if self._flow.parked is not None and self._unsent_room() > 0:
            self._wake()

    def go_on(self) -> None:
        """A later turn of the loop, which this asked for: something is handed over in any case."""
        self._own_turn = True
        try:
            if not self.dead:
                self.wake_if_room()
        finally:
            self._own_turn = False

    def watch_unsent(self) -> None:
        """From now on the peer has to take something every WRITE_STALL_US."""
        if not self._flow.watched and self.measure():
            self._flow.watch(self.connection.listener.monotonic(), self._queued)
            self.connection.watch(self)

    def check(self, monotonic: int) -> None:
        if not self._flow.watched or self.dead:
            return
        unsent = self.measure()
        self.connection.account()
        if not unsent:
            self._flow.unwatch()
            return
        pressed = self.connection.listener.output.pressed and unsent > limits.WRITE_HIGH_BYTES
        overdue = self._flow.overdue(monotonic, unsent, pressed)
        if overdue:
            self.connection.report_reset(overdue, self.turn_facts())
            self.connection.listener.endpoint.reset(self.connection.number, self.number, TOO_SLOW)
            self.gone(TOO_SLOW)

    @property
    def watched(self) -> bool:
        return not self.dead and self._flow.watched

    def die(self) -> bool:
        """False if it was dead already."""
        if self.dead:
            return False
        self._count(0)
        self.connection.unsent -= self._out_bytes
        self.dead = True
        self._out = self._flow.parked = None
        self._out_bytes = 0
        self.connection.forget(self)
        self.connection.account()
        return True

    def gone(self, code: int) -> None:
        """The peer stopped it, it was reset, or the connection ended (LOST)."""
        self.die()


class OutletStream(Writer):
    """A stream this side opened and only writes to."""

    __slots__ = ("_tell",)

    def __init__(self, connection: StreamConnection, number: int, tell: Callable[[int], None]) -> None:
        super().__init__(connection, number)
        self._tell: Callable[[int], None] | None = tell

    def send(self, data: list[bytes]) -> None:
        if not self.dead and not self.ending:
            self.push(data)

    def end(self) -> None:
        if not self.dead and not self.ending:
            self.ending = True
            self._tell = self._flow.parked = None
            self.connection.listener.touch(self)

    def reset(self, code: int) -> None:
        self._tell = None
        if self.die():
            self.connection.listener.endpoint.reset(self.connection.number, self.number, code)

    def gone(self, code: int) -> None:
        tell, self._tell = self._tell, None
        if self.die() and tell is not None:
            tell(code)
