"""Relays the datagrams of a QUIC door to the leader: one socket for each client address, so that answers find their way back.

    client --> listening socket --> socket of that client --> leader
    client <-- listening socket <-- socket of that client <-- leader

Datagrams are not read. What cannot be sent at once is dropped, as a network does: QUIC sends it again. The table of clients is bounded
by its size and by silence. UDP has no refusal but that of the host: while no leader is known, or it refuses, the listening socket
is closed, so that clients are told by the host that nobody listens, and try another node.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from quintet.kernel.items import SocketAddress
from quintet.net.forwarding.addresses import is_ourselves, shown

DATAGRAM_BYTES_MAX: Final = 65_535
READS_MAX: Final = 64  # datagrams of one socket in one call of the loop
WAITING_MAX: Final = 64  # datagrams kept while the leader's name is looked up
LOOK_S: Final = 0.25  # how often silence, and whether there is a leader, are looked at
REFUSED_S: Final = 1.0  # for which the door stays closed after the leader's host refused
SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024  # of the listening socket, which all clients share


class Client:
    """One client address and its socket to the leader."""

    __slots__ = ("address", "heard_at", "upstream")

    def __init__(self, address: SocketAddress, upstream: socket.socket, now: float) -> None:
        self.address = address
        self.upstream = upstream
        self.heard_at = now


class Relay:
    """All clients of one QUIC door."""

    def __init__(self, host: str, port: int, target_port: int, clients_max: int, idle_seconds: float) -> None:
        self._host, self._port = host, port
        self._target_port = target_port
        self._clients_max = clients_max
        self._idle_s = idle_seconds
        self._leader: Callable[[], str | None] = lambda: None
        self._loop: asyncio.AbstractEventLoop
        self._socket: socket.socket | None = None
        self._clients: dict[SocketAddress, Client] = {}
        self._target: tuple[str, int, SocketAddress] | None = None  # host as it was named, family, address
        self._lookup: asyncio.Task[None] | None = None
        self._waiting: list[tuple[SocketAddress, bytes]] = []
        self._refused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._in = self._out = self._dropped = self._accepted = self._full = 0

    async def start(self, host: str, port: int, leader: Callable[[], str | None]) -> None:
        """OSError if the address cannot be had, also if there is no leader yet."""
        self._leader = leader
        self._loop = asyncio.get_running_loop()
        self._open()
        self._look()

    @property
    def address(self) -> str:
        return shown(self._host, self._port)

    # -- the listening socket --------------------------------------------------------------------------------------

    def _open(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_DGRAM)
        try:
            made.setblocking(False)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                made.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
            made.bind((self._host, self._port))
        except BaseException:
            made.close()
            raise
        self._port = made.getsockname()[1]
        self._socket = made
        self._loop.add_reader(made.fileno(), self._from_clients)

    def _shut(self) -> None:
        for client in list(self._clients.values()):
            self._forget(client)
        self._waiting.clear()
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _look(self) -> None:
        """Whether the door is open follows from whether there is a leader that takes datagrams."""
        self._timer = self._loop.call_later(LOOK_S, self._look)
        monotonic = self._loop.time()
        wanted = self._leader() is not None and monotonic >= self._refused_until
        if not wanted:
            self._shut()
        elif self._socket is None:
            try:
                self._open()
            except OSError:
                return  # somebody has the port for a moment: it is tried again
        for client in [each for each in self._clients.values() if monotonic - each.heard_at > self._idle_s]:
            self._forget(client)

    # -- datagrams -------------------------------------------------------------------------------------------------

    def _from_clients(self) -> None:
        for _ in range(READS_MAX):
            if self._socket is None:
                return
            try:
                data, address = self._socket.recvfrom(DATAGRAM_BYTES_MAX)
            except OSError:  # nothing more, or the refusal of a client's host: the next is read when it comes
                return
            self._in += 1
            self._to_leader(address, data)

    def _to_leader(self, address: SocketAddress, data: bytes) -> None:
        client = self._clients.get(address)
        if client is None:
            client = self._new(address, data)
            if client is None:
                return
        client.heard_at = self._loop.time()
        try:
            client.upstream.send(data)
        except ConnectionRefusedError:
            self._refused()
        except OSError:
            self._dropped += 1

    def _new(self, address: SocketAddress, data: bytes) -> Client | None:
        """A socket for a client that is new. None: there is no room, or the leader's name is being looked up."""
        host = self._leader()
        if host is None:
            self._dropped += 1
            return None
        if self._target is None or self._target[0] != host:
            if len(self._waiting) < WAITING_MAX:
                self._waiting.append((address, data))
            else:
                self._dropped += 1
            if self._lookup is None or self._lookup.done():
                self._lookup = self._loop.create_task(self._resolve(host))
            return None
        if len(self._clients) >= self._clients_max:
            self._full += 1
            return None
        _, family, target = self._target
        upstream = socket.socket(family, socket.SOCK_DGRAM)
        try:
            upstream.setblocking(False)
            upstream.connect(target)
        except OSError:
            upstream.close()
            self._dropped += 1
            return None
        self._accepted += 1
        client = self._clients[address] = Client(address, upstream, self._loop.time())
        self._loop.add_reader(upstream.fileno(), self._from_leader, client)
        return client

    async def _resolve(self, host: str) -> None:
        try:
            found = await self._loop.getaddrinfo(host, self._target_port, type=socket.SOCK_DGRAM)
            ourselves = await is_ourselves(host, self._target_port, (self._host, self._port))
        except (OSError, UnicodeError):
            ourselves = True
        if ourselves:
            self._refused()
            return
        family, _, _, _, address = found[0]
        self._target = (host, family, address)
        waiting, self._waiting = self._waiting, []
        if host == self._leader():
            for client, data in waiting:
                self._to_leader(client, data)

    def _from_leader(self, client: Client) -> None:
        for _ in range(READS_MAX):
            try:
                data = client.upstream.recv(DATAGRAM_BYTES_MAX)
            except ConnectionRefusedError:
                self._refused()
                return
            except OSError:
                return
            self._out += 1
            client.heard_at = self._loop.time()
            try:
                if self._socket is not None:
                    self._socket.sendto(data, client.address)
            except OSError:
                self._dropped += 1

    def _refused(self) -> None:
        """The leader's host says that nobody listens there: so do we, for a while."""
        self._refused_until = self._loop.time() + REFUSED_S
        self._shut()

    def _forget(self, client: Client) -> None:
        if self._clients.pop(client.address, None) is not None:
            self._loop.remove_reader(client.upstream.fileno())
            client.upstream.close()

    # -- the end ---------------------------------------------------------------------------------------------------

    def leader_changed(self) -> None:
        """Connections with the node before are gone; what clients send next reaches the new one, which does not know them."""
        if self._target is not None and self._target[0] != self._leader():
            self._target = None
            for client in list(self._clients.values()):
                self._forget(client)
        self._refused_until = 0.0

    def stop_accepting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._shut()

    async def stop(self) -> None:
        if self._lookup is not None:
            self._lookup.cancel()
            await asyncio.gather(self._lookup, return_exceptions=True)
        self._shut()

    def figures(self) -> dict[str, int]:
        return {
            "connections": len(self._clients),
            "accepted": self._accepted,
            "refused": self._full,
            "datagrams_in": self._in,
            "datagrams_out": self._out,
            "dropped": self._dropped,
        }
