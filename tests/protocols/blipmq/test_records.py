"""Record sets of BlipMQ on a simulated broker: the laws, the way they go, and what is answered to those that are refused."""

from typing import Any

import pytest
from msgspec.structs import replace

from quintet.broker.core import BrokerOptions
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.delivery.traces import Traces
from quintet.model import limits
from quintet.protocols.blipmq.frames import WHOLE
from quintet.protocols.blipmq.session import BlipSession
from quintet.testing.line import Peer, SimBroker
from tests.protocols.blipmq.helpers import nacks_of, ready
from tests.protocols.cases import DoorLaws
from tests.wire import blipmq as wire
from tests.wire.records import Record, pack

MEMORY = BrokerOptions(topics=TopicPolicy([TopicRule("*")], "memory"))
BOUNDED = BrokerOptions(topics=TopicPolicy([TopicRule("*")], "memory", queue_messages_max=3))
ONE = pack(Record(b"v", b"k", ((b"h", b"1"), (b"null", None))))
RESERVED = pack(Record(b"v"), Record(b"v", None, ((b"quintet-own", b"1"),)))


def stored(sim: SimBroker, topic: bytes) -> list[Any]:
    """Key, value, headers, expiry and origin of everything in it."""
    partition = sim.broker.topics.find(topic).partitions[0]
    return [row[2:] for batch in partition.read(0, 1 << 20) or [] for row in batch.rows()]


class SetLaws(DoorLaws):
    """Sets to topics that are new and known, of both QoS, between publishes; refused ones; a PING behind some of them."""

    options: BrokerOptions

    def script(self) -> bytes:
        two = pack(Record(b"x" * 90, None, ((b"trace", b"t" * 40),)), Record(None, b"k", (), 5_000))
        return (
            wire.hello(1, WHOLE) + wire.auth(2, b"dev-key")
            + wire.records(3, b"demo", 1, ONE) + wire.records(4, b"demo", 1, two) + wire.ping(5)
            + wire.publish(6, b"demo", b"plain", 1) + wire.records(7, b"demo", 0, ONE) + wire.records(8, b"demo", 0, two)
            + wire.records(9, b"demo", 1, RESERVED) + wire.records(10, b"demo", 1, ONE) + wire.records(11, b"other", 1, ONE)
            + wire.records(12, b"demo", 7, ONE) + wire.frame(wire.RECORDS, 13, b"\1\0\xffdemo") + wire.ping(14)
            + wire.records(15, b"demo", 1, two) + wire.publish(16, b"demo", b"last", 1) + wire.records(17, b"demo", 1, two)
            + wire.ping(18)
        )  # fmt: skip

    def run(self, chunks: list[int]) -> tuple[bytes, Any]:
        sim = SimBroker(options=self.options)
        peer = Peer(sim, BlipSession)
        peer.feed(self.script(), chunks)
        sim.scheduler.run_until_idle()
        return peer.take(), (peer.session.closing, stored(sim, b"demo"), stored(sim, b"other"))


class TestSetLawsOnDisk(SetLaws):
    options = BrokerOptions()


class TestSetLawsInMemory(SetLaws):
    options = MEMORY


def test_what_the_laws_compare_is_what_was_sent() -> None:
    """The control of both classes above: sets that are lost, doubled or out of their order would be seen."""
    output, (closing, rows, others) = TestSetLawsInMemory().run([])
    values = [value for _, value, *_ in rows]
    long = b"x" * 90
    assert values == [b"v", long, None, b"plain", b"v", long, None, b"v", long, None, b"last", long, None]
    assert rows[0][2] == ((b"h", b"1"), (b"null", None)) and len(others) == 1 and closing is None
    assert [(id, code) for id, code, _ in nacks_of(output)] == [(9, 400), (12, 400), (13, 400)]


def direct(sim: SimBroker, topic: bytes) -> int:
    """Records that the kernel appended by itself."""
    found = sim.broker.topics.find(topic)
    return sim.broker.tails.published(found.direct) if found.direct is not None else -1


