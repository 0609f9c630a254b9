"""Keeps the durable marks of all partitions in one small file, of which there are two, written in turn.

Layout in docs/LOG_FORMAT.md section 5. A mark is only ever taken after the sync it speaks of.

    0        8     12      16           24      32
    | magic  | crc | count | generation | flags | entries of 32 bytes ...
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from quintet import kernel
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.log.embedded.files.place_rows import PARTITION_BITS, PARTITION_MAX, PlaceRows
from quintet.log.embedded.recovery.directories import Mark

NAMES: Final = ("checkpoint.a", "checkpoint.b")
CLEAN: Final = 1
_MAGIC: Final = b"QNTCKP1\0"
_HEADER: Final = struct.Struct("<8sIIQQ")
_ENTRY: Final = struct.Struct("<IIQQQ")
_PLACE: Final = struct.Struct("<II")  # the beginning of an entry
_U32: Final = struct.Struct("<I")
ENTRY_BYTES: Final = _ENTRY.size
assert _HEADER.size == 32
assert ENTRY_BYTES == 32


class Marks(Mapping[tuple[int, int], Mark]):
    """Marks by (topic_id, partition), kept as the entries that they are in the file: there may be 100,000."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries = PlaceRows(ENTRY_BYTES)

    def __getitem__(self, place: tuple[int, int]) -> Mark:
        entry = self.entries[place[0] << PARTITION_BITS | place[1]]
        return Mark(*_ENTRY.unpack(entry)[2:])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for number in self.entries:
            yield number >> PARTITION_BITS, number & PARTITION_MAX

    def __len__(self) -> int:
        return len(self.entries)

    def set(self, topic_id: int, partition: int, mark: Mark) -> None:
        self.entries[topic_id << PARTITION_BITS | partition] = pack_entry(topic_id, partition, mark)

    def forget(self, topic_id: int, partition: int) -> None:
        self.entries.pop(topic_id << PARTITION_BITS | partition, None)


class Checkpoint(msgspec.Struct):
    """`rejected` names files that did not check out."""

    generation: int = 0
    clean: bool = False
    marks: Marks = msgspec.field(default_factory=Marks)
    rejected: list[str] = msgspec.field(default_factory=list)
    name: str = NAMES[1]  # where it was read from; the next one goes to the other


def pack(generation: int, clean: bool, entries: bytes) -> bytes:
    data = bytearray(_HEADER.pack(_MAGIC, 0, len(entries) // ENTRY_BYTES, generation, CLEAN if clean else 0) + entries)
    _U32.pack_into(data, 8, kernel.crc32c(memoryview(data)[12:]))
    return bytes(data)


def pack_entry(topic_id: int, partition: int, mark: Mark) -> bytes:
    return _ENTRY.pack(topic_id, partition, mark.segment, mark.position, mark.next_offset)


def _head(data: bytes) -> tuple[int, bool] | None:
    """(generation, clean), or None if it does not check out."""
    if len(data) < _HEADER.size:
        return None
    magic, crc, count, generation, flags = _HEADER.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEADER.size + count * ENTRY_BYTES:
        return None
    if crc != kernel.crc32c(memoryview(data)[12:]):
        return None
    return generation, bool(flags & CLEAN)


def load(disk: Disk, directory: str) -> Checkpoint:
    """The newer of the two good ones; an empty one if there is none."""
    best, entries = Checkpoint(), b""
    rejected: list[str] = []
    for name in NAMES:
        data = disk.read_file(f"{directory}/{name}")
        if data is None:
            continue
        head = _head(data)
        if head is None:
            rejected.append(name)
        elif head[0] > best.generation:
            best, entries = Checkpoint(*head, name=name), data
    rows = best.marks.entries
    for at in range(_HEADER.size, len(entries), ENTRY_BYTES):
        topic_id, partition = _PLACE.unpack_from(entries, at)
        rows[topic_id << PARTITION_BITS | partition] = entries[at : at + ENTRY_BYTES]
    best.rejected = rejected
    return best


def store(disk: Disk, directory: str, name: str, data: bytes) -> None:
    replace_file(disk, directory, name, data)
