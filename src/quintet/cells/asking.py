"""Asks the nodes of several cells, as an operator does: who leads each cell, and that it be placed elsewhere. Blocks.

It speaks to the cluster's listener of each process by the certificate of the node whose configuration it has (ADR 42), so whoever may
read that node's key may do it. Nothing is decided here: the leader of a cell writes into its WAL where it belongs.
"""

import os
from collections.abc import Iterator
from typing import NamedTuple

from quintet.cells.node import next_address
from quintet.config import Settings
from quintet.model.errors import ConfigError, QuintetError
from quintet.net.cluster.peers import Link
from quintet.net.cluster.trust import Trust
from quintet.net.cluster.wire import Hello, NodeSaid, PeerRefused, PlaceAsked


class Heard(NamedTuple):
    """One node's word on one cell, or why there is none."""

    cell: int
    address: str
    said: NodeSaid | None
    error: str = ""


class CellNodes:
    """The nodes that a configuration names."""

    def __init__(self, settings: Settings) -> None:
        cell, cluster = settings.cell, settings.cluster
        if settings.engine != "kafka" or cell.cells == 1:
            raise ConfigError(
                "this is no node of several cells", hint="give the --config of one, with engine = kafka and cell.cells"
            )
        self.cells = cell.cells
        self._trust = Trust(cluster.tls_cert, cluster.tls_key, cluster.tls_ca)
        self._hello = Hello(cell.node, os.urandom(8).hex(), "", "")
        self._addresses = sorted({cluster.listen, *cluster.peers})

    def ask(self, cell: int) -> list[Heard]:
        """All nodes of a cell: those that the configuration names, and those that they know."""
        found: list[Heard] = []
        addresses = [next_address(address, cell) for address in self._addresses]
        for address in addresses:  # grows by what they tell
            try:
                link = Link(address, self._trust, self._hello)
                try:
                    said = link.ask()
                finally:
                    link.close()
            except (QuintetError, OSError) as error:
                found.append(Heard(cell, address, None, str(error)))
                continue
            if said.node not in {each.said.node for each in found if each.said is not None}:
                found.append(Heard(cell, address, said))
            addresses += [other for _, other in said.nodes if other not in addresses]
        return found

    def place(self, cell: int, asked: PlaceAsked) -> NodeSaid:
        """The word of the cell's leader that it counts. PeerRefused says why not."""
        if not 0 <= cell < self.cells:
            raise ConfigError(f"there is no cell {cell}", hint=f"there are cells 0 to {self.cells - 1}")
        heard = self.ask(cell)
        for each in heard:
            if each.said is not None and each.said.role == "leader":
                link = Link(each.address, self._trust, self._hello)
                try:
                    return link.place(asked)
                finally:
                    link.close()
        away = "; ".join(f"{each.address}: {each.error}" for each in heard if each.error)
        raise PeerRefused(
            f"nobody who answers leads cell {cell}{': ' + away if away else ''}",
            reason="place",
            hint="quintet cell list",
        )

    def move(self, cell: int, node: str) -> NodeSaid:
        return self.place(cell, PlaceAsked(move=node))

    def drain(self, node: str) -> Iterator[NodeSaid]:
        """Of every cell, one after the other."""
        return (self.place(cell, PlaceAsked(drain=node)) for cell in range(self.cells))

    def fill(self, node: str) -> dict[int, NodeSaid]:
        """Of every cell for which it is drained; ConfigError: there is none."""
        found = {}
        for cell in range(self.cells):
            leaders = [each.said for each in self.ask(cell) if each.said is not None and each.said.role == "leader"]
            if not leaders or node in leaders[0].avoided:
                found[cell] = self.place(cell, PlaceAsked(fill=node))
        if not found:
            raise ConfigError(f"{node} is not drained", hint="quintet cell list")
        return found
