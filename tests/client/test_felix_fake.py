"""The Felix client against servers that know less, refuse, break off, or lie: real QUIC, and answers the test makes up."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.client.core.errors import (
    AuthError,
    BadUrl,
    Busy,
    ConnectionLost,
    DeliveryError,
    Forbidden,
    OffsetNotFound,
    ProtocolError,
    TopicNotFound,
    Unsupported,
)
from quintet.client.core.url import parse
from quintet.client.links import felix, felix_batches
from quintet.client.links.felix_source import Lagged, Names
from quintet.model.errors import QuintetError
from quintet.protocols.felix import codec, frames
from tests.client.fake import until
from tests.client.fake_felix import FakeFelix, Message, fake
from tests.wire import felix as wire


def events(base: int, *values: bytes) -> bytes:
    """A frame of messages with offsets."""
    return wire.events(*values, base=base)


def friendly(server: FakeFelix, stream: int, message: Message) -> None:
    """Takes all that is published, and answers the rest with ok."""
    if message["type"] == "batch":
        if message["request_id"] >= 0:
            server.send(stream, wire.ack(0, message["request_id"]))
    elif message["type"] == "publish_batch":
        server.say(stream, {"type": "publish_ok", "request_id": message["request_id"]})
    elif message["type"] == "subscribe":
        server.say(stream, {"type": "subscribed", "subscription_id": message["subscription_id"]})
    elif "request_id" in message:
        server.say(stream, {"type": "ok", "request_id": message["request_id"]})


def kinds(server: FakeFelix) -> list[str]:
    return [message["type"] for message in server.heard]


async def test_a_server_that_says_no_flags_gets_what_the_first_version_had(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        friendly(server, stream, message)
        if message["type"] == "subscribe":
            there = server.events(message["subscription_id"])
            server.say(there, {"type": "event", "payload": "YQ==", "tenant_id": "", "namespace": "", "stream": "t"})
            server.send(there, wire.events(b"b"))
            server.say(there, {"type": "event_batch", "payloads": ["Yw==", "ZA=="], "base_offset": 7})

    async with fake(tmp_path, answer, flags=None) as server, quintet.connect(server.url) as bus:
        assert (await bus.publish("t", b"x")).durable
        assert server.heard[1]["payloads"] == ["eA=="]
        async with bus.subscribe("t") as sub:
            got = [await sub.get() for _ in range(4)]
            assert [msg.value for msg in got] == [b"a", b"b", b"c", b"d"]
            assert [(msg.qos, msg.offset) for msg in got] == [(0, None), (0, None), (0, 7), (0, 8)]
            await got[0].ack()  # there is nothing to say
        with pytest.raises(Unsupported, match="keeps no positions"):
            await bus.subscribe("t", durable="me").open()
        with pytest.raises(Unsupported, match="cache_delete"):
            await bus.kv("c").delete("k")
        assert "ack" not in kinds(server) and "unsubscribe" not in kinds(server)


async def test_large_calls_are_several_frames_and_one_answer(tmp_path: Path) -> None:
    async with fake(tmp_path, friendly) as server, quintet.connect(server.url) as bus:
        ack = await bus.publish_batch("t", [b""] * (felix_batches.FRAME_VALUES_MAX + 5))
        assert ack.count == felix_batches.FRAME_VALUES_MAX + 5
        assert [message["count"] for message in server.heard[1:]] == [felix_batches.FRAME_VALUES_MAX, 5]
        big = bytes(felix_batches.FRAME_VALUE_BYTES_MAX // 2 + 1)
        await asyncio.gather(*(bus.publish("t", big) for _ in range(3)))
        assert [message["count"] for message in server.heard[3:]] == [1, 1, 1]
        await asyncio.gather(*(bus.publish("t", b"x") for _ in range(50)), bus.publish("u", b"y"))
        assert [message["count"] for message in server.heard[6:]] == [50, 1]


async def test_what_one_frame_is_refused_for_is_told_to_its_calls(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "batch" and b"busy" in message["target"]:
            server.send(stream, wire.ack(1, message["request_id"], b"server overloaded: later"))
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        fine, busy = await asyncio.gather(
            bus.publish("t", b"x"), bus.publish_batch("busy", [b"a", b"b"]), return_exceptions=True
        )
        assert isinstance(fine, quintet.Ack)
        assert isinstance(busy, DeliveryError)
        assert [(at, type(why)) for at, why in busy.failures] == [(0, Busy), (1, Busy)]
        with pytest.raises(Busy):
            await bus.publish("busy", b"x")


async def test_a_stream_that_ends_is_opened_again_on_the_same_connection(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "batch" and b"secret" in message["target"]:
            server.send(stream, wire.ack(1, message["request_id"], b"forbidden"), end=True)
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        with pytest.raises(Forbidden):
            await bus.publish("secret", b"x")
        assert (await bus.publish("t", b"x", retry=True)).durable
        assert (server.connections, bus.reconnects, sub.reconnects) == (1, 1, 0)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("auth failed", AuthError), ("tenant mismatch", AuthError), ("forbidden", Forbidden), ("boom", QuintetError)],
)
async def test_refused_at_the_door(tmp_path: Path, text: str, kind: type[QuintetError]) -> None:
    async with fake(tmp_path, friendly) as server:
        server.greet = lambda stream: server.send(stream, wire.frame(codec_error(text)), end=True)
        with pytest.raises(kind, match=text):
            await quintet.connect(server.url).open()


def codec_error(text: str) -> bytes:
    return b'{"type":"error","message":"%s"}' % text.encode()


async def test_a_server_that_is_none(tmp_path: Path) -> None:
    async with fake(tmp_path, friendly) as server:
        server.greet = lambda stream: server.send(stream, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ProtocolError, match="not a frame of Felix"):
            await quintet.connect(server.url).open()
        server.greet = lambda stream: server.say(stream, {"type": "auth_ok", "server_flags": "all"})
        with pytest.raises(ProtocolError, match="answered auth"):
            await quintet.connect(server.url).open()
        server.greet = lambda stream: server.say(stream, {"type": "error", "request_id": [1], "message": 7})
        with pytest.raises(QuintetError):
            await quintet.connect(server.url).open()


@pytest.mark.parametrize(
    "lie",
    [
        {"type": "event", "payload": 7},
        {"type": "event_batch", "payloads": "x"},
        {"type": "lagged", "missed": "many"},
    ],
)
async def test_events_that_cannot_be_read_end_the_subscription(tmp_path: Path, lie: dict[str, Any]) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        friendly(server, stream, message)
        if message["type"] == "subscribe":
            server.say(server.events(message["subscription_id"]), lie)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        with pytest.raises(ProtocolError, match="cannot be read"):
            await bus.subscribe("t").get()
        assert (await bus.publish("t", b"x")).durable


async def test_a_broken_subscription_goes_on_where_it_was(tmp_path: Path) -> None:
    starts: list[object] = []
    streams: list[int] = []

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "subscribe":
            starts.append(message["start"])
            offsets = {"offsets": [39, 50]}
            server.say(stream, {"type": "subscribed", "subscription_id": message["subscription_id"], **offsets})
            streams.append(server.events(message["subscription_id"]))
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        async with bus.subscribe("t", start=39) as sub:
            server.send(streams[0], events(39, b"before"))
            await (await sub.get()).ack()
            await sub.flush()
            server.endpoint.reset(server.connection, streams[0], felix.TOO_SLOW)
            await until(lambda: len(streams) == 2)
            server.send(streams[1], events(40, b"a", b"b", b"c") + events(1 << 48 | 50, b"x"))
            first, second = await sub.get(), await sub.get()
            await second.ack()
            await sub.flush()
            assert [(msg.partition, msg.offset, msg.redelivered) for msg in (first, second)] == [
                (0, 40, False), (0, 41, False),
            ]  # fmt: skip
            server.endpoint.reset(server.connection, streams[1], felix.TOO_SLOW)
            await until(lambda: len(streams) == 3)
            server.send(streams[2], events(40, b"a", b"b", b"c") + events(1 << 48 | 50, b"x"))
            got = [await sub.get() for _ in range(3)]
            assert [(msg.value, msg.redelivered) for msg in got] == [(b"a", True), (b"c", True), (b"x", True)]
            assert [(msg.partition, msg.offset) for msg in got] == [(0, 40), (0, 42), (1, 50)]
            await until(lambda: sub.reconnects == 2)
        assert starts == [{"offset": 39}, {"offsets": [40, 50]}, {"offsets": [40, 50]}]
        again = [message["ranges"] for message in server.heard if message["type"] == "ack" and message["ranges"]]
        assert again == [[[39, 1]], [[41, 1]], [[41, 1]]]  # acknowledged before, and again when it came again

        async with bus.subscribe("t", qos=0) as sub:
            server.send(streams[3], events(40, b"a", b"b"))
            assert (await sub.get()).value == b"a"
            server.endpoint.reset(server.connection, streams[3], felix.TOO_SLOW)
            await until(lambda: len(streams) == 5)
            assert (await sub.get()).value == b"b"  # nobody else has it
        assert starts[3:] == ["latest", {"offsets": [42, 50]}]


async def test_a_full_queue_is_not_filled_again(tmp_path: Path) -> None:
    starts: list[object] = []
    streams: list[int] = []

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        friendly(server, stream, message)
        if message["type"] == "subscribe":
            starts.append(message["start"])
            streams.append(server.events(message["subscription_id"]))

    async with (
        fake(tmp_path, answer) as server,
        quintet.connect(server.url) as bus,
        bus.subscribe("t", qos=0, prefetch=2) as sub,
    ):
        server.send(streams[0], events(0, b"a", b"b", b"c"))
        await until(lambda: sub.queued == 3)
        server.endpoint.reset(server.connection, streams[0], felix.TOO_SLOW)
        await until(lambda: len([message for message in server.heard if message["type"] == "auth"]) == 3)
        await bus.ping()
        assert starts == ["latest"]
        assert [(await sub.get()).value for _ in range(3)] == [b"a", b"b", b"c"]
        await until(lambda: starts == ["latest", {"offset": 3}])


async def test_what_is_sent_before_the_end_arrives(tmp_path: Path) -> None:
    async with fake(tmp_path, friendly) as server:
        async with quintet.connect(server.url) as bus:
            for _ in range(10):
                await bus.publish("t", bytes(1_000_000), qos=0)
        counts = [message["count"] for message in server.heard if message["type"] == "batch"]
        assert sum(counts) == 10


async def test_what_was_lost_is_told(tmp_path: Path) -> None:
    told: list[object] = []
    streams: list[int] = []

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        friendly(server, stream, message)
        if message["type"] == "subscribe":
            streams.append(there := server.events(message["subscription_id"]))
            lagged = {"subscription_id": message["subscription_id"], "missed": 9, "next_offset": 20}
            server.say(there, {"type": "lagged", **lagged})
            server.send(there, events(20, b"a"))

    async with (
        fake(tmp_path, answer) as server,
        quintet.connect(server.url, on_event=told.append) as bus,
        bus.subscribe("t") as sub,
    ):
        assert (await sub.get()).offset == 20
        await until(lambda: told)
        assert (sub.missed, told) == (9, [Lagged("t", 9, 20)])


async def test_where_a_subscription_cannot_begin(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message.get("stream") == "nothing":
            server.say(stream, {"type": "error", "message": "stream not found: tenant= namespace= stream=nothing"})
        elif message["type"] == "subscribe":
            reason = {"reason": "too_old", "requested": 1, "available": 17}
            server.say(stream, {"type": "subscribe_cursor_error", **reason})
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        with pytest.raises(OffsetNotFound) as raised:
            await bus.subscribe("t", start=1).open()
        assert "17" in raised.value.hint
        with pytest.raises(TopicNotFound):
            await bus.subscribe("nothing").open()
        with pytest.raises(ValueError, match="an offset or a datetime"):
            bus.subscribe("t", start="yesterday")
        with pytest.raises(ValueError, match="one of durable= and group="):
            bus.subscribe("t", durable="a", group="b")
        with pytest.raises(ValueError, match="qos=1"):
            bus.subscribe("t", qos=0, durable="a")


async def test_revoked_credentials_end_everything(tmp_path: Path) -> None:
    async with fake(tmp_path, friendly) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        server.endpoint.shut(server.connection, frames.REVOKED, b"the key was revoked")
        with pytest.raises(AuthError, match="revoked"):
            await sub.get()
        with pytest.raises(AuthError):
            await bus.publish("t", b"x")


async def test_a_closed_connection_comes_back_for_all(tmp_path: Path) -> None:
    async with (
        fake(tmp_path, friendly) as server,
        quintet.connect(server.url) as bus,
        bus.subscribe("t") as sub,
        bus.subscribe("u") as other,
    ):
        server.endpoint.shut(server.connection, 0x53, b"shutting down")
        await until(lambda: sub.reconnects and other.reconnects and bus.reconnects)
        assert server.connections == 2
        assert (await bus.publish("t", b"x")).durable


async def test_packed(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        friendly(server, stream, message)
        if message["type"] == "other":
            server.send(stream, wire.ack(0, 2))
        elif message["type"] == "subscribe":
            there = server.events(message["subscription_id"])
            flags = frames.EVENTS | frames.OFFSETS | frames.ZSTD
            whole, broken = codec.packed(events(3, b"x" * 2_000), 1, 1 << 20), wire.frame(b"no frame of zstd", flags)
            server.send(there, broken if message["stream"] == "broken" else whole)

    async with fake(tmp_path, answer) as server, quintet.connect(f"{server.url}&compression=zstd") as bus:
        assert server.heard[0]["client_flags"] == frames.SERVER_FLAGS
        assert (await bus.publish("t", b"x" * 2_000)).durable
        assert kinds(server) == ["auth", "other"]  # packed: the fake looks no further
        with pytest.raises(ProtocolError, match="does not unpack"):
            await bus.subscribe("broken").get()
        async with bus.subscribe("t") as sub:
            msg = await sub.get()
            assert (msg.offset, len(msg.value)) == (3, 2_000)


async def test_certificates(tmp_path: Path) -> None:
    async with fake(tmp_path, friendly) as server:
        where = server.url.partition("?")[0]
        with pytest.raises(ConnectionLost, match="certificate") as raised:
            await quintet.connect(where).open()
        assert "?ca=" in raised.value.hint
        with pytest.raises(BadUrl, match="cannot read ca="):
            await quintet.connect(f"{where}?ca={tmp_path / 'nothing'}").open()
        (tmp_path / "junk").write_text("junk")
        with pytest.raises(BadUrl, match=r"ca=.* holds no certificate"):
            await quintet.connect(f"{where}?ca={tmp_path / 'junk'}").open()
        with pytest.raises(BadUrl, match="no private key"):
            await quintet.connect(f"{where}?ca={server.ca}&cert={server.ca}").open()
        with pytest.raises(BadUrl, match="tls="):
            await quintet.connect(server.url, tls=ssl.create_default_context()).open()
    with pytest.raises(ConnectionLost, match="nobody listens there") as raised:
        await quintet.connect(server.url).open()
    assert "serve --dev" in raised.value.hint
    with pytest.raises(ConnectionLost, match="cannot find"):
        await quintet.connect("felix://:k@no.such.host.invalid").open()


@pytest.mark.parametrize(
    ("url", "topic", "parts"),
    [
        ("felix://:k@h", "orders", ("", "", "orders")),
        ("felix://:k@h", "a/b/c", ("a", "b", "c")),
        ("felix://:k@h", "a/b", ("", "", "a/b")),
        ("felix://:k@h?tenant=t&namespace=n", "orders", ("t", "n", "orders")),
        ("felix://:k@h?tenant=t&namespace=n", "a/b/c", ("a", "b", "c")),
        ("felix://:k@h?tenant=t", "orders", ("", "", "orders")),
        ("felix://:x.eyJ0aWQiOiJhY21lIn0.y@h?namespace=n", "orders", ("acme", "n", "orders")),
        ("felix://:x.not-json.y@h?namespace=n", "orders", ("", "", "orders")),
    ],
)
def test_names(url: str, topic: str, parts: tuple[str, str, str]) -> None:
    names = Names.of(parse(url))
    assert names.split(topic) == parts
    assert codec.parse_target(names.target(topic)) == parts


def test_scopes() -> None:
    assert Names("", "").scope("c") == ("default", "default", "c")
    assert Names("t", "").scope("c") == ("t", "default", "c")
    assert Names("t", "n").scope("x/y/z") == ("x", "y", "z")
