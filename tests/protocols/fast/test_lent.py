"""Fast publishes to topics in files: appended by the kernel while their partitions are lent, and only what Python would allow then.

Each test first shows that publishes do go that way (`Tails.published` counts them).
"""

import pytest

from quintet import kernel
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.log.base import Durability
from quintet.protocols.base import FLOWING, WAIT
from quintet.protocols.fast import errors, frames, session
from tests.protocols.fast.helpers import DEMO, SECOND, FastPeer, FastSim, publish, token
from tests.protocols.test_direct import journaled
from tests.wire import fast as wire

ANN = token()
ANY_TOPIC = TopicRule("*")
LARGE = 2_000  # bytes of a value: too large for a pack, so the first makes a file
NOTES = wire.topic_id(b"notes")


def in_files(durability: Durability = "os", rule: TopicRule = ANY_TOPIC, **options: object) -> FastSim:
    return journaled(FastSim(None, TopicPolicy([rule], durability), **options))


def lent(sim: FastSim, name: bytes = b"demo") -> int:
    """Records that the kernel appended by itself to the partitions of a topic in files."""
    topic = sim.broker.topics.find(name)
    assert topic.direct is None
    return sim.broker.tails.published(topic.lent) if topic.lent is not None else -1


def warm(sim: FastSim, flags: int = frames.DURABLE, extended: bool = True) -> FastPeer:
    """A peer whose publishes to `demo` go to a partition that is lent: six of them."""
    peer = sim.peer(wire.create(ANN, b"demo", flags), extended=extended)
    for number in range(6):
        codes = [reply.code for reply in peer.ask(publish(ANN, bytes([number]) * LARGE))]
        assert codes == [0] * extended
    assert lent(sim) >= 3
    return peer


def codes(peer: FastPeer, packet: bytes) -> list[int]:
    return [reply.code for reply in peer.ask(packet)]


def stored(sim: FastSim) -> list[bytes]:
    """What a subscriber gets, first to last."""
    reader = sim.peer(wire.subscribe(ANN, DEMO))
    return reader.got()


