"""Keeps durable subscriptions: creates, finds, saves and times them, and buries their dead letters.

A subscription belongs to the name of the principal that made it; to anybody else it does not exist. What it has not
settled is saved in `__subscriptions` a moment after it changed (SAVE_EVERY_US): after a crash at most that much is
delivered again, never less. What it says was delivered and settled is in the audit first (broker/audit/delivery_events.py). A record whose
attempts are used up goes to the dead-letter topic and is settled in one intent: after a power cut it is
there exactly once.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from quintet.broker.atomic.dead_letters import DeadLetters, Failure
from quintet.broker.atomic.intent_rows import Effect
from quintet.broker.atomic.intents import Intents
from quintet.broker.audit.delivery_events import Events
from quintet.broker.table import Table
from quintet.broker.topics import reads
from quintet.broker.topics.catalog import Topic, Topics
from quintet.delivery.lane import Lane
from quintet.delivery.subscription import ATTEMPTS_WITHOUT_END, Policy, Subscription
from quintet.model.errors import LimitExceeded, QuintetError, StorageError
from quintet.model.histogram import Histogram
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, completed, next_turn, start, start_alone

SAVE_EVERY_US = 200_000
IDLE_CHECK_EVERY_US = 60_000_000
KEPT_OWNER = (
    "(queue)"  # of the subscriptions that hold the backlog of a queue: they wait for a reader as long as it takes
)
MAILBOX_OWNER = (
    "(mailbox)"  # of the subscriptions of peers' mailboxes: what is not settled waits for the next connection
)
MAILBOX_TIMEOUT_US = 10 * 365 * 24 * 3600 * 1_000_000  # nothing is sent twice over one connection
MAILBOX_IN_FLIGHT_MAX = (
    100_000  # of one partition, as many as a mailbox holds unless configured otherwise: each is remembered
)

Report = Callable[[str, dict[str, object]], None]


class Settled(Effect, frozen=True, array_like=True):
    """An offset is settled: of a record that was buried."""

    kind: ClassVar[str] = "settled"
    subscription: int
    partition: int
    offset: int


class LaneRow(msgspec.Struct, frozen=True):
    """One partition's progress: next offset, and ranges (first, last, attempts) still pending."""

    position: int
    pending: list[tuple[int, int, int]]


class SubscriptionRow(msgspec.Struct, frozen=True):
    """What `__subscriptions` keeps."""

    id: int
    owner: str
    topic: str
    qos: int
    lanes: list[LaneRow]
    door: str = "blipmq"  # of rows written before it was kept: no other door had subscriptions then
    name: str = ""  # its owner's word for it; "": it has none


