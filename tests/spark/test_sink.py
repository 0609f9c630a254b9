"""Writes to topics. What happens when a batch comes twice is tested on the writers themselves; the last tests use Spark."""

import datetime
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from quintet.flight import wire
from quintet.model.errors import EpochDiffers, QuintetError
from quintet.spark.source import writer as writing
from quintet.spark.source.options import OptionError, write_options
from quintet.spark.source.source import QuintetSource
from quintet.spark.source.writer import BatchWriter, StreamWriter, Written
from tests.spark.conftest import FlightServer
from tests.spark.data import START_US, create, filled, link_to

PLAIN = StructType().add("value", BinaryType())


def source(broker: FlightServer, **options: str) -> QuintetSource:
    return QuintetSource(CaseInsensitiveDict({"url": broker.flight} | options))


def batches(*values: str) -> Iterator[pa.RecordBatch]:
    for value in values:
        yield pa.RecordBatch.from_pydict({"value": [value.encode()]})


def contents(broker: FlightServer, topic: str) -> list[str]:
    link = link_to(broker)
    found = link.topics(wire.Selection((topic,)))
    return [
        value.decode()
        for info in found.topics
        for partition in range(len(info.partitions))
        for batch in link.read(wire.Ticket(topic, partition, columns=("value",)))
        for value in batch.column("value").to_pylist()
    ]


# -- what a topic takes -----------------------------------------------------------------------------------------------


HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
TO = {"topic": "t"}


def columns(**kinds: DataType) -> StructType:
    schema = StructType()
    for name, kind in kinds.items():
        schema.add(name, kind)
    return schema


@pytest.mark.parametrize(
    ("schema", "options", "what"),
    [
        (columns(value=BinaryType(), offset=LongType()), TO, "option columns: a topic cannot take the column 'offset'"),
        (columns(value=BinaryType(), Key=BinaryType()), TO, "option columns: a topic cannot take the column 'Key'"),
        (columns(key=BinaryType()), TO, "option columns: there is no column value"),
        (columns(value=LongType()), TO, "option columns: the column 'value' is bigint; it must be binary or string"),
        (columns(value=StringType(), partition=LongType()), TO, "'partition' is bigint; it must be int"),
        (columns(value=StringType(), headers=MapType(StringType(), BinaryType())), TO, "it must be array"),
        (
            columns(value=StringType(), headers=ArrayType(StringType())),
            TO,
            "'headers' is array<string>; it must be array",
        ),
        (columns(value=StringType()), {}, "option topic: it is missing; name the topic to write to"),
    ],
)
def test_columns_that_do_not_fit(schema: StructType, options: dict[str, str], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        writing.wire_schema(schema, write_options({"url": "flight://h"} | options))


def test_text_is_sent_as_bytes_and_the_option_wins_over_the_column() -> None:
    schema = columns(
        value=StringType(),
        key=StringType(),
        topic=StringType(),
        partition=IntegerType(),
        timestamp=TimestampType(),
        headers=HEADERS,
    )
    found = writing.wire_schema(schema, write_options({"url": "flight://h"}))
    assert found.field("value").type == found.field("key").type == pa.binary()
    assert found.names == ["value", "key", "topic", "partition", "timestamp", "headers"]
    assert "topic" not in writing.wire_schema(schema, write_options({"url": "flight://h", "topic": "t"})).names


def test_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 100)
    made = list(writing.chunks(batches(*["x" * 40] * 5, "")))
    assert sum(len(chunk) for chunk in made) == 6
    assert len(made) > 1
    assert list(writing.chunks(iter([pa.RecordBatch.from_pydict({"value": []})]))) == []


# -- once -------------------------------------------------------------------------------------------------------------


def stream_writer(broker: FlightServer, topic: str, **options: str) -> StreamWriter:
    return source(broker, topic=topic, **options).streamWriter(PLAIN, False)


