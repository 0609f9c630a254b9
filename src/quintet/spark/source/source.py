"""Implements `format("quintet")`: the class that Spark calls on the driver, before any task runs.

All errors in options, credentials, topics and columns are found here, where Spark shows the text of a Python error as its own. The
work is in reader.py, stream.py and writer.py.

Filters are pushed into a read only with the option pushFilters=true. Spark (4.3 and before) keeps the filters of one query with
the DataFrame and applies them to its next query: after df.filter("partition = 1").count() the count of df itself is that of
partition 1, and of two filters in one query the last one is used for both. So the option is for a DataFrame that is loaded for one
query.
"""

import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from quintet.model.errors import QuintetError
from quintet.spark.sessions import quiet
from quintet.spark.source.columns import ReadColumns, raw_table, typed_table
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import (
    OptionError,
    ReadOptions,
    errors_without_trace,
    read_options,
    refuse_in_stream,
    write_options,
)
from quintet.spark.source.reader import BatchReader, PushingReader, select
from quintet.spark.source.stream import RefusedReader, StreamReader
from quintet.spark.source.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from types import FrameType

quiet.quieten()


class QuintetSource(DataSource):
    """Topics of a broker as tables. Spark pickles it between its processes; `_table` keeps the columns that `schema` found."""

    _table: ReadColumns | None = None

    @classmethod
    def name(cls) -> str:
        return "quintet"

    @errors_without_trace
    def schema(self) -> StructType:
        return self._resolve(read_options(self.options)).schema

    @errors_without_trace
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        table = self._checked(options, schema)
        return (PushingReader if options.push_filters and _filters_are_pushed() else BatchReader)(options, table)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Never raises: Spark would show another error instead, because it then stops a reader that it did not get."""
        try:
            options = read_options(self.options)
            refuse_in_stream(options)
            return StreamReader(options, self._checked(options, schema))
        except (QuintetError, OptionError) as error:
            return RefusedReader(error)

    @errors_without_trace
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(write_options(self.options), schema, overwrite)

    @errors_without_trace
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(write_options(self.options), schema, overwrite)

    def _resolve(self, options: ReadOptions) -> ReadColumns:
        """The columns. Asks the broker for the topics even if only columns are wanted, so that a read that cannot work fails at load()."""
        if self._table is None:
            connection = FlightConnection.of(options.target)
            topics = select(options, connection)
            self._table = typed_table(options, connection, sorted(topics)) if options.typed else raw_table(options)
        return self._table

    def _checked(self, options: ReadOptions, schema: StructType) -> ReadColumns:
        table = self._resolve(options)
        if [(f.name, f.dataType) for f in schema.fields] != [(f.name, f.dataType) for f in table.schema.fields]:
            raise OptionError("columns", "the source has columns of its own; choose among them, without .schema(...)")
        return table


def _filters_are_pushed() -> bool:
    """Whether Spark calls `reader` in order to push filters. It does so only if the session allows it, and refuses a reader that
    takes filters otherwise. The session's settings are not visible in this process, but the calling module is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith("data_source_pushdown_filters.py"):
            return True
        frame = frame.f_back
    return False
