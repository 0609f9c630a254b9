"""Packs: the first segments of small partitions in shared files. Power cuts at every call, faults, deletions, reading them.

Random histories through packs are in test_model.py, and the workload of test_crash.py goes through them too.
"""

import base64
import contextlib
import errno
import json
import os
import threading
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.log import mapped
from quintet.log.base import Partition, TopicSpec
from quintet.log.chain import verify_directory
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.embedded.files.packs import PACKED_BYTES, SEGMENTS_PER_PACK, PackDisk, is_packed, with_packs
from quintet.log.embedded.files.segment import HEADER_BYTES, parse_header
from quintet.log.embedded.follow import Follower
from quintet.log.embedded.inspect import Summary, dump, verify
from quintet.log.embedded.partitions.commit import Committer
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.shared import TailCache
from quintet.model import limits
from quintet.model.errors import PartitionFailed, StorageError, StorageFull
from quintet.testing.sim import PowerLoss, SimDisk
from tests.log.checker import records
from tests.log.support import TOPIC, Harness

JOURNAL = 8_192  # bytes of each file: the workload goes round it several times
TOPICS = 4  # new ones in a step
STEPS = 6
LONG = bool(os.environ.get("QUINTET_TEST_LONG"))
VECTORS = Path(__file__).parent.parent / "vectors" / "log"
PACK = "/data/packs/00000000.0"
IDLE_PARTITIONS = 500
IDLE_PARTITION_BYTES_MAX = 1_300  # of the log alone, beside the row of its topic: 1,150 with CPython 3.11


def segment_path(topic_id: int) -> str:
    return f"/data/topics/{topic_id:08d}/0/{0:020d}.seg"


def spec_of(topic_id: int) -> TopicSpec:
    return TopicSpec(topic_id, f"each.{topic_id}", partitions=1 + topic_id % 2, segment_bytes=4096)


@dataclass
class Story:
    """What was sent and acknowledged, by (topic, partition); topics whose deletion was begun, and over."""

    sent: dict[tuple[int, int], list[bytes]] = field(default_factory=dict)
    acked: dict[tuple[int, int], int] = field(default_factory=dict)
    going: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    records: int = 0


def workload(disk: SimDisk, story: Story, journal: int) -> None:
    """Topics come, most get one message or two in turns of their own or with others, some grow out of the pack, some go."""
    rng = Random(3)
    harness = Harness(disk, journal=journal, packs=True)
    topics: dict[int, list[Partition]] = {}

    def send(partition: Partition, size: int) -> None:
        if partition.failure is not None:
            return
        place = (partition.topic_id, partition.number)
        sent = story.sent.setdefault(place, [])
        sent.append(rng.randbytes(size))

        def done(base: int, error: Exception | None) -> None:
            if error is None:
                story.acked[place] = max(story.acked.get(place, 0), base + 1)

        partition.append(kernel.build([sent[-1]], origin=b"t:1"), done)

    for step in range(STEPS):
        for topic_id in range(TOPIC + step * TOPICS, TOPIC + (step + 1) * TOPICS):
            topics[topic_id] = harness.log.open_topic(spec_of(topic_id))
            for partition in topics[topic_id]:
                send(partition, 40)
        harness.scheduler.run_until_idle()
        for topic_id in rng.sample(sorted(topics), 3):
            send(topics[topic_id][0], rng.choice((60, 600, 1_500)))
        harness.scheduler.run_until_idle()
        if step % 2:
            victim = rng.choice(sorted(topics))
            story.going.add(victim)
            harness.log.delete_topic(victim)
            del topics[victim]
            harness.scheduler.run_until_idle()
            if "delete_failed" not in harness.kinds() and disk.stop_at is None:
                story.gone.add(victim)
        harness.tick()
        story.records = harness.log.stats()["journal_records"]
    harness.close()


