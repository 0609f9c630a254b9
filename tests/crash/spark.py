"""A9: kill -9 of driver, executor and broker under a Spark query, and between the sink's commit and Spark's checkpoint.

Run: python tests/crash/spark.py --kills 200 --rows 1000000 --seed 1

One query copies topic `in` to topic `out`. At random moments the driver (with its virtual machine), one of its Python workers,
or the broker is killed; every third kill of a driver falls exactly between the sink's commit and the checkpoint, and now and
then the checkpoint's last commit is taken back by hand. What died is started again. In the end `out` must hold every row of
`in` exactly once. Then the same with a sink that has no fence, which must be found out.
"""

import argparse
import contextlib
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight import wire
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.client.server import Server
from tests.crash import load
from tests.spark.machines import CACHE, MEMORY

HERE = Path(__file__).parent
PARTITIONS = 4
CHUNK_ROWS = 50_000
BATCHES_PER_KILL = 20
VALUE_BYTES = 100
START_S = 300  # a driver that has committed nothing after this is a hang; at a load of 8 it took more than 90
FINISH_S = 600
PAUSE_S = (0.0, 2.5)  # between kills
KINDS = ("driver", "after commit", "rollback", "worker", "worker", "broker", "broker")


@dataclass
class Verdict:
    """What the campaign did and what it found."""

    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    duplicates: int = 0
    missing: int = 0
    strangers: int = 0

    @property
    def good(self) -> bool:
        return not (self.duplicates or self.missing or self.strangers)

    def facts(self) -> dict[str, object]:
        return {
            "kills": dict(sorted(self.kills.items())), "lives": self.lives, "rows": self.rows,
            "duplicates": self.duplicates, "missing": self.missing, "strangers": self.strangers,
            "failed_queries": dict(self.failures.most_common(5)),
        }  # fmt: skip


