"""Defines what all lake tables share: committing a batch exactly once, and merging small files into large ones.

    state of a batch    commit called                                    cut off, then the next commit or read
    staged              -> files in place, committed, staging swept      staged: Spark replays the batch, its files are swept
    committed           fence: files of the replay are removed           renames are done again (parquet), nothing to do

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
ONCE: Final = "once-"  # how names of writers begin that write one batch and never come again
MERGED_BYTES: Final = 128 << 20  # of a file that compaction leaves alone; half of it is small
MERGE_MEMORY_BYTES: Final = 512 << 20  # rows in memory of one merged file


KEEP_HOURS: Final = 7 * 24  # of old versions


class Compaction(msgspec.Struct, frozen=True):
    """What became of small files."""

    before: int
    after: int
    rows: int


class Merge(msgspec.Struct, frozen=True):
    """A merged file, staged, and those it was made of."""

    file: File
    gone: Sequence[TablePath]


class LakeTable(ABC):
    """One table. Every method may be called from any process; those that change it lock it, where there are locks."""

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
        """Whether tasks write files where they stay: the log of the table says which count, and a rename would be a copy."""
        return isinstance(self.path, ObjectPath)

    # -- what a format says ---------------------------------------------------------------------------------------------

    @abstractmethod
    def schema(self) -> pa.Schema | None:
        """The columns, normal; None: there is no table yet."""

    @abstractmethod
    def partition_by(self) -> tuple[str, ...]:
        """The partition columns of the table that is there."""

    @abstractmethod
    def fence(self, writer: str) -> int:
        """The last epoch that was committed, NONE if none was."""

    @abstractmethod
    def paths(self, version: int | None = None) -> Sequence[TablePath]:
        """The files that hold the rows now, or held them in a version."""

    @abstractmethod
    def _prepare(self, before: pa.Schema | None, schema: pa.Schema) -> None:
        """Make the table, or add the columns that are new."""

    @abstractmethod
    def _publish(self, commit: Commit) -> None:
        """The moment of commitment. Outrun: another process has committed this batch, or a later one of the writer."""

    @abstractmethod
    def _recover(self, writer: str) -> None:
        """Finish, or take back, what this writer left when it was cut off."""

    @abstractmethod
    def _replace(self, merged: Sequence[Merge]) -> None:
        """Merged files in place of those they were made of."""

    @abstractmethod
    def _labelled(self, writer: str) -> bool:
        """Whether a commit bears the name of this writer, who writes once and has no fence: fences would pile up."""

    @abstractmethod
    def _expire(self) -> None:
        """Let go of versions older than KEEP_HOURS, and of the files that only they have."""

    def _session(self) -> contextlib.AbstractContextManager[None]:
        """Around all that one call does, for a format that has something to open."""
        return contextlib.nullcontext()

    # -- what all do ----------------------------------------------------------------------------------------------------

    def check(self, schema: pa.Schema) -> pa.Schema:
        """The columns that the table has after rows of this schema; LakeError if it cannot take them."""
        return meta.fitting(self.path, self.schema(), self.partition_by(), self.given, schema)

    def columns(self) -> tuple[str, ...]:
        """What to partition by: as the table is, or as the writer wants it when there is none."""
        return (self.given or ()) if self.schema() is None else self.partition_by()

    def commit(
        self, writer: str, epoch: int, staged: Sequence[File], schema: pa.Schema, *, accept_other: bool = False,
        begun: bool = False,
    ) -> bool:  # fmt: skip
        """Publish these files as a batch of a writer. False: it was committed before; they are removed. `accept_other`: also
        if it had another number of rows then. `begun`: the writer has batches here, so a table that is not there is an error
        unless `accept_other`."""
        commit = Commit(writer, epoch, sum(file.rows for file in staged), tuple(staged))
        with self.journal.locked(), self._session():
            for name in {writer, *self._others()}:  # what is old is swept below
                self._recover(name)
            fresh = writer.startswith(ONCE) or epoch > self.fence(writer)
            mine = False  # whether the log may have these files after all
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
                if (
                    before is None or known is None or known.schema != after or not known.identity
                ):  # cut off here before
                    meta.save(self.path, self.format, self.columns(), after, made=before is None)
                if staged:
                    try:
                        self._publish(commit)
                    except Outrun:
                        fresh, mine = False, self.in_place
                    self.journal.prune(writer)
            if not fresh:
                self._same_again(commit, accept_other, keep=mine)
            self.journal.sweep(writer, epoch)
            if writer.startswith(ONCE):
                self.journal.forget(writer)
        return fresh

    def listing(self, version: int | None = None) -> tuple[pa.Schema, Sequence[TablePath]]:
        """Columns and files that belong together, whole batches only."""
        if not self.path.is_dir() or self.schema() is None:
            raise LakeError(f"there is no {self.format} table at {self.path}", hint="check path and format")
        if isinstance(self.path, Path) and os.access(self.path / files.OWN, os.W_OK):
            with self.journal.locked(), self._session():
                for writer in self.journal.writers():
                    self._recover(writer)
        with self.journal.locked(shared=True), self._session():
            return self.schema(), self.paths(version)

    def discard(self, staged: Sequence[File]) -> None:
        """Files of a batch that failed."""
        for file in staged:
            (self.path / file.staged).unlink(missing_ok=True)

    def abandon(self, writer: str, epoch: int, staged: Sequence[File]) -> None:
        """Spark gives a batch up: its staged files go, unless it may be committed. Spark says so after a commit that was cut off
        half-way, too. In an object store nobody can tell, and they are swept with the next batch."""
        if isinstance(self.path, ObjectPath) or not staged:
            return
        with self.journal.locked():
            if all(self.journal.get(writer, epoch, suffix) is None for suffix in (DONE, INTENT)):
                self.discard(staged)

    def compact(self, target_bytes: int = MERGED_BYTES) -> Compaction:
        """Merge files smaller than half of `target_bytes`, each partition value for itself, sorted."""
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
        """Whose unfinished commits are looked after, too. In an object store recovering one looks after all, or after none."""
        return [] if isinstance(self.path, ObjectPath) else self.journal.writers()

    def _groups(self, target_bytes: int) -> Iterator[tuple[str, list[TablePath]]]:
        """Small files of one directory that make one of about the target together. Null and "" share a directory, and are
        two partition values all the same."""
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
        """A batch at or below the fence: drop it, if it is what was committed then. `keep` its files: a commit that was
        refused may be our own whose answer was lost, and its log names them then."""
        known = self.journal.get(commit.writer, commit.epoch)
        if not keep:
            self.discard(commit.files)
        if known is not None and known.rows != commit.rows and not accept_other:
            raise LakeError(
                f"batch {commit.epoch} of {commit.writer} was written to {self.path} before with {known.rows} rows, and now "
                f"has {commit.rows}: its checkpoint was put back or changed, or records expired since",
                hint="go on with the newest checkpoint, or set failOnDataLoss to false to keep what was written before",
            )

    def merged_by_another(self) -> Outrun:
        return Outrun(f"small files of {self.path} were merged by another process meanwhile; nothing was changed")

    def place(self, commit: Commit) -> None:
        """Rename staged files to where readers look. Done again, it does what was left."""
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
        """For a format with a log of its own: it says whether the batch that a writer was at is in it. In an object store
        nobody is alone with the table, so nothing is taken back there: the writer may live, and commit the files yet."""
        if isinstance(self.path, ObjectPath):
            return
        epoch = self.journal.last(writer, INTENT)
        intent = self.journal.get(writer, epoch, INTENT)
        if intent is None:
            return
        if self._labelled(writer) if writer.startswith(ONCE) else self.fence(writer) >= epoch:
            self.journal.mark_committed(writer, epoch)
        else:
            self.take_back(intent)
            self.journal.drop(writer, epoch, INTENT)

    def take_back(self, commit: Commit) -> None:
        """Remove the files of a batch that was not committed, wherever they are by now."""
        self.discard(commit.files)
        for file in commit.files:
            (self.path / file.path).unlink(missing_ok=True)


def relative(path: TablePath, table: TablePath) -> PurePath:
    """The name of a file within its table."""
    if isinstance(path, ObjectPath) and isinstance(table, ObjectPath):
        return path.relative_to(table)
    assert isinstance(path, Path) and isinstance(table, Path)
    return Path(os.path.relpath(path, table))
