"""Decodes values with Confluent's prefix: which rows have one, and which version of the schema wrote them.

    | 0 | schema id, 4 bytes, the highest first | Avro or JSON                                             |
    | 0 | schema id, 4 bytes, the highest first | message indexes | Protobuf                               |
                                                  count, then as many numbers, each a zigzag varint; 0 is [0]

The ids are those of the registry that the producer asked, which is not the broker's; `ids` says which of our definitions they
mean. A row whose id is in it is read by that definition alone. All others are read like a bare value: by the newest, then by
older ones.

How `auto` decides whether a row has a prefix: no JSON text and no Protobuf message begins with a zero byte, so there that byte decides.
An Avro value may begin with one. If the id is in `ids`, the row has a prefix; if not, it is read both ways and the one that succeeds
counts. A row that can be read both ways is refused with that cause: a guess could give wrong values in silence. So that few bare values
look like prefixed ones, `auto` takes only numbers from 1 to ID_LIKELY_MAX for ids. `confluent` requires the prefix, `none` never
looks for one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.typed.columns import Columns, Ints, Reasons, Recipe, causes

MAGIC: Final = 0
PREFIX_BYTES: Final = 5
ID_LIKELY_MAX: Final = (1 << 24) - 1  # registries count from 1, or from 100,001
INDEXES_MAX: Final = 32  # message types inside each other
WITHOUT: Final = (
    "the value has no prefix: it must begin with a zero byte and the 4 bytes of a schema id (valuePrefix=confluent)"
)


@runtime_checkable
class Messages(Protocol):
    """What a Protobuf schema says about message indexes."""

    indexes: tuple[int, ...]

    def named(self, indexes: Sequence[int]) -> str: ...


class Reading(NamedTuple):
    """Rows that were read: one element of each column for each, and why some could not be."""

    columns: list[pa.Array]
    reasons: Reasons


class Prefixed:
    """A decoder of values that begin with a prefix, or may."""

    def __init__(
        self,
        inner: Columns,
        mode: str,
        by_id: dict[int, Columns],
        kind: str,
        messages: Messages | None,
        source: Recipe,
    ) -> None:
        self.schema = inner.schema
        self._inner = inner
        self._insists = mode == "confluent"
        self._either = kind == "avro" and not self._insists  # both readings are tried
        self._by_id = by_id
        self._messages = messages
        self._source = source

    def __reduce__(self) -> Recipe:
        return self._source

    def decode(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, pa.StringArray | None]:
        """As Columns.decode."""
        ids = schema_ids(values)
        marked = ids >= 0
        if self._either:
            known = np.isin(ids, list(self._by_id))
            marked &= known | ((ids > 0) & (ids <= ID_LIKELY_MAX))
        if not marked.any() and not self._insists:
            return self._inner.decode(values)
        chosen = np.flatnonzero(marked)
        behind = self._behind(values if marked.all() else values.take(pa.array(chosen)), ids[chosen])
        if self._either:
            found = self._judged(_reading(self._inner, values), behind, chosen, ids)
        else:
            rest = np.flatnonzero(~marked)
            bare = values.take(pa.array(rest))
            other = self._refused(bare) if self._insists else _reading(self._inner, bare)
            found = _joined([behind, other], [chosen, rest])
        return pa.RecordBatch.from_arrays(found.columns, schema=self.schema), causes(found.reasons, len(values))

    def _refused(self, values: pa.BinaryArray) -> Reading:
        there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        return Reading(self._nulls(len(values)), dict.fromkeys(there.tolist(), WITHOUT))

    def _nulls(self, count: int) -> list[pa.Array]:
        return [pa.nulls(count, field.type) for field in self.schema]

    def _behind(self, values: pa.BinaryArray, ids: Ints) -> Reading:
        """Decode values that all have a prefix."""
        bodies, refused = self._bodies(values)
        left = np.ones(len(values), np.bool_)
        left[list(refused)] = False
        away = np.flatnonzero(~left)
        parts = [Reading(self._nulls(len(away)), {place: refused[int(row)] for place, row in enumerate(away)})]
        numbers = [away]
        for id, decoder in self._by_id.items():
            here = np.flatnonzero(left & (ids == id))
            if here.size:
                parts.append(_reading(decoder, bodies.take(pa.array(here))))
                numbers.append(here)
                left[here] = False
        here = np.flatnonzero(left)
        parts.append(_reading(self._inner, bodies if left.all() else bodies.take(pa.array(here))))
        return _joined(parts, [*numbers, here])

    def _bodies(self, values: pa.BinaryArray) -> tuple[pa.BinaryArray, Reasons]:
        """The values without their prefixes, and a reason for each Protobuf value of another message type."""
        refused: Reasons = {}
        if self._messages is None:
            return _cut(values), refused
        bodies: list[bytes] = []
        for number, value in enumerate(values.to_pylist()):
            indexes, start = message_indexes(value)
            bodies.append(value[start:])
            if indexes != self._messages.indexes:
                refused[number] = self._other(indexes)
        return pa.array(bodies, pa.binary()), refused

    def _other(self, indexes: tuple[int, ...] | None) -> str:
        assert self._messages is not None
        if indexes is None:
            return "the value: behind the schema id there is no list of message indexes"
        return (
            f"the value: its prefix names the message {list(indexes)} ({self._messages.named(indexes)}), and the schema is that "
            f"of {list(self._messages.indexes)} ({self._messages.named(self._messages.indexes)})"
        )

    def _judged(self, bare: Reading, behind: Reading, chosen: Ints, ids: Ints) -> Reading:
        """Choose, for each row that was read both ways, the reading that counts."""
        with_it = np.ones(len(chosen), np.bool_)
        with_it[list(behind.reasons)] = False
        without = np.isin(chosen, list(bare.reasons), invert=True)
        known = np.isin(ids[chosen], list(self._by_id))
        take = np.flatnonzero(known | (with_it & ~without))
        taken = set(chosen[take].tolist())
        reasons = {row: why for row, why in bare.reasons.items() if row not in taken}
        for place in np.flatnonzero(known & ~with_it).tolist():
            reasons[int(chosen[place])] = behind.reasons[place]
        for place in np.flatnonzero(~known & with_it & without).tolist():
            reasons[int(chosen[place])] = (
                f"the value: it can be read as it is, and behind a prefix with the schema id {ids[chosen[place]]}; "
                "say which with valuePrefix=none or valuePrefix=confluent, or name the id in schemaIds"
            )
        for place in np.flatnonzero(~known & ~with_it & ~without).tolist():
            row = int(chosen[place])
            reasons[row] = partial(_both, bare.reasons[row], behind.reasons[place], int(ids[row]))
        rest = np.setdiff1d(np.arange(len(ids)), chosen[take])
        unsound = np.isin(rest, list(reasons))
        columns = _joined(
            [
                Reading([column.take(pa.array(take)) for column in behind.columns], {}),
                Reading([column.take(pa.array(rest, mask=unsound)) for column in bare.columns], {}),
            ],
            [chosen[take], rest],
        ).columns
        return Reading(columns, reasons)


def _both(bare: str | Callable[[], str], behind: str | Callable[[], str], id: int) -> str:
    words = [why if isinstance(why, str) else why() for why in (bare, behind)]
    return f"{words[0]} (and behind a prefix with the schema id {id}: {words[1]})"


def schema_ids(values: pa.BinaryArray) -> Ints:
    """The id in the prefix of each value; -1 where there is none."""
    ids = np.full(len(values), -1, np.int64)
    _, offsets, data = values.buffers()
    if not len(values) or data is None:
        return ids
    edges = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    text = np.frombuffer(data, np.uint8)
    long = np.flatnonzero(np.diff(edges) >= PREFIX_BYTES)
    starts = edges[long]
    marked = text[starts] == MAGIC
    long, starts = long[marked], starts[marked]
    found = np.zeros(len(long), np.int64)
    for byte in range(1, PREFIX_BYTES):
        found = found << 8 | text[starts + byte]
    ids[long] = found
    if values.null_count:
        ids[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return ids


def _cut(values: pa.BinaryArray) -> pa.BinaryArray:
    """Values without their first PREFIX_BYTES, which all have: prefix, rest, prefix, rest ... over the same bytes, and of
    these every second one. (Arrow's binary_slice without an end asks for less than no memory, as of pyarrow 26.0.)"""
    edges = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    pieces = np.empty(2 * len(values) + 1, np.int32)
    pieces[0::2] = edges
    pieces[1::2] = edges[:-1] + PREFIX_BYTES
    both = pa.Array.from_buffers(pa.binary(), 2 * len(values), [None, pa.py_buffer(pieces), values.buffers()[2]])
    return both.take(pa.array(np.arange(1, 2 * len(values), 2)))


def message_indexes(value: bytes) -> tuple[tuple[int, ...] | None, int]:
    """The message indexes behind a schema id, and where the message begins; None if they are malformed."""
    count, at = _zigzag(value, PREFIX_BYTES)
    if count == 0:
        return (0,), at
    if count is None or not 0 < count <= INDEXES_MAX:
        return None, at
    indexes = []
    for _ in range(count):
        index, at = _zigzag(value, at)
        if index is None or index < 0:
            return None, at
        indexes.append(index)
    return tuple(indexes), at


def _zigzag(value: bytes, at: int) -> tuple[int | None, int]:
    number = shift = 0
    while at < len(value) and shift < 35:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
    return None, at


def _reading(decoder: Columns, values: pa.BinaryArray) -> Reading:
    return Reading(*decoder.attempt(values))


def _joined(parts: Sequence[Reading], numbers: Sequence[Ints]) -> Reading:
    """The parts as one, in the order of their row numbers. Together these are all rows."""
    total = sum(map(len, numbers))
    for part, own in zip(parts, numbers, strict=True):
        if len(own) == total:
            return part
    order = pa.array(np.argsort(np.concatenate(numbers), kind="stable"))
    columns = [pa.concat_arrays(column).take(order) for column in zip(*(part.columns for part in parts), strict=True)]
    reasons = {
        int(own[row]): why for part, own in zip(parts, numbers, strict=True) for row, why in part.reasons.items()
    }
    return Reading(columns, reasons)
