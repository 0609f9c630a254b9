"""The kernel appends by itself only what Python would allow at that moment, at every door that lets it.

Each test first shows that the second publish of a connection does go the direct way (`Tails.published` counts it), then takes
the permission away.
"""

from functools import partial
from typing import TypeVar

import pytest

from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.log.base import Durability
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.protocols.blipmq.frames import WHOLE
from quintet.protocols.blipmq.session import BlipSession
from quintet.protocols.fast import errors as fast_errors
from quintet.protocols.flymq import frames
from quintet.testing.line import Peer, SimBroker
from tests.protocols.fast.helpers import DEMO, FastSim, token
from tests.protocols.flymq.helpers import Client, configure, make_sim, parse, request
from tests.wire import blipmq
from tests.wire import fast as wire
from tests.wire.records import Record, pack

MEMORY = BrokerOptions(topics=TopicPolicy([TopicRule("*")], "memory"))
BOUNDED = BrokerOptions(topics=TopicPolicy([TopicRule("*")], "memory", queue_messages_max=3))


def direct(sim: SimBroker, topic: Topic) -> int:
    """Records that the kernel appended by itself, as long as it may."""
    return sim.broker.tails.published(topic.direct) if topic.direct is not None else -1


def test_flymq_produces_go_the_direct_way_until_rights_change() -> None:
    sim = make_sim(MEMORY)
    client = Client(sim, "paula")
    assert client.produce("demo", b"a") == [0]
    assert client.produce("demo", b"b", b"c") == [1, 2]
    topic = sim.broker.topics.find(b"demo")
    assert direct(sim, topic) == 2
    configure(sim, {"paula": ("consumer",), "conny": ("consumer",)})
    assert client.refused("PRODUCE", topic="demo", key=b"", value=b"d", partition=-1)
    assert direct(sim, topic) == 2
    assert Client(sim, "conny").values("demo") == [b"a", b"b", b"c"]


Sim = TypeVar("Sim", bound=SimBroker)


def journaled(sim: Sim) -> Sim:
    """Its durable writes go by way of the journal, however few there are."""
    committer = sim.broker.log._shared.committer  # type: ignore[attr-defined]
    committer.threshold = 1
    committer.prepare()
    sim.scheduler.run_until_idle()
    return sim


def in_files(durability: Durability) -> SimBroker:
    return journaled(make_sim(BrokerOptions(topics=TopicPolicy([TopicRule("*")], durability))))


def produce_set(client: Client, name: str, value: bytes) -> list[int]:
    """Offsets of a PRODUCE_RECORDS of one message with a header."""
    made = pack(Record(value, None, ((b"h", b"v"),)))
    (group,) = client.ask("PRODUCE_RECORDS", topic=name, partition=-1, records=made)["groups"]
    return [group["offset"]]


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
@pytest.mark.parametrize("sets", [False, True])
def test_flymq_produces_to_files_are_lent_until_rights_change(durability: Durability, sets: bool) -> None:
    sim = in_files(durability)
    client = Client(sim, "paula")
    values = [bytes([number]) * 2_000 for number in range(6)]  # too large for a pack: the first makes a file
    for offset, value in enumerate(values):
        assert (produce_set(client, "demo", value) if sets else client.produce("demo", value)) == [offset]
    topic = sim.broker.topics.find(b"demo")
    assert topic.lent is not None and topic.direct is None
    appended = sim.broker.tails.published(topic.lent)
    assert appended >= 3 and topic.published == len(values)
    configure(sim, {"paula": ("consumer",), "conny": ("consumer",)})
    assert client.refused("PRODUCE", topic="demo", key=b"", value=b"d", partition=-1)
    assert sim.broker.tails.published(topic.lent) == appended
    assert Client(sim, "conny").values("demo") == values


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_lent_partitions_of_a_deleted_topic_are_not_those_of_the_new_one(durability: Durability) -> None:
    sim = in_files(durability)
    client = Client(sim, "admin")
    for _ in range(5):
        client.produce("demo", bytes(2_000))
    client.ask("DELETE_TOPIC", topic="demo")
    for offset in range(5):
        assert client.produce("demo", b"c" * 2_000) == [offset]
    assert client.values("demo") == [b"c" * 2_000] * 5


def test_flymq_produces_to_a_deleted_topic_reach_the_new_one_only() -> None:
    sim = make_sim(MEMORY)
    client = Client(sim, "admin")
    client.produce("demo", b"a")
    client.produce("demo", b"b")
    client.ask("DELETE_TOPIC", topic="demo")
    assert client.produce("demo", b"c") == [0]
    assert client.values("demo") == [b"c"]


