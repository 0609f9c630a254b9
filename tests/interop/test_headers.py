"""Key, headers, time and origin: what each door publishes, every door reads; and what no door may publish. Real sockets.

The topic is a mailbox of peerbus, because that door reads nothing else. Where a wire has no place for something, `EXPECTED_KEY` says
so, and so does the matrix of the README.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

import quintet
from quintet.client.core.errors import DeliveryError
from quintet.client.core.headers import Headers, encode_headers, pack_pairs, raw_pairs
from quintet.client.core.message import Message
from quintet.client.core.subscription import Subscription
from quintet.client.core.url import ALL_DOORS
from quintet.client.links.fast import Queues
from quintet.client.links.peerbus import SECRET_VARIABLE
from quintet.config import DEV_PEERBUS_SECRET
from quintet.model import limits
from quintet.model.errors import BadRequest, LimitExceeded, QuintetError, TooLarge
from tests.client.server import Server, running
from tests.flight.client import Client
from tests.interop.test_sockets import url_of

TOPIC = "peerbus/bob"
CLIENT_DOORS = tuple(door for door in ALL_DOORS if door != "flight")
WAIT_S = 30.0
PAIRS: list[tuple[str, str | bytes | None]] = [
    ("trace", "00-abc"),
    ("raw", b"\0\xff\xfe"),
    ("none", None),
    ("empty", b""),
    ("grün < &", "ü"),
    ("twice", "1"),
    ("twice", "2"),
]
EXPECTED = tuple((name, value.encode() if isinstance(value, str) else value) for name, value in PAIRS)
KEY = b"key-1"
SETS_TIME = ("flight", "spark")  # who may say when a record was made
TIME_US = time.time_ns() // 1_000_000 * 1000 - 5_000_123  # what they say


class Seen(NamedTuple):
    """One record as a reader got it."""

    by: str  # the door that published it
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_us: int
    origin: str


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, DEV_PEERBUS_SECRET)


def origin_of(door: str) -> str:
    if door == "spark":  # it writes by the Flight door
        return origin_of("flight")
    names = {"flymq": "admin", "flight": "admin", "blipmq": "dev", "felix": "dev", "fast": "sensor-7"}
    return f"{door}:{names.get(door, 'alice')}"


def check(seen: Seen, reader: str, began_us: int) -> None:
    """Everything that belongs to a record came through."""
    assert seen.headers == EXPECTED
    if seen.by in SETS_TIME:
        assert seen.timestamp_us == TIME_US
    else:
        assert began_us - 1_000_000 <= seen.timestamp_us <= time.time_ns() // 1000 + 1_000_000
    if reader == "peerbus":  # an envelope has one name for a message, its id: another door's key has no place
        assert seen.key is not None
        assert seen.origin == ("alice" if seen.by == "peerbus" else origin_of(seen.by))
        return
    assert seen.key == KEY
    assert seen.origin == origin_of(seen.by)


def by_of(value: bytes) -> str:
    found = json.loads(value)
    return str(found["body"]["by"] if "protocol_version" in found else found["by"])


def seen_of(message: Message) -> Seen:
    assert message.timestamp_us is not None and message.timestamp is not None and message.origin is not None
    assert round(message.timestamp.timestamp() * 1_000_000) == message.timestamp_us
    return Seen(by_of(message.value), message.key, message.headers.pairs, message.timestamp_us, message.origin)


def seen_in_row(row: dict[str, Any]) -> Seen:
    """Of a table that was read through Flight."""
    headers = tuple((pair["key"], pair["value"]) for pair in row["headers"])
    time_us = round(row["timestamp"].timestamp() * 1_000_000)
    return Seen(by_of(row["value"]), row["key"], headers, time_us, row["origin"])


async def write(server: Server, door: str, topic: str = TOPIC) -> None:
    if door == "flight":
        await asyncio.to_thread(write_flight, server, topic)
        return
    async with quintet.connect(url_of(server, door)) as bus:
        await bus.publish(topic, {"by": door}, key=KEY, headers=PAIRS)


def write_flight(server: Server, topic: str) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": name, "value": value} for name, value in EXPECTED]], kind)
    columns = {
        "key": pa.array([KEY], pa.binary()),
        "value": pa.array([b'{"by": "flight"}'], pa.binary()),
        "timestamp": pa.array([TIME_US], pa.timestamp("us", tz="UTC")),
    }
    with Client(server.ports["flight"], "admin", "admin") as client:
        client.put(topic, pa.table({**columns, "headers": headers}))


def read_flight(server: Server) -> list[Seen]:
    with Client(server.ports["flight"], "admin", "admin") as client:
        return [seen_in_row(row) for row in client.read(TOPIC).to_pylist()]


async def subscribed(stack: AsyncExitStack, server: Server, topic: str) -> dict[str, Subscription]:
    """A reader of the mailbox by every door, from its beginning on."""
    owner = topic.removeprefix("peerbus/")
    bus = await stack.enter_async_context(quintet.connect(url_of(server, "fast")))
    await Queues(bus).create(topic, durable=True)
    readers = {}
    for door in CLIENT_DOORS:
        reader = await stack.enter_async_context(quintet.connect(url_of(server, door, owner)))
        options: dict[str, Any] = {"group": "headers", "start": "earliest"} if door == "flymq" else {}
        readers[door] = await stack.enter_async_context(reader.subscribe(topic, **options))
    return readers


async def take(subscription: Subscription, count: int) -> list[Seen]:
    found: list[Seen] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            message = await subscription.get()
            found.append(seen_of(message))
            await message.ack()
    return found


async def test_every_cell_has_key_headers_time_and_origin(server: Server) -> None:
    """`tests/spark/test_headers.py` has the cells of Spark."""
    began_us = time.time_ns() // 1000
    async with AsyncExitStack() as stack:
        readers = await subscribed(stack, server, TOPIC)
        for door in ALL_DOORS:
            await write(server, door)
        seen = {door: await take(subscription, len(ALL_DOORS)) for door, subscription in readers.items()}
    seen["flight"] = await asyncio.to_thread(read_flight, server)
    for reader_door, found in seen.items():
        assert [one.by for one in found] == list(ALL_DOORS), f"read through {reader_door}"
        for one in found:
            check(one, reader_door, began_us)


@pytest.mark.parametrize("by", ["flymq", "spark"])
@pytest.mark.parametrize("lost", ["key", "headers", "timestamp_us", "origin"])
def test_a_record_that_lost_something_is_caught(lost: str, by: str) -> None:
    now = time.time_ns() // 1000
    whole = Seen(by, KEY, EXPECTED, TIME_US if by in SETS_TIME else now, origin_of(by))
    check(whole, "blipmq", now)
    wrong: dict[str, Any] = {
        "key": None,
        "headers": EXPECTED[:-1],
        "timestamp_us": whole.timestamp_us - 10**9,
        "origin": "",
    }
    with pytest.raises(AssertionError):
        check(whole._replace(**{lost: wrong[lost]}), "blipmq", now)


# -- what is refused --------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, bytes], type[QuintetError], str]] = {
    "no name": ({"": b"x"}, BadRequest, "has 0 bytes"),
    "a long name": ({"n" * 256: b"x"}, BadRequest, "has 256 bytes"),
    "a reserved name": ({"quintet-dead-topic": b"x"}, BadRequest, "quintet-"),
    "too many": ({f"h{n}": b"" for n in range(limits.HEADERS_MAX + 1)}, LimitExceeded, "1,001 headers"),
    "thousands": ({f"h{n}": b"" for n in range(5_000)}, LimitExceeded, "5,000 headers"),
    "too much": ({"h": b"x" * limits.HEADERS_BYTES_MAX}, TooLarge, "65,537 bytes of headers"),
    "a MiB": ({"h": b"x" * (1 << 20)}, TooLarge, "1,048,577 bytes of headers"),
}
# What a client of somebody else may send, too: the broker judges for itself.
HOSTILE: dict[str, tuple[bytes, str]] = {
    what: (pack_pairs([(name.encode(), value) for name, value in given.items()]), text)
    for what, (given, _, text) in BAD.items()
} | {
    "a name that is no text": (pack_pairs([(b"\xff\xfe", b"x")]), "not UTF-8"),
    "a name with half a sign": (pack_pairs([("ü".encode()[:1], b"x")]), "not UTF-8"),
    "a count that lies": ((1 << 30).to_bytes(4, "big") + b"\0" * 64, "ends early"),
    "a value that lies": (pack_pairs([(b"h", b"xyz")])[:-2], ""),
}


class Raw(dict[str, str]):
    """Packed headers in the place of headers."""

    def __init__(self, packed: bytes) -> None:
        super().__init__(raw="")
        self.packed = packed


def as_they_are(given: object) -> bytes:
    """In the place of encode_headers: a client without checks of its own."""
    return given.packed if isinstance(given, Raw) else b""


MOST = {"most": b"x" * (limits.HEADERS_BYTES_MAX - 4)}


async def bad_place(stack: AsyncExitStack, server: Server, door: str, what: str) -> tuple[quintet.Bus, str]:
    """A bus of this door and a topic that it may write to."""
    topic = f"peerbus/{what}" if door == "peerbus" else f"{what}/{door}"
    if door == "peerbus":
        await stack.enter_async_context(quintet.connect(url_of(server, door, what)))
    bus = await stack.enter_async_context(quintet.connect(url_of(server, door)))
    if door == "fast":
        await Queues(bus).create(topic, durable=True)
    return bus, topic


async def stored_in(server: Server, topic: str) -> list[Message]:
    async with quintet.connect(server.fly) as reader:
        return [message async for message in reader.replay(topic)]


@pytest.mark.parametrize("door", CLIENT_DOORS)
async def test_headers_beyond_the_limits_are_refused_and_nothing_is_stored(server: Server, door: str) -> None:
    async with AsyncExitStack() as stack:
        bus, topic = await bad_place(stack, server, door, "bad")
        for headers, kind, text in BAD.values():
            with pytest.raises(kind, match=text):
                await bus.publish(topic, {"n": 1}, headers=headers)
            with pytest.raises(kind, match=text):  # one bad message of a batch: none of it is sent
                await bus.publish_batch(topic, [1, 2, 3], headers=[{"good": "1"}, headers, None])
            async with bus.producer(topic) as producer:
                with pytest.raises(kind, match=text):
                    producer.send(b"1", headers=headers)
        await bus.publish(topic, {"n": 2}, headers=MOST)
    (found,) = await stored_in(server, topic)
    assert found.headers == MOST


@pytest.mark.parametrize("door", [door for door in CLIENT_DOORS if door != "peerbus"])
async def test_the_broker_refuses_hostile_headers_and_stores_nothing(
    server: Server, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's own checks are taken out: it sends what it is given. The connection goes on."""
    monkeypatch.setattr("quintet.client.bus.encode_headers", as_they_are)
    good = Raw(pack_pairs([(b"good", b"\0\xff")]))
    async with AsyncExitStack() as stack:
        bus, topic = await bad_place(stack, server, door, "hostile")
        for what, (packed, text) in HOSTILE.items():
            with pytest.raises(QuintetError) as raised:
                await bus.publish(topic, {"n": 1}, headers=Raw(packed))
            assert text in str(raised.value), f"{what}: {raised.value}"
            with pytest.raises(DeliveryError):  # one bad record of a set: none of it is stored
                await bus.publish_batch(topic, [1, 2, 3], headers=[good, Raw(packed), None])
        await bus.publish(topic, {"n": 2}, headers=good)
    (found,) = await stored_in(server, topic)
    assert found.headers.pairs == (("good", b"\0\xff"),)


