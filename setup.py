"""Writes the blocking client before it is packed or installed, and says how the kernel is built; the rest is in pyproject.toml.

Without Rust the kernel's build fails, and the install goes on with the pure twin. QUINTET_PURE=1 does not try: such a wheel is
for every platform.
"""

import os
import runpy
from pathlib import Path

from setuptools import setup
from setuptools_rust import Binding, RustExtension

runpy.run_path(str(Path(__file__).parent / "src/quintet/client/blocking/generate.py"), run_name="__main__")
kernel = RustExtension("quintet.kernel._native", "kernel/Cargo.toml", binding=Binding.PyO3, optional=True, debug=False)
setup(rust_extensions=[] if os.environ.get("QUINTET_PURE") else [kernel])
