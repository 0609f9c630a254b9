"""Staged writes: published whole, once and in order, with power lost at every disk call, and thrown away when nobody commits."""

import contextlib
import errno
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from quintet import kernel
from quintet.broker.atomic import intents, stages
from quintet.broker.atomic import stage_publishing as carry
from quintet.broker.atomic.intents import NotYetVisible
from quintet.broker.atomic.stages import ONCE, STAGE_KEEP_US, FenceRow, Stages
from quintet.broker.table import Table
from quintet.log.base import Stage
from quintet.model.errors import BadName, BadRequest, EpochDiffers, Forbidden, LimitExceeded, TransactionNotFound
from quintet.model.tasks import completed
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk
from tests.broker.parts import SECOND, Parts, attempt

QUERY = "query-1"
EPOCHS = 4
BATCHES = 6  # of one stage


class Staging(Parts):
    """The broker's parts with stages: what `Broker` builds."""

    stages: Stages

    def __init__(self, disk: SimDisk | None = None, time: int = 0) -> None:
        self._chance = Random(7)
        super().__init__(disk, partitions=2, register=self._register, time=time)

    def _register(self, parts: Parts) -> None:
        table = Table(parts.log, *stages.TABLE, FenceRow, packed=True)
        table.load()
        self.stages = Stages(
            table, parts.log.stages, parts.topics, parts.intents, parts.scheduler, self._chance.randbytes
        )
        self.stages.load()

    def stage(self, epoch: int, texts: list[bytes], writer: str = QUERY, owner: str = "spark") -> Stage:
        """One row per batch, to topics `many` (two partitions) and `b` in turn; in `many` odd rows go to partition 1."""
        many, other = self.topic(b"many"), self.topic(b"b")
        stage = self.stages.open(owner, writer, epoch)
        for number, text in enumerate(texts):
            topic, partition = (other, 0) if number % 3 == 2 else (many, number % 2)
            stage.append(topic.spec.id, partition, kernel.build([text], origin=b"flight:spark"), 1)
        stage.finish()
        self.stages.sealed(stage)
        return stage

    def commit(
        self, epoch: int, *found: Stage, rows: int | None = None, accept: bool = False, writer: str = QUERY
    ) -> "Answer":
        answer = Answer()
        count = sum(stage.rows for stage in found) if rows is None else rows
        ids = tuple(stage.id for stage in found)
        commit(self, "spark", writer, epoch, ids, count, accept, lambda _: None, answer)
        return answer

    def advance(self, delta_us: int, step_us: int = 50_000) -> None:
        super().advance(delta_us, step_us)
        self.stages.tick(self.scheduler.monotonic())
        self.scheduler.run_until_idle()

    def files(self) -> list[str]:
        return self.disk.listdir(f"{DATA}/stages")

    def texts(self) -> Counter[bytes | None]:
        return Counter(self.values(b"many")) + Counter(self.values(b"b"))


class Answer(list[tuple[bool, Exception | None]]):
    def __call__(self, fresh: bool, error: Exception | None) -> None:
        self.append((fresh, error))


def commit(parts: Staging, *arguments: Any) -> None:
    """The last argument hears what it ended with; an error that comes at once is raised."""
    *what, answer = arguments
    over: list[tuple[bool, Exception | None]] = []

    async def committed() -> None:
        over.append(await parts.stages.commit(*what))

    attempt(committed(), lambda error: answer(*(over[0] if over else (False, error))))


def texts_of(epoch: int, task: int) -> list[bytes]:
    return [b"%d/%d/%d" % (epoch, task, number) for number in range(BATCHES)]


# -- power ------------------------------------------------------------------------------------------------------------


@dataclass
class Story:
    told: dict[int, Answer] = field(default_factory=dict)


def run_epoch(parts: Staging, epoch: int, story: Story) -> None:
    found = [parts.stage(epoch, texts_of(epoch, task)) for task in range(2)]
    parts.stage(epoch, [b"an attempt that lost"])
    story.told[epoch] = parts.commit(epoch, *found)
    parts.scheduler.run_until_idle()


def workload(disk: SimDisk, story: Story) -> None:
    parts = Staging(disk)
    for epoch in range(EPOCHS):
        run_epoch(parts, epoch, story)
        parts.advance(50_000)
    parts.log.close(lambda: None)
    parts.scheduler.run_until_idle()


def resume(parts: Staging) -> None:
    """What a restarted driver does: it goes on behind the last batch its checkpoint has, which may be one too early."""
    begin = max(parts.stages.fence("spark", QUERY), 0)
    for epoch in range(begin, EPOCHS):
        run_epoch(parts, epoch, Story())


def wrong(parts: Staging, epochs: int) -> list[str]:
    found = parts.texts()
    expected: Counter[bytes | None] = Counter(
        text for epoch in range(epochs) for task in range(2) for text in texts_of(epoch, task)
    )
    return [] if found == expected else [f"{found - expected} too many, {expected - found} missing"]


