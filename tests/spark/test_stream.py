"""Streaming reads. Most tests ask the stream reader what Spark would ask it, without Spark; the last ones run queries."""

import json
import logging
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from quintet.flight import wire
from quintet.spark.source import progress
from quintet.spark.source.options import BYTES_PER_TRIGGER, OptionError
from quintet.spark.source.source import QuintetSource
from quintet.spark.source.stream import RefusedReader, StreamReader
from tests.spark.conftest import FlightServer, flying
from tests.spark.data import START_US, create, fill, filled, link_to, manage, put

PATIENCE_S = 60
ALL = ReadAllAvailable()


def stream(broker: FlightServer, **options: str) -> StreamReader:
    source = QuintetSource(CaseInsensitiveDict({"url": broker.flight} | options))
    made = source.streamReader(source.schema())
    assert isinstance(made, StreamReader)
    return made


def ends(offsets: dict[str, Any]) -> dict[str, list[int]]:
    """Offsets without the ids."""
    return {topic: [at for name, at in marks.items() if name.isdigit()] for topic, marks in offsets.items()}


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """What a micro-batch reads, by a reader in another process."""
    tasks = reader.partitions(start, end)
    other = pickle.loads(pickle.dumps(reader))
    return sorted(
        value.decode() for task in tasks for batch in other.read(task) for value in batch.column("value").to_pylist()
    )


def until(found: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not found():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.05)


# -- offsets ----------------------------------------------------------------------------------------------------------


