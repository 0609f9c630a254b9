"""`python -m fuzz PROTOCOL --frames N --live N --seed S`: runs the fuzz target of one protocol (driver.py says how)."""

import importlib
import sys
from pathlib import Path

from fuzz import driver

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if "\nFUZZER = " in path.read_text())

if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
    sys.exit(f"usage: python -m fuzz {{{','.join(NAMES)}}} [--help]")
sys.exit(driver.main(sys.argv[1], importlib.import_module(f"fuzz.{sys.argv[1]}").FUZZER, sys.argv[2:]))
