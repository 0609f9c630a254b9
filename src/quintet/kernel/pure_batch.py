"""Record batches in pure Python: the readable twin of the native kernel's batch functions, same bytes, same refusals.

Lives here because the broker must run (slowly) where no Rust was built, and because two independent twins check each
other. No I/O, no clock, no BlipMQ. The layout is docs/LOG_FORMAT.md section 3.
"""

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import le
from typing import NamedTuple, cast

from typing_extensions import Buffer

from quintet.kernel.pure_crc import crc32c

Headers = Sequence[tuple[bytes, bytes]]
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes], ...], int, bytes]

#   0      4      8       12     14       16           24     28    32         40             48           56
#  |magic |crc   |length |flags |columns |base_offset |count |span |timestamp |max_timestamp |producer_id |sequence
#   60     62       64
#  |epoch |origins |columns...
HEADER = struct.Struct("<4sIIHHQIIqqQIHH")
MAGIC = b"QRB1"
HEADER_BYTES = 64
MAX_BATCH_BYTES = 64 * 1024 * 1024
MAX_ORIGINS_ENTRIES = 255
MAX_OFFSET = (1 << 63) - 1

AT_MOST_ONCE = 1
KNOWN_FLAGS = 7
VALUE_NULLS, KEYS, KEY_NULLS, HEADERS, TIMESTAMPS, EXPIRY, SPARSE, CHAIN = (1 << bit for bit in range(8))
KNOWN_COLUMNS = 255
LINK_BYTES = 32

ZEROS, CUT_SHORT, BAD_HEADER, BAD_CHECKSUM, BAD_COLUMNS, OFFSETS_FELL = 0, -1, -2, -3, -4, -5
FIND_STEP_BYTES = 1024 * 1024


class Head(NamedTuple):
    """The 64 bytes in front of every batch."""

    magic: bytes
    crc: int
    length: int
    flags: int
    columns: int
    base_offset: int
    records: int
    span: int
    timestamp: int
    max_timestamp: int
    producer_id: int
    sequence: int
    epoch: int
    origins: int


class Layout(NamedTuple):
    """Where each column is, relative to the start of the batch; 0 where absent."""

    origin_offsets: int
    origin_data: int
    origin_index: int
    value_bitmap: int
    value_offsets: int
    value_data: int
    key_bitmap: int
    key_offsets: int
    key_data: int
    header_lists: int
    header_count: int
    name_offsets: int
    name_data: int
    hvalue_offsets: int
    hvalue_data: int
    timestamps: int
    expiries: int
    deltas: int
    end: int


