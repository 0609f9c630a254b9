"""The client's spans, links, context and metrics, by the SDK's in-memory exporter, against a real broker."""

import asyncio
import threading
from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator, default_getter, default_setter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import quintet
from quintet.client.bus import Bus
from quintet.client.core.errors import TooLarge
from quintet.client.core.message import Message
from quintet.client.spans import CONTEXT_BYTES_MAX, CREATES_MAX
from quintet.client.traced import TracedBus
from quintet.model import limits
from tests.client.fake import FakeServer
from tests.client.server import Server
from tests.telemetry.memory import Memory, about, parent_id, span_id, trace_id
from tests.wire.blipmq import PUBLISH

WAIT_S = 60.0
DURATION = "messaging.client.operation.duration"


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


async def test_a_message_in_spans(server: Server, memory: Memory, topic: str) -> None:
    async with (
        quintet.connect(server.fly, telemetry=memory.telemetry, name="till-3") as bus,
        bus.subscribe(topic, group="billing", start="earliest") as subscription,
    ):
        ack = await bus.publish(topic, b"four", headers={"shop": "7"})
        message = await subscription.get()
        assert message.headers["shop"] == b"7"
        async with message.process():
            pass
    send, receive = memory.one(f"send {topic}"), memory.one(f"receive {topic}")
    process, settle = memory.one(f"process {topic}"), memory.one(f"ack {topic}")
    assert [span.kind for span in (send, receive, process, settle)] == [
        SpanKind.PRODUCER, SpanKind.CLIENT, SpanKind.CONSUMER, SpanKind.CLIENT,
    ]  # fmt: skip
    assert {trace_id(span) for span in memory.spans} == {trace_id(send)}, "one trace"
    assert parent_id(send) == "" and parent_id(settle) == span_id(process)
    assert parent_id(receive) == parent_id(process) == span_id(send)
    for span in (receive, process):
        assert [f"{link.context.span_id:016x}" for link in span.links] == [span_id(send)]
    place = {"messaging.destination.partition.id": "0", "messaging.message.id": f"{topic}/0/{ack.offset}"}
    common = {
        "messaging.system": "quintet",
        "messaging.destination.name": topic,
        "messaging.client.id": "till-3",
        "server.address": "127.0.0.1",
        "server.port": server.ports["flymq"],
    }
    reads = common | {"messaging.consumer.group.name": "billing"}
    assert about(send) == common | place | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.body.size": 4,
    }
    for span, name, kind in ((receive, "receive", "receive"), (process, "process", "process")):
        expected = reads | place | {"messaging.operation.name": name, "messaging.operation.type": kind}
        assert about(span) == expected
    assert about(settle) == reads | {"messaging.operation.name": "ack", "messaging.operation.type": "settle"}
    carried = message.headers.text("traceparent")
    assert carried[:-2] == f"00-{trace_id(send)}-{span_id(send)}-" and int(carried[-2:], 16) & 1


