"""Runs work that is long by nature in slices: a few milliseconds a turn, all such jobs in rotation.

A job is a generator. Each `yield` is a place where it may be interrupted; what lies between two of them must take well
under a slice. The first slice runs within the call, so that short work is answered as if there were no slices. After that
one slice of one job runs per turn of the loop, however many jobs there are, so jobs slow down each other and nobody else.
A job must not rely on anything that may change between two of its steps: it takes a copy of what it walks over.
"""

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from quintet.model.errors import Busy
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise

SLICE_US: Final = 4_000  # of one turn; a step that has begun is finished
STEPS_AT_ONCE_MAX: Final = 1_000  # of one slice, also if the clock stands still
JOBS_MAX: Final = 1_000  # under way; more are refused
SORTED_AT_ONCE: Final = 2_000  # names

ELSEWHERE_AT_ONCE: Final = 1  # of the disk threads: hashing has two, and one is left to the log

T = TypeVar("T")
Steps = Generator[None, None, T]
Done = Callable[[Any, Exception | None], None]


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
        self._jobs: deque[tuple[Steps[Any], Done, Callable[[], bool]]] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def run(self, steps: Steps[Any], done: Done, wanted: Callable[[], bool] = lambda: True) -> None:
        """`done(result, error)` when it is finished, perhaps within the call; never if `wanted()` says no before that."""
        if len(self._jobs) >= JOBS_MAX:
            steps.close()
            raise Busy(f"{len(self._jobs)} long requests are under way, the limit is {JOBS_MAX}", hint="try again")
        end = self._slice(steps)
        if end is not None:
            done(*end)
            return
        self._jobs.append((steps, done, wanted))
        if len(self._jobs) == 1:
            self._scheduler.soon(self._turn)

    def _turn(self) -> None:
        steps, done, wanted = self._jobs.popleft()
        end = None
        if not wanted():
            steps.close()
        else:
            end = self._slice(steps)
            if end is None:
                self._jobs.append((steps, done, wanted))
        if self._jobs:
            self._scheduler.soon(self._turn)
        if end is not None:
            done(*end)

    def _slice(self, steps: Steps[Any]) -> tuple[Any, Exception | None] | None:
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
        self._line: deque[tuple[Callable[[], Any], Callable[[Any], None], Callable[[], bool]]] = deque()
        self._running = 0

    def run(self, work: Callable[[], Any], done: Callable[[Any], None], wanted: Callable[[], bool]) -> None:
        """`done(result, or the exception)` later; never if `wanted()` says no when its turn comes."""
        self._line.append((work, done, wanted))
        self._start()

    async def call(self, work: Callable[[], T]) -> T:
        """Its result, or what it raised: of work that is done whoever waits."""
        promise: Promise[T] = Promise()

        def worked(result: Any) -> None:
            if isinstance(result, BaseException):
                promise.fail(result if isinstance(result, Exception) else RuntimeError(repr(result)))
            else:
                promise.resolve(result)

        self.run(work, worked, lambda: True)
        return await promise

    def _start(self) -> None:
        while self._line and self._running < ELSEWHERE_AT_ONCE:
            work, done, wanted = self._line.popleft()
            if wanted():
                self._running += 1
                self._scheduler.offload(work, partial(self._finished, done))

    def _finished(self, done: Callable[[Any], None], result: Any) -> None:
        self._running -= 1
        self._start()
        done(result)

    def scan(
        self, scan: Callable[[], Any], slices: Slices, steps: Callable[[Any], Steps[Any]], done: Done,
        wanted: Callable[[], bool],
    ) -> None:  # fmt: skip
        """Scan elsewhere, then take the steps that follow from what was found: `done(result, error)`."""

        def scanned(found: Any) -> None:
            try:
                if isinstance(found, BaseException):
                    raise found
                slices.run(steps(found), done, wanted)
            except Exception as error:
                done(None, error)

        self.run(scan, scanned, wanted)
