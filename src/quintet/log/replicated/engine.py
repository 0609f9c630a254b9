"""Runs one node of a cell: an embedded log whose writes go through the WAL (ADR 39). `engine = "kafka"` starts it.

A follower reads the WAL into its files and serves nothing. When it leads, whoever started it builds the broker on this log. When it
is fenced, `ended` is called once, and the process must end without another answer: it comes back as a follower.

The leader trims the WAL below what two nodes have synced (trimming.py). A topic in memory is the leader's alone, until it becomes durable.

At a start the WAL is read from the applied mark on (mark.py). The files of a deleted topic go only when a mark has its deletion: its
batches could not be applied again to a topic that is gone. Until then the mark names it, and a start removes what is left of it.
"""

import json
import os.path
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol

from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files import identity
from quintet.log.embedded.files.disk import Disk, replace_file
from quintet.log.embedded.partitions.shared import Report
from quintet.log.replicated.fold import Fold, WalReplaced
from quintet.log.replicated.freshness import Freshness
from quintet.log.replicated.kafka import Produced, Read, WalIdentity
from quintet.log.replicated.mark import NAME, AppliedMark, load, store
from quintet.log.replicated.partition import CellPartition
from quintet.log.replicated.pauses import Pauses
from quintet.log.replicated.records import (
    Entry,
    EntryKind,
    OtherLayout,
    Placement,
    WalRecord,
    digest,
    offset_of,
    placed,
    placement_of,
    purged,
    removed_of,
    spec_of,
    stage_of,
    topic,
    topic_deleted,
)
from quintet.log.replicated.replica import DEFAULT_TIMING, Replica, Timing
from quintet.log.replicated.shipping import Shippable, Shipping
from quintet.log.replicated.stages import CellStages
from quintet.log.replicated.status import ROLES, LeaderNode, NodeRole, NodeStatus, TakeOver
from quintet.log.replicated.trimming import Trimming, WalTrimmed
from quintet.model import limits
from quintet.model.errors import CorruptData, DataDirError, QuintetError, ShuttingDown, StorageError
from quintet.model.scheduler import Scheduler

TICK_US: Final = 50_000
RELEASE_US: Final = 5_000  # between two looks at the last record
MAINTAIN_TICKS: Final = 2  # of a follower: its broker, which would do it, is not there
MARK_INTERVAL_US: Final = 1_000_000
ASK_TICKS: Final = 4  # of a follower, between two questions where the WAL ends: an answer takes up to 200 ms
VERSION_TICKS: Final = 20  # between two looks at what the other nodes can read


class Wal(Protocol):
    """What a node needs of a transport; KafkaWal is one."""

    @property
    def end(self) -> int:
        """One past the last record that is known to be in the WAL; -1: nobody has looked yet."""

    @property
    def begin(self) -> int:
        """The first offset that is there, as far as is known; 0 before `prepare`."""

    def trim(self, before: int) -> int:
        """Remove everything below; where it begins then. Blocks; raises StorageError."""

    @property
    def weaknesses(self) -> list[str]:
        """What it promises less than the default."""

    def prepare(self, known: WalIdentity | None) -> WalIdentity: ...

    def open(self) -> None: ...

    def produce(self, record: bytes, done: Produced) -> None: ...

    def read_from(
        self, offset: int, read: Read, failed: Callable[[StorageError], None], full: Callable[[], bool]
    ) -> None: ...

    def stop_reading(self) -> None: ...

    def ask_end(self, told: Callable[[int], None]) -> None:
        """told(one past the last record there is), by an answer to a question that is sent now; told(-1): there was none. Not called
        any more when the reading that is under way ends."""

    def close(self) -> None: ...


