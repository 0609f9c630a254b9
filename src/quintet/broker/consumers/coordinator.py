"""Coordinates consumer groups: admits members, assigns partitions, removes members that are silent, deletes groups.

A group is one name on one topic and belongs to the principal that used it first; `privileged` callers (an administrator,
or whoever an ACL on `group:NAME` lists; the door knows) may act for the owner. Committed offsets (committed_offsets.py) and
owners (registry.py) live in `__groups`; members do not outlive the broker, generations never repeat even so.

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

The first table is what clients see. What the broker does in each phase of a group is `group.py::MOVES`; `_advance` looks it
up. Nothing here knows a wire format.
"""

from collections.abc import Sequence
from typing import Final

from quintet.broker.audit.delivery_events import Events
from quintet.broker.consumers.committed_offsets import CommittedOffsets
from quintet.broker.consumers.group import (
    Action,
    Assignment,
    Event,
    Group,
    GroupRow,
    Member,
    Phase,
    check_mode,
    check_still,
    group_row,
    offset_key,
    unknown,
)
from quintet.broker.consumers.registry import GENERATIONS_RESERVED, GROUPS_MAX, GroupRegistry, OtherOwner, Report
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.model.errors import BadName, BadRequest, Fenced, LimitExceeded
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, completed, start_alone

SESSION_TIMEOUT_US: Final = 10_000_000
MEMBERS_MAX: Final = 10_000  # of one group, plain subscribers included
MEMBER_NAME_BYTES_MAX: Final = 255
ASSIGN: Final = -1  # the partition of a SUBSCRIBE that asks for an assignment


