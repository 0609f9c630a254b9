"""How fast somebody may go: a token bucket, for messages or for bytes. Who has to wait is told for how long."""

from typing import Final

SECOND_US: Final = 1_000_000


class Bucket:
    """A token bucket that holds one second's worth. It may be overdrawn by one read; who overdrew waits until it is paid
    back, so the rate holds and nothing is dropped."""

    __slots__ = ("_at", "_full", "_level", "per_second")

    def __init__(self, per_second: int, now: int) -> None:
        self.per_second = per_second
        self._full = self._level = per_second * SECOND_US  # in millionths: whole numbers do not drift
        self._at = now

    def _refill(self, now: int) -> None:
        if now > self._at:
            self._level = min(self._full, self._level + (now - self._at) * self.per_second)
        self._at = now  # also back, when the clock was set back

    def take(self, count: int, now: int) -> None:
        self._refill(now)
        self._level -= count * SECOND_US

    def wait(self, now: int) -> int:
        """Microseconds until it is paid back."""
        self._refill(now)
        return max(0, -(self._level // self.per_second))

    def full(self, now: int) -> bool:
        self._refill(now)
        return self._level >= self._full
