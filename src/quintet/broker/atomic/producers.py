"""Recognizes the retries of idempotent producers: knows which sequence numbers a partition already holds.

An idempotent producer numbers its messages per partition from 0 and sends each with its own id (63 random bits). A
message whose number is expected is appended; one that is already there is answered with the offset it has; one that
leaves a gap is refused, so nothing is ever missing in between. What a producer did is written in its batches
themselves (producer_id and sequence in the header); this module keeps the recent part of it in memory and a snapshot in
`__producers`, and after a crash reads only what was appended since the snapshot.

Bounds: the last PRODUCERS_MAX producers of a partition, and of each the last RANGES_MAX runs of neighbouring offsets.
A producer that is forgotten must start over under a new id; a retry older than what is remembered is refused. Only the very
first message of a producer that was forgotten meanwhile would be taken for a new one.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec

from quintet.broker.table import Done, Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.log.base import Appended
from quintet.model.batch import RecordBatch, placed, producer_of
from quintet.model.errors import OutOfSequence, QuintetError, StorageError

PRODUCERS_MAX: Final = 1_000  # per partition
RANGES_MAX: Final = 64  # per producer
SAVE_EVERY_US: Final = 1_000_000
PRODUCER_ID_MAX: Final = (1 << 63) - 1

# first sequence, one past the last, offset of the first, time of the batch in microseconds
Range = tuple[int, int, int, int]
# how many records, and where they already are (offset, time) or None: they are to be appended
Piece = tuple[int, tuple[int, int] | None]


class ProducerRow(msgspec.Struct, frozen=True, array_like=True):
    """One partition's producers as of offset `upto`."""

    topic: str
    topic_id: int
    partition: int
    upto: int
    producers: list[tuple[int, list[Range]]]


class _Producer:
    """What is known of one producer on one partition. `next` runs ahead of `ranges` by what is on its way."""

    __slots__ = ("next", "ranges", "waiting")

    def __init__(self, ranges: list[Range]) -> None:
        self.ranges = ranges
        self.next = ranges[-1][1] if ranges else 0
        self.waiting: list[tuple[int, Callable[[Exception | None], None]]] = []

    def stored(self, first: int, count: int, offset: int, time: int) -> None:
        ranges = self.ranges
        if ranges and ranges[-1][3] == time and _continues(ranges[-1], first, offset):
            ranges[-1] = (ranges[-1][0], first + count, ranges[-1][2], time)
            return
        ranges.append((first, first + count, offset, time))
        if (
            len(ranges) > RANGES_MAX
        ):  # neighbours become one, with the time of the older: a retry finds its offset still
            oldest, second = ranges[0], ranges[1]
            if _continues(oldest, second[0], second[2]):
                ranges[1] = (oldest[0], second[1], oldest[2], oldest[3])
            del ranges[0]


def _continues(last: Range, first: int, offset: int) -> bool:
    """Does a run that begins so follow this one, in sequence and in offset?"""
    return last[1] == first and last[2] + first - last[0] == offset


