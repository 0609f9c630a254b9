"""A BlipMQ peer that misbehaves on purpose, for what a real server cannot be made to do: cut a frame in half, refuse
every publish, never answer. Written with the codec from the other side; it keeps no messages.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

from quintet.protocols.blipmq import codec
from quintet.protocols.blipmq.codec import Frame
from quintet.protocols.blipmq.frames import AUTH, FRAME_BYTES_MAX, HELLO, OURS, PING, SUBSCRIBE

SUBSCRIPTION_ID = 7


async def until(check: Callable[[], bool]) -> None:
    """Wait for what the client learns by itself, for at most ten seconds."""
    for _ in range(1_000):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true in time")


def deliver(tag: int, topic: bytes, value: bytes, qos: int = 1) -> bytes:
    """A DELIVER frame: [u8 qos][u64 tag][u16 n][topic][message]."""
    payload = bytes((qos,)) + tag.to_bytes(8, "big") + len(topic).to_bytes(2, "big") + topic + value
    return codec.encode(0x0A, tag, payload)


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
    if frame.type == HELLO and codec.parse_hello(frame.payload) == OURS:
        peer.send(codec.nack(frame.correlation_id, 426, "unsupported protocol version"))
        peer.refused = True
    elif frame.type == AUTH and peer.refused:
        peer.send(codec.nack(frame.correlation_id, 400, "HELLO not performed"))
        peer.refused = False
    elif frame.type in (HELLO, AUTH):
        peer.send(codec.ack(frame.correlation_id, 0))
    elif frame.type == SUBSCRIBE:
        peer.send(codec.ack(frame.correlation_id, SUBSCRIPTION_ID))
    elif frame.type == PING:
        peer.send(codec.pong(frame.correlation_id))
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
                buffer += data
                at = 0
                view = memoryview(buffer)
                while frame := codec.decode(view, at, FRAME_BYTES_MAX):
                    peer.frames.append(frame)
                    if self.script is None or not await self.script(peer, frame):
                        await polite(peer, frame)
                    at = frame.end
                buffer = buffer[at:]
        writer.close()
