"""Random histories of a cell against what it promises; each rule of the protocol is broken once, and must be found out."""

import os
from collections.abc import Callable
from itertools import product

import pytest

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.replicated import records
from quintet.log.replicated.fold import Fold, Verdict, WalReplaced
from quintet.log.replicated.records import Entry, EntryKind, Kind, NewerRecord, WalRecord, pack, parse
from quintet.log.replicated.replica import Replica
from quintet.log.replicated.states import STEPS, Event, State
from quintet.model.errors import CorruptData
from tests.log.cell_files import INTENTS, Wrong
from tests.log.cell_world import TIMING, Node, World

SEEDS = 20_000 if os.environ.get("QUINTET_TEST_LONG") else 500
PARTS = 10  # tests that share the seeds
CONTROL_SEEDS = 400  # within which each sabotage must be found


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_acknowledged_is_lost_in_any_history(part: int) -> None:
    share = SEEDS // PARTS
    seen = 0
    for seed in range(part * share, (part + 1) * share):
        world = World(seed)
        try:
            world.run()
        except Wrong as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += world.counts["acknowledged"]
    assert seen > share


# -- controls ------------------------------------------------------------------------------------------------------------


class AcknowledgesOnAnswer(Replica):
    """Acknowledges without looking at the gap."""

    def _confirm_answered(self, monotonic: int) -> None:
        while self._flying and (offset := next(iter(self._flying.values())).offset) >= 0:
            self.fold.next = max(self.fold.next, offset + 1)
            self._confirm(next(iter(self._flying)), monotonic)


class LeadsOnAnswer(Replica):
    """Leads when its claim is answered, without reading up to it."""

    def claim_answered(self, offset: int) -> None:
        super().claim_answered(offset)
        if self.state is State.DRAINING:
            self.fold.next, self.fold.top, self.fold.epoch, self.fold.sequence = offset + 1, self.epoch, self.epoch, 0
            self.fold.instance, self._sequence = self.instance, 0
            self.state = State.WAITING


class LeaseFromAnswer(Replica):
    """Counts its lease from when the answer came."""

    def _renew_lease(self, sent: int, monotonic: int) -> None:
        super()._renew_lease(monotonic, monotonic)


class AnswersWithoutLease(Replica):
    """Answers reads as long as it believes to lead."""

    def may_answer(self, monotonic: int) -> bool:
        return self.leads


class HoldsNothing(Replica):
    """Leads as soon as its claim is read, whether or not the lease before is over."""

    def tick(self, monotonic: int) -> None:
        if self.state is State.WAITING:
            self._lead(monotonic)
        else:
            super().tick(monotonic)


class AnswersAfterLeaving(Replica):
    """Goes on to answer reads when it has said that it leads no more."""

    def may_answer(self, monotonic: int) -> bool:
        return self.leads and monotonic < self._lease_end


class TrustsAnyLeave(Replica):
    """Once a leader has left, waits for no lease any more, whoever led since."""

    def _counts(self, offset: int, record: WalRecord, verdict: Verdict, monotonic: int) -> None:
        left = self._no_lease
        super()._counts(offset, record, verdict, monotonic)
        self._no_lease = self._no_lease or left


class AnyOrder(Fold):
    """Counts data of the epoch in force whatever its sequence."""

    def take(self, offset: int, record: WalRecord | None) -> Verdict:
        if record is not None and record.kind is Kind.DATA and record.epoch == self.epoch:
            self.sequence = record.sequence
        return super().take(offset, record)


class CountsAnyOrder(Replica):
    def start(self, monotonic: int) -> None:
        fold = self.fold
        self.fold = AnyOrder(fold.next, fold.epoch, fold.top, fold.sequence, fold.node, fold.instance)
        super().start(monotonic)

    def _confirm(self, sequence: int, monotonic: int) -> None:
        if sequence in self._flying:
            super()._confirm(sequence, monotonic)


