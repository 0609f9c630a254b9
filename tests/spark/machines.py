"""Names how the tests start Spark's Java: flags for a short life, and one archive of loaded classes that all of them share.

The archive saves each start a third of its processor time. `make setup` for tests records it (Makefile, .stamp-archive); without it
the first session records one when it ends. It lives in the virtual environment and goes with it.
"""

import sys
from pathlib import Path
from typing import Final

from quintet.spark.sessions import launch

# The first compiler and the plain collector: a JVM that lives for a minute never earns back the better ones.
QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
MEMORY: Final = "1g"  # the heap is part of the archive's key, so sessions that share the archive have the same
CACHE: Final = Path(sys.prefix) / "cache"
START_S: Final = 400  # the longest that a program with a JVM of its own takes, on a busy machine


def archived() -> str:
    """Flags for a JVM that Spark's own scripts start. If its class path differs, Java leaves the archive aside."""
    found = sorted(CACHE.glob("quintet/spark/*.jsa"), key=lambda file: file.stat().st_mtime_ns)
    return " ".join((QUICK, *launch.SILENCE, *(f"-XX:SharedArchiveFile={file}" for file in found[-1:])))


def without_archives(cache: Path) -> None:
    """Let no session with this cache folder write an archive."""
    (cache / "quintet").mkdir()
    (cache / "quintet" / "spark").write_text("a file in the place of the folder of archives")
