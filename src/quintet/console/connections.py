"""Measures what each connection moves: from the counters that it has anyway, by the difference of two walks of the sampler.

A read and a write add to one int of their connection and nothing else; rates, and when something last moved, are made here. So the
last activity is known to the length of a walk: 2 seconds while somebody looks, 30 otherwise.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

LIFE_S_MIN: Final = 0.1  # of a connection whose rates are told: less says nothing


class AnyConnection(Protocol):
    """A connection of a door, or a stream of the Flight door, which keeps its connections to itself."""

    @property
    def id(self) -> int: ...

    @property
    def peer(self) -> str: ...

    @property
    def who(self) -> str | None: ...

    @property
    def bytes_in(self) -> int: ...

    @property
    def bytes_out(self) -> int: ...

    @property
    def age_seconds(self) -> float: ...

    def facts(self) -> dict[str, object]: ...

    def evict(self, reason: str) -> None: ...


class AnyListener(Protocol):
    """What a door tells of itself."""

    @property
    def address(self) -> str: ...

    @property
    def connections(self) -> Collection[AnyConnection]: ...

    @property
    def bytes_in(self) -> int: ...

    @property
    def bytes_out(self) -> int: ...

    @property
    def refused(self) -> int: ...

    @property
    def cut(self) -> int: ...


Listeners = Mapping[str, AnyListener]


@dataclass(slots=True)
class Moved:
    """What two walks say of a connection, or of all of a door. Rates are bytes a second."""

    bytes_in: int = 0
    bytes_out: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    active: float = 0.0  # when bytes were last seen to have moved, by the loop's clock

    def note(self, bytes_in: int, bytes_out: int, seconds: float, elapsed: float) -> None:
        """The counters as they are `seconds` after the walk before."""
        if (bytes_in, bytes_out) != (self.bytes_in, self.bytes_out):
            self.active = elapsed
        self.rate_in = (bytes_in - self.bytes_in) / seconds if seconds else 0.0
        self.rate_out = (bytes_out - self.bytes_out) / seconds if seconds else 0.0
        self.bytes_in, self.bytes_out = bytes_in, bytes_out


class ConnectionRates:
    """Of all doors. Holds one entry for each connection that is open."""

    def __init__(self, listeners: Callable[[], Listeners]) -> None:
        self._listeners = listeners
        self._by_id: dict[int, Moved] = {}
        self.doors: dict[str, Moved] = {}

    def walk(self, seconds: float, elapsed: float) -> Iterator[None]:
        """All connections, `seconds` after the walk before (0: this is the first); a pause after each."""
        fresh: dict[int, Moved] = {}
        for name, listener in self._listeners().items():
            self.doors.setdefault(name, Moved()).note(listener.bytes_in, listener.bytes_out, seconds, elapsed)
            for connection in everyone(listener):
                found = self._by_id.get(connection.id) or Moved(active=elapsed)
                found.note(connection.bytes_in, connection.bytes_out, seconds, elapsed)
                fresh[connection.id] = found
                yield
        self._by_id = fresh

    def of(self, connection: AnyConnection) -> Moved:
        """As of the last walk; of a connection that is younger the rates are those of its whole life."""
        found = self._by_id.get(connection.id)
        if found is None:
            seconds = max(connection.age_seconds, LIFE_S_MIN)
            found = Moved(rate_in=connection.bytes_in / seconds, rate_out=connection.bytes_out / seconds)
        return found

    def idle_seconds(self, connection: AnyConnection, elapsed: float) -> float:
        """Since bytes were last seen to have moved; 0 if some have since the last walk, or there was none yet."""
        found = self._by_id.get(connection.id)
        if found is None or (connection.bytes_in, connection.bytes_out) != (found.bytes_in, found.bytes_out):
            return 0.0
        return max(elapsed - found.active, 0.0)


def everyone(listener: AnyListener) -> list[AnyConnection]:
    """Its connections now: some may end while they are looked at."""
    return [*listener.connections]
