"""Keeps the order in which the batches of many partitions are evicted: the oldest batch anywhere goes first.

A place names the partition whose oldest batch it stands for. A partition that lost batches in another way (its topic was
deleted, or it is over a bound of its own) counts their places as `stale`; they are skipped when they come up, and swept
out a few at a time by what is added, so that no call walks over all places and they cannot pile up behind one old batch.
"""

from collections import deque
from typing import Final, Generic, Protocol, TypeVar

SWEPT_AT_ONCE: Final = 4  # places looked at by each that is added: more than one, so that sweeping catches up


class Owner(Protocol):
    """A partition's part of a shared bound."""

    stale: int
    """Places that stand for nothing any more. They count as older than those of the batches that are there."""


T = TypeVar("T", bound=Owner)


class EvictionOrder(Generic[T]):
    """`stale` is the sum over all owners. All places in `_swept` are older than those in `_unswept`."""

    __slots__ = ("_swept", "_unswept", "stale")

    def __init__(self) -> None:
        self._swept: deque[T] = deque()
        self._unswept: deque[T] = deque()
        self.stale = 0

    def __len__(self) -> int:
        return len(self._swept) + len(self._unswept)

    def add(self, owner: T) -> None:
        """It has a new batch, the newest of all."""
        self._unswept.append(owner)
        if self.stale:
            self._sweep()

    def lost(self, owner: T, count: int) -> None:
        """Its `count` oldest batches are gone without being evicted."""
        owner.stale += count
        self.stale += count

    def take(self) -> T | None:
        """Take the oldest place. None: it is stale, and nothing is to be evicted for it."""
        owner = (self._swept or self._unswept).popleft()
        return None if self._dropped(owner) else owner

    def _dropped(self, owner: T) -> bool:
        if not owner.stale:
            return False
        owner.stale -= 1
        self.stale -= 1
        return True

    def _sweep(self) -> None:
        for _ in range(SWEPT_AT_ONCE):
            if not self._unswept:
                self._swept, self._unswept = self._unswept, self._swept
                return
            owner = self._unswept.popleft()
            if not self._dropped(owner):
                self._swept.append(owner)
