"""Lets the streams of a QUIC connection reach every cell (ADR 48).

    a stream the client opened    CellStreamSession, with a leg to each cell that it asks, as front.py
    a stream the broker opens     Feeds (here) <- one more leg for each cell of a connection <- LinkedStreams (there)

Subscriptions belong to the connection, so the sessions of its legs in one cell share a LinkedStreams, which they find by the
connection's token; it lives as long as the leg of its feeds. A feed in another cell has WINDOW_BYTES of credit, which comes back when
the client's stream has room. If that leg is lost, the client's connection ends.

    there -> here     u8 OPEN, DATA, END or RESET | u32 which | u32 length | data, or the code
    here -> there     u8 TAKEN or GONE | u32 which | u32 length | the number of bytes, or the code
    READY is asked first, and answered; legs of streams follow
"""

import secrets
import struct
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from quintet.broker.identity.metering import Meter
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.net.cells import wire
from quintet.net.cells.front import CellSession
from quintet.net.cells.legs import Leg, Links, News
from quintet.net.connection import Connection
from quintet.net.turns import Turns
from quintet.protocols.base import FLOWING, Outlet, Session, SessionConnection, Streams, StreamSession
from quintet.protocols.routing import Router

FEEDS: Final = "/feeds"  # behind the name of the door, for the leg that carries them
WINDOW_BYTES: Final = limits.WRITE_HIGH_BYTES  # of one feed
CONNECTION_WINDOW_BYTES: Final = 16 * WINDOW_BYTES  # of all feeds of a connection in one cell
CODE_CELL_LOST: Final = 0x53  # as when the broker ends: connect again

OPEN: Final = 1
DATA: Final = 2
END: Final = 3
RESET: Final = 4
TAKEN: Final = 5
GONE: Final = 6
READY: Final = 7
_HEAD: Final = struct.Struct(">BII")
_NUMBER: Final = struct.Struct(">q")


def _word(kind: int, which: int, data: bytes = b"") -> bytes:
    return _HEAD.pack(kind, which, len(data)) + data


def _words(rest: bytearray) -> list[tuple[int, int, bytes]]:
    """Whole ones, which are taken from `rest`."""
    found, at = [], 0
    while len(rest) - at >= _HEAD.size:
        kind, which, size = _HEAD.unpack_from(rest, at)
        end = at + _HEAD.size + size
        if end > len(rest):
            break
        found.append((kind, which, bytes(memoryview(rest)[at + _HEAD.size : end])))
        at = end
    del rest[:at]
    return found


# -- where the client is ----------------------------------------------------------------------------------------------


class OpenRouter(Router, Protocol):
    """A router of streams."""

    def begin(self, view: memoryview) -> None:
        """Called with what was received while nobody is known."""


class Shared(Protocol):
    """What sessions of one connection share, as far as it ends what is elsewhere."""

    elsewhere: Any


class _FeedLeg:
    """The leg of one cell's feeds, and the client's streams for them. To the leg it is the connection of a client."""

    def __init__(self, feeds: "Feeds", cell: int) -> None:
        self._feeds = feeds
        self._rest = bytearray()
        self._outlets: dict[int, Outlet] = {}
        self._waiting: list[Callable[[], None]] | None = []
        said = wire.Opening(feeds.door + FEEDS, feeds.peer, "", b"", feeds.token)
        self._leg = feeds.make_leg(cell, self, feeds.turns, said)
        reason = f"cell {cell} has ended its side of this connection: connect again"
        self._leg.send(_word(READY, 0))
        self._leg.connect(feeds.links.path(cell), lambda: feeds.streams.shut(CODE_CELL_LOST, reason))

    def when_ready(self, call: Callable[[], None]) -> None:
        """The other side knows of this connection."""
        if self._waiting is None:
            call()
        else:
            self._waiting.append(call)

    def end(self) -> None:
        self._leg.end()

    # As its leg sees it.

    def completed(self, token: object, _result: object, _error: Exception | None) -> None:
        assert isinstance(token, News)
        for piece in token.outputs:
            self._rest += piece
        try:
            for kind, which, data in _words(self._rest):
                self._heard(kind, which, data)
        except Exception as error:
            self._feeds.streams.fault("feeds", error)

    def _heard(self, kind: int, which: int, data: bytes) -> None:
        if kind == READY:
            waiting, self._waiting = self._waiting or [], None
            for call in waiting:
                call()
        elif kind == OPEN:
            self._outlets[which] = self._feeds.streams.open(lambda code: self._gone(which, code))
        elif (outlet := self._outlets.get(which)) is None:
            return  # it is gone, and that is on its way
        elif kind == DATA:
            outlet.send([data])
            self._give_back(which, outlet, len(data))
        else:
            del self._outlets[which]
            if kind == END:
                outlet.end()
            else:
                outlet.reset(_NUMBER.unpack(data)[0])

    def _give_back(self, which: int, outlet: Outlet, size: int) -> None:
        if outlet.room() > 0:
            self._leg.send(_word(TAKEN, which, _NUMBER.pack(size)))
        else:
            outlet.park(lambda: self._give_back(which, outlet, size))

    def _gone(self, which: int, code: int) -> None:
        if self._outlets.pop(which, None) is not None:
            self._leg.send(_word(GONE, which, _NUMBER.pack(code)))

    def evict(self, _reason: str) -> None:
        """The leg is lost next."""

    def room(self) -> int:
        return 1  # credit bounds what comes


