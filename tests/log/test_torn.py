"""S3: a torn tail at every byte of the last two batches, of the index and of the checkpoint.

Always: the log starts, serves exactly the whole batches in front of the tear, takes appends, and a second recovery
changes nothing. QUINTET_S3_BYTES sets the size of the torn batches (default 600, more than a sector; in `make campaign` 1,300).
"""

import os
from random import Random

import pytest

from quintet import kernel
from quintet.log.embedded.files.torn import is_torn
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.testing.sim import SimDisk
from tests.log.support import PARTITION, TOPIC, Harness, Rows

BATCH_BYTES = int(os.environ.get("QUINTET_S3_BYTES", "600"))
SEGMENT = f"{PARTITION}/{0:020d}.seg"
KINDS = ("cut", "zeros", "random", "stale")


def prepare(marked: bool) -> tuple[dict[str, bytes | None], Rows, list[int]]:
    """A log that was killed: six batches below the mark (if there is one), two above. Returns also where each starts."""
    harness = Harness()
    partition = harness.open()
    rows = harness.write(partition, 6, size=150)
    if marked:
        harness.tick()
    rows += harness.write(partition, 2, size=BATCH_BYTES, seed=2)
    assert isinstance(partition, FilePartition)
    starts, position = [], 512
    for batch in partition.read(0, 1 << 20) or []:
        starts.append(position)
        position += batch.length
    harness.sim.kill()
    return harness.sim.snapshot(), rows, [*starts, position]


def torn(data: bytes, at: int, kind: str, end: int, rng: Random, stale: bytes) -> bytes:
    if kind == "cut":
        return data[:at]
    if kind == "zeros":
        return data[:at].ljust(len(data), b"\0")
    if kind == "random":
        return (data[:at] + rng.randbytes(rng.choice((end - at, 4000)))).ljust(len(data), b"\0")
    return (data[:at] + stale[at:]).ljust(len(data), b"\0")[: len(data)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("marked", [True, False])
def test_a_tear_at_every_byte_of_the_last_two_batches(kind: str, marked: bool) -> None:
    image, rows, starts = prepare(marked)
    stale = prepare(marked)[0][SEGMENT]
    data = image[SEGMENT]
    assert data is not None
    assert stale is not None
    rng = Random(7)
    disk = SimDisk()
    for at in range(starts[6], starts[8] + 1):
        broken = torn(data, at, kind, starts[8], rng, stale)
        whole = 6 + sum(broken[a:b] == data[a:b] for a, b in ((starts[6], starts[7]), (starts[7], starts[8])))
        if broken[starts[6] : starts[7]] != data[starts[6] : starts[7]]:
            whole = 6
        disk.restore(image | {SEGMENT: broken})
        harness = Harness(disk)
        partition = harness.open()
        assert partition.visible == whole, (at, kind)
        assert harness.read_all(partition) == rows[:whole]
        assert "corrupt_range" not in harness.kinds()
        disk.kill()
        recovered = disk.snapshot()
        harness = Harness(disk)
        partition = harness.open()
        assert disk.snapshot() == recovered
        assert harness.append(partition, [b"new"]) == whole
        harness.scheduler.run_until_idle()
        assert harness.acks == [(whole, None)]
        assert harness.read_all(harness.cold(partition)) == [*rows[:whole], (whole, None, b"new")]


@pytest.mark.parametrize("name", ["checkpoint.a", "index"])
def test_a_tear_at_every_byte_of_index_and_checkpoint(name: str) -> None:
    harness = Harness()
    partition = harness.open()
    rows = harness.write(partition, 20, size=150)
    assert isinstance(partition, FilePartition)
    partition.seal_active()
    rows += harness.write(partition, 3, size=150, seed=2)
    harness.tick()
    harness.sim.kill()
    image = harness.sim.snapshot()
    path = f"/data/{name}" if name != "index" else SEGMENT.replace(".seg", ".idx")
    data = image[path]
    assert data is not None
    rng = Random(3)
    disk = SimDisk()
    for at in range(len(data)):
        for kind in KINDS:
            disk.restore(image | {path: torn(data, at, kind, len(data), rng, bytes(reversed(data)))})
            harness = Harness(disk)
            partition = harness.open()
            assert harness.read_all(partition) == rows
            assert "corrupt_range" not in harness.kinds()
            assert harness.append(partition, [b"new"]) == len(rows)
            harness.scheduler.run_until_idle()
            assert harness.acks == [(len(rows), None)]


def test_a_segment_whose_creation_never_finished_is_made_again() -> None:
    image, rows, _ = prepare(marked=True)
    disk = SimDisk()
    created = f"{PARTITION}/{8:020d}.seg"
    for content in (b"", b"\0" * 512, b"QNTSEG1\0" + b"\0" * 65_528, b"\x01" * 100):
        disk.restore(image | {created: content})
        harness = Harness(disk)
        partition = harness.open()
        assert harness.kinds() == ["torn_tail"]
        assert partition.visible == 8
        rows_now = [*rows, *[(8 + n, None, v) for n, (_, _, v) in enumerate(harness.write(partition, 2))]]
        assert harness.read_all(harness.cold(partition)) == rows_now


def test_a_log_cut_below_its_mark_says_so_and_uses_no_offset_twice() -> None:
    image, rows, starts = prepare(marked=True)
    data = image[SEGMENT]
    assert data is not None
    disk = SimDisk()
    disk.restore(image | {SEGMENT: data[: starts[3] + 5]})
    harness = Harness(disk)
    partition = harness.open()
    assert "corrupt_range" in harness.kinds()
    assert harness.append(partition, [b"new"]) == 6
    harness.scheduler.run_until_idle()
    assert harness.acks == [(6, None)]
    assert harness.read_all(harness.cold(partition)) == [*rows[:3], (6, None, b"new")]
    disk.kill()
    harness = Harness(disk)
    assert harness.read_all(harness.open()) == [*rows[:3], (6, None, b"new")]
    assert TOPIC in harness.log.topic_ids()


# -- topics that are written one batch at a time (ADR 15) -------------------------------------------------------------------


def sealed(value: bytes) -> bytes:
    batch = kernel.build([value], [b"key"], origin=b"test:1")
    kernel.seal(batch, 7, 1_000, 99)
    return bytes(batch)


@pytest.mark.parametrize("position", [512, 512 + 456, 1024 - 8])
@pytest.mark.parametrize("value", [b"x" * 40, Random(1).randbytes(1000), bytes(1000)], ids=["short", "long", "zeros"])
def test_what_lacks_something_is_torn_and_what_was_flipped_is_not(value: bytes, position: int) -> None:
    batch = sealed(value)
    room = bytes(4096)
    for bit in range(0, 8 * len(batch), 53):
        broken = bytearray(batch)
        broken[bit >> 3] ^= 1 << (bit & 7)
        assert not is_torn(bytes(broken) + room, position, 99), bit
    first = 512 - position % 512
    for start in [0, *range(first, len(batch), 512)]:  # each sector, as far as the batch reaches into it
        end = min(start + 512 - (position + start) % 512, len(batch))
        missing = batch[:start] + bytes(end - start) + batch[end:]
        if missing != batch:
            assert is_torn(missing + room, position, 99), start
    for size in range(0, len(batch) - 40, 37):
        assert is_torn(batch[:size], position, 99), size
        assert is_torn(batch[:size] + room, position, 99), size
    assert is_torn(b"\0\0\1" + room, position, 99)  # something flipped where nothing was
