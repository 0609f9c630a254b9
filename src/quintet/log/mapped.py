"""Reads a range of a partition straight from its segment files, in any process: mapped, checked, as Arrow buffers.

A Spark executor, the Flight door and audits read this way: read-only, and without asking the broker for anything but
the list of files (`Partition.files`), which may be out of date by the time it is used. What the broker may have done
meanwhile is looked for here: a segment that compaction wrote anew has another seed, one that was merged into an earlier
one is found under that one's name, one that retention took is lost. What is damaged is decided as in the broker's own
reader: only a compacted (SPARSE) batch may begin later than the one before it ended. Nothing is written, nothing is
repaired.

Touching a mapped page that the disk cannot give ends a process (SIGBUS), and the Flight door runs in the broker's. So pages
are asked for before they are touched, in windows: the system then says that the disk failed (Linux 5.14; on older systems
the window is read once and thrown away, which shows the same). The broker cuts off the empty end of a segment that is full:
a file that became shorter is no failure, and what was cut off is not touched.
"""

import errno
import mmap
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from quintet import kernel
from quintet.log.embedded.files import identity
from quintet.log.embedded.files.packs import PACKED_BYTES, base_in, place_of
from quintet.log.embedded.files.segment import (
    HEADER_BYTES,
    REASONS,
    Header,
    Owner,
    index_name,
    misplaced,
    parse_header,
    parse_index,
    segment_name,
)
from quintet.model import limits
from quintet.model.batch import Claimed, claimed_at, is_sparse
from quintet.model.errors import CorruptData, DataDirError, DataLost

READ_BYTES_DEFAULT: Final = 8 * limits.MIB  # of the columns of bytes, per result
WINDOW_BYTES: Final = 16 * limits.MIB  # asked of the disk at a time; a longer batch makes it longer
WINDOW_BYTES_MIN: Final = limits.MIB
CUT_SHORT: Final = -1  # see REASONS
OFFSETS_MISSING: Final = -6
POPULATE_READ: Final = 22  # madvise: as if every page were read, with an error instead of a signal


