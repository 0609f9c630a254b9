"""Peers against a real broker, over WebSocket and over lines: signed, once, acknowledged after use; and against a broker that
lies."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from websockets.asyncio.server import ServerConnection, serve

import quintet
from quintet.client.core.errors import (
    ALL,
    AuthError,
    BadName,
    BadUrl,
    Closed,
    ConnectionLost,
    NameClaimed,
    ProtocolError,
    Taken,
    Timeout,
    TooLarge,
    Unsupported,
)
from quintet.client.links import peerbus, peerbus_wire
from quintet.client.sources import mailbox
from quintet.model import envelope
from quintet.model.envelope import MEMBERS
from quintet.protocols.peerbus import codec
from quintet.protocols.peerbus import errors as wire
from tests.client.server import Server, running

SECRET = "0123456789abcdef0123456789abcdef"
BOTH = pytest.mark.parametrize("lines", [False, True], ids=["websocket", "lines"])


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(peerbus.SECRET_VARIABLE, SECRET)


@pytest.fixture
def names(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Two names of this test's own."""
    short = request.node.name.removeprefix("test_").replace("[", "-").replace("]", "")
    return f"a.{short}", f"b.{short}"


async def quiet(peer: quintet.Peer) -> None:
    """Nothing more comes: a message of its own to itself is the next."""
    await peer.send(peer.name, "nothing before this")
    got = await peer.receive()
    assert got.body == "nothing before this"
    await got.ack()


@BOTH
async def test_send_and_receive(server: Server, names: tuple[str, str], lines: bool) -> None:
    a, b = names
    async with quintet.peer(server.peer(a, lines=lines)) as alice, quintet.peer(server.peer(b, lines=not lines)) as bob:
        body = {"text": "a<b & c>d \u2028 \u00e9", "n": [1, 2.5, None]}
        id = await alice.send(b, body)
        got = await bob.receive()
        assert (got.id, got.sender, got.to, got.kind, got.source) == (id, a, b, "msg", "peer-bus")
        assert got.body == body
        assert got.ts.endswith("Z")
        await got.ack()
        for n in range(100):
            await bob.send(a, n)
        seen = []
        async for message in alice.messages():
            seen.append(message.body)
            if len(seen) == 100:
                await message.ack()
                break
        assert seen == list(range(100))
        assert {a, b} <= set(await alice.peers())
        assert (alice.name, alice.connected, alice.forged, alice.duplicates) == (a, True, 0, 0)
        await quiet(alice)


@BOTH
async def test_broadcast(server: Server, names: tuple[str, str], lines: bool) -> None:
    a, b = names
    async with quintet.peer(server.peer(a, lines=lines)) as alice, quintet.peer(server.peer(b, lines=lines)) as bob:
        await alice.broadcast({"to": "all"})
        got = await bob.receive()
        assert (got.kind, got.to, got.body) == ("broadcast", "*", {"to": "all"})
        await got.ack()
        await quiet(alice)
        await quiet(bob)
        with pytest.raises(ValueError, match="broadcast"):
            await alice.send("*", 1)


@BOTH
async def test_what_is_not_acknowledged_comes_again(server: Server, names: tuple[str, str], lines: bool) -> None:
    a, b = names
    async with quintet.peer(server.peer(a, lines=lines)) as alice:
        async with quintet.peer(server.peer(b, lines=lines)):
            pass
        await alice.send(b, 1)  # it is away, and known
        await alice.send(b, 2)
        async with quintet.peer(server.peer(b, lines=lines)) as bob:
            first = await bob.receive()
            assert first.body == 1
            await first.ack()
            assert (await bob.receive()).body == 2
        async with quintet.peer(server.peer(b, lines=lines)) as bob:
            again = await bob.receive()
            assert again.body == 2
            await again.ack()
        async with quintet.peer(server.peer(b, lines=lines)) as bob:
            await quiet(bob)


