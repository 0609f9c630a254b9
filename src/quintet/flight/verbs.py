"""What the Flight door asks of the broker, on the loop thread: one function for each action, and those of the streams.

Every function takes the Call first: who asks and from where. Rights are those of the FlyMQ door, by the same table
(broker/identity/access.py), and are asked for before anything is looked up: a refusal does not tell whether a thing exists.

    topics, offsets_for_time, locate, do_get, group_commit, reject     to read the topic
    do_put                                                             to write it
    topic_create                                                       to manage it
    redrive                                                            to write it, and no rule that bars its dead letters
    dead                                                               to read it, the same
    schema                                                             to read or write the topic of that name
    groups                                                             one's own, those a rule lists, all as administrator
    stage_commit, stage_abort, fence                                   one's own
    pipeline_report, pipelines, pipeline_stop                          one's own, all as administrator
    node                                                               nothing

A follower (ADR 43) answers topics, offsets_for_time, locate, schema, node and do_get; the others need `Call.leader`, and are refused.

Of the broker's own topics `__groups`, `__audit` and `__events` are there for administrators, to be read. Nothing here blocks.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, TypeVar

import msgspec

from quintet.broker.audit.audit_log import Audit
from quintet.broker.audit.delivery_events import Events
from quintet.broker.consumers.coordinator import Groups
from quintet.broker.consumers.group import GroupInfo
from quintet.broker.core import Broker
from quintet.broker.doors.pipelines import Pipelines, Report
from quintet.broker.follower import OWN_TOPICS, FollowerBroker, Need
from quintet.broker.identity.access import Action, Principal
from quintet.broker.topics import reads
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.patterns import regular
from quintet.flight import wire
from quintet.flight.login import Caller
from quintet.log.base import Partition, Stage
from quintet.model.errors import (
    AuthError,
    BadRequest,
    LimitExceeded,
    OtherLog,
    PartitionNotFound,
    TopicNotFound,
)
from quintet.model.tasks import Verb, gather

T = TypeVar("T")
ReadBroker = Broker | FollowerBroker  # both answer reads, under the same names

SELECTION_MAX: Final = 10_000  # names in one request
PATTERN_BYTES_MAX: Final = 1_000
PATTERN_MEMORY_BYTES: Final = 1 << 20  # for RE2, of one pattern
PARTITIONS_SHOWN_MAX: Final = 100_000  # in one answer
COMMITS_MAX: Final = 10_000  # offsets in one group_commit
POSITIONS_MAX: Final = 10_000  # in one answer of `groups`
POSITIONS_AT_ONCE: Final = 16  # looked up side by side: each may read from disk
REJECTS_MAX: Final = 1_000  # in one request
ERROR_BYTES_MAX: Final = 4_000  # of one reject
RANGES_MAX: Final = 10_000  # of one locate
FILES_SHOWN_MAX: Final = 50_000  # in one answer of `locate`
STAGES_OF_COMMIT_MAX: Final = 10_000
AGE_SECONDS_MAX: Final = 366 * 24 * 3600.0
FILES: Final = "flight:files"  # the door, in the audit, of who was told where the records are


@dataclass(frozen=True, slots=True)
class Source:
    """A topic to be read: its name, number, identity (wire.TopicInfo) and partitions. `topic` is None for one of the broker's
    own, which are made with the log and never again."""

    name: str
    id: int
    identity: str
    durability: str
    partitions: tuple[Partition, ...]
    topic: Topic | None

    @property
    def in_memory(self) -> bool:
        return self.topic is not None and self.topic.in_memory

    def partition(self, number: int) -> Partition:
        if not 0 <= number < len(self.partitions):
            raise PartitionNotFound(
                f"partition {number} out of range: topic {self.name!r} has {len(self.partitions)}",
                hint=f"use 0 to {len(self.partitions) - 1}",
            )
        return self.partitions[number]


class Call:
    """One call: who, with the rights of this moment."""

    __slots__ = ("_caller", "broker", "peer", "principal")

    def __init__(self, broker: ReadBroker, caller: Caller) -> None:
        if isinstance(broker, FollowerBroker):
            broker.follow()  # a revocation counts as soon as it is visible here
            principal = broker.principal(caller.identity, caller.name)
        else:
            principal = broker.access.current(caller.identity)
        if principal is None:
            raise AuthError("this user may no longer use the broker", hint="log in again")
        self.broker = broker
        self.principal: Principal = principal
        self.peer = caller.peer
        self._caller = caller

    def again(self) -> "Call":
        """With the rights of now, after a wait."""
        return Call(self.broker, self._caller) if isinstance(self.broker, FollowerBroker) else self

    @property
    def leader(self) -> Broker:
        """For what changes something, or is known to the leader alone. Raises NotLeader on a follower."""
        return leading(self.broker)

    @property
    def owner(self) -> str:
        return self.principal.name

    @property
    def administers(self) -> bool:
        return self.broker.access.may_administer(self.principal)

    def require(self, action: Action, topic: str) -> None:
        self.broker.access.require(self.principal, action, topic, self.peer)

    def require_sight(self, name: str) -> None:
        if not self.broker.access.allowed(self.principal, "publish", name):
            self.require("subscribe", name)

    def may_read(self, name: str) -> bool:
        if name in OWN_TOPICS:
            return self.administers
        return self.broker.access.allowed(self.principal, "subscribe", name)

    def group_rights(self, group: str) -> tuple[str, bool]:
        return self.owner, self.administers or self.broker.access.listed(self.principal, f"group:{group}")

    def topic(self, name: str, action: Action = "subscribe") -> Topic:
        """A topic that exists and may be used so."""
        self.require(action, name)
        return self.broker.topics.find(_raw(name))

    def source(self, name: str) -> Source:
        """A topic to be read, one of the broker's own among them."""
        if name in OWN_TOPICS and self.administers:
            return _own(self.broker, name)
        self.require("subscribe", name)
        return _source(self.broker, self.broker.topics.find(_raw(name)))

    def given(self, source: Source, partition: int, first: int, last: int, door: str = "flight") -> None:
        """For the audit: a stream of these begins, or whoever asked knows the files they are in. Who reads the broker's own
        topics leaves no row: a row of reading `__events` would be there to be read."""
        if source.topic is not None:
            self.broker.events.delivered(door, self.owner, source.name, partition, first, last)


