"""Defines what every pipeline has: options, a start, a result. Each pipeline is one short module.

A module of this folder that is a pipeline has

    SUMMARY     one line for `quintet pipeline list`
    Options     a subclass of Common; each field typed, with a description: the command's --help is made of them
    start       (spark, options) -> the streaming queries it runs on         for a pipeline that goes on
    run         (spark, options) -> Result                                   for one that ends by itself
    waiting     (options, rows of state) -> what a run with trigger=now left unpublished, in a sentence; may be left out

and is a row in PIPELINES (__init__.py). Nothing here starts a session, restarts what failed or draws progress: that is
runner.py. A pipeline must be callable from a notebook as it is: `archive.start(spark, archive.Options(...))`.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from quintet.spark.pipelines import checkpoints
from quintet.spark.source import sinks

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

DEFAULT_URL: Final = "flight://127.0.0.1:8815"
NOW: Final = "now"
# The option typed_prefix of pipelines that read values by their registered schema.
Prefix = Annotated[
    str, msgspec.Meta(description="What the names of the schema's columns begin with, if they meet others.")
]
# How a table in an object store is reached: storage.region=... on the command line, [storage] in a file.
Storage = Annotated[
    dict[str, str],
    msgspec.Meta(description="storage.NAME=VALUE: how to reach s3://, gs://, abfss://, if not by the environment."),
]
Catalog = Annotated[
    dict[str, str],
    msgspec.Meta(description="catalog.NAME=VALUE: properties of an Iceberg catalog, as pyiceberg has them."),
]
# Its options on_decode_error, value_prefix and schema_ids: those of a read, but what does not decode goes to the dead letters.
OnDecodeError = Annotated[
    Literal["deadletter", "fail", "null"],
    msgspec.Meta(
        description="A value that does not fit: to the dead letters, end, or nulls and a column decode_error."
    ),
]
ValuePrefix = Annotated[
    Literal["auto", "confluent", "none"],
    msgspec.Meta(description="Whether values begin with Confluent's 5 bytes; auto: those that do."),
]
SchemaIds = Annotated[
    str,
    msgspec.Meta(
        description='Which versions the schema ids of these prefixes mean: {"17": 1}; all are tried if empty.'
    ),
]
DECODING: Final = (
    ("on_decode_error", "onDecodeError", "deadletter"),
    ("value_prefix", "valuePrefix", "auto"),
    ("schema_ids", "schemaIds", ""),
)
START_SECONDS_MAX: Final = 60.0  # between the first batch of a query and its id being known
MESSAGE: Final = frozenset({"key", "value", "headers", "timestamp", "partition"})  # the columns that make a message


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What all pipelines have."""

    url: Annotated[str, msgspec.Meta(description="The broker's Flight door: flight://USER:PASSWORD@HOST:PORT.")] = (
        DEFAULT_URL
    )
    user: Annotated[str, msgspec.Meta(description="User, if the URL names none.")] = ""
    password: Annotated[str, msgspec.Meta(description="Password, if the URL has none.")] = ""
    token: Annotated[str, msgspec.Meta(description="API key instead of user and password.")] = ""

    def access(self) -> dict[str, str]:
        """The options of format("quintet") that say where the broker is and who asks."""
        found = {"url": self.url, "user": self.user, "password": self.password, "token": self.token}
        return {name: value for name, value in found.items() if value}


