"""Hostile and broken QUIC peers of the Felix door: floods, streams, windows, addresses, TLS. What is inside the streams is
test_felix_abuse.py. Each test ends with the broker serving others; growth is measured from outside, as the process's memory.
"""

import asyncio
import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.tls import SessionTicket

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.net.certificates import CERTIFICATE_NAME, KEY_NAME, development_certificate
from quintet.net.listener import SWEEP_S, ListenerOptions
from quintet.net.quic.listener import EMPTY_US
from quintet.protocols.base import LOST
from quintet.protocols.felix.section import FelixListener
from quintet.protocols.felix.session import FelixSession
from quintet.testing.line import SimBroker
from tests.abuse.felix_clients import Client, probe
from tests.abuse.process import Broker, config
from tests.net.quic_peers import ClockedListener, connected, later, peer_of, serving, until
from tests.wire.felix import Closed, Hang, auth, b64, batch, frame, message
from tests.wire.quic import ANSWER_S, TURN_S, first_datagram, varints

KIB, MIB = 1024, 1024 * 1024
LONG = "QUINTET_TEST_LONG"  # set: 2,000 idle connections instead of 200
SCOPE: dict[str, Any] = {"tenant_id": "t1", "namespace": "n", "stream": "s"}
NEVER_AUTHENTICATED, LIMIT, TOO_SLOW = 0x41, 0x4C, 0x51
STREAM_LIMIT_ERROR, CRYPTO_BUFFER_EXCEEDED, PROTOCOL_VIOLATION, CONNECTION_REFUSED = 0x4, 0xD, 0xA, 0x2
CRYPTO_ERROR = range(0x100, 0x200)
CONNECTION_BYTES_MAX = 120 * KIB
RETRY_ABOVE = 100
NATIVE = kernel.QuicEndpoint is not None


def settings(felix: str = "", limits: str = "") -> str:
    always = "disk_free_bytes_min = 0\ntail_cache_bytes = 8388608\nconnections_per_address_max = 5000\n"
    return config(rest=f"[limits]\n{always}{limits}\n[listeners.felix]\nport = 0\n{felix}\n")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("quic"), settings()) as broker:
        probe(broker)
        yield broker


@pytest.fixture(scope="module", autouse=True)
def clogged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One whose handshakes are all taken by those who never finish them. The last test here finds it free again."""
    with Broker(tmp_path_factory.mktemp("clogged"), settings("half_open_max = 20\nretry_above = 1000")) as broker:
        crowd = sources(20)
        for one in crowd:
            one.sendto(first_datagram(), address(broker))
        with pytest.raises(Closed) as refused:
            Client(broker)
        assert refused.value.code == CONNECTION_REFUSED
        yield broker
        for one in crowd:
            one.close()


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    yield running
    probe(running)
    assert "Traceback" not in running.said()


def address(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.listeners["felix"].rpartition(":")
    return host, int(port)


def sources(count: int) -> list[socket.socket]:
    """Sockets with addresses of their own, as one who forges them would have."""
    made = []
    for number in range(count):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((f"127.{1 + number % 200}.{number // 200}.7", 0))
        one.setblocking(False)
        made.append(one)
    return made


def drained(sockets: list[socket.socket], seconds: float, answers: int = 0) -> dict[socket.socket, list[bytes]]:
    """What each was sent within this time, answering nothing. On a busy machine it takes longer until as many were answered."""
    found: dict[socket.socket, list[bytes]] = {one: [] for one in sockets}
    end, last = time.monotonic() + seconds, time.monotonic() + ANSWER_S
    while (now := time.monotonic()) < end or (now < last and sum(map(bool, found.values())) < answers):
        for one in select.select(sockets, [], [], max(end - now, TURN_S))[0]:
            try:
                found[one].append(one.recv(65_536))
            except BlockingIOError:
                continue
    return found


def alive(client: Client, stream: int) -> None:
    client.send(stream, batch(("t1", "n", "alive"), b"x", request=999_999))
    assert client.acked(stream)[:2] == (0, 999_999)


def pump(clients: list[Client], true: Callable[[], bool], seconds: float = ANSWER_S) -> None:
    """Turn them all until it is so."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise Hang
        for client in clients:
            if client.over is None:
                client.turn(0.01)