def leading(broker: ReadBroker) -> Broker:
    """Raises NotLeader."""
    if isinstance(broker, FollowerBroker):
        raise broker.not_leader()
    return broker


async def fresh(broker: ReadBroker, max_age_seconds: float, needs: Iterable[Need] = ()) -> None:
    """A follower waits until it is as new as that, or raises TooOld or Behind. The leader is. Rights must be looked at afterwards."""
    if not 0 <= max_age_seconds <= AGE_SECONDS_MAX:  # no number is not, either
        raise BadRequest(f"max_age_seconds is 0 to {AGE_SECONDS_MAX}, not {max_age_seconds}", hint="0: as configured")
    if isinstance(broker, FollowerBroker):
        await broker.wait_until_fresh(int(max_age_seconds * 1e6), list(needs))


def _own(broker: ReadBroker, name: str) -> Source:
    if isinstance(broker, FollowerBroker):
        partition = broker.own_partition(name)
        return Source(name, partition.topic_id, _identity(broker, name), "fsync", (partition,), None)
    kept: dict[str, Groups | Audit | Events] = {
        "__groups": broker.groups, "__audit": broker.audit, "__events": broker.events,
    }  # fmt: skip
    partition = kept[name].partition
    return Source(name, partition.topic_id, _identity(broker, name), "fsync", (partition,), None)


def _source(broker: ReadBroker, topic: Topic) -> Source:
    spec = topic.spec
    return Source(
        topic.name, spec.id, _identity(broker, spec.identity), spec.durability, tuple(topic.partitions), topic
    )


def _identity(broker: ReadBroker, topic: str) -> str:
    return f"{broker.log.identity}/{topic}"


