"""Sends this package to the executors of a cluster: one zip, unpacked by Spark where Python workers look first.

It is sent as an archive and not as a Python file, since a library of machine code cannot be loaded out of a zip: unpacked,
the native kernel travels too, and an executor of another platform or Python uses the pure twin. The packages it needs
(pyarrow, msgspec) do not travel: executors have them, as they have pyspark's own.
"""

import contextlib
import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Final

import quintet

SUFFIXES: Final = (".py", ".so", ".pyd", ".typed", ".properties")
STAMP: Final = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip
ARCHIVES_KEPT_MAX: Final = 3


def archive(cache: Path) -> str:
    """The zip of this package, made if it is not there yet, with the folder name that Spark is to unpack it to."""
    root = Path(quintet.__file__).parent
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as into:
        for file in sorted(root.rglob("*")):
            if file.suffix in SUFFIXES and "__pycache__" not in file.parts:
                into.writestr(zipfile.ZipInfo(file.relative_to(root).as_posix(), STAMP), file.read_bytes())
    content = packed.getvalue()
    target = cache / "travel" / f"quintet-{quintet.__version__}-{digest(content)}.zip"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        place(target, content, 0o644)
        _sweep(target.parent)
    return f"{target}#quintet"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def place(target: Path, content: bytes, mode: int) -> None:
    """Write a file that others see whole or not at all."""
    number, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _sweep(folder: Path) -> None:
    ages = sorted(folder.glob("*.zip"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    for file in ages[ARCHIVES_KEPT_MAX:]:
        file.unlink(missing_ok=True)
