"""Transactions: all or nothing, never twice, never for another; with power lost at every disk call of a commit.

Everything goes through sessions on a simulated disk and clock, as clients do it. A sabotaged commit, which answers before
its intent is written, proves that the check can fail.
"""

import contextlib
import errno
import os
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from quintet.broker.atomic.intents import Intents
from quintet.model.errors import QuintetError
from quintet.model.tasks import start
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import (
    SECOND,
    Client,
    Refused,
    abandon,
    configure,
    make_sim,
    parse,
    power_cut,
    request,
)

# Of what a crash keeps, for every disk call; `make campaign` sees the more.
SEEDS = int(os.environ.get("QUINTET_CRASH_SEEDS", "20" if os.environ.get("QUINTET_TEST_LONG") else "2"))


@dataclass
class Txn:
    """One transaction of the story: where its messages went, and what became of it."""

    id: str
    places: Counter[tuple[str, int]] = field(default_factory=Counter)
    asked: bool = False
    acked: bool = False
    rolled_back: bool = False
    offset: int = 0  # of the group that consumes "in", if it is part of it


def begin(client: Client, story: list[Txn]) -> Txn:
    txn = Txn(client.ask("TXN_BEGIN")["txn_id"])
    story.append(txn)
    return txn


def put(client: Client, txn: Txn, topic: str, partition: int, count: int = 1) -> None:
    for _ in range(count):
        fields = {"txn_id": txn.id, "topic": topic, "key": b"", "partition": partition}
        client.ask("TXN_PRODUCE", **fields, data=txn.id.encode())
        txn.places[topic, partition] += 1


def commit(client: Client, txn: Txn) -> None:
    txn.asked = True
    client.ask("TXN_COMMIT", txn_id=txn.id)
    txn.acked = True


def prepare() -> tuple[SimBroker, Client]:
    sim = make_sim()
    client = Client(sim, "bruno")
    admin = Client(sim, "admin")
    for topic in ("a", "b"):
        admin.ask("CREATE_TOPIC", topic=topic, partitions=2)
    client.produce("in", *[b"%d" % n for n in range(9)])
    client.ask("COMMIT", topic="in", group="g", partition=0, offset=1)
    return sim, client


