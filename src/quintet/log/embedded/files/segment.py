"""Describes one segment file: its header, its sparse index, and the one scanner that tells sound batches from damage.

Recovery, reads, index building, compaction and `quintet log verify` all go through `scan`, so they cannot disagree
about what is sound. Nothing here writes batches (partition.py does) or decides what damage means (recovery/directories.py does).

    0        8     12        16     20         24          28            32            40        48
    | magic  | crc | version | seed | topic_id | partition | name_length | base_offset | created | topic name ...
    472     476      480                    512
    | chain | key_id | link before the first batch
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from quintet import kernel
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.model import limits
from quintet.model.batch import BATCH_MAGIC, LINK_BYTES, RecordBatch, crc_of, is_sparse, length_of

HEADER_BYTES: Final = limits.SEGMENT_HEADER_BYTES
FORMAT_VERSION: Final = 2  # of a chained segment; one that is not is still written as 1
SALVAGE_STARTS: Final = 256  # places looked at to find a lost seed
SCAN_WINDOW_BYTES: Final = 4 * limits.MIB  # read at once while scanning
_MAGIC: Final = b"QNTSEG1\0"
_HEADER: Final = struct.Struct("<8sIIIIIIQq")
_CHAIN: Final = struct.Struct("<II32s")
_CHAIN_AT: Final = 472
_INDEX_MAGIC: Final = b"QNTIDX1\0"
_INDEX_HEADER: Final = struct.Struct("<8sIIQQ")
_INDEX_ENTRY: Final = struct.Struct("<QQq")
_ZEROS: Final = bytes(256 * limits.KIB)
_U32: Final = struct.Struct("<I")
assert _HEADER.size == 48
assert _CHAIN_AT + _CHAIN.size == HEADER_BYTES
assert _HEADER.size + limits.TOPIC_NAME_BYTES_MAX <= _CHAIN_AT
assert _INDEX_HEADER.size == 32

# Why a range does not check out, by the kernel's reason; -6 to -8 are found here.
REASONS: Final = {
    0: "zeros inside the log",
    -1: "cut short",
    -2: "bad header",
    -3: "bad checksum",
    -4: "columns do not add up",
    -5: "offsets fell",
    -6: "offsets missing",
    -7: "bad segment header",
    -8: "of another topic",
}


def segment_name(base: int) -> str:
    return f"{base:020d}.seg"


def index_name(base: int) -> str:
    return f"{base:020d}.idx"


def new_seed(disk: Disk) -> int:
    """Random and never 0, so that zeros never check out and stale blocks of another segment do not either."""
    return disk.entropy() or 1


# As from kernel.walk: position, length, base_offset, span, max_timestamp.
Entry = tuple[int, int, int, int, int]


class ChainStart(NamedTuple):
    """How the chain of a segment begins: which kind it is, with which key, and the link before its first batch."""

    kind: int = 0  # 0 no chain, 1 a chain, 2 one with a key
    key_id: int = 0
    link: bytes = bytes(LINK_BYTES)


UNCHAINED: Final = ChainStart()
BY_COMPACTION: Final = 0  # `created` of a file that compaction made: its records are of many times


class Owner(NamedTuple):
    """Whose files a directory holds, by its path and by the row of the topic. name "": not known."""

    topic_id: int
    partition: int
    name: str = ""


def owner_of(directory: str, name: str = "") -> Owner:
    """By the path .../TOPIC/PARTITION of a partition's directory."""
    topic, _, partition = directory.rpartition("/")
    return Owner(int(topic.rpartition("/")[2]), int(partition), name)


class Header(NamedTuple):
    seed: int
    topic_id: int
    partition: int
    base: int
    created: int  # or BY_COMPACTION
    name: str
    chain: ChainStart = UNCHAINED


def misplaced(header: Header, owner: Owner) -> str:
    """Why a segment with this header does not belong to this owner; empty if it does."""
    same_name = not owner.name or header.name == owner.name
    if header.topic_id == owner.topic_id and header.partition == owner.partition and same_name:
        return ""
    named = f" ({owner.name!a})" if owner.name else ""
    return (
        f"it is of topic number {header.topic_id} ({header.name!a}), partition {header.partition}, and lies in the folder of"
        f" topic number {owner.topic_id}{named}, partition {owner.partition}"
    )


