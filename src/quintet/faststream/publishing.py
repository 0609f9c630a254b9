"""Publishes for FastStream: the command, the producer that hands it to the bus, and the publisher object."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from quintet.client.bus import Bus
from quintet.client.core.message import Ack, Message
from quintet.faststream.config import QuintetConfig
from quintet.faststream.messages import CONTENT_TYPE, CORRELATION_ID, REPLY_TO, Parser

REQUEST_S = 30.0


class QuintetPublishCommand(PublishCommand):
    """What is published: the body, where, and the options of `bus.publish`."""

    def __init__(
        self,
        message: Any,
        *,
        topic: str = "",
        key: str | bytes | None = None,
        options: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        timeout: float | None = REQUEST_S,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body=message,
            destination=topic,
            correlation_id=correlation_id,
            headers=headers,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.key = key
        self.options = options or {}
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> "QuintetPublishCommand":
        if isinstance(cmd, cls):
            return cmd
        return cls(
            cmd.body,
            topic=cmd.destination,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def wire_headers(self, content_type: str | None) -> dict[str, str | bytes]:
        """The user's, and those that FastStream needs at the other end."""
        found: dict[str, str | bytes] = {
            name: value if isinstance(value, str | bytes) else str(value)
            for name, value in (self.headers or {}).items()
        }
        own = {CONTENT_TYPE: content_type, CORRELATION_ID: self.correlation_id, REPLY_TO: self.reply_to}
        return found | {name: value for name, value in own.items() if value}


class QuintetProducer(ProducerProto[QuintetPublishCommand]):
    """Hands commands to the bus."""

    def __init__(self, parser: Any = None, decoder: Any = None) -> None:
        self._parser = ParserComposition(parser, Parser.parse_message)
        self._decoder = ParserComposition(decoder, Parser.decode_message)
        self.serializer: Any = None
        self.codec: Any = DefaultCodec()
        self._bus: Bus | None = None

    def connect(self, bus: Bus | None, serializer: Any, codec: Any) -> None:
        self._bus, self.serializer, self.codec = bus, serializer, codec or DefaultCodec()

    @property
    def bus(self) -> Bus:
        if self._bus is None:
            raise IncorrectState("the broker is not connected; use `async with broker`, or start the application")
        return self._bus

    async def encoded(self, cmd: QuintetPublishCommand) -> tuple[bytes, dict[str, str | bytes]]:
        body, content_type = await self.codec.encode(cmd.body, serializer=self.serializer)
        return body, cmd.wire_headers(content_type)

    async def publish(self, cmd: QuintetPublishCommand) -> Ack:
        body, headers = await self.encoded(cmd)
        carried = None if "headers" in self.bus.door.lacks else headers
        return await self.bus.publish(cmd.destination, body, key=cmd.key, headers=carried, **cmd.options)

    async def request(self, cmd: QuintetPublishCommand) -> Message:
        body, headers = await self.encoded(cmd)
        return await self.bus.ask(cmd.destination, body, headers=headers, timeout=cmd.timeout)

    async def publish_batch(self, cmd: QuintetPublishCommand) -> Any:
        raise FeatureNotSupportedException("publish one by one: calls of one turn share a write anyway")


@dataclass(kw_only=True)
class PublisherSpecConfig(PublisherSpecificationConfig):
    topic: str


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    _outer_config: QuintetConfig = field(default_factory=QuintetConfig)
    topic: str
    key: str | bytes | None = None
    headers: dict[str, str] | None = None


class QuintetPublisherSpecification(PublisherSpecification[QuintetConfig, PublisherSpecConfig]):
    """The publisher's part of the AsyncAPI page."""

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = MessageSpec(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class QuintetPublisher(PublisherUsecase):
    """Made by `broker.publisher("topic")`: a decorator for what a handler returns, or an object with `publish`."""

    _outer_config: QuintetConfig

    def __init__(self, config: PublisherConfig, specification: Any) -> None:
        super().__init__(config, specification)
        self._topic = config.topic
        self._key = config.key
        self._headers = config.headers or {}

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    def _command(
        self,
        message: Any,
        topic: str,
        key: Any,
        headers: Any,
        correlation_id: str | None,
        kind: PublishType,
        **more: Any,
    ) -> QuintetPublishCommand:
        return QuintetPublishCommand(
            message,
            topic=topic or self.topic,
            key=self._key if key is None else key,
            headers=self._headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=kind,
            **more,
        )

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        key: str | bytes | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> Any:
        """`options` are those of `bus.publish`: ttl, delay, schema, qos."""
        cmd = self._command(message, topic, key, headers, correlation_id, PublishType.PUBLISH, options=options)
        return await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=())

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        """What a handler returned."""
        ours = QuintetPublishCommand.from_cmd(cmd)
        ours.destination = ours.destination or self.topic
        ours.key = ours.key or self._key
        ours.add_headers(self._headers, override=False)
        await self._basic_publish(ours, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = REQUEST_S,
    ) -> Any:
        cmd = self._command(message, topic, None, headers, correlation_id, PublishType.REQUEST, timeout=timeout)
        return await self._basic_request(cmd, producer=self._outer_config.producer)


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returned to the address that its message named."""

    def __init__(self, producer: Any, topic: str) -> None:
        super().__init__(producer=producer)
        self.topic = topic

    def patch_command(self, cmd: Any) -> QuintetPublishCommand:
        ours = QuintetPublishCommand.from_cmd(super().patch_command(cmd))
        ours.destination = self.topic
        return ours
