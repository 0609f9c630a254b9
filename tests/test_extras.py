"""The table of optional packages is that of pyproject.toml, and every module loads with what its users have installed.

The second half imports modules in a Python that has nothing but the packages an extra brings, those that they bring included.
tests/install tries the same with real environments.
"""

import ast
import itertools
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from quintet.cli.main import EXTRAS as FIRST_NAMED
from quintet.cli.main import cli
from quintet.model import extras

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED: Final[dict[str, list[str]]] = PROJECT["optional-dependencies"]


@cache
def providers() -> Mapping[str, list[str]]:
    """Top-level module -> distributions; Python reads the lists of files of all that are installed each time, 0.33 s."""
    return metadata.packages_distributions()


def distribution(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


# -- the table --------------------------------------------------------------------------------------------------------


def test_the_table_names_the_extras_that_bring_a_package() -> None:
    declared: dict[str, set[str]] = {}
    for extra, lines in DECLARED.items():
        for line in lines:
            declared.setdefault(distribution(line), set()).add(extra)
    known = {package.distribution: set(package.extras) for package in extras.PACKAGES.values()}
    assert known == declared


def test_the_table_knows_packages_by_the_names_they_are_imported_by() -> None:
    owners_of = providers()
    for name, package in extras.PACKAGES.items():
        found = {canonicalize_name(each) for each in owners_of.get(name.partition(".")[0], ())}
        assert package.distribution in found or name in ("pydantic_core", "py4j"), f"{name} is of {found}"


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"), path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_every_import_is_pythons_own_a_dependency_or_in_the_table() -> None:
    always = roots({distribution(line) for line in PROJECT["dependencies"]})
    own = {"quintet", "pyspark_quintet", "pyspark_quintet_lake", *sys.stdlib_module_names, "compression", *always}
    for module, path in modules():
        for name in imported(path):
            assert name.partition(".")[0] in own or extras.package_of(name), f"{module} imports {name}"


@pytest.mark.parametrize("command", sorted(FIRST_NAMED))
def test_commands_name_extras_that_there_are(command: str) -> None:
    assert FIRST_NAMED[command] in DECLARED
    assert command in cli.commands or cli.get_command(None, command)  # type: ignore[arg-type]  # ours needs no context


# -- what loads with what ---------------------------------------------------------------------------------------------


def closure(extra: str) -> set[str]:
    """The distributions that `pip install quintet[extra]` brings, by what they declare."""
    waiting = [
        (line, "")
        for line in [*PROJECT["dependencies"], *(line for each in extra.split(",") for line in DECLARED.get(each, ()))]
    ]
    found: set[tuple[str, str]] = set()
    while waiting:
        wanted, part = Requirement(waiting[-1][0]), waiting.pop()[1]
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": part}):
            continue
        for inner in ("", *wanted.extras):
            name = canonicalize_name(wanted.name)
            if (name, inner) not in found:
                found.add((name, inner))
                waiting += [(line, inner) for line in metadata.distribution(name).requires or ()]
    return {name for name, _ in found}


def roots(names: set[str]) -> set[str]:
    """The top-level modules of these distributions."""
    owners_of = providers()
    return {root for root, owners in owners_of.items() if names & {canonicalize_name(each) for each in owners}}


# Imports modules and says which could not be; what is in `absent` is not installed.
LOADER: Final = """
import importlib, importlib.abc, json, sys

absent, wanted = json.load(sys.stdin)


class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
failed = {}
for module in wanted:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        failed[module] = error.name
json.dump(failed, sys.stdout)
"""


def failures(extra: str, wanted: list[str]) -> dict[str, str]:
    assert wanted, "nothing is tried"
    absent = set(providers()) - roots({*closure(extra), "quintet"})
    done = subprocess.run(
        [sys.executable, "-c", LOADER],
        input=json.dumps([sorted(absent), wanted]),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


# extra -> the modules that it is enough for, as a pattern
ENOUGH: Final = {
    "": r"quintet\.(cli|client|bench|model|kernel)\b(?!\.links\.peerbus_ws|\.agents\.mcp|\.spans|\.traced|\._native).*|quintet|quintet\.spark"
    r"|quintet\.protocols\.\w+\.(codec|frames)",
    "peerbus": r"quintet\.client\.(?!agents\.mcp|spans|traced).*",
    "mcp": r"quintet\.client\.(?!spans|traced).*",
    "otel": r"quintet\.client\.(spans|traced)",
    "faststream": r"quintet\.faststream(?!\.opentelemetry).*",
    "faststream,otel": r"quintet\.faststream.*",
    "felix": r"quintet\.net\.quic\.twin",
    "compression": r"quintet\.model\.zstd",
    "flight": r"quintet\.spark\.source\.connection|quintet\.flight\.(wire|columns)",
    "spark": r"pyspark_quintet.*|quintet\.spark\b(?!\.lake\.(delta|iceberg|conversion)).*",
    "spark,lake": r"quintet\.spark\.lake\..*",
    "server": r"quintet\.(?!spark|faststream|bench|testing|flight|__main__|client\.blocking\.generate|client\.agents\.mcp|client\.(spans|traced)).*",
}
NEEDS_ANOTHER: Final = {
    "quintet.client.links.peerbus_ws",
    "quintet.model.sections",  # by the broker, whose options are made of it
    "quintet.model.zstd",
}  # loaded where they are used, with a sentence


@pytest.mark.parametrize("extra", sorted(ENOUGH))
def test_modules_load_with_what_an_extra_brings(extra: str) -> None:
    wanted = [module for module, _ in modules() if re.fullmatch(ENOUGH[extra], module)]
    failed = failures(extra, [module for module in wanted if extra or module not in NEEDS_ANOTHER])
    assert failed == {}


def test_the_loader_finds_a_module_that_needs_more() -> None:
    """A control: these three do, whatever else is right."""
    found = failures("", ["quintet.server", "quintet.client.links.peerbus_ws", "quintet.spark.source.connection"])
    assert found == {
        "quintet.server": "pydantic",
        "quintet.client.links.peerbus_ws": "picows",
        "quintet.spark.source.connection": "pyarrow",
    }


def test_spark_goes_on_beside_a_client_alone() -> None:
    """Spark imports `pyspark_*` for every query with a source it does not know: ours must not end other people's."""
    program = (
        "import sys\nfor name in ('pyarrow', 'pandas', 'numpy'): sys.modules[name] = None\n"
        "from pyspark.serializers import CloudPickleSerializer\n"
        "import pyspark_quintet, pyspark_quintet_lake\n"
        "for module in (pyspark_quintet, pyspark_quintet_lake):\n"
        "    kind = CloudPickleSerializer().loads(CloudPickleSerializer().dumps(module.DefaultSource))\n"
        "    try: kind({})\n"
        "    except ImportError as error: sys.stdout.write(f'{kind.name()}: {error}\\n')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert done.stderr == ""
    for name, said in zip(("quintet", "quintet_lake"), done.stdout.splitlines(), strict=True):
        wanted = f'format("{name}") needs the package pyarrow, which is not installed'
        assert said == f"{name}: {wanted} (pip install 'quintet[spark]')"


# -- the words --------------------------------------------------------------------------------------------------------


def absence(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_a_missing_package_is_said_with_the_extra_of_who_asks() -> None:
    said = extras.missing(absence("google"), "this", "server")
    assert said is not None
    assert str(said) == "this needs the package protobuf, which is not installed (pip install 'quintet[server]')"
    assert said.hint == "pip install 'quintet[server]'"
    other = extras.missing(absence("picows.api"), "this", "spark")
    assert other is not None
    assert other.hint == "pip install 'quintet[peerbus]'", "spark does not bring it"


@pytest.mark.parametrize(
    ("format", "place"),
    [
        *itertools.product(("delta", "iceberg"), ("lake/orders", "s3://bucket/orders")),
        ("parquet", "lake/orders"),
    ],
)
def test_a_table_names_the_extra_of_its_format(format: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("quintet.spark.lake.")]:
        parent, _, name = module.rpartition(".")
        if hasattr(
            sys.modules[parent], name
        ):  # so that it is there again, too: `from package import module` looks at it first
            monkeypatch.setattr(sys.modules[parent], name, sys.modules[module])
    for module in [name for name in sys.modules if name.startswith("quintet.spark.lake.")]:
        monkeypatch.delitem(sys.modules, module)
    missing = {"deltalake", "pyiceberg"}
    for name in missing | {
        name for name in sys.modules if name.partition(".")[0] in missing
    }:  # what was imported is found, too
        monkeypatch.setitem(sys.modules, name, None)
    from quintet.spark.lake.opening import table_of

    if format == "parquet":
        assert table_of(place, format) is not None
        return
    with pytest.raises(extras.PackageMissing) as caught:
        table_of(place, format)
    said = f"a table of format {format} needs the package "
    assert caught.value.message in {f"{said}{name}, which is not installed" for name in ("deltalake", "pyiceberg")}
    assert caught.value.hint == "pip install 'quintet[lake]'"


def test_other_failures_of_imports_are_shown_as_they_are() -> None:
    assert extras.missing(absence("quintet.nowhere"), "this") is None
    assert extras.missing(ImportError("cannot import name 'x' from 'pydantic'", name="pydantic"), "this") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_package") as caught, extras.needed_by("this"):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, extras.PackageMissing)


def test_an_extra_that_is_here_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extras.absent("spark") == []
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    monkeypatch.setitem(sys.modules, "blake3", None)
    assert extras.absent("spark") == ["blake3", "protobuf"]


def test_the_readme_says_what_each_extra_gives() -> None:
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `") and " | " in line]
    named = {
        name for row in rows for group in re.findall(r"\[([a-z,]+)\]`|'quintet\[([a-z,]+)\]'", row) for name in group
    }
    assert {each for name in named for each in name.split(",") if each} == set(DECLARED)
