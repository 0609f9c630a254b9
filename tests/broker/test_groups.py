"""Consumer groups: whose they are, who owns which partition, what a commit may do, and what survives."""

import errno
from collections.abc import Callable
from random import Random

import pytest

from quintet.broker.consumers.assignment import spread
from quintet.broker.consumers.coordinator import SESSION_TIMEOUT_US
from quintet.broker.consumers.group import Assignment
from quintet.broker.consumers.registry import GENERATIONS_RESERVED
from quintet.broker.topics.catalog import Topic
from quintet.model.errors import (
    BadName,
    BadRequest,
    Fenced,
    Forbidden,
    GroupNotFound,
    LimitExceeded,
    PartitionNotFound,
    QuintetError,
    StorageError,
)
from quintet.model.tasks import start
from tests.broker.group_support import SECOND, Answers, GroupBroker, at_once

# -- assignment --------------------------------------------------------------------------------------------------------


def test_partitions_are_spread_evenly_and_stay_where_they_are() -> None:
    rng = Random(7)
    for _ in range(500):
        partitions, members = rng.randint(1, 40), rng.randint(1, 12)
        names = [f"m{n}" for n in range(members)]
        first = spread(partitions, members, {}, names)
        owning = {name: tuple(numbers) for name, numbers in first.items() if numbers}
        counts = [len(first.get(name, [])) for name in names]
        assert sorted(n for numbers in first.values() for n in numbers) == list(range(partitions))
        assert max(counts) - min(counts) <= 1
        idle = [name for name in names if name not in owning]
        second = spread(partitions, members + 1, owning, [*idle, "new"])
        moved = sum(len(set(second[name]) - set(owning.get(name, ()))) for name in second)
        assert moved <= -(-partitions // (members + 1))
        assert moved == len(second.get("new", []))


def test_leaving_moves_only_what_was_left() -> None:
    owning = {"a": (0, 3, 6), "b": (1, 4), "c": (2, 5)}
    del owning["b"]
    assert spread(7, 2, owning, []) == {"a": [0, 1, 3, 6], "c": [2, 4, 5]}
    assert spread(3, 2, {"a": (0,), "b": (1, 2)}, []) == {"a": [0], "b": [1, 2]}


# -- modes and plain subscriptions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "fresh", "filled", "committed"),
    [("earliest", 0, 0, 0), ("latest", 0, 3, 3), ("", 0, 3, 3), ("commit", 0, 0, 2)],
)
def test_where_a_plain_subscription_starts(mode: str, fresh: int, filled: int, committed: int) -> None:
    broker = GroupBroker()
    topic = broker.topic()
    assert broker.subscribe(topic, 0, mode) == Assignment(0, (), fresh)
    broker.publish(topic, 0, 3)
    assert broker.subscribe(topic, 0, mode).offset == filled
    broker.commit(topic, 0, 2)
    assert broker.subscribe(topic, 0, mode).offset == committed


def test_bad_requests_change_nothing_and_make_no_group() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=2)
    with pytest.raises(BadRequest, match="unknown mode 'soonest'"):
        broker.subscribe(topic, 0, "soonest")
    for partition in (-2, 2, 1 << 31, -(1 << 31)):
        with pytest.raises(PartitionNotFound):
            broker.subscribe(topic, partition)
        with pytest.raises(PartitionNotFound):
            broker.commit(topic, partition, 0)
    for offset in (-1, 1, 1 << 63, (1 << 64) - 1):
        with pytest.raises(BadRequest, match="which ends at 0"):
            broker.commit(topic, 0, offset)
    for name in ("", "x" * 256, "a\0b", "\ud800"):
        with pytest.raises(BadName):
            broker.subscribe(topic, group=name)
    with pytest.raises(BadName):
        broker.subscribe(topic, name="x" * 256)
    with pytest.raises(Fenced):
        broker.commit(topic, 0, 0, generation=1)
    assert len(broker.groups) == 0


@pytest.mark.parametrize("verb", ["get_offset", "describe", "lag", "reset", "seek", "delete"])
def test_an_unknown_group_is_said_so(verb: str) -> None:
    broker = GroupBroker()
    topic = broker.topic()
    calls: dict[str, Callable[[], object]] = {
        "get_offset": lambda: broker.groups.offsets.get_offset("ann", False, topic, "g", 0),
        "describe": lambda: broker.groups.describe("ann", False, "t", "g"),
        "lag": lambda: at_once(broker.groups.offsets.lag("ann", False, topic, "g", 0)),
        "reset": lambda: at_once(broker.groups.offsets.reset("ann", False, topic, "g", 0, "latest", 0)),
        "seek": lambda: at_once(broker.groups.offsets.seek_to_timestamp("ann", False, topic, "g", 0, 5)),
        "delete": lambda: at_once(broker.groups.delete("ann", False, "t", "g")),
    }
    with pytest.raises(GroupNotFound, match="consumer group not found: t:g"):
        calls[verb]()


