"""Turns lists of decoded Python values into Arrow columns, for the decoders of JSON, Avro and Protobuf.

A `Shape` is one column type that Spark takes (bool, int32, int64, float32, float64, string, binary, timestamp in
microseconds UTC, date32, decimal128, list, struct, map; all nullable) with the way from decoded values to an array of it.
`Rows` is a decoder of values that are not null; `Columns` adds what all decoders do alike: null rows, rows that do not decode and rows
of older versions.
Nothing here knows JSON, Avro or Protobuf, and nothing here needs a Spark session.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

DEPTH_MAX = 32  # nested objects, arrays and records of one value, and of a definition's columns
COLUMNS_MAX = 2_000  # of one definition, nested ones counted
REASON_CHARS_MAX = 300  # of the cause of one row

INT64 = range(-(1 << 63), 1 << 63)
TIMESTAMP = pa.timestamp("us", "UTC")

Reasons = dict[int, str | Callable[[], str]]  # row -> why it does not decode, or how to find that out
# A value as a library decoded it: a number, str, tuple, msgspec Struct or Protobuf message; None is null.
Value: TypeAlias = Any
Values = Sequence[Value]
Pick = Callable[[Values], Values]  # a list of structs -> a list of one field of them
Recipe = tuple[Callable[..., object], tuple[object, ...]]  # of pickle: a function and its arguments
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Shape:
    """A column of one type; Arrow takes the decoded values as they are."""

    def __init__(self, type: pa.DataType) -> None:
        self.type = type

    def build(self, values: Values) -> pa.Array:
        """One array element per value; None is null."""
        return pa.array(values, self.type)


class Converted(Shape):
    """A column whose values a function makes from the decoded ones; None stays null."""

    def __init__(self, type: pa.DataType, convert: Callable[[Value], object]) -> None:
        super().__init__(type)
        self._convert = convert

    def build(self, values: Values) -> pa.Array:
        convert = self._convert
        return pa.array([None if value is None else convert(value) for value in values], self.type)


class Member:
    """One field of a struct: its name, its shape, and the function that picks its values out of a list of structs."""

    def __init__(self, name: str, shape: Shape, pick: Pick) -> None:
        self.name = name
        self.shape = shape
        self.pick = pick

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.shape.type)


def pick_each(get: Callable[[Value], Value]) -> Pick:
    """Picks a field by calling `get` with each struct."""
    return lambda values: list(map(get, values))


class Struct(Shape):
    """A struct, built child by child, without a dict per row."""

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__(pa.struct([member.field for member in members]))
        self.members = members

    def children(self, values: Values) -> list[pa.Array]:
        """One array per member; no value is None."""
        return [member.shape.build(member.pick(values)) for member in self.members]

    def build(self, values: Values) -> pa.Array:
        present = [value for value in values if value is not None]
        array = pa.StructArray.from_arrays(self.children(present), fields=[member.field for member in self.members])
        return array if len(present) == len(values) else array.take(_gaps(values))


class List(Shape):
    """A list of any length."""

    def __init__(self, item: Shape) -> None:
        super().__init__(pa.list_(item.type))
        self.item = item

    def build(self, values: Values) -> pa.Array:
        present = [value for value in values if value is not None]
        offsets = pa.array(accumulate(map(len, present), initial=0), pa.int32())
        items = self.item.build(list(chain.from_iterable(present)))
        array = pa.ListArray.from_arrays(offsets, items, type=self.type)
        return array if len(present) == len(values) else array.take(_gaps(values))


class Map(Shape):
    """A map; a value is a mapping. Where a message has a key twice, the last one counts."""

    def __init__(self, key: Shape, value: Shape) -> None:
        super().__init__(pa.map_(key.type, value.type))
        self.key = key
        self.value = value

    def build(self, values: Values) -> pa.Array:
        present: list[Mapping[Value, Value]] = [value for value in values if value is not None]
        offsets = pa.array(accumulate(map(len, present), initial=0), pa.int32())
        keys = self.key.build(list(chain.from_iterable(present)))
        items = self.value.build([value for mapping in present for value in mapping.values()])
        array = pa.MapArray.from_arrays(offsets, keys, items, type=self.type)
        return array if len(present) == len(values) else array.take(_gaps(values))


def _gaps(values: Values) -> pa.Array:
    """Where each value stands among those that are not None; null where it is None."""
    there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    return places(there)


def places(there: Flags) -> pa.Array:
    """Indices for `take` that put the n-th element where the n-th true is, and null elsewhere."""
    return pa.array(np.cumsum(there) - 1, pa.int64(), mask=~there)


MISFITS = (ValueError, OverflowError, pa.ArrowException)  # what `build` raises for a value that does not fit its column


def misfit(shape: Shape, value: Value) -> tuple[str, Exception] | None:
    """The path of the innermost part that does not fit its column (".a[3].b"), and the error; None if all of it fits."""
    try:
        shape.build([value])
    except MISFITS as error:
        parts: list[tuple[str, Shape, Value]] = []
        if isinstance(shape, Struct):
            parts = [(f".{member.name}", member.shape, member.pick([value])[0]) for member in shape.members]
        elif isinstance(shape, List):
            parts = [(f"[{number}]", shape.item, item) for number, item in enumerate(value)]
        elif isinstance(shape, Map):
            parts = [(f"[{key}]", shape.value, item) for key, item in value.items()]
        for place, inner, part in parts:
            found = misfit(inner, part)
            if found is not None:
                return f"{place}{found[0]}", found[1]
        return "", error
    return None


class Rows(Protocol):
    """A decoder of at least one value and no nulls.

    `decode` returns one array per field of `schema`, each with an element for every value that decoded, in their order, and the reasons
    of those that did not.
    """

    schema: pa.Schema

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Reasons]: ...


Align = Callable[[list[pa.Array], int], list[pa.Array]]  # columns of an older version, rows -> columns of the newest


class Aligned:
    """Rows of one version with the columns of another."""

    def __init__(self, rows: Rows, align: Align, schema: pa.Schema) -> None:
        self.schema = schema
        self._rows = rows
        self._align = align

    def decode(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Reasons]:
        columns, reasons = self._rows.decode(values)
        return self._align(columns, len(values) - len(reasons)), reasons


class Columns:
    """A decoder: the newest definition, and older ones for the rows that the newest does not read."""

    def __init__(self, newest: Rows, older: Sequence[tuple[Rows, Align]], source: Recipe) -> None:
        self.schema = newest.schema
        self._newest = newest
        self._older = older
        self._source = source

    def __reduce__(self) -> Recipe:
        """Pickled as its definition, which Spark's workers compile again."""
        return self._source

    def decode(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, pa.StringArray | None]:
        """A batch with a row for every value, and the causes of the rows that did not decode; None if all did."""
        columns, reasons = self.attempt(values)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), causes(reasons, len(values))

    def attempt(self, values: pa.BinaryArray) -> tuple[list[pa.Array], Reasons]:
        """The columns with an element for every value, null where it did not decode, and the reasons of those.

        A reason is not put into words here: that costs more than decoding a row, and a caller may not need it."""
        count = len(values)
        there = np.ones(count, np.bool_)
        if values.null_count:
            there = values.is_valid().to_numpy(zero_copy_only=False)
            values = values.drop_null()
        columns, reasons = self._newest.decode(values) if len(values) else (_no_rows(self.schema), {})
        if reasons and self._older:
            columns = self._try_older(values, columns, reasons)
        if not reasons and len(values) == count:
            return columns, {}
        rows = np.flatnonzero(there)
        good = there.copy()
        good[rows[list(reasons)]] = False
        index = places(good)
        return [column.take(index) for column in columns], {int(rows[row]): why for row, why in reasons.items()}

    def _try_older(self, values: pa.BinaryArray, columns: list[pa.Array], reasons: Reasons) -> list[pa.Array]:
        """The columns with the rows that an older version reads; those leave `reasons`."""
        parts = [columns]
        numbers = [np.setdiff1d(np.arange(len(values)), np.fromiter(reasons, np.int64, len(reasons)))]
        for rows, align in self._older:
            left = np.array(sorted(reasons), np.int64)
            found, still = rows.decode(values.take(pa.array(left)))
            read = np.delete(left, list(still))
            if len(read):
                parts.append(align(found, len(read)))
                numbers.append(read)
                for row in read.tolist():
                    del reasons[row]
            if not reasons:
                break
        return in_order(parts, numbers)


