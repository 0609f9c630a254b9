"""The fuzz targets of the kernel as tests: a short run holds, and the fault each plants is found. Long runs: `make fuzz`."""

import subprocess
import sys
from pathlib import Path

import pytest

TARGETS = Path(__file__).parents[2] / "fuzz"

pytestmark = pytest.mark.parametrize("target", ["felix_codec.py"])


def run(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TARGETS / target), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_short_run_holds(target: str) -> None:
    done = run(target, "--frames", "30000", "--seed", "4")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_planted_fault_is_found(target: str) -> None:
    done = run(target, "--frames", "30000", "--seed", "4", "--sabotage")
    assert (done.returncode, "planted fault caught" in done.stdout) == (0, True), done.stdout + done.stderr
