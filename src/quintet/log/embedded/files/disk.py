"""Makes every file system call of the log: `Disk` is the interface, `OsDisk` the only code that makes the calls.

The log runs the same on OsDisk and on the simulated disk of quintet.testing.sim, which loses power on demand. No
decision lives here: a failed call raises OSError, and what that means is decided in partition.py.
"""

import ctypes
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Final, Protocol

from quintet.kernel.buffer import Buffer

WRITE_VECTORS_MAX: Final = 1024  # buffers per pwritev: IOV_MAX of Linux
ZERO_BLOCK_BYTES: Final = 1024 * 1024
UNKNOWN_BYTES: Final = 1 << 62  # more than anything is
# What a later attempt can cure. Everything else, and any error of a sync, ends the partition until a restart.
REMEDIES: Final = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota of the broker's user",
    errno.EMFILE: "raise the limit of open files of the broker's process (ulimit -n, LimitNOFILE), or close connections",
    errno.ENFILE: "raise the limit of open files of the machine (fs.file-max), or end what holds so many",
}
CURABLE: Final = frozenset(REMEDIES)
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)  # Linux only
# File systems whose syncfs tells of errors, by their number in statfs(2): ext, XFS, Btrfs, F2FS.
_TELLING: Final = frozenset((0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010))
_ZEROS: Final = memoryview(bytes(ZERO_BLOCK_BYTES))


class NotOpened(OSError):
    """A directory could not be opened to sync it, for want of a file handle for instance: no sync was tried, so none failed
    and it may be tried again."""


class SyncFailed(Exception):
    """A sync failed: whatever the errno says, it is not curable."""


class PlaceFailed(OSError):
    """One of the unsynced places of a DurableWrite could not be written: nothing of the rest was."""

    def __init__(self, code: int, number: int) -> None:
        super().__init__(code, os.strerror(code))
        self.number = number


Place = tuple[int, Sequence[Buffer], int]  # handle, buffers, position


class Disk(Protocol):
    """Blocking calls with the meaning of POSIX. A handle is a small integer. Paths are absolute strings."""

    native: bool  # its handles are those of the operating system, and others may make calls with them

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        """Open; with create the file must not be there yet."""

    def close(self, handle: int) -> None:
        """Close."""

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Up to size bytes; fewer only at the end of the file."""

    def pread_into(self, handle: int, buffer: memoryview, position: int) -> int:
        """Fill the buffer; returns how many bytes came, fewer than its length only at the end of the file."""

    def pread_warm(self, handle: int, buffer: memoryview, position: int) -> bool:
        """Fill the whole buffer if that needs no wait for the device; False if it does, or if nobody can tell."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of the buffers one behind the other, or raise: then any part of them may be there."""

    def zero(self, handle: int, position: int, size: int) -> None:
        """Write zeros (really write: the blocks must exist afterwards)."""

    def reserve(self, handle: int, position: int, size: int) -> None:
        """Make the file this long, with blocks set aside that read as zeros and were not written."""

    def fdatasync(self, handle: int) -> None:
        """Data and, if it changed, the size of the file are durable."""

    def sync_all(self, path: str, handles: Sequence[int] = ()) -> bool:
        """Make everything durable that was written to the file system of this directory, names too. False if nobody can
        tell whether it is, or if one of these files is on another: then each must be synced by itself."""

    def unwritten_bytes(self) -> int:
        """What anybody wrote, to any disk of this machine, that is in memory only; UNKNOWN_BYTES if nobody can tell."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut the file to size."""

    def size(self, handle: int) -> int:
        """Bytes in the file."""

    def fsync_dir(self, path: str) -> None:
        """Names created, renamed or removed in the directory are durable. NotOpened if it did not come to a sync."""

    def rename(self, old: str, new: str) -> None:
        """Atomically put old in the place of new."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def mkdir(self, path: str) -> bool:
        """Make a directory; False if it was there."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; none if it is not there."""

    def is_dir(self, path: str) -> bool:
        """Is it a directory?"""

    def read_file(self, path: str) -> bytes | None:
        """All of a small file; None if it is not there."""

    def append_file(self, path: str, data: bytes) -> None:
        """Add to the end of a file (created if needed) and make it durable."""

    def free_bytes(self, path: str) -> tuple[int, int]:
        """Space left for us, and the size of the whole disk."""

    def entropy(self) -> int:
        """A random number of 32 bits: chance, like time, comes from outside."""

    def lock(self, path: str) -> int:
        """Create the file if needed and take the exclusive lock on it; BlockingIOError if someone has it. From then on nothing
        is made, changed or removed by a name in its directory unless the file is still there under its own: the directory
        may have been removed and made again by another. Then these calls raise OSError (ESTALE)."""

    def holds(self, lock: int, path: str) -> bool:
        """Is the file of this lock still there under its name?"""


