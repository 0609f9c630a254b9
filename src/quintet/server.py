"""The composition root: builds the line from the configuration, owns start and stop. Nothing else imports everything.

start: data directory -> log.recover -> broker -> listeners -> admin -> ready line
TERM:  unready -> stop accepting -> say goodbye -> save, flush, fsync -> exit 0 (within drain_timeout_s)
HUP:   read the configuration again and take what config/reloading.py lists; the old policy stays if the new is bad
"""

import asyncio
import gc
import json
import os
import signal
import ssl
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from quintet import __version__, figures, kernel, logs
from quintet.admin.app import create_app
from quintet.admin.listener import AdminServer, serve_admin
from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.doors.cache import CacheOptions
from quintet.broker.doors.peers import PeerOptions, options_of
from quintet.broker.doors.queues import QueueOptions
from quintet.broker.identity.access import Credential, Role
from quintet.broker.identity.tenant_tokens import TenantTokenOptions
from quintet.broker.identity.tenants import TenantQuota
from quintet.broker.identity.tokens import TokenOptions
from quintet.broker.identity.users import ConfiguredUser
from quintet.broker.topics.catalog import TopicPolicy, TopicRule
from quintet.config import Settings, reloading
from quintet.config.doors import FastListener, FelixListener, FlightListener, FlymqListener, TcpListener
from quintet.config.fields import read_secret
from quintet.config.jwks import tenant_keys
from quintet.config.tenancy import Cache
from quintet.config.trust import Peers
from quintet.delivery.subscription import Policy
from quintet.flight import wire
from quintet.log.anchors import ANCHORS_NAME
from quintet.log.chain import derive_key
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.model.errors import ConfigError, QuintetError
from quintet.model.rights import check_rights
from quintet.net.certificates import development_certificate, is_authority, read_pair
from quintet.net.connection import Connection
from quintet.net.listener import SHUTTING_DOWN, Listener, ListenerOptions
from quintet.net.loop import LoopScheduler
from quintet.net.output import OutputBudget
from quintet.net.quic import QuicConnection, QuicListener, QuicOptions
from quintet.net.quic_endpoint import endpoint_class
from quintet.net.quic_streams import Stream
from quintet.net.tls import load_into, server_context
from quintet.net.turns import Turns
from quintet.net.websocket import Heartbeat, WebSocketSession
from quintet.process import leave_at_once, raise_open_files, runner
from quintet.protocols.base import Session, StreamSession
from quintet.protocols.blipmq import frames as blip_frames
from quintet.protocols.blipmq.session import BlipSession
from quintet.protocols.fast import frames as fast_frames
from quintet.protocols.fast.session import FastDoor, FastOptions, FastSession
from quintet.protocols.felix import frames as felix_frames
from quintet.protocols.felix.session import FelixSession
from quintet.protocols.flymq import frames as fly_frames
from quintet.protocols.flymq.mapping import HANDLERS
from quintet.protocols.flymq.session import FlyOptions, FlySession
from quintet.protocols.peerbus import frames as peer_frames
from quintet.protocols.peerbus.session import PeerSession

if TYPE_CHECKING:
    from quintet.flight.bridge import Bridge
    from quintet.flight.server import Door

TICK_S = 0.05
GOODBYE_S = 0.5  # for peers to take what was still being sent to them
COLLECT_YOUNG_OBJECTS = 2_000
COLLECT_IDLE_US = 60_000_000
COLLECT_LATEST_US = 1_800_000_000
DAY_US = 24 * 3600 * 1_000_000

_log = structlog.get_logger()