async def test_a_message_whose_handling_raised_comes_again(server: Server, names: tuple[str, str]) -> None:
    a, b = names
    async with quintet.peer(server.peer(a)) as alice:
        with pytest.raises(RuntimeError):
            async with quintet.peer(server.peer(b)) as bob:
                await alice.send(b, 1)
                async for _ in bob.messages():
                    raise RuntimeError
        async with quintet.peer(server.peer(b)) as bob:
            got = await bob.receive()
            assert got.body == 1
            await got.ack()


@BOTH
async def test_a_lost_connection_hands_nothing_out_twice(
    server: Server, names: tuple[str, str], lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peerbus_wire, "EARLY_MAX", 0)  # whichever link comes back first: the mailbox has its reader
    a, b = names
    async with quintet.peer(server.peer(a, lines=lines)) as alice, quintet.peer(server.peer(b, lines=lines)) as bob:
        for n in range(3):
            await alice.send(b, n)
        held = await bob.receive()
        settled = await bob.receive()
        await settled.ack()
        _cut(bob)
        await alice.send(b, 3)
        assert [(await bob.receive()).body for _ in range(2)] == [2, 3]
        await bob.peers()  # also the link that publishes is back: either may be the first
        assert bob.reconnects == 1
        assert bob.duplicates >= 1, "the one in our hands was delivered again"
        await held.ack()
        await quiet(bob)


def _cut(peer: quintet.Peer) -> None:
    """End its connection, as a network may."""
    channel = peer._bus._channel
    assert channel is not None and isinstance(channel.current, peerbus_wire.View)
    channel.current.wire.fail(ConnectionLost("a cable was cut"))


