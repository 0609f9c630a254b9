"""Decodes JSON values by a JSON Schema: the schema becomes columns and a msgspec type, and msgspec reads every value with it.

What the columns are:

    type            column            |  type                                   column
    string          string            |  object with `properties`               struct of the declared ones
      date-time     timestamp us UTC  |  object with `additionalProperties`     map<string, ...> (if that is a schema)
      date          date32            |  array with one schema for `items`      list
    integer         int64             |  [X, null], anyOf/oneOf X or null       the column of X
    number          float64           |  anything else, a `$ref` to itself      string: the JSON text as it stands
    boolean         boolean           |  (enum and const of strings: string)    in the message

A row is an error if it is not JSON in UTF-8, is nested deeper than DEPTH_MAX, lacks a required field, or has a value of
another type than declared, null included. The cause names the field. A number such as 3.0 is an integer, as JSON Schema
has it; one beyond 64 bits is an error. Fields that are not declared are left out. If an object has a key twice, the last
one counts. Constraints that do not decide a column's type (`pattern`, `minimum`, `enum`, `additionalProperties: false`,
formats other than the two) are not checked here: the broker checks them when a message is published.

Why not `pyarrow.json`: with 20,000 rows of 4 fields it decodes 2.0 million rows a second of CPU, msgspec with Arrow arrays built
afterwards 2.6 million. It also accepts NaN and several documents as one row, does not check UTF-8, cannot keep JSON text, and a value
that is just `null` crashes the process.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from operator import attrgetter
from types import GenericAlias
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.broker.schemas.references import References
from quintet.model.errors import SchemaInvalid
from quintet.model.strict_json import deeper
from quintet.spark.typed.columns import (
    COLUMNS_MAX,
    DEPTH_MAX,
    INT64,
    TIMESTAMP,
    Converted,
    Ints,
    List,
    Map,
    Member,
    Reasons,
    Shape,
    Struct,
    Value,
    misfit,
    pick_each,
)

# What msgspec decodes into: a class, Annotated[...] or a union. Python has no type for these.
TypeHint: TypeAlias = Any
# A keyword's value in a schema, as json.loads returned it. Its type is not checked yet: `_compiled` answers the errors.
Keyword: TypeAlias = Any
Schema = dict[str, Keyword]

_INT = Annotated[int, msgspec.Meta(ge=INT64.start, le=INT64.stop - 1)]
_INSTANT = Annotated[datetime, msgspec.Meta(tz=True)]
_UNFIT_NAME = re.compile(r'[\\"\x00-\x1f]')
_WHERE = re.compile(r"(?P<what>.*) - at `(?P<key>key in )?\$\.?(?P<path>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<name>.*)`", re.DOTALL)


class Typed(msgspec.Struct, frozen=True):
    """What a subschema becomes: the column, the type that reads it, and whether null is a value of it."""

    shape: Shape
    reads: TypeHint
    nullable: bool = False

    @property
    def hint(self) -> TypeHint:
        return self.reads | None if self.nullable else self.reads


def _text(raw: msgspec.Raw) -> str | None:
    """JSON text as it stands; the text `null` is a null."""
    text = str(bytes(raw), "utf-8")
    return None if text == "null" else text


_STRING = Typed(Shape(pa.string()), str)
_TEXT = Typed(Converted(pa.string(), _text), msgspec.Raw)
_FORMATS = {
    "date-time": Typed(Shape(TIMESTAMP), _INSTANT),
    "date": Typed(Shape(pa.date32()), date),
}
_SCALARS = {
    "string": _STRING,
    "integer": Typed(Shape(pa.int64()), _INT),
    "number": Typed(Shape(pa.float64()), float),
    "boolean": Typed(Shape(pa.bool_()), bool),
}


def _whole(value: float) -> int:
    """A number that is an integer, however it is written."""
    number = int(value)
    if number != value or number not in INT64:
        raise ValueError(f"{value:g} is no whole number of 64 bits")
    return number


_WHOLE = Typed(Converted(pa.int64(), _whole), _INT | float)


class JsonRows:
    """A compiled JSON Schema."""

    def __init__(self, definition: str) -> None:
        try:
            root = json.loads(definition)
        except (ValueError, RecursionError) as error:
            raise SchemaInvalid(f"the JSON Schema is not JSON: {error}") from error
        typed = _compiled(root, _SCALARS)
        if not isinstance(typed.shape, Struct):
            raise SchemaInvalid(
                "the JSON Schema cannot become columns: its root is not an object with `properties`",
                hint="declare the fields under `properties`, or read the topic with schema=raw",
            )
        self._shape = typed.shape
        self.schema = pa.schema([member.field for member in self._shape.members])
        self._decode = msgspec.json.Decoder(typed.reads).decode
        loose = _compiled(root, {**_SCALARS, "integer": _WHOLE})
        self._loose_shape = loose.shape
        self._decode_loose = msgspec.json.Decoder(loose.reads).decode

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Reasons]:
        reasons = _unreadable(values)
        texts = values.to_pylist()
        rows: list[Value]
        if not reasons:
            try:
                rows = list(map(self._decode, texts))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                rows = self._one_by_one(texts, reasons)
        else:
            rows = self._one_by_one(texts, reasons)
        return self._shape.children(rows), reasons

    def _one_by_one(self, texts: Sequence[bytes], reasons: Reasons) -> list[Value]:
        rows = []
        for number, text in enumerate(texts):
            if number not in reasons:
                try:
                    rows.append(self._decode(text))
                except msgspec.ValidationError as error:
                    row = self._loosely(text) if "got `float`" in str(error) else _say(error)
                    if isinstance(row, str):
                        reasons[number] = row
                    else:
                        rows.append(row)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    reasons[number] = _not_json(error)
        return rows

    def _loosely(self, text: bytes) -> Value | str:
        """Decode a row whose integers may be written as 3.0 or 3e2. A str says what is wrong with it; that may be another field than the
        one at which the strict decoder stopped."""
        try:
            row = self._decode_loose(text)
        except msgspec.ValidationError as error:
            return _say(error)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _not_json(error)
        found = misfit(self._loose_shape, row)
        if found is None:
            return row
        return f"{found[0].lstrip('.')}: expected int, got float: {found[1]}"


def _unreadable(values: pa.BinaryArray) -> Reasons:
    """The rows that must not reach the parser: not UTF-8, or nested too deep."""
    reasons: Reasons = {}
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        for number, text in enumerate(values.to_pylist()):
            try:
                text.decode()
            except UnicodeDecodeError as error:
                reasons[number] = f"the value is not UTF-8 at byte {error.start}"
    for number in _bracketed(values).tolist():
        if number not in reasons and deeper(values[number].as_py(), DEPTH_MAX):
            reasons[number] = f"the value is nested deeper than {DEPTH_MAX} levels"
    return reasons


def _bracketed(values: pa.BinaryArray) -> Ints:
    """The rows with so many opening brackets that they may be too deep."""
    _, offsets, data = values.buffers()
    edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if not len(values) or data is None:
        return np.empty(0, np.int64)
    text = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]
    opens = np.flatnonzero((text | 0x20) == 0x7B)  # [ is 0x5b, { is 0x7b
    counts = np.diff(np.searchsorted(opens, edges - edges[0]))
    return np.flatnonzero(counts > DEPTH_MAX)


def _not_json(error: Exception) -> str:
    return f"the value is not JSON: {str(error).removeprefix('JSON is malformed: ')}"


def _say(error: Exception) -> str:
    """msgspec's message with the field in front. "int | float" is an integer here that may be written 3.0."""
    what, path = str(error).replace("int | float", "int"), ""
    if match := _WHERE.fullmatch(what):
        what, path = match["what"], match["path"]
    if match := _MISSING.fullmatch(what):
        what, path = "the required field is missing", f"{path}.{match['name']}".lstrip(".")
    return f"{path or 'the value'}: {what[:1].lower()}{what[1:]}".replace("`", "")


