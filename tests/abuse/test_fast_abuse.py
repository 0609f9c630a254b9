"""Hostile and broken Fast peers, over real sockets, against one running broker that must serve others on.

Peers here share no code with the broker: packets are those of tests/wire, tokens are PyJWT's. Each test ends with the broker
alive: the fixture asks it. Forged tokens are tests/broker/test_tokens.py's; here is what a connection can do.
"""

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt as pyjwt
import pytest

from tests.abuse.process import Broker, config
from tests.wire import fast
from tests.wire.fast import (
    CREATE,
    ERROR,
    EXTEND,
    KEY_UPDATE,
    MESSAGE,
    OK,
    PUBLISH,
    SUBSCRIBE,
    Answer,
    Closed,
    Hang,
    KeyUpdate,
    Message,
    create,
    topic_id,
)

SECRET = "the master secret of this very test run"
NEXT_SECRET = "the one that comes after it, as long as it"
MIB = 1024 * 1024
SILENCE_S = 0.3
COLLISIONS = Path(__file__).parent.parent / "vectors" / "fast" / "collisions.json"


def token(
    sub: str = "ann", key: str = "k1", perms: str = "publish subscribe rotate", secret: str = SECRET, **more: int
) -> bytes:
    claims = {"sub": sub, "queue_key": key, "permissions": perms.split(), **more}
    return pyjwt.encode(claims, secret, "HS256").encode()


def subscribe(jwt: bytes, name: bytes) -> bytes:
    return fast.subscribe(jwt, topic_id(name))


def publish(jwt: bytes, name: bytes, value: bytes) -> bytes:
    return fast.publish(jwt, topic_id(name), value)


def rotate(jwt: bytes, name: bytes, key: bytes) -> bytes:
    return fast.rotate_key(jwt, topic_id(name), key)


class Peer(fast.Client):
    """A client that may hear messages between answers."""

    def __init__(self, broker: Broker, *, extended: bool = True) -> None:
        super().__init__(broker.listeners["fast"], extended)

    def answer(self, data: bytes) -> tuple[int, int, int]:
        """(request, topic, code) of the next OK or ERROR."""
        self.send(data)
        while not isinstance(found := self.read(), Answer):
            pass
        return found[:3]

    def code(self, data: bytes) -> int:
        return self.answer(data)[2]

    def message(self) -> bytes:
        found = self.read()
        assert isinstance(found, Message), found
        return found.payload

    def silent(self) -> bool:
        """Nothing comes: neither a packet nor the end."""
        try:
            self.fill(SILENCE_S)
        except Hang:
            return True
        except Closed:
            return False
        return False


def settings(
    secrets: tuple[str, ...] = (SECRET,), fast: str = "", limits: str = "auth_failures_per_minute_max = 100000"
) -> str:
    listed = "".join(f'[[tokens.secrets]]\nsecret = "{secret}"\n' for secret in secrets)
    rest = f"[listeners.fast]\nport = 0\n{fast}\n[tokens]\nleeway_seconds = 0\n{listed}"
    return config(
        keys=("alice",),
        rest=f"[topics]\nmemory_bytes = {16 * MIB}\n[limits]\ndisk_free_bytes_min = 0\n{limits}\n{rest}",
    )


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("fast"), settings()) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    yield running
    with Peer(running) as peer:
        bob = token("bob", "alive")
        assert peer.code(create(bob, b"alive", 1)) == 0, "the broker must still answer others"
        assert peer.code(publish(bob, b"alive", b"x")) == 0


# -- framing: C2, C3, C4 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [False, True], ids=["stranger", "known"])
@pytest.mark.parametrize("size", [16 * MIB + 1, 2**31 - 1, 2**32 - 1])
def test_a_payload_length_that_is_a_lie_closes_before_it_costs_anything(broker: Broker, size: int, known: bool) -> None:
    before = broker.resident_bytes()
    with Peer(broker) as peer:
        if known:
            assert peer.code(create(token(), b"lies")) == 0
        peer.send(fast.frame(PUBLISH, token(), struct.pack(">II", topic_id(b"lies"), size)))
        assert peer.closed()
    assert broker.resident_bytes() - before < 8 * MIB


def test_a_stranger_cannot_announce_a_large_payload_at_all(broker: Broker) -> None:
    with Peer(broker) as peer:
        peer.send(fast.frame(PUBLISH, b"no token at all", struct.pack(">II", 1, 16 * 1024 + 1)))
        assert peer.closed()


