"""Runs a broker as one node of a cell (ADR 39): follows until it leads, serves while it leads, ends when it no longer does.

start: data directory -> WAL checked -> follow, with the admin listener only -> lead -> broker -> listeners -> ready line
fenced, lease over, files that cannot be written: exit code 75 at once, without another answer; whoever started it starts it again
TERM:  a follower closes its files and exits 0; a leader drains as any broker does

While a node follows, its doors lead to the same doors of the leader (net/forwarding, ADR 40), Flight answers reads from the replica
(broker/follower.py, ADR 43). Doors with port 0 are closed: nobody knows which port they have.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from quintet import figures, logs, server
from quintet.admin.app import create_app
from quintet.admin.health import Check
from quintet.admin.listener import serve_http
from quintet.admin.metrics import Family
from quintet.broker.cluster import Node
from quintet.broker.follower import FollowerBroker, tables_are_there
from quintet.cell_cluster import SAY_S, CellCluster, Row
from quintet.flight.section import FlightListener
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.log.replicated.engine import ReplicatedLog
from quintet.log.replicated.kafka import KafkaWal, WalOptions
from quintet.log.replicated.replica import Timing
from quintet.log.replicated.status import NodeRole, TakeOver
from quintet.model.errors import QuintetError
from quintet.model.sections import microseconds
from quintet.net.forwarding.doors import ForwardedDoor, Forwarding, forwarded_doors
from quintet.net.leased_turns import LeasedTurns
from quintet.net.loop import LoopScheduler
from quintet.process import leave_at_once, notify

FENCED_CODE: Final = 75  # EX_TEMPFAIL: start it again
LAPSED_CODE: Final = "E1516"
LOOK_S: Final = 0.02  # between two looks at a lease that is about to be renewed

_log = logs.Logger()


class CellView:
    """What the leader tells clients of its cell: itself, and the nodes that answer it over the cluster's listener."""

    def __init__(self, cluster_id: str, log: ReplicatedLog, cluster: CellCluster | None = None) -> None:
        self.cluster_id = cluster_id
        self._log = log
        self._cluster = cluster

    @property
    def node_id(self) -> str:
        return self._log.status().node

    @property
    def epoch(self) -> int:
        return self._log.status().epoch

    @property
    def nodes(self) -> Sequence[Node]:
        leader = self._log.leader_node
        leading = [Node(leader.name, leader.host, "leader")] if leader is not None else []
        return leading + (self._cluster.nodes() if self._cluster is not None else [])


class CurrentView:
    """What the admin listener asks: of a follower first, of the broker when the node leads."""

    def __init__(self, current: "figures.NodeView | figures.LeaderView", cluster: CellCluster | None) -> None:
        self.current = current
        self._cluster = cluster

    def checks(self) -> Sequence[Check]:
        return self.current.checks()

    def families(self) -> Sequence[Family]:
        return [*self.current.families(), *(self._cluster.families() if self._cluster is not None else ())]


