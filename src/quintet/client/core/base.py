"""Defines what each protocol of the client must offer, the socket part they share, and connections that come back.

A ClientConnection is one authenticated connection, and is never reopened. A Channel owns the current ClientConnection of one
purpose (all publishing, or one subscription), replaces it when it is lost, and is where callers wait for it. Bus, Producer and
Subscription know only these two; frames and codes are known in client/links/ alone.

    Channel:  opening --> up --> waiting --> up ...      lost: back-off, then a new ClientConnection
                 |         |        |
                 +---------+--------+--> failed          refused by the server, reconnect=False, or closed
"""

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from math import inf
from random import uniform
from typing import Any, Final, NamedTuple, Protocol, cast

from quintet.client.core.errors import (
    AuthError,
    BadUrl,
    Closed,
    ConnectionLost,
    Forbidden,
    ProtocolError,
    SubscriptionEnded,
    Timeout,
)
from quintet.client.core.hosts import Hosts, in_turn
from quintet.client.core.message import Rows, log
from quintet.client.core.publishing import Load, Outcome
from quintet.client.core.source import Source
from quintet.client.core.url import Endpoint, Host
from quintet.model.errors import QuintetError
from quintet.model.extras import PackageMissing

WRITE_HIGH_BYTES: Final = 4 * 1024 * 1024  # waiting for the socket; above it callers wait
WRITE_LOW_BYTES: Final = 1024 * 1024
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 5.0
CLOSE_S: Final = 2.0  # how long an orderly close may take
HEARTBEAT_S: Final = 15.0
HEARTBEATS_MISSED_MAX: Final = 2

Start = str | int | datetime  # where a subscription begins: a word, an offset, a time
Fields = dict[str, Any]  # of a request or its answer, by name


class Fetched(NamedTuple):
    """A run of messages as deliveries, whose tags are partition << 48 | offset, and the offset behind all that was looked at."""

    rows: Rows
    next_offset: int


# Errors that a later attempt would meet again: reconnecting stops.
FATAL: Final = (AuthError, Forbidden, ProtocolError, BadUrl, SubscriptionEnded, PackageMissing)


@asynccontextmanager
async def deadline(seconds: float | None, what: str) -> AsyncIterator[None]:
    """Timeout, saying what took too long. None or inf is no limit."""
    try:
        async with asyncio.timeout(None if seconds is None or seconds == inf else seconds):
            yield
    except TimeoutError as error:
        if isinstance(error, QuintetError):
            raise
        raise Timeout(f"{what} took longer than {seconds:g} s") from None


class Target(Protocol):
    """Who a connection reports to."""

    def on_records(self, topic: str, rows: Rows) -> None:
        """Deliveries of one topic, in order."""

    def on_refused(self, tag: int, error: QuintetError) -> None:
        """The server did not know a delivery that was acknowledged."""


class Silent:
    """The target of a connection that only publishes: nothing is delivered on it, and that is all there is to do."""

    def on_records(self, topic: str, rows: Rows) -> None:
        log.warning("%d deliveries of topic %r on a connection without subscription", len(rows), topic)

    def on_refused(self, tag: int, error: QuintetError) -> None:
        log.warning("a refused acknowledgement on a connection without subscription: %s", error)


class ClientConnection(ABC):
    """One authenticated connection through a door."""

    @abstractmethod
    def publish(self, load: Load, wait: float = inf) -> "asyncio.Future[Outcome]":
        """Send soon, in order, together with what else is published in this turn of the loop. The future is done when
        the server has confirmed them (QoS 1) or they are handed to the socket (QoS 0), and fails with Timeout after
        `wait` seconds: here, because one timer for all that share a write is much cheaper than one for each."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """More than WRITE_HIGH_BYTES wait for the socket: time to wait for `writable`."""

    @abstractmethod
    async def writable(self) -> None:
        """Wait until less than WRITE_LOW_BYTES wait for the socket."""

    @abstractmethod
    async def barrier(self) -> None:
        """Wait until the server has dealt with all that was sent before."""

    @abstractmethod
    def pause(self) -> None:
        """Read nothing until `resume`: what is not read stays with the server."""

    @abstractmethod
    def resume(self) -> None: ...

    @property
    @abstractmethod
    def lost(self) -> QuintetError | None:
        """Why there is no connection any more, or None."""

    @abstractmethod
    async def close(self) -> None: ...


class PushConnection(ClientConnection):
    """A connection whose server sends deliveries by itself."""

    @abstractmethod
    async def subscribe(self, topic: str, qos: int, from_start: bool = False) -> int:
        """A new subscription, whose deliveries go to the target; returns its id. `from_start`: also of what is there, where the
        door can."""

    @abstractmethod
    def attach(self, subscription: int) -> None:
        """Let an existing subscription deliver to this connection."""

    @abstractmethod
    def ack(self, subscription: int, tags: Sequence[int]) -> None:
        """Acknowledge deliveries: a single one soon, several with one write now."""

    @property
    def extends_deadlines(self) -> bool:
        """Whether the server knows the three calls below (ADR 14)."""
        return False

    async def credit(self, subscription: int, count: int) -> float:
        """Attach, and be sent no more than so many that are not acknowledged; the server's time-out in seconds."""
        raise NotImplementedError

    def in_progress(self, subscription: int, tags: Sequence[int]) -> None:
        """The server restarts their acknowledgement time-outs."""
        raise NotImplementedError

    def nack(self, subscription: int, tags: Sequence[int], delay: float | None, dead: bool = False) -> None:
        """The server redelivers them after so many seconds, or as configured; or puts them among the dead letters now."""
        raise NotImplementedError