def pack_header(header: Header) -> bytes:
    name = header.name.encode()[: limits.TOPIC_NAME_BYTES_MAX]
    body = _HEADER.pack(
        _MAGIC,
        0,
        FORMAT_VERSION if header.chain.kind else 1,
        header.seed,
        header.topic_id,
        header.partition,
        len(name),
        header.base,
        header.created,
    )
    data = bytearray((body + name).ljust(HEADER_BYTES, b"\0"))
    _CHAIN.pack_into(data, _CHAIN_AT, *header.chain)
    _U32.pack_into(data, 8, kernel.crc32c(memoryview(data)[12:]))
    return bytes(data)


def parse_header(data: bytes) -> Header | None:
    """The header, or None if it does not check out. A newer version raises ValueError."""
    if len(data) < HEADER_BYTES:
        return None
    magic, crc, version, seed, topic_id, partition, name_length, base, created = _HEADER.unpack_from(data)
    if magic != _MAGIC or crc != kernel.crc32c(memoryview(data)[12:HEADER_BYTES]) or seed == 0:
        return None
    if version > FORMAT_VERSION:
        raise ValueError(f"segment format {version} is newer than {FORMAT_VERSION}")
    chain = UNCHAINED if version < FORMAT_VERSION else ChainStart(*_CHAIN.unpack_from(data, _CHAIN_AT))
    name = data[48 : 48 + name_length].decode(errors="replace")
    return Header(seed, topic_id, partition, base, created, name, chain)


def salvage_seed(data: bytes, base: int) -> int | None:
    """The seed of a segment whose header does not check out, if its batches prove it. `data` is the whole file.

    Tried are the seed as it stands, the seed with one bit turned, and the seed a batch must have been sealed with, if
    the batch behind it agrees."""
    if len(data) < HEADER_BYTES + limits.BATCH_HEADER_BYTES:
        return None
    seed: int = _U32.unpack_from(data, 16)[0]
    for candidate in (seed, *(seed ^ (1 << bit) for bit in range(32))):
        if candidate and kernel.check(data, HEADER_BYTES, candidate) > 0:
            return candidate
    at = data.find(BATCH_MAGIC, HEADER_BYTES)
    for _ in range(SALVAGE_STARTS):
        if at < 0:
            break
        entries = kernel.walk(data, at, len(data), 0, False)[0][:2] if at % 8 == 0 else []
        if len(entries) == 2 and entries[0][2] >= base:
            candidate = _solve_seed(data[at : entries[1][0]])
            if candidate and kernel.check(data, entries[1][0], candidate) > 0:
                return candidate
        at = data.find(BATCH_MAGIC, at + 1)
    return None


def _solve_seed(batch: bytes) -> int:
    """The start value that gives a batch its checksum: the checksum is linear in it, so 32 equations over bits."""
    body = batch[8:]
    zero = kernel.crc32c(body, 0)
    target = crc_of(batch) ^ zero
    reduced: list[tuple[int, int]] = []  # (what the checksum changes by, which bits of the start value do that)
    for bit in range(32):
        effect, cause = kernel.crc32c(body, 1 << bit) ^ zero, 1 << bit
        for known, known_cause in reduced:
            if effect ^ known < effect:
                effect, cause = effect ^ known, cause ^ known_cause
        reduced.append((effect, cause))
        reduced.sort(reverse=True)
    seed = 0
    for known, cause in reduced:
        if target ^ known < target:
            target, seed = target ^ known, seed ^ cause
    return seed


