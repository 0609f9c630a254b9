"""What every test gets: an environment without the developer's own QUINTET_ variables, and a process to run in.

`make test` runs some processes of tests (pytest-xdist, --dist loadscope). A file stays together, for the broker that its
tests share; the files that need a Spark session are one group, as are those that share a Kafka. What takes longest is begun
first, so that no process works alone in the end, and files that wait take turns with files that compute, so that few processes
wait at the same time. Plain `pytest` runs all in one process. The groups are made here, by a scheduler of our own: xdist's marks
for groups have no effect with pytest 9.2 (it sets an attribute of tests that nobody reads any more). So a run in which a file
was torn between two processes fails.
"""

import atexit
import gc
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
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
SHARES_KAFKA: Final = re.compile(r"(?:def test_\w+|fixture\b.*\ndef \w+)\(servers: str\b")
# What has long files and waits most of its time, for programs and for time-outs of the broker, takes turns with what keeps a core busy; the many
# short files behind both fill the gaps in the end. The longest files are named, longest first (pytest --durations=150): one that
# is begun late keeps one process busy when the others have nothing left.
WAITING: Final = (
    "tests/spark/test_cluster.py", "tests/install", "tests/spark/test_lake_objects.py", "tests/spark/test_programs.py", "tests/crash/test_kafka_disks.py",
    "tests/crash/test_spark.py", "tests/crash/test_kafka_trouble.py", "tests/crash/test_doors.py", "tests/abuse/test_felix_quic_abuse.py",
    "tests/spark/test_lake.py", "tests/crash", "tests/spark", "tests/abuse", "tests/interop", "tests/console", "tests/client", "tests/turns", "tests/flight", "tests/cli",
    "tests/telemetry",
)  # fmt: skip
COMPUTING: Final = ("tests/test_", "tests/log", "tests/kernel", "tests/protocols", "tests/net", "tests/broker")

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
    turns = turns_of(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
    items.sort(key=lambda item: turns[item.nodeid.partition("::")[0]])  # keeps the order of those with the same turn


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
    """What is run in one process: a file, or all files that share a session of Spark, or a Kafka."""
    if file.startswith("tests/crash/") and SHARES_KAFKA.search((ROOT / file).read_text()):
        return "kafka"
    if not file.startswith("tests/spark/") or not SHARES_SESSION.search((ROOT / file).read_text()):
        return file
    return "spark"


def turns_of(files: Iterable[str]) -> dict[str, float]:
    """When each file is begun: groups first, then those that wait and those that compute, evenly mixed, then the others."""
    kinds: list[list[str]] = [[], [], [], []]
    for file in files:
        if group_of(file) != file:
            kinds[0].append(file)
        else:
            kinds[1 if file.startswith(WAITING) else 2 if file.startswith(COMPUTING) else 3].append(file)
    kinds[1].sort(key=lambda file: [file.startswith(folder) for folder in WAITING], reverse=True)
    kinds[2].sort(key=lambda file: [file.startswith(folder) for folder in COMPUTING], reverse=True)
    turns = {file: -1.0 for file in kinds[0]} | {file: 1.0 for file in kinds[3]}
    for kind in kinds[1:3]:
        turns |= {file: place / len(kind) for place, file in enumerate(kind)}
    return turns


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
