"""Writes DataFrames to topics exactly once: tasks stage rows, and the driver publishes all stages of a batch in one call.

    task      rows -> chunks of CHUNK_BYTES -> one stage each; the stages travel to the driver in the commit message
    driver    commit: stage_commit(writer, batch_id, stages, rows)      abort: stage_abort(stages)

The writer of a streaming query is its query id, which its checkpoint keeps, and the batch id is that of the micro-batch. The broker
publishes a batch once and answers `fresh=false` when it comes again, which is not an error. Spark tells the query id to tasks only, so
their commit messages carry it. They also carry the identity of the log that took their stages; another log refuses the commit. The
sink that a checkpoint has written to is kept in its directory (sinks.py). If a micro-batch has no message, no task saw a row: nothing
was staged and nothing is published or fenced. If it is repeated and has rows then, they are published then, once.

A batch write publishes all its rows or none. Run again, it publishes them again, unless txnAppId and txnVersion (in foreachBatch: a
name and the batch id) are set: then a repetition is not published, as with Delta tables.

Columns: value, and optionally key, headers, partition, timestamp and topic. The option topic takes precedence over the column, as
with Spark's Kafka sink. value and key may be strings. All other columns are refused by name: nothing is dropped in silence.
"""

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from quintet.flight import wire
from quintet.model.errors import OtherLog, QuintetError
from quintet.spark.source import sinks
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import OptionError, WriteOptions, errors_without_trace

CHUNK_BYTES: Final = 64 << 20  # of rows that are kept in memory until their stage is synced
ONCE: Final = -1  # the batch id of a write that is not part of a sequence
NO_TOPIC: Final = "-"  # asked for if no topic is named: the answer has the log's identity

