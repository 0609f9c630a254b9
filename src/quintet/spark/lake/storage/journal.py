"""Records which batches a table has taken: one small JSON file per batch, written whole or not at all; the fence of a writer.

    TABLE/_quintet/commits/WRITER/EPOCH.json      the batch is committed, and these are its files
    TABLE/_quintet/commits/WRITER/EPOCH.intent    Delta, Iceberg: files are being put in place, the table's own log decides
    TABLE/_quintet/lock                           held (flock) by whoever commits, compacts or lists the table

For a Parquet table EPOCH.json *is* the commit: what is renamed afterwards is renamed again by the next one who comes, if it
was cut off. For the others it remembers the size, so that a replayed batch that differs is noticed. KEPT batches stay.

In an object store there is no lock and no rename. Delta and Iceberg need neither (delta.py, iceberg.py), nothing is staged, and
EPOCH.json is written when their log has the batch.
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
ORPHAN_SECONDS: Final = 24 * 3600  # after which staged files of a writer that never came back are removed
NONE: Final = -1
DONE: Final = ".json"
INTENT: Final = ".intent"


class Commit(msgspec.Struct, frozen=True):
    """One batch of one writer."""

    writer: str
    epoch: int
    rows: int
    files: tuple[File, ...]


class Journal:
    """The commits of one table."""

    def __init__(self, table: TablePath) -> None:
        self.table = table
        self._commits = table / OWN / "commits"

    @contextlib.contextmanager
    def locked(self, shared: bool = False) -> Iterator[None]:
        """Alone with the table (or among readers), as far as processes see this file system's locks. Who may only read
        the table goes on without: it can lock nobody out. So does everybody in an object store, which has no locks."""
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
        """The highest epoch, NONE if there is none."""
        return max(self._epochs(writer, suffix), default=NONE)

    def get(self, writer: str, epoch: int, suffix: str = DONE) -> Commit | None:
        try:
            return msgspec.json.decode(self._path(writer, epoch, suffix).read_bytes(), type=Commit)
        except FileNotFoundError:
            return None

    def put(self, commit: Commit, suffix: str = DONE) -> None:
        """Remember it, for good when this returns."""
        path = self._path(commit.writer, commit.epoch, suffix)
        if isinstance(path, Path):
            path.parent.mkdir(exist_ok=True)
        replace(path, msgspec.json.encode(commit))

    def mark_committed(self, writer: str, epoch: int) -> None:
        """An intent that became a commit."""
        intent, done = self._path(writer, epoch, INTENT), self._path(writer, epoch, DONE)
        assert isinstance(intent, Path) and isinstance(done, Path), "there are no intents in an object store"
        intent.rename(done)

    def drop(self, writer: str, epoch: int, suffix: str = DONE) -> None:
        self._path(writer, epoch, suffix).unlink(missing_ok=True)

    def forget(self, writer: str) -> None:
        """A writer that will not come again."""
        folder = self._commits / quote(writer, safe="")
        if isinstance(folder, ObjectPath):
            folder.remove_tree()
        else:
            shutil.rmtree(folder, ignore_errors=True)

    def prune(self, writer: str) -> None:
        for epoch in sorted(self._epochs(writer, DONE))[:-KEPT]:
            self.drop(writer, epoch)

    def sweep(self, writer: str, epoch: int) -> int:
        """Remove what was staged for this and earlier batches of a writer, and what others left long ago."""
        swept = 0
        root = self.table / STAGING
        if isinstance(root, ObjectPath):
            return 0
        for folder in root.glob("*/*") if root.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                if _own(folder, writer, epoch) or time.time() - folder.stat().st_mtime > ORPHAN_SECONDS:
                    swept += sum(1 for _ in folder.iterdir())
                    shutil.rmtree(folder)
        return swept

    def _epochs(self, writer: str, suffix: str) -> list[int]:
        folder = self._commits / quote(writer, safe="")
        if isinstance(folder, ObjectPath):
            entries = [path.name for path in folder.walk()]
        else:
            entries = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        names = (name for name in entries if name.endswith(suffix))
        return [int(name.removesuffix(suffix)) for name in names if name.removesuffix(suffix).isdecimal()]

    def _path(self, writer: str, epoch: int, suffix: str) -> TablePath:
        return self._commits / quote(writer, safe="") / f"{epoch}{suffix}"


def _own(folder: Path, writer: str, epoch: int) -> bool:
    """Whether files in this directory were staged for a batch of a writer, up to an epoch."""
    return folder.parent.name == quote(writer, safe="") and folder.name.isdecimal() and int(folder.name) <= epoch


def replace(path: TablePath, data: bytes) -> None:
    """The file has this content, now and after a loss of power: all of it or what it was before."""
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
