"""Answers which part this node has in its cell, and what the other nodes tell it of themselves.

Doors are open on the node that leads, and on one that is alone: so this is the view of that node. What a log that replicates has to
say is `status` (`Standing`); a log without it keeps the only copy. Other nodes are known where they listen for each other (`[cluster]`).
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from quintet.console.call import Call, Operation
from quintet.console.surroundings import KnownNode
from quintet.console.wire import Empty

ALONE: Final = "alone"


class Leader(Protocol):
    """Who leads."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...


class Standing(Protocol):
    """What a node of a cell says of itself."""

    @property
    def node(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def leader(self) -> Leader | None: ...

    @property
    def applied(self) -> int: ...

    @property
    def lag_records(self) -> int: ...

    @property
    def lag_seconds(self) -> float: ...

    @property
    def weaknesses(self) -> Sequence[str]: ...


def standing_of(log: object) -> dict[str, object]:
    """This node for the page. `replicated` false: there are no other fields but its role."""
    status: Callable[[], Standing] | None = getattr(log, "status", None)
    if status is None:
        return {"replicated": False, "role": ALONE}
    said = status()
    leader = {"name": said.leader.name, "host": said.leader.host} if said.leader is not None else None
    return {"replicated": True, "role": str(said.role), "node": said.node, "epoch": said.epoch, "leader": leader, "applied": said.applied,
            "lag_records": said.lag_records, "lag_seconds": round(said.lag_seconds, 1), "weaknesses": list(said.weaknesses)}  # fmt: skip


def node_of(row: KnownNode) -> dict[str, object]:
    """One row of the page. What a node said that does not answer now is what it said last."""
    said = row.said
    return {"name": row.name, "address": row.address, "up": row.up, "error": row.error, "clock_seconds": round(row.clock_seconds, 3),
            "role": str(said.role), "epoch": said.epoch, "applied": said.applied, "lag_records": said.lag_records,
            "lag_seconds": round(said.lag_seconds, 1), "version": said.version, "certificate_expires_s": said.certificate_expires,
            "take_over_seconds": round(said.take_over_seconds, 1), "take_over_at_s": said.take_over_at}  # fmt: skip


async def _cluster(call: Call, _ask: Empty) -> object:
    surroundings = call.console.surroundings
    found = standing_of(surroundings.log)
    return found | {"nodes": [node_of(row) for row in surroundings.nodes()]} if found["replicated"] else found


OPERATIONS: Final = (
    Operation(method="GET", path="/api/cluster", right="admin", asks=Empty, answer=_cluster, live=True),
)
