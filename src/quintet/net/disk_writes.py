"""Decides where a durable write is made: on the loop thread while nobody else wants it, else by threads (ADR 30).

A lone small write is made by the loop itself, write and sync: a thread would add two changes of threads to what takes as long
as three. That stops all connections for the length of a sync, so it is done only while four things hold: the write is small, no
other write is under way, recent syncs were short, and what the loop did since the last write was for this one. Rules only, no
clock: times are handed in.
"""

from typing import Final

from quintet.model.scheduler import Write

BYTES_MAX: Final = 16 * 1024  # of a write on the loop thread: four blocks take about as long as one
SYNC_S_MAX: Final = 0.001  # how long recent syncs may have taken: a fifth of a turn (ADR 13)
SMOOTHING: Final = 8  # the newest sync counts for an eighth; one of 9 ms sends the next dozens to the threads
TURNS_EACH: Final = 2  # callbacks of the loop that one append accounts for: its read, and the end of the turn
WAITERS_MAX: Final = 8  # appends that account for callbacks: a client that sends many at once has them read in one
OTHERS_A_SECOND: Final = 1_000  # other callbacks that may be late by the length of a sync
BUSY_S_MAX: Final = 0.001  # of the loop since the last write: a busier one has better things to do than to wait


class LoneWrites:
    """One per loop. `allow` before a write, `made` after each, wherever it was made."""

    __slots__ = ("_at", "_begun", "_busy_s", "sync_s")

    def __init__(self) -> None:
        self.sync_s = 0.0  # how long a sync takes of late
        self._at = self._busy_s = 0.0
        self._begun = 0

    def allow(self, work: Write, begun: int, busy_s: float, monotonic: float) -> bool:
        """May the loop make this write? begun, busy_s: the callbacks it has had and their seconds, of all time."""
        return work.size <= BYTES_MAX and self.allow_small(begun, busy_s, monotonic, work.waiters)

    def allow_small(self, begun: int, busy_s: float, monotonic: float, waiters: int = 1) -> bool:
        """The same of a write with not more than BYTES_MAX, for at least so many appends."""
        if self.sync_s > SYNC_S_MAX or busy_s - self._busy_s > BUSY_S_MAX:
            return False
        accounted = TURNS_EACH * min(waiters, WAITERS_MAX) + (monotonic - self._at) * OTHERS_A_SECOND
        return begun - self._begun <= accounted

    def begin(self, begun: int, busy_s: float, monotonic: float) -> None:
        """A write begins: from here on the loop's callbacks are counted for the next one."""
        self._begun, self._busy_s, self._at = begun, busy_s, monotonic

    def made(self, seconds: float, callbacks: int = 0) -> None:
        """A write and its sync took this long. callbacks: in which the loop was told so, which is for nobody else."""
        self.sync_s += (seconds - self.sync_s) / SMOOTHING
        self._begun += callbacks