class RequestConnection(ClientConnection):
    """A connection of a door that has operations beside publishing and receiving."""

    @abstractmethod
    def request(self, name: str, fields: Fields) -> "asyncio.Future[Fields]":
        """Ask, in order with all that was asked before; the answer's fields, or the error it was refused with."""


class Matched(NamedTuple):
    """The topics that match and that one may read; `names` None: as they were at the version that was asked with."""

    version: int
    names: list[str] | None


class MatchConnection(ClientConnection):
    """A connection of a door that finds topics by patterns."""

    @abstractmethod
    async def match(self, patterns: Sequence[str], version: int) -> Matched:
        """Which topics match one of them now; `version` is that of the last answer, 0 at first."""


class FetchConnection(RequestConnection):
    """A connection of a door in which every operation is a request with an answer."""

    @abstractmethod
    def fetch(self, fields: Fields) -> "asyncio.Future[Fetched]":
        """Read a run of messages, without the detour over fields by name."""


class Limits(NamedTuple):
    """What a door's protocol and server allow; checked before anything is sent."""

    frame_overhead_bytes: int
    frame_bytes_max: int
    topic_bytes_max: int
    ttl_ms_max: int
    in_flight_max: int  # deliveries the server leaves unacknowledged per subscription


class Connector(Protocol):
    """Opens connections of one protocol, and says what the protocol cannot carry."""

    name: str
    limits: Limits

    @property
    def lacks(self) -> dict[str, str]:
        """Option of the API -> which doors have it."""

    def for_bus(self, endpoint: Endpoint, name: str) -> "Connector":
        """The connector of one bus: itself, or a new one if the connections of a bus share something."""

    async def open(
        self, setup: "Setup", target: Target, lost: Callable[["ClientConnection", QuintetError], None]
    ) -> ClientConnection:
        """A connection past its handshake, or the reason why not."""

    def source(self, setup: "Setup", wanted: "Wanted") -> Source:
        """Where a subscription's messages come from, not yet open."""


class Wanted(NamedTuple):
    """A subscription as its user asked for it; see Bus.subscribe."""

    topic: str
    qos: int
    resume: int | None
    group: str
    start: "Start | None"
    member: str
    filter: str
    durable: str = ""
    prefetch: int = 0  # messages it has room for; 0: it does not say


class Setup(NamedTuple):
    """All that is needed to connect, again and again. A Connector gets one whose endpoint is one host."""

    endpoint: Endpoint
    connector: Connector
    name: str
    timeout: float
    reconnect: bool
    tls: ssl.SSLContext | None
    on_event: Callable[[object], None] | None = None
    hosts: Hosts | None = None  # of the bus; None: those of the endpoint, for one connection


Connect = Callable[[ssl.SSLContext | None], Awaitable[object]]


