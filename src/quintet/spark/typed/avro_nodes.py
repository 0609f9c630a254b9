"""Implements the nodes of an Avro schema: each reads all cursors of a batch at once, or one row with a reason for what is wrong.

    read(cursors)    an Arrow array with one element per cursor (cursors.py); cursors with invalid bytes are marked, their element is anything
    one(cursor)      a Python value of one row, or Refused; the node's `shape` makes arrays of such values

Both accept the same bytes, and the tests compare them. A node does not know its field's name: a record puts the names in front of a
reason.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.typed.columns import (
    INT64,
    Converted,
    Flags,
    Ints,
    List,
    Map,
    Member,
    Shape,
    Struct,
    Value,
    pick_each,
    places,
)
from quintet.spark.typed.cursors import RowCursors

CURSORS_FEW = 32  # cursors: a step of fewer costs more than as many rows one by one
INT32 = range(-(1 << 31), 1 << 31)


class Refused(ValueError):
    """Bytes that do not match the schema; the notes are the field names on the path to them, innermost first."""


class Cursor:
    """One row's bytes and how far they are read."""

    __slots__ = ("data", "pos")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    def take(self, size: int, what: str) -> bytes:
        taken = self.data[self.pos : self.pos + size]
        if len(taken) < size:
            raise Refused(f"{what} needs {size} bytes, {len(taken)} are left")
        self.pos += size
        return taken

    def varint(self, what: str, within: range = INT64) -> int:
        value = shift = 0
        while True:
            if self.pos >= len(self.data):
                raise Refused(f"the value ends inside {what}")
            byte = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise Refused(f"{what} has more than 64 bits")
        number = (value >> 1) ^ -(value & 1)
        if number not in within:
            raise Refused(f"{what} is {number}, which has too many bits")
        return number

    def block(self, what: str) -> bytes:
        length = self.varint(f"the length of {what}")
        if length < 0:
            raise Refused(f"the length of {what} is {length}")
        return self.take(length, what)


class Node(ABC):
    """One type of the schema. `least` is the fewest bytes a value has."""

    least = 1

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    @abstractmethod
    def read(self, cursors: RowCursors) -> pa.Array:
        """The values of all rows, side by side."""

    @abstractmethod
    def one(self, cursor: Cursor) -> Value:
        """The value of one row."""

    def default(self, value: Value) -> Value:
        """A default of the definition (JSON), as `one` would return it."""
        return value


class Null(Node):
    """No bytes; a column of nulls."""

    least = 0

    def __init__(self) -> None:
        super().__init__(Shape(pa.string()))

    def read(self, cursors: RowCursors) -> pa.Array:
        return pa.nulls(len(cursors), pa.string())

    def one(self, cursor: Cursor) -> Value:
        return None


class Boolean(Node):
    """One byte, 0 or 1."""

    def __init__(self) -> None:
        super().__init__(Shape(pa.bool_()))

    def read(self, cursors: RowCursors) -> pa.Array:
        byte = cursors.shared.data[cursors.take(1)]
        cursors.refuse(byte > 1)
        return pa.array(byte == 1)

    def one(self, cursor: Cursor) -> Value:
        byte = cursor.take(1, "a boolean")[0]
        if byte > 1:
            raise Refused(f"a boolean is 0 or 1, found {byte}")
        return byte == 1


