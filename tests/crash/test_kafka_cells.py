"""Two cells on two nodes over a real Kafka: a node killed, cells moved and drained under load. Nothing acknowledged is lost or doubled.

The control publishes to topics in memory, which are gone with the node that led them, and must be found out.
"""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import pytest
from pyarrow.flight import FlightError, FlightUnavailableError  # type: ignore[import-untyped]  # pyarrow ships no types

import quintet
from quintet.cli.operate import scrape
from quintet.cli.terminal.common import manage
from quintet.client.core.errors import ConnectionLost, QuintetError, TopicNotFound, UserExists
from quintet.client.manage import Manage
from quintet.config import DEV_PEERBUS_TOKEN
from quintet.model.errors import SHUTTING_DOWN
from tests.console.conftest import Browser
from tests.crash import reader
from tests.crash.brokers import ROOT
from tests.crash.kafka_cells import CELLS, CellNode, Nodes
from tests.flight.client import Client, refused, rows

pytestmark = pytest.mark.crash
WAIT_S = 90.0
ACKS = 60  # that come before and after each event
Acked = set[tuple[str, bytes]]


@pytest.fixture(scope="module")
def nodes(servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    found = Nodes(tmp_path_factory.mktemp("cells"), servers, "wal")
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
        self.refusals: set[str] = set()
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
            except QuintetError as error:
                self.refusals.add(str(error))
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
    await asyncio.to_thread(say_the_truth, nodes, first, second)
    await asyncio.to_thread(let_go, first, second)
    await lead(nodes, first.name, second.name)  # where they fall by themselves
    await load.more()
    await load.stop()
    assert not [said for said in load.refusals if SHUTTING_DOWN in said], "cells moved, and no node was told to stop"
    for node in nodes.all:
        check(await stored(node, topics), load.acked)
    assert not control.acked <= set(await stored(first, forgotten)), "what was in memory is gone with its node"
    assert [node.terminate() for node in nodes.all] == [0, 0]
    check_files(nodes, topics)


async def reach_every_cell(nodes: Nodes, home: CellNode) -> None:
    """By Felix, peerbus, Flight and console, which are cell 0's; as a user who was made at one node and is known to all cells."""
    topics = nodes.topics("reached")
    for number, node in enumerate(nodes.all):
        name = f"user{number}"
        await make_user(node, name)
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
    await asyncio.to_thread(fly, nodes, topics)
    for node in nodes.all:
        await asyncio.to_thread(browse, node, topics)
    await write_to_a_peer(nodes)


async def make_user(node: CellNode, name: str) -> None:
    """Until it is there: on a busy machine cell 0 may change its leader meanwhile, which ends the connection."""
    async with quintet.connect(url(node, "flymq"), wait=WAIT_S) as bus, asyncio.timeout(WAIT_S):
        made = False
        while not made:
            with contextlib.suppress(ConnectionLost, UserExists):
                await Manage(bus).create_user(name, "secret-123", roles=["admin"])
            with contextlib.suppress(ConnectionLost):
                made = name in {user.name for user in await Manage(bus).users()}


def fly(nodes: Nodes, topics: list[str]) -> None:
    """At each node: what was put at it, or at the other one, in either cell. One of them follows cell 0, and reads its own files."""
    roles = []
    for number, node in enumerate(nodes.all):
        with flying(node, "admin", "admin") as client:
            roles.append(client.act("node")["role"])
            for topic in topics:
                staged = client.put({"writer": topic, "epoch": number, "topic": topic}, rows(node.name.encode()))
                said = {"writer": topic, "epoch": number, "stages": [staged["stage"]], "rows": 1, "log": staged["log"]}
                assert (
                    client.act("stage_commit", **said)["rows"] == 1
                )  # once, however often it is asked: see the ends below
                assert client.act("fence", writer=topic)["epoch"] == number
    assert sorted(roles) == ["follower", "leader"]
    for node in nodes.all:
        with flying(node, "admin", "admin") as client:
            seen = client.act("topics", topics=[*topics, "nowhere"])
            least = [[each["name"], each["identity"], [7]] for each in seen["topics"]]
            listed = client.act("topics", topics=topics, at_least=least)["topics"]
            assert [each["partitions"][0]["end"] for each in listed] == [7, 7] and seen["missing"] == ["nowhere"]
            for topic in topics:
                assert client.values(topic, last=7)[5:] == [other.name.encode() for other in nodes.all]
                assert len(client.act("locate", topic=topic, ranges=[[0, 0, 7]])["files"]) == 1
            client.act("group_commit", group="flown", offsets={topic: {"0": 3} for topic in topics})
            assert {each["topic"] for each in client.act("groups", group="flown")["positions"]} == set(topics)
    keep_out(nodes, topics)


def keep_out(nodes: Nodes, topics: list[str]) -> None:
    """Who may read nothing reads nothing, of whichever cell, at whichever node."""
    manage(url(nodes.all[0], "flymq"), lambda m: m.create_user("guest", "secret-123", ["guest"]))
    for node in nodes.all:
        with flying(node, "guest", "secret-123") as client:
            assert client.act("topics")["topics"] == [] and client.act("topics", topics=topics)["missing"] == topics
            for topic in topics:
                for call in (client.values, lambda topic: client.put(topic, rows(b"x"))):
                    with refused("E1201"):
                        call(topic)


def until_answered(call: Callable[[], Any]) -> Any:
    """As the refusal says: try again in a moment. On a busy machine a cell may change its leader, or a node not know who leads."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return call()
        except FlightUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


class PatientClient(Client):
    """Repeats what a cell was not there for. Rows are staged: those that were sent twice are committed once."""

    def act_raw(self, name: str, body: bytes) -> Any:
        return until_answered(lambda: Client.act_raw(self, name, body))

    def read(self, topic: str, partition: int = 0, **fields: Any) -> Any:
        return until_answered(lambda: Client.read(self, topic, partition, **fields))

    def put(self, where: str | dict[str, Any], table: Any) -> Any:
        return until_answered(lambda: Client.put(self, where, table))


def flying(node: CellNode, user: str, password: str) -> PatientClient:
    """When the node takes this user: a follower learns of it a moment later."""
    host, _, port = node.doors["flight"].rpartition(":")
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return PatientClient(int(port), user, password, host=host)
        except FlightError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def browse(node: CellNode, topics: list[str]) -> None:
    """The console of any node shows and reads topics of every cell."""
    person = Browser(node.doors["console"])
    try:
        person.log_in("admin", "admin")
        listed = looked_up(person, "/api/topics", filter="reached")
        assert {row["name"] for row in listed} == set(topics)
        for topic in topics:
            assert len(looked_up(person, "/api/messages", topic=topic, partition=0, offset=0)) == 7
    finally:
        person.client.close()


def looked_up(person: Browser, path: str, **fields: object) -> list[Any]:
    """Rows that the console shows: a page that was told 503 asks again."""
    deadline = time.monotonic() + WAIT_S
    while person.get(path, **fields).status_code == HTTPStatus.SERVICE_UNAVAILABLE and time.monotonic() < deadline:
        time.sleep(0.1)
    rows: list[Any] = person.ask(path, **fields)["rows"]
    return rows


async def write_to_a_peer(nodes: Nodes) -> None:
    """What waits in a mailbox is read by other doors, at each node."""
    ann, bob = (
        f"peerbus://:{DEV_PEERBUS_TOKEN}@{node.doors['peerbus']}?name={name}&verify=off"
        for node, name in zip(nodes.all, ("ann", "bob"), strict=True)
    )
    async with quintet.peer(ann, timeout=WAIT_S):
        pass
    async with quintet.peer(bob, timeout=WAIT_S) as peer:
        await peer.send("ann", "while you were away")
    for node in nodes.all:
        async with quintet.connect(url(node, "flymq")) as bus:
            (waiting,) = [message.value async for message in bus.replay("peerbus/ann")]
            assert b"while you were away" in waiting


def say_the_truth(nodes: Nodes, first: CellNode, second: CellNode) -> None:
    """What commands and metrics say at the end, and what is refused."""
    listed = command(second, "list", "--json")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert f'"leader": "{first.name}"' in listed.stdout.replace('":"', '": "')
    refused = command(first, "move", "1", second.name)
    assert refused.returncode != 0
    assert f"{second.name} is drained" in refused.stderr
    assert "knows no node n9 that is up" in command(first, "move", "1", "n9").stderr
    assert "n9 is not drained" in command(first, "fill", "n9").stderr
    for node in nodes.all:
        ready, lines = scrape.readiness(node.admin)
        assert ready, lines


def let_go(first: CellNode, second: CellNode) -> None:
    """What an operator said of cell 0 and of a node counts no more."""
    freed = command(second, "move", "0", "--free")
    assert freed.returncode == 0 and "is to be led by any node" in freed.stdout, freed.stderr
    filled = command(first, "fill", second.name)
    assert filled.returncode == 0 and filled.stdout.count(f"may be led by {second.name}") == CELLS, filled.stderr


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
