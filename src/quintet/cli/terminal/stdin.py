"""Reads stdin without blocking the event loop: in chunks, or in lines of bounded length."""

import asyncio
import os
import queue
import threading
from collections.abc import AsyncIterator
from typing import Final

from quintet.model.errors import ProtocolError

READ_BYTES: Final = 256 * 1024


async def chunks() -> AsyncIterator[bytes]:
    """stdin in chunks, read only when asked for. A thread of its own, that need not end, because a read of a terminal
    cannot be called off and Ctrl-C must work all the same."""
    loop = asyncio.get_running_loop()
    wanted: queue.SimpleQueue[asyncio.Future[bytes]] = queue.SimpleQueue()

    def complete(future: asyncio.Future[bytes], data: bytes) -> None:
        if not future.done():
            future.set_result(data)

    def read() -> None:
        while True:
            future = wanted.get()
            data = os.read(0, READ_BYTES)
            loop.call_soon_threadsafe(complete, future, data)
            if not data:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while True:
        future: asyncio.Future[bytes] = loop.create_future()
        wanted.put(future)
        data = await future
        if not data:
            return
        yield data


async def lines(bytes_max: int, hint: str) -> AsyncIterator[list[bytes]]:
    """The lines that have arrived, as they arrive; the last one also without its newline."""
    rest = b""
    async for chunk in chunks():
        *found, rest = (rest + chunk).split(b"\n")
        if len(rest) > bytes_max:
            raise ProtocolError(f"a line is longer than {bytes_max} bytes", hint=hint)
        if found:
            yield [line.removesuffix(b"\r") for line in found]
    if rest:
        yield [rest]
