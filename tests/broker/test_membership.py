"""A pushed member of a consumer group, transient and named subscriptions, and places by time: on a simulated broker."""

from collections.abc import Callable

import pytest

from quintet import kernel
from quintet.broker.consumers.pushed_member import HEARTBEAT_US, Membership
from quintet.broker.core import BrokerOptions
from quintet.broker.sections import DeliverySection
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.seek import seek_all
from quintet.model.batch import RecordBatch
from quintet.model.errors import Fenced, Forbidden
from quintet.model.tasks import start
from quintet.testing.line import SimBroker

SECOND = 1_000_000


class Taker:
    """A sink with room that keeps what it got."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []

    def room(self) -> int:
        return 1 << 20

    def park(self, call: Callable[[], None]) -> None:
        raise AssertionError("it always has room")

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError("it publishes nothing")

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        raise AssertionError("it asks for nothing")

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        self.got += [(partition, batch.offset(index)) for index in range(first, last)]

    def evict(self, reason: str) -> None:
        raise AssertionError("nobody evicts it")

    def take(self) -> list[tuple[int, int]]:
        got, self.got = self.got, []
        return sorted(got)


@pytest.fixture
def sim() -> SimBroker:
    return SimBroker(options=BrokerOptions(delivery=DeliverySection(push_timeout_seconds=1, attempts_max=2)))


def topic_of(sim: SimBroker, partitions: int = 2) -> Topic:
    topic, _ = sim.broker.create_topic(b"t", partitions)
    sim.scheduler.run_until_idle()
    return topic


def publish(sim: SimBroker, topic: Topic, partition: int, count: int = 1) -> None:
    topic.publish(kernel.build([b"v"] * count), count, True, None, partition)
    sim.scheduler.run_until_idle()


class Joined:
    """A member with its sink."""

    def __init__(self, sim: SimBroker, topic: Topic, actor: str = "ann", mode: str = "earliest") -> None:
        broker = sim.broker
        self.sim = sim
        self.sink = Taker()
        self.ended = False
        self.errors: list[Exception | None] = []
        self.member = Membership(
            broker.groups,
            broker.subscriptions,
            broker.scheduler,
            topic,
            "g",
            mode,
            "felix",
            lambda: (actor, False),
            self._over,
        )
        start(self.member.join()).then(lambda _, error: self.errors.append(error))
        sim.scheduler.run_until_idle()
        self.member.start(self.sink)

    def _over(self) -> None:
        self.ended = True

    def ack(self, partition: int, offset: int, count: int = 1) -> list[Exception | None]:
        told: list[Exception | None] = []
        self.member.settle(partition, offset, count, told.append)
        self.sim.scheduler.run_until_idle()
        return told


def committed(sim: SimBroker) -> dict[int, int]:
    return dict(sim.broker.groups.describe("ann", False, "t", "g").offsets)


def test_partitions_move_with_the_members(sim: SimBroker) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    assert one.errors == [None]
    assert one.member.partitions == [0, 1]
    two = Joined(sim, topic)
    sim.advance(2 * HEARTBEAT_US)
    assert sorted(one.member.partitions + two.member.partitions) == [0, 1]
    two.member.leave()
    sim.advance(2 * HEARTBEAT_US)
    assert one.member.partitions == [0, 1]
    one.member.leave()
    assert not sim.broker.subscriptions.all()


def test_commits_follow_the_lowest_that_is_open_and_are_durable_when_told(sim: SimBroker) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    publish(sim, topic, 0, 5)
    assert one.sink.take() == [(0, n) for n in range(5)]
    assert one.ack(0, 2, 2) == [None]
    assert committed(sim) == {}
    told: list[Exception | None] = []
    one.member.settle(0, 0, 2, told.append)
    assert told == []  # not before the disk has it
    one.member.settle(0, 4, 1, told.append)
    sim.scheduler.run_until_idle()
    assert told == [None, None]
    assert committed(sim) == {0: 5}
    assert one.ack(0, 0, 5) == [None]
    sim.restart()
    assert committed(sim) == {0: 5}


def test_what_a_member_does_not_settle_comes_again_without_end(sim: SimBroker) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    publish(sim, topic, 0)
    sim.advance(40 * SECOND, SECOND // 4)
    assert len(one.sink.take()) > 3
    assert sim.broker.topics.get(b"t-dlq") is None


def test_acknowledgements_of_what_is_another_members_are_fenced(sim: SimBroker) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    publish(sim, topic, 0)
    publish(sim, topic, 1)
    two = Joined(sim, topic)  # the first has not heard of it
    (lost,) = set(one.member.partitions) & set(two.member.partitions)
    (error,) = one.ack(lost, 0)
    assert isinstance(error, Fenced)
    sim.scheduler.run_until_idle()
    assert one.member.partitions == [1 - lost]  # it asked at once what is its own now
    (error,) = one.ack(lost, 0)
    assert isinstance(error, Fenced)
    assert two.ack(lost, 0) == [None]
    assert committed(sim) == {lost: 1}


def test_what_waits_for_a_commit_is_told_when_the_partition_is_given_up(sim: SimBroker) -> None:
    topic = topic_of(sim, 1)
    one = Joined(sim, topic)
    publish(sim, topic, 0)
    told: list[Exception | None] = []
    one.member.settle(0, 0, 1, told.append)
    one.member.leave()
    assert len(told) == 1
    sim.scheduler.run_until_idle()
    assert len(told) == 1


def test_a_refusal_at_the_start(sim: SimBroker) -> None:
    topic = topic_of(sim)
    Joined(sim, topic)
    (error,) = Joined(sim, topic, actor="bob").errors
    assert isinstance(error, Forbidden)


def test_a_topic_that_is_deleted_lets_its_members_go(sim: SimBroker) -> None:
    topic = topic_of(sim)
    one = Joined(sim, topic)
    start(sim.broker.delete_topic(b"t"))
    sim.advance(2 * HEARTBEAT_US)
    assert one.ended
    assert len(sim.broker.groups) == 0
    assert not sim.broker.subscriptions.all()


# -- subscriptions ------------------------------------------------------------------------------------------------------


def test_transient_subscriptions_begin_where_they_are_told_to(sim: SimBroker) -> None:
    topic = topic_of(sim)
    publish(sim, topic, 0, 5)
    publish(sim, topic, 1, 5)
    subscriptions = sim.broker.subscriptions
    for starts, expected in (((), [5, 5]), ((2,), [2, 5]), ((0, 9), [0, 5]), ((-4, 3), [0, 3])):
        made = subscriptions.transient("ann", topic, door="felix", starts=starts)
        assert [lane.position for lane in made.lanes] == expected
        assert made.id < 0
    one = subscriptions.transient("ann", topic, door="felix", qos=1, starts=[1], partitions=[1])
    assert [(lane.partition.number, lane.position) for lane in one.lanes] == [(1, 1)]
    sink = Taker()
    one.limit(in_flight_max=2)
    one.attach(sink)
    assert sink.take() == [(1, 1), (1, 2)]
    assert one.ack(0, 1, 2) == []
    assert sink.take() == [(1, 3), (1, 4)]
    sim.restart()
    assert not sim.broker.subscriptions.all()


def test_a_named_subscription_is_its_owners_and_found_again(sim: SimBroker) -> None:
    topic = topic_of(sim)
    subscriptions = sim.broker.subscriptions
    made = subscriptions.create("ann", topic, 1, door="felix", name="billing", starts=[0, 0])
    sim.scheduler.run_until_idle()
    assert subscriptions.named("ann", topic, "billing") is made
    assert subscriptions.named("bob", topic, "billing") is None
    assert subscriptions.named("ann", topic, "other") is None
    sim.restart()
    topic = sim.broker.topics.find(b"t")
    found = sim.broker.subscriptions.named("ann", topic, "billing")
    assert found is not None
    assert (found.id, found.name, found.door) == (made.id, "billing", "felix")
    sim.broker.subscriptions.remove(found)
    assert sim.broker.subscriptions.named("ann", topic, "billing") is None
    sim.restart()
    assert sim.broker.subscriptions.named("ann", sim.broker.topics.find(b"t"), "billing") is None


def test_places_by_time(sim: SimBroker) -> None:
    topic = topic_of(sim)
    publish(sim, topic, 0)
    sim.advance(SECOND)
    moment = sim.scheduler.now()
    publish(sim, topic, 0)
    told: list[tuple[list[int], Exception | None]] = []
    for when in (0, moment, moment + SECOND):
        start(seek_all(topic.partitions, when)).then(lambda places, error: told.append((places or [], error)))
    sim.scheduler.run_until_idle()
    assert told == [([0, 0], None), ([1, 0], None), ([2, 0], None)]
