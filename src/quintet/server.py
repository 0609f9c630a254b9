"""The composition root: builds the line from the configuration, owns start and stop. Nothing else imports everything.

start: data directory -> log.recover -> broker -> listeners -> admin -> ready line
TERM:  unready -> stop accepting -> say goodbye -> save, flush, fsync -> exit 0 (within drain_timeout_seconds)
HUP:   read the configuration again and take what config/reloading.py lists; the old policy stays if the new is bad
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from quintet import __version__, figures, kernel, logs
from quintet.admin.app import create_app
from quintet.admin.listener import HttpServer, serve_http
from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.access import Credential, Role
from quintet.broker.identity.tenant_tokens import TenantTokenOptions
from quintet.broker.identity.tokens import TokenOptions
from quintet.broker.identity.users import ConfiguredUser
from quintet.broker.sections import Tenant
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.config import Settings, reloading
from quintet.config.fields import read_secret
from quintet.config.jwks import tenant_keys
from quintet.config.renaming import OldName
from quintet.console.section import ConsoleListener
from quintet.delivery.traces import Traces
from quintet.flight import wire
from quintet.flight.section import FlightListener
from quintet.log.anchors import ANCHORS_NAME
from quintet.log.chain import derive_key
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import OsDisk
from quintet.model.errors import ConfigError, QuintetError, ShuttingDown
from quintet.model.rights import check_rights
from quintet.net.connection import Connection
from quintet.net.doors import OpenDoors, cannot_listen
from quintet.net.listener import SHUTTING_DOWN, Listener, ListenerOptions
from quintet.net.loop import LoopScheduler
from quintet.net.output import OutputBudget
from quintet.net.quic.listener import QuicConnection, QuicListener
from quintet.net.tls import load_into, server_context
from quintet.net.turns import Turns
from quintet.process import give_back_memory, leave_at_once, notify, raise_open_files, runner
from quintet.protocols.doors import DOORS, Doors, origins
from quintet.protocols.fast.door import FAST
from quintet.protocols.felix.door import FELIX
from quintet.protocols.options import TcpListener

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from quintet.broker.doors.pipelines import Status
    from quintet.broker.follower import FollowerBroker
    from quintet.config.options import OptionRow
    from quintet.console.app import Console
    from quintet.console.connections import Listeners
    from quintet.console.surroundings import KnownNode
    from quintet.flight.bridge import Bridge
    from quintet.flight.server import Door
    from quintet.otlp import SpanQueue

TICK_S = 0.05
CELL_MARK = "cell.mark"  # log/replicated/mark.py: a folder that has it belongs to a cell
CELLS_FILE = "cells.json"  # cells/folder.py: a folder that has it holds the folders of several cells
GOODBYE_S = 0.5  # for peers to take what was still being sent to them
COLLECT_YOUNG_OBJECTS = 2_000
COLLECT_IDLE_US = 60_000_000
COLLECT_LATEST_US = 1_800_000_000

_log = logs.Logger()
_reporter = logs.Reporter(monotonic)


def warn_of_old_name(name: OldName) -> None:
    """A key of the configuration was given by a name that the next release does not know."""
    _log.warning("option_renamed", origin=name.origin, old=name.old, new=name.new, hint=str(name))


def serve(
    settings: Settings,
    *,
    print_ready: bool,
    reload: Callable[[], Settings],
    old_names: Iterable[OldName] = (),
    make: "Callable[[Settings, Callable[[], Settings]], Server] | None" = None,
) -> int:
    """Run the broker until it is told to stop, and end the process; the exit code of one that could not start or stop. `reload`
    reads the configuration again; `old_names` were found when it was read. make: another kind of server."""
    logs.configure(settings.log.level, settings.log.format)
    for name in old_names:
        warn_of_old_name(name)
    raise_open_files()
    gc.freeze()  # 100,000 objects, of which 1,100 are garbage: to find them took 50 ms of each start
    gc.enable()  # `quintet serve` switches it off while it loads
    try:
        with runner() as running:
            server = (make or Server)(settings, reload)
            code = running.run(server.run(print_ready))
            if server.flight is not None and not server.flight.closed:
                leave_at_once(code)
        leave_at_once(code)
    except QuintetError as error:
        print(f"quintet: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"quintet: {error.strerror or error}", file=sys.stderr)
        return 1


def check_doors(doors: Doors = DOORS) -> None:
    """No door opens while an operation of any of them has no row in its table of rights."""
    for door in doors:
        door.check()
    check_rights("flight", (*wire.ACTIONS, *wire.CALLS), wire.RIGHTS)


class Server:
    """A running broker. Owns every part; parts do not know each other beyond the line."""

    def __init__(self, settings: Settings, reload: Callable[[], Settings]) -> None:
        self.settings = settings
        self._read_again = reload
        self.doors: OpenDoors
        self.listeners: dict[str, Listener | QuicListener] = {}
        self.output = OutputBudget(settings.limits.output_bytes_max)
        self.admin: HttpServer | None = None
        self.console: Console | None = None
        self._console_http: HttpServer | None = None
        self._console_tls: ssl.SSLContext | None = None
        self.flight: Door | None = None
        self._bridge: Bridge | None = None
        self.spans: SpanQueue | None = None
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
        self._waits: list[str] = []  # options that were changed in the files and need a restart

    async def run(self, print_ready: bool) -> int:
        check_doors(self.settings.listeners.doors)
        loop = asyncio.get_running_loop()
        _reporter.sum_up()  # each broker of a process has a window of its own
        self.turns = self.turns_type(loop, report)
        scheduler = self._scheduler = LoopScheduler(loop, turns=self.turns)
        settings = self.settings
        self.log = self._make_log(scheduler)
        with _collector_off():
            self.log.recover()
        if not await self._until_leading():
            scheduler.close()
            return 0
        try:
            options = replace(
                broker_options(settings), traces=self._open_telemetry(), identity_followed=self.identity_followed
            )
            with _collector_off():
                self.broker = Broker(self.log, scheduler, options, report)
            self.broker.set_credentials(_credentials(settings))
            self.broker.set_tokens(_tokens(settings))
            self.broker.set_tenant_tokens(_tenant_tokens(settings))
            await self._configure_users()
            await self._open_doors()
        except BaseException as error:
            self.log.abandon()  # nothing was acknowledged: leave the directory as a crash would, and say one thing only
            if not isinstance(error, ShuttingDown):
                raise
            _log.info("stopped", reason=str(error))  # it was told to: that is no failure
            return 0
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
        self.doors.close()
        scheduler.close()
        return 0

    # What a node of a cell does otherwise (cell_server.py, ADR 39).

    turns_type: type[Turns] = Turns
    identity_followed = False

    def _make_log(self, scheduler: LoopScheduler, make: Callable[..., EmbeddedLog] = EmbeddedLog) -> EmbeddedLog:
        settings = self.settings
        if settings.engine == "embedded" and os.path.exists(settings.data / CELL_MARK):  # False where one may not look
            raise ConfigError(
                f"{settings.data}: belongs to a cell, and what is written here without it would be lost to the other nodes",
                hint='start it with engine = "kafka", or name another folder',
            )
        if os.path.exists(settings.data / CELLS_FILE):
            raise ConfigError(
                f"{settings.data}: holds the folders of several cells, and no log of its own",
                hint="start it with --cells, as it was made",
            )
        return make(
            settings.data,
            OsDisk(),
            scheduler,
            report,
            tail_cache_bytes=settings.limits.tail_cache_bytes,
            memory_topics_bytes=settings.limits.memory_topics_bytes,
            disk_floor_bytes=settings.limits.disk_free_bytes_min,
            chain=settings.audit.chain,
            chain_key=chain_key(settings),
            anchor_file=str(settings.audit.anchor_file or settings.data / ANCHORS_NAME),
            anchor_us=settings.audit.anchor_seconds * 1_000_000,
        )

    async def _until_leading(self) -> bool:
        """The log of one node leads from its start. False: it was stopped before it led."""
        return True

    def _open_telemetry(self) -> Traces | None:
        """Who follows sampled messages, and the thread that exports their spans; None: nobody asked for it."""
        options = self.settings.telemetry
        if not options.endpoint:
            return None
        from quintet.otlp import SpanQueue, check_installed  # late: who has no telemetry does not load it

        check_installed()
        loop = asyncio.get_running_loop()

        def report_from_thread(event: str, fields: dict[str, object]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the broker has stopped
                loop.call_soon_threadsafe(report, event, fields)

        self.spans = SpanQueue(options, report_from_thread, self.log.identity)
        return Traces(
            self._scheduler,
            os.urandom,
            self.spans.put,
            ratio=options.sample_ratio,
            spans_per_second_max=options.spans_per_second_max,
            messages_max=options.messages_max,
        )

    async def _configure_users(self) -> None:
        """The doors open when the configured users can log in."""
        told: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.broker.configure_users(*users_of(self.settings), told.set_result)
        error = await told
        if error is not None:
            raise error

    # -- doors -----------------------------------------------------------------------------------------------------

    async def _open_doors(self) -> None:
        listeners, tls = self.settings.listeners, self.settings.data / "tls"
        self.doors = self._make_doors(tls)
        self.listeners = self.doors.listeners
        await self._open_links()
        for door in listeners.doors:
            if listeners.of(door).enabled:
                await self.doors.open(door, listeners.of(door))
        if listeners.flight.enabled:
            self._open_flight(listeners.flight)
            self.doors.serves("flight", listeners.flight.tls_cert)
        if listeners.console.enabled:
            await self._open_console(listeners.console)
        await self._open_admin()

    async def _open_links(self) -> None:
        """Before the doors: what one of several processes needs (cells/process.py)."""

    def _make_doors(self, tls: Path) -> OpenDoors:
        return OpenDoors(self.broker, self._scheduler, self._limits_of, report, self.output, self.turns, tls)

    async def _open_admin(self) -> None:
        door = self.settings.listeners.admin
        if door.enabled:
            view = figures.View(self, door.labels_max)
            self.admin = await serve_http(create_app(view, view), door.host, door.port)

    def _limits_of(self, name: str, door: TcpListener) -> ListenerOptions:
        limits = self.settings.limits
        return ListenerOptions(
            name,
            door.host,
            door.port,
            min(door.connections_max, limits.connections_max),
            max(limits.connections_per_address_max, door.connections_max if self.settings.dev else 0),
            auth_failures_per_minute=0 if self.settings.dev else limits.auth_failures_per_minute_max,
        )

    def _open_flight(self, door: FlightListener) -> None:
        self._open_flight_for(self.broker, door)

    def _open_flight_for(self, broker: "Broker | FollowerBroker", door: FlightListener) -> None:
        """The door that needs pyarrow, which not everybody has."""
        try:
            from quintet.flight.bridge import Bridge
            from quintet.flight.server import Door
        except ImportError as error:
            if (error.name or "").partition(".")[0] != "pyarrow":
                raise
            _log.warning("flight_door_shut", missing=error.name, hint="install quintet[flight] to open it")
            return
        if door.tls_cert is not None and door.tls_key is not None:
            server_context(door.tls_cert, door.tls_key, door.tls_client_ca)  # raises, and says what is wrong with them
        self._bridge = Bridge(asyncio.get_running_loop(), turns=self.turns)
        try:
            self.flight = self._flight_type(Door)(
                broker,
                self._bridge,
                door,
                self.settings.data,
                os.urandom,
                report,
                failures_per_minute=0 if self.settings.dev else self.settings.limits.auth_failures_per_minute_max,
                output_bytes_max=self.settings.limits.output_bytes_max,
            )
        except OSError as error:
            raise cannot_listen("flight", door.host, door.port, error) from error

    def _flight_type(self, door: "type[Door]") -> "Callable[..., Door]":
        """Which door of Flight: one of several processes has another."""
        return door

    async def _open_console(self, door: ConsoleListener) -> None:
        from quintet.console.app import Console  # late: who has no console does not load it
        from quintet.console.operations import check

        check()
        if door.tls_cert is not None and door.tls_key is not None:
            self._console_tls = server_context(door.tls_cert, door.tls_key, door.tls_client_ca)
        failures = 0 if self.settings.dev else self.settings.limits.auth_failures_per_minute_max
        self.console = Console(
            self, door, os.urandom, report, failures_per_minute=failures, elsewhere=self._console_elsewhere()
        )
        try:
            self._console_http = await serve_http(
                self.console, door.host, door.port, name="console", tls=self._console_tls
            )
        except OSError as error:
            raise cannot_listen("console", door.host, door.port, error) from error
        self.doors.serves("console", door.tls_cert)
        self.console.sampler.start()

    def _console_elsewhere(self) -> object:
        """Who answers for other cells (console/cells.py); None: there are none."""
        return None

    def configuration(self) -> "list[OptionRow]":
        """Every option with where it comes from, secrets hidden."""
        from quintet.config.options import option_rows

        return list(option_rows(self.settings, self._waits))

    def verify_command(self) -> list[str]:
        """The arguments of `quintet audit verify` for this broker's files."""
        audit = self.settings.audit
        anchors = ["--anchors", str(audit.anchor_file)] if audit.anchor_file is not None else []
        keys = ["--key-file", str(audit.key_file)] if audit.key_file is not None else []
        return ["audit", "verify", "--data", str(self.settings.data), *anchors, *keys]

    def nodes(self) -> "Sequence[KnownNode]":
        """The nodes of its cell, this one first; none if it is alone, or nodes do not listen for each other."""
        return ()

    def pipelines(self, owner: str, everything: bool) -> "Sequence[Status]":
        """What reported to the Flight door, as the console shows it."""
        if self.flight is None:
            return ()
        return self.flight.pipelines.seen(owner, everything, self.broker.scheduler.monotonic())

    def stop_pipeline(self, owner: str, everything: bool, name: str) -> None:
        if self.flight is not None:
            self.flight.pipelines.stop(owner, everything, name, self.broker.scheduler.monotonic())

    @property
    def watched(self) -> "Listeners":
        """The doors whose connections the console shows; of the Flight door these are the streams under way."""
        return self.listeners if self.flight is None else {**self.listeners, "flight": self.flight}

    def addresses(self) -> dict[str, str]:
        found = {name: listener.address for name, listener in self.listeners.items()}
        if self.flight is not None:
            found["flight"] = self.flight.address
        if self._console_http is not None:
            found["console"] = self._console_http.address
        if self.admin is not None:
            found["admin"] = self.admin.address
        return found

    def _announce(self, print_ready: bool) -> None:
        addresses = self.addresses()
        _log.info("ready", version=__version__, data=str(self.settings.data), listeners=addresses, anchor=self.log.anchor_head,
                  kernel="native" if kernel.NATIVE else f"pure Python, which is slower: {kernel.PURE_HINT}")  # fmt: skip
        self._advise(addresses)
        if print_ready:
            print(json.dumps({"ready": True, "listeners": addresses}), flush=True)
        notify("READY=1")

    def _advise(self, addresses: dict[str, str]) -> None:
        """What an operator should know of doors that are open now."""
        for door in self.settings.listeners.doors:
            said = door.ready(self.settings.listeners.of(door), addresses.get(door.name, ""))
            if said is not None and door.name in addresses:
                _log.say(logging.INFO, said[0], said[1])
        if not self.broker.users.list() and not _lets_in(self.settings):
            hint = "nobody can log in: add a [[keys]] or [[users]] table to the configuration, or secrets to [tokens]"
            _log.warning("no_keys", hint=hint)
        if self.settings.dev:
            lines = figures.development_lines(addresses, self.doors.certificates, self.settings.listeners.doors)
            print(lines, file=sys.stderr, flush=True)

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
        takes = sum(listener.takes for listener in self.listeners.values() if isinstance(listener, QuicListener))
        traffic = self.turns.reads + takes
        quiet, self._traffic_seen = traffic == self._traffic_seen, traffic
        since = monotonic - self._collected_at
        if (quiet and since >= COLLECT_IDLE_US) or since >= COLLECT_LATEST_US:
            self._collected_at = monotonic
            gc.collect()
            give_back_memory()

    def _renew_certificate(self) -> None:
        try:
            self.doors.renew_own(self.settings.listeners.of)
        except (QuintetError, OSError, ValueError) as error:
            _log.error("certificate_not_renewed", error=str(error), kept="the old certificate")

    def _reload(self) -> None:
        """SIGHUP: all or nothing, and whatever is wrong with the new files, the old policy stays."""
        try:
            read = self._read_again()
            reloads = reloading.Reloads(self.settings.listeners.doors)
            taken, waits = reloads.split(self.settings, read)
            fresh = reloads.merged(self.settings, read)
            tokens, tenant_tokens = _tokens(fresh), _tenant_tokens(fresh)
            self.doors.reload(lambda door: getattr(read.listeners, door.key, self.settings.listeners.of(door)))
            console = read.listeners.console
            if self._console_tls is not None and console.tls_cert is not None and console.tls_key is not None:
                load_into(self._console_tls, console.tls_cert, console.tls_key)
                self.doors.serves("console", console.tls_cert)
        except (QuintetError, OSError, ValueError) as error:
            _log.error(
                "reload_refused", code=getattr(error, "code", "E1600"), error=str(error), kept="the old configuration"
            )
            return
        self.broker.set_credentials(_credentials(fresh))
        self.broker.set_tokens(tokens)
        self.broker.set_tenant_tokens(tenant_tokens)
        self.broker.peers.options = fresh.peers
        self.broker.tenants.replace(_tenants(fresh))
        self.broker.quotas.configure(fresh.quotas)
        self.broker.configure_users(*users_of(fresh), _users_reloaded)
        fresh.take_origins(read, taken)
        self.settings, self._waits = fresh, waits
        self._let_sessions_look_again()
        self.broker.audit.record("config.change", "", "", "success", action="reload", taken=" ".join(taken))
        _log.info("reloaded", taken=taken, keys=len(fresh.keys), users=len(fresh.users), roles=len(fresh.roles))
        if waits:
            hint = "these options keep the values they were started with: start the broker again to change them"
            _log.warning("restart_needed", options=waits, hint=hint)

    def _drain_reason(self) -> str:
        """What is said to whoever is refused while it drains."""
        return SHUTTING_DOWN

    async def _drain(self) -> None:
        _log.info("draining")
        notify("STOPPING=1")
        self.broker.drain_reason = self._drain_reason()
        self.draining = self.broker.draining = True
        for listener in self.listeners.values():
            listener.stop_accepting()
        if self.flight is not None:
            self.flight.close(self.broker.drain_reason)
        if self.console is not None and self._console_http is not None:
            await self.console.stop()
            await self._console_http.stop()
        deadline = asyncio.get_running_loop().time() + self.settings.drain_timeout_seconds
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
            self._bridge.close(self.broker.drain_reason)
        if self._ticker is not None:
            self._ticker.cancel()
        saved = asyncio.Event()
        self.broker.save(saved.set)
        await asyncio.wait_for(saved.wait(), self.settings.drain_timeout_seconds)
        self.broker.audit.record("system.stop", "", "", "success")
        await self._close_log()
        if self.spans is not None:
            await asyncio.to_thread(self.spans.close)
        if self.admin is not None:
            await self.admin.stop()
        _reporter.sum_up()
        _log.info("stopped", anchor=self.log.anchor_head)

    async def _close_log(self) -> None:
        closed = asyncio.Event()
        self.log.close(closed.set)
        await asyncio.wait_for(closed.wait(), self.settings.drain_timeout_seconds)


