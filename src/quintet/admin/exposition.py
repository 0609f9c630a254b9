"""Renders the families of metrics.py as Prometheus text, or as protobuf if the scraper prefers it. app.py loads this file with
the first `/metrics`."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from quintet.admin import protobuf
from quintet.admin.metrics import Family, MetricsSource, check_name


class FamilyCollector(Collector):
    """A prometheus-client collector over a MetricsSource."""

    def __init__(self, source: MetricsSource) -> None:
        self.source = source

    def collect(self) -> Iterator[Metric]:
        for family in self.source.families():
            check_name(family)
            if family.kind == "histogram":
                yield _histograms(family)
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


def _histograms(family: Family) -> HistogramMetricFamily:
    names = sorted(family.histograms[0][0]) if family.histograms else []
    made = HistogramMetricFamily(family.name, family.help, labels=names)
    for values, found in family.histograms:
        bounds = (*(f"{bound:g}" for bound in found.cells.bounds), "+Inf")
        buckets = list(zip(bounds, found.cells.classic(found.counts), strict=True))
        made.add_metric([values[name] for name in names], buckets, found.seconds)
    return made


class Exposition:
    """Renders a source in the format the asker prefers."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(FamilyCollector(source))
        # process_cpu_seconds_total, process_resident_memory_bytes, open files
        self._process = ProcessCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) for an Accept header."""
        if protobuf.wanted(accept):
            ours = [protobuf.encode(family) for family in self._source.families()]
            return b"".join([*ours, *map(protobuf.encode_metric, self._process.collect())]), protobuf.CONTENT_TYPE
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
