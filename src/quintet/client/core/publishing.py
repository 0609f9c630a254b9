"""Queues the publish calls of one turn of the loop, times them out together and completes their futures.

Every protocol uses this queue: its own code only encodes the calls it is handed, and says when one is answered.

    Bus.publish -> PublishQueue.add ... end of the turn -> flush -> send(calls), one write -> answers -> PublishCall.complete

What is queued is bounded by its callers: they wait for `ClientConnection.writable` first, and a producer has max_bytes.
Nothing is sent twice here. A retry is a new call, made by Producer or Bus on the next connection.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final, NamedTuple, TypeVar, overload

from quintet.client.core.errors import Timeout
from quintet.client.core.headers import Encoded
from quintet.model.errors import QuintetError

FAILURES_KEPT_MAX: Final = 1_000  # per publish call; refusals beyond it are only counted
ANY: Final = -1  # the partition when the broker chooses

T = TypeVar("T")


class Load(NamedTuple):
    """What one publish call sends: messages of one topic that go the same way."""

    topic: str
    values: Sequence[bytes]
    qos: int = 1
    ttl_ms: int = 0
    keys: Sequence[bytes | None] | None = None
    partition: int = ANY
    producer_id: int = 0  # of an idempotent producer, whose messages are numbered from `sequence` on; 0: none
    sequence: int = 0
    compression: str | None = None  # None: as the URL says
    headers: Sequence[Encoded] | None = None


class Run(Sequence[tuple[int, int, int]]):
    """The places of messages that are one behind the other: a tuple for each is made only for who looks at it."""

    __slots__ = ("_count", "_first", "_partition", "_time")

    def __init__(self, partition: int, first: int, count: int, time: int) -> None:
        self._partition = partition
        self._first = first
        self._count = count
        self._time = time

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> tuple[int, int, int]: ...

    @overload
    def __getitem__(self, at: slice) -> list[tuple[int, int, int]]: ...

    def __getitem__(self, at: int | slice) -> tuple[int, int, int] | list[tuple[int, int, int]]:
        offsets = range(self._first, self._first + self._count)[at]
        if isinstance(offsets, int):
            return self._partition, offsets, self._time
        return [(self._partition, offset, self._time) for offset in offsets]


class Outcome(NamedTuple):
    """What became of one publish call: how many were refused, the first of them as (place in the call, why), and where
    the messages are as (partition, offset, time in ms): none, where the door does not tell; None for a refused one.
    `durable`: whether a confirmation of this door says that they are on disk."""

    refused: int
    failures: tuple[tuple[int, QuintetError], ...]
    places: "Sequence[tuple[int, int, int] | None]" = ()
    durable: bool = True


_STORED: Final = Outcome(0, ())


def complete(future: "asyncio.Future[T]", result: T) -> None:
    """Set the result, unless the future is cancelled or has an outcome already."""
    if not future.done():
        future.set_result(result)


def fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    """Set the exception, unless the future is cancelled or has an outcome already."""
    if not future.done():
        future.set_exception(error)


class PublishCall:
    """One publish call: what it sends, how many of its messages have no answer yet, and the future of its caller."""

    __slots__ = ("done", "expires", "failures", "first", "left", "load", "places", "refused", "run", "timeout", "wait")

    def __init__(self, load: Load, wait: float, expires: float, done: "asyncio.Future[Outcome]") -> None:
        self.load = load
        self.wait = wait
        self.expires = expires
        self.done = done
        self.left = len(load.values)
        self.first = 0  # the number of its first message on the wire, where messages are numbered
        self.places: list[tuple[int, int, int] | None] = []
        self.run: Run | None = None  # instead of places, if the server has told of all of them at once
        self.refused = 0
        self.failures: list[tuple[int, QuintetError]] = []
        self.timeout: WriteTimeout | None = None

    def refuse(self, at: int, error: QuintetError, count: int = 1) -> None:
        """Note that `count` messages from place `at` on were refused."""
        room = max(FAILURES_KEPT_MAX - len(self.failures), 0)
        self.failures += [(at + number, error) for number in range(min(count, room))]
        self.refused += count

    def answered(self, count: int) -> None:
        """So many messages have their answer. The last one completes the call."""
        self.left -= count
        if not self.left:
            self.complete()

    def complete(self, durable: bool = True) -> None:
        """The last answer is here. Called for every publish, so it makes an Outcome only where there is more to say."""
        timeout = self.timeout
        if timeout is not None:
            self.timeout = None
            timeout.call_ended()
        if self.done.done():
            return
        places = self.run or self.places
        if durable and not self.refused and not places:
            self.done.set_result(_STORED)
        else:
            self.done.set_result(Outcome(self.refused, tuple(self.failures), places, durable))

    def fail(self, error: BaseException) -> None:
        timeout = self.timeout
        if timeout is not None:
            self.timeout = None
            timeout.call_ended()
        fail(self.done, error)

    def fail_with_refusal(self, error: QuintetError) -> None:
        """For a server that closes after too many refusals: what it refused for is the better answer."""
        self.fail(self.failures[0][1] if self.failures else error)


class WriteTimeout:
    """One timer for all publish calls that share a write."""

    __slots__ = ("_calls", "_left", "_loop", "_timer")

    def __init__(self, calls: Sequence[PublishCall], loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self._left = len(calls)
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        for call in calls:
            call.timeout = self
        self._check()

    def _check(self) -> None:
        """Fail the calls whose time is over, and come again when the next one's is."""
        now = self._loop.time()
        waiting = [call for call in self._calls if not call.done.done()]
        for call in waiting:
            if call.expires <= now:
                what = f"publishing to {call.load.topic!r} took longer than {call.wait:g} s"
                call.done.set_exception(Timeout(what))
        soonest = min((call.expires for call in waiting if call.expires > now), default=inf)
        self._timer = self._loop.call_at(soonest, self._check) if soonest < inf else None

    def call_ended(self) -> None:
        self._left -= 1
        if not self._left and self._timer is not None:
            self._timer.cancel()


