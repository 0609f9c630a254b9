"""S7 and A8: every disk call fails once, or from then on; the disk fills up and has space again.

Never: an acknowledged record that is lost, a hang, a log that does not start. A failed sync is never tried again; no
space is refused in order and taken up again without a restart.
"""

import contextlib
import errno
import itertools
import os
from random import Random

import pytest

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model import limits
from quintet.model.errors import PartitionFailed, StorageError, StorageFull
from quintet.testing.sim import SimDisk
from tests.log.support import FOR_GOOD, TOPIC, Harness
from tests.log.test_chain import verify
from tests.log.test_crash import SMALL_JOURNAL, Story, check, workload

OPERATIONS = (
    "pwritev", "zero", "fdatasync", "truncate", "rename", "open", "unlink", "fsync_dir", "mkdir", "append_file", "pread",
    "read_file",
)  # fmt: skip
FOREVER = 1 << 30
CODES = (errno.EIO, errno.ENOSPC, errno.EROFS)
LONG = bool(os.environ.get("QUINTET_TEST_LONG"))


@pytest.mark.parametrize("journal", [0, SMALL_JOURNAL])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_call_fails_once_and_from_then_on(operation: str, journal: int) -> None:
    """Each call with one of the codes after the other; `make campaign` gives every call every code."""
    plain = SimDisk()
    workload(plain, Story(), Random(5), journal)
    count = plain.calls.get(operation, 0)
    for number, nth in enumerate(range(1, count + 1, 1 + count // 40)):
        codes = CODES if LONG else (CODES[number % len(CODES)],)
        for times, code in itertools.product((1, FOREVER), codes):
            disk, story = SimDisk(), Story()
            disk.fail(operation, nth, code, times)
            with contextlib.suppress(StorageError):
                workload(disk, story, Random(5), journal)
            disk.crash(Random(nth))
            assert check(disk, story) == [], f"{operation} number {nth} failed with {errno.errorcode[code]}"


@pytest.mark.parametrize("durability", ["fsync", "interval"])
def test_a_failed_sync_makes_the_partition_read_only_without_a_retry(durability: str) -> None:
    harness = Harness()
    partition = harness.open(TopicSpec(TOPIC, "t", durability=durability))  # type: ignore[arg-type]
    rows = harness.write(partition, 3)
    harness.tick()
    harness.sim.fail("fdatasync", 1, errno.EIO)
    harness.append(partition, [b"lost?"])
    harness.scheduler.run_until_idle()
    harness.tick()
    assert isinstance(partition.failure, PartitionFailed)
    assert ("partition_failed" in harness.kinds()) is True
    syncs = harness.sim.calls["fdatasync"]
    with pytest.raises(PartitionFailed):
        harness.append(partition, [b"refused"])
    for _ in range(5):
        harness.tick()
    if durability == "fsync":
        assert harness.sim.calls["fdatasync"] - syncs <= 1 + 5  # only checkpoints sync now
        assert harness.acks[-1][0] == -1
        assert isinstance(harness.acks[-1][1], PartitionFailed)
    assert harness.read_all(partition)[:3] == rows
    assert harness.read_all(harness.cold(partition))[:3] == rows
    other = harness.open(TopicSpec(TOPIC + 1, "other"))
    harness.write(other, 2)
    assert other.visible == 2


def test_a_full_disk_refuses_in_order_keeps_readers_and_resumes_alone() -> None:
    harness = Harness(SimDisk(capacity=400_000))
    spec = TopicSpec(TOPIC, "t", segment_bytes=limits.SEGMENT_BYTES_MIN)
    partition = harness.open(spec)
    rng = Random(1)
    kept: list[tuple[int, bytes | None, bytes | None]] = []
    for cycle in range(20):
        refused = 0
        while not refused:
            sent = []
            for size in (rng.randrange(9000), 30, 70_000 if cycle % 2 else 400):
                value = rng.randbytes(size)
                sent.append((harness.append(partition, [value]), None, value))
            mark = len(harness.acks)
            harness.scheduler.run_until_idle()
            answers = harness.acks[mark:]
            refused = sum(error is not None for _, error in answers)
            kept += sent[: len(sent) - refused]
            assert all(error is None for _, error in answers[: len(sent) - refused])
            assert all(isinstance(error, StorageFull) for _, error in answers[len(sent) - refused :])
        assert partition.end == partition.visible == kept[-1][0] + 1
        with pytest.raises(StorageFull):
            harness.append(partition, [b"small"])
        assert harness.log.unsynced_bytes == 0
        harness.tick()
        assert harness.read_all(harness.cold(partition)) == kept
        harness.sim.capacity += 150_000
        for _ in range(3):
            harness.tick()
        assert partition.failure is None, cycle
    assert "corrupt_range" not in harness.kinds()
    harness.sim.kill()
    harness.start()
    partition = harness.open(spec)
    assert harness.read_all(partition) == kept
    assert harness.kinds().count("storage_full") == harness.kinds().count("storage_resumed") == 20


@pytest.mark.parametrize("journal", [0, SMALL_JOURNAL])
def test_a_full_disk_at_every_size_leaves_a_sound_log(journal: int) -> None:
    for capacity in range(0, 260_000, 1999):
        disk, story = SimDisk(capacity=capacity), Story()
        with contextlib.suppress(StorageError):
            workload(disk, story, Random(5), journal)
        disk.kill()
        disk.capacity = 1 << 40
        assert check(disk, story) == [], capacity


def test_a_read_error_reaches_the_reader_and_harms_nobody_else() -> None:
    harness = Harness()
    partition = harness.open()
    rows = harness.write(partition, 5)
    harness.cold(partition)
    harness.sim.fail("pread", 1, errno.EIO)
    answers: list[Exception | None] = []
    partition.fetch(0, 100, lambda _, error: answers.append(error))
    harness.scheduler.run_until_idle()
    assert isinstance(answers[0], StorageError)
    assert partition.failure is None
    assert harness.read_all(partition) == rows


def test_a_checkpoint_that_cannot_be_written_is_said_and_tried_again() -> None:
    harness = Harness()
    partition = harness.open()
    harness.write(partition, 5)
    harness.sim.fail("rename", 1, errno.EIO)
    harness.tick()
    assert "checkpoint_failed" in harness.kinds()
    harness.tick()
    assert harness.log.stats()["checkpoints"] == 1
    assert isinstance(partition, FilePartition)


@pytest.mark.parametrize(("floor", "refused_below"), [(700_000, 700_000), (3_000, 3_000), (0, 0), (None, 50_000)])
def test_the_floor_is_what_was_set(monkeypatch: pytest.MonkeyPatch, floor: int | None, refused_below: int) -> None:
    """Not set, it is 5 % of this disk of 1 MB."""
    harness = Harness(SimDisk(capacity=1_000_000), disk_floor_bytes=floor)
    partition = harness.open(TopicSpec(TOPIC, "t"))

    def free(size: int) -> None:
        monkeypatch.setattr(harness.sim, "free_bytes", lambda _path: (size, 1_000_000))
        harness.tick()

    free(refused_below)
    assert harness.log.low_on_space is None
    if not refused_below:
        return
    free(refused_below - 1)
    with pytest.raises(StorageFull, match=f"the floor is {refused_below} .limits.disk_free_bytes_min.") as refused:
        harness.append(partition, [b"x"])
    enough = int(refused.value.hint.split()[-4])
    assert refused_below < enough < 1_000_000, "there is a way back"
    free(enough)
    assert harness.log.low_on_space is None


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(errno.ENOSPC, "space"), (errno.EDQUOT, "quota"), (errno.EMFILE, "LimitNOFILE"), (errno.ENFILE, "file-max")],
)
def test_a_refusal_says_what_helps(code: int, remedy: str) -> None:
    harness = Harness()
    partition = harness.open()
    harness.sim.fail("open", 1, code)
    harness.append(partition, [b"x"])
    harness.scheduler.run_until_idle()
    [(_, error)] = harness.acks
    assert isinstance(error, StorageFull)
    assert remedy in error.hint
    assert ("space" in error.hint) is (code in (errno.ENOSPC, errno.EDQUOT))
    for _ in range(3):
        harness.tick()
    harness.write(partition, 1)
    assert partition.visible == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_a_full_disk_leaves_an_empty_segment_where_it_is(nth: int) -> None:
    """A crash left it between its making and its first batch: it is no beginning of the appends that are refused, and takes the next."""
    harness = Harness()
    harness.sim.fail("pwritev", 2, errno.EIO)  # behind its header
    harness.append(harness.open(), [b"never"])
    harness.scheduler.run_until_idle()
    harness.sim.kill()
    harness.sim.heal()
    harness.journal = 64 * SMALL_JOURNAL
    harness.start()
    partition = harness.open()
    for call in (1, nth):
        harness.sim.fail("pwritev", call, errno.ENOSPC)
        harness.append(partition, [b"perhaps refused"])
        harness.scheduler.run_until_idle()
        harness.sim.heal()
        harness.tick(2_000_000)
    assert partition.failure is None
    assert isinstance(harness.acks[-2][1], StorageFull)
    base = harness.append(partition, [b"taken"])
    harness.scheduler.run_until_idle()
    assert harness.acks[-1] == (base, None)


