"""Power lost at every single disk call of a workload with rolls, checkpoints, retention and compaction.

After each cut: every acknowledged record is readable, everything readable was sent, offsets rise and are never used
twice. Sabotaged disks (a sync that does nothing) prove that the same check can fail.
"""

import contextlib
from dataclasses import dataclass, field
from random import Random

import pytest

from quintet.log.base import TopicSpec
from quintet.log.embedded.partitions.commit import SHRINK_US
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model import limits
from quintet.model.errors import StorageError
from quintet.testing.sim import SimDisk
from tests.log.support import TOPIC, Harness

SMALL_JOURNAL = 8_192  # bytes of each file: the workload goes round it several times
STEPS = 24  # enough for rolls, checkpoints, retention and compactions: `total_calls` sees to it
PLAIN = TopicSpec(TOPIC, "t", segment_bytes=4096)
TABLE = TopicSpec(TOPIC + 1, "k", segment_bytes=4096, compact=True, tombstone_us=0)
SHORT = TopicSpec(TOPIC + 2, "r", segment_bytes=4096, retention_bytes=4096)


@dataclass
class Story:
    """What was sent and what was acknowledged, by topic."""

    sent: dict[int, dict[int, tuple[bytes | None, bytes | None]]] = field(default_factory=dict)
    acked: dict[int, set[int]] = field(default_factory=dict)
    started: dict[int, int] = field(default_factory=dict)


def workload(disk: SimDisk, story: Story, rng: Random, journal: int = 0) -> None:
    late = rng.choice([0, 4_000, 1 << 20])  # nothing, a little, everything that fits
    harness = Harness(disk, journal=journal, packs=True, lends=bool(journal), late=late)  # without: test_journal.py
    specs = (PLAIN, TABLE, SHORT)
    partitions = {spec.id: harness.open(spec) for spec in specs}
    for spec in specs:
        story.sent.setdefault(spec.id, {})
        story.acked.setdefault(spec.id, set())
    for step in range(STEPS):
        for spec in specs:
            partition = partitions[spec.id]
            key = b"k%d" % rng.randrange(4) if spec.compact else None
            value = None if spec.compact and step % 7 == 6 else rng.randbytes(rng.randrange(50, 700))
            acked = story.acked[spec.id]
            try:
                offset = harness.append(partition, [value], [key])
            except StorageError:
                continue
            story.sent[spec.id][offset] = (key, value)
            mark = len(harness.acks)
            harness.scheduler.run_until_idle()
            acked.update(base for base, error in harness.acks[mark:] if error is None)
            story.started[spec.id] = partition.start
        if step % 5 == 4:
            harness.tick(2 * SHRINK_US if step == 14 else 1_000_000)  # long enough that the journal becomes short again
            if step % 10 == 9:
                partition = partitions[TABLE.id]
                assert isinstance(partition, FilePartition)
                partition.seal_active()
    harness.close()


def check(disk: SimDisk, story: Story) -> list[str]:
    """What is wrong after a restart."""
    wrong: list[str] = []
    harness = Harness(disk)
    for spec in (PLAIN, TABLE, SHORT):
        partition = harness.open(spec)
        rows = harness.read_all(partition)
        sent, acked = story.sent.get(spec.id, {}), story.acked.get(spec.id, set())
        wrong += [f"{spec.name}: phantom {r[0]}" for r in rows if sent.get(r[0]) != (r[1], r[2])]
        offsets = [row[0] for row in rows]
        if offsets != sorted(set(offsets)):
            wrong.append(f"{spec.name}: offsets {offsets}")
        kept = acked
        if spec.compact:
            latest: dict[bytes | None, int] = {}
            for offset in sorted(acked):
                latest[sent[offset][0]] = offset
            newer = {key: max(o for o in sent if sent[o][0] == key) for key in latest}
            kept = {o for key, o in latest.items() if sent[o][1] is not None and newer[key] == o}
        elif spec.retention_bytes:
            kept = {offset for offset in acked if offset >= partition.start}
            size = sum(len(sent[o][1] or b"") for o in acked if o < partition.start)
            if partition.start > story.started.get(spec.id, 0) and size == 0:
                wrong.append(f"{spec.name}: start moved to {partition.start}")
        wrong += [f"{spec.name}: acked {offset} lost" for offset in sorted(kept - set(offsets))]
        if acked and partition.end <= max(acked):
            wrong.append(f"{spec.name}: offset {partition.end} would be used again")
        base = harness.append(partition, [b"after"], [b"after"])
        harness.scheduler.run_until_idle()
        if harness.acks[-1] != (base, None):
            wrong.append(f"{spec.name}: takes no appends: {harness.acks[-1]}")
    return wrong


