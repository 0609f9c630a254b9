"""Opens doors: makes the listener that a door's transport needs, and keeps its certificates fresh.

    tcp         Listener, TLS where the section has a certificate
    websocket   the same, with a WebSocketSession between connection and session
    quic        QuicListener; without a configured certificate it makes its own

Knows transports and no protocol: what differs between doors is in their rows (protocols/door.py).
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from quintet import kernel
from quintet.broker.core import Broker
from quintet.model.errors import ConfigError
from quintet.net.certificates import development_certificate, expires_at, is_authority, read_pair
from quintet.net.connection import Connection
from quintet.net.listener import Listener, ListenerOptions, Report
from quintet.net.loop import LoopScheduler
from quintet.net.output import OutputBudget
from quintet.net.quic.endpoint import endpoint_class
from quintet.net.quic.listener import Identity, QuicListener
from quintet.net.quic.streams import Stream
from quintet.net.sockets import Hub
from quintet.net.tls import load_into, server_context
from quintet.net.turns import Turns
from quintet.net.websocket import Heartbeat, WebSocketSession
from quintet.protocols.base import Session, StreamSession
from quintet.protocols.door import AnyDoor, MakeSession, Options

LimitsOf = Callable[[str, Options], ListenerOptions]
OptionsOf = Callable[[AnyDoor], Options]


class _Publishing:
    """What the kernel's sockets have to know of the broker (net/sockets.py::Publishing)."""

    __slots__ = ("_broker", "appended", "held", "kernel_writes")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.appended, self.held = broker.tails_appended, broker.tails_held
        self.kernel_writes = broker.log.kernel_writes

    def epoch(self) -> int:
        return self._broker.access.epoch + self._broker.tokens.epoch  # neither ever falls

    def is_direct(self) -> bool:
        return not self._broker.draining and not self._broker.overloaded()


