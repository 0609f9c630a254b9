"""Counts durations by bounds, for /metrics. The line counts here; nothing is rendered before somebody asks.

One count serves both kinds of Prometheus: the cells are cut at the classic bounds and at the powers of 2^(1/4) that a native histogram
of schema 2 has. Each classic bucket and each native bucket is a sum of whole cells, so both are exact, and a duration
costs one bisect, as with classic bounds alone.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

# Seconds. Three a decade: a quantile is known within a factor of about two, with 17 series for each label set.
BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
OTHER: Final = "(other)"
SAMPLED: Final = 16  # one of so many is measured where each costs the loop something
SKIPPED: Final = SAMPLED - 1
assert SAMPLED & SKIPPED == 0

SCHEMA: Final = 2  # of native buckets: four to a doubling, a quantile is known within 19 %
_DOUBLING: Final = 1 << SCHEMA
_SHORTEST: Final = -17  # 2^-17 s, 7.6 us: the zero bucket holds what is shorter
_LONGEST: Final = (
    24  # 2^24 s, 194 days: ages of batches, which may be old; what is longer counts in the bucket behind it
)


def _power(index: int) -> float:
    """The upper bound of a native bucket."""
    return math.ldexp(2.0 ** (index % _DOUBLING / _DOUBLING), index // _DOUBLING)


class Native(NamedTuple):
    """A native histogram of SCHEMA: `counts[i]` is that of the bucket `first + i`, whose upper bound is 2^(index / 4)."""

    zero_threshold: float
    zero_count: int
    first: int
    counts: list[int]


class Cells:
    """Where the cells of histograms are cut, and which of them make a bucket. `shortest`: durations up to it are one cell."""

    __slots__ = ("_classic", "_first", "_native", "bounds", "edges", "shortest")

    def __init__(self, bounds: Sequence[float], shortest: float = 0.0) -> None:
        self.bounds = tuple(bounds)
        self.shortest = shortest or _power(_SHORTEST * _DOUBLING)
        indices = [at for at in range(_SHORTEST * _DOUBLING, _LONGEST * _DOUBLING + 1) if _power(at) > self.shortest]
        self.edges = tuple(sorted({*self.bounds, self.shortest, *map(_power, indices)}))
        self._first = indices[0]
        self._classic = [self.edges.index(bound) + 1 for bound in self.bounds]
        self._native = [self.edges.index(edge) + 1 for edge in (self.shortest, *map(_power, indices))]

    def __len__(self) -> int:
        return len(self.edges) + 1

    def classic(self, counts: Sequence[int]) -> list[int]:
        """How many there were up to each bound, and in all."""
        found, total, before = [], 0, 0
        for end in (*self._classic, len(counts)):
            total += sum(counts[before:end])
            found.append(total)
            before = end
        return found

    def native(self, counts: Sequence[int]) -> Native:
        """The same as a native histogram."""
        ends = [*self._native, len(counts)]
        below = sum(counts[: ends[0]])
        buckets = [sum(counts[start:end]) for start, end in pairwise(ends)]
        return Native(self.shortest, below, self._first, buckets)


CELLS: Final = Cells(BOUNDS_S)


class Histogram:
    """How many durations there were in each cell, and their sum."""

    __slots__ = ("_edges", "cells", "counts", "seconds")

    def __init__(self, cells: Cells = CELLS) -> None:
        self.cells = cells
        self._edges = cells.edges
        self.counts = [0] * len(cells)
        self.seconds = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """So many took this long. A clock that was set back gives no negative duration."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(self._edges, seconds)] += count
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
