"""Feeds of a QUIC connection from another cell, without sockets: order, credit, ends on both sides, and a control that must be found out."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from quintet.net.cells import wire
from quintet.net.cells.legs import News
from quintet.net.cells.streams import (
    CODE_CELL_LOST,
    CONNECTION_WINDOW_BYTES,
    WINDOW_BYTES,
    Feeds,
    FeedsSession,
    Linked,
    LinkedOutlet,
    LinkedStreams,
)

PIECE = 10_000
CHUNK = 100_000 - 1  # words arrive in pieces


class ClientStream:
    """A stream to the client, which takes bytes when the test says so."""

    def __init__(self, gone: Callable[[int], None]) -> None:
        self.gone = gone
        self.kept, self.got = b"", b""
        self.most = WINDOW_BYTES
        self.parked: list[Callable[[], None]] = []
        self.ended: int | str | None = None

    def room(self) -> int:
        return self.most - len(self.kept)

    def park(self, call: Callable[[], None]) -> None:
        self.parked.append(call)

    def send(self, data: list[bytes]) -> None:
        self.kept += b"".join(data)

    def take(self) -> None:
        self.got, self.kept = self.got + self.kept, b""
        parked, self.parked = self.parked, []
        for call in parked:
            call()

    def end(self) -> None:
        self.ended = "end"

    def reset(self, code: int) -> None:
        self.ended = code


class Client:
    """The connection of a client."""

    peer = "here"
    shut_with: tuple[int, str] | None = None

    def __init__(self) -> None:
        self.streams: list[ClientStream] = []

    def open(self, gone: Callable[[int], None]) -> ClientStream:
        self.streams.append(ClientStream(gone))
        return self.streams[-1]

    def shut(self, code: int, reason: str) -> None:
        self.shut_with = (code, reason)

    def fault(self, where: str, error: Exception) -> None:
        raise error


class Turns:
    """Turns that are never over."""

    def over(self) -> bool:
        return False

    def later(self, call: Callable[[], None]) -> None:
        call()


class FakeLeg:
    """Bytes wait in it until `World.carry`."""

    def __init__(self, cell: int, sink: Any, _turns: object, said: wire.Opening) -> None:
        self.cell, self.sink, self.said = cell, sink, said
        self.sent = b""
        self.lost: Callable[[], None] | None = None
        World.legs.append(self)

    def connect(self, _path: str, lost: Callable[[], None]) -> None:
        self.lost = lost

    def send(self, data: bytes) -> None:
        self.sent += data

    def end(self) -> None:
        self.lost = None


class There:
    """The connection of the leg in the other cell."""

    def completed(self, _token: object, _result: object, _error: object) -> None:
        """It would send."""

    def evict(self, _reason: str) -> None:
        """Not asked for here."""


class Peer:
    """What sessions there share."""

    ended = False

    def closed(self) -> None:
        self.ended = True


class World:
    """A connection here, one cell there."""

    legs: list[FakeLeg] = []  # noqa: RUF012  # of this world

    def __init__(self) -> None:
        World.legs = []
        self.client = Client()
        self.feeds = Feeds(cast(Any, self.client), cast(Any, Turns()), cast(Any, self), "felix")
        self.feeds.make_leg = cast(Any, FakeLeg)
        self.feeds.reach(1)
        (self.leg,) = World.legs
        self.linked = Linked(cast(Any, Turns()))
        self.session = cast(FeedsSession, self.linked.feeds(cast(Any, There()), "here", self.leg.said))
        self.streams: LinkedStreams = self.session._streams
        self.peer = Peer()
        self.streams.shared = self.peer

    def path(self, _cell: int) -> str:
        return ""

    def carry(self) -> None:
        """Both ways, until nothing is left."""
        for _ in range(1_000):
            asked, self.leg.sent = self.leg.sent, b""
            for at in range(0, len(asked), 3):
                self.session.receive(memoryview(asked[at : at + 3]), 0)
            said = b"".join(self.session.take_output())
            pieces = [said[at : at + CHUNK] for at in range(0, len(said), CHUNK)]
            for piece in pieces:
                self.leg.sink.completed(News(cast(Any, self.leg), [piece]), None, None)
            if not asked and not said:
                return
        raise AssertionError("it does not come to rest")


def feed(outlet: LinkedOutlet, size: int) -> bytes:
    """Send as an event stream does, while there is room."""
    sent: list[bytes] = []
    while len(sent) * PIECE < size and outlet.room() > 0:
        sent.append(len(sent).to_bytes(4, "big") * (PIECE // 4))
        outlet.send([sent[-1]])
    return b"".join(sent)


def test_bytes_come_whole_and_in_order_on_each_stream() -> None:
    world = World()
    outlets = [world.streams.open(lambda _code: None) for _ in range(3)]
    sent = [b"", b"", b""]
    for _ in range(9):
        for number, outlet in enumerate(outlets):
            sent[number] += feed(outlet, PIECE)
        world.carry()
        for stream in world.client.streams:
            stream.take()
        world.carry()
    assert [stream.got for stream in world.client.streams] == sent and all(sent)
    outlets[0].end()
    outlets[1].reset(7)
    world.carry()
    assert [stream.ended for stream in world.client.streams] == ["end", 7, None]


def kept_for_a_slow_client(world: World, streams: int) -> int:
    """Bytes that wait for a client that takes nothing."""
    outlets = [world.streams.open(lambda _code: None) for _ in range(streams)]
    for _ in range(3):
        for outlet in outlets:
            feed(outlet, 2 * WINDOW_BYTES)
        world.carry()
    return sum(len(stream.kept) for stream in world.client.streams)


@pytest.mark.parametrize("streams", [1, 64])
def test_a_slow_client_bounds_what_another_cell_sends(streams: int) -> None:
    world = World()
    kept = kept_for_a_slow_client(world, streams)
    assert (
        0 < kept <= min(streams * (2 * WINDOW_BYTES + PIECE), streams * WINDOW_BYTES + CONNECTION_WINDOW_BYTES + PIECE)
    )
    parked: list[bool] = []
    outlet = next(iter(world.streams._outlets.values()))
    if outlet.room() <= 0:
        outlet.park(lambda: parked.append(True))
        for stream in world.client.streams:
            stream.take()
        world.carry()
        assert parked == [True]


def test_a_feed_without_credit_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkedOutlet, "_own_room", lambda _self: 1)
    assert kept_for_a_slow_client(World(), 1) > 2 * WINDOW_BYTES + PIECE


def test_a_stream_that_the_client_stops_is_gone_there() -> None:
    world = World()
    gone: list[int] = []
    outlet = world.streams.open(gone.append)
    feed(outlet, PIECE)
    world.carry()
    world.client.streams[0].gone(0x51)
    world.carry()
    assert gone == [0x51] and world.streams.unsent == 0
    outlet.send([b"late"])
    outlet.end()
    world.carry()
    assert world.client.streams[0].ended is None


def test_a_lost_leg_ends_the_connection_of_its_client() -> None:
    world = World()
    assert world.leg.lost is not None
    world.leg.lost()
    assert world.client.shut_with is not None and world.client.shut_with[0] == CODE_CELL_LOST
    assert "cell 1 has ended its side" in world.client.shut_with[1]


def test_what_is_elsewhere_ends_with_its_connection() -> None:
    world = World()
    assert world.linked.stream(cast(Any, There()), world.leg.said) is not None
    world.feeds.closed()
    assert world.leg.lost is None
    world.session.closed()
    assert world.peer.ended and world.linked.stream(cast(Any, There()), world.leg.said) is None


def test_legs_of_streams_wait_until_the_connection_is_known_there() -> None:
    world = World()
    called: list[bool] = []
    world.feeds.reach(1).when_ready(lambda: called.append(True))
    assert not called
    world.carry()
    assert called == [True]
    world.feeds.reach(1).when_ready(lambda: called.append(True))
    assert called == [True, True]
