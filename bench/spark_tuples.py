"""The peer that a Python source would be if it gave Spark tuples: the same mapped log, the same gathering, one row at a time.

It is a module of its own because Spark's workers import it by name. It takes the options of format("quintet").
"""

import datetime
from collections.abc import Iterator, Sequence

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quintet.flight import columns, wire
from quintet.log import mapped
from quintet.log.mapped import Gathered
from quintet.spark.source import reader
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import ReadOptions, read_options

NAME = "quintet_tuples"
SCHEMA = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp, origin string"
)


class TupleSource(DataSource):
    """A source for comparison only."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(read_options(self.options))


class TupleReader(DataSourceReader):
    """One task for each partition of the topic, as the real source makes them."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        link = FlightConnection.of(self._options.target)
        spans = reader.bounds(self._options, link, reader.select(self._options, link))
        return [InputPartition(part) for part in reader.locate(self._options, link, spans)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        span, _, files = partition.value
        bits = columns.bits(wire.COLUMNS)
        for gathered in mapped.read(
            files, span.id, span.partition, span.first, span.last, columns=bits, rows_max=wire.ROWS_PER_BATCH
        ):
            yield from tuples(gathered, span.topic, span.partition)


def tuples(gathered: Gathered, topic: str, partition: int) -> Iterator[tuple[object, ...]]:
    """Rows without headers and without tombstones, which is what the bench's topic has."""
    views = [memoryview(b"" if buffer is None else buffer) for buffer in gathered.buffers]
    offsets, times = views[0].cast("q"), views[1].cast("q")
    value_at, key_at, origin_at = (views[place].cast("i") for place in (3, 6, 13))
    values, keys, origins = (bytes(views[place]) for place in (4, 7, 14))
    utc = datetime.UTC
    for row in range(gathered.count):
        yield (
            keys[key_at[row] : key_at[row + 1]],
            values[value_at[row] : value_at[row + 1]],
            [],
            topic,
            partition,
            offsets[row],
            datetime.datetime.fromtimestamp(times[row] / 1e6, utc),
            origins[origin_at[row] : origin_at[row + 1]].decode(),
        )
