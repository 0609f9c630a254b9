"""The root of the command: every row of its table loads, it starts without the heavy parts, and it fails in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from quintet.cli.main import COMMANDS, cli


def quintet(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quintet", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | environ,
        timeout=60,
        check=False,
    )


def test_the_readme_names_every_command() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    listed = readme.partition("`quintet --help` lists the commands:")[2]
    assert re.findall(r"`([a-z]+)`", listed) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_and_has_examples_first(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert command.name == name
    assert command.help is not None
    assert f"quintet {name}" in command.help, "help begins with examples"


def test_help_does_not_import_the_broker() -> None:
    code = (
        "import sys, click; from click.testing import CliRunner; from quintet.cli.main import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0\n"
        "heavy = {'pydantic', 'fastapi', 'uvicorn', 'structlog', 'asyncio', 'rich', 'quintet.kernel'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_version() -> None:
    facts = json.loads(quintet("--version", "--json", QUINTET_PURE="1").stdout)
    assert facts["kernel"] == "pure"
    assert facts["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert quintet("--version").stdout.startswith(f"quintet {facts['version']} (Python ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = quintet("completion", shell)
    assert done.returncode == 0, done.stderr
    assert "_QUINTET_COMPLETE" in done.stdout


def test_completion_answers_with_commands() -> None:
    done = quintet(_QUINTET_COMPLETE="bash_complete", COMP_WORDS="quintet co", COMP_CWORD="1")
    assert done.stdout.splitlines() == ["plain,conn", "plain,config", "plain,completion"]


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "message"),
    [
        (["serve", "--config", "nowhere.toml"], {}, 2, "quintet: nowhere.toml: cannot be read: No such file"),
        (["serve"], {"QUINTET_LISTENERS__BLIPMQ__PROT": "1"}, 2, "did you mean listeners.blipmq.port?"),
        (["serve", "--prot"], {}, 2, "No such option"),
        (["config", "explain", "listeners.blipmq.prt"], {}, 2, "did you mean listeners.blipmq.port?"),
        (["config", "explain", "unheard.of"], {}, 2, "`quintet config init` shows all of them"),
        (["nothing"], {}, 2, "No such command"),
        (["publish"], {}, 2, "No such command 'publish'. Did you mean 'pub'?"),
        (["tpic"], {}, 2, "Did you mean 'topic'?"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], environ: dict[str, str], code: int, message: str) -> None:
    done = quintet(*arguments, **environ)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_config_commands(tmp_path: Path) -> None:
    file = tmp_path / "quintet.toml"
    file.write_text(quintet("config", "init").stdout)
    assert quintet("config", "validate", "--config", str(file)).stdout == f"{file}: valid\n"
    shown = quintet("config", "show", "--dev", "--origin", QUINTET_LISTENERS__BLIPMQ__PORT="7").stdout.splitlines()
    assert "listeners.blipmq.port = 7  # environment variable QUINTET_LISTENERS__BLIPMQ__PORT" in shown
    assert 'data = ".quintet"  # preset of dev' in shown
    assert json.loads(quintet("config", "show", "--json").stdout)["listeners"]["admin"]["port"] == 8080
    assert "QUINTET_DELIVERY__ATTEMPTS_MAX" in quintet("config", "explain", "delivery").stdout
