"""Keeps the first segments of small partitions in shared files, packs, and shows each under the path of a file of its own.

A segment file of its own costs two directories, a block and an inode. A pack has room for 256 packed segments of 2 KiB, at
places that follow from topic and partition alone, so there is nothing to allocate, to look up, or to lose:

    DIR/topics/00000273/0/00000000000000000000.seg   is   DIR/packs/00000001.0   at   (273 % 256) * 2048

A packed segment has the same bytes as any other: a header of 512 bytes, batches, zeros. It does not grow: what does not fit
begins the next segment, in a file of its own. Its room is blank (zeros, never used), taken, or given up. Room that was given
up (its topic was deleted, or retention took it) says so and is not used again: a journal that still has the beginning of
that segment must not bring it back.

`PackDisk` is a Disk: a path of a segment for which there is no file leads to its pack. Handles of packed segments are
numbers that cost nothing; the packs are opened when they are used, and few at a time. A failed sync of a pack fails every
later one: the system tells of a lost page only once, and it may have been anybody's.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from quintet import kernel
from quintet.kernel.buffer import Buffer
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.segment import HEADER_BYTES
from quintet.model import limits

PACKED_BYTES: Final = 2 * limits.KIB  # of one segment: with its header room for a few small messages
SEGMENTS_PER_PACK: Final = 256  # topics: few enough that a pack of deleted topics is soon gone altogether
OPEN_PACKS_MAX: Final = 64
FOLDER: Final = "packs"
TOPICS: Final = "topics"
_HANDLE_FIRST: Final = 1 << 32  # above every handle of the system
_NAME_DIGITS: Final = 20
_SEGMENT: Final = ".seg"
_MAGIC: Final = b"QNTSEG1\0"
_GIVEN_UP: Final = b"QNTG"  # over the beginning of the magic: half of this write changes nothing
_BLANK: Final = bytes(PACKED_BYTES)
_BASE_AT: Final = 32  # of the base offset in a segment's header


class Place(NamedTuple):
    """Where a packed segment lies."""

    pack: str
    position: int


def pack_of(root: str, topic_id: int, partition: int) -> Place:
    number, place = divmod(topic_id, SEGMENTS_PER_PACK)
    return Place(f"{root}/{FOLDER}/{number:08d}.{partition}", place * PACKED_BYTES)


def place_of(path: str) -> Place | None:
    """Where the segment with this path would be packed; None if it is no path of a segment."""
    parts = path.rsplit("/", 4)
    if len(parts) != 5 or parts[1] != TOPICS or not (parts[2].isdecimal() and parts[3].isdecimal()):
        return None
    return pack_of(parts[0], int(parts[2]), int(parts[3]))


def base_in(data: bytes) -> int | None:
    """The base offset of the packed segment with these bytes; None if there is none. One whose header does not check out
    counts as the first: it is somebody's, and is reported as damaged when it is opened."""
    if data.startswith(_MAGIC):
        checksum = int.from_bytes(data[8:12], "little")
        sound = len(data) >= HEADER_BYTES and kernel.crc32c(memoryview(data)[12:HEADER_BYTES]) == checksum
        return int.from_bytes(data[_BASE_AT : _BASE_AT + 8], "little") if sound else 0
    if data.startswith(_GIVEN_UP) or is_blank(data):
        return None
    return 0


def is_blank(data: bytes) -> bool:
    """Is this room that was never used, or the end of the file?"""
    return _BLANK.startswith(data)


def is_packed(handle: int) -> bool:
    return handle >= _HANDLE_FIRST


class _Pack:
    """One pack. `users` are calls under way: it is not closed under them."""

    __slots__ = ("failed", "handle", "lock", "path", "users")

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle = -1
        self.users = 0
        self.failed: OSError | None = None
        self.lock = threading.Lock()  # held while it is synced: whoever waits learns that it failed


