"""Ranges read straight out of the segment files of a real log, whatever the broker did to them meanwhile."""

import os
import shutil
import struct
from pathlib import Path
from random import Random

import pytest

from quintet import kernel
from quintet.log import mapped
from quintet.log.base import SegmentFile, TopicSpec
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.errors import CorruptData, DataDirError, DataLost
from tests.log.support import TOPIC, Harness

ALL = 63
ROWS = 1000


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(OsDisk(), tmp_path)


def opened(
    harness: Harness, segment_bytes: int = 4096, compact: bool = False, retention_bytes: int = 0
) -> FilePartition:
    spec = TopicSpec(TOPIC, "t", segment_bytes=segment_bytes, compact=compact, retention_bytes=retention_bytes)
    partition = harness.open(spec)
    assert isinstance(partition, FilePartition)
    return partition


def read(
    files: list[SegmentFile], first: int, last: int, rows_max: int = ROWS, fail: bool = True, topic: int = TOPIC
) -> list[tuple[int, bytes | None]]:
    """(offset, value) of what is read."""
    found: list[tuple[int, bytes | None]] = []
    for part in mapped.read(files, topic, 0, first, last, columns=ALL, rows_max=rows_max, fail_on_loss=fail):
        b = part.buffers
        assert part.count > 0
        assert b[0] is not None and b[3] is not None and b[4] is not None
        ends = struct.unpack(f"<{part.count + 1}i", b[3])
        nulls = b[2]
        for i, offset in enumerate(struct.unpack(f"<{part.count}q", b[0])):
            there = nulls is None or nulls[i // 8] >> (i % 8) & 1
            found.append((offset, b[4][ends[i] : ends[i + 1]] if there else None))
    return found


def written(harness: Harness, partition: FilePartition, count: int) -> list[tuple[int, bytes | None]]:
    return [(offset, value) for offset, _, value in harness.write(partition, count, seed=partition.end + 1)]


def flip(file: SegmentFile, position: int) -> None:
    with open(file.path, "r+b") as handle:
        handle.seek(position)
        byte = handle.read(1)[0]
        handle.seek(position)
        handle.write(bytes([byte ^ 1]))


def batch_at(file: SegmentFile, offset: int) -> tuple[int, int]:
    """(position, length) of the one-record batch with this offset."""
    data = Path(file.path).read_bytes()
    position = 512
    while struct.unpack_from("<Q", data, position + 16)[0] != offset:
        position += struct.unpack_from("<I", data, position + 8)[0]
    return position, struct.unpack_from("<I", data, position + 8)[0]


def test_any_range_across_segments(harness: Harness) -> None:
    partition = opened(harness)
    rows = written(harness, partition, 100)
    assert len(partition.segments) > 4
    for first, last in ((0, 100), (0, 1), (99, 100), (37, 38), (13, 77), (50, 50), (0, 0)):
        files = partition.files(first, last)
        assert read(files, first, last) == rows[first:last]
        assert all(file.base < last and file.next_offset > first for file in files)
    assert read(partition.files(0, 100), 13, 77, rows_max=1) == rows[13:77]
    assert partition.files(100, 200) == []


def test_the_first_file_is_entered_near_the_range(harness: Harness) -> None:
    partition = opened(harness, segment_bytes=1 << 22)
    for _ in range(6):
        harness.append(partition, [bytes(90_000)])
        harness.scheduler.run_until_idle()
    [file] = partition.files(3, 5)
    assert file.position > 180_000
    flip(file, 512)  # what comes before is not even looked at
    assert [offset for offset, _ in read([file], 3, 5)] == [3, 4]
    with pytest.raises(CorruptData):
        read([file], 0, 5)


def test_batches_longer_than_the_window(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "WINDOW_BYTES", 4096)
    monkeypatch.setattr(mapped, "WINDOW_BYTES_MIN", 4096)
    partition = opened(harness, segment_bytes=1 << 22)
    sizes = [10, 90_000, 5_000, 10, 20_000, 300_000, 1]
    for number, size in enumerate(sizes):
        harness.append(partition, [bytes([number]) * size])
        harness.scheduler.run_until_idle()
    files = partition.files(0, len(sizes))
    for first in range(len(sizes)):
        found = read([files[0]._replace(position=512)], first, len(sizes))
        assert found == [(n, bytes([n]) * size) for n, size in enumerate(sizes)][first:]


@pytest.mark.parametrize("said", ["cut short", "the disk cannot read"])
def test_pages_that_cannot_be_read_are_an_error_and_no_signal(
    said: str, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is cut while it is mapped has pages that cannot be given: touching one would be a SIGBUS. With a bad disk
    its length is what it was."""
    monkeypatch.setattr(mapped, "WINDOW_BYTES", 4096)
    monkeypatch.setattr(mapped, "WINDOW_BYTES_MIN", 4096)
    partition = opened(harness, segment_bytes=1 << 22)
    for _ in range(20):
        harness.append(partition, [bytes(10_000)])
        harness.scheduler.run_until_idle()
    files = partition.files(0, 20)
    found = mapped.read(files, TOPIC, 0, 0, 20, columns=ALL, rows_max=1)
    assert next(found).count == 1
    before = os.stat(files[0].path)
    os.truncate(files[0].path, 40_000)
    if said == "the disk cannot read":
        monkeypatch.setattr(os, "fstat", lambda _: before)
    with pytest.raises(CorruptData, match=said):
        list(found)


def test_the_end_of_a_file_is_cut_off_while_it_is_read(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the broker does with the room it had set aside, once a segment is full."""
    monkeypatch.setattr(mapped, "WINDOW_BYTES", 4096)
    monkeypatch.setattr(mapped, "WINDOW_BYTES_MIN", 4096)
    partition = opened(harness, segment_bytes=1 << 20)
    expected = written(harness, partition, 200)
    [file] = partition.files(0, partition.visible)
    end = sum(batch_at(file, 199))
    os.truncate(file.path, end + (1 << 20))
    found = mapped.read([file], TOPIC, 0, 0, 200, columns=ALL, rows_max=10)
    count = next(found).count
    os.truncate(file.path, end)
    assert count + sum(part.count for part in found) == len(expected)


def test_a_wrong_position_does_not_matter(harness: Harness) -> None:
    partition = opened(harness, segment_bytes=1 << 20)
    rows = written(harness, partition, 30)
    [file] = partition.files(0, 30)
    behind, _ = batch_at(file, 20)
    for position in (behind, 0, 520, 1 << 19, 1 << 40):
        assert read([file._replace(position=position)], 5, 30) == rows[5:30]


def test_after_a_restart_the_index_file_leads(harness: Harness) -> None:
    partition = opened(harness, segment_bytes=400_000)
    for _ in range(12):
        harness.append(partition, [bytes(60_000)])
        harness.scheduler.run_until_idle()
    assert len(partition.segments) >= 2
    harness.fetch(harness.cold(partition), 0, 1 << 20)
    harness.close()
    harness.start()
    partition = opened(harness, segment_bytes=400_000)
    harness.fetch(harness.cold(partition), 0, 1 << 20)  # makes the index file if there is none
    [first, *_] = partition.files(0, 1)
    [file] = partition.files(4, 5)
    flip(first, 512)
    assert [offset for offset, _ in read([file._replace(position=512)], 4, 5)] == [4]


def test_while_it_is_appended_to(harness: Harness) -> None:
    partition = opened(harness)
    rows = written(harness, partition, 20)
    files = partition.files(0, 20)
    reader = mapped.read(files, TOPIC, 0, 0, 20, columns=1, rows_max=1)
    counts = [next(reader).count]
    rows += written(harness, partition, 60)
    counts += [part.count for part in reader]
    assert sum(counts) == 20
    assert read(partition.files(0, 80), 0, 80) == rows
    harness.close()
    assert read(files, 0, 20) == rows[:20], "the tail was cut off the file"


def test_what_retention_took_is_named(harness: Harness) -> None:
    partition = opened(harness, retention_bytes=8192)
    rows = written(harness, partition, 100)
    files = partition.files(0, 100)
    harness.tick()
    start = partition.start
    assert start > 0
    assert not os.path.exists(files[0].path)
    with pytest.raises(DataLost) as lost:
        read(files, 3, 100)
    assert (lost.value.first, lost.value.last, lost.value.code) == (3, files[0].next_offset, "E1305")
    assert read(files, 3, 100, fail=False) == rows[start:]
    fresh = partition.files(3, 100)
    with pytest.raises(DataLost) as lost:
        read(fresh, 3, 100)
    assert (lost.value.first, lost.value.last) == (3, start)
    assert read(fresh, 3, 100, fail=False) == rows[start:]
    assert read(fresh, start, 100) == rows[start:]


def test_a_file_missing_in_the_middle_and_an_end_that_is_not_there(harness: Harness) -> None:
    partition = opened(harness)
    rows = written(harness, partition, 100)
    files = partition.files(0, 100)
    gone = files[2]
    for given in (files[:2] + files[3:], files):
        with pytest.raises(DataLost) as lost:
            read(given, 0, 100)
        assert (lost.value.first, lost.value.last) == (gone.base, gone.next_offset)
        assert read(given, 0, 100, fail=False) == rows[: gone.base] + rows[gone.next_offset :]
        if os.path.exists(gone.path):
            os.unlink(gone.path)
    with pytest.raises(DataLost) as lost:
        read(partition.files(90, 100), 90, 105)
    assert (lost.value.first, lost.value.last) == (100, 105)
    with pytest.raises(DataLost):
        read([], 0, 1)
    moved = [file._replace(path=file.path.replace("topics", "elsewhere")) for file in files]
    with pytest.raises(DataLost):
        read(moved, 0, 100)
    assert read(moved, 0, 100, fail=False) == []


def test_what_was_read_before_a_loss_is_handed_out(harness: Harness) -> None:
    partition = opened(harness)
    written(harness, partition, 60)
    files = partition.files(0, 60)
    os.unlink(files[1].path)
    reader = mapped.read(files, TOPIC, 0, 0, 60, columns=1, rows_max=ROWS)
    assert next(reader).count == files[0].next_offset
    with pytest.raises(DataLost):
        next(reader)


def compacted(harness: Harness, partition: FilePartition) -> None:
    partition.seal_active()
    harness.append(partition, [b"x"], [b"last"])
    harness.scheduler.run_until_idle()
    for _ in range(3):
        harness.tick()
    assert harness.log.stats()["compactions"] >= 1


def table(harness: Harness, keys: int = 7) -> tuple[FilePartition, list[tuple[int, bytes | None]]]:
    partition = opened(harness, compact=True)
    rng = Random(3)
    rows: list[tuple[int, bytes | None]] = []
    for number in range(200):
        value = rng.randbytes(100) if number % 11 else None
        harness.append(partition, [value], [b"k%d" % (number % keys)])
        harness.scheduler.run_until_idle()
        rows.append((number, value))
    return partition, rows


def test_compaction_before_and_after_the_files_were_listed(harness: Harness) -> None:
    partition, rows = table(harness)
    before = partition.files(0, 200)
    assert read(before, 0, 200) == rows
    compacted(harness, partition)
    after = partition.files(0, 201)
    assert len(after) < len(before)
    kept = [(offset, value) for offset, _, value in harness.read_all(harness.cold(partition))]
    assert len(kept) < 50
    assert read(after, 0, 201) == kept
    # The old list: files were merged into others, or written anew.
    for first, last in ((0, 200), (30, 170), (before[3].base, 200), (196, 200)):
        wanted = [row for row in kept if first <= row[0] < last]
        assert read([file for file in before if file.next_offset > first], first, last) == wanted


def test_compaction_while_it_is_read(harness: Harness) -> None:
    partition, _ = table(harness)
    files = partition.files(0, 200)
    reader = mapped.read(files, TOPIC, 0, 0, 200, columns=1, rows_max=1)
    found = next(reader).count
    compacted(harness, partition)
    kept = [
        offset for offset, _, _ in harness.read_all(harness.cold(partition)) if files[0].next_offset <= offset < 200
    ]
    found += sum(part.count for part in reader)
    assert found == files[0].next_offset + len(kept), "the mapped file as it was, the others as they are"


def test_a_flipped_byte_is_named_and_can_be_passed_over(harness: Harness) -> None:
    partition = opened(harness)
    rows = written(harness, partition, 60)
    files = partition.files(0, 60)
    position, length = batch_at(files[1], files[1].base + 3)
    for at in (position + 100, position + 2, position + 9, position + length - 1):
        flip(files[1], at)
        with pytest.raises(CorruptData) as corrupt:
            read(files, 0, 60)
        for word in (files[1].path, f"position {position}", f"offset {files[1].base + 3}"):
            assert word in str(corrupt.value)
        bad = files[1].base + 3
        assert read(files, 0, 60, fail=False) == rows[:bad] + rows[bad + 1 :]
        flip(files[1], at)
    assert read(files, 0, 60) == rows


def test_a_batch_that_was_overwritten_or_left_out(harness: Harness) -> None:
    partition = opened(harness)
    rows = written(harness, partition, 60)
    files = partition.files(0, 60)
    original = Path(files[1].path).read_bytes()
    bad = files[1].base + 2
    position, length = batch_at(files[1], bad)
    zeros = original[:position] + bytes(length) + original[position + length :]
    without = original[:position] + original[position + length :]
    short = original[:position]
    for data, kept in (
        (zeros, rows[:bad] + rows[bad + 1 :]),
        (without, rows[:bad] + rows[bad + 1 :]),
        (short, rows[:bad] + rows[files[1].next_offset :]),
    ):
        Path(files[1].path).write_bytes(data)
        for rows_max in (1, 2, ROWS):
            with pytest.raises(CorruptData, match=f"offset {bad}"):
                read(files, 0, 60, rows_max=rows_max)
            assert read(files, 0, 60, rows_max=rows_max, fail=False) == kept


def test_headers_that_are_damaged_or_not_ours(harness: Harness) -> None:
    partition = opened(harness)
    rows = written(harness, partition, 60)
    files = partition.files(0, 60)
    flip(files[0], 50)  # the name in the header: the broker told us the seed
    assert read(files, 0, 60) == rows
    with pytest.raises(CorruptData, match="bad segment header"):
        read([files[0]._replace(seed=0), *files[1:]], 0, 60)
    assert read([files[0]._replace(seed=0), *files[1:]], 0, 60, fail=False) == rows[files[0].next_offset :]
    with pytest.raises(CorruptData, match="topic number 16"):
        read(files[1:], files[1].base, 60, topic=17)
    Path(files[0].path).write_bytes(b"")
    with pytest.raises(CorruptData):
        read(files, 0, 60)


def test_a_newer_format_is_refused(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = opened(harness)
    written(harness, partition, 3)
    monkeypatch.setattr("quintet.log.embedded.files.segment.FORMAT_VERSION", 0)
    with pytest.raises(DataDirError, match="newer"):
        read(partition.files(0, 3), 0, 3)


def test_expired_records_are_no_loss(harness: Harness) -> None:
    partition = opened(harness)
    partition.append(kernel.build([b"a", b"b", b"c"], expiries=[0, 5, 0]), None)
    harness.scheduler.run_until_idle()
    parts = list(mapped.read(partition.files(0, 3), TOPIC, 0, 0, 3, columns=1, rows_max=9, now=10))
    assert [part.buffers[0] for part in parts] == [struct.pack("<2q", 0, 2)]


def test_a_memory_partition_has_no_files_until_it_is_durable(harness: Harness) -> None:
    partition = harness.open(TopicSpec(TOPIC, "t", durability="memory"))
    rows = harness.write(partition, 5)
    assert partition.files(0, 5) == []
    harness.log.alter_topic(TopicSpec(TOPIC, "t", durability="fsync"))
    harness.scheduler.run_until_idle()
    assert read(partition.files(0, 5), 0, 5) == [(offset, value) for offset, _, value in rows]


def test_files_of_another_topic_are_never_read(harness: Harness) -> None:
    """Also not by a reader that passes over damage, nor by the broker's own while it runs."""
    mine, other = opened(harness), harness.open(TopicSpec(TOPIC + 1, "payroll"))
    assert isinstance(other, FilePartition)
    rows = written(harness, mine, 10)
    written(harness, other, 10)
    files = mine.files(0, 10)
    assert [part.count for part in mapped.read(files, TOPIC, 0, 0, 10, columns=1, rows_max=ROWS, name="t")] == [10]
    for number, partition, name in ((TOPIC + 1, 0, "t"), (TOPIC, 1, "t"), (TOPIC, 0, "payroll")):
        with pytest.raises(CorruptData, match="lies in the folder"):
            list(mapped.read(files, number, partition, 0, 10, columns=1, rows_max=ROWS, name=name, fail_on_loss=False))
    assert harness.read_all(harness.cold(mine))[-1][0] == rows[-1][0]
    shutil.copyfile(other.files(0, 10)[0].path, files[0].path)
    assert harness.read_all(harness.cold(mine)) == []
    assert ("corrupt_range", "of another topic") in [(kind, fields.get("reason")) for kind, fields in harness.reports]
