"""Gives things that come and go series of their own, at most so many; the others share one series, and no counter falls.

A scraper keeps every label it ever saw, so their number is bounded (`listeners.admin.labels_max`). Prometheus takes a counter
that falls for one that began anew and adds all of it again. So a thing keeps the label that it got first, and what it counted
stays in the sum after it is gone. Only things with a label are looked at, unless there is room for more: there may be 100,000.
"""

import heapq
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

from quintet.model.histogram import OTHER

T = TypeVar("T")


class CountersByName(Generic[T]):
    """One counter for each thing. `update` once a scrape, then read `named`."""

    def __init__(self, labels_max: int, name: Callable[[T], str], count: Callable[[T], int]) -> None:
        self._labels_max = labels_max
        self._name: Final = name
        self._count: Final = count
        self._ended = 0  # what things with a label had counted that are gone
        self._others = 0
        self._shared = False  # there is or was a thing without a label of its own
        self.labelled: dict[T, str] = {}
        self.named: dict[str, int] = {}  # by label; OTHER only if something shares it

    def update(self, things: Collection[T], there: Callable[[T], bool], total: int) -> None:
        """All there are; whether one is still among them; and what all counted together, those that are gone as well."""
        for thing in [thing for thing in self.labelled if not there(thing)]:
            del self.labelled[thing]
            self._ended += self._count(thing)
        room = self._labels_max - len(self.labelled)
        if room and len(things) > len(self.labelled):
            fresh = (thing for thing in things if thing not in self.labelled)
            busiest = heapq.nsmallest(room, fresh, lambda thing: (-self._count(thing), self._name(thing)))
            self.labelled |= {thing: self._name(thing) for thing in busiest}
        self.named = {}
        for thing, label in self.labelled.items():
            self.named[label] = self.named.get(label, 0) + self._count(thing)
        self._others = max(self._others, total - self._ended - sum(self.named.values()))
        self._shared = self._shared or self._others > 0 or len(things) > len(self.labelled)
        if self._shared:
            self.named[OTHER] = self._others
