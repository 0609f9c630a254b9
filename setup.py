"""Writes the blocking client before it is packed or installed; everything else about the build is in pyproject.toml."""

import runpy
from pathlib import Path

from setuptools import setup

runpy.run_path(str(Path(__file__).parent / "src/quintet/client/blocking/generate.py"), run_name="__main__")
setup()
