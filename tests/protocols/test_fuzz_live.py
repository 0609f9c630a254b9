"""The fuzz targets of live Felix and peerbus sessions as tests: short runs hold, planted faults are found. Long: `make fuzz`."""

import subprocess
import sys
from pathlib import Path

import pytest

TARGETS = Path(__file__).parents[2] / "fuzz"


def run(target: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TARGETS / target), "--seed", "4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("felix_live.py", ("--frames", "5000")),
        ("peer_codec.py", ("--frames", "10000", "--live", "4000")),
    ],
)
def test_a_short_run_holds(target: str, arguments: tuple[str, ...]) -> None:
    done = run(target, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        ("felix_live.py", ("--frames", "5000", "--sabotage")),
        ("peer_codec.py", ("--frames", "10000", "--live", "0", "--sabotage")),
        ("peer_codec.py", ("--frames", "0", "--live", "4000", "--sabotage", "live")),
    ],
)
def test_the_planted_fault_is_found(target: str, arguments: tuple[str, ...]) -> None:
    done = run(target, *arguments)
    assert (done.returncode, "planted fault caught" in done.stdout) == (0, True), done.stdout + done.stderr
