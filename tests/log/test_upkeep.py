"""What a partition does when nobody asks: files closed when idle, syncs that were put off, names made durable in time."""

from random import Random

import pytest

from quintet.log.base import TopicSpec
from quintet.log.embedded.partitions.partition import IDLE_CLOSE_OS_US, IDLE_CLOSE_US, FilePartition
from quintet.testing.sim import SimDisk
from tests.log.support import TOPIC, Harness

SYNCS = ("fdatasync", "fsync_dir")


def syncs(disk: SimDisk) -> int:
    return sum(disk.calls.get(call, 0) for call in SYNCS)


def opened(harness: Harness, durability: str, topic: int = TOPIC, partitions: int = 1) -> list[FilePartition]:
    found = harness.log.open_topic(TopicSpec(topic, f"t{topic}", partitions, durability=durability))  # type: ignore[arg-type]
    return [partition for partition in found if isinstance(partition, FilePartition)]


def is_open(partition: FilePartition) -> bool:
    return partition.segments[-1].handle >= 0


@pytest.mark.parametrize("durability", ["os", "interval"])
def test_a_topic_that_promises_no_sync_begins_without_one(durability: str) -> None:
    harness = Harness()
    [partition] = opened(harness, durability)
    before = syncs(harness.sim)
    harness.write(partition, 3)
    assert syncs(harness.sim) == before
    assert partition.mark is None


def test_an_interval_topic_survives_a_power_cut_after_its_interval() -> None:
    for seed in range(20):
        harness = Harness()
        rows = harness.write(opened(harness, "interval")[0], 3)
        harness.tick(200_000)
        harness.sim.crash(Random(seed))
        harness.start()
        assert harness.read_all(opened(harness, "interval")[0]) == rows, seed
        assert "corrupt_range" not in harness.kinds()


def test_directories_of_a_topic_are_synced_once_for_all_partitions() -> None:
    harness = Harness()
    partitions = opened(harness, "fsync", partitions=10)
    before = harness.sim.calls["fsync_dir"]
    for partition in partitions:
        harness.append(partition, [b"x"])
        harness.scheduler.run_until_idle()
    assert harness.sim.calls["fsync_dir"] - before == 2 + 10, "topics/, the topic, and each partition's own"


@pytest.mark.parametrize(("durability", "idle_us"), [("fsync", IDLE_CLOSE_US), ("os", IDLE_CLOSE_OS_US)])
def test_an_idle_file_is_synced_and_closed_and_opens_again(durability: str, idle_us: int) -> None:
    harness = Harness()
    [partition] = opened(harness, durability)
    rows = harness.write(partition, 2)
    harness.tick(idle_us - 1_000_000)
    assert is_open(partition)
    rows += harness.write(partition, 1, seed=2)
    harness.tick(idle_us - 1_000_000)
    assert is_open(partition), "it was used meanwhile"
    for _ in range(3):
        harness.tick()
    assert not is_open(partition)
    assert partition.is_synced(3)
    rows += harness.write(partition, 1, seed=3)
    assert is_open(partition)
    assert harness.read_all(harness.cold(partition)) == rows


def crowd(harness: Harness) -> list[FilePartition]:
    """Three "os" partitions where two files may be open: the one that was quiet longest is closed."""
    harness.log._shared.upkeep.open_files_max = 2
    partitions = [opened(harness, "os", TOPIC + number)[0] for number in range(3)]
    for partition in partitions:
        harness.write(partition, 2, seed=partition.topic_id)
        harness.scheduler.advance(1_000)
    harness.tick(1_000)
    assert [is_open(partition) for partition in partitions] == [False, True, True]
    return partitions


def test_a_file_closed_for_want_of_handles_keeps_its_mark_unsynced() -> None:
    harness = Harness()
    before = syncs(harness.sim)
    crowded = crowd(harness)
    assert syncs(harness.sim) == before
    assert crowded[0].mark is None


@pytest.mark.parametrize("rolled", [False, True])
def test_what_was_closed_without_a_sync_is_synced_before_the_mark_moves(rolled: bool) -> None:
    for seed in range(20):
        harness = Harness()
        partition = crowd(harness)[0]
        if rolled:
            partition.seal_active()
            harness.write(partition, 1, seed=9)
            harness.tick()
        else:
            harness.close()
        assert partition.mark is not None
        assert partition.mark.next_offset >= 2
        harness.sim.crash(Random(seed))
        harness.start()
        assert [row[0] for row in harness.read_all(opened(harness, "os", TOPIC)[0])][:2] == [0, 1], seed
        assert "corrupt_range" not in harness.kinds(), seed


@pytest.mark.parametrize("at_once", [True, False])
def test_what_is_served_after_a_kill_was_made_durable(at_once: bool) -> None:
    for seed in range(10):
        harness = Harness()
        harness.acks = [(0, None)] * (1 - at_once)  # which of the two ways the harness takes
        rows = harness.write(opened(harness, "os")[0], 4)
        harness.sim.kill()
        harness.start()
        assert harness.sim.calls.get("sync_all", 0) == at_once
        assert harness.read_all(opened(harness, "os")[0]) == rows
        harness.sim.crash(Random(seed))
        harness.start()
        assert harness.read_all(opened(harness, "os")[0]) == rows, seed


def test_a_look_costs_only_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()
    partitions = [opened(harness, "os", TOPIC + number)[0] for number in range(50)]
    for partition in partitions:
        harness.write(partition, 1)
    looked: list[FilePartition] = []
    idle_at = vars(FilePartition)["idle_at"].fget

    def counted(partition: FilePartition) -> int:
        looked.append(partition)
        return int(idle_at(partition))

    monkeypatch.setattr(FilePartition, "idle_at", property(counted))
    for _ in range(20):
        harness.tick(50_000)
    assert looked == []
