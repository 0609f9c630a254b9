"""What the walk sends to each operation of FlyMQ: many small requests at once, and the largest that pass its limits.

`SMALL` has one row for each row of the door's table, which a test compares. A row makes the request number `i` of a pipeline;
`FEW` are those of which a thousand would take minutes, because each is hashed by a thread or is written by itself.
"""

import gzip
from collections.abc import Callable
from typing import Any, Final

from quintet.protocols.flymq import frames as f
from tests.turns.wires import Fly
from tests.wire import flymq, records

Values = dict[str, Any]
FEW: Final = {f.AUTH: 10, f.USER_CREATE: 10, f.USER_UPDATE: 10, f.PASSWORD_CHANGE: 10, f.CREATE_TOPIC: 300,
              f.DELETE_TOPIC: 300, f.REGISTER_SCHEMA: 300, f.CLUSTER_METADATA: 300, f.LIST_GROUPS: 100,
              f.AUDIT_QUERY: 300, f.AUDIT_EXPORT: 300, f.AUDIT_QUERY_SDK: 300, f.AUDIT_EXPORT_SDK: 300,
              f.LIST_TOPICS: 300, f.PEEK: 500, f.KEY_LIST: 300, f.USER_LIST: 300, f.ACL_LIST: 300,
              f.LIST_SCHEMAS: 300, f.FETCH_DLQ: 300, f.CONSUME: 500, f.CONSUME_ZERO_COPY: 500,
              f.ALTER_TOPIC: 300, f.PURGE_TOPIC: 300, f.MATCH_TOPICS: 300, f.QUOTA_SET: 300, f.QUOTA_CLEAR: 300}  # fmt: skip

_GROUP: Final = {"topic": "t", "group": "g0", "partition": 0}
_USER: Final = {"old_password": "", "roles": [], "enabled": True}
_AUDIT: Final = {"start_s": 0, "end_s": 0, "types": [], "user": "", "resource": "", "result": "", "search": "", "limit": 1_000,
                 "skip": 0}  # fmt: skip
_SCHEMA: Final = b'{"type":"object"}'
FILTER: Final = "$.a == 77777"  # finds nothing, so all is looked at

