"""Felix's nouns <-> ours: names, who is asking, and what a connection is subscribed to.

    (tenant, namespace, stream)  topic tenant/namespace/stream; both of the first two empty: the topic `stream` of any door
    (tenant, namespace, cache)   topic cache/tenant/namespace/cache
    offset on the wire           partition << 48 | offset
    event stream                 a Feed: one outlet, and behind it a subscription, a member of a group, or a watched cache

A Feed lives with its connection, not with the stream that asked for it: the published client ends that one at once. So it
holds what it was allowed by (`Bearer`), and ends when that is no longer valid.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from quintet import kernel
from quintet.broker.bearer import Bearer
from quintet.broker.consumers.pushed_member import Membership
from quintet.broker.core import Broker
from quintet.broker.doors.cache import Cache, name_of
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.seek import seek_all
from quintet.delivery.lane import Lane
from quintet.delivery.subscription import Subscription
from quintet.kernel import CacheMemory
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import (
    BadRequest,
    LimitExceeded,
    QuintetError,
    TopicNotFound,
)
from quintet.model.tasks import start
from quintet.protocols import records
from quintet.protocols.base import TOO_SLOW, Outlet, Streams
from quintet.protocols.felix import codec, errors, frames
from quintet.protocols.felix.codec import Scope, topic_of, wire_offset
from quintet.protocols.felix.frames import Dialect
from quintet.protocols.felix.section import FelixListener

Told = Callable[[bytes, Exception | None], None]
Made = Callable[["Feed | None", Exception | None], None]
DOOR: Final = "felix"
EXPIRY_LOOK_US_MAX: Final = 4_000_000  # how long after its token a feed may live
UNSURE_BYTES: Final = 4 * limits.WRITE_HIGH_BYTES  # sent last, of which the peer may not have got all


def check_new(broker: Broker, options: FelixListener, scope: Scope) -> None:
    """Raise unless a stream that does not exist may be made."""
    if not options.auto_create:
        raise TopicNotFound("stream not found: tenant={} namespace={} stream={}".format(*scope))
    broker.check_open()
    if scope[0]:
        broker.tenants.check_topic(scope[0])


class Reach:
    """What one stream remembers of its rights: where its publishes go, and which caches it may use. All of it is forgotten
    when access changes."""

    __slots__ = ("_bearer", "_broker", "_caches", "_document", "_options", "barred", "scopes", "targets")

    def __init__(self, bearer: Bearer, options: FelixListener, document: bool) -> None:
        self._bearer = bearer
        self._broker = bearer.broker
        self._options = options
        self._document = document
        self.targets: dict[tuple[bytes, bool], tuple[Topic, str]] = {}  # (names, acknowledged) -> (topic, tenant)
        self.barred: set[tuple[bytes, bool]] = set()  # of the same keys: refused, and nobody waited for the answer
        self.scopes: dict[bytes, CacheMemory] = {}  # what kernel.felix_gets may answer from
        self._caches: dict[tuple[Scope, bool, str], Cache] = {}

    def forget(self) -> None:
        self.targets.clear()
        self.barred.clear()
        self.scopes.clear()
        self._caches.clear()

    def target(self, key: tuple[bytes, bool]) -> tuple[Topic, str]:
        """The topic that a publish to these names goes to, and its tenant."""
        scope = codec.parse_target(key[0])
        name = topic_of(scope)
        bearer, broker = self._bearer, self._broker
        bearer.require("publish", "stream.publish", scope, name)
        if broker.topics.get(name.encode()) is None:
            check_new(broker, self._options, scope)
        if len(self.targets) >= frames.TARGETS_MAX:
            self.targets.clear()
        topic = broker.publish_target(bearer.principal, name.encode(), key[1], bearer.peer, owner=bearer.owner)
        self.targets[key] = found = (topic, scope[0])
        return found

    def cache(self, scope: Scope, write: bool, suffix: str = "") -> Cache | None:
        """The cache, if this client may use it so; None: there is none to read from. With a suffix the one whose name has
        that at its end, for which the rights to the cache itself count."""
        found = self._caches.get((scope, write, suffix))
        if found is not None and not found.deleted:
            return found
        name, caches = name_of(scope), self._broker.caches
        if write:
            self._bearer.require("publish", "cache.write", scope, name)
        else:
            self._bearer.require("subscribe", "cache.read", scope, name)
        place = (*scope[:2], scope[2] + suffix)
        if caches.get(place) is None:
            if not self._options.auto_create and caches.get(scope) is None:
                raise TopicNotFound(f"cache scope not found: {'/'.join(scope)}")
            if not write:
                return None
        if write:
            self._broker.check_open()
        cache = caches.open(place)
        if len(self._caches) >= frames.SCOPES_MAX:
            self._caches.clear()
            self.scopes.clear()
        self._caches[scope, write, suffix] = cache
        if not write and not suffix:
            self.scopes["\0".join(scope).encode()] = cache.entries
            if self._document and scope == frames.DEFAULT_SCOPE:
                self.scopes[b""] = cache.entries
        return cache


# -- what a connection gets -------------------------------------------------------------------------------------------


class Feed(ABC):
    """One event stream. `told` takes a message for the stream that asked for it, while that is open."""

    def __init__(
        self, peer: "FelixPeer", id: int | str, bearer: Bearer, permission: str, scope: Scope, name: str
    ) -> None:
        self.id = id
        self.bearer = bearer
        self.told: Told | None = None
        self._peer = peer
        self._broker = bearer.broker
        self._permission = permission
        self.scope = scope
        self._name = name
        self._outlet: Outlet | None = None
        self._over = False
        self._epoch = -1  # rights may have gone while it was made: they are looked at before the first record

    def start(self) -> None:
        """Open the stream and say which it is."""
        if not self._over:
            self._outlet = self._peer.streams.open(self._gone)
            self._outlet.send([codec.encode(codec.Hello(subscription_id=self.id))])

    @property
    def offsets(self) -> list[int] | None:
        """Where it begins, by partition, if it is a topic's and all of it."""
        return None

    def end(self, forget: bool = False) -> None:
        """FIN. `forget`: what it kept for its return is removed, too."""
        outlet = self._outlet
        try:
            self._finish(forget)
        finally:
            if outlet is not None:
                outlet.end()

    def cut(self, code: int) -> None:
        """What was not sent is not wanted any more: its credential is not valid, or its rights are gone."""
        outlet = self._outlet
        self._finish(False)
        if outlet is not None:
            outlet.reset(code)

    def _gone(self, code: int) -> None:
        if code == TOO_SLOW and self.told is not None:
            self._stalled(self.told)
        self._finish(False)

    def _finish(self, forget: bool) -> None:
        if not self._over:
            self._over = True
            self._outlet = None
            self.told = None
            try:
                self._release(forget)
            finally:  # a full disk may refuse to forget
                self._peer.drop(self)

    def welcome(self, now: int) -> bool:
        """Whether its credential and rights still are what it was made by."""
        self._epoch = self._broker.access.epoch
        return self.bearer.valid(now) and self.bearer.may("subscribe", self._permission, self.scope, self._name)

    def _barred(self) -> bool:
        """Access changed, and it is over: nothing more may be sent."""
        if self._epoch == self._broker.access.epoch or self.welcome(self._broker.scheduler.now()):
            return False
        self.cut(frames.REVOKED)
        return True

    @property
    def vanished(self) -> bool:
        """What it is about was deleted."""
        return False

    @abstractmethod
    def _release(self, forget: bool) -> None:
        """Let go of what it reads; `forget`: for good."""

    @abstractmethod
    def _stalled(self, told: Told) -> None:
        """Its peer read nothing for too long, and the outlet was reset."""


