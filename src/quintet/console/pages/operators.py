"""Answers an administrator: connections and how to end one, the audit, the configuration with where each value comes from."""

import asyncio
from typing import Final, Literal

import msgspec

from quintet.broker.audit.audit_log import FIELD_BYTES_MAX, TYPES, Query
from quintet.broker.slices import Steps
from quintet.console.call import Call, Operation
from quintet.console.connections import AnyConnection, Moved, everyone
from quintet.console.pages.verifying import verify
from quintet.console.paging import PAGE_DEFAULT, List, Row, arranged, folded, has, listed, page
from quintet.console.wire import Empty
from quintet.model.errors import BadRequest, UnknownSubscription

_STILL: Final = Moved()


class Connections(List, forbid_unknown_fields=True):
    """A page of the connections; `filter` is a part of a name, a door, an address or a number."""

    sort: Literal["who", "door", "peer", "age", "idle", "in", "out", "unsent"] = "who"
    down: bool = False


class Kick(msgspec.Struct, forbid_unknown_fields=True):
    """End a connection, by its door and the address of its client."""

    door: str
    peer: str


class Configuration(List, forbid_unknown_fields=True):
    """A page of the options. `changed`: those that are not at their defaults; `source`: how the place begins a value is from."""

    changed: bool = False
    source: str = ""


class Audit(msgspec.Struct, forbid_unknown_fields=True):
    """A page of the audit, the newest first."""

    search: str = ""
    user: str = ""
    type: str = ""
    result: str = ""
    skip: int = 0
    limit: int = PAGE_DEFAULT


def _key(call: Call, sort: str, door: str, connection: AnyConnection) -> tuple[object, ...]:
    """What a connection is sorted by: names rise, figures fall, the longest first."""
    moved = call.console.sampler.connections.of(connection)
    if sort == "in":
        return (-moved.rate_in,)
    if sort == "out":
        return (-moved.rate_out,)
    if sort == "unsent":
        return (-int(str(connection.facts()["unsent_bytes"])),)
    if sort == "idle":
        return (moved.active,)
    who = connection.who or ""
    return {"door": (door, who), "peer": (connection.peer,), "age": (connection.id,)}.get(sort, (who, door))


def _row(call: Call, door: str, connection: AnyConnection) -> Row:
    rates = call.console.sampler.connections
    moved, facts = rates.of(connection), connection.facts()
    began = call.broker.scheduler.now() // 1000 - round(connection.age_seconds * 1000)
    return {"id": connection.id, "door": door, "peer": str(connection.peer), "who": connection.who, "since_ms": began,
            "idle_seconds": round(rates.idle_seconds(connection, asyncio.get_running_loop().time()), 1),
            "rate_in": round(moved.rate_in, 1), "rate_out": round(moved.rate_out, 1), **facts}  # fmt: skip


async def _connections(call: Call, ask: Connections) -> object:
    first, last = page(ask.skip, ask.limit)
    wanted, listeners = folded(ask.filter), call.console.surroundings.watched

    def steps() -> Steps[list[tuple[tuple[object, ...], int, str, AnyConnection]]]:
        found = []
        for name, listener in listeners.items():
            for each in everyone(listener):
                if has(wanted, (name, each.peer, each.who or "", str(each.id))):
                    found.append((_key(call, ask.sort, name, each), each.id, name, each))
                yield
        return (yield from arranged(found, lambda one: one[:2], down=ask.down))

    found = await call.sliced(steps())
    rows = [_row(call, name, one) for _, _, name, one in found[first:last]]
    rates = call.console.sampler.connections.doors
    doors = [
        {"door": name, "address": listener.address, "connections": len(listener.connections), "bytes_in": listener.bytes_in,
         "bytes_out": listener.bytes_out, "rate_in": round(rates.get(name, _STILL).rate_in, 1),
         "rate_out": round(rates.get(name, _STILL).rate_out, 1), "refused": listener.refused, "cut": listener.cut}
        for name, listener in listeners.items()
    ]  # fmt: skip
    return {"total": len(found), "skip": first, "rows": rows, "doors": doors}


async def _kick(call: Call, ask: Kick) -> object:
    listener = call.console.surroundings.watched.get(ask.door)
    found = None if listener is None else next((one for one in listener.connections if one.peer == ask.peer), None)
    if found is None:
        raise UnknownSubscription(
            f"there is no connection of {ask.peer!r} on the door {ask.door!r}", hint="it may have closed"
        )
    who = found.who or ""
    found.evict(f"ended by the administrator {call.owner}")
    call.changed("auth.logout", who, "kick", connection=ask.peer, through=ask.door)
    return {}


async def _audit(call: Call, ask: Audit) -> object:
    if len(ask.search) > FIELD_BYTES_MAX:
        raise BadRequest(f"the text has {len(ask.search)} characters; the limit is {FIELD_BYTES_MAX}")
    if ask.type and ask.type not in TYPES:
        raise BadRequest(f"{ask.type!r} is no type of audit event")
    first, last = page(ask.skip, ask.limit)
    query = Query(
        types=(ask.type,) if ask.type else (),
        user=ask.user,
        result=ask.result,
        search=ask.search,
        offset=first,
        limit=last - first,
    )
    events, total, _more = await call.sliced(call.broker.audit.query_steps(query))
    rows = [event.fields() for event in events]
    return {"total": total, "skip": first, "rows": rows, "types": sorted(TYPES)}


async def _configuration(call: Call, ask: Configuration) -> object:
    found = call.console.surroundings.configuration()
    rows = (
        row._asdict()
        for row in found
        if (not ask.changed or row.source != "default") and (not ask.source or row.source.startswith(ask.source))
    )
    made = await listed(call, ask, rows, ("key", "value", "source", "help"))
    return made | {"waits": sum(row.waits for row in found)}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/connections", right="admin", asks=Connections, answer=_connections, live=True),
    Operation(method="POST", path="/api/connection/kick", right="admin", asks=Kick, answer=_kick),
    Operation(method="GET", path="/api/audit", right="admin", asks=Audit, answer=_audit, live=True),
    Operation(method="GET", path="/api/audit/verify", right="admin", asks=Empty, stream=verify),
    Operation(
        method="GET", path="/api/configuration", right="admin", asks=Configuration, answer=_configuration, live=True
    ),
)
