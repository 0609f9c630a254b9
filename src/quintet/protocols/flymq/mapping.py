"""FlyMQ's operations <-> the broker's verbs: one handler per row of frames.OPERATIONS, nothing of bytes.

A handler gets the request's fields by name and returns the reply's, or None when the broker answers later through
`call.answer`. Rights were checked by the session's gate before; a handler checks only what the gate cannot know (whose
transaction, whose group: the broker does that, by the principal's name).
"""

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NoReturn

from quintet import kernel
from quintet.broker.atomic.dead_letters import DeadLetter
from quintet.broker.atomic.delays import DELAY_MAX_US
from quintet.broker.audit.audit_log import Event, Query
from quintet.broker.consumers.group import Assignment, GroupInfo, Lag
from quintet.broker.core import Broker
from quintet.broker.identity.access import ANONYMOUS, Acl, Principal, Role
from quintet.broker.identity.keys import Explanation, KeyInfo
from quintet.broker.identity.users import UserInfo
from quintet.broker.schemas.registry import Schema
from quintet.broker.slices import Unwanted, in_order
from quintet.broker.topics import filters, reads
from quintet.broker.topics.catalog import ANY, Topic
from quintet.broker.topics.long_polls import Wait
from quintet.model.batch import RecordBatch, Row
from quintet.model.errors import BadRequest, LimitExceeded, QuintetError, UserNotFound
from quintet.model.tasks import start
from quintet.protocols.flymq import codec, frames
from quintet.protocols.flymq.errors import OTHER_DIALECT, OtherDialect

FETCH_RECORDS_DEFAULT: Final = 10  # when the request asks for none
FETCH_RECORDS_MAX: Final = 100_000
FETCH_BYTES_MAX: Final = 4 << 20  # of one reply, unless one message alone is larger
SCAN_RECORDS_MAX: Final = 1_000  # looked at by one request with a filter
OFFSET_MAX: Final = (1 << 63) - 1  # the log counts this far; the wire could ask for more
WAIT_MS_MAX: Final = 30_000
TTL_MS_MAX: Final = 10 * 365 * 86_400_000
DLQ_RECORDS_MAX: Final = 1_000
METADATA_PARTITIONS_MAX: Final = 100_000  # of one CLUSTER_METADATA: some 100 bytes each, and far more while it is made
NODE: Final = "quintet"
CLUSTER: Final = "standalone"

_OFFSET_TIME: Final = struct.Struct("<Q8xq")  # base_offset at 16 and timestamp at 32 of a batch

Values = codec.Values
Handler = Callable[["Call", Values], "Values | bytes | None"]


