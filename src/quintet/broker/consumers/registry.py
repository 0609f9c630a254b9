"""Finds, makes, lists and loads consumer groups, and says who may use them.

A group belongs to the principal that used it first; `privileged` callers may act for the owner. Its row is durable before
any verb goes on that made it (`when_made`). Members and assignment are in coordinator.py, offsets in committed_offsets.py.
"""

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from quintet.broker.consumers.group import (
    GROUP_ROW,
    CommittedOffset,
    Event,
    Group,
    GroupInfo,
    GroupRow,
    Phase,
    check_name,
    group_row,
    offset_key,
    unknown,
)
from quintet.broker.slices import in_order
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topics
from quintet.log.base import Partition
from quintet.model.errors import Forbidden, LimitExceeded, StorageError
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise, start_alone

GROUPS_MAX: Final = 100_000
GENERATIONS_RESERVED: Final = 100  # given out per write of the group's row: a restart skips at most so many

Report = Callable[[str, dict[str, object]], None]


class OtherOwner(Forbidden):
    """A group, or a static member of one, belongs to another principal. Its text says to whom."""


class GroupRegistry:
    """All consumer groups by topic and name. `load` once at start."""

    def __init__(
        self, table: Table[GroupRow], topics: Topics, scheduler: Scheduler, report: Report, groups_max: int
    ) -> None:
        self._table = table
        self._topics = topics
        self._scheduler = scheduler
        self._report = report
        self._groups_max = groups_max
        self._groups: dict[str, dict[str, Group]] = {}  # topic, group
        self._named: dict[str, dict[str, None]] = {}  # group, topics
        self._count = 0

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
                group = self.find(row.topic, row.group)
                if group is None:  # its row was in a damaged range: nobody owns it, an administrator may
                    group = Group(row.topic, row.group, "")
                    self._insert(group)
                group.offsets[row.partition] = CommittedOffset(row.offset, row.version)
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
        group.offsets[row.partition] = CommittedOffset(end, row.version)
        try:  # kept, or the next start would take the old offset for one of the records written since
            self._table.put(offset_key(group, row.partition), msgspec.structs.replace(row, offset=end))
        except StorageError as error:
            self._report("group_not_saved", {"topic": row.topic, "group": row.group, "error": str(error)})

    # -- listing ---------------------------------------------------------------------------------------------------

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
        own = [name for name in names if (found := self.find(name, group)) is not None and found.owner == actor]
        return (own or names)[0]

    def describe(self, actor: str, privileged: bool, topic: str, group: str) -> GroupInfo:
        return self.require(actor, privileged, self.topic_of(actor, topic, group), group).info()

    # -- finding and making ----------------------------------------------------------------------------------------

    def find(self, topic: str, group: str) -> Group | None:
        groups = self._groups.get(topic)
        return None if groups is None else groups.get(group)

    def exists(self, group: Group) -> bool:
        """Is it still this one, and not deleted?"""
        return self.find(group.topic_name, group.name) is group

    def admit(self, actor: str, privileged: bool, topic: str, group: str) -> Group | None:
        """The group, if this caller may use it; None if there is none."""
        found = self.find(topic, group)
        if found is None:
            check_name(group)
        elif found.owner != actor and not privileged:
            raise OtherOwner(
                f"consumer group {topic}:{group} belongs to {found.owner}, not to {actor}",
                hint=f"use a group of your own; or an administrator may set an ACL on group:{group}",
            )
        return found

    def require(self, actor: str, privileged: bool, topic: str, group: str) -> Group:
        found = self.admit(actor, privileged, topic, group)
        if found is None:
            raise unknown(topic, group)
        return found

    def make(self, actor: str, topic: str, name: str) -> Group:
        """A new group, whose verbs wait until its row is durable. Raises what the disk refuses at once."""
        if self._count >= self._groups_max:
            raise LimitExceeded(
                f"group {topic}:{name} was not made: there are {self._count} groups, which is the limit (GROUPS_MAX)",
                hint="delete groups that nobody uses",
            )
        group = Group(topic, name, actor, phase=Phase.MAKING)
        durable = self._table.put(group.key, group_row(group, GENERATIONS_RESERVED))
        self._insert(group)
        start_alone(self._scheduler, self._finish_making(group, durable))
        return group

    async def _finish_making(self, group: Group, durable: Promise[None]) -> None:
        try:
            await durable
        except Exception as error:
            if self.exists(group):
                self._take_out(group)
            group.made.fail(error)
        else:
            group.reserved = GENERATIONS_RESERVED
            group.move(Event.ROW_DURABLE)
            group.made.resolve(None)

    async def when_made(self, group: Group) -> None:
        """Go on when its row is durable. Raises why it is not, or GroupNotFound if it was deleted meanwhile."""
        if group.phase is Phase.MAKING:
            await group.made
            self.check_exists(group)

    def check_exists(self, group: Group) -> None:
        if not self.exists(group):
            raise unknown(group.topic_name, group.name)

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
