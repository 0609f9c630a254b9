"""Log batches to Arrow columns and back in pure Python: the readable twin of the native kernel's `gather` and `scatter`.

Same buffers, same batches, same refusals, slowly. Arrow's layout is plain enough to be written with struct, so nothing of
Arrow is imported. No I/O, no clock.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import le
from typing import NamedTuple

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import (
    BAD_COLUMNS,
    HEADER,
    HEADER_BYTES,
    KNOWN_FLAGS,
    MAX_BATCH_BYTES,
    OFFSETS_FELL,
    ZEROS,
    Head,
    Header,
    Row,
    build,
    check_at,
    columns_sound,
    ints,
    locate,
    rows,
    view_of,
)
from quintet.kernel.pure_crc import fnv1a

OFFSET, TIMESTAMP, VALUE, KEY, HEADERS, ORIGIN = (1 << bit for bit in range(6))
ALL_COLUMNS = 63
CONTROL = 2
ROWS_CEILING = 1 << 24
BYTES_CEILING = 1 << 30
ORIGIN_BYTES_MAX = 64 * 1024 * 1024  # origins are short in a batch and long in a column: this much, then it is full
HEADER_ENTRY_BYTES = 8  # its two offsets
MAX_PARTITIONS = 1 << 16
BATCH_ROWS_MAX = 1 << 20
PADDING_BYTES = 15 * 8  # of a batch, at most
MAX_I32 = (1 << 31) - 1
MAX_I64 = (1 << 63) - 1

Buffers = tuple[bytes | None, ...]
Var = tuple[Buffer | None, Buffer, Buffer]
Lists = tuple[Buffer, Buffer, Buffer, Buffer, Buffer, Buffer | None]


def _lossy(text: bytes) -> bytes:
    return text.decode("utf-8", "replace").encode()


# -- gather -----------------------------------------------------------------------------------------------------------


class _Taken:
    """The rows so far, and how much they come to in the columns asked for."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[Row] = []
        self.bytes = 0
        self.origins = 0

    def take(self, batch: memoryview, head: Head, first: int, last: int, now: int) -> int | None:
        """Take the rows asked for; an offset if there is no room for it and those behind it."""
        wanted = [row for row in rows(batch, 0, head.records) if first <= row[0] < last]
        used = self.origins
        for i, row in enumerate(wanted):
            used += len(_lossy(row[6])) if self.columns & ORIGIN else 0
            if used > ORIGIN_BYTES_MAX and (i > 0 or self.rows):
                self._add(wanted[:i], now)
                return row[0]
        self._add(wanted, now)
        return None

    def _add(self, wanted: Sequence[Row], now: int) -> None:
        for row in wanted:
            _, _, key, value, headers, expiry, origin = row
            if now and expiry and expiry <= now:
                continue
            self.rows.append(row)
            if self.columns & VALUE:
                self.bytes += len(value or b"")
            if self.columns & KEY:
                self.bytes += len(key or b"")
            if self.columns & HEADERS:
                self.bytes += sum(HEADER_ENTRY_BYTES + len(_lossy(name)) + len(text or b"") for name, text in headers)
            if self.columns & ORIGIN:
                self.bytes += len(_lossy(origin))
                self.origins += len(_lossy(origin))

    def buffers(self) -> Buffers:
        n, wants = len(self.rows), self.columns.__and__
        out: list[bytes | None] = [None] * 16
        if wants(OFFSET):
            out[0] = struct.pack(f"<{n}q", *(row[0] for row in self.rows))
        if wants(TIMESTAMP):
            out[1] = struct.pack(f"<{n}q", *(row[1] for row in self.rows))
        if wants(VALUE):
            out[2:5] = _nullable([row[3] for row in self.rows])
        if wants(KEY):
            out[5:8] = _nullable([row[2] for row in self.rows])
        if wants(HEADERS):
            pairs = [pair for row in self.rows for pair in row[4]]
            out[8] = _offsets([len(row[4]) for row in self.rows])
            out[9:11] = _var([_lossy(name) for name, _ in pairs])
            out[15], out[11], out[12] = _nullable([text for _, text in pairs])
        if wants(ORIGIN):
            out[13:15] = _var([_lossy(row[6]) for row in self.rows])
        return tuple(out)