@pytest.mark.parametrize("durability", ["os", "interval", "fsync"])
@pytest.mark.parametrize("alone", [False, True])
def test_publishes_to_files_are_lent_until_rights_change(durability: Durability, alone: bool) -> None:
    """Alone, the OK is there before the read is over."""
    sim = in_files(durability)
    peer = warm(sim)
    peer.alone = alone
    before = lent(sim)
    peer.feed(publish(ANN, b"a", b"b"))
    assert (peer.take() == wire.ok(wire.PUBLISH, DEMO) * 2) == alone
    sim.scheduler.run_until_idle()
    peer.take()
    assert lent(sim) == before + 2
    sim.broker.access.look_again()
    assert codes(peer, publish(ANN, b"c")) == [0]
    assert lent(sim) == before + 2, "Python decides again"
    values = [bytes([number]) * LARGE for number in range(6)]
    assert stored(sim) == [*values, b"a", b"b", b"c"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_key_a_token_or_a_secret_that_is_gone_closes_the_way(durability: Durability) -> None:
    sim = in_files(durability)
    peer, before = warm(sim), 0
    short = token(exp=sim.now_s() + 5)
    for _ in range(3):
        before = lent(sim)
        assert codes(peer, publish(short, b"x")) == [0]
    assert lent(sim) == before + 1
    sim.advance(120 * SECOND)
    assert codes(peer, publish(short, b"x")) == [errors.TOKEN]
    assert [reply.code for reply in sim.peer(extended=True).ask(wire.rotate_key(ANN, DEMO, b"k2"))] == [0]
    assert codes(peer, publish(ANN, b"x")) == [errors.KEY]
    fresh = token(key="k2")
    for _ in range(3):
        before = lent(sim)
        assert codes(peer, publish(fresh, b"x")) == [0]
    assert lent(sim) == before + 1
    sim.broker.draining = True
    assert codes(peer, publish(fresh, b"x")) == [errors.UNAVAILABLE]


def test_another_token_is_asked_for_its_permission() -> None:
    """The topic is lent, and the connection has published to it: only with its own token that needs no decision."""
    sim = in_files()
    peer = warm(sim)
    before = lent(sim)
    reads = token(permissions=["subscribe"])
    answers = codes(peer, publish(ANN, b"a") + publish(reads, b"b") + publish(ANN, b"c"))
    assert answers == [0, errors.FORBIDDEN, 0]
    assert lent(sim) == before + 1, "what is behind the refused one does not overtake it"
    assert stored(sim)[-2:] == [b"a", b"c"]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_publishes_that_a_file_refuses_are_answered_in_their_order(call: str, alone: bool) -> None:
    """Those to memory in front of them and behind them are answered well. Control: before the disk fails all are."""
    sim = in_files("os" if call == "pwritev" else "fsync")
    peer = warm(sim)
    sim.peer(wire.create(ANN, b"notes"))
    peer.alone = alone
    notes = publish(ANN, b"n", topic=NOTES)
    data = notes + publish(ANN, b"x", b"y") + wire.extend() + publish(ANN, b"z") + notes
    peer.ask(data)
    expected = [(wire.PUBLISH, NOTES), (wire.PUBLISH, DEMO), (wire.PUBLISH, DEMO), (wire.EXTEND, 0)]
    expected += [(wire.PUBLISH, DEMO), (wire.PUBLISH, NOTES)]
    before, refused = lent(sim), sim.broker.queues.refused
    for fails in (False, True):
        if fails:
            sim.disk.fail(call, 1, 5, times=100)
        replies = peer.ask(data)
        assert [(reply.request, reply.topic) for reply in replies] == expected
        bad = errors.UNAVAILABLE if fails else 0
        assert [reply.code for reply in replies] == [0, bad, bad, 0, bad, 0]
    assert lent(sim) > before + 3, "the kernel had taken what was refused"
    assert sim.broker.queues.refused == refused + 3


@pytest.mark.parametrize("flags", [frames.DURABLE, 0])
def test_a_strict_peer_hears_nothing_and_is_counted(flags: int) -> None:
    """Of a queue that is not durable on a topic in files, nobody waits to hear: as by way of Python, nothing is counted."""
    sim = in_files(rule=TopicRule("*", durability="os"))
    peer = warm(sim, flags, extended=False)
    before, refused = lent(sim), sim.broker.queues.refused
    peer.feed(publish(ANN, b"x", b"y"))
    assert (peer.session.unanswered, lent(sim)) == (bool(flags), before + 2)
    sim.disk.fail("pwritev", 1, 5, times=100)
    sim.scheduler.run_until_idle()
    assert (peer.take(), peer.session.unanswered) == (b"", 0)
    assert sim.broker.queues.refused == refused + (2 if flags else 0)


def test_a_peer_with_many_publishes_under_way_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read waits in one slot."""
    monkeypatch.setattr(session, "REPLIES_WAITING_MAX", 3)
    sim = in_files("fsync")
    peer = warm(sim)
    before = lent(sim)
    found = []
    for _ in range(4):
        peer.feed(publish(ANN, b"x"))
        found.append(peer.session.congestion())
    assert found == [FLOWING] * 3 + [WAIT] and lent(sim) == before + 4
    sim.scheduler.run_until_idle()
    assert peer.session.congestion() == FLOWING


def test_a_durable_queue_with_a_bound_is_asked_before_each_publish() -> None:
    """Control: without the bound they go the direct way."""
    for most, direct in ((0, True), (4, False)):
        policy = TopicPolicy([TopicRule("*")], "os", queue_messages_max=most)
        sim = journaled(FastSim(None, policy))
        peer = sim.peer(wire.create(ANN, b"demo", frames.DURABLE), extended=True)
        for _ in range(4):
            assert codes(peer, publish(ANN, bytes(LARGE))) == [0]
        assert (lent(sim) > 0) == direct


@pytest.mark.parametrize("limit", ["subject_messages_per_second_max", "address_messages_per_second_max"])
def test_where_rates_are_kept_every_publish_is_looked_at(limit: str) -> None:
    sim = in_files("os", ANY_TOPIC, **{limit: 1_000})
    peer = sim.peer(wire.create(ANN, b"demo", frames.DURABLE), extended=True)
    for _ in range(6):
        assert codes(peer, publish(ANN, bytes(LARGE))) == [0]
    assert lent(sim) == 0


def test_a_topic_that_lost_its_key_is_not_published_to_any_more() -> None:
    """A CREATE gave it the key, and the disk refused the row: who published by the number meanwhile is refused from then on."""
    sim = in_files()
    topic = sim.broker.topics.ensure(b"demo", durable=True)
    sim.scheduler.run_until_idle()
    for _ in range(4):
        topic.publish(kernel.build([bytes(LARGE)]), 1, True, None)
        sim.scheduler.run_until_idle()
        assert topic.lent is not None
    peer = sim.peer(extended=True)
    sim.scheduler.held = True
    peer.feed(wire.create(ANN, b"demo", frames.DURABLE))
    for _ in range(2):
        peer.feed(publish(ANN, b"x"))
        sim.scheduler.turn()
    before = lent(sim)
    assert before == 1, "with the key on its way to the disk, too"
    sim.disk.fail("fdatasync", 1, 5, times=100)
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [reply.code for reply in peer.ask(b"")] == [errors.UNAVAILABLE, 0, 0]
    assert codes(peer, publish(ANN, b"z")) == [errors.NO_TOPIC]
    assert topic.published == 6
