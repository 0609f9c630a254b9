"""Deliveries and acknowledgements as rows: joined, through every door, durable before the state they explain, never in the
way of a delivery."""

import contextlib
import errno
import json
from functools import partial
from random import Random
from typing import Any

import pytest

from quintet.broker.audit import delivery_events as module
from quintet.broker.audit.delivery_events import EVERY_US, Events
from quintet.broker.core import BrokerOptions
from quintet.broker.sections import AuditSection
from quintet.delivery.delivered import DeliveredRanges, LaneRanges, joined
from quintet.model.errors import QuintetError
from quintet.model.tasks import start
from quintet.protocols.blipmq.mapping import tag_of
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer, SimBroker
from tests.broker.parts import all_rows
from tests.protocols.blipmq.helpers import publish, ready, subscribed, tags_of, values_of
from tests.protocols.fast import helpers as fast
from tests.protocols.flymq.helpers import Client, abandon, configure, make_sim, parse, power_cut, request
from tests.wire import blipmq as wire
from tests.wire import fast as fast_wire

Rows = list[dict[str, Any]]


def rows(sim: SimBroker) -> Rows:
    """All that is in `__events` now, without the times."""
    found = [(row[2], json.loads(row[3] or b"")) for row in all_rows(sim.broker.events.partition)]
    assert all(key == row["topic"].encode() for key, row in found)
    assert all(0 < row.pop("time") <= sim.scheduler.now() for _, row in found)
    return [row for _, row in found]


def later(sim: SimBroker) -> Rows:
    sim.advance(2 * EVERY_US)
    return rows(sim)


def row(
    event: str, first: int, last: int, door: str = "blipmq", who: str = "dev", topic: str = "t", **more: Any
) -> Any:
    found = {"event": event, "door": door, "who": who, "topic": topic, "partition": 0, "first": first, "last": last}
    return found | more


def ack(subscription: int, offset: int) -> bytes:
    return wire.ack(tag_of(0, offset), subscription)


class PeerbusPeer(Peer):
    """A registered peer that sends objects one a line."""

    def __init__(self, sim: SimBroker, name: str) -> None:
        super().__init__(sim, PeerSession)
        self.name = name
        word = {"type": "register", "protocol_version": "v1", "name": name, "token": "dev-key"}
        self.exchange(json.dumps(word).encode() + b"\n")
        assert self.session.closing is None, self.session.closing

    def send(self, to: str, id: str) -> None:
        word = {"protocol_version": "v1", "id": id, "from": self.name, "to": to, "ts": "2026-11-16T00:00:00Z",
                "source": "test", "kind": "msg", "body": {"n": 1}, "hmac": ""}  # fmt: skip
        self.feed(json.dumps(word).encode() + b"\n")
        self.sim.scheduler.run_until_idle()

    def objects(self, type: str) -> list[dict[str, Any]]:
        return [found for each in self.take().splitlines() if (found := json.loads(each)).get("type") == type]


# -- collecting -------------------------------------------------------------------------------------------------------


def test_ranges_that_meet_are_one() -> None:
    assert joined([(5, 6), (0, 2), (2, 4), (8, 9), (6, 7)]) == [(0, 4), (5, 7), (8, 9)]
    assert joined([]) == [] and joined([(1, 2)]) == [(1, 2)]


def test_a_trail_joins_in_place_and_forgets_what_was_taken() -> None:
    full: list[bool] = []
    ranges = DeliveredRanges(True, 3, lambda: full.append(True))
    told = LaneRanges(ranges, "d", "w", "t", 4)
    told.delivered(0, 5)
    told.delivered_end = 9  # as a lane does
    told.delivered(3, 4)
    for offset in (2, 1, 0):
        told.acked(offset, offset + 1)
    assert full == [True], "three ranges are closed: one delivery and two acknowledgements"
    assert [tuple(move) for move in ranges.take()] == [
        ("deliver", "d", "w", "t", 4, 0, 9), ("deliver", "d", "w", "t", 4, 3, 4), ("ack", "d", "w", "t", 4, 0, 3),
    ]  # fmt: skip
    assert ranges.take() == [] and ranges.ranges == 0
    told.delivered(9, 10)
    assert [move.first for move in ranges.take()] == [9]


