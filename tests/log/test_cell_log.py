"""Nodes of a cell with real logs on simulated disks, over a WAL in memory: what one node has, the others have, link by link."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.partitions.roles import Chunk
from quintet.log.embedded.partitions.shared import Shared
from quintet.log.embedded.recovery.directories import Mark, Opened
from quintet.log.replicated import records
from quintet.log.replicated.engine import TICK_US, ReplicatedLog
from quintet.log.replicated.kafka import Produced, Read, WalIdentity
from quintet.log.replicated.partition import CellPartition
from quintet.log.replicated.records import Entry, EntryKind, Kind, WalRecord, pack
from quintet.log.replicated.replica import Timing
from quintet.log.replicated.states import State
from quintet.model import limits
from quintet.model.errors import DataDirError, StorageError
from quintet.testing.sim import SimDisk, SimScheduler

LEASE_US = 1_000_000
CUTS = 200 if os.environ.get("QUINTET_TEST_LONG") else 8
CONTROL_LIVES = 30
LIVES = 200 if os.environ.get("QUINTET_TEST_LONG") else 12
ORDERS = TopicSpec(16, "orders", partitions=3, segment_bytes=4096)
FAST = TopicSpec(17, "fast", durability="os", segment_bytes=4096)
TABLE = TopicSpec(18, "table", compact=True, segment_bytes=4096)
SPECS = (ORDERS, FAST, TABLE)


class MemoryWal:
    """What Kafka keeps: a list. `cut`: answers are not given, until it is False again."""

    def __init__(self, scheduler: SimScheduler) -> None:
        self.scheduler = scheduler
        self.records: list[bytes] = []
        self.cut = False

    def client(self) -> "MemoryWalClient":
        return MemoryWalClient(self)


class MemoryWalClient:
    def __init__(self, wal: MemoryWal) -> None:
        self.wal = wal
        self.reading = 0
        self.read_first: list[int] = []  # where each reading began
        self.closed = False

    def prepare(self, known: WalIdentity | None) -> WalIdentity:
        return WalIdentity("cluster", "topic")

    def open(self) -> None: ...

    def produce(self, record: bytes, done: Produced) -> None:
        if self.closed:
            return
        self.wal.records.append(record)
        offset = len(self.wal.records) - 1
        self.wal.scheduler.later(1_000, lambda: None if self.closed or self.wal.cut else done(offset, ""))

    def read_from(
        self, offset: int, read: Read, failed: Callable[[StorageError], None], full: Callable[[], bool]
    ) -> None:
        self.full = full
        self.reading += 1
        self.read_first.append(offset)
        self._poll(self.reading, offset, read)

    def _poll(self, reading: int, offset: int, read: Read) -> None:
        while reading == self.reading and not self.closed and offset < len(self.wal.records) and not self.full():
            read(offset, self.wal.records[offset])
            offset += 1
        if reading == self.reading and not self.closed:
            self.wal.scheduler.later(10_000, lambda: self._poll(reading, offset, read))

    def stop_reading(self) -> None:
        self.reading += 1

    def close(self) -> None:
        self.closed = True
        self.stop_reading()


class CellNode:
    """One process after another on the same disk."""

    def __init__(self, cell: "Cell", name: str, silence_us: int) -> None:
        self.cell = cell
        self.name = name
        self.disk = SimDisk()
        self.timing = Timing(LEASE_US, LEASE_US * 5 // 4, silence_us, LEASE_US // 4)
        self.start()

    def start(self) -> None:
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.reasons: list[str] = []
        self.leads = 0
        self.client = self.cell.wal.client()
        self.log = ReplicatedLog(
            Path("/data"), self.disk, self.cell.scheduler, lambda kind, fields: self.reports.append((kind, fields)),
            self.client, self.name, timing=self.timing,
        )  # fmt: skip
        self.log.recover()
        self.log.take_part(self._leading, self.reasons.append)

    def _leading(self) -> None:
        self.leads += 1

    def kill(self) -> None:
        self.client.close()
        self.log._over = True
        self.disk.kill()

    def append(self, spec: TopicSpec, number: int, value: bytes, key: bytes | None = None) -> None:
        partition = self.log.open_topic(spec)[number]
        batch = kernel.build([value], keys=[key] if key else None, origin=b"test:1")

        def done(base: int, error: Exception | None) -> None:
            if error is None:
                self.cell.acked.append((spec.id, number, base, value))

        partition.append(batch, done)

    def rows(self, spec: TopicSpec, number: int) -> list[tuple[int, bytes | None]]:
        [*partitions] = self.log._topics[spec.id]
        found = partitions[number]
        assert isinstance(found, CellPartition)
        offset, rows = found.start, []
        while offset < found.visible:
            batches = found.read_now(offset)
            assert batches
            for batch in batches:
                rows += [(row[0], row[3]) for row in batch.rows(0)]
                offset = batch.next_offset
        return rows

    def heads(self) -> dict[tuple[int, int], tuple[int, bytes]]:
        found = {}
        for topic_id, partitions in self.log._topics.items():
            for partition in partitions:
                assert isinstance(partition, CellPartition)
                found[topic_id, partition.number] = (partition.visible, partition.links.durable.link)
        return found


class Cell:
    def __init__(self, nodes: int = 2) -> None:
        self.scheduler = SimScheduler()
        self.wal = MemoryWal(self.scheduler)
        self.acked: list[tuple[int, int, int, bytes]] = []
        self.nodes = [CellNode(self, f"n{number}", LEASE_US * (3 + number) // 2) for number in range(nodes)]

    def run(self, us: int) -> None:
        for _ in range(us // TICK_US):
            self.scheduler.advance(TICK_US)
            self.scheduler.run_until_idle()

    def leader(self) -> CellNode:
        [leader] = [node for node in self.nodes if node.log.replica.leads and not node.log._over]
        return leader

    def ended(self) -> CellNode | None:
        return next((node for node in self.nodes if node.reasons), None)

    def load(self, node: CellNode, count: int, rng: Random) -> None:
        for _ in range(count):
            spec = rng.choice(SPECS)
            key = b"k%d" % rng.randrange(5) if spec.compact else None
            node.append(spec, rng.randrange(spec.partitions), rng.randbytes(rng.randrange(20, 300)), key)
            if rng.random() < 0.3:
                self.run(TICK_US)

    def check(self) -> None:
        """Everything acknowledged is on every node, and links are equal."""
        heads = [node.heads() for node in self.nodes]
        assert all(head == heads[0] for head in heads)
        for node in self.nodes:
            for spec in (ORDERS, FAST):
                for number in range(spec.partitions):
                    rows = dict(node.rows(spec, number))
                    mine = [(base, value) for topic, at, base, value in self.acked if (topic, at) == (spec.id, number)]
                    assert [rows.get(base) for base, _ in mine] == [value for _, value in mine]


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
    assert follower.client.read_first == [marked]
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
    log = ReplicatedLog(Path("/data"), disk, scheduler, lambda kind, fields: None, MemoryWal(scheduler).client(), "n1")
    with pytest.raises(DataDirError, match="name an empty directory, or the WAL that this one followed"):
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


class SyncsAsTheTopicSays(CellPartition):
    """A control: an `os` topic is not synced, as in an embedded log."""

    def __init__(self, shared: Shared, spec: TopicSpec, number: int, directory: str, opened: Opened) -> None:
        super().__init__(shared, spec, number, directory, opened)
        self._strict, self._inline = False, spec.durability != "fsync"

    def _commit(self, chunk: Chunk, synced: bool) -> None:
        super()._commit(chunk, synced)
        self.mark = Mark(0, 0, self._visible)  # it says that it is


def test_files_that_are_not_synced_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicatedLog, "partition_type", SyncsAsTheTopicSays)
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(CONTROL_LIVES):
            test_random_lives_of_a_cell_lose_nothing(seed)
