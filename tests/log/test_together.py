"""Many partitions that outgrow their packs, and later their segments, in the same turns: written in one job, with shared syncs.

The power goes at every disk call of it, with a sync for each file and with one for all; a disk whose one call does nothing is found out.
"""

import contextlib
import errno
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import cast

import pytest

from quintet import kernel
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.files.disk import UNKNOWN_BYTES, OsDisk
from quintet.log.embedded.files.packs import PackDisk
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.together import JOBS_MAX
from quintet.log.embedded.partitions.writer import UNWRITTEN_FILE_BYTES_MAX
from quintet.model.errors import StorageError
from quintet.testing.sim import SimDisk
from tests.log.support import TOPIC, Harness

TOPICS = 12
TURNS = 18  # of 150 to 400 bytes for each topic: out of its pack, and out of a file
JOURNAL = 16_384
EACH, AT_ONCE = 1 << 30, 1  # files from which on one call syncs all
SPECS = [TopicSpec(TOPIC + number, f"t{number}", segment_bytes=4096) for number in range(TOPICS)]
Story = dict[int, dict[int, tuple[bytes, bool]]]  # by topic and offset: what was sent, and whether it was acknowledged


def storm(disk: SimDisk, story: Story, files_min: int, journal: int, turns: int = TURNS) -> Harness:
    harness = Harness(disk, journal=journal, packs=True, lends=bool(journal), files_min=files_min)
    partitions = [harness.open(spec) for spec in SPECS]
    rng = Random(7)
    for _ in range(turns):
        for number, partition in enumerate(partitions):
            append(harness, story, number, partition, rng.randbytes(rng.randrange(150, 400)))
        harness.scheduler.run_until_idle()
    harness.tick()
    return harness


def append(harness: Harness, story: Story, number: int, partition: Partition, value: bytes) -> None:
    """Refused at once counts as not sent."""
    found = story.setdefault(number, {})

    def done(base: int, error: Exception | None) -> None:
        if error is None:
            found[base] = value, True

    with contextlib.suppress(StorageError):
        offset = partition.append(kernel.build([value], origin=b"test:1"), done)
        found.setdefault(offset, (value, False))


def wrong_after_restart(disk: SimDisk, story: Story) -> list[str]:
    harness = Harness(disk, packs=True)
    wrong = []
    for number, spec in enumerate(SPECS):
        sent = story.get(number, {})
        rows = {offset: value for offset, _, value in harness.read_all(harness.open(spec))}
        wrong += [f"{number}: {offset} lost" for offset, (_, acked) in sent.items() if acked and offset not in rows]
        wrong += [f"{number}: phantom {offset}" for offset, value in rows.items() if sent[offset][0] != value]
    return wrong


@pytest.mark.parametrize("journal", [0, JOURNAL])
@pytest.mark.parametrize("files_min", [EACH, AT_ONCE])
def test_the_power_goes_at_every_call(files_min: int, journal: int) -> None:
    plain, told = SimDisk(), Story()
    storm(plain, told, files_min, journal)
    assert all(acked for sent in told.values() for _, acked in sent.values())
    assert bool(plain.calls.get("sync_all")) == (files_min == AT_ONCE)
    for at in range(1, plain.total_calls, 3):
        disk, story = SimDisk(), Story()
        disk.stop_at = at
        with contextlib.suppress(StorageError):
            storm(disk, story, files_min, journal)
        disk.crash(Random(at))
        assert wrong_after_restart(disk, story) == [], f"cut at call {at}"


