"""Holds the state of one consumer group: its members, who owns which partition, the offsets it committed.

State only, and the rules that need nothing but this state; the verbs, the clock and the table are in coordinator.py. What a
caller may know of a group is in the frozen classes at the top: they are copies, and safe to keep. `MOVES` has the phases of
a group: what may happen in each, what is to be done then, and which phase follows.
"""

from enum import Enum, auto
from typing import ClassVar, Final, Literal

import msgspec

from quintet.broker.atomic.intent_rows import Effect
from quintet.broker.consumers.assignment import spread
from quintet.broker.topics.catalog import Topic
from quintet.model.errors import BadName, BadRequest, Fenced, GroupBusy, GroupNotFound
from quintet.model.tasks import Promise, completed

State = Literal["empty", "rebalancing", "stable"]

MODES: Final = ("earliest", "latest", "commit", "")  # "" is latest; commit is the committed offset, else earliest
GROUP_NAME_BYTES_MAX: Final = 255
GROUP_ROW: Final = -1  # the partition number in the row of the group itself


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """What `__groups` keeps. Key `topic NUL group NUL`: the group (its owner, and the highest generation that may
    have been given out). Key `topic NUL group NUL partition`: one committed offset; `topic_id` tells whether it is of this topic."""

    topic: str
    group: str
    partition: int
    owner: str = ""
    generation: int = 0
    topic_id: int = 0
    offset: int = 0
    version: int = 0


class CommitPayload(Effect, frozen=True, array_like=True):
    """A commit that was checked and waits for its transaction: an effect of an intent."""

    kind: ClassVar[str] = "offset"

    topic: str
    topic_id: int
    group: str
    owner: str
    partition: int
    offset: int
    version: int


class Assignment(msgspec.Struct, frozen=True):
    """What a subscriber gets. A plain one: generation 0, no partitions, and the offset to start at. A member: each of
    its partitions with the offset to start at; `offset` is that of the first."""

    generation: int
    partitions: tuple[tuple[int, int], ...]
    offset: int


class Lag(msgspec.Struct, frozen=True):
    """How far a group is behind in one partition. `lag_messages` counts what is still kept; `lag_ms` is the age of the
    oldest record not committed, 0 if there is none."""

    committed: int
    latest: int
    lag_messages: int
    lag_ms: int


class MemberInfo(msgspec.Struct, frozen=True):
    """A member as others see it. `connected` is False for a static one whose connection is gone and whose place is kept."""

    name: str
    static: bool
    connected: bool
    partitions: tuple[int, ...]


class GroupInfo(msgspec.Struct, frozen=True):
    """A group as others see it. `subscribers` are plain subscriptions of connections that are no members."""

    topic: str
    group: str
    owner: str
    state: State
    generation: int
    members: tuple[MemberInfo, ...]
    subscribers: int
    offsets: tuple[tuple[int, int], ...]


class Phase(Enum):
    """Where a group is between two assignments."""

    MAKING = auto()  # its row is on its way to the disk: every verb waits
    ASSIGNED = auto()  # each partition has one owner, if there are members
    CHANGED = auto()  # members or partitions changed: assigned anew at the end of the turn
    RESERVING = auto()  # assigned, and the row that reserves its generation is on its way to the disk
    CHANGED_RESERVING = auto()  # changed again before that row was durable


class Event(Enum):
    """What happens to a group."""

    CHANGE = auto()  # a member came or went, or the topic has another number of partitions
    TURN_END = auto()  # of a turn in which it changed, or was asked for an assignment
    GENERATION_RESERVED = auto()  # its generation may be told
    GENERATION_UNRESERVED = auto()  # it may not: after a restart it might be given out again
    ROW_DURABLE = auto()
    ROW_REFUSED = auto()


class Action(Enum):
    """What the coordinator does then."""

    NOTHING = auto()
    ASSIGN = auto()  # a new generation, then as CHECK
    CHECK = auto()  # is the generation reserved?
    TELL = auto()  # answer everybody who joined, or say why there is no answer
    RESERVE = auto()  # write a row that reserves the next generations


