"""Copies the data directory of a running node to a new one, over their connection. Blocks; runs in threads, or before the loop serves.

What is sent is a backup (log/embedded/backup), and the applied mark of before it was taken: files hold at least what the mark says,
and reading the WAL again from the mark changes nothing that is there (ADR 39). So they need not end at the same place.

    sender    removals held -> mark read -> files linked -> removals go on -> bundles, manifest, mark -> COPIED
    receiver  DIR/copying/store (bundles) -> DIR/copying/folder (files, checked) -> `format` -> moved into DIR, `format` last

A receiver that ends before `copying/folder/format` is there begins anew; after that it only moves what is left. A bundle is removed when
it is read, so the disk needs room for one copy, and for one bundle.
"""

import os
import re
import shutil
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from quintet.log.embedded.backup import create as creating
from quintet.log.embedded.backup import manifest as manifests
from quintet.log.embedded.backup import restore as restoring
from quintet.log.embedded.backup.cut import Clocks, Snapshot
from quintet.log.embedded.files.disk import OsDisk, replace_file
from quintet.log.embedded.stages import OPEN
from quintet.log.replicated import mark
from quintet.model.errors import BackupError, StorageError
from quintet.net.cluster.peers import Link
from quintet.net.cluster.wire import DATA_BYTES_MAX, Kind, PeerRefused, decode, expect, receive, send, send_json

SILENCE_S: Final = 300.0  # of a sender that reads its disk
MARK: Final = "mark"
FOLDER: Final = "copying"
_NAME: Final = re.compile(r"(?:begun|bundles|backups)/[A-Za-z0-9.-]{1,100}|mark")
_FORMAT: Final = "format"

Hold = Callable[[], AbstractContextManager[None]]
Progress = Callable[[int], None]


class NoCopy(StorageError):
    """No other node gave a whole copy."""

    code = "E1518"


class File(msgspec.Struct, frozen=True):
    """What is sent next, and how many bytes."""

    name: str
    size: int = 0


# -- the sender --------------------------------------------------------------------------------------------------------


class _Sent:
    """A store of backups whose files go to another node and are not kept."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link

    def put(self, name: str, data: bytes) -> None:
        send_json(self._link, Kind.FILE, File(name, len(data)))
        view = memoryview(data)
        for at in range(0, len(data), DATA_BYTES_MAX):
            send(self._link, Kind.DATA, bytes(view[at : at + DATA_BYTES_MAX]))

    def get(self, name: str) -> bytes:
        raise FileNotFoundError(name)

    def names(self, prefix: str) -> dict[str, int]:
        return {}

    def remove(self, name: str) -> None:
        send_json(self._link, Kind.DROPPED, File(name))


def send_copy(link: socket.socket, directory: Path, anchors: Path, clocks: Clocks, id: str, hold: Hold) -> None:
    """hold: while it is open, no files go that a mark spoke of. Raises BackupError, OSError."""
    link.settimeout(SILENCE_S)
    marks: list[bytes] = []

    class CellSnapshot(Snapshot):
        def _take(self) -> None:
            with hold():
                found = self.disk.read_file(f"{self.directory}/{mark.NAME}")
                if found is None:
                    raise BackupError(f"{self.directory} has no {mark.NAME} yet", hint="try again in a few seconds")
                marks[:] = [found]
                super()._take()

        def _pin_stages(self) -> None:
            """Also those that are not sealed: the mark may lie between their parts and their seal."""
            super()._pin_stages()
            folder = f"{self.directory}/stages"
            for name in self.disk.listdir(folder):
                if name.endswith(OPEN) and name not in self.stages:
                    try:
                        self.stages[name] = self._pin_file(f"{folder}/{name}", name)
                    except FileNotFoundError:
                        continue  # sealed just now

    store, disk = _Sent(link), OsDisk()
    made = creating.create(directory, store, disk, clocks, id, anchors=anchors, verify=False, snapshots=CellSnapshot)
    if made.damaged:
        raise BackupError(
            f"{len(made.damaged)} ranges of this node's files are damaged ({made.damaged[0]}): nobody copies it",
            hint="copy from another node, and make this one anew",
        )
    store.put(MARK, marks[0])
    send(link, Kind.COPIED, id.encode())


# -- the receiver ------------------------------------------------------------------------------------------------------


class _Received:
    """Files as they came; each bundle is there until it is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("begun", "bundles", "backups"):
            (folder / name).mkdir(parents=True)

    def put(self, name: str, data: bytes) -> None:
        raise NotImplementedError(name)

    def get(self, name: str) -> bytes:
        path = self._folder / name
        data = path.read_bytes()
        if name.startswith(manifests.BUNDLES):
            path.unlink()
        return data

    def names(self, prefix: str) -> dict[str, int]:
        return {prefix + path.name: path.stat().st_size for path in (self._folder / prefix).iterdir()}

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def take(self, link: socket.socket, file: File) -> None:
        """The bytes of a file that was announced."""
        left = file.size
        with (self._folder / file.name).open("xb") as out:
            while left > 0:
                data = expect(link, Kind.DATA, DATA_BYTES_MAX)
                if not 0 < len(data) <= left:
                    raise PeerRefused(f"{file.name}: {len(data)} bytes came where {left} are left")
                out.write(data)
                left -= len(data)


def receive_copy(link: Link, directory: Path, progress: Progress) -> int:
    """Fill a directory that has no log with a copy of the node at the other end; the WAL offset that it stands for. Raises NoCopy,
    BackupError, PeerRefused, OSError: then the directory has no log still."""
    scratch, disk = directory / FOLDER, OsDisk()
    shutil.rmtree(scratch, ignore_errors=True)
    store = _Received(scratch / "store")
    id = _take_all(link, store, progress)
    found = manifests.load(store, id)
    if found.log != link.hello.log:
        raise NoCopy(f"{link.hello.node} sent the log {found.log}; this cell has {link.hello.log}")
    folder = scratch / "folder"
    restoring.restore(store, found, folder, disk)
    replace_file(disk, str(folder), mark.NAME, store.get(MARK))
    said = mark.load(disk, str(folder))
    if said is None:
        raise NoCopy(f"the applied mark that {link.hello.node} sent does not check out", hint="try again")
    restoring.finish(disk, found, folder)
    finish_move(directory)
    return said.fold.next


def _take_all(link: Link, store: _Received, progress: Progress) -> str:
    link.socket.settimeout(SILENCE_S)
    send(link.socket, Kind.COPY)
    received = 0
    while True:
        kind, body = receive(link.socket)
        if kind is Kind.COPIED:
            return body.decode(errors="replace")
        file = decode(body, File) if kind in (Kind.FILE, Kind.DROPPED) else File("")
        if not _NAME.fullmatch(file.name):
            raise PeerRefused(f"{kind.name} of {file.name!a} is no part of a copy")
        if kind is Kind.FILE:
            store.take(link.socket, file)
            received += file.size
            progress(received)
        else:
            store.remove(file.name)


def finish_move(directory: Path) -> None:
    """Bring a copy that is whole to its place; what is left of one that is not is removed. Nothing to do is no error."""
    scratch = directory / FOLDER
    folder = scratch / "folder"
    if (folder / _FORMAT).exists():
        names = sorted(
            os.listdir(folder), key=lambda name: name == _FORMAT
        )  # `format` last: with it the directory is a log
        for name in names:
            if name == _FORMAT:
                _sync(directory)
            os.rename(folder / name, directory / name)
        _sync(directory)
    if scratch.exists():
        shutil.rmtree(scratch)
        _sync(directory)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
