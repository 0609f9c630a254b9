"""What needs no disk is answered by the callback of the read that asked, and a turn writes to a connection once, at every door.

A whole broker runs in this process. Its connections get a transport that counts writes, and one call of `buffer_updated` must
bring the whole answer about: no other pass of the loop, no second write. Answers that wait for the disk may come in several
turns, with one write in each. Of QUIC the calls of `send` for a stream are counted.
"""

import asyncio
import gc
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.dialogues import DIALOGUES, Dialogue, blipmq_dialogue

import quintet
from bench import peerbus
from quintet import server as server_module
from quintet.bench import blipmq, fast, flymq
from quintet.client.bus import Bus
from quintet.config import Settings
from quintet.log.embedded.engine import EmbeddedLog
from quintet.net import turns as turns_module
from quintet.net.certificates import CERTIFICATE_NAME
from quintet.net.connection import Connection
from quintet.net.listener import Listener
from quintet.net.quic.writers import Writer
from quintet.net.turns import LONE_READS, Turns
from quintet.protocols import doors
from quintet.server import Server

WAIT_S = 60.0
ROUNDS = 2 * LONE_READS + 3  # more than are answered before a pass is counted again
MANY = 8  # requests in one read, each to another topic where the door lets a client choose
WHOAMI = 0x72  # of FlyMQ: a request that waits until those before it are answered


class Socket(asyncio.Transport):
    """Takes everything at once, and counts the calls."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.writes: list[bytes] = []
        self.turns: list[int] = []  # the turn of each
        self.turn: Callable[[], int] = int

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))
        self.turns.append(self.turn())

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    @property
    def said(self) -> bytes:
        return b"".join(self.writes)


class Peer:
    """One connection of a door, after its opening and a first round, which may have needed the disk."""

    def __init__(self, listener: Listener) -> None:
        self._socket = Socket()
        self._connection = Connection(listener)
        self._connection.connection_made(self._socket)
        self._socket.turn = lambda: listener.turns.begun
        self._round = 0

    async def open(self, dialogue: Dialogue) -> None:
        for sent, whole in (*dialogue.opening, (self.request(dialogue), dialogue.whole)):
            self.read(sent)
            async with asyncio.timeout(WAIT_S):
                while not whole(self._socket.said):
                    await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # the topic's row, the marks

    def request(self, dialogue: Dialogue) -> bytes:
        data = bytearray(dialogue.request)
        for place, number in ((dialogue.now_at, self._round), (dialogue.last_at, self._round - 1)):
            if place is not None and number >= 0:
                data[place : place + 9] = b"%09d" % number
        self._round += 1
        return bytes(data)

    def read(self, data: bytes) -> list[bytes]:
        """What was written in the callback of this read."""
        self._socket.writes.clear()
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))
        return self._socket.writes

    async def read_all(self, data: bytes, answers: int, count: Callable[[bytes], int]) -> list[int]:
        """How many writes each turn made until all answers had come."""
        self._socket.turns.clear()
        self.read(data)
        async with asyncio.timeout(WAIT_S):
            while count(self._socket.said) < answers:
                await asyncio.sleep(0.001)
        assert count(self._socket.said) == answers
        return list(Counter(self._socket.turns).values())

    def close(self) -> None:
        self._connection.connection_lost(None)


@asynccontextmanager
async def broker(folder: Path, durability: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(server_module, "_quiet_the_collector", lambda: None)
    monkeypatch.setattr(turns_module, "TURN_S", math.inf)  # a busy machine ends no turn here
    # A small partition goes on in a file of its own after some messages (ADR 31), and a thread makes that file.
    monkeypatch.setattr(EmbeddedLog, "_is_packable", lambda log, spec: False)
    names = (*(door.key for door in doors.DOORS), "admin", "console", "flight")
    flags: dict[str, Any] = {"data": folder, "dev": True, "topics.durability": durability}
    flags |= {f"listeners.{name}.port": 0 for name in names}
    flags |= {f"listeners.{name}.enabled": False for name in ("flight", "console", "admin")}
    settings = Settings.load(None, {}, flags)
    server = Server(settings, lambda: settings)
    life = asyncio.create_task(server.run(False))
    while "felix" not in server.listeners:
        await asyncio.sleep(0.01)
        assert not life.done(), life.exception()
    try:
        yield server
    finally:
        server._stop.set()
        await life
        gc.unfreeze()


def tcp(server: Server, door: str) -> Listener:
    listener = server.listeners[door]
    assert isinstance(listener, Listener)
    return listener


@pytest.mark.parametrize("durability", ["memory", "os"])
async def test_a_lone_read_is_answered_by_its_callback_with_one_write(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path, durability, monkeypatch) as server:
        for door, make in DIALOGUES.items():
            dialogue, peer = make(1), Peer(tcp(server, door))
            await peer.open(dialogue)
            for number in range(ROUNDS):
                writes = peer.read(peer.request(dialogue))
                assert len(writes) == 1 and dialogue.whole(writes[0]), (door, number, writes)
                await asyncio.sleep(0)
            peer.close()


def ping_publish_ping(dialogue: Dialogue) -> bytes:
    return blipmq.frame(blipmq.PING, 9, b"") + dialogue.request


async def test_answers_known_at_once_and_at_the_end_of_the_turn_share_a_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a read that does not end its turn is answered in two passes, by two writes."""
    async with broker(tmp_path, "os", monkeypatch) as server:
        dialogue, peer = blipmq_dialogue(), Peer(tcp(server, "blipmq"))
        await peer.open(dialogue)
        writes = peer.read(ping_publish_ping(dialogue))
        assert [len(blipmq.split(data)) for data in writes] == [2]
        monkeypatch.setattr(Turns, "gather_if_alone", lambda self: False)
        writes = peer.read(ping_publish_ping(dialogue))
        assert [len(blipmq.split(data)) for data in writes] == [1]
        await asyncio.sleep(0)
        assert [len(blipmq.split(data)) for data in writes] == [1, 1]
        peer.close()


