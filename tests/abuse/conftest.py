"""Abuse is bounded: a broker that hangs must not hold up everything behind it."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/abuse" in str(item.path):
            item.add_marker(pytest.mark.timeout(60))
