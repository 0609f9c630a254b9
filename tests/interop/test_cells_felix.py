"""Felix over a broker of two processes: the door is cell 0's, its streams reach topics of both. Real sockets."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

import quintet
from quintet.client.core.errors import Forbidden, QuintetError
from tests.client.server import Server, running_cells
from tests.crash.test_cell_processes import children
from tests.interop.test_cells import topic_of

CELLS = 2
MESSAGES = 200
WAIT_S = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_cells(CELLS) as found:
        yield found


async def read(subscription: quintet.Subscription, count: int, *, acknowledge: bool = True) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(WAIT_S):
        async for message in subscription:
            found.append(message.value)
            if acknowledge:
                await message.ack()
            if len(found) == count:
                break
    return found


async def test_one_connection_has_subscriptions_in_both_cells(server: Server) -> None:
    """Twice in each, acknowledged on the connection: ids are not mixed up, and order is kept."""
    topics = [topic_of(cell) for cell in (0, 1, 0, 1)]
    values = [str(number).encode() for number in range(MESSAGES)]
    async with quintet.connect(server.felix) as bus:
        subscriptions = [bus.subscribe(topic, start="earliest", durable="d") for topic in topics]
        for subscription in subscriptions:
            await subscription.__aenter__()
        for value in values:
            for topic in topics:
                await bus.publish(topic, topic.encode() + b" " + value)
        found = await asyncio.gather(*(read(each, MESSAGES) for each in subscriptions))
        for subscription in subscriptions:
            await subscription.__aexit__(None, None, None)
    for topic, got in zip(topics, found, strict=True):
        assert got == [topic.encode() + b" " + value for value in values]
    async with quintet.connect(server.felix) as bus:
        for topic in topics:
            await bus.publish(topic, b"last")
            async with bus.subscribe(topic, start="earliest", durable="d") as subscription:
                assert await read(subscription, 1) == [b"last"], "the others were acknowledged"


@pytest.mark.parametrize("cell", range(CELLS))
async def test_what_is_not_acknowledged_comes_again(server: Server, cell: int) -> None:
    topic = topic_of(cell)
    async with quintet.connect(server.felix) as bus, bus.subscribe(topic, group="g", start="earliest") as one:
        await bus.publish(topic, b"a")
        async with asyncio.timeout(WAIT_S):
            message = await anext(aiter(one))
            await message.nack()
            again = await anext(aiter(one))
        assert (message.value, again.value) == (b"a", b"a")
        await again.ack()


@pytest.mark.parametrize("cell", range(CELLS))
async def test_a_subscriber_that_reads_late_misses_nothing(server: Server, cell: int) -> None:
    """More than all windows hold."""
    topic, value = topic_of(cell), bytes(200_000)
    async with (
        quintet.connect(server.felix) as bus,
        quintet.connect(server.url) as out,
        bus.subscribe(topic, start="earliest", prefetch=10_000) as subscription,
    ):
        for number in range(100):
            await out.publish(topic, number.to_bytes(4, "big") + value)
        found = await read(subscription, 100)
    assert [int.from_bytes(each[:4], "big") for each in found] == list(range(100))


async def test_patterns_of_felix_have_topics_of_both_cells(server: Server) -> None:
    topics = [topic_of(0), topic_of(1)]
    async with quintet.connect(server.felix) as bus:
        for topic in topics:
            await bus.publish(topic, b"x")
        async with bus.subscribe("cells.*", start="earliest") as subscription:
            wanted = {topic.encode() for topic in topics}
            for topic in topics:
                await bus.publish(topic, topic.encode())
            async with asyncio.timeout(WAIT_S):
                async for message in subscription:
                    await message.ack()
                    wanted.discard(message.value)
                    if not wanted:
                        break


async def test_caches_are_where_they_were(server: Server) -> None:
    async with quintet.connect(server.felix) as bus:
        await bus.publish(topic_of(1), b"x")
        cache = bus.kv("c")
        await cache.put("k", b"v")
        await bus.publish(topic_of(1), b"x")
        assert await cache.get("k") == b"v"


@pytest.mark.parametrize("cell", range(CELLS))
async def test_a_right_that_is_revoked_ends_a_subscription_in_its_cell(server: Server, cell: int) -> None:
    topic = topic_of(cell)
    felix = server.felix.replace(":dev-key@", ":KEY@")
    async with quintet.connect(server.fly) as admin:
        name = f"sue{cell}"
        await admin.request(
            "USER_CREATE",
            user=name,
            password="long enough",
            old_password="",
            roles=["producer", "consumer"],
            enabled=True,
        )
        key = (await admin.request("KEY_CREATE", user=name, name="k", expires_s=0))["secret"]
        async with quintet.connect(felix.replace("KEY", key)) as bus:
            await bus.publish(topic, b"a")
            async with bus.subscribe(topic, start="earliest") as subscription:
                assert await read(subscription, 1) == [b"a"]
                await admin.request("ACL_SET", topic=topic, public=False, users=["admin"], roles=[])
                with pytest.raises(QuintetError):
                    await bus.publish(topic, b"never")
                await admin.publish(topic, b"b")
                with pytest.raises((QuintetError, StopAsyncIteration)):
                    async with asyncio.timeout(WAIT_S):
                        await anext(aiter(subscription))
        async with quintet.connect(felix.replace("KEY", key)) as bus:
            with pytest.raises(Forbidden):
                async with bus.subscribe(topic, start="earliest"):
                    pass
        assert [message.value for message in await admin.fetch(topic, offset=0)] == [b"a", b"b"]


async def test_a_connection_goes_on_when_its_other_cell_was_killed(server: Server) -> None:
    topic, values = topic_of(1), [str(number).encode() for number in range(20)]
    async with (
        quintet.connect(server.felix, wait=WAIT_S) as bus,
        bus.subscribe(topic, start="earliest", durable="d") as subscription,
    ):
        got: list[bytes] = []
        for value in values:
            if value == b"10":
                os.kill(children(server)[1], signal.SIGKILL)
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        await bus.publish(topic, value)
                        break
                    except QuintetError:
                        await asyncio.sleep(0.1)
        async with asyncio.timeout(WAIT_S):
            async for message in subscription:
                await message.ack()
                got.append(message.value)
                if got[-1] == values[-1]:
                    break
    assert list(dict.fromkeys(got)) == values, "none is lost; one may come twice"