# -- members -----------------------------------------------------------------------------------------------------------


def test_joining_gives_everything_to_one_and_then_shares() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=4)
    broker.publish(topic, 1, 5)
    broker.commit(topic, 1, 2)
    assert broker.subscribe(topic, member="a", mode="latest") == Assignment(1, ((0, 0), (1, 2), (2, 0), (3, 0)), 0)
    second = broker.subscribe(topic, member="b")
    first = broker.subscribe(topic, member="a")
    assert first.generation == second.generation == 2
    assert [n for n, _ in first.partitions] == [0, 1]
    assert [n for n, _ in second.partitions] == [2, 3]
    broker.groups.leave("a")
    assert [n for n, _ in broker.subscribe(topic, member="b").partitions] == [0, 1, 2, 3]
    info = broker.groups.describe("ann", False, "t", "g")
    assert (info.state, info.generation, info.offsets, len(info.members)) == ("stable", 3, ((1, 2),), 1)


def test_a_turn_of_joins_and_leaves_is_one_rebalance() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=8)
    broker.subscribe(topic, member="first")
    before = broker.groups.rebalances
    answers = [Answers() for _ in range(1000)]
    for number, answer in enumerate(answers):
        start(broker.groups.subscribe("ann", False, topic, "g", -1, "", f"m{number}", "")).then(answer)
    for number in range(500):
        broker.groups.leave(f"m{number}")
    broker.scheduler.run_until_idle()
    assert broker.groups.rebalances == before + 1
    told = [answer.told[0] for answer in answers]
    assert all(isinstance(error, Fenced) for _, error in told[:500])
    owned = [n for result, _ in told[500:] for n, _ in result.partitions]
    owned += [n for n, _ in broker.subscribe(topic, member="first").partitions]
    assert sorted(owned) == list(range(8))


def test_a_silent_member_is_removed_and_its_commit_is_fenced() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=2)
    broker.publish(topic, 0, 3)
    slow = broker.subscribe(topic, member="slow")
    broker.subscribe(topic, member="quick")
    slow = broker.subscribe(topic, member="slow")
    broker.tick(SESSION_TIMEOUT_US - SECOND)
    broker.subscribe(topic, member="quick")
    broker.tick(SECOND)
    assert [event for event, _ in broker.reports if event.startswith("group")] == ["group_member_expired"]
    with pytest.raises(Fenced, match=rf"generation {slow.generation} of group g is over \(now {slow.generation + 1}\)"):
        broker.commit(topic, 0, 1, slow.generation, "slow")
    with pytest.raises(Fenced, match="this connection is none"):
        broker.commit(topic, 0, 1, slow.generation + 1, "slow")
    quick = broker.subscribe(topic, member="quick")
    assert [n for n, _ in quick.partitions] == [0, 1]
    broker.commit(topic, 0, 3, quick.generation, "quick")
    assert broker.committed(topic) == 3


def test_a_commit_is_a_sign_of_life() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    joined = broker.subscribe(topic)
    for _ in range(5):
        broker.tick(SESSION_TIMEOUT_US - SECOND)
        broker.commit(topic, 0, 0, joined.generation)
    assert broker.groups.expired == 0


def test_a_static_member_keeps_its_place_and_the_old_connection_is_fenced() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=2)
    broker.publish(topic, 0, 2)
    broker.subscribe(topic, member="old", name="one")
    broker.subscribe(topic, member="other")
    before = broker.subscribe(topic, member="old", name="one")
    broker.groups.leave("other")
    broker.subscribe(topic, member="other")
    before = broker.subscribe(topic, member="old", name="one")
    after = broker.subscribe(topic, member="new", name="one")
    assert after == before
    with pytest.raises(Fenced, match="a newer connection speaks for static member 'one'"):
        broker.commit(topic, before.partitions[0][0], 0, before.generation, "old")
    with pytest.raises(Fenced, match="a newer connection speaks"):
        broker.subscribe(topic, member="old", name="one")
    broker.commit(topic, after.partitions[0][0], 0, after.generation, "new")
    broker.groups.leave("old")
    broker.groups.leave("new")
    away = broker.groups.describe("ann", False, "t", "g")
    assert [(m.name, m.connected, len(m.partitions)) for m in away.members if m.static] == [("one", False, 1)]
    assert broker.subscribe(topic, member="third", name="one") == after
    broker.groups.leave("third")
    broker.tick(SESSION_TIMEOUT_US)
    assert broker.groups.describe("ann", False, "t", "g").state == "empty"