def test_a_rotated_key_closes_the_direct_way_of_all_connections() -> None:
    sim = FastSim()
    ann = token()
    peer, owner = sim.peer(wire.create(ann, b"demo"), extended=True), sim.peer(extended=True)
    for value in (b"a", b"b"):
        assert [reply.code for reply in peer.ask(wire.publish(ann, DEMO, value))] == [0]
    topic = sim.broker.topics.find(b"demo")
    assert direct(sim, topic) == 1
    assert [reply.code for reply in owner.ask(wire.rotate_key(ann, DEMO, b"k2"))] == [0]
    assert [reply.code for reply in peer.ask(wire.publish(ann, DEMO, b"c"))] == [fast_errors.KEY]
    fresh = token(key="k2")
    for value in (b"d", b"e"):
        assert [reply.code for reply in peer.ask(wire.publish(fresh, DEMO, value))] == [0]
    assert direct(sim, topic) == 1
    assert topic.published == 4


def lent_demo(durability: Durability) -> tuple[SimBroker, Client, Topic]:
    """A client whose topic is in a file and lent."""
    sim = in_files(durability)
    client = Client(sim, "paula")
    for number in range(6):
        client.produce("demo", bytes([number]) * 2_000)
    topic = sim.broker.topics.find(b"demo")
    assert topic.lent is not None and sim.broker.tails.published(topic.lent) > 0
    return sim, client, topic


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_the_first_produce_of_a_connection_goes_to_what_is_lent(durability: Durability) -> None:
    """Control: to a topic that nobody has published to it does not."""
    sim, _, topic = lent_demo(durability)
    appended = sim.broker.tails.published(topic.lent or 0)
    client = Client(sim, "paula")
    assert client.produce("demo", b"first", b"second") == [6, 7]
    assert sim.broker.tails.published(topic.lent or 0) == appended + 2
    assert client.produce("other", b"first") == [0]
    other = sim.broker.topics.find(b"other")
    assert other.lent is not None and (other.published, sim.broker.tails.published(other.lent)) == (1, 0)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("sets", [False, True])
def test_a_run_that_comes_back_is_answered_by_what_became_of_it(durability: Durability, sets: bool) -> None:
    """The partition is recalled between the read and the end of its turn. Control: it is the kernel's answer otherwise."""
    sim, client, topic = lent_demo(durability)
    partition = topic.partitions[0]
    made = pack(Record(b"one", None, ((b"h", b"v"),)))
    data = request("PRODUCE_RECORDS", topic="demo", partition=-1, records=made)
    data = data if sets else request("PRODUCE", topic="demo", key=b"", value=b"one", partition=-1)
    said = []
    for recalled in (False, True):
        assert client.peer.session.receive(memoryview(data), sim.scheduler.now()) == len(data)
        if recalled:
            assert isinstance(partition, FilePartition) and partition.is_lent
            partition.recall()
            assert partition.visible == 7, "it is not durable yet"
        sim.scheduler.run_until_idle()
        (reply,) = parse(client.peer.exchange(b""))
        found = client.read("PRODUCE_RECORDS" if sets else "PRODUCE", reply)
        said.append(found["groups"][0]["offset"] if sets else found["offset"])
    assert said == [6, 7] and partition.visible == 8


@pytest.mark.parametrize("sets", [False, True])
def test_produces_that_a_file_refuses_are_refused_one_by_one(sets: bool) -> None:
    sim, client, _ = lent_demo("os")
    sim.disk.fail("pwritev", 1, 5, times=100)
    made = pack(Record(b"one", None, ((b"h", b"v"),)))
    data = request("PRODUCE_RECORDS", topic="demo", partition=-1, records=made)
    data = data if sets else request("PRODUCE", topic="demo", key=b"", value=b"one", partition=-1)
    assert [reply.code for reply in client.exchange(data * 2)] == [frames.ERROR] * 2
    assert Client(sim, "conny").values("demo") == [bytes([number]) * 2_000 for number in range(6)]


def blip(sim: SimBroker, version: int = 1) -> Peer:
    def make(broker: Broker, sink: Peer, now: int) -> BlipSession:
        return BlipSession(broker, sink, now)

    peer = Peer(sim, make)
    peer.exchange(blipmq.hello(1, version) + blipmq.auth(2, b"dev-key"))
    return peer


