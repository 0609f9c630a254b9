"""The audit chain as the engine writes it: whatever happens to the disk, what is left is one chain that agrees with its
anchors. Tampering is test_tampering.py's matter, the command is tests/cli/test_audit_chain.py's.
"""

import errno
import json
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.log import anchors, chain
from quintet.log.base import TopicSpec
from quintet.log.chain import CannotCheck, Verdict, genesis, verify_directory, verify_partition
from quintet.log.embedded.anchoring import Anchoring
from quintet.log.embedded.files.segment import HEADER_BYTES, parse_header
from quintet.log.embedded.inspect import healed
from quintet.log.embedded.partitions.memory import MemoryPartition
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.batch import CHAIN, RecordBatch
from quintet.model.errors import DataDirError, StorageError, StorageFull
from quintet.testing.sim import PowerLoss, SimDisk
from tests.log.support import PARTITION, TOPIC, Harness

ANCHORS = "/data/anchors"
SEGMENT = f"{PARTITION}/{0:020d}.seg"
SMALL = TopicSpec(TOPIC, "t", segment_bytes=4096)
SMALL_JOURNAL = 1 << 16
KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
SEEDS = 60


def anchored(disk: SimDisk | None = None, **options: Any) -> Harness:
    return Harness(disk, **{"anchor_file": ANCHORS, **options})


def verify(disk: SimDisk, *keys: bytes, head: str = "", **options: Any) -> Verdict:
    names = {chain.key_name(key): key for key in keys}
    numbered = {chain.key_id(key): key for key in keys}
    seen = healed(disk, "/data", [])
    return verify_directory(seen, "/data", numbered, lambda: anchors.load(disk, ANCHORS, names), head, **options)


def sound(disk: SimDisk, *keys: bytes, head: str = "") -> Verdict:
    found = verify(disk, *keys, head=head)
    assert (found.status, found.broken, found.cannot) == (0, None, "")
    return found


def file_of(disk: SimDisk, path: str) -> bytes:
    data = disk.read_file(path)
    assert data is not None
    return data


# -- what is written ---------------------------------------------------------------------------------------------------


def test_each_batch_ends_with_its_link_to_the_one_before() -> None:
    harness = anchored()
    partition = harness.open()
    harness.write(partition, 3)
    harness.close()
    data = file_of(harness.sim, SEGMENT)
    header = parse_header(data)
    assert header is not None
    assert header.chain == (chain.PLAIN, 0, genesis(TOPIC, 0))
    assert int.from_bytes(data[12:16], "little") == 2
    assert (data[472:476], data[480:512]) == (b"\1\0\0\0", genesis(TOPIC, 0))
    assert kernel.follow(data, HEADER_BYTES, len(data), genesis(TOPIC, 0), b"")[0] == len(data)
    found = sound(harness.sim)
    assert (found.rows, found.partitions[0].anchored, found.partitions[0].name) == (3, 1, "t")
    assert found.anchors is not None
    assert found.anchors.head == harness.log.anchor_head


def test_merged_batches_are_one_link_and_readers_see_no_difference() -> None:
    harness = anchored()
    partition = harness.open()
    values = [b"v%d" % number for number in range(20)]
    for value in values:
        harness.append(partition, [value])
    harness.scheduler.run_until_idle()
    assert [row[2] for row in harness.read_all(partition)] == values
    assert [row[2] for row in harness.read_all(harness.cold(partition))] == values
    [batch] = harness.fetch(partition, 0, 1 << 20)
    assert batch.columns & CHAIN
    harness.close()
    assert sound(harness.sim).rows == 20


@pytest.mark.parametrize(
    ("mode", "durability", "compact", "chained"),
    [
        ("durable", "fsync", False, True),
        ("durable", "interval", False, False),
        ("durable", "os", False, False),
        ("durable", "fsync", True, False),
        ("all", "interval", False, True),
        ("all", "os", False, True),
        ("all", "os", True, False),
        ("off", "fsync", False, False),
    ],
)
def test_which_topics_are_chained(mode: str, durability: Any, compact: bool, chained: bool) -> None:
    harness = anchored(chain=mode)
    partition = harness.open(TopicSpec(TOPIC, "t", durability=durability, compact=compact))
    harness.append(partition, [b"value"], [b"key"])
    harness.scheduler.run_until_idle()
    assert bool(partition.read(0, 1)[0].columns & CHAIN) is chained  # type: ignore[index]
    harness.close()
    found = sound(harness.sim)
    assert (found.rows == 1) is chained
    assert (found.anchors is not None) is chained
    assert file_of(harness.sim, "/data/format") == b"quintet-data 5\n"


