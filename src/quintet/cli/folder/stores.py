"""Opens the place where backups are kept: a folder, or a name in an object store by the file systems of the lakes."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from quintet.model.errors import BackupError, ConfigError

if TYPE_CHECKING:
    from quintet.log.embedded.backup.manifest import Store
    from quintet.spark.lake.storage.objects import ObjectPath

TEMPORARY: Final = ".tmp"

storage_option = click.option(
    "--storage",
    "storage",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of an object store: endpoint_override, region, access_key ...; repeatable. Otherwise AWS_* and the like count.",
)


class FolderStore:
    """A folder: each name is a file, written beside its place and renamed when it is durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, data: bytes) -> None:
        path = self._folder / name
        try:
            self._put(path, data)
        except OSError as error:
            raise BackupError(f"{path}: cannot be written: {error.strerror or error}") from error

    def _put(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = path.with_name(path.name + TEMPORARY)
        handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        fresh.rename(path)
        folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, name: str) -> bytes:
        return (self._folder / name).read_bytes()

    def names(self, prefix: str) -> dict[str, int]:
        folder = self._folder / prefix
        if not folder.is_dir():
            return {}
        return {prefix + one.name: one.stat().st_size for one in folder.iterdir() if one.suffix != TEMPORARY}

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


class ObjectStore:
    """A prefix of an object store. A write is whole and durable when it returns."""

    def __init__(self, root: "ObjectPath") -> None:
        self._root = root

    def put(self, name: str, data: bytes) -> None:
        (self._root / name).write_bytes(data or b"\n")  # stores and their libraries differ about empty objects

    def get(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    def names(self, prefix: str) -> dict[str, int]:
        found = (self._root / prefix).walk(recursive=False)
        return {prefix + one.name: one.info.st_size if one.info else 0 for one in found if one.name}

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)


def open_store(place: str, storage: tuple[str, ...]) -> "Store":
    """ConfigError or LakeError if there is no such place."""
    if "://" not in place:
        if storage:
            raise ConfigError("--storage is for object stores", hint="name one as s3://BUCKET/NAME, or leave it out")
        return FolderStore(Path(place).absolute())
    from quintet.spark.lake.storage import options
    from quintet.spark.lake.storage.objects import ObjectPath, located

    given: dict[str, str] = {}
    for one in storage:
        name, equals, value = one.partition("=")
        if not equals:
            raise ConfigError(f"--storage {name!a} is not NAME=VALUE")
        given[name.removeprefix("storage.")] = value
    root = located(place, options.parse(given))
    if not isinstance(root, ObjectPath):  # file:///path
        return FolderStore(root)
    root.check_bucket()
    return ObjectStore(root)
