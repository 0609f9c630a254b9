"""JSON Schema to columns, JSON to rows; what the broker's own validator calls valid decodes, what it refuses does not."""

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quintet.broker.schemas.json_schema import JsonSchema
from quintet.model.errors import SchemaInvalid
from quintet.spark.typed import decoder
from quintet.spark.typed.columns import COLUMNS_MAX, DEPTH_MAX
from tests.spark.typed.parts import cause, decoded, good

STRING = {"type": "string"}
INTEGER = {"type": "integer"}


def of(*required: str, **properties: Any) -> Any:
    return decoder("json", json.dumps({"type": "object", "properties": properties, "required": required}))


def column(subschema: Any, **root: Any) -> pa.DataType:
    definition = {"type": "object", "properties": {"c": subschema}, **root}
    return decoder("json", json.dumps(definition)).schema.field("c").type


@pytest.mark.parametrize(
    ("subschema", "type"),
    [
        (STRING, pa.string()),
        (INTEGER, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": ["null", "string"]}, pa.string()),
        ({"type": "string", "format": "date-time"}, pa.timestamp("us", "UTC")),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "email"}, pa.string()),
        ({"type": "array", "items": INTEGER}, pa.list_(pa.int64())),
        ({"type": "array"}, pa.string()),
        ({"type": "array", "items": INTEGER, "prefixItems": [STRING]}, pa.string()),
        ({"type": "object"}, pa.string()),
        ({"type": "object", "properties": {"a": INTEGER}}, pa.struct([("a", pa.int64())])),
        ({"properties": {"a": INTEGER}}, pa.struct([("a", pa.int64())])),
        ({"type": "object", "additionalProperties": INTEGER}, pa.map_(pa.string(), pa.int64())),
        ({"enum": ["a", "b"]}, pa.string()),
        ({"enum": [1, 2]}, pa.int64()),
        ({"enum": ["a", 1]}, pa.string()),
        ({"const": "a"}, pa.string()),
        ({"const": None}, pa.string()),
        ({}, pa.string()),
        (True, pa.string()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"type": "null"}, pa.string()),
        ({"anyOf": [INTEGER, {"type": "null"}]}, pa.int64()),
        ({"oneOf": [INTEGER, STRING]}, pa.string()),
        ({"anyOf": [INTEGER, INTEGER]}, pa.int64()),
        ({"allOf": [INTEGER]}, pa.int64()),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": INTEGER}},
                    {"type": "object", "properties": {"b": STRING}},
                ]
            },
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        ({"allOf": [INTEGER, STRING]}, pa.string()),
    ],
    ids=str,
)
def test_the_column_of_a_subschema(subschema: Any, type: pa.DataType) -> None:
    assert column(subschema) == type


def test_references_inside_the_document() -> None:
    defs = {"In": {"type": "object", "properties": {"a": INTEGER}}, "a/b~c d": STRING, "deep": {"$ref": "#/$defs/In"}}
    root = {"$defs": defs, "$id": "http://x/y"}
    assert column({"$ref": "#/$defs/In"}, **root) == pa.struct([("a", pa.int64())])
    assert column({"$ref": "#/$defs/deep"}, **root) == pa.struct([("a", pa.int64())])
    assert column({"$ref": "#/$defs/a~1b~0c%20d"}, **root) == pa.string()
    assert column({"$ref": "http://x/y#/$defs/In"}, **root) == pa.struct([("a", pa.int64())])
    assert column({"$ref": "#here"}, **{"$defs": {"x": {**INTEGER, "$anchor": "here"}}}) == pa.int64()
    for outside in ("#/nowhere", "http://other/y", "file:///etc/passwd", "#nowhere"):
        with pytest.raises(SchemaInvalid, match="inside the definition"):
            column({"$ref": outside}, **root)


def test_a_schema_inside_itself_is_json_text_there() -> None:
    tree = {"type": "object", "properties": {"v": INTEGER, "kids": {"type": "array", "items": {"$ref": "#"}}}}
    reader = decoder("json", json.dumps(tree))
    assert reader.schema == pa.schema([("v", pa.int64()), ("kids", pa.list_(pa.string()))])
    assert good(reader, b'{"v":1,"kids":[{"v": 2}, {"kids":[]}]}') == [{"v": 1, "kids": ['{"v": 2}', '{"kids":[]}']}]


