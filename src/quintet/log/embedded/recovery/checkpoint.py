"""Keeps the durable marks of all partitions in one small file, of which there are two, written in turn.

Layout in docs/LOG_FORMAT.md section 5. A mark is only ever taken after the sync it speaks of.

    0        8     12      16           24      32
    | magic  | crc | count | generation | flags | entries of 32 bytes ...
"""

import struct
from dataclasses import dataclass, field
from typing import Final

from quintet import kernel
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.log.embedded.recovery.directories import Mark

NAMES: Final = ("checkpoint.a", "checkpoint.b")
CLEAN: Final = 1
_MAGIC: Final = b"QNTCKP1\0"
_HEADER: Final = struct.Struct("<8sIIQQ")
_ENTRY: Final = struct.Struct("<IIQQQ")
_U32: Final = struct.Struct("<I")
assert _HEADER.size == 32
assert _ENTRY.size == 32


@dataclass(slots=True)
class Checkpoint:
    """Marks by (topic_id, partition). `rejected` names files that did not check out."""

    generation: int = 0
    clean: bool = False
    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)
    name: str = NAMES[1]  # where it was read from; the next one goes to the other


def pack(generation: int, clean: bool, entries: bytes) -> bytes:
    data = bytearray(_HEADER.pack(_MAGIC, 0, len(entries) // _ENTRY.size, generation, CLEAN if clean else 0) + entries)
    _U32.pack_into(data, 8, kernel.crc32c(memoryview(data)[12:]))
    return bytes(data)


def pack_entry(topic_id: int, partition: int, mark: Mark) -> bytes:
    return _ENTRY.pack(topic_id, partition, mark.segment, mark.position, mark.next_offset)


def parse(data: bytes) -> Checkpoint | None:
    if len(data) < _HEADER.size:
        return None
    magic, crc, count, generation, flags = _HEADER.unpack_from(data)
    if magic != _MAGIC or len(data) != _HEADER.size + count * _ENTRY.size:
        return None
    if crc != kernel.crc32c(memoryview(data)[12:]):
        return None
    marks = {
        (topic_id, partition): Mark(segment, position, next_offset)
        for topic_id, partition, segment, position, next_offset in _ENTRY.iter_unpack(data[_HEADER.size :])
    }
    return Checkpoint(generation, bool(flags & CLEAN), marks)


def load(disk: Disk, directory: str) -> Checkpoint:
    """The newer of the two good ones; an empty one if there is none."""
    best = Checkpoint()
    rejected: list[str] = []
    for name in NAMES:
        data = disk.read_file(f"{directory}/{name}")
        if data is None:
            continue
        found = parse(data)
        if found is None:
            rejected.append(name)
        elif found.generation > best.generation:
            best = found
            best.name = name
    best.rejected = rejected
    return best


def store(disk: Disk, directory: str, name: str, data: bytes) -> None:
    replace_file(disk, directory, name, data)
