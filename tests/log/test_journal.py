"""The journal: many partitions made durable by one record, and what is left of it after every kind of accident.

Power cuts, faults and random histories through the journal are in test_crash.py, test_faults.py and test_model.py; here
are its own bytes: torn, flipped, stale, replayed twice, full, refused.
"""

import contextlib
import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.inspect import Summary, dump, verify
from quintet.log.embedded.partitions.commit import SHRINK_US
from quintet.log.embedded.partitions.partition import STAGE_EARLY_BYTES, FilePartition
from quintet.log.embedded.recovery import journal
from quintet.model.errors import DataDirError, PartitionFailed, StorageFull
from quintet.testing.sim import SimDisk, SimScheduler
from tests.log.checker import records
from tests.log.support import FOR_GOOD, PARTITION, TOPIC, Harness, Rows

SEGMENT = f"{PARTITION}/{0:020d}.seg"
JOURNAL = "/data/journal.a"
PARTITIONS = 6
BYTES = 1 << 20
BIT_STEP = 37 if os.environ.get("QUINTET_TEST_LONG") else 101  # prime to 8: each bit of a byte has its turn
SPEC = TopicSpec(TOPIC, "t", partitions=PARTITIONS)


class Many:
    """Several partitions whose appends of one turn go into one record. `sent` holds the acknowledged rows of each."""

    def __init__(self, disk: SimDisk | None = None, journal_bytes: int = BYTES) -> None:
        self.harness = Harness(disk, journal=journal_bytes)
        self.partitions = self.harness.log.open_topic(SPEC)
        self.sent: list[Rows] = [[] for _ in self.partitions]
        self.rng = Random(3)

    @property
    def sim(self) -> SimDisk:
        return self.harness.sim

    def round(self, size: int = 100) -> list[Exception | None]:
        """One append to each partition, all in one turn; returns the answers."""
        answers: list[Exception | None] = [AssertionError("no answer")] * len(self.partitions)

        def send(number: int, partition: Partition) -> None:
            value = self.rng.randbytes(size)

            def done(base: int, error: Exception | None) -> None:
                answers[number] = error
                if error is None:
                    self.sent[number].append((base, None, value))

            partition.append(kernel.build([value], origin=b"test:1"), done)

        for number, partition in enumerate(self.partitions):
            if partition.failure is None:
                send(number, partition)
        self.harness.scheduler.run_until_idle()
        return answers

    def records(self) -> int:
        return self.harness.log.stats()["journal_records"]

    def restart(self) -> None:
        self.harness.start()
        self.partitions = self.harness.log.open_topic(SPEC)

    def readable(self) -> list[Rows]:
        return [self.harness.read_all(self.harness.cold(partition)) for partition in self.partitions]


def crashed(rounds: int = 4, size: int = 100) -> tuple[dict[str, bytes | None], list[Rows], dict[str, bytes | None]]:
    """Files after a power cut that took everything unsynced, what was acknowledged, and the files as they were."""
    many = Many()
    many.round()  # makes the segments, the direct way
    many.harness.tick()
    for _ in range(rounds):
        assert many.round(size) == [None] * PARTITIONS
    assert many.records() == rounds
    before = many.sim.snapshot()
    many.sim.restore(before)
    segments = {path: data for path, data in before.items() if path.endswith(".seg") and data is not None}
    for path, data in segments.items():
        [first] = many.partitions[int(path.split("/")[4])].read(0, 1) or []
        many.sim.damage(path, data[: 512 + first.length].ljust(len(data), b"\0"))
    return many.sim.snapshot(), many.sent, before


def test_one_record_serves_all_and_is_not_needed_after_a_clean_stop() -> None:
    many = Many()
    many.round()
    many.round()  # now both files are there
    syncs = many.sim.calls["fdatasync"]
    for _ in range(5):
        assert many.round() == [None] * PARTITIONS
    assert many.sim.calls["fdatasync"] - syncs == 5
    assert many.readable() == many.sent
    many.harness.close()
    assert not [path for path in many.sim.snapshot() if "journal" in path]
    many.restart()
    assert many.readable() == many.sent
    assert many.harness.log.clean_start


