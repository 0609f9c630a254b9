"""Compiles Avro definitions into a validator that walks over a message's bytes and names the field that is wrong.

fastavro reads the definition (names, namespaces, aliases, defaults). The message is not decoded with it: it takes a
negative enum or union index, a boolean of 7 and an int of 64 bits for good, and builds the two billion nulls that four
bytes can claim. The walk here builds nothing. It is made of one function per type, chosen once when the schema is compiled:

    null      nothing                                  bytes, string  long length, then the bytes (string: UTF-8)
    boolean   one byte, 0 or 1                         fixed          size bytes
    int, long zig-zag varint, 32 or 64 bits            enum           int index of a symbol
    float     4 bytes                                  union          long index of a branch, then the branch
    double    8 bytes                                  array, map     blocks: long count, items; count < 0: |count|, long
    record    its fields in order                                     bytes of the block, items; 0 ends

A message must be used up to its last byte. Logical types are checked as the type beneath them.
"""

import json
import re
from collections.abc import Callable
from typing import Required, TypeAlias, TypedDict, cast

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from quintet.broker.schemas.validators import (
    MESSAGE_DEPTH_MAX,
    MESSAGE_VALUES_MAX,
    clip,
    read_definition,
    short_path,
    too_large,
)
from quintet.broker.slices import Steps, finish
from quintet.model.errors import SchemaInvalid
from quintet.model.strict_json import NotStrictJson

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED = frozenset(("record", "error", "enum", "fixed"))
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_SIZES = {"float": 4, "double": 8}
_RANGES = {"int": 31, "long": 63}


class Refused(Exception):
    """A message that does not fit; says where and why."""


