"""Writes what one partition alone got in a turn to its own segment: at once, if the turn is that of a lone read (ADR 51).

A lent partition (lending.py) needs neither chunks nor states nor a record of the journal if nobody else has something to write: what the
kernel sealed goes to its place in the segment by one write, with a sync of that file where the topic promises one.

    a lone read that the kernel took -> sealed, written, (synced), committed by it (kernel/src/alone.rs) -> its answer -> wrote
    any other lone read -> appended -> write_read: sealed, written, (synced), committed -> its answer, all in one callback
    several reads       -> appended -> (end of turn) write_direct: one write and one sync for all that the turn brought the partition

Before a lone read the kernel is told what it may write by itself (`may_write`): nothing that waits for somebody else's write, and
with a sync only the partition that was written so before. Whatever fails gives the partition back first, as it does for a record of the journal, so faults are handled where they always were.
"""

import os
from functools import partial
from typing import Final, Protocol

from quintet import kernel
from quintet.kernel.items import LentSealed, UnwrittenAlone, WroteAlone
from quintet.log.base import Appended, Held
from quintet.log.embedded.files.disk import Disk, DurableWrite
from quintet.log.embedded.partitions.lending import (
    INLINE,
    INLINE_BYTES_MAX,
    JOURNAL,
    SYNCED,
    WRITTEN,
    Alone,
    Lendable,
    Lending,
    Sealed,
)  # fmt: skip
from quintet.log.embedded.partitions.roles import Chunk, Committable
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.scheduler import Scheduler

SYNCED_BYTES_MAX: Final = 2 * limits.MIB  # above what one partition can have pending, with its links
ONLY_JOURNAL: Final = 1  # of the ways in items.FlyHeld
ONLY_INLINE: Final = 2
# What `may_write` says in place of a slot (kernel/src/alone.rs).
NO_SYNC: Final = -1  # only what needs no sync
NOTHING: Final = -2


class Writing(Protocol):
    """What the committer (commit.Committer) is to this part of it."""

    @property
    def is_idle(self) -> bool:
        """Nothing is being written with a sync, and nothing waits for it."""

    def turn_soon(self) -> None: ...

    def begin_lone(self) -> None:
        """What is staged from here on waits for `end_lone`."""

    def end_lone(self) -> None: ...

    def refuse_one(self, partition: Committable, chunk: Chunk, error: BaseException) -> None:
        """Its file did not take it, or did not sync it."""

    def observe(self, seconds: float, appends: int) -> None: ...


