"""The journal that is not synced: what `os` and `interval` topics were told survives the end of the process, at any call.

What both journals have in common is in test_lending.py; here is what a kill, a power cut and a disk that refuses mean to this one.
"""

import errno
from random import Random

import pytest

from quintet.log.base import TopicSpec
from quintet.log.embedded.partitions.lending import LATE_BYTES_MAX
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.unsynced import RETRY_US, UNUSED_US
from quintet.log.embedded.recovery import journal
from quintet.testing.sim import PowerLoss
from tests.log.support import TOPIC
from tests.log.test_lending import PARTITIONS, Door

FIRST, SECOND = (f"/data/{name}" for name in journal.UNSYNCED)


def short_lives(door: Door) -> None:
    """Files that are left after a few records."""
    door.harness.log._unsynced_journal.life_bytes = 4_096


def told(door: Door, rounds: int) -> bool:
    """Everybody was told of everything, in so many rounds. False: the process ended before."""
    for _ in range(rounds):
        if not all(isinstance(partition, FilePartition) and partition.is_lent for partition in door.partitions):
            return False  # what is under way failed
        waiter = door.produce()
        try:
            door.harness.scheduler.run_until_idle()
        except PowerLoss:
            return False
        if not waiter.told or waiter.alone:
            return False
        for number in range(PARTITIONS):
            door.sent[number].append(door.values[number])
        try:
            door.harness.tick(100_000)
        except PowerLoss:
            return False
    return True


@pytest.mark.parametrize("late", [LATE_BYTES_MAX, 2_000])  # with little, segments get some of it at once
@pytest.mark.parametrize("durability", ["os", "interval"])
def test_what_was_told_is_there_after_a_kill_at_any_call(durability: str, late: int) -> None:
    probe = Door(durability, late).warm()
    short_lives(probe)
    first = probe.harness.sim.total_calls
    assert told(probe, 24)
    assert 12 <= probe.harness.log._unsynced_journal.records <= 24
    for at in range(first + 1, probe.harness.sim.total_calls + 1):
        door = Door(durability, late).warm()
        short_lives(door)
        door.harness.sim.stop_at = at
        told(door, 24)
        door.harness.sim.stop_at = None
        door.harness.sim.kill()
        door.restart()
        found = door.readable()
        assert all(rows[: len(sent)] == sent for rows, sent in zip(found, door.sent, strict=True)), f"killed at {at}"
        assert not {"journal_damaged", "journal_conflict", "corrupt_range"} & set(door.harness.kinds())


def test_a_file_begun_before_segments_have_it_loses_what_was_told() -> None:
    """The control: nothing is flushed when a file is left."""
    lost = 0
    for rounds in range(8, 20):
        door = Door("os").warm()
        short_lives(door)
        door.harness.log._unsynced_journal._flush = lambda before, most: True
        for _ in range(rounds):
            assert door.round() == [None] * PARTITIONS
        door.harness.sim.kill()
        door.restart()
        lost += door.readable() != door.sent
    assert lost


def test_files_are_used_in_turn_and_segments_have_what_they_had() -> None:
    door = Door("os").warm()
    short_lives(door)
    generations = set()
    for _ in range(60):
        assert door.round() == [None] * PARTITIONS
        for path in (FIRST, SECOND):
            life = journal.parse_file(door.harness.sim.read_file(path) or b"")
            generations |= set() if life is None else {life.generation}
    assert len(generations) > 5
    door.harness.sim.kill()
    door.restart()
    assert door.readable() == door.sent


def test_a_power_cut_tears_it_and_that_is_no_damage() -> None:
    """Any sector may be gone. What is found was sent, in its order, and the start goes on."""
    seen = set()
    for seed in range(60):
        door = Door("os").warm()
        for partition in door.partitions:  # what is synced is the least that is found
            assert isinstance(partition, FilePartition)
            partition.recall()
            partition.sync()
        door.harness.scheduler.run_until_idle()
        door.warm()
        for _ in range(6):
            door.round()
        door.harness.sim.crash(Random(seed))
        door.restart()
        assert not {"journal_damaged", "journal_rejected", "journal_conflict", "corrupt_range"} & set(
            door.harness.kinds()
        )
        for rows, sent in zip(door.readable(), door.sent, strict=True):
            assert rows == sent[: len(rows)] and len(rows) >= 2
            seen.add(len(rows))
    assert len(seen) > 1, "control: some of it was lost, some not"


