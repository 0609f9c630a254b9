"""Makes the client's spans and metrics, by OpenTelemetry's messaging conventions, and puts the context into record headers.

    create TOPIC    one message of several that are sent together; its context goes with the message
    send TOPIC      one publish; of a single message its context goes with it, else it has links to those of the messages
    receive TOPIC   a message or batch that was asked for
    process TOPIC   the block or handler that works on it
    ack, nack, reject TOPIC   settling

The context travels in the headers of the record as the global propagator writes it: W3C `traceparent` and `tracestate` unless it was
changed. A message that carries one already keeps it. A span has the current span as its parent; if there is none and there is one
message, the context of that message. All messages are links in any case, up to LINKS_MAX.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from quintet import __version__, kernel
from quintet.client.core.headers import Encoded, HeadersGiven
from quintet.client.core.publishing import ANY, Load, Outcome
from quintet.client.core.telemetry import Telemetry
from quintet.model import limits

SCOPE: Final = "quintet.client"
SYSTEM: Final = "quintet"
LINKS_MAX: Final = 128  # of one span: what the SDK keeps unless it is told otherwise
CREATES_MAX: Final = LINKS_MAX  # messages of one publish that get a span each; more of them share that of the send
CONTEXT_BYTES_MAX: Final = 1_024  # that a context may take in the headers of a message; what is more is not sent
TEMPORARY_PREFIX: Final = "reply/"  # a topic of its own for each asker: its name is no name for a span or a series
# Of histograms, as the conventions advise.
DURATIONS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)  # fmt: skip

Attributes = dict[str, str | int | bool]
Pairs = Sequence[tuple[str, str | bytes | None]]


class Spans:
    """Of one bus: its tracer, its meters, and what every span and series of it says."""

    def __init__(self, telemetry: Telemetry, host: str, port: int, client_id: str) -> None:
        self._tracer = trace.get_tracer(SCOPE, __version__, telemetry.tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, telemetry.meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were handed to the broker."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were handed to the application."
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Time of a send, receive or settle.",
            explicit_bucket_boundaries_advisory=DURATIONS_S,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Time of a handler or block.",
            explicit_bucket_boundaries_advisory=DURATIONS_S,
        )
        self._common: Attributes = {"messaging.system": SYSTEM, "server.address": host, "server.port": port}
        self._client: Attributes = {"messaging.client.id": client_id} if client_id else {}

    # -- publishing ----------------------------------------------------------------------------------------------------

    @contextmanager
    def sending(self, load: Load, carries: bool, *, alone: bool = False) -> Iterator["Sending"]:
        """A publish. `carries`: the protocol has a place for headers. alone: what is current here is somebody else's."""
        headers = list(load.headers) if load.headers is not None else [b""] * len(load.values)
        bare = [at for at, own in enumerate(headers) if context_of(own) is None]  # those that carry no context yet
        links = links_of(headers)
        parent = Context() if alone else contexts.get_current()
        several = len(headers) > 1
        if carries and several and len(headers) <= CREATES_MAX:
            for at in bare:
                span, headers[at] = self.create(load.topic, headers[at], parent)
                links.append(Link(span.get_span_context()))
            bare = []
        whole = not carries or bool(bare)  # this span is the context of some of them
        told: Attributes = {} if load.partition == ANY else {_PARTITION: str(load.partition)}
        if several:
            told["messaging.batch.message_count"] = len(headers)
        elif headers:
            told["messaging.message.body.size"] = len(load.values[0])
        kind = SpanKind.PRODUCER if whole else SpanKind.CLIENT
        made = None
        try:
            with self._timed("send", "send", load.topic, kind, parent, links, told) as made:
                if carries and whole:
                    pairs = _pairs(trace.set_span_in_context(made.span, parent))
                    for at in bare:
                        headers[at] = with_pairs(headers[at], pairs)
                made.load = load._replace(headers=headers if any(headers) else None)
                yield made
        finally:
            if made is not None:
                self._sent.add(len(headers), made.series)

    def create(self, topic: str, own: Encoded, parent: Context | None = None) -> tuple[Span, Encoded]:
        """The span of one message that is sent with others, and its headers with that span's context."""
        span = self._start("create", "create", topic, SpanKind.PRODUCER, parent, (), {})
        span.end()
        return span, with_pairs(own, _pairs(trace.set_span_in_context(span, parent)))

    # -- receiving -----------------------------------------------------------------------------------------------------

    def begin(self) -> tuple[int, float]:
        """When something begins of which the span is made later."""
        return time.time_ns(), time.perf_counter()

    def received(
        self, begun: tuple[int, float], topic: str, headers: Sequence[Encoded], about: Attributes, *, span: bool
    ) -> None:
        """These were handed to the application, which has waited for them since `begun`."""
        told = dict(about)
        if span:
            links = links_of(headers)
            if len(headers) > 1:
                told["messaging.batch.message_count"] = len(headers)
            parent = parent_of(headers)
            made = self._start("receive", "receive", topic, SpanKind.CLIENT, parent, links, told, begun[0])
            made.end()
            self._operation.record(time.perf_counter() - begun[1], self._series("receive", topic, about))
        self._consumed.add(len(headers), self._series("receive" if span else "process", topic, about))

    def process(self, topic: str, headers: Sequence[Encoded], about: Attributes, single: bool) -> "Processed":
        """Work on messages begins; it ends with `Processed.end`."""
        told = about if single else about | {"messaging.batch.message_count": len(headers)}
        parent, links = parent_of(headers), links_of(headers)
        span = self._start("process", "process", topic, SpanKind.CONSUMER, parent, links, told)
        return Processed(span, self._process, self._series("process", topic, about))

    @contextmanager
    def settling(self, name: str, topic: str, count: int, about: Attributes) -> Iterator[None]:
        """An acknowledgement, or the opposite."""
        told = dict(about) | ({"messaging.batch.message_count": count} if count > 1 else {})
        with self._timed(name, "settle", topic, SpanKind.CLIENT, None, (), told):
            yield

    # -- parts ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _timed(
        self,
        name: str,
        operation: str,
        topic: str,
        kind: SpanKind,
        parent: Context | None,
        links: Sequence[Link],
        told: Attributes,
    ) -> Iterator["Sending"]:
        began = time.perf_counter()
        span = self._start(name, operation, topic, kind, parent, links, told)
        made = Sending(span, self._series(name, topic, told))
        try:
            with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
                try:
                    yield made
                except BaseException as error:
                    made.series["error.type"] = span_error(span, error)
                    raise
        finally:
            self._operation.record(time.perf_counter() - began, made.series)

    def _start(
        self,
        name: str,
        operation: str,
        topic: str,
        kind: SpanKind,
        parent: Context | None,
        links: Sequence[Link],
        told: Attributes,
        start_ns: int | None = None,
    ) -> Span:
        temporary = topic.startswith(TEMPORARY_PREFIX)
        attributes: Attributes = {
            **self._common,
            **self._client,
            "messaging.operation.name": name,
            "messaging.operation.type": operation,
            "messaging.destination.name": topic,
            **told,
        }
        if temporary:
            attributes["messaging.destination.temporary"] = True
        shown = "(temporary)" if temporary else topic
        return self._tracer.start_span(f"{name} {shown}", parent, kind, attributes, links, start_ns)

    def _series(self, name: str, topic: str, told: Attributes) -> Attributes:
        found = {**self._common, "messaging.operation.name": name}
        if not topic.startswith(TEMPORARY_PREFIX):
            found["messaging.destination.name"] = topic
        return found | {key: told[key] for key in (_GROUP, _SUBSCRIPTION) if key in told}


