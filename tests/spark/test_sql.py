"""`quintet spark sql` over a real topic, and a pipeline that ends run as a command, both in the shared session."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from quintet.client.bus import connect
from quintet.spark.sessions import notebook
from tests.cli.conftest import Commands
from tests.spark.conftest import FlightServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def quintet(spark: "SparkSession", broker: FlightServer, monkeypatch: pytest.MonkeyPatch) -> Commands:
    monkeypatch.setenv("QUINTET_FLIGHT_URL", broker.flight)
    return Commands(broker.fly)


def produce(url: str, topic: str, *values: bytes) -> None:
    async def run() -> None:
        async with connect(url) as bus:
            for value in values:
                await bus.request("PRODUCE", topic=topic, key=b"k", value=value, partition=-1)

    asyncio.run(run())


def test_topics_are_tables(quintet: Commands, broker: FlightServer, topic: str) -> None:
    odd = f"{topic}.odd, `name`"
    produce(broker.fly, topic, b"one", b"two", b"\xff\x00")
    produce(broker.fly, odd, b"three")
    name, quoted = f"`{topic}`", "`" + odd.replace("`", "``") + "`"
    found = quintet("spark", "sql", f"select offset, value from {name} order by offset", "--json").lines
    assert [json.loads(line) for line in found] == [
        {"offset": 0, "value": "one"},
        {"offset": 1, "value": "two"},
        {"offset": 2, "value_base64": "/wA="},
    ]
    both = f"select count(*) as n from {name}; -- and\nselect a.offset, b.topic from {name} a cross join {quoted} b limit 1"
    assert quintet("spark", "sql", "-", "--csv", data=both).out == f'n\n3\noffset,topic\n0,"{odd}"\n'
    table = quintet("spark", "sql", f"select value from {name} order by offset", "--limit", "2")
    assert [line.strip() for line in table.lines[-2:]] == ["one", "two"]
    assert table.err == "the first 2 rows; --limit N shows more, --json and --csv all\n"
    assert quintet("spark", "sql", f"select * from {name} where offset > 99").err == "no rows\n"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("selec 1", "line 1, column 1: Syntax error at or near 'selec'."),
        ("select *\nfrom nowhere_at_all", "there is no topic 'nowhere_at_all' that you may read"),
        ("select a from (select 1 as b)", "A column, variable, or function parameter with name `a` cannot be resolved"),
        ("select raise_error('too hot')", "too hot."),
        ("select 1 / 0", "Division by zero."),
    ],
)
def test_mistakes_are_one_line(quintet: Commands, statement: str, said: str) -> None:
    err = quintet("spark", "sql", statement, code=1).err
    assert said in err
    assert len(err.splitlines()) == 1


def test_settings_of_a_command(quintet: Commands, spark: "SparkSession") -> None:
    own = ("--conf", "spark.quintet.one=1", "--conf", "spark.quintet.two=a=b")
    found = quintet("spark", "sql", "set spark.quintet.one; set spark.quintet.two", "--csv", *own).lines
    assert found == ["key,value", "spark.quintet.one,1", "key,value", "spark.quintet.two,a=b"]
    quintet("pipeline", "run", "tests.spark.count", "topic=a", "to=1", "--conf", "spark.quintet.three=3")
    assert spark.conf.get("spark.quintet.three") == "3"


def test_a_pipeline_that_ends(quintet: Commands) -> None:
    done = quintet("pipeline", "run", "tests.spark.count", "topic=a", "to=2")
    assert done.out == "number\tword\n0\ta\n1\ta\n"
    assert done.err.splitlines()[-2:] == ["2 rows", "done"]
    found = quintet("pipeline", "run", "tests.spark.count", "topic=a", "to=10", "--json", code=1).json
    assert (found["ok"], found["rows"][9], found["notes"]) == (False, {"number": 9, "word": "a"}, ["done"])
    rows = quintet("pipeline", "status", "count-a", "--json").json
    assert (rows[0]["state"], rows[0]["kind"]) == ("failed", "tests.spark.count")


def test_the_page_runs(quintet: Commands, broker: FlightServer, spark: "SparkSession", topic: str) -> None:
    """The cells of a notebook, but for the last one: it draws until somebody stops it."""
    produce(broker.fly, topic, b"one", b"two")
    page: dict[str, Any] = {}
    for cell in json.loads(notebook.jupyter(topic))["cells"][1:-1]:
        exec("".join(cell["source"]), page)
    assert sorted(page["latest"]["value"]) == ["one", "two"]
    page["query"].processAllAvailable()
    assert spark.sql("select sum(messages) from live").collect()[0][0] == 2
    page["query"].stop()