def test_a_static_name_belongs_to_its_principal() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.subscribe(topic, member="a", name="one")
    with pytest.raises(Forbidden, match="static member 'one'"):
        broker.subscribe(topic, member="b", name="one", actor="bob", privileged=True)
    with pytest.raises(BadRequest, match="already in group g as 'one'"):
        broker.subscribe(topic, member="a", name="two")


def test_a_member_without_a_commit_keeps_the_work_of_the_one_before() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    assert broker.subscribe(topic, member="a", mode="latest").offset == 0
    broker.publish(topic, 0, 3)
    broker.subscribe(topic, member="b", mode="latest")
    broker.groups.leave("a")
    assert broker.subscribe(topic, member="b", mode="latest").partitions == ((0, 0),)
    broker.groups.leave("b")
    broker.scheduler.run_until_idle()
    assert broker.subscribe(topic, member="c", mode="latest").partitions == ((0, 3),)


def test_generations_never_repeat() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    last = 0
    for restart in range(4):
        for number in range(GENERATIONS_RESERVED + 20 if restart == 1 else 3):
            generation = broker.subscribe(topic, member=(restart, number)).generation
            assert generation > last
            last = generation
        if restart % 2:
            broker.restart()
        else:
            broker.cut_power(restart)
        topic = broker.topic()


def reserving(topic_partitions: int = 2) -> tuple[GroupBroker, Topic, Answers]:
    """A member has joined, and the row that reserves its generation is on its way to the disk."""
    broker = GroupBroker()
    broker.commit(broker.topic(partitions=topic_partitions), 0, 0)
    broker.restart()
    broker.scheduler.held = True
    first = Answers()
    start(broker.groups.subscribe("ann", False, broker.topic(), "g", -1, "", "a", "")).then(first)
    broker.scheduler.run_until_idle()
    assert not first.told
    return broker, broker.topic(), first


def test_a_join_while_a_generation_is_reserved_waits_for_its_turns_end() -> None:
    broker, topic, first = reserving()
    second = Answers()
    start(broker.groups.subscribe("ann", False, topic, "g", -1, "", "b", "")).then(second)
    while broker.scheduler.jobs:
        broker.scheduler.finish()
    assert not first.told and not second.told
    assert broker.groups.describe("ann", False, "t", "g").state == "rebalancing"
    broker.scheduler.held = False
    one, two = broker.answer(first), broker.answer(second)
    assert one.generation == two.generation
    assert (len(one.partitions), len(two.partitions)) == (1, 1)


def test_a_generation_beyond_a_late_row_is_reserved_before_it_is_told() -> None:
    broker, topic, first = reserving(1)
    for number in range(GENERATIONS_RESERVED + 10):
        start(broker.groups.subscribe("ann", False, topic, "g", -1, "", number, ""))
        broker.scheduler.run_until_idle()
        broker.groups.leave(number)
        broker.scheduler.run_until_idle()
    broker.scheduler.finish()
    assert not first.told
    broker.scheduler.held = False
    told = broker.answer(first).generation
    assert told > 2 * GENERATIONS_RESERVED
    broker.cut_power(5)
    assert broker.subscribe(broker.topic(), member="later").generation > told


def test_a_generation_that_is_not_reserved_is_told_to_nobody() -> None:
    broker, _topic, first = reserving()
    broker.disk.fail("fdatasync", 1, errno.EIO, times=100)
    broker.scheduler.held = False
    with pytest.raises(StorageError):
        broker.answer(first)
    assert broker.groups.describe("ann", False, "t", "g").state == "stable"


def test_members_and_groups_are_bounded() -> None:
    broker = GroupBroker(members_max=2, groups_max=1)
    topic = broker.topic()
    broker.subscribe(topic, member="a")
    broker.subscribe(topic, 0, member="b")
    for partition in (-1, 0):
        with pytest.raises(LimitExceeded, match="group g has 2 members"):
            broker.subscribe(topic, partition, member="c")
    with pytest.raises(LimitExceeded, match="there are 1 groups"):
        broker.subscribe(topic, member="c", group="another")
    broker.groups.leave("b")
    broker.subscribe(topic, member="c")
    for member in ("a", "c"):
        broker.groups.leave(member)
    assert not broker.groups._groups_of_member
    assert not broker.groups._by_last_heartbeat


