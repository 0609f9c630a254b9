"""S4: every bit of a segment, an index and a checkpoint is flipped once. Nothing wrong is ever served, nothing below the
durable mark is silently missing, and what is missing is named by file and position.

QUINTET_S4_BYTES sets the size of the segment that goes through the whole engine (default 1,200, in `make campaign` 8,192; the bar is 65,536). All
bits of a 64 KiB segment always go through the kernel's check. Sabotaged variants prove that the judge can say no.
"""

import os
from random import Random
from types import SimpleNamespace

import pytest

from quintet import kernel
from quintet.log.embedded.files import segment as segment_module
from quintet.log.embedded.files.segment import Gap, Run, scan
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.testing.sim import SimDisk
from tests.log.support import PARTITION, Harness, Rows

SEGMENT = f"{PARTITION}/{0:020d}.seg"
ENGINE_BYTES = int(os.environ.get("QUINTET_S4_BYTES", "1200"))
SEGMENT_BYTES = 65_536
HEADER_BITS = 512 * 8
HEADER_STEP = 13  # prime to 8: each bit of a byte has its turn. Every bit of the header has a test of its own


def covers(finding: dict[str, object], position: int) -> bool:
    """Does the range that is named hold this position?"""
    start, length = finding["position"], finding["length"]
    assert isinstance(start, int)
    assert isinstance(length, int)
    return start <= position < start + max(length, 1)


class Image:
    """A log to be damaged: its files, its rows, where its batches start, and how many are below the mark."""

    def __init__(self, size: int, marked_share: float, clean: bool) -> None:
        harness = Harness()
        partition = harness.open()
        self.rows: Rows = []
        self.marked = 0
        self.kinds: list[str] = []  # of the reports of the last start
        assert isinstance(partition, FilePartition)
        number = 0
        while partition._plan_end < size:
            self.rows += harness.write(partition, 1, size=60 + 37 * number % 200, seed=number)
            number += 1
            if not self.marked and partition._plan_end >= size * marked_share:
                harness.tick()
                self.marked = len(self.rows)
        self.starts = []
        position = 512
        for batch in partition.read(0, 1 << 24) or []:
            self.starts.append(position)
            position += batch.length
        self.end = position
        if clean:
            harness.close()
            self.marked = len(self.rows)
        harness.sim.kill()
        self.files = harness.sim.snapshot()

    def judge(self, disk: SimDisk, path: str, bit: int) -> list[str]:
        """Flip one bit, start, read everything, and say what is wrong with the outcome."""
        data = bytearray(self.files[path] or b"")
        data[bit >> 3] ^= 1 << (bit & 7)
        return self.judge_bytes(disk, path, bytes(data), f"bit {bit}")

    def judge_bytes(self, disk: SimDisk, path: str, data: bytes, what: str, strays: bool = False) -> list[str]:
        """With `strays` sound batches are in the wrong place: what lies between may go too, if its offsets are named."""
        original = self.files[path] or b""
        disk.restore(self.files)
        disk.damage(path, data)
        harness = Harness(disk)
        partition = harness.open()
        served = harness.read_all(partition, max_bytes=1 << 20)
        self.kinds = harness.kinds()
        if served == self.rows:
            return []
        wrong = [f"{what}: wrong bytes served at offset {row[0]}" for row in served if row not in self.rows]
        if [row[0] for row in served] != sorted({row[0] for row in served}):
            wrong.append(f"{what}: offsets out of order")
        missing = sorted({row[0] for row in self.rows} - {row[0] for row in served})
        named = [f for kind, f in harness.reports if kind == "corrupt_range" and path.endswith(str(f["file"]))]
        torn = [f for kind, f in harness.reports if kind == "torn_tail"]
        for offset in missing:
            at = self.starts[offset]
            end = self.starts[offset + 1] if offset + 1 < len(self.rows) else self.end
            hit = path == SEGMENT and data[at:end] != original[at:end]
            lost = [f for f in named if offset in range(int(str(f["first_offset"])), int(str(f["next_offset"])))]
            if strays and lost:
                continue
            if not hit:
                wrong.append(f"{what}: offset {offset} is missing and was not hit")
            elif offset < self.marked and not any(covers(f, at) for f in named):
                wrong.append(f"{what}: offset {offset} below the mark is silently missing")
            elif not named and not any(covers(f, at) for f in torn):
                wrong.append(f"{what}: offset {offset} is missing and nothing names its place")
        if partition.end < self.marked:
            wrong.append(f"{what}: offsets below the mark would be used again")
        return wrong