class EventStream(Feed):
    """Records of a topic for one subscriber: the Sink of its subscription."""

    def __init__(
        self, peer: "FelixPeer", id: int | str, bearer: Bearer, scope: Scope, topic: Topic, dialect: Dialect
    ) -> None:
        super().__init__(peer, id, bearer, "stream.subscribe", scope, topic.name)
        self.subscription: Subscription | None = None
        self._topic = topic
        self._dialect = dialect
        self._frame_bytes_max = peer.options.frame_bytes_max
        self._skipped: dict[int, int] = {}  # partition -> records passed over when it was last told
        self._last: deque[tuple[int, int, int]] = deque()  # partition, first offset, bytes: what was sent last
        self._last_bytes = 0
        self._target = codec.target_json(*scope) if dialect.document else b""

    def start(self) -> None:
        super().start()
        subscription = self.subscription
        if subscription is None or self._over:
            return
        if isinstance(subscription.sink, EventStream):
            subscription.sink.end()  # whoever comes later has it
        self._skipped = {number: lane.skipped for number, lane in enumerate(subscription.lanes)}
        subscription.attach(self)

    @property
    def vanished(self) -> bool:
        return self._topic.deleted

    def settle(self, partition: int, offset: int, count: int, done: Callable[[Exception | None], None]) -> None:
        """Acknowledged by the peer."""
        if self.subscription is not None:
            self.subscription.ack(partition, offset, count)
        done(None)

    @property
    def partitions(self) -> int:
        return len(self._topic.partitions)

    @property
    def offsets(self) -> list[int] | None:
        return None if self.subscription is None else [lane.floor for lane in self.subscription.lanes]

    def _release(self, forget: bool) -> None:
        subscription, self.subscription = self.subscription, None
        if subscription is None:
            return
        subscription.detach(self)
        subscriptions = self._broker.subscriptions
        if (subscription.id < 0 or forget) and subscriptions.find(subscription.owner, subscription.id) is subscription:
            subscriptions.remove(subscription)

    def _stalled(self, told: Told) -> None:
        """Where it may not have got to, for each partition: what is not acknowledged, or what was sent last."""
        subscription = self.subscription
        if subscription is None:
            return
        places = {partition: offset for partition, offset, _ in reversed(self._last)}  # the first of each
        for partition, lane in enumerate(subscription.lanes):
            place = lane.floor if subscription.qos else places.get(partition, lane.position)
            told(self._lagged(0, wire_offset(partition, place)), None)

    def _lagged(self, missed: int, next_offset: int) -> bytes:
        return codec.encode(codec.Lagged(subscription_id=self.id, missed=missed, next_offset=next_offset))

    # -- the Sink --------------------------------------------------------------------------------------------------

    def room(self) -> int:
        return 0 if self._outlet is None else self._outlet.room()

    def park(self, call: Callable[[], None]) -> None:
        if self._outlet is not None:
            self._outlet.park(call)

    @property
    def withheld(self) -> bool:
        meter = self._peer.streams.meter
        return meter is not None and meter.withheld(self._broker.scheduler.monotonic()) > 0

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        assert isinstance(subscription, Subscription)
        try:
            self._send_records(subscription, partition, batch, first, last)
        except Exception as error:  # its own connection ends; the publisher and the other subscribers go on
            self._peer.streams.fault("records", error)

    def _send_records(
        self, subscription: Subscription, partition: int, batch: RecordBatch, first: int, last: int
    ) -> None:
        outlet = self._outlet
        if outlet is None or self._barred():
            return
        data = [self._encode(partition, batch, first, last)]
        if self._dialect.extended:
            offset = batch.offset(first)
            self._last.append((partition, offset, len(data[0])))
            self._last_bytes += len(data[0])
            while self._last_bytes - self._last[0][2] > UNSURE_BYTES:
                self._last_bytes -= self._last.popleft()[2]
            if missed := self._missed(subscription, partition):
                data.insert(0, self._lagged(missed, wire_offset(partition, offset)))
        outlet.send(data)

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        raise AssertionError("an event stream publishes nothing")

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        raise AssertionError("an event stream asks for nothing")

    def evict(self, reason: str) -> None:
        self.end()

    def _lane(self, subscription: Subscription, partition: int) -> Lane:
        return subscription.lanes[partition]

    def _missed(self, subscription: Subscription, partition: int) -> int:
        """Records that retention or expiry took before this subscriber could read them, since it was last told. What
        compaction leaves out is not missed: a newer record of the same key follows."""
        skipped = self._lane(subscription, partition).skipped
        before = min(self._skipped.get(partition, 0), skipped)  # less: the partition was another member's meanwhile
        self._skipped[partition] = skipped
        return 0 if self._topic.spec.compact else skipped - before

    def _encode(self, partition: int, batch: RecordBatch, first: int, last: int) -> bytes:
        """Event frames. A whole batch looks the same to every subscriber of a kind: it is encoded once."""
        dialect = self._dialect
        whole = first == 0 and last == batch.count
        kind = ("felix", self._target, dialect.offsets, dialect.zstd, dialect.keys, dialect.whole)
        if whole and batch.memo is not None and (found := batch.memo.get(kind)) is not None:
            return found
        most = self._frame_bytes_max
        if dialect.document:
            data, _, omitted = kernel.felix_events(batch.buffer, first, last, 0, self._target, most)
        elif dialect.whole:
            data, omitted = record_frames(batch, first, last, wire_offset(partition, 0), most)
        else:
            high = wire_offset(partition, 0)
            data, _, omitted = kernel.felix_deliver(
                batch.buffer, first, last, 0, dialect.offsets, high, most, dialect.keys
            )
        if omitted:
            return self._with_notices(partition, batch, data, omitted)
        if dialect.zstd:
            data = codec.packed(data, frames.ZSTD_BYTES_MIN, frames.ZSTD_BYTES_MAX)
        if whole and batch.memo is not None:
            batch.memo[kind] = data
        return data

    def _with_notices(
        self, partition: int, batch: RecordBatch, data: bytes, omitted: list[tuple[int, int, int]]
    ) -> bytes:
        """Frames, and where a message is too large for one, a frame that says so. A published client sees it by the offsets."""
        out, at = [], 0
        for place, row, size in omitted:
            wire = wire_offset(partition, batch.offset(row))
            out.append(data[at:place])
            at = place
            if self._dialect.document:
                text = f"the message at offset {wire} was left out: its frame has {size} bytes, the limit is {self._frame_bytes_max}"
                out.append(codec.encode(codec.Error(message=text)))
            elif self._dialect.extended:
                out.append(self._lagged(1, wire + 1))
            self._left_out(partition, batch.offset(row))
        return b"".join((*out, data[at:]))

    def _left_out(self, partition: int, offset: int) -> None:
        """It was told that this message cannot be sent to it. What must be acknowledged ends as a dead letter."""


