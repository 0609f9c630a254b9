"""The families of `/metrics`: what the broker counts, as exposition.py renders it when somebody asks.

The line counts with ints in its own objects (63 ns) and never touches prometheus-client (453 ns and more a count);
server.py lists them as families here. Names start with quintet_, are in base units, and counters end in _total.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol

from quintet.model.histogram import Histogram

_NAME: Final = re.compile(r"quintet_[a-z][a-z0-9_]*")
# Units promtool's linter asks not to be used: seconds and bytes are the base ones.
_NOT_BASE: Final = ("_ms", "_us", "_milliseconds", "_microseconds", "_minutes", "_kib", "_mib", "_kilobytes")


class Family(NamedTuple):
    """One metric with all its label sets. Every sample has the same label names."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]] = ()
    histograms: Sequence[tuple[Mapping[str, str], Histogram]] = ()  # in place of samples


class MetricsSource(Protocol):
    """Implemented by server.py."""

    def families(self) -> Sequence[Family]:
        """Every metric as it stands now."""


def check_name(family: Family) -> None:
    """Our fault if it fails: names are fixed in server.py."""
    assert _NAME.fullmatch(family.name), f"{family.name}: metric names are quintet_ and lower case"
    assert (family.kind == "counter") == family.name.endswith("_total"), (
        f"{family.name}: counters, and only they, end in _total"
    )
    assert not family.name.removesuffix("_total").endswith(_NOT_BASE), f"{family.name}: use seconds and bytes"
    assert family.help, f"{family.name}: metrics need a help text"
