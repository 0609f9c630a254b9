"""Recovers a partition's directory at start, and makes the few changes that recovery may make in it.

docs/LOG_FORMAT.md section 6 in code. Below the durable mark nothing is read. Only two things are ever removed: bytes
behind the last sound batch of the last segment, at or above the mark, with nothing sound behind them (a torn tail), and
a segment file whose creation never finished. Everything else that does not check out is reported and left alone. In a topic
that is written one batch at a time (`strict`, ADR 15) a tail is torn only if something of it is missing.

In a log that another one can fill again (`refilled`: a node of a cell, ADR 39) the last segment ends at its first unsound byte above the mark:
what is behind was not synced, and comes again with what is missing.
"""

import itertools
from functools import lru_cache
from typing import NamedTuple

import msgspec

from quintet import kernel
from quintet.log.base import TopicFiles
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.packs import PACKED_BYTES, PackDisk, is_blank, is_packed, with_packs
from quintet.log.embedded.files.segment import (
    BY_COMPACTION,
    HEADER_BYTES,
    ChainStart,
    Damage,
    Gap,
    Index,
    Owner,
    Run,
    Segment,
    all_zero,
    continuous,
    misplaced,
    parse_header,
    salvage_seed,
    scan,
    segment_name,
)
from quintet.log.embedded.files.torn import claimed_span, is_torn
from quintet.model import limits
from quintet.model.batch import BATCH_MAGIC, LINK_BYTES, RecordBatch
from quintet.model.errors import DataDirError


class Mark(NamedTuple):
    """Everything below `position` of the segment, and all segments before it, was fsynced."""

    segment: int
    position: int
    next_offset: int


class Opened(msgspec.Struct):
    """What was found. `segments` are in order; the last one takes appends unless `roll` says a new one must."""

    segments: list[Segment] = msgspec.field(default_factory=list)
    next_offset: int = 0
    damages: list[Damage] = msgspec.field(default_factory=list)
    torn: list[dict[str, object]] = msgspec.field(default_factory=list)
    roll: bool = False
    link: bytes = b""  # of the last batch, if the last segment is chained
    sound_end: int = 0  # of the last segment: where its last sound batch ends
    packable: bool = False  # there is nothing yet, and the first segment may be packed


def partitions(disk: Disk, directory: str) -> list[tuple[int, int, str]]:
    """(topic_id, partition, path) of everything in a data directory that has files."""
    topics, disk = f"{directory}/topics", with_packs(disk)
    return [
        (int(topic), int(number), f"{topics}/{topic}/{number}")
        for topic in disk.listdir(topics)
        if topic.isdecimal()
        for number in disk.listdir(f"{topics}/{topic}")
        if number.isdecimal()
    ]


def segment_bases(disk: Disk, directory: str) -> list[int]:
    return [
        int(name[:-4]) for name in disk.listdir(directory) if name.endswith(".seg") and name[:-4].isdecimal()
    ]  # sorted: the names have a fixed width


def topic_files(disk: Disk, topic: str) -> TopicFiles | None:
    """What a topic's directory says of itself, by the first header that checks out; None: no segment has anything in it."""
    numbers = [number for number in disk.listdir(topic) if number.isdecimal()]
    found = None
    for number in numbers:
        for base in segment_bases(disk, f"{topic}/{number}"):
            handle = disk.open(f"{topic}/{number}/{segment_name(base)}")
            try:
                header = parse_header(disk.pread(handle, HEADER_BYTES, 0))
                if header is None and _is_blank(disk, handle):
                    continue  # a topic that was never synced and is deleted may leave this when the power goes
            except ValueError:  # a newer format
                header = None
            finally:
                disk.close(handle)
            found = TopicFiles("" if header is None else header.name, len(numbers))
            if found.name:
                return found
    return found


def _is_blank(disk: Disk, handle: int) -> bool:
    """Is there nothing but zeros in this file?"""
    size = disk.size(handle)
    return not any(any(disk.pread(handle, limits.MIB, position)) for position in range(0, size, limits.MIB))


