"""Dead letters: in the dead-letter topic exactly once with their cause, replayed exactly once, resolved for good."""

import contextlib
import errno
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from quintet import kernel
from quintet.broker import slices
from quintet.broker.atomic import dead_letters as module
from quintet.broker.atomic.dead_letters import DeadLetter, DeadLetters, DeadRow, Failure, _normalize, dead_letter_name
from quintet.broker.atomic.intent_rows import Effect, Records
from quintet.broker.slices import Slices
from quintet.broker.topics.reads import Patience
from quintet.delivery.subscription import Policy, Subscription
from quintet.model import limits
from quintet.model.batch import RecordBatch, Row
from quintet.model.errors import (
    BadRequest,
    LimitExceeded,
    OffsetNotFound,
    PartitionNotFound,
    QuintetError,
    StorageFull,
)
from quintet.model.tasks import Promise, start
from quintet.testing.sim import SimDisk
from tests.broker.parts import SECOND, Parts, Told, attempt, tell

ROW: Row = (5, 1_000, b"k", b"v", ((b"own", b"1"), (b"quintet-dead-topic", b"forged")), 0, b"test:1")


class Answers(list[tuple[object, ...]]):
    """A `done` that remembers all it was told."""

    def __call__(self, *answer: object) -> None:
        self.append(answer)


def bury(parts: Parts, *values: bytes, source: bytes = b"t", partition: int = 0) -> None:
    for number, value in enumerate(values):
        row = (number, 1_000, b"k", value, ((b"own", b"1"),), 0, b"test:1")
        tell(parts.dead.bury(source, partition, number, row, Failure("tested", "it hurts", 3), ()), told := Told())
        parts.scheduler.run_until_idle()
        assert told == [None]


def browse(parts: Parts, source: bytes = b"t", maximum: int = 100, after: str = "") -> list[DeadLetter]:
    items: list[DeadLetter] = []

    def done(found: list[DeadLetter] | None, error: Exception | None) -> None:
        assert error is None
        items.extend(found or ())

    start(parts.dead.browse(source, maximum, after, Patience(Slices(parts.scheduler)))).then(done)
    parts.scheduler.run_until_idle()
    return items


def replay(parts: Parts, id: str, override: bytes | None = None) -> Exception | None:
    tell(parts.dead.replay(b"t", id, override), told := Told())
    parts.scheduler.run_until_idle()
    [error] = told
    return error


def restarted(parts: Parts) -> Parts:
    parts.cut(1)
    return Parts(parts.disk, time=parts.scheduler.time)


# -- what a dead letter is ---------------------------------------------------------------------------------------------


def test_names_have_a_suffix_and_long_ones_a_hash() -> None:
    parts = Parts()
    assert parts.dead.name_for(b"orders") == b"orders-dlq"
    assert parts.dead.is_dead("orders-dlq")
    assert not parts.dead.is_dead("orders")
    long = [b"x" * 255, b"x" * 254 + b"y"]
    names = {dead_letter_name(name, "-dlq") for name in long}
    assert len(names) == 2
    assert all(len(name) <= limits.TOPIC_NAME_BYTES_MAX and name.endswith(b"-dlq") for name in names)


def test_the_record_is_kept_with_its_story_and_forged_stories_are_not() -> None:
    parts = Parts()
    failure = Failure("tested", "x" * 2000, 7, first_us=11, last_us=22)
    tell(parts.dead.bury(b"t", 0, 5, ROW, failure, ()), told := Told())
    parts.scheduler.run_until_idle()
    assert told == [None]
    [row] = parts.rows(b"t-dlq")
    assert row[1:4] == (1_000, b"k", b"v")
    assert [value for name, value in row[4] if name == b"quintet-dead-topic"] == [b"t"]
    [item] = browse(parts)
    assert item == DeadLetter(
        "0-0", "t", 0, 5, "tested", "x" * 1024, 7, 11, 22, b"k", b"v", ((b"own", b"1"),), 1_000, b"test:1"
    )


def test_a_rejected_message_was_never_anywhere() -> None:
    parts = Parts()
    tell(parts.dead.bury_rejected(b"t", None, b"{}", b"test:1", "field a is missing"), told := Told())
    parts.scheduler.run_until_idle()
    assert told == [None]
    [item] = browse(parts)
    assert (item.partition, item.offset, item.cause, item.error) == (-1, -1, "schema rejected", "field a is missing")
    assert item.last_us == parts.scheduler.now()
    assert replay(parts, item.id) is None
    assert parts.values(b"t") == [b"{}"]


