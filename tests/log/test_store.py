"""What every store must do, over memory, the simulated disk and the real one."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.recovery import journal
from quintet.model import limits
from quintet.model.errors import DataDirError, ShuttingDown
from quintet.testing.sim import SimDisk, SimScheduler
from tests.log.checker import records
from tests.log.support import TOPIC, Harness

DURABLE = ["fsync", "interval", "os"]


@pytest.fixture(params=["memory", "sim-fsync", "sim-interval", "sim-os", "os-fsync", "os-interval", "os-os"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Harness, TopicSpec]]:
    where, _, durability = request.param.partition("-")
    harness = Harness(OsDisk(), tmp_path / "data") if where == "os" else Harness()
    yield harness, TopicSpec(TOPIC, "orders", durability=durability or "memory", segment_bytes=limits.SEGMENT_BYTES_MIN)
    harness.log.abandon()


def test_offsets_are_dense_and_acks_come_in_order(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    bases = [harness.append(partition, [b"%d" % n] * (1 + n % 3)) for n in range(50)]
    assert bases == [sum(1 + k % 3 for k in range(n)) for n in range(50)]
    assert harness.acks == []
    harness.scheduler.run_until_idle()
    assert [base for base, _ in harness.acks] == bases
    assert all(error is None for _, error in harness.acks)
    assert partition.visible == partition.end == bases[-1] + 2
    assert harness.log.unsynced_bytes == 0


def test_appends_of_one_turn_are_one_batch(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    for number in range(64):
        harness.append(partition, [b"%d" % number])
    harness.scheduler.run_until_idle()
    batches = partition.read(0, 1 << 20)
    assert batches is not None
    assert [(batch.base_offset, batch.count) for batch in batches] == [(0, 64)]


def test_an_acknowledged_batch_holds_its_offset_and_time(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    seen: list[tuple[int, int, int]] = []

    def append(batch: bytearray) -> None:
        def done(base: int, error: Exception | None) -> None:
            assert error is None
            seen.append((base, *struct.unpack_from("<Q8xq", batch, 16)))

        partition.append(batch, done)

    for number in range(12):
        append(kernel.build([b"%d" % number] * (1 + number % 3), origin=b"test:%d" % number))
        append(kernel.build([bytes(limits.MIB if number == 5 else 9)], timestamps=[7], origin=b"test:1"))
        if number == 8 and spec.durability == "memory":
            harness.log.alter_topic(TopicSpec(TOPIC, "orders"))
        if number % 4 == 3:
            harness.scheduler.run_until_idle()
            harness.scheduler.advance(1000)
    assert len(seen) == 24
    assert all(base == placed for base, placed, _ in seen)
    batches = partition.read(0, 1 << 30)
    assert batches is not None
    assert len(batches) < 24
    times = {batch.base_offset + n: batch.timestamp for batch in batches for n in range(batch.span)}
    assert [time for _, _, time in seen] == [times[base] for base, _, _ in seen]


def test_what_was_written_is_read_back(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    rows = harness.write(partition, 300, size=700)
    assert harness.read_all(partition) == rows
    for offset in (0, 1, 77, 150, 299):
        assert harness.read_all(partition, offset) == rows[offset:]
    assert partition.read(300, 100) == []
    if isinstance(partition, FilePartition):
        assert len(partition.segments) > 2
        assert harness.read_all(harness.cold(partition)) == rows
        assert harness.read_all(partition, 123) == rows[123:]


def test_different_flags_and_large_batches_stay_apart(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    partition.append(kernel.build([b"a"]), None)
    partition.append(kernel.build([b"b"], flags=1), None)
    partition.append(kernel.build([b"c" * 100_000]), None)
    partition.append(kernel.build([b"d"]), None)
    harness.scheduler.run_until_idle()
    batches = partition.read(0, 1 << 20)
    assert batches is not None
    assert [(batch.base_offset, batch.flags) for batch in batches] == [(0, 0), (1, 1), (2, 0), (3, 0)]


def test_too_many_origins_to_merge_are_kept_apart(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    for number in range(300):
        partition.append(kernel.build([b"v"], origin=b"blipmq:%d" % number), None)
    harness.scheduler.run_until_idle()
    assert partition.visible == 300
    assert len(harness.read_all(partition)) == 300


def test_watchers_hear_once_per_commit_and_time_never_falls(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    heard: list[int] = []

    def call() -> None:
        heard.append(partition.visible)

    partition.watch(call)
    for _ in range(5):
        harness.append(partition, [b"x"])
    harness.scheduler.run_until_idle()
    harness.scheduler.jump(-10_000_000)
    harness.append(partition, [b"y"])
    harness.scheduler.run_until_idle()
    partition.unwatch(call)
    harness.append(partition, [b"z"])
    harness.scheduler.run_until_idle()
    assert heard == [5, 6]
    times = [batch.timestamp for batch in partition.read(0, 1 << 20) or []]
    assert times == sorted(times)


def test_a_stopped_log_refuses(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    harness.append(partition, [b"x"])
    harness.close()
    assert harness.acks == [(0, None)]
    with pytest.raises(ShuttingDown):
        harness.append(partition, [b"y"])


def test_offset_at_is_a_lower_bound(store: tuple[Harness, TopicSpec]) -> None:
    harness, spec = store
    partition = harness.open(spec)
    times = []
    for _ in range(200):
        harness.scheduler.advance(1000)
        harness.append(partition, [b"x" * 2000])
        harness.scheduler.run_until_idle()
        times.append(harness.scheduler.now())
    for number in (0, 1, 50, 123, 199):
        found = partition.offset_at(times[number])
        assert number - limits.INDEX_EVERY_BYTES // 2000 - 2 <= found <= number
    assert partition.offset_at(times[-1] + 1) == 200


@pytest.mark.parametrize("durability", DURABLE)
@pytest.mark.parametrize("real", [False, True])
def test_a_restart_keeps_everything(durability: str, real: bool, tmp_path: Path) -> None:
    harness = Harness(OsDisk(), tmp_path / "data") if real else Harness()
    spec = TopicSpec(TOPIC, "t", durability=durability, segment_bytes=limits.SEGMENT_BYTES_MIN)  # type: ignore[arg-type]
    partition = harness.open(spec)
    rows = harness.write(partition, 150, size=900)
    for clean in (True, False, True):
        if clean:
            harness.close()
        elif real:
            harness.log.abandon()
        else:
            harness.sim.kill()
        harness.start()
        assert harness.log.clean_start or not clean
        partition = harness.open(spec)
        assert (partition.start, partition.visible) == (0, len(rows))
        assert harness.read_all(partition) == rows
        assert harness.read_all(partition, 77) == rows[77:]
        rows += harness.write(partition, 10, seed=len(rows))
        harness.tick()
    assert "corrupt_range" not in harness.kinds()
    harness.close()
    if real:
        problems: list[str] = []
        assert [(r[2], r[3], r[4]) for r in records(tmp_path / "data", problems)] == rows
        assert problems == []


def test_memory_topics_drop_the_oldest_and_count_it() -> None:
    harness = Harness()
    partition = harness.open(TopicSpec(TOPIC, "t", durability="memory", memory_bytes=10_000))
    rows = harness.write(partition, 100, size=500)
    assert partition.start > 0
    assert harness.read_all(partition) == rows[partition.start :]
    assert harness.log.stats()["dropped_memory_batches"] == partition.start
    assert harness.read_all(partition, 0) == rows[partition.start :]


def test_a_memory_topic_becomes_durable_at_its_offsets() -> None:
    harness = Harness()
    memory = harness.open(TopicSpec(TOPIC, "t", durability="memory", memory_bytes=10_000))
    rows = harness.write(memory, 100, size=500)
    heard: list[int] = []
    memory.watch(lambda: heard.append(memory.visible))
    start = memory.start
    harness.append(memory, [b"pending"])
    rows.append((100, None, b"pending"))
    harness.log.alter_topic(TopicSpec(TOPIC, "t"))
    harness.scheduler.run_until_idle()
    assert harness.acks[-1] == (100, None)
    partition = harness.open(TopicSpec(TOPIC, "t"))
    assert partition.start >= start
    start = partition.start
    rows += harness.write(memory, 5, seed=9)
    assert heard[-1] == 106
    harness.sim.crash(Random(0))
    harness.start()
    partition = harness.open(TopicSpec(TOPIC, "t"))
    assert harness.read_all(partition) == rows[start:]
    with pytest.raises(DataDirError):
        harness.log.alter_topic(TopicSpec(TOPIC, "t", durability="memory"))


def test_a_deleted_topic_leaves_no_file_and_a_number_is_remembered() -> None:
    harness = Harness()
    partition = harness.open()
    harness.write(partition, 5)
    harness.tick()
    assert harness.log.last_topic_id == TOPIC
    harness.log.delete_topic(TOPIC)
    harness.scheduler.run_until_idle()
    assert not [path for path in harness.sim.snapshot() if path.startswith("/data/topics/")]
    assert harness.log.stats()["cache_bytes"] == 0


def test_the_tail_cache_has_one_budget_for_all() -> None:
    harness = Harness()
    harness.log._shared.cache_bytes_max = 5_000
    first, second = harness.open(), harness.open(TopicSpec(17, "u"))
    kept = harness.write(first, 20, size=400)
    harness.write(second, 10, size=400)
    assert harness.log.stats()["cache_bytes"] <= 5_000
    assert first.read(0, 100) is None
    assert harness.read_all(first) == kept


def test_interval_topics_sync_by_themselves_and_idle_files_are_closed() -> None:
    harness = Harness()
    partition = harness.open(TopicSpec(TOPIC, "t", durability="interval"))
    harness.write(partition, 3)
    before = harness.sim.calls["fdatasync"]
    harness.tick(100_000)
    assert harness.sim.calls["fdatasync"] > before
    harness.tick(20_000_000)
    assert isinstance(partition, FilePartition)
    assert partition.segments[-1].handle == -1
    harness.write(partition, 3)
    harness.sim.crash(Random(4))
    harness.start()
    assert harness.open(TopicSpec(TOPIC, "t", durability="interval")).visible >= 3


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_what_a_start_after_a_kill_serves_is_durable_from_then_on(durability: str) -> None:
    harness = Harness()
    spec = TopicSpec(TOPIC, "t", durability=durability)  # type: ignore[arg-type]
    partition = harness.open(spec)
    harness.write(partition, 2)
    harness.append(partition, [b"written, not synced"])
    harness.sim.fdatasync = lambda handle: None  # type: ignore[method-assign]
    harness.scheduler.run_until_idle()
    del harness.sim.fdatasync
    harness.sim.kill()
    harness.start()
    rows = harness.read_all(harness.open(spec))
    assert len(rows) == 3
    harness.sim.crash(Random(3))
    harness.start()
    assert harness.read_all(harness.open(spec)) == rows


@pytest.mark.parametrize("chain", ["off", "durable"])
@pytest.mark.parametrize("number", [1, 2])
def test_an_older_directory_is_taken_over_and_closed_to_older_brokers(number: int, chain: str) -> None:
    """Batches may have bits now that an older broker would take for a torn tail."""
    disk = SimDisk()
    harness = Harness(disk, chain=chain)
    rows = harness.write(harness.open(), 3)
    harness.close()
    disk.damage("/data/format", b"quintet-data %d\n" % number)
    harness = Harness(disk, chain=chain)
    assert harness.read_all(harness.open()) == rows
    assert disk.read_file("/data/format") == b"quintet-data 5\n"


def test_a_data_directory_problem_is_one_clear_line_and_touches_nothing(tmp_path: Path) -> None:
    disk = SimDisk()
    harness = Harness(disk)
    with pytest.raises(DataDirError, match="another broker"):
        Harness(disk)
    harness.close()
    for text, words in ((b"quintet-data 6\n", "newer"), (b"what\n", "does not name")):
        disk.damage("/data/format", text)
        before = disk.snapshot()
        with pytest.raises(DataDirError, match=words):
            Harness(disk)
        assert disk.snapshot() == before
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(DataDirError, match="not empty"):
        Harness(OsDisk(), tmp_path)
    with pytest.raises(DataDirError, match="cannot be used"):
        Harness(OsDisk(), tmp_path / "photo.jpg" / "below")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photo.jpg"]


@pytest.mark.parametrize("durability", DURABLE)
def test_only_so_many_files_stay_open(durability: str, tmp_path: Path) -> None:
    scheduler = SimScheduler()
    log = EmbeddedLog(tmp_path / "data", OsDisk(), scheduler, lambda kind, fields: None, open_files_max=20, packs=False)
    log.recover()
    spec = TopicSpec(TOPIC, "t", partitions=60, durability=durability)  # type: ignore[arg-type]
    partitions = log.open_topic(spec)
    before = len(os.listdir("/proc/self/fd"))
    for turn in range(4):
        for partition in partitions:
            partition.append(kernel.build([b"%d" % turn], origin=b"t:t"), None)
            scheduler.advance(10)
        scheduler.run_until_idle()
        for _ in range(3):
            log.maintain(scheduler.now())
            scheduler.run_until_idle()
        assert len(os.listdir("/proc/self/fd")) - before <= 20 + len(journal.NAMES)
    for partition in partitions:
        assert [row[3] for batch in partition.read_now(0) for row in batch.rows()] == [b"0", b"1", b"2", b"3"]
    log.abandon()
