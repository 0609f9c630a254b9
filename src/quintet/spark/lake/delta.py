"""Writes Delta tables without Delta's Java library: Spark's tasks write the files, the package `deltalake` commits them.

The fence is Delta's own: an application transaction (`txn`: writer, batch id) in the same log entry as the files. Files are renamed to
their final paths before the log names them; an intent (journal.py) says whose they are if the driver dies in between.

In an object store tasks write files at their final paths, and there is no intent. `deltalake` writes a log entry only if there is none
with its number, and refuses a second transaction of the same application that began before the first: of two drivers with one
checkpoint one commits, and the other finds the batch committed.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction, Transaction

from quintet.spark.lake.errors import LakeError, Outrun
from quintet.spark.lake.schema import normal
from quintet.spark.lake.storage.files import File
from quintet.spark.lake.storage.journal import INTENT, NONE, Commit
from quintet.spark.lake.storage.objects import ObjectPath, TablePath
from quintet.spark.lake.storage.options import plain
from quintet.spark.lake.table import COMPACTOR, KEEP_HOURS, ONCE, LakeTable, Merge, relative

LABEL: Final = "quintetWriter"  # key in the metadata of a commit
TRIES_MAX: Final = 10  # of one merge, while others commit


class Delta(LakeTable):
    format: ClassVar[str] = "delta"

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else normal(pa.schema(table.schema()))

    def partition_by(self) -> tuple[str, ...]:
        table = self._open()
        return () if table is None else tuple(table.metadata().partition_columns)

    def fence(self, writer: str) -> int:
        table = self._open()
        return NONE if table is None else _fence(table, writer)

    def paths(self, version: int | None = None) -> Sequence[TablePath]:
        table = self.load(version)
        if pa.table(table.deletion_vectors()).num_rows:
            raise LakeError(
                f"the Delta table {self.path} marks rows as deleted (deletion vectors), which only its own reader knows",
                hint="let the engine that deleted them purge the files (REORG TABLE ... APPLY (PURGE)) first",
            )
        return sorted(self._files(table))

    def _files(self, table: DeltaTable) -> list[TablePath]:
        if isinstance(self.path, ObjectPath):
            return [self.path.of(uri) for uri in table.file_uris()]
        return [Path(uri.removeprefix("file://")) for uri in table.file_uris()]

    @property
    def _options(self) -> dict[str, str] | None:
        """deltalake's storage_options."""
        at = self.path
        return at.storage.delta(at.store, at.authority) if isinstance(at, ObjectPath) else None

    def load(self, version: int | None = None) -> DeltaTable:
        with plain(self.path):
            return DeltaTable(str(self.path), version=version, storage_options=self._options)

    def _open(self) -> DeltaTable | None:
        with plain(self.path):
            there = DeltaTable.is_deltatable(str(self.path), self._options)
        return self.load() if there else None

    def _prepare(self, before: pa.Schema | None, schema: pa.Schema) -> None:
        if before is None:
            columns = list(self.columns())
            with plain(self.path):
                DeltaTable.create(
                    str(self.path), Schema.from_arrow(schema), partition_by=columns, storage_options=self._options
                )
            return
        fresh = Schema.from_arrow(pa.schema([field for field in schema if field.name not in before.names]))
        with plain(self.path):
            self.load().alter.add_columns(list(fresh.fields))

    def _publish(self, commit: Commit) -> None:
        if not self.in_place:
            self.journal.put(commit, INTENT)
        self.place(commit)
        fences = [] if commit.writer.startswith(ONCE) else [Transaction(commit.writer, commit.batch_id)]
        properties = CommitProperties(custom_metadata={LABEL: commit.writer}, app_transactions=fences)
        outrun = Outrun(f"batch {commit.batch_id} of {commit.writer} is in {self.path} already")
        table = (
            self.load()
        )  # deltalake sees a conflict with what came after this state, so the fence is looked at in it
        if fences and _fence(table, commit.writer) >= commit.batch_id:
            raise outrun
        try:
            self.write(table, [added(file, True) for file in commit.files], properties)
        except CommitFailedError:
            if fences and self.fence(commit.writer) >= commit.batch_id:
                raise outrun from None
            raise
        if self.in_place:
            self.journal.put(commit)
        else:
            self.journal.mark_committed(commit.writer, commit.batch_id)

    def write(self, table: DeltaTable, actions: list[AddAction | RemoveAction], properties: CommitProperties) -> None:
        with plain(self.path, CommitFailedError):
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=properties,
            )

    def _recover(self, writer: str) -> None:
        self.recover_intent(writer)

    def _labelled(self, writer: str) -> bool:
        return any(entry.get(LABEL) == writer for entry in self.load().history())

    def _expire(self) -> None:
        """In an object store also removes files that the log never named: those of killed tasks."""
        with plain(self.path):
            if self.in_place:
                self.load().vacuum(KEEP_HOURS, dry_run=False, full=True)
            else:
                self.load().vacuum(KEEP_HOURS, dry_run=False)

    def _replace(self, merged: Sequence[Merge]) -> None:
        """deltalake carries a commit past others by itself, also past one that removes the same files: the merged rows would be
        there twice. So its retries are off, and each of ours looks whether the files are in the state that it writes to."""
        gone = [path for one in merged for path in one.gone]
        now = _now_ms()
        actions: list[AddAction | RemoveAction] = [added(one.file, False) for one in merged]
        actions += [RemoveAction(str(relative(path, self.path)), False, now) for path in gone]
        properties = CommitProperties(custom_metadata={LABEL: COMPACTOR}, max_commit_retries=0)
        self.place(Commit("", 0, 0, tuple(one.file for one in merged)))
        for _ in range(TRIES_MAX):
            table = self.load()
            if not {*gone} <= {*self._files(table)}:
                raise self.merged_by_another()
            try:
                self.write(table, actions, properties)
                return
            except CommitFailedError:
                continue
        raise Outrun(f"others committed to {self.path} each of {TRIES_MAX} times; its small files were not merged")


def _fence(table: DeltaTable, writer: str) -> int:
    found = table.transaction_version(writer)
    return NONE if found is None else found


def added(file: File, change: bool) -> AddAction:
    return AddAction(file.path, file.bytes, file.values, _now_ms(), change, file.stats)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