def test_pushes_and_acknowledgements_are_joined() -> None:
    sim = SimBroker()
    peer = ready(sim, 2)
    id = subscribed(peer, b"t")
    for number in range(5):
        peer.exchange(publish(b"t", b"%d" % number, b"x"))
    for offset in (1, 0, 3, 9, 7):
        assert peer.exchange(ack(id, offset)) == b""
    assert later(sim) == [
        row("deliver", 0, 10), row("ack", 0, 2), row("ack", 3, 4), row("ack", 7, 8), row("ack", 9, 10),
    ]  # fmt: skip
    assert sim.broker.events.recorded == 5 and later(sim) == rows(sim)


def test_polls_count_and_a_second_attempt_is_a_second_row() -> None:
    sim = SimBroker()
    peer = ready(sim, 1)
    id = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b"))
    assert values_of(peer.exchange(wire.poll(9, id))) == [b"a"]
    peer.close()
    other = ready(sim, 1)
    assert values_of(other.exchange(wire.poll(9, id))) == [b"a"]
    other.exchange(ack(id, 0) + ack(id, 0) + ack(id, 1))  # what is not pending is not acknowledged
    assert later(sim) == [row("deliver", 0, 1), row("deliver", 0, 1), row("ack", 0, 1)]


@pytest.mark.parametrize(("mode", "expected"), [
    ("all", [row("deliver", 0, 3), row("ack", 2, 3)]),
    ("acknowledged", [row("deliver", 2, 3), row("ack", 2, 3)]),
    ("off", []),
])  # fmt: skip
def test_modes(mode: Any, expected: Rows) -> None:
    sim = make_sim(BrokerOptions(audit=AuditSection(events=mode)))
    peer = ready(sim, 2)
    id = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b", qos=0))
    peer.exchange(publish(b"t", b"c", qos=1))
    assert tags_of(peer.exchange(ack(id, 2))) == []
    fly = Client(sim, "admin")
    fly.produce("f", b"a")
    assert fly.values("f") == [b"a"]
    if mode == "all":
        expected = [*expected, row("deliver", 0, 1, "flymq", "admin", "f")]
    assert later(sim) == expected


def test_what_could_fill_the_memory_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_WAITING_MAX", 4)
    monkeypatch.setattr(module, "EVENTS_OF_BATCH_MAX", 3)
    sim = SimBroker()
    peer = ready(sim, 2)
    id = subscribed(peer, b"t")
    peer.exchange(publish(b"t", *[b"x"] * 20))
    for offset in range(18, -1, -2):
        peer.exchange(ack(id, offset))
    assert len(rows(sim)) >= 8, "no time has passed"
    for number in range(4):
        sim.broker.events.delivered("d", "w", "t", 0, number * 10, number * 10 + 1)
    sim.scheduler.run_until_idle()
    found = rows(sim)
    assert found[-4:] == [row("deliver", n * 10, n * 10 + 1, "d", "w") for n in range(4)]
    assert sum(r["last"] - r["first"] for r in found if r["event"] == "ack") in (8, 9, 10)


# -- every door -------------------------------------------------------------------------------------------------------


def test_reads_and_commits_of_flymq() -> None:
    sim = make_sim()
    client = Client(sim, "bruno")
    client.produce("t", *[b"v%d" % n for n in range(10)], key=b"k")
    client.ask("FETCH", topic="t", partition=0, offset=2, max=3)
    client.ask("FETCH_BINARY", topic="t", partition=0, offset=5, max=2)
    client.ask("CONSUME", topic="t", partition=0, offset=9)
    client.ask("FETCH", topic="t", partition=0, offset=0, max=10, filter="regex:v[46]")
    client.ask("PEEK", topic="t", partition=0, offset=0, since_ms=0, max=2, filter="")
    client.ask("FETCH", topic="t", partition=0, offset=10, max=10)
    client.ask("COMMIT", topic="t", group="g", partition=0, offset=4)
    client.ask("COMMIT", topic="t", group="g", partition=0, offset=7)
    client.ask("COMMIT", topic="t", group="g", partition=0, offset=1)  # backwards: nothing is acknowledged by that
    assert later(sim) == [
        *(row("deliver", *range_, "flymq", "bruno") for range_ in ((2, 7), (9, 10), (4, 5), (6, 7), (0, 2))),
        row("ack", 0, 4, "flymq", "bruno", group="g"), row("ack", 4, 7, "flymq", "bruno", group="g"),
    ]  # fmt: skip