def _compiled(root: Keyword, scalars: Mapping[str, Typed]) -> Typed:
    try:
        return _Compiler(root, scalars).typed(root, 0, ())
    except SchemaInvalid:
        raise
    except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
        raise SchemaInvalid(
            f"the JSON Schema cannot become columns, a keyword has a value of the wrong type: {error}"
        ) from error


class _Compiler:
    """Makes shapes and msgspec types of a definition, and counts the columns."""

    def __init__(self, root: Keyword, scalars: Mapping[str, Typed]) -> None:
        self._references = References(root)
        self._scalars = scalars
        self._count = 0

    def typed(self, schema: Keyword, depth: int, open_: tuple[int, ...]) -> Typed:
        """The column of a subschema; JSON text if there is no other."""
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise SchemaInvalid(f"the JSON Schema cannot become columns: it has more than {COLUMNS_MAX} of them")
        if depth > DEPTH_MAX or not isinstance(schema, dict) or id(schema) in open_:
            return _TEXT
        open_ = (*open_, id(schema))
        if isinstance(reference := schema.get("$ref"), str):
            return self.typed(self._find(reference), depth, open_)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                return self._alternatives(schema, schema[keyword], depth, open_)
        if isinstance(parts := schema.get("allOf"), list):
            return self._all(schema, parts, depth, open_)
        kinds, nullable = _kinds(schema)
        if len(kinds) != 1:
            return _TEXT
        typed = self._one(kinds.pop(), schema, depth, open_)
        return Typed(typed.shape, typed.reads, nullable and typed.reads is not msgspec.Raw)

    def _one(self, kind: str, schema: Schema, depth: int, open_: tuple[int, ...]) -> Typed:
        if kind == "string":
            return _FORMATS.get(str(schema.get("format")), _STRING)
        if kind == "object":
            return self._object(schema, depth, open_)
        if kind == "array":
            if not isinstance(schema.get("items"), dict) or "prefixItems" in schema:
                return _TEXT
            item = self.typed(schema["items"], depth + 1, open_)
            return Typed(List(item.shape), GenericAlias(list, (item.hint,)))
        return self._scalars.get(kind, _TEXT)

    def _object(self, schema: Schema, depth: int, open_: tuple[int, ...]) -> Typed:
        properties = schema.get("properties")
        others = schema.get("additionalProperties")
        required = schema.get("required", [])
        if not isinstance(properties, dict) or not properties:
            if isinstance(others, dict) and others and not required and "patternProperties" not in schema:
                value = self.typed(others, depth + 1, open_)
                return Typed(Map(Shape(pa.string()), value.shape), GenericAlias(dict, (str, value.hint)))
            return _TEXT
        fields: list[tuple[str, TypeHint] | tuple[str, TypeHint, None]] = []
        renames: dict[str, str] = {}
        members = []
        for number, (name, subschema) in enumerate(properties.items()):
            typed = self.typed(subschema, depth + 1, open_)
            field = f"f{number}"
            fields.append((field, typed.hint) if name in required else (field, typed.hint, None))
            renames[field] = name
            members.append(Member(name, typed.shape, pick_each(attrgetter(field))))
        for name in required:
            if name not in properties:  # required, but not a column
                field = f"f{len(fields)}"
                fields.append((field, msgspec.Raw))
                renames[field] = name
        for name in renames.values():
            if _UNFIT_NAME.search(name):
                raise SchemaInvalid(
                    f"the JSON Schema cannot become columns: {name!r} has a character that a column name cannot have"
                )
        # kw_only: otherwise a field without a default could not follow one that has a default.
        reads = msgspec.defstruct("Value", fields, rename=renames, kw_only=True, gc=False)
        return Typed(Struct(members), reads)

    def _alternatives(self, schema: Schema, options: list[Keyword], depth: int, open_: tuple[int, ...]) -> Typed:
        rest = [option for option in options if not (isinstance(option, dict) and option.get("type") == "null")]
        if "properties" in schema or not rest:
            return _TEXT
        found = [self.typed(option, depth, open_) for option in rest]
        first = found[0]
        nullable = len(rest) < len(options) or any(typed.nullable for typed in found)
        plain = all(typed.reads is first.reads for typed in found)
        if (len(found) > 1 and not plain) or first.reads is msgspec.Raw:
            return _TEXT
        return Typed(first.shape, first.reads, nullable)

    def _all(self, schema: Schema, parts: list[Keyword], depth: int, open_: tuple[int, ...]) -> Typed:
        """allOf: one part is that part; several objects are one object with the fields of all."""
        whole = [part for part in (self._follow(part) for part in (*parts, _without(schema, "allOf"))) if part]
        if len(whole) == 1:
            return self.typed(whole[0], depth, open_)
        if not all(_kinds(part) == ({"object"}, False) and "allOf" not in part for part in whole):
            return _TEXT
        properties: Schema = {}
        required: list[str] = []
        for part in whole:
            for name, subschema in part.get("properties", {}).items():
                properties[name] = {"allOf": [properties[name], subschema]} if name in properties else subschema
            required += part.get("required", [])
        return self._object({"properties": properties, "required": required}, depth, open_)

    def _follow(self, schema: Keyword) -> Schema:
        for _ in range(DEPTH_MAX):
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
                break
            schema = self._find(schema["$ref"])
        return schema if isinstance(schema, dict) else {}

    def _find(self, reference: str) -> Keyword:
        """What a reference inside the document names."""
        found = self._references.find(reference)
        if found is None:
            raise SchemaInvalid(f"the JSON Schema cannot become columns: {reference!r} is not inside the definition")
        return found


def _without(schema: Schema, keyword: str) -> Schema:
    """The subschema without a keyword; {} if no keyword is left that decides a column."""
    rest = {name: value for name, value in schema.items() if name != keyword}
    return rest if {"type", "properties", "enum", "const", "required"} & set(rest) else {}


def _kinds(schema: Schema) -> tuple[set[str], bool]:
    """The types a value may have beside null, and whether it may be null."""
    kinds = schema.get("type")
    if kinds is None:
        if "const" in schema or isinstance(schema.get("enum"), list):
            kinds = [_KINDS[type(value)] for value in schema.get("enum", [schema.get("const")])]
        elif isinstance(schema.get("properties"), dict):
            kinds = "object"
        else:
            kinds = []
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    nullable = "null" in found
    found.discard("null")
    if found == {"integer", "number"}:
        found = {"number"}
    return found, nullable


_KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "any object",
    list: "any array",
    type(None): "null",
}
