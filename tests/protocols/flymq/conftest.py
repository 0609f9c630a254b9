"""Passwords that cost nothing to hash: these tests log in thousands of times, and what a hash costs is tested elsewhere."""

import pytest

from quintet.broker.identity import passwords, users
from tests.protocols.flymq.helpers import cheap_hash


@pytest.fixture(autouse=True)
def _cheap_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "HASH_MEMORY_KIB", 8)
    monkeypatch.setattr(passwords, "HASH_PASSES", 1)
    monkeypatch.setattr(users, "NOBODY_HASH", cheap_hash("a password that nobody has"))
