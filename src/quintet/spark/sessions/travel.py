"""Sends this package to the Python processes of a cluster, as one zip that Spark unpacks in their import path.

It is sent as an archive and not as a Python file, because a shared library cannot be loaded from a zip. Unpacked, the native kernel can
be used; an executor of another platform or Python uses the pure twin. The packages in NEEDED are not sent: the executors' Python must
have them. It needs nothing else but the standard library and the pyspark of the cluster.

Spark also plans on the driver's machine with the executors' Python (PYSPARK_PYTHON), in separate processes. Those of a stream look for
files in a folder of their session, where archives are not unpacked. PYTHONPATH in the environment reaches all of these processes: it
names the folder in which the driver unpacked this package. The driver's other packages are not in it: they may be for another Python.
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
STAMP: Final = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same files make the same zip
ARCHIVES_KEPT_MAX: Final = 3
NEEDED: Final = ("pyarrow", "msgspec", "numpy")  # all packages that readers and writers import, except pyspark
PYTHONPATH: Final = "PYTHONPATH"


def send(spark: "SparkSession", cache: Path) -> None:
    """Let every Python process of a session's cluster import this package. A second call does nothing. Must be called before the first
    data source is registered, because Spark keeps the environment of that moment for it."""
    from pyspark import SparkFiles

    context = spark.sparkContext
    environment: MutableMapping[str, str] = context.environment
    here, before = SparkFiles.getRootDirectory(), environment.get(PYTHONPATH, "")
    if here not in before.split(os.pathsep):
        context.addArchive(archive(cache))  # Spark unpacks it on the driver, too
        environment[PYTHONPATH] = f"{here}{os.pathsep}{before}" if before else here


def archive(cache: Path) -> str:
    """The path of the zip of this package, made if necessary, with the name of the folder into which Spark unpacks it."""
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
    """Write a file atomically."""
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
