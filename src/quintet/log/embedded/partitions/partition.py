"""Keeps one partition as an ordered log in segment files, with group commit.

Appends of one turn become one batch; while one write and sync is under way the next ones gather, so one sync serves
everybody who waits. All state belongs to the loop thread; `_Writer` (writer.py) is the part that runs elsewhere and
touches only the files. Reading is in reader.py, recovery in recovery/directories.py.

    append -> pending --(end of turn: merge, seal)--> staged chunks --(writer)--> visible, cached, waiters told
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final, NoReturn

from quintet import kernel
from quintet.log.base import Appended, Fetched, SegmentFile, TopicSpec
from quintet.log.embedded.files import reader
from quintet.log.embedded.files.segment import HEADER_BYTES, Header, Segment, adopt_index, begin_again, new_seed
from quintet.log.embedded.partitions.links import open_links
from quintet.log.embedded.partitions.merging import Pending, answer_waiters, merge_groups, place_waiters
from quintet.log.embedded.partitions.roles import Chunk
from quintet.log.embedded.partitions.shared import Shared, TailCache
from quintet.log.embedded.partitions.writer import ZERO_FILL_WRITE_BYTES_MAX, Outcome, Writer
from quintet.log.embedded.recovery.directories import Mark, Opened
from quintet.model import limits
from quintet.model.batch import LINK_BYTES, RecordBatch, span_of
from quintet.model.clocks import following
from quintet.model.errors import CorruptData, PartitionFailed, ShuttingDown, StorageError, StorageFull
from quintet.model.scheduler import call_each

STAGE_EARLY_BYTES: Final = 256 * limits.KIB  # while a write is under way, less than this waits to be merged with more
SYNC_INTERVAL_US: Final = 100_000  # of "interval" topics
PROBE_INTERVAL_US: Final = 1_000_000  # how often a full disk is tried again
IDLE_CLOSE_US: Final = 10_000_000  # a file nobody wrote to for this long is synced and closed: handles are few
IDLE_CLOSE_OS_US: Final = 60_000_000  # of "os" topics: by then the system has written it, and the sync has little to do
READ_NOW_BYTES: Final = 4 * limits.MIB


class FilePartition:
    """See log.base.Partition for what each public method promises."""

    __slots__ = (
        "_armed", "_busy", "_chunks", "_closed", "_dirty", "_end", "_extending", "_failure", "_last_sync", "_last_time",
        "_on_idle", "_pending", "_pending_bytes", "_plan", "_plan_end", "_probed", "_shared", "_syncing", "_used", "_visible",
        "_offered", "_watchers", "_writer", "cache", "directory", "mark", "number", "segments", "spec", "topic_id", "working",
        "_inline", "_active", "_strict", "links",
    )  # fmt: skip

    def __init__(self, shared: Shared, spec: TopicSpec, number: int, directory: str, opened: Opened) -> None:
        self._shared = shared
        self.spec = spec
        self.topic_id = spec.id
        self.number = number
        self.directory = directory
        self.segments = opened.segments
        self.cache = TailCache(shared)
        self._end = self._visible = opened.next_offset
        self._plan: Segment | None = None if opened.roll or not self.segments else self.segments[-1]
        self.links = open_links(shared.chain, spec, number, opened, partial(shared.heads_moved.add, self))
        if self._plan is not None and not self.links.continues(self._plan):
            self._plan = None
        self._plan_end = self._plan.end if self._plan else HEADER_BYTES
        self._writer = Writer(shared, directory, spec.partitions)
        self._inline = spec.durability != "fsync"
        self._strict = spec.is_strict
        self.mark: Mark | None = None
        if self.segments and not opened.roll:
            last = self.segments[-1]
            self.mark = Mark(last.base, last.end, last.next_offset)
        self._pending: list[Pending] = []
        self._pending_bytes = 0
        self._chunks: list[Chunk] = []
        self._watchers: list[Callable[[], None]] = []
        self._failure: StorageError | ShuttingDown | None = None
        self._armed = self._busy = self._extending = self._syncing = self._dirty = self._closed = False
        self._offered = False  # to the committer: waiting for it, or in a record of the journal
        self._active = False  # in shared.active: looked after by maintain
        self.working = False  # retention or compaction is under way
        self._on_idle: list[Callable[[], None]] = []
        self._last_time = self._last_sync = self._probed = 0
        self._used = shared.upkeep.monotonic

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
    def tail(self) -> int | None:
        return None

    @property
    def start(self) -> int:
        return self.segments[0].base if self.segments else self._visible

    @property
    def visible(self) -> int:
        return self._visible

    @property
    def end(self) -> int:
        return self._end

    @property
    def failure(self) -> Exception | None:
        return self._failure

    @property
    def size(self) -> int:
        """Bytes of batches kept on disk."""
        return sum(segment.end for segment in self.segments)

    def append(self, batch: bytearray, done: Appended | None) -> int:
        if self._failure is not None or (self._shared.low is not None and self.topic_id >= limits.TOPIC_ID_FIRST_USER):
            self._refuse()
        size = len(batch)
        if size > limits.BATCH_BYTES_MAX - LINK_BYTES:
            raise StorageError(f"a batch of {size} bytes is too large for one append", hint="split it")
        base = self._end
        self._end = base + span_of(batch)
        self._pending_bytes += size
        self._shared.unsynced += size
        self._pending.append((batch, done, base))
        if not self._armed:
            self._armed = True
            self._shared.committer.arm(self._stage)
        return base

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        if offset >= self._visible:
            return []
        return self.cache.read(offset, max_bytes)

    def fetch(self, offset: int, max_bytes: int, done: Fetched) -> None:
        offset = max(offset, self.start)
        if offset >= self._visible:
            self._shared.scheduler.soon(partial(done, [], None))
            return
        self._shared.stats["fetches"] += 1
        first = max(bisect_right(self.segments, offset, key=_base_of) - 1, 0)
        shared = self._shared
        if max_bytes <= reader.WARM_BYTES_MAX:
            view = reader.View(self.segments[first])
            batches = reader.read_warm(shared.disk, shared.read_buffers, view, offset, max_bytes)
            if batches:
                shared.scheduler.soon(partial(done, batches, None))
                return
        views = [reader.View(segment) for segment in self.segments[first:]]
        work = partial(reader.read, shared.disk, shared.read_buffers, views, offset, max_bytes)
        shared.scheduler.offload(work, partial(self._fetched, done))

    def read_now(self, offset: int) -> list[RecordBatch]:
        offset = max(offset, self.start)
        first = max(bisect_right(self.segments, offset, key=_base_of) - 1, 0)
        views = [reader.View(segment) for segment in self.segments[first:]]
        found: list[RecordBatch] = []
        try:
            result = reader.read(self._shared.disk, self._shared.read_buffers, views, offset, READ_NOW_BYTES)
        except OSError as error:
            raise CorruptData(f"{self.directory}: cannot be read: {error.strerror or error}") from error
        self._fetched(lambda batches, _: found.extend(batches), result)
        return found

    def files(self, first: int, last: int) -> list[SegmentFile]:
        found = []
        last = min(last, self._visible)
        for segment in self.segments[max(bisect_right(self.segments, first, key=_base_of) - 1, 0) :]:
            if segment.base >= last or first >= last:
                break
            if segment.next_offset > first:
                place = segment.index.place(first) if segment.index is not None else None
                position = place[1] if place is not None else HEADER_BYTES
                path = os.path.abspath(segment.path)
                found.append(SegmentFile(path, segment.seed, position, segment.base, segment.next_offset))
        return found

    def bytes_from(self, offset: int) -> int:
        total = self._pending_bytes
        for segment in reversed(self.segments):
            if segment.base <= offset:
                span = max(segment.next_offset - segment.base, 1)
                return total + segment.end * max(segment.next_offset - offset, 0) // span
            total += segment.end
        return total

    def offset_at(self, timestamp: int) -> int:
        for segment in self.segments:
            if 0 <= segment.max_timestamp < timestamp:
                continue
            index = segment.index
            if index is None or index.first > HEADER_BYTES:
                return segment.base
            found = index.offset_at(timestamp)
            if found is not None:
                return found
        return self._visible

    def watch(self, call: Callable[[], None]) -> None:
        self._watchers.append(call)

    def unwatch(self, call: Callable[[], None]) -> None:
        if call in self._watchers:
            self._watchers.remove(call)

    # -- staging -------------------------------------------------------------------------------------------------------

    def _stage(self) -> None:
        """End of the turn: merge what arrived, seal it, hand it to the writer."""
        self._armed = False
        if not self._pending or (self._busy and self._pending_bytes < STAGE_EARLY_BYTES):
            return
        self._gather()
        self._flush()

    def _gather(self) -> None:
        pending, self._pending = self._pending, []
        self._pending_bytes = 0
        self._last_time = now = following(self._shared.scheduler.now(), self._last_time)
        self._used = self._shared.upkeep.monotonic
        if not self._active:
            self._active = True
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
        if plan is None or (self._plan_end + size > self.spec.segment_bytes and self._plan_end > HEADER_BYTES):
            plan = self._plan = Segment(self.directory, base, new_seed(self._shared.disk))
            self._plan_end = HEADER_BYTES
            plan.chain, plan.begun = self.links.start(), now
        self.links.seal(batch, base, now, plan.seed)
        chunks = self._chunks
        if not chunks or chunks[-1].segment is not plan or self._strict:
            chunks.append(Chunk(plan, self._plan_end))
        chunk = chunks[-1]
        chunk.buffers.append(batch)
        chunk.waiters += waiters
        chunk.owed += owed
        self._plan_end = chunk.end = chunk.end + len(batch)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._busy:
            return
        chunks = self._chunks
        if not chunks:
            if self._pending and not self._armed:
                self._armed = True
                self._shared.committer.arm(self._stage)
            return
        if not self._inline:
            self._busy = self._offered = True
            self._shared.committer.offer(self)
            return
        last = self.segments[-1] if self.segments else None
        if len(chunks) == 1 and chunks[0].segment is last and last.handle >= 0:
            self._write_now(chunks[0])
        else:
            self.write_direct()

    def _write_now(self, chunk: Chunk) -> None:
        """Into an open file, with no promise but that the system has it: short enough for the loop thread."""
        error = self.put(chunk)
        if error is None:
            self._commit(chunk, False)
            self.tell(chunk)
        else:
            self.refused(chunk, error)

    def write_direct(self) -> None:
        """Write what is staged and, if the topic promises it, sync it, in a disk thread."""
        self._busy = self._offered = False
        chunks = self._chunks
        last = self.segments[-1] if self.segments else None
        if not chunks or self._syncing or (self._extending and self._must_wait(chunks, last)):
            self._idle()
            return
        self._chunks = []
        self._busy = True
        header = Header(0, self.topic_id, self.number, 0, self._last_time, self.spec.name)
        limit = 0 if self._inline else self.spec.segment_bytes
        work = partial(self._writer.write, chunks, last, header, not self._inline, limit)
        self._shared.committer.flights += 1
        self._shared.scheduler.offload(work, partial(self._direct_done, chunks))

    def _direct_done(self, chunks: list[Chunk], outcome: Outcome | BaseException) -> None:
        self._shared.committer.flights -= 1
        self._written(chunks, outcome)

    @staticmethod
    def _must_wait(chunks: list[Chunk], last: Segment | None) -> bool:
        """Zeros are being written behind `allocated`: nobody else may write there or change segments meanwhile."""
        return last is None or chunks[-1].segment is not last or chunks[-1].end > last.allocated

    def _written(self, chunks: list[Chunk], outcome: Outcome | BaseException) -> None:
        self._busy = False
        if isinstance(outcome, BaseException):
            outcome = Outcome(0, PartitionFailed(f"{self.directory}: the writer failed: {outcome!r}"))
        good = chunks[: outcome.written]
        for chunk in good:
            self._commit(chunk, not self._inline)
        if outcome.error is not None:
            self._fail(outcome.error, chunks[outcome.written :])
        if not self._inline:  # before the waiters are told: the disk works while the acknowledgements go out
            self._flush()
            self._shared.committer.pump()
        for chunk in good:
            answer_waiters(self._shared.scheduler, chunk.waiters)
        if self._inline:
            self._flush()
        if good and good[-1].buffers:
            self._notify()
            if not self._inline and not self._closed and good[-1].size < ZERO_FILL_WRITE_BYTES_MAX:
                self._extend()
        self._idle()

    # -- by way of the journal: called by the committer for a partition that offered itself ----------------------------

    def small_chunk(self, bytes_max: int) -> Chunk | None:
        """All that is waiting, if it is one small chunk within the prepared part of the segment."""
        if self._pending:
            self._gather()
        if len(self._chunks) != 1:
            return None
        chunk = self._chunks[0]
        last = self.segments[-1] if self.segments else None
        if chunk.segment is not last or not last.named or chunk.size > bytes_max or chunk.end > last.allocated:
            return None
        return chunk

    def put(self, chunk: Chunk) -> StorageError | None:
        """Write the chunk to its segment, without a sync."""
        self._chunks = []
        return self._writer.put(chunk)

    def take_back(self, chunk: Chunk, error: OSError) -> StorageError:
        """Undo `put`: the journal had no space. Called in a disk thread, while the partition waits for it."""
        return self._writer.recoil(chunk, error)

    def journaled(self, chunk: Chunk) -> None:
        """The chunk is durable in the journal."""
        self._busy = self._offered = False
        self._commit(chunk, False)
        if self._pending:
            self._flush()

    def tell(self, chunk: Chunk) -> None:
        """Tell who waits for it."""
        answer_waiters(self._shared.scheduler, chunk.waiters)
        self._notify()
        self._idle()

    def refused(self, chunk: Chunk, error: StorageError) -> None:
        """It is not durable: neither is anything behind it."""
        self._busy = self._offered = False
        self._fail(error, [chunk])
        self._idle()

    def is_synced(self, offset: int) -> bool:
        """Is everything below offset durable in the segments themselves?"""
        return self.mark is not None and self.mark.next_offset >= offset

    def _commit(self, chunk: Chunk, synced: bool) -> None:
        """What the writer made durable becomes visible. The mark follows only what is synced in the segment itself."""
        shared, segment = self._shared, chunk.segment
        if not self.segments or self.segments[-1] is not segment:
            if self.segments:
                self._sealed(self.segments[-1])
            self.segments.append(segment)
        index, cache, position = segment.index, self.cache, chunk.position
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
        stats = shared.stats
        stats["appends"] += len(chunk.waiters)
        stats["batches"] += len(chunk.buffers)
        stats["bytes"] += chunk.end - chunk.position
        shared.unsynced -= chunk.owed
        if synced:
            stats["fsyncs"] += 1
            self._dirty = False
            self._move_mark()
        else:
            self._dirty = True
            if self.spec.durability == "interval":
                shared.upkeep.sync_soon(self)

    def _sealed(self, segment: Segment) -> None:
        self._shared.stats["rolls"] += 1
        if segment.index is not None:
            segment.max_timestamp = segment.index.max_timestamp
        self._move_mark()

    def _move_mark(self) -> None:
        segment = self.segments[-1]
        self.mark = Mark(segment.base, segment.end, segment.next_offset)
        self._shared.marks_moved.add(self)
        self.links.mark_durable(segment.next_offset)

    def _notify(self) -> None:
        if self._watchers:
            call_each(self._shared.scheduler, tuple(self._watchers))

    def _extend(self) -> None:
        """Zero-fill ahead of the writer before it gets there."""
        segment = self.segments[-1]
        if self._extending or self._failure is not None or segment.handle < 0 or self._plan is not segment:
            return
        chunk = self._writer.chunk_bytes(segment.allocated)
        target = min(segment.allocated + chunk, self.spec.segment_bytes)
        if segment.allocated - self._plan_end >= chunk // 2 or target <= segment.allocated:
            return
        self._extending = True
        self._shared.scheduler.offload(partial(self._writer.extend, segment, target), self._extended)

    def _extended(self, error: StorageError | BaseException | None) -> None:
        self._extending = False
        if isinstance(error, StorageError):
            self._fail(error, [])
        elif error is not None:
            self._fail(PartitionFailed(f"{self.directory}: extending failed: {error!r}"), [])
        self._flush()
        self._idle()

    # -- failing and coming back ---------------------------------------------------------------------------------------

    def _refuse(self) -> NoReturn:
        failure = self._failure or self._shared.low
        assert failure is not None
        self._shared.stats["refused_appends"] += 1
        raise type(failure)(str(failure), hint=failure.hint)

    def _fail(self, error: StorageError, failed: list[Chunk]) -> None:
        """Everything not yet durable is refused, in order, and its offsets are given back: nothing behind it was taken."""
        chunks = [*failed, *self._chunks]
        refused = [item for chunk in chunks for item in chunk.waiters] + self._pending
        self._shared.unsynced -= sum([chunk.owed for chunk in chunks]) + self._pending_bytes
        self._chunks, self._pending, self._pending_bytes = [], [], 0
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
            self._busy = True
            last = self.segments[-1] if self.segments else None
            self._shared.scheduler.offload(partial(self._writer.probe, last), self._probe_done)
        return True

    def sync_if_due(self, monotonic: int) -> bool:
        """The syncs of "interval" topics; False when there is nothing left to sync."""
        if self._dirty and monotonic - self._last_sync >= SYNC_INTERVAL_US:
            self._last_sync = monotonic
            self.sync()
        return self._dirty and not self.is_failed

    @property
    def idle_at(self) -> int:
        """From when on the file need not be open, if nothing more comes."""
        return self._used + (IDLE_CLOSE_OS_US if self.spec.durability == "os" else IDLE_CLOSE_US)

    def rest(self, in_a_hurry: bool) -> bool:
        """Close the file if nobody is using it. What is not synced is synced now, and closed the next time; in a hurry it
        is closed without if nothing was promised: the mark stays, and whoever moves it syncs first."""
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
        self._active = False
        return True

    def _probe_done(self, error: StorageError | BaseException | None) -> None:
        self._busy = False
        if error is None and isinstance(self._failure, StorageFull):
            self._failure = None
            self._shared.report("storage_resumed", {"directory": self.directory})
        elif isinstance(error, PartitionFailed):
            self._fail(error, [])
        self._idle()

    def sync(self) -> None:
        """Make what was written durable, without anybody waiting for it."""
        begun = self.begin_sync()
        if begun is not None:
            writer, segment, mark = begun
            self._shared.scheduler.offload(partial(writer.sync, segment), partial(self.synced, mark))

    def begin_sync(self) -> tuple[Writer, Segment, Mark] | None:
        """What to sync, and the mark once it is; None if there is nothing to sync or not now. `synced` must follow."""
        if self._syncing or not self._dirty or (self._busy and not self._offered) or self.is_failed:
            return None
        segment = self.segments[-1]
        if segment.handle < 0:
            return None
        self._syncing, self._dirty = True, False
        self.links.begin_sync()
        return self._writer, segment, Mark(segment.base, segment.end, segment.next_offset)

    @property
    def is_failed(self) -> bool:
        """Read-only until a restart?"""
        return isinstance(self._failure, PartitionFailed)

    def synced(self, mark: Mark, error: StorageError | BaseException | None) -> None:
        self._syncing = False
        if error is None:
            self._shared.stats["fsyncs"] += 1
            self.mark = mark
            self._shared.marks_moved.add(self)
            self.links.mark_durable(mark.next_offset)
        else:
            failure = error if isinstance(error, StorageError) else PartitionFailed(f"{self.directory}: {error!r}")
            self._fail(failure, [])
        self._flush()
        self._idle()

    # -- reading -------------------------------------------------------------------------------------------------------

    def _fetched(self, done: Fetched, result: reader.Found | BaseException) -> None:
        if isinstance(result, BaseException):
            done([], CorruptData(f"{self.directory}: cannot be read: {result}"))
            return
        for segment, index, stop in result.indexes:
            adopt_index(segment, index, stop)
        if result.damages:
            self._shared.quarantine(result.damages)
        done(result.batches, None)

    # -- coming to rest ------------------------------------------------------------------------------------------------

    def _writing(self) -> bool:
        return self._busy or self._extending or self._syncing

    def _occupied(self) -> bool:
        return bool(self._writing() or self._chunks or self._pending or self.working)

    def _idle(self) -> None:
        if self._on_idle and not self._occupied():
            calls, self._on_idle = self._on_idle, []
            call_each(self._shared.scheduler, calls)

    def released(self) -> None:
        """Retention or compaction let go of the partition."""
        self.working = False
        self._flush()
        self._idle()

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call once nothing of this partition is under way."""
        self._on_idle.append(call)
        if self._pending and not self._armed:
            self._stage()
        self._idle()

    def shut(self, done: Callable[[], None]) -> None:
        """Take nothing more, bring everything to disk, cut the preallocated tail, close the file, then done()."""
        self._closed = True
        if self._failure is None:
            self._failure = ShuttingDown(f"{self.directory}: the broker is stopping")
        self.when_idle(partial(self._shut, done))

    def _shut(self, done: Callable[[], None]) -> None:
        healthy = not isinstance(self._failure, PartitionFailed)
        self._failure = ShuttingDown(f"{self.directory}: the broker is stopping")
        segment = self.segments[-1] if self.segments else None
        self._busy = True
        work = partial(self._writer.finish, segment, healthy, self._dirty)
        self._shared.scheduler.offload(work, partial(self._shut_done, done, healthy))

    def _shut_done(self, done: Callable[[], None], healthy: bool, error: StorageError | BaseException | None) -> None:
        self._busy = False
        if error is not None:
            self._shared.report("partition_failed", {"directory": self.directory, "error": str(error), "refused": 0})
        elif healthy and self.segments:
            self._dirty = False
            self._move_mark()
        done()

    def seal_active(self) -> None:
        """The next append starts a new segment, so that retention can take this one."""
        if self._plan is not None and self._plan_end > HEADER_BYTES and not self._chunks and not self._pending:
            self._plan = None

    def begin_empty(self) -> bool:
        """Begin a segment behind the last one, which is past its age, although nothing is to be appended: then retention
        can take the last one, and the new one keeps the next offset. False: not now."""
        if self._failure is not None or self._occupied():
            return False
        now = self._shared.scheduler.now()
        plan = self._plan = Segment(self.directory, self._visible, new_seed(self._shared.disk))
        plan.chain, plan.begun, self._plan_end = self.links.start(), now, HEADER_BYTES
        self._busy = self._active = True
        self._shared.upkeep.activate(self)
        chunks = [Chunk(plan, HEADER_BYTES)]
        header = Header(0, self.topic_id, self.number, 0, now, self.spec.name)
        work = partial(self._writer.write, chunks, self.segments[-1], header, True, 0)
        self._shared.committer.flights += 1
        self._shared.scheduler.offload(work, partial(self._direct_done, chunks))
        return True

    def adopt(self, batches: list[RecordBatch], following: int) -> None:
        """Write out what a memory partition held, at its offsets, and go on from there. Raises StorageError: then this
        partition is of no use and the memory one goes on."""
        self._end = self._visible = following
        if not following:
            return
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
        outcome = self._writer.write([chunk], None, header, True, 0)
        if outcome.error is not None:
            raise outcome.error
        self._commit(chunk, True)
        self._plan, self._plan_end = plan, plan.end


def _base_of(segment: Segment) -> int:
    return segment.base
