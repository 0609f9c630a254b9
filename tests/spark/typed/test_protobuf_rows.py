"""Protobuf to columns: the same rows as the plain library reads, and the broker's verdict on bytes that are none."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.broker.schemas.protobuf import ProtobufSchema
from quintet.model.errors import SchemaInvalid
from quintet.spark.typed import decoder, protobuf_rows
from quintet.spark.typed.columns import COLUMNS_MAX
from tests.spark.typed.parts import cause, decoded, good

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/empty.proto";
message Row {
  double d = 1; float f = 2; bool flag = 3; string s = 4; bytes b = 5;
  int32 i32 = 6; sint32 s32 = 7; sfixed32 f32 = 8; int64 i64 = 9; sint64 s64 = 10; sfixed64 f64 = 11;
  uint32 u32 = 12; fixed32 x32 = 13; uint64 u64 = 14; fixed64 x64 = 15;
  enum Color { RED = 0; GREEN = 1; }
  Color color = 16; optional string maybe = 17;
  Point point = 18; repeated Point points = 19; repeated int32 packed = 20; repeated string names = 21;
  map<string, Point> places = 22; map<int32, Color> colors = 23;
  google.protobuf.Timestamp at = 24; google.protobuf.Struct more = 25; google.protobuf.Int64Value wrapped = 26;
  google.protobuf.Empty nothing = 27;
  oneof choice { string left = 28; bytes right = 29; }
  message Point { int32 x = 1; optional string y = 2; }
}
"""
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
TYPES = {
    "d": pa.float64(), "f": pa.float32(), "flag": pa.bool_(), "s": pa.string(), "b": pa.binary(), "i32": pa.int32(),
    "s32": pa.int32(), "f32": pa.int32(), "i64": pa.int64(), "s64": pa.int64(), "f64": pa.int64(), "u32": pa.int64(),
    "x32": pa.int64(), "u64": pa.decimal128(20, 0), "x64": pa.decimal128(20, 0), "color": pa.string(),
    "maybe": pa.string(), "point": POINT, "points": pa.list_(POINT), "packed": pa.list_(pa.int32()),
    "names": pa.list_(pa.string()), "places": pa.map_(pa.string(), POINT), "colors": pa.map_(pa.int32(), pa.string()),
    "at": pa.timestamp("us", "UTC"), "more": pa.string(), "wrapped": pa.int64(), "nothing": pa.string(),
    "left": pa.string(), "right": pa.binary(),
}  # fmt: skip
BROKER = ProtobufSchema(PROTO.encode())
ROW: Any = GetMessageClass(BROKER.descriptor)
READER = decoder("protobuf", PROTO)


def proto2(body: str) -> str:
    return f'syntax = "proto2"; message Row {{ {body} }}'


def proto3(body: str) -> str:
    return f'syntax = "proto3"; message Row {{ {body} }}'


def message_class(definition: str) -> Any:
    return GetMessageClass(ProtobufSchema(definition.encode()).descriptor)


def test_the_column_of_every_type() -> None:
    assert {field.name: field.type for field in READER.schema} == TYPES


def test_values_of_every_type() -> None:
    row = ROW(
        d=0.5, f=0.25, flag=True, s="é\0", b=b"\xff", i32=-(1 << 31), s32=-1, f32=-2, i64=-(1 << 63), s64=-3, f64=-4,
        u32=(1 << 32) - 1, x32=7, u64=(1 << 64) - 1, x64=8, color=1, maybe="", packed=[1, -1], names=["a", ""], left="l",
    )  # fmt: skip
    row.point.x = 1
    row.points.add(y="y")
    row.places["here"].x = 2
    row.colors[5] = 1
    row.colors[-6] = 9
    row.at.seconds, row.at.nanos = 1, 2999
    row.more["k"] = [1, None]
    row.wrapped.value = 0
    row.nothing.SetInParent()
    (found,) = good(READER, row.SerializeToString())
    assert sorted(found.pop("colors")) == [(-6, "9"), (5, "GREEN")]
    assert found == {
        "d": 0.5, "f": 0.25, "flag": True, "s": "é\0", "b": b"\xff", "i32": -(1 << 31), "s32": -1, "f32": -2,
        "i64": -(1 << 63), "s64": -3, "f64": -4, "u32": (1 << 32) - 1, "x32": 7, "u64": Decimal((1 << 64) - 1),
        "x64": Decimal(8), "color": "GREEN", "maybe": "", "point": {"x": 1, "y": None}, "points": [{"x": 0, "y": "y"}],
        "packed": [1, -1], "names": ["a", ""], "places": [("here", {"x": 2, "y": None})],
        "at": datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC), "more": '{"k": [1.0, null]}', "wrapped": 0, "nothing": "{}",
        "left": "l", "right": None,
    }  # fmt: skip


