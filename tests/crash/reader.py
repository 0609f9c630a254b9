"""A second reader of the data directory, written from docs/LOG_FORMAT.md alone, that the crash campaigns judge by.

It imports nothing of the broker: a mistake in the broker's reader cannot hide here. It repairs nothing and writes
nothing; it says what is readable, and what is wrong in a way that recovery must never leave behind.
"""

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import google_crc32c
from blake3 import blake3

from tests.log.journal_reader import Patches, partitions, patched, patches, segments

SEGMENT_HEAD = struct.Struct("<8sIIIIIIQq")
BATCH_HEAD = struct.Struct("<4sIIHHQIIqqQIHH")
SEGMENT_HEAD_BYTES = 512
BATCH_BYTES_MAX = 64 * 1024 * 1024
VALUE_NULLS = 1
SPARSE = 64
CHAIN = 128
FIRST_USER_TOPIC = 16
assert SEGMENT_HEAD.size == 48
assert BATCH_HEAD.size == 64


@dataclass
class Found:
    """One partition as it lies on disk: values by offset, and findings. `torn` is a tail that recovery may cut."""

    topic: str
    values: dict[int, bytes] = field(default_factory=dict)
    next_offset: int = 0
    segments: int = 0
    wrong: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    link: bytes = b""  # of the last batch, once the partition is chained; no key is known here


def read(directory: Path) -> dict[str, Found]:
    """Every topic of a user (partition 0), by name. Internal tables are read too, for their checksums."""
    found: dict[str, Found] = {}
    journal = patches(directory)
    for place in partitions(directory, journal):
        folder = place.parent
        if place.name != "0":
            continue
        partition = _read_partition(place, journal, dense=int(folder.name) >= FIRST_USER_TOPIC)
        if partition is not None:
            name = partition.topic if int(folder.name) >= FIRST_USER_TOPIC else f"internal {folder.name}"
            if name in found:
                partition.wrong.append(f"two topics are called {name}")
            found[name] = partition
    return found


def _read_partition(folder: Path, journal: Patches, dense: bool) -> Found | None:
    names = segments(folder, journal)
    result: Found | None = None
    for number, path in enumerate(names):
        last = number == len(names) - 1
        data = patched(path, journal)
        header = _segment_header(data, int(path.stem))
        if isinstance(header, str):
            if result is None and last:
                return None  # the first segment was being created: nothing in it was acknowledged
            if result is None:  # the first of several: a later one says which topic it is
                result = Found("", next_offset=int(path.stem))
            (result.torn if last else result.wrong).append(f"{path}: {header}")
            continue
        seed, base, topic = header
        if result is None:
            result = Found(topic, next_offset=base)
        elif not result.topic:
            result.topic = topic
        result.segments += 1
        if base != result.next_offset and dense:
            result.wrong.append(f"{path}: starts at {base}, expected {result.next_offset}")
        result.next_offset = max(base, result.next_offset)
        _begin_chain(result, path, data)
        _read_batches(result, path, data, seed, dense, last)
    return result


def _begin_chain(result: Found, path: Path, data: bytes) -> None:
    """The header of a chained segment says which link comes before its first batch."""
    version, topic_id, partition = struct.unpack_from("<I4xII", data, 12)
    kind, _, before = struct.unpack_from("<II32s", data, 472)
    if version < 2 or kind == 0:
        if result.link:
            result.wrong.append(f"{path}: not chained, behind segments that are")
        return
    first = blake3(b"quintet chain 1\0" + struct.pack("<II", topic_id, partition)).digest()
    if before != (result.link or (first if path.stem == "0" * 20 else before)):
        result.wrong.append(f"{path}: the chain does not go on from the segment before it")
    result.link = before