class Call:
    """One request on its way: who asks, when, through which listener, and where the late answer goes."""

    __slots__ = (
        "accept", "answer", "broker", "claim", "code", "given", "member", "now", "options", "origin", "peer", "principal",
        "waiting",
    )  # fmt: skip

    answer: Callable[[Any, Exception | None], None]
    claim: Callable[[Any, int, Callable[[], None]], None]

    def __init__(
        self, broker: Broker, principal: Principal, member: Any, now: int, options: "Any", origin: bytes, peer: str,
        accept: int, code: int,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.principal = principal
        self.member = member
        self.now, self.options, self.origin, self.peer = now, options, origin, peer
        self.accept = accept
        self.code = code
        self.waiting: Wait | None = None  # for something new to read
        self.given: list[tuple[int, int]] = []  # ranges of offsets whose records are in the answer, for the audit

    @property
    def owner(self) -> str:
        return self.principal.name

    def wanted(self) -> bool:
        """Does the client still wait for the answer?"""
        return not self.member.gone

    @property
    def patience(self) -> reads.Patience:
        return reads.Patience(self.broker.slices, self.wanted)

    def topic(self, ask: Values) -> Topic:
        return self.broker.topics.find(ask["topic"].encode())

    def target(self, ask: Values) -> Topic:
        return self.broker.publish_target(self.principal, ask["topic"].encode(), durable=True, peer=self.peer)

    def then(self, make: Callable[[Any], Values | bytes]) -> Callable[[Any, Exception | None], None]:
        """The callback for a verb with (result, error): answers with what `make` makes of the result."""

        def done(result: Any, error: Exception | None) -> None:
            made: Values | bytes | None = None
            if error is None:
                try:
                    made = make(result)
                except QuintetError as refused:
                    error = refused
            if not isinstance(error, Unwanted):
                self.answer(made, error)

        return done

    def when_durable(self, values: Values) -> Callable[[Exception | None], None]:
        """The callback for a verb with (error) alone."""
        return lambda error: self.answer(values if error is None else None, error)

    def group_rights(self, group: str) -> tuple[str, bool]:
        access = self.broker.access
        return self.owner, access.may_administer(self.principal) or access.listed(self.principal, f"group:{group}")

    def place(self, ask: Values) -> tuple[str, bool, Topic, str, int]:
        """Who asks, and of which place of which group."""
        return *self.group_rights(ask["group"]), self.topic(ask), ask["group"], ask["partition"]


def _done(message: str = "") -> Values:
    return {"success": True, "message": message}


def _each(make: Callable[[Any], Values], found: Iterator[Any]) -> Iterator[Values | None]:
    """A list that is made while it is written; None in it is a pause."""
    return (None if one is None else make(one) for one in found)


# -- messages ---------------------------------------------------------------------------------------------------------


def _metadata(topic: Topic, partition: int, at: tuple[int, int], key: bytes | None, value: bytes) -> Values:
    sizes = {"key_size": len(key) if key else -1, "value_size": len(value)}
    return {"topic": topic.name, "partition": partition, "offset": at[0], "timestamp_ms": at[1] // 1000} | sizes


def _publish(call: Call, ask: Values, expiry: int = 0) -> None:
    """Append the one message of a request that is not a plain PRODUCE. A thread builds the batch of a large one."""
    topic = call.target(ask)
    key, value, asked = ask.get("key") or None, ask["data"], ask.get("partition", ANY)
    place = topic.choose(None) if asked == ANY and key is None else asked

    def build() -> tuple[int, bytearray]:
        batch = kernel.build([value], [key], expiries=[expiry], origin=call.origin)
        return topic.choose(key) if place == ANY else place, batch

    if len(value) + len(key or b"") > frames.LARGE_BYTES:
        call.broker.elsewhere.run(build, partial(_append, call, ask, None), call.wanted)
    else:
        _append(call, ask, topic, build())


def _append(call: Call, ask: Values, topic: Topic | None, made: tuple[int, bytearray] | Exception) -> None:
    try:
        if isinstance(made, Exception):
            raise made
        (place, batch), now = made, topic or call.target(ask)  # if there was a wait, the right may be gone
        at = partial(_OFFSET_TIME.unpack_from, batch, 16)
        made_of = call.then(lambda _: _metadata(now, place, at(), ask.get("key"), ask["data"]))
        now.publish(batch, 1, True, made_of, place)
    except Exception as error:
        call.answer(None, error)


def _consume(call: Call, ask: Values) -> None:
    partition = call.topic(ask).partition(ask["partition"])
    call.given = [(ask["offset"], ask["offset"] + 1)]
    made = call.then(lambda found: {"key": found[0] or b"", "value": found[1] or b""})
    call.claim(partition, ask["offset"], lambda: start(reads.consume(partition, ask["offset"], call.now)).then(made))


def _fetch(call: Call, ask: Values) -> Values | None:
    topic = call.topic(ask)
    partition = topic.partition(ask["partition"])
    most = min(ask["max"], FETCH_RECORDS_MAX) if ask["max"] > 0 else FETCH_RECORDS_DEFAULT
    offset, sdk = ask["offset"], call.options.dialect == "sdk"
    if not sdk and ask.get("filter") == "" and "wait_ms" not in ask:
        raise OtherDialect(OTHER_DIALECT)
    size = codec.COMPRESS_BYTES_MAX if call.accept else FETCH_BYTES_MAX
    if offset > OFFSET_MAX:
        return {"messages": [], "next_offset": offset}
    now = call.broker.scheduler.now  # of the answer: the request may have waited

    def encode(batches: list[RecordBatch]) -> bytes:
        buffers = [batch.buffer for batch in batches]
        first = max(offset, partition.start) if buffers else offset
        reply, count, last = kernel.fly_fetch(buffers, first, most, size, now(), call.code, frames.BINARY, sdk)
        call.given = [(first, last)] if count else []
        return codec.frame(call.code, reply[frames.HEADER_BYTES :], call.accept) if call.accept else reply

    chosen = filters.compile(ask["filter"].encode()) if ask.get("filter") else None

    def search() -> None:
        if chosen is None:
            start(reads.fetch(partition, offset, most, size)).then(call.then(encode))
        else:
            scan = reads.fetch_filtered(partition, offset, most, SCAN_RECORDS_MAX, chosen, now(), call.patience)
            start(scan).then(call.then(lambda found: _filtered(call, *found)))

    def read(gone: Exception | None = None) -> None:
        if gone is None:
            call.claim(partition, offset, search)
        else:
            call.answer(None, gone)

    wait_us = min(ask.get("wait_ms", 0), WAIT_MS_MAX) * 1000
    if wait_us and offset >= partition.visible:
        call.waiting = call.broker.wait_for(topic, partition, wait_us, read)
    else:
        read()
    return None


def _filtered(call: Call, matches: list[reads.Match], following: int) -> Values:
    messages = ({"offset": offset, "key": key or b"", "value": value or b""} for offset, key, value in matches)
    call.given = reads.ranges([offset for offset, _, _ in matches])
    return {"messages": messages, "next_offset": following}


def _peek(call: Call, ask: Values) -> None:
    partition = call.topic(ask).partition(ask["partition"])
    most = ask["max"] if ask["max"] > 0 else FETCH_RECORDS_DEFAULT
    chosen = filters.compile(ask["filter"].encode())
    what = (partition, ask["offset"], ask["since_ms"] * 1000, most, chosen, call.now, call.patience)
    made = call.then(lambda found: _peeked(call, *found))
    call.claim(partition, ask["offset"], lambda: start(reads.peek(*what)).then(made))


def _peeked(call: Call, rows: list[Row], following: int) -> Values:
    call.given = reads.ranges([row[0] for row in rows])
    messages = (
        {"offset": offset, "timestamp_ms": time // 1000, "expiry_ms": expiry // 1000}
        | {"key": key or b"", "value": value or b"", "origin": origin.decode(errors="replace")}
        | {"headers": [{"name": name, "value": text or b""} for name, text in headers]}
        for offset, time, key, value, headers, expiry, origin in rows
    )
    return {"messages": messages, "next_offset": following}


def _produce_with_ttl(call: Call, ask: Values) -> None:
    if not 0 < ask["ttl_ms"] <= TTL_MS_MAX:
        raise BadRequest(f"ttl_ms is 1 to {TTL_MS_MAX}, not {ask['ttl_ms']}")
    _publish(call, ask, call.now + ask["ttl_ms"] * 1000)


def _produce_delayed(call: Call, ask: Values) -> None:
    if not 0 <= ask["delay_ms"] * 1000 <= DELAY_MAX_US:
        raise BadRequest(f"delay_ms is 0 to {DELAY_MAX_US // 1000} (365 days), not {ask['delay_ms']}")
    topic = call.target(ask)
    key, value, asked = ask.get("key") or None, ask["data"], ask.get("partition", ANY)
    due = call.now + ask["delay_ms"] * 1000
    made = call.then(lambda handle: _metadata(topic, max(asked, 0), (handle, due), key, value))
    call.broker.delays.produce(call.owner, topic, asked, key, value, (), due, call.origin, made)


def _cancel_delayed(call: Call, ask: Values) -> None:
    who = (call.owner, call.broker.access.may_administer(call.principal))
    call.broker.delays.cancel(*who, ask["topic"], ask["handle"], call.when_durable(_done("cancelled")))


# -- topics -----------------------------------------------------------------------------------------------------------


def _create_topic(call: Call, ask: Values) -> None:
    wish = (ask.get("durability", ""), ask.get("retention_ms", 0) * 1000, ask.get("retention_bytes", 0))
    topic, new = call.broker.create_topic(ask["topic"].encode(), ask["partitions"], *wish)
    topic.after(call.when_durable(_done("created" if new else "exists")))


def _delete_topic(call: Call, ask: Values) -> None:
    made = call.then(lambda was_there: _done("deleted" if was_there else "there was no such topic"))
    start(call.broker.delete_topic(ask["topic"].encode())).then(made)


def _may_see(call: Call, name: str) -> bool:
    allowed = call.broker.access.allowed
    return allowed(call.principal, "subscribe", name) or allowed(call.principal, "publish", name)


def _require_sight(call: Call, name: str) -> None:
    """For names that the gate did not look at. Asked before the thing is looked up: a refusal tells not if it exists."""
    if not _may_see(call, name):
        call.broker.access.require(call.principal, "subscribe", name, call.peer)


def _visible_topics(call: Call) -> Iterator[Topic | None]:
    """By name; None is a pause, and what may not be seen."""
    for topic in in_order(call.broker.topics.all(), lambda topic: topic.name):
        yield topic if topic is not None and _may_see(call, topic.name) else None


def _list_topics(call: Call, _ask: Values) -> Values:
    return {"topics": (topic and topic.name for topic in _visible_topics(call))}


def _topic_metadata(call: Call, ask: Values) -> Values:
    topic = call.topic(ask)
    rows = [
        {"id": number, "leader": 0, "oldest": partition.start, "newest": partition.visible}
        for number, partition in enumerate(topic.partitions)
    ]
    return {"topic": topic.name, "partitions": rows}


def _cluster_metadata(call: Call, ask: Values) -> Values:
    if ask.get("topic"):
        _require_sight(call, ask["topic"])
    topics = iter([call.topic(ask)]) if ask.get("topic") else _visible_topics(call)
    return {"cluster_id": CLUSTER, "topics": _places(call, topics)}


def _places(call: Call, topics: Iterator[Topic | None]) -> Iterator[Values | None]:
    served = {"leader_id": NODE, "leader_address": call.options.address, "epoch": 1, "replicas": [NODE], "isr": [NODE]}
    room = METADATA_PARTITIONS_MAX
    for topic in topics:
        if topic is None:
            yield None
            continue
        room -= len(topic.partitions)
        if room < 0:
            raise LimitExceeded(f"more than {METADATA_PARTITIONS_MAX} partitions", hint="ask for one topic at a time")
        places = [
            served | {"partition": number, "state": "online" if partition.failure is None else "read-only"}
            for number, partition in enumerate(topic.partitions)
        ]
        yield {"topic": topic.name, "partitions": places}


def _cluster_status(call: Call, _ask: Values) -> Values:
    topics = call.broker.topics.all()
    node = {"id": NODE, "address": call.options.address, "role": "leader", "state": "online"}
    state = "draining" if call.broker.draining else "online"
    counts = {"topics": len(topics), "partitions": sum(len(topic.partitions) for topic in topics)}
    return {"cluster_id": CLUSTER, "node_id": NODE, "state": state, "nodes": [node]} | counts


def _no_cluster(_call: Call, _ask: Values) -> NoReturn:
    """An ERROR: published clients take any other reply for success."""
    raise BadRequest("this broker is one node: it cannot join others or leave them")


# -- schemas ----------------------------------------------------------------------------------------------------------


def _schema_row(schema: Schema) -> Values:
    return {"name": schema.id, "type": schema.type, "version": schema.version}


def _register_schema(call: Call, ask: Values) -> None:
    made = call.then(lambda s: {"name": s.name, "type": s.type, "version": s.version})
    what = (ask["name"], ask["type"], ask["schema"], ask.get("compatibility") or None)
    start(call.broker.schemas.register(*what, call.wanted)).then(made)


def _get_schema(call: Call, ask: Values) -> Values:
    schema = call.broker.schemas.get(ask["topic"], ask["version"])
    row = _schema_row(schema)
    found = row | {"id": schema.id, "topic": schema.name, "schemas": [row]}
    return found | {"definition": schema.definition, "compatibility": schema.compatibility}


def _list_schemas(call: Call, ask: Values) -> Values:
    schemas = call.broker.schemas.walk(ask.get("topic") or None)
    return {"schemas": (_schema_row(s) if s is not None and _may_see(call, s.name) else None for s in schemas)}


def _find_schema(call: Call, name_or_id: str) -> Schema:
    """The gate saw the text of the request, which may be the id of a version: the right is that to its name."""
    _require_sight(call, name_or_id)
    schema = call.broker.schemas.find(name_or_id)
    _require_sight(call, schema.name)
    return schema


def _validate_schema(call: Call, ask: Values) -> None:
    schema = _find_schema(call, ask["name"])
    made = call.then(lambda reasons: {"valid": not reasons, "errors": reasons})
    start(call.broker.schemas.judge(schema.name, schema.version, ask["message"], call.wanted)).then(made)


def _produce_with_schema(call: Call, ask: Values) -> None:
    schema = _find_schema(call, ask["schema"])
    start(_judge_and_publish(call, ask, schema))


async def _judge_and_publish(call: Call, ask: Values, schema: Schema) -> None:
    try:
        reasons = await call.broker.schemas.judge(schema.name, schema.version, ask["data"], call.wanted)
        if reasons:
            topic, key = call.target(ask), ask.get("key") or None
            await call.broker.reject(topic, schema, reasons, key, ask["data"], call.origin)
        _publish(call, ask)
    except Exception as error:
        if not isinstance(error, Unwanted):
            call.answer(None, error)


def _delete_schema(call: Call, ask: Values) -> None:
    start(call.broker.schemas.delete(ask["topic"], ask["version"])).then(call.then(lambda _: _done("OK")))


# -- dead letters -----------------------------------------------------------------------------------------------------


def _fetch_dlq(call: Call, ask: Values) -> None:
    most = min(ask["max"], DLQ_RECORDS_MAX) if ask["max"] > 0 else FETCH_RECORDS_DEFAULT

    def made(letters: list[DeadLetter]) -> Values:
        details = {"details": _each(DeadLetter.details, iter(letters))} if "after" in ask else {}
        return {"messages": _each(DeadLetter.fields, iter(letters))} | details

    source = call.broker.dead_letters_of(call.principal, ask["topic"], call.peer)
    call.broker.dead.browse(source, most, ask.get("after", ""), call.then(made), call.patience)


def _list_dlq(call: Call, _ask: Values) -> Values:
    return {"topics": [{"topic": t, "letters": n} for t, n in call.broker.dead_letter_counts(call.principal)]}


def _replay_dlq(call: Call, ask: Values) -> None:
    source = call.broker.dead_letters_of(call.principal, ask["topic"], call.peer)
    if "ids" in ask:

        def replayed(count: int, missing: list[str], error: Exception | None) -> None:
            call.answer(_done("OK") | {"replayed": count, "missing": missing} if error is None else None, error)

        call.broker.dead.replay_many(source, ask["ids"], replayed)
        return
    id = ask["message_id"] if "message_id" in ask else f"0-{ask['offset']}"
    call.broker.dead.replay(source, id, ask.get("value"), call.when_durable(_done("OK")))


def _purge_dlq(call: Call, ask: Values) -> None:
    call.broker.dead.purge(ask["topic"].encode(), call.then(lambda count: _done(f"{count} forgotten")))


def _dead_letter(call: Call, ask: Values) -> None:
    made, tries = call.then(lambda new: _done("OK" if new else "it is there already")), ask.get("attempts", 1)
    call.broker.dead.reject(call.topic(ask), ask["partition"], ask["offset"], ask["error"], made, tries)


# -- transactions -----------------------------------------------------------------------------------------------------


def _txn_begin(call: Call, ask: Values) -> Values:
    timeout_us = ask.get("timeout_ms", 0) * 1000
    id = call.broker.transactions.begin(call.owner, ask.get("transactional_id", ""), timeout_us)
    return {"txn_id": id, "success": True}


def _txn_produce(call: Call, ask: Values) -> Values:
    call.broker.transactions.check_open(call.owner, ask["txn_id"])
    topic = call.target(ask)
    where, what = (topic, ask.get("partition", ANY)), (ask.get("key") or None, ask["data"])
    chosen = call.broker.transactions.produce(call.owner, ask["txn_id"], *where, *what, call.origin)
    return _metadata(topic, chosen, (0, call.now), *what)


def _txn_commit(call: Call, ask: Values) -> None:
    done = call.when_durable({"txn_id": ask["txn_id"], "success": True})
    may = partial(call.broker.access.require, call.principal, "publish")
    call.broker.transactions.commit(call.owner, ask["txn_id"], done, may)


def _txn_rollback(call: Call, ask: Values) -> Values:
    call.broker.transactions.abort(call.owner, ask["txn_id"])
    return {"txn_id": ask["txn_id"], "success": True}


# -- groups -----------------------------------------------------------------------------------------------------------


def _subscribe(call: Call, ask: Values) -> None:
    def made(assignment: Assignment) -> Values:
        if ask["partition"] != ANY:
            return {"offset": assignment.offset}
        rows = [{"partition": partition, "offset": offset} for partition, offset in assignment.partitions]
        return {"offset": assignment.offset, "generation": assignment.generation, "assigned": rows}

    mode = "commit" if ask["mode"] == "committed" else ask["mode"]
    who = (call.member, ask.get("member", ""))
    call.broker.groups.subscribe(*call.place(ask), mode, *who, call.then(made))


def _commit(call: Call, ask: Values) -> Values | None:
    groups = call.broker.groups
    where = (*call.place(ask), ask["offset"], ask.get("generation") or None)
    if not ask.get("txn_id"):
        groups.commit(*where, call.member, call.then(lambda _: _done()))
        return None
    call.broker.transactions.check_open(call.owner, ask["txn_id"])
    payload = groups.prepare_commit(*where, call.member)
    check = partial(groups.check_commit, ask["topic"], ask["group"], ask["partition"], where[-1], call.member)
    call.broker.transactions.add_effect(call.owner, ask["txn_id"], ("offset", payload), check)
    return _done("part of the transaction")


def _get_offset(call: Call, ask: Values) -> Values:
    return {"offset": call.broker.groups.get_offset(*call.place(ask))}


def _reset_offset(call: Call, ask: Values) -> None:
    if ask["mode"] in ("offset", "timestamp") and "offset" not in ask:
        raise BadRequest(f"mode {ask['mode']} needs a number behind it")
    made = call.then(lambda offset: _done(f"at {offset}"))
    call.broker.groups.reset(*call.place(ask), ask["mode"], ask.get("offset", 0), made)


def _seek_to_timestamp(call: Call, ask: Values) -> None:
    made = call.then(lambda offset: {"offset": offset})
    call.broker.groups.seek_to_timestamp(*call.place(ask), ask["timestamp_ms"], made)


def _get_lag(call: Call, ask: Values) -> None:
    def made(lag: Lag) -> Values:
        places = {"current": lag.committed, "committed": lag.committed, "latest": lag.latest}
        return places | {"lag": lag.lag_messages, "lag_ms": lag.lag_ms}

    call.broker.groups.lag(*call.place(ask), call.then(made))


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
    return {"groups": _each(_group, found)}


def _describe_group(call: Call, ask: Values) -> Values:
    rights = call.group_rights(ask["group"])
    return _group(call.broker.groups.describe(*rights, ask.get("topic", ""), ask["group"]))


def _delete_group(call: Call, ask: Values) -> None:
    group = ask["group"]
    topic = call.broker.groups.topic_of(call.owner, ask.get("topic", ""), group)
    if topic:
        call.broker.access.require(call.principal, "subscribe", topic, call.peer)
    call.broker.groups.delete(*call.group_rights(group), topic, group, call.then(lambda _: _done()))


# -- who --------------------------------------------------------------------------------------------------------------


def _whoami(call: Call, _ask: Values) -> Values:
    roles = list(call.principal.roles)
    if call.options.dialect == "sdk":
        roles += [""] * len(roles)  # one published client reads str16 here, the other str8: both can read this
    permissions = list(call.principal.permissions)
    return {"success": call.owner != ANONYMOUS, "username": call.owner, "roles": roles, "permissions": permissions}


def _fields(info: UserInfo | KeyInfo | Explanation | Role) -> Values:
    return {name: getattr(info, name) for name in info.__slots__}


def _user(info: UserInfo) -> Values:
    return _fields(info) | {"user": info.name}


def _user_create(call: Call, ask: Values) -> None:
    call.broker.users.create(
        call.principal, ask["user"], ask["password"].encode(), ask["roles"], call.then(_user), peer=call.peer
    )


def _named(call: Call, ask: Values) -> Callable[[Any, Exception | None], None]:
    return call.then(lambda _: {"success": True, "user": ask["user"]})


def _user_delete(call: Call, ask: Values) -> None:
    call.broker.users.delete(call.principal, ask["user"], _named(call, ask), peer=call.peer)


def _user_update(call: Call, ask: Values) -> None:
    password = ask["password"].encode() or None
    call.broker.users.update(
        call.principal, ask["user"], ask["roles"], ask["enabled"], password, _named(call, ask), peer=call.peer
    )


def _user_list(call: Call, _ask: Values) -> Values:
    return {"users": _each(_user, call.broker.users.walk())}


def _user_get(call: Call, ask: Values) -> Values:
    info = call.broker.users.get(ask["user"])
    if info is None:
        raise UserNotFound(f"user not found: {ask['user']}")
    return _user(info)


def _password_change(call: Call, ask: Values) -> None:
    old, new = ask["old_password"].encode(), ask["password"].encode()
    call.broker.users.change_password(call.principal, ask["user"], old, new, _named(call, ask), peer=call.peer)


def _role_list(call: Call, _ask: Values) -> Values:
    return {"roles": [_fields(role) | {"permissions": role.permissions} for role in call.broker.users.roles()]}


def _acl(acl: Acl) -> Values:
    users, roles = list(acl.users), list(acl.roles)
    return {"topic": acl.pattern, "exists": True, "public": acl.public, "users": users, "roles": roles}


def _acl_set(call: Call, ask: Values) -> None:
    acl = Acl(ask["topic"], ask["public"], tuple(ask["users"]), tuple(ask["roles"]))
    done = call.then(lambda _: {"success": True, "topic": ask["topic"]})
    call.broker.users.acl_set(call.principal, acl, done, peer=call.peer)


def _acl_get(call: Call, ask: Values) -> Values:
    acl = call.broker.users.acl_get(ask["topic"])
    found = _acl(acl) if acl else {"topic": ask["topic"], "exists": False, "public": False, "users": [], "roles": []}
    return found | {"default_public": False}


def _acl_delete(call: Call, ask: Values) -> None:
    done = call.then(lambda _: {"success": True, "topic": ask["topic"]})
    call.broker.users.acl_delete(call.principal, ask["topic"], done, peer=call.peer)


def _acl_list(call: Call, _ask: Values) -> Values:
    return {"rules": _each(_acl, call.broker.users.acl_walk()), "default_public": False}


def _acl_explain(call: Call, ask: Values) -> Values:
    found = call.broker.keys.explain(ask["who"], ask["action"], ask["topic"])
    steps = [dict(zip(("topic", "rule", "outcome", "why"), step, strict=True)) for step in found.steps]
    return _fields(found) | {"steps": steps}


def _key_create(call: Call, ask: Values) -> None:
    made = call.then(lambda key: _fields(key.info) | {"secret": key.secret})
    call.broker.keys.create(call.principal, ask["user"], ask["name"], ask["expires_s"], made, peer=call.peer)


def _key_list(call: Call, ask: Values) -> Values:
    found = call.broker.keys.walk(call.principal, ask["user"], ask["everyone"], call.peer)
    return {"keys": _each(_fields, found)}


def _key_remove(call: Call, ask: Values) -> None:
    call.broker.keys.remove(call.principal, ask["user"], ask["id"], call.then(lambda _: _done()), peer=call.peer)


# -- audit ------------------------------------------------------------------------------------------------------------


def _audit_query(call: Call, ask: Values) -> None:
    made = call.then(lambda found: {"events": _each(Event.fields, iter(found[0])), "total": found[1], "more": found[2]})
    call.broker.slices.run(call.broker.audit.query_steps(Query.asked(ask)), made, call.wanted)


def _audit_export(call: Call, ask: Values) -> None:
    made = call.then(lambda data: {"format": ask["format"], "data": data})
    steps = call.broker.audit.export_steps(Query.asked(ask.get("query", ask)), ask["format"])
    call.broker.slices.run(steps, made, call.wanted)


HANDLERS: Final[dict[int, Handler]] = {
    frames.CONSUME: _consume, frames.CREATE_TOPIC: _create_topic, frames.METADATA: _topic_metadata,
    frames.SUBSCRIBE: _subscribe, frames.COMMIT: _commit, frames.FETCH: _fetch, frames.LIST_TOPICS: _list_topics,
    frames.DELETE_TOPIC: _delete_topic, frames.CONSUME_ZERO_COPY: _consume, frames.FETCH_BINARY: _fetch,
    frames.PEEK: _peek, frames.REGISTER_SCHEMA: _register_schema, frames.GET_SCHEMA: _get_schema,
    frames.LIST_SCHEMAS: _list_schemas, frames.VALIDATE_SCHEMA: _validate_schema,
    frames.PRODUCE_WITH_SCHEMA: _produce_with_schema, frames.DELETE_SCHEMA: _delete_schema,
    frames.FETCH_DLQ: _fetch_dlq, frames.REPLAY_DLQ: _replay_dlq, frames.PURGE_DLQ: _purge_dlq,
    frames.LIST_DLQ: _list_dlq, frames.DEAD_LETTER: _dead_letter, frames.PRODUCE_DELAYED: _produce_delayed, frames.CANCEL_DELAYED: _cancel_delayed,
    frames.PRODUCE_WITH_TTL: _produce_with_ttl, frames.TXN_BEGIN: _txn_begin, frames.TXN_COMMIT: _txn_commit,
    frames.TXN_ROLLBACK: _txn_rollback, frames.TXN_PRODUCE: _txn_produce, frames.CLUSTER_JOIN: _no_cluster,
    frames.CLUSTER_LEAVE: _no_cluster, frames.CLUSTER_STATUS: _cluster_status,
    frames.CLUSTER_METADATA: _cluster_metadata, frames.GET_OFFSET: _get_offset, frames.RESET_OFFSET: _reset_offset,
    frames.LIST_GROUPS: _list_groups, frames.DESCRIBE_GROUP: _describe_group, frames.GET_LAG: _get_lag,
    frames.DELETE_GROUP: _delete_group, frames.SEEK_TO_TIMESTAMP: _seek_to_timestamp, frames.WHOAMI: _whoami,
    frames.USER_CREATE: _user_create, frames.USER_DELETE: _user_delete, frames.USER_UPDATE: _user_update,
    frames.USER_LIST: _user_list, frames.USER_GET: _user_get, frames.ACL_SET: _acl_set, frames.ACL_GET: _acl_get,
    frames.ACL_DELETE: _acl_delete, frames.ACL_LIST: _acl_list, frames.PASSWORD_CHANGE: _password_change,
    frames.ROLE_LIST: _role_list, frames.AUDIT_QUERY: _audit_query, frames.AUDIT_EXPORT: _audit_export,
    frames.AUDIT_QUERY_SDK: _audit_query, frames.AUDIT_EXPORT_SDK: _audit_export, frames.ACL_EXPLAIN: _acl_explain,
    frames.KEY_CREATE: _key_create, frames.KEY_LIST: _key_list, frames.KEY_REMOVE: _key_remove,
}  # fmt: skip

# PRODUCE and AUTH are the session's own: the hot path, and the one before anybody is known.
assert set(HANDLERS) | {frames.PRODUCE, frames.AUTH} == set(frames.OPERATIONS), "every operation has one handler"
