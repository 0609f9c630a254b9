"""Makes empty virtual environments that hold the built wheel and exactly what one of its extras brings.

`installed` asks the package index, as a user's pip does, with the locked versions. Where there is no index, and for Spark,
which is 450 MB, `linked` takes the same packages from the environment of the tests: it follows what the wheel and each
package declare, and links their files. What nobody declares is in neither.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from email import message_from_string
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import wheels

ROOT: Final = Path(__file__).parents[2]
UV: Final = str(Path(sys.executable).with_name("uv"))
LOCK: Final = ROOT / "requirements" / "spark.txt"
COMMAND_S: Final = 60.0
INSTALL_S: Final = 100.0
NO_INDEX: Final = re.compile(r"failed to fetch|error sending request|dns error|connect|network|offline", re.IGNORECASE)


class NoIndex(Exception):
    """No package index answers."""


@dataclass(frozen=True)
class Environment:
    """A Python of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return next((self.folder / "lib").glob("python*")) / "site-packages"

    def run(
        self, *command: str, timeout: float = COMMAND_S, stdin: str = "", **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """A program of this environment (`quintet`, `python`), in an empty folder that knows nothing of the checkout."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "QUINTET_"))}
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=home,
            env={**inherited, "NO_COLOR": "1", "VIRTUAL_ENV": str(self.folder), **environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


def build(folder: Path) -> tuple[Path, Path]:
    """(source distribution, wheel) as they are published; the wheel is without the native kernel, and built from the other. From a
    copy, so that nothing left of other builds is in them, and no blocking client but the one that the build writes."""
    source, out = folder / "source", folder / "dist"
    skipped = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", "target", "sync.py")
    for name in ("src", "kernel"):
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    wheel = wheels.build_pure(out, source)
    (archive,) = out.glob("*.tar.gz")
    return archive, wheel


def build_without_rust(archive: Path, folder: Path) -> Path:
    """The wheel that pip makes of a source distribution on a machine that has no Rust."""
    (folder / "no-rust").mkdir(parents=True)
    _uv(
        *("build", "--wheel", "--no-build-isolation", "--offline", "-o", str(folder), str(archive)),
        PATH=os.pathsep.join([str(folder / "no-rust"), "/usr/bin", "/bin"]),
        CARGO="no-rust",
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def native_kernel() -> Path | None:
    """The kernel as this checkout built it, if it did."""
    return next((ROOT / "src" / "quintet" / "kernel").glob("_native*.so"), None)


def installed(wheel: Path, folder: Path, extra: str) -> Environment:
    """From the index. NoIndex: none answers."""
    made = _empty(folder)
    wanted = f"quintet{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"
    _uv("pip", "install", "--python", str(made.python), "-c", str(LOCK), wanted)
    return made


def linked(wheel: Path, folder: Path, extra: str) -> Environment:
    """From the environment of the tests."""
    made = _empty(folder)
    _uv("pip", "install", "--python", str(made.python), "--no-deps", "--offline", str(wheel))
    for name in closure(wheel, extra):
        for file in metadata.distribution(name).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                _link(Path(file.locate()), made.packages / file)
                compiled = Path(cache_from_source(str(file.locate())))
                if file.suffix == ".py" and compiled.exists():
                    _link(compiled, made.packages / file.parent / "__pycache__" / compiled.name)
    return made


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.resolve())


def closure(wheel: Path, extra: str) -> set[str]:
    """Every distribution that installing the wheel with the extra brings, the wheel itself left out."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        declared = message_from_string(archive.read(name).decode()).get_all("Requires-Dist", [])
    found: set[tuple[str, str]] = set()
    waiting = {each for part in ("", *extra.split(",")) for each in _wanted(declared, part)}
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting |= _wanted(metadata.distribution(each[0]).requires or [], each[1])
    return {name for name, _ in found}


def _wanted(lines: list[str], extra: str) -> set[tuple[str, str]]:
    """(distribution, extra of it) of the lines that count here."""
    wanted = [Requirement(line) for line in lines]
    counting = [each for each in wanted if each.marker is None or each.marker.evaluate({"extra": extra})]
    return {(canonicalize_name(each.name), part) for each in counting for part in ("", *each.extras)}


def _empty(folder: Path) -> Environment:
    _uv("venv", "--python", sys.executable, str(folder))
    return Environment(folder)


def _uv(*arguments: str, **environment: str) -> None:
    done = subprocess.run(
        [UV, arguments[0], "-q", *arguments[1:]],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode and NO_INDEX.search(done.stderr) and "--offline" not in arguments:
        raise NoIndex(done.stderr.strip())
    assert done.returncode == 0, f"uv {' '.join(arguments)}\n{done.stderr}"
