"""A pipeline of the tests' own: Spark's counting source into nothing. It needs no topic, and fails when it is told to."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from quintet.spark.pipelines.base import Streaming

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "counts, and comes to nothing"


class Options(Streaming, kw_only=True):
    rows: Annotated[int, msgspec.Meta(description="Rows of one batch.", ge=1)] = 100
    by: Annotated[tuple[str, ...], msgspec.Meta(description="Columns.")] = ()
    fields: Annotated[dict[str, str], msgspec.Meta(description="Name to type.")] = msgspec.field(default_factory=dict)
    mode: Annotated[Literal["calm", "wild"], msgspec.Meta(description="Of no importance.")] = "calm"
    fail_once: Annotated[str, msgspec.Meta(description="A file: a batch that finds it removes it, and fails.")] = ""


def start(spark: "SparkSession", options: Options) -> list["StreamingQuery"]:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", options.rows).load()
    mine = Path(options.fail_once)

    def sink(batch: "DataFrame", _number: int) -> None:
        batch.count()  # a batch that nobody looks at has no rows
        if options.fail_once and mine.exists():
            mine.unlink()
            raise RuntimeError("the disk is on fire")

    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", options.checkpoint)
    return [writer.queryName(options.name).trigger(**options.trigger_options()).start()]
