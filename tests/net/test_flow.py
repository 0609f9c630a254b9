"""Whoever stops reading or delivering because of a bound is woken, and what is gone is no longer counted (ADR 13, ADR 16)."""

import asyncio
import mmap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from quintet.model import limits
from quintet.net import connection, connection_bytes, turns
from quintet.net.connection import Connection
from quintet.net.listener import Listener, ListenerOptions
from quintet.net.output import OutputBudget
from quintet.net.turns import Turns
from tests.net.quic_peers import peer_of, serving, until

WAIT_S = 60.0
LINES = 200


class Lines:
    """A session whose frames are lines. One line a turn; `later` is answered late, all else is echoed."""

    closing: str | None = None
    auth_failures = 0
    principal_name = "ann"
    operation = "line"
    unanswered = 0

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.stopped = self.holding = self.inside = False
        self.making = False
        self.left: list[bytes] = []
        self.out: list[bytes] = []

    def receive(self, view: memoryview, now: int) -> int:
        assert not self.inside, "it was entered while it was under way"
        self.inside, self.stopped = True, False
        data = bytes(view)
        end = data.rfind(b"\n") + 1
        self.left += data[:end].splitlines(keepends=True)
        while self.left and not self.stopped and not self.holding:
            line = self.left.pop(0)
            if line == b"late\n":
                self.holding = True
                self.connection.completed(line, None, None)  # at once, as the broker does when it can
            else:
                self.out.append(line)
            self.stopped = bool(self.left) and self.connection.turn_over()
        self.inside = False
        return end

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert isinstance(token, bytes)
        self.holding = False
        self.out.append(token)

    def push(self, size: int) -> None:
        self.out.append(bytes(size))
        self.connection.completed(b"pushed\n", None, None)

    def take_output(self) -> list[bytes]:
        out, self.out = self.out, []
        return out

    def congestion(self) -> int:
        return 0

    def deadline(self) -> None:
        return None

    def closed(self) -> None:
        pass


class Line:
    """A listener of such sessions, and what it reported."""

    def __init__(self) -> None:
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.sessions: list[Lines] = []
        self._writers: list[asyncio.StreamWriter] = []
        self.listener = Listener(
            ListenerOptions("lines", "127.0.0.1", 0), self._make,  # type: ignore[arg-type]
            lambda event, fields: self.reports.append((event, fields)), turns=Turns(asyncio.get_running_loop()),
        )  # fmt: skip

    def _make(self, connection: Connection) -> Lines:
        self.sessions.append(Lines(connection))
        return self.sessions[-1]

    async def connect(self, limit: int = limits.MIB) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.listener.address.rpartition(":")
        peer = await asyncio.open_connection(host, int(port), limit=limit)
        self._writers.append(peer[1])
        return peer

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self.listener.close_all("the test is over")
        self.listener.stop_accepting()


@asynccontextmanager
async def lines() -> AsyncIterator[Line]:
    line = Line()
    await line.listener.start()
    try:
        yield line
    finally:
        line.close()


async def test_input_goes_on_while_others_hold_all_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipeline is cut into turns, and nobody calls its connection when the bound of all others is free again."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    async with lines() as line, asyncio.timeout(WAIT_S):
        reader, writer = await line.connect()
        output = line.listener.output
        output.hold(object(), output.bytes_max)
        text = b"".join(b"%d\n" % number for number in range(LINES))
        writer.write(text)
        assert await reader.readexactly(len(text)) == text


async def test_looking_at_rights_again_enters_no_session_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer took some of its answers, not enough to be called; requests wait, and one of them is answered at once."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    async with lines() as line, asyncio.timeout(WAIT_S):
        reader, writer = await line.connect()
        await until(lambda: line.sessions)
        session, text = line.sessions[0], b"late\n" * LINES
        monkeypatch.setattr(Connection, "_own_room", lambda _: 0)
        writer.write(text + b"half of a li")
        await until(lambda: session.left)
        monkeypatch.undo()  # its buffer is between the marks
        line.listener.turns.run(session.connection.recheck)
        assert await reader.readexactly(len(text)) == text
        assert line.listener.faults == 0, line.reports


