"""Partitions in files that are lent to the kernel: a door appends, one record makes all of it durable, and faults find who they concern.

Power cuts and random orders of finished work go through it in test_crash.py; the kernel and its twin are compared in
tests/kernel/test_lent.py.
"""

import errno
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.log.base import Appended, TopicSpec
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.errors import PartitionFailed, StorageFull
from tests.log.support import TOPIC, Harness

PARTITIONS = 4
BYTES = 1 << 20
FRAME_BYTES_MAX = 1 << 20


class Waiter:
    """Who appended a run: what became of each group."""

    def __init__(self, groups: int) -> None:
        self.told = 0
        self.alone: dict[int, Exception | None] = {}
        self.missing = 1
        self.groups = groups

    def done(self) -> None:
        self.told += 1
        self.missing -= 1

    def waiter(self, number: int) -> Appended:
        self.missing += 1

        def told(base: int, error: Exception | None) -> None:
            self.missing -= 1
            self.alone[number] = error

        return told

    @property
    def answers(self) -> list[Exception | None]:
        assert self.missing == 0, "somebody waits for ever"
        return [self.alone.get(number) for number in range(self.groups)]


class Door:
    """Appends one record to each partition in one call of the kernel, as the FlyMQ door does."""

    def __init__(self, durability: Any = "fsync") -> None:
        self.spec = TopicSpec(TOPIC, "t", PARTITIONS, durability=durability)
        self.harness = Harness(journal=BYTES, lends=True)
        self.sent: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.rng = Random(7)
        self.open()

    def open(self) -> None:
        self.partitions = self.harness.log.open_topic(self.spec)
        slots = [partition.loan for partition in self.partitions]
        self.routes: kernel.Routes[str] = kernel.Routes()
        self.routes.add(b"t", self.tails.add_topic([slot for slot in slots if slot is not None], True), "t", True)

    @property
    def tails(self) -> Any:
        return self.harness.log.tails

    def warm(self) -> "Door":
        """The first batches make the segments, by way of Python; then everything is lent."""
        for _ in range(2):
            for number, partition in enumerate(self.partitions):
                self.sent[number].append(b"first")
                partition.append(kernel.build([b"first"], origin=b"t:1"), None)
            self.harness.scheduler.run_until_idle()
        assert all(isinstance(each, FilePartition) and each.is_lent for each in self.partitions)
        return self

    def produce(self) -> Waiter:
        values = [self.rng.randbytes(100) for _ in range(PARTITIONS)]
        data = b"".join(kernel.fly_produce(b"t", None, [value], number, 0, 0, 1) for number, value in enumerate(values))
        said = kernel.fly_append(
            self.tails, self.routes, data, 0, FRAME_BYTES_MAX, {b"t": PARTITIONS}, b"flymq:a", 1_000_000, 1
        )
        held = said[0]
        assert not isinstance(held, bytes) and held[3] == [], "the kernel took all of it"
        waiter = Waiter(PARTITIONS)
        self.values = values
        self.harness.log.tails_held(held[0], held[4], waiter)
        return waiter

    def round(self) -> list[Exception | None]:
        waiter = self.produce()
        self.harness.scheduler.run_until_idle()
        for number, error in enumerate(waiter.answers):
            if error is None:
                self.sent[number].append(self.values[number])
        return waiter.answers

    def readable(self) -> list[list[bytes | None]]:
        rows = [self.harness.read_all(self.harness.cold(partition)) for partition in self.partitions]
        return [[value for _, _, value in each] for each in rows]

    def restart(self) -> None:
        self.harness.start()
        self.open()


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_one_call_appends_to_all_and_one_sync_serves_them(durability: str) -> None:
    door = Door(durability).warm()
    syncs = door.harness.sim.calls["fdatasync"]
    seen: list[int] = []
    door.partitions[1].watch(lambda: seen.append(door.partitions[1].visible))
    for _ in range(5):
        assert door.round() == [None] * PARTITIONS
    assert seen == [3, 4, 5, 6, 7], "who watches is called for each, when it is visible"
    assert door.harness.sim.calls["fdatasync"] - syncs == (5 if durability == "fsync" else 0)
    found = [partition.read(2, 1 << 20) for partition in door.partitions]
    assert all(found), "what is newest is in memory"
    assert door.readable() == door.sent
    assert door.harness.log.unsynced_bytes == 0
    door.harness.close()
    door.restart()
    assert door.readable() == door.sent


def test_what_was_told_is_there_after_a_power_cut_at_any_call() -> None:
    probe = Door().warm()
    first = probe.harness.sim.total_calls
    for _ in range(3):
        probe.round()
    for at in range(first + 1, probe.harness.sim.total_calls + 1):
        door = Door().warm()
        door.harness.sim.stop_at = at
        for _ in range(3):
            waiter = door.produce()
            door.harness.scheduler.run_until_idle()
            if not waiter.told or waiter.alone:
                break  # the power is gone
            for number in range(PARTITIONS):
                door.sent[number].append(door.values[number])
        door.harness.sim.crash(Random(at))
        door.restart()
        found = door.readable()
        assert all(rows[: len(sent)] == sent for rows, sent in zip(found, door.sent, strict=True)), f"cut at call {at}"


