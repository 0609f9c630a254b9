"""Staged writes under attack and in bad luck: what a repeated, mixed-up or late commit must not lose, double or reorder."""

import errno
from collections import Counter
from typing import Any

import pytest

from quintet import kernel
from quintet.broker.atomic import intents, stages
from quintet.broker.atomic.intent_rows import IntentRow
from quintet.broker.atomic.intents import MARK_KEEP_US, Intents, NotYetVisible
from quintet.broker.atomic.stage_publishing import Part, carry_over
from quintet.broker.atomic.stages import FENCE_KEEP_US, ONCE
from quintet.log.base import Stage
from quintet.log.embedded.inspect import Summary, verify
from quintet.model.errors import (
    BadName,
    BadRequest,
    CorruptData,
    EpochDiffers,
    LimitExceeded,
    PartitionFailed,
    TransactionNotFound,
)
from quintet.model.tasks import Promise, start
from quintet.testing.line import DATA
from tests.broker.parts import SECOND
from tests.broker.test_stages import QUERY, Answer, Staging, commit, texts_of


class Moody:
    """A partition that refuses what comes when it is in the mood, and would not have said so before."""

    failure = None

    def __init__(self, real: Any, taken: int = 0) -> None:
        self._real = real
        self.taken = taken  # so many more, then no more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def append(self, batch: bytearray, done: Any) -> int:
        self.taken -= 1
        if self.taken < 0:
            raise PartitionFailed("a sync failed")
        return int(self._real.append(batch, done))


def restarted(parts: Staging) -> Staging:
    parts.log.abandon()
    parts.disk.kill()
    return Staging(parts.disk, time=parts.scheduler.now())


def moody(parts: Staging, topic: bytes, taken: int = 0) -> Moody:
    made = Moody(parts.topic(topic).partitions[0], taken)
    parts.topic(topic).partitions[0] = made
    return made


def lines(parts: Staging, *texts: bytes, topic: bytes = b"b", epoch: int = 0) -> Stage:
    """A stage with these rows for partition 0 of one topic, each a batch."""
    number = parts.topic(topic).spec.id
    stage = parts.stages.open("spark", QUERY, epoch)
    for text in texts:
        stage.append(number, 0, kernel.build([text], origin=b"flight:spark"), 1)
    stage.finish()
    parts.stages.sealed(stage)
    return stage


# -- a batch that is no part of a sequence -----------------------------------------------------------------------------


def test_what_was_carried_over_late_is_not_published_again_an_hour_later() -> None:
    parts = Staging()
    stage = lines(parts, b"one", epoch=ONCE)
    partition = moody(parts, b"b")
    told = parts.commit(ONCE, stage)
    parts.scheduler.run_until_idle()
    assert isinstance(told[0][1], NotYetVisible)
    partition.taken = 9
    parts.advance(2 * SECOND)
    assert parts.values(b"b") == [b"one"]
    assert parts.files() == [] and len(parts.stages) == 0
    parts.advance(MARK_KEEP_US + SECOND, MARK_KEEP_US)
    with pytest.raises(TransactionNotFound):
        parts.commit(ONCE, stage)


def test_a_file_that_came_back_is_not_published_again_an_hour_later() -> None:
    """The process died between the mark of its intent and the removal of the stage."""
    parts = Staging()
    stage = lines(parts, b"one", epoch=ONCE)
    parts.disk.fail("unlink", 1, errno.EIO)
    parts.commit(ONCE, stage)
    parts.scheduler.run_until_idle()
    assert len(parts.files()) == 1
    parts = restarted(parts)
    parts.advance(MARK_KEEP_US + SECOND, MARK_KEEP_US)
    with pytest.raises(TransactionNotFound):
        parts.commit(ONCE, stage)
    assert parts.files() == []
    assert parts.values(b"b") == [b"one"]


def test_two_commits_that_share_a_stage_neither_double_nor_lose_one() -> None:
    parts = Staging()
    shared, first, second = (lines(parts, text, epoch=ONCE) for text in (b"shared", b"first", b"second"))
    parts.commit(ONCE, shared, first)
    with pytest.raises(BadRequest, match="part of another commit"):
        parts.commit(ONCE, first, shared)
    parts.scheduler.run_until_idle()
    with pytest.raises(TransactionNotFound):
        parts.commit(ONCE, shared, second)
    with pytest.raises(BadRequest, match="twice"):
        parts.commit(ONCE, second, second)
    parts.commit(ONCE, second)
    parts.scheduler.run_until_idle()
    assert parts.values(b"b") == [b"shared", b"first", b"second"]


def test_a_commit_of_nothing_leaves_nothing() -> None:
    parts = Staging()
    assert parts.commit(ONCE) == [(True, None)]
    assert len(parts.intent_rows) == 0


# -- the same epoch from two sides -------------------------------------------------------------------------------------


def test_two_drivers_with_different_rows_are_not_both_told_yes() -> None:
    parts = Staging()
    mine, other = lines(parts, b"one"), lines(parts, b"one", b"two")
    told = [parts.commit(0, mine), parts.commit(0, other)]
    parts.scheduler.run_until_idle()
    assert told[0] == [(True, None)]
    assert isinstance(told[1][0][1], EpochDiffers)
    assert parts.values(b"b") == [b"one"]


