"""Queues behind the Fast door: keys, numbers, flags, backlog, competing members, rotation, expiry, restarts."""

import os
from hashlib import sha256

import pytest

from quintet.broker.consumers.subscriptions import KEPT_OWNER
from quintet.broker.doors.queues import Queues
from quintet.broker.identity.access import Acl
from quintet.broker.sections import QueueSection
from quintet.model.tasks import start
from quintet.protocols.fast import errors
from quintet.protocols.fast.frames import COMPETING, DURABLE, EXCLUSIVE, SUBSCRIBE, TTL
from quintet.protocols.fast.mapping import topic_id
from tests.protocols.fast.helpers import DEMO, SECOND, FastPeer, FastSim, Reply, collisions, publish, token
from tests.wire import fast as wire

ANN = token()
LONG = "QUINTET_TEST_LONG"  # set: a million guesses
GRACE = 60 * SECOND


@pytest.fixture
def sim() -> FastSim:
    return FastSim()


def reader(sim: FastSim, jwt: bytes = ANN, topic: int = DEMO) -> FastPeer:
    return sim.peer(wire.subscribe(jwt, topic))


# -- making -------------------------------------------------------------------------------------------------------------


def test_create_is_idempotent_and_cannot_take_a_topic_over(sim: FastSim) -> None:
    peer = sim.peer(extended=True)
    assert peer.ask(wire.create(ANN, b"demo", DURABLE))[0].code == 0
    assert peer.ask(wire.create(token("bob"), b"demo", 0))[0].code == 0, "the same key, whoever holds it"
    assert peer.ask(wire.create(token(key="mine"), b"demo", DURABLE))[0].code == errors.KEY
    assert peer.ask(publish(token(key="mine"), b"x"))[0].code == errors.KEY
    assert sim.broker.topics.find(b"demo").spec.durability == "fsync", "the flags of the first CREATE stay"


def test_the_key_is_kept_as_a_hash_only(sim: FastSim) -> None:
    sim.peer(wire.create(token(key="very-secret-key"), b"demo", DURABLE))
    sim.stop()
    files = [data for data in sim.disk.snapshot().values() if data]
    assert any(sha256(b"very-secret-key").hexdigest().encode() in data for data in files)
    assert not any(b"very-secret-key" in data for data in files)


@pytest.mark.parametrize("flags", [DURABLE, DURABLE | EXCLUSIVE | COMPETING | TTL, DURABLE | 0xF0])
def test_a_durable_queue_with_its_key_survives_a_restart(sim: FastSim, flags: int) -> None:
    sim.peer(wire.create(ANN, b"demo", flags), publish(ANN, b"kept"))
    sim.restart()
    peer = sim.peer(extended=True)
    assert peer.ask(publish(token(key="no"), b"x"))[0].code == errors.KEY
    assert peer.ask(wire.subscribe(ANN, DEMO))[0].code == 0
    assert peer.got() == [b"kept"]
    spec = sim.broker.topics.find(b"demo").spec
    assert spec.extra["fast.flags"] == str(flags & 0x0F), "bits that mean nothing are not kept"


def test_a_queue_in_memory_is_gone_with_the_broker(sim: FastSim) -> None:
    sim.peer(wire.create(ANN, b"demo"))
    sim.restart()
    peer = sim.peer(extended=True)
    assert peer.ask(publish(ANN, b"x"))[0].code == errors.NO_TOPIC
    assert peer.ask(wire.create(token(key="another"), b"demo"))[0].code == 0


def test_a_create_that_the_power_cut_took_was_not_confirmed(sim: FastSim) -> None:
    peer = sim.peer(extended=True)
    sim.scheduler.held = True
    peer.feed(wire.create(ANN, b"demo", DURABLE))
    sim.scheduler.turn()
    peer.look()
    assert peer.replies == []
    sim.scheduler.held = False
    assert peer.ask(b"")[0].code == 0


@pytest.mark.parametrize("durable", [True, False])
def test_a_topic_of_another_door_gets_a_key(sim: FastSim, durable: bool) -> None:
    topic = sim.broker.topics.ensure(b"demo", durable)
    sim.scheduler.run_until_idle()
    sim.broker.access.set_acl(Acl("demo", users=("ann",)))
    peer = sim.peer(extended=True)
    assert peer.ask(publish(ANN, b"x"))[0].code == errors.NO_TOPIC, "there is no key yet, so nobody holds it"
    assert peer.ask(wire.create(token("eve"), b"demo"))[0].code == errors.FORBIDDEN
    assert peer.ask(wire.create(ANN, b"demo", DURABLE))[0].code == 0
    assert peer.ask(publish(ANN, b"x"))[0].code == 0
    assert sim.broker.topics.find(b"demo") is topic
    sim.restart()
    sim.broker.access.set_acl(Acl("demo", users=("ann",)))
    assert sim.peer(extended=True).ask(publish(ANN, b"x"))[0].code == 0


