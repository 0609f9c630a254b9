"""dedupe: publishes the first message of each id within a time to another topic, for producers that may send twice.

The id is the key, the value, a header, or a field of a JSON value. The watermark bounds the state: an id is forgotten `within` after it
was first seen, by the times of messages (a time in the future is taken as now). A message older than the newest one by more than
`within` is dropped, because it is not known any more whether it is a duplicate. A message without an id is never a duplicate.
"""

from typing import TYPE_CHECKING, Annotated

import msgspec

from quintet.spark.pipelines.base import Into, by_now, read_stream, spoken, write

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "the first message of each key or id within a time, to a clean topic"
HEADER = "header:"
FIELD = "field:"


class Options(Into, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="The topic to read.", min_length=1)]
    by: Annotated[
        str,
        msgspec.Meta(description="What tells messages apart: key, value, header:NAME or field:NAME (of a JSON value)."),
    ] = "key"
    within: Annotated[str, msgspec.Meta(description="How long an id is remembered: 10m, 1h, 1d.")] = "1h"


def start(spark: "SparkSession", options: Options) -> list["StreamingQuery"]:
    """One query: Spark's dropDuplicatesWithinWatermark, whose state is in the checkpoint."""
    from pyspark.sql import functions as F

    place = F.concat_ws("/", "topic", "partition", "offset")
    frame = (
        read_stream(spark, options, options.topic)
        .withColumn("_id", F.coalesce(F.concat(F.lit("id:"), F.hex(_identity(options.by))), place))
        .withColumn("_time", by_now("timestamp"))
        .withWatermark("_time", spoken(options.within))
        .dropDuplicatesWithinWatermark(["_id"])
    )
    kept = frame.select("key", "value", "headers", "timestamp")
    return [write(kept if options.to_topic else frame.drop("_id", "_time"), options)]


def _identity(by: str) -> "Column":
    from pyspark.sql import functions as F

    if by in ("key", "value"):
        return F.col(by)
    if by.startswith(HEADER):
        name = F.lit(by.removeprefix(HEADER))
        return F.try_element_at(F.filter("headers", lambda header: header["key"] == name), F.lit(1))["value"]
    if by.startswith(FIELD):
        path = "$." + by.removeprefix(FIELD)
        return F.encode(F.get_json_object(F.col("value").cast("string"), path), "UTF-8")
    raise ValueError(f"by={by}: write key, value, header:NAME or field:NAME")
