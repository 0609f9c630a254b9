"""Messages and definitions against the validators: what is said, and that enemies are refused before they cost anything.

No test here measures time. What would be slow is refused by a count, so the test sees the refusal; the timeout of the
suite would see the rest.
"""

import io
import json
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, json_format, message_factory
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quintet.broker.schemas import protofile
from quintet.broker.schemas.avro import AvroSchema
from quintet.broker.schemas.compiling import compile_schema
from quintet.broker.schemas.json_schema import CHECKS_MAX, JsonSchema
from quintet.broker.schemas.protobuf import FIELDS_LOOKED_AT_MAX, ProtobufSchema
from quintet.broker.schemas.validators import MESSAGE_VALUES_MAX, REASON_CHARS_MAX, REASONS_MAX
from quintet.model.errors import SchemaInvalid


def raw(value: object) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


# -- JSON Schema ----------------------------------------------------------------------------------------------------------

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "lines": {"items": {"properties": {"n": {"minimum": 1}}}}},
    "required": ["id"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "message", "reasons"),
    [
        (ORDER, {"id": 1, "lines": [{"n": 1}]}, []),
        (ORDER, {"id": "x"}, ['id: "x" is not of type "integer"']),
        (ORDER, {"id": 1, "lines": [{"n": 2}, {"n": 0}]}, ["lines[1].n: 0 is less than the minimum of 1"]),
        (ORDER, {}, ['the message: "id" is a required property']),
        (ORDER, {"id": 1, "q": 1}, ["the message: Additional properties are not allowed ('q' was unexpected)"]),
        (True, 1, []),
        (False, 1, ["the message: False schema does not allow 1"]),
        ({"format": "date-time"}, "yesterday", ['the message: "yesterday" is not a "date-time"']),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMinimum": True, "minimum": 1}, 2, []),
        ({}, b'{"a":1,"a":2}', ["the message is refused: the key 'a' is there twice in one object"]),
        ({}, b"NaN", ["the message is refused: NaN is not JSON"]),
        ({}, b"-Infinity", ["the message is refused: -Infinity is not JSON"]),
        ({}, b"1e999", ["the message is refused: the number 1e999 does not fit a double"]),
        ({}, b"", ["the message is refused: it is empty"]),
        ({}, b"\xff", ["the message is refused: not UTF-8 at byte 0"]),
        ({}, b'"\\ud800"', ["the message is refused: a string has half of a surrogate pair"]),
        ({}, b"[1,]", ["the message is refused: not JSON: Expecting value at line 1, column 4"]),
        ({}, b"[" * 33 + b"]" * 33, ["the message is refused: nested deeper than 32 levels"]),
        ({}, b"[" * 32 + b"]" * 32, []),
        ({}, b'["' + b"[" * 100 + b'"]', []),
        ({}, b"[" * 1_000_000, ["the message is refused: nested deeper than 32 levels"]),
        ({"$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}, nested(31), []),
        (
            {"$anchor": "n", "properties": {"a": {"$ref": "#n"}}, "type": "object"},
            {"a": 1},
            ['a: 1 is not of type "object"'],
        ),
    ],
)
def test_json_messages(schema: object, message: object, reasons: list[str]) -> None:
    assert JsonSchema(raw(schema)).check(raw(message)) == reasons


def bomb(levels: int) -> dict[str, object]:
    defs: dict[str, object] = {"a0": {"type": "integer"}}
    for level in range(1, levels + 1):
        defs[f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/a{levels}"}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (b"{", "not JSON"),
        (b'{"type":"object","type":"object"}', "twice"),
        (b"[]", "is an object, true or false"),
        ({"type": "objekt"}, "at #/type"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1/x"}}}, "#/properties/a/$ref: 'http://127.0.0.1/x' is outside"),
        ({"$ref": "file:///etc/passwd"}, "outside of the definition"),
        ({"$ref": "other.json"}, "outside of the definition"),
        ({"$ref": "#/$defs/x"}, "there is no schema at"),
        ({"$ref": "#x"}, "there is no schema at '#x'"),
        ({"$ref": 1}, "outside of the definition"),
        ({"$dynamicRef": "http://127.0.0.1/x"}, "outside of the definition"),
        ({"$schema": "http://127.0.0.1/meta"}, "Unknown meta-schema"),
        ({"properties": {"a": {"$id": "http://127.0.0.1/x"}}}, "only the root"),
        ({"$ref": "#"}, "lead back to it"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "lead back to it"),
        ({"allOf": [{"anyOf": [{"$ref": "#"}]}]}, "lead back to it"),
        (bomb(24), "more than 500 subschemas apply to one value"),
        ({"pattern": "(a)\\1"}, "is not a"),
        ({"pattern": "(?=a)b"}, "is not a"),
        ({"pattern": "a" * 513}, "the limit is 512"),
        ({"pattern": "((a{100}){100}){100}"}, "is not a"),
        ({"properties": {f"p{n}": {} for n in range(1_001)}}, "more than 1000 subschemas"),
        (b'{"not":' * 65 + b"{}" + b"}" * 65, "nested deeper than 64"),
        (
            {"allOf": [{"properties": {f"p{n}": {"minimum": m} for n in range(20)}} for m in range(20)]
             + [{"additionalProperties": True} for _ in range(300)]},
            "in more than 5000 ways",
        ),
    ],
)  # fmt: skip
def test_json_definitions_that_are_refused(schema: object, why: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        JsonSchema(raw(schema))
    assert why in str(refused.value)


@pytest.mark.parametrize(("pattern", "text"), [("^(a+)+$", "a" * 100_000 + "!"), ("(x+x+)+y", "x" * 100_000)])
def test_a_catastrophic_pattern_is_linear(pattern: str, text: str) -> None:
    [reason] = JsonSchema(raw({"pattern": pattern})).check(raw(text))
    assert "does not match" in reason


def test_a_pattern_with_many_states_is_not_run_over_a_long_text() -> None:
    schema = JsonSchema(raw({"properties": {"a": {"pattern": "(a|b)*a(a|b){100}c"}}}))
    assert "does not match" in schema.check(raw({"a": "a" * 1_000}))[0]
    assert "too long for the patterns" in schema.check(raw({"a": "a" * 100_000}))[0]
    assert schema.check(raw({"b": "a" * 100_000})) == [], "only text that the pattern sees counts"


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_recursion_with_alternatives_is_counted_before_it_is_run(keyword: str) -> None:
    branch = {"properties": {"a": {"$ref": "#"}}}
    schema = JsonSchema(raw({keyword: [branch, {**branch, "maxProperties": 9}, {**branch, "minProperties": 1}]}))
    assert "checks" not in "".join(schema.check(raw(nested(3))))
    [reason] = schema.check(raw(nested(30)))
    assert f"over {CHECKS_MAX} checks" in reason


def test_errors_inside_alternatives_are_not_listed_if_there_are_too_many() -> None:
    branch = {"properties": {"a": {"$ref": "#"}}}
    schema = JsonSchema(raw({"anyOf": [{**branch, "required": ["z"]}, {**branch, "required": ["y"]}]}))
    assert "fits none of the alternatives" in schema.check(raw(nested(2)))[0]
    assert schema.check(raw(nested(15))) == [
        "the message does not fit the schema; it is too large to say where, since the schema has alternatives"
    ]


def test_many_values_and_much_to_check_is_refused() -> None:
    schema = JsonSchema(raw({"items": {"enum": [{"a": number} for number in range(2_000)]}}))
    assert schema.check(raw([{"a": 1}] * 100)) == []
    assert "too many values" in schema.check(raw([{"a": -1}] * 4_000))[0]


def test_reasons_are_few_short_and_printable() -> None:
    schema = JsonSchema(raw({"items": {"type": "integer"}, "properties": {"k\n\x1b": {"type": "integer"}}}))
    reasons = schema.check(raw([f"{number}" + "x" * 500 for number in range(50)]))
    assert len(reasons) == REASONS_MAX
    assert reasons[-1] == "and 41 more"
    assert max(map(len, reasons)) <= REASON_CHARS_MAX
    assert all('is not of type "integer"' in reason for reason in reasons[:-1])
    [reason] = schema.check(raw({"k\n\x1b": "y"}))
    assert reason.isprintable()


# -- Avro -----------------------------------------------------------------------------------------------------------------

LIST = {
    "type": "record",
    "name": "N",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "N"]}],
}


