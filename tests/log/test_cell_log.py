"""Nodes of a cell with real logs on simulated disks, over a WAL in memory: what one node has, the others have, link by link."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from quintet import figures, kernel
from quintet.log.base import TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.partitions.roles import Chunk
from quintet.log.replicated import records
from quintet.log.replicated.engine import ReplicatedLog
from quintet.log.replicated.partition import CellPartition
from quintet.log.replicated.records import Entry, EntryKind, Kind, WalRecord, pack
from quintet.log.replicated.states import State
from quintet.model import limits
from quintet.model.errors import DataDirError
from quintet.testing.sim import SimDisk, SimScheduler
from tests.log.cell_nodes import FAST, LEASE_US, ORDERS, TABLE, Cell, CellNode, MemoryWal

CUTS = 200 if os.environ.get("QUINTET_TEST_LONG") else 8
CONTROL_LIVES = 30
LIVES = 200 if os.environ.get("QUINTET_TEST_LONG") else 12


@pytest.fixture
def cell() -> Iterator[Cell]:
    found = Cell()
    found.run(3 * LEASE_US)
    yield found
    for node in found.nodes:
        assert node.reasons == [], f"{node.name} ended"


def test_a_follower_has_the_offsets_and_links_of_the_leader(cell: Cell) -> None:
    cell.load(cell.leader(), 200, Random(1))
    cell.run(LEASE_US)
    assert len(cell.acked) == 200
    cell.check()
    assert cell.leader().heads()[ORDERS.id, 0][1] != b"", "a durable topic is chained"


def test_a_follower_takes_over_and_the_old_leader_comes_back(cell: Cell) -> None:
    rng = Random(2)
    for _ in range(4):
        old = cell.leader()
        cell.load(old, 60, rng)
        old.kill()  # with writes that nobody has acknowledged
        cell.run(4 * LEASE_US)
        assert cell.leader() is not old
        cell.load(cell.leader(), 60, rng)
        old.start()
        cell.run(LEASE_US)
        cell.check()
    assert len(cell.acked) >= 4 * 60


def test_a_node_that_lost_power_reads_the_rest_again(cell: Cell) -> None:
    [follower] = [node for node in cell.nodes if node is not cell.leader()]
    rng = Random(3)
    for _ in range(5):
        cell.load(cell.leader(), 40, rng)
        follower.kill()
        follower.disk.crash(rng)
        follower.start()
        cell.run(LEASE_US)
        cell.check()


def test_one_record_holds_what_all_partitions_wrote_in_a_turn(cell: Cell) -> None:
    leader = cell.leader()
    leader.append(ORDERS, 0, b"first")
    cell.run(LEASE_US // 10)
    before = len(cell.wal.records)
    for number in range(3):
        leader.append(ORDERS, number, b"value")
    leader.append(FAST, 0, b"value")
    cell.scheduler.run_until_idle()
    found = [records.parse(data).entries for data in cell.wal.records[before:]]
    batches = [[entry.kind for entry in entries] for entries in found if entries]
    assert batches == [[EntryKind.TOPIC] + [EntryKind.BATCH] * 4]


def test_the_leaders_files_are_not_written_before_the_wal_answers(cell: Cell) -> None:
    leader = cell.leader()
    leader.append(ORDERS, 0, b"first")
    cell.run(LEASE_US // 10)
    cell.wal.cut = True
    leader.append(ORDERS, 0, b"second")
    leader.append(FAST, 0, b"second")
    cell.run(LEASE_US // 10)
    [partition, *_] = leader.log._topics[ORDERS.id]
    assert (partition.visible, partition.end) == (1, 2)
    assert not any(b"second" in (data or b"") for data in leader.disk.snapshot().values())
    assert leader.log._topics[FAST.id][0].visible == 0
    leader.kill()


def test_topics_are_changed_and_deleted_on_every_node(cell: Cell) -> None:
    leader = cell.leader()
    cell.load(leader, 40, Random(4))
    cell.run(LEASE_US)
    fast = f"/data/topics/{FAST.id:08d}"
    assert all(node.disk.is_dir(fast) for node in cell.nodes)
    wider = TopicSpec(ORDERS.id, "orders", partitions=5, segment_bytes=4096, retention_bytes=1 << 20)
    leader.log.alter_topic(wider)
    leader.append(wider, 4, b"in the fifth")
    leader.append(FAST, 0, b"before it is deleted")
    leader.log.delete_topic(FAST.id)
    cell.run(LEASE_US)
    for node in cell.nodes:
        assert sorted(node.log._topics) == [ORDERS.id, TABLE.id]
        assert node.rows(wider, 4) == [(0, b"in the fifth")]
        assert node.log._topics[ORDERS.id][0].spec == wider
    before = cell.leader()
    before.kill()
    before.start()
    cell.run(4 * LEASE_US)
    assert all(sorted(node.log._topics) == [ORDERS.id, TABLE.id] for node in cell.nodes)
    assert not any(node.disk.is_dir(fast) for node in cell.nodes)


def test_a_start_reads_the_wal_from_the_mark_on(cell: Cell) -> None:
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    cell.load(leader, 100, Random(7))
    cell.run(3 * LEASE_US)
    marked = follower.log._marked
    assert marked > 10
    follower.kill()
    cell.load(leader, 30, Random(8))
    follower.start()
    assert follower.client.read_first == [marked - 1], "the last one again: it must be the same"
    cell.run(LEASE_US)
    cell.check()


def test_a_follower_that_has_much_to_write_reads_no_more(cell: Cell) -> None:
    leader = cell.leader()
    [follower] = [node for node in cell.nodes if node is not leader]
    follower.log._shared.unsynced += limits.UNSYNCED_BYTES_MAX + 1
    before = follower.log.replica.fold.next
    cell.load(leader, 20, Random(10))
    cell.run(LEASE_US // 2)
    assert follower.log.replica.fold.next == before
    follower.log._shared.unsynced -= limits.UNSYNCED_BYTES_MAX + 1
    cell.run(LEASE_US // 2)
    cell.check()
    assert follower.log.unsynced_bytes == 0


def test_a_damaged_mark_only_costs_time(cell: Cell) -> None:
    [follower] = [node for node in cell.nodes if node is not cell.leader()]
    cell.load(cell.leader(), 60, Random(9))
    cell.run(3 * LEASE_US)
    follower.kill()
    data = follower.disk.read_file("/data/cell.mark")
    assert data is not None
    follower.disk.damage("/data/cell.mark", data.replace(b'"next":', b'"next":1'))
    follower.start()
    assert follower.client.read_first == [0]
    cell.run(LEASE_US)
    cell.check()


def test_the_mark_never_speaks_of_more_than_is_synced() -> None:
    """Power cuts at random calls of a follower: with the mark it finds, the WAL fills exactly what is missing."""
    for seed in range(CUTS):
        rng, cell = Random(seed), Cell()
        cell.run(3 * LEASE_US)
        [follower] = [node for node in cell.nodes if node is not cell.leader()]
        follower.disk.stop_at = follower.disk.total_calls + rng.randrange(20, 250)
        with contextlib.suppress(OSError):
            cell.load(cell.leader(), 30, rng)
            cell.run(2 * LEASE_US)
        follower.kill()
        follower.disk.crash(rng)
        follower.start()
        cell.run(LEASE_US)
        assert cell.ended() is None, seed
        cell.check()


def test_another_claim_ends_a_leader_before_its_next_acknowledgement() -> None:
    cell = Cell()
    cell.run(3 * LEASE_US)
    leader = cell.leader()
    cell.load(leader, 10, Random(5))
    cell.run(LEASE_US // 10)
    acknowledged = len(cell.acked)
    cell.wal.records.append(pack(WalRecord(Kind.CLAIM, 99, 0, "other", b"instance")))
    leader.append(ORDERS, 0, b"too late")
    cell.run(LEASE_US // 5)
    assert leader.log.replica.state is State.FENCED
    assert len(leader.reasons) == 1
    assert "other claimed epoch 99" in leader.reasons[0]
    assert len(cell.acked) == acknowledged


def test_a_batch_that_does_not_continue_the_files_ends_the_node(cell: Cell) -> None:
    leader = cell.leader()
    cell.load(leader, 20, Random(6))
    cell.run(LEASE_US)
    [follower] = [node for node in cell.nodes if node is not leader]
    batch = kernel.build([b"x"], origin=b"test:1")
    kernel.chain(batch, 1_000, 1, 1, bytes(32), b"")
    leader.log.replica.ship([Entry(EntryKind.BATCH, ORDERS.id, 0, bytes(batch))], cell.scheduler.monotonic())
    cell.run(LEASE_US // 5)
    assert "the WAL goes on at offset 1000" in follower.reasons.pop()


def test_a_directory_of_another_log_is_not_used() -> None:
    disk, scheduler = SimDisk(), SimScheduler()
    plain = EmbeddedLog(Path("/data"), disk, scheduler, lambda kind, fields: None)
    plain.recover()
    plain.abandon()
    log = ReplicatedLog(
        Path("/data"),
        disk,
        scheduler,
        lambda kind, fields: None,
        MemoryWal(scheduler).client(),
        "n1",
        hand=lambda call: call(),
    )
    with pytest.raises(
        DataDirError, match=r"^E1504: /data: holds the log .*name an empty directory, or the WAL that this one followed"
    ):
        log.recover()


@pytest.mark.parametrize("seed", range(LIVES))
def test_random_lives_of_a_cell_lose_nothing(seed: int) -> None:
    """Three nodes; kills and power cuts of any of them, and claims of a node that nobody sees."""
    rng, cell = Random(seed), Cell(nodes=3)
    for _ in range(5):
        cell.run(3 * LEASE_US)
        cell.load(cell.leader(), rng.randrange(5, 40), rng)
        victim = rng.choice([cell.leader(), *cell.nodes])
        fault = rng.choice(("kill", "power", "power", "claim"))
        if fault == "claim":
            foreign = WalRecord(
                Kind.CLAIM, cell.leader().log.replica.fold.top + rng.randrange(1, 3), 0, "x", b"instance"
            )
            cell.wal.records.append(pack(foreign))
            cell.run(LEASE_US)
            victim = cell.ended() or victim
        victim.kill()
        if fault == "power":
            victim.disk.crash(rng)
        cell.run(rng.randrange(0, 4 * LEASE_US))
        victim.start()
    cell.run(5 * LEASE_US)
    assert cell.ended() is None
    cell.check()
    assert len(cell.acked) > 20


class WritesUnconfirmed(CellPartition):
    """A control: goes to the disk before the WAL has answered."""

    def take_staged(self) -> list[Chunk]:
        taken = super().take_staged()
        for chunk in taken:
            self._open_writer().put(chunk, True)
        return taken


def test_files_written_before_the_wal_answers_are_found_out(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicatedLog, "partition_type", WritesUnconfirmed)
    with pytest.raises(AssertionError):
        test_the_leaders_files_are_not_written_before_the_wal_answers(cell)
    cell.nodes[0].reasons.clear()


def test_a_partition_of_a_cell_is_never_lent_to_the_kernel(cell: Cell) -> None:
    [partition, *_] = cell.leader().log.open_topic(ORDERS)
    assert partition.loan is None


class SyncsNever(CellPartition):
    """As long as a segment is open: a power cut takes more, and marks stay where they are."""

    def sync_if_due(self, monotonic: int) -> bool:
        return False


@pytest.mark.parametrize("seed", range(LIVES // 4))
def test_what_was_never_synced_comes_again_from_the_wal(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicatedLog, "partition_type", SyncsNever)
    test_random_lives_of_a_cell_lose_nothing(seed)


class SaysItIsSynced(SyncsNever):
    """A control: the mark of the node goes on to what is only written."""

    def is_synced(self, offset: int) -> bool:
        return True


def lives_go_wrong() -> bool:
    try:
        for seed in range(CONTROL_LIVES):
            test_random_lives_of_a_cell_lose_nothing(seed)
    except (AssertionError, ValueError):
        return True
    return False


def test_a_mark_ahead_of_the_syncs_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicatedLog, "partition_type", SaysItIsSynced)
    assert lives_go_wrong()


def test_a_batch_missing_from_the_middle_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: after a power cut, what is behind a hole stays, as in an embedded log."""
    monkeypatch.setattr(ReplicatedLog, "partition_type", SyncsNever)
    monkeypatch.setattr(ReplicatedLog, "is_refilled", False)
    assert lives_go_wrong()


