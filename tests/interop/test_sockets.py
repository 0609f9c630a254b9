"""One topic, every door: what each door publishes, every door reads, in one order and with the same content. Real sockets.

The topic is a mailbox of peerbus, because that door reads nothing else. It has one partition, so there is one order, and all
readers must have seen that one. `test_line.py` shows the same in one process.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

import quintet
from quintet.client.links.fast import Queues
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.config import DEV_PEERBUS_SECRET
from tests.client.server import Server, running
from tests.flight.client import Client

TOPIC = "peerbus/bob"
MESSAGES = 25  # by each door
DOORS = ("blipmq", "flymq", "fast", "peerbus", "felix", "flight")
WAIT_S = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has it, too: what other doors publish it signs for the peers."""
    monkeypatch.setenv(SECRET_VARIABLE, DEV_PEERBUS_SECRET)


def url_of(server: Server, door: str, name: str = "alice") -> str:
    urls = {
        "blipmq": server.url,
        "flymq": server.fly,
        "fast": server.fast,
        "felix": server.felix,
        "peerbus": f"peerbus://:dev-token@127.0.0.1:{server.ports['peerbus']}?name={name}",
    }
    return urls[door]


def payload(door: str, number: int) -> dict[str, object]:
    return {"by": door, "n": number, "text": "grün < & \u2028"}


# -- writing ----------------------------------------------------------------------------------------------------------


async def write(server: Server, door: str) -> None:
    if door == "flight":
        await asyncio.to_thread(write_flight, server)
        return
    async with quintet.connect(url_of(server, door)) as bus:
        for number in range(MESSAGES):
            keyed = {"key": f"k{number}"} if door == "flymq" else {}
            await bus.publish(TOPIC, payload(door, number), **keyed)  # type: ignore[arg-type]


def write_flight(server: Server) -> None:
    """As any Arrow client would, with rows of key and value."""
    values = [json.dumps(payload("flight", number)).encode() for number in range(MESSAGES)]
    keys = [f"k{number}".encode() for number in range(MESSAGES)]
    with Client(server.ports["flight"], "admin", "admin") as client:
        client.put(TOPIC, pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}))


# -- reading ----------------------------------------------------------------------------------------------------------


def opened(door: str, value: bytes) -> dict[str, object]:
    """What was published, whatever wraps it: other doors see a peer's envelope as it was signed."""
    found = json.loads(value)
    return dict(found["body"]) if "protocol_version" in found else dict(found)


async def reading(server: Server, door: str, stack: AsyncExitStack) -> Callable[[], AsyncIterator[bytes]]:
    """A reader that is subscribed when this returns."""
    bus = await stack.enter_async_context(quintet.connect(url_of(server, door, "bob")))
    options: dict[str, Any] = {"group": "interop", "start": "earliest"} if door == "flymq" else {}
    subscription = await stack.enter_async_context(bus.subscribe(TOPIC, **options))

    async def values() -> AsyncIterator[bytes]:
        async for message in subscription:
            yield message.value
            await message.ack()

    return values


async def take(values: Callable[[], AsyncIterator[bytes]], count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        async for value in values():
            found.append(value)
            if len(found) == count:
                break
    return found


def read_flight(server: Server) -> list[bytes]:
    with Client(server.ports["flight"], "admin", "admin") as client:
        return [value or b"" for value in client.values(TOPIC)]


async def test_what_goes_in_by_one_door_comes_out_by_all(server: Server) -> None:
    async with AsyncExitStack() as stack:
        async with quintet.connect(url_of(server, "fast")) as bus:
            await Queues(bus).create(TOPIC, durable=True)
        readers = {door: await reading(server, door, stack) for door in DOORS if door != "flight"}
        for door in DOORS:
            await write(server, door)
        total = MESSAGES * len(DOORS)
        seen = {door: await take(values, total) for door, values in readers.items()}
    seen["flight"] = await asyncio.to_thread(read_flight, server)
    expected = [payload(door, number) for door in DOORS for number in range(MESSAGES)]
    for door, values in seen.items():
        assert [opened(door, value) for value in values] == expected, f"read through {door}"
