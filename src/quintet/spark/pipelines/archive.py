"""archive: copies topics into a table of Parquet, Delta or Iceberg files, exactly once.

Every record becomes a row: key, value, headers, topic, partition, offset, timestamp, origin, and the UTC day of its timestamp
in `date`, by which the table is partitioned. With schema=registry the fields of the topic's schema are columns, too. A field that a later
version of the schema adds is added to the table, and a record that does not decode goes to the dead letters instead of the archive
(on_decode_error=null keeps it in the archive, with its cause).

quintet.spark.lake makes it exactly once: the table commits batch N of this query once. The query's id is in its checkpoint: with a new
checkpoint the archive begins again, and must go to another path. restore.py publishes an archive again.
"""

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from quintet.flight.wire import COLUMNS, Selection
from quintet.spark import lake
from quintet.spark.pipelines.base import (
    Catalog,
    OnDecodeError,
    Prefix,
    SchemaIds,
    Storage,
    Streaming,
    ValuePrefix,
    lake_options,
    loss,
    read_stream,
    started,
    topic_list,
    typed,
)
from quintet.spark.pipelines.replay import note_partitions
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "topics into a Parquet, Delta or Iceberg table, exactly once"
DATE: Final = "date"
DECODE_ERROR: Final = "decode_error"
# The UTC day, whatever the time zone of the session. A time outside the years 1 to 9999 has the first or last day of these, because
# its own cannot be written as the name of a directory.
DAYS: Final = (-719_162, 2_932_896)
DAY: Final = (
    "date_from_unix_date(cast(greatest(least("
    f"floor(unix_micros(timestamp) / 86400000000), {DAYS[1]}), {DAYS[0]}) as int))"
)


class Options(Streaming, kw_only=True):
    topics: Annotated[str, msgspec.Meta(description="The topics to archive: a,b,c.", min_length=1)]
    path: Annotated[
        str,
        msgspec.Meta(
            description="Where the table is: s3://, gs://, abfss://, or a directory all executors see.", min_length=1
        ),
    ]
    format: Annotated[Literal["parquet", "delta", "iceberg"], msgspec.Meta(description="What kind of table it is.")] = (
        "parquet"
    )
    partition_by: Annotated[str, msgspec.Meta(description="Partition columns: a,b; empty for none.")] = "date,topic"
    schema: Annotated[
        Literal["raw", "registry"],
        msgspec.Meta(description="registry: the fields of the topic's schema as columns, too."),
    ] = "raw"
    typed_prefix: Prefix = ""
    on_decode_error: OnDecodeError = "deadletter"
    value_prefix: ValuePrefix = "auto"
    schema_ids: SchemaIds = ""
    compact_every: Annotated[
        int, msgspec.Meta(description="Merge small files after so many batches; 0: never.", ge=0)
    ] = 100
    storage: Storage = msgspec.field(default_factory=dict)
    catalog: Catalog = msgspec.field(default_factory=dict)
    target_mb: Annotated[int, msgspec.Meta(description="Size of a merged file, in MiB.", ge=1, le=4096)] = 128


def start(spark: "SparkSession", options: Options) -> list["StreamingQuery"]:
    """One query from the topics to the table."""
    from pyspark.sql import functions as F

    names = topic_list(options.topics)
    if not names:
        raise ValueError("topics names no topic; write topics=a,b,c")
    how = typed(options, options.schema)
    wanted = (*COLUMNS, *((DECODE_ERROR,) if how.get("onDecodeError") == "null" else ()))
    frame = read_stream(spark, options, ",".join(names), columns=",".join(wanted), **how)
    if DATE in frame.columns:
        raise ValueError(
            "the topic's schema has a field `date`, as the archive has; write typed_prefix=, for instance v_"
        )
    table = {"path": options.path, "format": options.format, "partitionBy": options.partition_by}
    table |= lake_options(options)
    table |= {
        "failOnDataLoss": loss(options),
        "compactEvery": str(options.compact_every),
        "targetBytes": str(options.target_mb << 20),
    }
    known = FlightConnection.of(target(options.access())).topics(Selection(tuple(names))).topics
    note_partitions(
        lake.directory(options.path, lake_options(options)), {info.name: len(info.partitions) for info in known}
    )
    writer = frame.withColumn(DATE, F.expr(DAY)).writeStream.format(lake.FORMAT).options(**table)
    return [started(writer, options, "append")]
