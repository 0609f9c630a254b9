"""The import rules of pyproject.toml hold, and each of them is seen to fail when it is broken."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]

# Contract -> a file that breaks it. Imports hidden in functions count too.
PLANTED = {
    "layers": ("kernel/planted.py", "def hidden() -> None:\n    import quintet.model.limits\n"),
    "broker": ("broker/audit/planted.py", "import quintet.broker.core\n"),
    "files": ("log/embedded/files/planted.py", "import quintet.log.embedded.engine\n"),
    "cells": ("log/replicated/records.py", "import quintet.log.replicated.engine\n"),
    "side": ("model/planted.py", "import quintet.client\n"),
    "doors": ("protocols/planted/__init__.py", "import quintet.protocols.blipmq.codec\n"),
    "sans-io": ("broker/planted.py", "import time\n"),
    "commands": ("cli/planted.py", "import quintet.delivery\n"),
    "spark": ("spark/planted.py", "import quintet.flight.server\n"),
    "client": ("client/planted.py", "import quintet.protocols.blipmq.session\n"),
}


def lint(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and words of import-linter over folder/src by folder/pyproject.toml."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "COLUMNS": "200", "NO_COLOR": "1"}
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(
        [*command, "--no-cache", "--config", str(folder / "pyproject.toml"), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_line_is_straight() -> None:
    code, words = lint(ROOT)
    assert code == 0, words


def test_every_contract_has_a_control() -> None:
    assert {contract["id"] for contract in CONTRACTS} == set(PLANTED)


def test_planted_violations_are_reported(copy: Path) -> None:
    for place, text in PLANTED.values():
        file = copy / "src" / "quintet" / place
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'"""Planted."""\n\n{text}')
    code, words = lint(copy)
    assert code == 1
    for contract in CONTRACTS:
        assert f"{contract['name']} BROKEN" in words, words
    for place, _ in PLANTED.values():
        module = place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert f"quintet.{module} -> " in words, f"{module} is not named\n{words}"


def test_a_module_outside_the_layers_is_reported(copy: Path) -> None:
    (copy / "src" / "quintet" / "planted.py").write_text('"""Planted."""\n')
    code, words = lint(copy)
    assert code == 1
    assert "planted" in words


@cache
def statements(source: str) -> list[ast.Import | ast.ImportFrom]:
    """All imports of a module; of a copy of it, too: to parse the package takes two seconds."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(root: Path) -> dict[str, set[str]]:
    """Module -> the modules of `root` it names in any import statement, wherever that stands."""
    files = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found: dict[str, set[str]] = {}
    for module, path in files.items():
        named = found[module] = set()
        for node in statements(path.read_text()):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            else:
                assert node.module is not None and not node.level, f"{path}:{node.lineno}: a relative import"
                wholes = [f"{node.module}.{alias.name}" for alias in node.names]
                named |= {whole if whole in files else node.module for whole in wholes}
        named &= files.keys() - {module}
    return found


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules of which each is imported by each other, directly or not."""
    reached = {module: _reachable(graph, module) for module in graph}
    found: list[set[str]] = []
    for module in sorted(graph):
        circle = {other for other in reached[module] if module in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert cycles(imports(ROOT / "src")) == []


def test_a_planted_circle_is_found(copy: Path) -> None:
    folder = copy / "src" / "quintet" / "net"
    hidden = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from quintet.net.planted_b import B\n"
    (folder / "planted_a.py").write_text(hidden)
    (folder / "planted_b.py").write_text("def b() -> None:\n    from quintet.net import planted_c\n")
    (folder / "planted_c.py").write_text("import quintet.net.planted_a\n")
    planted = {f"quintet.net.planted_{letter}" for letter in "abc"}
    assert planted in cycles(imports(copy / "src"))
