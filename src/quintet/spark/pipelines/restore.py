"""restore: publishes an archive (archive.py) to a topic, with keys, values, headers, times and the order of each partition.

The rows are published in slices (replay.py). Spark sorts a slice within its partitions and stages it, and the broker publishes it in
one transaction, once. A slice bounds memory and transactions, whatever the size of the archive. After a crash, a run with the same
options or the same name goes on after the last slice. A topic that does not exist is made with as many partitions as the archived one
had, and messages keep their partitions. In an existing topic they keep them if it has enough; otherwise the key decides. Each message
gets a header replayed-from, unless headers=exact. Retention removes messages by their times, so old messages need a topic that keeps
them, or times=now.
"""

import datetime
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from quintet.client.core.errors import Forbidden
from quintet.flight.wire import Selection
from quintet.model.errors import ConfigError
from quintet.spark import lake
from quintet.spark.pipelines import base
from quintet.spark.pipelines.base import Common, Result
from quintet.spark.pipelines.replay import (
    US,
    Chunk,
    Plan,
    Slice,
    chunk_rows,
    digest,
    noted_partitions,
    parse_offsets,
    parse_speed,
    recall,
    remember,
    slices,
)
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from quintet.spark.source.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from quintet.spark.lake.storage.files import Between
    from quintet.spark.lake.storage.objects import TablePath

SUMMARY = "publishes an archive to a topic, in order, with its times, once"
MARK: Final = "replayed-from"  # header: topic/partition/offset
PLANS: Final = "_quintet/restores"  # in the archive's directory
PAUSE_SECONDS_MAX: Final = 1.0  # so that a clock that was put forward is noticed
NUMBERS: Final = ("topic", "partition", "offset", "timestamp")  # columns that a plan is made of
LISTED_MAX: Final = 10  # topics that an error names
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Options(Common, kw_only=True):
    path: Annotated[str, msgspec.Meta(description="Where the archive is: s3://..., or a directory.", min_length=1)]
    topic: Annotated[str, msgspec.Meta(description="The topic to write to; to write to the original one, name it.")] = (
        ""
    )
    format: Annotated[
        Literal["", "parquet", "delta", "iceberg"], msgspec.Meta(description="Kind of table; detected if empty.")
    ] = ""
    from_topic: Annotated[str, msgspec.Meta(description="Which topic of the archive, if it has several.")] = ""
    since: Annotated[str, msgspec.Meta(description="Messages from this time on: 2026-01-31T12:00:00Z, or ms.")] = ""
    until: Annotated[str, msgspec.Meta(description="Messages before this time.")] = ""
    offsets: Annotated[str, msgspec.Meta(description="Only these offsets of each partition: FIRST:END.")] = ""
    speed: Annotated[str, msgspec.Meta(description="max; 1x, 10x of the original times; or rows a second: 500/s.")] = (
        "max"
    )
    headers: Annotated[
        Literal["marked", "exact"],
        msgspec.Meta(description="marked: with a header replayed-from; exact: as they were."),
    ] = "marked"
    times: Annotated[
        Literal["original", "now"],
        msgspec.Meta(description="original: as they were, and the topic's retention counts by them; now: new ones."),
    ] = "original"
    partitions: Annotated[
        int, msgspec.Meta(description="Of a topic that is made for it; 0: as many as the archived one had.", ge=0)
    ] = 0
    name: Annotated[
        str, msgspec.Meta(description="Name of this replay; a run of the same name goes on where it ended.")
    ] = ""
    state: Annotated[str, msgspec.Meta(description="Directory for its plan; the archive's, if empty.")] = ""
    storage: base.Storage = msgspec.field(default_factory=dict)
    catalog: base.Catalog = msgspec.field(default_factory=dict)


