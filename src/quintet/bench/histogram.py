"""Computes latency percentiles with HdrHistogram, and says how far they can be trusted.

Latencies arrive already measured from the moment a message was due (a schedule), or from the moment it was sent (a
closed loop, where a stalled server is asked less often and so looks better than it is: coordinated omission). The two
are never mixed, and a report always names which it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from quintet.model.extras import load

LOWEST_US = 1
HIGHEST_US = 3_600_000_000  # one hour
SIGNIFICANT_DIGITS = 3
PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99)
CURVE = tuple(100.0 * (1.0 - 10.0 ** (-step / 8.0)) for step in range(41))  # for pictures: equal steps of nines

Loop = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A summary, in microseconds."""

    loop: Loop
    count: int
    minimum: float
    mean: float
    maximum: float
    at: dict[str, float]
    curve: list[tuple[float, float]]


def percentiles(latencies_ns: Iterable[int], loop: Loop) -> Percentiles | None:
    """The summary of these latencies, or None if there are none."""
    histogram = load("hdrh.histogram", "a benchmark", "bench").HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
    for latency in latencies_ns:
        histogram.record_value(min(HIGHEST_US, max(LOWEST_US, (latency + 500) // 1000)))
    if not histogram.get_total_count():
        return None
    return Percentiles(
        loop=loop,
        count=histogram.get_total_count(),
        minimum=float(histogram.get_min_value()),
        mean=round(histogram.get_mean_value(), 1),
        maximum=float(histogram.get_max_value()),
        at={f"p{percent:g}": float(histogram.get_value_at_percentile(percent)) for percent in PERCENTILES},
        curve=[(round(p, 5), float(histogram.get_value_at_percentile(p))) for p in CURVE],
    )
