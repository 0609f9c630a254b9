"""Answers questions about topics, and makes and deletes them."""

from dataclasses import asdict
from typing import Final, Literal

import msgspec

from quintet.broker.slices import Steps
from quintet.broker.topics.catalog import Topic
from quintet.console.call import Call, Operation
from quintet.console.paging import PAGE_MAX, List, arranged, folded, has, page
from quintet.console.sampler import TopicFigures, size_of
from quintet.model.errors import BadRequest
from quintet.model.tasks import Promise

LIST_KEPT_S: Final = 4.0  # the order of a list, while pages of it are asked for
LISTS_MAX: Final = 50
PARTITIONS_SHOWN_MAX: Final = 1_000

_NONE: Final = TopicFigures()


class Topics(List, forbid_unknown_fields=True):
    """A page of the list. `filter` is a part of the name, in any case."""

    sort: Literal["name", "rate", "bytes", "lag", "records", "partitions"] = "name"
    down: bool = False
    dead: bool = False
    """Only dead-letter topics."""


class One(msgspec.Struct, forbid_unknown_fields=True):
    """One topic."""

    topic: str


class Create(msgspec.Struct, forbid_unknown_fields=True):
    """A new topic; 0 and "" leave a property to the configuration."""

    topic: str
    partitions: int = 0
    durability: Literal["", "fsync", "interval", "os"] = ""
    retention_ms: int = 0
    retention_bytes: int = 0


class Alter(msgspec.Struct, forbid_unknown_fields=True):
    """Other properties of a topic: "" and -1 leave one as it is, 0 is no limit."""

    topic: str
    durability: Literal["", "fsync", "interval", "os"] = ""
    retention_ms: int = -1
    retention_bytes: int = -1


class Delete(msgspec.Struct, forbid_unknown_fields=True):
    """Delete a topic and all in it; `typed` is its name, as the person wrote it."""

    topic: str
    typed: str


def lag_of(call: Call, name: str) -> int:
    """The largest lag of a group or subscription of this topic."""
    known = call.console.sampler.readers
    places = [(name, group) for group in call.broker.groups.of_topic(name)]
    topic = call.broker.topics.get(name.encode())
    places += [("", str(one.id)) for one in topic.subscriptions] if topic is not None else []
    return max((known[place].lag for place in places if place in known), default=0)


def _names(call: Call, ask: Topics) -> Steps[list[tuple[float, str]]]:
    wanted = folded(ask.filter)
    figures, sort = call.console.sampler.topics, ask.sort
    found: list[tuple[float, str]] = []  # the largest figures first, then by name
    for topic in call.broker.topics.all():
        name = topic.name
        if has(wanted, (name,)) and (not ask.dead or call.broker.dead.is_dead(name)) and call.may_see(name):
            known = figures.get(name, _NONE)
            key = 0.0
            if sort == "rate":
                key = known.rate
            elif sort == "bytes":
                key = size_of(topic)
            elif sort == "records":
                key = sum(partition.visible - partition.start for partition in topic.partitions)
            elif sort == "partitions":
                key = len(topic.partitions)
            elif sort == "lag":
                key = lag_of(call, name)
            found.append((-key, name))
        yield
    return (yield from arranged(found, lambda pair: pair, down=ask.down))


async def _list(call: Call, ask: Topics) -> object:
    first, last = page(ask.skip, ask.limit)
    lists: dict[object, tuple[float, list[tuple[float, str]]]] = call.console.kept.setdefault("lists", {})
    seconds = call.broker.scheduler.monotonic() / 1e6
    place = (
        call.principal,
        call.broker.access.epoch,
        len(call.broker.topics),
        ask.filter,
        ask.sort,
        ask.down,
        ask.dead,
    )
    kept = lists.get(place)
    if kept is None or seconds - kept[0] > LIST_KEPT_S:
        kept = lists[place] = (seconds, await call.sliced(_names(call, ask)))
        for old in [known for known, (since, _) in lists.items() if seconds - since > LIST_KEPT_S][: len(lists)]:
            del lists[old]
        while len(lists) > LISTS_MAX:
            del lists[next(iter(lists))]
    names = kept[1]
    rows = [
        _row(call, topic)
        for _, name in names[first:last]
        if (topic := call.broker.topics.get(name.encode())) is not None
    ]
    return {"total": len(names), "skip": first, "rows": rows}


def _row(call: Call, topic: Topic) -> dict[str, object]:
    known = call.console.sampler.topics.get(topic.name, _NONE)
    spec = topic.spec
    return {
        "name": topic.name,
        "partitions": len(topic.partitions),
        "durability": spec.durability,
        "retention_us": spec.retention_us,
        "retention_bytes": spec.retention_bytes,
        "compact": spec.compact,
        "records": sum(partition.visible - partition.start for partition in topic.partitions),
        "bytes": size_of(topic),
        "rate": round(known.rate, 1),
        "groups": len(call.broker.groups.of_topic(topic.name)),
        "subscriptions": len(topic.subscriptions),
        "lag": lag_of(call, topic.name),
    }


