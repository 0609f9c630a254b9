"""Answers FlyMQ's requests about consumer groups: join, commit, offsets, lag."""

from functools import partial
from typing import Final

from quintet.broker.consumers.group import Assignment, GroupInfo, Lag
from quintet.broker.topics.catalog import ANY
from quintet.model.errors import BadRequest
from quintet.protocols.flymq import frames
from quintet.protocols.flymq.call import Call, Handler, Values, each, success


def _subscribe(call: Call, ask: Values) -> None:
    def made(assignment: Assignment) -> Values:
        if ask["partition"] != ANY:
            return {"offset": assignment.offset}
        rows = [{"partition": partition, "offset": offset} for partition, offset in assignment.partitions]
        return {"offset": assignment.offset, "generation": assignment.generation, "assigned": rows}

    mode = "commit" if ask["mode"] == "committed" else ask["mode"]
    who = (call.member, ask.get("member", ""))
    call.run(call.broker.groups.subscribe(*call.place(ask), mode, *who), made)


def _commit(call: Call, ask: Values) -> Values | None:
    offsets = call.broker.groups.offsets
    where = (*call.place(ask), ask["offset"], ask.get("generation") or None)
    if not ask.get("txn_id"):
        call.run(offsets.commit(*where, call.member, door="flymq"), lambda _: success())
        return None
    call.broker.transactions.check_open(call.owner, ask["txn_id"])
    effect = offsets.prepare_commit(*where, call.member)
    check = partial(offsets.check_commit, ask["topic"], ask["group"], ask["partition"], where[-1], call.member)
    call.broker.transactions.add_effect(call.owner, ask["txn_id"], effect, check)
    return success("part of the transaction")


def _get_offset(call: Call, ask: Values) -> Values:
    return {"offset": call.broker.groups.offsets.get_offset(*call.place(ask))}


def _reset_offset(call: Call, ask: Values) -> None:
    if ask["mode"] in ("offset", "timestamp") and "offset" not in ask:
        raise BadRequest(f"mode {ask['mode']} needs a number behind it")
    moved = call.broker.groups.offsets.reset(*call.place(ask), ask["mode"], ask.get("offset", 0))
    call.run(moved, lambda offset: success(f"at {offset}"))


def _seek_to_timestamp(call: Call, ask: Values) -> None:
    moved = call.broker.groups.offsets.seek_to_timestamp(*call.place(ask), ask["timestamp_ms"])
    call.run(moved, lambda offset: {"offset": offset})


def _get_lag(call: Call, ask: Values) -> None:
    def made(lag: Lag) -> Values:
        places = {"current": lag.committed, "committed": lag.committed, "latest": lag.latest}
        return places | {"lag": lag.lag_messages, "lag_ms": lag.lag_ms}

    call.run(call.broker.groups.offsets.lag(*call.place(ask)), made)


def _group(info: GroupInfo) -> Values:
    return {
        "topic": info.topic,
        "group": info.group,
        "members": len(info.members) + info.subscribers,
        "offsets": [{"partition": partition, "offset": offset} for partition, offset in info.offsets],
        "generation": info.generation,
        "state": info.state,
        "owner": info.owner,
        "assigned": [{"member": m.name, "partition": partition} for m in info.members for partition in m.partitions],
    }


def _list_groups(call: Call, _ask: Values) -> Values:
    access = call.broker.access
    everything = access.may_administer(call.principal)
    found = call.broker.groups.walk(call.owner, everything, lambda name: access.listed(call.principal, f"group:{name}"))
    return {"groups": each(_group, found)}


def _describe_group(call: Call, ask: Values) -> Values:
    rights = call.group_rights(ask["group"])
    return _group(call.broker.groups.describe(*rights, ask.get("topic", ""), ask["group"]))


def _delete_group(call: Call, ask: Values) -> None:
    group = ask["group"]
    topic = call.broker.groups.topic_of(call.owner, ask.get("topic", ""), group)
    if topic:
        call.broker.access.require(call.principal, "subscribe", topic, call.peer)
    call.run(call.broker.groups.delete(*call.group_rights(group), topic, group), lambda _: success())


HANDLERS: Final[dict[int, Handler]] = {
    frames.SUBSCRIBE: _subscribe, frames.COMMIT: _commit, frames.GET_OFFSET: _get_offset,
    frames.RESET_OFFSET: _reset_offset, frames.LIST_GROUPS: _list_groups, frames.DESCRIBE_GROUP: _describe_group,
    frames.GET_LAG: _get_lag, frames.DELETE_GROUP: _delete_group, frames.SEEK_TO_TIMESTAMP: _seek_to_timestamp,
}  # fmt: skip
