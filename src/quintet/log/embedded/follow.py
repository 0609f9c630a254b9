"""Follows the segment files of one partition beside the broker that writes them, batch by batch. Read-only.

`more` gives what has come since the last call. Only whole, sound batches are given, so the one that is being written comes
with the next call. What is damaged is passed over as soon as there is something sound behind it; what retention took before
it was read is missed. A batch may be here before it is synced: a caller that must know asks the broker.
"""

from collections.abc import Iterator
from typing import Final

from quintet import kernel
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.files.packs import with_packs
from quintet.log.embedded.files.segment import HEADER_BYTES, Entry, parse_header, segment_name
from quintet.log.embedded.recovery.directories import segment_bases
from quintet.model import limits
from quintet.model.batch import RecordBatch

CUT_SHORT: Final = -1  # see REASONS in segment.py
READ_BYTES: Final = limits.MIB


class Follower:
    """How far one partition was read: the segment, the place in it, and the offset behind what was given. No file stays open
    while what was read is given on: whoever merges thousands of partitions has one open at a time."""

    __slots__ = ("_base", "_disk", "_next", "_position", "_read_bytes", "_seed", "directory")

    def __init__(self, disk: Disk, directory: str, read_bytes: int = READ_BYTES) -> None:
        self.directory = directory
        self._disk = with_packs(disk)
        self._read_bytes = read_bytes  # at a time; one batch that is longer is read whole
        self._base = -1  # of the segment; -1: none yet
        self._seed = 0
        self._position = HEADER_BYTES
        self._next = 0

    def more(self) -> Iterator[RecordBatch]:
        """What is there now and was not given yet."""
        for base in segment_bases(self._disk, self.directory):
            if base < self._base:
                continue
            while found := self._step(base):
                yield from found

    def _step(self, base: int) -> list[RecordBatch]:
        """The next batches of a segment; none at its end, or at the end of what is written."""
        try:
            handle = self._disk.open(f"{self.directory}/{segment_name(base)}")
        except FileNotFoundError:  # retention or compaction took it just now
            return []
        try:
            if base != self._base and not self._enter(handle, base):
                return []
            return self._read(handle)
        finally:
            self._disk.close(handle)

    def _enter(self, handle: int, base: int) -> bool:
        try:
            header = parse_header(self._disk.pread(handle, HEADER_BYTES, 0))
        except ValueError:  # of a later version of the format
            return False
        if header is None:  # it is being made, or damaged
            return False
        self._base, self._seed, self._position = base, header.seed, HEADER_BYTES
        return True

    def _read(self, handle: int) -> list[RecordBatch]:
        size = self._read_bytes
        while True:
            data = self._disk.pread(handle, size, self._position)
            entries, taken, reason = kernel.walk(data, 0, len(data), self._seed, True)
            if entries:
                self._position += taken
                found = self._fresh(data, entries)
                if found:
                    return found
                size = self._read_bytes
                continue
            if reason == 0:  # the end of what is written
                return []
            sound = kernel.find(data, 8, len(data), self._seed) if reason != CUT_SHORT else -1
            if sound >= 0:
                self._position += sound
            elif len(data) == size < limits.BATCH_BYTES_MAX:
                size = min(4 * size, limits.BATCH_BYTES_MAX)
            else:  # it is being written, or nothing sound is behind it
                return []

    def _fresh(self, data: bytes, entries: list[Entry]) -> list[RecordBatch]:
        """Those that were not given yet: after compaction files can overlap."""
        found = []
        for at, length, base, span, _ in entries:
            if base >= self._next:
                self._next = base + span
                found.append(RecordBatch(memoryview(data)[at : at + length]))
        return found
