"""Sends this package to the Python processes of a cluster: one zip, unpacked by Spark where they look first.

It is sent as an archive and not as a Python file, since a library of machine code cannot be loaded out of a zip: unpacked,
the native kernel travels too, and an executor of another platform or Python uses the pure twin. The packages in NEEDED do not
travel: the executors' Python has them, and nothing else but Python's own library and the pyspark that the cluster brings.

Spark also plans on the driver's machine with the executors' Python (PYSPARK_PYTHON), in processes of its own. Those of a stream
look for files in a folder of their session, where no archive is unpacked. PYTHONPATH of their environment reaches all of them:
it names the folder in which the driver unpacked this package, and none of the driver's other packages, which are another Python's.
"""

import contextlib
import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import quintet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUFFIXES: Final = (".py", ".so", ".pyd", ".typed", ".properties")
STAMP: Final = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip
ARCHIVES_KEPT_MAX: Final = 3
NEEDED: Final = ("pyarrow", "msgspec", "numpy")  # all that a reader or a writer imports from others, pyspark aside
PYTHONPATH: Final = "PYTHONPATH"


def send(spark: "SparkSession", cache: Path) -> None:
    """Let every Python process of a session's cluster import this package; once, however often it is called. Before the first
    data source is registered: what Spark is given then keeps the environment of that moment."""
    from pyspark import SparkFiles

    context = spark.sparkContext
    environment: MutableMapping[str, str] = context.environment
    here, before = SparkFiles.getRootDirectory(), environment.get(PYTHONPATH, "")
    if here not in before.split(os.pathsep):
        context.addArchive(archive(cache))  # the driver unpacks it for itself, too
        environment[PYTHONPATH] = f"{here}{os.pathsep}{before}" if before else here


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
