"""The columns of a topic in Arrow: gathered buffers to record batches, and record batches to what kernel.scatter takes.

Both ends of the Flight door and the Spark executors use this. Nothing is copied on the way out; on the way in, only what has
another type or another order than the log's. No broker, no I/O.

    column      Arrow                                      from log batches             to log batches
    key         binary                                     as it is                     binary, string, or left out
    value       binary                                     as it is (null: tombstone)   binary, string; must be there
    headers     list<struct<key: string, value: binary>>   empty list: none             null list: none
    topic       string                                     the same in every row        whoever calls has looked at it
    partition   int32                                      the same in every row        null or -1: by the key
    offset      int64                                      as it is                     passed over
    timestamp   timestamp[us, UTC]                         of the record                any unit; all null: when appended
    origin      string                                     "protocol:client"            passed over
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight.wire import COLUMNS
from quintet.log.mapped import Gathered
from quintet.model import limits
from quintet.model.errors import BadRequest, LimitExceeded, TooLarge

BYTES_PER_BATCH: Final = 8 << 20  # of keys, values, headers and origins; a record batch ends behind it
CONSTANT_ROWS_MAX: Final = 1 << 15  # of a constant column that is kept for the next record batch
CONSTANTS_KEPT: Final = 16
CONSTANT_ROWS_MIN: Final = 1 << 10
DECODED_BYTES_MAX: Final = 256 << 20  # of a column that says a value once for many rows, once every row has its own

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(_HEADER)),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("origin", pa.string()),
    ]
)
assert tuple(SCHEMA.names) == COLUMNS

# The bits of kernel.gather; topic and partition are known without looking.
_BITS: Final = {
    "offset": 1,
    "timestamp": 2,
    "value": 4,
    "key": 8,
    "headers": 16,
    "origin": 32,
    "topic": 0,
    "partition": 0,
}

Var = tuple[memoryview | bytes | None, memoryview | bytes, memoryview | bytes]
Bytes = memoryview | bytes
Lists = tuple[Bytes, Bytes, Bytes, Bytes, Bytes, Bytes | None]


class Columns(NamedTuple):
    """The first arguments of kernel.scatter, in its order."""

    rows: int
    value: Var
    key: Var | None
    headers: Lists | None
    timestamps: memoryview | bytes | None
    chosen: memoryview | bytes | None


def bits(columns: Sequence[str]) -> int:
    """The columns by name as kernel.gather wants them."""
    return sum({_BITS[_known(name)] for name in columns})


def schema_of(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """The schema of these columns, in this order."""
    return _schema(tuple(columns))


@lru_cache(maxsize=CONSTANTS_KEPT)
def _schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([SCHEMA.field(_known(name)) for name in columns])


def _known(name: str) -> str:
    if name not in _BITS:
        raise BadRequest(f"there is no column {name!r}", hint=f"the columns are {', '.join(COLUMNS)}")
    return name


# -- out of the log ---------------------------------------------------------------------------------------------------


def to_batch(gathered: Gathered, topic: str, partition: int, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
    """The record batch of rows that were gathered with `bits(columns)`. The buffers are used where they are."""
    n, b = gathered.count, [None if one is None else pa.py_buffer(one) for one in gathered.buffers]
    arrays = []
    for name in columns:
        match name:
            case "value":
                arrays.append(_bytes(pa.binary(), n, b[2:5]))
            case "key":
                arrays.append(_bytes(pa.binary(), n, b[5:8]))
            case "origin":
                arrays.append(_bytes(pa.string(), n, [None, *b[13:15]]))
            case "headers":
                arrays.append(_headers(n, b[8:13], b[15]))
            case "offset":
                arrays.append(pa.Array.from_buffers(pa.int64(), n, [None, b[0]], null_count=0))
            case "timestamp":
                arrays.append(pa.Array.from_buffers(SCHEMA.field(name).type, n, [None, b[1]], null_count=0))
            case "topic":
                arrays.append(_constant(topic, n))
            case _:
                arrays.append(_constant(partition, n))
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))


def _bytes(kind: pa.DataType, n: int, buffers: Sequence[pa.Buffer | None]) -> pa.Array:
    return pa.Array.from_buffers(kind, n, buffers, null_count=0 if buffers[0] is None else -1)


def _headers(n: int, b: Sequence[pa.Buffer], bitmap: pa.Buffer | None) -> pa.Array:
    lists, name_offsets, names, value_offsets, values = b
    m = name_offsets.size // 4 - 1
    children = [
        _bytes(pa.string(), m, [None, name_offsets, names]),
        _bytes(pa.binary(), m, [bitmap, value_offsets, values]),
    ]
    pairs = pa.Array.from_buffers(_HEADER, m, [None], null_count=0, children=children)
    return pa.Array.from_buffers(SCHEMA.field("headers").type, n, [None, lists], null_count=0, children=[pairs])


def _constant(value: str | int, n: int) -> pa.Array:
    if n > CONSTANT_ROWS_MAX:
        return _repeated.__wrapped__(value, n)
    return _repeated(value, max(CONSTANT_ROWS_MIN, 1 << (n - 1).bit_length() if n else 0)).slice(0, n)


@lru_cache(maxsize=CONSTANTS_KEPT)
def _repeated(value: str | int, n: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string() if isinstance(value, str) else pa.int32()), n)


# -- into the log -----------------------------------------------------------------------------------------------------


def from_batch(batch: pa.RecordBatch, reserved: bool = False) -> Columns:
    """A record batch as kernel.scatter takes it. BadRequest names the column that does not fit. The views are into the
    batch's own memory wherever it has the log's types. `reserved`: names of headers may be those of the broker."""
    names = batch.schema.names
    for name in names:
        _known(name)
    if len(set(names)) < len(names):
        raise BadRequest(f"a column is there twice: {', '.join(names)}", hint="leave one of the two out")
    if "value" not in names:
        raise BadRequest("there is no column `value`", hint="every row needs one; null is a tombstone")

    def given(name: str) -> pa.Array | None:
        """The column, unless it says nothing."""
        column = batch.column(name) if name in names else None
        return None if column is None or pa.types.is_null(column.type) else column

    key, headers = given("key"), given("headers")
    return Columns(
        batch.num_rows,
        _var(_binary("value", batch.column("value"))),
        None if key is None else _var(_binary("key", key)),
        None if headers is None else _lists(headers, reserved),
        _timestamps(given("timestamp")),
        _chosen(given("partition")),
    )


def _wrong(name: str, found: pa.DataType, wanted: str) -> BadRequest:
    return BadRequest(f"the column `{name}` is {found}, it must be {wanted}", hint="cast it before it is sent")


def _cast(name: str, column: pa.Array, kind: pa.DataType, safe: bool = True) -> pa.Array:
    try:
        return column.cast(kind, safe=safe)
    except pa.ArrowInvalid as error:
        raise BadRequest(
            f"the column `{name}` does not fit {kind}: {error}", hint="send smaller record batches"
        ) from None


def compute() -> ModuleType:
    """Arrow's functions, as a module."""
    return import_module("pyarrow.compute")  # late: 110 ms, and the first read needs none


