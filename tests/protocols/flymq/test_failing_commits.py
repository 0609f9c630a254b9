"""Every TXN_COMMIT is answered and frees its group: over a thousand topics, and whatever fails on its way."""

from typing import Any

import pytest

from quintet import kernel
from quintet.broker.atomic.intents import Intents
from quintet.broker.consumers.group import CommitPayload
from quintet.broker.topics.catalog import Topic
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import Client, make_sim, request

TOPICS = 1_000  # as many as one transaction may have records


def prepare(topics: int, known: int) -> tuple[SimBroker, Client, str]:
    """A transaction that consumes "in" as group g and produces to `topics` topics, of which `known` were there before."""
    sim = make_sim()
    client = Client(sim, "admin")
    client.produce("in", b"a", b"b")
    client.exchange(b"".join(request("CREATE_TOPIC", topic=f"t{n}", partitions=1) for n in range(known)))
    joined = client.ask("SUBSCRIBE", topic="in", group="g", partition=-1, mode="earliest", member="m")
    txn = str(client.ask("TXN_BEGIN")["txn_id"])
    fields: dict[str, Any] = {"txn_id": txn, "key": b"", "data": b"x", "partition": 0}
    client.exchange(b"".join(request("TXN_PRODUCE", topic=f"t{n}", **fields) for n in range(known)))
    client.ask("COMMIT", topic="in", group="g", partition=0, offset=2, generation=joined["generation"], txn_id=txn)
    client.peer.feed(b"".join(request("TXN_PRODUCE", topic=f"t{n}", **fields) for n in range(known, topics)))
    return sim, client, txn


def joins(sim: SimBroker) -> int:
    """Where a second member of the group may begin: answered only if no commit holds the group."""
    client = Client(sim, "admin")
    client.ask("SUBSCRIBE", topic="in", group="g", partition=0, mode="commit")
    return int(client.ask("GET_OFFSET", topic="in", group="g", partition=0)["offset"])


@pytest.mark.parametrize("known", [TOPICS, TOPICS // 2])
def test_a_commit_over_a_thousand_topics_is_answered(known: int) -> None:
    sim, client, txn = prepare(TOPICS, known)
    client.peer.feed(request("TXN_COMMIT", txn_id=txn))
    *_, last = client.exchange(b"")
    assert client.read("TXN_COMMIT", last)["success"]
    assert client.values("t0") == client.values(f"t{TOPICS - 1}") == [b"x"]
    assert len(sim.broker.transactions) == 0
    assert joins(sim) == 2


class Planted(Exception):
    """A fault that no code expects."""


def fail(*_args: Any, **_named: Any) -> None:
    raise Planted("planted")


@pytest.mark.parametrize(
    ("where", "name"), [(kernel, "build"), (Intents, "commit"), (Intents, "_write"), (Topic, "check_writable")]
)
def test_a_commit_that_fails_is_answered(monkeypatch: pytest.MonkeyPatch, where: Any, name: str) -> None:
    sim, client, txn = prepare(3, 3)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, fail)
        assert client.refused("TXN_COMMIT", txn_id=txn) == "E1000"
    assert ("commit_failed", {"transaction": txn, "error": "Planted('planted')"}) in sim.reports
    assert sim.broker.groups.find("in", "g").committing == 0  # type: ignore[union-attr]
    assert client.ask("TXN_COMMIT", txn_id=txn)["success"]
    assert client.values("t2") == [b"x"]
    assert joins(sim) == 2


def test_a_commit_that_fails_while_topics_are_made_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, client, txn = prepare(3, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Intents, "_write", fail)
        client.peer.feed(request("TXN_COMMIT", txn_id=txn))
        *_, last = client.exchange(b"")
        assert last.code == 0xFF
    assert client.ask("TXN_COMMIT", txn_id=txn)["success"]
    assert joins(sim) == 2


@pytest.mark.parametrize("what", ["publish", "effect"])
def test_a_commit_that_fails_behind_its_intent_is_carried_out(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    sim, client, txn = prepare(3, 3)
    with monkeypatch.context() as patch:
        if what == "publish":
            patch.setattr(Topic, "publish", fail)
        else:
            patch.setitem(sim.broker.intents._effects, "offset", (CommitPayload, fail))
        assert client.refused("TXN_COMMIT", txn_id=txn) == "E1505"
    sim.advance(3_000_000)
    assert client.ask("TXN_COMMIT", txn_id=txn)["success"]
    assert client.values("t2") == [b"x"]
    assert joins(sim) == 2