class Records(NamedTuple):
    """The columns of a batch, or of a part of one, as lists; None where the column is absent."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[tuple[tuple[bytes, bytes], ...]] | None
    timestamps: list[int] | None
    expiries: list[int] | None
    origins: list[bytes]
    origin_index: list[int] | None
    deltas: list[int] | None


def view_of(data: Buffer) -> memoryview:
    """A flat view of unsigned bytes; the native twin takes nothing else either."""
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1 or not view.c_contiguous:
        raise BufferError("the kernel needs a contiguous buffer of unsigned bytes; cast the view to 'B' first")
    return view


def pad8(size: int) -> int:
    return (size + 7) & ~7


# -- reading ----------------------------------------------------------------------------------------------------------


def head_of(view: memoryview, start: int) -> Head:
    """The header at start, refused unless the whole batch is in the view."""
    if start < 0 or start > len(view) or len(view) - start < HEADER_BYTES:
        raise ValueError("no batch here: fewer than 64 bytes; pass the buffer that holds the whole batch")
    head = Head._make(HEADER.unpack_from(view, start))
    if not _header_sound(head):
        raise ValueError("no batch here: a header field is out of its range")
    if head.length > len(view) - start:
        raise ValueError("batch is cut short: the buffer ends before the batch does")
    return head


def _header_sound(head: Head) -> bool:
    return (
        head.magic == MAGIC
        and HEADER_BYTES <= head.length <= MAX_BATCH_BYTES
        and head.length % 8 == 0
        and not head.flags & ~KNOWN_FLAGS
        and not head.columns & ~KNOWN_COLUMNS
        and not (head.columns & KEY_NULLS and not head.columns & KEYS)
        and head.records >= 1
        and (head.span >= head.records if head.columns & SPARSE else head.span == head.records)
        and head.base_offset <= MAX_OFFSET - head.span
        and 1 <= head.origins <= MAX_ORIGINS_ENTRIES
    )


def _fixed(pos: int, size: int, length: int) -> int:
    """Where a column of `size` bytes at pos ends, padded."""
    end = pad8(pos + size)
    if end > length:
        raise ValueError("batch columns do not add up: a column runs over the end of the batch")
    return end


def _var(view: memoryview, start: int, pos: int, n: int, length: int) -> tuple[int, int]:
    """(data, end) of the var of n at pos."""
    data = _fixed(pos, 4 * (n + 1), length)
    (zero,) = struct.unpack_from("<i", view, start + pos)
    (last,) = struct.unpack_from("<i", view, start + pos + 4 * n)
    if zero != 0 or last < 0:
        raise ValueError("batch columns do not add up: offsets must start at 0 and never be negative")
    return data, _fixed(data, last, length)


def locate(view: memoryview, start: int, head: Head) -> Layout:
    """The layout of a batch whose header is sound. Looks at the first and last offset of each column only."""
    n, length, bits = head.records, head.length, head.columns
    origin_offsets = HEADER_BYTES
    origin_data, pos = _var(view, start, origin_offsets, head.origins, length)
    origin_index = value_bitmap = key_bitmap = key_offsets = key_data = 0
    if head.origins > 1:
        origin_index, pos = pos, _fixed(pos, n, length)
    if bits & VALUE_NULLS:
        value_bitmap, pos = pos, _fixed(pos, (n + 7) // 8, length)
    value_offsets = pos
    value_data, pos = _var(view, start, pos, n, length)
    if bits & KEY_NULLS:
        key_bitmap, pos = pos, _fixed(pos, (n + 7) // 8, length)
    if bits & KEYS:
        key_offsets = pos
        key_data, pos = _var(view, start, pos, n, length)
    lists = m = name_offsets = name_data = hvalue_offsets = hvalue_data = 0
    if bits & HEADERS:
        lists, name_offsets = pos, _fixed(pos, 4 * (n + 1), length)
        (zero,) = struct.unpack_from("<i", view, start + lists)
        (m,) = struct.unpack_from("<i", view, start + lists + 4 * n)
        if zero != 0 or m < 0:
            raise ValueError("batch columns do not add up: header lists must start at 0 and never be negative")
        name_data, hvalue_offsets = _var(view, start, name_offsets, m, length)
        hvalue_data, pos = _var(view, start, hvalue_offsets, m, length)
    timestamps = expiries = deltas = 0
    if bits & TIMESTAMPS:
        timestamps, pos = pos, _fixed(pos, 8 * n, length)
    if bits & EXPIRY:
        expiries, pos = pos, _fixed(pos, 8 * n, length)
    if bits & SPARSE:
        deltas, pos = pos, _fixed(pos, 4 * n, length)
    if bits & CHAIN:
        pos = _fixed(pos, LINK_BYTES, length)
    if pos != length:
        raise ValueError("batch columns do not add up: the last column does not end where the batch does")
    return Layout(
        *(origin_offsets, origin_data, origin_index, value_bitmap, value_offsets, value_data, key_bitmap),
        *(key_offsets, key_data, lists, m, name_offsets, name_data, hvalue_offsets, hvalue_data),
        *(timestamps, expiries, deltas, pos),
    )


def layout(batch: Buffer, start: int = 0) -> tuple[int, ...]:
    view = view_of(batch)
    return tuple(locate(view, start, head_of(view, start)))


def ints(view: memoryview, code: str, at: int, n: int) -> tuple[int, ...]:
    return struct.unpack_from(f"<{n}{code}", view, at)


def _zero(view: memoryview, at: int, end: int) -> bool:
    return not any(view[at:end])


def columns_sound(view: memoryview, start: int, head: Head, where: Layout) -> bool:
    """Every entry of every column is in range and all padding is zero."""
    n = head.records
    part = view[start : start + head.length]

    def var(offsets_at: int, data_at: int, count: int, bitmap_at: int = 0) -> bool:
        offsets = ints(part, "i", offsets_at, count + 1)
        end = data_at + offsets[-1]
        if not all(map(le, offsets, offsets[1:])):
            return False
        if not _zero(part, offsets_at + 4 * (count + 1), data_at) or not _zero(part, end, pad8(end)):
            return False
        if not bitmap_at:
            return True
        bits = bytes(part[bitmap_at:offsets_at])
        if int.from_bytes(bits, "little") >> count:
            return False
        return all(bits[i >> 3] >> (i & 7) & 1 or a == b for i, (a, b) in enumerate(pairwise(offsets)))

    if not var(where.origin_offsets, where.origin_data, head.origins):
        return False
    if where.origin_index:
        end = where.origin_index + n
        if max(part[where.origin_index : end]) >= head.origins or not _zero(part, end, pad8(end)):
            return False
    if not var(where.value_offsets, where.value_data, n, where.value_bitmap):
        return False
    if where.key_offsets and not var(where.key_offsets, where.key_data, n, where.key_bitmap):
        return False
    if where.header_lists:
        lists = ints(part, "i", where.header_lists, n + 1)
        if not all(map(le, lists, lists[1:])):
            return False
        if not _zero(part, where.header_lists + 4 * (n + 1), where.name_offsets):
            return False
        if not var(where.name_offsets, where.name_data, where.header_count):
            return False
        if not var(where.hvalue_offsets, where.hvalue_data, where.header_count):
            return False
    if where.deltas:
        deltas = ints(part, "I", where.deltas, n)
        end = where.deltas + 4 * n
        if any(a >= b for a, b in pairwise(deltas)) or deltas[-1] >= head.span or not _zero(part, end, pad8(end)):
            return False
    return True


def check(data: Buffer, start: int, seed: int) -> int:
    view = view_of(data)
    if not 0 <= start <= len(view):
        raise ValueError("start is outside the buffer")
    return check_at(view, start, len(view), seed, True)


def check_at(view: memoryview, start: int, stop: int, seed: int, verify: bool) -> int:
    """As check, for a batch that must end at or before stop. Without verify only its header is looked at."""
    left = stop - start
    if left < 4:
        return CUT_SHORT
    magic = bytes(view[start : start + 4])
    if magic != MAGIC:
        return BAD_HEADER if any(magic) else ZEROS
    if left < HEADER_BYTES:
        return CUT_SHORT
    head = Head._make(HEADER.unpack_from(view, start))
    if not _header_sound(head):
        return BAD_HEADER
    if left < head.length:
        return CUT_SHORT
    if not verify:
        return head.length
    if crc32c(view[start + 8 : start + head.length], seed) != head.crc:
        return BAD_CHECKSUM
    try:
        where = locate(view, start, head)
    except ValueError:
        return BAD_COLUMNS
    return head.length if columns_sound(view, start, head, where) else BAD_COLUMNS


def walk(
    data: Buffer, start: int, stop: int, seed: int, verify: bool
) -> tuple[list[tuple[int, int, int, int, int]], int, int]:
    view = view_of(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError("start and stop must lie in the buffer, in this order")
    found: list[tuple[int, int, int, int, int]] = []
    next_offset = 0
    while start < stop:
        length = check_at(view, start, stop, seed, verify)
        if length <= 0:
            return found, start, length
        head = Head._make(HEADER.unpack_from(view, start))
        if head.base_offset < next_offset:
            return found, start, OFFSETS_FELL
        found.append((start, length, head.base_offset, head.span, head.max_timestamp))
        next_offset = head.base_offset + head.span
        start += length
    return found, start, ZEROS


def find(data: Buffer, start: int, stop: int, seed: int) -> int:
    view = view_of(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError("start and stop must lie in the buffer, in this order")
    for base in range(start, stop, FIND_STEP_BYTES):
        chunk = bytes(view[base : min(base + FIND_STEP_BYTES + 3, stop)])
        at = chunk.find(MAGIC)
        while at >= 0:
            if at % 8 == 0 and at < FIND_STEP_BYTES and check_at(view, base + at, stop, seed, True) > 0:
                return base + at
            at = chunk.find(MAGIC, at + 1)
    return -1


# -- records as lists -------------------------------------------------------------------------------------------------


def _spans(view: memoryview, offsets_at: int, data_at: int, limit: int, first: int, last: int) -> list[bytes]:
    """Entries first..last-1 of a var whose data ends at `limit`, each checked."""
    offsets = ints(view, "i", offsets_at + 4 * first, last - first + 1)
    out = []
    for a, b in pairwise(offsets):
        if not 0 <= a <= b or data_at + b > limit:
            raise ValueError("batch columns do not add up: an entry lies outside its column")
        out.append(bytes(view[data_at + a : data_at + b]))
    return out


def _nullable(view: memoryview, bitmap: int, first: int, entries: list[bytes]) -> list[bytes | None]:
    if not bitmap:
        return list(entries)
    return [e if view[bitmap + (i >> 3)] >> (i & 7) & 1 else None for i, e in enumerate(entries, first)]


def data_end(view: memoryview, offsets_at: int, data_at: int, n: int) -> int:
    return data_at + ints(view, "i", offsets_at + 4 * n, 1)[0]


def explode(view: memoryview, head: Head, where: Layout, first: int, last: int) -> Records:
    """Records first..last-1 of the batch at the view's start."""
    n, w = head.records, where

    def var(offsets_at: int, data_at: int, count: int, a: int, b: int) -> list[bytes]:
        return _spans(view, offsets_at, data_at, data_end(view, offsets_at, data_at, count), a, b)

    values = _nullable(view, w.value_bitmap, first, var(w.value_offsets, w.value_data, n, first, last))
    keys = None
    if w.key_offsets:
        keys = _nullable(view, w.key_bitmap, first, var(w.key_offsets, w.key_data, n, first, last))
    headers = None
    if w.header_lists:
        headers = []
        for a, b in pairwise(ints(view, "i", w.header_lists + 4 * first, last - first + 1)):
            if not 0 <= a <= b <= w.header_count:
                raise ValueError("batch columns do not add up: a header list lies outside its column")
            names = var(w.name_offsets, w.name_data, w.header_count, a, b)
            headers.append(tuple(zip(names, var(w.hvalue_offsets, w.hvalue_data, w.header_count, a, b), strict=True)))
    origins = var(w.origin_offsets, w.origin_data, head.origins, 0, head.origins)
    index = list(view[w.origin_index + first : w.origin_index + last]) if w.origin_index else None
    if index and max(index) >= head.origins:
        raise ValueError("batch columns do not add up: an origin number has no entry")
    return Records(
        values,
        keys,
        headers,
        list(ints(view, "q", w.timestamps + 8 * first, last - first)) if w.timestamps else None,
        list(ints(view, "q", w.expiries + 8 * first, last - first)) if w.expiries else None,
        origins,
        index,
        list(ints(view, "I", w.deltas + 4 * first, last - first)) if w.deltas else None,
    )


