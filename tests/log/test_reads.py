"""Reads in pieces: any size asked for gives the same batches, pooled buffers are never shared with a reader, rot that
appears after a read is found by the next one."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.broker.topics.reads import row_at
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.files.buffers import PIECE_BYTES, SLACK_BYTES, ReadBuffers
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.files.reader import READ_BYTES_MAX
from quintet.log.embedded.files.recent import BYTES_MAX, RecentBatches
from quintet.model import limits
from quintet.model.batch import RecordBatch, length_of
from tests.log.support import PARTITION, TOPIC, Harness


def sim(warm: bool) -> Harness:
    """On a simulated disk that has everything in memory, or nothing."""
    harness = Harness()
    harness.sim.warm = warm
    return harness


def test_a_buffer_is_used_again_only_when_nobody_looks_at_it() -> None:
    pool = ReadBuffers()
    first = pool.take(1000)
    view = memoryview(first)[10:20]
    pool.give(first)
    second = pool.take(1000)
    assert second is not first
    pool.give(second)
    assert pool.take(1000) is second
    view.release()
    assert pool.take(1000) is first
    assert len(first) == len(second)


def test_the_pool_is_bounded() -> None:
    pool = ReadBuffers()
    made = [pool.take(PIECE_BYTES + SLACK_BYTES) for _ in range(40)]
    for buffer in made:
        pool.give(buffer)
    kept = {id(pool.take(PIECE_BYTES + SLACK_BYTES)) for _ in range(40)} & {id(buffer) for buffer in made}
    assert 0 < len(kept) <= 16
    with pytest.raises(ValueError, match="more than"):
        pool.take(PIECE_BYTES + SLACK_BYTES + 1)


def test_buffers_that_nobody_takes_are_given_back() -> None:
    pool = ReadBuffers()
    buffer = pool.take(1000)
    pool.give(buffer)
    pool.release_idle()  # it was taken since the last call
    assert pool.take(1000) is buffer
    pool.give(buffer)
    pool.release_idle()
    pool.release_idle()
    assert pool.take(1000) is not buffer


@pytest.mark.parametrize("where", ["sim", "warm", "os"])
def test_any_size_asked_for_gives_the_same_batches(where: str, tmp_path: Path) -> None:
    harness = Harness(OsDisk(), tmp_path / "data") if where == "os" else sim(where == "warm")
    partition = harness.open(TopicSpec(TOPIC, "t", durability="os", segment_bytes=3 * limits.MIB))
    rng = Random(4)
    for number in range(150):
        size = 5 * limits.MIB if number == 60 else rng.choice((10, 3000, 70_000, 200_000))
        harness.append(partition, [rng.randbytes(size)])
        harness.scheduler.run_until_idle()
    harness.cold(partition)
    whole = [bytes(b.buffer) for b in harness.fetch(partition, 0, READ_BYTES_MAX)]
    assert len(whole) == 150
    for max_bytes in (1, 5000, 64 * limits.KIB, limits.MIB, 8 * limits.MIB):
        offset, found = 0, []
        while offset < partition.visible:
            batches = harness.fetch(partition, offset, max_bytes)
            assert batches[0].base_offset <= offset
            assert sum(batch.length for batch in batches[:-1]) <= max_bytes
            found += [bytes(b.buffer) for b in batches]
            offset = batches[-1].next_offset
        assert found == whole, max_bytes
    harness.log.abandon()


@pytest.mark.parametrize("warm", [False, True])
def test_batches_stay_as_they_are_while_more_is_read(warm: bool) -> None:
    harness = sim(warm)
    partition = harness.open()
    rows = harness.write(partition, 200, size=900)
    harness.cold(partition)
    held = [(harness.fetch(partition, n, 1000)[0], rows[n][2]) for n in range(200)]
    for batch, value in held:
        assert batch.rows()[0][3] == value
    with pytest.raises((TypeError, ValueError, BufferError)):
        kernel.reseal(held[0][0].buffer, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("warm", [False, True])
def test_rot_after_a_read_is_not_served_by_the_next(warm: bool) -> None:
    harness = sim(warm)
    partition = harness.open()
    rows = harness.write(partition, 20, size=900)
    assert harness.read_all(harness.cold(partition)) == rows
    path = f"{PARTITION}/{0:020d}.seg"
    data = bytearray(harness.sim.read_file(path) or b"")
    at = data.index(rows[7][2] or b"")
    data[at + 5] ^= 4
    harness.sim.damage(path, bytes(data))
    assert harness.read_all(partition, max_bytes=1 << 20) == rows[:7] + rows[8:]
    assert "corrupt_range" in harness.kinds()


def test_what_is_in_memory_is_read_without_a_thread() -> None:
    harness = sim(True)
    partition = harness.open()
    rows = harness.write(partition, 20, size=900)
    harness.cold(partition)
    harness.scheduler.held = True
    assert [row[3] for batch in harness.fetch(partition, 0, 1 << 20) for row in batch.rows()] == [r[2] for r in rows]
    assert not harness.scheduler.jobs
    harness.sim.warm = False
    partition.fetch(0, 1 << 20, lambda batches, error: None)
    assert len(harness.scheduler.jobs) == 1


def test_a_compacted_file_is_not_read_by_what_was_known_of_the_old_one() -> None:
    harness = sim(True)
    spec = TopicSpec(TOPIC, "t", segment_bytes=4096, compact=True, tombstone_us=0)
    partition = harness.open(spec)
    for number in range(40):
        harness.append(partition, [b"%04d" % number * 50], [b"key%d" % (number % 3)])
        harness.scheduler.run_until_idle()
    harness.cold(partition)
    before = harness.read_all(partition)
    harness.scheduler.held = True
    harness.scheduler.advance(2_000_000)
    harness.log.maintain(harness.scheduler.now())
    work = [job for job, _ in harness.scheduler.jobs]
    for job in work:
        job()  # the files are the new ones now, and the loop has not heard of it
    harness.scheduler.jobs.clear()
    harness.scheduler.held = False
    after = harness.read_all(partition)
    assert len(after) < len(before)
    assert set(after) <= set(before)
    assert "corrupt_range" not in harness.kinds()


# -- one record --------------------------------------------------------------------------------------------------------


def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes whose checksums are looked at from now on."""
    found: list[int] = []
    check, walk = kernel.check, kernel.walk

    def counted_check(data: bytes, start: int, seed: int) -> int:
        found.append(check(data, start, seed))
        return found[-1]

    def counted_walk(data: bytes, start: int, stop: int, seed: int, verify: bool) -> Any:
        found.extend([stop - start] if verify else [])
        return walk(data, start, stop, seed, verify)

    monkeypatch.setattr(kernel, "check", counted_check)
    monkeypatch.setattr(kernel, "walk", counted_walk)
    return found


