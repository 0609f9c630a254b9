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
    for name in ("journal.a", "journal.b", "journal.unsynced.a", "journal.unsynced.b"):
        path = directory / name
        if path.exists():
            _read(directory, path.read_bytes(), found, synced="unsynced" not in name)
    return found


def packed(path: Path) -> bytes:
    """What is in the room that a segment with this path has in a pack (section 12)."""
    topic, partition = int(path.parts[-3]), path.parts[-2]
    pack = path.parents[3] / "packs" / f"{topic // 256:08d}.{partition}"
    at = topic % 256 * 2048
    return pack.read_bytes()[at : at + 2048] if pack.exists() else b""


def given_up(room: bytes) -> bool:
    return room[:4] == b"QNTG"


def segments(partition: Path, found: Patches) -> list[Path]:
    """The segments of a partition's directory, with what is in a pack, or will be."""
    paths = {*partition.glob("*.seg"), *(path for path in found if path.parent == partition)}
    room = packed(partition / "0")
    if any(room) and not given_up(room):
        paths.add(partition / f"{int.from_bytes(room[32:40], 'little'):020d}.seg")
    return sorted(paths)


def partitions(directory: Path, found: Patches) -> list[Path]:
    """The directories of all partitions, also of those that have none because they are in packs."""
    there = {path for path in (directory / "topics").glob("[0-9]*/[0-9]*") if path.name.isdecimal()}
    there |= {path.parent for path in found}
    for pack in (directory / "packs").glob("*.*"):
        data, number, partition = pack.read_bytes(), *pack.name.split(".")
        for place in range(256):
            room = data[place * 2048 : (place + 1) * 2048]
            if any(room) and not given_up(room):
                there.add(directory / "topics" / f"{int(number) * 256 + place:08d}" / partition)
    return sorted(there, key=lambda path: (path.parent.name, int(path.name)))


def patched(path: Path, found: Patches) -> bytes:
    """A segment as the next start will leave it."""
    data = bytearray(path.read_bytes() if path.exists() else packed(path))
    for position, patch in found.get(path, []):
        data.extend(bytes(max(position + len(patch) - len(data), 0)))
        data[position : position + len(patch)] = patch
    return bytes(data)


def _read(directory: Path, data: bytes, found: Patches, synced: bool) -> None:
    """Of a file that is not synced the first record that does not check out is the end."""
    if len(data) < 512 or data[:8] != b"QNTJRF1\0":
        return
    crc, version, seed, _, generation = struct.unpack_from("<IIIIQ", data, 8)
    if version != 1 or google_crc32c.extend(0, data[12:512]) != crc:
        return
    number, following = -1, 512
    for at in range(512, len(data) - _RECORD.size, 512):
        if not synced and at > following:
            return
        magic, crc, count, life, length, this = _RECORD.unpack_from(data, at)
        table = at + _RECORD.size
        end = table + count * _ENTRY.size
        if magic != b"QNTJRN1\0" or life != generation or this <= number or end > len(data):
            continue
        if google_crc32c.extend(seed, data[at + 12 : end]) != crc:
            continue
        number, following = this, at + -(-length // 512) * 512
        for topic, partition, base, segment_seed, length, position in _ENTRY.iter_unpack(data[table:end]):
            path = directory / "topics" / f"{topic:08d}" / str(partition) / f"{base:020d}.seg"
            batches = data[end : end + length]
            end += length
            room = path.read_bytes() if path.exists() else packed(path)
            begins = position == 0 and (not any(room[:512]) or path in found) and not path.exists()
            if begins or room[16:20] == struct.pack("<I", segment_seed) or path in found:
                head = 512 if position == 0 else 0
                found.setdefault(path, []).append((position, batches[:head] + _sound(batches[head:], segment_seed)))


def _sound(batches: bytes, seed: int) -> bytes:
    """As many whole batches as it begins with."""
    at = 0
    while at + 64 <= len(batches):
        crc, length = struct.unpack_from("<II", batches, at + 4)
        if length < 64 or google_crc32c.extend(seed, batches[at + 8 : at + length]) != crc:
            break
        at += length
    return batches[:at]