class OpenDoors:
    """The doors of a running broker. `folder` is where a certificate is kept that a door made itself."""

    def __init__(
        self,
        broker: Broker,
        scheduler: LoopScheduler,
        limits_of: LimitsOf,
        report: Report,
        output: OutputBudget,
        turns: Turns,
        folder: Path,
    ) -> None:
        self.listeners: dict[str, Listener | QuicListener] = {}
        self.certificates: dict[str, Path] = {}  # for clients to trust, of doors that made their own
        self._broker = broker
        self._scheduler = scheduler
        self._limits_of = limits_of
        self._report = report
        self._output = output
        self._turns = turns
        self._hub: Hub | None = None
        if kernel.Sockets is not None:
            self._hub = Hub(asyncio.get_running_loop(), turns, _Publishing(broker))
            broker.log.find_held(self._hub.held_by)
        self._folder = folder
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._served: dict[str, bytes] = {}  # the certificates in use, in PEM, by door
        self._doors: dict[str, AnyDoor] = {}

    async def open(self, door: AnyDoor, options: Options) -> None:
        """Listen for this door; OSError or ConfigError if that cannot be."""
        if door.transport == "quic" and not self._has_quic(door):
            return
        make = door.open(self._broker, options)
        listener = self._quic(door, options, make) if door.transport == "quic" else self._tcp(door, options, make)
        try:
            await listener.start()
        except ValueError as error:
            raise ConfigError(f"the certificate of listeners.{door.key} cannot be used: {error}") from error
        except OSError as error:
            raise cannot_listen(door.name, options.host, options.port, error) from error
        self.listeners[door.name] = listener
        self._doors[door.name] = door

    def close(self) -> None:
        """All connections have ended."""
        if self._hub is not None:
            self._hub.close()

    @property
    def expiries(self) -> dict[str, float]:
        """When the certificate of each door that has one expires, as Unix time."""
        return {name: expires_at(certificate) for name, certificate in self._served.items()}

    def serves(self, name: str, certificate: Path | None) -> None:
        """A listener that is opened elsewhere (Flight, console) serves this certificate from now on."""
        if certificate is not None:
            self._served[name] = content(certificate)

    def _address(self, name: str) -> str:
        return self.listeners[name].address if name in self.listeners else ""

    def _tcp(self, door: AnyDoor, options: Options, make: MakeSession) -> Listener:
        if options.tls_cert is not None and options.tls_key is not None:
            self._contexts[door.name] = server_context(options.tls_cert, options.tls_key, options.tls_client_ca)
            self._served[door.name] = content(options.tls_cert)
        session = partial(self._session, name=door.name, make=make)
        if door.transport == "websocket":
            heart = Heartbeat(asyncio.get_running_loop(), options.ping_seconds)
            heart.start()
            session = partial(
                self._websocket, name=door.name, make=make, heart=heart, origins=frozenset(options.origins)
            )
        limits, context = self._limits_of(door.name, options), self._contexts.get(door.name)
        return Listener(limits, session, self._report, context, self._output, self._turns, self._hub)

    def _session(self, connection: Connection, name: str, make: MakeSession) -> Session:
        made: Session = make(connection, connection.peer, self._address(name))
        return made

    def _websocket(
        self, connection: Connection, name: str, make: MakeSession, heart: Heartbeat, origins: frozenset[str]
    ) -> Session:
        inner = make(connection, connection.peer, self._address(name))
        return WebSocketSession(inner, connection, heart, self._scheduler.monotonic, origins)

    # -- QUIC ------------------------------------------------------------------------------------------------------

    def _has_quic(self, door: AnyDoor) -> bool:
        try:
            endpoint_class()
        except ImportError as error:
            if error.name != "aioquic":
                raise
            hint = f"to open it, install quintet[felix]; or {kernel.PURE_HINT}"
            self._report(f"{door.key}_door_shut", {"missing": error.name, "hint": hint})
            return False
        return True

    def _quic(self, door: AnyDoor, options: Options, make: MakeSession) -> QuicListener:
        session = partial(self._stream_session, name=door.name, make=make)
        limits = self._limits_of(door.name, options)
        identity = self._identity(door, options)
        return QuicListener(limits, options, identity, session, self._report, self._scheduler, self._output)

    def _stream_session(self, stream: Stream, name: str, make: MakeSession) -> StreamSession:
        made: StreamSession = make(stream, stream.peer, self._address(name))
        return made

    def _identity(self, door: AnyDoor, options: Options) -> Identity:
        """Certificate, key and authorities of clients in PEM; made by the door itself where none is configured."""
        if options.tls_cert is None or options.tls_key is None:
            made = development_certificate(self._folder, options.certificate_names)
            certificate, key, self.certificates[door.name] = made
            self._served[door.name] = certificate
            return certificate, key, b""
        self.certificates.pop(door.name, None)
        certificate, key = read_pair(options.tls_cert, options.tls_key)
        if is_authority(certificate, str(options.tls_cert)):
            hint = "published clients refuse a server whose certificate is an authority (CA:TRUE): use one it signed"
            self._report(f"{door.key}_certificate_is_authority", {"file": str(options.tls_cert), "hint": hint})
        self._served[door.name] = certificate
        return certificate, key, content(options.tls_client_ca)

    # -- certificates anew -----------------------------------------------------------------------------------------

    def renew_own(self, options_of: OptionsOf) -> None:
        """The clock was set: a certificate that a door made itself may not be valid by the new time."""
        for name, listener in self.listeners.items():
            if isinstance(listener, QuicListener) and name in self.certificates:
                door = self._doors[name]
                listener.set_certificate(*self._identity(door, options_of(door)))

    def reload(self, options_of: OptionsOf) -> None:
        """Read all certificates again, for connections to come: all of them are tried before one of them counts."""
        own = [
            (listener, self._identity(self._doors[name], options_of(self._doors[name])))
            for name, listener in self.listeners.items()
            if isinstance(listener, QuicListener)
        ]
        others = [
            (name, context, options)
            for name, context in self._contexts.items()
            if (options := options_of(self._doors[name])).tls_cert is not None  # else it keeps what it has
        ]
        for _, _, options in others:
            server_context(options.tls_cert, options.tls_key)
        for listener, identity in own:
            listener.set_certificate(*identity)
        for name, context, options in others:
            load_into(context, options.tls_cert, options.tls_key)
            self._served[name] = content(options.tls_cert)


def cannot_listen(name: str, host: str, port: int, error: OSError) -> OSError:
    """The same error, with what to do."""
    why = os.strerror(error.errno) if error.errno else str(error)
    key = name.replace("-", "_").upper()
    way_out = f"stop what uses it, or choose another with QUINTET_LISTENERS__{key}__PORT"
    return OSError(error.errno, f"cannot listen on {host}:{port} for {name}: {why} ({way_out})")


def content(file: Path | None) -> bytes:
    """What is in a file that may not be named."""
    return b"" if file is None else file.read_bytes()
