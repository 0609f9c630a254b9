"""Retention and compaction: the two ways a sealed segment goes away or gets smaller.

Retention removes whole sealed segments, oldest first. Compaction writes a new file beside the old ones, makes it
durable, and renames it over the first of them: at every moment there is one complete file under each name. Both run
off the loop thread and never touch the active segment.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from quintet import kernel
from quintet.log.embedded.disk import Disk
from quintet.log.embedded.partition import FilePartition
from quintet.log.embedded.segment import (
    HEADER_BYTES,
    Header,
    Index,
    Run,
    Segment,
    index_name,
    load_index,
    build_index,
    new_seed,
    pack_header,
    scan,
    segment_name,
    write_index,
)
from quintet.log.embedded.shared import Shared

COMPACT_BYTES_MAX: Final = 512 * 1024 * 1024  # of sealed segments per pass: compaction is for tables, not for archives


def maintain(shared: Shared, partition: FilePartition, now: int) -> None:
    """Start what is due, one thing at a time."""
    spec = partition.spec
    if partition.working or not partition.segments:
        return
    if spec.retention_us:
        last = partition.segments[-1]
        if last.index is not None and last.index.times and last.index.max_timestamp < now - spec.retention_us:
            partition.seal_active()
    sealed = partition.segments[:-1]
    if not sealed:
        return
    if spec.retention_us or spec.retention_bytes:
        unknown = [segment for segment in sealed if segment.max_timestamp < 0] if spec.retention_us else []
        partition.working = True
        shared.scheduler.offload(
            partial(_times, shared.disk, unknown), partial(_retain, shared, partition, now)
        )
    elif spec.compact and _worth_compacting(sealed):
        partition.working = True
        dropped_before = now - spec.tombstone_us
        work = partial(compact, shared.disk, partition, sealed, dropped_before)
        shared.scheduler.offload(work, partial(_compacted, shared, partition))


# -- retention --------------------------------------------------------------------------------------------------------


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
    for segment, index in result:
        segment.max_timestamp = index.max_timestamp
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
    if not doomed:
        partition.released()
        return
    del partition.segments[: len(doomed)]
    shared.stats["segments_deleted"] += len(doomed)
    shared.scheduler.offload(partial(_unlink, shared.disk, doomed), partial(_unlinked, shared, partition))


def _unlink(disk: Disk, segments: list[Segment]) -> None:
    for segment in segments:
        names = disk.listdir(segment.directory)
        for name in (index_name(segment.base), segment_name(segment.base)):
            if name in names:
                disk.unlink(f"{segment.directory}/{name}")
    disk.fsync_dir(segments[0].directory)


def _unlinked(shared: Shared, partition: FilePartition, result: BaseException | None) -> None:
    if result is not None:
        shared.report("retention_failed", {"directory": partition.directory, "error": str(result)})
    partition.released()


# -- compaction -------------------------------------------------------------------------------------------------------


def _worth_compacting(sealed: list[Segment]) -> bool:
    """At least as much has been added since the last pass as a quarter of what that pass left."""
    fresh = sum(segment.end for segment in sealed if not segment.compacted)
    old = sum(segment.end for segment in sealed if segment.compacted)
    return fresh > 0 and fresh * 4 >= old and fresh + old <= COMPACT_BYTES_MAX


@dataclass(slots=True)
class Compacted:
    """The files as they are now: each replaces `replaced` old ones."""

    groups: list[tuple[Segment, list[Segment]]] = field(default_factory=list)
    untouched: list[Segment] = field(default_factory=list)


def compact(disk: Disk, partition: FilePartition, sealed: list[Segment], tombstones_before: int) -> Compacted:
    """Keep the latest record of every key. Segments with damage stay as they are: they are evidence."""
    sound: list[Segment] = []
    result = Compacted()
    latest: dict[bytes, int] = {}
    for segment in sealed:
        if _survey(disk, segment, latest):
            sound.append(segment)
        else:
            result.untouched.append(segment)
    for group in _groups(sealed, sound, partition.spec.segment_bytes):
        made = _rewrite(disk, partition, group, latest, tombstones_before)
        result.groups.append((made, group))
    return result


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
                for row in kernel.rows(batch, 0, int.from_bytes(batch[24:28], "little")):
                    if row[2] is not None:
                        latest[row[2]] = max(row[0], latest.get(row[2], -1))
    finally:
        disk.close(handle)
    return True


def _groups(sealed: list[Segment], sound: list[Segment], limit: int) -> list[list[Segment]]:
    """Neighbours that surely fit into one file."""
    groups: list[list[Segment]] = []
    wanted = set(map(id, sound))
    room = 0
    for segment in sealed:
        if id(segment) not in wanted:
            room = 0
        elif segment.end <= room:
            groups[-1].append(segment)
            room -= segment.end
        else:
            groups.append([segment])
            room = limit - segment.end
    return groups


def _rewrite(
    disk: Disk, partition: FilePartition, group: list[Segment], latest: dict[bytes, int], tombstones_before: int
) -> Segment:
    """One new file for a group, under the name of its first segment."""
    made = Segment(partition.directory, group[0].base, new_seed())
    made.created = made.compacted = True
    made.next_offset = group[-1].next_offset
    header = Header(made.seed, partition.topic_id, partition.number, made.base, 0, partition.spec.name)
    temporary = f"{made.path}.tmp"
    if disk.read_file(temporary) is not None:
        disk.unlink(temporary)
    handle = disk.open(temporary, create=True, write=True)
    index = Index()
    try:
        disk.pwritev(handle, [pack_header(header)], 0)
        reached = made.base
        for segment in group:
            reached = _copy(disk, handle, segment, made, index, latest, tombstones_before, reached)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    made.index, made.max_timestamp, made.allocated = index, index.max_timestamp, made.end
    disk.rename(temporary, made.path)
    disk.fsync_dir(made.directory)
    if len(group) > 1:
        _unlink(disk, group[1:])
    write_index(disk, made, index)
    return made


def _copy(
    disk: Disk,
    target: int,
    segment: Segment,
    made: Segment,
    index: Index,
    latest: dict[bytes, int],
    tombstones_before: int,
    reached: int,
) -> int:
    """Copy what is kept of one segment, from offset `reached` on (a crash within an earlier pass can have left files that
    overlap). Its very last record always stays: it carries the offset the next file starts at."""
    source = disk.open(segment.path)
    try:
        for part in scan(disk, source, segment.seed, HEADER_BYTES, segment.end, segment.base):
            if not isinstance(part, Run):
                raise OSError(f"{segment.path}: damaged while it was compacted")
            for position, length, base, span, time in part.entries:
                if base < reached:
                    continue
                reached = base + span
                batch = part.data[position : position + length]
                rows = kernel.rows(batch, 0, int.from_bytes(batch[24:28], "little"))
                keep = [
                    number
                    for number, row in enumerate(rows)
                    if row[2] is None
                    or (latest[row[2]] == row[0] and not (row[3] is None and row[1] < tombstones_before))
                ]
                if base + span >= segment.next_offset and (not keep or keep[-1] != len(rows) - 1):
                    keep.append(len(rows) - 1)
                kept = kernel.select(batch, keep)
                if kept is None:
                    continue
                kernel.reseal(kept, made.seed)
                disk.pwritev(target, [kept], made.end)
                index.add(made.end, base, time)
                made.end += len(kept)
    finally:
        disk.close(source)
    return reached


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
    shared.stats["compactions"] += 1
    partition.released()
