"""An independent reader of the journal, written from docs/LOG_FORMAT.md section 7 alone: what the next start will put back.

For readers that judge a directory before the broker recovers it. Imports nothing of the broker.
"""

import struct
from pathlib import Path

import google_crc32c

Patches = dict[Path, list[tuple[int, bytes]]]

_RECORD = struct.Struct("<8sIIQQQ")
_ENTRY = struct.Struct("<IIQIIQ")


def patches(directory: Path) -> Patches:
    """Bytes that belong into segment files, with their positions."""
    found: Patches = {}
    for name in ("journal.a", "journal.b"):
        path = directory / name
        if path.exists():
            _read(directory, path.read_bytes(), found)
    return found


def patched(path: Path, found: Patches) -> bytes:
    """A segment file as the next start will leave it."""
    data = bytearray(path.read_bytes())
    for position, patch in found.get(path, []):
        data.extend(bytes(max(position + len(patch) - len(data), 0)))
        data[position : position + len(patch)] = patch
    return bytes(data)


def _read(directory: Path, data: bytes, found: Patches) -> None:
    if len(data) < 512 or data[:8] != b"QNTJRF1\0":
        return
    crc, version, seed, _, generation = struct.unpack_from("<IIIIQ", data, 8)
    if version != 1 or google_crc32c.extend(0, data[12:512]) != crc:
        return
    number = -1
    for at in range(512, len(data) - _RECORD.size, 512):
        magic, crc, count, life, _, this = _RECORD.unpack_from(data, at)
        table = at + _RECORD.size
        end = table + count * _ENTRY.size
        if magic != b"QNTJRN1\0" or life != generation or this <= number or end > len(data):
            continue
        if google_crc32c.extend(seed, data[at + 12 : end]) != crc:
            continue
        number = this
        for topic, partition, base, segment_seed, length, position in _ENTRY.iter_unpack(data[table:end]):
            path = directory / "topics" / f"{topic:08d}" / str(partition) / f"{base:020d}.seg"
            batches = data[end : end + length]
            end += length
            if path.exists() and struct.unpack("<I", path.read_bytes()[16:20])[0] == segment_seed:
                found.setdefault(path, []).append((position, _sound(batches, segment_seed)))


def _sound(batches: bytes, seed: int) -> bytes:
    """As many whole batches as it begins with."""
    at = 0
    while at + 64 <= len(batches):
        crc, length = struct.unpack_from("<II", batches, at + 4)
        if length < 64 or google_crc32c.extend(seed, batches[at + 8 : at + length]) != crc:
            break
        at += length
    return batches[:at]
