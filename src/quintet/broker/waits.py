"""Long polls: who waits for something new in a partition, at most so long. Once answered, nothing of them is left.

A scheduler's timer cannot be taken back, and most waits end early: a timer each would keep every answered question, its
connection and its callback for as long as it might have lasted. So waits that end at about the same time share one timer,
and leave it when they are over.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.log.base import Partition
from quintet.model.scheduler import Scheduler

STEP_US: Final = 10_000  # a wait may last this much longer than it was asked for


class _Wait:
    """One of them. It is compared by identity and called once."""

    __slots__ = ("call", "others", "partition")

    def __init__(self, partition: Partition, call: Callable[[], None], others: "dict[_Wait, None]") -> None:
        self.partition = partition
        self.call = call
        self.others = others

    def __call__(self) -> None:
        if self.others.pop(self, self) is self:
            return  # it was called before
        self.partition.unwatch(self)
        self.call()


class Waits:
    """All waits, by the step of time in which they end."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ends: dict[int, dict[_Wait, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._ends.values()))

    def add(self, partition: Partition, longest_us: int, call: Callable[[], None]) -> None:
        """Call once: when something new is visible in this partition, or after that time."""
        monotonic = self._scheduler.monotonic()
        step = (monotonic + longest_us) // STEP_US + 1
        others = self._ends.get(step)
        if others is None:
            others = self._ends[step] = {}
            self._scheduler.later(step * STEP_US - monotonic, partial(self._end, step))
        wait = _Wait(partition, call, others)
        others[wait] = None
        partition.watch(wait)

    def _end(self, step: int) -> None:
        for wait in tuple(self._ends.pop(step)):
            wait()
