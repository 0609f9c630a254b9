"""A table of plain Parquet files in Hive's directories, for readers that know nothing of us: DuckDB, Polars, pandas, Spark.

    TABLE/_quintet/table.json                     columns and partition columns
    TABLE/_quintet/commits/WRITER/EPOCH.json      the moment of commitment (journal.py); the renames follow

What holds: nothing that is not committed is ever seen, and when a commit is over each row is seen once. While the renames
of a batch run, a reader that lists files sees some files of it before others; `read` of this package waits for the lock and
sees all or none. Compaction exchanges a whole directory at once (swap.py).
"""

import base64
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.lake import swap
from quintet.spark.lake.errors import LakeError
from quintet.spark.lake.files import OWN, STAGING, fsync_directory
from quintet.spark.lake.journal import Commit, replace
from quintet.spark.lake.table import ONCE, Merge, Table

META: Final = f"{OWN}/table.json"


class Meta(msgspec.Struct, frozen=True):
    """What table.json says; `columns` is for people, `schema` (Arrow's own bytes in base64) is what counts."""

    partition_by: tuple[str, ...]
    columns: dict[str, str]
    schema: str


class ParquetTable(Table):
    format: ClassVar[str] = "parquet"

    def schema(self) -> pa.Schema | None:
        meta = self._meta()
        return None if meta is None else pa.ipc.read_schema(pa.BufferReader(base64.b64decode(meta.schema)))

    def partition_by(self) -> tuple[str, ...]:
        meta = self._meta()
        return () if meta is None else meta.partition_by

    def fence(self, writer: str) -> int:
        return self.journal.last(writer)

    def paths(self, version: int | None = None) -> list[Path]:
        if version is not None:
            raise LakeError("a Parquet table has no versions", hint="archive to delta or iceberg to look back")
        found = self.path.rglob("*.parquet")
        return sorted(path for path in found if not _hidden(path.relative_to(self.path)))

    def _meta(self) -> Meta | None:
        try:
            return msgspec.json.decode((self.path / META).read_bytes(), type=Meta)
        except FileNotFoundError:
            return None

    def _prepare(self, before: pa.Schema | None, schema: pa.Schema) -> None:
        meta = Meta(
            self.columns(),
            {field.name: str(field.type) for field in schema},
            base64.b64encode(schema.serialize().to_pybytes()).decode(),
        )
        replace(self.path / META, msgspec.json.encode(meta))

    def _publish(self, commit: Commit) -> None:
        for folder in {(self.path / file.staged).parent for file in commit.files}:
            fsync_directory(folder)
        self.journal.put(commit)
        self.place(commit)

    def _recover(self, writer: str) -> None:
        """The last commit of a writer is the only one whose renames can be missing; a write that came once has no next."""
        swap.recover(self.path)
        for name in {writer, *(name for name in self.journal.writers() if name.startswith(ONCE))}:
            last = self.journal.get(name, self.journal.last(name))
            if last is not None:
                self.place(last)
                if name != writer:
                    self.journal.forget(name)

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
            gone = [path for one in changes for path in one.gone]
            fresh = {self.path / one.file.staged: Path(one.file.path).name for one in changes}
            swap.replace_files(self.path, place, gone, fresh)


def _hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


assert STAGING.startswith(OWN) and _hidden(Path(OWN)), "readers pass over what is ours"
