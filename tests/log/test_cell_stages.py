"""Stages of a cell on real logs: in the WAL before an intent may name them, the same on every node, gone on every node."""

import threading
from collections.abc import Callable, Iterator
from random import Random

import pytest

from quintet import kernel
from quintet.log.base import Stage
from quintet.log.embedded.stages import FileStage
from quintet.log.replicated import stages
from quintet.log.replicated.stages import CellStage
from quintet.model.errors import QuintetError, ShuttingDown
from tests.log.cell_nodes import LEASE_US, ORDERS, Cell, CellNode

PART_BYTES = 700  # so that a small stage has several parts
LIVES = 12


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    monkeypatch.setattr(stages, "PART_BYTES", PART_BYTES)
    found = Cell()
    found.run(3 * LEASE_US)
    yield found
    for node in found.nodes:
        assert node.reasons == [], f"{node.name} ended"


def begin(node: CellNode, id: str, batches: int = 5) -> Stage:
    stage = node.log.stages.open(id, "owner", "writer", 1)
    for number in range(batches):
        stage.append(ORDERS.id, 0, kernel.build([b"%s %d" % (id.encode(), number) * 20], origin=b"test:1"), 1)
    return stage


def finish(cell: Cell, stage: Stage) -> list[QuintetError]:
    """In a thread, as a call of Flight does; what it raised."""
    raised: list[QuintetError] = []

    def run() -> None:
        try:
            stage.finish()
        except QuintetError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    cell.until(thread)
    return raised


def refused(stage: Stage, raised: list[QuintetError]) -> threading.Thread:
    """A thread that finishes a stage, which is not taken."""

    def run() -> None:
        with pytest.raises(ShuttingDown) as caught:
            stage.finish()
        raised.append(caught.value)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def files(node: CellNode) -> dict[str, bytes]:
    return {path: bytes(data or b"") for path, data in node.disk.snapshot().items() if path.startswith("/data/stages/")}


def followers(cell: Cell) -> list[CellNode]:
    return [node for node in cell.nodes if node is not cell.leader()]


def values(node: CellNode, id: str) -> list[bytes]:
    """What a sealed stage holds, read as the broker reads it."""
    [stage] = [each for each in node.log.stages.load() if each.id == id]
    found: list[bytes | BaseException] = []
    for part in stage.parts:
        node.log.stages.read(id, part.position, part.length, found.append)
    node.cell.scheduler.run_until_idle()
    return [bytes(data) for data in found if isinstance(data, bytes)]


def test_a_sealed_stage_is_the_same_file_on_every_node(cell: Cell) -> None:
    stage = begin(cell.leader(), "a")
    assert finish(cell, stage) == []
    cell.run(LEASE_US)
    [follower] = followers(cell)
    assert files(cell.leader()) == files(follower)
    assert [*files(follower)] == ["/data/stages/a.stage"]
    assert len(files(follower)["/data/stages/a.stage"]) > 2 * PART_BYTES
    assert len(values(follower, "a")) == 5


def test_finish_returns_only_when_the_wal_has_all_of_it(cell: Cell) -> None:
    leader, stage = cell.leader(), begin(cell.leader(), "a")
    cell.wal.cut = True
    thread = refused(stage, [])
    for _ in range(20):
        if not cell.calls.empty():
            cell.calls.get()()
        cell.run(10_000)
        thread.join(0.01)
    assert thread.is_alive(), "an intent could name a stage that no other node has"
    leader.log.stages.stop()
    cell.until(thread)
    cell.wal.cut = False
    assert [*files(leader)] == ["/data/stages/a.part"]
    leader.kill()
    leader.reasons.clear()


