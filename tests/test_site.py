"""The documentation builds as a site, without a broken link, and every program on its pages runs and prints what it says."""

import io
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.cli.conftest import Commands
from tests.client.server import Server, running
from tests.client.test_docs import DEFAULTS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    DOCS / "index.md",
    DOCS / "TELEMETRY.md",
    *sorted(path for name in ("protocols", "cookbook", "migrate") for path in (DOCS / name).glob("*.md")),
]
PROGRAM = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
PROGRAMS = [
    pytest.param(*found, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, found in enumerate(PROGRAM.findall(page.read_text()))
]
PAGES_MADE = (
    "reference/cli",
    "reference/python",
    "reference/errors",
    "reference/limits",
    "reference/metrics",
    "running",
    "adr/index",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.mark.parametrize(("program", "output"), PROGRAMS)
def test_the_program_prints_what_the_page_says(
    program: str, output: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert output, "every program on a page has its output below it"
    monkeypatch.setenv("QUINTET_PEERBUS_SECRET", "a secret that peers share, of 32 bytes")
    for default, name in DEFAULTS.items():
        program = program.replace(default, getattr(server, name))
    program = program.replace("127.0.0.1:8815", f"127.0.0.1:{server.ports['flight']}")
    assert (in_a_process if "pyarrow" in program else in_this_one)(program) == output


def in_this_one(program: str) -> str:
    """Quicker than a process for each."""
    written = io.StringIO()
    with redirect_stdout(written):
        exec(compile(program, "page", "exec"), {"__name__": "__main__"})
    return written.getvalue()


def in_a_process(program: str) -> str:
    """gRPC's threads do not go well with the forks of other tests."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


# Not run here: what installs, what serves until it is stopped, and what needs Spark or a host of a model; they have tests of their own.
ELSEWHERE = ("pip ", "export ", "quintet serve", "quintet mcp", "quintet pipeline")


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```console" in page.read_text()], ids=lambda page: page.stem
)
def test_commands_answer_what_the_page_says(page: Path, server: Server) -> None:
    """In their order. One with nothing below it only has to succeed."""
    quintet = Commands(server.fly)
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for typed, answer in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            if typed.startswith(ELSEWHERE):
                continue
            words = shlex.split(typed.replace(".quintet", str(server.folder / "data")), comments=True)
            assert words[0] == "quintet"
            said = quintet(*words[1:]).out
            assert said == answer or not answer, typed


def build(config: Path, out: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: the site was not built")
    done = build(ROOT / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in PAGES_MADE:
        assert (tmp_path / "site" / f"{name}.html").exists()
    text = (tmp_path / "site" / "reference" / "cli.html").read_text()
    assert 'id="quintet-profile-add"' in text
    assert "http-equiv" not in text or "fonts.googleapis" not in text, "nothing is fetched from elsewhere"
    assert "quintet_" in (tmp_path / "site" / "reference" / "metrics.html").read_text()


def test_a_broken_link_stops_the_build(tmp_path: Path) -> None:
    """A control."""
    pytest.importorskip("material", reason="mkdocs-material is not installed: the site was not built")
    shutil.copytree(DOCS / "cookbook", tmp_path / "docs")
    (tmp_path / "docs" / "index.md").write_text("[nowhere](nothing.md) and [there](cache.md#no-such-heading)\n")
    config = (
        (ROOT / "mkdocs.yml")
        .read_text()
        .partition("\nnav:\n")[0]
        .replace("hooks: [docs/hooks.py]", "")
        .replace("docs_dir: docs", "docs_dir: docs")
    )
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert "nothing.md" in done.stderr
    assert "no-such-heading" in done.stderr
