"""Receives OTLP over HTTP as a collector does: decodes the requests with opentelemetry-proto, keeps the spans and the names of metrics.

No registry has a build of the OpenTelemetry Collector, and to compile it takes a quarter of an hour, so this is the other end of the
real exporter in tests. It shares nothing with it but the published schema. test_real_collector.py has the real one.
"""

import gzip
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

WAIT_S = 60.0
LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Received:
    """One span as the collector sees it."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begin_ns: int
    end_ns: int
    kind: int
    state: str
    failed: bool
    attributes: dict[str, object]
    resource: dict[str, object]


class Collector:
    """What arrived so far."""

    def __init__(self) -> None:
        self.url = ""
        self._lock = threading.Lock()
        self._spans: list[Received] = []
        self.metrics: frozenset[str] = frozenset()
        self.refuses = False  # requests, with a status that is not tried again

    @property
    def spans(self) -> list[Received]:
        with self._lock:
            return list(self._spans)

    def of(self, trace_id: str) -> list[Received]:
        return [span for span in self.spans if span.trace_id == trace_id]

    def wait_for(self, found: Callable[[list[Received]], bool]) -> list[Received]:
        """All spans, once they are what is waited for."""
        until = time.monotonic() + WAIT_S
        while not found(spans := self.spans):
            assert time.monotonic() < until, f"waited for {WAIT_S} s; there are {sorted(span.name for span in spans)}"
            time.sleep(LOOK_EVERY_S)
        return spans

    def take_metrics(self, body: bytes) -> None:
        request = ExportMetricsServiceRequest.FromString(body)
        scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
        with self._lock:
            self.metrics |= {metric.name for scope in scopes for metric in scope.metrics}

    def take_spans(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        taken = []
        for resource in request.resource_spans:
            about = _plain(resource.resource.attributes)
            for scope in resource.scope_spans:
                taken += [_received(span, about) for span in scope.spans]
        with self._lock:
            self._spans += taken


def _received(span: Span, about: dict[str, object]) -> Received:
    return Received(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        begin_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        kind=span.kind,
        state=span.trace_state,
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        attributes=_plain(span.attributes),
        resource=about,
    )


def _plain(pairs: Iterable[KeyValue]) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a port of its own."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            take = {"/v1/traces": collector.take_spans, "/v1/metrics": collector.take_metrics}.get(self.path)
            if take and self.headers["content-type"] == "application/x-protobuf" and not collector.refuses:
                take(body)
                self.send_response(200)
            else:
                self.send_response(400)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")  # a response without fields
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        collector.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
