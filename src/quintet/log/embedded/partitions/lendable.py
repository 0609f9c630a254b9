"""Lends a partition in files to the kernel, and takes it back: the part of FilePartition that the lending (lending.py) talks to.

While it is lent the kernel has its end, its place in the segment, its head link and what is pending; everything else stays here.
`visible` is the kernel's, and exact at any time. The segment, its index, the links and the sync state follow when somebody asks for them (`catch_up`):
moving them for every record of the journal was a quarter of what it cost. Whoever needs what the kernel has calls `recall` first. A
partition is lent only while its state is IDLE and it has nothing staged.

What the journal made durable may be late in the segment itself: `flush_late` writes it. Whoever reads or syncs the file, or says where
it is, calls that first. If the file refuses, the partition fails and keeps what it owes the file, and gives it to readers; it is not synced
before it has that, so its journal stays, and the next start puts it there.
"""

from collections.abc import Callable
from typing import Final, cast

from quintet.log.base import Appended, TopicSpec
from quintet.log.embedded.files.segment import Segment
from quintet.log.embedded.partitions.lending import Lendable, Lending
from quintet.log.embedded.partitions.merging import Pending
from quintet.log.embedded.partitions.reading import Unwritten
from quintet.log.embedded.partitions.roles import Chunk, Maintained
from quintet.log.embedded.partitions.shared import TailCache
from quintet.log.embedded.partitions.states import Action, Event, State, SyncState, row
from quintet.log.embedded.partitions.states import Row as Steps
from quintet.log.embedded.partitions.syncing import SyncedPartition
from quintet.log.embedded.partitions.writer import chunk_bytes
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import ShuttingDown, StorageError

LENT_PENDING_BYTES_MAX: Final = 16 * limits.KIB  # more is staged here: a record of the journal would not take it
LENT_ALONE_BYTES_MAX: Final = 512 * limits.KIB  # the same of one that is written by itself: half of what a loan takes
HANDED_BATCHES_MAX: Final = 64  # of the tail cache, to the kernel's: what readers behind want next
LENT_BYTES_MIN: Final = 1_024  # with less room in the segment the next append would come back

_OFFERED, _PENDING_WAITS = row(Event.OFFERED), row(Event.PENDING_WAITS)
NO_PENDING: Final = cast(list[Pending], ())  # of most partitions. It is shared, so nothing can be put into it
_CLEAN, _DIRTY, _SYNCING, _SYNCING_DIRTY = SyncState
Late = tuple[int, list[bytearray]]


class LentCache(TailCache):
    """The newest batches of a partition that has a slot: the kernel keeps them, whether it is lent or not."""

    __slots__ = ("_lending", "_slot")

    def __init__(self, lending: Lending, slot: int) -> None:
        self._lending = lending
        self._slot = slot

    def add(self, batch: RecordBatch) -> None:
        assert isinstance(batch.buffer, bytearray)
        self._lending.tails.keep_lent(self._slot, batch.buffer)

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        return self._lending.tails.read_lent(self._slot, offset, max_bytes)

    def clear(self) -> None:
        self._lending.tails.forget_lent(self._slot)