class Feeds:
    """What other cells send to one connection by themselves."""

    make_leg: Callable[..., Leg] = Leg

    def __init__(self, streams: Streams, turns: Turns, links: Links, door: str) -> None:
        self.streams = streams
        self.turns = turns
        self.links = links
        self.door = door
        self.peer = str(streams.peer)
        self.token = secrets.token_hex(16)
        self._legs: dict[int, _FeedLeg] = {}

    def reach(self, cell: int) -> _FeedLeg:
        found = self._legs.get(cell)
        if found is None:
            found = self._legs[cell] = _FeedLeg(self, cell)
        return found

    def closed(self) -> None:
        for leg in self._legs.values():
            leg.end()


class CellStreamSession(CellSession):
    """Before the session of one stream that the client opened."""

    __slots__ = ("_ended", "_shared")

    def __init__(self, inner: StreamSession, router: OpenRouter, shared: Shared, stream: SessionConnection, turns: Turns, links: Links, own: int, door: str, peer: str) -> None:  # fmt: skip
        super().__init__(inner, router, stream, turns, links, own, door, peer)
        self._shared = shared
        self._ended: int | None = None

    @property
    def close_code(self) -> int | None:
        return cast(StreamSession, self._inner).close_code

    @close_code.setter
    def close_code(self, code: int | None) -> None:
        cast(StreamSession, self._inner).close_code = code

    @property
    def quick(self) -> Callable[[bytes, int], bytes] | None:
        return None if self._legs else getattr(self._inner, "quick", None)

    def receive(self, view: memoryview, now: int) -> int:
        if self._inner.principal_name is None and len(view):
            cast(OpenRouter, self._router).begin(view)
        return super().receive(view, now)

    def ended(self, now: int) -> None:
        """The client says no more: the session hears of it when the other cells have answered, too."""
        self._ended = now
        self._end_if_answered()

    def _end_if_answered(self) -> None:
        if self._ended is not None and all(leg.idle for leg in self._legs.values()) and self._asked is None:
            now, self._ended = self._ended, None
            cast(StreamSession, self._inner).ended(now)

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        super().on_completed(token, result, error)
        self._end_if_answered()

    def _opening(self, login: bytes) -> wire.Opening:
        name = (self._inner.principal_name or "") if login else ""  # without one, the first request enters
        return wire.Opening(self._door, str(self._peer), name, login, self._feeds().token)

    def _connect(self, leg: Leg) -> None:
        lost = self._lost_leg(leg.cell)

        def connect() -> None:
            if self._legs.get(leg.cell) is leg:
                leg.connect(self._links.path(leg.cell), lost)

        self._feeds().reach(leg.cell).when_ready(connect)

    def _feeds(self) -> Feeds:
        shared = self._shared
        if shared.elsewhere is None:
            streams: Streams = cast(Any, self._sink).streams
            shared.elsewhere = Feeds(streams, self._turns, self._links, self._door)
        found = shared.elsewhere
        assert isinstance(found, Feeds)
        return found


# -- where the topics are ---------------------------------------------------------------------------------------------


