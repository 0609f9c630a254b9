"""Mailboxes on a simulated broker: what is taken in and what is not, limits, time, other doors, names that become free."""

import errno
import json
from hmac import digest

import pytest

from quintet import kernel
from quintet.broker.doors.peers import PRUNE_EVERY_US
from quintet.broker.doors.seen_ids import Seen
from quintet.model import envelope
from quintet.model.tasks import start
from quintet.testing.line import SimBroker
from tests.protocols.peerbus.helpers import (
    SECRET,
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
    session_of,
)
from tests.wire import peerbus as wire

HOUR_US = 3600 * 1_000_000


def now_of(sim: SimBroker) -> str:
    return envelope.rfc3339(sim.scheduler.now())


class TestEnvelopes:
    @pytest.mark.parametrize(
        "change",
        [
            ('"id":"m1"', '"id":""'),
            ('"id":"m1"', '"id":7'),
            ('"id":"m1"', '"id":"a|b"'),
            ('"id":"m1"', '"id":"a\\u0000b"'),
            ('"id":"m1"', '"id":"' + "x" * 257 + '"'),
            ('"id":"m1"', '"id":"m0","id":"m1"'),
            ('"id":"m1"', '"id":"m1","Id":"m2"'),
            ('"id":"m1"', '"id":"m1","more":1'),
            ('"id":"m1"', '"id":"m1","type":"shout"'),
            ('"id":"m1"', '"i\\u0064":"m1"'),
            ('"id":"m1",', ""),
            ('"to":"bob"', '"to":""'),
            ('"protocol_version":"v1"', '"protocol_version":"v2"'),
            ('"protocol_version":"v1",', ""),
            ('"body":null', '"body":NaN'),
            ('"body":null', '"body":Infinity'),
            ('"body":null', '"body":[1,]'),
            ('"body":null', '"body":"\\ud800"'),
            ('"body":null', '"body":01'),
            ('"body":null', '"body":"\x01"'),
            ('"body":null', '"body":' + "[" * 129 + "]" * 129),
            ('"body":null', '"body":' + "[" * 20_000 + "]" * 20_000),
            ('"body":null', '"body":null}'),
        ],
    )  # fmt: skip
    def test_what_two_readers_could_read_differently_is_dropped(self, change: tuple[str, str]) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        plain = letter("amy", "bob", "m1").decode()
        assert change[0] in plain
        send(amy, plain.replace(*change).encode(), letter("amy", "bob", "after"))
        assert delivered(bob) == ["after"], "and the connection goes on"
        assert dropped(sim) == {"bad_envelope": 1} and session_of(amy).closing is None

    def test_text_that_is_not_utf8_is_dropped(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1", '"x"').replace(b'"x"', b'"\xff"'))
        assert bob.take() == b"" and dropped(sim) == {"bad_envelope": 1}

    @pytest.mark.parametrize(
        "body",
        [
            "1e400",
            '{"k":1,"k":2}',
            '"\\u0000"',
            "[" * 128 + "]" * 128,
            '"' + "[{" * 500 + '"',
            '"\\u2028<&>"',
            "-0.0e-7",
            " [ 1 ] ",
        ],
    )
    def test_bodies_are_not_read(self, body: str) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        one = letter("amy", "bob", "m1").replace(b'"body":null', b'"body":' + body.encode())
        send(amy, one)
        assert one in bob.take() and dropped(sim) == {}

    @pytest.mark.parametrize("member", envelope.MEMBERS)
    def test_an_envelope_that_lacks_a_member_is_refused_and_said(self, member: str) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        whole = json.loads(letter("amy", "bob", "m1"))
        del whole[member]
        send(amy, json.dumps(whole).encode(), letter("amy", "bob", "after"))
        assert delivered(bob) == ["after"] and dropped(sim) == {"bad_envelope": 1}
        (said,) = [fields for event, fields in sim.reports if event == "peer_message_dropped"]
        assert said["name"] == "amy" and str(said["why"]).endswith(f"this one lacks {member}")

    def test_from_is_who_sends_or_it_is_refused(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("bob", "bob", "m1"), letter("", "bob", "m2"))
        assert bob.take() == b"" and dropped(sim) == {"sender": 2}

    def test_from_may_be_carried_as_the_published_broker_does(self) -> None:
        sim = broker(sender_check="carry")
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("somebody", "bob", "m1"))
        assert delivered(bob) == ["m1"]
        topic = sim.broker.topics.find(b"peerbus/bob")
        (batch,) = topic.partitions[0].read(0, 1 << 20) or []
        assert batch.rows()[0][6] == b"peerbus:amy", "routed and kept under the name that is bound"


