"""Answers reads on a node that follows: topics, rights and schemas as its replica has them, and how old that may be (ADR 43).

A follower has no `Broker`: nothing here appends, and what only the leader can do raises NotLeader. The tables are folded from the
replica's own partitions as they grow, by the same classes that the leader uses. `follow` is called before every decision, so whoever
is revoked is refused as soon as the revocation is visible in this node's files.

    a read says     the greatest age it allows (or the configuration does), and offsets that must be there
    the node        waits for both, at most WAIT_US; then TooOld or Behind, which name the figure and the bound

What was read here and who was refused goes to the log of the node, because it cannot write `__events` and `__audit`.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from quintet.broker.audit.audit_log import AUDIT_TOPIC, Result
from quintet.broker.audit.delivery_events import EVENTS_TOPIC
from quintet.broker.core import GROUPS_TABLE, TOPICS_TABLE, BrokerOptions
from quintet.broker.identity.access import Access, Action, Principal, Role
from quintet.broker.identity.access_rules import ACLS_TABLE
from quintet.broker.identity.changes import Changes
from quintet.broker.identity.keys import CREDENTIALS_TABLE, CredentialRow, Keys
from quintet.broker.identity.quotas import QUOTAS_TABLE, Quotas
from quintet.broker.identity.tenants import Tenants
from quintet.broker.identity.users import USERS_TABLE, Users
from quintet.broker.schemas.registry import SCHEMAS_TABLE, SchemaRow, Schemas
from quintet.broker.slices import Slices
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topics
from quintet.broker.topics.specs import TopicRow, spec_of
from quintet.log.base import Log, Partition, TopicSpec
from quintet.model.errors import AuthError, Behind, NotLeader, QuintetError, TooOld, TopicNotFound
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import sleep

WAIT_US: Final = 2_000_000  # for a follower to become as new as a read asks; then it is refused
LOOK_US: Final = 20_000  # between two looks meanwhile
SAY_US: Final = 1_000_000  # between two times that reads are written to the log
# The tables a follower reads by. The first leader of a cell makes all of them.
TABLES: Final = (QUOTAS_TABLE, TOPICS_TABLE, CREDENTIALS_TABLE, USERS_TABLE, ACLS_TABLE, SCHEMAS_TABLE)
OWN_TOPICS: Final = {name: topic_id for topic_id, name in (GROUPS_TABLE, AUDIT_TOPIC, EVENTS_TOPIC)}

Report = Callable[[str, dict[str, object]], None]


class ReplicaLog(Log, Protocol):
    """The log of a node that follows."""

    def partitions_of(self, topic_id: int) -> list[Partition]:
        """Those of a topic that the WAL has, to be read; [] if there is none."""

    def age_us(self) -> int | None:
        """How old the state may be that readers see; None: not known yet."""


class Need(NamedTuple):
    """What must be there before a read is answered: a topic, the one of this identity if one is named, up to these offsets."""

    topic: str
    identity: str
    ends: dict[int, int]  # partition: one past the last offset that is needed


class FollowedLog:
    """The log as tables see it: topics are there, and are not made."""

    def __init__(self, log: ReplicaLog) -> None:
        self._log = log

    def open_topic(self, spec: TopicSpec) -> list[Partition]:
        found = self._log.partitions_of(spec.id)
        if not found:
            raise TopicNotFound(f"topic {spec.name} is not in the WAL yet")
        return found

    def check_sound(self, topic_id: int, name: str) -> None:
        self._log.check_sound(topic_id, name)


class FollowedTopics(Topics):
    """The topics of the replica. Nothing is made, changed or deleted here."""

    def __init__(self, log: ReplicaLog, table: Table[TopicRow], options: BrokerOptions) -> None:
        super().__init__(log, table, options.topics, options.entropy)
        self._replica = log
        self._rows = table
        self._late: dict[bytes, TopicRow] = {}  # rows of topics whose files are not there: they were deleted meanwhile
        list(table.take_rows())  # from here on it keeps none: a topic has what its row said

    def follow(self) -> None:
        for key, row in (self._late | self._rows.follow()).items():
            before = self._by_name.get(key)
            self._late.pop(key, None)
            if before is not None and (row is None or row.id != before.spec.id):
                self._leave(before)
                before.forget(TopicNotFound(f"topic not found: {before.name}"))
                before = None
            if row is not None:
                self._take(key, row)

    def _take(self, key: bytes, row: TopicRow) -> None:
        spec = spec_of(row, self._policy.rule_for(row.name).memory_bytes, self._same)
        before = self._by_name.get(key)
        if before is not None:
            before.spec = spec
            return
        partitions = self._replica.partitions_of(row.id)
        if partitions:
            self._enter(self._make(spec, partitions, self._common, True))
        else:
            self._late[key] = row


class _Reads:
    """Who was given what, for the log of this node. Ranges that follow each other are one."""

    def __init__(self, report: Report, said: bool) -> None:
        self._report = report
        self._said = said
        self._ranges: dict[tuple[str, str, str, int], tuple[int, int]] = {}

    def delivered(self, door: str, who: str, topic: str, partition: int, first: int, last: int) -> None:
        if not self._said or first >= last:
            return
        key = (door, who, topic, partition)
        before = self._ranges.get(key)
        if before is not None and before[1] == first:
            first = before[0]
        elif before is not None:
            self._say(key, before)
        self._ranges[key] = (first, last)

    def say(self) -> None:
        ranges, self._ranges = self._ranges, {}
        for key, found in ranges.items():
            self._say(key, found)

    def _say(self, key: tuple[str, str, str, int], found: tuple[int, int]) -> None:
        door, who, topic, partition = key
        fields: dict[str, object] = {"door": door, "user": who, "topic": topic, "partition": partition}
        self._report("read_at_follower", fields | {"first": found[0], "last": found[1] - 1})


class _Refusals:
    """Rows that the leader would write to `__audit`. See audit_log.Recorder."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def record(
        self, type: str, user: str, resource: str, result: Result, peer: str = "", action: str = "", **details: object
    ) -> None:
        fields: dict[str, object] = {"type": type, "user": user, "resource": resource, "result": result}
        self._report("audit_at_follower", fields | {"peer": peer, "action": action} | details)


