"""Forwarding by itself, with a leader made of plain sockets: bytes, ends, pace, bounds, and the change of roles."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest

from quintet.model.errors import NotLeader
from quintet.net.forwarding import relay, splice
from quintet.net.forwarding.doors import ForwardedDoor, Forwarding, forwarded_doors
from quintet.protocols.doors import DOORS

WAIT_S = 30.0
RESET = struct.pack("ii", 1, 0)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HOST = "127.0.0.1"


class Node:
    """Forwarding of one door in this process, and what it reported."""

    def __init__(self, forwarding: Forwarding, events: list[str], leader: list[str | None]) -> None:
        self.forwarding = forwarding
        self.events = events
        self.leader = leader

    @property
    def port(self) -> int:
        return int(self.forwarding.addresses()["door"].rpartition(":")[2])

    @property
    def figures(self) -> dict[str, int]:
        return dict(self.forwarding.figures()["door"])

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self.port)

    async def until(self, check: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not check():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def follower(port: int, **options: object) -> AsyncIterator[Node]:
    events: list[str] = []
    leader: list[str | None] = [HOST]
    door = ForwardedDoor("door", HOST, 0, leader_port=port, **options)  # type: ignore[arg-type]
    forwarding = Forwarding([door], lambda: leader[0], lambda event, _fields: events.append(event))
    await forwarding.start()
    try:
        yield Node(forwarding, events, leader)
    finally:
        await forwarding.stop()


@asynccontextmanager
async def leading(serve: Serve, host: str = HOST) -> AsyncIterator[int]:
    """A leader that does this with each connection."""
    tasks: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await serve(reader, writer)
        writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(guarded(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    await reader.read()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came before the connection ended, in whichever way."""
    found = b""
    async with asyncio.timeout(WAIT_S):
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                found += data
    return found


# -- bytes and ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_every_chunking_arrives_unchanged(seed: int) -> None:
    random = Random(seed)
    data = random.randbytes(random.choice([1, 1_000, 100_000, 3_000_000]))
    async with leading(echo) as port, follower(port) as node:
        reader, writer = await node.connect()
        back = asyncio.create_task(reader.read(-1))
        at = 0
        while at < len(data):
            step = random.choice([1, 7, 1_000, 65_536, 500_000])
            writer.write(data[at : at + step])
            await writer.drain()
            at += step
        writer.write_eof()
        async with asyncio.timeout(WAIT_S):
            assert await back == data
        writer.close()
        await node.until(lambda: node.figures["connections"] == 0)
        assert node.figures["bytes"] == 2 * len(data)


async def test_a_half_closed_connection_goes_on_the_other_way() -> None:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = len(await reader.read(-1))  # until the client ends its side
        for _ in range(3):
            writer.write(b"%d;" % size)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write_eof()
        await reader.read()

    async with leading(count) as port, follower(port) as node:
        reader, writer = await node.connect()
        writer.write(b"x" * 1_000)
        writer.write_eof()
        assert await ended(reader) == b"1000;1000;1000;"
        writer.close()
        await node.until(lambda: node.figures["connections"] == 0)


async def test_the_leader_may_end_its_side_first() -> None:
    got: list[bytes] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        got.append(await reader.read(-1))

    async with leading(greet) as port, follower(port) as node:
        reader, writer = await node.connect()
        assert await ended(reader) == b"bye"
        writer.write(b"still here")
        writer.write_eof()
        await node.until(lambda: got)
        assert got == [b"still here"]
        writer.close()


async def test_a_reset_of_either_side_resets_the_other() -> None:
    ends: list[str] = []

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (data := await reader.read(100)) and data != b"reset me":
                pass
            ends.append("closed")
        except ConnectionResetError:
            ends.append("reset")
        if data == b"reset me":
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    async with leading(watch) as port, follower(port) as node:
        _, writer = await node.connect()
        writer.write(b"hello")
        await node.until(lambda: node.figures["bytes"] == 5)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()
        await node.until(lambda: ends)
        assert ends == ["reset"]
        reader, writer = await node.connect()
        writer.write(b"reset me")
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(WAIT_S):
                while await reader.read(100):
                    pass
        writer.close()
        await node.until(lambda: node.figures["connections"] == 0)


