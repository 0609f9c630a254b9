"""One Kafka for the tests of this folder that do it no harm; each has topics of its own there."""

from collections.abc import Iterator

import pytest

from bench import peers
from tests.crash.cells import SMALL_JAVA


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its address. A start takes seconds of a core, so the files that ask for it run in one process (tests/conftest.py)."""
    if not peers.has_kafka():
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install kafka)")
    with peers.kafka(tmp_path_factory.mktemp("kafka"), SMALL_JAVA) as started:
        yield f"{started.address[0]}:{started.address[1]}"
