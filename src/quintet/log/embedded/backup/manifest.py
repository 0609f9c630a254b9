"""Describes one backup: which files it has, in which pieces, and where each piece is stored. Reads and writes no data.

A place for backups holds, for each backup ID (its time and random letters, so that names sort by time):

    begun/ID              written first, removed last: an ID that has this and no manifest was cut short
    bundles/ID-00000      pieces of files one behind the other, BUNDLE_BYTES at most
    backups/ID            the manifest: gzip of one JSON object; written when every bundle is stored and read back

A later backup of the same log names pieces of earlier bundles instead of storing them again. So a bundle is needed as long as any
manifest names it, and every backup is complete by itself: there is no chain of increments to apply.
"""

import gzip
import hashlib
import io
import zlib
from typing import Final, Protocol

import msgspec

from quintet.model import limits
from quintet.model.errors import BackupError

VERSION: Final = 1
BUNDLE_BYTES: Final = 32 * limits.MIB  # held in memory while it is filled, and while it is read back
PIECES_MAX: Final = 16  # of one file: one that grew in more backups than this is stored again, as one piece
MANIFEST_BYTES_MAX: Final = 1 << 30  # unpacked: 100,000 partitions take about 30 MB
BEGUN: Final = "begun/"
BUNDLES: Final = "bundles/"
MANIFESTS: Final = "backups/"


class Store(Protocol):
    """Where backups are kept: a folder or an object store. A name that is there is whole."""

    def put(self, name: str, data: bytes) -> None:
        """Store durably, under a name that is new."""

    def get(self, name: str) -> bytes:
        """All of it. FileNotFoundError if the name is not there."""

    def names(self, prefix: str) -> dict[str, int]:
        """Names that begin with a folder such as "bundles/", with their sizes."""

    def remove(self, name: str) -> None:
        """Remove a name; one that is gone already is no error."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a file, in order: where they are stored, and their SHA-256."""

    bundle: str
    at: int
    length: int
    sha256: str


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of the data directory. `seed`, `created`, `next_offset` and `sealed` are of a segment: with the same seed and time
    it is the same file, which only grew. `next_offset` is the offset behind its last batch."""

    path: str
    pieces: list[Piece]
    seed: int = 0
    created: int = 0
    next_offset: int = 0
    sealed: bool = False

    @property
    def size(self) -> int:
        return sum(piece.length for piece in self.pieces)


class Manifest(msgspec.Struct, frozen=True):
    """One backup. Times are in microseconds since 1970; `cut` is the time that divides what is in it from what came later."""

    version: int
    id: str
    log: str  # the identity of the log
    format: int  # of the data directory
    written_by: str  # the version of Quintet
    begun: int
    cut: int
    finished: int
    records: int
    stored_bytes: int  # what this backup added to the store
    last_topic: int  # the highest topic number ever given
    marks: list[tuple[int, int, int, int, int]]  # topic, partition, segment, position, next offset
    parts: list[Part]
    damaged: list[str]  # ranges of the source that did not check out: they are stored as they are

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def bundles(self) -> set[str]:
        return {piece.bundle for part in self.parts for piece in part.pieces}


class Sealed(msgspec.Struct, frozen=True):
    """A manifest as it is stored, with the SHA-256 of its bytes."""

    sha256: str
    manifest: msgspec.Raw


class _Version(msgspec.Struct, frozen=True):
    version: int


def pack(manifest: Manifest) -> bytes:
    body = msgspec.json.encode(manifest)
    return gzip.compress(
        msgspec.json.encode(Sealed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))), compresslevel=6, mtime=0
    )


def parse(name: str, data: bytes) -> Manifest:
    """BackupError if it does not check out, or a newer version wrote it."""
    try:
        sealed = msgspec.json.decode(_unpacked(data), type=Sealed)
        body = bytes(sealed.manifest)
        if hashlib.sha256(body).hexdigest() != sealed.sha256:
            raise ValueError("its checksum is wrong")
        version = msgspec.json.decode(body, type=_Version).version
        if version > VERSION:
            raise BackupError(
                f"backup {name} has version {version}; this Quintet reads versions up to {VERSION}",
                hint="restore it with the Quintet that made it, or a newer one",
            )
        return msgspec.json.decode(body, type=Manifest)
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise BackupError(
            f"the manifest of backup {name} is damaged: {error}", hint="restore an earlier backup"
        ) from error


def _unpacked(data: bytes) -> bytes:
    with gzip.open(io.BytesIO(data)) as file:
        found = file.read(MANIFEST_BYTES_MAX + 1)
    if len(found) > MANIFEST_BYTES_MAX:
        raise ValueError(f"it has more than {MANIFEST_BYTES_MAX:,} bytes")
    return found


def load(store: Store, id: str) -> Manifest:
    try:
        data = store.get(MANIFESTS + id)
    except FileNotFoundError:
        if BEGUN + id in store.names(BEGUN):
            raise BackupError(
                f"backup {id} was cut short: it has no manifest, and cannot be restored", hint="restore an earlier one"
            ) from None
        raise BackupError(f"there is no backup {id}", hint="`quintet backup list` shows what there is") from None
    return parse(id, data)


def complete(store: Store) -> list[str]:
    """Backups with a manifest, oldest first."""
    return sorted(name.removeprefix(MANIFESTS) for name in store.names(MANIFESTS))


def cut_short(store: Store) -> list[str]:
    """Backups that were begun and have no manifest."""
    done = set(complete(store))
    begun = {name.removeprefix(BEGUN) for name in store.names(BEGUN)}
    return sorted(begun - done)
