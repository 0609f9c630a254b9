"""Writes and reads lake tables exactly once: Parquet, Delta and Iceberg on a file system, the last two in an object store, too.

    lake.register(spark)                                     make format("quintet_lake") known (sink.py)
    lake.read(spark, path, format) -> DataFrame              the rows now, or in a version; no jars needed
    lake.compact(path, format) -> Compaction                 small files to large ones
    lake.kind(path) -> str                                   which format a directory holds
    lake.convert(path) -> Converted                          a Parquet table to a Delta table, in place

A path is a directory or, for Delta and Iceberg, s3://, gs://, abfss://; `options` are the storage.* and catalog.* of format("quintet_lake").

Sessions find format("quintet_lake") by themselves, through the module pyspark_quintet_lake; `register` is for one that cannot.

opening.py finds tables, schema.py has the columns, table.py what the formats share; in storage/, files.py has the rows, journal.py the
commits, objects.py and options.py the object stores. Nothing in this package knows topics or the broker.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from quintet.spark.lake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quintet.spark.lake.conversion import Converted
    from quintet.spark.lake.storage.files import Between
    from quintet.spark.lake.storage.objects import TablePath
    from quintet.spark.lake.table import Compaction

__all__ = ["FORMAT", "LakeError", "compact", "convert", "directory", "kind", "read", "register"]

FORMAT: Final = "quintet_lake"


def register(spark: "SparkSession") -> None:
    """Make format("quintet_lake") known to a session. A second call does nothing."""
    from quintet.spark.lake.sink import LakeSource

    spark.dataSource.register(LakeSource)


def kind(path: str, options: Mapping[str, str] | None = None) -> str:
    """The format of the table at a path; LakeError if there is none."""
    from quintet.spark.lake import opening

    return opening.kind(path, options or {})


def directory(path: str, options: Mapping[str, str] | None = None) -> "TablePath":
    """The path of a table; LakeError if it is neither a directory nor a name in an object store."""
    from quintet.spark.lake import opening

    return opening.directory(path, options or {})


def read(
    spark: "SparkSession",
    path: str,
    format: str = "",
    *,
    version: int | None = None,
    between: "Between | None" = None,
    columns: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The rows of a table by its current list of files.

    Args:
        format: parquet, delta or iceberg; "": the format that the table has.
        version: Delta's version or Iceberg's snapshot id; a Parquet table has none.
        between: column -> lowest and highest value of interest, numbers or strings. Files without such rows are left out; the
            others are read whole, so filter the rows, too.
        columns: only these; () is all.
        options: storage.* and catalog.*.

    A column that a file lacks is null in its rows. The list of files is made now: compaction of a Parquet table removes files that an
    old DataFrame still names, so call `read` again after it. Delta and Iceberg keep such files. A table in an object store is read by
    scan.py, which makes the list for each query.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from quintet.spark.lake.opening import split, table_of
    from quintet.spark.lake.storage.files import may_have
    from quintet.spark.lake.storage.objects import ObjectPath

    given = dict(options or {})
    format = format or kind(path, given)
    if isinstance(directory(path, given), ObjectPath):
        told = {
            "path": path,
            "format": format,
            "columns": ",".join(columns),
            "between": json.dumps(dict(between or {})),
        }
        if version is not None:
            told["version"] = str(version)
        register(spark)
        return spark.read.format(FORMAT).options(**told, **given).load()
    table = table_of(path, format, None, *split(given))
    schema, paths = table.listing(version)
    if between:
        paths = [path for path in paths if may_have(path, between)]
    struct = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if not paths:
        frame = spark.createDataFrame([], struct)
    else:
        frame = spark.read.schema(struct).option("ignoreCorruptFiles", "false").parquet(*map(str, paths))
    return frame.select(*(f"`{name}`" for name in columns)) if columns else frame


def compact(
    path: str, format: str = "", *, target_bytes: int = 0, options: Mapping[str, str] | None = None
) -> "Compaction":
    """Merge small files. For readers of Delta and Iceberg this is one commit; parquet.py says what readers of Parquet see."""
    from quintet.spark.lake.opening import split, table_of
    from quintet.spark.lake.table import MERGED_BYTES

    table = table_of(path, format or kind(path, options), None, *split(options or {}))
    return table.compact(target_bytes or MERGED_BYTES)


def convert(path: str, options: Mapping[str, str] | None = None) -> "Converted":
    """Make a Delta table of a Parquet table, in place; its writers must be stopped, and go on with format=delta."""
    from quintet.model.extras import load

    found: Converted = load("quintet.spark.lake.conversion", "converting a table", "lake").convert(path, options)
    return found
