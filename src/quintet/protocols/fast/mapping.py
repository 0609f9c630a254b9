"""Fast's nouns <-> ours: topic numbers <-> names, who a record came from, how fast somebody may publish.

A number is FNV-1a (32 bits) of the name's UTF-8: clients compute it, no reply carries it.

    "test" -> afd071e5        "orders" -> 325e96ec        "demo" -> aefd3536
"""

from functools import lru_cache
from typing import Final

from quintet.model.keys import fnv1a

SECOND_US: Final = 1_000_000
ORIGIN_BYTES_MAX: Final = 200  # of the subject in an origin


@lru_cache(4096)
def topic_id(name: bytes) -> int:
    """The number of a topic name."""
    return fnv1a(name)


def origin_of(subject: str) -> bytes:
    """The origin of what this subject publishes, as stored with its records."""
    return b"fast:" + subject.encode()[:ORIGIN_BYTES_MAX]


class Bucket:
    """A token bucket that holds one second's worth. It may be overdrawn by one read; who overdrew waits until it is paid
    back, so the rate holds and nothing is dropped."""

    __slots__ = ("_at", "_full", "_level", "_per_second")

    def __init__(self, per_second: int, now: int) -> None:
        self._per_second = per_second
        self._full = self._level = per_second * SECOND_US  # in millionths of a message: whole numbers do not drift
        self._at = now

    def _refill(self, now: int) -> None:
        if now > self._at:
            self._level = min(self._full, self._level + (now - self._at) * self._per_second)
        self._at = now  # also back, when the clock was set back

    def take(self, count: int, now: int) -> None:
        self._refill(now)
        self._level -= count * SECOND_US

    def wait(self, now: int) -> int:
        """Microseconds until it is paid back."""
        self._refill(now)
        return max(0, -(self._level // self._per_second))

    def full(self, now: int) -> bool:
        self._refill(now)
        return self._level >= self._full
