"""Counts durations by bounds, for /metrics. The line counts here; nothing is rendered before somebody asks."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# Seconds. Three a decade: a quantile is known within a factor of about two, with 17 series for each label set.
BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
OTHER: Final = "(other)"
SAMPLED: Final = 16  # one of so many is measured where each costs the loop something
SKIPPED: Final = SAMPLED - 1
assert SAMPLED & SKIPPED == 0


class Histogram:
    """How many durations there were up to each bound, and above the last."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float] = BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """So many took this long. A clock that was set back gives no negative duration."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.seconds += seconds * count


class Histograms:
    """One for each pair of labels, at most `most`; the others share one."""

    __slots__ = ("_most", "by_labels")

    def __init__(self, most: int) -> None:
        self._most = most
        self.by_labels: dict[tuple[str, str], Histogram] = {}

    def observe(self, first: str, second: str, seconds: float) -> None:
        found = self.by_labels.get((first, second))
        if found is None:
            place = (first, second) if len(self.by_labels) < self._most else (OTHER, OTHER)
            found = self.by_labels.setdefault(place, Histogram())
        found.observe(seconds)