SMALL: Final[dict[int, Callable[[int], Values]]] = {
    f.PRODUCE: lambda i: {"topic": "p", "key": b"k", "value": b"v", "partition": 0},
    f.CONSUME: lambda i: {"topic": "t", "partition": 0, "offset": i % 100},
    f.CREATE_TOPIC: lambda i: {"topic": f"made-{i}", "partitions": 1},
    f.METADATA: lambda i: {"topic": "t"},
    f.SUBSCRIBE: lambda i: {"topic": "t", "group": f"s{i}", "partition": 0, "mode": "earliest"},
    f.COMMIT: lambda i: {**_GROUP, "group": f"g{i % 100}", "offset": i % 100},
    f.FETCH: lambda i: {"topic": "t", "partition": 0, "offset": 0, "max": 100, "filter": FILTER},
    f.LIST_TOPICS: lambda i: {},
    f.DELETE_TOPIC: lambda i: {"topic": f"made-{i}"},
    f.CONSUME_ZERO_COPY: lambda i: {"topic": "t", "partition": 0, "offset": i % 100},
    f.FETCH_BINARY: lambda i: {"topic": "t", "partition": 0, "offset": 0, "max": 100},
    f.PRODUCE_RECORDS: lambda i: {"topic": "p", "partition": 0, "records": records.pack(records.Record(b"v", b"k"))},
    f.FETCH_RECORDS: lambda i: {"topic": "t", "partition": 0, "offset": 0, "max": 100},
    f.PEEK: lambda i: {"topic": "t", "partition": 0, "offset": 0, "max": 100, "since_ms": 0, "filter": ""},
    f.ALTER_TOPIC: lambda i: {"topic": "t", "durability": "", "retention_ms": -1, "retention_bytes": -1},
    f.PURGE_TOPIC: lambda i: {"topic": "p"},
    f.MATCH_TOPICS: lambda i: {"patterns": ["*"], "version": 0},
    f.REGISTER_SCHEMA: lambda i: {"name": f"schema-{i}", "type": "json", "schema": _SCHEMA},
    f.GET_SCHEMA: lambda i: {"topic": "schema", "version": 0},
    f.LIST_SCHEMAS: lambda i: {},
    f.VALIDATE_SCHEMA: lambda i: {"name": "schema", "message": b'{"a":1}'},
    f.PRODUCE_WITH_SCHEMA: lambda i: {"topic": "p", "schema": "schema", "data": b'{"a":1}'},
    f.DELETE_SCHEMA: lambda i: {"topic": f"schema-{i}", "version": 0},
    f.FETCH_DLQ: lambda i: {"topic": "t", "max": 100},
    f.REPLAY_DLQ: lambda i: {"topic": "t", "message_id": f"0:{i}"},
    f.PURGE_DLQ: lambda i: {"topic": "p"},
    f.DEAD_LETTER: lambda i: {"topic": "t", "partition": 0, "offset": i % 100, "error": "e"},
    f.LIST_DLQ: lambda i: {},
    f.PRODUCE_DELAYED: lambda i: {"topic": "p", "data": b"v", "delay_ms": 3_600_000},
    f.CANCEL_DELAYED: lambda i: {"topic": "p", "handle": i},
    f.PRODUCE_WITH_TTL: lambda i: {"topic": "p", "data": b"v", "ttl_ms": 3_600_000},
    f.TXN_BEGIN: lambda i: {"transactional_id": "walk"},
    f.TXN_COMMIT: lambda i: {"txn_id": f"none-{i}"},
    f.TXN_ROLLBACK: lambda i: {"txn_id": f"none-{i}"},
    f.TXN_PRODUCE: lambda i: {"txn_id": "none", "topic": "p", "data": b"v"},
    f.CLUSTER_JOIN: lambda i: {"peer": "p"},
    f.CLUSTER_LEAVE: lambda i: {},
    f.CLUSTER_STATUS: lambda i: {},
    f.CLUSTER_METADATA: lambda i: {},
    f.GET_OFFSET: lambda i: _GROUP,
    f.RESET_OFFSET: lambda i: {**_GROUP, "mode": "earliest"},
    f.LIST_GROUPS: lambda i: {},
    f.DESCRIBE_GROUP: lambda i: {"topic": "t", "group": "g0"},
    f.GET_LAG: lambda i: _GROUP,
    f.DELETE_GROUP: lambda i: {"topic": "t", "group": f"s{i}"},
    f.SEEK_TO_TIMESTAMP: lambda i: {**_GROUP, "timestamp_ms": 0},
    f.AUTH: lambda i: {"user": "admin", "password": "wrong" if i % 2 else "admin"},
    f.WHOAMI: lambda i: {},
    f.USER_CREATE: lambda i: {"user": f"user-{i}", "password": "long enough", **_USER},
    f.USER_DELETE: lambda i: {"user": f"nobody-{i}"},
    f.USER_UPDATE: lambda i: {"user": f"user-{i}", "password": "", **_USER},
    f.USER_LIST: lambda i: {},
    f.USER_GET: lambda i: {"user": "admin"},
    f.ACL_SET: lambda i: {"topic": f"acl-{i}", "public": False, "users": ["admin"], "roles": []},
    f.ACL_GET: lambda i: {"topic": "acl-0"},
    f.ACL_DELETE: lambda i: {"topic": f"acl-{i}"},
    f.ACL_LIST: lambda i: {},
    f.PASSWORD_CHANGE: lambda i: {"user": f"user-{i}", "password": "long enough", **_USER},
    f.ROLE_LIST: lambda i: {},
    f.QUOTA_SET: lambda i: {"kind": "user", "name": f"user-{i}", "changes": [{"quota": "topics_max", "value": 1_000}]},
    f.QUOTA_CLEAR: lambda i: {"kind": "user", "name": f"user-{i}"},
    f.QUOTA_LIST: lambda i: {},
    f.KEY_CREATE: lambda i: {"user": "", "name": f"key-{i}", "expires_s": 0},
    f.KEY_LIST: lambda i: {"user": "", "everyone": True},
    f.KEY_REMOVE: lambda i: {"user": "", "id": f"none-{i}"},
    f.ACL_EXPLAIN: lambda i: {"who": "admin", "action": "publish", "topic": "t"},
    f.AUDIT_QUERY: lambda i: {**_AUDIT, "limit": 10},
    f.AUDIT_EXPORT: lambda i: {"query": {**_AUDIT, "limit": 10}, "format": "json"},
    f.AUDIT_QUERY_SDK: lambda i: {**_AUDIT, "limit": 10},
    f.AUDIT_EXPORT_SDK: lambda i: {**_AUDIT, "limit": 10, "format": "json"},
}


def packed(code: int, values: Values) -> bytes:
    """One request, compressed with gzip."""
    payload = gzip.compress(Fly.frame(code, **values)[flymq.HEAD.size :], 6)
    return flymq.frame(code, payload, f.BINARY | 1 << f.COMPRESSION_SHIFT)


