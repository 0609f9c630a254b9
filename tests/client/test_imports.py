"""`import quintet` stays quick because it loads nothing; the client loads no part of the server."""

import subprocess
import sys

import pytest

import quintet

SERVER = ("quintet.server", "quintet.net", "quintet.broker", "quintet.log", "quintet.delivery", "quintet.config")


def loaded(code: str) -> set[str]:
    """The modules a fresh interpreter has after running this."""
    command = [sys.executable, "-c", f"import sys\n{code}\nsys.stdout.write(' '.join(sys.modules))"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_import_quintet_loads_nothing() -> None:
    """One module, whatever else is installed."""
    assert loaded("import quintet") - loaded("pass") == {"quintet"}


@pytest.mark.parametrize("code", ["import quintet; quintet.connect", "import quintet; quintet.sync.connect"])
def test_the_client_loads_no_server(code: str) -> None:
    modules = loaded(code)
    assert "quintet.client.bus" in modules
    assert not modules.intersection((*SERVER, "click", "rich", "pydantic", "fastapi"))


def test_lazy_names() -> None:
    for name in quintet._LAZY:
        assert getattr(quintet, name) is not None
        assert name in dir(quintet)
    with pytest.raises(AttributeError, match="no_such_name"):
        quintet.no_such_name  # noqa: B018