async def test_a_delivery_gets_on_however_short_a_turn_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    async with lines() as line, asyncio.timeout(WAIT_S):
        await line.connect()
        await until(lambda: line.listener.connections)
        (connection,) = line.listener.connections
        given: list[int] = []

        def pump() -> None:
            while len(given) < LINES:
                if connection.room() <= 0:
                    connection.park(pump)
                    return
                connection.records(None, 0, None, 0, 0)  # type: ignore[arg-type]
                given.append(1)

        monkeypatch.setattr(Lines, "on_records", lambda *_: None, raising=False)
        line.listener.turns.run(pump)
        await until(lambda: len(given) == LINES)


async def test_who_waits_for_the_bound_is_forgotten_with_its_connection() -> None:
    async with lines() as line, asyncio.timeout(WAIT_S):
        peers = [await line.connect() for _ in range(3)]
        await until(lambda: len(line.sessions) == len(peers))
        output, other, woken = line.listener.output, object(), []
        output.hold(other, output.bytes_max)

        def fail() -> None:
            raise RuntimeError("a mistake")

        gone, faulty, sound = (session.connection for session in line.sessions)
        gone.park(lambda: woken.append("gone"))
        faulty.park(fail)
        sound.park(lambda: woken.append("sound"))
        assert output.pressed
        peers[0][1].close()
        await until(lambda: gone not in line.listener.connections)
        output.drop(other)
        assert woken == ["sound"]
        assert line.listener.faults == 1
        await until(lambda: line.listener.connections == {sound})
        assert not output.pressed


async def test_a_sweep_that_meets_a_mistake_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.net.listener.SWEEP_S", 0.01)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    async with lines() as line, asyncio.timeout(WAIT_S):
        checked: list[Connection] = []

        def check(connection: Connection, monotonic: int) -> None:
            checked.append(connection)
            raise RuntimeError("a mistake")

        monkeypatch.setattr(Connection, "check", check)
        for count in (1, 2):
            await line.connect()
            await until(partial(lambda wanted: len(set(checked)) == wanted, count))
        assert line.listener.faults == 2


