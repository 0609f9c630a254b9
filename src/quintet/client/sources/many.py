"""Reads several topics as one subscription: a list of names, or patterns whose topics the broker finds.

Each topic has a source of its own, and all fill one queue. The tag of a message says which source it came from. With patterns
the broker is asked every LOOK_S what matches now; it answers without names while no topic was made or deleted and no right
changed. A topic that was made since is read from its beginning, so that nothing in it is missed; one that was deleted, or may
not be read any more, is left. What matches, and what one may see of it, is decided by the broker alone.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from quintet.client.core.base import Channel, MatchConnection, Setup, Silent, Wanted
from quintet.client.core.errors import (
    ConnectionLost,
    Forbidden,
    LimitExceeded,
    SubscriptionEnded,
    TopicNotFound,
    Unsupported,
    crashed,
)
from quintet.client.core.message import LogPosition, Row, Rows, log
from quintet.client.core.source import Inbox, Source
from quintet.model.errors import QuintetError

LOOK_S: Final = 1.0  # between two questions for what matches now
TOPICS_MAX: Final = 200  # of one subscription: over FlyMQ each has two connections or more
STAR: Final = "*"
REGEX: Final = "regex:"
_SHIFT: Final = 64
_MASK: Final = (1 << _SHIFT) - 1
_GONE: Final = (TopicNotFound, Forbidden, SubscriptionEnded)  # of one topic; the others go on


def is_pattern(topic: str) -> bool:
    """Can it name more than one topic? The language is the broker's (broker/topics/patterns.py)."""
    return STAR in topic or topic.startswith(REGEX)


def wants_many(topic: "str | Sequence[str]") -> bool:
    return not isinstance(topic, str) or is_pattern(topic)


class _Part:
    """The queue as the source of one topic sees it."""

    def __init__(self, many: "ManySource", number: int, topic: str, source: Source) -> None:
        self.number = number
        self.topic = topic
        self.source = source
        self._many = many
        self._base = number << _SHIFT

    @property
    def closed(self) -> bool:
        return self._many.inbox.closed

    @property
    def room(self) -> int:
        return self._many.inbox.room

    def put(self, topic: str, rows: Rows, *, first: bool = False) -> None:
        self._many.inbox.put(topic, [self._outer(row) for row in rows], first=first)

    def drop(self, keep: Callable[[Row], bool]) -> None:
        self._many.inbox.drop(lambda row: row[0] >> _SHIFT != self.number or keep(inner_row(row)))

    def wake(self) -> None:
        self._many.look()

    def _outer(self, row: Row) -> Row:
        return (self._base | (row[0] & _MASK), *row[1:])


def inner(tag: int) -> int:
    """The tag as its own source knows it; some are negative."""
    low = tag & _MASK
    return low - (1 << _SHIFT) if low >> (_SHIFT - 1) else low


def inner_row(row: Row) -> Row:
    return (inner(row[0]), *row[1:])


