"""Commits, prepares, moves and reads the committed offsets of consumer groups.

A commit is checked against the group's members and generation (`Group.fence`), then stored in `__groups`; what was acknowledged
by it is in the audit before (broker/audit/delivery_events.py). Readers see an offset at once, as they do their own writes;
if the disk refuses it, what was durable is back. Offsets are moved by hand only while a group has no members.
"""

from collections.abc import Callable

from quintet.broker.audit.delivery_events import Events
from quintet.broker.consumers.group import (
    CommitPayload,
    CommittedOffset,
    Group,
    GroupRow,
    Lag,
    Member,
    check_offset,
    check_still,
    offset_key,
)
from quintet.broker.consumers.registry import GroupRegistry
from quintet.broker.table import Table
from quintet.broker.topics.catalog import Topic, Topics
from quintet.broker.topics.seek import EVER, seek
from quintet.model.errors import BadRequest, Fenced
from quintet.model.scheduler import Scheduler


class CommittedOffsets:
    """The offsets of all groups. `alive` is told of a member that commits, `released` of a group none of whose
    transactions is on its way to the disk any more."""

    def __init__(
        self,
        groups: GroupRegistry,
        table: Table[GroupRow],
        topics: Topics,
        scheduler: Scheduler,
        events: Events | None,
        alive: Callable[[Member], None],
        released: Callable[[Group], None],
    ) -> None:
        self._groups = groups
        self._table = table
        self._topics = topics
        self._scheduler = scheduler
        self._events = events
        self._alive = alive
        self._released = released
        self.commits = 0
        self.fenced = 0

    # -- committing ------------------------------------------------------------------------------------------------

    async def commit(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        offset: int,
        generation: int | None,
        connection: object,
        *,
        door: str,
    ) -> None:
        """Returns when the offset is durable. Makes the group if it does not exist."""
        found = self._admit(actor, privileged, topic, group, partition, offset, generation)
        await self._groups.when_made(found)
        self._fence(found, partition, generation, connection)
        self.commits += 1
        await self._put(found, topic, partition, offset, self._version(found, partition), (door, actor))

    def _admit(
        self,
        actor: str,
        privileged: bool,
        topic: Topic,
        group: str,
        partition: int,
        offset: int,
        generation: int | None,
    ) -> Group:
        found = self._groups.admit(actor, privileged, topic.name, group)
        check_offset(topic, partition, offset)
        if found is not None:
            return found
        if generation is not None:
            self.fenced += 1
            raise Fenced(
                f"generation {generation} of group {group} is over: there is no such group now, subscribe again"
            )
        return self._groups.make(actor, topic.name, group)

    def _fence(self, group: Group, partition: int, generation: int | None, connection: object) -> None:
        try:
            member = group.fence(partition, generation, connection)
        except Fenced:
            self.fenced += 1
            raise
        if member is not None:
            self._alive(member)

    def _version(self, group: Group, partition: int) -> int:
        """Higher than any given out before for this partition, also by a group of this name that was deleted."""
        found = group.offsets.setdefault(partition, CommittedOffset())
        found.issued = max(found.issued + 1, self._scheduler.now())
        return found.issued

    async def _put(
        self, group: Group, topic: Topic, partition: int, offset: int, version: int, by: tuple[str, str] | None = None
    ) -> None:
        """Returns when it is durable. `by`: (door, principal) who says that all before it is done; that is in the audit
        before the offset is in the table."""
        found = group.offsets.setdefault(partition, CommittedOffset())
        row = GroupRow(group.topic_name, group.name, partition, topic_id=topic.spec.id, offset=offset, version=version)
        before, found.offset, found.version = found.offset, offset, version
        found.issued = max(found.issued, version)
        try:
            if self._events is not None:
                if by is not None:
                    first = max(before, topic.partition(partition).start)
                    self._events.acked(*by, topic.name, partition, first, offset, group.name)
                await self._events.written()
            self._groups.check_exists(group)
            await self._table.put(offset_key(group, partition), row)
        except Exception:
            if found.version == version:
                found.offset, found.version = found.durable
            raise
        if version >= found.durable[1]:
            found.durable = (offset, version)

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
        connection: object,
    ) -> CommitPayload:
        """The same checks as `commit`; the effect for `apply_commit`. Nothing is committed yet."""
        found = self._admit(actor, privileged, topic, group, partition, offset, generation)
        self._fence(found, partition, generation, connection)
        version = self._version(found, partition)
        return CommitPayload(topic.name, topic.spec.id, group, found.owner, partition, offset, version)

    def check_commit(
        self, topic: str, group: str, partition: int, generation: int | None, connection: object
    ) -> Callable[[], None]:
        """What was prepared is about to be committed: Fenced if somebody else has read the partition since. Until the
        answer is called nobody is told where to begin: a successor would do the same work again."""
        found = self._groups.find(topic, group)
        if found is None:
            if generation is not None:
                raise Fenced(f"generation {generation} of group {group} is over: there is no such group now")
            return lambda: None
        self._fence(found, partition, generation, connection)
        found.committing += 1

        def release() -> None:
            found.committing -= 1
            self._released(found)

        return release

    async def apply_commit(self, wanted: CommitPayload) -> None:
        """Commit what was prepared, unless something newer is committed; any number of times, also after a crash, and
        whoever owns the partition now: the transaction it belongs to is committed. Returns when that is durable."""
        topic = self._topics.get(wanted.topic.encode())
        if topic is None or topic.spec.id != wanted.topic_id:
            return
        groups, partition = self._groups, wanted.partition
        group = groups.find(wanted.topic, wanted.group) or groups.make(wanted.owner, wanted.topic, wanted.group)
        await groups.when_made(group)
        found = group.offsets.setdefault(partition, CommittedOffset())
        if found.durable[1] >= wanted.version:
            return
        if found.version >= wanted.version:  # newer, but not yet durable: say it once more, and wait for that
            await self._put(group, topic, partition, found.offset, found.version)
        else:
            offset = min(wanted.offset, topic.partition(partition).visible)
            await self._put(group, topic, partition, offset, wanted.version, ("flymq", wanted.owner))

    # -- reading ---------------------------------------------------------------------------------------------------

    def get_offset(self, actor: str, privileged: bool, topic: Topic, group: str, partition: int) -> int:
        """The committed offset; 0 where nothing is committed."""
        found = self._groups.require(actor, privileged, topic.name, group)
        topic.partition(partition)
        return found.committed(partition) or 0

    async def lag(self, actor: str, privileged: bool, topic: Topic, group: str, partition: int) -> Lag:
        found = self._groups.require(actor, privileged, topic.name, group)
        log = topic.partition(partition)
        committed, latest = found.committed(partition) or 0, log.visible
        record = await seek(log, committed, EVER)
        waiting = max(latest - max(committed, log.start), 0)
        age = 0 if record is None or not waiting else max(self._scheduler.now() - record[1], 0) // 1000
        return Lag(committed, latest, waiting, age)

    # -- moving ----------------------------------------------------------------------------------------------------

    async def reset(
        self, actor: str, privileged: bool, topic: Topic, group: str, partition: int, mode: str, value: int
    ) -> int:
        """Set a group's offset by hand; returns it when it is durable. Mode earliest, latest, offset (`value`) or timestamp
        (`value` in milliseconds). Only of a group without members: they would go on where they are."""
        found = self._groups.require(actor, privileged, topic.name, group)
        log = topic.partition(partition)
        if mode == "timestamp":
            return await self.seek_to_timestamp(actor, privileged, topic, group, partition, value)
        if mode == "offset":
            check_offset(topic, partition, value)
        elif mode not in ("earliest", "latest"):
            raise BadRequest(f"unknown mode {mode!r} of a reset", hint="use earliest, latest, offset or timestamp")
        return await self._move(
            found, topic, partition, {"earliest": log.start, "latest": log.visible}.get(mode, value)
        )

    async def seek_to_timestamp(
        self, actor: str, privileged: bool, topic: Topic, group: str, partition: int, timestamp_ms: int
    ) -> int:
        """Commit the offset of the first record that is not older than this (the end if there is none); returns it when it
        is durable. Only of a group without members."""
        found = self._groups.require(actor, privileged, topic.name, group)
        log = topic.partition(partition)
        check_still(found)
        latest = log.visible
        record = await seek(log, 0, min(max(timestamp_ms * 1000, EVER), (1 << 63) - 1))
        self._groups.check_exists(found)
        return await self._move(found, topic, partition, latest if record is None else record[0])

    async def _move(self, group: Group, topic: Topic, partition: int, offset: int) -> int:
        await self._groups.when_made(group)
        check_still(group)
        await self._put(group, topic, partition, offset, self._version(group, partition))
        return offset
