"""The BlipMQ session against its document, on a simulated broker: every code and text, order, ownership, redelivery."""

import itertools
import struct
from types import SimpleNamespace
from typing import cast

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.sections import DeliverySection
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.delivery.subscription import Subscription
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.model.batch import RecordBatch
from quintet.protocols.blipmq import errors
from quintet.protocols.blipmq.frames import ACK, DELIVER, HEADER, NACK, PING, PONG, PUBLISH
from quintet.protocols.blipmq.mapping import pieces, tag_of
from quintet.protocols.blipmq.session import AUTH_FAILURES_MAX, SUBSCRIPTIONS_MAX, BlipSession
from quintet.testing.line import Peer, SimBroker
from tests.protocols.blipmq.helpers import frames_of, nacks_of, publish, ready, subscribed, tags_of, values_of
from tests.protocols.cases import DoorLaws
from tests.wire import blipmq as wire

SECOND = 1_000_000


@pytest.fixture
def sim() -> SimBroker:
    return SimBroker()


def ack(tag: int, subscription: int) -> bytes:
    return wire.ack(tag, subscription)


# -- laws ---------------------------------------------------------------------------------------------------------------


class TestLawsVersion1(DoorLaws):
    make_session = BlipSession

    def script(self) -> bytes:
        return (
            wire.ping(9)
            + wire.auth(1, b"dev-key")
            + wire.hello(2, 7)
            + wire.hello(3, 1)
            + wire.hello(4, 1)
            + wire.auth(5, b"wrong")
            + wire.auth(6, b"dev-key")
            + wire.subscribe(7, b"demo", 1)
            + wire.subscribe(8, b"other", 0)
            + publish(b"demo", b"a", b"b", first_id=20)
            + publish(b"other", b"c", qos=0, first_id=30)
            + publish(b"demo", b"d", first_id=31)
            + wire.frame(PUBLISH, 40, b"\x02\x00\x01xy")
            + wire.ping(41)
            + b"".join(wire.poll(50 + n, 1) for n in range(4))
            + wire.poll(60, 2)
            + ack(1, 1)
            + ack(77, 1)
            + wire.poll(61, 99)
            + wire.poll(62, 0)
            + wire.ping(63)
        )


class TestLawsVersion2(DoorLaws):
    make_session = BlipSession

    def script(self) -> bytes:
        return (
            wire.hello(1, 2)
            + wire.auth(2, b"dev-key")
            + publish(b"demo", b"a", first_id=3)
            + wire.ping(4)
            + publish(b"demo", b"b", first_id=5, ttl_ms=1000)
            + wire.frame(PUBLISH, 6, b"\x01\x00")
            + wire.ping(7)
            + wire.frame(0x55, 8)
        )


def test_replies_keep_their_order_whatever_completes_first() -> None:
    """Three publishes to three topics, a PING behind each: in all orders of disk completion, one output."""
    outputs = set()
    for order in itertools.permutations(range(3)):
        sim = SimBroker()
        peer = ready(sim)
        for name in (b"t0", b"t1", b"t2"):
            peer.exchange(publish(name, bytes(3_000)))  # too much for a pack: each has a file, and so a job, of its own
        sim.scheduler.held = True
        for number, name in enumerate((b"t0", b"t1", b"t2")):
            peer.feed(publish(name, b"x", first_id=10 + number) + wire.ping(20 + number))
        sim.scheduler.turn()
        assert len(sim.scheduler.jobs) == 3
        assert peer.take() == b"", "a PONG left before its publish was durable"
        jobs = list(sim.scheduler.jobs)
        for number in order:
            sim.scheduler.finish(sim.scheduler.jobs.index(jobs[number]))
        outputs.add(peer.take())
    assert len(outputs) == 1
    assert [cid for _, cid, _ in frames_of(outputs.pop())] == [20, 21, 22]


