"""An exception in one connection's session ends that connection and no other, in every callback of every door.

A whole broker runs in this process, with real sockets. One connection gets a session that raises in one callback; another
connection of the same door works on the same topic at the same time, and must not notice.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet import server as server_module
from quintet.broker.identity.tokens import mint
from quintet.client.bus import Bus
from quintet.client.core.url import ALL_DOORS
from quintet.client.links.fast import Queues
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.client.manage import Manage
from quintet.config import DEV_FAST_MASTER_SECRET, DEV_PEERBUS_SECRET, DEV_PEERBUS_TOKEN, Settings
from quintet.model.errors import QuintetError
from quintet.model.tasks import next_turn
from quintet.net.certificates import CERTIFICATE_NAME
from quintet.net.connection import Connection
from quintet.net.listener import Listener
from quintet.protocols import doors
from quintet.protocols.felix.mapping import EventStream
from quintet.protocols.flymq.door import FLYMQ_SDK
from quintet.server import Server

WAIT_S = 60.0
# All that our client speaks; the sessions of flymq-sdk are FlyMQ's.
DOORS = tuple(door.name for door in doors.DOORS if door is not FLYMQ_SDK and door.protocol in ALL_DOORS)
# Callbacks a door's sessions never get: FlyMQ has no push, a peer's publishes are appended by broker/doors/peers.py.
NEVER = {("flymq", "records"), ("peerbus", "appended"), ("peerbus-tcp", "appended")}
CALLBACKS = ("appended", "completed", "records", "tick", "receive", "recheck")
CASES = [(door, where) for door in DOORS for where in CALLBACKS if (door, where) not in NEVER]


class Planted(Exception):
    """The fault."""


class Raising:
    """A session that raises in one callback and is the real one in everything else."""

    def __init__(self, session: Any, where: str) -> None:
        self.__dict__.update(_session=session, _where=where)

    def __getattr__(self, name: str) -> Any:
        methods = {
            "appended": "on_appended",
            "completed": "on_completed",
            "records": "on_records",
            "recheck": "receive",
        }
        if name == methods.get(self._where, self._where):
            return self._raise if self._where != "recheck" else self._raise_when_empty
        if name == "deadline" and self._where == "tick":
            return lambda: 0
        return getattr(self._session, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._session, name, value)

    def _raise(self, *_: object) -> None:
        raise Planted(self._where)

    def _raise_when_empty(self, view: memoryview, now: int, *split: object) -> int:
        if not view:
            raise Planted(self._where)
        taken: int = self._session.receive(view, now, *split)
        return taken


class World:
    """A broker in this loop, and what it reported."""

    def __init__(self, server: Server, folder: Path, reports: list[tuple[str, dict[str, object]]]) -> None:
        self.server = server
        self.folder = folder
        self.reports = reports

    def url(self, door: str, name: str) -> str:
        address = self.server.listeners[door].address
        claims = {"sub": name, "queue_key": "k", "permissions": ("publish", "subscribe", "rotate")}
        return {
            "blipmq": f"blipmq://:dev-key@{address}",
            "flymq": f"flymq://admin:admin@{address}",
            "fast": f"fast://:{mint(DEV_FAST_MASTER_SECRET.encode(), claims).decode()}@{address}",
            "peerbus": f"peerbus://:{DEV_PEERBUS_TOKEN}@{address}?name={name}",
            "peerbus-tcp": f"peerbus+tcp://:{DEV_PEERBUS_TOKEN}@{address}?name={name}",
            "felix": f"felix://:dev-key@{address}?ca={self.folder / 'tls' / CERTIFICATE_NAME}",
        }[door]

    def faults(self) -> list[dict[str, object]]:
        return [fields for event, fields in self.reports if event == "session_failed"]


@asynccontextmanager
async def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    reports: list[tuple[str, dict[str, object]]] = []
    monkeypatch.setattr(server_module, "report", lambda event, fields: reports.append((event, fields)))
    monkeypatch.setattr(server_module, "_quiet_the_collector", lambda: None)
    monkeypatch.setenv(SECRET_VARIABLE, DEV_PEERBUS_SECRET)
    names = (*(door.key for door in doors.DOORS), "admin", "flight")
    flags: dict[str, Any] = {"data": folder, "dev": True} | {f"listeners.{name}.port": 0 for name in names}
    flags |= {"listeners.flight.enabled": False, "listeners.console.enabled": False, "listeners.admin.enabled": False}
    settings = Settings.load(None, {}, flags)
    server = Server(settings, lambda: settings)
    life = asyncio.create_task(server.run(False))
    while "felix" not in server.listeners:
        await asyncio.sleep(0.01)
        assert not life.done(), life.exception()
    try:
        yield World(server, folder, reports)
    finally:
        server._stop.set()
        await life
        gc.unfreeze()


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with world(tmp_path / "data", monkeypatch) as made:
        yield made


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.01)


class Plant:
    """From `begin` to `end`, each new session of a listener raises in one callback; so do event streams over QUIC."""

    def __init__(self, listener: Any, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._listener = listener
        self._where = where
        self._real = listener.make_session
        self._old = set(listener.connections)
        self._new: set[object] = set()
        real = EventStream._encode

        def encode(stream: EventStream, *args: Any) -> bytes:
            if where == "records" and stream._peer.streams in self._new:
                raise Planted(where)
            return real(stream, *args)

        monkeypatch.setattr(EventStream, "_encode", encode)

    def begin(self) -> None:
        self._listener.make_session = lambda sink: Raising(self._real(sink), self._where)

    def end(self) -> None:
        self._new = set(self._listener.connections) - self._old
        self._listener.make_session = self._real


def mailbox(door: str, name: str) -> str:
    """What `name` reads: a peer has only its own mailbox."""
    return f"peerbus/{name}" if door.startswith("peerbus") else "t/n/orders" if door == "felix" else "orders"


async def misbehave(door: str, bus: Bus, ready: asyncio.Event) -> None:
    """A client whose sessions may raise: it subscribes, publishes, and stays."""
    async with bus, bus.subscribe(mailbox(door, "victim")) as subscription:
        ready.set()
        if door == "fast":
            await Queues(bus).create("another", durable=True)
        for _ in range(3):
            await bus.publish(mailbox(door, "early"), b'{"by": "victim"}')
        async for message in subscription:
            await message.ack()


@pytest.mark.parametrize(("door", "where"), CASES)
async def test_a_fault_costs_its_own_connection(
    door: str, where: str, broker: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = broker.server.listeners[door]
    async with AsyncExitStack() as stack:
        early = await stack.enter_async_context(quintet.connect(broker.url(door, "early")))
        if door == "fast":
            await Queues(early).create("orders", durable=True)
        await early.publish(mailbox(door, "early"), b"0")
        seen = {"early": await reader(door, early, "early", stack)}
        planted = Plant(listener, where, monkeypatch)
        planted.begin()
        ready = asyncio.Event()
        victim = asyncio.create_task(misbehave(door, quintet.connect(broker.url(door, "victim")), ready))
        await until(lambda: ready.is_set() or broker.faults() or victim.done())
        planted.end()
        late = await stack.enter_async_context(quintet.connect(broker.url(door, "late")))
        seen["late"] = await reader(door, late, "late", stack)
        if where == "recheck":
            broker.server.broker.access.look_again()
        for name in ("early", "victim", "late"):
            await late.publish(mailbox(door, name), b'{"by": "late"}')
            await early.publish(mailbox(door, name), b'{"by": "early"}')
        await until(broker.faults)
        await until(lambda: all({b"early", b"late"} <= found for found in seen.values()))
        faulty = {told["peer"] for told in broker.faults()}
        await until(lambda: faulty.isdisjoint(found.peer for found in listener.connections))
        victim.cancel()
        await asyncio.gather(victim, return_exceptions=True)
    told = broker.faults()[0]
    assert (told["door"], told["where"]) == (door, where)
    assert isinstance(told["exc_info"], Planted)
    assert listener.faults == len(broker.faults())


@pytest.mark.parametrize("waits", [False, True])
async def test_a_fault_of_a_verb_is_reported_too(waits: bool, broker: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verb is a coroutine: what it raises comes back as its result, and must not be taken for a refusal."""

    async def raising(*_: object) -> list[str]:
        if waits:
            await next_turn(broker.server.broker.scheduler)
        raise Planted

    async with quintet.connect(broker.url("flymq", "")) as other:
        await other.publish("orders", b"1")
        monkeypatch.setattr(broker.server.broker.dead, "purge", raising)
        async with quintet.connect(broker.url("flymq", "")) as bus:
            with pytest.raises(QuintetError):
                await Manage(bus).purge("orders")
        await until(broker.faults)
        await other.publish("orders", b"2")
    (told,) = broker.faults()
    assert (told["door"], told["where"]) == ("flymq", "completed")
    assert isinstance(told["exc_info"], Planted)


