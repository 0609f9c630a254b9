"""Keeps rows under keys in an internal topic, and folds that topic into a dict at start (decision D4).

`put` and `delete` append to the topic and change the dict at once; what they return is completed when the change is durable,
or with the error after it was taken back. At start `load` folds what the log holds, and refuses if anything of it is lost: without
the last row of a key the one before it would count again (ADR 15). Compaction keeps the topic as small as the dict.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec

from quintet import kernel
from quintet.log.base import Partition, TopicSpec
from quintet.model.errors import CorruptData
from quintet.model.tasks import Promise

T = TypeVar("T", bound=msgspec.Struct)
Done = Callable[[Exception | None], None]

TABLE_SEGMENT_BYTES = 4 << 20
FOLLOWED_BYTES = 1 << 20  # read at a time by `follow`


class TableLog(Protocol):
    """What a table needs of a log."""

    def open_topic(self, spec: TopicSpec) -> list[Partition]: ...

    def check_sound(self, topic_id: int, name: str) -> None: ...


class Table(Generic[T]):
    """One internal topic whose records are `key -> JSON of T` (`packed`: MessagePack, for rows that hold payloads); a
    null value deletes."""

    def __init__(self, log: TableLog, topic_id: int, name: str, kind: type[T], *, packed: bool = False) -> None:
        spec = TopicSpec(id=topic_id, name=name, compact=True, segment_bytes=TABLE_SEGMENT_BYTES)
        self.name = name
        self._log = log
        self._partition: Partition = log.open_topic(spec)[0]
        self._decode: Callable[[bytes], T] = (msgspec.msgpack if packed else msgspec.json).Decoder(kind).decode
        self._encode: Callable[[T], bytes] = (msgspec.msgpack if packed else msgspec.json).Encoder().encode
        self._rows: dict[bytes, T] = {}
        self._deleted: set[bytes] = set()
        self._kept = True
        self._followed = -1  # the offset that `follow` reads next; -1: it was not called yet
        self.changed: Callable[[bytes], None] | None = None  # told of a key when its change is durable or taken back

    @property
    def partition(self) -> Partition:
        """The topic, to be read."""
        return self._partition

    def load(self) -> None:
        """Fold the whole topic. Blocks: only used at start. Raises TableDamaged."""
        offset = self._partition.start
        while offset < self._partition.visible:
            batches = self._partition.read_now(offset)
            if not batches:
                break
            for batch in batches:
                for _, _, key, value, _, _, _ in batch.rows():
                    self._fold(key or b"", value)
                offset = batch.next_offset
        self._log.check_sound(self._partition.topic_id, f"table {self.name}")

    def follow(self) -> dict[bytes, T | None]:
        """Fold what another node wrote since the last call, or since the beginning: the rows that changed, None for those that are gone.
        Reads from disk what is not in memory. Raises TableDamaged."""
        partition, changed = self._partition, dict[bytes, T | None]()
        if self._followed == partition.visible:
            return changed
        offset = max(self._followed, partition.start)
        while offset < partition.visible:
            batches = partition.read(offset, FOLLOWED_BYTES)
            if batches is None:
                batches = partition.read_now(offset)
            if not batches:
                break
            for batch in batches:
                for at, _, key, value, _, _, _ in batch.rows():
                    if at >= offset:
                        changed[key or b""] = None if value is None else self._decoded(key or b"", value)
                offset = batch.next_offset
        self._log.check_sound(partition.topic_id, f"table {self.name}")
        self._followed = partition.visible
        for key, row in changed.items():
            self._set(key, row)
        return changed

    # -- rows of another broker's table (ADR 48) ---------------------------------------------------------------------

    def encoded(self, key: bytes) -> bytes | None:
        """A row as `take` wants it; None: there is none."""
        row = self._rows.get(key)
        return None if row is None else self._encode(row)

    def all_keys(self) -> list[bytes]:
        return list(self._rows)

    def take(self, rows: Mapping[bytes, bytes | None], whole: bool) -> list[bytes]:
        """Be what another table is, in memory alone: these rows, None for those that are gone. whole: and no others. The keys of rows that
        are others now, those that are gone first."""
        gone = [key for key in self._rows if rows.get(key, None if whole else b"") is None]
        fresh = {key: self._decoded(key, value) for key, value in rows.items() if value is not None}
        changed = [key for key, row in fresh.items() if self._rows.get(key) != row]
        for key in gone:
            del self._rows[key]
        self._rows |= fresh
        return gone + changed

    def take_rows(self) -> Iterator[T]:
        """Each row, which is then the caller's to keep: from now on the table only writes, and nothing can be asked of it."""
        self._kept = False
        for key in list(self._rows):
            yield self._rows.pop(key)
        self._rows = {}  # without the room it had

    def deleted(self) -> set[bytes]:
        """Keys whose last row said that they are gone, as far as `load` found one; for the rest of the start only."""
        return self._deleted

    def _fold(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._rows.pop(key, None)
            self._deleted.add(key)
            return
        self._deleted.discard(key)
        self._rows[key] = self._decoded(key, value)

    def _decoded(self, key: bytes, value: bytes) -> T:
        try:
            return self._decode(value)
        except msgspec.DecodeError as error:
            raise CorruptData(f"table {self.name}: the record of key {key!r} does not decode: {error}") from error

    def put(self, key: bytes, row: T) -> Promise[None]:
        return self.put_built(key, row, self.build(key, self._encode(row)))

    def delete(self, key: bytes) -> Promise[None]:
        return self.put_built(key, None, self.build(key, None))

    def delete_many(self, keys: Sequence[bytes], done: Done) -> None:
        """All of them in one batch, in this order."""
        batch = kernel.build([None] * len(keys), list(keys), origin=b"quintet:broker")
        before = {key: self._rows[key] for key in keys if key in self._rows}

        def appended(_offset: int, error: Exception | None) -> None:
            if error is not None:
                self._rows = before | self._rows  # what was written again meanwhile stays
            for key in keys:
                self._tell(key)
            done(error)

        self._partition.append(batch, appended)
        for key in keys:
            self._rows.pop(key, None)

    @staticmethod
    def build(key: bytes, value: bytes | memoryview | None) -> bytearray:
        """The batch of an encoded row: of a large one a thread may make it."""
        return kernel.build([value], [key], origin=b"quintet:broker")

    def put_built(self, key: bytes, row: T | None, batch: bytearray) -> Promise[None]:
        """As `put`, of a row that is in this batch already."""
        durable: Promise[None] = Promise()
        self._partition.append(batch, partial(self._appended, key, self._rows.get(key), row, durable))
        self._set(key, row)
        return durable

    def _appended(
        self, key: bytes, before: T | None, row: T | None, durable: Promise[None], _offset: int, error: Exception | None
    ) -> None:
        """Durable, or not: then the dict says what it said before, unless it was changed again meanwhile."""
        if error is not None and self._rows.get(key) is row:
            self._set(key, before)
        self._tell(key)
        durable.finished(error)

    def _tell(self, key: bytes) -> None:
        if self.changed is not None:
            self.changed(key)

    def _set(self, key: bytes, row: T | None) -> None:
        if not self._kept:
            return
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row

    def get(self, key: bytes) -> T | None:
        return self._rows.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)
