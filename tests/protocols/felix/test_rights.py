"""Complete mediation: every request of the door x every kind of client, against an oracle that is written down here."""

from collections.abc import Callable
from typing import Any

import pytest

from quintet.broker.identity.access import Acl, Credential, hash_secret
from quintet.protocols.felix import codec, features, frames, matching
from tests.protocols.felix.helpers import ALL, PRIMARY, FelixSim, Stream, batch, subscribe, token

CACHE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}
SCOPE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}

# request -> (what it needs, how it is made)
REQUESTS: dict[str, tuple[str, Any]] = {
    "publish": ("publish", codec.Publish(**SCOPE, payload=b"x", request_id=1, ack="per_message")),
    "publish_batch": ("publish", codec.PublishBatch(**SCOPE, payloads=[b"x"], request_id=1, ack="per_batch")),
    "binary batch": ("publish", batch(b"x")),
    "acknowledged batch": ("publish", batch(b"x", request_id=1)),
    "subscribe": ("subscribe", subscribe(start="earliest")),
    "subscribe durable": ("subscribe", subscribe(durable="d", start="earliest")),
    "subscribe group": ("subscribe", subscribe(group="g", start="earliest")),
    "cache_put": ("write", codec.CachePut(**CACHE, key="k", value=b"x", request_id=1)),
    "cache_get": ("read", codec.CacheGet(**CACHE, key="k", request_id=1)),
    "cache_delete": ("write", codec.CacheDelete(**CACHE, key="k", request_id=1)),
    "cache_incr": ("write", codec.CacheIncr(**CACHE, key="k", delta=1, request_id=1)),
    "cache_get_many": ("read", codec.CacheGetMany(**CACHE, keys=["k"], request_id=1)),
    "cache_keys": ("read", codec.CacheKeys(**CACHE, request_id=1)),
    "cache_watch": ("read", codec.CacheWatch(**CACHE, request_id=1)),
}
GROUP: dict[str, Any] = {**SCOPE, "shard": 0, "group": "g", "request_id": 1}
# of clients that named features
FEATURED: dict[str, tuple[str, Any]] = {
    "stream_shards": ("publish|subscribe", features.StreamShards(**SCOPE, request_id=1)),
    "cache_shards": ("read|write", features.CacheShards(**CACHE, request_id=1)),
    "counter_add": ("write", features.CounterAdd(**CACHE, key="n", delta=1, request_id=1)),
    "counter_get": ("read", features.CounterGet(**CACHE, key="n", request_id=1)),
    "cache_put_if": ("write", features.CachePutIf(**CACHE, key="n", value=b"", condition="absent", request_id=1)),
    "cache_delete_if": ("write", features.CacheDeleteIf(**CACHE, key="k", version=1, request_id=1)),
    "featured cache_delete": ("write", features.CacheDelete(**CACHE, key="k", request_id=1)),
    "featured cache_watch": ("read", features.CacheWatch(**CACHE, prefix="")),
    "group_poll": ("subscribe", features.GroupPoll(**GROUP, max_records=1)),
    "group_ack": ("subscribe", features.GroupAck(**GROUP, offset=0)),
    "group_nack": ("subscribe", features.GroupNack(**GROUP, offset=0)),
}
REQUESTS |= FEATURED
NEEDS = {"publish": ALL[0], "subscribe": ALL[1], "read": ALL[2], "write": ALL[3]}

Client = Callable[[FelixSim, bool], Stream]


def _key(name: str) -> Client:
    return lambda sim, featured: _opened(sim, featured, name + "-key", "t1")


def _token(permissions: tuple[str, ...], tenant: str = "t1") -> Client:
    return lambda sim, featured: _opened(sim, featured, token(sim.now_s, tenant, permissions), tenant)


def _opened(sim: FelixSim, featured: bool, secret: str, tenant: str) -> Stream:
    connection = sim.connect()
    return connection.featured(secret, tenant) if featured else connection.auth(secret, tenant=tenant)


# client -> (how it comes, what it may)
CLIENTS: dict[str, tuple[Client, set[str]]] = {
    "key that may all": (_key("all"), {"publish", "subscribe", "read", "write"}),
    "key that only publishes": (_key("writer"), {"publish", "write"}),
    "key that only reads": (_key("reader"), {"subscribe", "read"}),
    "key of other topics": (_key("other"), set()),
    "key that a rule leaves out": (_key("barred"), {"publish", "subscribe"}),
    "token that may all": (_token(ALL), {"publish", "subscribe", "read", "write"}),
    "token without permissions": (_token(()), set()),
    "token of another tenant": (_token(tuple(p.replace("t1", "*") for p in ALL), "t2"), set()),
    **{f"token for {need}": (_token((permission,)), {need}) for need, permission in NEEDS.items()},
    "token for another stream": (
        _token(tuple(p.replace("t1/*", "t1/default/other") for p in ALL)), set()),
}  # fmt: skip


