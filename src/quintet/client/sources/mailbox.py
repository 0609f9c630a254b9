"""Reads the mailbox of a peer (peerbus): passes on envelopes that are genuine, new and wanted, and counts the others.

    deliver ->  signature, or addressee, wrong: dropped, not acknowledged
                id seen and settled: acknowledged again, not handed out
                id queued here, or in somebody's hands: settled with it
                else handed out, acknowledged after it was consumed

When the connection is lost, what is queued is thrown away, because the broker delivers it again on the next one; what is in
somebody's hands is remembered by its id, and settled there. Sockets and frames are known by peerbus.py alone.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from quintet.client.core.base import CLOSE_S, Channel, Setup, deadline
from quintet.client.core.errors import Unsupported
from quintet.client.core.headers import pack_pairs
from quintet.client.core.message import LogPosition, Row, Rows, log
from quintet.client.core.source import Inbox, Source
from quintet.model import envelope
from quintet.model.errors import ProtocolError, QuintetError

TOPIC_PREFIX: Final = "peerbus/"
SEEN_MAX: Final = 4_096  # ids of settled messages that are remembered
PENDING_MAX: Final = 100_000  # messages handed out and never settled that are remembered
Known = tuple[str, str]  # sender and id: another sender that uses the same id first hides nothing


class Identity(NamedTuple):
    """Who we are, and what we sign and verify with. An empty secret signs nothing; `kid` is the id of a key of our own."""

    name: str
    secret: bytes
    verify: bool
    kid: str = ""


class Post(Protocol):
    """Who brings deliveries, by whichever connection there is: also by one that our own channel does not know yet."""

    def ack(self, keys: Sequence[str]) -> None:
        """Acknowledge these deliveries soon, if there is a connection."""

    def hold(self, full: bool) -> None:
        """The queue is full, or no longer."""

    def leave(self, source: "PeerSource") -> None:
        """This one takes no more."""


class PeerSource(Source):
    """The mailbox of our name: what is verified, new and wanted goes on; the rest is counted."""

    def __init__(self, setup: Setup, me: Identity, post: Post) -> None:
        self._me = me
        self._post = post
        self._topic = TOPIC_PREFIX + me.name
        self._lacks = setup.connector.lacks
        self._channel = Channel(setup, self, on_down=self._down)
        self._inbox: Inbox | None = None
        self._next_tag = 1
        self._keys: dict[int, list[str]] = {}  # tag -> delivery keys that settle it
        self._pending: OrderedDict[Known, int] = OrderedDict()  # -> tag, queued here or in somebody's hands
        self._queued: set[int] = set()
        self._ids: dict[int, Known] = {}
        self._seen: OrderedDict[Known, None] = OrderedDict()  # what is settled, the last used last
        self.forged = 0
        self.duplicates = 0
        self.over = asyncio.Event()  # it was closed, or has failed for good

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def open(self, inbox: Inbox) -> None:
        self._inbox = inbox
        await self._channel.open()

    async def close(self) -> None:
        connection = self._channel.current
        if connection is not None:
            try:
                async with deadline(CLOSE_S, "closing the subscription"):
                    await connection.barrier()
            except QuintetError as error:
                log.warning("the last acknowledgements of %s may be lost: %s", self._topic, error)
        self._post.leave(self)
        await self._channel.close()
        self.over.set()

    def _down(self, error: QuintetError) -> None:
        """What is queued comes again; what is in somebody's hands is settled on the next connection."""
        for tag in list(self._queued):
            self._forget(tag)
        if self._inbox is not None:
            self._inbox.drop(lambda row: False)
            if self._channel.failed is not None:
                self._inbox.wake()
        if self._channel.failed is not None:
            self.over.set()

    @property
    def id(self) -> int:
        raise Unsupported("a mailbox has no id", hint="it is known by the name of its peer")

    @property
    def connected(self) -> bool:
        return self._channel.current is not None

    @property
    def failed(self) -> QuintetError | None:
        return self._channel.failed

    @property
    def refused(self) -> int:
        return 0

    @property
    def reconnects(self) -> int:
        return self._channel.reconnects

    @property
    def assigned(self) -> tuple[int, ...]:
        return ()

    @property
    def stuck(self) -> bool:
        return False

    # -- from the connection ---------------------------------------------------------------------------------------

    def delivered(self, key: str, data: bytes) -> None:
        if self._inbox is None or self._inbox.closed:
            return
        letter = self._judged(data)
        if letter is None:
            return
        known = (letter.sender, letter.id)
        if known in self._seen:
            self._seen.move_to_end(known)
            self.duplicates += 1
            self._post.ack([key])
        elif (tag := self._pending.get(known)) is not None:
            self.duplicates += 1
            if key not in self._keys[tag]:
                self._keys[tag].append(key)
        else:
            self._inbox.put(self._topic, [self._row(key, letter)])

    def _judged(self, data: bytes) -> envelope.Envelope | None:
        """The envelope, if it is what its sender signed, for us or for everyone."""
        try:
            letter = envelope.parse(data, strict=self._me.verify)
        except ProtocolError as error:
            self._drop(str(error))
            return None
        try:
            envelope.headers_of(letter.headers or b"[]")
        except ProtocolError as error:
            self._drop(str(error))
            return None
        if self._me.verify and not envelope.genuine(letter, self._me.secret, data):
            self._drop("its signature is not right")
            return None
        if self._me.verify and letter.to not in (self._me.name, envelope.EVERYONE):
            self._drop("it was signed for somebody else")
            return None
        return letter

    def _drop(self, why: str) -> None:
        self.forged += 1
        if str(self.forged).strip("0") == "1":  # 1, 10, 100, ...: many of them make few lines in the log
            log.warning("dropped a message to %s because %s (%d so far)", self._me.name, why, self.forged)

    def _row(self, key: str, letter: envelope.Envelope) -> Row:
        tag, self._next_tag = self._next_tag, self._next_tag + 1
        self._keys[tag] = [key]
        self._pending[letter.sender, letter.id] = tag
        self._ids[tag] = (letter.sender, letter.id)
        self._queued.add(tag)
        if len(self._pending) > PENDING_MAX:
            self._forget(next(iter(self._pending.values())))
        members = {"to": letter.to, "ts": letter.ts, "source": letter.source, "kind": letter.kind}
        time = envelope.microseconds(letter.ts)
        pairs = envelope.headers_of(letter.headers) if letter.headers else ()
        headers = pack_pairs(pairs)
        return tag, 1, letter.body, letter.id.encode(), headers, time, letter.sender.encode(), members

    def _forget(self, tag: int) -> list[str]:
        """No longer pending; the delivery keys it had."""
        id = self._ids.pop(tag, None)
        if id is not None:
            self._pending.pop(id, None)
        self._queued.discard(tag)
        return self._keys.pop(tag, [])

    def on_records(self, topic: str, rows: Rows) -> None:
        raise AssertionError("deliveries of peerbus come as envelopes")

    def on_refused(self, tag: int, error: QuintetError) -> None:
        raise AssertionError("no acknowledgement of peerbus is answered")

    def pause(self) -> None:
        self._post.hold(True)

    def resume(self) -> None:
        self._post.hold(False)

    # -- settling --------------------------------------------------------------------------------------------------

    def taken(self, tags: Sequence[int]) -> None:
        self._queued.difference_update(tags)

    async def settle(self, tags: Sequence[int], timeout: float) -> None:
        """Without a connection it is done when the next one brings them again."""
        keys: list[str] = []
        for tag in tags:
            id = self._ids.get(tag)
            keys += self._forget(tag)
            if id is not None:
                self._seen[id] = None
                if len(self._seen) > SEEN_MAX:
                    self._seen.popitem(last=False)
        if self._channel.failed is not None:
            raise self._channel.failed
        if keys:
            self._post.ack(keys)
        connection = self._channel.current
        if connection is not None and connection.full:
            async with deadline(timeout, "acknowledging"):
                await connection.writable()

    async def flush(self) -> None:
        await (await self._channel.connection()).barrier()

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        if retry is not None:
            raise Unsupported("this protocol does not support process(retry=)", hint=self._lacks["retry"])

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        self.release(rows)
        return "will be delivered again with the next connection"

    @property
    def comes_again(self) -> bool:
        return False

    @property
    def has_dead_letters(self) -> bool:
        return False

    def release(self, rows: Rows) -> None:
        for row in rows:
            self._forget(row[0])

    async def nack(self, rows: Rows, delay: float | None) -> None:
        hint = "leave it unacknowledged: the next connection of this name gets it again"
        raise Unsupported("peerbus sends nothing twice over one connection", hint=hint)

    async def in_progress(self, tags: Sequence[int]) -> None:
        """No time runs out here: what is not acknowledged waits for the next connection."""

    def position_of(self, tag: int) -> LogPosition | None:
        return None

    async def commit_in(self, transaction: str, tag: int) -> None:
        raise Unsupported("this protocol has no transactions", hint=self._lacks["transaction"])

    def committed(self, tag: int) -> None:
        raise Unsupported("this protocol has no transactions", hint=self._lacks["transaction"])
