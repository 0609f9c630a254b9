"""Writes rows to Parquet files and reads files for merging. Commits nothing.

A task collects its rows in one heap per partition value. A heap that reaches FILE_BYTES, or the largest one when all together reach
HEAPS_BYTES_MAX, becomes a file: sorted by topic, partition and offset, compressed, and synced before its name is reported. Files are
staged under _quintet/staging/WRITER/BATCH with a name that a glob for *.parquet does not find:

    TABLE/date=2026-11-16/topic=orders/part-WRITER-BATCH-ID.parquet      what readers see
    TABLE/_quintet/staging/WRITER/BATCH/ID.part                          staged

`in_place` writes them at their final path instead: for a Delta or Iceberg table in an object store, where a rename is a copy and the
table's own log says which files are part of it.

Partition columns are also in the files: they compress to almost nothing, Iceberg needs them, and readers need not guess their types.
"""

import datetime
import functools
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from quintet.spark.lake import schema as columns
from quintet.spark.lake.storage.objects import TablePath, writing

Statistic: TypeAlias = Any  # the lowest or highest value of a column, of the column's own type
Between = Mapping[str, tuple[str | int | float, str | int | float]]  # column -> lowest and highest value

OWN: Final = "_quintet"  # our directory in a table; readers skip names that begin with _
STAGING: Final = f"{OWN}/staging"
FILE_BYTES: Final = 128 << 20  # of rows in memory that make a file; about a third of it on the disk
HEAPS_BYTES_MAX: Final = 256 << 20  # of rows that one task holds
ROW_GROUP_ROWS: Final = 1 << 17
COMPRESSION: Final = "zstd"
COMPRESSION_LEVEL: Final = 1
STAGED_SUFFIX: Final = ".part"
FOOTERS_KEPT: Final = 10_000  # files whose statistics are cached
WRITER_LETTERS: Final = 40  # of a writer's name in its file names; the staging directory has all of it


class File(msgspec.Struct, frozen=True):
    """One Parquet file: its staged and its final path, relative to the table; `stats` as in Delta's log."""

    staged: str
    path: str
    rows: int
    bytes: int
    values: dict[str, str | None]
    stats: str


class Heaps:
    """Collects the rows of one task by partition value and writes them to files."""

    def __init__(
        self, table: TablePath, writer: str, batch_id: int, partition_by: Sequence[str], *, in_place: bool = False
    ) -> None:
        self._table = table
        self._in_place = in_place
        self._writer = writer
        self._batch_id = batch_id
        self._columns = tuple(partition_by)
        self._heaps: dict[tuple[str | None, ...], list[pa.RecordBatch]] = {}
        self._sizes: dict[tuple[str | None, ...], int] = {}
        self.files: list[File] = []
        self.schema: pa.Schema | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self.schema is None:
            self.schema = columns.normal(batch.schema)
        if batch.schema != self.schema:
            batch = batch.cast(self.schema)
        for values, rows in split(batch, self._columns):
            self._heaps.setdefault(values, []).append(rows)
            self._sizes[values] = self._sizes.get(values, 0) + rows.nbytes
            if self._sizes[values] >= FILE_BYTES:
                self._flush(values)
        while sum(self._sizes.values()) >= HEAPS_BYTES_MAX:
            self._flush(max(self._sizes, key=self._sizes.__getitem__))

    def finish(self) -> list[File]:
        for values in list(self._heaps):
            self._flush(values)
        return self.files

    def discard(self) -> None:
        """Remove the files that were written."""
        for file in self.files:
            (self._table / file.staged).unlink(missing_ok=True)

    def _flush(self, values: tuple[str | None, ...]) -> None:
        del self._sizes[values]
        rows = pa.Table.from_batches(self._heaps.pop(values), self.schema)
        named = dict(zip(self._columns, values, strict=True))
        made = write_file(self._table, self._writer, self._batch_id, named, rows, in_place=self._in_place)
        self.files.append(made)


