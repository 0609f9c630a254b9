"""Hostile and broken BlipMQ peers, over real sockets, against one running broker that must serve others on.

Each test ends with the broker alive: the fixture asks it. What the wire must answer is taken from the protocol document;
peers are made of tests/wire/blipmq.py, which shares no code with the broker.
"""

import json
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.abuse.process import Broker, config
from tests.wire import blipmq as wire
from tests.wire.blipmq import (
    ACK,
    AUTH,
    HELLO,
    NACK,
    PING,
    POLL,
    PONG,
    PUBLISH,
    SUBSCRIBE,
    Client,
    Closed,
    Frame,
    Hang,
    text,
)

MIB = 1024 * 1024
VECTORS = Path(__file__).parent.parent / "vectors" / "blipmq" / "document.json"
MEMORY_TOPIC_BYTES = 16 * MIB
TAIL_CACHE_BYTES = 16 * MIB
GUESSES = 20_000
ANSWERS_BYTES_MAX = 48 * MIB
GROWTH_BYTES_MAX = 192 * MIB  # memory topic or tail cache, 64 MiB waiting for the disk, and what the allocator keeps
FLOOD_BYTES = 2 * GROWTH_BYTES_MAX


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    rest = f"[topics]\nmemory_bytes = {MEMORY_TOPIC_BYTES}\n[limits]\ndisk_free_bytes_min = 0\nauth_failures_per_minute_max = 100000\ntail_cache_bytes = {TAIL_CACHE_BYTES}\n"
    text = config(keys=("alice", "bob", "mallory", "dev"), rest=rest)
    with Broker(tmp_path_factory.mktemp("abuse"), text) as broker:
        yield broker


@pytest.fixture
def broker(running: Broker) -> Iterator[Broker]:
    yield running
    with Client(running.address).login(b"bob-key") as peer:
        assert peer.barrier() == [], "the broker must still answer others"


def closed_without_a_word(peer: Client) -> None:
    with pytest.raises(Closed):
        pytest.fail(f"expected the end of the connection, got {peer.read()}")


# -- framing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ready", [False, True], ids=["before AUTH", "after AUTH"])
@pytest.mark.parametrize("length", [0, 8, 16 * MIB + 1, 2**32 - 1])
def test_a_length_out_of_bounds_closes(broker: Broker, length: int, ready: bool) -> None:
    before = broker.resident_bytes()
    with Client(broker.address) as peer:
        if ready:
            peer.login(b"alice-key")
        peer.send(struct.pack(">I", length))
        closed_without_a_word(peer)
    assert broker.resident_bytes() - before < 8 * MIB, "nothing may be allocated for a length that is a lie"


@pytest.mark.parametrize("ready", [False, True], ids=["before AUTH", "after AUTH"])
@pytest.mark.parametrize("kind", [0, 0x0B, 0x7F, 0xFF])
def test_an_unknown_type_closes(broker: Broker, kind: int, ready: bool) -> None:
    with Client(broker.address) as peer:
        if ready:
            peer.login(b"alice-key")
        peer.send(wire.frame(kind, 1))
        closed_without_a_word(peer)


def test_the_largest_frame_is_taken_and_what_is_before_a_bad_one_too(broker: Broker) -> None:
    message = bytes(16 * MIB - 9 - 3 - 5)
    with Client(broker.address).login(b"alice-key") as peer:
        peer.send(wire.publish(1, b"large", message))
        assert peer.barrier() == []
        peer.send(wire.frame(PING, 5) + struct.pack(">I", 0))
        assert peer.read() == Frame(PONG, 5, b"")
        closed_without_a_word(peer)


def test_an_unfinished_large_frame_costs_only_what_was_sent(broker: Broker) -> None:
    before = broker.resident_bytes()
    peers = [Client(broker.address).login(b"alice-key") for _ in range(50)]
    for peer in peers:
        peer.send(struct.pack(">IBQ", 16 * MIB, PUBLISH, 1) + bytes(1000))
    with Client(broker.address).login(b"bob-key") as other:
        other.barrier()
    assert broker.resident_bytes() - before < 16 * MIB
    for peer in peers:
        peer.socket.close()


# -- payloads -----------------------------------------------------------------------------------------------------------