# -- pace and bounds ---------------------------------------------------------------------------------------------------


async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def settled(node: Node) -> int:
    """Bytes that were forwarded, when that number does not grow any more."""
    before = -1
    async with asyncio.timeout(WAIT_S):
        while before != node.figures["bytes"]:
            before = node.figures["bytes"]
            await asyncio.sleep(0.3)
    return before


def small_buffers(of: socket.socket) -> None:
    of.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)


async def slow_client(node: Node) -> socket.socket:
    made = socket.socket()
    small_buffers(made)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, (HOST, node.port))
    return made


KERNEL_BYTES_MAX = 6 * 1024 * 1024  # what the system's buffers of one loopback connection take in


async def test_a_client_that_reads_slowly_slows_only_its_own_leader() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (flood if await reader.read(1) == b"f" else echo)(reader, writer)

    async with leading(serve) as port, follower(port) as node:
        slow = await slow_client(node)
        slow.send(b"f")
        assert await settled(node) < splice.BUFFER_BYTES_MAX * 2 + KERNEL_BYTES_MAX
        reader, writer = await node.connect()  # others go on
        writer.write(b"eEcho")
        async with asyncio.timeout(WAIT_S):
            assert await reader.readexactly(4) == b"Echo"
        writer.close()
        slow.close()