# -- handshake ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (wire.auth(1, b"dev-key"), [(1, *errors.HELLO_MISSING)]),
        (wire.hello(1, 3), [(1, *errors.VERSION)]),
        (wire.frame(1, 1, b"\0\1\0"), [(1, *errors.HELLO_INVALID)]),
        (wire.hello(1, 1) + wire.hello(2, 1), [(2, *errors.HELLO_ALREADY)]),
        (wire.hello(1, 1) + wire.auth(2, b"nope"), [(2, *errors.AUTH_KEY)]),
        (wire.hello(1, 1) + wire.frame(2, 2, b"\0\7dev"), [(2, *errors.AUTH_INVALID)]),
        (wire.hello(1, 1) + wire.frame(2, 2, b"\0\1\xff"), [(2, *errors.AUTH_INVALID)]),
        (wire.hello(1, 1) + wire.frame(2, 2, b"\0\1ab"), [(2, *errors.AUTH_INVALID)]),
        (wire.hello(1, 1) + wire.auth(2, b"dev-key") + wire.auth(3, b"dev-key"), [(3, *errors.AUTH_ALREADY)]),
        (wire.hello(1, 1) + wire.auth(2, b"dev-key") + wire.hello(3, 1), [(3, *errors.HELLO_ALREADY)]),
        (wire.ping(1), [(1, *errors.UNAUTHENTICATED)]),
        (wire.hello(1, 1) + publish(b"t", b"x", first_id=2), [(2, *errors.UNAUTHENTICATED)]),
        (wire.hello(1, 1) + wire.subscribe(2, b"t", 1), [(2, *errors.UNAUTHENTICATED)]),
        (wire.hello(1, 1) + wire.poll(2, 1), [(2, *errors.UNAUTHENTICATED)]),
        (wire.hello(1, 1) + ack(2, 1), [(2, *errors.UNAUTHENTICATED)]),
    ],
)
def test_handshake_refusals_keep_the_connection(
    sim: SimBroker, sent: bytes, expected: list[tuple[int, int, str]]
) -> None:
    peer = Peer(sim, BlipSession)
    assert nacks_of(peer.exchange(sent)) == expected
    assert peer.session.closing is None


def test_a_refused_client_may_try_again(sim: SimBroker) -> None:
    peer = Peer(sim, BlipSession)
    peer.exchange(wire.hello(1, 9) + wire.hello(2, 1) + wire.auth(3, b"wrong"))
    assert frames_of(peer.exchange(wire.auth(4, b"dev-key"))) == [(ACK, 4, bytes(8))]


def test_too_many_wrong_keys_close(sim: SimBroker) -> None:
    peer = Peer(sim, BlipSession)
    peer.exchange(wire.hello(1, 1))
    for attempt in range(AUTH_FAILURES_MAX):
        assert peer.session.closing is None
        peer.exchange(wire.auth(attempt, b"wrong"))
    assert peer.session.closing == "too many failed authentications"


def test_a_silent_client_is_closed_at_the_deadline(sim: SimBroker) -> None:
    peer = Peer(sim, BlipSession)
    deadline = peer.session.deadline()
    assert deadline == sim.scheduler.monotonic() + 5 * SECOND
    peer.session.tick(deadline - 1)
    assert peer.session.closing is None
    peer.session.tick(deadline)
    assert peer.session.closing == "no authentication within 5 seconds"


def test_a_large_frame_before_authentication_is_refused_unread(sim: SimBroker) -> None:
    peer = Peer(sim, BlipSession)
    peer.feed(HEADER.pack(16 * 1024 + 1, PUBLISH, 1))
    assert peer.session.closing == "frame length 16385 is above 16384"


