"""A header without a value is not one with an empty value: through every way in and out, the dead letters among them."""

from typing import Any

import pytest

from quintet.client.core.errors import TopicNotFound
from quintet.flight import wire
from tests.spark.conftest import FlightServer
from tests.spark.data import create, link_to, manage, put
from tests.spark.test_source import table

LISTS: list[list[dict[str, Any]]] = [
    [{"key": "none", "value": None}, {"key": "empty", "value": b""}, {"key": "some", "value": b"x"}],
    [],
    [{"key": "none", "value": None}],
    [{"key": "some", "value": b"y"}],
]


def test_null_and_empty_header_values_are_told_apart(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    put(broker, topic, {"value": [b"0", b"1", b"2", b"3"], "headers": LISTS})
    put(broker, topic, {"value": [b"4"], "headers": [LISTS[3]]})  # a batch without nulls beside one with them
    for access in ("auto", "flight"):
        found = table(broker, subscribe=topic, access=access, columns="headers")
        assert found.column("headers").to_pylist() == [*LISTS, LISTS[3]]
    peeked, _ = manage(broker, lambda admin: admin.peek(topic, 0, 0))
    assert peeked[0].headers == [(b"none", b""), (b"empty", b""), (b"some", b"x")], "FlyMQ has no place for a null"


def test_a_dead_letter_keeps_null_header_values_and_so_does_its_replay(broker: FlightServer, topic: str) -> None:
    create(broker, topic)
    put(broker, topic, {"value": [b"0"], "headers": [LISTS[0]]})
    link = link_to(broker)
    link.reject(wire.RejectRequest(topic, (wire.Reject(0, 0, "bad"),)))
    letter = next(link.read(wire.Ticket(f"{topic}-dlq", 0))).to_pylist()[0]
    assert letter["headers"][:3] == LISTS[0]
    assert link.redrive(wire.RedriveRequest(topic, ("0-0",))).sent == 1
    again = [row for batch in link.read(wire.Ticket(topic, 0)) for row in batch.to_pylist()]
    assert [row["headers"] for row in again] == [LISTS[0], LISTS[0]]
    with pytest.raises(TopicNotFound):
        next(link.read(wire.Ticket(f"{topic}-nothing", 0)))