async def reader(door: str, bus: Bus, name: str, stack: AsyncExitStack) -> set[bytes]:
    """Whose messages it has seen, kept up to date."""
    found: set[bytes] = set()
    subscription = await stack.enter_async_context(bus.subscribe(mailbox(door, name)))

    async def read() -> None:
        async for message in subscription:
            found.update(who for who in (b"early", b"late") if who in message.value)
            await message.ack()

    task = asyncio.create_task(read())
    stack.callback(task.cancel)
    return found


async def test_without_the_fence_a_bystander_would_notice(broker: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a connection that lets the exception through leaves somebody else without an acknowledgement."""
    from quintet.log.embedded.partitions import merging, partition

    def bare(_scheduler: object, waiters: list[merging.Pending], error: Exception | None = None) -> None:
        for _, done, base in waiters:
            if done is not None:
                done(base if error is None else -1, error)

    monkeypatch.setattr(partition, "answer_waiters", bare)
    monkeypatch.setattr(Connection, "fault", lambda _self, _where, error: (_ for _ in ()).throw(error))
    listener = broker.server.listeners["blipmq"]
    assert isinstance(listener, Listener)
    address = broker.url("blipmq", "")
    async with quintet.connect(address) as one, quintet.connect(address) as two:
        await one.publish("orders", b"1")
        await two.publish("orders", b"1")
        victim = next(iter(listener.connections))
        victim._session = Raising(victim._session, "appended")
        with pytest.raises((TimeoutError, QuintetError)):
            async with asyncio.timeout(2):
                await asyncio.gather(*(bus.publish("orders", b"2") for bus in (one, two) for _ in range(8)))
