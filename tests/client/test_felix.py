"""The Felix door against a real broker: confirmed publishes, positions that are kept, groups, other doors, restarts."""

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import jwt
import pytest

import quintet
from quintet.client.core.errors import AuthError, BadName, ConnectionLost, Forbidden, TooLarge, Unsupported
from quintet.config import DEV_FAST_MASTER_SECRET
from quintet.model.errors import QuintetError
from tests.client.server import Server


async def take(sub: quintet.Subscription, count: int, ack: bool = True) -> list[bytes]:
    """The next messages, acknowledged."""
    got: list[bytes] = []
    async with asyncio.timeout(60):
        while len(got) < count:
            batch = await sub.get_batch(max=count - len(got), wait=0.0, timeout=60)
            got += batch.values
            if ack:
                await batch.ack()
    return got


async def test_publish_and_receive(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        async with bus.subscribe(topic) as sub:
            assert await bus.publish(topic, {"n": 0}) == quintet.Ack(topic, 1, True)
            await bus.publish_batch(topic, [f"{n}" for n in range(1, 1_000)])
            await bus.publish(topic, b"", qos=0)
            await bus.ping()
            assert await take(sub, 1_001) == [b'{"n":0}', *(b"%d" % n for n in range(1, 1_000)), b""]
            assert sub.connected and not sub.reconnects
            with pytest.raises(Unsupported, match="no id"):
                _ = sub.id
        async with bus.producer(topic) as producer:
            for n in range(10_000):
                producer.send(n)
        assert producer.confirmed == 10_000


async def test_keys_go_with_messages_and_come_back(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        await bus.publish(topic, "a", key="k")
        await asyncio.gather(*(bus.publish(topic, f"{n}", key=f"k{n % 2}") for n in range(4)), bus.publish(topic, "z"))
        async with bus.subscribe(topic, start="earliest") as sub:
            got = [await sub.get() for _ in range(6)]
        assert {(msg.text(), msg.key) for msg in got} == {
            ("a", b"k"), ("0", b"k0"), ("1", b"k1"), ("2", b"k0"), ("3", b"k1"), ("z", None),
        }  # fmt: skip
        with pytest.raises(TooLarge, match="65535"):
            await bus.publish(topic, "a", key=bytes(65_536))


async def test_messages_know_where_they_are(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        await bus.publish_batch(topic, ["a", "b", "c"])
        async with bus.subscribe(topic, start="earliest") as sub:
            msg = await sub.get()
            assert (msg.topic, msg.value, msg.qos, msg.partition, msg.offset) == (topic, b"a", 1, 0, 0)
            assert msg.redelivered is False
            async with msg.process():
                assert msg.text() == "a"
        async with bus.subscribe(topic, start=2) as sub:
            assert (await sub.get()).offset == 2
        async with bus.subscribe(topic, start="earliest", qos=0) as sub:
            msg = await sub.get()
            assert (msg.qos, msg.offset) == (0, 0)
        await asyncio.sleep(0.05)
        now = datetime.now(UTC)
        await asyncio.sleep(0.05)
        await bus.publish(topic, "d")
        async with bus.subscribe(topic, start=now) as sub:
            assert (await sub.get()).text() == "d"


async def test_names_are_the_broker_s(server: Server, topic: str) -> None:
    inside = f"{server.felix}&tenant=acme&namespace=shop"
    async with (
        quintet.connect(inside) as shop,
        quintet.connect(server.felix) as bus,
        quintet.connect(server.url) as blip,
    ):
        async with blip.subscribe(f"acme/shop/{topic}") as sub, bus.subscribe(f"acme/shop/{topic}") as same:
            await shop.publish(topic, "one")
            assert (await sub.get()).text() == (await same.get()).text() == "one"
        async with shop.subscribe(topic) as sub:
            await blip.publish(f"acme/shop/{topic}", "two")
            msg = await sub.get()
            assert (msg.topic, msg.text()) == (topic, "two")
        async with bus.subscribe(topic) as sub:
            await blip.publish(topic, "bare")
            assert (await sub.get()).text() == "bare"
        with pytest.raises(BadName):
            await bus.publish("t/n/__x", "y")
        with pytest.raises(TooLarge):
            await bus.publish(topic, bytes(17 * 1024 * 1024))


async def test_a_token_of_a_tenant(server: Server, topic: str) -> None:
    claims = {
        "iss": "felix-auth", "aud": "felix-broker", "sub": "dev", "tid": "acme", "exp": int(time.time()) + 600,
        "perms": ["stream.publish:stream:acme/shop/*", "stream.subscribe:stream:acme/shop/*",
                  "cache.read:cache:acme/shop/*", "cache.write:cache:acme/shop/*"],
    }  # fmt: skip
    token = jwt.encode(claims, DEV_FAST_MASTER_SECRET, "HS256")
    url = server.felix.replace("dev-key", token)
    async with quintet.connect(f"{url}&namespace=shop") as bus:  # the tenant is the token's
        async with bus.subscribe(topic, durable="mine") as sub:
            assert (await bus.publish(topic, "hello")).durable
            assert (await sub.get()).text() == "hello"
        await bus.kv(topic).put("k", "v")
        assert await bus.kv(f"acme/shop/{topic}").get("k") == b"v"
        with pytest.raises(Forbidden):
            await bus.publish(f"acme/office/{topic}", "x")
        with pytest.raises(AuthError, match="tenant mismatch"):
            await bus.publish(f"other/shop/{topic}", "x", retry=True)
        with pytest.raises(QuintetError):
            await bus.subscribe(f"other/shop/{topic}").open()
        assert (await bus.publish(topic, "still here", retry=True)).durable


async def test_every_message_of_many_callers_is_confirmed(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        acks = await asyncio.gather(*(bus.publish(f"{topic}-{n % 4}", n) for n in range(400)))
        assert [ack.topic for ack in acks] == [f"{topic}-{n % 4}" for n in range(400)]
        assert all(ack.durable for ack in acks)


async def test_a_durable_subscription_goes_on(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus, bus.subscribe(topic, durable="books", start="earliest") as sub:
        await bus.publish_batch(topic, [f"{n}" for n in range(10)])
        assert await take(sub, 4) == [b"0", b"1", b"2", b"3"]
        await sub.flush()
    async with quintet.connect(server.felix) as bus:
        await bus.publish(topic, "10")
        async with bus.subscribe(topic, durable="books") as sub:
            assert await take(sub, 7) == [b"%d" % n for n in range(4, 11)]


async def test_a_group_shares(server: Server, topic: str) -> None:
    async with quintet.connect(server.fly) as fly:
        await fly.request("CREATE_TOPIC", topic=topic, partitions=4)
    async with quintet.connect(server.felix) as one, quintet.connect(server.felix) as two:
        got: list[bytes] = []

        async def read(sub: quintet.Subscription) -> None:
            async for batch in sub.batches(wait=0):
                got.extend(batch.values)
                await batch.ack()

        async with one.subscribe(topic, group="g") as first, two.subscribe(topic, group="g") as second:
            readers = [asyncio.create_task(read(sub)) for sub in (first, second)]
            async with quintet.connect(server.fly) as fly:
                for n in range(200):
                    await fly.publish(topic, b"%d" % n, key=f"{n}")
            async with asyncio.timeout(60):
                while len(set(got)) < 200:
                    await asyncio.sleep(0.01)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(first.flush(), second.flush())
    assert sorted(set(got), key=int) == [b"%d" % n for n in range(200)]


async def test_compression(server: Server, topic: str) -> None:
    async with quintet.connect(f"{server.felix}&compression=zstd") as bus, bus.subscribe(topic) as sub:
        values = [b"%d " % n * 500 for n in range(200)]
        await bus.publish_batch(topic, values)
        assert await take(sub, 200) == values


async def test_a_slow_reader_loses_nothing(server: Server, topic: str) -> None:
    values = [b"%d" % n + bytes(1_000) for n in range(20_000)]
    async with quintet.connect(server.felix) as bus, bus.subscribe(topic, qos=0, prefetch=100) as sub:
        await bus.publish_batch(topic, values)
        other = asyncio.create_task(bus.ping())  # a paused subscription stops only itself
        await other
        assert await take(sub, len(values), ack=False) == values


async def test_a_killed_broker_loses_nothing(own_server: Server, topic: str) -> None:
    async with (
        quintet.connect(own_server.felix, timeout=30) as bus,
        bus.subscribe(topic) as plain,
        bus.subscribe(topic, durable="d", start="earliest") as durable,
    ):
        await bus.publish_batch(topic, [f"{n}" for n in range(100)])
        assert await take(plain, 50) == [b"%d" % n for n in range(50)]
        assert await take(durable, 30) == [b"%d" % n for n in range(30)]
        await asyncio.gather(plain.flush(), durable.flush())
        own_server.kill()
        later = asyncio.create_task(bus.publish_batch(topic, [f"{n}" for n in range(100, 110)], retry=True))
        await asyncio.to_thread(own_server.start)
        await later
        for sub, first in ((plain, 50), (durable, 30)):
            seen: set[bytes] = set()
            while len(seen) < 110 - first:
                seen.update(await take(sub, 1))
            assert {b"%d" % n for n in range(first, 110)} <= seen
            async with asyncio.timeout(30):
                while not sub.reconnects:  # counted a moment after the first messages may have come
                    await asyncio.sleep(0.01)


async def test_a_broker_that_stops_says_so(own_server: Server) -> None:
    async with quintet.connect(own_server.felix, reconnect=False) as bus:
        own_server.stop()
        async with asyncio.timeout(60):
            while bus.connected:
                await asyncio.sleep(0.01)
        with pytest.raises(ConnectionLost):
            await bus.publish("t", b"x")


def test_on_the_command_line(server: Server, topic: str) -> None:
    def run(*arguments: str, status: int = 0) -> str:
        command = [sys.executable, "-m", "quintet", *arguments]
        environment = {**os.environ, "QUINTET_URL": server.felix}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    assert run("pub", topic, "one", "two", "three") == f"3 messages to {topic}: durable\n"
    begin = ("sub", topic, "--timeout", "20")
    assert run(*begin, "--durable", "me", "--from", "earliest", "--count", "2") == "one\ntwo\n"
    assert run(*begin, "--durable", "me", "--count", "1") == "three\n"
    found = json.loads(run(*begin, "--group", "g", "--from", "earliest", "--count", "1", "--format", "json"))
    assert (found["value"], found["partition"], found["offset"]) == ("one", 0, 0)
    assert "--filter is for FlyMQ" in run(*begin, "--filter", "x", status=2)


async def test_the_wrong_authority(server: Server, tmp_path: Path) -> None:
    from quintet.net.certificates import development_certificate

    _, _, other = development_certificate(tmp_path, ["127.0.0.1"])
    for url in (server.felix.partition("?")[0], f"{server.felix.partition('?')[0]}?ca={other}"):
        with pytest.raises(ConnectionLost) as raised:
            await quintet.connect(url).open()
        assert "?ca=" in raised.value.hint
