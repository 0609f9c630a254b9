"""Stores format, columns and identity of a table in one small file: TABLE/_quintet/table.json.

Of a Parquet table this is the only record. Delta and Iceberg have logs of their own, which each commit reads. There the file is a copy:
it tells `read` the format, and Spark's planning processes and tasks need not load the libraries of the formats.
"""

import base64
import uuid
from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.schema import check_partitions, normal, union
from quintet.spark.lake.storage.files import OWN
from quintet.spark.lake.storage.journal import replace
from quintet.spark.lake.storage.objects import TablePath

FILE: Final = f"{OWN}/table.json"


class Meta(msgspec.Struct, frozen=True):
    """`columns` is for people; `arrow` (the schema as Arrow serializes it, in base64) is what is used."""

    format: str
    partition_by: tuple[str, ...]
    columns: dict[str, str]
    arrow: str
    identity: str = (
        ""  # random, made with the table, so a table that is made again has another; "" in tables of old versions
    )

    @property
    def schema(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(self.arrow)))


def load(table: TablePath) -> Meta | None:
    try:
        return msgspec.json.decode((table / FILE).read_bytes(), type=Meta)
    except FileNotFoundError:
        return None


def save(
    table: TablePath, format: str, partition_by: tuple[str, ...], schema: pa.Schema, *, made: bool = False
) -> None:
    """`made`: the table is new. A file that exists then belongs to a table that a catalog dropped without its files."""
    columns = {field.name: str(field.type) for field in schema}
    arrow = base64.b64encode(schema.serialize().to_pybytes()).decode()
    known = None if made else load(table)
    identity = (known.identity if known is not None else "") or uuid.uuid4().hex
    replace(table / FILE, msgspec.json.encode(Meta(format, partition_by, columns, arrow, identity)))


def fitting(
    table: TablePath, before: pa.Schema | None, there: tuple[str, ...], given: Sequence[str] | None, schema: pa.Schema
) -> pa.Schema:
    """The columns that a table has after rows of this schema; LakeError if it cannot take them.

    `before`, `there`: columns and partition columns of the table, if there is one; `given`: those that the writer names.
    """
    rows = normal(schema)
    if before is None:
        check_partitions(rows, given or ())
        return rows
    if given is not None and tuple(given) != there:
        raise LakeError(
            f"the table {table} is partitioned by {', '.join(there) or 'nothing'}, not by {', '.join(given) or 'nothing'}",
            hint="name the same columns, or write to another path",
        )
    check_partitions(rows, there)
    return union(before, rows)
