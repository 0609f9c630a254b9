"""SQL over topics reads the columns and ranges it needs, and returns what a read of whole topics returns."""

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

import quintet.spark
from quintet.client.core.errors import AuthError
from quintet.client.manage import Manage
from quintet.flight.wire import COLUMNS
from quintet.spark.sessions.views import SqlFailed, Views, names
from quintet.spark.source import prune
from tests.spark.conftest import FlightServer
from tests.spark.data import create, fill, filled, link_to, manage, put

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

A, B = "views_a", "views_b"  # topics of two partitions and of one
EVERY = set(COLUMNS)
# A statement -> the columns that the reads in its plan take.
STATEMENTS: dict[str, list[set[str]]] = {
    "select * from {a}": [EVERY],
    "select count(*) from {a}": [{"partition"}],
    "select key, count(*) as n from {a} group by key": [{"key"}],
    "select count(*) from {a} where value is not null and offset >= 2": [{"value", "offset"}],
    "select key from {a} order by timestamp desc, partition limit 3": [{"key", "timestamp", "partition"}],
    "select max(timestamp), min(origin) from {a} having count(*) > 1": [{"timestamp", "origin"}],
    "select hash(*) from {a}": [EVERY],
    "select explode(headers), topic from {a}": [{"headers", "topic"}],
    "select get(headers, 0).value, size(headers) from {a}": [{"headers"}],
    "select x.key, y.value from {a} x join {a} y on x.offset = y.offset and x.partition < y.partition": [
        {"key", "value", "partition", "offset"},
        {"key", "value", "partition", "offset"},
    ],
    "select a.key, b.value from {a} a left join {b} b using (offset)": [{"key", "offset"}, {"value", "offset"}],
    "select a.* from {a} a left anti join {b} b on a.key = b.key and a.partition = 0": [EVERY, {"key"}],
    "select key from {a} union all select value from {b}": [{"key"}, {"value"}],
    "select * from {a} union all select * from {b}": [EVERY, EVERY],
    "select key, (select max(offset) from {b}) as top from {a}": [{"key"}, {"offset"}],
    "select key from {a} where offset in (select offset from {b} where value like '0-_')": [
        {"key", "offset"},
        {"value", "offset"},
    ],
    "select key from {a} a where exists (select 1 from {b} b where b.key = a.key)": [{"key"}, {"key"}],
    "select key, (select count(*) from {b} b where b.key = a.key) as n from {a} a": [{"key"}, {"key"}],
    "with x as (select * from {a} where partition = 0) select x.key from x join x as y using (offset)": [
        {"key", "partition", "offset"},
        {"key", "partition", "offset"},
    ],
    "select key, row_number() over (partition by partition order by offset) from {a}": [{"key", "partition", "offset"}],
    "select s.key from (select struct(*) as s from {a})": [{"key"}],
    "select key from {a} where partition = 1 union all select key from {a} where partition = 0 and offset = 2": [
        {"key", "partition", "offset"},
        {"key", "partition", "offset"},
    ],
}

# A statement -> whether each of its reads has filters pushed into it.
PUSHED = {
    "select key from {a} where partition = 1 and offset between 1 and 3": [True],
    "select * from {a} where timestamp >= timestamp'2023-11-14 22:13:22' and partition = 0": [True],
    "select key from {a} where partition = 1 union all select key from {a} where partition = 0 and offset = 2": [
        False,
        False,
    ],
}
# Small queries: the compiler and the planner at run time would cost more than they gain.
SMALL = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false"}


@pytest.fixture(scope="module")
def wholes(broker: FlightServer, spark: "SparkSession") -> Iterator[None]:
    """The topics A and B, with whole reads of them as views of the names whole_a and whole_b."""
    for letter, topic, partitions in (("a", A, 2), ("b", B, 1)):
        filled(broker, topic, partitions, rows=5)
        put(broker, topic, {"value": [None], "key": [None], "partition": [0]})
        whole = spark.read.format("quintet").options(url=broker.flight, subscribe=topic).load()
        whole.cache().createOrReplaceTempView(f"whole_{letter}")
    before = {name: spark.conf.get(name) or "" for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)
    for letter, topic in (("a", A), ("b", B)):
        spark.table(f"whole_{letter}").unpersist()
        spark.catalog.dropTempView(f"whole_{letter}")
        manage(broker, partial(Manage.delete_topic, name=topic))


def views_of(spark: "SparkSession", broker: FlightServer, typed: bool = False, once: bool = False) -> Views:
    return Views(spark, {"url": broker.flight}, lambda: names(link_to(broker)), typed, once)


def reads(frame: "DataFrame") -> list[set[str]]:
    """The columns of each read in the plan."""
    nodes = [node for node, _ in prune._nodes(prune._optimised(frame)) if prune._kind(node) == prune.SCAN]
    return [{column.name() for column in prune._each(node.output())} for node in nodes]


def rows(frame: "DataFrame") -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.usefixtures("wholes")
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_reads_what_it_needs_and_returns_the_same_rows(
    spark: "SparkSession", broker: FlightServer, statement: str
) -> None:
    expected = spark.sql(statement.format(a="whole_a", b="whole_b"))
    found = views_of(spark, broker).query(statement.format(a=A, b=B))
    assert sorted(map(sorted, reads(found))) == sorted(map(sorted, STATEMENTS[statement]))
    assert found.schema == expected.schema
    assert rows(found) == rows(expected)


