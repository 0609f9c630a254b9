"""Keeps one partition of a cell: on the leader it writes what the WAL has confirmed, on a follower what the WAL holds.

Chunks go through two more places than in an embedded log. What is shipped or confirmed is apart from what is staged, so that a batch
staged meanwhile is never written with it.

    leader    append -> pending -> _chunks -> _shipped -> _confirmed -> writer
    follower  apply ------------------------------------> _confirmed -> writer

Whatever the topic's durability, a batch is visible and acknowledged when it is confirmed and written: durable it is in the WAL. The files are
synced behind it, SYNC_US apart, and the mark of the node (mark.py) follows only syncs. A power cut may take any part of what was
not synced, also from the middle: a start cuts the last file at its first unsound byte (recovery, `refilled`), and the WAL is read again
from the mark on, which is before that.

Segments end where each node likes, but for two places that the WAL names: where a partition was purged, and where one that had been in
memory begins. A segment begins at both on every node.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.log.base import TopicSpec
from quintet.log.chain import genesis
from quintet.log.embedded.compact import remove_segments
from quintet.log.embedded.files.segment import HEADER_BYTES, Segment, new_seed
from quintet.log.embedded.partitions.links import NO_LINKS, ChainedLinks, ChainHead
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.roles import Chunk
from quintet.log.embedded.partitions.shared import Shared
from quintet.log.embedded.partitions.states import Action, Event, row
from quintet.log.embedded.recovery.directories import Opened
from quintet.log.replicated.records import begun
from quintet.log.replicated.shipping import Shipping
from quintet.model.batch import CHAIN, RecordBatch, kind_of
from quintet.model.errors import CorruptData, ShuttingDown, StorageError

SYNC_US: Final = 500_000  # between two syncs of a partition that is written to: a mark waits for them, and nobody else

_CHUNKS_WAIT, _PENDING_WAITS, _OFFERED = row(Event.CHUNKS_WAIT), row(Event.PENDING_WAITS), row(Event.OFFERED)


class CellPartition(FilePartition):
    """See FilePartition."""

    __slots__ = ("_confirmed", "_shipped")

    def __init__(self, shared: Shared, spec: TopicSpec, number: int, directory: str, opened: Opened) -> None:
        self._shipped: list[Chunk] = []
        self._confirmed: list[Chunk] = []
        super().__init__(shared, spec, number, directory, opened)
        self._strict, self._inline = False, True

    @property
    def loan(self) -> None:
        """Never lent: what the kernel appends would not go through the WAL."""
        return None

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

    def adopt(self, batches: list[RecordBatch], following: int) -> None:
        """The topic was in memory: what it held goes through the WAL, at its offsets, before anything that is appended now. It is
        visible again when it is written; until then `visible` is where it begins."""
        base = batches[0].base_offset if batches else following
        self._end, self._visible = following, base
        if base:
            self._shipping.change(begun(self.topic_id, self.number, base), lambda: None)
            self._chunks = [*self._chunks, self._first_chunk(base)]
        for batch in batches:
            if self._plan is None:
                self._begin(batch.base_offset, batch.timestamp)
            assert self._plan is not None
            buffer = bytearray(batch.buffer)
            self.links.seal(buffer, batch.base_offset, batch.timestamp, self._plan.seed)
            chunk = Chunk(self._plan, self._plan_end)
            chunk.buffers.append(buffer)
            self._plan_end = chunk.end = chunk.end + len(buffer)
            self._chunks = [*self._chunks, chunk]
            self._last_time = max(self._last_time, batch.timestamp)
        self._shared.upkeep.activate(self)
        self._flush()

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
        self._take_links_of(batch)
        plan = self._plan
        if plan is None or (self._plan_end + len(batch) > self.spec.segment_bytes and self._plan_end > HEADER_BYTES):
            plan = self._begin(base, found.timestamp)
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

    def _take_links_of(self, batch: bytearray) -> None:
        """Whether a topic is chained is decided when a partition is opened, by what its topic promises then. That may have changed
        since, and the leader may have opened it at another time: what it does counts, until a chain has begun."""
        chained = bool(kind_of(batch)[1] & CHAIN)
        if chained and self.links is NO_LINKS:
            if self._occupied():
                raise CorruptData(
                    f"{self.directory}: a chain begins while batches without links are written",
                    hint="start this node again: it goes on from here",
                )
            head = ChainHead(0, genesis(self.topic_id, self.number))
            self.links = ChainedLinks(self._shared.chain.key, head, self, self._shared.heads_moved)
            self._plan = None
        elif (
            not chained
            and self.links is not NO_LINKS
            and self.links.start().link == genesis(self.topic_id, self.number)
        ):
            self.links = NO_LINKS
            self._plan = None

    def begin_at(self, base: int) -> None:
        """The partition was in memory on the leader, and begins here. Read again, it has begun already."""
        if self._end >= base:
            return
        if self._end or self.segments:
            raise CorruptData(
                f"{self.directory}: the WAL begins it at offset {base}, the files end at {self._end}",
                hint="files are missing: make this node's data directory anew",
            )
        self._end = self._visible = base
        self._confirmed.append(self._first_chunk(base))
        self._shared.upkeep.activate(self)
        self._shipping.touched.add(self)
        self._flush()

    # -- both ----------------------------------------------------------------------------------------------------------

    def _commit(self, chunk: Chunk, synced: bool) -> None:
        super()._commit(chunk, synced)
        self._shared.upkeep.sync_soon(self)

    def sync_if_due(self, monotonic: int) -> bool:
        if self._dirty and monotonic - self._last_sync >= SYNC_US:
            self._last_sync = monotonic
            self.sync()
        return self._dirty and not self.is_failed

    def _fail(self, error: StorageError, failed: list[Chunk]) -> None:
        """What the WAL has cannot be taken back: a node that cannot write it takes no further part. It ends first: whoever waits would
        be told that nothing was kept, and the next leader has it."""
        self._shipping.failed(error)
        self._chunks = [*self._confirmed, *self._shipped, *self._chunks]
        self._confirmed, self._shipped = [], []
        super()._fail(error, failed)

    @property
    def is_occupied(self) -> bool:
        return self._occupied()

    def _occupied(self) -> bool:
        return bool(self._confirmed or self._shipped) or super()._occupied()

    def seal_active(self) -> None:
        if not self._confirmed and not self._shipped:
            super().seal_active()

    def _begin(self, base: int, timestamp: int) -> Segment:
        plan = self._plan = Segment(self.directory, base, new_seed(self._shared.disk))
        self._plan_end = HEADER_BYTES
        plan.chain, plan.begun = self.links.start(), timestamp
        return plan

    def _first_chunk(self, base: int) -> Chunk:
        """Of a partition that begins behind offset 0: a file that has no batch yet keeps the offset."""
        return Chunk(self._begin(base, self._shared.scheduler.now()), HEADER_BYTES)

    def end_segment(self) -> None:
        """The next batch begins a segment."""
        if self._plan_end > HEADER_BYTES:
            self._plan = None

    def purge_below(self, end: int, done: Callable[[Exception | None], None]) -> None:
        """Remove what is below `end`, where a segment begins, or the partition ends; done(error) when it is gone for good."""
        again = partial(self.purge_below, end, done)
        if self._failure is not None:
            done(self._failure)
        elif self.start >= end:
            done(None)
        elif self.working or not self.segments or (self.segments[-1].base < end and self._occupied()):
            self.when_idle(again)
        elif self.segments[-1].base < end and self.segments[-1].end > HEADER_BYTES and self._visible == end:
            self.begin_empty()
            self.when_idle(again)
        elif any(segment.base < end < segment.next_offset for segment in self.segments):
            done(CorruptData(f"{self.directory}: was purged below offset {end}, and no segment begins there"))
        else:
            self.working = True
            self.cache.clear()
            remove_segments(self._shared, self, [each for each in self.segments[:-1] if each.next_offset <= end], done)