def check(disk: SimDisk, story: Story) -> list[str]:
    """What is wrong after a restart."""
    wrong: list[str] = []
    harness = Harness(disk, packs=True)
    wrong += [f"topic {topic} is there again" for topic in story.gone & set(harness.log.topic_ids())]
    for topic_id in sorted({topic for topic, _ in story.sent} - story.going):
        for partition in harness.log.open_topic(spec_of(topic_id)):
            place = (topic_id, partition.number)
            rows = harness.read_all(partition)
            sent, acked = story.sent.get(place, []), story.acked.get(place, 0)
            if [value for _, _, value in rows] != sent[: len(rows)] or len(rows) < acked:
                wrong.append(f"{place}: {len(rows)} rows where {acked} were acknowledged")
            base = harness.append(partition, [b"after"])
            harness.scheduler.run_until_idle()
            if harness.acks[-1] != (base, None):
                wrong.append(f"{place}: takes no appends: {harness.acks[-1]}")
    wrong += [str(fields) for kind, fields in harness.reports if kind in ("corrupt_range", "journal_conflict")]
    return wrong


def cut(disk: SimDisk, at: int, journal: int) -> Story:
    story = Story()
    disk.stop_at = at
    with contextlib.suppress(StorageError):
        workload(disk, story, journal)
    disk.crash(Random(at))
    return story


@pytest.mark.parametrize("journal", [0, JOURNAL])
def test_power_lost_at_every_call_of_topics_that_come_and_go(journal: int) -> None:
    disk, story = SimDisk(), Story()
    workload(disk, story, journal)
    assert (story.records > 7) is bool(journal)
    assert story.gone
    total = disk.total_calls
    disk.kill()
    assert check(disk, story) == []
    for at in range(1, total, 1 if LONG else 3 if journal else 7):
        disk = SimDisk()
        story = cut(disk, at, journal)
        assert check(disk, story) == [], f"cut at call {at} of {total}"


class HidesPacks(SimDisk):
    """Syncs neither packs nor their names: a journal file is used again although only it has what is in them."""

    def fdatasync(self, handle: int) -> None:
        packs = [file for path, file in self._names.items() if path.startswith("/data/packs/")]
        if not any(file is self._handles[handle] for file in packs):
            super().fdatasync(handle)


class HidesNames(SimDisk):
    """Never makes the name of a pack durable."""

    def fsync_dir(self, path: str) -> None:
        if path != "/data/packs":
            super().fsync_dir(path)


