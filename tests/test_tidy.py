"""The repository's rules as tests. Each rule is a function from a tree of files to findings; each has a control that
plants a violation in a small tree and sees it found, so that no rule can rot into one that never fails.
"""

import ast
import functools
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
CODE = (".py", ".pyi", ".rs")
TEXT = (*CODE, ".md", ".toml", ".txt", ".service", ".sh", ".yml", ".json", ".cfg")

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
TEST_NAME_MAX = 69
HISTORY = re.compile(r"(?:^|_)(?:review\w*|regressions?|more|misc|new|bugs?|fix(?:es)?|issues?)(?:_|\.)")
# Exceptions by path, or path::function. They may only become fewer: one that is not needed is a finding itself.
LONG_FILES: frozenset[str] = frozenset()
LONG_FUNCTIONS: frozenset[str] = frozenset()

# Below net, time and chance are parameters (model/scheduler.py).
TIMELESS = ("model", "kernel", "protocols", "broker", "delivery", "log")
CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "uuid": {"uuid1", "uuid4"},
    "os": {"urandom"},
}
CHANCE = {"random", "secrets"}

PROTOCOL_FILES = {
    "README.md", "__init__.py", "codec.py", "door.py", "errors.py", "frames.py", "mapping.py", "section.py", "session.py",
}  # fmt: skip
# A door whose session outgrew one file names the others here.
MORE_PROTOCOL_FILES = {
    "blipmq": {"routing.py"},
    "fast": {"routing.py"},
    "flymq": {"call.py", "group_requests.py", "message_requests.py", "producing.py", "record_requests.py", "routing.py", "topic_requests.py", "user_requests.py"},
    "felix": {"cache_requests.py", "consumer_requests.py", "feature_requests.py", "features.py", "long_json.py", "matching.py", "routing.py", "watching.py"},
}  # fmt: skip

REMINDERS = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
HOSTS = re.compile(
    r"pypi\.org|pythonhosted\.org|crates\.io|npmjs\.(?:org|com)|yarnpkg\.com|repo1?\.maven|golang\.org/proxy|rubygems\.org"
)
MACHINE_PATHS = re.compile(r"(?<![\w.$}/-])/(?:work|root|tmp|home/\w+)/\w|\.\./shared\b")

MENTION = re.compile(r"([\w./-]+\.(?:py|pyi|rs))::([A-Za-z_]\w*(?:(?:\.|::)[A-Za-z_]\w*)*)")


