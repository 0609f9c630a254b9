"""The Felix client in trouble: lost connections, odd servers, streams nobody asked for, retention, cancelled closing."""

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quintet
from quintet.client.core.errors import (
    BadName,
    Closed,
    ConnectionLost,
    LimitExceeded,
    OffsetNotFound,
    SubscriptionEnded,
)
from quintet.client.links import quic
from quintet.client.links.felix_source import Lagged
from quintet.protocols.felix import frames
from tests.client.fake import until
from tests.client.fake_felix import FakeFelix, Message, fake
from tests.client.server import Server
from tests.client.test_felix_fake import events, friendly, kinds
from tests.wire import felix as wire


def subscribed(server: FakeFelix, stream: int, message: Message, *frames: bytes) -> int:
    """A subscription that is taken, and what comes by it; its event stream."""
    server.say(stream, {"type": "subscribed", "subscription_id": message["subscription_id"]})
    opened = server.events(message["subscription_id"])
    for frame in frames:
        server.send(opened, frame)
    return opened


# -- with a broker -----------------------------------------------------------------------------------------------------


async def test_a_durable_name_is_not_taken_to_and_fro(server: Server, topic: str) -> None:
    async with (
        quintet.connect(server.felix) as first,
        quintet.connect(server.felix) as second,
        first.subscribe(topic, durable="one", start="earliest") as loser,
        second.subscribe(topic, durable="one") as winner,
    ):
        with pytest.raises(SubscriptionEnded, match="another client subscribed as durable 'one'"):
            await loser.get(timeout=60)
        await first.publish(topic, b"x")
        assert (await winner.get(timeout=60)).value == b"x"
        assert winner.reconnects == 0


async def test_a_cache_ends_with_its_bus(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        cache = bus.kv(topic)
        await cache.put("k", b"v")
        watch = cache.watch()
    with pytest.raises(Closed):
        await cache.get("k")
    with pytest.raises(Closed):
        await watch.open()


async def test_keys_ages_and_names_are_checked(server: Server, topic: str) -> None:
    async with quintet.connect(server.felix) as bus:
        cache = bus.kv(topic)
        bad: Any = b"bytes"
        with pytest.raises(TypeError, match="a key is text"):
            await cache.get(bad)
        with pytest.raises(ValueError, match="UTF-8"):
            await cache.put("\udcff", b"v")
        for ttl in (float("inf"), float("nan"), 0, -1):
            with pytest.raises(ValueError, match="ttl is a number of seconds"):
                await cache.put("k", b"v", ttl=ttl)
        with pytest.raises(BadName) as raised:
            bus.kv("a/b")
        assert "TENANT/NAMESPACE/NAME" in raised.value.hint
        with pytest.raises(ValueError, match="an offset or a datetime"):
            bus.subscribe(topic, start=-1)


def test_where_a_subscription_begins_on_the_command_line(server: Server, topic: str) -> None:
    def run(*arguments: str, url: str = server.felix, status: int = 0) -> str:
        command = [sys.executable, "-m", "quintet", *arguments]
        environment = {**os.environ, "QUINTET_URL": url}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout if status == 0 else done.stderr

    run("pub", topic, "one", "two", "three")
    begin = ("sub", topic, "--timeout", "20", "--count", "1", "--from")
    assert [run(*begin, start) for start in ("1", "-10m")] == ["two\n", "one\n"]
    assert "is not a position: write earliest, latest, an offset, -10m" in run(*begin, "soon", status=2)
    assert "the nearest that can be read is 3" in run(*begin, "99", status=1)
    assert "is for FlyMQ and Felix, not for blipmq" in run(*begin, "1", url=server.url, status=2)
    assert "--from an offset or a time is for Felix, not for flymq" in run(*begin, "1", url=server.fly, status=2)


# -- with servers that do what they are told ---------------------------------------------------------------------------


async def test_a_small_queue_stays_small(tmp_path: Path) -> None:
    """What comes before the subscription is handed out fills the queue, and pauses it all the same."""
    opened = []

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "subscribe":
            opened.append(server.events(message["subscription_id"]))
            server.send(opened[0], events(0, *[b"x"] * 20))
            said = {"type": "subscribed", "subscription_id": message["subscription_id"]}
            asyncio.get_running_loop().call_later(0.2, server.say, stream, said)
        else:
            friendly(server, stream, message)

    async with (
        fake(tmp_path, answer) as server,
        quintet.connect(server.url) as bus,
        bus.subscribe("t", qos=0, prefetch=10) as sub,
    ):
        for at in range(100):
            server.send(opened[0], events(20 + at, bytes(100_000)))
        for _ in range(20):
            await bus.publish("t", b"a round trip")
        assert 20 <= sub.queued < 60  # the window of the stream, and no more
        assert [(await sub.get(timeout=60)).offset for _ in range(120)] == list(range(120))


async def test_a_message_that_failed_comes_again_over_a_lost_connection(tmp_path: Path) -> None:
    """What was given back is the server's to bring again; it may be gone before it does."""
    asked: list[Any] = []

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] != "subscribe":
            friendly(server, stream, message)
            return
        asked.append(message["start"])
        first = 0 if len(asked) == 1 else message["start"]["offset"]
        subscribed(server, stream, message, events(first, *[b"%d" % at for at in range(first, 3)]))

    async with (
        fake(tmp_path, answer) as server,
        quintet.connect(server.url) as bus,
        bus.subscribe("t", start="earliest") as sub,
    ):
        for _ in range(3):
            message = await sub.get()
            async with message.process():
                if message.offset == 1:
                    raise RuntimeError("not this time")
        server.endpoint.shut(server.connection, 0x53, b"shutting down")
        again = await sub.get(timeout=60)
        assert (asked, again.value, again.redelivered) == (["earliest", {"offset": 1}], b"1", True)