class Streaming(Common, kw_only=True):
    """What pipelines that go on have."""

    name: Annotated[str, msgspec.Meta(description="Name of this run, shown by status; its checkpoint bears it.")]
    checkpoint: Annotated[str, msgspec.Meta(description="Directory that remembers how far it is.")]
    trigger: Annotated[
        str, msgspec.Meta(description="now: all there is, then stop; or every so often: 500ms, 10s, 5m.")
    ] = "10s"
    starting: Annotated[
        str, msgspec.Meta(description="Where a new run begins: earliest, latest, or offsets as JSON.")
    ] = "earliest"
    max_per_trigger: Annotated[
        int, msgspec.Meta(description="Records of one batch at most; 0: about a gigabyte of them.", ge=0)
    ] = 0
    fail_on_data_loss: Annotated[
        bool,
        msgspec.Meta(description="false: go on when records are gone that were not read yet, and say so in the log."),
    ] = True

    def trigger_options(self) -> dict[str, Any]:
        """The arguments of DataStreamWriter.trigger."""
        return {"availableNow": True} if self.trigger == NOW else {"processingTime": spoken(self.trigger)}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline that ends gives back: a table, a verdict, and the sentences to say."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()
    ok: bool = True  # false: exit code 1
    pictures: tuple[str, ...] = ()  # paths of files that were drawn


class Stopped(Exception):
    """Somebody asked a pipeline to stop while it waited for its time."""


_waiting = threading.local()  # .stop: the event that ends the pauses of a thread


def stop_on(stop: threading.Event) -> None:
    """From now on, pauses of this thread end when `stop` is set."""
    _waiting.stop = stop


def pause(seconds: float) -> None:
    """Wait; Stopped if the runner of this pipeline is told to stop meanwhile."""
    stop: threading.Event | None = getattr(_waiting, "stop", None)
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise Stopped


_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def spoken(duration: str) -> str:
    """10s -> "10 seconds", as Spark's intervals want it; ValueError with the spelling if it is none."""
    for unit in sorted(_UNITS, key=len, reverse=True):
        number = duration.removesuffix(unit)
        if number != duration and number.isdecimal():
            return f"{number} {_UNITS[unit]}"
    raise ValueError(f"{duration!r} is no duration: write a number and ms, s, m, h or d, for instance 10s")


_MICROSECONDS: Final = {
    "milliseconds": 10**3, "seconds": 10**6, "minutes": 60 * 10**6, "hours": 3600 * 10**6, "days": 86_400 * 10**6,
}  # fmt: skip


def microseconds(duration: str) -> int:
    """10s -> 10_000_000."""
    number, _, unit = spoken(duration).partition(" ")
    return int(number) * _MICROSECONDS[unit]


def typed(options: Streaming, schema: str, subject: str = "") -> dict[str, str]:
    """The options of a source that say whether values become columns, what those are called, and how they are read."""
    given = msgspec.structs.asdict(options)
    found = {"schema": schema, "typedPrefix": str(given["typed_prefix"]), "subject": subject}
    for name, option, default in DECODING:
        value = str(given.get(name, default))
        if schema == "registry" or value != default:  # the source refuses what has no meaning
            found[option] = value
    return {name: value for name, value in found.items() if value}


def loss(options: Streaming) -> str:
    """The option failOnDataLoss of sources and sinks."""
    return "true" if options.fail_on_data_loss else "false"


def quoted(name: str) -> str:
    """A column's name as Spark's expressions want it: `a.b` is one name, a.b is a field of a."""
    return "`" + name.replace("`", "``") + "`"


def by_now(time: str) -> "Column":
    """A column of times for a watermark: one ahead of the clock counts as now. Otherwise a single message with a time of the
    far future would make all that follow it late, and late ones are left out."""
    from pyspark.sql import functions as F

    at = F.col(quoted(time))
    return F.when(at.isNotNull(), F.least(at, F.current_timestamp()))


def read_stream(spark: "SparkSession", options: Streaming, topics: str, **more: str) -> "DataFrame":
    """The records of these topics (a,b,c) as a stream. ConfigError if the checkpoint is of another run (checkpoints.py)."""
    checkpoints.check(spark, options.checkpoint, type(options).__module__, msgspec.structs.asdict(options))
    settings: Mapping[str, str] = {
        **options.access(),
        "subscribe": topics,
        "startingOffsets": options.starting,
        **({"maxOffsetsPerTrigger": str(options.max_per_trigger)} if options.max_per_trigger else {}),
        "failOnDataLoss": loss(options),
        **more,
    }
    return spark.readStream.format("quintet").options(**settings).load()


