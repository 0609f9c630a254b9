"""Subscriptions of the Felix door: the life of event streams, where they begin, acknowledgement, groups, lag, isolation."""

from typing import Any

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.sections import DeliverySection
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.model import tasks
from quintet.protocols.base import LOST, TOO_SLOW
from quintet.protocols.felix import codec, frames
from tests.protocols.felix.helpers import (
    DEMO,
    OURS,
    PLAIN,
    SECOND,
    Connection,
    FakeOutlet,
    FelixSim,
    Stream,
    batch,
    subscribe,
    token,
)
from tests.wire.felix import frames_of

NAME = b"t1/default/demo"


@pytest.fixture
def sim() -> FelixSim:
    return FelixSim()


def values(outlet: FakeOutlet) -> list[bytes]:
    """The events since the last time."""
    return [value for item in outlet.take() if isinstance(item, tuple) for value in item[1]]


def fill(sim: FelixSim, *some: bytes) -> None:
    stream = sim.connect("10.0.0.9:9").auth()
    assert stream.ask(batch(*some, request_id=1)) == [(0, 1, "")]


def partitioned(count: int = 2, **options: Any) -> FelixSim:
    rules = TopicPolicy(rules=[TopicRule("t1/*", partitions=count), TopicRule("*")])
    return FelixSim(BrokerOptions(topics=rules, **options))


def opened(connection: Connection, ask: codec.Subscribe, stream: Stream | None = None) -> tuple[Stream, FakeOutlet]:
    stream = stream or connection.auth()
    (said,) = stream.ask(ask)
    assert isinstance(said, codec.Subscribed), said
    outlet = connection.outlets[-1]
    assert outlet.take()[:1] == [codec.Hello(subscription_id=said.subscription_id)] or not outlet.sent
    return stream, outlet


# -- the life of an event stream ----------------------------------------------------------------------------------------


