"""Restores a backup into a new data directory, and checks stored backups.

The file `format` is written last: until it is there, no broker starts in the directory, so a restore that was cut short is not
taken for a whole one.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from quintet.log.embedded.backup.create import check_bundle
from quintet.log.embedded.backup.manifest import Manifest, Piece, Store
from quintet.log.embedded.engine import FORMAT_PREFIX, FORMAT_VERSION
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.log.embedded.files.segment import HEADER_BYTES
from quintet.log.embedded.recovery import checkpoint
from quintet.log.embedded.recovery.directories import Mark
from quintet.model.errors import BackupError, DataDirError

FOLDERS: Final = ("topics/", "stages/")

Place = tuple[str, int, Piece]  # path, position, what belongs there


def places(manifest: Manifest) -> dict[str, list[Place]]:
    """What each bundle holds of this backup, so that every bundle is read once."""
    found: dict[str, list[Place]] = {}
    for part in manifest.parts:
        position = 0
        for piece in part.pieces:
            found.setdefault(piece.bundle, []).append((part.path, position, piece))
            position += piece.length
    return found


def verify(store: Store, manifest: Manifest) -> list[str]:
    """Read every piece; what does not check out."""
    damaged = []
    for bundle, wanted in sorted(places(manifest).items()):
        try:
            check_bundle(store, bundle, [piece for _, _, piece in wanted])
        except BackupError as error:
            damaged.append(str(error))
    return damaged


def restore(
    store: Store, manifest: Manifest, directory: Path, disk: Disk, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Write all files of a backup durably into a directory that is new or empty."""
    if manifest.format > FORMAT_VERSION:
        raise BackupError(
            f"backup {manifest.id} is of data format {manifest.format}; this Quintet reads formats up to {FORMAT_VERSION}",
            hint="restore it with a newer Quintet",
        )
    if directory.exists() and any(directory.iterdir()):
        raise DataDirError(f"{directory} is not empty", hint="name a folder that is new or empty")
    for part in manifest.parts:
        _check_path(manifest, part.path)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    written = 0
    for bundle, wanted in sorted(places(manifest).items()):
        data = check_bundle(store, bundle, [piece for _, _, piece in wanted])
        for path, position, piece in wanted:
            _put(directory / path, position, data[piece.at : piece.at + piece.length])
            written += piece.length
        progress(written)
    _sync(directory)
    marks = [
        checkpoint.pack_entry(topic, number, Mark(segment, position, following))
        for topic, number, segment, position, following in manifest.marks
    ]
    if all(topic != manifest.last_topic for topic, *_ in manifest.marks) and manifest.last_topic:
        marks.append(checkpoint.pack_entry(manifest.last_topic, 0, Mark(0, HEADER_BYTES, 0)))
    replace_file(disk, str(directory), checkpoint.NAMES[0], checkpoint.pack(1, False, b"".join(marks)))


def finish(disk: Disk, manifest: Manifest, directory: Path) -> None:
    """Make the directory one that a broker starts in."""
    replace_file(disk, str(directory), "format", f"{FORMAT_PREFIX}{manifest.format}\n".encode())


def _check_path(manifest: Manifest, path: str) -> None:
    inside = ".." not in path.split("/") and not path.startswith("/")
    if not inside or ("/" in path and not path.startswith(FOLDERS)):
        raise BackupError(f"backup {manifest.id} names a file outside of a data folder: {path!a}")


def _put(path: Path, position: int, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(handle, data[written:], position + written)
    finally:
        os.close(handle)


def _sync(directory: Path) -> None:
    """Everything below a directory is durable, names too."""
    for folder, _, names in os.walk(directory):
        for name in [*names, "."]:
            handle = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
