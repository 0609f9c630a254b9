"""Writes what promises no sync to a journal that is not synced, so that a turn is one write however many partitions it touched.

Topics with `os` and `interval` promise that the end of the process loses nothing: the system has what was acknowledged, in its page
cache. It need not have it in the segment. So what the kernel sealed in a turn goes here as one record, on the loop thread, and to the
segments later (lending.py); a start replays it. It is the journal of recovery/journal.py without syncs and without zeros ahead.

Two files in turn. One is begun anew when every segment has what was late when it was left, so at any time either a segment or a
file has a batch. While that cannot be, or a write was refused, segments are written at once, as if there were no journal.
"""

from collections.abc import Callable
from typing import Final

from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.recovery import journal
from quintet.model import limits
from quintet.model.scheduler import Scheduler

LIFE_BYTES: Final = 16 * limits.MIB  # a file is left with the record that passes this
FREE_SHARE: Final = 4  # a file is made only where this many times its size is free
RETRY_US: Final = 10_000_000  # how long after a failure it is tried again
UNUSED_US: Final = 10_000_000  # after which a journal without a record is removed
AHEAD_SEGMENTS: Final = (
    32  # written with each record of the second half of a file, so that they are few when it is left
)

# Has what is late since this time or longer written to its segments, so many of them at most. False: something else is owed to one.
Flush = Callable[[int, int], bool]
ALL: Final = 1 << 30


class UnsyncedJournal:
    """One per engine. `is_ready` before something is sealed for it, then `put`."""

    __slots__ = (
        "_again_at", "_disk", "_files", "_flush", "_generation", "_left_at", "_report", "_scheduler", "_stopped", "_used", "directory",
        "life_bytes", "records",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, scheduler: Scheduler, report: Callable[[str, dict[str, object]], None], flush: Flush
    ) -> None:
        self._disk = disk
        self._scheduler = scheduler
        self._report = report
        self._flush = flush
        self.directory = ""
        self.life_bytes = LIFE_BYTES
        self.records = 0
        self._files = [journal.JournalFile(name) for name in journal.UNSYNCED]  # the first is written
        self._left_at = -1  # when the second was left; -1: there is nothing in it
        self._generation = 0
        self._again_at = 0
        self._used = 0  # when the last record was written
        self._stopped = False

    def is_ready(self) -> bool:
        """May the next record go here? Changes to the other file if this one is full."""
        active = self._files[0]
        if self._stopped:
            return False
        if active.handle >= 0 and active.position < self.life_bytes and not self._again_at:
            return True
        monotonic = self._scheduler.monotonic()
        if monotonic < self._again_at:
            return False
        self._again_at = 0
        return (active.handle >= 0 and active.position < self.life_bytes) or self._change(monotonic)

    def _change(self, monotonic: int) -> bool:
        """Begin the other file. False: not now."""
        left, fresh = self._files
        if not self._flush(self._left_at, ALL):
            return False
        self._generation += 1
        try:
            if fresh.handle >= 0:
                fresh.begin(*journal.renew(self._disk, fresh.handle, self._generation, synced=False))
            elif self._disk.free_bytes(self.directory)[0] < FREE_SHARE * self.life_bytes:
                self._again_at = monotonic + RETRY_US
                return False
            else:
                name, generation = fresh.name, self._generation
                fresh.begin(*journal.make(self._disk, self.directory, name, 0, generation, synced=False))
        except OSError as error:
            self._refused(fresh.name, error)
            return False
        self._files = [fresh, left]
        self._left_at = monotonic if left.handle >= 0 else -1
        return True

    def _refused(self, name: str, error: OSError) -> None:
        self._again_at = self._scheduler.monotonic() + RETRY_US
        self._report("journal_not_made", {"file": name, "error": str(error)})

    def put(self, table: bytes, body: bytes) -> bool:
        """Write one record of entries that are packed. False: it was refused, and is not there."""
        file = self._files[0]
        entries = len(table) // journal.ENTRY_BYTES
        record = journal.pack_record(file.life, file.number, [], [], table, entries, body)
        try:
            self._disk.pwritev(file.handle, record, file.position)
        except OSError as error:
            self._refused(file.name, error)
            try:
                self._disk.truncate(file.handle, file.position)
            except OSError:
                self._stopped = True  # nobody knows what is there: nothing goes behind it
            return False
        file.moved(sum(map(len, record)))
        self.records += 1
        self._used = self._scheduler.monotonic()
        if file.position > self.life_bytes // 2 and self._left_at >= 0:
            self._flush(self._left_at, AHEAD_SEGMENTS)
        return True

    def maintain(self, monotonic: int) -> None:
        """About every 100 ms: what nobody used for a while goes."""
        if self._stopped or self._files[0].handle < 0 or monotonic - self._used < UNUSED_US:
            return
        if self._flush(monotonic, ALL):
            self.close()
            try:
                for name in journal.UNSYNCED:
                    if self._disk.read_file(f"{self.directory}/{name}") is not None:
                        self._disk.unlink(f"{self.directory}/{name}")
            except OSError as error:  # harmless: everything is in its place
                self._refused(journal.UNSYNCED[0], error)
                self._stopped = True

    def close(self) -> None:
        for file in self._files:
            if file.handle >= 0:
                self._disk.close(file.handle)
                file.handle = -1
        self._left_at = -1

    def stop(self) -> None:
        """Take nothing more."""
        self._stopped = True
        self.close()
