"""Keeps the catalog of topics: finds or creates a topic by its name, knows how durable it is, appends batches.

A topic is made by its first use. Traffic that nobody waits for (QoS 0) makes a memory topic; the first use that asks for
durability makes it a durable one, or turns the memory topic into one, unless the configuration says otherwise for that
name. The row in `__topics` is durable before anything in the topic is acknowledged.

Names that begin with `cache/` are the caches': a CacheTopic is compacted, has one partition and is written by its cache
alone. Doors may read it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple, NoReturn

import msgspec

from quintet import kernel
from quintet.broker.identity.passwords import Entropy
from quintet.broker.table import Table
from quintet.broker.topics.folders import folders_without_row
from quintet.broker.topics.names import CACHE_PREFIX, check_name, refuse_cache, tenant_of
from quintet.broker.topics.policy import TopicPolicy
from quintet.broker.topics.specs import SameValues, TopicRow, as_cache, given, is_cache, row_of, spec_of
from quintet.delivery.subscription import Subscription
from quintet.log.base import Appended, Durability, Log, Partition, TopicSpec
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import (
    BadName,
    BadRequest,
    DataDirError,
    LimitExceeded,
    PartitionNotFound,
    QueueFull,
    QuintetError,
    StorageError,
    StorageFull,
    TopicNotFound,
    message_of,
)
from quintet.model.keys import fnv1a
from quintet.model.tasks import Promise, completed, start

Low = Callable[[], Exception | None]

ANY = -1  # partition: the next one in turn
REPLY_PREFIX = b"reply/"  # addresses of replies: in memory, and removed when nothing came to them for a while
EXTRA_OWNER = (
    "owner"  # of what is kept with a topic: the user who made it; none: the broker itself, or a broker before quotas
)
LOST_SHOWN_MAX = 5  # topics named by a start that is refused
IDENTITY_BYTES = 16  # of chance in a topic's identity, written as twice as many hexadecimal digits
STALL_SHARE = 0.5  # of a memory topic's bytes: a pushed subscriber further behind than this slows its publishers down


NO_SUBSCRIPTIONS: frozenset[Subscription] = frozenset()


class TopicCommon(NamedTuple):
    """What all topics of a broker share: one reference in each of 100,000. low: why only the broker's own tables may grow now."""

    policy: TopicPolicy
    tails: kernel.Tails[RecordBatch]
    low: Low


