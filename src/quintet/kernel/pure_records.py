"""Record sets in pure Python: records with key, headers, time and origin, as the extended modes of all doors carry them.

A record set is one record behind the other, big-endian. Each begins with bits that say what follows, in this order:

    0x01 NUMBER    u64: offset or delivery tag; without it the one of the record before, plus one
    0x02 TIME      i64: microseconds since 1970, of this record and those behind it until another is given
    0x04 ORIGIN    u16 n, n bytes, alike
    0x08 KEY       u32 n, n bytes
    0x10 HEADERS   u32 count, then of each u32 n, the name, u32 n + 1 (0: the value is null), the value
    0x20 TTL       u32 milliseconds
    0x40 NULL      the record has no value; else u32 n, n bytes

A publisher sets KEY, HEADERS, TTL and NULL, a server all but TTL. Same results as the native twin. No I/O, no clock, no state.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import Header, build, data_end, head_of, ints, locate, view_of
from quintet.kernel.pure_crc import fnv1a

NUMBER, TIME, ORIGIN, KEY, HEADERS, TTL, NULL = (1 << bit for bit in range(7))
PUBLISHED = KEY | HEADERS | TTL | NULL
DELIVERED = NUMBER | TIME | ORIGIN | KEY | HEADERS | NULL
RECORDS_MAX = 1 << 20  # of one set: its batch stays below 64 MiB
SET_BYTES_MAX = 32 * 1024 * 1024
HEADERS_MAX = 1_000  # of one record
HEADERS_BYTES_MAX = 64 * 1024  # names and values of one record
NAME_BYTES_MAX = 255
RESERVED = b"quintet-"
ANY = -1
MAX_GROUPS = 65_535
MICROSECONDS_PER_MILLISECOND = 1000

(SHORT, BITS, EMPTY, MANY_RECORDS, MANY_HEADERS, LONG_HEADERS, BAD_NAME, NOT_UTF8, RESERVED_NAME) = range(1, 10)

U8, U16, U32, U64, I64 = (struct.Struct(">" + code) for code in "BHIQq")
Row = tuple[int, int, bytes, bytes | None, bytes, int, bytes]
Group = tuple[int, bytearray, int]
Refused = tuple[int, int, int]


class _Refusal(Exception):
    """Why a set is not taken: a code, and what it was seen at."""

    def __init__(self, code: int, size: int = 0) -> None:
        self.code = code
        self.size = size


class _Reader:
    """Takes fields off the front; refused when they are not all there."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0

    def number(self, form: struct.Struct) -> int:
        if len(self.view) - self.at < form.size:
            raise _Refusal(SHORT)
        (found,) = form.unpack_from(self.view, self.at)
        self.at += form.size
        return int(found)

    def bytes(self, size: int) -> bytes:
        if len(self.view) - self.at < size:
            raise _Refusal(SHORT)
        self.at += size
        return bytes(self.view[self.at - size : self.at])

    def headers(self) -> list[Header]:
        count = self.number(U32)
        if count * 8 > len(self.view) - self.at:
            raise _Refusal(SHORT)
        found: list[Header] = []
        for _ in range(count):
            name = self.bytes(self.number(U32))
            size = self.number(U32)
            found.append((name, self.bytes(size - 1) if size else None))
        return found


def _check_headers(headers: list[Header]) -> None:
    if len(headers) > HEADERS_MAX:
        raise _Refusal(MANY_HEADERS, len(headers))
    size = sum(len(name) + len(value or b"") for name, value in headers)
    if size > HEADERS_BYTES_MAX:
        raise _Refusal(LONG_HEADERS, size)
    for number, (name, _) in enumerate(headers):
        if not 0 < len(name) <= NAME_BYTES_MAX:
            raise _Refusal(BAD_NAME, len(name))
        try:
            name.decode()
        except UnicodeDecodeError:
            raise _Refusal(NOT_UTF8, number) from None
        if name.startswith(RESERVED):
            raise _Refusal(RESERVED_NAME, number)


