"""Topics from the client: subscribing makes them, at every door alike; altered, purged; and the keys of a cache."""

import asyncio

import pytest

import quintet
from quintet.client.core.errors import TopicNotFound
from quintet.client.manage import Manage
from tests.client.server import Server


@pytest.mark.parametrize(
    ("door", "group"),
    [("url", None), ("fly", None), ("fly_sdk", None), ("felix", None), ("fly", "g"), ("fly_sdk", "g"), ("felix", "g")],
)
def test_subscribing_makes_a_topic_that_is_not_there(server: Server, door: str, group: str | None) -> None:
    name = f"made/{door}/{group}"

    async def scenario() -> None:
        async with quintet.connect(getattr(server, door)) as bus, quintet.connect(server.fly) as admin:
            with pytest.raises(TopicNotFound):
                await Manage(admin).topic(name)
            async with bus.subscribe(name, group=group) as sub:
                assert (await Manage(admin).topic(name)).name == name
                await admin.publish(name, "first")
                assert (await sub.get(timeout=60)).text() == "first"

    asyncio.run(scenario())


def test_a_queue_of_fast_says_how_it_is_made(server: Server) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fast) as bus:
            with pytest.raises(TopicNotFound, match=r"Queues\(bus\)\.create"):
                async with bus.subscribe("never made"):
                    pass

    asyncio.run(scenario())


def test_alter_and_purge_over_the_client(server: Server, topic: str) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.fly) as bus:
            broker = Manage(bus)
            await broker.create_topic(topic, 2)
            assert (await broker.alter_topic(topic, retention_ms=60_000)).retention_ms == 60_000
            found = await broker.alter_topic(topic, durability="interval")
            assert (found.partitions, found.durability, found.retention_ms) == (2, "interval", 60_000)
            await bus.publish_batch(topic, range(100))
            async with bus.subscribe(topic, group="g", start="earliest") as sub:
                assert len(await sub.get_batch(max=100, timeout=60)) > 0
                await broker.purge_topic(topic)
                assert (await broker.topic(topic)).messages == 0
                await bus.publish(topic, "behind")
                texts = [(await sub.get(timeout=60)).text()]
                while texts[-1] != "behind":  # what was fetched ahead is here already
                    texts.append((await sub.get(timeout=60)).text())
            assert [msg.text() async for msg in bus.replay(topic)] == ["behind"]

    asyncio.run(scenario())


def test_a_purge_is_kept_over_a_crash(own_server: Server) -> None:
    async def scenario() -> None:
        async with quintet.connect(own_server.fly) as bus:
            await bus.publish_batch("t", range(1_000))
            await Manage(bus).purge_topic("t")
            await bus.publish("t", "new")
        own_server.kill()
        own_server.start()
        async with quintet.connect(own_server.fly) as bus:
            assert [(msg.offset, msg.text()) async for msg in bus.replay("t")] == [(1_000, "new")]

    asyncio.run(scenario())


def test_the_keys_of_a_cache(server: Server) -> None:
    async def scenario() -> None:
        async with quintet.connect(server.felix) as bus:
            cache = bus.kv("keys-of-a-cache")
            assert [key async for key in cache.keys(prefix="")] == []
            names = [f"user/{number:05}" for number in range(12_000)]  # more than one page has
            await asyncio.gather(*(cache.put(name, b"") for name in ["other", "zoë", *names]))
            await cache.put("gone", b"", ttl=0.001)
            await cache.delete("user/00007")
            names.remove("user/00007")
            assert [key async for key in cache.keys(prefix="user/")] == names
            assert [key async for key in cache.keys(prefix="") if not key.startswith("user/")] == ["other", "zoë"]

    asyncio.run(scenario())
    with quintet.sync.connect(server.felix) as bus:
        assert list(bus.kv("keys-of-a-cache").keys(prefix="z")) == ["zoë"]