async def dial(setup: "Setup", connection: "SocketConnection", connect: Connect | None = None) -> None:
    """Open the socket, with TLS if the endpoint has it; ConnectionLost says what to check. `connect` is for a protocol whose
    frames are inside those of another one."""
    endpoint = setup.endpoint
    tls = _tls(setup) if endpoint.tls else None
    try:
        if connect is not None:
            await connect(tls)
            return
        await asyncio.get_running_loop().create_connection(lambda: connection, endpoint.host, endpoint.port, ssl=tls)
    except ssl.SSLError as error:
        hint = "add ?ca=FILE with the authority that signed the server's certificate, or pass tls="
        raise ConnectionLost(f"TLS with {endpoint} failed: {error}", hint=hint) from error
    except (socket.gaierror, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not the name of a host"
        raise ConnectionLost(f"cannot find {endpoint.host}: {why}", hint="check the host in the URL") from error
    except ConnectionRefusedError as error:
        hint = "is the broker running? `quintet serve --dev` starts one"
        raise ConnectionLost(f"cannot connect to {endpoint}: nobody listens there", hint=hint) from error
    except OSError as error:
        why = error.strerror or str(error) or "the server closed the connection"
        raise ConnectionLost(f"cannot connect to {endpoint}: {why}", hint=_port_hint(setup)) from error


def _port_hint(setup: "Setup") -> str:
    """For a server that is there and speaks something else."""
    other = "one without TLS" if setup.endpoint.tls else "one with TLS"
    return f"is {setup.endpoint} a {setup.connector.name} port of a Quintet broker, and not {other}?"


async def shake_hands(setup: "Setup", connection: "SocketConnection", hands: Awaitable[None]) -> None:
    """Log in on a connection that was just dialled; one that ends instead is most likely not the port it was taken for."""
    try:
        await hands
    except ConnectionLost as error:
        await connection.close()
        raise ConnectionLost(error.message, hint=error.hint or _port_hint(setup)) from error
    except BaseException:
        await connection.close()
        raise


def _tls(setup: "Setup") -> ssl.SSLContext:
    if setup.tls is not None:
        return setup.tls
    endpoint = setup.endpoint
    try:
        context = ssl.create_default_context(cafile=endpoint.ca)
    except OSError as error:
        raise BadUrl(f"cannot read the certificates in ca={endpoint.ca}: {error}") from error
    if endpoint.cert is not None:
        try:
            context.load_cert_chain(endpoint.cert, endpoint.key)
        except OSError as error:
            raise BadUrl(f"cannot use the client certificate in cert={endpoint.cert}: {error}") from error
    return context


class SocketConnection(ClientConnection, asyncio.Protocol):
    """The part of a connection that every door over a byte stream shares: one socket, flow control, partial frames."""

    def __init__(self, where: str, lost: Callable[[ClientConnection, QuintetError], None]) -> None:
        self._where = where
        self._on_lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._tail = bytearray()
        self._tail_wanted = 0  # bytes needed before another look at the tail can help
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._reading = True
        self._lost: QuintetError | None = None
        self._closing = False
        self._gone = asyncio.Event()
        self._received_since_beat = True
        self._missed = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- what a door adds ------------------------------------------------------------------------------------------

    @abstractmethod
    def received(self, data: bytes | bytearray) -> tuple[int, int]:
        """Act on whole frames: (bytes consumed, length of the whole frame the rest begins with or 0 if not known)."""

    @abstractmethod
    def heartbeat(self) -> None:
        """Send something the server answers."""

    @abstractmethod
    def abandon(self, error: QuintetError) -> None:
        """The connection is gone: fail all that waits for an answer."""

    # -- the socket ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)

    def data_received(self, data: bytes) -> None:
        self._received_since_beat = True
        try:
            if not self._tail:
                consumed, self._tail_wanted = self.received(data)
                if consumed < len(data):
                    self._tail += memoryview(data)[consumed:]
                return
            self._tail += data
            if len(self._tail) >= self._tail_wanted:
                consumed, self._tail_wanted = self.received(self._tail)
                del self._tail[:consumed]
        except ProtocolError as error:
            self.fail(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._flowing.clear()

    def resume_writing(self) -> None:
        self._flowing.set()

    def connection_lost(self, error: Exception | None) -> None:
        why = "it was closed here" if self._closing else str(error or "the server closed it")
        self._end(ConnectionLost(f"the connection to {self._where} ended: {why}"))
        self._gone.set()

    def fail(self, error: QuintetError) -> None:
        """End the connection at once, for this reason. Callers see it as lost from here on."""
        self._end(error)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: QuintetError) -> None:
        if self._lost is not None:
            return
        self._lost = error
        if self._timer is not None:
            self._timer.cancel()
        self._flowing.set()
        self.abandon(error)
        self._on_lost(self, error)

    def write(self, data: bytes) -> None:
        if self._lost is not None or self._transport is None:
            raise self._lost or Closed("the connection is not open yet")
        self._transport.write(data)

    @property
    def full(self) -> bool:
        return not self._flowing.is_set()

    async def writable(self) -> None:
        await self._flowing.wait()
        if self._lost is not None:
            raise self._lost

    def pause(self) -> None:
        if self._reading and self._lost is None and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._reading and self._lost is None and self._transport is not None:
            self._reading = True
            self._received_since_beat = True
            self._transport.resume_reading()

    @property
    def lost(self) -> QuintetError | None:
        return self._lost

    async def close(self) -> None:
        self._closing = True
        if self._transport is None or self._gone.is_set():
            return
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()

    def _beat(self) -> None:
        """Notices a server that does not answer any more. While reading is paused, silence means nothing."""
        self._missed = 0 if self._received_since_beat or not self._reading else self._missed + 1
        if self._missed > HEARTBEATS_MISSED_MAX:
            self.fail(ConnectionLost(f"{self._where} has not answered for {self._missed * HEARTBEAT_S:g} s"))
            return
        if self._missed:
            self.heartbeat()
        self._received_since_beat = False
        self._timer = self._loop.call_later(HEARTBEAT_S, self._beat)


class Channel:
    """The current connection of one purpose, and its replacement when it is lost."""

    def __init__(
        self,
        setup: Setup,
        target: Target,
        *,
        on_up: Callable[[ClientConnection], Awaitable[None]] | None = None,
        on_down: Callable[[QuintetError], None] | None = None,
    ) -> None:
        self._setup = setup
        self._target = target
        self._on_up = on_up
        self._on_down = on_down
        self._connection: ClientConnection | None = None
        self._newest: ClientConnection | None = None
        self._hosts = setup.hosts or Hosts(setup.endpoint)
        self._host = Host(setup.endpoint.host, setup.endpoint.port)  # of the current connection
        self._failed: QuintetError | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.reconnects = 0

    async def open(self) -> None:
        """The first connection. Its failure is raised; after that, lost connections are replaced without an error."""
        await self._connect()

    async def open_within(self, seconds: float) -> None:
        """The first connection to a broker that is not up yet: try again until then. What a later attempt would meet again is
        raised at once."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + seconds, BACKOFF_FIRST_S
        while True:
            try:
                await self._connect()
                return
            except FATAL:
                raise
            except QuintetError as error:
                left = until - loop.time()
                if left <= 0:
                    what = f"no connection to {self._setup.endpoint} within {seconds:g} s: {error.message}"
                    raise Timeout(what, hint=error.hint) from error
            await asyncio.sleep(min(uniform(pause / 2, pause), left))
            pause = min(pause * 2, BACKOFF_MAX_S)

    @property
    def current(self) -> ClientConnection | None:
        """The connection if there is one right now."""
        return self._connection

    @property
    def newest(self) -> ClientConnection | None:
        """The connection opened last, also while it is not yet handed to callers."""
        return self._newest

    @property
    def failed(self) -> QuintetError | None:
        """Why there will never be a connection again, or None."""
        return self._failed

    async def connection(self) -> ClientConnection:
        """The connection, waiting for the next one if it was lost. Callers bound the wait."""
        while self._connection is None:
            if self._failed is not None:
                raise self._failed
            await self._changed.wait()
        return self._connection

    async def close(self) -> None:
        self._fail(Closed("the connection was closed", hint="use it inside its `with` block"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    async def _connect(self) -> None:
        """One round over the hosts."""
        setup = self._setup
        self._connection = await in_turn(self._hosts, setup.endpoint, setup.timeout, self._connect_to)
        self._changed.set()

    async def _connect_to(self, endpoint: Endpoint, seconds: float) -> ClientConnection:
        setup = self._setup._replace(endpoint=endpoint, timeout=seconds)
        async with deadline(seconds, f"connecting to {endpoint}"):
            connection = self._newest = await setup.connector.open(setup, self._target, self._lost)
            try:
                if self._on_up is not None:
                    await self._on_up(connection)
            except BaseException:
                await connection.close()
                raise
        if connection.lost is not None:
            raise connection.lost
        self._host = endpoint.hosts[0]
        return connection

    def _lost(self, connection: ClientConnection, error: QuintetError) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._hosts.left(self._host)
        if self._on_down is not None:
            self._on_down(error)
        if self._failed is not None:
            return
        if not self._setup.reconnect or isinstance(error, FATAL):
            self._fail(error)
            return
        self._changed.clear()
        log.warning("%s; reconnecting", error)
        self._task = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Exponential back-off with full jitter, so that many clients do not come back in one wave."""
        pause = BACKOFF_FIRST_S
        while True:
            await asyncio.sleep(uniform(pause / 2, pause))
            pause = min(pause * 2, BACKOFF_MAX_S)
            try:
                await self._connect()
            except FATAL as error:
                self._fail(error)
                return
            except QuintetError as error:
                log.info("still not connected: %s", error)
            else:
                self.reconnects += 1
                log.info("connected again, to %s", self._host)
                return

    def _fail(self, error: QuintetError) -> None:
        if self._failed is None:
            self._failed = error
            if self._on_down is not None and self._connection is None:
                self._on_down(error)
        self._changed.set()
