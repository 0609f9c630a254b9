"""ttl, delay, schema, key and headers in one publish, and what retries, dead letters, delays and transactions keep of them.

Every door is walked: what it cannot carry is in its `lacks`, which is what the matrix of the README says. Real sockets.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

import quintet
from quintet.client.consuming import Retry
from quintet.client.core.errors import Unsupported
from quintet.client.core.message import Message
from quintet.client.links.fast import Queues
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.client.manage import Manage, Peeked
from quintet.config import DEV_PEERBUS_SECRET
from quintet.model import limits
from tests.client.server import Server, running
from tests.interop.test_headers import CLIENT_DOORS, EXPECTED, KEY, PAIRS, origin_of
from tests.interop.test_sockets import url_of

WAIT_S = 30.0
TTL_S = 3600.0
RETRIES = 2
SOON = Retry(times=RETRIES, delay=0.01, factor=1.0)
STORY = "quintet-dead-"
SUBSCRIBED: dict[str, dict[str, Any]] = {
    "blipmq": {},
    "flymq": {"group": "g", "start": "earliest"},
    "felix": {"durable": "d"},
}  # the doors that redeliver and have dead letters


class Kept(NamedTuple):
    """What must come through whatever happens to a message."""

    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_us: int | None
    origin: str | None


def kept(message: Message) -> Kept:
    own = tuple(pair for pair in message.headers.pairs if not pair[0].startswith(STORY))
    return Kept(message.key, own, message.timestamp_us, message.origin)


def check(found: Kept, published: Kept) -> None:
    assert found == published
    assert (found.key, found.headers) == (KEY, EXPECTED)


def check_expiry(stored: Peeked, ttl_s: float) -> None:
    assert abs(stored.expiry_ms - stored.timestamp_ms - ttl_s * 1000) < WAIT_S * 1000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, DEV_PEERBUS_SECRET)


# -- one publish ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", CLIENT_DOORS)
async def test_all_that_a_door_carries_goes_into_one_publish(server: Server, door: str) -> None:
    """What it does not carry is refused before anything is sent, and nothing is stored."""
    topic = "peerbus/together" if door == "peerbus" else f"together/{door}"
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(quintet.connect(server.fly))
        await admin.request("REGISTER_SCHEMA", name=topic, type="json", schema='{"type": "object"}')
        if door == "peerbus":
            await stack.enter_async_context(quintet.connect(url_of(server, door, "together")))
        bus = await stack.enter_async_context(quintet.connect(url_of(server, door)))
        if door == "fast":
            await Queues(bus).create(topic, durable=True)
        options: dict[str, Any] = {"key": KEY, "headers": PAIRS, "ttl": TTL_S, "delay": 0.01, "schema": topic}
        for option in bus.door.lacks.keys() & options.keys():
            with pytest.raises(Unsupported, match=f"{option}="):
                await bus.publish(topic, {"n": 1}, **{option: options[option]})
            del options[option]
        assert {"key", "headers"} <= options.keys() and ("ttl" in options or door == "peerbus")
        await bus.publish(topic, {"n": 1}, **options)
        (found,) = await admin.fetch(topic, offset=0, wait=WAIT_S)
        assert found.key == KEY and found.headers.pairs == EXPECTED and found.origin == origin_of(door)
        (stored,), _ = await Manage(admin).peek(topic, 0, 0)
        if "ttl" in options:
            check_expiry(stored, TTL_S)
        else:  # mailboxes have one time to live for all messages: the control of check_expiry
            with pytest.raises(AssertionError):
                check_expiry(stored, TTL_S)


@pytest.mark.parametrize("door", [door for door in CLIENT_DOORS if door != "peerbus"])
async def test_a_ttl_alone_and_of_a_whole_batch(server: Server, door: str) -> None:
    topic = f"ttl/{door}"
    async with quintet.connect(url_of(server, door)) as bus, quintet.connect(server.fly) as admin:
        if door == "fast":
            await Queues(bus).create(topic, durable=True)
        await bus.publish(topic, b"one", ttl=TTL_S)
        await bus.publish_batch(topic, [b"a", b"b"], ttl=TTL_S, headers=[{"h": "1"}, None])
        await asyncio.gather(bus.publish(topic, b"long", ttl=2 * TTL_S), bus.publish(topic, b"never"))
        found, _ = await Manage(admin).peek(topic, 0, 0)
        assert {one.value for one in found} == {b"one", b"a", b"b", b"long", b"never"}
        for one in found:
            if one.value == b"never":
                assert one.expiry_ms == 0
            else:
                check_expiry(one, 2 * TTL_S if one.value == b"long" else TTL_S)


async def test_a_ttl_beyond_a_record_set_is_refused_before_anything_is_sent(server: Server) -> None:
    long_s = limits.RECORD_TTL_MS_MAX / 1000 + 1
    async with quintet.connect(server.fly) as bus:
        for options in ({"headers": {"h": "1"}}, {"delay": 1.0, "schema": "s"}):
            with pytest.raises(ValueError, match="ttl is at most 4294967 seconds together"):
                await bus.publish("long-ttl", b"x", ttl=long_s, **options)
        await bus.publish("long-ttl", b"x", ttl=long_s)
        (stored,), _ = await Manage(bus).peek("long-ttl", 0, 0)
        check_expiry(stored, long_s)


# -- what happens to it afterwards ------------------------------------------------------------------------------------


async def letters(admin: quintet.Bus, topic: str) -> list[Message]:
    """The dead letters, as they are stored."""
    async with asyncio.timeout(WAIT_S):
        while True:
            if found := await Manage(admin).dead_letters(topic):
                assert len(found) == 1
                return [message async for message in admin.replay(f"{topic}-dlq")]
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("door", SUBSCRIBED)
async def test_retries_and_dead_letters_keep_everything_and_count(
    server: Server, door: str, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    topic = f"dead/{door}/{ordered}"
    seen: list[Kept] = []

    async def handle(message: Message) -> None:
        seen.append(kept(message))
        raise RuntimeError("no")

    async with quintet.connect(url_of(server, door)) as bus, quintet.connect(server.fly) as admin:
        options = SUBSCRIBED[door] | {"retry": SOON, "dead_letter": True, "ordered": ordered}
        async with bus.consumer(topic, handle, **options):
            await bus.publish(topic, {"n": 1}, key=KEY, headers=PAIRS)
            (letter,) = await letters(admin, topic)
        assert len(seen) == 1 + RETRIES
        (stored,) = [kept(message) async for message in admin.replay(topic)]
        for found in (*seen, kept(letter)):
            check(found, stored)
        # Here a consumer in order tries again by itself: BlipMQ and Felix have no place to tell the broker how often.
        tries = 1 if ordered and door != "flymq" else 1 + RETRIES
        assert letter.headers.text(f"{STORY}attempts") == str(tries)
        (id,) = [one.id for one in await Manage(admin).dead_letters(topic)]
        await Manage(admin).replay(topic, id)
        again = [kept(message) async for message in admin.replay(topic)][1]
        assert (again.key, again.headers) == (KEY, EXPECTED)


@pytest.mark.parametrize("lost", Kept._fields)
def test_a_message_that_lost_something_on_its_way_is_caught(lost: str) -> None:
    whole = Kept(KEY, EXPECTED, 1, "flymq:admin")
    check(whole, whole)
    wrong: dict[str, Any] = {"key": None, "headers": EXPECTED[:-1], "timestamp_us": 2, "origin": ""}
    with pytest.raises(AssertionError):
        check(whole._replace(**{lost: wrong[lost]}), whole)


async def test_a_signed_envelope_comes_again_with_everything(server: Server) -> None:
    """The reader verifies both signatures (`hmac`, `headers_hmac`) before it hands a message out."""
    began_us = time.time_ns() // 1000
    async with quintet.connect(url_of(server, "peerbus", "again")) as reader:
        async with quintet.connect(url_of(server, "peerbus", "carol")) as bus:  # an id is a sender's once only
            await bus.publish("peerbus/again", {"n": 1}, key=KEY, headers=PAIRS)
        async with reader.subscribe("peerbus/again") as subscription:
            first = kept(await subscription.get(timeout=WAIT_S))  # not acknowledged
    url = url_of(server, "peerbus", "again")
    async with quintet.connect(url) as reader, reader.subscribe("peerbus/again") as subscription:
        message = await subscription.get(timeout=WAIT_S)
        again = kept(message)
        await message.ack()
    check(again, first)
    assert again.origin == "carol" and again.timestamp_us is not None and again.timestamp_us >= began_us - 1_000_000


@pytest.mark.parametrize("way", ["delay", "transaction", "idempotent"])
async def test_what_flymq_stores_later_or_once_comes_out_of_every_door(server: Server, way: str) -> None:
    topic = f"late/{way}"
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(quintet.connect(server.fly))
        readers = []
        for door, options in SUBSCRIBED.items():
            reader = await stack.enter_async_context(quintet.connect(url_of(server, door)))
            readers.append(await stack.enter_async_context(reader.subscribe(topic, **options)))
        if way == "delay":
            await bus.publish(topic, {"n": 1}, key=KEY, headers=PAIRS, delay=0.02, ttl=TTL_S)
        elif way == "transaction":
            async with bus.transaction() as txn:
                await txn.publish(topic, {"n": 1}, key=KEY, headers=PAIRS, ttl=TTL_S)
        else:
            async with bus.producer(topic, idempotent=True) as producer:
                producer.send({"n": 1}, key=KEY, headers=PAIRS)
        found = [kept(await reader.get(timeout=WAIT_S)) for reader in readers]
        (stored,), _ = await Manage(bus).peek(topic, 0, 0)
    for one in found:
        check(one, found[0])
        assert one.origin == origin_of("flymq") and (one.timestamp_us or 0) // 1000 == stored.timestamp_ms
    if way != "idempotent":
        check_expiry(stored, TTL_S)