def test_a_memory_topic_that_becomes_durable_begins_a_chain_there() -> None:
    harness = anchored()
    spec = TopicSpec(TOPIC, "t", durability="memory", memory_bytes=4096)
    partition = harness.open(spec)
    assert isinstance(partition, MemoryPartition)
    harness.write(partition, 100)
    assert partition.start > 0
    durable = TopicSpec(TOPIC, "t")
    harness.log.alter_topic(durable)
    fresh = harness.log.open_topic(durable)[0]
    harness.write(fresh, 3)
    harness.close()
    found = sound(harness.sim)
    assert (found.partitions[0].start, found.partitions[0].next_offset) == (fresh.start, 103)
    harness.start()
    harness.write(harness.open(), 1)
    harness.close()
    assert sound(harness.sim).partitions[0].next_offset == 104


# -- starts, rolls and changes of mind ---------------------------------------------------------------------------------


def test_the_chain_goes_on_over_restarts_and_rolls() -> None:
    harness = anchored()
    for number in range(4):
        harness.write(harness.open(SMALL), 20, seed=number)
        if number % 2:
            harness.close()
        else:
            harness.sim.kill()
        harness.start()
    found = sound(harness.sim)
    assert found.rows == 80
    assert found.partitions[0].segments >= 3


def test_an_old_log_is_continued_by_a_chain_of_its_own() -> None:
    harness = anchored(chain="off")
    rows = harness.write(harness.open(SMALL), 40)
    harness.close()
    assert sound(harness.sim).rows == 0
    harness.options["chain"] = "durable"
    harness.start()
    partition = harness.open(SMALL)
    rows += harness.write(partition, 5, seed=2)
    assert harness.read_all(harness.cold(partition)) == rows
    harness.close()
    found = sound(harness.sim)
    assert (found.rows, found.partitions[0].unchained > 0, found.partitions[0].next_offset) == (5, True, 45)
    assert file_of(harness.sim, "/data/format") == b"quintet-data 5\n"


def test_a_chained_log_stays_chained_whatever_the_option_says() -> None:
    harness = anchored()
    harness.write(harness.open(), 5)
    harness.close()
    harness.options["chain"] = "off"
    harness.start()
    harness.write(harness.open(), 5, seed=2)
    harness.close()
    assert sound(harness.sim).rows == 10
    assert file_of(harness.sim, "/data/format") == b"quintet-data 5\n"


def test_a_key_can_come_and_change_and_its_absence_shows() -> None:
    harness = anchored()
    for key in (b"", KEY, OTHER_KEY):
        harness.options["chain_key"] = key
        harness.log.abandon()
        harness.start()
        harness.write(harness.open(), 3)
        harness.close()
    assert sound(harness.sim, KEY, OTHER_KEY).rows == 9
    assert verify(harness.sim).status == verify(harness.sim, KEY).status == 2
    assert "which was not given" in verify_cannot(harness.sim)
    assert "chain_key_missing" not in harness.kinds()
    harness.options["chain_key"] = b""
    harness.start()
    harness.write(harness.open(), 1)
    harness.close()
    assert "chain_key_missing" in harness.kinds()
    assert verify(harness.sim, KEY, OTHER_KEY).status == 1


def verify_cannot(disk: SimDisk) -> str:
    with pytest.raises(CannotCheck) as raised:
        verify_partition(disk, PARTITION, TOPIC, 0, {})
    return str(raised.value)


def test_a_key_that_made_nothing_here_is_no_proof() -> None:
    harness = anchored()
    harness.write(harness.open(), 3)
    harness.close()
    found = verify(harness.sim, KEY)
    assert found.status == 1
    assert found.broken is not None
    assert "nothing here was made with the key" in found.broken.what


def test_a_newer_format_is_refused_and_a_newer_segment_too() -> None:
    harness = anchored()
    harness.write(harness.open(), 1)
    harness.close()
    data = bytearray(file_of(harness.sim, SEGMENT))
    data[12] = 3
    data[8:12] = kernel.crc32c(data[12:512]).to_bytes(4, "little")
    harness.sim.damage(SEGMENT, bytes(data))
    assert verify(harness.sim).status == 2
    harness.start()
    with pytest.raises(DataDirError, match="segment format 3"):
        harness.open()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("journal", [0, SMALL_JOURNAL])
