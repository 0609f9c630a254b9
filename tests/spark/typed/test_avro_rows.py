"""Avro to columns: the same rows as fastavro, the same verdict as the broker, and cursors agree with the reader of rows."""

import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.broker.schemas.avro import AvroSchema
from quintet.model.errors import SchemaInvalid
from quintet.spark.typed import decoder
from quintet.spark.typed.avro_nodes import CURSORS_FEW
from quintet.spark.typed.avro_rows import STEPS_MAX, AvroRows
from quintet.spark.typed.columns import COLUMNS_MAX, DEPTH_MAX
from tests.spark.typed.parts import binary, cause, decoded, good

POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": ["null", "string"]}],
}


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Row", "fields": [{"name": name, "type": type} for name, type in fields.items()]}


def of(**fields: Any) -> Any:
    return decoder("avro", json.dumps(record(**fields)))


def write(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
    return out.getvalue()


def logical(type: str, logical_type: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": logical_type, **more}


ALL = record(
    nothing="null",
    flag="boolean",
    i="int",
    l="long",
    f="float",
    d="double",
    s="string",
    b="bytes",
    day=logical("int", "date"),
    millis=logical("long", "timestamp-millis"),
    micros=logical("long", "timestamp-micros"),
    time=logical("int", "time-millis"),
    price=logical("bytes", "decimal", precision=20, scale=3),
    cents=logical("fixed", "decimal", name="Cents", size=9, precision=18, scale=2),
    id=logical("string", "uuid"),
    color={"type": "enum", "name": "Color", "symbols": ["RED", "GREEN"]},
    hash={"type": "fixed", "name": "Hash", "size": 4},
    point=POINT,
    maybe=["Point", "null"],
    points={"type": "array", "items": "Point"},
    names={"type": "map", "values": ["null", "string"]},
    grid={"type": "array", "items": {"type": "array", "items": "long"}},
    any=["null", "long", "string", "Point", {"type": "array", "items": "boolean"}],
    one=["string"],
)
TYPES = {
    "nothing": pa.string(), "flag": pa.bool_(), "i": pa.int32(), "l": pa.int64(), "f": pa.float32(), "d": pa.float64(),
    "s": pa.string(), "b": pa.binary(), "day": pa.date32(), "millis": pa.timestamp("us", "UTC"),
    "micros": pa.timestamp("us", "UTC"), "time": pa.int32(), "price": pa.decimal128(20, 3),
    "cents": pa.decimal128(18, 2), "id": pa.string(), "color": pa.string(), "hash": pa.binary(),
    "point": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    "maybe": pa.struct([("x", pa.int32()), ("y", pa.string())]),
    "points": pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())])),
    "names": pa.map_(pa.string(), pa.string()), "grid": pa.list_(pa.list_(pa.int64())), "any": pa.string(),
    "one": pa.string(),
}  # fmt: skip
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INSTANT = st.datetimes(datetime(1800, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 (hypothesis wants them so)
A_POINT = st.fixed_dictionaries({"x": INT32, "y": st.none() | st.text(max_size=4)})
ROW = st.fixed_dictionaries(
    {
        "nothing": st.none(),
        "flag": st.booleans(),
        "i": INT32,
        "l": INT64,
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "s": st.text(max_size=8),
        "b": st.binary(max_size=200),
        "day": st.dates(),
        "millis": INSTANT.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
        "micros": INSTANT,
        "time": st.times().map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)),
        "price": st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-3)),
        "cents": st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        "id": st.uuids().map(str),
        "color": st.sampled_from(["RED", "GREEN"]),
        "hash": st.binary(min_size=4, max_size=4),
        "point": A_POINT,
        "maybe": st.none() | A_POINT,
        "points": st.lists(A_POINT, max_size=4),
        "names": st.dictionaries(st.text(max_size=3), st.none() | st.text(max_size=3), max_size=3),
        "grid": st.lists(st.lists(INT64, max_size=3), max_size=3),
        "any": st.none() | INT64 | st.text(max_size=4) | A_POINT | st.lists(st.booleans(), max_size=3),
        "one": st.text(max_size=3),
    }
)


