"""From many small sends to few large writes: what `bus.producer(topic)` gives.

`send` only appends to a buffer. The buffer is shipped when it holds SHIP_BYTES, when its first message is `linger`
seconds old, or on `flush`. Everything between `send` and the server's confirmation counts against `max_bytes` and
SENDS_MAX; past either bound `send` raises Backpressure, and `await ready()` waits for room. Failures are kept, bounded,
and raised together by `flush`.
"""

import asyncio
from types import TracebackType
from typing import Final

from quintet.client.base import Channel, Load, deadline
from quintet.client.errors import Backpressure, Closed, ConnectionLost, DeliveryError
from quintet.client.message import to_bytes
from quintet.model.errors import QuintetError

SHIP_BYTES: Final = 256 * 1024
SENDS_MAX: Final = 200_000  # messages sent and not confirmed
SEND_OVERHEAD_BYTES: Final = 64  # counted per message, so that empty ones are bounded too
ERRORS_KEPT_MAX: Final = 1_000


class Producer:
    """`async with bus.producer(topic) as p`: `p.send(value)` without awaiting; leaving the block flushes."""

    def __init__(
        self,
        channel: Channel,
        topic: str,
        *,
        qos: int,
        ttl_ms: int,
        value_bytes_max: int,
        linger: float,
        max_bytes: int,
        retry: bool,
        timeout: float,
    ) -> None:
        self._channel = channel
        self._topic = topic
        self._qos = qos
        self._ttl_ms = ttl_ms
        self._value_bytes_max = value_bytes_max
        self._linger = linger
        self._max_bytes = max_bytes
        self._retry = retry
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._buffer: list[bytes] = []
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

    @property
    def waiting(self) -> int:
        """Messages sent and not yet confirmed."""
        return self._waiting

    @property
    def confirmed(self) -> int:
        """Messages the server has confirmed (QoS 1) or the socket has taken (QoS 0)."""
        return self._confirmed

    def send(self, value: object) -> None:
        """Buffer one message. Backpressure, with nothing buffered, when a bound is reached."""
        if self._closed:
            raise Closed("the producer is closed", hint="send inside its `with` block")
        if self._waiting_bytes >= self._max_bytes or self._waiting >= SENDS_MAX:
            self._room.clear()
            raise Backpressure(
                f"{self._waiting} messages ({self._waiting_bytes} bytes) wait for the server",
                hint="`await producer.ready()` and send again, or give the producer more max_bytes",
            )
        data = to_bytes(value)
        if len(data) > self._value_bytes_max:
            from quintet.client.bus import too_large

            raise too_large(len(data), self._value_bytes_max)
        size = len(data) + SEND_OVERHEAD_BYTES
        self._buffer.append(data)
        self._buffer_bytes += size
        self._waiting += 1
        self._waiting_bytes += size
        if self._buffer_bytes >= SHIP_BYTES:
            self._ship()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._linger, self._ship)

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
        values, size = self._buffer, self._buffer_bytes
        self._buffer, self._buffer_bytes = [], 0
        task = self._loop.create_task(self._deliver(values, size))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, values: list[bytes], size: int) -> None:
        """One shipment, from the socket to its confirmation."""
        try:
            while True:
                try:
                    link = await self._channel.link()
                    await link.writable()
                    outcome = await link.publish(Load(self._topic, values, self._qos, self._ttl_ms))
                except ConnectionLost as error:
                    if self._retry and self._channel.failed is None:
                        continue
                    self._note(len(values), tuple((at, error) for at in range(min(len(values), ERRORS_KEPT_MAX))))
                except QuintetError as error:
                    self._note(len(values), tuple((at, error) for at in range(min(len(values), ERRORS_KEPT_MAX))))
                else:
                    self._confirmed += len(values) - outcome.refused
                    self._note(outcome.refused, outcome.failures)
                return
        finally:
            self._waiting -= len(values)
            self._waiting_bytes -= size
            if self._waiting_bytes * 2 <= self._max_bytes and self._waiting * 2 <= SENDS_MAX:
                self._room.set()

    def _note(self, refused: int, failures: tuple[tuple[int, QuintetError], ...]) -> None:
        self._failed += refused
        for failure in failures[: ERRORS_KEPT_MAX - len(self._errors)]:
            error = DeliveryError(
                f"a message to {self._topic!r} was not confirmed: {failure[1]}",
                topic=self._topic,
                failures=(failure,),
                hint=failure[1].hint,
            )
            error.__cause__ = failure[1]
            self._errors.append(error)