async def test_a_reader_that_reads_is_kept_whatever_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a subscriber takes is replaced by newer records: there is never less unsent than before."""
    monkeypatch.setattr("quintet.net.listener.SWEEP_S", WAIT_S)  # the checks are those of this test, at its times
    async with lines() as line, asyncio.timeout(WAIT_S):
        reader, _ = await line.connect(limit=4 * limits.KIB)
        await until(lambda: line.sessions)
        session = line.sessions[0]
        connection, monotonic = session.connection, line.listener.monotonic()
        assert connection._transport is not None
        unsent = connection._transport.get_write_buffer_size
        session.push(8 * limits.WRITE_HIGH_BYTES)
        for turn in range(1, 4):
            before = unsent()
            while unsent() == before:  # what its system has in buffers goes first
                await reader.read(limits.MIB)
            session.push(2 * limits.WRITE_HIGH_BYTES)
            connection.check(monotonic + turn * 2 * limits.WRITE_STALL_US)
            assert connection in line.listener.connections and line.listener.cut == 0
        connection.check(monotonic + 10 * limits.WRITE_STALL_US)
        assert line.listener.cut == 1, "who reads nothing is cut"


class Holder:
    """A connection, for the budget."""


def test_a_holder_that_goes_while_others_are_served_is_granted_nothing() -> None:
    budget, first, second, third = OutputBudget(100 * limits.MIB), Holder(), Holder(), Holder()
    assert budget.claim(first, limits.MIB, lambda: None)
    granted: list[str] = []
    assert not budget.claim(first, limits.MIB, lambda: granted.append("first again"))  # its answer is being made
    budget.hold(third, 99 * limits.MIB)

    def second_has_it() -> None:
        granted.append("second")
        budget.drop(first)  # as a connection that ends in the middle

    assert not budget.claim(second, limits.MIB, second_has_it)
    budget.hold(third, 0)
    for holder in (second, third):
        budget.drop(holder)
    assert granted == ["second"]
    assert budget.used == 0 and not budget.pressed


def test_a_claim_that_fails_costs_the_others_nothing() -> None:
    budget, granted = OutputBudget(100 * limits.MIB), []
    busy, faulty, other, large = (Holder() for _ in range(4))
    assert budget.claim(busy, limits.MIB, lambda: None)
    assert not budget.claim(busy, limits.MIB, lambda: granted.append("busy"))  # its answer is being made
    budget.hold(large, 99 * limits.MIB)

    def fail() -> None:
        raise RuntimeError("a mistake")

    assert not budget.claim(faulty, limits.MIB, fail)
    assert not budget.claim(other, limits.MIB, lambda: granted.append("other"))
    with pytest.raises(RuntimeError):
        budget.drop(large)
    budget.answered(busy, 0)
    assert granted == ["busy", "other"]


# -- QUIC ----------------------------------------------------------------------------------------------------------


async def open_outlets(peer: Any, stream: int, seen: Any, count: int) -> list[Any]:
    peer.send(stream, b"open\n" * count)
    await until(lambda: len(seen.sessions[0].outlets) == count)
    outlets: list[Any] = seen.sessions[0].outlets
    return outlets


async def test_streams_below_their_mark_are_not_counted_when_they_are_sent(tmp_path: Path) -> None:
    """None of them is above the mark, so none is told that it is writable again; their sum is."""
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer, asyncio.timeout(WAIT_S):
        stream = await peer.login()
        outlets = await open_outlets(peer, stream, seen, 8)
        for outlet in outlets:
            outlet.send([bytes(limits.WRITE_HIGH_BYTES // 2)])
        listener._flush()
        assert listener.output.used > limits.WRITE_HIGH_BYTES
        await until(lambda: listener.output.used == 0)


async def test_a_stream_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer, asyncio.timeout(WAIT_S):
        stream = await peer.login()
        (outlet,) = await open_outlets(peer, stream, seen, 1)
        outlet.send([bytes(8 * limits.WRITE_HIGH_BYTES)])
        listener._flush()
        assert listener.output.used > limits.WRITE_HIGH_BYTES
        outlet.reset(7)
        assert listener.output.used == 0


async def test_a_quic_delivery_that_waits_for_the_bound_presses_and_is_woken(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer, asyncio.timeout(WAIT_S):
        stream = await peer.login()
        (outlet,) = await open_outlets(peer, stream, seen, 1)
        other, woken = object(), []
        listener.output.hold(other, listener.output.bytes_max)
        assert outlet.room() <= 0
        outlet.park(lambda: woken.append(outlet.room() > 0))
        assert listener.output.pressed, "who holds the bound without reading would not be noticed"
        listener.output.drop(other)
        assert woken == [True]
        assert not listener.output.pressed


async def test_a_quic_reader_that_reads_is_kept_whatever_is_added(tmp_path: Path) -> None:
    async with serving(tmp_path) as (listener, seen), peer_of(listener, tmp_path) as peer, asyncio.timeout(WAIT_S):
        stream = await peer.login()
        (outlet,) = await open_outlets(peer, stream, seen, 1)
        (connection,) = listener.connections
        assert listener._sweeper is not None
        listener._sweeper.cancel()  # or it looks between two steps, with a clock that was moved ahead, and takes the progress for seen
        outlet.send([bytes(16 * limits.WRITE_HIGH_BYTES)])
        listener._flush()
        for turn in range(1, 4):
            before = outlet.measure()
            peer.endpoint.pause(peer.number, 3, False)
            await until(partial(lambda size: len(peer.data.get(3, b"")) > size, turn * limits.WRITE_HIGH_BYTES))
            peer.endpoint.pause(peer.number, 3, True)
            await until(partial(lambda size: outlet.measure() < size, before))  # what the peer acknowledged has come
            outlet.send([bytes(8 * limits.WRITE_HIGH_BYTES)])
            listener._flush()
            listener.ahead += 2 * limits.WRITE_STALL_US
            connection.check(listener.monotonic())
            assert seen.gone == []


async def test_a_connection_has_one_place_in_the_queue_of_turns(tmp_path: Path) -> None:
    """However long its streams are not done: two for each turn would be more with every turn."""
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as peer, asyncio.timeout(WAIT_S):
        await peer.login()
        (connection,) = listener.connections
        gone_on: list[str] = []

        class Busy:
            def __init__(self, name: str) -> None:
                self.name = name

            def go_on(self) -> None:
                gone_on.append(self.name)
                if len(gone_on) < LINES:
                    connection.later(self)  # type: ignore[arg-type]

        for name in "ab":
            connection.later(Busy(name))  # type: ignore[arg-type]
        while len(gone_on) < LINES:
            await asyncio.sleep(0)
            assert len(listener.turns._queue) <= 1
        assert gone_on[:6] == list("ababab")


async def test_other_output_gives_no_claim_back() -> None:
    """Answers before it go out while the one that was claimed for is still read from disk."""
    async with lines() as line, asyncio.timeout(WAIT_S):
        await line.connect()
        await until(lambda: line.sessions)
        session, output = line.sessions[0], line.listener.output
        assert session.connection.claim(limits.MIB, b"made\n")
        session.making = True
        session.push(10)
        assert output.used == limits.MIB
        session.making = False
        session.push(10)
        assert output.used == 0


class Large:
    """Tells a session's side of a large frame: it consumes all when there are `whole` bytes, and keeps a view of them."""

    closing: str | None = None
    auth_failures = 0
    principal_name = "ann"
    operation = "large"
    unanswered = 0
    holding = stopped = making = False

    def __init__(self, whole: int) -> None:
        self.whole = whole
        self.kept: list[memoryview] = []
        self.take_output: Any = list
        self.congestion = self.deadline = lambda: None
        self.closed = lambda: None

    def receive(self, view: memoryview, now: int) -> int:
        if len(view) < self.whole:
            return 0
        self.kept.append(view[: self.whole])
        return self.whole


