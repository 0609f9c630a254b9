"""Which node should lead each cell: evenly, the same for all who know the same nodes, few moves when one comes or goes."""

from collections import Counter

import pytest

from quintet.cells.sharing import share, wanted

NODES = [f"n{number}" for number in range(12)]


@pytest.mark.parametrize("cells", [1, 2, 7, 8, 64])
def test_no_node_has_two_cells_more_than_another(cells: int) -> None:
    for count in range(1, len(NODES) + 1):
        loads = Counter(share(cells, NODES[:count]))
        assert sum(loads.values()) == cells
        assert max(loads.values()) - min(loads[name] for name in NODES[:count]) <= 1


def test_all_who_know_the_same_nodes_decide_the_same() -> None:
    assert share(8, ["n2", "n0", "n1", "n1"]) == share(8, ["n1", "n2", "n0"])
    assert share(8, []) == []


def test_most_cells_stay_when_a_node_comes_or_goes() -> None:
    """By round-robin three of four would move: 48 of 64."""
    for count in range(3, 8):
        before, after = share(64, NODES[:count]), share(64, NODES[: count - 1])
        must = before.count(NODES[count - 1])
        assert sum(a != b for a, b in zip(before, after, strict=True)) <= 2 * must


def test_a_moved_cell_stays_while_its_node_is_up() -> None:
    up = NODES[:3]
    own = share(4, up)[1]
    other = next(name for name in up if name != own)
    assert wanted(1, 4, up) == own
    assert wanted(1, 4, up, moved=other) == other
    assert wanted(1, 4, [name for name in up if name != other], moved=other) != other
    assert wanted(1, 4, up, moved=other, avoided=(other,)) != other


def test_a_drained_node_leads_only_if_there_is_no_other() -> None:
    up = NODES[:3]
    assert all(wanted(cell, 8, up, avoided=("n1",)) != "n1" for cell in range(8))
    assert wanted(3, 8, ["n1"], avoided=("n1",)) == "n1"
    assert wanted(3, 8, []) == ""