def _raw(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise TopicNotFound("topic not found: its name is no proper text") from None


def _info(source: Source) -> wire.TopicInfo:
    rows = tuple(wire.PartitionInfo(p.start, p.visible, p.bytes_from(p.start)) for p in source.partitions)
    return wire.TopicInfo(source.name, source.id, source.durability, rows, source.identity)


# -- finding ----------------------------------------------------------------------------------------------------------


def select(call: Call, ask: wire.Selection) -> tuple[list[Source], list[str]]:
    """The topics, in the order of their names, and the names that are not to be had."""
    if len(ask.topics) > SELECTION_MAX:
        raise LimitExceeded(f"{len(ask.topics)} names in one request, the limit is {SELECTION_MAX}")
    found: dict[str, Source] = {}
    missing: list[str] = []
    for name in ask.topics:
        topic = call.broker.topics.get(name.encode(errors="replace")) if call.may_read(name) else None
        if topic is not None:
            found[name] = _source(call.broker, topic)
        elif name in OWN_TOPICS and call.administers:
            found[name] = _own(call.broker, name)
        else:
            missing.append(name)
    if ask.pattern or not ask.topics:
        matches = regular(ask.pattern) if ask.pattern else _every
        for topic in call.broker.topics.all():
            if matches(topic.name) and call.may_read(topic.name):
                found[topic.name] = _source(call.broker, topic)
    if sum(len(source.partitions) for source in found.values()) > PARTITIONS_SHOWN_MAX:
        raise LimitExceeded(f"more than {PARTITIONS_SHOWN_MAX} partitions", hint="ask for fewer topics at a time")
    return [found[name] for name in sorted(found)], missing


def _every(_name: str) -> bool:
    return True


async def topics(call: Call, ask: wire.Selection) -> wire.Topics:
    if len(ask.at_least) > SELECTION_MAX or sum(len(each.ends) for each in ask.at_least) > PARTITIONS_SHOWN_MAX:
        raise LimitExceeded(f"at_least names more than {SELECTION_MAX} topics or {PARTITIONS_SHOWN_MAX} partitions")
    needs = [Need(each.topic, each.identity, dict(enumerate(each.ends))) for each in ask.at_least]
    await fresh(call.broker, ask.max_age_seconds, [need for need in needs if call.may_read(need.topic)])
    call = call.again()
    found, missing = select(call, ask)
    return wire.Topics(tuple(_info(source) for source in found), tuple(missing), call.broker.log.identity)


async def judge(call: Call, max_age_seconds: float, topic: str, sight: bool = False) -> None:
    """Raise unless this topic may be read (sight: read or written), before another cell of this node is asked for it (ADR 53)."""
    await fresh(call.broker, max_age_seconds)
    call = call.again()
    if sight:
        call.require_sight(topic)
    else:
        call.require("subscribe", topic)


async def readable(call: Call, max_age_seconds: float, names: Iterable[str]) -> set[str]:
    """Those that may be read."""
    await fresh(call.broker, max_age_seconds)
    call = call.again()
    return {name for name in names if call.may_read(name)}


async def topic_create(call: Call, ask: wire.CreateRequest) -> wire.Created:
    call.require("admin", ask.topic)
    topic, made = call.leader.create_topic(_raw(ask.topic), ask.partitions, owner=call.principal.name)
    await topic.ready()
    return wire.Created(made, len(topic.partitions))


async def offsets_for_time(call: Call, ask: wire.TimeRequest) -> wire.Offsets:
    await fresh(call.broker, ask.max_age_seconds)
    partitions = call.again().source(ask.topic).partitions
    offsets = await _some_at_a_time(reads.offset_for_time(partition, ask.at_us) for partition in partitions)
    return wire.Offsets(tuple(offsets))


async def locate(machine: wire.Machine | None, call: Call, ask: wire.LocateRequest) -> wire.Located:
    if len(ask.ranges) > RANGES_MAX:
        raise LimitExceeded(f"{len(ask.ranges)} ranges in one request, the limit is {RANGES_MAX}")
    await fresh(call.broker, ask.max_age_seconds, needs_of(call, ask.topic, ask.ranges))
    call = call.again()
    source = call.source(ask.topic)
    partitions = [source.partition(wanted.partition) for wanted in ask.ranges]
    if machine is None or source.in_memory:
        return wire.Located(source.identity, machine, tuple(() for _ in ask.ranges))
    files, count = [], 0
    for partition, wanted in zip(partitions, ask.ranges, strict=True):
        found = partition.files(wanted.first, wanted.last)
        files.append(tuple(wire.SegmentFile(*file) for file in found))
        call.given(
            source, wanted.partition, max(wanted.first, partition.start), min(wanted.last, partition.visible), FILES
        )
        count += len(found)
        if count > FILES_SHOWN_MAX:
            raise LimitExceeded(f"more than {FILES_SHOWN_MAX} files", hint="ask for fewer ranges at a time")
    return wire.Located(source.identity, machine, tuple(files))


def needs_of(call: Call, topic: str, ranges: Iterable[wire.Range]) -> list[Need]:
    """What ranges of a topic need of a follower; nothing if the caller may not read it, which is said later."""
    ends: dict[int, int] = {}
    for wanted in ranges:
        ends[wanted.partition] = max(ends.get(wanted.partition, 0), wanted.first, wanted.last)
    needed = {partition: end for partition, end in ends.items() if end > 0 and partition >= 0}
    return [Need(topic, "", needed)] if needed and topic not in OWN_TOPICS and call.may_read(topic) else []


async def _some_at_a_time(verbs: Iterable[Verb[T]], at_once: int = POSITIONS_AT_ONCE) -> list[T]:
    """As gather, without more than a few of them under way. All are run; the first error is raised when all are over."""
    waiting = enumerate(verbs)
    results: dict[int, T] = {}
    errors: list[Exception] = []

    async def run() -> None:
        for number, verb in waiting:
            try:
                results[number] = await verb
            except Exception as error:
                errors.append(error)

    await gather(*(run() for _ in range(at_once)))
    if errors:
        raise errors[0]
    return [results[number] for number in sorted(results)]


# -- groups -----------------------------------------------------------------------------------------------------------


async def group_commit(call: Call, ask: wire.GroupCommit) -> wire.Nothing:
    if sum(len(places) for places in ask.offsets.values()) > COMMITS_MAX:
        raise LimitExceeded(f"more than {COMMITS_MAX} offsets in one commit")
    broker = call.leader
    owner, privileged = call.group_rights(ask.group)
    found = {name: call.topic(name) for name in ask.offsets}

    async def commit(name: str, partition: int, offset: int) -> None:
        where = (found[name], ask.group, partition, offset)
        await broker.groups.offsets.commit(owner, privileged, *where, None, call, door="flight")

    offsets = ask.offsets.items()
    await _some_at_a_time(commit(name, *place) for name, places in offsets for place in places.items())
    return wire.Nothing()


async def groups(call: Call, ask: wire.GroupsRequest) -> wire.GroupPositions:
    access = call.leader.access
    infos = call.leader.groups.list(
        call.owner, call.administers, lambda name: access.listed(call.principal, f"group:{name}")
    )
    wanted = [
        (info, partition, offset)
        for info in infos
        if ask.topic in ("", info.topic) and ask.group in ("", info.group)
        for partition, offset in info.offsets
        if call.broker.topics.get(info.topic.encode()) is not None
    ]
    if len(wanted) > POSITIONS_MAX:
        raise LimitExceeded(f"{len(wanted)} positions, the limit is {POSITIONS_MAX}", hint="name a topic or a group")

    found = await _some_at_a_time(_position(call, *place) for place in wanted)
    positions = tuple(position for position in found if position is not None)
    return wire.GroupPositions(positions, call.broker.scheduler.now())


async def _position(call: Call, info: GroupInfo, partition: int, offset: int) -> wire.GroupPosition | None:
    """None if the group or its topic went away meanwhile."""
    topic = call.broker.topics.get(info.topic.encode())
    if topic is None or partition >= len(topic.partitions):
        return None
    lag = await call.leader.groups.offsets.lag(call.owner, True, topic, info.group, partition)
    behind, age_us = lag.lag_messages, lag.lag_ms * 1000
    return wire.GroupPosition(info.group, info.topic, partition, offset, lag.latest, behind, age_us)


# -- schemas, dead letters --------------------------------------------------------------------------------------------


async def schema(call: Call, ask: wire.SchemaRequest) -> wire.SchemaAnswer:
    await fresh(call.broker, 0.0)
    call = call.again()
    call.require_sight(ask.subject)
    found = call.broker.schemas.get(ask.subject, ask.version)
    definition = found.definition.decode(errors="replace")
    return wire.SchemaAnswer(found.name, found.id, found.version, found.type, definition)


async def reject(call: Call, ask: wire.RejectRequest) -> wire.Rejected:
    if len(ask.rejects) > REJECTS_MAX:
        raise LimitExceeded(f"{len(ask.rejects)} records in one reject, the limit is {REJECTS_MAX}")
    dead, topic = call.leader.dead, call.topic(ask.topic)

    async def bury(item: wire.Reject) -> bool:
        return await dead.reject(topic, item.partition, item.offset, item.error[:ERROR_BYTES_MAX])

    return wire.Rejected(sum(await _some_at_a_time(bury(item) for item in ask.rejects)))


async def redrive(call: Call, ask: wire.RedriveRequest) -> wire.Redriven:
    call.require("publish", ask.topic)
    source = call.leader.dead_letters_of(call.principal, ask.topic, call.peer)
    count, missing = await call.leader.dead.replay_many(source, ask.ids)
    return wire.Redriven(count, tuple(missing))


async def dead(call: Call, ask: wire.DeadRequest) -> wire.DeadOpen:
    call.require("subscribe", ask.topic)
    source = call.leader.dead_letters_of(call.principal, ask.topic, call.peer)
    found = call.leader.dead.open_ranges(source)
    return wire.DeadOpen(call.leader.dead.name_for(source).decode(), found)


# -- nodes of a cell --------------------------------------------------------------------------------------------------


async def node(call: Call, _ask: wire.Nothing) -> wire.NodeAnswer:
    broker = call.broker
    if isinstance(broker, FollowerBroker):
        age = broker.log.age_us()
        return wire.NodeAnswer(broker.node, "follower", broker.leader, -1.0 if age is None else age / 1e6)
    return wire.NodeAnswer(broker.cluster.node_id, "leader")


# -- pipelines --------------------------------------------------------------------------------------------------------


async def pipeline_report(pipelines: Pipelines, call: Call, ask: wire.PipelineReport) -> wire.PipelineOrder:
    report = Report(**msgspec.structs.asdict(ask))
    return wire.PipelineOrder(pipelines.report(call.owner, report, call.leader.scheduler.monotonic()))


async def pipelines_seen(pipelines: Pipelines, call: Call, _ask: wire.Nothing) -> wire.Pipelines:
    now, monotonic = call.leader.scheduler.now(), call.leader.scheduler.monotonic()
    found = (
        wire.PipelineStatus(
            wire.PipelineReport(**asdict(status.report)), status.owner, now - (monotonic - status.heard_us)
        )
        for status in pipelines.seen(call.owner, call.administers, monotonic)
    )
    return wire.Pipelines(tuple(found), now)


async def pipeline_stop(pipelines: Pipelines, call: Call, ask: wire.PipelineName) -> wire.Nothing:
    pipelines.stop(call.owner, call.administers, ask.name, call.leader.scheduler.monotonic())
    return wire.Nothing()


# -- staged writes ----------------------------------------------------------------------------------------------------


async def stage_commit(call: Call, ask: wire.StageCommit) -> wire.StageCommitted:
    if len(ask.stages) > STAGES_OF_COMMIT_MAX:
        raise LimitExceeded(f"{len(ask.stages)} stages in one commit, the limit is {STAGES_OF_COMMIT_MAX}")
    call.leader.check_open()
    if ask.log not in ("", call.broker.log.identity):  # before the fence is asked: that of another log says nothing
        raise OtherLog(
            f"batch {ask.batch_id} of {ask.writer} was staged in the log {ask.log}, this broker has the log"
            f" {call.broker.log.identity}: nothing was committed",
            hint="the broker behind the address was replaced, or its data folder emptied: begin with a new checkpoint",
        )
    stages = tuple(id for id in ask.stages if id)  # "" is the stage of a do_put without rows
    what = (ask.writer, ask.batch_id, stages, ask.rows, ask.accept_other)
    made, _ = await call.leader.stages.commit(call.owner, *what, lambda topic: call.require("publish", topic))
    return wire.StageCommitted(made, ask.rows)  # what is not visible yet follows by itself


async def stage_abort(call: Call, ask: wire.StageAbort) -> wire.Nothing:
    call.leader.stages.abort(call.owner, ask.stages)
    return wire.Nothing()


async def fence(call: Call, ask: wire.FenceRequest) -> wire.FenceAnswer:
    return wire.FenceAnswer(call.leader.stages.fence(call.owner, ask.writer), call.broker.log.identity)


def stage_open(call: Call, writer: str, batch_id: int) -> Stage:
    call.leader.check_open()
    return call.leader.stages.open(call.owner, writer, batch_id)


async def target(call: Call, name: str) -> tuple[int, int, int, str]:
    """(number, partitions, whose turn it is, identity) of the topic to publish to, when it is there for good."""
    topic = call.leader.publish_target(call.principal, _raw(name), durable=True, peer=call.peer)
    turn = topic.choose(None)
    identity = _identity(call.broker, topic.spec.identity)
    await topic.ready()
    return topic.spec.id, len(topic.partitions), turn, identity