def test_hello_then_batches(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(flags=PLAIN & ~frames.OFFSETS)
    assert stream.ask(subscribe(subscription_id=42)) == [codec.Subscribed(subscription_id=42)]
    fill(sim, b"a", b"b")
    assert connection.outlets[0].take() == [codec.Hello(subscription_id=42), (-1, [b"a", b"b"])]


def test_offsets_and_packed_batches_come_where_they_were_negotiated(sim: FelixSim) -> None:
    connection = sim.connect()
    for flags in (PLAIN, OURS):
        connection.auth(flags=flags).ask(subscribe(subscription_id=flags))
    fill(sim, b"a" * 1000, b"b")
    plain, packed = connection.outlets
    assert len(packed.sent) < 200 < len(plain.sent)
    for outlet in connection.outlets:
        assert outlet.take()[1:] == [(0, [b"a" * 1000, b"b"])]


def test_a_stream_ended_behind_subscribe_still_gets_everything(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.stream()
    stream.feed(
        codec.encode(codec.Auth(tenant_id="t1", token="dev-key", client_flags=63))
        + codec.encode(subscribe(subscription_id=5))
    )
    said = stream.finish()
    assert said == [codec.AuthOk(server_flags=63), codec.Subscribed(subscription_id=5)]
    assert stream.reason() == ""
    stream.close()
    fill(sim, b"a")
    assert connection.outlets[0].take() == [codec.Hello(subscription_id=5), (0, [b"a"])]
    connection.close()
    assert not sim.broker.subscriptions.all()


def test_ids_are_given_out_where_none_is_asked_for_and_are_taken_once(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth(flags=PLAIN)
    assert stream.ask(subscribe(subscription_id=1)) == [codec.Subscribed(subscription_id=1)]
    assert stream.ask(subscribe()) == [codec.Subscribed(subscription_id=2)]
    (said,) = stream.ask(subscribe(subscription_id=1))
    assert "in use" in said.message
    (said,) = stream.ask(subscribe(subscription_id="text"))
    assert "subscription_id" in said.message
    assert len(connection.outlets) == 2


def test_the_limit_of_a_connection() -> None:
    sim = FelixSim(subscriptions_max=2)
    stream = sim.connect().auth(flags=PLAIN)
    stream.ask(subscribe(), subscribe())
    assert stream.ask(subscribe()) == [codec.Error(message="max subscriptions per connection exceeded")]


def test_a_subscription_that_is_refused_makes_no_topic_and_takes_no_id() -> None:
    sim = FelixSim(BrokerOptions(topics=TopicPolicy(rules=[TopicRule("*")], topics_max=1)), subscriptions_max=1)
    stream = sim.connect().auth()
    (said,) = stream.ask(subscribe(("t1", "default", "first"), subscription_id=1))
    assert isinstance(said, codec.Subscribed)
    stream.ask(subscribe(("t1", "default", "second"), subscription_id=2))
    assert [topic.name for topic in sim.broker.topics.all()] == ["t1/default/first"]
    stream.ask(codec.Unsubscribe(subscription_id=1))
    (said,) = stream.ask(subscribe(("t1", "default", "second"), subscription_id=2))
    assert said.code == "E1400"  # too many topics: the id is free again
    (said,) = stream.ask(subscribe(("t1", "default", "first"), subscription_id=2))
    assert isinstance(said, codec.Subscribed)


def test_a_slow_reader_is_not_sent_more_than_it_has_room_for(sim: FelixSim) -> None:
    connection = sim.connect()
    _, outlet = opened(connection, subscribe())
    outlet.room_bytes = 0
    fill(sim, b"a")
    fill(sim, b"b")
    assert not outlet.sent
    outlet.open_up()
    assert values(outlet) == [b"a", b"b"]


@pytest.mark.parametrize("code", [LOST, TOO_SLOW, 0])
def test_an_event_stream_that_is_gone_is_no_subscription(sim: FelixSim, code: int) -> None:
    connection = sim.connect()
    _, outlet = opened(connection, subscribe(subscription_id=3))
    outlet.gone(code)
    assert not sim.broker.subscriptions.all()
    fill(sim, b"a")
    assert not outlet.sent


def test_subscribers_of_a_kind_share_the_bytes(sim: FelixSim, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = kernel.felix_deliver

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(kernel, "felix_deliver", counted)
    connection = sim.connect()
    stream = connection.auth(flags=PLAIN)
    stream.ask(*[subscribe() for _ in range(5)])
    fill(sim, b"a", b"b")
    assert [values(outlet) for outlet in connection.outlets] == [[b"a", b"b"]] * 5
    assert len(calls) == 1


def test_a_deleted_topic_ends_its_event_streams(sim: FelixSim) -> None:
    connection = sim.connect()
    stream, outlet = opened(connection, subscribe())
    tasks.start(sim.broker.delete_topic(NAME))
    stream.recheck()
    assert outlet.ended


# -- where they begin ---------------------------------------------------------------------------------------------------


def test_latest_earliest_offset_and_time(sim: FelixSim) -> None:
    fill(sim, b"a")
    sim.advance(10 * SECOND)
    middle = sim.scheduler.now() // 1000
    sim.advance(10 * SECOND)
    fill(sim, b"b", b"c")
    connection = sim.connect()
    for start, expected in (
        (None, []), ("latest", []), ("earliest", [b"a", b"b", b"c"]), (codec.Start(offset=1), [b"b", b"c"]),
        (codec.Start(offset=3), []), (codec.Start(time_ms=middle), [b"b", b"c"]), (codec.Start(time_ms=1 << 45), []),
        (codec.Start(time_ms=0), [b"a", b"b", b"c"]), (codec.Start(offsets=[2]), [b"c"]),
    ):  # fmt: skip
        stream = connection.auth()
        (said,) = stream.ask(subscribe(start=start))
        assert said.offsets == [3 - len(expected)]
        assert values(connection.outlets[-1]) == expected


@pytest.mark.parametrize("requested", [4, 99, 2**63, 2**64 - 1])
def test_an_offset_in_the_future(sim: FelixSim, requested: int) -> None:
    fill(sim, b"a", b"b", b"c")
    connection = sim.connect()
    said = connection.auth(flags=PLAIN).ask(subscribe(start=codec.Start(offset=requested)))
    assert said == [codec.CursorError(reason="in_future", requested=requested, available=3)]
    assert not connection.outlets
    (late,) = connection.auth().ask(subscribe(start=codec.Start(offset=requested), request_id=6))
    assert late.request_id == 6
    assert not sim.broker.subscriptions.all()


def test_an_offset_that_is_no_longer_kept() -> None:
    rules = TopicPolicy(rules=[TopicRule("*", memory_bytes=10_000)])
    sim = FelixSim(BrokerOptions(topics=rules))
    stream = sim.connect().auth(flags=PLAIN)
    for _ in range(20):
        stream.ask(batch(bytes(1_000)))
    first = sim.broker.topics.find(NAME).partitions[0].start
    assert first > 0
    said = stream.ask(subscribe(start=codec.Start(offset=0)))
    assert said == [codec.CursorError(reason="too_old", requested=0, available=first)]
    document = FelixSim(open=True, anonymous_role="open").connect().stream()
    (text,) = document.ask(codec.Subscribe(tenant_id="t", namespace="n", stream="s", start=codec.Start(offset=5)))
    assert text.message == "offset 5 is not there yet: the next will be 0"


def test_starts_that_make_no_sense(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    for start in (codec.Start(), codec.Start(offset=-1), codec.Start(offsets=[0, 0]), codec.Start(time_ms=-5)):
        (said,) = stream.ask(subscribe(start=start, request_id=1))
        assert (said.request_id, said.message.partition(":")[0]) == (1, "start")


def test_partitions_are_in_the_offsets() -> None:
    sim = partitioned()
    fill(sim, b"a")
    fill(sim, b"b")
    fill(sim, b"c")
    connection = sim.connect()
    _, outlet = opened(connection, subscribe(start=codec.Start(offsets=[1, 0])))
    got = sorted(connection.auth().ask(subscribe(start="earliest"))[0].offsets)
    assert got == [0, 0]
    assert sorted(connection.outlets[-1].take()[1:]) == [(0, [b"a"]), (1, [b"c"]), (1 << 48, [b"b"])]
    assert outlet.over is False
    stream = connection.auth(flags=PLAIN)
    wanted = 1 << 48 | 7
    said = stream.ask(subscribe(start=codec.Start(offset=wanted)))
    assert said == [codec.CursorError(reason="in_future", requested=wanted, available=1 << 48 | 1)]
    (said,) = stream.ask(subscribe(start=codec.Start(offset=2 << 48)))
    assert "partition 2" in said.message


@pytest.mark.parametrize("flags", [PLAIN, OURS, None])
def test_an_offset_of_one_partition_does_not_skip_the_others(flags: int | None) -> None:
    """It says nothing about them: what is kept there comes from the beginning."""
    sim = partitioned(3)
    for value in (b"a0", b"b0", b"c0", b"a1", b"b1", b"c1"):  # in turn
        fill(sim, value)
    connection = sim.connect()
    connection.auth(flags=flags).ask(subscribe(start=codec.Start(offset=1 << 48 | 1)))
    assert sorted(values(connection.outlets[0])) == [b"a0", b"a1", b"b1", b"c0", b"c1"]


# -- messages larger than a frame ---------------------------------------------------------------------------------------


def test_a_message_larger_than_a_frame_is_left_out_and_told() -> None:
    """Other doors, and binary batches, take what JSON of the document cannot hold."""
    sim = FelixSim(open=True, anonymous_role="open", frame_bytes_max=4_096)
    document, ours, published = sim.connect(), sim.connect(), sim.connect()
    assert document.stream().ask(codec.Subscribe(tenant_id="t1", namespace="default", stream="demo")) == [codec.Ok()]
    ours.auth().ask(subscribe(subscription_id=1))
    published.auth(flags=PLAIN).ask(subscribe(subscription_id=1))
    topic = sim.broker.topics.find(b"t1/default/demo")
    for some in ([b"a", bytes(3_500), b"b"], [bytes(5_000)], [b"c"]):
        topic.publish(kernel.build(some), len(some), False, None)
    sim.scheduler.run_until_idle()
    for connection in (document, ours, published):
        lengths = [len(payload) for _, payload in frames_of(bytes(connection.outlets[0].sent))]
        assert max(lengths) <= 4_096
    told = document.outlets[0].take()[1:]
    assert [one.payload for one in told if isinstance(one, codec.Event)] == [b"a", b"b", b"c"]
    first, second = [one.message for one in told if isinstance(one, codec.Error)]
    assert "offset 1 " in first and "4752 bytes" in first and "4096" in first and "offset 3 " in second
    assert [type(one) for one in told] == [codec.Event, codec.Error, codec.Event, codec.Error, codec.Event]
    told = ours.outlets[0].take()[1:]
    assert told == [
        (0, [b"a", bytes(3_500), b"b"]), codec.Lagged(subscription_id=1, missed=1, next_offset=4), (4, [b"c"]),
    ]  # fmt: skip
    assert published.outlets[0].take()[1:] == [(0, [b"a", bytes(3_500), b"b"]), (4, [b"c"])]


def test_a_message_larger_than_a_frame_does_not_hold_up_a_group() -> None:
    sim = FelixSim(frame_bytes_max=4_096)
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(subscription_id=1, group="g", start="earliest"))
    topic = sim.broker.topics.find(b"t1/default/demo")
    topic.publish(kernel.build([bytes(5_000), b"a"]), 2, False, None)
    sim.scheduler.run_until_idle()
    assert values(connection.outlets[0]) == [b"a"]
    assert stream.ask(codec.AckRanges(subscription_id=1, ranges=[(1, 1)], request_id=1)) == [codec.Ok(request_id=1)]
    assert sim.broker.groups.offsets.get_offset("dev", False, topic, "g", 0) == 2


# -- acknowledgement ----------------------------------------------------------------------------------------------------


def test_what_is_not_acknowledged_comes_again() -> None:
    sim = FelixSim(BrokerOptions(delivery=DeliverySection(push_timeout_seconds=1)))
    fill(sim, b"a", b"b", b"c")
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(subscription_id=1, ack="explicit", start="earliest"))
    (outlet,) = connection.outlets
    assert values(outlet) == [b"a", b"b", b"c"]
    ranges = [(0, 1), (2, 1)]
    assert stream.ask(codec.AckRanges(subscription_id=1, ranges=ranges, request_id=3)) == [codec.Ok(request_id=3)]
    sim.advance(2 * SECOND)
    assert outlet.take() == [(1, [b"b"])]
    assert stream.ask(codec.AckRanges(subscription_id=1, ranges=[(1, 1)])) == []
    sim.advance(5 * SECOND)
    assert not outlet.sent


def test_credit_bounds_what_is_on_its_way(sim: FelixSim) -> None:
    fill(sim, *[b"%d" % n for n in range(10)])
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(subscription_id=1, ack="explicit", start="earliest", credit=3))
    (outlet,) = connection.outlets
    assert values(outlet) == [b"0", b"1", b"2"]
    stream.ask(codec.AckRanges(subscription_id=1, ranges=[(0, 2)]))
    assert values(outlet) == [b"3", b"4"]


def test_a_durable_subscription_goes_on_where_it_was_also_after_a_restart(sim: FelixSim) -> None:
    fill(sim, b"a", b"b", b"c")
    connection = sim.connect()
    stream = connection.auth()
    ask = subscribe(subscription_id=1, durable="billing", start="earliest")
    stream.ask(ask)
    assert values(connection.outlets[0]) == [b"a", b"b", b"c"]
    stream.ask(codec.AckRanges(subscription_id=1, ranges=[(0, 2)]))
    connection.close()
    for restart in (False, True):
        sim.advance(SECOND)
        if restart:
            sim.restart()
        connection = sim.connect()
        (said,) = connection.auth().ask(ask)
        assert said.offsets == [2]
        assert values(connection.outlets[0]) == [b"c"]
        connection.close()
    assert [s.name for s in sim.broker.subscriptions.all()] == ["billing"]
    other = FelixSim.connect(sim).auth(token(sim.now_s))
    (said,) = other.ask(subscribe(subscription_id=1, durable="billing", start="latest"))
    assert said.offsets == [3]  # another owner's is another
    assert len(sim.broker.subscriptions.all()) == 2


def test_who_comes_later_has_the_durable_subscription(sim: FelixSim) -> None:
    fill(sim, b"a")
    first, second = sim.connect(), sim.connect()
    ask = subscribe(subscription_id=1, durable="billing", start="earliest")
    first.auth().ask(ask)
    second.auth().ask(ask)
    assert first.outlets[0].ended
    assert values(second.outlets[0]) == [b"a"]
    fill(sim, b"b")
    assert values(second.outlets[0]) == [b"b"]
    assert len(sim.broker.subscriptions.all()) == 1


def test_two_that_make_the_same_durable_subscription_at_once(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    said = stream.ask(subscribe(subscription_id=1, durable="d"), subscribe(subscription_id=2, durable="d"))
    assert len(said) == 2
    fill(sim, b"a")
    assert sorted(outlet.ended for outlet in connection.outlets) == [False, True]
    assert [value for outlet in connection.outlets for value in values(outlet)] == [b"a"]
    assert len(sim.broker.subscriptions.all()) == 1


def test_unsubscribe_and_delete(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(subscription_id=1, durable="d"), subscribe(subscription_id=2))
    assert stream.ask(codec.Unsubscribe(subscription_id=2, request_id=1)) == [codec.Ok(request_id=1)]
    assert stream.ask(codec.Unsubscribe(subscription_id=1, request_id=2)) == [codec.Ok(request_id=2)]
    assert all(outlet.ended for outlet in connection.outlets)
    assert len(sim.broker.subscriptions.all()) == 1
    stream.ask(subscribe(subscription_id=1, durable="d"))
    stream.ask(codec.Unsubscribe(subscription_id=1, delete=True, request_id=2))
    assert not sim.broker.subscriptions.all()
    (said,) = stream.ask(codec.Unsubscribe(subscription_id=1, request_id=3))
    assert (said.request_id, said.message, said.code) == (3, "unknown subscription: 1", "E1302")


def test_ids_of_other_connections_and_other_clients_do_nothing(sim: FelixSim) -> None:
    fill(sim, b"a")
    mine, other = sim.connect(), sim.connect()
    ask = subscribe(subscription_id=1, ack="explicit", start="earliest")
    mine.auth().ask(ask)
    (subscription,) = sim.broker.subscriptions.all()
    strangers = [other.auth(), mine.auth(token(sim.now_s)), mine.auth(token(sim.now_s, sub="bob"))]
    for stranger in strangers:
        for bad in (
            codec.AckRanges(subscription_id=1, ranges=[(0, 1)], request_id=1), codec.Unsubscribe(subscription_id=1, request_id=1),
            codec.AckRanges(subscription_id=subscription.id, ranges=[(0, 1)], request_id=1),
        ):  # fmt: skip
            (said,) = stranger.ask(bad)
            assert said.message.startswith("unknown subscription")
            assert stranger.reason() is None
    assert subscription.lanes[0].inflight
    assert not mine.outlets[0].over


@pytest.mark.parametrize(
    "ranges",
    [[(0, 0)], [(0, -1)], [(-1, 1)], [(1 << 64, 1)], [(1 << 48, 1)], [(0, 65_537)], [(0, 40_000), (1, 40_000)]],
)
def test_acknowledgements_that_make_no_sense(sim: FelixSim, ranges: list[tuple[int, int]]) -> None:
    stream = sim.connect().auth()
    stream.ask(subscribe(subscription_id=1, ack="explicit"))
    (said,) = stream.ask(codec.AckRanges(subscription_id=1, ranges=ranges, request_id=1))
    assert isinstance(said, codec.Error)
    assert stream.reason() is None


def test_what_cannot_be_asked_for_together(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    for more in (
        {"durable": "d", "group": "g"}, {"credit": 0}, {"credit": 70_000}, {"durable": ""}, {"durable": "a/b"},
        {"group": "g", "start": codec.Start(offset=0)}, {"durable": "x" * 201},
    ):  # fmt: skip
        (said,) = stream.ask(subscribe(**more))
        assert isinstance(said, codec.Error), more
    (said,) = sim.connect().auth(flags=frames.EXTENDED).ask(subscribe(ack="explicit"))
    assert said.message.startswith("ack:")
    assert not sim.broker.subscriptions.all()


def test_attempts_that_are_used_up_end_as_a_dead_letter() -> None:
    sim = FelixSim(BrokerOptions(delivery=DeliverySection(push_timeout_seconds=1, attempts_max=2)))
    fill(sim, b"poison")
    connection = sim.connect()
    connection.auth().ask(subscribe(durable="d", start="earliest"))
    sim.advance(20 * SECOND)
    letters = sim.broker.topics.get(NAME + b"-dlq")
    assert letters is not None
    assert letters.partitions[0].visible == 1


# -- groups -------------------------------------------------------------------------------------------------------------


def test_members_of_a_group_share_its_partitions_and_its_offsets() -> None:
    sim = partitioned(4)
    for n in range(8):
        fill(sim, b"%d" % n)
    ask = subscribe(subscription_id=1, group="g", start="earliest")
    one, two = sim.connect(), sim.connect()
    first = one.auth()
    first.ask(ask)
    assert sorted(values(one.outlets[0])) == [b"%d" % n for n in range(8)]
    ranges = [(partition << 48, 2) for partition in range(4)]
    assert first.ask(codec.AckRanges(subscription_id=1, ranges=ranges, request_id=1)) == [codec.Ok(request_id=1)]
    assert sim.broker.groups.describe("dev", False, NAME.decode(), "g").offsets == tuple((p, 2) for p in range(4))
    two.auth().ask(ask)
    sim.advance(SECOND)
    for n in range(8, 16):
        fill(sim, b"%d" % n)
    got = [values(connection.outlets[0]) for connection in (one, two)]
    assert [len(some) for some in got] == [4, 4]
    assert sorted(got[0] + got[1]) == sorted(b"%d" % n for n in range(8, 16))
    one.close()  # nothing of it was acknowledged: the other gets it
    sim.advance(SECOND)
    assert sorted(values(two.outlets[0])) == sorted(got[0])
    assert len(sim.broker.groups.describe("dev", False, NAME.decode(), "g").members) == 1


def test_what_is_acknowledged_out_of_order_waits_for_what_is_before_it(sim: FelixSim) -> None:
    fill(sim, b"a", b"b", b"c")
    stream = sim.connect().auth()
    stream.ask(subscribe(subscription_id=1, group="g", start="earliest"))

    def committed() -> tuple[tuple[int, int], ...]:
        return sim.broker.groups.describe("dev", False, NAME.decode(), "g").offsets

    assert stream.ask(codec.AckRanges(subscription_id=1, ranges=[(1, 2)], request_id=1)) == [codec.Ok(request_id=1)]
    assert committed() == ()
    assert stream.ask(codec.AckRanges(subscription_id=1, ranges=[(0, 1)], request_id=2)) == [codec.Ok(request_id=2)]
    assert committed() == ((0, 3),)
    sim.restart()
    connection = sim.connect()
    connection.auth().ask(subscribe(subscription_id=1, group="g", start="earliest"))
    assert values(connection.outlets[0]) == []


def test_a_member_lives_as_long_as_its_event_stream(sim: FelixSim) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(subscription_id=1, group="g"))
    stream.close()
    sim.advance(60 * SECOND, SECOND // 4)
    assert len(sim.broker.groups.describe("dev", False, NAME.decode(), "g").members) == 1
    connection.outlets[0].gone(LOST)
    sim.advance(SECOND)
    assert not sim.broker.groups.describe("dev", False, NAME.decode(), "g").members
    assert not sim.broker.subscriptions.all()


def test_a_group_of_another_is_forbidden(sim: FelixSim) -> None:
    sim.connect().auth().ask(subscribe(subscription_id=1, group="g"))
    connection = sim.connect()
    stream = connection.auth(token(sim.now_s))
    (said,) = stream.ask(subscribe(subscription_id=1, group="g", request_id=5))
    assert said.message == f"forbidden: consumer group {NAME.decode()}:g belongs to dev, not to (t1/ann"
    assert said.request_id == 5
    assert not connection.outlets


# -- lag ----------------------------------------------------------------------------------------------------------------


def lagging(flags: int) -> list[Any]:
    rules = TopicPolicy(rules=[TopicRule("*", memory_bytes=10_000)])
    sim = FelixSim(BrokerOptions(topics=rules))
    connection = sim.connect()
    connection.auth(flags=flags).ask(subscribe(subscription_id=1))
    (outlet,) = connection.outlets
    outlet.room_bytes = 0
    publisher = sim.connect().auth()
    for n in range(30):
        publisher.ask(batch(b"%d" % n + bytes(1_000)))
    outlet.open_up()
    return outlet.take()[1:]


def test_a_slow_subscriber_is_told_what_it_missed() -> None:
    lagged, *events = lagging(OURS)
    assert isinstance(lagged, codec.Lagged)
    assert lagged.subscription_id == 1
    assert 0 < lagged.missed == lagged.next_offset == events[0][0]
    assert all(isinstance(event, tuple) for event in events)
    assert lagged.missed + sum(len(event[1]) for event in events) == 30


def test_who_does_not_know_the_word_sees_it_in_the_offsets() -> None:
    events = lagging(PLAIN)
    assert all(isinstance(event, tuple) for event in events)
    assert events[0][0] > 0


def test_a_reset_event_stream_is_told_of_where_it_was_asked_for(sim: FelixSim) -> None:
    connection = sim.connect()
    stream, outlet = opened(connection, subscribe(subscription_id=1))
    fill(sim, b"a", b"b")
    fill(sim, b"c")
    outlet.room_bytes = 0
    fill(sim, b"d")
    outlet.gone(TOO_SLOW)  # nobody knows whether the first three arrived
    assert stream.said() == [codec.Lagged(subscription_id=1, missed=0, next_offset=0)]
    assert not sim.broker.subscriptions.all()


def test_what_was_sent_long_ago_has_arrived(sim: FelixSim) -> None:
    connection = sim.connect()
    stream, outlet = opened(connection, subscribe(subscription_id=1), connection.auth(flags=OURS & ~frames.ZSTD))
    for _ in range(12):
        fill(sim, bytes(1 << 20))
    outlet.gone(TOO_SLOW)
    (said,) = stream.said()
    assert 0 < said.next_offset < 9


def test_moves_are_in_the_trail(sim: FelixSim) -> None:
    fill(sim, b"a")
    stream = sim.connect().auth()
    stream.ask(subscribe(subscription_id=1, ack="explicit", start="earliest"))
    stream.ask(codec.AckRanges(subscription_id=1, ranges=[(0, 1)]))
    sim.advance(SECOND)
    (partition,) = [sim.broker.events.partition]
    rows = [row[3] for one in partition.read(0, 1 << 20) or () for row in one.rows()]
    assert any(row is not None and b"felix" in row for row in rows)
    assert DEMO[0].encode() in b"".join(row or b"" for row in rows)
