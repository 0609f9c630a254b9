"""A read of peerbus that is alone: its envelopes are durable and delivered like those of any other, and by the same rules."""

import errno
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.delivery.lane import Lane
from quintet.delivery.subscription import Subscription
from quintet.log.embedded.partitions.commit import LONE_TURNS_MIN
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.protocols.peerbus.session import PeerSession
from quintet.testing.line import Peer, SimBroker
from tests.protocols.peerbus.helpers import KEYS, ack, delivered, dropped, letter, objects, peer_of, register, send
from tests.protocols.peerbus.test_websocket import registered
from tests.wire import peerbus as wire
from tests.wire.websocket import frame

DURABILITIES = ("memory", "os", "interval", "fsync")


def broker(durability: Any) -> SimBroker:
    return SimBroker(
        KEYS, BrokerOptions(topics=TopicPolicy(rules=[TopicRule("*", durability=durability)], durable=durability))
    )


def alone(sim: SimBroker, name: str) -> Peer:
    peer = peer_of(sim, name)
    peer.alone = True
    return peer


def warm(peer: Peer, name: str) -> list[str]:
    """So many messages that the mailbox is lent, if it is in files; their ids."""
    ids = [f"w{number}" for number in range(LONE_TURNS_MIN + 2)]
    for id in ids:
        send(peer, letter(name, name, id))
        assert delivered(peer) == [id]
        ack(peer, id)
    return ids


def partition_of(sim: SimBroker, name: str) -> Any:
    mailbox = sim.broker.peers.find(name)
    assert mailbox is not None and mailbox.topic is not None
    return mailbox.topic.partitions[0]


@pytest.mark.parametrize("durability", DURABILITIES)
def test_what_a_lone_read_sent_is_kept_before_the_read_is_over(durability: str) -> None:
    sim = broker(durability)
    amy = alone(sim, "amy")
    warm(amy, "amy")
    partition = partition_of(sim, "amy")
    assert durability == "memory" or (isinstance(partition, FilePartition) and partition.is_lent)
    before = partition.visible
    amy.feed(wire.ack("x") + b"\n" + letter("amy", "amy", "m1") + b"\n")
    assert partition.visible == before + 1 and delivered(amy) == ["m1"], "nothing is read back for it"
    sim.scheduler.run_until_idle()
    assert delivered(amy) == [], "it is handed over once"


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_id_counts_once_and_the_order_is_kept(durability: str) -> None:
    sim = broker(durability)
    amy, bob = alone(sim, "amy"), peer_of(sim, "bob")
    ids = [f"m{number}" for number in range(3 * LONE_TURNS_MIN)]
    rng, left = Random(3), list(ids)
    while left:
        count = rng.choice((1, 1, 2, 5))
        taken, left = left[:count], left[count:]
        amy.alone = rng.random() < 0.7
        send(amy, *(letter("amy", "bob", id) for id in taken), letter("amy", "bob", taken[0]))
    assert delivered(bob) == ids
    assert dropped(sim)["duplicate"] >= 1 and set(dropped(sim)) == {"duplicate"}


@pytest.mark.parametrize("durability", DURABILITIES)
def test_peers_is_answered_behind_what_was_sent_before_it(durability: str) -> None:
    sim = broker(durability)
    amy = alone(sim, "amy")
    warm(amy, "amy")
    for number in range(3):
        amy.feed(letter("amy", "amy", f"m{number}") + b"\n" + wire.ask_peers() + b"\n")
        visible = partition_of(sim, "amy").visible
        sim.scheduler.run_until_idle()
        kinds = [found["type"] for found in objects(amy.take())]
        assert sorted(kinds) == ["deliver", "peers"] and partition_of(sim, "amy").visible == visible
        ack(amy, f"m{number}")


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
def test_what_was_not_acknowledged_comes_again_after_a_restart(durability: str) -> None:
    sim = broker(durability)
    amy = alone(sim, "amy")
    ids = warm(amy, "amy")
    send(amy, letter("amy", "amy", "m1"))
    assert delivered(amy) == ["m1"]
    sim.restart()
    amy, waiting = register(sim, "amy")
    assert [found["delivery_key"] for found in waiting] == ["m1"]
    amy.alone = True
    send(amy, letter("amy", "amy", "m1"), letter("amy", "amy", ids[-1]))
    assert delivered(amy) == [] and dropped(sim) == {"duplicate": 2}


def test_what_a_full_disk_refuses_may_be_sent_again() -> None:
    sim = broker("fsync")
    amy = alone(sim, "amy")
    warm(amy, "amy")
    sim.disk.fail("pwritev", 1, errno.ENOSPC)
    send(amy, letter("amy", "amy", "m1"))
    assert delivered(amy) == [] and dropped(sim) == {"storage": 1}
    sim.disk.heal()
    sim.advance(3_000_000)
    send(amy, letter("amy", "amy", "m1"))
    assert delivered(amy) == ["m1"]


