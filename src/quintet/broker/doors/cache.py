"""Keeps caches: keys with values, deadlines and versions; each cache is a compacted topic folded into a table of the kernel.

A cache (tenant, namespace, name) is the topic `cache/TENANT/NAMESPACE/NAME`. A change is applied to the table and appended at
once; `done` is called when it is durable, or with the error after it was taken back. So everybody reads the newest state,
and what was answered with `done(None)` is there after a restart. What the record of a key holds:

    key, value (none: deleted), header "version" (decimal), expiry (microseconds since 1970, as the entry)

Changes of one key that are under way form a line (`_Change`): when one is refused, the next one remembers what was before
it, so whatever the disk keeps of them, the table ends where the log does. Evicted and expired keys leave it at once and
get their tombstones together, at the next tick. A crash before that is harmless: a start folds the topic within the same
limits, and what has expired is not taken up.

Versions rise by one with each change, and begin with the time (microseconds since 1970) when the cache is made or taken up
again. So no version is ever given twice under one name: not after a crash that took changes which somebody had read, not
when the newest records were deleted and compacted away, not when the cache was deleted and made anew. If the clock was set
back, a start goes on above the newest version it finds, with room for what was lost (VERSION_SPAN).
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from quintet import kernel
from quintet.broker.doors.cache_memory import EXPIRES, VALUE, VERSION, Deadlines, Largest, Sieve, cost
from quintet.broker.identity.access import INTERNAL_PREFIX
from quintet.broker.identity.tenants import Tenants
from quintet.broker.sections import CacheSection
from quintet.broker.table import Done
from quintet.broker.topics.catalog import CacheTopic, Topic, Topics
from quintet.broker.topics.names import CACHE_PREFIX
from quintet.kernel.items import CacheEntry as Entry
from quintet.model.batch import Header
from quintet.model.errors import BadName, BadRequest, LimitExceeded, QuintetError, TooLarge, VersionConflict
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, start

Scope = tuple[str, str, str]
Changed = Callable[[bytes], None]
Report = Callable[[str, dict[str, object]], None]

ORIGIN: Final = b"quintet:cache"
VERSION_HEADER: Final = b"version"
VERSION_SPAN: Final = 1 << 20  # more changes than can be under way when the power goes
COUNTERS: Final = "@counters"  # behind the name of a cache: where its counters are
PART_BYTES_MAX: Final = 200  # of tenant, namespace and cache each
EXPIRES_MAX_US: Final = 2**63 - 1  # what is later is as good as this: 292 thousand years
NUMBER_MIN: Final = -(2**63)
NUMBER_MAX: Final = 2**63 - 1
NUMBER_BYTES_MAX: Final = 20
WATCHES_MAX: Final = 10_000  # of one cache
PREFIX_WATCHES_MAX: Final = 1_000  # of one cache: each change looks at all of them
EXPIRED_PER_TICK: Final = 10_000  # keys
EVICTED_PER_TICK: Final = 10_000  # keys, when a limit was lowered; a put evicts what it needs itself
TOMBSTONES_PER_APPEND: Final = 10_000  # keys
TOMBSTONE_BYTES_PER_APPEND: Final = 4 << 20  # of their keys


def expires_at(now: int, ttl_ms: int) -> int:
    """When something that lives so long expires. Longer than time can be told is as long as it can be told."""
    return min(now + ttl_ms * 1000, EXPIRES_MAX_US)


class _Change:
    """A change of one key on its way to the disk: what it made, what was before, and what comes behind it."""

    __slots__ = ("before", "done", "entry", "key", "next", "tombstone_due")

    def __init__(self, key: bytes, entry: Entry | None, before: Entry | None, tombstone_due: bool, done: Done) -> None:
        self.key = key
        self.entry = entry
        self.before = before
        self.tombstone_due = tombstone_due  # the key waited for a tombstone, which this change is in place of
        self.done = done
        self.next: _Change | None = None


class Pool:
    """The caches of one tenant. `quota` is looked up anew with every tick; 0: none."""

    __slots__ = ("bytes", "caches", "largest", "quota")

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.bytes = 0
        self.caches: dict[int, Cache] = {}
        self.largest: Largest[Cache] = Largest()

    def giver(self) -> "Cache | None":
        """Which of them has to give something up; None: none has anything that may go."""
        return self.largest.of(cache for cache in self.caches.values() if not cache.kept)


class Cache:
    """One cache. Its `entries` are in the kernel: key -> (value, expires, used, version)."""

    def __init__(self, caches: "Caches", scope: Scope, topic: CacheTopic, pool: Pool) -> None:
        self.scope = scope
        self.topic = topic
        self.number = topic.spec.id
        self.kept = scope[2].endswith(COUNTERS)  # nothing of it goes to make room
        self.entries = kernel.CacheMemory()
        self.bytes = 0
        self.timed: dict[bytes, int] = {}
        self.tombstones_due: dict[bytes, None] = {}  # evicted or expired, in that order: the log still has them
        self.held: dict[bytes, Entry] = {}  # its entries while its topic is being deleted
        self.pool = pool
        self._caches = caches
        self._sieve = Sieve(self.entries)
        self._version = max(caches.now(), caches.newest)
        self._last: dict[bytes, _Change] = {}  # the newest change of a key that is under way
        self._tombstone_appends = 0  # appends of tombstones that are under way
        self._by_key: dict[bytes, list[Changed]] = {}
        self._by_prefix: list[tuple[bytes, Changed]] = []
        self._watches = 0
        self._closed = False

    @property
    def deleted(self) -> bool:
        """Its topic is gone: ask for the cache again."""
        return self.topic.deleted

    @property
    def version(self) -> int:
        """Of the last change."""
        return self._version

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: bytes, now: int) -> tuple[bytes, int] | None:
        """(value, version), or None."""
        entry = self._live(key, now)
        if entry is None:
            self._caches.misses += 1
            return None
        self._caches.hits += 1
        self.entries.set_used(key, True)
        return entry[VALUE], entry[VERSION]

    def _live(self, key: bytes, now: int) -> Entry | None:
        entry = self.entries.get(key)
        if entry is not None and 0 < entry[EXPIRES] <= now:
            self.expire(key)
            return None
        return entry

    # -- changing --------------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes, expires_us: int, if_version: int | None, done: Done) -> int:
        """Set a key; its version. `expires_us` is since 1970, 0: never. VersionConflict: the key is not at `if_version`
        (0: not there). TooLarge, LimitExceeded, StorageError: nothing was changed."""
        options = self._caches.options
        if len(key) > options.key_bytes_max or len(value) > options.value_bytes_max:
            raise TooLarge(
                f"a key of {len(key)} and a value of {len(value)} bytes: the limits are {options.key_bytes_max} and "
                f"{options.value_bytes_max}",
                hint="cache.key_bytes_max and cache.value_bytes_max",
            )
        if expires_us < 0:
            raise BadRequest(f"a key cannot expire at {expires_us}: times are microseconds since 1970")
        before = self._live(key, self._caches.now())
        _check_version(key, before, if_version)
        roomy = self._caches.has_room(self, key, value, before)
        if not roomy:
            self._caches.check_room(self, key, value)
        entry: Entry = (value, min(expires_us, EXPIRES_MAX_US), before is not None, self._version + 1)
        self._append(key, entry, before, entry[VERSION], done)
        if not roomy:
            self._caches.make_room(self, key, value)
        self._place(key, entry)
        if self._watches:
            self._tell(key)
        return self._version

    def delete(self, key: bytes, if_version: int | None, done: Done) -> tuple[bool, int]:
        """Remove a key: (was it there, the version of the deletion; 0 if there was nothing to delete)."""
        before = self._live(key, self._caches.now())
        _check_version(key, before, if_version)
        if before is None and key not in self.tombstones_due and key not in self._last and not self._tombstone_appends:
            self._caches.soon(partial(done, None))
            return False, 0
        version = self._version + 1
        self._append(key, None, before, version, done)
        self.tombstones_due.pop(key, None)
        if before is not None:
            self._remove(key)
            self._tell(key)
        return before is not None, version

    def increment(self, key: bytes, delta: int, expires_us: int | None, now: int, done: Done) -> tuple[int, int]:
        """Add to a decimal number, a missing one is 0: (what it is now, its version). `expires_us` None leaves its time."""
        entry = self._live(key, now)
        number = delta + (0 if entry is None else _number(entry[VALUE]))
        if not NUMBER_MIN <= number <= NUMBER_MAX:
            raise BadRequest(f"{number} does not fit into 64 bits", hint="nothing was changed")
        if expires_us is None:
            expires_us = 0 if entry is None else entry[EXPIRES]
        return number, self.put(key, b"%d" % number, expires_us, None, done)

    def _append(self, key: bytes, entry: Entry | None, before: Entry | None, version: int, done: Done) -> None:
        """Write a change; raises if it cannot be taken, and then nothing was changed."""
        value, expires = (None, 0) if entry is None else (entry[VALUE], entry[EXPIRES])
        header = ((VERSION_HEADER, b"%d" % version),)
        batch = kernel.build([value], [key], [header], None, [expires] if expires else None, ORIGIN)
        change = _Change(key, entry, before, key in self.tombstones_due, done)
        self.topic.put(batch, 1, partial(self._appended, change))
        self._version = version
        earlier = self._last.get(key)
        if earlier is not None:
            earlier.next = change
        self._last[key] = change

    def _appended(self, change: _Change, _offset: int, error: Exception | None) -> None:
        key, following = change.key, change.next
        if self._last.get(key) is change:
            del self._last[key]
        if error is not None:
            if following is not None:
                following.before = change.before
                following.tombstone_due = following.tombstone_due or change.tombstone_due
            elif self._closed:
                self._take_back_held(change)
            elif _version_in(self.entries.get(key)) == _version_in(change.entry):
                self._take_back(change)
        change.done(error)

    def _take_back(self, change: _Change) -> None:
        key, before = change.key, change.before
        if before is not None:
            self._place(key, before)
        else:
            if change.entry is not None:
                self._remove(key)
            if change.tombstone_due:
                self.tombstones_due[key] = None
        if change.entry is not None or before is not None:
            self._tell(key)

    def _take_back_held(self, change: _Change) -> None:
        """The same while the topic is being deleted, in case that fails, too."""
        key = change.key
        if _version_in(self.held.get(key)) == _version_in(change.entry):
            self.held.pop(key, None)
            if change.before is not None:
                self.held[key] = change.before
            elif change.tombstone_due:
                self.tombstones_due[key] = None

    # -- the table -------------------------------------------------------------------------------------------------

    def _place(self, key: bytes, entry: Entry) -> None:
        before = self.entries.get(key)
        size = cost(key, entry[VALUE])
        if before is None:
            self._sieve.add(key)
            self._caches.keys += 1
        else:
            size -= cost(key, before[VALUE])
        self.entries[key] = entry
        self.tombstones_due.pop(key, None)  # making room may have taken the key itself
        self._grow(size)
        if entry[EXPIRES] or (before is not None and before[EXPIRES]):
            self._caches.deadlines.set(self, key, entry[EXPIRES])

    def _remove(self, key: bytes, *, queued: bool = True) -> None:
        entry = self.entries.pop(key)
        if queued:
            self._sieve.remove(key)
        self._caches.keys -= 1
        self._grow(-cost(key, entry[VALUE]))
        if entry[EXPIRES]:
            self._caches.deadlines.drop(self, key)

    def _grow(self, size: int) -> None:
        self.bytes += size
        self.pool.bytes += size
        self._caches.bytes += size

    def expire(self, key: bytes) -> None:
        """The time of a key has come."""
        self._caches.expired += 1
        self._remove(key)
        self._owe_tombstone(key)

    def evict(self) -> None:
        """Give up the key that was not asked for the longest. There must be one."""
        key = self._sieve.victim()
        self._caches.evicted += 1
        self._remove(key, queued=False)
        self._owe_tombstone(key)

    def _owe_tombstone(self, key: bytes) -> None:
        self.tombstones_due[key] = None
        self._caches.with_tombstones_due[self.number] = self
        self._tell(key)

    def append_tombstones(self) -> bool:
        """One append of tombstones for what was evicted or has expired; is there more?"""
        keys: list[bytes] = []
        size = 0
        for key in self.tombstones_due:
            keys.append(key)
            size += len(key)
            if len(keys) >= TOMBSTONES_PER_APPEND or size >= TOMBSTONE_BYTES_PER_APPEND:
                break
        if keys:
            batch = kernel.build([None] * len(keys), keys, None, None, None, ORIGIN)
            self.topic.put(batch, len(keys), partial(self._tombstones_appended, keys))
            self._tombstone_appends += 1
        for key in keys:
            del self.tombstones_due[key]
        return bool(self.tombstones_due)

    def _tombstones_appended(self, keys: list[bytes], _offset: int, error: Exception | None) -> None:
        self._tombstone_appends -= 1
        if error is None:
            return
        for key in keys:
            change = self._last.get(key)
            if change is not None:
                change.tombstone_due = True
            elif key not in (self.held if self._closed else self.entries):
                self.tombstones_due[key] = None
        if not self._closed:
            self._caches.with_tombstones_due[self.number] = self

    # -- starting and ending ---------------------------------------------------------------------------------------

    def fold(self, now: int) -> None:
        """Take up what the topic holds. Blocks: for starts only. The limits are those of what is left in the end: other
        caches may have grown since this one was large."""
        partition = self.topic.partitions[0]
        rows: dict[bytes, Entry] = {}
        newest = 0
        offset = partition.start
        while offset < partition.visible:
            batches = partition.read_now(offset)
            if not batches:
                break
            for batch in batches:
                for _, _, key, value, headers, expires, _ in batch.rows():
                    version = _version_of(headers)
                    newest = max(newest, version)
                    rows.pop(key or b"", None)  # so that they are in the order they were written in
                    if value is not None and not 0 < expires <= now:
                        rows[key or b""] = (value, expires, False, version)
                offset = batch.next_offset
        if newest >= self._version:
            self._version = newest + VERSION_SPAN
        for key, entry in rows.items():
            if self._caches.has_room(self, key, entry[VALUE], None):
                self._place(key, entry)
            elif self._caches.fits(self, key, entry[VALUE]):
                self._caches.make_room(self, key, entry[VALUE])
                self._place(key, entry)
            else:  # a limit was lowered
                self._owe_tombstone(key)

    def empty(self) -> None:
        """Its topic goes: forget everything at once, in memory only. What there was is held until that is certain."""
        self.held = held = dict(self.entries.items())
        self._closed = True
        self.entries.clear()  # sessions hold this very object
        self._caches.keys -= len(held)
        self._grow(-self.bytes)
        self._sieve = Sieve(self.entries)
        for key in held if self._watches else ():
            self._tell(key)

    def refill(self) -> None:
        """Its deletion was refused: all of it is still there."""
        self._closed = False
        self._caches.with_tombstones_due[self.number] = self
        held, self.held = self.held, {}
        for key, entry in held.items():
            self._place(key, entry)
            self._tell(key)

    # -- watching --------------------------------------------------------------------------------------------------

    def watch(self, key: bytes | None, prefix: bytes | None, changed: Changed) -> Callable[[], None]:
        """Call `changed(key)` for every change of this key, of keys with this prefix, or (both None) of all, as it is applied;
        also when it is taken back, expires or is evicted. Returns what ends it."""
        if self._watches >= WATCHES_MAX or (key is None and len(self._by_prefix) >= PREFIX_WATCHES_MAX):
            raise LimitExceeded(
                f"cache {'/'.join(self.scope)!r} has {self._watches} watches, {len(self._by_prefix)} of them not of "
                f"one key: the limits are {WATCHES_MAX} and {PREFIX_WATCHES_MAX}",
                hint="end some, or watch one key each",
            )
        self._watches += 1
        ended: list[bool] = []
        if key is not None:
            self._by_key.setdefault(key, []).append(changed)
        else:
            self._by_prefix.append((prefix or b"", changed))

        def stop() -> None:
            if ended:
                return
            ended.append(True)
            self._watches -= 1
            if key is None:
                self._by_prefix.remove((prefix or b"", changed))
                return
            watchers = self._by_key[key]
            watchers.remove(changed)
            if not watchers:
                del self._by_key[key]

        return stop

    def _tell(self, key: bytes) -> None:
        if not self._watches:
            return
        for changed in tuple(self._by_key.get(key, ())):
            changed(key)
        for prefix, changed in tuple(self._by_prefix):
            if key.startswith(prefix):
                changed(key)


class Caches:
    """All caches, and the memory they share."""

    def __init__(
        self,
        topics: Topics,
        scheduler: Scheduler,
        options: CacheSection,
        tenants: Tenants,
        report: Report,
        is_dead: Callable[[str], bool],
        look_again: Callable[[], None],
    ) -> None:
        self.options = options
        self.now = scheduler.now
        self.soon = scheduler.soon
        self.deadlines = Deadlines()
        self.with_tombstones_due: dict[int, Cache] = {}  # caches with keys that wait for tombstones
        self.newest = 0  # version of any cache that is gone: the clock may be set back before one is made anew
        self.keys = self.bytes = 0
        self.hits = self.misses = self.evicted = self.expired = 0
        self._topics = topics
        self._tenants = tenants
        self._report = report
        self._is_dead = is_dead
        self._look_again = look_again  # sessions that remember a cache have to ask anew
        self._complained = False
        self._by_scope: dict[Scope, Cache] = {}
        self._by_number: dict[int, Cache] = {}
        self._pools: dict[str, Pool] = {}
        self._largest: Largest[Pool] = Largest()

    def __len__(self) -> int:
        return len(self._by_scope)

    def load(self) -> None:
        """Fold the topics of all caches. Blocks: for starts only. Raises TableDamaged."""
        now = self.now()
        for topic in self._topics.all():
            if isinstance(topic, CacheTopic):
                self._enter(_scope_of(topic.name), topic).fold(now)
                self._topics.check_sound(topic)

    def walk(self) -> Iterator[Cache]:
        return iter(tuple(self._by_scope.values()))

    def get(self, scope: Scope) -> Cache | None:
        return self._by_scope.get(scope)

    def open(self, scope: Scope) -> Cache:
        """The cache of this tenant, namespace and name, made if need be. Raises BadName, LimitExceeded."""
        cache = self._by_scope.get(scope)
        if cache is not None and not cache.deleted:
            return cache
        name = name_of(scope)
        if self._is_dead(name):
            raise BadName(f"{name!r} is reserved for dead letters", hint="choose another name for the cache")
        if cache is None:
            if len(self._by_scope) >= self.options.caches_max:
                raise LimitExceeded(
                    f"there are {len(self._by_scope)} caches, the limit is {self.options.caches_max}",
                    hint="delete one, or raise cache.caches_max",
                )
            self._tenants.check_cache(scope[0], self.kept_by(scope[0])[0])
        return self._enter(scope, self._topics.open_cache(name.encode()))

    def _enter(self, scope: Scope, topic: CacheTopic) -> Cache:
        old = self._by_scope.get(scope)
        if old is not None:  # its topic never came to be
            self._leave(old)
            self._look_again()
        pool = self._pools.get(scope[0])
        if pool is None:
            pool = self._pools[scope[0]] = Pool(self._tenants.quota(scope[0]).cache_bytes)
        cache = Cache(self, scope, topic, pool)
        self._register(cache)
        return cache

    def _register(self, cache: Cache) -> None:
        self._pools.setdefault(cache.scope[0], cache.pool)
        self._by_scope[cache.scope] = self._by_number[cache.number] = cache
        cache.pool.caches[cache.number] = cache
        self.deadlines.open(cache)

    def _leave(self, cache: Cache) -> None:
        cache.empty()
        self.newest = max(self.newest, cache.version)
        del self._by_scope[cache.scope], self._by_number[cache.number], cache.pool.caches[cache.number]
        self.deadlines.close(cache)
        self.with_tombstones_due.pop(cache.number, None)
        cache.pool.largest.forget()
        if not cache.pool.caches:
            del self._pools[cache.scope[0]]
            self._largest.forget()

    def delete_topic(self, topic: Topic) -> Promise[None]:
        """Delete a topic, as Topics.delete. If it is that of a cache, its keys go with it, and come back if it could not be
        deleted."""
        cache, gone = self._of(topic), self._topics.delete(topic.raw)
        if cache is None:
            return gone
        self._leave(cache)
        return start(self._refill_unless(gone, cache))

    async def _refill_unless(self, gone: Promise[None], cache: Cache) -> None:
        try:
            await gone
        except Exception:
            if not cache.topic.deleted:
                cache.pool = self._pools.get(cache.scope[0]) or cache.pool
                self._register(cache)
                cache.refill()
            raise
        finally:
            cache.held = {}

    def _of(self, topic: Topic) -> Cache | None:
        found = self._by_scope.get(_scope_of(topic.name)) if isinstance(topic, CacheTopic) else None
        return found if found is not None and found.topic is topic else None

    def kept_by(self, tenant: str) -> tuple[int, int]:
        """How many caches a tenant has, and how many bytes they keep."""
        pool = self._pools.get(tenant)
        return (0, 0) if pool is None else (len(pool.caches), pool.bytes)

    # -- memory ----------------------------------------------------------------------------------------------------

    def has_room(self, cache: Cache, key: bytes, value: bytes, before: Entry | None) -> bool:
        """Does it fit as things are, in place of what was before?"""
        grows = cost(key, value) - (0 if before is None else cost(key, before[VALUE]))
        pool = cache.pool
        return self.bytes + grows <= self.options.memory_bytes and (not pool.quota or pool.bytes + grows <= pool.quota)

    def fits(self, cache: Cache, key: bytes, value: bytes) -> bool:
        """Could it be kept if everything else went?"""
        size = cost(key, value)
        return size <= self.options.memory_bytes and size <= (cache.pool.quota or size)

    def check_room(self, cache: Cache, key: bytes, value: bytes) -> None:
        """LimitExceeded unless there is room, or room can be made."""
        if not self.fits(cache, key, value):
            raise LimitExceeded(
                f"a key of {cost(key, value)} bytes is larger than all caches of tenant {cache.scope[0]!r} may be",
                hint="raise cache.memory_bytes, or cache_bytes of the tenant",
            )
        if self._giver(cache, key, value) is None:  # there is no room, and nobody can make it
            raise LimitExceeded(
                f"the caches are full of counters, which are not evicted: {self.bytes} bytes",
                hint="delete counters, raise cache.memory_bytes, or cache_bytes of the tenant",
            )
        if self.options.eviction == "refuse" and self._giver(cache, key, value) is not None:
            self._expire(self.now())
            if self._giver(cache, key, value) is not None:
                raise LimitExceeded(
                    f"the caches are full: {self.bytes} bytes, {cache.pool.bytes} of them of tenant {cache.scope[0]!r}",
                    hint="delete keys, raise cache.memory_bytes, or let cache.eviction be sieve",
                )

    def make_room(self, cache: Cache, key: bytes, value: bytes) -> None:
        """Evict until this fits."""
        while (giver := self._giver(cache, key, value)) is not None:
            giver.evict()

    def _giver(self, cache: Cache, key: bytes, value: bytes) -> Cache | None:
        """The cache that must evict something before this entry fits, or None if it fits. The tenant's own quota is checked first."""
        before = cache.entries.get(key)
        grows = cost(key, value) - (0 if before is None else cost(key, before[VALUE]))
        pool: Pool | None = cache.pool
        quota = cache.pool.quota
        if not quota or cache.pool.bytes + grows <= quota:
            if self.bytes + grows <= self.options.memory_bytes:
                return None
            pool = self._largest.of(self._pools.values())
        return None if pool is None else pool.giver()

    def _shrink(self) -> None:
        """A limit was lowered, or something large was taken back."""
        for tenant, pool in self._pools.items():
            pool.quota = self._tenants.quota(tenant).cache_bytes
        if self.options.eviction == "refuse":
            return
        left = EVICTED_PER_TICK
        for pool in list(self._pools.values()):
            while pool.quota < pool.bytes and pool.quota and left and (giver := pool.giver()):
                giver.evict()
                left -= 1
        while self.bytes > self.options.memory_bytes and left and (most := self._largest.of(self._pools.values())):
            giver = most.giver()
            if giver is None:
                break
            giver.evict()
            left -= 1

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """What has expired goes, and what went gets its tombstones."""
        self._expire(now)
        self._shrink()
        self.flush()

    def _expire(self, now: int) -> None:
        for number, key in self.deadlines.due(now, EXPIRED_PER_TICK):
            self._by_number[number].expire(key)

    def flush(self) -> None:
        """Append the tombstones of all that was evicted or has expired."""
        for cache in list(self.with_tombstones_due.values()):
            try:
                while cache.append_tombstones():
                    pass
                del self.with_tombstones_due[cache.number]
                self._complained = False
            except QuintetError as error:  # they stay to be tried again; a start without them finds the same state
                if not self._complained:
                    self._complained = True
                    self._report("cache_tombstones_wait", {"cache": cache.topic.name, "error": str(error)})