class TestSignatures:
    def test_with_the_secret_only_what_verifies_comes_in(self) -> None:
        sim = broker(secret=SECRET, verify=True)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        good = letter("amy", "bob", "m1", '{"a":"<b>"}', SECRET, now_of(sim))
        hmac = json.loads(good)["hmac"]
        bad = [
            good.replace(b'"m1"', b'"m2"'),
            good.replace(b"u003cb", b"u003cc"),
            *(
                good.replace(hmac.encode(), other.encode())
                for other in (hmac.upper(), hmac[:-1], hmac + "0", "", "g" * 64)
            ),
            letter("amy", "bob", "m3", "1", b"x" * 32, now_of(sim)),
        ]
        send(amy, *bad)
        assert bob.take() == b"" and dropped(sim) == {"signature": len(bad)}
        send(amy, good)
        assert delivered(bob) == ["m1"], "what was refused before did not use up its id"

    def test_bodies_signed_as_they_stand_in_the_frame_come_in(self) -> None:
        """As the document says: verbatim. Not in the form of published clients, which escape < and & and drop blanks."""
        sim = broker(secret=SECRET, verify=True)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        head = f'{{"protocol_version":"v1","id":"m1","from":"amy","to":"bob","ts":"{now_of(sim)}","source":"s","kind":"msg",'
        text = head + '"body":{ "t" : "a<b & c\u2028" }'
        hmac = digest(SECRET, f"{text}}}".encode(), "sha256").hex()
        one = f'{text},"hmac":"{hmac}"}}'.encode()
        send(amy, one.replace(b"a<b", b"a<c"))
        assert dropped(sim) == {"signature": 1}
        send(amy, one)
        assert one in bob.take() and envelope.verify(one, SECRET)

    def test_the_right_signature_under_another_name_is_refused(self) -> None:
        sim = broker(secret=SECRET, verify=True, sender_check="carry")
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("bob", "bob", "m1", "1", SECRET, now_of(sim)))
        assert bob.take() == b"" and dropped(sim) == {"sender": 1}

    def test_an_old_envelope_is_refused_and_an_unreadable_time_not_judged(self) -> None:
        sim = broker(secret=SECRET, verify=True)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        before = envelope.rfc3339(sim.scheduler.now() - 601 * 1_000_000)
        ahead = envelope.rfc3339(sim.scheduler.now() + 601 * 1_000_000)
        send(amy, *(letter("amy", "bob", ts, "1", SECRET, ts) for ts in (before, ahead, "soon", "2026-05-18T12:00:00")))
        assert delivered(bob) == ["soon", "2026-05-18T12:00:00"] and dropped(sim) == {"stale": 2}

    def test_keys_of_single_peers(self) -> None:
        """Nobody else can sign for amy, two of her keys overlap, and one that is taken away is done with."""
        old, new, bens = b"o" * 32, b"n" * 32, b"b" * 32
        sim = broker(secret=SECRET, keys={"amy": {"k1": old, "k2": new}, "ben": {"k1": bens}})
        amy, ben, cat = peer_of(sim, "amy"), peer_of(sim, "ben"), peer_of(sim, "cat")

        def signed(id: str, kid: str, key: bytes) -> bytes:
            one = json.loads(letter("amy", "cat", id, "1", key, now_of(sim)))
            return json.dumps(one | {"hmac": f"{kid}:{one['hmac']}"}, separators=(",", ":")).encode()

        send(amy, signed("m1", "k1", old), signed("m2", "k2", new))
        assert delivered(cat) == ["m1", "m2"]
        send(amy, signed("m3", "k1", new), signed("m4", "k3", new), signed("m5", "", old), signed("m6", "k1", bens))
        send(
            amy, letter("amy", "cat", "m7", "1", SECRET, now_of(sim)), letter("amy", "cat", "m8", "1", old, now_of(sim))
        )
        assert cat.take() == b"" and dropped(sim) == {"signature": 6}
        send(ben, signed("m9", "k1", bens))
        assert cat.take() == b"" and sim.broker.peers.dropped["sender"] == 1
        send(cat, letter("cat", "cat", "m10"))
        assert delivered(cat) == ["m10"], "who has no key of its own, and verify is off"


