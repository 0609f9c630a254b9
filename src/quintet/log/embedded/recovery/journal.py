"""Makes the small writes of many partitions durable together, with one write and one sync, and replays them at start.

Bytes, the calls a disk thread makes, and replay. When to use it is decided in commit.py. Layout in docs/LOG_FORMAT.md
section 7. What is journaled is written to its segment without a sync, before or soon after; so the journal is only ever read at
a start, and replaying it means putting bytes to the very place in the very file they belong to. That can be done any number of times.

There are two: one that is synced, for what promises that, and one that is not (UNSYNCED), for what must only survive the end of the
process. Files and records are the same. After a power cut the second may have anything, so the first record of it that does not check
out is its end, and nothing of it goes behind a hole.

    file    0        8     12        16     20  24           32        512
            | magic  | crc | version | seed | 0 | generation | zeros ... | records, each at a multiple of 512
    record  0        8     12      16           24       32       40
            | magic  | crc | count | generation | length | number | entries | batches, in the order of the entries
    entry   0          4           8              16     20       24
            | topic_id | partition | segment base | seed | length | position |
"""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from quintet import kernel
from quintet.log.embedded.files.disk import CURABLE, Disk
from quintet.log.embedded.files.packs import is_packed, with_packs
from quintet.log.embedded.files.segment import HEADER_BYTES, new_seed, parse_header, segment_name
from quintet.log.embedded.recovery.directories import Mark
from quintet.model import limits

SYNCED: Final = ("journal.a", "journal.b")
UNSYNCED: Final = ("journal.unsynced.a", "journal.unsynced.b")
NAMES: Final = SYNCED + UNSYNCED
DAMAGED: Final = ".damaged"  # behind the name of a file that did not check out: kept until an operator accepts the loss
ACCEPTED: Final = ".accepted"
JOURNAL_BYTES: Final = 64 * limits.MIB  # of each file at most
FIRST_BYTES: Final = limits.MIB  # of a new file: it grows with what is written to it
GROWTH_SHARE: Final = 4  # it grows by this part of what it has
GROWTH_BYTES_MAX: Final = 8 * limits.MIB  # and by no more at once, so that a record's sync does not wait for long
RECORD_BYTES_MAX: Final = 8 * limits.MIB  # written at once: what more is waiting goes into the next record
RECORD_ALIGN_BYTES: Final = 512
VERSION: Final = 1
_FILE_MAGIC: Final = b"QNTJRF1\0"
_FILE: Final = struct.Struct("<8sIIIIQ")
_FILE_BYTES: Final = 512
_MAGIC: Final = b"QNTJRN1\0"
_RECORD: Final = struct.Struct("<8sIIQQQ")
_ENTRY: Final = struct.Struct("<IIQIIQ")
_U32: Final = struct.Struct("<I")
assert _FILE.size == 32
assert _RECORD.size == 40
assert _ENTRY.size == 32
assert 2 * RECORD_BYTES_MAX < JOURNAL_BYTES

FIRST_RECORD: Final = _FILE_BYTES
ENTRY_BYTES: Final = _ENTRY.size


class Entry(NamedTuple):
    """Batches that go one behind the other into a segment: where, and the bytes."""

    topic_id: int
    partition: int
    base: int
    seed: int
    position: int
    data: bytes
    synced: bool = True  # is it of the journal that is?


class Life(NamedTuple):
    """One use of a journal file, from its header: records of an earlier one have another generation and seed."""

    generation: int
    seed: int


class JournalFile:
    """One of the two files of a journal, while it is written: where the next record goes, and its number."""

    __slots__ = ("handle", "life", "name", "number", "position")

    def __init__(self, name: str) -> None:
        self.name = name
        self.handle = -1
        self.begin(-1, Life(0, 0))

    def begin(self, handle: int, life: Life) -> None:
        self.handle, self.life = handle, life
        self.position, self.number = FIRST_RECORD, 0

    def moved(self, record_bytes: int) -> None:
        """A record of this length was put at `position`."""
        self.position += aligned(record_bytes)
        self.number += 1