async def test_what_is_forged_is_dropped_and_not_acknowledged(
    server: Server, names: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = names
    other = tmp_path / "secret"
    other.write_text("another secret of thirty-two bytes\n")
    async with quintet.peer(server.peer(b)) as bob:
        async with quintet.peer(f"{server.peer(a)}&secret_file={other}") as mallory:
            await mallory.send(b, "forged")
        await quiet(bob)
        assert bob.forged == 1
    async with quintet.peer(server.peer(b)) as bob:
        await quiet(bob)
        assert bob.forged == 1, "it was not acknowledged, so it came again"
    async with quintet.peer(f"{server.peer(b)}&verify=off") as bob:
        got = await bob.receive()
        assert got.body == "forged"
        await got.ack()
    assert sum("signature" in message for message in caplog.messages) == 2


async def test_the_bus_of_this_door(server: Server, names: tuple[str, str]) -> None:
    a, b = names
    async with quintet.connect(server.peer(a)) as alice, quintet.connect(server.peer("x"), name="x") as other:
        with pytest.raises(BadName, match="mailboxes only"):
            await alice.publish("orders", b"1")
        with pytest.raises(BadName, match="one mailbox"):
            alice.subscribe(f"peerbus/{b}")
        async with alice.subscribe(f"peerbus/{a}") as sub:
            with pytest.raises(Taken):
                await alice.subscribe(f"peerbus/{a}").open()
            ack = await other.publish(f"peerbus/{a}", {"n": 1}, key="id-1")
            assert (ack.count, ack.durable) == (1, False)
            await other.publish_batch(f"peerbus/{a}", ["text", b"[ 2 ]", b"\xff"])
            await other.publish("peerbus/*", "all", qos=0)
            msg = await sub.get()
            assert (msg.topic, msg.key, msg.json()) == (f"peerbus/{a}", b"id-1", {"n": 1})
            assert msg.headers is not None
            assert msg.origin == "x"
            async with msg.process():
                pass
            rest = [await sub.get() for _ in range(4)]
            assert [one.value for one in rest] == [b'"text"', b"[2]", b'{"base64":"/w=="}', b'"all"']
            for one in rest:
                await one.ack()
            await sub.flush()
        async with alice.subscribe(f"peerbus/{a}") as sub:
            with pytest.raises(Timeout):
                await sub.get(timeout=0.1)
            with pytest.raises(Unsupported):
                _ = sub.id
        for option in ({"ttl": 1.0}, {"partition": 1}, {"schema": "s"}):
            with pytest.raises(Unsupported):
                await alice.publish(f"peerbus/{a}", 1, **option)
        with pytest.raises(Unsupported, match="no operation"):
            await alice.request("METADATA")
        with pytest.raises(TooLarge):
            await alice.publish(f"peerbus/{a}", "<" * 400_000)


async def test_an_id_that_is_sent_again_is_one_message(server: Server, names: tuple[str, str]) -> None:
    a, b = names
    async with quintet.peer(server.peer(a)) as alice, quintet.peer(server.peer(b)) as bob:
        for _ in range(3):
            assert await alice.send(b, 1, id="once") == "once"
        assert (await bob.receive()).id == "once"
        await quiet(bob)


async def test_messages_that_came_before_anybody_subscribed(
    server: Server, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = names
    for most in (peerbus_wire.EARLY_MAX, 2):
        monkeypatch.setattr(peerbus_wire, "EARLY_MAX", most)
        async with quintet.peer(server.peer(a)) as alice, quintet.connect(server.peer(b)) as bus:
            for n in range(5):
                await alice.send(b, n)
            await bus.ping()
            async with bus.subscribe(f"peerbus/{b}") as sub:
                got = [await sub.get() for _ in range(5)]
                assert [msg.json() for msg in got] == list(range(5))
                for msg in got:
                    await msg.ack()


async def test_a_full_queue_does_not_keep_an_answer_from_being_sent(server: Server, names: tuple[str, str]) -> None:
    a, b = names
    async with quintet.peer(server.peer(a)) as alice, quintet.connect(server.peer(b)) as bus:
        async with bus.subscribe(f"peerbus/{b}", prefetch=1) as sub:
            for n in range(200):
                await alice.send(b, n)
            for _ in range(200):
                msg = await sub.get()
                await bus.publish(f"peerbus/{a}", msg.json())
                await msg.ack()
        got = [await alice.receive() for _ in range(200)]
        assert [message.body for message in got] == list(range(200))


async def test_other_doors_write_to_a_mailbox() -> None:
    with running(QUINTET_PEERS__HMAC_SECRET=SECRET) as server:
        async with quintet.peer(server.peer("bob")) as bob, quintet.connect(server.url) as bus:
            await bob.send("bob", "made")  # the mailbox is there with its first message
            await (await bob.receive()).ack()
            await bus.publish("peerbus/bob", {"from": "blipmq"})
            got = await bob.receive()
            assert (got.source, got.body, got.sender.partition(":")[0]) == ("quintet", {"from": "blipmq"}, "blipmq")
            assert bob.forged == 0


async def test_refusals(server: Server, names: tuple[str, str]) -> None:
    a, _ = names
    async with quintet.peer(server.peer(a)):
        with pytest.raises(AuthError, match="invalid bearer token"):
            await quintet.peer(server.peer("x", token="wrong")).open()
        with pytest.raises(NameClaimed, match="name claimed under a different token"):
            await quintet.peer(server.peer(a, token="dev-key")).open()
    with pytest.raises(BadName, match="invalid peer name"):
        await quintet.peer(server.peer("x%7Cy")).open()
    with pytest.raises(ConnectionLost) as raised:
        await quintet.peer(server.peer("x", lines=True, token="wrong")).open()
    assert "token" in raised.value.hint
    with pytest.raises(ConnectionLost, match="WebSocket"):
        await quintet.peer(f"peerbus://:t@127.0.0.1:{server.ports['flymq']}?name=x", timeout=30).open()


async def test_a_name_is_taken_over(server: Server, names: tuple[str, str]) -> None:
    a, b = names
    async with quintet.peer(server.peer(a), reconnect=False) as old, quintet.peer(server.peer(a)) as new:
        with pytest.raises(ConnectionLost):
            await old.receive(timeout=30)
        async with quintet.peer(server.peer(b)) as bob:
            await bob.send(a, 1)
            assert (await new.receive()).body == 1


async def test_it_comes_back(own_server: Server) -> None:
    async with quintet.peer(own_server.peer("alice")) as alice, quintet.peer(own_server.peer("bob")) as bob:
        await alice.send("bob", 1)
        await (await bob.receive()).ack()
        own_server.kill()
        own_server.start()
        await alice.send("bob", 2, timeout=60)
        got = await bob.receive(timeout=60)
        while got.body != 2:
            got = await bob.receive(timeout=60)
        await got.ack()
        assert alice.reconnects >= 1


def test_urls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BadUrl, match="needs a name"):
        quintet.peer("peerbus://:t@127.0.0.1")
    with pytest.raises(BadUrl, match="says name=a"):
        quintet.peer("peerbus://:t@127.0.0.1?name=a", name="b")
    with pytest.raises(BadUrl, match="the URL is of flymq"):
        quintet.peer("flymq://a:b@127.0.0.1", name="b")
    with pytest.raises(BadUrl, match="cannot read"):
        quintet.peer(f"peerbus://:t@127.0.0.1?name=a&secret_file={tmp_path}/none")
    monkeypatch.setenv(peerbus.SECRET_VARIABLE, "short")
    with pytest.raises(BadUrl, match="5 bytes"):
        quintet.peer("peerbus://:t@127.0.0.1?name=a")
    monkeypatch.delenv(peerbus.SECRET_VARIABLE)
    with pytest.raises(BadUrl) as raised:
        quintet.peer("peerbus://:t@127.0.0.1?name=a")
    assert "verify=off" in raised.value.hint
    assert quintet.peer("peerbus://:t@127.0.0.1?verify=off", name="a").name == "a"
    monkeypatch.setenv(peerbus.SECRET_VARIABLE, SECRET)
    with pytest.raises(BadUrl, match="key of its own"):
        quintet.peer("peerbus://:t@127.0.0.1?name=a&kid=k1")


async def test_keys_of_single_peers(tmp_path: Path) -> None:
    """The broker verifies, and drops what a peer that has a key signed with the shared secret."""
    own = tmp_path / "own"
    own.write_text("the key of alice alone, of 32 bytes\n")
    own.chmod(0o600)
    keys = json.dumps([{"name": "alice", "kid": "k1", "key_file": str(own)}])
    settings = {"HMAC_SECRET": SECRET, "PEER_KEYS": keys, "VERIFY": "true"}
    with running(**{f"QUINTET_PEERS__{name}": value for name, value in settings.items()}) as server:
        async with quintet.peer(f"{server.peer('bob')}&verify=off") as bob:
            async with quintet.peer(server.peer("alice")) as alice:
                await alice.send("bob", "with the shared secret")
            async with quintet.peer(f"{server.peer('alice')}&verify=off&kid=k1&secret_file={own}") as alice:
                await alice.send("bob", "with her own key")
            got = await bob.receive()
            assert (got.sender, got.body) == ("alice", "with her own key")


async def test_it_is_used_inside_its_block(server: Server, names: tuple[str, str]) -> None:
    peer = quintet.peer(server.peer(names[0]))
    with pytest.raises(Closed):
        await peer.receive()
    async with peer:
        assert await peer.drain() == []
        assert await peer.drain(wait=0.01) == []


def test_the_blocking_twin(server: Server, names: tuple[str, str]) -> None:
    a, b = names
    with quintet.sync.peer(server.peer(a)) as alice, quintet.sync.peer(server.peer(b)) as bob:
        alice.send(b, {"n": 1})
        alice.broadcast([2])
        for message in bob.messages():
            assert message.sender == a
            if message.kind == "broadcast":
                assert message.body == [2]
                message.ack()
                break
        assert set(alice.peers()) >= {a, b}
        bob.send(a, 3)
        assert [message.body for message in alice.drain(wait=5)] == [3]


# -- a broker that lies ------------------------------------------------------------------------------------------------

Said = Callable[[list[bytes]], None]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def lying(script: Script) -> AsyncIterator[str]:
    """A broker over lines that takes the register and then does what the script says."""
    over: set[asyncio.Task[None]] = set()

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        over.add(task)
        try:
            assert json.loads(await reader.readline())["type"] == "register"
            writer.write(codec.peers(["bob"]) + b"\n")
            await script(reader, writer)
            await writer.drain()
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(each, "127.0.0.1", 0)
    try:
        yield f"peerbus+tcp://:t@127.0.0.1:{server.sockets[0].getsockname()[1]}?name=bob"
    finally:
        server.close()
        await asyncio.wait(over)


def letter(body: bytes, *, id: str = "1", to: str = "bob", secret: str = SECRET, sender: str = "alice") -> bytes:
    return envelope.sign(secret.encode(), id=id, sender=sender, to=to, ts="2026-05-18T12:00:00Z", body=body)


async def test_only_what_is_genuine_new_and_ours_is_handed_out() -> None:
    acked: list[str] = []
    good = letter(b'{"n":1}')

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for key, data in [
            ("", good),
            ("k0", letter(b"0", secret="f" * 32)),
            ("k1", good.replace(b'"n":1', b'"n":2')),
            ("k2", letter(b"1", to="carol")),
            ("k3", good[:-1] + b',"extra":1}'),
            ("k4", good[:-1] + b',"id":"2"}'),
            ("k5", good),
            ("k6", good),
            ("k7", letter(b'"same id, other sender"', sender="carol")),
            ("k8", letter(b"8", id="8", to="*")),
        ]:
            writer.write(codec.deliver(key, data) + b"\n")
        writer.write(b'{"protocol_version":"v1","type":"deliver","envelope":' + good + b"}\n")
        writer.write(b'{"type":"unheard of"}\n')
        while line := await reader.readline():
            said = json.loads(line)
            if said["type"] == "ack":
                acked.append(said["id"])
                if said["id"] == "k8":
                    writer.write(codec.deliver("k9", good) + b"\n")
            else:
                writer.write(codec.peers(["bob"]) + b"\n")

    async with lying(script) as url, quintet.peer(url) as bob:
        got = [await bob.receive() for _ in range(3)]
        assert [message.body for message in got] == [{"n": 1}, "same id, other sender", 8]
        assert acked == [], "nothing is acknowledged before it is consumed"
        for message in got:
            await message.ack()
        async with asyncio.timeout(30):
            while len(acked) < 5:
                await asyncio.sleep(0.01)
        assert acked == ["k5", "k6", "k7", "k8", "k9"]
        assert (bob.forged, bob.duplicates) == (5, 2)


async def test_the_memory_of_ids_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "SEEN_MAX", 4)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for n in [*range(6), 5, 0]:
            writer.write(codec.deliver(f"k{n}", letter(b"%d" % n, id=f"{n}")) + b"\n")
            while json.loads(await reader.readline())["type"] != "ack":
                writer.write(codec.peers([]) + b"\n")

    async with lying(script) as url, quintet.peer(url) as bob:
        got = []
        async for message in bob.messages():
            got.append(message.body)
            if len(got) == 7:
                break
        assert got == [0, 1, 2, 3, 4, 5, 0], "5 is remembered, 0 was forgotten"
        assert bob.duplicates == 1


