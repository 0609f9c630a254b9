"""A Delta table, written without a virtual machine: Spark's tasks write the files, `deltalake` commits them.

The fence is Delta's own: a transaction of an application (`txn`: writer, epoch) in the same log entry as the files. Files are
put in place before the log names them, under an intent (journal.py) that says whose they are if the driver dies in between.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.transaction import AddAction, RemoveAction, Transaction

from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.files import File
from quintet.spark.lake.journal import INTENT, NONE, Commit
from quintet.spark.lake.schema import normal
from quintet.spark.lake.table import COMPACTOR, KEEP_HOURS, ONCE, Merge, Table

LABEL: Final = "quintetWriter"  # in the information of a commit


class Delta(Table):
    format: ClassVar[str] = "delta"

    def schema(self) -> pa.Schema | None:
        table = self._open()
        return None if table is None else normal(pa.schema(table.schema()))

    def partition_by(self) -> tuple[str, ...]:
        table = self._open()
        return () if table is None else tuple(table.metadata().partition_columns)

    def fence(self, writer: str) -> int:
        table = self._open()
        found = None if table is None else table.transaction_version(writer)
        return NONE if found is None else found

    def paths(self, version: int | None = None) -> list[Path]:
        table = DeltaTable(str(self.path), version=version)
        if pa.table(table.deletion_vectors()).num_rows:
            raise LakeError(
                f"the Delta table {self.path} marks rows as deleted (deletion vectors), which only its own reader knows",
                hint="let the engine that deleted them purge the files (REORG TABLE ... APPLY (PURGE)) first",
            )
        return sorted(Path(uri.removeprefix("file://")) for uri in table.file_uris())

    def _open(self) -> DeltaTable | None:
        return DeltaTable(str(self.path)) if DeltaTable.is_deltatable(str(self.path)) else None

    def _prepare(self, before: pa.Schema | None, schema: pa.Schema) -> None:
        if before is None:
            DeltaTable.create(str(self.path), Schema.from_arrow(schema), partition_by=list(self.columns()))
            return
        fresh = Schema.from_arrow(pa.schema([field for field in schema if field.name not in before.names]))
        DeltaTable(str(self.path)).alter.add_columns(list(fresh.fields))

    def _publish(self, commit: Commit) -> None:
        self.journal.put(commit, INTENT)
        self.place(commit)
        fences = [] if commit.writer.startswith(ONCE) else [Transaction(commit.writer, commit.epoch)]
        properties = CommitProperties(custom_metadata={LABEL: commit.writer}, app_transactions=fences)
        self._write([_added(file, True) for file in commit.files], properties)
        self.journal.settle(commit.writer, commit.epoch)

    def _write(self, actions: list[AddAction | RemoveAction], properties: CommitProperties) -> None:
        table = DeltaTable(str(self.path))
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
        return any(entry.get(LABEL) == writer for entry in DeltaTable(str(self.path)).history())

    def _expire(self) -> None:
        DeltaTable(str(self.path)).vacuum(KEEP_HOURS, dry_run=False)

    def _replace(self, merged: Sequence[Merge]) -> None:
        self.place(Commit("", 0, 0, tuple(one.file for one in merged)))
        now = _now_ms()
        gone = [path for one in merged for path in one.gone]
        actions: list[AddAction | RemoveAction] = [_added(one.file, False) for one in merged]
        actions += [RemoveAction(str(path.relative_to(self.path)), False, now) for path in gone]
        self._write(actions, CommitProperties(custom_metadata={LABEL: COMPACTOR}))


def _added(file: File, change: bool) -> AddAction:
    return AddAction(file.path, file.bytes, file.values, _now_ms(), change, file.stats)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