@pytest.mark.parametrize(
    ("schema", "message", "reason"),
    [
        (LIST, b"\x02\x02\x04\x00", ""),
        (LIST, b"\x02\x02\x04", "next.next: expected the branch of a union, the message ends, at byte 3"),
        (LIST, b"\x02\x04", "next: expected a branch of the union (0 to 1), found 2, at byte 2"),
        (LIST, b"\x02\x03", "next: expected a branch of the union (0 to 1), found -2, at byte 2"),
        (LIST, b"\x02\x00\x00", "the message: 1 bytes are left after the last field"),
        (LIST, b"\x02\x02" * 100, "nested deeper than 32 levels"),
        (LIST, b"\x02\x02" * 100_000, "nested deeper than 32 levels"),
        ("boolean", b"\x07", "expected a boolean (0 or 1), found 7"),
        (b"boolean", b"\x01", ""),
        ("int", b"\xff\xff\xff\xff\x0f", ""),
        ("int", b"\xff\xff\xff\xff\x1f", "does not fit 32 bits"),
        ("long", b"\xff" * 9 + b"\x01", ""),
        ("long", b"\xff" * 9 + b"\x02", "does not fit 64 bits"),
        ("long", b"\xff" * 11, "more than 10 bytes"),
        ("bytes", b"\x05abc", "its length is -3"),
        ("bytes", b"\xfe\xff\xff\xff\x0fabc", "the message ends after 3"),
        ("string", b"\x02\xff", "not UTF-8 at its byte 0"),
        ("double", b"1234567", "expected a double (8 bytes), the message ends after 7"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "symbol of enum E (0 to 0), found -1"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", "expected fixed F (3 bytes)"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x10\x00", f"more than {MESSAGE_VALUES_MAX} values"),
        ({"type": "array", "items": "long"}, b"\x80\x80\x80\x80\x10\x00", "[1]: expected a long, the message ends"),
        ({"type": "array", "items": "int"}, b"\x01\x02\x06\x00", ""),
        ({"type": "array", "items": "int"}, b"\x01\x01\x06\x00", "less than no bytes"),
        ({"type": "map", "values": "int"}, b"\x02\x02k\x06\x00", ""),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x06\x00", "[0]: expected a string"),
    ],
)
def test_avro_messages(schema: object, message: bytes, reason: str) -> None:
    reasons = AvroSchema(raw(schema)).check(message)
    assert (len(reasons) == 1 and reason in reasons[0]) if reason else reasons == [], reasons


