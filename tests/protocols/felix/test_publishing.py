"""Publishes of published clients: none is answered that did not ask for it; keys choose the partition and come back."""

import base64
import json
from typing import Any

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Acl
from quintet.broker.sections import Tenant
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.model.errors import TopicNotFound
from quintet.model.keys import fnv1a
from quintet.protocols.base import WAIT
from quintet.protocols.felix import codec, frames
from tests.protocols.felix.helpers import DEMO, NEWER, PLAIN, FelixSim, batch, subscribe, token

SCOPE: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
TARGET = codec.target(*DEMO)
PARTITIONS = 4


@pytest.fixture
def sim() -> FelixSim:
    return FelixSim()


def rows_of(sim: FelixSim, name: bytes = b"t1/default/demo") -> list[tuple[int, bytes | None, bytes | None]]:
    """(partition, key, value) of all records."""
    found = []
    for number, partition in enumerate(sim.broker.topics.find(name).partitions):
        at = partition.start
        while at < partition.visible:
            for one in partition.read_now(at):
                found += [(number, row[2], row[3]) for row in one.rows()]
                at = one.next_offset
    return found


def text(**fields: object) -> bytes:
    return codec.frame(json.dumps({"type": "publish", **SCOPE, **fields}).encode())


# -- no answer that was not asked for -------------------------------------------------------------------------------------

REFUSED = {
    "a name that cannot be": batch(b"x", scope=("t1", "a/b", "c")),
    "another tenant": batch(b"x", scope=("t2", "default", "demo")),
    "a malformed batch": codec.frame(TARGET + b"\0\0\0\7", frames.BATCH),
    "a malformed key": codec.frame(b"\0\xff", frames.BATCH | frames.KEYED),
    "flags nobody knows": codec.frame(TARGET, frames.BATCH | 0x8000),
    "JSON of a name that cannot be": text(namespace="a/b", payload="eA=="),
    "JSON with ack none": text(namespace="a/b", payload="eA==", ack="none"),
    "JSON with a payload that is none": text(payload="?", ack="none"),
    "JSON without a payload": text(),
    "JSON with an id of text": text(payload="eA==", request_id="a"),
    "JSON with a long key": text(payload="eA==", key=base64.b64encode(bytes(65_536)).decode()),
}


@pytest.mark.parametrize("flags", [None, PLAIN, NEWER, frames.SERVER_FLAGS])
@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_publish_without_ack_is_never_answered(sim: FelixSim, refused: bytes, flags: int | None) -> None:
    """Published clients take what comes for the answer to the next acknowledged one."""
    stream = sim.connect().auth(token(sim.now_s), flags)
    for number in range(3):
        answers = stream.ask(refused, codec.Publish(**SCOPE, payload=b"good", request_id=number, ack="per_message"))
        (answer,) = answers
        assert isinstance(answer, codec.PublishOk) and answer.request_id == number
    assert stream.reason() is None
    assert [value for _, _, value in rows_of(sim)] == [b"good"] * 3
    assert sim.broker.publishes_dropped == 3


def test_a_forbidden_stream_is_asked_for_once_and_not_without_end(sim: FelixSim) -> None:
    """Nothing is said, and the stream serves what its user has a right to; but the audit cannot be flooded."""
    sim.broker.access.set_acl(Acl("t1/default/demo", users=("bob",)))
    other = ("t1", "default", "other")
    stream = sim.connect().auth(flags=PLAIN)
    before = sim.broker.audit.recorded
    assert stream.ask(*[batch(b"x")] * 10, batch(b"y", request_id=1, scope=other)) == [(0, 1, "")]
    assert sim.broker.audit.recorded == before + 1
    sim.broker.access.set_acl(Acl("t1/default/demo", users=("bob", "dev")))
    assert stream.ask(batch(b"now it may"), batch(b"z", request_id=2)) == [(0, 2, "")]
    assert [value for _, _, value in rows_of(sim)] == [b"now it may", b"z"]
    foreign = [batch(b"x", scope=("t2", "default", f"s{number}")) for number in range(frames.BARRED_TARGETS_MAX + 1)]
    stream = sim.connect().auth(token(sim.now_s), PLAIN)
    assert stream.ask(*foreign[:-1]) == []
    assert stream.reason() is None
    assert stream.ask(foreign[-1]) == []
    assert "64 streams" in (stream.reason() or "")


