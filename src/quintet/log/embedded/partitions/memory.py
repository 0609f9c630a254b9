"""Keeps a partition in memory only, bounded in bytes: drops the oldest batches first, and counts them.

No checksum is computed and nothing touches the disk. When its topic becomes durable, the engine sets
`successor` and this object passes every call on, so that whoever holds it need not know.
"""

from bisect import bisect_right
from collections.abc import Callable
from functools import partial

from quintet import kernel
from quintet.log.base import Appended, Fetched, SegmentFile, TopicSpec
from quintet.log.embedded.partitions.merging import Pending, answer_waiters, merge_groups, place_waiters
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.shared import FREED_AT_ONCE_MAX, OBJECT_BYTES, Shared
from quintet.model.batch import RecordBatch
from quintet.model.clocks import following
from quintet.model.errors import ShuttingDown
from quintet.model.scheduler import call_each


class MemoryPartition:
    """See log.base.Partition."""

    __slots__ = (
        "_armed", "_bases", "_batches", "_bytes", "_closed", "_end", "_last_time", "_pending", "_shared", "_start",
        "_visible", "_watchers", "number", "spec", "stale", "successor", "topic_id",
    )  # fmt: skip

    def __init__(self, shared: Shared, spec: TopicSpec, number: int) -> None:
        self._shared = shared
        self.spec = spec
        self.topic_id = spec.id
        self.number = number
        self.successor: FilePartition | None = None
        self._batches: list[RecordBatch] = []
        self._bases: list[int] = []
        self._bytes = 0
        self._start = self._visible = self._end = 0
        self._pending: list[Pending] = []
        self._watchers: list[Callable[[], None]] = []
        self._armed = self._closed = False
        self.stale = 0  # batches gone by our own bound, still named in the order of all memory topics
        self._last_time = 0

    @property
    def start(self) -> int:
        return self._start if self.successor is None else self.successor.start

    @property
    def visible(self) -> int:
        return self._visible if self.successor is None else self.successor.visible

    @property
    def end(self) -> int:
        return self._end if self.successor is None else self.successor.end

    @property
    def failure(self) -> Exception | None:
        if self.successor is not None:
            return self.successor.failure
        return ShuttingDown("the broker is stopping") if self._closed else None

    def append(self, batch: bytearray, done: Appended | None) -> int:
        if self.successor is not None:
            return self.successor.append(batch, done)
        if self._closed:
            raise ShuttingDown("the broker is stopping")
        base = self._end
        self._end = base + int.from_bytes(batch[28:32], "little")
        self._pending.append((batch, done, base))
        if not self._armed:
            self._armed = True
            self._shared.committer.arm(self.stage)
        return base

    def stage(self) -> None:
        """End of the turn: merge, set offsets, make visible, tell the waiters."""
        self._armed = False
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        self._last_time = now = following(self._shared.scheduler.now(), self._last_time)
        if len(pending) == 1:
            self._keep(pending[0][0], pending[0][2], now)
        else:
            for group in merge_groups(pending):
                self._keep_group(group, now)
        self._visible = self._end
        self._shared.stats["appends"] += len(pending)
        self._trim()
        answer_waiters(self._shared.scheduler, pending)
        call_each(self._shared.scheduler, tuple(self._watchers))

    def _keep_group(self, group: list[Pending], now: int) -> None:
        if len(group) > 1:
            try:
                self._keep(kernel.merge([batch for batch, _, _ in group], now), group[0][2], now)
            except ValueError:  # more origins than one batch can name
                pass
            else:
                place_waiters(group, now)
                return
        for batch, _, base in group:
            self._keep(batch, base, now)

    def _keep(self, batch: bytearray, base: int, now: int) -> None:
        kernel.place(batch, base, now)
        kept, shared = RecordBatch(batch), self._shared
        self._batches.append(kept)
        self._bases.append(base)
        size = len(batch) + OBJECT_BYTES
        self._bytes += size
        shared.newest(kept)
        shared.stats["batches"] += 1
        shared.stats["bytes"] += len(batch)
        shared.memory_bytes += size
        shared.memory_order.add(self)
        if shared.memory_bytes > shared.memory_bytes_max:
            shared.trim()

    def evict(self) -> None:
        """All memory topics together hold too much, and the oldest batch of all is ours."""
        if len(self._batches) > 1:
            self._drop(1)

    def _trim(self, before: int = 0) -> None:
        """Drop the oldest, a slice at a time: what is over the bound, except for the newest batch, and what is older than
        `before`."""
        drop, kept = 0, self._bytes
        while drop < min(len(self._batches), FREED_AT_ONCE_MAX) and (
            (kept > self.spec.memory_bytes and drop < len(self._batches) - 1)
            or self._batches[drop].max_timestamp < before
        ):
            kept -= self._batches[drop].length + OBJECT_BYTES
            drop += 1
        if drop:
            self._shared.memory_order.lost(self, drop)
            self._drop(drop)
        if drop == FREED_AT_ONCE_MAX:
            self._shared.scheduler.soon(partial(self._trim, before))

    def _drop(self, count: int) -> None:
        freed = sum([batch.length for batch in self._batches[:count]]) + count * OBJECT_BYTES
        self._bytes -= freed
        self._shared.memory_bytes -= freed
        self._start = self._batches[count].base_offset if count < len(self._batches) else self._visible
        del self._batches[:count], self._bases[:count]
        self._shared.stats["dropped_memory_batches"] += count

    def maintain(self, now: int) -> None:
        if self.spec.retention_us and self.successor is None:
            self._trim(now - self.spec.retention_us)

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        if self.successor is not None:
            return self.successor.read(offset, max_bytes)
        offset = max(offset, self._start)
        if offset >= self._visible:
            return []
        at = bisect_right(self._bases, offset) - 1
        found: list[RecordBatch] = []
        while at < len(self._batches):
            found.append(self._batches[at])
            max_bytes -= self._batches[at].length
            if max_bytes <= 0:
                break
            at += 1
        return found

    def fetch(self, offset: int, max_bytes: int, done: Fetched) -> None:
        if self.successor is not None:
            self.successor.fetch(offset, max_bytes, done)
            return
        self._shared.scheduler.soon(partial(done, self.read(offset, max_bytes) or [], None))

    def read_now(self, offset: int) -> list[RecordBatch]:
        if self.successor is not None:
            return self.successor.read_now(offset)
        return self.read(offset, self._bytes + 1) or []

    def files(self, first: int, last: int) -> list[SegmentFile]:
        return [] if self.successor is None else self.successor.files(first, last)

    def bytes_from(self, offset: int) -> int:
        if self.successor is not None:
            return self.successor.bytes_from(offset)
        kept = max(self._visible - self._start, 1)
        return self._bytes * min(max(self._visible - offset, 0), kept) // kept

    def offset_at(self, timestamp: int) -> int:
        if self.successor is not None:
            return self.successor.offset_at(timestamp)
        return next((b.base_offset for b in self._batches if b.max_timestamp >= timestamp), self._visible)

    def watch(self, call: Callable[[], None]) -> None:
        if self.successor is not None:
            self.successor.watch(call)
        else:
            self._watchers.append(call)

    def unwatch(self, call: Callable[[], None]) -> None:
        if self.successor is not None:
            self.successor.unwatch(call)
        elif call in self._watchers:
            self._watchers.remove(call)

    def hand_over(self, successor: FilePartition) -> None:
        """Become durable: what is kept is written out, then everything goes to the successor."""
        self.stage()
        successor.adopt(self._batches, self._end)
        for call in self._watchers:
            successor.watch(call)
        self.successor = successor
        self._shared.memory_bytes -= self._bytes
        self._shared.memory_order.lost(self, len(self._batches))
        self._batches, self._bases, self._watchers, self._bytes = [], [], [], 0

    def shut(self, done: Callable[[], None]) -> None:
        self.stage()
        self._closed = True
        self._shared.memory_bytes -= self._bytes
        self._shared.memory_order.lost(self, len(self._batches))
        self._shared.discard(self._batches)
        self._batches, self._bases, self._bytes, self._start = [], [], 0, self._visible
        done()