def records_split(
    data: Buffer, partition: int, partitions: int, origin: bytes, now: int, flags: int = 0
) -> tuple[list[Group], bytes] | Refused:
    if not 1 <= partitions <= 0x7FFFFFFF or not ANY <= partition < partitions:
        raise ValueError("partition must be -1 or one of 1 to 2**31 - 1 partitions")
    partition = 0 if partitions == 1 else partition  # one partition keeps the order of the set
    if len(origin) > 0xFFFF:
        raise ValueError("origin is over 65535 bytes")
    if not 0 <= now < 1 << 62:
        raise ValueError("now must be microseconds since 1970")
    if not 0 <= flags <= 7:
        raise ValueError("unknown batch flag; known are bits 0 to 2")
    view = view_of(data)
    if len(view) > SET_BYTES_MAX:
        raise ValueError("a record set has at most 32 MiB")
    reader = _Reader(view)
    groups: dict[int, list[tuple[bytes | None, bytes | None, list[Header], int]]] = {}
    numbers: dict[int, int] = {}
    order: list[int] = []
    try:
        while reader.at < len(view):
            if len(order) == RECORDS_MAX:
                raise _Refusal(MANY_RECORDS)
            bits = reader.number(U8)
            if bits & ~PUBLISHED:
                raise _Refusal(BITS, bits)
            key = (reader.bytes(reader.number(U32)) if bits & KEY else b"") or None
            headers = reader.headers() if bits & HEADERS else []
            ttl = reader.number(U32) if bits & TTL else 0
            value = None if bits & NULL else reader.bytes(reader.number(U32))
            _check_headers(headers)
            chosen = partition
            if partition == ANY and key is not None:
                chosen = fnv1a(key) % partitions
            if chosen not in groups and len(groups) == MAX_GROUPS:
                raise _Refusal(MANY_RECORDS)
            order.append(numbers.setdefault(chosen, len(numbers)))
            expiry = now + ttl * MICROSECONDS_PER_MILLISECOND if ttl else 0
            groups.setdefault(chosen, []).append((value, key, headers, expiry))
        if not order:
            raise _Refusal(EMPTY)
    except _Refusal as refused:
        return refused.code, len(order), refused.size
    made: list[Group] = []
    for chosen, group in groups.items():
        values, keys, lists, expiries = (list(column) for column in zip(*group, strict=True))
        made.append((chosen, build(values, keys, lists, None, expiries, origin, flags), len(group)))
    return made, struct.pack(f"<{len(order)}H", *order)


def records_pack(
    values: Sequence[bytes],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes] | None = None,
    ttl_ms: int = 0,
    head: bytes = b"",
    tail: bytes = b"",
    lengths: Sequence[int] = (),
) -> bytes:
    for column in (keys, headers):
        if column is not None and len(column) != len(values):
            raise ValueError("columns differ in length; give each record one entry in every column")
    if not 0 <= ttl_ms <= 0xFFFFFFFF:
        raise OverflowError("ttl_ms must be 0 to 2**32 - 1")
    out = bytearray()
    for number, value in enumerate(values):
        key = keys[number] if keys is not None else None
        packed = headers[number] if headers is not None else b""
        out.append((KEY if key else 0) | (HEADERS if packed else 0) | (TTL if ttl_ms else 0))
        if key:
            out += U32.pack(len(key)) + key
        out += packed
        if ttl_ms:
            out += U32.pack(ttl_ms)
        out += U32.pack(len(value)) + value
    front = bytearray(head)
    for at in lengths:
        if not 0 <= at <= len(front) - U32.size:
            raise ValueError("lengths must be places of four bytes in the head")
        size = U32.unpack_from(front, at)[0] + len(out)
        if size > 0xFFFFFFFF:
            raise OverflowError("the set is longer than its length field says")
        U32.pack_into(front, at, size)
    return bytes(front + out + tail)


def headers_pack(given: Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]) -> bytes:
    pairs: list[Header] = []
    for name, value in given.items() if isinstance(given, Mapping) else given:
        if not isinstance(name, str) or not isinstance(value, str | bytes | None):
            raise TypeError("a header is a str with a value of str, bytes or None")
        pairs.append((name.encode(), value.encode() if isinstance(value, str) else value))
    size = sum(len(name) + len(value or b"") for name, value in pairs)
    bad_name = any(not 0 < len(name) <= NAME_BYTES_MAX or name.startswith(RESERVED) for name, _ in pairs)
    if len(pairs) > HEADERS_MAX or size > HEADERS_BYTES_MAX or bad_name:
        raise OverflowError("the headers are beyond a limit")
    out = bytearray()
    _put_headers(out, pairs)
    return bytes(out)


def headers_unpack(data: bytes) -> tuple[tuple[str, bytes | None], ...]:
    reader = _Reader(memoryview(data))
    try:
        found = reader.headers() if data else []
    except _Refusal:
        raise ValueError("the headers do not add up") from None
    if reader.at != len(data):
        raise ValueError("the headers do not add up")
    return tuple((name.decode(errors="replace"), value) for name, value in found)


def _put_headers(out: bytearray, pairs: Sequence[Header]) -> None:
    if pairs:
        out += U32.pack(len(pairs))
        for name, value in pairs:
            out += U32.pack(len(name)) + name + U32.pack(0 if value is None else len(value) + 1) + (value or b"")


