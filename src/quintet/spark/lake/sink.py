"""Implements format("quintet_lake"), by which Spark writes streams and batches to lake tables exactly once.

    df.writeStream.format("quintet_lake").option("path", DIR).option("format", "delta").option("partitionBy", "date,topic")

Tasks stage files (files.py), the driver commits them (table.py) as batch `batchId` of the writer: the query's id, which its
checkpoint keeps, or txnAppId. A batch write commits all its rows or none. Run again, it writes them again, unless txnAppId and
txnVersion are set. New columns are added to the table; a column whose type changed is refused. storage.* options say how to reach an
object store (storage/options.py), catalog.* which catalog an Iceberg table is in (iceberg.py). scan.py reads.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from quintet.spark.lake import meta
from quintet.spark.lake.opening import CATALOG, FORMATS, SPARKS_OWN, STORAGE, split, table_of
from quintet.spark.lake.scan import Scan
from quintet.spark.lake.schema import normal
from quintet.spark.lake.storage.files import File, Heaps
from quintet.spark.lake.storage.objects import ObjectPath, located
from quintet.spark.lake.storage.options import NOTHING, Storage
from quintet.spark.lake.table import MERGED_BYTES, ONCE, LakeTable
from quintet.spark.sessions import quiet
from quintet.spark.source import sinks
from quintet.spark.source.options import OptionError, checkpoint, errors_without_trace

NAME: Final = "quintet_lake"
NUMBER_MAX: Final = (1 << 62) - 1  # of an option
OPTIONS: Final = (
    "path", "format", "partitionBy", "compactEvery", "targetBytes", "failOnDataLoss", "txnAppId", "txnVersion",
)  # fmt: skip

_log = logging.getLogger("quintet.spark")


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a writer."""

    path: str
    format: str
    partition_by: tuple[str, ...] | None  # None: as the table is
    compact_every: int  # batches; 0: never
    target_bytes: int
    writer: str  # "": the query's id
    batch_id: int | None  # None: not given; a stream has Spark's
    fail_on_data_loss: bool  # false: a replayed batch with another number of rows is dropped without an error
    storage: Storage = NOTHING
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What one task staged, and for which batch."""

    writer: str
    batch_id: int
    files: tuple[File, ...]


def settings(options: Mapping[str, str]) -> Settings:
    """The options, parsed and checked."""
    spelling = {name.lower(): name for name in OPTIONS}
    given = {}
    storage, catalog = split(options)
    for name, value in options.items():
        if name.lower().startswith((STORAGE, CATALOG)):
            continue
        if name.lower() in spelling:
            given[spelling[name.lower()]] = value.strip()
        elif name.lower() not in SPARKS_OWN:
            raise OptionError(name, f"a lake table does not have it; known are {', '.join(OPTIONS)}")
    if not given.get("path"):
        raise OptionError("path", "it is missing; name the directory of the table")
    format = given.get("format", "parquet").lower()
    if format not in FORMATS:
        raise OptionError("format", f"{format!r} is not one of {', '.join(FORMATS)}")
    if given.get("txnAppId", "-") in ("", ".", ".."):
        raise OptionError("txnAppId", "it is empty or only dots; write a name that no other writer of the table has")
    loss = given.get("failOnDataLoss", "true").lower()
    if loss not in ("true", "false"):
        raise OptionError("failOnDataLoss", f"{loss!r} is not one of true, false")
    columns = None
    if "partitionBy" in given:
        columns = tuple(name.strip() for name in given["partitionBy"].split(",") if name.strip())
    return Settings(
        path=given["path"],
        format=format,
        partition_by=columns,
        compact_every=_number(given, "compactEvery", 0, 0),
        target_bytes=_number(given, "targetBytes", MERGED_BYTES, 1),
        writer=given.get("txnAppId", ""),
        batch_id=_number(given, "txnVersion", 0, 0) if "txnVersion" in given else None,
        fail_on_data_loss=loss == "true",
        storage=storage,
        catalog=catalog,
    )


def _number(given: Mapping[str, str], name: str, default: int, least: int) -> int:
    word = given.get(name, str(default))
    if not word.isdecimal() or not least <= int(word) <= NUMBER_MAX:
        raise OptionError(name, f"{word!r} is not a whole number from {least} on")
    return int(word)


quiet.quieten()


class LakeSource(DataSource):
    """The class that Spark asks for writers and readers. For a table in a directory, quintet.spark.lake.read is faster."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @errors_without_trace
    def schema(self) -> StructType:
        return Scan(self.options).struct()

    @errors_without_trace
    def reader(self, schema: StructType) -> DataSourceReader:
        return Scan(self.options).reader()

    @errors_without_trace
    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        return BatchWriter(settings(self.options), schema, overwrite)

    @errors_without_trace
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        return StreamWriter(settings(self.options), schema, overwrite, checkpoint(self.options))


