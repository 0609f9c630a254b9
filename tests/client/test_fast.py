"""The Fast door against a real broker: confirmed publishes, named refusals, keys that rotate; and against a server that lies."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import quintet
from quintet.client.core.errors import (
    ALL,
    AuthError,
    BadUrl,
    ConnectionLost,
    DeliveryError,
    Forbidden,
    ProtocolError,
    SubscriptionEnded,
    Taken,
    Timeout,
    TopicNotFound,
    Unsupported,
    WrongKey,
)
from quintet.client.links import fast
from quintet.client.links.fast import KeyUpdate, Queues
from quintet.model.errors import QuintetError
from quintet.protocols.fast import errors as wire
from quintet.protocols.fast import frames
from tests.client.server import Server, running
from tests.wire import fast as packets


async def test_publish_and_receive(server: Server, topic: str) -> None:
    async with quintet.connect(server.fast) as bus:
        await Queues(bus).create(topic)
        async with bus.subscribe(topic) as sub:
            assert await bus.publish(topic, {"n": 0}) == quintet.Ack(topic, 1, True)
            await bus.publish_batch(topic, [f"{n}" for n in range(1, 1_000)])
            await bus.publish(topic, b"", qos=0)
            await bus.ping()
            got: list[bytes] = []
            async for batch in sub.batches():
                got += batch.values
                await batch.ack()
                if len(got) == 1_001:
                    break
            assert got == [b'{"n":0}', *(b"%d" % n for n in range(1, 1_000)), b""]
            assert sub.connected
        async with bus.producer(topic) as producer:
            for n in range(10_000):
                producer.send(n)
        assert producer.confirmed == 10_000


async def test_messages_need_no_acknowledgement(server: Server, topic: str) -> None:
    async with quintet.connect(server.fast) as bus:
        await Queues(bus).create(topic)
        async with bus.subscribe(topic) as sub:
            await bus.publish(topic, "hello")
            msg = await sub.get()
            assert (msg.topic, msg.value, msg.qos, msg.tag, msg.key) == (topic, b"hello", 0, 0, None)
            await msg.ack()
            async with msg.process():
                assert msg.text() == "hello"
            with pytest.raises(Unsupported, match="no id"):
                _ = sub.id


async def test_every_message_of_many_callers_is_confirmed(server: Server, topic: str) -> None:
    async with quintet.connect(server.fast) as bus:
        await asyncio.gather(*(Queues(bus).create(f"{topic}-{n}", durable=n % 2 == 0) for n in range(4)))
        acks = await asyncio.gather(*(bus.publish(f"{topic}-{n % 4}", n) for n in range(400)))
        assert [ack.topic for ack in acks] == [f"{topic}-{n % 4}" for n in range(400)]
        assert all(ack.durable for ack in acks)


async def test_a_durable_queue_keeps_what_nobody_read(server: Server, topic: str) -> None:
    async with quintet.connect(server.fast) as bus:
        await Queues(bus).create(topic, durable=True)
        await bus.publish_batch(topic, ["a", "b"])
        async with bus.subscribe(topic) as sub:
            assert [(await sub.get()).text(), (await sub.get()).text()] == ["a", "b"]


async def test_competing_subscribers_share(server: Server, topic: str) -> None:
    async with quintet.connect(server.fast) as bus:
        await Queues(bus).create(topic, queue=True)
        async with bus.subscribe(topic) as one, bus.subscribe(topic) as two:
            await bus.publish_batch(topic, [b"%d" % n for n in range(100)])
            got: list[bytes] = []

            async def read(sub: quintet.Subscription) -> None:
                async for batch in sub.batches(wait=0):
                    got.extend(batch.values)

            readers = [asyncio.create_task(read(sub)) for sub in (one, two)]
            async with asyncio.timeout(30):
                while len(got) < 100:
                    await asyncio.sleep(0.01)
            for reader in readers:
                reader.cancel()
            assert sorted(got, key=int) == [b"%d" % n for n in range(100)]


async def test_an_exclusive_queue_has_one_subscriber(server: Server, topic: str) -> None:
    async with quintet.connect(server.fast) as bus:
        await Queues(bus).create(topic, exclusive=True)
        async with bus.subscribe(topic):
            with pytest.raises(Taken):
                await bus.subscribe(topic).open()
        async with bus.subscribe(topic):
            pass


async def test_refusals_are_named(server: Server, topic: str) -> None:
    where = f"127.0.0.1:{server.ports['fast']}"
    async with quintet.connect(server.fast) as bus:
        await Queues(bus).create(topic)
        with pytest.raises(TopicNotFound, match="404"):
            await bus.publish("no such queue", b"x")
        with pytest.raises(DeliveryError) as raised:
            await bus.publish_batch("no such queue", [b"x", b"y"])
        assert [(at, type(why)) for at, why in raised.value.failures] == [(0, TopicNotFound), (1, TopicNotFound)]
        with pytest.raises(TopicNotFound):
            await bus.subscribe("no such queue").open()
    async with quintet.connect(f"fast://:{server.token('eve', 'other')}@{where}") as bus:
        with pytest.raises(WrongKey, match="419"):
            await bus.publish(topic, b"x")
        with pytest.raises(WrongKey):
            await bus.publish_batch(topic, [b"x"] * 50)  # the broker closes at the tenth
        with pytest.raises(QuintetError):
            await Queues(bus).create(topic)
    async with quintet.connect(f"fast://:{server.token('bob', 'k', 'subscribe')}@{where}") as bus:
        with pytest.raises(Forbidden):
            await bus.publish(topic, b"x")
    with pytest.raises(AuthError, match="401"):
        await quintet.connect(f"fast://:{server.token()[:-2]}xx@{where}").open()
    past = server.token("ann", "k", "publish", exp=int(time.time()) - 3_600)
    with pytest.raises(AuthError):
        await quintet.connect(f"fast://:{past}@{where}").open()


async def test_rotation_and_renewal(server: Server, topic: str) -> None:
    events: list[object] = []
    async with quintet.connect(server.fast, on_event=events.append) as bus:
        queues = Queues(bus)
        await queues.create(topic)
        async with bus.subscribe(topic) as sub:
            await queues.rotate(topic, "k2")
            async with asyncio.timeout(30):
                while not events:
                    await asyncio.sleep(0.01)
            assert events == [KeyUpdate(topic, "k2")]
            with pytest.raises(WrongKey):
                await bus.publish(topic, b"old")
            await queues.renew(server.token("ann", "k2"))
            await bus.publish(topic, b"new")
            assert (await sub.get()).value == b"new"


async def test_eviction_ends_the_subscription_and_says_why() -> None:
    with running(QUINTET_LISTENERS__FAST__ROTATION_GRACE_SECONDS="0") as server:
        async with quintet.connect(server.fast) as bus:
            await Queues(bus).create("q")
            async with bus.subscribe("q") as sub:
                await Queues(bus).rotate("q", "k2")
                with pytest.raises(SubscriptionEnded, match="rotated"):
                    await sub.get(timeout=60)


async def test_it_comes_back(own_server: Server) -> None:
    async with quintet.connect(own_server.fast) as bus:
        await Queues(bus).create("q", durable=True)
        async with bus.subscribe("q") as sub:
            await bus.publish("q", b"1")
            assert (await sub.get()).value == b"1"
            own_server.kill()
            own_server.start()
            await bus.publish("q", b"2", retry=True)
            while (await sub.get()).value != b"2":  # a broker that was killed may not know that 1 was delivered
                pass
            assert sub.reconnects == 1


async def test_the_other_operations_are_refused_before_anything_is_sent(server: Server, topic: str) -> None:
    async with quintet.connect(server.fast) as bus:
        for option in ({"partition": 0}, {"schema": "s"}, {"delay": 1.0}):
            with pytest.raises(Unsupported):
                await bus.publish(topic, b"x", **option)
        with pytest.raises(Unsupported):
            bus.subscribe(topic, resume=1)
        with pytest.raises(Unsupported, match="no operation METADATA"):
            await bus.request("METADATA")
        with pytest.raises(TypeError, match="topic="):
            await bus.request("CREATE")
        with pytest.raises(TypeError, match="no field colour"):
            await bus.request("CREATE", topic=topic, colour=1)


def test_urls() -> None:
    with pytest.raises(BadUrl, match="no token"):
        quintet.connect("fast://127.0.0.1")
    with pytest.raises(BadUrl, match="256 bytes"):
        quintet.connect(f"fast://:{'x' * 256}@127.0.0.1")
    assert "x" * 200 not in repr(quintet.connect(f"fast://:{'x' * 200}@127.0.0.1")._setup)


@pytest.mark.parametrize("code", wire.CODES)
def test_every_code_has_an_error(code: int) -> None:
    error = fast.error_of(code, b"because")
    assert error.message == f"because (ERROR {code})"
    assert type(error) in ALL
    assert error.retryable is (code == wire.UNAVAILABLE)
    assert wire.CODES[code] in str(fast.error_of(code, b""))


# -- a server that lies ------------------------------------------------------------------------------------------------

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Script) -> AsyncIterator[str]:
    """A server whose connections do what the script says; all of them are over at the end."""
    over: set[asyncio.Task[None]] = set()

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        over.add(task)
        try:
            await serve(reader, writer)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client had enough of it
        finally:
            writer.close()

    server = await asyncio.start_server(each, "127.0.0.1", 0)
    try:
        yield f"fast://:t@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.wait(over)


@asynccontextmanager
async def lying(script: Script) -> AsyncIterator[str]:
    """A server that is polite during the handshake and then does what the script says."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(2)
        writer.write(packets.ok(frames.EXTEND, 0))
        await reader.readexactly(2 + 1 + 4)
        writer.write(packets.error(frames.UNSUBSCRIBE, 0, wire.NO_TOPIC, "no such topic"))
        await script(reader, writer)
        await reader.read()  # until the client is done

    async with serving(serve) as url:
        yield url