@pytest.mark.parametrize("kind", [HidesPacks, HidesNames])
def test_a_journal_used_again_too_early_is_caught(kind: type[SimDisk]) -> None:
    """Positive control: the journal is renewed while the packs, or their names, are not durable."""
    plain = SimDisk()
    workload(plain, Story(), JOURNAL)
    caught = 0
    for at in range(plain.total_calls // 2, plain.total_calls, plain.total_calls // 32):
        disk = kind()
        story = cut(disk, at, JOURNAL)
        disk.__class__ = SimDisk
        caught += bool(check(disk, story))
    assert caught >= 8


def test_what_was_deleted_is_not_brought_back_by_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    for sabotaged in (False, True):
        if sabotaged:  # room that is given up looks as if it was never used
            monkeypatch.setattr("quintet.log.embedded.files.packs._GIVEN_UP", bytes(4))
        harness = Harness(journal=1 << 20, packs=True)
        for topic_id in (TOPIC, TOPIC + 1):
            harness.append(harness.log.open_topic(TopicSpec(topic_id, f"t{topic_id}"))[0], [b"x"])
        harness.scheduler.run_until_idle()
        assert harness.log.stats()["journal_records"] == 1
        harness.log.delete_topic(TOPIC)
        harness.scheduler.run_until_idle()
        harness.sim.kill()
        harness.start()
        assert harness.log.topic_ids() == ([TOPIC, TOPIC + 1] if sabotaged else [TOPIC + 1])


def test_the_first_message_of_many_topics_costs_one_sync_and_no_file() -> None:
    harness = Harness(journal=1 << 20, packs=True)
    harness.log.open_topic(TopicSpec(TOPIC, "first"))[0].append(kernel.build([b"x"], origin=b"t:1"), None)
    harness.scheduler.run_until_idle()  # makes the pack
    before = dict(harness.sim.calls)
    partitions = [harness.log.open_topic(TopicSpec(TOPIC + n, f"t{n}"))[0] for n in range(1, 101)]
    for partition in partitions:
        harness.append(partition, [b"x" * 100])
    harness.scheduler.run_until_idle()
    assert [error for _, error in harness.acks] == [None] * 100
    done = {name: count - before.get(name, 0) for name, count in harness.sim.calls.items()}
    assert {name: count for name, count in done.items() if count} == {"pwritev": 101, "fdatasync": 1}
    assert not [path for path in harness.sim.snapshot() if path.startswith("/data/topics/")]
    harness.close()
    assert len(harness.sim.read_file(PACK) or b"") <= (TOPIC + 101) * PACKED_BYTES
    harness.start()
    calls = harness.sim.total_calls
    assert [harness.read_all(harness.open(TopicSpec(TOPIC + n, f"t{n}"))) for n in range(1, 101)] == [
        [(0, None, b"x" * 100)]
    ] * 100
    assert harness.log.clean_start
    assert harness.sim.total_calls - calls < 100 * 8
    assert len(harness.sim._handles) < 10


def grown(
    disk: SimDisk | OsDisk, directory: Path, **options: Any
) -> tuple[Harness, dict[tuple[int, int], list[bytes]]]:
    """Three topics: one message, some, and more than fit into the pack."""
    harness = Harness(disk, directory, packs=True, anchor_file=f"{directory}/anchors", **options)
    sent: dict[tuple[int, int], list[bytes]] = {}
    for number, count in enumerate((1, 3, 40)):
        partition = harness.open(TopicSpec(TOPIC + number, f"t{number}"))
        rows = harness.write(partition, count, size=200, seed=number)
        sent[TOPIC + number, 0] = [value or b"" for _, _, value in rows]
    return harness, sent


def test_whoever_reads_the_folder_sees_packed_segments(tmp_path: Path) -> None:
    """verify, dump, audit, a follower, a mapped reader, and a reader that shares no code with the broker."""
    folder = tmp_path / "data"
    harness, sent = grown(OsDisk(), folder)
    partition = harness.open(TopicSpec(TOPIC + 2, "t2"))
    assert isinstance(partition, FilePartition)
    assert [segment.packed for segment in partition.segments] == [True, False]
    for number in range(3):
        one = harness.open(TopicSpec(TOPIC + number, f"t{number}"))
        found = mapped.read(one.files(0, one.visible), TOPIC + number, 0, 0, one.visible, columns=1, rows_max=1000)
        assert sum(each.count for each in found) == one.visible
    harness.close()
    assert sorted(path.name for path in (folder / "topics").iterdir()) == [f"{TOPIC + 2:08d}"]
    summary = Summary()
    assert list(verify(OsDisk(), str(folder), summary)) == []
    assert (summary.records, summary.segments, summary.status) == (44, 4, 0)
    dumped: dict[tuple[int, int], list[bytes]] = {}
    for topic, number, row in dump(OsDisk(), str(folder)):
        dumped.setdefault((topic, number), []).append(row[3] or b"")
    assert dumped == sent
    verdict = verify_directory(OsDisk(), str(folder), {}, lambda: None)
    assert (verdict.broken, verdict.rows) == (None, 44)
    follower = Follower(with_packs(OsDisk()), str(folder / f"topics/{TOPIC + 2:08d}/0"))
    assert sum(batch.count for batch in follower.more()) == 40
    independent: dict[tuple[int, int], list[bytes]] = {}
    for topic, number, _, _, value in records(folder):
        independent.setdefault((topic, number), []).append(value or b"")
    assert independent == sent


def test_a_flipped_bit_in_a_pack_is_named_and_costs_only_its_own_segment() -> None:
    harness, sent = grown(SimDisk(), Path("/data"))
    harness.close()
    image = harness.sim.snapshot()
    data = image[PACK]
    assert data is not None
    room = TOPIC * PACKED_BYTES
    for bit in range(room * 8, (room + 512 + 200) * 8, 149):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        disk = SimDisk()
        disk.restore(image | {PACK: bytes(flipped)})
        summary = Summary()
        named = [finding.file for finding in verify(disk, "/data", summary) if finding.corrupt]
        assert named, bit
        assert all(name.startswith(f"/data/topics/{TOPIC:08d}/0") for name in named)
        again = Harness(disk, packs=True)
        for number in (1, 2):
            rows = again.read_all(again.open(TopicSpec(TOPIC + number, f"t{number}")))
            assert [value for _, _, value in rows] == sent[TOPIC + number, 0]


def test_retention_takes_a_packed_segment_for_good() -> None:
    harness = Harness(packs=True)
    spec = TopicSpec(TOPIC, "t", segment_bytes=4096, retention_bytes=6_000)
    partition = harness.open(spec)
    rows = harness.write(partition, 60, size=200)
    for _ in range(4):
        harness.tick()
    assert isinstance(partition, FilePartition)
    assert partition.start > 0
    assert not partition.segments[0].packed
    for stop in (harness.sim.kill, harness.close):
        stop()
        harness.start()
        partition = harness.open(spec)
        assert partition.start > 0
        assert harness.read_all(partition) == [row for row in rows if row[0] >= partition.start]
    harness.log.delete_topic(TOPIC)
    harness.scheduler.run_until_idle()
    harness.close()
    harness.start()
    assert PACK not in harness.sim.snapshot(), "nothing is left in it"
    assert harness.log.last_topic_id == TOPIC, "and its number is not given again"


def test_a_failed_sync_fails_all_in_its_pack_and_nobody_else() -> None:
    harness = Harness(packs=True)
    two = [harness.open(TopicSpec(TOPIC + n, f"t{n}")) for n in range(2)]
    other = harness.open(TopicSpec(TOPIC + SEGMENTS_PER_PACK, "other"))
    for partition in (*two, other):
        harness.write(partition, 1)
    harness.sim.fail("fdatasync", 1, errno.EIO)
    for partition in two:  # the system tells one of them
        harness.append(partition, [b"x"])
    harness.scheduler.run_until_idle()
    assert [type(error) for _, error in harness.acks[-2:]] == [PartitionFailed] * 2
    fresh = harness.open(TopicSpec(TOPIC + 2, "fresh"))
    for partition in (other, fresh):  # one in another pack, and a new one, which gets a file of its own
        assert len(harness.write(partition, 2)) == 2
        assert partition.failure is None
    assert isinstance(fresh, FilePartition)
    assert not fresh.segments[0].packed


def test_a_full_disk_refuses_the_first_message_and_takes_it_again() -> None:
    for journal in (0, 1 << 16):
        harness = Harness(journal=journal, packs=True)
        full = harness.sim.used()
        harness.sim.capacity = full + 100
        partition = harness.open(TopicSpec(TOPIC, "t"))
        harness.append(partition, [b"x"])
        harness.scheduler.run_until_idle()
        assert isinstance(harness.acks[-1][1], StorageFull)
        harness.sim.capacity = 1 << 40
        harness.tick(2_000_000)
        rows = harness.write(partition, 3)
        harness.sim.crash(Random(1))
        harness.start()
        assert harness.read_all(harness.open(TopicSpec(TOPIC, "t"))) == rows


def test_only_so_many_packs_are_open() -> None:
    harness = Harness(packs=True, disk_floor_bytes=0)
    for number in range(100):
        harness.write(harness.open(TopicSpec(TOPIC + number * SEGMENTS_PER_PACK, f"t{number}")), 1)
    assert isinstance(harness.log._disk, PackDisk)
    assert len(harness.sim._handles) <= 64 + 3
    harness.tick()
    assert len(harness.sim._handles) <= 3, "none while nothing is written"
    harness.close()
    assert not harness.sim._handles


def test_many_may_begin_in_one_pack_at_once(tmp_path: Path) -> None:
    """In disk threads: the pack is made once, and its folder is known to be unsynced before anybody can sync it."""
    (tmp_path / "packs").mkdir()
    for number in range(50):
        disk = PackDisk(OsDisk(), writes=True)
        made: list[str] = []
        disk.on_made = made.append
        together = threading.Barrier(4)

        def begin(
            place: int, disk: PackDisk = disk, number: int = number, together: threading.Barrier = together
        ) -> int:
            together.wait()
            return disk.begin(f"{tmp_path}/topics/{number * SEGMENTS_PER_PACK + place:08d}/0/{0:020d}.seg")

        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(begin, range(4)))) == 4
        assert made == [f"{tmp_path}/packs"]
        disk.close_packs()