def test_what_is_refused_takes_its_link_with_it(journal: int) -> None:
    harness = anchored(journal=journal)
    partition = harness.open(SMALL)
    harness.write(partition, 10)
    refused = kernel.build([b"refused " * 40], origin=b"test:1")
    harness.sim.fail("pwritev", 1, errno.ENOSPC, times=4)
    told: list[Exception | None] = []
    partition.append(refused, lambda base, error: told.append(error))
    harness.scheduler.run_until_idle()
    assert isinstance(told[0], StorageFull)
    assert harness.log.unsynced_bytes == 0
    harness.sim.heal()
    for _ in range(3):
        harness.tick()
    partition.append(refused, lambda base, error: told.append(error))  # the very same bytes, which have a link by now
    harness.scheduler.run_until_idle()
    assert told[1:] == [None]
    harness.write(partition, 30, seed=3)
    assert harness.log.unsynced_bytes == 0
    harness.close()
    assert sound(harness.sim).rows == 41


def test_a_batch_with_a_foreign_link_gets_its_own() -> None:
    harness = anchored()
    first, second = harness.log.open_topic(TopicSpec(TOPIC, "t", partitions=2))
    harness.write(first, 2)
    moved = bytearray(first.read(1, 1)[0].buffer)  # type: ignore[index]
    second.append(moved, None)
    second.append(bytearray(moved), None)
    harness.scheduler.run_until_idle()
    harness.close()
    assert sound(harness.sim).rows == 4


def test_a_batch_without_room_for_its_link_is_refused() -> None:
    harness = anchored()
    partition = harness.open()
    large = kernel.build([bytes((64 << 20) - 96)])
    with pytest.raises(StorageError, match="too large"):
        partition.append(large, None)
    harness.write(partition, 1)
    harness.close()
    assert sound(harness.sim).rows == 1


# -- anything, in any order --------------------------------------------------------------------------------------------


class Excused(Exception):
    """See Life.check."""