def test_a_deleted_topic_is_no_queue_any_more(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE), wire.subscribe(ANN, DEMO), extended=True)
    peer.look()
    peer.replies.clear()
    start(sim.broker.delete_topic(b"demo"))
    sim.advance(SECOND)
    peer.look()
    assert [r for r in peer.replies if r.code] == [Reply(SUBSCRIBE, DEMO, errors.ENDED)]
    assert len(sim.broker.queues) == 0
    assert not [s for s in sim.broker.subscriptions.all() if s.owner == KEPT_OWNER]
    assert peer.ask(publish(ANN, b"x"))[-1].code == errors.NO_TOPIC
    assert peer.ask(wire.create(token(key="new"), b"demo", DURABLE))[0].code == 0
    sim.restart()
    assert len(sim.broker.queues) == 1


# -- numbers that collide (A14) -----------------------------------------------------------------------------------------


def test_two_names_with_one_number_are_never_one_topic() -> None:
    """1,000 pairs: the second name is refused, nothing of one is seen by the other; without the check it would be."""
    sim = FastSim(auth_failures_max=0)
    ann, eve = token("ann", "k1"), token("eve", "k2")
    owner, thief = sim.peer(extended=True), sim.peer(extended=True)
    for number, one, other in collisions():
        assert [r.code for r in owner.ask(wire.create(ann, one) + wire.subscribe(ann, number))] == [0, 0]
        assert thief.ask(wire.create(eve, other))[0].code == errors.TAKEN
        assert thief.ask(wire.create(ann, other))[0].code == errors.TAKEN, "not with the right key either"
        assert thief.ask(wire.subscribe(eve, number))[0].code == errors.KEY
        assert thief.ask(publish(eve, b"forged", topic=number))[0].code == errors.KEY
        owner.ask(publish(ann, b"mine", topic=number))
        assert owner.got(number) == [b"mine"]
        assert owner.ask(wire.unsubscribe(ann, number))[0].code == 0
        assert sim.broker.topics.get(other) is None
    assert thief.values == []


