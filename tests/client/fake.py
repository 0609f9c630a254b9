"""A BlipMQ peer that misbehaves on purpose, for what a real server cannot be made to do: cut a frame in half, refuse
every publish, never answer. It keeps no messages.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from tests.wire import blipmq as wire
from tests.wire.blipmq import AUTH, HELLO, OURS, PING, SUBSCRIBE, WHOLE, Frame

SUBSCRIPTION_ID = 7
WAIT_S = 30  # the longest wait for what must come true, on a busy machine


async def until(check: Callable[[], object]) -> None:
    """Wait for what the client learns by itself."""
    async with asyncio.timeout(WAIT_S):
        while not check():
            await asyncio.sleep(0.01)


class Peer:
    """One connection of the fake: the frames it got, and what it sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.frames: list[Frame] = []
        self.refused = False  # its HELLO, just now

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def cut(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Peer, Frame], Awaitable[bool]]


async def polite(peer: Peer, frame: Frame) -> bool:
    """The answers that every test starts from; False when the frame is not one it answers."""
    if frame.kind == HELLO and frame.number in (OURS, WHOLE):
        peer.send(wire.nack(frame.id, 426, "unsupported protocol version"))
        peer.refused = True
    elif frame.kind == AUTH and peer.refused:
        peer.send(wire.nack(frame.id, 400, "HELLO not performed"))
        peer.refused = False
    elif frame.kind in (HELLO, AUTH):
        peer.send(wire.ack(frame.id, 0))
    elif frame.kind == SUBSCRIBE:
        peer.send(wire.ack(frame.id, SUBSCRIPTION_ID))
    elif frame.kind == PING:
        peer.send(wire.pong(frame.id))
    else:
        return False
    return True


class FakeServer:
    """`async with FakeServer(script) as server`: the script is asked first, `polite` answers what it leaves."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.peers: list[Peer] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "FakeServer":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"blipmq://:any@127.0.0.1:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.cut()
        await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self.peers.append(peer)
        buffer = b""
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                found, buffer = wire.split(buffer + data)
                for frame in found:
                    peer.frames.append(frame)
                    if self.script is None or not await self.script(peer, frame):
                        await polite(peer, frame)
        writer.close()
