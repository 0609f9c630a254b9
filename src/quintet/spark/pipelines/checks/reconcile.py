"""Compares an archive with its topics: whether every row of one is in the other, once, with the same key, value and time.

    1   the first and last offset of each partition of the archive            reads one column
    2   for BUCKET offsets at a time, on both sides: the number of rows, and the sum and exclusive or of their hashes
    3   only for buckets that differ: row by row; the first wrong one is reported

Each side is read once unless they differ, and Spark shuffles one row per bucket. Only offsets that both sides can have are compared:
not those that the topic's retention removed, nor those newer than the archive or older than its beginning.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from quintet.flight import wire
from quintet.spark.pipelines.base import Common

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

BUCKET: Final = 4096  # offsets
PLACE: Final = ("topic", "partition", "offset")
SAID: Final = ("key", "value", "timestamp")
KINDS: Final = ("missing", "extra", "different", "doubled")
HALF: Final = 0xFFFFFFFF  # so that the sum of a bucket cannot overflow


class Extent(msgspec.Struct, frozen=True):
    """The offsets of one partition to compare, and how many rows of the topic are older or newer than the archive."""

    topic: str
    partition: int
    low: int
    high: int
    before: int
    behind: int


def reconcile(
    spark: "SparkSession",
    options: Common,
    path: str,
    format: str,
    topics: list[str],
    where: Mapping[str, str] | None = None,
) -> tuple[list[str], bool]:
    """Notes about the archive, and whether it is right. `where`: its storage.* and catalog.* options."""
    from pyspark.sql import functions as F

    from quintet.spark.lake import read

    archive = read(spark, path, format, options=where)
    lacking = [name for name in (*PLACE, *SAID) if name not in archive.columns]
    if lacking:
        return [
            f"the archive {path} cannot be compared: it has no column {', '.join(lacking)} (schema=raw keeps all)"
        ], False
    archive = archive.where(F.col("topic").isin(topics))
    extents = _extents(archive, options, topics)
    archived = [extent for extent in extents if extent.low < extent.high]
    notes = _outside(extents)
    if not archived:
        return [*notes, f"the archive {path} has no row of {', '.join(topics)} that is still in the topic"], False
    bounds = spark.createDataFrame(
        [(extent.topic, extent.partition, extent.low) for extent in archived], "topic string, partition int, low long"
    )
    there = _hashed(
        archive.join(F.broadcast(bounds), ["topic", "partition"]).where(F.col("offset") >= F.col("low")), "archive"
    )
    here = _hashed(_topic_rows(spark, options, extents, {extent.topic for extent in archived}), "topic")
    wrong = _buckets(here, "topic").join(_buckets(there, "archive"), ["topic", "partition", "bucket"], "full_outer")
    wrong = wrong.where("not (topic_rows <=> archive_rows and topic_sum <=> archive_sum and topic_xor <=> archive_xor)")
    wrong = wrong.select("topic", "partition", "bucket").cache()
    try:
        if wrong.isEmpty():
            rows = sum(extent.high - extent.low for extent in archived)
            return [*notes, f"the archive {path} agrees with the topics in {rows} offsets"], True
        found = _differences(spark, options, here.unionByName(there), wrong, topics)
    finally:
        wrong.unpersist()
    first = found["first"]
    if first is None:
        return [*notes, f"the archive {path} agrees with the topics in what retention left of them"], True
    return [
        *notes,
        f"the archive {path} is wrong: {found['missing']} rows missing, {found['extra']} extra, "
        f"{found['different']} different, {found['doubled']} more than once",
        f"the first wrong row of the archive: topic {first['topic']}, partition {first['partition']}, "
        f"offset {first['offset']}: {first['kind']}",
    ], False


def _extents(archive: "DataFrame", options: Common, topics: list[str]) -> list[Extent]:
    """The offsets to compare. The archive is read first, so all its rows are in the topic, or were."""
    from pyspark.sql import functions as F

    ends = {
        (row["topic"], row["partition"]): (row["first"], row["last"])
        for row in archive.groupBy("topic", "partition")
        .agg(F.min("offset").alias("first"), F.max("offset").alias("last"))
        .collect()
    }
    found = []
    for info in _topics(options, topics):
        for number, part in enumerate(info.partitions):
            first, last = ends.get((info.name, number), (part.end, part.end - 1))
            low, high = min(max(first, part.first), part.end), min(max(last + 1, part.first), part.end)
            found.append(Extent(info.name, number, low, max(low, high), low - part.first, part.end - max(low, high)))
    return found


def _outside(extents: list[Extent]) -> list[str]:
    before, behind = sum(extent.before for extent in extents), sum(extent.behind for extent in extents)
    notes = [f"{before} rows of the topics are older than the beginning of the archive"] if before else []
    return [*notes, f"{behind} rows of the topics are newer than the end of the archive"] if behind else notes


def _topic_rows(spark: "SparkSession", options: Common, extents: list[Extent], topics: set[str]) -> "DataFrame":
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for extent in extents:
        if extent.topic in topics:
            starts.setdefault(extent.topic, {})[str(extent.partition)] = extent.low
            ends.setdefault(extent.topic, {})[str(extent.partition)] = extent.high
    return (
        spark.read.format("quintet")
        .options(**options.access())
        .option("subscribe", ",".join(sorted(topics)))
        .option("columns", "key,value,topic,partition,offset,timestamp")
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("failOnDataLoss", "false")
        .load()
    )


def _hashed(frame: "DataFrame", side: str) -> "DataFrame":
    """Topic, partition and offset of each row, a hash of its content, and its side."""
    from pyspark.sql import functions as F

    said: list[Column] = [F.col("key").isNull(), F.col("key"), F.col("value").isNull(), F.col("value")]
    said.append(F.unix_micros("timestamp"))
    return frame.select(*PLACE, F.xxhash64(*said).alias("hash"), F.lit(side).alias("side"))


def _buckets(frame: "DataFrame", side: str) -> "DataFrame":
    from pyspark.sql import functions as F

    return frame.groupBy("topic", "partition", F.expr(f"offset div {BUCKET}").alias("bucket")).agg(
        F.count(F.lit(1)).alias(f"{side}_rows"),
        F.sum(F.col("hash").bitwiseAND(F.lit(HALF))).alias(f"{side}_sum"),
        F.bit_xor("hash").alias(f"{side}_xor"),
    )


def _differences(
    spark: "SparkSession", options: Common, rows: "DataFrame", wrong: "DataFrame", topics: list[str]
) -> "Row":
    """The rows that differ, counted by kind, and the first one; without rows that retention removed meanwhile."""
    from pyspark.sql import functions as F

    of_topic, of_archive = F.col("side") == "topic", F.col("side") == "archive"
    kinds = (
        F.when(F.expr("a = 0"), "missing").when(F.expr("t = 0"), "extra")
        .when(F.expr("said != least or said != most"), "different").when(F.expr("a > 1"), "doubled")
    )  # fmt: skip
    each = (
        rows.withColumn("bucket", F.expr(f"offset div {BUCKET}"))
        .join(F.broadcast(wrong), ["topic", "partition", "bucket"], "left_semi")
        .groupBy(*PLACE)
        .agg(
            F.count_if(of_topic).alias("t"),
            F.count_if(of_archive).alias("a"),
            F.max(F.when(of_topic, F.col("hash"))).alias("said"),
            F.min(F.when(of_archive, F.col("hash"))).alias("least"),
            F.max(F.when(of_archive, F.col("hash"))).alias("most"),
        )
        .withColumn("kind", kinds)
        .where("kind is not null")
        .cache()
    )
    try:
        each.count()  # reads now, before asking which offsets are kept
        kept = [
            (info.name, number, part.first)
            for info in _topics(options, topics)
            for number, part in enumerate(info.partitions)
        ]
        firsts = spark.createDataFrame(kept, "topic string, partition int, first long")
        found: Row = (
            each.join(F.broadcast(firsts), ["topic", "partition"])
            .where("offset >= first")
            .agg(*[F.count_if(F.col("kind") == kind).alias(kind) for kind in KINDS], F.min(F.struct(*PLACE, "kind")).alias("first"))
            .collect()[0]
        )  # fmt: skip
        return found
    finally:
        each.unpersist()


def _topics(options: Common, topics: list[str]) -> tuple[wire.TopicInfo, ...]:
    from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import target

    return FlightConnection.of(target(options.access())).topics(wire.Selection(tuple(topics))).topics
