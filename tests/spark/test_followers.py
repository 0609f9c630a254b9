"""Spark reads a cell from its followers, and loses and doubles nothing when the one it reads from is killed.

Three nodes over one real Kafka broker. Spark is the shared session of this folder.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest

from bench import peers
from quintet.cli.operate import scrape
from quintet.flight import wire
from quintet.model.errors import QuintetError
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.crash.cells import HOSTS, SMALL_JAVA, NodeProcess, shared_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
pytestmark = pytest.mark.crash
TOPIC, PARTITIONS, ROWS, PUTS = "numbers", 2, 50, 12
WAIT_S = 120.0
PUT_EVERY_S = 4.0  # while no follower was seen to be read from


class Cell:
    """Three nodes whose Flight doors have one port."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.killed: NodeProcess | None = None
        doors, self.port = shared_port(), shared_port()
        self.nodes = [
            NodeProcess(folder, number, (servers, "cell"), doors, False, self.port) for number in range(len(HOSTS))
        ]

    @property
    def url(self) -> str:
        return "flight://admin:admin@" + ",".join(node.flight for node in self.nodes)

    def leader(self) -> NodeProcess:
        """On a busy machine the role may move: what left the cell is started again, but for the one that was killed."""

        def leads() -> NodeProcess | None:
            for node in self.nodes:
                if node is not self.killed:
                    node.supervise()
            return next((node for node in self.nodes if node.address), None)

        return until(leads)

    def kill(self, node: NodeProcess) -> None:
        self.killed = node
        node.process.kill()
        node.process.wait()

    def reads(self, node: NodeProcess) -> float:
        """Streams of records that it has begun."""
        return sum(scrape.scrape(f"http://{node.admin}").values["quintet_flight_reads_total"].values())

    def put(self, number: int) -> None:
        """ROWS more rows, as a batch that is committed once, whoever leads."""
        link = FlightConnection.of(target({"url": self.url, "retrySeconds": str(WAIT_S)}))
        values = [b"%d" % value for value in range(number * ROWS, (number + 1) * ROWS)]
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        staged = link.stage(wire.StageRequest("test", number, TOPIC), batch.schema, [batch])
        link.stage_commit(wire.StageCommit("test", number, (staged.stage,), ROWS))


def until(found: Callable[[], T | None]) -> T:
    """What it returns, when that is something."""
    end = time.monotonic() + WAIT_S
    while not (result := found()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)
    return result


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    if not peers.has_kafka():
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install kafka)")
    with peers.kafka(tmp_path / "kafka", SMALL_JAVA) as kafka:
        made = Cell(tmp_path, f"{kafka.address[0]}:{kafka.address[1]}")
        try:
            yield made
        finally:
            for node in made.nodes:
                node.end()


def followers(cell: Cell) -> list[NodeProcess]:
    leader = cell.leader()
    return [node for node in cell.nodes if node is not leader]


def answers(node: NodeProcess) -> bool:
    link = FlightConnection(target({"url": f"flight://admin:admin@{node.flight}", "retrySeconds": "0"}))
    try:
        return bool(link.topics(wire.Selection((TOPIC,), at_least=(wire.Least(TOPIC),))).topics)
    except QuintetError:
        return False
    finally:
        link.close()


def written(spark: "SparkSession", place: str) -> int:
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(place).count()
    except (
        AnalysisException
    ):  # on a slow machine the first batch is not complete yet: there is no file to know the columns by
        return 0


@pytest.mark.timeout(600)
def test_spark_reads_followers_and_goes_on_when_one_is_killed(
    spark: "SparkSession", cell: Cell, tmp_path: Path
) -> None:
    cell.leader()
    FlightConnection.of(target({"url": cell.url})).topic_create(TOPIC, PARTITIONS)
    until(lambda: all(map(answers, followers(cell))))
    cell.put(0)
    places = {name: str(tmp_path / name) for name in ("out", "checkpoint")}
    read = spark.readStream.format("quintet").options(
        url=cell.url,
        subscribe=TOPIC,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=str(ROWS // 2),
        access="flight",
        maxAgeSeconds="60",
    )
    query = (
        read.load()
        .selectExpr("partition", "offset", "cast(value as string) as value")
        .writeStream.format("parquet")
        .option("checkpointLocation", places["checkpoint"])
        .start(places["out"])
    )
    try:
        put, end = 1, time.monotonic() + WAIT_S
        while (
            max(map(cell.reads, followers(cell))) < 2
        ):  # a node that had to be started again counts anew: it gets more to read
            assert time.monotonic() < end, "no follower was read from"
            if put < PUTS // 2:
                cell.put(put)
                put += 1
            time.sleep(PUT_EVERY_S)
        read_from = max(followers(cell), key=cell.reads)
        assert cell.reads(cell.leader()) < cell.reads(read_from), "the leader is spared"
        for number in range(put, PUTS):
            cell.put(number)
            if number == PUTS // 2:
                cell.kill(read_from)
        until(lambda: query.exception() or written(spark, places["out"]) >= PUTS * ROWS)
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(places["out"]).collect()
    assert sorted(int(row.value) for row in rows) == list(range(PUTS * ROWS)), "0 lost, 0 doubled"
    assert len({(row.partition, row.offset) for row in rows}) == len(rows)
    assert sum(cell.reads(node) for node in cell.nodes if node is not read_from) > 0
    # A batch read of what is there: the two nodes that are left, one of which is the leader.
    batch = spark.read.format("quintet").options(url=cell.url, subscribe=TOPIC, maxAgeSeconds="30", access="flight")
    assert batch.load().count() == PUTS * ROWS
