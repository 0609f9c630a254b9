"""Slabs: what is kept of quiet topics between others that come and go is found, and does not hold the memory of the others."""

import random
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

from quintet import kernel
from tests.kernel.frames import native_twin, publish

FRAME_BYTES_MAX: Final = 1 << 20
CHURNED_BYTES: Final = 150 << 20
GROWN_BYTES_MAX: Final = 60 << 20
VALUE_BYTES: Final = 8_000
PAGE_BYTES: Final = 4_096


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="says how much memory a process has on Linux only")
def test_quiet_topics_do_not_hold_the_memory_of_busy_ones() -> None:
    """One message of a quiet topic lies in each slab. Without moving them, all of them would stay."""
    native = native_twin()
    tails, routes = native.Tails(bytes, 1 << 30, 100, 100_000), native.Routes()
    busy = publish(b"busy", bytes(VALUE_BYTES), False)
    routes.add(b"busy", tails.add_topic([tails.open(20 * VALUE_BYTES)]), 0, False)
    before, quiet = resident_bytes(), list[tuple[int, bytes]]()
    for number in range(CHURNED_BYTES // (20 * VALUE_BYTES)):
        name, value = b"quiet%d" % number, b"%d" % number * 5
        quiet.append((tails.open(1 << 20), value))
        routes.add(name, tails.add_topic([quiet[-1][0]]), 0, False)
        native.blip_append(tails, routes, publish(name, value, False), 0, 1, FRAME_BYTES_MAX, b"o:o", 1)
        for _ in range(20):
            native.blip_append(tails, routes, busy, 0, 1, FRAME_BYTES_MAX, b"o:o", 1)
            tails.seal(1)
    assert resident_bytes() - before < GROWN_BYTES_MAX
    for slot, value in quiet:
        (batch,) = tails.read(slot, 0, 1)
        assert [row[3] for row in native.rows(batch, 0, 1)] == [value]


def test_what_is_late_is_whole_although_others_come_and_go(k: ModuleType) -> None:
    """Kept batches are dropped long before they are taken for their segments, which get the bytes of the records, in order."""
    check_late(k, 400, 40)


def test_more_is_late_than_slabs_are_held_for() -> None:
    check_late(native_twin(), 4_000, 2_000)


def check_late(k: ModuleType, turns: int, flushed_every: int) -> None:
    choice = random.Random(flushed_every)
    tails: kernel.Tails[bytes] = k.Tails(bytes, 1 << 20, 100, 1_000)
    tails.set_lending(True, 50_000)
    slots = [tails.open_lent() for _ in range(40)]
    written, expected = dict[int, bytes](), dict[int, bytes]()
    for slot in slots:
        tails.lend(slot, True, (16, slot, 0, 7, 100, 512, 1 << 40, 0, 0), b"", b"")
        written[slot] = expected[slot] = b""
    for turn in range(turns):
        used = choice.sample(slots, 10)
        for slot in used:
            tails.append_lent(slot, k.build([choice.randbytes(choice.randrange(4_000))]), turn + 1, turn)
        _, places, _, _, body, _, _ = tails.seal_lent(True, 1 << 20, 1 << 30)
        assert not places
        at = 0
        for slot in tails.flying_lent(True):
            size = int.from_bytes(body[at + 8 : at + 12], "little")
            expected[slot] += body[at : at + size]
            at += size
        tails.commit_lent(True, turn)
        if turn % flushed_every == flushed_every - 1:
            for slot in tails.tardy_lent(turn, 100):
                position, buffers = tails.take_late(slot)
                assert position == 512 + len(written[slot])
                written[slot] += b"".join(buffers)
            assert written == expected
    assert tails.late_bytes == 0 and any(written.values())
