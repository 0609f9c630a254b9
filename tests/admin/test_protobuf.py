"""The protobuf exposition of metrics: read back by protobuf's own library from the published layout, and by a real Prometheus."""

import math
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from quintet.admin import protobuf
from quintet.admin.metrics import Family
from quintet.client.blocking import sync
from quintet.model.histogram import BOUNDS_S, SCHEMA, Histogram
from quintet.net.turns import CELLS as TURN_CELLS
from tests.admin.prometheus import WAIT_S, scraping
from tests.client.server import running

PROMETHEUS = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
# Prometheus' metrics.proto, as far as we write it: message -> (name, number, type, repeated).
F = descriptor_pb2.FieldDescriptorProto
LAYOUT: dict[str, list[tuple[str, int, Any, bool]]] = {
    "LabelPair": [("name", 1, F.TYPE_STRING, False), ("value", 2, F.TYPE_STRING, False)],
    "Gauge": [("value", 1, F.TYPE_DOUBLE, False)],
    "Counter": [("value", 1, F.TYPE_DOUBLE, False)],
    "Bucket": [("cumulative_count", 1, F.TYPE_UINT64, False), ("upper_bound", 2, F.TYPE_DOUBLE, False)],
    "BucketSpan": [("offset", 1, F.TYPE_SINT32, False), ("length", 2, F.TYPE_UINT32, False)],
    "Histogram": [
        ("sample_count", 1, F.TYPE_UINT64, False), ("sample_sum", 2, F.TYPE_DOUBLE, False), ("bucket", 3, "Bucket", True),
        ("schema", 5, F.TYPE_SINT32, False), ("zero_threshold", 6, F.TYPE_DOUBLE, False), ("zero_count", 7, F.TYPE_UINT64, False),
        ("positive_span", 12, "BucketSpan", True), ("positive_delta", 13, F.TYPE_SINT64, True),
    ],
    "Metric": [("label", 1, "LabelPair", True), ("gauge", 2, "Gauge", False), ("counter", 3, "Counter", False),
               ("histogram", 7, "Histogram", False)],
    "MetricFamily": [("name", 1, F.TYPE_STRING, False), ("help", 2, F.TYPE_STRING, False), ("type", 3, F.TYPE_INT32, False),
                     ("metric", 4, "Metric", True)],
}  # fmt: skip


def family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="t", syntax="proto2")
    for name, fields in LAYOUT.items():
        made = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
            added = made.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                added.type, added.type_name = F.TYPE_MESSAGE, f".t.{kind}"
            else:
                added.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.MetricFamily"))


MetricFamily = family_class()