@pytest.mark.parametrize(("share", "clean"), [(0.5, False), (1.0, True)])
def test_every_bit_of_a_segment_through_the_engine(share: float, clean: bool) -> None:
    image = Image(ENGINE_BYTES if clean else max(ENGINE_BYTES // 4, 1000), share, clean)
    assert 0 < image.marked <= len(image.rows) - (not clean), "batches below the mark, and above it"
    assert len(image.rows) > 2
    disk = SimDisk()
    for bit in (*range(0, HEADER_BITS, HEADER_STEP), *range(HEADER_BITS, image.end * 8)):
        assert image.judge(disk, SEGMENT, bit) == []


def test_every_bit_of_a_sealed_segments_index_and_of_the_checkpoints() -> None:
    harness = Harness()
    partition = harness.open()
    rows = harness.write(partition, 8)
    assert isinstance(partition, FilePartition)
    partition.seal_active()
    rows += harness.write(partition, 2, seed=3)
    harness.tick()
    rows += harness.write(partition, 1, seed=4)
    harness.tick()
    harness.sim.kill()
    files = harness.sim.snapshot()
    disk = SimDisk()
    for path in (SEGMENT.replace(".seg", ".idx"), "/data/checkpoint.a", "/data/checkpoint.b"):
        data = files[path]
        assert data
        for bit in range(len(data) * 8):
            broken = bytearray(data)
            broken[bit >> 3] ^= 1 << (bit & 7)
            disk.restore(files)
            disk.damage(path, bytes(broken))
            harness = Harness(disk)
            assert harness.read_all(harness.open()) == rows, (path, bit)
            assert "corrupt_range" not in harness.kinds()
            assert ("checkpoint_rejected" in harness.kinds()) == ("checkpoint" in path)


def test_every_bit_of_64_kib_through_the_check_and_the_scanner() -> None:
    image = Image(SEGMENT_BYTES, 1.0, True)
    content = image.files[SEGMENT]
    assert content is not None
    assert len(content) >= SEGMENT_BYTES
    seed = int.from_bytes(content[16:20], "little")
    data = bytearray(content)
    ends = [*image.starts[1:], image.end]
    flips = 0
    for start, end in zip(image.starts, ends, strict=True):
        assert kernel.check(data, start, seed) == end - start
        for position in range(start, end):
            for mask in (1, 2, 4, 8, 16, 32, 64, 128):
                data[position] ^= mask
                if kernel.check(data, start, seed) > 0:
                    pytest.fail(f"bit {mask} of byte {position} is not noticed")
                data[position] ^= mask
                flips += 1
    assert flips == 8 * (image.end - 512)
    disk = SimDisk()
    disk.restore(image.files)
    for bit in range(512 * 8, image.end * 8, 499):
        data[bit >> 3] ^= 1 << (bit & 7)
        disk.damage(SEGMENT, bytes(data))
        parts = list(scan(disk, disk.open(SEGMENT), seed, 512, image.end, 0))
        data[bit >> 3] ^= 1 << (bit & 7)
        gaps = [part for part in parts if isinstance(part, Gap)]
        sound = sum(len(part.entries) for part in parts if isinstance(part, Run))
        assert len(gaps) == 1
        assert gaps[0].position <= bit >> 3
        assert sound == len(image.rows) - 1


def test_every_bit_of_a_segment_header_is_noticed_and_survived() -> None:
    image = Image(1200, 1.0, True)
    disk = SimDisk()
    for bit in range(HEADER_BITS):
        assert image.judge(disk, SEGMENT, bit) == []
        assert image.kinds == ["corrupt_range"]


def test_random_bytes_sectors_and_blocks_of_every_kind() -> None:
    """QUINTET_S4_RANDOM sets how many (default 600, in `make campaign` 20,000; the bar is 100,000)."""
    image = Image(SEGMENT_BYTES, 0.8, False)
    original = image.files[SEGMENT]
    assert original is not None
    other = Image(SEGMENT_BYTES, 0.8, False).files[SEGMENT]
    assert other is not None
    rng = Random(9)
    disk = SimDisk()
    for number in range(
        int(os.environ.get("QUINTET_S4_RANDOM", "20000" if os.environ.get("QUINTET_TEST_LONG") else "600"))
    ):
        data = bytearray(original)
        size = rng.choice((1, 64, 512, 4096))
        at, source = (rng.randrange(0, image.end - size) // size * size for _ in range(2))
        kind = rng.choice(("random", "zeroed", "swapped", "misdirected", "stale"))
        if kind == "random":
            data[at : at + size] = rng.randbytes(size)
        elif kind == "zeroed":
            data[at : at + size] = bytes(size)
        elif kind == "stale":
            at = max(at, 512)  # another segment's sound header makes all of this one unreadable: reported, not salvaged
            data[at : at + size] = other[at : at + size]
        else:
            data[at : at + size] = original[source : source + size]
            if kind == "swapped":
                data[source : source + size] = original[at : at + size]
        what = f"{number}: {kind} {size} at {at} from {source}"
        strays = kind in ("swapped", "misdirected")
        assert image.judge_bytes(disk, SEGMENT, bytes(data), what, strays) == []


# -- the judge itself -------------------------------------------------------------------------------------------------


def test_the_judge_catches_truncation_at_the_first_bad_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(2048, 0.5, False)

    def give_up(rest: bytes, seed: int, expected: int) -> list[segment_module.Entry]:
        return []

    monkeypatch.setattr(segment_module, "_salvage", give_up)
    bits = range(image.starts[1] * 8, image.starts[2] * 8, 7)
    assert all(image.judge(SimDisk(), SEGMENT, bit) for bit in bits)


def test_the_judge_catches_a_checksum_that_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image(2048, 1.0, True)

    def walk(data: bytes, start: int, stop: int, seed: int, verify: bool) -> object:
        return kernel.walk(data, start, stop, seed, False)

    names = ("crc32c", "check", "find", "rows", "layout")
    sabotaged = SimpleNamespace(walk=walk, **{name: getattr(kernel, name) for name in names})
    monkeypatch.setattr(segment_module, "kernel", sabotaged)
    caught = sum(
        bool(image.judge(SimDisk(), SEGMENT, bit)) for bit in range((image.starts[1] + 100) * 8, image.starts[2] * 8)
    )
    assert caught > 0
