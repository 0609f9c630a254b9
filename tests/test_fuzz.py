"""The fuzz targets as tests: a short run of each half holds, and the fault it plants is found. Long runs: `make fuzz`."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# (protocol, half) -> frames of a short run
SHORT = {
    ("blipmq", "codec"): 4_000,
    ("blipmq", "live"): 2_000,
    ("fast", "codec"): 4_000,
    ("fast", "live"): 2_000,
    ("felix", "codec"): 4_000,
    ("felix", "live"): 5_000,
    ("flymq", "codec"): 2_500,
    ("flymq", "live"): 2_000,
    ("peerbus", "codec"): 2_500,
    ("peerbus", "live"): 2_000,
    ("records", "codec"): 1_000,
    ("records", "live"): 400,
}
pytestmark = pytest.mark.parametrize(("name", "half"), SHORT)


def run(name: str, half: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    frames = {"codec": 0, "live": 0} | {half: SHORT[name, half]}
    counts = ("--frames", str(frames["codec"]), "--live", str(frames["live"]))
    command = [sys.executable, "-m", "fuzz", name, *counts, "--seed", "4", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_short_run_holds(name: str, half: str) -> None:
    done = run(name, half)
    assert (done.returncode, "verdict: all invariants held" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_planted_fault_is_found(name: str, half: str) -> None:
    done = run(name, half, "--sabotage", half)
    assert (done.returncode, "planted fault caught" in done.stdout) == (0, True), done.stdout + done.stderr
