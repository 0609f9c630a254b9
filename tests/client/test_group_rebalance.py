"""Rebalances while messages flow: every committed offset goes on, nothing is read twice without cause, no silence."""

import asyncio
from collections import Counter
from functools import partial
from random import Random

import pytest

import quintet
from quintet.client.bus import Bus
from quintet.client.core import errors, subscription
from quintet.client.core.subscription import Subscription
from quintet.client.sources import fetcher, group
from tests.client.fake import until
from tests.client.server import Server

PARTITIONS = 6
MOVES = 3


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members hear of a new assignment soon, and a long poll is under way at nearly every moment."""
    monkeypatch.setattr(group, "HEARTBEAT_S", 0.05)
    monkeypatch.setattr(fetcher, "WAIT_ALONE_MS", 2_000)


async def read_on(sub: Subscription, seen: Counter[tuple[int, int]]) -> None:
    async for msg in sub:
        assert msg.partition is not None and msg.offset is not None
        seen[msg.partition, msg.offset] += 1
        await msg.ack()


async def committed(bus: Bus, topic: str) -> list[int]:
    asked = [bus.request("GET_OFFSET", topic=topic, group="g", partition=number) for number in range(PARTITIONS)]
    return [int(answer["offset"]) for answer in await asyncio.gather(*asked)]


def shares(members: list[Subscription], partitions: int) -> bool:
    return all(len(member.assigned) == partitions for member in members)


async def test_every_partition_goes_on_after_rebalances(server: Server, topic: str) -> None:
    """Members come and go; after each move, messages come while long polls of before and after wait for them."""
    random = Random(13)
    seen: Counter[tuple[int, int]] = Counter()
    ends = [0] * PARTITIONS

    async def join(bus: Bus) -> tuple[Subscription, asyncio.Task[None]]:
        joining = bus.subscribe(topic, group="g", start="earliest")
        await joining.open()
        return joining, asyncio.create_task(read_on(joining, seen))

    async def all_committed(bus: Bus) -> None:
        for partition in random.choices(range(PARTITIONS), k=30):
            ends[partition] += 1
            await bus.publish(topic, "x", partition=partition)
        async with asyncio.timeout(30):
            while await committed(bus, topic) != ends:
                await asyncio.sleep(0.02)

    async with quintet.connect(server.fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=PARTITIONS)
        old, reader = await join(bus)
        for _ in range(MOVES):
            new, next_reader = await join(bus)
            await until(partial(shares, [old, new], PARTITIONS // 2))
            await all_committed(bus)
            await old.close()
            await reader
            await until(partial(shares, [new], PARTITIONS))
            await asyncio.sleep(0.1)  # until polls of the old and of the new assignment wait at the server
            await all_committed(bus)
            old, reader = new, next_reader
        await old.close()
        await reader
    assert seen == {(partition, offset): 1 for partition, end in enumerate(ends) for offset in range(end)}


async def test_a_reader_that_never_acknowledges_is_told(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "OUTSTANDING_MAX", 100)
    monkeypatch.setattr(subscription, "STUCK_S", 0.1)
    async with quintet.connect(server.fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=1)
        await bus.publish_batch(topic, range(300))
        async with bus.subscribe(topic, group="g", start="earliest", prefetch=50) as sub:
            messages = []
            with pytest.raises(errors.Backpressure, match="handed out"):
                while True:
                    messages.append(await sub.get())
            for msg in messages:
                await msg.ack()
            assert (await sub.get()).json() == len(messages)  # it goes on
        async with bus.subscribe(topic, start="earliest", prefetch=50) as plain:  # nothing to acknowledge here
            assert [(await plain.get()).json() for _ in range(300)] == list(range(300))


async def test_a_fault_in_a_task_of_the_consumer_is_told(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise LookupError("planted")

    async with quintet.connect(server.fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=1)
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            monkeypatch.setattr(group.GroupSource, "_join", broken)
            with pytest.raises(errors.ServerError, match="planted"):
                await sub.get(timeout=60)
        monkeypatch.undo()
        monkeypatch.setattr(fetcher.Fetcher, "_round", broken)
        async with bus.subscribe(topic, group="h", start="earliest") as sub:
            with pytest.raises(errors.ServerError, match="planted"):
                await sub.get(timeout=60)
