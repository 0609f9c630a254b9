"""Keeps records that could not be delivered, with the cause, and replays or purges each of them exactly once.

A dead letter is the record itself with `quintet-dead-*` headers, in the topic whose name is the source's and a suffix. It
gets there by an intent together with whatever must happen with it (an offset settled, a delayed row gone), so a crash
leaves neither two nor none. Its id is "partition-offset" of that topic.

    record --bury--> open --replay--> resolved   (published to its source again, in the same intent)
                       +-----purge--> resolved

Dead-letter topics only grow, as all topics do; what is resolved is remembered in `__dead`, per partition: everything
below `purged_below`, and ranges above it. Whoever asks here was allowed to: a replay goes to the topic that was named
by the asker, never to one that a header names.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar, Final, cast

import msgspec

from quintet.broker.atomic.intent_rows import Adding, Effect, Records
from quintet.broker.atomic.intents import Intents, NotYetVisible
from quintet.broker.slices import Steps
from quintet.broker.table import Table
from quintet.broker.topics import reads
from quintet.broker.topics.catalog import Topic, Topics
from quintet.broker.topics.seek import fetch_from, read_from
from quintet.delivery.traces import Attributes, Traces
from quintet.log.base import Partition
from quintet.model import limits
from quintet.model.batch import Header, RecordBatch, Row
from quintet.model.errors import BadRequest, LimitExceeded, OffsetNotFound
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import gather

TABLE: Final = (10, "__dead")
PREFIX: Final = b"quintet-dead-"
NOWHERE: Final = -1  # partition and offset of what was never in its topic
ATTEMPTS_TOLD_MAX: Final = 1_000_000  # of a consumer that says how often it tried
ERROR_BYTES_MAX: Final = 1024  # of an error's text
BROWSE_MAX: Final = 1_000  # items of one answer
BROWSE_BYTES_MAX: Final = 4 << 20  # of one answer
REPLAY_MAX: Final = 1_000  # ids of one call
REPLAY_BYTES_MAX: Final = 16 << 20  # of one call
RANGES_MAX: Final = 10_000  # of resolved letters, per partition

Headers = tuple[Header, ...]
Range = tuple[int, int]  # first, and one past the last
LetterPosition = tuple[Topic, int, int]  # of a dead letter: its topic, partition and offset


class DeadRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__dead` keeps of one partition of a dead-letter topic."""

    topic_id: int
    partition: int
    purged_below: int
    resolved: tuple[Range, ...]


class DeadResolved(Effect, frozen=True, array_like=True):
    """These dead letters of one partition were replayed."""

    kind: ClassVar[str] = "dead-resolved"
    topic_id: int
    partition: int
    offsets: list[int]


class Failure(msgspec.Struct, frozen=True):
    """Why a record died. Times are microseconds since 1970; 0: not known (last_us: now). `more` are further headers."""

    cause: str
    error: str = ""
    attempts: int = 0
    first_us: int = 0
    last_us: int = 0
    more: Headers = ()


