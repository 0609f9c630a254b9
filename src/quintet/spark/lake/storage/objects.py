"""Gives names in an object store the methods of pathlib.Path that lake tables use, through pyarrow's file systems.

Unlike a directory, a store has no rename, no lock and no fsync. A write is atomic and durable when it returns, and a later listing
shows it (S3, GCS and ABFS guarantee that). A "directory" is a common prefix of names: it need not be made before the first write, and
is gone with the last name.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Final

from quintet.spark.lake.errors import LakeError, StoreUnreachable
from quintet.spark.lake.storage.options import NOTHING, STORES, Storage, plain
from quintet.spark.source.options import without_file

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
    from pyarrow import fs

GLOB_SIGNS: Final = "*?[]{}"  # Spark would take such a path for a pattern


@dataclass(frozen=True)
class Info:
    """Size and time of an object, as a listing has them."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, order=True)
class ObjectPath:
    """`root` is s3://bucket or abfss://container@account.dfs.core.windows.net, `key` the rest without slashes around."""

    root: str
    key: str
    storage: Storage = field(default=NOTHING, compare=False, repr=False)
    info: Info | None = field(default=None, compare=False, repr=False)

    # -- names ----------------------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __truediv__(self, more: "str | PurePosixPath") -> "ObjectPath":
        parts = [part for part in (self.key, str(more).strip("/")) if part]
        return ObjectPath(self.root, "/".join(parts), self.storage)

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        return ObjectPath(self.root, self.key.rpartition("/")[0], self.storage)

    @property
    def store(self) -> str:
        return STORES[self.root.partition("://")[0]]

    @property
    def authority(self) -> str:
        return self.root.partition("://")[2]

    def relative_to(self, other: "ObjectPath") -> PurePosixPath:
        return PurePosixPath(self.key).relative_to(other.key)

    def of(self, uri: str) -> "ObjectPath":
        """A path in the table's log, absolute or relative to this one."""
        found = located(uri, self.storage) if "://" in uri else self / uri
        assert isinstance(found, ObjectPath), "the log of a table in an object store has no local paths"
        return found

    # -- contents -------------------------------------------------------------------------------------------------------

    @property
    def _fs(self) -> "fs.FileSystem":
        return self.storage.filesystem(self.store, self.authority)

    @property
    def _full(self) -> str:
        bucket = self.authority.partition("@")[0]
        return f"{bucket}/{self.key}" if self.key else bucket

    def exists(self) -> bool:
        with plain(self):
            return bool(self._fs.get_file_info(self._full).type.name != "NotFound")

    is_dir = exists

    def stat(self) -> Info:
        if self.info is not None:
            return self.info
        with plain(self):
            found = self._fs.get_file_info(self._full)
        if found.type.name == "NotFound":
            raise FileNotFoundError(str(self))
        return Info(found.size or 0, found.mtime_ns / 1e9 if found.mtime_ns else 0.0)

    def read_bytes(self) -> bytes:
        with plain(self), self._fs.open_input_stream(self._full) as stream:
            return bytes(stream.read())

    def write_bytes(self, data: bytes) -> None:
        with plain(self), self._fs.open_output_stream(self._full) as stream:
            stream.write(data)

    def input_file(self) -> "pa.NativeFile":
        """Open for random reads, which Parquet needs."""
        with plain(self):
            return self._fs.open_input_file(self._full)

    def output_stream(self) -> "pa.NativeFile":
        with plain(self):
            return self._fs.open_output_stream(self._full)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with plain(self):
                self._fs.delete_file(self._full)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def move_to(self, target: "ObjectPath") -> bool:
        """Copy within the store, then remove. False: this name does not exist any more; most likely another process has moved it."""
        if not self.exists():
            return False
        try:
            with plain(self):
                self._fs.copy_file(self._full, target._full)
        except (LakeError, FileNotFoundError):
            if self.exists():
                raise
            return False
        self.unlink(missing_ok=True)
        return True

    def walk(self, recursive: bool = True) -> "Iterator[ObjectPath]":
        """Every object below this name, with its size and time."""
        from pyarrow import fs

        with plain(self):
            found = self._fs.get_file_info(fs.FileSelector(self._full, allow_not_found=True, recursive=recursive))
        bucket = self.authority.partition("@")[0]
        for one in found:
            if one.type == fs.FileType.File:
                info = Info(one.size or 0, one.mtime_ns / 1e9 if one.mtime_ns else 0.0)
                yield ObjectPath(self.root, one.path.removeprefix(f"{bucket}/"), self.storage, info)

    def remove_tree(self) -> None:
        """Remove everything below this name, also the empty object that pyarrow leaves when it removes the last one."""
        with contextlib.suppress(FileNotFoundError), plain(self):
            self._fs.delete_dir(self._full)

    def check_bucket(self) -> None:
        """LakeError if the bucket does not exist: listing it would give an empty list. If the credentials do not allow the question,
        nothing is raised: they may still allow writes below a prefix."""
        try:
            there = ObjectPath(self.root, "", self.storage).exists()
        except StoreUnreachable:
            raise
        except LakeError:
            return
        if not there:
            raise LakeError(f"the bucket of {self} does not exist", hint="create it, or correct the path")


TablePath = Path | ObjectPath


def located(path: str, storage: Storage = NOTHING) -> TablePath:
    """The path of a table: a directory, or a name in an object store. LakeError if it is neither."""
    bare = without_file(path)
    if any(sign in bare for sign in GLOB_SIGNS):
        raise LakeError(
            f"path {path!r} has one of {GLOB_SIGNS} in it", hint="Spark takes these for patterns; use another"
        )
    scheme, found, rest = bare.partition("://")
    if not found and bare:
        return Path(bare).absolute()
    authority, _, key = rest.partition("/")
    if scheme.lower() not in STORES or not authority:
        schemes = ", ".join(f"{name}://" for name in STORES)
        raise LakeError(f"path {path!r} is no directory and no name in an object store", hint=f"known are {schemes}")
    root = {"s3a": "s3", "gcs": "gs"}.get(scheme.lower(), scheme.lower())
    if STORES[root] != "az" and "@" in authority:
        raise LakeError(
            f"the path of a bucket of {root}:// has an @ in it",
            hint="give credentials in the environment or as storage.* options",
        )
    key = "/".join(part for part in key.split("/") if part)
    if not key:
        raise LakeError(f"path {path!r} is a whole bucket", hint=f"write {root}://{authority}/NAME")
    return ObjectPath(f"{root}://{authority}", key, storage)


@contextlib.contextmanager
def writing(place: TablePath) -> "Iterator[IO[bytes] | pa.NativeFile]":
    """A new file, durable when the context ends."""
    if isinstance(place, Path):
        place.parent.mkdir(parents=True, exist_ok=True)
        file: IO[bytes]
        with place.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        return
    with plain(place):
        stream = place.output_stream()
        try:
            yield stream
            stream.close()
        except BaseException:
            with contextlib.suppress(Exception):  # if this fails, too: the name is random, and no log has it
                stream.close()
                place.unlink(missing_ok=True)
            raise
