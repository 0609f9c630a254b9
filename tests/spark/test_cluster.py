"""On a standalone cluster of two workers, with a Python for the executors that has only what docs/SPARK.md names, everything
works: reads, writes, streams, typed columns, also when a worker is killed; with our session and with one of the user's own.

Seven virtual machines start for this, so all tests of this file share one cluster.
"""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pytest

from quintet.broker.schemas.protobuf import ProtobufSchema
from quintet.flight import wire
from quintet.spark import typed
from quintet.spark.sessions import java, settings, start, travel
from tests.spark.cluster import CONF, LOOPBACK, Cluster, cluster, environment, link
from tests.spark.conftest import FlightServer
from tests.spark.data import START_US, create, link_to, manage, put
from tests.spark.machines import CACHE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/SPARK.md").read_text()
PARTITIONS = 4
ROWS = 800
SUM = ROWS * (ROWS - 1) // 2
ALL = [ROWS, SUM, PARTITIONS, START_US]  # of a read; the session's time zone, which is far from UTC, changes nothing
JSON = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; }'
TASK_S = 400  # the longest of a step, on a busy computer
ONE_CORE = {"spark.cores.max": "1"}  # one executor is enough for a second driver

pytestmark = pytest.mark.timeout(TASK_S + 60)  # seven virtual machines start


def bare(**more: str) -> dict[str, str]:
    """The environment of a driver: without PYTHONPATH, by which its planners would find the package that is to be sent."""
    kept = {name: value for name, value in os.environ.items() if name != travel.PYTHONPATH}
    return {**kept, "XDG_CACHE_HOME": str(CACHE), **more}


class Steps:
    """The driver's process, from the side of the tests."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_driver", *arguments],
            env=bare(**environment),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def ask(self, *step: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(step)}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the driver ended; what it said is on stderr"
        found = json.loads(line)
        if "failed" in found:
            raise RuntimeError(found["failed"])
        return found["ok"]

    def __call__(self, *step: str) -> Any:
        self.ask(*step)
        return self.answer()

    def end(self) -> None:
        self._process.stdin.close() if self._process.stdin else None
        try:
            self._process.wait(TASK_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close() if self._process.stdout else None


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executors' Python."""
    return environment(tmp_path_factory.mktemp("executor"), travel.NEEDED)


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="module")
def orders(broker: FlightServer) -> FlightServer:
    """The broker with a topic of each kind of schema, and those that are written."""
    numbers = range(ROWS)
    register(broker, "json", JSON, [b'{"id": %d}' % number for number in numbers])
    register(broker, "avro", AVRO, [_avro(number) for number in numbers])
    register(broker, "protobuf", PROTO, [_protobuf(number) for number in numbers])
    for topic in ("cluster-written", "cluster-streamed", "cluster-own"):
        create(broker, topic, PARTITIONS)
    return broker


def register(broker: FlightServer, kind: str, definition: str, values: Sequence[bytes]) -> None:
    topic = f"cluster-{kind}"
    create(broker, topic, PARTITIONS)
    manage(broker, lambda admin: admin.register_schema(topic, kind, definition.encode()))
    rows = range(ROWS)
    put(
        broker,
        topic,
        {
            "key": [str(row).encode() for row in rows],
            "value": values,
            "partition": [row % PARTITIONS for row in rows],
            "timestamp": [START_US + row for row in rows],
        },
    )


@pytest.fixture(scope="module")
def steps(
    orders: FlightServer, spread: Cluster, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Steps]:
    """A driver with a session of ours."""
    folder = str(tmp_path_factory.mktemp("driver"))
    (Path(folder) / settings.FILE).write_text("spark.sql.session.timeZone  Asia/Tokyo\nspark.executor.cores 7\n")
    words = "--conf spark.sql.session.timeZone=Asia/Seoul --name named pyspark-shell"
    made = Steps(
        spread.master,
        orders.flight,
        folder,
        PYSPARK_PYTHON=str(python),
        SPARK_CONF_DIR=folder,
        PYSPARK_SUBMIT_ARGS=words,
    )
    yield made
    made.end()