@pytest.mark.usefixtures("wholes")
def test_filters_are_pushed_for_one_use_and_never_into_another_read(
    spark: "SparkSession", broker: FlightServer
) -> None:
    """Spark pushes the filters of the last read of a frame into all of them: only a topic that is read once gets them."""
    once = views_of(spark, broker, once=True)
    for statement, pushed in PUSHED.items():
        found = once.query(statement.format(a=A, b=B))
        scans = [node for node, _ in prune._nodes(prune._optimised(found)) if prune._kind(node) == prune.SCAN]
        assert [scan.relation().options().get("pushFilters") == "true" for scan in scans] == pushed, statement
        assert rows(found) == rows(spark.sql(statement.format(a="whole_a", b="whole_b"))), statement


@pytest.mark.usefixtures("wholes")
def test_a_session_finds_topics_by_name(
    spark: "SparkSession", broker: FlightServer, topic: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """`session(url=...)`: sql and table; new rows and new topics are there, and what is no topic is Spark's own matter."""
    from pyspark.errors import AnalysisException

    with pytest.raises(AuthError):
        quintet.spark.session(url=broker.flight.replace("admin:admin", "admin:wrong"))
    attached = quintet.spark.session(url=broker.flight)
    try:
        assert attached is spark, "a process has one session"
        filled(broker, topic, 1, rows=3)  # after the session was told which topics there are
        count = f"select count(*) as n from `{topic.upper()}` where offset > :least"
        assert spark.sql(count, {"least": 0}).collect()[0].n == 2
        fill(broker, topic, 1, rows=2)
        assert spark.sql(count, args={"least": 0}).collect()[0].n == 4
        assert spark.table(f"`{topic}`").columns == list(COLUMNS)
        assert capfd.readouterr().err == "", "a name that is found is no error to log"
        assert [table.name for table in spark.catalog.listTables() if table.name.startswith(topic)] == []
        # A view over a topic keeps its text: the topic is looked for again each time.
        spark.sql(f"create or replace temp view over_topic as select * from `{topic}` where partition = 0")
        found = spark.sql("select max(offset) as top from over_topic")
        assert (reads(found), found.collect()[0].top) == ([{"partition", "offset"}], 4)
        assert spark.sql("select id from {numbers}", numbers=spark.range(3)).count() == 3
        with pytest.raises(AnalysisException, match="nowhere_at_all"):
            spark.sql("select * from nowhere_at_all")
    finally:
        spark.catalog.dropTempView("over_topic")
        vars(spark).pop("sql", None)
        vars(spark).pop("table", None)


@pytest.mark.usefixtures("wholes")
def test_a_column_that_was_not_read_is_an_error_and_never_null(
    spark: "SparkSession", broker: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should the plan be misread, so that a needed column is left out: the whole read is used, and else the query fails."""
    from pyspark.errors import ArithmeticException, SparkRuntimeException

    def misread(frame: "DataFrame") -> dict[str, prune.Need]:
        return {A: prune.Need({"offset"}, 1)}

    views = views_of(spark, broker)
    cannot_be_planned = views.query(f"select 1 / 0 from {A}")  # Spark says so when it is run, and not before
    with pytest.raises(ArithmeticException):
        cannot_be_planned.collect()
    monkeypatch.setattr(prune, "needs", misread)
    statement = f"select count(*) as n from {A} where value is null"
    found = views.query(statement)
    assert (reads(found), found.collect()[0].n) == ([EVERY], 1)
    monkeypatch.setattr(prune, "touched", lambda frame: False)
    with pytest.raises(SparkRuntimeException, match=f"{prune.MARK} value"):
        views.query(statement).collect()


def test_typed_tables_read_the_fields_they_need(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    """Rows that do not decode stay, with nulls, whichever columns are read."""
    fields = {"region": {"type": "string"}, "total": {"type": "integer"}, "value": {"type": "string"}}
    for name, wanted in ((topic, ("region", "total")), (f"{topic}-value", ("region", "value"))):
        definition = {"type": "object", "properties": {field: fields[field] for field in wanted}}
        create(broker, name)
        register = partial(Manage.register_schema, name=name, type="json", definition=json.dumps(definition).encode())
        manage(broker, register)
        put(
            broker,
            name,
            {"value": [b'{"region":"north","total":3,"value":"v"}', b"no", b'{"region":"south","total":4}']},
        )
    views = views_of(spark, broker, typed=True)
    for statement, columns, owed in (
        (f"select sum(total) from `{topic}`", {"total"}, [(7,)]),
        (f"select count(*) from `{topic}`", {"region"}, [(3,)]),
        (f"select region, offset from `{topic}`", {"region", "offset"}, [("north", 0), (None, 1), ("south", 2)]),
        # `value` is a field here: the option `columns` has no word for it
        (f"select value from `{topic}-value`", EVERY | {"region", "decode_error"}, [("v",), (None,), (None,)]),
    ):
        found = views.query(statement)
        assert (reads(found), [tuple(row) for row in found.collect()]) == ([columns], owed), statement


def test_topics_that_differ_by_case_alone_are_told_apart_or_refused(
    spark: "SparkSession", broker: FlightServer, topic: str
) -> None:
    views = Views(spark, {"url": broker.flight}, lambda: frozenset({"Orders", "orders"}))
    with pytest.raises(SqlFailed, match="Orders and orders differ by case alone"):
        views.query("select 1 from orders")