BAD_PAYLOADS = {
    "PUBLISH empty": (PUBLISH, b"", 400, "invalid PUBLISH payload"),
    "PUBLISH cut in the topic length": (PUBLISH, b"\1\0", 400, "invalid PUBLISH payload"),
    "PUBLISH cut in the topic": (PUBLISH, b"\1\0\5abc", 400, "invalid PUBLISH payload"),
    "PUBLISH bad UTF-8": (PUBLISH, b"\1" + text(b"\xff\xfe"), 400, "invalid PUBLISH payload"),
    "PUBLISH overlong UTF-8": (PUBLISH, b"\1" + text(b"\xc0\xaf"), 400, "invalid PUBLISH payload"),
    "PUBLISH surrogate": (PUBLISH, b"\1" + text(b"\xed\xa0\x80"), 400, "invalid PUBLISH payload"),
    "PUBLISH empty topic": (PUBLISH, b"\1" + text(b"") + b"x", 400, "empty topic"),
    "PUBLISH QoS 2": (PUBLISH, b"\2" + text(b"t") + b"x", 400, "invalid QoS value"),
    "PUBLISH QoS 255": (PUBLISH, b"\xff" + text(b"t") + b"x", 400, "invalid QoS value"),
    "PUBLISH NUL": (PUBLISH, b"\1" + text(b"a\0b"), 400, "topic contains NUL byte"),
    "PUBLISH long topic": (PUBLISH, b"\1" + text(b"t" * 256), 400, "topic too long"),
    "SUBSCRIBE empty": (SUBSCRIBE, b"", 400, "invalid SUBSCRIBE payload"),
    "SUBSCRIBE without QoS": (SUBSCRIBE, text(b"topic"), 400, "invalid SUBSCRIBE payload"),
    "SUBSCRIBE cut in the topic": (SUBSCRIBE, b"\0\5ab\1", 400, "invalid SUBSCRIBE payload"),
    "SUBSCRIBE bad UTF-8": (SUBSCRIBE, text(b"\xff") + b"\1", 400, "invalid SUBSCRIBE payload"),
    "SUBSCRIBE empty topic": (SUBSCRIBE, text(b"") + b"\1", 400, "empty topic"),
    "SUBSCRIBE QoS 2": (SUBSCRIBE, text(b"t") + b"\2", 400, "invalid QoS value"),
    "SUBSCRIBE NUL": (SUBSCRIBE, text(b"a\0") + b"\1", 400, "topic contains NUL byte"),
    "SUBSCRIBE long topic": (SUBSCRIBE, text(b"t" * 256) + b"\1", 400, "topic too long"),
    "ACK short": (ACK, bytes(7), 400, "invalid ACK payload"),
    "ACK long": (ACK, bytes(9), 400, "invalid ACK payload"),
    "ACK of subscription 0": (ACK, bytes(8), 400, "subscription_id must be non-zero"),
    "ACK of nothing": (ACK, struct.pack(">Q", 2**64 - 1), 404, "unknown subscription or delivery tag"),
    "POLL short": (POLL, bytes(7), 400, "invalid POLL payload"),
    "POLL of subscription 0": (POLL, bytes(8), 400, "subscription_id must be non-zero"),
    "HELLO again": (HELLO, b"\0\1", 400, "HELLO already performed"),
    "AUTH again": (AUTH, text(b"alice-key"), 400, "already authenticated"),
}


@pytest.mark.parametrize("name", BAD_PAYLOADS)
def test_a_bad_payload_gets_the_nack_of_the_document(broker: Broker, name: str) -> None:
    kind, payload, code, words = BAD_PAYLOADS[name]
    with Client(broker.address).login(b"alice-key") as peer:
        reply = peer.ask(wire.frame(kind, 77, payload))
        assert (reply.kind, reply.id, reply.refusal) == (NACK, 77, (code, words))
        assert peer.barrier() == [], "the connection stays"


HANDSHAKES = {
    "HELLO of no version": ([wire.frame(HELLO, 1, b"")], (400, "invalid HELLO payload")),
    "HELLO of three bytes": ([wire.frame(HELLO, 1, b"\0\1\0")], (400, "invalid HELLO payload")),
    "HELLO of version 9": ([wire.hello(1, 9)], (426, "unsupported protocol version")),
    "AUTH first": ([wire.auth(1, b"alice-key")], (400, "HELLO not performed")),
    "PUBLISH first": ([wire.publish(1, b"t", b"x")], (401, "unauthenticated")),
    "POLL between": ([wire.hello(0, 1), wire.poll(1, 1)], (401, "unauthenticated")),
    "PING first": ([wire.frame(PING, 1)], (401, "unauthenticated")),
    "AUTH cut": ([wire.hello(0, 1), wire.frame(AUTH, 1, b"\0\x09ab")], (400, "invalid AUTH payload")),
    "AUTH with a rest": (
        [wire.hello(0, 1), wire.frame(AUTH, 1, b"\0\1ab")],
        (400, "invalid AUTH payload"),
    ),
    "AUTH not UTF-8": ([wire.hello(0, 1), wire.auth(1, b"\xff")], (400, "invalid AUTH payload")),
    "AUTH unknown key": ([wire.hello(0, 1), wire.auth(1, b"nobody")], (401, "invalid API key")),
    "AUTH empty key": ([wire.hello(0, 1), wire.auth(1, b"")], (401, "invalid API key")),
}


