"""Reads lake tables into Spark without Hadoop's file systems, above all tables in object stores.

    spark.read.format("quintet_lake").option("path", "s3://bucket/orders").option("columns", "topic,offset").load()

Spark's own Parquet reader needs jars for s3://, gs:// and abfss://, which a pip install does not have. Here tasks read the files with
pyarrow. Spark does not tell a Python source which columns a query needs, so the option `columns` names them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from quintet.spark.lake.opening import CATALOG, FORMATS, SPARKS_OWN, STORAGE, kind, split, table_of
from quintet.spark.lake.schema import normal
from quintet.spark.lake.storage.files import Between, may_have, opened
from quintet.spark.lake.storage.objects import TablePath
from quintet.spark.lake.storage.options import plain
from quintet.spark.lake.table import LakeTable
from quintet.spark.source.options import OptionError, errors_without_trace, errors_without_trace_each

OPTIONS: Final = ("path", "format", "version", "columns", "between")
BATCH_ROWS: Final = 10_000
TASK_BYTES: Final = 128 << 20  # of files that one task reads, about; a file is never divided


class Scan:
    """The options of a reader, checked."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in (*OPTIONS, *SPARKS_OWN) and not name.startswith((STORAGE, CATALOG)):
                raise OptionError(name, f"a lake table does not have it; known are {', '.join(OPTIONS)}")
        if not given.get("path"):
            raise OptionError("path", "it is missing; name the directory of the table")
        storage, catalog = split(options)
        format = given.get("format", "").lower() or kind(given["path"], options)
        if format not in FORMATS:
            raise OptionError("format", f"{format!r} is not one of {', '.join(FORMATS)}")
        self.table: LakeTable = table_of(given["path"], format, None, storage, catalog)
        version = given.get("version", "")
        if version and not version.isdecimal():
            raise OptionError("version", f"{version!r} is not a whole number")
        self.version = int(version) if version else None
        self.between: Between = json.loads(given.get("between", "") or "{}")
        self.names = [name.strip() for name in given.get("columns", "").split(",") if name.strip()]

    def schema(self) -> pa.Schema:
        return self._chosen(self.table.listing(self.version)[0])

    def struct(self) -> StructType:
        return from_arrow_schema(self.schema(), prefer_timestamp_ntz=True)

    def reader(self) -> "Reader":
        schema, paths = self.table.listing(self.version)
        if self.between:
            paths = [path for path in paths if may_have(path, self.between)]
        return Reader(self._chosen(schema), paths)

    def _chosen(self, schema: pa.Schema) -> pa.Schema:
        for name in self.names:
            if schema.get_field_index(name) < 0:
                raise OptionError("columns", f"{name!r} is not a column; there are {', '.join(schema.names)}")
        return pa.schema([schema.field(name) for name in self.names]) if self.names else schema


class Files(InputPartition):
    """Some files of a table, for one task."""

    def __init__(self, paths: Sequence[TablePath]) -> None:
        super().__init__(None)
        self.paths = paths


class Reader(DataSourceReader):
    """Reads a list of files that was made on the driver, so that all tasks read one state of the table."""

    def __init__(self, schema: pa.Schema, paths: Sequence[TablePath]) -> None:
        self._schema = schema
        self._paths = paths

    @errors_without_trace
    def partitions(self) -> Sequence[InputPartition]:
        groups: list[list[TablePath]] = []
        held = TASK_BYTES
        for path in self._paths:
            size = path.stat().st_size
            if held + size > TASK_BYTES:
                groups.append([])
                held = 0
            groups[-1].append(path)
            held += size
        return [Files(group) for group in groups] or [Files(())]

    @errors_without_trace_each
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Files)
        for path in partition.paths:
            with plain(path), opened(path) as file:
                there = [name for name in self._schema.names if name in file.schema_arrow.names]
                for batch in file.iter_batches(BATCH_ROWS, columns=there):
                    yield self._whole(batch)

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with all columns; those that the file lacks are null."""
        rows = batch.cast(normal(batch.schema))
        columns = [
            rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