class DeadLetter(msgspec.Struct, frozen=True):
    """One dead letter as it is shown. `headers` are the record's own; partition and offset are where it was (NOWHERE)."""

    id: str
    topic: str
    partition: int
    offset: int
    cause: str
    error: str
    attempts: int
    first_us: int
    last_us: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    origin: bytes

    def fields(self) -> dict[str, object]:
        """What a list of them shows, by name, as a door writes it."""
        return {"id": self.id, "data": self.value or b"", "error": self.error or self.cause, "retries": self.attempts}

    def details(self) -> dict[str, object]:
        """The rest."""
        where: dict[str, object] = {"cause": self.cause, "partition": self.partition, "offset": max(self.offset, 0)}
        return where | {"key": self.key or b"", "died_ms": self.last_us // 1000}


class DeadLetters:
    """Everything about dead letters. The table must be loaded; the effect is registered here, before `recover`."""

    def __init__(
        self,
        table: Table[DeadRow],
        topics: Topics,
        intents: Intents,
        scheduler: Scheduler,
        *,
        suffix: str,
        traces: Traces | None = None,
    ) -> None:
        self._table = table
        self._topics = topics
        self._intents = intents
        self._scheduler = scheduler
        self._suffix = suffix
        self._traces = traces
        self._replaying: set[tuple[int, int, int]] = set()
        self._started = scheduler.now()
        self.buried = 0
        self.replayed = 0
        intents.on_effect(DeadResolved, self._resolve)

    # -- names -----------------------------------------------------------------------------------------------------

    def name_for(self, source: bytes) -> bytes:
        """The dead-letter topic of this topic."""
        return dead_letter_name(source, self._suffix)

    def is_dead(self, name: str) -> bool:
        """Is this a dead-letter topic itself?"""
        return name.endswith(self._suffix)

    # -- burying ---------------------------------------------------------------------------------------------------

    def prepare(self, source: bytes, partition: int, offset: int, row: Row, failure: Failure) -> Adding:
        """A dead letter for an intent: its topic (made if need be), partition and batch. Raises QuintetError."""
        topic = self._topics.ensure(self.name_for(source), durable=True, own=True)
        batch = letter(source, partition, offset, row, failure, self._scheduler.now())
        return topic, max(partition, 0) % len(topic.partitions), batch

    async def bury(
        self,
        source: bytes,
        partition: int,
        offset: int,
        row: Row,
        failure: Failure,
        effects: Sequence[Effect],
        token: str = "",
    ) -> None:
        """Keep a copy of this record as a dead letter and have these effects, both or none. Returns when it is committed;
        if it raises, it was not."""
        with suppress(NotYetVisible):
            await self._intents.commit([self.prepare(source, partition, offset, row, failure)], effects, token)
        self.buried += 1
        if self._traces is not None:
            told: Attributes = {"quintet.cause": failure.cause, "quintet.attempt": failure.attempts}
            self._traces.settled("bury", "", "", source.decode(), partition, (offset, offset + 1), told)

    async def bury_rejected(
        self,
        source: bytes,
        key: bytes | None,
        value: bytes | memoryview,
        origin: bytes,
        reason: str,
        headers: Headers = (),
    ) -> None:
        """A record that its topic's schema does not let in."""
        row = (
            NOWHERE,
            self._scheduler.now(),
            key,
            cast(bytes, value),
            headers,
            0,
            origin,
        )  # a large one is a view, as in `row`
        await self.bury(source, NOWHERE, NOWHERE, row, Failure("schema rejected", reason), ())

    async def reject(self, topic: Topic, partition: int, offset: int, error: str, attempts: int = 1) -> bool:
        """A consumer cannot process this record: keep a copy of it as a dead letter. False: it was there already.
        OffsetNotFound if there is no such record."""
        if self.is_dead(topic.name):
            raise BadRequest(
                f"topic {topic.name!r} is a dead-letter topic itself", hint="replay or purge what is in it"
            )
        source = topic.partition(partition)
        # Offsets of a memory topic begin again with the broker.
        token = f"dead/{topic.spec.id}/{partition}/{offset}/{self._started if topic.in_memory else 0}"
        known = self._intents.outcome(token)
        if known is not None:
            with suppress(NotYetVisible):
                await self._intents.wait(known)
            return False
        row = await reads.read_row(source, offset, view=True)
        if row is None:
            raise OffsetNotFound(f"topic {topic.name!r} has no record {partition}-{offset}")
        failure = Failure("rejected by a consumer", error, min(max(attempts, 1), ATTEMPTS_TOLD_MAX))
        before = self._intents.asked(token)
        await self.bury(topic.raw, partition, offset, row, failure, (), token)
        return not before

    # -- looking ---------------------------------------------------------------------------------------------------

    async def browse(self, source: bytes, maximum: int, after: str, patience: reads.Patience) -> list[DeadLetter]:
        """Up to `maximum` open dead letters of this topic behind the id `after` ("": from the first one), oldest first
        within a partition, at most about BROWSE_BYTES_MAX. In slices: a thousand take 20 ms."""
        topic = self._topics.get(self.name_for(source))
        place = _parse(after) if after else (0, -1)
        if place is None:
            raise BadRequest(f"{after!r} is no id of a dead letter", hint="ids are partition-offset, as in 0-17")
        if topic is None:
            return []
        browse = _Browse(self, topic, min(maximum, BROWSE_MAX), place[0], place[1] + 1)
        batches: list[RecordBatch] = []
        while True:
            partition = await patience.slices.finish(browse.look(batches), patience.wanted)
            if partition is None:
                return browse.items
            visible = partition.visible
            batches = await fetch_from(partition, browse.offset, reads.READ_BYTES)
            if not batches:  # nothing sound is left up to there
                browse.offset = visible

    async def get(self, source: bytes, id: str) -> DeadLetter:
        """This dead letter, or OffsetNotFound: unknown, or resolved."""
        found = self._open_place(source, id)
        row = None if found is None else await reads.read_row(found[0].partitions[found[1]], found[2], view=True)
        if found is None or row is None:
            raise _not_found(id)
        return _shown(found[1], row)

    def counts(self, source: bytes) -> int:
        """Open dead letters of this topic."""
        topic = self._topics.get(self.name_for(source))
        return 0 if topic is None else sum(self._open_count(topic, number) for number in range(len(topic.partitions)))

    def open_counts(self) -> dict[str, int]:
        """Topics that have open dead letters, and how many. A topic that is gone is named after where its letters are."""
        names = {topic.name for topic in self._topics.all()}
        sources = {self.name_for(name.encode()).decode(): name for name in sorted(names) if not self.is_dead(name)}
        found: dict[str, int] = {}
        for letters in names:
            if self.is_dead(letters):
                source = sources.get(letters, letters.removesuffix(self._suffix))
                if count := self.counts(source.encode()):
                    found[source] = count
        return found

    def next_open(self, topic: Topic, number: int, offset: int) -> int:
        """The first offset from this one on that is not resolved; it may be past the end."""
        marks = self._marks(topic.spec.id, number)
        offset = max(offset, marks.purged_below, topic.partitions[number].start)
        at = bisect_right(marks.resolved, offset, key=_first) - 1  # ranges do not touch: at most one holds it
        return max(offset, marks.resolved[at][1]) if at >= 0 else offset

    def open_ranges(self, source: bytes) -> tuple[tuple[Range, ...], ...]:
        """Of each partition of this topic's dead-letter topic the ranges that are open; none if there is no such topic."""
        topic = self._topics.get(self.name_for(source))
        if topic is None:
            return ()
        return tuple(self._open_ranges(topic, number) for number in range(len(topic.partitions)))

    def _open_ranges(self, topic: Topic, number: int) -> tuple[Range, ...]:
        marks, end = self._marks(topic.spec.id, number), topic.partitions[number].visible
        found, low = list[Range](), max(marks.purged_below, topic.partitions[number].start)
        for first, last in marks.resolved:
            if low < first:
                found.append((low, min(first, end)))
            low = max(low, last)
        return (*found, (low, end)) if low < end else tuple(found)

    def _open_count(self, topic: Topic, number: int) -> int:
        marks, partition = self._marks(topic.spec.id, number), topic.partitions[number]
        low = max(marks.purged_below, partition.start)
        return max(partition.visible - low, 0) - sum(max(last - max(first, low), 0) for first, last in marks.resolved)

    def _open_place(self, source: bytes, id: str) -> LetterPosition | None:
        topic, place = self._topics.get(self.name_for(source)), _parse(id)
        if topic is None or place is None or place[0] >= len(topic.partitions):
            return None
        number, offset = place
        if offset >= topic.partitions[number].visible or self.next_open(topic, number, offset) != offset:
            return None
        return topic, number, offset

    # -- sending again ---------------------------------------------------------------------------------------------

    async def replay(self, source: bytes, id: str, override: bytes | None) -> None:
        """Publish this dead letter to its topic again, with another value if one is given, and resolve it: both or
        none. OffsetNotFound: unknown, or resolved."""
        _, missing = await self._replay(source, [id], override)
        if missing:
            raise _not_found(id)

    async def replay_many(self, source: bytes, ids: Sequence[str]) -> tuple[int, list[str]]:
        """All of these in one intent, in this order: how many they were, and the ids that are unknown or resolved."""
        if len(ids) > REPLAY_MAX:
            raise LimitExceeded(f"{len(ids)} dead letters in one replay, the limit is {REPLAY_MAX}")
        return await self._replay(source, ids, None)

    async def _replay(self, source: bytes, ids: Sequence[str], override: bytes | None) -> tuple[int, list[str]]:
        letters, missing, size = list[tuple[LetterPosition, DeadLetter]](), list[str](), 0
        claimed: list[LetterPosition] = []
        try:
            for id in ids:
                place = self._claim(source, id)
                if place is None:
                    missing.append(id)
                    continue
                claimed.append(place)
                topic, number, offset = place
                row = reads.row_at(await read_from(topic.partitions[number], offset, 1), offset, view=True)
                if row is None:
                    self._release([claimed.pop()])
                    missing.append(id)
                    continue
                if override is not None:
                    row = (*row[:3], override, *row[4:])
                size += len(row[3] or b"") + len(row[2] or b"")
                if letters and size > REPLAY_BYTES_MAX:
                    raise LimitExceeded(f"more than {REPLAY_BYTES_MAX} bytes in one replay", hint="name fewer")
                letters.append((place, _shown(number, row)))
            if letters:
                await self._send_again(source, letters)
        except Exception:
            self._release(claimed)
            raise
        self.replayed += len(letters)
        return len(letters), missing

    def _claim(self, source: bytes, id: str) -> LetterPosition | None:
        """Where this open dead letter is, and nobody else may replay it until it is released; None if there is none."""
        found = self._open_place(source, id)
        if found is None or (found[0].spec.id, *found[1:]) in self._replaying:
            return None
        self._replaying.add((found[0].spec.id, *found[1:]))
        return found

    def _release(self, places: Iterable[LetterPosition]) -> None:
        """They were not replayed."""
        self._replaying.difference_update((topic.spec.id, number, offset) for topic, number, offset in places)

    async def _send_again(self, source: bytes, letters: Sequence[tuple[LetterPosition, DeadLetter]]) -> None:
        """Commit a replay of claimed letters."""
        topic = self._topics.ensure(source, durable=True)
        appends, offsets = list[Adding](), dict[tuple[int, int], list[int]]()
        for (dead, number, offset), item in letters:
            batch = Records([item.value], [item.key], [item.headers], [item.timestamp], origin=item.origin)
            exists = 0 <= item.partition < len(topic.partitions)
            appends.append((topic, item.partition if exists else topic.choose(item.key), batch))
            offsets.setdefault((dead.spec.id, number), []).append(offset)
        for place, found in offsets.items():
            self._check_room(*place, found)
        with suppress(NotYetVisible):
            await self._intents.commit(appends, [DeadResolved(*place, found) for place, found in offsets.items()])

    def _check_room(self, topic_id: int, number: int, offsets: list[int]) -> None:
        if len(self._with(topic_id, number, offsets).resolved) > RANGES_MAX:
            raise LimitExceeded(
                f"more than {RANGES_MAX} gaps between resolved dead letters", hint="replay the oldest ones, or purge"
            )

    # -- resolving -------------------------------------------------------------------------------------------------

    async def purge(self, source: bytes) -> int:
        """Resolve all that are there now, durably: how many they were."""
        topic = self._topics.get(self.name_for(source))
        if topic is None:
            return 0
        return sum(await gather(*(self._purge(topic, number) for number in range(len(topic.partitions)))))

    async def _purge(self, topic: Topic, number: int) -> int:
        count = self._open_count(topic, number)
        row = _normalize(DeadRow(topic.spec.id, number, topic.partitions[number].visible, ()))
        await self._table.put(_key(topic.spec.id, number), row)
        return count

    def forget(self, topic_id: int) -> None:
        """A dead-letter topic was deleted: so is what is remembered of it."""
        for row in [row for row in self._table if row.topic_id == topic_id]:
            self._table.delete(_key(row.topic_id, row.partition))

    async def _resolve(self, resolved: DeadResolved) -> None:
        """The effect: idempotent, and a purge in between is not undone."""
        topic_id, number, offsets = resolved.topic_id, resolved.partition, resolved.offsets
        self._replaying.difference_update((topic_id, number, offset) for offset in offsets)
        await self._table.put(_key(topic_id, number), self._with(topic_id, number, offsets))

    def _with(self, topic_id: int, number: int, offsets: Iterable[int]) -> DeadRow:
        marks = self._marks(topic_id, number)
        ranges = (*marks.resolved, *((offset, offset + 1) for offset in offsets))
        return _normalize(DeadRow(topic_id, number, marks.purged_below, ranges))

    def _marks(self, topic_id: int, number: int) -> DeadRow:
        return self._table.get(_key(topic_id, number)) or DeadRow(topic_id, number, 0, ())


class _Browse:
    """One look through the partitions of a dead-letter topic under way. A step looks at one record."""

    __slots__ = ("_bytes", "_dead", "_maximum", "_number", "_topic", "items", "offset")

    def __init__(self, dead: DeadLetters, topic: Topic, maximum: int, number: int, offset: int) -> None:
        self._dead = dead
        self._topic = topic
        self._maximum = maximum
        self._number = number
        self.offset = offset
        self._bytes = 0
        self.items: list[DeadLetter] = []

    def look(self, batches: Sequence[RecordBatch]) -> Steps[Partition | None]:
        """From these to the end; or to a partition, from which must be fetched first."""
        yield from self._take(batches)
        while self._number < len(self._topic.partitions) and not self._full():
            partition = self._topic.partitions[self._number]
            self.offset = self._dead.next_open(self._topic, self._number, self.offset)
            if self.offset >= partition.visible:
                self._number, self.offset = self._number + 1, 0
                continue
            found = partition.read(self.offset, reads.READ_BYTES)
            if found is None:
                return partition
            yield from self._take(found)
        return None

    def _full(self) -> bool:
        return len(self.items) >= self._maximum or self._bytes >= BROWSE_BYTES_MAX

    def _take(self, batches: Sequence[RecordBatch]) -> Iterator[None]:
        for batch in batches:
            index = batch.index_of(self.offset)
            while index < batch.count and not self._full():
                offset = batch.offset(index)
                self.offset = self._dead.next_open(self._topic, self._number, offset)
                if self.offset == offset:
                    row = batch.row(index)
                    self._bytes += len(row[3] or b"") + len(row[2] or b"")
                    if self.items and self._bytes > BROWSE_BYTES_MAX:  # it begins the next answer
                        return
                    self.items.append(_shown(self._number, row))
                    self.offset += 1
                    yield
                index = batch.index_of(self.offset)
            if self._full():
                return
            self.offset = max(self.offset, batch.next_offset)


def dead_letter_name(topic: bytes, suffix: str) -> bytes:
    """The topic's name and the suffix; of a long name the beginning and a hash."""
    end = suffix.encode()
    if len(topic) + len(end) <= limits.TOPIC_NAME_BYTES_MAX:
        return topic + end
    short = topic[: limits.TOPIC_NAME_BYTES_MAX - len(end) - 9].decode(errors="ignore").encode()
    return short + b"~" + hashlib.sha256(topic).hexdigest()[:8].encode() + end


def letter(source: bytes, partition: int, offset: int, row: Row, failure: Failure, now: int) -> Records:
    """The record with its story in headers. Such headers that it already had are taken off: only we write them."""
    _, timestamp, key, value, headers, _, origin = row
    cause = [(b"cause", failure.cause.encode()), (b"topic", source)]
    if partition != NOWHERE:
        cause += [(b"partition", b"%d" % partition), (b"offset", b"%d" % offset)]
    cause.append((b"attempts", b"%d" % failure.attempts))
    if failure.error:
        cause.append((b"error", failure.error.encode()[:ERROR_BYTES_MAX].decode(errors="ignore").encode()))
    if failure.first_us:
        cause.append((b"first-us", b"%d" % failure.first_us))
    cause.append((b"last-us", b"%d" % (failure.last_us or now)))
    story = [(PREFIX + name, text) for name, text in (*cause, *failure.more)]
    return Records([value], [key], [(*_own(headers), *story)], [timestamp], origin=origin)


def _own(headers: Headers) -> Headers:
    return tuple(pair for pair in headers if not pair[0].startswith(PREFIX))


def _shown(number: int, row: Row) -> DeadLetter:
    """What was published to a dead-letter topic by hand has no story: it is shown without one."""
    offset, timestamp, key, value, headers, _, origin = row
    story = {name[len(PREFIX) :]: text or b"" for name, text in headers if name.startswith(PREFIX)}

    def text(name: bytes) -> str:
        return story.get(name, b"").decode(errors="replace")

    def integer(name: bytes, otherwise: int) -> int:
        digits = story.get(name, b"")
        return int(digits) if digits.isdigit() and len(digits) < 20 else otherwise

    return DeadLetter(
        id=f"{number}-{offset}",
        topic=text(b"topic"),
        partition=integer(b"partition", NOWHERE),
        offset=integer(b"offset", NOWHERE),
        cause=text(b"cause"),
        error=text(b"error"),
        attempts=integer(b"attempts", 0),
        first_us=integer(b"first-us", 0),
        last_us=integer(b"last-us", 0),
        key=key,
        value=value,
        headers=_own(headers),
        timestamp=timestamp,
        origin=origin,
    )


def _normalize(row: DeadRow) -> DeadRow:
    """Ranges in order, united, and none of them at or below `purged_below`."""
    low = row.purged_below
    ranges: list[Range] = []
    for first, last in sorted(row.resolved):
        if first <= low:
            low = max(low, last)
        elif ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((first, last))
    return DeadRow(row.topic_id, row.partition, low, tuple(ranges))


def _first(found: Range) -> int:
    return found[0]


def _parse(id: str) -> tuple[int, int] | None:
    partition, dash, offset = id.partition("-")
    good = dash and all(part.isascii() and part.isdigit() and len(part) < 20 for part in (partition, offset))
    return (int(partition), int(offset)) if good else None


def _not_found(id: str) -> OffsetNotFound:
    return OffsetNotFound(
        f"message not found: no open dead letter {id}", hint="it was replayed or purged, or never was"
    )


def _key(topic_id: int, partition: int) -> bytes:
    return b"%d-%d" % (topic_id, partition)
