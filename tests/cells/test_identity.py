"""Users, keys, rules and quotas of cell 0 as another cell has them, over legs that the test delivers: when a change is answered, what a
cell that was away goes by, and controls that must be found out."""

from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from quintet.broker.core import BrokerOptions
from quintet.broker.identity.access import EVERYTHING, Acl, Principal
from quintet.broker.identity.shared import SharedIdentity
from quintet.model.errors import CellsBehind, QuintetError
from quintet.model.tasks import Promise, start
from quintet.net.cells import wire
from quintet.net.cells.identity import TAKEN_S, Following, FollowSession, Spreading
from quintet.net.cells.legs import News
from quintet.testing.line import SimBroker

ADMIN = Principal("root", admin=EVERYTHING)
CHUNK = 7  # bytes: no frame arrives whole
CELLS = (1, 2)
STEPS = 300


class Wire:
    """A leg, whose bytes arrive when the test says so."""

    full = False

    def __init__(self, cell: int, sink: Any, _turns: object, _said: wire.Opening) -> None:
        self.cell, self.sink = cell, sink
        self.sent = self.answered = 0
        self.data = b""
        self.lost: Callable[[], None] | None = None

    def connect(self, _path: str, lost: Callable[[], None]) -> None:
        self.lost = lost
        World.now.wires[self.cell].append(self)

    def send(self, data: bytes) -> None:
        self.sent += len(data)
        self.data += data

    def end(self) -> None:
        self.lost = None


class LateSpreading(Spreading):
    """Its timers run when the test says so."""

    make_leg = cast(Any, Wire)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((seconds, call))

    def run(self, seconds: float) -> None:
        """All timers of this length."""
        due = [call for each, call in self.timers if each == seconds]
        self.timers = [each for each in self.timers if each[0] != seconds]
        for call in due:
            call()


class Hasty(LateSpreading):
    """The control: a change is answered although no cell has it."""

    def spread(self) -> Promise[None]:
        done: Promise[None] = Promise()
        done.resolve(None)
        return done


class World:
    """Cell 0 and two others."""

    now: "World"

    def __init__(self, kind: type[LateSpreading] = LateSpreading) -> None:
        World.now = self
        self.wires: dict[int, list[Wire]] = {cell: [] for cell in CELLS}
        self.home = SimBroker()
        self.others = {cell: SimBroker(options=BrokerOptions(identity_followed=True)) for cell in CELLS}
        self.following = {cell: Following(shared(sim)) for cell, sim in self.others.items()}
        self.sessions: dict[Wire, FollowSession] = {}
        self.spreading = kind(shared(self.home), None, dict.fromkeys(CELLS, ""))
        changes = (self.home.broker.users.changes, self.home.broker.quotas.changes)
        for each in changes:
            each.spread = self.spreading.spread
        self.spreading.start()

    def deliver(self, cell: int, most: int = 1 << 30) -> None:
        """So many bytes of the newest leg, in small pieces."""
        leg = self.wires[cell][-1]
        session = self.sessions.setdefault(leg, self.session(cell, len(self.wires[cell])))
        taken, leg.data = leg.data[:most], leg.data[most:]
        for at in range(0, len(taken), CHUNK):
            session.receive(memoryview(taken[at : at + CHUNK]), 0)
        if session.closing is None and not session.unanswered:
            leg.answered = leg.sent - len(leg.data)
            leg.sink.completed(News(leg, []), None, None)  # type: ignore[arg-type]
        self.home.scheduler.run_until_idle()

    def session(self, cell: int, number: int) -> FollowSession:
        connection = type("Accepted", (), {"id": number})()
        return FollowSession(self.following[cell], connection)

    def lose(self, cell: int) -> None:
        leg = self.wires[cell][-1]
        assert leg.lost is not None
        leg.lost()

    def do(self, verb: Any) -> list[Exception | None]:
        """What it ends with, as soon as it does."""
        told: list[Exception | None] = []
        start(verb).then(lambda _, error: told.append(error))
        self.home.scheduler.run_until_idle()
        return told

    def rule(self, pattern: str, public: bool) -> list[Exception | None]:
        return self.do(self.home.broker.users.rules.set(ADMIN, Acl(pattern, public)))

    def may(self, cell: int, topic: str = "t") -> bool:
        """Somebody without any right of its own."""
        return self.others[cell].broker.access.allowed(Principal("eve", (), ()), "publish", topic)


def shared(sim: SimBroker) -> SharedIdentity:
    return SharedIdentity(sim.broker.users, sim.broker.keys, sim.broker.quotas)


def revoked_too_early(world: World) -> bool:
    """Is a revocation answered while another cell still grants what was revoked?"""
    granted = world.rule("t", True)
    for cell in CELLS:
        world.deliver(cell)
    assert granted == [None] and all(map(world.may, CELLS))
    told = world.rule("t", False)
    early = False
    for cell in (*CELLS, *CELLS):
        early |= bool(told) and any(map(world.may, CELLS))
        world.deliver(cell)
    assert told == [None]
    return early


