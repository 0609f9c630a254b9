"""Logins over the FlyMQ door: the broker's own time is not the client's, and nothing is hashed for who has gone."""

import pytest

from quintet.broker.identity import passwords
from quintet.model import limits
from quintet.protocols.flymq import session
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import SECOND, Client, auth, make_sim, parse, request


@pytest.fixture
def sim() -> SimBroker:
    sim = make_sim()
    sim.scheduler.run_until_idle()
    sim.scheduler.held = True
    return sim


def due(client: Client) -> bool:
    deadline = client.peer.session.deadline()
    return deadline is not None and client.sim.scheduler.monotonic() >= deadline


def test_the_clock_of_the_handshake_stands_while_a_password_is_checked(sim: SimBroker) -> None:
    client = Client(sim)
    sim.scheduler.advance(limits.HANDSHAKE_US - SECOND)
    client.peer.feed(auth("admin"))
    sim.scheduler.advance(3600 * SECOND)
    assert not due(client)
    client.peer.session.tick(sim.scheduler.monotonic())
    assert client.peer.session.closing is None
    sim.scheduler.finish()
    [reply] = parse(client.peer.take())
    assert client.read("AUTH", reply)["success"]
    assert client.peer.session.deadline() is None


def test_the_clock_of_the_handshake_goes_on_after_a_wrong_password(sim: SimBroker) -> None:
    client = Client(sim)
    sim.scheduler.advance(limits.HANDSHAKE_US - SECOND)
    client.peer.feed(auth("admin", "wrong"))
    sim.scheduler.advance(3600 * SECOND)
    sim.scheduler.finish()
    [reply] = parse(client.peer.take())
    assert not client.read("AUTH", reply)["success"]
    assert not due(client)
    sim.scheduler.advance(SECOND)
    assert due(client)
    client.peer.session.tick(sim.scheduler.monotonic())
    assert client.peer.session.closing == "no authentication within 5 seconds"


def test_nothing_is_hashed_for_a_connection_that_has_gone(sim: SimBroker) -> None:
    first = [Client(sim) for _ in range(passwords.HASHES_AT_ONCE)]
    gone = [Client(sim) for _ in range(50)]
    for number, client in enumerate((*first, *gone)):
        client.peer.feed(auth("admin", f"guess {number}"))
    assert sim.broker.users._hashing.waiting == 50
    for client in gone:
        client.peer.close()
    assert sim.broker.users._hashing.waiting == 0
    for client in first:
        sim.scheduler.finish()
        assert not client.read("AUTH", parse(client.peer.take())[0])["success"]
    assert not [job for job in sim.scheduler.jobs if getattr(job[0], "func", None) is passwords.verify_evenly]


def test_above_the_bound_the_answer_is_busy_and_the_connection_stays(
    sim: SimBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "HASHES_WAITING_MAX", 1)
    before = [Client(sim) for _ in range(passwords.HASHES_AT_ONCE + 1)]
    for number, waiting in enumerate(before):
        waiting.peer.feed(auth("admin", f"guess {number}"))
    client = Client(sim)
    client.peer.feed(auth("admin"))
    sim.scheduler.turn()
    [reply] = parse(client.peer.take())
    answer = client.read("AUTH", reply)
    assert (
        not answer["success"]
        and "1 passwords wait to be checked, the limit is 1: the broker is busy" in answer["error"]
    )
    assert client.peer.session.auth_failures == 0
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    client.login("admin")


def test_an_empty_name_is_answered_as_a_wrong_one(sim: SimBroker) -> None:
    sim.scheduler.held = False
    client = Client(sim)
    answers = []
    for user in ("", "nobody", "admin"):
        [reply] = client.exchange(auth(user, "wrong"))
        answers.append(client.read("AUTH", reply))
    assert answers[0] == answers[1] == answers[2]
    assert client.peer.session.auth_failures == 3
    assert sim.scheduler.now() < session.NEVER
    assert parse(client.peer.exchange(request("WHOAMI")))
