"""Keeps delayed messages durable until they are due, and then appends each to its topic exactly once.

    produce --> row in __delayed durable --> waiting --due--> leaving --intent durable--> in the topic, row gone
                                                |                |
                                                cancel           refused: waiting again

A waiting message is a row of the internal topic `__delayed`, ordered by a heap that is made again at start. What is due
leaves in one intent per tick, in order of due time, then of arrival; taking the rows away is the intent's effect, so a
crash delivers neither twice nor never. What a partition refuses is tried again a second later, and may then come behind
others. Time is the scheduler's clock: if that is put back, messages wait longer, and none goes early.

The record is as the client made it, no header is added, and its time is that of delivery. If its topic was deleted
meanwhile (also if one of the same name was made since) it becomes a dead letter with the cause "topic deleted".
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import ClassVar, Final, Self

import msgspec

from quintet.broker.atomic.dead_letters import NOWHERE, DeadLetters, Failure
from quintet.broker.atomic.intent_rows import Adding, Effect, Records
from quintet.broker.atomic.intents import Intents, NotYetVisible, topic_ready
from quintet.broker.table import Table
from quintet.broker.topics.catalog import ANY, Topic, Topics
from quintet.model.batch import Header
from quintet.model.errors import BadRequest, LimitExceeded, OffsetNotFound, QuintetError, TooLarge, message_of
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, sleep, start_alone

TABLE: Final = (9, "__delayed")
DELAY_MAX_US: Final = 365 * 24 * 3600 * 1_000_000
CLOCK_SLACK_US: Final = 1_000_000  # a due time may be this far in the past: the clock goes on while a request is read
DELAYED_MAX: Final = 1_000_000  # messages
DELAYED_BYTES_MAX: Final = 256 << 20
MESSAGE_BYTES_MAX: Final = 8 << 20  # its row is packed, checked and copied on the loop: 31 MiB took 65 ms of it
ROW_BYTES: Final = (
    560  # what a row costs beside its payload: the row, its numbers, its places in heap and table; measured
)
HEADER_BYTES: Final = 200  # what a header costs beside its texts
RECORDS_PER_TICK_MAX: Final = 1_000
BYTES_PER_TICK_MAX: Final = 8 << 20  # a larger message goes alone
RETRY_US: Final = 1_000_000  # after a refusal

Headers = tuple[Header, ...]
Report = Callable[[str, dict[str, object]], None]


class DelayedRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__delayed` keeps. topic_id 0: a topic in memory, which has another number after every start."""

    handle: int
    owner: str
    topic: str
    topic_id: int
    partition: int
    due: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    origin: bytes
    ttl_us: int = 0  # from its delivery on; 0: it does not expire


class DelayedSent(Effect, frozen=True):
    """These messages are in their topics: their rows go away. On disk the payload is the list itself."""

    kind: ClassVar[str] = "delayed-sent"
    handles: list[int]

    def payload(self) -> bytes:
        return msgspec.msgpack.encode(self.handles)

    @classmethod
    def from_payload(cls, payload: bytes) -> Self:
        return cls(msgspec.msgpack.decode(payload, type=list[int]))