def test_what_is_refused_was_not_delivered() -> None:
    sim = make_sim()
    Client(sim, "admin").produce("t", b"a")
    client = Client(sim, "conny")
    assert client.refused("CONSUME", topic="t", partition=0, offset=7)
    assert Client(sim, "paula").refused("FETCH", topic="t", partition=0, offset=0, max=1)
    assert later(sim) == []


def test_a_commit_within_a_transaction_leaves_a_row_when_it_counts() -> None:
    sim = make_sim()
    client = Client(sim, "bruno")
    client.produce("t", b"a", b"b")
    txn = client.ask("TXN_BEGIN")["txn_id"]
    where = {"topic": "t", "group": "g", "partition": 0, "offset": 2}
    client.ask("COMMIT", **where, generation=0, txn_id=txn)
    assert later(sim) == []
    client.ask("TXN_COMMIT", txn_id=txn)
    assert later(sim) == [row("ack", 0, 2, "flymq", "bruno", group="g")]


def test_reads_of_flight() -> None:
    pytest.importorskip("pyarrow", reason="the Flight door needs pyarrow (the extra `flight`)")
    from quintet.flight import reading, verbs, wire
    from quintet.flight.login import Caller

    sim = make_sim()
    Client(sim, "admin").produce("t", *[b"x"] * 6)
    identity, _ = sim.broker.access.authenticate(b"dev-key")
    call = verbs.Call(sim.broker, Caller(identity, "dev", "peer"))
    reading.plan(call, wire.Ticket("t", 0, 1, -1, ("value",)))
    told: list[Any] = []
    machine = wire.Machine("", "", 0, 0, "")
    ranges = (wire.Range(0, 0, 4), wire.Range(0, 4, 100))
    start(verbs.locate(machine, call, wire.LocateRequest("t", ranges))).then(lambda *answer: told.append(answer))
    commit = verbs.group_commit(call, wire.GroupCommit("g", {"t": {0: 5}}))
    start(commit).then(lambda *answer: told.append(answer))
    assert later(sim) == [
        row("deliver", 1, 6, "flight"), row("deliver", 0, 6, "flight:files"), row("ack", 0, 5, "flight", group="g"),
    ]  # fmt: skip
    assert [error for _, error in told] == [None, None]


def test_reading_the_audit_leaves_no_row() -> None:
    pytest.importorskip("pyarrow", reason="the Flight door needs pyarrow (the extra `flight`)")
    from quintet.flight import reading, verbs, wire
    from quintet.flight.login import Caller

    sim = make_sim()
    client = Client(sim, "admin")
    client.produce("t", b"a")
    client.values("t")
    expected = later(sim)
    call = verbs.Call(sim.broker, Caller("anonymous:admin", "admin", "peer"))
    for topic in ("__events", "__audit", "__groups"):
        reading.plan(call, wire.Ticket(topic, 0, 0, -1, ("value",)))
    assert later(sim) == expected


def test_members_of_a_fast_queue() -> None:
    """A backlog goes to who comes first and then to who is left; competing members have each their own rows."""
    sim = fast.FastSim()
    ann, bob = fast.token("ann"), fast.token("bob")
    first = sim.peer(fast_wire.create(ann, b"demo", 0x01), fast_wire.subscribe(ann, fast.DEMO))
    second = sim.peer(fast_wire.subscribe(bob, fast.DEMO))
    writer = sim.peer(fast.publish(ann, b"1", b"2"))
    first.close()
    writer.ask(fast.publish(ann, b"3"))
    assert (len(second.got()), later(sim)) == (
        3,
        [
            *(row("deliver", 0, 2, "fast", who, "demo") for who in ("ann", "bob")),
            row("deliver", 2, 3, "fast", "bob", "demo"),
        ],
    )
    sim = fast.FastSim()
    for jwt in (ann, bob):
        sim.peer(fast_wire.create(ann, b"demo", 0x04), fast_wire.subscribe(jwt, fast.DEMO))
    sim.peer(fast.publish(ann, *[b"x"] * 6))
    found = later(sim)
    assert sum(each["last"] - each["first"] for each in found) == 6, "each record went to exactly one of them"
    assert {each["who"] for each in found} == {"ann", "bob"}