def test_what_is_not_there_is_its_default_or_null() -> None:
    (found,) = good(READER, b"")
    assert {name: value for name, value in found.items() if value is not None} == {
        "d": 0.0, "f": 0.0, "flag": False, "s": "", "b": b"", "i32": 0, "s32": 0, "f32": 0, "i64": 0, "s64": 0, "f64": 0,
        "u32": 0, "x32": 0, "u64": Decimal(0), "x64": Decimal(0), "color": "RED", "points": [], "packed": [],
        "names": [], "places": [], "colors": [],
    }  # fmt: skip


def test_long_rows_are_framed_too() -> None:
    for size in (0, 1, 125, 126, 127, 128, 129, 16_383, 16_384, 70_000):
        rows = good(READER, ROW(s="x" * size).SerializeToString(), ROW(i64=size).SerializeToString())
        assert (len(rows[0]["s"]), rows[1]["i64"]) == (size, size)


def test_a_batch_that_is_too_large_to_parse_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_rows, "PARSED_TOGETHER_BYTES_MAX", 10)
    values = [ROW(i64=n, s="long enough").SerializeToString() for n in range(5)]
    rows, causes = decoded(READER, [*values, b"\xff"])
    assert [row["i64"] for row in rows] == [0, 1, 2, 3, 4, None] and causes[:5] == [None] * 5 and causes[5]


def test_fields_of_a_newer_writer_are_left_out() -> None:
    old = decoder("protobuf", proto3("int64 id = 1; In in = 2; message In { int32 a = 1; }"))
    new = message_class(proto3("int64 id = 1; In in = 2; string more = 3; message In { int32 a = 1; int32 b = 9; }"))
    row = new(id=4, more="m")
    getattr(row, "in").b = 5
    assert good(old, row.SerializeToString(), new(id=5).SerializeToString()) == [
        {"id": 4, "in": {"a": 0}},
        {"id": 5, "in": None},
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\xff", "the message: the message ends inside a number"),
        (b"\x08", "d: the message ends inside a number"),
        (b"\x22\x05ab", "s: field 4 needs 5 bytes, 2 are left"),
        (b"\x22\x01\xff", "s: expected a string, it is not UTF-8 at its byte 0"),
        (b"\x22\x01x\x4a\x01a", "i64: it has another wire type than declared"),
        (b"\x22\x01x\x92\x01\x02\x12\x00\x92\x01\x02\x0a\x00", "point.x: it has another wire type than declared"),
        (b"\x22\x01x\x9a\x01\x00\x9a\x01\x02\x0a\x00", "points[1].x: it has another wire type than declared"),
        (b"\x22\x01x\xb2\x01\x07\x0a\x01k\x12\x02\x0a\x00", "places[k].x: it has another wire type than declared"),
        (b"\xc0\x3e\x01", "the value: no field of shop.Row is there, only unknown ones"),
        (b"\x07", "the message: "),
        (
            b"\xc2\x01\x0c\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10\x01",
            "at: the instant 9223372036854775807 s is out",
        ),
    ],
)
def test_causes_name_the_field(value: bytes, words: str) -> None:
    assert cause(READER, value).startswith(words)


def test_nesting_is_bounded() -> None:
    """The library's own limit of 100 messages inside each other holds, in a batch as in a single row."""
    text = 'syntax = "proto3"; import "google/protobuf/struct.proto"; message Row { google.protobuf.Value v = 6; }'
    reader = decoder("protobuf", text)

    def inside(tag: int, value: bytes) -> bytes:
        return bytes([tag, len(value) & 0x7F | 0x80, len(value) >> 7]) + value

    value = shallow = b""
    for depth in range(1000):
        value = inside(0x32, inside(0x0A, value))  # Value.list_value, ListValue.values
        if depth == 10:
            shallow = inside(0x32, value)
    assert good(reader, shallow) == [{"v": "[" * 11 + "null" + "]" * 11}]
    assert cause(reader, inside(0x32, value))
    assert cause(READER, b"\x0b" * 100_000)


