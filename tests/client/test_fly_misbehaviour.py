"""What a real broker cannot be made to do: answers to nothing, the wrong ones, cut or hostile frames, refusals in runs."""

import asyncio
from typing import Any

import pytest

import quintet
from quintet.client.core import base, errors
from quintet.client.core.publishing import FAILURES_KEPT_MAX
from quintet.protocols.flymq import codec, frames
from tests.client.fake import until
from tests.client.fake_fly import FakeFly, Fields, FlyPeer, Script

BOMB = codec.compress(3, bytes(frames.FRAME_BYTES_MAX + 1))
HOSTILE = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "another version": bytes((0xAF, 9, 1, 1, 0, 0, 0, 0)),
    "too long": bytes((0xAF, 1, 1, 1, 0xFF, 0xFF, 0xFF, 0xFF)),
    "another operation": codec.frame(frames.LIST_TOPICS, b"\0\0\0\0"),
    "a record that does not add up": codec.frame(frames.PRODUCE, b"\0\1t"),
    "a run that nobody asked for": codec.frame(frames.FETCH, b"\0" * 12),
    "no such compression": bytes((0xAF, 1, 0x72, 0x0F, 0, 0, 0, 1, 0)),
    "nothing, compressed": frames.HEADER.pack(0xAF, 1, 0x72, 0x07, 0),
    "a bomb": frames.HEADER.pack(0xAF, 1, 0x72, 0x07, len(BOMB)) + BOMB,
    "an answer with too much": codec.frame(frames.WHOAMI, b"\1\0\0\0\0\0\0\0\0\0\0more"),
    "an error that is none": codec.frame(frames.ERROR, b"\5"),
}


def answering(name: str, data: bytes) -> Script:
    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        if operation.name == name:
            peer.send(data)
            return True
        return False

    return script


@pytest.mark.parametrize("what", HOSTILE)
async def test_nonsense_ends_the_connection(what: str) -> None:
    async with FakeFly(answering("WHOAMI", HOSTILE[what])) as fake, quintet.connect(fake.url) as bus:
        with pytest.raises(errors.ProtocolError):
            await bus.request("WHOAMI")
        with pytest.raises(errors.ProtocolError):
            await bus.publish("t", "x")


async def test_an_answer_that_nobody_asked_for() -> None:
    async with FakeFly() as fake, quintet.connect(fake.url) as bus:
        await bus.request("WHOAMI")
        fake.peers[0].answer("WHOAMI", success=True, username="u", roles=[], permissions=[])
        await until(lambda: not bus.connected)
        with pytest.raises(errors.ProtocolError, match="nothing was asked"):
            await bus.request("WHOAMI")


async def test_frames_cut_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        if operation.name != "FETCH":
            return False
        rows = [{"key": b"k", "value": b"v" * 300, "offset": number} for number in range(5)]
        whole = codec.encode_answer(operation, "document", {"messages": rows, "next_offset": 5}, 0)
        for at in range(0, len(whole), 7):
            peer.send(whole[at : at + 7])
            await peer.writer.drain()
            await asyncio.sleep(0)
        return True

    async with FakeFly(script) as fake, quintet.connect(fake.url) as bus:
        found = await bus.request("FETCH", topic="t", partition=0, offset=0, max=5)
        assert [row["offset"] for row in found["messages"]] == list(range(5))


async def test_refusals_within_a_batch() -> None:
    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        if operation.name == "PRODUCE" and ask["value"] == b"bad":
            peer.error("E1501", "no space")
            return True
        return False

    async with FakeFly(script) as fake, quintet.connect(fake.url) as bus:
        with pytest.raises(errors.StorageFull) as single:
            await bus.publish("t", b"bad")
        assert single.value.retryable
        with pytest.raises(errors.DeliveryError, match="2 of 4") as some:
            await bus.publish_batch("t", [b"ok", b"bad", b"ok", b"bad"])
        assert [at for at, _ in some.value.failures] == [1, 3]
        with pytest.raises(errors.DeliveryError, match="5000 of 5000") as every:
            await bus.publish_batch("t", [b"bad"] * 5_000)
        assert len(every.value.failures) == FAILURES_KEPT_MAX
        good, bad = await asyncio.gather(bus.publish("t", b"ok"), bus.publish("t", b"bad"), return_exceptions=True)
        assert isinstance(good, quintet.Ack)
        assert isinstance(bad, errors.StorageFull)