async def test_connections_that_are_read_together_share_the_end_of_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch for all of them; and who is alone again is answered at once again."""
    async with broker(tmp_path, "os", monkeypatch) as server:
        dialogue, peers = blipmq_dialogue(), [Peer(tcp(server, "blipmq")) for _ in range(3)]
        for peer in peers:
            await peer.open(dialogue)
        for _ in range(LONE_READS):
            for peer in peers:
                peer.read(dialogue.request)
            await asyncio.sleep(0)
        before = server.log.stats()["batches"]
        written = [peer.read(dialogue.request) for peer in peers]
        assert written == [[], [], []]
        await asyncio.sleep(0)
        assert [len(writes) for writes in written] == [1, 1, 1]
        assert server.log.stats()["batches"] == before + 1
        for answered in (0, 1):
            assert len(peers[0].read(dialogue.request)) == answered
            await asyncio.sleep(0)
        for peer in peers:
            peer.close()


def many_requests(door: str, peer: Peer, dialogue: Dialogue) -> tuple[bytes, int, Callable[[bytes], int]]:
    """A read with requests to MANY topics, how many answers it gets, and what counts them."""
    names, value = [f"many{number}" for number in range(MANY)], b"v" * 100
    if door == "blipmq":
        blip = blipmq.BlipmqWire()
        return (
            b"".join(blip.encode(name, value, 1, 1) + blip.barrier(1) for name in names),
            MANY,
            lambda data: len(blipmq.split(data)),
        )
    if door == "flymq":
        fly = flymq.FlymqWire()
        asks = flymq.frame(WHOAMI)
        data = (
            b"".join(fly.encode(name, value, 1, 1) for name in names) + asks + fly.encode(names[0], value, 1, 1) + asks
        )
        return data, MANY + 3, lambda data: len(flymq.split(data)[0])
    if door == "fast":
        wire = fast.FastWire(topics=tuple(names), flags=1)
        data = b"".join(wire.create(name) + wire.encode(name, value, 1, 1) for name in names)
        return data, 2 * MANY, lambda data: len(data) // fast.ANSWER.size
    return b"".join(peer.request(dialogue) for _ in names), MANY, lambda data: len(peerbus.split(data)[0])


async def writes_of(server: Server, door: str) -> list[int]:
    """How many writes each turn made that answered a part of one read with many requests, all topics being there."""
    dialogue = DIALOGUES[door](2)
    peer = Peer(tcp(server, door))
    await peer.open(dialogue)
    for _ in range(2):
        made = await peer.read_all(*many_requests(door, peer, dialogue))
    peer.close()
    return made


@pytest.mark.parametrize("durability", ["memory", "fsync"])
async def test_a_turn_writes_once_however_many_requests_it_answers(
    tmp_path: Path, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(tmp_path, durability, monkeypatch) as server:
        for door in DIALOGUES:
            made = await writes_of(server, door)
            assert set(made) == {1}, door
            assert durability == "fsync" or made == [1], door


class MadeTogether:
    """Threads of the disk that name what they made when all they were given is made: how busy the machine is decides nothing."""

    def __init__(self, threads: Any) -> None:
        self._threads, self._given = threads, 0
        self._made: list[tuple[int, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._threads, name)

    def submit(self, *write: Any) -> None:
        self._given += 1
        self._threads.submit(*write)

    def take(self) -> list[tuple[int, int, int]]:
        self._made += self._threads.take()
        if len(self._made) < self._given:
            return []
        made, self._made, self._given = self._made, [], 0
        return made


def tell_of_writes_together(server: Server) -> None:
    """Where the kernel has no threads for them, each write is told of by itself, and a control waits for two in one turn."""
    scheduler: Any = server._scheduler
    if scheduler._writers is not None:
        scheduler._writers = MadeTogether(scheduler._writers)


async def test_answers_that_are_not_gathered_are_many_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above: each answer that the disk lets go is written by itself."""
    async with broker(tmp_path, "fsync", monkeypatch) as server:
        monkeypatch.setattr(Turns, "owe", lambda self, debtor: False)
        tell_of_writes_together(server)
        for door in ("blipmq", "flymq", "fast"):  # a peer's own mailbox is one topic, and one push
            async with asyncio.timeout(WAIT_S):
                while max(await writes_of(server, door)) == 1:  # the disk let each go in a turn of its own
                    pass


