"""lag: measures how far each consumer group is behind, whether it catches up, and the time from publish to commit.

The lag comes from the broker, which is asked `samples` times within `over` seconds; the trend is the slope from the first to the last
answer. The latency comes from the commits of the last `history` in `__groups`: Spark joins each with the record before the committed
offset, the newest one that the commit covers. A commit to a lower offset is left out. `__groups` is compacted, so it has only a part of
the commits of a busy group. Only administrators may read it: for others the latency is empty, and a note says why.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from quintet.flight import wire
from quintet.spark.pipelines.base import Common, Result, microseconds, pause
from quintet.spark.pipelines.lag_picture import Key, Sample, draw

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
    from pyspark.sql import DataFrame, SparkSession

    from quintet.spark.source.connection import FlightConnection

SUMMARY = "lag of consumer groups with its trend, and latency from publish to commit"
GROUPS: Final = "__groups"
COLUMNS: Final = (
    "group", "topic", "lag", "lag_seconds", "per_second", "catch_up_seconds", "p50_ms", "p95_ms", "p99_ms", "commits",
)  # fmt: skip
PERCENTILES: Final = (0.5, 0.95, 0.99)
ACCURACY: Final = 10_000  # the error of a percentile is at most 1 / this, of its rank
COMMITS: Final = (
    "group string, topic string, partition int, offset long, topic_id long, place long, committed timestamp"
)
Latency = tuple[float, float, float, int]  # of PERCENTILES, in ms, and the number of commits
# One row of __groups, as quintet.broker.consumers.group.GroupRow: topic, group, partition, owner, generation, topic_id, offset, version
GroupRow = tuple[str, str, int, str, int, int, int, int]


class Options(Common, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="Only groups of this topic.")] = ""
    group: Annotated[str, msgspec.Meta(description="Only this group.")] = ""
    samples: Annotated[int, msgspec.Meta(description="How often the lag is measured.", ge=1, le=1000)] = 3
    over: Annotated[float, msgspec.Meta(description="Over how many seconds.", ge=0, le=86_400)] = 10.0
    history: Annotated[str, msgspec.Meta(description="How far back commits are read: 10m, 1h, 7d.")] = "1h"
    picture: Annotated[str, msgspec.Meta(description="File to draw to: .png or .svg; empty: none is drawn.")] = (
        "lag.png"
    )


def run(spark: "SparkSession", options: Options) -> Result:
    """Take the samples, then compute latencies from the history of commits."""
    from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import target

    connection = FlightConnection.of(target(options.access()))
    answers = list(_answers(connection, options))
    samples = sampled(answers)
    latencies, notes = _latencies(spark, connection, options, answers[-1])
    rows = [(*key, *_standing(found), *latencies.get(key, (None, None, None, 0))) for key, found in samples.items()]
    pictures = []
    if options.picture and samples:
        pictures.append(
            draw(options.picture, samples, {key: latencies[key][:3] for key in samples if key in latencies})
        )
    return Result(
        title=f"{len(rows)} groups and topics, {len(answers)} samples",
        columns=COLUMNS,
        rows=tuple(rows),
        notes=tuple(notes),
        pictures=tuple(pictures),
    )


def _answers(connection: "FlightConnection", options: Options) -> Iterator[wire.GroupPositions]:
    begin = time.monotonic()
    for number in range(options.samples):
        due = begin + options.over * number / max(1, options.samples - 1)
        pause(max(0.0, due - time.monotonic()))
        yield connection.groups(options.topic, options.group)


def sampled(answers: Sequence[wire.GroupPositions]) -> dict[Key, list[Sample]]:
    """The lag of each group and topic: the sum over its partitions, and the seconds of its latest partition."""
    found: dict[Key, list[Sample]] = {}
    for answer in answers:
        by_key: dict[Key, list[wire.GroupPosition]] = {}
        for position in answer.positions:
            by_key.setdefault((position.group, position.topic), []).append(position)
        for key, positions in by_key.items():
            at = (answer.now_us - answers[0].now_us) / 1e6
            lag = sum(position.lag for position in positions)
            late = max(position.lag_us for position in positions) / 1e6
            found.setdefault(key, []).append(Sample(at, lag, late))
    return dict(sorted(found.items()))


def _standing(samples: Sequence[Sample]) -> tuple[int, float, float | None, float | None]:
    """Lag, lag in seconds, growth in messages per second, and seconds until it is 0 (None: never at this rate)."""
    first, last = samples[0], samples[-1]
    trend = (last.lag - first.lag) / (last.at - first.at) if last.at > first.at else None
    catch_up = 0.0 if not last.lag else last.lag / -trend if trend is not None and trend < 0 else None
    return last.lag, last.seconds, trend, catch_up


def _latencies(
    spark: "SparkSession", connection: "FlightConnection", options: Options, answer: wire.GroupPositions
) -> tuple[dict[Key, Latency], list[str]]:
    """Percentiles in milliseconds and the number of commits, by group and topic."""
    from pyspark.sql import functions as F

    if connection.topics(wire.Selection((GROUPS,))).missing:
        return {}, [f"no latency: only administrators may read the history of commits ({GROUPS})"]
    topics = {
        info.name: info for info in connection.topics(wire.Selection(tuple({p.topic for p in answer.positions}))).topics
    }
    commits = _commits(spark, options, answer.now_us, topics).cache()
    try:
        needed = commits.groupBy("topic", "partition").agg(F.min("offset").alias("low"), F.max("offset").alias("high"))
        rows = [(row["topic"], row["partition"], row["low"] - 1, row["high"]) for row in needed.collect()]
        if not rows:
            return {}, [f"no latency: no group moved forward in the last {options.history}"]
        found = _percentiles(commits, _records(spark, options, rows, topics)).collect()
    finally:
        commits.unpersist()
    latencies: dict[Key, Latency] = {}
    for row in found:
        p50, p95, p99 = (each / 1000 for each in row["latency"])
        latencies[row["group"], row["topic"]] = (p50, p95, p99, row["commits"])
    return latencies, []


def _commits(spark: "SparkSession", options: Options, now_us: int, topics: dict[str, wire.TopicInfo]) -> "DataFrame":
    """The commits to higher offsets, of topics and records that still exist."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    since_ms = (now_us - microseconds(options.history)) // 1000
    kept = [
        (info.name, number, info.id, part.first)
        for info in topics.values()
        for number, part in enumerate(info.partitions)
    ]
    places = spark.createDataFrame(kept, "topic string, partition int, topic_id long, first long")
    rows = (
        spark.read.format("quintet")
        .options(**options.access(), subscribe=GROUPS, columns="value,offset,timestamp")
        .option("startingTimestamp", str(max(0, since_ms)))
        .load()
        .mapInArrow(_unpacked(), COMMITS)
    )
    before = (
        Window.partitionBy("group", "topic", "partition").orderBy("place").rowsBetween(Window.unboundedPreceding, -1)
    )
    forward = rows.withColumn("best", F.max("offset").over(before)).where("best is null or offset > best")
    chosen = forward.where(F.col("group") == options.group) if options.group else forward
    chosen = chosen.join(F.broadcast(places), ["topic", "partition", "topic_id"]).where("offset > first")
    return chosen.select("group", "topic", "partition", "offset", "committed")


