"""Connections by the kernel's sockets (ADR 54) say and store what connections by the loop's transports do.

The same conversations, by a seed, on several connections at once, cut into writes at random: with the kernel taking reads by itself, with
every read left to the sessions, and without the kernel's sockets at all. Answers must be the same byte for byte (but for times), in
the same order, and so must be what the topics hold. What makes partitions give back what the kernel appended (segments that roll, topics
that are deleted, a disk that is full) happens meanwhile.
"""

import asyncio
import contextlib
import errno
import gc
import itertools
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pytest

from quintet import kernel
from quintet import server as server_module
from quintet.config import DEV_FAST_MASTER_SECRET, Settings
from quintet.model import limits
from quintet.net import doors as net_doors
from quintet.net.connection import Connection
from quintet.net.disk_writes import LoneWrites
from quintet.net.loop import LoopScheduler
from quintet.net.sockets import Accepting, Hub, SocketTransport
from quintet.protocols import doors
from quintet.server import Server
from tests.crash import reader
from tests.wire import blipmq, fast, flymq

pytestmark = pytest.mark.skipif(kernel.Sockets is None, reason="only the native kernel has sockets, on Linux")

WAYS: Final = ("kernel", "sessions", "loop")
CONNECTIONS: Final = 3
STEPS: Final = 300
SEGMENT_BYTES: Final = limits.SEGMENT_BYTES_MIN
WAIT_S: Final = 30
DELETE_TOPIC: Final = 0x09  # of FlyMQ

Split = Callable[[bytes], tuple[list[Any], bytes]]


