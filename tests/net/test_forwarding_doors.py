"""All five protocols through a process that forwards to a plain broker: messages both ways, many connections, a leader that dies."""

import asyncio
import json
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import quintet
from quintet.client.agents.peer import peer
from quintet.client.core.errors import ConnectionLost, NotLeader
from quintet.client.core.url import cut
from quintet.client.links import peerbus
from quintet.client.links.fast import Queues
from quintet.protocols.flymq.errors import to_frame
from tests.client.server import Server, running
from tests.wire import blipmq as wire

ROOT = Path(__file__).parents[2]
WAIT_S = 60
CONNECTIONS = 1_000
SECRET = "0123456789abcdef0123456789abcdef"
NAMES = ("blipmq", "flymq", "flymq-sdk", "fast", "felix", "peerbus", "peerbus-tcp")


class Follower:
    """The process; `lead` says who leads from now on."""

    def __init__(self, leader: str, ports: dict[str, tuple[int, int]]) -> None:
        asked = json.dumps({"leader": leader, "doors": ports})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.net.forwarder", asked],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT,
        )  # fmt: skip
        self.ports = {name: int(address.rpartition(":")[2]) for name, address in self._line().items()}

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], WAIT_S)[0], "the process says nothing"
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def lead(self, host: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{host}\n".encode())
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(WAIT_S) == 0
        self.process.stdout.close()

    def url(self, own: str, name: str) -> str:
        """A URL of the broker, through here."""
        parts = cut(own)
        return f"{parts.scheme}{parts.user}127.0.0.1:{self.ports[name]}{parts.rest}"


@pytest.fixture
def broker() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def follower(broker: Server) -> Iterator[Follower]:
    made = Follower("127.0.0.1", {name: (0, broker.ports[name]) for name in NAMES})
    try:
        yield made
    finally:
        made.close()


async def test_every_protocol_goes_through(broker: Server, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peerbus.SECRET_VARIABLE, SECRET)
    value = "x" * 300_000
    doors: list[tuple[str, str, dict[str, Any]]] = [
        ("blipmq", broker.url, {}),
        ("flymq", broker.fly, {"group": "g", "start": "earliest"}),
        ("flymq-sdk", broker.fly_sdk, {"group": "h", "start": "earliest"}),
        ("fast", broker.fast, {"qos": 0}),
        ("felix", broker.felix, {"start": "earliest"}),
    ]
    for name, own, options in doors:
        async with quintet.connect(follower.url(own, name), timeout=WAIT_S) as bus:
            if name == "fast":
                await Queues(bus).create(f"t-{name}", durable=True)
            async with bus.subscribe(f"t-{name}", **options) as sub:
                await bus.publish_batch(f"t-{name}", [value, *map(str, range(500))])
                got = [(await sub.get(timeout=WAIT_S)).text() for _ in range(501)]
                assert sorted(got) == sorted([value, *map(str, range(500))])
    for lines, name in ((False, "peerbus"), (True, "peerbus-tcp")):
        ann = follower.url(broker.peer(f"ann-{lines}", lines=lines), name)
        bob = follower.url(broker.peer(f"bob-{lines}", lines=lines), name)
        async with peer(ann, timeout=WAIT_S) as sender, peer(bob, timeout=WAIT_S) as receiver:
            await sender.send(f"bob-{lines}", "hello")
            assert (await receiver.receive(timeout=WAIT_S)).body == "hello"
    figures = follower.lead("127.0.0.1")
    assert all(figures[name]["accepted"] for name in NAMES), figures  # nothing went by another way


def test_a_thousand_connections_at_once(follower: Follower) -> None:
    address = f"127.0.0.1:{follower.ports['blipmq']}"
    clients = [wire.Client(address) for _ in range(CONNECTIONS)]
    for client in clients:
        client.login()
    assert follower.lead("127.0.0.1")["blipmq"]["connections"] == CONNECTIONS
    for number, client in enumerate(clients):
        client.send(wire.ping(number + 1))
    for number, client in enumerate(clients):
        assert client.read() == wire.Frame(wire.PONG, number + 1, b"")
    for client in clients:
        client.close()


async def test_a_killed_leader_ends_connections_and_its_return_is_found(broker: Server, follower: Follower) -> None:
    """The subscription resumes through the same address."""
    doors: list[tuple[str, str, dict[str, Any]]] = [
        (broker.url, "blipmq", {}), (broker.fly, "flymq", {"group": "g"}), (broker.felix, "felix", {"durable": "d"}),
    ]  # fmt: skip
    for own, name, options in doors:
        url, topic = follower.url(own, name), f"k-{name}"
        async with quintet.connect(url, timeout=WAIT_S) as bus, bus.subscribe(topic, **options) as sub:
            await bus.publish(topic, "before")
            await (await sub.get(timeout=WAIT_S)).ack()
            await sub.flush()
            broker.kill()
            async with asyncio.timeout(WAIT_S):
                while bus.connected:
                    await asyncio.sleep(0.02)
            await asyncio.to_thread(broker.start)
            await bus.publish(topic, "after", retry=True)
            while (await sub.get(timeout=WAIT_S)).text() != "after":
                pass


async def test_tls_ends_at_the_leader_and_sees_the_clients_certificate(tmp_path: Path) -> None:
    authority, strangers = trustme.CA(), trustme.CA()
    ca, cert, key, mine, foreign = (tmp_path / f"{name}.pem" for name in ("ca", "cert", "key", "mine", "foreign"))
    authority.cert_pem.write_to_path(ca)
    leaders = authority.issue_cert("127.0.0.1")
    leaders.private_key_pem.write_to_path(key)
    leaders.cert_chain_pems[0].write_to_path(cert)
    authority.issue_cert("worker@example.org").private_key_and_cert_chain_pem.write_to_path(mine)
    strangers.issue_cert("worker@example.org").private_key_and_cert_chain_pem.write_to_path(foreign)
    files = {"CERT": cert, "KEY": key, "CLIENT_CA": ca}
    with running(**{f"QUINTET_LISTENERS__FLYMQ__TLS_{name}": str(path) for name, path in files.items()}) as server:
        follower = Follower("127.0.0.1", {"flymq": (0, server.ports["flymq"])})
        url = follower.url(server.fly.replace("flymq://", "flymqs://"), "flymq")
        async with quintet.connect(f"{url}?ca={ca}&cert={mine}", timeout=WAIT_S) as bus:
            assert (await bus.publish("t", "x")).durable
        with pytest.raises(ConnectionLost):
            async with quintet.connect(f"{url}?ca={ca}&cert={foreign}", timeout=WAIT_S):
                pass
        follower.close()


async def test_flymq_says_that_there_is_no_leader(broker: Server, follower: Follower) -> None:
    follower.lead("")
    for own, name in ((broker.fly, "flymq"), (broker.fly_sdk, "flymq-sdk")):
        with pytest.raises(NotLeader, match="not leader: no leader elected"):
            async with quintet.connect(follower.url(own, name), timeout=WAIT_S):
                pass
    for own, name in ((broker.url, "blipmq"), (broker.felix, "felix")):
        with pytest.raises(ConnectionLost):
            async with quintet.connect(follower.url(own, name), timeout=WAIT_S):
                pass


async def test_the_client_goes_where_flymq_says_that_the_leader_is(broker: Server) -> None:
    """A node that leads nobody on: it names the leader, and the client has it although the URL does not."""
    words = to_frame(NotLeader(leader=f"127.0.0.1:{broker.ports['flymq']}"), "document")
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read(1)
        writer.write(words)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with quintet.connect(f"flymq://admin:admin@127.0.0.1:{port}", timeout=WAIT_S) as bus:
        await bus.publish("t", "x")
        await bus.publish("t", "y")
        assert asked == 1
    server.close()
    await server.wait_closed()
