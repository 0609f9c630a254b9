"""Legs between nodes: carried to the leader and back, in wait while nobody leads, ended with the leader; who may open one."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from quintet.net.cells.crossing import Crossings, Leaving, Way

WAIT_S = 20.0
SAID = b"x" * 3_000_000  # more than all buffers between


@pytest.fixture
def accepting(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.setblocking(False)
        made.bind(str(tmp_path / "cell-1"))
        made.listen()
        yield made


class Leader:
    """Answers what it is sent, behind a greeting."""

    def __init__(self) -> None:
        self.greeted: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.way: Way | None = None

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = self.server.sockets[0].getsockname()

    def lead(self) -> None:
        self.way = Way(self.address[0], self.address[1], None, b"hello")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.greeted.append(await reader.readexactly(5))
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def stop(self, crossings: Crossings) -> None:
        """When nothing is open any more."""
        crossings.stop()
        self.server.close()
        for writer in self.writers:
            writer.close()
        while crossings.open or any(not writer.transport.is_closing() for writer in self.writers):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)


async def front(accepting: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_unix_connection(accepting.getsockname())


async def test_a_leg_waits_for_a_leader_and_ends_with_it(accepting: socket.socket) -> None:
    leader = Leader()
    await leader.start()
    said: list[str] = []
    crossings = Crossings(accepting, lambda: leader.way, lambda event, fields: said.append(event))
    crossings.start()
    async with asyncio.timeout(WAIT_S):
        reader, writer = await front(accepting)
        writer.write(SAID)
        await asyncio.sleep(0)
        assert leader.greeted == []
        leader.lead()
        assert await reader.readexactly(len(SAID)) == SAID
        assert leader.greeted == [b"hello"]
        crossings.leader_changed()
        assert len(crossings.open) == 1, "the leader is the same"
        leader.way = None
        crossings.leader_changed()
        assert await reader.read() == b""
        writer.close()
    assert not said
    await leader.stop(crossings)


async def test_what_the_leader_said_last_comes_before_the_end(accepting: socket.socket) -> None:
    leader = Leader()
    await leader.start()
    leader.lead()
    crossings = Crossings(accepting, lambda: leader.way, lambda event, fields: None)
    crossings.start()
    async with asyncio.timeout(WAIT_S):
        reader, writer = await front(accepting)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        leader.writers[0].write(b"last")
        leader.writers[0].close()
        assert await reader.read() == b"last"
        writer.close()
    await leader.stop(crossings)


async def test_a_client_handed_to_a_follower_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "handed-1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.setblocking(False)
        listening.bind(path)
        listening.listen()
        here, there = socket.socketpair()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as way:
            way.connect(path)
            socket.send_fds(way, [b"."], [there.fileno()])
        there.close()
        leaving = Leaving(listening)
        here.setblocking(False)
        async with asyncio.timeout(WAIT_S):
            assert await asyncio.get_running_loop().sock_recv(here, 1) == b""
        leaving.stop()
        here.close()


async def test_what_a_front_said_before_it_left_is_not_carried(accepting: socket.socket) -> None:
    leader = Leader()
    await leader.start()
    said: list[str] = []
    crossings = Crossings(accepting, lambda: leader.way, lambda event, fields: said.append(event))
    crossings.start()
    async with asyncio.timeout(WAIT_S):
        _, writer = await front(accepting)
        writer.write(b"old")
        await writer.drain()
        while not crossings.open:
            await asyncio.sleep(0)
        writer.transport.abort()
        while crossings.open:
            await asyncio.sleep(0.01)
    assert not leader.greeted and not said
    await leader.stop(crossings)
