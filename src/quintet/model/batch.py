"""RecordBatch: the unit on the line, a thin view over bytes laid out as in docs/LOG_FORMAT.md section 3.

It never copies and never parses a row by itself; `rows` does, for the slow paths. Batches are built, merged and sealed
by the kernel; this class only reads their header.

    0      4      8        12      14        16          24      28     32          40
    | QRB1 | crc  | length | flags | columns | base_off  | count | span | timestamp | max_timestamp | ...
"""

import struct
from typing import Any, Final, NamedTuple

from quintet import kernel

_HEADER: Final = struct.Struct("<4sIIHHQIIqqQIHH")
assert _HEADER.size == 64
# Of a batch that no RecordBatch was made of: the functions below read or write one or two fields of its header.
_PLACED: Final = struct.Struct("<Q8xq")  # base_offset and timestamp, at 16
_PRODUCER: Final = struct.Struct("<QI")  # producer_id and sequence, at 48
_PLACED_AT: Final = 16
_PRODUCER_AT: Final = 48

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

Buffer = bytes | bytearray | memoryview
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

    def __init__(self, buffer: Buffer) -> None:
        (_, _, self.length, self.flags, self.columns, self.base_offset, self.count, self.span, self.timestamp,
         self.max_timestamp, _, _, _, _) = _HEADER.unpack_from(buffer)  # fmt: skip
        self.buffer = buffer
        self.memo: dict[Any, bytes] | None = {}

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
        deltas = kernel.layout(self.buffer)[17]
        wanted = offset - self.base_offset
        table = struct.unpack_from(f"<{self.count}I", self.buffer, deltas)
        return next((i for i, delta in enumerate(table) if delta >= wanted), self.count)

    def offset(self, index: int) -> int:
        """Offset of record number `index`."""
        if not self.columns & SPARSE:
            return self.base_offset + index
        (delta,) = struct.unpack_from("<I", self.buffer, kernel.layout(self.buffer)[17] + 4 * index)
        return self.base_offset + int(delta)

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


def producer_of(batch: Buffer) -> Producer:
    return Producer(*_PRODUCER.unpack_from(batch, _PRODUCER_AT))


def set_producer(batch: bytearray, id: int, sequence: int) -> None:
    _PRODUCER.pack_into(batch, _PRODUCER_AT, id, sequence)


def placed(batch: Buffer) -> Placed:
    return Placed(*_PLACED.unpack_from(batch, _PLACED_AT))
