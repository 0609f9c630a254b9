"""One Kafka for the tests of this folder that do it no harm; each has topics of its own there."""

import contextlib
from typing import Final

import pytest

from bench import peers
from tests.conftest import group_of
from tests.crash.cells import SMALL_JAVA

_running: Final = contextlib.ExitStack()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its address. A start takes seconds of a core, so the files that ask for it run in one process (tests/conftest.py)."""
    if not peers.has_kafka():
        pytest.skip("NOT PROVEN HERE: Kafka is not installed (python bench/peers.py --install kafka)")
    started = _running.enter_context(peers.kafka(tmp_path_factory.mktemp("kafka"), SMALL_JAVA))
    return f"{started.address[0]}:{started.address[1]}"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """It ends with the last of those files, not with the process: while it has nothing to do it takes 1 % of a core."""
    if nextitem is None or group_of(_file(nextitem)) != group_of(_file(item)):
        _running.close()


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
