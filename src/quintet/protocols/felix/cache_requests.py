"""Answers the cache requests of a Felix stream: get, put, delete, increment, many, watch.

FelixSession inherits it. An answer that waits for the disk is an object of its own (`Late`): with a request_id it is said when
it is known, without one in the order of requests.
"""

from collections.abc import Callable

import msgspec

from quintet import kernel
from quintet.broker.bearer import Bearer
from quintet.broker.core import Broker
from quintet.broker.doors.cache import Cache, expires_at, name_of
from quintet.broker.doors.cache_memory import EXPIRES
from quintet.broker.slices import Steps
from quintet.broker.topics.catalog import Topic
from quintet.delivery.sink import Sink
from quintet.model.errors import BadRequest, QuintetError, VersionConflict
from quintet.protocols.base import Replies, Slot
from quintet.protocols.felix import codec, errors, frames
from quintet.protocols.felix.codec import Id, Scope
from quintet.protocols.felix.frames import Dialect
from quintet.protocols.felix.mapping import FelixPeer, Reach
from quintet.protocols.felix.section import FelixListener
from quintet.protocols.felix.watching import WatchStream


class CacheRequests:
    """The part of a session that its caches need; what is declared here, session.py sets."""

    __slots__ = (
        "_bearer", "_behind", "_broker", "_dialect", "_epoch", "_late", "_made", "_options", "_reach", "_replies", "_scopes", "_shared", "_sink", "_topic", "quick", "stopped",
    )  # fmt: skip

    _bearer: Bearer | None
    _behind: int
    _broker: Broker
    _dialect: Dialect
    _epoch: int
    _late: int
    _made: int
    _options: FelixListener
    _reach: Reach
    _replies: Replies
    _scopes: dict[bytes, kernel.CacheMemory]
    _shared: FelixPeer
    _sink: Sink
    stopped: bool
    _topic: Topic | None
    quick: Callable[[bytes, int], bytes] | None

    def _check_id(self, id: Id) -> None:
        raise NotImplementedError

    def _subscribed(self, slot: Slot, request_id: Id, feed: object, error: Exception | None) -> None:
        raise NotImplementedError

    def _leave_if_barred(self, error: Exception) -> None:
        raise NotImplementedError

    def _gets(self, view: memoryview, position: int, now: int) -> int:
        """Answer the cache gets that come next, in one call."""
        most = frames.ANSWER_BYTES_MAX - self._made
        reply, end, hits, misses = kernel.felix_gets(
            view, position, self._options.frame_bytes_max, self._scopes, now, most, self._dialect.versions
        )
        if end != position:
            self._replies.push(self._weighed(reply, 0))
            self._broker.caches.hits += hits
            self._broker.caches.misses += misses
            if not (position or self.stopped or self._late or self._topic) and end == len(view):
                self.quick = self._answer_gets
        return end

    def _answer_gets(self, data: bytes, now: int) -> bytes:
        """A read of nothing but gets of caches that it may read, as the last one was: all answers. Empty: `receive` takes it."""
        if self._epoch != self._broker.access.epoch:
            return b""
        reply, end, hits, misses = kernel.felix_gets(
            data, 0, self._options.frame_bytes_max, self._scopes, now, frames.ANSWER_BYTES_MAX, self._dialect.versions
        )
        if end != len(data) or len(reply) >= frames.ANSWER_BYTES_MAX:
            return b""  # nothing was counted; that some keys are marked as used is true
        self._broker.caches.hits += hits
        self._broker.caches.misses += misses
        return reply

    def _writable(self, ask: codec.AboutCache) -> Cache:
        cache = self._reach.cache(self._scope(ask), True)
        assert cache is not None, "a cache that is written to is made"
        return cache

    def _scope(self, ask: codec.AboutCache) -> Scope:
        return codec.cache_scope(ask, self._dialect.document)

    def _cache_get(self, ask: codec.CacheGet, now: int) -> None:
        cache = self._reach.cache(self._scope(ask), False)
        found = None if cache is None else cache.get(ask.key.encode(), now)
        value, version = (None, None) if found is None else found
        self._answer(
            ask.request_id,
            codec.CacheValue(
                tenant_id=ask.tenant_id, namespace=ask.namespace, cache=ask.cache, key=ask.key, value=value,
                request_id=ask.request_id, version=version if self._dialect.versions else None,
            ),
        )  # fmt: skip

    def _answer(self, request_id: Id, message: msgspec.Struct) -> None:
        """An answer that is known now: with an id it does not wait for others."""
        data = self._weighed(codec.encode(message), request_id)
        if request_id is None:
            self._replies.put(data)
        else:
            self._replies.push(data)

    def _weighed(self, data: bytes, request_id: Id) -> bytes:
        """One more answer: above a bound the rest of this read waits until the peer took them, or its turn came."""
        self._made += len(data)
        self._behind += len(data) if request_id is None else 0
        self.stopped = self._made >= frames.ANSWER_BYTES_MAX
        return data

    def _cache_put(self, ask: codec.CachePut, now: int) -> None:
        cache = self._writable(ask)
        wanted = ask.if_version if isinstance(ask, codec.CachePutOurs) else None
        late = Late(self, ask.request_id)
        try:
            version = cache.put(ask.key.encode(), ask.value, expires_of(ask.ttl_ms, now), wanted, late.done)
        except QuintetError as error:
            late.refused(ask.key, error)
            return
        if self._dialect.document or ask.request_id is None:
            late.message = codec.Ok(request_id=ask.request_id)
        else:
            late.message = codec.CacheOk(request_id=ask.request_id, version=version if self._dialect.extended else None)

    def _cache_delete(self, ask: codec.CacheDelete, _now: int) -> None:
        cache = self._writable(ask)
        late = Late(self, ask.request_id)
        try:
            existed, version = cache.delete(ask.key.encode(), ask.if_version, late.done)
        except QuintetError as error:
            late.refused(ask.key, error)
            return
        late.message = codec.CacheOk(request_id=ask.request_id, version=version, existed=existed)

    def _cache_incr(self, ask: codec.CacheIncr, now: int) -> None:
        if not -(1 << 63) <= ask.delta < 1 << 63:
            raise BadRequest("delta: a number of 64 bits")
        expires = None if ask.ttl_ms is None else expires_of(ask.ttl_ms, now)
        cache = self._writable(ask)
        late = Late(self, ask.request_id)
        try:
            number, version = cache.increment(ask.key.encode(), ask.delta, expires, now, late.done)
        except QuintetError as error:
            late.refused(ask.key, error)
            return
        late.message = codec.CacheNumber(request_id=ask.request_id, key=ask.key, number=number, version=version)

    def _cache_get_many(self, ask: codec.CacheGetMany, now: int) -> None:
        if len(ask.keys) > frames.KEYS_MAX:
            raise BadRequest(f"keys: at most {frames.KEYS_MAX}")
        cache = self._reach.cache(self._scope(ask), False)
        found = [None if cache is None else cache.get(key.encode(), now) for key in ask.keys]
        if sum(len(entry[0]) for entry in found if entry is not None) * 4 // 3 > frames.most_values(
            self._options.frame_bytes_max
        ):
            raise BadRequest(
                f"keys: over {frames.most_values(self._options.frame_bytes_max)} bytes of values as JSON, ask for fewer"
            )
        values = [None if entry is None else entry[0] for entry in found]
        versions = [0 if entry is None else entry[1] for entry in found]
        self._answer(ask.request_id, codec.CacheValues(request_id=ask.request_id, values=values, versions=versions))

    def _cache_keys(self, ask: codec.CacheKeys, now: int) -> None:
        """A page of keys in order, behind the last one of the page before. A cache has no order, so each page is a scan, made
        in slices: what is put or deleted meanwhile may or may not be in it."""
        if not 0 <= ask.limit <= frames.KEYS_MAX:
            raise BadRequest(f"limit: 0 to {frames.KEYS_MAX}")
        cache = self._reach.cache(self._scope(ask), False)
        late = Late(self, ask.request_id)
        most = frames.most_values(self._options.frame_bytes_max)
        prefix, after = ask.prefix.encode(), ask.after.encode()
        scan = _key_page(
            kernel.CacheMemory() if cache is None else cache.entries,
            prefix,
            after,
            ask.limit or frames.KEYS_MAX,
            most,
            now,
        )

        def found(page: tuple[list[str], bool] | None, error: Exception | None) -> None:
            if page is not None:
                late.message = codec.CacheKeyList(request_id=ask.request_id, keys=page[0], more=page[1])
            late.done(error)

        self._broker.slices.finish(scan).then(found)

    def _cache_watch(self, ask: codec.CacheWatch, _now: int) -> None:
        if ask.key is not None and ask.prefix is not None:
            raise BadRequest("prefix: a key or a prefix, not both")
        assert self._bearer is not None
        scope = self._scope(ask)
        self._check_id(ask.subscription_id)
        self._reach.cache(scope, False)
        cache = self._broker.caches.open(scope)
        id = self._shared.claim(ask.subscription_id, self._dialect.document, scope[0])
        feed = WatchStream(self._shared, id, self._bearer, scope, name_of(scope), cache)
        try:
            feed.watch(*(None if text is None else text.encode() for text in (ask.key, ask.prefix)))
        except QuintetError:
            self._shared.unclaim(id, scope[0])
            raise
        self._shared.add(feed)
        self._subscribed(self._replies.reserve(), ask.request_id, feed, None)
        feed.start()