def test_a_few_partitions_do_not_use_it() -> None:
    harness = Harness()
    harness.log._shared.committer.threshold = 3
    two = harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=2))
    for _ in range(5):
        for partition in two:
            harness.append(partition, [b"x"])
        harness.scheduler.run_until_idle()
    assert harness.log.stats()["journal_records"] == 0
    assert JOURNAL not in harness.sim.snapshot()


def test_what_a_power_cut_took_from_the_segments_is_put_back() -> None:
    image, sent, _ = crashed()
    disk = SimDisk()
    disk.restore(image)
    many = Many(disk)
    assert many.readable() == sent
    assert ("journal_replayed", {"entries": 4 * PARTITIONS}) in many.harness.reports
    assert set(many.harness.kinds()) == {"journal_replayed"}
    many.sent = sent
    many.round()
    disk.crash(Random(1))
    many.restart()
    assert many.readable() == many.sent


def test_a_killed_broker_replays_without_writing_anything_twice() -> None:
    _, sent, before = crashed()
    disk = SimDisk()
    disk.restore(before)
    many = Many(disk)
    assert many.readable() == sent
    assert many.harness.kinds() == []


def test_killed_at_every_call_of_a_replay() -> None:
    image, sent, _ = crashed(2)
    probe = SimDisk()
    probe.restore(image)
    start = probe.total_calls
    Harness(probe).log.open_topic(SPEC)
    for at in range(1, probe.total_calls - start + 1):
        disk = SimDisk()
        disk.restore(image)
        disk.stop_at = disk.total_calls + at
        with contextlib.suppress(DataDirError):
            Harness(disk).log.open_topic(SPEC)
        disk.crash(Random(at))
        many = Many(disk)
        assert many.readable() == sent, at
        assert "journal_conflict" not in many.harness.kinds()


@pytest.mark.parametrize("kind", ["cut", "zeros", "random"])
def test_a_tear_at_every_byte_of_the_last_record(kind: str) -> None:
    """All before it is there; of itself each partition has its batch or not; nothing else ever appears."""
    image, sent, _ = crashed(3, size=40)
    data = image[JOURNAL]
    assert data is not None
    last = data.rindex(b"QNTJRN1\0")
    length = int.from_bytes(data[last + 24 : last + 32], "little")
    disk, rng = SimDisk(), Random(5)
    for at in range(last, last + length, 3):
        torn = data[:at]
        if kind != "cut":
            torn += rng.randbytes(length) if kind == "random" else b""
            torn = torn[: len(data)].ljust(len(data), b"\0")
        disk.restore(image | {JOURNAL: torn})
        many = Many(disk)
        for rows, all_rows in zip(many.readable(), sent, strict=True):
            assert rows in (all_rows, all_rows[:-1]), at
        assert set(many.harness.kinds()) == {"journal_replayed"}
        assert many.round() == [None] * PARTITIONS


def test_flipped_bits_of_the_journal() -> None:
    """Together with a power cut: at most what the damaged record held is missing, and a record with others behind it is
    named. Without one, nothing is missing at all."""
    image, sent, before = crashed(3, size=40)
    data = image[JOURNAL]
    assert data is not None
    end = data.rindex(b"QNTJRN1\0") + 2048
    disk = SimDisk()
    for bit in range(0, end * 8, BIT_STEP):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        disk.restore(before | {JOURNAL: bytes(flipped)})
        many = Many(disk)
        assert many.readable() == sent, bit
        disk.restore(image | {JOURNAL: bytes(flipped)})
        many = Many(disk)
        for rows, all_rows in zip(many.readable(), sent, strict=True):
            assert set(rows) <= set(all_rows), bit
            if bit >= 512 * 8:
                assert len(rows) >= len(all_rows) - 1, bit
                if rows not in (all_rows, all_rows[:-1]):
                    assert {"journal_damaged", "corrupt_range"} <= set(many.harness.kinds()), bit
            elif rows != all_rows:
                assert "journal_rejected" in many.harness.kinds(), bit