@pytest.mark.parametrize("kind", [0, MESSAGE, KEY_UPDATE, 8, 0x6F, 0x71, OK, ERROR, 0xFF])
@pytest.mark.parametrize("known", [False, True], ids=["stranger", "known"])
def test_packets_that_are_the_servers_or_nobodys_close(broker: Broker, kind: int, known: bool) -> None:
    with Peer(broker) as peer:
        if known:
            assert peer.code(create(token(), b"types")) == 0
        peer.send(bytes((kind,)) + bytes(20))
        assert peer.closed()


def test_the_largest_payload_is_taken_and_comes_back(broker: Broker) -> None:
    value = bytes(range(256)) * (16 * MIB // 256)
    with Peer(broker) as peer:
        peer.send(create(token(), b"large") + subscribe(token(), b"large") + publish(token(), b"large", value))
        number = topic_id(b"large")
        assert [peer.read()[:3] for _ in range(2)] == [(kind, number, 0) for kind in (CREATE, SUBSCRIBE)]
        got = [peer.read() for _ in range(2)]
        assert Message(number, value) in got and Answer(PUBLISH, number, 0, "") in got


def test_one_byte_at_a_time_and_a_thousand_at_once_are_the_same(broker: Broker) -> None:
    jwt = token()
    with Peer(broker, extended=False) as peer:
        for byte in create(jwt, b"split") + subscribe(jwt, b"split") + publish(jwt, b"split", b"slow"):
            peer.send(bytes((byte,)))
        assert peer.message() == b"slow"
        peer.send(b"".join(publish(jwt, b"split", b"%d" % n) for n in range(1000)))
        assert [peer.message() for _ in range(1000)] == [b"%d" % n for n in range(1000)]


def test_a_version_that_is_not_spoken_is_refused_and_strict_goes_on(broker: Broker) -> None:
    with Peer(broker, extended=False) as peer:
        assert peer.answer(fast.extend(4)) == (EXTEND, 0, 426)
        peer.send(subscribe(token(), b"not there"))
        assert peer.silent(), "still strict"


# -- names: C5, and numbers that collide ---------------------------------------------------------------------------------


NAMES = {
    "empty": b"",
    "invalid UTF-8": b"\xff\xfe",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "NUL": b"a\0b",
    "internal": b"__audit",
}


@pytest.mark.parametrize("name", list(NAMES))
def test_names_that_cannot_be_are_refused(broker: Broker, name: str) -> None:
    with Peer(broker) as peer:
        assert peer.code(create(token(), NAMES[name])) in (400, 403)
        assert peer.code(publish(token(), NAMES[name], b"x")) == 404


def test_strange_names_are_names_and_never_paths(broker: Broker) -> None:
    strange = [b"..", b"../../etc/passwd", b"a/b\\c", "caf\u00e9".encode(), "cafe\u0301".encode(), b"n" * 255]
    with Peer(broker) as peer:
        for name in strange:
            assert peer.code(create(token(key=f"k{topic_id(name)}"[:12]), name, 1)) == 0
        composed, decomposed = strange[3], strange[4]
        assert peer.code(publish(token(key=f"k{topic_id(composed)}"[:12]), decomposed, b"x")) == 419, "no normalisation"
    files = {path.name for path in broker.data.rglob("*")}
    assert not any("passwd" in name or "nnnn" in name for name in files)


def test_two_names_with_one_number_stay_apart(broker: Broker) -> None:
    with Peer(broker) as owner, Peer(broker) as thief:
        for _, one, other in json.loads(COLLISIONS.read_text())[:20]:
            assert owner.code(create(token(), one.encode())) == 0
            assert owner.code(subscribe(token(), one.encode())) == 0
            assert thief.code(create(token("eve"), other.encode())) == 409


# -- who: identities, keys, rights, pipelining ---------------------------------------------------------------------------


def test_another_identity_on_a_live_connection_has_its_own_rights_only(broker: Broker) -> None:
    ann, eve = token("ann", "ann-key"), token("eve", "eve-key")
    with Peer(broker) as peer:
        assert peer.code(create(ann, b"anns")) == 0
        assert peer.code(create(eve, b"eves")) == 0
        assert peer.code(publish(eve, b"anns", b"x")) == 419
        assert peer.code(publish(ann, b"eves", b"x")) == 419
        assert peer.code(publish(ann, b"anns", b"x")) == 0


def test_publishes_before_any_valid_token_do_nothing(broker: Broker) -> None:
    """There is no handshake to wait for: what is pipelined ahead of a valid token is judged by its own."""
    ann = token("ann", "pipe-key")
    with Peer(broker) as owner:
        assert owner.code(create(ann, b"pipe")) == 0
        assert owner.code(subscribe(ann, b"pipe")) == 0
        with Peer(broker) as peer:
            peer.send(
                publish(b"x.y.z", b"pipe", b"early")
                + publish(token(key="guess"), b"pipe", b"guess")
                + publish(ann, b"pipe", b"fine")
            )
            assert [peer.read()[:3] for _ in range(3)] == [(PUBLISH, topic_id(b"pipe"), code) for code in (401, 419, 0)]
        assert owner.message() == b"fine"
        assert owner.silent()


def test_a_token_that_expires_ends_its_deliveries_within_seconds(broker: Broker) -> None:
    ann, short = token("ann", "exp-key"), token("bob", "exp-key", exp=int(time.time()) + 2)
    with Peer(broker) as owner, Peer(broker) as reader, Peer(broker) as lasting:
        assert owner.code(create(ann, b"expiring")) == 0
        assert reader.code(subscribe(short, b"expiring")) == 0
        assert lasting.code(subscribe(ann, b"expiring")) == 0
        assert owner.code(publish(ann, b"expiring", b"before")) == 0
        assert reader.message() == lasting.message() == b"before"
        assert reader.read()[:3] == (SUBSCRIBE, topic_id(b"expiring"), 410), "told when it is over"
        assert owner.code(publish(ann, b"expiring", b"after")) == 0
        assert lasting.message() == b"after"
        assert reader.silent()
        assert reader.code(publish(short, b"expiring", b"x")) == 401


def test_a_rotated_key_evicts_and_survives_a_restart(tmp_path: Path) -> None:
    text = settings(fast="rotation_grace_seconds = 1")
    old, new = token("ann", "old"), token("ann", "new")
    with Broker(tmp_path, text) as broker:
        with Peer(broker) as owner, Peer(broker) as stale:
            assert owner.code(create(old, b"rot", 1)) == 0
            assert stale.code(subscribe(old, b"rot")) == 0
            assert owner.code(rotate(old, b"rot", b"new")) == 0
            assert stale.read() == KeyUpdate(topic_id(b"rot"), b"new")
            assert owner.code(publish(old, b"rot", b"x")) == 419
            assert stale.read()[:3] == (SUBSCRIBE, topic_id(b"rot"), 410)
            assert owner.code(publish(new, b"rot", b"kept")) == 0
            assert stale.silent()
        broker.process.kill()
        broker.process.wait()
    with Broker(tmp_path, text) as broker, Peer(broker) as peer:
        assert peer.code(publish(old, b"rot", b"x")) == 419
        assert peer.code(subscribe(new, b"rot")) == 0
        assert peer.message() == b"kept"


# -- secrets: C9, C10, C11 -----------------------------------------------------------------------------------------------


def test_a_secret_is_replaced_with_an_overlap_and_its_end_evicts(tmp_path: Path) -> None:
    with Broker(tmp_path, settings()) as broker:
        old, new = token("ann"), token("ann", secret=NEXT_SECRET)
        with Peer(broker) as before, Peer(broker) as after:
            assert before.code(create(old, b"turn", 1)) == 0
            assert before.code(subscribe(old, b"turn")) == 0
            assert after.code(publish(new, b"turn", b"x")) == 401
            broker.reload(settings((NEXT_SECRET, SECRET)))
            broker.await_said("reloaded")
            assert after.code(publish(new, b"turn", b"1")) == 0
            assert after.code(publish(old, b"turn", b"2")) == 0
            assert [before.message(), before.message()] == [b"1", b"2"]
            broker.reload(settings((NEXT_SECRET,)))
            broker.await_said("reloaded", 2)
            assert before.read()[:3] == (SUBSCRIBE, topic_id(b"turn"), 410)
            assert after.code(publish(old, b"turn", b"x")) == 401
            assert after.code(publish(new, b"turn", b"3")) == 0
            assert before.silent()


def test_a_broken_reload_keeps_what_was(tmp_path: Path) -> None:
    with Broker(tmp_path, settings()) as broker, Peer(broker) as peer:
        assert peer.code(create(token(), b"kept", 1)) == 0
        for broken in (settings(("short",)), settings() + "\n[no such section]\n", settings(("x" * 40,)) + "[["):
            refused = broker.said().count("reload_refused")
            broker.reload(broken)
            broker.await_said("reload_refused", refused + 1)
        assert peer.code(publish(token(), b"kept", b"x")) == 0
        assert peer.code(publish(token(secret="x" * 40), b"kept", b"x")) == 401, "never open"


def test_no_secret_means_no_token_is_good(tmp_path: Path) -> None:
    with Broker(tmp_path, settings(())) as broker, Peer(broker) as peer:
        assert peer.code(create(token(), b"none")) == 401
        assert peer.code(create(b"e30.e30.", b"none")) == 401


def test_neither_tokens_nor_keys_are_said_or_kept(tmp_path: Path) -> None:
    with Broker(tmp_path, settings()) as broker:
        jwt, bad = token("ann", "a-very-secret-key"), token("eve", "another-secret-key")
        with Peer(broker) as peer:
            assert peer.code(create(jwt, b"quiet", 1)) == 0
            assert peer.code(publish(bad, b"quiet", b"x")) == 419
            assert peer.code(publish(jwt[:-3] + b"AAA", b"quiet", b"x")) == 401
            assert peer.code(rotate(jwt, b"quiet", b"the-rotated-secret-key")) == 0
            peer.send(b"\xff")
            assert peer.closed()
        broker.await_said("connection_closed")
        said = broker.said()
        kept = [path for path in broker.data.rglob("*") if path.is_file()]
        for secret in (SECRET, "a-very-secret-key", "another-secret-key", "the-rotated-secret-key", jwt.decode()[-20:]):
            assert secret not in said
            assert not any(secret.encode() in path.read_bytes() for path in kept), "not on disk either"


# -- holding on and floods: C1, C6, C7, C8 -------------------------------------------------------------------------------


def test_strangers_are_closed_in_time_however_busy_they_look(broker: Broker) -> None:
    slow: list[Callable[[Peer], object]] = [
        lambda peer: None,
        lambda peer: peer.send(b"\x03"),
        lambda peer: peer.send(fast.extend()),
        lambda peer: peer.send(publish(token(secret="not the secret, but as long as it is"), b"x", b"y")),
    ]
    peers = [Peer(broker, extended=False) for _ in slow]
    until = time.monotonic() + 8
    over: set[Peer] = set()
    while len(over) < len(peers) and time.monotonic() < until:
        for peer, act in zip(peers, slow, strict=True):
            if peer not in over:
                try:
                    act(peer)
                    if peer.closed(SILENCE_S):
                        over.add(peer)
                except Closed:
                    over.add(peer)
    for peer in peers:
        peer.socket.close()
    assert len(over) == len(peers), "a stranger was still connected after 8 seconds"


def test_guessing_ends_the_connection_and_then_the_address(tmp_path: Path) -> None:
    with Broker(tmp_path, settings(limits="auth_failures_per_minute_max = 15")) as broker:
        with Peer(broker) as owner:
            assert owner.code(create(token(), b"guarded")) == 0
            for _ in range(2):
                try:
                    with Peer(broker) as peer:
                        for number in range(10):
                            assert peer.code(subscribe(token("eve", f"guess{number}"), b"guarded")) == 419
                        assert peer.closed()
                except Closed:
                    break
            else:
                pytest.fail("the address was never shut out")
            with pytest.raises(Closed):
                Peer(broker)
        assert broker.said().count("authentication_failed") >= 15


def test_consumers_that_never_read_cost_little_and_are_cut(broker: Broker) -> None:
    jwt = token()
    before = broker.resident_bytes()
    with Peer(broker) as owner:
        assert owner.code(create(jwt, b"flood")) == 0
        deaf = [Peer(broker) for _ in range(10)]
        for peer in deaf:
            assert peer.code(subscribe(jwt, b"flood")) == 0
        one = publish(jwt, b"flood", bytes(64 * 1024))
        for _ in range(60):
            owner.send(one * 16)
            for _ in range(16):
                assert owner.read()[:3] == (PUBLISH, topic_id(b"flood"), 0)
        assert broker.resident_bytes() - before < 128 * MIB
        broker.await_said("the peer has read nothing for 10 seconds", 10)
    for peer in deaf:
        peer.socket.close()


def test_a_crowd_of_silent_connections_leaves_others_served(broker: Broker) -> None:
    crowd = [Peer(broker, extended=False) for _ in range(500)]
    with Peer(broker) as peer:
        assert peer.code(create(token(), b"crowd")) == 0
        assert peer.code(publish(token(), b"crowd", b"x")) == 0
    for one in crowd:
        one.socket.close()


def test_random_bytes_never_hurt(broker: Broker) -> None:
    import random

    rng = random.Random(20261116)
    jwt = token()
    seeds = [
        create(jwt, b"fuzz", 1),
        subscribe(jwt, b"fuzz"),
        publish(jwt, b"fuzz", b"x" * 30),
        rotate(jwt, b"fuzz", b"k2"),
    ]
    for _ in range(200):
        data = bytearray(b"".join(rng.choices(seeds, k=4)))
        for _ in range(rng.randint(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with Peer(broker, extended=False) as peer:
            try:
                peer.send(bytes(data[: rng.randint(1, len(data))]))
            except Closed:
                continue
    assert "Traceback" not in broker.said()