ODD_ENVELOPES: Final = (
    *(json.dumps({k: v for k, v in json.loads(letter(b"1")).items() if k != name}).encode() for name in MEMBERS),
    b"null", b"7", b"[]", b'"x"', b"{}", b'{"id":7}', b'{"id":"\\ud800"}', b'{"body":' + b"[" * 3_000 + b"]" * 3_000 + b"}",
)  # fmt: skip


@pytest.mark.parametrize("verify", ["on", "off"])
@pytest.mark.parametrize("odd", ODD_ENVELOPES)
async def test_an_odd_envelope_costs_only_itself(odd: bytes, verify: str) -> None:
    dialled = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dialled
        dialled += 1
        writer.write(codec.deliver("odd", odd) + b"\n")
        writer.write(codec.deliver("good", letter(b'"after"', id="2")) + b"\n")
        while await reader.readline():
            writer.write(codec.peers(["bob"]) + b"\n")

    async with lying(script) as url, quintet.peer(f"{url}&verify={verify}") as bob:
        got = await bob.receive(timeout=30)
        while got.id != "2":
            assert got.body is None or got.body == 1
            got = await bob.receive(timeout=30)
        assert got.body == "after" and await bob.peers() == ["bob"]
        assert dialled == 1


@pytest.mark.parametrize("data", [b"hello\n", b"[]\n", b'{"type":7}\n', b"\xff\xff\n", b'{"type":"deliver"'])
async def test_what_is_no_object_ends_the_connection(data: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if not data.endswith(b"\n"):
            writer.close()

    async with lying(script) as url:
        with pytest.raises((ProtocolError, ConnectionLost)):
            async with quintet.peer(url, reconnect=False) as bob:
                await bob.receive(timeout=30)


async def test_two_with_one_name_do_not_fight_without_pause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    came: list[float] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(asyncio.get_running_loop().time())
        writer.close()

    async with lying(script) as url, quintet.peer(url) as bob:
        async with asyncio.timeout(60):
            while len(came) < 5:
                await asyncio.sleep(0.01)
        door = bob._bus._setup.connector
        assert isinstance(door, peerbus.PeerConnector)
        assert door._pause >= 0.4, "doubled with every connection that did not last"


@pytest.mark.parametrize("close", [value for name, value in vars(wire).items() if name.isupper()])
def test_every_close_has_an_error(close: tuple[int, str]) -> None:
    error = peerbus_wire.closed_because("here", *close)
    assert type(error) in ALL
    assert close[1] in str(error)


# -- WebSocket ---------------------------------------------------------------------------------------------------------


async def test_frames_of_a_websocket() -> None:
    """A message in several frames is one; what is not text is passed over; a close says why."""
    said: list[str] = []

    async def broker(socket: ServerConnection) -> None:
        said.append(str(await socket.recv()))
        await socket.send([codec.peers(["bob"]).decode()[:10], "", codec.peers(["bob"]).decode()[10:]])
        await socket.send(b"binary")
        await (await socket.ping())
        whole = codec.deliver("k", letter(b'"' + b"x" * 500_000 + b'"')).decode()
        await socket.send(whole[at : at + 100_000] for at in range(0, len(whole), 100_000))
        said.append(str(await socket.recv()))
        await socket.close(*wire.REVOKED)

    async with serve(broker, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with quintet.peer(f"peerbus://:t@127.0.0.1:{port}?name=bob") as bob:
            got = await bob.receive()
            assert len(got.body) == 500_000
            await got.ack()
            with pytest.raises(AuthError, match="token revoked"):
                await bob.receive(timeout=30)
    assert [json.loads(one)["type"] for one in said] == ["register", "ack"]


async def test_what_the_broker_would_drop_without_a_word_is_refused_here(
    server: Server, names: tuple[str, str]
) -> None:
    async with quintet.peer(server.peer(names[0])) as me:
        for id in ("a|b", "x" * 257, "a\nb"):
            with pytest.raises(BadName):
                await me.send(me.name, 1, id=id)
        deep: object = 1
        for _ in range(129):
            deep = [deep]
        with pytest.raises(ProtocolError, match="deep"):
            await me.send(me.name, deep)
        await quiet(me)
