"""An Iceberg table, written without a virtual machine: Spark's tasks write the files, `pyiceberg` commits them.

Its catalog is a SQLite file in the table (_quintet/catalog.db), so a table is one directory and needs no server; Iceberg
writes absolute paths, so it cannot be moved. The fence is a property of the table (quintet.fence.WRITER), set in the same
transaction as the files; snapshots carry writer and batch, too, for people. Partition values are identities, which
pyiceberg takes from the statistics of each file, where least and greatest are the same.
"""

import contextlib
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table as Opened

from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.files import OWN
from quintet.spark.lake.journal import INTENT, NONE, Commit
from quintet.spark.lake.schema import normal
from quintet.spark.lake.table import KEEP_HOURS, ONCE, Merge, Table

CATALOG: Final = f"{OWN}/catalog.db"
NAMESPACE: Final = "quintet"
NAME: Final = f"{NAMESPACE}.lake"
LABEL: Final = "quintet.writer"  # in the summary of a snapshot
FENCE: Final = "quintet.fence."
PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class Iceberg(Table):
    format: ClassVar[str] = "iceberg"
    _live: Opened | None = None  # for the time of one call

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
            return NONE if table is None else int(table.properties.get(FENCE + writer, NONE))

    def paths(self, version: int | None = None) -> list[Path]:
        with self._must_open() as table:
            tasks = list(table.scan(snapshot_id=version).plan_files())
        if any(task.delete_files for task in tasks):
            raise LakeError(
                f"the Iceberg table {self.path} has delete files, which only its own reader knows",
                hint="let the engine that deleted rows rewrite the data files first",
            )
        return sorted(Path(task.file.file_path.removeprefix("file://")) for task in tasks)

    def versions(self) -> list[int]:
        """The snapshots, oldest first: what `read(version=)` takes."""
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

    @contextlib.contextmanager
    def _catalog(self) -> Iterator[SqlCatalog]:
        catalog = SqlCatalog(NAMESPACE, uri=f"sqlite:///{self.path / CATALOG}", warehouse=f"file://{self.path}")
        try:
            yield catalog
        finally:
            catalog.close()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Opened | None]:
        if self._live is not None or not (self.path / CATALOG).exists():
            yield self._live
            return
        with self._catalog() as catalog:
            try:
                table = catalog.load_table(NAME)
            except NoSuchTableError:
                yield None
                return
            yield table

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
        with self._catalog() as catalog:
            catalog.create_namespace_if_not_exists(NAMESPACE)
            fresh = catalog.create_table_transaction(
                NAME, schema, location=f"file://{self.path}", properties=PROPERTIES
            )
            with fresh as transaction, transaction.update_spec() as spec:
                for column in columns:
                    spec.add_identity(column)

    def _publish(self, commit: Commit) -> None:
        self.journal.put(commit, INTENT)
        self.place(commit)
        labels = {LABEL: commit.writer, "quintet.epoch": str(commit.epoch)}
        paths = [str(self.path / file.path) for file in commit.files]
        with self._must_open() as table, table.transaction() as transaction:
            if not commit.writer.startswith(ONCE):
                transaction.set_properties({FENCE + commit.writer: str(commit.epoch)})
            transaction.add_files(paths, snapshot_properties=labels, check_duplicate_files=False)
        self.journal.settle(commit.writer, commit.epoch)

    def _recover(self, writer: str) -> None:
        self.recover_intent(writer)

    def _labelled(self, writer: str) -> bool:
        with self._must_open() as table:
            found = (snapshot.summary for snapshot in table.snapshots())
            return any(summary is not None and summary.get(LABEL) == writer for summary in found)

    def _expire(self) -> None:
        """pyiceberg forgets snapshots and leaves their files: those that no snapshot has any more are removed here."""
        limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=KEEP_HOURS)
        limit_ms = int(limit.timestamp() * 1000)
        with self._must_open() as table:
            current = table.current_snapshot()
            old = [one.snapshot_id for one in table.snapshots() if one.timestamp_ms < limit_ms and one != current]
            if not old:
                return
            table.maintenance.expire_snapshots().by_ids(old).commit()
            needed = set(table.inspect.all_files().column("file_path").to_pylist())
        for path in self.path.glob("**/part-*.parquet"):
            if str(path) not in needed and path.stat().st_mtime * 1000 < limit_ms:
                path.unlink()

    def _replace(self, merged: Sequence[Merge]) -> None:
        self.place(Commit("", 0, 0, tuple(one.file for one in merged)))
        gone = {str(path) for one in merged for path in one.gone}
        with self._must_open() as table:
            old = [
                task.file for task in table.scan().plan_files() if task.file.file_path.removeprefix("file://") in gone
            ]
            with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
                for data in old:
                    update.delete_data_file(data)
                for one in merged:
                    path = str(self.path / one.file.path)
                    update.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