def test_sets_go_the_direct_way_until_a_decision_is_needed() -> None:
    sim = SimBroker(options=BOUNDED)
    peer = ready(sim, WHOLE)
    for number in range(1, 4):
        assert peer.exchange(wire.records(number, b"demo", 1, ONE) + wire.ping(9)) == wire.pong(9)
    assert direct(sim, b"demo") == 2
    peer.exchange(wire.subscribe(3, b"demo", 1))
    refused = b""
    for number in range(4):
        refused = peer.exchange(wire.records(number, b"demo", 1, ONE) + wire.ping(9))
    assert [(id, code) for id, code, _ in nacks_of(refused)] == [(3, 500)]
    assert direct(sim, b"demo") == 0


def test_sets_are_looked_at_where_sampled_messages_are_followed() -> None:
    """Control: without somebody who follows them, the second set goes the direct way."""
    header = (b"traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    for followed in (True, False):
        spans: list[Any] = []
        bounds: dict[str, Any] = {"ratio": 1.0, "spans_per_second_max": 100, "messages_max": 100}
        traces = Traces(SimBroker().scheduler, lambda size: b"\1" * size, spans.append, **bounds) if followed else None
        sim = SimBroker(options=replace(MEMORY, traces=traces))
        peer = ready(sim, WHOLE)
        for number in (1, 2):
            peer.exchange(wire.records(number, b"demo", 1, pack(Record(b"v", None, (header,)))) + wire.ping(9))
        assert direct(sim, b"demo") == (0 if followed else 1)
        assert [span.name for span in spans] == ["append demo"] * 2 * followed


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (RESERVED, "the name of header 0 of record 1 of the set begins with quintet-"),
        (pack(Record(b"v"))[:-1], "record 0 of the set ends early"),
        (b"", "a record set has at least one record"),
        (pack(Record(b"v", None, ((b"\xff", b"1"),))), "the name of header 0 of record 0 of the set is not UTF-8"),
        (pack(Record(b"v", None, ((b"", b"1"),))), "a header name of record 0 of the set has 0 bytes"),
        (pack(Record(b"v", None, ((b"h", None),) * (limits.HEADERS_MAX + 1))), "has 1,001 headers, the limit is 1,000"),
        (pack(Record(b"v", None, ((b"h", bytes(1 << 20)),))), "1,048,577 bytes of headers, the limit is 65,536"),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_a_bad_set_is_refused_with_400_and_a_sentence(sent: bytes, said: str, known: bool) -> None:
    """Also where the kernel takes sets apart because one came before; nothing of it is stored."""
    sim = SimBroker()
    peer = ready(sim, WHOLE)
    if known:
        peer.exchange(wire.records(3, b"demo", 1, ONE))
    ((id, code, text),) = nacks_of(peer.exchange(wire.records(4, b"demo", 1, sent) + wire.ping(5)))
    assert (id, code) == (4, 400) and said in text
    assert len(stored(sim, b"demo")) == known


def test_a_set_for_a_topic_that_was_made_anew_is_not_split_wrongly() -> None:
    """Keys chose among one partition; the new topic has three, and the same keys belong elsewhere."""
    sim = SimBroker()
    peer, keyed = ready(sim, WHOLE), pack(*[Record(b"v", b"%d" % key) for key in range(9)])
    assert peer.exchange(wire.records(3, b"demo", 1, keyed) + wire.ping(4)) == wire.pong(4)
    sim.broker.topics.delete(b"demo")
    sim.scheduler.run_until_idle()
    sim.broker.create_topic(b"demo", 3)
    sim.scheduler.run_until_idle()
    ((_, code, text),) = nacks_of(peer.exchange(wire.records(5, b"demo", 1, keyed) + wire.ping(6)))
    assert code == 404 and "3 partitions" in text
    assert peer.exchange(wire.records(7, b"demo", 1, keyed) + wire.ping(8)) == wire.pong(8)
    assert [partition.visible for partition in sim.broker.topics.find(b"demo").partitions] != [9, 0, 0]
