"""What the Felix door stands on, in bad luck: caches, pushed members of groups, long JSON, dead letters."""

import errno
from dataclasses import replace

import pytest

from quintet.broker.atomic.dead_letters import Failure
from quintet.broker.consumers.pushed_member import HEARTBEAT_US
from quintet.broker.core import BrokerOptions
from quintet.broker.doors.cache import Cache
from quintet.broker.doors.cache_memory import Deadlines
from quintet.broker.sections import DeliverySection
from quintet.broker.topics.catalog import CacheTopic
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.delivery.lane import Lane
from quintet.model.errors import StorageError
from quintet.model.tasks import start
from quintet.testing.line import SimBroker
from tests.broker.test_cache import SCOPE, Told, again, check_books, made, nobody
from tests.broker.test_membership import Joined, Taker, committed, publish, topic_of

SECOND = 1_000_000


# -- caches ------------------------------------------------------------------------------------------------------------


class Kept:
    """A cache as its deadlines see it."""

    number = 1

    def __init__(self) -> None:
        self.timed: dict[bytes, int] = {}


def test_moved_deadlines_are_passed_over_a_bounded_number_at_a_time() -> None:
    deadlines, cache = Deadlines(), Kept()
    deadlines.open(cache)
    for when in (10, 1_000):
        for number in range(1_000):
            deadlines.set(cache, b"%d" % number, when)
    kept = len(deadlines)
    assert deadlines.due(20, 100) == []
    assert kept - len(deadlines) <= 100
    found = [key for _ in range(20) for _, key in deadlines.due(1_000, 100)]
    assert len(set(found)) == len(found) == 1_000
    assert len(deadlines) == 0


def test_a_deletion_waits_for_a_tombstone_that_is_still_under_way() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    cache.evict()
    sim.scheduler.held = True
    sim.broker.caches.flush()
    told = Told()
    cache.delete(b"k", None, told)
    sim.scheduler.run_until_idle()
    assert told.heard == [], "a crash now would bring the value back"
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert told.heard == [None]
    assert not again(sim).entries


def test_a_failed_put_stays_gone_when_the_deletion_of_its_cache_fails() -> None:
    sim, cache = made()
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    put, removed = Told(), Told()
    cache.put(b"k", b"w", 0, None, put)
    cache.put(b"new", b"w", 0, None, put)
    start(sim.broker.delete_topic(cache.topic.raw)).then(lambda _, error: removed(error))
    sim.disk.fail("pwritev", 1, errno.EIO, times=100)
    sim.scheduler.run_until_idle()
    assert [isinstance(error, StorageError) for error in put.heard + removed.heard] == [True] * 3
    assert sim.broker.caches.get(SCOPE) is cache
    value = cache.get(b"k", 0)
    assert value is not None
    assert value[0] == b"v"
    assert cache.get(b"new", 0) is None
    check_books(sim)


def test_a_cache_is_not_deleted_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, cache = made()
    for number in range(100):
        cache.put(b"%d" % number, b"v", sim.scheduler.now() + SECOND * (number % 2), None, nobody)
    sim.scheduler.run_until_idle()

    def slow(_cache: Cache, key: bytes) -> None:
        raise AssertionError(f"all others wait while {key!r} is removed")

    monkeypatch.setattr(Cache, "_remove", slow)
    start(sim.broker.delete_topic(cache.topic.raw))
    sim.scheduler.run_until_idle()
    assert (sim.broker.caches.keys, sim.broker.caches.bytes) == (0, 0)
    sim.advance(2 * SECOND)
    check_books(sim)


def test_versions_of_a_cache_made_anew_rise_when_the_clock_was_set_back() -> None:
    sim, cache = made()
    newest = cache.put(b"k", b"v", 0, None, nobody)
    start(sim.broker.delete_topic(cache.topic.raw))
    sim.scheduler.run_until_idle()
    sim.scheduler.advance(-3600 * SECOND)
    assert sim.broker.caches.open(SCOPE).put(b"k", b"w", 0, None, nobody) > newest


# -- topics whose names begin like a cache's --------------------------------------------------------------------------