def folder_of(name: str) -> tuple[dict[str, bytes | None], list[tuple[int, int, int, str | None, str]]]:
    """A data folder of an older format, as tests/vectors/log keeps it: its files, and what was written."""
    kept = json.loads((VECTORS / name).read_text())
    image: dict[str, bytes | None] = {"/": None}
    for path, packed in kept["files"].items():
        data, _, size = (packed or "").partition(":")
        image[path] = None if packed is None else zlib.decompress(base64.b64decode(data)).ljust(int(size), b"\0")
    return image, [tuple(row) for row in kept["rows"]]


@pytest.mark.parametrize("end", ["killed", "stopped"])
@pytest.mark.parametrize("version", [3, 4])
def test_a_folder_of_an_older_format_is_opened_in_place(version: int, end: str) -> None:
    image, rows = folder_of(f"format{version}_{end}.json")
    disk = SimDisk()
    disk.restore(image)
    assert disk.read_file("/data/format") == f"quintet-data {version}\n".encode()
    harness = Harness(disk, packs=True)
    assert harness.log.clean_start is (end == "stopped")
    specs = (
        TopicSpec(16, "orders", partitions=3),
        TopicSpec(17, "cache/a/b/c", compact=True, segment_bytes=65536),
        TopicSpec(18, "metrics", durability="os"),
    )
    partitions = [partition for spec in specs for partition in harness.log.open_topic(spec)]
    fresh = harness.log.open_topic(TopicSpec(19, "fresh"))[0]
    for again in (False, True):
        for partition in partitions:
            found = [
                (row[0], row[1] and row[1].decode(), (row[2] or b"").decode()) for row in harness.read_all(partition)
            ]
            wanted = [row[2:] for row in rows if row[:2] == (partition.topic_id, partition.number)]
            assert found[: len(wanted)] == wanted
            assert len(found) == len(wanted) + again
        if not again:
            for partition in (*partitions, fresh):
                harness.append(partition, [b"after"], [b"after"])
            harness.scheduler.run_until_idle()
            assert [error for _, error in harness.acks] == [None] * len(harness.acks)
    assert disk.read_file("/data/format") == b"quintet-data 5\n"
    assert disk.read_file("/data/packs/00000000.0") is not None, "what is new begins in a pack"
    assert not [kind for kind in harness.kinds() if kind != "journal_replayed"]