def files(root: Path) -> Iterator[tuple[str, Path]]:
    """(path from root, file) for what is or would be committed."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    for name in sorted(names):
        if (root / name).is_file():
            yield name, root / name


def python(root: Path, which: str) -> Iterator[tuple[str, ast.Module]]:
    """The files of Python whose path begins as the pattern says. To parse one costs milliseconds: ask for few."""
    for name, path in files(root):
        if name.endswith(".py") and re.match(which, name):
            yield name, ast.parse(path.read_text(), name)


class Outline(NamedTuple):
    """What the rules ask of a file of Python, so that it is parsed once for all of them."""

    says_what_it_is: bool
    functions: tuple[tuple[str, int], ...]  # name and lines
    names: frozenset[str]  # functions, classes, Class.method, constants


@functools.cache
def outline(source: str) -> Outline:
    module = ast.parse(source)
    functions = tuple(
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                found.update(prefix + target.id for target in targets if isinstance(target, ast.Name))

    visit(module, "")
    return Outline(bool(ast.get_docstring(module)), functions, frozenset(found))


def outlines(root: Path) -> Iterator[tuple[str, Outline]]:
    for name, path in files(root):
        if name.endswith(".py"):
            yield name, outline(path.read_text())


def text(root: Path) -> Iterator[tuple[str, int, str]]:
    """(path, line number, line) of every file that people write."""
    for name, path in files(root):
        if name.endswith(TEXT) or path.suffix == "":
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                yield name, number, line


# -- the rules --------------------------------------------------------------------------------------------------------


def modules_say_what_they_are(root: Path) -> list[str]:
    """An empty __init__.py of a test folder says all there is to say."""
    empty = [
        name
        for name, path in files(root)
        if re.fullmatch(r"tests/(?:.*/)?__init__\.py", name) and not path.stat().st_size
    ]
    return [
        f"{name}: no module docstring"
        for name, found in outlines(root)
        if name not in empty and not found.says_what_it_is
    ]


def files_are_short(root: Path) -> list[str]:
    long = {
        name: lines
        for name, path in files(root)
        if name.endswith(CODE)
        and not name.endswith(".pyi")  # the stub of one module is one file
        and (lines := len(path.read_text().splitlines())) > FILE_LINES_MAX
    }
    found = [f"{name}: {lines} lines, over {FILE_LINES_MAX}" for name, lines in long.items() if name not in LONG_FILES]
    return found + [f"{name}: no longer an exception" for name in LONG_FILES - set(long)]


def functions_are_short(root: Path) -> list[str]:
    long = {}
    for name, found_in in outlines(root):
        for function, lines in found_in.functions:
            if lines > FUNCTION_LINES_MAX:
                long[f"{name}::{function}"] = lines
    found = [
        f"{name}: {lines} lines, over {FUNCTION_LINES_MAX}"
        for name, lines in long.items()
        if name not in LONG_FUNCTIONS
    ]
    return found + [f"{name}: no longer an exception" for name in LONG_FUNCTIONS - set(long)]


def names_of_tests_say_what_they_promise(root: Path) -> list[str]:
    """A name that fits into a line of a report; a file named after its subject, not after how it came to be."""
    found = []
    for name, found_in in outlines(root):
        if name.startswith("tests/"):
            if HISTORY.search(name.rpartition("/")[2]):
                found.append(f"{name}: named after how it came to be")
            found += [
                f"{name}::{function}: {len(function)} characters, over {TEST_NAME_MAX}"
                for function, _ in found_in.functions
                if function.startswith("test_") and len(function) > TEST_NAME_MAX
            ]
    return found


def time_and_chance_are_parameters(root: Path) -> list[str]:
    found = []
    for name, module in python(root, rf"src/quintet/(?:{'|'.join(TIMELESS)})/"):
        for node in ast.walk(module):
            bad = ""
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                if node.attr in CLOCKS.get(owner, ()) or (owner in CHANCE and isinstance(node.value, ast.Name)):
                    bad = f"{owner}.{node.attr}"
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                for alias in node.names:
                    if alias.name in CLOCKS.get(node.module or "", ()) or node.module in CHANCE:
                        bad = f"from {node.module} import {alias.name}"
            if bad:
                found.append(f"{name}:{getattr(node, 'lineno', 0)}: {bad}")
    return found


def doors_have_one_shape(root: Path) -> list[str]:
    folders: dict[str, set[str]] = {}
    for name, _ in files(root):
        match = re.fullmatch(r"src/quintet/protocols/(\w+)/([^/]+)", name)
        if match:
            folders.setdefault(match[1], set()).add(match[2])
    return [
        f"protocols/{folder}: {', '.join(sorted(here ^ PROTOCOL_FILES ^ more))} missing or one too many"
        for folder, here in folders.items()
        for more in (MORE_PROTOCOL_FILES.get(folder, set()),)
        if here != PROTOCOL_FILES | more
    ]


def doors_have_their_tests(root: Path) -> list[str]:
    """Of each folder of a protocol there are laws, vectors, bytes written twice, a fuzz target, a matrix of rights, revocation."""
    tests = dict(python(root, r"tests/(?:protocols/|abuse/revocation\.py$|(?:.*/)?test_(?:\w+_)?rights\.py$)"))
    kept = dict(files(root))
    judged = {
        name: _imported(module) for name, module in tests.items() if re.search(r"/test_(?:\w+_)?rights\.py$", name)
    }
    revoked = _keys_of(tests.get("tests/abuse/revocation.py"), "DOORS")
    found = []
    for folder in sorted({name.split("/")[3] for name in kept if re.match(r"src/quintet/protocols/\w+/", name)}):
        has = {
            "laws (a class of DoorLaws in tests/protocols/)": any(
                name.startswith(f"tests/protocols/{folder}/") and "DoorLaws" in _bases(module)
                for name, module in tests.items()
            ),
            "vectors (tests/vectors/)": any(
                name.startswith(f"tests/vectors/{folder}/") and len(path.read_text().strip()) > len("[]")
                for name, path in kept.items()
            ),
            "fuzz target (fuzz/)": f"fuzz/{folder}.py" in kept,
            "bytes of the other party (tests/wire/)": f"tests/wire/{folder}.py" in kept,
            "rights matrix (test_rights.py)": any(
                f"quintet.protocols.{folder}" in imported for imported in judged.values()
            ),
            "revocation (DOORS of tests/abuse/revocation.py)": folder in revoked,
        }
        found += [f"protocols/{folder}: no {what}" for what, there in has.items() if not there]
    return found


def _bases(module: ast.Module) -> set[str]:
    """What the classes of a module derive from."""
    classes = (node for node in ast.walk(module) if isinstance(node, ast.ClassDef))
    return {base.id for each in classes for base in each.bases if isinstance(base, ast.Name)}


def _imported(module: ast.Module) -> set[str]:
    """What a module imports from, packages above it too."""
    found = {node.module for node in ast.walk(module) if isinstance(node, ast.ImportFrom) and node.module}
    return found | {name.rpartition(".")[0] for name in found}


def _keys_of(module: ast.Module | None, name: str) -> set[object]:
    """The keys of a dict of a module."""
    for node in ast.walk(module or ast.Module([], [])):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, ast.AnnAssign):
            assert isinstance(node.value, ast.Dict)
            return {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    return set()


def names(path: Path) -> frozenset[str]:
    """Every name a document may mention in a source file: functions, classes, Class.method, constants."""
    if path.suffix == ".rs":
        return frozenset(re.findall(r"\b(?:fn|struct|enum|mod|const|static|trait)\s+(\w+)", path.read_text()))
    return outline(path.read_text()).names


def mentions_exist(root: Path) -> list[str]:
    found = []
    for name, number, line in text(root):
        if not name.endswith(".md"):
            continue
        for place, what in MENTION.findall(line):
            path = next((base / place for base in (root, root / "src" / "quintet") if (base / place).is_file()), None)
            if path is None:
                found.append(f"{name}:{number}: {place} does not exist")
            elif what.replace("::", ".") not in names(path):
                found.append(f"{name}:{number}: {place} has no {what}")
    return found


def no_reminders(root: Path) -> list[str]:
    return [f"{name}:{number}: {line.strip()}" for name, number, line in text(root) if REMINDERS.search(line)]


def no_hosts_and_no_machine(root: Path) -> list[str]:
    return [
        f"{name}:{number}: {found[0]}"
        for name, number, line in text(root)
        if (found := HOSTS.search(line) or MACHINE_PATHS.search(line))
    ]


def the_wire_shares_no_code(root: Path) -> list[str]:
    """tests/wire is the other party's view of the bytes: nothing of the broker, nor of a test that may import it."""
    found = []
    for name, module in python(root, "tests/wire/"):
        for node in ast.walk(module):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                named = [f"{node.module}.{alias.name}" for alias in node.names] if not node.level else ["quintet"]
            found += [
                f"{name}:{getattr(node, 'lineno', 0)}: imports {one}"
                for one in named
                if one.partition(".")[0] in ("quintet", "fuzz", "tests") and not one.startswith("tests.wire.")
            ]
    return found


