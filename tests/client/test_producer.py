"""The producer: few writes for many sends, bounds that hold, errors that are gathered."""

import asyncio

import pytest

import quintet
from quintet.client.core.errors import Backpressure, Closed, ConnectionLost, DeliveryError, TooLarge
from quintet.protocols.blipmq.frames import PING, PUBLISH
from tests.client.fake import FakeServer, Peer, polite
from tests.client.server import Server
from tests.wire import blipmq as wire
from tests.wire.blipmq import Frame


async def test_everything_sent_arrives_in_order(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub:
        async with bus.producer(topic) as producer:
            for i in range(5_000):
                producer.send(i)
            assert producer.waiting == 5_000
            await producer.flush()
            assert (producer.waiting, producer.confirmed) == (0, 5_000)
            producer.send("last")
        got: list[bytes] = []
        while len(got) < 5_001:
            batch = await sub.get_batch()
            got += batch.values
            await batch.ack()
        assert got == [b"%d" % i for i in range(5_000)] + [b"last"]
        with pytest.raises(Closed):
            producer.send("too late")


async def test_linger_ships_by_itself(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.subscribe(topic) as sub, bus.producer(topic, linger=0.001) as producer:
        producer.send("x")
        assert (await sub.get()).text() == "x"


async def test_the_bound_holds(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.url, timeout=30) as bus:
        async with bus.producer(topic, max_bytes=100_000) as producer:
            own_server.pause()
            sent = 0
            with pytest.raises(Backpressure) as caught:
                while True:
                    producer.send(b"x" * 1_000)
                    sent += 1
            assert sent == producer.waiting
            assert sent * 1_000 <= 100_000
            assert "ready()" in caught.value.hint
            with pytest.raises(TimeoutError):
                await producer.ready(timeout=0.1)
            own_server.go_on()
            await producer.ready()
            producer.send(b"again")
        assert producer.confirmed == sent + 1


async def test_errors_are_gathered() -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == PUBLISH and frame.payload.endswith(b"bad"):
            peer.send(wire.nack(frame.id, 500, "durable publish failed: no space"))
        return await polite(peer, frame)

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus, bus.producer("t") as producer:
        for value in ("bad", "good", "bad"):
            producer.send(value)
        with pytest.raises(ExceptionGroup, match="2 messages") as caught:
            await producer.flush()
        assert all(isinstance(error, DeliveryError) and error.retryable for error in caught.value.exceptions)
        assert producer.confirmed == 1
        await producer.flush()


async def test_a_lost_connection_fails_or_is_retried() -> None:
    lose = True

    async def script(peer: Peer, frame: Frame) -> bool:
        nonlocal lose
        if frame.kind == PING and lose and any(f.kind == PUBLISH for f in peer.frames):
            lose = False
            peer.cut()
            return True
        return False

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus:
        async with bus.producer("t") as producer:
            producer.send("x")
            with pytest.raises(ExceptionGroup) as caught:
                await producer.flush()
            assert isinstance(caught.value.exceptions[0].__cause__, ConnectionLost)
        lose = True
        async with bus.producer("t", retry=True) as producer:
            producer.send("y")
        assert producer.confirmed == 1


async def test_too_large(url: str, topic: str) -> None:
    async with quintet.connect(url) as bus, bus.producer(topic) as producer:
        with pytest.raises(TooLarge):
            producer.send(b"x" * (16 * 1024 * 1024))
        assert producer.waiting == 0
        await asyncio.sleep(0)
