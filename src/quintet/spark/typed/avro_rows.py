"""Decodes Avro values: all rows of a batch side by side in cursors, and row by row what cursors cannot decode.

    type                      column               |  type                           column
    null                      string, all null     |  record                         struct
    boolean                   boolean              |  array, map                     list, map<string, ...>
    int, time-millis          int32                |  enum, uuid                     string
    long, time-*, local-*     int64                |  bytes, fixed, duration         binary
    float, double             float32, float64     |  decimal (up to 38 digits)      decimal128
    date                      date32               |  [null, X], [X]                 the column of X
    timestamp-millis, -micros, -nanos (cut)        |  any other union                string: the value as JSON text,
                              timestamp us UTC     |                                 bytes in base64

A row is an error if it is not exactly one value: bytes that are left over are an error too. The cause names the field. A
record that contains itself cannot become columns, nor an array whose items take no bytes (a few bytes could announce any length).

No package that we want to depend on decodes an array of Avro values to Arrow. fastavro reads rows one by one, 0.6 million a second of CPU before
columns are made of them: it parses the definition here, and the tests compare with it.
"""

import json
from collections.abc import Callable
from functools import partial

import fastavro
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.types import DictSchema, NamedSchemas, Schema

from quintet.model.errors import SchemaInvalid
from quintet.spark.typed.avro_nodes import (
    Binary,
    Boolean,
    Cursor,
    Enum,
    FixedUuid,
    Floating,
    Integer,
    Items,
    Node,
    Null,
    Number,
    Optional,
    Record,
    Refused,
    Text,
    Union,
)
from quintet.spark.typed.columns import (
    COLUMNS_MAX,
    DEPTH_MAX,
    ITEM,
    TIMESTAMP,
    Evolution,
    Path,
    Reasons,
    Value,
    in_order,
)
from quintet.spark.typed.cursors import RowCursors

STEPS_MAX = 400  # per batch: steps through list items in few cursors, about 0.1 ms each; then such rows go one by one
DECIMAL_DIGITS_MAX = 38

_CANNOT = "the Avro schema cannot become columns"


class AvroEvolution(Evolution):
    """Aliases and defaults of the newest version's fields."""

    def __init__(self) -> None:
        self.aliases: dict[Path, tuple[str, ...]] = {}
        self.defaults: dict[Path, tuple[Node, Value]] = {}

    def names(self, path: Path) -> tuple[str, ...]:
        return (path[-1], *self.aliases.get(path, ()))

    def absent(self, path: Path, type: pa.DataType) -> pa.Scalar | None:
        if path not in self.defaults:
            return None
        node, default = self.defaults[path]
        return node.shape.build([node.default(default)])[0]


