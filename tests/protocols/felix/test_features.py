"""What newer published clients negotiate by features: caches, counters, watches, polled groups, codes; on a simulated broker."""

from typing import Any

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Credential, hash_secret
from quintet.broker.sections import CacheSection, DeliverySection
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.model.tasks import start
from quintet.protocols.felix import codec, features, frames
from tests.protocols.felix.helpers import SECOND, FakeOutlet, FelixSim, Stream, batch, subscribe

SCOPE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
CACHE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}


@pytest.fixture
def sim() -> FelixSim:
    return FelixSim()


def put(key: str, value: bytes, **more: Any) -> codec.CachePut:
    return codec.CachePut(**CACHE, key=key, value=value, request_id=1, **more)


def poll(count: int = 10, wait_ms: int = 0, id: int = 1, group: str = "g", shard: int = 0) -> features.GroupPoll:
    return features.GroupPoll(**SCOPE, shard=shard, group=group, max_records=count, wait_ms=wait_ms, request_id=id)


def settle(kind: type[Any], offset: int, group: str = "g") -> Any:
    return kind(**SCOPE, shard=0, group=group, offset=offset, request_id=2)


def polled(stream: Stream, count: int = 10, **more: Any) -> list[tuple[int, bytes, int]]:
    (said,) = stream.ask(poll(count, **more))
    assert isinstance(said, features.GroupRecords), said
    return [(one.offset, one.payload, one.attempts) for one in said.records]


# -- negotiation ----------------------------------------------------------------------------------------------------------


def test_nobody_gets_what_was_not_negotiated(sim: FelixSim) -> None:
    for stream in (sim.connect().auth(), sim.connect().auth(flags=frames.PUBLISHED_FLAGS)):
        (said,) = stream.ask(features.CounterGet(**CACHE, key="n", request_id=1))
        assert isinstance(said, codec.Error) and said.message == "unexpected message type"
    ours = sim.connect().stream()
    ask = codec.Auth(tenant_id="t1", token="dev-key", client_flags=0x1FF, client_features=0xFFFF, quintet=1)
    assert ours.ask(ask) == [codec.AuthOk(server_flags=0x1FF, quintet=1)]


def test_unknown_requests_are_answered_in_the_way_that_was_offered(sim: FelixSim) -> None:
    unknown = codec.frame(b'{"type":"commit","request_id":7}')
    said = sim.connect().featured().ask(unknown, put("k", b"v"))
    assert said == [features.Unsupported(request_type="commit", request_id=7), codec.CacheOk(request_id=1)]
    (error,) = sim.connect().featured(features=0).ask(unknown)
    assert isinstance(error, codec.Error) and error.code is None


def test_error_codes_for_those_who_read_them(sim: FelixSim) -> None:
    bad = codec.Publish(tenant_id="t1", namespace="a/b", stream="s", payload=b"", request_id=1, ack="per_message")
    (said,) = sim.connect().featured().ask(bad)
    assert (said.code, said.retry) == ("invalid_request", "fatal")
    (said,) = sim.connect().featured().ask(subscribe(("t1", "a/b", "s")))
    assert isinstance(said, codec.Error) and (said.code, said.retry) == ("invalid_request", "fatal")
    (said,) = sim.connect().featured(features=0).ask(bad)
    assert (said.code, said.retry) == (None, None)
    sim.broker.draining = True
    (said,) = sim.connect().featured().ask(batch(b"x", request_id=1))
    assert said[3:] == (12, 1)  # draining, and it may be tried again


def test_a_stream_is_one_shard(sim: FelixSim) -> None:
    sim.broker.create_topic(b"t1/default/demo", 4)
    stream = sim.connect().featured()
    asks = [features.StreamShards(**SCOPE, request_id=1), features.CacheShards(**CACHE, request_id=2)]
    assert stream.ask(*asks) == [
        features.StreamShardsView(shards=1, request_id=1), features.CacheShardsView(shards=1, request_id=2),
    ]  # fmt: skip
    strict = FelixSim(auto_create=False).connect().featured()
    assert [said.shards for said in strict.ask(*asks)] == [0, 0]


# -- caches and counters --------------------------------------------------------------------------------------------------


