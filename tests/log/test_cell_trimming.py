"""The WAL of a cell is trimmed below what two nodes have synced, and never above: nodes on simulated disks, a WAL in memory."""

import os
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from quintet.log.replicated import trimming
from quintet.log.replicated.trimming import LOOK_US, WalTrimmed, trim_point
from tests.log.cell_files import Wrong
from tests.log.cell_nodes import LEASE_US, Cell, CellNode
from tests.log.cell_trims import TrimmingWorld

KEPT_US = 4 * LOOK_US
SEEDS = 20_000 if os.environ.get("QUINTET_TEST_LONG") else 200
CONTROL_SEEDS = 400  # within which each sabotage must be found


def trims(cell: Cell, kept_us: int = 0) -> None:
    """Every node trims while it leads; those that run are asked."""

    def others(own: CellNode) -> list[int]:
        return [node.log.synced for node in cell.nodes if node is not own and not node.log._over]

    for node in cell.nodes:
        node.log.trim_with(lambda node=node: others(node), kept_us)  # type: ignore[misc]


def started(nodes: int, kept_us: int = 0) -> Cell:
    cell = Cell(nodes)
    trims(cell, kept_us)
    cell.run(3 * LEASE_US)
    return cell


def followers(cell: Cell) -> list[CellNode]:
    return [node for node in cell.nodes if node is not cell.leader()]


def test_the_point_is_what_two_nodes_have_synced() -> None:
    assert trim_point(10, []) == 0, "one node is not enough"
    assert trim_point(10, [7]) == 7
    assert trim_point(7, [10]) == 7
    assert trim_point(10, [7, 3]) == 7
    assert trim_point(3, [10, 7]) == 3, "never above what the leader itself has synced"


def test_a_trimmed_wal_loses_nothing_through_take_overs() -> None:
    cell, rng = started(3, LOOK_US), Random(1)
    begins = [0]
    for _ in range(3):
        old = cell.leader()
        cell.load(old, 60, rng)
        cell.run(3 * LOOK_US)
        begins.append(cell.wal.begin)
        assert begins[-1] > begins[-2], "nothing was trimmed"
        assert all(cell.wal.begin <= node.log.synced for node in cell.nodes)
        old.kill()
        cell.run(4 * LEASE_US)
        cell.load(cell.leader(), 60, rng)
        old.start()
        trims(cell, LOOK_US)
        cell.run(3 * LEASE_US)
        cell.check()
    assert len(cell.acked) >= 3 * 60
    assert [node.reasons for node in cell.nodes] == [[], [], []]


def test_what_one_node_alone_has_synced_stays() -> None:
    cell = started(2)
    [follower] = followers(cell)
    follower.kill()
    cell.load(cell.leader(), 60, Random(2))
    cell.run(3 * LOOK_US)
    assert cell.wal.begin <= follower.log.synced < cell.leader().log.synced
    follower.start()
    cell.run(3 * LEASE_US)
    cell.check()


def test_what_was_synced_lately_stays() -> None:
    cell = Cell(2)
    trims(cell, KEPT_US)
    cell.run(3 * LEASE_US)
    cell.load(cell.leader(), 60, Random(3))
    cell.run(LEASE_US)
    synced = min(node.log.synced for node in cell.nodes)
    cell.run(KEPT_US - LOOK_US)
    assert cell.wal.begin == 0
    cell.run(3 * LOOK_US)
    assert 0 < cell.wal.begin <= min(node.log.synced for node in cell.nodes)
    assert cell.wal.begin >= synced, "it is trimmed in the end"


def test_a_node_below_the_beginning_says_so_and_leaves_no_hole() -> None:
    cell = started(3)
    late, other = followers(cell)
    cell.load(cell.leader(), 30, Random(4))
    cell.run(3 * LEASE_US)
    had = late.log.synced
    late.kill()
    cell.load(cell.leader(), 60, Random(5))
    cell.run(2 * LOOK_US)
    assert cell.wal.begin > had, "two others have synced more"
    with pytest.raises(WalTrimmed) as caught:
        late.start()
    assert f"the WAL begins at offset {cell.wal.begin}, this node has {had}: copy from a peer" in str(caught.value)
    assert caught.value.code == "E1517"
    other.client.stop_reading()  # and one that runs, and falls behind
    other.log.trimming = None
    cell.wal.begin = other.log.replica.fold.next + 5
    other.log.read_from(other.log.replica.fold.next)
    assert "copy from a peer" in other.reasons[0]


def lives_on(cell: Cell) -> bool:
    """The leader's machine is gone with its disk: does the other node have all that was acknowledged?"""
    leader = cell.leader()
    [follower] = followers(cell)
    cell.load(leader, 30, Random(6))
    cell.run(3 * LEASE_US)
    follower.kill()  # away for a while
    cell.load(leader, 60, Random(7))
    cell.run(2 * LOOK_US)
    leader.kill()
    cell.nodes = [follower]
    try:
        follower.start()
    except WalTrimmed:
        return False
    cell.run(5 * LEASE_US)
    cell.check()
    return True


def test_a_wal_trimmed_at_the_highest_mark_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the second-highest, and not the highest, is what keeps acknowledged messages."""
    assert lives_on(started(2))
    monkeypatch.setattr(trimming, "trim_point", lambda own, others: max(own, *others, 0))
    assert not lives_on(started(2))


def test_a_wal_that_cannot_be_trimmed_is_reported_and_tried_again() -> None:
    cell = started(2)
    leader = cell.leader()

    def refuse(before: int) -> int:
        raise WalTrimmed(0, before)

    leader.client.trim = refuse  # type: ignore[method-assign]
    cell.load(leader, 30, Random(8))
    cell.run(3 * LOOK_US)
    assert leader.log.trimming is not None
    assert leader.log.trimming.failures >= 2
    assert any(kind == "wal_not_trimmed" for kind, _ in leader.reports)
    del leader.client.trim
    cell.run(2 * LOOK_US)
    assert cell.wal.begin > 0


# -- random histories: leaders trim, disks are lost, nodes copy ------------------------------------------------------------


def test_nothing_is_lost_in_any_history_with_trims_and_copies() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        world = TrimmingWorld(seed)
        try:
            world.run()
        except Wrong as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        counts += world.counts
    assert min(counts["trims"], counts["copies"], counts["lost disks"], counts["fell behind"]) > SEEDS // 10


@pytest.mark.parametrize(
    "sabotaged",
    [
        lambda seed: TrimmingWorld(seed, lambda own, others: max((own, *others))),
        lambda seed: TrimmingWorld(seed, lambda own, others: own),
        lambda seed: TrimmingWorld(seed, mark_last=True),
    ],
    ids=["trims at the highest", "trims at its own", "copies the mark last"],
)
def test_a_broken_rule_of_trims_and_copies_is_found_out(sabotaged: Callable[[int], TrimmingWorld]) -> None:
    for seed in range(CONTROL_SEEDS):
        try:
            sabotaged(seed).run()
        except Wrong:
            return
    raise AssertionError(f"not found within {CONTROL_SEEDS} seeds")
