"""A follower answers reads from its replica: rights as they are applied, and never with a state that is older than the read allows.

Two nodes with real logs on simulated disks, over a WAL in memory. The leader has a whole broker, the follower a FollowerBroker.
"""

from collections.abc import Callable
from typing import TypeVar

import pytest

from quintet import kernel
from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.follower import WAIT_US, FollowerBroker, Need, tables_are_there
from quintet.broker.identity.access import Acl, Credential, Principal, hash_secret
from quintet.log.replicated.engine import TICK_US
from quintet.log.replicated.freshness import ANSWERS_MAX, Freshness
from quintet.model.errors import AuthError, Behind, Forbidden, QuintetError, TooOld
from quintet.model.tasks import Promise, Verb, start
from tests.log.cell_nodes import LEASE_US, Cell, CellNode

T = TypeVar("T")
AGE_US = 4 * LEASE_US
SECRET = b"a key of the configuration"
ADMIN = Principal("admin", admin=("*",))


class Pair:
    """A leader with a broker, and a follower that answers reads."""

    def __init__(self) -> None:
        self.cell = Cell()
        self.cell.run(5 * LEASE_US)
        leader = self.cell.leader()
        [self.node] = [node for node in self.cell.nodes if node is not leader]
        assert not tables_are_there(self.node.log)
        options = BrokerOptions(entropy=bytes)
        self.broker = Broker(leader.log, self.cell.scheduler, options, lambda kind, fields: None)
        self.broker.set_credentials([Credential("reader", hash_secret(SECRET))])
        self.run()
        assert tables_are_there(self.node.log)
        self.said: list[tuple[str, dict[str, object]]] = []
        self.follower = FollowerBroker(
            self.node.log, self.cell.scheduler, options, (), lambda kind, fields: self.said.append((kind, fields)),
            node="n1", age_us=AGE_US, leader=lambda: "n0.example:8815",
        )  # fmt: skip

    def run(self, us: int = LEASE_US) -> None:
        for _ in range(us // TICK_US):
            self.broker.tick()
            self.cell.run(TICK_US)

    def wait(self, promise: Promise[T]) -> T | None:
        """Turn until it is completed."""
        results: list[tuple[T | None, Exception | None]] = []
        promise.then(lambda result, error: results.append((result, error)))
        for _ in range(5 * WAIT_US // TICK_US):
            if results:
                break
            self.run(TICK_US)
        [(result, error)] = results
        if error is not None:
            raise error
        return result

    def do(self, verb: Verb[T]) -> T | None:
        return self.wait(start(verb))

    def publish(self, name: bytes, count: int) -> None:
        topic = self.broker.topics.ensure(name, True)
        for number in range(count):
            topic.publish(kernel.build([b"%d" % number], origin=b"test:1"), 1, False, None, 0)
        self.run()

    def ends(self) -> dict[str, list[int]]:
        self.follower.follow()
        return {topic.name: [part.visible for part in topic.partitions] for topic in self.follower.topics.all()}


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_a_follower_has_the_topics_and_records_of_the_leader(pair: Pair) -> None:
    pair.publish(b"orders", 5)
    assert pair.ends() == {"orders": [5]}
    mine, its = pair.follower.topics.find(b"orders"), pair.broker.topics.find(b"orders")
    assert (mine.spec.id, mine.spec.identity) == (its.spec.id, its.spec.identity)
    before = mine
    pair.do(pair.broker.delete_topic(b"orders"))
    pair.run()
    assert pair.ends() == {}
    assert before.deleted
    pair.publish(b"orders", 2)
    assert pair.ends() == {"orders": [2]}, "another topic of the same name"
    assert pair.follower.topics.find(b"orders") is not before
    pair.do(pair.broker.schemas.register("orders", "json", b'{"type":"object"}', None))
    pair.run()
    pair.follower.follow()
    assert pair.follower.schemas.get("orders").version == 1


def test_whoever_is_revoked_is_refused_as_soon_as_it_is_applied(pair: Pair) -> None:
    access = pair.follower.access
    identity, principal = pair.follower.authenticate(SECRET)
    access.require(principal, "subscribe", "orders")
    pair.do(pair.broker.users.create(ADMIN, "ann", b"a long password", ("consumer",)))
    pair.run()
    pair.follower.follow()
    found = pair.do(pair.follower.users.authenticate_password("ann", b"a long password"))
    assert found is not None
    ann = found[0]
    assert access.current(ann) is not None
    pair.do(pair.broker.users.rules.set(ADMIN, Acl("orders", users=("bob",))))
    pair.broker.set_credentials([])
    pair.do(pair.broker.users.delete(ADMIN, "ann"))
    pair.run()
    assert access.current(identity) is not None, "nothing is known before it is folded"
    pair.follower.follow()
    assert access.current(identity) is None
    assert access.current(ann) is None
    with pytest.raises(AuthError):
        pair.follower.authenticate(SECRET)
    with pytest.raises(AuthError):
        pair.do(pair.follower.users.authenticate_password("ann", b"a long password"))
    with pytest.raises(Forbidden):
        access.require(principal, "subscribe", "orders")
    assert {fields["type"] for kind, fields in pair.said if kind == "audit_at_follower"} >= {
        "auth.failure",
        "access.denied",
    }


def asked(pair: Pair, max_age_us: int = 0, *needs: Need) -> QuintetError | None:
    try:
        pair.do(pair.follower.wait_until_fresh(max_age_us, needs))
    except (TooOld, Behind) as error:
        return error
    return None


def fall_behind(node: CellNode, lag_us: int) -> None:
    """It reads each record so late, and is still told at once where the WAL ends."""
    scheduler, records = node.cell.scheduler, node.cell.wal.records
    ends: list[tuple[int, int]] = []

    def full() -> bool:
        now = scheduler.monotonic()
        ends.append((now, len(records)))
        return node.log.replica.fold.next >= max((end for at, end in ends if at <= now - lag_us), default=0)

    node.client.full = full


def is_held_to_its_age() -> bool:
    """Is a follower that reads late refused, although it is told where the WAL ends, and hears of a leader?"""
    pair = Pair()
    pair.publish(b"orders", 5)
    assert asked(pair) is None
    fall_behind(pair.node, LEASE_US)
    pair.run(5 * LEASE_US)
    assert pair.node.log.leader_node is not None
    return isinstance(asked(pair, LEASE_US // 2), TooOld) and asked(pair, 2 * LEASE_US) is None


def test_a_read_is_refused_when_the_state_may_be_too_old(pair: Pair) -> None:
    pair.publish(b"orders", 5)
    assert asked(pair) is None
    assert asked(pair, LEASE_US // 2) is None
    pair.node.client.full = lambda: True  # it reads no more
    pair.publish(b"orders", 5)
    error = asked(pair, LEASE_US)
    assert isinstance(error, TooOld)
    assert "node n1 follows, and its state may be" in error.message
    assert "this read allows 1 s (max_age_seconds)" in error.message
    assert "read at n0.example:8815" in error.hint
    assert pair.ends() == {"orders": [5]}
    pair.node.client.full = lambda: False
    pair.run()
    assert asked(pair) is None
    assert pair.ends() == {"orders": [10]}


@pytest.mark.parametrize(
    "sabotage",
    [
        lambda self, applied: setattr(
            self, "since", self._answers[-1][1] if self._answers else self.since
        ),  # not applied
        lambda self, applied: setattr(self, "since", 1 << 60),
    ],
)
def test_a_sabotaged_age_is_found_out(
    monkeypatch: pytest.MonkeyPatch, sabotage: Callable[[Freshness, int], None]
) -> None:
    assert is_held_to_its_age()
    monkeypatch.setattr(Freshness, "look", sabotage)
    assert not is_held_to_its_age()


def test_a_read_waits_for_its_offsets_and_is_then_refused(pair: Pair) -> None:
    pair.publish(b"orders", 5)
    topic = pair.broker.topics.find(b"orders")
    identity = f"{pair.broker.log.identity}/{topic.spec.identity}"
    assert asked(pair, 0, Need("orders", identity, {0: 5})) is None
    waiting = start(pair.follower.wait_until_fresh(0, [Need("orders", "", {0: 6})]))
    pair.run(WAIT_US // 4)
    assert waiting.pending
    pair.publish(b"orders", 1)
    pair.wait(waiting)
    error = asked(pair, 0, Need("orders", "", {0: 7}))
    assert isinstance(error, Behind)
    assert "has partition 0 of topic 'orders' up to offset 6; the read needs 7, after a wait of 2 s" in error.message
    assert isinstance(asked(pair, 0, Need("orders", "other/other", {})), Behind)
    assert isinstance(asked(pair, 0, Need("unknown", "", {0: 1})), Behind)


def test_reads_go_on_through_a_change_of_leaders_within_their_age(pair: Pair) -> None:
    pair.publish(b"orders", 5)
    pair.cell.leader().kill()
    pair.run(LEASE_US // 2)
    assert asked(pair, LEASE_US) is None, "nobody can have written meanwhile"
    pair.cell.wal.cut = True
    pair.run(3 * LEASE_US)
    assert isinstance(asked(pair, LEASE_US), TooOld), "what was written meanwhile is not known"
    assert asked(pair, 100 * LEASE_US) is None


def test_what_was_read_is_in_the_log_of_the_node(pair: Pair) -> None:
    for first, last in ((0, 10), (10, 20), (50, 60)):
        pair.follower.events.delivered("flight", "ann", "orders", 0, first, last)
    pair.run()
    pair.follower.tick()
    reads = [
        (fields["user"], fields["first"], fields["last"]) for kind, fields in pair.said if kind == "read_at_follower"
    ]
    assert reads == [("ann", 0, 19), ("ann", 50, 59)]


class Part:
    def __init__(self) -> None:
        self.visible = self.end = 0


def test_a_constant_lag_is_a_constant_age() -> None:
    freshness, part = Freshness(), Part()
    for second in range(1, 100):
        freshness.told(second, second)
        freshness.touched(part)
        part.end, part.visible = second - 4, second - 5
        freshness.look(second - 5)
        if second > 12:
            assert freshness.since is not None
            assert 5 <= second - freshness.since <= 7
    for second in range(2 * ANSWERS_MAX):
        freshness.told(1_000_000, second)
    assert len(freshness._answers) <= ANSWERS_MAX


def test_a_batch_that_is_not_visible_is_waited_for() -> None:
    freshness, part = Freshness(), Part()

    def look(applied: int) -> int | None:
        freshness.look(applied)
        return freshness.since

    part.end = 1
    freshness.touched(part)
    freshness.told(3, 100)
    assert look(3) is None
    part.visible = 1
    assert look(3) == 100
    part.end = 2
    freshness.told(4, 200)
    assert look(4) == 100
    freshness.dropped(part)
    assert look(4) == 200
