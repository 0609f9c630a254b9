"""The broker that the client's tests share, one of one's own for those that kill it, and a topic for each test."""

from collections.abc import Iterator

import pytest

from tests.client.server import Server, running


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def url(server: Server) -> str:
    return server.url


@pytest.fixture
def own_server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)
