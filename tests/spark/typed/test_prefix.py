"""Confluent's prefix: found where it is, never taken for a value, and what can be read both ways is refused."""

import json
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.model.errors import SchemaInvalid
from quintet.spark.typed import decoder
from tests.spark.typed.parts import cause, decoded, good

JSON = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
AVRO_FIELDS: list[dict[str, Any]] = [
    {"name": "note", "type": ["null", "string"]},
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string"},
]
AVRO = json.dumps({"type": "record", "name": "R", "fields": AVRO_FIELDS})
PROTO = """syntax = "proto3"; message Order { int64 id = 1; message Line { string sku = 1; } repeated Line lines = 2; }
message Refund { int64 id = 1; }"""
BARE_AVRO = b"\x00\x02\x06abc"  # no note, id 1, name abc


def behind(id: int, value: bytes, indexes: bytes = b"") -> bytes:
    return struct.pack(">bI", 0, id) + indexes + value


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
def test_bare_and_prefixed_values_stand_side_by_side(kind: str) -> None:
    definition = {"json": JSON, "avro": AVRO, "protobuf": PROTO}[kind]
    value = {"json": b'{"id":1}', "avro": BARE_AVRO, "protobuf": b"\x08\x01"}[kind]
    prefixed = behind(17, value, b"\x00" if kind == "protobuf" else b"")
    auto = decoder(kind, definition, prefix="auto")
    rows, causes = decoded(auto, [value, prefixed, None, value, behind(100_001, b"\xff")])
    assert causes[:4] == [None] * 4 and causes[4] is not None
    assert [row["id"] for row in rows] == [1, 1, None, 1, None]
    assert good(pickle.loads(pickle.dumps(auto)), prefixed) == rows[1:2]
    insisting = decoder(kind, definition, prefix="confluent")
    assert good(insisting, prefixed) == rows[1:2]
    assert decoded(insisting, [None, prefixed])[1] == [None, None]
    assert "has no prefix" in cause(insisting, value if kind != "avro" else b"\x00\x02\x00")
    assert good(decoder(kind, definition), value) == rows[:1]
    assert cause(decoder(kind, definition), prefixed)


THREE = json.dumps({"type": "record", "name": "R", "fields": [
    {"name": "skip", "type": {"type": "array", "items": "int"}}, {"name": "more", "type": "bytes"},
    {"name": "rest", "type": "bytes"}]})  # fmt: skip
# Bare: no items, no bytes, then six bytes. Behind the id 0x000c0011: no items, no bytes, then one byte.
EITHER = b"\x00" + b"\x00" + b"\x0c" + b"\x00\x11" + b"\x00" + b"\x00" + b"\x02" + b"z"


def test_avro_that_can_be_read_both_ways_is_refused_unless_told() -> None:
    bare, stripped = {"skip": [], "more": b"", "rest": EITHER[3:]}, {"skip": [], "more": b"", "rest": b"z"}
    assert good(decoder("avro", THREE), EITHER) == [bare]
    assert good(decoder("avro", THREE), EITHER[5:]) == [stripped]
    words = "can be read as it is, and behind a prefix with the schema id 786449"
    assert words in cause(decoder("avro", THREE, prefix="auto"), EITHER)
    assert good(decoder("avro", THREE, prefix="confluent"), EITHER) == [stripped]
    assert good(decoder("avro", THREE, prefix="auto", ids=((786449, THREE),)), EITHER) == [stripped]


TEXTS = st.none() | st.text("ab\x00\x01", max_size=6)


def plain(row: tuple[str | None, int, str]) -> bytes:
    def text(value: str) -> bytes:
        return bytes((2 * len(value),)) + value.encode()

    note, number, name = row
    return (b"\x00" if note is None else b"\x02" + text(note)) + bytes((2 * number,)) + text(name)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(TEXTS, st.integers(0, 60), st.text("ab\x00\x01", max_size=6)), min_size=1, max_size=5), st.data()
)
def test_no_avro_value_is_read_in_the_wrong_way(rows: list[tuple[str | None, int, str]], data: Any) -> None:
    reader = decoder("avro", AVRO, prefix="auto")
    values = [plain(row) for row in rows]
    marks = [data.draw(st.booleans()) for _ in rows]
    ids = [data.draw(st.integers(1, 300)) for _ in rows]
    written = [behind(id, value) if mark else value for id, value, mark in zip(ids, values, marks, strict=True)]
    found, causes = decoded(reader, written)
    for row, value, why in zip(rows, found, causes, strict=True):
        if why is None:
            assert (value["note"], value["id"], value["name"]) == row
        else:
            assert "can be read as it is, and behind a prefix" in why


def test_an_id_that_is_known_names_the_version_that_wrote_the_row() -> None:
    """The bytes are sound in both versions; only the id tells which one wrote them."""
    first = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]}
    )
    second = json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}, {"name": "a", "type": "int"}]}
    )
    reader = decoder("avro", second, [first], prefix="confluent", ids=((7, first), (8, second)))
    value = b"\x02\x04"
    rows = good(reader, behind(7, value), behind(8, value), behind(9, value))
    assert rows == [{"b": 2, "a": 1}, {"b": 1, "a": 2}, {"b": 1, "a": 2}]
    assert cause(reader, behind(7, b"\x02")).startswith("b: ")
    with pytest.raises(SchemaInvalid, match="cannot become"):
        decoder(
            "json",
            JSON,
            prefix="auto",
            ids=((1, json.dumps({"type": "object", "properties": {"id": {"type": "string"}}})),),
        )


@pytest.mark.parametrize(
    ("chosen", "indexes"),
    [("Order", b"\x00"), ("Order", b"\x02\x00"), ("Refund", b"\x02\x02"), ("Order.Line", b"\x04\x00\x00")],
)
def test_protobuf_says_which_message_it_is(chosen: str, indexes: bytes) -> None:
    reader = decoder("protobuf", f"// quintet: message = {chosen}\n{PROTO}", prefix="auto")
    value = b"\x0a\x01x" if chosen == "Order.Line" else b"\x08\x05"
    assert good(reader, behind(3, value, indexes))[0] in ({"sku": "x"}, {"id": 5, "lines": []}, {"id": 5})
    other = b"\x02\x02" if chosen != "Refund" else b"\x00"
    named = "Refund" if chosen != "Refund" else "Order"
    assert f"({named})" in cause(reader, behind(3, value, other))
    assert "which is not in the schema" in cause(reader, behind(3, value, b"\x04\x08\x08"))
    for senseless in (b"", b"\x01", b"\x80", b"\x7e\x00", b"\xff" * 9):
        assert "no list of message indexes" in cause(reader, behind(3, b"", senseless))


def test_what_begins_with_a_zero_and_is_too_short_has_no_prefix() -> None:
    for value in (b"\x00", b"\x00\x00\x00\x00"):
        assert cause(decoder("json", JSON, prefix="auto"), value)
    empty = decoder("protobuf", PROTO, prefix="auto")
    assert good(empty, b"", behind(1, b"", b"\x00")) == [{"id": 0, "lines": []}] * 2