def test_the_collision_check_is_what_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a broker that compares keys only would merge two names."""
    monkeypatch.setattr(Queues, "_same", lambda self, queue, bearer, raw: None)
    number, one, other = collisions()[0]
    sim = FastSim()
    peer = sim.peer(wire.create(ANN, one), extended=True)
    assert peer.ask(wire.create(ANN, other))[0].code == 0
    assert peer.ask(publish(ANN, b"for the other", topic=number))[0].code == 0
    assert sim.broker.topics.find(one).published == 1


def test_topics_of_other_doors_may_share_a_number(sim: FastSim) -> None:
    number, one, other = collisions()[0]
    sim.broker.topics.ensure(one, durable=False)
    sim.broker.topics.ensure(other, durable=False)
    peer = sim.peer(wire.create(ANN, other), extended=True)
    assert peer.ask(publish(ANN, b"x", topic=number))[0].code == 0
    assert sim.broker.topics.find(other).published == 1
    assert sim.broker.topics.find(one).published == 0
    assert peer.ask(wire.create(ANN, one))[0].code == errors.TAKEN


# -- backlog ------------------------------------------------------------------------------------------------------------


def test_without_a_subscriber_a_message_is_kept_if_the_queue_is_durable(sim: FastSim) -> None:
    for name, flags, expected in ((b"demo", DURABLE, [b"early", b"late"]), (b"other", 0, [b"late"])):
        number = topic_id(name)
        peer = sim.peer(wire.create(ANN, name, flags), publish(ANN, b"early", topic=number))
        late = reader(sim, topic=number)
        peer.exchange(publish(ANN, b"late", topic=number))
        assert late.got(number) == expected


def test_only_the_first_subscriber_gets_the_backlog_and_all_get_the_rest(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE), publish(ANN, b"1", b"2"))
    first, second = reader(sim), reader(sim)
    peer.exchange(publish(ANN, b"3"))
    assert first.got() == [b"1", b"2", b"3"]
    assert second.got() == [b"3"]


def test_the_backlog_goes_on_where_the_last_subscriber_was(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE))
    first, second = reader(sim), reader(sim)
    peer.exchange(publish(ANN, b"1"))
    first.close()
    assert sim.broker.queues.promoted == 1
    peer.exchange(publish(ANN, b"2"))
    assert second.got() == [b"1", b"2"], "the successor gets each once"
    second.exchange(wire.unsubscribe(ANN, DEMO))
    peer.exchange(publish(ANN, b"3"))
    assert second.got() == []
    third = reader(sim)
    assert third.got() == [b"3"]


def test_the_successor_goes_on_where_it_was_also_from_behind(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE))
    fast, slow = reader(sim), reader(sim)
    slow.room_bytes = 0
    peer.exchange(publish(ANN, b"1", b"2"))
    fast.close()
    slow.room_bytes = 1 << 20
    slow.unpark()
    assert slow.got() == [b"1", b"2"]


def test_the_place_in_the_backlog_survives_a_restart(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE))
    listener = reader(sim)
    peer.exchange(publish(ANN, b"1", b"2"))
    assert listener.got() == [b"1", b"2"]
    listener.close()
    peer.exchange(publish(ANN, b"3"))
    sim.restart()
    assert reader(sim).got() == [b"3"]


def test_a_backlog_outlives_the_idle_time_of_subscriptions() -> None:
    sim = FastSim()
    sim.peer(wire.create(ANN, b"demo", DURABLE), publish(ANN, b"kept"))
    sim.advance(90 * 24 * 3600 * SECOND, step_us=24 * 3600 * SECOND)
    assert reader(sim).got() == [b"kept"]


def test_rows_that_a_crash_tore_apart_are_put_right(sim: FastSim) -> None:
    """A backlog without its queue goes; a queue without its backlog gets one that misses nothing."""
    sim.peer(wire.create(ANN, b"demo", DURABLE), publish(ANN, b"confirmed"))
    for subscription in sim.broker.subscriptions.all():
        sim.broker.subscriptions.remove(subscription)
    plain = sim.broker.topics.ensure(b"plain", durable=True)
    sim.scheduler.run_until_idle()
    sim.broker.subscriptions.create(KEPT_OWNER, plain, 0, door="blipmq")
    sim.restart()
    assert [s.topic_name for s in sim.broker.subscriptions.all()] == [b"demo"]
    assert reader(sim).got() == [b"confirmed"]


# -- exclusive, TTL, competing ------------------------------------------------------------------------------------------


def test_an_exclusive_queue_has_one_subscriber_at_a_time(sim: FastSim) -> None:
    sim.peer(wire.create(ANN, b"demo", EXCLUSIVE))
    one, two = sim.peer(extended=True), sim.peer(extended=True)
    assert one.ask(wire.subscribe(ANN, DEMO))[0].code == 0
    assert one.ask(wire.subscribe(ANN, DEMO))[0].code == 0, "its own place"
    assert two.ask(wire.subscribe(ANN, DEMO))[0].code == errors.TAKEN
    one.close()
    assert two.ask(wire.subscribe(ANN, DEMO))[0].code == 0


def test_messages_of_a_ttl_queue_expire() -> None:
    sim = FastSim(QueueSection(ttl_seconds=10))
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE | TTL), publish(ANN, b"stale"))
    sim.advance(11 * SECOND, step_us=SECOND)
    peer.exchange(publish(ANN, b"fresh"))
    assert reader(sim).got() == [b"fresh"]


@pytest.mark.parametrize("flags", [COMPETING, COMPETING | DURABLE])
def test_competing_subscribers_share_the_messages(sim: FastSim, flags: int) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", flags))
    readers = [reader(sim) for _ in range(3)]
    values = [b"%d" % n for n in range(30)]
    for at in range(0, 30, 10):
        peer.exchange(publish(ANN, *values[at : at + 10]))
    shares = [one.got() for one in readers]
    assert sorted(value for share in shares for value in share) == sorted(values), "each exactly once"
    assert sorted(map(len, shares)) == [10, 10, 10]
    for share in shares:
        assert share == sorted(share, key=int), "in order for each"


def test_fan_out_is_the_control_of_competing(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"))
    readers = [reader(sim) for _ in range(3)]
    peer.exchange(publish(ANN, b"x", b"y"))
    assert [one.got() for one in readers] == [[b"x", b"y"]] * 3


def test_a_competitor_without_room_is_passed_over_and_all_full_waits(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", COMPETING | DURABLE))
    slow, quick = reader(sim), reader(sim)
    slow.room_bytes = 0
    peer.exchange(publish(ANN, b"1", b"2"))
    assert quick.got() == [b"1", b"2"]
    quick.room_bytes = 0
    for value in (b"3", b"4", b"5"):
        peer.exchange(publish(ANN, value))
    assert (slow.got(), quick.got()) == ([], [])
    assert len(slow.parked) <= 1, "who is full is asked once, however often there is something new"
    slow.room_bytes = 1 << 20
    slow.unpark()
    assert slow.got() == [b"3", b"4", b"5"]
    assert quick.got() == []


def test_competitors_come_and_go(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", COMPETING | DURABLE), publish(ANN, b"0"))
    one = reader(sim)
    assert one.got() == [b"0"], "the backlog"
    one.room_bytes = 0
    peer.exchange(publish(ANN, b"1"))
    two = reader(sim)
    assert two.got() == [b"1"], "a new member takes what the others cannot"
    two.close()
    one.close()
    peer.exchange(publish(ANN, b"2"))
    assert reader(sim).got() == [b"2"]


# -- rotation -----------------------------------------------------------------------------------------------------------


def test_a_rotated_key_works_at_once_and_the_old_one_does_not(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE), extended=True)
    fresh = token(key="k2")
    assert [r.code for r in peer.ask(wire.rotate_key(ANN, DEMO, b"k2") + publish(ANN, b"x") + publish(fresh, b"y"))] == [
        0, errors.KEY, 0,
    ]  # fmt: skip
    assert peer.ask(wire.rotate_key(ANN, DEMO, b"k3"))[0].code == errors.KEY
    sim.restart()
    peer = sim.peer(extended=True)
    assert peer.ask(publish(ANN, b"x"))[0].code == errors.KEY
    assert peer.ask(publish(fresh, b"x"))[0].code == 0


@pytest.mark.parametrize("key", [b"", b"k1", b"\xff\xfe"])
def test_keys_that_cannot_be(sim: FastSim, key: bytes) -> None:
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    assert peer.ask(wire.rotate_key(ANN, DEMO, key))[0].code == errors.BAD_REQUEST
    assert peer.ask(publish(ANN, b"x"))[0].code == 0


def test_who_does_not_come_back_with_the_new_key_is_evicted(sim: FastSim) -> None:
    owner = sim.peer(wire.create(ANN, b"demo", DURABLE))
    loyal, gone = sim.peer(extended=True), sim.peer(extended=True)
    for peer in (loyal, gone):
        peer.ask(wire.subscribe(token("bob"), DEMO))
    fresh = token(key="k2")
    owner.exchange(wire.rotate_key(ANN, DEMO, b"k2"))
    for peer in (loyal, gone):
        peer.look()
        assert peer.keys == [(DEMO, b"k2")]
    loyal.ask(wire.subscribe(token("bob", "k2"), DEMO))
    sim.advance(GRACE - SECOND, step_us=SECOND)
    owner.exchange(publish(fresh, b"in time"))
    assert (loyal.got(), gone.got()) == ([b"in time"], [b"in time"])
    sim.advance(2 * SECOND, step_us=SECOND)
    owner.exchange(publish(fresh, b"late"))
    assert (loyal.got(), gone.got()) == ([b"late"], [])
    assert gone.ask(b"") == [Reply(SUBSCRIBE, DEMO, errors.ENDED)]
    assert sim.broker.queues.evicted == 1
    assert gone.ask(wire.subscribe(token("bob", "k2"), DEMO)) == [Reply(SUBSCRIBE, DEMO, 0)]


def test_a_second_rotation_does_not_lengthen_the_grace_of_the_first(sim: FastSim) -> None:
    owner = sim.peer(wire.create(ANN, b"demo"))
    old = sim.peer(wire.subscribe(token("bob"), DEMO))
    owner.exchange(wire.rotate_key(ANN, DEMO, b"k2"))
    sim.advance(GRACE // 2, step_us=SECOND)
    owner.exchange(wire.rotate_key(token(key="k2"), DEMO, b"k3"))
    old.look()
    assert old.keys == [(DEMO, b"k2")], "the key of k3 is not told to who holds neither"
    sim.advance(GRACE // 2 + SECOND, step_us=SECOND)
    owner.exchange(publish(token(key="k3"), b"x"))
    assert old.got() == []


def test_keys_are_not_told_to_expired_tokens_nor_where_switched_off() -> None:
    for options, expiring, expected in (
        (QueueSection(key_updates=False), False, []),
        (QueueSection(expire_subscriptions=False), True, []),
        (QueueSection(), False, [(DEMO, b"k2")]),
    ):
        sim = FastSim(options)
        owner = sim.peer(wire.create(ANN, b"demo"))
        jwt = token("bob", exp=sim.now_s() + 1) if expiring else token("bob")
        peer = sim.peer(wire.subscribe(jwt, DEMO))
        sim.advance(70 * SECOND, step_us=SECOND)
        owner.exchange(wire.rotate_key(ANN, DEMO, b"k2"))
        peer.look()
        assert peer.keys == expected


def test_the_key_is_told_when_it_is_durable(sim: FastSim) -> None:
    owner = sim.peer(wire.create(ANN, b"demo", DURABLE), wire.subscribe(ANN, DEMO))
    sim.scheduler.held = True
    owner.feed(wire.rotate_key(ANN, DEMO, b"k2"))
    sim.scheduler.turn()
    assert owner.take() == b""
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert owner.take() == wire.key_update(DEMO, b"k2")


def test_one_rotation_at_a_time(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE), extended=True)
    sim.scheduler.held = True
    peer.feed(wire.rotate_key(ANN, DEMO, b"k2") + wire.rotate_key(token(key="k2"), DEMO, b"k3"))
    sim.scheduler.turn()
    sim.scheduler.held = False
    assert [r.code for r in peer.ask(b"")] == [0, errors.UNAVAILABLE]
    assert peer.ask(wire.rotate_key(token(key="k2"), DEMO, b"k3"))[0].code == 0


# -- what ends a subscription -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expires", [True, False])
def test_deliveries_stop_with_the_token(expires: bool) -> None:
    sim = FastSim(QueueSection(expire_subscriptions=expires))
    owner = sim.peer(wire.create(ANN, b"demo"))
    short, renewed = sim.peer(), sim.peer()
    for peer in (short, renewed):
        peer.exchange(wire.subscribe(token("bob", exp=sim.now_s() + 5), DEMO))
    sim.advance(60 * SECOND, step_us=SECOND)
    renewed.exchange(wire.subscribe(token("bob", exp=sim.now_s() + 500), DEMO))
    owner.exchange(publish(ANN, b"1"))
    assert (short.got(), renewed.got()) == ([b"1"], [b"1"])
    sim.advance(6 * SECOND, step_us=SECOND)
    owner.exchange(publish(ANN, b"2"))
    assert short.got() == ([] if expires else [b"2"])
    assert renewed.got() == [b"2"]
    sim.broker.access.look_again()
    sim.advance(SECOND)
    owner.exchange(publish(ANN, b"3"))
    assert short.got() == ([] if expires else [b"3"])


def test_a_user_that_is_disabled_gets_nothing_more(sim: FastSim) -> None:
    owner = sim.peer(wire.create(ANN, b"demo"))
    sim.broker.access.set_user("bob", 1, ("consumer",))
    bob, eve = reader(sim, token("bob")), reader(sim, token("eve"))
    owner.exchange(publish(ANN, b"1"))
    assert (bob.got(), eve.got()) == ([b"1"], [b"1"])
    sim.broker.access.set_user("bob", 2, ("guest",))
    sim.advance(SECOND)
    owner.exchange(publish(ANN, b"2"))
    assert (bob.got(), eve.got()) == ([], [b"2"])
    sim.broker.access.set_acl(Acl("demo", users=("ann",)))
    sim.advance(SECOND)
    owner.exchange(publish(ANN, b"3"))
    assert eve.got() == []


def test_a_secret_that_is_taken_back_ends_what_it_signed(sim: FastSim) -> None:
    from quintet.broker.identity.tokens import TokenOptions
    from tests.protocols.fast.helpers import SECRET

    new = b"the next master secret of 32 bytes and more"
    sim.broker.set_tokens(TokenOptions(secrets=(new, SECRET)))
    fresh = token("ann", secret=new)
    owner = sim.peer(wire.create(fresh, b"demo"))
    old, kept = reader(sim, token("bob")), reader(sim, token("bob", secret=new))
    owner.exchange(publish(fresh, b"overlap"))
    assert (old.got(), kept.got()) == ([b"overlap"], [b"overlap"])
    sim.broker.set_tokens(TokenOptions(secrets=(new,)))
    sim.advance(SECOND)
    owner.exchange(publish(fresh, b"after"))
    assert (old.got(), kept.got()) == ([], [b"after"])


def test_who_comes_and_goes_all_day_leaves_nothing_behind(sim: FastSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.broker.doors.queues.STALE_MAX", 20)
    jwt = token(exp=sim.now_s() + 10**6)
    peer = sim.peer(wire.create(jwt, b"demo"))
    for _ in range(500):
        peer.exchange(wire.subscribe(jwt, DEMO) + wire.unsubscribe(jwt, DEMO))
    assert len(sim.broker.queues._deadlines) <= 22
    assert len(sim.broker.subscriptions) == 0
    assert not sim.broker.topics.find(b"demo").subscriptions


def test_no_more_subscriptions_than_the_broker_allows(sim: FastSim) -> None:
    sim.broker.subscriptions._max = 1
    sim.peer(wire.create(ANN, b"demo"), wire.subscribe(ANN, DEMO))
    peer = sim.peer(extended=True)
    assert peer.ask(wire.subscribe(ANN, DEMO)) == [Reply(SUBSCRIBE, DEMO, errors.LIMIT)], "one answer, not two"
    assert sim.broker.queues.members == 1


def test_a_clock_that_jumps_ends_what_it_must_and_nothing_else(sim: FastSim) -> None:
    day = 24 * 3600 * SECOND
    owner = sim.peer(wire.create(ANN, b"demo"))
    forever, short = reader(sim, token("bob")), reader(sim, token("eve", exp=sim.now_s() + 3600))
    for jump, expected in ((-day, ([b"x"], [b"x"])), (2 * day, ([b"x"], []))):
        sim.scheduler.jump(jump)
        sim.broker.tick()
        assert owner.exchange(publish(ANN, b"x")) == b""
        assert (forever.got(), short.got()) == expected


# -- nothing of another connection (S10) --------------------------------------------------------------------------------


def test_nobody_ends_or_reads_the_subscription_of_another_connection(sim: FastSim) -> None:
    owner = sim.peer(wire.create(ANN, b"demo", DURABLE | EXCLUSIVE))
    victim = reader(sim)
    for jwt in (ANN, token("eve"), token("eve", "guess")):
        thief = sim.peer(wire.unsubscribe(jwt, DEMO), wire.subscribe(jwt, DEMO), wire.unsubscribe(jwt, DEMO))
        owner.exchange(publish(ANN, b"x"))
        assert thief.got() == []
        assert victim.got() == [b"x"]


def test_the_key_is_what_keeps_others_out(sim: FastSim, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with a comparison that is always true, a guess is as good as the key."""
    peer = sim.peer(wire.create(ANN, b"demo"), extended=True)
    jwt = token("eve", "guess")
    assert peer.ask(publish(jwt, b"x"))[0].code == errors.KEY
    monkeypatch.setattr("quintet.broker.doors.queues.hmac", AlwaysEqual)
    assert peer.ask(publish(jwt, b"x"))[0].code == 0


