"""Sessions of the console by simulated time, and who published as the sampler reads it from batches."""

from collections import Counter
from random import Random

import pytest

from quintet import kernel
from quintet.console import sampler, sessions
from quintet.console.sessions import Session, Sessions
from quintet.model.batch import RecordBatch
from quintet.model.errors import AuthError
from quintet.testing.line import SimBroker

MINUTE_US = 60_000_000


@pytest.fixture
def sim() -> SimBroker:
    return SimBroker()


def made(sim: SimBroker, sessions_max: int = 1_000) -> Sessions:
    return Sessions(
        sim.broker, Random(1).randbytes, idle_us=30 * MINUTE_US, sessions_max=sessions_max, failures_per_minute=3
    )


def logged_in(sim: SimBroker, of: Sessions) -> tuple[str, Session]:
    """As after a login: the identity is what a password would have shown."""
    token = of._issue(sim.broker.authenticate(b"dev-key")[0])
    return token, of.find(token)[0]


def test_a_session_ends_when_nobody_asks_for_long(sim: SimBroker) -> None:
    of = made(sim)
    token, session = logged_in(sim, of)
    sim.scheduler.advance(29 * MINUTE_US)
    assert of.find(token)[1].name == "dev"
    sim.scheduler.advance(29 * MINUTE_US)
    assert of.check(session).name == "dev", "a live stream looks, and is no request"
    sim.scheduler.advance(2 * MINUTE_US)
    with pytest.raises(AuthError):
        of.check(session)
    with pytest.raises(AuthError):
        of.find(token)
    assert len(of) == 0


def test_a_session_ends_in_any_case(sim: SimBroker) -> None:
    of = made(sim)
    token, _ = logged_in(sim, of)
    for _ in range(sessions.SESSION_US // (20 * MINUTE_US)):
        of.find(token)
        sim.scheduler.advance(20 * MINUTE_US)
    of.find(token)
    sim.scheduler.advance(1 * MINUTE_US)
    with pytest.raises(AuthError):
        of.find(token)


def test_whoever_may_no_longer_log_in_is_out_at_once(sim: SimBroker) -> None:
    of = made(sim)
    token, _ = logged_in(sim, of)
    sim.broker.set_credentials(())
    with pytest.raises(AuthError):
        of.find(token)


def test_the_oldest_session_makes_room(sim: SimBroker) -> None:
    of = made(sim, sessions_max=5)
    tokens = [logged_in(sim, of)[0] for _ in range(7)]
    assert len(of) == 5
    for token in tokens[:2]:
        with pytest.raises(AuthError):
            of.find(token)
    assert of.find(tokens[2])
    many = made(sim)
    for _ in range(sessions.OF_IDENTITY_MAX + 5):
        logged_in(sim, many)
    assert len(many) == sessions.OF_IDENTITY_MAX


def test_tokens_are_not_kept(sim: SimBroker) -> None:
    of = made(sim)
    token, session = logged_in(sim, of)
    assert token not in repr(of._by_digest) and session.digest != token


def test_origins_are_counted_without_a_look_at_records() -> None:
    one = kernel.build([b"a", b"b", b"c"], origin=b"blipmq:ann")
    assert sampler.origins_of(RecordBatch(one)) == Counter({"blipmq:ann": 3})
    both = kernel.merge([one, kernel.build([b"d"], origin=b"flymq:bob"), one], 5)
    assert sampler.origins_of(RecordBatch(both)) == Counter({"blipmq:ann": 6, "flymq:bob": 1})
    assert Counter(row[6].decode() for row in RecordBatch(both).rows()) == sampler.origins_of(RecordBatch(both))


def test_a_history_is_bounded() -> None:
    history = sampler.History()
    for second in range(10 * sampler.POINTS_MAX):
        history.add(float(second), 1.0)
    assert len(history.times) <= sampler.POINTS_MAX + sampler.POINTS_MAX // 4
    assert history.times[-1] == 10 * sampler.POINTS_MAX - 1
