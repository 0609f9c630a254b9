"""Envelopes that the broker makes: their ids never come again, and no peer can pretend to have sent one."""

import itertools
from random import Random

import pytest

from quintet import kernel
from quintet.broker.core import BrokerOptions
from quintet.broker.topics.specs import row_of
from quintet.model import envelope
from quintet.model.tasks import start
from quintet.testing.line import SimBroker
from tests.protocols.peerbus.helpers import (
    KEYS,
    broker,
    connect,
    delivered,
    dropped,
    how_closed,
    letter,
    peer_of,
    send,
)
from tests.wire import peerbus as wire

MAILBOX = b"peerbus/bob"


def publish(sim: SimBroker, *values: bytes) -> None:
    """What another door does with the topic of a mailbox."""
    topic = sim.broker.topics.ensure(MAILBOX, durable=True)
    topic.publish(kernel.build(list(values), origin=b"blipmq:dev"), len(values), True, None)
    sim.scheduler.run_until_idle()
    sim.advance(100_000)


def folder(seed: int) -> SimBroker:
    """A broker on a data folder of its own, with chance of its own."""
    sim = SimBroker(KEYS, BrokerOptions())
    sim.broker.topics._entropy = Random(seed).randbytes
    return sim


class TestIds:
    def test_ids_do_not_come_again_when_a_mailbox_is_made_anew(self) -> None:
        sim = broker()
        seen: list[str] = []
        for _ in range(3):
            bob = peer_of(sim, "bob")
            publish(sim, b"1", b"2")
            seen += delivered(bob)
            deleting = start(sim.broker.delete_topic(MAILBOX))
            sim.advance(100_000)
            assert deleting._result is True
            bob.close()
        assert len(seen) == len(set(seen)) == 6

    def test_ids_do_not_come_again_with_a_new_data_folder(self) -> None:
        seen: list[list[str]] = []
        for seed in range(2):
            sim = folder(seed)
            bob = peer_of(sim, "bob")
            publish(sim, b"1", b"2", b"3")
            seen.append(delivered(bob))
        assert len(seen[0]) == 3 and not set(seen[0]) & set(seen[1])

    def test_ids_stay_the_same_over_a_restart(self) -> None:
        sim = broker()
        bob = peer_of(sim, "bob")
        publish(sim, b"1")
        before = delivered(bob)
        bob.close()
        sim.restart()
        bob = connect(sim)
        bob.feed(wire.register("ann-token", "bob") + b"\n")
        sim.scheduler.run_until_idle()
        assert delivered(bob) == before != []

    def test_a_topic_from_before_identities_gets_one_for_good(self) -> None:
        sim = broker()
        peer_of(sim, "bob").close()
        publish(sim, b"1")
        table = sim.broker.topics._table
        topic = sim.broker.topics.get(MAILBOX)
        assert topic is not None
        row = row_of(topic.spec)
        assert len(row.identity) == 32
        old = kernel.build([_without_identity(table._encode(row))], [MAILBOX], origin=b"quintet:broker")
        table.partition.append(old, None)
        sim.scheduler.run_until_idle()
        found: list[str] = []
        for _ in range(2):
            sim.restart()
            found.append(sim.broker.topics.find(MAILBOX).spec.identity)
        assert found[0] == found[1] and len(found[0]) == 32 and found[0] != row.identity


def _without_identity(row: bytes) -> bytes:
    at = row.index(b',"identity"')
    return row[:at] + b"}"


class TestForgery:
    @pytest.mark.parametrize(
        "name", ["blipmq:dev", "flymq:ann", "felix:x", "fast:sensor", "flight:y", "quintet", "Quintet", "quintet:broker", "BlipMQ:dev"]
    )  # fmt: skip
    def test_names_the_broker_gives_to_others_cannot_be_registered(self, name: str) -> None:
        sim = broker()
        peer = connect(sim)
        peer.exchange(wire.register("ann-token", name) + b"\n")
        assert how_closed(peer) == (1008, "invalid peer name") and len(sim.broker.peers) == 0

    @pytest.mark.parametrize("name", ["host:7", "quintets", "my-quintet", "blipmq"])
    def test_names_that_only_look_a_little_like_it_can(self, name: str) -> None:
        peer_of(broker(), name)

    def test_no_peer_can_use_the_source_or_the_ids_of_the_broker(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "first"))
        own = f"q:{sim.broker.topics.find(MAILBOX).spec.identity}:0:1"
        named = envelope.sign(b"", id="m1", sender="amy", to="bob", ts="", body=b"1", source="quintet")
        send(amy, letter("amy", "bob", own), named, letter("amy", "bob", "q:0:1"))
        publish(sim, b"genuine")
        assert delivered(bob) == ["first", "q:0:1", f"{own[:-1]}2"]
        assert dropped(sim) == {"reserved": 2}
        said = [fields["why"] for event, fields in sim.reports if event == "peer_message_dropped"]
        assert said and own in str(said[0])

    def test_a_broadcast_cannot_either(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        for number in itertools.islice(itertools.count(), 2):
            send(amy, letter("amy", "*", f"q:{'0f' * 16}:0:{number}"))
        assert delivered(bob) == [] and dropped(sim) == {"reserved": 2}
