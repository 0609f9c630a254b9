"""The newest part of partitions that are kept in memory, in pure Python: the specification of the native twin (`tails.rs`).

A door appends to any number of topics in one call (pure_append.py), one call at the end of the turn gives everything its offset
and makes it visible (`Tails.seal`). No I/O, no clock. `_native.pyi` says what each method promises.

    append -> pending --(seal: merge, offsets, time)--> kept, visible --(bounds, age)--> dropped, oldest first
"""

import builtins
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from quintet.kernel.pure_batch import head_of, locate, place
from quintet.kernel.pure_lent import Lents, Moved, Place, Terms, Waiting, merge_groups, merged
from quintet.kernel.pure_lent import following as _following

ROUTES_MAX = 20_000  # of one connection
_SPAN = struct.Struct("<28xI")
_MAX_TIMESTAMP = struct.Struct("<40xq")


View = TypeVar("View")
Target = TypeVar("Target")


class _Pending(NamedTuple):
    batch: bytearray
    base: int
    waits: bool


class _Kept(Generic[View]):
    __slots__ = ("base", "batch", "max_timestamp", "serial", "view")

    def __init__(self, base: int, serial: int, batch: bytearray) -> None:
        self.base = base
        self.serial = serial
        self.batch = batch
        (self.max_timestamp,) = _MAX_TIMESTAMP.unpack_from(batch)
        self.view: View | None = None


class _Tail(Generic[View]):
    __slots__ = (
        "bytes", "bytes_max", "end", "in_order", "kept", "last_time", "pending", "start", "told_time", "topic", "visible", "watched",
    )  # fmt: skip

    def __init__(self, bytes_max: int) -> None:
        self.pending: list[_Pending] = []
        self.kept: deque[_Kept[View]] = deque()
        self.start = self.visible = self.end = 0
        self.bytes = 0
        self.bytes_max = bytes_max
        self.last_time = 0
        self.told_time: int | None = None  # of this turn's records: somebody was told already
        self.watched = False
        self.in_order = False  # has its one place in `_order`
        self.topic: _Topic | None = None


class _Topic:
    __slots__ = ("generation", "index", "lent", "next", "open", "published", "slots")

    def __init__(self, index: int) -> None:
        self.index = index
        self.generation = self.next = self.published = 0
        self.open = False
        self.lent = False  # its partitions are in files: the slots are those of Lents
        self.slots: list[int] = []