class Integer(Node):
    """int and long, and the logical types on them: the number times `up`, or divided by `down`."""

    def __init__(self, type: pa.DataType, *, int32: bool = False, up: int = 1, down: int = 1) -> None:
        super().__init__(Shape(type))
        self._within = INT32 if int32 else range(-(INT64.stop // up), INT64.stop // up) if up > 1 else INT64
        self._what = "an int" if int32 else "a long"
        self._bits = pa.int32() if int32 else pa.int64()
        self._up = up
        self._down = down

    def read(self, cursors: RowCursors) -> pa.Array:
        value = cursors.varint()
        if self._within is not INT64:
            outside = (value < self._within.start) | (value >= self._within.stop)
            if outside.any():
                cursors.refuse(outside)
                value[outside] = 0
        if self._up > 1:
            value = value * self._up
        if self._down > 1:
            value = value // self._down
        if self._bits == pa.int32():
            return pa.array(value.astype(np.int32)).cast(self.shape.type)
        return pa.array(value).cast(self.shape.type)

    def one(self, cursor: Cursor) -> Value:
        return cursor.varint(self._what, self._within) * self._up // self._down

    def default(self, value: Value) -> Value:
        return int(value) * self._up // self._down


class Floating(Node):
    """float and double: 4 or 8 bytes, the lowest first."""

    def __init__(self, type: pa.DataType, dtype: str, what: str) -> None:
        super().__init__(Shape(type))
        self._dtype = dtype
        self._what = what
        self._unpack = struct.Struct(f"<{'f' if dtype == '<f4' else 'd'}")
        self.least = self._unpack.size

    def read(self, cursors: RowCursors) -> pa.Array:
        return pa.array(cursors.fixed(self._dtype))

    def one(self, cursor: Cursor) -> Value:
        return self._unpack.unpack(cursor.take(self.least, self._what))[0]


class Text(Node):
    """A string: a length and UTF-8."""

    def __init__(self) -> None:
        super().__init__(Shape(pa.string()))

    def read(self, cursors: RowCursors) -> pa.Array:
        return cursors.text(*cursors.block())

    def one(self, cursor: Cursor) -> Value:
        block = cursor.block("a string")
        try:
            return block.decode()
        except UnicodeDecodeError as error:
            raise Refused(f"a string is not UTF-8 at its byte {error.start}") from error


class Binary(Node):
    """bytes (`size` None: a length in front) and fixed."""

    def __init__(self, size: int | None = None, shape: Shape | None = None) -> None:
        super().__init__(shape or Shape(pa.binary()))
        self._size = size
        self.least = 1 if size is None else size

    def edges(self, cursors: RowCursors) -> tuple[Ints, Ints]:
        if self._size is None:
            return cursors.block()
        before = cursors.pos
        cursors.take(self._size)
        # A cursor with too few bytes is at its end now: the range is shorter than the type, and inside the row.
        return before, cursors.pos

    def read(self, cursors: RowCursors) -> pa.Array:
        return cursors.bytes(*self.edges(cursors))

    def one(self, cursor: Cursor) -> Value:
        return cursor.block("bytes") if self._size is None else cursor.take(self._size, "a fixed")

    def default(self, value: Value) -> Value:
        return str(value).encode("latin-1")


class Number(Binary):
    """A decimal: its unscaled value as bytes, the highest first."""

    def __init__(self, size: int | None, precision: int, scale: int) -> None:
        super().__init__(size, Converted(pa.decimal128(precision, scale), self._decimal))
        self._scale = scale
        self._limit: int = 10**precision

    def _decimal(self, data: bytes) -> Decimal:
        unscaled = int.from_bytes(data, "big", signed=True)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -self._scale))

    def _fits(self, data: bytes) -> bool:
        return abs(int.from_bytes(data, "big", signed=True)) < self._limit

    def read(self, cursors: RowCursors) -> pa.Array:
        values = super().read(cursors).to_pylist()
        for number, value in enumerate(values):
            if not self._fits(value):
                cursors.ok[number] = False
                values[number] = b""
        return self.shape.build(values)

    def one(self, cursor: Cursor) -> Value:
        data = super().one(cursor)
        if not self._fits(data):
            raise Refused(f"a decimal has more than {len(str(self._limit)) - 1} digits")
        return data


class FixedUuid(Binary):
    """A uuid in 16 bytes, as the usual text."""

    def __init__(self) -> None:
        super().__init__(16, Converted(pa.string(), _uuid))

    def read(self, cursors: RowCursors) -> pa.Array:
        values = [value if len(value) == 16 else bytes(16) for value in super().read(cursors).to_pylist()]
        return self.shape.build(values)


def _uuid(data: bytes) -> str:
    return str(UUID(bytes=data))


class Enum(Node):
    """A number that stands for a symbol."""

    def __init__(self, symbols: list[str]) -> None:
        super().__init__(Shape(pa.string()))
        self._symbols = symbols
        self._array = pa.array(symbols, pa.string())

    def read(self, cursors: RowCursors) -> pa.Array:
        index = cursors.varint()
        unknown = (index < 0) | (index >= len(self._symbols))
        cursors.refuse(unknown)
        index[unknown] = 0
        return self._array.take(pa.array(index))

    def one(self, cursor: Cursor) -> Value:
        index = cursor.varint("a symbol of an enum")
        if not 0 <= index < len(self._symbols):
            raise Refused(f"symbol {index} of an enum with {len(self._symbols)} symbols")
        return self._symbols[index]


