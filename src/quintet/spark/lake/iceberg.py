"""Writes Iceberg tables without Iceberg's Java library: Spark's tasks write the files, the package `pyiceberg` commits them.

The catalog of a table in a directory is a SQLite file in it (_quintet/catalog.db), so a table is one directory and needs no server;
it cannot be moved, because Iceberg writes absolute paths. In an object store, and if catalog.* options are set, the catalog is one of
the user: these options go to pyiceberg unchanged and take precedence over ~/.pyiceberg.yaml and PYICEBERG_*. The fence is a
property of the table (quintet.fence.WRITER), set in the same transaction as the files; the summaries of snapshots also have writer and
batch, for people. Partitions are by identity: pyiceberg takes the value from the statistics of each file, whose lowest and highest
value are the same.

After a conflict pyiceberg rebuilds an append and commits it again. That would ignore a fence that another driver has set meanwhile,
so its retries are off, and each of ours checks the fence in the table that it appends to.
"""

import contextlib
import datetime
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table as Opened
from pyiceberg.table import TableProperties

from quintet.spark.lake.errors import LakeError, Outrun
from quintet.spark.lake.schema import normal
from quintet.spark.lake.storage.files import OWN
from quintet.spark.lake.storage.journal import INTENT, NONE, Commit
from quintet.spark.lake.storage.objects import ObjectPath, TablePath
from quintet.spark.lake.storage.options import plain
from quintet.spark.lake.table import KEEP_HOURS, ONCE, LakeTable, Merge

