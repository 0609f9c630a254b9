"""A read of peerbus that is alone: its envelopes are durable and delivered like those of any other, and by the same rules."""

import errno
from random import Random
from typing import Any

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.log.embedded.partitions.commit import LONE_TURNS_MIN
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.testing.line import Peer, SimBroker
from tests.protocols.peerbus.helpers import KEYS, ack, delivered, dropped, letter, objects, peer_of, register, send
from tests.wire import peerbus as wire

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
    assert partition.visible == before + 1 and delivered(amy) == [], "watchers are called when the turn ends"
    sim.scheduler.run_until_idle()
    assert delivered(amy) == ["m1"]


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


def test_a_session_that_failed_in_the_middle_of_a_read_holds_nobody_up() -> None:
    sim = broker("fsync")
    amy, bob = alone(sim, "amy"), peer_of(sim, "bob")
    sim.scheduler.lone_read.under_way = True
    amy.session.receive_message(letter("amy", "bob", "m1"), sim.scheduler.now())  # type: ignore[attr-defined]
    sim.scheduler.lone_read.under_way = False  # and `end_read` is never called
    sim.scheduler.run_until_idle()
    assert delivered(bob) == []
    sim.advance(100_000)
    assert delivered(bob) == ["m1"]
