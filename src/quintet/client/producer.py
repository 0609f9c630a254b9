"""Gathers many small sends into few large writes: `bus.producer(topic)`.

`send` only appends to a buffer. The buffer is shipped when it holds SHIP_BYTES, when its first message is `linger`
seconds old, or on `flush`. Everything between `send` and the server's confirmation counts against `max_bytes` and
SENDS_MAX; past either bound `send` raises Backpressure, and `await ready()` waits for room. Failures are kept, bounded,
and raised together by `flush`.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Final

from quintet import kernel
from quintet.client.core.base import Channel, deadline
from quintet.client.core.errors import Backpressure, Closed, ConnectionLost, DeliveryError, Unsupported, too_large
from quintet.client.core.headers import Encoded, HeadersGiven, encode_headers
from quintet.client.core.message import key_bytes
from quintet.client.core.publishing import ANY, Load, Outcome
from quintet.client.core.values import encode
from quintet.client.idempotent import Sequencer, split
from quintet.model.errors import QuintetError

SHIP_BYTES: Final = 256 * 1024
SENDS_MAX: Final = 200_000  # messages sent and not confirmed
SEND_OVERHEAD_BYTES: Final = 64  # counted per message, so that empty ones are bounded too
ERRORS_KEPT_MAX: Final = 1_000
_pack_headers: Final = kernel.headers_pack


class Producer:
    """`async with bus.producer(topic) as p`: `p.send(value)` without awaiting; leaving the block flushes."""

    def __init__(
        self,
        channel: Channel,
        load: Load,
        *,
        value_bytes_max: int,
        lacks: Mapping[str, str],
        linger: float,
        max_bytes: int,
        idempotent: bool,
        retry: bool,
        timeout: float,
    ) -> None:
        self._channel = channel
        self._load = load
        self._topic = load.topic
        self._value_bytes_max = value_bytes_max
        self._lacks = lacks
        self._linger = linger
        self._max_bytes = max_bytes
        self._retry = retry
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._sequencer = Sequencer(channel, load) if idempotent else None
        self._buffer: list[bytes] = []
        self._keys: list[bytes | None] | None = None  # of the buffer, from the first that has one on
        self._partitions: list[int] | None = None  # alike
        self._headers: list[Encoded] | None = None  # alike
        self._buffer_bytes = 0
        self._waiting = 0  # messages sent and not confirmed, buffer included
        self._waiting_bytes = 0
        self._confirmed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._room.set()
        self._errors: list[DeliveryError] = []
        self._failed = 0
        self._closed = False

    async def __aenter__(self) -> "Producer":
        if self._sequencer is not None:
            async with deadline(self._timeout, f"asking for the partitions of {self._topic!r}"):
                await self._sequencer.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.flush()
        finally:
            self._closed = True
            for task in self._tasks:
                task.cancel()
            if self._sequencer is not None:
                await self._sequencer.close()

    @property
    def waiting(self) -> int:
        """Messages sent and not yet confirmed."""
        return self._waiting

    @property
    def confirmed(self) -> int:
        """Messages the server has confirmed (QoS 1) or the socket has taken (QoS 0)."""
        return self._confirmed

    def send(
        self,
        value: object,
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: HeadersGiven | None = None,
    ) -> None:
        """Buffer one message. Backpressure, with nothing buffered, when a bound is reached."""
        if self._closed:
            raise Closed("the producer is closed", hint="send inside its `with` block")
        if self._waiting_bytes >= self._max_bytes or self._waiting >= SENDS_MAX:
            self._room.clear()
            raise Backpressure(
                f"{self._waiting} messages ({self._waiting_bytes} bytes) wait for the server",
                hint="`await producer.ready()` and send again, or give the producer more max_bytes",
            )
        data = encode(value, self._topic)
        encoded = b""
        if type(headers) is dict and headers:
            # What most give goes to the kernel as it is: a call in between would cost half as much as the packing.
            try:
                encoded = _pack_headers(headers)
            except (OverflowError, TypeError, ValueError):
                encoded = encode_headers(headers)  # raises what is wrong with them
        elif headers:
            encoded = encode_headers(headers)
        size = len(data) + len(encoded)
        if size > self._value_bytes_max:
            raise too_large(len(data), self._value_bytes_max - len(encoded))
        size += SEND_OVERHEAD_BYTES
        if key is not None or partition is not None:
            size += self._route(key, partition)
        else:
            if self._keys is not None:
                self._keys.append(None)
            if self._partitions is not None:
                self._partitions.append(ANY)
        if encoded or self._headers is not None:
            if self._headers is None:
                self._headers = [b""] * len(self._buffer)
            self._headers.append(encoded)
        self._buffer.append(data)
        self._buffer_bytes += size
        self._waiting += 1
        self._waiting_bytes += size
        if self._buffer_bytes >= SHIP_BYTES:
            self._ship()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._ship)

    def _route(self, key: str | bytes | None, partition: int | None) -> int:
        """Note where the message that comes next in the buffer goes; the bytes of its key."""
        for option, given in (("key", key), ("partition", partition)):
            if given is not None and option in self._lacks:
                raise Unsupported(f"this protocol does not support {option}=", hint=self._lacks[option])
        if partition is not None and self._sequencer is not None:
            self._sequencer.check(partition)
        before = len(self._buffer)
        raw = key_bytes(key)
        if raw is not None and self._keys is None:
            self._keys = [None] * before
        if self._keys is not None:
            self._keys.append(raw)
        if partition is not None and self._partitions is None:
            self._partitions = [ANY] * before
        if self._partitions is not None:
            self._partitions.append(ANY if partition is None else partition)
        return len(raw or b"")

    async def ready(self, *, timeout: float | None = None) -> None:
        """Wait until `send` has room again."""
        if self._waiting_bytes >= self._max_bytes or self._waiting >= SENDS_MAX:
            self._room.clear()
            self._ship()
        async with deadline(self._timeout if timeout is None else timeout, "waiting for room in the producer"):
            await self._room.wait()

    async def flush(self, *, timeout: float | None = None) -> None:
        """Wait until everything sent is confirmed. ExceptionGroup of DeliveryError for what was not."""
        self._ship()
        async with deadline(self._timeout if timeout is None else timeout, f"flushing {self._waiting} messages"):
            while self._tasks:
                await asyncio.wait(self._tasks)
        if self._failed:
            errors, failed = self._errors, self._failed
            self._errors, self._failed = [], 0
            raise ExceptionGroup(f"{failed} messages to {self._topic!r} were not confirmed", errors)

    def _ship(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._buffer:
            return
        loads, size = self._routed(), self._buffer_bytes
        self._buffer, self._buffer_bytes = [], 0
        self._keys = self._partitions = self._headers = None
        for load in loads:
            # all bytes are counted with the first load: only their sum matters
            task = self._loop.create_task(self._deliver(load, size))
            size = 0
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _routed(self) -> list[Load]:
        """The buffer as loads of one partition each, in order within it."""
        whole = self._load._replace(values=self._buffer, keys=self._keys, headers=self._headers)
        if self._sequencer is not None:
            return self._sequencer.split(whole, self._partitions)
        return [whole] if self._partitions is None else split(whole, self._partitions)

    async def _deliver(self, load: Load, size: int) -> None:
        """One shipment, from the socket to its confirmation."""
        count = len(load.values)
        try:
            while True:
                try:
                    outcome = await self._publish(load)
                except ConnectionLost as error:
                    if self._retry and self._channel.failed is None:
                        continue
                    self._note(count, tuple((at, error) for at in range(min(count, ERRORS_KEPT_MAX))))
                except QuintetError as error:
                    self._note(count, tuple((at, error) for at in range(min(count, ERRORS_KEPT_MAX))))
                else:
                    self._confirmed += count - outcome.refused
                    self._note(outcome.refused, outcome.failures)
                return
        finally:
            self._waiting -= count
            self._waiting_bytes -= size
            if self._waiting_bytes * 2 <= self._max_bytes and self._waiting * 2 <= SENDS_MAX:
                self._room.set()

    async def _publish(self, load: Load) -> Outcome:
        if self._sequencer is not None:
            return await self._sequencer.publish(load)
        connection = await self._channel.connection()
        await connection.writable()
        return await connection.publish(load)

    def _note(self, refused: int, failures: tuple[tuple[int, QuintetError], ...]) -> None:
        self._failed += refused
        for failure in failures[: ERRORS_KEPT_MAX - len(self._errors)]:
            error = DeliveryError(
                f"a message to {self._topic!r} was not confirmed: {failure[1].message}",
                topic=self._topic,
                failures=(failure,),
                hint=failure[1].hint,
            )
            error.__cause__ = failure[1]
            self._errors.append(error)