# -- commits -----------------------------------------------------------------------------------------------------------


def test_a_plain_commit_does_not_trample_on_members() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=2)
    broker.publish(topic, 0, 3)
    broker.commit(topic, 0, 1, member="script")
    broker.subscribe(topic, 0, member="plain")
    broker.commit(topic, 0, 2, member="script")
    mine = broker.subscribe(topic, member="a")
    with pytest.raises(Fenced, match="subscribe with partition -1 first"):
        broker.commit(topic, 0, 0, member="script")
    broker.commit(topic, 0, 3, member="a")
    with pytest.raises(Fenced):
        broker.commit(topic, 0, 0, mine.generation, member="script")
    assert broker.committed(topic) == 3


def test_the_owner_of_one_partition_does_not_commit_another() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=2)
    broker.subscribe(topic, member="a")
    b = broker.subscribe(topic, member="b")
    a = broker.subscribe(topic, member="a")
    foreign = b.partitions[0][0]
    for generation in (None, a.generation):
        with pytest.raises(Fenced, match=f"partition {foreign} of group g is not assigned to this member"):
            broker.commit(topic, foreign, 0, generation, "a")


@pytest.mark.parametrize("seed", range(20))
def test_an_acknowledged_commit_survives_a_power_cut_with_its_owner(seed: int) -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=3)
    for partition in range(3):
        broker.publish(topic, partition, 4)
        broker.commit(topic, partition, partition + 1, group="first")
    broker.commit(topic, 0, 4, group="first")
    broker.cut_power(seed)
    topic = broker.topic()
    assert [broker.committed(topic, n, "first") for n in range(3)] == [4, 2, 3]
    with pytest.raises(Forbidden):
        broker.committed(topic, 0, "first", actor="bob")


def test_done_waits_for_the_disk() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 2)
    broker.commit(topic, 0, 1)
    broker.scheduler.held = True
    answers = Answers()
    start(broker.groups.offsets.commit("ann", False, topic, "g", 0, 2, None, "m", door="flymq")).then(answers)
    broker.scheduler.run_until_idle()
    assert answers.told == []
    broker.scheduler.held = False
    assert broker.answer(answers) is None


def test_a_refused_commit_leaves_what_was_durable() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.publish(topic, 0, 5)
    broker.commit(topic, 0, 1)
    broker.disk.fail("fdatasync", 1, errno.EIO, times=100)
    answers = [Answers(), Answers()]
    for offset, answer in zip((2, 3), answers, strict=True):
        start(broker.groups.offsets.commit("ann", False, topic, "g", 0, offset, None, "m", door="flymq")).then(answer)
    for answer in answers:
        with pytest.raises(StorageError):
            broker.answer(answer)
    assert broker.committed(topic) == 1
    with pytest.raises(StorageError):
        broker.commit(topic, 0, 4)
    with pytest.raises(StorageError):
        broker.subscribe(topic, group="fresh")
    assert len(broker.groups) == 1
    broker.disk.heal()
    broker.cut_power(1)
    assert broker.committed(broker.topic()) in (1, 2, 3)  # not acknowledged: a failed sync may have kept it or not


def test_a_group_whose_row_the_disk_refuses_is_not_there() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.disk.fail("fdatasync", 1, errno.EIO, times=100)
    answers = [Answers() for _ in range(3)]
    start(broker.groups.offsets.commit("ann", False, topic, "g", 0, 0, None, "m", door="flymq")).then(answers[0])
    start(broker.groups.subscribe("ann", False, topic, "g", -1, "", "m", "")).then(answers[1])
    start(broker.groups.subscribe("ann", False, topic, "g", 0, "", "m", "")).then(answers[2])
    for answer in answers:
        with pytest.raises(StorageError):
            broker.answer(answer)
    assert len(broker.groups) == 0
    assert broker.groups.topics_of("g") == ()


