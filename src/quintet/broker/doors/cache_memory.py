"""Counts what caches cost in memory, and chooses which keys to evict and to expire. Nothing here is durable.

SIEVE keeps keys in the order they came and one hand that walks from the oldest to the newest. What was used since the hand
passed is let go on once; what was not goes. Two queues say where the hand is:

    oldest  [behind: the hand passed these]  hand  [ahead: it comes to these]  newest (new keys come here)

When `ahead` is empty the hand begins again with the oldest. A key that was deleted stays in its place as a ghost until the
hand comes to it, so every step is one pop or one append, and no call ever looks at all keys.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

from quintet.kernel import CacheMemory

OVERHEAD_BYTES: Final = 200  # counted for each key beside its own bytes and those of its value
LOOKS_MAX: Final = 64  # used keys the hand spares in one eviction; then the next one goes, used or not
GHOSTS_SLACK: Final = 1_024  # deleted keys that may stay in the queue beside as many as there are live ones
TIDY_STEPS: Final = 4  # per deletion or new deadline, while there are too many ghosts
CHOOSE_EVERY: Final = 64  # evictions until the largest is looked for again

# The places in an entry; that of `used` is CacheMemory.set_used.
VALUE: Final = 0
EXPIRES: Final = 1
VERSION: Final = 3


def cost(key: bytes, value: bytes) -> int:
    """Bytes that one key counts."""
    return len(key) + len(value) + OVERHEAD_BYTES


class Sieve:
    """The order in which the keys of one cache go."""

    __slots__ = ("_ahead", "_behind", "_entries", "_ghosts")

    def __init__(self, entries: CacheMemory) -> None:
        self._entries = entries
        self._ahead: deque[bytes] = deque()
        self._behind: deque[bytes] = deque()
        self._ghosts: set[bytes] = set()

    def __len__(self) -> int:
        """Places, those of ghosts among them."""
        return len(self._ahead) + len(self._behind)

    def add(self, key: bytes) -> None:
        """A key that was not there."""
        if key in self._ghosts:
            self._ghosts.remove(key)
        else:
            self._ahead.append(key)

    def remove(self, key: bytes) -> None:
        """A key that was taken out of the entries, other than by `victim`."""
        self._ghosts.add(key)
        if len(self._ghosts) > len(self._entries) + GHOSTS_SLACK:
            self._tidy()

    def _tidy(self) -> None:
        for _ in range(TIDY_STEPS):
            key = self._next()
            if key in self._ghosts:
                self._ghosts.remove(key)
            else:
                self._behind.append(key)

    def _next(self) -> bytes:
        if not self._ahead:
            self._ahead, self._behind = self._behind, self._ahead
        return self._ahead.popleft()

    def victim(self) -> bytes:
        """The key to evict; its place is gone already. There must be an entry."""
        looks = 0
        while True:
            key = self._next()
            if key in self._ghosts:
                self._ghosts.remove(key)
                continue
            looks += 1
            if not self._entries.set_used(key, False) or looks > LOOKS_MAX:
                return key
            self._behind.append(key)


class Timed(Protocol):
    """A cache as its deadlines see it: `timed` is key -> when it expires, for keys that do."""

    number: int
    timed: dict[bytes, int]


class Deadlines:
    """When keys expire. A deadline that was moved or dropped stays in its heap as litter; when there is more of that than
    of the others, a new heap is begun and every new deadline carries some of the old one over. Taking the last leaf of
    a heap leaves a heap, so both can be asked at any time."""

    __slots__ = ("_caches", "_heap", "_live", "_old")

    def __init__(self) -> None:
        self._caches: dict[int, Timed] = {}
        self._heap: list[tuple[int, int, bytes]] = []
        self._old: list[tuple[int, int, bytes]] = []
        self._live = 0

    def __len__(self) -> int:
        """Deadlines that are kept, litter among them."""
        return len(self._heap) + len(self._old)

    def open(self, cache: Timed) -> None:
        self._caches[cache.number] = cache

    def close(self, cache: Timed) -> None:
        """It is gone, with all its keys."""
        del self._caches[cache.number]
        self._live -= len(cache.timed)
        cache.timed.clear()

    def set(self, cache: Timed, key: bytes, expires: int) -> None:
        """The key expires then; 0: never."""
        before = cache.timed.get(key)
        if not expires:
            self.drop(cache, key)
        elif before != expires:
            self._live += before is None
            cache.timed[key] = expires
            heappush(self._heap, (expires, cache.number, key))
            if not self._old and len(self._heap) > 2 * self._live + GHOSTS_SLACK:
                self._old, self._heap = self._heap, []
            for _ in range(min(TIDY_STEPS, len(self._old))):
                item = self._old.pop()
                if self._cache_of(item) is not None:
                    heappush(self._heap, item)

    def _cache_of(self, item: tuple[int, int, bytes]) -> Timed | None:
        """None: litter."""
        cache = self._caches.get(item[1])
        return cache if cache is not None and cache.timed.get(item[2]) == item[0] else None

    def drop(self, cache: Timed, key: bytes) -> None:
        if cache.timed.pop(key, None) is not None:
            self._live -= 1

    def due(self, now: int, most: int) -> list[tuple[int, bytes]]:
        """Keys whose time has come, as (number of the cache, key); they have no deadline any more. Looks at so many at most,
        litter among them: all of that may be due at one moment."""
        found: list[tuple[int, bytes]] = []
        for heap in (self._old, self._heap):
            while heap and heap[0][0] <= now and most > 0:
                most -= 1
                item = heappop(heap)
                cache = self._cache_of(item)
                if cache is not None:
                    self.drop(cache, item[2])
                    found.append((item[1], item[2]))
        return found


class Sized(Protocol):
    """Something that keeps bytes."""

    bytes: int


S = TypeVar("S", bound=Sized)


class Largest(Generic[S]):
    """Which of a few keeps most. Looked for anew now and then only: it is near enough, and a put must not look at all."""

    __slots__ = ("_chosen", "_left")

    def __init__(self) -> None:
        self._chosen: S | None = None
        self._left = 0

    def of(self, some: Iterable[S]) -> S | None:
        """One that keeps something; None: none does."""
        self._left -= 1
        if self._left < 0 or self._chosen is None or not self._chosen.bytes:
            self._chosen = max(some, key=_bytes_of, default=None)
            self._left = CHOOSE_EVERY
        return self._chosen if self._chosen is not None and self._chosen.bytes else None

    def forget(self) -> None:
        """Those there are have changed."""
        self._chosen = None


def _bytes_of(item: Sized) -> int:
    return item.bytes