def test_a_sync_that_does_nothing_loses_what_was_told() -> None:
    """The control of the test above."""
    lost = 0
    for seed in range(10):
        door = Door().warm()
        door.harness.sim.fdatasync = lambda handle: None  # type: ignore[method-assign]
        assert door.round() == [None] * PARTITIONS
        del door.harness.sim.fdatasync
        door.harness.sim.crash(Random(seed))
        door.restart()
        lost += door.readable() != door.sent
    assert lost


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("victim", [0, PARTITIONS - 1])
@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, StorageFull), (errno.EIO, PartitionFailed)])
def test_a_segment_that_refuses_fails_its_partition_alone(
    victim: int, code: int, kind: type[Exception], durability: str
) -> None:
    door = Door(durability).warm()
    door.harness.sim.fail("pwritev", 1 + victim, code)  # the segments are written first, one after the other
    answers = door.round()
    assert [type(answer) for answer in answers] == [
        kind if number == victim else type(None) for number in range(PARTITIONS)
    ]
    assert door.readable() == door.sent
    if kind is StorageFull:
        door.harness.tick(2_000_000)
        last = door.partitions[victim].append(kernel.build([b"after"], origin=b"t:1"), None)
        door.harness.scheduler.run_until_idle()
        assert last == 2, "its offset was given back"
        door.sent[victim].append(b"after")
    door.harness.sim.kill()
    door.restart()
    assert door.readable() == door.sent


def test_a_failed_sync_of_the_record_fails_everybody_in_it() -> None:
    door = Door().warm()
    syncs = door.harness.sim.calls["fdatasync"]
    door.harness.sim.fail("fdatasync", 1, errno.EIO)
    assert [type(answer) for answer in door.round()] == [PartitionFailed] * PARTITIONS
    assert door.harness.sim.calls["fdatasync"] == syncs + 1, "it was tried again"
    assert all(partition.failure is not None for partition in door.partitions)
    assert [partition.visible for partition in door.partitions] == [2] * PARTITIONS


def test_a_record_without_space_is_taken_back_and_tried_again() -> None:
    door = Door().warm()
    door.harness.sim.fail("pwritev", 1 + PARTITIONS, errno.ENOSPC)
    assert [type(answer) for answer in door.round()] == [StorageFull] * PARTITIONS
    door.harness.tick(2_000_000)
    for number, partition in enumerate(door.partitions):
        door.sent[number].append(b"after")
        assert partition.append(kernel.build([b"after"], origin=b"t:1"), None) == 2
    door.harness.scheduler.run_until_idle()
    assert door.readable() == door.sent


def test_what_python_appends_meanwhile_keeps_its_place() -> None:
    """More than the kernel takes, while a record is being written: the partition is recalled and goes on by itself."""
    door = Door().warm()
    door.harness.scheduler.held = True
    waiter = door.produce()
    door.harness.scheduler.turn()
    large = bytes(100_000)
    base = door.partitions[0].append(kernel.build([large], origin=b"t:1"), None)
    assert base == 3 and door.partitions[0].end == 4
    door.harness.scheduler.held = False
    door.harness.scheduler.run_until_idle()
    assert waiter.answers == [None] * PARTITIONS
    for number, value in enumerate(door.values):
        door.sent[number].append(value)
    door.sent[0].append(large)
    assert door.readable() == door.sent


def test_who_waits_is_told_although_all_was_recalled() -> None:
    """Below the threshold of the journal: nobody seals what was recalled, and each goes its own way."""
    door = Door().warm()
    door.harness.log._shared.committer.threshold = 100
    waiter = door.produce()
    for partition in door.partitions:
        assert isinstance(partition, FilePartition)
        partition.recall()
    door.harness.scheduler.run_until_idle()
    assert waiter.answers == [None] * PARTITIONS
    assert [partition.visible for partition in door.partitions] == [3] * PARTITIONS


def test_low_on_space_the_kernel_takes_nothing() -> None:
    door = Door().warm()
    shared = door.harness.log._shared
    shared.low = StorageFull("full")
    door.harness.log._bound_lending()
    handle = door.tails.add_topic([partition.loan for partition in door.partitions], True)
    door.routes.add(b"t", handle, "t", True)
    data = kernel.fly_produce(b"t", None, [b"x"], 0, 0, 0, 1)
    args = (door.routes, data, 0, FRAME_BYTES_MAX, {b"t": PARTITIONS}, b"flymq:a", 1_000_000, 1)
    answers, items, *_ = kernel.fly_append(door.tails, *args)
    assert (answers, len(items)) == (b"", 1)
    shared.low = None
    door.harness.log._bound_lending()
    answers, items, *_ = kernel.fly_append(door.tails, *args)
    assert answers and not items, "control"
