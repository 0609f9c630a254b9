"""A broker of this folder's own, and commands run against it: in this process, as far as they need no terminal."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from quintet.cli.main import EXIT_FAILED, EXIT_USAGE, cli, line_of
from quintet.model.errors import ConfigError, QuintetError
from tests.client.server import Server, running


class Result:
    """What a command left behind."""

    def __init__(self, code: int, out: bytes, err: str) -> None:
        self.code, self.raw, self.err = code, out, err

    @property
    def out(self) -> str:
        return self.raw.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Commands:
    """`quintet ...` with QUINTET_URL set."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, *arguments: str, data: bytes | str = b"", code: int | None = 0, url: str = "") -> Result:
        """Run, and insist on the exit code (None: on any of ours)."""
        done = CliRunner().invoke(
            cli, arguments, input=data, env={"QUINTET_URL": url or self.url, "EDITOR": "true"}, prog_name="quintet"
        )
        found, err = done.exit_code, done.stderr
        if isinstance(done.exception, QuintetError):  # what main() makes an exit code of
            found = EXIT_USAGE if isinstance(done.exception, ConfigError) else EXIT_FAILED
            err += line_of(done.exception)
        elif done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert found == code or (code is None and found in (0, EXIT_FAILED, EXIT_USAGE)), (
            f"exit code {found}\n{done.stdout}\n{err}"
        )
        return Result(found, done.stdout_bytes, err)


@pytest.fixture(scope="session")
def broker() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture
def quintet(broker: Server) -> Commands:
    return Commands(broker.fly)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """One for each test of the folder: they share the broker."""
    module = request.module.__name__.rpartition("test_")[2]
    return re.sub(r"\W+", "-", f"{module}-{request.node.name}").strip("-")[:100]
