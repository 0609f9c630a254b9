"""Holds what all requests of the console share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quintet.broker.core import Broker
from quintet.console.sampler import Sampler
from quintet.console.section import ConsoleListener
from quintet.console.sessions import Sessions
from quintet.console.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Parts:
    """One for a console. `kept` is what handlers keep between requests, by their own names; each bounds its own."""

    broker: Broker
    surroundings: Surroundings
    options: ConsoleListener
    sessions: Sessions
    sampler: Sampler
    entropy: Callable[[int], bytes]
    kept: dict[str, Any] = field(default_factory=dict)
    elsewhere: Any = None  # cells.py::Elsewhere, where a broker has several cells
