"""Turns: a callback of the loop has a budget, the rest waits its turn, and what took too long is counted and logged."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import pytest

from quintet.net import turns
from quintet.net.connection import Connection
from quintet.net.listener import Listener, ListenerOptions
from quintet.net.loop import LoopScheduler
from quintet.net.turns import CELLS, SLOW_S, Turns

GREEDY_FRAMES = 60
FRAME_S = 0.001


def spend(seconds: float) -> None:
    """Processor time, not sleep."""
    until = thread_time() + seconds
    while thread_time() < until:
        pass


def _spend_and_say(said: list[int], number: int) -> None:
    spend(turns.TURN_S)
    said.append(number)


class Slow:
    """A session whose frames are single bytes, each of which takes a while."""

    closing: str | None = None
    auth_failures = 0
    principal_name = "ann"
    holding = False
    operation = "SLOW"
    unanswered = 0

    def __init__(self, connection: Connection, said: list[tuple[str, int]]) -> None:
        self.stopped = False
        self._connection = connection
        self._said = said
        self._out: list[bytes] = []

    def receive(self, view: memoryview, now: int) -> int:
        self.stopped = False
        for number, byte in enumerate(view, 1):
            if byte == ord("!"):
                spend(SLOW_S * 1.2)
            elif byte != ord("."):
                spend(FRAME_S)
            self._out.append(bytes((byte,)))
            if number < len(view) and self._connection.turn_over():
                self.stopped = True
                break
        self._said.append((chr(byte), number))
        return number

    def take_output(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    def congestion(self) -> int:
        return 0

    def deadline(self) -> None:
        return None

    def closed(self) -> None:
        pass


async def serve(
    use: Callable[[Listener, list[tuple[str, int]]], Any], report: Callable[[str, dict[str, object]], None]
) -> None:
    said: list[tuple[str, int]] = []
    made = Turns(asyncio.get_running_loop(), report)
    listener = Listener(
        ListenerOptions("slow", "127.0.0.1", 0), lambda connection: Slow(connection, said), report, turns=made  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    await listener.start()
    try:
        await use(listener, said)
    finally:
        listener.close_all("the test is over")
        listener.stop_accepting()


async def connect(listener: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = listener.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_a_pipeline_of_one_connection_lets_others_have_their_turn() -> None:
    async def use(listener: Listener, said: list[tuple[str, int]]) -> None:
        greedy, other = await connect(listener), await connect(listener)
        greedy[1].write(b"g" * GREEDY_FRAMES)
        await greedy[1].drain()
        other[1].write(b".")
        assert await other[0].readexactly(1) == b"."
        assert await greedy[0].readexactly(GREEDY_FRAMES) == b"g" * GREEDY_FRAMES
        frames = [count for who, count in said if who == "g"]
        assert sum(frames) == GREEDY_FRAMES
        assert max(frames) <= limit(), "a turn took more frames than it has time for"
        assert said[-1][0] == "g" and (".", 1) in said, "the other was answered behind the whole pipeline"
        for _, writer in (greedy, other):
            writer.close()

    await serve(use, lambda event, fields: None)


def limit() -> int:
    """Frames that one turn has time for, and the one that is under way when it ends."""
    return int(turns.TURN_S / FRAME_S) + 1


async def test_a_slow_turn_is_counted_and_logged_with_what_it_was_for() -> None:
    told: list[dict[str, object]] = []

    async def use(listener: Listener, said: list[tuple[str, int]]) -> None:
        reader, writer = await connect(listener)
        writer.write(b".!")
        assert await reader.readexactly(2) == b".!"
        writer.close()
        assert sum(listener.turns.counts[CELLS.edges.index(SLOW_S) + 1 :]) == 1
        assert listener.turns.worst > SLOW_S

    await serve(use, lambda event, fields: told.append(fields) if event == "slow_turn" else None)
    (facts,) = told
    assert (facts["door"], facts["operation"], facts["who"]) == ("slow", "SLOW", "ann")
    assert str(facts["peer"]).startswith("127.0.0.1:") and isinstance(facts["milliseconds"], int)
    assert facts["milliseconds"] >= 1000 * SLOW_S


async def test_what_waits_goes_on_in_its_order_and_one_fault_costs_one() -> None:
    loop = asyncio.get_running_loop()
    said: list[Any] = []
    loop.set_exception_handler(lambda _, context: said.append(type(context["exception"])))
    made = Turns(loop)

    def third() -> None:
        said.append("third")
        made.later(lambda: said.append("behind"))

    made.later(lambda: said.append("first"))
    made.later(lambda: said.append(said[99]))
    made.later(third)
    assert said == []
    await asyncio.sleep(0)
    assert said == ["first", IndexError, "third"]
    await asyncio.sleep(0)
    assert said == ["first", IndexError, "third", "behind"]


async def test_all_that_wait_share_the_time_of_one_turn() -> None:
    made = Turns(asyncio.get_running_loop())
    done: list[int] = []
    for number in range(4):
        made.later(partial(_spend_and_say, done, number))
    for count in range(1, 5):
        await asyncio.sleep(0)
        assert done == list(range(count))


async def test_calls_wanted_soon_are_cut_into_turns_and_keep_their_order() -> None:
    scheduler = LoopScheduler(asyncio.get_running_loop(), threads=0)
    done: list[int] = []
    for number in range(3):
        scheduler.soon(partial(_spend_and_say, done, number))
    scheduler.soon(lambda: scheduler.soon(lambda: done.append(4)))
    scheduler.soon(lambda: done.append(3))
    await asyncio.sleep(0)
    assert done == [0]
    for _ in range(5):
        await asyncio.sleep(0)
    assert done == [0, 1, 2, 3, 4]


def test_outside_of_a_turn_nothing_is_over_and_nested_ones_count_once() -> None:
    made = Turns(asyncio.new_event_loop())
    assert not made.over()
    assert made.begin() and not made.begin()
    made._ends = perf_counter()
    assert made.over()
    made.end(None)
    assert not made.over() and sum(made.counts) == 1
    made._loop.close()


async def test_who_parks_at_the_end_of_a_turn_is_woken_in_order_of_parking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken: list[str] = []

    async def use(listener: Listener, said: list[tuple[str, int]]) -> None:
        reader, writer = await connect(listener)
        writer.write(b".")
        assert await reader.readexactly(1) == b"."
        (connection,) = listener.connections
        assert connection.room() > 0
        assert listener.turns.begin()
        monkeypatch.setattr(listener.turns, "_ends", 0.0)
        assert connection.room() == 0

        def greedy() -> None:
            woken.append("greedy")
            spend(turns.TURN_S)
            if woken.count("greedy") < 3:
                connection.park(greedy)

        connection.park(greedy)
        connection.park(lambda: woken.append("other"))
        listener.turns.end(None)
        async with asyncio.timeout(30):
            while woken.count("greedy") < 3:
                await asyncio.sleep(0)
        assert woken == ["greedy", "other", "greedy", "greedy"]
        writer.close()

    await serve(use, lambda event, fields: None)