def write_all(row: dict[str, Any]) -> bytes:
    return write(ALL, row)


def as_column(row: dict[str, Any]) -> dict[str, Any]:
    """What fastavro read, as Arrow gives it back."""
    at = row["time"]
    millis = ((at.hour * 60 + at.minute) * 60 + at.second) * 1000 + at.microsecond // 1000
    return {**row, "time": millis, "names": list(row["names"].items()), "id": str(row["id"]), "any": _text(row["any"])}


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


READER = decoder("avro", json.dumps(ALL))
BROKER = AvroSchema(json.dumps(ALL).encode())
ROWS = AvroRows(json.dumps(ALL))


def test_the_column_of_every_type() -> None:
    assert {field.name: field.type for field in READER.schema} == TYPES


@settings(max_examples=40, deadline=None)
@given(st.lists(ROW, max_size=4))
def test_the_same_rows_as_fastavro(rows: list[dict[str, Any]]) -> None:
    values = [write_all(row) for row in rows]
    parsed = fastavro.parse_schema(ALL)
    wanted: list[Any] = [fastavro.schemaless_reader(io.BytesIO(value), parsed, None) for value in values]
    found, causes = decoded(READER, values)
    assert causes == [None] * len(values)
    for row, read in zip(found, wanted, strict=True):
        row["any"] = None if row["any"] is None else _text(json.loads(row["any"]))
        assert row == as_column(read)


def _one_by_one(values: list[bytes]) -> tuple[list[pa.Array], list[bool]]:
    """The rows by the reader that cursors are checked against."""
    read = [ROWS._one(value) for value in values]
    return ROWS._root.shape.children([row for row in read if not isinstance(row, str)]), [
        not isinstance(row, str) for row in read
    ]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(ROW, st.integers(0, 400), st.integers(0, 255), st.sampled_from("=+-")), min_size=1, max_size=4)
)
def test_broken_bytes_have_the_brokers_verdict_and_break_their_row_only(edits: list[tuple[Any, int, int, str]]) -> None:
    values = []
    for row, place, byte, what in edits:
        data = bytearray(write_all(row))
        place %= len(data)
        data[place : place + (what != "+")] = b"" if what == "-" else bytes([byte])
        values.append(bytes(data))
    columns, sound = _one_by_one(values)
    found, causes = decoded_loosely(values)
    assert [why is None for why in causes] == sound
    fine = pa.array([number for number, is_fine in enumerate(sound) if is_fine], pa.int64())
    # As text: a broken double may be a NaN, which equals nothing.
    assert [_shown(column.take(fine)) for column in found] == [_shown(column) for column in columns]
    for value, why in zip(values, causes, strict=True):
        refused = BROKER.check(value)
        # A decimal with too many digits is bytes to the broker; so is an instant that no JSON text has.
        assert bool(refused) == bool(why) or (why and ("digits" in why or "a long is" in why)), (refused, why)


def _shown(column: pa.Array) -> str:
    text: str = column.to_string(window=1000)
    return text


def decoded_loosely(values: list[bytes]) -> tuple[list[pa.Array], list[str | None]]:
    """As `decoded`, in Arrow: an instant may be outside the years that Python knows."""
    batch, causes = READER.decode(binary(values))
    batch.validate(full=True)
    return batch.columns, [None] * len(values) if causes is None else causes.to_pylist()


@settings(max_examples=80, deadline=None)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_any_bytes(values: list[bytes]) -> None:
    reader = of(a="long", b=["null", "string"], c={"type": "array", "items": "int"}, d="boolean")
    broker = AvroSchema(
        json.dumps(record(a="long", b=["null", "string"], c={"type": "array", "items": "int"}, d="boolean")).encode()
    )
    _, causes = decoded(reader, values)
    assert [bool(why) for why in causes] == [bool(broker.check(value)) for value in values]


