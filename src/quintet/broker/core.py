"""Joins the parts of the broker and gives the doors their verbs.

A session asks what is listed here, and nothing else of the broker (tests/broker/test_broker.py compares). A door that needs no more
than the first row is examples/line_door.py.

    every     access, audit, authenticate, check_open, doors, draining, leave, listen, overloaded, publish_target, quotas,
              scheduler, subscribe, subscription
    blipmq    matching_topics, slices, tails, tails_appended, tails_held, topics_version, traces
    flymq     cluster, create_topic, dead, dead_letter_counts, dead_letters_of, delays, delete_topic, elsewhere, events, groups, keys,
              matching_topics, producers, purge_topic, reject, schemas, slices, tails, tails_appended, tails_held, topics,
              topics_version, traces, transactions, users, wait_for
    fast      queues, tails, tails_appended, tails_held, tokens
    peerbus   peers
    felix     caches, claims, elsewhere, groups, matching_topics, publishes_dropped, slices, subscriptions, tails, tails_appended,
              tenant_tokens, tenants, topics, topics_version

In the words of a door:

    log in        authenticate with a key; users.authenticate_password; queues.bearer and tenant_tokens.verify with a token. Then
                  access.current with the identity, whenever access.epoch is another one (protocols/base.py)
    publish       publish_target, then Topic.publish; or straight into `tails` what Topic.direct allows
    subscribe     subscribe is kept over restarts, listen is for the life of a connection; both say the door's name to the audit
    acknowledge   subscription, then Subscription.ack, nack, working
    fetch         subscription, then Subscription.poll; by offset topics.find, then broker/topics/reads.py, and wait_for

Parts (queues, peers, caches, groups ...) are attributes. Late results (durability, disk) come through the sink. The broker owns
topics, subscriptions and access; it has no thread, no clock of its own, and sees no protocol's bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, NoReturn

import msgspec
from msgspec.structs import replace

from quintet.broker.atomic.dead_letters import TABLE as DEAD_TABLE
from quintet.broker.atomic.dead_letters import DeadLetters, DeadRow
from quintet.broker.atomic.delays import TABLE as DELAYED_TABLE
from quintet.broker.atomic.delays import DelayedRow, Delays
from quintet.broker.atomic.intent_rows import IntentRow
from quintet.broker.atomic.intents import Intents
from quintet.broker.atomic.producers import ProducerRow, Producers
from quintet.broker.atomic.stages import TABLE as FENCES_TABLE
from quintet.broker.atomic.stages import FenceRow, Stages
from quintet.broker.atomic.transactions import TransactionLimits, Transactions
from quintet.broker.audit.audit_log import Audit
from quintet.broker.audit.delivery_events import Events
from quintet.broker.cluster import ClusterView, Standalone
from quintet.broker.consumers.coordinator import Groups
from quintet.broker.consumers.group import CommitPayload, GroupRow
from quintet.broker.consumers.lag_samples import LagSamples
from quintet.broker.consumers.polled_members import Claims
from quintet.broker.consumers.subscriptions import MAILBOX_OWNER, Report, SubscriptionRow, Subscriptions
from quintet.broker.doors.cache import Caches
from quintet.broker.doors.mailbox import PeerRow
from quintet.broker.doors.peers import TABLE as PEERS_TABLE
from quintet.broker.doors.peers import Peers
from quintet.broker.doors.queues import Queues
from quintet.broker.identity.access import Access, Action, Credential, Principal, Role
from quintet.broker.identity.changes import Changes
from quintet.broker.identity.keys import CREDENTIALS_TABLE, CredentialRow, Keys
from quintet.broker.identity.passwords import Entropy
from quintet.broker.identity.quotas import Quotas
from quintet.broker.identity.tenant_tokens import TenantTokenOptions, TenantTokens
from quintet.broker.identity.tenants import Tenants
from quintet.broker.identity.tokens import TokenOptions, Tokens
from quintet.broker.identity.users import ConfiguredUser, Users
from quintet.broker.schemas.registry import SCHEMAS_TABLE, Schema, SchemaRow, Schemas
from quintet.broker.sections import (
    AuditSection,
    CacheSection,
    DeliverySection,
    LimitSection,
    PeerSection,
    QueueSection,
    QuotaSection,
    Tenant,
)
from quintet.broker.slices import Elsewhere, Slices, Steps
from quintet.broker.table import T, Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.broker.topics.long_polls import LongPolls, Wait
from quintet.broker.topics.names import CACHE_PREFIX, refuse_cache, text_of
from quintet.broker.topics.patterns import matching
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.broker.topics.replies import ReplyTopics
from quintet.broker.topics.specs import TopicRow
from quintet.broker.topics.traced import TracedTopic
from quintet.delivery.sink import Sink
from quintet.delivery.subscription import Subscription
from quintet.delivery.traces import Traces
from quintet.log.base import Durability, Log, Partition
from quintet.model import limits
from quintet.model.batch import Header
from quintet.model.clocks import WallClock
from quintet.model.errors import (
    SHUTTING_DOWN,
    AuthError,
    BadRequest,
    Forbidden,
    QuintetError,
    SchemaRejected,
    ShuttingDown,
)
from quintet.model.scheduler import Scheduler, call_each
from quintet.model.tasks import Promise, next_turn, start, start_alone

TOPICS_TABLE = (1, "__topics")
SUBSCRIPTIONS_TABLE = (3, "__subscriptions")
GROUPS_TABLE = (6, "__groups")
INTENTS_TABLE = (8, "__intents")
PRODUCERS_TABLE = (11, "__producers")


def no_entropy(_size: int) -> bytes:
    """There is no chance below net/: whoever makes a broker that hashes passwords gives it random bytes."""
    raise AssertionError("BrokerOptions.entropy was not given")


class BrokerOptions(msgspec.Struct, frozen=True):
    """The broker's branch of the configuration."""

    topics: TopicPolicy = msgspec.field(default_factory=lambda: TopicPolicy(rules=[TopicRule("*")]))
    delivery: DeliverySection = msgspec.field(default_factory=DeliverySection)
    limits: LimitSection = msgspec.field(default_factory=LimitSection)
    audit: AuditSection = msgspec.field(default_factory=AuditSection)
    transactions: TransactionLimits = msgspec.field(default_factory=TransactionLimits)
    queues: QueueSection = msgspec.field(default_factory=QueueSection)
    peers: PeerSection = msgspec.field(default_factory=PeerSection)
    caches: CacheSection = msgspec.field(default_factory=CacheSection)
    tenants: Mapping[str, Tenant] = msgspec.field(default_factory=dict)
    quotas: QuotaSection = msgspec.field(default_factory=QuotaSection)
    entropy: Entropy = no_entropy
    traces: Traces | None = None  # who follows sampled messages; None: nobody
    doors: frozenset[str] = frozenset()  # what the origins of records begin with: no client may call itself one of them
    identity_followed: bool = (
        False  # users, keys, rules and quotas are those of cell 0 (ADR 48): nothing of them is written here
    )