class DurableWrite:
    """Buffers written one behind the other to one place of a file, and synced; and places of other files written before, which are
    not synced. Calls of the disk one after the other, or what the scheduler has for it (model/scheduler.Write). Nobody may change
    the buffers until it is done."""

    __slots__ = ("_disk", "_handle", "before", "buffers", "position", "size", "waiters")

    def __init__(
        self,
        disk: Disk,
        handle: int,
        buffers: Sequence[Buffer],
        position: int,
        size: int,
        waiters: int,
        before: Sequence[Place] = (),
    ) -> None:
        """size: of everything that is written."""
        self._disk = disk
        self._handle = handle
        self.before = before
        self.buffers = buffers
        self.position = position
        self.size = size
        self.waiters = waiters

    @property
    def handle(self) -> int:
        return self._handle if self._disk.native else -1

    def __call__(self) -> None:
        """Raises PlaceFailed or OSError if a write failed, SyncFailed if the sync did."""
        for number, (handle, buffers, position) in enumerate(self.before):
            try:
                self._disk.pwritev(handle, buffers, position)
            except OSError as error:
                raise PlaceFailed(error.errno or errno.EIO, number) from error
        self._disk.pwritev(self._handle, self.buffers, self.position)
        try:
            self._disk.fdatasync(self._handle)
        except OSError as error:
            raise SyncFailed(str(error)) from error

    def failure(self, step: int, code: int) -> Exception:
        if 0 <= step < len(self.before):
            return PlaceFailed(code, step)
        error = OSError(code, os.strerror(code))
        return SyncFailed(str(error)) if step > len(self.before) else error


def replace_file(disk: Disk, directory: str, name: str, data: bytes, durable: bool = True) -> None:
    """Atomically and, if that is asked for, durably put data into directory/name: temporary file, fsync, rename, fsync of the directory."""
    temporary = f"{directory}/{name}.tmp"
    if disk.read_file(temporary) is not None:
        disk.unlink(temporary)
    handle = disk.open(temporary, create=True, write=True)
    try:
        disk.pwritev(handle, [data], 0)
        if durable:
            disk.fdatasync(handle)
    except OSError:
        disk.close(handle)
        disk.unlink(temporary)
        raise
    disk.close(handle)
    disk.rename(temporary, f"{directory}/{name}")
    if durable:
        disk.fsync_dir(directory)


def _syncfs_tells(handle: int) -> bool:
    """Does syncfs report what could not be written to the file system of this file? From Linux 5.8 on, and not where one lies over another."""
    system = os.uname()
    version = system.release.split(".")[:2]
    if system.sysname != "Linux" or [int(part) for part in version if part.isdecimal()] < [5, 8]:
        return False
    found = (ctypes.c_long * 32)()  # struct statfs, and more than it takes: its first field is the type
    return ctypes.CDLL(None).fstatfs(handle, found) == 0 and found[0] in _TELLING