@pytest.mark.parametrize(
    ("type", "value", "words"),
    [
        ("long", b"", "c: the value ends inside a long"),
        ("long", b"\x80", "c: the value ends inside a long"),
        ("long", b"\xff" * 9 + b"\x02", "c: a long is"),
        ("long", b"\xff" * 10 + b"\x00", "c: a long has more than 64 bits"),
        ("int", b"\x80\x80\x80\x80\x10", "c: an int is 2147483648, which has too many bits"),
        ("boolean", b"\x02", "c: a boolean is 0 or 1, found 2"),
        ("double", b"1234567", "c: a double needs 8 bytes, 7 are left"),
        ("string", b"\x02\xff", "c: a string is not UTF-8 at its byte 0"),
        ("string", b"\x01", "c: the length of a string is -1"),
        (
            "string",
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "c: a string needs 9223372036854775807 bytes, 0 are left",
        ),
        ("bytes", b"\x04a", "c: bytes needs 2 bytes, 1 are left"),
        ("long", b"\x02\x00", "the value: 1 bytes are left after the last field"),
        (["null", "long"], b"\x04", "c: branch 2 of a union with 2 branches"),
        (["null", "long", "string"], b"\x01", "c: branch -1 of a union with 3 branches"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "c: symbol 1 of an enum with 1 symbols"),
        ({"type": "fixed", "name": "F", "size": 2}, b"\x02", "c: a fixed needs 2 bytes, 1 are left"),
        ({"type": "array", "items": "long"}, b"\x06\x02", "c[0]: a block of 3 items, 1 bytes are left"),
        ({"type": "array", "items": "long"}, b"\x01\x01\x02\x00", "c[0]: a block has a negative number of bytes"),
        ({"type": "array", "items": POINT}, b"\x04\x02\x00\x02\x04\x00\x00", "c[1].y: branch 2"),
        (logical("long", "timestamp-millis"), b"\xff" * 9 + b"\x01", "c: a long is -9223372036854775808"),
        (logical("bytes", "decimal", precision=2), b"\x02\x64", "c: a decimal has more than 2 digits"),
    ],
)
def test_causes_name_the_field(type: Any, value: bytes, words: str) -> None:
    assert cause(of(c=type), value).startswith(words)


def test_a_block_that_says_its_size_and_several_blocks() -> None:
    reader = of(c={"type": "array", "items": "long"}, d="boolean")
    value = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00" + b"\x01"
    assert good(reader, value, b"\x00\x00") == [{"c": [1, 2, 3], "d": True}, {"c": [], "d": False}]


def test_lists_that_are_too_long_for_lanes() -> None:
    schema = record(a="int", c={"type": "array", "items": "string"})
    long = {"a": 1, "c": [str(n) for n in range(STEPS_MAX * 3)]}
    short = {"a": 2, "c": ["x", "y"]}
    values = [write(schema, row) for row in (short, long, short, long)]
    assert good(decoder("avro", json.dumps(schema)), *values) == [short, long, short, long]
    rows, causes = decoded(decoder("avro", json.dumps(schema)), [values[1][:-1], values[1] + b"\0", *values])
    assert causes[0] and causes[1] and rows[2:] == [short, long, short, long]
    many = [{"a": n, "c": ["z"] * (STEPS_MAX + n)} for n in range(CURSORS_FEW + 3)]
    assert good(decoder("avro", json.dumps(schema)), *(write(schema, row) for row in many)) == many


def test_a_key_that_is_there_twice() -> None:
    reader = of(c={"type": "map", "values": "int"})
    twice, once = b"\x04\x02k\x02\x02k\x04\x00", b"\x02\x02k\x06\x00"
    assert [row["c"] for row in good(reader, once, twice, once)] == [[("k", 3)], [("k", 2)], [("k", 3)]]


def test_nan_and_infinity_are_kept() -> None:
    schema = record(f="float", d="double")
    rows = good(of(f="float", d="double"), write(schema, {"f": float("inf"), "d": float("nan")}))
    assert rows[0]["f"] == float("inf") and rows[0]["d"] != rows[0]["d"]


