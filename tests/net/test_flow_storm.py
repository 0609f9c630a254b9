"""Random loads on all doors at once, with hardly any room for output and turns of hardly any time: all that live are answered.

Readers ask for more than the bound and read as they please, some are killed, some read nothing; rights are looked at again
all the time. Whoever reads gets everything, in order; at the end nothing is counted, waited for or held. QUINTET_TEST_LONG=1
runs many seeds.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

import quintet
from quintet.client.links.fast import Queues
from quintet.model import limits
from quintet.net import flow_control, turns
from tests.net.test_session_faults import DOORS, World, world
from tests.wire import blipmq as wire
from tests.wire import flymq as flymq_wire

LONG = "QUINTET_TEST_LONG"  # set: forty storms instead of two
SEEDS = range(40 if os.environ.get(LONG) else 2)
STORM_S = 200.0  # longer is a hang
BOUNDS_BYTES = (1, limits.MIB, 4 * limits.MIB)
LARGE, LARGE_BYTES = 16, 300 * limits.KIB
MESSAGES = 30


class Peer:
    """A raw connection with a small buffer of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def frame(self, door: str) -> tuple[int, bytes]:
        """(kind, payload) of the next one."""
        if door == "flymq":
            _, _, kind, _, length = flymq_wire.HEAD.unpack(await self.reader.readexactly(flymq_wire.HEAD.size))
            return kind, await self.reader.readexactly(length)
        length, kind, _ = wire.HEAD.unpack(await self.reader.readexactly(wire.HEAD.size))
        return kind, await self.reader.readexactly(length - 9)


@asynccontextmanager
async def raw(broker: World, door: str) -> AsyncIterator[Peer]:
    host, _, port = broker.server.listeners[door].address.rpartition(":")
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plain, (host, int(port)))
    peer = Peer(*await asyncio.open_connection(sock=plain, limit=16 * limits.KIB))
    try:
        if door == "flymq":
            peer.writer.write(flymq_wire.auth("admin", "admin"))
            await peer.frame(door)
        else:
            peer.writer.write(wire.hello(1, 1) + wire.auth(2, b"dev-key"))
            for _ in range(2):
                await peer.frame(door)
        yield peer
    finally:
        peer.writer.transport.abort()