async def _one(call: Call, ask: One) -> object:
    topic = call.topic(ask.topic)
    broker, sampler = call.broker, call.console.sampler
    known = sampler.topics.get(topic.name, _NONE)
    partitions = [
        {
            "number": partition.number,
            "start": partition.start,
            "end": partition.visible,
            "bytes": partition.bytes_from(partition.start),
            "failure": None if partition.failure is None else str(partition.failure),
        }
        for partition in topic.partitions[:PARTITIONS_SHOWN_MAX]
    ]
    spec = {name: value for name, value in asdict(topic.spec).items() if name != "extra"}
    reads = call.may("read", topic.name)
    letters = broker.dead.name_for(topic.raw).decode()
    return _row(call, topic) | {
        "spec": spec,
        "partition_rows": partitions,
        "published": topic.published,
        "byte_rate": round(known.byte_rate, 1),
        "history": sampler.history("topic", topic.name),
        "producers": producers(known),
        "readers": readers(call, topic) if reads else [],
        "dead_letters": broker.dead.counts(topic.raw) if reads else None,
        "dead_topic": letters if broker.topics.get(letters.encode()) is not None else None,
        "may": {right: call.may(right, topic.name) for right in ("read", "write", "manage")},
    }


def producers(known: TopicFigures) -> list[dict[str, object]]:
    """Who publishes to a topic, the busiest first."""
    found = sorted(known.producers.items(), key=lambda pair: (-pair[1].rate, -pair[1].seen))
    return [
        {"origin": origin, "door": origin.partition(":")[0], "name": origin.partition(":")[2], "rate": round(one.rate, 1),
         "seen": int(one.seen)}
        for origin, one in found
    ]  # fmt: skip


def readers(call: Call, topic: Topic) -> list[dict[str, object]]:
    """Groups and subscriptions of a topic that this person may see."""
    found: list[dict[str, object]] = []
    known = call.console.sampler.readers
    for group in call.broker.groups.of_topic(topic.name)[:PAGE_MAX]:
        actor, privileged = call.group_rights(group)
        held = call.broker.groups.find(topic.name, group)
        if held is not None and (privileged or held.owner == actor):
            figures = known.get((topic.name, group))
            found.append({"kind": "group", "name": group, "id": group, "owner": held.owner, "state": held.state,
                          "members": len(held.members) + len(held.plain), "lag": figures.lag if figures else 0,
                          "rate": round(figures.rate, 1) if figures else 0.0,
                          "trend": round(figures.trend, 1) if figures else 0.0})  # fmt: skip
    for subscription in sorted(topic.subscriptions, key=lambda one: one.id)[:PAGE_MAX]:
        if call.administers or subscription.owner == call.owner:
            figures = known.get(("", str(subscription.id)))
            found.append({"kind": "subscription", "name": subscription.name or subscription.owner, "id": str(subscription.id),
                          "owner": subscription.owner, "door": subscription.door,
                          "state": "pushed" if subscription.sink is not None else "idle",
                          "members": int(subscription.sink is not None), "lag": subscription.backlog(),
                          "rate": round(figures.rate, 1) if figures else 0.0,
                          "trend": round(figures.trend, 1) if figures else 0.0})  # fmt: skip
    return found


# -- changes ----------------------------------------------------------------------------------------------------------


async def _create(call: Call, ask: Create) -> object:
    try:
        raw = ask.topic.encode()
    except UnicodeEncodeError:
        raise BadRequest("a topic name is proper text") from None
    topic, new = call.broker.create_topic(
        raw, ask.partitions, ask.durability, ask.retention_ms * 1000, ask.retention_bytes, owner=call.owner
    )
    await call.run(_ready(topic))
    if new:
        call.changed("topic.create", topic.name, "create")
    return {"topic": topic.name, "new": new}


async def _ready(topic: Topic) -> None:
    ready: Promise[None] = topic.ready()
    await ready


async def _delete(call: Call, ask: Delete) -> object:
    if ask.typed != ask.topic:
        raise BadRequest(f"the name that was typed is not {ask.topic!r}: nothing was deleted")
    topic = call.topic(ask.topic)
    await call.run(call.broker.delete_topic(topic.raw))
    call.changed("topic.delete", topic.name, "delete")
    return {"topic": topic.name}


async def _alter(call: Call, ask: Alter) -> object:
    retention_us = ask.retention_ms * 1000 if ask.retention_ms >= 0 else ask.retention_ms
    raw = call.topic(ask.topic).raw
    topic = await call.run(call.broker.topics.alter(raw, ask.durability, retention_us, ask.retention_bytes))
    spec = topic.spec
    after = {"durability": spec.durability, "retention_us": spec.retention_us, "retention_bytes": spec.retention_bytes}
    call.changed("topic.alter", topic.name, "alter", **after)
    return after


async def _purge(call: Call, ask: Delete) -> object:
    if ask.typed != ask.topic:
        raise BadRequest(f"the name that was typed is not {ask.topic!r}: nothing was purged")
    topic = call.topic(ask.topic)
    await call.run(call.broker.purge_topic(topic.raw))
    call.changed("topic.purge", topic.name, "purge")
    return {"topic": topic.name}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/topics", right="known", asks=Topics, answer=_list, live=True),
    Operation(method="GET", path="/api/topic", right="read or write", asks=One, answer=_one, live=True),
    Operation(method="POST", path="/api/topic/create", right="manage", asks=Create, answer=_create),
    Operation(method="POST", path="/api/topic/alter", right="manage", asks=Alter, answer=_alter),
    Operation(method="POST", path="/api/topic/delete", right="manage", asks=Delete, answer=_delete),
    Operation(method="POST", path="/api/topic/purge", right="manage", asks=Delete, answer=_purge),
)