_PARTITION: Final = "messaging.destination.partition.id"
_GROUP: Final = "messaging.consumer.group.name"
_SUBSCRIPTION: Final = "messaging.destination.subscription.name"


class Sending:
    """An operation under way: what is to be sent in place of what was given, and the attributes of its series."""

    __slots__ = ("load", "series", "span")

    def __init__(self, span: Span, series: Attributes) -> None:
        self.span = span
        self.series = series
        self.load = Load("", ())

    def told(self, outcome: Outcome) -> None:
        """The broker answered: where the last message is, if it says so, and what it refused."""
        place = outcome.places[-1] if outcome.places else None
        if place is not None:
            self.span.set_attribute(_PARTITION, str(place[0]))
            if len(self.load.values) == 1:
                self.span.set_attribute("messaging.message.id", message_id(self.load.topic, place[0], place[1]))
        if outcome.failures:
            self.series["error.type"] = span_error(self.span, outcome.failures[0][1])


class Processed:
    """Work on messages under way: its span, which the caller makes current."""

    __slots__ = ("_began", "_durations", "_series", "span")

    def __init__(self, span: Span, durations: metrics.Histogram, series: Attributes) -> None:
        self.span = span
        self._durations = durations
        self._series = series
        self._began = time.perf_counter()

    def end(self, error: BaseException | None) -> None:
        """It is over, and settled."""
        if error is not None:
            self.span.record_exception(error)
            self._series["error.type"] = span_error(self.span, error)
        self._durations.record(time.perf_counter() - self._began, self._series)
        self.span.end()