def _binary(name: str, column: pa.Array) -> pa.Array:
    """The column as binary with 32-bit offsets."""
    types = pa.types
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    views = (types.is_binary_view, types.is_string_view)
    plain = (types.is_null, types.is_large_binary, types.is_string, types.is_large_string, types.is_fixed_size_binary)
    if not any(fit(kind) for fit in (types.is_binary, *plain, *views)) or (
        kind is not column.type and any(fit(kind) for fit in views)
    ):
        raise _wrong(name, column.type, "binary or string")
    if types.is_dictionary(column.type):
        _check_decoded(name, compute().binary_length(column.dictionary).take(column.indices))
        column = column.dictionary_decode()
    elif any(fit(kind) for fit in views):
        _check_decoded(name, _view_lengths(column))
    return column if types.is_binary(column.type) else _cast(name, column, pa.binary())


def _view_lengths(column: pa.Array) -> pa.Array:
    """The first four bytes of each sixteen; Arrow has no function for it."""
    n, at = len(column), column.offset
    words = pa.Array.from_buffers(pa.int32(), 4 * (at + n), [None, column.buffers()[1]], null_count=0)
    lengths = words.take(compute().cumulative_sum(pa.repeat(pa.scalar(4, pa.int64()), n), start=4 * at - 4))
    return compute().if_else(column.is_valid(), lengths, 0)


def _check_decoded(name: str, lengths: pa.Array) -> None:
    """A few bytes that stand for gigabytes must not become them."""
    size = compute().sum(lengths.cast(pa.int64())).as_py() or 0
    if size > DECODED_BYTES_MAX:
        raise TooLarge(
            f"the column `{name}` has {size} bytes once it is decoded, the limit is {DECODED_BYTES_MAX}",
            hint="send smaller record batches",
        )


def _view(buffer: pa.Buffer | None, start: int = 0) -> memoryview | bytes:
    return b"" if buffer is None else memoryview(buffer).cast("B")[start:]


def _var(column: pa.Array) -> Var:
    """Bitmap, offsets and bytes of a binary array, which may be a slice of a larger one."""
    n, at = len(column), column.offset
    if n == 0:
        return None, bytes(4), b""
    bitmap, offsets, data = column.buffers()
    return _valid(bitmap, at, n) if column.null_count else None, _view(offsets, 4 * at), _view(data)


