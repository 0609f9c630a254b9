"""What a start reads of a small segment: both twins take what is as it should be, and nothing else."""

import random
from typing import Any

import pytest

from quintet.kernel import pure
from quintet.log.embedded.files.segment import HEADER_BYTES, ChainStart, Header, pack_header

native = pytest.importorskip("quintet.kernel._native", reason="NO NATIVE KERNEL: its twin is not compared with it")
ROOM_BYTES = 2048
BATCH = bytes(range(1, 97))  # what is behind the header is not looked into: it is below the mark
LINK = BATCH[-32:]
ROUNDS = 3_000


def room(chain: ChainStart, batch: bytes = BATCH, **changed: Any) -> bytes:
    header = Header(7, 70_000, 2, 0, 123_456, "shop.örders", chain)._replace(**changed)
    return (pack_header(header) + batch).ljust(ROOM_BYTES, b"\0")


def both(data: bytes, end: int, start: int = 0, name: bytes = "shop.örders".encode()) -> object:
    stop = min(start + ROOM_BYTES, len(data))
    found = [twin.segment_head(data, start, stop, end, 70_000, 2, name) for twin in (native, pure)]
    assert found[0] == found[1]
    return found[0]


def test_a_segment_as_it_was_left_is_taken() -> None:
    end = HEADER_BYTES + len(BATCH)
    assert both(room(ChainStart()), end) == (7, 123_456, 0, 0, b"")
    assert both(room(ChainStart(2, 9, bytes(32))), end) == (7, 123_456, 2, 9, LINK)
    first = bytes(range(32))
    assert both(room(ChainStart(1, 0, first), b""), HEADER_BYTES) == (7, 123_456, 1, 0, first)
    assert both(bytes(100) + room(ChainStart()), end, start=100) == (7, 123_456, 0, 0, b"")


def test_whatever_is_unusual_is_left_to_the_log() -> None:
    end = HEADER_BYTES + len(BATCH)
    sound = room(ChainStart(1))
    assert both(sound, end) is not None
    for wrong in ({"topic_id": 1}, {"partition": 1}, {"base": 1}, {"seed": 0}, {"name": "shop"}):
        assert both(room(ChainStart(1), **wrong), end) is None
    assert both(sound, end - 1) is None, "something lies behind the mark"
    assert both(sound, ROOM_BYTES + 1) is None
    assert both(sound, HEADER_BYTES - 1) is None
    assert both(sound, -1) is None
    assert both(sound[: HEADER_BYTES - 1], HEADER_BYTES) is None
    assert both(bytes(ROOM_BYTES), HEADER_BYTES) is None
    assert both(sound, end, name=b"") is None


def test_a_changed_bit_of_the_header_is_never_taken() -> None:
    rng = random.Random(16)
    sound, end = room(ChainStart(2, 9, bytes(32))), HEADER_BYTES + len(BATCH)
    for _ in range(ROUNDS):
        data = bytearray(sound)
        bit = rng.randrange(ROOM_BYTES * 8)
        data[bit // 8] ^= 1 << bit % 8
        below_mark = HEADER_BYTES <= bit // 8 < end
        assert (both(bytes(data), end) is not None) == below_mark, f"bit {bit}"


def test_a_range_outside_the_buffer_is_refused_by_both() -> None:
    for twin in (native, pure):
        for start, stop in ((-1, 10), (5, 4), (0, 11)):
            with pytest.raises(ValueError, match="must lie in the buffer"):
                twin.segment_head(bytes(10), start, stop, 5, 1, 1, b"")
