"""Keeps fetches that wait for a new record in a partition, until it comes, their time is over or they are cancelled.

A scheduler's timer cannot be taken back, and most waits end early: a timer each would keep every answered question, its
connection and its callback for as long as it might have lasted. So waits that end at about the same time share one timer,
and leave it when they are over.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from quintet.log.base import Partition
from quintet.model.scheduler import Scheduler

STEP_US: Final = 10_000  # a wait may last this much longer than it was asked for


class Wait:
    """One of them. It is compared by identity and called once."""

    __slots__ = ("_call", "_ends", "_here", "partition")

    def __init__(
        self, partition: Partition, call: Callable[[], None], ends: "dict[Wait, None]", here: "dict[Wait, None]"
    ) -> None:
        """ends: the waits that end at the same time. here: those for the same partition."""
        self.partition = partition
        self._call = call
        self._ends = ends
        self._here = here
        ends[self] = here[self] = None

    def __call__(self) -> None:
        call = self._call
        if self.cancel():
            call()

    def cancel(self) -> bool:
        """It is not called any more. False: it was called or cancelled before."""
        if self._ends.pop(self, self) is self:
            return False
        del self._here[self]
        self._call = _nothing  # who asked may hold this wait: no work for the collector
        self.partition.unwatch(self)
        return True


class LongPolls:
    """All waits, by the step of time in which they end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ends: dict[int, dict[Wait, None]] = {}
        self._of: dict[Partition, dict[Wait, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._ends.values()))

    def add(self, partition: Partition, longest_us: int, call: Callable[[], None]) -> Wait:
        """Call once: when something new is visible in this partition, or after that time."""
        monotonic = self._scheduler.monotonic()
        step = (monotonic + longest_us) // STEP_US + 1
        others = self._ends.get(step)
        if others is None:
            others = self._ends[step] = {}
            self._scheduler.later(step * STEP_US - monotonic, partial(self._end, step))
        wait = Wait(partition, call, others, self._of.setdefault(partition, {}))
        partition.watch(wait)
        return wait

    def end_all(self, partitions: Iterable[Partition]) -> None:
        """Call all who wait for these now: their topic was deleted, and nothing new will come."""
        for partition in partitions:
            for wait in tuple(self._of.pop(partition, ())):
                wait()

    def _end(self, step: int) -> None:
        for wait in tuple(self._ends.pop(step)):
            wait()


def _nothing() -> None:
    """What is called in the place of who was called before."""
