"""Keeps staged batches that are not yet published: each stage in a file of its own, outside of all topics.

A stage is written by one thread, start to end, and sealed by `finish`: synced, then renamed. What is not sealed when the
process ends was never promised, and is removed at the next start. What a stage is for, and when it is published or thrown
away, is decided in broker/atomic/stages.py; this module only keeps the files.

    DIR/stages/ID.part     being written
    DIR/stages/ID.stage    sealed

    0        8     12        16     20      24        32      40      42       44      48
    | magic  | crc | version | seed | 0     | created | epoch | owner | writer | 0     | owner, writer ... 496 | log ... 512
    512      entries, one behind the other, to the end of the file

    entry  0       4     8        12         16          20     24  32
           | magic | crc | length | topic_id | partition | rows | 0 | the batch, sealed with the file's seed

A checksum covers everything behind it in the header, and in the head of an entry; a batch has its own. `log` is the identity of
the log that the stage was handed to: the topic numbers in a stage mean nothing in another one. Version 1 had no log.
"""

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from quintet import kernel
from quintet.log.base import StagePart
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.partitions.shared import Shared
from quintet.model.errors import BadName, CorruptData, StorageError, StorageFull

HEADER_BYTES: Final = 512
ENTRY_BYTES: Final = 32
VERSION: Final = 2
LOG_AT: Final = 496  # of the header: the identity of the log, 16 bytes
_MAGIC: Final = b"QNTSTG1\0"
_HEADER: Final = struct.Struct("<8sIIII qq HHI")
_ENTRY_MAGIC: Final = b"QSE1"
_ENTRY: Final = struct.Struct("<4sIIIIIQ")
_U32: Final = struct.Struct("<I")
OPEN: Final = ".part"
SEALED: Final = ".stage"
assert _HEADER.size == 48
assert _ENTRY.size == ENTRY_BYTES

Loaded = Callable[[bytes | BaseException], None]


