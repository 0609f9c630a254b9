"""Takes the part of one node in a cell: follows, claims, drains, leads, and knows when it no longer does. Does no I/O.

Whoever runs it (`Host`) produces to the WAL, reads it and writes files, and says here what came of it. Time is a parameter.

- A write is confirmed when its record is known to count: its answer names exactly the next WAL offset, so nobody wrote in between;
  or the gap before it was read, and no claim was in it. Only then may the host write its own files and acknowledge.
- Writes are confirmed in their order. One that failed may be in the WAL or not: the node is fenced, and the next leader reads it.
- The lease: answers are given only while the last confirmed record is younger than `lease_us`, counted from when it was sent. A new
  leader first waits until `hold_us` have passed since it read the last record that counted of anybody else. That one was sent before
  it was read, so the lease it gave is over by then. Waiting before the claim would not do: a follower whose reads are slow claims
  against a leader that is alive.
- A leader that leaves by itself says so in its last record, and answers nothing from before that record is sent. So nobody need wait
  for its lease: a new leader that has read that record, and no data of anybody else behind it, leads at once. Claims between the two
  give no lease.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from quintet.log.replicated.fold import Fold, Verdict, WalReplaced
from quintet.log.replicated.records import (
    VERSION,
    VERSION_AT,
    VERSION_OLDEST,
    Entry,
    Kind,
    WalRecord,
    advertised,
    digest,
    pack,
    parse,
    released,
    successor_of,
)
from quintet.log.replicated.states import STEPS, Event, State
from quintet.model.errors import CorruptData

UNKNOWN_CODE: Final = "E1515"  # of an outcome
LEASE_US: Final = 5_000_000  # a leader whose loop is kept for so long ends
_MUTE: Final = (State.FOLLOWING, State.CLAIMING, State.DRAINING, State.WAITING)  # states that write nothing


class Timing(NamedTuple):
    """How long things take. `silence_us` should differ between nodes, or they claim at the same moment."""

    lease_us: int = LEASE_US
    hold_us: int = LEASE_US * 5 // 4  # more than a lease, by more than two clocks can drift apart in it
    silence_us: int = LEASE_US * 3 // 2
    heartbeat_us: int = LEASE_US // 4


DEFAULT_TIMING: Final = Timing()


class Host(Protocol):
    """What a replica asks of whoever runs it. None of it may call the replica before it returns."""

    def claim(self, record: bytes) -> None:
        """Produce to the WAL; `claim_answered` or `claim_unanswered` must follow, once."""

    def produce(self, sequence: int, record: bytes) -> None:
        """Produce to the WAL, in the order of the calls; `answered` or `write_failed` must follow, once."""

    def read_from(self, offset: int) -> None:
        """Read the WAL from here on, until told otherwise; each record goes to `read`."""

    def stop_reading(self) -> None: ...

    def apply(self, offset: int, record: WalRecord) -> None:
        """Write what another leader wrote to the files of this node."""

    def confirmed(self, sequence: int) -> None:
        """This node's own record counts: write it to the files, and acknowledge."""

    def lead(self) -> None:
        """This node leads: everything before is in `apply`'s hands already."""

    def step_down(self, reason: str) -> None:
        """Refuse all that is unconfirmed, and end the process."""


class _Flight:
    """A record that was produced and is not confirmed. offset -1: not answered yet."""

    __slots__ = ("digest", "offset", "sent")

    def __init__(self, sent: int, digest: int) -> None:
        self.sent = sent
        self.digest = digest
        self.offset = -1


