"""What holds for JSON, Avro and Protobuf alike: places of bad rows, nulls, slices, empty batches, pickling, drift."""

import io
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import fastavro
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

from quintet.broker.schemas.protobuf import ProtobufSchema
from quintet.model.errors import SchemaInvalid
from quintet.spark.typed import Decoder, decoder
from quintet.spark.typed.columns import REASON_CHARS_MAX
from tests.spark.typed.parts import binary, decoded

PROTO = 'syntax = "proto3"; message Row { int64 id = 1; string name = 2; repeated int32 list = 3; }'
AVRO = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "list", "type": {"type": "array", "items": "int"}},
    ],
}
JSON = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "name": {"type": "string"},
        "list": {"type": "array", "items": {"type": "integer"}},
    },
}


@dataclass(frozen=True)
class Kind:
    """A schema of id, name and list; how to write a row of it; values that are no rows."""

    name: str
    definition: str
    write: Callable[[int, str, list[int]], bytes]
    bad: tuple[bytes, ...]

    def decoder(self) -> Decoder:
        return decoder(self.name, self.definition)


def write_avro(id: int, name: str, list: list[int]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), {"id": id, "name": name, "list": list})
    return out.getvalue()


_ROW = ProtobufSchema(PROTO.encode())


def write_protobuf(id: int, name: str, list: list[int]) -> bytes:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(_ROW.descriptor)(id=id, name=name, list=list).SerializeToString()


def write_json(id: int, name: str, list: list[int]) -> bytes:
    return json.dumps({"id": id, "name": name, "list": list}).encode()


KINDS = [
    Kind("json", json.dumps(JSON), write_json, (b"", b"{", b'{"id": "x"}', b"{}", b"null", b"\xff", b"\0")),
    Kind("avro", json.dumps(AVRO), write_avro, (b"", b"\x02", b"\x02\x02\xff\x00", b"\x02\x00\x00\x00", b"\xff" * 11)),
    Kind("protobuf", PROTO, write_protobuf, (b"\xff", b"\x08", b"\x12\x01\xff", b"\x0a\x01a", b"\x12\x7fa")),
]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])


def rows_of(kind: Kind, count: int) -> tuple[list[bytes], list[dict[str, object]]]:
    wanted = [{"id": n - 3, "name": "é" * n, "list": list(range(n % 4))} for n in range(count)]
    return [kind.write(n - 3, "é" * n, list(range(n % 4))) for n in range(count)], wanted


@each_kind
def test_rows_become_columns(kind: Kind) -> None:
    values, wanted = rows_of(kind, 20)
    rows, causes = decoded(kind.decoder(), values)
    assert rows == wanted and causes == [None] * 20
    assert kind.decoder().decode(binary(values))[1] is None


@each_kind
@pytest.mark.parametrize("place", [0, 7, 19])
def test_a_bad_row_costs_nobody_else(kind: Kind, place: int) -> None:
    for bad in kind.bad:
        values, wanted = rows_of(kind, 20)
        values[place] = bad
        rows, causes = decoded(kind.decoder(), values)
        assert [number for number, cause in enumerate(causes) if cause] == [place], bad
        assert [row for number, row in enumerate(rows) if number != place] == wanted[:place] + wanted[place + 1 :]


@each_kind
def test_all_rows_bad(kind: Kind) -> None:
    values = [kind.bad[number % len(kind.bad)] for number in range(1000)]
    _, causes = decoded(kind.decoder(), values)
    assert all(causes)


@each_kind
def test_bad_good_and_null_rows_in_turn(kind: Kind) -> None:
    values, wanted = rows_of(kind, 9)
    mixed: list[bytes | None] = [v for value in values for v in (kind.bad[1], value, None)]
    rows, causes = decoded(kind.decoder(), mixed)
    assert rows[1::3] == wanted
    assert all(causes[0::3]) and not any(causes[1::3]) and not any(causes[2::3])


@each_kind
def test_null_values_are_nulls_and_no_errors(kind: Kind) -> None:
    for values in ([None], [None] * 3, [None, *rows_of(kind, 3)[0], None]):
        assert kind.decoder().decode(binary(values))[1] is None
        rows, _ = decoded(kind.decoder(), values)
        assert set(rows[0].values()) == {None}


@each_kind
def test_an_empty_array(kind: Kind) -> None:
    for values in (binary([]), binary([b"x"]).slice(1), binary([None]).slice(1)):
        batch, causes = kind.decoder().decode(values)
        assert (batch.num_rows, causes) == (0, None) and batch.schema.equals(kind.decoder().schema)


@each_kind
@pytest.mark.parametrize("nulls", [False, True])
def test_slices_see_their_own_rows_only(kind: Kind, nulls: bool) -> None:
    values, wanted = rows_of(kind, 10)
    whole = binary([kind.bad[0], *values, None if nulls else values[0], kind.bad[0]])
    rows, causes = decoded(kind.decoder(), whole.slice(3, 5))
    assert rows == wanted[2:7] and not any(causes)
    rows, causes = decoded(kind.decoder(), whole.slice(9))
    assert rows[:2] == wanted[8:10] and causes[:2] == [None, None] and causes[-1]


