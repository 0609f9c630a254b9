"""join: joins two topics by key, within a time of each other.

A message of the left topic meets those of the right one with the same key that are at most `within` older or newer. What
waits for its partner is bounded by time: `within` and the watermark of each side. With kind=left a message that found no
partner is published alone, once the time for one has passed.
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
    left: Annotated[str, msgspec.Meta(description="The one topic.", min_length=1)]
    right: Annotated[str, msgspec.Meta(description="The other topic.", min_length=1)]
    within: Annotated[str, msgspec.Meta(description="The most that may lie between two that belong together.")] = "10m"
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
    """Spark's stream-stream join; both sides and their watermarks are in the checkpoint."""
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
    """What a run that took all there was has read and not published."""
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
    """A value as text where it is text, as base64 where it is not: nothing is changed on its way into JSON."""
    from pyspark.sql import functions as F

    text = F.col(column).cast("string")
    return F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("base64:"), F.base64(column)))
