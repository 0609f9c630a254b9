"""Holds the state of one consumer group: its members, who owns which partition, the offsets it committed.

State only, and the rules that need nothing but this state; the verbs, the clock and the table are in coordinator.py. What a
caller may know of a group is in the frozen classes at the top: they are copies, and safe to keep.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import msgspec

from quintet.broker.atomic.intent_rows import Effect
from quintet.broker.consumers.assignment import spread
from quintet.broker.topics.catalog import Topic
from quintet.model.errors import BadName, BadRequest, Fenced, GroupBusy, GroupNotFound

# done(result, None) or done(None, error)
Answer = Callable[[Any, Exception | None], None]
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


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a subscriber gets. A plain one: generation 0, no partitions, and the offset to start at. A member: each of
    its partitions with the offset to start at; `offset` is that of the first."""

    generation: int
    partitions: tuple[tuple[int, int], ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind in one partition. `lag_messages` counts what is still kept; `lag_ms` is the age of the
    oldest record not committed, 0 if there is none."""

    committed: int
    latest: int
    lag_messages: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member as others see it. `connected` is False for a static one whose connection is gone and whose place is kept."""

    name: str
    static: bool
    connected: bool
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group as others see it. `subscribers` are plain subscriptions of connections that are no members."""

    topic: str
    group: str
    owner: str
    state: State
    generation: int
    members: tuple[MemberInfo, ...]
    subscribers: int
    offsets: tuple[tuple[int, int], ...]


class Slot:
    """A member's place. `member` is the connection that speaks for it; None while a static member is away."""

    __slots__ = ("actor", "group", "heard", "member", "name", "partitions", "serial")

    def __init__(self, group: "Group", serial: int, name: str, actor: str, member: object) -> None:
        self.group = group
        self.serial = serial
        self.name = name
        self.actor = actor
        self.member: object | None = member
        self.heard = 0
        self.partitions: tuple[int, ...] = ()


class Place:
    """The committed offset of one partition. Version 0: nothing is committed. `issued` is the highest version given out."""

    __slots__ = ("durable", "issued", "offset", "version")

    def __init__(self, offset: int = 0, version: int = 0) -> None:
        self.offset = offset
        self.version = self.issued = version
        self.durable = (offset, version)  # what is on disk: where a refused commit falls back to


class Group:
    """A consumer group of one topic."""

    __slots__ = (
        "by_member", "by_name", "changed", "committing", "count", "extending", "fenced", "generation", "idle", "joins", "key", "name", "owner",
        "owners", "owning", "pins", "places", "plain", "reserved", "serial", "slots", "topic", "topic_name", "waiting",
    )  # fmt: skip

    def __init__(self, topic_name: str, name: str, owner: str, generation: int) -> None:
        self.topic_name = topic_name
        self.name = name
        self.key = f"{topic_name}\0{name}\0".encode()
        self.owner = owner
        self.topic: Topic | None = None  # as the last who joined knew it
        self.places: dict[int, Place] = {}
        self.waiting: list[tuple[Callable[[], None], Answer]] | None = None  # a list while its row is on its way
        # members
        self.slots: dict[Slot, None] = {}
        self.by_member: dict[object, Slot] = {}
        self.by_name: dict[str, Slot] = {}
        self.fenced: dict[object, str] = {}  # connections whose static name a newer one took: until they close
        self.plain: dict[object, None] = {}
        self.serial = 0
        # assignment
        self.generation = generation
        self.reserved = generation  # up to here a generation may be told: the row that says so is durable
        self.extending = False
        self.changed = False
        self.committing = 0  # transactions with offsets of this group that are on their way to the disk
        self.count = 0  # partitions when it was last assigned
        self.owners: dict[int, Slot] = {}
        self.owning: dict[Slot, tuple[int, ...]] = {}
        self.idle: dict[Slot, None] = {}
        self.pins: dict[int, int] = {}  # where the first owner began, so that the next one does not skip its work
        self.joins: list[tuple[Slot, object, str, Answer]] = []

    @property
    def state(self) -> State:
        if self.changed:
            return "rebalancing"
        return "stable" if self.slots else "empty"

    # -- members ---------------------------------------------------------------------------------------------------

    def enter(self, name: str, actor: str, member: object) -> Slot:
        """A new place for this member."""
        self.serial += 1
        slot = Slot(self, self.serial, name, actor, member)
        self.slots[slot] = None
        self.idle[slot] = None
        self.by_member[member] = slot
        if name:
            self.by_name[name] = slot
        self.changed = True
        return slot

    def take_over(self, slot: Slot, member: object) -> None:
        """A newer connection speaks for a static member; the older one never does again."""
        if slot.member is not None:
            del self.by_member[slot.member]
            self.fenced[slot.member] = slot.name
        slot.member = member
        self.by_member[member] = slot

    def remove(self, slot: Slot) -> None:
        del self.slots[slot]
        self.idle.pop(slot, None)
        self.owning.pop(slot, None)
        if slot.member is not None:
            del self.by_member[slot.member]
        if slot.name:
            del self.by_name[slot.name]
        slot.partitions = ()
        self.changed = True

    # -- assignment ------------------------------------------------------------------------------------------------

    def rebalance(self) -> None:
        """A new generation for the members there are now."""
        self.changed = False
        self.generation += 1
        self.count = 0 if self.topic is None else len(self.topic.partitions)
        if not self.slots:
            self.owners = {}
            self.pins = {}
            return
        for slot, numbers in spread(self.count, len(self.slots), self.owning, self.idle).items():
            slot.partitions = tuple(numbers)
            if numbers:
                self.owning[slot] = slot.partitions
                self.idle.pop(slot, None)
            elif self.owning.pop(slot, None) is not None:
                self.idle[slot] = None
        self.owners = {number: slot for slot, numbers in self.owning.items() for number in numbers}

    def fence(self, partition: int, generation: int | None, member: object) -> Slot | None:
        """The member that may commit in this partition now; None where there are no members and anybody may. Fenced
        otherwise."""
        if generation is not None and generation != self.generation:
            raise Fenced(
                f"generation {generation} of group {self.name} is over (now {self.generation}): subscribe again"
            )
        slot = self.by_member.get(member)
        if slot is None:
            if generation is None and not self.slots:
                return None
            if member in self.fenced:
                raise self.taken(self.fenced[member])
            raise Fenced(
                f"group {self.name} has members, and this connection is none: subscribe with partition -1 first"
                if self.slots
                else f"generation {generation} of group {self.name} is over: it has no members now, subscribe again"
            )
        if self.owners.get(partition) is not slot:
            raise Fenced(
                f"partition {partition} of group {self.name} is not assigned to this member in generation "
                f"{self.generation}: subscribe again"
            )
        return slot

    def taken(self, name: str) -> Fenced:
        return Fenced(
            f"a newer connection speaks for static member {name!r} of group {self.name}",
            hint="give each process its own name; to take the place back, connect again",
        )

    # -- offsets ---------------------------------------------------------------------------------------------------

    def committed(self, partition: int) -> int | None:
        place = self.places.get(partition)
        return place.offset if place is not None and place.version else None

    def start(self, topic: Topic, partition: int, mode: str) -> int:
        """Where a plain subscriber starts."""
        log = topic.partition(partition)
        if mode in ("latest", ""):
            return log.visible
        committed = self.committed(partition) if mode == "commit" else None
        return log.start if committed is None else min(max(committed, log.start), log.visible)

    def assignment(self, slot: Slot, mode: str) -> Assignment:
        """A member's share: committed offsets first, then where the first owner in this run of the group began, then
        by mode."""
        topic = self.topic
        assert topic is not None, "it joined with a topic"
        partitions = []
        for number in slot.partitions:
            offset = self.start(topic, number, "commit")
            if self.committed(number) is None:
                log = topic.partition(number)
                offset = max(self.pins.setdefault(number, self.start(topic, number, mode)), log.start)
            partitions.append((number, offset))
        return Assignment(self.generation, tuple(partitions), partitions[0][1] if partitions else 0)

    def when_made(self, call: Callable[[], None], done: Answer) -> None:
        """Call now, or when its row is durable; `done` is told if it never is."""
        if self.waiting is None:
            call()
        else:
            self.waiting.append((call, done))

    def tell(self, error: Exception | None) -> None:
        """Answer everybody who joined, unless a transaction is being committed: nobody may begin behind its back."""
        if self.committing and error is None:
            return
        joins, self.joins = self.joins, []
        for slot, member, mode, done in joins:
            if error is not None:
                done(None, error)
            elif self.by_member.get(member) is slot:
                done(self.assignment(slot, mode), None)
            else:
                done(None, Fenced(f"this connection is no longer a member of group {self.name}: subscribe again"))

    def info(self) -> GroupInfo:
        return GroupInfo(
            topic=self.topic_name,
            group=self.name,
            owner=self.owner,
            state=self.state,
            generation=self.generation,
            members=tuple(
                MemberInfo(
                    slot.name or f"member-{slot.serial}", bool(slot.name), slot.member is not None, slot.partitions
                )
                for slot in self.slots
            ),
            subscribers=sum(member not in self.by_member for member in self.plain),
            offsets=tuple(sorted((n, place.offset) for n, place in self.places.items() if place.version)),
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
        raise BadName("the name of a consumer group has no NUL byte")


def check_offset(topic: Topic, partition: int, offset: int) -> None:
    end = topic.partition(partition).visible
    if not 0 <= offset <= end:
        raise BadRequest(
            f"offset {offset} is not in partition {partition} of topic {topic.name!r}, which ends at {end}",
            hint=f"commit the offset of the next record to read: 0 to {end}",
        )


def check_still(group: Group) -> None:
    if group.slots:
        raise GroupBusy(
            f"group {group.name} has {len(group.slots)} members: its offsets are theirs",
            hint="stop its consumers first; they are gone at once, or after the session timeout if they were static",
        )


def unknown(topic: str, group: str) -> GroupNotFound:
    return GroupNotFound(f"consumer group not found: {topic}:{group}", hint="the first subscribe or commit makes it")


def stored(
    place: Place, offset: int, version: int, done: Callable[[Exception | None], None], error: Exception | None
) -> None:
    if error is None:
        if version >= place.durable[1]:
            place.durable = (offset, version)
    elif place.version == version:
        place.offset, place.version = place.durable
    done(error)


def group_row(group: Group, generation: int) -> GroupRow:
    return GroupRow(group.topic_name, group.name, GROUP_ROW, owner=group.owner, generation=generation)


def offset_key(group: Group, partition: int) -> bytes:
    return group.key + str(partition).encode()