def test_stale_records_of_an_earlier_life_are_not_replayed() -> None:
    data = bytearray(journal.pack_file(journal.Life(2, 77)).ljust(8192, b"\0"))
    segment_seed = 9
    batch = kernel.build([b"old"], origin=b"t:t")
    kernel.seal(batch, 0, 1, segment_seed)
    place = (TOPIC, 0, 0, segment_seed, len(batch), 512)
    for life, number in ((journal.Life(1, 77), 1), (journal.Life(2, 76), 1), (journal.Life(1, 76), 0)):
        for first in (512, 1024):
            record = b"".join(journal.pack_record(life, number, [place], [batch]))
            data[first : first + len(record)] = record
        assert list(journal.entries(bytes(data), lambda what, position: None)) == []
    record = b"".join(journal.pack_record(journal.Life(2, 77), 0, [place], [batch]))
    data[512 : 512 + len(record)] = record
    [entry] = journal.entries(bytes(data), lambda what, position: None)
    assert entry == journal.Entry(TOPIC, 0, 0, segment_seed, 512, bytes(batch))


def test_files_are_used_again_only_after_the_segments_were_synced() -> None:
    many = Many(journal_bytes=16_384)
    generations = set()
    for number in range(120):
        assert many.round() == [None] * PARTITIONS
        if number % 7 == 0:
            many.harness.tick()
        for name in journal.SYNCED:
            life = journal.parse_file(many.sim.snapshot().get(f"/data/{name}") or b"")
            if life is not None:
                generations.add(life.generation)
    assert len(generations) > 10
    assert many.records() > 60
    for seed in range(10):
        image = many.sim.snapshot()
        many.sim.crash(Random(seed))
        many.restart()
        assert many.readable() == many.sent
        many.sim.restore(image)


@pytest.mark.parametrize(
    ("operation", "code"), [("pwritev", errno.EIO), ("fdatasync", errno.EIO), ("fdatasync", errno.ENOSPC)]
)
def test_a_failed_record_fails_everybody_in_it_and_nobody_else(operation: str, code: int) -> None:
    many = Many()
    other = many.harness.open(TopicSpec(TOPIC + 1, "other"))
    many.harness.write(other, 2)
    for _ in range(3):
        assert many.round() == [None] * PARTITIONS
    nth = 1 if operation == "fdatasync" else 1 + PARTITIONS  # the segments are written first
    many.sim.fail(operation, nth, code)
    answers = many.round()
    assert all(isinstance(answer, PartitionFailed) for answer in answers)
    assert all(isinstance(partition.failure, PartitionFailed) for partition in many.partitions)
    assert "journal_failed" in many.harness.kinds()
    records = many.records()
    assert len(many.harness.write(other, 3)) == 3
    many.harness.tick(20_000_000)
    assert many.records() == records
    assert many.readable() == many.sent
    many.sim.crash(Random(7))
    many.restart()
    for rows, acked in zip(many.readable(), many.sent, strict=True):
        assert rows[: len(acked)] == acked
    assert many.round() == [None] * PARTITIONS


@pytest.mark.parametrize(("code", "kind"), [(errno.EIO, PartitionFailed), (errno.ENOSPC, StorageFull)])
def test_a_segment_that_refuses_its_chunk_refuses_for_itself_alone(code: int, kind: type[Exception]) -> None:
    for victim in range(PARTITIONS):
        many = Many()
        for _ in range(3):
            assert many.round() == [None] * PARTITIONS
        records = many.records()
        many.sim.fail("pwritev", 1 + victim, code)  # the segments are written first, one after the other
        answers = many.round()
        assert [number for number, answer in enumerate(answers) if answer is not None] == [victim]
        assert isinstance(answers[victim], kind)
        assert many.records() == records + 1
        assert many.readable() == many.sent
        many.sim.crash(Random(victim))
        many.restart()
        for rows, acked in zip(many.readable(), many.sent, strict=True):
            assert rows[: len(acked)] == acked


