"""Our client and a broker of short patience: each job is delivered once, and a job can take longer or be given back."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import quintet
from quintet.client.blocking import sync
from quintet.client.core import errors
from tests.client.server import Server, running

TIMEOUT_S = 1.0  # of which a busy machine may take a half between two signs of life
JOBS = 4
DOORS = ["blipmq", "felix", "felix durable", "felix group"]


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    """A broker that waits TIMEOUT_S for an acknowledgement, three times."""
    settings = {"PUSH_TIMEOUT_SECONDS": str(TIMEOUT_S), "ATTEMPTS_MAX": "3", "RETRY_BACKOFF_SECONDS": "0.1"}
    with running(**{f"QUINTET_DELIVERY__{name}": value for name, value in settings.items()}) as server:
        yield server


def options(server: Server, door: str) -> tuple[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {"felix durable": {"durable": "d"}, "felix group": {"group": "g"}}
    return (server.url if door == "blipmq" else server.felix), kinds.get(door, {})


async def dead_letters(server: Server, topic: str) -> list[dict[str, Any]]:
    async with quintet.connect(server.fly) as bus:
        found = await bus.request("FETCH_DLQ", topic=topic, max=100)
        return list(found["messages"])


async def work(server: Server, topic: str, door: str, blocks: bool) -> None:
    """Jobs that take longer than the time-out, one at a time, with prefetch=1: as many deliveries as jobs."""
    url, kind = options(server, door)
    async with quintet.connect(url) as bus, bus.subscribe(topic, prefetch=1, **kind) as sub:
        await bus.publish_batch(topic, range(JOBS))
        seen: Counter[int] = Counter()
        while seen.total() < JOBS:
            msg = await sub.get()
            seen[msg.json()] += 1
            assert sub.queued == 0, "the broker sent more than there was credit for"
            if blocks:
                async with msg.process():
                    await asyncio.sleep(TIMEOUT_S * 1.2)
            else:
                await asyncio.sleep(TIMEOUT_S * 1.2)
                await msg.ack()
        with pytest.raises(errors.Timeout):
            await sub.get(timeout=2 * TIMEOUT_S)
        assert seen == dict.fromkeys(range(JOBS), 1)
        assert sub.refused == 0


async def test_a_healthy_consumer_gets_each_job_once(hasty: Server, topic: str) -> None:
    kinds = [(door, blocks) for door in DOORS for blocks in (True, False)]
    await asyncio.gather(*(work(hasty, f"{topic} {number}", *kind) for number, kind in enumerate(kinds)))
    for number in range(2):
        assert await dead_letters(hasty, f"{topic} {number}") == []


@pytest.mark.parametrize("door", DOORS)
async def test_in_progress_and_nack(hasty: Server, topic: str, door: str) -> None:
    url, kind = options(hasty, door)
    async with quintet.connect(url) as bus, bus.subscribe(topic, prefetch=1, **kind) as sub:
        await bus.publish_batch(topic, ["long", "next"])
        msg = await sub.get()
        for _ in range(4):
            await asyncio.sleep(TIMEOUT_S * 0.3)
            await msg.in_progress()
        await msg.nack(delay=0.5)
        msg = await sub.get()
        assert msg.text() == "next"
        await msg.ack()
        msg = await sub.get()
        assert msg.text() == "long"
        await msg.nack()
        msg = await sub.get()
        assert msg.text() == "long"
        await msg.ack()
        with pytest.raises(ValueError, match="delay"):
            await msg.nack(delay=-1)


async def test_a_message_that_fails_each_time_is_a_dead_letter(
    hasty: Server, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "quintet.client")
    async with quintet.connect(hasty.url) as bus, bus.subscribe(topic, prefetch=1) as sub:
        await bus.publish_batch(topic, ["bad", "good"])
        seen: list[str] = []
        while len(seen) < 4:
            msg = await sub.get()
            seen.append(msg.text())
            async with msg.process():
                if msg.text() == "bad":
                    raise ValueError("cannot do it")
        assert sorted(seen) == ["bad", "bad", "bad", "good"]
        async with asyncio.timeout(30):
            while not (letters := await dead_letters(hasty, topic)):
                await asyncio.sleep(0.05)
        assert [(letter["data"], letter["retries"]) for letter in letters] == [(b"bad", 3)]


async def test_a_message_nobody_acknowledges_comes_again(
    hasty: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintet.client.sources.push.HELD_TIMEOUTS", 1)
    async with quintet.connect(hasty.url) as bus, bus.subscribe(topic) as sub:
        await bus.publish(topic, "forgotten")
        first, second = await sub.get(), await sub.get()
        assert (first.tag, second.text()) == (second.tag, "forgotten")
        await second.ack()


async def test_a_reader_that_takes_more_than_its_prefetch_gets_more(hasty: Server, topic: str) -> None:
    async with quintet.connect(hasty.url) as bus, bus.subscribe(topic, prefetch=2) as sub:
        await bus.publish_batch(topic, range(20))
        messages = [await sub.get() for _ in range(20)]
        assert [msg.json() for msg in messages] == list(range(20))
        for msg in messages:
            await msg.ack()
        await bus.publish_batch(topic, range(20))
        await (await sub.get()).ack()


async def test_where_there_is_no_word_for_it_that_is_said(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=1)
        await bus.publish_batch(topic, ["a", "b"])
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            msg = await sub.get()
            await msg.in_progress()
            await msg.nack(delay=0.05)
            assert [(await sub.get()).text(), (await sub.get()).text()] == ["b", "a"]
        for read in await bus.fetch(topic, partition=0, offset=0):
            with pytest.raises(errors.Unsupported):
                await read.nack()
    async with quintet.connect(server.url) as bus, bus.subscribe(topic, qos=0) as sub:
        await bus.publish(topic, "x")
        msg = await sub.get()
        await msg.in_progress()
        with pytest.raises(errors.Unsupported, match="QoS 0"):
            await msg.nack()


async def test_a_subscription_that_is_gone_says_so(server: Server) -> None:
    async with quintet.connect(server.url) as bus:
        with pytest.raises(errors.SubscriptionEnded, match="no subscription 987654321"):
            await bus.subscribe("t", resume=987654321).open()


def test_the_blocking_twin(hasty: Server, topic: str) -> None:
    with sync.connect(hasty.url) as bus, bus.subscribe(topic, prefetch=1) as sub:
        bus.publish(topic, "x")
        msg = sub.get()
        msg.in_progress()
        msg.nack(delay=0.05)
        msg = sub.get()
        assert msg.text() == "x"
        msg.ack()
