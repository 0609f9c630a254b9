"""Defines what users send and get: values, Ack, Message, MessageBatch, and the block that acknowledges.

A message knows who settles it (`Settler`, in practice its subscription) and nothing of connections or frames. Whole
batches are two lists, values and tags, because an object per message is the dearest part of receiving.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from quintet.client.core import values
from quintet.client.core.headers import EMPTY, Encoded, Headers

T = TypeVar("T")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# A delivery: (tag, qos, value), its key where the door has keys, headers, microseconds since 1970 and origin where it has a place
# for them, and the other members of its envelope (peerbus).
Row = (
    tuple[int, int, bytes]
    | tuple[int, int, bytes, bytes | None]
    | tuple[int, int, bytes, bytes | None, Encoded, int, bytes]
    | tuple[int, int, bytes, bytes | None, Encoded, int, bytes, Mapping[str, str]]
)
Rows = list[Row]

log: Final = logging.getLogger("quintet.client")


@dataclass(frozen=True, slots=True)
class Ack:
    """What became of a publish: `durable` says that the server has confirmed it is on disk as its topic promises.

    Where it is, if the door tells (FlyMQ): partition, offset, and timestamp in milliseconds since 1970, of the last
    message of a batch. A delayed message has no offset yet: `handle` takes it back (`bus.cancel`).
    """

    topic: str
    count: int
    durable: bool
    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None
    handle: int | None = None


def key_bytes(key: str | bytes | None) -> bytes | None:
    """A key as the wire has it; an empty one is none."""
    return (key.encode() if isinstance(key, str) else key) or None


class LogPosition(NamedTuple):
    """Where a delivery is in the log, and how often it was handed out before."""

    partition: int
    offset: int
    attempts: int


class Settler(Protocol):
    """Who a message is acknowledged to."""

    async def settle(self, tags: Sequence[int], timeout: float | None) -> None:
        """Acknowledge these deliveries with one write."""

    def hold(self, tags: Sequence[int], retry: int | None) -> None:
        """They are being worked on: a second delivery of them in the meantime is not handed out."""

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        """They were not dealt with: let them come again, or put them aside. What becomes of them, for the log."""

    def release(self, rows: Rows) -> None:
        """Processing was cancelled: let the server deliver them again."""

    async def nack(self, rows: Rows, delay: float | None) -> None:
        """They failed: let them come again after so many seconds, or after those that are configured."""

    async def in_progress(self, tags: Sequence[int]) -> None:
        """They are being worked on, and it takes longer."""

    def position_of(self, tag: int) -> LogPosition | None:
        """Where it is, if the door tells."""

    async def commit_in(self, transaction: str, tag: int) -> None:
        """See transaction.py."""

    def committed(self, tag: int) -> None: ...


class Processing:
    """`async with`: acknowledges when the block succeeds; when it raises, lets it be delivered again, or gives it up.

    The exception is logged and ends here, so that one bad message does not end the loop over the others; with
    `reraise=True` it goes on. A cancellation always goes on.
    """

    __slots__ = ("_dead_letter", "_reraise", "_retry", "_rows", "_settler", "_tags", "_timeout", "_what")

    def __init__(
        self,
        settler: Settler,
        rows: Rows,
        what: object,
        *,
        retry: int | None,
        dead_letter: bool,
        reraise: bool,
        timeout: float | None,
    ) -> None:
        self._settler = settler
        self._rows = rows
        self._tags = [row[0] for row in rows]
        self._what = what
        self._retry = retry
        self._dead_letter = dead_letter
        self._reraise = reraise
        self._timeout = timeout

    async def __aenter__(self) -> None:
        self._settler.hold(self._tags, self._retry)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            await self._settler.settle(self._tags, self._timeout)
            return False
        if not isinstance(error, Exception):
            self._settler.release(self._rows)
            return False
        fate = await self._settler.give_back(self._rows, error, self._retry, self._dead_letter)
        if not self._reraise:
            log.error("%r failed and %s", self._what, fate, exc_info=error)
        return not self._reraise


class Rejected(Exception):
    """The reason that a consumer gave for not processing a message."""


class Message:
    """One delivery. `tag` is what the server knows it by; 0 when it needs no acknowledgement (QoS 0).

    `key`, `timestamp`, `origin`, `partition`, `offset` and `redelivered` are None where the protocol does not tell; `headers`
    are empty then. `timestamp_us` is when the broker took it, in microseconds since 1970, and `envelope` has the members of a
    peerbus envelope that have no other place.
    """

    __slots__ = (
        "_headers", "_origin", "_settler", "envelope", "key", "qos", "tag", "timestamp_us", "topic", "value",
    )  # fmt: skip

    def __init__(
        self,
        settler: Settler,
        topic: str,
        tag: int,
        qos: int,
        value: bytes,
        key: bytes | None = None,
        headers: Encoded | Headers = b"",
        timestamp_us: int | None = None,
        origin: bytes | None = None,
        envelope: Mapping[str, str] | None = None,
    ) -> None:
        self._settler = settler
        self.topic: str = topic
        self.tag: int = tag
        self.qos: int = qos
        self.value: bytes = value
        self.key: bytes | None = key
        self._headers: Encoded | Headers = headers
        self.timestamp_us: int | None = timestamp_us
        self._origin = origin
        self.envelope: Mapping[str, str] | None = envelope

    @property
    def headers(self) -> Headers:
        """Its headers in their order, by name: bytes, or None for a null value."""
        headers = self._headers
        if not isinstance(headers, Headers):
            headers = self._headers = Headers(headers) if headers else EMPTY
        return headers

    @property
    def timestamp(self) -> datetime | None:
        """When the broker took it (UTC); `timestamp_us` has the same as a number."""
        return None if self.timestamp_us is None else EPOCH + timedelta(microseconds=self.timestamp_us)

    @property
    def origin(self) -> str | None:
        """Who published it by which door, as the broker says: "flymq:ann"."""
        return None if self._origin is None else self._origin.decode(errors="replace")

    @property
    def partition(self) -> int | None:
        """The partition it is in."""
        place = self._settler.position_of(self.tag)
        return None if place is None else place.partition

    @property
    def offset(self) -> int | None:
        """Its number in the partition."""
        place = self._settler.position_of(self.tag)
        return None if place is None else place.offset

    @property
    def redelivered(self) -> bool | None:
        """Whether it was handed out before, by this subscription."""
        place = self._settler.position_of(self.tag)
        return None if place is None else place.attempts > 0

    def text(self) -> str:
        """The value as UTF-8 text."""
        return self.value.decode()

    def json(self) -> Any:
        """The value as JSON."""
        import msgspec.json

        return msgspec.json.decode(self.value)

    def decode(self, type: type[T]) -> T:
        """The value as JSON of this type (a pydantic model, a msgspec Struct, a dataclass, list[int], ...), checked. BadValue
        says which field is wrong."""
        return values.decode(self.value, type, self.topic)

    async def ack(self, *, timeout: float | None = None) -> None:
        """It is dealt with: the server may forget it. Does nothing for QoS 0."""
        if self.qos:
            await self._settler.settle((self.tag,), timeout)

    async def nack(self, *, delay: float | None = None) -> None:
        """It failed: it comes again after `delay` seconds (None: longer with each attempt), or is a dead letter."""
        await self._settler.nack([row_of(self)], delay)

    async def reject(self, reason: str = "rejected by its consumer") -> None:
        """It cannot be processed: it becomes a dead letter now; where there are none, it is acknowledged."""
        if self.qos:
            await self._settler.give_back([row_of(self)], Rejected(reason), 0, True)

    async def in_progress(self) -> None:
        """It takes longer: the time after which it is delivered again starts anew. `process()` says so by itself."""
        if self.qos:
            await self._settler.in_progress((self.tag,))

    def process(
        self,
        *,
        retry: int | None = None,
        dead_letter: bool = True,
        reraise: bool = False,
        timeout: float | None = None,
    ) -> Processing:
        """`async with msg.process():` acknowledges when the block succeeds, see Processing.

        retry        how often it is handed out again before it is given up; None: three times, or, with a server that
                     delivers again by itself (BlipMQ), as that is configured
        dead_letter  given up means put among the dead letters; False: acknowledged all the same
        """
        rows: Rows = [row_of(self)] if self.qos else []
        return Processing(
            self._settler, rows, self, retry=retry, dead_letter=dead_letter, reraise=reraise, timeout=timeout
        )

    def __repr__(self) -> str:
        at = self._settler.position_of(self.tag)
        place = f"tag={self.tag}" if at is None else f"partition={at.partition} offset={at.offset}"
        return f"<Message topic={self.topic!r} {place} qos={self.qos} bytes={len(self.value)}>"


class MessageBatch:
    """Deliveries of one topic, in order. `values` are theirs, `tags` only those that want an acknowledgement;
    `next_offset` is where to go on, for what came from `bus.fetch`."""

    __slots__ = ("_rows", "_settler", "next_offset", "tags", "topic", "values")

    def __init__(self, settler: Settler, topic: str, rows: Rows, *, next_offset: int | None = None) -> None:
        self._settler = settler
        self._rows = rows
        self.topic: str = topic
        self.next_offset: int | None = next_offset
        self.values: list[bytes] = [row[2] for row in rows]
        self.tags: list[int] = [row[0] for row in rows if row[1]]

    @property
    def keys(self) -> list[bytes | None]:
        """Theirs; None for those without."""
        return [row[3] if len(row) > 3 else None for row in self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Message]:
        """The messages one by one, each of which can be acknowledged alone."""
        return (Message(self._settler, self.topic, *row) for row in self._rows)

    async def ack(self, *, timeout: float | None = None) -> None:
        """All of them are dealt with: one write."""
        if self.tags:
            await self._settler.settle(self.tags, timeout)

    async def nack(self, *, delay: float | None = None) -> None:
        """All of them failed, see Message.nack."""
        await self._settler.nack(list(self._rows), delay)

    async def in_progress(self) -> None:
        """All of them take longer, see Message.in_progress."""
        if self.tags:
            await self._settler.in_progress(self.tags)

    def process(
        self,
        *,
        retry: int | None = None,
        dead_letter: bool = True,
        reraise: bool = False,
        timeout: float | None = None,
    ) -> Processing:
        """`async with batch.process():` acknowledges all when the block succeeds, see Message.process."""
        rows = [row for row in self._rows if row[1]]
        return Processing(
            self._settler, rows, self, retry=retry, dead_letter=dead_letter, reraise=reraise, timeout=timeout
        )

    def __repr__(self) -> str:
        return f"<MessageBatch topic={self.topic!r} count={len(self)}>"


def row_of(message: Message) -> Row:
    row = (message.tag, message.qos, message.value, message.key)
    if message.timestamp_us is None:
        return row
    told = (message.headers.raw, message.timestamp_us, message._origin or b"")
    return (*row, *told) if message.envelope is None else (*row, *told, message.envelope)


def unacknowledged(row: Row) -> Row:
    """The same delivery as one that needs no acknowledgement."""
    return (row[0], 0, *row[2:])


def settling(message: Message | MessageBatch) -> tuple[Settler, Sequence[int]]:
    """Who it is acknowledged to, and as what."""
    tags = message.tags if isinstance(message, MessageBatch) else [message.tag] if message.qos else []
    return message._settler, tags
