"""Writes a partition's files off the loop thread: writes, syncs, preallocates, rolls, repairs a file after a refusal.

It owns no state of the log: it is told what to write and where, and says how far it got. One writer job runs at a time
per partition; extending ahead is the only thing that may run beside it, and never below where the other writes. A
failed fsync is never tried again: after it the kernel calls lost pages clean.

What it writes it writes in steps: a generator that stops wherever a segment must be durable before it goes on. One partition's
steps are run with a sync at each stop; those of many go in step with each other, and share their syncs (together.py).
"""

import contextlib
import os
from collections.abc import Generator
from typing import Final

from quintet.log.embedded.files.disk import CURABLE, REMEDIES, DurableWrite, NotOpened, SyncFailed
from quintet.log.embedded.files.packs import FOLDER, PACKED_BYTES, PackDisk
from quintet.log.embedded.files.segment import (
    HEADER_BYTES,
    Header,
    Segment,
    build_index,
    pack_header,
    write_index,
)
from quintet.log.embedded.partitions.roles import Chunk, Outcome, Steps
from quintet.log.embedded.partitions.shared import Shared
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import PartitionFailed, StorageError, StorageFull

# Writes of this size and more are not zero-filled ahead: writing everything twice costs more than the metadata commit
# that a growing file needs.
ZERO_FILL_WRITE_BYTES_MAX: Final = 128 * limits.KIB
# Of zeros ahead before they are synced. 16 MiB at once made a sync of the writer wait for 10 ms, p99.9 (bench/README.md).
ZERO_PIECE_BYTES: Final = limits.MIB

# How much may wait to be written on the whole machine, for each file that is to be synced, if the whole disk is synced instead: a sync
# takes as long as to write this. Behind 2 GB of a neighbour it took 1 s (bench/README.md).
UNWRITTEN_FILE_BYTES_MAX: Final = 256 * limits.KIB


def chunk_bytes(allocated: int, written: int) -> int:
    """How far to prepare a segment ahead of a writer whose last write had so many bytes; with less than half of it left, more is prepared.
    An eighth of what is there, so that a start after a crash reads little more; for large writes, which only reserve it, as much as may be."""
    if written >= ZERO_FILL_WRITE_BYTES_MAX:
        return limits.PREALLOCATE_MAX_BYTES
    chunk = limits.PREALLOCATE_FIRST_BYTES
    while chunk * 16 <= allocated and chunk < limits.PREALLOCATE_MAX_BYTES:
        chunk *= 2
    return chunk


