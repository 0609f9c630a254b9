"""Backlogs of the queues behind the Fast door: who takes them over, what a refusing disk leaves, what nobody may lose."""

import errno
from random import Random

import pytest
from msgspec.structs import replace

from quintet.broker.consumers.subscriptions import KEPT_OWNER
from quintet.broker.sections import DeliverySection
from quintet.protocols.fast import errors
from quintet.protocols.fast.frames import COMPETING, DURABLE, SUBSCRIBE
from tests.protocols.fast.helpers import DEMO, SECOND, FastPeer, FastSim, Reply, publish, token
from tests.wire import fast as wire

ANN = token()


@pytest.fixture
def sim() -> FastSim:
    return FastSim()


def reader(sim: FastSim, jwt: bytes = ANN) -> FastPeer:
    return sim.peer(wire.subscribe(jwt, DEMO))


def values(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


# -- the rest of a backlog ------------------------------------------------------------------------------------------------


def test_what_is_left_of_a_backlog_goes_to_another_member(sim: FastSim) -> None:
    """The first subscriber goes before it got all of the backlog; the second came behind it and would never ask."""
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE))
    for value in values(0, 5):
        peer.exchange(publish(ANN, value))
    first = FastPeer(sim)
    first.room_bytes = 0
    first.exchange(wire.subscribe(ANN, DEMO))
    second = reader(sim)
    peer.exchange(publish(ANN, b"5"))
    assert (first.got(), second.got()) == ([], [b"5"])
    first.close()
    assert second.got() == values(0, 5), "each once, also those it had already"
    peer.exchange(publish(ANN, b"6"))
    assert second.got() == [b"6"]
    second.close()
    peer.exchange(publish(ANN, b"7"))
    sim.advance(SECOND)
    sim.restart()
    assert reader(sim).got() == [b"7"], "its place is kept"


def test_the_rest_of_a_backlog_moves_on_with_every_successor(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE))
    for value in values(0, 4):
        peer.exchange(publish(ANN, value))
    first = FastPeer(sim)
    first.room_bytes = 0
    first.exchange(wire.subscribe(ANN, DEMO))
    second, third = reader(sim), reader(sim)
    second.room_bytes = 0
    first.close()
    second.close()
    assert third.got() == values(0, 4)
    peer.exchange(publish(ANN, b"4"))
    assert third.got() == [b"4"]


def test_the_rest_of_a_backlog_waits_if_the_successor_goes_too(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE))
    for value in values(0, 4):
        peer.exchange(publish(ANN, value))
    first = FastPeer(sim)
    first.room_bytes = 0
    first.exchange(wire.subscribe(ANN, DEMO))
    successor = reader(sim)
    successor.room_bytes = 0
    first.close()
    successor.close()
    sim.restart()
    assert reader(sim).got() == values(0, 4)


def test_a_successor_that_is_full_gets_the_rest_when_it_has_room(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE))
    for value in values(0, 4):
        peer.exchange(publish(ANN, value))
    first = FastPeer(sim)
    first.room_bytes = 0
    first.exchange(wire.subscribe(ANN, DEMO))
    successor = reader(sim)
    peer.exchange(publish(ANN, b"seen"))
    assert successor.got() == [b"seen"]
    successor.room_bytes = 0
    peer.exchange(publish(ANN, b"new"))
    first.close()
    successor.room_bytes = 1 << 20
    successor.unpark()
    assert successor.got() == [*values(0, 4), b"new"]
    peer.exchange(publish(ANN, b"newer"))
    assert successor.got() == [b"newer"]


# -- bounds ---------------------------------------------------------------------------------------------------------------