class Cursor:
    """Where the walk is in a message, and how much it has seen."""

    __slots__ = ("data", "depth", "items", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.items = 0
        self.depth = 0

    def count(self) -> None:
        self.items += 1
        if self.items > MESSAGE_VALUES_MAX:
            raise Refused(f"more than {MESSAGE_VALUES_MAX} values")

    def down(self) -> None:
        self.count()
        self.depth += 1
        if self.depth > MESSAGE_DEPTH_MAX:
            raise Refused(f"records, arrays and maps nested deeper than {MESSAGE_DEPTH_MAX} levels")

    def take(self, size: int, what: str) -> bytes:
        start = self.position
        end = start + size
        if end > len(self.data):
            raise Refused(f"expected {what} ({size} bytes), the message ends after {len(self.data) - start}")
        self.position = end
        return self.data[start:end]

    def varint(self, what: str, bits: int = 63) -> int:
        data = self.data
        position = self.position
        result = shift = 0
        while True:
            if position >= len(data):
                raise Refused(f"expected {what}, the message ends")
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise Refused(f"expected {what}, the varint has more than 10 bytes")
        if result >> (bits + 1):
            raise Refused(f"expected {what}, the number does not fit {bits + 1} bits")
        self.position = position
        return (result >> 1) ^ -(result & 1)


Walk = Callable[[Cursor], None]


class AvroField(TypedDict, total=False):
    """A field of a record."""

    name: Required[str]
    type: Required["AvroType"]
    aliases: list[str]
    default: object


class AvroDefinition(TypedDict, total=False):
    """A type in braces, as fastavro parsed it and _check_types has seen it. Which members it has, its `type` says."""

    type: Required["AvroType"]
    name: str
    aliases: list[str]
    default: object
    fields: list[AvroField]
    symbols: list[str]
    size: int
    items: "AvroType"
    values: "AvroType"


AvroType: TypeAlias = str | list["AvroType"] | AvroDefinition  # a name, a union, a definition


class AvroSchema:
    """A compiled Avro schema. `schema` has full names; `named` finds its records, enums and fixed types."""

    schema: AvroType
    named: dict[str, AvroDefinition]

    def __init__(self, definition: bytes) -> None:
        finish(self.build(definition))

    def build(self, definition: bytes) -> Steps[None]:
        """What the constructor does, in steps."""
        text = definition.strip()
        if text.decode("ascii", "replace") in PRIMITIVES:  # tools write a primitive without its quotes
            text = b'"' + text + b'"'
        try:
            parsed = read_definition(text)
            if not isinstance(parsed, str | list | dict):
                raise NotStrictJson(f"a type is a string, an array or an object, not {json.dumps(parsed)}")
            yield
            named: dict[str, dict[str, object]] = {}
            schema = fastavro.parse_schema(parsed, named)
            yield
            _check_types(schema)
            self.schema, self.named = cast(AvroType, schema), cast(dict[str, AvroDefinition], named)
        except (NotStrictJson, SchemaParseException) as error:
            raise SchemaInvalid(clip(f"the Avro schema is refused: {error}")) from error
        except UnknownType as error:
            raise SchemaInvalid(clip(f"the Avro schema is refused: there is no type named {error.name!r}")) from error
        except KeyError as error:
            raise SchemaInvalid(clip(f"the Avro schema is refused: a type has no {error}")) from error
        except (TypeError, ValueError, AttributeError) as error:
            raise SchemaInvalid(clip(f"the Avro schema is refused: {error!r}")) from error
        yield
        self._walks: dict[str, Walk] = {}
        self._walk = self._compile(self.schema)

    def check(self, message: bytes) -> list[str]:
        if reasons := too_large(message):
            return reasons
        cursor = Cursor(message)
        try:
            self._walk(cursor)
        except Refused as refused:
            return [clip(f"{_path(refused)}: {refused}, at byte {cursor.position}")]
        left = len(message) - cursor.position
        return [f"the message: {left} bytes are left after the last field"] if left else []

    def _compile(self, schema: AvroType) -> Walk:
        if isinstance(schema, str):
            return _primitive(schema) if schema in PRIMITIVES else self._reference(schema)
        if isinstance(schema, list):
            return _union([self._compile(branch) for branch in schema])
        kind = schema["type"]
        if kind == "array":
            return _blocks(self._compile(schema["items"]), None)
        if kind == "map":
            return _blocks(self._compile(schema["values"]), _primitive("string"))
        if kind in ("record", "error"):
            walk = _record([(field["name"], self._compile(field["type"])) for field in schema["fields"]])
        elif kind == "enum":
            walk = _enum(schema["name"], len(schema["symbols"]))
        elif kind == "fixed":
            walk = _fixed(schema["name"], schema["size"])
        else:
            return self._compile(kind)  # a primitive, or a type in its own braces
        self._walks[schema["name"]] = walk
        return walk

    def _reference(self, name: str) -> Walk:
        """A type by its name: known when a message is walked, perhaps not yet now."""
        walks = self._walks

        def walk(cursor: Cursor) -> None:
            walks[name](cursor)

        return walk


def compile_steps(definition: bytes) -> Steps[AvroSchema]:
    """An AvroSchema, made in steps."""
    made = AvroSchema.__new__(AvroSchema)
    yield from made.build(definition)
    return made


def _check_types(schema: object) -> None:
    """What the specification forbids and fastavro lets pass."""
    if isinstance(schema, list):
        kinds = [branch if isinstance(branch, str) else type_name(branch) for branch in schema]
        if not schema or "union" in kinds:
            raise NotStrictJson("a union has at least one branch, and none that is a union")
        if len(set(kinds)) < len(kinds):
            raise NotStrictJson(f"a union has two branches of one type: {', '.join(sorted(kinds))}")
        for branch in schema:
            _check_types(branch)
    elif isinstance(schema, dict):
        kind = schema["type"]
        if kind in NAMED and not _NAME.fullmatch(schema["name"]):
            raise NotStrictJson(f"{schema['name']!r} is not a name: letters, digits and _, not a digit first")
        if kind == "array":
            _check_types(schema["items"])
        elif kind == "map":
            _check_types(schema["values"])
        elif kind in ("record", "error"):
            names: set[str] = set()
            for field in schema["fields"]:
                if not _NAME.fullmatch(field["name"]) or field["name"] in names:
                    raise NotStrictJson(f"field {field['name']!r} of {schema['name']} is there twice, or not a name")
                names.add(field["name"])
                _check_types(field["type"])
        elif kind == "enum":
            if not isinstance(schema["symbols"], list):
                raise NotStrictJson(f"the symbols of {schema['name']} are a list")
            for symbol in schema["symbols"]:
                if not isinstance(symbol, str) or not _NAME.fullmatch(symbol):
                    raise NotStrictJson(f"symbol {symbol!r} of {schema['name']} is not a name")
        elif kind == "fixed":
            if type(schema["size"]) is not int or schema["size"] < 0:
                raise NotStrictJson(f"the size of fixed {schema['name']} is a number of bytes, not {schema['size']!r}")
        else:
            _check_types(kind)


def type_name(schema: object) -> str:
    """What a union calls this type: its kind, or the full name of a named type."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        kind = schema["type"]
        return str(schema["name"]) if kind in NAMED else type_name(kind)
    return str(schema)


def _path(refused: Refused) -> str:
    return short_path("".join(reversed(getattr(refused, "__notes__", []))).lstrip(".")) or "the message"


def _primitive(kind: str) -> Walk:
    def null(cursor: Cursor) -> None:
        cursor.count()

    def boolean(cursor: Cursor) -> None:
        cursor.count()
        byte = cursor.take(1, "a boolean")[0]
        if byte > 1:
            raise Refused(f"expected a boolean (0 or 1), found {byte}")

    def integer(cursor: Cursor) -> None:
        cursor.count()
        cursor.varint(f"an {kind}" if kind == "int" else "a long", _RANGES[kind])

    def floating(cursor: Cursor) -> None:
        cursor.count()
        cursor.take(_SIZES[kind], f"a {kind}")

    def block(cursor: Cursor) -> None:
        cursor.count()
        length = cursor.varint(f"the length of {kind}")
        if length < 0:
            raise Refused(f"expected {kind}, its length is {length}")
        taken = cursor.take(length, kind)
        if kind == "string":
            try:
                taken.decode()
            except UnicodeDecodeError as error:
                raise Refused(f"expected a string, it is not UTF-8 at its byte {error.start}") from error

    walks = {"null": null, "boolean": boolean, "int": integer, "long": integer, "float": floating, "double": floating}
    return walks.get(kind, block)


def _record(fields: list[tuple[str, Walk]]) -> Walk:
    def walk(cursor: Cursor) -> None:
        cursor.down()
        name = ""
        try:
            for name, field in fields:  # noqa: B007 (the name is for the note)
                field(cursor)
        except Refused as refused:
            refused.add_note(f".{name}")
            raise
        cursor.depth -= 1

    return walk


def _blocks(item: Walk, key: Walk | None) -> Walk:
    def walk(cursor: Cursor) -> None:
        cursor.down()
        number = 0
        try:
            while count := cursor.varint("the number of items of a block"):
                if count < 0:
                    count = -count
                    if cursor.varint("the number of bytes of a block") < 0:
                        raise Refused("a block says that it has less than no bytes")
                for _ in range(count):
                    if key is not None:
                        key(cursor)
                    item(cursor)
                    number += 1
        except Refused as refused:
            refused.add_note(f"[{number}]")
            raise
        cursor.depth -= 1

    return walk


def _union(branches: list[Walk]) -> Walk:
    def walk(cursor: Cursor) -> None:
        index = cursor.varint("the branch of a union")
        if not 0 <= index < len(branches):
            raise Refused(f"expected a branch of the union (0 to {len(branches) - 1}), found {index}")
        branches[index](cursor)

    return walk


def _enum(name: str, symbols: int) -> Walk:
    def walk(cursor: Cursor) -> None:
        cursor.count()
        index = cursor.varint(f"a symbol of enum {name}", 31)
        if not 0 <= index < symbols:
            raise Refused(f"expected a symbol of enum {name} (0 to {symbols - 1}), found {index}")

    return walk


def _fixed(name: str, size: int) -> Walk:
    def walk(cursor: Cursor) -> None:
        cursor.count()
        cursor.take(size, f"fixed {name}")

    return walk
