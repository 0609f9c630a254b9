"""Makes a backup: copies what a snapshot holds into bundles, leaves out what an earlier backup has, and writes the manifest last.

Order, which a crash at any point respects: the note that it was begun, bundles, the bundles read back, the manifest, the note removed.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from quintet import __version__
from quintet.log.embedded.backup import manifest as manifests
from quintet.log.embedded.backup.cut import Clocks, Moved, Pinned, Snapshot, read_header
from quintet.log.embedded.backup.manifest import BEGUN, BUNDLES, MANIFESTS, Manifest, Part, Piece, Store
from quintet.log.embedded.engine import FORMAT_PREFIX
from quintet.log.embedded.files import identity
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.segment import HEADER_BYTES, Header, segment_name
from quintet.log.embedded.recovery import checkpoint, journal
from quintet.model import limits
from quintet.model.errors import BackupError, DataDirError

READ_BYTES: Final = 4 * limits.MIB
SNAPSHOTS_MAX: Final = 5  # tried, where files are replaced faster than they are linked
# Kept whole, as they are at the end: what the broker found damaged is known to it after a restore, too.
SMALL: Final = (
    "quarantine.jsonl",
    *(name + end for name in journal.SYNCED for end in (journal.DAMAGED, journal.ACCEPTED)),
)

Progress = Callable[[int], None]


class Bundler:
    """Fills bundles with pieces of files and stores each bundle when it is full."""

    def __init__(self, store: Store, id: str, progress: Progress) -> None:
        self._store = store
        self._id = id
        self._progress = progress
        self._bundle = bytearray()
        self._begin = 0  # of the piece that is being written
        self._in_bundle: list[Piece] = []
        self._in_file: list[Piece] = []
        self.stored: dict[str, list[Piece]] = {}  # by bundle
        self.bytes = 0

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            part = view[: manifests.BUNDLE_BYTES - len(self._bundle)]
            self._bundle += part
            view = view[len(part) :]
            if len(self._bundle) == manifests.BUNDLE_BYTES:
                self.flush()

    def end_file(self) -> list[Piece]:
        """The pieces of what was written since the last call."""
        self._end_piece()
        found, self._in_file = self._in_file, []
        return found

    def _end_piece(self) -> None:
        data = bytes(memoryview(self._bundle)[self._begin :])
        if data:
            name = f"{self._id}-{len(self.stored):05d}"
            piece = Piece(name, self._begin, len(data), hashlib.sha256(data).hexdigest())
            self._in_file.append(piece)
            self._in_bundle.append(piece)
        self._begin = len(self._bundle)

    def flush(self) -> None:
        self._end_piece()
        if not self._in_bundle:
            return
        name, pieces = self._in_bundle[0].bundle, self._in_bundle
        self._store.put(BUNDLES + name, bytes(self._bundle))
        self.stored[name] = pieces
        self.bytes += len(self._bundle)
        self._bundle, self._begin, self._in_bundle = bytearray(), 0, []
        self._progress(self.bytes)


def check_bundle(store: Store, name: str, pieces: list[Piece]) -> bytes:
    """The bytes of a bundle, with these pieces checked. BackupError names what does not check out."""
    try:
        data = store.get(BUNDLES + name)
    except FileNotFoundError:
        raise BackupError(
            f"bundle {name} is missing, which holds {len(pieces)} pieces", hint="restore an earlier backup"
        ) from None
    for piece in pieces:
        found = hashlib.sha256(memoryview(data)[piece.at : piece.at + piece.length]).hexdigest()
        if found != piece.sha256:
            raise BackupError(
                f"bundle {name} is damaged: {piece.length} bytes at {piece.at} have SHA-256 {found[:16]}..., and should have"
                f" {piece.sha256[:16]}...",
                hint="restore a backup that does not need this bundle: `quintet backup verify` tells which do",
            )
    return data


class Earlier:
    """What the newest backup of the same log has: pieces that need not be stored again."""

    def __init__(self, store: Store, log: str) -> None:
        self.parts: dict[str, Part] = {}
        self.id = ""
        for id in reversed(manifests.complete(store)):
            try:
                found = manifests.load(store, id)
            except BackupError:
                continue  # damaged: nothing is built on it
            if found.log == log:
                self.id = id
                there = store.names(BUNDLES)
                self.parts = {part.path: part for part in found.parts if _is_there(part, there)}
                return


def _is_there(part: Part, bundles: dict[str, int]) -> bool:
    return all(bundles.get(BUNDLES + piece.bundle, 0) >= piece.at + piece.length for piece in part.pieces)


class _Copy:
    """One backup under way."""

    def __init__(self, snapshot: Snapshot, bundler: Bundler, earlier: Earlier) -> None:
        self._snapshot = snapshot
        self._disk = snapshot.disk
        self._bundler = bundler
        self._earlier = earlier.parts
        self.parts: list[Part] = []
        self.marks: list[tuple[int, int, int, int, int]] = []
        self.damaged: list[str] = []
        self.records = 0

    def partition(self, pinned: Pinned) -> None:
        """One without any offset is left out: it may be of a topic that was made after the cut, which has no row."""
        bases = sorted(pinned.files)
        expected = bases[0] if bases else 0
        parts: list[Part] = []
        for number, base in enumerate(bases):
            if base > expected:
                if not self._snapshot.running or base <= pinned.seen:
                    self.damaged.append(f"{pinned.path}: offsets {expected} to {base - 1} are missing")
                else:  # a segment was compacted away between the two listings
                    raise Moved(pinned.path)
            handle = self._disk.open(pinned.files[base])
            try:
                part, goes_on = self._segment(pinned, base, handle, last=number == len(bases) - 1)
            finally:
                self._disk.close(handle)
            if part is None:
                break
            parts.append(part)
            expected = max(expected, part.next_offset)
            if not goes_on:
                break
        if not expected and not any(part.sealed for part in parts):
            return
        self.parts += parts
        if parts:
            self.marks.append((pinned.topic_id, pinned.number, bases[len(parts) - 1], parts[-1].size, expected))
            if pinned.topic_id >= limits.TOPIC_ID_FIRST_USER:
                self.records += expected - bases[0]

    def _segment(self, pinned: Pinned, base: int, handle: int, *, last: bool) -> tuple[Part | None, bool]:
        """The part of one segment, and whether the next one belongs to the backup, too."""
        path = f"{pinned.path}/{segment_name(base)}"
        header = read_header(self._disk, handle)
        if header is None:
            if last and self._snapshot.running:  # it is being made
                return None, False
            self.damaged.append(f"{path}: its header does not check out")
            size = self._disk.size(handle)
            return Part(path, self._bytes(handle, 0, size), next_offset=base, sealed=True), True
        before = self._known(path, header)
        if before is not None and before.sealed and not last:
            return before, True
        start, expected = (before.size, before.next_offset) if before is not None else (HEADER_BYTES, base)
        ended = self._snapshot.end_of(pinned, base, handle, header, start, expected, last)
        self.damaged += ended.damaged
        whole = ended.goes_on and not last
        if before is not None and len(before.pieces) < manifests.PIECES_MAX:
            pieces = before.pieces + self._bytes(handle, before.size, ended.position)
        else:
            pieces = self._bytes(handle, 0, ended.position)
        return Part(path, pieces, header.seed, header.created, ended.next_offset, whole), ended.goes_on

    def _known(self, path: str, header: Header) -> Part | None:
        """The same file in the earlier backup: it has the same seed and was begun at the same time."""
        found = self._earlier.get(path)
        return found if found is not None and (found.seed, found.created) == (header.seed, header.created) else None

    def _bytes(self, handle: int, start: int, stop: int) -> list[Piece]:
        for position in range(start, stop, READ_BYTES):
            wanted = min(READ_BYTES, stop - position)
            data = self._disk.pread(handle, wanted, position)
            if len(data) < wanted:
                raise BackupError(f"a segment became shorter while it was copied, at byte {position + len(data)}")
            self._bundler.write(data)
        return self._bundler.end_file()

    def stage(self, name: str, path: str) -> None:
        handle = self._disk.open(path)
        try:
            size, kept = self._disk.size(handle), self._earlier.get(f"stages/{name}")
            same = kept is not None and kept.size == size  # a name is random, and a sealed stage does not change
            pieces = kept.pieces if kept is not None and same else self._bytes(handle, 0, size)
        finally:
            self._disk.close(handle)
        self.parts.append(Part(f"stages/{name}", pieces))

    def small(self, name: str, data: bytes) -> None:
        if data:
            self._bundler.write(data)
            self.parts.append(Part(name, self._bundler.end_file()))


def create(
    directory: Path,
    store: Store,
    disk: Disk,
    clocks: Clocks,
    id: str,
    *,
    anchors: Path | None = None,
    verify: bool = True,
    progress: Progress = lambda _: None,
    snapshots: type[Snapshot] = Snapshot,
) -> Manifest:
    """Back up a data directory. Returns the manifest when it is stored."""
    number = _format(disk, directory)
    log = identity.read(disk, str(directory))
    store.put(BEGUN + id, b"")
    earlier = Earlier(store, log)
    for left in range(SNAPSHOTS_MAX, 0, -1):
        bundler = Bundler(store, id, progress)
        try:
            with snapshots(directory, disk, clocks, anchors) as snapshot:
                copy = _copied(snapshot, bundler, earlier)
            break
        except Moved as moved:
            for name in bundler.stored:
                store.remove(BUNDLES + name)
            if left == 1:
                raise BackupError(f"{moved}: its files are replaced all the time", hint="make it again") from moved
        except BackupError:
            if not bundler.stored:  # nothing was cut short: it did not begin
                store.remove(BEGUN + id)
            raise
    if verify:
        for name, pieces in bundler.stored.items():
            check_bundle(store, name, pieces)
    made = Manifest(
        version=manifests.VERSION,
        id=id,
        log=log,
        format=number,
        written_by=__version__,
        begun=snapshot.begun,
        cut=snapshot.cut,
        finished=clocks.now(),
        records=copy.records,
        stored_bytes=bundler.bytes,
        last_topic=max([topic for topic, *_ in copy.marks] + [_last_topic(disk, directory)], default=0),
        marks=copy.marks,
        parts=copy.parts,
        damaged=copy.damaged,
    )
    store.put(MANIFESTS + id, manifests.pack(made))
    store.remove(BEGUN + id)
    return made


def _copied(snapshot: Snapshot, bundler: Bundler, earlier: Earlier) -> _Copy:
    copy = _Copy(snapshot, bundler, earlier)
    for pinned in snapshot.partitions.values():
        copy.partition(pinned)
    for name, path in snapshot.stages.items():
        copy.stage(name, path)
    for name, data in snapshot.anchors:
        copy.small(name, data)
    for name in (identity.NAME, *SMALL):
        copy.small(name, snapshot.disk.read_file(f"{snapshot.directory}/{name}") or b"")
    bundler.flush()
    snapshot.check_clock()
    return copy


def _last_topic(disk: Disk, directory: Path) -> int:
    return max((topic for topic, _ in checkpoint.load(disk, str(directory)).marks), default=0)


def _format(disk: Disk, directory: Path) -> int:
    data = disk.read_file(f"{directory}/format")
    if data is None:
        raise DataDirError(f"{directory} is not a data folder of Quintet: there is no file `format` in it")
    number = data.decode(errors="replace").strip().removeprefix(FORMAT_PREFIX)
    if not number.isdecimal():
        raise DataDirError(f"{directory}/format: does not name a Quintet data format")
    return int(number)


def prune(store: Store, keep: int) -> tuple[list[str], int]:
    """Remove all backups but the newest `keep`, and the bundles that none of those needs. (ids removed, bundles removed). A backup that is
    being made loses nothing: bundles of its ID stay. One that was cut short before the oldest that is kept is removed."""
    ids = manifests.complete(store)
    kept = [manifests.load(store, id) for id in ids[-keep:]]
    gone = ids[: len(ids) - len(kept)]
    for id in gone:
        store.remove(MANIFESTS + id)
        store.remove(BEGUN + id)
    needed = {bundle for one in kept for bundle in one.bundles}
    begun = {name.removeprefix(BEGUN) for name in store.names(BEGUN)} - set(ids)
    for id in [id for id in begun if ids and id < ids[-len(kept)]]:  # cut short long ago
        begun.remove(id)
        store.remove(BEGUN + id)
    removed = 0
    for name in store.names(BUNDLES):
        bundle = name.removeprefix(BUNDLES)
        if bundle not in needed and bundle.rpartition("-")[0] not in begun:
            store.remove(name)
            removed += 1
    return gone, removed