def record_frames(
    batch: RecordBatch, first: int, last: int, base: int, most: int
) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Event frames of record sets, and what kernel.felix_deliver calls omitted."""
    out: list[bytes] = []
    omitted: list[tuple[int, int, int]] = []
    place = 0
    for data, number, _ in records.sets(batch, first, last, 0, base, most):
        if len(data) > most:
            omitted.append((place, number, len(data)))
            continue
        out.append(codec.frame(data, frames.EVENTS | frames.RECORDS))
        place += len(out[-1])
    return b"".join(out), omitted


class GroupStream(EventStream):
    """Records for one member of a consumer group."""

    def __init__(
        self, peer: "FelixPeer", id: int | str, bearer: Bearer, scope: Scope, topic: Topic, dialect: Dialect, group: str,
        mode: str,
    ) -> None:  # fmt: skip
        super().__init__(peer, id, bearer, scope, topic, dialect)
        broker = self._broker
        self._group = group
        self.member = Membership(
            broker.groups, broker.subscriptions, broker.scheduler, topic, group, mode, DOOR, self._rights, self.end
        )

    def _rights(self) -> tuple[str, bool]:
        return self.bearer.owner, self.bearer.acts_for(f"group:{self._group}")

    def start(self) -> None:
        super().start()
        if not self._over:
            self.member.start(self)

    def settle(self, partition: int, offset: int, count: int, done: Callable[[Exception | None], None]) -> None:
        self.member.settle(partition, offset, count, done)

    def _left_out(self, partition: int, offset: int) -> None:
        """A group would wait for it without end: its position passes it."""
        self.settle(partition, offset, 1, lambda _error: None)

    def _lane(self, subscription: Subscription, partition: int) -> Lane:
        return subscription.lanes[0]

    def _release(self, forget: bool) -> None:
        self.member.leave()


class Ends(Protocol):
    """Something that ends with a connection."""

    def closed(self) -> None: ...


class FelixPeer:
    """What the streams of one connection share: its feeds by their ids, and which tenants it counts for."""

    __slots__ = ("_broker", "_closed", "_epoch", "_feeds", "_next", "_tenants", "_watching", "elsewhere", "options", "places", "streams")  # fmt: skip

    def __init__(self, broker: Broker, streams: Streams, options: FelixListener) -> None:
        self.options = options
        self.streams = streams
        self._broker = broker
        self._feeds: dict[int | str, Feed | None] = {}  # None: its id is taken, it is being made
        self._tenants: set[str] = set()
        self._next = 0
        self._epoch = broker.access.epoch
        self._closed = self._watching = False
        self.elsewhere: Ends | None = None  # what this connection has in other cells (net/cells/streams.py)
        self.places: object | None = None  # which cell each of its feeds is in, where there are several (routing.py)

    def enter(self, user: str, tenant: str) -> None:
        """Somebody logged in on a stream, with a token of this tenant if it is not empty: the connection counts once, for the
        tenant and for the user that came last. LimitExceeded."""
        if tenant and tenant not in self._tenants:
            self._broker.tenants.connection_opened(tenant)
            self._tenants.add(tenant)
        self._broker.quotas.join(self.streams, user, tenant)

    def claim(self, wanted: codec.Id, text: bool, tenant: str) -> int | str:
        """An id for a feed: the one asked for, or the next. It is given back by `drop`, or by `unclaim`."""
        if len(self._feeds) >= self.options.subscriptions_max:
            raise LimitExceeded(errors.SUBSCRIPTIONS)
        if wanted is None:
            while self._next in self._feeds or str(self._next) in self._feeds or not self._next:
                self._next += 1
            id: int | str = str(self._next) if text else self._next
        else:
            id = wanted
            if isinstance(id, str) and len(id) > frames.SUBSCRIPTION_ID_BYTES_MAX:
                raise BadRequest(f"subscription_id: at most {frames.SUBSCRIPTION_ID_BYTES_MAX} characters")
            if id in self._feeds:
                raise BadRequest(f"subscription_id: {id} is in use on this connection")
        if tenant:
            self._broker.tenants.subscription_opened(tenant)
        self._feeds[id] = None
        return id

    def unclaim(self, id: int | str, tenant: str) -> None:
        del self._feeds[id]
        if tenant:
            self._broker.tenants.subscription_closed(tenant)

    def add(self, feed: Feed) -> None:
        """It is made; if the connection is gone meanwhile, it is over."""
        if self._closed:
            feed.end()
            return
        self._feeds[feed.id] = feed
        if feed.bearer.claims is not None and not self._watching:
            self._watching = True
            self._look_later()

    def drop(self, feed: Feed) -> None:
        if feed.id in self._feeds:
            self.unclaim(feed.id, feed.scope[0])

    def feed(self, id: int | str) -> Feed | None:
        return self._feeds.get(id)

    def end_of(self, bearer: Bearer) -> None:
        """A stream's credential is not valid any more: what was asked for by it ends."""
        for feed in list(self._feeds.values()):
            if feed is not None and feed.bearer is bearer:
                feed.cut(frames.REVOKED)

    def recheck(self, now: int) -> None:
        """Access may have changed: once for each change, end what is no longer allowed."""
        if self._epoch != self._broker.access.epoch:
            self._check(now)

    def _check(self, now: int) -> None:
        self._epoch = self._broker.access.epoch
        for feed in list(self._feeds.values()):
            if feed is not None and feed.vanished:
                feed.end()
            elif feed is not None and not feed.welcome(now):
                feed.cut(frames.REVOKED)

    def _look_later(self) -> None:
        self._broker.scheduler.later(EXPIRY_LOOK_US_MAX, self._look)

    def _look(self) -> None:
        """Tokens expire also of feeds whose stream is long closed."""
        self._watching = False
        if self._closed:
            return
        self._check(self._broker.scheduler.now())
        if any(feed is not None and feed.bearer.claims is not None for feed in self._feeds.values()):
            self._watching = True
            self._look_later()

    def closed(self) -> None:
        self._closed = True
        if self.elsewhere is not None:
            self.elsewhere.closed()
        for feed in list(self._feeds.values()):
            if feed is not None:
                feed.end()
        for tenant in self._tenants:
            self._broker.tenants.connection_closed(tenant)
        self._tenants.clear()
        self._broker.quotas.leave(self.streams)