@pytest.mark.parametrize("journal", [0, JOURNAL])
def test_one_call_that_makes_nothing_durable_is_caught(journal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control."""
    plain = SimDisk()
    storm(plain, Story(), AT_ONCE, journal)
    caught = 0
    for at in range(plain.total_calls // 3, plain.total_calls, plain.total_calls // 32):
        disk, story = SimDisk(), Story()
        disk.stop_at = at
        with monkeypatch.context() as patch, contextlib.suppress(StorageError):
            patch.setattr(SimDisk, "sync_all", lambda self, path, handles=(): True)
            storm(disk, story, AT_ONCE, journal)
        disk.crash(Random(at))
        caught += bool(wrong_after_restart(disk, story))
    assert caught >= 8


def test_syncs_are_shared() -> None:
    """Out of their packs in one turn: five syncs, however many they are."""
    counts = {}
    for together in (True, False):
        harness = Harness(packs=True, files_min=AT_ONCE)
        harness.log._shared.committer.jobs_max = JOBS_MAX if together else 1
        partitions = [cast(FilePartition, harness.open(spec)) for spec in SPECS]
        before = 0
        while not before or all(partition.is_packed for partition in partitions):
            before = syncs(harness.sim)
            for partition in partitions:
                harness.append(partition, [bytes(250)])
            harness.scheduler.run_until_idle()
        assert not any(partition.is_packed for partition in partitions)
        counts[together] = syncs(harness.sim) - before
    assert counts[True] <= 5 < 3 * TOPICS <= counts[False]


@pytest.mark.parametrize("unwritten", [0, UNWRITTEN_FILE_BYTES_MAX * TOPICS + 1])
def test_a_neighbour_that_writes_much_is_not_waited_for(unwritten: int) -> None:
    disk = SimDisk()
    disk.unwritten = unwritten
    storm(disk, Story(), AT_ONCE, 0)
    assert bool(disk.calls.get("sync_all")) == (not unwritten)


def test_the_system_says_how_much_is_unwritten() -> None:
    assert 0 <= OsDisk().unwritten_bytes() < UNKNOWN_BYTES


def syncs(disk: SimDisk) -> int:
    return sum(disk.calls.get(operation, 0) for operation in ("fdatasync", "fsync_dir", "sync_all"))


@pytest.mark.parametrize("operation", ["open", "pwritev", "zero", "fdatasync", "fsync_dir"])
def test_a_failure_is_of_one_partition(operation: str) -> None:
    """Whoever's call it is, the others in its job are acknowledged, and it is not; and after a restart it takes appends again."""
    failed = []
    for nth in range(1, 40):
        disk, story = SimDisk(), Story()
        harness = storm(disk, story, EACH, 0, turns=2)
        before = len(harness.reports)
        disk.fail(operation, nth, errno.EIO)
        for number, spec in enumerate(SPECS):
            append(harness, story, number, harness.open(spec), bytes(1_000))
        harness.scheduler.run_until_idle()
        disk.heal()
        refused = [number for number, sent in story.items() if not all(acked for _, acked in sent.values())]
        failed.append(len(refused))
        assert len(harness.reports) - before == len(refused)
        disk.crash(Random(nth))
        assert wrong_after_restart(disk, story) == [], nth
    assert max(failed) > 0
    assert operation in ("fdatasync", "fsync_dir") or max(failed) == 1  # a pack and a directory are those of many


def test_a_lost_page_is_not_forgotten() -> None:
    """The system tells of it once for the whole disk: from then on each file is asked for itself."""
    sim = SimDisk()
    sim.mkdir("/data")
    disk = PackDisk(sim, writes=True)
    handles = [disk.open(f"/data/{number}", create=True, write=True) for number in range(3)]
    for handle in handles:
        disk.pwritev(handle, [b"x"], 0)
    sim.fail("sync_all", 1, errno.EIO)
    assert not disk.sync_all("/data")
    assert not disk.sync_all("/data"), "it would say that everything is durable"
    assert sim.calls["sync_all"] == 1
    for handle in handles:
        with pytest.raises(OSError, match="Input/output"):
            disk.fdatasync(handle)


def test_whoever_asks_at_the_same_time_hears_of_it_too() -> None:
    """Of two calls at once the system would tell one."""

    class Slow(SimDisk):
        asked = 0

        def sync_all(self, path: str, handles: Sequence[int] = ()) -> bool:
            self.asked += 1
            time.sleep(0.05)
            return False

    disk = PackDisk(sim := Slow(), writes=True)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(disk.sync_all, ["/data"] * 4)) == [False] * 4
    assert sim.asked == 1


def test_files_on_another_disk_are_synced_by_themselves(tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("NOT PROVEN HERE: there is no second file system")
    disk = OsDisk()
    lock = disk.lock(f"{tmp_path}/lock")
    try:
        if not disk.sync_all(str(tmp_path)):
            pytest.skip("NOT PROVEN HERE: the file system of temporary files does not tell of errors")
        with tempfile.TemporaryFile(dir=other) as there, tempfile.TemporaryFile(dir=tmp_path) as here:
            assert disk.sync_all(str(tmp_path), [here.fileno()])
            assert not disk.sync_all(str(tmp_path), [here.fileno(), there.fileno()])
        (tmp_path / "topics").symlink_to(other)
        assert not disk.sync_all(str(tmp_path))
    finally:
        disk.close(lock)


@pytest.mark.parametrize("nth", range(1, 7))
def test_one_call_that_fails_loses_nothing(nth: int) -> None:
    disk, story = SimDisk(), Story()
    disk.fail("sync_all", nth, errno.EIO)
    storm(disk, story, AT_ONCE, JOURNAL)
    assert disk.calls["sync_all"] == nth, "it was asked again"
    disk.crash(Random(nth))
    assert wrong_after_restart(disk, story) == []