def test_dead_letters_of_a_cache_are_no_cache_under_compact_all() -> None:
    rules = (TopicRule("*", compact=True),)
    sim = SimBroker(options=BrokerOptions(topics=TopicPolicy(rules)))
    cache = sim.broker.caches.open(SCOPE)
    cache.put(b"k", b"v", 0, None, nobody)
    sim.scheduler.run_until_idle()
    row = next(row for batch in cache.topic.partitions[0].read_now(0) for row in batch.rows())
    told = Told()
    start(sim.broker.dead.bury(cache.topic.raw, 0, 0, row, Failure("why"), ())).then(lambda _, error: told(error))
    sim.advance(SECOND)
    assert told.heard == [None]
    sim.restart()
    assert len(sim.broker.caches) == 1


def test_a_compacted_topic_older_than_caches_stays_what_it_was() -> None:
    sim = SimBroker()
    sim.broker.topics._create(b"cache/old", True, 1, lambda spec: replace(spec, compact=True), own=True)
    sim.scheduler.run_until_idle()
    sim.restart()
    assert len(sim.broker.caches) == 0
    assert not isinstance(sim.broker.topics.find(b"cache/old"), CacheTopic)


# -- members whose records are pushed ----------------------------------------------------------------------------------


@pytest.fixture
def sim() -> SimBroker:
    return SimBroker()


def test_an_ack_of_the_old_generation_is_committed_for_a_kept_partition(
    sim: SimBroker,
) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    publish(sim, topic, 0)
    publish(sim, topic, 1)
    two = Joined(sim, topic)  # the first has not heard of it
    (kept,) = {0, 1} - set(two.member.partitions)
    assert one.ack(kept, 0) == [None]
    assert committed(sim) == {kept: 1}


def test_a_member_beats_once_at_a_time_however_often_it_was_fenced(sim: SimBroker) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    for offset in range(5):
        publish(sim, topic, 0)
        publish(sim, topic, 1)
        two = Joined(sim, topic)
        (lost,) = two.member.partitions
        one.ack(lost, offset)
        two.member.leave()
        one.ack(1 - lost, offset)
        sim.scheduler.run_until_idle()
    asked = 0
    ask = one.member._ask

    async def counted() -> None:
        nonlocal asked
        asked += 1
        await ask()

    one.member._ask = counted  # type: ignore[method-assign]
    sim.advance(10 * HEARTBEAT_US)
    assert 5 <= asked <= 11


def test_a_partition_that_comes_back_goes_on_where_the_other_got_to(sim: SimBroker) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    publish(sim, topic, 0, 5)
    publish(sim, topic, 1, 5)
    two = Joined(sim, topic)
    (lent,) = two.member.partitions
    assert two.ack(lent, 0, 3) == [None]
    two.member.leave()
    sim.scheduler.run_until_idle()
    one.sink.take()
    one.ack(lent, 0)  # of the time before: it has not heard of either change
    assert committed(sim) == {lent: 3}
    sim.advance(2 * HEARTBEAT_US)
    assert one.sink.take() == [(lent, 3), (lent, 4)]
    assert one.ack(lent, 3, 2) == [None]
    assert committed(sim) == {lent: 5}


def test_a_dead_letter_of_a_transient_subscription_does_not_make_it_last() -> None:
    sim = SimBroker(options=BrokerOptions(delivery=DeliverySection(push_timeout_seconds=1, attempts_max=1)))
    topic = topic_of(sim)
    subscription = sim.broker.subscriptions.transient("ann", topic, door="felix", qos=1)
    subscription.attach(Taker())
    publish(sim, topic, 0)
    sim.advance(5 * SECOND)
    assert sim.broker.dead.buried == 1
    assert subscription.backlog() == 0
    sim.broker.subscriptions.remove(subscription)
    sim.restart()
    assert not sim.broker.subscriptions.all()


def test_many_acknowledgements_look_once_at_what_is_in_flight(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    publish(sim, topic, 0, 500)
    looked = 0
    floor = vars(Lane)["floor"].fget

    def counted(lane: Lane) -> int:
        nonlocal looked
        looked += 1
        return int(floor(lane))

    monkeypatch.setattr(Lane, "floor", property(counted))
    told: list[Exception | None] = []
    for offset in range(499, -1, -1):
        one.member.settle(0, offset, 1, told.append)
    sim.scheduler.run_until_idle()
    assert told == [None] * 500
    assert committed(sim) == {0: 500}
    assert looked <= 4
