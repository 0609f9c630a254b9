"""Syncs the last segment of a partition without anybody waiting for it, and keeps the durable mark.

The part of FilePartition that turns what was written into what is durable in the segment itself: for topics that promise a sync
within a moment, before the file is closed, and before the journal forgets what it stands for. The mark follows only syncs.
"""

from functools import partial
from typing import Final

from quintet.log.embedded.files.segment import Segment
from quintet.log.embedded.partitions.links import Links
from quintet.log.embedded.partitions.reading import ReadablePartition
from quintet.log.embedded.partitions.shared import Shared
from quintet.log.embedded.partitions.states import SYNC_STEPS, State, SyncEvent, SyncState
from quintet.log.embedded.partitions.writer import Writer
from quintet.log.embedded.recovery.directories import Mark
from quintet.model.errors import PartitionFailed, StorageError

SYNC_INTERVAL_US: Final = 100_000  # of "interval" topics

_DIRTY = frozenset((SyncState.DIRTY, SyncState.SYNCING_DIRTY))
_SYNCING: Final = SyncState.SYNCING  # this state and the one above it


class SyncedPartition(ReadablePartition):
    """What it asks of the partition it is part of: `is_failed`, `sync_ended`, and to be an AnchoredPartition."""

    __slots__ = ("_last_sync", "_state", "_sync_state", "_writer", "links", "mark", "number", "topic_id")

    def __init__(self, shared: Shared, directory: str, segments: list[Segment], visible: int) -> None:
        super().__init__(shared, directory, segments, visible)
        self.links: Links
        self.mark: Mark | None = None
        self.number: int
        self.topic_id: int
        self._last_sync = 0
        self._state = State.IDLE
        self._sync_state = SyncState.CLEAN
        self._writer: Writer | None = None  # most partitions are idle: none until it is needed

    def _open_writer(self) -> Writer:
        """Its writer, made if there is none yet."""
        raise NotImplementedError

    @property
    def is_failed(self) -> bool:
        """Read-only until a restart?"""
        raise NotImplementedError

    def _sync_ended(self, failure: StorageError | None) -> None:
        """Go on, or fail."""
        raise NotImplementedError

    @property
    def _dirty(self) -> bool:
        """Was something written that no sync covers, not even one under way?"""
        return self._sync_state in _DIRTY

    @property
    def _syncing(self) -> bool:
        return self._sync_state >= _SYNCING

    def _on_sync(self, event: SyncEvent) -> None:
        self._sync_state = SYNC_STEPS[self._sync_state, event]

    def is_synced(self, offset: int) -> bool:
        """Is everything below offset durable in the segments themselves?"""
        return self.mark is not None and self.mark.next_offset >= offset

    def _move_mark(self) -> None:
        segment = self.segments[-1]
        self._set_mark(Mark(segment.base, segment.end, segment.next_offset))

    def _set_mark(self, mark: Mark) -> None:
        self.mark = mark
        self._shared.marks_moved.add(self)
        self.links.mark_durable(mark.next_offset)

    def sync_if_due(self, monotonic: int) -> bool:
        """The syncs of "interval" topics; False when there is nothing left to sync."""
        self.catch_up()
        if self._dirty and monotonic - self._last_sync >= SYNC_INTERVAL_US:
            self._last_sync = monotonic
            self.sync()
        return self._dirty and not self.is_failed

    def sync(self) -> None:
        """Make what was written durable, without anybody waiting for it."""
        begun = self.begin_sync()
        if begun is not None:
            writer, segment, mark = begun
            self._shared.scheduler.offload(partial(writer.sync, segment), partial(self.synced, mark))

    def begin_sync(self) -> tuple[Writer, Segment, Mark] | None:
        """What to sync, and the mark once it is; None if there is nothing to sync or not now. `synced` must follow."""
        self.catch_up()
        if self._sync_state is not SyncState.DIRTY or self._state is State.WRITING or self.is_failed:
            return None
        segment = self.segments[-1]
        if segment.handle < 0 or not self.flush_late():
            return None
        self._on_sync(SyncEvent.BEGUN)
        self.links.begin_sync()
        return self._writer or self._open_writer(), segment, Mark(segment.base, segment.end, segment.next_offset)

    def synced(self, mark: Mark, error: StorageError | BaseException | None) -> None:
        self._on_sync(SyncEvent.ENDED)
        if error is None:
            self._shared.stats["fsyncs"] += 1
            self._set_mark(mark)
            self._sync_ended(None)
        else:
            failure = error if isinstance(error, StorageError) else PartitionFailed(f"{self.directory}: {error!r}")
            self._sync_ended(failure)
