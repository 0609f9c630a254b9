"""deadletters: groups dead letters by topic, cause and field, and replays those that are chosen.

A dead letter is a record of a dead-letter topic; its headers quintet-dead-* have its topic, cause and error. Spark makes columns of
them, leaves out resolved letters, and groups the rest. The field is the one that the error names, as errors of schemas and decoders
do: "items[3].price: is not a number" is about items[].price.

redrive=true replays the chosen letters, oldest first, in slices. The broker publishes and resolves a slice in one step, so a run that
was interrupted can be repeated: nothing is published twice.
"""

import datetime
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

from quintet.client.core.errors import Forbidden, QuintetError
from quintet.flight import wire
from quintet.spark.pipelines.base import Common, Result, topic_list

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    from quintet.spark.source.connection import FlightConnection

SUMMARY = "dead letters by cause, topic and field, and replays them with redrive=true"
FIRST: Final = datetime.datetime.min.replace(tzinfo=datetime.UTC)
LAST: Final = datetime.datetime.max.replace(tzinfo=datetime.UTC)
EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
PREFIX: Final = "quintet-dead-"
SLICE_IDS: Final = 1_000  # of one redrive, the broker's limit
SLICE_BYTES: Final = 16 << 20  # the same, of keys and values
SAMPLE_LETTERS: Final = 200  # of an error that is shown
# "PATH: what is wrong", where PATH has no spaces; the name of an exception is not a path.
_PATH: Final = r"^(?![A-Za-z_.]*(?:Error|Exception|Warning)\b)([^\s:]+): "
_REQUIRED: Final = r'"([^"]+)" is a required property'
_SCHEMA_REJECTED: Final = "schema rejected"  # its error begins with the id of the schema


class Options(Common, kw_only=True):
    topic: Annotated[str, msgspec.Meta(description="Topics whose dead letters to look at: a,b,c. Left out: all.")] = ""
    cause: Annotated[str, msgspec.Meta(description="Only letters with this cause.")] = ""
    field: Annotated[str, msgspec.Meta(description="Only letters whose error names this field.")] = ""
    since: Annotated[str, msgspec.Meta(description="Only letters from this time on, ISO 8601.")] = ""
    until: Annotated[str, msgspec.Meta(description="Only letters before this time, ISO 8601.")] = ""
    sample: Annotated[int, msgspec.Meta(description="How many letters of each group to show.", ge=0, le=100)] = 3
    redrive: Annotated[bool, msgspec.Meta(description="Replay the chosen letters.")] = False
    limit: Annotated[int, msgspec.Meta(description="How many to replay at most.", ge=1, le=10_000_000)] = 100_000
    suffix: Annotated[str, msgspec.Meta(description="Suffix of the names of dead-letter topics.", min_length=1)] = (
        "-dlq"
    )


class Group(NamedTuple):
    """The open letters of one topic, cause and field: how many, the times of the first and last, and some of them."""

    topic: str
    cause: str
    field: str
    letters: int
    first: datetime.datetime
    last: datetime.datetime
    samples: tuple[str, ...]


class OpenLetters(msgspec.Struct, frozen=True):
    """The dead-letter topic of a topic, and the open ranges of offsets in each partition."""

    source: str
    topic: str
    open: tuple[tuple[tuple[int, int], ...], ...]


def run(spark: "SparkSession", options: Options) -> Result:
    """Group the open letters, and replay the chosen ones if redrive is true."""
    from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import target

    connection = FlightConnection.of(target(options.access()))
    found, notes = _places(connection, options)
    places = [place for place in found if any(place.open)]
    if not places:
        return Result(title="no dead letters", columns=Group._fields, notes=tuple(notes))
    chosen = _chosen(_letters(spark, options, places), options).cache()
    try:
        groups = _groups(chosen, options.sample)
        said, ok = _redrive(connection, chosen, options.limit) if options.redrive else ([], True)
    finally:
        chosen.unpersist()
    return Result(
        title=f"{sum(group.letters for group in groups)} open dead letters", columns=Group._fields, rows=tuple(groups), notes=(*notes, *said), ok=ok
    )  # fmt: skip


def _places(connection: "FlightConnection", options: Options) -> tuple[list[OpenLetters], list[str]]:
    """The topics with dead letters. A topic that the options name is asked for even if its dead-letter topic has an unusual name, and
    must be readable; if none is named, topics that the user may not read are left out."""
    names, places, notes = topic_list(options.topic), list[OpenLetters](), list[str]()
    if not options.topic:
        found = connection.topics(wire.Selection()).topics
        names = [info.name.removesuffix(options.suffix) for info in found if info.name.endswith(options.suffix)]
    for name in names:
        try:
            answer = connection.dead(name)
        except Forbidden:
            if options.topic:
                raise
            notes.append(f"left out: the dead letters of {name}, which this user may not read")
            continue
        places.append(OpenLetters(name, answer.topic, answer.open))
    return places, notes


