"""The Fast session under those who ask for much: large payloads, guesses, rates, readers that do not read."""

import pytest

from quintet import kernel
from quintet.model import limits
from quintet.protocols.base import FLOWING, WAIT
from quintet.protocols.fast import errors, frames
from quintet.protocols.fast.mapping import topic_id
from tests.protocols.fast.helpers import DEMO, SECOND, FastPeer, FastSim, Reply, publish, token
from tests.wire import fast as wire

ANN = token()
FORGED = token(secret=b"not the secret, but as long as it is, too")
LARGE = bytes(limits.UNAUTHENTICATED_FRAME_BYTES_MAX + 1)


@pytest.fixture
def sim() -> FastSim:
    sim = FastSim()
    sim.peer(wire.create(ANN, b"demo"))
    return sim


@pytest.mark.parametrize("first", [publish(ANN, b"small"), wire.subscribe(ANN, DEMO), wire.unsubscribe(ANN, DEMO)])
@pytest.mark.parametrize("cut", [False, True])
def test_a_large_payload_right_behind_the_first_valid_token_is_taken(sim: FastSim, first: bytes, cut: bool) -> None:
    """However the bytes arrive: whoever showed a valid token is no stranger any more."""
    peer = FastPeer(sim)
    before = sim.broker.topics.find(b"demo").published
    peer.feed(first + publish(ANN, LARGE), [len(first)] if cut else None)
    assert peer.session.closing is None
    assert sim.broker.topics.find(b"demo").published == before + 1 + (first[0] == frames.PUBLISH)


def test_a_payload_above_the_limit_still_closes_behind_a_valid_token() -> None:
    sim = FastSim(payload_bytes_max=len(LARGE))
    peer = FastPeer(sim)
    peer.feed(publish(ANN, b"small") + publish(ANN, LARGE + b"x"))
    assert peer.session.closing == "payload above the limit"


def test_a_guess_in_front_of_a_large_payload_counts_as_one(sim: FastSim) -> None:
    """Else every connection had a guess that nobody hears of, and the address was never shut out."""
    peer = FastPeer(sim)
    refused, recorded = sim.broker.queues.refused, sim.broker.audit.recorded
    peer.feed(publish(FORGED, LARGE))
    assert peer.session.closing is not None
    assert peer.session.auth_failures == 1
    assert sim.broker.queues.refused == refused + 1
    assert sim.broker.audit.recorded == recorded + 1


