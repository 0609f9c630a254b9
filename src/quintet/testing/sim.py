"""SimScheduler and SimDisk: time that stands still until told, disk work that finishes when told, power that fails.

SimDisk keeps for every file the durable image and the writes since the last sync. `crash` throws away, sector by
sector, what was never synced; names not made durable by a directory sync go back to what they were. The log code runs
on it unchanged, so a test can lose power between any two calls.
"""

import errno
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Final, TypeVar, cast

from quintet.kernel.buffer import Buffer
from quintet.log.embedded.files.disk import NotOpened
from quintet.model.scheduler import LoneRead, Write

T = TypeVar("T")

SECTOR_BYTES: Final = 512  # what a device writes whole or not at all
_SERIAL: Final = itertools.count(1)  # so that two disks of one test do not give out the same segment seeds
BOUNDLESS: Final = 1 << 40  # bytes: more than a test can write, so nobody counts them
START_US: Final = 1_700_000_000_000_000


class SimScheduler:
    """Manual time. `turn` runs what is due; offloaded work runs at once, or when `finish` is called if `held`."""

    def __init__(self, held: bool = False) -> None:
        self.held = held
        self.lone_read = LoneRead()  # a test says when
        self.time = START_US
        self.jumped = 0  # how far the wall clock was set ahead of the time that really passed, in microseconds
        self.jobs: deque[tuple[Callable[[], object], Callable[[object], None]]] = deque()
        self._soon: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def now(self) -> int:
        return self.time + self.jumped

    def monotonic(self) -> int:
        return self.time - START_US

    def jump(self, delta_us: int) -> None:
        """Set the wall clock ahead (or back) without any time passing."""
        self.jumped += delta_us

    def soon(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        self._count += 1
        self._timers.append((self.time + delay_us, self._count, call))

    def offload(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        self.jobs.append((work, cast(Callable[[object], None], done)))

    def write(self, work: Write, done: Callable[[BaseException | None], None]) -> None:
        self.offload(work, done)

    def write_at_once(self, work: Write) -> float | None:
        if self.held or not self.lone_read.under_way:
            return None
        work()
        return 0.0

    def may_write_at_once(self) -> bool:
        return False  # there are no sockets of the kernel in a simulation

    def wrote_at_once(self, seconds: float) -> None: ...

    def finish(self, number: int = 0) -> None:
        """Run one queued job to its end, its callback included."""
        work, done = self.jobs[number]
        del self.jobs[number]
        try:
            result: object = work()
        except Exception as error:
            result = error
        done(result)

    def turn(self) -> None:
        """One turn of the loop: what was put off to its end, then due timers, then (unless held) the disk work."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        for timer in sorted(timer for timer in self._timers if timer[0] <= self.time):
            self._timers.remove(timer)
            timer[2]()
        if not self.held:
            for _ in range(len(self.jobs)):
                self.finish()

    def run_until_idle(self, turns_max: int = 10_000) -> None:
        """Turn until nothing is left to do now."""
        for _ in range(turns_max):
            self.turn()
            if not self._soon and (self.held or not self.jobs):
                return
        raise AssertionError(f"the log did not come to rest within {turns_max} turns")

    def advance(self, delta_us: int) -> None:
        self.time += delta_us


class _File:
    """The durable bytes, the bytes as a running system sees them, and the sectors that differ since the last sync."""

    __slots__ = ("data", "dirty", "durable", "lost")

    def __init__(self, data: bytes = b"") -> None:
        self.lost = False  # what was written could not be made durable, and the next sync of the file says so
        self.data = bytearray(data)
        self.durable = bytes(data)
        self.dirty: set[int] = set()

    def write(self, position: int, data: memoryview) -> None:
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position : position + len(data)] = data
        self.dirty.update(range(position // SECTOR_BYTES, (position + max(len(data), 1) - 1) // SECTOR_BYTES + 1))

    def sync(self) -> None:
        self.durable = bytes(self.data)
        self.dirty.clear()

    def crash(self, rng: Random) -> None:
        """Each unsynced sector is there or not; the size is the old one, the new one or between."""
        if not self.dirty and len(self.data) == len(self.durable):
            return
        old, new = len(self.durable), len(self.data)
        size = rng.choice((old, new, rng.randint(min(old, new), max(old, new))))
        image = bytearray(self.durable[:size].ljust(size, b"\0"))
        share = rng.choice((0.0, 0.5, 0.5, 0.9, 1.0))
        for sector in sorted(self.dirty):
            first, last = sector * SECTOR_BYTES, min((sector + 1) * SECTOR_BYTES, size, new)
            if first < last and rng.random() < share:
                image[first:last] = self.data[first:last]
        self.data = image
        self.sync()


class _Names(dict[str, _File | None]):
    """Path to file, None for a directory; and for each directory the paths in it, which a test asks for at every call."""

    def __init__(self, items: Iterable[tuple[str, _File | None]] = ()) -> None:
        super().__init__()
        self._inside: dict[str, dict[str, None]] = {}
        for path, file in items:
            self[path] = file

    def __setitem__(self, path: str, file: _File | None) -> None:
        if path not in self and path != "/":
            self._inside.setdefault(os.path.dirname(path), {})[path] = None
        super().__setitem__(path, file)

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        del self._inside[os.path.dirname(path)][path]

    def copy(self) -> "_Names":
        made = _Names()
        made.update(self)  # the dictionary's own: the paths are copied with it
        made._inside = {path: dict(inside) for path, inside in self._inside.items()}
        return made

    def inside(self, path: str) -> list[str]:
        """In the order in which they came."""
        return list(self._inside.get(path, ()))


class SimDisk:
    """A disk in memory. `fail(op, nth, code)` makes the nth next call of an operation fail; `capacity` makes it full."""

    native = False

    def __init__(self, capacity: int = BOUNDLESS, seed: int | None = None) -> None:
        self.capacity = capacity
        self.warm = False  # are reads that must not wait answered?
        self.unwritten = 0  # bytes of others that wait to be written
        self._chance = Random(next(_SERIAL) if seed is None else seed)
        self.calls: dict[str, int] = {}
        self.total_calls = 0
        self.stop_at: int | None = None  # raise PowerLoss at this call, counted from the start
        self._faults: dict[str, list[tuple[int, int, int]]] = {}
        self._names = _Names([("/", None)])
        self._durable_names = _Names([("/", None)])
        self._handles: dict[int, _File] = {}
        self._next = 3
        self._locked: dict[str, int] = {}

    # -- what a test does to it ----------------------------------------------------------------------------------------

    def fail(self, operation: str, nth: int, code: int, times: int = 1) -> None:
        """The nth next call of the operation (1 is the very next), and times - 1 after it, raise OSError(code)."""
        first = self.calls.get(operation, 0) + nth
        self._faults.setdefault(operation, []).append((first, first + times, code))

    def heal(self) -> None:
        self._faults.clear()

    def crash(self, rng: Random) -> None:
        """Power is gone and back: unsynced names and sectors are lost or not, every handle and lock is gone."""
        files = {id(f): f for f in [*self._names.values(), *self._durable_names.values()] if f is not None}
        for file in files.values():
            file.crash(rng)
        names = self._durable_names.copy()
        for path, found in self._names.items():
            if names.get(path, self) is not found and rng.random() < 0.3:
                names[path] = found
        for path in [path for path in names if path != "/" and not self._has_parents(path, names)]:
            del names[path]
        for path in self._durable_names:
            if path not in self._names and path in names and rng.random() < 0.3:
                prefix = path + "/"
                for gone in [name for name in names if name == path or name.startswith(prefix)]:
                    del names[gone]
        self._names = names
        self._durable_names = names.copy()
        self.kill()
        self.stop_at = None
        self.heal()

    def kill(self) -> None:
        """Only the process died: the page cache is still there, handles and locks are not."""
        self._handles.clear()
        self._locked.clear()

    def snapshot(self) -> dict[str, bytes | None]:
        return {path: None if file is None else bytes(file.data) for path, file in self._names.items()}

    def restore(self, image: dict[str, bytes | None]) -> None:
        """Be the disk of a snapshot, everything durable."""
        self._names = _Names((path, None if data is None else _File(data)) for path, data in image.items())
        self._durable_names = self._names.copy()
        self.kill()

    def damage(self, path: str, data: bytes) -> None:
        """Put other bytes into a file, durably: bit rot, a torn tail."""
        file = self._file(path)
        file.data = bytearray(data)
        file.sync()

    def used(self) -> int:
        return sum(len(file.data) for file in self._names.values() if file is not None)

    # -- Disk ----------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, write: bool = False) -> int:
        self._enter("open")
        if create:
            if path in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._parent(path)
            self._names[path] = _File()
        file = self._file(path)
        self._next += 1
        self._handles[self._next] = file
        return self._next

    def close(self, handle: int) -> None:
        self._handles.pop(handle, None)
        self._locked = {path: owner for path, owner in self._locked.items() if owner != handle}

    def pread(self, handle: int, size: int, position: int) -> bytes:
        self._enter("pread")
        return bytes(self._handles[handle].data[position : position + size])

    def pread_into(self, handle: int, buffer: memoryview, position: int) -> int:
        data = self.pread(handle, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def pread_warm(self, handle: int, buffer: memoryview, position: int) -> bool:
        return self.warm and self.pread_into(handle, buffer, position) == len(buffer)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        file = self._handles[handle]
        try:
            self._enter("pwritev")
        except OSError:
            half = b"".join(bytes(buffer) for buffer in buffers)
            file.write(position, memoryview(half)[: min(len(half) // 2, max(len(file.data) - position, 0))])
            raise
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            self._reserve(file, position + len(view))
            file.write(position, view)
            position += len(view)

    def zero(self, handle: int, position: int, size: int) -> None:
        self._enter("zero")
        file = self._handles[handle]
        self._reserve(file, position + size)
        file.write(position, memoryview(bytes(size)))

    reserve = zero

    def fdatasync(self, handle: int) -> None:
        file = self._handles[handle]
        try:
            self._enter("fdatasync")
        except OSError:
            file.dirty.clear()  # as Linux does: after a failed fsync the pages are clean and may be lost
            raise
        if file.lost:
            file.lost = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        file.sync()

    def sync_all(self, path: str, handles: Sequence[int] = ()) -> bool:
        try:
            self._enter("sync_all")
        except PowerLoss:
            raise
        except OSError:
            for file in self._names.values():
                if file is not None and file.dirty:
                    file.dirty.clear()
                    file.lost = True
            return False
        for file in self._names.values():
            if file is not None:
                file.sync()
        self._durable_names = self._names.copy()
        return True

    def unwritten_bytes(self) -> int:
        return self.unwritten

    def truncate(self, handle: int, size: int) -> None:
        self._enter("truncate")
        file = self._handles[handle]
        if size < len(file.data):
            del file.data[size:]
        else:
            file.data.extend(bytes(size - len(file.data)))
        file.dirty = {sector for sector in file.dirty if sector * SECTOR_BYTES < size}

    def size(self, handle: int) -> int:
        return len(self._handles[handle].data)

    def fsync_dir(self, path: str) -> None:
        self._enter("fsync_dir")
        if not self.is_dir(path):
            raise NotOpened(errno.ENOENT, os.strerror(errno.ENOENT), path)
        for name in [name for name in self._durable_names.inside(path) if name not in self._names]:
            prefix = name + "/"
            for gone in [other for other in self._durable_names if other == name or other.startswith(prefix)]:
                del self._durable_names[gone]
        for name in self._names.inside(path):
            self._durable_names[name] = self._names[name]

    def rename(self, old: str, new: str) -> None:
        self._enter("rename")
        self._names[new] = self._file(old)
        del self._names[old]

    def unlink(self, path: str) -> None:
        self._enter("unlink")
        self._file(path)
        del self._names[path]

    def rmdir(self, path: str) -> None:
        self._enter("rmdir")
        if self.listdir(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        del self._names[path]

    def mkdir(self, path: str) -> bool:
        self._enter("mkdir")
        if path in self._names:
            return False
        self._parent(path)
        self._names[path] = None
        return True

    def listdir(self, path: str) -> list[str]:
        return sorted(os.path.basename(name) for name in self._names.inside(path.rstrip("/") or "/"))

    def is_dir(self, path: str) -> bool:
        return path in self._names and self._names[path] is None

    def read_file(self, path: str) -> bytes | None:
        self._enter("read_file")
        file = self._names.get(path)
        return None if file is None else bytes(file.data)

    def append_file(self, path: str, data: bytes) -> None:
        self._enter("append_file")
        if path not in self._names:
            self._parent(path)
            self._names[path] = _File()
        file = self._file(path)
        self._reserve(file, len(file.data) + len(data))
        file.write(len(file.data), memoryview(data))
        file.sync()
        self._durable_names[path] = file

    def free_bytes(self, path: str) -> tuple[int, int]:
        return max(self.capacity - self.used(), 0), self.capacity

    def entropy(self) -> int:
        return self._chance.getrandbits(32)

    def lock(self, path: str) -> int:
        if path in self._locked:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        if path not in self._names:
            self._parent(path)
            self._names[path] = _File()
            self._durable_names[path] = self._names[path]
        handle = self.open(path)
        self._locked[path] = handle
        return handle

    def holds(self, lock: int, path: str) -> bool:
        return self._handles.get(lock) is self._names.get(path)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _enter(self, operation: str) -> None:
        self.total_calls += 1
        if self.stop_at is not None and self.total_calls >= self.stop_at:
            raise PowerLoss(errno.EIO, "the power is gone")
        count = self.calls[operation] = self.calls.get(operation, 0) + 1
        for first, last, code in self._faults.get(operation, ()):
            if first <= count < last:
                raise OSError(code, os.strerror(code))

    def _reserve(self, file: _File, size: int) -> None:
        grow = size - len(file.data)
        if grow > 0 and self.capacity < BOUNDLESS and self.used() + grow > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _file(self, path: str) -> _File:
        file = self._names.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def _parent(self, path: str) -> None:
        parent = os.path.dirname(path)
        if parent not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), parent)

    @staticmethod
    def _has_parents(path: str, names: dict[str, _File | None]) -> bool:
        while path != "/":
            path = os.path.dirname(path)
            if path not in names:
                return False
        return True


class PowerLoss(OSError):
    """The simulated machine lost power at this call: everything after it fails too, until `crash`."""
