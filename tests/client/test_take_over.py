"""A take-over as clients see it: one broker is killed, another begins on the same data behind another address of the URL.

Two brokers take turns on one folder. Nothing acknowledged may be missing afterwards, and nothing may be doubled where that is
promised. The control uses a list without the second broker, and must notice that there is nobody.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.client.agents.peer import peer
from quintet.client.bus import Bus
from quintet.client.core.errors import Backpressure, ConnectionLost, TransactionNotFound
from quintet.client.core.subscription import Subscription
from quintet.client.core.url import Host, cut, parse
from quintet.client.links import peerbus
from quintet.client.links.fast import Queues
from tests.client.fake import until
from tests.client.server import Server
from tests.client.test_idempotent import stored

WAIT_S = 60
SENDS = 4_000
SECRET = "0123456789abcdef0123456789abcdef"


class Pair:
    """Two brokers of which one runs. `switch` kills it and starts the other one."""

    def __init__(self, folder: Path) -> None:
        self.nodes = [Server(folder, {}) for _ in range(2)]
        self.nodes[1].start()  # its ports are known from now on
        self.nodes[1].stop()
        self.nodes[0].start()
        self.at = self.switches = 0

    @property
    def leader(self) -> Server:
        return self.nodes[self.at]

    def url(self, one: Callable[[Server], str]) -> str:
        """The URL of a door with both hosts."""
        first, second = (cut(one(node)) for node in self.nodes)
        return f"{first.scheme}{first.user}{first.hosts},{second.hosts}{first.rest}"

    def switch(self) -> None:
        self.leader.kill()
        self.at = 1 - self.at
        self.switches += 1
        self.leader.start()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="quintet-take-over-") as folder:
        made = Pair(Path(folder))
        try:
            yield made
        finally:
            for node in made.nodes:
                node.kill()


async def switch(pair: Pair) -> None:
    await asyncio.to_thread(pair.switch)


async def take(sub: Subscription, wanted: set[int]) -> None:
    """Receive and acknowledge until all of these were there. What is seen twice is not an error here: it was not acknowledged."""
    async with asyncio.timeout(WAIT_S):
        while wanted:
            msg = await sub.get(timeout=WAIT_S)
            wanted.discard(msg.json())
            await msg.ack(timeout=WAIT_S)


async def make_queue(bus: Bus) -> None:
    await Queues(bus).create("orders", durable=True)


async def nothing(_bus: Bus) -> None: ...


DOORS: list[tuple[str, Callable[[Server], str], dict[str, Any], Callable[[Bus], Awaitable[None]]]] = [
    ("blipmq", lambda node: node.url, {}, nothing),
    ("flymq", lambda node: node.fly, {"group": "g", "start": "earliest"}, nothing),
    ("flymq-sdk", lambda node: node.fly_sdk, {"group": "g", "start": "earliest"}, nothing),
    ("fast", lambda node: node.fast, {"qos": 0}, make_queue),
    ("felix", lambda node: node.felix, {"durable": "d", "start": "earliest"}, nothing),
]


@pytest.mark.parametrize(("door", "url", "options", "prepare"), DOORS, ids=[row[0] for row in DOORS])
async def test_publishing_and_receiving_go_on_with_the_other_host(
    pair: Pair,
    door: str,
    url: Callable[[Server], str],
    options: dict[str, Any],
    prepare: Callable[[Bus], Awaitable[None]],
) -> None:
    async with quintet.connect(pair.url(url), timeout=WAIT_S) as bus:
        await prepare(bus)
        async with bus.subscribe("orders", **options) as sub:
            for turn in range(3):
                numbers = range(turn * 10, turn * 10 + 10)
                for number in numbers:
                    await bus.publish("orders", number, retry=True)
                await take(sub, set(numbers))
                if turn < 2:
                    await switch(pair)
            async with asyncio.timeout(WAIT_S):
                while sub.reconnects < 2:  # counted when the answer is here, which may be behind the first messages
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("lines", [False, True], ids=["websocket", "lines"])
async def test_peers_go_on_with_the_other_host(pair: Pair, lines: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peerbus.SECRET_VARIABLE, SECRET)

    def url(name: str) -> str:
        return pair.url(lambda node: node.peer(name, lines=lines))

    async with peer(url("ann"), timeout=WAIT_S) as ann, peer(url("bob"), timeout=WAIT_S) as bob:
        got: list[int] = []
        for turn in range(2):
            for number in range(turn * 5, turn * 5 + 5):
                await ann.send("bob", number, timeout=WAIT_S)
            while len(got) < turn * 5 + 5:
                message = await bob.receive(timeout=WAIT_S)
                got.append(message.body)
                await message.ack(timeout=WAIT_S)
            if turn == 0:
                await switch(pair)
        assert got == list(range(10))  # in order, each once


async def test_an_idempotent_producer_loses_and_doubles_nothing(pair: Pair) -> None:
    async with quintet.connect(pair.url(lambda node: node.fly), timeout=WAIT_S) as bus:
        await bus.request("CREATE_TOPIC", topic="orders", partitions=2)
        async with bus.producer("orders", idempotent=True, linger=0.001, timeout=120) as producer:
            for number in range(SENDS):
                while True:
                    try:
                        producer.send(number, key=f"k{number % 7}")
                        break
                    except Backpressure:
                        await producer.ready()
                if number % 100 == 0:
                    await asyncio.sleep(0.002)
                if number in (SENDS // 3, SENDS * 2 // 3):
                    await switch(pair)
                    async with asyncio.timeout(WAIT_S):
                        while bus.reconnects < pair.switches:
                            await asyncio.sleep(0.01)
            await producer.flush()
        assert producer.confirmed == SENDS
        found = await stored(bus, "orders", 2)
        times = Counter(int(value) for values in found for value in values)
        assert sorted(times) == list(range(SENDS)), "something was lost"
        assert max(times.values()) == 1, "something was stored twice"


async def test_a_transaction_says_its_fate(pair: Pair) -> None:
    async with quintet.connect(pair.url(lambda node: node.fly), timeout=WAIT_S) as bus:
        async with bus.transaction() as kept:
            await kept.publish("orders", "committed")
        open_one = bus.transaction()
        await open_one.__aenter__()
        await open_one.publish("orders", "open")
        late = bus.transaction()
        await late.__aenter__()
        await late.publish("orders", "asked while it was away")
        pair.leader.kill()
        asked = asyncio.create_task(late.commit())
        await asyncio.sleep(0)
        await switch(pair)
        with pytest.raises(TransactionNotFound):
            await open_one.commit()
        with pytest.raises(TransactionNotFound):  # it never reached the broker, and does not count
            await asked
        found = await stored(bus, "orders", 1)
        assert found == [[b"committed"]]


async def test_a_commit_whose_answer_is_lost_is_told_by_the_other_host(pair: Pair) -> None:
    """The commit was stored, and then the broker died: the next one says the same."""
    async with quintet.connect(pair.url(lambda node: node.fly), timeout=WAIT_S) as bus:
        for number in range(3):
            txn = bus.transaction()
            await txn.__aenter__()
            await txn.publish("orders", number)
            await bus.request("TXN_COMMIT", txn_id=txn.id)  # the answer that the transaction itself did not see
            await switch(pair)
            await txn.commit()
        assert await stored(bus, "orders", 1) == [[b"0", b"1", b"2"]]


def test_the_blocking_client_goes_on_with_the_other_host(pair: Pair) -> None:
    with quintet.sync.connect(pair.url(lambda node: node.url), timeout=WAIT_S) as bus, bus.subscribe("orders") as sub:
        for turn in range(2):
            bus.publish("orders", turn, retry=True)
            msg = sub.get(timeout=WAIT_S)
            while msg.json() != turn:
                msg = sub.get(timeout=WAIT_S)
            msg.ack()
            if turn == 0:
                pair.switch()


def test_commands_take_a_list(pair: Pair, tmp_path: Path) -> None:
    url = pair.url(lambda node: node.fly)
    environment = {"HOME": str(tmp_path), "QUINTET_URL": url, "PATH": ""}

    def quintet_command(*words: str) -> str:
        found = subprocess.run(
            [sys.executable, "-m", "quintet", *words],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert found.returncode == 0, found.stderr
        return found.stdout

    quintet_command("pub", "orders", "one")
    pair.switch()
    quintet_command("pub", "orders", "two", "--url", url)
    listed = json.loads(quintet_command("topic", "list", "--json"))
    assert "orders" in json.dumps(listed)
    assert "two" in quintet_command("tail", "orders")
    assert "FETCH" in quintet_command("tail", "orders", "--hex")


async def test_all_connections_of_a_bus_meet_at_one_host(pair: Pair) -> None:
    """Publishing and subscriptions do not wander apart: the first that finds a host shows the others."""
    url = pair.url(lambda node: node.url)
    async with quintet.connect(url, timeout=WAIT_S) as bus, bus.subscribe("a") as one, bus.subscribe("b") as two:
        await switch(pair)
        await until(lambda: bus.connected and one.connected and two.connected)
        assert bus._setup.hosts is not None
        assert bus._setup.hosts.line()[0] == Host("127.0.0.1", pair.leader.port)


async def test_a_list_without_the_other_host_finds_nobody(pair: Pair) -> None:
    """The control: what the tests above show is done by the list."""
    async with quintet.connect(pair.nodes[0].url, timeout=WAIT_S) as bus:
        await switch(pair)
        with pytest.raises((ConnectionLost, quintet.errors.Timeout)):
            await bus.publish("orders", 1, retry=True, timeout=1)
    assert len(parse(pair.url(lambda node: node.url)).hosts) == 2