def publish_set(id: int, name: bytes, value: bytes) -> bytes:
    return blipmq.records(id, name, 1, pack(Record(value, None, ((b"h", b"v"),))))


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
@pytest.mark.parametrize("sets", [False, True])
def test_blipmq_publishes_to_files_are_lent_until_rights_change(durability: Durability, sets: bool) -> None:
    """Their PONG comes when they are on disk, as by way of Python."""
    sim = in_files(durability)
    peer = blip(sim, WHOLE)
    made = publish_set if sets else partial(blipmq.publish, qos=1)
    values = [bytes([number]) * 2_000 for number in range(8)]  # too large for a pack: the first makes a file
    for number, value in enumerate(values[:6], 1):
        assert peer.exchange(made(number, b"demo", value) + blipmq.ping(9)) == blipmq.pong(9)
    topic = sim.broker.topics.find(b"demo")
    assert topic.lent is not None and topic.direct is None
    appended = sim.broker.tails.published(topic.lent)
    assert appended >= 3 and topic.published == 6
    for number, value in enumerate(values[6:]):
        sim.broker.access.look_again()
        assert peer.exchange(made(7, b"demo", value) + blipmq.ping(9)) == blipmq.pong(9)
        assert sim.broker.tails.published(topic.lent) == appended, "Python decides again"
        assert topic.published == 7 + number
    assert Client(sim, "conny").values("demo") == values


@pytest.mark.parametrize("pieces", [False, True])
def test_publishes_that_a_file_refuses_are_answered_in_their_order(pieces: bool) -> None:
    """Also if each frame comes by itself. Control: before the disk fails there are pongs only."""
    sim = in_files("os")
    peer = blip(sim, WHOLE)
    value = bytes(2_000)
    for _ in range(5):
        frames = [publish_set(1, b"demo", value), blipmq.publish(2, b"demo", value, 1), blipmq.ping(3)]
        assert peer.exchange(b"".join(frames)) == blipmq.pong(3)
    topic = sim.broker.topics.find(b"demo")
    assert topic.lent is not None and sim.broker.tails.published(topic.lent) > 0
    sim.disk.fail("pwritev", 1, 5, times=100)
    frames = [blipmq.ping(10), publish_set(11, b"demo", value), blipmq.ping(12)]
    frames += [blipmq.publish(14, b"demo", value, 1), blipmq.publish(15, b"demo", value, 1), blipmq.ping(16)]
    said = b"".join(map(peer.exchange, frames)) if pieces else peer.exchange(b"".join(frames))
    kinds = [(frame.kind, frame.id) for frame in blipmq.frames_of(said)]
    pong, nack = blipmq.PONG, blipmq.NACK
    assert kinds == [(pong, 10), (nack, 11), (pong, 12), (nack, 14), (nack, 15), (pong, 16)]


def test_a_ping_does_not_wait_for_publishes_of_qos_0_to_files() -> None:
    """Control: it waits for one of QoS 1 among them."""
    sim = in_files("fsync")
    peer = blip(sim)
    for _ in range(5):
        peer.exchange(blipmq.publish(1, b"demo", bytes(2_000), 1) + blipmq.ping(2))
    topic = sim.broker.topics.find(b"demo")
    for qos, said in ((0, blipmq.pong(4)), (1, b"")):
        before = sim.broker.tails.published(topic.lent or 0)
        data = blipmq.publish(3, b"demo", b"x", qos) + blipmq.ping(4)
        assert peer.session.receive(memoryview(data), sim.scheduler.now()) == len(data)
        assert b"".join(peer.session.take_output()) == said
        assert sim.broker.tails.published(topic.lent or 0) == before + 1
    sim.scheduler.run_until_idle()
    assert topic.published == 7


def test_a_bounded_queue_is_asked_before_each_publish_that_must_be_kept() -> None:
    sim = SimBroker(options=BOUNDED)
    peer = blip(sim)
    for number in (1, 2):
        assert peer.exchange(blipmq.publish(number, b"demo", b"x", 1) + blipmq.ping(9)) == blipmq.pong(9)
    topic = sim.broker.topics.find(b"demo")
    assert direct(sim, topic) == 1
    peer.exchange(blipmq.subscribe(3, b"demo", 1))
    for number in range(3):
        assert peer.exchange(blipmq.publish(number, b"demo", b"x", 1) + blipmq.ping(9)) == blipmq.pong(9)
    refused, pong = blipmq.frames_of(peer.exchange(blipmq.publish(7, b"demo", b"x", 1) + blipmq.ping(9)))
    assert (refused.kind, refused.id, pong.kind) == (blipmq.NACK, 7, blipmq.PONG)
    assert direct(sim, topic) == 0


def test_a_durable_use_of_a_memory_topic_writes_no_row_if_it_stays_so() -> None:
    """Control: where it means os, the topic is held until its row is written."""
    cases: tuple[tuple[Durability, bool], ...] = (("memory", False), ("os", True))
    for durable, waits in cases:
        sim = SimBroker(options=BrokerOptions(topics=TopicPolicy([TopicRule("*")], durable)))
        topic = sim.broker.topics.ensure(b"demo", durable=False)
        sim.broker.topics.ensure(b"demo", durable=True)
        assert (topic.in_memory, topic.waiting) == (True, waits)
