"""Holds what the partitions of one engine share: disk, clock, tail cache and its budget, counters, callbacks.

One object instead of a reference to the whole engine, so that a partition can be built in a test with nothing else.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from quintet.log.embedded.files.buffers import ReadBuffers
from quintet.log.embedded.files.directory_sync import DirectorySync
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.packs import with_packs
from quintet.log.embedded.files.segment import Damage
from quintet.log.embedded.partitions.commit import Committer
from quintet.log.embedded.partitions.eviction_order import EvictionOrder
from quintet.log.embedded.partitions.links import ChainPolicy
from quintet.log.embedded.partitions.lone import LoneLending
from quintet.log.embedded.partitions.roles import AnchoredPartition
from quintet.log.embedded.partitions.upkeep import Upkeep
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import StorageError
from quintet.model.histogram import Histogram
from quintet.model.scheduler import Scheduler

# What a kept batch costs beside its bytes: the view, its numbers, its memo, its places in the lists. 303 to 431 bytes were
# measured; without it a cache of small batches was five times its bound.
OBJECT_BYTES: Final = 432
# Batches that one turn evicts or frees, about 0.3 us each: one large batch displaces 100,000 small ones, and a topic may
# be deleted with more than that.
FREED_AT_ONCE_MAX: Final = 4_000

Report = Callable[[str, dict[str, object]], None]
Batches = list[RecordBatch] | list[RecordBatch | None]  # None: it was evicted
# before_removal(topic_id, partition, start, then): call before offsets below start are removed on purpose, so that an anchor says
# so first; then() removes them. partition -1: the whole topic.
BeforeRemoval = Callable[[int, int, int, Callable[[], None]], None]

COUNTERS: Final = (
    "appends", "batches", "bytes", "fsyncs", "rolls", "fetches", "torn_tails", "quarantined_ranges",
    "dropped_memory_batches", "checkpoints", "segments_deleted", "compactions", "refused_appends",
)  # fmt: skip


class Shared:
    """Made once by the engine. `unsynced` is the engine's measure for back-pressure."""

    __slots__ = (
        "_doomed", "_trimming", "aging", "cache_bytes", "cache_bytes_max", "cache_order", "chain", "committer", "disk", "durable",
        "before_removal", "heads_moved", "lending", "low", "marks_moved", "memo_bytes", "memo_order", "no_cache", "directories", "quarantine", "read_buffers", "report", "scheduler", "stats",
        "unsynced", "upkeep",
    )  # fmt: skip

    def __init__(self, disk: Disk, scheduler: Scheduler, report: Report) -> None:
        self.disk = with_packs(disk, writes=True)
        self.scheduler = scheduler
        self.report = report
        self.committer = Committer(self.disk, scheduler, report)
        self.lending: LoneLending | None = None  # the engine makes it
        self.directories = DirectorySync(self.disk)
        self.disk.on_made = self.directories.mark_unsynced
        self.read_buffers = ReadBuffers()
        self.stats = dict.fromkeys(COUNTERS, 0)
        self.durable = Histogram()  # from append to durable, of each append that waits for a sync
        self.unsynced = 0
        self.cache_bytes = 0
        # Free space is below the floor, or the folder is not ours any more: only the broker's own tables may grow.
        self.low: StorageError | None = None
        self.cache_bytes_max = limits.TAIL_CACHE_BYTES
        self.cache_order: EvictionOrder[TailCache] = EvictionOrder()
        self.no_cache = TailCache(self)  # of all partitions of which nothing was cached yet: nothing is put into it
        self._trimming = False
        self._doomed: list[Batches] = []
        self.memo_bytes = 0
        self.memo_order: deque[RecordBatch] = deque()  # the newest of all, whose encoded frames may be kept
        self.upkeep = Upkeep(scheduler.monotonic())
        self.aging = 0  # jobs under way for idle partitions whose last records may be past their age
        self.marks_moved: set[AnchoredPartition] = set()
        self.chain = ChainPolicy()
        self.heads_moved: set[AnchoredPartition] = set()  # chains that are durable further than they are anchored
        self.before_removal: BeforeRemoval = lambda topic_id, partition, start, then: then()
        self.quarantine: Callable[[list[Damage]], None] = lambda damages: None

    def newest(self, batch: RecordBatch) -> None:
        """It becomes visible. An older one, which most subscribers have, no longer keeps its bytes twice."""
        self.memo_order.append(batch)
        self.memo_bytes += batch.length + OBJECT_BYTES
        while self.memo_bytes > limits.ENCODED_FOR_BYTES and len(self.memo_order) > 1:
            old = self.memo_order.popleft()
            self.memo_bytes -= old.length + OBJECT_BYTES
            old.memo = None

    def trim(self) -> None:
        """Evict the oldest batches until all is within its bound, some of them now and the others next turn."""
        for _ in range(FREED_AT_ONCE_MAX):
            if self.cache_bytes <= self.cache_bytes_max or len(self.cache_order) <= 1:
                return
            cache = self.cache_order.take()
            if cache is not None:
                cache.evict()
        if not self._trimming:
            self._trimming = True
            self.scheduler.soon(self._trim_on)

    def _trim_on(self) -> None:
        self._trimming = False
        self.trim()

    def discard(self, batches: Batches) -> None:
        """Free them a few at a time. Nobody else may hold the list."""
        if not batches:
            return
        self._doomed.append(batches)
        if len(self._doomed) == 1:
            self.scheduler.soon(self._free)

    def _free(self) -> None:
        room = FREED_AT_ONCE_MAX
        while self._doomed and room > 0:
            batches = self._doomed[-1]
            taken = min(room, len(batches))
            del batches[len(batches) - taken :]
            room -= max(taken, 1)
            if not batches:
                self._doomed.pop()
        if self._doomed:
            self.scheduler.soon(self._free)


