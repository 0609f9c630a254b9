"""Partitions in files that are lent to the kernel: a door appends, one record makes all of it durable, and faults find who they concern.

Power cuts and random orders of finished work go through it in test_crash.py; the kernel and its twin are compared in
tests/kernel/test_lent.py.
"""

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.log.base import Appended, TopicSpec
from quintet.log.embedded.backup.cut import Clocks, Snapshot, read_header
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.files.segment import HEADER_BYTES
from quintet.log.embedded.follow import Follower
from quintet.log.embedded.inspect import Summary, verify
from quintet.log.embedded.partitions.commit import Committer
from quintet.log.embedded.partitions.lending import LATE_BYTES_MAX, LATE_US_MAX
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.recovery import journal
from quintet.model.errors import PartitionFailed, StorageFull
from tests.log.support import TOPIC, Harness
from tests.log.test_chain import verify as verify_links

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

    def __init__(self, durability: Any = "fsync", late: int = LATE_BYTES_MAX, folder: Path | None = None) -> None:
        """folder: a real one, on the real disk."""
        self.spec = TopicSpec(TOPIC, "t", PARTITIONS, durability=durability)
        where: dict[str, Any] = {} if folder is None else {"disk": OsDisk(), "directory": folder}
        self.harness = Harness(journal=BYTES, lends=True, late=late, **where)
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
        assert not isinstance(held, bytes) and held[2] == [], "the kernel took all of it"
        waiter = Waiter(PARTITIONS)
        self.values = values
        self.harness.log.tails_held(held[0], held[3], waiter)
        return waiter

    def round(self) -> list[Exception | None]:
        waiter = self.produce()
        self.harness.scheduler.run_until_idle()
        for number, error in enumerate(waiter.answers):
            if error is None:
                self.sent[number].append(self.values[number])
        return waiter.answers

    def in_files(self) -> list[list[bytes | None]]:
        """What somebody finds who reads the segments and asks nobody."""
        found = []
        for number in range(PARTITIONS):
            follower = Follower(self.harness.sim, f"/data/topics/{TOPIC:08d}/{number}")
            found.append([row[3] for batch in follower.more() for row in batch.rows()])
        return found

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
    door = Door(durability, late=0).warm()
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


@pytest.mark.parametrize(("late", "segments"), [(0, PARTITIONS), (LATE_BYTES_MAX, 0)])
def test_a_record_without_space_is_taken_back_and_tried_again(late: int, segments: int) -> None:
    door = Door(late=late).warm()
    door.harness.sim.fail("pwritev", 1 + segments, errno.ENOSPC)
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