class Delays:
    """All waiting messages. The table must be loaded; the effect is registered here, before `recover`."""

    def __init__(
        self,
        table: Table[DelayedRow],
        topics: Topics,
        intents: Intents,
        dead: DeadLetters,
        scheduler: Scheduler,
        report: Report,
        *,
        delayed_max: int = DELAYED_MAX,
        delayed_bytes_max: int = DELAYED_BYTES_MAX,
    ) -> None:
        self._table = table
        self._topics = topics
        self._intents = intents
        self._dead = dead
        self._scheduler = scheduler
        self._report = report
        self._max = delayed_max
        self._bytes_max = delayed_bytes_max
        self._heap: list[tuple[int, int, int]] = []  # (not before, due, handle); a cancelled handle has no row any more
        self._storing: set[int] = set()
        self._leaving: set[int] = set()
        self._sending = False
        self._last_handle = 0
        self._bytes = 0
        self._count = 0
        self.delivered = 0
        self.cancelled = 0
        self.orphaned = 0  # became dead letters, because their topic was deleted
        intents.on_effect(DelayedSent, self._sent)
        for row in table:
            self._bytes += _size(row)
            self._count += 1
            self._last_handle = max(self._last_handle, row.handle)
            self._heap.append((row.due, row.due, row.handle))
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return self._count

    @property
    def kept_bytes(self) -> int:
        """Of all that are kept."""
        return self._bytes

    @property
    def heap_size(self) -> int:
        """Entries of the heap, those of cancelled messages among them."""
        return len(self._heap)

    def walk(self) -> Iterator[DelayedRow]:
        """All that wait, in no order; those that are just leaving among them."""
        return iter(tuple(self._table))

    # -- taking ----------------------------------------------------------------------------------------------------

    async def produce(
        self,
        owner: str,
        topic: Topic,
        partition: int,
        key: bytes | memoryview | None,
        value: bytes | memoryview | None,
        headers: Headers,
        due_us: int,
        origin: bytes,
        ttl_us: int = 0,
    ) -> int:
        """Keep a message until `due_us` (microseconds since 1970), for this partition or ANY: then it is chosen when it
        is delivered, by the key or in turn. Its time to live, if not 0, begins then. Returns its handle when it is durable;
        raises if it was not kept."""
        now = self._scheduler.now()
        if not now - CLOCK_SLACK_US <= due_us <= now + DELAY_MAX_US:
            raise BadRequest(
                f"a delay of {(due_us - now) / 1e6:.3f} s is out of range",
                hint=f"0 to {DELAY_MAX_US // 1_000_000} s (365 days)",
            )
        topic.check_writable(0 if partition == ANY else partition)
        if len(value or b"") + len(key or b"") > MESSAGE_BYTES_MAX:
            raise _too_large(len(value or b"") + len(key or b""))  # before it is copied
        key, value = None if key is None else bytes(key), None if value is None else bytes(value)
        handle = max(self._last_handle + 1, now)  # from the clock: not used again by a broker that starts empty
        row = DelayedRow(
            handle, owner, topic.name, 0 if topic.in_memory else topic.spec.id, partition, due_us, key, value, headers, origin,
            ttl_us,
        )  # fmt: skip
        size = _size(row)
        if size > MESSAGE_BYTES_MAX:
            raise _too_large(size)
        if self._count >= self._max or self._bytes + size > self._bytes_max:
            raise LimitExceeded(
                f"no more delayed messages: {self._count} with {self._bytes} bytes wait, "
                f"the limits are {self._max} and {self._bytes_max}",
                hint="wait until some are delivered, or cancel some",
            )
        self._last_handle = handle
        self._bytes += size
        self._count += 1
        self._storing.add(handle)
        try:
            if topic.waiting:  # its row first: a message of a topic that nobody knows would be a dead letter
                await topic_ready(topic)
            await self._table.put(_key(handle), row)
        except Exception:
            self._drop(row)
            raise
        finally:
            self._storing.discard(handle)
        heapq.heappush(self._heap, (row.due, row.due, handle))
        return handle

    def _drop(self, row: DelayedRow) -> None:
        self._bytes -= _size(row)
        self._count -= 1

    # -- cancelling ------------------------------------------------------------------------------------------------

    async def cancel(self, owner: str, privileged: bool, topic_name: str, handle: int) -> None:
        """Take a waiting message back: returns when it would stay away after a restart. OffsetNotFound, in the same
        words, if it is unknown, of another topic, somebody else's, or on its way."""
        row = self._table.get(_key(handle))
        if (
            row is None
            or row.topic != topic_name
            or (row.owner != owner and not privileged)
            or handle in self._leaving
            or handle in self._storing
        ):
            raise OffsetNotFound(
                f"no delayed message {handle} of topic {topic_name!r}",
                hint="it was delivered or cancelled, or never was",
            )
        self._leaving.add(handle)
        try:
            await self._table.delete(_key(handle))
        except Exception:  # the table shows it again, and so may the heap: twice does no harm
            heapq.heappush(self._heap, (row.due, row.due, handle))
            raise
        finally:
            self._leaving.discard(handle)
        self.cancelled += 1
        self._drop(row)
        self._tidy()

    def _tidy(self) -> None:
        """Cancelled handles stay in the heap until they come up, or until they are more than the others."""
        if len(self._heap) > 2 * len(self._table) + RECORDS_PER_TICK_MAX:
            away = self._leaving | self._storing
            self._heap = [(row.due, row.due, row.handle) for row in self._table if row.handle not in away]
            heapq.heapify(self._heap)

    # -- delivering ------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """Send what is due. Called about every 50 ms."""
        if self._sending or not self._heap or self._heap[0][0] > now:
            return
        appends, sent, orphans = self._appends(self._take_due(now))
        if sent:
            start_alone(self._scheduler, self._send(appends, sent, orphans))

    async def _send(self, appends: list[Adding], rows: list[DelayedRow], orphans: int) -> None:
        self._sending = True
        try:
            with suppress(NotYetVisible):  # it is committed
                await self._intents.commit(appends, [DelayedSent([row.handle for row in rows])])
            self.orphaned += orphans
        except Exception as error:
            start_alone(self._scheduler, self._put_back(rows, error))
        finally:
            self._sending = False

    def _take_due(self, now: int) -> list[DelayedRow]:
        rows: list[DelayedRow] = []
        size = 0
        heap = self._heap
        while heap and heap[0][0] <= now and len(rows) < RECORDS_PER_TICK_MAX:
            row = self._table.get(_key(heap[0][2]))
            if row is None or row.handle in self._leaving:
                heapq.heappop(heap)
                continue
            size += _size(row)
            if rows and size > BYTES_PER_TICK_MAX:
                break
            heapq.heappop(heap)
            self._leaving.add(row.handle)
            rows.append(row)
        return rows

    def _appends(self, rows: list[DelayedRow]) -> tuple[list[Adding], list[DelayedRow], int]:
        """The batches of an intent, runs of one partition and origin as one batch, the rows that are in them, and how
        many of them are dead letters. What finds no place waits a little longer."""
        placed: list[tuple[Topic, int, bytes, list[DelayedRow]]] = []
        last: dict[tuple[int, int], int] = {}
        letters: list[Adding] = []
        sent: list[DelayedRow] = []
        refusals: dict[str, tuple[list[DelayedRow], Exception]] = {}
        for row in rows:
            try:
                topic = self._topic_of(row)
                if topic is None:
                    record = (NOWHERE, self._scheduler.now(), row.key, row.value, row.headers, 0, row.origin)
                    failure = Failure("topic deleted", "its topic was deleted before the delayed message was due")
                    letters.append(self._dead.prepare(row.topic.encode(), NOWHERE, NOWHERE, record, failure))
                else:
                    number = topic.choose(row.key) if row.partition == ANY else row.partition
                    topic.check_writable(number)
                    at = last.get((topic.spec.id, number))
                    if at is None or placed[at][2] != row.origin:
                        last[topic.spec.id, number] = at = len(placed)
                        placed.append((topic, number, row.origin, []))
                    placed[at][3].append(row)
                sent.append(row)
            except QuintetError as refused:
                refusals.setdefault(message_of(refused), ([], refused))[0].append(row)
        for refused_rows, refusal in refusals.values():
            start_alone(self._scheduler, self._put_back(refused_rows, refusal))
        appends: list[Adding] = []
        for topic, number, origin, run in placed:
            columns = ([row.value for row in run], [row.key for row in run], [row.headers for row in run])
            now = self._scheduler.now()
            expiries = [now + row.ttl_us if row.ttl_us else 0 for row in run]
            appends.append((topic, number, Records(*columns, origin=origin, expiries=expiries)))
        return [*appends, *letters], sent, len(letters)

    def _topic_of(self, row: DelayedRow) -> Topic | None:
        if not row.topic_id:
            return self._topics.ensure(row.topic.encode(), durable=True)
        topic = self._topics.get(row.topic.encode())
        return topic if topic is not None and topic.spec.id == row.topic_id else None

    async def _put_back(self, rows: list[DelayedRow], error: Exception) -> None:
        self._report("delayed_wait", {"messages": len(rows), "error": str(error)})
        for row in rows:
            self._leaving.discard(row.handle)
        await sleep(self._scheduler, RETRY_US)
        for row in rows:
            heapq.heappush(self._heap, (row.due, row.due, row.handle))

    async def _sent(self, sent: DelayedSent) -> None:
        """The effect: these rows are gone, durably. Rows that are gone already are deleted again: the deletion before may
        have been refused."""
        keys = [_key(handle) for handle in sent.handles]
        rows = [row for key in keys if (row := self._table.get(key)) is not None]
        self._leaving.update(sent.handles)
        deleted: Promise[None] = Promise()
        self._table.delete_many(keys, deleted.finished)
        await deleted
        self._leaving.difference_update(sent.handles)
        self.delivered += len(rows)
        for row in rows:
            self._drop(row)


def _too_large(size: int) -> TooLarge:
    return TooLarge(f"{size} bytes in one delayed message, the limit is {MESSAGE_BYTES_MAX}")


def _size(row: DelayedRow) -> int:
    headers = sum(HEADER_BYTES + len(name) + len(value or b"") for name, value in row.headers)
    return ROW_BYTES + len(row.topic) + len(row.key or b"") + len(row.value or b"") + headers


def _key(handle: int) -> bytes:
    return str(handle).encode()
