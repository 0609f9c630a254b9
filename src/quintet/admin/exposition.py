"""Renders the families of metrics.py as Prometheus text. app.py loads this file with the first `/metrics`."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from quintet.admin.metrics import MetricsSource, check_name


class FamilyCollector(Collector):
    """A prometheus-client collector over a MetricsSource."""

    def __init__(self, source: MetricsSource) -> None:
        self.source = source

    def collect(self) -> Iterator[Metric]:
        for family in self.source.families():
            check_name(family)
            if family.kind == "histogram":
                buckets = [(labels["le"], count) for labels, count in family.samples]
                yield HistogramMetricFamily(family.name, family.help, buckets, family.total)
                continue
            labels = sorted(family.samples[0][0]) if family.samples else []
            made: CounterMetricFamily | GaugeMetricFamily
            if family.kind == "counter":
                made = CounterMetricFamily(family.name, family.help, labels=labels)
            else:
                made = GaugeMetricFamily(family.name, family.help, labels=labels)
            for values, value in family.samples:
                assert sorted(values) == labels, f"{family.name}: samples with different labels"
                made.add_metric([values[label] for label in labels], value)
            yield made


class Exposition:
    """Renders a source in the text format the asker prefers."""

    def __init__(self, source: MetricsSource) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(FamilyCollector(source))

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) for an Accept header."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
