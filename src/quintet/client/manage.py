"""Manages a broker: topics, groups, schemas, dead letters, transactions, users, access rules, audit.

A thin layer of types over `Bus.request`: `Manage(bus)` works with every door that has requests (FlyMQ). Each method is one
request, or the same one for several partitions at once; refusals come as the errors of errors.py. Times are
milliseconds since 1970.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from quintet.client.core.base import Fields
from quintet.client.core.errors import TopicNotFound
from quintet.client.core.publishing import ANY
from quintet.client.manage_access import ManageAccess

PAGE_MESSAGES: Final = 500  # dead letters or audit events asked for at once
AT_ONCE: Final = 500  # requests on their way to the broker
AS_IT_IS: Final = -1  # a property of a topic that is not changed
LATEST: Final = 0  # the version of a schema


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """`newest` is the offset that the next message gets."""

    id: int
    oldest: int
    newest: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    partitions: list[PartitionInfo]

    @property
    def messages(self) -> int:
        """How many offsets are kept; messages that expired or were compacted away count too."""
        return sum(each.newest - each.oldest for each in self.partitions)


@dataclass(frozen=True, slots=True)
class TopicProperties:
    """What a topic promises and keeps; 0: no limit."""

    name: str
    partitions: int
    durability: str
    retention_ms: int
    retention_bytes: int


@dataclass(frozen=True, slots=True)
class Peeked:
    """A message as the broker stores it. An empty key is no key. `origin` says which door and user it came from."""

    partition: int
    offset: int
    timestamp_ms: int
    expiry_ms: int  # 0: never
    key: bytes
    value: bytes
    origin: str
    headers: list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """`assigned` and what follows is known of one group that was asked for, not of those in a list."""

    topic: str
    group: str
    members: int
    offsets: dict[int, int]
    state: str = ""
    generation: int = 0
    owner: str = ""
    assigned: list[tuple[str, int]] = field(default_factory=list)  # (member, partition)


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """`lag_ms` is the age of the oldest message that is not committed."""

    partition: int
    committed: int
    latest: int
    lag: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class SchemaRow:
    id: str
    type: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    id: str
    name: str
    version: int
    type: str
    compatibility: str
    definition: bytes


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`partition` and `offset` are where it was before; partition -1: it never got into its topic."""

    id: str
    cause: str
    error: str
    attempts: int
    partition: int
    offset: int
    died_ms: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """Where a message is. In a transaction `offset` is 0; of a delayed message it is the handle to cancel it with."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Manage(ManageAccess):
    """`Manage(bus)` inside the bus's `async with` block."""

    # -- topics ----------------------------------------------------------------------------------------------------

    async def topics(self) -> list[str]:
        """Names of the topics one may read or write."""
        return list((await self._ask("LIST_TOPICS"))["topics"])

    async def topic(self, name: str) -> TopicInfo:
        found = await self._ask("METADATA", topic=name)
        rows = [PartitionInfo(row["id"], row["oldest"], row["newest"]) for row in found["partitions"]]
        return TopicInfo(found["topic"], rows)

    async def topic_infos(self) -> list[TopicInfo]:
        """All topics with their partitions; one that is deleted meanwhile is left out."""
        names = await self.topics()
        infos: list[TopicInfo] = []
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            found = await asyncio.gather(*(self.topic(name) for name in some), return_exceptions=True)
            for each in found:
                if isinstance(each, TopicInfo):
                    infos.append(each)
                elif not isinstance(each, TopicNotFound):
                    raise each
        return infos

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        durability: str = "",
        retention_ms: int = 0,
        retention_bytes: int = 0,
    ) -> bool:
        """Whether it is new. durability: fsync, interval or os; empty and 0: as the broker is configured."""
        options: Fields = {"durability": durability, "retention_ms": retention_ms, "retention_bytes": retention_bytes}
        found = await self._ask(
            "CREATE_TOPIC", topic=name, partitions=partitions, **(options if any(options.values()) else {})
        )
        return bool(found["message"] != "exists")

    async def alter_topic(
        self,
        name: str,
        *,
        durability: str = "",
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
    ) -> TopicProperties:
        """Change what is given (0: no limit), leave the rest; what the topic has now."""
        found = await self._ask(
            "ALTER_TOPIC",
            topic=name,
            durability=durability,
            retention_ms=AS_IT_IS if retention_ms is None else retention_ms,
            retention_bytes=AS_IT_IS if retention_bytes is None else retention_bytes,
        )
        return TopicProperties(
            name, found["partitions"], found["durability"], found["retention_ms"], found["retention_bytes"]
        )

    async def purge_topic(self, name: str) -> None:
        """Remove all its messages. Its offsets go on, and so do the groups and subscriptions that read it."""
        await self._ask("PURGE_TOPIC", topic=name)

    async def matching(self, *patterns: str) -> list[str]:
        """Names of the topics one may read that match one of the patterns: `shop.*`, or `regex:` and an expression of RE2."""
        return list((await self._ask("MATCH_TOPICS", patterns=list(patterns), version=0))["topics"])

    async def delete_topic(self, name: str) -> bool:
        """Whether there was one."""
        return bool((await self._ask("DELETE_TOPIC", topic=name))["message"] == "deleted")

    async def peek(
        self, topic: str, partition: int, offset: int, *, max: int = 100, since_ms: int = 0, filter: str = ""
    ) -> tuple[list[Peeked], int]:
        """Messages from this offset on that pass the filter, and where to go on. No position is moved."""
        found = await self._ask(
            "PEEK", topic=topic, partition=partition, offset=offset, max=max, since_ms=since_ms, filter=filter
        )
        rows = [
            Peeked(
                partition,
                row["offset"],
                row["timestamp_ms"],
                row["expiry_ms"],
                row["key"],
                row["value"],
                row["origin"],
                [(header["name"], header["value"]) for header in row["headers"]],
            )
            for row in found["messages"]
        ]
        return rows, found["next_offset"]

    # -- groups ----------------------------------------------------------------------------------------------------

    async def groups(self) -> list[GroupInfo]:
        return [_group(row) for row in (await self._ask("LIST_GROUPS"))["groups"]]

    async def group(self, group: str, topic: str = "") -> GroupInfo:
        """One group; without a topic the first one of that name."""
        return _group(await self._ask("DESCRIBE_GROUP", topic=topic, group=group))

    async def lag(self, topic: str, group: str) -> list[PartitionLag]:
        """How far the group is behind, for every partition of the topic."""
        info = await self.topic(topic)

        async def one(partition: int) -> PartitionLag:
            found = await self._ask("GET_LAG", topic=topic, group=group, partition=partition)
            return PartitionLag(partition, found["committed"], found["latest"], found["lag"], found["lag_ms"])

        return list(await asyncio.gather(*(one(each.id) for each in info.partitions)))

    async def reset(
        self, topic: str, group: str, mode: str, value: int = 0, partitions: Sequence[int] | None = None
    ) -> dict[int, int]:
        """Move a group without live members: mode earliest, latest, offset or timestamp (value in ms). All partitions,
        or these; the offsets it is at now."""
        if partitions is None:
            partitions = [each.id for each in (await self.topic(topic)).partitions]
        options: Fields = {"offset": value} if mode in ("offset", "timestamp") else {}

        async def one(partition: int) -> int:
            where: Fields = {"topic": topic, "group": group, "partition": partition}
            await self._ask("RESET_OFFSET", **where, mode=mode, **options)
            return int((await self._ask("GET_OFFSET", **where))["offset"])

        moved = await asyncio.gather(*(one(partition) for partition in partitions))
        return dict(zip(partitions, moved, strict=True))

    async def delete_group(self, topic: str, group: str) -> None:
        await self._ask("DELETE_GROUP", topic=topic, group=group)

    # -- schemas ---------------------------------------------------------------------------------------------------

    async def schemas(self, name: str = "") -> list[SchemaRow]:
        """All versions, of one name or of all."""
        options: Fields = {"topic": name} if name else {}
        found = await self._ask("LIST_SCHEMAS", **options)
        return [SchemaRow(row["name"], row["type"], row["version"]) for row in found["schemas"]]

    async def schema(self, name: str, version: int = LATEST) -> SchemaInfo:
        found = await self._ask("GET_SCHEMA", topic=name, version=version)
        return SchemaInfo(
            found["id"], found["topic"], found["version"], found["type"], found["compatibility"], found["definition"]
        )

    async def register_schema(self, name: str, type: str, definition: bytes, compatibility: str = "") -> int:
        """The version it has: a new one, or the latest if that has this very definition."""
        options: Fields = {"compatibility": compatibility} if compatibility else {}
        found = await self._ask("REGISTER_SCHEMA", name=name, type=type, schema=definition, **options)
        return int(found["version"])

    async def validate(self, name: str, message: bytes) -> list[str]:
        """The reasons against this message, none if it fits. The name is a schema's (its latest version) or an id."""
        found = await self._ask("VALIDATE_SCHEMA", name=name, message=message)
        return [] if found["valid"] else list(found["errors"]) or ["it does not fit"]

    async def delete_schema(self, name: str, version: int = 0) -> None:
        """One version, or with 0 all of them."""
        await self._ask("DELETE_SCHEMA", topic=name, version=version)

    # -- dead letters ----------------------------------------------------------------------------------------------

    async def dead_letters(self, topic: str, *, max: int = PAGE_MESSAGES, after: str = "") -> list[DeadLetter]:
        """A page, behind the id `after`."""
        found = await self._ask("FETCH_DLQ", topic=topic, max=max, after=after)
        return [
            DeadLetter(
                row["id"],
                more["cause"],
                row["error"],
                row["retries"],
                more["partition"],
                more["offset"],
                more["died_ms"],
                more["key"],
                row["data"],
            )
            for row, more in zip(found["messages"], found["details"], strict=True)
        ]

    async def all_dead_letters(self, topic: str) -> AsyncIterator[DeadLetter]:
        """All that are there now, page by page."""
        after = ""
        while page := await self.dead_letters(topic, after=after):
            for letter in page:
                yield letter
            after = page[-1].id

    async def replay(self, topic: str, id: str, value: bytes | None = None) -> None:
        """Publish it to its topic again, exactly once; `value` in place of what it had."""
        options: Fields = {} if value is None else {"value": value}
        await self._ask("REPLAY_DLQ", topic=topic, message_id=id, **options)

    async def replay_many(self, topic: str, ids: Sequence[str]) -> list[str]:
        """The same for many, all or none and in one request; the ids of those that were not open (any more)."""
        found = await self._ask("REPLAY_DLQ", topic=topic, ids=list(ids))
        return [str(id) for id in found["missing"]]

    async def dead_letter_counts(self) -> dict[str, int]:
        """How many dead letters each topic has that has some."""
        return {row["topic"]: row["letters"] for row in (await self._ask("LIST_DLQ"))["topics"]}

    async def purge(self, topic: str) -> str:
        """Put all dead letters of a topic aside; what the broker says about it."""
        return str((await self._ask("PURGE_DLQ", topic=topic))["message"])

    async def dead_letter(self, topic: str, partition: int, offset: int, error: str) -> bool:
        """Put a message among the dead letters; whether it was not there yet."""
        found = await self._ask("DEAD_LETTER", topic=topic, partition=partition, offset=offset, error=error)
        return bool(found["message"] == "OK")

    # -- messages with more than a value ---------------------------------------------------------------------------

    async def produce_delayed(
        self, topic: str, value: bytes, delay_ms: int, *, key: bytes = b"", partition: int = ANY
    ) -> Record:
        """It appears later; `offset` is the handle for `cancel_delayed`."""
        where: Fields = {"key": key, "partition": partition}
        return _record(await self._ask("PRODUCE_DELAYED", topic=topic, data=value, delay_ms=delay_ms, **where))

    async def cancel_delayed(self, topic: str, handle: int) -> None:
        await self._ask("CANCEL_DELAYED", topic=topic, handle=handle)

    async def produce_with_schema(
        self, topic: str, schema: str, value: bytes, *, key: bytes = b"", partition: int = ANY
    ) -> Record:
        where: Fields = {"key": key, "partition": partition}
        return _record(await self._ask("PRODUCE_WITH_SCHEMA", topic=topic, schema=schema, data=value, **where))

    # -- transactions ----------------------------------------------------------------------------------------------

    async def txn_begin(self, transactional_id: str = "", timeout_ms: int = 0) -> str:
        options: Fields = {"transactional_id": transactional_id, "timeout_ms": timeout_ms}
        found = await self._ask("TXN_BEGIN", **(options if any(options.values()) else {}))
        return str(found["txn_id"])

    async def txn_produce(
        self, txn_id: str, topic: str, value: bytes, *, key: bytes = b"", partition: int = ANY
    ) -> Record:
        where: Fields = {"key": key, "partition": partition}
        return _record(await self._ask("TXN_PRODUCE", txn_id=txn_id, topic=topic, data=value, **where))

    async def txn_offset(self, txn_id: str, topic: str, group: str, partition: int, offset: int) -> None:
        """A group's offset, committed with the transaction or not at all."""
        where: Fields = {"topic": topic, "group": group, "partition": partition, "offset": offset}
        await self._ask("COMMIT", **where, generation=0, txn_id=txn_id)

    async def txn_commit(self, txn_id: str) -> None:
        await self._ask("TXN_COMMIT", txn_id=txn_id)

    async def txn_rollback(self, txn_id: str) -> None:
        await self._ask("TXN_ROLLBACK", txn_id=txn_id)


def _group(row: Fields) -> GroupInfo:
    return GroupInfo(
        row["topic"],
        row["group"],
        row["members"],
        {each["partition"]: each["offset"] for each in row["offsets"]},
        row.get("state", ""),
        row.get("generation", 0),
        row.get("owner", ""),
        [(each["member"], each["partition"]) for each in row.get("assigned", ())],
    )


def _record(row: Fields) -> Record:
    return Record(row["topic"], row["partition"], row["offset"], row["timestamp_ms"])
