"""The cache as a mapping, against a real broker: asynchronous, blocking, and on the command line."""

import asyncio
import json
import os
import subprocess
import sys

import pytest

import quintet
from quintet.client.core.errors import BadRequest, TooLarge, Unsupported, VersionConflict
from quintet.client.kv import MANY_KEYS_MAX, Change
from tests.client.server import Server, running


async def test_values(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus, bus.kv(topic) as cache:
        assert await cache.get("k") is None
        assert await cache.entry("k") is None
        first = await cache.put("k", b"\0\xff")
        assert await cache.entry("k") == (b"\0\xff", first)
        second = await cache.put("k", {"a": 1})
        assert second > first
        assert await cache.get("k") == b'{"a":1}'
        await cache.put("", "the empty key")
        assert await cache.get("") == b"the empty key"
        assert await cache.delete("k") is True
        assert await cache.delete("k") is False
        assert await cache.get("k") is None
        large = bytes(range(256)) * 4_000
        await cache.put("large", large)
        assert await cache.get("large") == large
        assert await bus.kv(f"default/default/{topic}").get("large") == large
        assert await bus.kv(f"other/default/{topic}").get("large") is None


async def test_versions(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        cache = bus.kv(topic)
        version = await cache.put("k", "one", if_version=0)
        with pytest.raises(VersionConflict) as raised:
            await cache.put("k", "two", if_version=0)
        assert (raised.value.version, raised.value.value) == (version, b"one")
        assert raised.value.code == "E1350"
        newer = await cache.put("k", "two", if_version=version)
        with pytest.raises(VersionConflict):
            await cache.delete("k", if_version=version)
        assert await cache.delete("k", if_version=newer)
        with pytest.raises(VersionConflict, match="not there") as raised:
            await cache.put("k", "three", if_version=newer)
        assert (raised.value.version, raised.value.value) == (0, None)


async def test_ages(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        cache = bus.kv(topic)
        await cache.put("soon gone", "x", ttl=0.05)
        await cache.put("stays", "x", ttl=3600)
        async with asyncio.timeout(30):
            while await cache.get("soon gone") is not None:
                await asyncio.sleep(0.01)
        assert await cache.get("stays") == b"x"
        with pytest.raises(ValueError, match="ttl"):
            await cache.put("k", "x", ttl=0)


async def test_numbers(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        cache = bus.kv(topic)
        assert await cache.incr("n") == 1
        assert await cache.incr("n", -3) == -2
        assert await cache.incr("n", 10, ttl=60) == 8
        assert await cache.get("n") == b"8"
        sums = await asyncio.gather(*(cache.incr("many") for _ in range(200)))
        assert sorted(sums) == list(range(1, 201))
        assert sums == sorted(sums)  # one key, one stream: in the order they were asked
        await cache.put("text", "no number")
        with pytest.raises(BadRequest):
            await cache.incr("text")


async def test_many(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        cache = bus.kv(topic)
        keys = [f"key-{n}" for n in range(MANY_KEYS_MAX + 10)]
        await asyncio.gather(*(cache.put(key, key) for key in keys))
        found = await cache.get_many([*keys, "missing", keys[0]])
        assert found == {key: key.encode() for key in keys}
        assert await cache.get_many([]) == {}
        big = bytes(1_000_000)
        names = [f"big-{n}" for n in range(18)]
        await asyncio.gather(*(cache.put(name, big) for name in names))
        assert await cache.get_many(names) == dict.fromkeys(names, big)  # more than fits into one answer
        with pytest.raises(TooLarge):
            await cache.put("k", bytes(2_200_000))


async def test_watch(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus, quintet.connect(server.felix) as other:
        cache = bus.kv(topic)
        writer = other.kv(topic)
        await writer.put("user/0", "before")
        async with (
            cache.watch(prefix="user/") as users,
            cache.watch("user/2") as one,
            cache.watch() as everything,
        ):
            versions = [
                await writer.put("user/1", "a"),
                await writer.put("item/1", "b"),
                await writer.put("user/2", "c"),
            ]
            await writer.delete("user/1")
            assert await one.get(timeout=30) == Change("user/2", b"c", versions[2])
            seen: dict[str, bytes | None] = {}
            async with asyncio.timeout(30):
                async for change in users:
                    seen[change.key] = change.value
                    if seen == {"user/1": None, "user/2": b"c"}:
                        break
            told: dict[str, bytes | None] = {}
            while told.keys() != {"user/1", "user/2", "item/1"} or told["user/1"] is not None:
                change = await everything.get(timeout=30)
                told[change.key] = change.value
            assert told == {"user/1": None, "user/2": b"c", "item/1": b"b"}
        with pytest.raises(ValueError, match="key= or prefix="):
            cache.watch("a", prefix="b")
        unused = cache.watch("a")
        await unused.close()
        assert [change async for change in users] == []


async def test_other_doors_have_none(server: Server) -> None:
    async with quintet.connect(server.url) as bus:
        with pytest.raises(Unsupported) as raised:
            bus.kv("c")
        assert "Felix" in raised.value.hint


def test_blocking(server: Server, topic: str) -> None:
    with quintet.sync.connect(server.felix) as bus:
        cache = bus.kv(topic)
        cache["k"] = b"v"
        assert cache["k"] == b"v"
        assert "k" in cache and "other" not in cache and 7 not in cache
        del cache["k"]
        with pytest.raises(KeyError):
            cache["k"]
        with pytest.raises(KeyError):
            del cache["k"]
        with pytest.raises(TypeError):
            list(cache)  # type: ignore[call-overload]
        assert cache.incr("n", 5) == 5
        with cache.watch("k") as changes:
            version = cache.put("k", "new", ttl=60)
            assert next(iter(changes)) == Change("k", b"new", version)
        assert cache.get_many(["k", "n"]) == {"k": b"new", "n": b"5"}


async def test_a_killed_broker_has_every_value_and_watchers_go_on(own_server: Server) -> None:
    async with quintet.connect(own_server.felix, timeout=30) as bus:
        cache = bus.kv("c")
        version = await cache.put("k", "v")
        await cache.incr("n", 7)
        async with cache.watch() as changes:
            newer = await cache.put("k", "w")
            assert await changes.get() == Change("k", b"w", newer)
            own_server.kill()
            asked = asyncio.create_task(cache.get_many(["k", "n"]))
            await asyncio.to_thread(own_server.start)
            assert await asked == {"k": b"w", "n": b"7"}
            newest = await cache.put("k", "x")
            assert newest > newer > version
            assert await changes.get() == Change("k", b"x", newest)


def quintet_kv(server: Server, *arguments: str, status: int = 0) -> str:
    command = [sys.executable, "-m", "quintet", "kv", *arguments]
    environment = {**os.environ, "QUINTET_URL": server.felix}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def test_command(server: Server, topic: str) -> None:
    cache = ("--cache", topic)
    version = int(quintet_kv(server, "put", "k", "value", *cache))
    assert quintet_kv(server, "get", "k", *cache) == "value"
    assert json.loads(quintet_kv(server, "get", "k", "--json", *cache)) == {
        "key": "k", "version": version, "value": "value",
    }  # fmt: skip
    assert "is at version" in quintet_kv(server, "put", "k", "x", "--if-version", "0", *cache, status=1)
    assert quintet_kv(server, "incr", "n", "5", "--ttl", "1h", *cache) == "5\n"
    assert quintet_kv(server, "del", "k", *cache) == "k is gone\n"
    assert "is not there" in quintet_kv(server, "get", "k", *cache, status=1)
    assert "0 of 1 changes" in quintet_kv(server, "watch", "--count", "1", "--timeout", "0.2", *cache, status=1)
    assert "--file" in quintet_kv(server, "put", "k", *cache, status=2)


def test_command_over_another_door(server: Server) -> None:
    assert "needs Felix" in quintet_kv(server, "get", "k", "--url", server.url, status=2)


def test_pure() -> None:
    """Both sides on the twins."""
    with running(QUINTET_PURE="1") as server:
        command = (
            f"import quintet\n"
            f"with quintet.sync.connect({server.felix!r}) as bus:\n"
            f"    with bus.subscribe('t') as sub:\n"
            f"        assert bus.publish('t', b'hello').durable\n"
            f"        msg = sub.get()\n"
            f"        msg.ack()\n"
            f"        assert msg.value == b'hello'\n"
            f"    cache = bus.kv('c')\n"
            f"    cache['k'] = b'v'\n"
            f"    assert cache['k'] == b'v'\n"
        )
        environment = {**os.environ, "QUINTET_PURE": "1"}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", command],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
