"""Runs coroutines without an event loop: a coroutine goes on inside the call that completes what it awaits (ADR 26).

    promise = Promise()                 a result that comes later
    partition.append(batch, promise.done)     whoever has it completes it: a callback of (result, error) ...
    table.put(key, row)                 ... or a verb that returns one
    await promise                       returns the result, or raises the error

    start(verb(...))                    runs it now, up to the first thing that is not there yet; returns its promise
    start(verb(...)).then(done)         done(result, error), at once if it is over
    start(verb(...)).cancel()           ends it where it waits; nobody is told
    await gather(first(), second())     both at a time; their results, or the first error when all are over

Nothing here makes a turn of the loop, keeps time or uses threads: order is that of the callbacks, in the broker as in the
simulator. A coroutine that awaits what is there already is not interrupted. One whose promise nobody completes ends with
the last reference to it. This is no place for anything that knows the log, a door or asyncio.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Final, Generic, TypeVar, cast

from quintet.model.errors import QuintetError
from quintet.model.scheduler import Scheduler, raise_soon

T = TypeVar("T")
Done = Callable[[T | None, Exception | None], None]
Verb = Coroutine["Promise[object]", None, T]  # what an `async def` of the broker makes


class _State(Enum):
    """What stands in the place of a result that is not there."""

    PENDING = 0


_PENDING: Final = _State.PENDING


def _call_all(calls: Iterable[Callable[[], object]]) -> None:
    """Call all of them in order, although one raises. The first exception is raised when all were called."""
    first: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first


class Promise(Generic[T]):
    """A result that comes later. It is completed once; who asks afterwards is told at once."""

    __slots__ = ("__weakref__", "_error", "_result", "_waiting")

    def __init__(self) -> None:
        self._result: T | _State | None = _PENDING
        self._error: Exception | None = None
        self._waiting: list[Done[T]] = []

    @property
    def pending(self) -> bool:
        return self._result is _PENDING and self._error is None

    def resolve(self, result: T) -> None:
        self._complete(result, None)

    def fail(self, error: Exception) -> None:
        self._complete(None, error)

    def done(self, result: T | None, error: Exception | None) -> None:
        """As the callback of a call that ends with (result, error)."""
        self._complete(None if error is not None else result, error)

    def finished(self, error: Exception | None) -> None:
        """As the callback of a call that ends with (error) alone."""
        self._complete(None, error)

    def _complete(self, result: T | None, error: Exception | None) -> None:
        assert self._result is _PENDING and self._error is None, "a promise is completed once"
        self._result, self._error = result, error
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            if len(waiting) == 1:
                waiting[0](result, error)
            else:
                _call_all([partial(call, result, error) for call in waiting])

    def then(self, done: Done[T]) -> None:
        """Call done(result, error) when it is there: now, if it is."""
        if self._error is not None:
            done(None, self._error)
        elif self._result is _PENDING:
            self._waiting.append(done)
        else:
            done(self._result, None)

    def __await__(self) -> Generator["Promise[T]", None, T]:
        if self._result is _PENDING and self._error is None:
            yield self
        if self._error is not None:
            raise self._error
        return cast(T, self._result)


def _without_frames(error: Exception) -> Exception:
    """A refusal is kept without the frames it went through: their variables hold promises that hold the error, and under
    load the collector does not look for such cycles. What is a fault of ours keeps them, to be reported."""
    return error.with_traceback(None) if isinstance(error, QuintetError) else error


class Cancelled(Exception):
    """What a task that was cancelled ends with, for whoever asks afterwards."""


class Task(Promise[T]):
    """A coroutine that was started, and its result."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Verb[T]) -> None:
        super().__init__()
        self._coroutine = coroutine
        try:  # as _go_on does, but nobody can wait for it yet: it is called for every request, and most do not wait
            awaited = coroutine.send(None)
        except StopIteration as end:
            self._result = end.value
        except Exception as error:
            self._error = _without_frames(error)
        else:
            awaited.then(self._go_on)

    def cancel(self) -> None:
        """End it where it waits, by its `finally` blocks, which must not wait; who asked for the result is not told. What it
        waits for goes on, other tasks among it. One that is over stays as it is."""
        if self.pending:
            self._waiting, self._error = [], Cancelled()
            self._coroutine.close()

    def _go_on(self, _result: object, _error: Exception | None) -> None:
        if not self.pending:  # it was cancelled
            return
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            self._complete(end.value, None)
        except Exception as error:
            self._complete(None, _without_frames(error))
        else:
            awaited.then(self._go_on)


def start(coroutine: Verb[T]) -> Task[T]:
    """Run a coroutine until it waits. Its error is for whoever awaits the promise, or asks for it by `then`."""
    return Task(coroutine)


def start_alone(scheduler: Scheduler, coroutine: Verb[object]) -> None:
    """Run one that nobody waits for. Its error is raised at the end of the turn, where the scheduler reports it."""

    def ended(_result: object, error: Exception | None) -> None:
        if error is not None:
            raise_soon(scheduler, error)

    start(coroutine).then(ended)


def completed(result: T) -> Promise[T]:
    """A promise whose result is there already."""
    promise: Promise[T] = Promise()
    promise.resolve(result)
    return promise


async def gather(*awaited: Verb[T] | Promise[T]) -> list[T]:
    """Start all, wait until all are over, and return their results in order. The first error in that order is raised then."""
    promises = [each if isinstance(each, Promise) else start(each) for each in awaited]
    results, errors = [], []
    for promise in promises:
        try:
            results.append(await promise)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return results


async def next_turn(scheduler: Scheduler) -> None:
    """Go on at the end of this turn of the loop."""
    promise: Promise[None] = Promise()
    scheduler.soon(partial(promise.resolve, None))
    await promise


async def sleep(scheduler: Scheduler, delay_us: int) -> None:
    promise: Promise[None] = Promise()
    scheduler.later(delay_us, partial(promise.resolve, None))
    await promise


async def offload(scheduler: Scheduler, work: Callable[[], T]) -> T:
    """Run blocking work in a thread: its result, or what it raised."""
    promise: Promise[T] = Promise()

    def worked(result: T | BaseException) -> None:
        if isinstance(result, Exception):
            promise.fail(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            promise.resolve(result)

    scheduler.offload(work, worked)
    return await promise


class Mutex:
    """Lets one coroutine in at a time, in the order in which they came: `async with mutex`. However many come in and leave
    without waiting, the stack does not grow with their number."""

    __slots__ = ("_handing_on", "_held", "_line")

    def __init__(self) -> None:
        self._held = self._handing_on = False
        self._line: deque[Promise[None]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait, beside the one that is in."""
        return len(self._line)

    async def __aenter__(self) -> None:
        if not self._held and not self._line:
            self._held = True
            return
        promise: Promise[None] = Promise()
        self._line.append(promise)
        try:
            await promise
        except GeneratorExit:  # cancelled, or nobody refers to it any more: it must not be let in
            self._line.remove(promise)
            raise

    async def __aexit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:  # fmt: skip
        self._held = False
        if not self._handing_on:  # else it came in by the loop below, which goes on with the next
            self._handing_on = True
            try:
                _call_all(self._turns())
            finally:
                self._handing_on = False

    def _turns(self) -> Iterator[Callable[[], None]]:
        while self._line and not self._held:
            self._held = True
            yield partial(self._line.popleft().resolve, None)