def tables_are_there(log: ReplicaLog) -> bool:
    """Has somebody led this cell, as far as this node knows?"""
    return all(log.partitions_of(topic_id) for topic_id, _ in TABLES)


class FollowerBroker:
    """The part of `Broker` that only reads, under the same names. Made when `tables_are_there`."""

    def __init__(
        self, log: ReplicaLog, scheduler: Scheduler, options: BrokerOptions, roles: Sequence[Role], report: Report,
        *, node: str, age_us: int, leader: Callable[[], str],
    ) -> None:  # fmt: skip
        """age_us: how old the state may be for reads that do not say. leader: HOST:PORT of the leader's door; "": not known."""
        followed = FollowedLog(log)
        self.log = log
        self.node = node
        self.scheduler = scheduler
        self._age_us = age_us
        self._leader = leader
        self._said_at = scheduler.monotonic()
        self.audit = _Refusals(report)
        self.events = _Reads(report, options.audit.events == "all")
        self.access = Access(dead_letter_suffix=options.delivery.dead_letter_suffix)
        self.access.on_refused = self._refused
        self.access.set_roles(roles)
        self.users = Users(followed, scheduler, self.access, self.audit, options.entropy)
        credentials = Table(followed, *CREDENTIALS_TABLE, CredentialRow)
        self._keys = Keys(credentials, self.users, self.access, self.audit, scheduler, options.entropy)
        self.topics = FollowedTopics(log, Table(followed, *TOPICS_TABLE, TopicRow), options)
        changes, tenants = Changes(scheduler, self.audit), Tenants(options.tenants, self.topics.count_of)
        self.quotas = Quotas(followed, self.access, changes, scheduler, tenants, options.quotas, self.topics)
        schemas = Table(followed, *SCHEMAS_TABLE, SchemaRow, packed=True)
        self.schemas = Schemas(schemas, Slices(scheduler))
        self.follow()

    # -- the state of the replica ----------------------------------------------------------------------------------

    def follow(self) -> None:
        """Take what has become visible since the last call; cheap if that is nothing. Raises what makes a table unreadable."""
        self.users.follow()
        self._keys.follow()
        self.quotas.follow()
        self.topics.follow()
        self.schemas.follow()

    def tick(self) -> None:
        """About every 50 ms."""
        monotonic = self.scheduler.monotonic()
        self.follow()
        self._keys.tick(self.scheduler.now(), 0)
        self.quotas.tick(monotonic)
        if monotonic - self._said_at >= SAY_US:
            self._said_at = monotonic
            self.events.say()

    # -- how new it is ---------------------------------------------------------------------------------------------

    async def wait_until_fresh(self, max_age_us: int, needs: Sequence[Need] = ()) -> None:
        """Return when the state is at most so old (0: as configured) and has what is needed. Raises TooOld, Behind."""
        until = self.scheduler.monotonic() + WAIT_US
        while True:
            self.follow()
            problem = self._too_old(max_age_us or self._age_us) or self._behind(needs)
            if problem is None:
                return
            if self.scheduler.monotonic() >= until:
                raise problem
            await sleep(self.scheduler, LOOK_US)

    def _too_old(self, max_age_us: int) -> QuintetError | None:
        age = self.log.age_us()
        if age is not None and age <= max_age_us:
            return None
        known = "it is not known how old its state is" if age is None else f"its state may be {age / 1e6:.1f} s old"
        return TooOld(
            f"node {self.node} follows, and {known}; this read allows {max_age_us / 1e6:g} s (max_age_seconds)",
            hint=f"read at {self._leader() or 'the leader'}, or allow a greater age",
        )

    def _behind(self, needs: Sequence[Need]) -> QuintetError | None:
        for need in needs:
            topic = self.topics.get(need.topic.encode(errors="replace"))
            if topic is None or (need.identity and not self._is_meant(need.identity, topic.spec.identity)):
                return self._lacks(f"does not have topic {need.topic!r} as the read knows it")
            for number, end in need.ends.items():
                visible = topic.partitions[number].visible if number < len(topic.partitions) else 0
                if visible < end:
                    place = f"partition {number} of topic {need.topic!r}"
                    return self._lacks(f"has {place} up to offset {visible}; the read needs {end}")
        return None

    def _is_meant(self, identity: str, topic: str) -> bool:
        return identity == f"{self.log.identity}/{topic}"

    def _lacks(self, what: str) -> Behind:
        return Behind(
            f"node {self.node} follows, and {what}, after a wait of {WAIT_US / 1e6:g} s",
            hint=f"read at {self._leader() or 'the leader'}, or again in a moment",
        )

    # -- what the leader alone does --------------------------------------------------------------------------------

    def not_leader(self) -> NotLeader:
        """To be raised for what changes something, and for what only the leader knows."""
        return NotLeader(leader=self._leader(), hint=f"node {self.node} follows: it answers reads of topics only")

    @property
    def leader(self) -> str:
        """HOST:PORT of the leader's door; "": not known."""
        return self._leader()

    # -- as the broker ---------------------------------------------------------------------------------------------

    def principal(self, identity: str, _name: str) -> Principal | None:
        """Who this identity is now; None: nobody, any more."""
        return self.access.current(identity)

    def authenticate(self, secret: bytes, peer: str = "") -> tuple[str, Principal]:
        """(identity, principal) of an API key."""
        try:
            return self.access.authenticate(secret)
        except AuthError:
            self.audit.record("auth.failure", "", "", "denied", peer, "key")
            raise

    def own_partition(self, name: str) -> Partition:
        """Of one of the broker's own topics (OWN_TOPICS). Raises TopicNotFound."""
        return FollowedLog(self.log).open_topic(TopicSpec(OWN_TOPICS[name], name))[0]

    def _refused(self, principal: Principal, action: Action, topic: str, peer: str) -> None:
        self.audit.record("access.denied", principal.name, topic, "denied", peer, action)


class JudgedBroker(FollowerBroker):
    """Of another cell than 0 (ADR 53). Identity is cell 0's and not in this replica: the process of cell 0 on the same node, the only one that
    asks, has found out who may read what before it asks. To clients the broker is one log, that of cell 0."""

    def principal(self, _identity: str, name: str) -> Principal | None:
        return Principal(name)

    def _is_meant(self, identity: str, topic: str) -> bool:
        return identity.partition("/")[2] == topic