class Broker:
    """The verbs. Made once by server.py (or a test), after the log recovered."""

    publishes_dropped = 0  # refused, of clients that asked for no answer
    drain_reason = SHUTTING_DOWN  # or that its cell moves: whoever is refused meanwhile is told

    def __init__(self, log: Log, scheduler: Scheduler, options: BrokerOptions, report: Report) -> None:
        self._take_log(log)
        self.scheduler = scheduler
        self.clock = WallClock(scheduler.now(), scheduler.monotonic())
        self._report = report
        self.doors = options.doors
        self.access = Access(dead_letter_suffix=options.delivery.dead_letter_suffix)
        self.access.on_refused = self._refused
        self.tokens = Tokens()  # refuses every token until set_tokens
        self.tenant_tokens = TenantTokens()  # and those of tenants until set_tenant_tokens
        self.draining = False
        self.cluster: ClusterView = Standalone()  # a node of a cell sets its own
        self._long_polls = LongPolls(scheduler)
        self.slices, self.elsewhere = Slices(scheduler), Elsewhere(scheduler)
        self._options = options
        topics_table = _loaded(Table(log, *TOPICS_TABLE, TopicRow))
        subscriptions_table = _loaded(Table(log, *SUBSCRIPTIONS_TABLE, SubscriptionRow))
        self.traces = options.traces
        self._open_audit(log, scheduler, report)
        self.users = Users(log, scheduler, self.access, self.audit, options.entropy, options.limits.password_bytes_min)
        self.users.load()
        self.keys = Keys(
            _loaded(Table(log, *CREDENTIALS_TABLE, CredentialRow)),
            self.users, self.access, self.audit, scheduler, options.entropy,
        )  # fmt: skip
        self.keys.load()
        policy = replace(options.topics, cache_durability=options.caches.durability)
        make = None if self.traces is None else partial(TracedTopic, self.traces)
        self.topics = Topics(log, topics_table, policy, options.entropy, make)
        self.topics.load()
        self.topics.check_folders(report)
        self.keeps_rejected = options.delivery.keep_rejected
        self.intents = Intents(
            _loaded(Table(log, *INTENTS_TABLE, IntentRow, packed=True)),
            self.topics,
            scheduler,
            report,
            log.stages,
            self.elsewhere,
        )
        letters = _loaded(Table(log, *DEAD_TABLE, DeadRow, packed=True))
        suffix = options.delivery.dead_letter_suffix
        self.dead = DeadLetters(letters, self.topics, self.intents, scheduler, suffix=suffix, traces=self.traces)
        self.subscriptions = Subscriptions(
            subscriptions_table,
            self.topics,
            options.delivery.policy,
            scheduler,
            report,
            dead_letter_suffix=suffix,
            idle_us=options.delivery.subscription_idle_us,
            subscriptions_max=options.delivery.subscriptions_max,
            dead=self.dead,
            intents=self.intents,
            events=self.events,
        )
        self.subscriptions.load()
        self.queues = Queues(
            self.topics, self.subscriptions, self.access, self.tokens, self.audit, scheduler, report, options.queues
        )
        self.queues.load()
        self._open_peers(log, scheduler, report)
        self.tenants = Tenants(options.tenants, self.topics.count_of)
        self._open_quotas(log, scheduler)
        self.caches = Caches(
            self.topics, scheduler, options.caches, self.tenants, report, self.dead.is_dead, self.access.look_again
        )
        self.caches.load()
        self._open_groups_and_transactions(log, scheduler, report)
        self.intents.recover()

    def _take_log(self, log: Log) -> None:
        """`tails` is where the kernel appends what needs no decision (Topic.direct); `tails_appended` must follow, for partitions in files
        `tails_held`. Bound once: they are called for every message, and to pass a call on costs as much as to do it."""
        self.log = log
        self.tails, self.tails_appended, self.tails_held = log.tails, log.tails_appended, log.tails_held

    def _open_audit(self, log: Log, scheduler: Scheduler, report: Report) -> None:
        self.audit = Audit(log, scheduler, report, bytes_max=self._options.limits.audit_bytes)
        self.audit.load()
        mode, bytes_max = self._options.audit.events, self._options.audit.events_bytes
        self.events = Events(log, scheduler, report, mode=mode, bytes_max=bytes_max, traces=self.traces)
        self.events.load()

    def _open_quotas(self, log: Log, scheduler: Scheduler) -> None:
        changes = Changes(scheduler, self.audit)
        changes.followed = self.users.changes.followed = self._options.identity_followed
        self.quotas = Quotas(log, self.access, changes, scheduler, self.tenants, self._options.quotas, self.topics)
        self.quotas.load()
        self.topics.admit = self.quotas.check_topic

    def _open_peers(self, log: Log, scheduler: Scheduler, report: Report) -> None:
        peers, options = _loaded(Table(log, *PEERS_TABLE, PeerRow)), self._options.peers
        self.peers = Peers(
            peers, self.topics, self.subscriptions, self.access, scheduler, options, report, self._discard_mailbox
        )
        self.peers.load()

    def _open_groups_and_transactions(self, log: Log, scheduler: Scheduler, report: Report) -> None:
        """What only reads and writes topics in other ways: it needs all of the above."""
        self._reply_topics = ReplyTopics(self.topics, self._delete_now)
        self.claims = Claims(self.subscriptions, scheduler)
        options = self._options
        self.groups = Groups(
            _loaded(Table(log, *GROUPS_TABLE, GroupRow, packed=True)),
            self.topics,
            scheduler,
            report,
            session_timeout_us=options.delivery.group_timeout_us,
            events=self.events,
        )
        self.groups.load()
        self.lag = LagSamples(self.groups, self.topics, scheduler)
        self.intents.on_effect(CommitPayload, self.groups.offsets.apply_commit)
        self.schemas = Schemas(_loaded(Table(log, *SCHEMAS_TABLE, SchemaRow, packed=True)), self.slices)
        delayed = _loaded(Table(log, *DELAYED_TABLE, DelayedRow, packed=True))
        self.delays = Delays(delayed, self.topics, self.intents, self.dead, scheduler, report)
        self.producers = Producers(_loaded(Table(log, *PRODUCERS_TABLE, ProducerRow, packed=True)), self.topics)
        self.producers.load()
        self.transactions = Transactions(self.intents, scheduler, options.entropy, options.transactions)
        fences = _loaded(Table(log, *FENCES_TABLE, FenceRow, packed=True))
        self.stages = Stages(fences, log.stages, self.topics, self.intents, scheduler, options.entropy)
        self.stages.load()

    # -- who -------------------------------------------------------------------------------------------------------

    def set_credentials(self, credentials: Iterable[Credential]) -> None:
        """Make these the configured API keys; those that are gone stop working at once. Keys of users stay."""
        if not self._options.identity_followed:
            self.keys.configure(credentials)

    def set_tokens(self, options: TokenOptions) -> None:
        """Judge tokens by these options from now on; what sessions remember of tokens is judged again."""
        if options != self.tokens.options:
            self.tokens.replace(options)
            self.access.look_again()

    def set_tenant_tokens(self, options: TenantTokenOptions) -> None:
        """Judge tokens of Felix tenants by these options from now on; what sessions remember of them is judged again."""
        if options != self.tenant_tokens.options:
            self.tenant_tokens.replace(options)
            self.access.look_again()

    def configure_users(
        self, roles: Iterable[Role], users: Iterable[ConfiguredUser], done: Callable[[Exception | None], None]
    ) -> None:
        """Make these the roles and the users of the configuration; done(first error) when they are durable."""
        self.access.set_roles(roles)
        if self._options.identity_followed:
            done(None)
            return
        start(self.users.configure(users)).then(lambda _, error: done(error))

    def authenticate(self, secret: bytes, peer: str = "") -> tuple[str, Principal]:
        """(identity, principal) of an API key; passwords are `users.authenticate_password`'s."""
        try:
            return self.access.authenticate(secret)
        except AuthError:
            self.audit.record("auth.failure", "", "", "denied", peer, "key")
            raise

    def _refused(self, principal: Principal, action: Action, topic: str, peer: str) -> None:
        self.audit.record("access.denied", principal.name, topic, "denied", peer, action)

    def check_open(self) -> None:
        """Raises ShuttingDown while it drains."""
        if self.draining:
            raise ShuttingDown(self.drain_reason, hint="connect again in a moment")

    # -- publish ---------------------------------------------------------------------------------------------------

    def publish_target(
        self, principal: Principal, name: bytes, durable: bool, peer: str = "", *, owner: str = ""
    ) -> Topic:
        """The topic this principal's publishes to `name` go to; a session may remember it until access.epoch changes. One that is
        made for it is the owner's, who is the principal unless another is named."""
        self.check_open()
        text = text_of(name)
        self.access.require(principal, "publish", text, peer)
        if text.startswith(CACHE_PREFIX):
            refuse_cache(text)
        topic = self.topics.ensure(name, durable, owner=owner or principal.name)
        self.quotas.check_storage(topic)
        return topic

    async def reject(
        self, topic: Topic, schema: Schema, reasons: list[str], key: bytes | memoryview | None,
        value: bytes | memoryview, origin: bytes, headers: tuple[Header, ...] = (),
    ) -> NoReturn:  # fmt: skip
        """A message does not fit this schema: raises SchemaRejected, after it was put among the dead letters if the
        configuration wants that."""
        said = "; ".join(reasons)
        if self.keeps_rejected:
            # A large value is a view that stays as it is.
            kept = (bytes(key) if key else None, value if len(value) > limits.LARGE_BYTES else bytes(value))
            await self.dead.bury_rejected(topic.raw, *kept, origin, f"{schema.id}: {said}", headers)
        raise SchemaRejected(f"schema validation failed: {said}", hint=f"the schema is {schema.id} ({schema.type})")

    def create_topic(
        self,
        name: bytes,
        partitions: int,
        durability: Durability | Literal[""] = "",
        retention_us: int = 0,
        retention_bytes: int = 0,
        *,
        owner: str = "",
    ) -> tuple[Topic, bool]:
        """A topic made on purpose by its owner, and whether it is new; 0 and "" leave a property to the configuration."""
        self.check_open()
        return self.topics.create(name, partitions, durability, retention_us, retention_bytes, owner=owner)

    async def purge_topic(self, name: bytes) -> Topic:
        """Remove all messages of a topic: groups and subscriptions go on behind them. Dead letters are listed by a table of
        their own, and have a verb of their own."""
        if name.decode(errors="replace").endswith(self._options.delivery.dead_letter_suffix):
            raise BadRequest(
                f"topic {name.decode(errors='replace')!r} holds dead letters",
                hint="`quintet dlq purge` puts them aside",
            )
        return await self.topics.purge(name)

    @property
    def topics_version(self) -> int:
        """Grows with every topic made or deleted and every change of rights: a client that asks with it learns what is new."""
        return self.topics.changes + self.access.epoch + 1

    def matching_topics(self, patterns: Sequence[str], may_see: Callable[[str], bool]) -> Steps[list[str]]:
        """Names of the topics that match, of those that the caller may see (broker/topics/patterns.py)."""
        return matching(patterns, self.topics.all(), may_see, self._options.delivery.dead_letter_suffix)

    async def delete_topic(self, name: bytes) -> bool:
        """Remove a topic, its subscriptions and its groups; False if there is none. Its name may be used again at once."""
        topic = self.topics.get(name)
        if topic is None:
            return False
        await self._delete_now(topic)
        return True

    def _delete_now(self, topic: Topic) -> Promise[None]:
        """It is gone for everybody; over when that would survive a restart. Raises what is refused at once."""
        for subscription in list(topic.subscriptions):
            self.subscriptions.remove(subscription)
        self.groups.forget_topic(topic.name)
        self.dead.forget(topic.spec.id)
        gone = self.caches.delete_topic(topic)
        self.producers.forget(topic)
        self._long_polls.end_all(topic.partitions)
        self.access.look_again()  # sessions forget the deleted topic: a new one may get its name
        return gone

    def _discard_mailbox(self, topic: Topic) -> bool:
        """Delete the topic of a mailbox that nobody wants any more, unless somebody else reads it: whether it was."""
        if any(found.owner != MAILBOX_OWNER for found in topic.subscriptions) or self.groups.of_topic(topic.name):
            return False
        try:
            self._delete_now(topic)
        except QuintetError:  # a full disk: it is tried again later
            return False
        return True

    def dead_letters_of(self, principal: Principal, topic: str, peer: str = "") -> bytes:
        """The name of a topic that this principal may use, if it may see its dead letters, too: a rule for the topic they
        are in is not passed over by asking for them in another way."""
        name = topic.encode()
        letters = self.dead.name_for(name).decode()
        if self.access.bars(principal, letters):
            self._refused(principal, "subscribe", letters, peer)
            raise Forbidden(
                f"{principal.name} may not see the dead letters of {topic!r}: a rule for {letters!r} says so"
            )
        return name

    def dead_letter_counts(self, principal: Principal) -> list[tuple[str, int]]:
        """(topic, open dead letters) of all whose dead letters this principal may see, by name."""
        found = sorted(self.dead.open_counts().items())
        bars, allowed = self.access.bars, self.access.allowed
        return [
            (topic, count)
            for topic, count in found
            if allowed(principal, "subscribe", topic)
            and not bars(principal, self.dead.name_for(topic.encode()).decode())
        ]

    def wait_for(
        self, topic: Topic, partition: Partition, longest_us: int, call: Callable[[Exception | None], None]
    ) -> Wait:
        """Call once: when something new is visible in this partition, or after that time; with TopicNotFound as soon as the
        topic is deleted."""
        return self._long_polls.add(partition, longest_us, lambda: call(topic.gone))

    def overloaded(self) -> bool:
        """The disk is behind: nobody who publishes should be read from until it caught up."""
        return self.log.unsynced_bytes > self._options.limits.unsynced_bytes_max

    # -- subscribe -------------------------------------------------------------------------------------------------

    def subscribe(
        self,
        principal: Principal,
        name: bytes,
        qos: int,
        sink: Sink,
        token: object,
        peer: str = "",
        *,
        door: str,
        from_start: bool = False,
    ) -> None:
        """A new subscription at the tail, or at the first record that is there; `sink.completed(token, subscription, error)` when it would survive a restart. `door` is who
        the audit names."""
        self.access.require(principal, "subscribe", text_of(name), peer)
        topic = self.topics.ensure(name, durable=qos > 0, owner=principal.name)
        start_alone(self.scheduler, self._subscribe(principal, topic, qos, door, sink, token, from_start))

    async def _subscribe(
        self, principal: Principal, topic: Topic, qos: int, door: str, sink: Sink, token: object, from_start: bool
    ) -> None:
        made: Subscription | None = None
        error: Exception | None = None
        try:
            await topic.ready()
            made = self.subscriptions.create(principal.name, topic, qos, door=door, from_start=from_start)
            await self.subscriptions.when_made(made)
        except QuintetError as refused:
            error = refused
            if made is None:  # the caller expects no answer within its call
                await next_turn(self.scheduler)
        sink.completed(token, made, error)

    def listen(
        self, principal: Principal, name: bytes, qos: int, sink: Sink, token: object, peer: str = "", *, door: str
    ) -> None:
        """A subscription to what comes from now on, for the life of a connection: `sink.completed(token, subscription, error)`
        in a later turn, then its reader attaches it. `leave` ends it."""
        self.access.require(principal, "subscribe", text_of(name), peer)
        topic = self.topics.ensure(name, durable=True, owner=principal.name)
        start_alone(self.scheduler, self._listen(principal.name, topic, qos, door, sink, token))

    async def _listen(self, owner: str, topic: Topic, qos: int, door: str, sink: Sink, token: object) -> None:
        made: Subscription | None = None
        error: Exception | None = None
        try:
            await topic.ready()
            made = self.subscriptions.transient(owner, topic, door=door, qos=qos)
        except QuintetError as refused:
            error = refused
        await next_turn(self.scheduler)  # the caller expects no answer within its call
        sink.completed(token, made, error)

    def leave(self, subscription: Subscription, sink: Sink) -> None:
        """Its reader is gone, or may not read it any more: what it had in flight is due again, and a subscription for the life
        of a connection ends."""
        subscription.detach(sink)
        if subscription.id < 0 and self.subscriptions.find(subscription.owner, subscription.id) is subscription:
            self.subscriptions.remove(subscription)

    def subscription(self, principal: Principal, id: int) -> Subscription | None:
        """This principal's subscription of that id, if it may still read its topic."""
        found = self.subscriptions.find(principal.name, id)
        if found is None or not self.access.allowed(principal, "subscribe", found.topic_name.decode()):
            return None
        return found

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """About every 50 ms: redelivery, dead letters, saving, what is due, and the log's own upkeep. Durations end by the
        monotonic clock, dates come by wall time, and what deletes by a date does so by the trusted one."""
        now, monotonic = self.scheduler.now(), self.scheduler.monotonic()
        jumped = self.clock.look(now, monotonic)
        if jumped:
            self._jumped(now, jumped)
        trusted = self.clock.trusted(now)
        lasting = (
            self.subscriptions,
            self.claims,
            self.groups,
            self.transactions,
            self.intents,
            self.stages,
            self.producers,
            self._reply_topics,
            self.quotas,
            self.audit,
            self.events,
        )
        dated = [
            lambda: self.queues.tick(now, monotonic),
            lambda: self.peers.tick(trusted, monotonic),
            lambda: self.keys.tick(now, 0 if self._options.identity_followed else trusted),
            lambda: self.delays.tick(now),
            lambda: self.caches.tick(trusted),
        ]
        call_each(self.scheduler, [*dated, *(partial(part.tick, monotonic) for part in lasting)])
        self.log.maintain(trusted)

    def _jumped(self, now: int, jumped: int) -> None:
        self.peers.clock_jumped(jumped)
        hint = "time-outs go on as before; delays, expiry and tokens follow the new time"
        self._report("clock_jumped", {"seconds": round(jumped / 1e6, 3), "now_us": now, "hint": hint})

    def save(self, done: Callable[[], None] | None = None) -> None:
        """Append the state that is saved from time to time only; done when all of it was appended."""
        self.peers.flush()
        self.caches.flush()
        self.subscriptions.save()
        self.producers.save()
        if done is not None:
            self.events.after(done)

    def drain(self, done: Callable[[], None]) -> None:
        """Save everything and close the log; done when it is on disk."""
        self.draining = True
        self.save(lambda: self.log.close(done))


def _loaded(table: Table[T]) -> Table[T]:
    table.load()
    return table
