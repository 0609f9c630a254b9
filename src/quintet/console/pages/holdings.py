"""Answers questions about what the broker holds beside topics: caches, queues, peers, delayed messages, open transactions.

Whoever may read a cache's or a queue's topic sees it; a peer, a delayed message and a transaction are seen by their owner and by
administrators. What is changed here goes through the verbs of the wire, with the same rights.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from quintet.broker.atomic.transactions import Transaction
from quintet.broker.doors import queues
from quintet.broker.doors.cache import Cache, name_of
from quintet.broker.doors.cache_memory import EXPIRES, VALUE, VERSION
from quintet.broker.slices import Steps, in_order
from quintet.console import wire
from quintet.console.call import Call, Operation
from quintet.console.paging import PAGE_DEFAULT, List, Row, bounded, listed, page
from quintet.model.errors import TopicNotFound

KEY_SHOWN: Final = 200
VALUE_SHOWN: Final = 300
TOPICS_SHOWN: Final = 10  # of one transaction
SECOND_US: Final = 1_000_000
_FLAGS: Final = (
    (queues.DURABLE, "durable"),
    (queues.EXCLUSIVE, "exclusive"),
    (queues.COMPETING, "competing"),
    (queues.TTL, "ttl"),
)


class Keys(msgspec.Struct, forbid_unknown_fields=True):
    """A page of one cache's keys, in order. `topic` is the cache's topic, `prefix` how a key begins."""

    topic: str
    prefix: str = ""
    skip: int = 0
    limit: int = PAGE_DEFAULT


class Cancel(msgspec.Struct, forbid_unknown_fields=True):
    """Take a delayed message back. `handle` is text: it is beyond what JavaScript counts to."""

    topic: str
    handle: str


class Abort(msgspec.Struct, forbid_unknown_fields=True):
    """Roll a transaction of one's own back."""

    id: str


# -- caches -----------------------------------------------------------------------------------------------------------


def _cache_rows(call: Call) -> Iterator[Row | None]:
    for cache in call.broker.caches.walk():
        name = name_of(cache.scope)
        yield None if not call.may_see(name) else _cache_row(cache, name)


def _cache_row(cache: Cache, name: str) -> Row:
    tenant, namespace, short = cache.scope
    return {
        "topic": name, "tenant": tenant, "namespace": namespace, "name": short, "keys": len(cache.entries), "bytes": cache.bytes,
        "expiring": len(cache.timed), "version": str(cache.version), "kept": cache.kept,
    }  # fmt: skip


async def _caches(call: Call, ask: List) -> object:
    made = await listed(call, ask, _cache_rows(call), ("topic",), lambda row: row["topic"])
    if call.administers:
        caches = call.broker.caches
        made["figures"] = {"hits": caches.hits, "misses": caches.misses, "evicted": caches.evicted, "expired": caches.expired,
                           "bytes": caches.bytes, "bytes_max": caches.options.memory_bytes}  # fmt: skip
    return made


def _cache(call: Call, topic: str) -> Cache:
    found = next((cache for cache in call.broker.caches.walk() if name_of(cache.scope) == topic), None)
    if found is None:
        raise TopicNotFound(f"there is no cache with the topic {topic!r}")
    return found


async def _cache_keys(call: Call, ask: Keys) -> object:
    first, last = page(ask.skip, ask.limit)
    prefix = bounded(ask.prefix).encode("utf-8", "replace")
    cache, now = _cache(call, ask.topic), call.broker.scheduler.now()

    def steps() -> Steps[list[bytes]]:
        keys = []
        for key in in_order(tuple(cache.entries), bytes):
            if key is not None and key.startswith(prefix):
                keys.append(key)
            yield
        return keys

    keys = await call.sliced(steps())
    rows = []
    for key in keys[first:last]:
        entry = cache.entries.get(key)
        if entry is not None and not 0 < entry[EXPIRES] <= now:
            rows.append({"key": wire.shown(key, KEY_SHOWN), "value": wire.shown(entry[VALUE], VALUE_SHOWN),
                         "version": str(entry[VERSION]), "expires_us": entry[EXPIRES]})  # fmt: skip
    return _cache_row(cache, ask.topic) | {"total": len(keys), "skip": first, "rows": rows}


# -- queues and peers -------------------------------------------------------------------------------------------------


def _queue_rows(call: Call) -> Iterator[Row | None]:
    for queue in call.broker.queues.walk():
        if not call.may_see(queue.topic.name):
            yield None
            continue
        backlog = queue.backlog
        yield {
            "topic": queue.topic.name, "id": f"{queue.id:08x}", "flags": [word for flag, word in _FLAGS if queue.flags & flag],
            "members": len(queue.members), "waiting": None if backlog is None else backlog.backlog(), "rotating": queue.rotating,
            "who": sorted({member.bearer.name for member in queue.members.values()})[:TOPICS_SHOWN],
        }  # fmt: skip


async def _queues(call: Call, ask: List) -> object:
    made = await listed(call, ask, _queue_rows(call), ("topic", "id", "who"), lambda row: row["topic"])
    queues = call.broker.queues
    return made | {"figures": {"rotations": queues.rotations, "ended": queues.evicted, "refused": queues.refused}}


