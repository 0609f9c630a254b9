"""Hostile and broken peerbus peers, over real sockets, against running brokers that must serve others on.

Peers are made with the package `websockets`, or by hand where it is too polite; both share no code with the broker. Each
test ends with the broker alive: the fixture asks it. Changes of the audit's rows are tests/log's.
"""

import functools
import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.abuse.process import Broker, config
from tests.crash.doors_judge import SAVED_S
from tests.wire import peerbus, websocket

MIB = 1024 * 1024
SECRET = "0123456789abcdef0123456789abcdef"
MAILBOX_MESSAGES = 200
TOLD_S = 60.0
QUIET_S = 0.3  # a message is durable before it is delivered; so long is waited for one that must not come
LISTENERS = "[listeners.peerbus]\nport = 0\nping_seconds = 1\n[listeners.peerbus_tcp]\nenabled = true\nport = 0\n"
LIMITS = (
    "[limits]\ndisk_free_bytes_min = 0\nauth_failures_per_minute_max = 100000\nconnections_per_address_max = 5000\n"
)
GROWTH_BYTES_MAX = 192 * MIB


def start(folder: Path, peers: str = "", listeners: str = LISTENERS, limits: str = LIMITS) -> Broker:
    keys = ("alice", "bob", "mallory")
    return Broker(folder, config(keys=keys, listener=listeners, rest=f"{limits}[peers]\n{peers}\n"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with start(tmp_path_factory.mktemp("peers"), f"mailbox_messages_max = {MAILBOX_MESSAGES}") as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    yield running
    with peer(running, f"check-{os.urandom(4).hex()}") as one:
        send(one, "self", to=one.name)
        assert one.keys(1) == ["self"], "the broker must still serve others"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One that was given the secret, and verifies."""
    with start(tmp_path_factory.mktemp("strict"), f'hmac_secret = "{SECRET}"\nverify = true') as broker:
        yield broker


class PeerClient:
    """A registered peer."""

    def __init__(self, link: ClientConnection, name: str) -> None:
        self.link = link
        self.name = name

    def read(self, timeout: float = TOLD_S) -> dict[str, Any]:
        found = json.loads(self.link.recv(timeout))
        assert isinstance(found, dict)
        return found

    def keys(self, awaited: int = 0) -> list[str]:
        """Keys of all that was delivered, at least as many as are awaited: what follows the answer to a question was sent after it."""
        found = [self.read()["delivery_key"] for _ in range(awaited)]
        if not awaited:
            time.sleep(QUIET_S)
        self.link.send(peerbus.ask_peers().decode())
        while (one := self.read())["type"] != "peers":
            found.append(one["delivery_key"])
        return found

    def ack(self, *keys: str) -> None:
        for key in keys:
            self.link.send(peerbus.ack(key).decode())


def url(broker: Broker) -> str:
    return f"ws://{broker.listeners['peerbus']}/any/path"


def hello(name: str, token: str) -> str:
    return peerbus.register(token, name).decode()


@contextmanager
def peer(broker: Broker, name: str, token: str = "alice-key") -> Iterator[PeerClient]:
    with connect(url(broker), max_size=None) as link:
        link.send(hello(name, token))
        one = PeerClient(link, name)
        assert one.read()["type"] == "peers"
        yield one


def closed(link: ClientConnection) -> tuple[int, str]:
    """The close code and reason; 1006 if there was none."""
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            link.recv(TOLD_S)
    frame = caught.value.rcvd
    return (frame.code, frame.reason) if frame is not None else (1006, "")


def letter(
    sender: str, to: str, id: str, body: str = "null", ts: str | None = None, key: str = SECRET
) -> dict[str, Any]:
    """An envelope signed by the rules of the document, with the body as text."""
    ts = ts or peerbus.timestamp()
    kind = "broadcast" if to == "*" else "msg"
    one = {"protocol_version": "v1", "id": id, "from": sender, "to": to, "ts": ts, "source": "peer-bus", "kind": kind}
    return one | {"body": body, "hmac": peerbus.signature(key.encode(), peerbus.canonical(one, body))}


def text(one: dict[str, Any]) -> str:
    """As it goes over the wire: the body is spliced in."""
    rest = {name: value for name, value in one.items() if name not in ("body", "hmac")}
    return json.dumps(rest, separators=(",", ":"))[:-1] + f',"body":{one["body"]},"hmac":{json.dumps(one["hmac"])}}}'


def send(one: PeerClient, id: str, to: str, body: str = "null", sender: str = "") -> None:
    one.link.send(text(letter(sender or one.name, to, id, body)))


frame = functools.partial(websocket.frame, mask=bytes(4))


class Raw:
    """A socket that speaks WebSocket by hand, masked with zeros."""

    def __init__(self, broker: Broker, upgrade: bool = True, more: str = "") -> None:
        host, _, port = broker.listeners["peerbus"].rpartition(":")
        self.sock = socket.create_connection((host, int(port)), TOLD_S)
        self.host = f"{host}:{port}"
        if upgrade:
            self.sock.sendall(websocket.upgrade(self.host, more=more))
            self.answer = self.sock.recv(4096)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def register(self, name: str) -> "Raw":
        self.sock.sendall(frame(hello(name, "alice-key").encode()))
        assert b'"peers"' in self.sock.recv(65_536)
        return self

    def said(self, what: bytes) -> bytes:
        """All that came until the broker said this, or ended the connection."""
        found = b""
        with suppress(ConnectionError):
            while what not in found and (piece := self.sock.recv(65_536)):
                found += piece
        return found


# -- the handshake ----------------------------------------------------------------------------------------------------


def test_names_of_every_bad_kind_are_refused(broker: Broker) -> None:
    for name in ("a|b", "*", "a/../b", "a\0b", "a\u202eb", "e\u0301", "x" * 201):
        with connect(url(broker)) as link:
            link.send(hello(name, "alice-key"))
            assert closed(link) == (1008, "invalid peer name")
    with connect(url(broker)) as link:
        link.send(hello("", "alice-key"))
        assert closed(link) == (1008, "empty peer name")
    with connect(url(broker)) as link:
        link.send(hello("x" * MIB, "alice-key"))
        assert closed(link) == (1009, "message too big")


def test_a_binary_or_broken_first_message_is_refused(broker: Broker) -> None:
    for first, how in (
        (b"\x00", (1003, "handshake must be text")),
        ("{", (1007, "malformed handshake")),
        ('{"protocol_version":"v1","type":"peers"}', (1008, "first frame must be register")),
        (hello("x", "guess"), (1008, "invalid bearer token")),
        (hello("x", "alice-key").replace("v1", "v9"), (1008, "unsupported protocol version")),
    ):
        with connect(url(broker)) as link:
            link.send(first)
            assert closed(link) == how


def test_register_twice_and_late(broker: Broker) -> None:
    with peer(broker, "twice") as one:
        one.link.send(hello("other", "bob-key"))
        send(one, "m1", to="twice")
        assert one.keys(1) == ["m1"]
    with connect(url(broker)) as link:
        link.send(text(letter("late", "twice", "m2")))
        assert closed(link) == (1008, "first frame must be register")


def test_saying_nothing_or_little_ends_within_the_time_of_the_handshake(broker: Broker) -> None:
    with Raw(broker, upgrade=False) as silent, Raw(broker, upgrade=False) as slow, Raw(broker) as upgraded:
        with suppress(ConnectionError):
            for byte in b"GET / HTTP/1.1\r\n":
                slow.sock.sendall(bytes([byte]))
                time.sleep(0.5)
        assert b" 408 " in silent.said(b" 408 ")
        assert b" 408 " in slow.said(b" 408 ")
        assert b"no handshake frame" in upgraded.said(b"no handshake frame")


def test_a_name_is_not_taken_from_its_owner(broker: Broker) -> None:
    with peer(broker, "owned") as owner:
        send(owner, "m1", to="owned")
        for _ in range(3):
            with connect(url(broker)) as link:
                link.send(hello("owned", "mallory-key"))
                assert closed(link) == (1008, "name claimed under a different token")
        assert owner.keys(1) == ["m1"]
    with connect(url(broker)) as link:
        link.send(hello("owned", "mallory-key"))
        assert closed(link) == (1008, "name claimed under a different token"), "also when it is not connected"


def test_a_loop_of_takeovers_ends_and_the_victim_stays(broker: Broker) -> None:
    refused = 0
    for _ in range(30):
        with connect(url(broker)) as link:
            link.send(hello("fought-over", "alice-key"))
            try:
                link.recv(TOLD_S)
            except ConnectionClosed as gone:
                assert gone.rcvd is not None and gone.rcvd.reason == "too many takeovers of this name"
                refused += 1
                continue
            with connect(url(broker)) as second:
                second.send(hello("fought-over", "alice-key"))
                try:
                    second.recv(TOLD_S)
                except ConnectionClosed:
                    refused += 1
                    continue
                assert closed(link) == (1006, ""), "dropped without a close frame"
    assert refused >= 15


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_brute_force_is_slowed_down(tmp_path: Path) -> None:
    """The client of `websockets` asserts, in its own thread or in ours, when it is refused before its handshake began."""
    with start(tmp_path, limits="[limits]\ndisk_free_bytes_min = 0\nauth_failures_per_minute_max = 5\n") as broker:
        answers = []
        for guess in range(12):
            try:
                with connect(url(broker)) as link:
                    link.send(hello("x", f"guess-{guess}"))
                    answers.append(closed(link)[1])
            except (InvalidStatus, ConnectionClosed, InvalidMessage, OSError, AssertionError):
                answers.append("refused")
        assert answers[:4] == ["invalid bearer token"] * 4 and answers.count("refused") >= 5
        assert "guess-" not in broker.said() and "alice-key" not in broker.said(), "no secret is in the log"


# -- browsers, HTTP ---------------------------------------------------------------------------------------------------


def test_pages_of_other_sites_may_not_connect(broker: Broker) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus) as refused:
            connect(url(broker), origin=Origin(origin))
        assert refused.value.response.status_code == 403
    own = f"http://{broker.listeners['peerbus']}"
    with connect(url(broker), origin=Origin(own)) as link:
        link.send(hello("page", "alice-key"))
        assert b"peers" in link.recv(TOLD_S, decode=False)


def test_many_that_never_finish_do_not_keep_others_out(broker: Broker) -> None:
    half = [Raw(broker, upgrade=False) for _ in range(1_000)]
    for raw in half[::2]:
        raw.sock.sendall(b"GET / HTTP/1.1\r\n")
    with peer(broker, "served") as one:
        send(one, "m1", to="served")
        assert one.keys(1) == ["m1"]
    for raw in half:
        raw.sock.close()


# -- frames -----------------------------------------------------------------------------------------------------------


def test_one_byte_above_the_limit_is_refused_before_it_is_there(broker: Broker) -> None:
    with peer(broker, "large") as one:
        send(one, "fits", to="large", body=json.dumps("x" * (MIB - 1_500)))
        assert one.keys(1) == ["fits"]
        one.link.send("x" * (MIB + 1))
        assert closed(one.link) == (1009, "message too big")
    before = broker.resident_bytes()
    for length in (MIB + 1, 2**31 - 1, 2**32 - 1, 2**63 - 1):
        with Raw(broker) as raw:
            raw.register("large").sock.sendall(b"\x81\xff" + struct.pack(">QI", length, 0))
            assert b"message too big" in raw.said(b"message too big")
    assert broker.resident_bytes() < before + 8 * MIB


def test_a_compressed_message_is_never_inflated(broker: Broker) -> None:
    """A deflate bomb: the extension is not agreed to, so its bit is a broken frame."""
    with Raw(broker, more="Sec-WebSocket-Extensions: permessage-deflate\r\n") as raw:
        assert b"extensions" not in raw.answer.lower()
        raw.sock.sendall(frame(bytes(1_000), reserved=0x40))
        assert b"broken WebSocket frame" in raw.said(b"broken WebSocket frame")


def test_pieces_of_one_byte_for_ever_end(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.register("pieces").sock.sendall(frame(b"{", last=False) + frame(b"x", 0, last=False) * 3_000)
        assert b"message too big" in raw.said(b"message too big")


def test_a_flood_of_pings_ends(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.register("pings")
        with suppress(ConnectionError):
            raw.sock.sendall(frame(b"?" * 100, 9) * 20_000)
        assert b"too many pings" in raw.said(b"too many pings")


def test_a_peer_that_does_not_answer_pings_is_ended(broker: Broker) -> None:
    with Raw(broker) as raw:
        found = raw.register("silent").said(b"two pings were not answered")
        assert found.count(b"\x89\x00") == 2 and b"two pings were not answered" in found


def test_every_cut_of_the_bytes_gives_the_same(broker: Broker) -> None:
    script = frame(hello("cut", "alice-key").encode()) + frame(text(letter("cut", "cut", "m1")).encode())
    for step in (1, 2, 3, 7, 50):
        with Raw(broker) as raw:
            for at in range(0, len(script), step):
                raw.sock.sendall(script[at : at + step])
            found = b""
            while b'"peers"' not in found or b'"delivery_key":"m1"' not in found:
                found += raw.sock.recv(65_536)


def test_a_peer_that_never_reads_is_cut_and_memory_stays_bounded(broker: Broker) -> None:
    with peer(broker, "writer") as one, Raw(broker) as raw:
        raw.register("reads-nothing")
        before = broker.resident_bytes()
        body = json.dumps("x" * 400_000)
        for number in range(60):
            send(one, f"m{number}", to="reads-nothing", body=body)
        until = time.monotonic() + 30
        while "has read nothing for 10 seconds" not in broker.said():
            assert time.monotonic() < until, "a peer that reads nothing is cut"
            time.sleep(0.2)
            one.link.ping()
        assert broker.resident_bytes() < before + GROWTH_BYTES_MAX


# -- what is sent -----------------------------------------------------------------------------------------------------


def test_nobody_acknowledges_for_another(broker: Broker) -> None:
    with (
        peer(broker, "sender1") as sender,
        peer(broker, "victim1", "bob-key") as victim,
        peer(broker, "mallory1", "mallory-key") as mallory,
    ):
        send(sender, "direct", to="victim1")
        send(sender, "all", to="*")
        assert victim.keys(2) == ["direct", "all|victim1"]
        mallory.ack("direct", "all|victim1", "all", "victim1", "")
        mallory.keys()
    with peer(broker, "victim1", "bob-key") as victim:
        assert victim.keys(2) == ["direct", "all|victim1"]


def test_from_is_who_sends(broker: Broker) -> None:
    with peer(broker, "honest", "bob-key") as honest, peer(broker, "liar", "mallory-key") as liar:
        send(liar, "m1", to="honest", sender="alice")
        send(liar, "m2", to="honest")
        assert honest.keys(1) == ["m2"]


def test_a_good_signature_of_another_peer_is_refused(strict: Broker) -> None:
    """All peers share the secret, so the signature is right: the name is not."""
    with peer(strict, "honest", "bob-key") as honest, peer(strict, "liar", "mallory-key") as liar:
        send(liar, "m1", to="honest", sender="honest")
        send(liar, "m2", to="honest")
        assert honest.keys(1) == ["m2"]


def test_signatures_have_one_form(strict: Broker) -> None:
    with peer(strict, "forms") as one:
        good = letter("forms", "forms", "m1", '{"a":1}')
        hexed = good["hmac"]
        for other in (hexed.upper(), hexed[:-2], hexed + "00", "", "z" * 64, " " + hexed[1:], hexed[::-1]):
            one.link.send(text(good | {"hmac": other}))
        one.link.send(text(good | {"body": '{"a":2}'}))
        one.link.send(text(good | {"ts": "2020-01-01T00:00:00Z"}))
        assert one.keys() == []
        one.link.send(text(good | {"body": '{ "a" : 1 }'}))
        assert one.keys(1) == ["m1"], "blanks between tokens are not signed, as the document allows"


def test_bodies_that_play_tricks(broker: Broker) -> None:
    with peer(broker, "tricks") as one:
        for number, body in enumerate(
            ("NaN", "-Infinity", '"\\ud800"', "[1,]", "[" * 200 + "]" * 200, "01", "", "nul")
        ):
            one.link.send(text(letter("tricks", "tricks", f"bad{number}", body)))
        plain = text(letter("tricks", "tricks", "twice"))
        one.link.send(plain.replace('"to":"tricks"', '"to":"nobody","to":"tricks"'))
        one.link.send(plain.replace('"to":"tricks"', '"to":"tricks","TO":"nobody"'))
        assert one.keys() == []
        opaque = ("1e400", '{"k":1,"k":2}', '"\\u0000"', '{"a": "\\u00e9"}')
        for number, body in enumerate(opaque):
            one.link.send(text(letter("tricks", "tricks", f"good{number}", body)))
        one.link.send(plain.replace(',"body":null', ""))  # no member is left out
        one.link.send(plain)
        assert one.keys(5) == ["good0", "good1", "good2", "good3", "twice"]


def test_replay_after_a_kill(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        with peer(broker, "amy") as amy, peer(broker, "ben", "bob-key") as ben:
            replayed = text(letter("amy", "ben", "once"))
            for _ in range(3):
                amy.link.send(replayed)
            assert ben.keys(1) == ["once"]
            ben.ack("once")
            ben.keys()
            time.sleep(SAVED_S)
        broker.process.kill()
        broker.process.wait()
    with start(tmp_path) as broker, peer(broker, "amy") as amy, peer(broker, "ben", "bob-key") as ben:
        amy.link.send(replayed)
        send(amy, "another", to="ben")
        assert ben.keys(1) == ["another"]


def test_an_old_envelope_is_refused_when_signatures_are_judged(strict: Broker) -> None:
    with peer(strict, "old") as one:
        one.link.send(text(letter("old", "old", "m1", ts="2026-01-01T00:00:00Z")))
        one.link.send(text(letter("old", "old", "m2")))
        assert one.keys(1) == ["m2"]


def test_a_mailbox_nobody_empties_stops_growing(broker: Broker) -> None:
    with peer(broker, "never-back", "bob-key"):
        pass
    with peer(broker, "eager") as one:
        for number in range(2 * MAILBOX_MESSAGES):
            send(one, f"m{number}", to="never-back")
        one.keys()
    with peer(broker, "never-back", "bob-key") as back:
        found = back.keys(MAILBOX_MESSAGES)
        assert found[:MAILBOX_MESSAGES] == [f"m{number}" for number in range(MAILBOX_MESSAGES)]
        assert len(found) == MAILBOX_MESSAGES


def test_a_broadcast_to_a_thousand_absent_peers_is_not_copied(tmp_path: Path) -> None:
    with start(tmp_path) as broker:
        for number in range(1_000):
            with Raw(broker) as raw:
                raw.register(f"absent{number}")
        before = sum(path.stat().st_size for path in broker.data.rglob("*") if path.is_file())
        with peer(broker, "loud") as one:
            send(one, "bomb", to="*", body=json.dumps("x" * (MIB - 500)))
            send(one, "small", to="loud")
            assert one.keys(1) == ["small"]
        after = sum(path.stat().st_size for path in broker.data.rglob("*") if path.is_file())
        assert after < before + 64 * MIB, "1 GiB of copies was not made"
        with peer(broker, "absent7") as absent:
            assert absent.keys() == []


# -- rights -----------------------------------------------------------------------------------------------------------


def test_a_revoked_token_is_out_within_seconds(tmp_path: Path) -> None:
    with start(tmp_path) as broker, peer(broker, "amy") as amy, peer(broker, "ben", "bob-key") as ben:
        broker.reload(config(keys=("bob", "mallory"), listener=LISTENERS, rest=LIMITS))
        assert closed(amy.link) == (1008, "token revoked"), "also when it says nothing"
        assert ben.keys() == []
        with connect(url(broker)) as link:
            link.send(hello("amy", "alice-key"))
            assert closed(link) == (1008, "invalid bearer token")


def test_the_end_of_the_broker_is_told(tmp_path: Path) -> None:
    with start(tmp_path) as broker, peer(broker, "amy") as amy:
        broker.process.terminate()
        assert closed(amy.link) == (1001, "server shutting down")
        assert broker.process.wait(TOLD_S) == 0


def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "all.pem")
    certificate, key = tmp_path / "all.pem", tmp_path / "all.pem"
    listeners = f'[listeners.peerbus]\nport = 0\ntls_cert = "{certificate}"\ntls_key = "{key}"\n'
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with (
        start(tmp_path, listeners=listeners) as broker,
        connect(url(broker).replace("ws://", "wss://"), ssl=context) as link,
    ):
        link.send(hello("amy", "alice-key"))
        one = PeerClient(link, "amy")
        assert one.read()["type"] == "peers"
        send(one, "m1", to="amy", body=json.dumps("x" * 500_000))
        assert one.keys(1) == ["m1"]


# -- lines ------------------------------------------------------------------------------------------------------------


def test_the_same_objects_as_lines(broker: Broker) -> None:
    host, _, port = broker.listeners["peerbus-tcp"].rpartition(":")
    with socket.create_connection((host, int(port)), TOLD_S) as sock, sock.makefile("rb") as lines:
        sock.sendall(
            hello("liner", "bob-key").encode() + b"\r\n\n" + text(letter("liner", "liner", "m1")).encode() + b"\n"
        )
        assert json.loads(lines.readline())["type"] == "peers"
        assert json.loads(lines.readline())["delivery_key"] == "m1"
        with peer(broker, "framer") as one:
            pretty = json.dumps(json.loads(text(letter("framer", "liner", "m2"))), indent=2)
            one.link.send(pretty)
            assert json.loads(lines.readline())["envelope"] == json.loads(pretty)
        sock.sendall(b"x" * (MIB + 1))
        assert lines.read() == b""
