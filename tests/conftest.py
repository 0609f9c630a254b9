"""What every test gets: an environment without the developer's own QUINTET_ variables, and a process to run in.

`make test` runs some processes of tests (pytest-xdist, --dist loadgroup). A file stays together, for the broker that its
tests share; everything that needs Spark stays together, for the session. What takes longest is begun first, so that no
process works alone in the end. Plain `pytest` runs all in one process.
"""

import logging
import os
from collections.abc import Iterator
from typing import Final

import hypothesis
import pytest

from quintet import logs
from quintet.config import ENV_OTHER, ENV_OTHER_PREFIX, ENV_PREFIX

# What has long files, and waits for processes; the many short files behind it fill the gaps in the end.
LONGEST_FIRST: Final = (
    "tests/crash", "tests/install", "tests/spark", "tests/abuse", "tests/client", "tests/log", "tests/protocols", "tests/interop",
    "tests/net", "tests/turns", "tests/flight", "tests/cli", "tests/test_",
)  # fmt: skip

# Without this every property has 200 ms of wall time for an example, which a busy machine takes for nothing.
hypothesis.settings.register_profile("quintet", deadline=None)
hypothesis.settings.load_profile("quintet")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX) and name not in ENV_OTHER and not name.startswith(ENV_OTHER_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """A command that ran in this process has sent the logs to its own streams, which are closed after it."""
    yield
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler.formatter, logs.Lines):
            root.removeHandler(handler)
            root.setLevel(logging.WARNING)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("spark" if _in_spark(item) else str(item.path)))
    items.sort(key=_turn)  # keeps the order of those with the same turn


def _in_spark(item: pytest.Item) -> bool:
    return "spark" in getattr(item, "fixturenames", ())


def _turn(item: pytest.Item) -> int:
    if _in_spark(item) or item.nodeid.startswith(("tests/crash/test_spark", "tests/spark/test_cluster")):
        return -1
    folders = (turn for turn, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder))
    return next(folders, len(LONGEST_FIRST))
