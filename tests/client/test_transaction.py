"""Transactions against a real broker: all or nothing, offsets included, and a commit whose answer is lost."""

import asyncio

import pytest

import quintet
from quintet.client.bus import Bus
from quintet.client.core import errors
from tests.client.proxy import LossyProxy
from tests.client.server import Server
from tests.client.test_group import committed, made


@pytest.fixture(params=["document", "sdk"])
def fly(request: pytest.FixtureRequest, server: Server) -> str:
    return server.fly if request.param == "document" else server.fly_sdk


async def values(bus: Bus, topic: str) -> list[bytes]:
    return [msg.value async for msg in bus.replay(topic)]


async def test_all_or_nothing(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        await made(bus, topic, 2)
        async with bus.transaction() as txn:
            ack = await txn.publish(topic, "a", partition=1)
            assert (ack.partition, ack.offset, ack.durable) == (1, None, False)
            await txn.publish(topic, {"b": 1}, key="k")
            assert await values(bus, topic) == []
        assert sorted(await values(bus, topic)) == [b"a", b'{"b":1}']
        with pytest.raises(RuntimeError, match="changed my mind"):
            async with bus.transaction() as txn:
                await txn.publish(topic, "never")
                raise RuntimeError("changed my mind")
        assert len(await values(bus, topic)) == 2
        with pytest.raises(errors.Closed):
            await txn.publish(topic, "late")
        async with bus.transaction() as txn:
            await txn.publish(topic, "never")
            await txn.rollback()
        assert len(await values(bus, topic)) == 2


async def test_consumed_offsets_are_part_of_it(fly: str, topic: str) -> None:
    out = f"{topic}.out"
    async with quintet.connect(fly) as bus:
        await made(bus, topic)
        await made(bus, out)
        await bus.publish_batch(topic, range(6))
        async with bus.subscribe(topic, group="g", start="earliest") as sub:
            for _ in range(3):
                msg = await sub.get()
                async with bus.transaction() as txn:
                    await txn.publish(out, msg.json() * 10)
                    await txn.commit_offsets(msg)
            assert await committed(bus, topic, "g") == 3
            batch = await sub.get_batch(max=2, wait=0)
            with pytest.raises(RuntimeError):
                async with bus.transaction() as txn:
                    await txn.publish(out, "never")
                    await txn.commit_offsets(batch)
                    raise RuntimeError
            assert await committed(bus, topic, "g") == 3
            async with bus.transaction() as txn:
                await txn.commit_offsets(batch)
            assert await committed(bus, topic, "g") == 5
            await (await sub.get()).ack()
            await sub.flush()
            assert await committed(bus, topic, "g") == 6
        assert await values(bus, out) == [b"0", b"10", b"20"]
        async with bus.transaction() as txn:
            await txn.commit_offsets(topic=topic, group="g", partition=0, offset=1)
        assert await committed(bus, topic, "g") == 1


async def test_a_name_fences(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        with pytest.raises(errors.TransactionNotFound, match="fenced"):
            async with bus.transaction("worker-1") as zombie:
                await zombie.publish(topic, "old")
                async with bus.transaction("worker-1", timeout=30) as txn:
                    await txn.publish(topic, "new")
        assert await values(bus, topic) == [b"new"]


async def test_it_times_out(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await made(bus, topic)
        with pytest.raises(errors.TransactionNotFound, match="timed out"):
            async with bus.transaction(timeout=0.1) as txn:
                await txn.publish(topic, "slow")
                await asyncio.sleep(0.5)
        assert await values(bus, topic) == []


async def test_a_commit_whose_answer_is_lost(server: Server, topic: str) -> None:
    """Each either raised and left nothing, or is there once and whole."""
    async with (
        quintet.connect(server.fly) as direct,
        LossyProxy(server.ports["flymq"], 3, mean_bytes=500) as proxy,
    ):
        await made(direct, topic, 2)
        proxy.lossy = False
        async with quintet.connect(f"flymq://admin:admin@127.0.0.1:{proxy.port}", timeout=30) as bus:
            proxy.lossy = True
            done = []
            for number in range(30):
                try:
                    async with bus.transaction() as txn:
                        await txn.publish(topic, number, partition=0)
                        await txn.publish(topic, number, partition=1)
                    done.append(number)
                except errors.ConnectionLost:
                    continue
            proxy.lossy = False
        assert proxy.cuts > 0
        for partition in range(2):
            found = [msg.json() async for msg in direct.replay(topic, partition=partition)]
            assert found == done


async def test_not_by_blipmq(url: str) -> None:
    async with quintet.connect(url) as bus:
        with pytest.raises(errors.Unsupported, match="transaction") as caught:
            bus.transaction()
        assert "FlyMQ" in caught.value.hint


def test_blocking(server: Server, topic: str) -> None:
    with quintet.sync.connect(server.fly) as bus:
        bus.request("CREATE_TOPIC", topic=topic, partitions=1)
        ack = bus.publish(topic, "in", key="k")
        assert ack.offset == 0
        with bus.subscribe(topic, group="g", start="earliest") as sub:
            msg = sub.get()
            assert (msg.key, msg.partition, msg.offset) == (b"k", 0, 0)
            with bus.transaction() as txn:
                txn.publish(topic, "out")
                txn.commit_offsets(msg)
        assert [msg.text() for msg in bus.replay(topic)] == ["in", "out"]
        batch = bus.fetch(topic, offset=1)
        assert (batch.values, batch.next_offset) == ([b"out"], 2)
        assert bus.request("GET_OFFSET", topic=topic, group="g", partition=0) == {"offset": 1}
