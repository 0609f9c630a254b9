"""From a ticket to record batches: in the thread of the call, which is never the loop's.

A durable topic is read out of its segment files, as a reader in another process would read them; a topic in memory is asked
for piece by piece. Rights are asked for at the start. A stream sees what was visible when it began: it ends by itself.

    records that are asked for and not there        fail_on_data_loss     otherwise
    below the first that is kept                    DataLost              passed over
    behind the end                                  DataLost              passed over
    taken by retention while the stream runs        DataLost              passed over
    damaged on disk                                 CorruptData           passed over
    taken by compaction, or expired                 passed over           passed over
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet import kernel
from quintet.broker.topics.seek import read_from
from quintet.flight import columns, wire
from quintet.flight.bridge import Bridge
from quintet.flight.verbs import Call, Source
from quintet.log import mapped
from quintet.log.base import Partition, SegmentFile
from quintet.log.mapped import Gathered
from quintet.model.batch import RecordBatch
from quintet.model.errors import BadRequest, DataLost, TopicNotFound

PIECE_BYTES: Final = 4 << 20  # of a memory topic, asked of the loop at a time
OFFSET_MAX: Final = (1 << 63) - 1
IN_MEMORY: Final = -1  # the seed of batches that have no checksum


@dataclass(frozen=True, slots=True)
class Plan:
    """What one stream reads: first <= offset < last of a partition that was there at its start."""

    source: Source
    partition: Partition
    first: int
    last: int
    now: int
    files: list[SegmentFile] | None  # None: it is in memory


def check(ask: wire.Ticket) -> None:
    """The fields of a ticket by themselves."""
    if not 1 <= ask.rows_per_batch <= wire.ROWS_PER_BATCH_MAX:
        raise BadRequest(f"rows_per_batch is 1 to {wire.ROWS_PER_BATCH_MAX}, not {ask.rows_per_batch}")
    if not 0 <= ask.first <= OFFSET_MAX or not -1 <= ask.last <= OFFSET_MAX:
        raise BadRequest(f"first is an offset from 0 on and last too, or -1; not {ask.first} and {ask.last}")
    strange = [name for name in ask.columns if name not in wire.COLUMNS]
    if strange or not ask.columns or len(set(ask.columns)) < len(ask.columns):
        raise BadRequest(f"columns are some of {', '.join(wire.COLUMNS)}, each at most once")


def plan(call: Call, ask: wire.Ticket) -> Plan:
    """On the loop thread: may it be read, and what is there?"""
    source = call.source(ask.topic)
    partition = source.partition(ask.partition)
    start, end = partition.start, partition.visible
    last = end if ask.last < 0 else ask.last
    if ask.fail_on_data_loss and ask.first < min(start, last):
        raise _lost(source.name, ask.partition, ask.first, start, f"the first that is kept is {start}")
    if ask.fail_on_data_loss and max(last, ask.first) > end:
        raise _lost(source.name, ask.partition, end, max(last, ask.first), f"the topic ends at {end}")
    first, last = max(ask.first, start), min(last, end)
    files = None if source.in_memory else partition.files(first, last)
    call.given(source, ask.partition, first, last)
    return Plan(source, partition, first, last, call.broker.scheduler.now(), files)


def _lost(topic: str, partition: int, first: int, last: int, why: str) -> DataLost:
    return DataLost(
        f"partition {partition} of topic {topic!r}: offsets {first} to {last - 1} are not there: {why}",
        first=first,
        last=last,
        hint="begin at what is there, or say fail_on_data_loss false to pass over what is missing",
    )


def read(bridge: Bridge, planned: Plan, ask: wire.Ticket) -> Iterator[pa.RecordBatch]:
    """The record batches."""
    found = _from_memory(bridge, planned, ask) if planned.files is None else _from_files(planned.files, planned, ask)
    for gathered in found:
        yield columns.to_batch(gathered, planned.source.name, ask.partition, ask.columns)


def _from_files(files: list[SegmentFile], planned: Plan, ask: wire.Ticket) -> Iterator[Gathered]:
    return mapped.read(
        files,
        planned.source.id,
        ask.partition,
        planned.first,
        planned.last,
        columns=columns.bits(ask.columns),
        rows_max=ask.rows_per_batch,
        bytes_max=columns.BYTES_PER_BATCH,
        now=planned.now,
        fail_on_loss=ask.fail_on_data_loss,
        name=planned.source.name,
    )


def _from_memory(bridge: Bridge, planned: Plan, ask: wire.Ticket) -> Iterator[Gathered]:
    wanted = columns.bits(ask.columns)
    offset = planned.first
    while offset < planned.last:
        batches = bridge.wait_for(partial(_piece, planned, offset, ask.fail_on_data_loss))
        if not batches:
            return
        data = b"".join(batch.buffer for batch in batches)
        position = 0
        while position < len(data) and offset < planned.last:
            count, buffers, position, offset, reason = kernel.gather(
                data, position, len(data), IN_MEMORY, offset, planned.last, ask.rows_per_batch,
                columns.BYTES_PER_BATCH, wanted, planned.now,
            )  # fmt: skip
            assert reason == 0, f"a batch in memory is unsound: {reason}"
            if count:
                yield Gathered(count, buffers)


async def _piece(planned: Plan, offset: int, fail_on_data_loss: bool) -> list[RecordBatch]:
    """On the loop thread: the batches that hold this offset and what follows."""
    topic = planned.source.topic
    if topic is not None and topic.deleted:
        raise TopicNotFound(f"topic {topic.name!r} was deleted while it was read")
    if fail_on_data_loss and offset < planned.partition.start:
        start = planned.partition.start
        raise _lost(planned.source.name, planned.partition.number, offset, start, "they went while it was read")
    return await read_from(planned.partition, max(offset, planned.partition.start), PIECE_BYTES)