def _letters(spark: "SparkSession", options: Options, places: Sequence[OpenLetters]) -> "DataFrame":
    """The open letters, with the headers quintet-dead-* as columns."""
    from pyspark.sql import functions as F

    bounds: list[dict[str, dict[str, int]]] = [
        {
            place.topic: {
                str(number): (ranges[0][0], ranges[-1][1])[side] if ranges else 0
                for number, ranges in enumerate(place.open)
            }
            for place in places
        }
        for side in (0, 1)
    ]
    open_ranges = [
        (place.source, place.topic, number, first, last)
        for place in places
        for number, ranges in enumerate(place.open)
        for first, last in ranges
    ]
    wanted = spark.createDataFrame(open_ranges, "source string, topic string, partition int, first long, last long")
    rows = (
        spark.read.format("quintet")
        .options(**options.access(), subscribe=",".join(place.topic for place in places))
        .options(columns="key,value,headers,topic,partition,offset,timestamp", failOnDataLoss="false")
        .options(startingOffsets=json.dumps(bounds[0]), endingOffsets=json.dumps(bounds[1]))
        .load()
    )
    died = F.timestamp_micros(F.coalesce(_dead_header("last-us").try_cast("long"), F.unix_micros("timestamp")))
    return (
        rows.join(F.broadcast(wanted), ["topic", "partition"])
        .where("offset >= first and offset < last")
        .select(
            "source",
            "partition",
            "offset",
            died.alias("died"),
            F.coalesce(_dead_header("topic") == F.col("source"), F.lit(True)).alias("own"),
            F.coalesce(_dead_header("cause"), F.lit("")).alias("cause"),
            F.coalesce(_dead_header("error"), F.lit("")).alias("error"),
            F.expr("coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)").alias("size"),
        )
        .withColumn("field", _field())
    )


def _dead_header(name: str) -> "Column":
    from pyspark.sql import functions as F

    named = F.filter("headers", lambda header: header["key"] == PREFIX + name)
    return F.get(named, 0)["value"].cast("string")


def _field() -> "Column":
    """The field that the error names, "" if it names none. Indexes of lists are left out: items[3] becomes items[]."""
    from pyspark.sql import functions as F

    error = F.when(F.col("cause") == _SCHEMA_REJECTED, F.regexp_replace("error", r"^\S+: ", "")).otherwise(
        F.col("error")
    )
    required, path = F.regexp_extract(error, _REQUIRED, 1), F.regexp_extract(error, _PATH, 1)
    named = F.when((required != "") & (path != ""), F.concat_ws(".", path, required)).when(required != "", required)
    return F.regexp_replace(named.otherwise(path), r"\[\d+\]", "[]")


def _chosen(letters: "DataFrame", options: Options) -> "DataFrame":
    from pyspark.sql import functions as F

    for name, value in (("cause", options.cause), ("field", options.field)):
        letters = letters.where(F.col(name) == value) if value else letters
    if options.since:
        letters = letters.where(F.col("died") >= _moment("since", options.since))
    if options.until:
        letters = letters.where(F.col("died") < _moment("until", options.until))
    return letters


def _moment(name: str, text: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name}={text} is not a time; write it as 2026-01-31T12:00:00Z") from None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)


def _groups(letters: "DataFrame", sample: int) -> list[Group]:
    """One row for each topic, cause and field, the most frequent first, with the oldest letters as samples."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys = ("source", "cause", "field")
    order = Window.partitionBy(*keys).orderBy("died", "partition", "offset")
    told = F.concat_ws(" ", F.concat_ws("-", "partition", "offset"), F.substring("error", 1, SAMPLE_LETTERS))
    found = (
        letters.withColumn("place", F.row_number().over(order))
        .groupBy(*keys)
        .agg(
            F.count(F.lit(1)).alias("letters"),
            F.min(F.unix_micros("died")).alias("first"),
            F.max(F.unix_micros("died")).alias("last"),
            F.array_sort(F.collect_list(F.when(F.col("place") <= sample, F.struct("place", told.alias("told"))))).alias("some"),
        )
        .orderBy(F.desc("letters"), *keys)
        .collect()
    )  # fmt: skip
    return [
        Group(row["source"], row["cause"], row["field"], row["letters"], _said(row["first"]), _said(row["last"]),
              tuple(each["told"] for each in row["some"]))
        for row in found
    ]  # fmt: skip


def _said(at_us: int) -> datetime.datetime:
    """The time; the first or last that Python has if it is outside the years 1 to 9999: a client may write any number."""
    try:
        return EPOCH + datetime.timedelta(microseconds=at_us)
    except OverflowError:
        return LAST if at_us > 0 else FIRST


def _redrive(connection: "FlightConnection", letters: "DataFrame", limit: int) -> tuple[list[str], bool]:
    """Replay letters; the notes, and whether it went well. A letter that was resolved meanwhile is not an error. One whose header names
    another topic stays: the dead-letter topic of a very long name has a hash as its name, which is not the name of the topic."""
    strangers = letters.where("not own").count()
    ordered = letters.where("own").orderBy("source", "died", "partition", "offset").limit(limit)
    sent = gone = 0
    try:
        for source, ids in slices(ordered.select("source", "partition", "offset", "size").toLocalIterator()):
            answer = connection.redrive(wire.RedriveRequest(source, ids))
            sent += answer.sent
            gone += len(answer.missing)
    except QuintetError as error:
        return [f"{sent} sent again, then the broker refused: {error}", "run it again to go on: what was sent is not sent again"], False  # fmt: skip
    notes = [f"{sent} sent again"]
    notes += [f"{strangers} stay: they are of another topic, name it with topic=..."] if strangers else []
    return [*notes, f"{gone} were resolved by others meanwhile"] if gone else notes, True


def slices(rows: "Iterator[Row]") -> Iterator[tuple[str, tuple[str, ...]]]:
    """(topic, ids) for one redrive each: of one topic, at most SLICE_IDS and SLICE_BYTES."""
    source, ids, size = "", list[str](), 0
    for row in rows:
        if ids and (row["source"] != source or len(ids) == SLICE_IDS or size + row["size"] > SLICE_BYTES):
            yield source, tuple(ids)
            ids, size = [], 0
        source, size = row["source"], size + row["size"]
        ids.append(f"{row['partition']}-{row['offset']}")
    if ids:
        yield source, tuple(ids)
