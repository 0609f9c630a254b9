"""What the Spark loads need besides Spark: the connector's jars, the processes of other sessions, processor time of all of them.

The jars are found in bench/.peers/spark-kafka and come by Maven, by name. Nothing here measures.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from bench import peers
from quintet.bench.wire import BenchError

HERE = Path(__file__).resolve().parent
CHILD = HERE / "spark_child.py"
CONNECTOR_JARS = peers.PEERS / "spark-kafka"
CHILD_S = 600.0  # for one start of a session, for one answer of the connector's, and for its end
TICKS = os.sysconf("SC_CLK_TCK")
OWN = ""  # stands for the version of pyspark itself
# Artifact -> the versions to ask for, the first that there is counts. A connector without jars of Spark's own version works with
# those of the one before; its token provider is only used where there are tokens. The client is the one its connector names.
ARTIFACTS = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": (OWN, "4.2.0"),
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": (OWN, "4.2.0", "4.0.0"),
    "org.apache.kafka:kafka-clients": ("3.9.2",),
    "org.apache.commons:commons-pool2": ("2.13.1",),
}


def connector_version() -> str | None:
    """The connector's version, if all of its jars are there."""
    found = {artifact: _jar(artifact) for artifact in ARTIFACTS}
    connector = found["org.apache.spark:spark-sql-kafka-0-10_2.13"]
    return connector.stem.rpartition("-")[2] if connector and all(found.values()) else None


def _jar(artifact: str) -> Path | None:
    name = artifact.partition(":")[2]
    return next(CONNECTOR_JARS.glob(f"{name}-[0-9]*.jar"), None)


def install_connector() -> str:
    """Get the jars that are missing; says what was done or why not."""
    maven = shutil.which("mvn")
    if maven is None:
        return "spark-kafka: needs Maven; install mvn and put it on PATH"
    CONNECTOR_JARS.mkdir(parents=True, exist_ok=True)
    for artifact, versions in ARTIFACTS.items():
        if _jar(artifact) is None and not any(_fetched(maven, artifact, version) for version in versions):
            return f"spark-kafka: Maven found no version of {artifact}: asked for {', '.join(versions)}"
    return f"spark-kafka: installed, version {connector_version()}"


def _fetched(maven: str, artifact: str, version: str) -> bool:
    """One jar without what it depends on: Spark has the rest."""
    wanted = f"-Dartifact={artifact}:{version or metadata.version('pyspark')}"
    command = [maven, "-q", "-B", "-U", "dependency:copy", wanted, f"-DoutputDirectory={CONNECTOR_JARS}"]
    return subprocess.run(command, capture_output=True, timeout=peers.INSTALL_S, check=False).returncode == 0


# -- other sessions ---------------------------------------------------------------------------------------------------


def started(way: str, **environment: str) -> dict[str, float]:
    """The seconds of a session's start and of its first query, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(CHILD), "start", way],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"a session could not be started ({way}): {done.stderr[-600:]}")
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return said


class Connector:
    """A session with the Kafka connector, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = threading.Timer(CHILD_S, self._process.kill)
        late.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{"):
                    said: dict[str, Any] = json.loads(line)
                    return said
        finally:
            late.cancel()
        raise BenchError(f"the session with the Kafka connector ended; it said: {self._log.read_text()[-1500:]}")

    def ask(self, what: str, **more: str) -> dict[str, Any]:
        """Have it do something; BenchError with its last words if it died of it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(json.dumps({"do": what} | more) + "\n")
            self._process.stdin.flush()
        return self.answer()


@contextlib.contextmanager
def connector(server: peers.Server, topic: str, log: Path) -> Iterator[Connector]:
    """The session, ready for orders."""
    if connector_version() is None:
        raise BenchError("the Kafka connector is not installed. Run: python bench/spark_side_by_side.py --install")
    address = f"{server.address[0]}:{server.address[1]}"
    environment = os.environ | {"SPARK_DIST_CLASSPATH": f"{CONNECTOR_JARS}/*"}  # Java itself expands the star
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(CHILD), "kafka", address, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            env=environment,
        )
    try:
        made = Connector(process, log)
        made.answer()
        yield made
    finally:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(CHILD_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


# -- processor time ---------------------------------------------------------------------------------------------------


def cpu_seconds(root: int | None = None) -> float:
    """Processor time of a process (this one, unless given) and of all below it, those included that ended and were waited for:
    Python, virtual machines, Python workers, brokers. It survives a busy machine better than the clock does."""
    return tree_seconds(_processes(), os.getpid() if root is None else root)


def tree_seconds(found: dict[int, tuple[int, float]], root: int) -> float:
    """The same from a table of process -> (its parent, its seconds)."""
    below: dict[int, list[int]] = {}
    for pid, (parent, _) in found.items():
        below.setdefault(parent, []).append(pid)
    total, open_ends = 0.0, [root] if root in found else []
    while open_ends:
        pid = open_ends.pop()
        total += found[pid][1]
        open_ends += below.get(pid, [])
    return total


def _processes() -> dict[int, tuple[int, float]]:
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # Behind the name, which may hold anything: state, parent, and from the 12th on utime, stime, cutime, cstime.
                words = (place / "stat").read_text().rpartition(")")[2].split()
                found[int(place.name)] = (int(words[1]), sum(map(int, words[11:15])) / TICKS)
    return found
