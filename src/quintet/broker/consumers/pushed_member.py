"""Pushes records to one member of a consumer group: its assigned partitions, as subscriptions with one sink.

coordinator.py knows who owns what and how far they got; a door that pulls asks it for every read. A door that pushes holds a
Membership: it joins, says every HEARTBEAT_US that it is there, takes up and gives up partitions as the group is assigned
anew, and commits what its peer acknowledged in order. What was acknowledged out of order waits for what is before it. A
commit under a generation that is over is asked for again under the next one, if the partition is still this member's and
was nobody else's meanwhile.
"""

from collections.abc import Callable
from typing import Final

from quintet.broker.consumers.coordinator import ASSIGN, Groups
from quintet.broker.consumers.group import Assignment
from quintet.broker.consumers.subscriptions import Subscriptions
from quintet.broker.table import Done
from quintet.broker.topics.catalog import Topic
from quintet.delivery.consumer import Consumer
from quintet.delivery.sink import Sink
from quintet.delivery.subscription import Subscription
from quintet.model.errors import Fenced, QuintetError
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import sleep, start_alone

HEARTBEAT_US: Final = 300_000  # so long it may take until a member hears of a new assignment; a timeout is 1 s or more
EVERYTHING: Final = 1 << 64  # behind every offset


class Membership:
    """`rights` says for whom it acts, and whether as one who may for others; `over` is called once, if the group lets it go
    by itself. Made, then `join`, then `start` with the sink, then `leave`."""

    def __init__(
        self,
        groups: Groups,
        subscriptions: Subscriptions,
        scheduler: Scheduler,
        topic: Topic,
        group: str,
        mode: str,
        door: str,
        rights: Callable[[], tuple[str, bool]],
        over: Callable[[], None],
    ) -> None:
        self.consumer = Consumer(subscriptions.push_timeout_us)  # one consumer, however many partitions it has
        self._groups = groups
        self._subscriptions = subscriptions
        self._scheduler = scheduler
        self._topic = topic
        self._group = group
        self._mode = mode
        self._door = door
        self._rights = rights
        self._over = over
        self._sink: Sink | None = None
        self._left = False
        self._generation = 0
        self._of: dict[int, Subscription] = {}
        self._committed: dict[int, int] = {}  # what was last asked to be committed
        self._committing: set[int] = set()
        self._waiting: dict[int, list[tuple[int, Done]]] = {}
        self._settled: dict[int, list[Done]] = {}  # acknowledged in this turn
        self._fenced: dict[int, Exception] = {}  # partitions whose commit waits for what is assigned now
        self._answers = 0  # to its heartbeats: only the last one leads to another

    @property
    def partitions(self) -> list[int]:
        """What it is assigned."""
        return sorted(self._of)

    def subscription(self, partition: int) -> Subscription | None:
        """Through which it gets this partition, if it is assigned to it."""
        return self._of.get(partition)

    # -- being there -----------------------------------------------------------------------------------------------

    async def join(self) -> None:
        """Returns when the first assignment is there. Raises why there is none."""
        try:
            await self._ask()
        except Exception:
            self.leave()
            raise
        start_alone(self._scheduler, self._stay())

    def start(self, sink: Sink) -> None:
        """Push to this sink from now on."""
        self._sink = sink
        for subscription in list(self._of.values()):
            subscription.attach(sink)

    def leave(self) -> None:
        """It is gone, or does not want any more."""
        if not self._left:
            self._left = True
            for partition in list(self._of):
                self._give_up(partition)
            self._groups.leave(self)

    async def _ask(self) -> None:
        """Join, or be heard of again: the answer is what is assigned now."""
        who, privileged = self._rights()
        assignment = await self._groups.subscribe(
            who, privileged, self._topic, self._group, ASSIGN, self._mode, self, ""
        )
        if self._left:
            raise Fenced(f"this member left group {self._group}")
        self._take(assignment)
        self._answers += 1

    async def _stay(self) -> None:
        """After an answer: ask again in time, unless it left or a later answer does that."""
        answers = self._answers
        await sleep(self._scheduler, HEARTBEAT_US)
        if answers == self._answers and not self._left:
            await self._look()

    async def _look(self) -> None:
        """Ask what is assigned now: a heartbeat, or because a commit was fenced."""
        if self._topic.deleted:
            self._end()
            return
        try:
            await self._ask()
        except QuintetError:  # the group is another's now, or there are too many subscriptions
            self._end()
            return
        start_alone(self._scheduler, self._stay())

    def _end(self) -> None:
        if not self._left:
            self.leave()
            self._over()

    def _take(self, assignment: Assignment) -> None:
        fenced, self._fenced = self._fenced, {}
        if assignment.generation == self._generation:
            for partition, error in fenced.items():
                self._tell(partition, EVERYTHING, error)
            return
        self._generation = assignment.generation
        starts = dict(assignment.partitions)
        for partition, subscription in list(self._of.items()):
            known = max(self._committed[partition], subscription.lanes[0].partition.start)
            if starts.get(partition, EVERYTHING) > known:  # not its own, or it was another's meanwhile, who got further
                self._give_up(partition)
        for partition in sorted(starts.keys() - self._of.keys()):
            subscription = self._subscriptions.transient(
                self._rights()[0],
                self._topic,
                door=self._door,
                qos=1,
                starts=[starts[partition]],
                partitions=[partition],
            )
            subscription.consumer = self.consumer
            self._of[partition] = subscription
            self._committed[partition] = starts[partition]
            if self._sink is not None:
                subscription.attach(self._sink)
        for partition in fenced:
            start_alone(self._scheduler, self._commit(partition))

    def _give_up(self, partition: int) -> None:
        subscription = self._of.pop(partition)
        if self._sink is not None:
            subscription.detach(self._sink)
        if self._subscriptions.find(subscription.owner, subscription.id) is subscription:
            self._subscriptions.remove(subscription)
        self._waiting.setdefault(partition, []).extend((0, done) for done in self._settled.pop(partition, ()))
        self._tell(partition, EVERYTHING, Fenced(f"partition {partition} is another member's now"))

    # -- acknowledging ---------------------------------------------------------------------------------------------

    def settle(self, partition: int, offset: int, count: int, done: Done) -> None:
        """Acknowledged by the peer; done when what that lets the group commit is durable."""
        subscription = self._of.get(partition)
        if subscription is None:
            done(Fenced(f"partition {partition} is not assigned to this member"))
            return
        subscription.ack(0, offset, count)
        if not self._settled:
            self._scheduler.soon(self._reckon)
        self._settled.setdefault(partition, []).append(done)

    def _reckon(self) -> None:
        """The end of the turn: how far what was acknowledged goes. Once for all of it, because that looks at everything in
        flight."""
        settled, self._settled = self._settled, {}
        for partition, calls in settled.items():
            subscription = self._of.get(partition)
            floor = 0 if subscription is None else subscription.lanes[0].floor
            self._waiting.setdefault(partition, []).extend((floor, done) for done in calls)
            if subscription is None:  # it left when it was told of another partition
                self._tell(partition, EVERYTHING, Fenced(f"partition {partition} is not assigned to this member"))
            elif floor > self._committed[partition] or partition in self._committing:
                start_alone(self._scheduler, self._commit(partition))
            else:
                self._tell(partition, floor, None)

    async def _commit(self, partition: int) -> None:
        """One commit of a partition at a time: what is acknowledged meanwhile goes with the next."""
        while partition not in self._committing and partition not in self._fenced:
            subscription = self._of.get(partition)
            if subscription is None or subscription.lanes[0].floor <= self._committed[partition]:
                return
            floor, before = subscription.lanes[0].floor, self._committed[partition]
            self._committing.add(partition)
            self._committed[partition] = floor
            try:
                where = (*self._rights(), self._topic, self._group, partition)
                await self._groups.offsets.commit(*where, floor, self._generation, self, door=self._door)
            except Exception as error:
                self._committing.discard(partition)
                self._refused(partition, before, error)
                return
            self._committing.discard(partition)
            self._tell(partition, floor, None)

    def _refused(self, partition: int, before: int, error: Exception) -> None:
        if partition in self._of:
            self._committed[partition] = before
            if isinstance(error, Fenced):
                self._fenced[partition] = error
                start_alone(self._scheduler, self._look())
                return
        self._tell(partition, EVERYTHING, error)

    def _tell(self, partition: int, floor: int, error: Exception | None) -> None:
        waiting = self._waiting.pop(partition, [])
        late = [(wanted, done) for wanted, done in waiting if wanted > floor]
        if late:
            self._waiting[partition] = late
        for wanted, done in waiting:
            if wanted <= floor:
                done(error)
