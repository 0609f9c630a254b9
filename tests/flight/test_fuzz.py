"""Requests that are well-formed and senseless: each is answered or refused by name, and none is a fault of the broker."""

import json
from typing import Any, get_args, get_origin

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import flight  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet.flight import wire
from quintet.flight.errors import to_flight
from tests.flight.client import Client, rows

TOPIC = "flight-fuzz"
FAULT = "E1000"  # the code of what the broker has no name for
TEXTS = st.one_of(
    st.sampled_from([TOPIC, f"{TOPIC}-dlq", "__groups", "__audit", "__users", "", "g", "0-0", "value", "running"]),
    st.text(max_size=20).filter(lambda text: not any("\ud800" <= letter <= "\udfff" for letter in text)),
)
NUMBERS = st.one_of(st.integers(-2, 5), st.integers(-(2**63), 2**63 - 1))


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values that JSON makes of this type."""
    origin, inside = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        parts = {field.name: of(field.type) for field in msgspec.structs.fields(kind)}
        if kind.__struct_config__.array_like:
            return st.tuples(*parts.values()).map(list)
        return st.fixed_dictionaries(parts)
    if origin is tuple:
        return st.lists(of(inside[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(of(inside[0]).map(str), of(inside[1]), max_size=3)
    return {str: TEXTS, int: NUMBERS, bool: st.booleans(), float: st.floats(allow_nan=False, allow_infinity=False)}[
        kind
    ]


REQUESTS = st.one_of([st.tuples(st.just(name), of(ask)) for name, (ask, _) in wire.ACTIONS.items()])
QUIET = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def code_of(error: flight.FlightError) -> str:
    return str(json.loads(error.extra_info)["code"])


@QUIET
@given(asked=REQUESTS)
def test_actions(client: Client, asked: tuple[str, dict[str, Any]]) -> None:
    client.put(TOPIC, rows(b"x"))
    try:
        answer = client.act(asked[0], **asked[1])
    except flight.FlightError as error:
        assert code_of(error) != FAULT
    else:
        msgspec.convert(answer, wire.ACTIONS[asked[0]][1])


@QUIET
@given(ticket=of(wire.Ticket))
def test_tickets(client: Client, ticket: dict[str, Any]) -> None:
    try:
        client.flight.do_get(flight.Ticket(json.dumps(ticket).encode()), client.options).read_all()
    except flight.FlightError as error:
        assert code_of(error) != FAULT


@QUIET
@given(data=st.binary(max_size=40))
def test_bytes(client: Client, data: bytes) -> None:
    for call in (
        lambda: client.act_raw("topics", data),
        lambda: client.flight.do_get(flight.Ticket(data), client.options).read_all(),
        lambda: client.flight.get_flight_info(flight.FlightDescriptor.for_command(data), client.options),
        lambda: list(client.flight.list_flights(data, client.options)),
    ):
        try:
            call()
        except flight.FlightError as error:
            assert code_of(error) != FAULT


def test_a_fault_has_that_code_and_tells_nothing_of_the_inside() -> None:
    error = to_flight(ValueError("a secret of the inside"))
    assert isinstance(error, flight.FlightInternalError)
    assert code_of(error) == FAULT
    assert "secret" not in f"{error} {error.extra_info!r}"
