"""What a real broker cannot be made to do: cut frames, storms of NACKs, silence, nonsense."""

import asyncio
import logging

import pytest

import quintet
from quintet.client.core import base
from quintet.client.core.errors import ConnectionLost, DeliveryError, ProtocolError, StorageError, Timeout
from quintet.client.core.publishing import FAILURES_KEPT_MAX
from quintet.protocols.blipmq.frames import ACK, HELLO, PING, POLL, PUBLISH, SUBSCRIBE
from tests.client.fake import SUBSCRIPTION_ID, FakeServer, Peer, polite
from tests.wire import blipmq as wire
from tests.wire.blipmq import Frame

FULL = "durable publish failed: no space"


async def test_a_storm_of_nacks() -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == PUBLISH and not frame.payload.endswith(b"ok"):
            peer.send(wire.nack(frame.id, 500, FULL))
        return await polite(peer, frame)

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus:
        with pytest.raises(StorageError, match="no space") as single:
            await bus.publish("t", b"bad")
        assert single.value.retryable
        assert (await bus.publish("t", b"ok")).durable
        with pytest.raises(DeliveryError, match="2 of 4") as some:
            await bus.publish_batch("t", [b"ok", b"1", b"ok", b"3"])
        assert [at for at, _ in some.value.failures] == [1, 3]
        with pytest.raises(DeliveryError, match="5000 of 5000") as all_of_them:
            await bus.publish_batch("t", [b"bad"] * 5_000)
        assert len(all_of_them.value.failures) == FAILURES_KEPT_MAX


async def test_each_caller_of_a_shared_write_gets_its_own_answer() -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == PUBLISH and frame.payload.endswith(b"bad"):
            peer.send(wire.nack(frame.id, 500, FULL))
        return await polite(peer, frame)

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus:
        values = [b"good", b"bad", b"good", b"bad"]
        answers = await asyncio.gather(*(bus.publish("t", value) for value in values), return_exceptions=True)
        assert [isinstance(answer, StorageError) for answer in answers] == [False, True, False, True]
        assert [frame.kind for frame in fake.peers[0].frames].count(PING) == 1


async def test_a_connection_cut_inside_a_frame() -> None:
    """The half message is never seen; the subscription is resumed by POLL with its id."""
    cuts = 3

    async def script(peer: Peer, frame: Frame) -> bool:
        nonlocal cuts
        if frame.kind not in (SUBSCRIBE, POLL):
            return False
        await polite(peer, frame)
        whole = wire.deliver(1, b"t", b"first") + wire.deliver(2, b"t", b"second" * 100)
        if cuts:
            cuts -= 1
            peer.send(whole[:-50])
            await peer.writer.drain()
            await asyncio.sleep(0.05)
            peer.writer.close()
        else:
            peer.send(whole)
        return True

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus, bus.subscribe("t") as sub:
        while True:
            msg = await sub.get()
            if msg.tag == 2:
                break
            assert msg.value == b"first"
        assert msg.value == b"second" * 100
        assert sub.id == SUBSCRIPTION_ID
        polls = [frame for peer in fake.peers for frame in peer.frames if frame.kind == POLL]
        assert [frame.number for frame in polls] == [SUBSCRIPTION_ID] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 13, 14, 50, 1000])
async def test_every_chunking_gives_the_same_messages(size: int) -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind != SUBSCRIBE:
            return False
        whole = wire.ack(frame.id, SUBSCRIPTION_ID)
        whole += b"".join(wire.deliver(tag, b"t", b"v" * tag) for tag in range(1, 8))
        for at in range(0, len(whole), size):
            peer.send(whole[at : at + size])
            await peer.writer.drain()
            await asyncio.sleep(0)
        return True

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus, bus.subscribe("t") as sub:
        got = [await sub.get() for _ in range(7)]
        assert [(msg.tag, msg.value) for msg in got] == [(tag, b"v" * tag) for tag in range(1, 8)]