class Topic:
    """An open topic. `publish` is the broker's end of the hot path."""

    __slots__ = (
        "_after", "_common", "_handle", "_next", "_published", "_room", "_unready", "gone", "partitions", "raw", "spec", "subscriptions",
    )  # fmt: skip

    def __init__(self, spec: TopicSpec, partitions: list[Partition], common: TopicCommon, ready: bool) -> None:
        self.raw = spec.name.encode()
        self.spec = spec
        self.partitions = partitions
        self.subscriptions: Set[Subscription] = NO_SUBSCRIPTIONS  # as most topics have: no set until there is one
        self._published = 0
        self._handle: int | None = None
        self._common = common
        self._next = 0
        self._room = 0  # records that may still come before the queues must be looked at again
        self.gone: Exception | None = None  # why it is not there any more
        self._unready: list[tuple[bytearray, Appended | None, int]] | None = None if ready else []
        self._after: list[Callable[[Exception | None], None]] | tuple[()] = ()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def in_memory(self) -> bool:
        return self.spec.durability == "memory"

    @property
    def owner(self) -> str:
        """Who made it; "": nobody that is known."""
        return self.spec.extra.get(EXTRA_OWNER, "")

    @property
    def tenant(self) -> str:
        """The tenant of its name; "": none."""
        return tenant_of(self.name)

    @property
    def published(self) -> int:
        """Records, since the start."""
        return self._published + (self._common.tails.published(self._handle) if self._handle is not None else 0)

    @property
    def direct(self) -> int | None:
        """Its handle in `Log.tails` if the kernel may append to it, as `publish` with nobody waiting would; else None."""
        return self._handle_of(lent=False) if self.in_memory else None

    @property
    def lent(self) -> int | None:
        """The same of a topic in files: who appends by it waits for that (`Log.tails_held`)."""
        return None if self.in_memory else self._handle_of(lent=True)

    @property
    def handle(self) -> int | None:
        """`direct` or `lent`, if it was asked for before: nothing is lent because of this."""
        return None if self._unready is not None or self.gone is not None else self._handle

    def _handle_of(self, lent: bool) -> int | None:
        if self._unready is not None or self.gone is not None:
            return None
        if self._handle is None:
            found = (partition.loan if lent else partition.tail for partition in self.partitions)
            slots = [slot for slot in found if slot is not None]
            if len(slots) == len(self.partitions):
                self._handle = self._common.tails.add_topic(slots, lent)
        return self._handle

    @property
    def bounded(self) -> bool:
        """Does a publish that must be kept ask its queues for room first?"""
        return bool(self._common.policy.queue_messages_max and self.subscriptions)

    def close_direct(self) -> None:
        """From now on every publish is looked at here."""
        if self._handle is not None:
            self._published += self._common.tails.published(self._handle)
            self._common.tails.remove_topic(self._handle)
            self._handle = None

    @property
    def deleted(self) -> bool:
        """It is not there any more, or never came to be: another of its name may be."""
        return self.gone is not None

    def publish(
        self, batch: bytearray, count: int, must_keep: bool, done: Appended | None, partition: int = ANY
    ) -> int:
        """Append a batch of `count` records to this partition, or to the next one in turn; returns which. Raises
        StorageError, QueueFull or PartitionNotFound if it cannot be taken."""
        if must_keep and self.bounded:
            if self._room < count:
                self._room = self._look_for_room(count)
            self._room -= count
        if self.gone is not None:
            self._refuse()
        partitions = self.partitions
        if partition == ANY:
            partition = self.choose(None)
        elif not 0 <= partition < len(partitions):
            self.partition(partition, writing=True)
        self._published += count
        if self._unready is not None:
            self._unready.append((batch, done, partition))
        else:
            partitions[partition].append(batch, done)
        return partition

    def publish_read(self, batch: bytearray, count: int, done: Appended, partition: int) -> int:
        """As `publish` of what must be kept, for all that one read brought this partition (Partition.append_read)."""
        if self.gone is not None or self._unready is not None or self._common.policy.queue_messages_max:
            self.publish(batch, count, True, done, partition)
            return -1
        self._published += count
        return self.partitions[partition].append_read(batch, done)

    def choose(self, key: bytes | memoryview | None) -> int:
        """Where a message goes that names no partition: by its key (FNV-1a, 32 bits), or the next one in turn."""
        if key:
            return fnv1a(key) % len(self.partitions) if len(self.partitions) > 1 else 0
        chosen = self._next
        self._next = chosen + 1 if chosen + 1 < len(self.partitions) else 0
        return chosen

    def partition(self, number: int, writing: bool = False) -> Partition:
        """Partition `number`, or PartitionNotFound: only for a writer the broker chooses one."""
        if not 0 <= number < len(self.partitions):
            raise PartitionNotFound(
                f"partition {number} out of range: topic {self.name!r} has {len(self.partitions)}",
                hint=f"use 0 to {len(self.partitions) - 1}" + ", or -1 to let the broker choose" * writing,
            )
        return self.partitions[number]

    def check_writable(self, number: int) -> None:
        """Raise now what an append to this partition would raise."""
        partition = self.partition(number, writing=True)
        if self.gone is not None:
            self._refuse()
        failure = partition.failure or (None if self.in_memory else self._common.low())
        if failure is not None:
            kind = StorageFull if isinstance(failure, StorageFull) else StorageError
            raise kind(f"partition {number} of topic {self.name!r} takes no appends: {message_of(failure)}")

    def _refuse(self) -> NoReturn:
        assert self.gone is not None
        kind = TopicNotFound if isinstance(self.gone, TopicNotFound) else StorageError
        raise kind(message_of(self.gone))

    # -- waiting for its row in __topics ---------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Its row is on its way to the disk: nothing is appended before that."""
        return self._unready is not None

    def hold(self) -> None:
        """Collect publishes until `release`: the row is about to change."""
        self.close_direct()
        self._unready = []

    def ready(self) -> Promise[None]:
        """Over when its row is durable: at once, if it is. Raises what made it impossible, or that it was deleted."""
        ready: Promise[None] = Promise()
        self.after(ready.finished)
        return ready

    def after(self, call: Callable[[Exception | None], None]) -> None:
        """Call when its row is durable: now, if it is."""
        if self._unready is None:
            call(self.gone)
        else:
            self._after = [*self._after, call]

    def release(self, error: Exception | None) -> None:
        """Its row is durable, or could not be made so: what waited is appended, or refused."""
        waiting, self._unready = self._unready or [], None
        for batch, done, partition in waiting:
            refusal = error
            if refusal is None:
                try:
                    Topic.publish(self, batch, 0, False, done, partition)
                except QuintetError as refused:
                    refusal = refused
            if refusal is not None and done is not None:
                done(-1, refusal)
        calls, self._after = self._after, ()
        for call in calls:
            call(error or self.gone)

    def forget(self, error: Exception) -> None:
        """It never came to be, or was deleted: whoever still holds it must ask for it again."""
        self.close_direct()
        self.gone = error

    def undelete(self) -> bool:
        """Its deletion was refused. False: it never came to be."""
        if not isinstance(self.gone, TopicNotFound):
            return False
        self.gone = None
        return True

    def _look_for_room(self, count: int) -> int:
        """Records that every queue on this topic can still hold: QueueFull if that is less than `count`."""
        maximum = self._common.policy.queue_messages_max
        room = maximum
        for subscription in self.subscriptions:
            if subscription.qos:
                room = min(room, maximum - subscription.backlog())
                if room < count:
                    raise QueueFull(
                        f"the queue of subscription {subscription.id} on topic {self.name!r} is full ({maximum} messages)",
                        hint="acknowledge what it holds, or raise delivery.queue_messages_max",
                    )
        return room

    def subscribed(self, subscription: Subscription) -> None:
        if not isinstance(self.subscriptions, set):
            self.subscriptions = set()
        self.subscriptions.add(subscription)
        self._room = 0
        if self.bounded:
            self.close_direct()

    def unsubscribed(self, subscription: Subscription) -> None:
        if isinstance(self.subscriptions, set):
            self.subscriptions.discard(subscription)

    def overrun(self) -> bool:
        """A pushed subscriber that still takes data is far behind in a memory topic: its publishers should pause."""
        if not self.subscriptions or self.spec.durability != "memory":  # asked for every read: no call of `in_memory`
            return False
        for subscription in self.subscriptions:
            if subscription.parked:
                for lane in subscription.lanes:
                    if lane.partition.bytes_from(lane.position) > STALL_SHARE * self.spec.memory_bytes:
                        return True
        return False


