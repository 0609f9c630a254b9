"""Opens the doors of one of several processes of a broker (ADR 44): which, on which sockets, and with which sessions.

    doors with a router      in every process, at the same address; each of their connections reaches every cell
    ... over QUIC            in cell 0 alone; each of its streams reaches every cell
    the others               in cell 0 alone

The listener for legs of other processes is among the listeners, so that it is closed and its rights looked at again with them.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from quintet.model.cells import HOME, CellMap
from quintet.model.client_address import ClientAddress
from quintet.net.cells import wire
from quintet.net.cells.back import NAME, LegListener, Make, makes_for
from quintet.net.cells.front import CellSession
from quintet.net.cells.handing import Taking, hand_over
from quintet.net.cells.sockets import handed_path, link_path
from quintet.net.cells.streams import FEEDS, CellStreamSession, Linked
from quintet.net.connection import Connection
from quintet.net.doors import OpenDoors
from quintet.net.listener import Listener
from quintet.net.quic.listener import QuicListener
from quintet.net.quic.streams import Stream
from quintet.protocols.base import Session, SessionConnection, StreamSession
from quintet.protocols.door import AnyDoor, MakeSession, Options


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where one process stands among the processes of its broker."""

    cell: int
    cells: CellMap
    links: Path  # the folder of the sockets between processes
    sockets: dict[str, socket.socket]  # by door: what its listener accepts from
    legs: socket.socket  # what it accepts from other processes
    handed: socket.socket  # where other processes hand clients over to it

    def path(self, cell: int) -> str:
        return link_path(self.links, cell)

    def hand_over(self, cell: int, connection: SessionConnection, said: wire.Opening, read: bytes) -> bool:
        assert isinstance(connection, Connection)
        return hand_over(handed_path(self.links, cell), connection, said, read)


class CellDoors(OpenDoors):
    """The doors of one process."""

    place: ProcessPlace  # set before the first is opened

    async def open(self, door: AnyDoor, options: Options) -> None:
        if door.in_every_process or self.place.cell == HOME:
            await super().open(door, options)
        elif door.route is not None:
            self._add_streams(door, door.open(self._broker, options))

    async def open_links(self, own: Mapping[str, Make]) -> None:
        """Listen for the other processes; own: what they reach beside the doors."""
        self._makes: dict[str, Make] = {**own}
        self._linked = Linked(self._turns)
        listener = LegListener(self.place.legs, self._makes, self._report, self._output, self._turns)
        await listener.start()
        self.listeners[NAME] = listener
        self.taking = Taking(self.place.handed, self._listener)

    @property
    def makes(self) -> Mapping[str, Make]:
        """How sessions for legs are made, by door."""
        return self._makes

    def _listener(self, door: str) -> Listener:
        listener = self.listeners[door]
        assert isinstance(listener, Listener)
        return listener

    def _tcp(self, door: AnyDoor, options: Options, make: MakeSession) -> Listener:
        if door.route is None:
            return super()._tcp(door, options, make)
        self._makes[door.name] = makes_for(make, partial(self._address, door.name))
        listener = super()._tcp(door, options, make)
        listener.options = replace(listener.options, listening=self.place.sockets[door.name])
        listener.make_session = partial(self._front, door=door, options=options, make=make)
        return listener

    def _quic(self, door: AnyDoor, options: Options, make: MakeSession) -> QuicListener:
        listener = super()._quic(door, options, make)
        if door.route is not None:
            listener.make_session = partial(self._stream_front, door=door, options=options, make=make)
        return listener

    def _stream_front(self, stream: Stream, door: AnyDoor, options: Options, make: MakeSession) -> StreamSession:
        inner = make(stream, stream.peer, self._address(door.name))
        assert door.route is not None
        place = self.place
        router: Any = door.route(place.cells, place.cell, options, inner)
        shared: Any = stream.streams.shared
        return CellStreamSession(inner, router, shared, stream, self._turns, place, place.cell, door.name, stream.peer)

    def _add_streams(self, door: AnyDoor, make: MakeSession) -> None:
        """What streams of cell 0's door reach in this cell."""

        def made(connection: Connection, peer: ClientAddress, said: wire.Opening) -> Session | None:
            stream = self._linked.stream(connection, said)
            return None if stream is None else cast(Session, make(stream, peer, ""))

        self._makes[door.name] = made
        self._makes[door.name + FEEDS] = self._linked.feeds

    def _front(self, connection: Connection, door: AnyDoor, options: Options, make: MakeSession) -> Session:
        inner: Session = make(connection, connection.peer, self._address(door.name))
        assert door.route is not None
        place = self.place
        router = door.route(place.cells, place.cell, options, inner)
        return CellSession(inner, router, connection, self._turns, place, place.cell, door.name, connection.peer)
