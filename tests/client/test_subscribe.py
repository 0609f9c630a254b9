"""Receiving from a real broker: iterators, batches, acknowledgements, bounds, resuming by id."""

import asyncio
import logging

import pytest

import quintet
from quintet.client.core.errors import Closed, Timeout
from tests.client.fake import until


async def test_process_acknowledges(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        async with bus.subscribe(topic) as sub:
            await bus.publish_batch(topic, range(5))
            async for msg in sub:
                async with msg.process():
                    assert msg.topic == topic
                if msg.json() == 4:
                    break
            id = sub.id
        async with bus.subscribe(topic, resume=id) as sub:
            assert sub.id == id
            await bus.publish(topic, "next")
            assert (await sub.get()).text() == "next"


async def test_a_failed_message_comes_again(url: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async with quintet.connect(url) as bus:
        async with bus.subscribe(topic) as sub:
            await bus.publish_batch(topic, ["good", "bad", "good too"])
            for _ in range(3):
                msg = await sub.get()
                async with msg.process():
                    if msg.text() == "bad":
                        raise ValueError("cannot use this")
        assert "will be delivered again" in caplog.text
        assert "cannot use this" in caplog.text
        async with bus.subscribe(topic, resume=sub.id) as again:
            msg = await again.get()
            assert msg.text() == "bad"
            with pytest.raises(ValueError, match="still"):
                async with msg.process(reraise=True):
                    raise ValueError("still")
            async with msg.process():
                pass
        async with bus.subscribe(topic, resume=sub.id) as empty:
            with pytest.raises(Timeout):
                await empty.get(timeout=0.3)


async def test_a_cancelled_handler_leaves_the_message(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        await bus.publish(topic, "x")
        msg = await sub.get()
        with pytest.raises(asyncio.CancelledError):
            async with msg.process():
                raise asyncio.CancelledError
        await sub.close()
        async with bus.subscribe(topic, resume=sub.id) as again:
            assert (await again.get()).text() == "x"


async def test_batches(url: str, topic: str) -> None:
    """More than the server leaves unacknowledged, so that acknowledging is what keeps it flowing."""
    count = 20_000
    values = [b"%d" % i for i in range(count)]
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        await bus.publish_batch(topic, values)
        got: list[bytes] = []
        async for batch in sub.batches(max=5_000, wait=30):
            assert len(batch) == len(batch.values) == len(batch.tags)
            got += batch.values
            await batch.ack()
            if len(got) >= count:
                break
        await sub.flush()
        assert got == values
        assert sub.refused == 0


async def test_a_batch_of_trickling_messages(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:

        async def trickle() -> None:
            for i in range(3):
                await bus.publish(topic, i)

        task = asyncio.create_task(trickle())
        batch = await sub.get_batch(max=3, wait=30)
        await task
        assert [msg.json() for msg in batch] == [0, 1, 2]
        async with batch.process():
            pass


async def test_messages_of_a_batch_one_by_one(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        async with bus.subscribe(topic) as sub:
            await bus.publish_batch(topic, range(4))
            batch = await sub.get_batch(max=4, wait=5)
            for msg in batch:
                if msg.json() % 2:
                    await msg.ack()
        async with bus.subscribe(topic, resume=sub.id) as rest:
            assert [(await rest.get()).json() for _ in range(2)] == [0, 2]


async def test_workers_share_a_subscription(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        seen: list[int] = []

        async def worker() -> None:
            async for msg in sub:
                async with msg.process():
                    await asyncio.sleep(0)
                    seen.append(msg.json())

        workers = [asyncio.create_task(worker()) for _ in range(4)]
        await bus.publish_batch(topic, range(200))
        await until(lambda: len(seen) == 200)
        await sub.close()
        await asyncio.gather(*workers)
        assert sorted(seen) == list(range(200))


async def test_two_subscriptions_to_one_topic(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as one, bus.subscribe(topic) as two:
        assert one.id != two.id
        await bus.publish(topic, "both")
        for sub in (one, two):
            msg = await sub.get()
            assert msg.text() == "both"
            await msg.ack()
        await one.flush()
        await two.flush()
        assert (one.refused, two.refused) == (0, 0)


async def test_iterating_opens_and_the_bus_closes(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        sub = bus.subscribe(topic)
        with pytest.raises(Closed):
            _ = sub.id
        waiting = asyncio.create_task(sub.__anext__())
        await until(lambda: sub.connected)
        await bus.publish(topic, "first")
        assert (await waiting).text() == "first"
    assert [msg async for msg in sub] == []
    with pytest.raises(Closed):
        await sub.get()
    with pytest.raises(Closed):
        await (await asyncio.wait_for(waiting, 30)).ack()


async def test_a_slow_reader_stops_the_socket(url: str, topic: str) -> None:
    """QoS 0 has no window on the server, so only the bound of the queue holds it back."""
    async with quintet.connect(url) as bus, bus.subscribe(topic, qos=0, prefetch=100) as sub:
        first = await _publish_until_stopped(bus, sub, topic)
        read_bytes = 256 * 1024
        assert 100 <= sub.queued <= 100 + read_bytes // 1000
        seen = 0
        while seen < first:
            seen += len(await sub.get_batch(max=1_000, wait=0))
        assert seen == first


async def _publish_until_stopped(bus: quintet.Bus, sub: quintet.Subscription, topic: str) -> int:
    count = 2_000
    await bus.publish_batch(topic, [b"x" * 1_000] * count, qos=1)
    queued = -1
    while sub.queued < 100 or sub.queued != queued:
        queued = sub.queued
        await asyncio.sleep(0.1)
    return count


async def test_no_message_in_time(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        with pytest.raises(Timeout, match="waiting for a message"):
            await sub.get(timeout=0.05)
        with pytest.raises(Timeout):
            await sub.get_batch(timeout=0.05)


async def test_late_acknowledgement_is_counted(url: str, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "quintet.client")
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        await bus.publish(topic, "x")
        msg = await sub.get()
        await msg.ack()
        await msg.ack()
        await sub.flush()
        assert sub.refused == 1
        assert "refused" in caplog.text