def doubling(levels: int) -> object:
    schema: object = "null"
    for level in range(levels):
        again = f"r{level - 1}" if level else "null"
        schema = {
            "type": "record",
            "name": f"r{level}",
            "fields": [{"name": "a", "type": schema}, {"name": "b", "type": again}],
        }
    return schema


def test_records_that_double_without_a_byte_are_bounded() -> None:
    [reason] = AvroSchema(raw(doubling(20))).check(b"")
    assert f"more than {MESSAGE_VALUES_MAX} values" in reason


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (b"", "it is empty"),
        (b"null ", ""),
        (b"[" * 70 + b"]" * 70, "nested deeper"),
        (1, "refused"),
        ({}, "has no 'type'"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "Foo"}]}, "no type named 'Foo'"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "default": "x"}]}, "Default value"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "there twice"),
        ({"type": "record", "name": "R-1", "fields": []}, "is not a name"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "unique"),
        ({"type": "enum", "name": "E", "symbols": "AB"}, "are a list"),
        ({"type": "fixed", "name": "F", "size": -1}, "number of bytes"),
        (["null", ["int"]], "none that is a union"),
        (["int", {"type": "int"}], "two branches of one type"),
        ([], "at least one branch"),
        (["int"] * 10_001, "10002 values, the limit is 10000"),
    ],
)
def test_avro_definitions(schema: object, why: str) -> None:
    if not why:
        assert AvroSchema(raw(schema)).check(b"") == []
        return
    with pytest.raises(SchemaInvalid, match="the Avro schema is refused") as refused:
        AvroSchema(raw(schema))
    assert why in str(refused.value)