def test_a_repetition_waits_until_the_first_is_visible() -> None:
    parts = Staging()
    replay = lines(parts, b"one")
    parts.commit(0, lines(parts, b"one"))
    while parts.stages.fence("spark", QUERY) < 0:
        parts.scheduler.turn()
    assert parts.values(b"b") == [], "it is there already: the test tests nothing"
    again = parts.commit(0, replay)
    assert again == []
    parts.scheduler.run_until_idle()
    assert again == [(False, None)]
    assert parts.values(b"b") == [b"one"]
    assert parts.files() == []


def test_an_epoch_that_was_left_out_is_not_dropped_in_silence() -> None:
    parts = Staging()
    for epoch in (3, 5):
        parts.commit(epoch, lines(parts, b"%d" % epoch, epoch=epoch))
        parts.scheduler.run_until_idle()
    with pytest.raises(EpochDiffers, match="0 rows and comes again with 1, and batch 5"):
        parts.commit(4, lines(parts, b"4", epoch=4))
    assert parts.commit(4) == [(False, None)]
    assert parts.commit(2, rows=7) == [(False, None)], "older than what is remembered"


def test_a_repetition_that_names_the_stage_of_another_does_not_touch_it() -> None:
    parts = Staging()
    parts.topic(b"b")
    stage = lines(parts, b"one", epoch=ONCE)
    victim = parts.stage(0, [b"theirs"], owner="victim")
    parts.commit(ONCE, stage)
    parts.scheduler.run_until_idle()
    for ids in ((stage.id, victim.id), (victim.id,)):
        with pytest.raises(TransactionNotFound):
            commit(parts, "spark", QUERY, ONCE, ids, 1, False, lambda _: None, Answer())
    mine = lines(parts, b"two")
    parts.commit(0, mine)
    commit(parts, "spark", QUERY, 0, (victim.id,), 1, False, lambda _: None, Answer())
    parts.scheduler.run_until_idle()
    assert parts.files() == [f"{victim.id}.stage"]


# -- bounds ------------------------------------------------------------------------------------------------------------


def committed(parts: Staging, owner: str, writer: str) -> None:
    commit(parts, owner, writer, 0, (), 0, False, lambda _: None, Answer())
    parts.scheduler.run_until_idle()


def test_writers_of_one_owner_do_not_keep_out_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "FENCES_OF_OWNER_MAX", 2)
    parts = Staging()
    for writer in ("a", "b"):
        committed(parts, "mallory", writer)
        parts.advance(SECOND)
    with pytest.raises(LimitExceeded, match="writers of mallory"):
        committed(parts, "mallory", "c")
    committed(parts, "spark", "c")
    parts.commit(ONCE, lines(parts, b"no fence is needed", epoch=ONCE))
    committed_again = Answer()
    commit(parts, "mallory", "a", 1, (), 0, False, lambda _: None, committed_again)
    parts.scheduler.run_until_idle()
    assert committed_again == [(True, None)]
    parts = restarted(parts)
    parts.scheduler.advance(FENCE_KEEP_US)
    committed(parts, "mallory", "c")
    fences = {writer: parts.stages.fence("mallory", writer) for writer in "abc"}
    assert fences == {"a": 1, "b": ONCE, "c": 0}, "the one that was silent for longest goes"


def test_names_are_looked_at_when_nothing_was_staged_too() -> None:
    parts = Staging()
    for writer in ("", "x" * 129, "a\0b", "\ud800" * 50):
        with pytest.raises(BadName):
            committed(parts, "spark", writer)
    for epoch in (-2, 1 << 62, 1 << 70):
        with pytest.raises(BadRequest):
            commit(parts, "spark", QUERY, epoch, (), 0, False, lambda _: None, Answer())


def test_an_owner_whose_name_does_not_fit_is_told_so() -> None:
    with pytest.raises(BadName, match="too long for a stage"):
        Staging().stages.open("\u00e4" * 255, QUERY, 0)


def test_what_else_lies_in_the_folder_is_left_alone() -> None:
    parts = Staging()
    lines(parts, b"one")
    parts.disk.mkdir(f"{DATA}/stages/lost+found")
    parts = restarted(parts)
    assert len(parts.stages) == 1
    assert len(parts.files()) == 2


@pytest.mark.parametrize(("bound", "value"), [("STAGED_BYTES_OF_OWNER_MAX", 500), ("PARTS_OF_OWNER_MAX", 3)])
def test_what_one_owner_stages_is_bounded_while_it_grows(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, bound, value)
    parts = Staging()
    number = parts.topic(b"b").spec.id
    kept = lines(parts, b"x" * 100)
    growing = parts.stages.open("spark", QUERY, 0)
    parts.stages.check_room(growing)
    for _ in range(2):
        growing.append(number, 0, kernel.build([b"x" * 100], origin=b"x"), 1)
    with pytest.raises(LimitExceeded, match="the stages of spark hold"):
        parts.stages.check_room(growing)
    with pytest.raises(LimitExceeded):
        parts.stages.open("spark", QUERY, 0)
    parts.stages.check_room(parts.stages.open("another", QUERY, 0))
    parts.stages.abort("spark", [kept.id])
    parts.stages.check_room(growing)
    parts.stages.abort("spark", [growing.id])
    with pytest.raises(TransactionNotFound):
        parts.stages.check_room(growing)
    parts = restarted(parts)
    parts.stages.check_room(parts.stages.open("spark", QUERY, 0))