def test_a_full_disk_is_an_answer() -> None:
    parts = Parts()
    parts.disk.fail("pwritev", 1, errno.ENOSPC)
    tell(parts.dead.bury(b"t", 0, 5, ROW, Failure("tested"), ()), told := Told())
    parts.scheduler.run_until_idle()
    assert [type(error) for error in told] == [StorageFull]
    assert parts.rows(b"t-dlq") == []
    assert parts.dead.buried == 0


# -- a consumer's own word ---------------------------------------------------------------------------------------------


def test_rejecting_twice_makes_one_dead_letter_also_after_a_restart() -> None:
    parts = Parts()
    parts.publish(b"t", b"a", b"b")
    topic = parts.topic(b"t")
    for done in (answers := [Answers(), Answers()]):
        start(parts.dead.reject(topic, 0, 1, "cannot parse it")).then(done)
    parts.scheduler.run_until_idle()
    assert answers == [[(True, None)], [(False, None)]]
    parts = restarted(parts)
    start(parts.dead.reject(parts.topic(b"t"), 0, 1, "again")).then(third := Answers())
    start(parts.dead.reject(parts.topic(b"t"), 0, 0, "the other one")).then(fourth := Answers())
    parts.scheduler.run_until_idle()
    assert (third, fourth) == ([(False, None)], [(True, None)])
    assert [(item.value, item.cause, item.error, item.offset) for item in browse(parts)] == [
        (b"b", "rejected by a consumer", "cannot parse it", 1),
        (b"a", "rejected by a consumer", "the other one", 0),
    ]


def test_what_cannot_be_rejected() -> None:
    parts = Parts()
    parts.publish(b"t", b"a")
    topic = parts.topic(b"t")
    start(parts.dead.reject(topic, 0, 9, "")).then(answers := Answers())
    assert isinstance(answers[0][1], OffsetNotFound)
    with pytest.raises(PartitionNotFound):
        attempt(parts.dead.reject(topic, 1, 0, ""), Answers())
    with pytest.raises(BadRequest, match="dead-letter topic itself"):
        attempt(parts.dead.reject(parts.topic(b"t-dlq"), 0, 0, ""), Answers())


# -- looking -------------------------------------------------------------------------------------------------------


def test_browsing_in_pages_over_partitions_and_past_resolved_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts(partitions=2)
    for partition in (0, 1):
        bury(parts, *(b"%d" % number for number in range(4)), source=b"many", partition=partition)
    assert len(parts.topic(b"many-dlq").partitions) == 2
    start(parts.dead.replay_many(b"many", ["0-1", "0-2", "1-0", "7-7", "x", "0-1"])).then(answers := Answers())
    parts.scheduler.run_until_idle()
    assert answers == [((3, ["7-7", "x", "0-1"]), None)]
    assert parts.dead.counts(b"many") == 5
    ids = ["0-0", "0-3", "1-1", "1-2", "1-3"]
    assert [item.id for item in browse(parts, b"many")] == ids
    monkeypatch.setattr(module, "BROWSE_BYTES_MAX", 3)
    for maximum in (1, 2, 3, 100):
        seen: list[str] = []
        while page := browse(parts, b"many", maximum, seen[-1] if seen else ""):
            seen += [item.id for item in page]
        assert seen == ids
    with pytest.raises(BadRequest):
        attempt(parts.dead.browse(b"many", 1, "nonsense", Patience(Slices(parts.scheduler))), Answers())
    assert browse(parts, b"unknown") == []
    assert parts.dead.counts(b"unknown") == 0


