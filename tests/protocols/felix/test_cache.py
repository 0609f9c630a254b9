"""The cache of the Felix door: gets by the thousand and one by one, versions, batches, watching, limits."""

from typing import Any

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.sections import CacheSection
from quintet.protocols.felix import codec, frames
from tests.protocols.felix.helpers import OURS, PLAIN, PRIMARY, SECOND, FelixSim, Stream, batch, token

CACHE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}


@pytest.fixture
def sim() -> FelixSim:
    return FelixSim()


def put(key: str, value: bytes, **more: Any) -> codec.CachePutOurs:
    return codec.CachePutOurs(**CACHE, key=key, value=value, **more)


def get(key: str, **more: Any) -> codec.CacheGet:
    return codec.CacheGet(**CACHE, key=key, **more)


def value(key: str, data: bytes | None, **more: Any) -> codec.CacheValue:
    return codec.CacheValue(**CACHE, key=key, value=data, **more)


def test_put_get_and_expiry_as_the_published_client_does_them(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    assert stream.ask(put("k", b"v", ttl_ms=100, request_id=1)) == [codec.CacheOk(request_id=1)]
    assert stream.ask(get("k", request_id=2)) == [value("k", b"v", request_id=2)]
    sim.advance(SECOND // 5)
    assert stream.ask(get("k", request_id=3)) == [value("k", None, request_id=3)]
    assert stream.ask(put("k", b"w"), get("k")) == [codec.Ok(), value("k", b"w")]


def test_a_put_is_answered_when_it_is_durable_and_survives(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(put("first", b""))
    stream.feed(codec.encode(put("k", b"v", request_id=1)))
    assert stream.take() == b""
    assert [said.request_id for said in stream.said()] == [1]
    sim.restart()
    assert sim.connect().auth(flags=PLAIN).ask(get("k")) == [value("k", b"v")]


def test_reads_of_gets_are_answered_in_one_call_and_counted(sim: FelixSim) -> None:
    stream, caches = sim.connect().auth(flags=PLAIN), sim.broker.caches
    stream.ask(put("k", b"v"))
    asked = [get("k", request_id=1), get("none", request_id=2)]
    for number in range(4):
        assert stream.ask(*asked) == [value("k", b"v", request_id=1), value("none", None, request_id=2)]
        assert (caches.hits, caches.misses) == (number + 1, number + 1)
    assert stream.quick_answers == 2, "the first get finds the cache, the next read is nothing but gets"
    # A put among them, and a publish, are for others to see.
    assert stream.ask(get("k"), put("k", b"w"), get("k")) == [value("k", b"v"), codec.Ok(), value("k", b"w")]
    assert stream.quick_answers == 2 and stream.felix.quick is None
    stream.ask(batch(b"published"))
    for _ in range(3):
        assert stream.ask(get("k")) == [value("k", b"w")]
    assert stream.quick_answers == 2, "who publishes may have to wait for the topic"


def test_a_get_that_is_answered_in_one_call_asks_for_rights_again(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    stream.ask(put("k", b"v"))
    for _ in range(3):
        assert stream.ask(get("k")) == [value("k", b"v")]
    quick = stream.felix.quick
    assert quick is not None and quick(codec.encode(get("k")), sim.scheduler.now())
    sim.broker.access.epoch += 1
    assert not quick(codec.encode(get("k")), sim.scheduler.now()), "rights changed: the session has to look again"
    assert stream.ask(get("k")) == [value("k", b"v")]
    assert stream.felix.quick is None, "the caches it may read were forgotten with the old rights"


def test_answers_without_an_id_keep_their_order(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    stream.ask(put("k", b"0"), get("k"))
    said = stream.ask(put("k", b"1"), get("k"), get("k", request_id=9), put("k", b"2", request_id=8), get("k"))
    assert said[0] == value("k", b"1", request_id=9)
    assert [one for one in said[1:] if one != codec.CacheOk(request_id=8)] == [
        codec.Ok(),
        value("k", b"1"),
        value("k", b"2"),
    ]


@pytest.mark.parametrize("ttl", [-1, -(2**63)])
def test_times_to_live_that_cannot_be(sim: FelixSim, ttl: int) -> None:
    (said,) = sim.connect().auth().ask(put("k", b"v", ttl_ms=ttl, request_id=1))
    assert (said.request_id, said.message) == (1, "ttl_ms: 0 or more")


@pytest.mark.parametrize("ttl", [2**63 - 1, 2**63, 2**64 - 1])
def test_a_very_long_time_to_live_is_as_long_as_time_can_be_told(sim: FelixSim, ttl: int) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    assert stream.ask(put("k", b"v", ttl_ms=ttl), get("k")) == [codec.Ok(), value("k", b"v")]


def test_runs_of_gets_are_answered_by_the_kernel_and_count(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    made, _ = sorted(stream.ask(put("k", b"v", request_id=0), get("k", request_id=1)), key=lambda one: one.request_id)
    caches = sim.broker.caches
    before = caches.hits, caches.misses
    asked = [get("k" if n % 2 else "none", request_id=n) for n in range(100)]
    said = stream.ask(*asked)
    assert said == [
        value(ask.key, b"v" if n % 2 else None, request_id=n, version=made.version if n % 2 else None)
        for n, ask in enumerate(asked)
    ]
    assert (caches.hits, caches.misses) == (before[0] + 50, before[1] + 50)


def test_large_answers_wait_for_room(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    stream.ask(put("k", bytes(400_000), request_id=0))
    gets = [codec.encode(get("k", request_id=n)) for n in range(9)]
    for many in (gets, [one[:12] + one[12:].replace(b'"k"', b'"\\u006b"') for one in gets]):
        fixed = b"".join(codec.frame(one[12:]) for one in many)
        stream.room_bytes = 0
        stream.feed(fixed)
        assert 0 < len(stream.output) < 2 * frames.ANSWER_BYTES_MAX
        assert stream.session.stopped
        stream.room_bytes = 1 << 20
        stream.resume()
        assert [said.request_id for said in stream.said()] == list(range(9))


def test_a_right_that_was_taken_away_is_not_remembered(sim: FelixSim) -> None:
    from quintet.broker.identity.access import Acl

    stream = sim.connect().auth(flags=PLAIN)
    stream.ask(put("k", b"v", request_id=0), get("k", request_id=0))
    sim.broker.access.set_acl(Acl("cache/t1/default/primary", users=("bob",)))
    assert stream.ask(get("k", request_id=1)) == [codec.Error(message="forbidden")]
    assert stream.reason() == "forbidden"


@pytest.mark.parametrize("scope", [("t2", "default", "primary"), ("default", "default", "default")])
def test_caches_of_other_tenants(sim: FelixSim, scope: tuple[str, str, str]) -> None:
    sim.connect().auth(tenant=scope[0]).ask(
        codec.CachePut(tenant_id=scope[0], namespace=scope[1], cache=scope[2], key="k", value=b"secret", request_id=1)
    )
    for make in (codec.CacheGet, codec.CacheWatch, codec.CacheDelete):
        stream = sim.connect().auth(token(sim.now_s))
        said = stream.ask(make(tenant_id=scope[0], namespace=scope[1], cache=scope[2], key="k", request_id=1))
        assert said == [codec.Error(request_id=1, message="tenant mismatch", code="E1201")]
        assert stream.reason() == "tenant mismatch"


def test_the_published_client_must_name_the_cache(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    assert stream.ask(codec.CacheGet(key="k")) == [codec.Error(message="tenant_id, namespace and cache are needed")]


def test_a_read_makes_no_cache(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    assert stream.ask(get("k", request_id=1)) == [value("k", None, request_id=1)]
    assert len(sim.broker.caches) == 0


def test_document_clients_share_one_cache_unless_they_name_one() -> None:
    sim = FelixSim(open=True, anonymous_role="open")
    one, two = sim.connect().stream(), sim.connect().stream()
    assert one.ask(codec.CachePut(key="k", value=b"v", request_id="a")) == [codec.Ok(request_id="a")]
    for _ in range(2):  # the second time the kernel answers
        assert two.ask(codec.CacheGet(key="k", request_id="b")) == [
            codec.CacheValue(key="k", value=b"v", request_id="b")
        ]
    assert two.ask(get("k")) == [value("k", None)]
    assert sim.broker.caches.get(frames.DEFAULT_SCOPE) is not None


# -- beyond the published client ------------------------------------------------------------------------------------------


def test_compare_and_set(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    (made,) = stream.ask(put("k", b"1", if_version=0, request_id=1))
    assert isinstance(made, codec.CacheOk)
    assert stream.ask(put("k", b"2", if_version=0, request_id=2)) == [
        codec.CacheConflict(request_id=2, key="k", version=made.version or 0, value=b"1")
    ]
    (changed,) = stream.ask(put("k", b"2", if_version=made.version, request_id=3))
    assert changed.version > (made.version or 0)
    assert stream.ask(get("k", request_id=4)) == [value("k", b"2", request_id=4, version=changed.version)]
    assert stream.ask(codec.CacheDelete(**CACHE, key="k", if_version=1, request_id=5)) == [
        codec.CacheConflict(request_id=5, key="k", version=changed.version, value=b"2")
    ]
    (gone,) = stream.ask(codec.CacheDelete(**CACHE, key="k", if_version=changed.version, request_id=6))
    assert (gone.existed, gone.version > changed.version) == (True, True)
    (again,) = stream.ask(codec.CacheDelete(**CACHE, key="k", request_id=7))
    assert again.existed is False
    assert stream.ask(put("k", b"3", if_version=9, request_id=8)) == [
        codec.CacheConflict(request_id=8, key="k", version=0, value=None)
    ]


def test_increment(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    said = stream.ask(*[codec.CacheIncr(**CACHE, key="n", delta=delta, request_id=delta) for delta in (5, 7, 2)])
    assert [one.number for one in said] == [5, 12, 14]
    (said,) = stream.ask(codec.CacheIncr(**CACHE, key="n", delta=-20, request_id=1))
    assert said.number == -6
    for delta in (2**63, -(2**63) - 1, 2**64):
        (refused,) = stream.ask(codec.CacheIncr(**CACHE, key="n", delta=delta, request_id=1))
        assert isinstance(refused, codec.Error)
    assert isinstance(stream.ask(codec.CacheIncr(**CACHE, key="n", delta=1, ttl_ms=-1))[0], codec.Error)
    stream.ask(put("text", b"abc", request_id=1))
    (refused,) = stream.ask(codec.CacheIncr(**CACHE, key="text", delta=1, request_id=1))
    assert isinstance(refused, codec.Error)
    assert stream.reason() is None
    stream.finish()
    assert stream.reason() == ""  # nothing is owed


def test_many_at_once(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    one, two = stream.ask(put("a", b"1", request_id=1), put("b", b"2", request_id=2))
    (said,) = stream.ask(codec.CacheGetMany(**CACHE, keys=["a", "x", "b"], request_id=3))
    assert said == codec.CacheValues(request_id=3, values=[b"1", None, b"2"], versions=[one.version, 0, two.version])
    (refused,) = stream.ask(codec.CacheGetMany(**CACHE, keys=["a"] * (frames.KEYS_MAX + 1), request_id=4))
    assert refused.message.startswith("keys:")
    stream.ask(put("large", bytes(1 << 20), request_id=5))
    (refused,) = stream.ask(codec.CacheGetMany(**CACHE, keys=["large"] * 100, request_id=6))
    assert (refused.request_id, refused.message.partition(":")[0]) == (6, "keys")


def watching(sim: FelixSim, **more: Any) -> tuple[Stream, Any]:
    connection = sim.connect()
    stream = connection.auth()
    (said,) = stream.ask(codec.CacheWatch(**CACHE, request_id=1, subscription_id=7, **more))
    assert said == codec.Subscribed(subscription_id=7, request_id=1)
    outlet = connection.outlets[0]
    assert outlet.take() == [codec.Hello(subscription_id=7)]
    return stream, outlet


def test_watching_a_prefix(sim: FelixSim) -> None:
    stream, outlet = watching(sim, prefix="a")
    other = sim.connect().auth()
    other.ask(put("a1", b"1", request_id=1), put("b", b"2", request_id=2), put("a2", b"3", request_id=3, ttl_ms=1000))
    assert [(e.key, e.value) for e in outlet.take()] == [("a1", b"1"), ("a2", b"3")]
    other.ask(codec.CacheDelete(**CACHE, key="a1", request_id=4))
    sim.advance(2 * SECOND)
    assert [(e.key, e.value) for e in outlet.take()] == [("a1", None), ("a2", None)]
    stream.ask(codec.Unsubscribe(subscription_id=7, request_id=5))
    assert outlet.ended
    other.ask(put("a1", b"1", request_id=1))
    assert not outlet.sent


def test_who_reads_slowly_gets_the_latest_state_only(sim: FelixSim) -> None:
    _, outlet = watching(sim, key="k")
    outlet.room_bytes = 0
    other = sim.connect().auth()
    for n in range(100):
        other.ask(put("k", b"%d" % n, request_id=n))
    outlet.open_up()
    (event,) = outlet.take()
    assert (event.key, event.value) == ("k", b"99")


def test_watching_ends_with_the_right_to_read(sim: FelixSim) -> None:
    from quintet.broker.identity.access import Acl

    _, outlet = watching(sim)
    sim.broker.access.set_acl(Acl("cache/t1/default/primary", users=("bob",)))
    sim.broker.caches.open(PRIMARY).put(b"k", b"secret", 0, None, lambda error: None)
    assert not outlet.sent
    assert outlet.code == frames.REVOKED


def test_watches_that_make_no_sense(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    (said,) = stream.ask(codec.CacheWatch(**CACHE, key="a", prefix="b", request_id=1))
    assert said.message.startswith("prefix:")
    watching(sim)
    connection = sim.connect()
    first = connection.auth()
    first.ask(codec.CacheWatch(**CACHE, subscription_id=1))
    (said,) = first.ask(codec.AckRanges(subscription_id=1, ranges=[(0, 1)], request_id=2))
    assert said.message.startswith("ack:")
    connection.close()


def test_a_million_keys_stay_within_memory_and_large_ones_are_refused() -> None:
    sim = FelixSim(BrokerOptions(caches=CacheSection(memory_bytes=100_000, key_bytes_max=100, value_bytes_max=1_000)))
    stream = sim.connect().auth(flags=OURS)
    for start in range(0, 2_000, 100):
        said = stream.ask(*[put(f"key-{n}", b"v" * 50, request_id=n) for n in range(start, start + 100)])
        assert len(said) == 100
    cache = sim.broker.caches.open(PRIMARY)
    assert cache.bytes <= 100_000
    assert len(cache.entries) < 500
    (said,) = stream.ask(put("k" * 101, b"", request_id=1))
    assert said.code == "E1402"
    (said,) = stream.ask(put("k", bytes(1_001), request_id=2))
    assert (said.request_id, said.code) == (2, "E1402")
    assert stream.reason() is None


def test_values_of_two_mebibytes(sim: FelixSim) -> None:
    """As large as the published server takes them."""
    stream = sim.connect().auth(flags=PLAIN)
    assert stream.ask(put("k", bytes(2 << 20), request_id=1)) == [codec.CacheOk(request_id=1)]
    (said,) = stream.ask(codec.CacheGet(**CACHE, key="k", request_id=2))
    assert said.value == bytes(2 << 20)
    (said,) = stream.ask(put("k", bytes((2 << 20) + 1), request_id=3))
    assert isinstance(said, codec.Error) and "2097152" in said.message
