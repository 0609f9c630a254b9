"""The newest part of partitions in files, while Python has lent them to the kernel, in pure Python: the specification of `lent.rs`.

A loan is where the next batch of a partition goes: offset, place in the segment, link. While it lasts a door appends to any number
of partitions in one call (`fly_append`), one call at the end of the turn merges, links and checksums what they got and says what to
write (`seal`), and one more keeps the batches for readers when that is written (`commit`). What is in the journal need not be in its
segment yet (`late`): it is written there later, in larger pieces. Whatever has a decision in it is Python's: `recall` gives everything
back. No I/O, no clock. `_native.pyi` says what each method promises.

    lend -> append -> pending --seal--> flight --commit--> kept --(bound of all)--> dropped, oldest first
                         +------ recall -----+        +--> late --(next place, or take_late)--> in the segment
"""

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

from quintet.kernel.pure_batch import chain, merge, place, reseal

ENTRY: Final = struct.Struct("<IIQIIQ")  # of a record of the journal: docs/LOG_FORMAT.md section 7
PENDING_BYTES_MAX: Final = 4 * 1024 * 1024  # of all loans of one way: what is more goes through Python
JOURNALED_BYTES_MAX: Final = 32 * 1024  # of one partition in a record: commit.py, CHUNK_BYTES_MAX
LOAN_BYTES_MAX: Final = 1024 * 1024  # pending of one partition: more comes back to Python
INLINE_FEW: Final = 4  # fewer partitions than these write their segments: a record would be one write more
LARGE_SHARE: Final = 8  # of what may be late: more is written while it is still in the processor's cache
MERGE_INPUT_BYTES_MAX: Final = 64 * 1024  # a larger batch goes as it is: copying it would cost more than it saves
MERGE_OUTPUT_BYTES_MAX: Final = 1024 * 1024
IN_ORDER_US: Final = 60_000_000  # as in model/clocks.py: a clock that was set back by more is believed
LINK_BYTES: Final = 32
RECORDED: Final = 1  # how what is committed became what it promises; 0 is written
SYNCED: Final = 2

_SPARSE: Final = 64
_KIND: Final = struct.Struct("<12xHH32xQ")  # flags, columns, producer_id
_SPAN: Final = struct.Struct("<28xI")
_BASE: Final = struct.Struct("<16xQ")
_MAX_TIMESTAMP: Final = struct.Struct("<40xq")

View = TypeVar("View")

# topic_id, partition, base, seed and handle of the segment, position, limit, end, last time
Terms = tuple[int, int, int, int, int, int, int, int, int]
Waiting = tuple[bytearray, int, int, int]  # batch, ticket, number, base
Place = tuple[int, list[bytearray], int]  # handle, buffers, position
# Of what was committed and not caught up with: position and base of the first, greatest time, end, visible, link, synced
Moved = tuple[int, int, int, int, int, bytes | None, bool]


def following(now: int, last: int) -> int:
    """A clock that was set back a little does not take the time back with it."""
    return last if now < last <= now + IN_ORDER_US else now


def merge_groups(batches: list[bytearray]) -> list[list[bytearray]]:
    """Runs of small batches of one kind, which may become one batch; all others alone. Order is kept."""
    groups: list[list[bytearray]] = []
    kind, room = -1, 0
    for batch in batches:
        size = len(batch)
        flags, columns, producer = _KIND.unpack_from(batch)
        mergeable = size <= MERGE_INPUT_BYTES_MAX and not columns & _SPARSE and not producer
        if mergeable and flags == kind and size <= room:
            groups[-1].append(batch)
            room -= size
        else:
            groups.append([batch])
            kind, room = (flags, MERGE_OUTPUT_BYTES_MAX - size) if mergeable else (-1, 0)
    return groups


def merged(group: list[bytearray], now: int) -> bytearray | None:
    """One batch of several; None: there is only one, or they have more origins than a batch can name."""
    if len(group) == 1:
        return None
    try:
        return merge(group, now)
    except ValueError:
        return None