def promises_name_their_test(root: Path) -> list[str]:
    page = root / "docs" / "GUARANTEES.md"
    if not page.is_file():
        return ["docs/GUARANTEES.md does not exist"]
    lines = page.read_text().splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        heading = number < len(lines) and lines[number].startswith("|-")
        if line.startswith("|") and not line.startswith("|-") and not heading:
            tests = [what for place, what in MENTION.findall(line) if place.startswith("tests/")]
            if not any(what.rpartition("::")[2].rpartition(".")[2].startswith("test_") for what in tests):
                found.append(f"docs/GUARANTEES.md:{number}: a promise without tests/...::test_...")
    return found


# -- the rules hold, and can fail -------------------------------------------------------------------------------------

Rule = Callable[[Path], list[str]]
D = '"""Doc."""\n'
# (rule, file to plant, its text): each must be found.
CONTROLS: list[tuple[Rule, str, str]] = [
    (modules_say_what_they_are, "src/quintet/net/x.py", "x = 1\n"),
    (modules_say_what_they_are, "tests/test_x.py", ""),
    (files_are_short, "src/quintet/net/x.py", D + "\n" * FILE_LINES_MAX),
    (files_are_short, "kernel/src/x.rs", "\n" * (FILE_LINES_MAX + 1)),
    (functions_are_short, "tests/test_x.py", f"{D}def f():\n    x = 1\n" + "    y = 1\n" * FUNCTION_LINES_MAX),
    (names_of_tests_say_what_they_promise, "tests/log/test_review_x.py", D),
    (names_of_tests_say_what_they_promise, "tests/test_x_regressions.py", D),
    (
        names_of_tests_say_what_they_promise,
        "tests/test_x.py",
        f"{D}def test_{'x' * (TEST_NAME_MAX - 4)}() -> None:\n    pass\n",
    ),
    (time_and_chance_are_parameters, "src/quintet/log/x.py", D + "import time\nx = time.monotonic()\n"),
    (time_and_chance_are_parameters, "src/quintet/model/x.py", D + "import random\nx = random.Random()\n"),
    (time_and_chance_are_parameters, "src/quintet/broker/x.py", D + "from time import time_ns\n"),
    (time_and_chance_are_parameters, "src/quintet/delivery/x.py", D + "import datetime\nx = datetime.datetime.now()\n"),
    (doors_have_one_shape, "src/quintet/protocols/blipmq/helpers.py", D),
    (doors_have_one_shape, "src/quintet/protocols/other/codec.py", D),
    (doors_have_their_tests, "tests/protocols/blipmq/test_session.py", D + "class TestLaws:\n    pass\n"),
    (doors_have_their_tests, "tests/vectors/blipmq/document.json", "[]\n"),
    (the_wire_shares_no_code, "tests/wire/x.py", D + "def f() -> None:\n    from quintet.kernel import crc32c\n"),
    (the_wire_shares_no_code, "tests/wire/x.py", D + "from tests.protocols.flymq import helpers\n"),
    (the_wire_shares_no_code, "tests/wire/x.py", D + "from .. import forks\n"),
    (mentions_exist, "docs/A.md", "see `src/quintet/net/nowhere.py::f`\n"),
    (mentions_exist, "docs/A.md", "see `net/good.py::g`\n"),
    (mentions_exist, "src/quintet/protocols/blipmq/README.md", "see `net/good.py::Good.g`\n"),
    (mentions_exist, "docs/A.md", "see `kernel/src/good.rs::g`\n"),
    (no_reminders, "kernel/src/x.rs", "// TO" + "DO: later\n"),
    (no_reminders, "Makefile", "# FIX" + "ME\n"),
    (no_hosts_and_no_machine, "requirements/x.txt", "--index-url https://" + "pypi" + ".org/simple\n"),
    (no_hosts_and_no_machine, "docs/A.md", "run it in " + "/work" + "/main\n"),
    (promises_name_their_test, "docs/GUARANTEES.md", "| claim | test |\n|---|---|\n| it is durable | believe us |\n"),
    (
        promises_name_their_test,
        "docs/GUARANTEES.md",
        "| claim | test |\n|---|---|\n| a | `tests/test_good.py::helper` |\n",
    ),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in CONTROLS))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_repository_is_tidy(rule: Rule) -> None:
    assert rule(ROOT) == []


