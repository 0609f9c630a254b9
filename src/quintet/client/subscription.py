"""From a connection to an iterator: a bounded queue, and the acknowledgements on their way back.

    link --on_records--> queue --next, batches--> user --ack, process--> link

The queue is bounded by messages (`prefetch`) and bytes; when it is full the socket is not read, so that what is not
consumed stays with the server. When the connection is lost, queued QoS 1 messages are thrown away, because the server
delivers them again on the next one; QoS 0 messages are kept, because nobody else has them. The last acknowledged tags
are remembered: what the next connection brings although it was acknowledged (the server did not get it, or was killed
before it saved it) is acknowledged again and not handed out again.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final

from quintet.client.base import CLOSE_S, Channel, Link, PushLink, Setup, deadline
from quintet.client.errors import Closed, ConnectionLost
from quintet.client.message import Message, MessageBatch, Rows, log
from quintet.model.errors import QuintetError

PREFETCH_DEFAULT: Final = 8_192  # messages
PREFETCH_BYTES_MAX: Final = 16 * 1024 * 1024
ACKED_TAGS_MAX: Final = 100_000  # the last acknowledged deliveries that are remembered
TRACKED_TAGS_MAX: Final = 100_000  # deliveries never acknowledged that are remembered


class Subscription:
    """`async with bus.subscribe(topic) as sub`, then `async for msg in sub` or `async for batch in sub.batches()`.

    Several tasks may iterate over one subscription: each message goes to one of them.
    """

    def __init__(
        self, setup: Setup, topic: str, *, qos: int, resume: int | None, prefetch: int, timeout: float
    ) -> None:
        self._topic = topic
        self._qos = qos
        self._id = resume
        self._prefetch = prefetch
        self._timeout = timeout
        self._window = setup.door.limits.in_flight_max
        self._channel = Channel(setup, self, on_up=self._attach, on_down=self._down)
        self._opened = False
        self._closed = False
        self._runs: deque[tuple[str, Rows]] = deque()  # rows are reversed: the next one is popped from the end
        self._queued = 0
        self._queued_bytes = 0
        self._paused = False
        self._ready = asyncio.Event()  # something is queued, or nothing ever will be
        self._goal = 0
        self._reached = asyncio.Event()  # as much is queued as a batch waits for
        # QoS 1 deliveries not acknowledged yet: tag -> is it queued or being worked on here
        self._tags: dict[int, bool] = {}
        self._acked: deque[int] = deque(maxlen=ACKED_TAGS_MAX)
        self._acked_before: set[int] = set()  # on an earlier connection, or on none
        self._refused = 0

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> "Subscription":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Subscribe, or take up the subscription given as `resume`. Iterating does it too."""
        if self._closed:
            raise Closed("the subscription is closed", hint="subscribe again, with resume=sub.id to go on where it was")
        if not self._opened:
            self._opened = True
            await self._channel.open()

    async def close(self) -> None:
        """Stop, after the server has taken the acknowledgements. The subscription itself stays: resume it by its id."""
        if self._closed:
            return
        self._closed = True
        self._drop(lambda qos: False)
        link = self._channel.current
        if link is not None and self._qos:
            link.resume()
            try:
                async with deadline(CLOSE_S, "closing the subscription"):
                    await link.barrier()
            except QuintetError as error:
                log.warning("the last acknowledgements of subscription %s may be lost: %s", self._id, error)
        await self._channel.close()
        self._wake()

    @property
    def id(self) -> int:
        """What to give as `resume=` to go on later, from any connection with the same credentials."""
        if self._id is None:
            raise Closed("the subscription has no id before it is open", hint="use `async with bus.subscribe(...)`")
        return self._id

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def connected(self) -> bool:
        """Whether there is a connection right now."""
        return self._channel.current is not None

    @property
    def topic(self) -> str:
        return self._topic

    @property
    def queued(self) -> int:
        """Messages received and not yet taken."""
        return self._queued

    @property
    def refused(self) -> int:
        """Acknowledgements the server did not know: too late, or settled by another consumer."""
        return self._refused

    @property
    def reconnects(self) -> int:
        return self._channel.reconnects

    async def _attach(self, link: Link) -> None:
        assert isinstance(link, PushLink)
        if self._id is None:
            self._id = await link.subscribe(self._topic, self._qos)
            return
        if len(self._acked_before) > ACKED_TAGS_MAX:
            self._acked_before.clear()
        self._acked_before.update(self._acked)
        self._acked.clear()
        link.attach(self._id)
        await link.barrier()

    def _down(self, error: QuintetError) -> None:
        self._drop(lambda qos: qos == 0)
        self._tags.clear()
        self._paused = False
        if self._channel.failed is not None:
            self._wake()

    def _drop(self, keep_row: Callable[[int], bool]) -> None:
        """Throw queued messages away, but those whose qos passes."""
        kept = [(topic, [row for row in rows if keep_row(row[1])]) for topic, rows in self._runs]
        self._runs = deque((topic, rows) for topic, rows in kept if rows)
        self._queued = sum(len(rows) for _, rows in self._runs)
        self._queued_bytes = sum(len(row[2]) for _, rows in self._runs for row in rows)
        if not self._queued:
            self._ready.clear()

    def _wake(self) -> None:
        self._ready.set()
        self._reached.set()

    # -- from the connection ---------------------------------------------------------------------------------------

    def on_records(self, topic: str, rows: Rows) -> None:
        if self._closed:
            return
        tags = [row[0] for row in rows if row[1]]
        if tags:
            if not self._acked_before.isdisjoint(tags):
                rows = self._without_acked(rows)
                tags = [row[0] for row in rows if row[1]]
            fresh = dict.fromkeys(tags, True)
            if len(fresh) < len(tags) or not self._tags.keys().isdisjoint(fresh):
                rows = self._without_repeats(rows)
            if len(self._tags) > TRACKED_TAGS_MAX:
                self._tags = {tag: here for tag, here in self._tags.items() if here}
            self._tags.update(fresh)
        self._queued += len(rows)
        self._queued_bytes += sum([len(row[2]) for row in rows])
        if not rows:
            return
        rows.reverse()
        self._runs.append((topic, rows))
        self._ready.set()
        if self._queued >= self._goal or len(self._tags) >= self._window:
            self._reached.set()
        if self._queued >= self._prefetch or self._queued_bytes >= PREFETCH_BYTES_MAX:
            self._pause()

    def _without_acked(self, rows: Rows) -> Rows:
        """Without what was acknowledged before the connection was lost: acknowledged again, on the link it came by."""
        again = [row[0] for row in rows if row[1] and row[0] in self._acked_before]
        link = self._channel.newest
        assert isinstance(link, PushLink) and self._id is not None, "records come by a link of an open subscription"
        link.ack(self._id, again)
        self._acked.extend(again)
        self._acked_before.difference_update(again)
        done = set(again)
        return [row for row in rows if not (row[1] and row[0] in done)]

    def _without_repeats(self, rows: Rows) -> Rows:
        """Without what is queued or being worked on here: the server lost patience before we were done."""
        here = {tag for tag, here in self._tags.items() if here}
        kept: Rows = []
        for row in rows:
            if row[1]:
                if row[0] in here:
                    continue
                here.add(row[0])
            kept.append(row)
        return kept

    def on_refused(self, tag: int, error: QuintetError) -> None:
        self._refused += 1
        log.info("subscription %s: the acknowledgement of tag %d was refused: %s", self._id, tag, error)

    def _pause(self) -> None:
        link = self._channel.current
        if link is not None and not self._paused:
            self._paused = True
            self._reached.set()
            link.pause()

    def _taken(self, count: int, size: int) -> None:
        self._queued -= count
        self._queued_bytes -= size
        if not self._queued and self._channel.failed is None:
            self._ready.clear()
        if self._paused and self._queued * 2 <= self._prefetch and self._queued_bytes * 2 <= PREFETCH_BYTES_MAX:
            self._paused = False
            link = self._channel.current
            if link is not None:
                link.resume()

    # -- to the user -----------------------------------------------------------------------------------------------

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Message:
        if not self._queued and not await self._available():
            raise StopAsyncIteration
        topic, rows = self._runs[0]
        row = rows.pop()
        tag, qos, value = row[:3]
        if not rows:
            self._runs.popleft()
        if qos:
            self._tags[tag] = False
        self._taken(1, len(value))
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
            link = await self._channel.link()
            link.resume()  # the answer is behind what is unread: the queue may pass its bound by one socket buffer
            self._paused = False
            await link.barrier()

    async def _available(self) -> bool:
        """Wait for a message: False when the subscription was closed, its error when it failed."""
        if not self._opened:
            await self.open()
        while not self._queued:
            if self._closed:
                return False
            if self._channel.failed is not None:
                raise self._channel.failed
            await self._ready.wait()
        return True

    async def _linger(self, most: int, wait: float) -> None:
        self._goal = min(most, self._prefetch)
        if self._paused or len(self._tags) >= self._window:
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
        self._tags.update(dict.fromkeys(batch.tags, False))
        self._taken(len(got), sum([len(value) for value in batch.values]))
        return batch

    # -- settling (see message.Settler) ----------------------------------------------------------------------------

    async def settle(self, tags: Sequence[int], timeout: float | None) -> None:
        """Acknowledge deliveries. Without a connection it is done when the next one brings them again."""
        if self._closed:
            raise Closed("the subscription is closed: its messages can no longer be acknowledged")
        for tag in tags:
            self._tags.pop(tag, None)
        self._acked.extend(tags)
        link = self._channel.newest
        if link is None or link.lost is not None:
            if self._channel.failed is not None:
                raise self._channel.failed
            return
        assert isinstance(link, PushLink) and self._id is not None, "a message comes from an open subscription"
        with suppress(ConnectionLost):
            link.ack(self._id, tags)
            if link.full:
                async with deadline(self._timeout if timeout is None else timeout, "acknowledging"):
                    await link.writable()

    def hold(self, tags: Sequence[int]) -> None:
        for tag in tags:
            if tag in self._tags:
                self._tags[tag] = True

    def release(self, tags: Sequence[int]) -> None:
        for tag in tags:
            self._tags.pop(tag, None)
