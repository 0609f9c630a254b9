"""Idempotent producers: nothing lost and nothing doubled, whatever happens to the answers (guarantee A10).

`python -m tests.client.test_idempotent 1000000` runs the same with as many sends as one likes.
"""

import asyncio
import logging
import sys
from collections import Counter

import pytest

import quintet
from quintet.client.bus import Bus
from quintet.client.core.errors import Backpressure, DeliveryError, PartitionNotFound
from quintet.model.keys import fnv1a
from tests.client.proxy import LossyProxy
from tests.client.server import Server, running

SENDS = 10_000


async def stored(bus: Bus, topic: str, partitions: int) -> list[list[bytes]]:
    """All values, by partition, in order."""
    found: list[list[bytes]] = []
    for number in range(partitions):
        values: list[bytes] = []
        offset = 0
        while True:
            answer = await bus.request("FETCH", topic=topic, partition=number, offset=offset, max=100_000)
            if not answer["messages"]:
                break
            values += [row["value"] for row in answer["messages"]]
            offset = answer["next_offset"]
        found.append(values)
    return found


async def send(bus: Bus, topic: str, numbers: range, keys: int) -> int:
    """Send these numbers; every third has a key."""
    async with bus.producer(topic, idempotent=True, linger=0.001, timeout=120) as producer:
        for number in numbers:
            key = f"k{number % keys}" if number % 3 == 0 else None
            while True:
                try:
                    producer.send(str(number), key=key)
                    break
                except Backpressure:
                    await producer.ready()
            if number % 500 == 0:
                await asyncio.sleep(0)
    return producer.confirmed


def check(found: list[list[bytes]], count: int, keys: int) -> None:
    times = Counter(int(value) for values in found for value in values)
    assert sorted(times) == list(range(count)), "something was lost"
    assert max(times.values()) == 1, "something was stored twice"
    for number, values in enumerate(found):
        order: dict[int, int] = {}
        for value in map(int, values):
            if value % 3 == 0:
                key = value % keys
                assert order.get(key, -1) < value, "messages of one key are not in order"
                assert fnv1a(f"k{key}".encode()) % len(found) == number
                order[key] = value


async def lossy(server: Server, topic: str, count: int, seed: int) -> int:
    async with (
        quintet.connect(server.fly) as direct,
        LossyProxy(server.ports["flymq"], seed, mean_bytes=50_000) as proxy,
        quintet.connect(f"flymq://admin:admin@127.0.0.1:{proxy.port}", timeout=60) as bus,
    ):
        await direct.request("CREATE_TOPIC", topic=topic, partitions=4)
        assert await send(bus, topic, range(count), 50) == count
        check(await stored(direct, topic, 4), count, 50)
        return proxy.cuts


async def test_answers_get_lost(server: Server, topic: str) -> None:
    assert await lossy(server, topic, SENDS, seed=7) > 3


async def test_the_broker_is_killed(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.fly, timeout=60) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=2)
        sending = asyncio.create_task(send(bus, topic, range(SENDS), 50))
        for _ in range(2):
            await asyncio.sleep(0.05)
            own_server.kill()
            own_server.start()
        assert await sending == SENDS
        check(await stored(bus, topic, 2), SENDS, 50)


async def test_a_topic_that_is_new(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        async with bus.producer(topic, idempotent=True) as producer:
            producer.send("first")
        assert producer.confirmed == 1
        assert await stored(bus, topic, 1) == [[b"first"]]


async def test_what_is_refused_does_not_stop_the_rest(server: Server, topic: str) -> None:
    """The partitions change under the producer: its numbers start over under a new id, and the rest is stored."""
    async with quintet.connect(server.fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=2)
        async with bus.producer(topic, idempotent=True) as producer:
            with pytest.raises(PartitionNotFound):
                producer.send("x", partition=9)
            producer.send("a", partition=1)
            await producer.flush()
            await bus.request("DELETE_TOPIC", topic=topic)
            await bus.request("CREATE_TOPIC", topic=topic, partitions=2)
            producer.send("b", partition=1)
            with pytest.raises(ExceptionGroup) as caught:
                await producer.flush()
            assert isinstance(caught.value.exceptions[0], DeliveryError)
            producer.send("c", partition=1)
            await producer.flush()
        assert await stored(bus, topic, 2) == [[], [b"c"]]


if __name__ == "__main__":
    logging.disable()
    with running() as server:
        cuts = asyncio.run(lossy(server, "sends", int(sys.argv[1]), seed=1))
        sys.stdout.write(f"{sys.argv[1]} sends, {cuts} connections lost: none lost, none doubled\n")
