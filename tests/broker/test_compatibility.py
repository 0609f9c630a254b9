"""Which schema may follow which: tables of pairs, and what compatible schemas do to real data."""

import io
import json
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from google.protobuf import message_factory
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from quintet.broker.schemas.compatibility import incompatibilities, reads
from quintet.broker.schemas.compiling import compile_schema
from quintet.broker.schemas.json_schema import JsonSchema
from quintet.broker.schemas.protobuf import ProtobufSchema
from quintet.broker.schemas.validators import REASON_CHARS_MAX, REASONS_MAX

R = "new cannot read old: "
W = "old cannot read new: "


def differences(type: str, mode: str, old: object, new: object) -> list[str]:
    def raw(definition: object) -> bytes:
        return (
            definition.encode()
            if isinstance(definition, str) and type == "protobuf"
            else json.dumps(definition).encode()
        )

    return incompatibilities(mode, compile_schema(type, raw(old)), compile_schema(type, raw(new)))


def obj(required: tuple[str, ...] = (), closed: bool = False, **properties: object) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    if closed:
        schema["additionalProperties"] = False
    return schema


INT: dict[str, object] = {"type": "integer"}
NUM: dict[str, object] = {"type": "number"}
STR: dict[str, object] = {"type": "string"}


def tree(leaf: object, **more: object) -> dict[str, object]:
    node = {"type": "object", "properties": {"v": leaf, "left": {"$ref": "#"}, "right": {"$ref": "#"}, **more}}
    return {"anyOf": [node, {"type": "string"}]}


