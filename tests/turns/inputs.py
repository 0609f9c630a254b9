"""What the walk sends to the doors that have few operations, by the names in their tables; FlyMQ is in fly_inputs.py.

A row is (operation, what it is, wire, bytes). Every name of a door's table that a client may send has at least a pipeline of
small ones and, where an input can be large, the largest that passes its limits; a test compares the names with the tables.
"""

import base64
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

from quintet.protocols.blipmq import frames as blip
from quintet.protocols.fast import frames as fast_frames
from quintet.protocols.felix import codec as felix
from quintet.protocols.felix import features
from quintet.protocols.felix.matching import MatchTopics
from quintet.protocols.flymq import frames as fly_frames
from quintet.protocols.peerbus import frames as peer_frames
from tests.turns import fly_inputs
from tests.turns.wires import (
    LAST,
    TOKEN,
    Blip,
    BlipDelivered,
    BlipPolls,
    BlipWhole,
    Fast,
    FastDelivered,
    Felix,
    FelixDelivered,
    FelixFeatured,
    Fly,
    PeerLines,
    PeerSocket,
    batch,
)
from tests.wire import blipmq, fast, peerbus, records, websocket
from tests.wire.fast import topic_id

TXN_MIB = 15  # of a transaction, which may hold 16


class Row(NamedTuple):
    """One input. `make` gets its wire, logged in, and makes the bytes; `streams` is for QUIC. `cold`: what it reads is not in
    memory, but on disk."""

    door: str
    operation: str
    what: str
    wire: type
    make: Callable[[Any], bytes]
    streams: int = 1
    cold: bool = False


def _as_it_is(data: bytes, _wire: Any) -> bytes:
    return data


def _made(make: Callable[[], bytes], _wire: Any) -> bytes:
    return make()