@pytest.mark.parametrize("name", HANDSHAKES)
def test_a_bad_handshake_gets_the_nack_of_the_document_and_may_go_on(broker: Broker, name: str) -> None:
    steps, refusal = HANDSHAKES[name]
    with Client(broker.address) as peer:
        for step in steps[:-1]:
            assert peer.ask(step).kind == ACK
        assert peer.ask(steps[-1]).refusal == refusal
        if len(steps) == 1:
            assert peer.ask(wire.hello(8, 1)) == Frame(ACK, 8, bytes(8))
        assert peer.ask(wire.auth(9, b"alice-key")) == Frame(ACK, 9, bytes(8))


def test_internal_topics_are_closed(broker: Broker) -> None:
    with Client(broker.address).login(b"alice-key") as peer:
        for name in (b"__topics", b"__credentials", b"__subscriptions"):
            assert peer.ask(wire.subscribe(1, name)).kind == NACK
            assert peer.ask(wire.publish(1, name, b"x")).kind == NACK


def test_the_frames_of_the_document_through_a_socket(broker: Broker) -> None:
    hexes = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in json.loads(VECTORS.read_text())}
    with Client(broker.address) as peer:
        assert peer.ask(hexes["hello"]) == Frame(ACK, 1, bytes(8))
        assert peer.ask(hexes["auth"]) == Frame(ACK, 2, bytes(8))
        subscription = peer.ask(hexes["subscribe"])
        assert (subscription.kind, subscription.id) == (ACK, 3)
        reply = wire.ack(3, subscription.number)
        assert len(reply) == len(hexes["ack"]) and reply[:13] == hexes["ack"][:13]
        peer.send(hexes["publish"])
        assert peer.barrier() == []
        found = peer.ask(wire.poll(6, subscription.number))
        assert found.delivery[1:] == ("demo", b"hi")
        assert found.payload == hexes["publish"][13:]
        peer.send(wire.ack(found.id, subscription.number))
        assert peer.barrier() == []


# -- time and memory ----------------------------------------------------------------------------------------------------


def test_clients_that_do_not_authenticate_are_closed(broker: Broker) -> None:
    """Silent, greeting only, and stuck in a length: all at once, because each takes five seconds."""
    peers = [Client(broker.address) for _ in range(3)]
    for peer, greeting in zip(peers, (b"", wire.hello(1, 1), b"\0\0"), strict=True):
        peer.send(greeting)
    for peer in peers:
        with peer, pytest.raises(Closed):
            while True:
                assert peer.read(15).kind == ACK
    broker.await_said("no authentication within 5 seconds", 3)


