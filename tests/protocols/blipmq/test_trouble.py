"""The BlipMQ door in trouble: refused writes, read errors, retention, lost pollers, withdrawn rights, bounds."""

from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Credential, hash_secret
from quintet.broker.sections import DeliverySection
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.protocols.base import WAIT
from quintet.protocols.blipmq.frames import PONG
from quintet.protocols.blipmq.session import REPLIES_WAITING_MAX
from quintet.testing.line import SimBroker
from tests.protocols.blipmq.helpers import frames_of, nacks_of, publish, ready, subscribed, tags_of, values_of
from tests.wire import blipmq as wire

SECOND = 1_000_000


def test_a_subscriber_behind_retention_goes_on_at_what_is_left() -> None:
    rule = TopicRule("*", segment_bytes=65_536, retention_bytes=70_000)
    sim = SimBroker(options=BrokerOptions(topics=TopicPolicy([rule])))
    sim.log._shared.cache_bytes_max = 50_000
    subscription = subscribed(ready(sim), b"t")
    publisher = ready(sim)
    for number in range(40):
        publisher.exchange(publish(b"t", b"%02d" % number + bytes(10_000)))
    sim.advance(5 * SECOND)
    values = [value[:2] for value in values_of(ready(sim, 2).exchange(wire.poll(1, subscription)))]
    assert values == [b"%02d" % number for number in range(40 - len(values), 40)]
    assert values


def test_a_read_error_neither_spins_nor_hangs_and_heals() -> None:
    sim = SimBroker()
    subscription = subscribed(ready(sim), b"t")
    ready(sim).exchange(publish(b"t", b"x"))
    sim.restart()
    poller = ready(sim)
    sim.disk.fail("pread", 1, 5, times=3)
    answer = poller.exchange(wire.poll(1, subscription) + wire.ping(2))
    assert frames_of(answer) == [(PONG, 2, b"")]
    assert sim.log.stats()["fetches"] == 1
    seen = []
    for _ in range(3):
        sim.advance(SECOND)
        seen += values_of(poller.exchange(wire.poll(3, subscription)))
    assert seen == [b"x"]


def test_a_topic_not_made_durable_does_not_acknowledge_from_memory() -> None:
    sim = SimBroker()
    peer = ready(sim)
    peer.exchange(publish(b"m", b"volatile", qos=0))
    sim.disk.capacity = sim.disk.used()
    assert nacks_of(peer.exchange(publish(b"m", b"a", first_id=1)))[0][:2] == (1, 500)
    sim.disk.capacity = 1 << 40
    sim.advance(5 * SECOND)
    assert frames_of(peer.exchange(publish(b"m", b"b", first_id=3) + wire.ping(4))) == [(PONG, 4, b"")]
    topic = sim.broker.topics.get(b"m")
    assert topic is not None
    assert topic.spec.durability == "fsync"


def test_a_subscription_in_use_is_not_forgotten_after_a_crash() -> None:
    sim = SimBroker(options=BrokerOptions(delivery=DeliverySection(subscription_idle_seconds=10)))
    consumer, publisher = ready(sim, 2), ready(sim)
    subscription = subscribed(consumer, b"t")
    for number in range(20):
        publisher.exchange(publish(b"t", b"x", first_id=number))
        consumer.exchange(b"".join(wire.ack(tag, subscription) for tag in tags_of(consumer.take())))
        sim.advance(SECOND)
    sim.log.abandon()
    sim.start()
    sim.advance(SECOND)
    assert len(sim.broker.subscriptions) == 1


def test_credit_that_comes_back_from_dead_letters_is_used() -> None:
    policy = DeliverySection(in_flight_max=2, attempts_max=1, push_timeout_seconds=1)
    sim = SimBroker(options=BrokerOptions(delivery=policy))
    consumer, publisher = ready(sim, 2), ready(sim)
    subscribed(consumer, b"t")
    publisher.exchange(publish(b"t", b"a", b"b", b"c", b"d"))
    sim.advance(10 * SECOND)
    assert values_of(consumer.take()) == [b"a", b"b", b"c", b"d"]


def test_what_a_lost_poller_held_is_pushed_to_the_one_who_is_attached() -> None:
    sim = SimBroker()
    pusher, poller = ready(sim, 2), ready(sim)
    subscription = subscribed(poller, b"t")
    poller.exchange(publish(b"t", b"x"))
    assert values_of(poller.exchange(wire.poll(1, subscription))) == [b"x"]
    pusher.exchange(wire.poll(1, subscription))
    poller.close()
    assert values_of(pusher.take()) == [b"x"]


def test_publishes_that_failed_before_a_subscription_do_not_hide_others() -> None:
    sim = SimBroker()
    peer = ready(sim)
    peer.exchange(publish(b"t", b"first"))
    peer.feed(publish(b"t", b"a", b"b", b"c") + wire.subscribe(9, b"t", 1))
    sim.disk.capacity = sim.disk.used()
    sim.scheduler.run_until_idle()
    sim.disk.capacity = 1 << 40
    peer.take()
    sim.advance(5 * SECOND)
    subscription = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"d", b"e", b"f"))
    assert values_of(peer.exchange(wire.poll(1, subscription) * 4)) == [b"d", b"e", b"f"]


def test_a_refused_subscription_leaves_nothing_behind() -> None:
    sim = SimBroker()
    peer = ready(sim)
    peer.exchange(publish(b"t", b"x"))
    sim.disk.capacity = sim.disk.used()
    for number in range(3):
        peer.exchange(publish(b"t", bytes(100_000)))
        nacks = nacks_of(peer.exchange(wire.subscribe(number, b"new-%d" % number, 1)))
        assert [code for _, code, _ in nacks] == [500]
    assert len(sim.broker.subscriptions) == 0
    sim.disk.capacity = 1 << 40
    sim.advance(5 * SECOND)
    subscription = subscribed(peer, b"new-0")
    peer.exchange(publish(b"new-0", b"y"))
    assert values_of(peer.exchange(wire.poll(1, subscription))) == [b"y"]


def test_a_withdrawn_right_ends_the_push() -> None:
    sim = SimBroker()
    consumer = ready(sim, 2)
    subscribed(consumer, b"secret")
    writer = Credential("writer", hash_secret(b"other"))
    sim.broker.set_credentials([Credential("dev", hash_secret(b"dev-key"), ("*",), ()), writer])
    consumer.session.receive(memoryview(b""), sim.scheduler.now())
    ready(sim, 1, b"other").exchange(publish(b"secret", b"after"))
    assert consumer.take() == b""


def test_requests_that_wait_are_bounded_for_those_who_never_published() -> None:
    sim = SimBroker()
    peer = ready(sim)
    sim.scheduler.held = True
    peer.feed(wire.subscribe(1, b"t", 1) + b"".join(wire.ping(n) for n in range(REPLIES_WAITING_MAX + 10)))
    assert peer.session.congestion() == WAIT


def test_a_publisher_waits_while_its_topic_is_being_made() -> None:
    sim = SimBroker()
    peer = ready(sim)
    sim.scheduler.held = True
    peer.feed(publish(b"new", b"x"))
    assert peer.session.congestion() == WAIT
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert peer.session.congestion() != WAIT
