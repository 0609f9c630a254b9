"""Reading without a subscription, and the same messages by both doors."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import quintet
from quintet.client.core import errors
from quintet.client.sources.reading import milliseconds
from tests.client.server import Server
from tests.client.test_group import made


async def test_fetch(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic, 2)
        await bus.publish_batch(topic, ["a", "b", "c"], keys=["k", None, "k"], partition=1)
        batch = await bus.fetch(topic, partition=1, offset=1, max=1)
        assert (batch.values, batch.next_offset) == ([b"b"], 2)
        batch = await bus.fetch(topic, partition=1, filter="key:k")
        assert [(msg.offset, msg.key, msg.text()) for msg in batch] == [(0, b"k", "a"), (2, b"k", "c")]
        assert len(await bus.fetch(topic, partition=1, offset=3)) == 0
        waiting = asyncio.create_task(bus.fetch(topic, partition=1, offset=3, wait=20))
        await asyncio.sleep(0.05)
        await bus.publish(topic, "d", partition=1)
        msg = next(iter(await waiting))
        assert (msg.text(), msg.partition, msg.offset) == ("d", 1, 3)
        await msg.ack()
        async with msg.process():
            pass
        with pytest.raises(errors.PartitionNotFound):
            await bus.fetch(topic, partition=5)
        with pytest.raises(errors.Unsupported):
            async with bus.transaction() as txn:
                await txn.publish(topic, "x")
                await txn.commit_offsets(batch_with_tags(await bus.fetch(topic, partition=1)))


def batch_with_tags(batch: quintet.MessageBatch) -> quintet.MessageBatch:
    """As if its messages wanted to be acknowledged."""
    batch.tags = [row.tag for row in batch]
    return batch


async def test_replay(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic, 2)
        await bus.publish_batch(topic, ["0", "2"], partition=0)
        await bus.publish(topic, "1", partition=1)
        await asyncio.sleep(0.02)
        between = datetime.now(UTC)
        await asyncio.sleep(0.02)
        await bus.publish(topic, "3", partition=1)
        assert [msg.text() async for msg in bus.replay(topic)] == ["0", "2", "1", "3"]
        assert [msg.text() async for msg in bus.replay(topic, partition=1)] == ["1", "3"]
        assert [msg.text() async for msg in bus.replay(topic, since=between)] == ["3"]
        assert [msg.text() async for msg in bus.replay(topic, until=between)] == ["0", "2", "1"]
        assert [msg.text() async for msg in bus.replay(topic, since="1h", filter="regex:^[12]$")] == ["2", "1"]
        assert [msg.text() async for msg in bus.replay(topic, since=timedelta(0))] == []
        groups = (await bus.request("LIST_GROUPS"))["groups"]
        assert [row for row in groups if row["topic"] == topic] == []
        with pytest.raises(errors.BadRequest):
            _ = [msg async for msg in bus.replay(topic, partition=9)]


def test_moments() -> None:
    now = milliseconds(timedelta(0))
    assert now - milliseconds("2d") == pytest.approx(172_800_000, abs=10_000)
    assert milliseconds(datetime(1970, 1, 2, tzinfo=UTC)) == 86_400_000
    with pytest.raises(ValueError, match="10m"):
        milliseconds("yesterday")


async def test_by_blipmq_and_by_flymq(server: Server, url: str, topic: str) -> None:
    """One topic, two doors: what one publishes the other reads, with its key."""
    async with quintet.connect(url) as blip, quintet.connect(server.fly) as fly, blip.subscribe(topic) as pushed:
        await fly.publish(topic, "by flymq", key="k")
        msg = await pushed.get()
        assert (msg.text(), msg.key) == ("by flymq", b"k")
        await msg.ack()
        async with fly.subscribe(topic, group="g", start="earliest") as asked:
            await blip.publish(topic, "by blipmq")
            first, second = await asked.get(), await asked.get()
            assert (first.text(), first.key) == ("by flymq", b"k")
            assert (second.text(), second.key) == ("by blipmq", None)
        async with fly.transaction() as txn:
            await txn.publish(topic, "together")
        assert (await pushed.get()).text() == "by blipmq"
        assert (await pushed.get()).text() == "together"
        with pytest.raises(errors.Unsupported):
            await blip.fetch(topic)
        with pytest.raises(errors.Unsupported):
            _ = [msg async for msg in blip.replay(topic)]
