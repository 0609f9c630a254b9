"""join: joins two topics by key, within a time of each other.

A message of the left topic is joined with those of the right one that have the same key and are at most `within` older or newer. How
long a message is kept for a partner is bounded by `within` and the watermark of each side. With kind=left a message without a partner
is published alone when that time has passed.
"""

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from quintet.spark.pipelines.base import (
    Into,
    OnDecodeError,
    Prefix,
    ValuePrefix,
    by_now,
    quoted,
    read_stream,
    spoken,
    typed,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SUMMARY = "messages of two topics with the same key, within a time of each other"


class Options(Into, kw_only=True):
    left: Annotated[str, msgspec.Meta(description="The left topic.", min_length=1)]
    right: Annotated[str, msgspec.Meta(description="The right topic.", min_length=1)]
    within: Annotated[str, msgspec.Meta(description="How far apart in time two joined messages may be.")] = "10m"
    watermark: Annotated[str, msgspec.Meta(description="How late a message may come and still be seen.")] = "10m"
    kind: Annotated[Literal["inner", "left"], msgspec.Meta(description="left: also those without a partner.")] = "inner"
    schema: Annotated[
        Literal["raw", "registry"],
        msgspec.Meta(description="registry: with the typed columns of the registered schemas."),
    ] = "raw"
    typed_prefix: Prefix = ""
    on_decode_error: OnDecodeError = "deadletter"
    value_prefix: ValuePrefix = "auto"


def start(spark: "SparkSession", options: Options) -> list["StreamingQuery"]:
    """One query: a stream-stream join of Spark, whose state is in the checkpoint."""
    from pyspark.sql import functions as F

    left = _side(spark, options, "left", options.left)
    right = _side(spark, options, "right", options.right)
    near = F.expr(
        f"left_key = right_key AND right_time BETWEEN left_time - INTERVAL {spoken(options.within)}"
        f" AND left_time + INTERVAL {spoken(options.within)}"
    )
    how = "inner" if options.kind == "inner" else "leftOuter"
    joined = left.join(right, near, how).drop("right_key").withColumnRenamed("left_key", "key")
    return [write(joined, options)]


def waiting(options: Options, state_rows: int) -> str:
    """A sentence about messages that a run with trigger=now has read and not published."""
    if not state_rows:
        return ""
    alone = "; those that find none are published alone then" if options.kind == "left" else ""
    return (
        f"{state_rows:,} messages are kept for a partner that may still come, {options.within} (within) and "
        f"{options.watermark} (watermark) around the newest message{alone}; a later run goes on with them"
    )


def _side(spark: "SparkSession", options: Options, side: str, topic: str) -> "DataFrame":
    """One topic with its columns under the name of its side: SIDE_key, SIDE_time, SIDE (its value, or typed columns)."""
    from pyspark.sql import functions as F

    how = typed(options, options.schema)
    frame = read_stream(spark, options, topic, **how)
    own = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "origin")
    fields = [F.col(quoted(name)) for name in frame.columns if name not in own]
    value = F.struct(*fields) if fields else _text("value")
    return frame.select(
        F.col("key").alias(f"{side}_key"),
        by_now("timestamp").alias(f"{side}_time"),
        F.col("offset").alias(f"{side}_offset"),
        value.alias(side),
    ).withWatermark(f"{side}_time", spoken(options.watermark))


def _text(column: str) -> "Column":
    """A value as a string if it is UTF-8, else as base64, so that JSON does not change it."""
    from pyspark.sql import functions as F

    text = F.col(column).cast("string")
    return F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("base64:"), F.base64(column)))