# Of caches that hold nothing, as those of most partitions do. Nothing is ever put into these.
_NO_BATCHES: Final[list[RecordBatch | None]] = []
_NO_BASES: Final[list[int]] = []


class TailCache:
    """The newest visible batches of one partition. All caches share one budget; the oldest batch anywhere goes first."""

    __slots__ = ("_bases", "_batches", "_bytes", "_head", "_shared", "stale")

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._batches: list[RecordBatch | None] = _NO_BATCHES
        self._bases: list[int] = _NO_BASES
        self._bytes = 0
        self._head = 0
        self.stale = 0

    def add(self, batch: RecordBatch) -> None:
        shared = self._shared
        if self._batches is _NO_BATCHES:
            self._batches, self._bases = [], []
        self._batches.append(batch)
        self._bases.append(batch.base_offset)
        shared.cache_order.add(self)
        size = batch.length + OBJECT_BYTES
        self._bytes += size
        shared.cache_bytes += size
        shared.newest(batch)
        if shared.cache_bytes > shared.cache_bytes_max:
            shared.trim()

    def evict(self) -> None:
        """The oldest batch of all is ours."""
        head = self._head
        batch = self._batches[head]
        assert batch is not None
        size = batch.length + OBJECT_BYTES
        self._bytes -= size
        self._shared.cache_bytes -= size
        self._batches[head] = None
        self._head = head = head + 1
        if head >= 64 and head * 2 >= len(self._batches):
            del self._batches[:head], self._bases[:head]
            self._head = 0

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        """Batches from the one that holds offset on; None if the cache does not reach back so far."""
        batches, bases = self._batches, self._bases
        at = len(bases) - 1
        if at < self._head or offset < bases[self._head]:
            return None
        while at > self._head and bases[at] > offset:
            if len(bases) - at > 4:
                at = _bisect(bases, offset, self._head, at)
                break
            at -= 1
        found: list[RecordBatch] = []
        for number in range(at, len(batches)):
            batch = batches[number]
            assert batch is not None
            if batch.base_offset + batch.span <= offset:
                continue
            found.append(batch)
            max_bytes -= batch.length
            if max_bytes <= 0:
                break
        return found

    def newest_batches(self, most: int) -> list[RecordBatch]:
        """The last ones, in their order."""
        first = max(self._head, len(self._batches) - most)
        return [batch for batch in self._batches[first:] if batch is not None]

    def clear(self) -> None:
        """Forget everything: the topic is gone. Takes the same time however much is cached here or elsewhere."""
        shared = self._shared
        shared.cache_order.lost(self, len(self._batches) - self._head)
        shared.cache_bytes -= self._bytes
        shared.discard(self._batches)
        self._batches, self._bases = _NO_BATCHES, _NO_BASES
        self._bytes = self._head = 0


def _bisect(bases: list[int], offset: int, low: int, high: int) -> int:
    """Number of the last base at or below offset."""
    while low < high:
        middle = (low + high + 1) // 2
        if bases[middle] <= offset:
            low = middle
        else:
            high = middle - 1
    return low
