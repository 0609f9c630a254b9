"""RecordBatch: the unit on the line, a thin view over bytes laid out as in docs/LOG_FORMAT.md section 3.

It never copies and never parses a row by itself; `rows` does, for the slow paths. Batches are built, merged and sealed
by the kernel; this class only reads their header.

    0      4      8        12      14        16          24      28     32          40
    | QRB1 | crc  | length | flags | columns | base_off  | count | span | timestamp | max_timestamp | ...
"""

import mmap
import re
import struct
from collections.abc import Hashable
from typing import Final, NamedTuple

from quintet import kernel

_HEADER: Final = struct.Struct("<4sIIHHQIIqqQIHH")
assert _HEADER.size == 64
# The functions below read or write one or a few fields of a header that no RecordBatch is made of. (place, form) of each:
_CRC_AT, _U32, _I64 = 4, struct.Struct("<I"), struct.Struct("<q")
_LENGTH_AT: Final = 8
_KIND_AT, _KIND = 12, struct.Struct("<HH32xQ")  # flags, columns, producer_id
_COLUMNS_AT, _U16 = 14, struct.Struct("<H")
_PLACED_AT, _PLACED = 16, struct.Struct("<Q8xq")  # base_offset, timestamp
_SPAN_AT: Final = 28
_PRODUCER_AT, _PRODUCER = 48, struct.Struct("<QI")  # producer_id, sequence
_CLAIMED: Final = struct.Struct("<4s4xI2xHQ")  # magic, length, columns, base_offset
# Numbers in what kernel.layout returns.
_NAME_DATA: Final = 12
_NAME_DATA_END: Final = 13  # what follows the names of headers
_HVALUE_DATA: Final = 14
_END: Final = 19
_EXPIRIES: Final = 16
_DELTAS: Final = 17

BATCH_MAGIC: Final = b"QRB1"

AT_MOST_ONCE: Final = 1
CONTROL: Final = 2
TRANSACTIONAL: Final = 4

VALUE_NULLS: Final = 1
KEYS: Final = 2
KEY_NULLS: Final = 4
HEADERS: Final = 8
TIMESTAMPS: Final = 16
EXPIRY: Final = 32
SPARSE: Final = 64
CHAIN: Final = 128
HEADER_NULLS: Final = 256

VIEW_BYTES_MIN: Final = 1 << 18  # a larger value is not copied by `RecordBatch.row`
LINK_BYTES: Final = 32  # of the link that a chained batch ends with

Buffer = bytes | bytearray | memoryview | mmap.mmap
Header = tuple[bytes, bytes | None]
Row = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...], int, bytes]


class RecordBatch:
    """A sealed (or memory-topic) batch: offsets are final. `memo` is where a protocol keeps frames it encoded once for
    all its subscribers; None: the batch is too old to have one."""

    __slots__ = (
        "base_offset", "buffer", "columns", "count", "flags", "length", "max_timestamp", "memo", "span", "timestamp",
    )  # fmt: skip

    length: int
    flags: int
    columns: int
    base_offset: int
    count: int
    span: int
    timestamp: int
    max_timestamp: int

    def __init__(self, buffer: bytes | bytearray | memoryview) -> None:
        (_, _, self.length, self.flags, self.columns, self.base_offset, self.count, self.span, self.timestamp,
         self.max_timestamp, _, _, _, _) = _HEADER.unpack_from(buffer)  # fmt: skip
        self.buffer = buffer
        self.memo: dict[Hashable, bytes] | None = {}

    @property
    def next_offset(self) -> int:
        """The offset the batch after this one starts at, or later."""
        return self.base_offset + self.span

    @property
    def at_most_once(self) -> bool:
        return bool(self.flags & AT_MOST_ONCE)

    def index_of(self, offset: int) -> int:
        """Number of the first record at or after `offset` (count if there is none)."""
        if not self.columns & SPARSE:
            return min(max(offset - self.base_offset, 0), self.count)
        deltas = kernel.layout(self.buffer)[_DELTAS]
        wanted = offset - self.base_offset
        table = struct.unpack_from(f"<{self.count}I", self.buffer, deltas)
        return next((i for i, delta in enumerate(table) if delta >= wanted), self.count)

    def offset(self, index: int) -> int:
        """Offset of record number `index`."""
        if not self.columns & SPARSE:
            return self.base_offset + index
        (delta,) = struct.unpack_from("<I", self.buffer, kernel.layout(self.buffer)[_DELTAS] + 4 * index)
        return self.base_offset + int(delta)

    def expiries(self, first: int, last: int) -> tuple[int, ...] | None:
        """When records first..last-1 expire, 0 never; None: none of them does."""
        if not self.columns & EXPIRY:
            return None
        start = kernel.layout(self.buffer)[_EXPIRIES] + 8 * first
        return struct.unpack_from(f"<{last - first}q", self.buffer, start)

    def expiry(self, index: int) -> int:
        """When record number `index` expires, 0 never; only of a batch with the column EXPIRY."""
        return int(_I64.unpack_from(self.buffer, kernel.layout(self.buffer)[_EXPIRIES] + 8 * index)[0])

    def rows(self, first: int = 0, last: int | None = None) -> list[Row]:
        """Records first..last-1 as (offset, timestamp, key, value, headers, expiry, origin)."""
        return kernel.rows(self.buffer, first, self.count if last is None else last)

    def row(self, index: int) -> Row:
        """One record. A value of more than VIEW_BYTES_MIN is a memoryview of this batch, to be sent and not to be kept."""
        return kernel.rows(self.buffer, index, index + 1, VIEW_BYTES_MIN)[0]

    @property
    def producer(self) -> "Producer":
        return producer_of(self.buffer)

    def __repr__(self) -> str:
        return f"<RecordBatch {self.base_offset}+{self.span} count={self.count} bytes={self.length}>"


