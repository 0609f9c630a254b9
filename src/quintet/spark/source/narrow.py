"""Turns filters that Spark pushes into a batch read into bounds on what is read. No broker: numbers only.

Topic, partition and offset are known before a record is looked at, so such a filter is taken whole. A lower bound on the
timestamp tells where to begin, since everything before the first record that is not older is older; Spark still applies
it to what follows. An upper bound says nothing about where to end, because times need not rise with offsets.
"""

import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

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
_TESTS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    EqualTo: lambda found, value: found == value,
    EqualNullSafe: lambda found, value: found == value,
    GreaterThan: lambda found, value: found > value,
    GreaterThanOrEqual: lambda found, value: found >= value,
    LessThan: lambda found, value: found < value,
    LessThanOrEqual: lambda found, value: found <= value,
    In: lambda found, value: found in value,
}


@dataclass(slots=True)
class Narrowing:
    """What filters leave of a read. `columns` are ours in it: a field of a schema may bear the name of one that is not."""

    columns: tuple[str, ...] = NEVER_NULL
    tests: list[tuple[str, type, Any]] = field(default_factory=list)  # on topic and partition
    first: int = 0
    last: int = (1 << 63) - 1
    since_us: int | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take what can be taken; what is returned Spark must still apply."""
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
        if column == "timestamp":
            self._since(one, value)
            return False
        values = value if isinstance(one, In) else (value,)
        wanted = str if column == "topic" else int
        if not values or not all(isinstance(item, wanted) for item in values):
            return False
        if column == "offset":
            return self._offset(one, min(values), max(values))
        self.tests.append((column, type(one), value))
        return True

    def _offset(self, one: Filter, least: int, most: int) -> bool:
        """Of a list of offsets only the ends are taken: Spark picks the ones between."""
        if isinstance(one, EqualTo | EqualNullSafe | In | GreaterThanOrEqual):
            self.first = max(self.first, least)
        if isinstance(one, GreaterThan):
            self.first = max(self.first, least + 1)
        if isinstance(one, EqualTo | EqualNullSafe | In | LessThanOrEqual):
            self.last = min(self.last, most + 1)
        if isinstance(one, LessThan):
            self.last = min(self.last, most)
        return not isinstance(one, In)

    def _since(self, one: Filter, value: Any) -> None:
        if isinstance(one, LessThan | LessThanOrEqual):
            return
        moments = list(value) if isinstance(one, In) else [value]
        if not moments or not all(isinstance(item, datetime.datetime) and item.tzinfo for item in moments):
            return
        since = (min(moments) - _EPOCH) // datetime.timedelta(microseconds=1)
        self.since_us = since if self.since_us is None else max(self.since_us, since)