class _Flight(NamedTuple):
    position: int
    buffers: list[bytearray]
    waiting: list[Waiting]
    owed: int
    placed: bool  # it goes to its segment now, with all that is late
    base: int
    next: int
    greatest: int  # time
    link: bytes


class _Moved:
    """What was committed and Python has not caught up with. `synced`: all of it, in the segment itself."""

    __slots__ = ("base", "newest", "position", "synced")

    def __init__(self, flight: _Flight) -> None:
        self.position, self.base, self.newest, self.synced = flight.position, flight.base, flight.greatest, False


class _Loan:
    """Where the next batch goes. `limit`: how far the segment may be written."""

    __slots__ = (
        "end", "flight", "handle", "head", "inline", "key", "last_time", "late", "limit", "link", "low_at", "moved", "owed", "partition",
        "pending", "position", "seed", "segment", "since", "told_time", "topic_id", "visible", "written",
    )  # fmt: skip

    def __init__(self, inline: bool, terms: Terms, link: bytes, key: bytes) -> None:
        if len(link) not in (0, LINK_BYTES) or len(key) not in (0, LINK_BYTES):
            raise ValueError("32 bytes, or none")
        self.inline = inline
        self.topic_id, self.partition, self.segment, self.seed, self.handle = terms[:5]
        self.position, self.limit, self.end, self.last_time = terms[5:]
        self.told_time: int | None = None  # of what is pending: somebody may have been told
        self.link, self.key = link, key
        self.pending: list[Waiting] = []
        self.owed = 0  # bytes as they were appended
        self.flight: _Flight | None = None
        self.written = self.position  # the segment has everything before this position
        self.late = bytearray()  # and this comes next: it is committed
        self.since = 0  # when the first of it was, as `commit` was told
        self.visible, self.head = self.end, link  # of what is committed
        self.moved: _Moved | None = None
        self.low_at = 1 << 64  # Python catches up at once with what ends behind this position

    @property
    def committed(self) -> int:
        return self.position if self.flight is None else self.flight.position

    @property
    def room(self) -> int:
        return min(max(self.limit - self.position, 0), LOAN_BYTES_MAX)

    def late_buffers(self) -> list[bytearray]:
        return [self.late] if self.late else []

    def seal(self, bytes_max: int, later: int) -> tuple[_Flight, Place | None] | None:
        """Merge, link and checksum what is pending; None if it does not fit: then nothing was changed."""
        time = self.last_time if self.told_time is None else self.told_time
        base = self.pending[0][3]
        made: list[tuple[bytearray, bool]] = []  # and whether it was merged
        for group in merge_groups([batch for batch, *_ in self.pending]):
            one = merged(group, time)
            made += [(one, True)] if one is not None else [(batch, False) for batch in group]
        size = sum(len(batch) + len(self.link) for batch, _ in made)
        if size > min(self.room, bytes_max):
            return None
        following_offset, greatest = base, -(1 << 63)
        for batch, fresh in made:
            if fresh:
                place(batch, following_offset, time)
            if self.link:
                self.link = chain(batch, following_offset, time, self.seed, self.link, self.key)
            else:
                reseal(batch, self.seed)
            following_offset += int(_SPAN.unpack_from(batch)[0])
            greatest = max(greatest, int(_MAX_TIMESTAMP.unpack_from(batch)[0]))
        buffers = [batch for batch, _ in made]
        position, self.position = self.position, self.position + size
        self.last_time, self.told_time = time, None
        placed = self.position - self.written > later or size > later // LARGE_SHARE
        told = (base, following_offset, greatest, self.link)
        self.flight = _Flight(position, buffers, self.pending, self.owed, placed, *told)
        self.pending, self.owed = [], 0
        return self.flight, (self.handle, [*self.late_buffers(), *buffers], self.written) if placed else None