class Index:
    """Sparse: where the batches about every 64 KiB start. Entries may be added at the end while readers look at it."""

    __slots__ = ("bases", "first", "positions", "times")

    def __init__(self, first: int = HEADER_BYTES) -> None:
        self.first = first  # positions below this are not covered
        self.bases: list[int] = []
        self.positions: list[int] = []
        self.times: list[int] = []

    def add(self, position: int, base: int, max_timestamp: int) -> None:
        """Take note of a batch, called for every batch in order."""
        if not self.positions or position - self.positions[-1] >= limits.INDEX_EVERY_BYTES:
            time = max(max_timestamp, self.times[-1]) if self.times else max_timestamp
            self.times.append(time)
            self.positions.append(position)
            self.bases.append(base)
        elif max_timestamp > self.times[-1]:
            self.times[-1] = max_timestamp

    def add_all(self, position: int, buffers: Sequence[bytearray]) -> None:
        for buffer in buffers:
            batch = RecordBatch(buffer)
            self.add(position, batch.base_offset, batch.max_timestamp)
            position += batch.length

    def copy(self) -> "Index":
        made = Index(self.first)
        made.bases, made.positions, made.times = self.bases[:], self.positions[:], self.times[:]
        return made

    def place(self, offset: int) -> tuple[int, int] | None:
        """(base_offset, position) of the last entry at or below offset."""
        at = bisect_right(self.bases, offset) - 1
        return (self.bases[at], self.positions[at]) if at >= 0 else None

    def around(self, offset: int) -> tuple[int, int, int | None] | None:
        """(base_offset, position) of that entry, and the position of the next one: whole batches are between them. None for the
        last entry: they go on to the end."""
        at = bisect_right(self.bases, offset) - 1
        if at < 0:
            return None
        return self.bases[at], self.positions[at], self.positions[at + 1] if at + 1 < len(self.positions) else None

    def offset_at(self, timestamp: int) -> int | None:
        """A lower bound for the first offset with this time or a later one; None if all are earlier."""
        for base, time in zip(self.bases, self.times, strict=False):
            if time >= timestamp:
                return base
        return None

    @property
    def max_timestamp(self) -> int:
        """The newest time; -1: unknown, because no batch was seen. Retention must not take that for old."""
        return self.times[-1] if self.times else -1


def pack_index(index: Index, seed: int, segment_end: int, next_offset: int) -> bytes:
    entries = zip(index.bases, index.positions, index.times, strict=True)
    data = bytearray(_INDEX_HEADER.pack(_INDEX_MAGIC, 0, len(index.bases), segment_end, next_offset))
    for entry in entries:
        data += _INDEX_ENTRY.pack(*entry)
    _U32.pack_into(data, 8, kernel.crc32c(memoryview(data)[12:], seed))
    return bytes(data)


def parse_index(data: bytes, seed: int) -> tuple[Index, int, int] | None:
    """(index, segment_end, next_offset), or None on any doubt."""
    if len(data) < _INDEX_HEADER.size:
        return None
    magic, crc, count, segment_end, next_offset = _INDEX_HEADER.unpack_from(data)
    if magic != _INDEX_MAGIC or len(data) != _INDEX_HEADER.size + count * _INDEX_ENTRY.size:
        return None
    if crc != kernel.crc32c(memoryview(data)[12:], seed):
        return None
    index = Index()
    for base, position, time in _INDEX_ENTRY.iter_unpack(data[_INDEX_HEADER.size :]):
        index.bases.append(base)
        index.positions.append(position)
        index.times.append(time)
    return index, segment_end, next_offset


class Segment(msgspec.Struct, eq=False, gc=False):
    """What the loop thread knows about one file. `end` and `next_offset` cover what is committed. It is part of no cycle, so the
    collector need not know it: there may be 100,000."""

    directory: str
    base: int
    seed: int
    index: Index | None = msgspec.field(default_factory=Index)  # None: there is a file, and its index is not known yet
    next_offset: int = -1  # the base, until it is known
    begun: int = 0  # when the file was made: no record in it is older; 0: unknown
    chain: ChainStart = UNCHAINED
    end: int = HEADER_BYTES
    allocated: int = HEADER_BYTES  # zero-filled and durable up to here
    handle: int = -1  # open for writing, or -1
    created: bool = False  # the file is there
    named: bool = False  # and a power cut does not take its name: DirectorySync.sync was called
    max_timestamp: int = -1  # unknown
    compacted: bool = False  # made by compaction, or left alone by it for its damage
    packed: bool = False  # in a pack, with others: it does not grow beyond its room (packs.py)
    journaled: bool = False  # the journal has its beginning: a replay makes it anew

    def __post_init__(self) -> None:
        if self.next_offset < 0:
            self.next_offset = self.base

    @property
    def path(self) -> str:
        return f"{self.directory}/{segment_name(self.base)}"


