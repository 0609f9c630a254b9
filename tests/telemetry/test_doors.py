"""One trace for one message through every pair of doors: the client's spans and the broker's, by a real OTLP exporter.

Each door publishes once and every door reads: 25 pairs. The topic is a mailbox of peerbus, because that door reads nothing else.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

import quintet
from quintet.client.core.url import ALL_DOORS
from quintet.client.links.fast import Queues
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.config import DEV_PEERBUS_SECRET
from tests.client.server import Server
from tests.interop.test_sockets import url_of
from tests.telemetry.collector import Collector, Received
from tests.telemetry.memory import Memory, parent_id, span_id, trace_id

TOPIC = "peerbus/bob"
DOORS = tuple(door for door in ALL_DOORS if door != "flight")
# How a door's acknowledgement is called; Fast has none.
SETTLED = {"blipmq": "ack", "felix": "ack", "flymq": "commit", "peerbus": "ack"}
WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, DEV_PEERBUS_SECRET)


async def through_all_doors(server: Server, memory: Memory) -> dict[str, str]:
    """The trace of each door's message; all were read and acknowledged through every door."""
    telemetry = memory.telemetry
    async with AsyncExitStack() as stack:
        async with quintet.connect(url_of(server, "fast")) as bus:
            await Queues(bus).create(TOPIC, durable=True)
        readers = {}
        for door in DOORS:
            reader = await stack.enter_async_context(quintet.connect(url_of(server, door, "bob"), telemetry=telemetry))
            options: dict[str, Any] = {"group": "readers", "start": "earliest"} if door == "flymq" else {}
            readers[door] = await stack.enter_async_context(reader.subscribe(TOPIC, **options))
        for door in DOORS:
            async with quintet.connect(url_of(server, door), telemetry=telemetry) as bus:
                await bus.publish(TOPIC, {"by": door})
        for subscription in readers.values():
            async with asyncio.timeout(WAIT_S):
                for _ in DOORS:
                    async with (await subscription.get()).process(reraise=True):
                        pass
                await subscription.flush()
    sends = memory.all(f"send {TOPIC}")
    assert len(sends) == len(DOORS)
    return {door: trace_id(span) for door, span in zip(DOORS, sends, strict=True)}


def complete(spans: list[Received], trace: str) -> bool:
    """Whether all that the broker does with one of these messages arrived."""
    names = [span.name.partition(" ")[0] for span in spans if span.trace_id == trace]
    ends = sum(names.count(what) for what in ("ack", "commit"))
    return names.count("deliver") >= len(DOORS) and ends >= len(SETTLED) and {"append", "fsync"} <= set(names)


def check(door: str, spans: list[Received], memory: Memory) -> None:
    """This trace is whole: publish, fsync, deliver, acknowledge, through every door."""
    (trace,) = {span.trace_id for span in spans}
    (send,) = [span for span in memory.all(f"send {TOPIC}") if trace_id(span) == trace]
    by_name: dict[str, list[Received]] = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
        assert span.resource["service.name"] == "shop"
        assert span.begin_ns <= span.end_ns
    (append,), (fsync,) = by_name[f"append {TOPIC}"], by_name[f"fsync {TOPIC}"]
    assert append.parent_id == span_id(send) and append.attributes["quintet.door"] == door
    assert fsync.parent_id == append.span_id
    delivered = {span.attributes["quintet.door"]: span for span in by_name[f"deliver {TOPIC}"]}
    assert set(delivered) == set(DOORS)
    for reader, deliver in delivered.items():
        assert deliver.parent_id == span_id(send)
        if reader in SETTLED:
            found = [span for span in by_name[f"{SETTLED[str(reader)]} {TOPIC}"] if span.parent_id == deliver.span_id]
            assert found, f"{reader} acknowledged it"
    processed = [span for span in memory.all(f"process {TOPIC}") if trace_id(span) == trace]
    assert [parent_id(span) for span in processed] == [span_id(send)] * len(DOORS)


async def test_one_trace_for_each_message_through_every_pair_of_doors(server: Server, collector: Collector) -> None:
    memory = Memory()
    traces = await through_all_doors(server, memory)
    assert len(set(traces.values())) == len(DOORS)
    spans = await asyncio.to_thread(
        collector.wait_for, lambda spans: all(complete(spans, trace) for trace in traces.values())
    )
    for door, trace in traces.items():
        check(door, [span for span in spans if span.trace_id == trace], memory)
    for lost in ("append", "fsync", "deliver", "commit"):  # a control: a trace that lacks one of them is found out
        some = [span for span in spans if span.trace_id == traces["flymq"] and not span.name.startswith(lost)]
        with pytest.raises((AssertionError, KeyError)):
            check("flymq", some, memory)


async def test_what_was_not_sampled_has_no_span(server: Server, collector: Collector) -> None:
    before = len(collector.spans)
    async with quintet.connect(server.fly) as bus, bus.subscribe("quiet", start="earliest") as subscription:
        await bus.publish("quiet", b"no header")
        await bus.publish("quiet", b"not sampled", headers={"traceparent": f"00-{7:032x}-{8:016x}-00"})
        for _ in range(2):
            await (await subscription.get()).ack()
        await bus.publish("quiet", b"sampled", headers={"traceparent": f"00-{9:032x}-{8:016x}-01"})
    spans = await asyncio.to_thread(collector.wait_for, lambda spans: any(s.name == "fsync quiet" for s in spans))
    assert {span.trace_id for span in spans[before:] if span.name.endswith(" quiet")} == {f"{9:032x}"}
