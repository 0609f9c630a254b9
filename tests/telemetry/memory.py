"""Keeps the client's spans and metrics in memory: the SDK with its own in-memory exporter and reader."""

from collections.abc import Mapping

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

import quintet


class Memory:
    """The providers of a process, and what they were told."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = quintet.Telemetry(self.tracers, self.meters)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        found = self.all(name)
        assert len(found) == 1, f"{len(found)} spans {name!r} among {[span.name for span in self.spans]}"
        return found[0]

    def counts(self) -> dict[str, list[tuple[Mapping[str, object], int | float]]]:
        """Of each metric its series: attributes, and the sum of a counter or the number of values in a histogram."""
        found: dict[str, list[tuple[Mapping[str, object], int | float]]] = {}
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        assert isinstance(point, NumberDataPoint | HistogramDataPoint)
                        value = point.value if isinstance(point, NumberDataPoint) else point.count
                        found.setdefault(metric.name, []).append((point.attributes or {}, value))
        return found


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def parent_id(span: ReadableSpan) -> str:
    return f"{span.parent.span_id:016x}" if span.parent is not None else ""


def about(span: ReadableSpan) -> Mapping[str, object]:
    return span.attributes or {}
