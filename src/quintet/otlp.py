"""Exports the broker's spans to an OpenTelemetry collector (OTLP over HTTP, protobuf), on a thread of its own.

    Traces --put--> bounded queue --thread: OpenTelemetry's SDK--> OTLP exporter --> collector

The loop only appends to the queue. The SDK is loaded by the thread, after the start. A collector that does not answer costs the
broker nothing but the queue: what comes above `queue_spans_max` is dropped and counted, the failure is reported once, and so is the
end of it. Ids and times of spans are those that Traces gave them.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from quintet import __version__
from quintet.broker.sections import TelemetrySection
from quintet.delivery.traces import Span
from quintet.model.extras import PackageMissing, absent, install

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

EXTRA: Final = "otel"
SPANS_PER_EXPORT_MAX: Final = 512
GATHER_S: Final = 0.2  # after the first span: others share its request
EXPORT_TIMEOUT_S: Final = 5.0  # of one request, with the exporter's own retries
RETRY_S: Final = 5.0  # after a failed one, before the next
CLOSE_S: Final = 2.0  # for what is queued when the broker stops

Report = Callable[[str, dict[str, object]], None]


def check_installed() -> None:
    """PackageMissing if the packages for it are not installed. Loads none of them."""
    packages = absent(EXTRA)
    if packages:
        raise PackageMissing(
            f"telemetry.endpoint needs {', '.join(packages)}, which are not installed", hint=install(EXTRA)
        )


class SpanQueue:
    """Spans on their way to the collector. `put` is for the loop; `report` is called from the thread."""

    def __init__(self, options: TelemetrySection, report: Report, instance: str) -> None:
        self._options = options
        self._report = report
        self._instance = instance
        self._queue: deque[Span] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._failing = False
        self.exported = 0
        self.dropped = 0
        self._translation: _Translation | None = None
        self._thread = threading.Thread(target=self._run, name="quintet-otlp", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        if len(self._queue) >= self._options.queue_spans_max:
            self.dropped += 1
            return
        self._queue.append(span)
        if not self._wake.is_set():
            self._wake.set()

    def close(self) -> None:
        """Send what is queued, for CLOSE_S at most. Blocks: not for the loop."""
        self._stopping.set()
        self._wake.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive() and self._translation is not None:
            self._translation.exporter.shutdown()  # ends the wait of its retries

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._stopping.wait(GATHER_S)
            self._wake.clear()
            while self._queue:
                self._export()
                if self._failing and self._stopping.is_set():
                    return
                if self._failing:
                    self._stopping.wait(RETRY_S)
            if self._stopping.is_set():  # it is set before the thread is woken for it
                return

    def _export(self) -> None:
        count = min(len(self._queue), SPANS_PER_EXPORT_MAX)
        spans = [self._queue.popleft() for _ in range(count)]
        try:
            if self._translation is None:  # late: 0.25 s of processor time, which a start does not wait for
                self._translation = _Translation(self._options, self._instance)
            error = self._translation.export(spans)
        except (
            Exception
        ) as fault:  # also what nobody expected (a variable of OpenTelemetry that is no number): the thread goes on
            error = repr(fault)
        if not error:
            self.exported += count
            if self._failing:
                self._failing = False
                self._report("telemetry_resumed", {"endpoint": self._options.url, "dropped_spans": self.dropped})
            return
        self.dropped += count
        if not self._failing:
            self._failing = True
            hint = "the broker goes on; spans are dropped until the collector takes them again"
            self._report("telemetry_unreachable", {"endpoint": self._options.url, "error": error, "hint": hint})


class _Translation:
    """Our spans as those of the SDK. Used by one thread."""

    def __init__(self, options: TelemetrySection, instance: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        ended: list[ReadableSpan] = []

        class Given(RandomIdGenerator):
            """Gives a span the id that it has already."""

            span_id = 0

            def generate_span_id(self) -> int:
                return self.span_id

        class Collected(SpanProcessor):
            def on_end(self, span: "ReadableSpan") -> None:
                ended.append(span)

        self._trace = trace
        self._success = SpanExportResult.SUCCESS
        self._ended = ended
        self._ids = Given()
        self._said: list[str] = []
        self.exporter: SpanExporter = OTLPSpanExporter(endpoint=options.url, timeout=EXPORT_TIMEOUT_S)
        self._listen_to_the_exporter()
        about = {
            "service.name": options.service_name,
            "service.version": __version__,
            "service.instance.id": instance,
        }
        provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(about),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(Collected())
        self._tracer = provider.get_tracer("quintet.broker", __version__)

    def _listen_to_the_exporter(self) -> None:
        """The SDK says why an export failed in its log only: that line becomes the broker's own report, and goes nowhere else."""
        said = self._said

        class Said(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if not said:  # the first says it
                    said.append(record.getMessage())

        theirs = logging.getLogger("opentelemetry")
        theirs.addHandler(Said(logging.WARNING))
        theirs.propagate = False

    def export(self, spans: list[Span]) -> str:
        """Why it failed; empty if it did not."""
        self._said.clear()
        for span in spans:
            self._end(span)
        made = self._ended[:]
        self._ended.clear()
        if self.exporter.export(made) is self._success:
            return ""
        return self._said[0] if self._said else "the collector refused it"

    def _end(self, span: Span) -> None:
        trace, own = self._trace, span.context
        state = trace.TraceState.from_header([own.state] if own.state else [])
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        parent = trace.SpanContext(own.trace_id, span.parent_id, True, flags, state)
        self._ids.span_id = own.span_id
        made = self._tracer.start_span(
            span.name,
            trace.set_span_in_context(trace.NonRecordingSpan(parent)),
            attributes=span.attributes,
            start_time=span.begin * 1000,
        )
        if span.error:
            made.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        made.end(span.end * 1000)
