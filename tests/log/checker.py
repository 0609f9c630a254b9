"""An independent reader of a Quintet data directory, for crash campaigns: written from docs/LOG_FORMAT.md alone.

It shares no code with the broker (no import of quintet), so a mistake there cannot hide a mistake here. `records`
yields every sound record; what does not check out is skipped, and named through `problems` if a list is given.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from tests.log.journal_reader import partitions, patched, patches, segments

Record = tuple[int, int, int, bytes | None, bytes | None]  # topic_id, partition, offset, key, value

_TABLE = []
for _byte in range(256):
    _value = _byte
    for _ in range(8):
        _value = (_value >> 1) ^ (0x82F63B78 if _value & 1 else 0)
    _TABLE.append(_value)

try:
    import google_crc32c

    def crc32c(data: bytes, value: int = 0) -> int:
        return int(google_crc32c.extend(value, data))

except ImportError:

    def crc32c(data: bytes, value: int = 0) -> int:
        value ^= 0xFFFFFFFF
        for byte in data:
            value = (value >> 8) ^ _TABLE[(value ^ byte) & 0xFF]
        return value ^ 0xFFFFFFFF


def pad(size: int) -> int:
    return -(-size // 8) * 8


def header_seed(data: bytes) -> int | None:
    """The seed in a segment's header, or None if the header does not check out."""
    if len(data) < 512 or data[:8] != b"QNTSEG1\0":
        return None
    crc, version, seed = struct.unpack_from("<III", data, 8)
    return seed if crc == crc32c(data[12:512]) and version in (1, 2) and seed else None


def batch_length(data: bytes, at: int, seed: int) -> int:
    """Length of the sound batch at `at`, or 0."""
    if data[at : at + 4] != b"QRB1" or at + 64 > len(data):
        return 0
    crc, length = struct.unpack_from("<II", data, at + 4)
    if length < 64 or length % 8 or at + length > len(data):
        return 0
    return length if crc32c(data[at + 8 : at + length], seed) == crc else 0


def var(data: bytes, at: int, count: int, bitmap: bytes | None) -> tuple[list[bytes | None], int]:
    """The entries of a var of `count` at `at`, and where it ends."""
    offsets = struct.unpack_from(f"<{count + 1}i", data, at)
    start = at + pad(4 * (count + 1))
    found: list[bytes | None] = []
    for number in range(count):
        present = bitmap is None or bitmap[number >> 3] >> (number & 7) & 1
        found.append(data[start + offsets[number] : start + offsets[number + 1]] if present else None)
    return found, start + pad(offsets[count])


def batch_records(batch: bytes) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of every record of a sound batch."""
    (columns,) = struct.unpack_from("<H", batch, 14)
    (base,) = struct.unpack_from("<Q", batch, 16)
    (count,) = struct.unpack_from("<I", batch, 24)
    (origins,) = struct.unpack_from("<H", batch, 62)
    _, at = var(batch, 64, origins, None)
    if origins > 1:
        at += pad(count)
    bitmap = None
    if columns & 1:
        bitmap = batch[at : at + (count + 7) // 8]
        at += pad((count + 7) // 8)
    values, at = var(batch, at, count, bitmap)
    keys: list[bytes | None] = [None] * count
    if columns & 2:
        bitmap = None
        if columns & 4:
            bitmap = batch[at : at + (count + 7) // 8]
            at += pad((count + 7) // 8)
        keys, at = var(batch, at, count, bitmap)
    deltas: tuple[int, ...] = tuple(range(count))
    if columns & 64:  # the offset column is the last one but the link
        (length,) = struct.unpack_from("<I", batch, 8)
        link = 32 if columns & 128 else 0
        deltas = struct.unpack_from(f"<{count}I", batch, length - link - pad(4 * count))
    for delta, key, value in zip(deltas, keys, values, strict=True):
        yield base + delta, key, value


def segment_records(
    data: bytes, base: int, name: str = "", problems: list[str] | None = None
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Records of one segment file, in order, offsets never falling; a bad range is stepped over in 8-byte steps."""
    seed = header_seed(data)
    if seed is None:
        if problems is not None:
            problems.append(f"{name}: bad segment header")
        return
    at, expected, sound = 512, base, True
    while at + 64 <= len(data):
        length = batch_length(data, at, seed)
        start = struct.unpack_from("<Q", data, at + 16)[0] if length else 0
        if length == 0 or start < expected:
            if not any(data[at:]):
                return
            if sound and problems is not None:
                problems.append(f"{name}: no sound batch at {at}")
            sound = False
            at += 8
            continue
        sound = True
        yield from batch_records(data[at : at + length])
        expected = start + struct.unpack_from("<I", data, at + 28)[0]
        at += length


def records(directory: Path, problems: list[str] | None = None) -> Iterator[Record]:
    """Every sound record of a data directory, partition by partition, in offset order, as the next start leaves it."""
    journal = patches(directory)
    for partition in partitions(directory, journal):
        reached = -1
        for path in segments(partition, journal):
            for offset, key, value in segment_records(patched(path, journal), int(path.stem), str(path), problems):
                if offset > reached:  # a crash within compaction can leave a file whose content the one before has
                    reached = offset
                    yield int(partition.parent.name), int(partition.name), offset, key, value