# -- 1, A6: floods of first packets -----------------------------------------------------------------------------------


def is_retry(data: bytes) -> bool:
    return data[0] & 0xF0 == 0xF0 and data[1:5] != bytes(4)


def test_a_flood_of_first_packets_from_forged_addresses(tmp_path: Path) -> None:
    """Below `unproven_handshakes_max` at most three times the bytes come back, above it a Retry that is far smaller than what it answers;
    who answers is let in all the while."""
    with Broker(tmp_path, settings(f"unproven_handshakes_max = {RETRY_ABOVE}")) as broker:
        probe(broker)
        before = broker.resident_bytes()
        crowd = sources(RETRY_ABOVE + 200)
        firsts = [first_datagram() for _ in crowd]
        for one, data in zip(crowd, firsts, strict=True):
            one.sendto(data, address(broker))
            time.sleep(0.0005)
        answers = drained(crowd, 1.5, RETRY_ABOVE + 150)
        retried = [one for one in crowd if answers[one] and is_retry(answers[one][0])]
        shaken = [one for one in crowd if answers[one] and not is_retry(answers[one][0])]
        assert len(shaken) >= RETRY_ABOVE // 2, "the control: without load there is no Retry"
        assert len(retried) >= 150
        for one, data in zip(crowd, firsts, strict=True):
            times = 1 if one in retried else 3
            assert sum(map(len, answers[one])) <= times * len(data)
        assert max(len(answers[one][0]) for one in retried) <= 1200 * 0.1
        used = broker.resident_bytes() - before
        assert used < 32 * MIB
        again = [data for one, data in zip(crowd, firsts, strict=True) if one in retried]
        for number in range(10_000):
            crowd[number % len(crowd)].sendto(again[number % len(again)], address(broker))
            if number % 1000 == 0:
                probe(broker)
        probe(broker)
        assert broker.resident_bytes() - before < used + 16 * MIB, "a Retry costs nothing that stays"
        for one in crowd:
            one.close()


def test_first_packets_full_of_nonsense(broker: Broker) -> None:
    before = broker.resident_bytes()
    crypto = bytes(900)
    firsts = {
        "far": first_datagram(b"\x06" + varints(1 << 30, 900) + crypto),
        "a gap": first_datagram(b"\x06" + varints(60_000, 900) + crypto),
        "no message": first_datagram(b"\x06" + varints(0, 900) + b"\xff" * 900),
        "pings": first_datagram(*[b"\x01"] * 900),
        "a stream": first_datagram(b"\x08" + varints(0) + b"early"),
        "a close": first_datagram(b"\x1d" + varints(0, 0)),
        "an unknown frame": first_datagram(b"\x40\x99"),
    }
    good = first_datagram()
    firsts |= {
        "short": good[:400],
        "cut": good[:1199],
        "damaged": good[:600] + bytes([good[600] ^ 1]) + good[601:],
        "no id": b"\xc0" + (1).to_bytes(4, "big") + b"\0\0" + bytes(1193),
        "long id": b"\xc0" + (1).to_bytes(4, "big") + b"\xff" + bytes(1194),
        "short header": b"\x40" + os.urandom(1199),
        "one byte": b"\xff",
        "nothing": b"",
    }
    crowd = sources(len(firsts))
    for _ in range(20):
        for one, data in zip(crowd, firsts.values(), strict=True):
            one.sendto(data, address(broker))
    answers = drained(crowd, 0.5)
    for one, (name, data) in zip(crowd, firsts.items(), strict=True):
        assert sum(map(len, answers[one])) <= 3 * 20 * max(len(data), 1), name
        one.close()
    assert broker.resident_bytes() - before < 24 * MIB


# -- C1, 12: who never says who he is, who never does anything --------------------------------------------------------