@contextlib.contextmanager
def _collector_off() -> Iterator[None]:
    """What is opened stays as long as the broker does, 15 objects for a topic: to look for garbage among those of 100,000 topics
    took a second of a start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _quiet_the_collector() -> None:
    """What lives as long as the broker is not looked at again; only the youngest objects are looked at under load, a full
    collection waits for a quiet moment (`Server._collect_when_idle`). Closed connections leave no cycles behind."""
    gc.collect()
    gc.freeze()
    give_back_memory()
    gc.set_threshold(COLLECT_YOUNG_OBJECTS, 1_000_000, 1_000_000)


def report(event: str, fields: dict[str, object]) -> None:
    """How parts without a logger speak."""
    _reporter(event, fields)


def chain_key(settings: Settings) -> bytes:
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
    tokens, door = settings.tokens, settings.listeners.of(FELIX)
    return TenantTokenOptions(
        secrets=tuple(secret.value for secret in tokens.secrets) if "HS256" in tokens.algorithms else (),
        leeway_us=tokens.leeway_seconds * 1_000_000,
        issuer=door.issuer,
        audience=door.audience,
        keys=tenant_keys(tokens.jwks_file, settings.tenants),
    )


def _lets_in(settings: Settings) -> bool:
    """Whether there is a way in beside the users that the broker keeps: a key, a token that somebody can sign, an open door."""
    tokens, listeners = _tenant_tokens(settings), settings.listeners
    anonymous = any(listeners.of(door).lets_in for door in listeners.doors)
    return bool(settings.keys or settings.tokens.secrets or tokens.secrets or tokens.keys or anonymous)


def users_of(settings: Settings) -> tuple[list[Role], list[ConfiguredUser]]:
    roles = [Role(role.name, role.read, role.write, role.admin, role.description) for role in settings.roles]
    return roles, [ConfiguredUser(user.name, user.roles, user.secret, user.hashed) for user in settings.users]


def _users_reloaded(error: Exception | None) -> None:
    if error is not None:
        _log.error(
            "users_refused", code=getattr(error, "code", "E1000"), error=str(error), kept="the users as they were"
        )


def _tenants(settings: Settings) -> dict[str, Tenant]:
    return {tenant.name: tenant for tenant in settings.tenants}


def broker_options(settings: Settings) -> BrokerOptions:
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
        topics=TopicPolicy(rules, topics.durability, topics.topics_max, delivery.queue_messages_max),
        delivery=delivery,
        limits=settings.limits,
        audit=settings.audit,
        queues=settings.listeners.of(FAST),
        peers=settings.peers,
        caches=settings.cache,
        tenants=_tenants(settings),
        quotas=settings.quotas,
        entropy=os.urandom,
        doors=origins(settings.listeners.doors),
    )