def test_where_a_stream_starts(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 2, 4)

    def start(**options: str) -> dict[str, list[int]]:
        return ends(stream(broker, subscribe=topic, **options).initialOffset())

    assert start() == start(startingOffsets="latest") == {topic: [4, 4]}
    assert start(startingOffsets="earliest") == {topic: [0, 0]}
    assert start(startingOffsets=json.dumps({topic: {"0": 3, "1": -1}})) == {topic: [3, 4]}
    assert start(startingTimestamp=str(START_US // 1000 + 1000)) == {topic: [1, 1]}
    initial = stream(broker, subscribe=topic).initialOffset()
    assert list(initial[topic]) == ["id", "0", "1"]
    assert json.dumps(stream(broker, subscribe=topic).initialOffset()) == json.dumps(initial)


def test_a_limit_is_kept_and_everything_is_read_once(broker: FlightServer, topic: str) -> None:
    create(broker, topic, 3)
    fill(broker, topic, 2, 50)
    put(broker, topic, {"value": [b"lonely"], "partition": [2]})
    reader = stream(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert stream(broker, subscribe=topic).getDefaultReadLimit() == ReadMaxBytes(BYTES_PER_TRIGGER)
    start, seen, batches = reader.initialOffset(), [], 0
    while True:
        end = reader.latestOffset(start, limit)
        if end == start:
            break
        got = rows(reader, start, end)
        assert len(got) <= 30
        seen += got
        start, batches = end, batches + 1
    assert batches == 4
    assert len(seen) == len(set(seen)) == 101
    assert ends(start) == ends(reader.reportLatestOffset() or {}) == {topic: [50, 50, 1]}
    assert ends(reader.latestOffset(reader.initialOffset(), ALL)) == {topic: [50, 50, 1]}
    assert rows(reader, start, start) == []


def test_bytes_become_rows_by_what_rows_take_here(broker: FlightServer, topic: str) -> None:
    create(broker, topic, 2)
    fill(broker, topic, 2, 500)
    reader = stream(broker, subscribe=topic, startingOffsets="earliest")
    start = reader.initialOffset()
    size = sum(part.bytes for part in link_to(broker).topics(wire.Selection((topic,))).topics[0].partitions)
    half = sum(sum(at) for at in ends(reader.latestOffset(start, ReadMaxBytes(size // 2))).values())
    assert 490 <= half <= 510
    assert sum(sum(at) for at in ends(reader.latestOffset(start, ReadMaxBytes(1))).values()) == 1
    assert sum(sum(at) for at in ends(reader.latestOffset(start, ReadMaxBytes(1 << 40))).values()) == 1000


def test_available_now_ends_where_it_was_asked(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 3)
    reader = stream(broker, subscribe=topic, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    fill(broker, topic, 1, 3, begin=3)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert ends(end) == {topic: [3]}
    assert reader.latestOffset(end, ALL) == end
    assert ends(reader.reportLatestOffset() or {}) == {topic: [6]}


def test_available_now_from_a_time_on_while_the_topic_grows(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 3)
    reader = stream(broker, subscribe=topic, startingTimestamp="2100-01-01T00:00:00Z")
    reader.prepareForTriggerAvailableNow()
    fill(broker, topic, 1, 3, begin=3)
    start = reader.initialOffset()
    assert ends(start) == {topic: [6]}
    assert reader.latestOffset(start, ALL) == start, "what came before it was asked for is no loss"


def test_a_topic_that_appears_is_read_from_its_beginning(broker: FlightServer, topic: str) -> None:
    reader = stream(broker, subscribePattern=f"{topic}-.*")
    start = reader.initialOffset()
    assert start == reader.latestOffset(start, ALL) == {}
    filled(broker, f"{topic}-b", 1, 3)
    end = reader.latestOffset(start, ReadMaxRows(2))
    assert (ends(end), rows(reader, start, end)) == ({f"{topic}-b": [2]}, ["0-0", "0-1"])
    filled(broker, f"{topic}-a", 1, 1)
    last = reader.latestOffset(end, ALL)
    assert list(last) == [f"{topic}-a", f"{topic}-b"]
    assert rows(reader, end, last) == ["0-0", "0-2"]


# -- loss -------------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_or_made_again(
    broker: FlightServer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    filled(broker, topic, 1, 3)
    strict = stream(broker, subscribe=topic, startingOffsets="earliest")
    lenient = stream(broker, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initialOffset()
    end = strict.latestOffset(start, ALL)
    manage(broker, lambda admin: admin.delete_topic(topic))
    with pytest.raises(OptionError, match=f"option failOnDataLoss: topic {topic} was deleted"):
        strict.latestOffset(start, ALL)
    with pytest.raises(
        OptionError, match=f"option failOnDataLoss: topic {topic} was deleted before all of it was read"
    ):
        strict.partitions(start, end)
    with caplog.at_level(logging.WARNING, "quintet.spark"):
        assert lenient.latestOffset(start, ALL) == {}
        assert rows(lenient, start, end) == []
    assert caplog.text.count("going on because failOnDataLoss is false") == 2
    create(broker, topic)
    put(broker, topic, {"value": [b"new"]})
    with pytest.raises(OptionError, match=f"option failOnDataLoss: topic {topic} was deleted and made again"):
        strict.latestOffset(end, ALL)
    again = lenient.latestOffset(end, ALL)
    assert again[topic]["id"] != end[topic]["id"]
    assert rows(lenient, end, again) == ["new"]


def test_retention_that_overtakes_a_slow_query(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    with flying(QUINTET_TOPICS__SEGMENT_BYTES="65536") as broker:
        create(broker, topic, 1, retention_bytes=65536)
        strict = stream(broker, subscribe=topic, startingOffsets="earliest")
        lenient = stream(broker, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
        start = strict.initialOffset()
        first = 0

        def overtaken() -> bool:
            nonlocal first
            put(broker, topic, {"value": [b"x" * 1000] * 100})
            first = link_to(broker).topics(wire.Selection((topic,))).topics[0].partitions[0].first
            return first > 0

        until(overtaken)
        end = strict.latestOffset(start, ALL)
        with pytest.raises(
            OptionError, match=rf"failOnDataLoss: {topic}/0 begins at offset {first} now: the records 0 to"
        ):
            strict.partitions(start, end)
        with caplog.at_level(logging.WARNING, "quintet.spark"):
            assert len(rows(lenient, start, end)) == int(end[topic]["0"]) - first
        assert "were removed by its retention" in caplog.text
        shorter = {topic: {"id": start[topic]["id"], "0": 1 << 40}}
        with pytest.raises(OptionError, match=r"option failOnDataLoss: .* where the query is"):
            strict.latestOffset(shorter, ALL)
        assert lenient.latestOffset(shorter, ALL) == end


def test_retention_that_took_everything_is_no_silence(
    broker: FlightServer, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(broker, topic, 1, 3)
    strict = stream(broker, subscribe=topic, startingOffsets="earliest")
    lenient = stream(broker, subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    start = strict.initialOffset()
    (info,) = link_to(broker).topics(wire.Selection((topic,))).topics
    empty = {topic: msgspec.structs.replace(info, partitions=(wire.PartitionInfo(3, 3),))}
    monkeypatch.setattr(StreamReader, "_found", lambda *_: empty)
    end = strict.latestOffset(start, ALL)
    assert ends(end) == {topic: [3]}, "there is a batch in which it can be said"
    with pytest.raises(OptionError, match=rf"failOnDataLoss: {topic}/0 begins at offset 3 now"):
        strict.partitions(start, end)
    with caplog.at_level(logging.WARNING, "quintet.spark"):
        assert rows(lenient, start, end) == []
    assert "the records 0 to 2 were removed by its retention" in caplog.text


def test_a_stream_that_is_refused_says_so_when_asked(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 1)
    source = QuintetSource(CaseInsensitiveDict({"url": broker.flight, "subscribe": topic, "endingOffsets": "latest"}))
    refused = source.streamReader(source.schema())
    assert isinstance(refused, RefusedReader)
    asked: list[Callable[[], object]] = [
        refused.prepareForTriggerAvailableNow,
        refused.getDefaultReadLimit,
        refused.initialOffset,
        lambda: refused.latestOffset({}, ALL),
        lambda: refused.partitions({}, {}),
        lambda: refused.read(InputPartition(None)),
    ]
    for ask in asked:
        with pytest.raises(OptionError, match="option endingOffsets: a streaming query has no end"):
            ask()


# -- with Spark -------------------------------------------------------------------------------------------------------


def load(spark: SparkSession, broker: FlightServer, **options: str) -> DataFrame:
    return spark.readStream.format("quintet").options(**({"url": broker.flight} | options)).load()


def test_available_now_reads_all_and_shows_as_groups(
    spark: SparkSession, broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    listener = progress.attach(spark)
    assert progress.attach(spark) is listener
    other = f"{topic}-other"
    filled(broker, topic, 2, 10)
    filled(broker, other, 1, 3)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "12"}
    frame = load(spark, broker, subscribe=topic, groupIdPrefix="shown", **options).union(
        load(spark, broker, subscribePattern=other, **options)
    )

    def run() -> Any:
        query = (
            frame.select("topic", "partition", "offset")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("copy")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    def position(group: str) -> list[tuple[str, int, int]]:
        found = link_to(broker).groups(group=group).positions
        return sorted((place.topic, place.partition, place.offset) for place in found)

    query = run()
    told = [json.loads(one.json) for one in query.recentProgress]
    assert [one["numInputRows"] for one in told] == [15, 8]
    assert ends(told[0]["sources"][0]["latestOffset"]) == {topic: [10, 10]}, "lag is in the progress"
    assert ends(told[0]["sources"][0]["endOffset"]) == {topic: [6, 6]}
    assert [one["description"] for one in told[0]["sources"]] == [f"quintet[{topic}]", f"quintet[{other}]"]
    figures = {name: int(value) for name, value in query.recentProgress[0].sources[0].metrics.items()}
    assert (figures["records"], figures["offsetsBehindLatest"], figures["maxOffsetsBehindLatest"]) == (12, 8, 4)
    assert 0 < figures["bytesBehindLatest"] < figures["bytes"]
    until(lambda: position("shown-copy") == [(topic, 0, 10), (topic, 1, 10)])
    until(lambda: position("spark-quintet-copy") == [(other, 0, 3)])
    fill(broker, topic, 1, 5, begin=10)
    run()
    until(lambda: position("shown-copy") == [(topic, 0, 15), (topic, 1, 10)])
    read = spark.read.parquet(str(tmp_path / "out")).collect()
    assert len(read) == 28
    assert len(set(read)) == 28


def test_a_topic_created_while_a_query_runs(
    spark: SparkSession, broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    query = (
        load(spark, broker, subscribePattern=f"{topic}-.*")
        .selectExpr("topic", "cast(value as string) as value")
        .writeStream.format("memory")
        .queryName("appearing")
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        until(lambda: query.lastProgress is not None or query.status["message"].startswith("Waiting"))
        filled(broker, f"{topic}-late", 1, 3)
        until(lambda: spark.table("appearing").count() == 3)
    finally:
        query.stop()


def test_a_query_that_fails_says_why_in_its_first_line(spark: SparkSession, broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 1)
    frame = load(spark, broker, subscribe=topic, endingTimestamp="1", password="admin")
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    first = str(caught.value).splitlines()[0]
    assert "option endingTimestamp: a streaming query has no end" in first
    assert "Traceback" not in first
