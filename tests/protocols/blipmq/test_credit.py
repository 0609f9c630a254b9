"""Credit, working and giving back on the BlipMQ wire; and what published clients get without such words (ADR 14)."""

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.sections import DeliverySection
from quintet.protocols.blipmq import frames
from quintet.testing.line import Peer, SimBroker
from tests.protocols.blipmq.helpers import frames_of, nacks_of, publish, ready, subscribed, tags_of, values_of
from tests.wire import blipmq as wire

SECOND = 1_000_000
JOBS = 60


def busy_sim() -> SimBroker:
    policy = DeliverySection(attempts_max=3, retry_backoff_seconds=1, push_timeout_seconds=1, in_flight_max=100)
    return SimBroker(options=BrokerOptions(delivery=policy))


@pytest.fixture
def sim() -> SimBroker:
    return SimBroker()


def credit(peer: Peer, subscription: int, count: int) -> bytes:
    return peer.exchange(wire.word(7, frames.CREDIT, subscription, count))


@pytest.mark.parametrize(("version", "held"), [(2, 0), (frames.OURS, 1), (frames.OURS, 5), (frames.OURS, 0)])
def test_jobs_of_a_steady_consumer_are_delivered_once(version: int, held: int) -> None:
    """60 jobs of 0.9 s on one consumer, time-out 1 s, 3 attempts: 60 deliveries and no dead letter."""
    sim = busy_sim()
    peer = ready(sim, version)
    subscription, graveyard = subscribed(peer, b"t"), subscribed(ready(sim), b"t-dlq")
    if version == frames.OURS:
        assert frames_of(credit(peer, subscription, held)) == [(frames.ACK, 7, (1_000).to_bytes(8, "big"))]
    queue = tags_of(peer.exchange(publish(b"t", *(b"%d" % n for n in range(JOBS)))))
    assert len(queue) == (held or JOBS)
    delivered = len(queue)
    for _ in range(JOBS):
        tag = queue.pop(0)
        for _ in range(9):
            sim.advance(SECOND // 10)
            more = tags_of(peer.take())
            delivered += len(more)
            queue += more
        more = tags_of(peer.exchange(wire.ack(tag, subscription)))
        delivered += len(more)
        queue += more
    sim.advance(20 * SECOND)
    assert (delivered, queue, peer.take()) == (JOBS, [], b"")
    assert sim.broker.dead.buried == 0
    assert graveyard


def test_working_holds_a_long_job() -> None:
    sim = busy_sim()
    peer = ready(sim, frames.OURS)
    subscription = subscribed(peer, b"t")
    credit(peer, subscription, 1)
    (tag,) = tags_of(peer.exchange(publish(b"t", b"long", b"next")))
    for _ in range(50):
        sim.advance(SECOND // 2)
        assert peer.exchange(wire.word(tag, frames.WORKING, subscription, 1)) == b""
    assert values_of(peer.exchange(wire.ack(tag, subscription))) == [b"next"]


def test_given_back_with_a_delay() -> None:
    sim = busy_sim()
    peer = ready(sim, frames.OURS)
    subscription = subscribed(peer, b"t")
    credit(peer, subscription, 1)
    (tag,) = tags_of(peer.exchange(publish(b"t", b"failed", b"next")))
    data = peer.exchange(wire.word(tag, frames.GIVE_BACK, subscription, 5_000))
    assert values_of(data) == [b"next"]
    peer.exchange(wire.ack(tags_of(data)[0], subscription))
    sim.advance(4 * SECOND)
    assert peer.take() == b""
    sim.advance(2 * SECOND)
    assert tags_of(peer.take()) == [tag]
    peer.exchange(wire.word(tag, frames.GIVE_BACK, subscription, frames.DELAY_CONFIGURED))
    sim.advance(3 * SECOND)
    assert tags_of(peer.take()) == [tag]
    peer.exchange(wire.word(tag, frames.GIVE_BACK, subscription, 0))
    sim.advance(SECOND)
    assert (peer.take(), sim.broker.dead.buried) == (b"", 1)


def test_more_credit_and_less(sim: SimBroker) -> None:
    peer = ready(sim, frames.OURS)
    subscription = subscribed(peer, b"t")
    assert peer.exchange(publish(b"t", *(b"%d" % n for n in range(10)))) == b"", (
        "nothing is pushed before there is credit"
    )
    assert values_of(credit(peer, subscription, 2)) == [b"0", b"1"]
    more = credit(peer, subscription, 4)
    assert values_of(more) == [b"2", b"3"]
    credit(peer, subscription, 1)
    assert peer.exchange(wire.ack(tags_of(more)[0], subscription)) == b""
    other = ready(sim, 2)
    assert len(values_of(other.exchange(wire.poll(1, subscription)))) == 9, "another consumer, another bound"


def test_words_that_mean_nothing_are_refused(sim: SimBroker) -> None:
    peer = ready(sim, frames.OURS)
    subscription = subscribed(peer, b"t")
    stranger = 999
    sent = (
        wire.frame(frames.NACK, 1, b"short")
        + wire.word(2, 9, subscription, 1)
        + wire.word(3, frames.CREDIT, stranger, 1)
        + wire.word(4, frames.GIVE_BACK, subscription, 1)
        + wire.word(5, frames.WORKING, subscription, 1)
    )
    found = [(id, code) for id, code, _ in nacks_of(peer.exchange(sent))]
    assert found == [(1, 400), (2, 400), (3, 404), (4, 404)]
    old = ready(sim, 2)
    assert old.exchange(wire.word(1, frames.CREDIT, subscription, 1)) == b""
