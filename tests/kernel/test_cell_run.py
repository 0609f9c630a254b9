"""kernel.cell_run on both twins: how far publishes go to one cell, what ends a run, and the twins against each other."""

import random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quintet.kernel import pure
from quintet.model.cells import CellMap
from quintet.protocols.blipmq import codec as blip
from quintet.protocols.blipmq import frames as blip_frames
from quintet.protocols.fast import codec as fast
from quintet.protocols.fast.mapping import topic_id
from tests.kernel.frames import native_twin
from tests.wire.flymq import frame

BLIP_1, BLIP_2, FLY, FAST = range(4)
CELLS = CellMap(3, (), "-dlq")
MOST = 1 << 20
TOKEN = b"a.b.c"
ZERO, ONE = (next(f"n{i}".encode() for i in range(99) if CELLS.cell_of(f"n{i}".encode()) == cell) for cell in (0, 1))


def publish(name: bytes, ttl: bool = False) -> bytes:
    head = b"\x81\x00\x00\x00\x09" if ttl else b"\x01"
    return blip.encode(blip_frames.PUBLISH, 7, head + len(name).to_bytes(2, "big") + name + b"value")


def produce(name: bytes, flags: int = 1) -> bytes:
    payload = len(name).to_bytes(2, "big") + name + bytes(4) + (5).to_bytes(4, "big") + b"value" + bytes(4)
    return bytes((0xAF, 1, 1, flags)) + len(payload).to_bytes(4, "big") + payload


def put(name: bytes, token: bytes = TOKEN) -> bytes:
    return fast.publish(token, topic_id(name), b"value")


def run(k: ModuleType, kind: int, data: bytes, own: int = -1, position: int = 0) -> tuple[int, int]:
    found: tuple[int, int] = k.cell_run(kind, data, position, MOST, CELLS.count, own, CELLS.suffix, TOKEN)
    return found


@pytest.mark.parametrize(("kind", "make"), [(BLIP_1, publish), (BLIP_2, publish), (FLY, produce), (FAST, put)])
def test_a_run_ends_at_the_first_frame_of_another_cell(k: ModuleType, kind: int, make: object) -> None:
    assert callable(make)
    zero, one = make(ZERO), make(ONE)
    assert run(k, kind, zero * 3 + one) == (0, 3 * len(zero))
    assert run(k, kind, zero * 3 + one, position=3 * len(zero)) == (1, 3 * len(zero) + len(one))
    for cut in range(len(zero), 2 * len(zero)):
        assert run(k, kind, (zero * 2)[:cut]) == (0, len(zero))
    assert run(k, kind, zero[:-1]) == (-1, 0)


def test_what_is_not_plain_is_left_to_python(k: ModuleType) -> None:
    for name in (b"a/b/c", b"a/b", b"__x", ZERO + b"-dlq", b""):
        assert run(k, BLIP_1, publish(name)) == (-1, 0)
        assert run(k, FLY, produce(name)) == (-1, 0)
    assert run(k, BLIP_1, blip.ping(1) + publish(ZERO)) == (-1, 0)
    assert run(k, BLIP_1, publish(ZERO) + blip.ping(1) + publish(ONE)) == (0, len(publish(ZERO)) + 13)
    assert run(k, BLIP_2, publish(ONE, ttl=True)) == (1, len(publish(ONE, ttl=True)))
    assert run(k, BLIP_1, publish(ONE, ttl=True)) != (1, len(publish(ONE, ttl=True)))
    assert run(k, FLY, produce(ZERO, flags=3)) == (-1, 0)  # compressed
    assert run(k, FLY, frame(8)) == (-1, 0)  # LIST_TOPICS
    assert run(k, FAST, put(ZERO, b"other")) == (-1, 0)
    assert run(k, FAST, put(ZERO, b"")) == (-1, 0)
    assert run(k, FAST, put(ZERO, b""), own=0) == (0, len(put(ZERO, b"")))
    assert run(k, 9, publish(ZERO)) == (-1, 0)
    assert k.cell_run(BLIP_1, publish(ZERO), 0, 10, 3, 0, b"", b"") == (-1, 0)  # longer than it may be
    with pytest.raises(ValueError, match="must lie in the buffer"):
        run(k, BLIP_1, b"", position=1)


@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_twins_agree_on_hostile_bytes(kind: int, chance: random.Random) -> None:
    native = native_twin()
    names = [ZERO, ONE, b"a/b", b"x-dlq", b"__", b""]
    made = [
        each
        for name in names
        for each in (publish(name), publish(name, True), produce(name), put(name), put(name, b""))
    ]
    data = bytearray(b"".join(chance.choice(made) for _ in range(4)))
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    own, position = chance.randrange(-1, 3), chance.randrange(len(data))
    for start in (0, position):
        assert run(native, kind, bytes(data), own, start) == run(pure, kind, bytes(data), own, start)
