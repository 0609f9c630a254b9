"""The lag pipeline: numbers of a group whose commits are known, to the message and to the microsecond."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from quintet.broker.consumers.group import GroupRow as BrokerRow
from quintet.flight import wire
from quintet.spark.pipelines import lag, lag_picture
from quintet.spark.pipelines.lag import GroupRow, Options, sampled
from quintet.spark.pipelines.lag_picture import Sample
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import target
from tests.spark.conftest import FlightServer
from tests.spark.data import link_to, manage
from tests.spark.recent import add, made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def commit(broker: FlightServer, topic: str, group: str, offsets: dict[int, int]) -> None:
    link_to(broker).group_commit(wire.GroupCommit(group, {topic: offsets}))


def commits(broker: FlightServer, topic: str, group: str) -> dict[tuple[int, int], int]:
    """(partition, offset) -> when it was committed first, as the broker wrote it down."""
    found: dict[tuple[int, int], int] = {}
    for batch in link_to(broker).read(wire.Ticket("__groups", 0, columns=("value", "timestamp"))):
        times = batch.column("timestamp").cast("int64").to_pylist()
        for value, at in zip(batch.column("value").to_pylist(), times, strict=True):
            row = msgspec.msgpack.decode(value, type=BrokerRow)
            if (row.topic, row.group) == (topic, group) and row.partition >= 0:
                found.setdefault((row.partition, row.offset), at)
    return found


def moments(broker: FlightServer, topic: str, partition: int) -> list[int]:
    batches = link_to(broker).read(wire.Ticket(topic, partition, columns=("timestamp",)))
    return [at for batch in batches for at in batch.column("timestamp").cast("int64").to_pylist()]


def test_lag_trend_and_latency_of_known_commits(
    spark: "SparkSession", broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    made(broker, topic, partitions=2, rows=10)
    for offsets in ({0: 2}, {0: 4, 1: 10}, {0: 3}, {0: 4}):  # it goes back once: that settles nothing new
        commit(broker, topic, "workers", offsets)
    commit(broker, topic, "idle", {0: 0})
    options = Options(
        url=broker.flight, topic=topic, samples=3, over=0.2, picture=str(tmp_path / "p.png"), history="1d"
    )
    result = lag.run(spark, options)
    rows = {row[0]: dict(zip(result.columns, row, strict=True)) for row in result.rows}
    assert set(rows) == {"workers", "idle"}
    workers, idle = rows["workers"], rows["idle"]
    assert (workers["lag"], workers["per_second"], workers["catch_up_seconds"]) == (6, 0.0, None)
    assert workers["lag_seconds"] > 0
    assert (idle["lag"], idle["commits"], idle["p50_ms"]) == (10, 0, None)

    times = commits(broker, topic, "workers")
    published = [moments(broker, topic, partition) for partition in (0, 1)]
    took = sorted(times[place] - published[place[0]][place[1] - 1] for place in ((0, 2), (0, 4), (1, 10)))
    assert workers["commits"] == 3
    assert (workers["p50_ms"], workers["p95_ms"], workers["p99_ms"]) == (took[1] / 1000, took[2] / 1000, took[2] / 1000)
    assert result.pictures == (str(tmp_path / "p.png"),)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_who_may_not_read_the_history_is_told(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    made(broker, topic, rows=4)
    manage(broker, lambda admin: admin.create_user(topic, "a password", ["consumer"]))
    user = {"user": topic, "password": "a password", "url": broker.flight.replace("admin:admin@", "")}
    FlightConnection.of(target(user)).group_commit(wire.GroupCommit("mine", {topic: {0: 1}}))
    options = Options(url=user["url"], user=topic, password="a password", samples=1, picture="")
    result = lag.run(spark, options)
    assert [(row[:3], row[6:]) for row in result.rows] == [(("mine", topic, 3), (None, None, None, 0))]
    assert result.notes == ("no latency: only administrators may read the history of commits (__groups)",)


def test_a_group_that_nobody_moved_lately(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    made(broker, topic, rows=4)
    commit(broker, topic, "g", {0: 0})
    add(broker, topic, rows=1, begin=4)
    result = lag.run(spark, Options(url=broker.flight, group="g", topic=topic, samples=1, picture=""))
    assert result.rows[0][:3] == ("g", topic, 5)
    assert result.rows[0][4] is None  # one sample has no trend
    assert result.notes == ("no latency: no group moved forward in the last 1h",)


def test_a_trend_is_between_the_first_and_the_last_sample() -> None:
    def answer(at: int, *lags: int) -> wire.GroupPositions:
        return wire.GroupPositions(
            tuple(wire.GroupPosition("g", "t", n, 0, lag, lag, lag * 10**6) for n, lag in enumerate(lags)), at
        )

    samples = sampled([answer(0, 60, 40), answer(5_000_000, 99, 0), answer(10_000_000, 30, 20)])
    assert samples == {("g", "t"): [Sample(0, 100, 60), Sample(5, 99, 99), Sample(10, 50, 30)]}
    assert lag._standing(samples["g", "t"]) == (50, 30.0, -5.0, 10.0)
    assert lag._standing([Sample(0, 10, 1), Sample(10, 30, 2)]) == (30, 2, 2.0, None)
    assert lag._standing([Sample(0, 10, 1), Sample(10, 0, 0)]) == (0, 0, -1.0, 0.0)


def test_a_row_of_the_brokers_table_is_what_it_is_taken_for() -> None:
    row = BrokerRow("t", "g", 3, "owner", 4, 5, 6, 7)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=GroupRow) == ("t", "g", 3, "owner", 4, 5, 6, 7)


def test_without_matplotlib_the_picture_is_a_plain_svg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = {("<g>", "t"): [Sample(0, 7, 1)], ("h", "t"): [Sample(0, 0, 0)]}
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert lag_picture.draw(str(tmp_path / "a.png"), samples, {}) == str(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "&lt;g&gt; on t" in text and ">7</text>" in text
    with pytest.raises(ValueError, match=r"must end with \.png or \.svg"):
        lag_picture.draw("a.gif", samples, {})