def run(
    spark: "SparkSession",
    options: Options,
    *,
    monotonic: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = base.pause,
) -> Result:
    """Publish the slices that were not published yet. `monotonic` and `pause` are the clock of a paced replay."""
    if not options.topic:
        raise ConfigError(
            "option topic is missing: the topic to publish to",
            hint="write topic=NAME; to publish to the original one, name that",
        )
    parse_speed(options.speed)
    source = _source(spark, options)
    selection = _selection(options, source)
    id = digest(options.name, selection)
    folder = _located(options, options.state) if options.state else _located(options, options.path) / PLANS
    plan = recall(folder, id, selection)
    connection = FlightConnection.of(target(options.access()))
    writer = f"restore-{id}"
    if plan is None and connection.fence(writer) >= 0:  # a plan is saved before anything is published
        raise ConfigError(
            "a replay of this name has begun, and its plan does not exist here: it was of another archive, had another state=, "
            "or the archive was made again",
            hint="choose another name; everything is published again then",
        )
    if plan is None:
        plan = _plan(_selected(_read(spark, options, columns=NUMBERS), options, source), options, selection)
        remember(folder, id, plan)
    done = min(connection.fence(writer) + 1, len(plan.slices))
    plan = _into(connection, options, folder, id, plan, done)
    keep = _keeps_partitions(connection, options, source, plan)
    began = monotonic() - (plan.slices[done].due_us / US if done < len(plan.slices) else 0.0)
    for batch_id, one in enumerate(plan.slices[done:], done):
        while (left := began + one.due_us / US - monotonic()) > 0:
            pause(min(left, PAUSE_SECONDS_MAX))
        _publish(spark, options, source, one, writer, batch_id, keep)
        plan = plan if plan.into else _into(connection, options, folder, id, plan, batch_id + 1)
    return _result(options, source, plan, done, keep)


def _into(connection: FlightConnection, options: Options, folder: "TablePath", id: str, plan: Plan, done: int) -> Plan:
    """The plan with the identity of its topic. The fence is in the log, so in another log nothing is published, and the replay begins
    again. ConfigError if the topic was deleted since: its slices are gone, although the fence counts them as published."""
    from quintet.spark.source.writer import topic_there  # needs pyspark, which --help does without

    there = topic_there(connection, options.topic)
    before = Sink("topic", options.topic, plan.into)
    if done and before.log == there.log and before.part != there.part:
        raise ConfigError(
            f"{done} of {len(plan.slices)} transactions of this replay went into a topic {options.topic} that was deleted since",
            hint="choose another name; everything is published again then",
        )
    if not there.part or plan.into == there.identity:
        return plan
    plan = msgspec.structs.replace(plan, into=there.identity)
    remember(folder, id, plan)
    return plan


def _located(options: Options, path: str) -> "TablePath":
    return lake.directory(path, base.lake_options(options))


def _read(
    spark: "SparkSession", options: Options, columns: Sequence[str] = (), between: "Between | None" = None
) -> "DataFrame":
    where = base.lake_options(options)
    return lake.read(spark, options.path, options.format, between=between, columns=columns, options=where)


def _source(spark: "SparkSession", options: Options) -> str:
    """The topic to replay, which the options must name if the archive has several."""
    if options.from_topic:
        return options.from_topic
    frame = _read(spark, options, columns=("topic",))
    found = sorted(str(row[0]) for row in frame.select("topic").distinct().limit(LISTED_MAX + 1).collect())
    if len(found) != 1:
        listed = ", ".join(found[:LISTED_MAX]) or "no topic at all"
        raise ConfigError(f"the archive {options.path} has {listed}", hint="say which with from_topic=NAME")
    return found[0]


def _selection(options: Options, source: str) -> dict[str, str]:
    """The options that identify a replay: another run with the same ones goes on with it."""
    return {
        "path": str(_located(options, options.path)),
        "topic": options.topic,
        "from_topic": source,
        "since": options.since,
        "until": options.until,
        "offsets": options.offsets,
        "speed": options.speed,
        "headers": options.headers,
        "times": options.times,
    }


def _selected(frame: "DataFrame", options: Options, source: str) -> "DataFrame":
    from pyspark.sql import functions as F

    frame = frame.where(F.col("topic") == source)
    since, until = _moment("since", options.since), _moment("until", options.until)
    first, end = parse_offsets(options.offsets)
    if since is not None:
        frame = frame.where(F.col("timestamp") >= F.timestamp_micros(F.lit(since)))
    if until is not None:
        frame = frame.where(F.col("timestamp") < F.timestamp_micros(F.lit(until)))
    if first:
        frame = frame.where(F.col("offset") >= first)
    return frame if end is None else frame.where(F.col("offset") < end)


def _moment(name: str, text: str) -> int | None:
    """Microseconds since 1970 of ISO 8601 (without a zone: UTC), or of milliseconds."""
    if not text:
        return None
    if text.isdecimal():
        return int(text) * 1000
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"option {name}: {text!r} is not a time", hint="write 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
    when = when if when.tzinfo else when.replace(tzinfo=datetime.UTC)
    return (when - EPOCH) // datetime.timedelta(microseconds=1)


