"""What the broker of one cell refuses, whatever door asks: topics of other cells, and changes that other cells would not know."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from quintet.broker.core import Broker, BrokerOptions
from quintet.broker.identity.access import EVERYTHING, Acl, Principal
from quintet.broker.identity.shared import Row, SharedIdentity
from quintet.broker.identity.users import ConfiguredUser, UserRow
from quintet.model.cells import CellMap
from quintet.model.errors import OtherCell
from quintet.model.tasks import start
from quintet.testing.line import SimBroker

ANN = Row("__users", b"ann", msgspec.json.encode(UserRow("ann", "", (), True, 1, 1, 1)))
ADMIN = Principal("root", admin=EVERYTHING)
CELLS = CellMap(2)
OURS, THEIRS = (next(f"n{i}".encode() for i in range(99) if CELLS.cell_of(f"n{i}".encode()) == cell) for cell in (0, 1))


def refuse(name: bytes) -> None:
    if CELLS.cell_of(name):
        raise OtherCell("not here")


@pytest.fixture
def sim() -> SimBroker:
    found = SimBroker(options=BrokerOptions(identity_followed=True))
    found.broker.topics.check_place = refuse
    return found


def test_a_topic_of_another_cell_is_neither_made_nor_missed(sim: SimBroker) -> None:
    topics = sim.broker.topics
    topics.ensure(OURS, True)
    assert topics.find(OURS).raw == OURS
    for ask in (topics.find, lambda name: topics.ensure(name, True), lambda name: topics.create(name, 1)):
        with pytest.raises(OtherCell):
            ask(THEIRS)
    assert len(topics) == 1
    topics.ensure(THEIRS, True, own=True)  # the broker's own: dead letters under a shortened name


CHANGES: list[Callable[[Broker], Any]] = [
    lambda broker: broker.users.create(ADMIN, "bob", b"long enough", ()),
    lambda broker: broker.users.delete(ADMIN, "ann"),
    lambda broker: broker.users.rules.set(ADMIN, Acl("t", True, (), ())),
    lambda broker: broker.keys.create(ADMIN, "", "k", 0),
    lambda broker: broker.keys.remove(ADMIN, "", "qk_0"),
    lambda broker: broker.quotas.set(ADMIN, "user", "ann", None, {"topics_max": 1}),
    lambda broker: broker.quotas.clear(ADMIN, "user", "ann"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_identity_is_changed_in_cell_0_alone(sim: SimBroker, number: int) -> None:
    """Not even by the configuration, which cell 0 reads, too."""
    told: list[Exception | None] = []
    sim.broker.configure_users([], [ConfiguredUser("ann", (), b"long enough", "")], told.append)
    sim.scheduler.run_until_idle()
    assert told == [None] and sim.broker.users.get("ann") is None
    SharedIdentity(sim.broker.users, sim.broker.keys, sim.broker.quotas).take([ANN], True)
    assert sim.broker.users.get("ann") is not None
    failed: list[Exception | None] = []
    start(CHANGES[number](sim.broker)).then(lambda _, error: failed.append(error))
    sim.scheduler.run_until_idle()
    (error,) = failed
    assert isinstance(error, OtherCell), error
