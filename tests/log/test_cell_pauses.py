"""Followers that were stopped for a while, in a cell with real logs: one that is woken does not take the role from a leader that is well."""

from collections.abc import Callable
from typing import Any

import pytest

from quintet.log.replicated.engine import TICK_US
from quintet.log.replicated.pauses import Pauses
from quintet.testing.sim import SimScheduler
from tests.log.cell_nodes import LEASE_US, Cell, CellNode


@pytest.fixture
def cell() -> Cell:
    found = Cell()
    found.run(3 * LEASE_US)
    return found


class PausedScheduler:
    """Calls wait for as long as it is paused: what a process does that is stopped."""

    def __init__(self, scheduler: SimScheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Callable[[], None]] = []
        self.paused = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def later(self, us: int, call: Callable[[], None]) -> None:
        self._scheduler.later(us, lambda: self._waiting.append(call) if self.paused else call())

    def wake(self) -> None:
        self.paused = False
        while self._waiting:
            self._waiting.pop(0)()


def pause(cell: Cell, node: CellNode, us: int) -> None:
    """Neither its loop nor its reading thread runs. Its loop is the first that does when it is woken."""
    scheduler = PausedScheduler(cell.scheduler)
    node.log._scheduler = scheduler
    cell.run(TICK_US)
    full, node.client.full, scheduler.paused = node.client.full, lambda: True, True
    cell.run(us)
    node.client.full = full
    scheduler.wake()


def test_a_follower_that_was_stopped_reads_before_it_claims(cell: Cell) -> None:
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    pause(cell, follower, 4 * LEASE_US)
    cell.run(2 * LEASE_US)
    assert cell.leader() is leader and not cell.ended()
    leader.kill()
    pause(cell, follower, 4 * LEASE_US)
    cell.run(LEASE_US)
    assert follower.log.replica.leads, "there is nothing to read, and nobody leads"


def test_a_follower_that_claims_as_soon_as_it_is_woken_is_found_out(
    cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pauses, "may_claim", lambda self, monotonic: True)
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    pause(cell, follower, 4 * LEASE_US)
    cell.run(2 * LEASE_US)
    assert cell.ended() is leader