MOVES: Final[dict[tuple[Phase, Event], tuple[Action, Phase]]] = {
    (Phase.MAKING, Event.ROW_DURABLE): (Action.NOTHING, Phase.ASSIGNED),
    (Phase.ASSIGNED, Event.CHANGE): (Action.NOTHING, Phase.CHANGED),
    (Phase.ASSIGNED, Event.TURN_END): (Action.CHECK, Phase.ASSIGNED),
    (Phase.ASSIGNED, Event.GENERATION_RESERVED): (Action.TELL, Phase.ASSIGNED),
    (Phase.ASSIGNED, Event.GENERATION_UNRESERVED): (Action.RESERVE, Phase.RESERVING),
    (Phase.CHANGED, Event.CHANGE): (Action.NOTHING, Phase.CHANGED),
    (Phase.CHANGED, Event.TURN_END): (Action.ASSIGN, Phase.ASSIGNED),
    (Phase.RESERVING, Event.CHANGE): (Action.NOTHING, Phase.CHANGED_RESERVING),
    (Phase.RESERVING, Event.TURN_END): (Action.NOTHING, Phase.RESERVING),
    (Phase.RESERVING, Event.GENERATION_UNRESERVED): (Action.NOTHING, Phase.RESERVING),
    (Phase.RESERVING, Event.ROW_DURABLE): (Action.CHECK, Phase.ASSIGNED),
    (Phase.RESERVING, Event.ROW_REFUSED): (Action.TELL, Phase.ASSIGNED),
    (Phase.CHANGED_RESERVING, Event.CHANGE): (Action.NOTHING, Phase.CHANGED_RESERVING),
    (Phase.CHANGED_RESERVING, Event.TURN_END): (Action.ASSIGN, Phase.RESERVING),
    (Phase.CHANGED_RESERVING, Event.ROW_DURABLE): (Action.NOTHING, Phase.CHANGED),
    (Phase.CHANGED_RESERVING, Event.ROW_REFUSED): (Action.TELL, Phase.CHANGED),
}


class Member:
    """A member of a group. `connection` speaks for it; None while a static member is away."""

    __slots__ = ("actor", "connection", "group", "heartbeat", "name", "partitions", "serial")

    def __init__(self, group: "Group", serial: int, name: str, actor: str, connection: object) -> None:
        self.group = group
        self.serial = serial
        self.name = name
        self.actor = actor
        self.connection: object | None = connection
        self.heartbeat = 0  # when it was last heard of
        self.partitions: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        return self.name or f"member-{self.serial}"


class CommittedOffset:
    """The committed offset of one partition. Version 0: nothing is committed. `issued` is the highest version given out."""

    __slots__ = ("durable", "issued", "offset", "version")

    def __init__(self, offset: int = 0, version: int = 0) -> None:
        self.offset = offset
        self.version = self.issued = version
        self.durable = (offset, version)  # what is on disk: where a refused commit falls back to


_MADE: Final = completed(None)  # one for all: there may be many groups


