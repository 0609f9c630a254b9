"""The wall clock is set, and what has a date follows it: tokens, keys, expiry, retention. Nothing is deleted by a jump alone,
replays are refused, and a jump is said once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from quintet import kernel
from quintet.broker.consumers.coordinator import SESSION_TIMEOUT_US
from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import Principal
from quintet.broker.sections import PeerSection
from quintet.broker.topics.policy import TopicPolicy, TopicRule
from quintet.model import envelope, limits
from quintet.model.clocks import GRACE_US, HOLD_US
from quintet.model.tasks import start
from quintet.protocols.felix import codec as felix
from quintet.testing.line import SimBroker
from tests.interop.test_clock_jumps import DAY, HOUR, SECOND, logged, looked_at
from tests.protocols.blipmq.helpers import publish, ready, subscribed
from tests.protocols.felix import helpers as felix_helpers
from tests.protocols.flymq import helpers as fly_helpers
from tests.protocols.peerbus import helpers as peer_helpers

MINUTE = 60 * SECOND

# -- nothing is deleted by a jump ---------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Something with a date at which it may go: `there` says whether it did."""

    name: str
    make: Callable[[], tuple[SimBroker, Callable[[], bool]]]


def retained() -> tuple[SimBroker, Callable[[], bool]]:
    policy = TopicPolicy([TopicRule("*", retention_us=DAY, segment_bytes=limits.SEGMENT_BYTES_MIN)])
    sim = SimBroker(options=BrokerOptions(topics=policy))
    peer = ready(sim)
    for _ in range(3):
        peer.exchange(publish(b"t", bytes(limits.SEGMENT_BYTES_MIN)))
    topic = sim.broker.topics.get(b"t")
    assert topic is not None
    return sim, lambda: topic.partitions[0].start == 0


def cached() -> tuple[SimBroker, Callable[[], bool]]:
    sim = felix_helpers.FelixSim()
    stream = sim.connect().auth()
    where = {"tenant_id": "t1", "namespace": "default", "cache": "primary"}
    stream.ask(felix.CachePut(**where, key="k", value=b"v", ttl_ms=3_600_000, request_id=1))
    cache = next(iter(sim.broker.caches._by_number.values()))
    return sim, lambda: b"k" in cache.entries


def api_key() -> tuple[SimBroker, Callable[[], bool]]:
    sim = fly_helpers.make_sim()
    admin = fly_helpers.Client(sim, "admin")
    made: list[Any] = []
    expires_s = (sim.scheduler.now() + DAY) // SECOND
    principal = admin.peer.session._principal  # type: ignore[attr-defined]
    start(sim.broker.keys.create(principal, "admin", "k", expires_s)).then(lambda key, _: made.append(key))
    sim.scheduler.run_until_idle()
    before = len(sim.broker.keys._table)
    return sim, lambda: len(sim.broker.keys._table) == before and bool(made)


def mail() -> tuple[SimBroker, Callable[[], bool]]:
    sim = peer_helpers.broker(mailbox_ttl_seconds=86_400)
    amy = peer_helpers.peer_of(sim, "amy")
    peer_helpers.peer_of(sim, "bob").close()
    peer_helpers.send(amy, peer_helpers.letter("amy", "bob", "m1"))
    mailbox = sim.broker.peers.find("bob")
    assert mailbox is not None
    return sim, lambda: mailbox.backlog == 1


KEPT = (Kept("retention", retained), Kept("a cache key", cached), Kept("an API key", api_key), Kept("mail", mail))


