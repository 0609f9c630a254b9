"""The deadletters pipeline: letters of several causes and fields grouped and counted, and sent again once, however often."""

import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import Row

from quintet.broker.atomic import dead_letters as dead
from quintet.client.core.errors import SchemaRejected
from quintet.client.manage import Manage
from quintet.flight import wire
from quintet.model import limits
from quintet.spark.pipelines import deadletters
from quintet.spark.pipelines.base import Result
from quintet.spark.pipelines.deadletters import Options, slices
from tests.spark.conftest import FlightServer, flying
from tests.spark.data import link_to, manage
from tests.spark.recent import made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFINITION = b'{"type": "object", "properties": {"total": {"type": "number"}}, "required": ["id"]}'


@pytest.fixture(scope="module")
def keeper() -> Iterator[FlightServer]:
    """A broker that keeps what a schema refuses."""
    with flying(QUINTET_DELIVERY__KEEP_REJECTED="true") as server:
        yield server


def reject(broker: FlightServer, topic: str, *rejects: tuple[int, str]) -> None:
    link_to(broker).reject(wire.RejectRequest(topic, tuple(wire.Reject(0, offset, error) for offset, error in rejects)))


def values(broker: FlightServer, topic: str) -> list[bytes]:
    batches = link_to(broker).read(wire.Ticket(topic, 0, columns=("value",)))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def counts(result: Result) -> dict[tuple[str, str, str], int]:
    return {row[:3]: row[3] for row in result.rows}


def test_two_causes_are_grouped_by_field_and_sent_again_once(
    spark: "SparkSession", keeper: FlightServer, topic: str
) -> None:
    made(keeper, topic, rows=6)
    reject(
        keeper,
        topic,
        (0, "items[3].price: is not a number"),
        (1, "items[12].price: is null"),
        (2, "ValueError: no field here"),
        (3, "the value: is no object"),
    )

    async def refused(admin: Manage) -> None:
        await admin.register_schema(topic, "json", DEFINITION)
        for value in (b'{"id": 1, "total": "x"}', b'{"total": 1}', b'{"total": 2}'):
            with pytest.raises(SchemaRejected):
                await admin.produce_with_schema(topic, topic, value)

    manage(keeper, refused)
    options = Options(url=keeper.flight, topic=topic, sample=1)
    result = deadletters.run(spark, options)
    assert counts(result) == {
        (topic, "rejected by a consumer", "items[].price"): 2,
        (topic, "rejected by a consumer", ""): 2,
        (topic, "schema rejected", "total"): 1,
        (topic, "schema rejected", "id"): 2,
    }
    by_field = {row[2]: row for row in result.rows if row[1] == "rejected by a consumer"}
    assert by_field["items[].price"][6] == ("0-0 items[3].price: is not a number",)
    assert by_field["items[].price"][4] <= by_field["items[].price"][5]
    assert result.title == "7 open dead letters"
    assert values(keeper, topic)[6:] == []  # to show is not to send

    sending = Options(url=keeper.flight, topic=topic, field="items[].price", redrive=True)
    assert deadletters.run(spark, sending).notes == ("2 sent again",)
    again = deadletters.run(spark, sending)
    assert (again.notes, again.rows) == (("0 sent again",), ())
    assert values(keeper, topic)[6:] == [b"0-0", b"0-1"]

    by_cause = Options(url=keeper.flight, topic=topic, cause="schema rejected", redrive=True, limit=2)
    assert deadletters.run(spark, by_cause).notes == ("2 sent again",)
    assert deadletters.run(spark, by_cause).notes == ("1 sent again",)
    assert values(keeper, topic)[8:] == [b'{"id": 1, "total": "x"}', b'{"total": 1}', b'{"total": 2}']
    assert counts(deadletters.run(spark, options)) == {(topic, "rejected by a consumer", ""): 2}


def test_all_topics_and_a_time(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    for name in (topic, f"{topic}-2"):
        made(broker, name, rows=2)
        reject(broker, name, (1, "bad: thing"))
    found = counts(deadletters.run(spark, Options(url=broker.flight)))
    assert {key: count for key, count in found.items() if key[0].startswith(topic)} == {
        (topic, "rejected by a consumer", "bad"): 1,
        (f"{topic}-2", "rejected by a consumer", "bad"): 1,
    }
    now = datetime.datetime.now(datetime.UTC)
    earlier = (now - datetime.timedelta(hours=1)).isoformat()
    both = f"{topic},{topic}-2"
    assert len(deadletters.run(spark, Options(url=broker.flight, topic=both, since=earlier)).rows) == 2
    assert deadletters.run(spark, Options(url=broker.flight, topic=both, until=earlier)).rows == ()
    with pytest.raises(ValueError, match="since=yesterday is not a time"):
        deadletters.run(spark, Options(url=broker.flight, topic=both, since="yesterday"))


def test_a_topic_without_dead_letters(spark: "SparkSession", broker: FlightServer, topic: str) -> None:
    made(broker, topic)
    assert deadletters.run(spark, Options(url=broker.flight, topic=topic, redrive=True)).title == "no dead letters"


def test_a_broker_that_refuses_ends_the_run_and_says_how_far_it_was(
    spark: "SparkSession", broker: FlightServer, topic: str
) -> None:
    made(broker, topic, rows=2)
    reject(broker, topic, (0, "x"), (1, "y"))
    manage(broker, lambda admin: admin.create_user(topic, "a password", ["consumer"]))
    door = broker.flight.replace("admin:admin@", "")
    result = deadletters.run(spark, Options(url=door, user=topic, password="a password", topic=topic, redrive=True))
    assert not result.ok
    assert result.notes[0].startswith("0 sent again, then the broker refused: ")
    assert len(values(broker, topic)) == 2


@pytest.mark.parametrize(("at_us", "year"), [(1 << 61, 9999), (-(1 << 61), 1), (0, 1970)])
def test_a_story_with_a_time_that_no_calendar_has(at_us: int, year: int) -> None:
    assert deadletters._said(at_us).year == year


def test_slices_are_what_the_broker_takes() -> None:
    assert (deadletters.SLICE_IDS, deadletters.SLICE_BYTES) == (dead.REPLAY_MAX, dead.REPLAY_BYTES_MAX)
    assert deadletters.PREFIX.encode() == dead.PREFIX
    rows = [Row(source="a", partition=0, offset=n, size=1) for n in range(deadletters.SLICE_IDS + 1)]
    rows += [Row(source="b", partition=1, offset=n, size=deadletters.SLICE_BYTES // 2) for n in range(3)]
    found = list(slices(iter(rows)))
    assert [(source, len(ids)) for source, ids in found] == [("a", 1000), ("a", 1), ("b", 2), ("b", 1)]
    assert found[-1] == ("b", ("1-2",))


def test_letters_of_a_very_long_name_are_not_sent_to_its_hash(
    spark: "SparkSession", broker: FlightServer, topic: str
) -> None:
    long = topic.ljust(limits.TOPIC_NAME_BYTES_MAX, "x")
    made(broker, long, rows=1)
    reject(broker, long, (0, "bad"))
    hashed = link_to(broker).dead(long).topic.removesuffix("-dlq")
    by_hash = deadletters.run(spark, Options(url=broker.flight, topic=hashed, redrive=True))
    assert by_hash.notes == ("0 sent again", "1 stay: they are of another topic, name it with topic=...")
    by_name = deadletters.run(spark, Options(url=broker.flight, topic=long, redrive=True))
    assert by_name.notes == ("1 sent again",)
    assert values(broker, long) == [b"0-0", b"0-0"]