def test_a_revocation_is_answered_when_every_cell_goes_by_it() -> None:
    assert not revoked_too_early(World())


def test_an_answer_before_the_cells_have_it_is_found_out() -> None:
    assert revoked_too_early(World(Hasty))


def test_half_a_row_is_not_an_acknowledgement() -> None:
    world = World()
    world.deliver(1)
    world.deliver(2)
    told = world.rule("t", True)
    world.deliver(1)
    world.deliver(2, 3)
    assert not told and not world.may(2)
    world.deliver(2)
    assert told == [None] and world.may(2)


def test_a_cell_that_takes_nothing_is_named() -> None:
    world = World()
    told = world.rule("t", True)
    world.deliver(1)
    world.spreading.run(TAKEN_S)
    (error,) = told
    assert isinstance(error, CellsBehind) and "the change was made, and cell 2 of this broker" in str(error)
    world.deliver(2)
    assert world.may(2), "it follows as soon as it can"


def test_a_cell_opens_no_door_before_it_has_all_rows() -> None:
    world = World()
    assert not world.following[1].there.is_set()
    world.deliver(1, 5)
    assert not world.following[1].there.is_set()
    world.deliver(1)
    assert world.following[1].there.is_set()


def test_a_change_while_a_leg_is_lost_waits_for_the_next_one() -> None:
    world = World()
    for cell in CELLS:
        world.deliver(cell)
    world.rule("t", True)
    for cell in CELLS:
        world.deliver(cell)
    world.lose(1)
    told = world.rule("t", False)
    world.deliver(2)
    assert not told and world.may(1)
    world.spreading.run(0.1)
    assert len(world.wires[1]) == 2
    world.deliver(1)
    assert told == [None] and not world.may(1)


def test_an_older_leg_of_cell_0_counts_no_more() -> None:
    """Cell 0 was started again; what its last process had said waits in the socket."""
    world = World()
    old = world.wires[1][0]
    world.rule("t", True)
    world.lose(1)
    world.spreading.run(0.1)
    world.deliver(1)
    assert world.may(1)
    stale = world.session(1, 0)
    stale.receive(memoryview(old.data), 0)
    assert world.may(1) and stale.closing is not None


def test_a_cell_that_is_behind_gets_all_rows_when_it_goes_on() -> None:
    world = World()
    for cell in CELLS:
        world.deliver(cell)
    leg = world.wires[1][0]
    world.rule("before", True)
    leg.full = True
    sent = leg.sent
    told = [world.rule(f"t{number}", True) for number in range(100)]
    assert leg.sent == sent, "what a stopped process does not take is not kept for it"
    world.deliver(2)
    leg.full = False
    world.deliver(1)
    world.deliver(1)
    assert told == [[None]] * 100 and all(world.may(1, f"t{number}") for number in range(100))


@pytest.mark.parametrize("seed", range(3))
def test_after_any_changes_all_cells_go_by_the_same(seed: int) -> None:
    """Users, rules, keys and quotas; legs are lost and delivered in pieces."""
    chance, world = Random(seed), World()
    broker = world.home.broker
    names = [f"u{number}" for number in range(4)]
    for _ in range(STEPS):
        name = chance.choice(names)
        verb = chance.choice(
            (
                lambda name=name: broker.users.rules.set(ADMIN, Acl(f"{name}*", chance.random() < 0.5, (name,), ())),
                lambda name=name: broker.users.rules.delete(ADMIN, f"{name}*"),
                lambda name=name: broker.quotas.set(ADMIN, "user", name, None, {"topics_max": chance.randrange(9)}),
                lambda name=name: broker.quotas.clear(ADMIN, "user", name),
                lambda name=name: broker.users.create(ADMIN, name, b"long enough", chance.choice(((), ("producer",)))),
                lambda name=name: broker.users.update(ADMIN, name, ("consumer",), chance.random() < 0.7, None),
                lambda name=name: broker.users.delete(ADMIN, name),
                lambda name=name: broker.keys.create(ADMIN, name, "k", 0),
            )
        )
        ended = world.do(verb())
        for cell in CELLS:
            if chance.random() < 0.1:
                world.lose(cell)
                world.spreading.run(0.1)
            world.deliver(cell, chance.randrange(1, 400))
        assert all(error is None or isinstance(error, QuintetError) for error in ended)
    for cell in CELLS:
        world.deliver(cell)
    expected = sorted(shared(world.home).rows())
    assert expected
    for sim in world.others.values():
        access, home = sim.broker.access, broker.access
        assert sorted(shared(sim).rows()) == expected
        assert (access._users, access._disabled, access._keys) == (home._users, home._disabled, home._keys)
        assert (access._exact, access._prefixes) == (home._exact, home._prefixes)
        for name in names:
            assert sim.broker.quotas.bounds("user", name) == broker.quotas.bounds("user", name)