class ManySource(Source):
    """The sources of all topics of one subscription."""

    inbox: Inbox

    def __init__(self, setup: Setup, topics: Sequence[str], wanted: Wanted) -> None:
        self._setup = setup
        self._wanted = wanted
        self._names = list(dict.fromkeys(topic for topic in topics if not is_pattern(topic)))
        self._patterns = list(dict.fromkeys(topic for topic in topics if is_pattern(topic)))
        self._parts: dict[str, _Part] = {}
        self._by_number: dict[int, _Part] = {}
        self._last = 0
        self._version = 0
        self._channel = Channel(setup, Silent()) if self._patterns else None
        self._looking: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._failed: QuintetError | None = None
        self._left_refused = self._left_missed = 0  # of topics that are not read any more
        self._full = False

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, inbox: Inbox) -> None:
        self.inbox = inbox
        try:
            names = list(self._names)
            if self._channel is not None:
                await self._channel.open()
                names += [name for name in await self._matching() or () if name not in names]
            if len(names) > TOPICS_MAX:
                raise LimitExceeded(
                    f"the subscription has {len(names):,} topics; the limit is {TOPICS_MAX} (TOPICS_MAX)",
                    hint="use a narrower pattern, or several subscriptions",
                )
            await asyncio.gather(*(self._join(name, self._wanted) for name in names))
        except BaseException:
            await self.close()
            raise
        self._looking = asyncio.get_running_loop().create_task(self._look_forever())

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await asyncio.gather(*(part.source.close() for part in self._parts.values()))
        if self._channel is not None:
            await self._channel.close()

    async def _join(self, name: str, wanted: Wanted) -> None:
        self._last += 1
        part = _Part(self, self._last, name, self._setup.connector.source(self._setup, wanted._replace(topic=name)))
        self._parts[name] = self._by_number[part.number] = part
        try:
            await part.source.open(part)
        except BaseException:
            self._parts.pop(name, None)
            del self._by_number[part.number]
            await part.source.close()
            raise

    async def _leave(self, part: _Part) -> None:
        self._parts.pop(part.topic, None)
        self._by_number.pop(part.number, None)
        self._left_refused += part.source.refused
        self._left_missed += part.source.missed
        self.inbox.drop(lambda row: row[0] >> _SHIFT != part.number)
        await part.source.close()

    # -- what matches ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """A source has something to say: that it failed."""
        self._look_now.set()
        if self.failed is not None:
            self.inbox.wake()

    async def _matching(self) -> list[str] | None:
        """The names that match now; None: as before."""
        assert self._channel is not None
        connection = await self._channel.connection()
        assert isinstance(connection, MatchConnection), "a door that does not match says so in `lacks`"
        self._version, names = await connection.match(self._patterns, self._version)
        return names

    async def _look_forever(self) -> None:
        while True:
            self._look_now.clear()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._look_now.wait()
            except TimeoutError:
                pass
            try:
                await self._look()
            except ConnectionLost:
                continue
            except Exception as error:
                found = crashed("looking for topics", error)
                if not found.retryable:
                    self._failed = found
                    self.inbox.wake()
                    return

    async def _look(self) -> None:
        for part in list(self._parts.values()):
            if self._patterns and isinstance(part.source.failed, _GONE):
                await self._leave(part)
                self._version = 0
        names = await self._matching() if self._channel is not None else None
        if names is None:
            return
        for part in [part for name, part in self._parts.items() if name not in names and name not in self._names]:
            await self._leave(part)
        later = self._wanted._replace(start="earliest")  # it is new, so none of it was ever read
        for name in names:
            if name not in self._parts and len(self._parts) >= TOPICS_MAX:
                if not self._full:
                    log.warning("more than %d topics match %r: the others are not read", TOPICS_MAX, self._patterns)
                self._full = True
                return
            if name not in self._parts:
                try:
                    await self._join(name, later)
                except _GONE:
                    self._version = 0  # deleted meanwhile

    # -- what a subscription asks ----------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that are read now."""
        return tuple(sorted(self._parts))

    @property
    def id(self) -> int:
        raise Unsupported("a subscription to several topics has no id", hint="group= and durable= keep where it was")

    @property
    def connected(self) -> bool:
        return all(part.source.connected for part in self._parts.values())

    @property
    def failed(self) -> QuintetError | None:
        if self._failed is not None:
            return self._failed
        for part in self._parts.values():
            failed = part.source.failed
            if failed is not None and not (self._patterns and isinstance(failed, _GONE)):
                return failed
        return None

    @property
    def refused(self) -> int:
        return self._left_refused + sum(part.source.refused for part in self._parts.values())

    @property
    def missed(self) -> int:
        return self._left_missed + sum(part.source.missed for part in self._parts.values())

    @property
    def reconnects(self) -> int:
        return sum(part.source.reconnects for part in self._parts.values())

    @property
    def assigned(self) -> tuple[int, ...]:
        return ()

    @property
    def stuck(self) -> bool:
        return bool(self._parts) and all(part.source.stuck for part in self._parts.values())

    def stuck_error(self) -> QuintetError | None:
        return next((error for part in self._parts.values() if (error := part.source.stuck_error()) is not None), None)

    @property
    def comes_again(self) -> bool:
        return all(part.source.comes_again for part in self._parts.values())

    @property
    def has_dead_letters(self) -> bool:
        return all(part.source.has_dead_letters for part in self._parts.values())

    def want_more(self) -> bool:
        return any([part.source.want_more() for part in self._parts.values()])

    def pause(self) -> None:
        for part in self._parts.values():
            part.source.pause()

    def resume(self) -> None:
        for part in self._parts.values():
            part.source.resume()

    # -- settling --------------------------------------------------------------------------------------------------

    def _tags(self, tags: Sequence[int]) -> "list[tuple[Source, list[int]]]":
        """By their source; those of a topic that is not read any more are left out."""
        found: dict[int, list[int]] = {}
        for tag in tags:
            found.setdefault(tag >> _SHIFT, []).append(inner(tag))
        return [(self._by_number[number].source, those) for number, those in found.items() if number in self._by_number]

    def _rows(self, rows: Rows) -> "list[tuple[Source, Rows]]":
        found: dict[int, Rows] = {}
        for row in rows:
            found.setdefault(row[0] >> _SHIFT, []).append(inner_row(row))
        return [(self._by_number[number].source, those) for number, those in found.items() if number in self._by_number]

    def taken(self, tags: Sequence[int]) -> None:
        for source, those in self._tags(tags):
            source.taken(those)

    async def settle(self, tags: Sequence[int], timeout: float) -> None:
        for source, those in self._tags(tags):
            await source.settle(those, timeout)

    async def flush(self) -> None:
        await asyncio.gather(*(part.source.flush() for part in self._parts.values()))

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        for source, those in self._tags(tags):
            source.hold(those, retry)

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        fates = [await source.give_back(those, error, retry, dead_letter, delay) for source, those in self._rows(rows)]
        return " and ".join(dict.fromkeys(fates)) or "is of a topic that is not read any more"

    def tried_here(self, tag: int, times: int) -> None:
        for source, (own,) in self._tags((tag,)):
            source.tried_here(own, times)

    def release(self, rows: Rows) -> None:
        for source, those in self._rows(rows):
            source.release(those)

    async def nack(self, rows: Rows, delay: float | None) -> None:
        for source, those in self._rows(rows):
            await source.nack(those, delay)

    async def in_progress(self, tags: Sequence[int]) -> None:
        for source, those in self._tags(tags):
            await source.in_progress(those)

    def position_of(self, tag: int) -> LogPosition | None:
        part = self._by_number.get(tag >> _SHIFT)
        return None if part is None else part.source.position_of(inner(tag))

    async def commit_in(self, transaction: str, tag: int) -> None:
        for source, (own,) in self._tags((tag,)):
            await source.commit_in(transaction, own)

    def committed(self, tag: int) -> None:
        for source, (own,) in self._tags((tag,)):
            source.committed(own)
