"""Consumer groups, continued: commits within transactions, lag, resets and seeks, and what it takes to be gone."""

import errno

import pytest

from quintet import kernel
from quintet.broker.consumers.group import CommitPayload, Lag
from quintet.model.errors import (
    BadRequest,
    Fenced,
    Forbidden,
    GroupBusy,
    GroupNotFound,
    StorageError,
)
from quintet.model.tasks import start
from tests.broker.group_support import SECOND, Answers, GroupBroker, at_once

# -- transactions ------------------------------------------------------------------------------------------------------


def apply(broker: GroupBroker, payload: CommitPayload) -> None:
    broker.run(broker.groups.offsets.apply_commit(payload))


def test_a_prepared_commit_is_applied_once_however_often_it_is_said() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 9)
    mine = broker.subscribe(topic)
    first = broker.groups.offsets.prepare_commit("ann", False, topic, "g", 0, 3, mine.generation, "m")
    second = broker.groups.offsets.prepare_commit("ann", False, topic, "g", 0, 5, mine.generation, "m")
    assert broker.committed(topic) == 0
    apply(broker, second)
    apply(broker, first)
    assert broker.committed(topic) == 5
    broker.commit(topic, 0, 2, mine.generation)
    apply(broker, second)
    assert broker.committed(topic) == 2
    broker.cut_power(3)
    topic = broker.topic()
    apply(broker, second)
    assert broker.committed(topic) == 2
    with pytest.raises(Fenced):
        broker.groups.offsets.prepare_commit("ann", False, topic, "g", 0, 3, mine.generation, "m")
    with pytest.raises(Forbidden):
        broker.groups.offsets.prepare_commit("bob", False, topic, "g", 0, 3, None, "m")


def test_a_prepared_commit_makes_its_group_again_and_not_on_another_topic() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 4)
    payload = broker.groups.offsets.prepare_commit("ann", False, topic, "g", 0, 3, None, "m")
    broker.cut_power()
    assert len(broker.groups) == 0
    apply(broker, payload)
    assert broker.committed(broker.topic()) == 3
    broker.topics.delete(b"t")
    broker.groups.forget_topic("t")
    broker.scheduler.run_until_idle()
    broker.publish(broker.topic(), 0, 5)
    apply(broker, payload)
    assert len(broker.groups) == 0


def test_a_newer_commit_that_is_not_durable_yet_holds_an_older_one_back() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 9)
    broker.commit(topic, 0, 1)
    payload = broker.groups.offsets.prepare_commit("ann", False, topic, "g", 0, 3, None, "m")
    broker.scheduler.held = True
    newer = Answers()
    start(broker.groups.offsets.commit("ann", False, topic, "g", 0, 7, None, "m", door="flymq")).then(newer)
    older = Answers()
    start(broker.groups.offsets.apply_commit(payload)).then(older)
    broker.scheduler.run_until_idle()
    assert not older.told
    assert not newer.told
    broker.scheduler.held = False
    broker.scheduler.run_until_idle()
    assert older.told == [(None, None)]
    assert newer.told == [(None, None)]
    broker.cut_power()
    assert broker.committed(broker.topic()) == 7


# -- looking and moving ------------------------------------------------------------------------------------------------


def test_lag_in_messages_and_time() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.subscribe(topic, 0)
    broker.publish(topic, 0, 10)

    def lag() -> Lag:
        return broker.run(broker.groups.offsets.lag("ann", False, topic, "g", 0))

    assert lag() == Lag(0, 10, 10, 10_000)
    broker.commit(topic, 0, 7)
    assert lag() == Lag(7, 10, 3, 3_000)
    broker.commit(topic, 0, 10)
    assert lag() == Lag(10, 10, 0, 0)
    broker.restart()
    topic = broker.topic()
    broker.commit(topic, 0, 4)
    assert lag() == Lag(4, 10, 6, 6_000)


def reset(broker: GroupBroker, mode: str, value: int = 0) -> object:
    return broker.run(broker.groups.offsets.reset("ann", False, broker.topic(), "g", 0, mode, value))


@pytest.mark.parametrize("cold", [False, True])
def test_resets_and_seeks(cold: bool) -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 200, [(1000 + n * 10 if n != 50 else 1500) * 1000 for n in range(200)])
    broker.commit(topic, 0, 3)
    if cold:
        broker.restart()
    topic = broker.topic()
    broker.subscribe(topic, 0, member="plain")
    assert reset(broker, "latest") == 200
    assert reset(broker, "earliest") == 0
    assert reset(broker, "offset", 150) == 150
    for timestamp, offset in ((0, 0), (-5, 0), (1000, 0), (1001, 1), (1010, 1), (1495, 50), (1505, 51), (2990, 199)):
        assert reset(broker, "timestamp", timestamp) == offset
        assert broker.committed(topic) == offset
    assert reset(broker, "timestamp", 2991) == 200
    assert reset(broker, "timestamp", 1 << 63) == 200
    with pytest.raises(BadRequest, match="unknown mode 'soonest' of a reset"):
        reset(broker, "soonest")
    with pytest.raises(BadRequest):
        reset(broker, "offset", 201)
    broker.subscribe(topic, member="a")
    for mode in ("latest", "timestamp"):
        with pytest.raises(GroupBusy, match="has 1 members"):
            reset(broker, mode)
    assert broker.committed(topic) == 200


