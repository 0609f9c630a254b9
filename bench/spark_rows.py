"""The rows that the Spark loads read and write: made from a seed, incompressible, and put into a topic over Flight.

Every side reads the same rows: Parquet and Kafka get theirs out of the topic. Values are random bytes, so that no format wins by
packing them. A key lies in one partition only, as it does when a broker chooses the partition by the key.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.bench.wire import BenchError
from quintet.flight import wire
from quintet.spark.source.connection import FlightConnection

PARTITIONS = 4
VALUE_BYTES = 100
KEYS = 4_000  # distinct ones
KEY_BYTES = 8
BATCH_ROWS = 10_000  # of a record batch, as Spark itself makes them
STAGE_ROWS = 500_000  # of one commit
FIRST_US = 1_790_000_000_000_000  # the time of the first row; the others follow, a millisecond apart
STEP_US = 1_000
SEED = 4

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("partition", pa.int32()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


def evenly(data: bytes, count: int, size: int) -> pa.Array:
    """`count` values of `size` bytes each, cut out of `data`."""
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def batches(rows: int, size: int = VALUE_BYTES, seed: int = SEED) -> Iterator[pa.RecordBatch]:
    """The rows, the same ones for the same seed, in record batches of BATCH_ROWS."""
    chance = np.random.default_rng(seed)
    names = np.array([f"k{number:0{KEY_BYTES - 1}}".encode() for number in range(KEYS)])
    for first in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - first)
        chosen = chance.integers(0, KEYS, count)
        times = FIRST_US + STEP_US * np.arange(first, first + count, dtype=np.int64)
        columns = [
            evenly(names[chosen].tobytes(), count, KEY_BYTES),
            evenly(chance.bytes(count * size), count, size),
            pa.array((chosen % PARTITIONS).astype(np.int32)),
            pa.array(times).cast(SCHEMA.field("timestamp").type),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def load(link: FlightConnection, topic: str, rows: int) -> None:
    """Put the rows into a topic that is there and empty, as a writer of Flight does: staged, then committed."""
    kept: list[pa.RecordBatch] = []
    batch_id = 0
    for batch in batches(rows):
        kept.append(batch)
        if sum(some.num_rows for some in kept) >= STAGE_ROWS:
            _publish(link, topic, batch_id, kept)
            batch_id, kept = batch_id + 1, []
    if kept:
        _publish(link, topic, batch_id, kept)
    if (held := ends(link, topic)) != rows:
        raise BenchError(f"{topic} was given {rows} rows and has {held}. Look at the server's log.")


def _publish(link: FlightConnection, topic: str, batch_id: int, kept: list[pa.RecordBatch]) -> None:
    writer = f"bench.{topic}"
    staged = link.stage(wire.StageRequest(writer, batch_id, topic), SCHEMA, kept)
    done = link.stage_commit(wire.StageCommit(writer, batch_id, (staged.stage,), staged.rows))
    if not done.fresh or done.rows != sum(batch.num_rows for batch in kept):
        raise BenchError(
            f"batch {batch_id} of {topic} was not published as it was sent: {done}. Look at the server's log."
        )


def ends(link: FlightConnection, topic: str) -> int:
    """How many rows a topic has, all partitions together."""
    found = link.topics(wire.Selection((topic,))).topics
    return sum(part.end - part.first for info in found for part in info.partitions)
