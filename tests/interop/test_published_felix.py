"""The client that people install from PyPI (`felix-client`, bindings of the Rust one) against a real broker, unmodified.

It opens twenty connections and forty streams when it connects, speaks a version of the protocol that is newer than the one its
document describes, and shows whatever token it is given: in development the door lets it in.
"""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.model.keys import fnv1a
from tests.client.server import Server, running

felix = pytest.importorskip("felix", reason="felix-client has no wheel for this machine")

SCOPE = ("t1", "default", "events")
PARTITIONS = 4
KEYS = [b"a", b"b", b"c", b"d", b"e"]
LATER_S = 6.0  # after the time in which strangers must say who they are


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    certificate = server.felix.partition("ca=")[2]
    address = f"127.0.0.1:{server.ports['felix']}"
    with felix.Client(address, tenant_id="t1", token="demo-token", ca_file=certificate) as found:
        yield found


async def keyed(server: Server, client: Any, stream: str) -> list[bytes]:
    """Twenty messages with keys in a stream of several partitions, some of them not acknowledged."""
    async with quintet.connect(server.fly) as bus:
        await bus.request("CREATE_TOPIC", topic=f"t1/default/{stream}", partitions=PARTITIONS)
    values = [b"%d" % number for number in range(20)]
    for number, value in enumerate(values):
        ack = "none" if number % 2 else "per_message"
        await asyncio.to_thread(client.publish, "t1", "default", stream, value, key=KEYS[number % 5], ack=ack)
    return sorted(values)


def read(client: Any, count: int, stream: str, **start: object) -> list[tuple[bytes, int]]:
    found = []
    with client.subscribe(*SCOPE[:2], stream, **start) as events:
        for event in events:
            found.append((bytes(event.payload), event.offset))
            if len(found) == count:
                break
    return found


def test_what_it_publishes_it_reads_back_from_anywhere(client: Any) -> None:
    for number in range(5):
        client.publish(*SCOPE, b"%d" % number)
    client.publish(*SCOPE, b"not acknowledged", ack="none")
    every = [(b"%d" % number, number) for number in range(5)] + [(b"not acknowledged", 5)]
    assert read(client, 6, "events", start="earliest") == every
    assert read(client, 3, "events", start=2) == every[2:5]


def test_connections_it_keeps_for_later_are_there_when_it_subscribes(client: Any) -> None:
    time.sleep(LATER_S)
    found: list[tuple[bytes, int]] = []
    reader = threading.Thread(target=lambda: found.extend(read(client, 1, "later")), daemon=True)
    reader.start()
    deadline = time.monotonic() + 30
    while not found and time.monotonic() < deadline:
        client.publish(*SCOPE[:2], "later", b"live")
        time.sleep(0.05)
    reader.join(30)
    assert found[0][0] == b"live"


def test_the_cache(client: Any) -> None:
    client.cache_put("t1", "default", "primary", "k", b"v")
    assert client.cache_get("t1", "default", "primary", "k") == b"v"
    assert client.cache_get("t1", "default", "primary", "nothing") is None


def test_a_refused_publish_without_ack_fails_no_other(client: Any) -> None:
    """It read the refusal as the answer to the next one: 11 of 60 good publishes were told failed, and stored."""
    for number in range(60):
        client.publish("t1", "a/b", "refused", b"x", ack="none")
        assert client.publish(*SCOPE[:2], "good", b"%d" % number) == number
    assert [value for value, _ in read(client, 60, "good", start="earliest")] == [b"%d" % n for n in range(60)]


async def test_keys_choose_the_partition_and_other_doors_see_them(server: Server, client: Any) -> None:
    values = await keyed(server, client, "keyed")
    found: dict[bytes, set[int]] = {}
    async with (
        quintet.connect(server.fly) as bus,
        asyncio.timeout(30),
        bus.subscribe("t1/default/keyed", group="g", start="earliest") as messages,
    ):
        for _ in values:
            message = await messages.get()
            assert message.key == KEYS[int(message.value) % 5] and message.partition is not None
            found.setdefault(message.key, set()).add(message.partition)
            await message.ack()
    assert {key: {fnv1a(key) % PARTITIONS} for key in KEYS} == found
    assert sorted(value for value, _ in read(client, 20, "keyed", start="earliest")) == values