class PackDisk:
    """A Disk over another one. `writes`: packs are opened for writing."""

    sees_packs: Final = True

    def __init__(self, disk: Disk, writes: bool = False) -> None:
        self.below = self._disk = disk
        self.native = disk.native  # of handles below those of packed segments
        self._writes = writes
        # Told of the folder in which a pack was made: its name is not durable.
        self.on_made: Callable[[str], None] = lambda folder: None
        self._packs: list[_Pack] = []
        self._all_failed = False  # a sync of the whole disk failed
        self._all_lock = threading.Lock()
        self._numbers: dict[str, int] = {}
        self._partitions_of: dict[int, list[int]] = {}
        self._last_read = "", b""  # a pack, while all its segments are opened one by one
        self._open: dict[int, None] = {}  # numbers of packs that are open, the longest first
        self._lock = threading.Lock()

    # -- packed segments -----------------------------------------------------------------------------------------------

    def begin(self, path: str) -> int:
        """A handle for a segment that is to be packed, whether or not something is there."""
        place = place_of(path)
        assert place is not None
        handle = self._handle(place)
        with self._lock:  # two may begin in one pack at the same time
            if self._pack(handle).handle < 0:
                try:
                    self._disk.close(self._disk.open(place.pack))
                except FileNotFoundError:
                    self._disk.close(self._disk.open(place.pack, create=True, write=True))
                    self.on_made(place.pack.rpartition("/")[0])  # nobody syncs it before this is known
        return handle

    def can_begin(self, path: str) -> bool:
        """May this segment be packed? Not where a sync has failed: then it is better off in a file of its own."""
        place = place_of(path)
        number = self._numbers.get(place.pack) if place is not None else None
        return number is None or self._packs[number].failed is None

    def is_blank(self, path: str) -> bool:
        """Was this segment's room never used?"""
        place = place_of(path)
        assert place is not None
        try:
            return is_blank(self.pread(self._handle(place), PACKED_BYTES, 0))
        except FileNotFoundError:
            return True

    def read_packed(self, root: str, topic_id: int, partition: int) -> bytes:
        """What is in the room of a packed segment, without the question whether there is a file instead."""
        try:
            return self.pread(self._handle(pack_of(root, topic_id, partition)), PACKED_BYTES, 0)
        except FileNotFoundError:
            return b""

    def pack_with(self, root: str, topic_id: int, partition: int) -> tuple[bytes, int]:
        """The whole pack that this segment would be in, and where it begins there. A start asks for one after the other."""
        place = pack_of(root, topic_id, partition)
        if self._last_read[0] != place.pack:
            try:
                self._last_read = place.pack, self._disk.read_file(place.pack) or b""
            except OSError:  # perhaps it is another segment that cannot be read
                return self.read_packed(root, topic_id, partition), 0
        return self._last_read[1], place.position

    def topic_ids(self, root: str) -> list[int]:
        """Numbers of the topics that have a packed segment, rising."""
        found: set[int] = set()
        for number, partitions in self._groups(root).items():
            first = number * SEGMENTS_PER_PACK
            for partition in partitions:
                found.update(first + place for place in self._taken(pack_of(root, first, partition).pack))
        return sorted(found)

    def _taken(self, pack: str) -> Iterator[int]:
        data = self._disk.read_file(pack) or b""
        for place in range(-(-len(data) // PACKED_BYTES)):
            at = place * PACKED_BYTES
            if data.startswith(_MAGIC, at) or base_in(data[at : at + PACKED_BYTES]) is not None:
                yield place

    def sync_packs(self, root: str) -> None:
        """Make durable what a process before this one may have left in the page cache. Raises OSError."""
        folder = f"{root}/{FOLDER}"
        names = self._disk.listdir(folder)
        for name in names:
            handle = self._disk.open(f"{folder}/{name}", write=True)
            try:
                self._disk.fdatasync(handle)
            finally:
                self._disk.close(handle)
        if names:
            self._disk.fsync_dir(folder)

    def remove_empty(self, root: str) -> None:
        """Remove packs in which nothing is left, and what a power cut left in room that was given up. Only while there is no
        journal that could still bring something back."""
        folder = f"{root}/{FOLDER}"
        empty = [name for name in self._disk.listdir(folder) if not self._clear_pack(f"{folder}/{name}")]
        for name in empty:
            self._disk.unlink(f"{folder}/{name}")
        if empty:
            self._disk.fsync_dir(folder)

    def _clear_pack(self, pack: str) -> bool:
        """Is anything in it? Then its room that was given up is cleared, if it is not."""
        data = self._disk.read_file(pack) or b""
        taken = False
        for at in range(0, len(data), PACKED_BYTES):
            room = data[at : at + PACKED_BYTES]
            if not room.startswith(_GIVEN_UP):
                taken = taken or base_in(room) is not None
            elif any(room[len(_GIVEN_UP) :]):
                self._clear(self._handle(Place(pack, at)))
        return taken

    def _handle(self, place: Place) -> int:
        number = self._numbers.get(place.pack)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(place.pack, len(self._packs))
                if number == len(self._packs):
                    self._packs.append(_Pack(place.pack))
        return _HANDLE_FIRST + number * SEGMENTS_PER_PACK + place.position // PACKED_BYTES

    def _use(self, handle: int) -> tuple[_Pack, int]:
        """The open pack, and where in it this segment begins; `_done` must follow."""
        number, place = divmod(handle - _HANDLE_FIRST, SEGMENTS_PER_PACK)
        pack = self._packs[number]
        with self._lock:
            if pack.handle < 0:
                pack.handle = self._disk.open(pack.path, write=self._writes)
                self._open[number] = None
                if len(self._open) > OPEN_PACKS_MAX:
                    self._close_one()
            pack.users += 1
        return pack, place * PACKED_BYTES

    def _pack(self, handle: int) -> _Pack:
        return self._packs[(handle - _HANDLE_FIRST) // SEGMENTS_PER_PACK]

    def _close_one(self) -> None:
        for number in self._open:
            pack = self._packs[number]
            if not pack.users and number != next(reversed(self._open)):
                self._disk.close(pack.handle)
                pack.handle = -1
                del self._open[number]
                return

    def _done(self, pack: _Pack) -> None:
        with self._lock:
            pack.users -= 1
            if not self._writes and not pack.users:  # who only reads does not say when that is over
                self._close_unused()

    def close_packs(self) -> None:
        """Close those that are not in use: about every second, and at the end."""
        with self._lock:
            self._last_read = "", b""
            self._close_unused()

    def _close_unused(self) -> None:
        for number in [number for number in self._open if not self._packs[number].users]:
            self._disk.close(self._packs[number].handle)
            self._packs[number].handle = -1
            del self._open[number]

    def _there(self, path: str) -> int:
        """The handle of the packed segment with this very base offset, or FileNotFoundError."""
        place = place_of(path)
        name = path[-_NAME_DIGITS - len(_SEGMENT) :]
        if place is not None and name.endswith(_SEGMENT) and name[:_NAME_DIGITS].isdecimal():
            handle = self._handle(place)
            if base_in(self.pread(handle, PACKED_BYTES, 0)) == int(name[:_NAME_DIGITS]):
                return handle
        raise FileNotFoundError(path)

    def _give_up(self, path: str) -> None:
        """Durably: before anything says that the segment is gone. A power cut leaves it whole or given up, never a part of it:
        so the mark is one sector, and synced before the rest is made zeros."""
        handle = self._there(path)
        self.pwritev(handle, [_GIVEN_UP], 0)
        self.fdatasync(handle)
        with contextlib.suppress(OSError):  # it is gone all the same; the next start clears what is left
            self._clear(handle)

    def _clear(self, handle: int) -> None:
        """Of room that was given up: nothing stays but the mark."""
        self.truncate(handle, len(_GIVEN_UP))

    # -- Disk: by path -------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        try:
            return self._disk.open(path, create=create, write=write)
        except FileNotFoundError:
            if create:
                raise
            return self._there(path)

    def unlink(self, path: str) -> None:
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            self._give_up(path)

    def read_file(self, path: str) -> bytes | None:
        data = self._disk.read_file(path)
        if data is None and path.endswith(_SEGMENT):
            try:
                return self.pread(self._there(path), PACKED_BYTES, 0)
            except FileNotFoundError:
                return None
        return data

    def listdir(self, path: str) -> list[str]:
        """With the names that packed segments, and the directories above them, would have."""
        names = self._disk.listdir(path)
        root, _, rest = path.rpartition(f"/{TOPICS}")
        packed: list[str] = []
        if rest == "":
            self._partitions_of = self._groups(root)
            packed = [f"{topic_id:08d}" for topic_id in self.topic_ids(root)]
        elif rest.startswith("/") and rest[1:].isdecimal():
            packed = self._partitions(root, int(rest[1:]))
        elif (place := place_of(f"{path}/")) is not None:
            base = self._base_at(place)
            packed = [f"{base:0{_NAME_DIGITS}d}{_SEGMENT}"] if base is not None else []
        return sorted({*names, *packed}) if packed else names

    def _partitions(self, root: str, topic_id: int) -> list[str]:
        """Who only reads lists all topics first, and then each: the packs are listed once for all."""
        groups = self._groups(root) if self._writes else self._partitions_of
        numbers = groups.get(topic_id // SEGMENTS_PER_PACK, ())
        return [str(number) for number in numbers if self._base_at(pack_of(root, topic_id, number)) is not None]

    def _groups(self, root: str) -> dict[int, list[int]]:
        """Which partitions the packs are of, by their number."""
        found: dict[int, list[int]] = {}
        for name in self._disk.listdir(f"{root}/{FOLDER}"):
            number, _, partition = name.partition(".")
            if number.isdecimal() and partition.isdecimal():
                found.setdefault(int(number), []).append(int(partition))
        return found

    def _base_at(self, place: Place) -> int | None:
        try:
            return base_in(self.pread(self._handle(place), PACKED_BYTES, 0))
        except FileNotFoundError:
            return None

    def rmdir(self, path: str) -> None:
        if self._disk.is_dir(path):
            self._disk.rmdir(path)

    # -- Disk: by handle -----------------------------------------------------------------------------------------------

    def close(self, handle: int) -> None:
        if handle < _HANDLE_FIRST:
            self._disk.close(handle)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        if handle < _HANDLE_FIRST:
            return self._disk.pread(handle, size, position)
        pack, start = self._use(handle)
        try:
            return self._disk.pread(pack.handle, max(min(size, PACKED_BYTES - position), 0), start + position)
        finally:
            self._done(pack)

    def pread_into(self, handle: int, buffer: memoryview, position: int) -> int:
        if handle < _HANDLE_FIRST:
            return self._disk.pread_into(handle, buffer, position)
        data = self.pread(handle, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pread_warm(self, handle: int, buffer: memoryview, position: int) -> bool:
        if handle < _HANDLE_FIRST:
            return self._disk.pread_warm(handle, buffer, position)
        pack, start = self._use(handle)
        try:
            fits = position + len(buffer) <= PACKED_BYTES
            return fits and self._disk.pread_warm(pack.handle, buffer, start + position)
        finally:
            self._done(pack)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        if handle < _HANDLE_FIRST:
            self._disk.pwritev(handle, buffers, position)
            return
        assert position + sum(map(len, buffers)) <= PACKED_BYTES  # type: ignore[arg-type]
        pack, start = self._use(handle)
        self._last_read = "", b""
        try:
            self._disk.pwritev(pack.handle, buffers, start + position)
        finally:
            self._done(pack)

    def zero(self, handle: int, position: int, size: int) -> None:
        if handle < _HANDLE_FIRST:
            self._disk.zero(handle, position, size)
        else:
            self.pwritev(handle, [bytes(size)], position)

    def reserve(self, handle: int, position: int, size: int) -> None:
        if handle < _HANDLE_FIRST:
            self._disk.reserve(handle, position, size)

    def fdatasync(self, handle: int) -> None:
        if handle < _HANDLE_FIRST:
            self._disk.fdatasync(handle)
            return
        pack, _ = self._use(handle)
        try:
            with pack.lock:
                if pack.failed is not None:
                    raise OSError(pack.failed.errno, f"an earlier sync of {pack.path} failed: {pack.failed.strerror}")
                try:
                    self._disk.fdatasync(pack.handle)
                except OSError as error:
                    pack.failed = error
                    raise
        finally:
            self._done(pack)

    def truncate(self, handle: int, size: int) -> None:
        """What is behind `size` becomes zeros; where there are only zeros nothing is written, and no space is needed."""
        if handle < _HANDLE_FIRST:
            self._disk.truncate(handle, size)
            return
        rest = self.pread(handle, PACKED_BYTES - size, size).rstrip(b"\0")
        if rest:
            self.pwritev(handle, [bytes(len(rest))], size)

    def size(self, handle: int) -> int:
        if handle < _HANDLE_FIRST:
            return self._disk.size(handle)
        pack, start = self._use(handle)
        try:
            return min(max(self._disk.size(pack.handle) - start, 0), PACKED_BYTES)
        finally:
            self._done(pack)

    # -- Disk: the rest as it is ---------------------------------------------------------------------------------------

    def sync_all(self, path: str, handles: Sequence[int] = ()) -> bool:
        """One at a time, and once it failed never again: the system tells of a lost page once, and whoever asks next, or at the same
        time, would not hear of it."""
        with self._all_lock:
            if self._all_failed:
                return False
            try:
                self._all_failed = not self._disk.sync_all(path, handles)
            except OSError:  # it did not come to a sync
                return False
            return not self._all_failed

    def unwritten_bytes(self) -> int:
        return self._disk.unwritten_bytes()

    def fsync_dir(self, path: str) -> None:
        self._disk.fsync_dir(path)

    def rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)

    def mkdir(self, path: str) -> bool:
        return self._disk.mkdir(path)

    def is_dir(self, path: str) -> bool:
        return self._disk.is_dir(path)

    def append_file(self, path: str, data: bytes) -> None:
        self._disk.append_file(path, data)

    def free_bytes(self, path: str) -> tuple[int, int]:
        return self._disk.free_bytes(path)

    def entropy(self) -> int:
        return self._disk.entropy()

    def lock(self, path: str) -> int:
        return self._disk.lock(path)

    def holds(self, lock: int, path: str) -> bool:
        return self._disk.holds(lock, path)


def with_packs(disk: Disk, writes: bool = False) -> PackDisk:
    """A disk on which packed segments are seen: this one, if they are."""
    return cast(PackDisk, disk) if getattr(disk, "sees_packs", False) else PackDisk(disk, writes)