class CellServer(server.Server):
    """A node. See server.Server for what it does while it leads."""

    turns_type = LeasedTurns
    cell: ReplicatedLog  # its log, by what only a node has
    view: CurrentView
    forwarding: Forwarding  # while it follows
    follower: FollowerBroker | None = None  # from when its tables are there until it leads
    _follower_ticker: asyncio.TimerHandle | None = None
    _follower_failed = False  # its tables cannot be read; said once, until they can
    cluster: CellCluster | None = None  # if it listens for other nodes

    def nodes(self) -> list[Row]:
        return [] if self.cluster is None else self.cluster.rows()

    def leader_host(self) -> str | None:
        """By which the leader is reached; None: nobody leads as far as this node knows, or it leads itself."""
        leader = self.cell.leader_node
        return leader.host or None if leader is not None and self.cell.role is not NodeRole.LEADER else None

    def _make_log(self, scheduler: LoopScheduler, make: Callable[..., EmbeddedLog] = EmbeddedLog) -> ReplicatedLog:
        cell, loop = self.settings.cell, asyncio.get_running_loop()
        hand = loop.call_soon_threadsafe  # not as a turn: it is what renews the lease
        options = self._wal_options()
        for weakness in options.weaknesses():
            _log.warning("weaker_wal", what=weakness, hint="acknowledged messages may be lost with a broker of Kafka")
        disk, lease = OsDisk(), microseconds(cell.lease_seconds)
        # A leader that nobody heard for more than a lease has ended. Nodes should not claim at the same moment.
        silence = lease * 5 // 4 + disk.entropy() % (lease // 4)
        timing = Timing(lease, microseconds(cell.hold), silence, lease // 4)
        wal = KafkaWal(options, hand, server.report)
        wal.on_replaced = lambda error: self._leave(str(error))
        make = partial(
            ReplicatedLog,
            wal=wal,
            node=cell.node,
            hand=hand,
            host=cell.host,
            timing=timing,
            join=self._join_by_copy,
            layout=self._layout(),
        )
        found = super()._make_log(scheduler, make)
        assert isinstance(found, ReplicatedLog)
        self.cell = found
        if self.settings.cluster.listen:
            key = server.chain_key(self.settings)
            self.cluster = CellCluster(self.settings, found, key, scheduler.now, hand, server.report)
        return found

    def _wal_options(self) -> WalOptions:
        cell = self.settings.cell
        return WalOptions(
            ",".join(cell.servers),
            cell.topic,
            replication=cell.replicas_min,
            min_insync=cell.in_sync_replicas_min,
            flush_messages=1 if cell.flushed else 0,
            client=cell.client(),
        )

    def _layout(self) -> str:
        """How topics are shared out among several cells; empty: there is one."""
        return ""

    def _follows(self) -> None:
        """It takes part: whoever started it may know."""
        notify("READY=1")

    async def _until_leading(self) -> bool:
        loop = asyncio.get_running_loop()
        leading: asyncio.Future[bool] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(
            signal.SIGHUP, lambda: _log.warning("reload_refused", hint="a follower reads it when it leads")
        )
        forwarding = self.forwarding = self._forwarding()
        await self._open_admin()
        await forwarding.start()
        self.cell.on_role_change(self._say_role)
        self.cell.on_role_change(forwarding.leader_changed)
        self.cell.take_part(partial(leading.set_result, True), self._leave)
        self._say_role()
        self._join_cluster()
        self._tick_follower()
        self._follows()
        stopped: asyncio.Future[bool] = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((leading, stopped), return_when=asyncio.FIRST_COMPLETED)
        await forwarding.stop()  # its addresses are free for the doors themselves
        if self._follower_ticker is not None:
            self._follower_ticker.cancel()
        if leading.done() and not self._stop.is_set():
            stopped.cancel()
            return True
        notify("STOPPING=1")
        await self._close_flight()
        await self._close_log()
        if self.admin is not None:
            await self.admin.stop()
        _log.info("stopped", role="follower")
        return False

    def _join_by_copy(self, log: str, begin: int) -> None:
        if self.cluster is not None:
            self.cluster.join(log, begin)

    def _join_cluster(self) -> None:
        """From here on the node answers others, and asks them."""
        if self.cluster is not None:
            self.cluster.start()
            self.cell.agree_on_version(self.cluster.wal_versions, self.settings.cluster.wal_version_max)
            if self.settings.cluster.trim:
                self.cell.trim_with(self.cluster.synced, microseconds(self.settings.cluster.wal_kept_seconds))
            self._say()

    def _say(self) -> None:
        assert self.cluster is not None
        self.cluster.look()
        asyncio.get_running_loop().call_later(SAY_S, self._say)

    # -- reads while it follows ------------------------------------------------------------------------------------

    def _tick_follower(self) -> None:
        """Open Flight when there is something to read by; then fold what the leader writes."""
        door = self.settings.listeners.flight
        if not (door.enabled and door.port and self.settings.cell.follower_reads):
            return
        try:
            if self.follower is not None:
                self.follower.tick()
            elif tables_are_there(self.cell):
                self.follower = self._make_follower(door)
                self._open_flight_for(self.follower, door)
            self._follower_failed = False
        except (QuintetError, OSError) as error:
            if not self._follower_failed:
                _log.error(
                    "follower_reads_refused",
                    error=str(error),
                    hint="reads go to another node; this one goes on to follow",
                )
            self._follower_failed = True
        self._follower_ticker = asyncio.get_running_loop().call_later(
            server.TICK_S, self.turns.run, self._tick_follower
        )

    @property
    def _follower_type(self) -> type[FollowerBroker]:
        return FollowerBroker

    def _make_follower(self, door: FlightListener) -> FollowerBroker:
        settings = self.settings
        return self._follower_type(
            self.cell,
            self._scheduler,
            server.broker_options(settings),
            server.users_of(settings)[0],
            server.report,
            node=settings.cell.node,
            age_us=microseconds(settings.cell.follower_age_seconds),
            leader=lambda: _place(self.leader_host(), door.port),
        )

    def _open_flight(self, door: FlightListener) -> None:
        """Whoever reads here goes on to do so, now from the leader."""
        if self.flight is None:
            super()._open_flight(door)
        else:
            self.flight.lead(self.broker)
        if self.follower is not None:
            self.follower.events.say()
            self.follower = None

    async def _close_flight(self) -> None:
        """Streams end with their next batch; who takes nothing is not waited for."""
        if self.flight is None:
            return
        self.flight.close()
        until = asyncio.get_running_loop().time() + server.GOODBYE_S
        while not self.flight.closed and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(LOOK_S)
        if self._bridge is not None:
            self._bridge.close()
        if self.follower is not None:
            self.follower.events.say()

    def _forwarding(self) -> Forwarding:
        listeners = self.settings.listeners
        doors = forwarded_doors(listeners.doors, listeners.of)
        return Forwarding(self._reachable(doors), self.leader_host, server.report)

    def _reachable(self, doors: Sequence[ForwardedDoor]) -> list[ForwardedDoor]:
        """Those whose port is known, and the console, whose pages are the leader's."""
        console = self.settings.listeners.console
        shown = [ForwardedDoor("console", console.host, console.port)] if console.enabled else []
        return [door for door in (*doors, *shown) if door.port]

    def _say_role(self) -> None:
        said = self.cell.status()
        leader = said.leader
        fields = {"node": said.node, "role": said.role.value, "epoch": said.epoch, "wal_offset": said.applied}
        _log.info("cell", **fields, leader=leader.name if leader else "", leader_host=leader.host if leader else "")
        notify(f"STATUS={said.role.value} of epoch {said.epoch}")

    async def _open_admin(self) -> None:
        door = self.settings.listeners.admin
        if not door.enabled:
            return
        if self.admin is None:
            node = figures.NodeView(self.cell, self.forwarding.figures, lambda: self.flight)
            self.view = CurrentView(node, self.cluster)
            self.admin = await serve_http(create_app(self.view, self.view), door.host, door.port)
        else:
            self.view.current = figures.LeaderView(self, self.cell, door.labels_max)

    async def _open_doors(self) -> None:
        """The broker's start kept the loop, so the lease may be over: it is renewed before anybody is answered."""
        assert isinstance(self.turns, LeasedTurns)
        while not self.cell.may_answer():
            await asyncio.sleep(LOOK_S)
        lapsed = f"{LAPSED_CODE}: its lease is over: Kafka confirmed nothing for {self.settings.cell.lease_seconds:g} s"
        self.turns.guard(self.cell.may_answer, partial(self._leave, lapsed))
        self.broker.cluster = CellView(self.settings.cell.topic, self.cell, self.cluster)
        await super()._open_doors()
        self._took_over()

    def _took_over(self) -> None:
        """Its doors are open: how long nobody answered, as far as this node can know."""
        scheduler = self._scheduler
        seconds = (scheduler.monotonic() - self.cell.replica.heard) / 1e6
        self.cell.take_over = TakeOver(seconds, scheduler.now() / 1e6)
        _log.info("took_over", epoch=self.cell.status().epoch, seconds=round(seconds, 3))

    def _leave(self, reason: str) -> None:
        sys.stderr.write(
            f"quintet: node {self.settings.cell.node} left its cell: {reason} (start it again: it follows)\n"
        )
        leave_at_once(FENCED_CODE)


def _place(host: str | None, port: int) -> str:
    if not host:
        return ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
