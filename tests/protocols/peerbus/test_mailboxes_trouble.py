"""Mailboxes under what a hostile or unlucky peer, another door, a clock or a disk does to them."""

import json

import pytest

from quintet import kernel
from quintet.broker.doors import peers as registry
from quintet.broker.doors.peers import PRUNE_EVERY_US
from quintet.broker.doors.seen_ids import SEEN_KEY_MAX, Seen
from quintet.model import envelope
from quintet.model.batch import RecordBatch
from quintet.model.tasks import start
from quintet.protocols.peerbus import frames, session
from quintet.protocols.peerbus.mapping import body_of
from quintet.testing.line import SimBroker
from tests.protocols.peerbus.helpers import (
    SECRET,
    ack,
    broker,
    connect,
    delivered,
    dropped,
    keys_of,
    letter,
    objects,
    peer_of,
    register,
    send,
    session_of,
)
from tests.wire import peerbus as wire

SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US
DAY_US = 24 * HOUR_US


def publish(sim: SimBroker, value: bytes, *, durable: bool = True, timestamp: int | None = None) -> None:
    """What another door does: one record into bob's mailbox."""
    times = None if timestamp is None else [timestamp]
    batch = kernel.build([value], timestamps=times, origin=b"flymq:zed")
    sim.broker.topics.ensure(b"peerbus/bob", durable=durable).publish(batch, 1, durable, None)
    sim.scheduler.run_until_idle()
    sim.advance(100_000)