def test_browsing_many_takes_more_than_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand keep the loop for 20 ms: each step looks at one, and a slice has so many steps."""
    monkeypatch.setattr(slices, "STEPS_AT_ONCE_MAX", 10)
    parts = Parts()
    bury(parts, *[b"%d" % number for number in range(25)])
    jobs, answers = Slices(parts.scheduler), Answers()
    start(parts.dead.browse(b"t", 100, "", Patience(jobs))).then(answers)
    assert (len(jobs), answers) == (1, [])
    parts.scheduler.run_until_idle()
    [(found, error)] = answers
    assert isinstance(found, list) and error is None
    assert [item.value for item in found] == [b"%d" % number for number in range(25)]


def test_browsing_and_replaying_from_disk() -> None:
    parts = Parts()
    bury(parts, b"a", b"b", b"c")
    parts = restarted(parts)
    assert [item.value for item in browse(parts)] == [b"a", b"b", b"c"]
    assert replay(parts, "0-1") is None
    parts = restarted(parts)
    start(parts.dead.replay_many(b"t", ["0-2", "0-1", "0-0"])).then(answers := Answers())
    parts.scheduler.run_until_idle()
    assert answers == [((2, ["0-1"]), None)]
    assert parts.values(b"t") == [b"b", b"c", b"a"]


def test_one_is_shown_until_it_is_resolved() -> None:
    parts = Parts()
    bury(parts, b"a")
    for id in ("0-0", "0-1", "1-0", "", "0--1", "0-" + "9" * 30):
        start(parts.dead.get(b"t", id)).then(answers := Answers())
        [(item, error)] = answers
        assert (isinstance(item, DeadLetter), isinstance(error, OffsetNotFound)) == ((id == "0-0"), (id != "0-0"))
    replay(parts, "0-0")
    start(parts.dead.get(b"t", "0-0")).then(answers := Answers())
    assert isinstance(answers[0][1], OffsetNotFound)


# -- sending again ---------------------------------------------------------------------------------------------------


def test_a_replay_publishes_the_record_without_its_story_once() -> None:
    parts = Parts()
    bury(parts, b"a", b"b")
    tell(parts.dead.replay(b"t", "0-0", None), first := Told())
    tell(parts.dead.replay(b"t", "0-0", None), second := Told())
    parts.scheduler.run_until_idle()
    assert first == [None]
    assert [type(error) for error in second] == [OffsetNotFound]
    assert isinstance(replay(parts, "0-0"), OffsetNotFound)
    assert replay(parts, "0-1", b"edited") is None
    rows = parts.rows(b"t")
    assert [(row[2], row[3], row[4], row[6]) for row in rows] == [
        (b"k", b"a", ((b"own", b"1"),), b"test:1"),
        (b"k", b"edited", ((b"own", b"1"),), b"test:1"),
    ]
    parts = restarted(parts)
    assert isinstance(replay(parts, "0-1"), OffsetNotFound)
    assert browse(parts) == []


def test_a_replay_goes_to_the_topic_asked_for_whatever_a_header_says() -> None:
    parts = Parts()
    topic = parts.topic(b"t-dlq")
    forged = ((b"quintet-dead-topic", b"secret"), (b"quintet-dead-partition", b"99"), (b"quintet-dead-offset", b"-1"))
    topic.publish(kernel.build([b"x"], None, [forged], origin=b"test:evil"), 1, True, None)
    parts.scheduler.run_until_idle()
    assert replay(parts, "0-0") is None
    assert parts.values(b"t") == [b"x"]
    assert parts.topics.get(b"secret") is None


def test_a_replay_the_disk_refuses_can_be_tried_again() -> None:
    parts = Parts()
    bury(parts, b"a")
    parts.topic(b"t")
    parts.disk.fail("pwritev", 1, errno.ENOSPC)
    assert isinstance(replay(parts, "0-0"), StorageFull)
    parts.advance(3 * SECOND)
    assert replay(parts, "0-0") is None
    assert parts.values(b"t") == [b"a"]


def test_replays_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts()
    bury(parts, b"a", b"b", b"c", b"d", b"e")
    monkeypatch.setattr(module, "REPLAY_MAX", 2)
    with pytest.raises(LimitExceeded):
        attempt(parts.dead.replay_many(b"t", ["0-0", "0-1", "0-2"]), Answers())
    monkeypatch.setattr(module, "REPLAY_BYTES_MAX", 3)
    start(parts.dead.replay_many(b"t", ["0-0", "0-1"])).then(answers := Answers())
    assert isinstance(answers[0][1], LimitExceeded)
    monkeypatch.setattr(module, "RANGES_MAX", 1)
    assert replay(parts, "0-1") is None
    assert isinstance(replay(parts, "0-3"), LimitExceeded)
    assert replay(parts, "0-0") is None
    assert replay(parts, "0-3") is None


# -- resolving -----------------------------------------------------------------------------------------------------


def test_a_purge_resolves_all_that_are_there_for_good() -> None:
    parts = Parts()
    bury(parts, b"a", b"b", b"c")
    replay(parts, "0-1")
    start(parts.dead.purge(b"t")).then(answers := Answers())
    parts.scheduler.run_until_idle()
    assert answers == [(2, None)]
    assert (browse(parts), parts.dead.counts(b"t")) == ([], 0)
    bury(parts, b"d")
    parts = restarted(parts)
    assert [item.value for item in browse(parts)] == [b"d"]
    start(parts.dead.purge(b"unknown")).then(answers := Answers())
    assert answers == [(0, None)]


def test_a_dead_letter_topic_made_again_starts_fresh() -> None:
    parts = Parts()
    bury(parts, b"a", b"b")
    start(parts.dead.purge(b"t")).then(Answers())
    topic = parts.topic(b"t-dlq")
    parts.topics.delete(b"t-dlq")
    parts.dead.forget(topic.spec.id)
    parts.scheduler.run_until_idle()
    assert len(parts.dead_rows) == 0
    bury(parts, b"c")
    assert [item.value for item in browse(parts)] == [b"c"]


def test_marks_stay_small_and_right() -> None:
    rng = Random(1)
    for _ in range(200):
        below = rng.randrange(10)
        ranges = [(first, first + rng.randrange(1, 4)) for first in rng.choices(range(40), k=rng.randrange(12))]
        row = _normalize(DeadRow(1, 0, below, tuple(ranges)))
        wanted = set(range(below)) | {offset for first, last in ranges for offset in range(first, last)}
        got = set(range(row.purged_below)) | {offset for first, last in row.resolved for offset in range(first, last)}
        assert got == wanted
        edges = [row.purged_below, *(edge for pair in row.resolved for edge in pair)]
        assert all(one < other for one, other in pairwise(edges))


def test_power_lost_at_every_call_of_replays() -> None:
    def workload(disk: SimDisk) -> tuple[list[Told], Answers]:
        parts = Parts(disk)
        told, purged = [Told(), Told(), Told()], Answers()
        with contextlib.suppress(QuintetError, AssertionError):
            bury(parts, b"a", b"b", b"c", b"d")
            for number, done in enumerate(told):
                tell(parts.dead.replay(b"t", f"0-{2 - number}", None), done)
                parts.scheduler.run_until_idle()
            start(parts.dead.purge(b"t")).then(purged)
            parts.scheduler.run_until_idle()
        return told, purged

    disk = SimDisk()
    workload(disk)
    total = disk.total_calls
    for at in range(1, total + 1):
        disk = SimDisk(seed=at)
        disk.stop_at = at
        told: list[Told] = []
        purged = Answers()
        with contextlib.suppress(OSError):
            told, purged = workload(disk)
        disk.crash(Random(at))
        parts = Parts(disk)
        sent = Counter(parts.values(b"t"))
        still = Counter(item.value for item in browse(parts))
        buried = Counter(parts.values(b"t-dlq"))
        for number, value in enumerate((b"c", b"b", b"a")):
            if told and told[number] == [None]:
                assert sent[value] == 1, f"cut at {at}"
            is_purged = purged == [(1, None)] or (not still and buried[value])
            assert sent[value] + still[value] == buried[value] or is_purged, f"cut at {at}"
            assert sent[value] <= 1
            assert buried[value] <= 1
        assert parts.intents.unfinished == 0


# -- subscriptions ---------------------------------------------------------------------------------------------------

ATTEMPTS = 2
POLICY = Policy(attempts_max=ATTEMPTS, poll_backoff_us=100_000)
POISON, GOOD = b"poison", b"good"


class Reader:
    """A sink that only polls."""

    def room(self) -> int:
        return 1 << 20

    def park(self, call: Callable[[], None]) -> None:
        raise AssertionError("nobody pushes here")

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError("nobody publishes here")

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        raise AssertionError("nobody subscribes here")

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        raise AssertionError("nobody pushes here")

    def evict(self, reason: str) -> None:
        raise AssertionError(reason)


@dataclass
class Story:
    published: Counter[bytes] = field(default_factory=Counter)
    subscribed: bool = False


def poll(parts: Parts, subscription: Subscription) -> None:
    """Take what is there, acknowledge what is good."""
    again = True
    while again:
        runs, again = subscription.poll(100, Reader(), lambda: None, 1 << 20)
        for partition, (batch, first, last) in runs:
            for row in batch.rows(first, last):
                if (row[3] or b"").startswith(GOOD):
                    subscription.ack(partition, row[0], 1)
        parts.scheduler.run_until_idle()


def live(parts: Parts, rounds: int) -> None:
    for _ in range(rounds):
        for subscription in parts.subscriptions.all():
            poll(parts, subscription)
        parts.advance(250_000)


def subscribing(disk: SimDisk, story: Story) -> None:
    parts = Parts(disk, delivery=POLICY)
    topic = parts.topic(b"t")
    told = Told()
    made = parts.subscriptions.create("me", topic, 1, door="blipmq")
    parts.subscriptions.when_made(made).then(lambda _, error: told(error))
    parts.scheduler.run_until_idle()
    story.subscribed = told == [None]
    for number in range(3):
        for kind in (POISON, GOOD):
            value = kind + b"-%d" % number
            done = Answers()
            topic.publish(kernel.build([value], origin=b"test:1"), 1, True, done)
            parts.scheduler.run_until_idle()
            story.published[value] = int(bool(done) and done[0][1] is None)
        live(parts, 1)
    live(parts, 3)


def dead_values(parts: Parts) -> Counter[bytes | None]:
    return Counter(parts.values(b"t-dlq"))


def check(parts: Parts, story: Story) -> list[str]:
    found = dead_values(parts)
    wrong = [f"{value!r} is there {count} times" for value, count in found.items() if count > 1]
    for value, published in story.published.items():
        if value.startswith(POISON) and published and story.subscribed and not found[value]:
            wrong.append(f"{value!r} is lost")
        if value.startswith(GOOD) and found[value]:
            wrong.append(f"{value!r} was acknowledged, and is dead")
    return wrong


def cut_and_go_on(at: int) -> tuple[Parts, Story]:
    disk, story = SimDisk(seed=at), Story()
    disk.stop_at = at
    with contextlib.suppress(OSError):
        subscribing(disk, story)
    disk.crash(Random(at))
    parts = Parts(disk, delivery=POLICY)
    live(parts, 6)
    return parts, story


def test_power_lost_at_every_call_of_a_subscription_with_poison() -> None:
    disk, story = SimDisk(), Story()
    subscribing(disk, story)
    total = disk.total_calls
    assert total > 100
    for at in range(1, total + 1):
        parts, story = cut_and_go_on(at)
        assert check(parts, story) == [], f"cut at call {at}"
        before = dead_values(parts)
        parts.log.abandon()
        parts.disk.kill()
        parts = Parts(parts.disk, delivery=POLICY, time=parts.scheduler.time)
        live(parts, 4)
        assert dead_values(parts) == before, f"cut at call {at}"


def test_burying_in_two_steps_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: without the intent some cut gives two dead letters."""

    async def in_two_steps(
        dead: DeadLetters, source: bytes, partition: int, offset: int, row: Row, failure: Failure, effects: Sequence[Effect],
    ) -> None:  # fmt: skip
        topic, number, letter = dead.prepare(source, partition, offset, row, failure)
        assert isinstance(letter, Records)
        published: Promise[int] = Promise()
        topic.publish(letter.build(), 1, False, published.done, number)
        await published
        await dead._intents._effects[effects[0].kind](effects[0].payload())

    monkeypatch.setattr(DeadLetters, "bury", in_two_steps)
    caught = 0
    for at in range(40, 200):
        parts, story = cut_and_go_on(at)
        caught += bool(check(parts, story))
    assert caught >= 1


