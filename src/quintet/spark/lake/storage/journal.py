"""Records which batches a table has committed, in one small JSON file per batch, written atomically.

    TABLE/_quintet/commits/WRITER/BATCH.json      the batch is committed, and these are its files
    TABLE/_quintet/commits/WRITER/BATCH.intent    Delta, Iceberg: files are being renamed, the table's own log decides
    TABLE/_quintet/lock                           locked (flock) while a process commits, compacts or lists the table

For a Parquet table BATCH.json *is* the commit, and the highest one is the fence of the writer. If the process dies before the renames
that follow are complete, the next commit completes them. For the others it records the number of rows, by which a replayed batch
that differs is noticed. The last KEPT batches of a writer are kept.

In an object store there is no lock and no rename. Delta and Iceberg need neither (delta.py, iceberg.py), nothing is staged, and
BATCH.json is written when their log has the batch.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from quintet.spark.lake.storage.files import OWN, STAGING, File, fsync_directory
from quintet.spark.lake.storage.objects import ObjectPath, TablePath

KEPT: Final = 128  # commits of a writer; Spark keeps 100 batches in a checkpoint
ORPHAN_SECONDS: Final = 24 * 3600  # after this time, staged files of any writer are removed
NONE: Final = -1
DONE: Final = ".json"
INTENT: Final = ".intent"


class Commit(msgspec.Struct, frozen=True):
    """One batch of one writer."""

    writer: str
    batch_id: int = msgspec.field(name="epoch")  # the field's name in the files of existing tables
    rows: int
    files: tuple[File, ...]


class Journal:
    """The commits of one table."""

    def __init__(self, table: TablePath) -> None:
        self.table = table
        self._commits = table / OWN / "commits"

    @contextlib.contextmanager
    def locked(self, shared: bool = False) -> Iterator[None]:
        """Hold the table's lock, exclusive or shared, as far as processes see this file system's locks. A reader that may not write to
        the table goes on without a lock. So does every process if the table is in an object store, which has no locks."""
        if isinstance(self.table, ObjectPath):
            yield
            return
        if shared and not os.access(self.table / OWN, os.W_OK):
            yield
            return
        (self.table / OWN / "commits").mkdir(parents=True, exist_ok=True)
        with (self.table / OWN / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

    def writers(self) -> list[str]:
        if isinstance(self._commits, ObjectPath):
            return sorted({unquote(path.parent.name) for path in self._commits.walk()})
        return sorted(unquote(entry.name) for entry in self._commits.iterdir()) if self._commits.is_dir() else []

    def last(self, writer: str, suffix: str = DONE) -> int:
        """The highest batch id, NONE if there is none."""
        return max(self._batch_ids(writer, suffix), default=NONE)

    def get(self, writer: str, batch_id: int, suffix: str = DONE) -> Commit | None:
        try:
            return msgspec.json.decode(self._path(writer, batch_id, suffix).read_bytes(), type=Commit)
        except FileNotFoundError:
            return None

    def put(self, commit: Commit, suffix: str = DONE) -> None:
        """Record a commit; durable when this returns."""
        path = self._path(commit.writer, commit.batch_id, suffix)
        if isinstance(path, Path):
            path.parent.mkdir(exist_ok=True)
        replace(path, msgspec.json.encode(commit))

    def mark_committed(self, writer: str, batch_id: int) -> None:
        """Make a commit of an intent."""
        intent, done = self._path(writer, batch_id, INTENT), self._path(writer, batch_id, DONE)
        assert isinstance(intent, Path) and isinstance(done, Path), "there are no intents in an object store"
        intent.rename(done)

    def drop(self, writer: str, batch_id: int, suffix: str = DONE) -> None:
        self._path(writer, batch_id, suffix).unlink(missing_ok=True)

    def forget(self, writer: str) -> None:
        """Remove the records of a writer that will not write again."""
        folder = self._commits / quote(writer, safe="")
        if isinstance(folder, ObjectPath):
            folder.remove_tree()
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def prune(self, writer: str) -> None:
        for batch_id in sorted(self._batch_ids(writer, DONE))[:-KEPT]:
            self.drop(writer, batch_id)

    def sweep(self, writer: str, batch_id: int) -> None:
        """Remove files staged for this and earlier batches of a writer, and files of others older than ORPHAN_SECONDS."""
        root = self.table / STAGING
        if isinstance(root, ObjectPath):
            return
        for folder in root.glob("*/*") if root.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                if _own(folder, writer, batch_id) or time.time() - folder.stat().st_mtime > ORPHAN_SECONDS:
                    shutil.rmtree(folder)

    def _batch_ids(self, writer: str, suffix: str) -> list[int]:
        folder = self._commits / quote(writer, safe="")
        if isinstance(folder, ObjectPath):
            entries = [path.name for path in folder.walk()]
        else:
            entries = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        names = (name for name in entries if name.endswith(suffix))
        return [int(name.removesuffix(suffix)) for name in names if name.removesuffix(suffix).isdecimal()]

    def _path(self, writer: str, batch_id: int, suffix: str) -> TablePath:
        return self._commits / quote(writer, safe="") / f"{batch_id}{suffix}"


def _own(folder: Path, writer: str, batch_id: int) -> bool:
    """Whether files in this directory were staged for a batch of a writer, up to this one."""
    return folder.parent.name == quote(writer, safe="") and folder.name.isdecimal() and int(folder.name) <= batch_id


def replace(path: TablePath, data: bytes) -> None:
    """Replace the content of a file, atomically and durably: after a power cut it has the old content or the new."""
    if isinstance(path, ObjectPath):
        path.write_bytes(data)
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    fsync_directory(path.parent)