def open_partition(
    disk: Disk,
    directory: str,
    mark: Mark | None,
    owner: Owner,
    *,
    durable: bool,
    strict: bool,
    floor: int,
    refilled: bool = False,
) -> Opened:
    """Open what is there, mend a torn tail, and say what is damaged. durable: all that is there was synced already. strict:
    it is written one batch at a time. floor: offsets below it were given, whatever else is found. refilled: what is cut off comes
    again."""
    opened = Opened()
    _remove_leftovers(disk, directory)
    bases = segment_bases(disk, directory)
    for number, base in enumerate(bases):
        last = number == len(bases) - 1
        segment = _open_segment(disk, directory, base, last, mark, owner, opened, refilled)
        if segment is not None:
            opened.segments.append(segment)
    segments = opened.segments
    for segment, following in itertools.pairwise(segments):
        segment.next_offset = following.base
    expected: int | None = None
    for number, segment in enumerate(segments):
        last = number == len(segments) - 1
        if mark is not None and segment.base < mark.segment and not last:
            continue
        expected = _scan_segment(disk, segment, last, mark, strict, opened, refilled)
    if segments and not durable and expected is not None:
        _make_durable(disk, segments[-1], mark)
    _decide_end(directory, segments, expected, max(mark.next_offset if mark is not None else 0, floor), opened)
    if segments and segments[-1].chain.kind:
        opened.link = _last_link(disk, segments[-1], opened.sound_end)
    return opened


def open_packed(
    disk: PackDisk, root: str, directory: str, mark: Mark | None, owner: Owner, floor: int
) -> Opened | None:
    """As open_partition, for one that has no directory, so that at most there is a packed segment, and if all that was
    written to the packs is durable. None if anything in it is unusual."""
    pack, start = disk.pack_with(root, owner.topic_id, owner.partition)
    stop = min(start + PACKED_BYTES, len(pack))
    if mark is not None and not mark.segment and mark.next_offset >= floor and start < stop:
        raw = owner.name.encode()
        found = kernel.segment_head(pack, start, stop, mark.position, owner.topic_id, owner.partition, raw)
        if found is not None:  # as it was left: so are nearly all
            seed, created, kind, key_id, link = found
            segment = _packed(directory, seed, _same_kind(kind, key_id), created)
            segment.end, segment.next_offset = mark.position, mark.next_offset
            return Opened([segment], mark.next_offset, link=link, sound_end=mark.position)
    return _open_unusual(pack[start:stop], directory, mark, owner, floor)


def _open_unusual(data: bytes, directory: str, mark: Mark | None, owner: Owner, floor: int) -> Opened | None:
    """data: the room of a packed segment that has more than its mark says, or less."""
    if is_blank(data):
        return Opened(packable=True) if mark is None and not floor else None
    try:
        header = parse_header(data)
    except ValueError:
        return None
    if header is None or header.base or misplaced(header, owner):
        return None
    segment = _packed(directory, header.seed, _same_kind(header.chain.kind, header.chain.key_id), header.created)
    end, next_offset = HEADER_BYTES, 0
    if mark is not None:
        end, next_offset = mark.position, mark.next_offset
        if mark.segment or end > len(data):
            return None
    if any(data[end : end + 1]):
        entries, taken, _ = kernel.walk(data, end, len(data), header.seed, True)
        entries, next_offset, broken = continuous(data, entries, next_offset)
        if broken is not None:
            return None
        end = taken
    if not all_zero(data[end:]) or next_offset < floor:
        return None
    segment.end, segment.next_offset = end, next_offset
    link = b""
    if header.chain.kind:
        link = data[end - LINK_BYTES : end] if end >= HEADER_BYTES + LINK_BYTES else header.chain.link
    return Opened([segment], next_offset, link=link, sound_end=end)


@lru_cache(maxsize=16)
def _same_kind(kind: int, key_id: int) -> ChainStart:
    """One object for all segments of a kind."""
    return ChainStart(kind, key_id)


def _packed(directory: str, seed: int, chain: ChainStart, created: int) -> Segment:
    """chain: without the link before the first batch, which only the header needs."""
    segment = Segment(directory, 0, seed, None)
    segment.created = segment.named = segment.packed = True
    segment.chain, segment.begun = chain, created
    segment.allocated = PACKED_BYTES
    return segment