CATALOG: Final = f"{OWN}/catalog.db"
NAMESPACE: Final = "quintet"
NAME: Final = f"{NAMESPACE}.lake"
LABEL: Final = "quintet.writer"  # key in the summary of a snapshot
FENCE: Final = "quintet.fence."
TRIES_MAX: Final = 10  # of one commit, while other writers commit
OURS: Final = (
    "name",
    "table",
)  # options catalog.* that pyiceberg does not know: the catalog in ~/.pyiceberg.yaml, and NAMESPACE.TABLE in it
PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class Iceberg(LakeTable):
    format: ClassVar[str] = "iceberg"
    _live: Opened | None = None  # during one call

    def schema(self) -> pa.Schema | None:
        with self._opened() as table:
            return None if table is None else normal(table.schema().as_arrow())

    def partition_by(self) -> tuple[str, ...]:
        with self._opened() as table:
            if table is None:
                return ()
            return tuple(str(table.schema().find_column_name(field.source_id)) for field in table.spec().fields)

    def fence(self, writer: str) -> int:
        with self._opened() as table:
            return NONE if table is None else _fence(table, writer)

    def paths(self, version: int | None = None) -> Sequence[TablePath]:
        with self._must_open() as table:
            tasks = list(table.scan(snapshot_id=version).plan_files())
        if any(task.delete_files for task in tasks):
            raise LakeError(
                f"the Iceberg table {self.path} has delete files, which only its own reader knows",
                hint="let the engine that deleted rows rewrite the data files first",
            )
        return sorted(self._file(task.file.file_path) for task in tasks)

    def versions(self) -> list[int]:
        """The ids of the snapshots, oldest first, for `read(version=)`."""
        with self._must_open() as table:
            return [snapshot.snapshot_id for snapshot in table.snapshots()]

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        with self._opened() as table:
            self._live = table
            try:
                yield
            finally:
                self._live = None

    @property
    def _own_catalog(self) -> bool:
        return isinstance(self.path, Path) and not self.catalog

    @property
    def _name(self) -> str:
        """NAMESPACE.TABLE in the catalog."""
        if self._own_catalog:
            return NAME
        found = self.catalog.get("table") or f"{NAMESPACE}.{re.sub('[^A-Za-z0-9_]', '_', self.path.name)}"
        if not all(found.split(".")) or "." not in found:
            raise LakeError(
                "option catalog.table is not of the form NAMESPACE.TABLE", hint="write for instance db.orders"
            )
        return found

    @property
    def _location(self) -> str:
        return str(self.path) if isinstance(self.path, ObjectPath) else f"file://{self.path}"

    def _file(self, uri: str) -> TablePath:
        return self.path.of(uri) if isinstance(self.path, ObjectPath) else Path(uri.removeprefix("file://"))

    @contextlib.contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        at = self.path
        if self._own_catalog:
            catalog: Catalog = SqlCatalog(NAMESPACE, uri=f"sqlite:///{at / CATALOG}", warehouse=f"file://{at}")
        else:
            given: dict[str, str | None] = {
                **(at.storage.iceberg(at.store, at.authority) if isinstance(at, ObjectPath) else {}),
                **{key: value for key, value in self.catalog.items() if key not in OURS},
            }
            try:
                catalog = load_catalog(self.catalog.get("name"), **given)
            except (ValueError, KeyError):  # their text has all properties, also passwords
                raise LakeError(
                    f"there is no catalog for the Iceberg table {at}",
                    hint="set catalog.type (rest, glue, sql, hive) and catalog.uri, or describe it in ~/.pyiceberg.yaml",
                ) from None
        try:
            yield catalog
        finally:
            catalog.close()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Opened | None]:
        if self._live is not None:
            _without_retries(self._live)  # a commit replaces the properties
            yield self._live
            return
        if self._own_catalog and not (self.path / CATALOG).exists():
            yield None
            return
        with plain(self.path, CommitFailedException), self._catalog() as catalog:
            try:
                table = catalog.load_table(self._name)
            except NoSuchTableError:
                yield None
                return
            self._check_location(table)
            _without_retries(table)
            yield table

    def _check_location(self, table: Opened) -> None:
        if not self._own_catalog and table.location().rstrip("/") != self._location:
            raise LakeError(
                f"{self._name} of the catalog is at {table.location()}, not at {self._location}",
                hint="write to that path, or name another table with catalog.table",
            )

    @contextlib.contextmanager
    def _must_open(self) -> Iterator[Opened]:
        with self._opened() as table:
            if table is None:
                raise LakeError(f"there is no Iceberg table at {self.path}", hint="check path and format")
            yield table

    def _prepare(self, before: pa.Schema | None, schema: pa.Schema) -> None:
        if before is not None:
            with self._must_open() as table, table.update_schema() as update:
                update.union_by_name(schema)
            return
        columns = self.columns()
        with plain(self.path), self._catalog() as catalog:
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            fresh = catalog.create_table_transaction(self._name, schema, location=self._location, properties=PROPERTIES)
            with fresh as transaction, transaction.update_spec() as spec:
                for column in columns:
                    spec.add_identity(column)

    def _publish(self, commit: Commit) -> None:
        if not self.in_place:
            self.journal.put(commit, INTENT)
        self.place(commit)
        for left in reversed(range(TRIES_MAX)):
            try:
                self._append(commit)
                break
            except CommitFailedException:
                self._live = None  # it is the state before that commit
                if not left:
                    raise
        if self.in_place:
            self.journal.put(commit)
        else:
            self.journal.mark_committed(commit.writer, commit.batch_id)

    def _append(self, commit: Commit) -> None:
        labels = {LABEL: commit.writer, "quintet.epoch": str(commit.batch_id)}
        paths = [str(self.path / file.path) for file in commit.files]
        fenced = not commit.writer.startswith(ONCE)
        with self._must_open() as table:
            if fenced and _fence(table, commit.writer) >= commit.batch_id:
                raise Outrun(f"batch {commit.batch_id} of {commit.writer} is in {self.path} already")
            with table.transaction() as transaction:
                if fenced:
                    transaction.set_properties({FENCE + commit.writer: str(commit.batch_id)})
                transaction.add_files(paths, snapshot_properties=labels, check_duplicate_files=False)

    def _recover(self, writer: str) -> None:
        self.recover_intent(writer)

    def _labelled(self, writer: str) -> bool:
        with self._must_open() as table:
            found = (snapshot.summary for snapshot in table.snapshots())
            return any(summary is not None and summary.get(LABEL) == writer for summary in found)

    def _expire(self) -> None:
        """pyiceberg removes snapshots and leaves their files: remove those that no snapshot has any more."""
        limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=KEEP_HOURS)
        limit_ms = int(limit.timestamp() * 1000)
        with self._must_open() as table:
            current = table.current_snapshot()
            old = [one.snapshot_id for one in table.snapshots() if one.timestamp_ms < limit_ms and one != current]
            if not old:
                return
            table.maintenance.expire_snapshots().by_ids(old).commit()
            needed = set(table.inspect.all_files().column("file_path").to_pylist())
        there = (
            (path for path in self.path.walk() if re.fullmatch(r"part-.*\.parquet", path.name))
            if isinstance(self.path, ObjectPath)
            else self.path.glob("**/part-*.parquet")
        )
        for path in there:
            if str(path) not in needed and path.stat().st_mtime * 1000 < limit_ms:
                path.unlink()

    def _replace(self, merged: Sequence[Merge]) -> None:
        self.place(Commit("", 0, 0, tuple(one.file for one in merged)))
        gone = {str(path) for one in merged for path in one.gone}
        with self._must_open() as table:
            old = [
                task.file for task in table.scan().plan_files() if task.file.file_path.removeprefix("file://") in gone
            ]
            try:
                with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
                    for data in old:
                        update.delete_data_file(data)
                    for one in merged:
                        path = str(self.path / one.file.path)
                        update.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
            except CommitFailedException:
                raise self.merged_by_another() from None


def _fence(table: Opened, writer: str) -> int:
    return int(table.properties.get(FENCE + writer, NONE))


def _without_retries(table: Opened) -> None:
    """Switch pyiceberg's retries off, in memory only. The head of this file says why."""
    table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
