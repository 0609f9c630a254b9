"""Serves groups whose members poll: claims records of a topic for a time, acknowledges them, releases them.

A group is a named subscription of its owner to all partitions of a topic, from the first record that is kept. A record that
was polled is claimed until its visibility time is over (`delivery.push_timeout_seconds`, doubled with every attempt); then it is
given to whoever polls next, and after `delivery.attempts_max` it is a dead letter, as with every subscription. Each claim is
a sink of its own, so one can be handed back and the others stand.

A poll that finds nothing waits until there is something, its time is over, or its client is gone: nothing is claimed for
a client that is gone.
"""

from typing import Final, cast

from quintet.broker.consumers.subscriptions import Subscriptions
from quintet.broker.topics.catalog import Topic
from quintet.delivery.sink import Sink
from quintet.delivery.subscription import Subscription
from quintet.model.batch import RecordBatch
from quintet.model.errors import BadRequest, QuintetError, TopicNotFound
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, start_alone

PREFIX: Final = "group/"  # of the names of such subscriptions: no name that a client chooses has a slash
TURN_BYTES_MAX: Final = (
    1 << 20
)  # of records in base64, after which an answer takes no more: it is made in one turn of the loop
RECORD_BYTES: Final = 128  # that an answer needs for a record beside its value

# partition, batch, number in the batch, attempt
Claimed = tuple[int, RecordBatch, int, int]


class _Claim:
    """Marks one record as claimed by a poll. It stands where a sink would, and nothing is pushed to it."""

    __slots__ = ()


class Poll:
    """One question of a member, until it is answered (`claimed`) or given up."""

    __slots__ = ("_bytes_max", "_count", "_scheduler", "_subscription", "_topic", "_until_us", "claimed", "over")

    def __init__(self, topic: Topic, count: int, bytes_max: int, wait_us: int, scheduler: Scheduler) -> None:
        self.claimed: Promise[list[Claimed]] = Promise()  # never completed if its client is gone
        self.over = False
        self._topic = topic
        self._count = count
        self._bytes_max = bytes_max
        self._scheduler = scheduler
        self._until_us = scheduler.monotonic() + wait_us
        self._subscription: Subscription | None = None  # from when it is made until the poll is over

    async def begin(self, subscription: Subscription, made: Promise[None]) -> None:
        try:
            await made
        except Exception as error:
            if not self.over:
                self._finish()
                self.claimed.fail(error)
            return
        if self.over:
            return
        self._subscription = subscription
        for lane in subscription.lanes:
            lane.partition.watch(self.look)
        self.look()

    def look(self) -> None:
        """Answer if there is something, or if the time is over."""
        if self.over or self._subscription is None:
            return
        if self._topic.deleted:
            self._finish()
            self.claimed.fail(TopicNotFound(f"topic {self._topic.name!r} was deleted"))
            return
        found, reading = self._take(self._subscription)
        if found or (not reading and self._scheduler.monotonic() >= self._until_us):
            self._finish()
            self.claimed.resolve(found)

    def cancel(self) -> None:
        """Its client is gone."""
        if not self.over:
            self._finish()

    def _take(self, subscription: Subscription) -> tuple[list[Claimed], bool]:
        """What can be claimed now, and whether more is being read from disk."""
        found: list[Claimed] = []
        size = 0
        while len(found) < self._count and size < TURN_BYTES_MAX:
            claim = cast(Sink, _Claim())
            runs, reading = subscription.poll(1, claim, self.look, self._bytes_max, subscription.push_timeout_us)
            if not runs:
                return found, reading
            ((partition, (batch, row, last)),) = runs
            cost = RECORD_BYTES + (len(batch.rows(row, last)[0][3] or b"") + 2) // 3 * 4
            lane = subscription.lanes[partition]
            if size + cost > self._bytes_max:  # one that is too large alone uses up its attempts, and is a dead letter
                lane.release(claim, subscription.attempts_max)
                if found:
                    break
                continue
            size += cost
            flight = lane.inflight.get(batch.offset(row))
            found.append((partition, batch, row, 1 if flight is None else flight.attempt))
        return found, False

    def _finish(self) -> None:
        self.over = True
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            for lane in subscription.lanes:
                lane.partition.unwatch(self.look)


class Claims:
    """All polls that wait."""

    def __init__(self, subscriptions: Subscriptions, scheduler: Scheduler) -> None:
        self._subscriptions = subscriptions
        self._scheduler = scheduler
        self._waiting: list[Poll] = []

    def poll(self, owner: str, topic: Topic, group: str, door: str, count: int, bytes_max: int, wait_us: int) -> Poll:
        """Claim up to `count` records, at most bytes_max of them in base64; wait so long for the first. Raises what is
        refused at once."""
        subscriptions, name = self._subscriptions, PREFIX + group
        found = subscriptions.named(owner, topic, name)
        if found is None:
            found = subscriptions.create(owner, topic, 1, door=door, from_start=True, name=name)
        poll = Poll(topic, count, bytes_max, wait_us, self._scheduler)
        start_alone(self._scheduler, poll.begin(found, subscriptions.when_made(found)))
        if not poll.over:
            self._waiting.append(poll)
        return poll

    def ack(self, owner: str, topic: Topic, group: str, partition: int, offset: int) -> None:
        """Finish a record. One that is finished already stays so; one that was never handed out is refused."""
        subscription = self._find(owner, topic, group)
        if subscription.ack(partition, offset, 1) and offset >= subscription.lanes[partition].position:
            raise BadRequest(f"offset {offset} of partition {partition} was not handed out to group {group!r}")

    def nack(self, owner: str, topic: Topic, group: str, partition: int, offset: int) -> None:
        """Hand a record back: it is due at once."""
        subscription = self._find(owner, topic, group)
        lane = subscription.lanes[partition]
        flight = lane.inflight.get(offset)
        if flight is None or flight.sink is None:
            raise StaleClaim(f"offset {offset} of partition {partition} is not claimed in group {group!r}")
        lane.release(flight.sink, subscription.attempts_max)
        subscription.ack(partition, offset, 0)  # settles nothing: what changed is saved
        self.tick(0)

    def _find(self, owner: str, topic: Topic, group: str) -> Subscription:
        found = self._subscriptions.named(owner, topic, PREFIX + group)
        if found is None:
            raise BadRequest(
                f"there is no group {group!r} on topic {topic.name!r}", hint="it is made by the first poll"
            )
        return found

    def tick(self, _now: int) -> None:
        """Something may be due again, or a wait be over."""
        for poll in list(self._waiting):
            poll.look()
        self._waiting = [poll for poll in self._waiting if not poll.over]


class StaleClaim(QuintetError):
    """A record that its consumer has no claim on any more."""

    code = "E1314"