@contextlib.asynccontextmanager
async def serving(folder: Path, way: str, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> AsyncIterator[Server]:
    """A broker in this loop whose plain connections are served in one of three ways."""
    with monkeypatch.context() as patch:
        if way == "loop":
            patch.setattr(kernel, "Sockets", None)
        elif way == "sessions":
            patch.setattr(net_doors._Publishing, "is_direct", lambda _: False)
        patch.setattr(server_module, "_quiet_the_collector", lambda: None)
        names = (*(door.key for door in doors.DOORS), "admin", "flight")
        given: dict[str, Any] = {"data": folder, "dev": True} | {f"listeners.{name}.port": 0 for name in names}
        given |= {f"listeners.{name}.enabled": False for name in ("flight", "console", "admin", "felix")}
        settings = Settings.load(None, {}, given | flags)
        server = Server(settings, lambda: settings)
        life = asyncio.create_task(server.run(False))
        try:
            while "peerbus" not in server.listeners or "flymq" not in server.listeners:
                await asyncio.sleep(0.01)
                assert not life.done(), life.exception()
            yield server
        finally:
            server._stop.set()
            await life
            gc.unfreeze()


def address(server: Server, door: str) -> tuple[str, int]:
    host, _, port = server.listeners[door].address.rpartition(":")
    return host, int(port)


class Talk(NamedTuple):
    """What one client says: the parts of its login with the number of their answers, then writes, each with the number of answers to all
    before it if the client waits for them there."""

    split: Split
    login: list[tuple[bytes, int]]
    writes: list[tuple[bytes, int | None]]
    meaning: Callable[[Any], object]


class Client:
    """One raw connection."""

    def __init__(self, split: Split, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        self._split = split
        self._incoming = incoming
        self._outgoing = outgoing
        self.answers: list[Any] = []
        self._rest = b""

    async def say(self, data: bytes, answers: int | None) -> None:
        """And wait until there are so many answers in all."""
        self._outgoing.write(data)
        await self._outgoing.drain()
        while answers is not None and len(self.answers) < answers:
            more = await self._incoming.read(1 << 20)
            assert more, f"the broker closed the connection after {len(self.answers)} of {answers} answers"
            found, self._rest = self._split(self._rest + more)
            self.answers += found


@contextlib.asynccontextmanager
async def connected(server: Server, door: str, split: Split, *login: tuple[bytes, int]) -> AsyncIterator[Client]:
    streams = await asyncio.open_connection(*address(server, door))
    client = Client(split, *streams)
    try:
        async with asyncio.timeout(WAIT_S):
            for part, count in login:
                await client.say(part, len(client.answers) + count)
            client.answers.clear()
            yield client
    finally:
        streams[1].close()


async def hold(server: Server, door: str, said: Talk) -> list[object]:
    """Say it; what was answered."""
    async with connected(server, door, said.split, *said.login) as client:
        for data, answers in said.writes:
            await client.say(data, answers)
        return [said.meaning(one) for one in client.answers]


def joined(frames: list[tuple[bytes, bool]], chance: random.Random) -> list[tuple[bytes, int | None]]:
    """As writes: mostly cut behind a frame, as clients do, often several at once, sometimes within one. Each frame says whether it is
    answered; behind some writes of whole frames all answers are waited for, and the connection is quiet."""
    data = b"".join(frame for frame, _ in frames)
    ends = itertools.accumulate(len(frame) for frame, _ in frames)
    due = dict(zip(ends, itertools.accumulate(answered for _, answered in frames), strict=True))
    at = (
        {end for end in due if chance.random() < 0.6}
        | {chance.randrange(1, len(data)) for _ in range(12)}
        | {len(data)}
    )
    writes = itertools.pairwise([0, *sorted(at)])
    return [(data[a:b], due[b] if b in due and (chance.random() < 0.3 or b == len(data)) else None) for a, b in writes]


def value_of(number: int, step: int, chance: random.Random) -> bytes:
    return b"%d.%d " % (number, step) + bytes(chance.choice([1, 100, 3000]))


BLIP_LOGIN: Final = (blipmq.hello(1, 2) + blipmq.auth(2, b"dev-key"), 2)


def blip_talk(number: int, chance: random.Random) -> Talk:
    frames: list[tuple[bytes, bool]] = []
    for step in range(STEPS):
        topic = b"%s-%d" % (chance.choice([b"kept", b"kept", b"memory", b"other"]), number)
        qos = 0 if topic.startswith(b"memory") else 1
        frames.append((blipmq.publish(step + 1, topic, value_of(number, step, chance), qos), False))
        for likely, odd in (
            (0.4, blipmq.ping(1000 + step)),
            (0.06, blipmq.ack(5000 + step, 999_999)),  # refused: its answer stands between the PONGs around it
            (0.03, blipmq.publish(step + 1, b"", b"x", 1)),
        ):
            if chance.random() < likely:
                frames.append((odd, True))
    frames.append((blipmq.ping(77_777), True))
    return Talk(blipmq.split, [BLIP_LOGIN], joined(frames, chance), lambda frame: frame)


def fly_talk(number: int, chance: random.Random) -> Talk:
    frames = []
    for step in range(STEPS):
        topic = f"{chance.choice(['kept', 'kept', 'other'])}-{number}"
        frames.append((flymq.produce(topic, value_of(number, step, chance), partition=0), True))
        for likely, odd in ((0.05, flymq.produce(topic, b"x", partition=77)), (0.05, flymq.frame(0xEE))):
            if chance.random() < likely:
                frames.append((odd, True))
    times = slice(-16, -8)  # of an answer to PRODUCE: they differ from run to run

    def meaning(frame: flymq.Frame) -> object:
        payload = bytearray(frame.payload)
        if frame.code == flymq.PRODUCE:
            payload[times] = bytes(8)
        return frame.code, bytes(payload)

    return Talk(flymq.split, [(flymq.auth("admin", "admin"), 1)], joined(frames, chance), meaning)


def fast_talk(number: int, chance: random.Random) -> Talk:
    jwt = fast.token(f"d{number}", "k", "publish", "subscribe", secret=DEV_FAST_MASTER_SECRET.encode())
    names, frames = (b"kept-%d" % number, b"other-%d" % number), list[tuple[bytes, bool]]()
    for step in range(STEPS):
        shown = jwt if not step or chance.random() < 0.5 else b""
        topic = fast.topic_id(chance.choice(names))
        frames.append((fast.publish(shown, topic, value_of(number, step, chance)), True))
        if chance.random() < 0.05:
            frames.append((fast.publish(jwt, 4242, b"x"), True))  # there is no such topic
    login = [(fast.extend(1), 1), *((fast.create(jwt, name, 1), 1) for name in names)]
    # The answers to one read leave by topic, and how reads are cut is chance: so they are compared by topic.
    return Talk(fast.split, login, joined(frames, chance), lambda packet: (packet.topic, packet))


def by_topic(answer: Any) -> int:
    return cast(int, answer[0])


TALKS: Final = {"blipmq": blip_talk, "flymq": fly_talk, "fast": fast_talk}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many reads the kernel took in each pass."""
    found: list[int] = []
    real = Hub._hold_passed

    def hold_passed(hub: Hub) -> None:
        class Counting:
            def passed(self) -> tuple[Any, ...]:
                passed = sockets.passed()
                found.append(passed[1])
                return passed

            def __getattr__(self, name: str) -> Any:
                return getattr(sockets, name)

        sockets = hub.sockets
        hub.sockets = cast(Any, Counting())
        try:
            real(hub)
        finally:
            hub.sockets = sockets

    monkeypatch.setattr(Hub, "_hold_passed", hold_passed)
    return found


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("door", TALKS)
async def test_the_kernel_answers_and_stores_what_sessions_do(
    door: str, durability: str, tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, object] = {}
    kept: dict[str, dict[str, list[bytes]]] = {}
    for way in WAYS:
        before, folder = sum(taken), tmp_path / way
        topics = {"topics.segment_bytes": SEGMENT_BYTES, "topics.durability": durability}
        async with serving(folder, way, monkeypatch, **topics) as server:
            chance = random.Random(f"{door} {durability}")
            talks = [TALKS[door](number, chance) for number in range(CONNECTIONS)]
            found = await asyncio.gather(*(hold(server, door, said) for said in talks))
            told[way] = [sorted(one, key=by_topic) if door == "fast" else one for one in found]
        took = sum(taken) - before  # with fsync a partition is lent only if it is alone, or among six
        assert not took if way != "kernel" else took or durability == "fsync", "who took the reads"
        files = reader.read(folder)
        assert not [found.wrong for found in files.values() if found.wrong]
        kept[way] = {name: list(found.values.values()) for name, found in files.items() if "-" in name}
    assert told["kernel"] == told["loop"] and told["sessions"] == told["loop"]
    assert kept["kernel"] == kept["loop"] and kept["sessions"] == kept["loop"]
    assert sum(map(len, kept["kernel"].values())) > STEPS


async def test_what_a_deleted_topic_gives_back_is_answered_in_its_place(
    tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions take back what the kernel appended for connections, also while it is written: then sessions answer it."""
    rounds, names = (
        200,
        [b"gone-%d" % number for number in range(8)],
    )  # so many that the journal takes them, which lends them
    publishes = b"".join(blipmq.publish(1, name, b"x" * 50, 1) for name in names)
    ended = asyncio.Event()

    def pongs(data: bytes) -> tuple[list[blipmq.Frame], bytes]:
        found, rest = blipmq.split(data)
        return [frame for frame in found if frame.kind != blipmq.NACK], rest

    async def publish(server: Server) -> None:
        async with connected(server, "blipmq", pongs, BLIP_LOGIN) as client:
            for step in range(1, rounds + 1):
                await client.say(publishes + blipmq.ping(step), step if step % 4 == 0 else None)
            assert [pong.id for pong in client.answers] == list(range(1, rounds + 1))

    async def delete(server: Server) -> None:
        async with connected(server, "flymq", flymq.split, (flymq.auth("admin", "admin"), 1)) as client:
            for number in itertools.count(1):
                if ended.is_set():
                    return
                await client.say(flymq.frame(DELETE_TOPIC, flymq.text(names[number % len(names)])), number)
                await asyncio.sleep(0.02)

    async with serving(tmp_path, "kernel", monkeypatch) as server:
        deleting = asyncio.create_task(delete(server))
        await asyncio.gather(*(publish(server) for _ in range(4)))
        ended.set()
        await deleting
    assert sum(taken), "the kernel took none of the reads"


async def test_a_peer_that_does_not_read_is_held_back_and_gets_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers that the socket does not take are few, because then its session reads it, which stops. They leave in order."""
    count = 1_000_000  # PONGs of 13 bytes: more than sockets and marks hold
    async with (
        serving(tmp_path, "kernel", monkeypatch) as server,
        connected(server, "blipmq", blipmq.split, BLIP_LOGIN) as client,
    ):
        await client.say(blipmq.publish(1, b"m", b"x", 0) + blipmq.ping(1), 1)
        pings = b"".join(blipmq.ping(number) for number in range(2, count + 2))
        sending = asyncio.create_task(client.say(pings, None))
        (connection,) = cast(set[Connection], server.listeners["blipmq"].connections)
        while not connection._flow.watched:
            await asyncio.sleep(0.01)
        assert connection._transport is not None
        assert limits.WRITE_HIGH_BYTES < connection._transport.get_write_buffer_size() < 8 * limits.WRITE_HIGH_BYTES
        await client.say(b"", count + 1)
        await sending
        assert [one.id for one in client.answers] == list(range(1, count + 2))


async def test_an_accept_without_descriptors_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    made: list[object] = []
    listening = socket.create_server(("127.0.0.1", 0))

    class Full(socket.socket):
        failures = 1

        def accept(self) -> tuple[socket.socket, Any]:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    full = Full(fileno=listening.detach())
    monkeypatch.setattr("quintet.net.sockets.ACCEPT_PAUSE_S", 0.01)
    monkeypatch.setattr(
        "quintet.net.sockets.SocketTransport", lambda hub, connected, client, peer: made.append(connected)
    )
    hub = type("Loop", (), {"loop": loop})()
    accepting = Accepting(hub, [full], lambda: None)  # type: ignore[arg-type, return-value]
    with socket.create_connection(full.getsockname()):
        async with asyncio.timeout(WAIT_S):
            while not made:
                await asyncio.sleep(0.01)
    accepting.close()
    for connected in made:
        connected.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("door", TALKS)
async def test_changed_rights_are_looked_at_before_the_next_read(
    door: str, tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: as long as nothing changes, the kernel takes reads. Then the session sees the first read after a change."""
    jwt = fast.token("d", "k", "publish", secret=DEV_FAST_MASTER_SECRET.encode())
    split, login, request = {
        "blipmq": (blipmq.split, [BLIP_LOGIN], blipmq.publish(1, b"t", b"x", 1) + blipmq.ping(1)),
        "flymq": (flymq.split, [(flymq.auth("admin", "admin"), 1)], flymq.produce("t", b"x", partition=0)),
        "fast": (
            fast.split,
            [(fast.extend(1), 1), (fast.create(jwt, b"t", 1), 1)],
            fast.publish(jwt, fast.topic_id(b"t"), b"x"),
        ),
    }[door]
    async with (
        serving(tmp_path, "kernel", monkeypatch, **{"topics.durability": "os"}) as server,
        connected(server, door, cast(Split, split), *login) as client,
    ):
        seen = 0
        while sum(taken) < 20:
            seen += 1
            await client.say(request, seen)
        before = sum(taken)
        for _ in range(15):  # one of sixteen goes to the session in any case
            server.broker.access.look_again()
            seen += 1
            await client.say(request, seen)
        assert sum(taken) == before, "the kernel took a read by rights that have changed"
        for _ in range(32):
            seen += 1
            await client.say(request, seen)
        assert sum(taken) > before


async def answered_behind_a_slow_write(folder: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the PONGs behind a publish that its session took and the disk has not, and behind what the kernel takes meanwhile."""
    slow = asyncio.Event()

    def slowed(real: Callable[..., None]) -> Callable[..., None]:
        def later(*work: Any) -> None:
            if slow.is_set():
                asyncio.get_running_loop().call_later(0.3, real, *work)
            else:
                real(*work)

        return later

    for name in ("_hand_out", "offload"):
        monkeypatch.setattr(LoopScheduler, name, slowed(getattr(LoopScheduler, name)))
    monkeypatch.setattr(LoneWrites, "allow_small", lambda *_: False)
    async with (
        serving(folder, "kernel", monkeypatch) as server,
        connected(server, "blipmq", blipmq.split, BLIP_LOGIN) as client,
    ):
        await client.say(blipmq.publish(1, b"kept", b"x", 1) + blipmq.ping(0), 1)
        while sum(taken) < 20:
            await client.say(blipmq.publish(1, b"memory", b"x", 0) + blipmq.ping(0), len(client.answers) + 1)
        client.answers.clear()
        before = sum(taken)
        slow.set()
        await client.say(blipmq.publish(1, b"kept", b"x", 1) + blipmq.ping(1), None)
        for number in range(2, 10):
            await asyncio.sleep(0.01)
            await client.say(blipmq.publish(1, b"memory", b"x", 0) + blipmq.ping(number), None)
        assert sum(taken) > before, "the kernel took nothing while the session owed an answer"
        await client.say(b"", 9)
        slow.clear()
        return [pong.id for pong in client.answers]


async def test_the_kernel_answers_behind_what_its_session_owes(
    tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a transport that forgets what is owed answers too early."""
    in_order = list(range(1, 10))
    assert await answered_behind_a_slow_write(tmp_path / "sound", taken, monkeypatch) == in_order
    real = SocketTransport.allow
    monkeypatch.setattr(SocketTransport, "allow", lambda transport, reader, owed: real(transport, reader, False))
    taken.clear()
    assert await answered_behind_a_slow_write(tmp_path / "broken", taken, monkeypatch) != in_order


async def test_who_is_revoked_publishes_nothing_more(
    tmp_path: Path, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path, "kernel", monkeypatch, **{"topics.durability": "os"}) as server:
        request = blipmq.publish(1, b"t-1", b"x", 1) + blipmq.ping(1)
        async with connected(server, "blipmq", blipmq.split, BLIP_LOGIN) as client:
            seen = 0
            while sum(taken) < 20:
                seen += 1
                await client.say(request, seen)
            server.broker.set_credentials([])
            with pytest.raises((AssertionError, ConnectionError)):
                for _ in range(2):
                    await client.say(request, seen + 1)
    assert len(reader.read(tmp_path)["t-1"].values) == seen
