"""A value with one broken field, of a schema made at random: the cause names that field, for every kind of schema."""

import json
import re
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.spark.typed import decoder
from tests.spark.typed.parts import cause, good

LEAVES = ("int", "number", "text", "flag", "choice", "perhaps")
CHOICES = ("red", "green")
NUMBERED = re.compile(r"\[\d+\]")


class Node(NamedTuple):
    """A leaf (`kind` of LEAVES), or "object" or "list" of objects with members."""

    kind: str
    members: "dict[str, Node]"


Path = tuple[str | int, ...]


def leaf() -> st.SearchStrategy[Node]:
    return st.sampled_from(LEAVES).map(lambda kind: Node(kind, {}))


def members(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[dict[str, Node]]:
    return st.lists(inner, min_size=1, max_size=4).map(
        lambda nodes: {f"f{number}": node for number, node in enumerate(nodes)}
    )


def nested(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    return st.builds(Node, st.sampled_from(("object", "list")), members(inner))


ROOTS = members(st.recursive(leaf(), nested, max_leaves=6)).map(lambda found: Node("object", found))


def value_of(node: Node, draw: Any) -> Any:
    match node.kind:
        case "object":
            return {name: value_of(member, draw) for name, member in node.members.items()}
        case "list":
            return [value_of(node._replace(kind="object"), draw) for _ in range(draw(st.integers(1, 2)))]
        case "int":
            return draw(st.integers(-(1 << 31), (1 << 31) - 1))
        case "number":
            return draw(st.floats(-1e6, 1e6))
        case "text":
            return draw(st.text("abc", max_size=4))
        case "flag":
            return draw(st.booleans())
        case "choice":
            return draw(st.sampled_from(CHOICES))
        case _:
            return draw(st.none() | st.text("abc", max_size=4))


def leaves(node: Node, value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    if node.kind == "object":
        for name, member in node.members.items():
            yield from leaves(member, value[name], (*path, name))
    elif node.kind == "list":
        for number, item in enumerate(value):
            yield from leaves(node._replace(kind="object"), item, (*path, number))
    else:
        yield path, node.kind


def spoken(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


@st.composite
def cases(draw: Any) -> tuple[Node, Any, Path, str, int]:
    """A schema, a value of it, the field to break, its kind, and which way to break it."""
    root = draw(ROOTS)
    value = value_of(root, draw)
    path, kind = draw(st.sampled_from(list(leaves(root, value))))
    return root, value, path, kind, draw(st.integers(0, 3))


# -- JSON -------------------------------------------------------------------------------------------------------------

JSON_TYPES: dict[str, Any] = {
    "int": {"type": "integer"}, "number": {"type": "number"}, "text": {"type": "string"}, "flag": {"type": "boolean"},
    "choice": {"type": "string", "format": "date"}, "perhaps": {"type": ["string", "null"]},
}  # fmt: skip
JSON_BROKEN: dict[str, list[Any]] = {
    "int": [1.5, "x", None, 1e30], "number": ["x", None, True, []], "text": [5, None, {}, 2.0],
    "flag": ["x", None, 1, 0.0], "choice": ["yesterday", None, 7, 2.5], "perhaps": [5, {}, [], 4.0],
}  # fmt: skip


def json_schema(node: Node) -> Any:
    if node.kind not in ("object", "list"):
        return JSON_TYPES[node.kind]
    properties = {name: json_schema(member) for name, member in node.members.items()}
    found = {"type": "object", "properties": properties, "required": list(properties)}
    return found if node.kind == "object" else {"type": "array", "items": found}


def json_value(node: Node, value: Any, path: Path, broken: Path, bad: Any, floats: bool) -> Any:
    if node.kind == "object":
        return {
            name: json_value(member, value[name], (*path, name), broken, bad, floats)
            for name, member in node.members.items()
        }
    if node.kind == "list":
        inner = node._replace(kind="object")
        return [json_value(inner, item, (*path, number), broken, bad, floats) for number, item in enumerate(value)]
    if path == broken:
        return bad
    if node.kind == "choice":
        return "2026-01-31"
    return float(value) if node.kind == "int" and floats else value


@settings(max_examples=150, deadline=None)
@given(cases(), st.booleans())
def test_the_broken_field_of_a_json_value_is_the_one_named(
    case: tuple[Node, Any, Path, str, int], floats: bool
) -> None:
    root, value, path, kind, way = case
    reader = decoder("json", json.dumps(json_schema(root)))
    good(reader, json.dumps(json_value(root, value, (), ("nowhere",), None, floats)).encode())
    text = json.dumps(json_value(root, value, (), path, JSON_BROKEN[kind][way], floats)).encode()
    assert cause(reader, text).startswith(f"{spoken(path)}: "), (text, cause(reader, text))


# -- Avro -------------------------------------------------------------------------------------------------------------

AVRO_BROKEN: dict[str, list[bytes]] = {
    "int": [b"\xff" * 4 + b"\x7f", b"\xff" * 11, b"\xff" * 9 + b"\x01", b"\x80" * 10 + b"\x01"],
    "number": [], "text": [b"\x01", b"\x02\xff", b"\xff" * 11, b"\x04\xc3("], "flag": [b"\x02", b"\xff", b"\x07", b"\x80"],
    "choice": [b"\x04", b"\x01", b"\x7e", b"\xff" * 11], "perhaps": [b"\x04", b"\x01", b"\x02\x01", b"\x02\x02\xff"],
}  # fmt: skip


def avro_schema(node: Node, name: str) -> Any:
    plain = {"int": "int", "number": "double", "text": "string", "flag": "boolean", "perhaps": ["null", "string"]}
    if node.kind == "choice":
        return {"type": "enum", "name": f"{name}E", "symbols": list(CHOICES)}
    if node.kind not in ("object", "list"):
        return plain[node.kind]
    fields = [
        {"name": member, "type": avro_schema(inner, f"{name}_{member}")} for member, inner in node.members.items()
    ]
    found = {"type": "record", "name": name, "fields": fields}
    return found if node.kind == "object" else {"type": "array", "items": found}


def zigzag(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def avro_value(node: Node, value: Any, path: Path, broken: Path, bad: bytes) -> bytes:
    if node.kind == "object":
        return b"".join(
            avro_value(member, value[name], (*path, name), broken, bad) for name, member in node.members.items()
        )
    if node.kind == "list":
        inner = node._replace(kind="object")
        items = [avro_value(inner, item, (*path, number), broken, bad) for number, item in enumerate(value)]
        return zigzag(len(items)) + b"".join(items) + b"\x00"
    if path == broken:
        return bad
    match node.kind:
        case "int":
            return zigzag(value)
        case "number":
            return struct.pack("<d", value)
        case "flag":
            return bytes((value,))
        case "choice":
            return zigzag(CHOICES.index(value))
        case "perhaps" if value is None:
            return b"\x00"
    return b"\x02" * (node.kind == "perhaps") + zigzag(len(value)) + str(value).encode()


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_broken_field_of_an_avro_value_is_the_one_named(case: tuple[Node, Any, Path, str, int]) -> None:
    root, value, path, kind, way = case
    reader = decoder("avro", json.dumps(avro_schema(root, "Root")))
    good(reader, avro_value(root, value, (), ("nowhere",), b""))
    if AVRO_BROKEN[kind]:  # any eight bytes are a double
        data = avro_value(root, value, (), path, AVRO_BROKEN[kind][way])
        assert cause(reader, data).startswith(f"{spoken(path)}: "), (data, cause(reader, data))


# -- Protobuf ---------------------------------------------------------------------------------------------------------

PROTO_TYPES = {
    "int": "int64",
    "number": "double",
    "text": "string",
    "flag": "bool",
    "choice": "fixed32",
    "perhaps": "string",
}
PROTO_WIRES = {"int": 0, "number": 1, "text": 2, "flag": 0, "choice": 5, "perhaps": 2}
BYTES_OF_WIRE = {0: b"\x01", 1: bytes(8), 2: b"\x01a", 5: bytes(4)}


def proto_schema(node: Node, name: str) -> str:
    lines, inside = [], []
    for number, (member, inner) in enumerate(node.members.items(), 1):
        if inner.kind in ("object", "list"):
            inside.append(proto_schema(inner, f"M{member}"))
            lines.append(f"{'repeated ' if inner.kind == 'list' else ''}M{member} {member} = {number};")
        else:
            lines.append(f"{PROTO_TYPES[inner.kind]} {member} = {number};")
    return f"message {name} {{ {' '.join((*inside, *lines))} }}"


def proto_value(node: Node, value: Any, path: Path, broken: Path, way: int) -> bytes:
    out = b""
    for number, (name, member) in enumerate(node.members.items(), 1):
        here = (*path, name)
        if member.kind in ("object", "list"):
            inner = member._replace(kind="object")
            items = [(here, value[name])]
            if member.kind == "list":
                items = [((*here, place), item) for place, item in enumerate(value[name])]
            for where, item in items:
                data = proto_value(inner, item, where, broken, way)
                out += varint(number << 3 | 2) + varint(len(data)) + data
        elif here != broken:
            out += varint(number << 3 | PROTO_WIRES[member.kind]) + BYTES_OF_WIRE[PROTO_WIRES[member.kind]]
        elif PROTO_WIRES[member.kind] == 2 and way == 0:
            out += varint(number << 3 | 2) + b"\x01\xff"  # no UTF-8
        elif way == 1:
            return out + varint(number << 3 | PROTO_WIRES[member.kind])  # the value is missing
        else:
            wire = [each for each in BYTES_OF_WIRE if each != PROTO_WIRES[member.kind]][way % 3]
            out += varint(number << 3 | wire) + BYTES_OF_WIRE[wire]
    return out


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_broken_field_of_a_protobuf_value_is_the_one_named(case: tuple[Node, Any, Path, str, int]) -> None:
    root, value, path, _, way = case
    reader = decoder("protobuf", f'syntax = "proto3"; {proto_schema(root, "Root")}')
    good(reader, proto_value(root, value, (), ("nowhere",), way))
    data = proto_value(root, value, (), path, way)
    named = NUMBERED.sub("", cause(reader, data).partition(":")[0].partition(" (")[0])
    assert named == NUMBERED.sub("", spoken(path)), (data, cause(reader, data))


# -- the one that was reported ----------------------------------------------------------------------------------------


def test_a_whole_number_written_as_a_float_is_not_blamed_for_others() -> None:
    definition = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "total": {"type": "number"}, "region": {"type": "string"}},
        "required": ["id", "total", "region"],
    }
    reader = decoder("json", json.dumps(definition))
    assert cause(reader, b'{"id":9.0,"total":1,"region":null}') == "region: expected str, got null"
    assert cause(reader, b'{"id":9.0,"total":1}') == "region: the required field is missing"
    assert cause(reader, b'{"id":9.0,"total":1,').startswith("the value is not JSON")
    assert cause(reader, b'{"id":9.5,"total":1,"region":"n"}').startswith("id: expected int, got float: 9.5")