MIXED = {
    "type": "record",
    "name": "M",
    "namespace": "n",
    "fields": [
        {"name": "a", "type": ["null", "long", {"type": "array", "items": "n.M"}]},
        {
            "name": "b",
            "type": {"type": "map", "values": ["string", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}]},
        },
        {"name": "c", "type": {"type": "fixed", "name": "F", "size": 2}},
    ],
}


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_what_the_walk_takes_fastavro_reads_to_the_same_end(message: bytes) -> None:
    if not AvroSchema(raw(MIXED)).check(message):
        stream = io.BytesIO(message)
        fastavro.schemaless_reader(stream, MIXED, None)
        assert stream.tell() == len(message)


# -- Protobuf -------------------------------------------------------------------------------------------------------------

SHOP = """// quintet: message = shop.v1.Order
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import public 'google/protobuf/wrappers.proto';
option java_package = "x.y";
message First { }
message Order { /* a
   comment */
  option deprecated = true;
  string id = 1 [json_name = "x", (my.opt) = { a: [1, 2], b: { c: "}" } }];
  optional int32 count = 2;
  repeated Line lines = 3;
  map<string, Line> by_name = 0x4;
  google.protobuf.Timestamp at = 5;
  oneof what { string a = 6; Kind k = 7; }
  enum Kind { option allow_alias = true; ZERO = 0; ONE = 1; UN = 1 [deprecated = true]; LOW = -1; }
  message Line { string sku = 1; repeated sint64 n = 2; .shop.v1.Order parent = 3; repeated int32 u = 4 [packed = false]; }
  reserved 10 to 12, 15, 100 to max; reserved "foo", 'bar';
  ;
}
service S { rpc X (Order) returns (stream Order) { option (google.api.http) = { get: "/x" }; } }
extend google.protobuf.FieldOptions { string opt = 50000; }
"""


def test_a_proto_text_means_what_it_says() -> None:
    schema = ProtobufSchema(SHOP.encode())
    assert schema.descriptor.full_name == "shop.v1.Order"
    order: Any = message_factory.GetMessageClass(schema.descriptor)()
    data = {"x": "1", "count": 0, "lines": [{"sku": "s", "n": ["-5"], "u": [1]}], "byName": {"k": {"sku": "q"}},
            "at": "2026-01-01T00:00:00Z", "k": "ONE"}  # fmt: skip
    data["id"] = data.pop("x")
    json_format.ParseDict(data, order)
    assert json_format.MessageToDict(order) == data
    assert order.HasField("count"), "optional keeps a zero"
    assert schema.check(order.SerializeToString()) == []


@pytest.mark.parametrize(
    ("message", "reasons"),
    [
        (b"", []),
        (b"\x0a\x01a", []),
        (b"\x08\x05", ["id (field 1): expected a length and bytes, found a varint"]),
        (b"\x0a\x05a", ["id: field 1 needs 5 bytes, 1 are left"]),
        (b"\x0a\x01\xff", ["id: expected a string, it is not UTF-8 at its byte 0"]),
        (b"\x1a\x02\x08\x01", ["lines.sku (field 1): expected a length and bytes, found a varint"]),
        (b"\xa0\x06\x01", ["the message: no field of shop.v1.Order is there, only fields 100"]),
        (b"\x0a\x01a\xa0\x06\x01", []),
        (b"\x1a\x02\x20\x01\x1a\x03\x22\x01\x01", []),
        (b"\x0f", ["id: field 1 has wire type 7, which is not supported"]),
        (b"\x00\x00", ["the message: a field has the number 0"]),
        (b"\x80" * 20, ["the message: a varint has more than 10 bytes"]),
        (b"\x0a\xff\xff\xff\xff\x07a", ["id: field 1 needs 2147483647 bytes, 1 are left"]),
        (
            b"\xa0\x06\x01" * 20_000,
            [f"the message: more than {FIELDS_LOOKED_AT_MAX} fields, with unknown or broken ones among them"],
        ),
    ],
)
def test_protobuf_messages(message: bytes, reasons: list[str]) -> None:
    assert ProtobufSchema(SHOP.encode()).check(message) == reasons


