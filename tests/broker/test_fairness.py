"""A subscription to several partitions: each gets its turn, and order within each is kept."""

import pytest

from quintet import kernel
from quintet.broker.topics.catalog import Topic
from quintet.delivery.subscription import Subscription
from quintet.model.batch import RecordBatch
from quintet.testing.line import SimBroker

PARTITIONS = 3


class Narrow:
    """A sink with room for one run at a time."""

    def __init__(self) -> None:
        self.got: list[tuple[int, int]] = []
        self.space = 0
        self.parked: list[object] = []

    def room(self) -> int:
        return self.space

    def park(self, call: object) -> None:
        self.parked.append(call)

    def records(self, _subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        self.space = 0
        self.got += [(partition, batch.offset(index)) for index in range(first, last)]

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError("nothing is published through it")

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        raise AssertionError("everything is in memory")

    def evict(self, reason: str) -> None:
        raise AssertionError(reason)


@pytest.fixture
def sim() -> SimBroker:
    return SimBroker()


def make(sim: SimBroker) -> tuple[Topic, Subscription]:
    topic, _ = sim.broker.create_topic(b"t", PARTITIONS)
    sim.scheduler.run_until_idle()
    told: list[Exception | None] = []
    subscription = sim.broker.subscriptions.create("ann", topic, 0, door="blipmq")
    sim.broker.subscriptions.when_made(subscription).then(lambda _, error: told.append(error))
    sim.scheduler.run_until_idle()
    assert told == [None]
    return topic, subscription


def publish(sim: SimBroker, topic: Topic) -> None:
    """One record to every partition, each a batch of its own."""
    for number in range(PARTITIONS):
        topic.publish(kernel.build([b"v"], origin=b"test:1"), 1, True, None, number)
    sim.scheduler.run_until_idle()


def test_polls_take_from_every_partition_however_much_the_first_one_has(sim: SimBroker) -> None:
    topic, subscription = make(sim)
    got: list[tuple[int, int]] = []
    for _ in range(12):
        publish(sim, topic)  # more than is taken: no partition is ever empty
        runs, more = subscription.poll(1, Narrow(), lambda: None, 1 << 20)
        assert not more
        got += [(number, batch.offset(first)) for number, (batch, first, _) in runs]
    assert sorted(got) == [(number, offset) for number in range(PARTITIONS) for offset in range(4)]


def test_a_slow_peer_is_pushed_to_from_every_partition(sim: SimBroker) -> None:
    topic, subscription = make(sim)
    for _ in range(5):
        publish(sim, topic)
    sink = Narrow()
    sink.space = 1
    subscription.attach(sink)
    for _ in range(11):
        sink.space = 1
        subscription._unpark()
    taken = {number: [offset for partition, offset in sink.got if partition == number] for number in range(PARTITIONS)}
    assert taken == {number: [0, 1, 2, 3] for number in range(PARTITIONS)}