class Damage(msgspec.Struct, frozen=True):
    """A range of a segment that does not check out, and the offsets it takes with it (first_lost..next_sound-1)."""

    path: str
    position: int
    length: int
    reason: int
    first_lost: int
    next_sound: int

    @property
    def loses(self) -> bool:
        """Are records lost? Not if only the header of a segment does not check out and its batches do."""
        return self.position >= HEADER_BYTES or self.next_sound > self.first_lost

    def __str__(self) -> str:
        offsets = f", offsets {self.first_lost} to {self.next_sound - 1}" if self.next_sound > self.first_lost else ""
        return f"{self.path} at byte {self.position}: {REASONS.get(self.reason, str(self.reason))}{offsets}"

    def line(self) -> dict[str, object]:
        return {
            "file": self.path,
            "position": self.position,
            "length": self.length,
            "reason": REASONS.get(self.reason, str(self.reason)),
            "first_offset": self.first_lost,
            "next_offset": self.next_sound,
        }


class Run(NamedTuple):
    """Sound batches one behind the other: entries as from kernel.walk, positions within `data`, which starts at
    `origin` of the file."""

    data: bytes | bytearray
    origin: int
    entries: list[Entry]


class Gap(NamedTuple):
    """Bytes that are no sound batch. `resumes` is the position of the next sound one, or -1: there is none."""

    position: int
    resumes: int
    reason: int
    next_base: int


def scan(
    disk: Disk, handle: int, seed: int, start: int, stop: int, expected: int, window: int = SCAN_WINDOW_BYTES
) -> Iterator[Run | Gap]:
    """Go through [start, stop) of a segment, where the batch at start must have base_offset `expected` (or be SPARSE and
    begin later). Yields runs of sound batches and the gaps between them; a last gap with reason 0 is a clean end."""
    position = start
    size = window
    while position < stop:
        data = disk.pread(handle, min(size, stop - position), position)
        if not data:
            yield Gap(position, -1, -1, expected)
            return
        entries, taken, reason = kernel.walk(data, 0, len(data), seed, True)
        size = window
        good, expected, broken = continuous(data, entries, expected)
        if good:
            yield Run(data, position, good)
        if broken is not None:
            taken, reason = broken, -6 if broken == taken else -5
        if reason == 0 and taken == len(data):
            position += taken
            continue
        at_end = position + len(data) >= stop
        if reason == -1 and not at_end and broken is None:
            if good:
                position += taken
                continue
            needed = _claimed_length(data, taken)
            if len(data) < needed <= min(limits.BATCH_BYTES_MAX, stop - position):
                size = needed
                continue
            reason = -2
        yield from _beyond(disk, handle, seed, position + taken, stop, expected, reason)
        return


def _beyond(
    disk: Disk, handle: int, seed: int, position: int, stop: int, expected: int, reason: int
) -> Iterator[Run | Gap]:
    """The rest of a segment from a place where it does not go on as it should."""
    rest = disk.pread(handle, stop - position, position)
    done = 0
    for run in _adjacent(_salvage(rest, seed, expected), rest):
        start, base = run[0][0], run[0][2]
        yield Gap(position + done, position + start, reason, base)
        yield Run(rest, position, run)
        done, expected, reason = run[-1][0] + run[-1][1], run[-1][2] + run[-1][3], -2
    if done < len(rest):
        yield Gap(position + done, -1, 0 if all_zero(rest[done:]) else reason, expected)