class TestOrder:
    def test_what_was_sent_ahead_and_what_was_not_come_again_in_order(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        for number in range(6):
            send(amy, letter("amy", "bob", f"m{number}"))
        peer_of(sim, "bob").close()  # all of them are due again
        half = connect(sim)
        half.room_bytes = 0
        half.feed(wire.register("ann-token", "bob") + b"\n")
        half.room_bytes = 1
        take = half.records

        def take_one(subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
            half.room_bytes = 0
            take(subscription, partition, batch, first, last)

        half.records = take_one  # type: ignore[method-assign]
        half.unpark()
        sim.scheduler.run_until_idle()
        half.close()  # it had the first, the others were still waiting for room
        assert keys_of(register(sim, "bob")[1]) == [f"m{number}" for number in range(6)]


class TestOtherDoors:
    def test_an_envelope_is_durable_whoever_made_the_mailbox(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        publish(sim, b"at most once", durable=False)
        send(amy, letter("amy", "bob", "m1"))
        assert "m1" in delivered(bob)
        sim.disk.kill()
        sim.start()
        assert "m1" in keys_of(register(sim, "bob")[1])

    @pytest.mark.parametrize("timestamp", [2**62, -(2**62)])
    def test_a_time_nobody_can_write_does_not_stop_the_mailbox(self, timestamp: int) -> None:
        sim = broker()
        bob = peer_of(sim, "bob")
        publish(sim, b"1", timestamp=timestamp)
        publish(sim, b"2")
        assert [one["envelope"]["body"] for one in objects(bob.take())] == [1, 2]

    def test_text_of_quotes_is_read_in_one_go(self) -> None:
        """Each step of the old way doubled the time four times: this many would take hours."""
        text = '\\"' * 200_000
        assert json.loads(body_of(text.encode())) == text

    def test_what_no_peer_can_read_is_told_and_not_sent(self) -> None:
        sim = broker(secret=SECRET)
        bob = peer_of(sim, "bob")
        bob.room_bytes = 1 << 30
        publish(sim, b"x" * frames.FRAME_BYTES_MAX)
        publish(sim, b"\x01" * (frames.FRAME_BYTES_MAX // 2))  # six times as long as JSON
        publish(sim, b'"after"')
        lines = bob.take().splitlines()
        assert all(len(line) <= frames.FRAME_BYTES_MAX for line in lines)
        bodies = [json.loads(line)["envelope"]["body"] for line in lines]
        place = {"topic": "peerbus/bob", "partition": 0}
        assert bodies == [
            {"too_large": place | {"offset": 0, "bytes": 1 << 20}},
            {"too_large": place | {"offset": 1, "bytes": 1 << 19}},
            "after",
        ]

    def test_a_topic_that_comes_when_another_goes_is_found(self) -> None:
        sim = broker()
        bob = peer_of(sim, "bob")
        sim.broker.topics.ensure(b"other", durable=True)
        sim.scheduler.run_until_idle()
        sim.advance(100_000)
        start(sim.broker.delete_topic(b"other"))
        publish(sim, b"1")
        identity = sim.broker.topics.find(b"peerbus/bob").spec.identity
        assert keys_of(objects(bob.take())) == [f"q:{identity}:0:0"]

    def test_nothing_from_before_there_was_such_a_peer_after_a_kill_either(self) -> None:
        sim = broker()
        publish(sim, b"not for the one who comes later")
        peer_of(sim, "bob")
        sim.broker.subscriptions._table.delete(b"1")  # the row that did not reach the disk
        sim.scheduler.run_until_idle()
        sim.disk.kill()
        sim.scheduler.advance(SECOND_US)
        sim.start()
        bob, waiting = register(sim, "bob")
        sim.advance(100_000)
        publish(sim, b'"for him"')
        assert waiting == [] and [one["envelope"]["body"] for one in objects(bob.take())] == ["for him"]

    def test_no_room_for_a_subscription_does_not_show_what_was_there_before(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sim = broker()
        publish(sim, b"not for the one who comes later")
        monkeypatch.setattr(sim.broker.subscriptions, "_max", 0)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        monkeypatch.setattr(sim.broker.subscriptions, "_max", 10)
        sim.scheduler.advance(SECOND_US)
        send(amy, letter("amy", "bob", "m1"))
        assert delivered(bob) == ["m1"]


class TestEnvelopes:
    def test_what_no_peer_could_read_with_its_frame_around_it_is_not_taken(self) -> None:
        """A published client ends the connection at 1 MiB: one such letter, delivered again and again, is the end of it."""
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        bob.room_bytes = 1 << 30
        empty = letter("amy", "bob", '"' * 256, '""')
        limit = frames.FRAME_BYTES_MAX - frames.DELIVER_BYTES_MAX
        send(amy, letter("amy", "bob", '"' * 256, json.dumps("x" * (limit - len(empty)))))
        (line,) = bob.take().splitlines()
        assert len(line) <= frames.FRAME_BYTES_MAX
        send(amy, letter("amy", "bob", "\\" * 256, json.dumps("x" * (limit - len(empty) + 1))))
        assert bob.take() == b"" and dropped(sim) == {"bad_envelope": 1}


class TestReplay:
    def test_one_that_is_dated_ahead_is_known_as_long_as_it_is_fresh(self) -> None:
        window = 600 * SECOND_US
        sim = broker(secret=SECRET, verify=True, replay_window_seconds=window // 1_000_000)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        ahead = envelope.rfc3339(sim.scheduler.now() + window - SECOND_US)
        send(amy, letter("amy", "bob", "m1", secret=SECRET, ts=ahead))
        ack(bob, "m1")
        assert delivered(bob) == ["m1"]
        for part in range(1, 20):
            sim.scheduler.advance(window // 10)
            now = envelope.rfc3339(sim.scheduler.now())
            send(amy, letter("amy", "bob", f"n{part}", secret=SECRET, ts=now))  # time goes by with messages
            send(amy, letter("amy", "bob", "m1", secret=SECRET, ts=ahead))
        assert "m1" not in delivered(bob)
        sim.restart()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1", secret=SECRET, ts=ahead))
        assert "m1" not in delivered(bob)

    def test_a_window_that_grows_with_a_new_configuration_counts_for_ids_too(self) -> None:
        seen = Seen(window_us=100, ids_max=1_000)
        assert seen.add("p", "a", 1_000)
        seen.resize(window_us=10_000, ids_max=1_000)
        assert not seen.add("p", "a", 10_500)

    def test_long_ids_cost_no_more_than_short_ones(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob")
        long = "x" * 256
        send(amy, letter("amy", "bob", long), letter("amy", "bob", long), letter("amy", "bob", "y" + long[1:]))
        assert dropped(sim) == {"duplicate": 1}
        kept = sim.broker.peers._seen
        assert max(len(key) for key in kept._young) <= SEEN_KEY_MAX


class TestLimits:
    def test_one_message_that_is_never_acknowledged_does_not_fill_a_mailbox(self) -> None:
        sim = broker(mailbox_bytes_max=100_000)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "forged"))  # a client drops what it cannot verify, and must not acknowledge it
        delivered(bob)
        for number in range(100):
            send(amy, letter("amy", "bob", f"m{number}", json.dumps("x" * 3_000)))
            ack(bob, f"m{number}")
            sim.advance(150_000)
        assert dropped(sim) == {}
        assert delivered(bob) == [f"m{number}" for number in range(100)]

    def test_many_questions_do_not_make_many_answers_at_once(self) -> None:
        sim = broker()
        asker = peer_of(sim, "asker")
        for number in range(200):
            peer_of(sim, f"{number:03d}" + "n" * 197)
        size = len(wire.peers(sim.broker.peers.names()))
        asker.room_bytes = 0
        asker.feed((wire.ask_peers() + b"\n") * 1_000)
        assert len(asker.output) <= session.REPLIES_BYTES_MAX + size
        answered = 0
        while asker.output:
            answered += len(objects(asker.take()))
            asker.room_bytes = 1
            asker._offer() if asker._rest else None
            asker.room_bytes = 0
        assert answered == 1_000, "and none is forgotten"

    def test_many_questions_behind_a_slow_disk_do_not_either(self) -> None:
        sim = broker()
        asker = peer_of(sim, "asker")
        for number in range(200):
            peer_of(sim, f"{number:03d}" + "n" * 197)
        send(asker, letter("asker", "asker", "m0"))
        asker.take()
        size = len(wire.peers(sim.broker.peers.names()))
        sim.scheduler.held = True
        asker.feed(letter("asker", "asker", "m1") + b"\n" + (wire.ask_peers() + b"\n") * 1_000)
        sim.scheduler.run_until_idle()
        assert session_of(asker).holding and session_of(asker)._asked * size <= session.REPLIES_BYTES_MAX + size
        sim.scheduler.held = False
        sim.scheduler.run_until_idle()
        assert sum(one["type"] == "peers" for one in objects(asker.take())) == 1_000

    def test_a_broadcast_over_its_budget_costs_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        for number in range(20):
            peer_of(sim, f"p{number}")
        monkeypatch.setattr(registry, "BROADCAST_BURST_BYTES", 1_000)
        asked: list[object] = []
        monkeypatch.setattr(sim.broker.access, "allowed", lambda *which: asked.append(which))
        send(amy, letter("amy", "*", "b1"))
        assert dropped(sim) == {"broadcast_budget": 1} and asked == []

    def test_a_mailbox_that_could_not_be_opened_is_opened_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        monkeypatch.setattr(sim.broker.subscriptions, "_max", 0)
        send(amy, letter("amy", "bob", "m1"))
        assert delivered(bob) == []
        monkeypatch.setattr(sim.broker.subscriptions, "_max", 10)
        sim.advance(PRUNE_EVERY_US + 50_000)
        assert delivered(bob) == ["m1"]


class TestClock:
    """The clock is set back by a day."""

    def back(self, sim: SimBroker) -> None:
        sim.scheduler.jump(-DAY_US)

    def test_takeovers_go_on(self) -> None:
        sim = broker()
        for _ in range(3):
            peer_of(sim, "bob")
        self.back(sim)
        for _ in range(12):
            peer_of(sim, "bob").close()
            sim.scheduler.advance(11 * SECOND_US)
            peer_of(sim, "bob")
            peer_of(sim, "bob")

    def test_broadcasts_go_on(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "*", "b1"))
        self.back(sim)
        send(amy, letter("amy", "*", "b2"))
        assert delivered(bob) == ["b1|bob", "b2|bob"]

    def test_a_mailbox_that_was_full_is_looked_at_again(self) -> None:
        sim = broker(mailbox_messages_max=1)
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "bob", "m2"))
        self.back(sim)
        ack(bob, "m1")
        sim.advance(200_000)
        send(amy, letter("amy", "bob", "m3"))
        assert delivered(bob) == ["m1", "m3"]

    def test_acknowledgements_are_saved(self) -> None:
        sim = broker()
        amy, bob = peer_of(sim, "amy"), peer_of(sim, "bob")
        send(amy, letter("amy", "bob", "m1"), letter("amy", "bob", "m2"))
        sim.advance(SECOND_US)
        self.back(sim)
        sim.advance(SECOND_US)
        ack(bob, "m1")
        sim.advance(2 * SECOND_US)
        sim.disk.kill()
        sim.start()
        assert keys_of(register(sim, "bob")[1]) == ["m2"]


class TestNames:
    def test_a_name_that_was_connected_all_the_time_is_not_idle_after_a_kill(self) -> None:
        sim = broker(name_idle_seconds=30 * 86_400)
        peer_of(sim, "bob")
        for _ in range(31):
            sim.scheduler.advance(DAY_US)
            sim.advance(PRUNE_EVERY_US + 50_000, step_us=PRUNE_EVERY_US // 2)
        sim.disk.kill()
        sim.start()
        sim.advance(PRUNE_EVERY_US + 50_000)
        assert sim.broker.peers.find("bob") is not None

    def test_a_subscription_without_a_name_goes_with_the_next_start(self) -> None:
        sim = broker()
        amy = peer_of(sim, "amy")
        peer_of(sim, "bob").close()
        send(amy, letter("amy", "bob", "m1"))
        sim.broker.peers._table.delete(b"bob")  # the power went before the other row was there, too
        sim.scheduler.run_until_idle()
        sim.disk.kill()
        sim.start()
        sim.advance(SECOND_US)
        assert sim.broker.peers.find("bob") is None and len(sim.broker.subscriptions) == 0
        bob, waiting = register(sim, "bob", "ben-token")
        send(peer_of(sim, "amy"), letter("amy", "bob", "m2"))
        assert waiting == [] and delivered(bob) == ["m2"]

    def test_a_broker_that_was_away_gives_its_peers_time_to_come_back(self) -> None:
        sim = broker(name_idle_seconds=30 * 86_400)
        peer_of(sim, "bob").close()
        sim.stop()
        sim.scheduler.advance(40 * DAY_US)
        sim.start()
        sim.advance(PRUNE_EVERY_US + 50_000)
        assert sim.broker.peers.find("bob") is not None
        sim.scheduler.advance(2 * DAY_US)
        sim.advance(PRUNE_EVERY_US + 50_000)
        assert sim.broker.peers.find("bob") is None
