"""Publishing to a real broker: confirmations, batches, what is refused before it is sent."""

import asyncio
import socket
from unittest.mock import patch

import pytest

import quintet
from quintet import kernel
from quintet.client.core.base import SocketConnection
from quintet.client.core.errors import (
    AuthError,
    BadName,
    Closed,
    ConnectionLost,
    ProtocolError,
    QuintetError,
    Timeout,
    TooLarge,
    Unsupported,
)
from tests.client.server import Server


async def test_values_of_every_kind(url: str, topic: str) -> None:
    async with quintet.connect(url, name="test") as bus, bus.subscribe(topic) as sub:
        for value in (b"bytes", "t\u00e9xt", {"json": [1, None]}, bytearray(b"array"), memoryview(b"view"), 7, b""):
            ack = await bus.publish(topic, value)
            assert ack == quintet.Ack(topic, 1, True)
        got = [(await sub.get()).value for _ in range(7)]
        assert got == [b"bytes", "t\u00e9xt".encode(), b'{"json":[1,null]}', b"array", b"view", b"7", b""]


async def test_qos_0_is_not_called_durable(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        assert not (await bus.publish(topic, b"x", qos=0)).durable
        message = await sub.get()
        assert (message.value, message.qos, message.redelivered) == (b"x", 0, None)
        await message.ack()


async def test_a_batch_is_one_kernel_call_and_one_write(url: str, topic: str) -> None:
    """Real functions, counted."""
    values = [b"%0128d" % i for i in range(10_000)]
    async with quintet.connect(url) as bus:
        with (
            patch.object(kernel, "blip_publish", wraps=kernel.blip_publish) as encode,
            patch.object(SocketConnection, "write", autospec=True, side_effect=SocketConnection.write) as write,
        ):
            ack = await bus.publish_batch(topic, values)
        assert (encode.call_count, write.call_count) == (1, 1)
        assert (ack.count, ack.durable) == (10_000, True)


async def test_concurrent_publishes_share_a_write(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        with patch.object(SocketConnection, "write", autospec=True, side_effect=SocketConnection.write) as write:
            await asyncio.gather(*(bus.publish(topic, str(i)) for i in range(500)))
        assert write.call_count == 1
        got: list[bytes] = []
        while len(got) < 500:
            got += (await sub.get_batch()).values
        assert got == [b"%d" % i for i in range(500)]


async def test_a_huge_batch_goes_in_chunks(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        ack = await bus.publish_batch(topic, [b"x" * 1_000_000] * 20, timeout=60)
        assert ack.count == 20
        assert (await bus.publish_batch(topic, [])).count == 0


async def test_largest_message(url: str, topic: str) -> None:
    async with quintet.connect(url, timeout=60) as bus, bus.subscribe(topic) as sub:
        value = b"x" * (8 * 1024 * 1024)
        await bus.publish(topic, value)
        assert (await sub.get()).value == value
        with pytest.raises(TooLarge):
            await bus.publish(topic, b"x" * (16 * 1024 * 1024))
        with pytest.raises(TooLarge):
            await bus.publish_batch(topic, [b"", b"x" * (16 * 1024 * 1024)])


async def test_ttl(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        await bus.publish(topic, b"long", ttl=60)
        assert (await sub.get()).value == b"long"
        for wrong in (0, -1, 1e9):
            with pytest.raises(ValueError, match="ttl"):
                await bus.publish(topic, b"", ttl=wrong)


async def test_what_blipmq_cannot_carry_is_refused(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        with pytest.raises(Unsupported, match="delay=") as caught:
            await bus.publish(topic, b"x", delay=7)
        assert "FlyMQ" in caught.value.hint
        with pytest.raises(Unsupported, match="partition="):
            await bus.publish_batch(topic, [b"x"], partition=1)


@pytest.mark.parametrize("name", ["", "x" * 256, "\u00e9" * 128, "a\0b"])
async def test_bad_topics(url: str, name: str) -> None:
    async with quintet.connect(url) as bus:
        with pytest.raises(BadName):
            await bus.publish(name, b"")
        with pytest.raises(BadName):
            bus.subscribe(name)


async def test_wrong_qos(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus:
        with pytest.raises(ValueError, match="qos"):
            await bus.publish(topic, b"", qos=2)


async def test_wrong_key(server: Server) -> None:
    with pytest.raises(AuthError, match="invalid API key"):
        async with quintet.connect(f"blipmq://:wrong@127.0.0.1:{server.port}"):
            pass


async def test_nobody_there() -> None:
    with pytest.raises(ConnectionLost, match="cannot connect") as caught:
        async with quintet.connect("blipmq://:k@127.0.0.1:1"):
            pass
    assert "quintet serve" in caught.value.hint


async def test_nowhere() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")  # no test asks a real name server
    with (
        patch("socket.getaddrinfo", side_effect=unknown),
        pytest.raises(ConnectionLost, match="cannot find nowhere: Name or service not known") as caught,
    ):
        async with quintet.connect("blipmq://:k@nowhere"):
            pass
    assert "check the host" in caught.value.hint


@pytest.mark.parametrize(
    ("wrong", "error", "hint"),
    [
        ("blipmq://:k@127.0.0.1:{fly}", ConnectionLost, "a blipmq port of a Quintet broker, and not one with TLS?"),
        ("flymq://admin:admin@127.0.0.1:{blip}", ConnectionLost, "a flymq port of a Quintet broker"),
        ("flymqs://admin:admin@127.0.0.1:{fly}", ConnectionLost, "and not one without TLS?"),
        ("flymq://admin:admin@127.0.0.1:{fly}?dialect=sdk", ProtocolError, "?dialect="),
        ("flymq://admin:admin@127.0.0.1:{sdk}", ProtocolError, "?dialect="),
    ],
)
async def test_the_wrong_port(server: Server, wrong: str, error: type[QuintetError], hint: str) -> None:
    ports = {"fly": server.ports["flymq"], "blip": server.port, "sdk": server.ports["flymq-sdk"]}
    with pytest.raises(error) as caught:
        async with quintet.connect(wrong.format(**ports)):
            pass
    assert hint in caught.value.hint


async def test_not_open_and_closed(url: str, topic: str) -> None:
    bus = quintet.connect(url)
    with pytest.raises(Closed):
        await bus.publish(topic, b"")
    async with bus:
        await bus.ping()
    with pytest.raises(Closed):
        await bus.publish(topic, b"")


async def test_timeout_while_the_broker_stands_still(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.url) as bus:
        own_server.pause()
        with pytest.raises(Timeout, match="publishing"):
            await bus.publish(topic, b"x", timeout=0.2)
        with pytest.raises(Timeout):
            await bus.ping(timeout=0.2)
        own_server.go_on()
        assert (await bus.publish(topic, b"y")).durable