def test_who_does_not_authenticate_in_time_is_shut(broker: Broker) -> None:
    """Silent, one byte at a time, a length and no payload, pings, many streams: all the same. A stream that stays mute beside
    one that spoke ends alone."""
    hello = auth()
    with ExitStack() as all_of_them:
        good = all_of_them.enter_context(Client(broker))
        known = good.login()
        kinds = ("silent", "slow", "length", "pings", "streams", "reset")
        crowd = {kind: all_of_them.enter_context(Client(broker, source="127.0.0.2")) for kind in kinds}
        crowd["length"].open(frame(b"{", length=16 * KIB))
        for _ in range(100):
            crowd["streams"].open(hello[:20])
        mute, slow, sent = good.open(b"FLX"), crowd["slow"].open(hello[:1]), 1
        end = time.monotonic() + ANSWER_S
        while any(one.over is None for one in crowd.values()) or mute not in good.fin:
            assert time.monotonic() < end, f"still there: {[kind for kind in kinds if crowd[kind].over is None]}"
            if crowd["slow"].over is None and slow not in crowd["slow"].stops and sent < len(hello) - 1:
                crowd["slow"].send(slow, hello[sent : sent + 1])
                sent += 1
            if crowd["pings"].over is None:
                crowd["pings"].quic.send_ping(1)
            if crowd["reset"].over is None:
                crowd["reset"].quic.reset_stream(crowd["reset"].open(b"F"), 0)
            for one in (*crowd.values(), good):
                if one.over is None:
                    one.turn(0.03)
        for kind, one in crowd.items():
            assert one.over is not None and one.over.code == NEVER_AUTHENTICATED, (kind, one.over)
        alive(good, known)


async def test_pings_do_not_keep_a_connection_without_streams(tmp_path: Path) -> None:
    """The door's own session, with a clock that is moved: an event stream is a reason to stay, pings are none."""
    certificate, key, _ = development_certificate(tmp_path, ("localhost", "127.0.0.1"))
    sim, options = SimBroker(options=BrokerOptions()), FelixListener(open=True, anonymous_role="admin")
    listener = ClockedListener(
        ListenerOptions("felix", "127.0.0.1", 0),
        options,
        (certificate, key, b""),
        lambda stream: FelixSession(sim.broker, stream, 0, options, stream.peer),
        lambda *_: None,
    )
    await listener.start()
    try:
        async with connected(listener.address, certificate, keep_alive_ms=50) as idle:
            stream = idle.open()
            idle.send(stream, auth(), end=True)
            await idle.finished(stream)
            listener.ahead += EMPTY_US - 5_000_000

            def end() -> int | None:
                return idle.closed and idle.closed[0]

            await until(lambda: len(listener.connections) == 1)
            assert end() is None
            await later(listener, 2_000_000, end)
            assert end() == LIMIT
        async with connected(listener.address, certificate, keep_alive_ms=50) as reader:
            stream = reader.open()
            reader.send(stream, auth() + message("subscribe", **SCOPE, subscription_id=1), end=True)
            await reader.finished(stream)
            listener.ahead += 2 * EMPTY_US
            await asyncio.sleep(4 * SWEEP_S)
            assert reader.closed is None
    finally:
        listener.close_all("the test is over")
        await until(lambda: not listener.running)


async def test_an_event_stream_for_a_connection_that_is_going_is_lost_quietly(tmp_path: Path) -> None:
    """Found by the fuzzer of Felix: what was said on a stream that could not be opened any more raised."""
    raised: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: raised.append(what))
    async with serving(tmp_path) as (listener, _), peer_of(listener, tmp_path) as peer:
        await peer.login()
        (connection,) = listener.connections
        gone: list[int] = []
        connection.shut(LIMIT, "as it was asked")
        outlet = connection.open(gone.append)
        outlet.send([b"hello"])
        assert outlet.room() == 0
        await until(lambda: gone)
        assert gone == [LOST]
        await until(lambda: peer.closed)
    assert raised == []


# -- A5: the crowd that does nothing ----------------------------------------------------------------------------------


def test_idle_connections_are_cheap(tmp_path: Path) -> None:
    """Authenticated, with one event stream each; then one in a hundred is spoken to."""
    count = 2_000 if LONG in os.environ else 200
    with Broker(tmp_path, settings("idle_seconds = 300")) as broker, ExitStack() as all_of_them:
        for _ in range(3):
            probe(broker)
        before = broker.resident_bytes()
        crowd = []
        for _ in range(count):
            client = all_of_them.enter_context(Client(broker, idle_timeout=300.0))
            client.send(client.login(), message("subscribe", **SCOPE, subscription_id=1))
            assert client.read(client.event_stream())["type"] == "event_stream_hello"
            crowd.append(client)
        each = (broker.resident_bytes() - before) // count
        assert each < CONNECTION_BYTES_MAX, f"{each} bytes for each"
        assert each > KIB, "the control: something was measured"
        with Client(broker) as publisher:
            stream = publisher.login()
            publisher.send(stream, batch(("t1", "n", "s"), b"to all", request=1))
            assert publisher.acked(stream) == (0, 1, "")
        for client in crowd[::100]:
            assert client.events(3, 1) == [b"to all"]