def causes(reasons: Reasons, count: int) -> pa.StringArray | None:
    """The reasons in words, each at its row; None if there are none."""
    if not reasons:
        return None
    found: list[str | None] = [None] * count
    for row, reason in reasons.items():
        found[row] = clip(reason if isinstance(reason, str) else reason())
    return pa.array(found, pa.string())


def _no_rows(schema: pa.Schema) -> list[pa.Array]:
    return [pa.array([], field.type) for field in schema]


def in_order(parts: list[list[pa.Array]], numbers: list[Ints]) -> list[pa.Array]:
    """Columns that were decoded in parts, as one, by the number of the row each element belongs to."""
    if len(parts) == 1:
        return parts[0]
    order = pa.array(np.argsort(np.concatenate(numbers), kind="stable"))
    return [pa.concat_arrays(column).take(order) for column in zip(*parts, strict=True)]


def clip(text: str) -> str:
    """A reason on one line, cut at its limit: it may quote bytes of a hostile message."""
    line = "".join(c if c.isprintable() else "?" for c in text[: REASON_CHARS_MAX + 1])
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 3] + "..."


WIDER = {
    (pa.int32(), pa.int64()),
    (pa.int32(), pa.float32()),
    (pa.int32(), pa.float64()),
    (pa.int64(), pa.float32()),
    (pa.int64(), pa.float64()),
    (pa.float32(), pa.float64()),
    (pa.string(), pa.binary()),
}  # what Avro's resolution calls promotion

