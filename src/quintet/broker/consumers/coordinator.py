"""Coordinates consumer groups: admits members, assigns partitions, checks and stores committed offsets.

A group is one name on one topic and belongs to the principal that used it first; `privileged` callers (an administrator,
or whoever an ACL on `group:NAME` lists; the door knows) may act for the owner. Committed offsets and owners live in
`__groups`, and what was acknowledged by them in the audit before (broker/audit/delivery_events.py); members do not outlive the broker, generations never repeat even so.

    group        | join (partition -1)     | leave, silence        | plain commit  | with generation    | reset, seek, delete
    absent       | made, then as empty     |                       | made, taken   | Fenced             | GroupNotFound
    being made   | waits for its row       |                       | waits         | waits              | waits
    empty        | -> rebalancing          |                       | taken         | Fenced             | done
    rebalancing  | waits for the turn's end| -> rebalancing        | owner only    | until then as      | GroupBusy
                 |                         |                       |               | before the change  |
    stable       | member: heartbeat;      | -> rebalancing        | owner only    | current and owner, | GroupBusy
                 | else -> rebalancing     |                       |               | else Fenced        |
    rebalancing, end of turn: a new generation, one owner per partition, everybody who joined is told -> stable or empty

    member       | heard of | its connection closes      | silent for session_timeout_us | its name joins elsewhere
    dynamic      | stays    | removed                    | removed                       |
    static       | stays    | away, keeps its partitions | removed                       | new connection, same place
    static, away |          |                            | removed                       | new connection, same place

Every verb either raises a QuintetError at once, or calls `done` exactly once later. Nothing here knows a wire format.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from quintet.broker.audit.delivery_events import Events
from quintet.broker.consumers.group import (
    GROUP_ROW,
    Answer,
    Assignment,
    CommitPayload,
    Group,
    GroupInfo,
    GroupRow,
    Lag,
    Place,
    Slot,
    check_mode,
    check_name,
    check_offset,
    check_still,
    group_row,
    offset_key,
    stored,
    unknown,
)
from quintet.broker.slices import in_order
from quintet.broker.table import Done, Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.broker.topics.seek import EVER, seek
from quintet.log.base import Partition
from quintet.model.errors import BadName, BadRequest, Fenced, Forbidden, LimitExceeded, QuintetError, StorageError
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import start

SESSION_TIMEOUT_US: Final = 10_000_000
MEMBERS_MAX: Final = 10_000  # of one group, plain subscribers included
GROUPS_MAX: Final = 100_000
MEMBER_NAME_BYTES_MAX: Final = 255
GENERATIONS_RESERVED: Final = 100  # given out per write of the group's row: a restart skips at most so many
ASSIGN: Final = -1  # the partition of a SUBSCRIBE that asks for an assignment

Report = Callable[[str, dict[str, object]], None]


class Groups:
    """All consumer groups. `load` once at start, `tick` about every 50 ms, `leave` when a connection closes."""

    def __init__(
        self,
        table: Table[GroupRow],
        topics: Topics,
        scheduler: Scheduler,
        report: Report,
        *,
        session_timeout_us: int = SESSION_TIMEOUT_US,
        members_max: int = MEMBERS_MAX,
        groups_max: int = GROUPS_MAX,
        events: Events | None = None,
    ) -> None:
        self._events = events
        self._table = table
        self._topics = topics
        self._scheduler = scheduler
        self._report = report
        self._timeout_us = session_timeout_us
        self._members_max = members_max
        self._groups_max = groups_max
        self._groups: dict[str, dict[str, Group]] = {}  # topic, group
        self._named: dict[str, dict[str, None]] = {}  # group, topics
        self._count = 0
        self._of: dict[object, dict[Group, None]] = {}  # where a connection is a member, a subscriber or fenced
        self._heard: dict[Slot, None] = {}  # the one silent for longest first
        self._unsettled: dict[Group, None] = {}
        self.rebalances = 0
        self.commits = 0
        self.fenced = 0
        self.expired = 0

    def __len__(self) -> int:
        return self._count

    @property
    def partition(self) -> Partition:
        """The topic `__groups`, to be read."""
        return self._table.partition

    # -- starting --------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Take up owners and offsets; call after Topics.load. What a topic no longer has is not committed: offsets past
        its end are brought back to it, and those of a topic that was in memory, or is another one now, to 0."""
        rows = list(self._table)
        for row in rows:
            if row.partition == GROUP_ROW:
                self._insert(Group(row.topic, row.group, row.owner, row.generation))
        for row in rows:
            if row.partition != GROUP_ROW:
                group = self._find(row.topic, row.group)
                if group is None:  # its row was in a damaged range: nobody owns it, an administrator may
                    group = Group(row.topic, row.group, "", 0)
                    self._insert(group)
                group.places[row.partition] = Place(row.offset, row.version)
                self._clamp(group, row)

    def _clamp(self, group: Group, row: GroupRow) -> None:
        topic = self._topics.get(row.topic.encode())
        end = 0
        if topic is not None and topic.spec.id == row.topic_id and row.partition < len(topic.partitions):
            end = topic.partitions[row.partition].visible
        if row.offset <= end:
            return
        kept = topic is not None and topic.spec.id == row.topic_id and topic.spec.durability == "fsync"
        self._report(  # of what is always synced first nothing can be missing: it was lost, or the folder is an older one
            "group_beyond_end" if kept else "group_offset_clamped",
            {"topic": row.topic, "group": row.group, "partition": row.partition, "from": row.offset, "to": end},
        )
        place = group.places[row.partition]
        place.offset = end
        place.durable = (end, row.version)
        try:  # kept, or the next start would take the old offset for one of the records written since
            self._table.put(offset_key(group, row.partition), msgspec.structs.replace(row, offset=end))
        except StorageError as error:
            self._report("group_not_saved", {"topic": row.topic, "group": row.group, "error": str(error)})

    # -- subscribing -----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        mode: str,
        member: object,
        member_name: str,
        done: Answer,
    ) -> None:
        """Partition >= 0: a plain subscription, the answer is where to start. Partition -1: join the group, or be heard
        of again. done(Assignment, None); the group is made, durably, if it does not exist."""
        check_mode(mode)
        if partition != ASSIGN:
            topic.partition(partition)
        if len(member_name.encode(errors="replace")) > MEMBER_NAME_BYTES_MAX:
            raise BadName(f"the name of a group's member has at most {MEMBER_NAME_BYTES_MAX} bytes")
        found = self._admit(actor, privileged, topic.name, group) or self._make(actor, topic.name, group)
        if partition == ASSIGN:
            call = partial(self._join, found, actor, topic, mode, member, member_name, done)
        else:
            call = partial(self._attend, found, topic, partition, mode, member, done)
        if found.waiting is not None:  # its connection may close before the group is made
            self._of.setdefault(member, {})[found] = None
            call = partial(self._unless_left, found, member, call)
        found.when_made(call, done)

    def _unless_left(self, group: Group, member: object, call: Callable[[], None]) -> None:
        if group not in self._of.get(member, ()):
            raise Fenced(f"this connection left before group {group.name} was made")
        call()

    def _attend(self, group: Group, topic: Topic, partition: int, mode: str, member: object, done: Answer) -> None:
        if member not in group.plain:
            self._room(group)
            group.plain[member] = None
            self._of.setdefault(member, {})[group] = None
        offset = group.start(topic, partition, mode)
        self._scheduler.soon(partial(done, Assignment(0, (), offset), None))

    def _join(
        self,
        group: Group,
        actor: str,
        topic: Topic,
        mode: str,
        member: object,
        member_name: str,
        done: Answer,
    ) -> None:
        slot = group.by_member.get(member)
        if slot is None:
            slot = self._enter(group, actor, member, member_name)
        elif slot.name != member_name:
            raise BadRequest(
                f"this connection is already in group {group.name} as {slot.name or 'a dynamic member'!r}",
                hint="use one connection for each member, or always the same member name",
            )
        self._hear(slot)
        if group.topic is not topic or group.count != len(topic.partitions):
            group.topic = topic
            group.changed = True
        group.joins.append((slot, member, mode, done))
        self._unsettle(group)

    def _enter(self, group: Group, actor: str, member: object, name: str) -> Slot:
        slot = group.by_name.get(name) if name else None
        if member in group.fenced:
            self.fenced += 1
            raise group.taken(group.fenced[member])
        if slot is None:
            self._room(group)
            slot = group.enter(name, actor, member)
        elif slot.actor != actor:
            raise Forbidden(f"static member {name!r} of group {group.name} belongs to another principal")
        else:
            group.take_over(slot, member)
        self._of.setdefault(member, {})[group] = None
        return slot

    def _room(self, group: Group) -> None:
        if len(group.slots) + len(group.plain) >= self._members_max:
            raise LimitExceeded(f"group {group.name} has {self._members_max} members, which is the limit (MEMBERS_MAX)")

    def _hear(self, slot: Slot) -> None:
        slot.heard = self._scheduler.monotonic()
        self._heard.pop(slot, None)
        self._heard[slot] = None

    # -- leaving ---------------------------------------------------------------------------------------------------

    def leave(self, member: object) -> None:
        """Its connection closed. A dynamic member is gone; a static one keeps its place until the session timeout."""
        for group in self._of.pop(member, ()):
            group.plain.pop(member, None)
            group.fenced.pop(member, None)
            slot = group.by_member.get(member)
            if slot is not None and slot.name:
                del group.by_member[member]
                slot.member = None
            elif slot is not None:
                self._remove(slot)

    def tick(self, monotonic: int) -> None:
        """Remove members that were silent for too long."""
        while self._heard:
            slot = next(iter(self._heard))
            if monotonic - slot.heard < self._timeout_us:
                return
            group = slot.group
            self.expired += 1
            self._report(
                "group_member_expired",
                {"topic": group.topic_name, "group": group.name, "member": slot.name or f"member-{slot.serial}"},
            )
            if slot.member is not None and slot.member not in group.plain:
                del self._of[slot.member][group]
            self._remove(slot)

    def _remove(self, slot: Slot) -> None:
        del self._heard[slot]
        slot.group.remove(slot)
        self._unsettle(slot.group)

    # -- assigning: once per turn, however many came and went ------------------------------------------------------

    def _unsettle(self, group: Group) -> None:
        if not self._unsettled:
            self._scheduler.soon(self._settle)
        self._unsettled[group] = None

    def _settle(self) -> None:
        unsettled, self._unsettled = self._unsettled, {}
        for group in unsettled:
            if group.changed:
                group.rebalance()
                self.rebalances += 1
            if group.generation <= group.reserved:
                group.tell(None)
            elif not group.extending:
                self._extend(group)

    def _extend(self, group: Group) -> None:
        """The next generations are reserved on disk before one of them is told to anybody."""
        reserved = group.generation + GENERATIONS_RESERVED
        group.extending = True
        try:
            self._table.put(group.key, group_row(group, reserved), partial(self._extended, group, reserved))
        except QuintetError as error:
            self._extended(group, group.reserved, error)

    def _extended(self, group: Group, reserved: int, error: Exception | None) -> None:
        group.extending = False
        if error is None:
            group.reserved = reserved
        group.tell(error)

    # -- committing ------------------------------------------------------------------------------------------------

    def commit(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        offset: int,
        generation: int | None,
        member: object,
        done: Answer,
        door: str = "flymq",
    ) -> None:
        """done(None, None) when the offset is durable. Makes the group if it does not exist."""
        found = self._admit_commit(actor, privileged, topic, group, partition, offset, generation)
        call = partial(self._commit, found, topic, partition, offset, generation, member, done, (door, actor))
        found.when_made(call, done)

    def _commit(
        self,
        group: Group,
        topic: Topic,
        partition: int,
        offset: int,
        generation: int | None,
        member: object,
        done: Answer,
        by: tuple[str, str],
    ) -> None:
        self._fence(group, partition, generation, member)
        self._put(group, topic, partition, offset, self._version(group, partition), lambda error: done(None, error), by)
        self.commits += 1

    def _admit_commit(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        offset: int,
        generation: int | None,
    ) -> Group:
        found = self._admit(actor, privileged, topic.name, group)
        check_offset(topic, partition, offset)
        if found is not None:
            return found
        if generation is not None:
            self.fenced += 1
            raise Fenced(
                f"generation {generation} of group {group} is over: there is no such group now, subscribe again"
            )
        return self._make(actor, topic.name, group)

    def _fence(self, group: Group, partition: int, generation: int | None, member: object) -> None:
        try:
            slot = group.fence(partition, generation, member)
        except Fenced:
            self.fenced += 1
            raise
        if slot is not None:
            self._hear(slot)

    def _version(self, group: Group, partition: int) -> int:
        """Higher than any given out before for this partition, also by a group of this name that was deleted."""
        place = group.places.setdefault(partition, Place())
        place.issued = max(place.issued + 1, self._scheduler.now())
        return place.issued

    def _put(
        self, group: Group, topic: Topic, partition: int, offset: int, version: int, done: Done,
        by: tuple[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Readers see it at once, as they do their own writes; if the disk refuses it, what was durable is back. `by`: (door,
        principal) who says that all before it is done; that is in the audit before the offset is in the table."""
        place = group.places.setdefault(partition, Place())
        row = GroupRow(group.topic_name, group.name, partition, topic_id=topic.spec.id, offset=offset, version=version)
        before, place.offset, place.version = place.offset, offset, version
        place.issued = max(place.issued, version)
        store = partial(self._store, group, row, partial(stored, place, offset, version, done))
        if self._events is None:
            store()
            return
        if by is not None:
            first = max(before, topic.partition(partition).start)
            self._events.acked(*by, topic.name, partition, first, offset, group.name)
        self._events.after(store)

    def _store(self, group: Group, row: GroupRow, done: Done) -> None:
        try:
            if self._find(group.topic_name, group.name) is not group:
                raise unknown(group.topic_name, group.name)
            self._table.put(offset_key(group, row.partition), row, done)
        except QuintetError as error:
            self._scheduler.soon(partial(done, error))

    # -- committing within a transaction ---------------------------------------------------------------------------

    def prepare_commit(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        offset: int,
        generation: int | None,
        member: object,
    ) -> CommitPayload:
        """The same checks as `commit`; the effect for `apply_commit`. Nothing is committed yet."""
        found = self._admit_commit(actor, privileged, topic, group, partition, offset, generation)
        self._fence(found, partition, generation, member)
        version = self._version(found, partition)
        return CommitPayload(topic.name, topic.spec.id, group, found.owner, partition, offset, version)

    def check_commit(
        self, topic: str, group: str, partition: int, generation: int | None, member: object
    ) -> Callable[[], None]:
        """What was prepared is about to be committed: Fenced if somebody else has read the partition since. Until the
        answer is called nobody is told where to begin: a successor would do the same work again."""
        found = self._find(topic, group)
        if found is None and generation is not None:
            raise Fenced(f"generation {generation} of group {group} is over: there is no such group now")
        if found is None:
            return lambda: None
        self._fence(found, partition, generation, member)
        found.committing += 1
        return partial(self._commit_over, found)

    def _commit_over(self, group: Group) -> None:
        group.committing -= 1
        if group.joins:
            self._unsettle(group)

    def apply_commit(self, wanted: CommitPayload, done: Done) -> None:
        """Commit what was prepared, unless something newer is committed; any number of times, also after a crash, and
        whoever owns the partition now: the transaction it belongs to is committed. done(None) when that is durable."""
        topic = self._topics.get(wanted.topic.encode())
        if topic is None or topic.spec.id != wanted.topic_id:
            self._scheduler.soon(partial(done, None))
            return
        group = self._find(wanted.topic, wanted.group) or self._make(wanted.owner, wanted.topic, wanted.group)
        group.when_made(partial(self._apply, group, topic, wanted, done), lambda _, error: done(error))

    def _apply(self, group: Group, topic: Topic, wanted: CommitPayload, done: Done) -> None:
        place = group.places.setdefault(wanted.partition, Place())
        if place.durable[1] >= wanted.version:
            self._scheduler.soon(partial(done, None))
        elif place.version >= wanted.version:  # newer, but not yet durable: say it once more, and wait for that
            self._put(group, topic, wanted.partition, place.offset, place.version, done)
        else:
            offset = min(wanted.offset, topic.partition(wanted.partition).visible)
            self._put(group, topic, wanted.partition, offset, wanted.version, done, ("flymq", wanted.owner))

    # -- looking ---------------------------------------------------------------------------------------------------

    def get_offset(self, actor: str, privileged: bool, topic: Topic, group: str, partition: int) -> int:
        """The committed offset; 0 where nothing is committed."""
        found = self._require(actor, privileged, topic.name, group)
        topic.partition(partition)
        return found.committed(partition) or 0

    def list(self, actor: str, privileged: bool, allowed: Callable[[str], bool] | None = None) -> list[GroupInfo]:
        """As walk, all at once."""
        return [info for info in self.walk(actor, privileged, allowed) if info is not None]

    def walk(
        self, actor: str, privileged: bool, allowed: Callable[[str], bool] | None = None
    ) -> Iterator[GroupInfo | None]:
        """The groups this caller may see, by topic and name: its own, all if privileged, and those whose name is `allowed`.
        None is a pause: there may be thousands."""
        for topic in in_order(list(self._groups), str):
            yield None
            for name in in_order(list(self._groups.get(topic or "", ())), str):
                group = self._groups.get(topic or "", {}).get(name or "")
                shown = group is not None and (
                    privileged or group.owner == actor or (allowed is not None and allowed(group.name))
                )
                yield group.info() if shown and group is not None else None

    def of_topic(self, topic: str) -> tuple[str, ...]:
        """The names of the groups that read this topic."""
        return tuple(self._groups.get(topic, ()))

    def topics_of(self, group: str) -> tuple[str, ...]:
        """The topics that have a group of this name."""
        return tuple(self._named.get(group, ()))

    def topic_of(self, actor: str, topic: str, group: str) -> str:
        """This topic; if none is named, the first that has a group of this name, those of the caller before others."""
        names = (topic,) if topic else self.topics_of(group) or ("",)
        own = [name for name in names if (found := self._find(name, group)) is not None and found.owner == actor]
        return (own or names)[0]

    def describe(self, actor: str, privileged: bool, topic: str, group: str) -> GroupInfo:
        return self._require(actor, privileged, self.topic_of(actor, topic, group), group).info()

    def lag(self, actor: str, privileged: bool, topic: Topic, group: str, partition: int, done: Answer) -> None:
        """done(Lag, None)"""
        found = self._require(actor, privileged, topic.name, group)
        log = topic.partition(partition)
        committed, latest = found.committed(partition) or 0, log.visible

        def told(record: tuple[int, int] | None, error: Exception | None) -> None:
            waiting = max(latest - max(committed, log.start), 0)
            age = 0 if record is None or not waiting else max(self._scheduler.now() - record[1], 0) // 1000
            result = None if error is not None else Lag(committed, latest, waiting, age)
            self._scheduler.soon(partial(done, result, error))

        start(seek(log, committed, EVER)).then(told)

    # -- moving ----------------------------------------------------------------------------------------------------

    def reset(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        mode: str,
        value: int,
        done: Answer,
    ) -> None:
        """Set a group's offset by hand; done(offset, None) when it is durable. Mode earliest, latest, offset (`value`) or
        timestamp (`value` in milliseconds). Only of a group without members: they would go on where they are."""
        found = self._require(actor, privileged, topic.name, group)
        log = topic.partition(partition)
        if mode == "timestamp":
            self.seek_to_timestamp(actor, privileged, topic, group, partition, value, done)
            return
        if mode == "offset":
            check_offset(topic, partition, value)
        elif mode not in ("earliest", "latest"):
            raise BadRequest(f"unknown mode {mode!r} of a reset", hint="use earliest, latest, offset or timestamp")
        offset = {"earliest": log.start, "latest": log.visible}.get(mode, value)
        found.when_made(partial(self._move, found, topic, partition, offset, done), done)

    def seek_to_timestamp(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        timestamp_ms: int,
        done: Answer,
    ) -> None:
        """Commit the offset of the first record that is not older than this (the end if there is none); done(offset,
        None) when it is durable. Only of a group without members."""
        found = self._require(actor, privileged, topic.name, group)
        log = topic.partition(partition)
        check_still(found)
        latest = log.visible

        def told(record: tuple[int, int] | None, error: Exception | None) -> None:
            if error is None:
                try:
                    if self._find(topic.name, group) is not found:
                        raise unknown(topic.name, group)
                    move = partial(self._move, found, topic, partition, latest if record is None else record[0], done)
                    found.when_made(move, done)
                except QuintetError as refused:
                    error = refused
            if error is not None:
                self._scheduler.soon(partial(done, None, error))

        start(seek(log, 0, min(max(timestamp_ms * 1000, EVER), (1 << 63) - 1))).then(told)

    def _move(self, group: Group, topic: Topic, partition: int, offset: int, done: Answer) -> None:
        check_still(group)
        version = self._version(group, partition)
        self._put(group, topic, partition, offset, version, lambda error: done(None if error else offset, error))

    # -- removing --------------------------------------------------------------------------------------------------

    def delete(self, actor: str, privileged: bool, topic: str, group: str, done: Answer) -> None:
        """done(None, None) when it would stay gone after a restart. Refused while it has members."""
        found = self._require(actor, privileged, topic, group)
        found.when_made(partial(self._delete, found, done), done)

    def _delete(self, group: Group, done: Answer) -> None:
        check_still(group)
        self._erase([group], partial(self._deleted, group, done))

    def _deleted(self, group: Group, done: Answer, error: Exception | None) -> None:
        if error is not None and self._find(group.topic_name, group.name) is None:
            self._insert(group)  # the disk refused: it is still there, and should be here
        done(None, error)

    def forget_topic(self, name: str, done: Done | None = None) -> None:
        """Its topic was deleted: so are all its groups; done(error) when they would stay gone after a restart."""
        groups = list(self._groups.get(name, {}).values())
        if groups:
            self._erase(groups, done or (lambda _error: None))
        elif done is not None:
            self._scheduler.soon(partial(done, None))

    def _erase(self, groups: Sequence[Group], done: Done) -> None:
        """The offsets of each first and its owner last: what a crash leaves of it is never without an owner."""
        keys = []
        for group in groups:
            keys += [offset_key(group, partition) for partition, place in group.places.items() if place.issued]
            keys.append(group.key)
        self._table.delete_many(keys, done)
        for group in groups:
            self._take_out(group)
            self._unsettled.pop(group, None)
            group.tell(unknown(group.topic_name, group.name))
            for member in {*group.by_member, *group.plain, *group.fenced}:
                self._of[member].pop(group)
            for slot in list(group.slots):
                del self._heard[slot]
                group.remove(slot)

    # -- finding and making ----------------------------------------------------------------------------------------

    def _find(self, topic: str, group: str) -> Group | None:
        groups = self._groups.get(topic)
        return None if groups is None else groups.get(group)

    def _admit(self, actor: str, privileged: bool, topic: str, group: str) -> Group | None:
        found = self._find(topic, group)
        if found is None:
            check_name(group)
        elif found.owner != actor and not privileged:
            raise Forbidden(
                f"consumer group {topic}:{group} belongs to another principal than {actor}",
                hint=f"use a group of your own; or an administrator may set an ACL on group:{group}",
            )
        return found

    def _require(self, actor: str, privileged: bool, topic: str, group: str) -> Group:
        found = self._admit(actor, privileged, topic, group)
        if found is None:
            raise unknown(topic, group)
        return found

    def _make(self, actor: str, topic: str, name: str) -> Group:
        """A new group, whose verbs wait until its row is durable."""
        if self._count >= self._groups_max:
            raise LimitExceeded(
                f"group {topic}:{name} was not made: there are {self._count} groups, which is the limit (GROUPS_MAX)",
                hint="delete groups that nobody uses",
            )
        group = Group(topic, name, actor, 0)
        self._table.put(group.key, group_row(group, GENERATIONS_RESERVED), partial(self._made, group))
        group.waiting = []
        self._insert(group)
        return group

    def _made(self, group: Group, error: Exception | None) -> None:
        waiting, group.waiting = group.waiting or [], None
        if error is None:
            group.reserved = GENERATIONS_RESERVED
        elif self._find(group.topic_name, group.name) is group:
            self._take_out(group)
        for call, done in waiting:
            refusal = error
            if refusal is None:
                try:
                    if self._find(group.topic_name, group.name) is not group:
                        raise unknown(group.topic_name, group.name)
                    call()
                except QuintetError as refused:
                    refusal = refused
            if refusal is not None:
                done(None, refusal)

    def _insert(self, group: Group) -> None:
        self._groups.setdefault(group.topic_name, {})[group.name] = group
        self._named.setdefault(group.name, {})[group.topic_name] = None
        self._count += 1

    def _take_out(self, group: Group) -> None:
        groups, topics = self._groups[group.topic_name], self._named[group.name]
        del groups[group.name], topics[group.topic_name]
        if not groups:
            del self._groups[group.topic_name]
        if not topics:
            del self._named[group.name]
        self._count -= 1