class Replica:
    """One node. `start` first; `tick` every few milliseconds. Times are monotonic microseconds."""

    def __init__(self, node: str, instance: bytes, fold: Fold, timing: Timing, host: Host, address: str = "") -> None:
        """fold: as far as the node's own files have applied the WAL. address: what its claims advertise."""
        self.state = State.FOLLOWING
        self.node = node
        self.address = address
        self.instance = instance
        self.fold = fold
        self.timing = timing
        self.epoch = 0  # that this node claimed last
        self.reason = ""  # why it is fenced
        self.newest = VERSION  # of records that this node reads
        self.version = VERSION_OLDEST  # of records that it writes: never below what the WAL has
        self.patience_us = 0  # how much longer it is silent than others before it claims: another node should lead
        self._host = host
        self._heard = 0  # when the last record that counts was read of somebody else
        self._claim_open = False
        self._sent = 0  # when the last record was sent
        self._lease_end = 0
        self._sequence = 0  # of the next record to produce
        self._flying: dict[int, _Flight] = {}
        self._gap_end = -1  # the answered offset up to which a gap is read
        self._left = False  # it led, and said that it does so no more
        self._successor: str | None = (
            None  # whom the leader named when it left, and nobody claimed since; empty: anybody
        )
        self._no_lease = False  # the last data that counted of anybody else said that it leaves

    def start(self, monotonic: int) -> None:
        self._heard = monotonic  # nobody knows how old the last record was
        self._host.read_from(self.fold.next)

    @property
    def leads(self) -> bool:
        return self.state is State.LEADING or self.state is State.CHECKING

    def may_answer(self, monotonic: int) -> bool:
        """May a read be answered from this node's files as the newest there is?"""
        return self.leads and monotonic < self._lease_end and not self._left

    @property
    def unconfirmed(self) -> int:
        return len(self._flying)

    @property
    def heard(self) -> int:
        """When the last record that counts was read of somebody else; of one that heard nobody: when it started."""
        return self._heard

    def silent_us(self, monotonic: int) -> int:
        """For how long nothing that counts was read of anybody else."""
        return monotonic - self._heard

    # -- time ----------------------------------------------------------------------------------------------------------

    def tick(self, monotonic: int) -> None:
        if self.state is State.FOLLOWING:
            if monotonic - self._heard >= self._silence_us() and not self._claim_open:
                self._claim(monotonic)
        elif self.state is State.WAITING:
            if self._no_lease or monotonic - self._heard >= self.timing.hold_us:
                self._lead(monotonic)
        elif self.leads and not self._left and monotonic - self._sent >= self.timing.heartbeat_us:
            self.ship((), monotonic)

    def _silence_us(self) -> int:
        """For how long nothing must be heard before this node claims."""
        if self._successor is None:
            return self.timing.silence_us + self.patience_us
        if self._successor in ("", self.node):
            return 0 if self._successor else self.patience_us
        return self.timing.silence_us  # another one was named: it may have died

    def _claim(self, monotonic: int) -> None:
        self._on(Event.SILENCE)
        self.epoch = self.fold.top + 1
        self._claim_open = True
        entries = (advertised(self.address),) if self.address else ()
        self._host.claim(pack(WalRecord(Kind.CLAIM, self.epoch, 0, self.node, self.instance, entries), self.version))

    def _lead(self, monotonic: int) -> None:
        self._on(Event.LEASE_OVER)
        self._host.stop_reading()
        self._host.lead()
        self.ship((), monotonic)  # a claim gives no lease: several may be out, and nobody knows which one was read

    def _on(self, event: Event) -> None:
        self.state = STEPS[self.state, event]

    # -- writing -------------------------------------------------------------------------------------------------------

    def ship(self, entries: Sequence[Entry], monotonic: int) -> int:
        """Produce what a turn wrote; returns its sequence. Only while the node leads."""
        assert self.leads, f"{self.node} does not lead"
        sequence = self._sequence
        self._sequence += 1
        self._sent = monotonic
        made = WalRecord(Kind.DATA, self.epoch, sequence, self.node, self.instance, tuple(entries))
        record = pack(made, self.version)
        self._flying[sequence] = _Flight(monotonic, digest(record))
        self._host.produce(sequence, record)
        return sequence

    def release(self, successor: str, monotonic: int) -> int:
        """Lead no more: answer nobody from now on, and say so in the last record; returns its sequence. The process must end then."""
        self._left = True
        return self.ship((released(successor),), monotonic)

    def answered(self, sequence: int, offset: int, monotonic: int) -> None:
        """The WAL has the record at this offset, as durable as the WAL's settings promise."""
        flight = self._flying.get(sequence)
        if flight is not None:  # it is not, if it was read in a gap
            flight.offset = offset
            self._confirm_answered(monotonic)

    def write_failed(self, sequence: int, error: str) -> None:
        if sequence in self._flying:
            self._step_down(Event.WRITE_FAILED, f"{UNKNOWN_CODE}: whether a write is in the WAL is not known: {error}")

    def claim_answered(self, offset: int) -> None:
        self._claim_open = False
        self._on(Event.CLAIM_ANSWERED)

    def claim_unanswered(self, monotonic: int) -> None:
        self._claim_open = False
        if self.state is State.CLAIMING:
            self._heard = monotonic  # not again at once
        self._on(Event.CLAIM_UNANSWERED)

    def _confirm_answered(self, monotonic: int) -> None:
        """Confirm in order what is answered; begin to read where there is a gap."""
        while self._flying and self.state is State.LEADING:
            sequence, flight = next(iter(self._flying.items()))
            if flight.offset < 0:
                return
            if flight.offset == self.fold.next:
                record = WalRecord(Kind.DATA, self.epoch, sequence, self.node, self.instance)
                if self.fold.take(flight.offset, record) is not Verdict.COUNTS:
                    raise AssertionError(f"{self.node}: its own record {sequence} of epoch {self.epoch} does not count")
                self.fold.last = flight.digest
                self._confirm(sequence, monotonic)
            elif flight.offset > self.fold.next:
                self._gap_end = flight.offset
                self._on(Event.GAP)
                self._host.read_from(self.fold.next)
            else:
                self._step_down(
                    Event.WRITE_FAILED,
                    f"{WalReplaced.code}: the WAL answered offset {flight.offset}, which was read before: {self.fold.next} comes next."
                    " It was made anew, or restored from a backup",
                )

    def _confirm(self, sequence: int, monotonic: int) -> None:
        self._renew_lease(self._flying.pop(sequence).sent, monotonic)
        self._host.confirmed(sequence)

    def _renew_lease(self, sent: int, monotonic: int) -> None:
        self._lease_end = sent + self.timing.lease_us

    def _step_down(self, event: Event, reason: str) -> None:
        if self.state is not State.FENCED:
            self._on(event)
            self.reason = reason
            self._host.stop_reading()
            self._host.step_down(reason)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, offset: int, data: bytes, monotonic: int) -> None:
        """The WAL has this at this offset. What was read before may come again; nothing may be left out."""
        if offset < self.fold.next or self.state is State.FENCED:
            return
        try:
            record = parse(data, self.newest)
            self.version = max(self.version, data[VERSION_AT])  # who could not read it stopped there
        except CorruptData:
            record = None
        try:
            verdict = self.fold.take(offset, record)
        except WalReplaced as error:
            if self.state in _MUTE:
                raise
            self._step_down(Event.WRITE_FAILED, str(error))
            return
        self.fold.last = digest(data)
        if record is not None and verdict is not Verdict.IGNORED:
            self._counts(offset, record, verdict, monotonic)
        if self.state is State.CHECKING and self.fold.next > self._gap_end:
            self._on(Event.GAP_READ)
            self._host.stop_reading()
            self._confirm_answered(monotonic)

    def _counts(self, offset: int, record: WalRecord, verdict: Verdict, monotonic: int) -> None:
        own = record.instance == self.instance
        if not own:
            self._heard = monotonic
            self._successor = successor_of(record)  # a claim names none
            if verdict is Verdict.COUNTS:
                self._no_lease = self._successor is not None
        if verdict is Verdict.COUNTS:
            if own:
                self._confirm(record.sequence, monotonic)
            else:
                self._host.apply(offset, record)
        elif own:
            self.epoch, self._sequence = record.epoch, 0
            self._on(Event.OWN_CLAIM)
        elif self.leads:
            self._step_down(Event.OTHER_CLAIM, f"{record.node} claimed epoch {record.epoch} at WAL offset {offset}")
        elif record.epoch >= self.epoch:
            self._on(Event.OTHER_CLAIM)