def single(harness: Harness, partition: Partition, offset: int) -> bytes | None:
    """The value at this offset, asked for alone."""
    batches = partition.read(offset, 1)
    row = row_at(harness.fetch(partition, offset, 1) if batches is None else batches, offset)
    return None if row is None else row[3]


def test_a_record_read_alone_has_its_own_batch_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = sim(True)
    partition = harness.open()
    values = [[b"%d of %d" % (row, number) for row in range(1_000)] for number in range(20)]
    for batch in values:
        harness.append(partition, list(batch))
        harness.scheduler.run_until_idle()
    harness.cold(partition)
    found = checked(monkeypatch)
    for number in (13, 2, 19):
        del found[:]
        for row in (0, 500, 999):
            assert single(harness, partition, 1_000 * number + row) == values[number][row]
        assert len(found) == 1 and found[0] < 40_000, "one batch, and not what is around it"
    del found[:]
    harness.fetch(partition, 13_000, 1 << 20)
    assert sum(found) > 100_000, "the control: a read of many is checked whole"


def test_rot_is_found_by_who_asks_for_one_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rotten beside it is in nobody's way, and is told when it is asked for."""
    harness = sim(True)
    partition = harness.open()
    rows = harness.write(partition, 20, size=900)
    harness.cold(partition)
    path = f"{PARTITION}/{0:020d}.seg"
    data = bytearray(harness.sim.read_file(path) or b"")
    data[data.index(rows[7][2] or b"") + 5] ^= 4
    harness.sim.damage(path, bytes(data))
    assert single(harness, partition, 8) == rows[8][2] and harness.kinds() == []
    with monkeypatch.context() as sabotaged:  # control: without its check the rot is served
        sabotaged.setattr(kernel, "check", lambda data, start, seed: length_of(data, start))
        assert single(harness, partition, 7) not in (None, rows[7][2])
    harness.log._shared.read_buffers.recent = RecentBatches()
    assert single(harness, partition, 7) is None and "corrupt_range" in harness.kinds()


def test_what_was_read_alone_goes_with_its_segment() -> None:
    harness = sim(True)
    partition = harness.open(TopicSpec(TOPIC, "t", segment_bytes=limits.MIB, retention_bytes=limits.MIB))
    rows = harness.write(partition, 4, size=300 * limits.KIB)
    harness.cold(partition)
    assert single(harness, partition, 0) == rows[0][2]
    more = harness.write(partition, 8, size=300 * limits.KIB, seed=2)
    harness.cold(partition)
    for _ in range(3):
        harness.tick(60_000_000)
    assert partition.start > 0, "retention took the first segment"
    assert single(harness, partition, 0) is None
    assert single(harness, partition, partition.visible - 1) == more[-1][2]


def test_batches_that_were_read_alone_are_few() -> None:
    recent = RecentBatches()
    batch = RecordBatch(kernel.build([bytes(100_000)]))
    for number in range(1_000):
        recent.keep((f"/{number}", 0, 1), batch)
        assert recent.bytes == len(recent) * batch.length <= BYTES_MAX
    assert 0 < len(recent) < 100
    assert recent.find(("/999", 0, 1), 0) is batch
    assert recent.find(("/999", 0, 2), 0) is None, "another seed: it was compacted"
    assert recent.find(("/999", 0, 1), 1) is None and recent.find(("/0", 0, 1), 0) is None
    large = RecordBatch(kernel.build([bytes(BYTES_MAX // 2)]))
    recent.keep(("/large", 0, 1), large)
    assert recent.find(("/large", 0, 1), 0) is None