@pytest.mark.parametrize("moves_pages", [True, False])
async def test_a_large_frame_that_was_consumed_is_not_written_to_again(
    moves_pages: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions keep views of it; the rest, and what comes, is read into memory of its own."""
    if not moves_pages:
        monkeypatch.setattr(connection, "mapped", Immovable)
    whole = 5 * limits.MIB
    session = Large(whole)
    line = Line()
    line.listener.make_session = lambda made: session  # type: ignore[assignment, return-value]
    await line.listener.start()
    try:
        async with asyncio.timeout(WAIT_S):
            _, writer = await line.connect()
            for letter in b"abc":
                writer.write(bytes((letter,)) * whole)
            await until(lambda: len(session.kept) == 3)
        assert [len(view) for view in session.kept] == [whole] * 3
        assert [set(view) for view in session.kept] == [{letter} for letter in b"abc"]
        session.kept.clear()
    finally:
        line.close()


@pytest.mark.parametrize(("pieces", "own"), [((150_000, 150_000), False), ((150_000, 20_000, 20_000, 110_000), True)])
async def test_a_frame_in_two_reads_needs_no_buffer_of_its_own(
    pieces: tuple[int, ...], own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece also begins the next frame. Control: one that comes in many pieces has one, or all before it would be
    copied for each of them."""
    made: list[int] = []
    mapped = connection_bytes.mapped

    def map_and_note(size: int) -> mmap.mmap:
        made.append(size)
        return mapped(size)

    monkeypatch.setattr("quintet.net.connection.mapped", map_and_note)
    whole, frames = 200_000, 3
    session, line = Large(whole), Line()
    peers: list[Connection] = []

    def make_session(peer: Connection) -> Large:
        peers.append(peer)
        return session

    line.listener.make_session = make_session  # type: ignore[assignment]
    await line.listener.start()
    try:
        async with asyncio.timeout(WAIT_S):
            await line.connect()
            await until(lambda: bool(peers))
        data = b"".join(bytes((letter,)) * whole for letter in b"abc")
        seen: list[bytes] = []
        at = 0
        for size in pieces * 2:
            room = peers[0].get_buffer(-1)
            size = min(size, len(room), len(data) - at)
            room[:size] = data[at : at + size]
            peers[0].buffer_updated(size)
            at += size
            seen += [bytes(view) for view in session.kept]
            session.kept.clear()
        assert b"".join(seen) == data[: len(seen) * whole] and len(seen) >= frames - 1
        assert bool(made) == own
    finally:
        line.close()


class Immovable(mmap.mmap):
    """Memory of a system that cannot grow it in its place."""

    def __new__(cls, size: int) -> Self:
        return super().__new__(cls, -1, size)

    def resize(self, newsize: int) -> None:
        raise SystemError("mmap: resizing not available--no mremap()")