def test_the_sweep_looks_at_some_stages_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "SWEPT_AT_ONCE_MAX", 2)
    parts = Staging()
    for _ in range(5):
        lines(parts, b"lost the race", epoch=0)
    parts.commit(0, lines(parts, b"won"))
    parts.scheduler.run_until_idle()
    left = []
    for _ in range(3):
        parts.advance(SECOND + 50_000)
        left.append(len(parts.files()))
    assert left == [3, 1, 0]


def test_verify_looks_at_stages() -> None:
    parts = Staging()
    stage = lines(parts, b"one", b"two")
    path, part = f"{DATA}/stages/{stage.id}.stage", stage.parts[1]
    whole = parts.disk.read_file(path) or b""
    for flipped, position in ((None, -1), (part.position + 70, part.position), (part.position - 20, 0), (3, 0)):
        data = bytearray(whole)
        if flipped is not None:
            data[flipped] ^= 1
        parts.disk.damage(path, bytes(data))
        summary = Summary()
        found = [(finding.file, finding.position) for finding in verify(parts.disk, str(DATA), summary)]
        assert found == ([] if flipped is None else [(path, position)])
        assert summary.status == (flipped is not None)


# -- carrying over -----------------------------------------------------------------------------------------------------


def test_nothing_is_appended_behind_what_was_refused() -> None:
    """A partition that recovers between two batches of one read must not get the second before the first."""
    appended: list[int] = []
    again: list[Promise[None]] = []

    class Reads:
        def read(self, _id: str, _position: int, length: int, done: Any) -> None:
            done(bytes(length))

    async def append(place: int, _batch: bytearray) -> None:
        if not again and place == 1:
            raise PartitionFailed("for a moment")
        appended.append(place)

    async def wait(_error: Exception) -> None:
        again.append(Promise())
        await again[0]

    parts = [Part(place, "stage", 100 * place, 10) for place in range(5)]
    over = start(carry_over(Reads(), parts, append, lambda *_: None, wait))  # type: ignore[arg-type]
    assert appended == [0] and over.pending
    again[0].resolve(None)
    assert appended == [0, 1, 2, 3, 4] and not over.pending


def test_what_retention_took_is_not_appended_behind_what_followed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intents, "_note", lambda *_: None)  # the process dies before it is said
    parts = Staging()
    parts.topics.create(b"kept", 1, retention_us=10 * SECOND)
    parts.scheduler.run_until_idle()
    kept, broken = moody(parts, b"kept", taken=1), moody(parts, b"broken")
    parts.commit(0, lines(parts, b"first", b"second", topic=b"kept"), lines(parts, b"third", topic=b"broken"))
    parts.scheduler.run_until_idle()
    assert parts.values(b"kept") == [b"first"]
    parts.advance(60 * SECOND, 500_000)
    kept.taken = 1
    parts.advance(3 * SECOND)
    assert parts.values(b"kept") == [b"second"], "retention took nothing: the test tests nothing"
    assert broken.taken < 0
    parts = restarted(parts)
    assert parts.values(b"kept") == [b"second"]
    assert parts.values(b"broken") == [b"third"]


def test_a_long_carry_over_writes_its_row_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents, "NOTE_EVERY_APPENDS", 1)
    parts = Staging()
    written: list[bytes] = []
    put = parts.intent_rows.put

    def counted(key: bytes, row: IntentRow) -> Promise[None]:
        written.append(key)
        return put(key, row)

    monkeypatch.setattr(parts.intent_rows, "put", counted)
    texts = [b"%d" % number for number in range(200)]
    parts.commit(0, lines(parts, *texts))
    parts.scheduler.run_until_idle()
    assert parts.values(b"b") == texts
    assert 2 < len(written) <= 2 + intents.NOTES_MAX


def test_who_waits_is_told_that_the_disk_lost_a_part() -> None:
    parts = Staging()
    stage = parts.stage(0, texts_of(0, 0))
    path = f"{DATA}/stages/{stage.id}.stage"
    data = bytearray(parts.disk.read_file(path) or b"")
    data[stage.parts[2].position + 70] ^= 1
    parts.disk.damage(path, bytes(data))
    told = parts.commit(0, stage)
    parts.scheduler.run_until_idle()
    assert isinstance(told[0][1], CorruptData)
    assert parts.texts() == Counter(texts_of(0, 0)[:2] + texts_of(0, 0)[3:])
    assert parts.commit(0, rows=len(texts_of(0, 0))) == [(False, None)], "it is committed all the same"
