"""Defines TestQuintetBroker: the handlers of an application without a broker, by FastStream's conventions.

async with TestQuintetBroker(broker):
    await broker.publish(order, "orders")
    bill.mock.assert_called_once()
"""

import fnmatch
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from quintet.client.core.headers import encode_headers
from quintet.client.core.message import Ack, LogPosition, Message, Rows
from quintet.faststream.broker import QuintetBroker
from quintet.faststream.publishing import REQUEST_S, QuintetProducer, QuintetPublishCommand, QuintetPublisher
from quintet.faststream.subscribing import QuintetSubscriber

__all__ = ("TestQuintetBroker",)


class _NoBroker:
    """Who messages are acknowledged to where there is no broker."""

    async def settle(self, tags: Sequence[int], timeout: float | None) -> None: ...

    def hold(self, tags: Sequence[int], retry: int | None) -> None: ...

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        return "is forgotten"

    def release(self, rows: Rows) -> None: ...

    async def nack(self, rows: Rows, delay: float | None) -> None: ...

    async def in_progress(self, tags: Sequence[int]) -> None: ...

    def position_of(self, tag: int) -> LogPosition | None:
        return None

    async def commit_in(self, transaction: str, tag: int) -> None: ...

    def committed(self, tag: int) -> None: ...


def matches(pattern: str, topic: str) -> bool:
    """As the broker's patterns (broker/topics/patterns.py), with Python's expressions for RE2's."""
    if pattern.startswith("regex:"):
        return re.fullmatch(pattern.removeprefix("regex:"), topic) is not None
    literal = re.sub(r"[?\[\]]", lambda found: f"[{found[0]}]", pattern)
    return fnmatch.fnmatchcase(topic, literal)


class TestQuintetBroker(TestBroker[QuintetBroker, EnterType], broker=QuintetBroker):
    """Hands what is published straight to the handlers whose topics match."""

    def create_publisher_fake_subscriber(
        self, broker: QuintetBroker, publisher: QuintetPublisher
    ) -> tuple[QuintetSubscriber, bool]:
        for found in (each for one in self.brokers for each in one.subscribers):
            if isinstance(found, QuintetSubscriber) and any(matches(t, publisher.topic) for t in found.topics):
                return found, True
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: QuintetBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: QuintetBroker, *args: Any, **kwargs: Any) -> Any:
        return AsyncMock()


class FakeProducer(QuintetProducer):
    """Routes messages to subscribers in memory; of a group, one gets it."""

    def __init__(self, broker: QuintetBroker, brokers: Sequence[QuintetBroker]) -> None:
        super().__init__(broker._parser, broker._decoder)
        self._brokers = brokers
        self.serializer = broker.config.fd_config._serializer
        self.codec = broker.config.broker_codec or self.codec

    def _readers(self, topic: str) -> Iterator[QuintetSubscriber]:
        groups: set[str] = set()
        for found in (each for one in self._brokers for each in one.subscribers):
            if not isinstance(found, QuintetSubscriber) or not any(matches(t, topic) for t in found.topics):
                continue
            group = found._options.get("group")
            if group is None or group not in groups:
                groups.add(group or "")
                yield found

    async def _message(self, cmd: QuintetPublishCommand) -> Message:
        body, headers = await self.encoded(cmd)
        key = cmd.key.encode() if isinstance(cmd.key, str) else cmd.key
        return Message(_NoBroker(), cmd.destination, 0, 0, body, key, encode_headers(headers))

    async def publish(self, cmd: QuintetPublishCommand) -> Ack:
        message = await self._message(cmd)
        for reader in self._readers(cmd.destination):
            await reader.process_message(message)
        return Ack(cmd.destination, 1, True)

    async def request(self, cmd: QuintetPublishCommand) -> Message:
        message = await self._message(cmd)
        for reader in self._readers(cmd.destination):
            with anyio.fail_after(cmd.timeout or REQUEST_S):
                answer = await reader.process_message(message)
            return await self._message(QuintetPublishCommand.from_cmd(answer.as_publish_command()))
        raise SubscriberNotFound
