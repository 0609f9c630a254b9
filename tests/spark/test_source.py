"""Batch reads. Most tests call the reader as Spark does, without Spark: plan, pickle, read. The last ones use Spark."""

import datetime
import json
import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types
import pytest
import trustme
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from quintet.client.core.errors import AuthError, ConnectionLost, CorruptData
from quintet.flight import wire
from quintet.spark.source import reader as reading
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.narrow import Narrowing
from quintet.spark.source.options import OptionError, Target, read_options, target
from quintet.spark.source.reader import PushingReader
from quintet.spark.source.source import QuintetSource
from quintet.spark.source.spans import Span
from tests.spark.conftest import FlightServer, flying
from tests.spark.data import SECOND_US, START_US, change_segment, create, fill, filled, link_to, manage, publish, put


def source(broker: FlightServer, **options: str) -> QuintetSource:
    return QuintetSource(CaseInsensitiveDict({"url": broker.flight} | options))


def tasks_of(broker: FlightServer, **options: str) -> tuple[Any, list[InputPartition]]:
    """A reader and its tasks, both as they arrive in another process."""
    made = source(broker, **options)
    reader = pickle.loads(pickle.dumps(made)).reader(made.schema())
    found = reader.partitions()
    assert isinstance(found, list)
    moved: tuple[Any, list[InputPartition]] = pickle.loads(pickle.dumps((reader, found)))
    return moved


def table(broker: FlightServer, **options: str) -> pa.Table:
    reader, tasks = tasks_of(broker, **options)
    batches = [batch for task in tasks or [InputPartition(None)] for batch in reader.read(task)]
    return pa.Table.from_batches(batches, reader._table.arrow)


def values(broker: FlightServer, **options: str) -> list[str]:
    return sorted(value.decode() for value in table(broker, **options).column("value").to_pylist())


def shape(broker: FlightServer, **options: str) -> list[str]:
    return [repr(task) for task in tasks_of(broker, **options)[1]]


# -- rows and columns -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["auto", "files", "flight"])
def test_every_column_of_every_row(broker: FlightServer, topic: str, access: str) -> None:
    filled(broker, topic, 2, 3)
    found = table(broker, subscribe=topic, access=access)
    assert found.column_names == list(wire.COLUMNS)
    assert [(row["partition"], row["offset"], row["value"]) for row in found.to_pylist()] == [
        (partition, row, f"{partition}-{row}".encode()) for partition in (0, 1) for row in range(3)
    ]
    row = found.to_pylist()[5]
    assert (row["key"], row["headers"]) == (b"k2", [{"key": "row", "value": b"2"}])
    assert (row["topic"], row["origin"]) == (topic, "flight:admin")
    assert row["timestamp"].timestamp() == (START_US + 2 * SECOND_US) / 1_000_000


def test_columns_come_in_the_order_of_the_table_with_their_values(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 3)
    reader, _ = tasks_of(broker, subscribe=topic, columns="offset,key")
    assert reader._table.needed == ("key", "offset")
    assert table(broker, subscribe=topic, columns="offset,key").to_pylist() == [
        {"key": f"k{row}".encode(), "offset": row} for row in range(3)
    ]