@pytest.mark.parametrize("lost", ["memory", "os"])
def test_offsets_past_the_end_after_a_restart_are_clamped_for_good(lost: str) -> None:
    broker = GroupBroker("os" if lost == "os" else "fsync")
    name = "memory/t" if lost == "memory" else "t"
    topic = broker.topic(name)
    broker.publish(topic, 0, 50)
    broker.commit(topic, 0, 50)
    if lost == "memory":
        broker.restart()
    else:
        for path in [path for path in broker.disk.snapshot() if path.startswith("/data/topics/00000016/0/")]:
            broker.disk.damage(path, (broker.disk.read_file(path) or b"")[:512])
        for path in [path for path in broker.disk.snapshot() if path.startswith("/data/packs/")]:
            broker.disk.damage(path, (broker.disk.read_file(path) or b"")[: 16 * 2048 + 512])
        broker.cut_power(5)
    topic = broker.topic(name)
    end = topic.partitions[0].visible
    assert end < 50
    assert broker.committed(topic) == end
    broker.publish(topic, 0, 60)
    assert broker.committed(topic) == end
    assert broker.subscribe(topic, mode="latest").partitions[0] == (0, end)
    broker.restart()
    topic = broker.topic(name)
    assert broker.committed(topic) == (0 if lost == "memory" else end)


# -- whose it is -------------------------------------------------------------------------------------------------------


def test_an_acl_and_an_administrator_open_a_group() -> None:
    broker = GroupBroker()
    topic = broker.topic()
    broker.commit(topic, 0, 0)
    with pytest.raises(Forbidden, match="consumer group t:g belongs to ann, not to bob") as caught:
        broker.commit(topic, 0, 0, actor="bob")
    assert "ACL on group:g" in caught.value.hint
    broker.commit(topic, 0, 0, actor="bob", privileged=True)
    assert broker.groups.list("bob", False) == []
    assert len(broker.groups.list("bob", True)) == len(broker.groups.list("bob", False, lambda name: name == "g")) == 1
    assert broker.groups.describe("bob", True, "t", "g").owner == "ann"


def test_a_stranger_guesses_in_vain() -> None:
    broker = GroupBroker()
    topic = broker.topic(partitions=4)
    for partition in range(4):
        broker.publish(topic, partition, 3)
    names = ["orders", "billing", "g"]
    for name in names:
        mine = broker.subscribe(topic, member="owner", name="one", group=name)
        for partition in range(4):
            broker.commit(topic, partition, 2, mine.generation, "owner", name)
    before = broker.groups.list("ann", False)
    written = broker.log.stats()["appends"]
    groups, offsets, rng = broker.groups, broker.groups.offsets, Random(11)
    refused = 0
    for _ in range(100_000):
        name, partition, offset = rng.choice(names), rng.randint(-2, 5), rng.choice((0, 1, 2, 3, -1, 1 << 63))
        generation = rng.choice((None, 0, 1, 2, mine.generation, rng.getrandbits(31)))
        member = rng.choice(("owner", "thief"))  # even with the very handle of the owner's connection
        static, mode = rng.choice(("", "one")), rng.choice(("earliest", "latest", "offset", "timestamp", "commit"))
        verb = rng.randrange(9)
        try:
            if verb == 0:
                at_once(offsets.commit("eve", False, topic, name, partition, offset, generation, member, door="flymq"))
            elif verb == 1:
                at_once(groups.subscribe("eve", False, topic, name, partition, mode, member, static))
            elif verb == 2:
                at_once(offsets.reset("eve", False, topic, name, partition, mode, offset))
            elif verb == 3:
                at_once(offsets.seek_to_timestamp("eve", False, topic, name, partition, offset))
            elif verb == 4:
                offsets.prepare_commit("eve", False, topic, name, partition, offset, generation, member)
            elif verb == 5:
                offsets.get_offset("eve", False, topic, name, partition)
            elif verb == 6:
                at_once(offsets.lag("eve", False, topic, name, partition))
            elif verb == 7:
                groups.describe("eve", False, "t", name)
            else:
                at_once(groups.delete("eve", False, "t", name))
        except QuintetError:
            refused += 1
    broker.scheduler.run_until_idle()
    assert refused == 100_000
    assert groups.list("eve", False) == []
    assert groups.list("ann", False) == before
    assert broker.log.stats()["appends"] == written


def test_a_join_storm_grows_nothing() -> None:
    broker = GroupBroker(members_max=100)
    topic = broker.topic(partitions=10)
    broker.subscribe(topic, member="steady")
    for number in range(5_000):
        answers = Answers()
        start(broker.groups.subscribe("ann", False, topic, "g", -1, "", number, f"s{number % 7}")).then(answers)
        if number >= 20:
            broker.groups.leave(number - 20)
        broker.scheduler.advance(1_000)
        broker.scheduler.run_until_idle()
        assert len(answers.told) == 1
    assert len(broker.groups._groups_of_member) <= 22
    assert len(broker.groups._by_last_heartbeat) == 8
    owned = [n for m in broker.groups.describe("ann", False, "t", "g").members for n in m.partitions]
    assert sorted(owned) == list(range(10))
