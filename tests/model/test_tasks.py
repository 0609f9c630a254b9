"""Coroutines go on inside the call that completes what they await: order, errors, and what happens at the same time."""

import gc
import weakref

import pytest

from quintet.model.errors import BadRequest
from quintet.model.tasks import (
    Cancelled,
    Mutex,
    Promise,
    completed,
    gather,
    next_turn,
    offload,
    sleep,
    start,
    start_alone,
)
from quintet.testing.sim import SimScheduler

Told = list[tuple[object, Exception | None]]


def test_a_coroutine_runs_at_once_until_it_waits() -> None:
    promise: Promise[int] = Promise()
    seen: list[object] = []

    async def verb() -> int:
        seen.append("begun")
        seen.append(await promise)
        return 7

    over = start(verb())
    assert seen == ["begun"]
    promise.resolve(3)
    assert seen == ["begun", 3]
    told: Told = []
    over.then(lambda result, error: told.append((result, error)))
    assert told == [(7, None)]


def test_an_error_is_raised_where_it_is_awaited() -> None:
    promise: Promise[None] = Promise()

    async def verb() -> str:
        try:
            await promise
        except KeyError:
            return "caught"
        return "nothing to catch"

    over = start(verb())
    promise.finished(KeyError("x"))
    told: Told = []
    over.then(lambda result, error: told.append((result, error)))
    assert told == [("caught", None)]


def test_an_error_of_a_coroutine_is_told_and_not_raised() -> None:
    async def verb() -> None:
        raise ValueError("no")

    told: Told = []
    start(verb()).then(lambda result, error: told.append((result, error)))
    (result, error), *rest = told
    assert result is None and isinstance(error, ValueError) and not rest


def test_what_is_there_already_interrupts_nothing() -> None:
    async def verb() -> int:
        return sum([await completed(number) for number in range(20_000)])

    over = start(verb())
    assert not over.pending


def test_a_promise_is_completed_once() -> None:
    promise = completed(1)
    with pytest.raises(AssertionError, match="once"):
        promise.resolve(2)


def test_all_who_wait_are_told_although_one_raises() -> None:
    promise: Promise[int] = Promise()
    told: list[str] = []

    def first(_result: int | None, _error: Exception | None) -> None:
        told.append("first")
        raise OSError("first")

    promise.then(first)
    promise.then(lambda _result, _error: told.append("second"))
    with pytest.raises(OSError, match="first"):
        promise.resolve(1)
    assert told == ["first", "second"]


def test_gather_waits_for_all_and_raises_the_first_error_in_order() -> None:
    promises: list[Promise[int]] = [Promise() for _ in range(3)]

    async def one(number: int) -> int:
        return await promises[number]

    over = start(gather(*(one(number) for number in range(3))))
    promises[2].fail(KeyError("third"))
    promises[0].resolve(0)
    assert over.pending, "one is still under way"
    promises[1].fail(ValueError("second"))
    told: Told = []
    over.then(lambda result, error: told.append((result, error)))
    assert isinstance(told[0][1], ValueError)
    assert start(gather(completed(1), completed(2)))._result == [1, 2]
    assert start(gather())._result == []


def test_a_mutex_lets_one_in_at_a_time_in_order() -> None:
    mutex, order, waits = Mutex(), [], [Promise[None]() for _ in range(3)]

    async def one(number: int) -> None:
        async with mutex:
            order.append(("in", number))
            await waits[number]
            order.append(("out", number))

    for number in range(3):
        start(one(number))
    assert order == [("in", 0)]
    waits[1].resolve(None)
    waits[0].fail(OSError("what fails lets go, too"))
    waits[2].resolve(None)
    assert order == [("in", 0), ("in", 1), ("out", 1), ("in", 2), ("out", 2)]
    start(one(2))
    assert order[-2:] == [("in", 2), ("out", 2)]


def test_a_mutex_passes_a_long_line_without_growing_the_stack() -> None:
    mutex, first, order = Mutex(), Promise[None](), []

    async def one(number: int) -> None:
        async with mutex:
            if not number:
                await first
        order.append(number)

    for number in range(2_000):
        start(one(number))
    assert mutex.waiting == 1_999
    first.resolve(None)
    assert sorted(order) == list(range(2_000)) and mutex.waiting == 0
    start(one(1))
    assert order[-1] == 1


def test_a_task_that_is_cancelled_ends_where_it_waits_and_tells_nobody() -> None:
    promise: Promise[int] = Promise()
    seen: list[object] = []

    async def inner() -> int:
        try:
            return await promise
        finally:
            seen.append("left")

    async def verb() -> int:
        return await inner()

    told: Told = []
    gone, other = start(verb()), start(verb())
    for task in (gone, other):
        task.then(lambda result, error: told.append((result, error)))
    gone.cancel()
    assert seen == ["left"] and not told
    promise.resolve(5)
    assert told == [(5, None)], "the other one is told"
    other.cancel()
    assert seen == ["left", "left"] and other._result == 5
    gone.then(lambda result, error: told.append((result, error)))
    assert isinstance(told[-1][1], Cancelled)


def test_a_task_that_is_cancelled_in_line_is_not_let_in() -> None:
    mutex, first, order = Mutex(), Promise[None](), []

    async def one(number: int) -> None:
        async with mutex:
            order.append(number)
            await first

    tasks = [start(one(number)) for number in range(3)]
    tasks[1].cancel()
    assert mutex.waiting == 1
    tasks[0].cancel()
    assert order == [0, 2], "who is cancelled lets go"


def test_turns_time_and_threads_are_the_schedulers() -> None:
    scheduler = SimScheduler()
    seen: list[object] = []

    async def verb() -> None:
        await next_turn(scheduler)
        seen.append("turn")
        await sleep(scheduler, 1_000)
        seen.append("time")
        seen.append(await offload(scheduler, lambda: 5))
        await offload(scheduler, lambda: 1 // 0)

    told: Told = []
    start(verb()).then(lambda result, error: told.append((result, error)))
    assert not seen
    scheduler.run_until_idle()
    scheduler.advance(2_000)
    scheduler.run_until_idle()
    assert seen == ["turn", "time", 5]
    assert isinstance(told[0][1], ZeroDivisionError)


def test_an_error_that_nobody_waits_for_reaches_the_scheduler() -> None:
    scheduler = SimScheduler()

    async def verb() -> None:
        raise ValueError("lost")

    start_alone(scheduler, verb())
    with pytest.raises(ValueError, match="lost"):
        scheduler.run_until_idle()


def test_a_coroutine_ends_with_the_last_reference_to_what_it_awaits() -> None:
    ended: list[bool] = []

    async def verb() -> None:
        never: Promise[None] = Promise()
        try:
            await never
        finally:
            ended.append(True)

    gone = weakref.ref(start(verb()))
    gc.collect()
    assert ended == [True] and gone() is None


def test_a_refusal_leaves_no_cycle_for_the_collector() -> None:
    class Held:
        """What a coroutine has in its variables."""

    gone: list[weakref.ref[Held]] = []

    async def refused(promise: Promise[None]) -> None:
        held = Held()
        gone.append(weakref.ref(held))
        await promise

    async def outer(promise: Promise[None]) -> None:
        inner = start(refused(promise))
        await gather(inner, refused(promise))

    gc.collect()
    gc.disable()
    try:
        promise: Promise[None] = Promise()
        over = start(outer(promise))
        promise.fail(BadRequest("no"))
        assert isinstance(over._error, BadRequest)
        del promise, over
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
