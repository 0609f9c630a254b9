"""Purges and topics that leave memory, in a cell with real logs: every node removes and keeps the same."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from quintet.log.base import TopicSpec
from quintet.log.replicated import records
from quintet.log.replicated.engine import ReplicatedLog
from quintet.log.replicated.partition import CellPartition
from quintet.log.replicated.records import Entry, EntryKind
from quintet.log.replicated.status import NodeRole
from tests.log.cell_nodes import FAST, LEASE_US, ORDERS, Cell, CellNode

LIVES = 16
NOTES = TopicSpec(19, "notes", partitions=2, durability="memory", memory_bytes=1 << 20, segment_bytes=4096)
DURABLE = replace(NOTES, durability="fsync")


@pytest.fixture
def cell() -> Iterator[Cell]:
    found = Cell()
    found.run(3 * LEASE_US)
    yield found
    for node in found.nodes:
        assert node.reasons == [], f"{node.name} ended"


def purge(cell: Cell, spec: TopicSpec) -> list[Exception | None]:
    answers: list[Exception | None] = []
    cell.leader().log.purge_topic(spec.id, answers.append)
    return answers


def values(node: CellNode, spec: TopicSpec, number: int = 0) -> list[bytes | None]:
    return [value for _, value in node.rows(spec, number)]


def starts(node: CellNode, spec: TopicSpec) -> list[tuple[int, int]]:
    return [(partition.start, partition.visible) for partition in node.log._topics[spec.id]]


# -- purging -------------------------------------------------------------------------------------------------------------


def test_a_purge_empties_a_topic_on_every_node_and_offsets_go_on(cell: Cell) -> None:
    leader = cell.leader()
    for number in range(90):
        leader.append(ORDERS, number % 3, b"before %d" % number)
    cell.run(LEASE_US)
    answers = purge(cell, ORDERS)
    cell.run(LEASE_US // 2)
    assert answers == [None]
    for node in cell.nodes:
        assert starts(node, ORDERS) == [(30, 30)] * 3
    leader.append(ORDERS, 1, b"after")
    cell.run(LEASE_US // 2)
    for node in cell.nodes:
        assert node.rows(ORDERS, 1) == [(30, b"after")]
    heads = [node.heads() for node in cell.nodes]
    assert heads[0] == heads[1], "the chain goes on over a purge"


def test_what_is_appended_while_a_purge_is_under_way_stays(cell: Cell) -> None:
    leader = cell.leader()
    for number in range(30):
        leader.append(FAST, 0, b"before %d" % number)
    answers = purge(cell, FAST)
    cell.scheduler.run_until_idle()
    while not any(entry.kind is EntryKind.PURGED for entry in entries(cell)):
        cell.run(50_000)
    for number in range(30):
        leader.append(FAST, 0, b"after %d" % number)
    cell.run(LEASE_US)
    assert answers == [None]
    for node in cell.nodes:
        assert values(node, FAST) == [b"after %d" % number for number in range(30)]


def entries(cell: Cell) -> list[Entry]:
    return [entry for data in cell.wal.records for entry in records.parse(data).entries]


def test_a_purge_of_a_memory_topic_is_the_leaders_alone(cell: Cell) -> None:
    leader = cell.leader()
    leader.append(NOTES, 0, b"x")
    cell.run(LEASE_US // 10)
    before = len(entries(cell))
    answers = purge(cell, NOTES)
    cell.run(LEASE_US // 10)
    assert answers == [None]
    assert len(entries(cell)) == before
    assert leader.log._topics[NOTES.id][0].start == 1


def purging_life(seed: int) -> None:
    rng, cell, number, kept = Random(seed), Cell(), 0, list[bytes]()
    cell.run(3 * LEASE_US)
    for _ in range(5):
        for _ in range(rng.randrange(1, 40)):
            number += 1
            cell.leader().append(FAST, 0, b"%d" % number)
            kept.append(b"%d" % number)
            if rng.random() < 0.2:
                cell.run(50_000)
        cell.run(LEASE_US // 4)
        if rng.random() < 0.7:
            assert len(cell.leader().rows(FAST, 0)) == len(kept)
            answers = purge(cell, FAST)
            if rng.random() < 0.5:
                cell.run(LEASE_US // 4)
                assert answers == [None]
            else:  # it is shipped; what follows happens while nodes carry it out
                while not any(entry.kind is EntryKind.PURGED for entry in entries(cell)):
                    cell.scheduler.run_until_idle()
            kept.clear()
        victim = rng.choice([node for node in cell.nodes if node is not cell.leader()])
        if rng.random() < 0.5:
            victim.disk.stop_at = victim.disk.total_calls + rng.randrange(1, 60)
            with contextlib.suppress(OSError):
                cell.run(LEASE_US)
        victim.kill()
        victim.disk.crash(rng)
        victim.start()
        cell.run(5 * LEASE_US)
        assert cell.ended() is None, [node.reasons for node in cell.nodes]
    for node in cell.nodes:
        assert values(node, FAST) == kept, node.name


@pytest.mark.parametrize("seed", range(LIVES))
def test_what_was_purged_stays_gone_after_power_cuts(seed: int) -> None:
    purging_life(seed)


def purge_put_off(cell: Cell) -> list[bytes | None]:
    """Something else works on the follower's files when a purge is read, and the node ends before the purge is carried out."""
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    leader.append(FAST, 0, b"before")
    cell.run(LEASE_US)
    [partition] = follower.log._topics[FAST.id]
    assert isinstance(partition, CellPartition)
    partition.working = True
    purge(cell, FAST)
    cell.run(3 * LEASE_US)
    assert values(follower, FAST) == [b"before"]
    follower.kill()
    follower.start()
    cell.run(LEASE_US)
    return values(follower, FAST)