def _last_link(disk: Disk, segment: Segment, end: int) -> bytes:
    """What the chain goes on from: a chained batch ends with its link, so nothing has to be read below the mark."""
    if end < HEADER_BYTES + LINK_BYTES:
        return segment.chain.link
    handle = disk.open(segment.path)
    try:
        return disk.pread(handle, LINK_BYTES, end - LINK_BYTES)
    finally:
        disk.close(handle)


def _remove_leftovers(disk: Disk, directory: str) -> None:
    """Temporary files of a write that never finished."""
    leftovers = [name for name in disk.listdir(directory) if name.endswith(".tmp")]
    for name in leftovers:
        disk.unlink(f"{directory}/{name}")
    if leftovers:
        disk.fsync_dir(directory)


def _open_segment(
    disk: Disk, directory: str, base: int, last: bool, mark: Mark | None, owner: Owner, opened: Opened, refilled: bool
) -> Segment | None:
    segment = Segment(directory, base, 0, None)
    segment.created = True
    segment.named = mark is not None and base <= mark.segment
    handle = disk.open(segment.path)
    try:
        size = disk.size(handle)
        segment.packed = is_packed(handle)
        segment.end = segment.allocated = size
        data = disk.pread(handle, HEADER_BYTES, 0)
        try:
            header = parse_header(data)
        except ValueError as error:
            raise DataDirError(f"{segment.path}: {error}: written by a newer broker; use that one") from None
        wrong = misplaced(header, owner) if header is not None else ""
        if wrong:
            hint = "put every folder back where it was; `quintet log verify DIR` lists what lies in the wrong place"
            raise DataDirError(f"{segment.path}: {wrong}", hint=hint)
        if header is not None and header.base == base:
            segment.seed, segment.chain, segment.begun = header.seed, header.chain, header.created
            segment.compacted = header.created == BY_COMPACTION and not last  # the last one is appended to
            return segment
        rest = disk.pread(handle, size, HEADER_BYTES)
        # The header of a packed segment is written together with the first batch: without it that was not finished.
        unfinished = segment.packed and mark is None and not any(data)
        segment.seed = 0 if unfinished else salvage_seed(data + rest, base) or 0
    finally:
        disk.close(handle)
    below_mark = mark is not None and (mark.segment > base or (mark.segment == base and mark.position > HEADER_BYTES))
    if last and not below_mark and (refilled or (segment.seed == 0 and (unfinished or all_zero(rest)))):
        _remove_unfinished(disk, segment)
        opened.torn.append({"file": segment.path, "position": 0, "length": size, "offset": base})
        return None
    opened.damages.append(Damage(segment.path, 0, HEADER_BYTES, -7, base, base))
    return segment


def _remove_unfinished(disk: Disk, segment: Segment) -> None:
    if segment.packed:  # its room may be used again
        handle = disk.open(segment.path, write=True)
        disk.truncate(handle, 0)
        disk.fdatasync(handle)
    else:
        disk.unlink(segment.path)
        disk.fsync_dir(segment.directory)