@pytest.mark.parametrize(
    "data",
    [
        b"\x99",
        packets.ok(frames.PUBLISH, 7),
        b"\x7e\x03\x00\x00\x00\x07\x00\x05\x00",
        b"\x04\x00\x00\x00\x07\xff\xff\xff\xff",
    ],
)
async def test_what_is_no_packet_ends_the_connection(data: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(data)

    async with lying(script) as url, quintet.connect(url) as bus:
        with pytest.raises(ProtocolError):
            await bus.publish("q", b"x", timeout=30)


async def test_a_late_answer_to_a_publish_is_not_taken_for_the_next_ones() -> None:
    go = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = len(packets.publish(b"", 0, b"x"))
        first = await reader.readexactly(size)
        topic = int.from_bytes(first[2:6], "big")
        await reader.readexactly(size)
        writer.write(packets.error(frames.PUBLISH, topic, wire.NO_TOPIC, "late"))
        writer.write(packets.ok(frames.PUBLISH, topic)[:5])
        await writer.drain()
        await go.wait()
        writer.write(packets.ok(frames.PUBLISH, topic)[5:])

    async with lying(script) as url, quintet.connect(url) as bus:
        with pytest.raises(Timeout):
            await bus.publish("q", b"x", timeout=0.05)
        second = asyncio.create_task(bus.publish("q", b"x"))
        await asyncio.sleep(0.05)
        assert not second.done()
        go.set()
        assert (await second).durable


async def test_a_server_that_does_not_know_extend() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with serving(serve) as url:
        with pytest.raises(ConnectionLost) as raised:
            await quintet.connect(url).open()
        assert "EXTEND" in raised.value.hint


async def show(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, code: int = wire.NO_TOPIC) -> bytes:
    """Take what a renewal shows its token with, and answer."""
    packet = await reader.readexactly(2 + 1 + 4)
    writer.write(packets.error(frames.UNSUBSCRIBE, 0, code, "of no topic"))
    return packet


async def renewing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """A SUBSCRIBE, answered, and a renewal up to its own SUBSCRIBE, which is not. On the link for publishing, where
    nothing is subscribed, there is no more than the renewal: EOF is not far."""
    size = len(packets.subscribe(b"", 0))
    kind = await reader.readexactly(1)
    if kind[0] == frames.UNSUBSCRIBE:
        await reader.readexactly(size)
        writer.write(packets.error(frames.UNSUBSCRIBE, 0, wire.NO_TOPIC, "of no topic"))
        await reader.readexactly(1)
    topic = int.from_bytes((await reader.readexactly(size - 1))[-4:], "big")
    writer.write(packets.ok(frames.SUBSCRIBE, topic))
    assert await show(reader, writer) == packets.unsubscribe(b"u", 0)
    assert await reader.readexactly(size) == packets.subscribe(b"", topic)
    return topic


async def test_an_end_that_crosses_a_renewal_is_not_its_answer() -> None:
    """ERROR 410 comes by itself: the OK behind it belongs to the SUBSCRIBE that was under way."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        topic = await renewing(reader, writer)
        writer.write(packets.error(frames.SUBSCRIBE, topic, wire.ENDED, "grace is over"))
        writer.write(packets.ok(frames.SUBSCRIBE, topic) + packets.message(topic, b"after"))

    async with lying(script) as url, quintet.connect(url) as bus, bus.subscribe("q") as sub:
        await bus.request("RENEW", token="u")
        assert (await asyncio.wait_for(sub.get(), 30)).value == b"after"
        assert sub.reconnects == 0


async def test_an_end_that_crosses_a_renewal_that_is_refused_is_the_end() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        topic = await renewing(reader, writer)
        writer.write(packets.error(frames.SUBSCRIBE, topic, wire.ENDED, "grace is over"))
        writer.write(packets.error(frames.SUBSCRIBE, topic, wire.KEY, "not this one either"))

    async with lying(script) as url, quintet.connect(url) as bus, bus.subscribe("q") as sub:
        with pytest.raises(WrongKey):
            await Queues(bus).renew("u")
        with pytest.raises(SubscriptionEnded):
            await asyncio.wait_for(sub.get(), 30)


async def test_a_link_that_refuses_a_renewal_does_not_keep_others_from_theirs() -> None:
    """One subscription cannot go on with the new token; the other, and the bus, can."""
    renewed: list[int] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        topic = await renewing(reader, writer)
        renewed.append(topic)
        writer.write(packets.error(frames.SUBSCRIBE, topic, wire.KEY, "of another queue"))

    async with lying(script) as url, quintet.connect(url) as bus, bus.subscribe("q"), bus.subscribe("r"):
        with pytest.raises(WrongKey):
            await Queues(bus).renew("u")
        assert len(set(renewed)) == 2


# -- the token is shown once -------------------------------------------------------------------------------------------


async def publishes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> list[bytes]:
    """The tokens of so many PUBLISHes of one byte, each answered."""
    tokens = []
    for _ in range(count):
        head = await reader.readexactly(2)
        assert head[0] == frames.PUBLISH
        tokens.append(await reader.readexactly(head[1]))
        rest = await reader.readexactly(4 + 4 + 1)
        writer.write(packets.ok(frames.PUBLISH, int.from_bytes(rest[:4], "big")))
    return tokens


async def test_the_token_is_shown_once_and_again_when_it_changes() -> None:
    """Also what is published before the answer to the new one came must not be taken under the old one."""
    tokens: list[bytes] = []
    shown = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tokens.extend(await publishes(reader, writer, 2))
        packet = await reader.readexactly(2 + 1 + 4)
        assert packet == packets.unsubscribe(b"u", 0)
        shown.set()
        tokens.extend(await publishes(reader, writer, 1))
        writer.write(packets.error(frames.UNSUBSCRIBE, 0, wire.NO_TOPIC, "of no topic"))
        tokens.extend(await publishes(reader, writer, 1))

    async with lying(script) as url, quintet.connect(url) as bus:
        await bus.publish("q", b"1")
        await bus.publish("q", b"2")
        renewal = asyncio.create_task(Queues(bus).renew("u"))
        await asyncio.wait_for(shown.wait(), 30)
        await bus.publish("q", b"3")
        await renewal
        await bus.publish("q", b"4")
    assert tokens == [b"", b"", b"u", b""]


async def test_a_token_that_was_refused_is_not_left_out() -> None:
    """Without it the server would go on with the one before."""
    tokens: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await show(reader, writer, wire.TOKEN)
        tokens.extend(await publishes(reader, writer, 2))

    async with lying(script) as url, quintet.connect(url) as bus:
        with pytest.raises(AuthError):
            await Queues(bus).renew("u")
        await bus.publish_batch("q", [b"1", b"2"])
    assert tokens == [b"u", b"u"]


async def test_every_request_goes_without_its_token_and_is_judged_by_it(server: Server, topic: str) -> None:
    sent: list[bytes] = []
    async with quintet.connect(server.fast) as bus:
        link = bus._channel.current if bus._channel else None
        assert isinstance(link, fast.FastConnection)
        write = link.write

        def noted(data: bytes) -> None:
            sent.append(data)
            write(data)

        link.write = noted  # type: ignore[method-assign]
        await Queues(bus).create(topic)
        await bus.publish(topic, b"x")
        await Queues(bus).rotate(topic, "k2")
        with pytest.raises(WrongKey):
            await bus.publish(topic, b"y")
        await Queues(bus).renew(server.token("ann", "k2"))
        await bus.publish(topic, b"z")
        shown = [(packet[0], packet[1]) for packet in sent]
        new = len(server.token("ann", "k2"))
        assert shown == [
            (frames.CREATE, 0), (frames.PUBLISH, 0), (frames.ROTATE_KEY, 0), (frames.PUBLISH, 0),
            (frames.UNSUBSCRIBE, new), (frames.PUBLISH, 0),
        ]  # fmt: skip
