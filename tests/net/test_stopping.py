"""A broker that is told to stop: before its doors are open, and while it drains and is asked for its health."""

import gc
from pathlib import Path
from typing import Any

import pytest

from quintet import server as server_module
from quintet.config import Settings
from quintet.figures import View
from quintet.model.errors import ShuttingDown
from quintet.protocols import doors
from quintet.server import Server


def settings(folder: Path) -> Settings:
    off = (*(door.key for door in doors.DOORS if door.name != "blipmq"), "admin", "flight", "console")
    flags: dict[str, Any] = {f"listeners.{name}.enabled": False for name in off}
    return Settings.load(None, {}, flags | {"data": folder, "dev": True, "listeners.blipmq.port": 0})


class StoppedWhileOpening(Server):
    """As a cell that waits for another one when SIGTERM comes (cells/process.py)."""

    async def _open_doors(self) -> None:
        raise ShuttingDown("cell 1 was stopped before cell 0 had told it who may do what")


class AskedWhileDraining(Server):
    """Somebody asks /readyz when its listeners are closed."""

    said: str = ""

    async def _drain(self) -> None:
        await super()._drain()
        self.said = next(check.detail for check in View(self, 1).checks() if check.name == "listener:blipmq")


@pytest.fixture(autouse=True)
def collected(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(server_module, "_quiet_the_collector", lambda: None)
    yield
    gc.unfreeze()


async def test_to_be_stopped_before_the_doors_open_is_no_failure(tmp_path: Path) -> None:
    chosen = settings(tmp_path / "data")
    assert await StoppedWhileOpening(chosen, lambda: chosen).run(False) == 0
    made = Server(chosen, lambda: chosen)  # the folder is free again
    made._stop.set()
    assert await made.run(False) == 0


async def test_health_is_answered_while_the_listeners_are_closed(tmp_path: Path) -> None:
    chosen = settings(tmp_path / "data")
    made = AskedWhileDraining(chosen, lambda: chosen)
    made._stop.set()
    assert await made.run(False) == 0
    assert made.said.startswith("127.0.0.1:")