async def test_a_splice_without_back_pressure_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the one above: without the pause the leader is read from without end."""
    monkeypatch.setattr(splice.Side, "pause_writing", lambda _side: None)

    async with leading(flood) as port, follower(port) as node:
        slow = await slow_client(node)
        await node.until(lambda: node.figures["bytes"] > 4 * (splice.BUFFER_BYTES_MAX * 2 + KERNEL_BYTES_MAX))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        slow.close()


async def test_a_leader_that_reads_slowly_slows_the_client() -> None:
    release = asyncio.Event()
    got = 0

    async def late(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await release.wait()
        while data := await reader.read(65_536):
            got += len(data)

    async with leading(late) as port, follower(port) as node:
        _, writer = await node.connect()
        sent = 32 * 1024 * 1024
        writer.write(b"x" * sent)
        assert await settled(node) < splice.BUFFER_BYTES_MAX * 2 + KERNEL_BYTES_MAX
        release.set()
        writer.write_eof()
        await node.until(lambda: got == sent)  # nothing of it was lost
        writer.close()


async def test_a_side_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splice, "STALL_S", 0.3)
    async with leading(flood) as port, follower(port) as node:
        slow = await slow_client(node)
        await node.until(lambda: node.figures["cut"] == 1 and node.figures["connections"] == 0)
        assert "forwarding_cut" in node.events
        slow.close()


async def test_one_connection_too_many_is_closed() -> None:
    async with leading(echo) as port, follower(port, connections_max=3) as node:
        held = [await node.connect() for _ in range(3)]
        await node.until(lambda: node.figures["connections"] == 3)
        reader, writer = await node.connect()
        assert await ended(reader) == b""
        writer.close()
        assert (node.figures["refused"], node.events.count("forwarding_full")) == (1, 1)
        held[0][1].close()
        await node.until(lambda: node.figures["connections"] == 2)
        reader, writer = await node.connect()
        writer.write(b"room again")
        async with asyncio.timeout(WAIT_S):
            assert await reader.readexactly(10) == b"room again"
        for _, other in (*held, (reader, writer)):
            other.close()


async def test_one_address_has_a_bound_of_its_own() -> None:
    async with leading(echo) as port, follower(port, per_address_max=2) as node:
        held = [await node.connect() for _ in range(2)]
        await node.until(lambda: node.figures["connections"] == 2)
        reader, writer = await node.connect()
        assert await ended(reader) == b""
        writer.close()
        other = await asyncio.open_connection(HOST, node.port, local_addr=("127.0.0.9", 0))
        other[1].write(b"from elsewhere")
        async with asyncio.timeout(WAIT_S):
            assert await other[0].readexactly(14) == b"from elsewhere"
        for _, each in (*held, other):
            each.close()


# -- the leader --------------------------------------------------------------------------------------------------------


async def test_without_a_leader_a_connection_is_closed() -> None:
    async with leading(echo) as port, follower(port) as node:
        node.leader[0] = None
        reader, writer = await node.connect()
        assert await ended(reader) == b""
        writer.close()
        node.leader[0] = HOST
        reader, writer = await node.connect()
        writer.write(b"x")
        async with asyncio.timeout(WAIT_S):
            assert await reader.readexactly(1) == b"x"
        writer.close()


async def test_a_leader_that_cannot_be_reached_is_named() -> None:
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))
        port = nobody.getsockname()[1]
        async with follower(port, last_words=lambda error: str(error).encode()) as node:
            reader, writer = await node.connect()
            writer.write(b"a question of some length" * 1_000)
            said = (await ended(reader)).decode()
            writer.close()
            assert f"not leader: leader_addr={HOST}:{port}" in said
            assert "cannot reach it" in said
            assert node.events[-1] == "leader_unreachable"
            node.leader[0] = None
            reader, writer = await node.connect()
            writer.write(b"?")
            assert (await ended(reader)).startswith(b"not leader: no leader elected")
            writer.close()


async def test_a_client_that_never_asks_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splice, "WORDS_S", 0.1)
    async with follower(1, last_words=lambda _error: b"words") as node:
        reader, writer = await node.connect()
        assert await ended(reader) == b""
        writer.close()
        await node.until(lambda: node.figures["connections"] == 0)


async def test_another_leader_ends_what_leads_to_the_one_before() -> None:
    async def name(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(writer.get_extra_info("sockname")[0].encode())
        await reader.read()

    async with leading(name, "0.0.0.0") as port, follower(port) as node:
        reader, writer = await node.connect()
        async with asyncio.timeout(WAIT_S):
            assert await reader.readexactly(9) == b"127.0.0.1"
        node.forwarding.leader_changed()  # it is the same one
        assert node.figures["connections"] == 1
        node.leader[0] = "127.0.0.2"
        node.forwarding.leader_changed()
        assert await ended(reader) == b""
        writer.close()
        reader, writer = await node.connect()
        async with asyncio.timeout(WAIT_S):
            assert await reader.readexactly(9) == b"127.0.0.2"
        writer.close()


@pytest.mark.parametrize(("bound", "named"), [(HOST, "localhost"), ("0.0.0.0", HOST), ("0.0.0.0", "127.0.0.5")])
async def test_a_node_that_is_named_as_the_leader_does_not_forward_to_itself(bound: str, named: str) -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    doors = [ForwardedDoor("door", bound, port, last_words=lambda error: str(error).encode()),
             ForwardedDoor("quic", bound, port, "udp")]  # fmt: skip
    forwarding = Forwarding(doors, lambda: named, lambda _event, _fields: None)
    await forwarding.start()
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"?")
        assert b"does not lead yet" in await ended(reader)
        writer.close()
        client = Udp(port)
        await client.refused()
        client.socket.close()
        assert forwarding.figures()["door"]["accepted"] == 1
        assert forwarding.figures()["quic"]["accepted"] == 0
    finally:
        await forwarding.stop()


async def test_another_address_of_this_machine_is_another_node() -> None:
    """Nodes on 127.0.0.1, 127.0.0.2, ... with the same ports, as on a developer's machine."""
    async with leading(echo, "127.0.0.2") as port:
        forwarding = Forwarding([ForwardedDoor("door", HOST, port)], lambda: "127.0.0.2", lambda _event, _fields: None)
        await forwarding.start()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"across")
        async with asyncio.timeout(WAIT_S):
            assert await reader.readexactly(6) == b"across"
        writer.close()
        await forwarding.stop()


async def test_stopping_ends_connections_and_frees_the_address() -> None:
    async with leading(echo) as port, follower(port) as node:
        reader, writer = await node.connect()
        here = node.port
        await node.forwarding.stop()
        assert await ended(reader) == b""
        writer.close()
        server = await asyncio.start_server(lambda _r, w: w.close(), HOST, here)  # the node leads: its own door
        server.close()
        await server.wait_closed()
        await node.forwarding.start()
        assert node.figures["connections"] == 0


