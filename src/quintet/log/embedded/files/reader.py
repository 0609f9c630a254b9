"""Reads batches from segment files, off the loop thread, and checks every batch before handing it out.

The usual case is one large read into a pooled buffer and one walk over it; whatever is not in perfect order there is read
again by the scanner, which tells damage from a large batch.

Works on views: what the loop thread knew about the segments when the read was asked for. A segment that was compacted
meanwhile has another seed in its header, and is then read from its start; one that retention took is skipped.
"""

from typing import Final

import msgspec

from quintet import kernel
from quintet.log.embedded.files.buffers import PIECE_BYTES, SLACK_BYTES, ReadBuffers
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.segment import (
    HEADER_BYTES,
    Damage,
    Gap,
    Index,
    Run,
    Segment,
    build_index,
    continuous,
    load_index,
    misplaced,
    owner_of,
    parse_header,
    scan,
    write_index,
)
from quintet.model import limits
from quintet.model.batch import RecordBatch

READ_WINDOW_BYTES: Final = limits.MIB
SINGLE_BYTES_MAX: Final = limits.KIB  # who asks for no more than this wants one batch
WARM_BYTES_MAX: Final = limits.MIB  # read at once on the loop thread: about 150 us; more goes to a disk thread
READ_BYTES_MAX: Final = 32 * limits.MIB  # handed out by one read, a larger single batch excepted


class View:
    """A segment as it was committed when the read was asked for."""

    __slots__ = ("end", "index", "next_offset", "segment", "seed")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.seed = segment.seed
        self.end = segment.end
        self.next_offset = segment.next_offset
        self.index = segment.index


class Found(msgspec.Struct):
    """Batches, what was damaged on the way, and indexes worth keeping: (segment, index, covers below)."""

    batches: list[RecordBatch] = msgspec.field(default_factory=list)
    damages: list[Damage] = msgspec.field(default_factory=list)
    indexes: list[tuple[Segment, Index, int]] = msgspec.field(default_factory=list)


def read(disk: Disk, buffers: ReadBuffers, views: list[View], offset: int, max_bytes: int) -> Found:
    """Batches from the one that holds offset on, about max_bytes (and READ_BYTES_MAX), at least one if any is sound."""
    found = Found()
    max_bytes = min(max_bytes, READ_BYTES_MAX)
    for view in views:
        if view.next_offset <= offset:
            continue
        try:
            handle = disk.open(view.segment.path)
        except FileNotFoundError:
            continue
        damages = len(found.damages)
        try:
            max_bytes = _read_segment(disk, buffers, handle, view, offset, max_bytes, found)
        finally:
            disk.close(handle)
        if len(found.damages) > damages and view.segment.packed and not _is_there(disk, view.segment.path):
            del found.damages[
                damages:
            ]  # retention took it amid this: unlike a file that is open, its room is cleared at once
        if found.batches:  # a crash within compaction can leave a file whose content the one before has too
            offset = max(offset, found.batches[-1].next_offset)
        if max_bytes <= 0:
            break
    return found


def _is_there(disk: Disk, path: str) -> bool:
    try:
        disk.close(disk.open(path))
    except FileNotFoundError:
        return False
    return True


def read_warm(disk: Disk, buffers: ReadBuffers, view: View, offset: int, max_bytes: int) -> list[RecordBatch]:
    """As read, within one segment and only if nothing has to be waited for; [] if it has to, or if anything is unusual. A
    file that compaction put in the place of the one the loop knows has another seed, and so nothing in it checks out."""
    index = view.index
    place = None if index is None or view.seed == 0 else index.place(offset)
    if place is None:
        return []
    expected, start = place
    wanted = min(view.end - start, max_bytes + SLACK_BYTES)
    found = Found()
    try:
        handle = disk.open(view.segment.path)
    except OSError:
        return []
    buffer = buffers.take(wanted)
    try:
        with memoryview(buffer) as room, room[:wanted] as part:
            if disk.pread_warm(handle, part, start):
                entries = continuous(buffer, kernel.walk(buffer, 0, wanted, view.seed, True)[0], expected)[0]
                _take(Run(buffer, start, entries), offset, max_bytes, found)
    finally:
        disk.close(handle)
        buffers.give(buffer)
    return found.batches


def read_one(disk: Disk, buffers: ReadBuffers, view: View, offset: int) -> RecordBatch | None:
    """A copy of the batch that holds this offset, if nothing has to be waited for. None if it has to, or if anything is unusual.

    Of the batches before it, from the entry of the index on, only headers are looked at: where each ends, and that the next one goes
    on there. The batch itself is checked whole, and its header says that it holds the offset."""
    around = None if view.index is None or view.seed == 0 else view.index.around(offset)
    if around is None:
        return None
    expected, start, following = around
    wanted = (view.end if following is None else min(following, view.end)) - start
    if not 0 < wanted <= WARM_BYTES_MAX + SLACK_BYTES:
        return None
    try:
        handle = disk.open(view.segment.path)
    except OSError:
        return None
    buffer = buffers.take(wanted)
    try:
        with memoryview(buffer) as room, room[:wanted] as part:
            if not disk.pread_warm(handle, part, start):
                return None
            entries = continuous(buffer, kernel.walk(buffer, 0, wanted, view.seed, False)[0], expected)[0]
            for position, length, base, span, _ in entries:
                if base <= offset < base + span:
                    sound = kernel.check(buffer, position, view.seed) == length
                    return RecordBatch(bytes(part[position : position + length])) if sound else None
    finally:
        disk.close(handle)
        buffers.give(buffer)
    return None