def fail(*_: object) -> None:
    raise ArithmeticError("a fault of the session")


@pytest.mark.parametrize("framed", [True, False], ids=["lines", "websocket"])
@pytest.mark.parametrize("where", ["behind the envelope", "while settling"])
def test_what_a_session_took_before_it_failed_is_written(
    where: str, framed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a read that is alone, whose mailboxes no end of turn writes."""
    sim = broker("fsync")
    bob = peer_of(sim, "bob")
    amy = peer_of(sim, "amy") if framed else registered(sim)
    amy.alone = True
    amy.exchange(letter("amy", "amy", "m0") + b"\n" if framed else frame(letter("amy", "amy", "m0")))
    said = [letter("amy", "bob", "m1"), wire.ack("m0")]
    if where == "while settling":
        monkeypatch.setattr(Subscription, "ack", fail)
        said.reverse()
    else:
        monkeypatch.setattr(PeerSession, "_ack", fail)
    with pytest.raises(ArithmeticError):
        amy.feed(b"".join(one + b"\n" if framed else frame(one) for one in said))
    sim.scheduler.lone_read.under_way = False
    sim.scheduler.run_until_idle()
    assert delivered(bob) == ["m1"]
    assert sim.broker.peers.all_stored().pending is False


def test_what_cannot_be_stored_leaves_the_mailbox_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = broker("fsync")
    amy, bob = alone(sim, "amy"), peer_of(sim, "bob")
    send(amy, letter("amy", "bob", "m0"))
    with monkeypatch.context() as patched:
        patched.setattr(Topic, "publish_read", fail)
        with pytest.raises(ArithmeticError):
            amy.feed(letter("amy", "bob", "m1") + b"\n")
    sim.scheduler.lone_read.under_way = False
    amy._receiving, amy._rest = False, b""
    send(amy, letter("amy", "bob", "m2"))
    assert delivered(bob) == ["m0", "m2"]


ODD = (
    lambda to, id: letter("amy", to, id, body='"*"'),  # may be a broadcast, as far as the kernel sees
    lambda to, id: letter("amy", to, id).replace(b",", b", "),
    lambda to, id: letter("amy", to, f"{id}-Zo\u00eb"),
    lambda _, id: letter("amy", "*", id),
)


def conversation(seed: int, durability: str) -> tuple[list[bytes], list[object]]:
    """What two peers saw of a random conversation in lone reads, and what is left of it."""
    rng, sim = Random(seed), broker(durability)
    peers = {name: alone(sim, name) for name in ("amy", "bob")}
    seen: list[bytes] = []
    waiting: dict[str, list[str]] = {name: [] for name in peers}
    for number in range(120):
        amy, to = peers["amy"], rng.choice(("amy", "bob"))
        amy.alone = rng.random() < 0.8
        id, chance = f"m{number}", rng.random()
        if chance < 0.6:
            send(amy, letter("amy", to, id))
        elif chance < 0.75:
            send(amy, rng.choice(ODD)(to, id))
        elif chance < 0.8:
            peers[to].room_bytes = 0
        elif chance < 0.9:
            peers[to].room_bytes = 1 << 20
            peers[to].unpark()
        elif chance < 0.95:
            sim.advance(rng.choice((1_000, 31_000_000)))  # some are due again
        else:
            peers[to].close()
            sim.scheduler.run_until_idle()
            peers[to] = alone(sim, to)
            waiting[to].clear()
        for name, peer in peers.items():
            data = peer.take()
            seen.append(data)
            waiting[name] += [found["delivery_key"] for found in objects(data) if found["type"] == "deliver"]
            if waiting[name] and rng.random() < 0.6:
                ack(peer, waiting[name].pop(rng.randrange(len(waiting[name]))))
    left: list[object] = [dropped(sim)]
    for name in peers:
        mailbox = sim.broker.peers.find(name)
        assert mailbox is not None and mailbox.subscription is not None
        (lane,) = mailbox.subscription.lanes
        moves = lane.delivered_ranges.take() if lane.delivered_ranges is not None else []
        left += [lane.state(), lane.skipped, mailbox.subscription.delivered, mailbox.subscription.consumer.held, moves]
        left += [lane.next_deadline(), mailbox.backlog]
    return seen, left


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("seed", range(6))
def test_a_letter_pushed_as_it_was_appended_differs_in_nothing(
    seed: int, durability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one that is read back: frames, their order, what is in flight, what is due again, what the audit is told."""
    with patch.object(Lane, "sent_next", autospec=True, side_effect=Lane.sent_next) as pushed:
        at_once = conversation(seed, durability)
    assert pushed.call_count > 10
    monkeypatch.setattr(Subscription, "push_appended", lambda *_: None)
    read_back = conversation(seed, durability)
    for step, (one, other) in enumerate(zip(read_back[0], at_once[0], strict=True)):
        assert one == other, f"step {step}"
    assert read_back[1] == at_once[1]
