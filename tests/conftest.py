"""What every test gets: an environment without the developer's own QUINTET_ variables, and a process to run in.

`make test` runs two processes of tests (pytest-xdist, --dist loadgroup). A file stays together, for the broker that its
tests share; everything that needs Spark stays together, for the session. Plain `pytest` runs all in one process.
"""

import os

import pytest

from quintet.config import ENV_OTHER, ENV_OTHER_PREFIX, ENV_PREFIX


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX) and name not in ENV_OTHER and not name.startswith(ENV_OTHER_PREFIX):
            monkeypatch.delenv(name)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            in_spark = "spark" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("spark" if in_spark else str(item.path)))
