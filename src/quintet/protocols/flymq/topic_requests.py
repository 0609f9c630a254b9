"""Answers FlyMQ's requests about topics: create, list, delete, where they are served, and their schemas."""

from collections.abc import Iterator
from typing import Final, NoReturn

from quintet.broker.cluster import STANDALONE_ID, leader_of
from quintet.broker.schemas.registry import Schema
from quintet.broker.slices import in_order
from quintet.broker.topics.catalog import Topic
from quintet.model.errors import BadRequest, LimitExceeded
from quintet.protocols.flymq import frames, record_requests
from quintet.protocols.flymq.call import Call, Handler, Values, success
from quintet.protocols.flymq.message_requests import publish

METADATA_PARTITIONS_MAX: Final = 100_000  # of one CLUSTER_METADATA: some 100 bytes each, and far more while it is made


# -- topics -----------------------------------------------------------------------------------------------------------


def _create_topic(call: Call, ask: Values) -> None:
    wish = (ask.get("durability", ""), ask.get("retention_ms", 0) * 1000, ask.get("retention_bytes", 0))
    topic, new = call.broker.create_topic(ask["topic"].encode(), ask["partitions"], *wish, owner=call.owner)
    topic.after(call.when_durable(success("created" if new else "exists")))


def _delete_topic(call: Call, ask: Values) -> None:
    deleted = call.broker.delete_topic(ask["topic"].encode())
    call.run(deleted, lambda was_there: success("deleted" if was_there else "there was no such topic"))


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


def _topic_metadata(call: Call, ask: Values) -> Values | None:
    name = ask["topic"].encode()
    if ask.get("make") and call.broker.topics.get(name) is None:
        call.run(_make_topic(call, ask["topic"]), lambda topic: _metadata_of(call, topic))
        return None
    return _metadata_of(call, call.topic(ask))


async def _make_topic(call: Call, name: str) -> Topic:
    """As a subscription at another door makes it: for whoever may read it."""
    call.broker.access.require(call.principal, "subscribe", name, call.peer)
    topic = call.broker.topics.ensure(name.encode(), durable=True, owner=call.owner)
    await topic.ready()
    return topic


def _metadata_of(call: Call, topic: Topic) -> Values:
    leader, _ = leader_of(call.broker.cluster)
    rows = [
        {"id": number, "leader": leader, "oldest": partition.start, "newest": partition.visible}
        for number, partition in enumerate(topic.partitions)
    ]
    return {"topic": topic.name, "partitions": rows}


