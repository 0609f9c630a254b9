"""Hands messages of a source to an iterator through a bounded queue, and acknowledgements back to the source.

    source --put--> queue --next, batches--> user --ack, process--> source

The queue is bounded by messages (`prefetch`) and bytes; when it is full the source is paused, so that what is not
consumed stays with the server. Where messages come from, and what an acknowledgement is, is the source's business:
push.py for servers that deliver by themselves, group.py for those that are asked.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

from quintet.client.core.base import deadline
from quintet.client.core.errors import Closed, Unsupported
from quintet.client.core.message import LogPosition, Message, MessageBatch, Row, Rows, log
from quintet.client.core.source import Source
from quintet.model.errors import QuintetError

PREFETCH_DEFAULT: Final = 8_192  # messages
PREFETCH_BYTES_MAX: Final = 16 * 1024 * 1024
DELAY_S_MAX: Final = 30 * 86_400  # of a message that is given back
# Without an acknowledgement while the server waits for one before it sends more. Then it is reported.
STUCK_S: Final = 30.0


def check_delay(delay: float | None) -> None:
    if delay is not None and not 0 <= delay <= DELAY_S_MAX:
        raise ValueError(f"delay is 0 to {DELAY_S_MAX:,} seconds, not {delay!r}")


class Subscription:
    """`async with bus.subscribe(topic) as sub`, then `async for msg in sub` or `async for batch in sub.batches()`.

    Several tasks may iterate over one subscription: each message goes to one of them.
    """

    def __init__(self, source: Source, topic: str, *, prefetch: int, timeout: float) -> None:
        self._source = source
        self._topic = topic
        self._prefetch = prefetch
        self._timeout = timeout
        self._opened = False
        self._opening = asyncio.Lock()
        self._closed = False
        self._settled = 0  # calls of settle
        self._runs: deque[tuple[str, Rows]] = deque()  # rows are reversed: the next one is popped from the end
        self._queued = 0
        self._queued_bytes = 0
        self._paused = False
        self._ready = asyncio.Event()  # something is queued, or nothing ever will be
        self._goal = 0
        self._reached = asyncio.Event()  # as much is queued as a batch waits for
        self._gather_s = 0.0  # see gather_acks; 0: each goes out at once
        self._gather_max = 0
        self._gathered: list[int] = []  # tags
        self._gather_timer: asyncio.TimerHandle | None = None
        self._settling: asyncio.Task[None] | None = None  # the newest that settles what was gathered

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Subscription":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Subscribe, join the group, or take up the one given as `resume`. Iterating does it too, also after it failed."""
        if self._opened and not self._closed:
            return
        async with self._opening:
            if self._closed:
                hint = "subscribe again, with resume=sub.id to go on where it was"
                raise Closed("the subscription is closed", hint=hint)
            if not self._opened:
                await self._source.open(self)
                self._opened = True

    async def close(self) -> None:
        """Stop, after the server has taken the acknowledgements. Where it was is kept: resume it by id, or by group."""
        if self._closed:
            return
        self._closed = True
        self.drop(lambda row: False)
        await self._flush_gathered()
        async with self._opening:  # wait for an `open` in progress, then close it
            await self._source.close()
        self.wake()

    @property
    def id(self) -> int:
        """What to give as `resume=` to go on later, from any connection with the same credentials (BlipMQ)."""
        return self._source.id

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def connected(self) -> bool:
        """Whether there is a connection right now."""
        return self._source.connected

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read now: of a pattern, those that match."""
        return self._source.topics or (self._topic,)

    @property
    def assigned(self) -> tuple[int, ...]:
        """The partitions that are read here now (FlyMQ)."""
        return self._source.assigned

    @property
    def queued(self) -> int:
        """Messages received and not yet taken."""
        return self._queued

    @property
    def refused(self) -> int:
        """Acknowledgements the server did not take: too late, or another consumer has the message now."""
        return self._source.refused

    @property
    def missed(self) -> int:
        """Messages that were gone before they were read here, as far as the server tells (Felix)."""
        return self._source.missed

    @property
    def reconnects(self) -> int:
        return self._source.reconnects

    @property
    def source(self) -> Source:
        """Where the messages come from: for those parts of the client that know more of one door."""
        return self._source

    # -- from the source (see Inbox) -------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        return self._prefetch - self._queued if self._queued_bytes < PREFETCH_BYTES_MAX else 0

    def put(self, topic: str, rows: Rows, *, first: bool = False) -> None:
        if self._closed:
            return
        self._queued += len(rows)
        self._queued_bytes += sum([len(row[2]) for row in rows])
        rows.reverse()
        if first:
            self._runs.appendleft((topic, rows))
        else:
            self._runs.append((topic, rows))
        self._ready.set()
        if self._queued >= self._goal or self._source.stuck:
            self._reached.set()
        if (self._queued >= self._prefetch or self._queued_bytes >= PREFETCH_BYTES_MAX) and not self._paused:
            self._paused = True
            self._reached.set()
            self._source.pause()

    def drop(self, keep: Callable[[Row], bool]) -> None:
        kept = [(topic, [row for row in rows if keep(row)]) for topic, rows in self._runs]
        self._runs = deque((topic, rows) for topic, rows in kept if rows)
        self._queued = sum(len(rows) for _, rows in self._runs)
        self._queued_bytes = sum(len(row[2]) for _, rows in self._runs for row in rows)
        if not self._queued:
            self._ready.clear()
        self._paused = False
        self._source.resume()

    def wake(self) -> None:
        self._ready.set()
        self._reached.set()

    def _taken(self, tags: Sequence[int], count: int, size: int) -> None:
        self._source.taken(tags)
        self._queued -= count
        self._queued_bytes -= size
        if not self._queued and self._source.failed is None:
            self._ready.clear()
        if self._paused and self._queued * 2 <= self._prefetch and self._queued_bytes * 2 <= PREFETCH_BYTES_MAX:
            self._paused = False
            self._source.resume()

    # -- to the user -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        if not self._queued and not await self._available():
            raise StopAsyncIteration
        topic, rows = self._runs[0]
        row = rows.pop()
        if not rows:
            self._runs.popleft()
        self._taken((row[0],) if row[1] else (), 1, len(row[2]))
        return Message(self, topic, *row)

    async def get(self, *, timeout: float | None = None) -> Message:
        """The next message; Timeout if none comes in time."""
        async with deadline(self._timeout if timeout is None else timeout, f"waiting for a message of {self._topic!r}"):
            try:
                return await self.__anext__()
            except StopAsyncIteration:
                raise Closed("the subscription is closed") from None

    async def batches(self, *, max: int = 5_000, wait: float = 0.2) -> AsyncIterator[MessageBatch]:
        """Batches of up to `max` messages, without end: see get_batch for when one is handed out."""
        while (batch := await self._next_batch(max, wait)) is not None:
            yield batch

    async def get_batch(self, *, max: int = 5_000, wait: float = 0.2, timeout: float | None = None) -> MessageBatch:
        """The next batch of up to `max` messages. It is handed out when it is full, when `wait` seconds have passed since
        its first message, or when the server will send no more before some are acknowledged. Timeout if none comes."""
        limit = self._timeout if timeout is None else timeout
        async with deadline(limit, f"waiting for messages of {self._topic!r}"):
            batch = await self._next_batch(max, wait)
        if batch is None:
            raise Closed("the subscription is closed")
        return batch

    async def _next_batch(self, most: int, wait: float) -> MessageBatch | None:
        while await self._available():
            if wait > 0 and self._queued < most:
                await self._linger(most, wait)
            batch = self._take(most)
            if batch is not None:
                return batch
        return None

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until the server has taken every acknowledgement made so far."""
        async with deadline(self._timeout if timeout is None else timeout, "flushing acknowledgements"):
            await self._source.flush()
        self._paused = False

    async def _available(self) -> bool:
        """Wait for a message: False when the subscription was closed, its error when it failed."""
        if not self._opened:
            await self.open()
        while not self._queued:
            if self._closed:
                return False
            if self._source.failed is not None:
                raise self._source.failed
            if self._source.stuck:
                await self._wait_stuck()
            else:
                await self._ready.wait()
        return True

    async def _wait_stuck(self) -> None:
        """Wait for a message that comes only if somebody acknowledges one of those that were handed out."""
        self._source.want_more()
        settled = self._settled
        with suppress(TimeoutError):
            async with asyncio.timeout(STUCK_S):
                await self._ready.wait()
                return
        if self._queued or self._settled != settled or not self._source.stuck:
            return
        error = self._source.stuck_error()
        if error is not None:
            raise error
        log.warning("nothing more comes of %r before messages that were handed out are acknowledged", self._topic)

    async def _linger(self, most: int, wait: float) -> None:
        self._goal = min(most, self._prefetch)
        if self._paused or self._source.stuck:
            return
        self._reached.clear()
        try:
            async with asyncio.timeout(wait):
                await self._reached.wait()
        except TimeoutError:
            return

    def _take(self, most: int) -> MessageBatch | None:
        """Up to `most` queued messages of one topic."""
        if not self._runs:
            return None
        topic = self._runs[0][0]
        got: Rows = []
        while self._runs and len(got) < most and self._runs[0][0] == topic:
            rows = self._runs[0][1]
            room = most - len(got)
            got += reversed(rows[-room:])
            del rows[-room:]
            if not rows:
                self._runs.popleft()
        batch = MessageBatch(self, topic, got)
        self._taken(batch.tags, len(got), sum([len(value) for value in batch.values]))
        return batch

    # -- settling (see message.Settler) ----------------------------------------------------------------------------

    async def settle(self, tags: Sequence[int], timeout: float | None) -> None:
        if self._closed:
            raise Closed("the subscription is closed: its messages can no longer be acknowledged")
        self._settled += 1
        if not self._gather_s:
            await self._source.settle(tags, self._timeout if timeout is None else timeout)
            return
        self._gathered += tags
        if len(self._gathered) >= self._gather_max:
            await self._flush_gathered()
        elif self._gather_timer is None:
            self._gather_timer = asyncio.get_running_loop().call_later(self._gather_s, self._settle_gathered)

    def gather_acks(self, seconds: float, most: int) -> None:
        """From now on acknowledgements go out together: `most` of them, or those of so many seconds. An acknowledgement by itself
        is one write and, at the server, one read more for each message."""
        self._gather_s, self._gather_max = seconds, most

    def _settle_gathered(self) -> None:
        self._settling = asyncio.get_running_loop().create_task(self._flush_gathered())

    async def _flush_gathered(self) -> None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        tags, self._gathered = self._gathered, []
        if tags:
            try:
                await self._source.settle(tags, self._timeout)
            except QuintetError as error:  # they come again
                log.info("%d acknowledgements of %r were not taken: %s", len(tags), self._topic, error)

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        self._source.hold(tags, retry)

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        check_delay(delay)
        return await self._source.give_back(rows, error, retry, dead_letter, delay)

    def release(self, rows: Rows) -> None:
        self._source.release(rows)

    async def nack(self, rows: Rows, delay: float | None) -> None:
        check_delay(delay)
        if not all(row[1] for row in rows):
            raise Unsupported("a message of QoS 0 is not delivered again", hint="subscribe with qos=1")
        if self._closed:
            raise Closed("the subscription is closed: what was not acknowledged is delivered again")
        self._settled += 1
        await self._source.nack(rows, delay)

    async def in_progress(self, tags: Sequence[int]) -> None:
        if self._closed:
            raise Closed("the subscription is closed: what was not acknowledged is delivered again")
        self._settled += 1
        await self._source.in_progress(tags)

    def position_of(self, tag: int) -> LogPosition | None:
        return self._source.position_of(tag)

    async def commit_in(self, transaction: str, tag: int) -> None:
        await self._source.commit_in(transaction, tag)

    def committed(self, tag: int) -> None:
        self._source.committed(tag)
