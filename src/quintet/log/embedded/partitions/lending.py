"""Has the kernel append to partitions in files, seals all of them in one call, and knows who waits for what (ADR 29).

A partition lends itself (lendable.py) while nothing about it needs a decision. Then doors append to it inside the call that splits
a read, over any number of partitions; at the end of the turn one call seals them, and what it gives is written on one of two
ways: by the committer, in a record of the journal with everybody else's, or inline, where no sync is promised: few partitions to
their segments, many as one record of a journal that is not synced (unsynced.py). A partition that is
recalled gets back what is not yet durable as if it had staged it itself, so everything that can go wrong is handled as it always was.

What is in the journal need not be in its segment yet: it is *late*, and written there in larger pieces: with a record, when it is
much; when it is old (`write_late`); and before anybody looks at the file or syncs it (`LendablePartition.flush_late`).

Who appended a run of groups in one read waits for all of them once (`Held.done`), and not for each: only groups that come back to
Python have a waiter of their own.
"""

import errno
import os
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final, Protocol

from quintet import kernel
from quintet.kernel.items import LentSealed
from quintet.log.base import Appended, Held
from quintet.log.embedded.partitions.merging import Pending
from quintet.log.embedded.partitions.roles import Chunk, Committable
from quintet.log.embedded.partitions.unsynced import UnsyncedJournal
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.scheduler import Scheduler, call_each

JOURNAL: Final = False
INLINE: Final = True
WAYS: Final = ((1, JOURNAL), (2, INLINE))  # their bits in what fly_append says
INLINE_BYTES_MAX: Final = 64 * limits.MIB  # written in one turn: above what can be pending
OWN_TICKETS: Final = 1 << 62  # from here on they are given here, below by the kernel
LATE_BYTES_MAX: Final = 32 * limits.KIB  # of one partition; more than an eighth of it in one turn is not late (lent.rs)
LATE_TOTAL_BYTES_MAX: Final = 16 * limits.MIB  # of all: above it what is sealed goes to its segment at once
LATE_US_MAX: Final = 1_000_000  # who follows the files from outside sees a record after this time, about
LATE_AT_ONCE_MAX: Final = 256  # segments written by one round of upkeep, about 4 us each
SHOWN_AT_ONCE_MAX: Final = 4_096  # partitions whose watchers are called in one turn

WRITTEN: Final = 0  # how what was sealed became what it promises (kernel.Tails.commit_lent)
RECORDED: Final = 1
SYNCED: Final = 2

Waiting = tuple[bytearray, int, int, int]


class Lendable(Committable, Protocol):
    """A partition as the lending sees it (lendable.LendablePartition)."""

    @property
    def is_lent(self) -> bool: ...

    def recall(self) -> None: ...

    def flush_late(self) -> bool: ...

    def catch_up(self) -> None: ...

    @property
    def syncs_itself(self) -> bool: ...

    def count_sync(self) -> bool: ...

    def write_now(self, handle: int, buffers: list[bytearray], position: int) -> OSError | None: ...

    def notify(self) -> None: ...


class Sealed:
    """What one call sealed (kernel.Tails.seal_lent): `count` partitions, which the kernel knows (`flying_lent`). `chunks`: of those that
    were recalled while it is written."""

    __slots__ = ("appends", "began", "body", "chunks", "count", "placed", "places", "table", "tickets", "watched")

    def __init__(self, sealed: LentSealed) -> None:
        self.count, self.places, self.placed, self.table, self.body, _, self.appends = sealed
        self.tickets: list[int] = []
        self.chunks: dict[int, Chunk] = {}
        self.began = 0
        self.watched: list[Lendable] = []


class Alone:
    """Who waits for one batch that was appended by way of Python (log.base.Held)."""

    __slots__ = ("_base", "_done")

    def __init__(self, done: Appended | None, base: int) -> None:
        self._done = done
        self._base = base

    def done(self) -> None:
        if self._done is not None:
            self._done(self._base, None)

    def waiter(self, number: int) -> Appended | None:
        done, self._done = self._done, None
        return done


