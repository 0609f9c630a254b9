"""Nodes of a cell with real logs on simulated disks, over a WAL in memory. What they must keep is asked by the tests that use them."""

import contextlib
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

from quintet import kernel
from quintet.log.base import TopicSpec
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.partitions.links import ChainedLinks
from quintet.log.replicated import records
from quintet.log.replicated.engine import TICK_US, ReplicatedLog
from quintet.log.replicated.kafka import Produced, Read, WalIdentity
from quintet.log.replicated.partition import CellPartition
from quintet.log.replicated.replica import Timing
from quintet.log.replicated.trimming import WalTrimmed
from quintet.model.errors import StorageError
from quintet.testing.sim import SimDisk, SimScheduler

LEASE_US = 1_000_000
THREAD_S = 0.01  # between two looks whether a thread has ended; nothing depends on it
ORDERS = TopicSpec(16, "orders", partitions=3, segment_bytes=4096)
FAST = TopicSpec(17, "fast", durability="os", segment_bytes=4096)
TABLE = TopicSpec(18, "table", compact=True, segment_bytes=4096)
SPECS = (ORDERS, FAST, TABLE)


class MemoryWal:
    """What Kafka keeps: a list. `cut`: answers are not given, until it is False again."""

    def __init__(self, scheduler: SimScheduler) -> None:
        self.scheduler = scheduler
        self.records: list[bytes] = []
        self.begin = 0  # what is below was trimmed
        self.cut = False

    def client(self) -> "MemoryWalClient":
        return MemoryWalClient(self)


class MemoryWalClient:
    def __init__(self, wal: MemoryWal) -> None:
        self.wal = wal
        self.reading = 0
        self.read_first: list[int] = []  # where each reading began
        self.closed = False
        self.weaknesses: list[str] = []

    @property
    def end(self) -> int:
        return len(self.wal.records)

    @property
    def begin(self) -> int:
        return self.wal.begin

    def trim(self, before: int) -> int:
        self.wal.begin = max(self.wal.begin, before)
        self.wal.records[:before] = [b"trimmed"] * before
        return self.wal.begin

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
        self.failed = failed
        self._poll(self.reading, offset, read)

    def _poll(self, reading: int, offset: int, read: Read) -> None:
        if reading == self.reading and not self.closed and offset < self.wal.begin:
            self.failed(WalTrimmed(self.wal.begin, offset))
            return
        while reading == self.reading and not self.closed and offset < len(self.wal.records) and not self.full():
            read(offset, self.wal.records[offset])
            offset += 1
        if reading == self.reading and not self.closed:
            self.wal.scheduler.later(10_000, lambda: self._poll(reading, offset, read))

    def stop_reading(self) -> None:
        self.reading += 1

    def ask_end(self, told: Callable[[int], None]) -> None:
        reading, end = self.reading, len(self.wal.records)
        self.wal.scheduler.later(1_000, lambda: told(-1 if self.wal.cut else end) if reading == self.reading else None)

    def close(self) -> None:
        self.closed = True
        self.stop_reading()


class CellNode:
    """One process after another on the same disk."""

    directory = Path("/data")
    reads_version = records.VERSION  # of the WAL
    layout = ""  # of several cells

    def __init__(self, cell: "Cell", name: str, silence_us: int) -> None:
        self.cell = cell
        self.name = name
        self.disk: SimDisk = SimDisk()
        self.timing = Timing(LEASE_US, LEASE_US * 5 // 4, silence_us, LEASE_US // 4)
        self.start()

    def start(self) -> None:
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.reasons: list[str] = []
        self.leads = 0
        self.client = self.cell.wal.client()
        self.log = ReplicatedLog(
            self.directory, self.storage(), self.cell.scheduler, lambda kind, fields: self.reports.append((kind, fields)),
            self.client, self.name, timing=self.timing, hand=self.cell.calls.put, host=f"{self.name}.example",
            layout=self.layout,
        )  # fmt: skip
        self.log.replica.newest = self.reads_version
        self.log.recover()
        self.log.take_part(self._leading, self.reasons.append)

    def storage(self) -> Disk:
        return self.disk

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
                link = partition.links._committed if isinstance(partition.links, ChainedLinks) else b""
                found[topic_id, partition.number] = (partition.visible, link)
        return found


class Cell:
    def __init__(self, nodes: int = 2) -> None:
        self.scheduler = SimScheduler()
        self.wal = MemoryWal(self.scheduler)
        self.acked: list[tuple[int, int, int, bytes]] = []
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()  # of threads
        self.nodes = [CellNode(self, f"n{number}", LEASE_US * (3 + number) // 2) for number in range(nodes)]

    def run(self, us: int) -> None:
        for _ in range(us // TICK_US):
            for node in self.nodes:
                if node.log.replica.leads and not node.log._over:
                    node.log.maintain(self.scheduler.now())  # as its broker would
            self.scheduler.advance(TICK_US)
            self.scheduler.run_until_idle()

    def until(self, thread: threading.Thread) -> None:
        """Turn the loop until a thread has ended."""
        while thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self.calls.get(timeout=THREAD_S)()
            self.run(TICK_US)
        while not self.calls.empty():
            self.calls.get()()
        self.run(TICK_US)

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