def message_id(topic: str, partition: int, offset: int) -> str:
    """As the broker's own spans call it."""
    return f"{topic}/{partition}/{offset}"


def about_reader(group: str, durable: str) -> Attributes:
    """What spans of a subscription say."""
    named: Attributes = {_GROUP: group} if group else {}
    return named | ({_SUBSCRIPTION: durable} if durable else {})


def about_place(topic: str, partition: int | None, offset: int | None) -> Attributes:
    if partition is None or offset is None:
        return {}
    return {_PARTITION: str(partition), "messaging.message.id": message_id(topic, partition, offset)}


def span_error(span: Span, error: BaseException) -> str:
    """Note on the span why it failed; its name in a series."""
    name = type(error).__name__
    span.set_status(StatusCode.ERROR, str(error))
    span.set_attribute("error.type", name)
    return name


def context_of(headers: Encoded) -> Context | None:
    """The context that a message carries, if there is one."""
    if not any(name.encode() in headers for name in propagate.get_global_textmap().fields):
        return None
    carrier: Mapping[str, str] = {
        name: value.decode(errors="replace") for name, value in kernel.headers_unpack(headers) if value is not None
    }
    found = propagate.extract(carrier, Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def link_of(headers: Encoded) -> Link | None:
    found = context_of(headers)
    return None if found is None else Link(trace.get_current_span(found).get_span_context())


def links_of(headers: Iterable[Encoded]) -> list[Link]:
    found: list[Link] = []
    for own in headers:
        link = link_of(own)
        if link is not None:
            found.append(link)
        if len(found) == LINKS_MAX:
            break
    return found


def parent_of(headers: Sequence[Encoded]) -> Context | None:
    """The current context; if there is no span in it and one message, that of the message."""
    if len(headers) != 1 or trace.get_current_span().get_span_context().is_valid:
        return None
    found = context_of(headers[0])
    if found is None:
        return None
    span = trace.get_current_span(found)
    return trace.set_span_in_context(span, contexts.get_current())


def _pairs(context: Context) -> Pairs:
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    pairs: list[tuple[str, str]] = []
    room = CONTEXT_BYTES_MAX
    for name, value in carrier.items():  # the span first: baggage may be large
        room -= len(name) + len(value.encode())
        if room < 0:
            break
        pairs.append((name, value))
    return pairs


def with_pairs(own: Encoded, pairs: Pairs) -> Encoded:
    """These headers and the context; without it if they are as many, or as large, as a message may have."""
    if not pairs:
        return own
    before = kernel.headers_unpack(own) if own else ()
    size = len(own) + sum(len(name) + len(value or "") for name, value in pairs)
    if len(before) + len(pairs) > limits.HEADERS_MAX or size > limits.HEADERS_BYTES_MAX:
        return own
    return kernel.headers_pack([*before, *pairs])


def without_context(headers: Sequence[Encoded] | None) -> Sequence[Encoded] | None:
    """The headers that are no context; None if that leaves none."""
    names = propagate.get_global_textmap().fields
    kept = [
        [pair for pair in (kernel.headers_unpack(own) if own else ()) if pair[0] not in names] for own in headers or ()
    ]
    return [kernel.headers_pack(pairs) if pairs else b"" for pairs in kept] if any(kept) else None


def as_given(headers: Encoded) -> HeadersGiven | None:
    """For a call that takes headers as users give them."""
    return kernel.headers_unpack(headers) if headers else None
