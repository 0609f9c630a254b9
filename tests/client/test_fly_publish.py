"""Publishing by FlyMQ: where it went, keys and partitions, time, schemas, producers, and what this door refuses."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import quintet
from quintet import kernel
from quintet.client.core import errors
from quintet.client.links.flymq import SET_BYTES_MAX
from quintet.model.keys import fnv1a
from tests.client.server import Server
from tests.client.test_idempotent import stored


@pytest.fixture(params=["document", "sdk", "zstd"])
def fly(request: pytest.FixtureRequest, server: Server) -> str:
    return {"document": server.fly, "sdk": server.fly_sdk, "zstd": f"{server.fly}?compression=zstd"}[request.param]


async def test_where_it_went(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=4)
        first = await bus.publish(topic, {"n": 1}, key="k")
        assert (first.topic, first.partition, first.offset, first.durable) == (topic, fnv1a(b"k") % 4, 0, True)
        assert first.timestamp is not None
        second = await bus.publish(topic, b"x" * 5_000, key=b"k")
        assert (second.partition, second.offset) == (first.partition, 1)
        third = await bus.publish(topic, "there", partition=2 if first.partition != 2 else 3)
        assert third.offset == 0
        last = await bus.publish_batch(topic, range(10), key="k")
        assert (last.count, last.partition, last.offset) == (10, first.partition, 11)
        await bus.publish_batch(topic, ["a", "b"], keys=["k", None])
        many = await asyncio.gather(*(bus.publish(topic, n, key="k") for n in range(20)))
        offsets = [ack.offset for ack in many]
        assert offsets[0] is not None
        assert offsets == list(range(offsets[0], offsets[0] + 20))


async def test_ttl_delay_schema(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        ack = await bus.publish(topic, "soon gone", ttl=3600, key="k")
        assert (ack.partition, ack.offset) == (0, 0)
        batch = await bus.publish_batch(topic, ["a", "b"], ttl=60)
        assert (batch.count, batch.offset) == (2, 2)
        delayed = await bus.publish(topic, "later", delay=3600)
        assert delayed.handle is not None
        await bus.cancel(delayed)
        with pytest.raises(errors.QuintetError):
            await bus.cancel(delayed)
        with pytest.raises(ValueError, match="delay="):
            await bus.cancel(ack)
        await bus.request("REGISTER_SCHEMA", name=topic, type="json", schema='{"type": "object"}')
        fits = await bus.publish(topic, {"a": 1}, schema=topic)
        assert fits.offset == 3
        with pytest.raises(errors.SchemaRejected):
            await bus.publish(topic, [1], schema=topic)
        everything: dict[str, Any] = {"ttl": 60, "key": "k", "headers": {"h": None}, "schema": topic}
        with pytest.raises(errors.SchemaRejected):
            await bus.publish(topic, [1], delay=0.05, **everything)
        later = await bus.publish(topic, {"all": 1}, delay=0.05, **everything)
        assert later.handle is not None
        (last,) = await bus.fetch(topic, offset=4, wait=20)
        assert (last.json(), last.key, dict(last.headers)) == ({"all": 1}, b"k", {"h": None})


async def test_publishes_with_headers_of_one_turn_are_sets_of_bounded_size(
    server: Server, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own place. Control: small ones are one set, and one that is large by itself is sent whole."""
    sets: list[int] = []
    pack = kernel.records_pack

    def noted(values: Sequence[bytes], *rest: Any) -> bytes:
        sets.append(len(values))
        return pack(values, *rest)

    monkeypatch.setattr(kernel, "records_pack", noted)
    async with quintet.connect(server.fly) as bus:
        for size, expected in ((10, [8]), (SET_BYTES_MAX // 3, [3, 3, 2]), (SET_BYTES_MAX + 1, [1] * 8)):
            sets.clear()
            values = [bytes((number,)) * size for number in range(8)]
            acks = await asyncio.gather(*(bus.publish(topic, value, headers={"h": "v"}) for value in values))
            assert sets == expected
            first = acks[0].offset
            assert first is not None and [ack.offset for ack in acks] == list(range(first, first + 8))
            found = [await bus.fetch(topic, offset=first + number, max=1) for number in range(8)]
            assert [message.value for (message,) in found] == values


async def test_refused(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=2)
        with pytest.raises(errors.PartitionNotFound):
            await bus.publish(topic, "x", partition=2)
        with pytest.raises(errors.DeliveryError, match="3 of 3"):
            await bus.publish_batch(topic, ["x"] * 3, partition=7)
        with pytest.raises(errors.DeliveryError, match="2 of 2"):
            await bus.publish_batch(topic, ["x"] * 2, partition=7, ttl=5)
        with pytest.raises(ValueError, match="1 messages and 2 keys"):
            await bus.publish_batch(topic, ["x"], keys=["a", "b"])
        for wrong, says in (
            ({"a": 1}, "header 'a' has a value of the type int"),
            ({7: "a"}, "name 7 is of the type int"),
        ):
            with pytest.raises(errors.BadValue, match=says):
                await bus.publish(topic, "x", headers=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="headers="):
            await bus.publish(topic, "x", headers=["abc"])  # type: ignore[list-item]
        with pytest.raises(errors.Unsupported, match="qos=0"):
            await bus.publish(topic, "x", qos=0)
        with pytest.raises(errors.TooLarge):
            await bus.publish(topic, b"x" * (33 * 1024 * 1024))
        assert (await bus.publish(topic, "x", partition=1)).offset == 0


async def test_blipmq_says_which_door_has_it(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        for options in ({"partition": 1}, {"delay": 1.0}, {"schema": "s"}):
            with pytest.raises(errors.Unsupported) as caught:
                await bus.publish(topic, "x", **options)
            assert "FlyMQ" in caught.value.hint
        with pytest.raises(errors.Unsupported, match="idempotent"):
            bus.producer(topic, idempotent=True)
        async with bus.producer(topic) as producer:
            with pytest.raises(errors.Unsupported, match="partition"):
                producer.send("x", partition=1)


async def test_a_producer(fly: str, topic: str) -> None:
    async with quintet.connect(fly) as bus:
        await bus.request("CREATE_TOPIC", topic=topic, partitions=3)
        async with bus.producer(topic, linger=0.001) as producer:
            for number in range(3_000):
                producer.send(str(number), key=str(number % 10) if number % 2 else None)
            producer.send("there", partition=2)
        assert producer.confirmed == 3_001
        found = await stored(bus, topic, 3)
        assert sorted(value for values in found for value in values)[:3000] == sorted(
            str(number).encode() for number in range(3_000)
        )
        assert b"there" in found[2]


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd", "snappy"])
async def test_a_producer_that_compresses(server: Server, topic: str, compression: str) -> None:
    async with quintet.connect(server.fly) as bus:
        async with bus.producer(topic, compression=compression, idempotent=True) as producer:
            for number in range(20):
                producer.send(str(number) * 1_000, key="k")
        assert await stored(bus, topic, 1) == [[(str(number) * 1_000).encode() for number in range(20)]]
        with pytest.raises(ValueError, match="one of"):
            bus.producer(topic, compression="rar")


async def test_timeout_and_loss(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.fly, timeout=30) as bus:
        await bus.publish(topic, "x")
        own_server.pause()
        with pytest.raises(errors.Timeout, match="publishing"):
            await bus.publish(topic, "slow", timeout=0.1)
        plain = asyncio.create_task(bus.publish(topic, "plain"))
        stubborn = asyncio.create_task(bus.publish(topic, "stubborn", retry=True))
        asked = asyncio.create_task(bus.request("WHOAMI"))
        await asyncio.sleep(0.1)
        own_server.kill()
        for lost in (plain, asked):
            with pytest.raises(errors.ConnectionLost):
                await lost
        own_server.start()
        assert (await stubborn).durable
        assert bus.reconnects == 1