def rows(batch: Buffer, first: int, last: int, view_above: int = 0) -> list[Row]:
    view = view_of(batch)
    head = head_of(view, 0)
    where = locate(view, 0, head)
    if not 0 <= first <= last <= head.records:
        raise ValueError("first and last must lie in the batch, in this order")
    got = explode(view, head, where, first, last)
    n = last - first
    if view_above:
        got = got._replace(values=[_viewed(value, view_above) for value in got.values])
    return list(
        zip(
            (head.base_offset + d for d in (range(first, last) if got.deltas is None else got.deltas)),
            got.timestamps or [head.timestamp] * n,
            got.keys or [None] * n,
            got.values,
            got.headers or [()] * n,
            got.expiries or [0] * n,
            (got.origins[i] for i in got.origin_index or [0] * n),
            strict=True,
        )
    )


def _viewed(value: bytes | None, above: int) -> bytes | None:
    """The twin copies all the same; only the kind of object is the native one's."""
    return value if value is None or len(value) <= above else cast(bytes, memoryview(value))


# -- writing ----------------------------------------------------------------------------------------------------------


def _put_var(parts: list[bytes], entries: Sequence[bytes]) -> None:
    total = sum(map(len, entries))
    if total > MAX_BATCH_BYTES:
        raise ValueError("batch too large: over 64 MiB; split it into several batches")
    offsets = struct.pack(f"<{len(entries) + 1}i", *accumulate(map(len, entries), initial=0))
    data = b"".join(entries)
    parts += (offsets, bytes(-len(offsets) % 8), data, bytes(-len(data) % 8))


