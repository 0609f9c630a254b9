"""The broker's parts on a simulated disk, without its verbs: what the tests of intents, delays and dead letters share.

`Parts` builds them in the order the broker does, and can be cut off at any disk call and built again.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from quintet import kernel
from quintet.broker.atomic import dead_letters as dead
from quintet.broker.atomic import delays
from quintet.broker.atomic.dead_letters import DeadLetters, DeadRow
from quintet.broker.atomic.delays import DelayedRow, Delays
from quintet.broker.atomic.intent_rows import IntentRow
from quintet.broker.atomic.intents import Intents
from quintet.broker.consumers.subscriptions import SubscriptionRow, Subscriptions
from quintet.broker.slices import Elsewhere
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.broker.topics.specs import TopicRow
from quintet.delivery.subscription import Policy
from quintet.log.base import Durability, Partition
from quintet.log.embedded.engine import EmbeddedLog
from quintet.model.batch import Row
from quintet.model.tasks import Verb, start
from quintet.testing.line import DATA
from quintet.testing.sim import SimDisk, SimScheduler

SECOND = 1_000_000
SUFFIX = "-dlq"
Register = Callable[["Parts"], None]


class Parts:
    """Tables, topics, intents, dead letters, delays and subscriptions of one data directory."""

    def __init__(
        self,
        disk: SimDisk | None = None,
        *,
        durability: Durability | None = None,
        partitions: int = 1,
        register: Register | None = None,
        delivery: Policy | None = None,
        time: int = 0,
    ) -> None:
        self.disk = disk or SimDisk()
        self.scheduler = SimScheduler()
        self.scheduler.time = time or self.scheduler.time
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.log = EmbeddedLog(DATA, self.disk, self.scheduler, self.report)
        self.log.recover()
        rule = TopicRule("lossy*", durability=durability) if durability else TopicRule("many*", partitions=partitions)
        policy = TopicPolicy([rule, TopicRule("*")])
        topics = Table(self.log, 1, "__topics", TopicRow)
        subscriptions = Table(self.log, 3, "__subscriptions", SubscriptionRow)
        self.intent_rows = Table(self.log, 8, "__intents", IntentRow, packed=True)
        self.delayed_rows = Table(self.log, *delays.TABLE, DelayedRow, packed=True)
        self.dead_rows = Table(self.log, *dead.TABLE, DeadRow, packed=True)
        for table in (topics, subscriptions, self.intent_rows, self.delayed_rows, self.dead_rows):
            table.load()
        self.topics = Topics(self.log, topics, policy, Random(0).randbytes)
        self.topics.load()
        rows, elsewhere = self.intent_rows, Elsewhere(self.scheduler)
        self.intents = Intents(rows, self.topics, self.scheduler, self.report, self.log.stages, elsewhere)
        if register is not None:
            register(self)
        self.dead = DeadLetters(self.dead_rows, self.topics, self.intents, self.scheduler, suffix=SUFFIX)
        self.delays = Delays(self.delayed_rows, self.topics, self.intents, self.dead, self.scheduler, self.report)
        self.subscriptions = Subscriptions(
            subscriptions,
            self.topics,
            delivery or Policy(),
            self.scheduler,
            self.report,
            dead_letter_suffix=SUFFIX,
            idle_us=0,
            subscriptions_max=100,
            dead=self.dead,
            intents=self.intents,
        )
        self.subscriptions.load()
        self.intents.recover()
        self.scheduler.run_until_idle()

    def report(self, event: str, fields: dict[str, object]) -> None:
        self.reports.append((event, fields))

    def events(self) -> list[str]:
        return [event for event, _ in self.reports]

    def advance(self, delta_us: int, step_us: int = 50_000) -> None:
        """Let time pass, with a tick every step."""
        for _ in range(max(1, delta_us // step_us)):
            self.scheduler.advance(step_us)
            now, monotonic = self.scheduler.now(), self.scheduler.monotonic()
            self.intents.tick(monotonic)
            self.delays.tick(now)
            self.subscriptions.tick(monotonic)
            self.log.maintain(now)
            self.scheduler.run_until_idle()

    def topic(self, name: bytes) -> Topic:
        topic = self.topics.ensure(name, durable=True)
        self.scheduler.run_until_idle()
        return topic

    def publish(self, name: bytes, *values: bytes, key: bytes | None = None, partition: int = 0) -> None:
        topic = self.topic(name)
        for value in values:
            topic.publish(kernel.build([value], [key], origin=b"test:1"), 1, True, None, partition)
        self.scheduler.run_until_idle()

    def rows(self, name: bytes) -> list[Row]:
        """All records of a topic, partition by partition."""
        topic = self.topics.get(name)
        return [] if topic is None else [row for partition in topic.partitions for row in all_rows(partition)]

    def values(self, name: bytes) -> list[bytes | None]:
        return [row[3] for row in self.rows(name)]

    def cut(self, seed: int) -> None:
        """The power is gone. Build others on the same disk."""
        self.log.abandon()
        self.disk.crash(Random(seed))


def all_rows(partition: Partition) -> list[Row]:
    found: list[Row] = []
    offset = partition.start
    while offset < partition.visible:
        batches = partition.read_now(offset)
        if not batches:
            break
        for batch in batches:
            found.extend(row for row in batch.rows() if row[0] >= offset)
            offset = batch.next_offset
    return found


class Told(list[Exception | None]):
    """A `done` that remembers what it was told."""

    def __call__(self, error: Exception | None) -> None:
        self.append(error)


def tell(verb: Verb[Any], told: Told) -> None:
    """Run a verb; `told` hears how it ended."""
    start(verb).then(lambda _, error: told(error))


def attempt(verb: Verb[Any], told: Callable[..., None]) -> None:
    """The same; an error that comes at once is raised."""
    over, ended = start(verb), list[Exception]()
    if not over.pending:
        over.then(lambda _, error: ended.append(error) if error is not None else None)
    if ended:
        raise ended[0]
    over.then(lambda _, error: told(error))