def test_a_delete_answers_with_what_was_removed(sim: FelixSim) -> None:
    stream = sim.connect().featured()
    stream.ask(put("k", b"v"))
    ask = features.CacheDelete(**CACHE, key="k", request_id=2)
    assert [said.value for said in stream.ask(ask)] == [b"v"]
    assert [said.value for said in stream.ask(ask)] == [None]


def test_a_delete_tells_no_value_to_who_may_not_read(sim: FelixSim) -> None:
    sim.broker.set_credentials(
        Credential(name, hash_secret(name.encode()), ("*",), patterns) for name, patterns in (("w", ()), ("rw", ("*",)))
    )
    sim.connect().featured("rw").ask(put("k", b"secret"))
    (said,) = sim.connect().featured("w").ask(features.CacheDelete(**CACHE, key="k", request_id=2))
    assert isinstance(said, codec.CacheValue) and said.value is None
    (said,) = sim.connect().featured("rw").ask(codec.CacheGet(**CACHE, key="k", request_id=3))
    assert said.value is None


def test_puts_and_deletes_on_conditions(sim: FelixSim) -> None:
    stream = sim.connect().featured()

    def put_if(condition: Any, value: bytes) -> features.CacheConditionResult:
        ask = features.CachePutIf(**CACHE, key="k", value=value, condition=condition, request_id=4)
        (said,) = stream.ask(ask)
        assert isinstance(said, features.CacheConditionResult)
        return said

    first = put_if("absent", b"a")
    assert first.applied and first.version is not None
    assert put_if("absent", b"b") == features.CacheConditionResult(applied=False, version=first.version, request_id=4)
    (read,) = stream.ask(codec.CacheGet(**CACHE, key="k", request_id=5))
    assert (read.value, read.version) == (b"a", first.version)
    second = put_if(features.AtVersion(first.version), b"c")
    assert second.applied and second.version is not None and second.version > first.version
    for version, applied in ((first.version, False), (second.version, True)):
        (said,) = stream.ask(features.CacheDeleteIf(**CACHE, key="k", version=version, request_id=6))
        assert said.applied is applied
    assert put_if(features.AtVersion(first.version), b"d") == features.CacheConditionResult(applied=False, request_id=4)


def test_counters_are_kept_apart_and_over_a_restart(sim: FelixSim) -> None:
    stream = sim.connect().featured()

    def add(delta: int) -> Any:
        (said,) = stream.ask(features.CounterAdd(**CACHE, key="n", delta=delta, request_id=2))
        return said.value if isinstance(said, features.CounterValue) else said.code

    def read() -> Any:
        (said,) = stream.ask(features.CounterGet(**CACHE, key="n", request_id=3))
        return said.value

    assert read() is None
    stream.ask(put("n", b"a value of the same key"))
    assert (add(5), add(-7), add(2), read()) == (5, -2, 0, 0)
    assert add((1 << 63) - 1) == (1 << 63) - 1
    assert add(1) == "invalid_request"
    sim.scheduler.run_until_idle()
    sim.restart()
    stream = sim.connect().featured()
    assert read() == (1 << 63) - 1


def test_counters_are_not_evicted() -> None:
    sim = FelixSim(BrokerOptions(caches=CacheSection(memory_bytes=100_000)))
    stream = sim.connect().featured()
    for number in range(100):
        stream.ask(features.CounterAdd(**CACHE, key=f"n{number}", delta=number, request_id=2))
    for number in range(200):
        stream.ask(put(f"k{number}", bytes(2_000)))
    assert sim.broker.caches.evicted > 0
    for number in range(100):
        (said,) = stream.ask(features.CounterGet(**CACHE, key=f"n{number}", request_id=3))
        assert said.value == number
    answers = [
        stream.ask(features.CounterAdd(**CACHE, key=f"m{number}", delta=1, request_id=2))[0] for number in range(2_000)
    ]
    refused = [said for said in answers if isinstance(said, codec.Error)]
    assert refused and refused[0].code == "limit_exceeded"
    assert sim.broker.caches.bytes <= 100_000


# -- watches --------------------------------------------------------------------------------------------------------------


