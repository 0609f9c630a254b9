"""One Spark session and one broker with the Flight door for all tests of this folder; a topic of its own for each.

A session costs seconds and every later query of it little, so tests share it.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.client.server import Server
from tests.spark.machines import CACHE, MEMORY, QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GONE_S = 300  # until the machine has written its archive, the first time, and is gone
SETTINGS = {"QUINTET_TOPICS__RETENTION_SECONDS": "0"}  # tests put records with old times, and look at them later


class FlightServer(Server):
    """A broker whose files tests look at; `flight` is its url for option("url", ...), with every right."""

    @property
    def data(self) -> Path:
        return self.folder / "data"


@contextmanager
def flying(**settings: str) -> Iterator[FlightServer]:
    """A broker of one's own with the Flight door, gone at the end. Settings are environment variables."""
    with tempfile.TemporaryDirectory(prefix="quintet-spark-") as folder:
        server = FlightServer(Path(folder), SETTINGS | settings)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """The shared session: two cores, tasks tried four times, few partitions."""
    import quintet.spark
    from quintet.spark.sessions import start

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(CACHE))
        session = quintet.spark.session(
            "local[2,4]",
            name="tests",
            conf={
                "spark.driver.extraJavaOptions": QUICK,
                "spark.driver.memory": MEMORY,
                "spark.sql.shuffle.partitions": "2",
            },
        )
    machine = start.machine()
    assert machine is not None, "a local master is launched directly"
    yield session
    session.stop()
    machine.end()
    machine.process.wait(GONE_S)


@pytest.fixture(scope="session")
def broker() -> Iterator[FlightServer]:
    """The shared broker: `broker.flight` is its url for Spark, `broker.fly` and `broker.url` those of other doors."""
    with flying() as server:
        yield server


@pytest.fixture
def own_broker() -> Iterator[FlightServer]:
    """For tests that kill it."""
    with flying() as server:
        yield server


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    return "".join(sign if sign.isalnum() else "-" for sign in str(request.node.name)).strip("-")
