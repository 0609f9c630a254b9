"""Without telemetry nothing of OpenTelemetry is loaded; with it, a missing package is named and a dead collector harms nobody."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

import quintet
from quintet import otlp
from quintet.broker.sections import TelemetrySection
from quintet.config import Settings
from quintet.delivery.traces import Context, Span
from quintet.model.errors import ConfigError
from quintet.model.extras import PackageMissing
from quintet.otlp import SpanQueue, check_installed
from tests.client.server import Server, running
from tests.telemetry.collector import LOOK_EVERY_S, WAIT_S, Received, collecting

CLIENT = """
import asyncio, sys
import quintet

async def main(url, telemetry):
    async with quintet.connect(url, telemetry=telemetry) as bus, bus.subscribe("off") as subscription:
        await bus.publish("off", b"x", headers={"traceparent": "00-" + "1" * 32 + "-" + "1" * 16 + "-01"})
        await (await subscription.get(timeout=30)).ack()

asyncio.run(main(sys.argv[1], sys.argv[2] == "on" or None))
print(sum(name.partition(".")[0] == "opentelemetry" for name in sys.modules))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Its collector is a port on which nobody listens, and which nobody else is given."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with running(
            QUINTET_TELEMETRY__ENDPOINT=url, QUINTET_TELEMETRY__QUEUE_SPANS_MAX="8", QUINTET_LOG__FORMAT="json"
        ) as found:
            yield found


def span(number: int) -> Span:
    return Span(f"append {number}", Context(1 + number, 2), 3, 1_000_000, 2_000_000, {"a": number}, "")


@pytest.mark.parametrize(("telemetry", "loads"), [("off", False), ("on", True)])
def test_a_client_loads_it_only_if_asked(server: Server, telemetry: str, loads: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server.url, telemetry], capture_output=True, text=True, check=True, timeout=100
    )
    assert (int(done.stdout) > 0) is loads


def test_the_client_names_the_extra(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "quintet.client.traced", raising=False)
    monkeypatch.delitem(sys.modules, "quintet.client.spans", raising=False)
    with pytest.raises(PackageMissing, match=r"quintet\[otel\]"):
        quintet.connect(server.url, telemetry=True)


def test_a_broker_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with pytest.raises(PackageMissing, match=r"opentelemetry-sdk.*quintet\[otel\]"):
        check_installed()


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://x", "http://", "http://a b"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="telemetry"):
        Settings.load(None, {"QUINTET_TELEMETRY__ENDPOINT": url}, {})


def test_the_path_is_that_of_the_protocol_unless_given() -> None:
    assert TelemetrySection(endpoint="http://c:4318").url == "http://c:4318/v1/traces"
    assert TelemetrySection(endpoint="http://c:4318/").url == "http://c:4318/v1/traces"
    assert TelemetrySection(endpoint="https://c/otlp/v1/traces").url == "https://c/otlp/v1/traces"


async def test_a_dead_collector_is_said_once_and_harms_nobody(server: Server) -> None:
    sampled = {"traceparent": f"00-{7:032x}-{8:016x}-01"}
    async with quintet.connect(server.fly) as bus:
        for _ in range(50):
            await bus.publish("dead", b"x", headers=sampled)
        assert len(await bus.fetch("dead", max=100)) == 50
        await asyncio.to_thread(until, lambda: bool(said(server)))
        before = dropped(server)
        while dropped(server) < before + 50:
            await bus.publish("dead", b"x", headers=sampled)
    (line,) = said(server)
    assert line["event"] == "telemetry_unreachable" and line["level"] == "warning"


def said(server: Server) -> list[dict[str, str]]:
    """All that the broker's log has of it, also by the SDK itself."""
    lines = [line for line in (server.folder / "server.log").read_text().splitlines() if line.startswith("{")]
    return [json.loads(line) for line in lines if "telemetry" in line or "Transient" in line or "export" in line]


def dropped(server: Server) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.ports['admin']}/metrics", timeout=WAIT_S) as answer:
        text = answer.read().decode()
    (found,) = [line for line in text.splitlines() if line.startswith("quintet_telemetry_spans_dropped_total ")]
    return int(float(found.rpartition(" ")[2]))


def test_a_collector_that_comes_back_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "RETRY_S", 0.01)
    monkeypatch.setattr(otlp, "CLOSE_S", WAIT_S)
    reports: list[tuple[str, dict[str, object]]] = []
    with collecting() as collector:
        collector.refuses = True
        queue = SpanQueue(TelemetrySection(endpoint=collector.url), lambda *said: reports.append(said), "i")
        for number in (1, 2):  # the second failure is not told
            queue.put(span(number))
            until(lambda number=number: queue.dropped == number)  # type: ignore[misc]
        collector.refuses = False
        queue.put(span(3))
        queue.close()
        (got,) = collector.spans
    assert [event for event, _ in reports] == ["telemetry_unreachable", "telemetry_resumed"]
    assert "400" in str(reports[0][1]["error"]) and reports[1][1]["dropped_spans"] == 2 and queue.exported == 1
    times = (10**9, 2 * 10**9)
    assert got == Received(
        "append 3", f"{4:032x}", f"{2:016x}", f"{3:016x}", *times, 1, "", False, {"a": 3}, got.resource
    )
    assert got.resource["service.name"] == "quintet" and got.resource["service.instance.id"] == "i"


def test_the_queue_is_bounded_and_close_sends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "CLOSE_S", WAIT_S)
    with collecting() as collector:
        queue = SpanQueue(TelemetrySection(endpoint=collector.url, queue_spans_max=3), lambda *_: None, "i")
        queue._queue.extend(map(span, range(3)))  # without waking the thread, which would take them
        for number in range(7):
            queue.put(span(number))
        assert queue.dropped == 7
        queue.close()
        assert len(collector.spans) == queue.exported == 3


def until(found: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < end
        time.sleep(LOOK_EVERY_S)
