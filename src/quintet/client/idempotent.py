"""Numbers the messages of an idempotent producer, so that a retry after a lost connection makes no duplicate.

Every partition has its own numbers, from 0 on, under a random producer id. What is not answered stays in line with its
number; a new connection gets all of it again, in order, and the server answers what it already has with where it is.

    piece:   waiting --> sent --> answered               stored, or stored before: both are a place
                ^          |
                +----------+  connection lost, or refused in a way that may pass: it and all behind it in its partition

A refusal that does not pass leaves a hole that the server would not have behind it: the pieces behind start over under a
new id. At most WINDOW_PIECES are sent and unanswered, because the server remembers only so many runs of each producer.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import lru_cache, partial
from random import SystemRandom
from typing import Final

from quintet.client.core.base import Channel, FetchConnection
from quintet.client.core.errors import Closed, ConnectionLost, Forbidden, PartitionNotFound, TopicNotFound
from quintet.client.core.publishing import ANY, FAILURES_KEPT_MAX, Load, Outcome, part_of
from quintet.model.errors import QuintetError
from quintet.model.keys import fnv1a

WINDOW_PIECES: Final = 8
RETRY_S: Final = 0.1  # after a refusal that may pass
PRODUCER_ID_MAX: Final = (1 << 63) - 1
_KEYS_CACHED: Final = 65_536

_random: Final = SystemRandom()
_hash_of: Final = lru_cache(maxsize=_KEYS_CACHED)(fnv1a)  # the same keys come again and again


def split(load: Load, partitions: Sequence[int]) -> list[Load]:
    """Loads of one partition each, with its messages in their order."""
    places: dict[int, list[int]] = {}
    for at, partition in enumerate(partitions):
        places.setdefault(partition, []).append(at)
    values, keys, headers = load.values, load.keys, load.headers
    return [
        load._replace(
            values=[values[at] for at in numbers],
            keys=None if keys is None else [keys[at] for at in numbers],
            headers=None if headers is None else [headers[at] for at in numbers],
            partition=partition,
        )
        for partition, numbers in places.items()
    ]


class _Piece:
    """Part of a load that is not answered yet. `attempt` tells the answer to the last sending from older ones."""

    __slots__ = ("attempt", "done", "load", "places", "sent")

    def __init__(self, load: Load, done: "asyncio.Future[Outcome]") -> None:
        self.load = load
        self.done = done
        self.attempt = 0
        self.sent = False
        self.places: list[tuple[int, int, int] | None] = []

    def again(self) -> None:
        self.attempt += 1
        self.sent = False

    def stored(self, places: "Sequence[tuple[int, int, int] | None]") -> None:
        """The first messages of it are stored: the rest is what is left of it."""
        count = len(places)
        load = self.load
        self.places += places
        self.load = part_of(load, count, len(load.values))._replace(sequence=load.sequence + count)


class Sequencer:
    """The numbers of one producer, and the line of what is not answered."""

    def __init__(self, channel: Channel, load: Load) -> None:
        self._channel = channel
        self._topic = load.topic
        self._count = 0  # partitions of the topic, once known
        self._turn = _random.randrange(1 << 16)
        self._ids: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._line: deque[_Piece] = deque()
        self._in_flight = 0
        self._pause_s = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Ask how many partitions there are: a retry must find the one that the first attempt went to."""
        while not self._count:
            try:
                self._count = await self._partitions()
            except ConnectionLost:
                if self._channel.failed is not None:
                    raise
        self._task = asyncio.get_running_loop().create_task(self._pump())

    async def _partitions(self) -> int:
        connection = await self._channel.connection()
        assert isinstance(connection, FetchConnection), "a door without idempotent producers says so in `lacks`"
        try:
            found = await connection.request("METADATA", {"topic": self._topic})
        except TopicNotFound as missing:
            try:
                await connection.request("CREATE_TOPIC", {"topic": self._topic, "partitions": 0})
            except Forbidden:
                raise missing from None
            found = await connection.request("METADATA", {"topic": self._topic})
        return len(found["partitions"])

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(Closed("the producer was closed before the answer came"))

    def check(self, partition: int) -> None:
        """Raise, when it is sent, what would spoil a whole shipment."""
        if not 0 <= partition < self._count:
            raise PartitionNotFound(f"{self._topic!r} has {self._count} partitions, {partition} is none of them")

    def split(self, load: Load, asked: Sequence[int] | None) -> list[Load]:
        """By the partition each message asks for, or its key, or else all in the same one, which changes every time."""
        if not self._count:
            raise Closed("the producer is not open", hint="use `async with bus.producer(...)`")
        self._turn = (self._turn + 1) % self._count
        if load.keys is None and asked is None:
            return [load._replace(partition=self._turn)]
        keys = load.keys or [None] * len(load.values)
        chosen = []
        for number, key in zip(asked or [ANY] * len(keys), keys, strict=True):
            chosen.append(number if number != ANY else _hash_of(key) % self._count if key else self._turn)
        return split(load, chosen)

    def publish(self, load: Load) -> "asyncio.Future[Outcome]":
        """Number it and put it in line. The outcome comes when the server has answered all of it."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        piece = _Piece(load, done)
        self._number(piece)
        self._line.append(piece)
        self._wake.set()
        return done

    def _number(self, piece: _Piece) -> None:
        partition = piece.load.partition
        id = self._ids.get(partition)
        if id is None:
            id = self._ids[partition] = _random.randint(1, PRODUCER_ID_MAX)
        sequence = self._next.get(partition, 0)
        self._next[partition] = sequence + len(piece.load.values)
        piece.load = piece.load._replace(producer_id=id, sequence=sequence)

    # -- sending ---------------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        """All that is in line and not sent, in order, on the connection there is now."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
                self._pause_s = 0.0
            try:
                connection = await self._channel.connection()
                await connection.writable()
                for piece in list(self._line):
                    if self._in_flight >= WINDOW_PIECES:
                        break
                    if not piece.sent:
                        answer = connection.publish(piece.load)
                        piece.sent = True
                        self._in_flight += 1
                        answer.add_done_callback(partial(self._answered, piece, piece.attempt))
            except ConnectionLost:
                if self._channel.failed is not None:
                    self._fail(self._channel.failed)
                self._wake.set()
                await asyncio.sleep(0)
            except QuintetError as error:
                self._fail(error)

    def _answered(self, piece: _Piece, attempt: int, answer: "asyncio.Future[Outcome]") -> None:
        self._in_flight -= 1
        self._wake.set()
        error = answer.exception()
        if attempt != piece.attempt or piece.done.done():
            return
        if error is None:
            outcome = answer.result()
            if outcome.refused:
                self._refused(piece, outcome)
            else:
                self._complete(
                    piece, Outcome(0, (), [*piece.places, *outcome.places] if piece.places else outcome.places)
                )
        elif isinstance(error, ConnectionLost) and self._channel.failed is None:
            piece.again()
        else:
            self._line.remove(piece)
            piece.done.set_exception(error)

    def _refused(self, piece: _Piece, outcome: Outcome) -> None:
        first, error = outcome.failures[0]
        piece.stored(outcome.places[:first])
        partition = piece.load.partition
        line = [other for other in self._line if other.load.partition == partition]
        behind = line[line.index(piece) + 1 :]
        if error.retryable:
            self._pause_s = RETRY_S
            piece.again()
        else:
            stored, refused = len(piece.places), len(piece.load.values)
            failures = tuple((stored + at, error) for at in range(min(refused, FAILURES_KEPT_MAX)))
            self._complete(piece, Outcome(refused, failures, [*piece.places, *[None] * refused]))
            del self._ids[partition], self._next[partition]
            for other in behind:
                self._number(other)
        for other in behind:
            other.again()

    def _complete(self, piece: _Piece, outcome: Outcome) -> None:
        if self._line and self._line[0] is piece:
            self._line.popleft()
        else:
            self._line.remove(piece)
        piece.done.set_result(outcome)

    def _fail(self, error: QuintetError) -> None:
        line, self._line = self._line, deque()
        for piece in line:
            if not piece.done.done():
                piece.done.set_exception(error)
