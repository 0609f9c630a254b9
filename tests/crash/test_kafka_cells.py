"""Two cells on two nodes over a real Kafka: a node killed, cells moved and drained under load. Nothing acknowledged is lost or doubled.

The control publishes to topics in memory, which are gone with the node that led them, and must be found out.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

import quintet
from bench import peers
from quintet.cli.operate import scrape
from quintet.client.core.errors import QuintetError, TopicNotFound
from quintet.client.manage import Manage
from tests.crash import reader
from tests.crash.brokers import ROOT
from tests.crash.cells import SMALL_JAVA
from tests.crash.kafka_cells import CELLS, CellNode, Nodes

pytestmark = pytest.mark.crash
WAIT_S = 90.0
ACKS = 60  # that come before and after each event
Acked = set[tuple[str, bytes]]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if not peers.has_kafka():
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install kafka)")
    folder = tmp_path_factory.mktemp("cells")
    with peers.kafka(tmp_path_factory.mktemp("kafka"), SMALL_JAVA) as started:
        found = Nodes(folder, f"{started.address[0]}:{started.address[1]}", "wal")
        try:
            yield found
        finally:
            found.end()


def url(node: CellNode, door: str) -> str:
    who = ":dev-key" if door == "blipmq" else "admin:admin"
    return f"{door}://{who}@{node.doors[door]}"


class Load:
    """Writers at both nodes by two protocols, each to topics of all cells in turn. What fails is not sent again."""

    def __init__(self, nodes: Nodes, topics: list[str], qos: int = 1) -> None:
        self.nodes, self.topics, self.qos = nodes, topics, qos
        self.acked: Acked = set()
        doors = ("blipmq", "flymq") if qos else ("blipmq",)
        self._tasks = [asyncio.create_task(self._publish_on(node, door)) for node in nodes.all for door in doors]

    async def _publish_on(self, node: CellNode, door: str) -> None:
        number = connection = 0
        while True:
            connection += 1
            try:
                async with quintet.connect(url(node, door)) as bus:
                    while True:
                        number += 1
                        topic = self.topics[number % len(self.topics)]
                        value = f"{node.name}-{door}-{connection}-{number}".encode()
                        await bus.publish(topic, value, qos=self.qos)
                        self.acked.add((topic, value))
            except QuintetError:
                await asyncio.sleep(0.05)

    async def more(self) -> None:
        """Until more was acknowledged, of every topic."""
        before = {topic: self._count(topic) for topic in self.topics}
        async with asyncio.timeout(WAIT_S):
            while any(self._count(topic) < before[topic] + ACKS for topic in self.topics):
                await asyncio.sleep(0.05)

    def _count(self, topic: str) -> int:
        return sum(where == topic for where, _ in self.acked)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def stored(node: CellNode, topics: list[str]) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    async with quintet.connect(url(node, "flymq"), wait=WAIT_S) as bus:
        for topic in topics:
            with contextlib.suppress(TopicNotFound):  # one in memory, of a node that was killed
                found += [(topic, message.value) async for message in bus.replay(topic)]
    return found


def command(node: CellNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    made = [sys.executable, "-m", "quintet", "cell", *arguments]
    return subprocess.run(made, capture_output=True, text=True, check=False, env=node.environment())


def led_by(nodes: Nodes, *names: str) -> None:
    nodes.until(lambda: nodes.leaders() == list(names), f"{names} should lead")


async def lead(nodes: Nodes, *names: str) -> None:
    await asyncio.to_thread(led_by, nodes, *names)


def check(found: list[tuple[str, bytes]], acked: Acked) -> None:
    assert acked <= set(found), f"lost: {sorted(acked - set(found))[:5]}"
    assert len(found) == len(set(found)), "doubled"
    last: dict[tuple[str, bytes], int] = {}
    for topic, value in found:
        connection, _, number = value.rpartition(b"-")
        assert int(number) > last.get((topic, connection), 0), f"{topic}: {value!r} is out of order"
        last[topic, connection] = int(number)


@pytest.mark.timeout(600)
async def test_nothing_is_lost_when_nodes_die_and_cells_move(nodes: Nodes) -> None:
    await asyncio.to_thread(nodes.until, lambda: len({*nodes.leaders(), ""}) == 1 + CELLS, "cells are not shared out")
    first, second = (nodes.named(name) for name in nodes.leaders())
    topics, forgotten = nodes.topics("kept"), nodes.topics("lost")
    await reach_every_cell(nodes, first)
    control = Load(nodes, forgotten, qos=0)
    await control.more()
    await control.stop()
    load = Load(nodes, topics)
    await load.more()
    second.kill()
    await lead(nodes, first.name, first.name)
    await load.more()
    second.start()
    await lead(nodes, first.name, second.name)  # by itself: the cells are shared out evenly again
    await load.more()
    moved = await asyncio.to_thread(command, first, "move", "0", second.name)
    assert moved.returncode == 0, moved.stderr
    await lead(nodes, second.name, second.name)
    await load.more()
    drained = await asyncio.to_thread(command, first, "drain", second.name)
    assert drained.returncode == 0, drained.stderr
    await lead(nodes, first.name, first.name)
    await load.more()
    await load.stop()
    for node in nodes.all:
        check(await stored(node, topics), load.acked)
    assert not control.acked <= set(await stored(first, forgotten)), "what was in memory is gone with its node"
    say_the_truth(nodes, first, second)
    assert [node.terminate() for node in nodes.all] == [0, 0]
    check_files(nodes, topics)


async def reach_every_cell(nodes: Nodes, home: CellNode) -> None:
    """By Felix, whose door is cell 0's; as a user who was made at one node and is known to all cells; by Flight what is in cell 0."""
    topics = nodes.topics("reached")
    for number, node in enumerate(nodes.all):
        name = f"user{number}"
        async with quintet.connect(url(node, "flymq"), wait=WAIT_S) as bus:
            await Manage(bus).create_user(name, "secret-123", roles=["admin"])
        for other in nodes.all:
            async with quintet.connect(f"flymq://{name}:secret-123@{other.doors['flymq']}") as bus:
                for topic in topics:
                    await bus.publish(topic, name.encode())
    ca = home.data / "cell-0" / "tls" / "felix-certificate.pem"  # for 127.0.0.1, where the first node is
    async with quintet.connect(f"felix://:dev-key@{nodes.all[0].doors['felix']}?ca={ca}", wait=WAIT_S) as bus:
        for topic in topics:
            await bus.publish(topic, b"felix")
            async with bus.subscribe(topic, start="earliest") as messages:
                found = [(await anext(messages)).value for _ in range(5)]
            assert sorted(found) == [b"felix", b"user0", b"user0", b"user1", b"user1"]
    for node in nodes.all:
        listed = await asyncio.to_thread(flights, node.doors["flight"])
        assert topics[0] in listed and topics[1] not in listed