def _offsets(lengths: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(lengths) + 1}i", *accumulate(lengths, initial=0))


def _var(entries: Sequence[bytes]) -> tuple[bytes, bytes]:
    return _offsets([len(entry) for entry in entries]), b"".join(entries)


def _nullable(entries: Sequence[bytes | None]) -> tuple[bytes | None, bytes, bytes]:
    bitmap = None
    if None in entries:
        bits = sum(1 << i for i, entry in enumerate(entries) if entry is not None)
        bitmap = bits.to_bytes((len(entries) + 7) // 8, "little")
    return (bitmap, *_var([entry or b"" for entry in entries]))


def _sound_at(view: memoryview, start: int, stop: int, head: Head, seed: int) -> int:
    """Why the batch is not sound, or its length. Seed -1: it is one from memory, which has no checksum."""
    if seed >= 0:
        return check_at(view, start, stop, seed, True)
    try:
        where = locate(view, start, head)
    except ValueError:
        return BAD_COLUMNS
    return head.length if columns_sound(view, start, head, where) else BAD_COLUMNS


def gather(
    data: Buffer,
    start: int,
    stop: int,
    seed: int,
    first: int,
    last: int,
    rows_max: int,
    bytes_max: int,
    columns: int,
    now: int,
) -> tuple[int, Buffers, int, int, int]:
    view = view_of(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError("start and stop must lie in the buffer, in this order")
    if not 0 <= first <= last <= MAX_I64:
        raise ValueError("first and last must be offsets, in this order")
    if not 1 <= rows_max <= ROWS_CEILING or not 1 <= bytes_max <= BYTES_CEILING:
        raise ValueError("rows_max must be 1 to 2**24, and bytes_max 1 byte to 1 GiB")
    if not 0 <= columns <= ALL_COLUMNS:
        raise ValueError("unknown column; known are bits 0 to 5")
    if not -1 <= seed < 1 << 32 or not 0 <= now <= MAX_I64:
        raise ValueError("seed must be -1 or an unsigned 32-bit number, and now at least 0")
    taken = _Taken(columns)
    position, next_offset, floor, reason = start, first, 0, ZEROS
    while position < stop and next_offset < last and len(taken.rows) < rows_max and taken.bytes < bytes_max:
        length = check_at(view, position, stop, 0, False)
        if length <= 0:
            reason = length
            break
        head = Head._make(HEADER.unpack_from(view, position))
        if head.base_offset < floor:
            reason = OFFSETS_FELL
            break
        floor = head.base_offset + head.span
        if floor <= next_offset:
            position += length
            continue
        if head.base_offset >= last:
            next_offset = last
            break
        length = _sound_at(view, position, stop, head, seed)
        if length <= 0:
            reason = length
            break
        full = None
        if not head.flags & CONTROL:
            full = taken.take(view[position : position + length], head, first, last, now)
        if full is not None or floor > last:
            next_offset = last if full is None else full
            break
        next_offset = floor
        position += length
    return len(taken.rows), taken.buffers(), position, next_offset, reason


# -- scatter ----------------------------------------------------------------------------------------------------------


class _Record(NamedTuple):
    """One row on its way into a batch; `bytes` is the most it takes there."""

    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]
    timestamp: int
    bytes: int


def _sound_offsets(offsets: Buffer, n: int, limit: int) -> tuple[int, ...]:
    view = view_of(offsets)
    if len(view) < 4 * (n + 1):
        raise ValueError("a column does not add up: it is shorter than its rows need")
    found = ints(view, "i", 0, n + 1)
    if found[0] < 0 or found[-1] > limit or not all(map(le, found, found[1:])):
        raise ValueError("a column does not add up: its offsets fall or leave it")
    return found


def _entries(offsets: Buffer, data: Buffer, n: int) -> list[bytes]:
    view = view_of(data)
    return [bytes(view[a:b]) for a, b in pairwise(_sound_offsets(offsets, n, len(view)))]


def _optional(var: Var, n: int) -> list[bytes | None]:
    entries = _entries(var[1], var[2], n)
    if var[0] is None:
        return list(entries)
    bits = view_of(var[0])
    if len(bits) < (n + 7) // 8:
        raise ValueError("a column does not add up: its bitmap is shorter than its rows need")
    return [entry if bits[i >> 3] >> (i & 7) & 1 else None for i, entry in enumerate(entries)]


def _headers(lists: Lists, n: int) -> list[tuple[Header, ...]]:
    offsets = _sound_offsets(lists[0], n, MAX_I32)
    names, values = _entries(lists[1], lists[2], offsets[-1]), _optional((lists[5], lists[3], lists[4]), offsets[-1])
    return [tuple(zip(names[a:b], values[a:b], strict=True)) for a, b in pairwise(offsets)]


def _fixed(column: Buffer | None, code: str, size: int, n: int) -> tuple[int, ...] | None:
    if column is None:
        return None
    view = view_of(column)
    if len(view) < size * n:
        raise ValueError("a column is shorter than its rows need")
    return ints(view, code, 0, n)


def _cut(records: Sequence[_Record], empty: int, limit: int) -> Iterator[Sequence[_Record]]:
    """The records of one partition, by batch."""
    begin, total = 0, empty
    for i, record in enumerate(records):
        total += record.bytes
        if i > begin and (total > limit or i - begin == BATCH_ROWS_MAX):
            yield records[begin:i]
            begin, total = i, empty + record.bytes
    yield records[begin:]


def _chooser(partitions: int, turn: int) -> Callable[[int, int, bytes | None], int]:
    def choose(row: int, chosen: int, key: bytes | None) -> int:
        if not -1 <= chosen < partitions:
            raise ValueError(f"row {row}: partition {chosen} is not one of 0 to {partitions - 1}")
        if chosen >= 0:
            return chosen
        return fnv1a(key) % partitions if key else turn % partitions

    return choose


def scatter(
    count: int,
    value: Var,
    key: Var | None,
    headers: Lists | None,
    timestamps: Buffer | None,
    chosen: Buffer | None,
    partitions: int,
    turn: int,
    origin: bytes,
    flags: int,
    batch_bytes_max: int,
) -> list[tuple[int, bytearray, int]]:
    if not 0 <= count < MAX_I32:
        raise ValueError("count must be 0 to 2**31 - 2")
    if not 1 <= partitions <= MAX_PARTITIONS or not 0 <= turn <= MAX_I64:
        raise ValueError("partitions must be 1 to 65536, and turn at least 0")
    if not 0 <= flags <= KNOWN_FLAGS:
        raise ValueError("unknown batch flag; known are bits 0 to 2")
    if not 1 <= batch_bytes_max <= MAX_BATCH_BYTES:
        raise ValueError("batch_bytes_max must be 1 byte to 64 MiB")
    values = _optional(value, count)
    keys = _optional(key, count) if key is not None else [None] * count
    lists: list[tuple[Header, ...]] = _headers(headers, count) if headers is not None else [()] * count
    entry = 8 if headers is None or headers[5] is None else 9  # two offsets, and a bit that a byte is enough for
    times = _fixed(timestamps, "q", 8, count)
    wishes = _fixed(chosen, "i", 4, count) or [-1] * count
    choose = _chooser(partitions, turn)
    fixed = 5 + 4 * (key is not None) + 4 * (headers is not None) + 8 * (timestamps is not None)
    sorted_records: dict[int, list[_Record]] = {}
    for i in range(count):
        own, text, pairs = values[i], keys[i], lists[i]
        size = fixed + len(own or b"") + len(text or b"") + sum(entry + len(a) + len(b or b"") for a, b in pairs)
        record = _Record(own, text, pairs, times[i] if times else 0, size)
        sorted_records.setdefault(choose(i, wishes[i], text), []).append(record)
    out = []
    for partition in sorted(sorted_records):
        for part in _cut(sorted_records[partition], HEADER_BYTES + len(origin) + PADDING_BYTES, batch_bytes_max):
            batch = build(
                [record.value for record in part],
                [record.key for record in part],
                [record.headers for record in part],
                [record.timestamp for record in part] if times is not None else None,
                origin=origin,
                flags=flags,
            )
            out.append((partition, batch, len(part)))
    return out