def made() -> FelixSim:
    sim = FelixSim(keys={"all": "all-key"})
    both = ("t1/*", "cache/*")
    sim.broker.set_credentials(
        Credential(name, hash_secret(f"{name}-key".encode()), publish, subscribed)
        for name, publish, subscribed in (
            ("all", ("*",), ("*",)), ("writer", both, ()), ("reader", (), both), ("other", ("x/*",), ("x/*",)),
            ("barred", ("*",), ("*",)),
        )
    )  # fmt: skip
    sim.broker.access.set_acl(Acl("cache/t1/default/primary", users=("all", "writer", "reader", "ann")))
    owner = sim.connect().auth("all-key")
    owner.ask(batch(b"secret", request_id=1), codec.CachePut(**CACHE, key="k", value=b"7", request_id=2))
    sim.advance(1_000_000)
    return sim


def state(sim: FelixSim) -> tuple[Any, ...]:
    """What a refused request must not change."""
    topics = {topic.name: [p.end for p in topic.partitions] for topic in sim.broker.topics.all()}
    cache = sim.broker.caches.open(PRIMARY)
    return topics, dict(cache.entries.items()), len(sim.broker.subscriptions.all()), len(sim.broker.groups)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("request_name", REQUESTS)
def test_every_cell(client: str, request_name: str) -> None:
    need, ask = REQUESTS[request_name]
    connect, rights = CLIENTS[client]
    sim = made()
    stream = connect(sim, request_name in FEATURED)
    before, audited = state(sim), sim.broker.audit.recorded
    said = stream.ask(ask)
    sent = b"".join(bytes(outlet.sent) for outlet in stream.streams.outlets)
    if rights.intersection(need.split("|")):
        assert stream.reason() is None, said
        errors = [one.message for one in said if isinstance(one, codec.Error)]
        assert not errors or (request_name in ("group_ack", "group_nack") and "there is no group" in errors[0])
        return
    assert not sent
    assert state(sim) == before
    assert sim.broker.audit.recorded == audited + 1
    if request_name == "binary batch":  # nobody waits for an answer: none is given, and the stream goes on
        assert (said, stream.reason()) == ([], None)
        return
    text = "tenant mismatch" if client == "token of another tenant" else "forbidden"
    assert isinstance(said[-1], codec.Error)
    assert said[-1].message == text
    assert stream.reason() == text


def test_no_request_is_left_out() -> None:
    asked = {name.partition(" ")[0] if name.startswith("subscribe") else name for name in REQUESTS}
    asked -= {"featured cache_delete", "featured cache_watch"}
    by_owner = {name for name, right in frames.RIGHTS.items() if right in ("owner", "open", "server", "known")}
    assert asked == frames.RIGHTS.keys() - by_owner


@pytest.mark.parametrize("name", REQUESTS)
def test_nobody_before_auth(name: str) -> None:
    sim = made()
    before = state(sim)
    stream = sim.connect().stream()
    assert stream.ask(REQUESTS[name][1]) == [codec.Error(message="auth required")]
    assert stream.reason() == "auth required"
    assert state(sim) == before


@pytest.mark.parametrize("client", CLIENTS)
def test_a_pattern_finds_what_one_may_subscribe_to(client: str) -> None:
    connect, rights = CLIENTS[client]
    sim = made()
    name = "/".join(SCOPE.values())
    (told,) = connect(sim, False).ask(matching.MatchTopics(patterns=["*"], request_id=4))
    assert isinstance(told, matching.TopicList)
    assert (told.changed, told.topics) == (True, [name] if "subscribe" in rights else [])
    assert told.version == sim.broker.topics_version


def test_a_bad_pattern_is_refused_and_the_stream_goes_on() -> None:
    stream = made().connect().auth("all-key")
    asked = [matching.MatchTopics(patterns=list(patterns), request_id=5) for patterns in (["regex:("], [], ["t1/*"])]
    wrong, none, found = stream.ask(*asked)
    assert isinstance(wrong, codec.Error) and "RE2" in wrong.message
    assert isinstance(none, codec.Error) and "1 to 100" in none.message
    assert isinstance(found, matching.TopicList) and len(found.topics) == 1