def decoded(data: bytes) -> dict[str, Any]:
    """Families by name, of delimited messages."""
    found, at = {}, 0
    while at < len(data):
        size = shift = 0
        while True:
            size |= (data[at] & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 0x80:
                break
        made = MetricFamily.FromString(data[at : at + size])
        assert made.name not in found
        found[made.name] = made
        at += size
    return found


def native(histogram: Any) -> dict[int, int]:
    """Counts by index, as spans and deltas say them."""
    deltas, counts, index, count = iter(histogram.positive_delta), {}, 0, 0
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            counts[index] = count
            index += 1
    assert next(deltas, None) is None
    return counts


def expected(values: list[float], threshold: float) -> dict[int, int]:
    """The same by the definition: the bucket with the upper bound 2^(index / 4) that holds a value."""
    counts: dict[int, int] = {}
    for value in values:
        if value > threshold:
            index = math.ceil(math.log2(value) * 2**SCHEMA)
            counts[index] = counts.get(index, 0) + 1
    return counts


def agrees(values: list[float], histogram: Any) -> bool:
    """Whether every bucket, classic and native, has what these values say."""
    below = sum(value <= histogram.zero_threshold for value in values)
    classic = [(each.upper_bound, each.cumulative_count) for each in histogram.bucket]
    return (
        native(histogram) == expected(values, histogram.zero_threshold)
        and histogram.zero_count == below
        and classic == [(bound, sum(value <= bound for value in values)) for bound in (*BOUNDS_S, math.inf)]
        and histogram.sample_count == len(values)
        and math.isclose(histogram.sample_sum, sum(values))
    )


def test_each_bucket_has_what_the_durations_say(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(19)
    found, values = Histogram(), [rng.lognormvariate(-6, 3) for _ in range(3_000)] + [1e-7, 0.0, 1.5e7]
    for value in values:
        found.observe(value)
    family = Family("quintet_x_seconds", "histogram", "x", histograms=[({"door": 'a"\n', "b": "ü"}, found)])
    made = decoded(protobuf.encode(family))["quintet_x_seconds"]
    (metric,) = made.metric
    assert (made.type, made.help) == (4, "x")
    assert {pair.name: pair.value for pair in metric.label} == {"door": 'a"\n', "b": "ü"}
    assert metric.histogram.schema == SCHEMA
    assert agrees(values, metric.histogram)
    monkeypatch.setattr(protobuf, "_zigzag", lambda number: abs(number) << 1)  # the control: signs are lost
    (metric,) = decoded(protobuf.encode(family))["quintet_x_seconds"].metric
    assert not agrees(values, metric.histogram)


def test_an_empty_histogram_is_native_too_and_short_turns_are_zeros() -> None:
    (metric,) = decoded(protobuf.encode(Family("quintet_x", "histogram", "x", histograms=[({}, Histogram())])))[
        "quintet_x"
    ].metric
    assert [(span.offset, span.length) for span in metric.histogram.positive_span] == [(0, 0)]
    turns = Histogram(TURN_CELLS)
    for value in (0.0001, 0.001, 0.0011, 0.3):
        turns.observe(value)
    (metric,) = decoded(protobuf.encode(Family("quintet_x", "histogram", "x", histograms=[({}, turns)])))[
        "quintet_x"
    ].metric
    assert (metric.histogram.zero_threshold, metric.histogram.zero_count) == (0.001, 2)
    assert native(metric.histogram) == expected([0.0011, 0.3], 0.001)


def test_durations_longer_than_all_buckets_count_in_the_last() -> None:
    found = Histogram()
    found.observe(2.0**30)
    buckets = found.cells.native(found.counts)
    assert buckets.counts[-1] == 1 and sum(buckets.counts) == 1
    assert found.cells.classic(found.counts)[-2:] == [0, 1]


@pytest.mark.parametrize(
    ("accept", "expect"),
    [
        (PROMETHEUS, True),
        ("application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited", True),
        ('application/vnd.google.protobuf;proto="io.prometheus.client.MetricFamily";encoding="delimited"', True),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/vnd.google.protobuf", False),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text", False),
        (PROMETHEUS.replace("delimited,", "delimited;q=0.3,"), False),
        (PROMETHEUS.replace("delimited,", "delimited;q=0,"), False),
        (PROMETHEUS.replace("delimited,", "delimited;q=nan,"), False),
        (PROMETHEUS.replace("delimited,", "delimited;q=much,"), False),
        (";;;,=,;q=;", False),
    ],
)
def test_protobuf_goes_to_whoever_prefers_it(accept: str, expect: bool) -> None:
    assert protobuf.wanted(accept) is expect


def test_both_forms_of_a_brokers_metrics_say_the_same() -> None:
    with running() as server, sync.connect(server.url) as bus:
        for number in range(50):
            bus.publish("measured", f"m{number}".encode())
        url = f"http://127.0.0.1:{server.ports['admin']}/metrics"
        text = httpx2.get(url, trust_env=False, timeout=60).text
        answer = httpx2.get(url, headers={"accept": PROMETHEUS}, trust_env=False, timeout=60)
        assert answer.headers["content-type"] == protobuf.CONTENT_TYPE
        families = decoded(answer.content)
        names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        assert set(families) == names and "process_cpu_seconds_total" in names
        assert families["quintet_published_messages_total"].metric[0].counter.value == 50
        durable = families["quintet_append_durable_seconds"].metric[0].histogram
        assert (
            durable.sample_count
            == sum(native(durable).values()) + durable.zero_count
            == durable.bucket[-1].cumulative_count
            > 0
        )


def test_a_real_prometheus_takes_native_histograms(tmp_path: Path) -> None:
    with running() as server, sync.connect(server.url) as bus:
        for number in range(50):
            bus.publish("measured", f"m{number}".encode())
        target = f"127.0.0.1:{server.ports['admin']}"
        with scraping(tmp_path, target, "--enable-feature=native-histograms") as prometheus:
            assert prometheus.value_of("up == 1") == 1
            assert prometheus.value_of("histogram_count(quintet_append_durable_seconds)") >= 50
            median = prometheus.value_of("histogram_quantile(0.5, quintet_append_durable_seconds)")
            assert 0 < median < WAIT_S
            assert prometheus.value_of("quintet_published_messages_total") == 50
            classic = prometheus.query("quintet_append_durable_seconds_bucket")
            assert classic == [], "it took the native form, not the classic one"
