"""`/metrics`: the broker's plain counters in Prometheus text, turned into families only when somebody asks.

The line counts with ints in its own objects (63 ns) and never touches prometheus-client (453 ns and more a count);
server.py lists them as families here. Names start with quintet_, are in base units, and counters end in _total.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

_NAME: Final = re.compile(r"quintet_[a-z][a-z0-9_]*")
# Units promtool's linter asks not to be used: seconds and bytes are the base ones.
_NOT_BASE: Final = ("_ms", "_us", "_milliseconds", "_microseconds", "_minutes", "_kib", "_mib", "_kilobytes")


class Family(NamedTuple):
    """One metric with all its label sets. Every sample has the same label names."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    """Of a histogram: how many there were up to each bound, with the bound as label `le` ("+Inf" last); its sum is `total`."""
    total: float = 0.0


class MetricsSource(Protocol):
    """Implemented by server.py."""

    def families(self) -> Sequence[Family]:
        """Every metric as it stands now."""


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


def check_name(family: Family) -> None:
    """Our fault if it fails: names are fixed in server.py."""
    assert _NAME.fullmatch(family.name), f"{family.name}: metric names are quintet_ and lower case"
    assert (family.kind == "counter") == family.name.endswith("_total"), (
        f"{family.name}: counters, and only they, end in _total"
    )
    assert not family.name.removesuffix("_total").endswith(_NOT_BASE), f"{family.name}: use seconds and bytes"
    assert family.help, f"{family.name}: metrics need a help text"


class Exposition:
    """Renders a source in the text format the asker prefers."""

    def __init__(self, source: MetricsSource) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(FamilyCollector(source))

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type) for an Accept header."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