def at_once(disk: PackDisk, path: str) -> None:
    """A sabotaged PackDisk._give_up: the mark and the zeros behind it are one write of several sectors."""
    handle = disk._there(path)
    disk.pwritev(handle, [b"QNTG".ljust(PACKED_BYTES, b"\0")], 0)
    disk.fdatasync(handle)


def no_power(handle: int) -> None:
    raise PowerLoss


@pytest.mark.parametrize("sabotaged", [False, True])
def test_a_power_cut_amid_giving_up_leaves_the_segment_or_nothing(
    monkeypatch: pytest.MonkeyPatch, sabotaged: bool
) -> None:
    """The mark is one sector and durable before the rest is cleared; the next start clears what a cut left of it."""
    if sabotaged:
        monkeypatch.setattr(PackDisk, "_give_up", at_once)
    wrong = 0
    for seed in range(30):
        harness, sent = grown(SimDisk(), Path("/data"))
        with contextlib.suppress(PowerLoss), monkeypatch.context() as patched:
            if seed % 2:  # before its sync; otherwise when all is done and the zeros are not synced
                patched.setattr(harness.sim, "fdatasync", no_power)
            harness.log._disk.unlink(segment_path(TOPIC + 1))
        harness.sim.crash(Random(seed))
        again = Harness(harness.sim, packs=True)
        rows = [value for _, _, value in again.read_all(again.open(TopicSpec(TOPIC + 1, "t1")))]
        room = (harness.sim.read_file(PACK) or b"")[(TOPIC + 1) * PACKED_BYTES :][:PACKED_BYTES]
        wrong += rows not in ([], sent[TOPIC + 1, 0]) or not (rows or room.rstrip(b"\0") == b"QNTG")
    assert (wrong > 0) is sabotaged