def test_an_empty_topic_has_columns_and_no_rows(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    assert shape(broker, subscribe=topic) == []
    assert table(broker, subscribe=topic).num_rows == 0


def test_several_topics_and_a_pattern(broker: FlightServer, topic: str) -> None:
    for name in ("a", "b", "c"):
        create(broker, f"{topic}-{name}")
        put(broker, f"{topic}-{name}", {"value": [name.encode()]})
    assert values(broker, subscribe=f"{topic}-c,{topic}-a") == ["a", "c"]
    assert values(broker, topic=f"{topic}-b") == ["b"]
    assert values(broker, subscribePattern=f"{topic}-[ab]") == ["a", "b"]
    assert values(broker, subscribePattern=f"{topic}-nothing") == []


# -- where it begins and ends -----------------------------------------------------------------------------------------


def test_offsets_and_times_bound_a_read(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 2, 4)

    def read(**options: str) -> list[str]:
        return values(broker, subscribe=topic, **options)

    everything = [f"{partition}-{row}" for partition in (0, 1) for row in range(4)]
    assert read() == read(startingOffsets="earliest", endingOffsets="latest") == everything
    assert read(startingOffsets="latest") == read(endingOffsets="earliest") == []
    start, end = ({topic: {"0": 3, "1": -1}}, {topic: {"0": -1, "1": 2}})
    assert read(startingOffsets=json.dumps(start)) == ["0-3"]
    assert read(endingOffsets=json.dumps(end)) == ["0-0", "0-1", "0-2", "0-3", "1-0", "1-1"]
    assert read(startingOffsets=json.dumps({topic: {"0": 4, "1": -2}})) == everything[4:]
    since = str(START_US // 1000 + 2000)
    assert read(startingTimestamp=since) == ["0-2", "0-3", "1-2", "1-3"]
    assert read(endingTimestamp=since) == ["0-0", "0-1", "1-0", "1-1"]
    assert read(startingTimestamp="2100-01-01T00:00:00Z") == []


@pytest.mark.parametrize(
    ("start", "what"),
    [
        ({"elsewhere": {"0": 1}}, "it names the topic 'elsewhere', which is not read here"),
        ({"": {"0": 1, "1": 0, "2": 0}}, "has 2 partitions, there is no 2"),
        ({"": {"0": 1}}, "/1 is missing; name every partition"),
        ({"": {"0": 1, "1": 9}}, "/1 ends at 4, there is no offset 9"),
    ],
)
def test_offsets_that_do_not_fit_the_topic(broker: FlightServer, start: dict[str, Any], what: str) -> None:
    create(broker, "fitting", 2)
    if link_to(broker).topics(wire.Selection(("fitting",))).topics[0].partitions[0].end == 0:
        fill(broker, "fitting", 2, 4)
    text = json.dumps({name or "fitting": places for name, places in start.items()})
    with pytest.raises(OptionError, match=r"option startingOffsets: .*" + what):
        tasks_of(broker, subscribe="fitting", startingOffsets=text)


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_small_partitions_share_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [Span("t", 1, number, 0, 1_000, 1 << 10) for number in range(100)]
    assert [len(group) for group in reading.pack(spans)] == [50, 50]
    large = [Span("t", 1, number, 0, 1_000_000, 1 << 27) for number in range(4)]
    assert reading.pack(large) == [[span] for span in large]
    heavy = [Span("t", 1, number, 0, 10, reading.PACK_BYTES) for number in range(3)]
    assert reading.pack(heavy) == [[span] for span in heavy]
    assert reading.pack([]) == []


def test_min_partitions_cuts_in_proportion(broker: FlightServer, topic: str) -> None:
    spans = [Span("t", 1, 0, 100, 1_000, 900), Span("t", 1, 1, 0, 100, 100), Span("t", 1, 2, 0, 1, 1)]
    pieces = reading.split(spans, 10)
    assert len(pieces) >= 10
    assert sum(piece.rows for piece in pieces) == 1_001
    assert [piece.partition for piece in pieces] == [0] * 9 + [1] + [2]
    assert len(reading.split(spans[2:], 10)) == 1, "one row is one task"
    filled(broker, topic, 1, 10)
    assert shape(broker, subscribe=topic) == [f"Task({topic}/0[0:10])"]
    cut = shape(broker, subscribe=topic, minPartitions="3")
    assert cut == [f"Task({topic}/0[{first}:{last}])" for first, last in ((0, 3), (3, 6), (6, 10))]
    assert len(values(broker, subscribe=topic, minPartitions="3")) == 10


def test_a_task_is_small(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 10)
    reader, tasks = tasks_of(broker, subscribe=topic)
    assert len(pickle.dumps(tasks[0])) < 1_000
    assert "admin" not in repr(tasks)
    assert "admin:" not in repr(reader)


# -- filters ----------------------------------------------------------------------------------------------------------

MOMENT = datetime.datetime.fromtimestamp(START_US // 1_000_000 + 2, datetime.UTC)


@pytest.mark.parametrize(
    ("pushed", "left", "spans"),
    [
        ([EqualTo(("partition",), 1)], 0, ["1[0:9]"]),
        ([In(("partition",), (0, 2)), IsNotNull(("partition",))], 0, ["0[0:9]", "2[0:9]"]),
        ([LessThanOrEqual(("partition",), 1), GreaterThan(("partition",), 0)], 0, ["1[0:9]"]),
        ([EqualTo(("topic",), "t"), EqualTo(("offset",), 4)], 0, ["0[4:5]", "1[4:5]", "2[4:5]"]),
        ([EqualTo(("topic",), "other")], 0, []),
        ([GreaterThan(("offset",), 2), LessThan(("offset",), 5), EqualTo(("partition",), 0)], 0, ["0[3:5]"]),
        ([In(("offset",), (2, 7)), EqualTo(("partition",), 0)], 1, ["0[2:8]"]),
        ([Not(EqualTo(("partition",), 1)), EqualTo(("key",), b"x")], 2, ["0[0:9]", "1[0:9]", "2[0:9]"]),
        ([LessThan(("timestamp",), MOMENT), EqualTo(("partition",), 0)], 1, ["0[0:9]"]),
        ([EqualTo(("headers", "partition"), 1), EqualTo(("partition",), 0)], 1, ["0[0:9]"]),
    ],
)
def test_filters_narrow_what_is_read(pushed: list[Filter], left: int, spans: list[str]) -> None:
    narrowing = Narrowing()
    assert len(narrowing.push(pushed)) == left
    kept = narrowing.spans([Span("t", 1, number, 0, 9, 900) for number in range(3)])
    assert [f"{span.partition}[{span.first}:{span.last}]" for span in kept] == spans


@pytest.mark.parametrize(
    ("pushed", "since"),
    [
        (GreaterThanOrEqual(("timestamp",), MOMENT), 2),
        (EqualTo(("timestamp",), MOMENT), 2),
        (In(("timestamp",), (MOMENT + datetime.timedelta(seconds=1), MOMENT)), 2),
        (LessThan(("timestamp",), MOMENT), None),
        (GreaterThan(("timestamp",), MOMENT.replace(tzinfo=None)), None),
    ],
)
def test_only_a_lower_bound_on_time_says_where_to_begin(pushed: Filter, since: int | None) -> None:
    narrowing = Narrowing()
    assert narrowing.push([pushed]) == [pushed], "Spark applies it, too"
    assert narrowing.since_us == (None if since is None else START_US + since * SECOND_US)


def test_a_field_named_like_a_column_of_ours_is_filtered_by_spark(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    put(broker, topic, {"value": [b'{"offset": 7}', b'{"offset": 8}']})
    register(broker, topic, json.dumps({"type": "object", "properties": {"offset": {"type": "integer"}}}))
    options = {"subscribe": topic, "schema": "registry", "columns": "key"}
    made = source(broker, **options)
    reader = PushingReader(read_options(made.options), made._checked(read_options(made.options), made.schema()))
    wish = [EqualTo(("offset",), 7)]
    assert list(reader.pushFilters(list(wish))) == wish
    assert [repr(task) for task in reader.partitions()] == [f"Task({topic}/0[0:2])"]


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_and_columns_of_ones_own(broker: FlightServer, topic: str) -> None:
    with pytest.raises(OptionError, match=r"option subscribe: there is no topic 'nowhere' .* create it first"):
        source(broker, subscribe="nowhere").schema()
    with pytest.raises(OptionError, match="option subscribePattern: the pattern is no regular expression"):
        source(broker, subscribePattern="(").schema()
    filled(broker, topic, 1, 1)
    other = source(broker, subscribe=topic, columns="offset").schema()
    with pytest.raises(OptionError, match="option columns: the source has columns of its own"):
        source(broker, subscribe=topic).reader(other)


def test_wrong_credentials_and_a_broker_that_is_not_there(broker: FlightServer) -> None:
    port = broker.ports["flight"]
    with pytest.raises(AuthError, match=r"options user and password: the broker at .* refused user 'admin'") as caught:
        FlightConnection(Target("127.0.0.1", port, user="admin", password="s3cr3t")).login()
    assert "s3cr3t" not in str(caught.value)
    with pytest.raises(AuthError, match=r"option token: the broker at .* refused the caller"):
        FlightConnection(Target("127.0.0.1", port, token="t0k3n")).topics(wire.Selection())
    with pytest.raises(ConnectionLost, match=r"option url: no broker could be reached at 127\.0\.0\.1:1 for 0\.1 s"):
        FlightConnection(Target("127.0.0.1", 1, user="admin", password="admin", retry_seconds=0.1)).login()
    with pytest.raises(OptionError, match=r"option url: the file of .ca= cannot be read"):
        FlightConnection(Target("127.0.0.1", port, tls=True, ca="missing.pem")).topics(wire.Selection())


def test_a_link_over_tls(tmp_path: Path, topic: str) -> None:
    authority = trustme.CA()
    issued, mine = authority.issue_cert("localhost"), authority.issue_cert("reader")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    mine.private_key_and_cert_chain_pem.write_to_path(tmp_path / "mine.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    door = "QUINTET_LISTENERS__FLIGHT__TLS_"
    files = {"CERT": "cert.pem", "KEY": "key.pem", "CLIENT_CA": "ca.pem"}
    with flying(**{door + name: str(tmp_path / file) for name, file in files.items()}) as broker:
        create(broker, topic)
        url = f"flights://admin:admin@localhost:{broker.ports['flight']}"
        own = f"&cert={tmp_path}/mine.pem&key={tmp_path}/mine.pem"
        good = target({"url": f"{url}?ca={tmp_path}/ca.pem{own}"})
        assert FlightConnection(good).topics(wire.Selection((topic,))).missing == ()
        bad = target({"url": f"{url}?ca={tmp_path}/ca.pem", "retrySeconds": "0.1"})
        with pytest.raises(
            ConnectionLost, match=r"option url: no broker could be reached .* do .ca=, .cert= and .key= fit"
        ):
            FlightConnection(bad).login()


def test_a_link_logs_in_again_and_waits_for_a_broker_that_restarts(own_broker: FlightServer, topic: str) -> None:
    filled(own_broker, topic, 1, 5)
    link = link_to(own_broker)
    assert link is link_to(own_broker), "one per process and target"
    own_broker.kill()
    own_broker.start()
    found = link.topics(wire.Selection((topic,)))
    assert found.topics[0].partitions[0].end == 5
    rows = link.read(wire.Ticket(topic, 0, 0, 5, ("value",), rows_per_batch=1))
    first = next(rows)
    own_broker.kill()
    own_broker.start()
    got = [first, *rows]
    assert [batch.schema.names for batch in got[:1]] == [["value"]]
    assert [value for batch in got for value in batch.column(0).to_pylist()] == [f"0-{n}".encode() for n in range(5)]


def test_what_retention_took_is_an_error_or_a_warning(caplog: pytest.LogCaptureFixture, topic: str) -> None:
    with flying(QUINTET_TOPICS__SEGMENT_BYTES="65536") as broker:
        create(broker, topic, 1, retention_bytes=65536)
        put(broker, topic, {"value": [b"x" * 1000] * 100})
        planned, tasks = tasks_of(broker, subscribe=topic, access="flight")
        lenient, _ = tasks_of(broker, subscribe=topic, access="flight", failOnDataLoss="false")
        first = overtake(broker, topic)
        zero = json.dumps({topic: {"0": 0}})
        with pytest.raises(OptionError, match=rf"option failOnDataLoss: {topic}/0 begins at offset {first} now"):
            tasks_of(broker, subscribe=topic, startingOffsets=zero)
        with caplog.at_level(logging.WARNING, "quintet.spark"):
            rows = table(broker, subscribe=topic, startingOffsets=zero, failOnDataLoss="false", columns="offset")
        assert rows.column("offset")[0].as_py() == first
        assert "going on because failOnDataLoss is false" in caplog.text
        # between the plan and the task
        with pytest.raises(OptionError, match=r"option failOnDataLoss: .*/0, 0 to 99: .* not there"):
            list(planned.read(tasks[0]))
        caplog.clear()
        with caplog.at_level(logging.WARNING, "quintet.spark"):
            left = [batch for batch in lenient.read(tasks[0])]
        assert sum(batch.num_rows for batch in left) == max(0, 100 - first)
        assert "going on because failOnDataLoss is false" in caplog.text


@pytest.mark.parametrize("access", ["auto", "flight"])
def test_a_topic_made_again_between_plan_and_task(broker: FlightServer, topic: str, access: str) -> None:
    filled(broker, topic, 1, 3)
    reader, tasks = tasks_of(broker, subscribe=topic, access=access)
    manage(broker, lambda admin: admin.delete_topic(topic))
    filled(broker, topic, 1, 3)
    with pytest.raises(OptionError, match=f"option failOnDataLoss: topic {topic} was deleted, or made again"):
        list(reader.read(tasks[0]))


def overtake(broker: FlightServer, topic: str) -> int:
    """Publish until retention has removed records; the first offset that is left."""
    link = link_to(broker)
    while True:
        put(broker, topic, {"value": [b"x" * 1000] * 100})
        first = link.topics(wire.Selection((topic,))).topics[0].partitions[0].first
        if first > 0:
            return first
        time.sleep(0.05)


def test_files_that_are_not_there_are_asked_of_the_broker(broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 5)
    reader, tasks = tasks_of(broker, subscribe=topic)
    [part] = tasks[0].value
    assert part.files, "the broker names files"
    gone = part._replace(
        files=tuple(wire.SegmentFile("nowhere/0.seg", f.seed, f.position, f.base, f.next_offset) for f in part.files)
    )
    elsewhere = part._replace(machine=wire.Machine("another boot", str(Path(__file__)), 0, 0, "log"))
    for changed in (gone, elsewhere):
        task = reading.Task((changed,))
        assert sum(batch.num_rows for batch in reader.read(task)) == 5
        forced, _ = tasks_of(broker, subscribe=topic, access="files")
        with pytest.raises(OptionError, match=r"option access: the files of .* do not have offset 0 here"):
            list(forced.read(task))


@pytest.mark.parametrize("access", ["auto", "flight"])
def test_a_damaged_batch_is_an_error_or_a_warning(
    own_broker: FlightServer, topic: str, access: str, caplog: pytest.LogCaptureFixture
) -> None:
    create(own_broker, topic)
    for value in (b"before", b"damaged", b"behind"):
        put(own_broker, topic, {"value": [value]})
    options = {"subscribe": topic, "access": access, "columns": "value"}
    [part] = tasks_of(own_broker, **options | {"access": "auto"})[1][0].value
    change_segment(part.files[0].path, lambda data: data.replace(b"damaged", b"demaged"))
    with pytest.raises(CorruptData):
        values(own_broker, **options)
    with caplog.at_level(logging.WARNING, "quintet.spark"):
        assert values(own_broker, **options, failOnDataLoss="false") == ["before", "behind"]
    assert f"{topic}/0, 1 to 2: " in caplog.text


def test_a_topic_in_memory_is_read_over_flight(topic: str) -> None:
    with flying(QUINTET_TOPICS__DURABILITY="memory") as broker:
        create(broker, topic)
        publish(broker, topic, b"there")
        assert values(broker, subscribe=topic) == ["there"]
        with pytest.raises(OptionError, match="option access: the broker names no files"):
            tasks_of(broker, subscribe=topic, access="files")


# -- typed ------------------------------------------------------------------------------------------------------------

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "city": {"type": "string"}},
        "required": ["id"],
        "additionalProperties": False,
    }
)


def register(broker: FlightServer, subject: str, definition: str = SCHEMA) -> None:
    manage(broker, lambda admin: admin.register_schema(subject, "json", definition.encode()))


def test_a_schema_that_changes_while_a_query_runs(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    register(broker, topic)
    made = source(broker, subscribe=topic, schema="registry", columns="offset,id,city")
    reader = made.reader(made.schema())
    put(broker, topic, {"value": [b'{"id":1,"city":"Bern"}']})
    assert len([batch for task in reader.partitions() for batch in reader.read(task)]) == 1
    looser = json.loads(SCHEMA)
    looser["required"] = []
    looser["properties"]["street"] = {"type": "string"}
    register(broker, topic, json.dumps(looser))
    put(broker, topic, {"value": [b'{"city":"Basel","street":"Weg"}', b'{"id":"three"}']})
    found = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert pa.Table.from_batches(found).to_pylist() == [
        {"offset": 0, "id": 1, "city": "Bern"},
        {"offset": 1, "id": None, "city": "Basel"},
        {"offset": 2, "id": None, "city": None},
    ]
    assert source(broker, subscribe=topic, schema="registry").schema().fieldNames()[-4:-1] == ["id", "city", "street"]


def test_typed_names_schemas_and_empty_topics(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    with pytest.raises(OptionError, match=f"option schema: there is no schema named '{topic}'; register one"):
        source(broker, subscribe=topic, schema="registry").schema()
    with pytest.raises(OptionError, match="option subject: there is no schema named 'none'"):
        source(broker, subscribe=topic, schema="registry", subject="none").schema()
    clash = json.dumps({"type": "object", "properties": {"offset": {"type": "integer"}}})
    register(broker, topic, clash)
    with pytest.raises(OptionError, match=r"option typedPrefix: the schema of .* has a field 'offset'"):
        source(broker, subscribe=topic, schema="registry").schema()
    create(broker, f"{topic}-twins")
    register(broker, f"{topic}-twins", json.dumps({"type": "object", "properties": {"id": {}, "Id": {}}}))
    with pytest.raises(
        OptionError, match=r"option columns: .* has the fields 'data_id' and 'data_Id', which Spark does not tell"
    ):
        source(broker, subscribe=f"{topic}-twins", schema="registry", typedPrefix="data_").schema()
    assert "Id" in source(broker, subscribe=f"{topic}-twins", schema="registry", columns="Id").schema().fieldNames()
    prefixed = table(broker, subscribe=topic, schema="registry", typedPrefix="data_")
    assert prefixed.column_names[-2:] == ["data_offset", "decode_error"]
    assert prefixed.num_rows == 0
    named = table(broker, subscribe=topic, schema="registry", typedPrefix="data_", columns="offset,data_offset")
    assert named.column_names == ["offset", "data_offset"]
    with pytest.raises(OptionError, match="option columns: 'colour' is neither a column nor a field"):
        source(broker, subscribe=topic, schema="registry", columns="colour", typedPrefix="d").schema()
    create(broker, f"{topic}-b")
    register(broker, f"{topic}-b")
    both = {"subscribe": f"{topic},{topic}-b", "schema": "registry"}
    with pytest.raises(OptionError, match=r"option schema: topics .* have different schemas"):
        source(broker, **both).schema()
    assert source(broker, **both, subject=f"{topic}-b").schema().fieldNames()[-3:-1] == ["id", "city"]
    with pytest.raises(OptionError, match="option schema: no topic matches yet"):
        source(broker, subscribePattern="nothing-like-it", schema="registry").schema()


# -- with Spark -------------------------------------------------------------------------------------------------------


def load(spark: SparkSession, broker: FlightServer, **options: str) -> DataFrame:
    return spark.read.format("quintet").options(**({"url": broker.flight} | options)).load()


def test_spark_reads_a_topic(spark: SparkSession, broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 2, 10)
    frame = load(spark, broker, subscribe=topic)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,headers:array<struct<key:string,value:binary>>,topic:string,"
        "partition:int,offset:bigint,timestamp:timestamp,origin:string>"
    )
    assert frame.selectExpr("sum(offset)", "count(distinct cast(value as string))", "min(timestamp)").collect() == [
        (90, 20, datetime.datetime.fromtimestamp(START_US // 1_000_000, datetime.UTC).replace(tzinfo=None))
    ]
    assert "admin:admin" not in frame._jdf.queryExecution().toString(), "no plan shows the url"
    assert frame.filter("partition = 1").count() == 10
    assert frame.count() == 20, "the filter of one query is not in the next"
    create(broker, f"{topic}-empty")
    assert load(spark, broker, subscribe=f"{topic}-empty").count() == 0


def test_filters_are_pushed_when_asked(spark: SparkSession, broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 2, 10)
    when = MOMENT.isoformat()
    frame = load(spark, broker, subscribe=topic, pushFilters="true")
    frame = frame.filter(f"partition = 1 and offset < 8 and timestamp > timestamp'{when}'").select("offset")
    assert [row.offset for row in frame.collect()] == [3, 4, 5, 6, 7]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        again = load(spark, broker, subscribe=topic, pushFilters="true").filter("partition = 1")
        assert again.count() == 10, "a session that does not allow it reads all the same"
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_spark_reads_typed_columns(spark: SparkSession, broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    put(broker, topic, {"value": [b'{"id":1,"city":"Bern"}', b"poison"]})
    register(broker, topic)
    frame = load(spark, broker, subscribe=topic, schema="registry")
    found = [(row.offset, row.id, row.city, row.decode_error) for row in frame.collect()]
    assert found[0] == (0, 1, "Bern", None) and found[1][:3] == (1, None, None)
    assert found[1][3].startswith("the value is not JSON")


def test_the_first_line_says_what_is_wrong(spark: SparkSession, broker: FlightServer, topic: str) -> None:
    filled(broker, topic, 1, 1)
    port = broker.ports["flight"]
    wrong = [
        ({"subscribe": "nowhere"}, "option subscribe: there is no topic 'nowhere'"),
        ({"subscribe": topic, "startingOffsets": "{"}, "option startingOffsets: it is neither a word"),
        ({"subscribe": topic, "url": f"flight://admin:s3cr3t@127.0.0.1:{port}"}, "options user and password: "),
        ({"subscribe": topic, "url": "flight://u:s3cr3t@127.0.0.1:1", "retrySeconds": "0"}, "option url: no broker"),
        ({"subscribe": topic, "subscribePattern": "x"}, "option subscribePattern: subscribe is set, too"),
        ({"subscribe": topic, "minPartitions": "-1"}, "option minPartitions: -1 is out of range"),
        ({"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 7}})}, "option startingOffsets: "),
    ]
    for options, sentence in wrong:
        with pytest.raises(AnalysisException) as caught:
            load(spark, broker, **options).count()
        first = str(caught.value).splitlines()[0]
        assert sentence in first
        assert "Traceback" not in str(caught.value)
        assert "s3cr3t" not in str(caught.value)