def _read_segment(
    disk: Disk, buffers: ReadBuffers, handle: int, view: View, offset: int, max_bytes: int, found: Found
) -> int:
    segment, end = view.segment, view.end
    header = parse_header(disk.pread(handle, HEADER_BYTES, 0))
    seed, index = view.seed, view.index
    if header is not None and misplaced(header, owner_of(segment.directory)):  # put there while the broker runs
        found.damages.append(Damage(segment.path, 0, end, -8, max(offset, segment.base), view.next_offset))
        return max_bytes
    if header is not None and header.seed != seed:
        seed, index, end = header.seed, Index(), disk.size(handle)
    elif seed == 0:
        found.damages.append(Damage(segment.path, HEADER_BYTES, end - HEADER_BYTES, -7, segment.base, view.next_offset))
        return max_bytes
    else:
        index = _index_for(disk, handle, view, offset, found)
    place = index.place(offset)
    expected, start = place if place is not None else (segment.base, HEADER_BYTES)
    span = _Span(start, end, expected)
    max_bytes = _read_pieces(disk, buffers, handle, seed, span, offset, max_bytes, found)
    if max_bytes <= 0:
        return 0
    start, expected = span.start, span.expected
    window = min(max(max_bytes + limits.INDEX_EVERY_BYTES, limits.INDEX_EVERY_BYTES), READ_WINDOW_BYTES)
    for part in scan(disk, handle, seed, start, end, expected, window):
        if isinstance(part, Run):
            max_bytes = _take(part, offset, max_bytes, found)
            expected = part.entries[-1][2] + part.entries[-1][3]
            if max_bytes <= 0:
                return 0
        else:
            following = part.next_base if part.resumes >= 0 else view.next_offset
            _note(segment, part, end, expected, following, found)
            expected = following
    if expected < view.next_offset:
        found.damages.append(Damage(segment.path, end, 0, -6, expected, view.next_offset))
    return max_bytes


class _Span(msgspec.Struct):
    """What is left of a segment: from `start`, where the batch with base `expected` must be."""

    start: int
    end: int
    expected: int


def _read_pieces(
    disk: Disk, buffers: ReadBuffers, handle: int, seed: int, span: _Span, offset: int, max_bytes: int, found: Found
) -> int:
    """Take sound batches as long as they come one behind the other; where they do not, `span` begins afterwards."""
    while span.start < span.end and max_bytes > 0:
        wanted = min(span.end - span.start, min(max_bytes, PIECE_BYTES) + SLACK_BYTES)
        last = max_bytes <= PIECE_BYTES and span.start + wanted < span.end
        buffer = buffers.take(wanted)
        try:
            with memoryview(buffer) as room, room[:wanted] as part:
                got = disk.pread_into(handle, part, span.start)
            good, span.expected, _ = continuous(buffer, kernel.walk(buffer, 0, got, seed, True)[0], span.expected)
            if not good:
                break
            max_bytes = _take(Run(buffer, span.start, good), offset, max_bytes, found)
            span.start += good[-1][0] + good[-1][1]
            if last and span.expected > offset:
                return 0  # what is missing is less than a batch: not worth another read
        finally:
            buffers.give(buffer)
    return max_bytes


def _index_for(disk: Disk, handle: int, view: View, offset: int, found: Found) -> Index:
    """The index that covers offset: as the loop knows it, from the index file, or made again."""
    index, segment = view.index, view.segment
    if index is not None and (index.first <= HEADER_BYTES or (index.bases and offset >= index.bases[0])):
        return index
    if index is None:
        loaded = load_index(disk, segment, view.end)
        if loaded is not None and _leads(disk, handle, loaded, offset):
            found.indexes.append((segment, loaded, view.end))
            return loaded
    made = build_index(disk, handle, segment, view.end)
    found.indexes.append((segment, made, view.end))
    if index is None:
        try:
            write_index(disk, segment, made, view.end, view.next_offset)
        except OSError:
            return made  # it is made again next time
    return made


def _leads(disk: Disk, handle: int, index: Index, offset: int) -> bool:
    """Does the entry for offset lead to the batch it names? Only its header is looked at; scan checks the rest."""
    place = index.place(offset)
    if place is None:
        return True
    data = disk.pread(handle, limits.BATCH_HEADER_BYTES, place[1])
    return len(data) == limits.BATCH_HEADER_BYTES and RecordBatch(data).base_offset == place[0]


def _take(run: Run, offset: int, max_bytes: int, found: Found) -> int:
    view = memoryview(run.data).toreadonly()
    for position, length, base, span, _ in run.entries:
        if base + span <= offset:
            continue
        found.batches.append(RecordBatch(view[position : position + length]))
        max_bytes -= length
        if max_bytes <= 0:
            return 0
    return max_bytes


def _note(segment: Segment, gap: Gap, end: int, expected: int, following: int, found: Found) -> None:
    if gap.reason == 0 and gap.resumes < 0 and expected >= following:
        return
    stop = gap.resumes if gap.resumes >= 0 else end
    found.damages.append(Damage(segment.path, gap.position, stop - gap.position, gap.reason, expected, following))