# old, new, what backward says, what forward says ("" is yes)
JSON_PAIRS: list[tuple[object, object, str, str]] = [
    (obj(a=INT), obj(a=INT, b=STR), "", ""),
    (obj(a=INT, b=STR), obj(a=INT), "", ""),
    (obj(a=INT), obj(("a",), a=INT), "a: it is required", ""),
    (obj(a=INT), obj(a=NUM), "", "a: the writer has number"),
    (obj(a=INT), obj(a={"type": ["integer", "null"]}), "", "a: the writer has null"),
    (obj(a=INT), obj(a=STR), "a: the writer has integer, the reader takes string", "a: the writer has string"),
    (obj(a=INT), obj(a=INT, closed=True), "takes no other properties", ""),
    (obj(a=INT, b=STR, closed=True), obj(a=INT, closed=True), "b: the reader has no such property", ""),
    (obj(a=INT, closed=True), obj(a=INT, b=STR, closed=True), "", "b: the reader has no such property"),
    ({"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}, "", "the reader's enum has no 'c'"),
    ({"enum": [1]}, {"enum": [True]}, "has no 1", "has no True"),
    (STR, {"type": "string", "enum": ["a"]}, "takes only 1 values", ""),
    ({"const": 1}, {"enum": [1, 2]}, "", "const has no 2"),
    ({"minimum": 1, **INT}, {"minimum": 0, **INT}, "", "minimum is 1 for the reader, 0 for the writer"),
    (STR, {"maxLength": 5, **STR}, "maxLength is 5 for the reader, none for the writer", ""),
    ({"multipleOf": 4, **INT}, {"multipleOf": 2, **INT}, "", "multipleOf is 4 for the reader, 2"),
    ({"type": "array", "items": INT}, {"type": "array", "items": NUM}, "", "[]: the writer has number"),
    ({"type": "array"}, {"type": "array", "uniqueItems": True}, "unique items", ""),
    (
        {"prefixItems": [INT], "type": "array"},
        {"prefixItems": [INT, STR], "type": "array"},
        "[1]: the writer has any",
        "",
    ),
    ({"pattern": "^a", **STR}, {"pattern": "^b", **STR}, "pattern differs", "pattern differs"),
    (STR, {"pattern": "^a", **STR}, "pattern differs", ""),
    (INT, {"anyOf": [INT, STR]}, "", "the writer has string"),
    ({"anyOf": [INT, STR]}, {"anyOf": [STR, INT, {"type": "null"}]}, "", "none of the reader's alternatives"),
    ({"allOf": [obj(("a",), a=INT), obj(b=STR)]}, obj(("a",), a=INT, b=STR), "", ""),
    ({"oneOf": [INT, STR]}, {"oneOf": [INT]}, "oneOf differs", "oneOf differs"),
    ({"oneOf": [INT, STR], "title": "x"}, {"oneOf": [INT, STR], "description": "y"}, "", ""),
    (obj(a=INT), obj(a={"$ref": "#/$defs/i"}) | {"$defs": {"i": INT}}, "", ""),
    (
        {"$defs": {"n": obj(next={"$ref": "#/$defs/n"}, v=INT)}, "$ref": "#/$defs/n"},
        {"$defs": {"n": obj(next={"$ref": "#/$defs/n"}, v=NUM)}, "$ref": "#/$defs/n"},
        "",
        "v: the writer has number",
    ),
    (
        {"$defs": {"x": INT}, "not": {"$ref": "#/$defs/x"}},
        {"$defs": {"x": NUM}, "not": {"$ref": "#/$defs/x"}},
        "not differs",
        "not differs",
    ),
    (
        {"$defs": {"x": {"$anchor": "x", **INT}}, "$ref": "#x"},
        {"$defs": {"x": {"$anchor": "x", **STR}}, "$ref": "#x"},
        "the writer has integer",
        "the writer has string",
    ),
    (
        {"additionalProperties": INT, "type": "object"},
        obj(a=STR),
        "a: the writer has integer",
        "a: the writer has string",
    ),
    (True, False, "takes nothing", ""),
    (tree(INT), tree(INT, b=STR), "", ""),
    (tree(INT), tree(NUM), "", "none of the reader's alternatives"),
    ({**tree(INT), "minProperties": 1}, {**tree(NUM), "minProperties": 1}, "", "none of the reader's alternatives"),
]


def rec(*fields: dict[str, object], name: str = "R", **more: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def fld(name: str, type: object, **more: object) -> dict[str, object]:
    return {"name": name, "type": type, **more}


def sym(*symbols: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


AVRO_PAIRS: list[tuple[object, object, str, str]] = [
    ("int", "long", "", "long cannot be read as int"),
    ("int", "double", "", "double cannot be read as int"),
    ("long", "float", "", "float cannot be read as long"),
    ("float", "double", "", "double cannot be read as float"),
    ("string", "bytes", "", ""),
    ("int", "string", "int cannot be read as string", "string cannot be read as int"),
    ("int", {"type": "int", "logicalType": "date"}, "", ""),
    (rec(fld("a", "int")), rec(fld("a", "int"), fld("b", "int")), "b: the writer has no such field", ""),
    (rec(fld("a", "int")), rec(fld("a", "int"), fld("b", "int", default=0)), "", ""),
    (rec(fld("a", "int")), rec(fld("z", "int", aliases=["a"])), "", "a: the writer has no such field"),
    (rec(fld("a", "int")), rec(fld("a", "int"), name="S"), "names differ", "names differ"),
    (rec(fld("a", "int")), rec(fld("a", "int"), name="S", aliases=["R"]), "", "names differ"),
    (rec(fld("a", "int")), rec(fld("a", "int"), namespace="shop"), "", ""),
    (rec(fld("a", "int")), rec(fld("a", ["null", "int"])), "", "a: null cannot be read as int"),
    (["null", "int"], ["null", "int", "string"], "", "no branch for string"),
    (["int", "string"], "string", "int cannot be read as string", ""),
    (sym("A", "B"), sym("A"), "the reader's enum has no B", ""),
    (sym("A", "B"), sym("A", default="A"), "", ""),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, "4 bytes", "8 bytes"),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "", "[]: long cannot be read as int"),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, "", "{}: long cannot be read as int"),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "map cannot", "array cannot"),
    (
        rec(fld("n", ["null", "R"]), fld("v", "int")),
        rec(fld("n", ["null", "R"]), fld("v", "long")),
        "",
        "v: long cannot",
    ),
]

