"""Values behind Confluent's prefix: which rows have one, what is behind it, and which version of the schema wrote them.

    | 0 | schema id, 4 bytes, the highest first | Avro or JSON                                             |
    | 0 | schema id, 4 bytes, the highest first | message indexes | Protobuf                               |
                                                  count, then as many numbers, each a zigzag varint; 0 is [0]

The ids are those of the registry that the producer asked, which is not the broker's; `ids` says which of our definitions they
mean. A row whose id is in it is read by that definition alone. Any other is read as a bare value is: by the newest, then by
older ones.

Whether a row has a prefix (`auto`): no JSON text and no Protobuf message begins with a zero byte, so there it decides. Avro
values may. There a row whose id is known has one; of any other, the reading that succeeds counts, and a row that can be read
both ways is refused with that cause, because a guess would be a wrong value that nobody notices. To take bare values for
prefixed ones less often, `auto` believes ids from 1 to ID_LIKELY_MAX only. `confluent` insists on the prefix, `none` never
looks for one.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.typed.columns import Columns, clip

MAGIC: Final = 0
PREFIX_BYTES: Final = 5
ID_LIKELY_MAX: Final = (1 << 24) - 1  # registries count from 1, or from 100,001
INDEXES_MAX: Final = 32  # message types inside each other
WITHOUT: Final = (
    "the value has no prefix: it must begin with a zero byte and the 4 bytes of a schema id (valuePrefix=confluent)"
)

Causes = list[str | None]
Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


class Messages(Protocol):
    """What a Protobuf schema says about message indexes."""

    indexes: tuple[int, ...]

    def named(self, indexes: Sequence[int]) -> str: ...


class Reading(NamedTuple):
    """Rows that were read: one element of each column and one cause for each."""

    columns: list[pa.Array]
    causes: Causes


class Prefixed:
    """A decoder of values that begin with a prefix, or may."""

    def __init__(
        self,
        inner: Columns,
        mode: str,
        by_id: dict[int, Columns],
        kind: str,
        messages: Messages | None,
        source: tuple[Any, ...],
    ) -> None:
        self.schema = inner.schema
        self._inner = inner
        self._insists = mode == "confluent"
        self._either = kind == "avro" and not self._insists  # both readings are tried
        self._by_id = by_id
        self._messages = messages
        self._source = source

    def __reduce__(self) -> tuple[Any, ...]:
        return self._source

    def decode(self, values: pa.BinaryArray) -> tuple[pa.RecordBatch, pa.StringArray | None]:
        """As any decoder."""
        ids = schema_ids(values)
        marked = ids >= 0
        if self._either:
            known = np.isin(ids, list(self._by_id))
            marked &= known | ((ids > 0) & (ids <= ID_LIKELY_MAX))
        if not marked.any() and not self._insists:
            return self._inner.decode(values)
        chosen = np.flatnonzero(marked)
        behind = self._behind(values, chosen, ids)
        if self._either:
            found = self._judged(_reading(self._inner, values), behind, chosen, ids)
        else:
            rest = np.flatnonzero(~marked)
            bare = values.take(pa.array(rest))
            other = self._refused(bare) if self._insists else _reading(self._inner, bare)
            found = _joined([behind, other], [chosen, rest])
        batch = pa.RecordBatch.from_arrays(found.columns, schema=self.schema)
        return batch, pa.array(found.causes, pa.string()) if any(found.causes) else None

    def _refused(self, values: pa.BinaryArray) -> Reading:
        causes: Causes = [WITHOUT if there else None for there in values.is_valid().to_pylist()]
        return Reading([pa.nulls(len(values), field.type) for field in self.schema], causes)

    def _behind(self, values: pa.BinaryArray, chosen: Numbers, ids: Numbers) -> Reading:
        """The rows `chosen`, without their prefixes."""
        bodies, causes = self._bodies(values.take(pa.array(chosen)))
        parts, numbers = [], []
        left = np.array([cause is None for cause in causes], np.bool_)
        for id, decoder in self._by_id.items():
            here = np.flatnonzero(left & (ids[chosen] == id))
            if here.size:
                parts.append(_reading(decoder, bodies.take(pa.array(here))))
                numbers.append(here)
                left[here] = False
        here = np.flatnonzero(left)
        parts.append(_reading(self._inner, bodies.take(pa.array(here))))
        numbers.append(here)
        refused = np.flatnonzero([cause is not None for cause in causes])
        if refused.size:
            nothing = [pa.nulls(len(refused), field.type) for field in self.schema]
            parts.append(Reading(nothing, [causes[number] for number in refused]))
            numbers.append(refused)
        return _joined(parts, numbers)

    def _bodies(self, values: pa.BinaryArray) -> tuple[pa.BinaryArray, Causes]:
        """What is behind the prefixes; a cause for a Protobuf value that is of another message."""
        if self._messages is None:
            return _cut(values), [None] * len(values)
        bodies: list[bytes] = []
        causes: Causes = []
        for value in values.to_pylist():
            indexes, start = message_indexes(value)
            bodies.append(value[start:])
            causes.append(None if indexes == self._messages.indexes else self._other(indexes))
        return pa.array(bodies, pa.binary()), causes

    def _other(self, indexes: tuple[int, ...] | None) -> str:
        assert self._messages is not None
        if indexes is None:
            return "the value: behind the schema id there is no list of message indexes"
        return (
            f"the value: its prefix names the message {list(indexes)} ({self._messages.named(indexes)}), and the schema is that "
            f"of {list(self._messages.indexes)} ({self._messages.named(self._messages.indexes)})"
        )

    def _judged(self, bare: Reading, behind: Reading, chosen: Numbers, ids: Numbers) -> Reading:
        """Of rows that were read both ways, the one that counts."""
        causes = list(bare.causes)
        take: list[int] = []  # places in `behind` that count
        for place, number in enumerate(chosen.tolist()):
            id, with_it, without = int(ids[number]), behind.causes[place], bare.causes[number]
            if id in self._by_id or (with_it is None and without is not None):
                take.append(place)
                causes[number] = with_it
            elif with_it is None:
                causes[number] = (
                    f"the value: it can be read as it is, and behind a prefix with the schema id {id}; "
                    "say which with valuePrefix=none or valuePrefix=confluent, or name the id in schemaIds"
                )
            elif without is not None:
                causes[number] = clip(f"{without} (and behind a prefix with the schema id {id}: {with_it})")
        rest = np.setdiff1d(np.arange(len(causes)), chosen[take])
        refused = np.array([cause is not None for cause in causes], np.bool_)
        columns = _joined(
            [
                Reading([column.take(pa.array(take, pa.int64())) for column in behind.columns], []),
                Reading([column.take(pa.array(rest, pa.int64(), mask=refused[rest])) for column in bare.columns], []),
            ],
            [chosen[take], rest],
        ).columns
        return Reading(columns, causes)


def schema_ids(values: pa.BinaryArray) -> Numbers:
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
    """The message indexes behind a schema id, and where the message begins; None if there are none that make sense."""
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
    batch, causes = decoder.decode(values)
    return Reading(batch.columns, [None] * len(values) if causes is None else causes.to_pylist())


def _joined(parts: Sequence[Reading], numbers: Sequence[Numbers]) -> Reading:
    """Parts as one, by the numbers of their rows."""
    order = np.argsort(np.concatenate(numbers), kind="stable")
    columns = [
        pa.concat_arrays(column).take(pa.array(order)) for column in zip(*(part.columns for part in parts), strict=True)
    ]
    causes = [cause for part in parts for cause in part.causes]
    return Reading(columns, [causes[place] for place in order] if causes else [])
