"""The fixture `k`: each test that asks for it runs once for each twin of the kernel."""

from types import ModuleType

import pytest

from quintet.kernel import pure
from tests.kernel.frames import native_twin


@pytest.fixture(params=["native", "pure"])
def k(request: pytest.FixtureRequest) -> ModuleType:
    return native_twin() if request.param == "native" else pure
