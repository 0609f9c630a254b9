"""Reads a subscription whose server pushes (BlipMQ): one connection, and an id by which it is resumed on another.

When the connection is lost, queued QoS 1 messages are thrown away, because the server delivers them again on the next
one; QoS 0 messages are kept, because nobody else has them. The last acknowledged tags are remembered: what the next
connection brings although it was acknowledged (the server did not get it, or was killed before it saved it) is
acknowledged again and not handed out again.

Where the server has words for it (ADR 14), it is told how many messages there is room for, and three times in each of its
time-outs which of them are being worked on: those that were handed out, for HELD_TIMEOUTS time-outs or until they are
acknowledged, and those in a `process()` block for as long as that takes. What waits in the queue needs no word.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final

from quintet.client.core.base import CLOSE_S, Channel, ClientConnection, PushConnection, Setup, deadline
from quintet.client.core.errors import Closed, ConnectionLost, Unsupported
from quintet.client.core.message import LogPosition, Rows, log
from quintet.client.core.source import Inbox, Source
from quintet.model.errors import QuintetError

ACKED_TAGS_MAX: Final = 100_000  # the last acknowledged deliveries that are remembered
HELD_TIMEOUTS: Final = 10  # time-outs for which the server is told that a message is still being processed
WORDS_PER_TIMEOUT: Final = 3
WORDS_S_MIN: Final = 0.01
TRACKED_TAGS_MAX: Final = 100_000  # deliveries never acknowledged that are remembered


class PushSource(Source):
    """The connection of one pushed subscription, and what is known of its deliveries."""

    def __init__(
        self, setup: Setup, topic: str, *, qos: int, resume: int | None, credit: int = 0, from_start: bool = False
    ) -> None:
        self._topic = topic
        self._qos = qos
        self._id = resume
        self._from_start = from_start
        self._window = setup.connector.limits.in_flight_max
        self._lacks = setup.connector.lacks
        self._channel = Channel(setup, self, on_up=self._attach, on_down=self._down)
        self._inbox: Inbox | None = None
        # QoS 1 deliveries not acknowledged yet: tag -> is it queued or being worked on here
        self._tags: dict[int, bool] = {}
        self._acked: deque[int] = deque(maxlen=ACKED_TAGS_MAX)
        self._acked_before: set[int] = set()  # on an earlier connection, or on none
        self._refused = 0
        self._prefetch = credit  # messages as its user said; 0: as many as the server sends
        self._credit = credit  # what the server was told: more, while a reader has taken more
        self._timeout = 0.0  # seconds after which the server redelivers what is not acknowledged; 0: not known
        self._in_progress: dict[int, float] = {}  # handed out -> until when the server is told that it is worked on
        self._extending: asyncio.TimerHandle | None = None
        self._attempts: dict[int, int] = {}  # given back and not settled -> how often

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        await self._channel.open()

    async def close(self) -> None:
        if self._extending is not None:
            self._extending.cancel()
        connection = self._channel.current
        if connection is not None and self._qos:
            connection.resume()
            try:
                async with deadline(CLOSE_S, "closing the subscription"):
                    await connection.barrier()
            except QuintetError as error:
                log.warning("the last acknowledgements of subscription %s may be lost: %s", self._id, error)
        await self._channel.close()

    @property
    def id(self) -> int:
        if self._id is None:
            raise Closed("the subscription has no id before it is open", hint="use `async with bus.subscribe(...)`")
        return self._id

    @property
    def connected(self) -> bool:
        return self._channel.current is not None

    @property
    def failed(self) -> QuintetError | None:
        return self._channel.failed

    @property
    def refused(self) -> int:
        return self._refused

    @property
    def reconnects(self) -> int:
        return self._channel.reconnects

    @property
    def assigned(self) -> tuple[int, ...]:
        return ()

    @property
    def stuck(self) -> bool:
        return len(self._tags) >= (min(self._window, self._credit) if self._timeout else self._window)

    def want_more(self) -> bool:
        """It is the reader's business how many it works on at a time: there is room behind them again."""
        connection = self._words()
        if connection is None or self._id is None or not self._credit <= len(self._tags) < self._window:
            return False
        self._tell_credit(connection, len(self._tags) + self._prefetch)
        return True

    def _tell_credit(self, connection: PushConnection, credit: int) -> None:
        self._credit = credit
        assert self._id is not None
        task = asyncio.ensure_future(connection.credit(self._id, credit))
        # A lost connection is reported by its channel.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _words(self) -> PushConnection | None:
        """The connection, if it is there and its server knows more than acknowledgements."""
        connection = self._channel.newest
        if (
            not isinstance(connection, PushConnection)
            or connection.lost is not None
            or not connection.extends_deadlines
            or not self._qos
        ):
            return None
        return connection

    async def _attach(self, connection: ClientConnection) -> None:
        assert isinstance(connection, PushConnection), "this door pushes"
        known = self._id is not None
        if self._id is None:
            self._id = await connection.subscribe(self._topic, self._qos, self._from_start)
        else:
            if len(self._acked_before) > ACKED_TAGS_MAX:
                self._acked_before.clear()
            self._acked_before.update(self._acked)
            self._acked.clear()
        self._credit = self._prefetch
        if connection.extends_deadlines:
            self._timeout = await connection.credit(self._id, self._credit)
        elif known:
            connection.attach(self._id)
            await connection.barrier()

    def _down(self, error: QuintetError) -> None:
        if self._inbox is not None:
            self._inbox.drop(lambda row: row[1] == 0)
            if self._channel.failed is not None:
                self._inbox.wake()
        self._tags.clear()
        self._in_progress.clear()

    # -- from the connection ---------------------------------------------------------------------------------------

    def on_records(self, topic: str, rows: Rows) -> None:
        if self._inbox is None or self._inbox.closed:
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
        if rows:
            self._inbox.put(topic, rows)

    def _without_acked(self, rows: Rows) -> Rows:
        """Without what was acknowledged before the connection was lost: acknowledged again, on the connection it came by."""
        again = [row[0] for row in rows if row[1] and row[0] in self._acked_before]
        connection = self._channel.newest
        assert isinstance(connection, PushConnection) and self._id is not None, (
            "records come by a connection of an open subscription"
        )
        connection.ack(self._id, again)
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

    def pause(self) -> None:
        connection = self._channel.newest  # what comes before it is handed to callers fills the queue, too
        if connection is not None:
            connection.pause()

    def resume(self) -> None:
        connection = self._channel.newest
        if connection is not None:
            connection.resume()

    # -- settling --------------------------------------------------------------------------------------------------

    def taken(self, tags: Sequence[int]) -> None:
        self._tags.update(dict.fromkeys(tags, False))
        if self._timeout and tags:
            self._extend_until(tags, asyncio.get_running_loop().time() + HELD_TIMEOUTS * self._timeout)

    def _extend_until(self, tags: Sequence[int], until: float) -> None:
        self._in_progress.update(dict.fromkeys(tags, until))
        if self._extending is None:
            pause = max(self._timeout / WORDS_PER_TIMEOUT, WORDS_S_MIN)
            self._extending = asyncio.get_running_loop().call_later(pause, self._speak)

    def _speak(self) -> None:
        self._extending = None
        now = asyncio.get_running_loop().time()
        kept = {tag: until for tag, until in self._in_progress.items() if until > now}
        self._in_progress.clear()
        connection = self._words()
        if kept and connection is not None and self._id is not None:
            connection.in_progress(self._id, list(kept))
            for until in set(kept.values()):
                self._extend_until([tag for tag, its in kept.items() if its == until], until)

    async def settle(self, tags: Sequence[int], timeout: float) -> None:
        """Without a connection it is done when the next one brings them again."""
        for tag in tags:
            self._tags.pop(tag, None)
            self._in_progress.pop(tag, None)
        if self._attempts:
            for tag in tags:
                self._attempts.pop(tag, None)
        self._acked.extend(tags)
        connection = self._channel.newest
        if connection is None or connection.lost is not None:
            if self._channel.failed is not None:
                raise self._channel.failed
            return
        assert isinstance(connection, PushConnection) and self._id is not None, (
            "a message comes from an open subscription"
        )
        with suppress(ConnectionLost):
            connection.ack(self._id, tags)
            if self._credit > self._prefetch and not self._tags and connection.extends_deadlines:
                self._tell_credit(connection, self._prefetch)
            if connection.full:
                async with deadline(timeout, "acknowledging"):
                    await connection.writable()

    async def flush(self) -> None:
        connection = await self._channel.connection()
        connection.resume()  # the answer is behind what is unread: the queue may pass its bound by one socket buffer
        await connection.barrier()

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        if retry is not None and not self.comes_again:
            raise Unsupported("this server does not support process(retry=)", hint=self._lacks["retry"])
        held = [tag for tag in tags if tag in self._tags]
        for tag in held:
            self._tags[tag] = True
        if self._timeout and held:
            self._extend_until(held, inf)

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        if retry is None or not self.comes_again:
            self._let_go(rows, delay)
            return "will be delivered again"
        over: Rows = []
        for row in rows:
            times = self._attempts[row[0]] = self._attempts.pop(row[0], 0) + 1
            if times > retry:
                del self._attempts[row[0]]
                over.append(row)
        if len(self._attempts) > TRACKED_TAGS_MAX:
            del self._attempts[next(iter(self._attempts))]
        again = [row for row in rows if row not in over] if over else rows
        if again:
            self._let_go(again, delay)
        if over and dead_letter:
            self._let_go(over, None, dead=True)
        elif over:
            await self.settle([row[0] for row in over], CLOSE_S)
        return "was given up" if len(over) == len(rows) else "will be delivered again"

    @property
    def comes_again(self) -> bool:
        return self._words() is not None

    @property
    def has_dead_letters(self) -> bool:
        return self._words() is not None

    def release(self, rows: Rows) -> None:
        """Tell the server at once; it redelivers them after its configured delay."""
        self._let_go(rows, None)

    def _let_go(self, rows: Rows, delay: float | None, dead: bool = False) -> None:
        for row in rows:
            self._tags.pop(row[0], None)
            self._in_progress.pop(row[0], None)
        connection, tags = self._words(), [row[0] for row in rows if row[1]]
        if connection is not None and self._id is not None and tags:
            connection.nack(self._id, tags, delay, dead)

    async def nack(self, rows: Rows, delay: float | None) -> None:
        connection = self._channel.newest
        if isinstance(connection, PushConnection) and connection.lost is None and not connection.extends_deadlines:
            hint = "leave it unacknowledged: it comes again after the server's time-out"
            raise Unsupported("this server has no negative acknowledgement", hint=hint)
        self._let_go(rows, delay)

    async def in_progress(self, tags: Sequence[int]) -> None:
        connection = self._channel.newest
        if not isinstance(connection, PushConnection) or connection.lost is not None or self._id is None:
            return  # they are delivered again on the next connection
        if not connection.extends_deadlines:
            raise Unsupported("this server cannot extend the time-out of a message", hint="raise its time-out")
        connection.in_progress(self._id, tags)
        if self._timeout:
            self._extend_until(tags, asyncio.get_running_loop().time() + HELD_TIMEOUTS * self._timeout)

    def position_of(self, tag: int) -> LogPosition | None:
        return None

    async def commit_in(self, transaction: str, tag: int) -> None:
        raise Unsupported("this protocol has no transactions", hint=self._lacks["transaction"])

    def committed(self, tag: int) -> None:
        raise Unsupported("this protocol has no transactions", hint=self._lacks["transaction"])