class PublishQueue:
    """The calls of this turn of the loop. `send` gets all of them at its end, in order, and writes them at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[list[PublishCall]], None],
        *,
        answers_all: bool = False,
        durable: bool = True,
    ) -> None:
        """answers_all: calls of QoS 0 have an answer too, and wait for it. durable: see Outcome."""
        self._loop = loop
        self._send = send
        self._answers_all = answers_all
        self._durable = durable
        self._calls: list[PublishCall] = []

    def call(self, load: Load, wait: float) -> PublishCall:
        """A call that is not queued."""
        return PublishCall(load, wait, self._loop.time() + wait, self._loop.create_future())

    def add(self, load: Load, wait: float) -> "asyncio.Future[Outcome]":
        loop = self._loop
        if not self._calls:
            loop.call_soon(self.flush)
        done: asyncio.Future[Outcome] = loop.create_future()
        self._calls.append(PublishCall(load, wait, loop.time() + wait, done))
        return done

    def flush(self) -> None:
        """Send what was queued so far, now."""
        calls, self._calls = self._calls, []
        if not calls:
            return
        waiting = calls if self._answers_all else [call for call in calls if call.load.qos]
        if waiting:
            WriteTimeout(waiting, self._loop)
        self._send(calls)
        if len(waiting) < len(calls):
            for call in calls:
                if not call.load.qos:
                    complete(call.done, Outcome(call.refused, tuple(call.failures), (), self._durable))

    def fail(self, error: BaseException) -> None:
        """The connection is gone: fail what was not sent."""
        calls, self._calls = self._calls, []
        for call in calls:
            call.fail(error)


def runs(calls: Sequence[PublishCall], like: Callable[[Load, Load], bool]) -> Iterator[Sequence[PublishCall]]:
    """Neighbours of one kind, which one call of the kernel encodes."""
    at = 0
    while at < len(calls):
        end = at + 1
        while end < len(calls) and like(calls[end].load, calls[at].load):
            end += 1
        yield calls[at:end]
        at = end


def part_of(load: Load, start: int, end: int) -> Load:
    """Messages start..end-1 of it."""
    keys, headers = load.keys, load.headers
    return load._replace(
        values=load.values[start:end],
        keys=None if keys is None else keys[start:end],
        headers=None if headers is None else headers[start:end],
    )


def columns_of(
    loads: Sequence[Load],
) -> tuple[Sequence[bytes], Sequence[bytes | None] | None, Sequence[Encoded] | None]:
    """Values, keys and headers of several loads, in order."""
    if len(loads) == 1:
        return loads[0].values, loads[0].keys, loads[0].headers
    values = [value for load in loads for value in load.values]
    keys: list[bytes | None] | None = None
    if any(load.keys is not None for load in loads):
        keys = [key for load in loads for key in (load.keys or [None] * len(load.values))]
    headers: list[Encoded] | None = None
    if any(load.headers is not None for load in loads):
        headers = [own for load in loads for own in (load.headers or [b""] * len(load.values))]
    return values, keys, headers


def values_of(calls: Sequence[PublishCall]) -> Sequence[bytes]:
    """The messages of several calls, in order."""
    if len(calls) == 1:
        return calls[0].load.values
    return [value for call in calls for value in call.load.values]