class TestReplay:
    def test_an_id_counts_once(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, *[letter("amy", "bob", "m1")] * 3)
        send(amy, letter("amy", "bob", "m1", '"other"'), letter("amy", "amy", "m1"))
        ack(bob, "m1")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "*", "b1"), letter("amy", "*", "b1"))
        assert delivered(bob) == ["m1", "b1|bob"] and dropped(sim) == {"duplicate": 6}

    def test_ids_are_known_after_a_restart_for_the_rest_of_the_window(self) -> None:
        sim = broker(replay_window_seconds=3_600)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "*", "b1"))
        ack(bob, "m1", "b1|bob")
        for peer in (amy, bob):
            peer.close()
        sim.restart()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "*", "b1"), letter("amy", "bob", "m2"))
        assert delivered(bob) == ["m2"] and dropped(sim) == {"duplicate": 2}
        for peer in (amy, bob):
            peer.close()
        sim.scheduler.advance(3 * HOUR_US)
        sim.restart()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"))
        assert delivered(bob) == ["m1"] and dropped(sim) == {}, "older than the window"

    def test_two_generations_keep_a_window_and_no_more_than_the_limit(self) -> None:
        seen = Seen(window_us=100, ids_max=10)
        assert seen.add("p", "a", 1_000) and not seen.add("p", "a", 1_099) and not seen.add("p", "a", 1_150)
        assert seen.add("p", "b", 1_199) and not seen.add("p", "b", 1_298), "a whole window at least"
        assert seen.add("p", "a", 1_500)
        for number in range(100):
            assert seen.add("p", f"n{number}", 1_510)
            assert len(seen) <= 10
        assert not seen.add("p", "n99", 1_511) and not seen.add("p", "n95", 1_511)
        seen.forget("p", "n99")
        assert seen.add("p", "n99", 1_512)

    def test_what_could_not_be_kept_may_be_sent_again(self) -> None:
        sim = broker(mailbox_messages_max=1)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "bob", "m2"))
        assert delivered(bob) == ["m1"] and dropped(sim) == {"quota": 1}
        ack(bob, "m1")
        sim.advance(200_000)
        send(amy, letter("amy", "bob", "m2"))
        assert delivered(bob) == ["m2"]

    def test_records_are_kept_for_the_window_although_nobody_gets_them(self) -> None:
        sim = broker(mailbox_ttl_seconds=3_600, replay_window_seconds=3 * 3_600)
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        send(amy, letter("amy", "bob", "m1"))
        topic = sim.broker.topics.get(b"peerbus/bob")
        assert topic is not None and topic.spec.retention_us == 3 * HOUR_US
        amy.close()
        sim.scheduler.advance(2 * HOUR_US)
        sim.restart()
        amy, (bob, waiting) = peer_of(sim, "amy"), register(sim, "bob")
        send(amy, letter("amy", "bob", "m1"))
        assert waiting == [] and delivered(bob) == [] and dropped(sim) == {"duplicate": 1}

    def test_a_broadcast_one_mailbox_refused_comes_once_to_the_others(self) -> None:
        sim = broker()
        amy, bob, cat = peer_of(sim, "amy"), peer_of(sim, "bob"), peer_of(sim, "cat")
        send(amy, letter("amy", "bob", "m1"))
        start(sim.broker.delete_topic(b"peerbus/bob"))
        send(amy, letter("amy", "*", "b1"))
        assert dropped(sim) == {"storage": 1} and bob.session.closing is not None
        send(amy, letter("amy", "*", "b1", '"other"'))
        assert delivered(cat) == ["b1|cat"] and dropped(sim) == {"storage": 1, "duplicate": 1}


