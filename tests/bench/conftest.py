"""One real server for the tests of this folder."""

from collections.abc import Iterator

import pytest

from bench import peers
from quintet.bench.wire import Address


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """Where a real broker's BlipMQ door listens."""
    with peers.quintet(tmp_path_factory.mktemp("broker")) as server:
        yield server.address
