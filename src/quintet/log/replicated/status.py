"""What a node of a cell tells of itself: its role, who leads, how far it is. Named here for whoever shows it; nothing is decided here."""

from enum import StrEnum
from typing import Final, NamedTuple

from quintet.log.replicated.states import State


class NodeRole(StrEnum):
    """What a node does now."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"  # has claimed: it reads up to its claim, or waits until the lease before is over
    LEADER = "leader"
    ENDED = "ended"


ROLES: Final = {
    State.FOLLOWING: NodeRole.FOLLOWER,
    State.CLAIMING: NodeRole.CANDIDATE,
    State.DRAINING: NodeRole.CANDIDATE,
    State.WAITING: NodeRole.CANDIDATE,
    State.LEADING: NodeRole.LEADER,
    State.CHECKING: NodeRole.LEADER,
    State.FENCED: NodeRole.ENDED,
}


class LeaderNode(NamedTuple):
    """Who leads, as its claim says. host "": it advertises none."""

    name: str
    host: str


class TakeOver(NamedTuple):
    """The last one that this node made."""

    seconds: float  # from the last record of the leader before, or from its own start, to open doors
    at: float  # Unix time


class NodeStatus(NamedTuple):
    """What a node knows of itself and of its cell."""

    node: str
    role: NodeRole
    epoch: int  # in force, as far as this node has read
    leader: LeaderNode | None
    applied: int  # the WAL offset that is applied next
    synced: int  # everything below this WAL offset is in this node's files for good, and a mark says so
    lag_records: int  # in the WAL and not applied; those under way of a leader
    lag_seconds: float  # since it had applied all; of a leader: 0
    weaknesses: tuple[str, ...]  # what the WAL promises less than the default
    age_seconds: float | None = None  # how old the state may be that readers of this node see; None: not known yet
    wal_begin: int = 0  # what is below was trimmed, as far as this node knows
    wal_end: int = 0