def _avro(number: int) -> bytes:
    into = io.BytesIO()
    fastavro.schemaless_writer(into, fastavro.parse_schema(json.loads(AVRO)), {"id": number})
    return into.getvalue()


def _protobuf(number: int) -> bytes:
    from google.protobuf import message_factory

    made: Any = message_factory.GetMessageClass(ProtobufSchema(PROTO.encode()).descriptor)
    return bytes(made(id=number).SerializeToString())


def rows(broker: FlightServer, topic: str) -> list[dict[str, Any]]:
    batches = (batch for part in range(PARTITIONS) for batch in link_to(broker).read(wire.Ticket(topic, part)))
    return [row for batch in batches for row in batch.to_pylist()]


def keys(broker: FlightServer, topic: str) -> list[int]:
    """The keys of a topic, as numbers, in order."""
    return sorted(int(row["key"]) for row in rows(broker, topic))


def test_the_settings_of_the_user_win_on_a_cluster(steps: Steps) -> None:
    """The file is under the environment, and that under the arguments of the session."""
    found = [
        steps("setting", name) for name in ("spark.sql.session.timeZone", "spark.executor.cores", "spark.app.name")
    ]
    assert found == ["Asia/Seoul", CONF["spark.executor.cores"], "named"]


@pytest.mark.parametrize("access", ["flight", "files"])
def test_batch_reads(steps: Steps, access: str) -> None:
    assert steps("read", "cluster-json", access) == ALL


def test_json_columns(steps: Steps) -> None:
    assert steps("read", "cluster-json", "auto", "registry") == ALL


def test_batch_writes(steps: Steps, orders: FlightServer) -> None:
    steps("write", "cluster-json", "cluster-written")
    assert keys(orders, "cluster-written") == list(range(ROWS))


@pytest.mark.parametrize("kind", list(typed.PACKAGES))
def test_a_package_that_executors_lack_is_named_until_it_is_there(steps: Steps, python: Path, kind: str) -> None:
    package = typed.PACKAGES[kind][1]
    with pytest.raises(RuntimeError, match=f"need the package {package}, which the Python .*{python.parent}") as caught:
        steps("read", f"cluster-{kind}", "auto", "registry")
    assert "Traceback" not in str(caught.value)
    link(python, [package])
    assert steps("read", f"cluster-{kind}", "auto", "registry") == ALL


def test_a_stream_writes_each_row_once_though_a_worker_is_killed(
    steps: Steps, orders: FlightServer, spread: Cluster
) -> None:
    begun = steps("start", "cluster-json", "cluster-streamed")
    assert steps("executors") == 2
    steps.ask("finish")
    spread.workers[0].kill()
    assert steps.answer() > begun, "micro-batches ran after the kill"
    assert keys(orders, "cluster-streamed") == list(range(ROWS))
    places = {row["value"].decode() for row in rows(orders, "cluster-streamed")}
    assert all(place.startswith(f"{spread.folder}/worker") for place in places), (
        "the driver's folder is on no other machine"
    )


def test_the_program_of_the_page_with_a_session_of_its_own(
    orders: FlightServer, spread: Cluster, python: Path, tmp_path: Path
) -> None:
    """By spark-submit, while the driver of the other tests runs."""
    found = re.search(r"```python job[.]py\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    job = tmp_path / "job.py"
    job.write_text(found[1])
    conf = [word for name, value in (CONF | ONE_CORE).items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [
            str(start.spark_home() / "bin" / "spark-submit"),
            "--master",
            spread.master,
            *conf,
            str(job),
            orders.flight,
            "cluster-json",
            "cluster-own",
            str(tmp_path / "state"),
        ],
        env=bare(
            PYSPARK_PYTHON=str(python),
            PYSPARK_DRIVER_PYTHON=sys.executable,
            JAVA_HOME=str(start.wrapper(java.find())),
            SPARK_LOCAL_IP=LOOPBACK,
        ),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TASK_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == str(ROWS)
    assert keys(orders, "cluster-own") == list(range(ROWS))