class TestLimits:
    def test_a_mailbox_has_so_many_messages(self) -> None:
        sim = broker(mailbox_messages_max=10)
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        send(amy, *(letter("amy", "bob", f"m{number}") for number in range(15)))
        assert dropped(sim) == {"quota": 5}
        bob, waiting = register(sim, "bob")
        assert keys_of(waiting) == [f"m{number}" for number in range(10)]
        ack(bob, "m0", "m1")
        sim.advance(200_000)
        send(amy, *(letter("amy", "bob", f"n{number}") for number in range(5)))
        assert delivered(bob) == ["n0", "n1"]

    def test_a_mailbox_has_so_many_bytes(self) -> None:
        sim = broker(mailbox_bytes_max=10_000)
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        for number in range(10):
            send(amy, letter("amy", "bob", f"m{number}", json.dumps("x" * 3_000)))
        _, waiting = register(sim, "bob")
        assert keys_of(waiting) == ["m0", "m1", "m2"] and dropped(sim) == {"quota": 7}

    def test_what_is_too_old_is_not_delivered_and_makes_room(self) -> None:
        sim = broker(mailbox_messages_max=3, mailbox_ttl_seconds=3_600)
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        send(amy, *(letter("amy", "bob", f"m{number}") for number in range(4)))
        sim.scheduler.advance(HOUR_US + 1)
        sim.advance(PRUNE_EVERY_US + 50_000)
        send(amy, letter("amy", "bob", "fresh"))
        assert keys_of(register(sim, "bob")[1]) == ["fresh"]

    def test_a_full_disk_drops_and_counts(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        sim.disk.capacity = sim.disk.used()
        send(amy, letter("amy", "bob", "m1", json.dumps("x" * 500_000)))
        assert sim.broker.peers.dropped["storage"] == 1
        assert sim.broker.peers.remembered == 0


class TestOtherDoors:
    def publish(self, sim: SimBroker, topic: bytes, *values: bytes | None, origin: bytes = b"flymq:zed") -> None:
        sim.broker.topics.ensure(topic, durable=True).publish(
            kernel.build(list(values), origin=origin), len(values), True, None
        )
        sim.scheduler.run_until_idle()
        sim.advance(100_000)

    def test_records_of_other_doors_become_envelopes(self) -> None:
        sim = broker(secret=SECRET)
        bob = peer_of(sim, "bob")
        self.publish(
            sim, b"peerbus/bob", b' {"a" : [1, "<"]} ', b"plain text", b"\xff\x00", None, b"", b"[" * 500 + b"]" * 500
        )
        found = [one["envelope"] for one in objects(bob.take())]
        assert [one["body"] for one in found] == [
            {"a": [1, "<"]}, "plain text", {"base64": "/wA="}, None, "", "[" * 500 + "]" * 500,
        ]  # fmt: skip
        first, own = found[0], f"q:{sim.broker.topics.find(b'peerbus/bob').spec.identity}:0"
        assert {name: first[name] for name in ("id", "from", "to", "source", "kind")} == {
            "id": f"{own}:0", "from": "flymq:zed", "to": "bob", "source": "quintet", "kind": "msg",
        }  # fmt: skip
        assert first["ts"].startswith("2023-11-14T22:13:20")
        ack(bob, f"{own}:1", f"{own}:2")
        bob.close()
        again = register(sim, "bob")[1]
        assert keys_of(again) == [f"{own}:{offset}" for offset in (0, 3, 4, 5)]

    def test_what_the_broker_makes_is_signed_with_its_secret(self) -> None:
        sim = broker(secret=SECRET)
        bob = peer_of(sim, "bob")
        self.publish(sim, b"peerbus/bob", b'{"x":1}')
        line = bob.take()
        made = line[line.index(b'"envelope":') + 11 : -2]
        assert envelope.verify(made, SECRET)

    def test_nothing_from_before_there_was_such_a_peer(self) -> None:
        sim = broker()
        self.publish(sim, b"peerbus/bob", b"early")
        bob = peer_of(sim, "bob")
        self.publish(sim, b"peerbus/bob", b"now")
        (one,) = objects(bob.take())
        assert one["envelope"]["body"] == "now"

    def test_other_doors_read_the_envelope_as_the_value(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob")
        one = letter("amy", "bob", "m1", "[1]")
        send(amy, one)
        (batch,) = sim.broker.topics.find(b"peerbus/bob").partitions[0].read(0, 1 << 20) or []
        offset, _, key, value, headers, expiry, origin = batch.rows()[0]
        assert (offset, key, value, headers, origin) == (0, b"m1", one, (), b"peerbus:amy") and expiry > 0

    def test_a_mailbox_of_several_partitions(self) -> None:
        sim = broker()
        sim.broker.create_topic(b"peerbus/bob", 3)
        sim.scheduler.run_until_idle()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        for number in range(6):
            self.publish(sim, b"peerbus/bob", str(number).encode())
        send(amy, *(letter("amy", "bob", f"m{number}") for number in range(3)))
        keys = delivered(bob)
        assert [key for key in keys if key[0] == "m"] == ["m0", "m1", "m2"] and len(set(keys)) == 9
        ack(bob, *keys)
        bob.close()
        assert register(sim, "bob")[1] == []


class TestNames:
    def test_deleting_the_mailbox_frees_the_name(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"))
        start(sim.broker.delete_topic(b"peerbus/bob"))
        sim.advance(100_000)
        assert how_closed(bob) == (1008, "name was freed") and sim.broker.peers.names() == ["amy"]
        bob.close()
        _, waiting = register(sim, "bob", "ben-token")
        assert waiting == []
        sim.restart()
        stranger = connect(sim)
        stranger.exchange(wire.register("ann-token", "bob") + b"\n")
        assert how_closed(stranger) == (1008, "name claimed under a different token")

    def test_a_name_nobody_uses_is_free_when_nothing_waits_for_it(self) -> None:
        day = 24 * HOUR_US
        sim = broker(name_idle_seconds=30 * 86_400, mailbox_ttl_seconds=0)
        amy = peer_of(sim, "amy")
        for name in ("bob", "cat"):
            peer_of(sim, name).close()
        send(amy, letter("amy", "cat", "m1"))
        sim.scheduler.advance(31 * day)
        sim.advance(PRUNE_EVERY_US + 50_000)
        assert sim.broker.peers.find("bob") is None and sim.broker.peers.find("cat") is not None
        assert sim.broker.peers.find("amy") is not None, "it is connected"
        peer_of(sim, "bob", "ben-token")


# -- the barrier -------------------------------------------------------------------------------------------------------


def test_peers_is_answered_when_what_was_sent_before_is_durable() -> None:
    sim = broker()
    ann, ben = peer_of(sim, "ann"), peer_of(sim, "ben")
    send(ann, letter("ann", "ben", "m0"))  # the topic is there
    ann.take(), ben.take()
    sim.scheduler.held = True
    ann.feed(letter("ann", "ben", "m1") + b"\n" + wire.ask_peers() + b"\n" + letter("ann", "ben", "m2") + b"\n")
    sim.scheduler.run_until_idle()
    assert (ann.take(), ben.take()) == (b"", b""), "nothing is durable yet, nobody is told of anything"
    ben.feed(wire.ask_peers() + b"\n")
    sim.scheduler.run_until_idle()
    assert ben.take() == b""
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [found["type"] for found in objects(ann.take())] == ["peers"]
    assert sorted(found["type"] for found in objects(ben.take())) == ["deliver", "deliver", "peers"]
    ann.feed(wire.ask_peers() + b"\n")
    assert [found["type"] for found in objects(ann.take())] == ["peers"], (
        "with nothing under way it is answered at once"
    )


def test_the_barrier_passes_what_the_disk_refused() -> None:
    sim = broker()
    ann, _ = peer_of(sim, "ann"), peer_of(sim, "ben")
    send(ann, letter("ann", "ben", "m0"))
    ann.take()
    sim.disk.fail("fdatasync", 1, errno.EIO, times=10)
    ann.feed(letter("ann", "ben", "m1") + b"\n" + wire.ask_peers() + b"\n")
    sim.scheduler.run_until_idle()
    assert [found["type"] for found in objects(ann.take())] == ["peers"]
    assert sim.broker.peers.dropped["storage"] == 1
