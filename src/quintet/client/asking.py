"""Asks and answers: a request is a message that names a reply address and a correlation id in its headers.

    ask:     publish to TOPIC, headers reply-to: reply/RANDOM, correlation-id: RANDOM  --> wait for a message with that id
    answer:  publish to the reply address, header correlation-id as in the request, or `error` with the reason of a failure

A bus has one reply address, made with its first question and told to nobody but those who are asked. Both the address and each
correlation id are 128 bits of chance: whoever does not know them cannot answer. What comes late, twice, or with an unknown id is
dropped and counted. Requests and replies expire, so that no responder answers who no longer waits. A responder publishes to
addresses that begin with `reply/` only: a request cannot make it write anywhere else.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from secrets import token_hex
from typing import Any, Final, Protocol

from quintet.client.core.base import Connector
from quintet.client.core.errors import Closed, RequestFailed, Timeout, Unsupported
from quintet.client.core.headers import HeadersGiven
from quintet.client.core.message import Ack, Message, log
from quintet.client.core.subscription import Subscription
from quintet.model.errors import QuintetError

REPLY_PREFIX: Final = "reply/"
REPLY_TO: Final = "reply-to"
CORRELATION_ID: Final = "correlation-id"
ERROR: Final = "error"
RANDOM_BYTES: Final = 16
WAITING_MAX: Final = 100_000  # questions of one bus that are not answered yet
REPLY_TTL_S: Final = 60.0
TTL_MIN_S: Final = 0.001
ACKS_S: Final = 0.02  # acknowledgements of requests and replies wait for so long, to be written together
ACKS_MAX: Final = 32  # ... or for so many
ERROR_TEXT_MAX: Final = 1_000  # characters of an exception that the asker is told


class AskingBus(Protocol):
    """The part of a bus that requests and replies need."""

    @property
    def door(self) -> Connector: ...

    async def publish(
        self,
        topic: str,
        value: object,
        *,
        key: str | bytes | None = None,
        headers: HeadersGiven | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> Ack: ...

    def subscribe(self, topic: str) -> Subscription: ...


Answer = Callable[[Message], Awaitable[object] | object]


class Asker:
    """The reply address of a bus, and the questions that wait for an answer."""

    def __init__(self, bus: AskingBus) -> None:
        self._bus = bus
        self._waiting: dict[bytes, asyncio.Future[Message]] = {}
        self._opening = asyncio.Lock()
        self._replies: Subscription | None = None
        self._reading: asyncio.Task[None] | None = None
        self._address = ""
        self.dropped = 0

    async def ask(self, topic: str, value: object, key: Any, headers: HeadersGiven | None, timeout: float) -> Message:
        if len(self._waiting) >= WAITING_MAX:
            raise Closed(
                f"{WAITING_MAX:,} questions wait for an answer, which is the limit", hint="wait for some of them"
            )
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        address = await self._open()
        id = token_hex(RANDOM_BYTES)
        own = [(REPLY_TO, address), (CORRELATION_ID, id)]
        given = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        answer: asyncio.Future[Message] = loop.create_future()
        self._waiting[id.encode()] = answer
        timer = loop.call_at(until, _too_late, answer, topic, timeout)
        try:
            ttl = None if "ttl" in self._bus.door.lacks else max(until - loop.time(), TTL_MIN_S)
            asked = [pair for pair in given if pair[0] not in (REPLY_TO, CORRELATION_ID)]
            await self._bus.publish(topic, value, key=key, headers=[*asked, *own], ttl=ttl, timeout=timeout)
            reply = await answer
        finally:
            timer.cancel()
            self._waiting.pop(id.encode(), None)
        if ERROR in reply.headers:
            raise RequestFailed(f"the responder of {topic!r} failed: {reply.headers.text(ERROR)}")
        return reply

    async def _open(self) -> str:
        """The address, listening: made at the first question, and again if it was lost."""
        async with self._opening:
            if self._reading is None or self._reading.done():
                if self._replies is not None:
                    await self._replies.close()
                self._address = f"{REPLY_PREFIX}{token_hex(RANDOM_BYTES)}"
                replies = self._replies = self._bus.subscribe(self._address)
                replies.gather_acks(ACKS_S, ACKS_MAX)
                await replies.open()
                self._reading = asyncio.get_running_loop().create_task(self._read(replies))
            return self._address

    async def _read(self, replies: Subscription) -> None:
        try:
            async for message in replies:
                waiting = self._waiting.get(message.headers.get(CORRELATION_ID) or b"")
                if waiting is None or waiting.done():
                    self.dropped += 1
                    log.debug("a reply that nobody waits for came to %r", message.topic)
                else:
                    waiting.set_result(message)
                await message.ack()
        except QuintetError as error:  # the next question makes a new address
            log.info("the reply address was lost: %s", error)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(error)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Closed("the bus was closed before the answer came"))
                waiting.exception()


def _too_late(answer: "asyncio.Future[Message]", topic: str, timeout: float) -> None:
    if not answer.done():
        answer.set_exception(
            Timeout(f"nobody answered a request to {topic!r} within {timeout:g} s", hint="is a responder running?")
        )


class Responder:
    """Answers requests with what a function returns; the handler of a Consumer."""

    def __init__(self, bus: AskingBus, function: Answer, workers: int) -> None:
        self._bus = bus
        self._function = function
        waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        self._threads = None if waits else ThreadPoolExecutor(workers, thread_name_prefix="quintet-responder")
        self.ignored = 0

    async def __call__(self, request: Message) -> None:
        address, id = request.headers.text(REPLY_TO), request.headers.get(CORRELATION_ID)
        if not address.startswith(REPLY_PREFIX) or id is None:
            self.ignored += 1
            log.warning("%r is no request: it has no reply address that begins with %r", request, REPLY_PREFIX)
            return
        headers: list[tuple[str, str | bytes | None]] = [(CORRELATION_ID, id)]
        try:
            answer = await self._call(request)
        except Exception as error:
            log.error("the responder of %r failed", request.topic, exc_info=error)
            answer = b""
            headers.append((ERROR, f"{type(error).__name__}: {error}"[:ERROR_TEXT_MAX]))
        ttl = None if "ttl" in self._bus.door.lacks else REPLY_TTL_S
        try:
            await self._bus.publish(address, b"" if answer is None else answer, headers=headers, ttl=ttl)
        except (QuintetError, ValueError) as error:
            if isinstance(error, QuintetError) and error.retryable:
                raise
            log.error("the answer to a request to %r was not sent: %s", request.topic, error)

    async def _call(self, request: Message) -> object:
        if self._threads is not None:
            call = partial(copy_context().run, self._function, request)
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        found = self._function(request)
        assert inspect.isawaitable(found)
        return await found


def check_door(bus: AskingBus) -> None:
    """Unsupported where a message has no headers, or a client cannot have an address of its own for replies."""
    hint = bus.door.lacks.get("headers") or bus.door.lacks.get("ask")
    if hint:
        raise Unsupported(f"{bus.door.name} does not support requests and replies", hint=hint)
