"""Waiting for a broker: one that is not up yet, one that comes back, one that never comes."""

import asyncio
import socket
import threading

import pytest

import quintet
from quintet.client.core.errors import AuthError, ConnectionLost, Timeout
from quintet.model.errors import QuintetError
from tests.client.server import Server


def test_a_bus_waits_for_a_broker_that_is_not_up_yet(own_server: Server) -> None:
    own_server.kill()

    async def scenario() -> None:
        with pytest.raises(ConnectionLost, match="nobody listens"):
            await quintet.connect(own_server.url).open()
        starting = threading.Thread(target=own_server.start)
        starting.start()
        try:
            async with quintet.connect(own_server.url, wait=30) as bus:
                assert (await bus.publish("t", b"x")).durable
        finally:
            starting.join()
        bus = quintet.connect(own_server.fly)
        await bus.wait_ready(30)
        async with bus:
            await bus.publish("t", b"y")
            own_server.kill()
            with pytest.raises(Timeout, match="the broker's answer"):
                await bus.wait_ready(0.2)
            starting = threading.Thread(target=own_server.start)
            starting.start()
            try:
                await bus.wait_ready(timeout=30)
            finally:
                starting.join()
            assert bus.connected

    asyncio.run(scenario())


def test_waiting_ends_with_the_reason() -> None:
    with socket.socket() as bound:  # and not listening
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]

    async def scenario() -> None:
        with pytest.raises(Timeout, match=r"within 0.15 s: .*nobody listens.*is the broker running"):
            await quintet.connect(f"blipmq://:k@127.0.0.1:{port}").wait_ready(0.15)

    asyncio.run(scenario())


def test_what_waiting_cannot_mend_is_raised_at_once(server: Server) -> None:
    async def scenario() -> None:
        with pytest.raises(AuthError):
            await quintet.connect(f"blipmq://:wrong@127.0.0.1:{server.port}", wait=60).open()

    asyncio.run(scenario())


def test_an_error_says_what_to_do() -> None:
    error = QuintetError("it broke", hint="mend it")
    assert (str(error), error.message, str(QuintetError("it broke"))) == ("it broke (mend it)", "it broke", "it broke")
    assert (
        str(ConnectionLost("gone", hint="come back")) == "gone (come back)"
    )  # whose base, OSError, has a text of its own


def test_the_blocking_twin_waits_too(server: Server) -> None:
    with quintet.sync.connect(server.url, wait=5) as bus:
        bus.wait_ready(5)