class Refusals:
    """Full for a moment, again and again, while records, writes, syncs and what is late overlap: they end in random order."""

    def __init__(self, seed: int, late: int) -> None:
        self.rng = Random(seed)
        self.harness = Harness(journal=64 * SMALL_JOURNAL, lends=True, late=late)
        self.specs = [TopicSpec(TOPIC + number, f"t{number}", segment_bytes=1 << 16) for number in range(3)]
        self.partitions = [self.harness.open(spec) for spec in self.specs]
        self.told: dict[tuple[int, int], bytes] = {}
        self.unanswered = 0

    def append(self, number: int) -> None:
        value = self.rng.randbytes(self.rng.choice((10, 300, 3_000)))

        def done(base: int, error: Exception | None) -> None:
            self.unanswered -= 1
            if error is None:
                assert (number, base) not in self.told, "an offset was used twice"
                self.told[number, base] = value

        with contextlib.suppress(StorageError):
            self.partitions[number].append(kernel.build([value], origin=b"test:1"), done)
            self.unanswered += 1

    def turn(self) -> None:
        rng, scheduler, disk = self.rng, self.harness.scheduler, self.harness.sim
        scheduler.held = True
        for _ in range(rng.randrange(5)):
            self.append(rng.randrange(3))
        scheduler.turn()
        if rng.random() < 0.3:
            disk.fail("pwritev", rng.randint(1, 2), errno.ENOSPC)
        if rng.random() < 0.3:
            partition = rng.choice(self.partitions)
            assert isinstance(partition, FilePartition)
            partition.flush_late()
        while scheduler.jobs and rng.random() < 0.6:
            scheduler.finish(rng.randrange(len(scheduler.jobs)))
        disk.heal()
        if rng.random() < 0.3:
            scheduler.advance(1_500_000)
            self.harness.log.maintain(scheduler.now())

    def come_to_rest(self) -> None:
        self.harness.scheduler.held = False
        self.harness.scheduler.run_until_idle()
        assert not self.unanswered, "somebody waits in vain"
        self.harness.tick(2_000_000)
        assert not any(partition.failure for partition in self.partitions)

    def restart(self, power: bool) -> None:
        """After a kill, or a power cut."""
        if power:
            self.harness.sim.crash(self.rng)
        else:
            self.harness.sim.kill()
        self.harness.start()
        self.partitions = [self.harness.open(spec) for spec in self.specs]

    def lost(self) -> dict[tuple[int, int], bytes]:
        """What was told and cannot be read."""
        left = dict(self.told)
        for number, partition in enumerate(self.partitions):
            for offset, _, value in self.harness.read_all(self.harness.cold(partition)):
                if left.get((number, offset)) == value:
                    del left[number, offset]
        return left