class OsDisk:
    """The real thing. Files are 0600 and directories 0700: messages are nobody else's business."""

    native = True

    def __init__(self) -> None:
        self._locks: dict[int, str] = {}  # locks taken, and their paths

    def holds(self, lock: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(lock), os.stat(path))
        except OSError:
            return False

    def _check_ours(self, path: str) -> None:
        for lock, locked in list(self._locks.items()):  # disk threads look while it is let go
            if path.startswith(os.path.dirname(locked) + "/") and not self.holds(lock, locked):
                raise OSError(errno.ESTALE, "the data folder was removed or replaced while the broker ran", path)

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        if write:
            self._check_ours(path)
        flags = os.O_CLOEXEC | (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT | os.O_EXCL if create else 0)
        return os.open(path, flags, 0o600)

    def close(self, handle: int) -> None:
        self._locks.pop(handle, None)
        os.close(handle)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        data = os.pread(handle, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(handle, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_into(self, handle: int, buffer: memoryview, position: int) -> int:
        got = 0
        while got < len(buffer):
            part = os.preadv(handle, [buffer[got:]], position + got)
            if part == 0:
                break
            got += part
        return got

    def pread_warm(self, handle: int, buffer: memoryview, position: int) -> bool:
        if not _NOWAIT:
            return False
        try:
            return os.preadv(handle, [buffer], position, _NOWAIT) == len(buffer)
        except (
            OSError
        ):  # not in memory, or a file system that cannot tell: a real error comes again when it is waited for
            return False

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        total = sum(map(len, buffers))  # type: ignore[arg-type]
        if len(buffers) <= WRITE_VECTORS_MAX:
            written = os.pwritev(handle, buffers, position)
            if written == total:
                return
        else:
            written = 0
        self._write_rest(handle, buffers, position, written)

    def _write_rest(self, handle: int, buffers: Sequence[Buffer], position: int, written: int) -> None:
        """Go on after a short write: the kernel may take less than it was given at any time."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        skip, first = written, 0
        position += written
        while first < len(views):
            if skip >= len(views[first]):
                skip -= len(views[first])
                first += 1
                continue
            part = [views[first][skip:], *views[first + 1 : first + WRITE_VECTORS_MAX]]
            written = os.pwritev(handle, part, position)
            if written == 0:
                raise OSError(errno.EIO, "the file system accepted no bytes")
            position += written
            skip += written

    def zero(self, handle: int, position: int, size: int) -> None:
        while size > 0:
            part = min(size, ZERO_BLOCK_BYTES)
            self.pwritev(handle, [_ZEROS[:part]], position)
            position += part
            size -= part

    def reserve(self, handle: int, position: int, size: int) -> None:
        os.posix_fallocate(handle, position, size)

    def fdatasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_all(self, path: str, handles: Sequence[int] = ()) -> bool:
        # By a handle that is older than what is to be durable: one that is opened now is not told of a page that was lost before, if
        # another process has asked meanwhile.
        lock = next((lock for lock, locked in list(self._locks.items()) if os.path.dirname(locked) == path), -1)
        if lock < 0 or not _syncfs_tells(lock):
            return False
        device = os.fstat(lock).st_dev
        folders = [f"{path}/{name}" for name in os.listdir(path)]  # one of them may be a link to another disk
        if any(os.stat(folder).st_dev != device for folder in folders):
            return False
        if any(os.fstat(handle).st_dev != device for handle in handles):
            return False
        return bool(ctypes.CDLL(None).syncfs(lock) == 0)

    def unwritten_bytes(self) -> int:
        try:
            with open("/proc/meminfo", "rb") as lines:
                found = dict(line.split(b":", 1) for line in lines)
        except OSError:
            return UNKNOWN_BYTES
        return sum(int(found[name].split()[0]) for name in (b"Dirty", b"Writeback")) * 1024

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def fsync_dir(self, path: str) -> None:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise NotOpened(error.errno, error.strerror, path) from error
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        self._check_ours(new)
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        self._check_ours(path)
        os.unlink(path)

    def rmdir(self, path: str) -> None:
        self._check_ours(path)
        os.rmdir(path)

    def mkdir(self, path: str) -> bool:
        self._check_ours(path)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            return False
        return True

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def append_file(self, path: str, data: bytes) -> None:
        self._check_ours(path)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        self.fsync_dir(os.path.dirname(path))

    def free_bytes(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def entropy(self) -> int:
        return int.from_bytes(os.getrandom(4), "little")

    def lock(self, path: str) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        self._locks[handle] = path
        return handle