def flights(address: str) -> list[str]:
    from pyarrow import flight  # type: ignore[import-untyped]  # pyarrow ships no types

    login = flight.FlightCallOptions(headers=[(b"authorization", b"Basic YWRtaW46YWRtaW4=")], timeout=WAIT_S)
    with flight.connect(f"grpc://{address}") as client:
        return [info.descriptor.path[0].decode() for info in client.list_flights(options=login)]


def say_the_truth(nodes: Nodes, first: CellNode, second: CellNode) -> None:
    """What commands and metrics say at the end, and what is refused."""
    listed = command(second, "list", "--json")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert f'"leader": "{first.name}"' in listed.stdout.replace('":"', '": "')
    refused = command(first, "move", "1", second.name)
    assert refused.returncode != 0
    assert f"{second.name} is drained" in refused.stderr
    assert "knows no node n9 that is up" in command(first, "move", "1", "n9").stderr
    for node in nodes.all:
        ready, lines = scrape.readiness(node.admin)
        assert ready, lines


def check_files(nodes: Nodes, topics: list[str]) -> None:
    """Both nodes have the same of every cell, but for what a follower had not read when it was stopped."""
    for cell, topic in enumerate(topics):
        one, other = (reader.read(node.data / f"cell-{cell}")[topic].values for node in nodes.all)
        shared = one.keys() & other.keys()
        assert shared and [one[offset] for offset in shared] == [other[offset] for offset in shared]
    folders = [str(node.data / f"cell-{cell}") for node in nodes.all for cell in range(CELLS)]
    for folder in folders:
        verify = [sys.executable, "-m", "quintet", "log", "verify", folder]
        run = subprocess.run(verify, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(ROOT / "src")})
        assert run.returncode == 0, run.stdout + run.stderr
