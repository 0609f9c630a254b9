"""One of several cells moves: a leader that leaves is replaced without waiting, and where the cell belongs is kept. Simulated."""

from random import Random

import pytest

from quintet.cells.placing import Placing
from quintet.log.replicated.records import OtherLayout, Placement
from quintet.net.cluster.wire import PeerRefused, PlaceAsked
from tests.log.cell_nodes import LEASE_US, Cell, CellNode

LAYOUT = "2 cells, no places, dead letters in .dlq"


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    monkeypatch.setattr(CellNode, "layout", LAYOUT)
    made = Cell(3)
    made.run(3 * LEASE_US)
    return made


def close(cell: Cell, node: CellNode, successor: str | None) -> None:
    """As a process does that ends: what was taken before is still written."""
    cell.load(node, 20, Random(1))
    closed: list[bool] = []
    node.log.successor = successor
    node.log.close(lambda: closed.append(True))
    cell.run(LEASE_US // 4)
    assert closed


def start_again(cell: Cell, node: CellNode) -> None:
    node.disk.kill()
    node.start()
    cell.run(LEASE_US)


def test_the_named_node_leads_without_waiting_for_a_lease(cell: Cell) -> None:
    leader = cell.leader()
    successor = next(node for node in reversed(cell.nodes) if node is not leader)
    close(cell, leader, successor.name)
    assert cell.leader() is successor
    start_again(cell, leader)
    cell.load(successor, 20, Random(2))
    cell.run(2 * LEASE_US)
    cell.check()
    assert len(cell.acked) >= 40


def test_any_node_leads_at_once_if_none_is_named(cell: Cell) -> None:
    leader = cell.leader()
    patient, other = (node for node in cell.nodes if node is not leader)
    patient.log.replica.patience_us = LEASE_US
    close(cell, leader, "")
    assert cell.leader() is other


def test_a_leader_that_says_nothing_is_waited_for(cell: Cell) -> None:
    """The control: without a release nobody leads before the silence is over."""
    leader = cell.leader()
    close(cell, leader, None)
    assert not any(node.log.replica.leads for node in cell.nodes if node is not leader)
    cell.run(4 * LEASE_US)
    assert any(node.log.replica.leads for node in cell.nodes if node is not leader)


def test_others_lead_if_the_named_node_is_gone(cell: Cell) -> None:
    leader = cell.leader()
    named, other = (node for node in cell.nodes if node is not leader)
    named.kill()
    close(cell, leader, named.name)
    assert not other.log.replica.leads
    cell.run(3 * LEASE_US)
    assert other.log.replica.leads


def test_where_a_cell_belongs_is_known_to_all_and_kept(cell: Cell) -> None:
    placement = Placement(LAYOUT, "n2", ("n0", "n1"))
    counted: list[bool] = []
    cell.leader().log.place(placement, lambda: counted.append(True))
    cell.run(3 * LEASE_US)
    assert counted
    assert [node.log.placement for node in cell.nodes] == [placement] * 3
    node = next(node for node in cell.nodes if node is not cell.leader())
    node.kill()
    cell.wal.begin = node.log.synced  # what said it is trimmed: the mark has it
    node.start()
    assert node.log.placement == placement


def test_what_two_operators_ask_at_once_counts_both(cell: Cell) -> None:
    log = cell.leader().log
    log.place(Placement(LAYOUT), lambda: None)
    cell.run(LEASE_US)
    placing, counted = Placing(log), list[str]()
    placing.ask(PlaceAsked(drain="n0"), lambda: counted.append("n0"))
    placing.ask(PlaceAsked(drain="n1"), lambda: counted.append("n1"))  # the first one is not confirmed yet
    with pytest.raises(PeerRefused, match="n0 is drained"):
        placing.ask(PlaceAsked(move="n0"), lambda: None)
    assert log.placement == Placement(LAYOUT)
    cell.run(LEASE_US)
    assert counted == ["n0", "n1"]
    assert [node.log.placement for node in cell.nodes] == [Placement(LAYOUT, "", ("n0", "n1"))] * 3
    placing.ask(PlaceAsked(fill="n0"), lambda: None)
    placing.ask(PlaceAsked(move="n0"), lambda: None)
    cell.run(LEASE_US)
    assert log.placement == Placement(LAYOUT, "n0", ("n1",))


def test_a_node_of_another_layout_takes_no_part(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    cell.leader().log.place(Placement(LAYOUT), lambda: None)
    cell.run(3 * LEASE_US)
    node = next(node for node in cell.nodes if node is not cell.leader())
    node.kill()
    monkeypatch.setattr(node, "layout", "2 cells, orders.=1, dead letters in .dlq")
    with pytest.raises(OtherLayout, match=r"^E1519: the WAL was made for 2 cells, no places.*orders\.=1"):
        node.start()
    monkeypatch.setattr(CellNode, "layout", "3 cells, no places, dead letters in .dlq")
    fresh = CellNode(cell, "n9", 2 * LEASE_US)
    cell.run(LEASE_US)
    assert "E1519" in fresh.reasons[0]
    assert not fresh.log.replica.leads
