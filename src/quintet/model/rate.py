"""How fast somebody may go: a token bucket, for messages or for bytes. Who has to wait is told for how long."""

from typing import Final

SECOND_US: Final = 1_000_000


class Bucket:
    """A token bucket that holds one second's worth. It may be overdrawn by one read; who overdrew waits until it is paid
    back, so the rate holds and nothing is dropped."""

    __slots__ = ("_at", "_full", "_level", "per_second")

    def __init__(self, per_second: int, monotonic: int) -> None:
        self.per_second = per_second
        self._full = self._level = per_second * SECOND_US  # in millionths: whole numbers do not drift
        self._at = monotonic

    def _refill(self, monotonic: int) -> None:
        self._level = min(self._full, self._level + (monotonic - self._at) * self.per_second)
        self._at = monotonic

    def take(self, count: int, monotonic: int) -> None:
        self._refill(monotonic)
        self._level -= count * SECOND_US

    def wait(self, monotonic: int) -> int:
        """Microseconds until it is paid back."""
        self._refill(monotonic)
        return max(0, -(self._level // self.per_second))

    def forgive(self, most_us: int) -> None:
        """Let no more be owed than is paid back in this time."""
        self._level = max(self._level, -most_us * self.per_second)

    def full(self, monotonic: int) -> bool:
        self._refill(monotonic)
        return self._level >= self._full
