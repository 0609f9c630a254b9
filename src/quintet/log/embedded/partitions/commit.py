"""Chooses how the batches staged in a turn become durable: segment by segment, or together by the journal.

A few partitions: each writes and syncs its own segment (the direct way), those that begin or lengthen one in a disk thread, and many of
these in one job (together.py). Many: one job writes their chunks to their segments,
without a sync, and then one record in the journal, which makes them durable together; the segments are synced later, in
the background, before the journal file is used again. What the kernel appended may even be written to its segment later
(lending.py). While a record is under way what is staged meanwhile gathers for the next one.

    a journal file:  absent -> making -> fresh -> active -> retired -> renewing -> fresh ...
                       ^         |                  |          |           |
                       +--fails--+                  +----------+-----------+---fails---> broken

A file begins small and grows ahead of its records; one that was not used for a while gives its space back. While zeros are
written behind `allocated`, no record goes there.

A partition's mark never moves because of the journal, only when its own segment was synced. After an error of the journal
it is not used again until a restart: everybody in that record fails, nobody else does. Only a record that was refused for
want of space, and could be cut off again, is no such error.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final, Literal

from quintet.log.embedded.files.disk import Disk, DurableWrite, Place, PlaceFailed
from quintet.log.embedded.files.segment import Segment
from quintet.log.embedded.partitions.lending import JOURNAL, RECORDED, Sealed
from quintet.log.embedded.partitions.lone import LoneLending
from quintet.log.embedded.partitions.roles import Chunk, Committable, Outcome, SegmentSync, Steps
from quintet.log.embedded.partitions.together import (
    FILES_MIN,
    JOBS_AT_ONCE,
    JOBS_MAX,
    sync_together,
    write_together,
)
from quintet.log.embedded.recovery import journal
from quintet.log.embedded.recovery.directories import Mark
from quintet.model import limits
from quintet.model.errors import PartitionFailed, StorageError
from quintet.model.scheduler import Scheduler, call_each

LONE_TURNS_MIN: Final = 16  # with one partition each: then lending costs less than it saves
THRESHOLD_PARTITIONS: Final = 6  # that want a sync at the same time: measured, equal at 3, 1.7 times the rate at 6
CHUNK_BYTES_MAX: Final = 32 * limits.KIB  # more goes the direct way: at 55 KB writing twice costs what a sync does
LENT_BYTES_MAX: Final = journal.RECORD_BYTES_MAX // 2  # of what the kernel appended, in one record
CLEAN_PARTITIONS: Final = 64  # synced by one background job
STOP_PARTITIONS: Final = 1024  # synced by one job at a clean stop
CLEAN_LOOKED_AT_MAX: Final = 1024  # partitions looked at to find those
RETRY_US: Final = 10_000_000  # how long after a failure making a file is tried again
FREE_SHARE: Final = 4  # a file is made only where this many times its full size is free
SHRINK_US: Final = 10_000_000  # after which a journal without a record is as small as a new one

Done = Callable[[Outcome | BaseException], None]
State = Literal["absent", "making", "fresh", "active", "retired", "renewing", "broken"]


class _File(journal.JournalFile):
    """One of the two journal files. `needed`: up to which offset a partition must be synced before it is used again.
    `allocated`: it is filled with zeros or records up to here; `growing`: more is being filled."""

    __slots__ = ("allocated", "growing", "needed", "state")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.state: State = "absent"
        self.allocated = 0
        self.growing = False
        self.needed: dict[Committable, int] = {}


class Committer:
    """One per engine. `arm` what is to be staged at the end of the turn; a partition `offer`s itself when it is staged."""

    __slots__ = (
        "_armed", "_asked", "_begun", "_cleaning", "_closed", "_disk", "_files", "_generation", "_held", "_jobs", "_lone", "_ready", "_recorded_in",
        "_report", "_scheduled", "_scheduler", "_stopped", "_used", "_writing", "bytes", "directory", "files_min", "first_bytes", "flights",
        "jobs_max", "lending", "observe", "records", "threshold",
    )  # fmt: skip

    def __init__(self, disk: Disk, scheduler: Scheduler, report: Callable[[str, dict[str, object]], None]) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._report = report
        self.directory = ""
        self.threshold = THRESHOLD_PARTITIONS
        self.bytes = journal.JOURNAL_BYTES
        self.first_bytes = journal.FIRST_BYTES
        self.jobs_max = JOBS_MAX
        self.files_min = FILES_MIN
        self.flights = 0  # partitions on the direct way
        self.records = 0
        self.lending: LoneLending | None = None  # what the kernel appended: the engine sets it
        self.observe: Callable[[float, int], None] = lambda seconds, appends: None  # how long they took
        self._armed: list[Callable[[], None]] = []
        self._ready: list[Committable] = []
        self._jobs: list[tuple[SegmentSync, Steps, Done]] = []  # to be begun
        self._begun = 0  # jobs under way
        self._recorded_in: _File | None = None  # what the kernel knows to be in records is in this file
        self._files = [_File(name) for name in journal.SYNCED]
        self._generation = 0
        self._asked = -RETRY_US
        self._used = 0  # when the last record was written
        self._scheduled = self._writing = self._cleaning = self._stopped = False
        self._held = False  # a record waits until its file has grown
        self._lone = 0  # how many turns in a row had one partition that wants a sync
        self._closed: Callable[[], None] | None = None

    # -- the end of a turn ---------------------------------------------------------------------------------------------

    def arm(self, stage: Callable[[], None]) -> None:
        """Call once at the end of this turn."""
        self._armed.append(stage)
        self.turn_soon()

    def offer(self, partition: Committable) -> None:
        """A partition has something to be made durable."""
        self._ready.append(partition)
        self.turn_soon()

    def turn_soon(self) -> None:
        """Something was appended or staged: it is looked at when the turn ends."""
        if not self._scheduled:
            self._scheduled = True
            self._scheduler.soon(self._turn)

    def _turn(self) -> None:
        armed, self._armed = self._armed, []
        call_each(self._scheduler, armed)
        self._scheduled = False
        if self.lending is not None:
            self.lending.write_inline()
        self.pump()
        self._start_jobs()
        if self._armed and not self._scheduled:
            self._scheduled = True
            self._scheduler.soon(self._turn)

    @property
    def is_idle(self) -> bool:
        """Nothing is being written with a sync, and nothing waits for it."""
        return not (self._writing or self._held or self._ready or self.flights)

    @property
    def is_lone(self) -> bool:
        """Did one partition at a time want a sync of late? Then it lends itself also if it was written without the journal."""
        return self._lone >= LONE_TURNS_MIN

    def begin_lone(self) -> None:
        """One partition that is lent is written and synced (lone.py): what is staged meanwhile waits for its end."""
        self._writing = True

    def end_lone(self) -> None:
        self._writing = False
        self.pump()

    def pump(self) -> None:
        """Start what can be started now."""
        if self._writing or self._held:
            return
        lent = self.lending.count_waiting() if self.lending is not None else 0
        if not self._ready and not lent:
            return
        ready, self._ready = self._ready, []
        wanted = len(ready) + lent + self.flights
        self._lone = self._lone + 1 if wanted == 1 else 0
        if wanted >= self.threshold:
            ready = self._journal(ready)
        elif lent and self.lending is not None and not (wanted == 1 and self.lending.write_direct()):
            self.lending.recall_waiting()
        for partition in ready:
            partition.write_direct()

    # -- the direct way, in a disk thread ------------------------------------------------------------------------------

    def write_together(self, writer: SegmentSync, steps: Steps, done: Done) -> None:
        """Run the steps of a partition in a disk thread, from the end of this turn on, together with those of others."""
        self._jobs.append((writer, steps, done))
        self.turn_soon()

    def _start_jobs(self) -> None:
        """Begin what can be begun. While enough jobs are under way, what more is wanted gathers for the next one."""
        while self._jobs and self._begun < JOBS_AT_ONCE:
            some, self._jobs = self._jobs[: self.jobs_max], self._jobs[self.jobs_max :]
            self._begun += 1
            work = partial(write_together, [(writer, steps) for writer, steps, _ in some], self.files_min)
            self._scheduler.offload(work, partial(self._jobs_done, [done for _, _, done in some]))

    def _jobs_done(self, told: list[Done], result: list[Outcome | BaseException] | BaseException) -> None:
        self._begun -= 1
        self._start_jobs()  # before they are told: the disk works while acknowledgements go out
        outcomes = [result] * len(told) if isinstance(result, BaseException) else result
        call_each(self._scheduler, [partial(done, outcome) for done, outcome in zip(told, outcomes, strict=True)])

    # -- the journal's way ---------------------------------------------------------------------------------------------

    def _journal(self, ready: list[Committable]) -> list[Committable]:
        """Put small chunks into one record; returns who must go the direct way."""
        if self._stopped or not any(file.state in ("fresh", "active") for file in self._files):
            self.prepare()
            if self.lending is not None:
                self.lending.recall_waiting()
            return ready
        sealed = self.lending.seal(JOURNAL, LENT_BYTES_MAX) if self.lending is not None else None
        direct: list[Committable] = []
        chosen: list[tuple[Committable, Chunk]] = []
        size = len(sealed.body) if sealed is not None else 0
        for number, partition in enumerate(ready):
            chunk = partition.small_chunk(CHUNK_BYTES_MAX)
            if chunk is None:
                direct.append(partition)
                continue
            size += chunk.journaled_bytes
            chosen.append((partition, chunk))
            if size >= journal.RECORD_BYTES_MAX - 2 * CHUNK_BYTES_MAX:
                self._ready = ready[number + 1 :] + self._ready
                break
        entries = len(chosen) + (sealed.count if sealed is not None else 0)
        size = journal.record_bytes(entries, size)
        file = self._file_for(size) if entries else None
        if file is None:
            return [*direct, *self._given_back(chosen, sealed)]
        if file.growing and file.position + size > file.allocated:
            self._held = True
            self._ready = [*self._given_back(chosen, sealed), *self._ready]
            return direct
        self._write(file, chosen, sealed)
        return direct

    def _given_back(self, chosen: list[tuple[Committable, Chunk]], sealed: Sealed | None) -> list[Committable]:
        """They go another way, or later: what the kernel sealed is staged at its partition, as theirs is."""
        found = [partition for partition, _ in chosen]
        if sealed is not None and self.lending is not None:
            for partition, chunk in self.lending.taken_back(sealed):
                partition.restage(chunk)
                found.append(partition)
        return found

    def _file_for(self, size: int) -> _File | None:
        """The file that takes a record of this size, changing to the other one if this one is full."""
        active = next((file for file in self._files if file.state == "active"), None)
        if active is not None and active.position + size <= self.bytes:
            return active
        fresh = next((file for file in self._files if file.state == "fresh"), None)
        if fresh is None or fresh.position + size > self.bytes:
            self.prepare()
            return None
        if active is not None:
            active.state = "retired"
        fresh.state = "active"
        self._clean()
        return fresh

    def _write(
        self,
        file: _File,
        chosen: list[tuple[Committable, Chunk]],
        sealed: Sealed | None = None,
        here: bool = False,
    ) -> None:
        """Write chunks to their segments and a record of them, synced, all in one job, together with what the kernel sealed. here: the
        segments now, each by itself."""
        taken: list[tuple[Committable, Chunk]] = []
        refused: list[Callable[[], None]] = []
        places: list[journal.Place] = []
        buffers: list[bytearray | bytes] = []
        before: list[Place] = []
        waiters = size = 0
        # Packed segments have no handle of the system: they are written here. `before` and `taken` go together by their order.
        for partition, chunk in sorted(chosen, key=_is_packed):
            packed = chunk.segment.packed
            error = partition.put(chunk, here or packed)
            if error is not None:
                refused.append(partial(partition.refused, chunk, error))
                continue
            segment = chunk.segment
            begun = len(chunk.header)  # the journal has the header, too: a power cut may take all of the segment
            length, begins = chunk.size + begun, chunk.position - begun
            places.append((partition.topic_id, partition.number, segment.base, segment.seed, length, begins))
            if begun:
                buffers.append(chunk.header)
            buffers += chunk.buffers
            waiters += len(chunk.waiters)
            if not here and not packed:
                before.append((segment.handle, chunk.buffers, chunk.position))
                size += chunk.size
            taken.append((partition, chunk))
        if taken or sealed is not None:
            self._put_record(file, taken, sealed, (places, buffers, before), size, waiters)
        else:
            self.turn_soon()  # nothing is under way whose end looks at what gathered meanwhile
        if refused:
            call_each(self._scheduler, refused)

    def _put_record(
        self,
        file: _File,
        taken: list[tuple[Committable, Chunk]],
        sealed: Sealed | None,
        what: tuple[list[journal.Place], list[bytearray | bytes], list[Place]],
        size: int,
        waiters: int,
    ) -> None:
        places, buffers, before = what
        between = len(before)  # those that the kernel sealed come behind the other places
        table, body, entries = b"", b"", 0
        if sealed is not None:
            sealed.began = self._scheduler.monotonic()
            before += sealed.places
            table, body, entries = sealed.table, sealed.body, sealed.count
            size += sum([len(buffer) for _, placed, _ in sealed.places for buffer in placed])
            waiters += sealed.appends
        self._writing = True
        position = file.position
        record = journal.pack_record(file.life, file.number, places, buffers, table, entries, body)
        length = sum(map(len, record))
        file.moved(length)
        file.allocated = max(file.allocated, file.position)
        self._scheduler.write(
            DurableWrite(self._disk, file.handle, record, position, size + length, waiters, before),
            partial(self._recorded, file, position, taken, sealed, between),
        )
        self._look_ahead(file)

    def _refused(
        self,
        file: _File,
        position: int,
        taken: list[tuple[Committable, Chunk]],
        result: list[StorageError] | BaseException,
    ) -> None:
        self._writing = False
        if isinstance(result, BaseException):
            self._fail(file, result)
            error = PartitionFailed(
                f"a write or sync of the journal failed ({result}): the partition is read-only",
                hint="check the disk, then restart the broker: it replays the journal before it takes appends again",
            )
            errors: list[StorageError] = [error] * len(taken)
        else:
            file.position, errors = position, result
        call_each(
            self._scheduler,
            [partial(p.refused, chunk, error) for (p, chunk), error in zip(taken, errors, strict=True)],
        )
        self.pump()

    def refuse_one(self, partition: Committable, chunk: Chunk, error: BaseException) -> None:
        """A segment did not take its chunk, or did not sync it: its partition alone is concerned."""

        def taken_back(result: StorageError | BaseException) -> None:
            failure = result if isinstance(result, StorageError) else PartitionFailed(f"cannot be undone: {result!r}")
            partition.refused(chunk, failure)

        self._scheduler.offload(partial(partition.take_back, chunk, error), taken_back)

    def _recorded(
        self,
        file: _File,
        position: int,
        taken: list[tuple[Committable, Chunk]],
        sealed: Sealed | None,
        between: int,
        error: BaseException | None,
    ) -> None:
        lent: list[tuple[Committable, Chunk]] = []
        if error is not None and sealed is not None and self.lending is not None:
            lent = self.lending.taken_back(sealed)
        if isinstance(error, PlaceFailed):  # nothing of the record was written
            self._writing = False
            file.position = position
            number = error.number - between  # of the kernel's places, if it is not negative
            if number < 0 or sealed is None or self.lending is None:
                refused = taken.pop(error.number)
            else:
                partition = self.lending.partition_of(sealed.placed[number])
                refused = next(pair for pair in lent if pair[0] is partition)
                lent.remove(refused)
            self.refuse_one(*refused, error)
            self._write(file, [*taken, *lent], here=True)
            return
        if error is not None:
            taken += lent
            undo = partial(journal.cut_off, self._disk, file.handle, position, error)
            self._scheduler.offload(partial(_take_back, undo, taken), partial(self._refused, file, position, taken))
            return
        self._writing = False
        self.records += 1
        needed = file.needed
        for partition, chunk in taken:
            partition.journaled(chunk)
            needed[partition] = partition.visible
        if sealed is not None and self.lending is not None:
            if self._recorded_in is not file:
                self.collect()
                self._recorded_in = file
            self.lending.written(sealed, JOURNAL, RECORDED)
            for slot in sealed.chunks:
                partition = self.lending.partition_of(slot)
                needed[partition] = partition.visible
            self.observe((self._scheduler.monotonic() - sealed.began) / 1e6, sealed.appends)
        self.pump()  # before the waiters are told: the disk works while the acknowledgements go out
        for partition, chunk in taken:
            partition.tell(chunk)
        if sealed is not None and self.lending is not None:
            self.lending.tell(sealed)

    # -- files ---------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the first journal file that is not there, if there is room for it."""
        absent = next((file for file in self._files if file.state == "absent"), None)
        monotonic = self._scheduler.monotonic()
        if absent is None or self._stopped or monotonic - self._asked < RETRY_US or self._busy():
            return
        if self._disk.free_bytes(self.directory)[0] < FREE_SHARE * self.bytes:
            self._asked = monotonic
            return
        absent.state = "making"
        self._generation += 1
        size = min(self.first_bytes, self.bytes)
        work = partial(journal.make, self._disk, self.directory, absent.name, size, self._generation)
        self._scheduler.offload(work, partial(self._made, absent, "absent", size))

    def _busy(self) -> bool:
        return any(file.growing or file.state in ("making", "renewing") for file in self._files)

    def _renew(self, file: _File) -> None:
        file.state = "renewing"
        self._generation += 1
        size = min(self.first_bytes, file.allocated) if self._is_unused() and not file.growing else None
        work = partial(journal.renew, self._disk, file.handle, self._generation, size)
        self._scheduler.offload(work, partial(self._made, file, "broken", file.allocated if size is None else size))

    def _look_ahead(self, file: _File) -> None:
        """What the records behind this one need: more of the file, and the other file when this one is half full."""
        self._used = monotonic = self._scheduler.monotonic()
        if file.position > self.bytes // 2:
            self.prepare()
        step = journal.growth(file.allocated, self.first_bytes)
        target = min(file.allocated + step, self.bytes)
        if file.growing or file.allocated - file.position >= step // 2 or target <= file.allocated:
            return
        if self._stopped or monotonic - self._asked < RETRY_US:
            return
        file.growing = True
        work = partial(journal.grow, self._disk, f"{self.directory}/{file.name}", file.allocated, target)
        self._scheduler.offload(work, partial(self._grown, file, target))

    def _grown(self, file: _File, target: int, result: bool | BaseException) -> None:
        file.growing = self._held = False
        if isinstance(result, BaseException):
            self._fail(file, result)
        elif result:
            file.allocated = max(file.allocated, target)
        else:
            self._asked = self._scheduler.monotonic()  # records make the file longer themselves, or are refused
        if self._closed is not None and not self._busy():
            self._remove()
        self.pump()

    def _made(self, file: _File, otherwise: State, size: int, result: tuple[int, journal.Life] | BaseException) -> None:
        if isinstance(result, BaseException):
            self._asked = self._scheduler.monotonic()
            file.state = otherwise
            if otherwise == "broken":
                self._fail(file, result)
            else:
                self._report("journal_not_made", {"file": file.name, "error": str(result)})
        else:
            file.begin(*result)
            file.allocated = size
            file.state = "fresh"
        if self._closed is not None and not self._busy():
            self._remove()

    def _fail(self, file: _File, error: BaseException) -> None:
        """A sync failed: nothing of it is tried again, and nothing else is trusted to it."""
        file.state = "broken"
        self._stopped = True
        self._report("journal_failed", {"file": file.name, "error": str(error)})

    # -- syncing the segments ------------------------------------------------------------------------------------------

    def maintain(self) -> None:
        """About every 100 ms."""
        if self.lending is not None:
            self.lending.write_late(self._scheduler.monotonic())
            if self.lending.unsynced is not None:
                self.lending.unsynced.maintain(self._scheduler.monotonic())
        self._clean()
        self._shrink()

    def _is_unused(self) -> bool:
        return self._scheduler.monotonic() - self._used >= SHRINK_US

    def _shrink(self) -> None:
        """A journal that nobody needs any more gives its space back: what it stands for is synced, then it begins anew."""
        if self._stopped or self._writing or self._busy() or not self._is_unused():
            return
        for file, other in (self._files, self._files[::-1]):
            if file.allocated <= self.first_bytes:
                continue
            if file.state == "fresh":
                self._renew(file)
                return
            if file.state == "active" and other.state in ("fresh", "absent"):
                file.state = "retired"
                self._clean()
                return

    def collect(self) -> None:
        """Name the partitions that the kernel's records of a file stand for. It knows them until somebody asks, which is before the next
        file gets a record: naming each of them with each record was a dictionary for every turn."""
        if self._recorded_in is not None and self.lending is not None:
            needed = self._recorded_in.needed
            for partition in self.lending.take_recorded():
                needed[partition] = partition.visible

    def _clean(self) -> None:
        """Sync some of the partitions that a full journal file still stands for; when there are none left, it is fresh."""
        file = next((file for file in self._files if file.state == "retired"), None)
        if file is None or self._cleaning or self._stopped:
            return
        self.collect()
        batch: list[tuple[Committable, Mark]] = []
        work: list[tuple[SegmentSync, Segment]] = []
        needed = file.needed
        for partition in list(islice(needed, CLEAN_LOOKED_AT_MAX)):
            if partition.is_synced(needed[partition]):
                del needed[partition]
                continue
            begun = partition.begin_sync()
            if begun is None:
                needed[partition] = needed.pop(partition)  # busy: looked at again when the others were
                continue
            batch.append((partition, begun[2]))
            work.append(begun[:2])
            if len(batch) >= CLEAN_PARTITIONS:
                break
        if batch:
            self._cleaning = True
            self._scheduler.offload(partial(_sync_all, work, self.files_min), partial(self._cleaned, batch))
        elif not needed:
            self._renew(file)

    def _cleaned(
        self, batch: list[tuple[Committable, Mark]], result: list[StorageError | None] | BaseException
    ) -> None:
        self._cleaning = False
        for number, (partition, mark) in enumerate(batch):
            partition.synced(mark, result if isinstance(result, BaseException) else result[number])
        self._clean()

    def forget(self, partitions: Iterable[object]) -> None:
        """Their topic is deleted: nobody needs them any more."""
        gone = set(partitions)
        self.collect()
        if self.lending is not None:
            self.lending.forget(gone)
        for file in self._files:
            file.needed = {partition: offset for partition, offset in file.needed.items() if partition not in gone}

    # -- stopping ------------------------------------------------------------------------------------------------------

    def sync_packed(self, then: Callable[[], None]) -> None:
        """At a clean stop, before the partitions are shut: sync packed segments that the journal stands for, many in one job.
        Otherwise each of 100,000 has a job of its own to sync the same few packs. What cannot be synced now is left to them."""
        self.collect()
        owing = {partition: None for file in self._files for partition in file.needed}
        self._sync_packed([partition for partition in reversed(owing) if partition.is_packed], then)

    def _sync_packed(self, left: list[Committable], then: Callable[[], None]) -> None:
        batch: list[tuple[Committable, Mark]] = []
        work: list[tuple[SegmentSync, Segment]] = []
        while left and len(batch) < STOP_PARTITIONS:
            partition = left.pop()
            begun = partition.begin_sync()
            if begun is not None:
                batch.append((partition, begun[2]))
                work.append(begun[:2])
        if not batch:
            then()
            return

        def synced(result: list[StorageError | None] | BaseException) -> None:
            for number, (partition, mark) in enumerate(batch):
                partition.synced(mark, result if isinstance(result, BaseException) else result[number])
            self._sync_packed(left, then)

        self._scheduler.offload(partial(_sync_all, work, self.files_min), synced)

    def close(self, done: Callable[[], None]) -> None:
        """All partitions are shut: what they synced needs no journal. One that failed keeps it for the next start."""
        self._stopped = True
        self._closed = done
        if not self._busy():
            self._remove()

    def _remove(self) -> None:
        """Only if it holds nothing that is not durable elsewhere."""
        done, self._closed = self._closed, None
        assert done is not None
        for file in self._files:
            if file.handle >= 0:
                self._disk.close(file.handle)
                file.handle = -1
        self.collect()
        synced = all(partition.is_synced(offset) for file in self._files for partition, offset in file.needed.items())
        of = list(journal.SYNCED) if synced and any(file.state != "absent" for file in self._files) else []
        if self.lending is not None and self.lending.unsynced is not None:
            self.lending.unsynced.stop()
            if not self.lending.owing and self.lending.unsynced.records:
                of += journal.UNSYNCED
        if not of:
            done()
            return
        work = partial(journal.remove, self._disk, self.directory, of=of)
        self._scheduler.offload(work, partial(self._removed, done))

    def _removed(self, done: Callable[[], None], result: BaseException | None) -> None:
        if result is not None:  # harmless: the next start finds everything in its place and removes it
            self._report("journal_failed", {"file": self.directory, "error": str(result)})
        done()


def _take_back(undo: Callable[[], OSError], taken: list[tuple[Committable, Chunk]]) -> list[StorageError]:
    """In a disk thread. There was no space for a record: the segments go back to where they were. Why, for each partition."""
    error = undo()
    return [partition.take_back(chunk, error) for partition, chunk in taken]


def _is_packed(pair: tuple[Committable, Chunk]) -> bool:
    return pair[1].segment.packed


def _sync_all(work: list[tuple[SegmentSync, Segment]], files_min: int) -> list[StorageError | None]:
    """In a disk thread. What the syncs that nobody waits for mean, for each of these."""
    failures = sync_together(work, files_min)
    return [
        writer.sync_failed(segment, failure) if failure is not None else None
        for (writer, segment), failure in zip(work, failures, strict=True)
    ]
