"""Takes legs and tunnels from other nodes, for the process that leads a cell: greets each one (ADR 47).

    to the session      u32 length | Greeting in MessagePack | a leg: then as in wire.py; a tunnel: any bytes
    from the session    a leg: as in wire.py; a tunnel: any bytes

A tunnel leads to a socket of this process that other processes of its node use (ADR 53): what comes is written there as it is.
TLS is mutual where nodes have certificates (ADR 42): who connects is the node that its certificate names, and it has the same log. On
loopback without certificates every process of the machine may speak as a node, as at the cluster's listener. Connections are accepted one by
one and not by a server of asyncio, which says nothing of a handshake that fails.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from functools import partial
from typing import Final

import msgspec

from quintet.net.cells import wire
from quintet.net.cells.back import LEGS_MAX, LegSession, Makes
from quintet.net.cells.legs import Carrier
from quintet.net.cluster.trust import handshake_sentence, node_of
from quintet.net.cluster.wire import PeerRefused
from quintet.net.connection import Connection
from quintet.net.forwarding.addresses import shown
from quintet.net.listener import TLS_HANDSHAKE_S, Listener, ListenerOptions, Report
from quintet.net.output import OutputBudget
from quintet.net.sockets import BACKLOG
from quintet.net.turns import Turns
from quintet.protocols.base import WAIT

NAME: Final = "legs"  # among the listeners of a process
GREETING_BYTES_MAX: Final = 4_096
HANDSHAKES_MAX: Final = 1_000  # under way at once
ENDED_EARLY: Final = (
    "it ended in the TLS handshake: if it does not take this node's certificate, its log says so (leg_not_carried)"
)


class Greeting(msgspec.Struct, frozen=True):
    """Who connects: a node, and the log that it follows."""

    node: str
    log: str
    to: str = ""  # which socket of the leader a tunnel leads to; empty: it is a leg


def greeting(said: Greeting) -> bytes:
    body = msgspec.msgpack.encode(said)
    return wire.LENGTH.pack(len(body)) + body


class RemoteLegs(Listener):
    """Where other nodes connect to. tls None: on loopback, without certificates. tunnels: the sockets that tunnels lead to, by name."""

    def __init__(
        self,
        place: tuple[str, int],
        log: str,
        makes: Makes,
        report: Report,
        tls: ssl.SSLContext | None,
        output: OutputBudget,
        turns: Turns,
        tunnels: Mapping[str, str] = {},
    ) -> None:
        options = ListenerOptions(NAME, *place, LEGS_MAX, LEGS_MAX, LEGS_MAX)
        make = partial(GreetedLeg, makes, log, tls is not None, report, turns, tunnels)
        super().__init__(options, make, report, tls, output, turns)
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: socket.socket | None = None
        self._address = ""

    async def start(self) -> None:
        host, port = self.options.host, self.options.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._accepting = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._accepting.setblocking(False)
        self._address = shown(*self._accepting.getsockname()[:2])
        self.loop.add_reader(self._accepting.fileno(), self._accept)
        self._sweep()

    @property
    def address(self) -> str:
        return self._address

    def _accept(self) -> None:
        assert self._accepting is not None
        try:
            found, address = self._accepting.accept()
        except OSError:  # it was reset meanwhile, or there are no descriptors
            return
        found.setblocking(False)
        if len(self._handshakes) >= HANDSHAKES_MAX:
            found.close()
            self._refused(address, f"{HANDSHAKES_MAX} handshakes are under way, which is the limit")
            return
        task = self.loop.create_task(self._let_in(found, address))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _let_in(self, found: socket.socket, address: tuple[str, int]) -> None:
        timeout = TLS_HANDSHAKE_S if self._tls else None
        try:
            await self.loop.connect_accepted_socket(
                lambda: Connection(self), found, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except ssl.SSLEOFError:
            self._refused(address, ENDED_EARLY)
        except ssl.SSLError as error:
            self._refused(address, handshake_sentence(error))
        except OSError:
            self._refused(address, ENDED_EARLY)

    def _refused(self, address: tuple[str, int], reason: str) -> None:
        self.refused += 1
        self._report("leg_refused", {"from": shown(*address[:2]), "reason": reason})

    def stop_accepting(self) -> None:
        if self._accepting is not None and self._accepting.fileno() >= 0:
            self.loop.remove_reader(self._accepting.fileno())
            self._accepting.close()
        for task in self._handshakes:
            task.cancel()


class Tunnel(Carrier):
    """To a socket of this process: bytes as they are."""

    __slots__ = ("made",)

    def __init__(self, connection: Connection, turns: Turns) -> None:
        super().__init__(connection, turns, [])
        self.made: list[bytes] = []

    def _received(self, data: bytes) -> None:
        if self._lost is None:
            return
        self.made.append(data)
        self._sink.completed(self, None, None)
        self._wait_for_room()

    def take(self) -> list[bytes]:
        made, self.made = self.made, []
        return made


class GreetedLeg(LegSession):
    """Greeting, opening, login, the frames of the client; or greeting, then a tunnel."""

    __slots__ = ("_certified", "_greeted", "_log", "_report", "_tunnel", "_tunnels", "_turns")

    def __init__(
        self,
        makes: Makes,
        log: str,
        certified: bool,
        report: Report,
        turns: Turns,
        tunnels: Mapping[str, str],
        connection: Connection,
    ) -> None:
        super().__init__(makes, connection)
        self._log = log
        self._certified = certified
        self._report = report
        self._turns = turns
        self._tunnels = tunnels
        self._tunnel: Tunnel | None = None
        self._greeted = False

    def receive(self, view: memoryview, now: int) -> int:
        if self._tunnel is not None:
            self._tunnel.send(bytes(view))
            return len(view)
        if self._greeted:
            return super().receive(view, now)
        if self._closing is not None or len(view) < wire.LENGTH.size:
            return 0
        size = int(wire.LENGTH.unpack_from(view)[0])
        end = wire.LENGTH.size + size
        if size > GREETING_BYTES_MAX:
            self._refuse(f"a greeting of {size} bytes, the limit is {GREETING_BYTES_MAX}")
            return 0
        if len(view) < end:
            return 0
        try:
            said = msgspec.msgpack.decode(view[wire.LENGTH.size : end], type=Greeting)
            self._check(said)
        except (PeerRefused, msgspec.MsgspecError) as error:
            self._refuse(str(error))
            return 0
        self._greeted = True
        if said.to:
            self._open_tunnel(self._tunnels[said.to])
            return end + self.receive(view[end:], now)
        return end + super().receive(view[end:], now)

    def _check(self, said: Greeting) -> None:
        if self._certified and (named := node_of(self._connection.certificate())) != said.node:
            raise PeerRefused(f"a node says that it is {said.node}, and its certificate is of {named}", reason="name")
        if said.log != self._log:
            raise PeerRefused(f"{said.node} has the log {said.log}, this node {self._log}", reason="log")
        if said.to and said.to not in self._tunnels:
            raise PeerRefused(f"{said.node} asks for {said.to[:100]!r}, which this node has not", reason="tunnel")

    def _open_tunnel(self, path: str) -> None:
        self._tunnel = Tunnel(self._connection, self._turns)
        self._tunnel.connect(path, partial(self._connection.evict, "the other side of the tunnel has ended"))

    def _refuse(self, reason: str) -> None:
        self._report("leg_refused", {"from": str(self._connection.peer), "reason": reason})
        self._closing = reason

    @property
    def principal_name(self) -> str | None:
        return "(tunnel)" if self._tunnel is not None else super().principal_name

    def congestion(self) -> int:
        if self._tunnel is not None and self._tunnel.full:
            return WAIT
        return super().congestion()

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        if token is not self._tunnel:
            super().on_completed(token, result, error)

    def take_output(self) -> list[bytes]:
        return super().take_output() if self._tunnel is None else self._tunnel.take()

    def closed(self) -> None:
        if self._tunnel is not None:
            self._tunnel.end()
        super().closed()
