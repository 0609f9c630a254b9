"""Measures how long requests and durable writes take: of requests one read in SAMPLED, of writes all.

A request lasts from the turn in which its bytes were read until its connection has nothing left to answer: what a client with one
request at a time waits for, without the network. A client that pipelines is measured by its slowest answer. A read whose
request the wire does not answer counts as answered when it was acted on.
"""

from time import perf_counter
from typing import Final

from quintet.model.histogram import SKIPPED, Histogram, Histograms
from quintet.protocols.base import Session

REQUESTS_MAX: Final = 150  # pairs of door and operation; all doors together have about 120


class Latencies:
    """One for all parts that share a loop. Belongs to the loop thread."""

    __slots__ = ("_reads", "requests", "written")

    def __init__(self) -> None:
        self._reads = 0
        self.requests = Histograms(REQUESTS_MAX)
        self.written = Histogram()

    def sampled(self) -> bool:
        """Something was read: is it one of those that are measured?"""
        self._reads += 1
        return self._reads & SKIPPED == 1

    def measure(self, door: str, session: Session, asked_at: float) -> float:
        """The request that was read at `asked_at` is over if nothing is left to answer: then 0, otherwise `asked_at`."""
        if session.unanswered:
            return asked_at
        operation = session.operation
        if operation:  # otherwise the read brought no whole request
            self.requests.observe(door, operation, perf_counter() - asked_at)
        return 0.0
