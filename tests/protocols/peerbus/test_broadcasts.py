"""Broadcasts and names: dead names cost nothing, live peers get theirs, and an owner has a bounded number of names."""

import itertools

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.doors.peers import DAY_US, FLUSH_LOOK_EVERY, FLUSH_TURN_US
from quintet.broker.identity.access import Credential, hash_secret
from quintet.broker.sections import PeerSection
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.testing.line import SimBroker
from tests.protocols.peerbus.helpers import (
    KEYS,
    ack,
    broker,
    connect,
    delivered,
    dropped,
    how_closed,
    keys_of,
    letter,
    objects,
    peer_of,
    register,
    send,
)
from tests.wire import peerbus as wire


def crowded(topics_max: int) -> SimBroker:
    """A broker that takes so many topics."""
    return SimBroker(KEYS, BrokerOptions(topics=TopicPolicy([TopicRule("*")], topics_max=topics_max)))


class TestDeadNames:
    def test_a_broadcast_costs_nothing_for_names_that_are_gone(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        for number in range(300):
            peer_of(sim, f"gone{number}").close()
        send(amy, letter("amy", "*", "b0"))
        used = sim.disk.used()
        for number in range(1, 11):
            send(amy, letter("amy", "*", f"b{number}"))
        assert delivered(bob) == [f"b{number}|bob" for number in range(11)]
        assert len(sim.broker.topics) == 1 and sim.broker.peers.sent == 11
        assert sim.disk.used() - used < 100_000

    def test_live_peers_get_theirs_when_dead_names_have_used_up_all_topics(self) -> None:
        sim = crowded(10)
        amy = peer_of(sim, "amy")
        for number in range(30):
            gone = peer_of(sim, f"gone{number}")
            send(amy, letter("amy", "*", f"b{number}"))
            assert delivered(gone) == [f"b{number}|gone{number}"], "each of them was live once"
            if number % 2:
                ack(gone, f"b{number}|gone{number}")
            gone.close()
        bob = peer_of(sim, "bob")
        send(amy, letter("amy", "*", "last"), letter("amy", "bob", "m1"))
        assert delivered(bob) == ["last|bob", "m1"]
        assert len(sim.broker.topics) <= 10 and len(sim.broker.peers) == 32, "the names stay their owners'"
        assert dropped(sim) == {}

    def test_what_waits_for_an_absent_peer_is_not_given_up(self) -> None:
        sim = crowded(2)
        amy = peer_of(sim, "amy")
        for name in ("bob", "cat"):
            peer_of(sim, name).close()
            send(amy, letter("amy", name, f"for {name}"))
        peer_of(sim, "dan")
        send(amy, letter("amy", "dan", "too many"))
        assert dropped(sim) == {"storage": 1}, "two topics, and something waits in both"
        assert keys_of(register(sim, "bob")[1]) == ["for bob"]

    def test_what_another_door_put_into_a_mailbox_is_not_given_up(self) -> None:
        sim = crowded(1)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "*", "b1"))
        topic = sim.broker.topics.find(b"peerbus/bob")
        topic.publish(kernel.build([b"x"], origin=b"flymq:zed"), 1, True, None)
        bob.close()
        peer_of(sim, "cat")
        send(amy, letter("amy", "*", "b2"))
        assert dropped(sim) == {"storage": 1} and len(register(sim, "bob")[1]) == 2

    def test_a_mailbox_that_others_read_is_not_given_up(self) -> None:
        sim = crowded(1)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "*", "b1"))
        ack(bob, "b1|bob")
        topic = sim.broker.topics.find(b"peerbus/bob")
        sim.broker.subscriptions.create("ann", topic, 1, door="blipmq")
        bob.close()
        peer_of(sim, "cat")
        send(amy, letter("amy", "*", "b2"))
        assert dropped(sim) == {"storage": 1} and not topic.deleted