async def test_metrics_have_the_conventions_names(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        await bus.publish(topic, b"a")
        await bus.publish_batch(topic, [b"b", b"c"])
        async with (await subscription.get()).process():
            pass
        batch = await subscription.get_batch(max=2)
        await batch.ack()
    counts = memory.counts()
    assert sum(value for _, value in counts["messaging.client.sent.messages"]) == 3
    assert sum(value for _, value in counts["messaging.client.consumed.messages"]) == 3
    assert sum(value for _, value in counts["messaging.process.duration"]) == 1
    names = {series["messaging.operation.name"]: value for series, value in counts[DURATION]}
    assert names == {"send": 2, "receive": 2, "ack": 2}
    for series, _ in [pair for found in counts.values() for pair in found]:
        assert series["messaging.system"] == "quintet" and series["messaging.destination.name"] == topic


async def test_a_batch_has_a_span_for_each_message_and_links(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        await bus.publish_batch(topic, [b"a", b"b", b"c"])
        batch = await subscription.get_batch(max=3)
        async with batch.process():
            pass
    creates, send = memory.all(f"create {topic}"), memory.one(f"send {topic}")
    assert [span.kind for span in creates] == [SpanKind.PRODUCER] * 3 and send.kind is SpanKind.CLIENT
    ids = [span_id(span) for span in creates]
    for name in ("send", "receive", "process"):
        span = memory.one(f"{name} {topic}")
        assert [f"{link.context.span_id:016x}" for link in span.links] == ids
        assert about(span)["messaging.batch.message_count"] == 3
    carried = [message.headers.text("traceparent") for message in batch]
    assert [one.split("-")[2] for one in carried] == ids


async def test_a_large_batch_shares_the_context_of_its_send(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        await bus.publish_batch(topic, [b"x"] * (CREATES_MAX + 1))
        message = await subscription.get()
    send = memory.one(f"send {topic}")
    assert memory.all(f"create {topic}") == [] and send.kind is SpanKind.PRODUCER
    assert message.headers.text("traceparent").split("-")[2] == span_id(send)


async def test_each_sender_of_a_producer_has_its_own_trace(server: Server, memory: Memory, topic: str) -> None:
    tracer = memory.tracers.get_tracer("test")
    async with quintet.connect(server.fly, telemetry=memory.telemetry) as bus:
        async with bus.producer(topic) as producer:
            for name in ("one", "two"):
                with tracer.start_as_current_span(name):
                    producer.send(name, headers=iter([("who", name)]))
        batch = await bus.fetch(topic)
    creates, send = memory.all(f"create {topic}"), memory.one(f"send {topic}")
    assert [trace_id(span) for span in creates] == [trace_id(memory.one("one")), trace_id(memory.one("two"))]
    assert [f"{link.context.span_id:016x}" for link in send.links] == [span_id(span) for span in creates]
    assert parent_id(send) == "", "it is of none of them"
    assert [message.headers.text("who") for message in batch] == ["one", "two"]
    assert [message.headers.text("traceparent").split("-")[2] for message in batch] == [span_id(s) for s in creates]
    assert len(memory.one(f"receive {topic}").links) == 2, "of bus.fetch"


async def test_an_idempotent_producer_and_a_transaction_carry_it(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.fly, telemetry=memory.telemetry) as bus:
        async with bus.producer(topic, idempotent=True) as producer:
            producer.send(b"a")
        async with bus.transaction() as transaction:
            await transaction.publish(topic, b"b", headers={"a": "b"})
        await bus.publish(topic, b"c", schema=None, delay=0.0)
        batch = await bus.fetch(topic, max=3, wait=WAIT_S)
        while len(batch) < 3:
            batch = await bus.fetch(topic, max=3, wait=0.1)
    carried = {message.headers.text("traceparent").split("-")[2] for message in batch}
    sent = {span_id(span) for span in (*memory.all(f"create {topic}"), *memory.all(f"send {topic}"))}
    assert len(carried) == 3 and carried <= sent


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "thread"])
async def test_a_handler_runs_inside_its_span(server: Server, memory: Memory, topic: str, plain: bool) -> None:
    seen: list[trace.SpanContext] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def handle(message: Message) -> None:
        seen.append(trace.get_current_span().get_span_context())
        await bus.publish(f"{topic}/next", message.value)
        done.set()

    def handle_in_thread(message: Message) -> None:
        assert threading.current_thread().name.startswith("quintet-consumer")
        seen.append(trace.get_current_span().get_span_context())
        loop.call_soon_threadsafe(done.set)

    chosen = handle_in_thread if plain else handle
    async with (
        quintet.connect(server.url, telemetry=memory.telemetry) as bus,
        bus.consumer(topic, chosen, workers=2),
        asyncio.timeout(WAIT_S),
    ):
        await bus.publish(topic, b"x")
        await done.wait()
    send, process = memory.one(f"send {topic}"), memory.one(f"process {topic}")
    assert f"{seen[0].span_id:016x}" == span_id(process) and parent_id(process) == span_id(send)
    assert memory.all(f"receive {topic}") == [], "nobody asked for it"
    assert trace_id(memory.one(f"ack {topic}")) == trace_id(send)
    if not plain:
        assert parent_id(memory.one(f"send {topic}/next")) == span_id(process)


async def test_failures_are_on_the_spans_and_in_the_series(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        await bus.publish(topic, b"x")
        async with (await subscription.get()).process():
            raise ArithmeticError("seven")
        with pytest.raises(quintet.errors.Timeout):
            await bus.publish(topic, b"y", timeout=0.0)
    process = memory.one(f"process {topic}")
    assert process.status.status_code is StatusCode.ERROR and about(process)["error.type"] == "ArithmeticError"
    assert [event.name for event in process.events] == ["exception"]
    assert about(memory.one(f"nack {topic}"))["messaging.operation.type"] == "settle"
    failed = memory.all(f"send {topic}")[-1]
    assert about(failed)["error.type"] == "Timeout" and failed.status.status_code is StatusCode.ERROR
    counts = memory.counts()
    assert [series["error.type"] for series, _ in counts["messaging.process.duration"]] == ["ArithmeticError"]
    sent = {series.get("error.type"): value for series, value in counts["messaging.client.sent.messages"]}
    assert sent == {None: 1, "Timeout": 1}


async def test_a_context_that_is_there_is_kept_and_linked(server: Server, memory: Memory, topic: str) -> None:
    given = f"00-{5:032x}-{6:016x}-01"
    async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        await bus.publish(topic, b"x", headers={"traceparent": given})
        message = await subscription.get()
    assert message.headers.all("traceparent") == [given.encode()]
    assert [link.context.span_id for link in memory.one(f"send {topic}").links] == [6]
    assert trace_id(memory.one(f"receive {topic}")) == f"{5:032x}"


async def test_an_unsampled_trace_stays_unsampled(server: Server, topic: str) -> None:
    memory = Memory(ALWAYS_OFF)
    async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        await bus.publish(topic, b"x")
        message = await subscription.get()
    assert memory.spans == [] and not int(message.headers.text("traceparent")[-2:], 16) & 1


async def test_a_message_as_large_as_it_may_be_is_sent(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        headers = {f"h{number}": "" for number in range(limits.HEADERS_MAX)}
        await bus.publish(topic, b"x", headers=headers)
        assert len((await subscription.get()).headers) == limits.HEADERS_MAX, "no room for a context: none is sent"
        most = bus._value_bytes_max(topic)
        assert most == Bus._value_bytes_max(bus, topic) - CONTEXT_BYTES_MAX
        with pytest.raises(TooLarge):
            await bus.publish(topic, b"x" * (most + 1))


async def test_requests_and_replies_are_one_trace(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.fly, telemetry=memory.telemetry) as bus:

        async def answer(request: Message) -> str:
            return request.text() * 2

        async with bus.responder(topic, answer):
            assert (await bus.ask(topic, "ab", timeout=WAIT_S)).text() == "abab"
    ask, reply = memory.one(f"send {topic}"), memory.one("send (temporary)")
    assert trace_id(reply) == trace_id(ask) and about(reply)["messaging.destination.temporary"] is True
    for series, _ in memory.counts()["messaging.client.sent.messages"]:
        assert "reply/" not in str(series.get("messaging.destination.name")), "a name of its own for each asker"


def test_the_blocking_twin(server: Server, memory: Memory, topic: str) -> None:
    tracer = memory.tracers.get_tracer("test")
    with quintet.sync.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
        with tracer.start_as_current_span("job"):
            bus.publish(topic, b"x")
        with subscription.get().process():
            pass
    send, process = memory.one(f"send {topic}"), memory.one(f"process {topic}")
    assert parent_id(send) == span_id(memory.one("job")), "the span of the calling thread"
    assert parent_id(process) == span_id(send) and parent_id(memory.one(f"ack {topic}")) == span_id(process)


async def test_instrument_is_for_all_buses_from_then_on(server: Server, memory: Memory, topic: str) -> None:
    async with quintet.connect(server.url) as before:
        quintet.instrument(tracer_provider=memory.tracers, meter_provider=memory.meters)
        try:
            async with quintet.connect(server.url) as bus, quintet.connect(server.url, telemetry=False) as without:
                assert type(bus) is TracedBus and type(before) is type(without) is Bus
                for one in (before, bus, without):
                    await one.publish(topic, b"x")
        finally:
            quintet.uninstrument()
        assert len(memory.all(f"send {topic}")) == 1
        assert type(quintet.connect(server.url)) is Bus


async def test_another_propagator_of_the_process_is_used(server: Server, memory: Memory, topic: str) -> None:
    class Other(TextMapPropagator):
        """Writes the ids in one header of its own."""

        def inject(self, carrier: Any, context: Any = None, setter: Any = default_setter) -> None:
            found = trace.get_current_span(context).get_span_context()
            setter.set(carrier, "other", f"{found.trace_id:x}/{found.span_id:x}")

        def extract(self, carrier: Any, context: Any = None, getter: Any = default_getter) -> Any:
            (text,) = getter.get(carrier, "other") or ["0/0"]
            ids = [int(part, 16) for part in text.split("/")]
            remote = trace.SpanContext(ids[0], ids[1], True, trace.TraceFlags(1))
            return trace.set_span_in_context(trace.NonRecordingSpan(remote), context)

        @property
        def fields(self) -> set[str]:
            return {"other"}

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Other())
    try:
        async with quintet.connect(server.url, telemetry=memory.telemetry) as bus, bus.subscribe(topic) as subscription:
            await bus.publish(topic, b"x")
            message = await subscription.get()
    finally:
        propagate.set_global_textmap(before)
    assert list(message.headers) == ["other"]
    assert parent_id(memory.one(f"receive {topic}")) == span_id(memory.one(f"send {topic}"))


async def test_a_server_without_headers_is_sent_none(memory: Memory) -> None:
    async with FakeServer() as fake, quintet.connect(fake.url, telemetry=memory.telemetry) as bus:
        await bus.publish("t", b"a")
        async with bus.producer("t") as producer:
            producer.send(b"b")
        frames = [frame for peer in fake.peers for frame in peer.frames]
        assert len([frame for frame in frames if frame.kind == PUBLISH]) == 2, "frames that have no place for headers"
        with pytest.raises(quintet.errors.Unsupported):
            await bus.publish("t", b"c", headers={"own": "x"})
    assert len(memory.all("send t")) == 3
