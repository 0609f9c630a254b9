"""Keeps one partition as an ordered log in segment files, with group commit.

Appends of one turn become one batch; while one write and sync is under way the next ones gather, so one sync serves
everybody who waits. All state belongs to the loop thread; `Writer` (writer.py) is the part that runs elsewhere and
touches only the files. The states and what each event means in them are in states.py, reading in reading.py, syncs that
nobody waits for in syncing.py, recovery in recovery/directories.py. While nothing needs a decision the kernel does what is here up
to the writer (lendable.py); every method that decides takes it back first.

    append -> pending --(end of turn: merge, seal)--> staged chunks --(writer)--> visible, cached, waiters told
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn, cast

from quintet import kernel
from quintet.log.base import Appended, TopicSpec
from quintet.log.embedded.files.packs import PACKED_BYTES
from quintet.log.embedded.files.segment import HEADER_BYTES, Header, Index, Segment, begin_again, new_seed, pack_header
from quintet.log.embedded.partitions.lendable import LENT_ALONE_BYTES_MAX, NO_PENDING, LendablePartition
from quintet.log.embedded.partitions.links import Links, open_links
from quintet.log.embedded.partitions.merging import Pending, answer_waiters, merge_groups, place_waiters
from quintet.log.embedded.partitions.roles import Chunk, Outcome
from quintet.log.embedded.partitions.shared import Shared, TailCache
from quintet.log.embedded.partitions.states import Action, Event, Row, State, SyncEvent, row
from quintet.log.embedded.partitions.together import JOINED_BYTES_MAX
from quintet.log.embedded.partitions.writer import (
    ZERO_FILL_WRITE_BYTES_MAX,
    Writer,
    chunk_bytes,
)
from quintet.log.embedded.recovery.directories import Mark, Opened
from quintet.model import limits
from quintet.model.batch import LINK_BYTES, RecordBatch, span_of
from quintet.model.clocks import following
from quintet.model.errors import PartitionFailed, ShuttingDown, StorageError, StorageFull
from quintet.model.scheduler import call_each

STAGE_EARLY_BYTES: Final = 256 * limits.KIB  # while a write is under way, less than this waits to be merged with more
PROBE_INTERVAL_US: Final = 1_000_000  # how often a full disk is tried again
IDLE_CLOSE_US: Final = 10_000_000  # a file nobody wrote to for this long is synced and closed: handles are few
IDLE_CLOSE_OS_US: Final = 60_000_000  # of "os" topics: by then the system has written it, and the sync has little to do

# The events of a partition: what each means in every state.
_APPENDED, _APPENDED_MUCH, _TURN_ENDED = row(Event.APPENDED), row(Event.APPENDED_MUCH), row(Event.TURN_ENDED)
_CHUNKS_WAIT, _PENDING_WAITS, _OFFERED = row(Event.CHUNKS_WAIT), row(Event.PENDING_WAITS), row(Event.OFFERED)
_BEGUN, _PUT_OFF, _DONE = row(Event.BEGUN), row(Event.PUT_OFF), row(Event.DONE)
_ARM, _STAGE, _STAGE_EARLY, _WRITE = Action.ARM, Action.STAGE, Action.STAGE_EARLY, Action.WRITE
_IDLE: Final = State.IDLE
_BUSY: Final = State.OFFERED  # this state and the one above it
# Of partitions with nothing under way, as most are. It is shared, so nothing can be put into it.
_NO_CHUNKS: Final = cast(list[Chunk], ())
_WRITTEN, _WRITTEN_DURABLY = SyncEvent.WRITTEN, SyncEvent.WRITTEN_DURABLY


class FilePartition(LendablePartition):
    """See log.base.Partition for what each public method promises."""

    __slots__ = ("_extending", "_growing", "_packable", "_probed", "working")

    def __init__(self, shared: Shared, spec: TopicSpec, number: int, directory: str, opened: Opened) -> None:
        super().__init__(shared, directory, opened.segments, opened.next_offset)
        self.spec = spec
        self.topic_id = spec.id
        self.number = number
        self._end = opened.next_offset
        self._plan: Segment | None = None if opened.roll or not self.segments else self.segments[-1]
        self.links: Links = open_links(shared.chain, spec, number, opened, self, shared.heads_moved)
        if self._plan is not None and not self.links.continues(self._plan):
            self._plan = None
        self._plan_end = self._plan.end if self._plan else HEADER_BYTES
        self._inline = spec.durability != "fsync"
        self._strict = spec.is_strict
        self._packable = opened.packable
        if self.segments and not opened.roll:
            last = self.segments[-1]
            self.mark = Mark(last.base, last.end, last.next_offset)
        self._pending: list[Pending] = NO_PENDING
        self._chunks: list[Chunk] = _NO_CHUNKS
        self._failure: StorageError | ShuttingDown | None = None
        self._extending = False  # zeros are written ahead of the writer
        self._growing = False  # a write is under way that may go past what is prepared, and prepares more
        self.working = False  # retention or compaction is under way
        # Most partitions do nothing: no list until it is needed.
        self._on_idle: list[Callable[[], None]] | tuple[()] = ()
        self._last_time = self._probed = 0
        self._used = shared.upkeep.monotonic
        self._slot = -1  # in the kernel; none until a door asks for it
        self._lent = False
        self._late = None

    def _open_writer(self) -> Writer:
        if self._writer is None:
            self._writer = Writer(self._shared, self.directory, self.spec.partitions)
        return self._writer

    def renew_begun(self) -> None:
        """At the start: a last file that was made, holds nothing and has a header that the next batch does not fit gets the
        one it needs; its name is taken, so no other can be made. Raises OSError."""
        last = self.segments[-1] if self.segments else None
        if (
            last is None
            or self._plan is not None
            or not last.seed
            or last.end > HEADER_BYTES
            or last.base != self._visible
        ):
            return
        header = Header(last.seed, self.topic_id, self.number, last.base, self._shared.scheduler.now(), self.spec.name)
        begin_again(self._shared.disk, last, header._replace(chain=self.links.start()))
        self._plan = last

    # -- what the broker sees ------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        lending = self._shared.lending
        return lending.tails.lent_end(self._slot) if self._lent and lending is not None else self._end

    @property
    def failure(self) -> Exception | None:
        return self._failure

    def append(self, batch: bytearray, done: Appended | None) -> int:
        if self._failure is not None or (self._shared.low is not None and self.topic_id >= limits.TOPIC_ID_FIRST_USER):
            self._refuse()
        size = len(batch)
        if size > limits.BATCH_BYTES_MAX - LINK_BYTES:
            raise StorageError(f"a batch of {size} bytes is too large for one append", hint="split it")
        if self._lent:
            taken = self._append_lent(batch, done)
            if taken is not None:
                return taken
            if self._failure is not None:  # its file does not take what is late
                self._refuse()
        base = self._end
        self._end = base + span_of(batch)
        before = self._pending_bytes
        self._pending_bytes = before + size
        self._shared.unsynced += size
        if before:
            self._pending.append((batch, done, base))
        else:
            self._pending = [(batch, done, base)]
        if before < STAGE_EARLY_BYTES <= before + size:
            self._on(_APPENDED_MUCH)
        elif self._state is _IDLE:  # in all others it changes nothing
            self._on(_APPENDED)
        return base

    def append_read(self, batch: bytearray, done: Appended) -> int:
        lending = self._shared.lending
        if self._lent and lending is not None and self._failure is None and self._shared.low is None:
            base = lending.append_read(self._slot, self._inline, batch, done)
            if base is not None:
                return base
        elif self._slot < 0:
            _ = self.loan  # it lends itself from the next write on
        self.append(batch, done)
        return -1

    def _on(self, event: Row) -> Action:
        """Take the step that the table has for this event; arm if it says so, and leave everything else to the caller."""
        step = event[self._state]
        assert step is not None, "states.STEPS has no such step"
        action, self._state = step
        if action is _ARM:
            self._shared.committer.arm(self._stage)
        return action

    # -- staging -------------------------------------------------------------------------------------------------------

    def _stage(self) -> None:
        """End of the turn: merge what arrived, seal it, hand it to the writer."""
        action = self._on(_TURN_ENDED)
        if not self._pending:
            return
        if action is _STAGE:
            self._gather()
            self._flush()
        elif action is _STAGE_EARLY and self._pending_bytes >= STAGE_EARLY_BYTES and not self._lends_next():
            self._gather()

    def _lends_next(self) -> bool:
        """Will it lend itself with all that is pending, when what is being written is?"""
        if self._inline or self._slot < 0 or self._chunks or not self._shared.committer.is_lone:
            return False
        return self._pending_bytes <= LENT_ALONE_BYTES_MAX

    def _gather(self) -> None:
        pending, self._pending = self._pending, NO_PENDING
        self._pending_bytes = 0
        self._last_time = now = following(self._shared.scheduler.now(), self._last_time)
        self._used = self._shared.upkeep.monotonic
        self._shared.upkeep.activate(self)
        if len(pending) == 1:
            self._place(pending[0][0], pending, now)
        else:
            for group in merge_groups(pending):
                self._place_group(group, now)

    def _place_group(self, group: list[Pending], now: int) -> None:
        if len(group) > 1:
            try:
                merged = kernel.merge([batch for batch, _, _ in group], now)
            except ValueError:  # more origins than one batch can name
                merged = None
            if merged is not None:
                place_waiters(group, now)
                self._place(merged, group, now)
                return
        for item in group:
            self._place(item[0], [item], now)

    def _place(self, batch: bytearray, waiters: list[Pending], now: int) -> None:
        """Give a batch its place in a segment, planning a new segment if it does not fit into this one."""
        owed = len(batch) if len(waiters) == 1 else sum([len(item[0]) for item in waiters])
        size = len(batch) + self.links.room
        base = waiters[0][2]
        plan = self._plan
        room = PACKED_BYTES if plan is not None and plan.packed else self.spec.segment_bytes
        if plan is None or (self._plan_end + size > room and self._plan_end > HEADER_BYTES):
            plan = self._plan = Segment(self.directory, base, new_seed(self._shared.disk))
            plan.packed = self._packable and self._can_pack(plan, size)
            self._plan_end = HEADER_BYTES
            plan.chain, plan.begun = self.links.start(), now
        self.links.seal(batch, base, now, plan.seed)
        chunks = self._chunks
        if not chunks:
            chunks = self._chunks = []
        if not chunks or chunks[-1].segment is not plan or self._strict:
            chunks.append(Chunk(plan, self._plan_end, 0 if self._inline else self._shared.scheduler.monotonic()))
        chunk = chunks[-1]
        chunk.buffers.append(batch)
        chunk.waiters += waiters
        chunk.owed += owed
        self._plan_end = chunk.end = chunk.end + len(batch)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Have written what is staged, if nothing is being written."""
        chunks = self._chunks
        if not chunks:
            if self._pending:
                self._on(_PENDING_WAITS)
            return
        if self._on(_CHUNKS_WAIT) is not _WRITE:
            return
        if not self._inline:
            self._on(_OFFERED)
            self._shared.committer.offer(self)
            return
        last = self.segments[-1] if self.segments else None
        if len(chunks) == 1 and ((chunks[0].segment is last and last.handle >= 0) or self._begins_packed(chunks[0])):
            chunk = chunks[0]  # no promise but that the system has it: short enough for the loop thread
            error = self.put(chunk, True)
            if error is not None:
                self.refused(chunk, error)
                return
            self._commit(chunk, False)
            self.tell(chunk)
            if not self._lend() and self._pending:  # appended since the chunk was sealed early
                self._on(_PENDING_WAITS)
        else:
            self.write_direct()

    def write_direct(self) -> None:
        """Write what is staged and, if the topic promises it, sync it."""
        chunks = self._chunks
        last = self.segments[-1] if self.segments else None
        if not chunks or self._syncing or (self._extending and _must_wait(chunks, last)):
            self._on(_PUT_OFF)
            self._idle()
            return
        self._chunks = _NO_CHUNKS
        self._on(_BEGUN)
        self._shared.committer.flights += 1
        write = None
        if len(chunks) == 1 and not self._inline:
            write = (self._writer or self._open_writer()).durable_write(chunks[0], last)
        if write is not None:
            self._shared.scheduler.write(write, partial(self._written_and_synced, chunks))
            return
        self._growing = True
        header = Header(0, self.topic_id, self.number, 0, self._last_time, self.spec.name)
        limit = 0 if self._inline else self.spec.segment_bytes
        writer = self._open_writer()
        steps = writer.steps(chunks, last, header, not self._inline, limit)
        done = partial(self._direct_done, chunks)
        if sum([chunk.size for chunk in chunks]) > JOINED_BYTES_MAX:
            self._shared.scheduler.offload(partial(writer.run, steps), done)
        else:
            self._shared.committer.write_together(writer, steps, done)

    def _written_and_synced(self, chunks: list[Chunk], error: BaseException | None) -> None:
        if error is None:
            self._direct_done(chunks, Outcome(1, None))
        else:
            self._shared.scheduler.offload(
                partial(self._open_writer().give_up, chunks[0], error), partial(self._direct_done, chunks)
            )

    def _direct_done(self, chunks: list[Chunk], outcome: Outcome | BaseException) -> None:
        self._shared.committer.flights -= 1
        self._growing = False
        self._written(chunks, outcome)

    def _written(self, chunks: list[Chunk], outcome: Outcome | BaseException) -> None:
        self._on(_DONE)
        if isinstance(outcome, BaseException):
            outcome = Outcome(0, PartitionFailed(f"{self.directory}: the writer failed: {outcome!r}"))
        good = chunks[: outcome.written]
        for chunk in good:
            self._commit(chunk, not self._inline)
        if outcome.error is not None:
            self._fail(outcome.error, chunks[outcome.written :])
        if not self._inline:  # before the waiters are told: the disk works while the acknowledgements go out
            if self._shared.committer.is_lone:
                self._lend()
            self._flush()
            self._shared.committer.pump()
        for chunk in good:
            answer_waiters(self._shared.scheduler, chunk.waiters)
        if self._inline:
            self._flush()
        if good and good[-1].buffers:
            self._notify()
            if not self._inline:
                self._extend(good[-1].size)
        self._idle()

    # -- by way of the journal: called by the committer for a partition that offered itself ----------------------------

    def small_chunk(self, bytes_max: int) -> Chunk | None:
        """All that is waiting, if it is one small chunk within the prepared part of the segment."""
        if self._pending:
            self._gather()
        if len(self._chunks) != 1:
            return None
        chunk = self._chunks[0]
        if self._begins_packed(chunk):
            return chunk
        last = self.segments[-1] if self.segments else None
        if chunk.segment is not last or chunk.size > bytes_max or chunk.end > last.allocated:
            return None
        return chunk if last.named or last.journaled else None

    def _can_pack(self, plan: Segment, size: int) -> bool:
        """Is it the first segment, and does its first batch fit?"""
        first = not self.segments and not self._chunks
        return first and HEADER_BYTES + size <= PACKED_BYTES and self._shared.disk.can_begin(plan.path)

    @staticmethod
    def _begins_packed(chunk: Chunk) -> bool:
        return chunk.segment.packed and not chunk.segment.created

    def put(self, chunk: Chunk, here: bool) -> StorageError | None:
        """Take the chunk, open its file, and if here write it to its segment, without a sync. Otherwise who asks has it written."""
        self._chunks = [other for other in self._chunks if other is not chunk] or _NO_CHUNKS
        chunk.late = False
        if self._begins_packed(chunk):
            segment = chunk.segment
            place = (segment.seed, self.topic_id, self.number, segment.base)
            chunk.header = pack_header(Header(*place, self._last_time, self.spec.name, segment.chain))
        return (self._writer or self._open_writer()).put(chunk, here)

    def take_back(self, chunk: Chunk, error: BaseException) -> StorageError:
        """Undo `put`: its segment or the journal had no space. Called in a disk thread, while the partition waits for it."""
        return self._open_writer().recoil(chunk, error)

    def journaled(self, chunk: Chunk) -> None:
        """The chunk is durable in the journal."""
        chunk.segment.journaled |= bool(chunk.header)
        self._on(_DONE)
        self._commit(chunk, False)
        if chunk.late:
            self._owe(chunk.position, chunk.buffers)
            self.flush_late()
        if not self._lend():
            self._flush()

    def tell(self, chunk: Chunk) -> None:
        """Tell who waits for it. Raises nothing: others are told after it."""
        answer_waiters(self._shared.scheduler, chunk.waiters)
        self._notify()
        self._idle()

    def refused(self, chunk: Chunk, error: StorageError) -> None:
        """It is not durable: neither is anything behind it."""
        self._on(_DONE)
        self._fail(error, [chunk])
        self._idle()

    def _commit(self, chunk: Chunk, synced: bool) -> None:
        """What the writer made durable becomes visible. The mark follows only what is synced in the segment itself."""
        shared, segment = self._shared, chunk.segment
        if not self.segments or self.segments[-1] is not segment:
            if self.segments:  # the writer sealed it
                shared.stats["rolls"] += 1
                sealed = self.segments[-1]
                if sealed.index is not None:
                    sealed.max_timestamp = sealed.index.max_timestamp
                self._move_mark()
            self.segments.append(segment)
        if segment.index is None and segment.packed:  # as it was opened: what is before is looked for when it is read
            segment.index = Index(chunk.position)
        index, cache, position = segment.index, self.cache, chunk.position
        if cache is shared.no_cache:
            cache = self.cache = TailCache(shared)
        visible = self._visible
        for buffer in chunk.buffers:
            batch = RecordBatch(buffer)
            base = batch.base_offset
            if index is not None:
                index.add(position, base, batch.max_timestamp)
            position += batch.length
            cache.add(batch)
            visible = base + batch.span
        self._visible = segment.next_offset = visible
        segment.end = chunk.end
        self._end = max(self._end, visible)
        if chunk.buffers:
            self.links.commit(chunk.buffers[-1], visible, not self._inline)
        if self._plan is segment and self._plan_end < chunk.end:
            # It failed for something else while this was under way, and went back to before it: it goes on behind it.
            self._plan_end = chunk.end
            self.links.fall_back()
        if chunk.began:
            shared.durable.observe((shared.scheduler.monotonic() - chunk.began) / 1e6, len(chunk.waiters))
        stats = shared.stats
        stats["appends"] += len(chunk.waiters)
        stats["batches"] += len(chunk.buffers)
        stats["bytes"] += chunk.end - chunk.position
        shared.unsynced -= chunk.owed
        if synced:
            stats["fsyncs"] += 1
            self._on_sync(_WRITTEN_DURABLY)
            self._move_mark()
        else:
            self._on_sync(_WRITTEN)
            if self.spec.durability == "interval":
                shared.upkeep.sync_soon(self)

    def _extend(self, written: int) -> None:
        """Prepare more ahead of the writer before it gets there. Not beside one that is past it: zeros would be written over its records."""
        segment = self.segments[-1]
        if (
            self._extending
            or self._growing
            or self._failure is not None
            or segment.handle < 0
            or self._plan is not segment
        ):
            return
        if segment.packed:
            return
        chunk = chunk_bytes(segment.allocated, written)
        target = min(segment.allocated + chunk, self.spec.segment_bytes)
        if segment.allocated - self._plan_end >= chunk // 2 or target <= segment.allocated:
            return
        self._extending = True
        large = written >= ZERO_FILL_WRITE_BYTES_MAX
        self._shared.scheduler.offload(partial(self._open_writer().extend, segment, target, large), self._extended)

    def _extended(self, error: StorageError | BaseException | None) -> None:
        self._extending = False
        if isinstance(error, StorageError):
            self._fail(error, [])
        elif error is not None:
            self._fail(PartitionFailed(f"{self.directory}: extending failed: {error!r}"), [])
        elif self._lent and self._shared.lending is not None:
            lending = self._shared.lending
            lending.tails.extend_lent(self._slot, self._limit(self.segments[-1]))
            self._set_low(lending, self.segments[-1], self.segments[-1].end, 0)
        self._flush()
        self._idle()

    # -- failing and coming back ---------------------------------------------------------------------------------------

    def _refuse(self) -> NoReturn:
        failure = self._failure or self._shared.low
        assert failure is not None
        self._shared.stats["refused_appends"] += 1
        raise type(failure)(failure.message, hint=failure.hint)

    def _fail(self, error: StorageError, failed: list[Chunk]) -> None:
        """Everything not yet durable is refused, in order, and its offsets are given back: nothing behind it was taken."""
        if self._lent:
            self.recall()
        chunks = [*failed, *self._chunks]
        refused = [*(item for chunk in chunks for item in chunk.waiters), *self._pending]
        self._shared.unsynced -= sum([chunk.owed for chunk in chunks]) + self._pending_bytes
        self._chunks, self._pending, self._pending_bytes = _NO_CHUNKS, NO_PENDING, 0
        self.links.fall_back()
        if not isinstance(self._failure, PartitionFailed):
            self._failure = error
        self._end = self._visible
        last = self.segments[-1] if self.segments else None
        rolled = any(chunk.segment is not last for chunk in failed)  # then the last one may be sealed already
        usable = last is not None and last.next_offset == self._visible and self.links.continues(last)
        self._plan = last if usable and not rolled else None
        self._plan_end = self._plan.end if self._plan else HEADER_BYTES
        self._probed = self._shared.scheduler.monotonic()
        self._shared.stats["refused_appends"] += len(refused)
        kind = "storage_full" if isinstance(error, StorageFull) else "partition_failed"
        self._shared.report(kind, {"directory": self.directory, "error": str(error), "refused": len(refused)})
        if isinstance(error, StorageFull):
            self._shared.upkeep.probe(self)
        answer_waiters(self._shared.scheduler, refused, error)

    # -- what upkeep asks for -----------------------------------------------------------------------------------------

    def probe(self, monotonic: int) -> bool:
        """Try a full disk again if it is time for that; False if it is not, or no longer, what ails the partition."""
        if not isinstance(self._failure, StorageFull):
            return False
        if monotonic - self._probed >= PROBE_INTERVAL_US and not self._writing():
            self._probed = monotonic
            self._on(_BEGUN)
            last = self.segments[-1] if self.segments else None
            self._shared.scheduler.offload(partial(self._open_writer().probe, last), self._probe_done)
        return True

    @property
    def idle_at(self) -> int:
        """From when on the file need not be open, if nothing more comes."""
        self.catch_up()
        return self._used + (IDLE_CLOSE_OS_US if self.spec.durability == "os" else IDLE_CLOSE_US)

    def rest(self, in_a_hurry: bool) -> bool:
        """Close the file if nobody is using it. What is not synced is synced now, and closed the next time; in a hurry it
        is closed without if nothing was promised: the mark stays, and whoever moves it syncs first."""
        if self._lent:
            self.recall()
        if self.is_failed:
            return True  # it keeps what it has until the restart
        if self._failure is not None or self._occupied():
            return False
        if self._dirty and not (in_a_hurry and self._inline and self.spec.durability == "os"):
            self.sync()
            return False
        if self.segments and self.segments[-1].handle >= 0:
            self._shared.disk.close(self.segments[-1].handle)
            self.segments[-1].handle = -1
        return True

    def _probe_done(self, error: StorageError | BaseException | None) -> None:
        self._on(_DONE)
        if error is None and isinstance(self._failure, StorageFull) and self.flush_late():
            self._failure = None
            self._shared.report("storage_resumed", {"directory": self.directory})
        elif isinstance(error, PartitionFailed):
            self._fail(error, [])
        self._idle()

    @property
    def is_packed(self) -> bool:
        """Is its last segment in a pack?"""
        return bool(self.segments) and self.segments[-1].packed

    @property
    def is_failed(self) -> bool:
        """Read-only until a restart?"""
        return isinstance(self._failure, PartitionFailed)

    def _sync_ended(self, failure: StorageError | None) -> None:
        if failure is not None:
            self._fail(failure, [])
        self._flush()
        self._idle()

    # -- coming to rest ------------------------------------------------------------------------------------------------

    def _writing(self) -> bool:
        return self._state >= _BUSY or self._extending or self._syncing

    def _occupied(self) -> bool:
        return bool(self._writing() or self._chunks or self._pending or self.working)

    def _idle(self) -> None:
        if self._on_idle and not self._occupied():
            calls, self._on_idle = self._on_idle, ()
            call_each(self._shared.scheduler, calls)

    def released(self) -> None:
        """Retention or compaction let go of the partition."""
        self.working = False
        self._flush()
        self._idle()

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call once nothing of this partition is under way."""
        if self._lent:
            self.recall()
        self._on_idle = [*self._on_idle, call]
        self._flush()
        self._idle()

    def stop_appends(self) -> None:
        """The broker is stopping: take nothing more."""
        if self._lent:
            self.recall()
        if self._failure is None:
            self._failure = ShuttingDown(f"{self.directory}: the broker is stopping")

    def shut(self, done: Callable[[], None]) -> None:
        """Take nothing more, bring everything to disk, cut the preallocated tail, close the file, then done()."""
        self.stop_appends()
        self.when_idle(partial(self._shut, done))

    def _shut(self, done: Callable[[], None]) -> None:
        healthy = not isinstance(self._failure, PartitionFailed) and self.flush_late()
        self._failure = ShuttingDown(f"{self.directory}: the broker is stopping")
        segment = self.segments[-1] if self.segments else None
        self._on(_BEGUN)
        if segment is None or Writer.is_finished(segment, self._dirty):
            self._shut_done(done, healthy, None)
            return
        work = partial(self._open_writer().finish, segment, healthy, self._dirty)
        self._shared.scheduler.offload(work, partial(self._shut_done, done, healthy))

    def _shut_done(self, done: Callable[[], None], healthy: bool, error: StorageError | BaseException | None) -> None:
        self._on(_DONE)
        if error is not None:
            self._shared.report("partition_failed", {"directory": self.directory, "error": str(error), "refused": 0})
        elif healthy and self.segments:
            self._on_sync(_WRITTEN_DURABLY)
            self._move_mark()
        self._close_slot()
        done()

    def seal_active(self) -> None:
        """The next append starts a new segment, so that retention can take this one."""
        if self._lent:
            self.recall()
        if self._plan is not None and self._plan_end > HEADER_BYTES and not self._chunks and not self._pending:
            self._plan = None

    def begin_empty(self) -> bool:
        """Begin a segment behind the last one, which is past its age, although nothing is to be appended: then retention
        can take the last one, and the new one keeps the next offset. False: not now."""
        if self._lent:
            self.recall()
        if self._failure is not None or self._occupied():
            return False
        now = self._shared.scheduler.now()
        plan = self._plan = Segment(self.directory, self._visible, new_seed(self._shared.disk))
        plan.chain, plan.begun, self._plan_end = self.links.start(), now, HEADER_BYTES
        self._on(_BEGUN)
        self._shared.upkeep.activate(self)
        chunks = [Chunk(plan, HEADER_BYTES)]
        header = Header(0, self.topic_id, self.number, 0, now, self.spec.name)
        work = partial(self._open_writer().write, chunks, self.segments[-1], header, True, 0)
        self._shared.committer.flights += 1
        self._shared.scheduler.offload(work, partial(self._direct_done, chunks))
        return True

    def adopt(self, batches: list[RecordBatch], following: int) -> None:
        """Write out what a memory partition held, at its offsets, and go on from there. Raises StorageError: then this
        partition is of no use and the memory one goes on."""
        self._end = self._visible = following
        if not following:
            return
        self._packable = False
        base = batches[0].base_offset if batches else following
        plan = Segment(self.directory, base, new_seed(self._shared.disk))
        plan.chain = self.links.start()
        chunk = Chunk(plan, HEADER_BYTES)
        for batch in batches:
            buffer = bytearray(batch.buffer)
            self.links.seal(buffer, batch.base_offset, batch.timestamp, plan.seed)
            chunk.buffers.append(buffer)
            chunk.end += len(buffer)
        now = self._shared.scheduler.now()
        header = Header(0, self.topic_id, self.number, 0, now, self.spec.name)
        outcome = self._open_writer().write([chunk], None, header, True, 0)
        if outcome.error is not None:
            raise outcome.error
        self._commit(chunk, True)
        self._plan, self._plan_end = plan, plan.end


def _must_wait(chunks: list[Chunk], last: Segment | None) -> bool:
    """Zeros are being written behind `allocated`: nobody else may write there or change segments meanwhile."""
    return last is None or chunks[-1].segment is not last or chunks[-1].end > last.allocated