def cut(disk: SimDisk, at: int, seed: int, journal: int = 0) -> Story:
    story = Story()
    disk.stop_at = at
    with contextlib.suppress(StorageError):
        workload(disk, story, Random(5), journal)
    disk.crash(Random(seed))
    return story


def total_calls(journal: int = 0) -> int:
    disk = SimDisk()
    story = Story()
    workload(disk, story, Random(5), journal)
    assert check_stopped(disk, story) == []
    assert story.started[SHORT.id] > 0, "retention removed nothing"
    assert disk.calls["rename"] > 10 and disk.calls["unlink"] > 5, "few checkpoints, or no compaction"
    return disk.total_calls


def check_stopped(disk: SimDisk, story: Story) -> list[str]:
    disk.kill()
    return check(disk, story)


@pytest.mark.parametrize("journal", [0, SMALL_JOURNAL])
def test_power_lost_at_every_call(journal: int) -> None:
    total = total_calls(journal)
    assert total > 300
    for at in range(1, total + 1):
        disk = SimDisk()
        story = cut(disk, at, at, journal)
        assert check(disk, story) == [], f"cut at call {at}"


@pytest.mark.parametrize("journal", [0, SMALL_JOURNAL])
def test_power_lost_again_during_recovery(journal: int) -> None:
    total = total_calls(journal)
    for at in range(20, total, 23):
        first = SimDisk()
        story = cut(first, at, at, journal)
        image = first.snapshot()
        for again in range(1, 40, 3):
            disk = SimDisk()
            disk.restore(image)
            disk.stop_at = disk.total_calls + again
            try:
                harness = Harness(disk)
                for spec in (PLAIN, TABLE, SHORT):
                    harness.open(spec)
            except StorageError:
                pass
            disk.crash(Random(again))
            assert check(disk, story) == [], f"cut at call {at}, again at {again}"


@pytest.mark.parametrize("journal", [0, SMALL_JOURNAL])
@pytest.mark.parametrize("sabotage", ["fdatasync", "fsync_dir"])
def test_a_sync_that_does_nothing_is_caught(sabotage: str, journal: int) -> None:
    """Positive control: acknowledging before the data is durable, and names that were never made durable."""
    caught = 0
    for at in range(60, 300, 12):
        disk = SimDisk()
        setattr(disk, sabotage, lambda _: None)
        story = cut(disk, at, at, journal)
        delattr(disk, sabotage)
        try:
            caught += bool(check(disk, story))
        except StorageError:
            caught += 1
    assert caught >= 10


@pytest.mark.parametrize("journal", [0, 64 * SMALL_JOURNAL])
def test_work_that_finishes_in_any_order_is_committed_in_order(journal: int) -> None:
    """Writes, extensions, syncs and checkpoints overlap: the test finishes them in random order."""
    for seed in range(60):
        rng = Random(seed)
        harness = Harness(journal=journal, lends=seed % 2 == 1, late=seed % 3 * 4_000)
        harness.scheduler.held = True
        spec = TopicSpec(
            TOPIC, "t", durability=rng.choice(("fsync", "interval")), segment_bytes=limits.SEGMENT_BYTES_MIN
        )
        partition = harness.open(spec)
        sent: list[bytes] = []
        for _ in range(120):
            for _ in range(rng.randrange(4)):
                sent.append(rng.randbytes(rng.choice((10, 500, 5000))))
                harness.append(partition, [sent[-1]])
            harness.scheduler.turn()
            if rng.random() < 0.2:
                harness.scheduler.advance(200_000)
                harness.log.maintain(harness.scheduler.now())
            while harness.scheduler.jobs and rng.random() < 0.6:
                harness.scheduler.finish(rng.randrange(len(harness.scheduler.jobs)))
        harness.scheduler.held = False
        harness.scheduler.run_until_idle()
        assert [base for base, error in harness.acks if error is None] == list(range(len(sent)))
        assert [row[2] for row in harness.read_all(harness.cold(partition))] == sent
        harness.sim.kill()
        harness.start()
        assert [row[2] for row in harness.read_all(harness.open(spec))] == sent
        assert "corrupt_range" not in harness.kinds()