P3 = 'syntax = "proto3"; message M { %s }'
P2 = 'syntax = "proto2"; message M { %s }'
PROTOBUF_PAIRS: list[tuple[str, str, str, str]] = [
    (P3 % "string a = 1;", P3 % "string a = 1; int32 b = 2;", "", ""),
    (P3 % "string a = 1;", P3 % "string renamed = 1;", "", ""),
    (P3 % "string a = 1;", P3 % "int32 a = 1;", "string cannot be read as int32", "int32 cannot be read as string"),
    (P3 % "int32 a = 1;", P3 % "int64 a = 1;", "", "int64 cannot be read as int32"),
    (P3 % "int32 a = 1;", P3 % "sint32 a = 1;", "int32 cannot be read as sint32", "sint32 cannot be read as int32"),
    (P3 % "string a = 1;", P3 % "bytes a = 1;", "", "bytes cannot be read as string"),
    (P3 % "string a = 1;", P3 % "repeated string a = 1;", "", "the writer has many"),
    (P2 % "optional string a = 1;", P2 % "required string a = 1;", "the writer may leave it out", ""),
    (P2 % "", P2 % "required string a = 1;", "the writer does not have it", ""),
    (P2 % "required string a = 1;", P2 % "", "", "the writer does not have it"),
    (P3 % "reserved 2;", P3 % "string a = 2;", "the last version reserved it", "the last version reserved it"),
    (P3 % 'reserved "a";', P3 % "string a = 2;", "the last version reserved it", "the last version reserved it"),
    (P3 % "string a = 2;", P3 % 'reserved 2; reserved "a";', "", ""),
    (P3 % "message N { int32 x = 1; } N n = 1;", P3 % "message N { string x = 1; } N n = 1;", "M.N.x = 1", "M.N.x = 1"),
    (P3 % "M m = 1; int32 v = 2;", P3 % "M m = 1; int64 v = 2;", "", "int64 cannot be read as int32"),
    (P3 % "string a = 1; string b = 2;", P3 % "oneof o { string a = 1; string b = 2; }", "set a, b together", ""),
    (P3 % "map<string, int32> m = 1;", P3 % "map<string, string> m = 1;", "MEntry.value = 2", "MEntry.value = 2"),
    (
        'syntax = "proto3"; message A {}',
        'syntax = "proto3"; message B {}',
        "the message type is B",
        "the message type is A",
    ),
    (
        P2 % "enum E { A = 0; B = 1; } optional E e = 1;",
        P2 % "enum E { A = 0; } optional E e = 1;",
        "the reader's enum E has no B",
        "",
    ),
    (P3 % "enum E { A = 0; B = 1; } E e = 1;", P3 % "enum E { A = 0; } E e = 1;", "", ""),
]

ROWS = [
    *(("json", *row) for row in JSON_PAIRS),
    *(("avro", *row) for row in AVRO_PAIRS),
    *(("protobuf", *row) for row in PROTOBUF_PAIRS),
]


@pytest.mark.parametrize(("type", "old", "new", "backward", "forward"), ROWS)
def test_pairs(type: str, old: object, new: object, backward: str, forward: str) -> None:
    answers = {mode: differences(type, mode, old, new) for mode in ("backward", "forward", "full", "none")}
    assert answers["none"] == []
    for mode, wanted in (("backward", backward), ("forward", forward)):
        text = "; ".join(answers[mode])
        assert (wanted in text) if wanted else not text, text
    assert bool(answers["full"]) == bool(backward or forward)


@pytest.mark.parametrize(("type", "old", "new", "backward", "forward"), ROWS)
def test_every_schema_may_follow_itself(type: str, old: object, new: object, backward: str, forward: str) -> None:
    for schema in (old, new):
        assert differences(type, "full", schema, schema) == []


def test_reasons_are_bounded() -> None:
    old = {"properties": {f"p{'x' * 300}{number}": INT for number in range(50)}}
    new = {"properties": {f"p{'x' * 300}{number}": STR for number in range(50)}}
    reasons = differences("json", "full", old, new)
    assert len(reasons) == REASONS_MAX
    assert max(map(len, reasons)) <= REASON_CHARS_MAX
    assert reasons[-1] == "and 91 more"


def test_a_comparison_is_bounded() -> None:
    def schema(leaf: dict[str, object]) -> dict[str, object]:
        inner = {"properties": {f"q{number}": leaf for number in range(300)}}
        return {"$defs": {"w": inner}, "properties": {f"p{number}": {"$ref": "#/$defs/w"} for number in range(300)}}

    assert "too much to be shown" in differences("json", "backward", schema(INT), schema(NUM))[0]

    def record(kind: str) -> dict[str, object]:
        inner = rec(*(fld(f"q{number}", kind) for number in range(300)), name="S")
        return rec(fld("s", inner), *(fld(f"p{number}", "S") for number in range(300)))

    assert "too much to be shown" in differences("avro", "backward", record("int"), record("long"))[0]


