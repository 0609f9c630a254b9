"""kill -9 of the processes of a broker with several cells, under load: nothing acknowledged is lost, and the others go on.

The control publishes without waiting for the disk, to topics in memory, and must be found out: those are gone with their process.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

import quintet
from quintet.client.core.errors import QuintetError, TopicNotFound
from quintet.model.cells import CellMap
from tests.client.server import Server, running_cells

pytestmark = pytest.mark.crash
CELLS = 2
KILLS = 4
LOAD_S = 0.3
WAIT_S = 60.0
WRITERS = ("blipmq", "flymq")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_cells(CELLS) as found:
        yield found


def names(prefix: str) -> list[str]:
    """A topic of each cell."""
    cells = CellMap(CELLS)
    found = {cells.cell_of(f"{prefix}{number}".encode()): f"{prefix}{number}" for number in range(100)}
    return [found[cell] for cell in range(CELLS)]


def children(server: Server) -> list[int]:
    """The processes of the cells, in the order of their start."""
    with open(f"/proc/{server.pid}/task/{server.pid}/children") as listed:
        return sorted(int(pid) for pid in listed.read().split())


def connect(server: Server, writer: str) -> quintet.Bus:
    return quintet.connect(server.url if writer == "blipmq" else server.fly)


async def publish_on(server: Server, writer: str, topics: list[str], qos: int, acked: set[tuple[str, bytes]]) -> None:
    """To the topics of all cells in turn, until it is cancelled; what fails is not sent again."""
    number = 0
    while True:
        try:
            async with connect(server, writer) as bus:
                while True:
                    number += 1
                    topic, value = topics[number % len(topics)], f"{writer}-{number}".encode()
                    await bus.publish(topic, value, qos=qos)
                    acked.add((topic, value))
        except QuintetError:
            await asyncio.sleep(0.05)


async def campaign(server: Server, topics: list[str], qos: int, writers: tuple[str, ...]) -> set[tuple[str, bytes]]:
    acked: set[tuple[str, bytes]] = set()
    load = [asyncio.create_task(publish_on(server, writer, topics, qos, acked)) for writer in writers]
    for kill in range(KILLS):
        before, killed = len(acked), children(server)
        await asyncio.sleep(LOAD_S)
        os.kill(killed[kill % CELLS], signal.SIGKILL)
        deadline = time.monotonic() + WAIT_S
        while len(acked) < before + 20 or len(children(server)) < CELLS or children(server) == killed:
            assert time.monotonic() < deadline, "the cell did not come back"
            await asyncio.sleep(0.05)
    for task in load:
        task.cancel()
    await asyncio.gather(*load, return_exceptions=True)
    return acked


async def stored(server: Server, topics: list[str]) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    async with quintet.connect(server.fly, wait=WAIT_S) as bus:
        for topic in topics:
            with contextlib.suppress(TopicNotFound):  # one in memory, of a cell that was killed
                found += [(topic, message.value) async for message in bus.replay(topic)]
    return found


async def test_a_killed_cell_loses_nothing_that_was_acknowledged(server: Server) -> None:
    topics = names("kept")
    acked = await campaign(server, topics, 1, WRITERS)
    found = await stored(server, topics)
    assert len(acked) > KILLS and acked <= set(found)
    for topic in topics:
        for writer in WRITERS:
            numbers = [
                int(value.rpartition(b"-")[2])
                for where, value in found
                if where == topic and value.startswith(writer.encode())
            ]
            assert numbers == sorted(numbers)


async def test_messages_in_memory_are_missed_with_their_cell(server: Server) -> None:
    topics = names("lost")
    acked = await campaign(server, topics, 0, ("blipmq",))
    assert not acked <= set(await stored(server, topics))


def test_all_processes_end_with_the_one_that_started_them() -> None:
    with running_cells(CELLS) as other:
        pids = children(other)
        assert len(pids) == CELLS
        assert other.stop() == 0
    with running_cells(CELLS) as other:
        pids += children(other)
        other.kill()
        deadline = time.monotonic() + WAIT_S
        while any(os.path.exists(f"/proc/{pid}") for pid in pids):
            assert time.monotonic() < deadline, "a process is left over"
            time.sleep(0.05)