def _segment_header(data: bytes, base: int) -> tuple[int, int, str] | str:
    """(seed, base offset, topic name) of a sound header, or what is wrong with it."""
    if len(data) < SEGMENT_HEAD_BYTES:
        return "shorter than its header"
    magic, crc, version, seed, _, _, name_length, found_base, _ = SEGMENT_HEAD.unpack_from(data)
    if magic != b"QNTSEG1\0" or version not in (1, 2) or seed == 0 or found_base != base:
        return "bad header field"
    if google_crc32c.extend(0, data[12:SEGMENT_HEAD_BYTES]) != crc:
        return "bad header checksum"
    return seed, base, data[48 : 48 + name_length].decode()


def _read_batches(result: Found, path: Path, data: bytes, seed: int, dense: bool, last: bool) -> None:
    position = SEGMENT_HEAD_BYTES
    while position < len(data):
        problem = _read_batch(result, data, position, seed, dense)
        if isinstance(problem, int):
            position += problem
            continue
        if problem == "zeros" and not any(data[position:]):
            return
        if problem == "zeros":
            problem = "zeros before something"
        behind = _something_sound_behind(data, position, seed)
        where = f"{path} at {position}: {problem}{', with a sound batch behind it' if behind else ''}"
        (result.torn if last and not behind else result.wrong).append(where)
        return


def _read_batch(result: Found, data: bytes, start: int, seed: int, dense: bool) -> int | str:
    """Take one batch in and give its length, or say why there is none."""
    length = _sound(data, start, seed)
    if isinstance(length, str):
        return length
    head = BATCH_HEAD.unpack_from(data, start)
    columns, base, count, span, origins = head[4], head[5], head[6], head[7], head[13]
    if base != result.next_offset and (dense or base < result.next_offset):
        return f"offset {base} where {result.next_offset} was expected"
    if dense and (columns & SPARSE or span != count):
        return "a batch with holes in a topic that is not compacted"
    if bool(columns & CHAIN) != bool(result.link):
        return "a batch with a link in a segment without a chain, or the other way round"
    if result.link:
        link = data[start + length - 32 : start + length]
        if link != blake3(result.link + data[start + 8 : start + length - 32]).digest():
            return "its link does not follow from the one before it"
        result.link = link
    result.next_offset = base + span
    if dense:
        for number, value in enumerate(_values(data, start, columns, count, origins)):
            result.values[base + number] = value
    return length


def _sound(data: bytes, start: int, seed: int) -> int | str:
    if len(data) - start < BATCH_HEAD.size:
        return "cut short" if any(data[start:]) else "zeros"
    magic, crc, length = struct.unpack_from("<4sII", data, start)
    if magic == b"\0\0\0\0":
        return "zeros"
    if magic != b"QRB1" or length % 8 or not BATCH_HEAD.size < length <= BATCH_BYTES_MAX:
        return "bad batch header"
    if start + length > len(data):
        return "cut short"
    if google_crc32c.extend(seed, data[start + 8 : start + length]) != crc:
        return "bad batch checksum"
    return int(length)


def _something_sound_behind(data: bytes, position: int, seed: int) -> bool:
    at = data.find(b"QRB1", position + 1)
    while at >= 0:
        if isinstance(_sound(data, at, seed), int):
            return True
        at = data.find(b"QRB1", at + 1)
    return False


def _aligned(position: int) -> int:
    return (position + 7) & ~7


def _var(data: bytes, start: int, count: int) -> tuple[list[bytes], int]:
    """A var column of `count` entries at `start` (8-aligned within the batch): its entries and where it ends."""
    offsets = struct.unpack_from(f"<{count + 1}i", data, start)
    body = _aligned(start + 4 * (count + 1))
    entries = [data[body + a : body + b] for a, b in pairwise(offsets)]
    return entries, _aligned(body + offsets[-1])


def _values(data: bytes, start: int, columns: int, count: int, origins: int) -> list[bytes]:
    batch = data[start : start + struct.unpack_from("<I", data, start + 8)[0]]
    _, position = _var(batch, BATCH_HEAD.size, origins)
    if origins > 1:
        position = _aligned(position + count)
    if columns & VALUE_NULLS:
        position = _aligned(position + (count + 7) // 8)
    return _var(batch, position, count)[0]