class Producers:
    """All partitions that ever had an idempotent producer."""

    def __init__(self, table: Table[ProducerRow], topics: Topics) -> None:
        self._table = table
        self._topics = topics
        self._known: dict[tuple[int, int], OrderedDict[int, _Producer]] = {}
        self._where: dict[tuple[int, int], Topic] = {}
        self._opening: dict[tuple[int, int], list[tuple[bytearray, int, Appended]]] = {}
        self._dirty: set[tuple[int, int]] = set()
        self._saved_at = 0
        self.duplicates = 0

    def load(self) -> None:
        """Fold the snapshots, then what was appended since. Blocks on reads: only used at start."""
        for row in list(self._table):
            topic = self._topics.get(row.topic.encode())
            if topic is None or topic.spec.id != row.topic_id or row.partition >= len(topic.partitions):
                self._table.delete(_key(row.topic_id, row.partition))
                continue
            known: OrderedDict[int, _Producer] = OrderedDict((id, _Producer(list(r))) for id, r in row.producers)
            where = (row.topic_id, row.partition)
            self._known[where] = known
            self._where[where] = topic
            self._read_since(known, topic, row)
            if (
                row.upto > topic.partitions[row.partition].visible
            ):  # a lossy topic: what comes now is below the snapshot
                self._dirty.add(where)

    def _read_since(self, known: OrderedDict[int, _Producer], topic: Topic, row: ProducerRow) -> None:
        partition = topic.partitions[row.partition]
        offset = max(row.upto, partition.start)
        while offset < partition.visible:
            batches = partition.read_now(offset)
            if not batches:
                return
            for batch in batches:
                id, sequence = batch.producer
                if 0 < id <= PRODUCER_ID_MAX and batch.base_offset >= row.upto:
                    producer = _remember(known, id)
                    # What compaction took from a batch was there: a sequence is as wide as its offsets.
                    producer.stored(sequence, batch.span, batch.base_offset, batch.timestamp)
                    producer.next = sequence + batch.span
            offset = batches[-1].next_offset

    def plan(self, topic: Topic, partition: int, batch: bytearray) -> list[Piece]:
        """How the records of an idempotent batch are to be treated, in order. Raises OutOfSequence."""
        producer_id, sequence = producer_of(batch)
        count = RecordBatch(batch).count
        producer = self._find(topic, partition, producer_id)
        if producer is None:
            if sequence != 0:
                raise OutOfSequence(
                    f"producer {producer_id} is not known on partition {partition} of {topic.name!r} and begins at "
                    f"{sequence}: only 0 can be the first",
                    hint="begin again with a new producer id",
                )
            return [(count, None)]
        if sequence > producer.next:
            raise OutOfSequence(
                f"producer {producer_id} sent message {sequence} to partition {partition} of {topic.name!r}, "
                f"{producer.next} comes next",
                hint="send what is missing first",
            )
        pieces: list[Piece] = []
        end = min(sequence + count, producer.next)
        while sequence < end:
            found = next((r for r in producer.ranges if r[0] <= sequence < r[1]), None)
            if found is None:
                raise OutOfSequence(
                    f"message {sequence} of producer {producer_id} was stored or is on its way, and its offset is not "
                    "at hand",
                    hint="wait for the answer to the first attempt, or begin again with a new producer id",
                )
            size = min(found[1], end) - sequence
            pieces.append((size, (found[2] + sequence - found[0], found[3])))
            count -= size
            sequence += size
        if pieces:
            self.duplicates += sum(size for size, _ in pieces)
        if count:
            pieces.append((count, None))
        return pieces

    def _find(self, topic: Topic, partition: int, producer_id: int) -> _Producer | None:
        known = self._known.get((topic.spec.id, partition))
        return None if known is None else known.get(producer_id)

    def in_flight(self, topic: Topic, partition: int, batch: bytearray) -> bool:
        """Is part of this batch a retry of something still on its way to the disk?"""
        producer_id, sequence = producer_of(batch)
        producer = self._find(topic, partition, producer_id)
        if producer is None:
            return False
        stored = producer.ranges[-1][1] if producer.ranges else 0
        return bool(
            sequence < producer.next and sequence + RecordBatch(batch).count > stored and stored < producer.next
        )

    def wait(self, topic: Topic, partition: int, batch: bytearray, call: Callable[[Exception | None], None]) -> None:
        """Call when what is on its way from this producer is stored, or was refused."""
        producer_id, _ = producer_of(batch)
        producer = self._known[topic.spec.id, partition][producer_id]
        producer.waiting.append((producer.next, call))

    def append(self, topic: Topic, partition: int, batch: bytearray, done: Appended) -> None:
        """Append a batch whose sequence is the expected one."""
        producer_id, sequence = producer_of(batch)
        where = (topic.spec.id, partition)
        known = self._known.get(where)
        if known is None:
            known = self._open(where, topic)
        producer = _remember(known, producer_id)
        count = RecordBatch(batch).count
        stored = partial(self._appended, where, producer, batch, sequence, count, done)
        waiting = self._opening.get(where)
        if waiting is None:
            topic.publish(batch, count, True, stored, partition)
        else:
            waiting.append((batch, count, stored))
        producer.next = sequence + count

    def _open(self, where: tuple[int, int], topic: Topic) -> OrderedDict[int, _Producer]:
        """The first producer of a partition: nothing of it is appended before its row is durable, or a start after a
        crash would not know that there is something to look for."""
        topic.check_writable(where[1])  # it may have been deleted: then nobody would call `_opened`
        known: OrderedDict[int, _Producer] = OrderedDict()
        self._known[where], self._where[where], self._opening[where] = known, topic, []
        try:
            self._save(where, partial(self._opened, where, topic))
        except QuintetError:
            del self._known[where], self._where[where], self._opening[where]
            raise
        return known

    def _opened(self, where: tuple[int, int], topic: Topic, error: Exception | None) -> None:
        waiting = self._opening.pop(where)
        if error is not None:
            self._known.pop(where, None)
            self._where.pop(where, None)
        for batch, count, stored in waiting:
            if error is None:
                try:
                    topic.publish(batch, count, True, stored, where[1])
                except QuintetError as refused:
                    error = refused  # and all behind it: what follows a gap must not be stored
            if error is not None:
                stored(-1, error)

    def _appended(
        self,
        where: tuple[int, int],
        producer: _Producer,
        batch: bytearray,
        sequence: int,
        count: int,
        done: Appended,
        offset: int,
        error: Exception | None,
    ) -> None:
        if error is None:
            producer.stored(sequence, count, offset, placed(batch).timestamp)
            if where in self._where:
                self._dirty.add(where)
        else:
            producer.next = min(producer.next, sequence)
        done(offset, error)
        stored = producer.ranges[-1][1] if producer.ranges else 0
        if producer.waiting and (error is not None or producer.waiting[0][0] <= stored):
            ready = [call for upto, call in producer.waiting if error is not None or upto <= stored]
            producer.waiting = [] if error is not None else [item for item in producer.waiting if item[0] > stored]
            for call in ready:
                call(None)

    def forget(self, topic: Topic) -> None:
        """The topic was deleted: so is what its partitions knew. What is on its way is refused by the topic itself."""
        for number in range(len(topic.partitions)):
            where = (topic.spec.id, number)
            self._dirty.discard(where)
            if self._known.pop(where, None) is not None:
                del self._where[where]
                with suppress(QuintetError):  # a full disk: the next start finds it without a topic
                    self._table.delete(_key(*where))

    # -- snapshots -------------------------------------------------------------------------------------------------

    def tick(self, monotonic: int) -> None:
        if self._dirty and monotonic - self._saved_at >= SAVE_EVERY_US:
            self._saved_at = monotonic
            self.save()

    def save(self) -> None:
        """Write a snapshot of every partition that changed."""
        dirty, self._dirty = self._dirty, set()
        for where in dirty:
            try:
                self._save(where)
            except StorageError:  # a full disk: the log itself still tells, from the last snapshot on
                self._dirty.add(where)

    def _save(self, where: tuple[int, int], done: Done | None = None) -> None:
        topic = self._where[where]
        upto = topic.partitions[where[1]].visible
        producers = [(id, producer.ranges) for id, producer in self._known[where].items()]
        durable = self._table.put(_key(*where), ProducerRow(topic.name, where[0], where[1], upto, producers))
        if done is not None:
            durable.then(lambda _, error: done(error))


def _remember(known: OrderedDict[int, _Producer], id: int) -> _Producer:
    producer = known.get(id)
    if producer is None:
        producer = known[id] = _Producer([])
        if len(known) > PRODUCERS_MAX:
            known.popitem(last=False)
    known.move_to_end(id)
    return producer


def _key(topic_id: int, partition: int) -> bytes:
    return f"{topic_id}/{partition}".encode()
