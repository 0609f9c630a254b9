"""Guards keyed topics: a client that shows a topic's key may use it. Creates, rotates, subscribes, ends subscriptions.

A queue is a topic that a number (FNV-1a of its name) and a key belong to; both are kept with the topic (`extra` of its
row), the key as its SHA-256. Two topics never share a number: the second is refused. A request passes four gates, each
for itself and every time: the token is valid (`bearer`), its key is the queue's, it has the permission, and the broker's
own rights allow it (`authorize`).

    a member of a queue ends when              checked
    it leaves, or its connection goes          at once
    its token expires (switchable)             `tick`, by a heap of deadlines
    the key was rotated and grace is over      `tick`, the same heap
    its user, token or topic is gone           `tick`, when access.epoch moved

A durable queue keeps what nobody has read: one subscription of the queue's own (KEPT_OWNER) holds the place. A fan-out
queue lends it to its first member, and to another when that one leaves; in a queue of competing members it feeds
all of them through one Share. Grace needs no table: a restart ends every connection, so a client that comes back shows the new key.
"""

import heapq
import hmac
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from typing import Final

import msgspec
from msgspec.structs import replace

from quintet.broker.audit.audit_log import Audit
from quintet.broker.consumers.subscriptions import KEPT_OWNER, Report, Subscriptions
from quintet.broker.identity.access import Access, Principal
from quintet.broker.identity.tokens import Claims, Tokens
from quintet.broker.sections import QueueSection
from quintet.broker.topics.catalog import Topic, Topics
from quintet.delivery.lane import Lane
from quintet.delivery.share import Share
from quintet.delivery.sink import Sink
from quintet.delivery.subscription import Subscription
from quintet.delivery.takeover import Takeover
from quintet.model.batch import AT_MOST_ONCE
from quintet.model.errors import (
    AuthError,
    BadRequest,
    Busy,
    Forbidden,
    QuintetError,
    Taken,
    TopicNotFound,
    WrongKey,
    message_of,
)
from quintet.model.keys import fnv1a
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, completed, gather, start

DOOR: Final = "fast"
DURABLE: Final = 0x01
EXCLUSIVE: Final = 0x02
COMPETING: Final = 0x04
TTL: Final = 0x08
FLAGS: Final = DURABLE | EXCLUSIVE | COMPETING | TTL

KEY_BYTES_MAX: Final = 255
EXTRA_KEY: Final = "fast.key"  # in the topic's row: hex SHA-256 of the key
EXTRA_FLAGS: Final = "fast.flags"
STALE_MAX: Final = 1_000  # entries of members that are gone, in the heap of deadlines
SECOND_US: Final = 1_000_000


class Bearer(msgspec.Struct, frozen=True):
    """Whoever shows a token that was verified. Its key is only here as its SHA-256."""

    token: bytes
    claims: Claims
    identity: str
    principal: Principal
    key: bytes

    @property
    def name(self) -> str:
        return self.principal.name


class Member:
    """One connection's place in a queue. `told` is what `sink.completed` gets: with the new key after a rotation, with an
    error when the place is lost."""

    __slots__ = ("bearer", "began", "due", "entries", "feed", "grace", "queue", "sink", "subscription", "told")

    def __init__(self, queue: "Queue", sink: Sink, bearer: Bearer, told: object) -> None:
        self.queue = queue
        self.sink = sink
        self.bearer = bearer
        self.told = told
        self.subscription: Subscription | None = None  # of its own, or the queue's; None: it shares
        self.feed = sink  # what that is attached to
        self.began: list[int] = []  # where its own began, by partition: what is behind that it never got
        self.grace = 0  # until when an old key is good enough, by the monotonic clock; 0: its key is the queue's
        self.due = 0  # its earliest entry in the heap; 0: none
        self.entries = 0  # how many it has there


