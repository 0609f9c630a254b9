"""Reads which versions of the formats a data directory holds. Read-only; a running broker is not disturbed."""

import struct
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from quintet.log.embedded import stages
from quintet.log.embedded.engine import FORMAT_PREFIX
from quintet.log.embedded.engine import FORMAT_VERSION as DATA_VERSION
from quintet.log.embedded.files import segment
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.recovery import checkpoint, journal
from quintet.log.embedded.recovery.directories import partitions, segment_bases

SEGMENTS_READ_MAX: Final = 100_000  # headers; of larger folders the first segments of each partition count
_VERSION: Final = struct.Struct("<8sII")  # magic, checksum, version: the same in segments, stages and journals

READS: Final = {
    "data folder": DATA_VERSION,
    "segment": segment.FORMAT_VERSION,
    "stage": stages.VERSION,
    "journal": journal.VERSION,
}


@dataclass(slots=True)
class Versions:
    """Files by kind and version, and how the last broker left the folder. data: 0 if there is no folder yet."""

    data: int = 0
    files: dict[str, Counter[int]] = field(default_factory=dict)
    clean: bool = False
    topics: int = 0

    @property
    def newer(self) -> list[str]:
        """What this version does not read."""
        found = [f"data folder {self.data}"] if self.data > DATA_VERSION else []
        for kind, counts in self.files.items():
            found += [
                f"{count} files of {kind} {version}"
                for version, count in sorted(counts.items())
                if version > READS[kind]
            ]
        return found


def read(disk: Disk, directory: str) -> Versions:
    """ValueError if the file `format` is not what it should be."""
    found = Versions()
    data = disk.read_file(f"{directory}/format")
    if data is None:
        return found
    number = data.decode(errors="replace").strip().removeprefix(FORMAT_PREFIX)
    if not number.isdecimal():
        raise ValueError(f"{directory}/format does not name a Quintet data format")
    found.data, found.clean = int(number), checkpoint.load(disk, directory).clean
    there = partitions(disk, directory)
    found.topics = len({topic for topic, _, _ in there})
    paths = [
        ("segment", f"{path}/{segment.segment_name(base)}")
        for _, _, path in there
        for base in segment_bases(disk, path)
    ]
    paths = paths[:SEGMENTS_READ_MAX]
    paths += [
        ("stage", f"{directory}/stages/{name}")
        for name in disk.listdir(f"{directory}/stages")
        if name.endswith(".stage")
    ]
    paths += [("journal", f"{directory}/{name}") for name in journal.NAMES]
    for kind, path in paths:
        version = _version(disk, path)
        if version is not None:
            found.files.setdefault(kind, Counter())[version] += 1
    return found


def _version(disk: Disk, path: str) -> int | None:
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        head = disk.pread(handle, _VERSION.size, 0)
    finally:
        disk.close(handle)
    return int(_VERSION.unpack(head)[2]) if len(head) == _VERSION.size and any(head) else None
