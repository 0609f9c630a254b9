"""Runs work that is long by nature in slices: a few milliseconds a turn, all such jobs in rotation.

A job is a generator. Each `yield` is a place where it may be interrupted; what lies between two of them must take well
under a slice. The first slice runs within the call, so that short work is answered as if there were no slices. After that
one slice of one job runs per turn of the loop, however many jobs there are, so jobs slow down each other and nobody else.
A job must not rely on anything that may change between two of its steps: it takes a copy of what it walks over.

Both kinds of work give a promise. If its caller has gone, the job is ended and `await` raises Unwanted, so that whoever
waits in between lets go of what it holds. `unless_unwanted` keeps it from the callback at the end.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Final, TypeVar

from quintet.model.errors import Busy
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Done, Promise

SLICE_US: Final = 4_000  # of one turn; a step that has begun is finished
STEPS_AT_ONCE_MAX: Final = 1_000  # of one slice, also if the clock stands still
JOBS_MAX: Final = 1_000  # under way; more are refused
SORTED_AT_ONCE: Final = 2_000  # names

ELSEWHERE_AT_ONCE: Final = 1  # of the disk threads: hashing has two, and one is left to the log

T = TypeVar("T")
U = TypeVar("U")
Steps = Generator[None, None, T]
Wanted = Callable[[], bool]
Job = tuple[Steps[Any], Promise[Any], Wanted]  # of any type of result, but the same in both
Work = tuple[Callable[[], Any], Promise[Any], Wanted]


class Unwanted(Exception):
    """The job was ended because its caller does not wait for the result any more. Never told to a client."""


def always() -> bool:
    """Of a job that is finished whatever becomes of its caller."""
    return True


def unless_unwanted(done: Done[T]) -> Done[T]:
    """The callback of a verb, not called if the verb ended because nobody wants its result."""

    def told(result: T | None, error: Exception | None) -> None:
        if not isinstance(error, Unwanted):
            done(result, error)

    return told


def finish(steps: Steps[T]) -> T:
    """Run a job to its end at once: for tools and tests, where nobody waits."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def in_order(items: Sequence[T], key: Callable[[T], Any]) -> Iterator[T | None]:
    """Sorted, without the time that sorting a hundred thousand takes at once. None among them is a pause and no item."""
    runs = []
    for start in range(0, len(items), SORTED_AT_ONCE):
        runs.append(sorted(items[start : start + SORTED_AT_ONCE], key=key))
        yield None
    yield from heapq.merge(*runs, key=key)


class Slices:
    """The jobs under way, in rotation."""

    __slots__ = ("_jobs", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def finish(self, steps: Steps[T], wanted: Wanted = always) -> Promise[T]:
        """Its result when it is finished, perhaps within the call; Unwanted if `wanted()` says no before that."""
        if len(self._jobs) >= JOBS_MAX:
            steps.close()
            raise Busy(f"{len(self._jobs)} long requests are under way, the limit is {JOBS_MAX}", hint="try again")
        finished: Promise[T] = Promise()
        end = self._slice(steps)
        if end is not None:
            finished.done(*end)
            return finished
        self._jobs.append((steps, finished, wanted))
        if len(self._jobs) == 1:
            self._scheduler.soon(self._turn)
        return finished

    def _turn(self) -> None:
        steps, finished, wanted = self._jobs.popleft()
        end: tuple[object, Exception | None] | None = (None, Unwanted())
        if not wanted():
            steps.close()
        else:
            end = self._slice(steps)
            if end is None:
                self._jobs.append((steps, finished, wanted))
        if self._jobs:
            self._scheduler.soon(self._turn)
        if end is not None:
            finished.done(*end)

    def _slice(self, steps: Steps[T]) -> tuple[T | None, Exception | None] | None:
        """Its result and error; None if there is more to do."""
        monotonic = self._scheduler.monotonic
        until = monotonic() + SLICE_US
        try:
            for _ in range(STEPS_AT_ONCE_MAX):
                next(steps)
                if monotonic() >= until:
                    break
        except StopIteration as end:
            return end.value, None
        except Exception as error:
            return None, error
        return None


class Elsewhere:
    """Work that lets other threads run while it is done (inflating, a scan by the kernel), on few of the disk threads; the
    others wait in line, at most one of each connection."""

    __slots__ = ("_line", "_running", "_scheduler")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._line: deque[Work] = deque()
        self._running = 0

    def finish(self, work: Callable[[], T], wanted: Wanted = always) -> Promise[T]:
        """What it returns or raises, later; Unwanted if `wanted()` says no when its turn comes."""
        finished: Promise[T] = Promise()
        self._line.append((work, finished, wanted))
        self._start()
        return finished

    def _start(self) -> None:
        while self._line and self._running < ELSEWHERE_AT_ONCE:
            work, finished, wanted = self._line.popleft()
            if wanted():
                self._running += 1
                self._offload(work, finished)
            else:
                finished.fail(Unwanted())

    def _offload(self, work: Callable[[], T], finished: Promise[T]) -> None:
        def worked(result: T | BaseException) -> None:
            self._running -= 1
            self._start()
            if isinstance(result, Exception):
                finished.fail(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                finished.resolve(result)

        self._scheduler.offload(work, worked)

    async def scan(self, scan: Callable[[], T], slices: Slices, steps: Callable[[T], Steps[U]], wanted: Wanted) -> U:
        """Scan elsewhere, then take the steps that follow from what was found."""
        return await slices.finish(steps(await self.finish(scan, wanted)), wanted)
