"""A subscription that could not be opened: the next call tries again, and no iteration waits for ever. Every door."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

import quintet
from quintet.client.core import errors
from quintet.client.core.subscription import Subscription
from quintet.client.links import peerbus
from quintet.client.links.fast import Queues
from tests.client.server import Server


async def test_a_failed_open_is_told_and_can_be_repeated(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peerbus.SECRET_VARIABLE, "0123456789abcdef0123456789abcdef")
    server = own_server
    doors: list[tuple[str, str, dict[str, Any]]] = [
        (server.url, "t", {}),
        (server.fly, "t", {"group": "g"}),
        (fast := server.fast, "t", {"qos": 0}),
        (server.felix, "t", {}),
        (server.peer("reader"), "peerbus/reader", {}),
        (server.peer("liner", lines=True), "peerbus/liner", {}),
    ]
    async with AsyncExitStack() as stack:
        subs: list[Subscription] = []
        for url, topic, options in doors:
            bus = await stack.enter_async_context(quintet.connect(url, timeout=30))
            if url == server.fly:
                await bus.request("CREATE_TOPIC", topic="t", partitions=1)
            if url == fast:
                await Queues(bus).create("t")
            subs.append(bus.subscribe(topic, timeout=1, **options))
        server.kill()
        await asyncio.sleep(0.3)  # until the connections that are shared with publishing know of it

        async def told(sub: Subscription) -> None:
            with pytest.raises(errors.QuintetError):
                await sub.open()
            with pytest.raises(errors.QuintetError) as caught:
                await sub.get(timeout=30)
            assert "waiting for a message" not in str(caught.value)

        await asyncio.gather(*(told(sub) for sub in subs))
        server.start()
        for sub in subs:
            async with asyncio.timeout(60):
                while True:
                    try:
                        await sub.open()
                        break
                    except errors.QuintetError:
                        await asyncio.sleep(0.1)
            assert sub.connected
            await sub.close()