@pytest.mark.parametrize("length", [0, 1, 8, 16 * 1024 * 1024 + 1, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("authenticated", [False, True])
def test_a_lie_in_the_length_closes(sim: SimBroker, length: int, authenticated: bool) -> None:
    peer = ready(sim) if authenticated else Peer(sim, BlipSession)
    peer.feed(length.to_bytes(4, "big"))
    assert peer.session.closing is not None
    assert peer.take() == b""


@pytest.mark.parametrize("kind", [0x00, 0x0A, 0x0B, 0x7F, 0xFF])
def test_an_unknown_type_closes_after_what_came_before_it(sim: SimBroker, kind: int) -> None:
    peer = ready(sim)
    replies = peer.exchange(wire.ping(5) + wire.frame(kind, 6) + wire.ping(7))
    assert frames_of(replies) == [(PONG, 5, b"")]
    assert peer.session.closing == "unknown frame type"


# -- publish ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", (400, "invalid PUBLISH payload")),
        (b"\x01\x00", (400, "invalid PUBLISH payload")),
        (b"\x01\x00\x05abc", (400, "invalid PUBLISH payload")),
        (b"\x01\x00\x01\xff", (400, "invalid PUBLISH payload")),
        (b"\x01\x00\x00hi", (400, "empty topic")),
        (b"\x02\x00\x01thi", (400, "invalid QoS value")),
        (b"\xff\x00\x01thi", (400, "invalid QoS value")),
        (b"\x01\x00\x03a\x00bhi", (400, "topic contains NUL byte")),
        (b"\x01\x01\x00" + b"a" * 256, (400, "topic too long")),
    ],
)
def test_malformed_publishes_get_the_documents_words(sim: SimBroker, payload: bytes, expected: tuple[int, str]) -> None:
    peer = ready(sim)
    assert nacks_of(peer.exchange(wire.frame(PUBLISH, 9, payload))) == [(9, *expected)]
    assert peer.session.closing is None


def test_a_publish_has_no_reply_and_ping_is_the_barrier(sim: SimBroker) -> None:
    peer = ready(sim)
    assert peer.exchange(publish(b"t", b"x")) == b""
    sim.scheduler.held = True
    peer.feed(publish(b"t", b"y") + wire.frame(PING, 7))
    sim.scheduler.turn()
    assert peer.take() == b""
    sim.scheduler.finish()
    assert frames_of(peer.take()) == [(PONG, 7, b"")]


def test_a_publish_the_disk_refuses_is_nacked_before_its_barrier(sim: SimBroker) -> None:
    peer = ready(sim)
    peer.exchange(publish(b"t", b"x"))
    sim.disk.fail("fdatasync", 1, 5)
    replies = peer.exchange(publish(b"t", b"y", b"z", first_id=70) + wire.ping(72))
    assert [(cid, code) for cid, code, _ in nacks_of(replies)] == [(70, 500), (71, 500)]
    assert all(text.startswith("durable publish failed: ") for _, _, text in nacks_of(replies))
    assert frames_of(replies)[-1] == (PONG, 72, b"")


def test_the_brokers_own_topics_are_nobodys(sim: SimBroker) -> None:
    peer = ready(sim)
    assert nacks_of(peer.exchange(publish(b"__topics", b"x", first_id=4)))[0][:2] == (4, 401)
    assert nacks_of(peer.exchange(wire.subscribe(5, b"__topics", 1)))[0][:2] == (5, 401)


def test_a_full_queue_refuses_qos1_and_never_drops() -> None:
    options = BrokerOptions(topics=TopicPolicy([TopicRule("*")], queue_messages_max=3))
    sim = SimBroker(options=options)
    peer = ready(sim)
    subscription = subscribed(peer, b"t")
    for number in range(3):
        assert peer.exchange(publish(b"t", b"%d" % number)) == b""
    refused = nacks_of(peer.exchange(publish(b"t", b"3", first_id=9)))
    assert refused == [
        (9, 500, "durable publish failed: the queue of subscription 1 on topic 't' is full (3 messages)")
    ]
    deliveries = peer.exchange(wire.poll(1, subscription) * 5)
    assert values_of(deliveries) == [b"0", b"1", b"2"]
    peer.exchange(b"".join(ack(tag, subscription) for tag in tags_of(deliveries)))
    assert peer.exchange(publish(b"t", b"4")) == b""


