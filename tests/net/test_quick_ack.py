"""The system acknowledges at once what a subscriber of BlipMQ's first version writes by itself: its ACK before its POLL.

Such a subscriber leaves Nagle's algorithm on: its POLL is not sent before our system has acknowledged the ACK, which it does
40 ms late unless it is told. What counts is that it is told, and only then; bench/README.md has what it brings.
"""

import asyncio
import socket
from pathlib import Path

import pytest

from quintet import kernel
from quintet.net import connection
from quintet.net.connection import Connection
from quintet.protocols.blipmq import frames
from tests.net.test_session_faults import world
from tests.wire import blipmq as wire


async def frame_of(reader: asyncio.StreamReader) -> wire.Frame:
    head = await reader.readexactly(4)
    (frame,) = wire.frames_of(head + await reader.readexactly(int.from_bytes(head, "big")))
    return frame


@pytest.mark.skipif(connection.QUICK_ACK is None, reason="this system has no TCP_QUICKACK")
@pytest.mark.parametrize("version", [1, 2])
async def test_an_ack_that_comes_alone_is_acknowledged_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    told: list[bool] = []
    acknowledge = Connection._acknowledge

    def spied(self: Connection) -> None:
        acknowledge(self)
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        told.append(bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)))

    monkeypatch.setattr(Connection, "_acknowledge", spied)
    async with world(tmp_path / "data", monkeypatch) as broker:
        host, _, port = broker.server.listeners["blipmq"].address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(wire.hello(1, version) + wire.auth(2, b"dev-key") + wire.subscribe(3, b"t", 1))
        subscription = [await frame_of(reader) for _ in range(3)][-1].payload
        id = int.from_bytes(subscription, "big")
        writer.write(kernel.blip_publish(b"t", 1, [b"a", b"b", b"c"], 10, 0) + wire.ping(9))
        while version == 1 and (await frame_of(reader)).kind != frames.PONG:
            pass
        for round in range(3):
            if version == 1:
                writer.write(wire.poll(5, id))
            while (tag := await frame_of(reader)).kind == frames.PONG:
                pass
            if round < 2:
                writer.write(wire.ack(tag.id, id))
                await asyncio.sleep(0.05)
            else:
                writer.write(wire.ack(tag.id, id) + wire.poll(5, id))  # its answer acknowledges it
                await asyncio.sleep(0.05)
        writer.close()
    assert told == ([True, True] if version == 1 else [])