class Writer:
    """Bound to one partition's directory."""

    __slots__ = ("_directory", "_disk", "_directories", "_siblings")

    def __init__(self, shared: Shared, directory: str, siblings: int) -> None:
        """siblings: partitions of the topic, whose directories are made together."""
        self._disk: PackDisk = shared.disk
        self._directories = shared.directories
        self._directory = directory
        self._siblings = siblings

    def write(
        self, chunks: list[Chunk], last: Segment | None, header: Header | None, sync: bool, prealloc_limit: int
    ) -> Outcome:
        """Write chunks in order, each whole and (with sync) durable before the next one starts."""
        return self.run(self.steps(chunks, last, header, sync, prealloc_limit))

    def run(self, steps: Steps) -> Outcome:
        """Take the steps one after the other, with a sync wherever they want one."""
        try:
            segment = next(steps)
            while True:
                try:
                    self.sync_segment(segment)
                except (OSError, SyncFailed) as error:
                    segment = steps.throw(error)
                else:
                    segment = next(steps)
        except StopIteration as end:
            outcome: Outcome = end.value
            return outcome

    def steps(
        self, chunks: list[Chunk], last: Segment | None, header: Header | None, sync: bool, prealloc_limit: int
    ) -> Steps:
        """The steps of `write`."""
        before: Chunk | None = None  # written in this very job, not yet known to the loop
        known = last
        for number, chunk in enumerate(chunks):
            segment = chunk.segment
            try:
                if not segment.created:
                    assert header is not None
                    if last is not None and last is not segment:
                        yield from self._seal(last, before)
                    made = header._replace(seed=segment.seed, base=segment.base, chain=segment.chain)
                    if segment.packed:
                        chunk.header = pack_header(made)
                    else:
                        prepares = sync and bool(chunk.buffers)  # for nothing, nothing is prepared
                        yield from self._create(segment, made, prepares)
                last, before = segment, chunk
                if chunk.buffers:
                    self._write_chunk(chunk)
                if chunk.end > segment.allocated:
                    self._grow(segment, chunk, prealloc_limit)
                if sync:
                    yield segment
            except (OSError, SyncFailed) as error:
                return Outcome(number, self.recoil(chunk, error, made=segment is not known))
        return Outcome(len(chunks), None)

    def durable_write(self, chunk: Chunk, last: Segment | None) -> DurableWrite | None:
        """All that a chunk needs, if it lies within the prepared part of an open segment whose name is durable."""
        segment = chunk.segment
        if segment is not last or segment.handle < 0 or not segment.named or chunk.end > segment.allocated:
            return None
        if segment.packed:  # its handle is none of the system's
            return None
        return DurableWrite(self._disk, segment.handle, chunk.buffers, chunk.position, chunk.size, len(chunk.waiters))

    def put(self, chunk: Chunk, here: bool) -> StorageError | None:
        """Open the file of a chunk and write it without a sync if here: short enough for the loop thread."""
        segment = chunk.segment
        try:
            if segment.handle < 0:
                self._open(segment)
            if here:
                self._write_chunk(chunk)
        except OSError as error:
            return self.recoil(chunk, error)
        segment.allocated = max(segment.allocated, chunk.end)  # topics that promise no sync prepare nothing
        return None

    def _write_chunk(self, chunk: Chunk) -> None:
        """A chunk that begins a packed segment brings its header along."""
        segment = chunk.segment
        if segment.handle < 0:
            self._open(segment)
        if chunk.header:
            self._disk.pwritev(segment.handle, [chunk.header, *chunk.buffers], chunk.position - len(chunk.header))
        else:
            self._disk.pwritev(segment.handle, chunk.buffers, chunk.position)

    def _open(self, segment: Segment) -> None:
        if not segment.packed:
            segment.handle = self._disk.open(segment.path, write=True)
            return
        segment.handle = self._disk.begin(segment.path)
        if not segment.created:
            segment.created, segment.allocated = True, PACKED_BYTES

    @property
    def _root(self) -> str:
        return self._directory.rsplit("/", 3)[0]

    def _sync(self, handle: int) -> None:
        try:
            self._disk.fdatasync(handle)
        except OSError as error:
            raise SyncFailed(str(error)) from error

    def _sync_dir(self, path: str) -> None:
        try:
            self._disk.fsync_dir(path)
        except NotOpened:
            raise
        except OSError as error:
            raise SyncFailed(str(error)) from error

    def _grow(self, segment: Segment, chunk: Chunk, limit: int) -> None:
        """The writer came past the prepared part: prepare more in the same sync. No space for that is no failure."""
        end = segment.allocated = chunk.end
        small = chunk.size < ZERO_FILL_WRITE_BYTES_MAX
        target = min(end + chunk_bytes(end, chunk.size), limit)
        if target > end:
            try:
                (self._disk.zero if small else self._disk.reserve)(segment.handle, end, target - end)
                segment.allocated = target
            except OSError as error:
                if error.errno not in CURABLE:
                    raise
                self._disk.truncate(segment.handle, end)

    def _create(self, segment: Segment, header: Header, sync: bool) -> Generator[Segment, None, None]:
        """Make the file. Without sync nothing of it is durable before somebody syncs the segment."""
        disk, directories = self._disk, self._directories
        topic = os.path.dirname(self._directory)
        if directories.mkdir(topic):
            for number in range(self._siblings):
                directories.mkdir(f"{topic}/{number}")
        directories.mkdir(self._directory)
        segment.handle = disk.open(segment.path, create=True, write=True)
        directories.mark_unsynced(self._directory)
        disk.pwritev(segment.handle, [pack_header(header)], 0)
        if sync:
            disk.zero(segment.handle, HEADER_BYTES, limits.PREALLOCATE_FIRST_BYTES - HEADER_BYTES)
            segment.allocated = limits.PREALLOCATE_FIRST_BYTES
            yield segment
        segment.created = True

    def sync_segment(self, segment: Segment) -> None:
        """Make durable what was written to the segment, and its name. Raises OSError (NotOpened) and SyncFailed."""
        self._sync(segment.handle)
        if not segment.named:
            try:
                if segment.packed:
                    self._directories.sync_one(f"{self._root}/{FOLDER}")
                else:
                    self._directories.sync(self._directory)
            except NotOpened:
                raise
            except OSError as error:
                raise SyncFailed(str(error)) from error
            segment.named = True

    def sync_whole(self, files: list[Segment]) -> bool:
        """Make these files durable, and all that anybody else wrote to their disk, and all names. False: each must be synced by itself."""
        if self._disk.unwritten_bytes() > len(files) * UNWRITTEN_FILE_BYTES_MAX:
            return False
        return self._directories.sync_all(self._root, [segment.handle for segment in files])

    def _seal(self, segment: Segment, written: Chunk | None) -> Generator[Segment, None, None]:
        """Nothing more comes into this file: sync it, cut it to its end, write its index."""
        disk = self._disk
        end, next_offset = segment.end, segment.next_offset
        if segment.handle < 0:
            if segment.seed == 0:
                return
            self._open(segment)  # it may have been closed without a sync
        index = segment.index
        if written is not None and written.segment is segment:
            end = written.end
            next_offset = RecordBatch(written.buffers[-1]).next_offset
            if index is not None:
                index = index.copy()
                index.add_all(written.position, written.buffers)
        disk.truncate(segment.handle, end)
        segment.allocated = end
        yield segment
        if not segment.packed and (index is None or index.first > HEADER_BYTES):
            index = build_index(disk, segment.handle, segment, end)
        if index is not None:
            write_index(disk, segment, index, end, next_offset)
        disk.close(segment.handle)
        segment.handle = -1

    def give_up(self, chunk: Chunk, error: BaseException) -> Outcome:
        """A durable write of this chunk failed."""
        return Outcome(0, self.recoil(chunk, error))

    def recoil(self, chunk: Chunk, error: BaseException, made: bool = False) -> StorageError:
        """Put the file back to its last good end before anything else may be written, and say what this means. made: in this very job."""
        segment = chunk.segment
        if isinstance(error, OSError) and error.errno in CURABLE:
            try:
                self._undo(segment, chunk.position, made)
            except (OSError, SyncFailed) as second:
                error = second
            else:
                return StorageFull(
                    f"{error.strerror}: the append was refused and nothing of it was kept",
                    hint=REMEDIES[error.errno or 0] + ": the log takes appends again by itself within seconds",
                )
        return PartitionFailed(
            f"a write or sync failed ({error}): the partition is read-only",
            hint="check the disk, then restart the broker: it verifies the partition before it takes appends again",
        )

    @staticmethod
    def late_refused(segment: Segment, error: OSError) -> StorageError:
        """The file does not take what is durable in the journal: what this means."""
        what = f"{segment.path}: {error.strerror}: it does not take what the journal has of it"
        if error.errno in CURABLE:
            hint = REMEDIES[error.errno or 0] + ": the log takes appends again by itself within seconds"
            return StorageFull(what, hint=hint)
        return PartitionFailed(
            f"{what}: the partition is read-only",
            hint="check the disk, then restart the broker: it replays the journal before it takes appends again",
        )

    def _undo(self, segment: Segment, good_end: int, made: bool) -> None:
        """Back to the last good end. A segment that was made for this goes altogether: the partition does not know it, and
        left behind it would count as the last one after a restart. One that it knows stays, empty as it may be: it keeps the next offset."""
        disk = self._disk
        if segment.packed and good_end <= HEADER_BYTES:
            if segment.handle >= 0:
                disk.truncate(segment.handle, 0)
                self._sync(segment.handle)
                segment.handle, segment.created = -1, False
        elif segment.created and (good_end > HEADER_BYTES or not made):
            if segment.handle >= 0:
                disk.truncate(segment.handle, good_end)
                segment.allocated = PACKED_BYTES if segment.packed else good_end
                self._sync(segment.handle)
        elif segment.handle >= 0:
            disk.close(segment.handle)
            segment.handle = -1
            segment.created = False
            disk.unlink(segment.path)
            with contextlib.suppress(NotOpened):  # should its name come back after a power cut, it is made again
                self._sync_dir(self._directory)

    def extend(self, segment: Segment, target: int, large: bool) -> StorageError | None:
        """Prepare it up to target ahead of the writer: with zeros, or only reserved for large writes. No space is no failure yet: the writer
        will find out."""
        disk = self._disk
        handle = -1
        try:
            # Its own handle: the kernel reports a failed write-back once per handle, and the writer must hear of it too.
            handle = disk.open(segment.path, write=True)
            if large:
                disk.reserve(handle, segment.allocated, target - segment.allocated)
                self._sync(handle)
            else:
                self._zero(handle, segment.allocated, target)
        except OSError as error:
            if error.errno in CURABLE and (handle < 0 or self._cut(handle, segment.allocated)):
                return None
            return PartitionFailed(f"{segment.path}: extending failed ({error}): the partition is read-only")
        except SyncFailed as failure:
            return PartitionFailed(f"{segment.path}: a sync failed ({failure}): the partition is read-only")
        finally:
            if handle >= 0:
                disk.close(handle)
        segment.allocated = target
        return None

    def _zero(self, handle: int, position: int, target: int) -> None:
        """Write zeros, synced piece by piece: a sync of the writer meanwhile waits for all that is unsynced of the file."""
        while position < target:
            size = min(target - position, ZERO_PIECE_BYTES)
            self._disk.zero(handle, position, size)
            self._sync(handle)
            position += size

    def _cut(self, handle: int, size: int) -> bool:
        try:
            self._disk.truncate(handle, size)
        except OSError:
            return False
        return True

    def probe(self, segment: Segment | None) -> StorageError | None:
        """Is there space again? Really writes: free space by the numbers may be reserved for others."""
        disk = self._disk
        parent = os.path.dirname(os.path.dirname(self._directory))
        path = f"{segment.directory if segment is not None and not segment.packed else parent}/probe.tmp"
        try:
            if disk.read_file(path) is not None:
                disk.unlink(path)
            handle = disk.open(path, create=True, write=True)
            try:
                disk.zero(handle, 0, 2 * limits.PREALLOCATE_FIRST_BYTES)
            finally:
                disk.close(handle)
                disk.unlink(path)
        except OSError as error:
            return StorageFull(f"{path}: {error.strerror}", hint=REMEDIES.get(error.errno or 0, ""))
        return None

    def sync(self, segment: Segment) -> StorageError | None:
        try:
            self.sync_segment(segment)
        except (NotOpened, SyncFailed) as error:
            return self.sync_failed(segment, error)
        return None

    @staticmethod
    def sync_failed(segment: Segment, error: Exception) -> StorageError:
        """What a sync that nobody waited for means."""
        return PartitionFailed(f"{segment.path}: a sync failed ({error}): the partition is read-only")

    @staticmethod
    def is_finished(segment: Segment, dirty: bool) -> bool:
        """Is there nothing to be done at a clean stop?"""
        return not dirty and (segment.packed or (segment.handle < 0 and segment.allocated == segment.end))

    def finish(self, segment: Segment | None, healthy: bool, dirty: bool) -> StorageError | None:
        """Clean stop: everything durable, no preallocated tail left, file closed."""
        if segment is None or self.is_finished(segment, dirty):
            return None
        try:
            if healthy and segment.created:
                if segment.handle < 0:
                    self._open(segment)
                self._disk.truncate(segment.handle, segment.end)
                segment.allocated = segment.end
                self.sync_segment(segment)
        except (OSError, SyncFailed) as error:
            return PartitionFailed(f"{segment.path}: the last sync failed ({error})")
        finally:
            if segment.handle >= 0:
                self._disk.close(segment.handle)
                segment.handle = -1
        return None
