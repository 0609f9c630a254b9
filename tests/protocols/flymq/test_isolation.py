"""Nobody gets at another's transactions, groups, delayed messages and dead letters by naming their ids.

Two hostile clients, one of them with every right to the shared topic, replay the real ids of a third and guess others,
also after reconnecting. QUINTET_GUESSES says how many; 1,000,000 of them take some minutes.
"""

import os
from collections import Counter
from random import Random
from typing import Any

import pytest

from quintet.broker.atomic.transactions import Transaction, Transactions
from quintet.broker.audit.audit_log import AUDIT_TOPIC
from quintet.broker.consumers.coordinator import Groups
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import Client, Reply, make_sim, request

GUESSES = int(os.environ.get("QUINTET_GUESSES", "10000"))
PIPELINED = 50
RECONNECT_EVERY = 20  # rounds


class Victim:
    """Has one of everything."""

    def __init__(self, sim: SimBroker) -> None:
        self.sim = sim
        admin = Client(sim, "admin")
        admin.ask("CREATE_TOPIC", topic="shared", partitions=2)
        admin.ask("ACL_SET", topic="vault", public=False, users=["bruno"], roles=[])
        self.client = Client(sim, "bruno")
        self.client.produce("shared", *[b"%d" % n for n in range(9)], partition=0)
        self.client.produce("vault", b"secret-0", b"secret-1")
        for offset in (0, 1):
            self.client.ask("DEAD_LETTER", topic="vault", partition=0, offset=offset, error="secret-why")
        self.letters = [m["id"] for m in self.client.ask("FETCH_DLQ", topic="vault", max=9)["messages"]]
        self.txn = self.client.ask("TXN_BEGIN", transactional_id="theirs")["txn_id"]
        self.client.ask("TXN_PRODUCE", txn_id=self.txn, topic="shared", data=b"secret-2", key=b"", partition=1)
        self.done = self.client.ask("TXN_BEGIN")["txn_id"]
        self.client.ask("TXN_COMMIT", txn_id=self.done)
        delayed = [
            self.client.ask("PRODUCE_DELAYED", topic="shared", data=b"secret-3", delay_ms=10**8) for _ in range(3)
        ]
        self.handles = [found["offset"] for found in delayed]
        joined = self.client.ask(
            "SUBSCRIBE", topic="shared", group="theirs", partition=-1, mode="earliest", member="m1"
        )
        self.generation = joined["generation"]
        self.commit(3)

    def commit(self, offset: int) -> None:
        where = {"topic": "shared", "group": "theirs", "partition": 0, "offset": offset}
        self.client.ask("COMMIT", **where, generation=self.generation)

    def state(self) -> object:
        broker = self.sim.broker
        ends = {(id, p.number): p.end for id, ps in self.sim.log._topics.items() for p in ps if id != AUDIT_TOPIC[0]}
        txns = {
            id: (t.state, t.count, len(t.effects)) for id, t in broker.transactions._by_id.items() if t.owner == "bruno"
        }
        group = self.client.ask("DESCRIBE_GROUP", topic="shared", group="theirs")
        return ends, txns, group, len(broker.delays)

    def still_works(self) -> None:
        self.commit(5)
        self.client.ask("CANCEL_DELAYED", topic="shared", handle=self.handles[0])
        self.client.ask("TXN_COMMIT", txn_id=self.txn)
        assert self.client.values("shared", 1) == [b"secret-2"]
        assert len(self.client.ask("FETCH_DLQ", topic="vault", max=9)["messages"]) == 2


