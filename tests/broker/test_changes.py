"""Changes of users that wait in line: the order of their rows and answers, and what a login that is given up leaves behind."""

from quintet.broker.audit.audit_log import Query
from quintet.broker.identity import passwords
from quintet.broker.identity.access import Acl, Principal
from quintet.broker.identity.passwords import HASHES_AT_ONCE
from quintet.model.tasks import start
from quintet.testing.line import SimBroker
from tests.broker.test_users import PASSWORD, ROOT, Answer, create, sim

__all__ = ["sim"]  # the fixture


def hashes_under_way(sim: SimBroker) -> int:
    return sum(getattr(work, "func", None) is passwords.verify_evenly for work, _ in sim.scheduler.jobs)


def test_a_change_that_is_refused_is_told_after_the_one_before_it(sim: SimBroker) -> None:
    """Its turn comes within the call that ends the other one, whose row and answer are not made yet."""
    create(sim, "two", "admin")
    order: list[str] = []
    sim.scheduler.held = True
    two, users = Principal("two", admin=("*",)), sim.broker.users
    start(users.delete(ROOT, "two")).then(lambda name, _: order.append(f"deleted {name}"))
    start(users.delete(two, "root")).then(lambda _, error: order.append(type(error).__name__))
    start(users.rules.set(ROOT, Acl("t"))).then(lambda acl, _: order.append(f"set {acl.pattern if acl else None}"))
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert order == ["deleted two", "Forbidden", "set t"]
    rows = [(row.type, row.result) for row in reversed(sim.broker.audit.query(Query())[0])]
    assert rows[-3:] == [("user.delete", "success"), ("user.delete", "denied"), ("acl.set", "success")]


def test_a_hash_that_has_begun_counts_for_whoever_comes_later(sim: SimBroker) -> None:
    """The login that asked for it was given up: the thread is taken until it is done, and its result is not lost."""
    create(sim, "alice")
    sim.scheduler.held = True
    verify = sim.broker.users.authenticate_password
    gone = start(verify("alice", PASSWORD))
    gone.cancel()
    guesses = [Answer(sim, verify, "alice", b"guess %d" % n) for n in range(HASHES_AT_ONCE)]
    assert hashes_under_way(sim) == HASHES_AT_ONCE, "the one that was given up is among them"
    late = Answer(sim, verify, "alice", PASSWORD)
    sim.scheduler.finish()
    assert late.result[1].name == "alice" and not guesses[-1].told
    assert hashes_under_way(sim) == HASHES_AT_ONCE