class LendablePartition(SyncedPartition):
    """What it asks of the partition it is part of: the fields below, `_on` and `_extend`."""

    __slots__ = (
        "_chunks", "_end", "_failure", "_inline", "_last_time", "_late", "_lent", "_on_idle", "_pending", "_plan", "_plan_end", "_slot",
        "_strict", "_used", "spec",
    )  # fmt: skip
    _chunks: list[Chunk]
    _end: int
    _failure: StorageError | ShuttingDown | None
    _inline: bool
    _last_time: int
    _late: Late | None  # committed and not in the file: where, and the batches
    _lent: bool
    _on_idle: list[Callable[[], None]] | tuple[()]
    _pending: list[Pending]
    _plan: Segment | None
    _plan_end: int
    _slot: int
    _strict: bool
    _used: int
    spec: TopicSpec

    def _on(self, event: Steps) -> Action:
        """Take the step that the table has for this event."""
        raise NotImplementedError

    def _extend(self, written: int) -> None:
        """Prepare more of the segment ahead of the writer, whose last write had so many bytes."""
        raise NotImplementedError

    @property
    def is_lent(self) -> bool:
        return self._lent

    @property
    def visible(self) -> int:
        lending = self._shared.lending
        return lending.tails.lent_visible(self._slot) if self._lent and lending is not None else self._visible

    def watch(self, call: Callable[[], None]) -> None:
        super().watch(call)
        self._set_watched()

    def unwatch(self, call: Callable[[], None]) -> None:
        super().unwatch(call)
        self._set_watched()

    def _set_watched(self) -> None:
        if self._slot >= 0 and self._shared.lending is not None:
            self._shared.lending.tails.set_watched_lent(self._slot, bool(self._watchers))

    @property
    def tail(self) -> int | None:
        return None

    @property
    def loan(self) -> int | None:
        """Its slot; asked for, it gets one. Not of tables, whose batches are synced one by one, nor of what fails or stops."""
        lending = self._shared.lending
        if self._slot < 0 and lending is not None and not self._strict and self._failure is None:
            self._slot = lending.open(cast(Lendable, self))
            newest = self.cache.newest_batches(HANDED_BATCHES_MAX)
            self.cache.clear()
            self.cache = LentCache(lending, self._slot)
            for batch in newest:
                self.cache.add(batch)
            self._set_watched()
        return self._slot if self._slot >= 0 else None

    def _lend(self) -> bool:
        """Let the kernel append, if nothing stands against it, and hand it what is pending. True: it has that."""
        slot, segment, lending = self._slot, self._plan, self._shared.lending
        if slot < 0 or self._lent or lending is None or segment is None or self._state > State.ARMED:
            return False
        if self._chunks or self._failure is not None or self._on_idle or self._shared.low is not None:
            return False
        if segment.packed or segment.handle < 0 or not self.segments or self.segments[-1] is not segment:
            return False
        if not self._inline and not (segment.named or segment.journaled):
            return False
        limit = self._limit(segment)
        size = self._pending_bytes + self.links.room
        if limit - self._plan_end - size < LENT_BYTES_MIN or size > self._lent_pending_max:
            return False
        pending, end = self._pending, self._end
        place = (self.topic_id, self.number, segment.base, segment.seed, segment.handle)
        terms = (*place, self._plan_end, limit, pending[0][2] if pending else end, self._last_time)
        lending.tails.lend(slot, self._inline, terms, *self.links.lent)
        self._lent = True
        if self.spec.durability == "interval":
            lending.tails.set_low_lent(slot, 0)  # the first record says that a sync is wanted
        else:
            self._set_low(lending, segment, self._plan_end, 0)
        self._shared.unsynced -= self._pending_bytes
        self._pending_bytes, self._pending = 0, NO_PENDING
        self._state = State.IDLE  # if it was armed: the end of the turn finds nothing here
        for number, (batch, done, base) in enumerate(pending):
            given = lending.append(slot, self._inline, batch, done)
            if given is None:  # too much is pending elsewhere
                self.recall()
                self._pending = [*self._pending, *pending[number:]]
                more = sum([len(batch) for batch, _, _ in pending[number:]])
                self._pending_bytes += more
                self._shared.unsynced += more
                self._end = end
                self._on(_PENDING_WAITS)
                return False
            assert given == base, "it gets the offset that it has"
        return True

    @property
    def _lent_pending_max(self) -> int:
        alone = self._inline or self._shared.committer.is_lone
        return LENT_ALONE_BYTES_MAX if alone else LENT_PENDING_BYTES_MAX

    def _limit(self, segment: Segment) -> int:
        """How far it may be written: what promises a sync stays within the prepared part."""
        most = self.spec.segment_bytes
        return most if self._inline else min(segment.allocated, most)

    def _set_low(self, lending: Lending, segment: Segment, end: int, written: int) -> None:
        """From where on it catches up at once: the index gets an entry, or more is prepared."""
        low_at = end + limits.INDEX_EVERY_BYTES
        if not self._inline:
            low_at = max(min(segment.allocated - chunk_bytes(segment.allocated, written) // 2, low_at), 0)
        lending.tails.set_low_lent(self._slot, low_at)

    def _append_lent(self, batch: bytearray, done: Appended | None) -> int | None:
        """Append by way of the kernel; None if that does not take it: then it is recalled."""
        lending = self._shared.lending
        assert lending is not None
        base = lending.append(self._slot, self._inline, batch, done)
        if base is None:
            self.recall()
        return base

    def _fail(self, error: StorageError, failed: list[Chunk]) -> None:
        """Refuse everything that is not durable."""
        raise NotImplementedError

    def flush_late(self) -> bool:
        """Catch up, and write to the segment what is late. False: it refused, and the partition failed for it."""
        self.catch_up()
        if self._lent and self._shared.lending is not None:
            self._owe(*self._shared.lending.tails.take_late(self._slot))
        error = self._write_owed()
        if error is not None and self._failure is None:
            if self._lent:
                self._give_back()
            self._fail(self._open_writer().late_refused(self.segments[-1], error), [])
        return error is None

    def unwritten(self) -> Unwritten | None:
        return None if self._late is None else (self._late[0], [RecordBatch(buffer) for buffer in self._late[1]])

    def _owe(self, position: int, buffers: list[bytearray]) -> None:
        if buffers:
            self._late = (position, buffers) if self._late is None else (self._late[0], [*self._late[1], *buffers])

    def _write_owed(self) -> OSError | None:
        if self._late is not None:
            position, buffers = self._late
            error = self.write_now(self.segments[-1].handle, buffers, position)
            owing = self._shared.lending.owing if self._shared.lending is not None else set[object]()
            if error is not None:
                owing.add(self)
                return error
            self._late = None
            owing.discard(self)
        return None

    def recall(self) -> None:
        """Take back what was lent, and go on as if what is not durable had been appended and staged here."""
        self.flush_late()
        if self._lent:
            self._give_back()

    def _give_back(self) -> None:
        lending = self._shared.lending
        assert lending is not None
        self._lent = False
        waiting, flight, self._plan_end, self._end, self._last_time, link = lending.tails.recall(self._slot)
        if link is not None:
            self.links.resume(link)
        if waiting:
            self._pending = lending.with_waiters(waiting)
            self._pending_bytes = sum([len(batch) for batch, _, _ in self._pending])
            self._shared.unsynced += self._pending_bytes
        if flight is not None:
            assert self._plan is not None
            position, buffers, waiting, placed = flight
            chunk = Chunk(self._plan, position, 0 if self._inline else self._shared.scheduler.monotonic())
            chunk.buffers = buffers
            chunk.late = not placed
            chunk.end = position + sum(map(len, buffers))
            chunk.waiters = lending.with_waiters(waiting)
            chunk.owed = sum([len(batch) for batch, _, _ in chunk.waiters])
            self._shared.unsynced += chunk.owed
            self._on(_OFFERED)
            lending.recalled(self._slot, self._inline, chunk)
        elif self._pending:
            self._on(_PENDING_WAITS)

    def restage(self, chunk: Chunk) -> None:
        """What the kernel sealed was not written: it is the first that is."""
        self._chunks = [chunk, *self._chunks]

    def write_now(self, handle: int, buffers: list[bytearray], position: int) -> OSError | None:
        """Write what was sealed for this partition to its segment, without a sync; why that was refused."""
        try:
            self._shared.disk.pwritev(handle, buffers, position)
        except OSError as error:
            return error
        return None

    @property
    def syncs_itself(self) -> bool:
        """May the kernel's batches be made durable by a sync of the segment alone? Its name must be durable, and no sync under way."""
        return self._sync_state < _SYNCING and self.segments[-1].named

    def count_sync(self) -> bool:
        """What was sealed for this partition is in its segment, and that is synced. Does the mark move by it?"""
        if self._sync_state >= _SYNCING:  # one that began meanwhile: it ends before the mark moves
            return False
        self._shared.stats["fsyncs"] += 1
        if self._shared.lending is not None:
            self._shared.lending.marked.add(cast(Lendable, self))
        return True

    def sync_if_due(self, monotonic: int) -> bool:
        """It catches up while it is asked; the first record after that does so at once."""
        more = super().sync_if_due(monotonic)
        if not more and self._lent and self._shared.lending is not None:
            self._shared.lending.tails.set_low_lent(self._slot, 0)
        return more

    def catch_up(self) -> None:
        """Move the segment, its index, the links and the sync state to where `visible` is."""
        lending = self._shared.lending
        moved = lending.tails.catch_up_lent(self._slot) if self._lent and lending is not None else None
        if moved is None or lending is None:
            return
        position, base, newest, end, visible, link, synced = moved
        segment = self.segments[-1]
        self._visible = segment.next_offset = visible
        segment.end = end
        if segment.index is not None:
            segment.index.add(position, base, newest)
        written = end - position - limits.INDEX_EVERY_BYTES  # so much of it at least was one write
        self._set_low(lending, segment, end, written)
        if link is not None:
            self.links.commit_link(link, visible, not self._inline)
        self._used = self._shared.upkeep.monotonic
        state = self._sync_state
        if synced and state < _SYNCING:
            self._sync_state = _CLEAN
            self._move_mark()
        elif state is _CLEAN or state is _SYNCING:
            self._sync_state = _DIRTY if state is _CLEAN else _SYNCING_DIRTY
        if self._inline:
            segment.allocated = max(segment.allocated, end)
            if self.spec.durability == "interval":
                self._shared.upkeep.sync_soon(cast(Maintained, self))
        elif segment.allocated - end < chunk_bytes(segment.allocated, written) // 2:
            self._plan_end = end
            self._extend(written)

    def notify(self) -> None:
        self._notify()

    def _close_slot(self) -> None:
        if self._slot >= 0 and self._shared.lending is not None:
            self._shared.lending.close(self._slot)
            self._slot, self.cache = -1, self._shared.no_cache
