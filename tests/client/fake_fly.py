"""A FlyMQ peer that misbehaves on purpose. It answers by the table what a script leaves to it, and keeps no messages."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from quintet.protocols.flymq import codec, frames
from tests.wire import flymq

Fields = dict[str, Any]
Script = Callable[["FlyPeer", frames.Operation, Fields], Awaitable[bool]]


class FlyPeer:
    """One connection of the fake: what it was asked, and what it sends."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.asked: list[tuple[str, Fields]] = []

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def answer(self, name: str, **fields: Any) -> None:
        operation = next(op for op in frames.OPERATIONS.values() if op.name == name)
        self.send(codec.encode_answer(operation, "document", fields, 0))

    def record(self, ask: Fields, offset: int) -> None:
        sizes = {"key_size": -1, "value_size": len(ask["value"])}
        partition = max(ask["partition"], 0)
        self.answer("PRODUCE", topic=ask["topic"], partition=partition, offset=offset, timestamp_ms=1, **sizes)

    def error(self, code: str, text: str) -> None:
        self.send(codec.error_frame("document", code, text))

    def cut(self) -> None:
        self.writer.transport.abort()


async def polite(peer: FlyPeer, operation: frames.Operation, ask: Fields) -> None:
    name = operation.name
    if name == "AUTH":
        peer.answer(name, success=True, error="", username=ask["user"], roles=[])
    elif name == "WHOAMI":
        peer.answer(name, success=True, username="u", roles=[], permissions=[])
    elif name == "METADATA":
        peer.answer(name, topic=ask["topic"], partitions=[{"id": 0, "leader": 0, "oldest": 0, "newest": 0}])
    elif name == "SUBSCRIBE":
        peer.answer(name, offset=0, generation=1, assigned=[{"partition": 0, "offset": 0}])
    elif name == "COMMIT":
        peer.answer(name, success=True, message="")
    elif name == "FETCH_RECORDS":  # an older broker
        peer.error("E1101", f"unknown opcode: {operation.code}")
    elif name == "FETCH":
        await asyncio.sleep(0.01)
        peer.answer(name, messages=[], next_offset=ask["offset"])
    elif name == "PRODUCE":
        peer.record(ask, ask.get("sequence", 0))
    else:
        peer.error("E1101", f"the fake does not know {name}")


class FakeFly:
    """`async with FakeFly(script) as server`: the script is asked first, `polite` answers what it leaves."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script
        self.peers: list[FlyPeer] = []
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "FakeFly":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"flymq://u:p@127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
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
        self._tasks.add(asyncio.get_running_loop().create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = FlyPeer(writer)
        self.peers.append(peer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                _, _, code, _, length = flymq.HEAD.unpack(await reader.readexactly(flymq.HEAD.size))
                operation = frames.OPERATIONS[code]
                ask = codec.decode_request(operation, await reader.readexactly(length))
                peer.asked.append((operation.name, ask))
                if self.script is None or not await self.script(peer, operation, ask):
                    await polite(peer, operation, ask)
        writer.close()
