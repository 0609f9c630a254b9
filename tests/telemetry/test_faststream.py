"""FastStream's own telemetry middleware on a QuintetBroker: one trace from publisher to handler, and into the broker."""

import asyncio

from quintet.faststream import QuintetBroker
from quintet.faststream.opentelemetry import QuintetTelemetryMiddleware
from tests.client.server import Server
from tests.telemetry.collector import Collector
from tests.telemetry.memory import Memory, about, span_id, trace_id

WAIT_S = 60.0
TOPIC = "fs/traced"


async def test_a_handler_is_in_the_trace_of_its_publisher(server: Server, collector: Collector) -> None:
    memory = Memory()
    told = asyncio.Event()
    middleware = QuintetTelemetryMiddleware(tracer_provider=memory.tracers, meter_provider=memory.meters)
    broker = QuintetBroker(server.url, middlewares=[middleware], logger=None)

    @broker.subscriber(TOPIC)
    async def handle(body: str) -> None:
        told.set()

    async with broker, asyncio.timeout(WAIT_S):
        await broker.start()
        await broker.publish("hello", TOPIC)
        await told.wait()
    publish, process = memory.one(f"{TOPIC} publish"), memory.one(f"{TOPIC} process")
    assert trace_id(publish) == trace_id(process)
    assert about(process)["messaging.system"] == "quintet" and about(publish)["messaging.destination.name"] == TOPIC
    wanted = {f"{what} {TOPIC}" for what in ("append", "fsync", "deliver")}
    spans = await asyncio.to_thread(collector.wait_for, lambda spans: wanted <= {span.name for span in spans})
    spans = [span for span in spans if span.name.endswith(f" {TOPIC}")]
    assert {span.trace_id for span in spans} == {trace_id(publish)}
    assert {span.parent_id for span in spans if span.name == f"append {TOPIC}"} == {
        span_id(memory.one(f"{TOPIC} create"))
    }
