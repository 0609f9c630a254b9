"""A real Spark query through the faults of a cell: topic `in` to topic `out`, by the product's source and exactly-once sink.

A feeder stages numbered rows into `in`, batch after batch, each again under its number until it is answered. The driver
(tests/crash/spark_job.py) reads from followers and writes to the leader, whoever that is; when its query fails it is started again
on its checkpoint. In the end every row that was fed is in `out` on every node, once.
"""

import struct
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight import wire
from quintet.model.errors import QuintetError
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.cell_faults.nodes import Addresses, Cell
from tests.crash.spark import Driver
from tests.wire import flymq

SOURCE, SINK, PARTITIONS = "in", "out", 4
FEEDER, FED_ROWS = "feed", 50
FED_S = 0.1  # between two batches
ROWS_PER_TRIGGER = 2_000
VALUE_BYTES = 60
PROGRESS_S = 900.0  # until the query commits a batch: at a load of 100 its start alone took more than five minutes
END_S = 300.0  # until all that was fed is there
SHUFFLED = 2  # every second life shuffles: then the tasks of a batch that is done again hold other rows
RETRY_S = "60"  # of the feeder
LOOK_S = 0.5


def value_of(number: int) -> bytes:
    return struct.pack("<q", number).ljust(VALUE_BYTES, b".")


class SparkQuery:
    """From when the topics are made until the end of a round."""

    def __init__(self, folder: Path, cell: Cell, at: Addresses) -> None:
        with flymq.Client(at.flymq).login() as link:
            for topic in (SOURCE, SINK):
                link.create(topic, PARTITIONS)
        self.paused = False  # nothing is fed for now, so that files can be compared
        self.lives = 0
        self.fed = 0  # rows that were answered
        self.failures: list[str] = []
        self._folder = folder
        folder.mkdir()
        self._cell = cell
        hosts = ",".join(node.at.flight for node in cell.nodes.values())
        self._url = f"flight://admin:admin@{hosts}"
        self._full = threading.Event()  # nothing more is fed
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._feed, self._live)]
        for thread in self._threads:
            thread.start()

    def batches(self) -> int:
        """How many the query has committed."""
        commits = self._folder / "checkpoint" / "commits"
        names = [int(path.name) for path in commits.glob("[0-9]*")] if commits.is_dir() else []
        return max(names, default=-1) + 1

    def wait_for_progress(self) -> None:
        """Until it has committed one more."""
        before, until = self.batches(), time.monotonic() + PROGRESS_S
        while self.batches() <= before:
            assert time.monotonic() < until, f"Spark commits nothing: {self.failures[-3:]}"
            time.sleep(LOOK_S)

    def judge(self) -> list[str]:
        """What is wrong with `out`, when all that was fed had the time to come there."""
        self._full.set()
        self._threads[0].join(END_S)
        if self._threads[0].is_alive():
            return ["hang: the feeder of Spark gets no answer"]
        found: list[str] = []
        for node in self._cell.nodes.values():
            until = time.monotonic() + END_S
            while (rows := self._rows_at(node.at)).total() < self.fed and time.monotonic() < until:
                time.sleep(LOOK_S)
            wanted = {value_of(number) for number in range(self.fed)}
            missing, doubled = wanted - rows.keys(), [value for value, count in rows.items() if count > 1]
            strangers = rows.keys() - wanted
            found += [
                f"{kind}: {len(values)} of {self.fed} rows of Spark at n{node.number}, as {sorted(values)[:3]}"
                for kind, values in (("lost", missing), ("doubled", doubled), ("phantom", strangers))
                if values
            ]
        return found

    def stop(self) -> None:
        self._full.set()
        self._over.set()
        for thread in self._threads:
            thread.join(END_S)

    def _rows_at(self, at: Addresses) -> Counter[bytes]:
        """What this node has of `out`; nothing if it does not answer."""
        rows = Counter[bytes]()
        try:
            link = FlightConnection(target({"url": f"flight://admin:admin@{at.flight}"}))
            for number in range(PARTITIONS):
                for batch in link.read(wire.Ticket(SINK, number, columns=("value",))):
                    rows.update(batch.column(0).to_pylist())
        except (QuintetError, pa.ArrowException, OSError):
            return Counter()
        return rows

    def _feed(self) -> None:
        link = FlightConnection(target({"url": self._url, "retrySeconds": RETRY_S}))
        number = 0
        while not self._full.wait(FED_S):
            if self.paused:
                continue
            rows = range(number * FED_ROWS, (number + 1) * FED_ROWS)
            values = pa.array(map(value_of, rows), pa.binary())
            keys = pa.array([b"%d" % (row % 97) for row in rows], pa.binary())
            batch = pa.record_batch({"key": keys, "value": values})
            try:
                staged = link.stage(wire.StageRequest(FEEDER, number, SOURCE), batch.schema, [batch])
                link.stage_commit(wire.StageCommit(FEEDER, number, (staged.stage,), FED_ROWS))
            except (QuintetError, pa.ArrowException, OSError) as error:
                self.failures.append(f"feeder: {error}")
                continue  # under the same number: the fence drops it if it was committed
            number += 1
            self.fed = number * FED_ROWS

    def _live(self) -> None:
        """One life of the driver after the other."""
        while not self._over.is_set():
            self.lives += 1
            driver = Driver(
                self._folder, self._url, ROWS_PER_TRIGGER, trigger="0", shuffle=self.lives % SHUFFLED == 0,
                sabotage=False, life=self.lives,
            )  # fmt: skip
            while driver.alive() and not self._over.wait(LOOK_S):
                pass
            if not self._over.is_set():
                lines = [line for line in driver.said.read_text(errors="replace").splitlines() if line.strip()]
                self.failures.append(lines[-1][:200] if lines else "no word")
            driver.kill()
