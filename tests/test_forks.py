"""A forked command is the command: its words, its exit code, its environment and folder, its signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from quintet import __version__
from tests import forks

DOORS = ("BLIPMQ", "FLYMQ", "FLYMQ_SDK", "FLIGHT", "FAST", "PEERBUS", "PEERBUS_TCP", "FELIX", "CONSOLE", "ADMIN")


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, bytes, str]:
    """(exit code, stdout, stderr)"""
    errors = folder / "stderr"
    with errors.open("wb") as stderr:
        process = forks.start(arguments, env={**os.environ, **environment}, cwd=folder, stderr=stderr)
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read()
    return process.wait(60), said, errors.read_text()


def test_words_and_exit_codes_are_those_of_the_command(tmp_path: Path) -> None:
    code, said, errors = run(tmp_path, "--version")
    assert (code, errors) == (0, "")
    assert said.startswith(f"quintet {__version__} ".encode())
    code, said, errors = run(tmp_path, "serve", "--config", "missing.toml")
    assert (code, said) == (2, b"")
    assert "missing.toml" in errors


def test_each_has_the_environment_and_the_folder_of_its_request(tmp_path: Path) -> None:
    (tmp_path / "quintet.toml").write_text("[listeners.blipmq]\nport = 0\n")
    name = "QUINTET_LISTENERS__BLIPMQ__PORT"
    code, _, errors = run(tmp_path, "serve", "--config", "quintet.toml", **{name: "not a port"})
    assert code == 2 and "blipmq" in errors, "read from the folder, and the variable counts"
    (tmp_path / "quintet.toml").write_text("[listeners.blipmq]\nport = -1\n")
    code, _, errors = run(tmp_path, "serve", "--config", "quintet.toml")
    assert code == 2 and "not a port" not in errors, "the variable of the one before is gone"


def test_signals_reach_it_and_their_number_comes_back(tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("wb") as stderr:
        process = forks.start(
            ["serve", "--dev", "--data", str(tmp_path / "data"), "--print-ready"],
            env=os.environ | {f"QUINTET_LISTENERS__{door}__PORT": "0" for door in DOORS},
            cwd=tmp_path,
            stderr=stderr,
        )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().startswith(b"{"), (tmp_path / "stderr").read_text()
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.kill()
        assert process.wait(60) == process.poll() == -signal.SIGKILL


def test_what_changes_the_start_of_python_is_a_process_of_its_own(tmp_path: Path) -> None:
    for environment, kind in (({}, forks.Forked), ({"PYTHONASYNCIODEBUG": "1"}, subprocess.Popen)):
        with (tmp_path / "stderr").open("wb") as stderr:
            process = forks.start(["--version"], env=os.environ | environment, cwd=tmp_path, stderr=stderr)
        assert isinstance(process, kind)
        assert process.stdout is not None
        process.stdout.close()
        process.wait(60)


def test_a_command_with_pipes_reads_and_says_what_a_process_would() -> None:
    forked = forks.run(["protocol", "flymq", "--decode", "AF 0"], text=True, timeout=60)
    real = subprocess.run(
        [sys.executable, "-m", "quintet", "protocol", "flymq", "--decode", "AF 0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (
        (forked.returncode, forked.stdout, forked.stderr)
        == (real.returncode, real.stdout, real.stderr)
        == (1, "", real.stderr)
    )
    given = forks.run(["protocol", "flymq", "--decode", "-"], input=b"AF 0", timeout=60)
    assert (given.returncode, given.stdout) == (1, b"") and given.stderr == real.stderr.encode()