def test_a_batch_id_is_published_once(broker: FlightServer, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 1)
    query = f"query-{topic}"
    sink = stream_writer(broker, topic)
    messages = [sink._stage(query, 0, batches("a", "b")), sink._stage(query, 0, batches("c")), None]
    messages = pickle.loads(pickle.dumps(messages))
    assert contents(broker, topic) == [], "nothing is visible before the commit"
    assert [len(message.stages) for message in messages[:2]] == [2, 1]
    sink.commit(messages, 0)
    assert sorted(contents(broker, topic)) == ["a", "b", "c"]
    again = [sink._stage(query, 0, batches("a")), sink._stage(query, 0, batches("b", "c"))]
    sink.commit(again, 0)  # another split of the same rows: dropped in silence
    assert sorted(contents(broker, topic)) == ["a", "b", "c"]
    other = [sink._stage(query, 0, batches("a", "b", "c", "d"))]
    with pytest.raises(EpochDiffers, match=r"batch 0 of .* was committed with 3 rows and comes again with 4"):
        sink.commit(other, 0)
    stream_writer(broker, topic, failOnDataLoss="false").commit(other, 0)
    assert sorted(contents(broker, topic)) == ["a", "b", "c"]
    sink.commit([sink._stage(query, 1, batches())], 1)  # no rows: fenced all the same
    assert link_to(broker).fence(query) == 1
    sink.commit([None], 2)  # no task saw a row: nothing to do
    sink.commit([], 3)
    sink.commit([sink._stage(query, 4, batches("d"))], 4)
    assert sorted(contents(broker, topic)) == ["a", "b", "c", "d"]


def test_aborted_stages_are_gone(broker: FlightServer, topic: str) -> None:
    sink = stream_writer(broker, topic)
    message = sink._stage("aborted", 0, batches("a"))
    sink.abort([message, None], 0)
    with pytest.raises(QuintetError, match="no stage"):
        sink.commit([message], 0)

    def breaks() -> Iterator[pa.RecordBatch]:
        yield from batches("b")
        raise ValueError("the task failed")

    with pytest.raises(ValueError, match="the task failed"):
        sink._stage("aborted", 1, breaks())
    assert contents(broker, topic) == []


def test_a_batch_write_is_new_each_time_unless_it_has_a_name(broker: FlightServer, topic: str) -> None:
    def write(*values: str, **options: str) -> None:
        made = source(broker, topic=topic, **options).writer(PLAIN, False)
        moved: BatchWriter = pickle.loads(pickle.dumps(made))
        message = moved.write(batches(*values))
        assert isinstance(message, Written)
        made.commit([message, None])

    write("a")
    write("a")
    write()
    assert contents(broker, topic) == ["a", "a"]
    for _ in range(2):
        write("b", txnAppId=f"app-{topic}", txnVersion="7")
    assert contents(broker, topic) == ["a", "a", "b"]
    made = source(broker, topic=topic).writer(PLAIN, False)
    message = made.write(batches("c"))
    made.abort([message])
    with pytest.raises(QuintetError, match="no stage"):
        made.commit([message])


def test_overwriting_and_a_task_outside_of_spark_are_refused(broker: FlightServer, topic: str) -> None:
    with pytest.raises(OptionError, match="option mode: a topic cannot be overwritten"):
        source(broker, topic=topic).writer(PLAIN, True)
    with pytest.raises(QuintetError, match="is this a streaming query"):
        stream_writer(broker, topic).write(batches("a"))


# -- with Spark -------------------------------------------------------------------------------------------------------


def load(spark: SparkSession, broker: FlightServer, topic: str) -> DataFrame:
    return spark.read.format("quintet").options(url=broker.flight, subscribe=topic).load()