class Subscriptions:
    """All subscriptions by id."""

    def __init__(
        self,
        table: Table[SubscriptionRow],
        topics: Topics,
        policy: Policy,
        scheduler: Scheduler,
        report: Report,
        *,
        dead_letter_suffix: str,
        idle_us: int,
        subscriptions_max: int,
        dead: DeadLetters,
        intents: Intents,
        events: Events | None = None,
    ) -> None:
        self.events = events
        self._table = table
        self._topics = topics
        self._policy = policy
        self._mailbox_policy = replace(
            policy,
            attempts_max=ATTEMPTS_WITHOUT_END,
            push_timeout_us=MAILBOX_TIMEOUT_US,
            in_flight_max=MAILBOX_IN_FLIGHT_MAX,
        )
        self._scheduler = scheduler
        self._report = report
        self._suffix = dead_letter_suffix
        self._idle_us = idle_us
        self._max = subscriptions_max
        self.ages = Histogram()  # of what was pushed, from append to hand-over
        self._by_id: dict[int, Subscription] = {}
        self._by_name: dict[tuple[str, bytes, str], Subscription] = {}  # owner, topic, name
        self._unmade: dict[int, Promise[None]] = {}  # rows on their way to the disk
        self._last_id = 0
        self._id_step = 1
        self._last_transient = 0
        self._dirty: list[Subscription] = []
        self._timed: set[Subscription] = set()
        self._dead = dead
        self._burying: set[tuple[int, int, int]] = set()
        self._settling: dict[int, Promise[None]] = {}  # rows of what was settled in this turn
        self._saved_at = 0
        self._idle_checked_at = 0
        self._delivered_by_removed = 0
        self.redelivered = 0
        intents.on_effect(Settled, self._settle)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def delivered(self) -> int:
        return self._delivered_by_removed + sum(s.delivered for s in self._by_id.values())

    @property
    def push_timeout_us(self) -> int:
        return self._policy.push_timeout_us

    @property
    def in_flight_max(self) -> int:
        """Of one partition of a subscription, unless its reader wants another."""
        return self._policy.in_flight_max

    def all(self) -> list[Subscription]:
        return list(self._by_id.values())

    # -- making and finding ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take up the subscriptions of the last run where they were."""
        for row in self._table:
            topic = self._topics.recall(row.topic.encode())
            lanes = []
            for number, partition in enumerate(topic.partitions):
                lane = Lane(partition, partition.visible)
                if number < len(row.lanes) and not topic.in_memory:
                    saved = row.lanes[number]
                    if saved.position > partition.visible and topic.spec.durability == "fsync":
                        self._beyond_end(row, number, saved.position, partition.visible)
                    lane.restore(min(saved.position, partition.visible), saved.pending)
                lanes.append(lane)
            # Its idle time starts again with the broker.
            self._open(row.id, row.owner, topic, row.qos, lanes, row.door, row.name)
            self._last_id = max(self._last_id, row.id)

    def number_for(self, cell: int, cells: int) -> None:
        """After `load`: give out numbers that say their cell, which is their remainder (ADR 44)."""
        self._id_step = cells
        self._last_id -= (self._last_id - cell) % cells

    def _beyond_end(self, row: SubscriptionRow, partition: int, position: int, end: int) -> None:
        """Of what is always synced first nothing can be missing: it was lost, or the topic's folder is an older one."""
        fields = {"subscription": row.id, "topic": row.topic, "partition": partition, "from": position, "to": end}
        self._report("subscription_beyond_end", fields)

    def create(
        self,
        owner: str,
        topic: Topic,
        qos: int,
        *,
        door: str,
        from_start: bool = False,
        starts: Sequence[int] = (),
        name: str = "",
    ) -> Subscription:
        """A new subscription at the tail of the topic, or at its start, or at these offsets of its partitions;
        `when_made` says when it would survive a restart. With a name its owner finds it again by that (`named`). Raises
        what is refused at once."""
        assert not name or self.named(owner, topic, name) is None, "a name stands for one subscription"
        self.check_room()
        self._last_id += self._id_step
        # From `visible`, not `end`: what is on its way to the disk may yet be refused, and its offsets given to others.
        lanes = [Lane(p, p.start if from_start else p.visible) for p in topic.partitions]
        _begin(lanes, starts)
        subscription = self._open(self._last_id, owner, topic, qos, lanes, door, name)
        try:
            durable = self._table.put(_key(subscription.id), _row(subscription))
        except StorageError:
            self._unmake(subscription, topic)
            raise
        self._unmade[subscription.id] = start(self._finish_making(subscription, topic, durable))
        return subscription

    async def _finish_making(self, subscription: Subscription, topic: Topic, durable: Promise[None]) -> None:
        try:
            await durable
        except Exception:
            self._unmake(subscription, topic)
            raise
        else:
            del self._unmade[subscription.id]

    def _unmake(self, subscription: Subscription, topic: Topic) -> None:
        self._unmade.pop(subscription.id, None)
        self._by_id.pop(subscription.id, None)
        self._unname(subscription)
        topic.unsubscribed(subscription)

    def when_made(self, subscription: Subscription) -> Promise[None]:
        """Completed when it would survive a restart, or with the error why there is none."""
        return self._unmade.get(subscription.id) or completed(None)

    def transient(
        self,
        owner: str,
        topic: Topic,
        *,
        door: str,
        qos: int = 0,
        starts: Sequence[int] = (),
        partitions: Sequence[int] | None = None,
    ) -> Subscription:
        """A subscription that lives as long as its reader: an id below 0, in no table. At the tail of the topic or at these
        offsets of its partitions. With `partitions` it has lanes for these only, and what its reader does not settle is
        given to it without end: the position of a group does not pass it."""
        self.check_room()
        self._last_transient -= 1
        numbers = range(len(topic.partitions)) if partitions is None else partitions
        lanes = [Lane(topic.partitions[number], topic.partitions[number].visible) for number in numbers]
        _begin(lanes, starts)
        subscription = self._open(self._last_transient, owner, topic, qos, lanes, door)
        if partitions is not None:
            subscription.limit(attempts_max=ATTEMPTS_WITHOUT_END)
        return subscription

    def check_room(self) -> None:
        """Raise now what making one more would raise."""
        if len(self._by_id) >= self._max:
            raise LimitExceeded(
                f"no more subscriptions: there are {len(self._by_id)}, the limit is delivery.subscriptions_max"
            )

    def _open(
        self, id: int, owner: str, topic: Topic, qos: int, lanes: list[Lane], door: str, name: str = ""
    ) -> Subscription:
        policy = self._policy
        who = ""
        if owner == MAILBOX_OWNER:
            policy = self._mailbox_policy
            who = topic.name.partition("/")[2]
        elif topic.name.endswith(self._suffix):
            policy = replace(policy, attempts_max=ATTEMPTS_WITHOUT_END)
        ranges = None if self.events is None else self.events.delivered_ranges
        subscription = Subscription(
            id,
            owner,
            topic.raw,
            qos,
            lanes,
            policy,
            self._scheduler.now,
            self._scheduler.monotonic,
            self._changed,
            door=door,
            who=who,
            delivered_ranges=ranges,
            traces=None if self.events is None else self.events.traces,
            name=name,
        )
        subscription.ages = self.ages
        self._by_id[id] = subscription
        if name:
            self._by_name[owner, topic.raw, name] = subscription
        topic.subscribed(subscription)
        return subscription

    def find(self, owner: str, id: int) -> Subscription | None:
        """The subscription, if it is this owner's."""
        subscription = self._by_id.get(id)
        return subscription if subscription is not None and subscription.owner == owner else None

    def named(self, owner: str, topic: Topic, name: str) -> Subscription | None:
        """This owner's subscription of that name to the topic."""
        return self._by_name.get((owner, topic.raw, name))

    def _unname(self, subscription: Subscription) -> None:
        key = (subscription.owner, subscription.topic_name, subscription.name)
        if self._by_name.get(key) is subscription:
            del self._by_name[key]

    @property
    def skipped(self) -> int:
        """Records that expired, or that retention or quarantine took, before they could be delivered."""
        return sum(lane.skipped for subscription in self._by_id.values() for lane in subscription.lanes)

    def remove(self, subscription: Subscription) -> None:
        if subscription.id > 0:
            self._table.delete(_key(subscription.id))
        del self._by_id[subscription.id]
        self._unname(subscription)
        self._delivered_by_removed += subscription.delivered
        self._timed.discard(subscription)
        topic = self._topics.get(subscription.topic_name)
        if topic is not None:
            topic.unsubscribed(subscription)

    # -- time ------------------------------------------------------------------------------------------------------

    def _changed(self, subscription: Subscription) -> None:
        self._dirty.append(subscription)
        self._timed.add(subscription)

    def tick(self, monotonic: int) -> None:
        """Redeliver what is due, bury what is dead, save what changed. Called about every 50 ms."""
        for subscription in list(self._timed):
            deadline = subscription.next_deadline()
            if deadline is not None and deadline <= monotonic:
                self.redelivered += 1
                subscription.expire(monotonic)
            if subscription.failed:
                subscription.read_again()
            dead = subscription.collect_dead()
            for lane, offsets in dead:
                self._bury(subscription, lane, offsets)
            if deadline is None and not dead and not subscription.dirty and not subscription.failed:
                self._timed.discard(subscription)
        if monotonic - self._saved_at >= SAVE_EVERY_US:
            self._saved_at = monotonic
            self.save()
            self._drop_idle(monotonic)

    def save(self) -> None:
        """Append the state of every subscription that changed."""
        dirty, self._dirty = self._dirty, []
        for subscription in dirty:
            subscription.dirty = False
            topic = self._topics.get(subscription.topic_name)
            if topic is None or topic.in_memory or subscription.id < 0 or subscription.id not in self._by_id:
                continue
            start_alone(self._scheduler, self._store(subscription, _row(subscription)))

    async def _explained(self) -> None:
        """Go on when the rows of the audit that led to the state as it is now are durable."""
        if self.events is not None:
            await self.events.written()

    async def _store(self, subscription: Subscription, row: SubscriptionRow) -> None:
        await self._explained()
        if self._by_id.get(subscription.id) is not subscription:  # removed meanwhile
            return
        try:
            self._table.put(_key(subscription.id), row)
        except QuintetError:  # a full disk, or the last of a broker that stops: it is dirty again, and tried again
            if not subscription.dirty:
                subscription.dirty = True
                self._changed(subscription)

    def _drop_idle(self, monotonic: int) -> None:
        if not self._idle_us or monotonic - self._idle_checked_at < IDLE_CHECK_EVERY_US:
            return
        self._idle_checked_at = monotonic
        for subscription in list(self._by_id.values()):
            idle = subscription.sink is None and monotonic - subscription.last_used > self._idle_us
            if idle and subscription.owner not in (KEPT_OWNER, MAILBOX_OWNER):
                self._report("subscription_expired", {"subscription": subscription.id, "owner": subscription.owner,
                                                      "backlog": subscription.backlog()})  # fmt: skip
                try:
                    self.remove(subscription)
                except StorageError:  # a full disk: it is forgotten later
                    return

    # -- dead letters ----------------------------------------------------------------------------------------------

    def _bury(self, subscription: Subscription, lane: Lane, offsets: dict[int, int]) -> None:
        for offset, attempts in offsets.items():
            mark = (subscription.id, lane.partition.number, offset)
            if mark not in self._burying:
                self._burying.add(mark)
                start_alone(self._scheduler, self._bury_one(subscription, lane, offset, attempts))

    async def _bury_one(self, subscription: Subscription, lane: Lane, offset: int, attempts: int) -> None:
        """Committed: the effect has settled it, or will. Refused (a full disk, too many topics): it is tried again after
        another attempt to deliver."""
        number = lane.partition.number
        try:
            row = await reads.read_row(lane.partition, offset, view=True)
            if row is not None:
                await self._explained()  # it says how often the record was delivered
                more = ((b"subscription", str(subscription.id).encode()),)
                failure = Failure("not acknowledged", attempts=attempts, more=more)
                effect = Settled(subscription.id, number, offset)
                await self._dead.bury(subscription.topic_name, number, offset, row, failure, [effect])
        except Exception as error:
            self._burying.discard((subscription.id, number, offset))
            if lane.dead.pop(offset, None) is None:
                return
            lane.retry[offset] = attempts - 1
            self._report("dead_letter_failed", {"subscription": subscription.id, "offset": offset, "error": str(error)})
        else:
            if row is None:  # retention or quarantine took it, and there is nothing left to keep
                self._burying.discard((subscription.id, number, offset))
                lane.settle(offset)
                lane.skipped += 1
        self._go_on(subscription)

    def _go_on(self, subscription: Subscription) -> None:
        """A place in its window became free."""
        if not subscription.dirty:
            subscription.dirty = True
            self._changed(subscription)
        subscription.pump()

    async def _settle(self, settled: Settled) -> None:
        """The effect of a burial: the offset is settled. Returns when a row that says so is durable; all that are settled in
        one turn share one row."""
        id, number, offset = settled.subscription, settled.partition, settled.offset
        self._burying.discard((id, number, offset))
        subscription = self._by_id.get(id)
        if subscription is None or number >= len(subscription.lanes):
            return
        if offset < subscription.lanes[number].partition.visible:  # not so: the topic was made again meanwhile
            subscription.lanes[number].settle(offset)
        if id not in self._settling:
            self._settling[id] = start(self._save_settled(id))
        await self._settling[id]

    async def _save_settled(self, id: int) -> None:
        await next_turn(self._scheduler)
        del self._settling[id]
        subscription = self._by_id.get(id)
        topic = None if subscription is None else self._topics.get(subscription.topic_name)
        if subscription is None or id < 0 or topic is None or topic.in_memory:
            return  # gone, or it does not outlive the broker
        row = _row(subscription)
        await self._explained()
        if self._by_id.get(id) is subscription:
            await self._table.put(_key(id), row)


def _begin(lanes: list[Lane], starts: Sequence[int]) -> None:
    for lane, first in zip(lanes, starts, strict=False):
        lane.position = min(max(first, lane.partition.start), lane.partition.visible)


def _key(id: int) -> bytes:
    return str(id).encode()


def _row(subscription: Subscription) -> SubscriptionRow:
    lanes = [LaneRow(position, pending) for position, pending in (lane.state() for lane in subscription.lanes)]
    return SubscriptionRow(
        subscription.id,
        subscription.owner,
        subscription.topic_name.decode(),
        subscription.qos,
        lanes,
        subscription.door,
        subscription.name,
    )
