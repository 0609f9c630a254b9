"""Credit, working and giving back on the Felix wire, alone and as a member of a group (ADR 14)."""

from typing import Any

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.sections import DeliverySection
from quintet.protocols.felix import codec
from tests.protocols.felix.helpers import SECOND, FakeOutlet, FelixSim, batch, subscribe

JOBS = 30
TOPIC = b"t1/default/demo"


@pytest.fixture
def sim() -> FelixSim:
    policy = DeliverySection(attempts_max=3, retry_backoff_seconds=1, push_timeout_seconds=1)
    sim = FelixSim(BrokerOptions(delivery=policy))
    sim.broker.topics.create(TOPIC, 3)
    sim.scheduler.run_until_idle()
    return sim


def offsets(outlet: FakeOutlet) -> list[int]:
    """Of all that came, as the wire has them."""
    return [item[0] + at for item in outlet.take() if isinstance(item, tuple) for at in range(len(item[1]))]


@pytest.mark.parametrize("kind", [{"ack": "explicit"}, {"durable": "d"}, {"group": "g"}])
@pytest.mark.parametrize("credit", [1, 4, None])
def test_jobs_of_a_steady_consumer_are_delivered_once(sim: FelixSim, kind: dict[str, Any], credit: int | None) -> None:
    """Jobs of 0.9 s on one consumer of three partitions, time-out 1 s: each is delivered once."""
    connection = sim.connect()
    stream = connection.auth()
    (said,) = stream.ask(subscribe(subscription_id=1, request_id=1, start="earliest", credit=credit, **kind))
    assert said.ack_timeout_ms == 1_000
    for number in range(JOBS):
        stream.ask(batch(b"%d" % number, request_id=10 + number))
    (outlet,) = connection.outlets
    queue = offsets(outlet)
    assert len(queue) == (credit or JOBS)
    seen = list(queue)
    for _ in range(JOBS):
        for _ in range(9):
            sim.advance(SECOND // 10)
        stream.ask(codec.AckRanges(subscription_id=1, ranges=[(queue.pop(0), 1)], request_id=2))
        more = offsets(outlet)
        queue += more
        seen += more
    sim.advance(10 * SECOND)
    assert (len(seen), len(set(seen)), offsets(outlet)) == (JOBS, JOBS, [])
    assert sim.broker.dead.buried == 0


@pytest.mark.parametrize("kind", [{"ack": "explicit"}, {"group": "g"}])
def test_working_and_giving_back(sim: FelixSim, kind: dict[str, Any]) -> None:
    connection = sim.connect()
    stream = connection.auth()
    stream.ask(subscribe(subscription_id=1, start="earliest", credit=1, **kind))
    stream.ask(batch(b"a", b"b", request_id=1))
    (outlet,) = connection.outlets
    (first,) = offsets(outlet)
    for _ in range(20):
        sim.advance(SECOND // 2)
        assert stream.ask(codec.WorkingRanges(subscription_id=1, ranges=[(first, 1)])) == []
    assert offsets(outlet) == []
    said = stream.ask(codec.NackRanges(subscription_id=1, ranges=[(first, 1)], delay_ms=5_000, request_id=7))
    assert said == [codec.Ok(request_id=7)]
    (second,) = offsets(outlet)
    stream.ask(codec.AckRanges(subscription_id=1, ranges=[(second, 1)]))
    sim.advance(4 * SECOND)
    assert offsets(outlet) == []
    sim.advance(2 * SECOND)
    assert offsets(outlet) == [first]
    stream.ask(batch(b"c", b"d", request_id=2), codec.Credit(subscription_id=1, credit=3))
    assert len(offsets(outlet)) == 2


def test_words_that_mean_nothing_are_refused(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(subscribe(subscription_id=1, ack="explicit"))
    for wrong in (
        codec.Credit(subscription_id=1, credit=0, request_id=1),
        codec.Credit(subscription_id=9, credit=1, request_id=1),
        codec.NackRanges(subscription_id=1, ranges=[(0, 0)], request_id=1),
        codec.NackRanges(subscription_id=1, ranges=[(0, 1)], delay_ms=-1, request_id=1),
        codec.WorkingRanges(subscription_id=1, ranges=[(1 << 60, 1)], request_id=1),
    ):
        (said,) = stream.ask(wrong)
        assert isinstance(said, codec.Error), wrong
    assert stream.ask(codec.WorkingRanges(subscription_id=1, ranges=[(0, 1)], request_id=1)) == [codec.Ok(request_id=1)]
