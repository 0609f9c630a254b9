"""The Felix door when something else goes wrong: a full disk, a broker that stops, connections that go in the middle, bounds."""

import errno
from typing import Any

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.sections import LimitSection
from quintet.model.tasks import start
from quintet.protocols.base import FLOWING, WAIT
from quintet.protocols.felix import codec, frames
from quintet.protocols.felix.watching import WATCHED_PER_TURN_MAX
from tests.protocols.felix.helpers import OURS, PLAIN, PRIMARY, SECOND, FelixSim, batch, subscribe

CACHE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}


@pytest.fixture
def sim() -> FelixSim:
    return FelixSim()


def put(key: str, **more: Any) -> codec.CachePutOurs:
    return codec.CachePutOurs(**CACHE, key=key, value=b"v", **more)


def test_what_the_disk_refuses_is_refused_and_the_stream_goes_on(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(batch(b"a", request_id=1), put("k", request_id=2))
    sim.disk.fail("pwritev", 1, errno.ENOSPC, times=1_000)
    json_publish = codec.Publish(
        tenant_id="t1", namespace="default", stream="demo", payload=b"x", request_id=4, ack="per_message"
    )
    said = stream.ask(batch(b"b", request_id=3), json_publish, put("k", request_id=5))
    acks = [one for one in said if isinstance(one, tuple)]
    assert [(status, id) for status, id, _ in acks] == [(1, 3)]
    assert acks[0][2].startswith("server overloaded: ")
    refused = {one.request_id: type(one) for one in said if not isinstance(one, tuple)}
    assert refused == {4: codec.PublishError, 5: codec.Error}
    assert stream.reason() is None
    sim.disk.heal()
    sim.advance(5 * SECOND)
    assert stream.ask(batch(b"c", request_id=6)) == [(0, 6, "")]


def test_subscriptions_that_the_disk_refuses_give_their_ids_back(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(batch(b"a", request_id=1))
    sim.disk.fail("pwritev", 1, errno.ENOSPC, times=1_000)
    for ask in (
        subscribe(subscription_id=1, durable="d"), subscribe(subscription_id=1, group="g"),
        subscribe(("t1", "default", "new"), subscription_id=1, ack="explicit"),
    ):  # fmt: skip
        (said,) = stream.ask(ask)
        assert said.message.startswith("server overloaded: "), said
    assert not connection.outlets
    sim.disk.heal()
    sim.advance(5 * SECOND)
    for id, ask in enumerate((subscribe(durable="d"), subscribe(group="g"), subscribe(ack="explicit")), 1):
        (said,) = stream.ask(ask)
        assert said.subscription_id == id


def test_a_broker_that_stops_takes_nothing_new(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    sim.broker.draining = True
    for ask in (batch(b"a", request_id=1), subscribe(request_id=1), put("k", request_id=1)):
        (said,) = stream.ask(ask)
        text = said[2] if isinstance(said, tuple) else said.message
        assert text.startswith("server overloaded: ")
    assert not sim.broker.topics.all()


def test_a_connection_that_goes_while_a_subscription_is_made(sim: FelixSim) -> None:
    for ask in (subscribe(durable="d"), subscribe(group="g"), subscribe(ack="explicit"), subscribe()):
        connection = sim.connect()
        connection.auth().feed(codec.encode(ask))
        connection.close()
        sim.advance(SECOND)
        assert all(outlet.over for outlet in connection.outlets)
    assert [one.name for one in sim.broker.subscriptions.all()] == ["d"]
    assert not sim.broker.groups.describe("dev", False, "t1/default/demo", "g").members


def test_places_by_time_that_cannot_be_read(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    for n in range(3):
        stream.ask(batch(b"%d" % n, request_id=n))
    sim.restart()
    stream = sim.connect().auth()
    sim.disk.fail("pread", 1, errno.EIO, times=100)
    (said,) = stream.ask(subscribe(subscription_id=1, start=codec.Start(time_ms=0), request_id=9))
    assert isinstance(said, codec.Error | codec.Subscribed)
    sim.disk.heal()
    (said,) = stream.ask(subscribe(start=codec.Start(time_ms=0)))
    assert isinstance(said, codec.Subscribed)


def test_a_publisher_waits_while_its_topic_is_made_or_the_disk_is_behind() -> None:
    sim = FelixSim(BrokerOptions(limits=LimitSection.model_construct(unsynced_bytes_max=1_000)))
    stream = sim.connect().auth()
    assert stream.session.congestion() == FLOWING
    stream.feed(batch(b"a", request_id=1))
    assert stream.session.congestion() == WAIT
    stream.said()
    assert stream.session.congestion() == FLOWING
    stream.feed(batch(bytes(5_000), request_id=2))
    assert stream.session.congestion() == WAIT
    stream.said()
    assert stream.session.congestion() == FLOWING


def test_too_many_requests_that_wait(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(batch(b"a", request_id=0))
    one = batch(b"", request_id=1) * 2_000
    for _ in range(6):
        stream.feed(one)
    assert stream.session.congestion() == WAIT
    assert len(stream.said()) == 12_000
    assert stream.session.congestion() == FLOWING


def test_a_stream_remembers_only_so_many_targets_and_caches(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    for n in range(frames.TARGETS_MAX + 10):
        stream.feed(batch(b"x", scope=("t1", "default", f"s{n}")))
    assert len(stream.felix._targets) <= frames.TARGETS_MAX
    for n in range(frames.SCOPES_MAX + 10):
        cache = {**CACHE, "cache": f"c{n}"}
        stream.ask(codec.CachePut(**cache, key="k", value=b"v", request_id=1))
        assert stream.ask(codec.CacheGet(**cache, key="k", request_id=2))[0].value == b"v"
    assert len(stream.felix._scopes) <= frames.SCOPES_MAX


def test_many_changes_for_a_watcher_come_in_turns(sim: FelixSim) -> None:
    connection = sim.connect()
    connection.auth().ask(codec.CacheWatch(**CACHE, subscription_id=1))
    (outlet,) = connection.outlets
    outlet.room_bytes = 0
    cache = sim.broker.caches.open(PRIMARY)
    count = WATCHED_PER_TURN_MAX + 500
    for n in range(count):
        cache.put(b"%d" % n, b"v", 0, None, lambda error: None)
    outlet.room_bytes = 1 << 30
    outlet.open_up()
    assert len(outlet.take()) == 1 + WATCHED_PER_TURN_MAX
    sim.scheduler.run_until_idle()
    assert len(outlet.take()) == 500


def test_a_deleted_cache_ends_who_watches_it_and_is_not_remembered(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(flags=OURS)
    stream.ask(put("k", request_id=1), codec.CacheGet(**CACHE, key="k"), codec.CacheWatch(**CACHE))
    start(sim.broker.delete_topic(b"cache/t1/default/primary"))
    sim.scheduler.run_until_idle()
    (said,) = stream.ask(codec.CacheGet(**CACHE, key="k"))
    assert said.value is None
    assert connection.outlets[0].ended


@pytest.mark.parametrize("flags", [-1, 65_536, 2**64])
def test_capabilities_are_16_bits(sim: FelixSim, flags: int) -> None:
    (said,) = sim.connect().stream().ask(codec.Auth(tenant_id="t1", token="dev-key", client_flags=flags))
    assert said.message == "auth: client_flags is a number of 16 bits"


def test_names_longer_than_a_batch_can_say(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    ask = codec.Publish(tenant_id="t" * 70_000, namespace="n", stream="s", payload=b"", request_id=1, ack="per_message")
    (said,) = stream.ask(ask)
    assert isinstance(said, codec.PublishError) and said.request_id == 1
    assert "200 bytes" in said.message


def test_ids_that_are_texts_are_short() -> None:
    stream = FelixSim(open=True, anonymous_role="open").connect().stream()
    ask = codec.Subscribe(tenant_id="t", namespace="n", stream="s", subscription_id="x" * 300)
    (said,) = stream.ask(ask)
    assert said.message.startswith("subscription_id:")