class _Kept(Generic[View]):
    __slots__ = ("base", "batch", "next", "serial", "view")

    def __init__(self, serial: int, batch: bytearray) -> None:
        self.base = int(_BASE.unpack_from(batch)[0])
        self.next = self.base + int(_SPAN.unpack_from(batch)[0])
        self.serial = serial
        self.batch = batch
        self.view: View | None = None


class _Slot(Generic[View]):
    __slots__ = ("kept", "listed", "loan", "recorded", "topic", "watched")

    def __init__(self) -> None:
        self.loan: _Loan | None = None
        self.kept: deque[_Kept[View]] = deque()
        self.topic: object = None
        self.watched = self.recorded = False
        self.listed = [False, False]  # among the dirty, by way: still, if it was recalled and lent again


class Lents(Generic[View]):
    """Part of Tails. The two ways: by the journal (False), and inline (True)."""

    def __init__(self, view: Callable[[bytearray], View], object_bytes: int, freed_max: int) -> None:
        self._view = view
        self._object_bytes = object_bytes
        self._freed_max = freed_max
        self.slots: list[_Slot[View]] = []
        self._free: list[int] = []
        self._dirty: tuple[list[int], list[int]] = ([], [])
        self._flying: tuple[list[int], list[int]] = ([], [])
        self.owed = [0, 0]
        self._order: deque[tuple[int, int]] = deque()  # of everything kept, oldest first: serial, slot
        self._stale = 0  # places in it that stand for nothing any more, at most
        self._serial = 0
        self._moved: list[int] = []  # chained, of the journal: their heads are to be anchored
        self._recorded: list[int] = []  # in a record of the journal since `take_recorded`
        self._tardy: deque[tuple[int, int]] = deque()  # since when a slot has something late, oldest first
        self.late_bytes = 0
        self.open = True
        self.bytes = self.bytes_max = 0
        self.ticket = 0
        self.counts = [0, 0, 0]  # appends, batches, bytes

    def slot(self, slot: int) -> _Slot[View]:
        if not 0 <= slot < len(self.slots):
            raise ValueError("no such slot")
        return self.slots[slot]

    def loan(self, slot: int) -> _Loan:
        loan = self.slot(slot).loan
        if loan is None:
            raise ValueError("it is not lent")
        return loan

    def open_slot(self) -> int:
        if self._free:
            return self._free.pop()
        self.slots.append(_Slot())
        return len(self.slots) - 1

    def close_slot(self, slot: int) -> object:
        """The topic it belonged to, or None."""
        if self.slot(slot).loan is not None:
            raise ValueError("what is lent is recalled before its slot is closed")
        if self.slots[slot].recorded:
            raise ValueError("what is in a record is taken before its slot is closed")
        self.forget(slot)
        self._free.append(slot)
        self.slots[slot].watched = False
        topic, self.slots[slot].topic = self.slots[slot].topic, None
        return topic

    def lend(self, slot: int, inline: bool, terms: Terms, link: bytes, key: bytes) -> None:
        loan = _Loan(inline, terms, link, key)
        if self.slot(slot).loan is not None:
            raise ValueError("it is lent already")
        self.slots[slot].loan = loan

    def takes(self, slot: int, size: int) -> bool:
        """May a batch of this size be appended without a decision by Python? Whether it fits for certain, `seal` knows."""
        loan = self.slots[slot].loan
        return (
            self.open
            and loan is not None
            and loan.owed + size + len(loan.link) <= loan.room
            and self.owed[loan.inline] + size <= PENDING_BYTES_MAX
        )

    def append(self, slot: int, batch: bytearray, now: int, ticket: int, number: int) -> bool:
        """Append what `takes` said yes to, and give it the offset and the time it will have. Is it written inline?"""
        loan = self.loan(slot)
        if loan.told_time is None:
            loan.told_time = following(now, loan.last_time)
        base = loan.end
        place(batch, base, loan.told_time)
        loan.end = base + int(_SPAN.unpack_from(batch)[0])
        if not loan.pending and not self.slots[slot].listed[loan.inline]:
            self.slots[slot].listed[loan.inline] = True
            self._dirty[loan.inline].append(slot)
        loan.pending.append((batch, ticket, number, base))
        loan.owed += len(batch)
        self.owed[loan.inline] += len(batch)
        return loan.inline

    def dirty(self, inline: bool) -> list[int]:
        def pends(slot: int) -> bool:
            loan = self.slots[slot].loan
            return loan is not None and loan.inline == inline and bool(loan.pending)

        return [slot for slot in self._dirty[inline] if pends(slot)]

    def seal(
        self, inline: bool, bytes_max: int, later: int, alone: bool
    ) -> tuple[int, list[Place], list[int], bytes, bytes, list[int], int]:
        places, placed, unfit = list[Place](), list[int](), list[int]()
        table, body = bytearray(), bytearray()
        count = total = appends = 0
        dirty = self._dirty[inline][:]
        self._dirty[inline].clear()
        if alone or (inline and len(dirty) < INLINE_FEW):
            later = 0
        each_max = bytes_max if alone or inline else JOURNALED_BYTES_MAX
        for slot in dirty:
            self.slots[slot].listed[inline] = False
            loan = self.slots[slot].loan
            if loan is None or loan.inline != inline or not loan.pending:
                continue  # it was recalled, and perhaps lent again
            if loan.flight is not None:
                raise ValueError("what is being written is committed or recalled before more is sealed")
            waits = len(loan.pending)
            sealed = loan.seal(min(max(bytes_max - total, 0), each_max), later)
            if sealed is None:
                unfit.append(slot)
                continue
            flight, where = sealed
            length = loan.position - flight.position
            count += 1
            total += length
            appends += waits
            if where is not None:
                placed.append(slot)
                places.append(where)
            self._flying[inline].append(slot)
            if where is None or not (inline or alone):
                table += ENTRY.pack(loan.topic_id, loan.partition, loan.segment, loan.seed, length, flight.position)
                body += b"".join(flight.buffers)
        return count, places, placed, bytes(table), bytes(body), unfit, appends

    def flying(self, inline: bool) -> list[int]:
        return self._flying[inline][:]

    def commit(self, inline: bool, monotonic: int, how: int) -> tuple[list[int], list[int]]:
        low, watched = list[int](), list[int]()
        flying = self._flying[inline][:]
        self._flying[inline].clear()
        for slot in flying:
            loan = self.slots[slot].loan
            if loan is None or loan.flight is None:
                continue
            flight, loan.flight = loan.flight, None
            loan.visible, loan.head = flight.next, flight.link
            if loan.moved is None:
                loan.moved = _Moved(flight)
                if flight.link and not inline:
                    self._moved.append(slot)
            loan.moved.newest = max(loan.moved.newest, flight.greatest)
            loan.moved.synced = how == SYNCED
            if loan.position > loan.low_at:
                low.append(slot)
            if flight.placed:
                self.late_bytes -= flight.position - loan.written
                loan.late, loan.written = bytearray(), loan.position
            else:
                if not loan.late:
                    loan.since = monotonic
                    self._tardy.append((monotonic, slot))
                loan.late += b"".join(flight.buffers)
                self.late_bytes += loan.position - flight.position
            self.owed[inline] -= flight.owed
            self.counts[0] += len(flight.waiting)
            for buffer in flight.buffers:
                self.counts[1] += 1
                self.counts[2] += len(buffer)
                self.keep(slot, buffer)
            if self.slots[slot].watched:
                watched.append(slot)
            if how == RECORDED and not self.slots[slot].recorded:
                self.slots[slot].recorded = True
                self._recorded.append(slot)
        return low, watched

    def catch_up(self, slot: int) -> Moved | None:
        loan = self.loan(slot)
        moved, loan.moved = loan.moved, None
        if moved is None:
            return None
        where = (moved.position, moved.base, moved.newest, loan.committed, loan.visible)
        return *where, loan.head or None, moved.synced

    def take_moved(self) -> list[int]:
        found, self._moved = self._moved, []
        loans = [(slot, self.slots[slot].loan) for slot in found]
        return [slot for slot, loan in loans if loan is not None and loan.moved is not None]

    def take_recorded(self) -> list[int]:
        found, self._recorded = self._recorded, []
        for slot in found:
            self.slots[slot].recorded = False
        return found

    def recall(
        self, slot: int
    ) -> tuple[list[Waiting], tuple[int, list[bytearray], list[Waiting], bool] | None, int, int, int, bytes | None]:
        loan = self.loan(slot)
        if loan.late:
            raise ValueError("what is late is taken before it is recalled")
        if loan.moved is not None:
            raise ValueError("what is committed is caught up with before it is recalled")
        self.slots[slot].loan = None
        flight = None
        self.owed[loan.inline] -= loan.owed
        if loan.flight is not None:
            self.owed[loan.inline] -= loan.flight.owed
            last = loan.flight
            flight = (last.position, last.buffers, last.waiting, last.placed)
        return loan.pending, flight, loan.position, loan.end, loan.last_time, loan.link or None

    def take_late(self, slot: int) -> tuple[int, list[bytearray]]:
        loan = self.loan(slot)
        position, loan.written = loan.written, loan.committed
        late, loan.late = loan.late_buffers(), bytearray()
        self.late_bytes -= loan.written - position
        return position, late

    def tardy(self, before: int, most: int) -> list[int]:
        found: list[int] = []
        while self._tardy and self._tardy[0][0] <= before and len(found) < most:
            since, slot = self._tardy.popleft()
            loan = self.slots[slot].loan
            if loan is not None and loan.late and loan.since == since:
                found.append(slot)
        return found

    # -- what readers find ---------------------------------------------------------------------------------------------

    def keep(self, slot: int, batch: bytearray) -> None:
        kept = self.slot(slot).kept
        self._serial += 1
        one = _Kept[View](self._serial, batch)
        if kept and kept[-1].next != one.base:
            self.forget(slot)
        self.slots[slot].kept.append(one)
        self._order.append((self._serial, slot))
        self.bytes += len(batch) + self._object_bytes
        for _ in range(self._freed_max):
            if self.bytes <= self.bytes_max or not self._order:
                return
            serial, oldest = self._order.popleft()
            kept = self.slots[oldest].kept
            if kept and kept[0].serial == serial:
                self.bytes -= len(kept.popleft().batch) + self._object_bytes

    def forget(self, slot: int) -> None:
        kept, self.slot(slot).kept = self.slot(slot).kept, deque()
        self.bytes -= sum(len(one.batch) + self._object_bytes for one in kept)
        self._stale += len(kept)
        if self._stale > len(self._order) // 2:
            self._stale = 0
            self._order = deque(place for place in self._order if self._stands(*place))

    def _stands(self, serial: int, slot: int) -> bool:
        kept = self.slots[slot].kept
        return bool(kept) and kept[0].serial <= serial

    def read(self, slot: int, offset: int, max_bytes: int) -> list[View] | None:
        kept = self.slot(slot).kept
        if not kept or offset < kept[0].base or offset >= kept[-1].next:
            return None
        found: list[View] = []
        for number in range(bisect_right(kept, offset, key=_base_of) - 1, len(kept)):
            one = kept[number]
            if one.view is None:
                one.view = self._view(one.batch)
            found.append(one.view)
            max_bytes -= len(one.batch)
            if max_bytes <= 0:
                break
        return found


def _base_of(kept: _Kept[View]) -> int:
    return kept.base
