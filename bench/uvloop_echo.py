"""Answers so many bytes with so many bytes, on uvloop, and does nothing else: the least that an answer costs in Python.

`python bench/uvloop_echo.py PORT N:HEX [N:HEX ...]`: N bytes are answered by these; the last pair repeats.
"""

import asyncio
import sys
from typing import cast

import uvloop

Exchanges = list[tuple[int, bytes]]


class Echo(asyncio.Protocol):
    """One connection. It counts bytes and looks at none."""

    def __init__(self, exchanges: Exchanges) -> None:
        self._opening = exchanges[:-1]
        self._request_bytes, self._answer = exchanges[-1]
        self._held = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one, but does not derive from it

    def data_received(self, data: bytes) -> None:
        self._held += len(data)
        while self._opening and self._held >= self._opening[0][0]:
            size, answer = self._opening.pop(0)
            self._held -= size
            self._transport.write(answer)
        if not self._opening:
            count, self._held = divmod(self._held, self._request_bytes)
            if count:
                self._transport.write(self._answer * count)


async def main(port: int, exchanges: Exchanges) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Echo(exchanges), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    pairs = [word.split(":") for word in sys.argv[2:]]
    uvloop.run(main(int(sys.argv[1]), [(int(size), bytes.fromhex(answer)) for size, answer in pairs]))