class _Batch:
    """Reads single records of a batch, each checked when it is looked at, and not before."""

    def __init__(self, batch: Buffer) -> None:
        self.view = view_of(batch)
        self.head = head_of(self.view, 0)
        self.at = locate(self.view, 0, self.head)

    def _entry(self, offsets: int, data: int, count: int, index: int) -> bytes:
        a, b = ints(self.view, "i", offsets + 4 * index, 2)
        if not 0 <= a <= b or data + b > data_end(self.view, offsets, data, count):
            raise ValueError("batch columns do not add up: an entry lies outside its column")
        return bytes(self.view[data + a : data + b])

    def _is_null(self, bitmap: int, index: int) -> bool:
        return bool(bitmap) and not self.view[bitmap + (index >> 3)] >> (index & 7) & 1

    def expiry(self, index: int) -> int:
        return ints(self.view, "q", self.at.expiries + 8 * index, 1)[0] if self.at.expiries else 0

    def number(self, index: int) -> int:
        delta = ints(self.view, "I", self.at.deltas + 4 * index, 1)[0] if self.at.deltas else index
        return self.head.base_offset + delta

    def time(self, index: int) -> int:
        return ints(self.view, "q", self.at.timestamps + 8 * index, 1)[0] if self.at.timestamps else self.head.timestamp

    def origin(self, index: int) -> bytes:
        number = self.view[self.at.origin_index + index] if self.at.origin_index else 0
        if number >= self.head.origins:
            raise ValueError("batch columns do not add up: an origin number has no entry")
        return self._entry(self.at.origin_offsets, self.at.origin_data, self.head.origins, number)

    def value(self, index: int) -> bytes | None:
        found = self._entry(self.at.value_offsets, self.at.value_data, self.head.records, index)
        return None if self._is_null(self.at.value_bitmap, index) else found

    def key(self, index: int) -> bytes | None:
        if not self.at.key_offsets or self._is_null(self.at.key_bitmap, index):
            return None
        return self._entry(self.at.key_offsets, self.at.key_data, self.head.records, index)

    def headers(self, index: int) -> list[Header]:
        at = self.at
        if not at.header_lists:
            return []
        a, b = ints(self.view, "i", at.header_lists + 4 * index, 2)
        if not 0 <= a <= b <= at.header_count:
            raise ValueError("batch columns do not add up: a header list lies outside its column")
        found: list[Header] = []
        for number in range(a, b):
            name = self._entry(at.name_offsets, at.name_data, at.header_count, number)
            value = self._entry(at.hvalue_offsets, at.hvalue_data, at.header_count, number)
            found.append((name, None if self._is_null(at.hvalue_bitmap, number) else value))
        return found


def records_deliver(
    batch: Buffer, first: int, last: int, now: int, base: int, bytes_max: int
) -> tuple[bytes, int, int]:
    source = _Batch(batch)
    head = source.head
    if not 0 <= first <= last <= head.records:
        raise ValueError("first and last must lie in the batch, in this order")
    if base < 0 or base + head.base_offset + head.span >= 1 << 63 or bytes_max < 1:
        raise ValueError("numbers must stay below 2**63, and bytes_max must be at least 1")
    out = bytearray()
    count = 0
    expected: int | None = None
    before: tuple[int, bytes] | None = None  # time and origin
    for index in range(first, last):
        if now and 0 < source.expiry(index) <= now:
            continue
        number, time, origin = base + source.number(index), source.time(index), source.origin(index)
        value, key, pairs = source.value(index), source.key(index), source.headers(index)
        new_time, new_origin = before is None or before[0] != time, before is None or before[1] != origin
        bits = (NUMBER if number != expected else 0) | (TIME if new_time else 0) | (ORIGIN if new_origin else 0)
        bits |= (KEY if key else 0) | (HEADERS if pairs else 0) | (NULL if value is None else 0)
        one = bytearray((bits,))
        one += U64.pack(number) if bits & NUMBER else b""
        one += I64.pack(time) if bits & TIME else b""
        one += U16.pack(len(origin)) + origin if bits & ORIGIN else b""
        one += U32.pack(len(key)) + key if key else b""
        _put_headers(one, pairs)
        one += U32.pack(len(value)) + value if value is not None else b""
        if out and len(out) + len(one) > bytes_max:
            return bytes(out), count, index
        out += one
        count += 1
        expected, before = number + 1, (time, origin)
    return bytes(out), count, last


def records_received(data: Buffer, qos: int) -> list[Row]:
    reader = _Reader(view_of(data))
    rows: list[Row] = []
    number, time, origin = -1, 0, b""
    try:
        while reader.at < len(reader.view):
            bits = reader.number(U8)
            if bits & ~DELIVERED or len(rows) == RECORDS_MAX:
                raise _Refusal(BITS)
            number = reader.number(U64) if bits & NUMBER else number + 1
            time = reader.number(I64) if bits & TIME else time
            origin = reader.bytes(reader.number(U16)) if bits & ORIGIN else origin
            key = reader.bytes(reader.number(U32)) if bits & KEY else None
            start = reader.at
            if bits & HEADERS:
                reader.headers()
            headers = bytes(reader.view[start : reader.at])
            value = b"" if bits & NULL else reader.bytes(reader.number(U32))
            if number >= 1 << 63:
                raise _Refusal(BITS)
            rows.append((number, qos, value, key, headers, time, origin))
    except _Refusal:
        raise ValueError("the record set does not add up") from None
    return rows
