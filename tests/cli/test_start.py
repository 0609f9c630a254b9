"""What `quintet serve` imports until it is ready: a start is made of imports, so this is its cost without a clock.

`bench/start.py` measures the rest, and bench/README.md has the figures.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.protocols.doors import DOORS

# Module -> why a broker that starts on an empty folder has no use for it, with all doors open.
LATE = {
    "uvicorn": "serves the first who asks for health or figures",
    "h11": "comes with uvicorn",
    "fastapi": "describes the admin door to who asks; probes and metrics do without",
    "starlette": "comes with fastapi",
    "pydantic.v1": "comes with fastapi",
    "prometheus_client": "renders the figures for the first who asks",
    "structlog": "draws log lines for a terminal, and tracebacks",
    "rich": "tables and progress of commands; comes with structlog too",
    "jwt": "verifies tokens: no secret is configured",
    "urllib.request": "comes with jwt",
    "importlib.metadata": "finds plugins of pydantic: none are wanted",
    "email.message": "comes with importlib.metadata",
    "zipfile": "comes with importlib.metadata",
    "tomllib": "reads a configuration file: there is none",
    "argon2": "hashes and verifies passwords: nobody has one",
    "pyarrow.compute": "sorts rows that are written through the Flight door",
    "jsonschema": "validates what has a schema",
    "fastavro": "validates what has a schema",
    "google.protobuf": "validates what has a schema",
    "aioquic": "speaks QUIC where the kernel is not native",
    "quintet.kernel.pure": "stands in where the kernel is not native",
    "opentelemetry": "exports spans: no collector is configured",
    "quintet.otlp": "exports spans: no collector is configured",
    "quintet.client": "is the other side",
    "quintet.bench": "is the other side",
    "pytest": "would mean that this test does not look at a broker of its own",
}
OF_THE_PURE_KERNEL = {"aioquic", "quintet.kernel.pure"}
# Not counted: what differs between Pythons, and Arrow, which has 10 modules with numpy's 80 or without.
NOT_COUNTED = sys.stdlib_module_names | {"pyarrow", "numpy", "aioquic"}
MODULES_MAX = 410


def imported(folder: Path, **settings: str) -> set[str]:
    """Every module that a broker has loaded when it says that it is ready."""
    ports = {f"QUINTET_LISTENERS__{door.key.upper()}__PORT": "0" for door in DOORS}
    ports |= {"QUINTET_LISTENERS__FLIGHT__PORT": "0", "QUINTET_LISTENERS__ADMIN__PORT": "0"}
    errors = folder / "stderr"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "quintet", "serve", "--data", "data", "--print-ready"],
            stdout=subprocess.PIPE, stderr=stderr, cwd=folder, env=os.environ | ports | settings,
        ) as broker,
    ):  # fmt: skip
        assert broker.stdout is not None
        ready = broker.stdout.readline()
        broker.send_signal(signal.SIGKILL)
    said = errors.read_text()
    assert ready, said[-2000:]
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", said, re.MULTILINE))


def heavy(modules: set[str]) -> set[str]:
    return {late for late in LATE if late in modules or any(module.startswith(f"{late}.") for module in modules)}


def test_a_start_imports_nothing_that_can_wait(tmp_path: Path) -> None:
    modules = imported(tmp_path)
    assert {"quintet.server", "quintet.protocols.felix.session", "uvloop", "msgspec"} <= modules  # it was a start
    pure = "quintet.kernel._native" not in modules
    assert heavy(modules) - (OF_THE_PURE_KERNEL if pure else set()) == set(), (
        "see LATE for why they should not be there"
    )
    counted = {module for module in modules if module.partition(".")[0] not in NOT_COUNTED}
    assert len(counted) <= MODULES_MAX, "something new comes with every start: import it where it is needed"


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"QUINTET_LOG__FORMAT": "console"}, {"structlog", "rich"}),
        ({"QUINTET_PURE": "1"}, {"quintet.kernel.pure"}),
    ],
    ids=["console", "pure"],
)
def test_what_is_needed_is_imported_and_seen(tmp_path: Path, settings: dict[str, str], found: set[str]) -> None:
    """A control: these need it."""
    assert found <= heavy(imported(tmp_path, **settings))
