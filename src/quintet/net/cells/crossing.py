"""Carries legs of this node's fronts to the node that leads their cell, while this process follows it (ADR 47).

    front --> local socket of the cell --> Crossing --> the leader's RemoteLegs, over TLS between nodes
    front <-- local socket of the cell <-- Crossing <-- alike, each with the pace of the slower side

So a front always opens a leg to the local socket of a cell, whoever leads it. A leg that comes while nobody leads waits for LEADER_S.
When the leader changes, its legs end, and so do the connections of the clients that used them, as when a broker dies.
"""

import asyncio
import os
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, cast

from quintet.model import limits
from quintet.net.cells import wire
from quintet.net.cluster.trust import handshake_sentence, node_of
from quintet.net.cluster.wire import PeerRefused
from quintet.net.listener import Report

BUFFER_BYTES_MAX: Final = 256 * limits.KIB  # that one side has not taken; above it the other is not read from
CONNECT_S: Final = 5.0
LEADER_S: Final = 15.0  # a take-over takes a little more than two leases
LOOK_S: Final = 0.05
GONE: Final = "the front has ended the leg"
SILENT: Final = "if it does not take this node's certificate, its log says so: leg_refused"


class Way(NamedTuple):
    """To the leader of the cell."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    greeting: bytes
    node: str = ""  # that its certificate must name


class _Side(asyncio.Protocol):
    __slots__ = ("crossing", "error", "other", "transport")

    def __init__(self, crossing: "Crossing") -> None:
        self.crossing = crossing
        self.other: _Side
        self.transport: asyncio.Transport | None = None
        self.error: Exception | None = None  # with which it was lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX)

    @property
    def is_lost(self) -> bool:
        return self.transport is None

    def data_received(self, data: bytes) -> None:
        if self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport, self.error = None, error
        self.crossing.lost(self)


class _Far(_Side):
    """The leader's side. If it refuses this node, it says why first (wire.py, ENDED); nothing else that it sends begins so."""

    __slots__ = ("is_silent",)

    def __init__(self, crossing: "Crossing") -> None:
        super().__init__(crossing)
        self.is_silent = True  # until it has said something

    def data_received(self, data: bytes) -> None:
        if self.is_silent and data[0] == wire.ENDED:
            for _, said in wire.Reader().feed(data):
                self.crossing.refused(said.decode(errors="replace"))
        self.is_silent = False
        super().data_received(data)


class Crossing:
    """One leg. The front's socket is read from when the leader's side is there."""

    __slots__ = ("_owner", "_task", "far", "near", "way")

    def __init__(self, owner: "Crossings", front: socket.socket) -> None:
        self._owner = owner
        self.way: Way | None = None
        self.near, self.far = _Side(self), _Far(self)
        self.near.other, self.far.other = self.far, self.near
        self._task = asyncio.get_running_loop().create_task(self._join(front))

    async def _join(self, front: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LEADER_S):
                while (way := self._owner.way()) is None and not is_gone(front):
                    await asyncio.sleep(LOOK_S)
            if way is None:
                raise ConnectionResetError(GONE)
            self.way = way
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(lambda: self.far, way.host, way.port, ssl=way.tls)
            if self.far.transport is None:
                raise self.far.error or ConnectionResetError("it closed the connection")
            check_node(self.far.transport, way)
            if is_gone(front):
                raise ConnectionResetError(GONE)
            self.far.transport.write(way.greeting)
            await loop.connect_accepted_socket(lambda: self.near, front)
        except (OSError, TimeoutError, PeerRefused) as error:
            if str(error) != GONE:
                self._owner.failed(self.way, sentence(error))
            front.close()
            self.end()
            return
        except asyncio.CancelledError:
            front.close()
            raise
        if self.far.is_lost:  # meanwhile
            self._say_if_silent()
            self.end()

    def _say_if_silent(self) -> None:
        if self.far.is_silent:
            self.far.is_silent = False
            self.refused(f"it ended the connection before it said anything ({SILENT})")

    def lost(self, side: _Side) -> None:
        """What the other side was sent before it ended still goes out: it may be an answer, or why the leg ends. If a leader does not take
        this node's certificate it ends the connection behind the handshake, and says nothing here: asyncio sends no alert."""
        if side is self.far and self.near.transport is not None:
            self._say_if_silent()
        if side.other.transport is not None:
            side.other.transport.close()
        if self.near.transport is None and self.far.transport is None:
            self._owner.open.discard(self)

    def refused(self, reason: str) -> None:
        self._owner.failed(self.way, reason)

    def end(self) -> None:
        if asyncio.current_task() is not self._task:
            self._task.cancel()
        self._owner.open.discard(self)
        for side in (self.near, self.far):
            if side.transport is not None:
                side.transport.close()


class Crossings:
    """All legs of one cell that this node does not lead. way: to the leader; None: nobody is known to lead. closes: nobody else accepts
    there later."""

    def __init__(
        self, accepting: socket.socket, way: Callable[[], Way | None], report: Report, *, closes: bool = False
    ) -> None:
        self._closes = closes
        self.way = way
        self.open: set[Crossing] = set()
        self.failures = 0
        self._accepting = accepting
        self._report = report
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """No asyncio.Server: that would close the socket at its end, which whoever accepts next still needs."""
        self._loop.add_reader(self._accepting.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            front, _ = self._accepting.accept()
        except (BlockingIOError, ConnectionError):
            return
        front.setblocking(False)
        self.open.add(Crossing(self, front))

    def failed(self, way: Way | None, error: str) -> None:
        self.failures += 1
        where = f"{way.host}:{way.port}" if way is not None else "nobody leads"
        self._report("leg_not_carried", {"leader": where, "error": error})

    def leader_changed(self) -> None:
        """End what leads elsewhere than to the leader of now."""
        now = self.way()
        for crossing in list(self.open):
            if crossing.way is not None and (now is None or crossing.way[:2] != now[:2]):
                crossing.end()

    def stop(self) -> None:
        self._loop.remove_reader(self._accepting.fileno())
        if self._closes:
            os.unlink(self._accepting.getsockname())
            self._accepting.close()
        for crossing in list(self.open):
            crossing.end()


def check_node(transport: asyncio.Transport, way: Way) -> None:
    """PeerRefused unless the other side has the certificate of the node that leads."""
    if way.tls is not None and (named := node_of(transport.get_extra_info("peercert") or {})) != way.node:
        raise PeerRefused(f"{way.node} should be there, and the certificate is of {named}", reason="name")


def sentence(error: Exception) -> str:
    """Why a leg is not carried."""
    if isinstance(error, ssl.SSLError):
        return handshake_sentence(error)
    return str(error) or type(error).__name__


def is_gone(front: socket.socket) -> bool:
    """Has the front ended the leg? Then what it sent is not carried: its client is gone, and may have said newer things elsewhere."""
    looking = select.poll()
    looking.register(front, select.POLLHUP)
    return bool(looking.poll(0))


class Leaving:
    """Closes clients that are handed over to a process that follows: they connect again, and reach one that leads."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(listening.fileno(), self._accept)

    def _accept(self) -> None:
        with suppress(OSError):
            self._listening.accept()[0].close()  # with the descriptors that wait in it

    def stop(self) -> None:
        self._loop.remove_reader(self._listening.fileno())