class Queue:
    """A topic with a number and a key."""

    __slots__ = ("backlog", "flags", "id", "key", "made", "members", "rotating", "share", "shared", "topic")

    def __init__(self, topic: Topic, key: bytes, flags: int) -> None:
        self.id = fnv1a(topic.raw)
        self.topic = topic
        self.key = key
        self.flags = flags
        self.members: dict[Sink, Member] = {}
        self.backlog: Subscription | None = None  # of a durable queue
        self.share = Share()
        self.shared: Subscription | None = None  # what feeds the share now
        self.rotating = False
        self.made = completed(None)  # over when it would survive a restart

    @property
    def extra(self) -> dict[str, str]:
        return _extra(self.key, self.flags)

    @property
    def durable(self) -> bool:
        return bool(self.flags & DURABLE)


class Queues:
    """All keyed topics by their number. `wire` is what the kernel needs of them: number -> (batch flags, ttl_us)."""

    def __init__(
        self,
        topics: Topics,
        subscriptions: Subscriptions,
        access: Access,
        tokens: Tokens,
        audit: Audit,
        scheduler: Scheduler,
        report: Report,
        options: QueueSection,
    ) -> None:
        self.options = options
        self.wire: dict[int, tuple[int, int]] = {}
        self.rotations = self.evicted = self.refused = self.promoted = 0
        self._topics = topics
        self._subscriptions = subscriptions
        self._access = access
        self._tokens = tokens
        self._audit = audit
        self._scheduler = scheduler
        self._report = report
        self._by_id: dict[int, Queue] = {}
        self._deadlines: list[tuple[int, int, Member]] = []  # of tokens: dates
        self._graces: list[tuple[int, int, Member]] = []  # of old keys: monotonic
        self._order = 0
        self._stale = 0  # about how many of them belong to nobody any more
        self._leftover: list[Subscription] = []  # which the disk would not let go yet
        self._epoch = (0, 0)  # of access and of tokens, when the members were last looked at

    def __len__(self) -> int:
        return len(self._by_id)

    def walk(self) -> Iterator[Queue]:
        return iter(tuple(self._by_id.values()))

    @property
    def members(self) -> int:
        return sum(len(queue.members) for queue in self._by_id.values())

    def load(self) -> None:
        """Take up the queues of the last run, each with its backlog."""
        kept: dict[bytes, Subscription] = {}
        for backlog in sorted((s for s in self._subscriptions.all() if s.owner == KEPT_OWNER), key=lambda s: s.id):
            if backlog.topic_name in kept:  # of a queue that was made again
                self._drop(kept[backlog.topic_name])
            kept[backlog.topic_name] = backlog
        for topic in self._topics.all():
            if EXTRA_KEY in topic.spec.extra and fnv1a(topic.raw) not in self._by_id:
                try:
                    self._adopt(topic, kept.pop(topic.raw, None))
                except QuintetError as refused:  # others must not wait for that: the next start tries again
                    self._report("queue_without_backlog", {"topic": topic.name, "error": str(refused)})
                    self._enter(_queue_of(topic))
        for orphan in kept.values():  # a crash came between the rows of a queue and of its backlog
            self._drop(orphan)

    def _adopt(self, topic: Topic, backlog: Subscription | None) -> Queue:
        """A topic whose row says that it is a queue."""
        queue = _queue_of(topic)
        queue.backlog = backlog
        if backlog is None and queue.durable and not topic.in_memory:
            # Its row was lost to a crash: from the start, as something may have been confirmed that nobody got.
            queue.backlog = self._subscriptions.create(KEPT_OWNER, topic, 0, door=DOOR, from_start=True)
        self._enter(queue)
        return queue

    def _enter(self, queue: Queue) -> None:
        self._by_id[queue.id] = queue
        flags = 0 if queue.durable else AT_MOST_ONCE
        self.wire[queue.id] = (flags, self.options.ttl_us if queue.flags & TTL else 0)

    # -- who, and what it may --------------------------------------------------------------------------------------

    def bearer(self, token: bytes, now: int) -> Bearer:
        """Whoever a token speaks of, as far as access.epoch does not change; AuthError with the reason."""
        claims = self._tokens.verify(token, now)
        identity, principal = self._subject(claims)
        return Bearer(token, claims, identity, principal, sha256(claims.key).digest())

    def _subject(self, claims: Claims) -> tuple[str, Principal]:
        return self._access.subject(claims.subject) if claims.subject else self._access.no_subject()

    def authorize(self, bearer: Bearer, id: int, permission: str, peer: str = "") -> Queue:
        """The queue of that number, if this bearer may do this there."""
        queue = self._by_id.get(id)
        if queue is None or queue.topic.deleted:
            raise TopicNotFound(f"no topic of number {id:08x} has a key", hint="CREATE it first")
        if not hmac.compare_digest(bearer.key, queue.key):
            raise WrongKey(
                f"the queue_key of the token is not that of topic {queue.topic.name!r}",
                hint="get a token with the present key",
            )
        self._require(bearer, permission, queue.topic.name, peer)
        return queue

    def _require(self, bearer: Bearer, permission: str, topic: str, peer: str) -> None:
        if permission and permission not in bearer.claims.permissions:
            self._audit.record("access.denied", bearer.name, topic, "denied", peer, permission)
            raise Forbidden(
                f"the token of {bearer.name} does not permit to {permission}", hint=f"get one with {permission!r}"
            )
        if permission == "subscribe":
            self._access.require(bearer.principal, "subscribe", topic, peer)
        elif permission == "publish" or not self._access.allowed(bearer.principal, "subscribe", topic):
            # To make a topic or to rotate its key, whoever may use it in one way or the other.
            self._access.require(bearer.principal, "publish", topic, peer)

    # -- making ----------------------------------------------------------------------------------------------------

    async def create(self, bearer: Bearer, raw: bytes, flags: int, peer: str = "") -> Queue:
        """Bind the bearer's key to a topic, made if need be; over when that is as durable as the topic. The same key again
        changes nothing; another key, and a number that another name has, are refused."""
        name = raw.decode("utf-8", "replace")
        self._require(bearer, "create" if self.options.require_create else "", name, peer)
        queue = self._by_id.get(fnv1a(raw))
        if queue is not None and queue.topic.deleted:
            self._forget(queue)
            queue = None
        if queue is None and (bound := self._topics.get(raw)) is not None and EXTRA_KEY in bound.spec.extra:
            queue = self._adopt(bound, None)
        if queue is not None:
            self._same(queue, bearer, raw)
            await queue.made
            await queue.topic.ready()
            return queue
        queue = self._make(raw, bearer, flags & FLAGS)
        self._audit.record("topic.create", bearer.name, queue.topic.name, "success", peer, "queue")
        await queue.made
        return queue

    def _same(self, queue: Queue, bearer: Bearer, raw: bytes) -> None:
        if queue.topic.raw != raw:
            raise Taken(
                f"topic number {queue.id:08x} is that of another topic whose name has the same hash",
                hint="choose another name: numbers are how this wire tells topics apart",
            )
        if not hmac.compare_digest(bearer.key, queue.key):
            raise WrongKey(f"topic {queue.topic.name!r} has another key", hint="its owner can rotate it")

    def _make(self, raw: bytes, bearer: Bearer, flags: int) -> Queue:
        existed = self._topics.get(raw) is not None
        if flags & DURABLE:
            self._subscriptions.check_room()
        topic = self._topics.ensure(raw, bool(flags & DURABLE), _extra(bearer.key, flags), owner=bearer.name)
        queue = Queue(topic, bearer.key, flags)
        kept: Promise[None] = completed(None)
        if queue.durable and (not topic.in_memory or topic.waiting):
            try:
                queue.backlog = self._subscriptions.create(KEPT_OWNER, topic, 0, door=DOOR)
                kept = self._subscriptions.when_made(queue.backlog)
            except QuintetError:
                self._unmake(topic, existed)
                raise
        self._enter(queue)
        bound = start(self._topics.set_extra(topic, queue.extra)) if existed else topic.ready()
        queue.made = start(self._finish_making(queue, existed, kept, bound))
        return queue

    async def _finish_making(self, queue: Queue, existed: bool, *stored: Promise[None]) -> None:
        try:
            await gather(*stored)
        except Exception:
            self._forget(queue)
            self._unmake(queue.topic, existed)
            raise

    def _unmake(self, topic: Topic, existed: bool) -> None:
        """A queue could not be made: its topic is what it was before, without a key, or not at all. (If the disk refuses
        that, too, the topic keeps the key, as the next start would find it.)"""
        if topic.deleted:
            return
        if not existed:
            try:
                self._topics.delete(topic.raw)
                return
            except QuintetError:
                pass
        start(self._topics.set_extra(topic, {}))

    def _forget(self, queue: Queue) -> None:
        """Its topic is gone, or never came to be: its members are told, its number is free."""
        if self._by_id.get(queue.id) is queue:
            del self._by_id[queue.id]
            self.wire.pop(queue.id, None)
            queue.topic.close_direct()  # the topic may stay: who published by this number is refused from now on
        for member in list(queue.members.values()):
            self._end(member, TopicNotFound(f"topic {queue.topic.name!r} is gone"))
        backlog, queue.backlog = queue.backlog, None
        if backlog is not None:
            self._drop(backlog)

    # -- members ---------------------------------------------------------------------------------------------------

    def join(self, bearer: Bearer, id: int, sink: Sink, told: object, peer: str = "") -> Member:
        """A place in the queue for this connection; `start` begins to deliver. Who has one shows its token afresh."""
        queue = self.authorize(bearer, id, "subscribe", peer)
        member = queue.members.get(sink)
        if member is None:
            if queue.flags & EXCLUSIVE and queue.members:
                raise Taken(
                    f"topic {queue.topic.name!r} is exclusive and has its subscriber", hint="wait until it leaves"
                )
            member = Member(queue, sink, bearer, told)
            self._seat(member)
            queue.members[sink] = member
        if member.subscription is not None and member.bearer.name != bearer.name:
            member.subscription.served_by(bearer.name)
        member.bearer = bearer
        member.grace = 0
        self._watch(member)
        return member

    def _seat(self, member: Member) -> None:
        """What it will read from: the backlog, if nobody else reads it. May be refused by a limit."""
        queue = member.queue
        if queue.flags & COMPETING:
            if queue.shared is None:
                queue.shared = queue.backlog or self._subscriptions.transient(
                    member.bearer.name, queue.topic, door=DOOR
                )
                queue.shared.served_by("")
                queue.share.given = partial(self._given, queue)
        elif queue.backlog is not None and queue.backlog.sink is None:
            member.subscription = queue.backlog
            queue.backlog.served_by(member.bearer.name)
        else:
            member.subscription = self._subscriptions.transient(member.bearer.name, queue.topic, door=DOOR)
            member.began = [lane.position for lane in member.subscription.lanes]

    def start(self, member: Member) -> None:
        """Deliver from here on."""
        queue = member.queue
        if member.subscription is not None:
            member.subscription.attach(member.sink)
        elif queue.shared is not None:
            queue.share.add(member.sink)
            queue.shared.attach(queue.share)

    def leave(self, member: Member) -> None:
        """Give the place up. A backlog goes to another member, or waits for the next."""
        queue = member.queue
        if queue.members.get(member.sink) is not member:
            return
        del queue.members[member.sink]
        self._unwatch(member)
        if queue.flags & COMPETING:
            self._unshare(queue, member.sink)
        elif member.subscription is not None:
            subscription, member.subscription = member.subscription, None
            subscription.detach(member.feed)
            if subscription is not queue.backlog:
                self._drop(subscription)
            elif queue.members and not queue.topic.deleted:
                self._promote(queue, subscription)

    def _given(self, queue: Queue, sink: Sink, partition: int, first: int, last: int) -> None:
        """For the audit: which of the members got these."""
        member, events = queue.members.get(sink), self._subscriptions.events
        if member is not None and events is not None:
            events.delivered(DOOR, member.bearer.name, queue.topic.name, partition, first, last)

    def _unshare(self, queue: Queue, sink: Sink) -> None:
        queue.share.remove(sink)
        if not len(queue.share) and queue.shared is not None:
            shared, queue.shared = queue.shared, None
            shared.detach(queue.share)
            if shared is not queue.backlog:
                self._drop(shared)

    def _promote(self, queue: Queue, backlog: Subscription) -> None:
        """The backlog goes on where another member is: that one's place is kept from now on. What is left of it from before
        that member came, nobody has got: it gets that first."""
        successor = next(iter(queue.members.values()))
        own = successor.subscription
        assert own is not None, "each member of a fan-out reads from a subscription"
        own.detach(successor.sink)
        had, lanes = {}, []
        for left, began, lane in zip(backlog.lanes, successor.began, own.lanes, strict=True):
            if left.position < began:
                had[lane.partition.number] = (began, lane.position)
            lanes.append(Lane(lane.partition, left.position if left.position < began else lane.position))
        backlog.lanes = lanes
        backlog.served_by(successor.bearer.name)
        successor.subscription = backlog
        successor.feed = Takeover(successor.sink, had) if had else successor.sink
        self._drop(own)
        self.promoted += 1
        backlog.attach(successor.feed)

    def _drop(self, subscription: Subscription) -> None:
        if self._subscriptions.find(subscription.owner, subscription.id) is subscription:  # else it went with its topic
            try:
                self._subscriptions.remove(subscription)
            except QuintetError:  # the disk is full: `tick` tries again
                self._leftover.append(subscription)

    def _end(self, member: Member, why: QuintetError) -> None:
        """Take the place away, and say so."""
        self.leave(member)
        self.evicted += 1
        self._report(
            "queue_member_ended",
            {"topic": member.queue.topic.name, "who": member.bearer.name, "reason": message_of(why)},
        )
        member.sink.completed(member.told, None, why)

    # -- rotation --------------------------------------------------------------------------------------------------

    async def rotate(self, bearer: Bearer, id: int, key: bytes, peer: str = "") -> None:
        """Another key for a queue, from now on; over when it would survive a restart. Its members are told then, after the
        caller was answered."""
        queue = self.authorize(bearer, id, "rotate", peer)
        if not 1 <= len(key) <= KEY_BYTES_MAX or not _is_utf8(key):
            raise BadRequest(f"a new key has 1 to {KEY_BYTES_MAX} bytes of UTF-8")
        fresh, old = sha256(key).digest(), queue.key
        if hmac.compare_digest(fresh, old):
            raise BadRequest("the new key is the old one", hint="choose another")
        if queue.rotating:
            raise Busy(f"a key of topic {queue.topic.name!r} is just being changed", hint="try again in a moment")
        queue.key, queue.rotating = fresh, True
        queue.topic.close_direct()  # who publishes there is asked for the new key
        until = self._scheduler.monotonic() + self.options.rotation_grace_us
        told = []
        for member in queue.members.values():
            if not member.grace:
                member.grace = until
                told.append(member)
                self._order += 1
                heapq.heappush(self._graces, (until, self._order, member))
        try:
            await queue.made  # two changes of its row on their way would not know what to go back to
            await self._topics.set_extra(queue.topic, queue.extra)
        except Exception:
            queue.key, queue.rotating = old, False
            queue.topic.close_direct()
            for member in told:
                member.grace = 0
            self._scheduler.soon(lambda: self._end_members_with(queue, fresh))
            raise
        queue.rotating = False
        self.rotations += 1
        self._audit.record("config.change", bearer.name, queue.topic.name, "success", peer, "rotate")
        if self.options.key_updates:
            self._scheduler.soon(lambda: self._tell_key(queue, told, key))

    def _end_members_with(self, queue: Queue, key: bytes) -> None:
        """They came with a key that never came to be."""
        for member in list(queue.members.values()):
            if member.bearer.key == key != queue.key:
                self._end(member, WrongKey(f"the key of topic {queue.topic.name!r} was not rotated after all"))

    def _tell_key(self, queue: Queue, members: list[Member], key: bytes) -> None:
        for member in members:
            if queue.members.get(member.sink) is member and self._valid(member):
                member.sink.completed(member.told, key, None)

    def _valid(self, member: Member) -> bool:
        expires = member.bearer.claims.expires
        return not expires or self._scheduler.now() < expires

    # -- time ------------------------------------------------------------------------------------------------------

    def _deadline(self, member: Member) -> int:
        """The date at which its token ends the place unless something changes; 0: it does not."""
        return member.bearer.claims.expires if self.options.expire_subscriptions else 0

    def _watch(self, member: Member) -> None:
        """An entry in the heap that is no later than its deadline. Later deadlines are found when it comes up."""
        deadline = self._deadline(member)
        if deadline and (not member.due or deadline < member.due):
            member.due = deadline
            member.entries += 1
            self._order += 1
            heapq.heappush(self._deadlines, (deadline, self._order, member))

    def _unwatch(self, member: Member) -> None:
        """Its entries stay where they are until they are too many: whoever comes and goes all day leaves no heap of them."""
        self._stale += member.entries
        if self._stale > max(STALE_MAX, len(self._deadlines) // 2):
            self._stale = 0
            self._deadlines = [entry for entry in self._deadlines if _is_here(entry[2])]
            heapq.heapify(self._deadlines)

    def tick(self, now: int, monotonic: int) -> None:
        while self._graces and self._graces[0][0] <= monotonic:
            until, _, member = heapq.heappop(self._graces)
            if member.grace == until and _is_here(member):
                name = member.queue.topic.name
                hint = "SUBSCRIBE with a token that has the new one"
                self._end(member, WrongKey(f"the key of topic {name!r} was rotated", hint=hint))
        while self._deadlines and self._deadlines[0][0] <= now:  # ending a member may replace the list
            due, _, member = heapq.heappop(self._deadlines)
            member.entries -= 1
            if due == member.due:
                member.due = 0
            if not _is_here(member):
                self._stale = max(0, self._stale - 1)
                continue
            deadline = self._deadline(member)
            if deadline and deadline <= now:
                self._end(member, _expired(member))
            else:
                self._watch(member)
        leftover, self._leftover = self._leftover, []
        for subscription in leftover:
            self._drop(subscription)
        epoch = (self._access.epoch, self._tokens.epoch)
        if self._epoch != epoch:
            verify, self._epoch = self._epoch[1] != epoch[1], epoch
            self._look_again(now, verify)

    def _look_again(self, now: int, verify: bool) -> None:
        """Rights, tokens or topics changed: who is here must still be welcome. Signatures are verified again only where
        the secrets changed: that takes its time, and there may be thousands of members."""
        for queue in list(self._by_id.values()):
            if queue.topic.deleted:
                self._forget(queue)
                continue
            for member in list(queue.members.values()):
                try:
                    self._still_welcome(member, now, verify)
                except QuintetError as refused:
                    self._end(member, refused)

    def _still_welcome(self, member: Member, now: int, verify: bool) -> None:
        bearer = member.bearer
        expires = bearer.claims.expires
        if verify and (self.options.expire_subscriptions or not expires or now < expires):
            bearer = self.bearer(bearer.token, now)
        else:  # also of a token that has expired, where subscriptions may outlive theirs: then only the user counts
            identity, principal = self._subject(bearer.claims)
            bearer = replace(bearer, identity=identity, principal=principal)
        self._require(bearer, "subscribe", member.queue.topic.name, "")
        member.bearer = bearer


def _is_here(member: Member) -> bool:
    return member.queue.members.get(member.sink) is member


def _queue_of(topic: Topic) -> Queue:
    """As the topic's row says."""
    extra = topic.spec.extra
    return Queue(topic, bytes.fromhex(extra[EXTRA_KEY]), int(extra.get(EXTRA_FLAGS, "0")))


def _extra(key: bytes, flags: int) -> dict[str, str]:
    return {EXTRA_KEY: key.hex(), EXTRA_FLAGS: str(flags)}


def _expired(member: Member) -> QuintetError:
    name = member.queue.topic.name
    return AuthError(f"the token of the subscription to {name!r} has expired", hint="SUBSCRIBE again with a fresh one")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
