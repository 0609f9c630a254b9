"""Answers an administrator: connections and how to end one, the audit, the configuration with where each value comes from."""

from collections.abc import Iterator
from typing import Final

import msgspec

from quintet.broker.audit.audit_log import FIELD_BYTES_MAX, TYPES, Query
from quintet.console.call import Call, Operation
from quintet.console.pages.verifying import verify
from quintet.console.paging import PAGE_DEFAULT, List, Row, listed, page
from quintet.console.wire import Empty
from quintet.model.errors import BadRequest, UnknownSubscription
from quintet.net.connection import Connection
from quintet.net.quic.listener import QuicConnection


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


def _open(call: Call) -> Iterator[Row]:
    for name, listener in call.console.surroundings.listeners.items():
        everyone: list[Connection | QuicConnection] = [*listener.connections]
        for connection in everyone:
            yield {"door": name, "peer": connection.peer, "who": connection.who} | connection.facts()


async def _connections(call: Call, ask: List) -> object:
    made = await listed(
        call, ask, _open(call), ("door", "peer", "who"), lambda row: (row["door"], row["who"] or "", row["peer"])
    )
    doors = [
        {"door": name, "address": listener.address, "connections": len(listener.connections), "bytes_in": listener.bytes_in,
         "bytes_out": listener.bytes_out, "refused": listener.refused, "cut": listener.cut}
        for name, listener in call.console.surroundings.listeners.items()
    ]  # fmt: skip
    return made | {"doors": doors}


async def _kick(call: Call, ask: Kick) -> object:
    listener = call.console.surroundings.listeners.get(ask.door)
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
    Operation(method="GET", path="/api/connections", right="admin", asks=List, answer=_connections, live=True),
    Operation(method="POST", path="/api/connection/kick", right="admin", asks=Kick, answer=_kick),
    Operation(method="GET", path="/api/audit", right="admin", asks=Audit, answer=_audit, live=True),
    Operation(method="GET", path="/api/audit/verify", right="admin", asks=Empty, stream=verify),
    Operation(
        method="GET", path="/api/configuration", right="admin", asks=Configuration, answer=_configuration, live=True
    ),
)
