"""Reply addresses that clients left behind: removed after an hour in which nothing came, and no other topic is."""

import pytest

from quintet import kernel
from quintet.broker.topics import replies
from quintet.testing.line import SimBroker
from tests.broker.test_broker import ANY

MINUTE_US = 60_000_000


def publish(sim: SimBroker, name: bytes) -> None:
    topic = sim.broker.publish_target(ANY, name, False)
    topic.publish(kernel.build([b"v"], origin=b"test:1"), 1, False, None)
    sim.scheduler.run_until_idle()


def names(sim: SimBroker) -> set[str]:
    return {topic.name for topic in sim.broker.topics.all()}


def test_an_address_that_nothing_comes_to_is_removed() -> None:
    sim = SimBroker()
    for name in (b"reply/left", b"reply/used", b"orders"):
        publish(sim, name)
    for _ in range(replies.IDLE_US // MINUTE_US + 3):
        publish(sim, b"reply/used")
        sim.advance(MINUTE_US, MINUTE_US)
    assert names(sim) == {"reply/used", "orders"}


def test_without_the_idle_time_it_would_be_removed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is the idle time that keeps an address."""
    monkeypatch.setattr(replies, "IDLE_US", 0)
    sim = SimBroker()
    publish(sim, b"reply/new")
    sim.advance(3 * MINUTE_US, MINUTE_US)
    assert names(sim) == set()