class Producer(NamedTuple):
    """Who produced a batch so that a retry is known: 0 nobody, and the number of its first record."""

    id: int
    sequence: int


class Placed(NamedTuple):
    """Where a sealed batch is in its partition, and when it came there."""

    base_offset: int
    timestamp: int


class Claimed(NamedTuple):
    """What the header of something says that begins like a batch, and was not checked."""

    length: int
    columns: int
    base_offset: int


def crc_of(batch: Buffer) -> int:
    return int(_U32.unpack_from(batch, _CRC_AT)[0])


def length_of(data: Buffer, position: int = 0) -> int:
    return int(_U32.unpack_from(data, position + _LENGTH_AT)[0])


def set_length(batch: bytearray, length: int) -> None:
    _U32.pack_into(batch, _LENGTH_AT, length)


def span_of(batch: Buffer) -> int:
    return int(_U32.unpack_from(batch, _SPAN_AT)[0])


def set_span(batch: bytearray, span: int) -> None:
    _U32.pack_into(batch, _SPAN_AT, span)


def is_sparse(data: Buffer, position: int = 0) -> bool:
    """May offsets be missing in it, because it was compacted?"""
    return bool(_U16.unpack_from(data, position + _COLUMNS_AT)[0] & SPARSE)


def kind_of(batch: Buffer) -> tuple[int, int, int]:
    """Its flags, columns and producer_id."""
    return _KIND.unpack_from(batch, _KIND_AT)


def may_have_header(batch: bytearray, name: bytes, value: re.Pattern[bytes]) -> bool:
    """False: no record has a header of this name with a value in which the pattern is found. Two searches over the columns of headers:
    records and their values are not looked at."""
    if not kind_of(batch)[1] & HEADERS:
        return False
    where = kernel.layout(batch)
    if batch.find(name, where[_NAME_DATA], where[_NAME_DATA_END]) < 0:
        return False
    return value.search(batch, where[_HVALUE_DATA], where[_END]) is not None


def claimed_at(data: Buffer, position: int) -> Claimed | None:
    """None: no batch begins there."""
    magic, length, columns, base_offset = _CLAIMED.unpack_from(data, position)
    return Claimed(length, columns, base_offset) if magic == BATCH_MAGIC else None


def producer_of(batch: Buffer) -> Producer:
    return Producer(*_PRODUCER.unpack_from(batch, _PRODUCER_AT))


def set_producer(batch: bytearray, id: int, sequence: int) -> None:
    _PRODUCER.pack_into(batch, _PRODUCER_AT, id, sequence)


def placed(batch: Buffer) -> Placed:
    return Placed(*_PLACED.unpack_from(batch, _PLACED_AT))