def test_an_offset_settled_ahead_of_the_position_is_not_redelivered() -> None:
    """The row is younger than the burial: what lies before it is due, it is not."""
    parts = Parts(delivery=POLICY)
    topic = parts.topic(b"t")
    subscription = parts.subscriptions.create("me", topic, 1, door="blipmq")
    parts.scheduler.run_until_idle()
    parts.publish(b"t", b"good-0", b"poison-1", b"good-2")
    lane = subscription.lanes[0]
    lane.settle(1)
    assert (lane.position, lane.retry) == (2, {0: 0})
    lane.settle(1)
    assert (lane.position, lane.retry) == (2, {0: 0})
    runs, _ = subscription.poll(10, Reader(), lambda: None, 1 << 20)
    assert [row[3] for _, (batch, first, last) in runs for row in batch.rows(first, last)] == [b"good-0", b"good-2"]


def test_a_full_disk_keeps_it_alive_and_then_buries_it_once() -> None:
    for nth in range(1, 8):
        parts = Parts(delivery=POLICY)
        topic = parts.topic(b"t")
        parts.topic(b"t-dlq")
        parts.subscriptions.create("me", topic, 1, door="blipmq")
        parts.publish(b"t", b"poison-0", b"poison-1")
        live(parts, 1)
        parts.disk.fail("pwritev", nth, errno.ENOSPC)
        live(parts, 3)
        parts.disk.heal()
        for _ in range(4):
            live(parts, 6)
        assert dead_values(parts) == {b"poison-0": 1, b"poison-1": 1}, nth
        assert parts.dead.buried == 2
        assert parts.subscriptions.all()[0].backlog() == 0
