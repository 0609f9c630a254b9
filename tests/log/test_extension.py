"""Zeros are written ahead of the records of a segment by another thread: they never come over a record.

Found by tests/cell_faults on a busy machine: a batch that went past the prepared part had zeros from there on, though it was acknowledged.
"""

from collections.abc import Callable, Sequence

import pytest

from quintet import kernel
from quintet.kernel.buffer import Buffer
from quintet.log.base import Durability, TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.partitions.partition import STAGE_EARLY_BYTES, FilePartition
from quintet.model import limits
from quintet.model.errors import CorruptData
from quintet.testing.sim import SimDisk, SimScheduler
from tests.log.support import DATA, Harness

TOPIC = TopicSpec(16, "orders", segment_bytes=1 << 20)
PREPARED = limits.PREALLOCATE_FIRST_BYTES


class TwoThreads(SimDisk):
    """Does what another thread has to do at the worst moment: right behind the next write."""

    other: Callable[[], object] | None = None

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        super().pwritev(handle, buffers, position)
        if self.other is not None:
            other, self.other = self.other, None
            other()


def crossing() -> tuple[TwoThreads, SimScheduler, FilePartition, list[int]]:
    """A partition whose write under way goes past what is prepared, begun when the one before it had ended."""
    disk, scheduler, acknowledged = TwoThreads(), SimScheduler(held=True), list[int]()
    log = EmbeddedLog(DATA, disk, scheduler, lambda kind, fields: None, packs=False, journal_threshold=1 << 30)
    log.recover()
    [partition] = log.open_topic(TOPIC)
    assert isinstance(partition, FilePartition)

    def append(size: int) -> None:
        partition.append(kernel.build([b"x" * size]), lambda base, error: acknowledged.append(base))
        scheduler.run_until_idle()

    append(PREPARED // 4)
    scheduler.finish()
    append(PREPARED // 2)
    append(STAGE_EARLY_BYTES)  # so much that it is staged while the one before it is written
    scheduler.finish()
    scheduler.run_until_idle()
    assert acknowledged == [0, 1]
    return disk, scheduler, partition, acknowledged


def finish_together(disk: TwoThreads, scheduler: SimScheduler) -> None:
    """The first job, and whatever else waits in the middle of it."""
    jobs = list(scheduler.jobs)
    if len(jobs) > 1:
        disk.other = jobs[1][0]
        del scheduler.jobs[1]
    scheduler.finish()
    scheduler.run_until_idle()


def rows(partition: FilePartition) -> list[int]:
    found, offset = list[int](), 0
    while offset < partition.visible:
        batches = partition.read_now(offset)
        assert batches
        found += [batch.base_offset for batch in batches]
        offset = batches[-1].next_offset
    return found


def test_no_zeros_come_over_a_write_that_is_under_way() -> None:
    disk, scheduler, partition, acknowledged = crossing()
    finish_together(disk, scheduler)
    assert acknowledged == [0, 1, 2]
    assert rows(partition) == [0, 1, 2]


def test_zeros_beside_a_write_that_goes_past_them_are_found_out() -> None:
    disk, scheduler, partition, _ = crossing()
    partition._growing = False
    partition._extend(0)
    finish_together(disk, scheduler)
    with pytest.raises((CorruptData, AssertionError)):
        assert rows(partition) == [0, 1, 2]


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
@pytest.mark.parametrize("lends", [False, True])
def test_what_comes_behind_an_early_chunk_is_written_too(durability: Durability, lends: bool) -> None:
    """A file is made; meanwhile so much comes that it is sealed early, and then a little more: nobody else appends after that."""
    harness = Harness(lends=lends)
    partition = harness.open(TopicSpec(16, "orders", durability=durability))
    harness.scheduler.held = True
    sent = [b"first" * 1_000, bytes(STAGE_EARLY_BYTES), b"more than is lent" * 1_000]
    for value in sent:
        harness.append(partition, [value])
        harness.scheduler.run_until_idle()
    harness.scheduler.held = False
    harness.scheduler.run_until_idle()
    assert [error for _, error in harness.acks] == [None] * len(sent)
    assert [value for _, _, value in harness.read_all(partition)] == sent