def guess(victim: Victim, rng: Random) -> bytes:
    """A request that names something of the victim, or nearly."""

    def near(id: str) -> str:
        if rng.random() < 0.5:
            return id
        at = rng.randrange(len(id))
        return id[:at] + rng.choice("0123456789abcdef") + id[at + 1 :]

    def number(value: int) -> int:
        return max(0, value + rng.choice((0, 0, 1, -1, rng.randrange(1000))))

    txn = {"txn_id": near(rng.choice((victim.txn, victim.txn, victim.done)))}
    group: dict[str, Any] = {"topic": "shared", "group": "theirs", "partition": rng.randrange(2)}
    generation = {"generation": number(victim.generation)}
    letter = {"topic": "vault", "message_id": rng.choice(victim.letters)}
    choices: list[tuple[str, int, dict[str, Any]]] = [
        ("TXN_COMMIT", 0, txn),
        ("TXN_ROLLBACK", 0, txn),
        ("TXN_PRODUCE", 0, txn | {"topic": "shared", "data": b"evil", "key": b"", "partition": 0}),
        ("COMMIT", 0, group | {"offset": rng.randrange(9), "generation": 0} | txn),
        ("COMMIT", 0, group | {"offset": rng.randrange(9)}),
        ("COMMIT", 0, group | {"offset": rng.randrange(9)} | generation),
        ("GET_OFFSET", 0, group),
        ("GET_LAG", 0, group),
        ("RESET_OFFSET", 0, group | {"mode": rng.choice(("earliest", "latest"))}),
        ("SEEK_TO_TIMESTAMP", 0, group | {"timestamp_ms": 0}),
        ("DESCRIBE_GROUP", 0, {"topic": "shared", "group": "theirs"}),
        ("DESCRIBE_GROUP", 1, {"group": "theirs"}),
        ("DELETE_GROUP", 0, {"topic": "shared", "group": "theirs"}),
        ("SUBSCRIBE", 0, group | {"partition": -1, "mode": "earliest", "member": rng.choice(("m1", "", "m2"))}),
        ("SUBSCRIBE", 0, group | {"mode": "commit"}),
        ("CANCEL_DELAYED", 0, {"topic": rng.choice(("shared", "vault")), "handle": number(rng.choice(victim.handles))}),
        ("FETCH_DLQ", 0, {"topic": "vault", "max": 9}),
        ("REPLAY_DLQ", 0, letter),
        ("REPLAY_DLQ", 0, letter | {"value": b"evil"}),
        ("REPLAY_DLQ", 1, {"topic": "vault", "offset": rng.randrange(3)}),
        ("PURGE_DLQ", 0, {"topic": "vault"}),
        ("FETCH", 0, {"topic": rng.choice(("vault", "vault-dlq")), "partition": 0, "offset": 0, "max": 9}),
        ("PEEK", 0, {"topic": "vault", "partition": 0, "offset": 0, "max": 9, "since_ms": 0, "filter": ""}),
    ]
    name, form, fields = rng.choice(choices)
    return request(name, form, **fields)


def attack(count: int, seed: int) -> list[Reply]:
    """What was not refused, or told a secret; fails if anything of the victim's changed."""
    sim = make_sim()
    victim = Victim(sim)
    before = victim.state()
    rng = Random(seed)
    hostile = [Client(sim, "eve"), Client(sim, "guste")]
    let_through: list[Reply] = []
    for turn in range(count // PIPELINED):
        replies = hostile[turn % 2].exchange(b"".join(guess(victim, rng) for _ in range(PIPELINED)))
        assert len(replies) == PIPELINED
        let_through += [r for r in replies if r.code != 0xFF or b"secret" in r.payload]
        if turn % RECONNECT_EVERY == 0:
            assert victim.state() == before
            hostile[turn % 2].close()
            hostile[turn % 2] = Client(sim, ("eve", "guste")[turn % 2])
        if turn == count // PIPELINED // 2:
            sim.advance(50_000)
    assert victim.state() == before
    victim.still_works()
    return let_through


def test_guesses_and_replays_of_another_s_ids_get_nothing() -> None:
    assert attack(GUESSES, 1) == []


def test_the_same_name_of_a_producer_is_another_producer() -> None:
    sim = make_sim()
    victim = Victim(sim)
    for _ in range(5):
        Client(sim, "eve").ask("TXN_BEGIN", transactional_id="theirs")
    victim.still_works()


@pytest.mark.parametrize("part", ["transactions", "groups"])
def test_a_missing_check_of_the_owner_is_caught(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control."""
    if part == "transactions":

        def find(self: Transactions, owner: str, id: str) -> Transaction:
            return self._by_id[id]

        monkeypatch.setattr(Transactions, "_find", find)
    else:
        honest = Groups.admit
        monkeypatch.setattr(Groups, "admit", lambda self, actor, privileged, *rest: honest(self, actor, True, *rest))
    try:
        found = Counter(reply.code for reply in attack(500, 1))
    except (AssertionError, KeyError):
        return
    assert found


def test_an_id_cannot_be_guessed_from_another() -> None:
    sim = make_sim()
    client = Client(sim, "bruno")
    ids = []
    for _ in range(1000):
        ids.append(client.ask("TXN_BEGIN")["txn_id"])
        client.ask("TXN_ROLLBACK", txn_id=ids[-1])
    assert len(set(ids)) == 1000
    assert all(len(bytes.fromhex(id.removeprefix("txn-"))) == 16 for id in ids)
    for position in range(4, 36):
        assert len({id[position] for id in ids}) == 16, "every digit takes every value"