async def test_what_retention_took_meanwhile_is_passed_over_and_told(tmp_path: Path) -> None:
    """A subscription that came back to an offset that was gone came back for ever."""
    told: list[object] = []
    asked: list[Any] = []

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] != "subscribe":
            friendly(server, stream, message)
            return
        asked.append(message["start"])
        if len(asked) == 1:
            subscribed(server, stream, message, events(4, b"4"))
        elif message["start"] == {"offset": 5}:
            gone = {"reason": "too_old", "requested": 5, "available": 17, "request_id": message["request_id"]}
            server.say(stream, {"type": "subscribe_cursor_error", **gone})
        else:
            subscribed(server, stream, message, events(17, b"17"))

    async with (
        fake(tmp_path, answer) as server,
        quintet.connect(server.url, on_event=told.append) as bus,
        bus.subscribe("t", start=4) as sub,
    ):
        await (await sub.get()).ack()
        server.endpoint.shut(server.connection, 0x53, b"shutting down")
        assert (await sub.get(timeout=60)).value == b"17"
        assert (asked, sub.missed, told) == ([{"offset": 4}, {"offset": 5}, {"offset": 17}], 12, [Lagged("t", 12, 17)])


async def test_a_topic_that_is_shorter_than_it_was_is_read_from_its_beginning(tmp_path: Path) -> None:
    """A topic in memory is gone with its broker: the offset that was next is behind the end of the new one, whose offsets
    are those of messages that were acknowledged."""
    asked: list[Any] = []

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] != "subscribe":
            friendly(server, stream, message)
            return
        asked.append(message["start"])
        if message["start"] == {"offset": 2}:
            gone = {"reason": "in_future", "requested": 2, "available": 1, "request_id": message["request_id"]}
            server.say(stream, {"type": "subscribe_cursor_error", **gone})
        else:
            subscribed(server, stream, message, events(0, *([b"a", b"b"] if len(asked) == 1 else [b"new"])))

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        for _ in range(2):
            await (await sub.get()).ack()
        server.endpoint.shut(server.connection, 0x53, b"shutting down")
        assert (await sub.get(timeout=60)).value == b"new"
        assert asked == ["latest", {"offset": 2}, {"offset": 0}]


