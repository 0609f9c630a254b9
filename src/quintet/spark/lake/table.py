"""Commits batches to lake tables exactly once and merges small files: the code that all formats share.

    state of a batch    commit called                                    the process died, then the next commit or read
    staged              -> files in place, committed, staging swept      Spark replays the batch, and the old files are swept
    committed           fence: files of the replay are removed           Parquet: renames are repeated; others: nothing to do

The three formats differ in where the commit is: a JSON file (parquet.py), Delta's log (delta.py), Iceberg's catalog (iceberg.py).
A table is one directory of a file system that driver and executors share, or, of Delta and Iceberg, one prefix of an object store.
There, nothing is locked, staged or renamed: the log of the format decides which of two drivers commits, files are written where
they stay, and what a killed task leaves goes with the versions that _expire lets go of (ADR 22).
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import ClassVar, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.spark.lake import meta
from quintet.spark.lake.errors import LakeError, Outrun
from quintet.spark.lake.schema import text
from quintet.spark.lake.storage import files
from quintet.spark.lake.storage.files import File
from quintet.spark.lake.storage.journal import DONE, INTENT, Commit, Journal
from quintet.spark.lake.storage.objects import ObjectPath, TablePath, located
from quintet.spark.lake.storage.options import NOTHING, Storage

COMPACTOR: Final = "compacted"  # the writer of merged files
ONCE: Final = "once-"  # prefix of the names of writers that write one batch only
MERGED_BYTES: Final = 128 << 20  # that compaction aims at; it merges files smaller than half of it
MERGE_MEMORY_BYTES: Final = 512 << 20  # of the rows of one merged file, in memory
KEEP_HOURS: Final = 7 * 24  # old versions are kept for so long


class Compaction(msgspec.Struct, frozen=True):
    """How many small files were merged into how many, with how many rows."""

    before: int
    after: int
    rows: int


class Merge(msgspec.Struct, frozen=True):
    """A merged file, staged, and the files it replaces."""

    file: File
    gone: Sequence[TablePath]


class LakeTable(ABC):
    """One table. Every method may be called from any process; those that change the table lock it, if it is in a directory."""

    format: ClassVar[str]

    def __init__(
        self,
        path: str,
        partition_by: Sequence[str] | None = None,
        storage: Storage = NOTHING,
        catalog: Mapping[str, str] | None = None,
    ) -> None:
        self.path: TablePath = located(path, storage)
        self.given = None if partition_by is None else tuple(partition_by)
        self.catalog = dict(catalog or {})
        self.journal = Journal(self.path)

    @property
    def in_place(self) -> bool:
        """Whether tasks write files at their final path: in an object store, where a rename is a copy; the table's log says which are part of it."""
        return isinstance(self.path, ObjectPath)

    # -- what each format implements ---------------------------------------------------------------------------------------------

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The columns with normal types; None if there is no table yet."""

    @abstractmethod
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns of an existing table."""

    @abstractmethod
    def fence(self, writer: str) -> int:
        """The highest batch id that a writer committed, NONE if it committed none."""

    @abstractmethod
    def paths(self, version: int | None = None) -> Sequence[TablePath]:
        """The files with the rows of the newest version, or of this one."""

    @abstractmethod
    def _prepare(self, before: pa.Schema | None, schema: pa.Schema) -> None:
        """Make the table, or add new columns."""

    @abstractmethod
    def _publish(self, commit: Commit) -> None:
        """Commit. Outrun: another process has committed this batch, or a later one of the writer."""

    @abstractmethod
    def _recover(self, writer: str) -> None:
        """Finish or undo the commit that this writer did not finish."""

    @abstractmethod
    def _replace(self, merged: Sequence[Merge]) -> None:
        """Merged files in place of those they were made of."""

    @abstractmethod
    def _labelled(self, writer: str) -> bool:
        """Whether a commit has the name of this ONCE writer as its label. Such writers have no fence: fences would pile up."""

    @abstractmethod
    def _expire(self) -> None:
        """Remove versions older than KEEP_HOURS, and the files that only they have."""

    def _session(self) -> contextlib.AbstractContextManager[None]:
        """A context around one call, for a format that opens a catalog."""
        return contextlib.nullcontext()

    # -- what all formats share ----------------------------------------------------------------------------------------------------

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The columns that the table has after rows of this schema; LakeError if it cannot take them."""
        return meta.fitting(self.path, self.schema(), self.partition_by(), self.given, schema)

    def columns(self) -> tuple[str, ...]:
        """The partition columns of the table; those that the writer names if there is no table yet."""
        return (self.given or ()) if self.schema() is None else self.partition_by()

    def commit(
        self, writer: str, batch_id: int, staged: Sequence[File], schema: pa.Schema, *, accept_other: bool = False,
        begun: bool = False,
    ) -> bool:  # fmt: skip
        """Commit these files as a batch of a writer. False: the batch was committed before, and these files are removed.

        `accept_other`: not an error if it had another number of rows then. `begun`: the writer has committed batches to this table,
        so it is an error if the table does not exist, unless `accept_other`."""
        commit = Commit(writer, batch_id, sum(file.rows for file in staged), tuple(staged))
        with self.journal.locked(), self._session():
            for name in {writer, *self._others()}:  # before the sweep below removes staged files
                self._recover(name)
            fresh = writer.startswith(ONCE) or batch_id > self.fence(writer)
            mine = False  # whether the table's log may have these files, although the commit failed
            if fresh:
                before, after = self.schema(), self.check(schema)
                if before is None and begun and not accept_other:
                    raise LakeError(
                        f"there is no {self.format} table at {self.path} any more, and this checkpoint has written to it: the "
                        "batches before are missing",
                        hint="use a new checkpointLocation, or set failOnDataLoss to false to go on without them",
                    )
                if before is None or after != before:
                    self._prepare(before, after)
                known = meta.load(self.path)
                # Also if an earlier commit ended before it saved this.
                if before is None or known is None or known.schema != after or not known.identity:
                    meta.save(self.path, self.format, self.columns(), after, made=before is None)
                if staged:
                    try:
                        self._publish(commit)
                    except Outrun:
                        fresh, mine = False, self.in_place
                    self.journal.prune(writer)
            if not fresh:
                self._same_again(commit, accept_other, keep=mine)
            self.journal.sweep(writer, batch_id)
            if writer.startswith(ONCE):
                self.journal.forget(writer)
        return fresh

    def listing(self, version: int | None = None) -> tuple[pa.Schema, Sequence[TablePath]]:
        """The columns and files of one state of the table, with whole batches only."""
        if not self.path.is_dir() or self.schema() is None:
            raise LakeError(f"there is no {self.format} table at {self.path}", hint="check path and format")
        if isinstance(self.path, Path) and os.access(self.path / files.OWN, os.W_OK):
            with self.journal.locked(), self._session():
                for writer in self.journal.writers():
                    self._recover(writer)
        with self.journal.locked(shared=True), self._session():
            return self.schema(), self.paths(version)

    def discard(self, staged: Sequence[File]) -> None:
        """Remove the staged files of a batch that failed."""
        for file in staged:
            (self.path / file.staged).unlink(missing_ok=True)

    def abandon(self, writer: str, batch_id: int, staged: Sequence[File]) -> None:
        """Spark aborts a batch: remove its staged files, unless it may be committed. Spark also aborts after a commit that failed
        half-way. In an object store it is not known whether a batch is committed; the next batch sweeps the files."""
        if isinstance(self.path, ObjectPath) or not staged:
            return
        with self.journal.locked():
            if all(self.journal.get(writer, batch_id, suffix) is None for suffix in (DONE, INTENT)):
                self.discard(staged)

    def compact(self, target_bytes: int = MERGED_BYTES) -> Compaction:
        """Merge files smaller than half of `target_bytes`, within each partition value, sorted."""
        with self.journal.locked(), self._session():
            for writer in {COMPACTOR, *self._others()}:
                self._recover(writer)
            merged: list[Merge] = []
            for place, group in self._groups(target_bytes):
                rows = files.read_files(group)
                values = {name: text(rows.column(name)[0].as_py()) for name in self.partition_by()}
                file = files.write_file(self.path, COMPACTOR, 0, values, rows, place, in_place=self.in_place)
                merged.append(Merge(file, group))
            if merged:
                self._replace(merged)
            self.journal.sweep(COMPACTOR, 0)
            self._expire()
        return Compaction(sum(len(one.gone) for one in merged), len(merged), sum(one.file.rows for one in merged))

    def _others(self) -> list[str]:
        """Other writers whose unfinished commits are recovered, too. In an object store `_recover` handles all writers, or none."""
        return [] if isinstance(self.path, ObjectPath) else self.journal.writers()

    def _groups(self, target_bytes: int) -> Iterator[tuple[str, list[TablePath]]]:
        """Groups of small files of one directory, each about `target_bytes`. The partition values null and "" have the same directory,
        so the values are compared, too."""
        places: dict[tuple[str, str], list[TablePath]] = defaultdict(list)
        columns = self.partition_by()
        for path in self.paths():
            if path.stat().st_size < target_bytes // 2:
                place = str(relative(path, self.path).parent)
                values = [files.extremes(path).get(name) for name in columns]
                places["" if place == os.curdir else place, repr(values)].append(path)
        for (place, _), small in sorted(places.items()):
            group: list[TablePath] = []
            size = held = 0
            for path in sorted(small):
                heavy = files.weight(path)
                if group and (size + path.stat().st_size > target_bytes or held + heavy > MERGE_MEMORY_BYTES):
                    if len(group) > 1:
                        yield place, group
                    group, size, held = [], 0, 0
                group.append(path)
                size += path.stat().st_size
                held += heavy
            if len(group) > 1:
                yield place, group

    def _same_again(self, commit: Commit, accept_other: bool, keep: bool) -> None:
        """Drop a batch at or below the fence; LakeError if it has another number of rows than the committed one. `keep` its files: the
        commit that was found may be our own, whose answer was lost, and the log names these files then."""
        known = self.journal.get(commit.writer, commit.batch_id)
        if not keep:
            self.discard(commit.files)
        if known is not None and known.rows != commit.rows and not accept_other:
            raise LakeError(
                f"batch {commit.batch_id} of {commit.writer} was written to {self.path} before with {known.rows} rows, and now "
                f"has {commit.rows}: its checkpoint was put back or changed, or records expired since",
                hint="go on with the newest checkpoint, or set failOnDataLoss to false to keep what was written before",
            )

    def merged_by_another(self) -> Outrun:
        return Outrun(f"small files of {self.path} were merged by another process meanwhile; nothing was changed")

    def place(self, commit: Commit) -> None:
        """Rename staged files to their final paths. A second call renames those that are left."""
        if isinstance(self.path, ObjectPath):
            return
        folders = set()
        for file in commit.files:
            target = self.path / file.path
            if (self.path / file.staged).exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                (self.path / file.staged).rename(target)
                folders.add(target.parent)
        for folder in folders:
            files.fsync_directory(folder)

    def recover_intent(self, writer: str) -> None:
        """Finish or undo a writer's unfinished batch, for a format with a log of its own: the log says whether it is committed. Nothing
        is undone in an object store, where there is no lock: the writer may be alive and still commit the files."""
        if isinstance(self.path, ObjectPath):
            return
        batch_id = self.journal.last(writer, INTENT)
        intent = self.journal.get(writer, batch_id, INTENT)
        if intent is None:
            return
        if self._labelled(writer) if writer.startswith(ONCE) else self.fence(writer) >= batch_id:
            self.journal.mark_committed(writer, batch_id)
        else:
            self.take_back(intent)
            self.journal.drop(writer, batch_id, INTENT)

    def take_back(self, commit: Commit) -> None:
        """Remove the files of a batch that was not committed, staged or renamed."""
        self.discard(commit.files)
        for file in commit.files:
            (self.path / file.path).unlink(missing_ok=True)


def relative(path: TablePath, table: TablePath) -> PurePath:
    """The name of a file within its table."""
    if isinstance(path, ObjectPath) and isinstance(table, ObjectPath):
        return path.relative_to(table)
    assert isinstance(path, Path) and isinstance(table, Path)
    return Path(os.path.relpath(path, table))