class Sink:
    """The code of both kinds of writers. Made on the driver and pickled to the tasks."""

    def __init__(self, given: Settings, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("mode", "rows are only added to a lake table; write with append, or to another path")
        self._given = given
        self._schema: pa.Schema = normal(to_arrow_schema(schema, timezone="UTC"))
        self._path = located(given.path, given.storage)
        known = meta.load(self._path)
        if known is not None and known.format != given.format:
            raise OptionError(
                "format", f"there is a {known.format} table at {given.path}; name its format or another path"
            )
        if known is not None:
            meta.fitting(self._path, known.schema, known.partition_by, given.partition_by, self._schema)
            self._columns = known.partition_by
        elif isinstance(self._path, ObjectPath) or self._path.exists():
            if isinstance(self._path, ObjectPath):
                self._path.check_bucket()
            self._table().check(self._schema)  # a table that we did not make, or none
            self._columns = self._table().columns()
        else:
            meta.fitting(self._path, None, (), given.partition_by, self._schema)
            self._columns = given.partition_by or ()

    def _table(self) -> LakeTable:
        given = self._given
        return table_of(given.path, given.format, given.partition_by, given.storage, given.catalog)

    def _stage(self, writer: str, batch_id: int, batches: Iterator[pa.RecordBatch]) -> Written:
        in_place = isinstance(self._path, ObjectPath)
        heaps = Heaps(self._path, writer, batch_id, self._columns, in_place=in_place)
        try:
            for batch in batches:
                heaps.add(batch)
            return Written(writer, batch_id, tuple(heaps.finish()))
        except BaseException:
            heaps.discard()
            raise

    def _commit(self, messages: Sequence[WriterCommitMessage | None], begun: bool = False) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        if not written:
            return
        table = self._table()
        batch_id = written[0].batch_id
        files = [file for one in written for file in one.files]
        other = not self._given.fail_on_data_loss
        table.commit(written[0].writer, batch_id, files, self._schema, accept_other=other, begun=begun)
        if self._given.compact_every and batch_id % self._given.compact_every == self._given.compact_every - 1:
            try:
                table.compact(self._given.target_bytes)
            except Exception as error:  # the batch is committed, so an error here must not repeat it
                _log.warning("quintet: small files of %s were not merged: %s", self._path, error)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        table = self._table()
        for message in messages:
            if isinstance(message, Written):
                table.abandon(message.writer, message.batch_id, message.files)


class BatchWriter(Sink, DataSourceArrowWriter):
    """One `df.write`."""

    def __init__(self, given: Settings, schema: StructType, overwrite: bool) -> None:
        super().__init__(given, schema, overwrite)
        if bool(given.writer) != (given.batch_id is not None):
            raise OptionError("txnAppId", "it needs txnVersion, and txnVersion needs it; set both or none of them")
        self._writer = given.writer or f"{ONCE}{uuid.uuid4().hex}"

    @errors_without_trace
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return self._stage(self._writer, self._given.batch_id or 0, iterator)

    @errors_without_trace
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    @errors_without_trace
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._abort(messages)


class StreamWriter(Sink, DataSourceStreamArrowWriter):
    """The sink of a streaming query. Another table than its checkpoint has written to is refused (quintet.spark.source.sinks)."""

    def __init__(self, given: Settings, schema: StructType, overwrite: bool, checkpoint: str = "") -> None:
        super().__init__(given, schema, overwrite)
        self._checkpoint = checkpoint
        self._check()

    def _check(self) -> None:
        table = self._there()
        sinks.check(self._checkpoint, table, self._given.fail_on_data_loss, there=bool(table.identity))

    def _there(self) -> sinks.Sink:
        known = meta.load(self._path)
        return sinks.Sink("table", str(self._path), known.identity if known is not None else "")

    @errors_without_trace
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        query, batch_id = sinks.batch_of_task()
        return self._stage(self._given.writer or query, batch_id, iterator)

    @errors_without_trace
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        assert all(message.batch_id == batchId for message in messages if isinstance(message, Written))
        self._check()
        self._commit(messages, begun=sinks.load(self._checkpoint) is not None)
        if any(isinstance(message, Written) for message in messages):
            sinks.keep(self._checkpoint, self._there(), self._given.fail_on_data_loss)

    @errors_without_trace
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._abort(messages)