@pytest.mark.parametrize("damaged", [False, True])
def test_a_segment_that_retention_takes_amid_a_read_is_no_damage(damaged: bool) -> None:
    """And damage, the control, is damage."""
    harness, sent = grown(SimDisk(), Path("/data"))
    partition = harness.cold(harness.open(TopicSpec(TOPIC + 2, "t2")))
    disk, path = harness.log._disk, segment_path(TOPIC + 2)
    as_it_was = disk.pread

    def pread(handle: int, size: int, position: int) -> bytes:
        if is_packed(handle) and position == 0 and size == HEADER_BYTES:  # it is open, and looked at
            if damaged:
                disk.pwritev(handle, [bytes(PACKED_BYTES - HEADER_BYTES)], HEADER_BYTES)
            else:
                disk.unlink(path)
        return as_it_was(handle, size, position)

    disk.pread = pread  # type: ignore[method-assign]
    found = harness.fetch(partition, 0, 2 * limits.MIB)
    assert ("corrupt_range" in harness.kinds()) is damaged
    assert found[-1].next_offset == len(sent[TOPIC + 2, 0])


def test_a_purged_topic_leaves_its_pack_and_goes_on_at_its_offset() -> None:
    harness, sent = grown(SimDisk(), Path("/data"))
    specs = [TopicSpec(TOPIC + number, f"t{number}") for number in range(3)]
    answers: list[Exception | None] = []
    for stop in (harness.sim.kill, harness.close):
        for spec in specs:
            harness.log.purge_topic(spec.id, answers.append)
            harness.scheduler.run_until_idle()
        stop()
        harness.start()
        for number, spec in enumerate(specs):
            partition = harness.open(spec)
            assert harness.read_all(partition) == []
            assert partition.end == len(sent[TOPIC + number, 0])
    assert answers == [None] * 6
    assert PACK not in harness.sim.snapshot(), "nothing is left in it"
    assert harness.write(harness.open(specs[0]), 1)[0][0] == 1


def test_a_record_changed_in_a_pack_under_a_right_checksum_is_found() -> None:
    """By its link; and what was not touched is not accused."""
    harness, sent = grown(SimDisk(), Path("/data"))
    harness.close()
    image = harness.sim.snapshot()
    data = image[PACK]
    assert data is not None
    room = data[(TOPIC + 1) * PACKED_BYTES :][:PACKED_BYTES]
    header = parse_header(room[:HEADER_BYTES])
    assert header is not None
    position, length, *_ = kernel.walk(room, HEADER_BYTES, len(room), header.seed, True)[0][0]
    at, value = (TOPIC + 1) * PACKED_BYTES + position, sent[TOPIC + 1, 0][0]
    for changed in (value, value[::-1]):
        batch = bytearray(data[at : at + length].replace(value, changed))
        kernel.reseal(batch, header.seed)
        disk = SimDisk()
        disk.restore(image | {PACK: data[:at] + bytes(batch) + data[at + length :]})
        verdict = verify_directory(disk, "/data", {}, lambda: None)
        if changed == value:
            assert verdict.broken is None
        else:
            assert verdict.broken is not None
            assert verdict.broken.file == segment_path(TOPIC + 1)