def test_definitions_that_cannot_become_columns() -> None:
    unfit: list[Any] = [{}, True, STRING, {"type": "object"}, {"type": "object", "properties": {}}, []]
    for definition in unfit:
        with pytest.raises(SchemaInvalid, match="cannot become columns"):
            decoder("json", json.dumps(definition))
    with pytest.raises(SchemaInvalid, match="a character that a column name cannot have"):
        of(**{'a"b': STRING})
    with pytest.raises(SchemaInvalid, match=str(COLUMNS_MAX)):
        of(**{f"c{number}": STRING for number in range(COLUMNS_MAX)})
    senseless: list[dict[str, Any]] = [{"type": [{}]}, {"required": 5}, {"required": [5]}, {"enum": [1], "type": 7}]
    for keyword in senseless:
        with pytest.raises(SchemaInvalid, match="a keyword has a value of the wrong type"):
            decoder("json", json.dumps({"type": "object", "properties": {"a": STRING, "b": keyword}} | keyword))
    with pytest.raises(SchemaInvalid, match="not JSON"):
        decoder("json", "[" * 100_000)


def test_values_of_every_type() -> None:
    reader = of(
        s=STRING,
        i=INTEGER,
        n={"type": "number"},
        b={"type": "boolean"},
        t={"type": "string", "format": "date-time"},
        d={"type": "string", "format": "date"},
        any={},
        o={"type": "object", "properties": {"x": {"type": "array", "items": {"type": ["integer", "null"]}}}},
        m={"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    )
    value = {
        "s": "é\0\n𝄞", "i": -(1 << 63), "n": 3, "b": False, "t": "2024-02-29T23:59:59.123456+01:00", "d": "2024-02-29",
        "any": {"k": [1, None]}, "o": {"x": [1, None], "y": 2}, "m": {"k": "v", "n": None}, "undeclared": [{}],
    }  # fmt: skip
    row = {
        "s": "é\0\n𝄞", "i": -(1 << 63), "n": 3.0, "b": False, "d": date(2024, 2, 29),
        "t": datetime(2024, 2, 29, 22, 59, 59, 123456, tzinfo=UTC),
        "any": '{"k": [1, null]}', "o": {"x": [1, None]}, "m": [("k", "v"), ("n", None)],
    }  # fmt: skip
    nothing = dict.fromkeys(row)
    pretty = json.dumps(value, indent=2).encode()
    found = good(reader, json.dumps(value).encode(), b"{}", pretty, b' \r\n{"any":null} \n')
    assert found[0] == row and found[1] == nothing and found[3] == nothing
    assert json.loads(found[2].pop("any")) == {"k": [1, None]}
    assert found[2] == {name: item for name, item in row.items() if name != "any"}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b'{"a": "x"}', "a: expected int, got str"),
        (b'{"a": null}', "a: expected int, got null"),
        (b'{"a": true}', "a: expected int, got bool"),
        (b'{"a": 1.5}', "a: expected int, got float"),
        (b'{"a": 9223372036854775808}', "a: expected int <= 9223372036854775807"),
        (b'{"a": -9223372036854775809}', "a: expected int >= -9223372036854775808"),
        (b'{"a": 1e19}', "a: expected int, got float"),
        (b'{"a": 1e999}', "a: number out of range"),
        (b"{}", "a: the required field is missing"),
        (b'{"a": 1, "o": {}}', "o.r: the required field is missing"),
        (b'{"a": 1, "o": {"r": [1, "2"]}}', "o.r[1]: expected int, got str"),
        (b'{"a": 1, "o": []}', "o: expected object, got array"),
        (b'{"a": 1, "t": "yesterday"}', "t: invalid RFC3339 encoded datetime"),
        (b'{"a": 1, "t": "2024-01-01T00:00:00"}', "t: expected datetime with a timezone component"),
        (b"[]", "the value: expected object, got array"),
        (b"null", "the value: expected object, got null"),
        (b"", "the value is not JSON: "),
        (b"nope", "the value is not JSON: "),
        (b'{"a": NaN}', "the value is not JSON: "),
        (b'{"a": 1} {"a": 2}', "the value is not JSON: trailing characters"),
        (b'{"a": 1}\0', "the value is not JSON: trailing characters"),
        (b'{"a": 1, "s": "x\ny"}', "the value is not JSON: "),
        (b'{"a": 1, "s": "\\ud800"}', "the value is not JSON: "),
        (b'{"a": 1, "s": "\xff"}', "the value is not UTF-8 at byte 15"),
        (b'{"a": 1, "undeclared": "\xc3"}', "the value is not UTF-8 at byte 24"),
    ],
)
def test_causes_name_the_field(value: bytes, words: str) -> None:
    inner = {"type": "object", "required": ["r"], "properties": {"r": {"type": "array", "items": INTEGER}}}
    reader = of("a", a=INTEGER, o=inner, s=STRING, t={"type": "string", "format": "date-time"})
    assert cause(reader, value).startswith(words)


def test_a_required_field_that_is_no_column_must_be_there() -> None:
    reader = of("hidden", a=INTEGER)
    assert good(reader, b'{"a": 1, "hidden": null}') == [{"a": 1}]
    assert cause(reader, b'{"a": 1}') == "hidden: the required field is missing"