def torn(parts: Staging, story: Story) -> list[str]:
    """After a crash and before anybody does anything: each epoch is there whole or not at all, and in order."""
    found, problems = parts.texts(), []
    for epoch, told in story.told.items():
        counts = {found[text] for task in range(2) for text in texts_of(epoch, task)}
        if counts not in ({0}, {1}):
            problems.append(f"epoch {epoch} is torn: {counts}")
        if told == [(True, None)] and counts != {1}:
            problems.append(f"epoch {epoch} is lost")
        if told == [(True, None)] and parts.stages.fence("spark", QUERY) < epoch:
            problems.append(f"epoch {epoch}: its fence is lost")
    if found[b"an attempt that lost"]:
        problems.append("what was not committed is visible")
    ours = [value for value in parts.values(b"b") if value is not None]
    if ours != sorted(ours):
        problems.append(f"out of order: {ours}")
    return problems


def cut(at: int) -> tuple[SimDisk, Story]:
    disk, story = SimDisk(seed=at), Story()
    disk.stop_at = at
    with contextlib.suppress(OSError):
        workload(disk, story)
    disk.crash(Random(at))
    return disk, story


def total_calls() -> int:
    disk, story = SimDisk(), Story()
    workload(disk, story)
    assert [list(told) for told in story.told.values()] == [[(True, None)]] * EPOCHS
    return disk.total_calls


def test_power_lost_at_every_call_and_the_driver_goes_on() -> None:
    total, resumed = total_calls(), 0
    for at in range(1, total + 1, 2):
        disk, story = cut(at)
        parts = Staging(disk)
        resumed += parts.events().count("intent_resumed")
        assert torn(parts, story) == [], f"cut at call {at}"
        resume(parts)
        assert wrong(parts, EPOCHS) == [], f"cut at call {at}"
        parts.advance(2 * SECOND)
        assert parts.files() == [], f"cut at call {at}: stages are left"
    assert resumed > 5