def test_spark_writes_all_columns(spark: SparkSession, broker: FlightServer, topic: str) -> None:
    create(broker, topic, 3)
    create(broker, f"{topic}-other", 1)
    when = datetime.datetime.fromtimestamp(START_US // 1_000_000, datetime.UTC)
    rows = [
        (topic, "v1", b"k", [("h", b"x"), ("none", None), ("empty", b"")], 2, when),
        (f"{topic}-other", "v2", None, None, None, when),
        (topic, None, b"k2", [], 0, when),
    ]
    ddl = "topic string, value string, key binary, headers array<struct<key:string,value:binary>>, partition int, timestamp timestamp"
    frame = spark.createDataFrame(rows, ddl)
    frame.write.format("quintet").option("url", broker.flight).mode("append").save()
    found = load(spark, broker, topic).orderBy("partition").collect()
    assert [(row.value, row.key, row.headers, row.partition) for row in found] == [
        (None, b"k2", [], 0),
        (b"v1", b"k", [("h", b"x"), ("none", None), ("empty", b"")], 2),
    ]
    assert found[1].timestamp == when.replace(tzinfo=None)
    [other] = load(spark, broker, f"{topic}-other").collect()
    assert (other.value, other.key, other.headers) == (b"v2", None, [])


def test_writes_that_cannot_work_fail_before_any_task(spark: SparkSession, broker: FlightServer, topic: str) -> None:
    frame = spark.range(1)
    plain = frame.selectExpr("cast(id as string) as value")
    wrong = [
        (frame, {}, "append", "option columns: a topic cannot take the column 'id'"),
        (plain, {}, "overwrite", "option mode: a topic cannot be overwritten"),
        (plain, {}, None, 'option mode: rows are added to a topic and replace nothing; write df.write.mode("append")'),
        (
            plain,
            {},
            "ignore",
            'option mode: rows are added to a topic and replace nothing; write df.write.mode("append")',
        ),
        (plain, {"password": "s3cr3t"}, "append", "options user and password: the broker at"),
        (plain, {"url": "flight://u:s3cr3t@127.0.0.1:1", "retrySeconds": "0"}, "append", "option url: no broker"),
        (plain, {"subscribe": "x"}, "append", "option subscribe: it is not known here"),
    ]
    for made, options, mode, sentence in wrong:
        settings = {"url": broker.flight, "topic": topic} | options
        writer = made.write.format("quintet").options(**settings)
        with pytest.raises(AnalysisException) as caught:
            (writer if mode is None else writer.mode(mode)).save()
        assert sentence in str(caught.value).splitlines()[0]
        assert "Traceback" not in str(caught.value)
        assert "s3cr3t" not in str(caught.value)


def test_a_query_from_topic_to_topic(spark: SparkSession, broker: FlightServer, topic: str, tmp_path: Path) -> None:
    filled(broker, topic, 2, 10)
    frame = (
        spark.readStream.format("quintet")
        .options(url=broker.flight, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
        .load()
        .select("key", "value", "headers")
    )

    def run() -> str:
        query = (
            frame.writeStream.format("quintet")
            .options(url=broker.flight, topic=f"{topic}-copy", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return str(query.id)

    query = run()
    assert link_to(broker).fence(query) == 1
    # The checkpoint forgets that the last batch was done, as when the driver dies between the sink's commit and its own.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    assert run() == query
    wanted = sorted(f"{partition}-{row}" for partition in (0, 1) for row in range(10))
    assert sorted(contents(broker, f"{topic}-copy")) == wanted


def test_a_thread_without_an_active_session_writes(
    spark: SparkSession, broker: FlightServer, topic: str, tmp_path: Path
) -> None:
    rows = spark.createDataFrame([(b"batch",)], "value binary")
    told = {"url": broker.flight, "topic": topic}
    create(broker, f"{topic}-in", 1)
    stream = spark.readStream.format("quintet").options(url=broker.flight, subscribe=f"{topic}-in").load()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            rows.write.format("quintet").options(**told).mode("append").save()
            query = stream.select("value").writeStream.format("quintet").trigger(availableNow=True)
            query.options(**told, checkpointLocation=str(tmp_path)).start().awaitTermination()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert not failed, failed
    assert contents(broker, topic) == ["batch"]