def test_two_tokens_in_turn_leave_no_heap_of_deadlines(sim: FastSim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quintet.broker.doors.queues.STALE_MAX", 20)
    late, soon = token(exp=sim.now_s() + 10**6), token(exp=sim.now_s() + 10**5)
    peer = sim.peer(wire.create(late, b"demo"))
    for _ in range(500):
        peer.exchange(wire.subscribe(late, DEMO) + wire.subscribe(soon, DEMO) + wire.unsubscribe(late, DEMO))
    assert len(sim.broker.queues._deadlines) <= 50


# -- a refused CREATE changes nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("existed", [False, True])
def test_a_create_that_finds_no_room_for_its_backlog_leaves_nothing(sim: FastSim, existed: bool) -> None:
    if existed:
        sim.broker.topics.ensure(b"demo", durable=False)
    sim.broker.subscriptions._max = 0
    peer = sim.peer(extended=True)
    assert peer.ask(wire.create(ANN, b"demo", DURABLE))[0].code == errors.LIMIT
    found = sim.broker.topics.get(b"demo")
    assert (found is not None) == existed
    assert found is None or (found.in_memory and not found.waiting and not found.spec.extra)
    sim.broker.subscriptions._max = 10
    assert peer.ask(wire.create(token(key="another"), b"demo", DURABLE))[0].code == 0


def full(sim: FastSim, operation: str = "fdatasync") -> None:
    sim.disk.fail(operation, 1, errno.ENOSPC, times=1_000)


def test_topics_that_the_disk_refuses_are_not_kept_open(sim: FastSim) -> None:
    peer = sim.peer(wire.create(ANN, b"first", DURABLE), extended=True)
    full(sim, "pwritev")
    full(sim)
    peer.ask(wire.create(ANN, b"demo", DURABLE))
    opened = len(sim.log._topics)
    for number in range(20):
        assert peer.ask(wire.create(ANN, b"t%d" % number, DURABLE))[0].code == errors.UNAVAILABLE
    assert len(sim.log._topics) == opened
    assert len(sim.broker.topics) == 1


@pytest.mark.parametrize(("operation", "times"), [("pwritev", 1), ("pwritev", 3), ("fdatasync", 1)])
@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("made", [None, "memory", "durable"])
def test_every_create_is_answered_whatever_the_disk_does(
    operation: str, times: int, nth: int, made: str | None
) -> None:
    """Failing calls at every place, then a disk that is well: answered once, and afterwards made or not, never half."""
    sim = FastSim()
    peer = sim.peer(extended=True)
    if made is not None:
        sim.broker.topics.ensure(b"demo", made == "durable")
        sim.scheduler.run_until_idle()
    sim.disk.fail(operation, nth, errno.ENOSPC, times=times)
    answers = peer.ask(wire.create(ANN, b"demo", DURABLE))
    assert len(answers) == 1
    sim.disk.heal()
    sim.advance(30 * SECOND, step_us=SECOND)
    refused = answers[0].code != 0
    backlogs = [s for s in sim.broker.subscriptions.all() if s.owner == KEPT_OWNER]
    assert len(backlogs) == len(sim.broker.queues) == (not refused)
    if operation == "fdatasync":  # what could not be synced takes nothing more until the next start, and may be there
        sim.restart()
        peer = sim.peer(extended=True)
        assert refused or len(sim.broker.queues) == 1
        refused = refused and not len(sim.broker.queues)
    key = token(key="another") if refused and times == 1 else ANN
    assert peer.ask(wire.create(key, b"demo", DURABLE))[0].code == 0
    assert peer.ask(publish(key, b"kept"))[0].code == 0
    sim.restart()
    assert len([s for s in sim.broker.subscriptions.all() if s.owner == KEPT_OWNER]) == 1
    assert reader(sim, key).got() == [b"kept"]


@pytest.mark.parametrize("made", [None, "durable"])
def test_create_and_rotate_that_fail_together_leave_no_key(made: str | None) -> None:
    sim = FastSim()
    if made is not None:
        sim.broker.topics.ensure(b"demo", durable=True)
        sim.scheduler.run_until_idle()
    peer = sim.peer(extended=True)
    full(sim, "pwritev")
    answers = peer.ask(wire.create(ANN, b"demo", DURABLE) + wire.rotate_key(ANN, DEMO, b"k2"))
    assert all(reply.code for reply in answers)
    assert len(answers) == 2
    sim.disk.heal()
    sim.advance(30 * SECOND, step_us=SECOND)
    assert peer.ask(wire.create(token(key="another"), b"demo", DURABLE))[0].code == 0


def test_a_topic_deleted_on_a_full_disk_does_not_stop_the_clock(sim: FastSim) -> None:
    """Ending a queue writes to a table: what the disk says to that must not escape into the broker's tick."""
    peer = sim.peer(wire.create(ANN, b"demo", DURABLE), wire.subscribe(ANN, DEMO), extended=True)
    queue = sim.broker.queues._by_id[DEMO]
    queue.topic.forget(errors_of_topic())
    sim.broker.access.look_again()
    full(sim, "pwritev")
    full(sim)
    sim.peer(wire.create(ANN, b"fails", DURABLE))
    sim.broker.tick()
    sim.scheduler.run_until_idle()
    assert peer.ask(b"") == [Reply(SUBSCRIBE, DEMO, errors.ENDED)]
    assert len(sim.broker.queues) == 0


def errors_of_topic() -> Exception:
    from quintet.model.errors import TopicNotFound

    return TopicNotFound("deleted")


def test_a_member_with_a_key_that_never_came_to_be_is_evicted(sim: FastSim) -> None:
    owner = sim.peer(wire.create(ANN, b"demo", DURABLE), extended=True)
    stays, early = sim.peer(extended=True), sim.peer(extended=True)
    stays.ask(wire.subscribe(ANN, DEMO))
    sim.disk.fail("fdatasync", 1, errno.EIO)
    sim.scheduler.held = True
    owner.feed(wire.rotate_key(ANN, DEMO, b"k2"))
    early.feed(wire.subscribe(token("bob", "k2"), DEMO))
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert owner.ask(b"")[0].code == errors.UNAVAILABLE
    sim.disk.heal()
    assert [r.code for r in early.ask(b"")] == [0, errors.ENDED]
    sim.advance(90 * SECOND, step_us=SECOND)
    assert stays.ask(b"") == []
    assert owner.ask(publish(ANN, b"x"))[0].code == 0
    assert (stays.got(), early.got()) == ([b"x"], [])


# -- starting again -------------------------------------------------------------------------------------------------------


def test_of_two_backlogs_of_a_queue_the_newer_is_taken_up(sim: FastSim) -> None:
    """As of a queue whose topic was deleted when the disk was full, and made again."""
    plain = sim.broker.topics.ensure(b"demo", durable=True)
    sim.scheduler.run_until_idle()
    sim.broker.subscriptions.create(KEPT_OWNER, plain, 0, door="blipmq")
    sim.peer(wire.create(ANN, b"demo", DURABLE), publish(ANN, b"read"))
    assert reader(sim).got() == [b"read"]
    sim.restart()
    assert len([s for s in sim.broker.subscriptions.all() if s.owner == KEPT_OWNER]) == 1
    assert reader(sim).got() == []


def test_a_broker_starts_also_when_there_is_no_room_for_a_backlog(sim: FastSim) -> None:
    sim.peer(wire.create(ANN, b"demo", DURABLE), publish(ANN, b"kept"))
    for subscription in sim.broker.subscriptions.all():
        sim.broker.subscriptions.remove(subscription)
    sim.options = replace(sim.options, delivery=DeliverySection.model_construct(subscriptions_max=0))
    sim.restart()
    assert sim.peer(extended=True).ask(publish(token(key="guess"), b"x"))[0].code == errors.KEY


@pytest.mark.parametrize("flags", [DURABLE, DURABLE | COMPETING])
@pytest.mark.parametrize("partitions", [1, 3])
def test_whoever_comes_and_goes_each_message_is_delivered_once(flags: int, partitions: int) -> None:
    """Readers that come, go, and have no room at random. A model of sets: nothing published is missing at the end, and
    of competing readers exactly one got each."""
    for seed in range(60):
        rng = Random(seed)
        sim = FastSim()
        sim.broker.topics.create(b"demo", partitions)
        sim.scheduler.run_until_idle()
        owner = sim.peer(wire.create(ANN, b"demo", flags))
        here: list[FastPeer] = []
        got: list[list[bytes]] = []
        count = 0
        for _ in range(40):
            act = rng.choice(("publish", "publish", "join", "leave", "fill", "drain"))
            if act == "publish":
                for value in values(count, count + rng.randint(1, 4)):
                    owner.exchange(publish(ANN, value))
                    count += 1
            elif act == "join":
                here.append(FastPeer(sim))
                here[-1].room_bytes = rng.choice((0, 1 << 20))
                here[-1].feed(wire.subscribe(ANN, DEMO))
            elif here:
                peer = rng.choice(here)
                if act == "leave":
                    here.remove(peer)
                    peer.close()
                    got.append(peer.got())
                elif act == "fill":
                    peer.room_bytes = 0
                else:
                    peer.room_bytes = 1 << 20
                    peer.unpark()
            sim.scheduler.run_until_idle()
        for peer in here:
            peer.close()
            got.append(peer.got())
        got.append(reader(sim).got())
        assert all(len(set(some)) == len(some) for some in got), f"twice to one, seed {seed}"
        everything = [value for some in got for value in some]
        assert set(everything) == set(values(0, count)), f"lost, seed {seed}"
        assert not flags & COMPETING or len(everything) == count, f"twice, seed {seed}"