def test_nothing_is_put_behind_a_hole() -> None:
    door = Door("os").warm()
    for _ in range(3):
        door.round()
    partition = door.partitions[0]
    assert isinstance(partition, FilePartition)
    partition.recall()  # the segment has three more; the journal has them, too
    door.harness.sim.kill()
    path = f"/data/topics/{TOPIC:08d}/0/{0:020d}.seg"
    whole = door.harness.sim.read_file(path)
    assert whole is not None
    kept = whole.index(b"first") + 2  # a power cut took all but part of the first batch
    door.harness.sim.damage(path, whole[:kept] + bytes(len(whole) - kept))
    door.restart()
    assert door.readable() == [[], *door.sent[1:]]
    assert "corrupt_range" not in door.harness.kinds()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_record_that_is_refused_goes_to_the_segments(code: int) -> None:
    door = Door("os").warm()
    for _ in range(2):
        door.round()
    door.harness.sim.fail("pwritev", 1, code)
    assert door.round() == [None] * PARTITIONS
    assert door.in_files() == door.sent
    assert "journal_not_made" in door.harness.kinds()
    records = door.harness.log._unsynced_journal.records
    door.warm()
    assert door.round() == [None] * PARTITIONS
    assert door.harness.log._unsynced_journal.records == records, "not tried again at once"
    door.harness.tick(RETRY_US)
    door.warm()
    assert door.round() == [None] * PARTITIONS
    assert door.harness.log._unsynced_journal.records > records
    door.harness.sim.kill()
    door.restart()
    assert door.readable() == door.sent


def test_a_segment_that_refuses_too_fails_its_partition_alone() -> None:
    door = Door("os").warm()
    door.harness.sim.fail("pwritev", 1, errno.ENOSPC, times=2)  # the record, and the first segment
    answers = door.round()
    assert [type(answer).__name__ for answer in answers] == ["StorageFull", *["NoneType"] * (PARTITIONS - 1)]
    assert door.readable() == door.sent
    door.harness.sim.kill()
    door.restart()
    assert door.readable() == door.sent


def test_few_partitions_write_their_segments() -> None:
    door = Door("os").warm()
    records = door.harness.log._unsynced_journal.records
    door.harness.append(door.partitions[0], [b"alone"])
    door.harness.scheduler.run_until_idle()
    door.sent[0].append(b"alone")
    assert door.harness.log._unsynced_journal.records == records
    assert door.in_files() == door.sent


def test_it_is_gone_after_a_clean_stop_and_when_nobody_used_it() -> None:
    door = Door("os").warm()
    door.round()
    assert door.harness.sim.read_file(FIRST if door.harness.sim.read_file(FIRST) else SECOND)
    door.harness.tick(UNUSED_US)
    assert (door.harness.sim.read_file(FIRST), door.harness.sim.read_file(SECOND)) == (None, None)
    door.warm()
    assert door.round() == [None] * PARTITIONS
    door.harness.close()
    assert (door.harness.sim.read_file(FIRST), door.harness.sim.read_file(SECOND)) == (None, None)
    door.restart()
    assert door.readable() == door.sent


def test_interval_is_synced_in_time_with_all_that_was_late() -> None:
    door = Door("interval").warm()
    assert door.harness.log.open_topic(TopicSpec(TOPIC, "t", PARTITIONS, durability="interval"))
    for _ in range(5):
        door.round()
    door.harness.tick(200_000)
    door.harness.sim.crash(Random(3))
    door.restart()
    assert door.readable() == door.sent


def test_what_segments_got_between_two_records_is_no_hole() -> None:
    door = Door("os").warm()
    lending = door.harness.log._shared.lending
    assert lending is not None
    for late in (LATE_BYTES_MAX, 0, LATE_BYTES_MAX):
        lending.late_bytes_max = late
        assert door.round() == [None] * PARTITIONS
    assert door.in_files() != door.sent, "control: the last one is in the journal only"
    door.harness.sim.kill()
    door.restart()
    assert door.readable() == door.sent