class AlwaysEqual:
    """The sabotaged comparison."""

    @staticmethod
    def compare_digest(_one: bytes, _other: bytes) -> bool:
        return True


def test_guesses_at_numbers_and_keys_read_nothing() -> None:
    """20,000 guesses of topic numbers and keys by two hostile clients that come back again and again, a million with
    QUINTET_TEST_LONG: nothing is read, published, ended or rotated for the owner of the topic."""
    sim = FastSim(auth_failures_max=0)
    owner = sim.peer(wire.create(ANN, b"demo", DURABLE))
    victim = reader(sim)
    hostile = [sim.peer(), sim.peer()]
    near = [DEMO, *range(DEMO - 33, DEMO + 33)]
    rounds = 4_000 if os.environ.get(LONG) else 80
    published = sim.broker.topics.find(b"demo").published
    for number in range(rounds):
        jwt = token("eve", key=f"g{number}")
        asked = ((wire.subscribe(jwt, n), wire.unsubscribe(jwt, n), wire.publish(jwt, n, b"f")) for n in near)
        data = b"".join(packet for packets in asked for packet in packets)
        hostile[number % 2].exchange(data + b"".join(wire.rotate_key(jwt, n, b"mine") for n in near))
        if number % 10 == 9:
            assert hostile[number % 2].got() == []
            hostile[number % 2].close()
            hostile[number % 2] = sim.peer()
    assert sim.broker.queues.refused == rounds * len(near) * 4
    owner.exchange(publish(ANN, b"secret"))
    assert [peer.got() for peer in hostile] == [[], []]
    assert sim.broker.topics.find(b"demo").published == published + 1
    assert victim.got() == [b"secret"]
    assert sim.broker.queues.rotations == 0
