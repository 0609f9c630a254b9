"""The client that people install from PyPI (`felix-client`, bindings of the Rust one) against a real broker, unmodified.

It opens twenty connections and forty streams when it connects, speaks a version of the protocol that is newer than the one its
document describes, and shows whatever token it is given: in development the door lets it in.
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import quintet
from tests.client.server import Server, running

felix = pytest.importorskip("felix", reason="felix-client has no wheel for this machine")

SCOPE = ("t1", "default", "events")
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


def test_what_only_newer_brokers_have_it_is_told_in_words(client: Any) -> None:
    with pytest.raises(felix.FelixError, match="does not support"):
        client.cache_delete("t1", "default", "primary", "k")
    with pytest.raises(felix.FelixError):
        client.publish(*SCOPE, b"keyed", key=b"k")
    client.publish(*SCOPE, b"and it goes on")


async def test_other_doors_read_it(server: Server, client: Any) -> None:
    async with quintet.connect(server.url) as bus, bus.subscribe("t1/default/shared") as messages:
        await asyncio.to_thread(client.publish, "t1", "default", "shared", b"by the published client")
        async with asyncio.timeout(30):
            async for message in messages:
                assert message.value == b"by the published client"
                await message.ack()
                break
