"""The page that comes with the package: the pinned build gives the same bytes, it is small, and no address of a registry is kept."""

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from quintet.console import static

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "console"
BUILT = ROOT / "src" / "quintet" / "console" / "static"
PACKED_BYTES_MAX = 150_000


def packed() -> int:
    return sum(len(gzip.compress((BUILT / name).read_bytes(), 9)) for name in static.FILES)


def test_the_page_is_small() -> None:
    assert packed() < PACKED_BYTES_MAX, f"the page has {packed()} bytes packed; the limit is {PACKED_BYTES_MAX}"


def test_all_files_come_with_the_package_and_can_be_served() -> None:
    files = static.load()
    assert files.keys() == static.FILES.keys() == {path.name for path in BUILT.iterdir()}
    assert (
        b"/static/app.js" in files["index.html"].body
        and gzip.decompress(files["app.js"].packed) == files["app.js"].body
    )
    data = (ROOT / "pyproject.toml").read_text()
    assert '"console/static/*"' in data, "package data of the wheel"


def test_nothing_in_the_page_asks_another_site_or_runs_text() -> None:
    script = (BUILT / "app.js").read_text()
    assert not re.search(r"\beval\(|new Function\(|dangerouslySetInnerHTML:\s*\{|document\.write", script)
    hosts = set(
        re.findall(r"https?://([\w.-]+)", script + (BUILT / "app.css").read_text() + (BUILT / "index.html").read_text())
    )
    assert hosts <= {"www.w3.org", "github.com"}, "names of formats and of a licence"


def test_the_lock_file_keeps_no_address_and_pins_everything() -> None:
    lock = json.loads((SOURCE / "package-lock.json").read_text())
    wanted = json.loads((SOURCE / "package.json").read_text())["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values())
    for name, row in lock["packages"].items():
        assert "resolved" not in row, name
        assert not name or row.get("link") or "integrity" in row, name
    assert not re.search(r"https?://[^\"]*\.tgz", (SOURCE / "package-lock.json").read_text())


def test_the_pinned_build_gives_the_same_bytes(tmp_path: Path) -> None:
    """Skipped, loudly, without npm's packages. `make test` installs them before any test: another process reads axe from them."""
    node = shutil.which("node")
    if node is None or not (SOURCE / "node_modules" / "esbuild").is_dir():
        pytest.skip(
            "NO NPM PACKAGES (`make test` installs them): that the page is what console/ builds was not checked"
        )
    subprocess.run([node, str(SOURCE / "build.mjs"), str(tmp_path)], check=True, timeout=60)
    for name in static.FILES:
        assert (tmp_path / name).read_bytes() == (BUILT / name).read_bytes(), (
            f"{name} is not what console/ builds: make console"
        )