# -- what the answer means for data ---------------------------------------------------------------------------------------

primitives = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"])
enums = st.builds(
    lambda symbols, default: (
        {"type": "enum", "name": "E", "symbols": symbols} | ({"default": symbols[0]} if default else {})
    ),
    st.lists(st.sampled_from("ABCD"), min_size=1, max_size=4, unique=True),
    st.booleans(),
)
fixed = st.builds(lambda size: {"type": "fixed", "name": "F", "size": size}, st.integers(1, 2))


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "map", "values": values}),
        st.lists(primitives, min_size=1, max_size=3, unique=True),
    )


types = st.recursive(st.one_of(primitives, primitives, primitives, compound(primitives)), compound, max_leaves=3)


def with_default(field: dict[str, object]) -> dict[str, object]:
    defaults: dict[str, object] = {"int": 1, "long": 2, "string": "s", "boolean": True, "double": 1.5, "null": None}
    kind = field["type"]
    return field | {"default": defaults[kind]} if isinstance(kind, str) and kind in defaults else field


@st.composite
def records(draw: st.DrawFn) -> dict[str, object]:
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    fields: list[dict[str, object]] = []
    used: set[str] = set()
    for name in names:
        special = draw(st.sampled_from(["", "", "", "E", "F"]))
        if special and special not in used:
            used.add(special)
            field = fld(name, draw(enums if special == "E" else fixed))
        else:
            field = fld(name, draw(types))
        fields.append(with_default(field) if draw(st.booleans()) else field)
    return rec(*fields)


def datum(schema: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> Any:
    """A value that fits an Avro schema."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(schema, list):
        return datum(draw(st.sampled_from(schema)), draw)
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(), "boolean": st.booleans(), "int": st.integers(-(1 << 31), (1 << 31) - 1),
        "long": st.integers(-(1 << 63), (1 << 63) - 1), "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False), "string": st.text(max_size=5), "bytes": st.text(max_size=5).map(str.encode),
    }  # fmt: skip
    if kind == "record":
        return {field["name"]: datum(field["type"], draw) for field in schema["fields"]}
    if kind == "array":
        return [datum(schema["items"], draw) for _ in range(draw(st.integers(0, 2)))]
    if kind == "map":
        return {
            key: datum(schema["values"], draw) for key in draw(st.lists(st.text(max_size=2), max_size=2, unique=True))
        }
    if kind == "enum":
        return draw(st.sampled_from(schema["symbols"]))
    if kind == "fixed":
        return bytes(schema["size"])
    return draw(simple[kind])


PROMOTED = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"], "string": ["bytes"]}


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A record and what somebody might make of it: often compatible, not always."""
    old: dict[str, Any] = draw(records())
    fields: list[dict[str, object]] = []
    for field in old["fields"]:
        kind = field["type"]
        change = draw(st.sampled_from(["keep", "keep", "promote", "union", "drop", "rename", "other"]))
        if change == "promote" and isinstance(kind, str) and kind in PROMOTED:
            field = fld(field["name"], draw(st.sampled_from(PROMOTED[kind])))
        elif change == "union" and isinstance(kind, str) and kind != "null":
            field = fld(field["name"], draw(st.permutations(["null", kind])))
        elif change == "rename":
            field = fld(field["name"] + "2", kind, aliases=[field["name"]])
        elif change == "other" and isinstance(kind, dict) and kind["type"] in ("enum", "fixed"):
            field = fld(field["name"], draw(enums if kind["type"] == "enum" else fixed))
        elif change == "other":
            field = fld(field["name"], draw(types))
        if change != "drop":
            fields.append(field)
    if draw(st.booleans()):
        fields.append(with_default(fld("extra", draw(primitives))))
    return old, rec(*fields)


@settings(max_examples=400, deadline=None)
@given(st.data(), evolutions())
def test_what_avro_calls_compatible_fastavro_reads(
    data: st.DataObject, pair: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    old, new = pair
    reader, writer = (compile_schema("avro", json.dumps(schema).encode()) for schema in (new, old))
    compatible = not reads(reader, writer)
    event(f"compatible: {compatible}")
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, old, datum(old, data.draw))
    assert writer.check(buffer.getvalue()) == []
    if compatible:
        buffer.seek(0)
        fastavro.schemaless_reader(buffer, old, new)


@settings(max_examples=200, deadline=None)
@given(st.data(), records())
def test_a_field_with_a_default_may_come_and_go(data: st.DataObject, old: dict[str, Any]) -> None:
    new = rec(*old["fields"], fld("extra", "long", default=7))
    assert differences("avro", "full", old, new) == []
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, old, datum(old, data.draw))
    buffer.seek(0)
    read = fastavro.schemaless_reader(buffer, old, new)
    assert isinstance(read, dict)
    assert read["extra"] == 7