@pytest.mark.parametrize("kept", KEPT, ids=[kept.name for kept in KEPT])
def test_a_jump_ahead_for_5_s_deletes_nothing(kept: Kept) -> None:
    sim, there = kept.make()
    sim.scheduler.jump(40 * DAY)
    sim.advance(20 * SECOND, SECOND)
    sim.scheduler.jump(-40 * DAY)
    sim.advance(HOLD_US // 2, 10 * SECOND)
    assert there()


@pytest.mark.parametrize("kept", KEPT, ids=[kept.name for kept in KEPT])
def test_a_clock_that_stays_ahead_is_believed_after_an_hour(kept: Kept) -> None:
    sim, there = kept.make()
    sim.scheduler.jump(40 * DAY)
    sim.advance(HOLD_US - 20 * SECOND, 10 * SECOND)
    assert there()
    sim.advance(60 * SECOND, 5 * SECOND)
    assert not there()


def test_an_expired_api_key_is_refused_by_the_new_time_only() -> None:
    sim = fly_helpers.make_sim()
    admin = fly_helpers.Client(sim, "admin")
    made: list[Any] = []
    principal = admin.peer.session._principal  # type: ignore[attr-defined]
    expires_s = (sim.scheduler.now() + DAY) // SECOND
    start(sim.broker.keys.create(principal, "admin", "k", expires_s)).then(lambda key, _: made.append(key))
    sim.scheduler.run_until_idle()
    secret = made[0].secret.encode()

    def works() -> bool:
        try:
            sim.broker.authenticate(secret)
        except Exception:
            return False
        return True

    found = [works()]
    for by_us in (2 * DAY, -2 * DAY, 2 * DAY):
        sim.scheduler.jump(by_us)
        sim.advance(SECOND)
        found.append(works())
    assert found == [True, False, True, False]


def test_subscriptions_stages_and_outcomes_outlive_a_clock_that_is_ahead() -> None:
    """The broker is started 400 days ahead: whatever the dates on disk say, nothing goes at once."""
    sim = SimBroker(options=BrokerOptions(peers=PeerSection(name_idle_seconds=30 * 86_400)))
    peer = ready(sim)
    subscribed(peer, b"t")
    peer.exchange(publish(b"t", b"backlog"))
    staged = sim.broker.stages.open("spark", "w", 0)
    staged.append(sim.broker.topics.find(b"t").spec.id, 0, kernel.build([b"x"], origin=b"x"), 1)
    staged.finish()
    sim.broker.stages.sealed(staged)
    sim.broker.peers.register("amy", Principal("ann", subscribe=("*",)))
    sim.scheduler.run_until_idle()
    peer.close()
    sim.stop()
    sim.scheduler.jump(400 * DAY)
    sim.start()
    sim.advance(GRACE_US // 2, 10 * SECOND)
    assert len(sim.broker.subscriptions) == 1 and len(sim.broker.stages) == 1
    assert sim.broker.peers.find("amy") is not None


# -- tokens, replays, and what is said ----------------------------------------------------------------------------------


def test_a_token_ends_with_its_date_whatever_the_clock_does() -> None:
    sim = felix_helpers.FelixSim()
    stream = sim.connect().auth(felix_helpers.token(sim.now_s, life_s=3600), felix_helpers.PLAIN)
    for by_us, ended in ((-DAY, False), (DAY, False), (2 * HOUR, True)):
        sim.scheduler.jump(by_us)
        sim.advance(6 * SECOND, SECOND)
        assert looked_at(sim, stream.session) is ended, by_us


@pytest.mark.parametrize("away_us", [SECOND, 3 * HOUR])
@pytest.mark.parametrize("by_us", [HOUR, 3 * HOUR, 40 * DAY])
def test_a_replay_is_refused_after_a_jump_there_and_back(by_us: int, away_us: int) -> None:
    """Also of what was sent while the clock was ahead, at the time when its date comes true."""
    sim = peer_helpers.broker(secret=peer_helpers.SECRET, verify=True, replay_window_seconds=600)
    amy, bob = peer_helpers.peer_of(sim, "amy"), peer_helpers.peer_of(sim, "bob")

    def signed(id: str) -> bytes:
        now = envelope.rfc3339(sim.scheduler.now())
        return peer_helpers.letter("amy", "bob", id, secret=peer_helpers.SECRET, ts=now)

    before = signed("before")
    peer_helpers.send(amy, before)
    sim.scheduler.jump(by_us)
    ahead = signed("ahead")
    peer_helpers.send(amy, ahead)
    sim.advance(away_us, max(away_us // 20, 50_000))
    sim.scheduler.jump(-by_us)
    sim.advance(SECOND)
    assert peer_helpers.delivered(bob) == ["before", "ahead"]
    peer_helpers.send(amy, before, ahead, signed("after"))
    assert peer_helpers.delivered(bob) == ["after"]
    if by_us <= 3 * HOUR:
        sim.advance(by_us - away_us, MINUTE) if by_us > away_us else None
        peer_helpers.send(amy, before, ahead)
        assert peer_helpers.delivered(bob) == []


@pytest.mark.parametrize("by_us", [-HOUR, -2 * SECOND, 2 * SECOND, DAY])
def test_a_jump_is_said_once_with_how_far(by_us: int) -> None:
    sim = SimBroker()
    sim.advance(5 * SECOND, SECOND)
    for _ in range(100):
        sim.scheduler.jump(500)  # a clock that is corrected slowly is not set
        sim.advance(50_000)
    assert not [event for event, _ in sim.reports if event == "clock_jumped"]
    sim.scheduler.jump(by_us)
    sim.advance(5 * SECOND, SECOND)
    said = [fields for event, fields in sim.reports if event == "clock_jumped"]
    assert [fields["seconds"] for fields in said] == [by_us / SECOND] and sim.broker.clock.jumps == 1


def test_records_follow_a_clock_that_was_far_ahead_for_a_moment() -> None:
    harness, partition = logged("fsync")
    for by_us in (0, 40 * DAY, -40 * DAY, -30 * SECOND):
        harness.scheduler.jump(by_us)
        harness.write(partition, 1)
    times = [batch.timestamp - harness.scheduler.now() for batch in partition.read(0, 1 << 20) or []]
    assert times == [30 * SECOND, 40 * DAY + 30 * SECOND, 30 * SECOND, 30 * SECOND], "small steps keep their order"


def test_a_member_with_a_time_ahead_does_not_keep_others() -> None:
    """Of two silent members, one was heard of while the clock was ahead."""
    sim = fly_helpers.make_sim()
    admin = fly_helpers.Client(sim, "admin")
    admin.ask("CREATE_TOPIC", topic="t", partitions=2)
    for by_us in (DAY, -DAY):
        sim.scheduler.jump(by_us)
        fly_helpers.Client(sim, "admin").ask("SUBSCRIBE", topic="t", group="g", partition=-1, mode="latest", member="")
    sim.advance(SESSION_TIMEOUT_US + SECOND, SECOND)
    assert admin.ask("DESCRIBE_GROUP", topic="t", group="g")["members"] == 0
