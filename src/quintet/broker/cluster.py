"""Defines what a broker knows of the cluster it is part of: its nodes, which one leads, which one it is.

A broker on an embedded log is one node (`Standalone`). A node of a cell (ADR 39) sets another view (`Broker.cluster`), made of what its
log knows; it is asked anew for each answer, so that a take-over shows at once. Hosts are those that clients reach, without a port:
a door has the same port on every node. Nothing here decides who leads.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, Protocol

STANDALONE_ID: Final = "standalone"
STANDALONE_NODE: Final = "quintet"


class Node(NamedTuple):
    """One node. `in_sync`: it has all that was acknowledged, as far as is known here."""

    id: str
    host: str  # empty: this node, at the address the client used
    role: Literal["leader", "follower"]
    state: Literal["online", "away"] = "online"
    in_sync: bool = True

    def address(self, listener: str) -> str:
        """Where a door of this node is; `listener` is where the same door of our own is."""
        if not self.host:
            return listener
        port = listener.rpartition(":")[2]
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"


class ClusterView(Protocol):
    """What FlyMQ's CLUSTER_ operations are answered from."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def node_id(self) -> str:
        """Which of the nodes this is."""

    @property
    def epoch(self) -> int:
        """Grows with each leader."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All that are known, in an order that stays. At most one of them leads."""


class Standalone:
    """A broker that is alone: one node, which leads."""

    cluster_id: Final = STANDALONE_ID
    node_id: Final = STANDALONE_NODE
    epoch: Final = 1
    nodes: Final = (Node(STANDALONE_NODE, "", "leader"),)


def leader_of(view: ClusterView) -> tuple[int, Node | None]:
    """The leader and its place among the nodes; -1 and None while there is none."""
    found = ((place, node) for place, node in enumerate(view.nodes) if node.role == "leader")
    return next(found, (-1, None))