def test_what_gathered_behind_a_record_is_told_if_all_of_that_is_refused() -> None:
    """A disk that fails for good: nothing is under way then whose end looks at what waits, and nobody may publish any more."""
    many = Many()
    for _ in range(3):
        assert many.round() == [None] * PARTITIONS
    scheduler, half = many.harness.scheduler, PARTITIONS // 2
    scheduler.held = True
    for partition in many.partitions[:half]:
        many.harness.append(partition, [b"in the record"])
    scheduler.run_until_idle()
    for partition in many.partitions[half:]:
        many.harness.append(partition, [b"behind it"])
    scheduler.run_until_idle()
    assert len(scheduler.jobs) == 1 and not many.harness.acks
    many.sim.fail("pwritev", 1, errno.EIO, FOR_GOOD)
    scheduler.held = False
    scheduler.run_until_idle()
    assert [type(error) for _, error in many.harness.acks] == [PartitionFailed] * PARTITIONS


def test_what_is_staged_early_during_a_record_is_written_after_it() -> None:
    many = Many()
    for _ in range(3):
        assert many.round() == [None] * PARTITIONS
    scheduler = many.harness.scheduler
    scheduler.held = True
    for partition in many.partitions:
        many.harness.append(partition, [b"in the record"])
    scheduler.run_until_idle()
    assert len(scheduler.jobs) == 1
    many.harness.append(
        many.partitions[0], [bytes(STAGE_EARLY_BYTES)]
    )  # sealed at once, although the record is under way
    scheduler.run_until_idle()
    scheduler.held = False
    scheduler.run_until_idle()
    assert [error for _, error in many.harness.acks] == [None] * (PARTITIONS + 1)


def test_a_record_refused_for_want_of_space_is_void() -> None:
    for seed in range(20):
        many = Many()
        for _ in range(3):
            assert many.round() == [None] * PARTITIONS
        many.sim.fail("pwritev", 1 + PARTITIONS, errno.ENOSPC, 3)  # the segments are written first
        assert all(isinstance(answer, StorageFull) for answer in many.round())
        assert many.harness.log.unsynced_bytes == 0
        many.sim.heal()
        many.harness.tick(2_000_000)
        records = many.records()
        for _ in range(seed % 3):
            assert many.round() == [None] * PARTITIONS  # other bytes at the places the void record named
        assert many.records() == records + max(seed % 3 - 1, 0)  # the first one grows the files, the direct way
        many.sim.crash(Random(seed))
        many.restart()
        assert many.readable() == many.sent
        assert "journal_conflict" not in many.harness.kinds()


def test_a_failed_sync_of_a_segment_keeps_the_journal_for_the_next_start() -> None:
    many = Many(journal_bytes=16_384)
    many.round()
    while many.records() < 4:
        assert many.round() == [None] * PARTITIONS
    victim = many.partitions[2]
    assert isinstance(victim, FilePartition)
    many.sim.fail("fdatasync", 1, errno.EIO)
    victim.sync()
    many.harness.scheduler.run_until_idle()
    assert isinstance(victim.failure, PartitionFailed)
    for _ in range(40):
        answers = many.round()
        assert [answer for number, answer in enumerate(answers) if number != 2] == [None] * (PARTITIONS - 1)
        many.harness.tick()
    many.harness.close()
    assert JOURNAL in many.sim.snapshot()
    path = SEGMENT.replace("/0/", "/2/")
    first = victim.read_now(0)[0]  # was synced; what came behind it was not
    many.sim.damage(path, (many.sim.read_file(path) or b"")[: 512 + first.length])
    many.restart()
    assert many.readable() == many.sent


