"""Changes where a cell belongs as operators ask for it, each change on top of those before, also while these are not confirmed yet.

A change is a whole `Placement` in the WAL. One that was made from the last confirmed one would undo what another operator asked for a
moment before. If a record is not confirmed, the leader ends, so what was shipped last is always what the next change begins from.
"""

from collections.abc import Callable
from typing import Protocol

from quintet.log.replicated.records import Placement
from quintet.net.cluster.wire import PeerRefused, PlaceAsked


class PlacedLog(Protocol):
    """What is needed of the log of a cell."""

    placement: Placement | None

    def place(self, placement: Placement, then: Callable[[], None], /) -> None: ...


class Placing:
    """Of one process, while it leads its cell."""

    def __init__(self, log: PlacedLog) -> None:
        self._log = log
        self._shipped: Placement | None = None

    def ask(self, asked: PlaceAsked, then: Callable[[], None]) -> None:
        """then(): it counts. Raises PeerRefused: it is asked to move to a node that is drained."""
        found = self._shipped or self._log.placement
        assert found is not None, "its leader places a cell before it opens a door"
        if asked.move and asked.move in found.avoided:
            raise PeerRefused(f"{asked.move} is drained", reason="place", hint=f"quintet cell fill {asked.move}")
        avoided = {*found.avoided, asked.drain or ""} - {asked.fill or "", ""}
        node = found.node if asked.move is None else asked.move
        self._shipped = found._replace(node=node, avoided=tuple(sorted(avoided)))
        self._log.place(self._shipped, then)