json_leaves = st.sampled_from(
    [INT, NUM, STR, {"type": "boolean"}, {"type": ["integer", "null"]}, {"enum": [1, "a"]}, {"minimum": 0, **INT},
     {"maxLength": 2, **STR}, {"const": 1}, {"anyOf": [INT, STR]}, {"multipleOf": 2, **INT}]
)  # fmt: skip


def json_nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        st.builds(
            lambda properties, required, closed: (
                {"type": "object", "properties": properties, "required": required}
                | ({"additionalProperties": False} if closed else {})
            ),
            st.dictionaries(st.sampled_from("ab"), inner, min_size=1, max_size=2),
            st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            st.booleans(),
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda options: {"anyOf": options}),
        st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"allOf": parts}),
    )


json_schemas: st.SearchStrategy[Any] = st.recursive(json_leaves, json_nodes, max_leaves=4)
# Values with the keys that schemas list: an unlisted key of an open writer is the documented exception.
json_values = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, -1, 1.5, "", "a", "abc"]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=4,
)


def lists_all(schema: Any) -> bool:
    """Wherever this schema allows an object, it lists both keys: then nothing is unlisted."""
    if "enum" in schema or "const" in schema:
        return True
    if schema.get("type", "object") == "array":
        return "items" in schema and lists_all(schema["items"])
    if "type" in schema and schema["type"] != "object":
        return True
    if "properties" in schema:
        return set(schema["properties"]) == {"a", "b"} and all(map(lists_all, schema["properties"].values()))
    if "$ref" in schema:
        return lists_all(schema["$defs"]["x"])
    parts = schema.get("anyOf", schema.get("allOf"))
    return parts is not None and all(map(lists_all, parts))


@st.composite
def json_evolutions(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema and a change of it, or two schemas that have nothing to do with each other."""
    old: dict[str, Any] = draw(json_schemas)
    other: dict[str, Any] = draw(json_schemas)
    keyword = draw(st.sampled_from(sorted(old)))
    changes: list[dict[str, Any]] = [
        {name: value for name, value in old.items() if name != keyword},
        {"anyOf": [other, old]},
        {"allOf": [old]},
        {"$defs": {"x": old}, "$ref": "#/$defs/x"},
        {**other, **old},
        {**old, **other},
        other,
    ]
    new = draw(st.sampled_from(changes))
    return (old, new) if draw(st.booleans()) else (new, old)


@settings(max_examples=600, deadline=None)
@given(json_evolutions(), st.lists(json_values, min_size=1, max_size=8))
def test_what_fits_the_writer_fits_a_compatible_reader(pair: tuple[Any, Any], values: list[Any]) -> None:
    old, new = pair
    assume(lists_all(old))
    reader, writer = JsonSchema(json.dumps(new).encode()), JsonSchema(json.dumps(old).encode())
    compatible = not reads(reader, writer)
    event(f"compatible: {compatible}")
    for value in values:
        message = json.dumps(value).encode()
        if compatible and not writer.check(message):
            assert reader.check(message) == [], (old, new, value)


def test_protobuf_data_of_a_compatible_writer_is_read() -> None:
    old = ProtobufSchema((P3 % "int32 a = 1; string b = 2; bool c = 3;").encode())
    new = ProtobufSchema((P3 % "int64 a = 1; bytes b = 2; int32 c = 3; string d = 4;").encode())
    assert incompatibilities("backward", old, new) == []
    written = message_factory.GetMessageClass(old.descriptor)(a=-5, b="é", c=True).SerializeToString()
    assert new.check(written) == []
    read: Any = message_factory.GetMessageClass(new.descriptor).FromString(written)
    assert (read.a, read.b, read.c, read.d) == (-5, "é".encode(), 1, "")