def test_proto2() -> None:
    definition = proto2("required int64 id = 1; optional string s = 2; optional E e = 3; enum E { A = 1; B = 2; }")
    reader = decoder("protobuf", definition)
    row = message_class(definition)
    assert good(reader, row(id=1).SerializeToString(), row(id=2, s="", e=2).SerializeToString()) == [
        {"id": 1, "s": None, "e": None},
        {"id": 2, "s": "", "e": "B"},
    ]
    assert cause(reader, row(s="x").SerializePartialToString()) == "id: the required field is missing"
    rows, causes = decoded(reader, [b"\x08\x01", b"\x08\x02\x12\x01\xff", b"\x08\x03", b"\x08\x04\x18\x09"])
    assert [row["id"] for row in rows] == [1, None, 3, 4] and rows[3]["e"] is None
    assert [why is None for why in causes] == [True, False, True, True] and causes[1] and causes[1].startswith("s: ")


def test_definitions_that_cannot_become_columns() -> None:
    for body, words in (
        ("Row next = 1;", "Row contains itself"),
        ("In in = 1; message In { repeated Row up = 1; }", "Row contains itself"),
        ("", "has no fields"),
        (" ".join(f"int32 f{n} = {n};" for n in range(1, COLUMNS_MAX + 2)), str(COLUMNS_MAX)),
    ):
        with pytest.raises(SchemaInvalid, match=words):
            decoder("protobuf", proto3(body))
    with pytest.raises(SchemaInvalid, match="is used"):
        decoder("protobuf", 'syntax = "proto3"; package quintet.typed.batch; message Batch { int32 a = 1; }')


def test_the_message_that_a_comment_names_and_a_descriptor_set() -> None:
    text = '// quintet: message = Second\nsyntax = "proto3"; message First { int32 a = 1; } message Second { int32 b = 1; }'
    assert decoder("protobuf", text).schema.names == ["b"]
    files = descriptor_pb2.FileDescriptorSet()
    BROKER.descriptor.file.CopyToProto(files.file.add())
    assert decoder("protobuf", files.SerializeToString()).schema == READER.schema


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "d": st.floats(allow_nan=False),
        "f": st.floats(width=32, allow_nan=False),
        "s": st.text(max_size=150),
        "b": st.binary(max_size=5),
        "i32": INT32,
        "s64": INT64,
        "u64": st.integers(0, (1 << 64) - 1),
        "color": st.integers(0, 3),
        "maybe": st.text(max_size=3),
        "packed": st.lists(INT32, max_size=4),
        "names": st.lists(st.text(max_size=3), max_size=3),
        "point": st.builds(ROW.Point, x=INT32),
        "points": st.lists(st.builds(ROW.Point, x=INT32, y=st.text(max_size=2)), max_size=3),
        "places": st.dictionaries(st.text(max_size=2), st.builds(ROW.Point, x=INT32), max_size=2),
        "right": st.binary(max_size=3),
    },
)


def point(message: Any) -> dict[str, Any]:
    return {"x": message.x, "y": message.y if message.HasField("y") else None}


def errors_without_trace(value: bytes) -> dict[str, Any]:
    """Some columns of a row by the plain library."""
    row = ROW.FromString(value)
    return {
        "d": row.d, "f": row.f, "s": row.s, "b": row.b, "i32": row.i32, "s64": row.s64, "u64": Decimal(row.u64),
        "color": {0: "RED", 1: "GREEN"}.get(row.color, str(row.color)),
        "maybe": row.maybe if row.HasField("maybe") else None, "packed": list(row.packed), "names": list(row.names),
        "point": point(row.point) if row.HasField("point") else None, "points": [point(item) for item in row.points],
        "places": sorted((name, point(item)) for name, item in row.places.items()),
        "right": row.right if row.HasField("right") else None,
    }  # fmt: skip


def compare(values: list[bytes]) -> None:
    rows, causes = decoded(READER, values)
    for value, row, why in zip(values, rows, causes, strict=True):
        assert bool(BROKER.check(value)) == bool(why), (value, why)
        if why is None:
            row["places"].sort()
            assert repr({name: row[name] for name in errors_without_trace(value)}) == repr(errors_without_trace(value))


@settings(max_examples=50, deadline=None)
@given(st.lists(FIELDS, max_size=4))
def test_the_same_rows_as_the_plain_library(rows: list[dict[str, Any]]) -> None:
    compare([ROW(**row).SerializeToString() for row in rows])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(FIELDS, st.integers(0, 300), st.integers(0, 255)), min_size=1, max_size=4))
def test_broken_bytes_have_the_brokers_verdict_and_break_their_row_only(edits: list[tuple[Any, int, int]]) -> None:
    values = []
    for row, place, byte in edits:
        data = bytearray(ROW(**row).SerializeToString() or b"\0")
        data[place % len(data)] = byte
        values.append(bytes(data))
    compare(values)
