"""Lake tables: Parquet, Delta and Iceberg on a file system, written by Spark exactly once and read by anything.

    lake.register(spark)                                     make format("quintet_lake") known (sink.py)
    lake.read(spark, path, format) -> DataFrame              the rows now, or in a version; no jars needed
    lake.compact(path, format) -> Compaction                 small files to large ones
    lake.kind(path) -> str                                   which format a directory holds

Sessions find format("quintet_lake") by themselves (pyspark_quintet_lake); `register` is for one that cannot.

schema.py has the columns, files.py the rows, journal.py the commits, table.py what the formats share. Nothing in this package
knows topics or the broker.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quintet.spark.lake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from quintet.spark.lake.table import Compaction

__all__ = ["FORMAT", "LakeError", "compact", "directory", "kind", "read", "register"]

FORMAT: Final = "quintet_lake"


def register(spark: "SparkSession") -> None:
    """Make format("quintet_lake") known to a session; again does no harm."""
    from quintet.spark.lake.sink import LakeSource

    spark.dataSource.register(LakeSource)


def kind(path: str) -> str:
    """The format of the table at a path; LakeError if there is none."""
    from quintet.spark.lake import meta

    known = meta.load(meta.local(path))
    if known is not None:
        return known.format
    if (meta.local(path) / "_delta_log").is_dir():
        return "delta"
    raise LakeError(f"there is no lake table at {path}", hint="check the path, and that something was written to it")


def directory(path: str) -> Path:
    """Where a table is; LakeError for a path that can be none."""
    from quintet.spark.lake import meta

    return meta.local(path)


def read(
    spark: "SparkSession",
    path: str,
    format: str = "",
    *,
    version: int | None = None,
    between: Mapping[str, tuple[Any, Any]] | None = None,
) -> "DataFrame":
    """The rows of a table by its current list of files.

    Args:
        format: parquet, delta or iceberg; "": found out by what is there.
        version: Delta's version or Iceberg's snapshot id; a Parquet table has none.
        between: column -> least and greatest value of interest: files that have none of it are left out. What is read is
            more than that, so filter it, too.

    A column that a file lacks is null in its rows. The list is made now: a compaction of a Parquet table removes files that an
    old DataFrame still names, so read again then. Delta and Iceberg keep them.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from quintet.spark.lake.files import may_have
    from quintet.spark.lake.sink import table_of

    table = table_of(path, format or kind(path))
    schema, paths = table.listing(version)
    if between:
        paths = [path for path in paths if may_have(path, between)]
    struct = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    if not paths:
        return spark.createDataFrame([], struct)
    return spark.read.schema(struct).option("ignoreCorruptFiles", "false").parquet(*map(str, paths))


def compact(path: str, format: str = "", *, target_bytes: int = 0) -> "Compaction":
    """Merge small files. Readers of Delta and Iceberg see it as one commit, those of Parquet as parquet.py says."""
    from quintet.spark.lake.sink import table_of
    from quintet.spark.lake.table import MERGED_BYTES

    return table_of(path, format or kind(path)).compact(target_bytes or MERGED_BYTES)