class FileStage:
    """One stage. See log.base.Stage for what each method promises."""

    __slots__ = (
        "_disk", "_folder", "_handle", "_low", "_position", "_seed", "bytes", "created", "epoch", "id", "log", "owner", "parts",
        "rows", "writer",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        folder: str,
        id: str,
        owner: str,
        writer: str,
        epoch: int,
        created: int,
        low: Callable[[], Exception | None],
        log: str,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._low = low
        self._handle = -1
        self._seed = disk.entropy() or 1
        self._position = HEADER_BYTES
        self.id = id
        self.log = log
        self.owner = owner
        self.writer = writer
        self.epoch = epoch
        self.created = created
        self.rows = self.bytes = 0
        self.parts: list[StagePart] = []

    def append(self, topic_id: int, partition: int, batch: bytearray, rows: int) -> None:
        low = self._low()
        if low is not None:
            raise StorageFull(str(low), hint=getattr(low, "hint", ""))
        kernel.seal(batch, 0, 0, self._seed)
        head = bytearray(_ENTRY.pack(_ENTRY_MAGIC, 0, len(batch), topic_id, partition, rows, 0))
        _U32.pack_into(head, 4, kernel.crc32c(memoryview(head)[8:], self._seed))
        try:
            self._open()
            self._disk.pwritev(self._handle, [head, batch], self._position)
        except OSError as error:
            raise _refused(self.id, error) from error
        self.parts.append(StagePart(topic_id, partition, self._position + ENTRY_BYTES, len(batch), rows))
        self._position += ENTRY_BYTES + len(batch)
        self.rows += rows
        self.bytes += len(batch)

    def finish(self) -> None:
        path = f"{self._folder}/{self.id}"
        try:
            self._open()
            self._disk.fdatasync(self._handle)
            self._disk.rename(path + OPEN, path + SEALED)
            self._disk.fsync_dir(self._folder)
        except OSError as error:
            raise _refused(self.id, error) from error
        finally:
            self._close()

    def discard(self) -> None:
        with suppress(OSError):
            self._close()
        for name in (self.id + OPEN, self.id + SEALED):
            with suppress(OSError):  # not there; or it is removed by whoever is told that the stage is given up
                self._disk.unlink(f"{self._folder}/{name}")

    def _open(self) -> None:
        if self._handle >= 0:
            return
        if self._disk.mkdir(self._folder):
            self._disk.fsync_dir(self._folder.rpartition("/")[0])
        self._handle = self._disk.open(f"{self._folder}/{self.id}{OPEN}", create=True, write=True)
        self._disk.pwritev(self._handle, [self._header()], 0)

    def _close(self) -> None:
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1

    def _header(self) -> bytes:
        owner, writer = self.owner.encode(), self.writer.encode()
        fields = (0, VERSION, self._seed, 0, self.created, self.epoch, len(owner), len(writer), 0)
        data = bytearray(
            (_HEADER.pack(_MAGIC, *fields) + owner + writer).ljust(LOG_AT, b"\0") + bytes.fromhex(self.log)
        )
        assert len(data) == HEADER_BYTES
        _U32.pack_into(data, 8, kernel.crc32c(memoryview(data)[12:]))
        return bytes(data)

    # -- after a restart -------------------------------------------------------------------------------------------

    @classmethod
    def found(cls, disk: Disk, folder: str, id: str, low: Callable[[], Exception | None]) -> "FileStage":
        """A sealed stage as the last run left it. CorruptData if it does not add up."""
        handle = disk.open(f"{folder}/{id}{SEALED}")
        try:
            size = disk.size(handle)
            header = disk.pread(handle, HEADER_BYTES, 0)
            if len(header) < HEADER_BYTES or header[:8] != _MAGIC:
                raise CorruptData(f"stage {id}: bad header")
            _, crc, version, seed, _, created, epoch, owner, writer, _ = _HEADER.unpack_from(header)
            if crc != kernel.crc32c(memoryview(header)[12:]) or version > VERSION:
                raise CorruptData(f"stage {id}: bad header")
            names = header[48 : 48 + owner + writer]
            log = header[LOG_AT:].hex() if version > 1 else ""
            stage = cls(disk, folder, id, names[:owner].decode(), names[owner:].decode(), epoch, created, low, log)
            stage._seed = seed
            while stage._position < size:
                stage._take(disk.pread(handle, ENTRY_BYTES, stage._position), size)
            return stage
        finally:
            disk.close(handle)

    def _take(self, head: bytes, size: int) -> None:
        if len(head) < ENTRY_BYTES or head[:4] != _ENTRY_MAGIC:
            raise CorruptData(f"stage {self.id}: no entry at {self._position}")
        _, crc, length, topic_id, partition, rows, _ = _ENTRY.unpack(head)
        end = self._position + ENTRY_BYTES + length
        if crc != kernel.crc32c(memoryview(head)[8:], self._seed) or end > size:
            raise CorruptData(f"stage {self.id}: bad entry at {self._position}")
        self.parts.append(StagePart(topic_id, partition, self._position + ENTRY_BYTES, length, rows))
        self._position = end
        self.rows += rows
        self.bytes += length


class FileStages:
    """All stages of a data directory. See log.base.Stages."""

    stage_type: type[FileStage] = FileStage

    def __init__(self, shared: Shared, directory: str) -> None:
        self._shared = shared
        self._folder = f"{directory}/stages"
        self.log = ""  # the identity of the log, once it is recovered

    def open(self, id: str, owner: str, writer: str, epoch: int) -> FileStage:
        if _HEADER.size + len(owner.encode()) + len(writer.encode()) > LOG_AT:
            raise BadName("the names of the owner and the writer are too long for a stage", hint="use shorter ones")
        now = self._shared.scheduler.now()
        return self.stage_type(self._shared.disk, self._folder, id, owner, writer, epoch, now, self._low, self.log)

    def _low(self) -> Exception | None:
        return self._shared.low

    def load(self) -> list[FileStage]:
        disk, found = self._shared.disk, []
        for name in disk.listdir(self._folder):
            if name.endswith(SEALED):
                try:
                    stage = FileStage.found(disk, self._folder, name.removesuffix(SEALED), self._low)
                    if stage.log not in ("", self.log):
                        raise CorruptData(f"stage {stage.id}: it was handed to the log {stage.log}, this is {self.log}")
                    found.append(stage)
                except (CorruptData, OSError, UnicodeDecodeError) as error:
                    self._shared.report("stage_damaged", {"stage": name, "error": str(error), "kept": "the file"})
            elif name.endswith(OPEN):
                disk.unlink(f"{self._folder}/{name}")
        return found

    def read(self, id: str, position: int, length: int, done: Loaded) -> None:
        self._shared.scheduler.offload(partial(self._read, id, position, length), done)

    def _read(self, id: str, position: int, length: int) -> bytes:
        disk = self._shared.disk
        handle = disk.open(f"{self._folder}/{id}{SEALED}")
        try:
            data = disk.pread(handle, length, position)
            seed = _U32.unpack(disk.pread(handle, 4, 16))[0]
        finally:
            disk.close(handle)
        at = 0
        while at < len(data):  # the heads between the batches were looked at when it was sealed, or found
            size = kernel.check(data, at, seed)
            if size <= 0:
                raise CorruptData(f"stage {id}: the batch at {position + at} does not check out")
            at += size + ENTRY_BYTES
        if at != length + ENTRY_BYTES:
            raise CorruptData(f"stage {id}: cut short at {position + len(data)}")
        return data

    def remove(self, ids: list[str]) -> None:
        self._shared.scheduler.offload(partial(self._remove, ids), self._removed)

    def _remove(self, ids: list[str]) -> None:
        disk = self._shared.disk
        there = set(disk.listdir(self._folder))
        failed: OSError | None = None
        for name in (id + kind for id in ids for kind in (OPEN, SEALED)):
            if name in there:
                try:
                    disk.unlink(f"{self._folder}/{name}")
                except FileNotFoundError:
                    pass  # its writer was faster
                except OSError as error:
                    failed = error
        if failed is not None:
            raise failed

    def _removed(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._shared.report("stage_not_removed", {"error": str(result)})


def damages(disk: Disk, directory: str) -> Iterator[tuple[str, int, int, str]]:
    """(file, position, length, what) of all that does not check out in sealed stages. Read-only."""
    folder = f"{directory}/stages"
    for name in disk.listdir(folder):
        if not name.endswith(SEALED):
            continue
        path = f"{folder}/{name}"
        try:
            stage = FileStage.found(disk, folder, name.removesuffix(SEALED), lambda: None)
        except (CorruptData, OSError, UnicodeDecodeError) as error:
            yield path, 0, 0, str(error)
            continue
        handle = disk.open(path)
        try:
            for part in stage.parts:
                if kernel.check(disk.pread(handle, part.length, part.position), 0, stage._seed) != part.length:
                    yield path, part.position, part.length, "a staged batch does not check out"
        finally:
            disk.close(handle)


def _refused(id: str, error: OSError) -> StorageError:
    return StorageError(f"stage {id} could not be written: {error.strerror or error}", hint="see the broker's log")
