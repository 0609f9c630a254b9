"""A proxy between client and broker that loses answers: it forwards requests, swallows what comes back from some point
on, and then cuts both sides, so that the client cannot know what was stored.
"""

import asyncio
from contextlib import suppress
from random import Random
from types import TracebackType


class LossyProxy:
    """`async with LossyProxy(port, seed) as proxy`: connections die after a random number of answered bytes, as long
    as `lossy` is true. `cuts` counts how many did."""

    def __init__(self, port: int, seed: int, mean_bytes: int) -> None:
        self.port = 0
        self.cuts = 0
        self.lossy = True
        self._to = port
        self._random = Random(seed)
        self._mean = mean_bytes
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "LossyProxy":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            above, up = await asyncio.open_connection("127.0.0.1", self._to)
            budget = 200 + int(self._random.expovariate(1 / self._mean))
            there = asyncio.create_task(_copy(reader, up))
            try:
                await self._answers(above, writer, budget)
            finally:
                there.cancel()
                await asyncio.gather(there, return_exceptions=True)
                for side in (up, writer):
                    side.transport.abort()

    async def _answers(self, above: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int) -> None:
        while data := await above.read(65536):
            if self.lossy and len(data) >= budget:
                writer.write(data[:budget])
                await writer.drain()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._random.uniform(0, 0.02)):
                        while await above.read(65536):  # the requests go on being served, and nobody hears of it
                            pass
                self.cuts += 1
                return
            budget -= len(data)
            writer.write(data)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
