"""Hands on a data directory, written from docs/LOG_FORMAT.md alone: one byte of a record changed under a right checksum, and
the end of a log cut off below what an anchor says. Both on copies; both must be found by `quintet audit verify`.
"""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import google_crc32c

SEGMENT_HEAD_BYTES = 512
FIRST_USER_TOPIC = 16
LINK_BYTES = 32
CHAIN_KIND = 472  # where the header of a segment says that it is chained, u32

Verify = Callable[[Path], tuple[int, str]]


def batches(data: bytes) -> list[tuple[int, int]]:
    """(start, length) of every batch in a segment file."""
    found, at = [], SEGMENT_HEAD_BYTES
    while data[at : at + 4] == b"QRB1":
        (length,) = struct.unpack_from("<I", data, at + 8)
        found.append((at, length))
        at += length
    return found


def anchored(directory: Path) -> dict[tuple[int, int], int]:
    """topic, partition -> the offset behind what the anchors vouch for."""
    heads: dict[tuple[int, int], int] = {}
    for line in (directory / "anchors").read_bytes().splitlines():
        for topic, partition, following, _ in json.loads(line)["heads"]:
            heads[topic, partition] = following
    return heads


def chained(path: Path) -> bool:
    """Caches are compacted, and what is compacted has no chain."""
    with path.open("rb") as file:
        return any(file.read(SEGMENT_HEAD_BYTES)[CHAIN_KIND : CHAIN_KIND + 4])


def segments(directory: Path) -> list[Path]:
    """Files of users' topics, the fullest first; packs hold too little."""
    mine = [path for path in directory.glob("topics/*/*/*.seg") if int(path.parts[-3]) >= FIRST_USER_TOPIC]
    found = [path for path in mine if chained(path)]
    return sorted(found, key=lambda path: -len(batches(path.read_bytes())))


def change_a_byte(directory: Path) -> None:
    path = segments(directory)[0]
    data = bytearray(path.read_bytes())
    found = batches(bytes(data))
    start, length = found[len(found) // 2]
    (seed,) = struct.unpack_from("<I", data, 16)
    data[start + length - LINK_BYTES - 9] ^= 1  # of the last value, behind at most seven bytes of padding
    struct.pack_into("<I", data, start + 4, google_crc32c.extend(seed, bytes(data[start + 8 : start + length])))
    path.write_bytes(data)


def cut_the_tail(directory: Path) -> None:
    """The last batch below the anchor, and everything behind it, is made zeros: as if it had never been written."""
    heads = anchored(directory)
    for path in segments(directory):
        following = heads.get((int(path.parts[-3]), int(path.parts[-2])), 0)
        last = max(path.parent.glob("*.seg"))
        data = bytearray(last.read_bytes())
        below = [
            start for start, _ in batches(bytes(data)) if struct.unpack_from("<Q", data, start + 16)[0] < following
        ]
        if below:
            data[below[-1] :] = bytes(len(data) - below[-1])
            last.write_bytes(data)
            return
    raise AssertionError("no anchor vouches for anything in the last segment of a topic")


def controls(directory: Path, folder: Path, verify: Verify) -> dict[str, bool]:
    """What was done -> whether verify said 1; untouched it must say 0."""
    caught = {"untouched": verify(directory)[0] == 0}
    for name, hand in (("changed byte", change_a_byte), ("cut tail", cut_the_tail)):
        copy = folder / name.replace(" ", "-")
        shutil.copytree(directory, copy)
        hand(copy)
        caught[name] = verify(copy)[0] == 1
    return caught
