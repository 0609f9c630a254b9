"""A broker on sockets whose wall clock is set: only time that passes ends a connection, and a certificate of its own is made
again if it is not valid by the new time.
"""

import asyncio
import socket
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from quintet.model import limits
from quintet.net import certificates
from quintet.net.certificates import CERTIFICATE_NAME
from quintet.net.connection import Connection
from quintet.net.listener import Listener, ListenerOptions
from quintet.protocols.blipmq.session import BlipSession
from quintet.testing.line import SimBroker
from tests.net.quic_peers import connected, until
from tests.net.test_session_faults import world
from tests.wire import blipmq as wire

HOUR_US = 3600 * 1_000_000


class ClockedListener(Listener):
    """Both clocks go on when the test says so."""

    ahead = set_by = 0

    def now(self) -> int:
        return super().now() + self.set_by

    def monotonic(self) -> int:
        return super().monotonic() + self.ahead


async def stall(connection: Connection) -> None:
    """More than the socket takes is written, and the peer reads nothing."""
    transport = connection._transport
    assert transport is not None
    transport.write(bytes(32 << 20))
    unsent = -1
    while unsent != (unsent := transport.get_write_buffer_size()):
        await asyncio.sleep(0.02)
    connection._watch_unsent()


async def closed_by(listener: ClockedListener, connection: Connection) -> bool:
    connection.check(listener.monotonic())
    for _ in range(5):
        await asyncio.sleep(0)
    return connection not in listener.connections


@pytest.mark.parametrize("set_by", [-HOUR_US, 24 * HOUR_US, 40 * 24 * HOUR_US])
def test_only_time_that_passes_ends_a_silent_or_stalled_connection(set_by: int) -> None:
    sim = SimBroker()

    async def life() -> list[bool]:
        options = ListenerOptions("blipmq", "127.0.0.1", 0)
        listener = ClockedListener(
            options, lambda connection: BlipSession(sim.broker, connection, listener.monotonic()), lambda *_: None
        )
        await listener.start()
        host, _, port = listener.address.rpartition(":")
        found = []
        for stalled in (False, True):
            peer = socket.create_connection((host, int(port)))
            while not listener.connections:
                await asyncio.sleep(0.001)
            (connection,) = listener.connections
            if stalled:
                peer.sendall(wire.hello(1, 1) + wire.auth(2, b"dev-key"))
                while connection.who is None:
                    await asyncio.sleep(0.001)
                await stall(connection)
            for listener.set_by, listener.ahead in (
                (set_by, 0),
                (set_by, (limits.WRITE_STALL_US if stalled else limits.HANDSHAKE_US) * 2),
            ):
                found.append(await closed_by(listener, connection))
            listener.set_by = listener.ahead = 0
            peer.close()
            while listener.connections:
                await asyncio.sleep(0.001)
        listener.stop_accepting()
        return found

    assert asyncio.run(life()) == [False, True, False, True]


class Ahead(datetime):
    """A machine that started with its clock more than a year ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "Ahead":
        return super().now(tz) + timedelta(days=400)


async def test_a_certificate_made_by_a_clock_that_was_ahead_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "datetime", Ahead)
        async with world(tmp_path / "data", monkeypatch) as made:
            file = made.folder / "tls" / CERTIFICATE_NAME
            before, scheduler = file.read_bytes(), made.server._scheduler
            real = scheduler.now
            patched.setattr(certificates, "datetime", datetime)
            patched.setattr(scheduler, "now", lambda: real() - 400 * 24 * HOUR_US)
            await until(lambda: file.read_bytes() != before)
            said = [fields["seconds"] for event, fields in made.reports if event == "clock_jumped"]
            assert len(said) == 1 and said[0] == pytest.approx(-400 * 86_400, abs=1)
            async with connected(made.server.listeners["felix"].address, file.read_bytes()) as peer:
                await until(lambda: peer.connected)
