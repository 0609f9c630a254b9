"""Event streams of caches that are watched: for those who say QUINTET, and for published clients.

What changed is remembered by its key and sent as it is when its turn comes: a slow reader gets the latest state of each key,
and what a watcher costs is bounded by the keys.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.broker.bearer import Bearer
from quintet.broker.doors.cache import Cache
from quintet.broker.doors.cache_memory import EXPIRES, VALUE, VERSION
from quintet.kernel.items import CacheEntry
from quintet.model import limits
from quintet.protocols.base import TOO_SLOW
from quintet.protocols.felix import codec, features, frames
from quintet.protocols.felix.codec import Scope
from quintet.protocols.felix.mapping import Feed, FelixPeer, Told

WATCHED_PER_TURN_MAX: Final = 1_000  # changes written before room is asked for again
WATCHED_BYTES_MAX: Final = 64 * limits.MIB  # of changed keys that a slow peer was not told of: then it is reset
WATCHED_KEY_BYTES: Final = 200  # that a key costs beside its own


class WatchStream(Feed):
    """Changes of a key, or of all keys with a prefix, of a cache: the latest state of each, however slow its peer reads."""

    def __init__(self, peer: FelixPeer, id: int | str, bearer: Bearer, scope: Scope, name: str, cache: Cache) -> None:
        super().__init__(peer, id, bearer, "cache.read", scope, name)
        self._cache = cache
        self._changed: dict[bytes, None] = {}
        self._changed_bytes = 0
        self._parked = False
        self._stop: Callable[[], None] | None = None

    def watch(self, key: bytes | None, prefix: bytes | None) -> None:
        self._stop = self._cache.watch(key, prefix, self._mark)

    def _mark(self, key: bytes) -> None:
        try:
            self._note(key)
        except Exception as error:  # its own connection ends; whoever changed the key goes on
            self._peer.streams.fault("watch", error)

    def _note(self, key: bytes) -> None:
        if key not in self._changed:
            self._changed[key] = None
            self._changed_bytes += len(key) + WATCHED_KEY_BYTES
        self._flush()
        if self._changed_bytes > WATCHED_BYTES_MAX and not self._over:
            self.cut(TOO_SLOW)

    def start(self) -> None:
        super().start()
        self._flush()

    def _unpark(self) -> None:
        self._parked = False
        self._flush()

    def _flush(self) -> None:
        outlet, now = self._outlet, self._broker.scheduler.now()
        if outlet is None or self._parked or self._barred():
            return
        written = 0
        while self._changed:
            if outlet.room() <= 0:
                self._parked = True
                outlet.park(self._unpark)
                return
            key = next(iter(self._changed))
            del self._changed[key]
            self._changed_bytes -= len(key) + WATCHED_KEY_BYTES
            entry = self._cache.entries.get(key)  # not `get`: watching a key is no use of it
            there = entry is not None and not 0 < entry[1] <= now
            outlet.send([self._event(key, entry if there else None)])
            written += 1
            if written == WATCHED_PER_TURN_MAX:
                self._parked = True
                self._broker.scheduler.soon(self._unpark)
                return

    def _event(self, key: bytes, entry: CacheEntry | None) -> bytes:
        value, version = (None, self._cache.version) if entry is None else (entry[0], entry[3])
        return codec.encode(codec.CacheEvent(key=key.decode(), value=value, version=version))

    def _release(self, forget: bool) -> None:
        if self._stop is not None:
            self._stop()
        self._changed.clear()

    def _stalled(self, told: Told) -> None:
        """Nothing was missed: who watches again reads the state as it is."""

    @property
    def vanished(self) -> bool:
        return self._cache.deleted


class PublishedWatch(WatchStream):
    """Changes of a cache as published clients read them: versions as offsets, and when a value expires."""

    def collect(self, key: bytes | None, prefix: bytes, done: Callable[[int], None]) -> None:
        """Send the state of all keys that match first, in no order; done(how many) when they are found, a few in every turn."""
        found = self._cache.entries if key is None else {key: None}
        self._scan(list(found), 0, 0, prefix, done)

    def _scan(self, keys: list[bytes], at: int, found: int, prefix: bytes, done: Callable[[int], None]) -> None:
        now = self._broker.scheduler.now()
        for key in keys[at : at + frames.SCANNED_PER_TURN_MAX]:
            if self._over:
                return
            entry = self._cache.entries.get(key)
            if key.startswith(prefix) and entry is not None and not 0 < entry[EXPIRES] <= now:
                found += 1
                self._mark(key)
        at += frames.SCANNED_PER_TURN_MAX
        if at < len(keys):
            self._broker.scheduler.soon(partial(self._scan, keys, at, found, prefix, done))
        else:
            done(found)

    def _event(self, key: bytes, entry: CacheEntry | None) -> bytes:
        offset, value, expires = self._cache.version, None, 0
        if entry is not None:
            offset, value, expires = entry[VERSION], entry[VALUE], entry[EXPIRES] // 1000
        event = features.CacheEvent(key=key.decode(), value=value, offset=offset, expires_at_millis=expires)
        return codec.encode(event)