def test_extends_by_the_thousand_cost_little(sim: FastSim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes each, and no token: a stranger could keep the broker busy with them."""
    calls = 0
    split = kernel.fast_split

    def counted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return split(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(kernel, "fast_split", counted)
    peer = FastPeer(sim)
    peer.feed((wire.extend() * 3 + wire.extend(9)) * 1000 + wire.subscribe(ANN, DEMO) + wire.extend())
    sim.scheduler.run_until_idle()
    peer.look()
    ok, wrong = Reply(frames.EXTEND, 0, 0), Reply(frames.EXTEND, 0, errors.VERSION)
    assert peer.replies == [ok, ok, ok, wrong] * 1000 + [Reply(frames.SUBSCRIBE, DEMO, 0), ok]
    assert calls < 10


def test_only_the_right_version_switches_answers_on(sim: FastSim) -> None:
    peer = FastPeer(sim)
    peer.feed(wire.extend(4) * 3 + wire.subscribe(ANN, DEMO))
    peer.look()
    assert peer.replies == [Reply(frames.EXTEND, 0, errors.VERSION)] * 3


def test_a_token_is_too_early_again_when_the_clock_is_set_back(sim: FastSim) -> None:
    early = token("bob", nbf=sim.now_s() + 3600)
    peer = sim.peer(extended=True)
    assert peer.ask(publish(early, b"x"))[0].code == errors.TOKEN
    sim.scheduler.jump(2 * 3600 * SECOND)
    assert peer.ask(publish(early, b"x"))[0].code == 0
    sim.scheduler.jump(-2 * 3600 * SECOND)
    assert peer.ask(publish(early, b"x"))[0].code == errors.TOKEN
    assert peer.ask(publish(ANN, b"x"))[0].code == 0


def test_a_topic_whose_row_is_on_its_way_holds_its_publisher(sim: FastSim) -> None:
    """What waits for the row is in memory only: one publish to another topic must not open the gate."""
    peer = sim.peer()
    sim.scheduler.held = True
    jobs = topic_id(b"jobs")
    peer.feed(wire.create(ANN, b"jobs", frames.DURABLE) + publish(ANN, b"waits", topic=jobs) + publish(ANN, b"y"))
    sim.scheduler.turn()
    assert sim.broker.topics.find(b"jobs").waiting
    assert peer.session.congestion() == WAIT
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert peer.session.congestion() == FLOWING


def test_who_reads_nothing_and_keeps_subscribing_is_not_read_from(sim: FastSim) -> None:
    """Each SUBSCRIBE of a peer without room leaves something that waits for room: they must not pile up."""
    peer = sim.peer()
    peer.room_bytes = 0
    rounds = 0
    while peer.session.congestion() != WAIT and rounds < 1_000:
        peer.exchange(wire.subscribe(ANN, DEMO) + publish(ANN, b"x"))
        peer.exchange(wire.unsubscribe(ANN, DEMO))
        rounds += 1
    assert 10 < rounds < len(peer.parked) + 1 < 1_000
    peer.room_bytes = 1 << 20
    assert peer.session.congestion() == WAIT, "a little room is not enough: what waits is still there"
    peer.unpark()
    assert peer.session.congestion() == FLOWING
    peer.feed(wire.subscribe(ANN, DEMO) + publish(ANN, b"y"))
    assert peer.got() == [b"y"]


@pytest.mark.parametrize("limit", ["subject_messages_per_second_max", "address_messages_per_second_max"])
@pytest.mark.parametrize("extended", [False, True])
def test_a_new_connection_does_not_get_around_a_rate(limit: str, extended: bool) -> None:
    sim = FastSim(**{limit: 10})  # type: ignore[arg-type]
    sim.peer(wire.create(ANN, b"demo"))
    topic = sim.broker.topics.find(b"demo")
    hello = wire.extend() if extended else b""
    for _ in range(20):
        peer = FastPeer(sim)
        peer.feed(hello + publish(ANN, *[b"x"] * 50))
        peer.close()
    assert topic.published == 50, "one read may overdraw it, the next connection may not"
    waiting = FastPeer(sim)
    waiting.feed(hello + publish(ANN, b"nothing is dropped"))
    assert waiting.held()
    assert waiting.session.deadline() is None, "it has shown a valid token"
    sim.advance(3 * SECOND)
    assert topic.published == 50
    other = FastPeer(sim, "10.0.0.2:7")
    other.feed(publish(token("bob"), b"x"))
    assert topic.published == 51, "others are not held"
    sim.advance(3 * SECOND)
    assert topic.published == 52
    assert not waiting.held()


def test_who_waits_for_its_rate_costs_nothing_meanwhile() -> None:
    """Looked at once a second at most, and not every millisecond by the connection: a thousand of them may wait."""
    sim = FastSim(subject_messages_per_second_max=1)
    peer = sim.peer(wire.create(ANN, b"demo"))
    peer.feed(publish(ANN, *[b"x"] * 100))
    assert peer.held()
    assert peer.session.congestion() == FLOWING
    looks = len(sim.scheduler._timers)
    peer.feed(wire.subscribe(ANN, DEMO))
    assert len(sim.scheduler._timers) == looks
    sim.advance(98 * SECOND, step_us=SECOND)
    assert peer.held()
    sim.advance(2 * SECOND, step_us=SECOND)
    assert not peer.held()
    assert sim.broker.queues.members == 1, "what came meanwhile is taken"