# -- 3: streams -------------------------------------------------------------------------------------------------------


def test_more_streams_than_are_allowed_end_the_connection(broker: Broker) -> None:
    with Client(broker) as client:
        client.login()
        client.inject(b"\x08" + varints(4 * 1024) + b"x")
        assert client.closed().code == STREAM_LIMIT_ERROR
    with Client(broker) as client:
        client.login()
        client.inject(b"\x08" + varints(2) + b"x")
        assert client.closed().code == STREAM_LIMIT_ERROR, "a client opens no stream of one direction"


def test_ten_thousand_streams_that_are_reset_or_left_open(broker: Broker) -> None:
    before = broker.resident_bytes()
    with Client(broker) as other, Client(broker) as client:
        known = other.login()
        client.login()
        for number in range(10_000):
            stream = client.quic.get_next_available_stream_id()
            client.wait(lambda: stream // 4 < client.quic._remote_max_streams_bidi)  # noqa: B023
            client.quic.send_stream_data(stream, auth()[: number % 60])
            client.quic.reset_stream(stream, number)
            client.quic.stop_stream(stream, number)
            if number % 100 == 0:
                client.flush()
                client.turn(0)
            if number % 2500 == 0:
                alive(other, known)
        client.wait(lambda: client.quic._remote_max_streams_bidi >= 10_000)
        left = [client.open(auth()[:30]) for _ in range(1000)]
        client.linger(0.2)
        alive(other, known)
        assert client.over is None and len(left) == 1000
    assert broker.resident_bytes() - before < 48 * MIB


def test_event_streams_that_are_stopped_at_once(broker: Broker) -> None:
    before = broker.resident_bytes()
    with Client(broker) as client:
        stream = client.login()
        for number in range(500):
            client.send(stream, message("subscribe", **SCOPE, subscription_id=number))
            client.wait(lambda: 4 * number + 3 in client.data)  # noqa: B023
            client.inject(b"\x05" + varints(4 * number + 3, 0x7F))
        for _ in range(500):
            assert client.read(stream)["type"] == "subscribed"
        client.linger(0.2)
        last = message("unsubscribe", subscription_id=499, request_id=1)
        assert client.ask(stream, last)["type"] == "error", "stopped is over"
        alive(client, stream)
    assert broker.resident_bytes() - before < 32 * MIB


# -- 4: floods of frames that only QUIC sees --------------------------------------------------------------------------


def new_id(number: int, retire: int) -> bytes:
    return b"\x18" + varints(number, retire) + b"\x08" + os.urandom(8 + 16)


FLOODS: dict[str, Callable[[int], list[bytes]]] = {
    "PATH_CHALLENGE": lambda n: [b"\x1a" + os.urandom(8) for _ in range(100)],
    "PATH_RESPONSE": lambda n: [b"\x1b" + os.urandom(8) for _ in range(100)],
    "PING": lambda n: [b"\x01"] * 1000,
    "NEW_CONNECTION_ID": lambda n: [new_id(100 + n * 30 + k, 100 + n * 30 + k) for k in range(30)],
    "NEW_CONNECTION_ID kept": lambda n: [new_id(100 + n * 30 + k, 0) for k in range(30)],
    "RETIRE_CONNECTION_ID": lambda n: [b"\x19" + varints(n * 100 + k) for k in range(100)],
    "CRYPTO far": lambda n: [b"\x06" + varints(1 << 40, 10) + bytes(10)],
    "CRYPTO gaps": lambda n: [b"\x06" + varints(100 + n * 1000 + k * 20, 10) + bytes(10) for k in range(50)],
    "CRYPTO": lambda n: [b"\x06" + varints(n * 1000, 1000) + bytes(1000)],
    "MAX_DATA": lambda n: [b"\x10" + varints(1 << 61)] * 100,
    "STREAM_DATA_BLOCKED": lambda n: [b"\x15" + varints(0, n)] * 100,
    "STREAMS_BLOCKED": lambda n: [b"\x16" + varints(n)] * 100,
    "MAX_STREAMS": lambda n: [b"\x12" + varints(1 << 60)] * 100,
    "RESET of nothing": lambda n: [b"\x04" + varints(4 * k, 0, 0) for k in range(n % 1000, min(n % 1000 + 50, 1024))],
    "STOP of nothing": lambda n: [b"\x05" + varints(4 * k, 0) for k in range(n % 1000, min(n % 1000 + 50, 1024))],
    "STREAM beyond its window": lambda n: [b"\x0c" + varints(400, 1 << 40) + b"x"],
    "STREAM gaps": lambda n: [b"\x0e" + varints(400, n * 2000 + k * 20, 10) + bytes(10) for k in range(40)],
    "HANDSHAKE_DONE": lambda n: [b"\x1e"],
    "NEW_TOKEN": lambda n: [b"\x07" + varints(4) + b"abcd"],
    "unknown": lambda n: [b"\x21" + bytes(30)],
    "DATAGRAM": lambda n: [b"\x30" + bytes(100)],
}
FATAL = {"CRYPTO far", "STREAM beyond its window", "HANDSHAKE_DONE", "NEW_TOKEN", "unknown", "RETIRE_CONNECTION_ID",
         "NEW_CONNECTION_ID kept", "DATAGRAM"}  # fmt: skip


@pytest.mark.parametrize("name", list(FLOODS))
def test_floods_of_quic_frames_cost_one_connection_at_most(broker: Broker, name: str) -> None:
    before = broker.resident_bytes()
    with Client(broker) as other, Client(broker) as client:
        known = other.login()
        client.login()
        sent, got = client.sent_bytes, client.received_bytes
        for number in range(400):
            client.inject(*FLOODS[name](number))
            if number % 40 == 0:
                client.turn(0)
            if client.over is not None:
                break
        client.linger(0.1)
        if name in FATAL:
            client.closed()
        assert client.received_bytes - got <= 3 * (client.sent_bytes - sent)
        alive(other, known)
    assert broker.resident_bytes() - before < 24 * MIB


# -- 5: who does not read ---------------------------------------------------------------------------------------------


def test_an_event_stream_that_is_not_read_is_reset_and_its_client_told(broker: Broker) -> None:
    """The publisher goes on at its rate, the others get everything, memory stays."""
    value = os.urandom(64 * KIB)
    with (
        Client(broker, uni_window=0) as deaf,
        Client(broker, uni_window=0) as old,
        Client(broker, max_stream_data=16 * MIB) as reader,
        Client(broker) as publisher,
    ):
        streams = {}
        for client, flags in ((deaf, 0xFF), (old, 0x3F), (reader, 0x3F)):
            streams[client] = client.login(flags=flags)
            said = client.ask(streams[client], message("subscribe", **SCOPE | {"stream": "slow"}, subscription_id=9))
            assert said["type"] == "subscribed"
        before = broker.resident_bytes()
        stream = publisher.login()
        got = 0
        for number in range(60):
            publisher.send(stream, batch(("t1", "n", "slow"), *[value] * 8, request=number))
            assert publisher.acked(stream) == (0, number, "")
            if not got:
                assert reader.read(reader.event_stream())["type"] == "event_stream_hello"
            got += len(reader.events(3, 8))
        assert got == 480
        assert broker.resident_bytes() - before < 64 * MIB
        assert not deaf.resets and not old.resets, "the control: not at once"
        pump([deaf, old, reader, publisher], lambda: 3 in deaf.resets and 3 in old.resets, 20)
        assert (deaf.resets[3], old.resets[3], reader.resets) == (TOO_SLOW, TOO_SLOW, {})
        said = deaf.read(streams[deaf])
        assert (said["type"], said["subscription_id"]) == ("lagged", 9)
        assert said["next_offset"] == 0, "nothing arrived, so that is where it has to go on"
        for client in (deaf, old):
            alive(client, streams[client])
        again = message(
            "subscribe", **SCOPE | {"stream": "slow"}, subscription_id=10, start={"offset": said["next_offset"]}
        )
        assert deaf.ask(streams[deaf], again)["type"] == "subscribed", "it may do so"


def test_answers_that_are_not_read_stop_the_asking(broker: Broker) -> None:
    """A client that asks for large values and reads none may not fill the broker's memory with answers."""
    cache: dict[str, Any] = {"tenant_id": "t1", "namespace": "n", "cache": "c", "key": "large", "request_id": 1}
    with Client(broker) as client:
        stream = client.login()
        assert (
            client.ask(stream, message("cache_put", **cache, value=b64(bytes(900 * KIB)), ttl_ms=None))["type"]
            == "cache_ok"
        )
    before = broker.resident_bytes()
    with Client(broker, max_stream_data=1) as greedy:
        stream = greedy.open(auth(), *[message("cache_get", **cache)] * 2000)
        greedy.linger(1.0)
        assert broker.resident_bytes() - before < 48 * MIB
        assert len(greedy.data.get(stream, b"")) < 2000 * 900 * KIB


# -- 11: other addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.88"], ids=["port", "address"])
def test_a_connection_may_move_in_the_middle_of_auth(broker: Broker, source: str) -> None:
    hello = auth()
    with Client(broker) as client:
        stream = client.open(hello[:25])
        client.linger(0.05)
        client.move(source)
        client.send(stream, hello[25:])
        assert client.read(stream)["type"] == "auth_ok"
        alive(client, stream)


def test_a_forged_move_sends_little_to_the_victim(broker: Broker) -> None:
    """One packet with another source address, while much is being sent. Until the new address has proved that it is there, it
    gets one datagram and one that measures the path, as quinn does it, and of what was being sent no more than that."""
    with Client(broker, max_stream_data=64 * MIB) as client:
        stream = client.login(flags=0x3F)
        client.send(stream, batch(("t1", "n", "moved"), *[os.urandom(64 * KIB) for _ in range(100)], request=1))
        assert client.acked(stream) == (0, 1, "")
        client.send(stream, message("subscribe", **SCOPE | {"stream": "moved"}, start="earliest"))
        client.wait(lambda: len(client.data.get(3, b"")) > 100 * KIB)
        assert len(client.data[3]) < 6 * MIB, "the control: there is more to come"
        client.move("127.0.0.77")
        client.inject(b"\x01")
        got = [len(data) for data in drained([client.socket], 0.7)[client.socket]]
        assert len(got) <= 2 and sum(got) <= 18 * KIB, got


# -- 2, 9: TLS --------------------------------------------------------------------------------------------------------


class OldTls(QuicConnection):
    """Says in its ClientHello that it knows TLS 1.2 and nothing newer."""

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        self.tls._supported_versions = [0x0303]


def test_tls_below_1_3_is_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.wire.quic.QuicConnection", OldTls)
    with pytest.raises(Closed) as refused:
        Client(broker)
    assert refused.value.code in CRYPTO_ERROR
    monkeypatch.undo()


def test_another_alpn_and_another_name_are_passed_over(broker: Broker) -> None:
    trusted = str(broker.data / "tls" / CERTIFICATE_NAME)
    for options in ({"alpn_protocols": ["h3", "felix/9"]}, {"server_name": "evil.example"},
                    {"server_name": "localhost", "verify_mode": ssl.CERT_REQUIRED, "cafile": trusted}):  # fmt: skip
        with Client(broker, **options) as client:
            client.login()
    with pytest.raises(Closed):
        Client(broker, server_name="a" * 250)
    with pytest.raises(Closed):
        Client(broker, server_name="evil.example", verify_mode=ssl.CERT_REQUIRED, cafile=trusted)


def test_another_version_of_quic_is_answered_with_those_we_know(broker: Broker) -> None:
    (one,) = sources(1)
    good = first_datagram()
    one.sendto(good[:1] + bytes.fromhex("1a2a3a4a") + good[5:], address(broker))
    (answer,) = drained([one], 0.3)[one]
    ids = 7 + answer[5] + answer[6 + answer[5]]  # behind the two connection ids, each with its length
    versions = [answer[at : at + 4] for at in range(ids, len(answer), 4)]
    assert answer[1:5] == bytes(4) and bytes((0, 0, 0, 1)) in versions
    assert len(answer) < len(good)
    one.sendto(good[:1] + bytes.fromhex("1a2a3a4a") + good[5:200], address(broker))
    assert not drained([one], 0.2)[one], "a small one is not answered at all"
    one.close()


def early_datagrams(server: tuple[str, int], ticket: SessionTicket, data: bytes) -> tuple[QuicConnection, list[bytes]]:
    """The first flight of a client that resumes, with data in it before any answer."""
    quic = QuicConnection(
        configuration=QuicConfiguration(
            is_client=True, session_ticket=ticket, server_name="localhost", verify_mode=ssl.CERT_NONE
        )
    )
    quic.connect(server, time.monotonic())
    quic.send_stream_data(0, data)
    return quic, [one for one, _ in quic.datagrams_to_send(time.monotonic())]


def handshake(client: Any, folder: Path, tickets: list[SessionTicket], accept: bool) -> Any:
    """Shake hands with a server of aioquic in this process, which gives tickets; what the client says first is given in."""
    configuration = QuicConfiguration(is_client=False)
    configuration.load_cert_chain(str(folder / CERTIFICATE_NAME), str(folder / KEY_NAME))
    server: Any = QuicConnection(
        configuration=configuration,
        original_destination_connection_id=client.original_destination_connection_id,
        session_ticket_handler=tickets.append,
        session_ticket_fetcher=lambda label: (
            next((one for one in tickets if one.ticket == label), None) if accept else None
        ),
    )
    flight = [one for one, _ in client.datagrams_to_send(time.monotonic())]
    for _ in range(6):
        for data in flight:
            server.receive_datagram(data, ("127.0.0.1", 1), time.monotonic())
        for data, _ in server.datagrams_to_send(time.monotonic()):
            client.receive_datagram(data, ("127.0.0.1", 2), time.monotonic())
        flight = [one for one, _ in client.datagrams_to_send(time.monotonic())]
    return server


def test_early_data_is_not_taken_and_its_replay_does_nothing(broker: Broker) -> None:
    """With a ticket that lets a client of aioquic send early data: a server of aioquic takes it, the broker does not, however
    often the same packets come."""
    folder = broker.data / "tls"
    tickets: list[SessionTicket] = []
    mine: list[SessionTicket] = []
    options = QuicConfiguration(is_client=True, server_name="localhost", verify_mode=ssl.CERT_NONE)
    first = QuicConnection(configuration=options, session_ticket_handler=mine.append)
    first.connect(("127.0.0.1", 2), time.monotonic())
    handshake(first, folder, tickets, False)
    assert len(mine) == 1 and mine[0].max_early_data_size
    early = auth() + batch(("t1", "n", "early"), b"replayed", request=1)
    resumed = QuicConnection(configuration=QuicConfiguration(
        is_client=True, session_ticket=mine[0], server_name="localhost", verify_mode=ssl.CERT_NONE))  # fmt: skip
    resumed.connect(("127.0.0.1", 2), time.monotonic())
    resumed.send_stream_data(0, early)
    handshake(resumed, folder, tickets, True)
    assert resumed.tls.early_data_accepted, "the control: it is early data, and somebody else takes it"
    with Client(broker) as reader:
        control = reader.login()
        assert reader.ask(control, message("subscribe", **SCOPE | {"stream": "early"}))["type"] == "subscribed"
        _, flight = early_datagrams(address(broker), mine[0], early)
        crowd = sources(10)
        for one in crowd:
            for data in flight:
                one.sendto(data, address(broker))
        assert any(drained(crowd, 0.3).values())
        got: list[SessionTicket] = []
        with Client(broker, ticket=mine[0], on_ticket=got.append) as client:
            client.login()
            assert not client.early_data
            client.linger(0.2)
        assert got == [], "it gives no tickets"
        reader.send(control, batch(("t1", "n", "early"), b"the only one", request=2))
        assert reader.acked(control) == (0, 2, "")
        assert reader.read(reader.event_stream())["type"] == "event_stream_hello"
        assert reader.events(3, 1) == [b"the only one"]
        for one in crowd:
            one.close()


# -- A6: and at the end ------------------------------------------------------------------------------------------------


def test_handshakes_that_never_end_are_given_up(clogged: Broker) -> None:
    end = time.monotonic() + ANSWER_S
    while True:
        try:
            probe(clogged)
            break
        except Closed:
            assert time.monotonic() < end, "handshakes were never given up"
            time.sleep(0.1)