def test_mailboxes_of_peers() -> None:
    sim = SimBroker()
    alice, bob = (PeerbusPeer(sim, name) for name in ("alice", "bob"))
    alice.send(to="bob", id="m1")
    alice.send(to="bob", id="m2")
    assert [each["envelope"]["id"] for each in bob.objects("deliver")] == ["m1", "m2"]
    bob.exchange(b'{"type":"ack","id":"m2"}\n')
    assert later(sim) == [
        row("deliver", 0, 2, "peerbus", "bob", "peerbus/bob"), row("ack", 1, 2, "peerbus", "bob", "peerbus/bob"),
    ]  # fmt: skip


# -- kept -------------------------------------------------------------------------------------------------------------


def test_a_restart_keeps_rows_and_loses_none_at_the_stop() -> None:
    sim = make_sim()
    peer, fly = ready(sim, 2), Client(sim, "admin")
    id = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b"))
    peer.exchange(ack(id, 0))
    fly.produce("f", b"a")
    fly.values("f")
    sim.restart()  # within the 200 ms
    configure(sim)
    expected = [row("deliver", 0, 2), row("ack", 0, 1), row("deliver", 0, 1, "flymq", "admin", "f")]
    assert rows(sim) == expected
    again = ready(sim, 2)
    assert values_of(again.exchange(wire.poll(9, id))) == [b"b"], "the acknowledgement was saved behind its row"
    assert later(sim) == [*expected, row("deliver", 1, 2)]


def test_the_door_of_a_subscription_outlives_the_broker() -> None:
    sim = SimBroker()
    topic = sim.broker.topics.ensure(b"t", durable=True)
    sim.broker.subscriptions.create("ann", topic, 1, door="peerbus")
    sim.scheduler.run_until_idle()
    sim.restart()
    (found,) = sim.broker.subscriptions.all()
    assert found.door == "peerbus"
    found.attach(Peer(sim, lambda *_: ready(sim, 2).session))
    ready(sim).exchange(publish(b"t", b"a"))
    assert later(sim) == [row("deliver", 0, 1, "peerbus", "ann")]


# -- before the state ---------------------------------------------------------------------------------------------------


def covered(found: Rows, event: str, **where: Any) -> set[int]:
    return {
        offset
        for row in found
        if row["event"] == event and where.items() <= row.items()
        for offset in range(row["first"], row["last"])
    }


def unexplained(sim: SimBroker) -> list[str]:
    """What the state says and no row does."""
    found, wrong = rows(sim), []
    for subscription in sim.broker.subscriptions.all():
        position, pending = subscription.lanes[0].state()
        where = {"topic": subscription.topic_name.decode(), "who": subscription.owner}
        left = {offset for first, last, _ in pending for offset in range(first, last)}
        wrong += [f"position {o}" for o in set(range(position)) - covered(found, "deliver", **where)]
        wrong += [f"settled {o}" for o in set(range(position)) - left - covered(found, "ack", **where)]
    for info in sim.broker.groups.list("", True):
        where = {"topic": info.topic, "group": info.group}
        for _, offset in info.offsets:
            wrong += [f"committed {o}" for o in set(range(offset)) - covered(found, "ack", **where)]
    return wrong