# -- subscribing ------------------------------------------------------------------------------------------------------


class Subscribing:
    """One `subscribe` on its way: topic, place to begin, subscription, event stream. `done` is called once."""

    def __init__(self, peer: FelixPeer, bearer: Bearer, ask: codec.Subscribe, dialect: Dialect, done: Made) -> None:
        """Raises what can be refused at once."""
        self._peer = peer
        self._bearer = bearer
        self._broker = bearer.broker
        self._ask = ask
        self._dialect = dialect
        self._done = done
        self._scope: Scope = (ask.tenant_id, ask.namespace, ask.stream)
        self._group = self._durable = ""
        self._credit = 0
        explicit = False
        if isinstance(ask, codec.SubscribeOurs):
            self._group, self._durable = ask.group or "", ask.durable or ""
            explicit = ask.ack == "explicit" or bool(self._group or self._durable)
            self._credit = ask.credit or 0
            codec.check_ours(ask, dialect.offsets, explicit)
        self._qos = int(explicit)
        name = topic_of(self._scope)
        bearer.require("subscribe", "stream.subscribe", self._scope, name)
        self._starts: list[int] = []
        self._id = peer.claim(ask.subscription_id, dialect.document, ask.tenant_id)
        try:
            if self._broker.topics.get(name.encode()) is None:
                check_new(self._broker, peer.options, self._scope)
            self._topic = self._broker.topics.ensure(name.encode(), durable=explicit, owner=bearer.owner)
        except QuintetError:
            peer.unclaim(self._id, ask.tenant_id)
            raise
        self._topic.after(self._ready)

    def _fail(self, error: Exception) -> None:
        self._peer.unclaim(self._id, self._scope[0])
        self._done(None, error)

    def _ready(self, error: Exception | None) -> None:
        """The topic is there: where to begin?"""
        if error is not None:
            self._fail(error)
            return
        try:
            start = self._ask.start
            if isinstance(start, codec.Start) and start.time_ms is not None and self._dialect.extended:
                self._seek(start.time_ms)
                return
            kept = [(partition.start, partition.visible) for partition in self._topic.partitions]
            self._starts = codec.starts(start, kept, self._dialect.extended)
            self._make()
        except QuintetError as refused:
            self._fail(refused)

    def _seek(self, time_ms: int) -> None:
        if not 0 <= time_ms <= frames.TTL_MS_MAX:
            raise BadRequest("start: time_ms is milliseconds since 1970")
        start(seek_all(self._topic.partitions, time_ms * 1000)).then(self._found)

    def _found(self, offsets: list[int] | None, error: Exception | None) -> None:
        try:
            if error is not None:
                raise error
            self._starts = offsets or []
            self._make()
        except QuintetError as refused:
            self._fail(refused)

    def _make(self) -> None:
        owner, topic = self._bearer.owner, self._topic
        if self._group:
            mode = self._ask.start if isinstance(self._ask.start, str) else "latest"
            stream = GroupStream(
                self._peer, self._id, self._bearer, self._scope, topic, self._dialect, self._group, mode
            )
            stream.member.consumer.credit = self._credit
            start(stream.member.join()).then(lambda _, error: self._joined(stream, error))
            return
        feed = EventStream(self._peer, self._id, self._bearer, self._scope, topic, self._dialect)
        subscriptions = self._broker.subscriptions
        if not self._durable:
            made = subscriptions.transient(owner, topic, door=DOOR, qos=self._qos, starts=self._starts)
            self._attach(feed, made, None)
            return
        kept = subscriptions.named(owner, topic, self._durable) or subscriptions.create(
            owner, topic, 1, door=DOOR, starts=self._starts, name=self._durable
        )
        subscriptions.when_made(kept).then(lambda _, error: self._attach(feed, kept, error))

    def _attach(self, feed: EventStream, subscription: Subscription, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
            return
        subscription.grant(self._credit)
        feed.subscription = subscription
        self._joined(feed, None)

    def _joined(self, feed: EventStream, error: Exception | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._peer.add(feed)
        self._done(feed, None)
        feed.start()
