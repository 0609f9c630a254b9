"""docs/DEPENDENCIES.md and pyproject.toml name the same packages, and every lock line has a hash and no address."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def declared() -> set[str]:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lists = [
        tree["project"]["dependencies"],
        *tree["project"]["optional-dependencies"].values(),
        *tree["dependency-groups"].values(),
        list(tomllib.loads((ROOT / "kernel" / "Cargo.toml").read_text())["dependencies"]),
    ]
    return {re.split(r"[\s<>=;\[]", line, maxsplit=1)[0] for lines in lists for line in lines}


def documented() -> set[str]:
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs" / "DEPENDENCIES.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    return {name.strip() for row in rows for name in row.split(",")} - {"package", "crate"}


def test_every_dependency_has_its_reason() -> None:
    assert documented() == declared()


@pytest.mark.parametrize("name", ["server.txt", "dev.txt"])
def test_locks_are_hashed_and_go_to_any_index(name: str) -> None:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    pinned = [number for number, line in enumerate(lines) if re.match(r"[a-z0-9][\w.-]*==", line)]
    assert len(pinned) > 20
    assert all(lines[number + 1].startswith("    --hash=sha256:") for number in pinned)
    assert [line for line in lines if not re.match(r"[a-z0-9][\w.-]*==|    --hash=sha256:", line)] == []


def test_locks_hold_what_is_declared() -> None:
    tree = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = set(re.findall(r"^([a-z0-9][\w.-]*)==", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE))
    crates = set(tomllib.loads((ROOT / "kernel" / "Cargo.toml").read_text())["dependencies"])
    assert declared() - crates - locked == set()
    assert "setuptools-rust" in (ROOT / "requirements" / "server.txt").read_text()
    assert tree["build-system"]["requires"] == tree["dependency-groups"]["build"], "the build uses what is locked"