# -- what the journal has before the segment ------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_record_is_one_write_and_segments_get_it_later(durability: str) -> None:
    door = Door(durability).warm()
    before = door.in_files()
    writes = door.harness.sim.calls["pwritev"]
    for _ in range(5):
        assert door.round() == [None] * PARTITIONS
    made = durability == "os"  # its file, with the first record
    assert door.harness.sim.calls["pwritev"] - writes == 5 + made, "one for each record"
    assert door.in_files() == before
    assert [partition.visible for partition in door.partitions] == [7] * PARTITIONS
    door.harness.tick(LATE_US_MAX // 2)
    assert door.in_files() == before, "control: it is not late enough"
    writes = door.harness.sim.calls["pwritev"]
    door.harness.tick(LATE_US_MAX)
    assert door.in_files() == door.sent
    assert door.harness.sim.calls["pwritev"] - writes == PARTITIONS, "five batches each in one write"
    assert door.tails.late_bytes == 0


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_much_of_a_partition_goes_to_its_segment_with_a_record(durability: str) -> None:
    door = Door(durability, late=4_000).warm()
    for _ in range(30):
        door.round()
    assert all(0 < len(sent) - len(found) < 30 for sent, found in zip(door.sent, door.in_files(), strict=True))
    assert door.readable() == door.sent == door.in_files(), "who reads has all of it written"


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("look", ["files", "fetch", "read_now", "begin_sync", "recall", "rest", "seal_active"])
def test_who_looks_at_a_file_finds_all_that_is_visible(look: str, durability: str) -> None:
    door = Door(durability).warm()
    door.round()
    partition = door.partitions[2]
    assert isinstance(partition, FilePartition)
    assert door.in_files()[2] != door.sent[2], "control"
    if look == "files":
        assert partition.files(0, 100)[-1].next_offset == 3
    elif look == "fetch":
        partition.fetch(0, 1 << 20, lambda batches, error: None)
    elif look == "read_now":
        assert partition.read_now(0)[-1].next_offset == 3
    elif look == "begin_sync":
        assert partition.begin_sync() is not None
    elif look == "rest":
        partition.rest(in_a_hurry=True)
    else:
        getattr(partition, look)()
    assert door.in_files()[2] == door.sent[2]


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_a_kill_loses_nothing_that_only_the_journal_had(durability: str) -> None:
    door = Door(durability).warm()
    for _ in range(3):
        door.round()
    assert door.in_files() != door.sent, "control: the segments lack it"
    door.harness.sim.kill()
    door.restart()
    assert door.readable() == door.sent == door.in_files()


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_without_the_journal_a_kill_loses_it(durability: str) -> None:
    """The control of the test above."""
    door = Door(durability).warm()
    door.round()
    door.harness.sim.kill()
    for name in journal.NAMES:
        if door.harness.sim.read_file(f"/data/{name}") is not None:
            door.harness.sim.unlink(f"/data/{name}")
    door.restart()
    assert all(found == sent[:-1] for found, sent in zip(door.readable(), door.sent, strict=True))


def test_the_journal_is_used_again_only_when_segments_have_it() -> None:
    """Many rounds of a small journal: power cut at the end of each, and everything that was told is there."""
    for rounds in range(1, 40, 3):
        door = Door()
        door.harness.log._shared.committer.bytes = 8_192
        door.warm()
        for _ in range(rounds):
            assert door.round() == [None] * PARTITIONS
            door.harness.tick(50_000)
        door.harness.sim.crash(Random(rounds))
        door.restart()
        assert door.readable() == door.sent, rounds


def test_a_journal_that_does_not_ask_the_kernel_is_used_again_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the one above: nobody collects whom the records stand for."""
    monkeypatch.setattr(Committer, "collect", lambda self: None)
    with pytest.raises(AssertionError):
        test_the_journal_is_used_again_only_when_segments_have_it()


def test_who_is_in_records_is_named_when_somebody_asks() -> None:
    """Up to what is visible then, once for each file, and not any more when the topic is deleted."""
    door = Door().warm()
    committer = door.harness.log._shared.committer
    (file,) = [file for file in committer._files if file.state == "active"]
    committer.collect()
    file.needed.clear()
    for _ in range(3):
        assert door.round() == [None] * PARTITIONS
    assert file.needed == {}
    committer.collect()
    assert [(each.number, visible) for each, visible in file.needed.items()] == [(n, 5) for n in range(PARTITIONS)]
    door.round()
    committer.forget(door.partitions)
    assert file.needed == {} and door.tails.take_recorded() == []


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, StorageFull), (errno.EIO, PartitionFailed)])
def test_a_segment_that_refuses_what_is_late_fails_alone(
    code: int, kind: type[Exception], again: bool, durability: str
) -> None:
    """What was told stays, and is read: it is in the journal until the segment has it. again: it refuses at the clean stop, too."""
    door = Door(durability).warm()
    assert door.round() == [None] * PARTITIONS
    door.harness.sim.fail("pwritev", 1, code)
    victim = door.partitions[1]
    assert isinstance(victim, FilePartition)
    rows = door.harness.read_all(door.harness.cold(victim))
    assert [row[2] for row in rows] == door.sent[1], "readers go on: with what the file has, and what it does not take"
    assert [type(partition.failure) for partition in door.partitions] == [
        kind if number == 1 else type(None) for number in range(PARTITIONS)
    ]
    with pytest.raises(kind):
        victim.append(kernel.build([b"more"], origin=b"t:1"), None)
    if kind is StorageFull and not again:
        door.harness.tick(2_000_000)
        assert victim.failure is None and door.in_files()[1] == door.sent[1], "it goes on when the disk takes it"
        assert victim.append(kernel.build([b"after"], origin=b"t:1"), None) == 3
        door.sent[1].append(b"after")
        door.harness.scheduler.run_until_idle()
    if again:
        door.harness.sim.fail("pwritev", 1, code)
    door.harness.close()
    door.restart()
    assert door.readable() == door.sent


def test_what_is_under_way_keeps_its_place_when_what_is_late_is_refused() -> None:
    """A segment refuses what is late while the next record is being written. That record becomes durable: what comes behind it must
    not be put in its place, nor linked to what was before it."""
    door = Door().warm()
    assert door.round() == [None] * PARTITIONS
    scheduler, victim = door.harness.scheduler, door.partitions[1]
    assert isinstance(victim, FilePartition)
    scheduler.held = True
    waiter = door.produce()
    scheduler.run_until_idle()
    assert len(scheduler.jobs) == 1 and waiter.missing, "the record is under way"
    door.harness.sim.fail("pwritev", 1, errno.ENOSPC)
    assert (victim.flush_late(), type(victim.failure)) == (False, StorageFull)
    scheduler.held = False
    scheduler.run_until_idle()
    assert waiter.answers == [None] * PARTITIONS
    door.harness.tick(2_000_000)
    assert victim.failure is None
    for number, partition in enumerate(door.partitions):
        door.sent[number] += [door.values[number], b"behind"]
        assert partition.append(kernel.build([b"behind"], origin=b"t:1"), None) == 4
    scheduler.run_until_idle()
    assert door.readable() == door.sent
    door.harness.close()
    door.restart()
    assert door.readable() == door.sent
    assert door.in_files() == door.sent
    assert "corrupt_range" not in door.harness.kinds()
    assert verify_links(door.harness.sim).broken is None


@pytest.mark.parametrize("durability", ["fsync", "os"])
@pytest.mark.parametrize("journaled", [True, False])
def test_a_backup_has_what_only_the_journal_had(journaled: bool, durability: str, tmp_path: Path) -> None:
    """Beside the running broker. The control: where the journal cannot be read, it has not."""
    folder = tmp_path / "data"
    door = Door(durability, folder=folder).warm()
    for _ in range(3):
        assert door.round() == [None] * PARTITIONS
    if not journaled:
        for name in journal.NAMES:
            (folder / name).unlink(missing_ok=True)
    late = 10**15  # the cut is after all of it
    ends = []
    with Snapshot(folder, OsDisk(), Clocks(lambda: late, lambda: 0, lambda seconds: None)) as snapshot:
        assert snapshot.running
        for pinned in snapshot.partitions.values():
            handle = snapshot.disk.open(pinned.files[0])
            header = read_header(snapshot.disk, handle)
            assert header is not None
            ended = snapshot.end_of(pinned, 0, handle, header, HEADER_BYTES, 0, True)
            snapshot.disk.close(handle)
            ends.append((pinned.seen, ended.next_offset, ended.damaged))
    assert ends == [(5, 5, []) if journaled else (2, 2, [])] * PARTITIONS
    summary = Summary()
    found = list(verify(OsDisk(), str(folder), summary))
    assert (summary.status, summary.records) == (0, PARTITIONS * (5 if journaled else 2)), found
    if journaled:
        door.harness.close()


def test_what_is_recalled_in_flight_is_written_when_it_is_durable() -> None:
    door = Door().warm()
    door.round()
    door.harness.scheduler.held = True
    waiter = door.produce()
    door.harness.scheduler.turn()
    for partition in door.partitions[:2]:
        assert isinstance(partition, FilePartition)
        partition.recall()
    door.harness.scheduler.held = False
    door.harness.scheduler.run_until_idle()
    assert waiter.answers == [None] * PARTITIONS
    for number, value in enumerate(door.values):
        door.sent[number].append(value)
    assert door.in_files()[:2] == door.sent[:2]
    assert door.readable() == door.sent


def test_anchors_have_the_heads_of_what_is_lent() -> None:
    door = Door().warm()
    shared = door.harness.log._shared
    shared.heads_moved.clear()
    door.round()
    assert not shared.heads_moved, "control: nobody asked yet"
    assert shared.lending is not None
    shared.lending.catch_up()
    partitions = [partition for partition in door.partitions if isinstance(partition, FilePartition)]
    assert shared.heads_moved == set(partitions)
    assert [partition.links.durable.next_offset for partition in partitions] == [3] * PARTITIONS


def test_a_lent_topic_that_becomes_interval_is_synced_in_time() -> None:
    door = Door("os").warm()
    door.round()
    door.harness.log.alter_topic(TopicSpec(TOPIC, "t", PARTITIONS, durability="interval"))
    door.warm()
    for _ in range(2):
        door.round()
    door.harness.tick(200_000)
    door.harness.sim.crash(Random(1))
    door.restart()
    assert door.readable() == door.sent
