"""Answers questions about consumer groups and subscriptions; moves groups, after showing what that would do."""

from typing import Final, Literal

import msgspec

from quintet.broker.consumers.group import GroupInfo
from quintet.broker.slices import Steps
from quintet.broker.topics import reads
from quintet.console.call import Call, Operation
from quintet.console.paging import List, arranged, folded, has, page
from quintet.console.sampler import ReaderFigures
from quintet.model.errors import BadRequest
from quintet.model.tasks import gather

ALL: Final = -1
_NONE: Final = ReaderFigures()


class Readers(List, forbid_unknown_fields=True):
    """A page of groups and subscriptions; `filter` is a part of the topic's, the group's or the owner's name."""

    sort: Literal["topic", "lag", "rate"] = "topic"
    down: bool = False


class Group(msgspec.Struct, forbid_unknown_fields=True):
    """One group of a topic."""

    topic: str
    group: str


class Preview(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group would be: `to` earliest, latest, an offset, or the first record at or after a time (milliseconds)."""

    topic: str
    group: str
    to: Literal["earliest", "latest", "offset", "time"]
    value: int = 0
    partition: int = ALL


class Move(msgspec.Struct, forbid_unknown_fields=True):
    """One partition of a preview that a person has seen."""

    partition: int
    at: int
    then: int


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Carry out a preview: refused if a committed offset is not what it was when it was shown."""

    topic: str
    group: str
    moves: list[Move]


def _seen(call: Call, ask: Readers) -> Steps[list[dict[str, object]]]:
    wanted, figures = folded(ask.filter), call.console.sampler.readers
    found: list[dict[str, object]] = []
    listed = call.broker.access.listed
    walk = call.broker.groups.walk(call.owner, call.administers, lambda name: listed(call.principal, f"group:{name}"))
    for info in walk:
        yield
        if info is None or not call.may("read", info.topic):
            continue
        if not has(wanted, (info.topic, info.group, info.owner)):
            continue
        known = figures.get((info.topic, info.group), _NONE)
        found.append(_group_row(info) | _figures(known))
    for one in call.broker.subscriptions.all():
        yield
        topic = one.topic_name.decode()
        words = (topic, one.name, one.owner)
        if (call.administers or one.owner == call.owner) and has(wanted, words):
            known = figures.get(("", str(one.id)), _NONE)
            found.append({"kind": "subscription", "topic": topic, "name": one.name or one.owner, "id": str(one.id), "owner": one.owner,
                          "state": "pushed" if one.sink is not None else "idle", "members": int(one.sink is not None),
                          "door": one.door, "in_flight": sum(lane.pending for lane in one.lanes)} | _figures(known))  # fmt: skip
    keys = {
        "topic": lambda row: (row["topic"], row["name"]),
        "lag": lambda row: -int(row["lag"]),
        "rate": lambda row: -row["rate"],
    }
    return (yield from arranged(found, keys[ask.sort], down=ask.down))


def _group_row(info: GroupInfo) -> dict[str, object]:
    return {"kind": "group", "topic": info.topic, "name": info.group, "id": info.group, "owner": info.owner, "state": info.state,
            "members": len(info.members) + info.subscribers, "door": "", "in_flight": 0}  # fmt: skip


def _figures(known: ReaderFigures) -> dict[str, object]:
    return {
        "lag": known.lag,
        "rate": round(known.rate, 1),
        "trend": round(known.trend, 1),
        "behind_ms": known.behind_ms,
    }


async def _list(call: Call, ask: Readers) -> object:
    first, last = page(ask.skip, ask.limit)
    rows = await call.sliced(_seen(call, ask))
    return {"total": len(rows), "skip": first, "rows": rows[first:last]}


async def _one(call: Call, ask: Group) -> object:
    topic = call.topic(ask.topic)
    rights = call.group_rights(ask.group)
    info = call.broker.groups.describe(*rights, ask.topic, ask.group)
    owners = {number: member.name for member in info.members for number in member.partitions}
    lag = call.broker.groups.offsets.lag
    numbers = range(min(len(topic.partitions), 200))
    lags = await call.run(gather(*(lag(*rights, topic, ask.group, number) for number in numbers)))
    sampler = call.console.sampler
    return _group_row(info) | _figures(sampler.readers.get((ask.topic, ask.group), _NONE)) | {
        "generation": info.generation,
        "member_rows": info.members,
        "partitions": [
            {"number": number, "committed": found.committed, "end": found.latest, "lag": found.lag_messages, "behind_ms": found.lag_ms,
             "member": owners.get(number, "")}
            for number, found in zip(numbers, lags, strict=True)
        ],
        "history": sampler.history("lag", ask.topic, ask.group),
    }  # fmt: skip


async def _preview(call: Call, ask: Preview) -> object:
    topic = call.topic(ask.topic)
    rights = call.group_rights(ask.group)
    call.broker.groups.describe(*rights, ask.topic, ask.group)  # refuses who may not
    numbers = range(len(topic.partitions)) if ask.partition == ALL else [ask.partition]
    moves = []
    for number in numbers:
        log = topic.partition(number)
        at = call.broker.groups.offsets.get_offset(*rights, topic, ask.group, number)
        if ask.to == "time":
            then = await call.run(reads.offset_for_time(log, ask.value * 1000))
        else:
            then = {"earliest": log.start, "latest": log.visible}.get(
                ask.to, min(max(ask.value, log.start), log.visible)
            )
        moves.append({"partition": number, "at": at, "then": then, "start": log.start, "end": log.visible,
                      "again": max(at - then, 0), "skipped": max(then - max(at, log.start), 0)})  # fmt: skip
    members = len(call.broker.groups.describe(*rights, ask.topic, ask.group).members)
    return {"moves": moves, "members": members}


async def _reset(call: Call, ask: Reset) -> object:
    topic = call.topic(ask.topic)
    rights = call.group_rights(ask.group)
    offsets = call.broker.groups.offsets
    if not 1 <= len(ask.moves) <= len(topic.partitions):
        raise BadRequest(f"{len(ask.moves)} moves; the topic has {len(topic.partitions)} partitions")
    for move in ask.moves:
        at = offsets.get_offset(*rights, topic, ask.group, move.partition)
        if at != move.at:
            raise BadRequest(
                f"partition {move.partition} is at {at} and was at {move.at} when it was shown: nothing was moved",
                hint="look at the preview again",
            )
    for move in ask.moves:
        await call.run(offsets.reset(*rights, topic, ask.group, move.partition, "offset", move.then))
    call.changed("offset.reset", f"{ask.topic}:{ask.group}", "reset", partitions=len(ask.moves))
    return {"moved": len(ask.moves)}


async def _delete(call: Call, ask: Group) -> object:
    await call.run(call.broker.groups.delete(*call.group_rights(ask.group), ask.topic, ask.group))
    call.changed("group.delete", f"{ask.topic}:{ask.group}", "delete")
    return {}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/readers", right="known", asks=Readers, answer=_list, live=True),
    Operation(method="GET", path="/api/group", right="read", asks=Group, answer=_one, live=True),
    Operation(method="POST", path="/api/group/preview", right="read", asks=Preview, answer=_preview),
    Operation(method="POST", path="/api/group/reset", right="read", asks=Reset, answer=_reset),
    Operation(method="POST", path="/api/group/delete", right="read", asks=Group, answer=_delete),
)
