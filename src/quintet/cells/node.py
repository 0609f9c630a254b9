"""Runs the process of one cell on one of several nodes over Apache Kafka (ADR 47): leads its partition of the WAL or follows it.

    follows   legs to this cell are carried to its leader (net/cells/crossing.py), and so is what the Flight door and the console of cell 0 ask
              the leader of this cell (ADR 53); the doors of this process are closed. In cell 0 the doors without a router lead to its
              leader, and so do all others while no process of this node leads a cell
    leads     a broker behind the doors that all processes share, as on one machine (cells/process.py), and a listener for legs of
              other nodes
    leaves    another node should lead (cells/sharing.py): it drains, says so in its last record, ends, and comes back as a follower

Ports, from that of cluster.listen on: one for each cell where its processes talk to each other, then one for each cell for legs.
"""

import asyncio
import contextlib
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quintet import figures, logs, server
from quintet.admin.app import create_app
from quintet.admin.listener import serve_http
from quintet.broker.follower import FollowerBroker, JudgedBroker
from quintet.cell_server import CellServer, CurrentView
from quintet.cells.figures import Answering, CellsView, figures_path
from quintet.cells.placing import Placing
from quintet.cells.process import CellProcess
from quintet.cells.sharing import wanted
from quintet.cells.supervisor import Load, serve_cells
from quintet.config import Settings
from quintet.config.renaming import OldName
from quintet.flight.section import FlightListener
from quintet.log.replicated.kafka import WalOptions
from quintet.log.replicated.records import Placement
from quintet.log.replicated.status import NodeRole
from quintet.model.cells import parse_place
from quintet.net.cells import wire
from quintet.net.cells.crossing import Crossings, Leaving, Way
from quintet.net.cells.doors import ProcessPlace
from quintet.net.cells.remote import NAME as LEGS
from quintet.net.cells.remote import Greeting, RemoteLegs, greeting
from quintet.net.cells.sockets import console_path, flight_lead_path, flight_path, listen_between
from quintet.net.cluster.node import ANY
from quintet.net.cluster.wire import NodeSaid, PeerRefused, PlaceAsked
from quintet.net.forwarding.addresses import shown
from quintet.net.forwarding.doors import Forwarding, forwarded_doors
from quintet.net.leased_turns import LeasedTurns
from quintet.net.tls import load_into
from quintet.protocols.base import SessionConnection
from quintet.protocols.options import split_address

if TYPE_CHECKING:
    from quintet.flight.server import Door

LOOK_S: Final = 0.2  # between two looks whether another process of this node leads
PLACE_LOOK_S: Final = 1.0  # between two looks at which node should lead
STEADY_LEASES: Final = (
    2.0  # for which a node should lead before a cell moves to it: one that starts again and again gets none
)
CERTIFICATE_S: Final = 60.0  # after which certificates are read again

FLIGHT: Final = "flight"  # where tunnels lead to
CONSOLE: Final = "console"

_log = logs.Logger()


