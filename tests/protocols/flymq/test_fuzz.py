"""The fuzz target as a test: a short run holds, and the fault it plants is found. Long runs: `make fuzz`."""

import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).parents[3] / "fuzz" / "fly_codec.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TARGET), *arguments], capture_output=True, text=True, check=False)


def test_a_short_run_holds() -> None:
    done = run("--frames", "10000", "--live", "10000", "--seed", "4")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_planted_fault_is_found() -> None:
    done = run("--frames", "10000", "--live", "0", "--seed", "4", "--sabotage")
    assert (done.returncode, "planted fault caught" in done.stdout) == (0, True), done.stdout + done.stderr
