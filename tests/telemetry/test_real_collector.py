"""A real OpenTelemetry Collector, configured as docs/TELEMETRY.md says, takes what the example and a broker export: one trace across two
doors, and metrics by their names. QUINTET_TEST_OTELCOL names its program; otelcol.yaml, beside this file, says how to build one.

The same example also runs against the receiver that the other tests use (collector.py).
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.server import Server, running
from tests.telemetry.collector import Collector

ROOT = Path(__file__).parents[2]
VARIABLE = "QUINTET_TEST_OTELCOL"
BUILD = "go run go.opentelemetry.io/collector/cmd/builder@v0.161.0 --config tests/telemetry/otelcol.yaml"
WAIT_S = 120.0
# Each span of the trace, and the name of its parent.
TRACE = {
    "register parcel": "",
    "send parcels": "register parcel",
    "append parcels": "send parcels",
    "fsync parcels": "append parcels",
    "deliver parcels": "send parcels",
    "commit parcels": "deliver parcels",
    "receive parcels": "send parcels",
    "process parcels": "send parcels",
    "ack parcels": "process parcels",
}
METRICS = {
    "messaging.client.sent.messages",
    "messaging.client.consumed.messages",
    "messaging.client.operation.duration",
    "messaging.process.duration",
}


class RealCollector:
    """The program's address, and what it has written: requests of OTLP as JSON, one a line."""

    def __init__(self, url: str, file: Path) -> None:
        self.url = url
        self._file = file

    def _found(self, *path: str) -> Iterator[dict[str, Any]]:
        whole, newline, _ = (self._file.read_text() if self._file.exists() else "").rpartition("\n")
        for line in (whole + newline).splitlines():
            level = [json.loads(line)]
            for name in path:
                level = [inner for outer in level for inner in outer.get(name, ())]
            yield from level

    def parents(self, trace: str) -> dict[str, str]:
        """Of each span of the trace the name of its parent."""
        found = [span for span in self._found("resourceSpans", "scopeSpans", "spans") if span["traceId"] == trace]
        names = {span["spanId"]: span["name"] for span in found}
        return {span["name"]: names.get(span.get("parentSpanId", ""), "") for span in found}

    def doors(self, trace: str) -> dict[str, str]:
        """By which door the broker took and delivered the message."""
        return {
            span["name"]: attribute["value"]["stringValue"]
            for span in self._found("resourceSpans", "scopeSpans", "spans")
            if span["traceId"] == trace
            for attribute in span.get("attributes", ())
            if attribute["key"] == "quintet.door"
        }

    def metrics(self) -> set[str]:
        return {metric["name"] for metric in self._found("resourceMetrics", "scopeMetrics", "metrics")}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def real_collector(tmp_path: Path) -> Iterator[RealCollector]:
    program = os.environ.get(VARIABLE)
    if not program:
        pytest.skip(f"NO OPENTELEMETRY COLLECTOR: {VARIABLE} names none; to build one (Go; minutes): {BUILD}")
    said, port = tmp_path / "collector.log", free_port()
    (config,) = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs" / "TELEMETRY.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert "127.0.0.1:4318" in config
    assert "received.jsonl" in config  # a relative path: written where the program is started
    (tmp_path / "collector.yaml").write_text(config.replace("127.0.0.1:4318", f"127.0.0.1:{port}"))
    command = [str(ROOT / program), "--config", "collector.yaml"]
    with said.open("w") as log, subprocess.Popen(command, cwd=tmp_path, stderr=log) as process:
        try:
            until = time.monotonic() + WAIT_S
            while "Everything is ready" not in said.read_text():
                assert process.poll() is None and time.monotonic() < until, said.read_text()
                time.sleep(0.05)
            yield RealCollector(f"http://127.0.0.1:{port}", tmp_path / "received.jsonl")
        finally:
            process.terminate()


def run_example(server: Server, collector_url: str) -> str:
    """The trace's id."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "telemetry.py"), server.url, server.fly]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector_url}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_real_collector_shows_one_trace_across_two_doors(real_collector: RealCollector) -> None:
    with running(QUINTET_TELEMETRY__ENDPOINT=real_collector.url) as server:
        trace = run_example(server, real_collector.url)
        until = time.monotonic() + WAIT_S
        while real_collector.parents(trace) != TRACE or not real_collector.metrics() >= METRICS:
            assert time.monotonic() < until, (real_collector.parents(trace), real_collector.metrics())
            time.sleep(0.1)
    assert real_collector.doors(trace) == {
        "append parcels": "blipmq",
        "deliver parcels": "flymq",
        "commit parcels": "flymq",
    }


def test_the_example_is_one_trace_across_two_doors(server: Server, collector: Collector) -> None:
    trace = run_example(server, collector.url)
    collector.wait_for(lambda _: len(collector.of(trace)) >= len(TRACE))
    names = {span.span_id: span.name for span in collector.of(trace)}
    assert {span.name: names.get(span.parent_id, "") for span in collector.of(trace)} == TRACE
    assert collector.metrics >= METRICS
