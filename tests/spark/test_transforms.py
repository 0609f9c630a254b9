"""The pipelines that turn one stream into another: decode, dedupe, join, aggregate; poison, late and missing data among it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quintet.flight import wire
from quintet.spark.pipelines import aggregate, decode, dedupe, join
from quintet.spark.pipelines.base import spoken
from quintet.spark.pipelines.running import runner
from tests.spark.conftest import FlightServer
from tests.spark.data import SECOND_US, START_US, create, link_to, manage, put

MINUTE_US = 60 * SECOND_US
ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "region": {"type": "string"},
        "total": {"type": "number"},
        "a.b`c": {"type": "integer"},  # one name, for all its signs
    },
}


@pytest.fixture
def settings(broker: FlightServer, topic: str, tmp_path: Path) -> dict[str, Any]:
    """What all runs of a test share; `topic` is where they read."""
    create(broker, topic)
    return {"url": broker.flight, "name": topic, "checkpoint": str(tmp_path / "checkpoint"), "trigger": "now"}


def records(broker: FlightServer, topic: str) -> list[dict[str, Any]]:
    link = link_to(broker)
    [info] = link.topics(wire.Selection((topic,))).topics
    tickets = [wire.Ticket(topic, partition) for partition in range(len(info.partitions))]
    return [row for ticket in tickets for batch in link.read(ticket) for row in batch.to_pylist()]


def documents(broker: FlightServer, topic: str) -> list[Any]:
    return [json.loads(row["value"]) for row in records(broker, topic)]


def finish(queries: list[Any]) -> None:
    for query in queries:
        query.awaitTermination()


class Notes(runner.Screen):
    """What a run says."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_decode_types_what_fits_and_buries_what_does_not(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    manage(broker, lambda admin: admin.register_schema(topic, "json", json.dumps(ORDER).encode()))
    poison = [b"no json", b'{"region": "eu"}', b'{"id": "seven"}']
    good = [b'{"id": 1, "region": "eu", "total": 2.5, "a.b`c": 7}', b'{"id": 2}']
    put(broker, topic, {"key": [b"a", b"b", b"c", b"d", None], "value": [good[0], *poison, good[1]]})
    options = decode.Options(topic=topic, to_topic=f"{topic}-typed", **settings)
    finish(decode.start(spark, options))
    typed = documents(broker, f"{topic}-typed")
    assert [(row["id"], row.get("region"), row.get("total")) for row in typed] == [(1, "eu", 2.5), (2, None, None)]
    assert [row["offset"] for row in typed] == [0, 4]
    assert typed[0]["a.b`c"] == 7
    dead = records(broker, f"{topic}-dlq")
    assert sorted(row["value"] for row in dead) == sorted(poison)
    causes = [dict((h["key"], h["value"]) for h in row["headers"])["quintet-dead-error"].decode() for row in dead]
    assert any("id" in cause for cause in causes)
    put(broker, topic, {"value": [b'{"id": 3}', b"poison again"]})
    finish(decode.start(spark, options))
    assert [row["id"] for row in documents(broker, f"{topic}-typed")] == [1, 2, 3]
    assert len(records(broker, f"{topic}-dlq")) == 4


