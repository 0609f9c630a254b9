"""One life of the query that the Spark campaign kills: topic `in` to topic `out`, through the product's source and sink.

Not a test: tests/crash/spark.py starts it as a process of its own. The only thing added to the
product is where it dies: when the file `die` is there, the sink's commit kills the whole driver right after the broker has
answered, before Spark can write that down in its checkpoint. With `sabotage` the fence is left out: each life is a new writer.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[2]))

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from quintet.spark import session
from quintet.spark.sessions import start
from quintet.spark.source import sinks
from quintet.spark.source.options import write_options
from quintet.spark.source.source import QuintetSource
from quintet.spark.source.writer import StreamWriter
from tests.spark.machines import QUICK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class MortalWriter(StreamWriter):
    """The product's sink, and a driver that may die at the worst moment."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not os.environ["CRASH_SABOTAGE"]:
            return super().write(iterator)
        query, batch_id = sinks.batch_of_task()
        return self._stage(f"{query}-{os.environ['CRASH_LIFE']}", batch_id, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        super().commit(messages, batchId)
        folder = Path(os.environ["CRASH_FOLDER"])
        if (folder / "die").exists():
            (folder / "die").rename(folder / "died")
            for pid in (int((folder / "machine").read_text()), int(os.environ["CRASH_DRIVER"])):
                os.kill(pid, signal.SIGKILL)


class MortalSource(QuintetSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return MortalWriter(write_options(self.options), schema, overwrite)


def main() -> None:
    folder, url, rows_per_batch, trigger, shuffle, master = sys.argv[1:7]
    os.environ["CRASH_FOLDER"] = folder
    os.environ["CRASH_DRIVER"] = str(os.getpid())
    conf = {
        "spark.driver.extraJavaOptions": QUICK,
        "spark.sql.shuffle.partitions": "3",
    }
    spark = session(master, conf=conf)
    machine = start.machine()
    assert machine is not None, "a local master is launched directly"
    Path(folder, "machine").write_text(str(machine.process.pid))
    spark.dataSource.register(MortalSource)
    frame: DataFrame = (
        spark.readStream.format("quintet")
        .options(url=url, subscribe="in", startingOffsets="earliest", maxOffsetsPerTrigger=rows_per_batch)
        .load()
        .select("key", "value")
    )
    if shuffle == "yes":  # then the tasks of a replayed batch hold other rows than those of the first try
        frame = frame.repartition(3)
    writer = (
        frame.writeStream.format("quintet")
        .options(url=url, topic="out", checkpointLocation=f"{folder}/checkpoint")
        .queryName("crash")
    )
    query = (
        writer.trigger(availableNow=True) if trigger == "now" else writer.trigger(processingTime="0 seconds")
    ).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()