@each_kind
def test_a_decoder_travels_as_its_definition(kind: Kind) -> None:
    values, wanted = rows_of(kind, 5)
    assert decoded(pickle.loads(pickle.dumps(kind.decoder())), values)[0] == wanted


@each_kind
def test_a_cause_is_bounded_and_one_line(kind: Kind) -> None:
    nasty = {
        "json": json.dumps({"id": {"a\n": 1}}).encode(),
        "avro": b"\x02\x7f",
        "protobuf": b"\x0a\x05a\nb\x00c",
    }
    _, (cause,) = decoded(kind.decoder(), [nasty[kind.name]])
    assert cause and cause.isprintable() and len(cause) <= REASON_CHARS_MAX


@each_kind
def test_a_definition_that_is_none(kind: Kind) -> None:
    for text in ("", "{", "[1]", "null", '{"type": "nope"}', "message {"):
        with pytest.raises(SchemaInvalid):
            decoder(kind.name, text)


def test_an_unknown_kind() -> None:
    with pytest.raises(SchemaInvalid, match="xml"):
        decoder("xml", "<a/>")


def test_a_definition_in_bytes() -> None:
    assert decoder("avro", json.dumps(AVRO).encode()).schema.names == ["id", "name", "list"]
    with pytest.raises(SchemaInvalid, match="UTF-8"):
        decoder("json", b"\xff")


def test_no_value_is_left_of_a_batch_of_many() -> None:
    """One bad row among many: every other row is there, in its place."""
    for kind in KINDS:
        values, wanted = rows_of(kind, 50)
        many = values * 100
        many[2500] = kind.bad[1]
        rows, causes = decoded(kind.decoder(), many)
        assert [n for n, cause in enumerate(causes) if cause] == [2500]
        del rows[2500]
        assert rows == [row for n, row in enumerate(wanted * 100) if n != 2500]


def test_json_drift_what_an_old_row_lacks_is_null() -> None:
    newer = {**JSON, "required": ["id", "since"], "properties": {**JSON["properties"], "since": {"type": "number"}}}  # type: ignore[dict-item]
    new = json.dumps({"id": 2, "name": "b", "since": 1.5}).encode()
    old = write_json(1, "a", [])
    rows, causes = decoded(decoder("json", json.dumps(newer)), [old, new])
    assert causes == ["since: the required field is missing", None]
    rows, causes = decoded(decoder("json", json.dumps(newer), older=[json.dumps(JSON)]), [old, new, b"{}", None])
    assert rows[:2] == [
        {"id": 1, "name": "a", "list": [], "since": None},
        {"id": 2, "name": "b", "list": None, "since": 1.5},
    ]
    assert causes == [None, None, "id: the required field is missing", None]


def test_json_drift_inside_structs_lists_and_maps() -> None:
    def version(**inner: str) -> str:
        point = {"type": "object", "properties": {name: {"type": type} for name, type in inner.items()}}
        return json.dumps(
            {
                "type": "object",
                "properties": {
                    "p": {**point, "required": list(inner)},
                    "l": {"type": "array", "items": {**point, "required": list(inner)}},
                    "m": {"type": "object", "additionalProperties": {**point, "required": list(inner)}},
                    **({"q": point, "n": {"type": "object", "additionalProperties": point}} if "y" in inner else {}),
                },
            }
        )

    reader = decoder("json", version(x="number", y="string"), older=[version(x="integer")])
    old = b'{"p":{"x":1},"l":[{"x":2},{"x":3}],"m":{"k":{"x":4}}}'
    rows, causes = decoded(reader, [old, b'{"l":[{"x":5}]}', b'{"p":{"x":1.5,"y":"y"}}', b"{}"])
    nothing = dict.fromkeys(("p", "l", "m", "q", "n"))

    def point(x: float) -> dict[str, object]:
        return {"x": x, "y": None}

    assert causes == [None] * 4
    assert rows == [
        {**nothing, "p": point(1.0), "l": [point(2.0), point(3.0)], "m": [("k", point(4.0))]},
        {**nothing, "l": [point(5.0)]},
        {**nothing, "p": {"x": 1.5, "y": "y"}},
        nothing,
    ]


def test_protobuf_reads_its_older_versions_by_itself() -> None:
    newer = PROTO.replace("}", "double since = 4; optional string more = 5; }")
    rows, causes = decoded(decoder("protobuf", newer), [write_protobuf(1, "a", [2])])
    assert rows == [{"id": 1, "name": "a", "list": [2], "since": 0.0, "more": None}] and causes == [None]


def test_older_versions_that_are_of_no_use_are_not_tried() -> None:
    other = json.dumps({**JSON, "properties": {"id": {"type": "string"}}})
    _, causes = decoded(decoder("json", json.dumps(JSON), older=[other, "{", json.dumps(JSON)]), [b'{"id": "x"}'])
    assert causes == ["id: expected int, got str"]


def test_the_types_of_a_batch_are_sparks() -> None:
    with pytest.raises(AssertionError):
        from tests.spark.typed.parts import check_type

        check_type(pa.large_string())