def _put_nullable(parts: list[bytes], entries: Sequence[bytes | None], with_bitmap: int) -> None:
    if with_bitmap:
        bits = int("".join("0" if entry is None else "1" for entry in reversed(entries)), 2)
        parts.append(bits.to_bytes(pad8((len(entries) + 7) // 8), "little"))
    _put_var(parts, [entry or b"" for entry in entries])


def pack(records: Records, columns: int, head: Head) -> bytearray:
    """The batch of these records with exactly these columns; length, columns and counts are put into the header."""
    n = len(records.values)
    if not 1 <= len(records.origins) <= MAX_ORIGINS_ENTRIES:
        raise ValueError("a batch holds 1 to 255 different origins; split it by origin")
    parts: list[bytes] = []
    _put_var(parts, records.origins)
    if len(records.origins) > 1:
        parts += (bytes(records.origin_index or bytes(n)), bytes(-n % 8))
    _put_nullable(parts, records.values, columns & VALUE_NULLS)
    if columns & KEYS:
        _put_nullable(parts, records.keys or [None] * n, columns & KEY_NULLS)
    if columns & HEADERS:
        lists = records.headers or [()] * n
        offsets = struct.pack(f"<{n + 1}i", *accumulate(map(len, lists), initial=0))
        parts += (offsets, bytes(-len(offsets) % 8))
        _put_var(parts, [name for one in lists for name, _ in one])
        _put_var(parts, [value for one in lists for _, value in one])
    if columns & TIMESTAMPS:
        parts.append(struct.pack(f"<{n}q", *(records.timestamps or ())))
    if columns & EXPIRY:
        parts.append(struct.pack(f"<{n}q", *(records.expiries or ())))
    if columns & SPARSE:
        parts += (struct.pack(f"<{n}I", *(records.deltas or ())), bytes(-4 * n % 8))
    length = HEADER_BYTES + sum(map(len, parts))
    if length > MAX_BATCH_BYTES:
        raise ValueError("batch too large: over 64 MiB; split it into several batches")
    full = head._replace(length=length, columns=columns, records=n, origins=len(records.origins))
    return bytearray(b"".join((HEADER.pack(*full), *parts)))


def fresh_head(flags: int, count: int) -> Head:
    return Head(MAGIC, 0, 0, flags, 0, 0, count, count, 0, 0, 0, 0, 0, 0)


def build(
    values: Sequence[bytes | memoryview | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers] | None = None,
    timestamps: Sequence[int] | None = None,
    expiries: Sequence[int] | None = None,
    origin: bytes = b"",
    flags: int = 0,
) -> bytearray:
    if not values:
        raise ValueError("a batch holds at least one record")
    if flags & ~KNOWN_FLAGS:
        raise ValueError("unknown batch flag; known are bits 0 to 2")
    for column in (keys, headers, timestamps, expiries):
        if column is not None and len(column) != len(values):
            raise ValueError("columns differ in length; give each record one entry in every column")
    columns = VALUE_NULLS if None in values else 0
    if keys is not None and any(key is not None for key in keys):
        columns |= KEYS | (KEY_NULLS if None in keys else 0)
    if headers is not None and any(len(one) for one in headers):
        columns |= HEADERS
    columns |= TIMESTAMPS if timestamps is not None else 0
    columns |= EXPIRY if expiries is not None and any(expiries) else 0
    records = Records(
        [bytes(one) if isinstance(one, memoryview) else one for one in values],
        list(keys) if keys is not None else None,
        [tuple(one) for one in headers] if headers is not None else None,
        list(timestamps) if timestamps is not None else None,
        list(expiries) if expiries is not None else None,
        [origin],
        None,
        None,
    )
    return pack(records, columns, fresh_head(flags, len(values)))


def _whole(batch: Buffer) -> tuple[memoryview, Head, Records]:
    """A batch with every entry checked, as lists."""
    view = view_of(batch)
    head = head_of(view, 0)
    where = locate(view, 0, head)
    if not columns_sound(view, 0, head, where):
        raise ValueError("batch columns do not add up: an entry is out of range or padding is not zero")
    return view, head, explode(view, head, where, 0, head.records)


def merge(batches: Sequence[Buffer], timestamp: int) -> bytearray:
    if not batches:
        raise ValueError("nothing to merge; give at least one batch")
    taken = [_whole(batch)[1:] for batch in batches]
    flags = taken[0][0].flags
    columns = 0
    for head, _ in taken:
        if head.flags != flags:
            raise ValueError("batches with different flags cannot be merged")
        if head.producer_id:
            raise ValueError("a batch with a producer_id keeps its identity and cannot be merged")
        if head.columns & SPARSE:
            raise ValueError("a compacted (SPARSE) batch cannot be merged")
        columns |= head.columns & ~CHAIN  # a link belongs to one place in one log
    if columns & KEYS and not all(head.columns & KEYS for head, _ in taken):
        columns |= KEY_NULLS
    numbers: dict[bytes, int] = {}
    out = Records([], [], [], [], [], [], [], None)
    assert out.keys is not None and out.headers is not None and out.origin_index is not None
    assert out.timestamps is not None and out.expiries is not None
    for head, got in taken:
        n = head.records
        mapping = [numbers.setdefault(name, len(numbers)) for name in got.origins]
        if len(numbers) > MAX_ORIGINS_ENTRIES:
            raise ValueError("a batch holds 1 to 255 different origins; split it by origin")
        out.origin_index.extend(
            [mapping[i] for i in got.origin_index] if got.origin_index is not None else [mapping[0]] * n
        )
        out.values.extend(got.values)
        out.keys.extend(got.keys if got.keys is not None else [None] * n)
        out.headers.extend(got.headers if got.headers is not None else [()] * n)
        out.timestamps.extend(got.timestamps if got.timestamps is not None else [timestamp] * n)
        out.expiries.extend(got.expiries if got.expiries is not None else [0] * n)
    records = out._replace(origins=list(numbers))
    return pack(records, columns, fresh_head(flags, len(out.values)))


def _exact(batch: bytearray) -> tuple[Head, Layout]:
    if not isinstance(batch, bytearray):
        raise TypeError("a batch is sealed in place and must be a bytearray")
    with memoryview(batch) as view:
        head = head_of(view, 0)
        if head.length != len(batch):
            raise ValueError("the bytearray must hold exactly one batch")
        return head, locate(view, 0, head)


def seal(batch: bytearray, base_offset: int, timestamp: int, seed: int) -> None:
    place(batch, base_offset, timestamp)
    reseal(batch, seed)


def place(batch: bytearray, base_offset: int, timestamp: int) -> None:
    head, where = _exact(batch)
    if not 0 <= base_offset <= MAX_OFFSET - head.span:
        raise ValueError("base_offset must be at least 0 and leave room for the batch's offsets below 2**63")
    greatest = timestamp
    if where.timestamps:
        greatest = max(struct.unpack_from(f"<{head.records}q", batch, where.timestamps))
    struct.pack_into("<Q", batch, 16, base_offset)
    struct.pack_into("<qq", batch, 32, timestamp, greatest)


def reseal(batch: bytearray, seed: int) -> None:
    _exact(batch)
    with memoryview(batch) as view:
        struct.pack_into("<I", batch, 4, crc32c(view[8:], seed))


def _link_of(view: memoryview, start: int, length: int, before: bytes, key: bytes) -> bytes:
    """What the link of the batch at start must be."""
    from blake3 import blake3  # of the broker and of who verifies its files: clients load this module without it

    hasher = blake3(before, key=key) if key else blake3(before)
    with view[start + 8 : start + length - LINK_BYTES] as hashed:
        hasher.update(hashed)
    return hasher.digest()


def _check_link(before: bytes, key: bytes) -> None:
    if len(before) != LINK_BYTES:
        raise ValueError("the link before must have 32 bytes")
    if key and len(key) != LINK_BYTES:
        raise ValueError("the key of a chain has 32 bytes, or none for no key")


def follow(data: Buffer, start: int, stop: int, before: bytes, key: bytes) -> tuple[int, bytes]:
    _check_link(before, key)
    view = view_of(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError("start and stop must lie in the buffer, in this order")
    while (length := check_at(view, start, stop, 0, False)) >= HEADER_BYTES + LINK_BYTES:
        link = bytes(view[start + length - LINK_BYTES : start + length])
        if not view[start + 14] & CHAIN or link != _link_of(view, start, length, before, key):
            break
        start, before = start + length, link
    return start, before


def chain(batch: bytearray, base_offset: int, timestamp: int, seed: int, before: bytes, key: bytes) -> bytes:
    _check_link(before, key)
    head, _ = _exact(batch)
    lacking = 0 if head.columns & CHAIN else LINK_BYTES
    if head.length + lacking > MAX_BATCH_BYTES:
        raise ValueError("batch too large: over 64 MiB; split it into several batches")
    place(batch, base_offset, timestamp)
    batch += bytes(lacking)
    struct.pack_into("<IHH", batch, 8, len(batch), head.flags, head.columns | CHAIN)
    with memoryview(batch) as view:
        link = _link_of(view, 0, len(view), before, key)
    batch[-LINK_BYTES:] = link
    reseal(batch, seed)
    return link


def select(batch: Buffer, keep: Sequence[int]) -> bytearray | None:
    _, head, got = _whole(batch)
    if any(a >= b for a, b in pairwise(keep)) or (keep and not (keep[0] >= 0 and keep[-1] < head.records)):
        raise ValueError("keep must be rising record numbers of this batch")
    if not keep:
        return None
    deltas = got.deltas if got.deltas is not None else range(head.records)
    records = Records(
        [got.values[i] for i in keep],
        [got.keys[i] for i in keep] if got.keys is not None else None,
        [got.headers[i] for i in keep] if got.headers is not None else None,
        [got.timestamps[i] for i in keep] if got.timestamps is not None else None,
        [got.expiries[i] for i in keep] if got.expiries is not None else None,
        got.origins,
        [got.origin_index[i] for i in keep] if got.origin_index is not None else None,
        [deltas[i] for i in keep],
    )
    return pack(records, head.columns & ~CHAIN | SPARSE, head._replace(crc=0))
