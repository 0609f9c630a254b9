"""Retention and compaction of sealed segments."""

import errno
from random import Random

from quintet.log.base import TopicSpec
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.testing.sim import SimDisk
from tests.log.support import PARTITION, TOPIC, Harness

DAY_US = 24 * 3600 * 1_000_000


def table(harness: Harness, tombstone_us: int = DAY_US) -> FilePartition:
    spec = TopicSpec(TOPIC, "k", segment_bytes=4096, compact=True, tombstone_us=tombstone_us)
    partition = harness.open(spec)
    assert isinstance(partition, FilePartition)
    return partition


def put(harness: Harness, partition: FilePartition, key: bytes | None, value: bytes | None) -> None:
    harness.append(partition, [value], [key])
    harness.scheduler.run_until_idle()


def test_the_latest_record_of_each_key_stays_at_its_offset() -> None:
    harness = Harness()
    partition = table(harness)
    rng = Random(2)
    latest: dict[bytes, tuple[int, bytes]] = {}
    for number in range(300):
        key, value = b"k%d" % rng.randrange(10), rng.randbytes(100)
        latest[key] = (number, value)
        put(harness, partition, key, value)
        if number % 50 == 0:
            harness.tick()
    put(harness, partition, None, b"no key")
    partition.seal_active()
    put(harness, partition, b"last", b"x")
    for _ in range(3):
        harness.tick()
    assert harness.log.stats()["compactions"] >= 2
    assert len(partition.segments) <= 3
    rows = harness.read_all(harness.cold(partition))
    wanted = {(offset, key, value) for key, (offset, value) in latest.items()}
    assert wanted | {(300, None, b"no key"), (301, b"last", b"x")} <= set(rows)
    assert len(rows) <= len(wanted) + 4
    for offset in range(302):
        assert harness.read_all(partition, offset) == [row for row in rows if row[0] >= offset]
    harness.close()
    harness.start()
    assert harness.read_all(table(harness)) == rows
    assert "corrupt_range" not in harness.kinds()


def test_a_start_does_not_compact_again_what_was_compacted() -> None:
    harness = Harness()
    partition = table(harness)
    for number in range(300):
        put(harness, partition, b"k%d" % (number % 100), b"v" * 100)
    partition.seal_active()
    put(harness, partition, b"k0", b"last")
    harness.tick()
    before = [(segment.base, segment.seed) for segment in partition.segments]
    assert len(before) > 2 and harness.log.stats()["compactions"] == 1
    harness.close()
    harness.start()
    partition = table(harness)
    for _ in range(3):
        harness.tick()
    assert harness.log.stats()["compactions"] == 0
    assert [(segment.base, segment.seed) for segment in partition.segments] == before
    for number in range(100):  # a quarter of what the pass left has been added since
        put(harness, partition, b"k%d" % number, b"w" * 100)
    partition.seal_active()
    put(harness, partition, b"k0", b"last")
    harness.tick()
    assert harness.log.stats()["compactions"] == 1
    assert len(harness.read_all(harness.cold(partition))) <= 102


def test_tombstones_go_when_their_time_is_over() -> None:
    harness = Harness()
    partition = table(harness, tombstone_us=5_000_000)
    put(harness, partition, b"gone", b"value")
    put(harness, partition, b"gone", None)
    put(harness, partition, b"other", b"value")
    partition.seal_active()
    put(harness, partition, b"x", b"y")
    harness.tick()
    assert [row[:2] for row in harness.read_all(harness.cold(partition))] == [(1, b"gone"), (2, b"other"), (3, b"x")]
    harness.scheduler.advance(10_000_000)
    partition.seal_active()
    put(harness, partition, b"x", b"z")
    harness.tick()
    rows = harness.read_all(harness.cold(partition))
    assert b"gone" not in [row[1] for row in rows]
    assert (2, b"other", b"value") in rows


def test_a_deleted_key_never_comes_back() -> None:
    rng = Random(11)
    for _ in range(30):
        harness = Harness()
        partition = table(harness, tombstone_us=1)
        alive: dict[bytes, bytes] = {}
        for _ in range(rng.randrange(20, 120)):
            key = b"k%d" % rng.randrange(5)
            value = None if rng.random() < 0.4 else rng.randbytes(rng.randrange(300))
            alive.pop(key, None)
            if value is not None:
                alive[key] = value
            put(harness, partition, key, value)
            if rng.random() < 0.1:
                partition.seal_active()
            if rng.random() < 0.2:
                harness.tick()
        folded: dict[bytes | None, bytes] = {}
        for _, key_read, value in harness.read_all(harness.cold(partition)):
            folded.pop(key_read, None)
            if value is not None:
                folded[key_read] = value
        assert folded == alive


def cut_off(harness: Harness) -> FilePartition:
    """A pass that merged files and could not remove those that went into others; as after a crash at that moment."""
    partition = table(harness, tombstone_us=1)
    for part in range(3):
        for number in range(3):
            put(harness, partition, b"%d-%d" % (part, number), b"v" * 250)
        partition.seal_active()
    put(harness, partition, b"x", b"y")
    harness.sim.fail("unlink", 1, errno.EIO, times=100)
    harness.tick()
    harness.sim.heal()
    assert harness.log.stats()["compactions"] == 1
    return partition