class Late:
    """The answer to a change of a cache, which comes when it is durable. Without a request_id it keeps its place."""

    __slots__ = ("_request_id", "_session", "_sink", "_slot", "message")

    def __init__(self, session: CacheRequests, request_id: Id) -> None:
        self.message: msgspec.Struct | None = None
        self._session = session
        self._sink = session._sink
        self._request_id = request_id
        self._slot = session._replies.reserve() if request_id is None else None
        session._late += self._slot is None

    def done(self, error: Exception | None) -> None:
        """Called by the cache, never within the call that made the change."""
        self._sink.completed(self._answered, None, error)

    def _answered(self, _result: object, error: Exception | None) -> None:
        if error is None:
            assert self.message is not None, "whoever asks for a change says what to answer"
            self._say(codec.encode(self.message))
        else:
            self._say(errors.encoded(error, self._session._dialect, self._request_id))

    def say(self, message: msgspec.Struct) -> None:
        """It is known now."""
        self._say(codec.encode(message))

    def refused(self, key: str, error: QuintetError) -> None:
        session = self._session
        if isinstance(error, VersionConflict):
            conflict = codec.CacheConflict(
                request_id=self._request_id, key=key, version=error.version, value=error.value
            )
            self._say(session._weighed(codec.encode(conflict), self._request_id))
            return
        self._say(errors.encoded(error, session._dialect, self._request_id))
        session._leave_if_barred(error)

    def _say(self, data: bytes) -> None:
        session = self._session
        if self._slot is not None:
            session._replies.fill(self._slot, data)
        else:
            session._late -= 1
            session._replies.push(data)


def _key_page(
    entries: kernel.CacheMemory, prefix: bytes, after: bytes, limit: int, bytes_max: int, now: int
) -> Steps[tuple[list[str], bool]]:
    """The first keys behind `after` that begin with `prefix`, and whether there are more."""
    found: list[bytes] = []
    keys = list(entries)
    for at in range(0, len(keys), frames.SCANNED_PER_TURN_MAX):
        for key in keys[at : at + frames.SCANNED_PER_TURN_MAX]:
            entry = entries.get(key)
            if key > after and key.startswith(prefix) and entry is not None and not 0 < entry[EXPIRES] <= now:
                found.append(key)
        if len(found) > 2 * limit:
            found = sorted(found)[: limit + 1]
        yield
    found.sort()
    page: list[str] = []
    for key in found[:limit]:
        bytes_max -= 2 * len(key)  # quoted, and escaped
        if bytes_max < 0 and page:
            break
        page.append(key.decode())
    return page, len(page) < len(found)


def expires_of(ttl_ms: int | None, now: int) -> int:
    if ttl_ms is None:
        return 0
    if ttl_ms < 0:
        raise BadRequest("ttl_ms: 0 or more")
    return expires_at(now, ttl_ms)
