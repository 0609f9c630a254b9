"""Decides up to where the WAL may be trimmed, and has it done while this node leads. Knows no Kafka.

The rule: everything below the point is synced on two nodes at least, and this node is one of them; what became so less than `kept_us`
ago stays, so that a node that was away for a while finds its place. A node that has not answered lately does not count: its disk may be
gone. What a node has synced is its applied mark (mark.py): files of stages, purges and deletions below it are done, so nothing below it
is read again by that node.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from quintet.model.errors import QuintetError, StorageError
from quintet.model.scheduler import Scheduler

LOOK_US: Final = 10_000_000  # between two looks, at least
POINTS_MAX: Final = 64  # that are remembered for `kept_us`

Report = Callable[[str, dict[str, object]], None]


class WalTrimmed(StorageError):
    """What this node needs next of the WAL is no longer there: two other nodes have it."""

    code = "E1517"

    def __init__(self, begin: int, offset: int) -> None:
        super().__init__(
            f"the WAL begins at offset {begin}, this node has {offset}: copy from a peer [{self.code}]",
            hint="move its data directory away, name other nodes in cluster.peers, and start it again: it copies from one of them",
        )


class Trimmable(Protocol):
    """What is asked of a WAL."""

    @property
    def begin(self) -> int:
        """The first offset that is there, as far as is known."""

    def trim(self, before: int) -> int:
        """Remove everything below; where it begins then. Blocks; raises StorageError."""


def trim_point(own: int, others: Sequence[int]) -> int:
    """Everything below is synced on this node and on another one; 0: on no two of them."""
    synced = sorted((own, *others), reverse=True)
    return min(own, synced[1]) if others else 0


class Trimming:
    """`tick` while the node leads."""

    def __init__(
        self,
        wal: Trimmable,
        scheduler: Scheduler,
        report: Report,
        others: Callable[[], Sequence[int]],
        kept_us: int,
    ) -> None:
        """others: what the other nodes have synced that answered lately."""
        self._wal = wal
        self._scheduler = scheduler
        self._report = report
        self._others = others
        self._kept_us = kept_us
        self._every_us = max(LOOK_US, kept_us // POINTS_MAX)
        self._points: deque[tuple[int, int]] = deque(maxlen=POINTS_MAX + 1)  # (when, what two nodes had synced)
        self._looked = -self._every_us
        self._busy = False
        self.trims = self.failures = 0

    def tick(self, monotonic: int, own: int) -> None:
        """own: what this node has synced."""
        if self._busy or monotonic - self._looked < self._every_us:
            return
        self._looked = monotonic
        point = trim_point(own, self._others())
        self._points.append((monotonic, point))
        old = [known for at, known in self._points if monotonic - at >= self._kept_us]
        before = min(point, max(old, default=0))
        if before > self._wal.begin:
            self._busy = True
            self._scheduler.offload(lambda: self._wal.trim(before), self._trimmed)

    def _trimmed(self, begin: int | BaseException) -> None:
        self._busy = False
        if isinstance(begin, BaseException):
            self.failures += 1
            hint = begin.hint if isinstance(begin, QuintetError) else ""
            self._report("wal_not_trimmed", {"error": str(begin), "hint": hint})
            return
        self.trims += 1
        self._report("wal_trimmed", {"begin": begin})