def story(sim: SimBroker, peer: Peer, fly: Client, id: int, rng: Random) -> None:
    """Publishes, acknowledgements and commits; the disk does its work in any order."""
    sim.scheduler.held = True
    sent = done = 0
    for _ in range(rng.randrange(4, 20)):
        chance = rng.random()
        if chance < 0.3:
            peer.feed(publish(b"t", *[b"x"] * rng.randrange(1, 4)))
            sent += 3
        elif chance < 0.6:
            peer.feed(b"".join(ack(id, rng.randrange(sent + 1)) for _ in range(3)))
        elif chance < 0.8:
            done = rng.randrange(done, 8)
            fly.peer.feed(b"" if fly.peer.session.holding else commit(done))
        else:
            sim.scheduler.advance(EVERY_US)
            sim.broker.tick()
        for _ in range(rng.randrange(6)):
            sim.scheduler.turn()
            if sim.scheduler.jobs:
                sim.scheduler.finish(rng.randrange(len(sim.scheduler.jobs)))
    sim.scheduler.held = False


def commit(offset: int, topic: str = "f") -> bytes:
    return request("COMMIT", topic=topic, group="g", partition=0, offset=offset)


def run(seed: int, cut: bool) -> tuple[SimBroker, list[str]]:
    rng = Random(seed)
    sim = make_sim()
    peer, fly = ready(sim, 2), Client(sim, "admin")
    id = subscribed(peer, b"t")
    fly.produce("f", *[b"x"] * 8)
    if cut:
        sim.disk.stop_at = sim.disk.total_calls + rng.randrange(1, 60)
    with contextlib.suppress(QuintetError, OSError, AssertionError):
        story(sim, peer, fly, id, rng)
    sim.scheduler.held = False
    sim.disk.stop_at = None
    power_cut(sim, seed)
    return sim, unexplained(sim)


@pytest.mark.parametrize("seed", range(80))
def test_no_state_without_the_rows_that_led_to_it(seed: int) -> None:
    """Power is lost at any moment, with the disk's work done in any order."""
    sim, wrong = run(seed, cut=seed % 2 == 1)
    assert wrong == []
    peer = ready(sim, 2)
    (subscription,) = sim.broker.subscriptions.all()
    peer.exchange(wire.poll(9, subscription.id) + publish(b"t", b"y"))
    assert later(sim)[-1]["event"] == "deliver" and unexplained(sim) == []


