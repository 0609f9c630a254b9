"""Finds the first record of a partition, at or after an offset, whose time is at or after a moment.

The partition's index gives a lower bound; from there batches are read, from memory or from disk, at most READ_BYTES at a
time, and only those whose newest record is late enough are looked into.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from quintet.log.base import Partition
from quintet.model.batch import RecordBatch

READ_BYTES: Final = 256 << 10
EVER: Final = -(1 << 63)  # earlier than any record

# done([offset of each partition], None), or done([], error).
Places = Callable[[list[int], Exception | None], None]
# done((offset, timestamp in microseconds), None); done(None, None) if there is none; done(None, error).
Found = Callable[[tuple[int, int] | None, Exception | None], None]


class Seek:
    """One search under way. `done` may be called before the constructor's caller goes on."""

    __slots__ = ("_done", "_offset", "_partition", "_timestamp")

    def __init__(self, partition: Partition, offset: int, timestamp: int, done: Found) -> None:
        self._partition = partition
        self._timestamp = timestamp
        self._done = done
        self._offset = max(offset, partition.start)
        if timestamp != EVER:
            self._offset = max(self._offset, partition.offset_at(timestamp))
        self._go()

    def _go(self) -> None:
        while self._offset < self._partition.visible:
            batches = self._partition.read(self._offset, READ_BYTES)
            if batches is None:
                self._partition.fetch(self._offset, READ_BYTES, self._fetched)
                return
            if self._look(batches):
                return
        self._done(None, None)

    def _fetched(self, batches: list[RecordBatch], error: Exception | None) -> None:
        if error is not None:
            self._done(None, error)
        elif not self._look(batches):
            self._go()

    def _look(self, batches: list[RecordBatch]) -> bool:
        """Whether the search is over: found, and told; or the log says that nothing follows."""
        before = self._offset
        for batch in batches:
            if batch.max_timestamp >= self._timestamp:
                for row in batch.rows(batch.index_of(self._offset)):
                    if row[1] >= self._timestamp:
                        self._done((row[0], row[1]), None)
                        return True
            self._offset = max(self._offset, batch.next_offset)
        if self._offset > before:
            return False
        self._done(None, None)
        return True


def seek_all(partitions: Sequence[Partition], timestamp: int, done: Places) -> None:
    """The first record of each partition at or after a moment; the end of those that have none. May call `done` at once."""
    places = [partition.visible for partition in partitions]
    left = len(places)

    def found(number: int, record: tuple[int, int] | None, error: Exception | None) -> None:
        nonlocal left
        if left <= 0:
            return
        left = 0 if error is not None else left - 1
        if record is not None:
            places[number] = record[0]
        if not left:
            done([] if error is not None else places, error)

    for number, partition in enumerate(partitions):
        Seek(partition, 0, timestamp, partial(found, number))