async def test_the_broker_drops_hostile_envelopes_and_stores_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintet.client.bus.encode_headers", as_they_are)
    async with AsyncExitStack() as stack:
        bus, topic = await bad_place(stack, server, "peerbus", "hostile")
        tasks = [asyncio.create_task(bus.publish(topic, {"n": 1}, headers=Raw(HOSTILE[what][0]))) for what in BAD]
        await bus.publish(topic, {"n": 2})  # behind them on the same connection
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    (found,) = await stored_in(server, topic)
    assert json.loads(found.value)["body"] == {"n": 2}


@pytest.mark.parametrize("kind", ["string", "binary"])
@pytest.mark.parametrize("what", [what for what in HOSTILE if "lies" not in what])
def test_flight_refuses_hostile_headers_and_stores_nothing(server: Server, what: str, kind: str) -> None:
    packed, text = HOSTILE[what]
    if (kind, text) == ("string", "not UTF-8"):
        text = "Invalid UTF8"  # Arrow says it
    reader = memoryview(packed)
    names: list[bytes] = []
    values: list[bytes] = []
    at = 4
    for _ in range(int.from_bytes(reader[:4], "big")):
        for column in (names, values):
            size = int.from_bytes(reader[at : at + 4], "big") - (column is values)
            column.append(bytes(reader[at + 4 : at + 4 + size]))
            at += 4 + size
    named = pa.array(names, pa.binary())
    if kind == "string":
        named = named.view(pa.string())  # not checked: as a hostile client sends them
    pairs = pa.StructArray.from_arrays([named, pa.array(values, pa.binary())], ["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([0, 0, len(names)], pa.int32()), pairs)
    rows = pa.table({"value": pa.array([b"good", b"bad"], pa.binary()), "headers": lists})
    topic = f"hostile/flight/{kind}/{what}"
    with Client(server.ports["flight"], "admin", "admin") as client:
        client.put(topic, pa.table({"value": pa.array([b"first"], pa.binary())}))
        with pytest.raises(pa.ArrowException) as raised:
            client.put(topic, rows)
        assert text.removesuffix(" bytes of headers").removesuffix(" headers") in str(raised.value)
        assert client.values(topic) == [b"first"]


@pytest.mark.parametrize("door", CLIENT_DOORS)
async def test_bad_headers_of_one_call_do_not_refuse_its_neighbours(server: Server, door: str) -> None:
    """Calls of one turn share a write, and at some doors a record set, which the broker refuses whole."""
    async with AsyncExitStack() as stack:
        bus, topic = await bad_place(stack, server, door, "near")
        calls = [bus.publish(topic, {"n": n}, headers={"quintet-x" if n == 2 else "x": "1"}) for n in range(5)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert [isinstance(one, BadRequest) for one in done] == [False, False, True, False, False]
        async with bus.producer(topic) as producer:
            producer.send({"n": 5}, headers={"x": "1"})
            with pytest.raises(BadRequest):
                producer.send({"n": 6}, headers={"quintet-x": "1"})
            producer.send({"n": 7}, headers={"x": "1"})
    assert len(await stored_in(server, topic)) == 6


@pytest.mark.parametrize("headers", [None, {"h": "1"}], ids=["plain", "headers"])
@pytest.mark.parametrize("door", ["blipmq", "flymq", "fast", "felix"])
async def test_one_partition_keeps_the_order_of_keyed_and_other_messages(
    server: Server, door: str, headers: dict[str, str] | None
) -> None:
    async with AsyncExitStack() as stack:
        bus, topic = await bad_place(stack, server, door, f"order-{headers is None}")
        keys = [None, "k", None, "j", "k", None]
        await bus.publish_batch(topic, range(6), keys=keys, headers=headers)
    assert [int(message.value) for message in await stored_in(server, topic)] == list(range(6))


async def test_as_many_headers_as_allowed_come_back(server: Server) -> None:
    headers = {f"h{number}": str(number) for number in range(limits.HEADERS_MAX)}
    async with quintet.connect(server.fly) as bus:
        await bus.publish("many-headers", b"x", headers=headers)
        (found,) = [message async for message in bus.replay("many-headers")]
    assert found.headers == {name: value.encode() for name, value in headers.items()}


def test_headers_of_a_message_and_of_any_mapping_are_given_on() -> None:
    raw = encode_headers(PAIRS)
    assert encode_headers(Headers(raw)) == encode_headers(iter(PAIRS)) == raw == pack_pairs(raw_pairs(raw))
    assert encode_headers(MappingProxyType({"a": "1"})) == encode_headers({"a": "1"})


def test_a_name_that_comes_twice_has_its_last_value() -> None:
    found = Headers(encode_headers([("a", "1"), ("b", None), ("a", "2")]))
    assert dict(found) == {"a": b"2", "b": None}
    assert found.all("a") == [b"1", b"2"]
    assert found.pairs == (("a", b"1"), ("b", None), ("a", b"2"))
    assert found.text("a") == "2" and found.text("b", "-") == "-" and found.text("c", "-") == "-"