class AvroRows:
    """A compiled Avro schema."""

    def __init__(self, definition: str) -> None:
        self._named: NamedSchemas = {}
        try:
            parsed = fastavro.parse_schema(json.loads(definition), self._named)
        except UnknownType as error:
            raise SchemaInvalid(f"the Avro schema is refused: there is no type named {error.name!r}") from error
        except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SchemaInvalid(f"the Avro schema is refused: {error}") from error
        self.evolution = AvroEvolution()
        self._count = 0
        root = self._node(parsed, (), ())
        if not isinstance(root, Record):
            raise SchemaInvalid(
                f"{_CANNOT}: its root is not a record", hint="wrap it in a record, or read the topic with schema=raw"
            )
        self._root = root
        self.schema = pa.schema(list(root.shape.type))
        for node, default in self.evolution.defaults.values():
            try:
                node.shape.build([node.default(default)])
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, pa.ArrowException) as error:
                raise SchemaInvalid(f"{_CANNOT}: {default!r} is no default of its field: {error}") from error

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Reasons]:
        cursors = RowCursors.over(values, STEPS_MAX)
        columns = self._root.columns(cursors)
        cursors.refuse(cursors.pos != cursors.end)
        if cursors.ok.all():
            return columns, {}
        again = np.flatnonzero(cursors.again).tolist()
        reasons: Reasons = {
            number: partial(self._explain, values, number)
            for number in np.flatnonzero(~cursors.ok & ~cursors.again).tolist()
        }
        rows = []
        numbers = []
        for number in again:
            found = self._one(values[number].as_py())
            if isinstance(found, str):
                reasons[number] = found
            else:
                rows.append(found)
                numbers.append(number)
        good = np.flatnonzero(cursors.ok)
        columns = [column.take(pa.array(good)) for column in columns]
        if not rows:
            return columns, reasons
        slow = self._root.shape.children(rows)
        return in_order([columns, slow], [good, np.array(numbers, np.int64)]), reasons

    def _explain(self, values: pa.BinaryArray, number: int) -> str:
        found = self._one(values[number].as_py())
        return found if isinstance(found, str) else "the value: it does not fit the schema"

    def _one(self, data: bytes) -> tuple[Value, ...] | str:
        """The fields of one row, or what is wrong with it."""
        cursor = Cursor(data)
        try:
            row = self._root.one(cursor)
        except Refused as refused:
            path = "".join(reversed(getattr(refused, "__notes__", []))).lstrip(".")
            return f"{path or 'the value'}: {refused}, at byte {cursor.pos}"
        left = len(data) - cursor.pos
        return f"the value: {left} bytes are left after the last field" if left else row

    # -- the definition --------------------------------------------------------------------------------------------

    def _node(self, schema: Schema, path: Path, within: tuple[str, ...]) -> Node:
        self._count += 1
        if self._count > COLUMNS_MAX or len(path) > DEPTH_MAX:
            raise SchemaInvalid(f"{_CANNOT}: more than {COLUMNS_MAX} of them, or nested deeper than {DEPTH_MAX} levels")
        if isinstance(schema, list):
            return self._union(schema, path, within)
        if isinstance(schema, str):
            if schema in self._named:
                return self._node(self._named[schema], path, within)
            schema = {"type": schema}
        kind = schema["type"]
        logical = schema.get("logicalType")
        if kind in ("record", "error"):
            return self._record(schema, path, within)
        if kind in ("array", "map"):
            item = self._node(schema["items" if kind == "array" else "values"], (*path, ITEM), within)
            if kind == "array" and not item.least:
                raise SchemaInvalid(f"{_CANNOT}: {_say(path)} is a list of items that have no bytes")
            return Items(item, keyed=kind == "map")
        if kind == "enum":
            return Enum(schema["symbols"])
        if kind in ("bytes", "fixed"):
            size = schema["size"] if kind == "fixed" else None
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            if logical == "decimal" and isinstance(precision, int) and 0 <= scale <= precision <= DECIMAL_DIGITS_MAX:
                return Number(size, precision, scale)
            return FixedUuid() if logical == "uuid" and size == 16 else Binary(size)
        if not isinstance(kind, str) or kind in self._named:
            return self._node(kind, path, within)
        return _primitive(kind, logical)

    def _record(self, schema: DictSchema, path: Path, within: tuple[str, ...]) -> Node:
        name = schema["name"]
        if name in within:
            raise SchemaInvalid(f"{_CANNOT}: {name} contains itself, at {_say(path)}")
        if not schema["fields"]:
            raise SchemaInvalid(f"{_CANNOT}: record {name} has no fields")
        fields = []
        defaults = {}
        for field in schema["fields"]:
            here = (*path, field["name"])
            node = self._node(field["type"], here, (*within, name))
            fields.append((field["name"], node))
            if field.get("aliases"):
                self.evolution.aliases[here] = tuple(field["aliases"])
            if "default" in field:
                defaults[field["name"]] = field["default"]
                self.evolution.defaults[here] = (node, field["default"])
        return Record(fields, defaults)

    def _union(self, branches: list[Schema], path: Path, within: tuple[str, ...]) -> Node:
        types = [number for number, branch in enumerate(branches) if branch not in ("null", {"type": "null"})]
        if len(types) == 1:
            return Optional(self._node(branches[types[0]], path, within), types[0], len(branches))
        if not branches:
            raise SchemaInvalid(f"{_CANNOT}: {_say(path)} is a union of nothing")
        return Union([self._node(branch, path, within) for branch in branches])


def _say(path: Path) -> str:
    return ".".join(path).replace(f".{ITEM}", ITEM) or "the root"


def _primitive(kind: str, logical: str | None) -> Node:
    if kind == "int":
        return Integer(pa.date32() if logical == "date" else pa.int32(), int32=True)
    if kind == "long":
        if logical == "timestamp-millis":
            return Integer(TIMESTAMP, up=1000)
        if logical == "timestamp-nanos":
            return Integer(TIMESTAMP, down=1000)
        return Integer(TIMESTAMP if logical == "timestamp-micros" else pa.int64())
    if kind == "float":
        return Floating(pa.float32(), "<f4", "a float")
    if kind == "double":
        return Floating(pa.float64(), "<f8", "a double")
    plain: dict[str, Callable[[], Node]] = {"null": Null, "boolean": Boolean, "string": Text}
    return plain[kind]()