class Tails(Generic[View]):
    def __init__(self, view: Callable[[bytearray], View], bytes_max: int, object_bytes: int, freed_max: int) -> None:
        self._view = view
        self._bytes_max = bytes_max
        self._object_bytes = object_bytes
        self._freed_max = freed_max
        self._tails: list[_Tail[View]] = []
        self._free: list[int] = []
        self._topics: list[_Topic] = []
        self._free_topics: list[int] = []
        self._dirty: list[int] = []
        self._order: list[
            tuple[int, int]
        ] = []  # a place for each tail that keeps something: serial of its oldest, slot
        self._doomed: list[deque[_Kept[View]]] = []
        self._serial = 0
        self._counts = [0, 0, 0, 0]
        self.bytes = 0
        self.lents: Lents[View] = Lents(view, object_bytes, freed_max)

    # -- tails and topics ----------------------------------------------------------------------------------------------

    def _tail(self, slot: int) -> _Tail[View]:
        if not 0 <= slot < len(self._tails):
            raise ValueError("no such tail")
        return self._tails[slot]

    def open(self, bytes_max: int) -> int:
        tail = _Tail[View](bytes_max)
        if not self._free:
            self._tails.append(tail)
            return len(self._tails) - 1
        slot = self._free.pop()
        tail.in_order = self._tails[slot].in_order  # the place of the one before it is still there
        self._tails[slot] = tail
        return slot

    def close(self, slot: int) -> None:
        tail = self._tail(slot)
        if tail.topic is not None:
            tail.topic.open = False
        self.bytes -= tail.bytes
        if tail.kept:
            self._doomed.append(tail.kept)
        tail.kept, tail.pending, tail.bytes, tail.topic, tail.told_time = deque(), [], 0, None, None
        self._free.append(slot)

    def add_topic(self, slots: list[int], lent: bool = False) -> int:
        known = len(self.lents.slots) if lent else len(self._tails)
        if not slots or not all(0 <= slot < known for slot in slots):
            raise ValueError("no such tail")
        if self._free_topics:
            topic = self._topics[self._free_topics.pop()]
        else:
            topic = _Topic(len(self._topics))
            self._topics.append(topic)
        for slot in slots:
            (self.lents.slots if lent else self._tails)[slot].topic = topic
        topic.lent = lent
        topic.generation = (topic.generation + 1) % (1 << 32)
        topic.open, topic.next, topic.published, topic.slots = True, 0, 0, list(slots)
        return topic.generation << 32 | topic.index

    def _topic(self, handle: int) -> _Topic | None:
        index = handle & 0xFFFFFFFF
        if index >= len(self._topics) or self._topics[index].generation != handle >> 32:
            return None
        topic = self._topics[index]
        return topic if topic.slots else None

    def remove_topic(self, handle: int) -> None:
        topic = self._topic(handle)
        if topic is not None:
            for slot in topic.slots:
                (self.lents.slots if topic.lent else self._tails)[slot].topic = None
            topic.open, topic.slots = False, []
            self._free_topics.append(topic.index)

    def published(self, handle: int) -> int:
        topic = self._topic(handle)
        return topic.published if topic is not None else 0

    # -- appending -----------------------------------------------------------------------------------------------------

    def append(self, slot: int, batch: bytearray, waits: bool) -> int:
        view = memoryview(batch)
        if locate(view, 0, head_of(view, 0)).end != len(batch):
            raise ValueError("the bytearray must hold exactly one batch")
        tail = self._tail(slot)
        base = tail.end
        tail.end = base + int(_SPAN.unpack_from(batch)[0])
        if not tail.pending:
            self._dirty.append(slot)
        tail.pending.append(_Pending(batch, base, waits))
        return base

    def publish(self, handle: int, batch: bytearray, count: int) -> bool:
        """Append to the next partition of a topic that is open. False: Python decides."""
        if not self.takes(handle, -1):
            return False
        self.append(self._next_slot(handle, count), batch, False)
        return True

    def takes(self, handle: int, partition: int) -> bool:
        """Is this handle current and open, and does its topic have this partition (-1: the next in turn)?"""
        topic = self._current(handle, partition)
        return topic is not None and not topic.lent

    def takes_lent(self, handle: int, partition: int, size: int) -> bool:
        """The same of a topic in files, for a batch of this size."""
        topic = self._current(handle, partition)
        if topic is None or not topic.lent:
            return False
        return self.lents.takes(topic.slots[topic.next if partition < 0 else partition], size)

    def partition_count(self, handle: int) -> int | None:
        """How many partitions the topic of this handle has, if it is current and open."""
        topic = self._current(handle, -1)
        return None if topic is None else len(topic.slots)

    def _current(self, handle: int, partition: int) -> _Topic | None:
        topic = self._topic(handle)
        return topic if topic is not None and topic.open and -1 <= partition < len(topic.slots) else None

    def publish_lent(
        self, handle: int, partition: int, batch: bytearray, count: int, now: int, ticket: int, number: int
    ) -> tuple[int, bool]:
        """As publish_at, of what `takes_lent` said yes to: group `number` of the run with this ticket. Its partition, and whether it
        is written inline."""
        topic = self._topic(handle)
        assert topic is not None
        if partition < 0:
            partition = topic.next
            topic.next = partition + 1 if partition + 1 < len(topic.slots) else 0
        topic.published += count
        return partition, self.lents.append(topic.slots[partition], batch, now, ticket, number)

    def publish_at(self, handle: int, partition: int, batch: bytearray, count: int, now: int) -> int:
        """Append what `takes` said yes to, and give it the offset and the time it will have; returns its partition."""
        topic = self._topic(handle)
        assert topic is not None
        if partition < 0:
            partition, slot = topic.next, self._next_slot(handle, count)
        else:
            topic.published += count
            slot = topic.slots[partition]
        base = self.append(slot, batch, False)
        tail = self._tails[slot]
        if tail.told_time is None:
            tail.told_time = _following(now, tail.last_time)
        place(batch, base, tail.told_time)
        return partition

    def _next_slot(self, handle: int, count: int) -> int:
        topic = self._topic(handle)
        assert topic is not None
        topic.published += count
        slot = topic.slots[topic.next]
        topic.next = topic.next + 1 if topic.next + 1 < len(topic.slots) else 0
        return slot

    @property
    def dirty(self) -> bool:
        return bool(self._dirty)

    def seal(self, now: int) -> tuple[list[int], bool]:
        dirty, self._dirty = self._dirty, []
        moved: list[int] = []
        for slot in dirty:
            if self._tails[slot].pending:  # else it was closed meanwhile
                self._seal(slot, now)
                if self._tails[slot].watched:
                    moved.append(slot)
        more = (self.bytes > self._bytes_max or bool(self._doomed)) and self.trim()
        return moved, more

    def _seal(self, slot: int, now: int) -> None:
        tail = self._tails[slot]
        pending, tail.pending = tail.pending, []
        self._counts[0] += len(pending)
        now = _following(now, tail.last_time) if tail.told_time is None else tail.told_time
        tail.last_time, tail.told_time = now, None
        first = 0
        for group in merge_groups([one.batch for one in pending]):
            batch = merged(group, now)
            if batch is None:
                for one in group:
                    self._keep(slot, one, now)
            else:
                for waiter in pending[first : first + len(group)]:
                    if waiter.waits:
                        place(waiter.batch, waiter.base, now)
                self._keep(slot, batch, now)
            first += len(group)
        tail.visible = tail.end
        self.drop_older(slot, -(1 << 63))

    def _keep(self, slot: int, batch: bytearray, now: int) -> None:
        tail = self._tails[slot]
        base = tail.visible
        place(batch, base, now)
        tail.visible = base + int(_SPAN.unpack_from(batch)[0])
        self._serial += 1
        tail.kept.append(_Kept(base, self._serial, batch))
        size = len(batch) + self._object_bytes
        tail.bytes += size
        self.bytes += size
        self._counts[1] += 1
        self._counts[2] += len(batch)
        if not tail.in_order:
            tail.in_order = True
            heappush(self._order, (tail.kept[0].serial, slot))

    # -- bounds --------------------------------------------------------------------------------------------------------

    def drop_older(self, slot: int, before: int) -> bool:
        tail = self._tail(slot)
        for _ in range(self._freed_max):
            over = tail.bytes > tail.bytes_max and len(tail.kept) > 1
            if not tail.kept or not (over or tail.kept[0].max_timestamp < before):
                return False
            self._drop_oldest(tail)
        return True

    def _drop_oldest(self, tail: _Tail[View]) -> None:
        gone = tail.kept.popleft()
        size = len(gone.batch) + self._object_bytes
        tail.bytes -= size
        self.bytes -= size
        tail.start = tail.kept[0].base if tail.kept else tail.visible
        self._counts[3] += 1

    def trim(self) -> bool:
        freed = 0
        while freed < self._freed_max and self._doomed:
            gone = self._doomed[-1]
            taken = min(len(gone), self._freed_max - freed)
            for _ in range(taken):
                gone.pop()
            freed += max(taken, 1)
            if not gone:
                self._doomed.pop()
        while freed < self._freed_max and self.bytes > self._bytes_max and self._order:
            serial, slot = heappop(self._order)
            tail = self._tails[slot]
            if not tail.kept:
                tail.in_order = False
                continue
            freed += 1
            if tail.kept[0].serial == serial:
                if len(tail.kept) == 1:  # the newest batch of a topic stays
                    tail.in_order = False
                    continue
                self._drop_oldest(tail)
            heappush(self._order, (tail.kept[0].serial, slot))
        return bool(self._doomed) or freed >= self._freed_max

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, slot: int, offset: int, max_bytes: int) -> list[View]:
        tail = self._tail(slot)
        if offset >= tail.visible:
            return []
        kept, found = tail.kept, list[View]()
        for at in range(max(bisect_right(kept, offset, key=_base_of) - 1, 0), len(kept)):
            one = kept[at]
            if one.view is None:
                one.view = self._view(one.batch)
            found.append(one.view)
            max_bytes -= len(one.batch)
            if max_bytes <= 0:
                break
        return found

    def offset_at(self, slot: int, timestamp: int) -> int:
        tail = self._tail(slot)
        return next((one.base for one in tail.kept if one.max_timestamp >= timestamp), tail.visible)

    def set_watched(self, slot: int, watched: bool) -> None:
        self._tail(slot).watched = watched

    def state(self, slot: int) -> tuple[int, int, int, int]:
        tail = self._tail(slot)
        return tail.start, tail.visible, tail.end, tail.bytes

    def take_counts(self) -> tuple[int, int, int, int]:
        appends, batches, size, dropped = self._counts
        more, self.lents.counts = self.lents.counts, [0, 0, 0]
        self._counts = [0, 0, 0, 0]
        return appends + more[0], batches + more[1], size + more[2], dropped

    # -- partitions in files: the work is in pure_lent.py --------------------------------------------------------------

    def open_lent(self) -> int:
        return self.lents.open_slot()

    def close_lent(self, slot: int) -> None:
        topic = self.lents.close_slot(slot)
        if isinstance(topic, _Topic):
            topic.open = False

    def lend(self, slot: int, inline: bool, terms: Terms, link: bytes, key: bytes) -> None:
        self.lents.lend(slot, inline, terms, link, key)

    def append_lent(self, slot: int, batch: bytearray, now: int, ticket: int) -> int | None:
        view = memoryview(batch)
        if locate(view, 0, head_of(view, 0)).end != len(batch):
            raise ValueError("the bytearray must hold exactly one batch")
        view.release()
        if not 0 <= slot < len(self.lents.slots) or not self.lents.takes(slot, len(batch)):
            return None
        base = self.lents.loan(slot).end
        self.lents.append(slot, batch, now, ticket, 0)
        return base

    def extend_lent(self, slot: int, limit: int) -> None:
        if (loan := self.lents.slot(slot).loan) is not None:
            loan.limit = limit

    def lent_end(self, slot: int) -> int:
        return self.lents.loan(slot).end

    def dirty_lent(self, inline: bool) -> list[int]:
        return self.lents.dirty(inline)

    def seal_lent(
        self, inline: bool, bytes_max: int, later: int, alone: bool = False
    ) -> tuple[int, list[Place], list[int], builtins.bytes, builtins.bytes, list[int], int]:
        return self.lents.seal(inline, bytes_max, later, alone)

    def commit_lent(self, inline: bool, monotonic: int, how: int = 0) -> tuple[list[int], list[int]]:
        return self.lents.commit(inline, monotonic, how)

    def flying_lent(self, inline: bool) -> list[int]:
        return self.lents.flying(inline)

    def set_watched_lent(self, slot: int, watched: bool) -> None:
        self.lents.slot(slot).watched = watched

    def set_low_lent(self, slot: int, low_at: int) -> None:
        self.lents.loan(slot).low_at = low_at

    def lent_visible(self, slot: int) -> int:
        return self.lents.loan(slot).visible

    def catch_up_lent(self, slot: int) -> Moved | None:
        return self.lents.catch_up(slot)

    def take_moved(self) -> list[int]:
        return self.lents.take_moved()

    def take_recorded(self) -> list[int]:
        return self.lents.take_recorded()

    def take_late(self, slot: int) -> tuple[int, list[bytearray]]:
        return self.lents.take_late(slot)

    def tardy_lent(self, before: int, most: int) -> list[int]:
        return self.lents.tardy(before, most)

    @property
    def late_bytes(self) -> int:
        return self.lents.late_bytes

    def recall(
        self, slot: int
    ) -> tuple[
        list[Waiting], tuple[int, list[bytearray], list[Waiting], bool] | None, int, int, int, builtins.bytes | None
    ]:
        return self.lents.recall(slot)

    def keep_lent(self, slot: int, batch: bytearray) -> None:
        self.lents.keep(slot, batch)

    def forget_lent(self, slot: int) -> None:
        self.lents.forget(slot)

    def read_lent(self, slot: int, offset: int, max_bytes: int) -> list[View] | None:
        return self.lents.read(slot, offset, max_bytes)

    def set_lending(self, open: bool, bytes_max: int) -> None:
        self.lents.open, self.lents.bytes_max = open, bytes_max

    @property
    def lent_unsynced(self) -> int:
        return sum(self.lents.owed)

    @property
    def lent_bytes(self) -> int:
        return self.lents.bytes


def _base_of(kept: _Kept[View]) -> int:
    return kept.base


class Routes(Generic[Target]):
    def __init__(self) -> None:
        self._by_name: dict[bytes, tuple[int, Target, bool]] = {}
        self.find = self._by_name.get

    def add(self, name: bytes, handle: int, topic: Target, keeps: bool) -> None:
        if len(self._by_name) >= ROUTES_MAX and name not in self._by_name:
            self.clear()
        self._by_name[name] = (handle, topic, keeps)

    def clear(self) -> None:
        self._by_name.clear()
