"""Reads a partition in files: from the tail cache, from the page cache, from disk; and says what is where and who watches.

The part of FilePartition that changes nothing of the log. Reading itself is files/reader.py.
"""

import os
from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.log.base import Fetched, SegmentFile
from quintet.log.embedded.files import reader
from quintet.log.embedded.files.recent import Place
from quintet.log.embedded.files.segment import HEADER_BYTES, Segment, adopt_index
from quintet.log.embedded.partitions.shared import Shared, TailCache
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import CorruptData
from quintet.model.scheduler import call_each

READ_NOW_BYTES: Final = 4 * limits.MIB

Unwritten = tuple[int, list[RecordBatch]]  # where in the segment, and the batches; there is at least one


class ReadablePartition:
    """See log.base.Partition for what each public method promises."""

    __slots__ = ("_pending_bytes", "_shared", "_visible", "_watchers", "cache", "directory", "segments")

    def __init__(self, shared: Shared, directory: str, segments: list[Segment], visible: int) -> None:
        self._shared = shared
        self.directory = directory
        self.segments = segments
        self.cache: TailCache = shared.no_cache  # its own, once there is something to keep
        self._visible = visible
        self._pending_bytes = 0
        # Most partitions are idle: no list until it is needed.
        self._watchers: list[Callable[[], None]] | tuple[()] = ()

    @property
    def start(self) -> int:
        return self.segments[0].base if self.segments else self.visible

    @property
    def visible(self) -> int:
        return self._visible

    @property
    def size(self) -> int:
        """Bytes of batches kept on disk."""
        self.catch_up()
        return sum(segment.end for segment in self.segments)

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        if offset >= self.visible:
            return []
        found = self.cache.read(offset, max_bytes)
        if found is None and max_bytes <= reader.SINGLE_BYTES_MAX and self.segments:
            batch = self._shared.read_buffers.recent.find(_place_of(self._segment_of(offset)), offset)
            return None if batch is None else [batch]
        return found

    def _segment_of(self, offset: int) -> Segment:
        return self.segments[max(bisect_right(self.segments, offset, key=_base_of) - 1, 0)]

    def fetch(self, offset: int, max_bytes: int, done: Fetched) -> None:
        offset = max(offset, self.start)
        if offset >= self.visible:
            self._shared.scheduler.soon(partial(done, [], None))
            return
        unwritten = None if self.flush_late() else self.unwritten()
        if unwritten is not None and offset >= unwritten[1][0].base_offset:
            self._shared.scheduler.soon(partial(done, _from(offset, max_bytes, unwritten[1]), None))
            return
        self._shared.stats["fetches"] += 1
        first = max(bisect_right(self.segments, offset, key=_base_of) - 1, 0)
        shared = self._shared
        if max_bytes <= reader.SINGLE_BYTES_MAX:
            segment = self.segments[first]
            batch = reader.read_one(shared.disk, shared.read_buffers, self._view(segment, unwritten), offset)
            if batch is not None:
                shared.read_buffers.recent.keep(_place_of(segment), batch)
                shared.scheduler.soon(partial(done, [batch], None))
                return
        if max_bytes <= reader.WARM_BYTES_MAX:
            view = self._view(self.segments[first], unwritten)
            batches = reader.read_warm(shared.disk, shared.read_buffers, view, offset, max_bytes)
            if batches:
                shared.scheduler.soon(partial(done, batches, None))
                return
        views = [self._view(segment, unwritten) for segment in self.segments[first:]]
        work = partial(reader.read, shared.disk, shared.read_buffers, views, offset, max_bytes)
        shared.scheduler.offload(work, partial(self._fetched, done))

    def _view(self, segment: Segment, unwritten: Unwritten | None) -> reader.View:
        """As it is in the file: without what that has not taken."""
        view = reader.View(segment)
        if unwritten is not None and segment is self.segments[-1]:
            view.end, view.next_offset = unwritten[0], unwritten[1][0].base_offset
        return view

    def unwritten(self) -> Unwritten | None:
        """What is visible and durable in the journal, and the last file did not take: readers get it from here, also on a full disk."""
        return None

    def catch_up(self) -> None:
        """Have the segments say what is visible."""

    def flush_late(self) -> bool:
        """Have the files hold everything that is visible. False: they do not, and `failure` says why."""
        return True

    def _check_flushed(self) -> None:
        if not self.flush_late() and self.failure is not None:
            raise self.failure

    @property
    def failure(self) -> Exception | None:
        """Why it refuses appends, or None."""
        return None

    def read_now(self, offset: int) -> list[RecordBatch]:
        self._check_flushed()
        offset = max(offset, self.start)
        first = max(bisect_right(self.segments, offset, key=_base_of) - 1, 0)
        views = [reader.View(segment) for segment in self.segments[first:]]
        found: list[RecordBatch] = []
        try:
            result = reader.read(self._shared.disk, self._shared.read_buffers, views, offset, READ_NOW_BYTES)
        except OSError as error:
            raise CorruptData(f"{self.directory}: cannot be read: {error.strerror or error}") from error
        self._fetched(lambda batches, _: found.extend(batches), result)
        return found

    def files(self, first: int, last: int) -> list[SegmentFile]:
        self._check_flushed()
        found = []
        last = min(last, self.visible)
        for segment in self.segments[max(bisect_right(self.segments, first, key=_base_of) - 1, 0) :]:
            if segment.base >= last or first >= last:
                break
            if segment.next_offset > first:
                place = segment.index.place(first) if segment.index is not None else None
                position = place[1] if place is not None else HEADER_BYTES
                path = os.path.abspath(segment.path)
                found.append(SegmentFile(path, segment.seed, position, segment.base, segment.next_offset))
        return found

    def bytes_from(self, offset: int) -> int:
        self.catch_up()
        total = self._pending_bytes
        for segment in reversed(self.segments):
            if segment.base <= offset:
                span = max(segment.next_offset - segment.base, 1)
                return total + segment.end * max(segment.next_offset - offset, 0) // span
            total += segment.end
        return total

    def offset_at(self, timestamp: int) -> int:
        self.catch_up()
        for segment in self.segments:
            if 0 <= segment.max_timestamp < timestamp:
                continue
            index = segment.index
            if index is None or index.first > HEADER_BYTES:
                return segment.base
            found = index.offset_at(timestamp)
            if found is not None:
                return found
        return self.visible

    def watch(self, call: Callable[[], None]) -> None:
        if isinstance(self._watchers, list):
            self._watchers.append(call)
        else:
            self._watchers = [call]

    def unwatch(self, call: Callable[[], None]) -> None:
        if isinstance(self._watchers, list) and call in self._watchers:
            self._watchers.remove(call)

    def _notify(self) -> None:
        if self._watchers:
            call_each(self._shared.scheduler, tuple(self._watchers))

    def _fetched(self, done: Fetched, result: reader.Found | BaseException) -> None:
        if isinstance(result, BaseException):
            done([], CorruptData(f"{self.directory}: cannot be read: {result}"))
            return
        for segment, index, stop in result.indexes:
            adopt_index(segment, index, stop)
        if result.damages:
            self._shared.quarantine(result.damages)
        done(result.batches, None)


def _from(offset: int, max_bytes: int, batches: list[RecordBatch]) -> list[RecordBatch]:
    """Those from this offset on, about so many bytes, at least one."""
    found: list[RecordBatch] = []
    for batch in batches:
        if batch.next_offset > offset and (max_bytes > 0 or not found):
            found.append(batch)
            max_bytes -= batch.length
    return found


def _place_of(segment: Segment) -> Place:
    return segment.path, segment.base, segment.seed


def _base_of(segment: Segment) -> int:
    return segment.base