class Group:
    """A consumer group of one topic."""

    __slots__ = (
        "by_connection", "by_name", "committing", "count", "fenced", "generation", "idle", "joins", "key", "made", "members", "name",
        "offsets", "owner", "owners", "owning", "phase", "pins", "plain", "reserved", "serial", "topic", "topic_name",
    )  # fmt: skip

    def __init__(
        self, topic_name: str, name: str, owner: str, generation: int = 0, phase: Phase = Phase.ASSIGNED
    ) -> None:
        self.topic_name = topic_name
        self.name = name
        self.key = f"{topic_name}\0{name}\0".encode()
        self.owner = owner
        self.phase = phase
        self.made: Promise[None] = Promise() if phase is Phase.MAKING else _MADE
        self.topic: Topic | None = None  # as the last who joined knew it
        self.offsets: dict[int, CommittedOffset] = {}
        # members
        self.members: dict[Member, None] = {}
        self.by_connection: dict[object, Member] = {}
        self.by_name: dict[str, Member] = {}
        self.fenced: dict[object, str] = {}  # connections whose static name a newer one took: until they close
        self.plain: dict[object, None] = {}  # connections with plain subscriptions
        self.serial = 0
        # assignment
        self.generation = generation
        self.reserved = generation  # up to here a generation may be told: the row that says so is durable
        self.committing = 0  # transactions with offsets of this group that are on their way to the disk
        self.count = 0  # partitions when it was last assigned
        self.owners: dict[int, Member] = {}
        self.owning: dict[Member, tuple[int, ...]] = {}
        self.idle: dict[Member, None] = {}
        self.pins: dict[int, int] = {}  # where the first owner began, so that the next one does not skip its work
        self.joins: list[tuple[Member, object, str, Promise[Assignment]]] = []

    def move(self, event: Event) -> Action:
        """Something happened: what is to be done. KeyError if it cannot happen in this phase."""
        action, self.phase = MOVES[self.phase, event]
        return action

    @property
    def state(self) -> State:
        if self.phase in (Phase.CHANGED, Phase.CHANGED_RESERVING):
            return "rebalancing"
        return "stable" if self.members else "empty"

    # -- members ---------------------------------------------------------------------------------------------------

    def enter(self, name: str, actor: str, connection: object) -> Member:
        """A new member."""
        self.serial += 1
        member = Member(self, self.serial, name, actor, connection)
        self.members[member] = None
        self.idle[member] = None
        self.by_connection[connection] = member
        if name:
            self.by_name[name] = member
        self.move(Event.CHANGE)
        return member

    def take_over(self, member: Member, connection: object) -> None:
        """A newer connection speaks for a static member; the older one never does again."""
        if member.connection is not None:
            del self.by_connection[member.connection]
            self.fenced[member.connection] = member.name
        member.connection = connection
        self.by_connection[connection] = member

    def remove(self, member: Member) -> None:
        del self.members[member]
        self.idle.pop(member, None)
        self.owning.pop(member, None)
        if member.connection is not None:
            del self.by_connection[member.connection]
        if member.name:
            del self.by_name[member.name]
        member.partitions = ()
        self.move(Event.CHANGE)

    # -- assignment ------------------------------------------------------------------------------------------------

    def rebalance(self) -> None:
        """A new generation for the members there are now."""
        self.generation += 1
        self.count = 0 if self.topic is None else len(self.topic.partitions)
        if not self.members:
            self.owners = {}
            self.pins = {}
            return
        for member, numbers in spread(self.count, len(self.members), self.owning, self.idle).items():
            member.partitions = tuple(numbers)
            if numbers:
                self.owning[member] = member.partitions
                self.idle.pop(member, None)
            elif self.owning.pop(member, None) is not None:
                self.idle[member] = None
        self.owners = {number: member for member, numbers in self.owning.items() for number in numbers}

    def fence(self, partition: int, generation: int | None, connection: object) -> Member | None:
        """The member that may commit in this partition now; None where there are no members and anybody may. Fenced
        otherwise."""
        if generation is not None and generation != self.generation:
            raise Fenced(
                f"generation {generation} of group {self.name} is over (now {self.generation}): subscribe again"
            )
        member = self.by_connection.get(connection)
        if member is None:
            if generation is None and not self.members:
                return None
            if connection in self.fenced:
                raise self.taken(self.fenced[connection])
            raise Fenced(
                f"group {self.name} has members, and this connection is none: subscribe with partition -1 first"
                if self.members
                else f"generation {generation} of group {self.name} is over: it has no members now, subscribe again"
            )
        if self.owners.get(partition) is not member:
            raise Fenced(
                f"partition {partition} of group {self.name} is not assigned to this member in generation "
                f"{self.generation}: subscribe again"
            )
        return member

    def taken(self, name: str) -> Fenced:
        return Fenced(
            f"a newer connection speaks for static member {name!r} of group {self.name}",
            hint="give each process its own name; to take the place back, connect again",
        )

    # -- offsets ---------------------------------------------------------------------------------------------------

    def committed(self, partition: int) -> int | None:
        found = self.offsets.get(partition)
        return found.offset if found is not None and found.version else None

    def start(self, topic: Topic, partition: int, mode: str) -> int:
        """Where a plain subscriber starts."""
        log = topic.partition(partition)
        if mode in ("latest", ""):
            return log.visible
        committed = self.committed(partition) if mode == "commit" else None
        return log.start if committed is None else min(max(committed, log.start), log.visible)

    def assignment(self, member: Member, mode: str) -> Assignment:
        """A member's share: committed offsets first, then where the first owner in this run of the group began, then
        by mode."""
        topic = self.topic
        assert topic is not None, "it joined with a topic"
        partitions = []
        for number in member.partitions:
            offset = self.start(topic, number, "commit")
            if self.committed(number) is None:
                log = topic.partition(number)
                offset = max(self.pins.setdefault(number, self.start(topic, number, mode)), log.start)
            partitions.append((number, offset))
        return Assignment(self.generation, tuple(partitions), partitions[0][1] if partitions else 0)

    def tell(self, error: Exception | None) -> None:
        """Answer everybody who joined, unless a transaction is being committed: nobody may begin behind its back."""
        if self.committing and error is None:
            return
        joins, self.joins = self.joins, []
        for member, connection, mode, answer in joins:
            if error is not None:
                answer.fail(error)
            elif self.by_connection.get(connection) is member:
                answer.resolve(self.assignment(member, mode))
            else:
                answer.fail(Fenced(f"this connection is no longer a member of group {self.name}: subscribe again"))

    def info(self) -> GroupInfo:
        return GroupInfo(
            topic=self.topic_name,
            group=self.name,
            owner=self.owner,
            state=self.state,
            generation=self.generation,
            members=tuple(
                MemberInfo(member.label, bool(member.name), member.connection is not None, member.partitions)
                for member in self.members
            ),
            subscribers=sum(connection not in self.by_connection for connection in self.plain),
            offsets=tuple(sorted((n, found.offset) for n, found in self.offsets.items() if found.version)),
        )


