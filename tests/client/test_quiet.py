"""What the client writes into the application's log: nothing of the libraries underneath, unless the application asks."""

import asyncio
import logging

import pytest

import quintet
from tests.client.server import Server


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINTET_PEERBUS_SECRET", "a secret of at least thirty-two bytes, for tests")


async def use(server: Server) -> None:
    """Connect and disconnect at every door that has a library underneath."""
    async with quintet.peer(server.peers, name="quiet") as peer:
        await peer.peers()
    async with quintet.connect(server.felix) as bus:
        await bus.publish("quiet", b"x")


@pytest.mark.parametrize("asked", [False, True])
def test_libraries_write_nothing_unless_asked(
    server: Server, secret: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """An application that logs everything; with a level of its own for picows it reads what picows says: the control."""
    caplog.set_level(1)
    if asked:
        monkeypatch.setattr(logging.getLogger("picows"), "level", 1)
        logging.getLogger("picows")._cache.clear()  # type: ignore[attr-defined]
        logging.getLogger("picows.client")._cache.clear()  # type: ignore[attr-defined]
    asyncio.run(use(server))
    foreign = {record.name for record in caplog.records if record.name.partition(".")[0] not in ("quintet", "asyncio")}
    assert bool(foreign) == asked, foreign