def test_an_acknowledgement_waits_for_no_sync_of_this_node(cell: Cell) -> None:
    leader = cell.leader()
    leader.append(ORDERS, 0, b"first")
    cell.run(LEASE_US)
    syncs = leader.disk.calls["fdatasync"]
    before = len(cell.acked)
    for number in range(10):
        leader.append(ORDERS, 0, b"%d" % number)
        while len(cell.acked) == before + number:
            cell.scheduler.advance(100)
            cell.scheduler.run_until_idle()
    assert leader.disk.calls["fdatasync"] - syncs <= 1, "what it has is in the WAL"


def restored(node: int) -> tuple[Cell, CellNode]:
    """A cell whose WAL was restored from a backup and has grown since beyond what one node had read; and that node, started again."""
    cell = Cell()
    cell.run(3 * LEASE_US)
    cell.load(cell.leader(), 40, Random(11))
    cell.run(LEASE_US)
    backup = list(cell.wal.records)
    cell.load(cell.leader(), 30, Random(12))
    cell.run(3 * LEASE_US)
    for each in cell.nodes:
        each.kill()
    beyond, other = cell.nodes[node], cell.nodes[1 - node]
    assert beyond.disk.read_file("/data/cell.mark") is not None
    cell.wal.records[:] = backup
    other.disk = SimDisk()  # made anew, as the operator was told
    other.start()
    cell.run(4 * LEASE_US)
    cell.load(other, 200, Random(13))
    cell.run(LEASE_US)
    assert len(cell.wal.records) > beyond.log._marked
    beyond.start()
    cell.run(4 * LEASE_US)
    return cell, beyond


