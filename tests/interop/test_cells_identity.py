"""Users, keys, access rules and quotas of a broker of two processes: changed on any connection, in force in both. Real sockets.

Which process accepts a connection is the system's choice, so there are several connections, and topics of both cells.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import quintet
from quintet.client.core.errors import AuthError, Forbidden, QuintetError
from tests.client.server import Server, running_cells
from tests.crash.test_cell_processes import children
from tests.interop.test_cells import topic_of

CELLS = 2
CONNECTIONS = 6
ROUNDS = 5
WAIT_S = 60.0
PASSWORD = "long enough"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_cells(CELLS) as found:
        yield found


def url_of(server: Server, user: str, password: str = PASSWORD) -> str:
    return f"flymq://{user}:{password}@127.0.0.1:{server.ports['flymq']}"


async def make_user(bus: quintet.Bus, name: str, *roles: str) -> None:
    fields: dict[str, Any] = {
        "user": name,
        "password": PASSWORD,
        "old_password": "",
        "roles": list(roles),
        "enabled": True,
    }
    await bus.request("USER_CREATE", **fields)


async def may(bus: quintet.Bus, topic: str) -> bool:
    try:
        await bus.publish(topic, b"x")
    except Forbidden:
        return False
    return True


async def test_a_rule_counts_everywhere_when_it_is_answered(server: Server) -> None:
    topics = [topic_of(0), topic_of(1)]
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(quintet.connect(server.fly))
        await make_user(admin, "ann", "producer")
        users = [await stack.enter_async_context(quintet.connect(url_of(server, "ann"))) for _ in range(CONNECTIONS)]
        for round in range(ROUNDS):
            for public in (True, False):
                for topic in topics:
                    await admin.request("ACL_SET", topic=topic, public=public, users=[], roles=[])
                    asked = [may(bus, topic) for bus in users]
                    assert await asyncio.gather(*asked) == [public] * CONNECTIONS, (round, topic)
        for topic in topics:
            await admin.request("ACL_DELETE", topic=topic)
        assert all([await may(bus, topic) for bus in users for topic in topics])


async def test_a_disabled_user_is_out_of_every_process(server: Server) -> None:
    topics = [topic_of(0), topic_of(1)]
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(quintet.connect(server.fly))
        await make_user(admin, "bob", "producer")
        users = [
            await stack.enter_async_context(quintet.connect(url_of(server, "bob"), reconnect=False))
            for _ in range(CONNECTIONS)
        ]
        for bus in users:
            for topic in topics:
                await bus.publish(topic, b"x")
        fields: dict[str, Any] = {
            "user": "bob",
            "password": "",
            "old_password": "",
            "roles": ["producer"],
            "enabled": False,
        }
        await admin.request("USER_UPDATE", **fields)
        for bus in users:
            with pytest.raises(QuintetError):
                await bus.publish(topics[0], b"never")
        for _ in range(CONNECTIONS):
            with pytest.raises(AuthError):
                async with quintet.connect(url_of(server, "bob"), reconnect=False) as bus:
                    await bus.request("WHOAMI")
        for topic in topics:
            assert len(await admin.fetch(topic, offset=0, max=1_000)) == CONNECTIONS


async def test_a_key_made_anywhere_opens_every_process(server: Server) -> None:
    topics = [topic_of(0), topic_of(1)]
    async with quintet.connect(server.fly) as admin:
        made = await admin.request("KEY_CREATE", user="admin", name="n", expires_s=0)
        url = f"blipmq://:{made['secret']}@127.0.0.1:{server.port}"
        for _ in range(CONNECTIONS):
            async with quintet.connect(url) as bus:
                for topic in topics:
                    await bus.publish(topic, b"x")
        await admin.request("KEY_REMOVE", user="admin", id=made["id"])
        for _ in range(CONNECTIONS):
            with pytest.raises(AuthError):
                async with quintet.connect(url, reconnect=False) as bus:
                    await bus.publish(topics[0], b"never")
        for topic in topics:
            assert len(await admin.fetch(topic, offset=0, max=1_000)) == CONNECTIONS


async def test_quotas_are_the_same_in_every_cell_and_use_is_summed(server: Server) -> None:
    async with quintet.connect(server.fly) as admin:
        await make_user(admin, "quo", "producer", "consumer")
        await admin.request("QUOTA_SET", kind="user", name="quo", changes=[{"quota": "topics_max", "value": 2}])
        async with quintet.connect(url_of(server, "quo")) as bus:
            for cell in (0, 0, 1, 1):
                await bus.publish(topic_of(cell), b"x")
            for cell in range(CELLS):
                with pytest.raises(QuintetError, match="quota topics_max"):
                    await bus.publish(topic_of(cell), b"x")
            rows = (await admin.request("QUOTA_LIST"))["quotas"]
        (row,) = (row for row in rows if row["name"] == "quo")
        assert (row["topics_max"], row["topics"]) == (2, 4), "each cell counts by itself"


async def test_who_may_not_change_it_is_refused_in_cell_0(server: Server) -> None:
    async with quintet.connect(server.fly) as admin:
        await make_user(admin, "eve", "producer")
    for _ in range(CONNECTIONS):
        async with quintet.connect(url_of(server, "eve")) as bus:
            with pytest.raises(Forbidden):
                await make_user(bus, "mallory", "admin")


async def test_a_password_is_changed_on_any_connection(server: Server) -> None:
    async with quintet.connect(server.fly) as admin:
        await make_user(admin, "pat", "producer")
        fields: dict[str, Any] = {
            "user": "pat",
            "password": "another one",
            "old_password": "",
            "roles": [],
            "enabled": True,
        }
        await admin.request("PASSWORD_CHANGE", **fields)
    for _ in range(CONNECTIONS):
        async with quintet.connect(url_of(server, "pat", "another%20one")) as bus:
            await bus.publish(topic_of(0), b"x")
        with pytest.raises(AuthError):
            async with quintet.connect(url_of(server, "pat"), reconnect=False) as bus:
                await bus.request("WHOAMI")


@pytest.mark.parametrize("cell", range(CELLS))
async def test_a_cell_that_starts_again_knows_what_was_changed(server: Server, cell: int) -> None:
    name, topic = f"kim{cell}", topic_of(cell)
    async with quintet.connect(server.fly) as admin:
        await make_user(admin, name, "producer")
        await admin.request("ACL_SET", topic=topic, public=False, users=["admin"], roles=[])
    before = children(server)
    os.kill(before[cell], signal.SIGKILL)
    deadline = time.monotonic() + WAIT_S
    while len(children(server)) < CELLS or children(server) == before:
        assert time.monotonic() < deadline, "the cell did not come back"
        await asyncio.sleep(0.05)
    for _ in range(CONNECTIONS):
        async with quintet.connect(url_of(server, name), wait=WAIT_S) as bus:
            assert not await may(bus, topic)
            assert await may(bus, f"{topic}-other")
    async with quintet.connect(server.fly, wait=WAIT_S) as admin:
        await admin.request("ACL_DELETE", topic=topic)
    async with quintet.connect(url_of(server, name), wait=WAIT_S) as bus:
        assert await may(bus, topic)