class Record(Node):
    """Fields, one after the other."""

    shape: Struct

    def __init__(self, fields: Sequence[tuple[str, Node]], defaults: Mapping[str, Value]) -> None:
        members = [
            Member(name, node.shape, pick_each(itemgetter(number))) for number, (name, node) in enumerate(fields)
        ]
        super().__init__(Struct(members))
        self.fields = fields
        self.least = sum(node.least for _, node in fields)
        self._defaults = defaults

    def columns(self, cursors: RowCursors) -> list[pa.Array]:
        return [node.read(cursors) for _, node in self.fields]

    def read(self, cursors: RowCursors) -> pa.Array:
        return pa.StructArray.from_arrays(self.columns(cursors), fields=list(self.shape.type))

    def one(self, cursor: Cursor) -> tuple[Value, ...]:
        values: list[Value] = []
        for name, node in self.fields:
            try:
                values.append(node.one(cursor))
            except Refused as refused:
                refused.add_note(f".{name}")
                raise
        return tuple(values)

    def default(self, value: Value) -> Value:
        members = {**self._defaults, **value}
        return tuple(node.default(members[name]) for name, node in self.fields)


class Items(Node):
    """array and map (`keyed`): blocks of items, ended by an empty block.

    | count | item ... |  or  | -count | bytes of the block | item ... |     ...     | 0 |
    """

    def __init__(self, item: Node, *, keyed: bool) -> None:
        self._key = Text() if keyed else None
        super().__init__(Map(Shape(pa.string()), item.shape) if keyed else List(item.shape))
        self._item = item

    def read(self, cursors: RowCursors) -> pa.Array:
        count = len(cursors)
        left = np.zeros(count, np.int64)
        length = np.zeros(count, np.int64)
        reading = cursors.ok.copy()
        rows: list[Ints] = []
        keys: list[pa.Array] = []
        items: list[pa.Array] = []
        while True:
            self._headers(cursors, left, reading)
            active = np.flatnonzero(reading)
            if not active.size:
                break
            if active.size < CURSORS_FEW:
                cursors.shared.steps -= 1
                if cursors.shared.steps < 0:
                    cursors.leave(active)
                    break
            part = cursors.part(active)
            if self._key is not None:
                keys.append(self._key.read(part))
            items.append(self._item.read(part))
            cursors.back(active, part)
            rows.append(active)
            left[active] -= 1
            length[active] += 1
            reading &= cursors.ok
        return self._array(cursors, length, rows, keys, items)

    @staticmethod
    def _headers(cursors: RowCursors, left: Ints, reading: Flags) -> None:
        """Read the header of the next block where a block is used up; a cursor at the end of its list stops reading."""
        ended = np.flatnonzero(reading & (left == 0))
        if not ended.size:
            return
        part = cursors.part(ended)
        counts = part.varint()
        sized = np.flatnonzero(counts < 0)
        if sized.size:
            few = part.part(sized)
            few.refuse(few.varint() < 0)
            part.back(sized, few)
            counts[sized] = -counts[sized]
        part.refuse((counts < 0) | (counts > part.end - part.pos))  # every item has a byte
        cursors.back(ended, part)
        left[ended] = counts
        reading[ended] = part.ok & (counts > 0)

    def _array(
        self, cursors: RowCursors, length: Ints, rows: list[Ints], keys: list[pa.Array], items: list[pa.Array]
    ) -> pa.Array:
        offsets = pa.array(np.concatenate([[0], np.cumsum(length)]), pa.int32())
        if not rows:
            return self.shape.build([() if self._key is None else {}] * len(length))
        order = pa.array(np.argsort(np.concatenate(rows), kind="stable"))
        values = pa.concat_arrays(items).take(order)
        if self._key is None:
            return pa.ListArray.from_arrays(offsets, values, type=self.shape.type)
        names = pa.concat_arrays(keys).take(order)
        codes = names.dictionary_encode()
        owner = np.repeat(np.arange(len(length)), length)
        pairs, first = np.unique(owner * (len(codes.dictionary) + 1) + codes.indices.to_numpy(), return_index=True)
        if len(pairs) < len(owner):  # a key occurs twice: the reader of single rows keeps the last
            cursors.leave(np.delete(owner, first))
        return pa.MapArray.from_arrays(offsets, names, values, type=self.shape.type)

    def one(self, cursor: Cursor) -> Value:
        values: list[Value] = []
        names: list[str] = []
        try:
            while count := cursor.varint("the number of items of a block"):
                if count < 0:
                    count = -count
                    if cursor.varint("the number of bytes of a block") < 0:
                        raise Refused("a block has a negative number of bytes")
                if count > len(cursor.data) - cursor.pos:
                    raise Refused(f"a block of {count} items, {len(cursor.data) - cursor.pos} bytes are left")
                for _ in range(count):
                    if self._key is not None:
                        names.append(self._key.one(cursor))
                    values.append(self._item.one(cursor))
        except Refused as refused:
            refused.add_note(f"[{len(values)}]")
            raise
        return values if self._key is None else dict(zip(names, values, strict=True))

    def default(self, value: Value) -> Value:
        if self._key is None:
            return [self._item.default(item) for item in value]
        return {name: self._item.default(item) for name, item in value.items()}


