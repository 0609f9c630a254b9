"""Defines what all pipelines share: options, reading, writing and results. Each pipeline is one short module.

A module of this folder that is a pipeline has

    SUMMARY     one line for `quintet pipeline list`
    Options     a subclass of Common; each field has a type and a description, which --help shows
    start       (spark, options) -> its streaming queries                    for a pipeline that runs until it is stopped
    run         (spark, options) -> Result                                   for one that ends by itself
    waiting     (options, rows of state) -> a sentence about what a run with trigger=now left unpublished; optional

and is a row in PIPELINES (__init__.py). Nothing here starts a session, restarts a query or shows progress: that is
running/runner.py. A pipeline can also be called from a notebook: `archive.start(spark, archive.Options(...))`.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

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
    str,
    msgspec.Meta(
        description="Prefix of the names of the schema's columns, if one of them is also a column of the source."
    ),
]
# How to reach a table in an object store: storage.region=... on the command line, [storage] in a file.
Storage = Annotated[
    dict[str, str],
    msgspec.Meta(description="storage.NAME=VALUE: how to reach s3://, gs://, abfss://, if not by the environment."),
]
Catalog = Annotated[
    dict[str, str],
    msgspec.Meta(description="catalog.NAME=VALUE: properties of an Iceberg catalog, as pyiceberg has them."),
]
# The options of format("quintet") of the same names, but the default of on_decode_error is deadletter.
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
START_SECONDS_MAX: Final = 60.0  # from the first batch of a query until its id is known
MESSAGE: Final = frozenset({"key", "value", "headers", "timestamp", "partition"})  # the columns that make a message


class Common(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options of all pipelines."""

    url: Annotated[str, msgspec.Meta(description="The broker's Flight door: flight://USER:PASSWORD@HOST:PORT.")] = (
        DEFAULT_URL
    )
    user: Annotated[str, msgspec.Meta(description="User, if the URL names none.")] = ""
    password: Annotated[str, msgspec.Meta(description="Password, if the URL has none.")] = ""
    token: Annotated[str, msgspec.Meta(description="API key instead of user and password.")] = ""

    def access(self) -> dict[str, str]:
        """The options of format("quintet") with the broker's address and the credentials."""
        found = {"url": self.url, "user": self.user, "password": self.password, "token": self.token}
        return {name: value for name, value in found.items() if value}


class Streaming(Common, kw_only=True):
    """The options of pipelines that run until they are stopped."""

    name: Annotated[str, msgspec.Meta(description="Name of this run, shown by status, and of its default checkpoint.")]
    checkpoint: Annotated[str, msgspec.Meta(description="Directory of Spark's checkpoint: how far it is.")]
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
        """The arguments of DataStreamWriter.trigger, which takes one keyword of several types."""
        return {"availableNow": True} if self.trigger == NOW else {"processingTime": spoken(self.trigger)}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What `run` of a pipeline returns: a table, whether all is well, and notes to print."""

    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()
    ok: bool = True  # false: exit code 1
    pictures: tuple[str, ...] = ()  # paths of files that were drawn


class Stopped(Exception):
    """The pipeline was asked to stop while it was in `pause`."""


_waiting = threading.local()  # .stop: the event that ends the pauses of a thread


def stop_on(stop: threading.Event) -> None:
    """Let `pause` in this thread end when `stop` is set."""
    _waiting.stop = stop


def pause(seconds: float) -> None:
    """Wait. Raises Stopped if the pipeline is asked to stop meanwhile."""
    stop: threading.Event | None = getattr(_waiting, "stop", None)
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise Stopped


_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def spoken(duration: str) -> str:
    """10s -> "10 seconds", an interval of Spark; ValueError if it is not a duration."""
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
    """The options of a read that say whether and how values become columns."""
    given = msgspec.structs.asdict(options)
    found = {"schema": schema, "typedPrefix": str(given["typed_prefix"]), "subject": subject}
    for name, option, default in DECODING:
        value = str(given.get(name, default))
        if schema == "registry" or value != default:  # the source refuses options without effect
            found[option] = value
    return {name: value for name, value in found.items() if value}


def loss(options: Streaming) -> str:
    """The option failOnDataLoss of sources and sinks."""
    return "true" if options.fail_on_data_loss else "false"


def quoted(name: str) -> str:
    """A column's name quoted for Spark's expressions: `a.b` is one name, a.b is a field of a."""
    return "`" + name.replace("`", "``") + "`"


def by_now(time: str) -> "Column":
    """A column of times for a watermark, in which a time in the future is now. Otherwise one message with a time far in the future
    would move the watermark there, and all later messages would be dropped as late."""
    from pyspark.sql import functions as F

    at = F.col(quoted(time))
    return F.when(at.isNotNull(), F.least(at, F.current_timestamp()))


def read_stream(spark: "SparkSession", options: Streaming, topics: str, **more: str) -> "DataFrame":
    """The records of these topics (a,b,c) as a stream. ConfigError if the checkpoint belongs to another run (checkpoints.py)."""
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


class InStore(Protocol):
    """Options of a pipeline that reads or writes a lake table."""

    storage: Storage
    catalog: Catalog


def lake_options(options: InStore) -> dict[str, str]:
    """The options storage.* and catalog.* of format("quintet_lake")."""
    return {
        **{f"storage.{name}": value for name, value in options.storage.items()},
        **{f"catalog.{name}": value for name, value in options.catalog.items()},
    }


class Into(Streaming, kw_only=True):
    """The options of pipelines that write to a topic or to a table."""

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
            raise ValueError("set to_topic or to_table, one of them: where the result goes")


def write(
    frame: "DataFrame", options: Into, key: str = "key", mode: Literal["append", "update"] = "append"
) -> "StreamingQuery":
    """Start writing a stream to the topic or table in its options. For a topic, the column `key` becomes the key of a message and all
    others its value, as JSON; a frame with the columns of a message and a binary `value` is written as it is."""
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
    return started(writer, options, mode)


def started(writer: "DataStreamWriter", options: Streaming, mode: Literal["append", "update"]) -> "StreamingQuery":
    """Start a query with the checkpoint, name and trigger of its options."""
    return (
        writer.option("checkpointLocation", options.checkpoint)
        .queryName(options.name)
        .outputMode(mode)
        .trigger(**options.trigger_options())
        .start()
    )


def _in_batches(frame: "DataFrame", options: Streaming, sink: Mapping[str, str]) -> "StreamingQuery":
    """Write each batch by itself, because Spark refuses update mode for Python sinks. The query id and the batch id (txnAppId and
    txnVersion) keep a batch from being published twice."""
    known: Future[str] = Future()

    def publish(batch: "DataFrame", number: int) -> None:
        from quintet.spark.source.connection import FlightConnection
        from quintet.spark.source.options import target
        from quintet.spark.source.writer import topic_there

        there = topic_there(FlightConnection.of(target(options.access())), sink["topic"])
        sinks.keep(options.checkpoint, there, options.fail_on_data_loss)
        name = {"txnAppId": known.result(START_SECONDS_MAX), "txnVersion": str(number)}
        batch.write.format("quintet").options(**sink, **name).mode("append").save()

    query = started(frame.writeStream.foreachBatch(publish), options, "update")
    known.set_result(str(query.id))
    return query


def topic_list(topics: str) -> Sequence[str]:
    """a,b , c -> ["a", "b", "c"]."""
    return [name.strip() for name in topics.split(",") if name.strip()]
