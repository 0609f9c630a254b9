"""Typed reads against a broker, without Spark: what becomes of a row that does not decode, and values behind a prefix."""

import json
import logging
import struct
from typing import Any

import pytest

from quintet.client.core.errors import TopicNotFound
from quintet.flight import wire
from quintet.spark.source.connection import FlightConnection
from quintet.spark.source.options import OptionError, target
from tests.spark.conftest import FlightServer
from tests.spark.data import create, link_to, manage, put
from tests.spark.test_source import register, source, table, tasks_of

GOOD, OTHER = b'{"id":1,"city":"Bern"}', b'{"id":2}'
VALUES = [GOOD, b"poison", OTHER, b'{"id":"x"}', None]


@pytest.fixture
def typed(broker: FlightServer, topic: str) -> dict[str, str]:
    """A topic with two bad rows, and how a user who may only consume reads it."""
    create(broker, topic)
    put(broker, topic, {"value": VALUES})
    register(broker, topic)
    manage(broker, lambda admin: admin.create_user(topic, "a password", ["consumer"]))
    door = broker.flight.replace("admin:admin@", "")
    return {"url": door, "user": topic, "password": "a password", "subscribe": topic, "schema": "registry"}


def letters(broker: FlightServer, topic: str) -> int:
    """Open dead letters."""
    return sum(last - first for ranges in link_to(broker).dead(topic).open for first, last in ranges)


def test_a_plain_read_writes_nothing_and_shows_every_row(
    broker: FlightServer, topic: str, typed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "quintet.spark")
    for _ in range(2):
        found = table(broker, **typed)
    ours = [name for name in wire.COLUMNS if name != "value"]
    assert found.column_names == [*ours, "id", "city", "decode_error"]
    rows = [(row["offset"], row["id"], row["city"], row["decode_error"]) for row in found.to_pylist()]
    assert [row[:3] for row in rows] == [
        (0, 1, "Bern"),
        (1, None, None),
        (2, 2, None),
        (3, None, None),
        (4, None, None),
    ]
    assert [row[3] is None for row in rows] == [True, False, True, False, True]
    assert rows[3][3] == "id: expected int, got str"
    assert letters(broker, topic) == 0
    with pytest.raises(TopicNotFound):
        list(link_to(broker).read(wire.Ticket(f"{topic}-dlq", 0)))
    assert caplog.text.count(f"2 rows of {topic}/0 did not decode") == 2
    few = table(broker, **typed, columns="offset,id,decode_error")
    assert few.column_names == ["offset", "id", "decode_error"] and few.num_rows == 5
    assert table(broker, **typed, columns="offset").column_names == ["offset", "id", "city"]
    assert table(broker, **typed, columns="value,id").to_pylist()[0] == {"value": GOOD, "id": 1}


def test_a_stream_writes_nothing_either_unless_it_is_asked_to(
    broker: FlightServer, topic: str, typed: dict[str, str]
) -> None:
    made = source(broker, **typed, startingOffsets="earliest")
    stream = made.streamReader(made.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    rows = sum(len(batch) for task in stream.partitions(start, end) for batch in stream.read(task))
    assert (rows, letters(broker, topic)) == (5, 0)


def test_a_read_that_asks_for_dead_letters_writes_each_once(
    broker: FlightServer, topic: str, typed: dict[str, str]
) -> None:
    for _ in range(3):
        found = table(broker, **typed, onDecodeError="deadletter")
        assert [row["offset"] for row in found.to_pylist()] == [0, 2, 4]
        assert "decode_error" not in found.column_names
        assert letters(broker, topic) == 2
    with pytest.raises(OptionError, match="'decode_error' is neither a column nor a field"):
        table(broker, **typed, onDecodeError="deadletter", columns="decode_error")


def test_a_read_that_shall_fail_names_the_row_and_why(broker: FlightServer, topic: str, typed: dict[str, str]) -> None:
    reader, [task] = tasks_of(broker, **typed, onDecodeError="fail")
    with pytest.raises(
        OptionError, match=f"option onDecodeError: offset 1 of {topic}/0 does not decode: the value is not"
    ):
        list(reader.read(task))
    assert letters(broker, topic) == 0


def test_a_field_called_as_the_column_of_causes_needs_a_prefix(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    register(broker, topic, json.dumps({"type": "object", "properties": {"decode_error": {"type": "string"}}}))
    options = {"subscribe": topic, "schema": "registry"}
    with pytest.raises(OptionError, match=r"option typedPrefix: .* has a field 'decode_error'"):
        source(broker, **options).schema()
    assert source(broker, **options, typedPrefix="d_").schema().fieldNames()[-2:] == ["d_decode_error", "decode_error"]
    assert source(broker, **options, onDecodeError="fail").schema().fieldNames()[-1] == "decode_error"


# -- Confluent's prefix -----------------------------------------------------------------------------------------------


def avro(*names: str) -> bytes:
    fields: list[dict[str, Any]] = [{"name": name, "type": "int"} for name in names]
    return json.dumps({"type": "record", "name": "R", "fields": fields}).encode()


def test_values_of_a_producer_with_another_registry(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    manage(broker, lambda admin: admin.register_schema(topic, "avro", avro("a", "b")))
    manage(broker, lambda admin: admin.register_schema(topic, "avro", avro("b", "a")))
    prefixes = [struct.pack(">bI", 0, id) for id in (100_017, 100_023)]
    put(broker, topic, {"value": [prefixes[0] + b"\x02\x04", prefixes[1] + b"\x02\x04", b"\x02\x04"]})
    options = {"subscribe": topic, "schema": "registry", "columns": "a,b,decode_error"}
    newest = {"b": 1, "a": 2, "decode_error": None}
    assert table(broker, **options).to_pylist() == [newest] * 3
    ids = {"schemaIds": json.dumps({"100017": 1, "100023": 2})}
    assert table(broker, **options, **ids).to_pylist() == [{"b": 2, "a": 1, "decode_error": None}, newest, newest]
    causes = table(broker, **options, valuePrefix="none").column("decode_error").to_pylist()
    assert [cause is None for cause in causes] == [False, False, True]
    causes = table(broker, **options, valuePrefix="confluent").column("decode_error").to_pylist()
    assert causes[:2] == [None, None] and "has no prefix" in causes[2]
    with pytest.raises(OptionError, match="option schemaIds: the id 7 stands for version 3"):
        source(broker, **options, schemaIds='{"7":3}').schema()


def test_the_links_of_two_users_are_two(broker: FlightServer, typed: dict[str, str]) -> None:
    """Otherwise the tests above would read as the administrator."""
    assert FlightConnection.of(target(typed)) is not link_to(broker)
