"""The machine's own rates that figures are set beside: an answering loop that does nothing else, and one sendfile.

Both run in a thread of the harness, which does nothing meanwhile but wait for the generator.
"""

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from quintet.bench.flymq import AUTH_RESPONSE, PRODUCE, frame, str16
from quintet.bench.wire import Address

SENDFILE_BYTES_MAX = 0x7FFF_F000  # of one call, says Linux


class _Echo(asyncio.Protocol):
    """Answers AUTH once, and then every so many bytes with the same PRODUCE answer."""

    def __init__(self, request_bytes: int, answer: bytes) -> None:
        self._request_bytes = request_bytes
        self._answer = answer
        self._owed = 0
        self._known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one, but does not derive from it

    def data_received(self, data: bytes) -> None:
        if not self._known:
            self._known = True
            self._transport.write(frame(AUTH_RESPONSE, b"\1", str16(""), str16("admin"), bytes(4)))
            return
        count, self._owed = divmod(self._owed + len(data), self._request_bytes)
        if count:
            self._transport.write(self._answer * count)


@contextlib.contextmanager
def echo(topic: str, request_bytes: int) -> Iterator[Address]:
    """A server on uvloop that reads and answers PRODUCE of these sizes and knows nothing of messages."""
    import uvloop

    answer = frame(PRODUCE, str16(topic), struct.pack(">iQqii", 0, 0, 0, -1, 0))
    loop = uvloop.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        server = loop.run_until_complete(loop.create_server(lambda: _Echo(request_bytes, answer), sock=listener))
        loop.run_forever()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


@contextlib.contextmanager
def sendfile(path: Path) -> Iterator[Address]:
    """Sends the file to whoever connects and asks with one byte, then closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError), path.open("rb") as file:
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.recv(1)
                    sent, size = 0, os.fstat(file.fileno()).st_size
                    while sent < size:
                        sent += os.sendfile(sock.fileno(), file.fileno(), sent, min(size - sent, SENDFILE_BYTES_MAX))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
