"""Defines QuintetBroker, which an application of FastStream is made with."""

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from quintet.client.bus import Bus, connect
from quintet.client.core import url as urls
from quintet.client.core.message import Ack, Message
from quintet.faststream.config import QuintetConfig
from quintet.faststream.publishing import REQUEST_S, QuintetProducer, QuintetPublishCommand
from quintet.faststream.registering import QuintetRegistrator
from quintet.model.errors import QuintetError

URL_DEFAULT: Final = "flymq://admin:admin@127.0.0.1:9092"  # of `quintet serve --dev`
PING_S: Final = 5.0
GRACEFUL_S: Final = 15.0


class QuintetBroker(QuintetRegistrator, BrokerUsecase[Message, Bus, QuintetConfig]):
    """`QuintetBroker(url)`: the URL and what follows are those of `quintet.connect`, the rest is FastStream's."""

    def __init__(
        self,
        url: str = URL_DEFAULT,
        *,
        name: str | None = None,
        wait: float | None = None,
        timeout: float = 10.0,
        tls: Any = None,
        graceful_timeout: float | None = GRACEFUL_S,
        decoder: Any = None,
        parser: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Any] = (),
        ack_policy: AckPolicy = EMPTY,
        specification_url: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        security: Any = None,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
    ) -> None:
        endpoint = urls.parse(url)  # before anything else: a wrong URL is known now
        config = QuintetConfig(
            producer=QuintetProducer(parser, decoder),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=_logger_state(logger=logger, log_level=log_level),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types,
                serializer=serializer,
                provider=provider or dependency_provider,
                context=context or ContextRepo(),
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            id_generator=gen_cor_id,
            extra_context={"broker": self},
        )
        specification = BrokerSpec(
            description=description,
            url=[specification_url or f"{endpoint.door}://{endpoint}"],  # never with the secret
            protocol=endpoint.door,
            protocol_version=protocol_version,
            tags=tags,
            security=security,
        )
        options = {"name": name, "wait": wait, "timeout": timeout, "tls": tls}
        super().__init__(config=config, specification=specification, routers=routers, url=url, **options)

    async def _connect(self) -> Bus:
        bus = connect(**self._connection_kwargs)
        await bus.open()
        self.config.broker_config.connect(bus)
        return bus

    async def start(self) -> None:
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        await super().stop(exc_type, exc_val, exc_tb)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        self.config.broker_config.connect(None)

    async def ping(self, timeout: float | None = None) -> bool:
        """Whether the broker answers."""
        if self._connection is None:
            return False
        try:
            await self._connection.ping(timeout=timeout or PING_S)
        except QuintetError:
            return False
        return True

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        key: str | bytes | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Any,
    ) -> Ack:
        """Publish; `options` are those of `bus.publish`: ttl, delay, schema, qos."""
        cmd = QuintetPublishCommand(
            message,
            topic=topic,
            key=key,
            options=options,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        made: Ack = await self._basic_publish(cmd, producer=self.config.producer)
        return made

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = REQUEST_S,
    ) -> Any:
        """Publish, and wait for what the handler returns."""
        cmd = QuintetPublishCommand(
            message,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        return await self._basic_request(cmd, producer=self.config.producer)


class _LoggerStorage(DefaultLoggerStorage):
    """The broker's own logger, with the topic in each line."""

    def __init__(self) -> None:
        super().__init__()
        self._width = 0
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        self._width = max(self._width, len(params.get("topic", "")))

    def get_logger(self, *, context: ContextRepo) -> Any:
        logger = self._get_logger_ref()
        if not logger:
            logger = get_broker_logger(
                name="quintet",
                default_context={"topic": ""},
                message_id_ln=10,
                fmt=f"%(asctime)s %(levelname)-8s - %(topic)-{max(self._width, 1)}s | %(message_id)-10s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


_logger_state = partial(make_logger_state, default_storage_cls=_LoggerStorage)