def _salvage(rest: bytes, seed: int, expected: int) -> list[Entry]:
    """The sound batches behind a damage. Where blocks were swapped or written to the wrong place, sound batches can be
    out of order; then the longest series with rising offsets is the log, and the others are strays."""
    found: list[Entry] = []
    at = kernel.find(rest, 0, len(rest), seed)
    while at >= 0:
        entries, taken, _ = kernel.walk(rest, at, len(rest), seed, True)
        found += [entry for entry in entries if entry[2] >= expected]
        at = kernel.find(rest, max(taken, at + 8), len(rest), seed)
    bases: list[int] = []  # the lowest base that ends a series of this length, and which entry that is
    ends: list[int] = []
    before: list[int] = []
    for number, entry in enumerate(found):
        length = bisect_left(bases, entry[2])
        before.append(ends[length - 1] if length else -1)
        bases[length : length + 1] = [entry[2]]
        ends[length : length + 1] = [number]
    series: list[Entry] = []
    number = ends[-1] if ends else -1
    while number >= 0:
        series.append(found[number])
        number = before[number]
    return series[::-1]


def _adjacent(series: list[Entry], data: bytes) -> Iterator[list[Entry]]:
    """Cut a series where bytes or offsets are missing."""
    while series:
        end, following = series[0][0], series[0][2]
        count = 0
        for position, length, base, span, _ in series:
            if position != end or (base != following and not is_sparse(data, position)):
                break
            end, following = position + length, base + span
            count += 1
        yield series[:count]
        series = series[count:]


def continuous(data: bytes | bytearray, entries: list[Entry], expected: int) -> tuple[list[Entry], int, int | None]:
    """The entries that continue each other exactly, what is expected behind them, and where continuity broke."""
    for number, (position, _, base, span, _) in enumerate(entries):
        if base != expected and (base < expected or not is_sparse(data, position)):
            return entries[:number], expected, position
        expected = base + span
    return entries, expected, None


def _claimed_length(data: bytes, position: int) -> int:
    if position + 12 > len(data):
        return len(data) + limits.BATCH_HEADER_BYTES
    return position + length_of(data, position)


def all_zero(data: bytes) -> bool:
    """Compared block by block in place: a preallocated tail is up to 16 MiB of zeros at every start after a crash."""
    whole = len(data) - len(data) % len(_ZEROS)
    return _ZEROS.startswith(data[whole:]) and all(data.startswith(_ZEROS, at) for at in range(0, whole, len(_ZEROS)))


def begin_again(disk: Disk, segment: Segment, header: Header) -> None:
    """Put another header in the place of one behind which there is nothing yet."""
    if segment.packed:  # one sector: there is the old one or the new one
        handle = disk.open(segment.path, write=True)
        disk.pwritev(handle, [pack_header(header)], 0)
        disk.fdatasync(handle)
    else:
        replace_file(disk, segment.directory, segment_name(segment.base), pack_header(header))
        segment.allocated = HEADER_BYTES
    segment.chain = header.chain


def write_index(disk: Disk, segment: Segment, index: Index, end: int, next_offset: int) -> None:
    if segment.packed:  # made again in less time than a file takes
        return
    data = pack_index(index, segment.seed, end, next_offset)
    # Not durably: it checks out only whole and with its segment, and what a power cut takes of it is made again.
    replace_file(disk, segment.directory, index_name(segment.base), data, durable=False)


def load_index(disk: Disk, segment: Segment, size: int) -> Index | None:
    """The index file of a sealed segment, if it fits the segment beyond doubt."""
    data = disk.read_file(f"{segment.directory}/{index_name(segment.base)}")
    if data is None:
        return None
    found = parse_index(data, segment.seed)
    if found is None or found[1] != size or found[2] != segment.next_offset:
        return None
    return found[0]


def adopt_index(segment: Segment, index: Index, stop: int) -> None:
    """An index made or loaded by a reader covers the file below `stop`; what we noted since lies behind it."""
    if segment.index is None:
        segment.index = index
        segment.max_timestamp = index.max_timestamp
    elif segment.index.first > HEADER_BYTES:
        noted = zip(segment.index.bases, segment.index.positions, segment.index.times, strict=True)
        for base, position, time in noted:
            if position >= stop:
                index.add(position, base, time)
        segment.index = index


def build_index(disk: Disk, handle: int, segment: Segment, stop: int) -> Index:
    """The index made again from the segment's batches below stop; damage is left out."""
    index = Index()
    for part in scan(disk, handle, segment.seed, HEADER_BYTES, stop, segment.base):
        if isinstance(part, Run):
            for position, _, base, _, time in part.entries:
                index.add(part.origin + position, base, time)
    return index