async def test_a_server_that_is_never_content_with_an_offset(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "subscribe":
            gone = {"reason": "too_old", "requested": 5, "available": 5}
            server.say(stream, {"type": "subscribe_cursor_error", **gone})
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        with pytest.raises(OffsetNotFound):
            await bus.subscribe("t", start=5).open()


async def test_acknowledged_messages_are_remembered_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quintet.client.links.felix_source.ACKED_TAGS_MAX", 10)
    subscriptions = 0

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        nonlocal subscriptions
        if message["type"] == "subscribe":
            subscribed(server, stream, message, events(subscriptions * 8, *[b"x"] * 8))
            subscriptions += 1
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        source: Any = sub.source
        for turn in range(1, 5):
            for _ in range(8):
                await (await sub.get(timeout=60)).ack()
            server.endpoint.shut(server.connection, 0x53, b"shutting down")
            while sub.reconnects < turn:
                await asyncio.sleep(0.01)
        assert len(source._acked_before) <= 10 + 8


async def test_an_empty_batch_is_nothing(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "subscribe":
            empty = wire.json_frame({"type": "event_batch", "payloads": []})
            subscribed(server, stream, message, empty, events(0, b"x"))
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        assert (await sub.get()).value == b"x"


async def test_a_second_event_stream_of_one_subscription_is_nobodys(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "subscribe":
            one = subscribed(server, stream, message)
            other = server.events(message["subscription_id"])
            server.send(other, events(7, b"not asked for"))
            server.send(one, events(0, b"x"))
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        assert (await sub.get()).value == b"x"
        await bus.publish("t", b"a round trip")
        assert sub.queued == 0


async def test_streams_that_nobody_asked_for_are_given_up(tmp_path: Path) -> None:
    """A first frame that does not end is not kept; and what follows on a stream that was given up begins nothing."""

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "subscribe":
            subscribed(server, stream, message)
            hello = json.dumps({"type": "event_stream_hello", "subscription_id": message["subscription_id"]}).encode()
            endless = server.endpoint.open(server.connection, False)
            server.send(endless, frames.HEADER.pack(frames.MAGIC, frames.VERSION, 0, 1 << 24) + bytes(100_000))
            server.send(endless, wire.frame(hello) + events(9, b"forged"))
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        await bus.publish("t", b"a round trip")
        flows = _connection(bus)._flows
        await until(lambda: sum(stream & 3 == 3 for stream in flows) == 1)
        assert sub.queued == 0


async def test_data_of_a_forgotten_stream_begins_nothing(tmp_path: Path) -> None:
    async with fake(tmp_path, friendly) as server, quintet.connect(server.url) as bus, bus.subscribe("t") as sub:
        connection = _connection(bus)
        connection._flows[3] = connection._incoming(3)
        connection.forget(3)
        hello = wire.json_frame({"type": "event_stream_hello", "subscription_id": 1})
        connection._on((quic.DATA, connection._number, 3, hello + events(9, b"forged"), False))
        assert sub.queued == 0 and 3 not in connection._flows


async def test_what_no_reader_expects_ends_the_subscription_and_nothing_else(tmp_path: Path) -> None:
    said = b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}"

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "subscribe":
            subscribed(server, stream, message, wire.frame(said))
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        with pytest.raises(quintet.errors.ProtocolError):
            async with bus.subscribe("t") as sub:
                await sub.get(timeout=60)
        assert (await bus.publish("t", b"x")).durable


async def test_closing_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] != "unsubscribe":
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        sub = bus.subscribe("t")
        await sub.open()
        closing = asyncio.create_task(sub.close())
        await until(lambda: "unsubscribe" in kinds(server))
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.sleep(0)
        trunk = bus._setup.connector._trunk  # type: ignore[attr-defined]
        assert (len(trunk.streams), trunk.listeners) == (1, {})


async def test_a_watch_that_could_not_open_can_be_opened_later(tmp_path: Path) -> None:
    refuse = True

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        if message["type"] == "cache_watch" and refuse:
            server.say(stream, {"type": "error", "message": "server overloaded", "request_id": message["request_id"]})
        else:
            friendly(server, stream, message)

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        watch = bus.kv("c").watch()
        with pytest.raises(quintet.errors.Busy):
            await watch.open()
        refuse = False
        await watch.open()
        assert kinds(server).count("cache_watch") == 2
        await watch.close()


async def test_a_key_that_came_back_is_not_told_to_be_gone(tmp_path: Path) -> None:
    """After a lost connection: the answer that it was gone, read before the change that brought it back, behind it."""
    watches = 0

    def change(version: int) -> Message:
        return {"type": "cache_event", "key": "k", "value": "eA==", "version": version}

    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        nonlocal watches
        id = message.get("request_id")
        if message["type"] == "cache_watch":
            watches += 1
            subscribed(server, stream, message, wire.json_frame(change(watches)))
        elif message["type"] == "cache_get":
            gone = {"type": "cache_value", "key": "k", "value": None, "request_id": id}
            asyncio.get_running_loop().call_later(0.1, server.say, stream, gone)
        else:
            friendly(server, stream, message)

    async with (
        fake(tmp_path, answer) as server,
        quintet.connect(server.url) as bus,
        bus.kv("c").watch(prefix="k") as changes,
    ):
        assert (await changes.get()).version == 1
        server.endpoint.shut(server.connection, 0x53, b"shutting down")
        assert (await changes.get(timeout=30)).version == 2
        with pytest.raises(quintet.errors.Timeout):
            await changes.get(timeout=0.5)


async def test_a_tenant_s_limit_says_what_to_raise(tmp_path: Path) -> None:
    def answer(server: FakeFelix, stream: int, message: Message) -> None:
        text = "tenant 't1' has 2 streams, its limit is 2"
        server.send(stream, wire.ack(1, message["request_id"], text.encode()))

    async with fake(tmp_path, answer) as server, quintet.connect(server.url) as bus:
        with pytest.raises(LimitExceeded) as raised:
            await bus.publish("t", b"x")
        assert "[[tenants]]" in raised.value.hint


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "CA:FALSE"),
        ('invalid peer certificate: certificate not valid for name "127.0.0.1"', "into the URL"),
        ("invalid peer certificate: certificate expired: verification time ..", "a new certificate"),
        ("invalid peer certificate: UnknownIssuer", "?ca=FILE"),
    ],
)
def test_what_tls_says_has_its_own_remedy(reason: str, words: str) -> None:
    assert words in quic._closed(0x12A, reason, up=False).hint


async def test_an_address_without_a_socket_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with an IPv6 address, on a machine without IPv6."""
    real: Callable[[int], Any] = quic.endpoint

    def endpoint(family: int) -> Any:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family)

    async def places(where: Any) -> list[quic.Address]:
        six = quic.Address(socket.AF_INET6, ("::1", where.port, 0, 0))
        return [six, quic.Address(socket.AF_INET, ("127.0.0.1", where.port))]

    monkeypatch.setattr(quic, "endpoint", endpoint)
    monkeypatch.setattr(quic, "_addresses", places)
    async with fake(tmp_path, friendly) as server, quintet.connect(server.url) as bus:
        assert (await bus.publish("t", b"x")).durable
        monkeypatch.setattr(quic, "endpoint", lambda family: endpoint(socket.AF_INET6))
        with pytest.raises(ConnectionLost, match="no socket: Address family"):
            await quintet.connect(server.url).open()


def _connection(bus: quintet.Bus) -> quic.Connection:
    trunk: Any = bus._setup.connector._trunk  # type: ignore[attr-defined]
    connection: quic.Connection = trunk.quic
    return connection
