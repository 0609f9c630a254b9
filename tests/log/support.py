"""A log on any disk, driven turn by turn: what the tests of this folder share."""

from pathlib import Path
from random import Random
from typing import Any

from quintet import kernel
from quintet.log.base import Partition, TopicSpec
from quintet.log.embedded.engine import EmbeddedLog
from quintet.log.embedded.files.disk import Disk
from quintet.log.embedded.partitions.lending import LATE_BYTES_MAX
from quintet.log.embedded.partitions.partition import FilePartition
from quintet.log.embedded.partitions.together import FILES_MIN
from quintet.model.batch import RecordBatch
from quintet.testing.sim import SimDisk, SimScheduler

DATA = Path("/data")
FOR_GOOD = 1 << 40  # times that a call fails: until the disk is healed
TOPIC = 16
PARTITION = f"/data/topics/{TOPIC:08d}/0"
Rows = list[tuple[int, bytes | None, bytes | None]]


class Harness:
    """One engine after another on the same disk."""

    def __init__(
        self, disk: Disk | None = None, directory: Path = DATA, start: bool = True, journal: int = 0, **options: Any
    ) -> None:
        """journal: bytes of each file, and everything small goes there; 0: nothing does. options: of the engine. Every segment
        is a file unless `packs` says otherwise: what is in packs is looked at in test_packs.py, test_crash.py and others. lends: partitions
        lend themselves to the kernel, as those do that doors publish to (ADR 29). late: bytes of one of them that its file may lack while
        the journal has them. files_min: files from which on the whole disk is synced at once."""
        self.disk: Disk = disk if disk is not None else SimDisk()
        self.directory = directory
        self.journal = journal
        self.lends = bool(options.pop("lends", False))
        self.late = int(options.pop("late", LATE_BYTES_MAX))
        self.files_min = int(options.pop("files_min", FILES_MIN))
        self.options = {"packs": False, **options}
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.acks: list[tuple[int, Exception | None]] = []
        if start:
            self.start()

    @property
    def sim(self) -> SimDisk:
        assert isinstance(self.disk, SimDisk)
        return self.disk

    def start(self) -> None:
        self.scheduler = SimScheduler()
        self.log = EmbeddedLog(
            self.directory,
            self.disk,
            self.scheduler,
            lambda k, f: self.reports.append((k, f)),
            journal_threshold=1 if self.journal else 1 << 30,
            journal_bytes=self.journal or 1 << 20,
            sync_all_partitions=1 + len(self.acks) % 2 * (1 << 30),  # both ways, by the luck of the seed
            **self.options,
        )
        if self.lends:
            self.log.open_topic = self._open_lendable  # type: ignore[method-assign]
        assert self.log._shared.lending is not None
        self.log._shared.lending.late_bytes_max = self.late
        committer = self.log._shared.committer
        committer.jobs_max = 1 + (len(self.acks) + 1) % 2 * (1 << 30)  # both ways, too
        committer.files_min = self.files_min
        self.log.recover()
        if self.journal:  # there from the start, not only from the second append on; and it grows in small steps
            committer.first_bytes = max(self.journal // 4, 1024)
            committer.prepare()
            self.scheduler.run_until_idle()

    def open(self, spec: TopicSpec | None = None) -> Partition:
        return self.log.open_topic(spec or TopicSpec(TOPIC, "t"))[0]

    def _open_lendable(self, spec: TopicSpec) -> list[Partition]:
        """As a topic that a door of the kernel publishes to: asked for its slot, a partition lends itself as soon as it can."""
        partitions = EmbeddedLog.open_topic(self.log, spec)
        for partition in partitions:
            assert partition.loan is None or partition.loan >= 0
        return partitions

    def append(self, partition: Partition, values: list[bytes | None], keys: list[bytes | None] | None = None) -> int:
        batch = kernel.build(values, keys=keys, origin=b"test:1")
        return partition.append(batch, lambda base, error: self.acks.append((base, error)))

    def write(self, partition: Partition, count: int, size: int = 100, seed: int = 1) -> Rows:
        """One-record batches, each made durable before the next; returns what must be readable."""
        rng = Random(seed)
        rows: Rows = []
        for _ in range(count):
            value = rng.randbytes(size)
            rows.append((self.append(partition, [value]), None, value))
            self.scheduler.run_until_idle()
        return rows

    def tick(self, delta_us: int = 1_000_000) -> None:
        self.scheduler.advance(delta_us)
        self.log.maintain(self.scheduler.now())
        self.scheduler.run_until_idle()

    def close(self) -> None:
        closed: list[bool] = []
        self.log.close(lambda: closed.append(True))
        self.scheduler.run_until_idle()
        assert closed == [True]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.reports]

    def read_all(self, partition: Partition, offset: int | None = None, max_bytes: int = 4096) -> Rows:
        """Everything a reader gets, by read and fetch as the broker does it."""
        rows: Rows = []
        position = partition.start if offset is None else offset
        while position < partition.visible:
            visible = partition.visible
            batches = partition.read(position, max_bytes)
            if batches is None:
                batches = self.fetch(partition, position, max_bytes)
            if not batches:
                position = visible  # nothing sound was left up to there
            for batch in batches:
                found = [(row[0], row[2], row[3]) for row in batch.rows(batch.index_of(position))]
                rows.extend(row for row in found if row[0] >= position)
                position = batch.next_offset
        return rows

    def fetch(self, partition: Partition, offset: int, max_bytes: int) -> list[RecordBatch]:
        answers: list[tuple[list[RecordBatch], Exception | None]] = []
        partition.fetch(offset, max_bytes, lambda found, error: answers.append((found, error)))
        self.scheduler.run_until_idle()
        [(batches, error)] = answers
        assert error is None, error
        return batches

    def cold(self, partition: Partition) -> Partition:
        """Forget the tail cache: reads go to the disk."""
        assert isinstance(partition, FilePartition)
        partition.cache.clear()
        return partition