def test_nesting_beyond_the_parser_is_a_reason() -> None:
    schema = ProtobufSchema(b'syntax = "proto3"; message N { N n = 1; }')
    message = b""
    for _ in range(2_000):
        size, length = len(message), bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        message = b"\x0a" + bytes([*length, size]) + message
    [reason] = schema.check(message)
    assert "nested deeper than 100 levels" in reason


def test_required_fields_of_proto2() -> None:
    schema = ProtobufSchema(b'syntax = "proto2"; message A { required string x = 1; optional A a = 2; }')
    assert schema.check(b"") == ["x: the required field is missing"]
    assert schema.check(b"\x0a\x01b\x12\x00") == ["a.x: the required field is missing"]
    assert schema.check(b"\x0a\x01b") == []


def test_a_descriptor_set_is_taken_with_its_imports() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    files.file.append(protofile.parse('syntax = "proto3"; package p; message Part { int32 n = 1; }', "part.proto"))
    whole = descriptor_pb2.FileDescriptorProto(name="whole.proto", dependency=["part.proto"], syntax="proto3")
    message = whole.message_type.add(name="Whole")
    message.field.add(name="part", number=1, label=1, type=11, type_name=".p.Part")
    files.file.append(whole)
    schema = ProtobufSchema(files.SerializeToString())
    assert schema.descriptor.full_name == "Whole"
    assert schema.check(b"\x0a\x02\x08\x01") == []
    del files.file[0]
    with pytest.raises(SchemaInvalid, match=r"imports 'part\.proto', which is not in it"):
        ProtobufSchema(files.SerializeToString())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no message"),
        ("x", "line 1: expected a message, an enum"),
        ('syntax = "proto3";\n\nmessage A {\n  string = 1;\n}', "line 4: expected the name of a field, found '='"),
        ('syntax = "proto4"; message A {}', "proto2 or proto3"),
        ('edition = "2023"; message A {}', "found 'edition'"),
        ('syntax = "proto3"; import "other.proto";', "'other.proto' cannot be imported"),
        ('syntax = "proto3"; import "google/protobuf/nothing.proto"; message A {}', "which is not in it"),
        ('syntax = "proto3"; message A { Foo x = 1; }', "Foo"),
        ('syntax = "proto3"; message A { string x = 1; string y = 1; }', "duplicate field number"),
        ('syntax = "proto3"; message A { string x = 1; string x = 2; }', "duplicate"),
        ('syntax = "proto3"; message A {} message A {}', "duplicate"),
        ('syntax = "proto3"; message A { string x = 10; reserved 1 to 20; }', "is reserved"),
        ('syntax = "proto3"; message A { string x = 0; }', "is between 1 and"),
        ('syntax = "proto3"; message A { string x = 19500; }', "protobuf's own"),
        ('syntax = "proto3"; message A { string x = one; }', "expected the number of field x"),
        ('syntax = "proto3"; message A { required string x = 1; }', "no required fields"),
        ('syntax = "proto3"; message A { map<float, int32> m = 1; }', "key of a map"),
        ('syntax = "proto3"; enum E { A = 1; }', "the first is 0"),
        ('syntax = "proto3"; enum E { A = 0; B = 0; }', "uses a number twice"),
        ('syntax = "proto2"; message A { string x = 1; }', "expected required, optional or repeated"),
        ('syntax = "proto2"; message A { optional group G = 1 {} }', "groups are not supported"),
        ('syntax = "proto2"; message A { extensions 5; } extend A { optional int32 x = 5; }', "extensions of A"),
        ('syntax = "proto3"; message A {', "the text ends in the middle"),
        ('syntax = "proto3"; message A { ' + "message B { " * 20, "nested deeper than 16"),
        ('syntax = "proto3"; message A { reserved 5 to 3; }', "goes down"),
        ("// quintet: message = D\nsyntax = \"proto3\"; message A {}", "it has no message D"),
        ("/*" * 1_000, "is unexpected"),
        ('"' + "a" * 1_000, "is unexpected"),
        ("\x00\x01", "neither the text of a .proto file nor a FileDescriptorSet"),
        ("; " * 20_001, "more than 20000 words and signs"),
    ],
)  # fmt: skip
def test_protobuf_definitions_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        ProtobufSchema(text.encode())
    assert why in str(refused.value)


