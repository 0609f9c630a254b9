"""Keeps a partition in memory only, bounded in bytes: the oldest batches are dropped first, and counted.

The batches are in the kernel's `Tails`, where doors append to them directly; `MemoryTails` seals them once a turn and tells who
waits and who watches. No checksum is computed and nothing touches the disk. When its topic becomes durable, the engine sets
`successor` and a partition passes every call on, so that whoever holds it need not know.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quintet import kernel
from quintet.log.base import Appended, Fetched, SegmentFile, TopicSpec
from quintet.log.embedded.partitions.merging import answer_waiters
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.shared import FREED_AT_ONCE_MAX, OBJECT_BYTES, Shared
from quintet.model.batch import RecordBatch
from quintet.model.errors import ShuttingDown
from quintet.model.scheduler import call_each

FOREVER_US: Final = (1 << 63) - 1


class MemoryTails:
    """All memory partitions of an engine. `seal_soon` or `read_appended` follows every append, whoever made it."""

    def __init__(self, shared: Shared, bytes_max: int) -> None:
        self.tails: kernel.Tails[RecordBatch] = kernel.Tails(self._view, bytes_max, OBJECT_BYTES, FREED_AT_ONCE_MAX)
        self._shared = shared
        self._lone_read = shared.scheduler.lone_read
        self._armed = self._trimming = False
        self._waiters: list[tuple[bytearray, Appended | None, int]] = []
        self._sealed: list[tuple[bytearray, Appended | None, int]] = []  # of them: to be told at the end of the turn
        self._moved: list[int] = []  # slots whose watchers are to be told then
        self._watchers: dict[int, list[Callable[[], None]]] = {}

    def _view(self, batch: bytearray) -> RecordBatch:
        kept = RecordBatch(batch)
        self._shared.newest(kept)
        return kept

    def append(self, slot: int, batch: bytearray, done: Appended | None) -> int:
        base = self.tails.append(slot, batch, done is not None)
        if done is not None:
            self._waiters.append((batch, done, base))
        self.seal_soon()
        return base

    def seal_soon(self) -> None:
        """Something was appended: it becomes visible at the end of this turn."""
        if not self._armed:
            self._armed = True
            self._shared.scheduler.soon(self._turn)

    def read_appended(self) -> None:
        """The kernel appended what a read brought: it becomes visible at the end of this turn, or now if nobody adds to it."""
        if self._lone_read.under_way and not self._armed:
            self.seal()
            if not self._sealed and not self._moved:
                return
        self.seal_soon()

    def _turn(self) -> None:
        """Make visible what was appended, tell the waiters, then the watchers."""
        self._armed = False
        if self.tails.dirty:
            self.seal()
        if self._sealed:
            sealed, self._sealed = self._sealed, []
            answer_waiters(self._shared.scheduler, sealed)
        if self._moved:
            moved, self._moved = self._moved, []
            for slot in moved:
                call_each(self._shared.scheduler, tuple(self._watchers.get(slot, ())))

    def seal(self) -> None:
        """Make visible what was appended; whoever waits or watches is told at the end of the turn."""
        if not self.tails.dirty:
            return
        moved, more = self.tails.seal(self._shared.scheduler.now())
        if more:
            self._trim_soon()
        self._moved += moved
        if self._waiters:
            self._sealed += self._waiters
            self._waiters.clear()

    def count(self) -> None:
        """Add what the tails have counted."""
        stats = self._shared.stats
        appends, batches, size, dropped = self.tails.take_counts()
        stats["appends"] += appends
        stats["batches"] += batches
        stats["bytes"] += size
        stats["dropped_memory_batches"] += dropped

    def _trim_soon(self) -> None:
        if not self._trimming:
            self._trimming = True
            self._shared.scheduler.soon(self._trim)

    def _trim(self) -> None:
        self._trimming = False
        if self.tails.trim():
            self._trim_soon()

    def watch(self, slot: int, call: Callable[[], None]) -> None:
        self._watchers.setdefault(slot, []).append(call)
        self.tails.set_watched(slot, True)

    def unwatch(self, slot: int, call: Callable[[], None]) -> None:
        watchers = self._watchers.get(slot, [])
        if call in watchers:
            watchers.remove(call)
            if not watchers:
                del self._watchers[slot]
                self.tails.set_watched(slot, False)

    def close(self, slot: int) -> list[Callable[[], None]]:
        """Forget what it keeps, some of it now; who watched it."""
        self.tails.close(slot)
        self._trim_soon()
        return self._watchers.pop(slot, [])


class MemoryPartition:
    """See log.base.Partition."""

    __slots__ = ("_closed", "_shared", "_tails", "number", "slot", "spec", "successor", "topic_id")

    def __init__(self, shared: Shared, tails: MemoryTails, spec: TopicSpec, number: int) -> None:
        self._shared = shared
        self._tails = tails
        self.spec = spec
        self.topic_id = spec.id
        self.number = number
        self.successor: FilePartition | None = None
        self.slot = tails.tails.open(spec.memory_bytes)
        self._closed: tuple[int, int, int, int] | None = None  # its last state

    @property
    def tail(self) -> int | None:
        return self.slot if self.successor is None and self._closed is None else None

    @property
    def loan(self) -> int | None:
        return None if self.successor is None else self.successor.loan

    def _state(self) -> tuple[int, int, int, int]:
        """(start, visible, end, bytes)"""
        return self._closed or self._tails.tails.state(self.slot)

    @property
    def start(self) -> int:
        return self._state()[0] if self.successor is None else self.successor.start

    @property
    def visible(self) -> int:
        if self.successor is not None:
            return self.successor.visible
        return (self._closed or self._tails.tails.state(self.slot))[1]  # asked three times for each delivery

    @property
    def end(self) -> int:
        return self._state()[2] if self.successor is None else self.successor.end

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
        return self._tails.append(self.slot, batch, done)

    def append_read(self, batch: bytearray, done: Appended) -> int:
        if self.successor is not None:
            return self.successor.append_read(batch, done)
        if self._closed:
            raise ShuttingDown("the broker is stopping")
        base = self._tails.tails.append(self.slot, batch, False)
        self._tails.read_appended()
        return base

    def maintain(self, now: int) -> None:
        """Drop what is past its age, a slice at a time."""
        if not self.spec.retention_us or self.tail is None:
            return
        if self._tails.tails.drop_older(self.slot, now - self.spec.retention_us):
            self._shared.scheduler.soon(partial(self.maintain, now))

    def purge(self, done: Callable[[Exception | None], None]) -> None:
        """Drop all that is visible, a slice at a time."""
        if self.tail is not None and self._tails.tails.drop_older(self.slot, FOREVER_US):
            self._shared.scheduler.soon(partial(self.purge, done))
            return
        self._tails.count()
        done(None)

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        if self.successor is not None:
            return self.successor.read(offset, max_bytes)
        return [] if self._closed else self._tails.tails.read(self.slot, offset, max_bytes)

    def fetch(self, offset: int, max_bytes: int, done: Fetched) -> None:
        if self.successor is not None:
            self.successor.fetch(offset, max_bytes, done)
            return
        self._shared.scheduler.soon(partial(done, self.read(offset, max_bytes) or [], None))

    def read_now(self, offset: int) -> list[RecordBatch]:
        if self.successor is not None:
            return self.successor.read_now(offset)
        return self.read(offset, self._state()[3] + 1) or []

    def files(self, first: int, last: int) -> list[SegmentFile]:
        return [] if self.successor is None else self.successor.files(first, last)

    def bytes_from(self, offset: int) -> int:
        if self.successor is not None:
            return self.successor.bytes_from(offset)
        start, visible, _, size = self._state()
        kept = max(visible - start, 1)
        return size * min(max(visible - offset, 0), kept) // kept

    def offset_at(self, timestamp: int) -> int:
        if self.successor is not None:
            return self.successor.offset_at(timestamp)
        return self._closed[1] if self._closed else self._tails.tails.offset_at(self.slot, timestamp)

    def watch(self, call: Callable[[], None]) -> None:
        if self.successor is not None:
            self.successor.watch(call)
        elif not self._closed:
            self._tails.watch(self.slot, call)

    def unwatch(self, call: Callable[[], None]) -> None:
        if self.successor is not None:
            self.successor.unwatch(call)
        elif not self._closed:
            self._tails.unwatch(self.slot, call)

    def hand_over(self, successor: FilePartition) -> None:
        """Become durable: what is kept is written out, then everything goes to the successor."""
        self._tails.seal()
        successor.adopt(self.read_now(self.start), self.end)
        watchers = self._tails.close(self.slot)
        for call in watchers:
            successor.watch(call)
        self.successor = successor
        self._shared.scheduler.soon(partial(call_each, self._shared.scheduler, watchers))  # of what was sealed here

    def shut(self, done: Callable[[], None]) -> None:
        self._tails.seal()
        _, visible, _, _ = self._state()
        self._closed = (visible, visible, visible, 0)
        self._tails.close(self.slot)
        done()
