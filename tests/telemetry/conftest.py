"""A collector, and a broker that exports to it, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.client.server import Server, running
from tests.telemetry.collector import Collector, collecting


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="session")
def server(collector: Collector) -> Iterator[Server]:
    with running(QUINTET_TELEMETRY__ENDPOINT=collector.url, QUINTET_TELEMETRY__SERVICE_NAME="shop") as found:
        yield found
