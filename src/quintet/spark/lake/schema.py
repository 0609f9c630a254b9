"""Normalizes the types of a table's columns, adds new columns, and refuses changed ones.

Spark, Delta, Iceberg and pyarrow have several types for the same values (the name of a list's items, a time zone that only changes how
a time is printed, offsets of 32 or 64 bits). `normal` gives the types that files are written with. No I/O here.

A field cannot be added to a struct: a struct with other fields is a changed type.
"""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.lake.errors import LakeError

ORDER: Final = ("topic", "partition", "offset")  # rows of a file are sorted by these columns, as far as it has them
NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"  # what Hive, Spark and DuckDB take for null
DIRECTORY_BYTES_MAX: Final = 200  # of a name; file systems end at 255
SHORTENED: Final = "~"


def normal(schema: pa.Schema) -> pa.Schema:
    """The same columns as files have them: nullable, 32-bit offsets, UTC, lists of `element`."""
    return pa.schema([pa.field(field.name, normal_type(field.type)) for field in schema])


def normal_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if pa.types.is_large_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()  # Iceberg has no smaller ones
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_map(kind):
        return pa.map_(normal_type(kind.key_type), normal_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(pa.field("element", normal_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, normal_type(field.type)) for field in kind])
    return kind


def union(table: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """The table's columns and then those that are new in `rows`, both normal. LakeError for a column whose type changed, and
    for one whose name differs from another's by case alone: Spark and Delta could not tell them apart any more."""
    known = {name.lower(): name for name in reversed(table.names)}
    for field in rows:
        if table.get_field_index(field.name) < 0 and field.name.lower() in known:
            raise LakeError(
                f"column {field.name!r} of the rows and {known[field.name.lower()]!r} of the table differ by case alone",
                hint="use the same name, or a different one",
            )
        index = table.get_field_index(field.name)
        if index >= 0 and table.field(index).type != field.type:
            raise LakeError(
                f"column {field.name!r} is {table.field(index).type} in the table and {field.type} in the rows",
                hint="cast it, give it another name, or write to another path",
            )
    return pa.schema([*table, *(field for field in rows if table.get_field_index(field.name) < 0)])


def check_partitions(schema: pa.Schema, columns: Sequence[str]) -> None:
    """LakeError unless the table can be partitioned by these columns."""
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise LakeError(
                f"there is no column {name!r} to partition by", hint=f"the columns are {', '.join(schema.names)}"
            )
        kind = schema.field(index).type
        fits = (pa.types.is_string, pa.types.is_date32, pa.types.is_integer, pa.types.is_boolean)
        if not any(fit(kind) for fit in fits):
            raise LakeError(
                f"column {name!r} is {kind}, which cannot be partitioned by",
                hint="text, whole numbers, dates and booleans can",
            )
    if len(set(columns)) < len(columns):
        raise LakeError(f"a column is named twice in {', '.join(columns)}", hint="partition by each once")


def text(value: object) -> str | None:
    """A partition value as Delta's log and Hive's directories write it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.date):
        return value.isoformat()
    return str(value)


def directory(values: Mapping[str, str | None]) -> str:
    """date=2026-11-16/topic=orders. A very long value is cut here; the column in the files has it whole."""
    return "/".join(
        f"{_escaped(name)}={NULL_DIRECTORY if value is None else _escaped(value)}" for name, value in values.items()
    )


def _escaped(word: str) -> str:
    """Escaped as Hive does: without characters that have a meaning in a path, a glob or a URL."""
    name = quote(word, safe="") or NULL_DIRECTORY
    if len(name) <= DIRECTORY_BYTES_MAX:
        return name
    digest = hashlib.blake2b(word.encode(), digest_size=8).hexdigest()
    kept = name[: DIRECTORY_BYTES_MAX - len(digest) - 3]
    return kept[: kept.rfind("%") if "%" in kept[-2:] else None] + SHORTENED + digest