async def test_a_message_in_hand_is_not_handed_out_twice() -> None:
    """The server delivers again what is still queued or being worked on here; what failed comes through."""

    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == SUBSCRIBE:
            await polite(peer, frame)
            peer.send(wire.deliver(1, b"t", b"a") + wire.deliver(2, b"t", b"b"))
            peer.send(wire.deliver(1, b"t", b"a") + wire.deliver(2, b"t", b"b"))
            return True
        if frame.kind == PING:
            peer.send(wire.deliver(1, b"t", b"a"))
        return False

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus, bus.subscribe("t") as sub:
        one = await sub.get()
        async with one.process():
            await sub.flush()  # one comes again, while it is being worked on
            assert (await sub.get()).tag == 2
            with pytest.raises(Timeout):
                await sub.get(timeout=0.05)
            raise ValueError("not dealt with")
        await sub.flush()
        assert (await sub.get()).tag == 1


async def test_acknowledgements_are_gathered() -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == SUBSCRIBE:
            await polite(peer, frame)
            peer.send(b"".join(wire.deliver(tag, b"t", b"") for tag in range(1, 601)))
            return True
        return False

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus:
        async with bus.subscribe("t") as sub:
            for _ in range(600):
                await (await sub.get()).ack()
        acks = [frame for frame in fake.peers[1].frames if frame.kind == ACK]
        assert [frame.id for frame in acks] == list(range(1, 601))
        assert {frame.number for frame in acks} == {SUBSCRIPTION_ID}


async def test_a_peer_that_speaks_something_else() -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return True

    async with FakeServer(script) as fake:
        with pytest.raises(ProtocolError, match="not a BlipMQ frame"):
            async with quintet.connect(fake.url):
                pass


async def test_an_older_server() -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == HELLO:
            peer.send(wire.nack(frame.id, 426, "unsupported protocol version"))
        else:
            peer.send(wire.nack(frame.id, 400, "HELLO not performed"))
        return True

    async with FakeServer(script) as fake:
        with pytest.raises(ProtocolError, match="unsupported protocol version") as caught:
            async with quintet.connect(fake.url):
                pass
        assert "version 2" in caught.value.hint


async def test_a_peer_that_never_answers() -> None:
    async def script(peer: Peer, frame: Frame) -> bool:
        return True

    async with FakeServer(script) as fake:
        with pytest.raises(Timeout, match="connecting"):
            async with quintet.connect(fake.url, timeout=0.1):
                pass


async def test_a_peer_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats notice it, without any call waiting for an answer."""
    monkeypatch.setattr(base, "HEARTBEAT_S", 0.02)
    silent = False

    async def script(peer: Peer, frame: Frame) -> bool:
        return silent and frame.kind == PING

    async with (
        FakeServer(script) as fake,
        quintet.connect(fake.url, reconnect=False) as bus,
        bus.subscribe("t") as sub,
    ):
        await asyncio.sleep(0.2)
        assert sub.connected
        silent = True
        with pytest.raises(ConnectionLost, match="has not answered"):
            await sub.get()


async def test_a_publish_outlives_a_silent_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first connection never confirms; retry=True gets its confirmation from the next one."""
    monkeypatch.setattr(base, "HEARTBEAT_S", 0.02)

    async def script(peer: Peer, frame: Frame) -> bool:
        return frame.kind == PING and peer is fake.peers[0]

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus:
        assert (await bus.publish("t", b"x", retry=True)).durable
        assert bus.reconnects == 1
        assert [frame.kind for frame in fake.peers[1].frames].count(PUBLISH) == 1


async def test_a_nack_that_nobody_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "quintet.client")

    async def script(peer: Peer, frame: Frame) -> bool:
        if frame.kind == PUBLISH:
            peer.send(wire.nack(frame.id, 400, "invalid PUBLISH payload"))
            return True
        return False

    async with FakeServer(script) as fake, quintet.connect(fake.url) as bus:
        await bus.publish("t", b"", qos=0)
        await bus.ping()
        assert "invalid PUBLISH payload" in caplog.text
