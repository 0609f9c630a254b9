"""Writes families of metrics in the protobuf exposition of Prometheus, with native histograms beside the classic buckets.

A scraper that wants native histograms asks for this form (`Accept: application/vnd.google.protobuf;
proto=io.prometheus.client.MetricFamily;encoding=delimited`): text has no way to say them. The few messages of io.prometheus.client that
it needs are written by hand, field by field, in the order of their numbers; protobuf's own library would bring a generated module and
no less code. Nothing here reads protobuf.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client import Metric

from quintet.admin.metrics import Family, check_name
from quintet.model.histogram import SCHEMA, Histogram

CONTENT_TYPE: Final = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_MEDIA: Final = "application/vnd.google.protobuf"
_WANTED: Final = {"proto": "io.prometheus.client.metricfamily", "encoding": "delimited"}

_KINDS: Final = {"counter": 0, "gauge": 1, "histogram": 4}  # io.prometheus.client.MetricType
_VARINT, _DOUBLE, _BYTES = 0, 1, 2  # wire types


# -- negotiation ---------------------------------------------------------------------------------------------------------


def wanted(accept: str) -> bool:
    """Whether this Accept header prefers the protobuf exposition: nothing that it names has a higher q."""
    ours, others = 0.0, 0.0
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        fields = dict(piece.partition("=")[::2] for piece in parameters)
        quality = _quality(fields.get("q", "1"))
        if media == _MEDIA:
            if all(fields.get(name, "").strip('" ') == value for name, value in _WANTED.items()):
                ours = max(ours, quality)
        else:
            others = max(others, quality)
    return ours > 0 and ours >= others


def _quality(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if 0 <= found <= 1 else 0.0


# -- messages ------------------------------------------------------------------------------------------------------------


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | _DOUBLE) + struct.pack("<d", value)


def _part(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(data)) + data


def _text(field: int, value: str) -> bytes:
    return _part(field, value.encode("utf-8", "replace"))


def _labels(values: Mapping[str, str]) -> bytes:
    return b"".join(_part(1, _text(1, name) + _text(2, values[name])) for name in sorted(values))


def _spans(counts: Sequence[int], first: int) -> tuple[list[tuple[int, int]], list[int]]:
    """(offset, length) of each run of buckets that are not empty, and their counts. The first offset is an index, the others gaps."""
    spans: list[tuple[int, int]] = []
    filled, end = [], 0
    for number, count in enumerate(counts):
        if not count:
            continue
        index = first + number
        if spans and index == end:
            spans[-1] = (spans[-1][0], spans[-1][1] + 1)
        else:
            spans.append((index - end if spans else index, 1))
        end = index + 1
        filled.append(count)
    return spans, filled


def _histogram(found: Histogram) -> bytes:
    classic, native = found.cells.classic(found.counts), found.cells.native(found.counts)
    made = [_number(1, classic[-1]), _double(2, found.seconds)]
    bounds = (*found.cells.bounds, float("inf"))
    made += [_part(3, _number(1, count) + _double(2, bound)) for bound, count in zip(bounds, classic, strict=True)]
    made += [_number(5, _zigzag(SCHEMA)), _double(6, native.zero_threshold), _number(7, native.zero_count)]
    spans, filled = _spans(native.counts, native.first)
    # Without any span it would be taken for a classic histogram only: an empty one says that it is native.
    made += [_part(12, _number(1, _zigzag(offset)) + _number(2, length)) for offset, length in spans or [(0, 0)]]
    deltas = [after - before for before, after in zip([0, *filled], filled, strict=False)]
    if deltas:
        made.append(_part(13, b"".join(_varint(_zigzag(delta)) for delta in deltas)))
    return b"".join(made)


def _family(name: str, text: str, kind: str, metrics: Iterable[bytes]) -> bytes:
    body = _text(1, name) + _text(2, text) + _number(3, _KINDS[kind]) + b"".join(_part(4, metric) for metric in metrics)
    return _varint(len(body)) + body


def encode(family: Family) -> bytes:
    """One family, delimited."""
    check_name(family)
    if family.kind == "histogram":
        metrics = [_labels(labels) + _part(7, _histogram(found)) for labels, found in family.histograms]
    else:
        field = 3 if family.kind == "counter" else 2
        metrics = [_labels(labels) + _part(field, _double(1, value)) for labels, value in family.samples]
    return _family(family.name, family.help, family.kind, metrics)


def encode_metric(metric: Metric) -> bytes:
    """One family of prometheus-client's own collectors, which have counters and gauges only."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    field = 3 if metric.type == "counter" else 2
    metrics = [
        _labels(each.labels) + _part(field, _double(1, each.value)) for each in metric.samples if each.name == name
    ]
    return _family(name, metric.documentation, metric.type, metrics)