def workload(client: Client, story: list[Txn]) -> None:
    small = begin(client, story)
    put(client, small, "a", 0)
    put(client, small, "b", 1)
    client.ask("COMMIT", topic="in", group="g", partition=0, offset=4, generation=0, txn_id=small.id)
    small.offset = 4
    gone = begin(client, story)
    put(client, gone, "a", 0, 2)
    client.ask("TXN_ROLLBACK", txn_id=gone.id)
    gone.rolled_back = True
    commit(client, small)
    large, left_open = begin(client, story), begin(client, story)
    for n in range(50):
        put(client, large, "ab"[n % 2], n // 2 % 2)
    put(client, left_open, "a", 1, 3)
    client.produce("a", b"between", partition=0)
    commit(client, large)
    fresh = begin(client, story)
    put(client, fresh, "made by it", 0)
    put(client, fresh, "a", 0)
    commit(client, fresh)


def check(sim: SimBroker, story: list[Txn]) -> list[str]:
    """What is wrong, then again after every commit was asked for once more."""
    wrong: list[str] = []
    client = Client(sim, "bruno")
    for again in (False, True):
        found: Counter[tuple[str, int, bytes]] = Counter()
        for topic in ("a", "b", "made by it"):
            known = sim.broker.topics.get(topic.encode())
            for partition in range(len(known.partitions) if known else 0):
                found.update((topic, partition, value) for value in client.values(topic, partition))
        for number, txn in enumerate(story):
            there = {(t, p): n for (t, p, value), n in found.items() if value == txn.id.encode()}
            whole = there == dict(txn.places)
            if there and not whole:
                wrong.append(f"{number} is torn: {there} of {dict(txn.places)}, again {again}")
            if txn.acked and not whole:
                wrong.append(f"{number} was acknowledged and is lost, again {again}")
            if there and not txn.asked:
                wrong.append(f"{number} was never committed and is there, again {again}")
            if txn.offset:
                offset = client.ask("GET_OFFSET", topic="in", group="g", partition=0)["offset"]
                if offset != (txn.offset if there else 1):
                    wrong.append(f"{number}: the group is at {offset}, messages there: {bool(there)}, again {again}")
            if not again and txn.asked:
                try:
                    client.ask("TXN_COMMIT", txn_id=txn.id)
                    if not there:
                        wrong.append(f"{number}: committed, says the broker, and nothing is there")
                except Refused as refused:
                    if there or refused.code != "E1330":
                        wrong.append(f"{number}: {refused}, and it is there")
    if sim.broker.intents.unfinished:
        wrong.append("an intent is unfinished")
    return wrong


def calls_of_a_run() -> int:
    sim, client = prepare()
    before, story = sim.disk.total_calls, list[Txn]()
    workload(client, story)
    total = sim.disk.total_calls - before
    assert [txn.acked for txn in story] == [True, False, True, False, True]
    assert check(sim, story) == []
    return total


def cut_at(at: int, seed: int) -> list[str]:
    sim, client = prepare()
    story: list[Txn] = []
    sim.disk.stop_at = sim.disk.total_calls + at
    with contextlib.suppress(Refused, QuintetError, OSError, AssertionError):
        workload(client, story)
    power_cut(sim, seed)
    return check(sim, story)


def test_power_lost_at_every_disk_call() -> None:
    total = calls_of_a_run()
    assert total > 20
    for at in range(1, total + 1):
        for seed in range(SEEDS):
            assert cut_at(at, at * SEEDS + seed) == [], f"cut at call {at} of {total}, seed {at * SEEDS + seed}"


def test_an_answer_before_the_intent_is_written_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control."""
    honest = Intents.commit

    async def hasty(self: Intents, appends: Any, effects: Any, token: str = "", owner: str = "") -> None:
        start(honest(self, appends, effects, token, owner))

    total = calls_of_a_run()
    monkeypatch.setattr(Intents, "commit", hasty)
    caught = sum(bool(cut_at(at, at)) for at in range(1, total + 1))
    assert caught >= 3


def test_power_lost_twice() -> None:
    """The second time while the first crash is being recovered from."""
    total = calls_of_a_run()
    for at in range(2, total, 5):
        sim, client = prepare()
        story: list[Txn] = []
        sim.disk.stop_at = sim.disk.total_calls + at
        with contextlib.suppress(Refused, QuintetError, OSError, AssertionError):
            workload(client, story)
        abandon(sim)
        sim.disk.crash(Random(at))
        sim.disk.stop_at = sim.disk.total_calls + 1 + at * 7 % 60
        with contextlib.suppress(QuintetError, OSError):
            sim.start()
        power_cut(sim, at + 1)
        assert check(sim, story) == [], f"cut at call {at} of {total}"


def finish_some(sim: SimBroker, rng: Random, steps: int) -> None:
    """Disk threads get as far as they get, in any order."""
    for _ in range(steps):
        sim.scheduler.turn()
        if sim.scheduler.jobs:
            with contextlib.suppress(OSError):
                sim.scheduler.finish(rng.randrange(len(sim.scheduler.jobs)))


@pytest.mark.parametrize("seed", range(60))
def test_disk_work_in_any_order_and_power_lost_between(seed: int) -> None:
    rng = Random(seed)
    sim, client = prepare()
    story: list[Txn] = []
    clients = [client, Client(sim, "bruno"), Client(sim, "bruno")]
    for number, one in enumerate(clients):
        txn = begin(one, story)
        for _ in range(rng.randrange(2, 20)):
            put(one, txn, rng.choice("ab"), rng.randrange(2))
        if number == 0:
            one.ask("COMMIT", topic="in", group="g", partition=0, offset=4, generation=0, txn_id=txn.id)
            txn.offset = 4
    sim.scheduler.held = True
    for one, txn in zip(clients, story, strict=True):
        txn.asked = True
        one.peer.feed(request("TXN_COMMIT", txn_id=txn.id) * rng.choice((1, 2)))
        finish_some(sim, rng, rng.randrange(4))
    finish_some(sim, rng, rng.randrange(30))
    for one, txn in zip(clients, story, strict=True):
        txn.acked = any(reply.code == 0x41 for reply in parse(one.peer.take()))
    sim.scheduler.held = False
    power_cut(sim, seed)
    assert check(sim, story) == []


@pytest.mark.parametrize("operation", ["fdatasync", "pwritev"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_disk_never_lets_a_rollback_lie(operation: str, code: int) -> None:
    """A commit that failed may be in the log all the same: rolled back may only be said if it will never appear."""
    doubtful = 0
    for nth in range(1, 8):
        sim, client = prepare()
        story: list[Txn] = []
        txn = begin(client, story)
        put(client, txn, "a", 0, 2)
        put(client, txn, "b", 0)
        sim.disk.fail(operation, nth, code)
        txn.asked = True
        try:
            client.ask("TXN_COMMIT", txn_id=txn.id)
            txn.acked = True
        except Refused:
            try:
                client.ask("TXN_ROLLBACK", txn_id=txn.id)
                txn.asked = False
                txn.rolled_back = True
            except Refused as refused:
                doubtful += 1
                assert refused.code in ("E1500", "E1330"), refused
        sim.disk.heal()
        abandon(sim)
        sim.disk.kill()
        sim.start()
        configure(sim)
        assert check(sim, story) == [], f"{operation} {nth} failed"
    if (operation, code) == ("fdatasync", errno.EIO):
        assert doubtful


# -- control frames, late and twice --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_late_and_repeated_control_frames(seed: int) -> None:
    """Two connections of one producer send what they like, disk work finishes when it likes; a model says what may be."""
    rng = Random(seed)
    sim, first = prepare()
    clients = [first, Client(sim, "bruno")]
    state: dict[str, str] = {}
    counts: Counter[str] = Counter()
    ids: list[str] = []
    for _ in range(150):
        sim.scheduler.held = rng.random() < 0.5
        client = rng.choice(clients)
        if not ids or rng.random() < 0.15:
            sim.scheduler.held = False
            ids.append(client.ask("TXN_BEGIN")["txn_id"])
            state[ids[-1]] = "open"
            continue
        id = rng.choice(ids[-4:])
        name = rng.choice(("TXN_PRODUCE", "TXN_PRODUCE", "TXN_COMMIT", "TXN_ROLLBACK"))
        fields: dict[str, Any] = {"txn_id": id}
        if name == "TXN_PRODUCE":
            fields |= {"topic": "a", "data": id.encode(), "key": b"", "partition": 0}
        frame = request(name, **fields)
        copies = rng.choice((1, 1, 2))
        client.peer.feed(frame * copies)
        while sim.scheduler.jobs and rng.random() < 0.7:
            sim.scheduler.finish(rng.randrange(len(sim.scheduler.jobs)))
        sim.scheduler.held = False
        sim.scheduler.run_until_idle()
        for reply in parse(client.peer.take()):
            good = reply.code != 0xFF
            if name == "TXN_PRODUCE":
                assert good == (state[id] == "open")
                counts[id] += good
            elif name == "TXN_COMMIT":
                assert good == (state[id] in ("open", "committed"))
                state[id] = "committed" if good else state[id]
            else:
                assert good == (state[id] == "open")
                state[id] = "rolled back" if good else state[id]
        if rng.random() < 0.1:
            client.close()
            clients[clients.index(client)] = Client(sim, "bruno")
    found = Counter(clients[0].values("a"))
    for id in ids:
        assert found[id.encode()] == (counts[id] if state[id] == "committed" else 0), state[id]


def test_nobody_sees_what_is_not_committed() -> None:
    sim, client = prepare()
    reader = Client(sim, "conny")
    txn = client.ask("TXN_BEGIN")["txn_id"]
    client.ask("TXN_PRODUCE", txn_id=txn, topic="a", data=b"x", key=b"", partition=0)
    assert reader.values("a") == []
    assert reader.ask("METADATA", topic="a")["partitions"][0]["newest"] == 0
    assert reader.refused("CONSUME", topic="a", partition=0, offset=0) == "E1304"
    client.close()
    again = Client(sim, "bruno")
    again.ask("TXN_COMMIT", txn_id=txn)
    assert reader.values("a") == [b"x"], "the owner may end it on any connection"


def test_an_empty_part_of_a_transaction_does_not_count_as_committed() -> None:
    """As a router asks every cell that does not know which one a transaction is of."""
    sim, client = prepare()
    empty, full = (client.ask("TXN_BEGIN")["txn_id"] for _ in range(2))
    client.ask("TXN_PRODUCE", txn_id=full, topic="a", data=b"x", key=b"", partition=0)
    for _ in range(2):
        client.ask("TXN_COMMIT", txn_id=f"?{full}")
        with pytest.raises(Refused, match="nothing was written to it here"):
            client.ask("TXN_COMMIT", txn_id=f"?{empty}")
    client.ask("TXN_COMMIT", txn_id=full)
    assert Client(sim, "eve").refused("TXN_COMMIT", txn_id=f"?{full}") == "E1330"
    assert client.values("a") == [b"x"]
    client.ask("TXN_COMMIT", txn_id=client.ask("TXN_BEGIN")["txn_id"])


# -- limits and time -----------------------------------------------------------------------------------------------------


def test_a_zombie_is_fenced() -> None:
    sim, old = prepare()
    zombie = old.ask("TXN_BEGIN", transactional_id="producer-1")["txn_id"]
    old.ask("TXN_PRODUCE", txn_id=zombie, topic="a", data=b"zombie", key=b"", partition=0)
    eve = Client(sim, "eve")
    eve.ask("TXN_BEGIN", transactional_id="producer-1")
    old.ask("TXN_PRODUCE", txn_id=zombie, topic="a", data=b"zombie", key=b"", partition=0)
    new = Client(sim, "bruno")
    fresh = new.ask("TXN_BEGIN", transactional_id="producer-1")["txn_id"]
    for _ in range(1000):
        assert old.refused("TXN_PRODUCE", txn_id=zombie, topic="a", data=b"zombie", key=b"", partition=0) == "E1330"
    with pytest.raises(Refused, match="fenced"):
        old.ask("TXN_COMMIT", txn_id=zombie)
    new.ask("TXN_PRODUCE", txn_id=fresh, topic="a", data=b"new", key=b"", partition=0)
    new.ask("TXN_COMMIT", txn_id=fresh)
    assert new.values("a") == [b"new"]


@pytest.mark.parametrize(("timeout_ms", "lasts_s"), [(0, 60), (2_000, 2), (900_000, 900)])
def test_what_takes_too_long_is_rolled_back(timeout_ms: int, lasts_s: int) -> None:
    sim, client = prepare()
    txn = client.ask("TXN_BEGIN", transactional_id="", timeout_ms=timeout_ms)["txn_id"]
    client.ask("TXN_PRODUCE", txn_id=txn, topic="a", data=b"x", key=b"", partition=0)
    sim.scheduler.advance((lasts_s - 1) * SECOND)
    sim.broker.tick()
    client.ask("TXN_PRODUCE", txn_id=txn, topic="a", data=b"y", key=b"", partition=0)
    sim.advance(SECOND)
    with pytest.raises(Refused, match="timed out"):
        client.ask("TXN_COMMIT", txn_id=txn)
    assert client.values("a") == []
    assert client.refused("TXN_BEGIN", transactional_id="", timeout_ms=900_001) == "E1101"


def test_a_clock_that_jumps_neither_loses_nor_tears() -> None:
    sim, client = prepare()
    txn = client.ask("TXN_BEGIN")["txn_id"]
    client.ask("TXN_PRODUCE", txn_id=txn, topic="a", data=b"x", key=b"", partition=0)
    sim.scheduler.jump(-86_400 * SECOND)
    sim.broker.tick()
    client.ask("TXN_COMMIT", txn_id=txn)
    assert client.values("a") == [b"x"]
    sim.scheduler.jump(2 * 86_400 * SECOND)
    sim.broker.tick()
    sim.scheduler.run_until_idle()
    assert client.values("a") == [b"x"]


def test_ten_thousand_begun_and_never_finished() -> None:
    sim, client = prepare()
    outcomes = Counter(client.exchange(request("TXN_BEGIN"))[0].code for _ in range(10_000))
    assert outcomes == {0x40: 100, 0xFF: 9_900}
    other = Client(sim, "eve")
    assert other.ask("TXN_BEGIN")["success"], "one principal's limit is not another's"
    assert len(sim.broker.transactions) == 101
    sim.advance(61 * SECOND, SECOND)
    assert len(sim.broker.transactions) == 0
    assert client.ask("TXN_BEGIN")["success"]


def test_the_last_message_that_fits_and_the_next() -> None:
    _, client = prepare()
    txn = client.ask("TXN_BEGIN")["txn_id"]
    one = request("TXN_PRODUCE", txn_id=txn, topic="a", data=b"x", key=b"", partition=0)
    replies = client.exchange(one * 1001)
    assert [reply.code for reply in replies] == [0x43] * 1000 + [0xFF]
    client.ask("TXN_COMMIT", txn_id=txn)
    assert len(client.values("a")) == 1000
    txn = client.ask("TXN_BEGIN")["txn_id"]
    large = {"txn_id": txn, "topic": "a", "key": b"", "partition": 0}
    for _ in range(16):
        client.ask("TXN_PRODUCE", **large, data=bytes(1 << 20))
    assert client.refused("TXN_PRODUCE", **large, data=b"x") == "E1400"
    client.ask("TXN_COMMIT", txn_id=txn)


def test_a_topic_deleted_meanwhile_refuses_the_commit_whole() -> None:
    sim, client = prepare()
    txn = client.ask("TXN_BEGIN")["txn_id"]
    for topic in ("a", "b"):
        client.ask("TXN_PRODUCE", txn_id=txn, topic=topic, data=b"x", key=b"", partition=0)
    Client(sim, "admin").ask("DELETE_TOPIC", topic="b")
    assert client.refused("TXN_COMMIT", txn_id=txn) == "E1301"
    assert client.values("a") == []
    assert client.ask("TXN_ROLLBACK", txn_id=txn)["success"]


def test_rights_are_asked_for_again_in_a_transaction() -> None:
    sim, client = prepare()
    admin = Client(sim, "admin")
    txn = client.ask("TXN_BEGIN")["txn_id"]
    client.ask("TXN_PRODUCE", txn_id=txn, topic="a", data=b"x", key=b"", partition=0)
    admin.ask("ACL_SET", topic="a", public=False, users=["eve"], roles=[])
    fields = {"txn_id": txn, "topic": "a", "data": b"y", "key": b"", "partition": 0}
    assert client.refused("TXN_PRODUCE", **fields) == "E1201"
