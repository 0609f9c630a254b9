"""Joins a node of a cell with what nodes tell each other: what it says of itself, what its metrics and clients are told of the others.

`quintet cluster status` and dashboards read the metric families of any one node. Nothing here decides who leads.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from msgspec import structs

from quintet import __version__
from quintet.admin.metrics import Family
from quintet.broker.cluster import Node
from quintet.config import Settings
from quintet.log.replicated.engine import ReplicatedLog
from quintet.net.cluster.listener import Report
from quintet.net.cluster.node import ClusterNode
from quintet.net.cluster.peers import LATELY_S, Peer
from quintet.net.cluster.trust import Trust
from quintet.net.cluster.wire import NodeSaid

FINGERPRINT_BYTES: Final = 8  # of the key of the chain
SAY_S: Final = 0.2  # between two times that a node puts down what it says of itself


class Row(NamedTuple):
    """One node as another one, or it itself, knows it."""

    name: str  # empty: it never answered
    address: str
    said: NodeSaid
    up: bool
    clock_seconds: float
    error: str


# Of each node that ever answered: (metric, help, value)
_FIGURES: Final[tuple[tuple[str, str, Callable[[Row], float]], ...]] = (
    ("epoch", "Epoch in force, as far as the node has read.", lambda row: row.said.epoch),
    ("wal_offset", "Offset of the WAL that the node applies next.", lambda row: row.said.applied),
    ("synced_offset", "Everything below this offset of the WAL is in the node's files for good.", lambda row: row.said.synced),
    ("lag_records", "Records of the WAL that the node has not applied; of a leader: under way.", lambda row: row.said.lag_records),
    ("lag_seconds", "Since when the node has not applied all of the WAL.", lambda row: row.said.lag_seconds),
    ("clock_seconds", "How far the node's clock is ahead of the clock of the one that says it.", lambda row: row.clock_seconds),
    ("lease_seconds", "The node's cell.lease_seconds.", lambda row: row.said.lease_seconds),
    ("hold_seconds", "How long the node waits before it leads.", lambda row: row.said.hold_seconds),
    ("certificate_expires_timestamp_seconds", "When the node's certificate for other nodes expires, as Unix time; 0: it has none.",
     lambda row: row.said.certificate_expires),
    ("take_over_seconds", "How long the last take-over took that the node made: from the last record of the leader before to its own open "
     "doors; 0: it made none.", lambda row: row.said.take_over_seconds),
    ("take_over_timestamp_seconds", "When that was, as Unix time.", lambda row: row.said.take_over_at),
)  # fmt: skip


class CellCluster(ClusterNode):
    """A node of a cell that listens for the others. `look` is called on the loop every SAY_S."""

    def __init__(
        self,
        settings: Settings,
        log: ReplicatedLog,
        chain_key: bytes,
        now_us: Callable[[], int],
        hand: Callable[[Callable[[], None]], object],
        report: Report,
    ) -> None:
        cell, options, instance = settings.cell, settings.cluster, log.replica.instance.hex()
        trust = Trust(options.tls_cert, options.tls_key, options.tls_ca)
        super().__init__(options.listen, options.peers, trust, cell.node, cell.host, instance, now_us, hand, report)
        self._log = log
        chain = blake2b(chain_key, digest_size=FINGERPRINT_BYTES, person=b"quintet-chain").hexdigest()
        self._fixed = NodeSaid(
            cell.node,
            host=cell.host,
            version=__version__,
            lease_seconds=cell.lease_seconds,
            hold_seconds=cell.hold,
            chain=f"{settings.audit.chain} {chain}",
        )

    def look(self) -> None:
        """On the loop: put down what this node says of itself."""
        said = self._log.status()
        self.say(
            structs.replace(
                self._fixed,
                role=said.role.value,
                epoch=said.epoch,
                leader=said.leader.name if said.leader is not None else "",
                applied=said.applied,
                synced=said.synced,
                wal_begin=said.wal_begin,
                wal_end=said.wal_end,
                lag_records=said.lag_records,
                lag_seconds=said.lag_seconds,
                weaker=said.weaknesses,
            )
        )

    def synced(self) -> list[int]:
        """What the other nodes have synced, of those that answered lately."""
        return [said.synced for said in self.peers.lately()]

    def nodes(self) -> list[Node]:
        """The followers that answer, as clients are told of them."""
        return sorted(
            Node(said.node, said.host, "follower", in_sync=not said.lag_records)
            for said in self.peers.lately()
            if said.role == "follower"
        )

    def families(self) -> Sequence[Family]:
        """Of all nodes, this one first."""
        own, monotonic = self.own(), time.monotonic()
        rows = [Row(own.node, self.address, own, True, 0.0, ""), *(_row(peer, monotonic) for peer in self.known())]
        return [*_families(rows), _refused(self.listener.refused)]


def _row(peer: Peer, monotonic: float) -> Row:
    said = peer.said if peer.said is not None else NodeSaid("")
    up = peer.said is not None and monotonic - peer.heard <= LATELY_S
    return Row(said.node, peer.address, said, up, peer.clock_seconds, peer.error)


def _families(rows: Sequence[Row]) -> list[Family]:
    info = [
        (
            {
                "node": row.name,
                "address": row.address,
                "role": row.said.role if row.up else "",
                "version": row.said.version,
                "chain": row.said.chain,
                "error": row.error,
            },
            1,
        )
        for row in rows
    ]
    heard = [row for row in rows if row.name]
    return [
        Family("quintet_cluster_node_info", "gauge", "Always 1; the labels say what a node of this cell is, and why it is not reached.", info),
        Family("quintet_cluster_node_up", "gauge", "1 if the node answered this one lately.",
               [({"node": row.name, "address": row.address}, int(row.up)) for row in rows]),
        *(Family(f"quintet_cluster_node_{name}", "gauge", text, [({"node": row.name}, value(row)) for row in heard])
          for name, text, value in _FIGURES),
    ]  # fmt: skip


def _refused(counts: Mapping[str, int]) -> Family:
    return Family(
        "quintet_cluster_refused_total",
        "counter",
        "Connections to the cluster's listener that were refused, by reason.",
        [({"reason": reason}, count) for reason, count in sorted(counts.items())],
    )