def check_mode(mode: str) -> None:
    if mode not in MODES:
        raise BadRequest(f"unknown mode {mode!r} of a subscription", hint="use earliest, latest or commit")


def check_name(group: str) -> None:
    try:
        size = len(group.encode())
    except UnicodeEncodeError as error:
        raise BadName("the name of a consumer group is UTF-8") from error
    if not 0 < size <= GROUP_NAME_BYTES_MAX:
        raise BadName(f"the name of a consumer group has 1 to {GROUP_NAME_BYTES_MAX} bytes, this one has {size}")
    if "\0" in group:
        raise BadName("the name of a consumer group must not contain a NUL byte")


def check_offset(topic: Topic, partition: int, offset: int) -> None:
    end = topic.partition(partition).visible
    if not 0 <= offset <= end:
        raise BadRequest(
            f"offset {offset} is not in partition {partition} of topic {topic.name!r}, which ends at {end}",
            hint=f"commit the offset of the next record to read: 0 to {end}",
        )


def check_still(group: Group) -> None:
    if group.members:
        raise GroupBusy(
            f"group {group.name} has {len(group.members)} members: its offsets can be changed only while it has none",
            hint="stop its consumers first; they are gone at once, or after the session timeout if they were static",
        )


def unknown(topic: str, group: str) -> GroupNotFound:
    return GroupNotFound(f"consumer group not found: {topic}:{group}", hint="the first subscribe or commit makes it")


def group_row(group: Group, generation: int) -> GroupRow:
    return GroupRow(group.topic_name, group.name, GROUP_ROW, owner=group.owner, generation=generation)


def offset_key(group: Group, partition: int) -> bytes:
    return group.key + str(partition).encode()