class Optional(Node):
    """A union of one type and perhaps null: the type's column. `there` is the type's branch of `branches` (1 or 2)."""

    def __init__(self, node: Node, there: int, branches: int) -> None:
        super().__init__(node.shape)
        self._node = node
        self._there = there
        self._branches = branches

    def read(self, cursors: RowCursors) -> pa.Array:
        branch = cursors.varint()
        cursors.refuse((branch < 0) | (branch >= self._branches))
        there = branch == self._there
        which = np.flatnonzero(there)
        if which.size == len(cursors):
            return self._node.read(cursors)
        part = cursors.part(which)
        array = self._node.read(part)
        cursors.back(which, part)
        return array.take(places(there))

    def one(self, cursor: Cursor) -> Value:
        return self._node.one(cursor) if _branch(cursor, self._branches) == self._there else None

    def default(self, value: Value) -> Value:
        return None if value is None else self._node.default(value)


def _branch(cursor: Cursor, branches: int) -> int:
    branch = cursor.varint("the branch of a union")
    if not 0 <= branch < branches:
        raise Refused(f"branch {branch} of a union with {branches} branches")
    return branch


class Union(Node):
    """A union of several types: the value as JSON text, bytes in base64."""

    def __init__(self, branches: Sequence[Node]) -> None:
        super().__init__(Shape(pa.string()))
        self._branches = branches

    def read(self, cursors: RowCursors) -> pa.Array:
        branch = cursors.varint()
        cursors.refuse((branch < 0) | (branch >= len(self._branches)))
        found: list[str | None] = [None] * len(cursors)
        for number, node in enumerate(self._branches):
            which = np.flatnonzero(branch == number)
            if which.size:
                part = cursors.part(which)
                texts = _texts(node.read(part), part.ok)
                cursors.back(which, part)
                for row, text in zip(which.tolist(), texts, strict=True):
                    found[row] = text
        return pa.array(found, pa.string())

    def one(self, cursor: Cursor) -> Value:
        node = self._branches[_branch(cursor, len(self._branches))]
        return self._text(node, node.one(cursor))

    @staticmethod
    def _text(node: Node, value: Value) -> str | None:
        sound = np.ones(1, np.bool_)
        text = _texts(node.shape.build([value]), sound)[0]
        if not sound[0]:
            raise Refused("an instant or a date outside the years 1 to 9999")
        return text

    def default(self, value: Value) -> Value:
        return self._text(self._branches[0], self._branches[0].default(value))


def _texts(array: pa.Array, sound: Flags) -> list[str | None]:
    """The JSON text of each element that is `sound`, instants and dates as ISO 8601; an element without such a text is marked as not sound."""
    texts: list[str | None] = []
    for number, value in enumerate(array):
        text = None
        if sound[number]:
            try:
                plain = _plain(value.as_py(), array.type)
                text = None if plain is None else msgspec.json.encode(plain).decode()
            except (ValueError, OverflowError):  # Python's calendar is shorter than Arrow's
                sound[number] = False
        texts.append(text)
    return texts


def _plain(value: Value, type: pa.DataType) -> Value:
    """A value that Arrow decoded, with maps as dicts."""
    if value is None:
        return None
    if pa.types.is_map(type):
        return {name: _plain(item, type.item_type) for name, item in value}
    if pa.types.is_list(type):
        return [_plain(item, type.value_type) for item in value]
    if pa.types.is_struct(type):
        return {field.name: _plain(value[field.name], field.type) for field in type}
    return value