def test_a_full_disk_while_the_journal_is_in_use() -> None:
    many = Many()
    for _ in range(3):
        assert many.round() == [None] * PARTITIONS
    many.sim.capacity = many.sim.used() + 2000
    refused = 0
    for number in range(60):
        answers = many.round(3000)
        refused += sum(isinstance(answer, StorageFull) for answer in answers)
        assert all(answer is None or isinstance(answer, StorageFull | AssertionError) for answer in answers), number
    assert refused
    assert many.readable() == many.sent
    many.sim.capacity = 1 << 40
    many.harness.tick(2_000_000)
    many.harness.tick(2_000_000)
    assert many.round() == [None] * PARTITIONS
    many.sim.crash(Random(3))
    many.restart()
    assert many.readable() == many.sent


def test_no_room_for_a_journal_means_the_direct_way() -> None:
    many = Many(SimDisk(capacity=2 * BYTES))
    for _ in range(4):
        assert many.round() == [None] * PARTITIONS
    assert many.records() == 0
    assert JOURNAL not in many.sim.snapshot()


def test_a_deleted_topic_is_not_brought_back() -> None:
    many = Many(journal_bytes=16_384)
    other = many.harness.log.open_topic(TopicSpec(TOPIC + 1, "other", partitions=2))
    for _ in range(4):
        many.round()
        for partition in other:
            many.harness.append(partition, [b"x" * 50])
        many.harness.scheduler.run_until_idle()
    many.harness.log.delete_topic(TOPIC + 1)
    for _ in range(60):
        assert many.round() == [None] * PARTITIONS
        many.harness.tick()
    assert many.records() > 30
    many.sim.kill()
    many.restart()
    assert many.harness.log.topic_ids() == [TOPIC]
    assert many.readable() == many.sent


def test_verify_and_dump_see_what_only_the_journal_holds() -> None:
    image, sent, _ = crashed()
    disk = SimDisk()
    disk.restore(image)
    summary = Summary()
    findings = list(verify(disk, "/data", summary))
    assert (summary.status, summary.records) == (0, 5 * PARTITIONS)
    assert len(findings) == 4 * PARTITIONS
    assert "journal" in str(findings[0])
    dumped = [(number, (row[0], row[2], row[3])) for _, number, row in dump(disk, "/data")]
    assert dumped == [(number, row) for number, rows in enumerate(sent) for row in rows]
    assert disk.snapshot() == image
    data = bytearray(image[JOURNAL] or b"")
    data[data.index(b"QNTJRN1\0") + 30] ^= 1
    disk.restore(image | {JOURNAL: bytes(data)})
    summary = Summary()
    assert any(finding.file == JOURNAL for finding in verify(disk, "/data", summary))
    assert summary.status == 1


def test_a_callback_that_raises_costs_nobody_else_his_answer() -> None:
    many = Many()
    many.round()
    scheduler: SimScheduler = many.harness.scheduler
    answers: list[int] = []

    def angry(base: int, error: Exception | None) -> None:
        raise RuntimeError("not the log's fault")

    for number, partition in enumerate(many.partitions):
        batch = kernel.build([b"x"], origin=b"t:t")
        partition.append(batch, angry if number == 1 else lambda base, error: answers.append(base))
    with pytest.raises(RuntimeError):
        scheduler.run_until_idle()
    scheduler.run_until_idle()
    assert answers == [1] * (PARTITIONS - 1)
    assert all(partition.visible == 2 for partition in many.partitions)


def test_an_independent_reader_finds_the_same_in_the_journal(tmp_path: Path) -> None:
    image, sent, _ = crashed()
    for path, data in image.items():
        if data is None:
            (tmp_path / path.lstrip("/")).mkdir(exist_ok=True)
        else:
            (tmp_path / path.lstrip("/")).write_bytes(data)
    found = [(number, (offset, key, value)) for _, number, offset, key, value in records(tmp_path / "data")]
    assert found == [(number, row) for number, rows in enumerate(sent) for row in rows]


class LyingJournal(SimDisk):
    """Says that a record is durable when it is not."""

    def fdatasync(self, handle: int) -> None:
        if self.pread(handle, 7, 0) != b"QNTJRF1":
            super().fdatasync(handle)