class LoneLending(Lending):
    """Lending, with the way of a partition that is alone."""

    __slots__ = ("_committer", "_disk", "_lone_read", "_synced_slot", "marked")

    def __init__(self, tails: kernel.Tails[RecordBatch], scheduler: Scheduler, committer: Writing, disk: Disk) -> None:
        super().__init__(tails, scheduler, committer.turn_soon)
        self._committer = committer
        self._disk = disk  # of files: what is lent is in no pack
        self._lone_read = scheduler.lone_read
        self.marked: set[Lendable] = set()  # whose marks may have something to catch up with
        self._synced_slot = NO_SYNC  # which was written and synced for a lone read most recently

    def close(self, slot: int) -> None:
        self.marked.discard(self._partitions[slot])
        if slot == self._synced_slot:
            self._synced_slot = NO_SYNC
        super().close(slot)

    def move_marks(self) -> None:
        """Who asks is about to keep the marks."""
        marked, self.marked = self.marked, set()
        for partition in marked:
            partition.catch_up()

    def may_write(self) -> int:
        """What the kernel may write by itself, if the next read is alone: the slot whose segment it may sync, which is then the only one
        that is written with a sync, and any that needs none; NO_SYNC: only such; NOTHING."""
        if self._holding[INLINE] or not self._disk.native:
            return NOTHING
        slot = self._synced_slot
        if slot < 0 or not self._committer.is_idle or self._holding[JOURNAL]:
            return NO_SYNC
        return slot if self._partitions[slot].syncs_itself and self._scheduler.may_write_at_once() else NO_SYNC

    def wrote(self, wrote: WroteAlone) -> None:
        """The kernel did, and has committed and answered it."""
        slot, seconds, low, watched, appends = wrote
        if seconds is not None:
            self._partitions[slot].count_sync()
            self._scheduler.wrote_at_once(seconds)
            self._committer.observe(seconds, appends)
        self._committed(low, watched)

    def unwritten(self, ticket: int, ways: int, held: Held, why: UnwrittenAlone) -> None:
        """The kernel had no room for what a read appended, or its write or sync failed: as if it had been tried here."""
        found, unfit, step, code = why
        self._tickets[ticket] = (held, 1)
        if found is None:
            self._recall_unfit(unfit)
            self._wait(ticket, ways == ONLY_INLINE)
        elif ways == ONLY_INLINE:
            self._refuse_inline(found, ticket, OSError(code, os.strerror(code)))
        else:
            sealed, work = self._durable(found)
            self._refuse_synced(sealed, ticket, work.failure(step, code))

    def write_read(self, ticket: int, ways: int, held: Held) -> bool:
        """A read appended this. True: it is as durable as it promises, and visible, and `held` is not told. False: it will be."""
        if not self._lone_read.under_way or ways not in (ONLY_JOURNAL, ONLY_INLINE):
            self.hold(ticket, ways, held)
            return False
        self._tickets[ticket] = (held, 1)
        if self._put_inline(ticket) if ways == ONLY_INLINE else self._put_synced(ticket):
            del self._tickets[ticket]
            return True
        return False

    def append_read(self, slot: int, way: bool, batch: bytearray, done: Appended) -> int | None:
        """Append all that one read brought this slot (log.base.Partition.append_read). None: it must be recalled for that."""
        ticket = next(self._own)
        base = self.tails.append_lent(slot, batch, self._scheduler.now(), ticket)
        if base is None:
            return None
        ways = ONLY_INLINE if way is INLINE else ONLY_JOURNAL
        return base if self.write_read(ticket, ways, Alone(done, base)) else -1

    def _wait(self, ticket: int, way: bool) -> bool:
        """The end of the turn writes it."""
        self._holding[way].append(ticket)
        self._turn_soon()
        return False

    def _put_inline(self, ticket: int) -> bool:
        if self._holding[INLINE] or len(self.tails.dirty_lent(INLINE)) != 1:
            return self._wait(ticket, INLINE)
        found = self.tails.seal_lent(INLINE, INLINE_BYTES_MAX, 0)
        if not found[0]:
            self._recall_unfit(found[5])
            return self._wait(ticket, INLINE)
        handle, buffers, position = found[1][0]
        try:
            self._disk.pwritev(handle, buffers, position)
        except OSError as error:
            self._refuse_inline(found, ticket, error)
            return False
        self._commit_lone(INLINE, WRITTEN)
        return True

    def _refuse_inline(self, found: LentSealed, ticket: int, error: OSError) -> None:
        [(partition, chunk)] = self.taken_back(self._begin(Sealed(found), INLINE, ticket), INLINE)
        self._scheduler.soon(partial(_refuse, partition, chunk, error))

    def _commit_lone(self, way: bool, how: int) -> None:
        self._committed(*self.tails.commit_lent(way, 0, how))  # nothing of it is late: no time is looked at

    def _committed(self, low: list[int], watched: list[int]) -> None:
        for slot in low:
            self._partitions[slot].catch_up()
        for slot in watched:
            self._scheduler.soon(self._partitions[slot].notify)

    def _put_synced(self, ticket: int) -> bool:
        found = self._seal_alone() if self._committer.is_idle and not self._holding[JOURNAL] else None
        if found is None:
            return self._wait(ticket, JOURNAL)
        sealed, work = found
        try:
            took = self._scheduler.write_at_once(work)
        except Exception as error:  # what Scheduler.write would hand to who waits
            self._refuse_synced(sealed, ticket, error)
            return False
        if took is None:
            self._start(self._begin(sealed, JOURNAL, ticket), work)
            return False
        self._synced_slot = sealed.placed[0]
        self._commit_lone(JOURNAL, SYNCED if self._partitions[self._synced_slot].count_sync() else WRITTEN)
        self._committer.observe(took, sealed.appends)
        return True

    def _refuse_synced(self, sealed: Sealed, ticket: int, error: Exception) -> None:
        self._begin(sealed, JOURNAL, ticket)
        self._scheduler.soon(partial(self._refuse_alone, self.taken_back(sealed), error))

    def write_direct(self) -> bool:
        """The end of a turn in which one partition got something that promises a sync: write it. False: the partition has to."""
        found = self._seal_alone()
        if found is None:
            return False
        sealed, work = found
        sealed.tickets, self._holding[JOURNAL][:] = self._holding[JOURNAL][:], []
        self._under_way[JOURNAL] = sealed
        self._start(sealed, work)
        return True

    def _seal_alone(self) -> tuple[Sealed, DurableWrite] | None:
        """Seal what promises a sync, if one partition has such and can sync it by itself."""
        slots = self.tails.dirty_lent(JOURNAL)
        if len(slots) != 1 or not self._partitions[slots[0]].syncs_itself:
            return None
        found = self.tails.seal_lent(JOURNAL, SYNCED_BYTES_MAX, 0, True)
        if not found[0]:
            self._recall_unfit(found[5])
            return None
        return self._durable(found)

    def _durable(self, found: LentSealed) -> tuple[Sealed, DurableWrite]:
        sealed = Sealed(found)
        handle, buffers, position = sealed.places[0]
        size = sum(map(len, buffers))
        return sealed, DurableWrite(self._disk, handle, buffers, position, size, sealed.appends)

    def _start(self, sealed: Sealed, work: DurableWrite) -> None:
        """Elsewhere, or by the loop at the end of this turn: what comes meanwhile waits for the next write."""
        self._committer.begin_lone()
        sealed.began = self._scheduler.monotonic()
        self._scheduler.write(work, partial(self._synced, sealed))

    def _synced(self, sealed: Sealed, error: BaseException | None) -> None:
        if error is not None:
            found = self.taken_back(sealed)
            self._committer.end_lone()
            self._refuse_alone(found, error)
            return
        del self._under_way[JOURNAL]
        lent = self._partitions[sealed.placed[0]]
        if sealed.chunks:  # it was recalled meanwhile
            self.tails.commit_lent(JOURNAL, 0)
            lent.journaled(sealed.chunks[sealed.placed[0]])
        else:
            self.commit(sealed, JOURNAL, 0, SYNCED if lent.count_sync() else WRITTEN)
        self._committer.observe((self._scheduler.monotonic() - sealed.began) / 1e6, sealed.appends)
        self._committer.end_lone()  # before the waiters are told: the disk works while the acknowledgements go out
        self.tell(sealed)

    def _refuse_alone(self, found: list[tuple[Committable, Chunk]], error: BaseException) -> None:
        for partition, chunk in found:
            self._committer.refuse_one(partition, chunk, error)

    def _recall_unfit(self, unfit: list[int]) -> None:
        """There is no room for it: its partition stages it."""
        for slot in unfit:
            self._partitions[slot].recall()

    def _begin(self, sealed: Sealed, way: bool, ticket: int) -> Sealed:
        """What was sealed for one read is under way, with who waits for it."""
        sealed.tickets = [ticket]
        self._under_way[way] = sealed
        return sealed


def _refuse(partition: Committable, chunk: Chunk, error: OSError) -> None:
    partition.refused(chunk, partition.take_back(chunk, error))
