"""docs/DEPENDENCIES.md and pyproject.toml name the same packages, and every lock line has a hash and no address."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def crates() -> set[str]:
    """Of the kernel, those of one platform among them."""
    tree = tomllib.loads((ROOT / "kernel" / "Cargo.toml").read_text())
    return {*tree["dependencies"], *(name for target in tree["target"].values() for name in target["dependencies"])}


def declared() -> set[str]:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [
        tree["project"]["dependencies"],
        *tree["project"]["optional-dependencies"].values(),
        *tree["dependency-groups"].values(),
    ]
    return crates() | {re.split(r"[\s<>=;\[]", line, maxsplit=1)[0] for lines in lists for line in lines}


def documented() -> set[str]:
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs" / "DEPENDENCIES.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    return {name.strip() for row in rows for name in row.split(",")} - {"package", "crate"}


def test_every_dependency_has_its_reason() -> None:
    assert documented() == declared()


EXTRAS = r"(?:\[[\w,-]+\])?"  # pip takes a package with extras for another one: it must be pinned with them


def locked(name: str) -> dict[str, str]:
    """Package -> what stands after ==, of one lock file. A package may stand there once per Python version."""
    text = (ROOT / "requirements" / name).read_text()
    pins: dict[str, str] = {}
    for package, version in re.findall(rf"^([a-z0-9][\w.-]*){EXTRAS}==(.*?) *\\$", text, re.MULTILINE):
        pins[package] = f"{pins[package]} {version}" if package in pins else version
    return pins


@pytest.mark.parametrize("name", ["server.txt", "dev.txt", "spark.txt", "tools.txt", "images.txt"])
def test_locks_are_hashed_and_go_to_any_index(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    pinned = [number for number, line in enumerate(lines) if re.match(rf"[a-z0-9][\w.-]*{EXTRAS}==", line)]
    assert len(pinned) >= 20
    assert all(lines[number + 1].startswith("    --hash=sha256:") for number in pinned)
    assert [line for line in lines if not re.match(rf"[a-z0-9][\w.-]*{EXTRAS}==|    --hash=sha256:", line)] == []


def test_locks_hold_what_is_declared() -> None:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    kept = [set(locked(name)) for name in ("spark.txt", "tools.txt", "images.txt")]
    assert declared() - crates() - set().union(*kept) == set()
    assert "setuptools-rust" in locked("server.txt")
    assert tree["build-system"]["requires"] == tree["dependency-groups"]["build"], "the build uses what is locked"


def test_the_larger_lock_replaces_nothing_of_the_smaller() -> None:
    """`make test` installs spark.txt over dev.txt: a version that differs would be installed twice at every change."""
    whole = locked("spark.txt")
    for name in ("server.txt", "dev.txt"):
        versions = {package: version.partition(" ")[0] for package, version in locked(name).items()}
        assert {package for package, version in versions.items() if version not in whole[package]} == set()