class File(Protocol):
    """As log.base.SegmentFile and its like on the wire."""

    @property
    def path(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def base(self) -> int: ...
    @property
    def next_offset(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """Some rows in order: their number and their buffers, as from kernel.gather."""

    count: int
    buffers: tuple[bytes | None, ...]


class Wish(NamedTuple):
    """What is read of every file. `lenient`: what is lost or damaged is passed over; a file of another topic never is."""

    owner: Owner
    last: int
    columns: int
    rows_max: int
    bytes_max: int
    now: int
    lenient: bool


def log_of(directory: str) -> str:
    """The identity of the log in a data directory; "" if it cannot be read here."""
    try:
        with open(f"{directory}/{identity.NAME}", "rb") as file:
            return identity.parse(file.read())
    except OSError:
        return ""


def read(
    files: Sequence[File],
    topic_id: int,
    partition: int,
    first: int,
    last: int,
    *,
    columns: int,
    rows_max: int,
    bytes_max: int = READ_BYTES_DEFAULT,
    now: int = 0,
    fail_on_loss: bool = True,
    name: str = "",
) -> Iterator[Gathered]:
    """The records first <= offset < last of the topic with this number, and with this name if one is given. DataLost if some
    of these offsets are in no file, CorruptData if a batch is not sound; with fail_on_loss False both are passed over. What
    was yielded before is good in any case. A file of another topic is CorruptData always."""
    wish = Wish(Owner(topic_id, partition, name), last, columns, rows_max, bytes_max, now, not fail_on_loss)
    offset = first
    for file in files:
        if file.base >= last:
            break
        if file.next_offset <= offset:
            continue
        if file.base > offset:
            offset = _lost(wish, offset, file.base)
        offset = yield from _read_file(file, offset, wish)
    if offset < last:
        _lost(wish, offset, last)


def _lost(wish: Wish, first: int, last: int) -> int:
    """Where to go on behind offsets that are gone, or DataLost."""
    if wish.lenient:
        return last
    raise DataLost(
        f"partition {wish.owner.partition} of topic number {wish.owner.topic_id}: offsets {first} to {last - 1} are no longer there",
        first=first,
        last=last,
        hint="retention took them or a file is missing; begin later, or say that data loss is accepted",
    )


def _read_file(file: File, offset: int, wish: Wish) -> Generator[Gathered, None, int]:
    """Yields what the file has of the range, and returns the offset behind it."""
    end = min(file.next_offset, wish.last)
    try:
        with _mapped(file.path) as (data, handle):
            return (yield from _Segment(file.path, data, handle, file, wish).read(offset, end))
    except FileNotFoundError:
        path = _successor_of(file.path, offset)
    if path is not None:
        try:
            with _mapped(path) as (data, handle):
                offset = yield from _Segment(path, data, handle, None, wish).read(offset, end)
        except FileNotFoundError:
            return _lost(wish, offset, end)
    return offset if offset >= end else _lost(wish, offset, end)


def _successor_of(path: str, offset: int) -> str | None:
    """The file that this one was merged into by compaction: in its directory, the last one that begins at or before
    offset."""
    directory = os.path.dirname(path)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return None
    found = [name for name in names if name[:-4].isdecimal() and name.endswith(".seg") and name <= segment_name(offset)]
    return os.path.join(directory, max(found)) if found else None


@contextmanager
def _mapped(path: str) -> Iterator[tuple[mmap.mmap | bytes, int]]:
    """The bytes of a segment, and the handle of its file. An empty one cannot be mapped and has none; one in a pack is small,
    and read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        with _packed(path) as found:
            yield found
        return
    try:
        data = mmap.mmap(handle, 0, access=mmap.ACCESS_READ) if os.fstat(handle).st_size else b""
        try:
            yield data, handle
        finally:
            if isinstance(data, mmap.mmap):
                data.close()
    finally:
        os.close(handle)


@contextmanager
def _packed(path: str) -> Iterator[tuple[bytes, int]]:
    """As _mapped, of a segment for which there is no file. FileNotFoundError if it is in no pack either."""
    place = place_of(path)
    if place is None:
        raise FileNotFoundError(path)
    handle = os.open(place.pack, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(handle, PACKED_BYTES, place.position)
        base = base_in(data)
        # A second look: room that is given up says so before the rest of it is cleared.
        again = base_in(os.pread(handle, PACKED_BYTES, place.position))
        if base is None or base != again or segment_name(base) != os.path.basename(path):
            raise FileNotFoundError(path)
        yield data, handle
    finally:
        os.close(handle)


class _Segment:
    """One mapped file. `file` is what was known of it; None for one that took the place of another."""

    def __init__(self, path: str, data: mmap.mmap | bytes, handle: int, file: File | None, wish: Wish) -> None:
        self._path = path
        self._data = data
        self._handle = handle
        self._wish = wish
        self._file = file
        self._size = len(data)
        self._from = self._ready = 0  # the pages between were asked for
        self._window = WINDOW_BYTES

    def _prepare(self, position: int) -> int:
        """Ask the disk for what lies ahead; the end of what may be touched."""
        ahead = min(self._window, self._size - position)
        if not self._from <= position or self._ready - position < ahead:
            fresh = position >= self._ready or position < self._from
            begin = position if fresh else self._ready
            self._ready = self._populate(begin, min(position + 2 * self._window, self._size))
            self._from = position if fresh else self._from
        return self._ready

    def _populate(self, begin: int, end: int) -> int:
        """Have these pages read; how far there are any. CorruptData: the disk cannot."""
        begin = begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._size = min(self._size, os.fstat(self._handle).st_size)
        end = min(end, self._size)
        if not isinstance(self._data, mmap.mmap) or begin >= end:
            return end
        try:
            self._data.madvise(POPULATE_READ, begin, end - begin)
        except OSError as error:
            if os.fstat(self._handle).st_size < self._size:  # cut off just now
                return self._populate(begin, end)
            if error.errno != errno.EINVAL:
                raise CorruptData(f"{self._path}: the disk cannot read it near position {begin}") from error
            try:
                os.pread(self._handle, end - begin, begin)
            except OSError as failed:
                raise CorruptData(f"{self._path}: the disk cannot read it near position {begin}") from failed
        return end

    def read(self, offset: int, end: int) -> Generator[Gathered, None, int]:
        """Yields the records offset to end - 1, and returns the offset behind what the file has of them: `end`, unless the
        file took the place of another and has less."""
        wish, data = self._wish, self._data
        span = max(self._file.next_offset - self._file.base, 1) if self._file is not None else 1
        self._window = max(WINDOW_BYTES_MIN, min(WINDOW_BYTES, 2 * self._size * (end - offset) // span))
        self._populate(0, min(HEADER_BYTES, self._size))
        header = self._header()
        seed = self._seed(header)
        if seed == 0:
            return self._damaged(0, -7, offset, end)
        position = self._begin(header, seed, offset)
        while offset < end:
            begin = position
            stop = max(self._prepare(begin), begin)
            count, buffers, position, following, reason = kernel.gather(
                data, begin, stop, seed, offset, end, wish.rows_max, wish.bytes_max, wish.columns, wish.now
            )
            if count != following - offset and not wish.lenient:
                self._check_continuous(begin, position, offset, following)
            if count:
                yield Gathered(count, buffers)
            stands = position == begin and following == offset
            offset = following
            if reason == CUT_SHORT and stop < self._size:  # by the window, not by the end of the file
                self._window *= 2 if stands else 1
                continue
            if reason < 0 or (stands and self._file is not None):
                offset, position = self._beyond(seed, position, reason, offset, end)
            elif stands:
                break
        return offset

    def _header(self) -> Header | None:
        try:
            header = parse_header(self._data[:HEADER_BYTES])
        except ValueError as error:
            raise DataDirError(f"{self._path}: {error}: written by a newer broker; use its version") from None
        wrong = misplaced(header, self._wish.owner) if header is not None else ""
        if wrong:
            raise CorruptData(f"{self._path}: {wrong}", hint="put every folder back where it was: quintet log verify")
        return header

    def _seed(self, header: Header | None) -> int:
        """What the batches are sealed with. The broker may know it although the header is damaged; 0: nobody does."""
        if header is not None:
            return header.seed
        return self._file.seed if self._file is not None else 0

    def _begin(self, header: Header | None, seed: int, offset: int) -> int:
        """Where to look from: as we were told, or as the index file says, or from the start."""
        position = HEADER_BYTES
        if self._file is not None and self._file.seed == seed:
            position = self._file.position
        if position == HEADER_BYTES and header is not None and offset > header.base:
            position = self._indexed(header, offset)
        return position if self._leads(position, offset) else min(HEADER_BYTES, self._size)

    def _indexed(self, header: Header, offset: int) -> int:
        try:
            with open(os.path.join(os.path.dirname(self._path), index_name(header.base)), "rb") as file:
                found = parse_index(file.read(), header.seed)
        except OSError:
            return HEADER_BYTES
        place = found[0].place(offset) if found is not None else None
        return place[1] if place is not None else HEADER_BYTES

    def _batch(self, position: int) -> Claimed | None:
        """What may be a batch."""
        if position < HEADER_BYTES or self._prepare(position) < position + limits.BATCH_HEADER_BYTES:
            return None
        return claimed_at(self._data, position)

    def _leads(self, position: int, offset: int) -> bool:
        batch = self._batch(position)
        return batch is not None and batch.base_offset <= offset

    def _check_continuous(self, begin: int, position: int, offset: int, following: int) -> None:
        """Fewer rows came than offsets. Expired records, control batches and compaction are fine; a batch that begins later
        than the one before it ended, and is not compacted, is not."""
        batch = self._batch(position)
        stop = min(position + batch.length, self._size) if batch is not None else position
        expected = offset
        for at, _, base, span, _ in kernel.walk(self._data, begin, stop, 0, False)[0]:
            if expected >= following:
                return
            if base > expected and not is_sparse(self._data, at):
                self._damaged(at, OFFSETS_MISSING, expected, base)
            expected = max(expected, base + span)

    def _beyond(self, seed: int, position: int, reason: int, offset: int, end: int) -> tuple[int, int]:
        """(offset, position) to go on from behind a damage, or CorruptData."""
        self._damaged(position, reason or OFFSETS_MISSING, offset, end)
        self._populate(position, self._size)
        found = kernel.find(self._data, min(position + 8, self._size), self._size, seed)
        return (offset, found) if found >= 0 else (end, position)

    def _damaged(self, position: int, reason: int, offset: int, end: int) -> int:
        if self._wish.lenient:
            return end
        raise CorruptData(
            f"{self._path}: {REASONS.get(reason, str(reason))} at position {position}, offset {offset}",
            hint="the broker serves what is sound around it and lists it (quintet log verify); or accept data loss",
        )
