"""Schedules the periodic work of partitions: which one needs a sync, a probe or a close, and when. Loop thread only.

With 10,000 open partitions a look at each of them every 50 ms cost a third of the loop. So a partition is looked at when
something is due: those to be synced or probed are in a set while they are, and those with an open file are in a heap by
the time at which they are idle, corrected only when that time has come.
"""

from heapq import heappop, heappush
from itertools import count
from typing import Final

from quintet.log.embedded.partitions.roles import Maintained

OPEN_FILES_MAX: Final = 10_240  # segments kept open for writing; above it those that are idle first are closed
SYNCED_AT_ONCE_MAX: Final = 64  # files to be closed that need a sync first, begun in one round
LOOKED_AT_ONCE_MAX: Final = 1_024  # partitions looked at in one round, to find those
REST_AGAIN_US: Final = 100_000  # until a partition that could not rest is looked at again


class Upkeep:
    """A partition is `active` while it has an open file or a failure; then it has exactly one entry in the heap."""

    __slots__ = ("_active", "_failing", "_idle", "_number", "_syncing", "monotonic", "open_files_max")

    def __init__(self, monotonic: int) -> None:
        self.monotonic = monotonic  # when it was last called: near enough to say when a partition was used
        self.open_files_max = OPEN_FILES_MAX
        self._active: set[Maintained] = set()
        self._failing: set[Maintained] = set()
        self._syncing: set[Maintained] = set()
        self._idle: list[tuple[int, int, Maintained]] = []
        self._number = count()  # so that partitions due at the same time are not compared

    def activate(self, partition: Maintained) -> None:
        """It has an open file, or will have."""
        if partition not in self._active:
            self._active.add(partition)
            heappush(self._idle, (partition.idle_at, next(self._number), partition))

    def sync_soon(self, partition: Maintained) -> None:
        """It promises a sync within a moment."""
        self._syncing.add(partition)

    def probe(self, partition: Maintained) -> None:
        """It failed: see from time to time whether it can go on."""
        self._failing.add(partition)

    def forget(self, partition: Maintained) -> None:
        """Its topic is deleted."""
        for members in (self._active, self._failing, self._syncing):
            members.discard(partition)

    def maintain(self, monotonic: int) -> None:
        self.monotonic = monotonic
        self._failing -= {partition for partition in tuple(self._failing) if not partition.probe(monotonic)}
        self._syncing -= {partition for partition in tuple(self._syncing) if not partition.sync_if_due(monotonic)}
        self._rest(monotonic)

    def _rest(self, monotonic: int) -> None:
        """Close files that are idle; those that are idle first also if there are too many."""
        idle = self._idle
        again: list[tuple[int, int, Maintained]] = []
        begun = 0
        for _ in range(LOOKED_AT_ONCE_MAX):
            excess = len(self._active) - self.open_files_max > 0
            if not idle or begun == SYNCED_AT_ONCE_MAX or (idle[0][0] > monotonic and not excess):
                break
            due, number, partition = heappop(idle)
            if partition not in self._active:
                continue
            actual = partition.idle_at
            if actual > max(due, monotonic if not excess else 0):
                heappush(idle, (actual, number, partition))
                continue
            if partition.rest(in_a_hurry=excess):
                self._active.discard(partition)
            else:
                begun += 1
                again.append((monotonic + REST_AGAIN_US, number, partition))
        for entry in again:
            heappush(idle, entry)
