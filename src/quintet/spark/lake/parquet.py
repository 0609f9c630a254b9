"""Writes a table of plain Parquet files in Hive's directories, which DuckDB, Polars, pandas and Spark can read.

    TABLE/_quintet/table.json                     columns and partition columns
    TABLE/_quintet/commits/WRITER/BATCH.json      the commit (journal.py); the renames follow

Readers see only committed rows, and after a commit each row once. While the renames of a batch run, a reader that lists files sees
some of its files before others; `read` of this package waits for the lock and sees all or none. Compaction exchanges a whole
directory in one step (swap.py).
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import ClassVar

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.lake import meta
from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.storage import swap
from quintet.spark.lake.storage.files import OWN, STAGING, fsync_directory
from quintet.spark.lake.storage.journal import NONE, Commit
from quintet.spark.lake.storage.objects import TablePath
from quintet.spark.lake.table import ONCE, LakeTable, Merge


class ParquetTable(LakeTable):
    format: ClassVar[str] = "parquet"

    def schema(self) -> pa.Schema | None:
        known = meta.load(self.path)
        return None if known is None else known.schema

    def partition_by(self) -> tuple[str, ...]:
        known = meta.load(self.path)
        return () if known is None else known.partition_by

    def fence(self, writer: str) -> int:
        return self.journal.last(writer)

    def paths(self, version: int | None = None) -> Sequence[TablePath]:
        self.check_version(version)
        return sorted(path for path in self.folder.rglob("*.parquet") if not hidden(path.relative_to(self.folder)))

    def check_version(self, version: int | None) -> None:
        if version is not None:
            raise LakeError("a Parquet table has no versions", hint="archive to delta or iceberg to look back")

    @property
    def folder(self) -> Path:
        assert isinstance(self.path, Path), "opening.py refuses a Parquet table in an object store"
        return self.path

    def _prepare(self, before: pa.Schema | None, schema: pa.Schema) -> None:
        """Nothing: the table is described by meta.py alone."""

    def _publish(self, commit: Commit) -> None:
        for folder in {(self.folder / file.staged).parent for file in commit.files}:
            fsync_directory(folder)
        self.journal.put(commit)
        self.place(commit)

    def _recover(self, writer: str) -> None:
        """Repeat the renames of the writer's last commit, the only one where they can be missing, and those of ONCE writers, which have no
        next commit of their own."""
        swap.recover(self.folder)
        for name in {writer, *(name for name in self.journal.writers() if name.startswith(ONCE))}:
            last = self.journal.get(name, self.journal.last(name))
            if last is not None:
                self.place(last)
                if name != writer:
                    self.journal.forget(name)

    def _labelled(self, writer: str) -> bool:
        return self.fence(writer) != NONE

    def _expire(self) -> None:
        """Nothing: there are no versions, and merged files are removed at once."""

    def _replace(self, merged: Sequence[Merge]) -> None:
        places: dict[str, list[Merge]] = defaultdict(list)
        for one in merged:
            places[str(Path(one.file.path).parent)].append(one)
        if "." in places:
            raise LakeError(
                f"the table {self.path} has no partition columns, so its files cannot be exchanged at once",
                hint="partition it, or use delta or iceberg",
            )
        for place, changes in places.items():
            gone = [self.folder / place / path.name for one in changes for path in one.gone]
            fresh = {self.folder / one.file.staged: Path(one.file.path).name for one in changes}
            swap.replace_files(self.folder, place, gone, fresh)


def hidden(path: PurePath) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


assert STAGING.startswith(OWN) and hidden(Path(OWN)), "readers skip our own files"
