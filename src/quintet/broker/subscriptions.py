"""Subscriptions that outlive connections: made, found by their owner, saved, timed, and their dead letters buried.

A subscription belongs to the name of the principal that made it; to anybody else it does not exist. What it has not
settled is saved in `__subscriptions` a moment after it changed (SAVE_EVERY_US): after a crash at most that much is
delivered again, never less. A record whose attempts are used up goes to the dead-letter topic, and is settled only when
it is durable there.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from quintet import kernel
from quintet.broker.table import Table
from quintet.broker.topics import Topic, Topics
from quintet.delivery.lane import Lane
from quintet.delivery.subscription import Policy, Subscription
from quintet.model import limits
from quintet.model.batch import RecordBatch, Row
from quintet.model.errors import LimitExceeded, QuintetError, StorageError
from quintet.model.scheduler import Scheduler

SAVE_EVERY_US = 200_000
IDLE_CHECK_EVERY_US = 60_000_000
ATTEMPTS_WITHOUT_END = 1 << 30  # on a dead-letter topic itself: there is nowhere further to go
_DEAD_READ_BYTES = 1 << 20

Report = Callable[[str, dict[str, object]], None]


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
    ) -> None:
        self._table = table
        self._topics = topics
        self._policy = policy
        self._scheduler = scheduler
        self._report = report
        self._suffix = dead_letter_suffix
        self._idle_us = idle_us
        self._max = subscriptions_max
        self._by_id: dict[int, Subscription] = {}
        self._last_id = 0
        self._dirty: list[Subscription] = []
        self._timed: set[Subscription] = set()
        self._burying: set[tuple[int, int, int]] = set()
        self._saved_at = 0
        self._idle_checked_at = 0
        self._delivered_by_removed = 0
        self.redelivered = 0
        self.dead_lettered = 0

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def delivered(self) -> int:
        return self._delivered_by_removed + sum(s.delivered for s in self._by_id.values())

    def all(self) -> list[Subscription]:
        return list(self._by_id.values())

    # -- making and finding ----------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take up the subscriptions of the last run where they were."""
        for row in self._table:
            topic = self._topics.ensure(row.topic.encode(), durable=False)
            lanes = []
            for number, partition in enumerate(topic.partitions):
                lane = Lane(partition, partition.visible)
                if number < len(row.lanes) and not topic.in_memory:
                    saved = row.lanes[number]
                    lane.restore(min(saved.position, partition.visible), saved.pending)
                lanes.append(lane)
            self._open(row.id, row.owner, topic, row.qos, lanes)  # its idle time starts again with the broker
            self._last_id = max(self._last_id, row.id)

    def create(self, owner: str, topic: Topic, qos: int, done: Callable[[Exception | None], None]) -> Subscription:
        """A new subscription at the tail of the topic; done when it would survive a restart."""
        if len(self._by_id) >= self._max:
            raise LimitExceeded(
                f"no more subscriptions: there are {len(self._by_id)}, the limit is delivery.subscriptions_max"
            )
        self._last_id += 1
        # From `visible`, not `end`: what is on its way to the disk may yet be refused, and its offsets given to others.
        lanes = [Lane(partition, partition.visible) for partition in topic.partitions]
        subscription = self._open(self._last_id, owner, topic, qos, lanes)
        try:
            self._table.put(_key(subscription.id), _row(subscription), partial(self._made, subscription, topic, done))
        except StorageError as error:
            self._made(subscription, topic, None, error)
            raise
        return subscription

    def _made(
        self,
        subscription: Subscription,
        topic: Topic,
        done: Callable[[Exception | None], None] | None,
        error: Exception | None,
    ) -> None:
        if error is not None:
            self._by_id.pop(subscription.id, None)
            topic.subscriptions.discard(subscription)
        if done is not None:
            done(error)

    def _open(self, id: int, owner: str, topic: Topic, qos: int, lanes: list[Lane]) -> Subscription:
        policy = self._policy
        if topic.name.endswith(self._suffix):
            policy = replace(policy, attempts_max=ATTEMPTS_WITHOUT_END)
        subscription = Subscription(id, owner, topic.raw, qos, lanes, policy, self._scheduler.now, self._changed)
        self._by_id[id] = subscription
        topic.subscribed(subscription)
        return subscription

    def find(self, owner: str, id: int) -> Subscription | None:
        """The subscription, if it is this owner's."""
        subscription = self._by_id.get(id)
        return subscription if subscription is not None and subscription.owner == owner else None

    @property
    def skipped(self) -> int:
        """Records that expired, or that retention or quarantine took, before they could be delivered."""
        return sum(lane.skipped for subscription in self._by_id.values() for lane in subscription.lanes)

    def remove(self, subscription: Subscription) -> None:
        self._table.delete(_key(subscription.id))
        del self._by_id[subscription.id]
        self._delivered_by_removed += subscription.delivered
        self._timed.discard(subscription)
        topic = self._topics.get(subscription.topic_name)
        if topic is not None:
            topic.subscriptions.discard(subscription)

    # -- time ------------------------------------------------------------------------------------------------------

    def _changed(self, subscription: Subscription) -> None:
        self._dirty.append(subscription)
        self._timed.add(subscription)

    def tick(self, now: int) -> None:
        """Redeliver what is due, bury what is dead, save what changed. Called about every 50 ms."""
        for subscription in list(self._timed):
            deadline = subscription.next_deadline()
            if deadline is not None and deadline <= now:
                self.redelivered += 1
                subscription.expire(now)
            if subscription.failed:
                subscription.read_again()
            dead = subscription.collect_dead()
            for lane, offsets in dead:
                self._bury(subscription, lane, offsets)
            if deadline is None and not dead and not subscription.dirty and not subscription.failed:
                self._timed.discard(subscription)
        if now - self._saved_at >= SAVE_EVERY_US:
            self._saved_at = now
            self.save()
            self._drop_idle(now)

    def save(self) -> None:
        """Append the state of every subscription that changed."""
        dirty, self._dirty = self._dirty, []
        for subscription in dirty:
            subscription.dirty = False
            topic = self._topics.get(subscription.topic_name)
            if topic is None or topic.in_memory or subscription.id not in self._by_id:
                continue
            try:
                self._table.put(_key(subscription.id), _row(subscription))
            except StorageError:  # a full disk: it stays dirty and is tried again
                subscription.dirty = True
                self._dirty.append(subscription)

    def _drop_idle(self, now: int) -> None:
        if not self._idle_us or now - self._idle_checked_at < IDLE_CHECK_EVERY_US:
            return
        self._idle_checked_at = now
        for subscription in list(self._by_id.values()):
            if subscription.sink is None and now - subscription.last_used > self._idle_us:
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
            if mark in self._burying:
                continue
            self._burying.add(mark)
            found = lane.partition.read(offset, _DEAD_READ_BYTES)
            if found is None:
                done = partial(self._found, subscription, lane, offset, attempts)
                lane.partition.fetch(offset, _DEAD_READ_BYTES, done)
            else:
                self._found(subscription, lane, offset, attempts, found, None)

    def _found(
        self,
        subscription: Subscription,
        lane: Lane,
        offset: int,
        attempts: int,
        batches: list[RecordBatch],
        error: Exception | None,
    ) -> None:
        done = partial(self._buried, subscription, lane, offset, attempts)
        row = _row_at(batches, offset)
        if (
            row is None
        ):  # it could not be read now; or retention or quarantine took it, and there is nothing left to keep
            done(-1, error)
            return
        _, timestamp, key, value, headers, _, origin = row
        cause = (
            (b"quintet-dead-cause", b"not acknowledged"),
            (b"quintet-dead-topic", subscription.topic_name),
            (b"quintet-dead-partition", str(lane.partition.number).encode()),
            (b"quintet-dead-offset", str(offset).encode()),
            (b"quintet-dead-attempts", str(attempts).encode()),
            (b"quintet-dead-subscription", str(subscription.id).encode()),
        )
        batch = kernel.build([value], [key], [(*headers, *cause)], [timestamp], origin=origin)
        try:
            topic = self._topics.ensure(self._dead_letter_name(subscription.topic_name), durable=True)
            topic.publish(batch, 1, False, done)
        except QuintetError as refused:  # a full disk, or too many topics: again after another attempt to deliver
            done(-1, refused)

    def _buried(
        self, subscription: Subscription, lane: Lane, offset: int, attempts: int, _at: int, error: Exception | None
    ) -> None:
        self._burying.discard((subscription.id, lane.partition.number, offset))
        if lane.dead.pop(offset, None) is None:
            return
        if error is not None:
            lane.retry[offset] = attempts - 1
            self._report("dead_letter_failed", {"subscription": subscription.id, "offset": offset, "error": str(error)})
        else:
            self.dead_lettered += 1
        if not subscription.dirty:
            subscription.dirty = True
            self._changed(subscription)
        subscription.pump()

    def _dead_letter_name(self, topic: bytes) -> bytes:
        suffix = self._suffix.encode()
        if len(topic) + len(suffix) <= limits.TOPIC_NAME_BYTES_MAX:
            return topic + suffix
        short = topic[: limits.TOPIC_NAME_BYTES_MAX - len(suffix) - 9].decode(errors="ignore").encode()
        return short + b"~" + hashlib.sha256(topic).hexdigest()[:8].encode() + suffix


def _row_at(batches: list[RecordBatch], offset: int) -> Row | None:
    for batch in batches:
        if batch.base_offset <= offset < batch.next_offset:
            index = batch.index_of(offset)
            rows = batch.rows(index, index + 1) if index < batch.count else []
            return rows[0] if rows and rows[0][0] == offset else None
    return None


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
    )