# -- subscribe, poll, ack ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", errors.SUBSCRIBE_INVALID),
        (b"\0\4dem", errors.SUBSCRIBE_INVALID),
        (b"\0\1\xff\1", errors.SUBSCRIBE_INVALID),
        (b"\0\0\1", errors.EMPTY_TOPIC),
        (b"\0\1t\2", errors.QOS),
        (b"\0\2t\0\1", errors.TOPIC_NUL),
        (b"\1\0" + b"a" * 256 + b"\1", errors.TOPIC_LONG),
    ],
)
def test_malformed_subscribes(sim: SimBroker, payload: bytes, expected: tuple[int, str]) -> None:
    assert nacks_of(ready(sim).exchange(wire.frame(4, 8, payload))) == [(8, *expected)]


def test_subscribe_tolerates_trailing_bytes(sim: SimBroker) -> None:
    assert frames_of(ready(sim).exchange(wire.frame(4, 8, b"\0\1t\1junk")))[0][0] == ACK


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (wire.frame(ACK, 5, bytes(7)), (5, 400, "invalid ACK payload")),
        (wire.frame(9, 5, bytes(9)), (5, 400, "invalid POLL payload")),
        (wire.frame(ACK, 5, bytes(8)), (5, 400, "subscription_id must be non-zero")),
        (wire.frame(9, 5, bytes(8)), (5, 400, "subscription_id must be non-zero")),
        (ack(5, 1), (5, 404, "unknown subscription or delivery tag")),
    ],
)
def test_malformed_acks_and_polls(sim: SimBroker, frame: bytes, expected: tuple[int, int, str]) -> None:
    assert nacks_of(ready(sim).exchange(frame)) == [expected]


def test_poll_gives_one_message_each_and_silence_after(sim: SimBroker) -> None:
    peer = ready(sim)
    subscription = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b", b"c"))
    assert values_of(peer.exchange(wire.poll(1, subscription))) == [b"a"]
    assert values_of(peer.exchange(wire.poll(2, subscription) + wire.poll(3, subscription))) == [b"b", b"c"]
    assert peer.exchange(wire.poll(4, subscription)) == b""