def test_integers_written_as_floats() -> None:
    reader = of(a=INTEGER, l={"type": "array", "items": INTEGER}, any={})
    rows = good(reader, b'{"a": 3.0, "l": [1, 2e2], "any": 1.0}', b'{"a": 4}', b'{"a": -0.0}')
    assert rows[0] == {"a": 3, "l": [1, 200], "any": "1.0"}
    assert [row["a"] for row in rows] == [3, 4, 0]
    assert cause(reader, b'{"a": 3.0, "l": [1.5]}').startswith("l[0]: ")


def test_of_a_key_that_is_there_twice_the_last_counts() -> None:
    assert good(
        of(a=INTEGER, m={"additionalProperties": INTEGER, "type": "object"}), b'{"a":1,"m":{"k":1,"k":2},"a":2}'
    ) == [{"a": 2, "m": [("k", 2)]}]


def test_nesting_is_bounded() -> None:
    reader = of(a=INTEGER)
    deepest = DEPTH_MAX - 1  # the value itself is one
    assert good(reader, b'{"a":1,"x":' + b"[" * deepest + b"]" * deepest + b"}") == [{"a": 1}]
    words = f"the value is nested deeper than {DEPTH_MAX} levels"
    for depth in (DEPTH_MAX, 1000, 200_000):
        assert cause(reader, b'{"x":' + b"[" * depth + b"]" * depth + b"}") == words
        assert cause(reader, b'{"a":' * (depth + 1)) == words
    flat = json.dumps({"a": 1, "x": [{}] * 1000, "y": "[{" * 1000}).encode()
    assert good(reader, flat) == [{"a": 1}]


_VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 65), 1 << 65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdefgh"), inner, max_size=4),
    max_leaves=8,
)
_SCHEMA = {
    "type": "object",
    "required": ["a", "z"],
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": ["string", "null"]},
        "c": {"type": "array", "items": {"type": "number"}},
        "d": {"type": "object", "required": ["a"], "properties": {"a": {"type": "boolean"}, "b": {"type": "integer"}}},
        "e": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
        "f": {},
        "g": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    },
}
_FITTING = st.fixed_dictionaries(
    {"a": st.integers(-(1 << 63), (1 << 63) - 1) | st.just(2.0), "z": _VALUES},
    optional={
        "b": st.text(max_size=5) | st.none(),
        "c": st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 5), max_size=4),
        "d": st.fixed_dictionaries({"a": st.booleans()}, optional={"b": st.integers(-5, 5)}),
        "e": st.dictionaries(st.text(max_size=3), st.none() | st.integers(-5, 5), max_size=3),
        "f": _VALUES,
        "g": st.text(max_size=3) | st.integers(-5, 5),
    },
)
_BROKER = JsonSchema(json.dumps(_SCHEMA).encode())
_READER = decoder("json", json.dumps(_SCHEMA))


def _plainly(value: bytes) -> dict[str, Any]:
    """The row by the plain library."""
    read = json.loads(value)
    row = {name: read.get(name) for name in "abcdefg"}
    row["c"] = None if row["c"] is None else [float(item) for item in row["c"]]
    row["d"] = None if row["d"] is None else {"a": row["d"].get("a"), "b": row["d"].get("b")}
    row["e"] = None if row["e"] is None else list(row["e"].items())
    return row


def _compare(values: list[bytes]) -> None:
    rows, causes = decoded(_READER, values)
    for value, row, why in zip(values, rows, causes, strict=True):
        refused = _BROKER.check(value)
        if why is None:
            # Of a key that is there twice the last counts here; what is no column, or JSON text, is not looked into.
            assert not refused or any(words in refused[0] for words in ("twice", "a double", "surrogate")), value
            for text in ("f", "g"):
                row[text] = None if row[text] is None else json.loads(row[text])
            assert row == _plainly(value)
        else:
            bounds = ("9223372036854775807", "-9223372036854775808", "of 64 bits")  # which only columns have
            assert refused or any(bound in why for bound in bounds), (value, why)


@settings(max_examples=60, deadline=None)
@given(st.lists(_FITTING | _VALUES | st.dictionaries(st.sampled_from("abcdefgz"), _VALUES), max_size=6))
@example([{"a": 1 << 63, "z": 1}, {"a": 1.5, "z": 1}, {"a": -(1 << 63), "z": None}])
def test_the_same_rows_as_the_plain_library(values: list[Any]) -> None:
    _compare([json.dumps(value).encode() for value in values])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(_FITTING, st.integers(0, 200), st.sampled_from(b'{}[],:"\\0-e. \n\xffnt')), min_size=1, max_size=4
    )
)
def test_broken_bytes_break_their_row_only(edits: list[tuple[Any, int, int]]) -> None:
    values = []
    for value, place, byte in edits:
        text = bytearray(json.dumps(value).encode())
        text[place % len(text)] = byte
        values.append(bytes(text))
    _compare(values)