def _plan(rows: "DataFrame", options: Options, selection: dict[str, str]) -> Plan:
    """Two passes over the columns NUMBERS: how many rows there are, then the chunks."""
    from pyspark.sql import functions as F

    speed = parse_speed(options.speed)
    stamp = F.unix_micros("timestamp")
    whole = rows.agg(F.count("*"), F.count_distinct("partition"), F.min(stamp), F.max(stamp)).collect()[0]
    count, partitions, low, high = (int(value or 0) for value in whole)
    if not count:
        raise ConfigError(
            f"no row of {options.path} is of topic {selection['from_topic']} and within since, until and offsets",
            hint="choose others",
        )
    size = chunk_rows(speed, count, partitions, high - low)
    found = (
        rows.groupBy("partition", F.floor(F.col("offset") / F.lit(size)).alias("chunk"))
        .agg(F.min("offset"), F.max("offset"), F.count("*"), F.min(stamp))
        .collect()
    )
    return Plan(selection, slices((Chunk(row[0], row[2], row[3], row[4], row[5]) for row in found), speed))


def _keeps_partitions(connection: FlightConnection, options: Options, source: str, plan: Plan) -> bool:
    """Whether the topic has every partition of the archived rows. A topic that does not exist is made."""
    there = {info.name: len(info.partitions) for info in connection.topics(Selection((options.topic, source))).topics}
    needed = 1 + max(partition for one in plan.slices for partition in one.ranges)
    if options.topic in there:
        return there[options.topic] >= needed
    had = noted_partitions(_located(options, options.path)).get(source) or there.get(source, 0)
    wanted = options.partitions or max(had, needed)
    try:
        return connection.topic_create(options.topic, wanted).partitions >= needed
    except Forbidden as error:
        raise ConfigError(
            f"there is no topic {options.topic} that this user may read, and none can be made with the {wanted} partitions of {source}: {error}",
            hint=f"let somebody who may do so run: quintet topic create {options.topic} --partitions {wanted}",
        ) from None


def _publish(
    spark: "SparkSession", options: Options, source: str, one: Slice, writer: str, batch_id: int, keep: bool
) -> None:
    """Publish one slice: read only files that can contain it, sort each partition, stage, commit."""
    from pyspark.sql import functions as F

    firsts, lasts = zip(*one.ranges.values(), strict=True)
    between: Between = {"topic": (source, source), "offset": (min(firsts), max(lasts))}
    frame = _selected(_read(spark, options, between=between), options, source)
    wanted: Column = F.lit(False)
    for partition, (first, last) in one.ranges.items():
        wanted |= (F.col("partition") == partition) & F.col("offset").between(first, last)
    columns = [F.col("key"), F.col("value"), _headers(options).alias("headers")]
    if options.times == "original":
        columns.append(F.col("timestamp"))
    if keep:
        columns.append(F.col("partition"))
    (
        frame.where(wanted)
        .repartition(min(len(one.ranges), spark.sparkContext.defaultParallelism), "partition")
        .sortWithinPartitions("partition", "offset")
        .select(*columns)
        .write.format("quintet")
        .options(**options.access(), topic=options.topic, txnAppId=writer, txnVersion=str(batch_id))
        .mode("append")
        .save()
    )


def _headers(options: Options) -> "Column":
    from pyspark.sql import functions as F

    given = F.col("headers")
    if options.headers == "exact":
        return given
    place = F.encode(F.concat_ws("/", "topic", "partition", "offset"), "UTF-8")
    mark = F.array(F.struct(F.lit(MARK).alias("key"), place.alias("value")))
    return F.concat(F.coalesce(given, F.array().cast("array<struct<key:string,value:binary>>")), mark)


def _result(options: Options, source: str, plan: Plan, done: int, keep: bool) -> Result:
    fresh = plan.slices[done:]
    partitions = sorted({partition for one in plan.slices for partition in one.ranges})
    rows = []
    for partition in partitions:
        ranges = [one.ranges[partition] for one in plan.slices if partition in one.ranges]
        rows.append((partition, ranges[0][0], ranges[-1][1]))
    count = sum(one.rows for one in fresh)
    notes = [f"{count} messages in {len(fresh)} transactions now, {plan.rows - count} by earlier runs."]
    if not fresh:
        notes.append("All of it was replayed before; give this replay another name to do it again.")
    if not keep:
        notes.append(f"{options.topic} has fewer partitions than the archive, so keys decided where messages went.")
    return Result(
        title=f"{plan.rows} messages of {source} are in {options.topic}",
        columns=("partition", "first offset", "last offset"),
        rows=tuple(rows),
        notes=tuple(notes),
    )