def fly_rows(count: int, size: int, partitions: int) -> Iterator[Row]:
    for code, values in fly_inputs.SMALL.items():
        many = min(count, fly_inputs.FEW.get(code, count))
        requests = b"".join(Fly.frame(code, **values(i)) for i in range(many))
        yield Row("flymq", fly_frames.NAMES[code], f"{many:,} small ones", Fly, partial(_as_it_is, requests))
    for code, what, make in fly_inputs.large(size, partitions):
        yield Row("flymq", fly_frames.NAMES[code], what, Fly, partial(_made, make))
    for code, what, store in fly_inputs.cold(size):
        yield Row("flymq", fly_frames.NAMES[code], what, Fly, store, cold=True)
    consumes = b"".join(
        Fly.frame(fly_frames.CONSUME, topic="heavy", partition=0, offset=i % 20) for i in range(count // 4)
    )
    yield Row("flymq", "CONSUME", f"{count // 4:,} of a batch of 2 MiB", Fly, lambda _: consumes)
    topics = min(count, 500)
    yield Row("flymq", "TXN_COMMIT", f"{topics} topics in one", Fly, lambda wire: fly_inputs.txn_commit(wire, topics))
    held = min(size, TXN_MIB << 20)
    what, rejected = f"a message of {held >> 20} MiB", f"a message of {size >> 20} MiB"
    yield Row("flymq", "TXN_COMMIT", what, Fly, lambda wire: fly_inputs.txn_commit_large(wire, held))
    yield Row("flymq", "DEAD_LETTER", rejected, Fly, lambda wire: fly_inputs.dead_letter_large(wire, size))
    yield Row("flymq", "FETCH_DLQ", rejected, Fly, lambda wire: fly_inputs.fetch_dlq_large(wire, size))
    yield Row("flymq", "REPLAY_DLQ", rejected, Fly, lambda wire: fly_inputs.replay_large(wire, size))


def blip_rows(count: int, size: int) -> Iterator[Row]:
    def row(kind: int, what: str, make: Callable[[Any], bytes], wire: type = Blip) -> Row:
        return Row("blipmq", blip.NAMES[kind], what, wire, make)

    def publish(topic: bytes, data: bytes, qos: int = 1) -> bytes:
        return blipmq.publish(1, topic, data, qos)

    def subscribe(topic: bytes, qos: int = 1) -> bytes:
        return blipmq.subscribe(1, topic, qos)

    long = min(size, blip.FRAME_BYTES_MAX - 100)
    yield row(blip.HELLO, "many", lambda _: blipmq.hello(1, 2) * count)
    yield row(blip.AUTH, "many", lambda _: blipmq.auth(1, b"dev-key") * count)
    yield row(blip.PUBLISH, "small ones to one topic", lambda _: publish(b"b", b"v") * count)
    yield row(
        blip.PUBLISH,
        "small ones, each to another topic",
        lambda _: b"".join(publish(b"b%d" % (i % 500), b"v") for i in range(count)),
    )
    yield row(
        blip.PUBLISH,
        "small ones to memory, with a subscriber",
        lambda _: subscribe(b"m", 0) + publish(b"m", b"v", 0) * count,
    )
    yield row(blip.PUBLISH, f"a message of {long >> 20} MiB", lambda _: publish(b"b", b"x" * long))
    yield row(blip.SUBSCRIBE, "1,000, and their backlogs", lambda _: subscribe(b"b", 0) * 1_000)
    yield row(
        blip.ACK,
        "of nothing, each of another tag",
        lambda _: b"".join(blipmq.ack(i * 7, 1) for i in range(count)),
    )
    yield row(blip.ACK, "of nothing, in a row", lambda _: b"".join(blipmq.ack(i, 1) for i in range(count)))
    yield row(blip.NACK, "many", lambda _: blipmq.nack(1, 1, "") * count)
    yield row(blip.PING, "many", lambda _: blipmq.ping(1) * (10 * count))
    yield row(blip.PONG, "many", lambda _: blipmq.pong(1) * (10 * count))
    yield row(
        blip.POLL,
        "of the first subscription",
        lambda _: subscribe(b"b", 0) + blipmq.poll(1, 1) * count,
        BlipPolls,
    )
    yield row(blip.POLL, "of another's subscription", lambda _: blipmq.poll(1, 99) * count, BlipPolls)
    small = records.pack(records.Record(b"v", b"k", ((b"h", b"1"),)))
    many = records.pack(*[records.Record(b"v", b"k", ((b"h", b"1"),))] * count)
    yield row(blip.MATCH, "small ones", lambda _: blipmq.match(1, 0, b"b*") * count, BlipWhole)
    yield row(blip.RECORDS, "small sets", lambda _: blipmq.records(1, b"b", 1, small) * count, BlipWhole)
    yield row(blip.RECORDS, f"a set of {count:,}", lambda _: blipmq.records(1, b"b", 1, many), BlipWhole)
    last = publish(b"big", b"x" * (long - len(LAST)) + LAST)
    mib = f"a message of {long >> 20} MiB"
    yield row(blip.PUBLISH, f"{mib}, which comes back", lambda _: subscribe(b"big") + last, BlipDelivered)

    def poll(wire: Any) -> bytes:
        id = wire.subscription(b"big-2")
        wire.run(publish(b"big-2", b"x" * long) + publish(b"b", b"v"))
        return blipmq.poll(1, id)

    yield row(blip.POLL, f"{mib}, from disk", poll, BlipPolls)._replace(cold=True)


def fast_rows(count: int, size: int) -> Iterator[Row]:
    def row(kind: int, what: str, make: Callable[[Any], bytes]) -> Row:
        return Row("fast", fast_frames.NAMES[kind], what, Fast, make)

    f, id = fast, topic_id(b"f")
    create = f.create(TOKEN, b"f")
    long = min(size, fast_frames.PAYLOAD_BYTES_MAX)
    few = min(count, 500)
    yield row(
        fast_frames.CREATE, "each another topic", lambda _: b"".join(f.create(TOKEN, b"f%d" % i) for i in range(few))
    )
    yield row(fast_frames.CREATE, "the same topic", lambda _: create * count)
    yield row(fast_frames.PUBLISH, "small ones to one topic", lambda _: create + f.publish(TOKEN, id, b"v") * count)
    yield row(
        fast_frames.PUBLISH, "small ones, each to another topic",
        lambda _: b"".join(f.publish(TOKEN, topic_id(b"f%d" % (i % few)), b"v") for i in range(count)),
    )  # fmt: skip
    yield row(
        fast_frames.PUBLISH, f"a message of {long >> 20} MiB", lambda _: create + f.publish(TOKEN, id, b"x" * long)
    )
    delivered = create + f.subscribe(TOKEN, id) + f.publish(TOKEN, id, b"x" * (long - len(LAST)) + LAST)
    yield row(fast_frames.PUBLISH, f"a message of {long >> 20} MiB, which comes back", lambda _: delivered)._replace(
        wire=FastDelivered
    )
    sets = f.records(TOKEN, id, records.pack(records.Record(b"v", b"k", ((b"h", b"1"),))))
    yield row(fast_frames.RECORDS, "small sets", lambda _: create + f.extend(3) + sets * count)
    yield row(fast_frames.SUBSCRIBE, "to one topic", lambda _: create + f.subscribe(TOKEN, id) * count)
    yield row(
        fast_frames.SUBSCRIBE,
        "to many topics",
        lambda _: b"".join(f.subscribe(TOKEN, topic_id(b"f%d" % i)) for i in range(few)),
    )
    yield row(fast_frames.UNSUBSCRIBE, "many", lambda _: create + f.unsubscribe(TOKEN, id) * count)
    yield row(fast_frames.ROTATE_KEY, "to the same key", lambda _: create + f.rotate_key(TOKEN, id, b"k") * few)
    yield row(fast_frames.EXTEND, "many", lambda _: f.extend(1) * (10 * count))


def peer_rows(count: int, size: int) -> Iterator[Row]:
    for door, wire in (("peerbus-tcp", PeerLines), ("peerbus", PeerSocket)):
        yield from _peer_rows(door, wire, count, min(size, peer_frames.FRAME_BYTES_MAX))


def _peer_rows(door: str, wire: type, count: int, size: int) -> Iterator[Row]:
    def row(kind: str, what: str, make: Callable[[Any], bytes]) -> Row:
        return Row(door, kind or "envelope", what, wire, make)

    def many(w: Any, objects: Iterator[bytes]) -> bytes:
        return b"".join(map(w.framed, objects))

    deep = b"[" * 100 + b"1" + b"]" * 100
    wide = b"[" + b"{}," * ((size - 4_096) // 3) + b"{}]"
    deliver = b'{"protocol_version":"v1","type":"deliver"}'
    yield row("register", "again", lambda w: many(w, (peerbus.register("dev-token", w.name) for _ in range(count))))
    yield row("ack", "of nothing", lambda w: many(w, (peerbus.ack(f"x{i}") for i in range(count))))
    yield row("peers", "many", lambda w: many(w, (peerbus.ask_peers() for _ in range(count))))
    yield row("deliver", "from a client", lambda w: many(w, (deliver for _ in range(count))))
    yield row("", "to oneself", lambda w: many(w, (w.envelope(w.name, f"{door}{i}", deep) for i in range(count))))
    yield row("", "broadcasts", lambda w: many(w, (w.envelope("*", f"all{door}{i}") for i in range(count))))
    yield row("", "the largest, of {}", lambda w: many(w, (w.envelope(w.name, f"L{door}{i}", wide) for i in range(4))))
    yield row("", "no objects", lambda w: many(w, (b"no" for _ in range(count))))
    if wire is PeerLines:
        yield row("", "empty lines", lambda w: b"\n" * (100 * count))
    else:
        yield row("", "pongs", lambda w: websocket.frame(b"", websocket.PONG) * (10 * count))


def _large_events(size: int) -> Row:
    noise = Random(1).randbytes(size - len(LAST))  # zstd would not make it smaller, so LAST can be seen
    large = batch("large", [noise + LAST], 1)
    follow = felix.encode(felix.Subscribe(**Felix.scope, stream="large", start="earliest", request_id=1))

    def written(wire: Any) -> bytes:
        wire.run(large + batch("s", [b"v"], 2))
        return follow

    return Row("felix", "subscribe", f"of a message of {size >> 20} MiB, from disk", FelixDelivered, written, cold=True)


def _cache_changes(
    row: Callable[[str, str, bytes], Row],
    each: Callable[[Callable[[int], Any], int], bytes],
    cache: dict[str, Any],
    count: int,
) -> Iterator[Row]:
    c = felix
    yield row("cache_keys", "small ones", each(lambda i: c.CacheKeys(**cache, request_id=i), min(count, 100)))
    yield row("match_topics", "small ones", each(lambda i: MatchTopics(patterns=["t*"], request_id=i), min(count, 100)))
    yield row("cache_delete", "small ones", each(lambda i: c.CacheDelete(**cache, key=f"d{i}", request_id=i), count))
    yield row("cache_incr", "small ones", each(lambda i: c.CacheIncr(**cache, key="n", delta=1, request_id=i), count))


def felix_rows(count: int, size: int) -> Iterator[Row]:
    def row(kind: str, what: str, data: bytes, streams: int = 1) -> Row:
        return Row("felix", kind, what, Felix, lambda _: data, streams)

    def each(make: Callable[[int], Any], many: int = count) -> bytes:
        return b"".join(felix.encode(make(i)) for i in range(many))

    c, scope = felix, Felix.scope
    stream: dict[str, Any] = {**scope, "stream": "s"}
    cache: dict[str, Any] = {**scope, "cache": "primary"}
    text = base64.b64encode(b"x" * (min(size, 16 << 20) * 11 // 16))
    publish = b'{"type":"publish","tenant_id":"t1","namespace":"default","stream":"s","payload":"%s","ack":"per_message","request_id":1}'
    values = [b"v"] * 100
    yield row("auth", "again: the stream ends", each(lambda i: c.Auth(tenant_id="t1", token="dev-key"), 1))
    yield row(
        "publish", "small ones", each(lambda i: c.Publish(**stream, payload=b"v", ack="per_message", request_id=i))
    )
    yield row("publish", f"a frame of {len(text) >> 20} MiB", felix.frame(publish % text))
    yield row("publish", "no JSON, as long as a frame may be", felix.frame(b"[" * min(size, 16 << 20)))
    yield row(
        "publish_batch",
        "small ones",
        each(lambda i: c.PublishBatch(**stream, payloads=values, ack="per_batch", request_id=i)),
    )
    many = [b"v"] * (min(size, 16 << 20) // 8)
    yield row(
        "publish_batch",
        f"{len(many):,} payloads",
        felix.encode(c.PublishBatch(**stream, payloads=many, ack="per_batch", request_id=1)),
    )
    yield row("binary batch", "small ones", b"".join(batch("s", [b"v"]) for _ in range(count)))
    yield row("binary batch", "small ones on 16 streams", batch("s", [b"v"]) * count, 16)
    most = min(min(size, 15 << 20) // 8, 1 << 20)
    yield row("binary batch", f"{most:,} records", batch("s", [b"vvv"] * most))
    yield row("acknowledged batch", "small ones", b"".join(batch("s", [b"v"], i) for i in range(count)))
    yield row(
        "subscribe",
        "many, from the start",
        each(lambda i: c.Subscribe(**stream, start="earliest", request_id=i), min(count, 1_000)),
    )
    yield _large_events(min(size, 14 << 20))
    yield row("cache_put", "small ones", each(lambda i: c.CachePut(**cache, key=f"k{i}", value=b"v", request_id=i)))
    yield row(
        "cache_put",
        "1 MiB",
        each(lambda i: c.CachePut(**cache, key="big", value=b"x" * min(size, 1 << 20), request_id=i), 1),
    )
    yield row("cache_get", "small ones", each(lambda i: c.CacheGet(**cache, key=f"k{i}", request_id=i)))
    yield row(
        "cache_get_many",
        "10,000 keys",
        each(lambda i: c.CacheGetMany(**cache, keys=[f"k{j}" for j in range(10_000)], request_id=i), 3),
    )
    yield from _cache_changes(row, each, cache, count)
    yield row("cache_watch", "many", each(lambda i: c.CacheWatch(**cache, prefix="", request_id=i), min(count, 300)))
    unknown = 1 << 40
    yield row(
        "ack", "of no subscription", each(lambda i: c.AckRanges(subscription_id=unknown, ranges=[(0, 1)], request_id=i))
    )
    ranges = [(i * 2, 1) for i in range(60_000)]
    yield row(
        "ack", "60,000 ranges", each(lambda i: c.AckRanges(subscription_id=unknown, ranges=ranges, request_id=i), 1)
    )
    for kind, ranges_of in (("nack", c.NackRanges), ("working", c.WorkingRanges)):
        asks = [ranges_of(subscription_id=unknown, ranges=[(0, 1)], request_id=i) for i in range(count)]
        yield row(kind, "of no subscription", b"".join(map(felix.encode, asks)))
        yield row(kind, "60,000 ranges", felix.encode(ranges_of(subscription_id=unknown, ranges=ranges, request_id=1)))
    yield row("credit", "of no subscription", each(lambda i: c.Credit(subscription_id=unknown, credit=1, request_id=i)))
    yield row("unsubscribe", "of none", each(lambda i: c.Unsubscribe(subscription_id=unknown, request_id=i)))


def featured_rows(count: int) -> Iterator[Row]:
    """What newer published clients ask for."""

    def row(kind: str, what: str, make: Callable[[int], Any], many: int = count) -> Row:
        data = b"".join(felix.encode(make(i)) for i in range(many))
        return Row("felix", kind, what, FelixFeatured, lambda _: data, 1)

    f, scope = features, Felix.scope
    stream: dict[str, Any] = {**scope, "stream": "s"}
    cache: dict[str, Any] = {**scope, "cache": "primary"}
    group = {**stream, "shard": 0, "group": "g"}
    yield row("stream_shards", "small ones", lambda i: f.StreamShards(**stream, request_id=i))
    yield row("cache_shards", "small ones", lambda i: f.CacheShards(**cache, request_id=i))
    yield row("counter_add", "small ones", lambda i: f.CounterAdd(**cache, key="n", delta=1, request_id=i))
    yield row("counter_get", "small ones", lambda i: f.CounterGet(**cache, key="n", request_id=i))
    yield row("cache_delete", "featured", lambda i: f.CacheDelete(**cache, key=f"k{i}", request_id=i))
    yield row(
        "cache_watch", "with the state", lambda i: f.CacheWatch(**cache, prefix="", retained=True), min(count, 30)
    )
    yield row(
        "cache_put_if",
        "small ones",
        lambda i: f.CachePutIf(**cache, key=f"p{i}", value=b"v", condition="absent", request_id=i),
    )
    yield row("cache_delete_if", "small ones", lambda i: f.CacheDeleteIf(**cache, key="p1", version=1, request_id=i))
    yield row(
        "group_poll", "as many as there are", lambda i: f.GroupPoll(**group, max_records=10_000, request_id=i), 100
    )
    yield row("group_ack", "small ones", lambda i: f.GroupAck(**group, offset=i, request_id=i))
    yield row("group_nack", "small ones", lambda i: f.GroupNack(**group, offset=i, request_id=i))


def rows(count: int, size: int, partitions: int) -> Iterator[Row]:
    """All of them. `count` small ones at once; `size` bytes is the most of one message, where its limit is higher."""
    yield from fly_rows(count, size, partitions)
    yield from blip_rows(count, size)
    yield from fast_rows(count, size)
    yield from peer_rows(count, size)
    yield from felix_rows(count, size)
    yield from featured_rows(count)
