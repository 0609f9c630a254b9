"""Bounds of the Felix door: answers that wait, watchers that are slow, rights that go, subscriptions wanted twice."""

import errno
from typing import Any

import pytest

from quintet.broker.identity.access import Role
from quintet.model import limits
from quintet.protocols.base import TOO_SLOW
from quintet.protocols.felix import codec, frames
from quintet.protocols.felix.session import UNPACKED_BYTES_MAX
from tests.protocols.felix.helpers import SECOND, FelixSim, batch, decoded, subscribe

CACHE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}
LARGE = b"v" * 900_000  # as a value, 1.2 MB of an answer


@pytest.fixture
def sim() -> FelixSim:
    return FelixSim()


def put(key: str, value: bytes = b"v", **more: Any) -> codec.CachePutOurs:
    return codec.CachePutOurs(**CACHE, key=key, value=value, **more)


def get(key: str, **more: Any) -> codec.CacheGet:
    return codec.CacheGet(**CACHE, key=key, **more)


def frames_of(*messages: Any) -> bytes:
    return b"".join(one if isinstance(one, bytes) else codec.encode(one) for one in messages)


# -- answers are bounded, whatever they are and in whatever order -------------------------------------------------------


def test_conflicts_show_values_and_are_not_made_by_the_thousand(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(put("k", LARGE, request_id=1))
    stream.room_bytes = 0
    stream.feed(frames_of(put("k", if_version=0, request_id=2)) * 100)
    assert len(stream.take()) < 2 * limits.MIB
    stream.room_bytes = 1
    stream.resume()
    assert len(stream.said()) == 99


def test_gets_between_others_are_bounded_together(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(put("k", LARGE[: limits.MIB // 2], request_id=1), get("k", request_id=2))
    stream.room_bytes = 0
    ping = codec.Unsubscribe(subscription_id=77, request_id=4)
    stream.feed(frames_of(get("k", request_id=3), ping) * 50)
    assert len(stream.take()) < 3 * limits.MIB


def test_answers_behind_one_that_waits_are_bounded(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(put("k", LARGE, request_id=1), get("k", request_id=2))
    stream.feed(frames_of(batch(b"a", request_id=3)) + frames_of(get("k")) * 20)
    behind = sum(len(slot.data or b"") for slot in stream.felix._replies._waiting)
    assert behind < 4 * limits.MIB
    said = stream.said()
    stream.resume()
    said += stream.said()
    assert said[0] == (0, 3, "")
    assert [type(one) for one in said[1:]] == [codec.CacheValue] * 20


def test_errors_are_answers_too(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.room_bytes = 0
    stream.feed(codec.frame(b"") * 80_000)
    assert len(stream.take()) < 2 * limits.MIB


# -- rights ------------------------------------------------------------------------------------------------------------


def test_rights_that_go_while_a_subscription_is_made_are_gone() -> None:
    sim = FelixSim(open=True, anonymous_role="open")
    publisher = sim.connect().auth()
    publisher.ask(batch(b"a", request_id=1))
    connection = sim.connect()
    stream = connection.auth("nobody's")
    stream.feed(frames_of(subscribe(("t1", "default", "new"), ack="explicit")))
    assert not connection.outlets, "its topic is on its way to the disk"
    sim.broker.access.set_roles([Role("open", read=("other",), write=("other",))])
    stream.recheck()
    sim.scheduler.run_until_idle()
    publisher.ask(batch(b"secret", request_id=2, scope=("t1", "default", "new")))
    for outlet in connection.outlets:
        assert b"secret" not in outlet.sent


# -- ends --------------------------------------------------------------------------------------------------------------


def test_a_durable_subscription_the_disk_keeps_now_is_forgotten_later(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(durable="d", subscription_id=1))
    sim.disk.fail("pwritev", 1, errno.ENOSPC, times=1_000)
    sim.broker.subscriptions._table.delete(b"0")
    sim.scheduler.run_until_idle()
    (said,) = stream.ask(codec.Unsubscribe(subscription_id=1, delete=True, request_id=3))
    assert isinstance(said, codec.Error)
    assert connection.outlets[0].ended
    sim.disk.heal()
    sim.advance(5 * SECOND)
    (said,) = stream.ask(subscribe(durable="d", subscription_id=1))
    assert isinstance(said, codec.Subscribed)
    assert stream.ask(codec.Unsubscribe(subscription_id=1, delete=True, request_id=4)) == [codec.Ok(request_id=4)]
    assert not sim.broker.subscriptions.all()


# -- a slow watcher ----------------------------------------------------------------------------------------------------


def test_a_watcher_that_is_too_slow_for_keys_that_come_and_go(sim: FelixSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.protocols.felix.watching.WATCHED_BYTES_MAX", 100 * 210)
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(codec.CacheWatch(**CACHE, subscription_id=5))
    (outlet,) = connection.outlets
    outlet.room_bytes = 0
    for number in range(120):
        key = f"key {number}"
        stream.ask(put(key, request_id=1), codec.CacheDelete(**CACHE, key=key, request_id=2))
    assert outlet.code == TOO_SLOW


# -- turns -------------------------------------------------------------------------------------------------------------


def test_packed_batches_that_are_refused_cost_their_turn_too() -> None:
    sim = FelixSim(frame_bytes_max=limits.MIB)
    stream = sim.connect().auth()
    bomb = codec.frame(codec.pack(bytes(limits.MIB + 1)), frames.BATCH | frames.ZSTD)
    stream.feed(bomb * 100)
    assert stream.held()
    assert len(decoded(stream.take())) <= 1 + UNPACKED_BYTES_MAX // limits.MIB


def test_small_acks_of_many_records_cost_their_turn(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(subscribe(ack="explicit", subscription_id=1))
    ack = codec.AckRanges(subscription_id=1, ranges=[(0, frames.ACK_RECORDS_MAX)], request_id=2)
    stream.feed(frames_of(ack) * 100)
    assert stream.held()
    assert len(decoded(stream.take())) < 5


def test_a_credit_is_that_of_one_reader_and_not_of_the_next(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(durable="d", subscription_id=1, credit=1))
    stream.ask(batch(b"a", b"b", request_id=1))
    stream.ask(codec.Unsubscribe(subscription_id=1))
    stream.ask(subscribe(durable="d", subscription_id=2))
    values = [value for one in connection.outlets[1].take()[1:] for value in one[1]]
    assert values == [b"a", b"b"]


@pytest.mark.parametrize("full", [False, True])
def test_two_that_want_one_durable_subscription_at_once(sim: FelixSim, full: bool) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(batch(b"a", request_id=1))
    if full:
        sim.disk.fail("pwritev", 1, errno.ENOSPC, times=1_000)
    said = stream.ask(subscribe(durable="d", subscription_id=1), subscribe(durable="d", subscription_id=2))
    assert [type(one) for one in said] == [codec.Error if full else codec.Subscribed] * 2
    if not full:
        assert [outlet.over for outlet in connection.outlets] == [True, False], "who comes later has it"