def _alter_topic(call: Call, ask: Values) -> None:
    retention_us = ask["retention_ms"] * 1000 if ask["retention_ms"] >= 0 else ask["retention_ms"]
    altered = call.broker.topics.alter(ask["topic"].encode(), ask["durability"], retention_us, ask["retention_bytes"])

    def properties(topic: Topic) -> Values:
        spec = topic.spec
        kept = {"retention_ms": spec.retention_us // 1000, "retention_bytes": spec.retention_bytes}
        return {"partitions": len(topic.partitions), "durability": spec.durability} | kept

    call.run(altered, properties)


def _purge_topic(call: Call, ask: Values) -> None:
    call.run(call.broker.purge_topic(ask["topic"].encode()), lambda _: success("purged"))


def _match_topics(call: Call, ask: Values) -> None:
    """The version counts topics made and deleted, and changes of rights, so that a client may ask often."""
    access = call.broker.access
    version = call.broker.topics_version
    if ask["version"] == version:
        call.answer({"version": version, "changed": False, "topics": []}, None)
        return
    names = call.broker.matching_topics(ask["patterns"], lambda name: access.allowed(call.principal, "subscribe", name))
    found = call.broker.slices.finish(names, call.wanted)
    found.then(call.then(lambda topics: {"version": version, "changed": True, "topics": topics}))


def _cluster_metadata(call: Call, ask: Values) -> Values:
    if ask.get("topic"):
        _require_sight(call, ask["topic"])
    topics = iter([call.topic(ask)]) if ask.get("topic") else _visible_topics(call)
    return {"cluster_id": call.broker.cluster.cluster_id, "topics": _places(call, topics)}


def _places(call: Call, topics: Iterator[Topic | None]) -> Iterator[Values | None]:
    view = call.broker.cluster
    _, leader = leader_of(view)
    served: Values = {
        "leader_id": leader.id if leader is not None else "",
        "leader_address": leader.address(call.address) if leader is not None else "",
        "epoch": view.epoch,
        "replicas": [node.id for node in view.nodes],
        "isr": [node.id for node in view.nodes if node.in_sync and node.state == "online"],
    }
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
    view = call.broker.cluster
    nodes = [
        {"id": node.id, "address": node.address(call.address), "role": node.role, "state": node.state}
        for node in view.nodes
    ]
    state = "draining" if call.broker.draining else "online"
    counts = {"topics": len(topics), "partitions": sum(len(topic.partitions) for topic in topics)}
    return {"cluster_id": view.cluster_id, "node_id": view.node_id, "state": state, "nodes": nodes} | counts


def _no_membership(call: Call, _ask: Values) -> NoReturn:
    """An ERROR: published clients take any other reply for success."""
    cluster = call.broker.cluster.cluster_id
    if cluster == STANDALONE_ID:
        raise BadRequest("this broker is one node: it cannot join others or leave them")
    raise BadRequest(
        f"nodes are not joined to cluster {cluster!r} or taken out of it by a request",
        hint="start a node with the configuration of the cluster, or stop it",
    )


# -- schemas ----------------------------------------------------------------------------------------------------------


def _schema_row(schema: Schema) -> Values:
    return {"name": schema.id, "type": schema.type, "version": schema.version}


def _register_schema(call: Call, ask: Values) -> None:
    what = (ask["name"], ask["type"], ask["schema"], ask.get("compatibility") or None)
    registered = call.broker.schemas.register(*what, call.wanted)
    call.run(registered, lambda s: {"name": s.name, "type": s.type, "version": s.version})


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
    judged = call.broker.schemas.judge(schema.name, schema.version, ask["message"], call.wanted)
    call.run(judged, lambda reasons: {"valid": not reasons, "errors": reasons})


def _produce_with_schema(call: Call, ask: Values) -> None:
    call.run(_judge_and_publish(call, ask, _find_schema(call, ask["schema"])), lambda made: made)


async def _judge_and_publish(call: Call, ask: Values, schema: Schema) -> Values:
    reasons = await call.broker.schemas.judge(schema.name, schema.version, ask["data"], call.wanted)
    if reasons:
        topic, key = call.target(ask), ask.get("key") or None
        await call.broker.reject(topic, schema, reasons, key, ask["data"], call.origin)
    return await publish(call, ask)


def _produce_records(call: Call, ask: Values) -> None:
    """What the session does not publish by itself: see record_requests.is_plain."""
    schema = _find_schema(call, ask["schema"]) if ask["schema"] else None
    call.run(record_requests.produce_one(call, ask, schema), lambda made: made)


def _delete_schema(call: Call, ask: Values) -> None:
    call.run(call.broker.schemas.delete(ask["topic"], ask["version"]), lambda _: success("OK"))


HANDLERS: Final[dict[int, Handler]] = {
    frames.CREATE_TOPIC: _create_topic, frames.METADATA: _topic_metadata, frames.LIST_TOPICS: _list_topics,
    frames.DELETE_TOPIC: _delete_topic, frames.REGISTER_SCHEMA: _register_schema, frames.GET_SCHEMA: _get_schema,
    frames.LIST_SCHEMAS: _list_schemas, frames.VALIDATE_SCHEMA: _validate_schema,
    frames.PRODUCE_WITH_SCHEMA: _produce_with_schema, frames.PRODUCE_RECORDS: _produce_records,
    frames.DELETE_SCHEMA: _delete_schema,
    frames.CLUSTER_JOIN: _no_membership, frames.CLUSTER_LEAVE: _no_membership, frames.CLUSTER_STATUS: _cluster_status,
    frames.CLUSTER_METADATA: _cluster_metadata, frames.ALTER_TOPIC: _alter_topic, frames.PURGE_TOPIC: _purge_topic,
    frames.MATCH_TOPICS: _match_topics,
}  # fmt: skip