class CacheTopic(Topic):
    """The topic of a cache: doors may read it, and only its cache writes it."""

    __slots__ = ()

    def _handle_of(self, lent: bool) -> None:
        return None

    def publish(
        self, batch: bytearray, count: int, must_keep: bool, done: Appended | None, partition: int = ANY
    ) -> NoReturn:
        refuse_cache(self.name)

    def check_writable(self, number: int) -> NoReturn:
        refuse_cache(self.name)

    def put(self, batch: bytearray, count: int, done: Appended) -> None:
        """Append for the cache. Raises StorageError, or TopicNotFound if it was deleted."""
        Topic.publish(self, batch, count, False, done, 0)


MakeTopic = Callable[[TopicSpec, list[Partition], TopicCommon, bool], Topic]


class Topics:
    """All topics by name."""

    def __init__(
        self, log: Log, table: Table[TopicRow], policy: TopicPolicy, entropy: Entropy, make: MakeTopic | None = None
    ) -> None:
        """make: what topics are that no cache owns; None: Topic itself."""
        self._log = log
        self._make = make or Topic
        self._table = table
        self._policy = policy
        self._entropy = entropy
        self._same = SameValues()
        self._common = TopicCommon(policy, log.tails, self._low)
        self._by_name: dict[bytes, Topic] = {}
        self._of_tenant: Counter[str] = Counter()
        self._of_owner: Counter[str] = Counter()
        self.admit: Callable[[str, str], None] | None = None  # may this owner make a topic of that tenant? Raises
        self.check_place: Callable[[bytes], None] | None = None  # is a name of this cell? Raises OtherCell (ADR 44)
        self._departed = 0  # records that deleted topics had taken
        self.changes = 0  # topics made and deleted since the start
        self._last_id = max(limits.TOPIC_ID_FIRST_USER - 1, log.last_topic_id)

    def load(self) -> None:
        """Open every topic that `__topics` knows. One from before topics had an identity gets it now."""
        for row in self._table.take_rows():
            if not row.identity:
                row = msgspec.structs.replace(row, identity=self._new_identity())
                with suppress(StorageError):  # a full disk: it has this one until the next start
                    self._table.put(row.name.encode(), row)
            spec = spec_of(row, self._policy.rule_for(row.name).memory_bytes, self._same)
            self._last_id = max(self._last_id, row.id)
            self._enter(self._open(spec, ready=True))

    def check_sound(self, topic: Topic) -> None:
        """Raise TableDamaged if something of a topic that is folded by its keys is lost."""
        self._log.check_sound(topic.spec.id, f"topic {topic.name!r}")

    def check_folders(self, report: Callable[[str, dict[str, object]], None]) -> None:
        """After `load`: what deletions left is removed. A folder whose row is lost is DataDirError: the next use of its name
        would make another topic."""
        ids = {topic.raw: topic.spec.id for topic in self._by_name.values()}
        lost, left = folders_without_row(self._log, ids, self._table.deleted())
        if lost:
            names = [f"{found.name!a} (number {id})" for id, found in lost.items()]
            shown = ", ".join(names[:LOST_SHOWN_MAX]) + (", ..." if len(names) > LOST_SHOWN_MAX else "")
            report("topics_without_row", {"topics": len(names), "shown": shown})
            raise DataDirError(
                f"{len(names)} topics have files and no row in __topics, which was lost or is older than they are: {shown}",
                hint="restore __topics, or see what can be made again with `quintet log repair DIR`",
            )
        for id in left:
            report("deletion_finished", {"topic_id": id})
            self._log.delete_topic(id)

    def _new_identity(self) -> str:
        return self._entropy(IDENTITY_BYTES).hex()

    def _open(self, spec: TopicSpec, ready: bool) -> Topic:
        make = CacheTopic if is_cache(spec) else self._make
        return make(spec, self._log.open_topic(spec), self._common, ready)

    def _enter(self, topic: Topic) -> None:
        self.changes += 1
        self._by_name[topic.raw] = topic
        self._departed -= topic.published  # one whose deletion failed is back
        self._of_tenant[tenant_of(topic.name)] += 1
        self._of_owner[topic.owner] += 1

    def _leave(self, topic: Topic) -> None:
        self.changes += 1
        del self._by_name[topic.raw]
        self._departed += topic.published
        tenant = tenant_of(topic.name)
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        self._of_owner[topic.owner] -= 1
        if not self._of_owner[topic.owner]:
            del self._of_owner[topic.owner]

    def count_of(self, tenant: str) -> int:
        """How many topics have a name TENANT/NAMESPACE/STREAM."""
        return self._of_tenant[tenant]

    def owned_by(self, owner: str) -> int:
        """How many topics this user made."""
        return self._of_owner[owner]

    def sizes(self) -> Iterator[tuple[str, str, int]]:
        """(owner, tenant, bytes) of each topic, on disk or in memory; those that go meanwhile are left out."""
        for topic in self.all():
            if not topic.deleted:
                yield topic.owner, topic.tenant, sum(part.bytes_from(part.start) for part in topic.partitions)

    def _check_place(self, raw: bytes) -> None:
        if self.check_place is not None:
            self.check_place(raw)

    def _low(self) -> Exception | None:
        return self._log.low_on_space

    def get(self, raw: bytes) -> Topic | None:
        return self._by_name.get(raw)

    def all(self) -> list[Topic]:
        return list(self._by_name.values())

    @property
    def published(self) -> int:
        """Records since the start, those of deleted topics, too."""
        return self._departed + sum([topic.published for topic in self._by_name.values()])

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, raw: bytes) -> Topic:
        """The topic of this name, or TopicNotFound."""
        topic = self._by_name.get(raw)
        if topic is None:
            self._check_place(raw)
            name = raw.decode(errors="replace")
            raise TopicNotFound(f"topic not found: {name}", hint="create it, or publish to it: the first use makes it")
        return topic

    def create(
        self,
        raw: bytes,
        partitions: int,
        durability: Durability | Literal[""] = "",
        retention_us: int = 0,
        retention_bytes: int = 0,
        *,
        owner: str = "",
    ) -> tuple[Topic, bool]:
        """A durable topic with these properties (0 and "": as configured), and whether it is new. One that exists stays
        as it is; another number of partitions than it has is refused."""
        if durability not in ("", "fsync", "interval", "os"):
            raise BadRequest(f"durability is fsync, interval or os, not {durability!r}")
        if retention_us < 0 or retention_bytes < 0:
            raise BadRequest(f"retention is {min(retention_us, retention_bytes)}: it must be 0 (as configured) or more")
        topic = self._by_name.get(raw)
        if topic is None:
            wish = partial(given, durability, retention_us, retention_bytes)
            return self._create(raw, True, partitions, wish, owner=owner), True
        if partitions not in (0, len(topic.partitions)):
            raise LimitExceeded(
                f"topic {topic.name!r} exists with {len(topic.partitions)} partitions, not {partitions}",
                hint="partitions are fixed when a topic is made: delete it first, or choose another name",
            )
        return topic, False

    def delete(self, raw: bytes) -> Promise[None]:
        """Remove a topic and all in it, now; over when it would stay gone after a restart. Raises what is refused at once."""
        topic = self.find(raw)
        has_row = not topic.in_memory or topic.waiting  # one on its way counts: the next start would find it
        row_gone = self._table.delete(raw) if has_row else completed(None)
        self._leave(topic)
        topic.forget(TopicNotFound(f"topic {topic.name!r} was deleted"))
        return start(self._delete_files(topic, row_gone))

    async def _delete_files(self, topic: Topic, row_gone: Promise[None]) -> None:
        try:
            await row_gone
        except Exception:
            if topic.raw not in self._by_name and topic.undelete():  # as the next start would find it
                self._enter(topic)
            raise
        self._log.delete_topic(topic.spec.id)

    def ensure(
        self, raw: bytes, durable: bool, extra: dict[str, str] | None = None, *, own: bool = False, owner: str = ""
    ) -> Topic:
        """The topic of this name, made (then with this `extra`, for `owner`) if need be, and at least as durable as asked.
        `own`: by the broker for itself, which may make what no door may (dead letters of who reads a cache)."""
        durable = durable and not raw.startswith(REPLY_PREFIX)  # a reply that is lost is asked for again
        topic = self._by_name.get(raw)
        if topic is None:
            return self._create(
                raw, durable, change=lambda spec: replace(spec, extra=extra or {}), own=own, owner=owner
            )
        if extra is not None and topic.name.startswith(CACHE_PREFIX):
            refuse_cache(topic.name)
        if durable and topic.in_memory and not topic.waiting and self.may_harden(topic):
            spec = replace(topic.spec, durability=self._policy.durable)
            self._table.put(raw, row_of(spec)).then(lambda _, error: self._harden(topic, spec, error))
            topic.hold()
        return topic

    def may_harden(self, topic: Topic) -> bool:
        """Does the configuration leave it to the first durable use, and is that more than memory?"""
        if self._policy.durable == "memory" or isinstance(topic, CacheTopic):
            return False
        return self._policy.rule_for(topic.name).durability is None

    def recall(self, raw: bytes) -> Topic:
        """The topic of a subscription from before the last stop; one in memory is made again."""
        found = self._by_name.get(raw)
        if found is not None:
            return found
        return self.open_cache(raw) if raw.startswith(CACHE_PREFIX.encode()) else self._create(raw, False)

    def open_cache(self, raw: bytes) -> CacheTopic:
        """The topic of a cache, made if need be. BadName: there is one of another kind."""
        topic = self._by_name.get(raw)
        if topic is None:
            topic = self._create(raw, True, 1, partial(as_cache, self._policy.cache_durability), own=True)
        if not isinstance(topic, CacheTopic):
            raise BadName(f"topic {topic.name!r} exists and is not a cache", hint="choose another name for the cache")
        return topic

    def _harden(self, topic: Topic, spec: TopicSpec, error: Exception | None) -> None:
        """The row says durable: make it so, with all it holds. A refusal leaves it in memory, to be tried again."""
        if error is None and self._by_name.get(topic.raw) is topic:  # it may have been deleted meanwhile
            try:
                self._log.alter_topic(spec)
                topic.spec = spec
                self._log.when_durable(spec.id, partial(topic.release, None))
                return
            except QuintetError as refused:
                error = refused
        topic.release(error)

    async def alter(
        self, raw: bytes, durability: Durability | Literal[""], retention_us: int, retention_bytes: int
    ) -> Topic:
        """Change what a durable topic promises and keeps ("" and -1: as it is, 0: no limit); over when it would survive a
        restart. A change that the disk refuses is not made. A memory topic becomes durable only by a durability that is named."""
        topic = self.find(raw)
        if isinstance(topic, CacheTopic):
            refuse_cache(topic.name)
        if durability not in ("", "fsync", "interval", "os"):
            raise BadRequest(f"durability is fsync, interval or os, not {durability!r}")
        if min(retention_us, retention_bytes) < -1:
            raise BadRequest("retention is 0 (no limit) or more, or -1 (as it is)")
        await topic.ready()
        before = topic.spec
        if not durability and retention_us < 0 and retention_bytes < 0:
            return topic
        if not durability and before.durability == "memory":
            raise BadRequest(
                f"topic {topic.name!r} is kept in memory: a change of its retention would not survive a restart",
                hint="name a durability too (fsync, interval or os): the topic becomes durable by it",
            )
        spec = replace(
            before,
            durability=durability or before.durability,
            retention_us=before.retention_us if retention_us < 0 else retention_us,
            retention_bytes=before.retention_bytes if retention_bytes < 0 else retention_bytes,
        )
        topic.hold()
        try:
            await self._table.put(raw, row_of(spec))
            if self._by_name.get(raw) is topic:  # else it was deleted meanwhile
                await self._apply(topic, spec)
        except Exception:
            topic.release(None)
            raise
        self._log.when_durable(spec.id, partial(topic.release, None))
        await topic.ready()
        return topic

    async def _apply(self, topic: Topic, spec: TopicSpec) -> None:
        """Its row says so: make it so. If the log refuses, the row says again what is true, before the refusal is raised."""
        try:
            self._log.alter_topic(spec)
        except QuintetError:
            if topic.spec.durability != "memory":
                await self._table.put(topic.raw, row_of(topic.spec))
            elif all(partition.tail is not None for partition in topic.partitions):  # else some have files already
                await self._table.delete(topic.raw)
            raise
        topic.spec = spec

    async def purge(self, raw: bytes) -> Topic:
        """Remove all messages of a topic; over when they would stay gone after a restart. Offsets go on where they are."""
        topic = self.find(raw)
        if isinstance(topic, CacheTopic):
            refuse_cache(topic.name)
        await topic.ready()
        purged: Promise[None] = Promise()
        self._log.purge_topic(topic.spec.id, purged.finished)
        await purged
        return topic

    async def set_extra(self, topic: Topic, extra: dict[str, str]) -> None:
        """Make this what is kept with a topic beside its own properties; over when it would survive a restart as the topic
        does."""
        await topic.ready()
        before = topic.spec.extra
        if EXTRA_OWNER in before:
            extra = {**extra, EXTRA_OWNER: before[EXTRA_OWNER]}
        topic.spec = replace(topic.spec, extra=extra)
        if topic.in_memory:
            return
        try:
            await self._table.put(topic.raw, row_of(topic.spec))
        except Exception:
            if topic.spec.extra is extra:
                topic.spec = replace(topic.spec, extra=before)
            raise

    def _create(
        self,
        raw: bytes,
        durable: bool,
        partitions: int = 0,
        change: Callable[[TopicSpec], TopicSpec] | None = None,
        own: bool = False,
        owner: str = "",
    ) -> Topic:
        name = check_name(raw)
        if not own:
            self._check_place(raw)
            if name.startswith(CACHE_PREFIX):
                refuse_cache(name)
        if not 0 <= partitions <= limits.PARTITIONS_MAX:
            raise LimitExceeded(f"a topic has 1 to {limits.PARTITIONS_MAX} partitions, {partitions} were asked for")
        if len(self._by_name) >= self._policy.topics_max:
            raise LimitExceeded(
                f"topic {name!r} was not made: there are {len(self._by_name)} topics, the limit is topics.max"
            )
        if owner and self.admit is not None:
            self.admit(owner, tenant_of(name))
        rule = self._policy.rule_for(name)
        durability: Durability = rule.durability or (self._policy.durable if durable else "memory")
        self._last_id += 1
        spec = TopicSpec(
            id=self._last_id,
            name=name,
            partitions=partitions or rule.partitions,
            durability=durability,
            retention_us=rule.retention_us,
            retention_bytes=rule.retention_bytes,
            compact=rule.compact and not name.startswith(CACHE_PREFIX),  # dead letters of a cache are no cache
            segment_bytes=rule.segment_bytes,
            memory_bytes=rule.memory_bytes,
            identity=self._new_identity(),
        )
        spec = change(spec) if change else spec
        if owner:
            spec = replace(spec, extra=self._same.extra({**spec.extra, EXTRA_OWNER: owner}))
        topic = self._open(spec, ready=spec.durability == "memory")
        if spec.durability != "memory":
            try:
                self._table.put(raw, row_of(spec)).then(lambda _, error: self._created(topic, error))
            except QuintetError:
                self._log.delete_topic(spec.id)
                raise
        self._enter(topic)
        return topic

    def _created(self, topic: Topic, error: Exception | None) -> None:
        if error is not None:  # without its row it would be unknown after a restart, and so would all in it
            if self._by_name.get(topic.raw) is topic:
                self._leave(topic)
            self._log.delete_topic(topic.spec.id)
            topic.forget(error)
        topic.release(error)