@pytest.mark.parametrize("kind", [SimDisk, LyingJournal])
def test_power_cuts_lose_nothing_and_an_unsynced_journal_is_caught(kind: type[SimDisk]) -> None:
    caught = 0
    for seed in range(30):
        many = Many(kind(seed=seed))
        for _ in range(4):
            assert many.round() == [None] * PARTITIONS
        assert many.records() == 3
        many.sim.crash(Random(seed))
        many.restart()
        caught += many.readable() != many.sent
    assert caught == 0 if kind is SimDisk else caught >= 10


def length_of_files(many: Many) -> list[int]:
    return [len(many.sim.snapshot().get(f"/data/{name}") or b"") for name in journal.SYNCED]


def test_a_file_grows_with_its_records_and_the_other_is_made_late() -> None:
    many = Many(journal_bytes=1 << 18)
    committer = many.harness.log._shared.committer
    first = committer.first_bytes
    assert length_of_files(many) == [first, 0]
    while (file := committer._files[0]).position < committer.bytes // 2:
        assert many.round() == [None] * PARTITIONS
        length, other = length_of_files(many)
        assert file.position <= length == file.allocated <= file.position + 2 * journal.growth(length, first)
        assert other == (first if file.position > committer.bytes // 2 else 0)
    while committer._files[0].state == "active":
        assert many.round() == [None] * PARTITIONS
    assert length_of_files(many)[0] <= committer.bytes
    assert many.round() == [None] * PARTITIONS
    many.sim.crash(Random(1))
    many.restart()
    assert many.readable() == many.sent


def test_a_journal_that_nobody_uses_gives_its_space_back() -> None:
    many = Many(journal_bytes=1 << 18)
    committer = many.harness.log._shared.committer
    for _ in range(60):
        assert many.round() == [None] * PARTITIONS
    assert length_of_files(many)[0] > committer.first_bytes
    many.harness.tick(SHRINK_US // 2)
    assert length_of_files(many)[0] > committer.first_bytes
    for _ in range(3):
        many.harness.tick(SHRINK_US)
    assert length_of_files(many) == [committer.first_bytes, 0]
    assert committer._files[0].needed == {}
    records = many.records()
    assert many.round() == [None] * PARTITIONS
    assert many.records() == records + 1  # it is ready for the next one
    many.sim.crash(Random(2))
    many.restart()
    assert many.readable() == many.sent


@pytest.mark.parametrize("sabotaged", [False, True])
def test_no_record_is_written_where_zeros_are_being_written(sabotaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a file that does not know that it grows takes a record, and the zeros come after it."""
    many = Many(journal_bytes=1 << 18)
    file = many.harness.log._shared.committer._files[0]
    scheduler = many.harness.scheduler
    begun: list[tuple[Any, Any]] = []
    offload = scheduler.offload

    def keep_growth(work: Any, done: Any) -> None:
        growth = getattr(work, "func", None) is journal.grow
        (begun.append if growth else lambda job: offload(*job))((work, done))

    monkeypatch.setattr(scheduler, "offload", keep_growth)
    for _ in range(200):
        many.round()
        if begun:
            break
    allocated = file.allocated
    for _ in range(12):
        file.growing = not sabotaged
        many.round(900)
        assert sabotaged or file.position <= allocated
    assert sabotaged or many.harness.log._shared.committer._held
    monkeypatch.undo()
    scheduler.jobs.extend(begun)
    scheduler.run_until_idle()
    assert not many.harness.log._shared.committer._held
    assert many.round() == [None] * PARTITIONS
    many.sim.crash(Random(4))
    many.restart()
    assert (many.readable() == many.sent) != sabotaged


@pytest.mark.parametrize(("code", "goes_on"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_file_that_cannot_grow_costs_nobody_an_append(code: int, goes_on: bool) -> None:
    many = Many(journal_bytes=1 << 18)
    many.round()
    many.sim.fail("zero", 1, code)
    for _ in range(60):
        assert many.round() == [None] * PARTITIONS
    assert ("journal_failed" in many.harness.kinds()) != goes_on
    assert (many.records() > 40) == goes_on
    many.sim.crash(Random(5))
    many.restart()
    assert many.readable() == many.sent