def _peer_rows(call: Call) -> Iterator[Row | None]:
    everyone = call.administers
    for peer in call.broker.peers.walk():
        yield None if not everyone and peer.owner != call.owner else {
            "name": peer.name, "owner": peer.owner, "connected": peer.holder is not None, "waiting": peer.backlog,
            "registered_us": peer.row.registered, "seen_us": peer.row.seen, "topic": None if peer.topic is None else peer.topic.name,
        }  # fmt: skip


async def _peers(call: Call, ask: List) -> object:
    made = await listed(call, ask, _peer_rows(call), ("name", "owner"), lambda row: (not row["connected"], row["name"]))
    if call.administers:
        peers = call.broker.peers
        made["figures"] = {"connected": peers.connected, "sent": peers.sent, "broadcasts": peers.broadcasts,
                           "dropped": sum(peers.dropped.values())}  # fmt: skip
        made["dropped"] = {reason: count for reason, count in peers.dropped.items() if count}
    return made


# -- delayed messages -------------------------------------------------------------------------------------------------


def _delayed_rows(call: Call) -> Iterator[Row | None]:
    everyone = call.administers
    for row in call.broker.delays.walk():
        yield None if not everyone and row.owner != call.owner else {
            "handle": str(row.handle), "owner": row.owner, "topic": row.topic, "partition": row.partition, "due_us": row.due,
            "key": wire.shown(row.key, KEY_SHOWN), "bytes": len(row.value or b""), "headers": len(row.headers),
            "origin": row.origin.decode(errors="replace"),
        }  # fmt: skip


async def _delayed(call: Call, ask: List) -> object:
    made = await listed(
        call, ask, _delayed_rows(call), ("topic", "owner", "handle"), lambda row: (row["due_us"], row["handle"])
    )
    delays = call.broker.delays
    if call.administers:
        made["figures"] = {"waiting": len(delays), "bytes": delays.kept_bytes, "delivered": delays.delivered,
                           "cancelled": delays.cancelled, "without_topic": delays.orphaned}  # fmt: skip
    return made


async def _cancel(call: Call, ask: Cancel) -> object:
    handle = wire.whole(ask.handle)
    await call.run(call.broker.delays.cancel(call.owner, call.administers, ask.topic, handle))
    call.changed("data.produce", ask.topic, "cancel delayed message", handle=ask.handle)
    return {}


# -- transactions -----------------------------------------------------------------------------------------------------


def _transaction_row(call: Call, one: Transaction, monotonic: int) -> Row:
    names = list(dict.fromkeys(topic.name for topic, _ in one.parts))
    return {
        "id": one.id, "owner": one.owner, "name": one.name, "state": "in doubt" if one.doubtful else one.state,
        "age_seconds": (monotonic - one.began) // SECOND_US, "left_seconds": max(one.deadline - monotonic, 0) // SECOND_US,
        "messages": one.count, "bytes": one.bytes, "topics": names[:TOPICS_SHOWN], "offsets": len(one.effects),
        "mine": one.owner == call.owner,
    }  # fmt: skip


async def _transactions(call: Call, ask: List) -> object:
    """Those that are open, and what is committed and waits for a partition (stuck)."""
    everyone, monotonic = call.administers, call.broker.scheduler.monotonic()
    transactions, intents = call.broker.transactions, call.broker.intents
    rows = (
        _transaction_row(call, one, monotonic) if everyone or one.owner == call.owner else None
        for one in transactions.walk()
    )
    made = await listed(
        call, ask, rows, ("id", "owner", "name", "state", "topics"), lambda row: (-row["age_seconds"], row["id"])
    )
    made["stuck"] = [
        {"number": one.number, "owner": one.owner, "id": one.token, "bytes": one.bytes,
         "age_seconds": (monotonic - one.since) // SECOND_US, "why": one.why}
        for one in intents.waiting() if everyone or one.owner == call.owner
    ][:PAGE_DEFAULT]  # fmt: skip
    return made | {"committed": transactions.committed, "aborted": transactions.aborted}


async def _abort(call: Call, ask: Abort) -> object:
    """As the wire allows it: of one's own. A transaction of somebody else does not exist for this."""
    call.broker.transactions.abort(call.owner, ask.id)
    call.changed("txn.abort", ask.id, "abort")
    return {}


OPERATIONS: Final = (
    Operation(method="GET", path="/api/caches", right="known", asks=List, answer=_caches, live=True),
    Operation(method="GET", path="/api/cache", right="read", asks=Keys, answer=_cache_keys, live=True),
    Operation(method="GET", path="/api/queues", right="known", asks=List, answer=_queues, live=True),
    Operation(method="GET", path="/api/peers", right="known", asks=List, answer=_peers, live=True),
    Operation(method="GET", path="/api/delayed", right="known", asks=List, answer=_delayed, live=True),
    Operation(method="POST", path="/api/delayed/cancel", right="write", asks=Cancel, answer=_cancel),
    Operation(method="GET", path="/api/transactions", right="known", asks=List, answer=_transactions, live=True),
    Operation(method="POST", path="/api/transaction/abort", right="owner", asks=Abort, answer=_abort),
)