def _valid(bitmap: pa.Buffer | None, at: int, n: int) -> memoryview | bytes:
    """The bits from number `at` on, the first of them in the lowest bit of the first byte."""
    view = _view(bitmap, at // 8)
    if at % 8 == 0:
        return view
    bits_there = int.from_bytes(view[: (at % 8 + n + 7) // 8], "little") >> at % 8
    return (bits_there & ((1 << n) - 1)).to_bytes((n + 7) // 8, "little")


def _lists(column: pa.Array, reserved: bool) -> Lists | None:
    types, kind = pa.types, column.type
    wanted = "list<struct<key: string, value: binary>>"
    if not types.is_list(kind) and not types.is_large_list(kind):
        raise _wrong("headers", kind, wanted)
    entry = kind.value_type
    if types.is_null(entry) and len(column.flatten()) == 0:
        return None  # lists that were empty wherever anybody looked
    if not types.is_struct(entry) or sorted(field.name for field in entry) != ["key", "value"]:
        raise _wrong("headers", kind, wanted)
    lengths = compute().fill_null(compute().list_value_length(column), 0)
    ends = compute().cumulative_sum(lengths.cast(pa.int64()))
    if len(ends) and ends[-1].as_py() >= 1 << 31:
        raise BadRequest("the column `headers` has too many entries", hint="send smaller record batches")
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    pairs = column.flatten()  # without what null lists span
    fields = dict(zip((field.name for field in entry), pairs.flatten(), strict=True))
    names = _binary("headers.key", fields["key"])
    if names.null_count:
        raise BadRequest("the column `headers` has a header without a name", hint="leave it out of the list")
    if not types.is_string(fields["key"].type):  # text was checked with the whole record batch
        _check_utf8(names)
    values = _binary("headers.value", fields["value"])
    _check_headers(lengths, offsets, names, values, reserved)
    bitmap, value_offsets, data = _var(values)
    return (_view(offsets.buffers()[1]), *_var(names)[1:], value_offsets, data, bitmap)


def _check_utf8(names: pa.Array) -> None:
    try:
        names.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise BadRequest("the name of a header is not UTF-8", hint="values may be any bytes") from error


def _check_headers(lengths: pa.Array, offsets: pa.Array, names: pa.Array, values: pa.Array, reserved: bool) -> None:
    """The limits that every door keeps, by columns. Raises as protocols/records.py does."""
    if not len(names):
        return
    do = compute()
    most = do.max(lengths).as_py()
    if most > limits.HEADERS_MAX:
        raise LimitExceeded(f"a row has {most:,} headers, the limit is {limits.HEADERS_MAX:,}")
    sizes = do.binary_length(names)
    shortest, longest = do.min(sizes).as_py(), do.max(sizes).as_py()
    if shortest == 0 or longest > limits.HEADER_NAME_BYTES_MAX:
        wrong = 0 if shortest == 0 else longest
        raise BadRequest(f"a header name has {wrong} bytes, it needs 1 to {limits.HEADER_NAME_BYTES_MAX}")
    both = do.add(sizes.cast(pa.int64()), do.fill_null(do.binary_length(values), 0).cast(pa.int64()))
    ends = pa.concat_arrays([pa.array([0], pa.int64()), do.cumulative_sum(both)]).take(offsets)
    largest = do.max(do.subtract(ends.slice(1), ends.slice(0, len(ends) - 1))).as_py()
    if largest > limits.HEADERS_BYTES_MAX:
        bound = f"the limit is {limits.HEADERS_BYTES_MAX:,} for names and values together"
        raise TooLarge(f"a row has {largest:,} bytes of headers, {bound}", hint="put large data into the value")
    prefix = limits.HEADER_PREFIX_RESERVED.decode()
    if not reserved and do.any(do.starts_with(names, pattern=prefix)).as_py():
        raise BadRequest(
            f"a header name begins with {prefix}: such names are the broker's own", hint="choose another name"
        )


def _timestamps(column: pa.Array | None) -> memoryview | bytes | None:
    if column is None or column.null_count == len(column):
        return None
    if not pa.types.is_timestamp(column.type):
        raise _wrong("timestamp", column.type, "timestamp")
    if column.null_count:
        raise BadRequest("the column `timestamp` is null in some rows", hint="give every row a time, or none")
    if column.type.unit != "us":
        # Nanoseconds are cut off; larger units may be too large, which is looked at.
        column = _cast("timestamp", column, pa.timestamp("us", column.type.tz), safe=column.type.unit != "ns")
    return _view(column.buffers()[1], 8 * column.offset)


def _chosen(column: pa.Array | None) -> memoryview | bytes | None:
    if column is None or column.null_count == len(column):
        return None
    if not pa.types.is_integer(column.type):
        raise _wrong("partition", column.type, "int")
    column = compute().fill_null(_cast("partition", column, pa.int32()), -1)
    return _view(column.buffers()[1], 4 * column.offset)