def large(size: int, partitions: int) -> list[tuple[int, str, Callable[[], bytes]]]:
    """The largest inputs: (code, what it is, the bytes). `size` is of one message, at most 31 MiB."""
    text, objects = b"x" * size, b"[" + b"{}," * (size // 3) + b"{}]"
    name = "n" * 255
    many = {**_AUDIT, "search": "zz", "types": ["auth.failure"] * 1_000}

    def one(code: int, what: str, **values: Any) -> tuple[int, str, Callable[[], bytes]]:
        return code, what, lambda: Fly.frame(code, **values)

    def zipped(code: int, what: str, **values: Any) -> tuple[int, str, Callable[[], bytes]]:
        return code, what, lambda: packed(code, values)

    mib = f"{size >> 20} MiB"
    wide = {"topic": "wide", "group": "g", "partition": -1}
    rows = [
        one(f.PRODUCE, f"a message of {mib}", topic="big", key=b"", value=text, partition=0),
        zipped(f.PRODUCE, f"{mib}, compressed", topic="big", key=b"", value=text, partition=0),
        one(f.CONSUME, f"a message of {mib}", topic="big", partition=0, offset=0),
        one(f.CONSUME_ZERO_COPY, f"a message of {mib}", topic="big", partition=0, offset=0),
        one(f.FETCH, f"a message of {mib}", topic="big", partition=0, offset=0, max=1),
        one(f.FETCH, "as many small ones as fit", topic="t", partition=0, offset=0, max=1 << 30),
        one(f.FETCH, "with a filter, 1,000 looked at", topic="t", partition=0, offset=0, max=1 << 30, filter=FILTER),
        one(f.FETCH, "with a regular expression", topic="t", partition=0, offset=0, max=1 << 30, filter="(a|b)*c$"),
        one(f.FETCH_BINARY, "as many small ones as fit", topic="t", partition=0, offset=0, max=1 << 30),
        one(f.FETCH_RECORDS, "as many small ones as fit", topic="t", partition=0, offset=0, max=1 << 30),
        one(f.PEEK, "as many as it gives", topic="t", partition=0, offset=0, max=1 << 30, since_ms=0, filter=""),
        one(f.PEEK, f"a message of {mib}", topic="big", partition=0, offset=0, max=1, since_ms=0, filter=""),
        one(f.CREATE_TOPIC, f"{partitions:,} partitions", topic="wide-2", partitions=partitions),
        one(f.METADATA, f"{partitions:,} partitions", topic="wide"),
        one(f.SUBSCRIBE, f"joins {partitions:,} partitions", **wide, mode="earliest", member="m"),
        one(f.COMMIT, "the longest names", topic="t", group=name, partition=0, offset=1),
        one(f.DESCRIBE_GROUP, f"{partitions:,} partitions", topic="wide", group="g"),
        one(f.DELETE_GROUP, f"{partitions:,} partitions", topic="wide", group="g"),
        one(f.DELETE_TOPIC, f"{partitions:,} partitions", topic="wide-2"),
        one(f.REGISTER_SCHEMA, f"{mib}, which is refused", name="huge", type="json", schema=objects),
        one(f.REGISTER_SCHEMA, "256 KiB", name="long", type="json", schema=b'{"enum":[%s1]}' % (b'"abc",' * 43_000)),
        zipped(f.VALIDATE_SCHEMA, f"{mib} of {{}}, compressed", name="schema", message=objects),
        one(f.VALIDATE_SCHEMA, f"{mib} of {{}}", name="schema", message=objects),
        one(f.PRODUCE_WITH_SCHEMA, f"{mib} of {{}}, a dead letter", topic="p", schema="schema", data=objects),
        one(f.FETCH_DLQ, "as many as it gives", topic="t", max=1 << 30),
        one(f.DEAD_LETTER, "the longest reason", topic="t", partition=0, offset=1, error="e" * 60_000),
        one(f.PURGE_DLQ, "all of them", topic="t"),
        one(f.PRODUCE_DELAYED, f"a message of {mib}", topic="p", data=text, delay_ms=3_600_000),
        one(f.PRODUCE_WITH_TTL, f"a message of {mib}", topic="p", data=text, ttl_ms=3_600_000),
        one(f.TXN_PRODUCE, f"a message of {mib}", txn_id="none", topic="p", data=text),
        one(f.ACL_SET, "1,000 users", topic="acl-big", public=False, users=[f"u{i}" for i in range(1_000)], roles=[]),
        one(
            f.USER_CREATE, "10,000 roles", **{**_USER, "user": "u", "password": "long enough", "roles": ["r"] * 10_000}
        ),
        one(f.AUDIT_QUERY, "looks at all, finds none", **many),
        one(f.AUDIT_EXPORT, "as many as it gives", query={**_AUDIT, "limit": 1 << 30}, format="csv"),
        one(f.AUDIT_QUERY_SDK, "as many as it gives", **{**_AUDIT, "limit": 1 << 30}),
        one(f.AUDIT_EXPORT_SDK, "as many as it gives", **{**_AUDIT, "limit": 1 << 30, "format": "json"}),
    ]
    return rows


def cold(size: int) -> list[tuple[int, str, Callable[[Fly], bytes]]]:
    """Reads of the largest message from disk: (code, what it is, makes the bytes after it has stored what they ask for)."""
    message = Fly.frame(f.PRODUCE, topic="cold", key=b"", value=b"x" * size, partition=0)
    newest = Fly.frame(f.PRODUCE, topic="p", key=b"k", value=b"v", partition=0)  # this one stays in memory

    def one(code: int, **values: Any) -> tuple[int, str, Callable[[Fly], bytes]]:
        asked = Fly.frame(code, topic="cold", partition=0, offset=0, **values)

        def make(wire: Fly) -> bytes:
            wire.run(message + newest)
            return asked

        return code, f"a message of {size >> 20} MiB, from disk", make

    return [
        one(f.FETCH, max=1),
        one(f.FETCH_BINARY, max=1),
        one(f.CONSUME),
        one(f.CONSUME_ZERO_COPY),
        one(f.PEEK, max=1, since_ms=0, filter=""),
    ]


def txn_commit(wire: Fly, topics: int) -> bytes:
    """The commit of a transaction over so many topics, which is made here."""
    id = wire.ask(f.TXN_BEGIN)["txn_id"]
    wire.run(b"".join(Fly.frame(f.TXN_PRODUCE, txn_id=id, topic=f"topic-{i}", data=b"v") for i in range(topics)))
    return Fly.frame(f.TXN_COMMIT, txn_id=id)


def txn_commit_large(wire: Fly, size: int) -> bytes:
    """The commit of a transaction that holds one message of this size, which is produced here."""
    id = wire.ask(f.TXN_BEGIN)["txn_id"]
    wire.ask(f.TXN_PRODUCE, txn_id=id, topic="big-txn", data=b"x" * size)
    return Fly.frame(f.TXN_COMMIT, txn_id=id)


def dead_letter_large(wire: Fly, size: int) -> bytes:
    """The rejection of a message of this size, which is produced here."""
    offset = wire.ask(f.PRODUCE, topic="big-dead", key=b"", value=b"x" * size, partition=0)["offset"]
    return Fly.frame(f.DEAD_LETTER, topic="big-dead", partition=0, offset=offset, error="e")


def _bury(wire: Fly, topic: str, size: int) -> int:
    """A dead letter of this size; returns the offset of the message it was."""
    offset: int = wire.ask(f.PRODUCE, topic=topic, key=b"", value=b"x" * size, partition=0)["offset"]
    wire.ask(f.DEAD_LETTER, topic=topic, partition=0, offset=offset, error="e")
    return offset


def fetch_dlq_large(wire: Fly, size: int) -> bytes:
    """A look at a dead letter of this size, which is made here."""
    _bury(wire, "big-shown", size)
    return Fly.frame(f.FETCH_DLQ, topic="big-shown", max=1)


def replay_large(wire: Fly, size: int) -> bytes:
    """The replay of a dead letter of this size, which is made here."""
    offset = _bury(wire, "big-again", size)
    return Fly.frame(f.REPLAY_DLQ, topic="big-again", message_id=f"0-{offset // 2}")  # each replay adds a record


def prepare(scale: float, partitions: int) -> list[bytes]:
    """What the broker holds when the walk begins, as requests; each part is sent by itself."""

    def times(count: int, code: int, make: Callable[[int], Values]) -> bytes:
        return b"".join(Fly.frame(code, **make(i)) for i in range(max(1, int(count * scale))))

    return [
        Fly.frame(f.CREATE_TOPIC, topic="wide", partitions=partitions),
        Fly.frame(f.REGISTER_SCHEMA, name="schema", type="json", schema=_SCHEMA),
        Fly.frame(f.PRODUCE, topic="heavy", key=b"", value=b"x" * 100_000, partition=0) * 20,
        times(20_000, f.PRODUCE, lambda i: {"topic": "t", "key": b"k", "value": b'{"a":%d}' % i, "partition": 0}),
        times(4_000, f.COMMIT, lambda i: {"topic": "t", "group": f"g{i}", "partition": 0, "offset": 1}),
        times(1_000, f.CREATE_TOPIC, lambda i: {"topic": f"topic-{i}", "partitions": 1}),
        times(1_000, f.DEAD_LETTER, lambda i: {"topic": "t", "partition": 0, "offset": i, "error": "e"}),
        times(1_000, f.ACL_SET, lambda i: {"topic": f"rule-{i}", "public": False, "users": ["admin"], "roles": []}),
        times(500, f.KEY_CREATE, lambda i: {"user": "", "name": f"k{i}", "expires_s": 0}),
        times(500, f.REGISTER_SCHEMA, lambda i: {"name": f"many-{i}", "type": "json", "schema": _SCHEMA}),
    ]
