"""Reads records by offset, for doors whose clients fetch: batches, one record, or records that pass a filter.

Every function takes `done` and may call it before it returns (what was asked for is in memory) or later (it comes from
disk). A call reads and looks at a bounded amount, so that no request holds up the others: the answer says where to go on.
Who may read is decided before; groups and their positions are elsewhere.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from quintet.broker.slices import Slices, Steps
from quintet.broker.topics.filters import Filter
from quintet.broker.topics.seek import EVER, seek
from quintet.log.base import Fetched, Partition
from quintet.model.batch import RecordBatch, Row
from quintet.model.errors import OffsetNotFound, QuintetError
from quintet.model.tasks import start

READ_BYTES: Final = 1 << 20  # asked of the log at a time
SCAN_RECORDS_MAX: Final = 1_000  # looked at by one filtered fetch
SCAN_BYTES_MAX: Final = 4 << 20  # the same in bytes; a filter that costs more looks at less
FETCH_BATCHES_MAX: Final = 5_000  # of one fetch: about 1 us each, however small they are

# One record of a filtered fetch: (offset, key, value).
Match = tuple[int, bytes | None, bytes | None]
RowFound = Callable[[Row | None, Exception | None], None]
Scanned = Callable[[list[Match], int, Exception | None], None]
Peeked = Callable[[list[Row], int, Exception | None], None]
Consumed = Callable[[tuple[bytes | None, bytes | None] | None, Exception | None], None]
Offset = Callable[[int, Exception | None], None]


def read(partition: Partition, offset: int, max_bytes: int, done: Fetched) -> None:
    """Batches from the one that holds `offset` on, from memory or from disk. Below the start: from the start."""
    offset = max(offset, partition.start)
    found = partition.read(offset, max_bytes)
    if found is None:
        partition.fetch(offset, max_bytes, done)
    else:
        done(found, None)


def read_row(partition: Partition, offset: int, done: RowFound, view: bool = False) -> None:
    """The record at exactly this offset, or None: it is not there (any more). `view`: as of RecordBatch.row."""
    if not partition.start <= offset < partition.visible:
        done(None, None)
        return

    def found(batches: list[RecordBatch], error: Exception | None) -> None:
        done(row_at(batches, offset, view), error)

    read(partition, offset, 1, found)


def row_at(batches: list[RecordBatch], offset: int, view: bool = False) -> Row | None:
    """The record with this offset, if it is in one of them."""
    for batch in batches:
        if batch.base_offset <= offset < batch.next_offset:
            index = batch.index_of(offset)
            if index == batch.count:
                return None
            row = batch.row(index) if view else batch.rows(index, index + 1)[0]
            return row if row[0] == offset else None
    return None


class _Collector:
    """One fetch of batches under way: reads on until there is enough, or no more."""

    __slots__ = ("_batches", "_done", "_offset", "_partition", "_room_bytes", "_room_records", "_visible")

    def __init__(self, partition: Partition, offset: int, max_records: int, max_bytes: int, done: Fetched) -> None:
        self._partition = partition
        self._offset = max(offset, partition.start)
        self._visible = partition.visible  # what comes later is for the next call
        self._room_records = max_records
        self._room_bytes = max_bytes
        self._done = done
        self._batches: list[RecordBatch] = []

    def go(self) -> None:
        while self._offset < self._visible and self._has_room():
            size = min(self._room_bytes, READ_BYTES)
            found = self._partition.read(self._offset, size)
            if found is None:
                self._partition.fetch(self._offset, size, self._fetched)
                return
            if not self._take(found):
                break
        self._done(self._batches, None)

    def _has_room(self) -> bool:
        return self._room_records > 0 and self._room_bytes > 0 and len(self._batches) < FETCH_BATCHES_MAX

    def _fetched(self, batches: list[RecordBatch], error: Exception | None) -> None:
        if error is not None and not self._batches:
            self._done([], error)
        elif error is None and self._take(batches):
            self.go()
        else:
            self._done(self._batches, None)

    def _take(self, batches: list[RecordBatch]) -> bool:
        """False: there is nothing sound up to the end."""
        for batch in batches:
            if not self._has_room():
                break
            self._batches.append(batch)
            self._room_records -= batch.count - batch.index_of(self._offset)
            self._room_bytes -= batch.length
            self._offset = max(self._offset, batch.next_offset)
        return bool(batches)


def fetch(partition: Partition, offset: int, max_records: int, max_bytes: int, done: Fetched) -> None:
    """`done(batches, None)`: enough of them from `offset` on to hold max_records records or about max_bytes (at least
    one batch, if there is one), but no more than FETCH_BATCHES_MAX. The first may begin before `offset` and the last may hold more than was asked for: the
    caller cuts. Past the end there are none; below the start it goes on at the start."""
    _Collector(partition, offset, max_records, max_bytes, done).go()


class Patience(NamedTuple):
    """Where a long search runs in slices, and whether its caller still waits for it."""

    slices: Slices
    wanted: Callable[[], bool] = lambda: True


class _Scan:
    """One filtered fetch under way. A step looks at one record."""

    __slots__ = (
        "_bytes", "_done", "_filter", "_next", "_now", "_partition", "_patience", "_records", "_rows", "_visible",
        "_wanted",
    )  # fmt: skip

    def __init__(
        self, partition: Partition, offset: int, wanted: int, records: int, filter: Filter, now: int, done: Peeked,
        patience: Patience,
    ) -> None:  # fmt: skip
        self._partition = partition
        self._visible = partition.visible
        self._next = max(offset, partition.start) if offset < self._visible else offset
        self._wanted = wanted
        self._records = min(records, SCAN_RECORDS_MAX)
        self._bytes = min(SCAN_BYTES_MAX, filter.scan_bytes_max)
        self._filter = filter
        self._now = now
        self._done = done
        self._patience = patience
        self._rows: list[Row] = []

    def go(self) -> None:
        if not self._open():
            self._done(self._rows, self._next, None)
            return
        size = min(self._bytes, READ_BYTES)
        found = self._partition.read(self._next, size)
        if found is None:
            self._partition.fetch(self._next, size, partial(self._fetched, self._visible))
        else:
            self._search(found)

    def _open(self) -> bool:
        return self._next < self._visible and len(self._rows) < self._wanted and self._records > 0 and self._bytes > 0

    def _fetched(self, visible: int, batches: list[RecordBatch], error: Exception | None) -> None:
        if error is not None:
            self._done(self._rows, self._next, None if self._rows else error)
            return
        if not batches:  # nothing sound is left up to there
            self._next = visible
        self._search(batches)

    def _search(self, batches: list[RecordBatch]) -> None:
        try:
            self._patience.slices.run(self._look(batches), self._looked, self._patience.wanted)
        except QuintetError as refused:
            self._looked(None, refused)

    def _looked(self, _result: None, error: Exception | None) -> None:
        if error is not None:
            self._done(self._rows, self._next, error)
        else:
            self.go()

    def _look(self, batches: list[RecordBatch]) -> Steps[None]:
        matches = self._filter.matches
        for batch in batches:
            first = batch.index_of(self._next)
            for index in range(first, batch.count):
                if not self._open():
                    return
                row = batch.row(index)
                _, _, key, value, _, expiry, _ = row
                size = len(value or b"") + len(key or b"")
                if self._rows and size > self._bytes:  # the answer would become too long: it begins the next one
                    self._bytes = 0
                    return
                self._next = row[0] + 1
                self._records -= 1
                self._bytes -= size
                if not (expiry and expiry <= self._now) and matches(key, value):
                    self._rows.append(row)
                yield
            self._next = max(self._next, batch.next_offset)


def ranges(offsets: list[int]) -> list[tuple[int, int]]:
    """Rising offsets as ranges (first, last + 1): neighbours are one range."""
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


def fetch_filtered(
    partition: Partition,
    offset: int,
    max_records: int,
    scan_records_max: int,
    filter: Filter,
    now: int,
    done: Scanned,
    patience: Patience,
) -> None:
    """`done(rows, next_offset, None)`: up to max_records records that pass and have not expired, of the next
    scan_records_max (at most SCAN_RECORDS_MAX) records or SCAN_BYTES_MAX bytes; next_offset is the first one not looked
    at. Past the end: none, and the offset that was asked for."""

    def found(rows: list[Row], following: int, error: Exception | None) -> None:
        done([(row[0], row[2], row[3]) for row in rows], following, error)

    _Scan(partition, offset, max_records, scan_records_max, filter, now, found, patience).go()


def peek(
    partition: Partition, offset: int, since_us: int, max_records: int, filter: Filter, now: int, done: Peeked,
    patience: Patience,
) -> None:  # fmt: skip
    """As fetch_filtered, with whole rows; with `since_us` (not 0) from the first record that is not older on."""

    def begin(first: int, error: Exception | None) -> None:
        if error is not None:
            done([], offset, error)
        else:
            _Scan(partition, max(offset, first), max_records, SCAN_RECORDS_MAX, filter, now, done, patience).go()

    if since_us:
        offset_for_time(partition, since_us, begin)
    else:
        begin(0, None)


def consume(partition: Partition, offset: int, now: int, done: Consumed) -> None:
    """`done((key, value), None)` of exactly this offset, or OffsetNotFound that says why there is none."""
    if not partition.start <= offset < partition.visible:
        done(None, _no_record(partition, offset))
        return

    def found(row: Row | None, error: Exception | None) -> None:
        if error is not None:
            done(None, error)
        elif row is None:
            gone = f"offset {offset} of partition {partition.number} is no longer kept: retention or compaction took it"
            done(None, OffsetNotFound(gone))
        elif row[5] and row[5] <= now:
            done(None, OffsetNotFound(f"offset {offset} of partition {partition.number} has expired"))
        else:
            done((row[2], row[3]), None)

    read_row(partition, offset, found, view=True)


def _no_record(partition: Partition, offset: int) -> OffsetNotFound:
    where = f"offset {offset} of partition {partition.number}"
    if offset >= partition.visible:
        return OffsetNotFound(
            f"{where} is past the end: the next record gets offset {partition.visible}", hint="ask again later"
        )
    return OffsetNotFound(
        f"{where} is no longer kept: the first one is {partition.start}", hint=f"go on at {partition.start}"
    )


def offset_for_time(partition: Partition, timestamp_us: int, done: Offset) -> None:
    """`done(offset, None)` of the first record at or after this time; the end of the partition if there is none."""

    def found(place: tuple[int, int] | None, error: Exception | None) -> None:
        if error is not None:
            done(-1, error)
        else:
            done(partition.visible if place is None else place[0], None)

    start(seek(partition, partition.start, min(max(timestamp_us, EVER), (1 << 63) - 1))).then(found)
