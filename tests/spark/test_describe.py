"""Progress of streaming queries names its topics and has figures; Spark's workers end without stack traces."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from quintet.spark.source.describe import described
from tests.spark.conftest import FlightServer
from tests.spark.data import filled
from tests.spark.machines import CACHE, QUICK, START_S

SPARKS = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@24a6b276"
A, B = "1f/2a", "1f/2b"  # identities
LATEST = {"a": {"id": A, "0": 10, "1": 40, "recordBytes": 20.0}, "b": {"id": B, "0": 5, "recordBytes": 100.5}}

WORKER = """
import sys, traceback
from types import ModuleType, SimpleNamespace
daemon = sys.modules["__main__"] = ModuleType("__main__")  # as it is in a worker
daemon.__spec__, daemon.traceback = SimpleNamespace(name="pyspark.daemon"), traceback
__import__(sys.argv[2])
try:
    raise eval(sys.argv[1])
except BaseException:
    daemon.traceback.print_exc()
"""
READS = """
import sys
from quintet.spark import session
url, topic, flags = sys.argv[1:]
spark = session("local[2]", url=url, conf={"spark.driver.extraJavaOptions": flags, "spark.driver.memory": "1g"})
assert len(spark.read.format("quintet").options(url=url, subscribe=topic).load().limit(1).collect()) == 1
assert spark.sql(f"select count(*) from `{topic}`").collect()[0][0] == 40
"""


def source(**more: Any) -> dict[str, Any]:
    return {
        "description": SPARKS,
        "numInputRows": 7,
        "startOffset": None,
        "endOffset": None,
        "latestOffset": None,
        **more,
    }


def shown(**more: Any) -> tuple[str, dict[str, int]]:
    progress = json.dumps({"id": "q", "sources": [source(**more)]})
    (found,) = described(json.loads(progress))["sources"]
    return found["description"], {name: int(value) for name, value in found.get("metrics", {}).items()}


def test_a_source_is_named_and_has_figures() -> None:
    start = {"a": {"id": A, "0": 2, "1": 10}}
    end = {"a": {"id": A, "0": 10, "1": 30}, "b": {"id": B, "0": 1}}
    name, figures = shown(startOffset=start, endOffset=end, latestOffset=LATEST)
    assert name == "quintet[a,b]"
    assert figures == {
        "records": 8 + 20 + 1,
        "bytes": 28 * 20 + 100,
        "offsetsBehindLatest": 10 + 4,
        "maxOffsetsBehindLatest": 10,
        "bytesBehindLatest": 10 * 20 + 402,
    }


def test_a_first_batch_has_what_came_out_of_it() -> None:
    end = {"a": {"id": A, "0": 7, "1": 0}}
    name, figures = shown(endOffset=end, latestOffset={"a": LATEST["a"]})
    assert (name, figures["records"], figures["bytes"]) == ("quintet[a]", 7, 140)


@pytest.mark.parametrize(
    "more",
    [
        {"description": "RateStreamV2[rowsPerSecond=1]", "endOffset": 7, "latestOffset": 9},
        {"endOffset": {"partition-1": 3}, "latestOffset": {"partition-1": 9}},
        {"endOffset": "7"},
        {},
    ],
)
def test_sources_of_others_keep_what_spark_says(more: dict[str, Any]) -> None:
    assert shown(**more) == (more.get("description", SPARKS), {})


@pytest.mark.parametrize("source", ["quintet.spark.source.source", "quintet.spark.lake.sink"])
@pytest.mark.parametrize(("raised", "printed"), [("BrokenPipeError(32, 'x')", False), ("ValueError('x')", True)])
def test_a_worker_whose_reader_has_gone_prints_nothing(raised: str, printed: bool, source: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WORKER, raised, source], capture_output=True, text=True, check=True, timeout=60
    )
    assert ("Traceback" in done.stderr) == printed


@pytest.mark.timeout(START_S + 50)
def test_a_program_that_reads_and_ends_prints_no_stack_trace(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 2, 20)
    done = subprocess.run(
        [sys.executable, "-c", READS, broker.flight, topic, QUICK],
        env={**os.environ, "XDG_CACHE_HOME": str(CACHE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=START_S,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
