"""Remembers the ids of peers' messages, so that none is taken twice (peerbus).

An id is remembered for a window at least, and no more than a number of them: memory is bounded whatever peers send. Two
generations of ids make a window without a time for each of them. What a start reads back is decided in peers.py.
"""

from hashlib import blake2b
from typing import Final

SEEN_KEY_MAX: Final = 64  # characters remembered of a sender and its id; of longer ones a digest


class Seen:
    """Ids of messages, each remembered for a window at least, and no more than `ids_max` of them: two generations."""

    def __init__(self, window_us: int, ids_max: int) -> None:
        self.resize(window_us, ids_max)
        self._young: set[str] = set()
        self._old: set[str] = set()
        self._since = 0

    def resize(self, window_us: int, ids_max: int) -> None:
        self._window_us = window_us
        self._half = max(ids_max // 2, 1)

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, sender: str, id: str, monotonic: int) -> bool:
        """Remember this id of this sender; False if it was there already."""
        key = f"{sender}|{id}"  # no name has a |
        if len(key) > SEEN_KEY_MAX:
            key = _digest(key)
        if monotonic - self._since >= self._window_us or len(self._young) >= self._half:
            # Begun two windows ago: even its last id is a whole window old.
            self._old = self._young if monotonic - self._since < 2 * self._window_us else set()
            self._young = set()
            self._since = monotonic
        if key in self._young or key in self._old:
            return False
        self._young.add(key)
        return True

    def keep_longer(self, more_us: int) -> None:
        """The clock was set back: dates of messages that were seen are fresh again, for so much longer."""
        self._since += more_us

    def forget(self, sender: str, id: str) -> None:
        key = f"{sender}|{id}"
        if len(key) > SEEN_KEY_MAX:
            key = _digest(key)
        self._young.discard(key)
        self._old.discard(key)


def _digest(key: str) -> str:
    """What is remembered of a long one."""
    return blake2b(key.encode(), digest_size=SEEN_KEY_MAX // 2).hexdigest()
