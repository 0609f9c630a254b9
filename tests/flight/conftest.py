"""A broker of this folder's own with its Flight door open, and plain pyarrow clients for it."""

import re
from collections.abc import Iterator

import pytest

from tests.client.server import Server, running

pytest.importorskip("pyarrow.flight", reason="the Flight door needs pyarrow (the extra `flight`)")

from tests.flight.client import Client


@pytest.fixture(scope="session")
def broker() -> Iterator[Server]:
    with running(QUINTET_TOPICS__SEGMENT_BYTES="65536") as server:
        yield server


@pytest.fixture
def client(broker: Server) -> Iterator[Client]:
    with Client(broker.ports["flight"], "admin", "admin") as made:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """One for each test: they share the broker."""
    return re.sub(r"\W+", "-", f"flight-{request.node.name}").strip("-")[:100]