async def test_an_idempotent_producer_waits_for_space() -> None:
    """A refusal that may pass: the message and those behind it are sent again, in order, under their numbers."""
    refuse = 3
    stored: list[bytes] = []

    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        nonlocal refuse
        if operation.name != "PRODUCE":
            return False
        if refuse and ask["value"] == b"2":
            refuse -= 1
            peer.error("E1501", "no space")
        elif ask["sequence"] > len(stored):
            peer.error("E1331", "out of sequence")
        else:
            if ask["sequence"] == len(stored):
                stored.append(ask["value"])
            peer.record(ask, ask["sequence"])
        return True

    async with FakeFly(script) as fake, quintet.connect(fake.url) as bus:
        async with bus.producer("t", idempotent=True, linger=0) as producer:
            for number in range(6):
                producer.send(str(number))
                await asyncio.sleep(0.005)
        assert producer.confirmed == 6
        assert stored == [str(number).encode() for number in range(6)]


async def test_an_idempotent_producer_whose_message_is_refused() -> None:
    """A refusal that does not pass: the message is reported, those behind it go on under a new id."""
    stored: dict[int, list[bytes]] = {}

    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        if operation.name != "PRODUCE":
            return False
        mine = stored.setdefault(ask["producer_id"], [])
        if ask["value"] == b"2":
            peer.error("E1402", "too large")
        elif ask["sequence"] != len(mine):
            peer.error("E1331", "out of sequence")
        else:
            mine.append(ask["value"])
            peer.record(ask, ask["sequence"])
        return True

    async with FakeFly(script) as fake, quintet.connect(fake.url) as bus:
        async with bus.producer("t", idempotent=True, linger=0) as producer:
            for number in range(6):
                producer.send(str(number))
                await asyncio.sleep(0)
            with pytest.raises(ExceptionGroup) as caught:
                await producer.flush()
        assert sum(len(values) for values in stored.values()) == producer.confirmed
        causes = [error.__cause__ for error in caught.value.exceptions]
        assert {type(cause) for cause in causes} == {errors.TooLarge}
        assert all(b"2" not in values for values in stored.values())


async def test_many_log_in_at_once() -> None:
    """A server that is too busy for the password is asked again; one that says no is not."""
    times = 0

    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        nonlocal times
        if operation.name != "AUTH" or len(fake.peers) == 1:
            return False
        times += 1
        if times <= 2:
            text = "3 passwords wait to be checked"
            peer.answer("AUTH", success=False, error=text, username="", roles=[])
            return True
        return False

    async with FakeFly(script) as fake, quintet.connect(fake.url) as bus:
        fake.peers[0].cut()
        await until(lambda: bus.reconnects == 1)
        assert times == 3


async def test_a_silent_peer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "HEARTBEAT_S", 0.02)
    silent = False

    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        return silent and peer is fake.peers[0]

    async with FakeFly(script) as fake, quintet.connect(fake.url) as bus:
        await asyncio.sleep(0.1)
        assert bus.reconnects == 0
        silent = True
        await until(lambda: bus.reconnects == 1)


async def test_fenced_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is refused although nothing changed: it is given up and counted, not repeated for ever."""

    async def script(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> bool:
        if operation.name == "COMMIT":
            peer.error("E1321", "not yours")
            return True
        if operation.name == "FETCH" and ask["offset"] == 0:
            rows: list[dict[str, Any]] = [{"key": b"", "value": b"v", "offset": 0}]
            peer.answer("FETCH", messages=rows, next_offset=1)
            return True
        return False

    async with FakeFly(script) as fake, quintet.connect(fake.url) as bus, bus.subscribe("t", group="g") as sub:
        await (await sub.get()).ack()
        await sub.flush()
        assert sub.refused in (1, 2), "once, or once more if the timer of commits came in between"