class Life:
    """Random days of a log on one disk: appends of all sizes, merges, faults, kills, power cuts, retention."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.disk = SimDisk(seed=seed)
        options: dict[str, Any] = {"anchor_us": rng.choice((1, 1_000_000)), "chain_key": rng.choice((b"", KEY))}
        options["packs"] = seed % 2 == 1
        self.harness = anchored(self.disk, journal=rng.choice((0, SMALL_JOURNAL)), **options)
        self.spec = TopicSpec(
            TOPIC, "t", partitions=2, segment_bytes=4096, retention_bytes=rng.choice((0, 20_000, 20_000))
        )
        self.keys = [key for key in (options["chain_key"],) if key]
        self.partitions = self.harness.log.open_topic(self.spec)

    def step(self) -> None:
        rng, harness = self.rng, self.harness
        kind = rng.randrange(12)
        if kind < 7:
            for _ in range(rng.randrange(1, 8)):
                self.append()
            harness.scheduler.run_until_idle() if kind < 5 else harness.scheduler.turn()
        elif kind < 9:
            harness.tick(rng.choice((100_000, 2_000_000)))
        elif kind == 9:
            self.disk.fail(rng.choice(("pwritev", "zero", "open")), rng.randrange(1, 4), errno.ENOSPC)
        elif kind == 10:
            self.restart()
        else:
            self.disk.stop_at = self.disk.total_calls + rng.randrange(1, 30)

    def append(self) -> None:
        size = self.rng.choice((1, 50, 300, 2000))
        values = [self.rng.randbytes(size) for _ in range(self.rng.randrange(1, 4))]
        try:
            self.rng.choice(self.partitions).append(kernel.build(list(values)), lambda base, error: None)
        except StorageError:
            return  # full, or failed until the restart

    def restart(self) -> None:
        how = self.rng.randrange(3)
        if how == 0 and self.disk.stop_at is None:
            self.disk.heal()
            self.harness.close()
        elif how == 1:
            self.disk.kill()
            self.disk.stop_at = None
            self.disk.heal()
        else:
            self.disk.crash(self.rng)
        self.check()
        self.harness.start()
        self.partitions = self.harness.log.open_topic(self.spec)

    def check(self) -> Verdict:
        """The one excuse: the disk refused the note that retention was about to begin, and the machine was killed before it
        could be written after all."""
        found = verify(self.disk, *self.keys)
        if found.broken is not None and "anchors_failed" in self.harness.kinds():
            assert "began earlier" in found.broken.what
            raise Excused
        assert (found.status, found.broken) == (0, None), found
        return found


def test_whatever_happens_what_is_left_is_one_chain() -> None:
    rows = heads = retained = excused = 0
    for seed in range(SEEDS):
        life = Life(seed)
        try:
            for _ in range(60):
                try:
                    life.step()
                except PowerLoss:
                    life.restart()
            life.disk.stop_at = None
            life.disk.heal()
            life.harness.close()
            found = life.check()
        except Excused:
            excused += 1
            continue
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        rows += found.rows
        heads += sum(each.anchored for each in found.partitions)
        retained += any(each.start > 0 for each in found.partitions)
        assert "anchor_differs" not in life.harness.kinds()
    assert excused <= SEEDS // 10
    assert rows > 10 * SEEDS
    assert heads > 5 * SEEDS
    assert retained > SEEDS // 4


@pytest.mark.parametrize("packs", [False, True])
def test_power_lost_at_every_call_of_a_life(packs: bool) -> None:
    def live(disk: SimDisk) -> None:
        harness = anchored(disk, anchor_us=1, packs=packs)
        spec = TopicSpec(TOPIC, "t", segment_bytes=4096, retention_bytes=6000)
        partition = harness.open(spec)
        for number in range(12):
            harness.append(partition, [Random(number).randbytes(700)])
            harness.scheduler.run_until_idle()
            harness.tick()
        harness.close()

    whole = SimDisk(seed=1)
    live(whole)
    assert sound(whole).partitions[0].start > 0
    for call in range(1, whole.total_calls + 1):
        disk = SimDisk(seed=1)
        disk.stop_at = call
        with pytest.raises(OSError):
            live(disk)
            raise PowerLoss  # the last calls are of threads whose failure nobody sees
        disk.crash(Random(call))
        assert verify(disk).broken is None, call
        harness = anchored(disk, packs=packs)
        partition = harness.open(TopicSpec(TOPIC, "t", segment_bytes=4096))
        harness.write(partition, 2)
        harness.close()
        assert verify(disk).broken is None, call
        assert "anchor_differs" not in harness.kinds()


# -- anchors -----------------------------------------------------------------------------------------------------------


def lines(disk: SimDisk) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (disk.read_file(ANCHORS) or b"").splitlines()]


def test_anchors_come_when_something_moved_and_at_the_stop() -> None:
    harness = anchored(anchor_us=10_000_000)
    partition = harness.open()
    harness.write(partition, 2)
    harness.tick(1_000_000)
    first = len(lines(harness.sim))
    for _ in range(30):
        harness.tick(1_000_000)
    assert len(lines(harness.sim)) == first == 1
    harness.write(partition, 1)
    harness.tick(11_000_000)
    assert [line["heads"][0][2] for line in lines(harness.sim)] == [2, 3]
    harness.write(partition, 1)
    harness.close()
    assert [line["heads"][0][:3] for line in lines(harness.sim)][2:] == [[TOPIC, 0, 4]]
    assert harness.log.stats()["anchors"] == 3
    harness.start()
    harness.open()
    harness.close()
    assert len(lines(harness.sim)) == 3


@pytest.mark.parametrize("durability", ["interval", "os"])
def test_only_what_is_durable_is_anchored(durability: Any) -> None:
    harness = anchored(chain="all", anchor_us=1)
    partition = harness.open(TopicSpec(TOPIC, "t", durability=durability))
    assert isinstance(partition, FilePartition)
    for number in range(20):
        harness.write(partition, 1, seed=number)
        harness.tick(30_000)
        assert partition.mark is None or partition.links.durable.next_offset == partition.mark.next_offset
        heads = [head[2] for line in lines(harness.sim) for head in line["heads"]]
        assert max(heads, default=0) <= (partition.mark.next_offset if partition.mark is not None else 0)
    harness.close()
    assert sound(harness.sim).rows == 20


def test_a_torn_last_line_is_cut_off_and_written_over() -> None:
    harness = anchored()
    harness.write(harness.open(), 2)
    harness.close()
    whole = file_of(harness.sim, ANCHORS)
    for size in range(1, len(whole)):
        disk = SimDisk()
        disk.restore(harness.sim.snapshot())
        disk.damage(ANCHORS, whole + whole[:size].replace(b"\n", b""))
        again = anchored(disk)
        again.write(again.open(), 1)
        again.close()
        assert [line["seq"] for line in lines(disk)] == [0, 1]
        assert sound(disk).rows == 3


def test_deleting_a_topic_and_retention_are_noted_first() -> None:
    harness = anchored()
    spec = TopicSpec(TOPIC, "t", segment_bytes=4096, retention_bytes=5000)
    harness.write(harness.open(spec), 100)
    other = harness.log.open_topic(TopicSpec(TOPIC + 1, "u"))[0]
    harness.write(other, 3)
    harness.tick(20_000_000)
    for _ in range(5):
        harness.tick()
    harness.log.delete_topic(TOPIC + 1)
    harness.scheduler.run_until_idle()
    harness.close()
    found = sound(harness.sim)
    assert found.anchors is not None
    assert found.partitions[0].start == found.anchors.starts[TOPIC, 0] > 0
    assert found.anchors.deleted == {TOPIC + 1}
    assert len(found.partitions) == 1
    assert not harness.sim.is_dir(f"/data/topics/{TOPIC + 1:08d}")


def test_without_room_for_anchors_removal_goes_on_and_is_noted_later() -> None:
    harness = anchored()
    spec = TopicSpec(TOPIC, "t", segment_bytes=4096, retention_bytes=5000)
    partition = harness.open(spec)
    harness.write(partition, 100)
    harness.sim.fail("truncate", 1, errno.ENOSPC, times=1 << 30)
    for _ in range(3):
        harness.tick(20_000_000)
    assert "anchors_failed" in harness.kinds()
    assert partition.start > 0
    harness.sim.heal()
    harness.tick(20_000_000)
    harness.close()
    found = sound(harness.sim)
    assert found.anchors is not None
    assert found.anchors.starts == {(TOPIC, 0): partition.start}


def test_anchors_are_kept_in_two_files_of_bounded_size() -> None:
    harness = anchored(anchor_us=1)
    harness.log._anchors = small = Anchoring(harness.log._shared, ANCHORS, 1, file_bytes_max=1000)
    small.open()
    harness.log._shared.before_removal = small.before_removal
    partition = harness.open()
    heads = []
    for number in range(40):
        harness.write(partition, 1, seed=number)
        harness.tick()
        heads.append(harness.log.anchor_head)
        assert len(file_of(harness.sim, ANCHORS)) < 1500
        sound(harness.sim, head=heads[-1])
    harness.close()
    assert verify(harness.sim, head=heads[0]).status == 2  # so long ago that nobody knows
    assert sound(harness.sim, head=heads[-2]).rows == 40
    assert [line["seq"] for line in lines(harness.sim)][-1] == 39


def test_a_start_with_less_than_was_anchored_uses_no_offset_again() -> None:
    harness = anchored()
    harness.write(harness.open(), 10)
    harness.close()
    data = file_of(harness.sim, SEGMENT)
    batch = RecordBatch(data[HEADER_BYTES : HEADER_BYTES + 1000])
    harness.sim.damage(SEGMENT, data[: HEADER_BYTES + 6 * batch.length])
    for name in ("checkpoint.a", "checkpoint.b"):
        if harness.sim.read_file(f"/data/{name}") is not None:
            harness.sim.unlink(f"/data/{name}")
    harness.start()
    assert [row[0] for row in harness.write(harness.open(), 2)] == [10, 11]
    [lost] = [fields for kind, fields in harness.reports if kind == "corrupt_range"]
    assert (lost["first_offset"], lost["next_offset"]) == (6, 10)
    harness.tick(20_000_000)
    harness.write(harness.open(), 20)
    harness.close()
    assert [line["heads"][0][2] for line in lines(harness.sim)] == [10, 12, 32]
    assert verify(harness.sim).broken is not None  # it stays visible although the log is longer than it was


def test_the_anchors_know_the_end_when_segment_and_checkpoints_are_gone() -> None:
    harness = anchored()
    partition = harness.open()
    rows = harness.write(partition, 3)
    assert isinstance(partition, FilePartition)
    partition.seal_active()
    harness.write(partition, 4, seed=2)
    harness.close()
    for path in [path for path in harness.sim.snapshot() if path.endswith((f"{3:020d}.seg", ".a", ".b"))]:
        harness.sim.unlink(path)
    harness.start()
    partition = harness.open()
    assert harness.read_all(partition) == rows
    assert partition.end == 7
    assert "corrupt_range" in harness.kinds()


def test_a_flipped_bit_in_an_anchor_moves_no_end_of_a_log() -> None:
    harness = anchored()
    harness.write(harness.open(), 3)
    harness.close()
    image = harness.sim.snapshot()
    data = file_of(harness.sim, ANCHORS)
    disk = SimDisk()
    for bit in range(8 * (len(data) - 1)):  # without its end it is a line that was not finished
        broken = bytearray(data)
        broken[bit >> 3] ^= 1 << (bit & 7)
        disk.restore(image | {ANCHORS: bytes(broken)})
        harness = anchored(disk)
        assert harness.open().end == 3, bit
        assert "anchors_damaged" in harness.kinds(), bit
        assert "corrupt_range" not in harness.kinds(), bit