def watch(stream: Stream, **how: Any) -> tuple[features.CacheWatchStarted, FakeOutlet]:
    (said,) = stream.ask(features.CacheWatch(**CACHE, **how))
    assert isinstance(said, features.CacheWatchStarted), said
    return said, stream.streams.outlets[-1]


def told(outlet: FakeOutlet) -> list[tuple[str, bytes | None]]:
    return [(one.key, one.value) for one in outlet.take() if isinstance(one, features.CacheEvent)]


def test_a_watch_of_what_comes(sim: FelixSim) -> None:
    stream = sim.connect().featured()
    stream.ask(put("a1", b"old"))
    started, outlet = watch(stream, prefix="a")
    assert (started.resnapshot, started.retained_count) == (False, None)
    stream.ask(put("a2", b"x", ttl_ms=5_000), put("b", b"y"), features.CacheDelete(**CACHE, key="a1", request_id=2))
    hello, first, second = outlet.take()
    assert hello == codec.Hello(subscription_id=started.subscription_id)
    assert (first.key, first.value, first.offset) == ("a2", b"x", started.resume_offset)
    assert first.expires_at_millis == sim.scheduler.now() // 1000 + 5_000
    assert (second.key, second.value) == ("a1", None) and second.offset > first.offset


def test_a_watch_with_the_state_as_it_is(sim: FelixSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SCANNED_PER_TURN_MAX", 2)
    stream = sim.connect().featured()
    for key in ("a1", "b", "a2", "a3"):
        stream.ask(put(key, key.encode()))
    started, outlet = watch(stream, prefix="a", retained=True)
    assert started.retained_count == 3
    assert sorted(told(outlet)) == [("a1", b"a1"), ("a2", b"a2"), ("a3", b"a3")], "the state has no order"
    nothing, empty = watch(stream, key="nothing", retained=True)
    assert nothing.retained_count == 0
    stream.ask(put("nothing", b"now"))
    assert told(empty) == [("nothing", b"now")]


def test_a_watch_that_comes_back_misses_nothing(sim: FelixSim) -> None:
    stream = sim.connect().featured()
    started, _ = watch(stream, prefix="")
    again, outlet = watch(stream, prefix="", from_offset=started.resume_offset)
    assert again.resnapshot is False and told(outlet) == []
    stream.ask(put("k", b"v"))
    late, outlet = watch(stream, prefix="", from_offset=started.resume_offset)
    assert late.resnapshot is True and told(outlet) == [("k", b"v")]
    for wrong in (
        {"key": "a", "prefix": "b"},
        {},
        {"prefix": "", "retained": True, "from_offset": 1},
        {"key": "a", "shard": 1},
    ):
        (said,) = stream.ask(features.CacheWatch(**CACHE, **wrong))
        assert isinstance(said, codec.Error)


# -- groups ---------------------------------------------------------------------------------------------------------------


def test_members_of_a_group_share_the_records(sim: FelixSim) -> None:
    first, second = sim.connect().featured(), sim.connect("10.0.0.2:2").featured()
    first.ask(batch(b"a", b"b", b"c", request_id=1))
    assert polled(first, 2) == [(0, b"a", 1), (1, b"b", 1)]
    assert polled(second) == [(2, b"c", 1)]
    assert polled(first) == []
    assert first.ask(settle(features.GroupAck, 0)) == [codec.CacheOk(request_id=2)]
    assert first.ask(settle(features.GroupNack, 1)) == [codec.CacheOk(request_id=2)]
    assert polled(second) == [(1, b"b", 2)]
    assert polled(second, group="other") == [(0, b"a", 1), (1, b"b", 1), (2, b"c", 1)]


def test_what_is_not_settled_comes_again_and_ends_as_a_dead_letter() -> None:
    sim = FelixSim(BrokerOptions(delivery=DeliverySection(push_timeout_seconds=1, attempts_max=2)))
    stream = sim.connect().featured()
    stream.ask(batch(b"a", b"b", request_id=1))
    assert polled(stream) == [(0, b"a", 1), (1, b"b", 1)]
    assert stream.ask(settle(features.GroupAck, 0)) == [codec.CacheOk(request_id=2)]
    sim.advance(SECOND + 100_000, 50_000)
    assert polled(stream) == [(1, b"b", 2)]
    sim.advance(3 * SECOND, 50_000)
    assert polled(stream) == []
    assert sim.broker.dead.buried == 1
    (said,) = stream.ask(settle(features.GroupNack, 1))
    assert (said.code, said.retry) == ("stale_claim", "retry")


def test_a_poll_waits_for_the_first_record_or_for_its_time(sim: FelixSim) -> None:
    stream, other = sim.connect().featured(), sim.connect().featured()
    assert stream.ask(poll(wait_ms=1_000)) == []
    other.ask(batch(b"x", request_id=1))
    (said,) = stream.said()
    assert [one.payload for one in said.records] == [b"x"]
    assert stream.ask(poll(wait_ms=1_000)) == []
    sim.advance(2 * SECOND, 50_000)
    assert stream.said() == [features.GroupRecords(records=[], request_id=1)]


def test_nothing_is_claimed_for_a_client_that_is_gone(sim: FelixSim) -> None:
    stream, other = sim.connect().featured(), sim.connect().featured()
    assert stream.ask(poll(wait_ms=10_000)) == []
    stream.close()
    other.ask(batch(b"x", request_id=1))
    assert polled(other) == [(0, b"x", 1)]


def test_a_nack_wakes_who_waits(sim: FelixSim) -> None:
    stream, other = sim.connect().featured(), sim.connect().featured()
    stream.ask(batch(b"x", request_id=1))
    assert polled(stream) == [(0, b"x", 1)]
    assert other.ask(poll(wait_ms=10_000)) == []
    stream.ask(settle(features.GroupNack, 0))
    (said,) = other.said()
    assert [(one.payload, one.attempts) for one in said.records] == [(b"x", 2)]


def test_a_group_is_over_all_partitions_and_outlives_a_restart() -> None:
    rules = TopicPolicy(rules=[TopicRule("t1/*", partitions=3), TopicRule("*")])
    sim = FelixSim(BrokerOptions(topics=rules))
    stream = sim.connect().featured()
    for value in (b"a", b"b", b"c"):
        stream.ask(batch(value, request_id=1))
    got = polled(stream)
    assert sorted(offset for offset, _, _ in got) == [0, 1 << 48, 2 << 48]
    stream.ask(settle(features.GroupAck, 1 << 48))
    sim.advance(SECOND, 50_000)
    sim.restart()
    stream = sim.connect().featured()
    assert sorted(offset for offset, _, _ in polled(stream) + polled(stream)) == [0, 2 << 48]
    (said,) = stream.ask(poll(shard=1))
    assert isinstance(said, codec.Error) and said.message.startswith("shard: 1")


def test_an_answer_of_a_poll_fits_a_frame() -> None:
    sim = FelixSim(BrokerOptions(delivery=DeliverySection(attempts_max=2)), frame_bytes_max=64 << 10)
    stream = sim.connect().featured()
    topic, _ = sim.broker.create_topic(b"t1/default/demo", 1)
    for some in ([bytes(30_000), bytes(30_000)], [bytes(60_000)], [b"small"]):
        topic.publish(kernel.build(some), len(some), False, None)
    sim.scheduler.run_until_idle()
    for _ in range(2):
        assert [len(value) for _, value, _ in polled(stream)] == [30_000]
    assert [len(value) for _, value, _ in polled(stream)] == [5]  # what no frame holds is passed over ...
    sim.advance(SECOND, 50_000)
    assert sim.broker.dead.buried == 1  # ... and kept as a dead letter


def test_the_end_of_a_topic_is_told_to_who_waits(sim: FelixSim) -> None:
    stream = sim.connect().featured()
    assert polled(stream) == []
    assert stream.ask(poll(wait_ms=10_000)) == []
    start(sim.broker.delete_topic(b"t1/default/demo"))
    sim.advance(SECOND, 50_000)
    (said,) = stream.said()
    assert isinstance(said, codec.Error) and said.code == "not_found"
    (said,) = stream.ask(settle(features.GroupAck, 0))
    assert isinstance(said, codec.Error)