class CountingEndpoint:
    """An endpoint of QUIC that counts what is sent, by turn and stream."""

    def __init__(self, endpoint: Any, turn: Callable[[], int]) -> None:
        self.sent: Counter[tuple[int, int, int]] = Counter()
        self._endpoint, self._turn = endpoint, turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)

    def send(self, connection: int, stream: int, data: list[bytes], end: bool) -> int:
        self.sent[self._turn(), connection, stream] += 1
        queued: int = self._endpoint.send(connection, stream, data, end)
        return queued


async def test_a_turn_sends_once_on_each_stream_of_quic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker(tmp_path, "fsync", monkeypatch) as server:
        listener: Any = server.listeners["felix"]
        listener.endpoint = counting = CountingEndpoint(listener.endpoint, lambda: server.turns.begun)
        url = f"felix://:dev-key@{listener.address}?ca={tmp_path / 'tls' / CERTIFICATE_NAME}"
        async with asyncio.timeout(WAIT_S), quintet.connect(url) as bus:
            for _ in range(2):
                await publish_many(bus)
            assert counting.sent and set(counting.sent.values()) == {1}
            # Control: what is not gathered until the turn ends is sent more than once.
            tell_of_writes_together(server)
            push = Writer.push
            monkeypatch.setattr(Writer, "push", lambda writer, data: (push(writer, data), writer.flush()))
            while max(counting.sent.values()) == 1:
                await publish_many(bus)


async def publish_many(bus: Bus) -> None:
    await asyncio.gather(*(bus.publish(f"t/n/many{number % MANY}", b"v") for number in range(4 * MANY)))