class ReplicatedLog(EmbeddedLog):
    """`recover`, then `take_part`. The host of its replica."""

    partition_type = CellPartition
    is_refilled = True  # by the WAL, from the mark on

    def __init__(
        self,
        directory: Path,
        disk: Disk,
        scheduler: Scheduler,
        report: Report,
        wal: Wal,
        node: str,
        *,
        hand: Callable[[Callable[[], None]], object],
        host: str = "",
        timing: Timing = DEFAULT_TIMING,
        join: Callable[[str, int], None] = lambda log, begin: None,
        layout: str = "",
        **options: Any,
    ) -> None:
        """hand: calls on the loop, from any thread. host: what this node advertises. join(log, where the WAL begins): may fill the
        directory before it is looked at, and blocks. layout: how topics are shared out among several cells. options: of EmbeddedLog."""
        super().__init__(directory, disk, scheduler, report, **options)
        self._shared.committer = self._shipping = Shipping(disk, scheduler, report)
        self._shipping.directory = self._directory
        self._shipping.ship = self._ship
        self._shipping.failed = self._local_failed
        self.hand = hand
        self._join = join
        self._holds = 0  # that keep files from being removed behind a mark
        self.stages: CellStages = CellStages(self._shared, self._directory, self)
        self._stage_epoch = 0  # of the last record that was applied: stages do not outlive their leader unsealed
        self._wal = wal
        self._specs: dict[int, TopicSpec] = {}  # as they were shipped
        self._applied: dict[int, TopicSpec] = {}  # as far as they count
        self._deleted: set[int] = set()  # whose files may still be there
        self._next_mark: AppliedMark | None = None  # that waits for syncs
        self._unsynced: dict[Shippable, int] = {}  # partitions it waits for, up to which offset
        self._owed: set[object] = set()  # what is being done to files beside partitions
        self._unpaid: set[object] = set()  # of these: what it waits for
        self._marked = -1  # the WAL offset of the last one that was stored
        self._marked_at = 0
        self._storing = False
        # What is done when a mark has reached a WAL offset.
        self._behind_mark: list[tuple[int, Callable[[], None]]] = []
        instance = b"".join(disk.entropy().to_bytes(4, "little") for _ in range(2))
        self.replica = Replica(node, instance, Fold(), timing, self, host)
        self.trimming: Trimming | None = None
        self._versions: Callable[[], Sequence[int] | None] = lambda: None
        self._version_max = 0
        self._layout = layout
        self.placement: Placement | None = None  # as the WAL has it
        self.successor: str | None = None  # who shall lead when this one is closed, which it says then; empty: anybody
        self.take_over: TakeOver | None = None  # set by whoever opens the doors
        self._ticks = self._begin_told = 0
        self._pauses = Pauses(timing.heartbeat_us)
        self._read_last = False  # the record before the mark is to be read again
        self._caught_up = 0  # when all of the WAL was applied, as far as it was known
        self._freshness = Freshness()
        self._asking = False  # where the WAL ends
        self._role_seen: tuple[NodeRole, LeaderNode | None] = (NodeRole.FOLLOWER, None)
        self._role_watchers: list[Callable[[], None]] = []
        self._leading: Callable[[], None]
        self._ended: Callable[[str], None]
        self._over = False

    # -- starting and stopping -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Also checks the WAL, and that this directory belongs to it. Blocks."""
        wal = self._wal.prepare(None)
        log = blake2b(str(wal).encode(), digest_size=identity.DIGITS // 2).hexdigest()
        self._join(log, self._wal.begin)
        disk, directory = self._disk, self._directory
        found = identity.read(disk, directory) if disk.is_dir(directory) else ""
        if found and found != log:
            raise DataDirError(
                f"{DataDirError.code}: {directory}: holds the log {found}; the WAL {wal.topic} of cluster {wal.cluster} has the log {log}",
                hint="name an empty directory, or the WAL that this one followed",
            )
        mark = load(disk, directory)
        applied = mark.fold.next if mark is not None else 0
        if applied < self._wal.begin:
            raise WalTrimmed(self._wal.begin, applied)
        if not found:
            if not disk.is_dir(directory):
                disk.mkdir(directory)
            replace_file(disk, directory, identity.NAME, identity.text(log))
        super().recover()
        self._open_marked()
        self._wal.open()

    def _open_marked(self) -> None:
        mark = load(self._disk, self._directory) or AppliedMark(Fold(), {}, ())
        for topic_id in mark.deleted:
            self._deleted.add(topic_id)
            super().delete_topic(topic_id)
        for spec in mark.specs.values():
            super().open_topic(spec)
        if mark.placement is not None:
            self._place_as(mark.placement)
        self.stages.recover(mark.removed_stages)
        self._specs, self._applied = dict(mark.specs), dict(mark.specs)
        self.replica.fold = mark.fold
        self._marked, self._stage_epoch = mark.fold.next, mark.fold.epoch
        self._read_last = bool(mark.fold.last)

    def take_part(self, leading: Callable[[], None], ended: Callable[[str], None]) -> None:
        """Follow. leading(): this node leads, and everything before is in its files. ended(reason): it must end now."""
        self._leading, self._ended = leading, ended
        self._caught_up = self._scheduler.monotonic()
        self.replica.start(self._scheduler.monotonic())
        self._tick()

    def trim_with(self, others: Callable[[], Sequence[int]], kept_us: int) -> None:
        """Trim the WAL while this node leads. others: what the other nodes have synced, of those that answered lately."""
        self.trimming = Trimming(self._wal, self._scheduler, self._report, others, kept_us)

    def tell_begin(self, offset: int) -> None:
        """Another node knows that the WAL begins here: a follower does not ask Kafka after its start."""
        self._begin_told = max(self._begin_told, offset)

    def agree_on_version(self, others: Callable[[], Sequence[int] | None], version_max: int) -> None:
        """While this node leads, raise the version of records that it writes. others: what the other nodes read at most, or None if one of
        them does not answer. version_max: not above this one; 0: no bound."""
        self._versions, self._version_max = others, version_max

    def _raise_version(self) -> None:
        others = self._versions()
        if others is not None:
            replica = self.replica
            agreed = min(replica.newest, self._version_max or replica.newest, *others)
            if agreed > replica.version:
                self._report("wal_version_raised", {"version": agreed, "before": replica.version})
                replica.version = agreed

    @property
    def synced(self) -> int:
        """Everything below this WAL offset is in this node's files for good, and its mark says so."""
        return max(self._marked, 0)

    def _tick(self) -> None:
        if self._over:
            return
        monotonic = self._scheduler.monotonic()
        if self._pauses.may_claim(monotonic) or self.replica.leads:
            self.replica.tick(monotonic)
        self._ticks += 1
        if not self.replica.leads and self._ticks % MAINTAIN_TICKS == 0:
            self.maintain(self._scheduler.now())
        self._look_at_mark(monotonic)
        if self.replica.leads or self.replica.fold.next >= self._wal.end:
            self._caught_up = monotonic
        if not self.replica.leads:
            self._freshness.look(self.replica.fold.next)
            if self._ticks % ASK_TICKS == 0 and not self._asking:
                self._asking = True
                self._wal.ask_end(partial(self._end_told, monotonic))
        self._look_at_role()
        if self.replica.leads:
            if self.trimming is not None:
                self.trimming.tick(monotonic, self.synced)
            if self._ticks % VERSION_TICKS == 0:
                self._raise_version()
        self._scheduler.later(TICK_US, self._tick)

    def _end_told(self, asked: int, end: int) -> None:
        self._asking = False
        if end >= 0:
            self._freshness.told(end, asked)

    def _look_at_mark(self, monotonic: int) -> None:
        """Store how far the WAL is applied, when all of that is synced."""
        if self._storing:
            return
        if self._next_mark is None:
            fold = self.replica.fold
            if fold.next == self._marked or (monotonic - self._marked_at < MARK_INTERVAL_US and not self._behind_mark):
                return
            self._marked_at = monotonic
            self._deleted = {found for found in self._deleted if self._disk.is_dir(self._topic_path(found))}
            files = (dict(self._applied), tuple(self._deleted), self.stages.removed)
            self._next_mark = AppliedMark(fold.copy(), *files, self.placement)
            self._unpaid = set(self._owed)
            self._unsynced |= {partition: partition.end for partition in self._shipping.touched}
            self._shipping.touched.clear()
        for partition, end in list(self._unsynced.items()):
            if partition.is_synced(end) or partition.topic_id not in self._topics:
                del self._unsynced[partition]
        if not self._unsynced and not self._unpaid:
            self._storing = True
            work = partial(store, self._disk, self._directory, self._next_mark)
            self._scheduler.offload(work, partial(self._mark_stored, self._next_mark.fold.next))

    def _mark_stored(self, offset: int, error: BaseException | None) -> None:
        self._storing, self._next_mark = False, None
        if error is not None:
            self._report("mark_failed", {"file": f"{self._directory}/{NAME}", "error": str(error)})
            return
        self._marked = offset
        if self._holds:
            return  # somebody copies what a mark before speaks of: the next one does it
        due = [call for needed, call in self._behind_mark if needed <= offset]
        self._behind_mark = [each for each in self._behind_mark if each[0] > offset]
        for call in due:
            call()

    @contextmanager
    def hold_removals(self) -> Iterator[None]:
        """In any thread: while it is open, no files of topics or stages go that the mark on disk speaks of. What was begun before is
        in that mark as removed."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def owe(self, what: object) -> None:
        """No mark may be stored until this is paid."""
        self._owed.add(what)

    def pay(self, what: object) -> None:
        self._owed.discard(what)
        self._unpaid.discard(what)

    def behind_mark(self, call: Callable[[], None]) -> None:
        """Call when a mark has what was read or confirmed so far."""
        self._behind_mark.append((self.replica.fold.next, call))

    def _end_with(self, reason: str) -> None:
        if not self._over:
            self._over = True
            self._report("node_ended", {"node": self.replica.node, "reason": reason})
            self._look_at_role()
            self._ended(reason)

    # -- what others ask about it --------------------------------------------------------------------------------------

    @property
    def role(self) -> NodeRole:
        return NodeRole.ENDED if self._over else ROLES[self.replica.state]

    @property
    def leader_node(self) -> LeaderNode | None:
        """Who leads, as far as this node knows; None: nobody has claimed yet, or nothing was heard for longer than a leader may be silent."""
        fold, role = self.replica.fold, self.role
        if role is not NodeRole.LEADER and (
            not fold.node
            or fold.instance == self.replica.instance
            or self.replica.silent_us(self._scheduler.monotonic()) >= self.replica.timing.silence_us
        ):
            return None
        return LeaderNode(fold.node, fold.host)

    def on_role_change(self, call: Callable[[], None]) -> None:
        """Call whenever `role` or `leader_node` is another one, on the loop."""
        self._role_watchers.append(call)

    def _look_at_role(self) -> None:
        found = (self.role, self.leader_node)
        if found != self._role_seen:
            self._role_seen = found
            for call in self._role_watchers:
                call()

    def status(self) -> NodeStatus:
        replica, role = self.replica, self.role
        lag = replica.unconfirmed if role is NodeRole.LEADER else max(self._wal.end - replica.fold.next, 0)
        seconds = (self._scheduler.monotonic() - self._caught_up) / 1e6 if lag and role is not NodeRole.LEADER else 0.0
        place = (replica.fold.epoch, self.leader_node, replica.fold.next, self.synced)
        age = self.age_us()
        weak, old = tuple(self._wal.weaknesses), None if age is None else age / 1e6
        wal = (max(self._wal.begin, self._begin_told), max(self._wal.end, replica.fold.next))
        return NodeStatus(replica.node, role, *place, lag, seconds, weak, old, *wal)

    def may_answer(self) -> bool:
        return self.replica.may_answer(self._scheduler.monotonic())

    def age_us(self) -> int | None:
        """How old the state may be that readers of this node see; None: not known yet. While nobody is known to lead, it counts from
        the last record that was read: a broker of Kafka that is cut off from the others would name an old end."""
        monotonic, freshness = self._scheduler.monotonic(), self._freshness
        if self.replica.may_answer(monotonic):
            return 0
        freshness.look(self.replica.fold.next)
        if freshness.since is None:
            return None
        age = monotonic - freshness.since
        return age if self.leader_node is not None else max(age, self.replica.silent_us(monotonic))

    def partitions_of(self, topic_id: int) -> list[Partition]:
        """Those of a topic that the WAL has, to be read; [] if there is none."""
        return [] if topic_id in self._deleted else list(self._topics.get(topic_id, []))

    def _local_failed(self, error: StorageError) -> None:
        self._end_with(f"{error.code}: this node cannot write what the WAL has confirmed: {error}")

    stage_failed = _local_failed

    def close(self, done: Callable[[], None]) -> None:
        def closed() -> None:
            self._over = True
            self._wal.close()
            done()

        def shut() -> None:
            """Nothing else is shipped any more."""
            if self.successor is None or not self.replica.leads:
                closed()
            else:
                self.replica.release(self.successor, self._scheduler.monotonic())
                self._when_confirmed(self._scheduler.monotonic() + self.replica.timing.lease_us, closed)

        self.stages.stop()
        if not self.replica.leads:  # a leader still writes what it took; a follower reads no more, and does not claim
            self._over = True
            self._wal.stop_reading()
        super().close(shut)

    def _when_confirmed(self, until: int, call: Callable[[], None]) -> None:
        if not self.replica.unconfirmed or self._scheduler.monotonic() >= until:
            call()
        else:
            self._scheduler.later(RELEASE_US, partial(self._when_confirmed, until, call))

    # -- what the replica asks for -------------------------------------------------------------------------------------

    def claim(self, record: bytes) -> None:
        self._wal.produce(record, self._claimed)

    def _claimed(self, offset: int, error: str) -> None:
        if error:
            self.replica.claim_unanswered(self._scheduler.monotonic())
        else:
            self.replica.claim_answered(offset)

    def produce(self, sequence: int, record: bytes) -> None:
        self._wal.produce(record, partial(self._produced, sequence))

    def _produced(self, sequence: int, offset: int, error: str) -> None:
        if self._over:
            return
        if error:
            self.replica.write_failed(sequence, error)
        else:
            self.replica.answered(sequence, offset, self._scheduler.monotonic())

    def read_from(self, offset: int) -> None:
        """At a start one record is read again: a WAL that was restored from a backup may have grown beyond this offset since."""
        self._asking = False  # an answer to the reading before does not come any more
        again = self._read_last and offset > 0
        self._wal.read_from(offset - again, self._read, partial(self._reading_failed, offset), self._is_full)

    def _reading_failed(self, offset: int, error: StorageError) -> None:
        if self._read_last and offset > 0:  # it may be trimmed, and the one behind it not
            self._read_last = False
            self.read_from(offset)
        else:
            self._end_with(str(error))

    def _is_last(self, offset: int, record: bytes) -> bool:
        """Is it the record that was read last before this start? Raises WalReplaced, if another one is in its place."""
        fold, self._read_last = self.replica.fold, False
        if offset != fold.next - 1:
            return False
        if digest(record) != fold.last:
            raise WalReplaced(
                f"the WAL has another record at offset {offset} than the one that this node has read there",
                hint="the WAL was restored from a backup, or made anew: make this node's data directory anew from a peer",
            )
        return True

    def _is_full(self) -> bool:
        """Is so much read and not written that reading must wait?"""
        return self.unsynced_bytes > limits.UNSYNCED_BYTES_MAX

    def stop_reading(self) -> None:
        self._wal.stop_reading()

    def _read(self, offset: int, record: bytes) -> None:
        if self._over:
            return
        try:
            if self._read_last and self._is_last(offset, record):
                return
            self.replica.read(offset, record, self._scheduler.monotonic())
        except QuintetError as error:
            self._end_with(str(error))

    def confirmed(self, sequence: int) -> None:
        self._shipping.confirmed(sequence)

    def lead(self) -> None:
        self._report("node_leads", {"node": self.replica.node, "epoch": self.replica.epoch})
        self._when_written()

    def _when_written(self) -> None:
        """The broker reads its tables at its start: what was applied must be in them. It answers: there must be a lease."""
        partitions = (partition for found in self._topics.values() for partition in found)
        occupied = any(isinstance(partition, CellPartition) and partition.is_occupied for partition in partitions)
        if occupied or self.stages.is_occupied or not self.may_answer():
            self._scheduler.later(TICK_US, self._when_written)
        elif not self._over:
            self._leading()

    def step_down(self, reason: str) -> None:
        self._end_with(reason)

    def apply(self, offset: int, record: WalRecord) -> None:
        if record.epoch != self._stage_epoch:
            self._stage_epoch = record.epoch
            self.stages.drop_unsealed()
        for entry in record.entries:
            self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        kind = entry.kind
        if kind is EntryKind.BATCH:
            partition = self._partition_of(entry)
            partition.apply(bytearray(entry.body))
            self._freshness.touched(partition)
        elif kind is EntryKind.TOPIC:
            spec = self._specs[entry.topic_id] = self._applied[entry.topic_id] = spec_of(entry)
            if spec.id in self._topics:
                super().alter_topic(spec)
            else:
                super().open_topic(spec)
        elif kind is EntryKind.TOPIC_DELETED:
            self._specs.pop(entry.topic_id, None)
            self._delete_behind_mark(entry.topic_id)
        elif kind is EntryKind.PURGED:
            self._apply_purge(self._partition_of(entry), offset_of(entry))
        elif kind is EntryKind.BEGUN:
            self._partition_of(entry).begin_at(offset_of(entry))
        elif kind is EntryKind.STAGE:
            self.stages.apply_part(*stage_of(entry))
        elif kind is EntryKind.STAGE_SEALED:
            self.stages.apply_sealed(*stage_of(entry)[:2])
        elif kind is EntryKind.STAGES_REMOVED:
            self.stages.apply_removed(removed_of(entry))
        elif kind is EntryKind.PLACED:
            self._place_as(placement_of(json.loads(entry.body)))

    def _place_as(self, placement: Placement) -> None:
        if placement.layout != self._layout:
            raise OtherLayout(
                f"the WAL was made for {placement.layout}, and this node has {self._layout or 'one cell'}",
                hint="cell.cells, cell.places and delivery.dead_letter_suffix must be the same on all nodes, and stay so",
            )
        self.placement = placement

    def _partition_of(self, entry: Entry) -> CellPartition:
        partitions = self._topics.get(entry.topic_id, [])
        partition = partitions[entry.partition] if entry.partition < len(partitions) else None
        if not isinstance(partition, CellPartition):
            what = entry.kind.name.lower().replace("_", " ")
            raise CorruptData(
                f"the WAL has an entry ({what}) for partition {entry.partition} of topic {entry.topic_id}, which is not there"
            )
        return partition

    def _apply_purge(self, partition: CellPartition, end: int) -> None:
        if end > partition.end:
            raise CorruptData(
                f"{partition.directory}: the WAL purges below offset {end}, the files end at {partition.end}",
                hint="files are missing: make this node's data directory anew",
            )
        if end == partition.end:
            partition.end_segment()
        self._purge_below(partition, end, lambda error: None)

    def _purge_below(self, partition: CellPartition, end: int, done: Callable[[Exception | None], None]) -> None:
        """The purge counts: no mark has it before the files are gone."""
        what = (partition, end)
        self.owe(what)

        def gone(error: Exception | None) -> None:
            if error is None or partition.topic_id not in self._applied:  # its topic is deleted
                self.pay(what)
            elif not isinstance(error, ShuttingDown):  # then no mark has it, and it is done at the next start
                self._local_failed(error if isinstance(error, StorageError) else StorageError(str(error)))
            done(error)

        partition.purge_below(end, gone)

    def _delete_behind_mark(self, topic_id: int) -> None:
        """The deletion counts: the files go when a mark says so too."""
        self._applied.pop(topic_id, None)
        self._deleted.add(topic_id)
        for partition in self._topics.get(topic_id, []):
            self._freshness.dropped(partition)
        self.behind_mark(partial(EmbeddedLog.delete_topic, self, topic_id))

    def _topic_path(self, topic_id: int) -> str:
        return os.path.dirname(self._path(topic_id, 0))

    def topic_ids(self) -> list[int]:
        """Without those whose files wait to be removed: the broker would make them again."""
        return [topic_id for topic_id in super().topic_ids() if topic_id not in self._deleted]

    # -- what the broker asks for --------------------------------------------------------------------------------------

    def _ship(self, entries: Sequence[Entry]) -> int:
        return self.replica.ship(entries, self._scheduler.monotonic())

    def place(self, placement: Placement, then: Callable[[], None]) -> None:
        """While it leads: put down where this cell belongs; then() when it counts."""

        def counts() -> None:
            self.placement = placement
            then()

        self._shipping.change(placed(placement), counts)

    def _is_packable(self, spec: TopicSpec) -> bool:
        """A packed segment becomes durable by the journal, which a cell does not use: the WAL is its journal."""
        return False

    def open_topic(self, spec: TopicSpec) -> list[Partition]:
        self._announce(spec)
        return super().open_topic(spec)

    def _announce(self, spec: TopicSpec) -> None:
        """What is in memory stays on the leader, and is empty after a take-over, as after a restart."""
        if spec.durability != "memory" and self._specs.get(spec.id) != spec:
            self._specs[spec.id] = spec
            self._shipping.change(topic(spec), partial(self._applied.__setitem__, spec.id, spec))

    def alter_topic(self, spec: TopicSpec) -> None:
        """A partition in memory that becomes durable ships what it holds (`CellPartition.adopt`), behind the spec."""
        self._announce(spec)
        super().alter_topic(spec)

    def when_durable(self, topic_id: int, done: Callable[[], None]) -> None:
        partitions = [found for found in self._topics.get(topic_id, []) if isinstance(found, CellPartition)]
        left = len(partitions) + 1

        def one_idle() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for partition in partitions:
            partition.when_idle(one_idle)
        one_idle()

    def ship_stage(self, entry: Entry, then: Callable[[], None]) -> None:
        self._shipping.change(entry, then)

    def purge_topic(self, topic_id: int, done: Callable[[Exception | None], None]) -> None:
        if topic_id not in self._specs:
            super().purge_topic(topic_id, done)
            return
        partitions = [found for found in self._topics[topic_id] if isinstance(found, CellPartition)]
        left, first = len(partitions), list[Exception]()

        def one_done(error: Exception | None) -> None:
            nonlocal left
            left -= 1
            if error is not None:
                first.append(error)
            if not left:
                done(first[0] if first else None)

        for partition in partitions:
            partition.when_idle(partial(self._purge, partition, one_done))

    def _purge(self, partition: CellPartition, done: Callable[[Exception | None], None]) -> None:
        """Nothing is under way: what is appended from here on is behind the entry, and begins a segment."""
        end = partition.end
        if partition.failure is not None or partition.start >= end:
            done(partition.failure)
            return
        partition.end_segment()
        count = partial(self._purge_below, partition, end, done)
        self._shipping.change(purged(partition.topic_id, partition.number, end), count)

    def delete_topic(self, topic_id: int) -> None:
        if self._specs.pop(topic_id, None) is None:
            super().delete_topic(topic_id)
            return
        partitions = [found for found in self._topics.get(topic_id, []) if isinstance(found, CellPartition)]
        left = len(partitions)
        delete = partial(self._delete_behind_mark, topic_id)

        def one_idle() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._shipping.remove(topic_deleted(topic_id), delete)

        for partition in partitions:
            partition.refuse_appends()
        for partition in partitions:
            partition.when_idle(one_idle)