async def test_an_address_that_is_taken_is_named_and_nothing_stays_open() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        doors = [ForwardedDoor("first", HOST, 0, leader_port=1), ForwardedDoor("blipmq", HOST, port)]
        forwarding = Forwarding(doors, lambda: None, lambda _event, _fields: None)
        with pytest.raises(OSError, match=f"cannot listen on {HOST}:{port} for blipmq"):
            await forwarding.start()
        assert forwarding.addresses() == {}


def test_the_doors_of_a_configuration() -> None:
    found = {door.name: door for door in forwarded_doors(DOORS, lambda door: door.options())}
    enabled = {door.name for door in DOORS if door.options().enabled}
    assert set(found) == enabled
    assert found["felix"].transport == "udp"
    assert found["blipmq"].last_words is None
    words = found["flymq"].last_words
    assert words is not None
    assert b"not leader: leader_addr=a:1" in words(NotLeader(leader="a:1"))


# -- datagrams ---------------------------------------------------------------------------------------------------------


class Echo(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.peers: set[tuple[str, int]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        self.peers.add(peer)
        self._transport.sendto(data, peer)  # type: ignore[attr-defined]


class Udp:
    """A client of a relay."""

    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.connect((HOST, port))

    async def ask(self, data: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WAIT_S):
            while True:  # a datagram may be lost
                with suppress(ConnectionRefusedError):
                    self.socket.send(data)
                with suppress(TimeoutError, ConnectionRefusedError):
                    return await asyncio.wait_for(loop.sock_recv(self.socket, 65_536), 1)

    async def refused(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    self.socket.send(b"?")
                    await asyncio.sleep(0.02)
                    self.socket.recv(1)
                except ConnectionRefusedError:
                    return
                except BlockingIOError:
                    await asyncio.sleep(0.02)


@asynccontextmanager
async def echoing() -> AsyncIterator[tuple[int, Echo]]:
    transport, echo = await asyncio.get_running_loop().create_datagram_endpoint(Echo, local_addr=(HOST, 0))
    try:
        yield transport.get_extra_info("sockname")[1], echo
    finally:
        transport.close()


async def test_each_client_of_a_relay_gets_its_own_answers() -> None:
    async with echoing() as (port, echo), follower(port, transport="udp") as node:
        clients = [Udp(node.port) for _ in range(20)]
        for turn in range(3):
            asked = [b"%d of %d" % (turn, number) for number in range(20)]
            answers = await asyncio.gather(*(client.ask(data) for client, data in zip(clients, asked, strict=True)))
            assert answers == asked
        assert len(echo.peers) == 20  # each has one way, and keeps it
        assert node.figures["connections"] == 20
        for client in clients:
            client.socket.close()


async def test_the_table_of_a_relay_is_bounded_by_size_and_silence() -> None:
    async with echoing() as (port, _), follower(port, transport="udp", connections_max=2, idle_seconds=1.0) as node:
        one, two, three = (Udp(node.port) for _ in range(3))
        assert await one.ask(b"1") == b"1"
        assert await two.ask(b"2") == b"2"
        three.socket.send(b"3")
        await node.until(lambda: node.figures["refused"] == 1)
        assert node.figures["connections"] == 2
        await node.until(lambda: node.figures["connections"] == 0)
        assert await three.ask(b"3") == b"3"
        for client in (one, two, three):
            client.socket.close()


async def test_without_a_leader_the_host_refuses_datagrams() -> None:
    async with echoing() as (port, _), follower(port, transport="udp") as node:
        client = Udp(node.port)
        assert await client.ask(b"1") == b"1"
        node.leader[0] = None
        await client.refused()
        node.leader[0] = HOST
        node.forwarding.leader_changed()
        assert await client.ask(b"2") == b"2"
        client.socket.close()


async def test_a_leader_that_refuses_datagrams_makes_the_host_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "REFUSED_S", 0.5)
    async with follower(1, transport="udp") as node:  # nobody listens there
        client = Udp(node.port)
        await client.refused()
        client.socket.close()
