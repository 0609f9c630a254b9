"""Registers subscribers and publishers with a broker or a router."""

from collections.abc import Iterable, Sequence
from typing import Any

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.middlewares import AckPolicy

from quintet.client.core.message import Message
from quintet.faststream.config import QuintetConfig
from quintet.faststream.publishing import (
    PublisherConfig,
    PublisherSpecConfig,
    QuintetPublisher,
    QuintetPublisherSpecification,
)
from quintet.faststream.subscribing import (
    ConcurrentSubscriber,
    QuintetSubscriber,
    QuintetSubscriberSpecification,
    SubscriberConfig,
    SubscriberSpecConfig,
    Topics,
)


class QuintetRegistrator(Registrator[Message, QuintetConfig]):
    """What brokers and routers have in common."""

    def subscriber(  # type: ignore[override]
        self,
        topic: Topics,
        *,
        group: str | None = None,
        durable: str | None = None,
        start: Any = None,
        filter: str | None = None,
        prefetch: int | None = None,
        qos: int = 1,
        max_workers: int = 1,
        retry: int | None = None,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> QuintetSubscriber:
        """A handler for a topic, a list of topics, or a pattern. `group`, `durable`, `start`, `filter`, `prefetch` and `qos` are
        those of `bus.subscribe`; `max_workers` handles so many messages at a time; `retry` is how often a message that failed comes
        again before it is a dead letter (None: three times, or, over BlipMQ and Felix, as the broker is configured)."""
        given = {"group": group, "durable": durable, "start": start, "filter": filter, "prefetch": prefetch, "qos": qos}
        topics = (topic,) if isinstance(topic, str) else tuple(topic)
        outer: Any = self.config
        config = SubscriberConfig(
            topics=topics,
            options={name: value for name, value in given.items() if value is not None},
            retry=retry,
            no_reply=no_reply,
            _outer_config=outer,
            _ack_policy=ack_policy,
        )
        calls: CallsCollection[Any] = CallsCollection()
        about = SubscriberSpecConfig(
            topics=topics, title_=title, description_=description, include_in_schema=include_in_schema
        )
        specification = QuintetSubscriberSpecification(outer, about, calls)
        made = (
            ConcurrentSubscriber(config, specification, calls, max_workers=max_workers)
            if max_workers > 1
            else QuintetSubscriber(config, specification, calls)
        )
        super().subscriber(made, persistent=persistent)
        added: QuintetSubscriber = made.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, codec_=codec, dependencies_=dependencies
        )
        return added

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        key: str | bytes | None = None,
        headers: dict[str, str] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> QuintetPublisher:
        """An object that publishes to a topic, and a decorator that publishes what a handler returns."""
        outer: Any = self.config
        about = PublisherSpecConfig(
            topic=topic, schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
        )
        config = PublisherConfig(topic=topic, key=key, headers=headers, _outer_config=outer)
        made = QuintetPublisher(config, QuintetPublisherSpecification(outer, about))
        super().publisher(made, persistent=persistent)
        return made


class QuintetRouter(QuintetRegistrator, BrokerRouter[Message, QuintetConfig]):
    """Subscribers and publishers that a broker includes, with a prefix for their topics."""

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[Any] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        config = QuintetConfig(
            prefix=prefix,
            broker_dependencies=dependencies,
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            include_in_schema=include_in_schema,
            ack_policy=ack_policy,
        )
        super().__init__(config=config, handlers=handlers, routers=routers)