class Storm:
    """One run."""

    def __init__(self, broker: World, seed: int) -> None:
        self.broker = broker
        self.random = Random(seed)
        self.done: list[str] = []

    async def run(self) -> None:
        choose = self.random
        async with quintet.connect(self.broker.url("flymq", ""), timeout=STORM_S) as bus:
            await bus.publish("large", bytes(LARGE_BYTES))
            stuck = [asyncio.create_task(self.read_nothing()) for _ in range(choose.randrange(1, 4))]
            rest = [asyncio.create_task(self.look_again()), asyncio.create_task(self.subscribe_and_go())]
            work: list[Coroutine[Any, Any, None]] = [self.pair(door, Random(choose.random())) for door in DOORS]
            kinds = choose.choices((self.fetch, self.poll, self.pipeline), k=12)
            work += [kind(Random(choose.random())) for kind in kinds]
            for _ in range(LARGE):
                await bus.publish("large", bytes(LARGE_BYTES))
            try:
                async with asyncio.TaskGroup() as group:
                    for one in work:
                        group.create_task(one)
            finally:
                for task in (*stuck, *rest):
                    task.cancel()
                await asyncio.gather(*stuck, *rest, return_exceptions=True)

    async def look_again(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            self.broker.server.broker.access.look_again()

    async def pair(self, door: str, random: Random) -> None:
        """A publisher and a subscriber of one door: each message comes, the first time in its order."""
        name = f"pair-{door}"
        topic = f"peerbus/{name}" if door.startswith("peerbus") else f"t/n/{name}" if door == "felix" else name
        url = self.broker.url(door, "writer-of-" + name)
        async with (
            quintet.connect(url, timeout=STORM_S) as one,
            quintet.connect(self.broker.url(door, name), timeout=STORM_S) as other,
        ):
            if door == "fast":
                await Queues(one).create(name, durable=True)
            elif not door.startswith("peerbus"):
                await one.publish(topic, b'{"n": -1}')
            async with other.subscribe(topic) as subscription:
                writing = asyncio.create_task(self._write(one, topic, random))
                seen: list[int] = []
                async for message in subscription:
                    if (number := json.loads(message.value)["n"]) >= 0 and number not in seen:
                        seen.append(number)
                    await message.ack()
                    if len(seen) == MESSAGES:
                        break
                    await asyncio.sleep(random.choice((0, 0, 0, 0.01)))
                await asyncio.wait_for(writing, STORM_S)
        assert seen == list(range(MESSAGES)), f"{door}: {seen}"
        self.done.append(door)

    async def _write(self, bus: Any, topic: str, random: Random) -> None:
        for number in range(MESSAGES):
            filler = random.choice((0, 10, 1_000, 100_000))
            await bus.publish(topic, b'{"n": %d, "x": "%b"}' % (number, b"x" * filler))
            await asyncio.sleep(random.choice((0, 0, 0.005)))

    async def fetch(self, random: Random) -> None:
        """Pipelined questions, each of whose answers has megabytes. Killed in the middle, or read to the end."""
        async with raw(self.broker, "flymq") as peer:
            count, until = random.randrange(1, 6), random.choice((None, None, random.randrange(5)))
            peer.writer.write(b"".join(flymq_wire.fetch("large", random.randrange(2)) for _ in range(count)))
            for number in range(count):
                if number == until:
                    return
                kind, payload = await peer.frame("flymq")
                assert kind != flymq_wire.ERROR and len(payload) > LARGE_BYTES, (kind, payload[:80])
                await asyncio.sleep(random.choice((0, 0, 0.05)))
        self.done.append("fetch")

    async def poll(self, random: Random) -> None:
        """Polls of several subscriptions, and a PING, whose answer comes behind theirs."""
        async with raw(self.broker, "blipmq") as peer:
            ids = []
            for number in range(random.randrange(1, 4)):
                peer.writer.write(wire.subscribe(10 + number, b"large"))
                ids.append((await peer.frame("blipmq"))[1][-8:])
            for _ in range(4):
                asked = [wire.frame(wire.POLL, 9, id) for id in ids for _ in range(random.randrange(1, 5))]
                pings = [wire.frame(wire.PING, 77) for _ in range(random.randrange(1, 30))]
                peer.writer.write(b"".join(asked + pings))
                if random.random() < 0.1:
                    return  # killed
                answered = 0
                while answered < len(pings):
                    answered += (await peer.frame("blipmq"))[0] == wire.PONG
                await asyncio.sleep(random.choice((0, 0.05)))
        self.done.append("poll")

    async def pipeline(self, random: Random) -> None:
        """Hundreds of requests in one write: what does not fit into a turn waits for its own."""
        async with raw(self.broker, "blipmq") as peer:
            for _ in range(3):
                topics = [b"small-%d" % random.randrange(40) for _ in range(300)]
                asked = [wire.publish(number, topic, b"x") for number, topic in enumerate(topics)]
                peer.writer.write(b"".join(asked) + wire.frame(wire.PING, 77))
                while (await peer.frame("blipmq"))[0] != wire.PONG:
                    pass
        self.done.append("pipeline")

    async def subscribe_and_go(self) -> None:
        """Over QUIC, to what is large: it takes some, or nothing, and is gone."""
        while True:
            async with (
                quintet.connect(self.broker.url("felix", ""), timeout=STORM_S) as bus,
                bus.subscribe("t/n/wide") as subscription,
            ):
                for _ in range(8):
                    await bus.publish("t/n/wide", bytes(LARGE_BYTES))
                for _ in range(self.random.randrange(4)):
                    await anext(aiter(subscription))
                await asyncio.sleep(0.05)

    async def read_nothing(self) -> None:
        """Asks again and again, and is cut each time."""
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                async with raw(self.broker, "flymq") as peer:
                    peer.writer.write(flymq_wire.fetch("large") * 8)
                    await asyncio.sleep(0.5)
                    if self.random.random() < 0.5:  # else killed by itself
                        while not peer.writer.transport.is_closing() and await peer.reader.read(1):
                            await asyncio.sleep(0.02)


def left(broker: World) -> dict[str, object]:
    """What is still counted, waited for or held, though all are gone."""
    output, server = broker.server.output, broker.server
    found: dict[str, object] = {
        "used": output.used, "held": len(output._held), "making": len(output._making), "pressed": output.pressed,
        "turns": len(server.turns._queue), "slices": len(server.broker.slices),
    }  # fmt: skip
    found |= {name: len(listener.connections) for name, listener in server.listeners.items()}
    return {name: value for name, value in found.items() if value}


async def settled(true: Callable[[], object]) -> None:
    async with asyncio.timeout(STORM_S):
        while not true():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", SEEDS)
async def test_all_that_live_are_answered(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", Random(seed).choice((0.0, 1e-6, 2e-4, turns.TURN_S)))
    monkeypatch.setattr(limits, "HANDSHAKE_US", STORM_S * 1_000_000)  # a busy machine may take more than 5 s to log in
    # Who reads nothing is cut sooner than a test should take.
    monkeypatch.setattr(flow_control, "PRESSED_STALL_US", 700_000)
    monkeypatch.setattr(flow_control, "PRESSED_BYTES_MIN", 4 * limits.KIB)
    async with world(tmp_path / "data", monkeypatch) as broker:
        broker.server.output.bytes_max = Random(seed + 1).choice(BOUNDS_BYTES)
        storm = Storm(broker, seed)
        try:
            async with asyncio.timeout(STORM_S):
                await storm.run()
        except TimeoutError:
            raise AssertionError(f"seed {seed}: a hang; answered: {sorted(storm.done)}; {left(broker)}") from None
        assert not broker.faults(), f"seed {seed}"
        try:
            await settled(lambda: not left(broker))
        except TimeoutError:
            raise AssertionError(f"seed {seed}: left at the end: {left(broker)}") from None
