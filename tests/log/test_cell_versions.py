"""Nodes of two versions in one cell: an upgrade one node at a time, and back. Logs on simulated disks, a WAL in memory.

There is one version of WAL records so far. The later one is made up here: its records differ by their number only, which is all that an older
node looks at.
"""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from quintet.log.replicated.engine import ReplicatedLog
from quintet.log.replicated.records import VERSION_AT, NewerRecord, parse
from tests.log.cell_nodes import LEASE_US, Cell, CellNode

OLD, NEW = 1, 2


def versions(cell: Cell) -> list[int]:
    """Of all records in the WAL."""
    return [data[VERSION_AT] for data in cell.wal.records]


def agree(cell: Cell, version_max: int = 0) -> None:
    def others(own: CellNode) -> Callable[[], Sequence[int] | None]:
        def read() -> Sequence[int] | None:
            rest = [node for node in cell.nodes if node is not own]
            return None if any(node.log._over for node in rest) else [node.reads_version for node in rest]

        return read

    for node in cell.nodes:
        node.log.agree_on_version(others(node), version_max)


def started() -> Cell:
    cell = Cell(3)
    agree(cell)
    cell.run(3 * LEASE_US)
    return cell


def upgraded(cell: Cell, node: CellNode, version: int = NEW, version_max: int = 0) -> None:
    """The node is stopped, and started with another build."""
    node.kill()
    node.reads_version = version
    node.start()
    agree(cell, version_max)
    cell.run(5 * LEASE_US)
    if node.reasons == []:
        cell.load(cell.leader(), 20, Random(version))
        cell.run(2 * LEASE_US)


def followers(cell: Cell) -> list[CellNode]:
    return [node for node in cell.nodes if node is not cell.leader()]


def test_nodes_are_upgraded_one_by_one_and_nothing_is_lost() -> None:
    cell = started()
    old = cell.leader()
    for node in followers(cell):
        upgraded(cell, node)
        assert cell.leader() is old, "an old leader with a new follower"
        cell.check()
    old.kill()
    cell.run(4 * LEASE_US)
    assert cell.leader() is not old
    old.start()  # a new leader with an old follower
    agree(cell)
    cell.load(cell.leader(), 20, Random(3))
    cell.run(3 * LEASE_US)
    cell.check()
    assert set(versions(cell)) == {OLD}, "the old one could read everything"
    upgraded(cell, old)
    cell.check()
    assert versions(cell)[-1] == NEW, "all of them read it now"
    assert any(kind == "wal_version_raised" for node in cell.nodes for kind, _ in node.reports)


def test_an_older_node_stops_at_a_newer_record_and_loses_nothing() -> None:
    cell = started()
    for node in cell.nodes:
        upgraded(cell, node)
    late = followers(cell)[0]
    assert versions(cell)[-1] == NEW
    upgraded(cell, late, OLD)
    assert "reads versions up to 1" in late.reasons[0]
    assert "upgrade this node" in late.reasons[0]
    upgraded(cell, late)
    cell.check()


def test_with_the_version_held_back_an_upgrade_can_be_undone() -> None:
    cell = started()
    for node in cell.nodes:
        upgraded(cell, node, version_max=OLD)
    assert set(versions(cell)) == {OLD}
    for node in cell.nodes:
        upgraded(cell, node, OLD, version_max=OLD)
        assert node.reasons == []
    cell.check()


def test_a_node_that_does_not_answer_holds_the_version_back() -> None:
    cell = started()
    away = followers(cell)[0]
    for node in [node for node in cell.nodes if node is not away]:
        upgraded(cell, node)
    away.kill()
    cell.run(5 * LEASE_US)
    assert set(versions(cell)) == {OLD}
    away.start()
    cell.run(2 * LEASE_US)
    cell.check()


def test_a_leader_that_asks_nobody_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: it writes the newest version it knows, and an old follower ends."""

    def raise_at_once(self: ReplicatedLog) -> None:
        self.replica.version = self.replica.newest

    monkeypatch.setattr(ReplicatedLog, "_raise_version", raise_at_once)
    cell = started()
    cell.leader().log.replica.newest = NEW
    cell.run(3 * LEASE_US)
    assert all("reads versions up to 1" in node.reasons[0] for node in cell.nodes if not node.log.replica.leads)
    with pytest.raises(NewerRecord) as caught:
        parse(cell.wal.records[-1])
    assert caught.value.code == "E1510"
