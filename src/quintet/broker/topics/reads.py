"""Reads records by offset, for doors whose clients fetch: batches, one record, or records that pass a filter.

What is in memory is returned without a wait; the rest comes from disk. A call reads and looks at a bounded amount, so that
no request holds up the others: the answer says where to go on. Who may read is decided before; groups and their positions
are elsewhere.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from quintet.broker.slices import Slices, Steps, always
from quintet.broker.topics.filters import Filter
from quintet.broker.topics.seek import EVER, read_from, seek
from quintet.log.base import Partition
from quintet.model.batch import RecordBatch, Row
from quintet.model.errors import OffsetNotFound

READ_BYTES: Final = 1 << 20  # asked of the log at a time ...
RECORD_BYTES: Final = 1 << 10  # ... but first no more than this for each record that is wanted
SCAN_RECORDS_MAX: Final = 1_000  # looked at by one filtered fetch
SCAN_BYTES_MAX: Final = 4 << 20  # the same in bytes; a filter that costs more looks at less
FETCH_BATCHES_MAX: Final = 5_000  # of one fetch: about 1 us each, however small they are

# One record of a filtered fetch: (offset, key, value).
Match = tuple[int, bytes | None, bytes | None]


async def read_row(partition: Partition, offset: int, view: bool = False) -> Row | None:
    """The record at exactly this offset, or None: it is not there (any more). `view`: as of RecordBatch.row."""
    if not partition.start <= offset < partition.visible:
        return None
    return row_at(await read_from(partition, offset, 1), offset, view)


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


async def fetch(partition: Partition, offset: int, max_records: int, max_bytes: int) -> list[RecordBatch]:
    """Enough batches from `offset` on to hold max_records records or about max_bytes (at least one batch, if there is one),
    but no more than FETCH_BATCHES_MAX. The first may begin before `offset` and the last may hold more than was asked for:
    the caller cuts. Past the end there are none; below the start it goes on at the start."""
    offset, visible = max(offset, partition.start), partition.visible  # what comes later is for the next call
    found: list[RecordBatch] = []
    asked = RECORD_BYTES * max_records  # for one record that is the batch it is in, and no more
    while offset < visible and max_records > 0 and max_bytes > 0:
        try:
            batches = await read_from(partition, offset, min(max_bytes, asked, READ_BYTES))
        except Exception:
            if not found:
                raise
            break
        if not batches:  # nothing sound is left up to the end
            break
        asked = READ_BYTES  # they are larger than that
        for batch in batches:
            found.append(batch)
            max_records -= batch.count - batch.index_of(offset)
            max_bytes -= batch.length
            offset = max(offset, batch.next_offset)
            if max_records <= 0 or max_bytes <= 0 or len(found) >= FETCH_BATCHES_MAX:
                return found
    return found


class Patience(NamedTuple):
    """Where a long search runs in slices, and whether its caller still waits for it."""

    slices: Slices
    wanted: Callable[[], bool] = always


class _Scan:
    """One filtered fetch under way. A step looks at one record."""

    __slots__ = (
        "_bytes",
        "_filter",
        "_next",
        "_now",
        "_partition",
        "_patience",
        "_records",
        "_rows",
        "_visible",
        "_wanted",
    )

    def __init__(
        self, partition: Partition, offset: int, wanted: int, records: int, filter: Filter, now: int, patience: Patience
    ) -> None:
        self._partition = partition
        self._visible = partition.visible
        self._next = max(offset, partition.start) if offset < self._visible else offset
        self._wanted = wanted
        self._records = min(records, SCAN_RECORDS_MAX)
        self._bytes = min(SCAN_BYTES_MAX, filter.scan_bytes_max)
        self._filter = filter
        self._now = now
        self._patience = patience
        self._rows: list[Row] = []

    async def run(self) -> tuple[list[Row], int]:
        """The rows that pass, and the first offset that was not looked at."""
        while self._open():
            try:
                batches = await read_from(self._partition, self._next, min(self._bytes, READ_BYTES))
            except Exception:
                if not self._rows:
                    raise
                break
            if not batches:  # nothing sound is left up to there
                self._next = self._visible
            await self._patience.slices.finish(self._look(batches), self._patience.wanted)
        return self._rows, self._next

    def _open(self) -> bool:
        return self._next < self._visible and len(self._rows) < self._wanted and self._records > 0 and self._bytes > 0

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


async def fetch_filtered(
    partition: Partition,
    offset: int,
    max_records: int,
    scan_records_max: int,
    filter: Filter,
    now: int,
    patience: Patience,
) -> tuple[list[Match], int]:
    """(matches, next_offset): up to max_records records that pass and have not expired, of the next scan_records_max (at
    most SCAN_RECORDS_MAX) records or SCAN_BYTES_MAX bytes; next_offset is the first one not looked at. Past the end: none,
    and the offset that was asked for."""
    rows, following = await _Scan(partition, offset, max_records, scan_records_max, filter, now, patience).run()
    return [(row[0], row[2], row[3]) for row in rows], following


async def peek(
    partition: Partition, offset: int, since_us: int, max_records: int, filter: Filter, now: int, patience: Patience
) -> tuple[list[Row], int]:
    """As fetch_filtered, with whole rows; with `since_us` (not 0) from the first record that is not older on."""
    if since_us:
        offset = max(offset, await offset_for_time(partition, since_us))
    return await _Scan(partition, offset, max_records, SCAN_RECORDS_MAX, filter, now, patience).run()


async def consume(partition: Partition, offset: int, now: int) -> tuple[bytes | None, bytes | None]:
    """(key, value) of exactly this offset; OffsetNotFound says why there is none."""
    if not partition.start <= offset < partition.visible:
        raise _no_record(partition, offset)
    row = await read_row(partition, offset, view=True)
    if row is None:
        gone = f"offset {offset} of partition {partition.number} is no longer kept: retention or compaction took it"
        raise OffsetNotFound(gone)
    if row[5] and row[5] <= now:
        raise OffsetNotFound(f"offset {offset} of partition {partition.number} has expired")
    return row[2], row[3]


def _no_record(partition: Partition, offset: int) -> OffsetNotFound:
    where = f"offset {offset} of partition {partition.number}"
    if offset >= partition.visible:
        return OffsetNotFound(
            f"{where} is past the end: the next record gets offset {partition.visible}", hint="ask again later"
        )
    return OffsetNotFound(
        f"{where} is no longer kept: the first one is {partition.start}", hint=f"go on at {partition.start}"
    )


async def offset_for_time(partition: Partition, timestamp_us: int) -> int:
    """Of the first record at or after this time; the end of the partition if there is none."""
    place = await seek(partition, partition.start, min(max(timestamp_us, EVER), (1 << 63) - 1))
    return partition.visible if place is None else place[0]