@pytest.mark.parametrize("sabotage", ["fence", "order"])
def test_a_missing_fence_and_a_broken_promise_are_caught(sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: a batch that is replayed without its fence, and a stage published in parts without an intent."""
    if sabotage == "fence":
        monkeypatch.setattr(Stages, "_put_fence", lambda _self, _put: completed(None))
        monkeypatch.setattr(intents, "MARK_KEEP_US", 0)
    else:
        monkeypatch.setattr(intents.Intents, "recover", lambda _self: None)
    caught = 0
    for at in range(1, total_calls() + 1, 7):
        disk, story = cut(at)
        parts = Staging(disk)
        parts.advance(SECOND)
        problems = torn(parts, story)
        resume(parts)
        caught += bool(problems or wrong(parts, EPOCHS))
    assert caught >= 3


# -- the fence ---------------------------------------------------------------------------------------------------------


def test_a_replayed_epoch_is_not_published_and_its_stages_go() -> None:
    parts = Staging()
    first = parts.commit(0, parts.stage(0, [b"one", b"two"]))
    parts.scheduler.run_until_idle()
    again = parts.stage(0, [b"one", b"two"])
    assert parts.commit(0, again) == [(False, None)]
    parts.scheduler.run_until_idle()
    assert first == [(True, None)]
    assert parts.texts() == Counter([b"one", b"two"])
    assert parts.files() == []
    assert parts.stages.repeated == 1


def test_a_replay_of_another_size_is_refused_unless_the_caller_accepts_it() -> None:
    parts = Staging()
    parts.commit(3, parts.stage(3, [b"one"]))
    parts.scheduler.run_until_idle()
    larger = parts.stage(3, [b"one", b"two"])
    with pytest.raises(EpochDiffers, match="1 rows and comes again with 2"):
        parts.commit(3, larger)
    assert parts.commit(3, larger, accept=True) == [(False, None)]
    assert parts.commit(2, parts.stage(2, [b"older than what is remembered"])) == [(False, None)]
    assert parts.texts() == Counter([b"one"])


def test_the_same_commit_asked_twice_at_once_publishes_once() -> None:
    parts = Staging()
    stage = parts.stage(0, [b"one"])
    answers = [parts.commit(0, stage), parts.commit(0, stage)]
    parts.scheduler.run_until_idle()
    assert answers == [[(True, None)], [(False, None)]]
    assert parts.texts() == Counter([b"one"])


def test_a_batch_outside_a_sequence_is_published_once_without_a_fence() -> None:
    parts = Staging()
    stage = parts.stage(ONCE, [b"one"])
    parts.commit(ONCE, stage)
    parts.scheduler.run_until_idle()
    parts.commit(ONCE, stage)  # its answer was lost on the way
    other = parts.stage(ONCE, [b"two"])
    parts.commit(ONCE, other)
    parts.scheduler.run_until_idle()
    assert parts.texts() == Counter([b"one", b"two"])
    assert parts.stages.fence("spark", QUERY) == ONCE


def test_an_epoch_without_rows_moves_the_fence() -> None:
    parts = Staging()
    assert parts.commit(5) == []
    parts.scheduler.run_until_idle()
    assert parts.stages.fence("spark", QUERY) == 5


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_what_is_not_yours_or_not_so_is_refused_and_stays() -> None:
    parts = Staging()
    stage = parts.stage(1, [b"one"])
    with pytest.raises(TransactionNotFound):
        commit(parts, "mallory", QUERY, 1, (stage.id,), 1, False, lambda _: None, Answer())
    with pytest.raises(BadRequest, match="staged for batch 1"):
        parts.commit(2, stage)
    with pytest.raises(BadRequest, match="hold 1 rows"):
        parts.commit(1, stage, rows=7)

    def forbidden(topic: str) -> None:
        raise Forbidden(f"not {topic}")

    with pytest.raises(Forbidden):
        commit(parts, "spark", QUERY, 1, (stage.id,), 1, False, forbidden, Answer())
    parts.stages.abort("mallory", [stage.id])
    assert parts.commit(1, stage) == []
    parts.scheduler.run_until_idle()
    assert parts.texts() == Counter([b"one"])
    with pytest.raises(BadName):
        parts.stages.open("spark", "", 0)
    with pytest.raises(BadRequest):
        parts.stages.open("spark", QUERY, -2)


def test_the_number_of_stages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "STAGES_OF_OWNER_MAX", 2)
    parts = Staging()
    kept = [parts.stage(0, [b"one"]), parts.stage(0, [b"two"])]
    with pytest.raises(LimitExceeded):
        parts.stages.open("spark", QUERY, 0)
    parts.stages.abort("spark", [kept[0].id])
    parts.stages.open("spark", QUERY, 0)
    parts.stages.open("another", QUERY, 0)


def test_an_abandoned_stage_is_swept_after_a_day_also_over_a_restart() -> None:
    parts = Staging()
    parts.stage(0, [b"never committed"])
    started = parts.stages.open("spark", QUERY, 0)
    started.append(parts.topic(b"b").spec.id, 0, kernel.build([b"half"], origin=b"x"), 1)
    assert len(parts.files()) == 2
    parts.log.abandon()
    parts.disk.kill()
    again = Staging(parts.disk, time=parts.scheduler.now())
    assert len(again.files()) == 1
    assert len(again.stages) == 1
    again.scheduler.advance(STAGE_KEEP_US + SECOND)
    again.stages.tick(again.scheduler.monotonic())
    again.scheduler.run_until_idle()
    assert again.files() == []
    with pytest.raises(TransactionNotFound):
        parts.stages.sealed(again.log.stages.open("x", "spark", QUERY, 0))


def test_a_deleted_topic_is_said_before_anything_is_published() -> None:
    parts = Staging()
    stage = parts.stage(0, [b"one", b"two", b"three"])
    parts.topics.delete(b"b")
    parts.scheduler.run_until_idle()
    with pytest.raises(TransactionNotFound, match="was deleted"):
        parts.commit(0, stage)
    assert parts.texts() == Counter()


# -- carrying over -----------------------------------------------------------------------------------------------------


def test_a_stage_larger_than_the_window_is_carried_over_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "WINDOW_BYTES", 1_000)
    monkeypatch.setattr(carry, "READ_BYTES_MAX", 500)
    monkeypatch.setattr(intents, "NOTE_EVERY_APPENDS", 4)
    parts = Staging()
    texts = [b"%04d" % number for number in range(60)]
    told = parts.commit(0, parts.stage(0, texts))
    parts.scheduler.run_until_idle()
    assert told == [(True, None)]
    assert parts.texts() == Counter(texts)
    for partition in (0, 1):
        rows = [value for value in parts.values(b"many") if value and int(value) % 2 == partition]
        assert rows == sorted(rows)


def test_a_disk_that_refuses_is_asked_again_and_nothing_is_doubled() -> None:
    parts = Staging()
    stage = parts.stage(0, texts_of(0, 0))
    told = parts.commit(0, stage)
    parts.scheduler.turn()
    parts.disk.fail("pwritev", 1, errno.ENOSPC, times=3)
    parts.scheduler.run_until_idle()
    parts.advance(5 * SECOND)
    assert len(told) == 1
    assert told[0][1] is None or isinstance(told[0][1], NotYetVisible)
    assert parts.commit(0, stage) in ([(False, None)], [(True, None)])
    parts.scheduler.run_until_idle()
    assert parts.texts() == Counter(texts_of(0, 0))


def test_a_damaged_batch_is_reported_and_the_others_are_published() -> None:
    parts = Staging()
    stage = parts.stage(0, texts_of(0, 0))
    path = f"{DATA}/stages/{stage.id}.stage"
    data = bytearray(parts.disk.read_file(path) or b"")
    data[stage.parts[2].position + 70] ^= 1
    parts.disk.damage(path, bytes(data))
    parts.commit(0, stage)
    parts.scheduler.run_until_idle()
    assert parts.events().count("stage_lost") == 1
    assert parts.texts() == Counter(texts_of(0, 0)[:2] + texts_of(0, 0)[3:])