def name_of(scope: Scope) -> str:
    """The topic of a cache, or BadName with the reason."""
    for what, part in zip(("tenant", "namespace", "cache"), scope, strict=True):
        size = len(part.encode(errors="surrogatepass"))
        foreign = any("\ud800" <= character <= "\udfff" for character in part)  # no UTF-8 has these
        if not 0 < size <= PART_BYTES_MAX or foreign or "/" in part or "\0" in part or part.startswith(INTERNAL_PREFIX):
            raise BadName(
                f"{part!r} is no name of a {what}: 1 to {PART_BYTES_MAX} bytes of UTF-8 without / and NUL, not beginning with "
                f"{INTERNAL_PREFIX!r}"
            )
    return CACHE_PREFIX + "/".join(scope)


def _scope_of(name: str) -> Scope:
    _, tenant, namespace, cache = name.split("/")
    return tenant, namespace, cache


def _version_of(headers: tuple[Header, ...]) -> int:
    for name, text in headers:
        if name == VERSION_HEADER:
            return int(text or 0)
    return 0


def _version_in(entry: Entry | None) -> int:
    """By which a row is known: no two changes of a cache have the same. -1: there is none."""
    return -1 if entry is None else entry[VERSION]


def _check_version(key: bytes, entry: Entry | None, wanted: int | None) -> None:
    if wanted is None:
        return
    version, value = (0, None) if entry is None else (entry[VERSION], entry[VALUE])
    if version != wanted:
        raise VersionConflict(
            f"key {key!r} is at version {version}, not {wanted}" if version else f"key {key!r} is not there",
            version=version,
            value=value,
            hint="read the key again, and decide anew",
        )


def _number(value: bytes) -> int:
    """A decimal number as increment writes it."""
    text = value[: NUMBER_BYTES_MAX + 1]
    digits = text[1:] if text.startswith(b"-") else text
    if digits.isdigit():
        number = int(text)
        if b"%d" % number == value and NUMBER_MIN <= number <= NUMBER_MAX:
            return number
    raise BadRequest("the key does not hold a decimal number of 64 bits", hint="put one, or delete the key")
