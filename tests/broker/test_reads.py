"""Reads by offset: from memory and from disk the same, bounded per call, and clear about what is not there."""

from typing import TypeVar

import pytest

from quintet import kernel
from quintet.broker.slices import Slices
from quintet.broker.topics import filters, reads
from quintet.broker.topics.reads import SCAN_RECORDS_MAX, Match
from quintet.log.base import Partition
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.batch import RecordBatch
from quintet.model.errors import CorruptData, OffsetNotFound
from quintet.model.tasks import Verb, start
from quintet.testing.sim import START_US
from tests.broker.parts import SECOND, Parts

ALL = filters.compile(b"")
T = TypeVar("T")


class Shelf:
    """A topic with one partition and its reader; `cold` reads come from disk."""

    def __init__(self, cold: bool = False) -> None:
        self.parts = Parts()
        self.cold = cold
        self.patience = reads.Patience(Slices(self.parts.scheduler))
        self.partition: Partition = self.parts.topic(b"t").partitions[0]

    def add(self, *values: bytes, key: bytes | None = None, expiry: int = 0) -> None:
        """One batch."""
        batch = kernel.build(list(values), [key] * len(values), expiries=[expiry] * len(values), origin=b"test:1")
        self.partition.append(batch, None)
        self.parts.scheduler.run_until_idle()

    def ask(self, verb: Verb[T]) -> tuple[T | None, Exception | None]:
        if self.cold:
            assert isinstance(self.partition, FilePartition)
            self.partition.cache.clear()
        answers: list[tuple[T | None, Exception | None]] = []
        start(verb).then(lambda *answer: answers.append(answer))
        self.parts.scheduler.run_until_idle()
        [answer] = answers
        return answer

    def fetch(self, offset: int, records: int, size: int = 1 << 20) -> list[RecordBatch]:
        batches, error = self.ask(reads.fetch(self.partition, offset, records, size))
        assert error is None and batches is not None
        return batches

    def scan(
        self, offset: int, wanted: int, text: bytes = b"", records: int = SCAN_RECORDS_MAX
    ) -> tuple[list[Match], int]:
        found = filters.compile(text)
        now = self.parts.scheduler.now()
        answer, error = self.ask(
            reads.fetch_filtered(self.partition, offset, wanted, records, found, now, self.patience)
        )
        assert error is None and answer is not None
        return answer

    def consume(self, offset: int) -> tuple[tuple[bytes | None, bytes | None] | None, Exception | None]:
        return self.ask(reads.consume(self.partition, offset, self.parts.scheduler.now()))


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def shelf(request: pytest.FixtureRequest) -> Shelf:
    return Shelf(cold=request.param)


def test_batches_until_there_are_enough(shelf: Shelf) -> None:
    for number in range(10):
        shelf.add(b"%d-a" % number, b"%d-b" % number)
    assert [batch.base_offset for batch in shelf.fetch(0, 4)] == [0, 2]
    assert [batch.base_offset for batch in shelf.fetch(3, 2)] == [2, 4]
    assert [batch.base_offset for batch in shelf.fetch(0, 100)] == list(range(0, 20, 2))
    assert [batch.base_offset for batch in shelf.fetch(0, 100, 1)] == [0]
    assert shelf.fetch(20, 5) == []
    assert shelf.fetch(99, 5) == []
    assert shelf.fetch(0, 0) == []


def test_large_batches_in_several_reads(shelf: Shelf) -> None:
    for number in range(6):
        shelf.add(bytes([number]) * 600_000)
    assert len(shelf.fetch(0, 100, 8 << 20)) == 6
    assert len(shelf.fetch(0, 100, 1_300_000)) == 3


def test_filtered_rows_and_where_to_go_on(shelf: Shelf) -> None:
    for number in range(30):
        shelf.add(b"value %d" % number, key=b"k%d" % (number % 3))
    assert shelf.scan(0, 2) == ([(0, b"k0", b"value 0"), (1, b"k1", b"value 1")], 2)
    assert shelf.scan(5, 1, b"key:k0") == ([(6, b"k0", b"value 6")], 7)
    assert shelf.scan(0, 5, b"value 2") == ([(o, b"k%d" % (o % 3), b"value %d" % o) for o in (2, 20, 21, 22, 23)], 24)
    assert shelf.scan(0, 5, b"text:absent") == ([], 30)
    assert shelf.scan(0, 5, b"text:absent", records=7) == ([], 7)
    assert shelf.scan(30, 5) == ([], 30)
    assert shelf.scan(99, 5) == ([], 99)


