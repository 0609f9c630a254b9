"""Turns the filters that Spark pushes into a batch read into bounds on what is read, without asking the broker.

Topic, partition and offset are known before a record is read, so a filter on them is applied here completely. A lower bound on the
timestamp gives the first offset to read: all records before the first one that is new enough are too old. Spark still applies the
filter to the records after it. An upper bound gives no last offset, because timestamps need not rise with offsets.
"""

import datetime
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from quintet.spark.source.spans import Span

NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp")
_EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
# Of each filter: compares what a record has with the filter's value, which has the same type (`_taken` looks at that).
_TESTS: Final[dict[type[Filter], Callable[..., bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda found, values: found in values,
}


@dataclass(slots=True)
class Narrowing:
    """The bounds that the filters of a read give. `columns` are the source's own columns in it: a field of a schema may have the name
    of one that is not read."""

    columns: tuple[str, ...] = NEVER_NULL
    tests: list[tuple[str, type[Filter], object]] = field(default_factory=list)  # on topic and partition
    first: int = 0
    last: int = (1 << 63) - 1
    since_us: int | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Apply what can be applied here, and return the filters that Spark must still apply."""
        return [one for one in filters if not self._taken(one)]

    def spans(self, spans: Iterable[Span]) -> list[Span]:
        kept = []
        for span in spans:
            facts = {"topic": span.topic, "partition": span.partition}
            first, last = max(span.first, self.first), min(span.last, self.last)
            if first < last and all(_TESTS[kind](facts[name], value) for name, kind, value in self.tests):
                share = span.bytes * (last - first) // (span.last - span.first)
                kept.append(span._replace(first=first, last=last, bytes=share))
        return kept

    def _taken(self, one: Filter) -> bool:
        path: tuple[str, ...] = getattr(one, "attribute", ())
        column = path[0] if len(path) == 1 else ""
        if column not in NEVER_NULL or column not in self.columns:
            return False
        if isinstance(one, IsNotNull):
            return True
        value = getattr(one, "value", None)
        if type(one) not in _TESTS or value is None:
            return False
        values: Sequence[object] = value if isinstance(one, In) else (value,)
        if column == "timestamp":
            self._since(one, values)
            return False
        wanted = str if column == "topic" else int
        if not values or not all(isinstance(item, wanted) for item in values):
            return False
        if column == "offset":
            offsets = [item for item in values if isinstance(item, int)]
            return self._offset(one, min(offsets), max(offsets))
        self.tests.append((column, type(one), value))
        return True

    def _offset(self, one: Filter, least: int, most: int) -> bool:
        """Of a list of offsets the lowest and the highest are bounds, and Spark applies the list itself."""
        if isinstance(one, EqualTo | EqualNullSafe | In | GreaterThanOrEqual):
            self.first = max(self.first, least)
        if isinstance(one, GreaterThan):
            self.first = max(self.first, least + 1)
        if isinstance(one, EqualTo | EqualNullSafe | In | LessThanOrEqual):
            self.last = min(self.last, most + 1)
        if isinstance(one, LessThan):
            self.last = min(self.last, most)
        return not isinstance(one, In)

    def _since(self, one: Filter, values: Sequence[object]) -> None:
        moments = [item for item in values if isinstance(item, datetime.datetime) and item.tzinfo]
        if isinstance(one, LessThan | LessThanOrEqual) or not moments or len(moments) < len(values):
            return
        since = (min(moments) - _EPOCH) // datetime.timedelta(microseconds=1)
        self.since_us = since if self.since_us is None else max(self.since_us, since)