def split(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """The rows of each combination of values of these columns, in their order."""
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    words: list[list[str | None]] = []
    for name in names:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        words.append([columns.text(value) for value in encoded.dictionary.to_pylist()])
        codes = codes * len(words[-1]) + encoded.indices.to_numpy(zero_copy_only=False)
    for code in np.unique(codes).tolist():
        values: list[str | None] = []
        rest = code
        for known in reversed(words):
            rest, index = divmod(rest, len(known))
            values.append(known[index])
        chosen = np.flatnonzero(codes == code)
        whole = len(chosen) == batch.num_rows
        yield tuple(reversed(values)), batch if whole else batch.take(pa.array(chosen))


def write_file(
    table: TablePath,
    writer: str,
    batch_id: int,
    values: dict[str, str | None],
    rows: pa.Table,
    place: str | None = None,
    *,
    in_place: bool = False,
) -> File:
    """Write these rows to one staged file, sorted and synced. `place`: its final directory, if it is known already."""
    id = uuid.uuid4().hex
    place = columns.directory(values) if place is None else place
    name = f"part-{quote(writer, safe='')[:WRITER_LETTERS]}-{batch_id:010d}-{id}.parquet"
    path = f"{place}/{name}" if place else name
    staged = path if in_place else str(staging(writer, batch_id) / f"{id}{STAGED_SUFFIX}")
    rows = ordered(rows)
    with writing(table / staged) as sink:
        pq.write_table(
            rows,
            sink,
            compression=COMPRESSION,
            compression_level=COMPRESSION_LEVEL,
            row_group_size=ROW_GROUP_ROWS,
            use_dictionary=[field.name for field in rows.schema if repeats(field.type)],
            write_statistics=[field.name for field in rows.schema if has_statistics(rows, field)],
        )
        size = sink.tell()
    return File(staged, path, rows.num_rows, size, values, statistics(rows))


def repeats(kind: pa.DataType) -> bool:
    """Whether to try dictionary encoding: not for times, which differ, nor for bytes, which are large."""
    return bool(pa.types.is_string(kind) or pa.types.is_int32(kind) or pa.types.is_date32(kind))


def has_statistics(rows: pa.Table, field: pa.Field) -> bool:
    """Whether a column gets statistics: not one with a time outside the years 1 to 9999, which Python readers (pyiceberg) cannot
    represent, and no nested one, because no query filters by it."""
    if pa.types.is_nested(field.type):
        return False
    if not pa.types.is_temporal(field.type):
        return True
    try:
        pc.min_max(rows.column(field.name)).as_py()
    except (OverflowError, ValueError):
        return False
    return True


def staging(writer: str, batch_id: int) -> Path:
    return Path(STAGING) / quote(writer, safe="") / str(batch_id)


def ordered(rows: pa.Table) -> pa.Table:
    """The rows sorted by topic, partition and offset, as far as they have these columns. Most often they are sorted already."""
    names = [name for name in columns.ORDER if name in rows.column_names]
    if not names or is_ordered(rows, names):
        return rows
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])
    return rows.take(order)


def is_ordered(rows: pa.Table, names: Sequence[str]) -> bool:
    if rows.num_rows < 2:
        return True
    if any(rows.column(name).null_count for name in names):
        return False
    undecided = np.ones(rows.num_rows - 1, dtype=bool)  # neighbours that are equal so far
    for name in names:
        column = rows.column(name).combine_chunks()
        before, after = column.slice(0, rows.num_rows - 1), column.slice(1)
        if (undecided & pc.greater(before, after).to_numpy(zero_copy_only=False)).any():
            return False
        undecided &= pc.equal(before, after).to_numpy(zero_copy_only=False)
        if not undecided.any():
            return True
    return True


def statistics(rows: pa.Table) -> str:
    """The statistics of a file as Delta's log has them, by which readers skip files."""
    least: dict[str, int | str] = {}
    most: dict[str, int | str] = {}
    nulls: dict[str, int] = {}
    for field in rows.schema:
        if pa.types.is_integer(field.type) or pa.types.is_date32(field.type) or pa.types.is_timestamp(field.type):
            nulls[field.name] = rows.column(field.name).null_count
            known = has_statistics(rows, field)
            found: dict[str, Statistic] = pc.min_max(rows.column(field.name)).as_py() if known else {"min": None}
            if found["min"] is not None:
                least[field.name], most[field.name] = _json(found["min"]), _json(found["max"])
    return json.dumps({"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls})


def _json(value: int | datetime.date) -> int | str:
    if isinstance(value, int):
        return value
    return value.isoformat().replace("+00:00", "Z")


def opened(path: TablePath) -> pq.ParquetFile:
    return pq.ParquetFile(path if isinstance(path, Path) else path.input_file())


def read_files(paths: Iterable[TablePath]) -> pa.Table:
    """The rows of some files of one table. Columns are matched by name; one that a file lacks is null in its rows."""
    tables = []
    for path in paths:
        with opened(path) as file:
            rows = file.read()
        tables.append(rows.cast(columns.normal(rows.schema)))
    return pa.concat_tables(tables, promote_options="default")


def may_have(path: TablePath, between: Between) -> bool:
    """Whether a file can have rows between these values, by its statistics."""
    known = extremes(path)
    return all(
        name not in known or (known[name][0] <= high and low <= known[name][1]) for name, (low, high) in between.items()
    )


@functools.lru_cache(maxsize=FOOTERS_KEPT)
def extremes(path: TablePath) -> dict[str, tuple[Statistic, Statistic]]:
    """Column -> lowest and highest value, for columns with statistics. Cached: files never change."""
    with opened(path) as file:
        meta = file.metadata
        found: dict[str, tuple[Statistic, Statistic]] = {}
        for index in range(meta.num_columns):
            stats = [meta.row_group(group).column(index).statistics for group in range(meta.num_row_groups)]
            if stats and all(one is not None and one.has_min_max for one in stats):
                name = meta.row_group(0).column(index).path_in_schema
                found[name] = (min(one.min for one in stats), max(one.max for one in stats))
    return found


def weight(path: TablePath) -> int:
    """About how many bytes the rows of a file take in memory."""
    with opened(path) as file:
        meta = file.metadata
        return sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))


def fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
