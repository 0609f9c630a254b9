"""Defines the classes of a bus with telemetry: the plain ones, with a span around what they do (spans.py).

A plain bus has none of this in its path: `connect` makes one or the other.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace

from quintet.client.bus import Bus
from quintet.client.consuming import Consumer
from quintet.client.core.base import Setup
from quintet.client.core.errors import Unsupported
from quintet.client.core.headers import Encoded, HeadersGiven, encode_headers
from quintet.client.core.message import Ack, Message, MessageBatch, Processing, Row, Rows
from quintet.client.core.publishing import Load, Outcome
from quintet.client.core.subscription import Subscription
from quintet.client.core.telemetry import Telemetry
from quintet.client.core.values import encode
from quintet.client.producer import Producer
from quintet.client.spans import (
    CONTEXT_BYTES_MAX,
    Attributes,
    Processed,
    Spans,
    about_place,
    about_reader,
    as_given,
    context_of,
    parent_of,
    without_context,
)
from quintet.client.transaction import Transaction


class TracedBus(Bus):
    """A bus with telemetry."""

    def __init__(self, setup: Setup, wait: float | None, telemetry: Telemetry) -> None:
        super().__init__(setup, wait)
        endpoint = setup.endpoint
        self._spans = Spans(telemetry, endpoint.host, endpoint.port, setup.name)
        # The published FlyMQ server would refuse a transaction or a delayed message with headers.
        self._wire = Wire("headers" not in setup.connector.lacks and endpoint.dialect != "sdk")
        self._new_producer = partial(TracedProducer, self._spans, self._wire)
        self._new_subscription = partial(TracedSubscription, self._spans)
        self._new_consumer = TracedConsumer
        self._new_transaction = partial(TracedTransaction, self._spans, self._wire)

    async def _publish(self, load: Load, timeout: float | None, retry: bool) -> Outcome:
        publish = partial(super()._publish, timeout=timeout, retry=retry)
        return await self._wire.publish(self._spans, load, publish)

    async def _publish_special(self, load: Load, delay: float | None, schema: str, timeout: float | None) -> Ack:
        with self._spans.sending(load, self._wire.has_headers) as sending:
            return await super()._publish_special(sending.load, delay, schema, timeout)

    def _value_bytes_max(self, topic: str, key: str | bytes | None = None) -> int:
        return super()._value_bytes_max(topic, key) - CONTEXT_BYTES_MAX

    def subscribe(self, *topic: Any, **options: Any) -> Subscription:
        subscription = super().subscribe(*topic, **options)
        assert isinstance(subscription, TracedSubscription)
        subscription.about = about_reader(options.get("group") or "", options.get("durable") or "")
        return subscription

    async def fetch(self, topic: str, **options: Any) -> MessageBatch:
        begun = self._spans.begin()
        batch = await super().fetch(topic, **options)
        if len(batch):
            self._spans.received(begun, topic, list(map(headers_of, batch._rows)), {}, span=True)
        return batch


class Wire:
    """Whether messages of a bus can carry a context. A server of another make may have no place for headers, which only shows when one
    is sent: then messages go without, and spans are made as before."""

    __slots__ = ("has_headers",)

    def __init__(self, has_headers: bool) -> None:
        self.has_headers = has_headers

    async def publish(
        self, spans: Spans, load: Load, publish: Callable[[Load], Awaitable[Outcome]], *, alone: bool = False
    ) -> Outcome:
        with spans.sending(load, self.has_headers, alone=alone) as sending:
            outcome: Outcome | None = None
            try:
                outcome = await publish(sending.load)
            except Unsupported:
                if not self.has_headers:
                    raise
            if outcome is None or (outcome.failures and isinstance(outcome.failures[0][1], Unsupported)):
                self.has_headers = False
                outcome = await publish(load._replace(headers=without_context(load.headers)))
            sending.told(outcome)
        return outcome


class TracedProducer(Producer):
    """Each message has a span of its own when it is given to `send`; the write that carries it has links to them."""

    def __init__(self, spans: Spans, wire: Wire, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._spans = spans
        self._wire = wire

    def send(self, value: object, *, headers: HeadersGiven | None = None, **options: Any) -> None:
        if self._wire.has_headers:
            encoded = encode_headers(headers)
            if context_of(encoded) is None:
                encoded = self._spans.create(self._topic, encoded)[1]
            headers = as_given(encoded)
        super().send(value, headers=headers, **options)

    async def _publish(self, load: Load) -> Outcome:
        return await self._wire.publish(self._spans, load, super()._publish, alone=True)


class TracedTransaction(Transaction):
    """A transaction whose messages carry a context. They are visible when it commits: that is the broker's `append`."""

    def __init__(self, spans: Spans, wire: Wire, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._spans = spans
        self._wire = wire

    async def publish(self, topic: str, value: object, *, headers: HeadersGiven | None = None, **options: Any) -> Ack:
        data = encode(value, topic)
        encoded = encode_headers(headers)
        with self._spans.sending(Load(topic, [data], headers=[encoded]), self._wire.has_headers) as sending:
            own = sending.load.headers
            return await super().publish(topic, data, headers=as_given(own[0]) if own else None, **options)


class TracedSubscription(Subscription):
    """A subscription whose messages know their context."""

    def __init__(self, spans: Spans, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.spans = spans
        self.about: Attributes = {}
        self.pushes = False  # its messages go to handlers: nobody asks for them

    async def __anext__(self) -> Message:
        begun = self.spans.begin()
        plain = await super().__anext__()
        message = TracedMessage(
            self,
            plain.topic,
            plain.tag,
            plain.qos,
            plain.value,
            plain.key,
            plain._headers,
            plain.timestamp_us,
            plain._origin,
            plain.envelope,
        )
        self.spans.received(begun, plain.topic, [plain.headers.raw], message.about(), span=not self.pushes)
        return message

    async def _next_batch(self, most: int, wait: float) -> MessageBatch | None:
        begun = self.spans.begin()
        plain = await super()._next_batch(most, wait)
        if plain is None:
            return None
        batch = TracedBatch(self, plain.topic, plain._rows, next_offset=plain.next_offset)
        self.spans.received(begun, batch.topic, batch.contexts, self.about, span=True)
        return batch

    async def settle(self, tags: Sequence[int], timeout: float | None) -> None:
        with self.spans.settling("ack", self._topic, len(tags), self.about):
            await super().settle(tags, timeout)

    async def nack(self, rows: Rows, delay: float | None) -> None:
        with self.spans.settling("nack", self._topic, len(rows), self.about):
            await super().nack(rows, delay)

    async def give_back(
        self, rows: Rows, error: BaseException, retry: int | None, dead_letter: bool, delay: float | None = None
    ) -> str:
        with self.spans.settling("nack" if retry != 0 else "reject", self._topic, len(rows), self.about):
            return await super().give_back(rows, error, retry, dead_letter, delay)


class TracedMessage(Message):
    """A message of a TracedSubscription."""

    __slots__ = ()

    def about(self) -> Attributes:
        assert isinstance(self._settler, TracedSubscription)
        return self._settler.about | about_place(self.topic, self.partition, self.offset)

    async def ack(self, *, timeout: float | None = None) -> None:
        with within(self):
            await super().ack(timeout=timeout)

    async def nack(self, *, delay: float | None = None) -> None:
        with within(self):
            await super().nack(delay=delay)

    async def reject(self, reason: str = "rejected by its consumer") -> None:
        with within(self):
            await super().reject(reason)

    def process(self, **options: Any) -> Processing:
        plain = super().process(**options)
        assert isinstance(self._settler, TracedSubscription)
        begin = partial(self._settler.spans.process, self.topic, [self.headers.raw], self.about(), True)
        return TracedProcessing(plain, begin)


class TracedBatch(MessageBatch):
    """A batch of a TracedSubscription."""

    __slots__ = ()

    @property
    def contexts(self) -> list[Encoded]:
        return [headers_of(row) for row in self._rows]

    def __iter__(self) -> Iterator[Message]:
        return (TracedMessage(self._settler, self.topic, *row) for row in self._rows)

    def process(self, **options: Any) -> Processing:
        plain = super().process(**options)
        settler = self._settler
        assert isinstance(settler, TracedSubscription)
        return TracedProcessing(plain, partial(settler.spans.process, self.topic, self.contexts, settler.about, False))


class TracedProcessing(Processing):
    """A block that works on messages, inside a span, which settles them as the plain one does. The blocking twin enters and leaves it
    in tasks of their own: there the span is current only while the messages are settled."""

    __slots__ = ("_begin", "_inside", "_plain", "_process", "_token")

    def __init__(self, plain: Processing, begin: Callable[[], Processed]) -> None:
        self._plain = plain
        self._begin = begin

    async def __aenter__(self) -> None:
        await self._plain.__aenter__()
        self._process = self._begin()
        self._inside = trace.set_span_in_context(self._process.span)
        self._token = contexts.attach(self._inside)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace_: TracebackType | None
    ) -> bool:
        if contexts.get_current() is self._inside:
            contexts.detach(self._token)
        try:
            with trace.use_span(self._process.span):
                return await self._plain.__aexit__(kind, error, trace_)
        finally:
            self._process.end(error)


class TracedConsumer(Consumer):
    """Handlers run inside a span, those in threads too."""

    def __init__(self, subscription: Subscription, *args: Any, **options: Any) -> None:
        super().__init__(subscription, *args, **options)
        assert isinstance(subscription, TracedSubscription)
        subscription.pushes = True
        self._spans = subscription.spans

    async def _handle(self, message: Message) -> None:
        with within(message):  # also what settles it, after the handler
            await super()._handle(message)

    async def _call(self, message: Message) -> None:
        assert isinstance(message, TracedMessage)
        process = self._spans.process(message.topic, [message.headers.raw], message.about(), True)
        failed: BaseException | None = None
        try:
            with trace.use_span(process.span):
                await super()._call(message)
        except BaseException as error:
            failed = error
            raise
        finally:
            process.end(failed)


@contextmanager
def within(message: Message) -> Iterator[None]:
    """Inside, the message's context is the current one if there is no other."""
    found = parent_of([message.headers.raw])
    if found is None:
        yield
        return
    token = contexts.attach(found)
    try:
        yield
    finally:
        contexts.detach(token)


def headers_of(row: Row) -> Encoded:
    """The headers in a delivery."""
    return row[4] if len(row) > 4 else b""
