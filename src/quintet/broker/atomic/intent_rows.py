"""Says what a row of `__intents` holds, and encodes one; a thread that encodes a large one lets the loop run meanwhile.

A row is an array of MessagePack, and has been since the first intent: a start reads rows of every version before it. An effect
is there as its kind and a payload; in memory it is a struct of its own type. A batch is `bin` inside the row.

A row of some MiB is mostly batches. Python copies bytes with the interpreter's lock held, the kernel's `build` without it (1 MiB or
more). So `encode_unlocked` makes the little between the batches in Python and lets `build` copy all of it together.
"""

import struct
from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple, Self

import msgspec

from quintet import kernel
from quintet.broker.topics.catalog import Topic
from quintet.model import limits
from quintet.model.batch import Header, set_producer

INTENT_PRODUCER: Final = 1 << 63  # client producer ids are below
APPLIED: Final = -1  # instead of a floor: it was appended, and is not looked for
RECORD_BYTES: Final = 64  # counted for a record beside its texts, and for a header

_VALUE_DATA: Final = 5  # of `kernel.layout`
_encode: Final = msgspec.msgpack.Encoder().encode
Blob = bytes | memoryview


class Effect(msgspec.Struct, frozen=True, array_like=True):
    """Something that happens with an intent beside its appends. Each kind is a subclass; who applies it is registered by
    its type. The payload is kept on disk: a subclass may get fields at its end, with defaults, and nothing else."""

    kind: ClassVar[str] = ""

    def payload(self) -> bytes:
        return _encode(self)

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        return msgspec.msgpack.decode(payload, type=cls)


class Append(msgspec.Struct, frozen=True, array_like=True):
    """One unsealed batch for one partition; `floor` is what the partition showed when it was written, or APPLIED. Without
    `batch` it is `length` bytes at `position` of `stage`."""

    topic: str
    topic_id: int
    partition: int
    floor: int
    batch: memoryview
    stage: str = ""
    position: int = 0
    length: int = 0


class IntentRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__intents` keeps. `done` rows hold only the token, its owner and the stages that were published: the outcome,
    for who asks again, and for a start that finds the files of these stages again."""

    number: int
    token: str
    owner: str
    at: int
    done: bool
    appends: tuple[Append, ...]
    effects: tuple[tuple[str, bytes], ...]  # kind, payload
    stages: tuple[str, ...] = ()


class Records(NamedTuple):
    """The records of a batch that is not built yet: of a large one that is a thread's work."""

    values: Sequence[Blob | None]
    keys: Sequence[Blob | None]
    headers: Sequence[tuple[Header, ...]] | None = None
    timestamps: Sequence[int] | None = None
    origin: bytes = b""
    flags: int = 0
    expiries: Sequence[int] | None = None

    @property
    def size(self) -> int:
        """Its bytes as a batch, or a little more."""
        size = limits.BATCH_HEADER_BYTES + len(self.origin) + RECORD_BYTES * len(self.values)
        size += sum(len(blob) for blobs in (self.values, self.keys) for blob in blobs if blob)
        for headers in self.headers or ():
            size += sum(RECORD_BYTES + len(name) + len(value or b"") for name, value in headers)
        return size

    def build(self) -> bytearray:
        columns = (self.values, self.keys, self.headers, self.timestamps, self.expiries)
        return kernel.build(*columns, origin=self.origin, flags=self.flags)


Batch = bytearray | Records
Adding = tuple[Topic, int, Batch]  # what is to be appended to which partition


def size_of(batch: Batch) -> int:
    return batch.size if isinstance(batch, Records) else len(batch)


def build(batch: Batch, number: int, place: int) -> bytearray:
    """The batch at this place of intent `number`."""
    built = batch.build() if isinstance(batch, Records) else batch
    set_producer(built, INTENT_PRODUCER + number, place)
    return built


def is_large(row: IntentRow) -> bool:
    """Would encoding it on the loop take too long?"""
    return sum(len(append.batch) for append in row.appends) > limits.LARGE_BYTES


def encode_unlocked(row: IntentRow) -> tuple[memoryview, IntentRow]:
    """The row as MessagePack, and the row with its batches as views of that. Called in a thread: what is in the batches
    must not change meanwhile."""
    pieces, spans, end = list[Blob](), list[tuple[int, int]](), 0
    text = bytearray(_array(len(row.__struct_fields__)))
    for field in (row.number, row.token, row.owner, row.at, row.done):
        text += _encode(field)
    text += _array(len(row.appends))
    for append in row.appends:
        text += _array(len(append.__struct_fields__))
        for field in (append.topic, append.topic_id, append.partition, append.floor):
            text += _encode(field)
        text += _bin(len(append.batch))
        spans.append((end + len(text), end + len(text) + len(append.batch)))
        if append.batch:
            pieces += [bytes(text), append.batch]
            end += len(text) + len(append.batch)
            text.clear()
        for field in (append.stage, append.position, append.length):
            text += _encode(field)
    text += _encode(row.effects) + _encode(row.stages)
    joined = _join([*pieces, bytes(text)])
    views = (
        msgspec.structs.replace(append, batch=joined[first:last])
        for append, (first, last) in zip(row.appends, spans, strict=True)
    )
    return joined, msgspec.structs.replace(row, appends=tuple(views))


def _join(pieces: Sequence[Blob]) -> memoryview:
    """Their bytes in one piece: values of a batch lie side by side, and the kernel copies them without the lock."""
    batch = kernel.build(pieces)
    begin = kernel.layout(batch)[_VALUE_DATA]
    return memoryview(batch)[begin : begin + sum(map(len, pieces))]


def _array(length: int) -> bytes:
    """The head of an array of MessagePack."""
    if length < 16:
        return struct.pack(">B", 0x90 | length)
    return struct.pack(">BH", 0xDC, length) if length < 1 << 16 else struct.pack(">BI", 0xDD, length)


def _bin(length: int) -> bytes:
    """The head of binary data."""
    if length < 1 << 8:
        return struct.pack(">BB", 0xC4, length)
    return struct.pack(">BH", 0xC5, length) if length < 1 << 16 else struct.pack(">BI", 0xC6, length)


def stored(effects: Sequence[Effect]) -> tuple[tuple[str, bytes], ...]:
    return tuple((effect.kind, effect.payload()) for effect in effects)
