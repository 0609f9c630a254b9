"""Subscribes for FastStream: reads a subscription of the bus and hands each message to its handlers."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.mixins import ConcurrentMixin, TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from quintet.client.core.errors import Timeout
from quintet.client.core.message import Message
from quintet.client.core.subscription import Subscription
from quintet.client.sources.many import is_pattern
from quintet.faststream.config import QuintetConfig
from quintet.faststream.messages import Parser, QuintetMessage
from quintet.faststream.publishing import ReplyPublisher

Topics = str | Sequence[str]


@dataclass(kw_only=True)
class SubscriberSpecConfig(SubscriberSpecificationConfig):
    topics: tuple[str, ...]


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    _outer_config: QuintetConfig = field(default_factory=QuintetConfig)
    topics: tuple[str, ...]
    options: dict[str, Any]
    retry: int | None = None

    @property
    def ack_policy(self) -> AckPolicy:
        """A message that failed comes again, and is a dead letter after the last attempt, unless it is said otherwise."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


class QuintetSubscriberSpecification(SubscriberSpecification[QuintetConfig, SubscriberSpecConfig]):
    """The subscriber's part of the AsyncAPI page: a channel for each topic or pattern."""

    @property
    def topics(self) -> list[str]:
        return prefixed(self._outer_config.prefix, self.config.topics)

    @property
    def channel_labels(self) -> list[str]:
        return self.topics

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload = resolve_payloads(self.get_payloads())
        found = {}
        for topic in self.topics:
            name = self.name if len(self.topics) == 1 else f"{topic}:{self.call_name}"
            message = MessageSpec(title=f"{name}:Message", payload=payload)
            found[name] = SubscriberSpec(
                address=topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        return found


class QuintetSubscriber(TasksMixin, SubscriberUsecase[Message]):
    """Made by `broker.subscriber("topic")`; handles one message at a time."""

    _outer_config: QuintetConfig

    def __init__(self, config: SubscriberConfig, specification: Any, calls: Any) -> None:
        config.parser = self._parse
        config.decoder = Parser.decode_message
        super().__init__(config, specification, calls)
        self._topics = config.topics
        self._options = config.options
        self._retry = config.retry
        self._subscription: Subscription | None = None

    @property
    def topics(self) -> list[str]:
        return prefixed(self._outer_config.prefix, self._topics)

    async def start(self) -> None:
        await super().start()
        if self.calls:
            await self._subscribe()
            self.add_task(self._read)
        self._post_start()

    async def stop(self) -> None:
        await super().stop()
        if self._subscription is not None:
            await self._subscription.close()
            self._subscription = None

    async def _subscribe(self) -> Subscription:
        if self._subscription is None:
            topics = self.topics
            many = len(topics) > 1 or is_pattern(topics[0])
            subscription = self._outer_config.bus.subscribe(topics if many else topics[0], **self._options)
            await subscription.open()
            self._subscription = subscription
        return self._subscription

    async def _read(self) -> None:
        async for message in await self._subscribe():
            await self._handle(message)

    async def _handle(self, message: Message) -> None:
        self._hold(message)
        await self.consume(message)

    def _hold(self, message: Message) -> None:
        """It is not delivered again for taking long; whoever acknowledges by hand may also let it go by doing nothing."""
        if self._subscription is not None and message.qos and self.ack_policy is not AckPolicy.MANUAL:
            self._subscription.hold((message.tag,), self._retry)

    async def _parse(self, message: Message) -> QuintetMessage:
        found = await Parser.parse_message(message)
        found.subscription, found.retry = self._subscription, self._retry
        return found

    async def get_one(self, *, timeout: float = 5.0) -> QuintetMessage | None:
        assert not self.calls, "a subscriber with handlers hands its messages to them"
        subscription = await self._subscribe()
        try:
            message = await subscription.get(timeout=timeout)
        except Timeout:
            return None
        return await self._parsed(message)

    async def __aiter__(self) -> AsyncIterator[QuintetMessage]:
        async for message in await self._subscribe():
            yield await self._parsed(message)

    async def _parsed(self, message: Message) -> QuintetMessage:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        middlewares = (make(message, context=context) for make in self._broker_middlewares)
        found: Any = await process_msg(msg=message, middlewares=middlewares, parser=parser, decoder=decoder)
        assert isinstance(found, QuintetMessage)
        return found

    def _make_response_publisher(self, message: Any) -> Sequence[Any]:
        return (ReplyPublisher(self._outer_config.producer, message.reply_to),)

    @staticmethod
    def log_context(message: Any, topic: str = "") -> dict[str, str]:
        return {"topic": topic, "message_id": getattr(message, "message_id", "")}

    def get_log_context(self, message: Any) -> dict[str, str]:
        return self.log_context(message, ", ".join(self.topics))


class ConcurrentSubscriber(ConcurrentMixin[Message], QuintetSubscriber):
    """The same with several messages at a time (`max_workers=`)."""

    async def start(self) -> None:
        await super().start()
        self.start_consume_task()

    async def _handle(self, message: Message) -> None:
        self._hold(message)
        await self._put_msg(message)


def prefixed(prefix: str, topics: Sequence[str]) -> list[str]:
    """Names below a router's prefix; the language of patterns stays in front."""
    return [
        f"regex:{prefix}{topic.removeprefix('regex:')}" if topic.startswith("regex:") else f"{prefix}{topic}"
        for topic in topics
    ]
