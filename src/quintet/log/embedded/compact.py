"""Removes old sealed segments (retention) and rewrites them without superseded records (compaction).

Retention removes whole sealed segments, oldest first. Compaction writes a new file beside the old ones, makes it
durable, and renames it over the first of them: at every moment there is one complete file under each name. Both run
off the loop thread and never touch the active segment.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from quintet import kernel
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.segment import (
    BY_COMPACTION,
    HEADER_BYTES,
    Header,
    Index,
    Run,
    Segment,
    adopt_index,
    build_index,
    index_name,
    load_index,
    new_seed,
    pack_header,
    scan,
    segment_name,
    write_index,
)
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.shared import Shared
from quintet.log.embedded.recovery.directories import segment_bases
from quintet.model.batch import RecordBatch, Row, set_span
from quintet.model.errors import StorageError

AGING_JOBS_MAX: Final = 2  # of four disk threads: appends do not wait behind thousands of idle partitions
ROLLS_PER_RETENTION: Final = 4  # a segment takes records for this share of their age: none stays much longer than that
ROLL_US_MIN: Final = 60_000_000
COMPACT_BYTES_MAX: Final = 8 << 30  # of sealed segments per pass: compaction is for tables and caches, not for archives


def maintain(shared: Shared, partition: FilePartition, now: int) -> None:
    """Start what is due, one thing at a time."""
    spec = partition.spec
    if partition.working or not partition.segments:
        return
    if spec.retention_us and _age(shared, partition, now, spec.retention_us):
        return
    sealed = partition.segments[:-1]
    if not sealed:
        return
    if spec.retention_us or spec.retention_bytes:
        unknown = [segment for segment in sealed if segment.max_timestamp < 0] if spec.retention_us else []
        partition.working = True
        if unknown:
            shared.scheduler.offload(partial(_times, shared.disk, unknown), partial(_retain, shared, partition, now))
        else:
            _retain(shared, partition, now, [])
    if spec.compact and not partition.working and _worth_compacting(sealed):
        partition.working = True
        dropped_before = now - spec.tombstone_us
        work = partial(compact, shared.disk, partition, sealed, dropped_before, now)
        shared.scheduler.offload(work, partial(_compacted, shared, partition))


# -- retention --------------------------------------------------------------------------------------------------------


def _age(shared: Shared, partition: FilePartition, now: int, retention_us: int) -> bool:
    """Retention takes sealed segments only. One that is no longer young takes no further appends; if all in the last one is past
    its age, an empty one is begun behind it. Whether the partition is occupied with that."""
    partition.catch_up()
    last, horizon = partition.segments[-1], now - retention_us
    if last.begun and last.begun < now - max(retention_us // ROLLS_PER_RETENTION, ROLL_US_MIN):
        partition.seal_active()
    if last.end <= HEADER_BYTES or last.seed == 0 or last.begun >= horizon or shared.aging >= AGING_JOBS_MAX:
        return False
    if last.index is None or not last.index.times:  # nothing was written to it since the start
        partition.working = True
        work = partial(_time_of_last, shared.disk, last, last.end)
        shared.scheduler.offload(work, partial(_last_timed, shared, partition, last, last.end))
    elif last.index.max_timestamp >= horizon or not partition.begin_empty():
        return False
    shared.aging += 1
    partition.when_idle(partial(_aged, shared))
    return True


def _aged(shared: Shared) -> None:
    shared.aging -= 1


def _time_of_last(disk: Disk, segment: Segment, stop: int) -> Index:
    handle = disk.open(segment.path)
    try:
        return build_index(disk, handle, segment, stop)
    finally:
        disk.close(handle)


def _last_timed(
    shared: Shared, partition: FilePartition, segment: Segment, stop: int, result: Index | BaseException
) -> None:
    if isinstance(result, BaseException):
        shared.report("retention_failed", {"directory": partition.directory, "error": str(result)})
    else:
        if not result.times:  # nothing in it is sound: it is looked at, and taken, when something follows it
            result.add(HEADER_BYTES, segment.base, shared.scheduler.now())
        adopt_index(segment, result, stop)
    partition.released()


def _times(disk: Disk, segments: list[Segment]) -> list[tuple[Segment, Index]]:
    """The newest time in segments whose index is not in memory."""
    found: list[tuple[Segment, Index]] = []
    for segment in segments:
        index = load_index(disk, segment, segment.end)
        if index is None and segment.seed != 0:
            handle = disk.open(segment.path)
            try:
                index = build_index(disk, handle, segment, segment.end)
            finally:
                disk.close(handle)
        found.append((segment, index or Index()))
    return found


def _retain(
    shared: Shared, partition: FilePartition, now: int, result: list[tuple[Segment, Index]] | BaseException
) -> None:
    if isinstance(result, BaseException):
        shared.report("retention_failed", {"directory": partition.directory, "error": str(result)})
        partition.released()
        return
    for segment, index in result:  # nothing in it is sound: nobody knows how old it is, so its age begins now
        segment.max_timestamp = index.max_timestamp if index.times else now
    spec = partition.spec
    size = partition.size
    doomed: list[Segment] = []
    for segment in partition.segments[:-1]:
        expired = spec.retention_us and segment.max_timestamp < now - spec.retention_us
        excess = spec.retention_bytes and size - segment.end >= spec.retention_bytes
        if not expired and not excess:
            break
        size -= segment.end
        doomed.append(segment)
    if doomed:
        remove_segments(shared, partition, doomed)
    else:
        partition.released()


def purge(shared: Shared, partition: FilePartition, done: Callable[[Exception | None], None]) -> None:
    """Remove every sealed segment, after an empty one was begun behind the last; done(error) when they are gone for good."""
    if partition.failure is not None:
        done(partition.failure)
    elif partition.start >= partition.visible:
        done(None)
    elif (
        partition.working
        or (partition.segments[-1].end > HEADER_BYTES and not partition.begin_empty())
        or partition.segments[-1].end > HEADER_BYTES
    ):
        partition.when_idle(partial(purge, shared, partition, done))
    else:
        partition.working = True
        partition.cache.clear()
        remove_segments(shared, partition, partition.segments[:-1], done)


def remove_segments(
    shared: Shared,
    partition: FilePartition,
    doomed: list[Segment],
    done: Callable[[Exception | None], None] | None = None,
) -> None:
    del partition.segments[: len(doomed)]  # from here on nobody is told of them, whatever is still on disk
    work = partial(_unlink, shared.disk, doomed)
    remove = partial(shared.scheduler.offload, work, partial(_unlinked, shared, partition, doomed, done))
    if partition.links.room:
        shared.before_removal(partition.topic_id, partition.number, partition.segments[0].base, remove)
    else:
        remove()


def _unlink(disk: Disk, segments: list[Segment]) -> tuple[int, OSError | None]:
    """Remove segments, the oldest first and each durably before the next, so that no hole can be left in the log."""
    for number, segment in enumerate(segments):
        names = disk.listdir(segment.directory)
        try:
            for name in (index_name(segment.base), segment_name(segment.base)):
                if name in names:
                    disk.unlink(f"{segment.directory}/{name}")
            disk.fsync_dir(segment.directory)
        except OSError as error:
            return number, error
    return len(segments), None


def _unlinked(
    shared: Shared,
    partition: FilePartition,
    doomed: list[Segment],
    done: Callable[[Exception | None], None] | None,
    result: tuple[int, OSError | None] | BaseException,
) -> None:
    removed, error = (0, result) if isinstance(result, BaseException) else result
    partition.segments[:0] = doomed[removed:]  # the disk refused: they are still there, and the next start finds them
    shared.stats["segments_deleted"] += removed
    if error is not None:
        shared.report("retention_failed", {"directory": partition.directory, "error": str(error)})
    partition.released()
    if done is not None:
        done(None if error is None else StorageError(f"{partition.directory}: cannot be emptied: {error}"))


# -- compaction -------------------------------------------------------------------------------------------------------


def _worth_compacting(sealed: list[Segment]) -> bool:
    """At least as much has been added since the last pass as a quarter of what that pass left."""
    fresh = sum(segment.end for segment in sealed if not segment.compacted)
    old = sum(segment.end for segment in sealed if segment.compacted)
    return fresh > 0 and fresh * 4 >= old and fresh + old <= COMPACT_BYTES_MAX


class Compacted(msgspec.Struct):
    """The files as they are now: each replaces `replaced` old ones."""

    groups: list[tuple[Segment, list[Segment]]] = msgspec.field(default_factory=list)
    untouched: list[Segment] = msgspec.field(default_factory=list)
    error: OSError | None = None  # why it went no further


def compact(disk: Disk, partition: FilePartition, sealed: list[Segment], tombstones_before: int, now: int) -> Compacted:
    """Keep the latest record of every key, unless it has expired. Segments with damage stay as they are: they are
    evidence."""
    sound: list[Segment] = []
    result = Compacted()
    latest: dict[bytes, int] = {}
    result.error = _clear(disk, partition.directory, sealed)
    if result.error is not None:
        return result
    for segment in sealed:
        if _survey(disk, segment, latest):
            sound.append(segment)
        else:
            result.untouched.append(segment)
    if result.untouched:
        # What a tombstone, or a record that has expired, is in place of may be in a file that is left alone.
        tombstones_before, now = -1, -1
    try:
        for group in _runs(sealed, sound):
            _rewrite(disk, partition, group, latest, (tombstones_before, now), result)
    except OSError as error:
        result.error = error
    return result


def _clear(disk: Disk, directory: str, sealed: list[Segment]) -> OSError | None:
    """Remove what an earlier pass could not. Its content is elsewhere; but were it there at the next start, without the
    tombstones that this pass lets go, what they deleted would be back."""
    known = {segment.base for segment in sealed}
    end = sealed[-1].next_offset
    left = [Segment(directory, base, 0) for base in segment_bases(disk, directory) if base < end and base not in known]
    return _unlink(disk, left)[1]


def _runs(sealed: list[Segment], sound: list[Segment]) -> list[list[Segment]]:
    """Neighbours without a damaged one between them."""
    runs: list[list[Segment]] = [[]]
    for segment in sealed:
        if segment in sound:
            runs[-1].append(segment)
        else:
            runs.append([])
    return runs


def _rewrite(
    disk: Disk,
    partition: FilePartition,
    segments: list[Segment],
    latest: dict[bytes, int],
    times: tuple[int, int],
    result: Compacted,
) -> None:
    """Neighbours into as few files as fit."""
    writer: _Rewriter | None = None
    for number, segment in enumerate(segments):
        if writer is None:
            writer = _Rewriter(disk, partition, segment, latest, times)
        writer.copy(segment)
        last = number == len(segments) - 1
        if last or (
            writer.made.end >= partition.spec.segment_bytes // 2 and segments[number + 1].base >= writer.reached
        ):
            writer.finish()
            result.groups.append((writer.made, writer.group))
            writer = None


def _survey(disk: Disk, segment: Segment, latest: dict[bytes, int]) -> bool:
    """Note the newest offset of each key; False if the segment does not check out."""
    if segment.seed == 0:
        return False
    handle = disk.open(segment.path)
    try:
        for part in scan(disk, handle, segment.seed, HEADER_BYTES, segment.end, segment.base):
            if not isinstance(part, Run):
                return False
            for position, length, _, _, _ in part.entries:
                batch = part.data[position : position + length]
                for offset, _, key, _, _, _, _ in kernel.rows(batch, 0, RecordBatch(batch).count):
                    if key is not None:
                        latest[key] = max(offset, latest.get(key, -1))
    finally:
        disk.close(handle)
    return True


class _Rewriter:
    """Neighbouring segments into one new file, under the name of the first of them."""

    def __init__(
        self, disk: Disk, partition: FilePartition, first: Segment, latest: dict[bytes, int], times: tuple[int, int]
    ) -> None:
        self._disk = disk
        self._latest = latest
        self._tombstones_before, self._now = times
        self.reached = first.base
        self._held: bytearray | None = None
        self._newest: bytes | None = None
        self._index = Index()
        self.group: list[Segment] = []
        self.made = made = Segment(partition.directory, first.base, new_seed(disk))
        made.created = made.compacted = True
        header = Header(made.seed, partition.topic_id, partition.number, made.base, BY_COMPACTION, partition.spec.name)
        self._temporary = f"{made.path}.tmp"
        if disk.read_file(self._temporary) is not None:
            disk.unlink(self._temporary)
        self._handle = disk.open(self._temporary, create=True, write=True)
        disk.pwritev(self._handle, [pack_header(header)], 0)

    def copy(self, segment: Segment) -> None:
        """Copy what is kept of one segment. Files can overlap after a crash within an earlier pass: what was copied is
        not copied again."""
        self.group.append(segment)
        disk = self._disk
        source = disk.open(segment.path)
        try:
            for part in scan(disk, source, segment.seed, HEADER_BYTES, segment.end, segment.base):
                if not isinstance(part, Run):
                    raise OSError(f"{segment.path}: damaged while it was compacted")
                for position, length, base, span, _ in part.entries:
                    if base >= self.reached:
                        self.reached = base + span
                        self._copy_batch(bytes(part.data[position : position + length]))
        finally:
            disk.close(source)
        self.made.next_offset = max(segment.next_offset, self.reached)

    def _copy_batch(self, batch: bytes) -> None:
        rows = kernel.rows(batch, 0, RecordBatch(batch).count)
        keep = [number for number, row in enumerate(rows) if self._keeps(row)]
        kept = kernel.select(batch, keep)
        self._newest = batch
        if kept is not None:
            self._write_held()
            self._held = kept

    def _write_held(self) -> None:
        """One batch is held back: the last one of the file must reach up to where the next file starts."""
        if self._held is None:
            return
        made, kept = self.made, self._held
        kernel.reseal(kept, made.seed)
        batch = RecordBatch(kept)
        self._disk.pwritev(self._handle, [kept], made.end)
        self._index.add(made.end, batch.base_offset, batch.max_timestamp)
        made.end += len(kept)
        self._held = None

    def _keeps(self, row: Row) -> bool:
        offset, time, key, value, _, expiry, _ = row
        if key is None:
            return True
        if self._latest[key] != offset:
            return False
        return time >= self._tombstones_before if value is None else not 0 < expiry <= self._now

    def finish(self) -> None:
        """Durable beside the old files, then in the place of the first; the others are contained in it and go."""
        disk, made = self._disk, self.made
        if self._held is None and self._newest is not None:
            # Nothing is left. The newest record stays to carry the offsets: nothing that was deleted comes back by it,
            # for it is a tombstone, or what overrides it is still there.
            self._held = kernel.select(self._newest, [RecordBatch(self._newest).count - 1])
        if self._held is not None:
            set_span(self._held, made.next_offset - RecordBatch(self._held).base_offset)
        self._write_held()
        disk.fdatasync(self._handle)
        disk.close(self._handle)
        disk.rename(self._temporary, made.path)
        disk.fsync_dir(made.directory)
        made.index, made.max_timestamp, made.allocated = self._index, self._index.max_timestamp, made.end
        _unlink(disk, self.group[1:])  # one that stays is harmless: what it holds is in the new file too
        try:
            write_index(disk, made, self._index, made.end, made.next_offset)
        except OSError:
            return  # it is made again when it is needed


def _compacted(shared: Shared, partition: FilePartition, result: Compacted | BaseException) -> None:
    if isinstance(result, BaseException):
        shared.report("compaction_failed", {"directory": partition.directory, "error": str(result)})
        partition.released()
        return
    for made, group in result.groups:
        first = partition.segments.index(group[0])
        partition.segments[first : first + len(group)] = [made]
    for segment in result.untouched:
        segment.compacted = True
    if result.error is not None:
        shared.report("compaction_failed", {"directory": partition.directory, "error": str(result.error)})
    shared.stats["compactions"] += 1
    partition.released()
