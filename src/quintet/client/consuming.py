"""Runs a handler for every message of a subscription: bounded workers, retries with a delay, dead letters, a graceful stop.

    subscription --take--> at most `workers` handlers at a time --succeeds--> acknowledged
                                          |
                                          +--raises--> given back: comes again after a delay, `retry` times, then a dead letter

Where the broker delivers again what is given back (BlipMQ, Felix, FlyMQ's groups) a message that waits for its next attempt
takes no worker. With `ordered=True`, and where nothing comes again (Fast, peerbus), it is tried again here, in its place.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, TypedDict, cast

from quintet.client.core.base import Start
from quintet.client.core.errors import BadValue, Closed, Unsupported
from quintet.client.core.message import Message, log, row_of
from quintet.client.core.subscription import Subscription, check_delay

WORKERS_DEFAULT: Final = 8
RETRIES_DEFAULT: Final = 3
WORKERS_MAX: Final = 10_000
GRACE_S: Final = 10.0  # for handlers that run when it is stopped; then they are cancelled
TAKEN_PER_WORKER: Final = 4  # messages in hand: one is worked on, the others wait for their key
PREFETCH_PER_WORKER: Final = 8

Handler = Callable[[Message], Awaitable[None] | None]


class SubscribeOptions(TypedDict, total=False):
    """Those of Bus.subscribe that a consumer passes on."""

    qos: int
    group: str | None
    start: Start | None
    member: str | None
    durable: str | None
    filter: str | None


class OwnOptions(TypedDict):
    """Those of a consumer itself, all given."""

    workers: int
    retry: "Retry"
    dead_letter: bool | None
    ordered: bool
    grace: float


class ConsumerOptions(SubscribeOptions, total=False):
    """See Bus.consumer."""

    workers: int
    retry: "int | Retry"
    dead_letter: bool | None
    ordered: bool
    grace: float


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a message that failed comes again, and after how many seconds: `delay`, then `factor` times that, up to
    `delay_max`."""

    times: int = 3
    delay: float = 1.0
    factor: float = 2.0
    delay_max: float = 60.0

    def __post_init__(self) -> None:
        if self.times < 0 or self.delay < 0 or self.factor < 1:
            raise ValueError("times and delay are 0 or more, factor is 1 or more")
        check_delay(self.delay_max)

    def pause(self, attempt: int) -> float:
        """Seconds before the next attempt; the first one was number 1."""
        return float(min(self.delay * self.factor ** min(attempt - 1, 64), self.delay_max))


def split_options(options: ConsumerOptions) -> tuple[OwnOptions, SubscribeOptions]:
    """What the consumer takes, with its defaults, and what the subscription takes."""
    retry = options.get("retry", RETRIES_DEFAULT)
    own: OwnOptions = {
        "workers": options.get("workers", WORKERS_DEFAULT),
        "retry": Retry(retry) if isinstance(retry, int) else retry,
        "dead_letter": options.get("dead_letter"),
        "ordered": options.get("ordered", False),
        "grace": options.get("grace", GRACE_S),
    }
    return own, cast(SubscribeOptions, {name: value for name, value in options.items() if name not in own})


