"""Intents: all or nothing and nothing twice, with power lost at every disk call, full disks, and topics that go away."""

import contextlib
import errno
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar

import msgspec
import pytest

from quintet import kernel
from quintet.broker.atomic import intents as module
from quintet.broker.atomic.intent_rows import Adding, Effect
from quintet.broker.atomic.intents import Intents, NotYetVisible
from quintet.broker.table import Table
from quintet.log.base import Durability
from quintet.model import limits
from quintet.model.errors import LimitExceeded, QuintetError, StorageFull, TooLarge, TopicNotFound
from quintet.model.tasks import Promise
from quintet.testing.sim import SimDisk
from tests.broker.parts import SECOND, Parts, Told, attempt, tell

ROUNDS = 4
TOKENS = {2: "two"}


class NumberRow(msgspec.Struct, frozen=True):
    """A row of the table that effects write to."""

    number: int


class Number(Effect, frozen=True, array_like=True):
    kind: ClassVar[str] = "number"
    number: int


class FromTheFuture(Effect, frozen=True, array_like=True):
    kind: ClassVar[str] = "from the future"


class Numbers:
    """The effect "number" puts a row: idempotent, appended on every call."""

    table: Table[NumberRow]

    def __init__(self) -> None:
        self.applied = 0
        self.silent = False  # never done: the intent stays unfinished
        self.refuse = 0
        self.waiting: list[Promise[None]] = []

    def register(self, parts: Parts) -> None:
        self.table = Table(parts.log, 11, "__numbers", NumberRow)
        self.table.load()
        parts.intents.on_effect(Number, self.apply)

    async def apply(self, effect: Number) -> None:
        number = effect.number
        self.applied += 1
        if self.refuse:
            self.refuse -= 1
            raise StorageFull("no room for the effect")
        await self.table.put(str(number).encode(), NumberRow(number))
        if self.silent:
            self.waiting.append(never := Promise[None]())
            await never

    def present(self) -> set[int]:
        return {row.number for row in self.table}


def start(
    disk: SimDisk | None = None, numbers: Numbers | None = None, lossy: Durability = "os"
) -> tuple[Parts, Numbers]:
    numbers = numbers or Numbers()
    return Parts(disk, register=numbers.register, durability=lossy), numbers


def number(value: int) -> Effect:
    return Number(value)


def batch(*values: bytes) -> bytearray:
    return kernel.build(list(values), origin=b"test:1")


def commit(parts: Parts, value: int, told: Told, names: tuple[bytes, ...] = (b"a", b"b"), token: str = "") -> None:
    """Two records to the first topic, one to each of the others, and the number."""
    topics = [parts.topics.ensure(name, durable=True) for name in (names[0], *names)]
    appends: list[Adding] = [(topic, 0, batch(b"%d" % value)) for topic in topics]
    attempt(parts.intents.commit(appends, [number(value)], token), told)


# -- power ---------------------------------------------------------------------------------------------------------


@dataclass
class Story:
    told: dict[int, Told] = field(default_factory=dict)


def workload(disk: SimDisk, story: Story) -> None:
    parts, _ = start(disk)
    for value in range(ROUNDS):
        told = story.told[value] = Told()
        with contextlib.suppress(QuintetError):
            commit(parts, value, told, token=TOKENS.get(value, ""))
            if value % 2:
                parts.publish(b"a", b"between")
        parts.scheduler.run_until_idle()
        parts.advance(SECOND if value == 1 else 50_000)
    parts.log.close(lambda: None)
    parts.scheduler.run_until_idle()


def state(parts: Parts, numbers: Numbers) -> tuple[object, ...]:
    return (parts.rows(b"a"), parts.rows(b"b"), numbers.present())


def check(parts: Parts, numbers: Numbers, story: Story) -> list[str]:
    wrong: list[str] = []
    in_a, in_b = Counter(parts.values(b"a")), Counter(parts.values(b"b"))
    for value, told in story.told.items():
        text = b"%d" % value
        found = (in_a[text], in_b[text], value in numbers.present())
        if found not in ((0, 0, False), (2, 1, True)):
            wrong.append(f"intent {value} is torn: {found}")
        if told == [None] and not found[2]:
            wrong.append(f"intent {value} is lost")
        if len(told) > 1:
            wrong.append(f"intent {value}: told {told}")
        if told == [None] and value in TOKENS and parts.intents.outcome(TOKENS[value]) is None:
            wrong.append(f"intent {value}: its token is forgotten")
    if parts.intents.unfinished:
        wrong.append(f"{parts.intents.unfinished} unfinished")
    return wrong