class Groups(GroupRegistry):
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
        super().__init__(table, topics, scheduler, report, groups_max)
        self.offsets = CommittedOffsets(self, table, topics, scheduler, events, self._mark_alive, self._released)
        self._timeout_us = session_timeout_us
        self._members_max = members_max
        self._groups_of_member: dict[object, dict[Group, None]] = {}  # by connection: a member, a subscriber or fenced
        self._by_last_heartbeat: dict[Member, None] = {}  # the one silent for longest first
        self._due: dict[Group, None] = {}  # at the end of this turn
        self.rebalances = 0
        self.expired = 0

    # -- subscribing -----------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        mode: str,
        connection: object,
        member_name: str,
    ) -> Assignment:
        """Partition >= 0: a plain subscription, the answer is where to start. Partition -1: join the group, or be heard
        of again. The group is made, durably, if it does not exist."""
        check_mode(mode)
        if partition != ASSIGN:
            topic.partition(partition)
        if len(member_name.encode(errors="replace")) > MEMBER_NAME_BYTES_MAX:
            raise BadName(f"the name of a group's member has at most {MEMBER_NAME_BYTES_MAX} bytes")
        found = self.admit(actor, privileged, topic.name, group) or self.make(actor, topic.name, group)
        if found.phase is Phase.MAKING:  # its connection may close before the group is made
            self._groups_of_member.setdefault(connection, {})[found] = None
            await self.when_made(found)
            if found not in self._groups_of_member.get(connection, ()):
                raise Fenced(f"this connection left before group {found.name} was made")
        if partition == ASSIGN:
            return await self._join(found, actor, topic, mode, connection, member_name)
        return self._subscribe_plain(found, topic, partition, mode, connection)

    def _subscribe_plain(self, group: Group, topic: Topic, partition: int, mode: str, connection: object) -> Assignment:
        if connection not in group.plain:
            self._check_room(group)
            group.plain[connection] = None
            self._groups_of_member.setdefault(connection, {})[group] = None
        return Assignment(0, (), group.start(topic, partition, mode))

    def _join(
        self, group: Group, actor: str, topic: Topic, mode: str, connection: object, name: str
    ) -> Promise[Assignment]:
        member = group.by_connection.get(connection)
        if member is None:
            member = self._enter(group, actor, connection, name)
        elif member.name != name:
            raise BadRequest(
                f"this connection is already in group {group.name} as {member.name or 'a dynamic member'!r}",
                hint="use one connection for each member, or always the same member name",
            )
        self._mark_alive(member)
        if group.topic is not topic or group.count != len(topic.partitions):
            group.topic = topic
            group.move(Event.CHANGE)
        answer: Promise[Assignment] = Promise()
        group.joins.append((member, connection, mode, answer))
        self._rebalance_soon(group)
        return answer

    def _enter(self, group: Group, actor: str, connection: object, name: str) -> Member:
        member = group.by_name.get(name) if name else None
        if connection in group.fenced:
            self.offsets.fenced += 1
            raise group.taken(group.fenced[connection])
        if member is None:
            self._check_room(group)
            member = group.enter(name, actor, connection)
        elif member.actor != actor:
            raise OtherOwner(f"static member {name!r} of group {group.name} belongs to {member.actor}, not to {actor}")
        else:
            group.take_over(member, connection)
        self._groups_of_member.setdefault(connection, {})[group] = None
        return member

    def _check_room(self, group: Group) -> None:
        if len(group.members) + len(group.plain) >= self._members_max:
            raise LimitExceeded(f"group {group.name} has {self._members_max} members, which is the limit (MEMBERS_MAX)")

    def _mark_alive(self, member: Member) -> None:
        member.heartbeat = self._scheduler.monotonic()
        self._by_last_heartbeat.pop(member, None)
        self._by_last_heartbeat[member] = None

    # -- leaving ---------------------------------------------------------------------------------------------------

    def leave(self, connection: object) -> None:
        """It closed. A dynamic member is gone; a static one keeps its place until the session timeout."""
        for group in self._groups_of_member.pop(connection, ()):
            group.plain.pop(connection, None)
            group.fenced.pop(connection, None)
            member = group.by_connection.get(connection)
            if member is not None and member.name:
                del group.by_connection[connection]
                member.connection = None
            elif member is not None:
                self._remove(member)

    def tick(self, monotonic: int) -> None:
        """Remove members that were silent for too long."""
        while self._by_last_heartbeat:
            member = next(iter(self._by_last_heartbeat))
            if monotonic - member.heartbeat < self._timeout_us:
                return
            group = member.group
            self.expired += 1
            self._report(
                "group_member_expired", {"topic": group.topic_name, "group": group.name, "member": member.label}
            )
            if member.connection is not None and member.connection not in group.plain:
                del self._groups_of_member[member.connection][group]
            self._remove(member)

    def _remove(self, member: Member) -> None:
        del self._by_last_heartbeat[member]
        member.group.remove(member)
        self._rebalance_soon(member.group)

    # -- assigning: once per turn, however many came and went ------------------------------------------------------

    def _rebalance_soon(self, group: Group) -> None:
        if not self._due:
            self._scheduler.soon(self._rebalance_changed)
        self._due[group] = None

    def _released(self, group: Group) -> None:
        """A transaction with offsets of this group is on the disk."""
        if group.joins:
            self._rebalance_soon(group)

    def _rebalance_changed(self) -> None:
        due, self._due = self._due, {}
        for group in due:
            self._advance(group, Event.TURN_END)

    def _advance(self, group: Group, event: Event, error: Exception | None = None) -> None:
        """Do what `MOVES` says."""
        action = group.move(event)
        if action is Action.ASSIGN:
            group.rebalance()
            self.rebalances += 1
        if action in (Action.ASSIGN, Action.CHECK) and self.exists(group):
            reserved = group.generation <= group.reserved
            self._advance(group, Event.GENERATION_RESERVED if reserved else Event.GENERATION_UNRESERVED)
        elif action is Action.RESERVE:
            start_alone(self._scheduler, self._reserve(group))
        elif action is Action.TELL:
            group.tell(error)

    async def _reserve(self, group: Group) -> None:
        """The next generations are reserved on disk before one of them is told to anybody."""
        reserved = group.generation + GENERATIONS_RESERVED
        try:
            await self._table.put(group.key, group_row(group, reserved))
        except Exception as error:
            self._advance(group, Event.ROW_REFUSED, error)
        else:
            group.reserved = reserved
            self._advance(group, Event.ROW_DURABLE)

    # -- removing --------------------------------------------------------------------------------------------------

    async def delete(self, actor: str, privileged: bool, topic: str, group: str) -> None:
        """Returns when it would stay gone after a restart. Refused while it has members."""
        found = self.require(actor, privileged, topic, group)
        await self.when_made(found)
        check_still(found)
        try:
            await self._erase([found])
        except Exception:
            if self.find(topic, group) is None:
                self._insert(found)  # the disk refused: it is still there, and should be here
            raise

    def forget_topic(self, name: str) -> Promise[None]:
        """Its topic was deleted: so are all its groups; completed when they would stay gone after a restart. Raises what the
        disk refuses at once."""
        groups = list(self._groups.get(name, {}).values())
        return self._erase(groups) if groups else completed(None)

    def _erase(self, groups: Sequence[Group]) -> Promise[None]:
        """The offsets of each first and its owner last: what a crash leaves of it is never without an owner."""
        keys = []
        for group in groups:
            keys += [offset_key(group, partition) for partition, found in group.offsets.items() if found.issued]
            keys.append(group.key)
        erased: Promise[None] = Promise()
        self._table.delete_many(keys, erased.finished)
        for group in groups:
            self._take_out(group)
            self._due.pop(group, None)
            group.tell(unknown(group.topic_name, group.name))
            for connection in {*group.by_connection, *group.plain, *group.fenced}:
                self._groups_of_member[connection].pop(group)
            for member in list(group.members):
                del self._by_last_heartbeat[member]
                group.remove(member)
        return erased
