"""The peerbus door over lines, on a simulated broker: registering, routing, acknowledging, and what comes again."""

import errno
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintet.broker.doors.peers import TAKEOVERS_MAX, TAKEOVERS_WITHIN_US
from quintet.broker.identity.access import Credential, hash_secret
from quintet.model import limits
from quintet.protocols.base import WAIT
from quintet.protocols.peerbus import frames
from quintet.protocols.peerbus.session import LATE_ACKS_US
from tests.protocols.cases import DoorLaws
from tests.protocols.peerbus.helpers import (
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

V1 = '"protocol_version":"v1"'


class TestRegister:
    @pytest.mark.parametrize(
        ("first", "how"),
        [
            ("hello", (1007, "malformed handshake")),
            ("[1]", (1007, "malformed handshake")),
            ('{"type":"register","token":5}', (1007, "malformed handshake")),
            ('{"type":"\ud83d"}'.encode("utf-8", "surrogatepass"), (1007, "malformed handshake")),
            (f'{{{V1},"type":"ack","id":"x"}}', (1008, "first frame must be register")),
            (f"{{{V1}}}", (1008, "first frame must be register")),
            ('{"type":"register","token":"ann-token","name":"a"}', (1008, "unsupported protocol version")),
            ('{"protocol_version":"v2","type":"register","name":""}', (1008, "unsupported protocol version")),
            (f'{{{V1},"type":"register","token":"ann-token"}}', (1008, "empty peer name")),
            (f'{{{V1},"type":"register","token":"wrong","name":""}}', (1008, "empty peer name")),
            (f'{{{V1},"type":"register","token":"wrong","name":"a|b"}}', (1008, "invalid peer name")),
            (f'{{{V1},"type":"register","token":"wrong","name":"a"}}', (1008, "invalid bearer token")),
            (f'{{{V1},"type":"register","name":"a"}}', (1008, "invalid bearer token")),
        ],
    )
    def test_the_first_thing_that_is_wrong_is_said(self, first: str | bytes, how: tuple[int, str]) -> None:
        peer = connect(broker())
        assert peer.exchange((first if isinstance(first, bytes) else first.encode()) + b"\n") == b""
        assert how_closed(peer) == how

    @pytest.mark.parametrize(
        "name",
        [
            "*",
            "a*",
            "a|b",
            "a/b",
            "..\\x",
            "a\u0000b",
            "a\nb",
            "a\u202eb",
            "a\u200bb",
            " a",
            "a ",
            "e\u0301",
            "x" * 201,
            "ä" * 101,
        ],
    )
    def test_names_that_mean_something_else_are_refused(self, name: str) -> None:
        sim = broker()
        peer = connect(sim)
        peer.exchange(wire.register("ann-token", name) + b"\n")
        assert how_closed(peer) == (1008, "invalid peer name")
        assert len(sim.broker.peers) == 0

    @pytest.mark.parametrize("name", ["a", "Ünïcode", "agent 7", "..", "x" * 200, "日本"])
    def test_other_names_are_fine(self, name: str) -> None:
        sim = broker()
        peer_of(sim, name)
        assert sim.broker.peers.names() == [name]

    def test_the_reply_lists_who_is_connected_in_order(self) -> None:
        sim = broker()
        zoe, _ = register(sim, "zoe")
        peer_of(sim, "bob").close()
        amy = connect(sim)
        (reply,) = objects(amy.exchange(wire.register("ben-token", "amy") + b"\n"))
        assert reply == {"protocol_version": "v1", "type": "peers", "names": ["amy", "zoe"]}
        (reply,) = objects(zoe.exchange(wire.ask_peers() + b"\n"))
        assert reply["names"] == ["amy", "zoe"]

    def test_nothing_is_answered_before_the_name_is_durable(self) -> None:
        sim = broker()
        sim.scheduler.held = True
        peer = connect(sim)
        peer.feed(wire.register("ann-token", "amy") + b"\n" + wire.ask_peers() + b"\n")
        sim.scheduler.run_until_idle()
        assert peer.take() == b"" and peer.session.holding
        sim.scheduler.held = False
        sim.scheduler.run_until_idle()
        assert [found["type"] for found in objects(peer.take())] == ["peers", "peers"]

    def test_a_name_that_cannot_be_kept_is_not_given(self) -> None:
        sim = broker()
        for operation in ("pwritev", "fdatasync"):
            sim.disk.fail(operation, 1, errno.EIO, times=1_000)
        for _ in range(2):
            peer = connect(sim)
            assert peer.exchange(wire.register("ann-token", "amy") + b"\n") == b""
            assert how_closed(peer) == (1011, "peer persistence failed")
        assert len(sim.broker.peers) == 0

    def test_a_broker_that_stops_takes_no_more_names(self) -> None:
        sim = broker()
        sim.broker.draining = True
        peer = connect(sim)
        peer.exchange(wire.register("ann-token", "amy") + b"\n")
        assert how_closed(peer) == (1001, "server shutting down")

    def test_a_second_register_and_a_deliver_are_passed_over(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        assert amy.exchange(wire.register("wrong", "bob") + b"\n" + wire.deliver("k", b"{}") + b"\n") == b""
        assert session_of(amy).closing is None and sim.broker.peers.names() == ["amy"]

    def test_who_says_nothing_is_told_so(self) -> None:
        sim = broker()
        peer = connect(sim)
        deadline = peer.session.deadline()
        assert deadline == sim.scheduler.monotonic() + limits.HANDSHAKE_US
        peer.session.tick(deadline)
        assert how_closed(peer) == (1002, "no handshake frame")

    def test_the_name_stays_with_its_owner(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        for connected in (True, False):  # a disconnect changes nothing
            if not connected:
                amy.close()
            stranger = connect(sim)
            stranger.exchange(wire.register("ben-token", "amy") + b"\n")
            assert how_closed(stranger) == (1008, "name claimed under a different token")
        sim.restart()
        stranger = connect(sim)
        stranger.exchange(wire.register("ben-token", "amy") + b"\n")
        assert how_closed(stranger) == (1008, "name claimed under a different token")
        peer_of(sim, "amy")

    def test_lines_have_a_limit_and_a_smaller_one_before_register(self) -> None:
        sim = broker()
        peer = connect(sim)
        peer.feed(b"x" * (limits.UNAUTHENTICATED_FRAME_BYTES_MAX + 1))
        assert how_closed(peer) == (1009, "message too big")
        amy = peer_of(sim, "amy")
        amy.feed(b"x" * frames.FRAME_BYTES_MAX)
        assert session_of(amy).closing is None
        amy.feed(b"x")
        assert how_closed(amy) == (1009, "message too big")
        amy = peer_of(sim, "amy")
        amy.feed(b"x" * (frames.FRAME_BYTES_MAX + 1) + b"\n")
        assert how_closed(amy) == (1009, "message too big")


class TestTakeover:
    def test_the_new_connection_gets_what_was_not_acknowledged(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "bob", "m2"))
        assert delivered(bob) == ["m1", "m2"]
        ack(bob, "m1")
        second, waiting = register(sim, "bob")
        assert keys_of(waiting) == ["m2"]
        sim.advance(LATE_ACKS_US)
        assert how_closed(bob) == (0, "another connection took the name over"), "no close frame, as the original"
        bob.close()
        send(amy, letter("amy", "bob", "m3"))
        assert delivered(second) == ["m3"] and sim.broker.peers.names() == ["amy", "bob"]

    def test_acknowledgements_under_way_at_a_takeover_are_kept(self) -> None:
        """They are in a buffer of the old socket when the new connection registers."""
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, *(letter("amy", "bob", f"m{number}") for number in range(3)))
        ack(bob, "m0")
        sim.advance(1_000_000)
        second, waiting = register(sim, "bob")
        assert keys_of(waiting) == ["m1", "m2"]
        ack(bob, "m1")
        send(bob, letter("bob", "amy", "late"), wire.ask_peers(), b"no object")
        assert amy.take() == b"" and delivered(bob) == ["m0", "m1", "m2"], "it only acknowledges"
        sim.advance(1_000_000)
        bob.close()
        second.close()
        assert keys_of(register(sim, "bob")[1]) == ["m2"]
        sim.restart()
        assert keys_of(register(sim, "bob")[1]) == ["m2"], "and it is saved"

    def test_a_loop_of_takeovers_ends(self) -> None:
        sim = broker()
        peer_of(sim, "bob")
        for _ in range(TAKEOVERS_MAX):
            peer_of(sim, "bob")
        one_more = connect(sim)
        one_more.exchange(wire.register("ann-token", "bob") + b"\n")
        assert how_closed(one_more) == (1008, "too many takeovers of this name")
        sim.advance(TAKEOVERS_WITHIN_US + 1_000_000, step_us=1_000_000)
        peer_of(sim, "bob")


class TestDelivery:
    def test_the_envelope_is_delivered_byte_for_byte(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        odd = (
            b'{ "kind":"msg","body" : {"z":1 ,"a":"\\u00e9 <\xc3\xa9>","n":1e400,"d":{"k":1,"k":2}},\t"hmac":"",'
            b'"protocol_version":"v1","id":"o\\u0031","from":"amy","to":"bob","ts":"yesterday","source":"" }'
        )
        send(amy, b"  " + odd + b" \r")
        assert bob.take() == b'{"protocol_version":"v1","type":"deliver","delivery_key":"o1","envelope":' + odd + b"}\n"

    def test_senders_keep_their_order_over_a_disconnect(self) -> None:
        sim = broker()
        amy, cat = peer_of(sim, "amy"), peer_of(sim, "cat")
        peer_of(sim, "bob").close()
        for number in range(20):
            send(amy, letter("amy", "bob", f"a{number}"))
            send(cat, letter("cat", "bob", f"c{number}"))
        bob, waiting = register(sim, "bob")
        send(amy, letter("amy", "bob", "a20"), letter("amy", "bob", "a21"))
        keys = keys_of(waiting) + delivered(bob)
        assert [key for key in keys if key[0] == "a"] == [f"a{number}" for number in range(22)]
        assert [key for key in keys if key[0] == "c"] == [f"c{number}" for number in range(20)]

    def test_only_what_was_not_acknowledged_comes_again(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, *(letter("amy", "bob", f"m{number}") for number in range(6)))
        ack(bob, "m1", "m4", "m3", "never", "")
        sim.advance(3600 * 1_000_000, step_us=600 * 1_000_000)
        assert delivered(bob) == [f"m{number}" for number in range(6)], "nothing comes twice over one connection"
        bob.close()
        bob, waiting = register(sim, "bob")
        assert keys_of(waiting) == ["m0", "m2", "m5"]
        ack(bob, "m0", "m2", "m5", "m5")
        bob.close()
        assert register(sim, "bob")[1] == []

    def test_a_restart_loses_nothing_and_brings_back_what_is_open(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, *(letter("amy", "bob", f"m{number}") for number in range(4)))
        ack(bob, "m0", "m2")
        amy.close()
        bob.close()
        sim.restart()
        bob, waiting = register(sim, "bob")
        assert keys_of(waiting) == ["m1", "m3"]
        ack(bob, "m1", "m3")
        bob.close()
        sim.restart()
        assert register(sim, "bob")[1] == []

    def test_nothing_is_delivered_before_it_is_durable(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m0"))
        delivered(bob)
        sim.scheduler.held = True
        send(amy, letter("amy", "bob", "m1"))
        assert delivered(bob) == []
        sim.scheduler.held = False
        sim.scheduler.run_until_idle()
        assert delivered(bob) == ["m1"]

    def test_one_batch_for_all_of_a_turn(self) -> None:
        sim = broker()
        amy, cat = peer_of(sim, "amy"), peer_of(sim, "cat")
        bob = peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "first"))
        amy.feed(letter("amy", "bob", "a1") + b"\n" + letter("amy", "bob", "a2") + b"\n")
        cat.feed(letter("cat", "bob", "c1") + b"\n")
        sim.scheduler.run_until_idle()
        assert delivered(bob) == ["first", "a1", "a2", "c1"]
        topic = sim.broker.topics.find(b"peerbus/bob")
        (batch,) = [b for b in topic.partitions[0].read(1, 1 << 20) or [] if b.base_offset == 1]
        assert [(row[2], row[6]) for row in batch.rows()] == [
            (b"a1", b"peerbus:amy"), (b"a2", b"peerbus:amy"), (b"c1", b"peerbus:cat"),
        ]  # fmt: skip

    def test_a_peer_without_room_is_not_read_for(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        bob.room_bytes = 0
        send(amy, letter("amy", "bob", "m1"))
        assert delivered(bob) == [] and bob.parked
        bob.room_bytes = 1
        bob.unpark()
        assert delivered(bob) == ["m1"]

    def test_the_same_id_of_two_senders_is_two_messages(self) -> None:
        sim = broker()
        amy, cat, bob = peer_of(sim, "amy"), peer_of(sim, "cat"), peer_of(sim, "bob")
        for sender, peer in (("amy", amy), ("cat", cat), ("amy", amy)):
            send(peer, letter(sender, "bob", "same"))
        assert delivered(bob) == ["same", "same"]
        ack(bob, "same")
        bob.close()
        bob, (left,) = register(sim, "bob")
        assert left["envelope"]["from"] == "cat"
        ack(bob, "same")
        bob.close()
        assert register(sim, "bob")[1] == []

    def test_envelopes_with_ends_of_lines_stay_one_line(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        spread = json.dumps(json.loads(letter("amy", "bob", "m1")), indent=1).encode()
        session_of(amy).receive_message(spread, sim.scheduler.now())
        sim.scheduler.run_until_idle()
        (found,) = objects(bob.take())
        assert found["envelope"] == json.loads(spread)

    def test_an_unknown_recipient_is_counted(self) -> None:
        sim = broker()
        send(peer_of(sim, "amy"), letter("amy", "nobody", "m1"))
        assert dropped(sim) == {"unknown_recipient": 1} and sim.broker.topics.get(b"peerbus/nobody") is None


class TestBroadcast:
    def test_everyone_but_the_sender_gets_a_copy_of_its_own(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        cat = peer_of(sim, "cat")
        peer_of(sim, "eve").close()  # known, not connected
        one = letter("amy", "*", "b1", '{"n":1}')
        send(amy, one)
        (copy,) = objects(bob.take())
        assert copy["delivery_key"] == "b1|bob" and amy.take() == b""
        assert register(sim, "dan")[1] == [] and register(sim, "eve")[1] == [], "no backfill"
        cat.close()
        cat, waiting = register(sim, "cat")
        assert keys_of(waiting) == ["b1|cat"], "it was connected: its copy waits"
        ack(cat, "b1", "b1|bob", "b1|cat")
        for peer in (bob, cat):
            peer.close()
        assert keys_of(register(sim, "bob")[1]) == ["b1|bob"], "each acknowledges its own"
        assert register(sim, "cat")[1] == []

    def test_only_a_broadcast_is_for_everyone(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(
            amy,
            letter("amy", "*", "m1").replace(b'"broadcast"', b'"msg"'),
            letter("amy", "bob", "m2").replace(b'"msg"', b'"broadcast"'),
            letter("amy", "*", "m3").replace(b'"*"', b'"\\u002a"'),
        )
        assert bob.take() == b"" and dropped(sim) == {"bad_envelope": 3}

    def test_copies_have_a_budget(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        others = [peer_of(sim, f"on{number}") for number in range(300)]
        big = letter("amy", "*", "b1", json.dumps("x" * 1_000_000))
        send(amy, big)
        assert dropped(sim) == {"broadcast_budget": 1} and len(sim.broker.topics) == 0
        send(amy, letter("amy", "*", "b2"))
        assert sim.broker.peers.sent == len(others), "a small one still goes"


class TestAcknowledgements:
    def test_nobody_else_can_settle_a_message(self) -> None:
        """S10: the key of another recipient settles nothing, whether it is a direct message or a copy."""
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        eve = peer_of(sim, "eve", "ben-token")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "*", "b1"))
        assert delivered(bob) == ["m1", "b1|bob"]
        ack(eve, "m1", "b1|bob", "b1")
        ack(amy, "m1", "b1|bob")
        bob.close()
        assert keys_of(register(sim, "bob")[1]) == ["m1", "b1|bob"]
        eve.close()
        assert keys_of(register(sim, "eve", "ben-token")[1]) == ["b1|eve"]


class TestRights:
    def test_a_revoked_token_ends_the_connection_and_what_it_sends(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob", "ben-token")
        sim.broker.set_credentials([Credential("ben", hash_secret(b"ben-token"))])
        send(amy, letter("amy", "bob", "m1"))
        assert how_closed(amy) == (1008, "token revoked") and bob.take() == b""

    def test_who_may_not_write_to_a_mailbox_does_not(self) -> None:
        sim = broker()
        secret = hash_secret(b"ann-token")
        ben = Credential("ben", hash_secret(b"ben-token"))
        sim.broker.set_credentials([Credential("ann", secret, publish=("peerbus/b*",), subscribe=("*",)), ben])
        amy, bob, cat = peer_of(sim, "amy"), peer_of(sim, "bob"), peer_of(sim, "cat")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "cat", "m2"), letter("amy", "*", "b1"))
        assert delivered(bob) == ["m1", "b1|bob"] and cat.take() == b""
        assert dropped(sim) == {"forbidden": 2}
        sim.broker.set_credentials([Credential("ann", secret, publish=(), subscribe=("*",)), ben])
        send(amy, letter("amy", "bob", "m3"))
        assert bob.take() == b"" and dropped(sim) == {"forbidden": 3}
        sim.broker.set_credentials([Credential("ann", secret, publish=(), subscribe=("peerbus/b*",)), ben])
        assert amy.exchange(wire.ask_peers() + b"\n") == b""
        assert how_closed(amy) == (1008, "name not allowed for this token")

    def test_a_name_without_the_right_to_read_its_mailbox_is_refused(self) -> None:
        sim = broker()
        sim.broker.set_credentials([Credential("ann", hash_secret(b"ann-token"), subscribe=("peerbus/a*",))])
        peer = connect(sim)
        peer.exchange(wire.register("ann-token", "bob") + b"\n")
        assert how_closed(peer) == (1008, "name not allowed for this token") and len(sim.broker.peers) == 0


class TestLaws(DoorLaws):
    """What amy gets, and bob behind it: she is no recipient of her own, whose copy may come before or behind a reply."""

    def run(self, chunks: list[int]) -> tuple[bytes, str | None]:
        sim = broker()
        bob, amy = peer_of(sim, "bob"), connect(sim)
        amy.feed(self.script(), chunks)
        sim.scheduler.run_until_idle()
        return amy.take() + bob.take(), amy.session.closing

    def script(self) -> bytes:
        lines = (
            wire.register("ann-token", "amy"), letter("amy", "bob", "m1"), b"", wire.ack("m0"), letter("amy", "*", "b1"),
            wire.ask_peers(), b"[]", wire.register("ann-token", "amy"), wire.ask_peers(),
        )  # fmt: skip
        return b"".join(line + b"\n" for line in lines)


@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 400), max_size=40))
def test_every_chunking_gives_the_same_output(cuts: list[int]) -> None:
    def run(sizes: list[int] | None) -> tuple[bytes, bytes]:
        sim = broker()
        bob = peer_of(sim, "bob")
        amy = connect(sim)
        script = [
            wire.register("ann-token", "amy"),
            letter("amy", "bob", "m1"),
            b"",
            letter("amy", "amy", "m2"),
            wire.ack("m2"),
            b"not an object",
            wire.ask_peers(),
        ]
        amy.feed(b"".join(line + b"\n" for line in script), sizes)
        sim.scheduler.run_until_idle()
        return amy.take(), bob.take()

    whole, cut = run(None), run(cuts)
    assert sorted(cut[0].splitlines()) == sorted(whole[0].splitlines()), (
        "its own copy may come before or behind a reply"
    )
    assert cut[1] == whole[1]


def test_a_slow_disk_holds_senders_back() -> None:
    sim = broker()
    amy = peer_of(sim, "amy")
    assert not amy.session.congestion()
    sim.broker.overloaded = lambda: True  # type: ignore[method-assign]
    assert amy.session.congestion() == WAIT


def test_what_has_no_end_of_line_is_not_looked_at_again() -> None:
    """A byte at a time must not cost a look at all that came before."""
    sim = broker()
    amy = peer_of(sim, "amy")
    session = session_of(amy)
    ask = wire.ask_peers()
    for size in range(1, len(ask) + 1):
        assert session.receive(memoryview(ask[:size]), sim.scheduler.now()) == 0
        assert session._scanned == size
    assert session.receive(memoryview(ask + b"\n" + ask), sim.scheduler.now()) == len(ask) + 1
    assert session._scanned == len(ask)
    assert [found["type"] for found in objects(b"".join(session.take_output()))] == ["peers"]
