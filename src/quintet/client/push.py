"""Deliveries that the server pushes (BlipMQ): one subscription on one connection, known by an id that outlives it.

When the connection is lost, queued QoS 1 messages are thrown away, because the server delivers them again on the next
one; QoS 0 messages are kept, because nobody else has them. The last acknowledged tags are remembered: what the next
connection brings although it was acknowledged (the server did not get it, or was killed before it saved it) is
acknowledged again and not handed out again.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from quintet.client.base import CLOSE_S, Channel, Link, PushLink, Setup, deadline
from quintet.client.errors import Closed, ConnectionLost, Unsupported
from quintet.client.message import Place, Rows, log
from quintet.client.subscription import Inbox, Source
from quintet.model.errors import QuintetError

ACKED_TAGS_MAX: Final = 100_000  # the last acknowledged deliveries that are remembered
TRACKED_TAGS_MAX: Final = 100_000  # deliveries never acknowledged that are remembered


class PushSource(Source):
    """The connection of one pushed subscription, and what is known of its deliveries."""

    def __init__(self, setup: Setup, topic: str, *, qos: int, resume: int | None) -> None:
        self._topic = topic
        self._qos = qos
        self._id = resume
        self._window = setup.door.limits.in_flight_max
        self._lacks = setup.door.lacks
        self._channel = Channel(setup, self, on_up=self._attach, on_down=self._down)
        self._inbox: Inbox | None = None
        # QoS 1 deliveries not acknowledged yet: tag -> is it queued or being worked on here
        self._tags: dict[int, bool] = {}
        self._acked: deque[int] = deque(maxlen=ACKED_TAGS_MAX)
        self._acked_before: set[int] = set()  # on an earlier connection, or on none
        self._refused = 0

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        await self._channel.open()

    async def close(self) -> None:
        link = self._channel.current
        if link is not None and self._qos:
            link.resume()
            try:
                async with deadline(CLOSE_S, "closing the subscription"):
                    await link.barrier()
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
        return len(self._tags) >= self._window

    async def _attach(self, link: Link) -> None:
        assert isinstance(link, PushLink), "this door pushes"
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
        if self._inbox is not None:
            self._inbox.drop(lambda row: row[1] == 0)
            if self._channel.failed is not None:
                self._inbox.wake()
        self._tags.clear()

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

    def pause(self) -> None:
        link = self._channel.newest  # what comes before it is handed to callers fills the queue, too
        if link is not None:
            link.pause()

    def resume(self) -> None:
        link = self._channel.newest
        if link is not None:
            link.resume()

    # -- settling --------------------------------------------------------------------------------------------------

    def taken(self, tags: Sequence[int]) -> None:
        self._tags.update(dict.fromkeys(tags, False))

    async def settle(self, tags: Sequence[int], timeout: float) -> None:
        """Without a connection it is done when the next one brings them again."""
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
                async with deadline(timeout, "acknowledging"):
                    await link.writable()

    async def flush(self) -> None:
        link = await self._channel.link()
        link.resume()  # the answer is behind what is unread: the queue may pass its bound by one socket buffer
        await link.barrier()

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        if retry is not None:
            raise Unsupported("process(retry=) is not for this door", hint=self._lacks["retry"])
        for tag in tags:
            if tag in self._tags:
                self._tags[tag] = True

    async def give_back(self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool) -> str:
        self.release(rows)
        return "will be delivered again"

    def release(self, rows: Rows) -> None:
        for row in rows:
            self._tags.pop(row[0], None)

    def place(self, tag: int) -> Place | None:
        return None

    async def commit_in(self, transaction: str, tag: int) -> None:
        raise Unsupported("this door has no transactions", hint=self._lacks["transaction"])

    def committed(self, tag: int) -> None:
        raise Unsupported("this door has no transactions", hint=self._lacks["transaction"])