def test_decode_of_fields_named_like_columns(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    fields = {"value": {"type": "string"}, "offset": {"type": "integer"}}
    schema = json.dumps({"type": "object", "properties": fields})
    manage(broker, lambda admin: admin.register_schema(topic, "json", schema.encode()))
    put(broker, topic, {"key": [b"k"], "value": [b'{"value": "v", "offset": 7}']})
    options = decode.Options(topic=topic, to_topic=f"{topic}-typed", typed_prefix="its_", **settings)
    finish(decode.start(spark, options))
    [row] = documents(broker, f"{topic}-typed")
    assert (row["offset"], row["its_offset"], row["its_value"]) == (0, 7, "v")


def test_dedupe_keeps_the_first_of_each_id_over_a_restart(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    def send(*rows: tuple[str | None, str]) -> None:
        headers = [[] if id is None else [{"key": "id", "value": id.encode()}] for id, _ in rows]
        put(broker, topic, {"value": [text.encode() for _, text in rows], "headers": headers})

    options = dedupe.Options(topic=topic, by="header:id", within="1h", to_topic=f"{topic}-once", **settings)
    send(("1", "one"), ("2", "two"), ("1", "one again"), (None, "nameless"), (None, "nameless too"))
    finish(dedupe.start(spark, options))
    send(("2", "two again"), ("3", "three"))
    finish(dedupe.start(spark, options))
    found = records(broker, f"{topic}-once")
    assert sorted(row["value"] for row in found) == [b"nameless", b"nameless too", b"one", b"three", b"two"]
    assert {row["value"]: row["headers"] for row in found}[b"three"] == [{"key": "id", "value": b"3"}]


def test_a_message_of_the_far_future_makes_no_other_one_late(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    options = dedupe.Options(topic=topic, to_topic=f"{topic}-clean", within="1h", **settings)
    for keys, times in (([b"future"], [1 << 61]), ([b"a", b"a", b"b"], [time.time_ns() // 1000] * 3)):
        put(broker, topic, {"key": keys, "value": keys, "timestamp": times})
        finish(dedupe.start(spark, options))
    link = link_to(broker)
    found = [
        key
        for batch in link.read(wire.Ticket(f"{topic}-clean", 0, columns=("key",)))
        for key in batch.column("key").to_pylist()
    ]
    assert sorted(found) == [b"a", b"b", b"future"]


def test_dedupe_knows_four_kinds_of_ids(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(b"k", b'{"a": {"b": 7}}')], "key binary, value binary")
    assert frame.select(dedupe._identity("key")).first()[0] == b"k"  # type: ignore[index]
    assert frame.select(dedupe._identity("value")).first()[0] == b'{"a": {"b": 7}}'  # type: ignore[index]
    assert frame.select(dedupe._identity("field:a.b")).first()[0] == b"7"  # type: ignore[index]
    with pytest.raises(ValueError, match="by=name: write key, value"):
        dedupe._identity("name")


def test_join_finds_partners_within_the_time(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    other = f"{topic}-right"
    create(broker, other)
    times = [START_US, START_US + 5 * MINUTE_US, START_US + 30 * MINUTE_US]
    put(broker, topic, {"key": [b"a", b"b", b"c"], "value": [b"left a", b"left b", b"\xff\xfe"], "timestamp": times})
    right = [START_US + MINUTE_US, START_US + 50 * MINUTE_US, START_US + 29 * MINUTE_US]
    put(broker, other, {"key": [b"a", b"b", b"c"], "value": [b"right a", b"too late", b"right c"], "timestamp": right})
    options = join.Options(left=topic, right=other, within="10m", to_topic=f"{topic}-joined", **settings)
    screen = Notes()
    assert runner.run("join", options, spark=spark, screen=screen) == 0
    assert "messages are kept for a partner that may still come, 10m (within)" in screen.notes[-1]
    found = {row["key"]: json.loads(row["value"]) for row in records(broker, f"{topic}-joined")}
    assert set(found) == {b"a", b"c"}
    assert (found[b"a"]["left"], found[b"a"]["right"]) == ("left a", "right a")
    assert found[b"c"]["left"] == "base64://4="


def test_aggregate_counts_each_message_once_and_leaves_late_ones_out(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    def send(*rows: tuple[str, float, int]) -> None:
        values = [json.dumps({"region": region, "total": total}).encode() for region, total, _ in rows]
        put(broker, topic, {"value": values, "timestamp": [START_US + at * SECOND_US for _, _, at in rows]})

    options = aggregate.Options(
        topic=topic,
        to_topic=f"{topic}-minutes",
        window="1m",
        watermark="1m",
        by=("region",),
        fields={"region": "string", "total": "double"},
        where="total >= 0",
        measures={"orders": "count", "revenue": "sum(total)", "median": "percentile(total, 0.5)"},
        **settings,
    )
    begin = 40  # START_US is 20 seconds into its minute: a window begins 40 seconds later
    send(("eu", 1.0, begin), ("eu", 2.0, begin + 1), ("us", 5.0, begin + 2), ("eu", -1.0, begin + 3))
    put(broker, topic, {"value": [b"no json"], "timestamp": [START_US + begin * SECOND_US]})
    finish(aggregate.start(spark, options))
    send(("eu", 3.0, begin + 30), ("us", 0.0, begin + 600))  # the first window goes on, then the watermark passes it
    finish(aggregate.start(spark, options))
    send(("eu", 100.0, begin + 5), ("us", 0.0, begin + 700))  # too late: the window was published
    screen = Notes()
    assert runner.run("aggregate", options, spark=spark, screen=screen) == 0
    assert "2 windows are open and were not published: none ends 1m (watermark)" in screen.notes[-1]
    found = {(row["region"], row["window_start"]): row for row in documents(broker, f"{topic}-minutes")}
    first = [row for (region, _), row in found.items() if region == "eu"]
    assert [(row["orders"], row["revenue"], row["median"]) for row in first] == [(3, 6.0, 2.0)]
    assert next(row["orders"] for (region, _), row in sorted(found.items()) if region == "us") == 1
    assert len(documents(broker, f"{topic}-minutes")) == len(found), "a window was published twice"


def test_keys_of_groups_are_never_the_same(spark: SparkSession) -> None:
    groups = [("a/b", "c"), ("a", "b/c"), ("x", None), (None, "x"), ("%2F", "%"), ("/", None)]
    frame = spark.createDataFrame(groups, "left string, right string")
    keys = [tuple(row) for row in frame.select(aggregate._word("left"), aggregate._word("right")).collect()]
    assert len({"/".join(key) for key in keys}) == len(groups)
    assert ("x", "%") in keys


def test_aggregate_publishes_each_change_once(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    def send(*rows: tuple[bytes, int]) -> None:
        times = [START_US + at * SECOND_US for _, at in rows]
        values = [b'{"offset": 1.5}' for _ in rows]  # the name of a column of ours, which it takes the place of
        put(broker, topic, {"key": [key for key, _ in rows], "value": values, "timestamp": times})

    options = aggregate.Options(
        topic=topic,
        to_topic=f"{topic}-now",
        by=("key",),
        fields={"offset": "double"},
        measures={"n": "count", "sum": "sum(offset)"},
        emit="updates",
        **settings,
    )
    found = []
    for number in range(2):
        send((b"a", 40), (b"a", 41), *([(b"b", 42)] if number else []))
        finish(aggregate.start(spark, options))
        found.append(
            [(row["key"].rpartition(b"/")[2], json.loads(row["value"])["n"]) for row in records(broker, f"{topic}-now")]
        )
    assert found[0] == [(b"a", 2)]
    assert sorted(found[1]) == [(b"a", 2), (b"a", 4), (b"b", 1)]
    assert {document["sum"] for document in documents(broker, f"{topic}-now")} == {3.0, 6.0, 1.5}
    last = sorted((Path(settings["checkpoint"]) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))[-1]
    for path in (last, last.with_name(f".{last.name}.crc")):  # as if it had been cut off before
        path.unlink(missing_ok=True)
    finish(aggregate.start(spark, options))
    assert len(records(broker, f"{topic}-now")) == 3, "a batch that comes again is not published again"


def test_aggregate_says_what_is_wrong_with_its_file(
    spark: SparkSession, broker: FlightServer, topic: str, settings: dict[str, Any]
) -> None:
    def start(**wrong: Any) -> None:
        given = {"topic": topic, "measures": {"orders": "count"}, "to_topic": "x", **settings, **wrong}
        aggregate.start(spark, aggregate.Options(**given))

    with pytest.raises(ValueError, match=r"measures.x = 'drop\(total\)'"):
        start(measures={"x": "drop(total)"}, fields={"total": "double"})
    with pytest.raises(ValueError, match="no column 'total'"):
        start(measures={"x": "sum(total)"})
    with pytest.raises(ValueError, match="percentile"):
        start(measures={"x": "percentile(offset, 7)"})
    with pytest.raises(ValueError, match="two columns of the result are called 'key' and 'Key'"):
        start(by=("key",), measures={"Key": "count"})
    with pytest.raises(ValueError, match="emit=updates needs to_topic"):
        start(emit="updates", to_topic="", to_table="somewhere")
    with pytest.raises(ValueError, match="to_topic or to_table"):
        start(to_table="somewhere")
    with pytest.raises(ValueError, match="is no duration"):
        spoken("soon")