class Consumer:
    """`async with bus.consumer("orders", handle, workers=8) as consumer`: handlers run until the block ends. Then no more
    messages are taken, and those in work are finished; `bus.consume` is the same as one call."""

    def __init__(
        self,
        subscription: Subscription,
        handler: Handler,
        *,
        workers: int,
        retry: Retry,
        dead_letter: bool | None,
        ordered: bool,
        grace: float,
    ) -> None:
        if not 1 <= workers <= WORKERS_MAX:
            raise ValueError(f"workers is 1 to {WORKERS_MAX:,}, not {workers}")
        self._subscription = subscription
        self._handler = handler
        self._workers = workers
        self._retry = retry
        self._dead_letter = dead_letter
        self._ordered = ordered
        self._grace = grace
        call = type(handler).__call__  # of an object that is called
        waits = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._threads = None if waits else ThreadPoolExecutor(workers, thread_name_prefix="quintet-consumer")
        self._room = asyncio.Semaphore(workers)
        self._in_hand = asyncio.Semaphore(workers * TAKEN_PER_WORKER if ordered else workers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_key: dict[bytes, deque[Message]] = {}  # behind the one of their key that is in work
        self._attempts: dict[int, int] = {}  # tag -> how often it failed here
        self._running: asyncio.Task[None] | None = None
        self._failed: BaseException | None = None
        self._handled = 0
        self._gave_up = 0

    async def __aenter__(self) -> "Consumer":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def gather_acks(self, seconds: float, most: int) -> None:
        """See Subscription.gather_acks."""
        self._subscription.gather_acks(seconds, most)

    @property
    def handled(self) -> int:
        """Messages whose handler succeeded."""
        return self._handled

    @property
    def given_up(self) -> int:
        """Messages that failed as often as `retry` allows."""
        return self._gave_up

    async def open(self) -> None:
        """Subscribe, and begin."""
        await self._subscription.open()
        source = self._subscription.source
        if self._dead_letter and not source.has_dead_letters:
            await self._subscription.close()
            hint = "dead_letter=False acknowledges what is given up; a group has dead letters over FlyMQ"
            raise Unsupported("there are no dead letters for this subscription", hint=hint)
        self._running = asyncio.get_running_loop().create_task(self._take())

    async def wait(self) -> None:
        """Return when it ends: closed elsewhere, or with the error that ended its subscription."""
        if self._running is None:
            raise Closed(
                "the consumer is not open", hint="use `async with bus.consumer(...)`, or `await bus.consume(...)`"
            )
        await asyncio.wait([self._running])
        if self._failed is not None:
            raise self._failed

    async def close(self) -> None:
        """Take no more messages, wait for the handlers that run (for `grace` seconds), give back the rest."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            log.warning("%d handlers of %r ran for longer than %g s after the stop and were cancelled",
                        len(self._tasks), self._subscription.topic, self._grace)  # fmt: skip
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        await self._subscription.close()

    async def _take(self) -> None:
        """Messages one by one, as long as there is a worker for them."""
        try:
            while True:
                await self._in_hand.acquire()
                try:
                    message = await self._subscription.__anext__()
                except BaseException:
                    self._in_hand.release()
                    raise
                self._begin(message)
        except StopAsyncIteration:
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self._failed = error

    def _begin(self, message: Message) -> None:
        key = message.key if self._ordered else None
        if key is not None and key in self._by_key:
            self._hold(message)
            self._by_key[key].append(message)
            return
        if key is not None:
            self._by_key[key] = deque()
        task = asyncio.get_running_loop().create_task(self._work(message, key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, message: Message, key: bytes | None) -> None:
        """One message; then those of its key that came meanwhile."""
        waiting = self._by_key.get(key) if key is not None else None
        try:
            while True:
                try:
                    async with self._room:
                        await self._handle(message)
                finally:
                    self._in_hand.release()
                if not waiting or (self._running is not None and self._running.done()):
                    return
                message = waiting.popleft()
        finally:
            if waiting is not None:
                for left in waiting:
                    self._subscription.release([row_of(left)])
                    self._in_hand.release()
                del self._by_key[cast(bytes, key)]

    def _hold(self, message: Message) -> None:
        if message.qos:
            self._subscription.hold((message.tag,), None)

    async def _handle(self, message: Message) -> None:
        here = self._ordered or not message.qos or not self._subscription.source.comes_again
        attempt = self._attempts.get(message.tag, 0) if message.qos else 0
        while True:
            self._hold(message)
            attempt += 1
            try:
                await self._call(message)
            except asyncio.CancelledError:
                if message.qos:
                    self._subscription.release([row_of(message)])
                raise
            except Exception as error:
                last = attempt > self._retry.times or isinstance(error, BadValue)
                pause = self._retry.pause(attempt)
                fate = "is given up" if last else f"comes again in {pause:g} s"
                log.error("%r failed (attempt %d) and %s", message, attempt, fate, exc_info=error)
                if last:
                    await self._give_up(message, error, attempt)
                    return
                if not here:
                    self._attempts[message.tag] = attempt
                    await self._subscription.give_back([row_of(message)], error, None, True, pause)
                    return
                await asyncio.sleep(pause)
            else:
                self._attempts.pop(message.tag, None)
                self._handled += 1
                await message.ack()
                return

    async def _give_up(self, message: Message, error: Exception, attempt: int) -> None:
        self._attempts.pop(message.tag, None)
        self._gave_up += 1
        if not message.qos:
            return
        if self._dead_letter is False or not self._subscription.source.has_dead_letters:
            await message.ack()
        else:
            self._subscription.source.tried_here(message.tag, attempt)
            await self._subscription.give_back([row_of(message)], error, 0, True, None)

    async def _call(self, message: Message) -> None:
        if self._threads is not None:
            call = partial(copy_context().run, cast(Any, self._handler), message)  # as asyncio.to_thread does
            await asyncio.get_running_loop().run_in_executor(self._threads, call)
            return
        await cast(Awaitable[None], self._handler(message))