@pytest.mark.parametrize("late", [0, 2_000, 1 << 20])
def test_refusals_amid_overlapping_work_cost_nothing_that_was_told(late: int) -> None:
    refused = 0
    for seed in range(2_000 if LONG else 40):
        story = Refusals(seed, late)
        for _ in range(90):
            story.turn()
        story.come_to_rest()
        assert story.lost() == {}, seed
        story.restart(power=seed % 2 == 1)
        assert story.lost() == {}, seed
        assert verify(story.harness.sim).broken is None, seed
        refused += story.harness.kinds().count("storage_full")
    assert refused > 40


@pytest.mark.parametrize("late", [0, 2_000, 1 << 20])
@pytest.mark.parametrize("operation", ["pwritev", "fdatasync"])
def test_a_disk_that_fails_for_good_leaves_nobody_waiting(operation: str, late: int) -> None:
    failed = 0
    for seed in range(1_000 if LONG else 40):
        story = Refusals(seed, late)
        for _ in range(story.rng.randrange(2, 40)):
            story.turn()
        scheduler, disk = story.harness.scheduler, story.harness.sim
        for number in range(12):  # at most one append each: nobody sends more before the answer
            story.append(number % 3)
            if number % 4 == 3:
                scheduler.turn()
        disk.fail(operation, story.rng.randint(1, 6), errno.EIO, FOR_GOOD)
        while scheduler.jobs:
            scheduler.finish(story.rng.randrange(len(scheduler.jobs)))
            scheduler.run_until_idle()
        scheduler.held = False
        scheduler.run_until_idle()
        assert not story.unanswered, seed
        failed += any(partition.failure for partition in story.partitions)
        disk.heal()
        story.restart(power=False)
        assert story.lost() == {}, seed
    assert failed > 20
