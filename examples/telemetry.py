"""Publish by BlipMQ, read by FlyMQ, and export spans and metrics to an OpenTelemetry collector: one trace. It prints the trace's id.

    python examples/telemetry.py [PUBLISHER_URL [READER_URL]]

OTEL_EXPORTER_OTLP_ENDPOINT names the collector, OTEL_SERVICE_NAME this program. docs/TELEMETRY.md has the rest.
"""

import sys

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

import quintet


def main(publisher_url: str, reader_url: str) -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    telemetry = quintet.Telemetry(tracers, meters)
    tracer = tracers.get_tracer("examples.telemetry")
    with (
        quintet.sync.connect(publisher_url, telemetry=telemetry) as bus,
        tracer.start_as_current_span("register parcel") as span,
    ):
        bus.publish("parcels", {"id": 7})
    with (
        quintet.sync.connect(reader_url, telemetry=telemetry) as bus,
        bus.subscribe("parcels", group="depot", start="earliest") as parcels,
        parcels.get().process(),
    ):
        pass  # the work
    tracers.shutdown()  # exports what is left
    meters.shutdown()
    print(f"{span.get_span_context().trace_id:032x}")


if __name__ == "__main__":
    given = sys.argv[1:]
    defaults = ["blipmq://:dev-key@127.0.0.1:5555", "flymq://admin:admin@127.0.0.1:9092"]
    main(*given, *defaults[len(given) :])
