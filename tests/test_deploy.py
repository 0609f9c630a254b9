"""The systemd unit is one that systemd accepts, and gives the drain the time it is promised."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from quintet.config import Settings

UNIT = Path(__file__).parent.parent / "deploy" / "quintet.service"


def test_systemd_accepts_the_unit() -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed: the unit was not checked")
    done = subprocess.run([analyze, "verify", str(UNIT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_waits_longer_than_the_drain() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    assert int(found[1]) > Settings.load(None, {}, {}).drain_timeout_seconds
