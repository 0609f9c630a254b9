"""Turns a message of the client into one of FastStream, and acknowledgements back.

What FastStream knows beside the body travels in headers, under the names that `bus.ask` uses. A door without headers carries
the body alone: then JSON and text are told apart by looking at it.
"""

import sys
from typing import Any, Final

from faststream.exceptions import HandlerException
from faststream.message import StreamMessage, decode_message

from quintet.client.core.message import Message, Rejected, row_of
from quintet.client.core.subscription import Subscription

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation-id"
REPLY_TO: Final = "reply-to"
OWN: Final = frozenset({CONTENT_TYPE, CORRELATION_ID, REPLY_TO})


class QuintetMessage(StreamMessage[Message]):
    """A message as handlers of FastStream get it; `raw_message` is the client's. `subscription` and `retry` are those of its
    subscriber; without a broker there is no subscription."""

    subscription: Subscription | None = None
    retry: int | None = None

    async def ack(self) -> None:
        if self.committed is None:
            await self.raw_message.ack()
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """It comes again after `delay` seconds (None: later with each attempt), and is a dead letter after the last.
        `raise NackMessage(delay=30)` does the same."""
        if self.committed is None:
            await self._give_back("given back by its handler", self.retry, delay)
        await super().nack()

    async def reject(self) -> None:
        """It becomes a dead letter now."""
        if self.committed is None:
            await self._give_back("rejected by its handler", 0, None)
        await super().reject()

    async def _give_back(self, reason: str, retry: int | None, delay: float | None) -> None:
        if self.subscription is not None and self.raw_message.qos:
            error = cause() or Rejected(reason)
            await self.subscription.give_back([row_of(self.raw_message)], error, retry, True, delay)


def cause() -> BaseException | None:
    """Why a message is given back: FastStream's own middleware calls `nack()` while it handles what the handler raised, and
    does not pass it on."""
    error = sys.exception()
    return error.__cause__ if isinstance(error, HandlerException) else error


class Parser:
    """The parser and decoder that a user's own ones are composed with."""

    @staticmethod
    async def parse_message(message: Message) -> QuintetMessage:
        headers = {name: text(value) for name, value in (message.headers or {}).items()}
        place = f"{message.topic}/{message.partition}/{message.offset}" if message.offset is not None else None
        return QuintetMessage(
            raw_message=message,
            body=message.value,
            headers={name: value for name, value in headers.items() if name not in OWN},
            content_type=headers.get(CONTENT_TYPE),
            correlation_id=headers.get(CORRELATION_ID),
            reply_to=headers.get(REPLY_TO, ""),
            message_id=place,
        )

    @staticmethod
    async def decode_message(message: "StreamMessage[Any]") -> Any:
        return decode_message(message)


def text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