@pytest.mark.parametrize("node", [0, 1])
def test_a_restored_wal_is_noticed_although_it_has_grown_since(node: int) -> None:
    cell, beyond = restored(node)
    [reason] = beyond.reasons
    assert reason.startswith("E1511: the WAL has another record at offset")
    assert [each.name for each in cell.nodes if each.log.replica.leads and not each.reasons] == [f"n{1 - node}"]


def test_a_node_that_trusts_a_restored_wal_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicatedLog, "_is_last", lambda self, offset, record: offset == self.replica.fold.next - 1)
    cell, beyond = restored(0)
    assert beyond.reasons == [] or "E1511: the WAL has another record" not in beyond.reasons[0]
    with pytest.raises(AssertionError):
        cell.check()


def test_a_node_is_ready_only_with_open_doors_and_a_lease(cell: Cell) -> None:
    leader = cell.leader().log
    [check, *_] = figures.NodeView(leader, dict, lambda: None).checks()  # its broker starts
    assert not check.ok
    assert check.detail.endswith("its doors are not open yet")
    assert figures._node_check(leader, serves=True).ok
    cell.wal.cut = True
    cell.run(2 * LEASE_US)
    check = figures._node_check(leader, serves=True)
    assert not check.ok
    assert check.detail.endswith("its lease is over")
    cell.wal.cut = False


class Ended(Exception):
    """The process is gone."""


def test_a_leader_that_cannot_write_what_counts_refuses_nobody() -> None:
    cell = Cell()
    cell.run(3 * LEASE_US)
    leader, answers = cell.leader(), list[Exception | None]()
    leader.append(ORDERS, 0, b"first")
    cell.run(LEASE_US // 10)

    def end(reason: str) -> None:
        raise Ended(reason)

    leader.log._ended = end
    leader.disk.fail("pwritev", 1, errno.ENOSPC, 1_000)
    partition = leader.log.open_topic(ORDERS)[0]
    partition.append(kernel.build([b"second"]), lambda base, error: answers.append(error))
    with pytest.raises(Ended, match="E1501: this node cannot write what the WAL has confirmed"):
        cell.run(LEASE_US)
    assert answers == [], "it is in the WAL: who was told that nothing was kept would send it again"