class Lending:
    """One per engine."""

    __slots__ = (
        "_holding", "_own", "_partitions", "_scheduler", "_tickets", "_turn_soon", "_under_way", "collect", "find_held", "late_bytes_max", "owing",
        "tails", "unsynced",
    )  # fmt: skip

    def __init__(self, tails: kernel.Tails[RecordBatch], scheduler: Scheduler, turn_soon: Callable[[], None]) -> None:
        self.tails = tails
        self.late_bytes_max = LATE_BYTES_MAX
        self.unsynced: UnsyncedJournal | None = None  # the engine sets it
        self.owing: set[object] = set()  # partitions whose files refused what a journal has, which stays until then
        self.collect: Callable[[], None] = lambda: None  # has the committer take what is in records: it sets it
        self.find_held: Callable[
            [int], Held
        ]  # who waits for a ticket that is not told of here: `Log.find_held` sets it
        self._scheduler = scheduler
        self._turn_soon = turn_soon
        self._partitions: dict[int, Lendable] = {}  # by their slots
        self._tickets: dict[int, tuple[Held, int]] = {}  # who waits, and for how many ways
        self._holding: tuple[list[int], list[int]] = ([], [])  # tickets that the next seal of each way is for
        self._under_way: dict[bool, Sealed] = {}
        self._own = count(OWN_TICKETS)

    def open(self, partition: Lendable) -> int:
        """A slot for it."""
        slot = self.tails.open_lent()
        self._partitions[slot] = partition
        return slot

    def close(self, slot: int) -> None:
        self.collect()
        del self._partitions[slot]
        self.tails.close_lent(slot)

    # -- who waits -----------------------------------------------------------------------------------------------------

    def hold(self, ticket: int, ways: int, held: Held) -> None:
        """The kernel appended groups of this run; `held.done` is called once for each way."""
        used = [way for bit, way in WAYS if ways & bit]
        self._tickets[ticket] = (held, len(used))
        for way in used:
            self._holding[way].append(ticket)
        self._turn_soon()

    def with_waiters(self, waiting: list[Waiting]) -> list[Pending]:
        """What was recalled, each with a waiter of its own."""
        return [(batch, self._held(ticket).waiter(number), base) for batch, ticket, number, base in waiting]

    def _held(self, ticket: int) -> Held:
        """Reads that the kernel took out of their sockets have one ticket for all of them here (net/sockets.py)."""
        found = self._tickets.get(ticket)
        return found[0] if found is not None else self.find_held(ticket)

    def _release(self, tickets: list[int]) -> None:
        """What was appended for them on one way is durable, or has waiters of its own."""
        calls: list[Callable[[], None]] = []
        for ticket in tickets:
            held, ways = self._tickets[ticket]
            if ways == 1:
                del self._tickets[ticket]
            else:
                self._tickets[ticket] = (held, ways - 1)
            calls.append(held.done)
        call_each(self._scheduler, calls)

    def append(self, slot: int, way: bool, batch: bytearray, done: Appended | None) -> int | None:
        """Append for somebody who is not a door of the kernel; its base offset, or None if it must be recalled for that."""
        ticket = next(self._own)
        base = self.tails.append_lent(slot, batch, self._scheduler.now(), ticket)
        if base is not None:
            self._tickets[ticket] = (Alone(done, base), 1)
            self._holding[way].append(ticket)
            self._turn_soon()
        return base

    # -- sealing -------------------------------------------------------------------------------------------------------

    def count_waiting(self) -> int:
        """How many partitions have something for the journal. If all that somebody waited for was recalled, nobody seals it: then who
        waits is told here that it is over."""
        if not self._holding[JOURNAL]:
            return 0
        count = len(self.tails.dirty_lent(JOURNAL))
        if not count:
            self.recall_waiting()
        return count

    def recall_waiting(self) -> None:
        """Nothing goes by the journal now: those that have something for it stage it themselves."""
        for slot in self.tails.dirty_lent(JOURNAL):
            if (partition := self._partitions[slot]).is_lent:
                partition.recall()
        tickets, self._holding[JOURNAL][:] = self._holding[JOURNAL][:], []
        if tickets:
            self._scheduler.soon(partial(self._release, tickets))

    def seal(self, way: bool, bytes_max: int) -> Sealed | None:
        """Everything that was appended on this way; None if nothing was."""
        if not self._holding[way]:
            return None
        later = self.late_bytes_max if self.tails.late_bytes <= LATE_TOTAL_BYTES_MAX else 0
        if way is INLINE and later and (self.unsynced is None or not self.unsynced.is_ready()):
            later = 0
        found = self.tails.seal_lent(way, bytes_max, later)
        sealed, unfit = Sealed(found), found[5]
        sealed.tickets, self._holding[way][:] = self._holding[way][:], []
        for slot in unfit:
            self._partitions[slot].recall()
        if not sealed.count:
            self._scheduler.soon(partial(self._release, sealed.tickets))
            return None
        self._under_way[way] = sealed
        return sealed

    def recalled(self, slot: int, way: bool, chunk: Chunk) -> None:
        """A partition was recalled while this chunk of it is being written."""
        self._under_way[way].chunks[slot] = chunk

    def taken_back(self, sealed: Sealed, way: bool = JOURNAL) -> list[tuple[Committable, Chunk]]:
        """It is not written, or not as it should be: its partitions decide. In the order in which they were sealed."""
        found = list[tuple[Committable, Chunk]]()
        for slot in self.tails.flying_lent(way):
            partition = self._partitions[slot]
            if slot not in sealed.chunks:
                partition.recall()
            found.append((partition, sealed.chunks[slot]))
        del self._under_way[way]
        self.tails.commit_lent(way, 0)  # of nobody: all were recalled
        self._scheduler.soon(partial(self._release, sealed.tickets))
        return found

    def written(self, sealed: Sealed, way: bool, how: int = WRITTEN) -> None:
        """It is written, and what the way promises is kept: it is visible. Nothing is done here for a partition that nobody watches."""
        del self._under_way[way]
        self.commit(sealed, way, self._scheduler.monotonic(), how)
        for slot, chunk in sealed.chunks.items():
            self._partitions[slot].journaled(chunk)

    def commit(self, sealed: Sealed, way: bool, monotonic: int, how: int) -> None:
        low, watched = self.tails.commit_lent(way, monotonic, how)
        for slot in low:
            self._partitions[slot].catch_up()
        sealed.watched += [self._partitions[slot] for slot in watched]

    def partition_of(self, slot: int) -> Committable:
        return self._partitions[slot]

    def take_recorded(self) -> list[Committable]:
        """Partitions of which a record of the journal has something since the last call."""
        return [self._partitions[slot] for slot in self.tails.take_recorded()]

    def tell(self, sealed: Sealed) -> None:
        """Tell who waits, then who watches. Raises nothing."""
        for slot, chunk in sealed.chunks.items():
            self._partitions[slot].tell(chunk)
        self._release(sealed.tickets)
        self._show(sealed.watched)

    def _show(self, watched: list[Lendable]) -> None:
        call_each(self._scheduler, [partition.notify for partition in watched[:SHOWN_AT_ONCE_MAX]])
        if len(watched) > SHOWN_AT_ONCE_MAX:
            self._scheduler.soon(partial(self._show, watched[SHOWN_AT_ONCE_MAX:]))

    def write_late(self, monotonic: int) -> None:
        """Write to their segments what has been in the journal only for a while. About every 100 ms."""
        before = monotonic - LATE_US_MAX
        if before >= 0:
            self.flush_since(before, LATE_AT_ONCE_MAX)

    def flush_since(self, before: int, most: int) -> bool:
        """Write what is late since then or longer. False: a segment refused, now or before."""
        if before >= 0:
            for slot in self.tails.tardy_lent(before, most):
                self._partitions[slot].flush_late()
        return not self.owing

    def forget(self, partitions: set[object]) -> None:
        """Their topic is deleted: nothing is owed to them."""
        self.owing -= partitions

    def catch_up(self) -> None:
        """Who asks wants the links of all."""
        for slot in self.tails.take_moved():
            self._partitions[slot].catch_up()

    # -- inline --------------------------------------------------------------------------------------------------------

    def write_inline(self) -> None:
        """Write what promises no sync, and tell who waits."""
        sealed = self.seal(INLINE, INLINE_BYTES_MAX)
        if sealed is None:
            return
        refused: list[tuple[int, OSError]] = []  # slots
        for slot, (handle, buffers, position) in zip(sealed.placed, sealed.places, strict=True):
            error = self._partitions[slot].write_now(handle, buffers, position)
            if error is not None:
                refused.append((slot, error))
        if sealed.table and (self.unsynced is None or not self.unsynced.put(sealed.table, sealed.body)):
            refused += self._write_placeless(sealed)
        calls: list[Callable[[], None]] = []
        for slot, error in refused:
            partition = self._partitions[slot]
            if slot not in sealed.chunks:
                partition.recall()
            calls.append(partial(_refuse, partition, sealed.chunks.pop(slot), error))
        self.written(sealed, INLINE)
        call_each(self._scheduler, calls)
        self.tell(sealed)

    def _write_placeless(self, sealed: Sealed) -> list[tuple[int, OSError]]:
        """The journal did not take its record: each segment gets its own, behind what is late of it. Those that refuse."""
        refused: list[tuple[int, OSError]] = []
        with_place = set(sealed.placed)
        for slot in self.tails.flying_lent(INLINE):
            if slot not in with_place:
                partition = self._partitions[slot]
                partition.recall()
                chunk = sealed.chunks[slot]
                chunk.late = False
                if partition in self.owing:  # what comes before it was refused just now
                    refused.append((slot, OSError(errno.EIO, os.strerror(errno.EIO))))
                    continue
                error = partition.write_now(chunk.segment.handle, chunk.buffers, chunk.position)
                if error is not None:
                    refused.append((slot, error))
        return refused


def _refuse(partition: Lendable, chunk: Chunk, error: OSError) -> None:
    partition.refused(chunk, partition.take_back(chunk, error))