def test_qos0_deliveries_carry_the_polls_id_and_qos1_the_tag(sim: SimBroker) -> None:
    peer = ready(sim)
    zero, one = subscribed(peer, b"t", 0), subscribed(peer, b"t", 1)
    peer.exchange(publish(b"t", b"a"))
    assert frames_of(peer.exchange(wire.poll(77, zero))) == [(PUBLISH, 77, b"\0\0\1ta")]
    (kind, tag, payload) = frames_of(peer.exchange(wire.poll(78, one)))[0]
    assert (kind, payload) == (PUBLISH, b"\1\0\1ta")
    assert peer.exchange(ack(tag, one)) == b""
    assert nacks_of(peer.exchange(ack(tag, one))) == [(tag, *errors.UNKNOWN)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_large_message_is_sent_from_where_it_is_in_the_same_frame(version: int, qos: int) -> None:
    """The kernel's frame is the model: a header that is made here must not differ from it."""
    values = [b"first", b"L" * (2 << 20), b"last"]
    buffer = kernel.build(values, [None] * 3)
    kernel.place(buffer, 7, 1)
    batch = RecordBatch(buffer)
    ids = [41, 42, 43]
    tag = tag_of(0, 7) if qos else 0
    packed = struct.pack("<3Q", *ids)
    whole, _ = kernel.blip_deliver(version, b"topic", qos, batch.buffer, 0, 3, tag, packed, 0)
    subscription = SimpleNamespace(qos=qos, topic_name=b"topic")
    made = list(pieces(version, cast(Subscription, subscription), 0, batch, 0, 3, ids))
    assert b"".join(made) == whole
    assert any(isinstance(piece, memoryview) for piece in made), "the large value is not copied"


@pytest.mark.parametrize("version", [1, 2])
def test_a_large_message_is_delivered_whole(version: int, sim: SimBroker) -> None:
    large = bytes(range(256)) * (3 << 12)
    peer = ready(sim, version)
    subscription = subscribed(peer, b"t")
    asked = wire.poll(1, subscription) if version == 1 else b""
    assert values_of(peer.exchange(publish(b"t", large)) + peer.exchange(asked)) == [large]
    assert values_of(peer.exchange(publish(b"t", b"small")) + peer.exchange(asked)) == [b"small"]


def test_a_qos0_publish_stays_qos0_for_a_qos1_subscription(sim: SimBroker) -> None:
    peer = ready(sim)
    one = subscribed(peer, b"t", 1)
    peer.exchange(publish(b"t", b"a", qos=0))
    assert frames_of(peer.exchange(wire.poll(78, one))) == [(PUBLISH, 78, b"\0\0\1ta")]
    assert peer.exchange(wire.poll(79, one)) == b""


def test_a_subscription_is_unknown_to_another_key() -> None:
    sim = SimBroker(keys={"alice": "key-a", "bob": "key-b"})
    alice, bob = ready(sim, key=b"key-a"), ready(sim, key=b"key-b")
    mine = subscribed(alice, b"t")
    alice.exchange(publish(b"t", b"secret"))
    assert bob.exchange(b"".join(wire.poll(n, n) for n in range(1, 50))) == b""
    tag = tags_of(alice.exchange(wire.poll(1, mine)))[0]
    assert nacks_of(bob.exchange(ack(tag, mine))) == [(tag, *errors.UNKNOWN)]
    assert alice.exchange(ack(tag, mine)) == b""


@pytest.mark.parametrize("version", [1, 2])
def test_the_same_key_resumes_after_a_reconnect_and_a_restart(version: int) -> None:
    sim = SimBroker()
    peer = ready(sim)
    subscription = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b", b"c"))
    first = peer.exchange(wire.poll(1, subscription) * 2)
    peer.exchange(ack(tags_of(first)[0], subscription))
    peer.close()
    again = ready(sim, version)
    data = again.exchange(wire.poll(5, subscription) * 3)
    assert sorted(values_of(data)) == [b"b", b"c"]
    again.close()
    again.exchange(b"")
    sim.restart()
    later = ready(sim, version)
    assert sorted(values_of(later.exchange(wire.poll(5, subscription) * 3))) == [b"b", b"c"]


def test_what_was_not_acknowledged_survives_a_power_cut() -> None:
    sim = SimBroker()
    peer = ready(sim)
    subscription = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b", b"c") + wire.ping(1))
    sim.advance(SECOND)
    sim.log.abandon()
    sim.disk.crash(__import__("random").Random(7))
    sim.scheduler = type(sim.scheduler)()
    sim.start()
    assert values_of(ready(sim).exchange(wire.poll(5, subscription) * 5)) == [b"a", b"b", b"c"]


def test_an_ack_just_before_a_crash_may_be_forgotten_and_nothing_is_lost() -> None:
    sim = SimBroker()
    peer = ready(sim)
    subscription = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b"))
    tags = tags_of(peer.exchange(wire.poll(1, subscription) * 2))
    peer.exchange(ack(tags[0], subscription))
    sim.log.abandon()
    sim.start()
    assert values_of(ready(sim).exchange(wire.poll(5, subscription) * 3)) == [b"a", b"b"]
    peer = ready(sim)
    peer.exchange(b"".join(ack(tag, subscription) for tag in tags))
    sim.advance(SECOND)
    sim.log.abandon()
    sim.start()
    assert ready(sim).exchange(wire.poll(5, subscription) * 3) == b"", "saved acknowledgements were forgotten"


def test_subscriptions_on_one_connection_are_bounded(sim: SimBroker) -> None:
    peer = ready(sim)
    replies = peer.exchange(b"".join(wire.subscribe(n, b"t", 0) for n in range(SUBSCRIPTIONS_MAX + 1)))
    assert [code for _, code, _ in nacks_of(replies)] == [500]


# -- redelivery ---------------------------------------------------------------------------------------------------------------


def slow_sim() -> SimBroker:
    policy = DeliverySection(attempts_max=3, retry_backoff_seconds=1, push_timeout_seconds=10, in_flight_max=10)
    return SimBroker(options=BrokerOptions(delivery=policy))


def test_redelivery_backs_off_and_ends_in_the_dead_letter_topic() -> None:
    sim = slow_sim()
    peer = ready(sim)
    subscription, graveyard = subscribed(peer, b"t"), subscribed(peer, b"t-dlq")
    peer.exchange(publish(b"t", b"poison"))
    tags, waits = [], []
    for _ in range(3):
        waited = 0
        while not (data := peer.exchange(wire.poll(1, subscription))):
            sim.advance(SECOND // 2)
            waited += 1
            assert waited < 100
        tags += tags_of(data)
        waits.append(waited)
    assert tags == [tags[0]] * 3
    assert waits == [0, 2, 4], "half seconds between attempts: one second, then two"
    sim.advance(5 * SECOND)
    assert peer.exchange(wire.poll(1, subscription)) == b""
    assert values_of(peer.exchange(wire.poll(1, graveyard))) == [b"poison"]
    row = sim.broker.topics.get(b"t-dlq").partitions[0].read(0, 1000)[0].rows()[0]  # type: ignore[union-attr,index]
    assert dict(row[4])[b"quintet-dead-attempts"] == b"3"
    assert dict(row[4])[b"quintet-dead-topic"] == b"t"


def test_a_dead_letter_the_disk_refuses_is_not_lost() -> None:
    sim = slow_sim()
    peer = ready(sim)
    subscription, graveyard = subscribed(peer, b"t"), subscribed(peer, b"t-dlq")
    peer.exchange(publish(b"t", b"poison"))
    capacity, sim.disk.capacity = sim.disk.capacity, 0
    for _ in range(30):
        peer.exchange(wire.poll(1, subscription))
        sim.advance(SECOND)
    assert peer.exchange(wire.poll(1, graveyard)) == b""
    sim.disk.capacity = capacity
    seen = []
    for _ in range(30):
        seen += values_of(peer.exchange(wire.poll(1, subscription) + wire.poll(2, graveyard)))
        sim.advance(SECOND)
    assert b"poison" in seen


def test_a_dead_letter_that_cannot_be_read_is_not_lost() -> None:
    sim = slow_sim()
    peer = ready(sim)
    subscription, graveyard = subscribed(peer, b"t"), subscribed(peer, b"t-dlq")
    peer.exchange(publish(b"t", b"poison"))
    for _ in range(3):
        while not peer.exchange(wire.poll(1, subscription)):
            sim.advance(SECOND // 2)
    topic = sim.broker.topics.get(b"t")
    assert topic is not None
    partition = topic.partitions[0]
    assert isinstance(partition, FilePartition)
    partition.cache.clear()
    sim.disk.fail("pread", 1, 5, times=3)
    seen: list[bytes] = []
    for _ in range(60):
        seen += values_of(peer.exchange(wire.poll(1, graveyard) + wire.poll(2, subscription)))
        sim.advance(SECOND)
    assert ("dead_letter_failed" in [event for event, _ in sim.reports], b"poison" in seen) == (True, True)


def test_a_late_acknowledgement_counts() -> None:
    sim = slow_sim()
    peer = ready(sim)
    subscription = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"slow"))
    tag = tags_of(peer.exchange(wire.poll(1, subscription)))[0]
    sim.advance(3 * SECOND)
    assert peer.exchange(ack(tag, subscription)) == b""
    assert peer.exchange(wire.poll(1, subscription)) == b""


# -- version 2 ------------------------------------------------------------------------------------------------------------------


def test_version_2_pushes_and_stops_at_the_window() -> None:
    sim = slow_sim()
    peer = ready(sim, 2)
    subscription = subscribed(peer, b"t")
    data = peer.exchange(publish(b"t", *(b"%d" % n for n in range(15))))
    assert values_of(data) == [b"%d" % n for n in range(10)]
    kind, tag, payload = frames_of(data)[0]
    assert (kind, payload) == (DELIVER, b"\1" + tag.to_bytes(8, "big") + b"\0\1t0")
    more = peer.exchange(b"".join(ack(tag, subscription) for tag in tags_of(data)[:3]))
    assert values_of(more) == [b"10", b"11", b"12"]


def test_version_2_qos0_has_no_tag(sim: SimBroker) -> None:
    peer = ready(sim, 2)
    subscribed(peer, b"t", 0)
    assert frames_of(peer.exchange(publish(b"t", b"x", qos=0))) == [(DELIVER, 0, bytes(9) + b"\0\1tx")]


def test_a_full_socket_parks_the_push_until_there_is_room(sim: SimBroker) -> None:
    peer = ready(sim, 2)
    subscribed(peer, b"t", 0)
    peer.room_bytes = 0
    assert peer.exchange(publish(b"t", b"x", qos=0)) == b""
    peer.room_bytes = 1000
    peer.unpark()
    assert values_of(peer.take()) == [b"x"]


def test_a_lost_connection_gives_back_what_it_had(sim: SimBroker) -> None:
    peer = ready(sim, 2)
    subscription = subscribed(peer, b"t")
    assert values_of(peer.exchange(publish(b"t", b"x"))) == [b"x"]
    peer.close()
    again = ready(sim, 2)
    assert values_of(again.exchange(wire.poll(9, subscription))) == [b"x"]


def test_an_expired_message_is_not_delivered(sim: SimBroker) -> None:
    peer = ready(sim, 2)
    other = ready(sim, 1)
    subscription = subscribed(other, b"t")
    peer.exchange(publish(b"t", b"short", ttl_ms=1000) + publish(b"t", b"long", ttl_ms=60_000) + publish(b"t", b"ever"))
    sim.advance(2 * SECOND)
    assert values_of(other.exchange(wire.poll(1, subscription) * 4)) == [b"long", b"ever"]


def test_a_revoked_key_is_evicted_and_a_kept_one_is_not() -> None:
    sim = SimBroker(keys={"alice": "key-a", "bob": "key-b"})
    alice, bob = ready(sim, key=b"key-a"), ready(sim, key=b"key-b")
    sim.keys = {"alice": "key-a"}
    from quintet.broker.identity.access import Credential, hash_secret

    sim.broker.set_credentials([Credential("alice", hash_secret(b"key-a"))])
    assert frames_of(alice.exchange(wire.ping(1))) == [(PONG, 1, b"")]
    assert bob.exchange(wire.ping(1)) == b""
    assert bob.session.closing == "the API key was revoked"


def test_client_pong_and_nack_are_passed_over(sim: SimBroker) -> None:
    peer = ready(sim)
    data = peer.exchange(wire.pong(1) + wire.nack(2, 400, "x") + wire.ping(3))
    assert frames_of(data) == [(PONG, 3, b"")]


def test_every_broker_error_has_a_nack() -> None:
    from quintet.model import errors as model

    kinds = [k for k in vars(model).values() if isinstance(k, type) and issubclass(k, model.QuintetError)]
    for kind in kinds:
        code, text = errors.to_nack(kind("why"))
        assert code in (400, 401, 404, 500)
        assert text.endswith("why")
    assert errors.to_nack(KeyError("secret")) == (500, "internal server error")
    assert NACK == 6