class TestNamesAreFreed:
    def test_a_name_with_nothing_but_old_broadcasts_is_freed_with_its_topic(self) -> None:
        sim = broker(
            mailbox_ttl_seconds=0,
            broadcast_ttl_seconds=100 * 86_400,
            name_idle_seconds=2 * 86_400,
        )
        amy, bob, cat = peer_of(sim, "amy"), peer_of(sim, "bob"), peer_of(sim, "cat")
        send(amy, letter("amy", "*", "b1"), letter("amy", "cat", "m1"))
        bob.close()
        cat.close()
        sim.advance(2 * DAY_US + 7_200_000_000, step_us=3_600_000_000)
        assert sim.broker.peers.find("bob") is None and sim.broker.topics.get(b"peerbus/bob") is None
        assert keys_of(register(sim, "cat")[1]) == ["b1|cat", "m1"], "a message to it alone waits"

    def test_copies_of_broadcasts_expire_before_direct_messages(self) -> None:
        sim = broker(broadcast_ttl_seconds=86_400)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "*", "b1"), letter("amy", "bob", "m1"), letter("amy", "*", "b2"))
        bob.close()
        sim.advance(DAY_US + 1_000_000, step_us=3600 * 1_000_000)
        assert keys_of(register(sim, "bob")[1]) == ["m1"]

    def test_at_the_limit_the_name_unused_for_longest_makes_room(self) -> None:
        sim = broker(names_per_owner_max=3)
        for name in ("one", "two", "three"):
            peer_of(sim, name).close()
            sim.advance(1_000_000)
        peer_of(sim, "one").close()
        sim.advance(1_000_000)
        peer_of(sim, "four")
        assert sorted(sim.broker.peers._by_name) == ["four", "one", "three"]
        peer_of(sim, "other", "ben-token")
        assert len(sim.broker.peers) == 4, "each owner has a limit of its own"
        sim.restart()
        assert len(sim.broker.peers) == 4

    def test_a_limit_of_names_in_use_is_said(self) -> None:
        sim = broker(names_per_owner_max=2)
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        send(amy, letter("amy", "bob", "m1"))
        peer = connect(sim)
        peer.exchange(wire.register("ann-token", "cat") + b"\n")
        assert how_closed(peer) == (1008, "too many names of this token's owner")
        assert keys_of(register(sim, "bob")[1]) == ["m1"]


@pytest.mark.parametrize("ending", ["close", "restart"])
def test_a_copy_waits_for_who_was_connected(ending: str) -> None:
    sim = broker()
    amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
    send(amy, letter("amy", "*", "b1"))
    bob.close()
    if ending == "restart":
        sim.restart()
    assert keys_of(register(sim, "bob")[1]) == ["b1|bob"]


def test_a_broadcast_goes_where_its_sender_may_write() -> None:
    sim = SimBroker(KEYS, BrokerOptions(peers=PeerSection()))
    ann = Credential("ann", hash_secret(b"ann-token"), publish=("peerbus/b*",))
    sim.broker.set_credentials([ann, Credential("ben", hash_secret(b"ben-token"))])
    amy, bob, cat = peer_of(sim, "amy"), peer_of(sim, "bob"), peer_of(sim, "cat")
    send(amy, letter("amy", "*", "b1"))
    assert delivered(bob) == ["b1|bob"] and delivered(cat) == [] and dropped(sim) == {"forbidden": 1}


def test_a_broadcast_to_many_is_written_over_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of 200 mailboxes are not made in one turn, and the barrier behind the broadcast waits for all of them."""
    sim = broker()
    amy, others = peer_of(sim, "amy"), [peer_of(sim, f"p{number}") for number in range(200)]
    clock = itertools.count(0, FLUSH_TURN_US)
    monkeypatch.setattr(sim.scheduler, "monotonic", lambda: next(clock))
    amy.feed(letter("amy", "*", "b1") + b"\n" + wire.ask_peers() + b"\n")
    sizes = [len(sim.broker.topics)]
    while sizes[-1] < len(others):
        sim.scheduler.turn()
        sizes.append(len(sim.broker.topics))
    assert max(after - before for before, after in itertools.pairwise(sizes)) <= 2 * FLUSH_LOOK_EVERY
    assert amy.take() == b"", "not all of them are durable"
    sim.scheduler.run_until_idle()
    assert [found["type"] for found in objects(amy.take())] == ["peers"]
    assert all(delivered(peer) == [f"b1|p{number}"] for number, peer in enumerate(others))
