"""Finds the first record of a partition, at or after an offset, whose time is at or after a moment.

The partition's index gives a lower bound; from there batches are read, from memory or from disk, at most READ_BYTES at a
time, and only those whose newest record is late enough are looked into.
"""

from collections.abc import Sequence
from typing import Final

from quintet.log.base import Partition
from quintet.model.batch import RecordBatch
from quintet.model.tasks import Promise, gather

READ_BYTES: Final = 256 << 10
EVER: Final = -(1 << 63)  # earlier than any record


def fetch_from(partition: Partition, offset: int, bytes_max: int) -> Promise[list[RecordBatch]]:
    """Batches from this offset on that are not in memory."""
    fetched: Promise[list[RecordBatch]] = Promise()
    partition.fetch(offset, bytes_max, fetched.done)
    return fetched


async def read_from(partition: Partition, offset: int, bytes_max: int) -> list[RecordBatch]:
    """Batches from this offset on, from memory or from disk."""
    batches = partition.read(offset, bytes_max)
    return await fetch_from(partition, offset, bytes_max) if batches is None else batches


async def seek(partition: Partition, offset: int, timestamp: int) -> tuple[int, int] | None:
    """(offset, timestamp in microseconds) of the record; None if there is none."""
    offset = max(offset, partition.start)
    if timestamp != EVER:
        offset = max(offset, partition.offset_at(timestamp))
    while offset < partition.visible:
        before = offset
        for batch in await read_from(partition, offset, READ_BYTES):
            if batch.max_timestamp >= timestamp:
                for row in batch.rows(batch.index_of(offset)):
                    if row[1] >= timestamp:
                        return row[0], row[1]
            offset = max(offset, batch.next_offset)
        if offset == before:  # the log says that nothing follows
            break
    return None


async def seek_all(partitions: Sequence[Partition], timestamp: int) -> list[int]:
    """The offset of the first record of each partition at or after a moment; the end of those that have none."""
    ends = [partition.visible for partition in partitions]
    found = await gather(*(seek(partition, 0, timestamp) for partition in partitions))
    return [end if record is None else record[0] for end, record in zip(ends, found, strict=True)]