def test_a_publish_that_cannot_be_read_is_answered_by_its_id(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    (said,) = stream.ask(text(payload="?", ack="per_message", request_id=7))
    assert isinstance(said, codec.PublishError) and said.request_id == 7
    unknown = codec.frame((9).to_bytes(8, "big") + b"\2" + TARGET, frames.BATCH | frames.ACKED | 0x0100)
    assert stream.ask(unknown) == [(1, 9, "unsupported frame flags")]


# -- keys -----------------------------------------------------------------------------------------------------------------

KEYED = [b"a", b"bb", b"k7", b"\xff\0", b""]


@pytest.mark.parametrize("flags", [None, PLAIN, NEWER])
def test_keys_choose_the_partition(sim: FelixSim, flags: int | None) -> None:
    """0x0041, 0x0049 and JSON, whatever was negotiated: 0.6.2 sends them without asking."""
    sim.broker.create_topic(b"t1/default/demo", PARTITIONS)
    stream = sim.connect().auth(flags=flags)
    for number, key in enumerate(KEYED):
        binary = kernel.felix_publish(TARGET, [b"1", b"2"], number, 2, key, frames.KEYED)
        unacked = kernel.felix_publish(TARGET, [b"3"], -1, 0, key, frames.KEYED)
        first, second = stream.ask(
            unacked, binary, codec.Publish(**SCOPE, payload=b"4", key=key, request_id=number, ack="per_message")
        )
        assert first[:2] == (0, number)
        assert isinstance(second, codec.PublishOk)
        assert stream.ask(codec.PublishBatch(**SCOPE, payloads=[b"5", b"6"], key=key)) == []
    rows = rows_of(sim)
    assert {(partition, key) for partition, key, _ in rows} == {(fnv1a(key) % PARTITIONS, key) for key in KEYED}
    assert len(rows) == 6 * len(KEYED)
    assert len({partition for partition, _, _ in rows}) > 1


def test_keys_come_back_to_those_who_know_them(sim: FelixSim) -> None:
    stream = sim.connect().auth()
    stream.ask(subscribe(subscription_id=1), kernel.felix_publish(TARGET, [b"v", b"w"], -1, 0, b"k"), batch(b"plain"))
    events = [one for one in stream.streams.outlets[0].take() if isinstance(one, tuple)]
    assert events == [(0, [b"v", b"w", b"plain"], [b"k", b"k", None])]
    other = sim.connect().auth(flags=NEWER)
    other.ask(subscribe(subscription_id=1, start="earliest"))
    events = [one for one in other.streams.outlets[0].take() if isinstance(one, tuple)]
    assert [value for _, values in events for value in values] == [b"v", b"w", b"plain"]


def test_a_key_is_stored_with_each_message_and_bounded(sim: FelixSim) -> None:
    stream = sim.connect().auth(flags=PLAIN)
    big = bytes(frames.KEY_BYTES_MAX)
    ask = codec.PublishBatch(**SCOPE, payloads=[b""] * 513, key=big, request_id=1, ack="per_batch")
    (said,) = stream.ask(ask)
    assert isinstance(said, codec.PublishError) and "33554432 bytes" in said.message
    ((status, id, words),) = stream.ask(kernel.felix_publish(TARGET, [b""] * 513, 2, 2, big, frames.KEYED))
    assert (status, id) == (1, 2) and "32 MiB" in words


# -- offsets in acknowledgements ------------------------------------------------------------------------------------------


def test_offsets_in_acknowledgements_for_those_who_asked(sim: FelixSim) -> None:
    sim.broker.create_topic(b"t1/default/demo", PARTITIONS)
    stream, older = sim.connect().auth(flags=NEWER), sim.connect().auth(flags=PLAIN)
    place = (fnv1a(b"k") % PARTITIONS) << 48
    for number in range(3):
        ask = kernel.felix_publish(TARGET, [b"a", b"b"], number, 2, b"k", frames.KEYED)
        assert stream.ask(ask) == [(0, number, "", place + 3 * number)]
        json_ask = codec.Publish(**SCOPE, payload=b"c", key=b"k", request_id=9, ack="per_message")
        assert stream.ask(json_ask) == [codec.PublishOk(request_id=9, offset=place + 3 * number + 2)]
    assert older.ask(batch(b"x", request_id=1)) == [(0, 1, "")]
    assert older.ask(codec.Publish(**SCOPE, payload=b"c", request_id=9, ack="per_message")) == [
        codec.PublishOk(request_id=9)
    ]
    bad = batch(b"x", request_id=5, scope=("t1", "a/b", "c"))
    assert stream.ask(bad) == [(1, 5, "namespace: no / and no NUL", 4, 5)]  # an invalid request, which stays so


# -- reads that are answered in one call ------------------------------------------------------------------------------------


def in_memory(**options: Any) -> FelixSim:
    policy = TopicPolicy([TopicRule("*", durability="memory")], **options)
    return FelixSim(BrokerOptions(topics=policy))


def json_ask(number: int, payload: bytes = b"json") -> codec.Publish:
    return codec.Publish(**SCOPE, payload=payload, request_id=number, ack="per_message")


@pytest.mark.parametrize("flags", [PLAIN, NEWER])
def test_publishes_in_memory_are_answered_in_one_call(flags: int) -> None:
    """With the same answers, in the same order, and the same records as the long way."""
    sim = in_memory()
    sim.broker.create_topic(b"t1/default/demo", PARTITIONS)
    stream = sim.connect().auth(flags=flags)
    offset, place = flags == NEWER, 0
    for number in range(1, 9):
        reads: tuple[tuple[bytes | codec.Publish, ...], ...] = (
            (batch(b"binary", request_id=number),),
            (json_ask(number),),
            (batch(b"one", b"two", request_id=number), json_ask(number), batch(b"three", request_id=number)),
        )
        for read in reads:
            plain = codec.PublishOk(request_id=number), (0, number, "")
            answers = [plain[0] if isinstance(ask, codec.Publish) else plain[1] for ask in read]
            said = stream.ask(*read)
            if offset:
                told = [one.offset if isinstance(one, codec.PublishOk) else one[3] for one in said]
                assert all(isinstance(one, int) for one in told) and len(set(told)) == len(told)
                said = [plain[0] if isinstance(one, codec.PublishOk) else one[:3] for one in said]
            assert said == answers
            place += 1
    assert stream.quick_answers == place - 1, "the first one finds the topic"
    values = sorted(value or b"" for _, _, value in rows_of(sim))
    assert values == sorted([b"binary", b"json", b"one", b"two", b"json", b"three"] * 8)


def test_a_read_with_anything_else_goes_the_long_way() -> None:
    sim = in_memory()
    stream = sim.connect().auth(flags=PLAIN)
    for _ in range(3):
        assert stream.ask(batch(b"x", request_id=1)) == [(0, 1, "")]
    assert stream.quick_answers == 2
    other = batch(b"y", request_id=2, scope=("t1", "default", "other"))
    assert stream.ask(batch(b"x", request_id=1), other) == [(0, 1, ""), (0, 2, "")]
    assert stream.ask(batch(b"x", request_id=3), batch(b"unacknowledged"), batch(b"x", request_id=4)) == [
        (0, 3, ""),
        (0, 4, ""),
    ]
    half = batch(b"x", request_id=5)
    assert stream.ask(half[:20]) == [] and stream.ask(half[20:]) == [(0, 5, "")]
    assert stream.ask(batch(request_id=6)) == [(0, 6, "")], "an empty batch"
    large = batch(bytes(100_000), request_id=7)
    assert stream.ask(large) == [(0, 7, "")]
    assert stream.quick_answers == 2
    assert len(rows_of(sim)) == 3 + 1 + 3 + 1 + 1


def test_a_quick_publish_asks_for_rights_again_when_they_change() -> None:
    sim = in_memory()
    stream = sim.connect().auth(flags=PLAIN)
    for number in range(3):
        assert stream.ask(batch(b"x", request_id=number)) == [(0, number, "")]
    assert stream.quick_answers == 2
    sim.broker.access.set_acl(Acl("t1/default/demo", users=("bob",)))
    assert stream.ask(batch(b"x", request_id=3))[0][:2] == (1, 3)
    assert stream.quick_answers == 2 and len(rows_of(sim)) == 3


def test_a_deleted_topic_takes_no_quick_publish() -> None:
    sim = in_memory()
    stream = sim.connect().auth(flags=PLAIN)
    for number in range(3):
        stream.ask(batch(b"x", request_id=number))
    topic = sim.broker.topics.find(b"t1/default/demo")
    topic.forget(TopicNotFound("deleted"))
    assert stream.ask(batch(b"x", request_id=3))[0][:2] == (1, 3)
    assert stream.quick_answers == 2


def test_a_quick_publish_counts_against_the_rate_of_its_tenant() -> None:
    quota = Tenant(name="t", publish_bytes_per_second_max=10_000)
    policy = TopicPolicy([TopicRule("*", durability="memory")])
    sim = FelixSim(BrokerOptions(tenants={"t1": quota}, topics=policy))
    stream = sim.connect().auth()
    for number in range(2):
        assert stream.ask(batch(bytes(1_000), request_id=number)) == [(0, number, "")]
    assert stream.ask(batch(bytes(15_000), request_id=2)) == [(0, 2, "")]
    assert stream.quick_answers == 2 and stream.held() and stream.felix.quick is None
    assert stream.ask(batch(b"later", request_id=3)) == []
    sim.advance(2_000_000)
    assert stream.said() == [(0, 3, "")]


def test_a_quick_publish_stops_where_queues_are_bounded() -> None:
    sim = in_memory(queue_messages_max=3)
    stream = sim.connect().auth(flags=PLAIN)
    for number in range(3):
        assert stream.ask(batch(b"x", request_id=number)) == [(0, number, "")]
    assert stream.quick_answers == 2
    reader = sim.connect().auth()
    assert isinstance(reader.ask(subscribe(subscription_id=1, ack="explicit", credit=1))[0], codec.Subscribed)
    said = [stream.ask(batch(b"x", request_id=number))[0][0] for number in range(3, 9)]
    assert said == [0, 0, 0, 1, 1, 1], "the queue is full"
    assert stream.quick_answers == 2


def test_a_quick_publish_ends_quick_answers_while_the_disk_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = in_memory()
    stream = sim.connect().auth(flags=PLAIN)
    for number in range(3):
        stream.ask(batch(b"x", request_id=number))
    assert stream.quick_answers == 2
    monkeypatch.setattr(sim.broker, "overloaded", lambda: True)
    assert stream.ask(batch(b"x", request_id=3)) == [(0, 3, "")]
    assert stream.quick_answers == 3 and stream.felix.congestion() == WAIT
    assert not stream.felix.quick, "the stream has to look"
    assert len(rows_of(sim)) == 4


def test_a_long_publish_does_not_let_the_next_one_overtake_answers() -> None:
    """It is read in a thread, so it is acted on outside of a read, while answers that wait for the disk may be ahead of it."""
    sim = in_memory(cache_durability="fsync")
    stream = sim.connect().auth(flags=PLAIN)
    cache: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "cache": "c"}
    long = json_ask(1, bytes(300_000))
    for _ in range(3):
        answers = stream.ask(codec.CachePut(**cache, key="k", value=b"v"), long, batch(b"x", request_id=2))
        assert answers == [codec.Ok(), codec.PublishOk(request_id=1), (0, 2, "")]