def serve(settings: Settings, *, print_ready: bool, reload: Callable[[], Settings]) -> int:
    """Run the broker until it is told to stop; the process's exit code. `reload` reads the configuration again."""
    logs.configure(settings.log.level, settings.log.format)
    raise_open_files()
    try:
        with runner() as running:
            server = Server(settings, reload)
            code = running.run(server.run(print_ready))
            if server.flight is not None and not server.flight.closed:
                leave_at_once(code)
            return code
    except QuintetError as error:
        print(f"quintet: {error}{' (' + error.hint + ')' if error.hint else ''}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"quintet: {error.strerror or error}", file=sys.stderr)
        return 1


def check_doors() -> None:
    """No door opens while an operation of any of them has no row in its table of rights."""
    rows = {code: operation.right for code, operation in fly_frames.OPERATIONS.items()}
    check_rights("blipmq", blip_frames.NAMES, blip_frames.RIGHTS)
    check_rights("flymq", (*HANDLERS, fly_frames.PRODUCE, fly_frames.AUTH), rows)
    check_rights("fast", fast_frames.NAMES, fast_frames.RIGHTS)
    check_rights("peerbus", (*peer_frames.CONTROL, peer_frames.ENVELOPE), peer_frames.RIGHTS)
    check_rights("felix", felix_frames.NAMES, felix_frames.RIGHTS)
    check_rights("flight", (*wire.ACTIONS, *wire.CALLS), wire.RIGHTS)


class Server:
    """A running broker. Owns every part; parts do not know each other beyond the line."""

    def __init__(self, settings: Settings, reload: Callable[[], Settings]) -> None:
        self.settings = settings
        self._read_again = reload
        self.listeners: dict[str, Listener | QuicListener] = {}
        self.felix_certificate: Path | None = None  # for clients to trust, where the door made its own
        self.contexts: dict[str, ssl.SSLContext] = {}
        self.output = OutputBudget(settings.limits.output_bytes_max)
        self.admin: AdminServer | None = None
        self.flight: Door | None = None
        self._bridge: Bridge | None = None
        self.draining = False
        self.log: EmbeddedLog
        self.broker: Broker
        self.turns: Turns
        self._scheduler: LoopScheduler
        self._stop = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._traffic_seen = 0
        self._jumps_seen = 0
        self._collected_at = 0
        self._access_seen = 0

    async def run(self, print_ready: bool) -> int:
        check_doors()
        loop = asyncio.get_running_loop()
        self.turns = Turns(loop, _report)
        scheduler = self._scheduler = LoopScheduler(loop, turns=self.turns)
        settings = self.settings
        self.log = EmbeddedLog(
            settings.data,
            OsDisk(),
            scheduler,
            _report,
            tail_cache_bytes=settings.limits.tail_cache_bytes,
            memory_topics_bytes=settings.limits.memory_topics_bytes,
            disk_floor_bytes=settings.limits.disk_floor_bytes,
            chain=settings.audit.chain,
            chain_key=_chain_key(settings),
            anchor_file=str(settings.audit.anchor_file or settings.data / ANCHORS_NAME),
            anchor_us=settings.audit.anchor_seconds * 1_000_000,
        )
        self.log.recover()
        try:
            self.broker = Broker(self.log, scheduler, _broker_options(settings), _report)
            self.broker.set_credentials(_credentials(settings))
            self.broker.set_tokens(_tokens(settings))
            self.broker.set_tenant_tokens(_tenant_tokens(settings))
            await self._configure_users()
            await self._open_doors()
        except BaseException:
            self.log.abandon()  # nothing was acknowledged: leave the directory as a crash would, and say one thing only
            raise
        _quiet_the_collector()
        self._collected_at = scheduler.monotonic()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._tick()
        self._announce(print_ready)
        self.broker.audit.record("system.start", "", "", "success", version=__version__)
        await self._stop.wait()
        await self._drain()
        scheduler.close()
        return 0

    async def _configure_users(self) -> None:
        """The doors open when the configured users can log in."""
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.broker.configure_users(*_users(self.settings), told.set_result)
        error = await told
        if error is not None:
            raise error

    # -- doors -----------------------------------------------------------------------------------------------------

    async def _open_doors(self) -> None:
        settings = self.settings
        blipmq = settings.listeners.blipmq
        if blipmq.enabled:
            make = partial(self._blip_session, frame_bytes_max=blipmq.max_frame_bytes)
            await self._open("blipmq", blipmq, make)
        for name in ("flymq", "flymq-sdk"):
            flymq = getattr(settings.listeners, _key_of(name))
            if flymq.enabled:
                await self._open(name, flymq, partial(self._fly_session, name=name, door=flymq))
        if settings.listeners.fast.enabled:
            shared = FastDoor(self.broker, _fast_options(settings.listeners.fast))
            await self._open("fast", settings.listeners.fast, partial(self._fast_session, shared=shared))
        await self._open_peerbus()
        if settings.listeners.felix.enabled:
            await self._open_felix(settings.listeners.felix)
        if settings.listeners.flight.enabled:
            self._open_flight(settings.listeners.flight)
        if settings.listeners.admin.enabled:
            view = figures.View(self)
            app = create_app(view, view)
            self.admin = await serve_admin(app, settings.listeners.admin.host, settings.listeners.admin.port)

    def _blip_session(self, connection: Connection, frame_bytes_max: int) -> Session:
        return BlipSession(self.broker, connection, self.broker.scheduler.monotonic(), frame_bytes_max, connection.peer)

    def _fast_session(self, connection: Connection, shared: FastDoor) -> Session:
        return FastSession(shared, connection, self.broker.scheduler.monotonic(), connection.peer)

    def _fly_session(self, connection: Connection, name: str, door: FlymqListener) -> Session:
        address = self.listeners[name].address if name in self.listeners else ""
        options = FlyOptions(door.dialect, door.max_frame_bytes, door.anonymous_role, address)
        return FlySession(self.broker, connection, self.broker.scheduler.monotonic(), options, connection.peer)

    async def _open_peerbus(self) -> None:
        """One door, two ways in: WebSocket messages, and lines over plain TCP."""
        websocket, lines = self.settings.listeners.peerbus, self.settings.listeners.peerbus_tcp
        if websocket.enabled:
            heart = Heartbeat(asyncio.get_running_loop(), websocket.ping_seconds)
            heart.start()
            make = partial(self._peer_websocket, heart=heart, origins=frozenset(websocket.origins))
            await self._open("peerbus", websocket, partial(make, frame_bytes_max=websocket.max_frame_bytes))
        if lines.enabled:
            await self._open("peerbus-tcp", lines, partial(self._peer_lines, frame_bytes_max=lines.max_frame_bytes))

    def _peer_lines(self, connection: Connection, frame_bytes_max: int) -> Session:
        begun = self.broker.scheduler.monotonic()
        return PeerSession(self.broker, connection, begun, frame_bytes_max=frame_bytes_max, peer=connection.peer)

    def _peer_websocket(
        self, connection: Connection, heart: Heartbeat, origins: frozenset[str], frame_bytes_max: int
    ) -> Session:
        scheduler, most = self.broker.scheduler, frame_bytes_max
        begun = scheduler.monotonic()
        inner = PeerSession(self.broker, connection, begun, framed=False, frame_bytes_max=most, peer=connection.peer)
        return WebSocketSession(inner, connection, heart, scheduler.monotonic, origins)

    async def _open(self, name: str, door: TcpListener, make: partial[Session]) -> None:
        if door.tls_cert is not None and door.tls_key is not None:
            self.contexts[name] = server_context(door.tls_cert, door.tls_key, door.tls_client_ca)
        listener = Listener(
            self._limits_of(name, door), make, _report, self.contexts.get(name), self.output, self.turns
        )
        try:
            await listener.start()
        except OSError as error:
            raise _cannot_listen(name, door.host, door.port, error) from error
        self.listeners[name] = listener

    def _limits_of(self, name: str, door: TcpListener | FelixListener) -> ListenerOptions:
        limits = self.settings.limits
        return ListenerOptions(
            name,
            door.host,
            door.port,
            min(door.max_connections, limits.connections_max),
            max(limits.connections_per_address_max, door.max_connections if self.settings.dev else 0),
            auth_failures_per_minute=0 if self.settings.dev else limits.auth_failures_per_minute,
        )

    async def _open_felix(self, door: FelixListener) -> None:
        """The door over QUIC, which needs the native kernel or aioquic."""
        try:
            endpoint_class()
        except ImportError as error:
            if error.name != "aioquic":
                raise
            hint = "build the native kernel (`make kernel`), or install quintet[felix], to open it"
            _log.warning("felix_door_shut", missing=error.name, hint=hint)
            return
        identity = self._felix_identity(self.settings)
        options = QuicOptions(
            *identity,
            streams_max=door.streams_max,
            idle_ms=door.idle_seconds * 1000,
            half_open_max=door.half_open_max,
            retry_above=door.retry_above,
            open=door.open,
        )
        make = partial(self._felix_session, options=_felix_options(door))
        listener = QuicListener(self._limits_of("felix", door), options, make, _report, self._scheduler, self.output)
        try:
            await listener.start()
        except ValueError as error:
            raise ConfigError(f"the certificate of listeners.felix cannot be used: {error}") from error
        except OSError as error:
            raise _cannot_listen("felix", door.host, door.port, error) from error
        self.listeners["felix"] = listener

    def _felix_session(self, stream: Stream, options: felix_frames.FelixOptions) -> StreamSession:
        return FelixSession(self.broker, stream, self.broker.scheduler.monotonic(), options, stream.peer)

    def _felix_identity(self, settings: Settings) -> tuple[bytes, bytes, bytes]:
        """Certificate, key and authorities of clients in PEM; made by the door itself where none is configured."""
        door = settings.listeners.felix
        if door.tls_cert is None or door.tls_key is None:
            certificate, key, self.felix_certificate = development_certificate(
                settings.data / "tls", door.certificate_names
            )
            return certificate, key, b""
        self.felix_certificate = None
        certificate, key = read_pair(door.tls_cert, door.tls_key)
        if is_authority(certificate, str(door.tls_cert)):
            hint = "published clients refuse a server whose certificate is an authority (CA:TRUE): use one it signed"
            _log.warning("felix_certificate_is_authority", file=str(door.tls_cert), hint=hint)
        return certificate, key, _content(door.tls_client_ca)

    def _open_flight(self, door: FlightListener) -> None:
        """The door that needs pyarrow, which not everybody has."""
        try:
            from quintet.flight.bridge import Bridge
            from quintet.flight.server import Door, DoorOptions
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "pyarrow":
                raise
            _log.warning("flight_door_shut", missing=error.name, hint="install quintet[flight] to open it")
            return
        if door.tls_cert is not None and door.tls_key is not None:
            server_context(door.tls_cert, door.tls_key, door.tls_client_ca)  # raises, and says what is wrong with them
        options = DoorOptions(
            door.host,
            door.port,
            door.max_calls,
            self.settings.data if door.map_files else None,
            0 if self.settings.dev else self.settings.limits.auth_failures_per_minute,
            certificate=_content(door.tls_cert),
            key=_content(door.tls_key),
            client_ca=_content(door.tls_client_ca),
            output_bytes_max=self.settings.limits.output_bytes_max,
        )
        self._bridge = Bridge(asyncio.get_running_loop(), turns=self.turns)
        try:
            self.flight = Door(self.broker, self._bridge, options, os.urandom, _report)
        except OSError as error:
            raise _cannot_listen("flight", door.host, door.port, error) from error

    def addresses(self) -> dict[str, str]:
        found = {name: listener.address for name, listener in self.listeners.items()}
        if self.flight is not None:
            found["flight"] = self.flight.address
        if self.admin is not None:
            found["admin"] = self.admin.address
        return found

    def _announce(self, print_ready: bool) -> None:
        addresses = self.addresses()
        _log.info("ready", version=__version__, data=str(self.settings.data), listeners=addresses, anchor=self.log.anchor_head,
                  kernel="native" if kernel.NATIVE else "pure Python (slower; build it with Rust and `make setup`)")  # fmt: skip
        for line in figures.fly_clients(self.settings.listeners, addresses):
            _log.info("flymq_clients", **line)
        if not self.broker.users.list() and not _lets_in(self.settings):
            hint = "nobody can log in: add a [[keys]] or [[users]] table to the configuration, or secrets to [tokens]"
            _log.warning("no_keys", hint=hint)
        if self.settings.dev:
            print(figures.development_lines(addresses, self.felix_certificate), file=sys.stderr, flush=True)
        if print_ready:
            print(json.dumps({"ready": True, "listeners": addresses}), flush=True)

    # -- time and change -------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        try:
            self.broker.tick()
            self._collect_when_idle(self.broker.scheduler.monotonic())
            self._let_sessions_look_again()
            if self._jumps_seen != self.broker.clock.jumps:
                self._jumps_seen = self.broker.clock.jumps
                self._renew_certificate()
        finally:
            self._ticker = asyncio.get_running_loop().call_later(TICK_S, self.turns.run, self._tick)

    def _let_sessions_look_again(self) -> None:
        """Rights changed: also who says nothing and only receives must notice."""
        if self._access_seen != self.broker.access.epoch:
            self._access_seen = self.broker.access.epoch
            for listener in self.listeners.values():
                everyone: list[Connection | QuicConnection] = [*listener.connections]
                for connection in everyone:
                    connection.recheck()

    def _collect_when_idle(self, monotonic: int) -> None:
        """A full collection takes tens of milliseconds: in a quiet moment, or when it is long overdue."""
        traffic = sum(listener.bytes_in for listener in self.listeners.values())
        quiet, self._traffic_seen = traffic == self._traffic_seen, traffic
        since = monotonic - self._collected_at
        if (quiet and since >= COLLECT_IDLE_US) or since >= COLLECT_LATEST_US:
            self._collected_at = monotonic
            gc.collect()

    def _renew_certificate(self) -> None:
        """The clock was set: the certificate that the Felix door made itself may not be valid by the new time."""
        felix = self.listeners.get("felix")
        if isinstance(felix, QuicListener) and self.felix_certificate is not None:
            try:
                felix.set_certificate(*self._felix_identity(self.settings))
            except (QuintetError, OSError, ValueError) as error:
                _log.error("certificate_not_renewed", error=str(error), kept="the old certificate")

    def _reload(self) -> None:
        """SIGHUP: all or nothing, and whatever is wrong with the new files, the old policy stays."""
        try:
            read = self._read_again()
            taken, waits = reloading.split(self.settings, read)
            fresh = reloading.merged(self.settings, read)
            tokens, tenant_tokens = _tokens(fresh), _tenant_tokens(fresh)
            felix = self.listeners.get("felix")
            identity = None if felix is None else self._felix_identity(fresh)
            doors = [
                (context, door)
                for name, context in self.contexts.items()
                if (door := getattr(read.listeners, _key_of(name))).tls_cert is not None  # else it keeps what it has
            ]
            for _, door in doors:  # all of them are tried before one of them counts
                server_context(door.tls_cert, door.tls_key)
            if isinstance(felix, QuicListener) and identity is not None:
                felix.set_certificate(*identity)
            for context, door in doors:
                load_into(context, door.tls_cert, door.tls_key)
        except (QuintetError, OSError, ValueError) as error:
            _log.error(
                "reload_refused", code=getattr(error, "code", "E1600"), error=str(error), kept="the old configuration"
            )
            return
        self.broker.set_credentials(_credentials(fresh))
        self.broker.set_tokens(tokens)
        self.broker.set_tenant_tokens(tenant_tokens)
        self.broker.peers.options = _peer_options(fresh.peers)
        self.broker.tenants.replace(_quotas(fresh))
        self.broker.configure_users(*_users(fresh), _users_reloaded)
        self.settings = fresh
        self._let_sessions_look_again()
        self.broker.audit.record("config.change", "", "", "success", action="reload", taken=" ".join(taken))
        _log.info("reloaded", taken=taken, keys=len(fresh.keys), users=len(fresh.users), roles=len(fresh.roles))
        if waits:
            hint = "these options keep the values they were started with: start the broker again to change them"
            _log.warning("restart_needed", options=waits, hint=hint)

    async def _drain(self) -> None:
        _log.info("draining")
        self.draining = self.broker.draining = True
        for listener in self.listeners.values():
            listener.stop_accepting()
        if self.flight is not None:
            self.flight.close()
        deadline = asyncio.get_running_loop().time() + self.settings.drain_timeout_s
        while self.log.unsynced_bytes and asyncio.get_running_loop().time() < deadline - 2 * GOODBYE_S:
            await asyncio.sleep(0.005)
        for listener in self.listeners.values():
            listener.close_all(SHUTTING_DOWN)
        await asyncio.sleep(0)
        until = asyncio.get_running_loop().time() + GOODBYE_S
        while any(listener.connections for listener in self.listeners.values()):
            if asyncio.get_running_loop().time() > until:
                break
            await asyncio.sleep(0.01)
        while self.flight is not None and not self.flight.closed:
            if asyncio.get_running_loop().time() > until:
                break
            await asyncio.sleep(0.01)
        if self._bridge is not None:
            self._bridge.closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        saved = asyncio.Event()
        self.broker.save(saved.set)
        await asyncio.wait_for(saved.wait(), self.settings.drain_timeout_s)
        self.broker.audit.record("system.stop", "", "", "success")
        await self._close_log()
        if self.admin is not None:
            await self.admin.stop()
        _log.info("stopped", anchor=self.log.anchor_head)

    async def _close_log(self) -> None:
        closed = asyncio.Event()
        self.log.close(closed.set)
        await asyncio.wait_for(closed.wait(), self.settings.drain_timeout_s)


def _content(file: Path | None) -> bytes:
    return b"" if file is None else file.read_bytes()


def _quiet_the_collector() -> None:
    """What lives as long as the broker is not looked at again; only the youngest objects are looked at under load, a full
    collection waits for a quiet moment (`Server._collect_when_idle`). Closed connections leave no cycles behind."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_YOUNG_OBJECTS, 1_000_000, 1_000_000)


def _cannot_listen(name: str, host: str, port: int, error: OSError) -> OSError:
    why = os.strerror(error.errno) if error.errno else str(error)
    way_out = f"stop what uses it, or choose another with QUINTET_LISTENERS__{_key_of(name).upper()}__PORT"
    return OSError(error.errno, f"cannot listen on {host}:{port} for {name}: {why} ({way_out})")


def _key_of(listener: str) -> str:
    """The configuration key of a listener's name."""
    return listener.replace("-", "_")


def _report(event: str, fields: dict[str, object]) -> None:
    """How parts without a logger speak: the event's name decides how loud."""
    level = (
        _log.error
        if event in logs.ERROR_EVENTS
        else _log.warning
        if event in ("slow_turn", "clock_jumped")
        else _log.info
    )
    level(event, **fields)


def _chain_key(settings: Settings) -> bytes:
    """The key of the audit chain; empty if it has none."""
    if settings.audit.key_file is None:
        return b""
    try:
        return derive_key(read_secret(settings.audit.key_file).encode())
    except ValueError as error:
        raise ConfigError(f"audit.key_file: {error}") from None


def _credentials(settings: Settings) -> list[Credential]:
    return [Credential(key.name, key.digest.hex(), key.publish, key.subscribe, key.user) for key in settings.keys]


def _tokens(settings: Settings) -> TokenOptions:
    tokens = settings.tokens
    return TokenOptions(
        secrets=tuple(secret.value for secret in tokens.secrets),
        algorithms=tokens.algorithms,
        leeway_us=tokens.leeway_seconds * 1_000_000,
        issuer=tokens.issuer,
        audience=tokens.audience,
        require_exp=tokens.require_exp,
    )


def _tenant_tokens(settings: Settings) -> TenantTokenOptions:
    """A secret is for the algorithms that are listed: without HS256 among them it judges no token of Felix."""
    tokens, door = settings.tokens, settings.listeners.felix
    return TenantTokenOptions(
        secrets=tuple(secret.value for secret in tokens.secrets) if "HS256" in tokens.algorithms else (),
        leeway_us=tokens.leeway_seconds * 1_000_000,
        issuer=door.issuer,
        audience=door.audience,
        keys=tenant_keys(tokens.jwks_file, settings.tenants),
    )


def _lets_in(settings: Settings) -> bool:
    """Whether there is a way in beside the users that the broker keeps: a key, a token that somebody can sign, an open door."""
    tokens, felix = _tenant_tokens(settings), settings.listeners.felix
    anonymous = settings.listeners.flymq.anonymous_role or (felix.open and felix.anonymous_role)
    return bool(settings.keys or settings.tokens.secrets or tokens.secrets or tokens.keys or anonymous)


def _users(settings: Settings) -> tuple[list[Role], list[ConfiguredUser]]:
    roles = [Role(role.name, role.read, role.write, role.admin, role.description) for role in settings.roles]
    return roles, [ConfiguredUser(user.name, user.roles, user.secret, user.hashed) for user in settings.users]


def _users_reloaded(error: Exception | None) -> None:
    if error is not None:
        _log.error(
            "users_refused", code=getattr(error, "code", "E1000"), error=str(error), kept="the users as they were"
        )


def _fast_options(door: FastListener) -> FastOptions:
    return FastOptions(
        extended=door.mode == "extended",
        payload_bytes_max=door.max_payload_bytes,
        auth_failures_max=door.auth_failures_max,
        subject_connections_max=door.subject_connections_max,
        subject_messages_per_second=door.subject_messages_per_second,
        address_messages_per_second=door.address_messages_per_second,
    )


def _felix_options(door: FelixListener) -> felix_frames.FelixOptions:
    return felix_frames.FelixOptions(
        frame_bytes_max=door.max_frame_bytes,
        open=door.open,
        anonymous_role=door.anonymous_role,
        auto_create=door.auto_create,
        subscriptions_max=door.subscriptions_max,
    )


def _queue_options(door: FastListener) -> QueueOptions:
    return QueueOptions(
        require_create=door.require_create,
        expire_subscriptions=door.expire_subscriptions,
        key_updates=door.key_updates,
        rotation_grace_us=door.rotation_grace_seconds * 1_000_000,
        ttl_us=door.ttl_seconds * 1_000_000,
    )


def _peer_options(peers: Peers) -> PeerOptions:
    return PeerOptions(
        secret=peers.secret,
        keys=options_of((key.name, key.kid, key.value) for key in peers.peer_keys),
        verify=peers.verify,
        refuse_foreign_sender=peers.sender_check == "refuse",
        replay_window_us=peers.replay_window_seconds * 1_000_000,
        replay_ids_max=peers.replay_ids_max,
        mailbox_messages_max=peers.mailbox_messages_max,
        mailbox_bytes_max=peers.mailbox_bytes_max,
        mailbox_ttl_us=peers.mailbox_ttl_seconds * 1_000_000,
        broadcast_ttl_us=peers.broadcast_ttl_seconds * 1_000_000,
        name_idle_us=peers.name_idle_days * DAY_US,
        names_per_owner_max=peers.names_per_owner_max,
    )


def _cache_options(cache: Cache) -> CacheOptions:
    return CacheOptions(
        durability=cache.durability,
        memory_bytes=cache.memory_bytes,
        eviction=cache.eviction,
        key_bytes_max=cache.max_key_bytes,
        value_bytes_max=cache.max_value_bytes,
        caches_max=cache.max_caches,
    )


def _quotas(settings: Settings) -> dict[str, TenantQuota]:
    return {
        tenant.name: TenantQuota(
            connections_max=tenant.max_connections,
            streams_max=tenant.max_streams,
            subscriptions_max=tenant.max_subscriptions,
            caches_max=tenant.max_caches,
            cache_bytes=tenant.cache_bytes,
            publish_bytes_per_second=tenant.publish_bytes_per_second,
        )
        for tenant in settings.tenants
    }


def _broker_options(settings: Settings) -> BrokerOptions:
    topics, delivery = settings.topics, settings.delivery
    rules = []
    for override in (*topics.overrides, None):
        chosen = topics if override is None else topics.of(override.pattern)
        rules.append(
            TopicRule(
                pattern="*" if override is None else override.pattern,
                durability=None if override is None else override.durability,
                partitions=chosen.partitions,
                retention_us=chosen.retention_seconds * 1_000_000,
                retention_bytes=chosen.retention_bytes,
                segment_bytes=chosen.segment_bytes,
                memory_bytes=chosen.memory_bytes,
            )
        )
    return BrokerOptions(
        topics=TopicPolicy(rules, topics.durability, topics.max_topics, delivery.queue_messages_max),
        delivery=Policy(
            in_flight_max=delivery.in_flight_max,
            attempts_max=delivery.max_attempts,
            poll_backoff_us=delivery.retry_backoff_ms * 1000,
            push_timeout_us=delivery.push_timeout_ms * 1000,
        ),
        dead_letter_suffix=delivery.dead_letter_suffix,
        subscription_idle_us=delivery.subscription_idle_days * DAY_US,
        subscriptions_max=delivery.subscriptions_max,
        unsynced_bytes_max=settings.limits.unsynced_bytes_max,
        group_timeout_us=delivery.group_timeout_ms * 1000,
        queues=_queue_options(settings.listeners.fast),
        peers=_peer_options(settings.peers),
        caches=_cache_options(settings.cache),
        tenants=_quotas(settings),
        keep_rejected=delivery.keep_rejected,
        password_bytes_min=settings.limits.password_bytes_min,
        audit_bytes=settings.limits.audit_bytes,
        events=settings.audit.events,
        events_bytes=settings.audit.events_bytes,
        entropy=os.urandom,
    )