def _unpacked() -> "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]":
    """Decode MessagePack to columns. Rows that describe a group, and deleted ones, are left out."""

    def work(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        decode = msgspec.msgpack.Decoder(GroupRow).decode
        for batch in batches:
            keep, found = list[int](), list[GroupRow]()
            for number, value in enumerate(batch.column("value").to_pylist()):
                row = decode(value) if value is not None else None
                if row is not None and row[2] >= 0:
                    keep.append(number)
                    found.append(row)
            chosen = batch.take(pa.array(keep, pa.int64()))
            texts = [pa.array([row[number] for row in found], pa.string()) for number in (1, 0)]
            numbers = [pa.array([row[2] for row in found], pa.int32())]
            numbers += [pa.array([row[number] for row in found], pa.int64()) for number in (6, 5)]
            yield pa.RecordBatch.from_arrays(
                [*texts, *numbers, chosen.column("offset"), chosen.column("timestamp")],
                names=["group", "topic", "partition", "offset", "topic_id", "place", "committed"],
            )

    return work


def _records(
    spark: "SparkSession", options: Options, rows: list[tuple[str, int, int, int]], topics: dict[str, wire.TopicInfo]
) -> "DataFrame":
    """The times of the records that were committed: offsets from the lowest to the highest of each partition."""
    needed = {(topic, partition): (low, high) for topic, partition, low, high in rows}
    names = sorted({topic for topic, _ in needed})
    bounds = [
        {
            name: {
                str(number): needed.get((name, number), (part.end, part.end))[side]
                for number, part in enumerate(topics[name].partitions)
            }
            for name in names
        }
        for side in (0, 1)
    ]
    return (
        spark.read.format("quintet")
        .options(**options.access(), subscribe=",".join(names), columns="topic,partition,offset,timestamp")
        .options(startingOffsets=json.dumps(bounds[0]), endingOffsets=json.dumps(bounds[1]), failOnDataLoss="false")
        .load()
    )


def _percentiles(commits: "DataFrame", records: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as F

    settled = commits.withColumn("offset", F.col("offset") - 1)
    took = F.greatest(F.unix_micros("committed") - F.unix_micros("timestamp"), F.lit(0))
    return (
        settled.join(records, ["topic", "partition", "offset"])
        .groupBy("group", "topic")
        .agg(
            F.percentile_approx(took, list(PERCENTILES), ACCURACY).alias("latency"), F.count(F.lit(1)).alias("commits")
        )
    )
