"""Several subscriptions of one consumer share its credit, and what one of them gives up goes to the others (ADR 14)."""

from collections.abc import Callable

from quintet import kernel
from quintet.delivery.consumer import Consumer
from quintet.testing.line import SimBroker


class Inbox:
    """A sink that takes everything."""

    def __init__(self) -> None:
        self.got = 0

    def room(self) -> int:
        return 1 << 20

    def park(self, call: Callable[[], None]) -> None:
        raise AssertionError("it has room")

    def records(self, subscription: object, partition: int, batch: object, first: int, last: int) -> None:
        self.got += last - first


def test_credit_of_a_partition_that_is_given_up_goes_to_the_others() -> None:
    """A member of a group whose records were all of the partition that went to another member."""
    sim = SimBroker()
    broker = sim.broker
    topic, _ = broker.create_topic(b"jobs", 2)
    for partition in (0, 1):
        topic.publish(kernel.build([b"work"], [None]), 1, True, lambda *_: None, partition)
    sim.scheduler.run_until_idle()
    consumer, sink = Consumer(30_000_000), Inbox()
    consumer.credit = 1
    halves = [
        broker.subscriptions.transient("ann", topic, door="felix", qos=1, starts=[0], partitions=[number])
        for number in (0, 1)
    ]
    for half in halves:
        half.consumer = consumer
        half.attach(sink)  # type: ignore[arg-type]
    assert (sink.got, consumer.held) == (1, 1)
    halves[0].detach(sink)  # type: ignore[arg-type]
    assert (sink.got, consumer.held) == (2, 1)
