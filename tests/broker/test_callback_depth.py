"""Verbs over many things call back flat: the depth of the stack does not grow with their number.

Each scenario runs once with few things and once with MANY, and the deepest stack on the way is compared. A chain in which
one answer begins the next step within the call needs some frames for each, and ends in a RecursionError at about 1,000.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from quintet.broker.identity.access import Acl, Principal
from quintet.model.errors import UserNotFound
from quintet.model.tasks import start
from quintet.testing.line import SimBroker
from tests.protocols.flymq.helpers import Client, make_sim, request

FEW = 3
MANY = 60
ROOT = Principal("root", admin=("*",))
SLACK_FRAMES = 20  # less than MANY: a chain of one frame each is found

Scenario = Callable[[SimBroker, Client, int], None]


class Depth:
    """The deepest stack so far, counted from where it began."""

    def __init__(self) -> None:
        self.now = self.deepest = 0

    def __call__(self, _frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            self.now += 1
            self.deepest = max(self.deepest, self.now)
        elif event == "return":
            self.now -= 1


@contextmanager
def measured() -> Iterator[Depth]:
    depth, before = Depth(), sys.getprofile()
    sys.setprofile(depth)
    try:
        yield depth
    finally:
        sys.setprofile(before)


def deepest(scenario: Scenario, count: int) -> int:
    sim = make_sim()
    client = Client(sim, "admin")
    with measured() as depth:
        scenario(sim, client, count)
    return depth.deepest


def fill(client: Client, count: int, known: int) -> str:
    """A transaction over `count` topics, of which the first `known` are there before it."""
    client.exchange(b"".join(request("CREATE_TOPIC", topic=f"t{n}", partitions=1) for n in range(known)))
    txn = str(client.ask("TXN_BEGIN")["txn_id"])
    fields: dict[str, Any] = {"txn_id": txn, "key": b"", "data": b"x", "partition": 0}
    client.peer.feed(b"".join(request("TXN_PRODUCE", topic=f"t{n}", **fields) for n in range(count)))
    return txn


def commit_to_known_topics(sim: SimBroker, client: Client, count: int) -> None:
    txn = fill(client, count, count)
    client.exchange(b"")
    assert client.ask("TXN_COMMIT", txn_id=txn)["success"]


def commit_to_topics_partly_new(sim: SimBroker, client: Client, count: int) -> None:
    """The commit comes while the rows of the new topics are still on their way to the disk."""
    txn = fill(client, count, count // 2)
    client.peer.feed(request("TXN_COMMIT", txn_id=txn))
    *_, last = client.exchange(b"")
    assert client.read("TXN_COMMIT", last)["success"]


def replay_and_purge_dead_letters(sim: SimBroker, client: Client, count: int) -> None:
    client.produce("t", *[b"x"] * count)
    for offset in range(count):
        client.ask("DEAD_LETTER", topic="t", partition=0, offset=offset, error="e")
    told: list[object] = []
    ids = [f"0-{offset}" for offset in range(count)]
    start(sim.broker.dead.replay_many(b"t", ids)).then(lambda found, _error: told.append(found))
    sim.scheduler.run_until_idle()
    assert told == [(count, [])]
    client.ask("PURGE_DLQ", topic="t")


def delete_a_topic_with_groups(sim: SimBroker, client: Client, count: int) -> None:
    client.produce("t", b"x")
    for n in range(count):
        client.ask("SUBSCRIBE", topic="t", group=f"g{n}", partition=0, mode="earliest")
    client.ask("DELETE_TOPIC", topic="t")


def join_a_new_group_many_times(sim: SimBroker, client: Client, count: int) -> None:
    client.produce("t", b"x")
    client.exchange(
        b"".join(request("SUBSCRIBE", topic="t", group="g", partition=0, mode="earliest") for _ in range(count))
    )


def read_batch_after_batch(sim: SimBroker, client: Client, count: int) -> None:
    for _ in range(count):
        client.produce("t", b"x" * 100)
    sim.restart()  # nothing of it is in memory any more
    reader = Client(sim, "admin")
    assert len(reader.values("t")) == count
    reader.ask("PEEK", topic="t", partition=0, offset=0, max=count, since_ms=1, filter="")


def refuse_changes_that_wait_in_line(sim: SimBroker, _client: Client, count: int) -> None:
    """All are refused in the call that ends the change before them."""
    told: list[Exception | None] = []
    sim.scheduler.held = True
    start(sim.broker.users.rules.set(ROOT, Acl("t"))).then(lambda _, error: told.append(error))
    for _ in range(count):
        start(sim.broker.users.delete(ROOT, "nobody")).then(lambda _, error: told.append(error))
    sim.scheduler.held = False
    sim.scheduler.run_until_idle()
    assert [type(error) for error in told] == [type(None)] + [UserNotFound] * count


SCENARIOS: tuple[Scenario, ...] = (
    commit_to_known_topics,
    commit_to_topics_partly_new,
    replay_and_purge_dead_letters,
    delete_a_topic_with_groups,
    join_a_new_group_many_times,
    read_batch_after_batch,
    refuse_changes_that_wait_in_line,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_depth_of_callbacks_does_not_grow(scenario: Scenario) -> None:
    few, many = deepest(scenario, FEW), deepest(scenario, MANY)
    assert many <= few + SLACK_FRAMES, f"{FEW} need a stack of {few} frames, {MANY} one of {many}"


def test_a_chain_of_callbacks_is_found() -> None:
    """The control: one frame more for each thing."""

    def step(left: int) -> None:
        if left:
            step(left - 1)

    def chain(_sim: SimBroker, _client: Client, count: int) -> None:
        step(count)

    assert deepest(chain, MANY) > deepest(chain, FEW) + SLACK_FRAMES