def test_a_pass_that_was_cut_off_is_gone_on_with_by_the_next_start() -> None:
    harness = Harness()
    cut_off(harness)
    harness.close()
    harness.start()
    partition = table(harness, tombstone_us=1)
    rows = harness.read_all(partition)
    assert [segment.base for segment in partition.segments] == [0, 3, 6, 9]
    for value in (b"y" * 3_000, b"z"):
        put(harness, partition, b"x", value)
        partition.seal_active()
    put(harness, partition, b"last", b"z")
    harness.tick()
    assert "compaction_failed" not in harness.kinds()
    assert [segment.base for segment in partition.segments] == [0, 6, 12]
    assert harness.read_all(harness.cold(partition)) == [*rows[:9], (11, b"x", b"z"), (12, b"last", b"z")]
    assert sum(path.endswith(".seg") for path in harness.sim.snapshot() if path.startswith(PARTITION)) == 3
    harness.close()
    harness.start()
    assert len(harness.read_all(table(harness, tombstone_us=1))) == 11
    assert "corrupt_range" not in harness.kinds()


def test_a_file_that_could_not_be_removed_brings_no_deleted_key_back() -> None:
    harness = Harness()
    partition = cut_off(harness)
    for part in range(3):
        for number in range(3):
            put(harness, partition, b"%d-%d" % (part, number), None)
    partition.seal_active()
    put(harness, partition, b"x", b"z")
    harness.sim.fail("unlink", 1, errno.EIO)
    harness.tick(10_000_000)
    assert "compaction_failed" in harness.kinds(), "no tombstone goes while there is a file it stands against"
    assert b"1-0" in [row[1] for row in harness.read_all(harness.cold(partition))]
    harness.tick(10_000_000)
    harness.close()
    harness.start()
    partition = table(harness, tombstone_us=1)
    for offset in range(20):
        assert {row[1] for row in harness.read_all(partition, offset)} <= {b"x"}


def test_a_reader_whose_file_is_compacted_gets_sound_data() -> None:
    harness = Harness()
    partition = table(harness)
    for number in range(40):
        put(harness, partition, b"k%d" % (number % 4), b"v" * 300)
    harness.cold(partition)
    answers: list[list[int]] = []
    harness.scheduler.held = True
    partition.fetch(0, 1 << 20, lambda batches, _: answers.append([b.base_offset for b in batches]))
    harness.scheduler.advance(1_000_000)
    harness.log.maintain(harness.scheduler.now())
    while len(harness.scheduler.jobs) > 1:
        harness.scheduler.finish(1)
    assert harness.log.stats()["compactions"] == 1
    harness.scheduler.finish(0)
    assert answers[0] == sorted(answers[0])
    assert answers[0]
    assert "corrupt_range" not in harness.kinds()


def test_a_damaged_segment_is_not_compacted() -> None:
    harness = Harness()
    partition = table(harness)
    for number in range(40):
        put(harness, partition, b"k%d" % (number % 4), b"v" * 300)
    path = partition.segments[0].path
    disk = harness.sim
    data = bytearray(disk.snapshot()[path] or b"")
    data[900] ^= 1
    disk.damage(path, bytes(data))
    harness.tick()
    assert disk.snapshot()[path] == bytes(data)
    rows = harness.read_all(harness.cold(partition))
    assert [fields["file"] for kind, fields in harness.reports if kind == "corrupt_range"] == [
        path.removeprefix("/data/")
    ]
    assert rows[-1][0] == 39
    line = disk.snapshot()["/data/quarantine.jsonl"]
    assert line is not None
    assert line.count(b"\n") == 1
    harness.close()
    harness.start()
    harness.reports.clear()
    harness.read_all(table(harness))
    assert "corrupt_range" not in harness.kinds()  # named once, in this life and the one before


def test_retention_by_size_and_by_time() -> None:
    for spec in (
        TopicSpec(TOPIC, "s", segment_bytes=4096, retention_bytes=10_000),
        TopicSpec(TOPIC, "t", segment_bytes=4096, retention_us=30_000_000),
    ):
        harness = Harness(SimDisk())
        partition = harness.open(spec)
        rows = harness.write(partition, 50, size=500)
        harness.scheduler.advance(20_000_000)
        rows += [(50 + n, None, v) for n, (_, _, v) in enumerate(harness.write(partition, 50, size=500, seed=9))]
        harness.tick(15_000_000)
        assert 30 < partition.start <= 92
        assert harness.read_all(harness.cold(partition)) == rows[partition.start :]
        assert harness.read_all(partition, 0) == rows[partition.start :]
        start = partition.start
        harness.sim.crash(Random(1))
        harness.start()
        partition = harness.open(spec)
        assert partition.start == start
        assert harness.read_all(partition) == rows[start:]


def test_an_idle_topic_lets_go_of_old_records_too() -> None:
    harness = Harness()
    partition = harness.open(TopicSpec(TOPIC, "t", retention_us=10_000_000))
    harness.write(partition, 5)
    harness.tick(11_000_000)
    harness.write(partition, 1)
    harness.tick()
    assert partition.start == 5
    assert [path for path in harness.sim.snapshot() if path.startswith(PARTITION) and "0000.seg" in path] == []
