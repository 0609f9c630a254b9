"""From a door's verb to the log, and from the log to a door: the broker itself. One set of verbs for all doors.

A session asks here and nowhere else: who is this, where does this publish go, subscribe, find my subscription. What the
verb needs later (durability, disk) comes back through the sink. The broker owns topics, subscriptions and access; it has
no thread, no clock of its own, and sees no protocol's bytes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from quintet.broker.access import Access, Credential, Principal
from quintet.broker.subscriptions import Report, SubscriptionRow, Subscriptions
from quintet.broker.table import Table
from quintet.broker.topics import Topic, TopicPolicy, TopicRow, TopicRule, Topics
from quintet.delivery.sink import Sink
from quintet.delivery.subscription import Policy, Subscription
from quintet.log.base import Log
from quintet.model import limits
from quintet.model.errors import QuintetError, ShuttingDown
from quintet.model.scheduler import Scheduler

TOPICS_TABLE = (1, "__topics")
CREDENTIALS_TABLE = (2, "__credentials")
SUBSCRIPTIONS_TABLE = (3, "__subscriptions")


class CredentialRow(msgspec.Struct, frozen=True):
    """What `__credentials` keeps: never the secret."""

    name: str
    secret_sha256: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The broker's branch of the configuration."""

    topics: TopicPolicy = field(default_factory=lambda: TopicPolicy(rules=[TopicRule("*")]))
    delivery: Policy = field(default_factory=Policy)
    dead_letter_suffix: str = "-dlq"
    subscription_idle_us: int = 30 * 24 * 3600 * 1_000_000
    subscriptions_max: int = 100_000
    unsynced_bytes_max: int = limits.UNSYNCED_BYTES_MAX


class Broker:
    """The verbs. Made once by server.py (or a test), after the log recovered."""

    def __init__(self, log: Log, scheduler: Scheduler, options: BrokerOptions, report: Report) -> None:
        self.log = log
        self.scheduler = scheduler
        self.access = Access()
        self.draining = False
        self._options = options
        self._credentials = Table(log, *CREDENTIALS_TABLE, CredentialRow)
        topics_table = Table(log, *TOPICS_TABLE, TopicRow)
        subscriptions_table = Table(log, *SUBSCRIPTIONS_TABLE, SubscriptionRow)
        for table in (self._credentials, topics_table, subscriptions_table):
            table.load()
        self.topics = Topics(log, topics_table, options.topics)
        self.topics.load()
        self.subscriptions = Subscriptions(
            subscriptions_table,
            self.topics,
            options.delivery,
            scheduler,
            report,
            dead_letter_suffix=options.dead_letter_suffix,
            idle_us=options.subscription_idle_us,
            subscriptions_max=options.subscriptions_max,
        )
        self.subscriptions.load()

    # -- who -------------------------------------------------------------------------------------------------------

    def set_credentials(self, credentials: Iterable[Credential]) -> None:
        """Make these the valid API keys, durably; keys that are gone stop working at once."""
        wanted = {c.secret_sha256.encode(): c for c in credentials}
        for row in list(self._credentials):
            if row.secret_sha256.encode() not in wanted:
                self._credentials.delete(row.secret_sha256.encode())
        for key, credential in wanted.items():
            fresh = CredentialRow(credential.name, credential.secret_sha256, credential.publish, credential.subscribe)
            if self._credentials.get(key) != fresh:
                self._credentials.put(key, fresh)
        self.access.replace(wanted.values())

    def authenticate(self, secret: bytes) -> tuple[str, Principal]:
        return self.access.authenticate(secret)

    # -- publish ---------------------------------------------------------------------------------------------------

    def publish_target(self, principal: Principal, name: bytes, durable: bool) -> Topic:
        """The topic this principal's publishes to `name` go to; a session may remember it until access.epoch changes."""
        if self.draining:
            raise ShuttingDown("the broker is shutting down", hint="connect again in a moment")
        self.access.require(principal, "publish", name.decode())
        return self.topics.ensure(name, durable)

    def overloaded(self) -> bool:
        """The disk is behind: nobody who publishes should be read from until it caught up."""
        return self.log.unsynced_bytes > self._options.unsynced_bytes_max

    # -- subscribe -------------------------------------------------------------------------------------------------

    def subscribe(self, principal: Principal, name: bytes, qos: int, sink: Sink, token: object) -> None:
        """A new subscription; `sink.completed(token, subscription, error)` when it would survive a restart."""
        self.access.require(principal, "subscribe", name.decode())
        topic = self.topics.ensure(name, durable=qos > 0)
        topic.after(partial(self._subscribe, principal, topic, qos, sink, token))

    def _subscribe(
        self, principal: Principal, topic: Topic, qos: int, sink: Sink, token: object, error: Exception | None
    ) -> None:
        made: list[Subscription] = []
        if error is None:
            try:
                done = partial(self._subscribed, sink, token, made)
                made.append(self.subscriptions.create(principal.name, topic, qos, done))
            except QuintetError as refused:
                error = refused
        if error is not None:
            self.scheduler.soon(partial(sink.completed, token, None, error))

    @staticmethod
    def _subscribed(sink: Sink, token: object, made: list[Subscription], error: Exception | None) -> None:
        sink.completed(token, made[0], error)

    def subscription(self, principal: Principal, id: int) -> Subscription | None:
        """This principal's subscription of that id, if it may still read its topic."""
        found = self.subscriptions.find(principal.name, id)
        return found if found is not None and principal.may("subscribe", found.topic_name.decode()) else None

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> None:
        """About every 50 ms: redelivery, dead letters, saving, and the log's own upkeep."""
        self.subscriptions.tick(now)
        self.log.maintain(now)

    def drain(self, done: Callable[[], None]) -> None:
        """Save everything and close the log; done when it is on disk."""
        self.draining = True
        self.subscriptions.save()
        self.log.close(done)
