"""Requests that are long by nature, over the FlyMQ door: answered in slices, in order, and not at all for who has gone."""

from typing import Any

import pytest

from quintet import kernel
from quintet.broker import slices
from quintet.broker.audit import audit_log as audit
from quintet.broker.topics import reads
from quintet.model.tasks import start
from quintet.protocols.flymq import codec, frames
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import BY_NAME, DIALECTS, Client, error_of, make_sim, parse, request

TOPICS = 2 * slices.STEPS_AT_ONCE_MAX + 100


@pytest.fixture
def sim() -> SimBroker:
    sim = make_sim()
    for number in range(TOPICS):
        sim.broker.topics.ensure(b"t%05d" % (number * 7919 % TOPICS), durable=False)
    sim.scheduler.run_until_idle()
    return sim


def turns_of(client: Client, name: str, **fields: Any) -> tuple[int, dict[str, object]]:
    """How many turns pass until the answer is there, and the answer."""
    client.peer.feed(request(name, **fields))
    turns = 0
    while not client.peer.output:
        client.sim.scheduler.turn()
        turns += 1
    [reply] = parse(client.peer.take())
    return turns, client.read(name, reply)


def test_thousands_of_topics_are_listed_in_slices(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    turns, answer = turns_of(client, "LIST_TOPICS")
    assert turns >= TOPICS // slices.STEPS_AT_ONCE_MAX
    assert answer["topics"] == [f"t{number:05}" for number in range(TOPICS)]
    turns, answer = turns_of(client, "CLUSTER_METADATA")
    assert turns >= TOPICS // slices.STEPS_AT_ONCE_MAX
    topics = answer["topics"]
    assert isinstance(topics, list) and [row["topic"] for row in topics] == [
        f"t{number:05}" for number in range(TOPICS)
    ]


def test_what_may_not_be_seen_is_looked_at_in_slices(sim: SimBroker) -> None:
    turns, answer = turns_of(Client(sim, "tina"), "LIST_TOPICS")
    assert turns >= TOPICS // slices.STEPS_AT_ONCE_MAX
    assert answer["topics"] == []


def test_groups_are_listed_in_slices(sim: SimBroker) -> None:
    broker = sim.broker
    topic = broker.topics.find(b"t00000")
    for number in range(1_500):
        start(broker.groups.offsets.commit("admin", True, topic, f"g{number:04}", 0, 0, None, None, door="flymq"))
    sim.scheduler.run_until_idle()
    turns, answer = turns_of(Client(sim, "admin"), "LIST_GROUPS")
    groups = answer["groups"]
    assert turns >= 1
    assert isinstance(groups, list) and [row["group"] for row in groups] == [f"g{number:04}" for number in range(1_500)]
    done: list[Exception | None] = []
    before = broker.groups._table.partition.visible
    start(broker.delete_topic(b"t00000")).then(lambda _, error: done.append(error))
    sim.scheduler.run_until_idle()
    assert done == [None] and len(broker.groups) == 0
    assert len(broker.groups._table.partition.read_now(before)) == 1, "all of them are forgotten in one batch"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_search_is_sliced_and_requests_behind_it_wait(
    sim: SimBroker, dialect: frames.Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "STEPS_AT_ONCE_MAX", 100)
    topic = sim.broker.topics.find(b"t00001")
    topic.publish(kernel.build([b'{"a":%d}' % (number % 2) for number in range(900)]), 900, True, None)
    sim.scheduler.run_until_idle()
    client = Client(sim, "admin", dialect)
    data = request("FETCH", topic="t00001", partition=0, offset=0, max=1_000, filter="$.a == 1")
    client.peer.feed(data + request("WHOAMI"))
    assert client.peer.output == b""
    sim.scheduler.run_until_idle()
    first, second = parse(client.peer.take())
    found = client.read("FETCH", first)
    assert [row["offset"] for row in found["messages"]] == list(range(1, 900, 2))
    assert found["next_offset"] == 900
    assert client.read("WHOAMI", second)["username"] == "admin"


def test_a_fetch_takes_a_bounded_number_of_batches(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "FETCH_BATCHES_MAX", 10)
    topic = sim.broker.topics.find(b"t00001")
    for _ in range(25):
        topic.publish(kernel.build([b"x"]), 1, True, None)
        sim.scheduler.run_until_idle()
    client = Client(sim, "admin")
    found = client.ask("FETCH", topic="t00001", partition=0, offset=0, max=1_000)
    assert (len(found["messages"]), found["next_offset"]) == (10, 10)
    assert len(client.ask("FETCH", topic="t00001", partition=0, offset=20, max=1_000)["messages"]) == 5


def test_the_audit_is_searched_in_slices(sim: SimBroker) -> None:
    for number in range(3_000):
        sim.broker.audit._append("auth.failure", f"u{number}", "", "denied", "", "login", {})
    client = Client(sim, "admin")
    query = {"start_s": 0, "end_s": 0, "types": [], "user": "", "resource": "", "result": "", "search": "nobody"}
    turns, answer = turns_of(client, "AUDIT_QUERY", **query, limit=0, skip=0)
    assert turns > 2 and answer["total"] == 0
    whole = {**query, "search": "", "limit": 0, "skip": 0}
    turns, answer = turns_of(client, "AUDIT_EXPORT", query=whole, format="csv")
    data = answer["data"]
    assert turns > 5 and isinstance(data, bytes) and data.count(b"\r\n") > 3_000


def test_an_export_stops_when_it_is_too_large(sim: SimBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "EXPORT_BYTES_MAX", 100)
    client = Client(sim, "admin")
    whole = {"start_s": 0, "end_s": 0, "types": [], "user": "", "resource": "", "result": "", "search": ""}
    [reply] = client.exchange(request("AUDIT_EXPORT", query={**whole, "limit": 0, "skip": 0}, format="json"))
    assert "more than 100 bytes" in error_of(reply, "document").text


def test_nothing_is_listed_for_who_has_gone(sim: SimBroker) -> None:
    client = Client(sim, "admin")
    client.peer.feed(request("LIST_TOPICS"))
    assert len(sim.broker.slices) == 1
    client.peer.close()
    sim.scheduler.turn()
    assert len(sim.broker.slices) == 0


def test_an_answer_in_steps_is_the_answer_at_once() -> None:
    rows = [{"key": b"k", "value": b"v" * number, "offset": number} for number in range(5)]
    for dialect in DIALECTS:
        whole = codec.encode_answer(BY_NAME["FETCH"], dialect, {"messages": rows, "next_offset": 7}, 0)
        lazy = {"messages": (row for one in rows for row in (None, one)), "next_offset": 7}
        assert slices.finish(codec.answer_steps(BY_NAME["FETCH"], dialect, lazy, 0)) == whole


def test_a_large_value_is_sent_without_a_copy(sim: SimBroker) -> None:
    """The answer to CONSUME and PEEK has the value in a piece of its own, which is the batch itself."""
    client = Client(sim, "admin")
    value = bytes(range(256)) * 2048
    client.ask("CREATE_TOPIC", topic="large", partitions=1)
    client.ask("PRODUCE", topic="large", partition=0, key=b"k", value=value)
    found = client.ask("CONSUME", topic="large", partition=0, offset=0)
    assert (found["key"], found["value"]) == (b"k", value)
    pieces = codec.answer_pieces(BY_NAME["CONSUME"], "document", {"key": b"k", "value": memoryview(value)}, 0)
    assert isinstance(pieces, list) and b"".join(pieces) == codec.encode_answer(
        BY_NAME["CONSUME"], "document", {"key": b"k", "value": value}, 0
    )
    peeked = client.ask("PEEK", topic="large", partition=0, offset=0, max=1, since_ms=0, filter="")
    assert peeked["messages"][0]["value"] == value
