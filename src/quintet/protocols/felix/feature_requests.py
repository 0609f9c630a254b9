"""Answers what newer published clients ask for beyond the document: shard counts, counters, watches, polled groups.

FelixSession inherits it. To these clients a stream is one shard, number 0, whatever partitions its topic has: a `subscribe`
that names no shard means shard 0 to them, and here it reads all partitions, so more shards would be read twice. Offsets have
the partition in them, as everywhere.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quintet.broker.consumers.polled_members import Claimed, Poll
from quintet.broker.doors.cache import COUNTERS, name_of
from quintet.broker.topics.catalog import Topic
from quintet.model.errors import BadRequest, QuintetError, VersionConflict
from quintet.protocols.base import Slot
from quintet.protocols.felix import codec, features, frames
from quintet.protocols.felix.cache_requests import CacheRequests, Late, expires_of
from quintet.protocols.felix.codec import Id, Scope, topic_of, wire_offset
from quintet.protocols.felix.mapping import DOOR, check_new
from quintet.protocols.felix.watching import PublishedWatch

ANSWER_BYTES: Final = 1_024  # of a group_records beside its records


class FeatureRequests(CacheRequests):
    """The part of a session that answers them."""

    __slots__ = ("_polls",)

    _polls: set[Poll] | None  # that wait; None: the stream is gone

    def _error(self, error: Exception, request_id: Id, slot: Slot | None = None) -> None:
        raise NotImplementedError

    # -- shards ----------------------------------------------------------------------------------------------------

    def _stream_shards(self, ask: features.StreamShards, _now: int) -> None:
        scope: Scope = (ask.tenant_id, ask.namespace, ask.stream)
        name = topic_of(scope)
        self._require_either(scope, name, "stream.publish", "stream.subscribe")
        there = self._options.auto_create or self._broker.topics.get(name.encode()) is not None
        self._answer(ask.request_id, features.StreamShardsView(shards=int(there), request_id=ask.request_id))

    def _cache_shards(self, ask: features.CacheShards, _now: int) -> None:
        scope = self._scope(ask)
        self._require_either(scope, name_of(scope), "cache.write", "cache.read")
        there = self._options.auto_create or self._broker.caches.get(scope) is not None
        self._answer(ask.request_id, features.CacheShardsView(shards=int(there), request_id=ask.request_id))

    def _require_either(self, scope: Scope, name: str, write: str, read: str) -> None:
        assert self._bearer is not None
        if not self._bearer.may("publish", write, scope, name):
            self._bearer.require("subscribe", read, scope, name)

    # -- caches ----------------------------------------------------------------------------------------------------

    def _cache_remove(self, ask: features.CacheDelete, now: int) -> None:
        """Answered with what was removed, to those who may read it."""
        cache = self._writable(ask)
        scope = self._scope(ask)
        assert self._bearer is not None
        found = cache.get(ask.key.encode(), now)
        readable = self._bearer.may("subscribe", "cache.read", scope, name_of(scope))
        late = Late(self, ask.request_id)
        try:
            cache.delete(ask.key.encode(), None, late.done)
        except QuintetError as error:
            late.refused(ask.key, error)
            return
        late.message = codec.CacheValue(
            tenant_id=ask.tenant_id, namespace=ask.namespace, cache=ask.cache, key=ask.key,
            value=found[0] if found is not None and readable else None, request_id=ask.request_id,
        )  # fmt: skip

    def _counter_add(self, ask: features.CounterAdd, now: int) -> None:
        if not -(1 << 63) <= ask.delta < 1 << 63:
            raise BadRequest("delta: a number of 64 bits")
        cache = self._reach.cache(self._scope(ask), True, COUNTERS)
        assert cache is not None, "a cache that is written to is made"
        late = Late(self, ask.request_id)
        try:
            number, _ = cache.increment(ask.key.encode(), ask.delta, None, now, late.done)
        except QuintetError as error:
            late.refused(ask.key, error)
            return
        late.message = features.CounterValue(value=number, request_id=ask.request_id)

    def _counter_get(self, ask: features.CounterGet, now: int) -> None:
        cache = self._reach.cache(self._scope(ask), False, COUNTERS)
        found = None if cache is None else cache.get(ask.key.encode(), now)
        value = None if found is None else int(found[0])
        self._answer(ask.request_id, features.CounterValue(value=value, request_id=ask.request_id))

    def _cache_put_if(self, ask: features.CachePutIf, now: int) -> None:
        cache = self._writable(ask)
        wanted = 0 if isinstance(ask.condition, str) else ask.condition.version
        expires = expires_of(ask.ttl_ms, now)

        def put(late: Late) -> int | None:
            return cache.put(ask.key.encode(), ask.value, expires, wanted, late.done)

        self._change_if(ask, put)

    def _cache_delete_if(self, ask: features.CacheDeleteIf, _now: int) -> None:
        cache = self._writable(ask)

        def delete(late: Late) -> None:
            cache.delete(ask.key.encode(), ask.version, late.done)

        self._change_if(ask, delete)

    def _change_if(
        self, ask: features.CachePutIf | features.CacheDeleteIf, change: Callable[[Late], int | None]
    ) -> None:
        late = Late(self, ask.request_id)
        try:
            version = change(late)
        except VersionConflict as conflict:
            current = conflict.version or None
            late.say(features.CacheConditionResult(applied=False, version=current, request_id=ask.request_id))
            return
        except QuintetError as error:
            late.refused(ask.key, error)
            return
        late.message = features.CacheConditionResult(applied=True, version=version, request_id=ask.request_id)

    def _cache_watch_published(self, ask: features.CacheWatch, _now: int) -> None:
        if (ask.key is None) == (ask.prefix is None):
            raise BadRequest("prefix: a key or a prefix, one of them")
        if ask.retained and ask.from_offset is not None:
            raise BadRequest("retained: the state as it is, or from an offset, not both")
        if ask.shard not in (None, 0):
            raise BadRequest(f"shard: {ask.shard}; a cache has one shard, number 0")
        assert self._bearer is not None
        scope = self._scope(ask)
        self._check_id(ask.subscription_id)
        self._reach.cache(scope, False)
        cache = self._broker.caches.open(scope)
        id = self._shared.claim(ask.subscription_id, False, scope[0])
        feed = PublishedWatch(self._shared, id, self._bearer, scope, name_of(scope), cache)
        key, prefix = None if ask.key is None else ask.key.encode(), (ask.prefix or "").encode()
        try:
            feed.watch(key, prefix)
        except QuintetError:
            self._shared.unclaim(id, scope[0])
            raise
        self._shared.add(feed)
        # What was before cannot be read again: the state as it is now stands for it.
        missed = ask.from_offset is not None and ask.from_offset <= cache.version
        started = features.CacheWatchStarted(subscription_id=id, resume_offset=cache.version + 1, resnapshot=missed)
        say = partial(self._sink.completed, partial(self._watch_started, self._replies.reserve(), feed, started))
        if ask.retained or missed:
            feed.collect(key, prefix, lambda count: say(count if ask.retained else None, None))
        else:
            say(None, None)

    def _watch_started(
        self, slot: Slot, feed: PublishedWatch, started: features.CacheWatchStarted, count: object,
        _error: Exception | None,
    ) -> None:  # fmt: skip
        assert isinstance(count, int | None)
        started.retained_count = count
        self._replies.fill(slot, codec.encode(started))
        feed.start()

    # -- groups ----------------------------------------------------------------------------------------------------

    def _group_topic(self, ask: features.GroupPoll | features.GroupAck | features.GroupNack, make: bool) -> Topic:
        """The topic of a group, if this client may read it. A group is its owner's."""
        scope: Scope = (ask.tenant_id, ask.namespace, ask.stream)
        name = topic_of(scope)
        assert self._bearer is not None
        self._bearer.require("subscribe", "stream.subscribe", scope, name)
        codec.check_part(ask.group, "group")
        if ask.shard != 0:
            raise BadRequest(f"shard: {ask.shard}; a stream has one shard, number 0, with all its partitions")
        if not make:
            return self._broker.topics.find(name.encode())
        if self._broker.topics.get(name.encode()) is None:
            check_new(self._broker, self._options, scope)
        return self._broker.topics.ensure(name.encode(), durable=True, owner=self._bearer.owner)

    def _group_poll(self, ask: features.GroupPoll, _now: int) -> None:
        if ask.max_records < 1 or ask.wait_ms < 0:
            raise BadRequest("max_records: 1 or more; wait_ms: 0 or more")
        topic = self._group_topic(ask, make=True)
        slot = self._replies.reserve()
        done = partial(self._sink.completed, partial(self._polled, slot, ask.request_id))
        topic.after(partial(self._poll, ask, topic, done))

    def _poll(
        self, ask: features.GroupPoll, topic: Topic, done: Callable[[list[Claimed] | None, Exception | None], None],
        error: Exception | None,
    ) -> None:  # fmt: skip
        """The topic is there."""
        if self._polls is None or self._bearer is None:
            return
        if error is not None:
            done(None, error)
            return
        wait_us = min(ask.wait_ms, frames.GROUP_WAIT_MS_MAX) * 1_000
        count = min(ask.max_records, frames.GROUP_RECORDS_MAX)
        most = self._options.frame_bytes_max - ANSWER_BYTES
        meter = self._shared.streams.meter
        if meter is not None:
            most = min(most, meter.answer_bytes_max)
        try:
            poll = self._broker.claims.poll(self._bearer.owner, topic, ask.group, DOOR, count, most, wait_us)
        except QuintetError as refused:
            done(None, refused)
            return
        poll.claimed.then(done)
        if self._polls is not None:
            self._polls = {one for one in (*self._polls, poll) if not one.over}

    def _polled(self, slot: Slot, request_id: int, found: object, error: Exception | None) -> None:
        if error is not None:
            self._error(error, request_id, slot)
            return
        assert isinstance(found, list)
        records = []
        for partition, batch, row, attempt in found:
            value = batch.rows(row, row + 1)[0][3] or b""
            offset = wire_offset(partition, batch.offset(row))
            records.append(features.GroupRecord(offset=offset, payload=value, attempts=attempt))
        said = features.GroupRecords(records=records, request_id=request_id)
        self._replies.fill(slot, self._weighed(codec.encode(said), None))

    def _group_ack(self, ask: features.GroupAck, _now: int) -> None:
        self._settle(ask, self._broker.claims.ack)

    def _group_nack(self, ask: features.GroupNack, _now: int) -> None:
        self._settle(ask, self._broker.claims.nack)

    def _settle(self, ask: features.GroupAck | features.GroupNack, settle: Callable[..., None]) -> None:
        topic = self._group_topic(ask, make=False)
        assert self._bearer is not None
        partition, offset = codec.offset_of(ask.offset, len(topic.partitions))
        settle(self._bearer.owner, topic, ask.group, partition, offset)
        self._answer(ask.request_id, codec.CacheOk(request_id=ask.request_id))

    def _unsupported(self, error: codec.UnknownType, request_id: Id) -> None:
        id = request_id if isinstance(request_id, int) and codec.is_u64(request_id) else None
        self._replies.put(codec.encode(features.Unsupported(request_type=codec.cut(error.type), request_id=id)))


HANDLERS: Final[dict[type, Callable[..., None]]] = {
    features.StreamShards: FeatureRequests._stream_shards,
    features.CacheShards: FeatureRequests._cache_shards,
    features.CacheDelete: FeatureRequests._cache_remove,
    features.CacheWatch: FeatureRequests._cache_watch_published,
    features.CounterAdd: FeatureRequests._counter_add,
    features.CounterGet: FeatureRequests._counter_get,
    features.CachePutIf: FeatureRequests._cache_put_if,
    features.CacheDeleteIf: FeatureRequests._cache_delete_if,
    features.GroupPoll: FeatureRequests._group_poll,
    features.GroupAck: FeatureRequests._group_ack,
    features.GroupNack: FeatureRequests._group_nack,
}