def test_what_newer_brokers_have(client: Any) -> None:
    client.cache_put("t1", "default", "more", "k", b"v")
    assert [client.cache_delete("t1", "default", "more", "k") for _ in range(2)] == [b"v", None]
    assert client.counter_get("t1", "default", "more", "n") is None
    assert [client.counter_add("t1", "default", "more", "n", delta) for delta in (5, -2)] == [5, 3]
    client.cache_put("t1", "default", "more", "w", bytes(2 << 20))
    with client.watch_cache("t1", "default", "more", felix.CacheWatchFilter.prefix(""), retained=True) as watch:
        assert (watch.retained_count, watch.resnapshot) == (1, False)
        assert watch.recv(timeout=30).value == bytes(2 << 20)
        client.cache_delete("t1", "default", "more", "w")
        change = watch.recv(timeout=30)
        assert (change.key, change.value) == ("w", None)
    with client.watch_cache("t1", "default", "more", felix.CacheWatchFilter.key("w"), start=change.offset) as watch:
        assert watch.resnapshot
    with pytest.raises(felix.FelixError, match="does not serve dead letters"):
        client.group_dead_letters("t1", "default", "jobs", 0, "workers")
    client.publish(*SCOPE[:2], "after it", b"and it goes on")


def test_a_group_of_its_own_kind(client: Any) -> None:
    where = ("t1", "default", "jobs", 0, "workers")
    for number in range(3):
        client.publish(*where[:3], b"job %d" % number)
    first, second = client.group_poll(*where, max_records=2, wait=30.0)
    client.group_ack(*where, first.offset)
    client.group_nack(*where, second)
    again = client.group_poll(*where, wait=30.0)
    assert [(record.payload, record.attempts) for record in again] == [(b"job 1", 2), (b"job 2", 1)]
    for record in again:
        client.group_ack(*where, record.offset)
    assert client.group_poll(*where, wait=0.0) == []


async def test_all_shards_of_a_stream_are_read_once(server: Server, client: Any) -> None:
    values = await keyed(server, client, "sharded")
    assert client.stream_shards("t1", "default", "sharded") == 1
    with client.subscribe_sharded("t1", "default", "sharded", start="earliest") as events:
        began = time.monotonic()
        found: list[bytes] = []
        while len(found) < len(values):
            event = events.next_event(timeout=30)
            assert event is not None, f"{len(found)} events, then an end or nothing in {time.monotonic() - began:.1f} s"
            found.append(event.event.payload)
        assert sorted(found) == values
        assert events.next_event(timeout=0.3) is None


def test_the_client_before_it(server: Server, tmp_path: Path) -> None:
    """0.5.0 sends keys as JSON, and took a refusal for the answer to the next publish every time."""
    if not os.environ.get("QUINTET_TEST_LONG"):
        pytest.skip("it is fetched from the package index; QUINTET_TEST_LONG=1 does it")
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(tmp_path),
        "felix-client==0.5.0",
    ]
    subprocess.run(fetch, check=True, timeout=100)
    script = Path(__file__).with_name("published_felix_0_5.py")
    address, certificate = f"127.0.0.1:{server.ports['felix']}", server.felix.partition("ca=")[2]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, str(script), address, certificate], check=True, timeout=100, env=environment)


async def test_other_doors_read_it(server: Server, client: Any) -> None:
    async with quintet.connect(server.url) as bus, bus.subscribe("t1/default/shared") as messages:
        await asyncio.to_thread(client.publish, "t1", "default", "shared", b"by the published client")
        async with asyncio.timeout(30):
            async for message in messages:
                assert message.value == b"by the published client"
                await message.ack()
                break