def _scan_segment(
    disk: Disk, segment: Segment, last: bool, mark: Mark | None, strict: bool, opened: Opened, refilled: bool
) -> int:
    """Check a segment from the mark on; returns the offset expected behind it. Cuts a torn tail off the last one."""
    start, expected = HEADER_BYTES, segment.base
    size = segment.end
    if mark is not None and mark.segment == segment.base and (last or _leads(disk, segment, mark)):
        start, expected = mark.position, mark.next_offset
    if segment.seed == 0:
        if last:
            opened.roll = True
            segment.next_offset = max(expected, _offsets_claimed(disk, segment))
        length = size - HEADER_BYTES
        opened.damages.append(Damage(segment.path, HEADER_BYTES, length, -7, segment.base, segment.next_offset))
        return segment.next_offset
    if size < start:
        if last:
            opened.roll = True
            segment.next_offset = expected
        opened.damages.append(Damage(segment.path, size, start - size, -1, expected, expected))
        return expected
    segment.index = Index(start)
    handle = disk.open(segment.path)
    try:
        end, resumed, kept = start, expected, False
        for part in scan(disk, handle, segment.seed, start, size, expected):
            if isinstance(part, Run):
                for position, length, base, span, time in part.entries:
                    segment.index.add(part.origin + position, base, time)
                    end, expected = part.origin + position + length, base + span
                resumed = expected
            elif part.resumes >= 0 and last and refilled:
                _cut(disk, segment, part, size, expected, opened)
                size = part.position
                break
            elif part.resumes >= 0:
                length = part.resumes - part.position
                opened.damages.append(Damage(segment.path, part.position, length, part.reason, resumed, part.next_base))
                expected = resumed = part.next_base
            elif last:
                # Nothing may be left of a batch that lacks its first sector: behind the next one it would look like damage.
                rest = disk.pread(handle, size - part.position, part.position) if strict else b""
                if part.reason != 0 or not all_zero(rest):
                    kept = strict and not is_torn(rest, part.position, segment.seed)
                    if kept:
                        expected = _keep(segment, part, rest, expected, opened)
                    else:
                        _cut(disk, segment, part, size, expected, opened)
                        size = part.position
            elif part.reason != 0:
                length = size - part.position
                opened.damages.append(
                    Damage(segment.path, part.position, length, part.reason, expected, segment.next_offset)
                )
                expected = segment.next_offset
    finally:
        disk.close(handle)
    segment.allocated = PACKED_BYTES if segment.packed else size
    if last:
        opened.sound_end = end
        segment.end, segment.next_offset = size if kept else end, expected
        return expected
    if expected < segment.next_offset:
        opened.damages.append(Damage(segment.path, end, 0, -6, expected, segment.next_offset))
    return max(expected, segment.next_offset)


def _leads(disk: Disk, segment: Segment, mark: Mark) -> bool:
    """Does the mark lead to a batch of this sealed segment, or to its end? Not if it is older than a compaction."""
    if mark.position >= segment.end:
        return mark.position == segment.end
    handle = disk.open(segment.path)
    try:
        data = disk.pread(handle, limits.BATCH_HEADER_BYTES, mark.position)
    finally:
        disk.close(handle)
    whole = len(data) == limits.BATCH_HEADER_BYTES and data.startswith(BATCH_MAGIC)
    return whole and RecordBatch(data).base_offset == mark.next_offset


def _make_durable(disk: Disk, segment: Segment, mark: Mark | None) -> None:
    """After a kill it may be in the page cache only; from here on it is served and counts as durable."""
    if mark is None or (mark.segment, mark.position) < (segment.base, segment.end):
        handle = disk.open(segment.path, write=True)
        try:
            disk.fdatasync(handle)
        finally:
            disk.close(handle)


def _offsets_claimed(disk: Disk, segment: Segment) -> int:
    """The offset behind the last batch header of a file whose seed is lost: unproven, but offsets are never used twice."""
    data = disk.read_file(segment.path) or b""
    entries, _, _ = kernel.walk(data, min(HEADER_BYTES, len(data)), len(data), 0, False)
    return max([segment.base + 1, *(base + span for _, _, base, span, _ in entries)])


def _cut(disk: Disk, segment: Segment, gap: Gap, size: int, expected: int, opened: Opened) -> None:
    handle = disk.open(segment.path, write=True)
    try:
        disk.truncate(handle, gap.position)
        disk.fdatasync(handle)
    finally:
        disk.close(handle)
    opened.torn.append(
        {"file": segment.path, "position": gap.position, "length": size - gap.position, "offset": expected}
    )


def _keep(segment: Segment, gap: Gap, rest: bytes, expected: int, opened: Opened) -> int:
    """A tail that was whole once: it stays as it is, and the log goes on behind it in another file."""
    following = expected + claimed_span(rest)
    opened.damages.append(Damage(segment.path, gap.position, len(rest), gap.reason, expected, following))
    opened.roll = True
    return following


def _decide_end(directory: str, segments: list[Segment], expected: int | None, known: int, opened: Opened) -> None:
    """The next offset: behind everything found, and never below what is known: by the mark, or by an anchor."""
    opened.next_offset = expected or 0
    if known <= opened.next_offset:
        return
    path = segments[-1].path if segments else directory
    position = segments[-1].end if segments else 0
    opened.damages.append(Damage(path, position, 0, -6, opened.next_offset, known))
    opened.next_offset = known
    opened.roll = True
