"""The session: what it sets, that its workers are this Python, and what it refuses. test_programs.py has others in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import quintet.spark
from quintet.model.errors import ConfigError
from quintet.spark.sessions import start, travel

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
    from pyspark.sql import SparkSession


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