def lake_options(options: "Into | Any") -> dict[str, str]:
    """The options of format("quintet_lake") for the store and the catalog that a pipeline names."""
    return {
        **{f"storage.{name}": value for name, value in options.storage.items()},
        **{f"catalog.{name}": value for name, value in options.catalog.items()},
    }


class Into(Streaming, kw_only=True):
    """What pipelines have whose rows go to a topic or to a table."""

    to_topic: Annotated[
        str, msgspec.Meta(description="Publish the result to this topic: rows as JSON, exactly once.")
    ] = ""
    to_table: Annotated[str, msgspec.Meta(description="Or append it to the table in this directory.")] = ""
    table_format: Annotated[
        Literal["parquet", "delta", "iceberg"], msgspec.Meta(description="What kind of table that is.")
    ] = "parquet"
    storage: Storage = msgspec.field(default_factory=dict)
    catalog: Catalog = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if bool(self.to_topic) == bool(self.to_table):
            raise ValueError("say where the result goes: to_topic or to_table, one of them")


def write(
    frame: "DataFrame", options: Into, key: str = "key", mode: Literal["append", "update"] = "append"
) -> "StreamingQuery":
    """Start writing a stream to the topic or table its options name. To a topic the column `key` is the key of a message and
    all others are its value, as JSON; a frame of the columns of a message with a binary `value` goes as it is."""
    from pyspark.sql import functions as F

    if options.to_topic:
        if dict(frame.dtypes).get("value") != "binary" or not MESSAGE.issuperset(frame.columns):
            rest = [F.col(quoted(name)) for name in frame.columns if name != key]
            frame = frame.select(F.col(key).cast("string").alias("key"), F.to_json(F.struct(*rest)).alias("value"))
        sink = {**options.access(), "topic": options.to_topic, "failOnDataLoss": loss(options)}
        if mode == "update":
            return _in_batches(frame, options, sink)
        writer = frame.writeStream.format("quintet").options(**sink)
    else:
        sink = {"path": options.to_table, "format": options.table_format, "failOnDataLoss": loss(options)}
        sink |= lake_options(options)
        writer = frame.writeStream.format("quintet_lake").options(**sink)
    return _started(writer, options, mode)


def _started(writer: "DataStreamWriter", options: Streaming, mode: Literal["append", "update"]) -> "StreamingQuery":
    return (
        writer.option("checkpointLocation", options.checkpoint)
        .queryName(options.name)
        .outputMode(mode)
        .trigger(**options.trigger_options())
        .start()
    )


def _in_batches(frame: "DataFrame", options: Streaming, sink: Mapping[str, str]) -> "StreamingQuery":
    """Spark refuses update mode for every sink in Python, so each batch is a write of its own; named by the query and its
    number it counts once, as the sink's own batches do."""
    known: Future[str] = Future()

    def publish(batch: "DataFrame", number: int) -> None:
        from quintet.spark.source.connection import FlightConnection
        from quintet.spark.source.options import target
        from quintet.spark.source.writer import topic_there

        there = topic_there(FlightConnection.of(target(options.access())), sink["topic"])
        sinks.keep(options.checkpoint, there, options.fail_on_data_loss)
        name = {"txnAppId": known.result(START_SECONDS_MAX), "txnVersion": str(number)}
        batch.write.format("quintet").options(**sink, **name).mode("append").save()

    query = _started(frame.writeStream.foreachBatch(publish), options, "update")
    known.set_result(str(query.id))
    return query


def topic_list(topics: str) -> Sequence[str]:
    """a,b , c -> ["a", "b", "c"]."""
    return [name.strip() for name in topics.split(",") if name.strip()]