def test_what_is_compacted_or_large_begins_in_a_file() -> None:
    harness = Harness(packs=True)
    for number, (spec, size, packed) in enumerate(
        (
            (TopicSpec(TOPIC, "k", compact=True), 100, False),
            (TopicSpec(TOPIC + 1, "l"), 2_000, False),
            (TopicSpec(TOPIC + 2, "s"), 100, True),
        )
    ):
        partition = harness.open(spec)
        harness.append(partition, [bytes(size)], [b"key"])
        harness.scheduler.run_until_idle()
        assert isinstance(partition, FilePartition)
        assert partition.segments[0].packed is packed, number


def test_a_torn_tail_in_a_pack_is_mended_where_there_is_no_directory(tmp_path: Path) -> None:
    """On a real disk: the simulated one lets a directory be synced that is not there."""
    folder = tmp_path / "data"
    harness = Harness(OsDisk(), folder, packs=True)
    rows = harness.write(harness.open(), 2)
    harness.log.abandon()
    pack = folder / "packs" / "00000000.0"
    data = pack.read_bytes().rstrip(b"\0")
    pack.write_bytes(data.ljust(-(-len(data) // 8) * 8 + 64, b"\0") + b"half of a batch")
    again = Harness(OsDisk(), folder, packs=True)
    assert again.read_all(again.open()) == rows
    again.close()


def filled(topics: int) -> Harness:
    """Topics with one message each, made durable by the journal."""
    harness = Harness(journal=1 << 20, packs=True)
    for topic_id in range(TOPIC, TOPIC + topics):
        harness.append(harness.open(TopicSpec(topic_id, f"each.{topic_id}")), [b"x" * 100])
    harness.scheduler.run_until_idle()
    assert [error for _, error in harness.acks] == [None] * topics
    return harness


@pytest.mark.parametrize("together", [True, False])
def test_a_clean_stop_syncs_each_pack_and_not_each_partition(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without `sync_packed` every partition has a sync of its own."""
    if not together:
        monkeypatch.setattr(Committer, "sync_packed", lambda _self, then: then())
    harness = filled(100)
    before = harness.sim.calls["fdatasync"]
    harness.close()
    assert (harness.sim.calls["fdatasync"] - before < 10) == together
    harness.sim.crash(Random(1))
    harness.start()
    assert harness.log.clean_start
    for topic_id in range(TOPIC, TOPIC + 100):
        assert len(harness.read_all(harness.open(TopicSpec(topic_id, f"each.{topic_id}")))) == 1


@pytest.mark.parametrize("wasteful", [False, True])
def test_an_idle_partition_takes_little_memory_after_a_start(wasteful: bool) -> None:
    """Control: a cache, a writer and two lists for each, as there were once, are too much."""
    harness = filled(IDLE_PARTITIONS)
    harness.close()
    harness.start()
    specs = [TopicSpec(TOPIC + number, f"each.{TOPIC + number}") for number in range(IDLE_PARTITIONS)]
    tracemalloc.start()
    try:
        kept = [harness.open(spec) for spec in specs]
        waste = [(TailCache(harness.log._shared), [number], [number], bytes(64)) for number in specs if wasteful]
        size = tracemalloc.get_traced_memory()[0] / IDLE_PARTITIONS
    finally:
        tracemalloc.stop()
    assert len(kept) == IDLE_PARTITIONS and len(waste) == IDLE_PARTITIONS * wasteful
    assert (size <= IDLE_PARTITION_BYTES_MAX) != wasteful, f"{size:.0f} bytes each"
