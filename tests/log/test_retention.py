"""Retention by age without appends: what is past its age goes, also after a restart, and no offset is used again."""

import contextlib
import errno
from random import Random

import pytest

from quintet import kernel
from quintet.log.base import Durability, Partition, TopicSpec
from quintet.log.embedded.inspect import Summary, verify
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.testing.sim import PowerLoss
from tests.log.support import DATA, PARTITION, TOPIC, Harness
from tests.log.test_chain import anchored, sound

AGE_US = 10_000_000


def spec_of(durability: Durability = "fsync") -> TopicSpec:
    return TopicSpec(TOPIC, "t", durability=durability, segment_bytes=4096, retention_us=AGE_US)


def files(harness: Harness) -> list[str]:
    return [path for path in harness.sim.snapshot() if path.startswith(PARTITION) and path.endswith(".seg")]


def ticks(harness: Harness, count: int = 5) -> None:
    for _ in range(count):
        harness.tick()


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
@pytest.mark.parametrize("restarted", ["no", "stopped", "killed"])
def test_what_is_past_its_age_goes_without_an_append(durability: Durability, restarted: str) -> None:
    spec = spec_of(durability)
    harness = Harness()
    partition = harness.open(spec)
    harness.write(partition, 10)
    if restarted != "no":
        time = harness.scheduler.time
        if restarted == "stopped":
            harness.close()
        else:
            harness.sim.kill()
        harness.start()
        harness.scheduler.time = time
        partition = harness.open(spec)
    ticks(harness, 9)
    assert partition.start == 0, "none of them is past its age"
    assert len(files(harness)) == 1
    ticks(harness)
    assert (partition.start, partition.visible) == (10, 10)
    assert len(files(harness)) == 1, "an empty one, which keeps the next offset"
    assert harness.sim.snapshot()[files(harness)[0]] is not None
    assert len(harness.sim.snapshot()[files(harness)[0]] or b"") < 1024, "nothing is prepared for what does not come"
    assert harness.read_all(partition) == []
    assert harness.write(partition, 1, seed=7)[0][0] == 10
    assert list(verify(harness.sim, str(DATA), Summary())) == []


def test_power_lost_while_the_last_segment_goes_uses_no_offset_twice() -> None:
    for at in range(1, 90):
        for seed in range(3):
            harness = Harness()
            partition = harness.open(spec_of())
            rows = harness.write(partition, 5)
            harness.sim.stop_at = harness.sim.total_calls + at
            with contextlib.suppress(PowerLoss):
                ticks(harness, 15)
            done = harness.sim.total_calls < harness.sim.stop_at
            time = harness.scheduler.time
            harness.sim.crash(Random(seed))
            harness.start()
            harness.scheduler.time = time
            partition = harness.open(spec_of())
            assert partition.visible == 5, (at, seed)
            assert harness.read_all(partition) in (rows, []), (at, seed)
            assert "corrupt_range" not in harness.kinds(), (at, seed)
            assert harness.write(partition, 1, seed=3)[0][0] == 5
        if done:
            break
    assert done, "all of it was cut through"


def test_slow_traffic_does_not_keep_old_records() -> None:
    age = 400_000_000
    harness = Harness()
    partition = harness.open(TopicSpec(TOPIC, "t", retention_us=age))
    written: list[tuple[int, int]] = []
    for number in range(30):
        harness.write(partition, 1, seed=number)
        written.append((harness.scheduler.now(), number))
        for _ in range(4):
            harness.tick(10_000_000)
    kept = [(time, number) for time, number in written if number >= partition.start]
    assert kept[0][0] > harness.scheduler.now() - 2 * age
    assert partition.start > 0


def test_the_first_offset_is_right_while_files_are_unlinked() -> None:
    harness = Harness()
    partition = harness.open(spec_of())
    rows = harness.write(partition, 50, size=500)
    assert isinstance(partition, FilePartition)
    harness.tick(AGE_US + 1)  # an empty segment is begun
    harness.scheduler.advance(1_000_000)
    harness.log.maintain(harness.scheduler.now())  # and the others go, in a thread that has not begun yet
    assert len(files(harness)) > 2
    assert partition.start == 50 == partition.visible
    harness.scheduler.run_until_idle()
    assert len(files(harness)) == 1
    assert rows[-1][0] == 49


def test_what_the_disk_does_not_let_go_of_is_there_again() -> None:
    harness = Harness()
    partition = harness.open(spec_of())
    rows = harness.write(partition, 50, size=500)
    harness.tick(AGE_US + 1)
    harness.sim.fail("unlink", 1, errno.EIO)
    harness.tick()
    assert "retention_failed" in harness.kinds()
    assert harness.read_all(harness.cold(partition)) == rows
    ticks(harness)
    assert partition.start == 50


def test_a_memory_topic_lets_go_of_its_last_records_too() -> None:
    harness = Harness()
    partition = harness.open(spec_of("memory"))
    harness.write(partition, 5)
    ticks(harness, 12)
    assert (partition.start, partition.visible) == (5, 5)
    harness.log.alter_topic(spec_of())
    ticks(harness, 2)
    harness.close()
    harness.start()
    durable: Partition = harness.open(spec_of())
    assert durable.visible == 5, "its offsets go on"
    assert harness.write(durable, 1)[0][0] == 5


def test_idle_partitions_go_few_at_a_time() -> None:
    harness = Harness()
    partitions = harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=20, retention_us=AGE_US))
    for partition in partitions:
        harness.write(partition, 1)
    harness.scheduler.advance(AGE_US + 1)
    harness.log.maintain(harness.scheduler.now())
    assert harness.log._shared.aging == 2
    harness.scheduler.run_until_idle()
    ticks(harness, 30)
    assert harness.log._shared.aging == 0
    assert [(partition.start, partition.visible) for partition in partitions] == [(1, 1)] * 20


def test_the_chain_goes_on_behind_a_segment_that_is_empty() -> None:
    harness = anchored()
    partition = harness.open(spec_of())
    harness.write(partition, 5)
    for _ in range(2):
        ticks(harness, 15)
        assert partition.start == partition.visible
        assert sound(harness.sim).rows == 0
    time = harness.scheduler.time
    harness.close()
    assert sound(harness.sim).rows == 0
    harness.start()
    harness.scheduler.time = time
    harness.write(harness.open(spec_of()), 3, seed=4)
    harness.close()
    assert sound(harness.sim).rows == 3
    assert "anchor_differs" not in harness.kinds()


@pytest.mark.parametrize("ending", ["stopped", "killed"])
def test_a_segment_sealed_right_after_a_start_keeps_its_age(ending: str) -> None:
    """Nothing was appended to it since the start, so nobody has seen its times: that does not make it old."""
    spec = spec_of()
    harness = Harness()
    partition = harness.open(spec)
    rows = harness.write(partition, 10)
    for _ in range(3):  # the mark is saved behind what is durable
        harness.tick()
    time = harness.scheduler.time
    if ending == "stopped":
        harness.close()
    else:
        harness.sim.kill()
    harness.start()
    harness.scheduler.time = time
    partition = harness.open(spec)
    batch = kernel.build([bytes(3_500)])  # does not fit behind them: it begins the next segment
    partition.append(batch, None)
    harness.scheduler.run_until_idle()
    assert len(files(harness)) == 2
    ticks(harness, 3)
    assert partition.start == 0, "what was written three seconds ago is gone"
    assert harness.read_all(partition)[: len(rows)] == rows