def test_the_next_leader_has_what_was_sealed_and_drops_the_rest(cell: Cell) -> None:
    old = cell.leader()
    assert finish(cell, begin(old, "sealed")) == []
    begin(old, "open").append(ORDERS.id, 0, kernel.build([b"x"], origin=b"test:1"), 1)
    half = begin(old, "half")
    assert isinstance(half, CellStage)
    thread = refused(half, [])
    cell.calls.get()()  # its first part is shipped, and no other
    cell.run(LEASE_US // 10)
    [follower] = followers(cell)
    assert "/data/stages/half.part" in files(follower)
    old.log.stages.stop()
    cell.until(thread)
    old.kill()
    cell.run(4 * LEASE_US)
    old.start()
    cell.run(LEASE_US)
    assert cell.leader() is follower
    assert [stage.id for stage in follower.log.stages.load()] == ["sealed"]
    follower.append(ORDERS, 0, b"the first record of the next epoch that has entries")
    cell.run(LEASE_US)
    for node in cell.nodes:
        assert [*files(node)] == ["/data/stages/sealed.stage"]


def test_a_removed_stage_goes_from_every_node_once_a_mark_has_it(cell: Cell) -> None:
    leader = cell.leader()
    assert finish(cell, begin(leader, "a")) == []
    leader.log.stages.remove(["a"])
    cell.run(LEASE_US // 20)
    leader.log.stages.remove(["a"])  # again: its writer was told late
    cell.run(3 * LEASE_US)
    for node in cell.nodes:
        assert files(node) == {}
        assert node.log.stages.removed == ()
        node.kill()
        node.start()
    cell.run(4 * LEASE_US)
    assert all(files(node) == {} for node in cell.nodes)


def test_nothing_of_a_stage_follows_its_removal(cell: Cell) -> None:
    """It was aborted by another call while its writer ships it."""
    leader = cell.leader()
    stage = begin(leader, "a")
    raised: list[QuintetError] = []
    thread = refused(stage, raised)
    cell.calls.get()()
    cell.run(LEASE_US // 20)
    leader.log.stages.remove(["a"])
    cell.until(thread)
    assert "it was aborted" in str(raised[0])
    stage.discard()
    cell.run(3 * LEASE_US)
    assert all(files(node) == {} for node in cell.nodes)


def life(seed: int, monkeypatch: pytest.MonkeyPatch, node_of: Callable[[Cell, Random], CellNode]) -> None:
    """Stages are sealed and removed; a node is killed or loses power and starts again: sealed ones are on every node."""
    monkeypatch.setattr(stages, "PART_BYTES", PART_BYTES)
    rng, cell, kept, number = Random(seed), Cell(), set[str](), 0
    cell.run(3 * LEASE_US)
    for _ in range(4):
        for _ in range(rng.randrange(1, 4)):
            number += 1
            if finish(cell, begin(cell.leader(), f"s{number}", rng.randrange(1, 9))) == []:
                kept.add(f"s{number}")
            if kept and rng.random() < 0.4:
                gone = rng.choice(sorted(kept))
                kept.discard(gone)
                cell.leader().log.stages.remove([gone])
            cell.run(rng.randrange(LEASE_US))
        victim = node_of(cell, rng)
        victim.kill()
        if rng.random() < 0.6:
            victim.disk.crash(rng)
        cell.run(rng.randrange(3 * LEASE_US))
        victim.start()
        cell.run(5 * LEASE_US)
        assert cell.ended() is None, [node.reasons for node in cell.nodes]
        cell.leader().log.stages.load()
    cell.leader().append(ORDERS, 0, b"of the last epoch")
    cell.run(3 * LEASE_US)
    for node in cell.nodes:
        assert {path.removeprefix("/data/stages/").removesuffix(".stage") for path in files(node)} >= kept
    assert files(cell.nodes[0]).keys() >= {f"/data/stages/{id}.stage" for id in kept}
    for id in kept:
        assert len({files(node)[f"/data/stages/{id}.stage"] for node in cell.nodes}) == 1


@pytest.mark.parametrize("seed", range(LIVES))
def test_sealed_stages_survive_kills_and_power_cuts(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    life(seed, monkeypatch, lambda cell, rng: rng.choice(cell.nodes))


def test_a_stage_that_is_kept_on_one_node_only_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: sealed as an embedded log does it, an intent would name what the next leader does not have."""
    monkeypatch.setattr(CellStage, "finish", FileStage.finish)
    with pytest.raises((AssertionError, KeyError)):
        life(1, monkeypatch, lambda cell, rng: cell.leader())
