"""Answers who is logged in and how the broker is."""

from typing import Final

import msgspec

from quintet import __version__, kernel
from quintet.console.call import Call, Operation
from quintet.console.wire import Empty


class LogIn(msgspec.Struct, forbid_unknown_fields=True):
    """A name and its password."""

    name: str
    password: str


async def _me(call: Call, _ask: Empty) -> object:
    """Who is logged in. Whoever is not is answered with nothing, before this: a question, no fault."""
    principal = call.principal
    return {
        "name": principal.name,
        "roles": principal.roles,
        "permissions": principal.permissions,
        "administers": call.administers,
        "version": __version__,
        "kernel": "native" if kernel.NATIVE else "pure Python",
        "idle_seconds": call.console.options.idle_seconds,
        "doors": sorted(call.console.surroundings.addresses()),
    }


async def _log_out(call: Call, _ask: Empty) -> object:
    call.console.sessions.log_out(call.session, call.principal, call.peer)
    return {}


async def _overview(call: Call, _ask: Empty) -> object:
    broker, sampler = call.broker, call.console.sampler
    if not call.administers:
        return {"topics": None}
    listeners = call.console.surroundings.watched
    return {
        "topics": len(broker.topics),
        "connections": sum(len(listener.connections) for listener in listeners.values()),
        "groups": len(broker.groups),
        "subscriptions": len(broker.subscriptions),
        "publish_rate": round(sampler.publish_rate, 1),
        "deliver_rate": round(sampler.deliver_rate, 1),
        "unsynced_bytes": broker.log.unsynced_bytes,
        "low_on_space": None if broker.log.low_on_space is None else str(broker.log.low_on_space),
        "draining": broker.draining,
    }


OPERATIONS: Final = (
    Operation(method="POST", path="/api/login", right="open", asks=LogIn),
    Operation(method="POST", path="/api/logout", right="known", asks=Empty, answer=_log_out),
    Operation(method="GET", path="/api/me", right="open", asks=Empty, answer=_me),
    Operation(method="GET", path="/api/overview", right="known", asks=Empty, answer=_overview, live=True),
)