def aligned(size: int) -> int:
    return -(-size // RECORD_ALIGN_BYTES) * RECORD_ALIGN_BYTES


def pack_file(life: Life) -> bytes:
    data = bytearray(_FILE.pack(_FILE_MAGIC, 0, VERSION, life.seed, 0, life.generation).ljust(_FILE_BYTES, b"\0"))
    _U32.pack_into(data, 8, kernel.crc32c(memoryview(data)[12:]))
    return bytes(data)


def parse_file(data: bytes) -> Life | None:
    if len(data) < _FILE_BYTES:
        return None
    magic, crc, version, seed, _, generation = _FILE.unpack_from(data)
    if magic != _FILE_MAGIC or version != VERSION or crc != kernel.crc32c(memoryview(data)[12:_FILE_BYTES]):
        return None
    return Life(generation, seed)


# topic_id, partition, segment base, seed, length, position
Place = tuple[int, int, int, int, int, int]


def pack_record(
    life: Life,
    number: int,
    places: Sequence[Place],
    buffers: Sequence[bytearray | bytes],
    more: bytes = b"",
    more_entries: int = 0,
    body: bytes = b"",
) -> list[bytearray | bytes]:
    """In pieces, to be written one behind the other. more: further entries that are packed already; body: their batches."""
    length = _RECORD.size + len(places) * _ENTRY.size + len(more) + sum(map(len, buffers)) + len(body)
    head = bytearray(_RECORD.pack(_MAGIC, 0, len(places) + more_entries, life.generation, length, number))
    for place in places:
        head += _ENTRY.pack(*place)
    head += more
    _U32.pack_into(head, 8, kernel.crc32c(memoryview(head)[12:], life.seed))
    return [piece for piece in (head, b"".join(buffers), body) if piece]


def record_bytes(entries: int, data_bytes: int) -> int:
    """What a record takes of the file."""
    return aligned(_RECORD.size + entries * _ENTRY.size + data_bytes)


# -- what a disk thread does -------------------------------------------------------------------------------------------


def make(disk: Disk, directory: str, name: str, size: int, generation: int, synced: bool = True) -> tuple[int, Life]:
    """A new file, written full of zeros so that a sync in it commits no metadata. Raises OSError, leaving nothing."""
    path = f"{directory}/{name}"
    life = Life(generation, new_seed(disk))
    if disk.read_file(path) is not None:
        disk.unlink(path)
    handle = disk.open(path, create=True, write=True)
    try:
        disk.pwritev(handle, [pack_file(life)], 0)
        if synced:
            disk.zero(handle, _FILE_BYTES, size - _FILE_BYTES)
            disk.fdatasync(handle)
            disk.fsync_dir(directory)
    except OSError:
        disk.close(handle)
        disk.unlink(path)
        raise
    return handle, life


def renew(disk: Disk, handle: int, generation: int, size: int | None = None, synced: bool = True) -> tuple[int, Life]:
    """Begin another life of a file: everything in it is where it belongs, and no longer counts from here on. size: what
    is behind it is given back to the disk, after the old life is durably over."""
    life = Life(generation, new_seed(disk))
    disk.pwritev(handle, [pack_file(life)], 0)
    if synced:
        disk.fdatasync(handle)
    if size is not None:
        disk.truncate(handle, size)
        disk.fdatasync(handle)
    return handle, life


def growth(allocated: int, least: int) -> int:
    """By how much a file grows that has so much."""
    return min(max(least, allocated // GROWTH_SHARE), GROWTH_BYTES_MAX)


def grow(disk: Disk, path: str, start: int, stop: int) -> bool:
    """Write zeros ahead of the records, so that a sync in them commits no metadata. False: there is no space for it. Raises OSError."""
    handle = disk.open(
        path, write=True
    )  # its own: a failed write-back is reported once per handle, and records must hear of it
    try:
        disk.zero(handle, start, stop - start)
        disk.fdatasync(handle)
    except OSError as error:
        if error.errno not in CURABLE:
            raise
        disk.truncate(handle, start)
        return False
    finally:
        disk.close(handle)
    return True


def cut_off(disk: Disk, handle: int, position: int, error: BaseException) -> OSError:
    """A record was not taken. If that was for want of space, the file durably ends before it, so that it can never be replayed:
    returns the error. Raises it otherwise: then nobody knows what is in the file, and nothing may follow."""
    if not isinstance(error, OSError) or error.errno not in CURABLE:
        raise error
    disk.truncate(handle, position)  # writing zeros would need the space that is missing
    disk.fdatasync(handle)
    return error


def remove(disk: Disk, directory: str, damaged: Collection[str] = (), of: Collection[str] = NAMES) -> None:
    """Everything in these files is durable where it belongs: no file, nothing to replay. Damaged files are kept aside."""
    names = [name for name in disk.listdir(directory) if name in of]
    for name in names:
        if name in damaged:
            disk.rename(f"{directory}/{name}", f"{directory}/{name}{DAMAGED}")
        else:
            disk.unlink(f"{directory}/{name}")
    if names:
        disk.fsync_dir(directory)


# -- reading it at a start ---------------------------------------------------------------------------------------------

# told(what, position): a range of the file that does not check out although something newer behind it does
Told = Callable[[str, int], None]


def entries(data: bytes, told: Told, synced: bool = True) -> Iterator[Entry]:
    """The entries of one file, oldest first, each with as many sound batches as it begins with. Where records do not
    follow each other any more, a later one of the same life is looked for: it was acknowledged too. If the file is not synced,
    a power cut may have taken any of them, and the first that is not whole is the end."""
    life = parse_file(data)
    if life is None:
        return
    position, number = FIRST_RECORD, 0
    damaged = -1
    while True:
        found = _record(data, position, life, number)
        if found is None or (damaged >= 0 and not synced):
            if not synced:
                return
            damaged = position if damaged < 0 else damaged
            position = data.find(_MAGIC, position + 1)
            if position < 0:
                return
            continue
        if damaged >= 0:
            told("a record does not check out", damaged)
            damaged = -1
        number, length, places = found
        at = position + _RECORD.size + len(places) * _ENTRY.size
        for topic_id, partition, base, seed, size, place in places:
            stop = min(at + size, len(data))
            entry = Entry(topic_id, partition, base, seed, place, data[at:stop], synced)
            sound = _sound_bytes(entry)
            if sound < size:
                damaged = at + sound if damaged < 0 else damaged
            if sound > 0:
                yield entry._replace(data=entry.data[:sound])
            at += size
        position, number = position + aligned(length), number + 1


def _sound_bytes(entry: Entry) -> int:
    """How much of an entry is sound batches, behind a sound header if it is the beginning of a segment."""
    data, at = entry.data, 0
    if entry.position == 0:
        if not _is_header(data, entry):
            return 0
        at = HEADER_BYTES
    return kernel.walk(data, at, len(data), entry.seed, True)[1] if at < len(data) else at


def _is_header(data: bytes, entry: Entry) -> bool:
    """Does this begin with the header of the entry's segment?"""
    try:
        header = parse_header(data[:HEADER_BYTES])
    except ValueError:  # of a newer version
        return False
    return header is not None and header.seed == entry.seed


def _record(data: bytes, position: int, life: Life, number: int) -> tuple[int, int, list[Place]] | None:
    """(number, length, entries) of the record at position, if it is one of this life and not an earlier one again."""
    if position % RECORD_ALIGN_BYTES or position + _RECORD.size > len(data):
        return None
    magic, crc, count, generation, length, found = _RECORD.unpack_from(data, position)
    stop = position + _RECORD.size + count * _ENTRY.size
    if magic != _MAGIC or generation != life.generation or found < number or stop > len(data):
        return None
    if crc != kernel.crc32c(memoryview(data)[position + 12 : stop], life.seed):
        return None
    return found, length, list(_ENTRY.iter_unpack(data[position + _RECORD.size : stop]))


def load(disk: Disk, directory: str, report: Callable[[str, dict[str, object]], None]) -> list[Entry]:
    """All entries of both files, the older file first."""
    files: list[tuple[int, str, bytes]] = []
    for name in NAMES:
        data = disk.read_file(f"{directory}/{name}")
        if data is None:
            continue
        life = parse_file(data)
        if life is not None:
            files.append((life.generation, f"{directory}/{name}", data))
        elif (
            name in SYNCED and data.strip(b"\0") and len(data) >= _FILE_BYTES
        ):  # a shorter one was being made: nobody's
            report("journal_rejected", {"file": f"{directory}/{name}"})
    found: list[Entry] = []
    for _, path, data in sorted(files):
        synced = not path.endswith(UNSYNCED)

        def told(what: str, position: int, path: str = path) -> None:
            report("journal_damaged", {"file": path, "position": position, "what": what})

        found += entries(data, told, synced)
    return found


def waiting(
    disk: Disk, directory: str, marks: Mapping[tuple[int, int], Mark], found: list[Entry]
) -> dict[str, list[Entry]]:
    """Entries by the segment they belong to, without those that are below the durable mark, or whose segment retention or
    compaction took or replaced since. A packed segment of which the journal has the beginning need not be there: then a
    power cut took it."""
    disk = with_packs(disk)
    by_path: dict[str, list[Entry]] = {}
    for entry in found:
        mark = marks.get((entry.topic_id, entry.partition))
        reached = (entry.base, entry.position + len(entry.data))
        if mark is not None and reached <= (mark.segment, mark.position):
            continue
        path = f"{directory}/topics/{entry.topic_id:08d}/{entry.partition}/{segment_name(entry.base)}"
        by_path.setdefault(path, []).append(entry)
    kept: dict[str, list[Entry]] = {}
    for path, group in by_path.items():
        room = disk.read_packed(directory, group[0].topic_id, group[0].partition)
        if all(room.startswith(entry.data, entry.position) for entry in group):
            continue  # all of it is there: usual after a kill, and there may be 100,000 of them
        begun = next((number for number, entry in enumerate(group) if entry.position == 0), None)
        try:
            handle = disk.open(path)
        except FileNotFoundError:
            if begun is not None and disk.is_blank(path):
                kept[path] = [entry for entry in group[begun:] if entry.seed == group[begun].seed]
            continue
        try:
            data = disk.pread(handle, HEADER_BYTES, 0)
            same = [entry for entry in group if _is_header(data, entry)]
            if (
                not same and begun is not None and is_packed(handle) and not any(data)
            ):  # only its first sector is missing
                same = [entry for entry in group[begun:] if entry.seed == group[begun].seed]
            if not all(entry.synced for entry in same):
                same = _joined(disk, handle, same, marks.get((same[0].topic_id, same[0].partition)))
        finally:
            disk.close(handle)
        if same:
            kept[path] = same
    return kept


def _joined(disk: Disk, handle: int, group: list[Entry], mark: Mark | None) -> list[Entry]:
    """Without those of the unsynced journal before which a power cut left a hole: put behind it, they would make corruption of what
    was never promised. Where nothing is lacking, which is usual after a kill, nothing else is read."""
    if all(disk.pread(handle, len(entry.data), entry.position) == entry.data for entry in group):
        return group
    reached = mark.position if mark is not None and mark.segment == group[0].base else HEADER_BYTES
    found: list[Entry] = []
    for entry in sorted(group, key=lambda entry: entry.position):
        reached = _sound_until(
            disk, handle, reached, entry.position, entry.seed
        )  # what was written at once is only there
        if entry.synced or entry.position <= reached:
            found.append(entry)
            reached = max(reached, entry.position + len(entry.data))
    return found


def _sound_until(disk: Disk, handle: int, start: int, stop: int, seed: int) -> int:
    """How far the segment is sound, between two ends of batches."""
    while start < stop:
        data = disk.pread(handle, min(limits.BATCH_BYTES_MAX, stop - start), start)
        sound = kernel.walk(data, 0, len(data), seed, True)[1]
        if not sound:
            break
        start += sound
    return start


def replay(
    disk: Disk,
    directory: str,
    marks: Mapping[tuple[int, int], Mark],
    report: Callable[[str, dict[str, object]], None],
) -> tuple[int, list[str]]:
    """Put back what a power cut took from the segments. Returns how many entries had to be written again, and the files
    that must be durable, beside the packs, before the journal is removed. Killed at any point, it is simply done again."""
    disk = with_packs(disk, writes=True)
    written, files = 0, list[str]()
    for path, group in waiting(disk, directory, marks, load(disk, directory, report)).items():
        try:
            handle = disk.open(path, write=True)
        except FileNotFoundError:
            handle = disk.begin(path)
        if not is_packed(handle):
            files.append(path)
        try:
            for entry in group:
                written += _put_back(disk, handle, path, entry, report)
        finally:
            disk.close(handle)
    return written, files


def finish_replay(disk: Disk, directory: str, files: list[str], damaged: Collection[str]) -> None:
    """Make what was put back durable, if nobody did yet, and remove the journal, or keep it aside."""
    for path in files:
        handle = disk.open(path, write=True)
        try:
            disk.fdatasync(handle)
        finally:
            disk.close(handle)
    remove(disk, directory, damaged)


def _put_back(
    disk: Disk, handle: int, path: str, entry: Entry, report: Callable[[str, dict[str, object]], None]
) -> int:
    """Write one entry if it is not there."""
    try:
        position, data = lacking(disk, handle, entry)
    except ValueError:
        report("journal_conflict", {"file": path, "position": entry.position})
        return 0
    if data:
        disk.pwritev(handle, [data], position)
    return int(bool(data))


def lacking(disk: Disk, handle: int, entry: Entry) -> tuple[int, bytes]:
    """What of an entry is not in its segment: where, and the bytes. ValueError if something else that is sound is there:
    that is never written over."""
    there = disk.pread(handle, len(entry.data), entry.position)
    if there == entry.data:
        return entry.position, b""
    sound = _sound_bytes(entry._replace(data=there))
    if there[:sound] != entry.data[:sound]:
        raise ValueError("the segment holds something else")
    return entry.position + sound, entry.data[sound:]