def test_logical_types_of_other_units() -> None:
    reader = of(n=logical("long", "timestamp-nanos"), u=logical("fixed", "uuid", name="U", size=16))
    id = UUID("12345678-1234-5678-1234-567812345678")
    assert good(
        reader, write(record(n="long", u={"type": "fixed", "name": "U", "size": 16}), {"n": -1, "u": id.bytes})
    ) == [{"n": datetime(1970, 1, 1, tzinfo=UTC) - timedelta(microseconds=1), "u": str(id)}]
    assert cause(reader, b"\x00" * 5).startswith("u: a fixed needs 16 bytes")
    assert of(d=logical("bytes", "decimal", precision=39)).schema.field("d").type == pa.binary()
    assert of(d=logical("long", "local-timestamp-micros")).schema.field("d").type == pa.int64()


def test_a_union_of_several_types_is_json_text() -> None:
    types = ["null", "long", "bytes", {"type": "map", "values": "int"}, logical("int", "date")]
    schema = record(c=types)
    values = [None, 5, b"\xff\x00", {"k": 1}, date(2024, 1, 2)]
    found = good(decoder("avro", json.dumps(schema)), *(write(schema, {"c": value}) for value in values))
    assert [row["c"] for row in found] == [None, "5", '"/wA="', '{"k":1}', '"2024-01-02"']
    assert "years" in cause(decoder("avro", json.dumps(schema)), b"\x08\xfe\xff\xff\xff\x0f")


def test_definitions_that_cannot_become_columns() -> None:
    with pytest.raises(SchemaInvalid, match="Row contains itself, at next"):
        of(v="int", next=["null", "Row"])
    for items in ("null", {"type": "fixed", "name": "Z", "size": 0}, record(n="null") | {"name": "N"}):
        with pytest.raises(SchemaInvalid, match="no bytes"):
            of(c={"type": "array", "items": items})
    with pytest.raises(SchemaInvalid, match="has no fields"):
        of()
    with pytest.raises(SchemaInvalid, match="not a record"):
        decoder("avro", '"string"')
    with pytest.raises(SchemaInvalid, match="no type named"):
        of(c="Nope")
    with pytest.raises(SchemaInvalid, match=str(COLUMNS_MAX)):
        of(**{f"c{number}": "int" for number in range(COLUMNS_MAX)})
    deep: Any = "int"
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaInvalid, match=f"deeper than {DEPTH_MAX}"):
        of(c=deep)


V1 = record(id="int", name="string", old="long", p=record(a="int") | {"name": "P"})
V2 = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "title", "type": ["null", "string"], "aliases": ["name"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["new"]},
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
        {"name": "at", "type": logical("long", "timestamp-millis"), "default": 1000},
        {"name": "p", "type": {"type": "record", "name": "P", "fields": [
            {"name": "a", "type": "double"}, {"name": "b", "type": "int", "default": 7}]}},
    ],
}  # fmt: skip


def test_drift_rows_of_an_older_version_are_resolved_as_fastavro_does() -> None:
    old = {"id": 5, "name": "n", "old": -(1 << 40), "p": {"a": 3}}
    new: dict[str, Any] = {
        "id": 1 << 40,
        "title": None,
        "tags": [],
        "raw": b"",
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "p": {"a": 0.5, "b": 1},
    }
    reader = decoder("avro", json.dumps(V2), older=[json.dumps(V1)])
    rows = good(reader, write(V1, old), write(V2, new), write(V1, old))
    resolved: Any = fastavro.schemaless_reader(
        io.BytesIO(write(V1, old)), fastavro.parse_schema(V1), fastavro.parse_schema(V2)
    )
    # fastavro gives defaults as the definition writes them; the column has their type.
    assert (resolved["raw"], resolved["at"]) == ("\u00ff", 1000)
    resolved |= {"raw": b"\xff", "at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}
    assert rows == [resolved, new, resolved]
    assert cause(reader, b"\x02").startswith("title: ")


def test_drift_a_field_without_default_cannot_be_read_from_older_rows() -> None:
    newer = record(id="int", must="string")
    _, causes = decoded(decoder("avro", json.dumps(newer), older=[json.dumps(record(id="int"))]), [b"\x02"])
    assert causes == ["must: the value ends inside the length of a string, at byte 1"]


def test_a_default_that_is_none() -> None:
    bad = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}
    with pytest.raises(SchemaInvalid):
        decoder("avro", json.dumps(bad))
