"""What every test gets: an environment without the developer's own QUINTET_ variables."""

import os

import pytest

from quintet.config import ENV_OTHER, ENV_OTHER_PREFIX, ENV_PREFIX


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(ENV_PREFIX) and name not in ENV_OTHER and not name.startswith(ENV_OTHER_PREFIX):
            monkeypatch.delenv(name)