class LinkedStreams:
    """A connection that is at another process, for the sessions of its legs here. See protocols/base.py::Streams."""

    def __init__(self, connection: Connection, turns: Turns, peer: str) -> None:
        self.peer = peer
        self.meter: Meter | None = None  # rates are kept where the client is
        self.shared: object | None = None
        self.turns = turns
        self.unsent = 0  # bytes of all outlets that the other side has not room for yet, as far as known
        self._connection = connection
        self._outlets: dict[int, LinkedOutlet] = {}
        self._next = 0
        self._closed = False
        self.words: list[bytes] = []

    def open(self, gone: Callable[[int], None]) -> "LinkedOutlet":
        self._next += 1
        outlet = LinkedOutlet(self, self._next, gone)
        if not self._closed:
            self._outlets[self._next] = outlet
            self.say(_word(OPEN, self._next))
        return outlet

    def shut(self, _code: int, reason: str) -> None:
        self._connection.evict(reason)

    def fault(self, where: str, error: Exception) -> None:
        self._connection.fault(where, error)

    def say(self, word: bytes) -> None:
        self.words.append(word)
        self._connection.completed(None, None, None)  # it sends what the session has

    def heard(self, kind: int, which: int, data: bytes) -> None:
        if kind == READY:
            self.say(_word(READY, 0))
            return
        outlet, number = self._outlets.get(which), _NUMBER.unpack(data)[0]
        if outlet is None:
            return
        if kind == TAKEN:
            outlet.taken(number)
            if self.unsent < CONNECTION_WINDOW_BYTES:
                for each in list(self._outlets.values()):
                    each.wake()
        else:
            self.forget(outlet)
            outlet.gone(number)

    def forget(self, outlet: "LinkedOutlet") -> None:
        if self._outlets.pop(outlet.number, None) is not None:
            self.unsent -= outlet.unsent

    def recheck(self, now: int) -> None:
        recheck = getattr(self.shared, "recheck", None)
        if recheck is not None:
            recheck(now)

    def closed(self) -> None:
        self._closed = True
        self._outlets.clear()
        if self.shared is not None:
            cast(Any, self.shared).closed()


class LinkedOutlet:
    """A stream that the process of the client opens. See protocols/base.py::Outlet."""

    def __init__(self, streams: LinkedStreams, number: int, gone: Callable[[int], None]) -> None:
        self.number = number
        self.unsent = 0
        self.gone = gone
        self._streams = streams
        self._parked: Callable[[], None] | None = None

    def _own_room(self) -> int:
        return min(WINDOW_BYTES - self.unsent, CONNECTION_WINDOW_BYTES - self._streams.unsent)

    def room(self) -> int:
        return 0 if self._streams.turns.over() else self._own_room()

    def park(self, call: Callable[[], None]) -> None:
        self._parked = call
        if self._own_room() > 0:
            self._streams.turns.later(self.wake)

    def wake(self) -> None:
        if self._parked is not None and self._own_room() > 0:
            call, self._parked = self._parked, None
            call()

    def send(self, data: list[bytes]) -> None:
        body = b"".join(data)
        self.unsent += len(body)
        self._streams.unsent += len(body)
        self._streams.say(_word(DATA, self.number, body))

    def taken(self, size: int) -> None:
        self.unsent -= size
        self._streams.unsent -= size

    def end(self) -> None:
        self._streams.forget(self)
        self._streams.say(_word(END, self.number))

    def reset(self, code: int) -> None:
        self._streams.forget(self)
        self._streams.say(_word(RESET, self.number, _NUMBER.pack(code)))


class LegStream:
    """The connection of a leg, as the session of a stream sees it."""

    def __init__(self, connection: Connection, streams: LinkedStreams) -> None:
        self._connection = connection
        self.streams = streams

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class FeedsSession:
    """The other end of a leg that carries feeds, behind a back.py::LegSession."""

    closing: str | None = None
    principal_name: str | None = "(cells)"
    auth_failures = unanswered = 0
    holding = stopped = False
    operation = "feeds"

    def __init__(self, streams: LinkedStreams, closed: Callable[[], None]) -> None:
        self._streams = streams
        self._closed = closed
        self._rest = bytearray()

    def receive(self, view: memoryview, now: int) -> int:
        self._rest += view
        if not len(view):
            self._streams.recheck(now)
        for kind, which, data in _words(self._rest):
            self._streams.heard(kind, which, data)
        return len(view)

    def congestion(self) -> int:
        return FLOWING

    def deadline(self) -> int | None:
        return None

    def tick(self, _monotonic: int) -> None:
        """It has no deadline."""

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        """It appends nothing."""

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        """There is something to send."""

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        """Records go to outlets."""

    def take_output(self) -> list[bytes]:
        out, self._streams.words = self._streams.words, []
        return out

    def closed(self) -> None:
        self._closed()
        self._streams.closed()


class Linked:
    """All connections at other processes that have something here, by their token."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._found: dict[str, LinkedStreams] = {}

    def feeds(self, connection: Connection, peer: str, said: wire.Opening) -> Session:
        streams = self._found[said.token] = LinkedStreams(connection, self._turns, peer)
        return FeedsSession(streams, lambda: self._forget(said.token))

    def _forget(self, token: str) -> None:
        self._found.pop(token, None)

    def stream(self, connection: Connection, said: wire.Opening) -> LegStream | None:
        """None: its connection has ended."""
        streams = self._found.get(said.token)
        return None if streams is None else LegStream(connection, streams)
