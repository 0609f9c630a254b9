"""Compares the two clocks: how old something is that carries a date, and whether wall time was set.

Durations are measured by `Scheduler.monotonic()`. What is kept on disk has a date, because no other clock outlives a
process; `since` turns it into a monotonic time once, at start. ADR 17 says which clock is for what.
"""

from typing import Final

JUMP_US: Final = 1_000_000  # wall time that moved so much further than the monotonic clock between two looks was set
HOLD_US: Final = 3_600_000_000  # so long after a jump ahead nothing is deleted because of it
IN_ORDER_US: Final = 60_000_000  # records of a partition have rising dates unless the clock goes back by more
GRACE_US: Final = 600_000_000  # what is found at start is kept so long at least, however old its date makes it


def since(date: int, now: int, monotonic: int, keep_us: int) -> int:
    """The monotonic time of what was written at this date and is kept for `keep_us`. A date ahead counts as now, and one
    too far back as GRACE_US before its end: the clock may be wrong at this start, or have been at that writing."""
    return monotonic - min(max(now - date, 0), max(keep_us - GRACE_US, 0))


def following(now: int, last: int) -> int:
    """The date of a record behind one of date `last`: not before it, unless the clock was set back by much. One that was far
    ahead for a moment must not date all that comes until it is reached again."""
    return last if now < last <= now + IN_ORDER_US else now


class WallClock:
    """Watches wall time. `look` is called with both clocks every few milliseconds."""

    __slots__ = ("_apart", "_held", "_held_until", "jumps")

    def __init__(self, now: int, monotonic: int) -> None:
        self.jumps = 0
        self._apart = now - monotonic
        self._held = self._held_until = 0

    def look(self, now: int, monotonic: int) -> int:
        """By how much the clock was set since the last look; 0: it was not. Slow corrections are none."""
        jumped, self._apart = now - monotonic - self._apart, now - monotonic
        if abs(jumped) < JUMP_US:
            jumped = 0
        else:
            self.jumps += 1
            self._held = max(0, self._held + jumped)
            if jumped > 0:
                self._held_until = monotonic + HOLD_US
        if self._held and monotonic >= self._held_until:
            self._held = 0
        return jumped

    def trusted(self, now: int) -> int:
        """The date by which something may be deleted for good: without jumps ahead that may yet be taken back."""
        return now - self._held