# -- all of them ----------------------------------------------------------------------------------------------------------

words = st.lists(
    st.sampled_from(['syntax = "proto3";', "message", "A", "{", "}", "string", "=", "1", ";", "enum", "reserved", "to", "map",
                     "<", ">", ",", "oneof", "[", "]", "repeated", "-", "0x", '"x"', "option", "extend", "."]),
    max_size=30,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(words.map(" ".join))
@example('syntax = "proto3"; message A { reserved')
@example('syntax = "proto3"; message A { string x = 1 [')
def test_any_words_are_a_proto_file_or_refused(text: str) -> None:
    try:
        ProtobufSchema(text.encode())
    except SchemaInvalid as refused:
        assert str(refused)


definitions = st.recursive(
    st.sampled_from([None, True, 1, -1, "", "int", "record", "#", "a", "^a("]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default", "aliases", "$ref", "anyOf",
                             "properties", "required", "pattern", "enum", "not", "$id", "patternProperties", "$defs", "namespace"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["json", "avro"]), definitions, st.binary(max_size=8))
def test_any_json_is_a_definition_or_refused(type: str, definition: object, message: bytes) -> None:
    try:
        validator = compile_schema(type, raw(definition))
    except SchemaInvalid as refused:
        assert str(refused)
    else:
        assert all(isinstance(reason, str) for reason in validator.check(message))


ONE_OF_EACH = (JsonSchema(raw(ORDER)), AvroSchema(raw(MIXED)), ProtobufSchema(SHOP.encode()))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_not(message: bytes) -> None:
    for validator in ONE_OF_EACH:
        assert all(reason and len(reason) <= REASON_CHARS_MAX for reason in validator.check(message))


@pytest.mark.parametrize(
    "message", [b"[" + b"{}," * 7_000_000 + b"{}]", b"[" + b"{}," * 5_000 + b"{}]", b"[" * 33 + b"]" * 33]
)
def test_a_message_with_too_much_in_it_is_not_parsed(message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = JsonSchema(b"{}")

    def parsed(*_: object) -> None:
        pytest.fail("it was parsed")

    monkeypatch.setattr(json.decoder.JSONDecoder, "raw_decode", parsed)
    [reason] = schema.check(message)
    bounds = {21_000_004: "1048576", 15_004: "up to 10003 values, the limit is 10000", 66: "deeper than 32 levels"}
    assert bounds[len(message)] in reason


def test_commas_and_brackets_in_strings_are_no_values() -> None:
    assert JsonSchema(b"{}").check(b'["' + b"[{," * 100_000 + b'"]') == []


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


NODE = 'syntax = "proto2"; message Node { repeated Node inside = 1; optional bytes data = 2; }'


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a\x00" * 40_000,
        b"\x0a" + varint(80_000) + b"\x0a\x00" * 40_000,
        b"\x1b\x0a" + varint(80_000) + b"\x0a\x00" * 40_000 + b"\x1c",
    ],
)
def test_a_large_protobuf_message_of_many_fields_is_not_parsed(message: bytes) -> None:
    assert "more than 5000 fields" in ProtobufSchema(NODE.encode()).check(message)[0]


def test_a_large_protobuf_message_of_few_fields_is_checked() -> None:
    schema = ProtobufSchema(NODE.encode())
    assert schema.check(b"\x12" + varint(1_000_000) + b"\x0a\x00" * 500_000) == []
    assert schema.check(b"\x0a\x00" * 30_000) == [], "it is small enough not to be counted"
    assert "a schema check takes 1048576" in schema.check(bytes(1 << 21))[0]
    assert "a schema check takes 1048576" in AvroSchema(b'"bytes"').check(bytes(1 << 21))[0]