class NodePlace(ProcessPlace):
    """Which processes of this node lead their cells: a file for each that does, in the folder of the sockets."""

    def _mark(self, cell: int) -> str:
        return str(self.links / f"leads-{cell}")

    def open_doors(self) -> None:
        with open(self._mark(self.cell), "w"):
            pass

    def close_doors(self) -> None:
        """Nobody connects here any more. The sockets stay bound: the process that started this one has them, too."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._mark(self.cell))
        self.stop_listening()

    def stop_listening(self) -> None:
        """Linux takes them out of those that share their ports; `listen` brings them back. Not one that does not listen: what it accepts
        later would be shut down from its beginning."""
        for bound in self.sockets.values():
            if bound.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                bound.shutdown(socket.SHUT_RDWR)

    def leads(self, cell: int) -> bool:
        return os.path.exists(self._mark(cell))

    def any_leads(self) -> bool:
        return any(self.leads(cell) for cell in range(self.cells.count))

    def hand_over(self, cell: int, connection: SessionConnection, said: wire.Opening, read: bytes) -> bool:
        return self.leads(cell) and super().hand_over(cell, connection, said, read)


class NodeCell(CellServer, CellProcess):
    """See cell_server.CellServer for how it leads, cells.process.CellProcess for its doors."""

    place_type = NodePlace
    place: NodePlace
    _inner_flight: "Door | None" = None  # of the leader of cell 0, for other nodes
    _detour: Forwarding | None = None  # of doors with a router, in cell 0, while no process of this node leads
    _view: CurrentView | None = None
    _legs: RemoteLegs | None = None
    _legs_tls: ssl.SSLContext | None = None
    _dials_tls: ssl.SSLContext | None = None
    _tls_read_at = 0.0
    _placing: Placing
    _successor = ""
    _elsewhere: tuple[str, float] = ("", 0.0)  # which node should lead in place of this one, and since when

    @staticmethod
    def flags_of(settings: Settings, cell: int) -> dict[str, object]:
        return {
            "cluster.listen": next_address(settings.cluster.listen, cell),
            "cluster.peers": tuple(next_address(peer, cell) for peer in settings.cluster.peers),
        }

    def _wal_options(self) -> WalOptions:
        return replace(super()._wal_options(), partition=self.place.cell, partitions=self.place.cells.count)

    def _layout(self) -> str:
        return self.place.cells.layout

    def _flight_type(self, door: "type[Door]") -> "Callable[..., Door]":
        found = super()._flight_type(door)
        return partial(found, over_nodes=True) if self.is_home else found

    @property
    def _follower_type(self) -> type[FollowerBroker]:
        return FollowerBroker if self.is_home else JudgedBroker

    # -- while it follows ----------------------------------------------------------------------------------------------

    async def _until_leading(self) -> bool:
        self.place.close_doors()
        asyncio.get_running_loop().add_reader(self._alive, self._left_alone)
        assert self.cluster is not None, "the configuration asks for cluster.listen"
        self._placing = Placing(self.cell)
        self.cluster.placing, self.cluster.of_place = self._place_as_asked, self._said_of_place
        carried = [Crossings(self.place.legs, self._way, server.report), *self._tunnels()]
        for each in carried:
            each.start()
            self.cell.on_role_change(each.leader_changed)
        leaving = Leaving(self.place.handed)
        detour = asyncio.ensure_future(self._open_detour()) if self.is_home else None
        led = await super()._until_leading()
        if detour is not None:
            detour.cancel()
            await self._close_detour()
        leaving.stop()
        for each in carried:
            each.stop()
        return led

    def _tunnels(self) -> list[Crossings]:
        """What other processes of this node ask the leader of this cell."""
        links, cell = self.place.links, self.place.cell
        paths = {FLIGHT: flight_lead_path(links, cell), CONSOLE: console_path(links, cell)}
        return [
            Crossings(listen_between(path), partial(self._way, to), server.report, closes=True)
            for to, path in paths.items()
            if to == FLIGHT or not self.is_home
        ]

    def _forwarding(self) -> Forwarding:
        """Doors with a router are not among them: other processes of this node may have them open."""
        listeners = self.settings.listeners
        doors = [door for door in listeners.doors if not door.in_every_process]
        found = self._reachable(forwarded_doors(doors, listeners.of)) if self.is_home else []
        return Forwarding(found, self.leader_host, server.report)

    async def _open_detour(self) -> None:
        """Doors with a router lead to the leader of this cell, while no process of this node leads one."""
        listeners = self.settings.listeners
        doors = forwarded_doors((door for door in listeners.doors if door.in_every_process), listeners.of)
        sockets = self.place.sockets
        while True:
            needed = not self.place.any_leads()
            if needed and self._detour is None:
                bound = [
                    replace(door, port=sockets[door.name].getsockname()[1], listening=sockets[door.name])
                    for door in doors
                ]
                self._detour = Forwarding(bound, self.leader_host, server.report)
                self.cell.on_role_change(self._detour.leader_changed)
                await self._detour.start()
            elif not needed:
                await self._close_detour()
            await asyncio.sleep(LOOK_S)

    async def _close_detour(self) -> None:
        detour, self._detour = self._detour, None
        if detour is not None:
            self.place.stop_listening()
            await detour.stop()

    def _way(self, to: str = "") -> Way | None:
        """To the leader of this cell; to: for a tunnel to this socket of it."""
        leader, cluster = self.cell.leader_node, self.cluster
        assert cluster is not None
        if leader is None:
            return None
        said = next((each for each in cluster.peers.lately() if each.node == leader.name and each.legs), None)
        if said is None:
            return None
        host, port = split_address(said.legs)
        self._read_certificates()
        said_first = greeting(Greeting(self.settings.cell.node, cluster.hello.log, to))
        return Way(host, port, self._dials_tls, said_first, leader.name)

    def _read_certificates(self) -> None:
        """For connections to come: a renewed certificate needs no restart."""
        assert self.cluster is not None
        trust = self.cluster.trust
        if trust.certificate is None or trust.key is None or time.monotonic() - self._tls_read_at < CERTIFICATE_S:
            return
        self._dials_tls = trust.context(server_side=False)
        if self._legs_tls is not None:
            load_into(self._legs_tls, trust.certificate, trust.key)
        self._tls_read_at = time.monotonic()

    def _follows(self) -> None:
        self._look_at_place()
        addresses = {name: shown(*bound.getsockname()[:2]) for name, bound in self.place.sockets.items()}
        addresses |= {door.name: shown(door.host, door.port) for door in self.forwarding.doors}
        if self.admin is not None:
            addresses["admin"] = self.admin.address
        os.write(self._ready, json.dumps({"listeners": addresses}).encode() + b"\n")

    # -- while it leads ------------------------------------------------------------------------------------------------

    async def _open_doors(self) -> None:
        if self.cell.placement is None:
            placed = asyncio.Event()
            self.cell.place(Placement(self._layout()), placed.set)
            await placed.wait()
        await super()._open_doors()
        self.place.open_doors()

    async def _open_legs(self) -> None:
        """Before the doors: the leader of cell 0 may be on another node, and says over a leg who may do what."""
        cluster = self.cluster
        assert cluster is not None
        host, port = split_address(self.settings.cluster.listen)
        port += self.place.cells.count if port else 0
        trust, links, cell = cluster.trust, self.place.links, self.place.cell
        self._legs_tls = None if trust.certificate is None else trust.context(server_side=True)
        legs = RemoteLegs(
            (host, port),
            cluster.hello.log,
            self.cell_doors.makes,
            server.report,
            self._legs_tls,
            self.output,
            self.turns,
            {FLIGHT: flight_path(links, cell), CONSOLE: console_path(links, cell)},
        )
        await legs.start()
        self.listeners[LEGS] = self._legs = legs

    def _open_flight(self, door: FlightListener) -> None:
        """From here on this process is what `flight-lead` leads to."""
        super()._open_flight(door)
        links, cell = self.place.links, self.place.cell
        if self.is_home and self.flight is not None:
            from quintet.flight.cells import InnerDoor  # late: who has no pyarrow has no such door

            self._inner_flight = InnerDoor(
                self.broker,
                self._bridge,
                door,
                self.settings.data,
                os.urandom,
                server.report,
                pipelines=self.flight.pipelines,
                path=flight_path(links, cell),
            )
        os.symlink(flight_path(links, cell), flight_lead_path(links, cell))

    async def _open_admin(self) -> None:
        door, place = self.settings.listeners.admin, self.place
        if self._view is not None:
            self._view.current = figures.LeaderView(self, self.cell, door.labels_max)
            return
        node = figures.NodeView(self.cell, self._forwarded, lambda: self.flight, carries=True)
        self._view = CurrentView(node, self.cluster)
        if not self.is_home:
            self._answering = Answering(self._view)
            await self._answering.start(figures_path(place.links, place.cell))
        elif door.enabled:
            self._all = CellsView(self._view, place.links, place.cells.count)
            self._all.start()
            self.admin = await serve_http(create_app(self._all, self._all), door.host, door.port)

    def _forwarded(self) -> dict[str, dict[str, int]]:
        detour = self._detour.figures() if self._detour is not None else {}
        return {**self.forwarding.figures(), **detour}

    def addresses(self) -> dict[str, str]:
        return {name: where for name, where in super().addresses().items() if name != LEGS}

    def _announce(self, print_ready: bool) -> None:
        """Whoever started this process knows since it follows."""
        addresses = self.addresses()
        if self.is_home:
            self._advise(addresses)
        _log.info("cell_ready", cell=self.place.cell, data=str(self.settings.data), listeners=addresses)

    # -- which node should lead ----------------------------------------------------------------------------------------

    def _look_at_place(self) -> None:
        asyncio.get_running_loop().call_later(PLACE_LOOK_S, self._look_at_place)
        own, replica = self.settings.cell.node, self.cell.replica
        name = self._wanted()
        replica.patience_us = 0 if name == own else replica.timing.lease_us
        if self._legs is None or self._stop.is_set() or name in ("", own):
            self._elsewhere = ("", 0.0)
            return
        if self._elsewhere[0] != name:
            self._elsewhere = (name, time.monotonic())
        placement = self.cell.placement
        asked = placement is not None and (placement.node == name or own in placement.avoided)
        steady = time.monotonic() - self._elsewhere[1] >= STEADY_LEASES * self.settings.cell.lease_seconds
        if (asked or steady) and self._is_caught_up(name):
            _log.info("cell_moves", cell=self.place.cell, to=name, asked=asked)
            self._successor = name
            self._stop.set()

    def _wanted(self) -> str:
        assert self.cluster is not None
        names = [self.settings.cell.node, *(said.node for said in self.cluster.peers.lately())]
        placement = self.cell.placement
        moved, avoided = (placement.node, placement.avoided) if placement is not None else ("", ())
        return wanted(self.place.cell, self.place.cells.count, names, moved, avoided)

    def _is_caught_up(self, name: str) -> bool:
        said = self._said_by(name)
        return said is not None and said.role == NodeRole.FOLLOWER and not said.lag_records

    def _said_by(self, name: str) -> NodeSaid | None:
        assert self.cluster is not None
        return next((said for said in self.cluster.peers.lately() if said.node == name), None)

    def _said_of_place(self) -> dict[str, Any]:
        legs, placement = "", self.cell.placement
        if self._legs is not None and not self.draining:
            host, _, port = self._legs.address.rpartition(":")
            legs = shown(self.settings.cell.host, int(port)) if host.strip("[]") in ANY else self._legs.address
        found: dict[str, Any] = {"legs": legs, "wanted": self._wanted()}
        if placement is not None:
            found |= {"moved": placement.node, "avoided": placement.avoided}
        return found

    def _place_as_asked(self, asked: PlaceAsked, done: "Future[None]") -> None:
        try:
            self._check_place(asked)
            self._placing.ask(asked, partial(done.set_result, None))
        except PeerRefused as error:
            done.set_exception(error)

    def _check_place(self, asked: PlaceAsked) -> None:
        own = self.settings.cell.node
        if self._legs is None or self.cell.placement is None or self.draining:
            raise PeerRefused(f"{own} does not lead cell {self.place.cell}", reason="place", hint="ask its leader")
        for name in (asked.move, asked.drain):
            if name and name != own and self._said_by(name) is None:
                raise PeerRefused(f"{own} knows no node {name} that is up", reason="place", hint="quintet cell list")

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _drain_reason(self) -> str:
        """The node itself goes on when one of its cells moves."""
        if not self._successor:
            return super()._drain_reason()
        return f"cell {self.place.cell} moves from node {self.settings.cell.node} to node {self._successor}"

    async def _drain(self) -> None:
        self.place.close_doors()
        if self._inner_flight is not None:
            self._inner_flight.close(self._drain_reason())
        await super()._drain()

    async def _close_log(self) -> None:
        """Every connection is closed: the last record says that nobody need wait for the lease."""
        if self.cell.may_answer():
            assert isinstance(self.turns, LeasedTurns)
            self.turns.guard(lambda: True, lambda: None)
            self.cell.successor = self._successor
        await super()._close_log()


def next_address(text: str, more: int) -> str:
    """The same host, so many ports further; port 0 stays what it is."""
    host, port = split_address(text)
    return shown(host, port + more if port else 0)


def serve_node(settings: Settings, load: Load, *, print_ready: bool, old_names: Iterable[OldName] = ()) -> int:
    """Run the cells of one node until it is told to stop; its exit code."""
    places = [parse_place(text) for text in settings.cell.places]
    return serve_cells(
        settings, load, settings.cell.cells, places, print_ready=print_ready, old_names=old_names, process=NodeCell
    )
