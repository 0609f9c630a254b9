"""Accepts the connections of one TCP door: limits, the sweep for deadlines, counters. Knows no protocol."""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from quintet.model import limits
from quintet.net.connection import Connection
from quintet.net.output import OutputBudget
from quintet.net.sockets import BACKLOG, Accepting, Hub, bind
from quintet.net.turns import Turns
from quintet.protocols.base import Session

SWEEP_S = 0.25
MINUTE_US = 60_000_000
TLS_HANDSHAKE_S = 5.0
SHUTTING_DOWN = "the broker is shutting down"  # the reason `close_all` gives at the end

Report = Callable[[str, dict[str, object]], None]


class ListenerOptions(msgspec.Struct, frozen=True):
    """Where and how much."""

    name: str
    host: str
    port: int
    connections_max: int = 10_000
    connections_per_address_max: int = 1_000
    unauthenticated_max: int = 2_000
    auth_failures_per_minute: int = 0  # from one address; 0: no limit
    listening: socket.socket | None = None  # in place of host and port: one that another process has bound

    def refusal(self, address: str, connections: int, of_address: int, blocked: bool, waiting: int) -> str:
        """Why a new connection cannot stay, or nothing. `waiting`: those that are not authenticated."""
        if connections > self.connections_max:
            return f"more than {self.connections_max} connections"
        if of_address > self.connections_per_address_max:
            return f"more than {self.connections_per_address_max} connections from {address}"
        if blocked:
            return f"too many failed authentications from {address}, try again in a minute"
        if waiting > self.unauthenticated_max:
            return f"more than {self.unauthenticated_max} connections that are not authenticated"
        return ""


class Failures:
    """Failed authentications of this minute, per address. `per_minute` 0: no limit."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._counts: Counter[str] = Counter()
        self._minute = 0

    def add(self, address: str, monotonic: int, count: int = 1) -> None:
        self.blocked(address, monotonic)  # a new minute begins with none
        self._counts[address] += count

    def blocked(self, address: str, monotonic: int) -> bool:
        minute = monotonic // MINUTE_US
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
        return 0 < self._per_minute <= self._counts[address]


class Listener:
    """Owns the connections of a door."""

    def __init__(
        self,
        options: ListenerOptions,
        make_session: Callable[[Connection], Session],
        report: Report,
        tls: ssl.SSLContext | None = None,
        output: OutputBudget | None = None,
        turns: Turns | None = None,
        hub: Hub | None = None,
    ) -> None:
        self.options = options
        self.output = output or OutputBudget()
        self.make_session = make_session
        self.loop = asyncio.get_running_loop()
        self.turns = turns or Turns(self.loop)
        self._hub = hub if tls is None else None
        self.read_view = hub.read_view if hub is not None else memoryview(bytearray(limits.READ_BUFFER_BYTES))
        self.connections: set[Connection] = set()
        self._ended_in = self._ended_out = 0  # bytes of connections that are gone
        self.accepted = self.refused = self.cut = self.stalls = self.faults = 0
        self.auth_failures = 0
        self._tls = tls
        self._report = report
        self._server: asyncio.Server | Accepting | None = None
        self._address: str
        self._watched: set[Connection] = set()
        self._addresses: Counter[str] = Counter()
        self._failures = Failures(options.auth_failures_per_minute)
        self._sweeper: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        tls_timeout = TLS_HANDSHAKE_S if self._tls else None
        make, bound = lambda: Connection(self), self.options.listening
        if self._hub is not None:
            sockets = [bound] if bound is not None else await bind(self.loop, self.options.host, self.options.port)
            self._server = Accepting(self._hub, sockets, make)
        elif bound is not None:
            self._server = await self.loop.create_server(
                make, sock=bound, ssl=self._tls, ssl_handshake_timeout=tls_timeout, backlog=BACKLOG
            )
        else:
            self._server = await self.loop.create_server(
                make,
                self.options.host,
                self.options.port,
                ssl=self._tls,
                ssl_handshake_timeout=tls_timeout,
                backlog=BACKLOG,
                reuse_address=True,
            )
        host, port = self._server.sockets[0].getsockname()[:2]
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._sweep()

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def address(self) -> str:
        """Where it listens, or did: health is asked for while it drains, too."""
        return self._address

    @property
    def bytes_in(self) -> int:
        return self._ended_in + sum(connection.bytes_in for connection in self.connections)

    @property
    def bytes_out(self) -> int:
        return self._ended_out + sum(connection.bytes_out for connection in self.connections)

    def now(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> int:
        return time.monotonic_ns() // 1000

    # -- called by connections -------------------------------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        address = connection.peer.rpartition(":")[0]
        self.accepted += 1
        self.connections.add(connection)
        self._addresses[address] += 1
        self._watched.add(connection)
        blocked = self._failures.blocked(address, self.monotonic())
        waiting = self._waiting() if len(self._watched) > self.options.unauthenticated_max else 0
        reason = self.options.refusal(address, len(self.connections), self._addresses[address], blocked, waiting)
        if reason:
            self.refused += 1
            connection.evict(reason)

    def auth_failed(self, connection: Connection, count: int) -> None:
        """Count them against the address; past the limit, its connections end and new ones are refused for the minute."""
        address = connection.peer.rpartition(":")[0]
        self.auth_failures += count
        self._failures.add(address, self.monotonic(), count)
        self._report("authentication_failed", connection.turn_facts())
        if self._failures.blocked(address, self.monotonic()):
            connection.evict("too many failed authentications")

    def _waiting(self) -> int:
        return sum(1 for connection in self._watched if connection.who is None)

    def closed(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._ended_in += connection.bytes_in
            self._ended_out += connection.bytes_out
        self._watched.discard(connection)
        address = connection.peer.rpartition(":")[0]
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]

    def closing(self, connection: Connection, reason: str) -> None:
        """We close a connection: say why, once."""
        self.cut += 1
        self._report("connection_closed", {**connection.turn_facts(), "reason": reason})

    def fault(self, connection: Connection, where: str, error: Exception) -> None:
        """A session raised: say on which connection, once for each."""
        self.faults += 1
        self._report("session_failed", {**connection.turn_facts(), "where": where, "error": repr(error),
                                        "exc_info": error})  # fmt: skip

    def watch_stall(self, connection: Connection) -> None:
        self._watched.add(connection)

    # -- time and end ----------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        self.turns.run(self._check_all)

    def _check_all(self) -> None:
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)
        monotonic = self.monotonic()
        for connection in list(self._watched):
            try:
                connection.check(monotonic)
                if not connection.watched:
                    self._watched.discard(connection)
            except Exception as fault:
                connection.fault("tick", fault)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    def close_all(self, reason: str) -> None:
        """Say goodbye to everyone: output already made is still sent."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.evict(reason)
