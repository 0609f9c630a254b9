"""Every example of docs/CLIENT.md and README.md runs, as a program of its own, against a real broker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quintet.client.core import errors
from quintet.client.links.peerbus import SECRET_VARIABLE
from tests.client.server import Server

GUIDE = Path(__file__).parents[2] / "docs" / "CLIENT.md"
DEFAULTS = {
    "blipmq://:dev-key@127.0.0.1:5555": "url",
    "flymq://admin:admin@127.0.0.1:9092": "fly",
    "fast://:TOKEN@127.0.0.1:7400": "fast",
    "peerbus://:dev-token@127.0.0.1:47821": "peers",
    "felix://:dev-key@127.0.0.1:5000?ca=.quintet/tls/felix-certificate.pem": "felix",
}
EXAMPLE = Path(__file__).parents[2] / "examples" / "exactly_once.py"

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text() + GUIDE.read_text(), re.DOTALL)
PROGRAMS = [program for program in BLOCKS if "quintet.spark" not in program]  # those: tests/spark/test_docs.py
COMMANDS = re.findall(r"^\$ (.*)\n(.*)$", GUIDE.read_text(), re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_program(program: str, own_server: Server) -> None:
    """On a broker of its own: programs use the same names of topics."""
    assert any(default in program for default in DEFAULTS)
    for default, name in DEFAULTS.items():
        program = program.replace(default, getattr(own_server, name))
    command = [sys.executable, "-W", "error", "-c", program]
    environment = {**os.environ, SECRET_VARIABLE: "a secret that peers share, of 32 bytes"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("line", "answer"), COMMANDS)
def test_command(line: str, answer: str, server: Server) -> None:
    program = f"quintet() {{ '{sys.executable}' -m quintet \"$@\"; }}; {line}"
    environment = {**os.environ, "QUINTET_URL": server.url}
    done = subprocess.run(
        ["sh", "-c", program], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{answer}\n", "")


def test_the_example(server: Server) -> None:
    command = [sys.executable, "-W", "error", str(EXAMPLE), "3", server.fly]
    invoices = '{"for":0,"pay":0}\n{"for":1,"pay":10}\n{"for":2,"pay":20}\n'
    for rounds in (1, 2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == invoices * rounds


def test_every_error_is_explained() -> None:
    text = GUIDE.read_text()
    assert [kind.__name__ for kind in errors.ALL if f"`{kind.__name__}`" not in text.replace(".errors.", "`")] == []