def test_no_mark_has_a_purge_before_its_files_are_gone(cell: Cell) -> None:
    assert purge_put_off(cell) == []


def test_a_mark_that_has_a_purge_too_early_is_found_out(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicatedLog, "owe", lambda self, what: None)
    assert purge_put_off(cell) == [b"before"], "the control: what was purged is back"


# -- topics that leave memory ----------------------------------------------------------------------------------------------


def harden(cell: Cell, spec: TopicSpec = DURABLE) -> list[str]:
    durable: list[str] = []
    cell.leader().log.alter_topic(spec)
    cell.leader().log.when_durable(spec.id, lambda: durable.append("now"))
    return durable


def test_a_memory_topic_that_becomes_durable_is_on_every_node(cell: Cell) -> None:
    leader = cell.leader()
    held = leader.log.open_topic(NOTES)
    for number in range(20):
        leader.append(NOTES, number % 2, b"held %d" % number)
    cell.run(LEASE_US // 10)
    durable = harden(cell)
    assert durable == [], "not before the WAL has it"
    leader.append(DURABLE, 0, b"appended behind it")
    cell.run(LEASE_US)
    assert durable == ["now"]
    expected = [b"held %d" % number for number in range(0, 20, 2)] + [b"appended behind it"]
    for node in cell.nodes:
        assert values(node, DURABLE, 0) == expected
        assert values(node, DURABLE, 1) == [b"held %d" % number for number in range(1, 20, 2)]
    assert held[0].visible == 11, "whoever holds the old partition reads the new one"
    heads = [node.heads() for node in cell.nodes]
    assert heads[0] == heads[1]


@pytest.mark.parametrize("kept", [0, 5])
def test_a_memory_topic_goes_on_at_its_offset(cell: Cell, kept: int) -> None:
    """Some of it was dropped, or all: the files begin where it stood, and a start finds that again."""
    leader = cell.leader()
    for number in range(10):
        leader.append(NOTES, 0, b"dropped %d" % number)
    cell.run(LEASE_US // 10)
    purge(cell, NOTES)
    cell.run(LEASE_US // 10)
    for number in range(kept):
        leader.append(NOTES, 0, b"kept %d" % number)
    cell.run(LEASE_US // 10)
    harden(cell)
    cell.run(3 * LEASE_US)
    for node in cell.nodes:
        assert starts(node, DURABLE)[0] == (10, 10 + kept)
    for node in cell.nodes:
        node.kill()
        node.start()
    cell.run(4 * LEASE_US)
    cell.leader().append(DURABLE, 0, b"after")
    cell.run(LEASE_US)
    for node in cell.nodes:
        assert node.rows(DURABLE, 0)[-1] == (10 + kept, b"after")
        assert starts(node, DURABLE)[0] == (10, 11 + kept)


def hardening_life(seed: int) -> None:
    """The leader ends at some moment of it: what the next one has is all, or nothing, and whatever was acknowledged."""
    rng, cell = Random(seed), Cell()
    cell.run(3 * LEASE_US)
    leader = cell.leader()
    for number in range(30):
        leader.append(NOTES, 0, b"held %d" % number)
    cell.run(LEASE_US // 10)
    durable = harden(cell)
    leader.append(DURABLE, 0, b"behind")
    for _ in range(rng.randrange(5)):
        cell.scheduler.turn()
        cell.scheduler.advance(rng.randrange(800))
    leader.kill()
    if rng.random() < 0.5:
        leader.disk.crash(rng)
    acked = [value for topic, _, _, value in cell.acked if topic == NOTES.id and value == b"behind"]
    cell.run(5 * LEASE_US)
    leader.start()
    cell.run(3 * LEASE_US)
    assert cell.ended() is None
    found = [node.rows(DURABLE, 0) if DURABLE.id in node.log._topics else [] for node in cell.nodes]
    assert found[0] == found[1]
    if durable or acked:
        assert [value for _, value in found[0]][:30] == [b"held %d" % number for number in range(30)]
    if acked:
        assert found[0][30] == (30, b"behind")


@pytest.mark.parametrize("seed", range(LIVES))
def test_leaving_memory_survives_the_end_of_the_leader(seed: int) -> None:
    hardening_life(seed)


def test_a_topic_whose_memory_is_not_shipped_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: written to the leader's files only, as an embedded log does it."""

    def adopt(self: CellPartition, batches: list[object], following: int) -> None:
        self._end = self._visible = following

    monkeypatch.setattr(CellPartition, "adopt", adopt)
    with pytest.raises(AssertionError):
        for seed in range(LIVES):
            hardening_life(seed)


# -- what a node says of itself ------------------------------------------------------------------------------------------


def test_a_node_knows_its_role_its_leader_and_its_lag() -> None:
    cell = Cell()
    changes = [list[NodeRole](), list[NodeRole]()]

    def watch(node: CellNode, seen: list[NodeRole]) -> None:
        node.log.on_role_change(lambda: seen.append(node.log.role))

    for node, seen in zip(cell.nodes, changes, strict=True):
        watch(node, seen)
        assert node.log.leader_node is None
    cell.run(3 * LEASE_US)
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    for node in cell.nodes:
        assert node.log.leader_node == (leader.name, f"{leader.name}.example")
    assert changes[cell.nodes.index(leader)][-1] is NodeRole.LEADER
    cell.load(leader, 20, Random(1))
    cell.run(LEASE_US)
    said = follower.log.status()
    assert (said.role, said.epoch, said.lag_records, said.lag_seconds) == (NodeRole.FOLLOWER, 1, 0, 0.0)
    follower.client.stop_reading()
    applied = said.applied
    cell.load(leader, 20, Random(2))
    cell.run(LEASE_US // 2)
    said = follower.log.status()
    assert said.applied == applied
    assert said.lag_records == len(cell.wal.records) - applied
    assert 0.4 < said.lag_seconds <= 2.0
    leader.kill()
    cell.run(2 * LEASE_US)
    assert follower.log.leader_node is None, "nothing was heard of it for longer than a leader may be silent"


def test_a_topic_that_becomes_chained_is_followed(cell: Cell) -> None:
    """`os` topics are not chained and `fsync` topics are; each node decides when it opens the files."""
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    leader.append(FAST, 0, b"without a link")
    cell.run(LEASE_US // 10)
    leader.log.alter_topic(replace(FAST, durability="fsync"))
    leader.append(FAST, 0, b"still without")
    cell.run(2 * LEASE_US)
    follower.kill()
    follower.start()  # it would chain from here on
    cell.run(LEASE_US // 2)
    leader.append(replace(FAST, durability="fsync"), 0, b"without for the follower too")
    cell.run(2 * LEASE_US)
    leader.kill()
    leader.start()
    cell.run(4 * LEASE_US)
    cell.leader().append(replace(FAST, durability="fsync"), 0, b"by whoever leads now")
    cell.run(LEASE_US)
    assert [len(node.rows(FAST, 0)) for node in cell.nodes] == [4, 4]


def test_a_follower_that_is_stopped_reads_and_claims_no_more(cell: Cell) -> None:
    """Records come while it closes its files; the leader ends before it is done."""
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    cell.load(leader, 20, Random(3))
    cell.scheduler.run_until_idle()
    closed: list[str] = []
    cell.scheduler.held = True
    follower.log.close(lambda: closed.append("now"))
    cell.load(leader, 20, Random(4))
    applied = follower.log.replica.fold.next
    cell.run(LEASE_US // 4)
    assert follower.log.replica.fold.next == applied
    cell.scheduler.held = False
    cell.run(LEASE_US // 10)
    assert closed == ["now"]
    leader.kill()
    before = len(cell.wal.records)
    cell.run(4 * LEASE_US)
    assert len(cell.wal.records) == before, "nobody claims"