def flood(broker: Broker, publisher: Client, data: bytes) -> int:
    """Send FLOOD_BYTES: the most memory the broker had above what it had before."""
    before = most = broker.resident_bytes()
    for _ in range(FLOOD_BYTES // len(data)):
        publisher.send(data)
        most = max(most, broker.resident_bytes())
    publisher.barrier()
    return max(most, broker.resident_bytes()) - before


def test_consumers_that_never_read_cost_little_and_are_cut(broker: Broker) -> None:
    """One of a memory topic, one of a durable one."""
    cuts = broker.said().count("read nothing for 10 seconds")
    consumers = [Client(broker.address, receive_buffer=4096).login(b"alice-key", version=2) for _ in range(2)]
    with Client(broker.address).login(b"bob-key") as publisher:
        for qos, consumer in enumerate(consumers):
            topic = b"never-read-%d" % qos
            assert consumer.ask(wire.subscribe(1, topic, qos)).kind == ACK
            growth = flood(broker, publisher, wire.publish(1, topic, bytes(64 * 1024), qos=0) * 16)
            assert growth < GROWTH_BYTES_MAX, f"{growth // MIB} MiB more for a consumer that never reads"
        line = broker.await_said("read nothing for 10 seconds", cuts + 2)
        assert '"who": "alice"' in line
    for consumer in consumers:
        consumer.socket.close()


def test_a_client_that_asks_and_never_reads_the_answers_costs_little(broker: Broker) -> None:
    """It sends what must be answered, at full speed, and reads nothing: it is not read from either."""
    before = most = broker.resident_bytes()
    with Client(broker.address, receive_buffer=4096).login(b"mallory-key") as peer:
        questions = wire.ack(1, 12345) * 4096  # each is answered by a NACK of 50 bytes
        peer.socket.settimeout(2)
        until = time.monotonic() + 6
        try:
            while time.monotonic() < until:
                peer.socket.sendall(questions)
                most = max(most, broker.resident_bytes())
        except OSError:
            pass  # the broker reads no more, or has cut the connection: both are right
        most = max(most, broker.resident_bytes())
    assert most - before < ANSWERS_BYTES_MAX, f"{(most - before) // MIB} MiB of answers nobody reads"


# -- other people's messages --------------------------------------------------------------------------------------------


def test_nobody_reads_or_settles_for_another_key(broker: Broker) -> None:
    chance = random.Random(1)
    count = 20
    with Client(broker.address).login(b"alice-key") as alice, Client(broker.address).login(b"mallory-key") as mallory:
        subscription = alice.ask(wire.subscribe(1, b"secrets")).number
        for number in range(count):
            alice.send(wire.publish(number, b"secrets", b"secret %d" % number))
        alice.barrier()
        alice.send(wire.poll(1, subscription))
        in_flight = alice.read()
        ids = [subscription, *range(1, 2000), *(chance.getrandbits(64) for _ in range(GUESSES // 2))]
        polls = [wire.poll(number, id) for number, id in enumerate(ids) if id]
        mallory.send(b"".join(polls))
        assert mallory.barrier() == [], "a POLL of another's subscription is silent"
        guesses = [(id, tag) for id in (subscription, *range(1, 200)) for tag in range(count + 2)]
        guesses += [(chance.getrandbits(64) or 1, chance.getrandbits(64)) for _ in range(GUESSES // 2)]
        mallory.send(b"".join(wire.ack(tag, id) for id, tag in guesses if id))
        answers = mallory.barrier()
        assert len(answers) == len(guesses)
        assert {answer.refusal for answer in answers} == {(404, "unknown subscription or delivery tag")}
        alice.send(wire.ack(in_flight.id, subscription))
        assert alice.barrier() == [], "what mallory tried to settle was still hers to settle"
        got = [in_flight.delivery[2]]
        for _ in range(count - 1):
            found = alice.ask(wire.poll(1, subscription))
            got.append(found.delivery[2])
            alice.send(wire.ack(found.id, subscription))
        assert got == [b"secret %d" % number for number in range(count)]
        assert alice.barrier() == []


def test_the_same_key_resumes_its_subscription_on_another_connection(broker: Broker) -> None:
    with Client(broker.address).login(b"alice-key") as first:
        subscription = first.ask(wire.subscribe(1, b"resumed")).number
        first.send(wire.publish(1, b"resumed", b"kept"))
        first.barrier()
    with Client(broker.address).login(b"alice-key") as second:
        found = second.ask(wire.poll(1, subscription))
        assert found.delivery[1:] == ("resumed", b"kept")
        second.send(wire.ack(found.id, subscription))
        assert second.barrier() == []


def test_an_acknowledgement_counts_once(broker: Broker) -> None:
    with Client(broker.address).login(b"alice-key") as peer:
        subscription = peer.ask(wire.subscribe(1, b"once")).number
        peer.send(wire.publish(1, b"once", b"x"))
        peer.barrier()
        found = peer.ask(wire.poll(1, subscription))
        peer.send(wire.ack(found.id, subscription))
        assert peer.barrier() == []
        again = peer.ask(wire.ack(found.id, subscription))
        assert again.refusal == (404, "unknown subscription or delivery tag")
        peer.send(wire.poll(1, subscription))
        with pytest.raises(Hang):
            pytest.fail(f"settled and yet delivered: {peer.read(0.5)}")


# -- floods -------------------------------------------------------------------------------------------------------------


def test_a_flood_of_subscriptions_meets_its_limit(broker: Broker) -> None:
    with Client(broker.address).login(b"mallory-key") as peer:
        peer.send(b"".join(wire.subscribe(number, b"flooded") for number in range(1100)))
        kinds = [peer.read().kind for _ in range(1100)]
        assert kinds == [ACK] * 1000 + [NACK] * 100


def test_guessing_keys_ends_the_connection(broker: Broker) -> None:
    with Client(broker.address) as peer:
        assert peer.ask(wire.hello(1, 1)).kind == ACK
        with pytest.raises(Closed):
            for number in range(1000):
                assert peer.ask(wire.auth(number, b"guess-%d" % number)).refusal[0] == 401
            pytest.fail("a thousand guesses on one connection")


def test_random_bytes_never_hurt(broker: Broker) -> None:
    chance = random.Random(5)
    for _ in range(200):
        with Client(broker.address) as peer:
            if chance.random() < 0.5:
                peer.login(b"mallory-key")
            kind, size = chance.randrange(12), chance.randrange(64)
            noise = wire.frame(kind, chance.getrandbits(64), chance.randbytes(size)) + chance.randbytes(
                chance.randrange(200)
            )
            peer.send(noise)
