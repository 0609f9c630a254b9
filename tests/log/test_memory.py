"""Memory topics: bounded each and all together, the oldest go first, offsets never come back."""

from random import Random

from quintet import kernel
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.partitions.memory import MemoryPartition
from quintet.log.embedded.partitions.shared import OBJECT_BYTES
from quintet.model import limits
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk, SimScheduler


def engine(total: int) -> tuple[EmbeddedLog, SimScheduler]:
    scheduler = SimScheduler()
    log = EmbeddedLog(DATA, SimDisk(), scheduler, lambda event, fields: None, memory_topics_bytes=total)
    log.recover()
    return log, scheduler


def kept(partition: Partition) -> int:
    assert isinstance(partition, MemoryPartition)
    return sum(batch.length + OBJECT_BYTES for batch in partition.read_now(0))


def test_all_memory_topics_together_stay_below_their_bound() -> None:
    total = 40_000
    log, scheduler = engine(total)
    partitions = [
        log.open_topic(TopicSpec(16 + n, f"t{n}", durability="memory", memory_bytes=12_000))[0] for n in range(8)
    ]
    rng = Random(5)
    for _ in range(2_000):
        partition = rng.choice(partitions)
        partition.append(kernel.build([bytes(rng.randint(0, 900))], origin=b"t:t"), None)
        if rng.random() < 0.5:
            scheduler.turn()
            # the newest batch of each topic always stays, whatever the bound says
            assert sum(map(kept, partitions)) <= total + len(partitions) * 1_500
            assert all(kept(p) <= 12_000 + 1_500 for p in partitions)
    scheduler.turn()
    for partition in partitions:
        batches = partition.read_now(partition.start)
        assert batches[0].base_offset == partition.start
        assert batches[-1].next_offset == partition.visible


def test_one_noisy_topic_does_not_take_what_is_newer_elsewhere() -> None:
    log, scheduler = engine(20_000)
    quiet = log.open_topic(TopicSpec(16, "quiet", durability="memory"))[0]
    noisy = log.open_topic(TopicSpec(17, "noisy", durability="memory"))[0]
    for _ in range(200):
        noisy.append(kernel.build([bytes(500)], origin=b"t:t"), None)
        scheduler.turn()
    quiet.append(kernel.build([b"new"], origin=b"t:t"), None)
    scheduler.turn()
    assert [row[3] for batch in quiet.read_now(0) for row in batch.rows()] == [b"new"]
    assert noisy.start > 0


def test_only_the_newest_batches_of_all_topics_keep_encoded_frames() -> None:
    log, scheduler = engine(limits.MEMORY_TOPICS_BYTES)
    partitions = [
        log.open_topic(TopicSpec(16, "memory", durability="memory"))[0],
        log.open_topic(TopicSpec(17, "disk"))[0],
    ]
    for _ in range(24):
        for partition in partitions:
            partition.append(kernel.build([bytes(limits.MIB)], origin=b"t:t"), None)
        scheduler.run_until_idle()
        for partition in partitions:
            partition.read(partition.visible - 1, 1)  # as a subscriber does
    found = [partition.read(0, limits.MEMORY_TOPICS_BYTES) or [] for partition in partitions]
    memos = [[batch.memo is not None for batch in batches] for batches in found]
    assert all(len(marks) == 24 and marks == sorted(marks) and sum(marks) >= 7 for marks in memos)
    assert sum(map(sum, memos)) == 15  # of 1 MiB and a little
    assert log._shared.memo_bytes <= limits.ENCODED_FOR_BYTES


def test_an_idle_topic_keeps_its_batch_beside_a_busy_one() -> None:
    log, scheduler = engine(1 << 20)
    idle = log.open_topic(TopicSpec(20, "idle", durability="memory"))[0]
    busy = log.open_topic(TopicSpec(21, "busy", durability="memory", memory_bytes=5_000))[0]
    idle.append(kernel.build([b"first"], [None]), None)
    for _ in range(1_000):
        busy.append(kernel.build([bytes(100)], [None]), None)
        scheduler.run_until_idle()
    assert log.tails.bytes < 12_000
    assert idle.read_now(0)[0].rows()[0][3] == b"first"