def test_a_scan_looks_at_a_bounded_number_of_records(shelf: Shelf) -> None:
    shelf.add(*(b"%d" % number for number in range(2500)))
    position, calls = 0, []
    while position < 2500:
        rows, position = shelf.scan(position, 10, b"text:absent", records=1 << 30)
        assert rows == []
        calls.append(position)
    assert calls == [1000, 2000, 2500]


def test_a_scan_looks_at_a_bounded_number_of_bytes(shelf: Shelf) -> None:
    for _ in range(12):
        shelf.add(bytes(900_000))
    assert shelf.scan(0, 100, b"text:absent") == ([], 5)
    assert shelf.scan(0, 100, b"$.absent") == ([], 2)


def test_expired_records_are_passed_over(shelf: Shelf) -> None:
    shelf.add(b"a")
    shelf.add(b"b", expiry=START_US + SECOND)
    shelf.add(b"c")
    shelf.parts.scheduler.advance(2 * SECOND)
    assert shelf.scan(0, 10) == ([(0, None, b"a"), (2, None, b"c")], 3)
    assert "has expired" in str(shelf.consume(1)[1])
    assert shelf.consume(2) == ((None, b"c"), None)


def test_exactly_that_offset_or_why_not(shelf: Shelf) -> None:
    shelf.add(b"a", b"b", key=b"k")
    assert shelf.consume(1) == ((b"k", b"b"), None)
    for offset in (2, 1 << 63):
        found, error = shelf.consume(offset)
        assert found is None
        assert isinstance(error, OffsetNotFound)
        assert "past the end: the next record gets offset 2" in str(error)


def test_what_retention_took() -> None:
    shelf = Shelf(cold=True)
    partition = shelf.partition
    assert isinstance(partition, FilePartition)
    for number in range(4):
        shelf.add(b"%d" % number)
        partition.seal_active()
    del partition.segments[:2]
    assert shelf.partition.start == 2
    assert shelf.scan(0, 10) == ([(2, None, b"2"), (3, None, b"3")], 4)
    assert [batch.base_offset for batch in shelf.fetch(0, 10)] == [2, 3]
    _, error = shelf.consume(1)
    assert isinstance(error, OffsetNotFound)
    assert "no longer kept: the first one is 2" in str(error)


def test_what_compaction_took() -> None:
    batch = kernel.build([b"a", b"b", b"c"], origin=b"test:1")
    kernel.seal(batch, 0, START_US, 0)
    sparse = kernel.select(batch, [0, 2])
    assert sparse is not None
    held = [RecordBatch(sparse)]
    assert [row and row[3] for row in (reads.row_at(held, offset) for offset in range(4))] == [b"a", None, b"c", None]


def test_an_unreadable_disk_is_an_error_and_not_an_end() -> None:
    shelf = Shelf(cold=True)
    shelf.add(b"a")
    assert isinstance(shelf.partition, FilePartition)
    shelf.partition.cache.clear()
    shelf.parts.disk.fail("open", 1, 5, times=10)
    assert type(shelf.ask(reads.fetch(shelf.partition, 0, 10, 1000))[1]) is CorruptData
    scan = reads.fetch_filtered(shelf.partition, 0, 10, 10, ALL, START_US, shelf.patience)
    assert type(shelf.ask(scan)[1]) is CorruptData
    assert type(shelf.consume(0)[1]) is CorruptData


def test_the_offset_of_a_time(shelf: Shelf) -> None:
    for number in range(5):
        shelf.add(b"%d" % number)
        shelf.parts.scheduler.advance(SECOND)
    asked = [0, START_US, START_US + 1, START_US + 3 * SECOND, START_US + 99 * SECOND]
    answers = [shelf.ask(reads.offset_for_time(shelf.partition, at)) for at in asked]
    assert answers == [(0, None), (0, None), (1, None), (3, None), (5, None)]