def test_records_within_a_batch_are_told_apart() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    now = broker.scheduler.now()
    times = [now - 5 * SECOND, now - 4 * SECOND, now - 3 * SECOND]
    topic.publish(kernel.build([b"a", b"b", b"c"], timestamps=times, origin=b"test:1"), 3, True, None, 0)
    broker.scheduler.run_until_idle()
    broker.commit(topic, 0, 1)
    assert broker.run(broker.groups.offsets.lag("ann", False, topic, "g", 0)) == Lag(1, 3, 2, 4_000)
    assert reset(broker, "timestamp", times[1] // 1000 + 1) == 2


def test_a_group_deleted_during_a_seek_does_not_come_back() -> None:
    broker = GroupBroker()
    broker.publish(broker.topic(), 0, 5)
    broker.commit(broker.topic(), 0, 4)
    broker.restart()
    broker.scheduler.held = True
    seek, delete = Answers(), Answers()
    start(broker.groups.offsets.seek_to_timestamp("ann", False, broker.topic(), "g", 0, 0)).then(seek)
    start(broker.groups.delete("ann", False, "t", "g")).then(delete)
    broker.scheduler.held = False
    broker.answer(delete)
    with pytest.raises(GroupNotFound):
        broker.answer(seek)
    broker.restart()
    assert len(broker.groups) == 0


def test_a_member_that_joins_during_a_seek_keeps_its_offsets() -> None:
    broker = GroupBroker()
    broker.publish(broker.topic(), 0, 5)
    broker.commit(broker.topic(), 0, 4)
    broker.restart()
    topic = broker.topic()
    broker.scheduler.held = True
    seek, join = Answers(), Answers()
    start(broker.groups.offsets.seek_to_timestamp("ann", False, topic, "g", 0, 0)).then(seek)
    start(broker.groups.subscribe("ann", False, topic, "g", -1, "", "m", "")).then(join)
    broker.scheduler.run_until_idle()
    broker.scheduler.held = False
    with pytest.raises(GroupBusy):
        broker.answer(seek)
    assert broker.answer(join).partitions == ((0, 4),)


def test_deleting_and_forgetting_are_durable() -> None:
    broker = GroupBroker()
    topic, other = broker.topic(partitions=2), broker.topic("other")
    broker.publish(topic, 1, 2)
    for group in ("g", "h"):
        broker.commit(topic, 1, 1, group=group)
    broker.commit(other, 0, 0)
    assert broker.groups.topics_of("g") == ("t", "other")
    broker.subscribe(topic, member="a")
    with pytest.raises(GroupBusy):
        at_once(broker.groups.delete("ann", False, "t", "g"))
    broker.groups.leave("a")
    broker.run(broker.groups.delete("ann", False, "t", "g"))
    broker.cut_power(2)
    assert [(info.topic, info.group) for info in broker.groups.list("ann", False)] == [("other", "g"), ("t", "h")]
    topic = broker.topic()
    join = Answers()
    broker.subscribe(topic, member="a", group="h")
    start(broker.groups.subscribe("ann", False, topic, "h", -1, "", "b", "")).then(join)
    forgotten = Answers()
    broker.groups.forget_topic("t").then(forgotten)
    with pytest.raises(GroupNotFound):
        broker.answer(join)
    broker.groups.leave("a")
    broker.groups.leave("b")
    broker.groups.forget_topic("never").then(forgotten)
    broker.scheduler.run_until_idle()
    assert forgotten.told == [(None, None)] * 2
    broker.cut_power(4)
    assert [info.topic for info in broker.groups.list("ann", False)] == ["other"]


def test_what_was_under_way_does_not_bring_a_group_back() -> None:
    broker = GroupBroker()
    broker.commit(broker.topic(), 0, 0)
    broker.restart()  # so that its next generation needs a row
    topic = broker.topic()
    join, delete, late = Answers(), Answers(), Answers()
    start(broker.groups.subscribe("ann", False, topic, "g", -1, "", "m", "")).then(join)
    broker.groups.leave("m")
    start(broker.groups.delete("ann", False, "t", "g")).then(delete)
    broker.answer(delete)
    with pytest.raises(GroupNotFound):
        broker.answer(join)
    start(broker.groups.subscribe("ann", False, topic, "being made", -1, "", "m", "")).then(late)
    broker.groups.forget_topic("t")
    with pytest.raises(GroupNotFound):
        broker.answer(late)
    broker.restart()
    assert len(broker.groups) == 0


def test_a_new_group_is_not_moved_by_what_was_prepared_for_the_old_one() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 9)
    for _ in range(3):
        payload = broker.groups.offsets.prepare_commit("ann", False, topic, "g", 0, 3, None, "m")
    apply(broker, payload)
    start(broker.groups.delete("ann", False, "t", "g"))
    broker.scheduler.advance(SECOND)
    broker.commit(topic, 0, 8)
    apply(broker, payload)
    assert broker.committed(topic) == 8


def test_a_group_whose_deletion_the_disk_refuses_is_still_there() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 1)
    broker.commit(topic, 0, 1)
    broker.disk.fail("fdatasync", 1, errno.EIO, times=100)
    delete = Answers()
    start(broker.groups.delete("ann", False, "t", "g")).then(delete)
    with pytest.raises(StorageError):
        broker.answer(delete)
    assert broker.committed(topic) == 1


def test_the_table_stays_small_under_many_commits() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 1)
    for number in range(1000):
        start(broker.groups.offsets.commit("ann", False, topic, "g", 0, number % 2, None, "m", door="flymq"))
    broker.scheduler.run_until_idle()
    assert len(broker.groups._table) == 2
