"""Joins a node of a cell with what nodes tell each other: what it says of itself, what its metrics and clients are told of the others.

`quintet cluster status` and dashboards read the metric families of any one node. Nothing here decides who leads.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from msgspec import structs

from quintet import __version__
from quintet.admin.metrics import Family
from quintet.broker.cluster import Node
from quintet.config import Settings
from quintet.log.anchors import ANCHORS_NAME, OLD_SUFFIX
from quintet.log.embedded.backup.cut import Clocks
from quintet.log.replicated.engine import ReplicatedLog
from quintet.model.errors import QuintetError
from quintet.net.cluster.copying import NoCopy, finish_move, receive_copy, send_copy
from quintet.net.cluster.listener import Report
from quintet.net.cluster.node import ClusterNode
from quintet.net.cluster.peers import Link, Peer
from quintet.net.cluster.trust import Trust
from quintet.net.cluster.wire import NodeSaid, PeerRefused, PlaceAsked
from quintet.process import notify

FINGERPRINT_BYTES: Final = 8  # of the key of the chain
ID_BYTES: Final = 8  # of a copy, random
PROGRESS_S: Final = 5.0  # between two lines that say how far a copy is
EXTEND_S: Final = (
    600.0  # for which systemd waits after each of them: a copy of one bundle and the check of all files take less
)
PLACE_S: Final = 4.0  # for a record that says where the cell belongs; who asked waits for five
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
    ("wal_begin", "Offset at which the WAL begins, as far as the node knows.", lambda row: row.said.wal_begin),
    ("wal_end", "Offset behind the last record of the WAL, as far as the node knows.", lambda row: row.said.wal_end),
    ("weaker", "How many things the WAL promises less than by default, by the node's configuration.", lambda row: len(row.said.weaker)),
    ("wal_reads_version", "Newest version of WAL records that the node reads.", lambda row: row.said.wal_reads),
    ("wal_writes_version", "Version of WAL records that the node writes, or would write if it led.", lambda row: row.said.wal_writes),
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
        self._hand = hand
        self.placing: Callable[[PlaceAsked, Future[None]], None] | None = None  # on the loop, with several cells
        self.of_place: Callable[[], dict[str, Any]] = dict  # what it says of itself as one of several cells
        self._data = settings.data
        self._anchors = settings.audit.anchor_file or settings.data / ANCHORS_NAME
        self._say = report
        chain = blake2b(chain_key, digest_size=FINGERPRINT_BYTES, person=b"quintet-chain").hexdigest()
        self._fixed = NodeSaid(
            cell.node,
            host=cell.host,
            version=__version__,
            lease_seconds=cell.lease_seconds,
            hold_seconds=cell.hold,
            chain=f"{settings.audit.chain} {chain}",
        )

    # -- copies --------------------------------------------------------------------------------------------------------

    def join(self, log: str, begin: int) -> None:
        """Before the log is opened: if the directory has none and the WAL begins above 0, fill it with a copy of another node. Blocks;
        raises NoCopy."""
        self.introduce(log)
        if self._data.is_dir():
            finish_move(self._data)
        if begin and not (self._data / "format").exists():
            self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._copy_from_any(begin)

    def _copy_from_any(self, begin: int) -> None:
        found, errors = self._givers()
        for address, said in sorted(found, key=lambda each: (each[1].role != "follower", -each[1].synced)):
            place = f"{said.node} at {address}"
            if said.synced < begin:
                errors.append(f"{place} has synced {said.synced} only")
                continue
            try:
                self._copy_from(address, place)
                return
            except (QuintetError, OSError) as error:
                errors.append(f"{place}: {error}")
                self._say("copy_cut_short", {"from": place, "error": str(error)})
        raise NoCopy(
            f"the WAL begins at offset {begin}, this node has nothing, and no other node gives it a copy:"
            f" {'; '.join(errors) or 'none is known'} [{NoCopy.code}]",
            hint="name nodes that run in cluster.peers",
        )

    def _givers(self) -> tuple[list[tuple[str, NodeSaid]], list[str]]:
        """Nodes that answer, by their addresses, and why others do not."""
        found: list[tuple[str, NodeSaid]] = []
        errors: list[str] = []
        addresses = list(self._addresses)
        for address in addresses:  # grows by what they tell
            try:
                link = Link(address, self.trust, self.hello)
            except (QuintetError, OSError) as error:
                errors.append(f"{address}: {error}")
                continue
            try:
                if link.hello.instance == self.hello.instance:
                    continue
                said = link.ask()
                found.append((address, said))
                addresses += [each for _, each in said.nodes if each not in addresses and each != self.address]
            except (QuintetError, OSError) as error:
                errors.append(f"{address}: {error}")
            finally:
                link.close()
        return found, errors

    def _copy_from(self, address: str, place: str) -> None:
        began = said_at = time.monotonic()
        self._say("copying", {"from": place, "into": str(self._data)})

        def progress(received: int) -> None:
            nonlocal said_at
            if time.monotonic() - said_at >= PROGRESS_S:
                said_at = time.monotonic()
                self._say("copying", {"from": place, "mib": received >> 20, "seconds": round(said_at - began)})
                notify(
                    f"EXTEND_TIMEOUT_USEC={round(EXTEND_S * 1e6)}\nSTATUS=copying from {place}: {received >> 20} MiB"
                )

        notify(f"EXTEND_TIMEOUT_USEC={round(EXTEND_S * 1e6)}\nSTATUS=copying from {place}")
        link = Link(address, self.trust, self.hello)
        try:
            offset = receive_copy(link, self._data, progress)
        finally:
            link.close()
        self._bring_anchors()
        self._say("copied", {"from": place, "wal_offset": offset, "seconds": round(time.monotonic() - began, 1)})

    def _bring_anchors(self) -> None:
        """If anchors are kept elsewhere, those of the copy go there, unless this node had some."""
        for suffix in ("", OLD_SUFFIX):
            came, wanted = f"{self._data / ANCHORS_NAME}{suffix}", f"{self._anchors}{suffix}"
            if came != wanted and os.path.exists(came):
                if not os.path.exists(wanted):
                    shutil.copyfile(came, wanted)
                os.unlink(came)

    def _copy(self, link: socket.socket, node: str) -> None:
        """In a thread: send a copy to a node."""
        began = time.monotonic()
        self._report("copy_asked", {"node": node})
        clocks = Clocks(self._now_us, lambda: time.monotonic_ns() // 1000, time.sleep)
        id = f"copy-{os.urandom(ID_BYTES).hex()}"
        send_copy(link, self._data.absolute(), self._anchors, clocks, id, self._log.hold_removals)
        self._report("copy_sent", {"node": node, "seconds": round(time.monotonic() - began, 1)})

    # -- several cells -------------------------------------------------------------------------------------------------

    def _place(self, asked: PlaceAsked) -> None:
        placing, done = self.placing, Future[None]()
        if placing is None:
            super()._place(asked)
            return
        self._hand(lambda: placing(asked, done))
        try:
            done.result(PLACE_S)
        except TimeoutError:
            raise PeerRefused(f"Kafka did not confirm it within {PLACE_S:g} s", reason="place") from None

    # -- what is said --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """On the loop: put down what this node says of itself."""
        for other in self.peers.lately():
            self._log.tell_begin(other.wal_begin)
        said, took = self._log.status(), self._log.take_over
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
                wal_reads=self._log.replica.newest,
                wal_writes=self._log.replica.version,
                take_over_seconds=took.seconds if took is not None else 0.0,
                take_over_at=took.at if took is not None else 0.0,
                **self.of_place(),
            )
        )

    def synced(self) -> list[int]:
        """What the other nodes have synced, of those that answered lately."""
        return [said.synced for said in self.peers.lately()]

    def wal_versions(self) -> list[int] | None:
        """The newest version of WAL records that each other node reads; None: one of them does not answer, so nobody knows."""
        known, monotonic = self.known(), time.monotonic()
        if not all(peer.is_up(monotonic) for peer in known):
            return None
        return [peer.said.wal_reads for peer in known if peer.said is not None]

    def nodes(self) -> list[Node]:
        """The followers that answer, as clients are told of them."""
        return sorted(
            Node(said.node, said.host, "follower", in_sync=not said.lag_records)
            for said in self.peers.lately()
            if said.role == "follower"
        )

    def rows(self) -> list[Row]:
        """All nodes, this one first."""
        own, monotonic = self.own(), time.monotonic()
        return [Row(own.node, self.address, own, True, 0.0, ""), *(_row(peer, monotonic) for peer in self.known())]

    def families(self) -> Sequence[Family]:
        return [*node_families(self.rows()), _refused(self.listener.refused)]


def _row(peer: Peer, monotonic: float) -> Row:
    said = peer.said if peer.said is not None else NodeSaid("")
    return Row(said.node, peer.address, said, peer.is_up(monotonic), peer.clock_seconds, peer.error)


def node_families(rows: Sequence[Row]) -> list[Family]:
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
