"""What every test gets: an environment without the developer's own QUINTET_ variables, and a process to run in.

`make test` runs some processes of tests (pytest-xdist, --dist loadscope). A file stays together, for the broker that its
tests share; the files that need a Spark session are two groups of about the same length, for two sessions. What takes longest is
begun first, so that no process works alone in the end. Plain `pytest` runs all in one process. The groups are made here, by a
scheduler of our own: xdist's marks for groups have no effect with pytest 9.2 (it sets an attribute of tests that nobody reads
any more). So a run in which a file was torn between two processes fails.
"""

import atexit
import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest

from quintet import logs
from quintet.config import ENV_OTHER, ENV_OTHER_PREFIX, ENV_PREFIX

ROOT: Final = Path(__file__).parents[1]
SHARES_SESSION: Final = re.compile(r"def \w+\([^)]*\bspark\b *[:,)]")
_ran_by: dict[str, set[str]] = {}  # file -> processes
# Files of tests/spark from this name on are in the second group. The first has as much to do.
SECOND_SESSION_FROM: Final = "tests/spark/test_lake"
# What has long files, and waits for processes; the many short files behind it fill the gaps in the end.
LONGEST_FIRST: Final = (
    "tests/crash", "tests/install", "tests/spark", "tests/abuse", "tests/client", "tests/log", "tests/protocols", "tests/interop",
    "tests/net", "tests/turns", "tests/flight", "tests/cli", "tests/test_",
)  # fmt: skip

# `make test` sees the same few examples each time; `make campaign` many new ones. A property whose decorator names a number keeps it.
# No deadline: without this every example has 200 ms of wall time, which a busy machine takes for nothing.
hypothesis.settings.register_profile("test", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.register_profile("campaign", deadline=None, max_examples=2_000)
hypothesis.settings.load_profile("campaign" if os.environ.get("QUINTET_TEST_LONG") else "test")

gc.disable()  # until all is collected: hardly anything that an import makes is garbage

# A shell starts background jobs with SIGINT ignored; programs that tests start and interrupt would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)  # keeps the order of those with the same turn


def pytest_collection_finish() -> None:
    """The 850,000 objects of the collection live as long as the process: no later search for garbage looks at them."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # duckdb lists all it has as leaked when it is never torn down


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Groups(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out whole groups."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    return Groups(config, log)


@cache
def group_of(file: str) -> str:
    """What is run in one process: a file, or all files that share a session of Spark."""
    if not file.startswith("tests/spark/") or not SHARES_SESSION.search((ROOT / file).read_text()):
        return file
    return "spark 2" if file >= SECOND_SESSION_FROM else "spark 1"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that hands out the tests: who ran which file."""
    worker = getattr(report, "worker_id", None)
    if worker is not None:
        _ran_by.setdefault(report.nodeid.partition("::")[0], set()).add(worker)


def pytest_sessionfinish(session: pytest.Session) -> None:
    torn = {file: sorted(workers) for file, workers in _ran_by.items() if len(workers) > 1}
    if torn and session.config.getvalue("dist") == "loadscope":
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        sys.stderr.write(f"\nfiles that were run by several processes, although their tests share a broker: {torn}\n")


def _turn(item: pytest.Item) -> int:
    file = item.nodeid.partition("::")[0]
    if group_of(file) != file or file in ("tests/crash/test_spark.py", "tests/spark/test_cluster.py"):
        return -1
    folders = (turn for turn, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder))
    return next(folders, len(LONGEST_FIRST))
