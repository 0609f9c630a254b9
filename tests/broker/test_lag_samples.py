"""Lag of all groups, sampled in the background: right figures, few partitions a turn, nothing while nobody asks."""

from typing import Any

import pytest

from quintet.broker.consumers.committed_offsets import CommittedOffsets
from quintet.broker.consumers.group import Lag
from quintet.broker.consumers.lag_samples import PARTITIONS_AT_ONCE, SAMPLE_US, GroupLag, LagSamples
from tests.broker.group_support import GroupBroker


def test_lag_counts_messages_and_the_age_of_the_oldest() -> None:
    broker = GroupBroker()
    orders, logs = broker.topic("orders", partitions=2), broker.topic("logs")
    broker.publish(orders, 0, 5)  # a second apart
    broker.publish(orders, 1, 2)
    broker.publish(logs, 0, 1)
    broker.commit(orders, 0, 2)
    broker.commit(logs, 0, 1)
    samples = LagSamples(broker.groups, broker.topics, broker.scheduler)
    assert samples.latest() == [
        GroupLag("orders", "g", 5, 6.0, committed=2),
        GroupLag("logs", "g", 0, 0.0, committed=1),
    ]


def test_a_sample_is_kept_for_a_while_and_then_taken_again() -> None:
    broker = GroupBroker()
    topic = broker.topic("orders")
    broker.publish(topic, 0, 1)
    broker.commit(topic, 0, 0)
    samples = LagSamples(broker.groups, broker.topics, broker.scheduler)
    samples.latest()
    broker.scheduler.run_until_idle()
    broker.publish(topic, 0, 2)
    assert samples.latest()[0].messages == 1
    broker.scheduler.run_until_idle()
    assert samples.latest()[0].messages == 1
    broker.scheduler.advance(SAMPLE_US)
    samples.latest()
    broker.scheduler.run_until_idle()
    assert samples.latest()[0].messages == 3


def test_many_partitions_are_sampled_over_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = GroupBroker()
    topic = broker.topic("wide", partitions=3 * PARTITIONS_AT_ONCE)
    broker.publish(topic, 0, 1)
    broker.commit(topic, 0, 0)
    asked = 0
    lag = CommittedOffsets.lag

    async def counted(offsets: CommittedOffsets, *arguments: Any) -> Lag:
        nonlocal asked
        asked += 1
        return await lag(offsets, *arguments)

    monkeypatch.setattr(CommittedOffsets, "lag", counted)
    LagSamples(broker.groups, broker.topics, broker.scheduler).latest()
    most = asked
    while asked < 3 * PARTITIONS_AT_ONCE:
        before = asked
        broker.scheduler.turn()
        most = max(most, asked - before)
    assert 0 < most <= PARTITIONS_AT_ONCE


def test_a_group_deleted_meanwhile_does_not_stop_the_sample() -> None:
    broker = GroupBroker()
    wide, other = broker.topic("a", partitions=2 * PARTITIONS_AT_ONCE), broker.topic("b")
    for topic in (wide, other):
        broker.publish(topic, 0, 1)
        broker.commit(topic, 0, 0)
    samples = LagSamples(broker.groups, broker.topics, broker.scheduler)
    samples.latest()
    broker.run(broker.groups.delete("ann", False, "a", "g"))
    assert ("b", 1) in [(each.topic, each.messages) for each in samples.latest()]