class WritesFirst(Node):
    """Writes its own files before the WAL has confirmed."""

    def ship(self, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        assert self.replica is not None
        self.files.apply(tuple(entries), self.replica.fold)
        super().ship(entries, acknowledge)


class IntentFirst(Node):
    """Ships a stage only after the intent that names it."""

    def _commit_stage(self, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        value = self.world.value()
        self.files.stages.add(value.decode())  # as its own disk has it
        self._write((INTENTS, 0), value, entries, acknowledge)
        entries += [records.stage_part(value.decode(), 0, b"part"), records.stage_sealed(value.decode(), 1)]


class SealsEarly(Node):
    """Seals a stage without shipping all of it."""

    def _commit_stage(self, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        value = self.world.value()
        self.files.stages.add(value.decode())
        entries += [records.stage_part(value.decode(), 0, b"part"), records.stage_sealed(value.decode(), 2)]
        self._write((INTENTS, 0), value, entries, acknowledge)


class PurgesAlone(Node):
    """Purges its own files, and ships nothing of it."""

    def ship(self, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        super().ship([entry for entry in entries if entry.kind is not EntryKind.PURGED], acknowledge)


class BeginsAlone(Node):
    """Does not ship where a partition begins that was in memory."""

    def ship(self, entries: list[Entry], acknowledge: list[Callable[[], None]]) -> None:
        super().ship([entry for entry in entries if entry.kind is not EntryKind.BEGUN], acknowledge)


SABOTAGES: list[tuple[type[Replica], type[Node], str]] = [
    (AcknowledgesOnAnswer, Node, "lost|other files|another batch|acknowledged before|may answer"),
    (
        LeadsOnAnswer,
        Node,
        "hole|another batch|link|lost|not there|other files|without all|begins at|is purged|other purges|acknowledged before|replaced",
    ),
    (LeaseFromAnswer, Node, "may answer|were acknowledged before"),
    (AnswersWithoutLease, Node, "may answer|were acknowledged before"),
    (HoldsNothing, Node, "may answer|were acknowledged before"),
    (AnswersAfterLeaving, Node, "may answer|were acknowledged before"),
    (TrustsAnyLeave, Node, "may answer|were acknowledged before"),
    (CountsAnyOrder, Node, "hole|another batch|link|twice|not there|other files"),
    (Replica, WritesFirst, "another batch|other files|link|hole"),
    (Replica, IntentFirst, "an intent names stage"),
    (Replica, SealsEarly, "without all of its 2 parts"),
    (Replica, PurgesAlone, "was purged below"),
    (Replica, BeginsAlone, "has a hole"),
]


@pytest.mark.parametrize(("replica", "node", "found"), SABOTAGES, ids=lambda each: getattr(each, "__name__", ""))
def test_each_rule_that_is_broken_is_found_out(replica: type[Replica], node: type[Node], found: str) -> None:
    for seed in range(CONTROL_SEEDS):
        try:
            World(seed, replica, node).run()
        except Wrong as error:
            with pytest.raises(Wrong, match=found):
                raise error
            return
    raise AssertionError(f"{replica.__name__} and {node.__name__} passed {CONTROL_SEEDS} histories")


# -- the parts -----------------------------------------------------------------------------------------------------------


def data(epoch: int, sequence: int, *entries: Entry) -> WalRecord:
    return WalRecord(Kind.DATA, epoch, sequence, "n1", b"instance", entries)


def claim(epoch: int, node: str = "n1") -> WalRecord:
    return WalRecord(Kind.CLAIM, epoch, 0, node, b"instance")


def test_records_come_back_as_they_were_packed() -> None:
    spec = TopicSpec(17, "orders", partitions=3, extra={"a": "b"}, identity="ff")
    entries = (
        records.topic(spec),
        records.batch(17, 2, b"batch"),
        records.topic_deleted(17),
        records.stages_removed(["a", "b"]),
    )
    record = data(7, 9, *entries)
    assert parse(pack(record)) == record
    assert records.spec_of(parse(pack(record)).entries[0]) == spec
    assert len(pack(record)) == len(pack(data(7, 9))) + sum(records.entry_bytes(entry) for entry in entries)
    assert parse(pack(claim(3))) == claim(3)


def test_every_flipped_bit_of_a_record_is_noticed() -> None:
    packed = bytearray(pack(data(1, 0, records.batch(17, 0, b"x"))))
    for position in range(len(packed)):
        packed[position] ^= 1 << position % 8
        with pytest.raises(CorruptData):
            parse(bytes(packed))
        packed[position] ^= 1 << position % 8


def test_a_record_of_a_later_version_stops_the_reader() -> None:
    packed = bytearray(pack(data(1, 0)))
    packed[8] = records.VERSION + 1
    records._U32.pack_into(packed, 4, kernel.crc32c(memoryview(packed)[8:]))
    with pytest.raises(NewerRecord, match="upgrade this node"):
        parse(bytes(packed))


def test_a_claim_is_in_force_only_above_all_epochs_before_it() -> None:
    fold = Fold()
    assert fold.take(0, claim(2, "n1")) is Verdict.CLAIMED
    assert fold.take(1, claim(2, "n2")) is Verdict.IGNORED
    assert fold.take(2, claim(1, "n3")) is Verdict.IGNORED
    assert fold.node == "n1"
    assert fold.take(3, claim(4, "n2")) is Verdict.CLAIMED
    assert (fold.node, fold.epoch, fold.next) == ("n2", 4, 4)


def test_data_counts_once_in_order_and_in_its_epoch() -> None:
    fold = Fold()
    fold.take(0, claim(1))
    found = [fold.take(1 + number, data(1, sequence)) for number, sequence in enumerate((0, 0, 2, 1, 2))]
    assert found == [Verdict.COUNTS, Verdict.IGNORED, Verdict.IGNORED, Verdict.COUNTS, Verdict.COUNTS]
    assert fold.take(6, None) is Verdict.IGNORED  # bytes of somebody else
    fold.take(7, claim(2))
    assert fold.take(8, data(1, 3)) is Verdict.IGNORED
    assert fold.take(9, data(2, 0)) is Verdict.COUNTS


def test_a_wal_that_lost_records_is_refused() -> None:
    fold = Fold()
    fold.take(0, claim(1))
    with pytest.raises(WalReplaced, match="offset 5 where 1 comes next"):
        fold.take(5, data(1, 0))
    with pytest.raises(WalReplaced, match="no claim before it is above 1"):
        fold.take(1, data(2, 0))


def test_data_of_an_epoch_by_another_than_its_claimant_is_refused() -> None:
    fold = Fold()
    fold.take(0, claim(1))
    with pytest.raises(WalReplaced, match="E1511: data of epoch 1 by n2 at WAL offset 1"):
        fold.take(1, WalRecord(Kind.DATA, 1, 0, "n2", b"other"))


def test_a_leader_whose_wal_was_made_anew_steps_down() -> None:
    world = World(0)
    world.weather.__dict__.update(lost_requests=0.0, lost_answers=0.0, doubled=0.0, cut_reads=0.0, faults=0, leaves=0)
    world.run()
    [leader] = [node.replica for node in world.nodes if node.replica is not None and node.replica.leads]
    leader._flying.clear()  # a heartbeat that was under way when the history ended
    sequence = leader.ship((), world.time)
    leader.answered(sequence, 0, world.time)
    assert leader.state is State.FENCED
    assert "made anew, or restored from a backup" in leader.reason


def test_only_a_leader_writes_and_a_fenced_node_does_nothing_more() -> None:
    assert {state for (state, event) in STEPS if event is Event.WRITE_FAILED} == {
        State.LEADING,
        State.CHECKING,
        State.FENCED,
    }
    assert {STEPS[State.FENCED, event] for event in Event if (State.FENCED, event) in STEPS} == {State.FENCED}
    assert {state for (state, event), to in STEPS.items() if to is State.LEADING and state < State.LEADING} == {
        State.WAITING
    }
    claimed = {Event.CLAIM_ANSWERED, Event.CLAIM_UNANSWERED}  # these two come in any state in which a claim may be open
    assert all((state, event) in STEPS for state, event in product(State, claimed) if state is not State.DRAINING)
    assert TIMING.heartbeat_us * 2 < TIMING.lease_us < TIMING.hold_us < TIMING.silence_us