# Column -> its possible types in Spark, and the Arrow type that is sent
BYTES: Final = {BinaryType: pa.binary(), StringType: pa.binary()}
HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS: Final[dict[str, dict[type[DataType], pa.DataType]]] = {
    "key": BYTES,
    "value": BYTES,
    "headers": {ArrayType: HEADERS},
    "topic": {StringType: pa.string()},
    "partition": {IntegerType: pa.int32()},
    "timestamp": {TimestampType: pa.timestamp("us", tz="UTC")},
}
WORDS: Final = {
    "key": "binary or string",
    "value": "binary or string",
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task staged, and for which batch. `log`: identity of the log with the stages. `identity`: that of the option topic."""

    writer: str
    batch_id: int
    stages: tuple[str, ...]
    rows: int
    log: str = ""
    identity: str = ""


def wire_schema(schema: StructType, options: WriteOptions) -> pa.Schema:
    """The columns to send; OptionError names what does not fit."""
    fields = []
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise OptionError(
                "topic" if field.name.lower() == "topic" else "columns",
                f"a topic cannot take the column {field.name!r}; it takes {', '.join(COLUMNS)}: "
                "select these, for example with to_json(struct(*)) as value",
            )
        kind = COLUMNS[field.name].get(type(field.dataType))
        if kind is None or (field.name == "headers" and not _are_headers(field.dataType)):
            raise OptionError(
                "columns",
                f"the column {field.name!r} is {field.dataType.simpleString()}; it must be {WORDS[field.name]}",
            )
        if field.name != "topic" or not options.topic:
            fields.append(pa.field(field.name, kind))
    names = schema.fieldNames()
    if "value" not in names:
        raise OptionError("columns", "there is no column value; it is what a message carries")
    if not options.topic and "topic" not in names:
        raise OptionError("topic", "it is missing; name the topic to write to, or have a column topic")
    return pa.schema(fields)


def _are_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType) or element.fieldNames() != ["key", "value"]:
        return False
    return isinstance(element["key"].dataType, StringType) and isinstance(element["value"].dataType, BinaryType)


class Sink:
    """What both kinds of writers share."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode", 'a topic cannot be overwritten; write with mode("append"), outputMode("append")')
        self._options = options
        self._schema = wire_schema(schema, options)
        self._connection().login()

    def _connection(self) -> FlightConnection:
        return FlightConnection.of(self._options.target)

    def _stage(self, writer: str, batch_id: int, batches: Iterator[pa.RecordBatch]) -> Written:
        """Stage all rows of a task. After an error, discard the stages at once; the broker would keep them for a day."""
        stages: list[str] = []
        rows, log, identity = 0, "", ""
        request = wire.StageRequest(writer, batch_id, self._options.topic)
        try:
            for chunk in chunks(map(self._conform, batches)):
                staged = self._connection().stage(request, self._schema, chunk)
                stages.append(staged.stage)
                if log not in ("", staged.log):
                    raise _replaced(log, staged.log)
                rows, log, identity = rows + staged.rows, staged.log, staged.identity
        except BaseException:
            self._abort(stages)
            raise
        return Written(writer, batch_id, tuple(stages), rows, log, identity)

    def _conform(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [batch.column(field.name) for field in self._schema]
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(arrays, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        if not written:
            return
        stages = tuple(stage for message in written for stage in message.stages)
        first = written[0]
        if first.batch_id == ONCE and not stages:
            return
        logs = sorted({message.log for message in written if message.log})
        if len(logs) > 1:
            raise _replaced(*logs[:2])
        if logs:
            self._remember(logs[0], next((message.identity for message in written if message.identity), ""))
        self._connection().stage_commit(
            wire.StageCommit(
                writer=first.writer,
                batch_id=first.batch_id if batch_id is None else batch_id,
                stages=stages,
                rows=sum(message.rows for message in written),
                accept_other=not self._options.fail_on_data_loss,
                log=logs[0] if logs else "",
            )
        )

    def _remember(self, log: str, identity: str) -> None:
        """Record the sink of this query before its first batch is published; OptionError if earlier batches went to another one."""
        sink = sinks.Sink("topic", self._options.topic, identity or f"{log}/")
        sinks.keep(self._options.checkpoint, sink, self._options.fail_on_data_loss)

    def _abort(self, stages: Iterable[str]) -> None:
        """Discard stages. The broker removes forgotten ones by itself, so a failure here must not hide another error."""
        known = tuple(stages)
        if known:
            with contextlib.suppress(QuintetError):
                self._connection().stage_abort(known)


def topic_there(connection: FlightConnection, topic: str) -> sinks.Sink:
    """The topic as the broker has it now. Its identity is missing if the user may write and not read it."""
    found = connection.topics(wire.Selection((topic or NO_TOPIC,)))
    known = [info.identity for info in found.topics if info.name == topic]
    return sinks.Sink("topic", topic, known[0] if known else f"{found.log}/")


def _replaced(one: str, other: str) -> OtherLog:
    return OtherLog(
        f"some rows of a batch were staged in the log {one} and some in the log {other}: the broker behind the url was replaced "
        "meanwhile; nothing was published"
    )


def chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Group batches into lists of about CHUNK_BYTES."""
    chunk: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            chunk.append(batch)
            size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _staged_by(messages: Sequence[WriterCommitMessage | None]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, Written):
            yield from message.stages


class BatchWriter(Sink, DataSourceArrowWriter):
    """One `df.write`. Spark pickles it from the driver to the tasks, so all of them have the same writer name."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._writer = options.writer or str(uuid.uuid4())
        self._batch_id = options.batch_id if options.writer else ONCE

    @errors_without_trace
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(self._writer, self._batch_id, iterator)

    @errors_without_trace
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._commit(messages, None)

    @errors_without_trace
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._abort(_staged_by(messages))


class StreamWriter(Sink, DataSourceStreamArrowWriter):
    """The sink of one streaming query. Refuses another sink than that of the checkpoint here, before a task runs, and again at each
    commit, because the broker may have been replaced meanwhile."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        if sinks.load(options.checkpoint) is not None:
            sinks.check(options.checkpoint, topic_there(self._connection(), options.topic), options.fail_on_data_loss)

    @errors_without_trace
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._stage(*sinks.batch_of_task(), iterator)

    @errors_without_trace
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages, batchId)

    @errors_without_trace
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(_staged_by(messages))