Path = tuple[str, ...]  # names of fields from the root; the item of a list and the value of a map are ITEM
Step = Callable[[pa.Array], pa.Array]
ITEM = "[]"


class Evolution:
    """The rules of a kind of schema for fields that an older version lacks, or has under another name."""

    def names(self, path: Path) -> tuple[str, ...]:
        """The names an older version may have for this field."""
        return path[-1:]

    def absent(self, path: Path, type: pa.DataType) -> pa.Scalar | None:
        """The value of this field in rows written without it; None if such rows cannot be read."""
        return pa.scalar(None, type)


def align(old: Iterable[pa.Field], new: Iterable[pa.Field], evolution: Evolution, path: Path = ()) -> Align | None:
    """A function that makes the newest version's columns of an older one's, by name; None if that is impossible."""
    before = {field.name: (number, field.type) for number, field in enumerate(old)}
    steps: list[tuple[int, Step] | pa.Scalar] = []
    for field in new:
        here = (*path, field.name)
        name = next((name for name in evolution.names(here) if name in before), None)
        if name is None:
            absent = evolution.absent(here, field.type)
            if absent is None:
                return None
            steps.append(absent)
            continue
        number, type = before[name]
        step = _step(type, field.type, evolution, here)
        if step is None:
            return None
        steps.append((number, step))

    def columns(found: list[pa.Array], rows: int) -> list[pa.Array]:
        return [step[1](found[step[0]]) if isinstance(step, tuple) else pa.repeat(step, rows) for step in steps]

    return columns


def _step(old: pa.DataType, new: pa.DataType, evolution: Evolution, path: Path) -> Step | None:
    """A function that makes one column of another: unchanged, widened, or part by part; None if that is impossible."""
    types = pa.types
    if old == new:
        return lambda array: array
    if (old, new) in WIDER:
        return lambda array: array.cast(new, safe=False)
    if types.is_struct(old) and types.is_struct(new):
        members = align(old, new, evolution, path)
        if members is None:
            return None
        fields = list(new)

        def struct(array: pa.Array) -> pa.Array:
            children = members(array.flatten(), len(array))
            return pa.StructArray.from_arrays(children, fields=fields).take(_validity(array))

        return struct
    if types.is_list(old) and types.is_list(new):
        item = _step(old.value_type, new.value_type, evolution, (*path, ITEM))
        if item is None:
            return None
        return lambda array: pa.ListArray.from_arrays(array.offsets, item(array.values), type=new).take(
            _validity(array)
        )
    if types.is_map(old) and types.is_map(new) and old.key_type == new.key_type:
        value = _step(old.item_type, new.item_type, evolution, (*path, ITEM))
        if value is None:
            return None
        return lambda array: pa.MapArray.from_arrays(array.offsets, array.keys, value(array.items), type=new).take(
            _validity(array)
        )
    return None


def _validity(array: pa.Array) -> pa.Array:
    """Indices that `take` every element as it is, and null where `array` is null."""
    there = array.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(np.arange(len(array)), pa.int64(), mask=~there)