def test_state_beside_its_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: rows and state in one turn, rows first, each synced by itself."""

    def together(self: Events, call: Any) -> None:
        self.flush()
        call()

    monkeypatch.setattr(Events, "after", together)
    assert any(run(seed, cut=False)[1] for seed in range(80))


def test_a_killed_broker_left_rows_before_state() -> None:
    """Between the two: the rows are there, the state is not, and what was settled comes once more with rows of its own."""
    sim = SimBroker()
    peer = ready(sim, 2)
    id = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a"))
    peer.exchange(ack(id, 0))
    sim.scheduler.held = True
    sim.scheduler.advance(EVERY_US)
    sim.broker.tick()
    while not rows(sim):  # and not one job more
        sim.scheduler.turn()
        sim.scheduler.finish()
    assert rows(sim) == [row("deliver", 0, 1), row("ack", 0, 1)]
    sim.scheduler.held = False
    abandon(sim)
    sim.disk.kill()
    sim.start()
    assert rows(sim) == [row("deliver", 0, 1), row("ack", 0, 1)]
    assert values_of(ready(sim, 2).exchange(wire.poll(9, id))) == [b"a"]
    assert later(sim) == [row("deliver", 0, 1), row("ack", 0, 1), row("deliver", 0, 1)]


# -- a disk that fails --------------------------------------------------------------------------------------------------


def lose(sim: SimBroker) -> None:
    """The disk fails under the first row."""
    sim.broker.events.delivered("d", "w", "t", 0, 0, 1)
    sim.broker.events.flush()
    sim.disk.fail("fdatasync", 1, errno.EIO, times=100)
    sim.scheduler.run_until_idle()
    sim.disk.heal()
    assert sim.broker.events.lost == 1 and sim.broker.events.recorded == 0


def test_a_failing_disk_is_said_and_stops_nothing() -> None:
    sim = SimBroker()
    peer = ready(sim, 2)
    subscribed(peer, b"t", 0)
    lose(sim)
    assert [fields["rows"] for event, fields in sim.reports if event == "audit_lost"] == [1]
    for _ in range(3):
        assert values_of(peer.exchange(publish(b"t", b"b", qos=0))) == [b"b"]
        sim.advance(EVERY_US)
    assert sim.broker.events.lost == 4
    said = [fields["rows"] for event, fields in sim.reports if event == "audit_lost"]
    assert len(said) == 1, "once a second at most"
    sim.advance(1_000_000)
    peer.exchange(publish(b"t", b"b", qos=0))
    sim.advance(EVERY_US)
    assert [fields["rows"] for event, fields in sim.reports if event == "audit_lost"] == [1, 4]


def test_state_is_saved_although_the_rows_are_lost() -> None:
    sim = make_sim()
    peer, fly = ready(sim, 2), Client(sim, "admin")
    id = subscribed(peer, b"t")
    fly.produce("f", b"a")
    lose(sim)
    peer.exchange(publish(b"t", b"a", b"b"))
    peer.exchange(ack(id, 0))
    sim.advance(2 * EVERY_US)
    assert sim.broker.events.lost == 3
    assert fly.ask("COMMIT", topic="f", group="g", partition=0, offset=1)["success"]
    power_cut(sim, 1)
    assert values_of(ready(sim, 2).exchange(wire.poll(9, id))) == [b"b"]
    assert Client(sim, "admin").ask("GET_OFFSET", topic="f", group="g", partition=0)["offset"] == 1


def test_rows_that_wait_for_a_slow_disk_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_UNSYNCED_MAX", 2)
    sim = SimBroker()
    sim.scheduler.held = True
    told: list[int] = []
    for number in range(5):
        sim.broker.events.delivered("d", "w", "t", number, 0, 1)
        sim.broker.events.flush()
        sim.broker.events.after(lambda number=number: told.append(number))  # type: ignore[misc]
        sim.scheduler.turn()
    assert sim.broker.events.lost == 3 and told == []
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert told == [0, 1, 2, 3, 4] and len(rows(sim)) == 2
    sim.broker.events.after(lambda: told.append(5))
    assert told[-1] == 5, "nothing is on its way"


def test_a_group_deleted_before_its_commit_is_saved_stays_deleted() -> None:
    sim = make_sim()
    one, two = Client(sim, "admin"), Client(sim, "admin")
    one.produce("t", b"a")
    one.ask("COMMIT", topic="t", group="g", partition=0, offset=0)
    sim.scheduler.held = True
    one.peer.feed(commit(1, "t"))
    two.peer.feed(request("DELETE_GROUP", topic="t", group="g"))
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    (answer,) = parse(one.peer.take())
    assert answer.code == 0xFF
    power_cut(sim, 3)
    assert sim.broker.groups.list("", True) == []


def test_a_subscription_removed_before_it_is_saved_stays_removed() -> None:
    sim = SimBroker()
    peer = ready(sim, 2)
    subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a"))
    sim.broker.subscriptions.save()
    start(sim.broker.delete_topic(b"t"))
    sim.advance(EVERY_US)
    sim.restart()
    assert sim.broker.subscriptions.all() == []


def test_one_who_waits_and_raises_keeps_nobody_else_waiting() -> None:
    sim = SimBroker()
    told: list[int] = []

    def fails() -> None:
        raise RuntimeError("not this one")

    for lost in (False, True):
        sim.broker.events.delivered("d", "w", "t", 0, 0, 1)
        for call in (fails, partial(told.append, 1), fails, partial(told.append, 2)):
            sim.broker.events.after(call)
        if lost:
            sim.disk.fail("fdatasync", 1, errno.EIO, times=100)
        for _ in range(4):
            with contextlib.suppress(RuntimeError):
                sim.scheduler.run_until_idle()
        assert told == [1, 2] * (1 + lost)


def test_a_save_behind_the_stop_is_nobodys_error() -> None:
    sim = SimBroker()
    peer = ready(sim, 2)
    id = subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"a", b"b"))
    sim.advance(1_000_000)
    peer.feed(ack(id, 0))
    closed: list[bool] = []
    sim.broker.drain(lambda: closed.append(True))
    peer.feed(ack(id, 1))
    sim.broker.subscriptions.save()
    sim.scheduler.run_until_idle()
    assert closed == [True]