# What a door called blipmq has beside its folder, as small as it can be.
DOOR_TESTS = {
    "tests/protocols/blipmq/test_session.py": D + "class TestLaws(DoorLaws):\n    pass\n",
    "tests/vectors/blipmq/document.json": '[{"name": "hello"}]\n',
    "fuzz/blipmq.py": D,
    "tests/wire/blipmq.py": D,
    "tests/interop/test_rights.py": D + "from quintet.protocols.blipmq import frames\n",
    "tests/abuse/revocation.py": D + 'DOORS: dict[str, int] = {"blipmq": 1}\n',
}


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A small tree that keeps every rule."""
    good = {
        "src/quintet/net/good.py": D
        + "import time\n\n\nclass Good:\n    def f(self) -> float:\n        return time.time()\n",
        "src/quintet/log/good.py": D + "def f(now: int) -> int:\n    return now\n",
        "kernel/src/good.rs": "pub fn f() {}\n",
        "tests/test_good.py": D + "def test_f() -> None:\n    pass\n\n\ndef helper() -> None:\n    pass\n",
        "docs/GUARANTEES.md": "| claim | test |\n|---|---|\n| it is durable | `tests/test_good.py::test_f` |\n",
        "docs/GOOD.md": "`net/good.py::Good.f`, `src/quintet/log/good.py::f`, `kernel/src/good.rs::f`; see /var/lib/quintet\n",
        "Makefile": "setup:\n",
    }
    good |= {
        f"src/quintet/protocols/blipmq/{name}": D for name in PROTOCOL_FILES | MORE_PROTOCOL_FILES["blipmq"]
    } | DOOR_TESTS
    for name, content in good.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_clean_tree_has_no_findings(rule: Rule, clean: Path) -> None:
    assert rule(clean) == []


@pytest.mark.parametrize(
    ("rule", "place", "content"), CONTROLS, ids=[f"{rule.__name__}-{place}" for rule, place, _ in CONTROLS]
)
def test_a_planted_violation_is_found(rule: Rule, place: str, content: str, clean: Path) -> None:
    (clean / place).parent.mkdir(parents=True, exist_ok=True)
    (clean / place).write_text(content)
    findings = rule(clean)
    assert len(findings) == 1
    assert findings[0].startswith((place, f"protocols/{Path(place).parent.name}"))


@pytest.mark.parametrize("place", DOOR_TESTS)
def test_a_part_that_a_door_lacks_is_found(place: str, clean: Path) -> None:
    (clean / place).unlink()
    assert len(doors_have_their_tests(clean)) == 1


def test_a_folder_without_any_tests_lacks_all_of_them(clean: Path) -> None:
    (clean / "src/quintet/protocols/other").mkdir()
    (clean / "src/quintet/protocols/other/door.py").write_text(D)
    assert [found.partition(":")[0] for found in doors_have_their_tests(clean)] == ["protocols/other"] * len(DOOR_TESTS)
