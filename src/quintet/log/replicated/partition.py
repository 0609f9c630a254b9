"""Keeps one partition of a cell: on the leader it writes what the WAL has confirmed, on a follower what the WAL holds.

Chunks go through two more places than in an embedded log. What is shipped or confirmed is apart from what is staged, so that a batch
staged meanwhile is never written with it.

    leader    append -> pending -> _chunks -> _shipped -> _confirmed -> writer
    follower  apply ------------------------------------> _confirmed -> writer

Whatever the topic's durability, each batch is synced before the next one is written: a power cut then leaves a whole prefix, and the
WAL has the rest. In a file that was written otherwise a batch could be lost in the middle, where nobody would read it again.
"""

from quintet.log.base import TopicSpec
from quintet.log.embedded.files.segment import HEADER_BYTES, Segment, new_seed
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.roles import Chunk
from quintet.log.embedded.partitions.shared import Shared
from quintet.log.embedded.partitions.states import Action, Event, row
from quintet.log.embedded.recovery.directories import Opened
from quintet.log.replicated.shipping import Shipping
from quintet.model.batch import RecordBatch
from quintet.model.errors import CorruptData, ShuttingDown, StorageError

_CHUNKS_WAIT, _PENDING_WAITS, _OFFERED = row(Event.CHUNKS_WAIT), row(Event.PENDING_WAITS), row(Event.OFFERED)


class CellPartition(FilePartition):
    """See FilePartition."""

    __slots__ = ("_confirmed", "_shipped")

    def __init__(self, shared: Shared, spec: TopicSpec, number: int, directory: str, opened: Opened) -> None:
        self._shipped: list[Chunk] = []
        self._confirmed: list[Chunk] = []
        super().__init__(shared, spec, number, directory, opened)
        self._strict, self._inline = True, False

    @property
    def _shipping(self) -> Shipping:
        committer = self._shared.committer
        assert isinstance(committer, Shipping)
        return committer

    # -- the leader ----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._confirmed:
            if self._on(_CHUNKS_WAIT) is Action.WRITE:
                self._on(_OFFERED)
                self._shipping.offer_confirmed(self)
        elif self._chunks:
            if self._on(_CHUNKS_WAIT) is Action.WRITE:
                self._on(_OFFERED)
                self._shipping.offer_staged(self)
        elif self._pending:
            self._on(_PENDING_WAITS)

    def take_staged(self) -> list[Chunk]:
        self._shipping.touched.add(self)
        if self._pending:
            self._gather()
        self._shipped, self._chunks = self._chunks, []
        return self._shipped

    def confirm(self) -> None:
        self._confirmed, self._shipped = self._shipped, []
        self.write_direct()

    def write_direct(self) -> None:
        staged, self._chunks = self._chunks, self._confirmed
        super().write_direct()
        self._confirmed, self._chunks = self._chunks, staged  # those that are put off are still confirmed

    def refuse_appends(self) -> None:
        """The topic is about to be deleted: what was appended before is shipped, and nothing after it."""
        if self._failure is None:
            self._failure = ShuttingDown(f"{self.directory}: the topic is being deleted")

    # -- a follower ----------------------------------------------------------------------------------------------------

    def apply(self, batch: bytearray) -> None:
        """Write a batch that the leader sealed. One that is there already is left alone: the WAL may be read again."""
        found = RecordBatch(batch)
        base, following = found.base_offset, found.next_offset
        if base < self._end:
            return
        if base > self._end:
            raise CorruptData(
                f"{self.directory}: the WAL goes on at offset {base}, the files end at {self._end}",
                hint="files are missing: make this node's data directory anew",
            )
        plan = self._plan
        if plan is None or (self._plan_end + len(batch) > self.spec.segment_bytes and self._plan_end > HEADER_BYTES):
            plan = self._plan = Segment(self.directory, base, new_seed(self._shared.disk))
            self._plan_end = HEADER_BYTES
            plan.chain, plan.begun = self.links.start(), found.timestamp
        if not self.links.accept(batch, plan.seed):
            raise CorruptData(
                f"{self.directory}: the link of the batch at offset {base} does not continue this node's chain",
                hint="[audit] must be the same on all nodes; if it is, the files were changed: make the data directory anew",
            )
        self._last_time = max(self._last_time, found.timestamp)
        self._used = self._shared.upkeep.monotonic
        self._shared.upkeep.activate(self)
        if not self._confirmed:
            self._confirmed = []  # what it was may be shared (FilePartition)
        confirmed = self._confirmed
        if not confirmed or confirmed[-1].segment is not plan or self._strict:
            confirmed.append(Chunk(plan, self._plan_end))
        chunk = confirmed[-1]
        chunk.buffers.append(batch)
        chunk.owed += len(batch)
        self._shared.unsynced += len(batch)
        self._plan_end = chunk.end = chunk.end + len(batch)
        self._end = following
        self._shipping.touched.add(self)
        self._flush()

    # -- both ----------------------------------------------------------------------------------------------------------

    def _fail(self, error: StorageError, failed: list[Chunk]) -> None:
        """What the WAL has cannot be taken back: a node that cannot write it takes no further part."""
        self._chunks = [*self._confirmed, *self._shipped, *self._chunks]
        self._confirmed, self._shipped = [], []
        super()._fail(error, failed)
        self._shipping.failed(error)

    @property
    def is_occupied(self) -> bool:
        return self._occupied()

    def _occupied(self) -> bool:
        return bool(self._confirmed or self._shipped) or super()._occupied()

    def seal_active(self) -> None:
        if not self._confirmed and not self._shipped:
            super().seal_active()