def run_cut(at: int) -> tuple[SimDisk, Story]:
    disk, story = SimDisk(seed=at), Story()
    disk.stop_at = at
    with contextlib.suppress(OSError):
        workload(disk, story)
    disk.crash(Random(at))
    return disk, story


def total_calls() -> int:
    disk, story = SimDisk(), Story()
    workload(disk, story)
    total = disk.total_calls
    assert [list(told) for told in story.told.values()] == [[None]] * ROUNDS
    disk.kill()
    parts, numbers = start(disk)
    assert check(parts, numbers, story) == []
    return total


@pytest.mark.parametrize("large_bytes", [limits.LARGE_BYTES, 0])  # 0: a thread builds and encodes them all
def test_power_lost_at_every_call_and_a_second_start_changes_nothing(
    large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LARGE_BYTES", large_bytes)
    total = total_calls()
    resumed = 0
    assert total > 100
    for at in range(1, total + 1):
        disk, story = run_cut(at)
        parts, numbers = start(disk)
        resumed += parts.events().count("intent_resumed")
        assert check(parts, numbers, story) == [], f"cut at call {at}"
        before = state(parts, numbers)
        parts.log.abandon()
        disk.kill()
        again, after = start(disk)
        assert "intent_resumed" not in again.events()
        assert state(again, after) == before, f"cut at call {at}"
    assert resumed > 10


def test_power_lost_again_while_recovering() -> None:
    total = total_calls()
    for at in range(30, total + 1, 9):
        first, story = run_cut(at)
        image = first.snapshot()
        for again in range(1, 40, 2):
            disk = SimDisk(seed=again)
            disk.restore(image)
            disk.stop_at = disk.total_calls + again
            with contextlib.suppress(OSError):
                start(disk)
            disk.crash(Random(again))
            parts, numbers = start(disk)
            assert check(parts, numbers, story) == [], f"cut at call {at}, again at {again}"


@pytest.mark.parametrize("sabotage", ["_present", "recover"])
def test_a_recovery_that_does_not_look_is_caught(sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: carrying out twice, and not carrying out."""
    total = total_calls()
    monkeypatch.setattr(Intents, sabotage, lambda *_: set())
    caught = 0
    for at in range(1, total + 1, 2):
        disk, story = run_cut(at)
        parts, numbers = start(disk)
        caught += bool(check(parts, numbers, story))
    assert caught >= 3


@pytest.mark.parametrize("seed", range(40))
def test_disk_work_in_any_order_and_power_lost_between(seed: int) -> None:
    rng = Random(seed)
    parts, numbers = start()
    parts.topic(b"a")
    parts.topic(b"b")
    parts.scheduler.held = True
    story = Story()
    for value in range(6):
        told = story.told[value] = Told()
        commit(parts, value, told, token=TOKENS.get(value, ""))
        parts.scheduler.turn()
        while parts.scheduler.jobs and rng.random() < 0.7:
            parts.scheduler.finish(rng.randrange(len(parts.scheduler.jobs)))
            parts.scheduler.turn()
    parts.cut(seed)
    parts, numbers = start(parts.disk)
    assert check(parts, numbers, story) == []


def test_a_topic_that_lost_its_tail_still_gets_it_once() -> None:
    """The floor lies above what the partition kept: it is lowered before anything is appended below it."""
    lowered = 0
    for seed in range(12):
        numbers = Numbers()
        numbers.silent = True
        parts, _ = start(numbers=numbers)
        for value in range(5):
            parts.publish(b"lossy", b"old %d" % value)
        commit(parts, 7, Told(), (b"lossy",))
        parts.scheduler.run_until_idle()
        parts.cut(seed)
        parts, _ = start(parts.disk, numbers)
        assert parts.intents.unfinished == 1
        lowered += next(iter(parts.intent_rows)).appends[0].floor < 5
        parts.log.abandon()
        parts.disk.kill()  # the second time only the process dies: what was written stays
        numbers.silent = False
        parts, _ = start(parts.disk, numbers)
        assert parts.values(b"lossy").count(b"7") == 2
        assert parts.intents.unfinished == 0
    assert lowered >= 3


# -- full disks ----------------------------------------------------------------------------------------------------


def full_at(nth: int) -> tuple[Parts, Numbers, Told]:
    parts, numbers = start()
    parts.publish(b"a", b"warm")
    parts.publish(b"b", b"warm")
    told = Told()
    commit(parts, 1, Told())
    parts.scheduler.run_until_idle()
    parts.disk.fail("pwritev", nth, errno.ENOSPC)
    commit(parts, 2, told)
    parts.scheduler.run_until_idle()
    return parts, numbers, told


def test_a_full_disk_before_the_commitment_leaves_nothing() -> None:
    parts, numbers, told = full_at(1)
    assert [type(error) for error in told] == [StorageFull]
    parts.disk.heal()
    parts.advance(3 * SECOND)
    assert Counter(parts.values(b"a"))[b"2"] == 0
    assert numbers.present() == {1}
    assert parts.intents.unfinished == 0
    assert len(parts.intent_rows) == 0
    commit(parts, 3, again := Told())
    parts.scheduler.run_until_idle()
    assert again == [None]


@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_a_full_disk_after_the_commitment_is_made_good(nth: int) -> None:
    parts, numbers, told = full_at(nth)
    refused_at_the_end = nth == 5  # the row could not be taken away: of no interest to who waits
    assert [type(error) for error in told] == [type(None) if refused_at_the_end else NotYetVisible]
    if not refused_at_the_end:
        assert parts.events().count("intent_waits") == 1
    parts.disk.heal()
    parts.advance(4 * SECOND)
    assert (Counter(parts.values(b"a"))[b"2"], Counter(parts.values(b"b"))[b"2"]) == (2, 1)
    assert numbers.present() == {1, 2}
    assert parts.intents.unfinished == 0
    parts.log.abandon()
    parts.disk.kill()
    parts, numbers = start(parts.disk)
    assert "intent_resumed" not in parts.events()
    assert len(told) == 1


@pytest.mark.parametrize("operation", ["fdatasync", "pwritev", "zero", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_disk_call_tears_nothing(operation: str, code: int) -> None:
    """A failed sync ends a partition: what was told is so after the next start, and nothing is torn."""
    for nth in range(1, 30):
        disk, story = SimDisk(seed=nth), Story()
        disk.fail(operation, nth, code)
        with contextlib.suppress(OSError):
            workload(disk, story)
        disk.crash(Random(nth))
        parts, numbers = start(disk)
        assert check(parts, numbers, story) == [], f"{operation} {nth}"


def test_a_refused_effect_is_had_later_and_who_asks_again_is_told() -> None:
    parts, numbers = start()
    numbers.refuse = 2
    commit(parts, 1, told := Told(), token="t")
    parts.scheduler.run_until_idle()
    assert [type(error) for error in told] == [NotYetVisible]
    (stuck,) = parts.intents.waiting()  # as an operator sees it
    assert (stuck.token, bool(stuck.why)) == ("t", True)
    row = parts.intents.outcome("t")
    assert row is not None
    tell(parts.intents.wait(row), waiting := Told())
    parts.advance(SECOND)
    assert [type(error) for error in waiting] == [NotYetVisible]
    tell(parts.intents.wait(row), last := Told())
    parts.advance(SECOND)
    assert last == [None]
    assert numbers.present() == {1} and parts.intents.waiting() == []


def test_a_clock_that_is_put_back_does_not_hold_up_what_waits() -> None:
    parts, numbers = start()
    numbers.refuse = 1
    commit(parts, 1, Told())
    parts.scheduler.run_until_idle()
    parts.scheduler.jump(-3600 * SECOND)
    parts.advance(module.RETRY_EVERY_US)
    assert numbers.present() == {1}


def test_an_unknown_effect_is_kept_and_said() -> None:
    parts, _ = start()
    attempt(parts.intents.commit([], [FromTheFuture()]), told := Told())
    parts.scheduler.run_until_idle()
    assert [type(error) for error in told] == [NotYetVisible]
    assert "newer Quintet" in str(told[0])
    assert len(parts.intent_rows) == 1


# -- topics that come and go -----------------------------------------------------------------------------------------


def test_a_topic_deleted_meanwhile_takes_its_part_with_it() -> None:
    parts, numbers = start()
    parts.topic(b"a")
    parts.topic(b"b")
    commit(parts, 1, told := Told())
    parts.topics.delete(b"b")
    parts.scheduler.run_until_idle()
    assert told == [None]
    assert parts.values(b"a") == [b"1", b"1"]
    assert numbers.present() == {1}
    parts.publish(b"b", b"new")
    assert parts.values(b"b") == [b"new"]


def test_a_topic_made_again_does_not_get_what_the_old_one_was_owed() -> None:
    numbers = Numbers()
    numbers.silent = True
    parts, _ = start(numbers=numbers)
    parts.topic(b"a")
    parts.topic(b"b")
    numbers.refuse = 0
    commit(parts, 1, Told())
    parts.scheduler.run_until_idle()
    parts.topics.delete(b"b")
    parts.scheduler.run_until_idle()
    parts.publish(b"b", b"new")
    parts.cut(1)
    numbers.silent = False
    parts, _ = start(parts.disk, numbers)
    assert parts.intents.unfinished == 0
    assert parts.values(b"b") == [b"new"]
    assert parts.values(b"a") == [b"1", b"1"]


def test_a_topic_that_cannot_be_made_commits_nothing() -> None:
    parts, numbers = start()
    parts.topic(b"a")
    parts.disk.fail("pwritev", 1, errno.ENOSPC)
    commit(parts, 1, told := Told(), (b"a", b"new"))
    parts.scheduler.run_until_idle()
    assert [type(error) for error in told] == [StorageFull]
    assert parts.values(b"a") == []
    assert numbers.present() == set()
    assert parts.intents.unfinished == 0


@pytest.mark.parametrize("steps", range(12))
def test_a_topic_made_by_the_commit_is_durable_before_it(steps: int) -> None:
    """The youngest disk work is finished first: an intent that did not wait would be there without its topics."""
    parts, numbers = start()
    parts.scheduler.held = True
    story = Story({1: Told()})
    commit(parts, 1, story.told[1])
    parts.scheduler.turn()
    for _ in range(steps):
        if parts.scheduler.jobs:
            parts.scheduler.finish(-1)
            parts.scheduler.turn()
    parts.cut(steps)
    parts, numbers = start(parts.disk)
    assert check(parts, numbers, story) == []


def test_a_deleted_topic_is_refused_at_once() -> None:
    parts, _ = start()
    topic = parts.topic(b"a")
    parts.topics.delete(b"a")
    with pytest.raises(TopicNotFound):
        attempt(parts.intents.commit([(topic, 0, batch(b"x"))], []), Told())
    assert parts.intents.unfinished == 0


# -- tokens and bounds -----------------------------------------------------------------------------------------------


def test_a_token_acts_once_over_a_restart_and_is_forgotten_after_an_hour() -> None:
    parts, _ = start()
    for told in (first := Told(), second := Told()):
        commit(parts, 1, told, token="t")
    assert parts.intents.asked("t")
    assert parts.intents.outcome("t") is None
    parts.scheduler.run_until_idle()
    commit(parts, 1, third := Told(), token="t")
    assert (first, second, third) == ([None], [None], [None])
    parts.cut(3)
    parts, _ = start(parts.disk)
    commit(parts, 1, fourth := Told(), token="t")
    assert fourth == [None]
    assert parts.values(b"a") == [b"1", b"1"]
    parts.advance(2 * module.MARK_KEEP_US, step_us=module.MARK_KEEP_US)
    assert parts.intents.outcome("t") is None
    assert len(parts.intent_rows) == 0


def test_one_that_is_stuck_does_not_keep_the_marks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARKS_MAX", 2)
    parts, numbers = start()
    numbers.silent = True
    commit(parts, 0, Told(), token="stuck")
    parts.scheduler.run_until_idle()
    numbers.silent = False
    for value in range(1, 5):
        commit(parts, value, Told(), token=str(value))
        parts.scheduler.run_until_idle()
    for _ in range(3):
        parts.advance(50_000)
    assert [parts.intents.outcome(token) is None for token in ("stuck", "1", "2", "3", "4")] == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, _ = start()
    topic = parts.topic(b"a")
    monkeypatch.setattr(module, "INTENT_BYTES_MAX", 1000)
    with pytest.raises(TooLarge):
        attempt(parts.intents.commit([(topic, 0, batch(bytes(1000)))], []), Told())
    monkeypatch.setattr(module, "UNFINISHED_BYTES_MAX", 1000)
    attempt(parts.intents.commit([(topic, 0, batch(bytes(600)))], []), told := Told())
    with pytest.raises(LimitExceeded):
        attempt(parts.intents.commit([(topic, 0, batch(bytes(600)))], []), Told())
    parts.scheduler.run_until_idle()
    assert told == [None]
    attempt(parts.intents.commit([(topic, 0, batch(bytes(600)))], []), Told())
