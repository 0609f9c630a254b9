"""A broker that dies and comes back on the same data and port: what goes on by itself, and what is said."""

import asyncio

import pytest

import quintet
from quintet.client.core.errors import AuthError, ConnectionLost, Timeout
from quintet.protocols.blipmq.frames import AUTH
from tests.client.fake import FakeServer, Peer, polite, until
from tests.client.server import Server
from tests.wire import blipmq as wire
from tests.wire.blipmq import Frame


async def test_the_iterator_goes_on_after_a_restart(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.url, timeout=30) as bus, bus.subscribe(topic) as sub:
        id = sub.id
        await bus.publish_batch(topic, ["acknowledged", "not acknowledged"])
        await (await sub.get()).ack()
        assert (await sub.get()).text() == "not acknowledged"
        await sub.flush()
        own_server.stop()
        waiting = asyncio.create_task(sub.get())
        own_server.start()
        msg = await waiting
        assert msg.text() == "not acknowledged"
        await msg.ack()
        await bus.publish(topic, "after", retry=True)
        assert (await sub.get()).text() == "after"
        assert (sub.id, sub.reconnects) == (id, 1)


async def test_the_iterator_goes_on_after_a_kill(own_server: Server, topic: str) -> None:
    """The last acknowledgements may be forgotten and what they were for comes again; nothing is ever missed."""
    async with quintet.connect(own_server.url, timeout=30) as bus, bus.subscribe(topic) as sub:
        seen: list[int] = []
        for round in range(3):
            await bus.publish_batch(topic, range(round * 100, round * 100 + 100), retry=True)
            while round * 100 + 50 not in seen:
                msg = await sub.get()
                seen.append(msg.json())
                await msg.ack()
            own_server.kill()
            own_server.start()
        while not set(range(300)) <= set(seen):
            msg = await sub.get()
            seen.append(msg.json())
            await msg.ack()
        assert sub.reconnects >= 1  # one that is lost again before it is settled does not count


async def test_what_was_published_while_away_arrives(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.url, timeout=30) as bus:
        async with bus.subscribe(topic) as sub:
            id = sub.id
        await bus.publish(topic, "meanwhile")
        own_server.kill()
        own_server.start()
    async with quintet.connect(own_server.url) as bus, bus.subscribe(topic, resume=id) as sub:
        assert (await sub.get()).text() == "meanwhile"


async def test_acknowledging_without_a_connection(own_server: Server, topic: str) -> None:
    """The acknowledgement waits for the next connection, and counts."""
    async with quintet.connect(own_server.url, timeout=30) as bus:
        async with bus.subscribe(topic) as sub:
            await bus.publish_batch(topic, ["one", "two"])
            one = await sub.get()
            own_server.kill()
            await until(lambda: not sub.connected)
            await one.ack()
            own_server.start()
            two = await sub.get()
            assert two.text() == "two"
            await two.ack()
            await sub.flush()
            assert sub.refused == 0
        async with bus.subscribe(topic, resume=sub.id) as rest:
            with pytest.raises(Timeout):
                await rest.get(timeout=0.3)


async def test_a_publish_in_flight_is_lost_or_retried(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.url, timeout=30) as bus, bus.subscribe(topic) as sub:
        own_server.pause()  # so that both are surely in flight
        plain = asyncio.create_task(bus.publish(topic, "plain"))
        stubborn = asyncio.create_task(bus.publish(topic, "stubborn", retry=True))
        await asyncio.sleep(0.1)
        own_server.kill()
        with pytest.raises(ConnectionLost) as caught:
            await plain
        assert caught.value.retryable
        own_server.start()
        assert (await stubborn).durable
        assert (await sub.get()).text() == "stubborn"


async def test_publishing_waits_for_the_connection(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.url, timeout=30) as bus:
        own_server.kill()
        await until(lambda: not bus.connected)
        with pytest.raises(Timeout):
            await bus.publish(topic, b"x", timeout=0.2)
        waiting = asyncio.create_task(bus.publish(topic, b"y"))
        own_server.start()
        assert (await waiting).durable
        assert bus.reconnects == 1


async def test_without_reconnect_it_ends(own_server: Server, topic: str) -> None:
    async with quintet.connect(own_server.url, reconnect=False) as bus, bus.subscribe(topic) as sub:
        own_server.kill()
        with pytest.raises(ConnectionLost):
            await sub.get()
        with pytest.raises(ConnectionLost):
            await bus.publish(topic, b"x")


async def test_a_key_taken_away_ends_it() -> None:
    """The credentials are refused when it comes back: no use in trying on."""
    refuse = False

    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == AUTH and refuse:
            peer.send(wire.nack(frame.id, 401, "invalid API key"))
            return True
        return await polite(peer, frame)

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus, bus.subscribe("t") as sub:
        refuse = True
        for peer in fake.peers:
            peer.cut()
        with pytest.raises(AuthError):
            await sub.get()
        with pytest.raises(AuthError):
            await bus.publish("t", b"x")