class Driver:
    """One life of the query."""

    def __init__(
        self, folder: Path, url: str, rows: int, *, trigger: str, shuffle: bool, sabotage: bool, life: int
    ) -> None:
        self.said = folder / f"driver-{life}.log"
        self._machine = folder / "machine"
        self._machine.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "CRASH_SABOTAGE": "yes" if sabotage else "",
            "CRASH_LIFE": str(life),
            "QUINTET_SPARK_MEMORY": MEMORY,
            "PYTHONPATH": str(HERE.parents[1] / "src"),
            "XDG_CACHE_HOME": str(CACHE),
        }
        words = [str(folder), url, str(rows), trigger, "yes" if shuffle else "no", "local[2,8]"]
        with self.said.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "spark_job.py"), *words],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """Python and the virtual machine, at once."""
        pids = [self._process.pid] if self._process.poll() is None else []
        if self._machine.exists():
            pids.append(int(self._machine.read_text() or 0))
        for pid in filter(None, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(30)

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def worker(self, chance: random.Random) -> int | None:
        """A Python process that works for the driver's virtual machine: a task's, or the source's own."""
        children: dict[int, list[int]] = {}
        for pid, parent in _parents():
            children.setdefault(parent, []).append(pid)
        found, look = [], [int(self._machine.read_text() or 0)] if self._machine.exists() else []
        while look:
            pid = look.pop()
            look += children.get(pid, [])
            if "pyspark" in _command(pid) and "java" not in _command(pid).partition("\0")[0]:
                found.append(pid)
        return chance.choice(found) if found else None


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


class Campaign:
    """A broker, a query, and a random hand that kills."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        rows: int,
        kills: int,
        *,
        sabotage: bool = False,
        kinds: tuple[str, ...] = (),
    ) -> None:
        """kinds: these kills in this order, instead of random ones."""
        self.verdict = Verdict()
        self._folder = folder
        self._chance = random.Random(seed)
        self._rows = rows
        self._kills = kills
        self._sabotage = sabotage
        self._kinds = list(kinds)
        self._server = Server(folder, {"QUINTET_TOPICS__PARTITIONS": str(PARTITIONS)})
        self._per_batch = max(100, rows // (BATCHES_PER_KILL * kills))  # so that it does not run out of work

    def run(self) -> Verdict:
        self._server.start()
        driver: Driver | None = None
        try:
            self._feed()
            while self.verdict.kills.total() < self._kills:
                if driver is None or not driver.alive():
                    self._note_failure(driver)
                    driver = self._begin("0")
                driver = self._kill(driver)
            if driver is not None:
                driver.kill()
            self._finish()
            self._count()
        finally:
            if driver is not None:
                driver.kill()
            self._server.kill()
        return self.verdict

    def _link(self) -> FlightConnection:
        return FlightConnection.of(target({"url": self._server.flight}))

    def _feed(self) -> None:
        """Numbered rows of one shape, so that nothing can be taken for something else."""
        for first in range(0, self._rows, CHUNK_ROWS):
            numbers = range(first, min(first + CHUNK_ROWS, self._rows))
            values = pa.array([struct.pack("<q", number).ljust(VALUE_BYTES, b".") for number in numbers], pa.binary())
            keys = pa.array([b"%d" % (number % 997) for number in numbers], pa.binary())
            batch = pa.record_batch({"key": keys, "value": values})
            link = self._link()
            staged = link.stage(wire.StageRequest("feed", first, "in"), batch.schema, [batch])
            link.stage_commit(wire.StageCommit("feed", first, (staged.stage,), staged.rows))

    def _begin(self, trigger: str) -> Driver:
        self.verdict.lives += 1
        shuffle = self._chance.random() < 0.3
        rows = self._rows if trigger == "now" else self._per_batch
        return Driver(
            self._folder, self._server.flight, rows, trigger=trigger, shuffle=shuffle,
            sabotage=self._sabotage, life=self.verdict.lives,
        )  # fmt: skip

    def _note_failure(self, driver: Driver | None) -> None:
        """A driver that ended by itself: its query failed, which a restart must cure."""
        if driver is not None:
            lines = [line for line in driver.said.read_text(errors="replace").splitlines() if line.strip()]
            self.verdict.failures[lines[-1][:160] if lines else "no word"] += 1

    def _kill(self, driver: Driver) -> Driver | None:
        """One more kill; what is left of the driver."""
        kind = self._kinds.pop(0) if self._kinds else self._chance.choice(KINDS)
        if self._chance.random() < 0.8:
            self._wait_for_progress(driver)
        time.sleep(self._chance.uniform(*PAUSE_S))
        if kind == "broker":
            self._server.kill()
            time.sleep(self._chance.uniform(0, 1))
            self._server.start()
        elif kind == "worker":
            pid = driver.worker(self._chance)
            if pid is None:
                return driver
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        else:
            if kind != "driver":
                (self._folder / "die").touch()
                if driver.wait(START_S) is None:
                    raise AssertionError(f"no commit within {START_S} s:\n{driver.said.read_text()[-3000:]}")
                for name in ("die", "died"):
                    (self._folder / name).unlink(missing_ok=True)
            driver.kill()
            if kind == "rollback":
                self._take_back()
        self.verdict.kills[kind] += 1
        self._tell(kind)
        return driver if driver.alive() else None

    def _take_back(self) -> None:
        """The newest note that a batch is done is lost, also when Spark had written it."""
        done = sorted((self._folder / "checkpoint/commits").glob("[0-9]*"), key=lambda path: int(path.name))
        if done:
            done[-1].unlink()
            (done[-1].parent / f".{done[-1].name}.crc").unlink(missing_ok=True)

    def _wait_for_progress(self, driver: Driver) -> None:
        before, until = self._batches(), time.monotonic() + START_S
        while self._batches() <= before and driver.alive() and time.monotonic() < until:
            time.sleep(0.02)
        if time.monotonic() >= until:
            raise AssertionError(f"no progress within {START_S} s:\n{driver.said.read_text()[-3000:]}")

    def _batches(self) -> int:
        folder = self._folder / "checkpoint/commits"
        names = [int(path.name) for path in folder.glob("[0-9]*")] if folder.is_dir() else []
        return max(names, default=-1)

    def _finish(self) -> None:
        """Whatever is left is copied in peace."""
        for _ in range(5):
            driver = self._begin("now")
            code = driver.wait(FINISH_S)
            driver.kill()
            if code == 0:
                return
            self._note_failure(driver)
        raise AssertionError(f"the query does not come to an end: {dict(self.verdict.failures)}")

    def _count(self) -> None:
        found = np.zeros(self._rows, np.int64)
        info = self._link().topics(wire.Selection(("out",))).topics[0]
        for number in range(len(info.partitions)):
            ticket = wire.Ticket("out", number, columns=("value",))
            for batch in self._link().read(ticket):
                for value in batch.column(0).to_pylist():
                    (place,) = struct.unpack_from("<q", value)
                    if value != struct.pack("<q", place).ljust(VALUE_BYTES, b".") or not 0 <= place < self._rows:
                        self.verdict.strangers += 1
                    else:
                        found[place] += 1
        self.verdict.rows = int(found.sum())
        self.verdict.duplicates = int((found > 1).sum())
        self.verdict.missing = int((found == 0).sum())

    def _tell(self, kind: str) -> None:
        load.say(kill=self.verdict.kills.total(), of=self._kills, kind=kind, batch=self._batches())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--control-kills", type=int, default=3, help="kills of the sink without a fence; 0: none")
    args = parser.parse_args()
    load.say(campaign="spark", seed=args.seed, kills=args.kills, rows=args.rows)
    with tempfile.TemporaryDirectory(prefix="quintet-spark-crash-") as folder:
        verdict = Campaign(Path(folder), args.seed, args.rows, args.kills).run()
    caught = True
    if args.control_kills:
        with tempfile.TemporaryDirectory(prefix="quintet-spark-crash-") as folder:
            worst = ("after commit",) * args.control_kills
            control = Campaign(Path(folder), args.seed, 20_000, len(worst), sabotage=True, kinds=worst).run()
        caught = not control.good
        load.say(control="a sink without a fence", found_out=caught, **control.facts())
    good = verdict.good and caught
    load.say(verdict="good" if good else "BAD", seed=args.seed, **verdict.facts())
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
