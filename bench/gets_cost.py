"""What the loop's thread spends on one read of eight cache gets of a Felix stream, in one process, without packets.

    .venv/bin/python bench/gets_cost.py

The broker runs in this process with all its parts. Its QUIC endpoint is asked by a stand-in that hands over the same read again and
again and throws answers away. Processor time of the thread (the least of some repetitions) and Python functions of ours
entered for one read: for comparing two versions on one machine.
"""

import asyncio
import json
import logging
import math
import os
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

import quintet
from quintet.config import Settings
from quintet.net import turns
from quintet.net.certificates import CERTIFICATE_NAME
from quintet.net.quic.events import DATA
from quintet.protocols import doors
from quintet.server import Server

GETS = 8
READS = 200
REPETITIONS = 30
HEADER = struct.Struct(">IHHI")
MAGIC, VERSION = 0x464C5831, 1
KEY, VALUE = "key", bytes(100)
OURS = f"{os.sep}src{os.sep}quintet{os.sep}"


class Endpoint:
    """Hands over one read each time it is asked, and takes every answer."""

    def __init__(self, real: Any, read: tuple[int, int, int, bytes, bool]) -> None:
        self._real, self._read = real, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def take(self, bytes_max: int) -> list[tuple[int, int, int, bytes, bool]]:
        return [self._read]

    def send(self, connection: int, stream: int, data: list[bytes], end: bool) -> int:
        return 0

    def hold(self) -> None: ...

    def flush(self) -> None: ...


def read_of(scope: bytes) -> bytes:
    tenant, namespace, cache = scope.decode().split("\0")
    ask = {
        "type": "cache_get",
        "tenant_id": tenant,
        "namespace": namespace,
        "cache": cache,
        "key": KEY,
        "request_id": 7,
    }
    text = json.dumps(ask, separators=(",", ":")).encode()
    return (HEADER.pack(MAGIC, VERSION, 0, len(text)) + text) * GETS


def measure(listener: Any) -> None:
    """The one stream that has asked for a key before asks again and again."""
    (connection,) = listener.connections
    (stream,) = [stream for stream in connection._streams.values() if stream._session._scopes]
    scope = next(scope for scope in stream._session._scopes if scope)
    cost_of(f"a read of {GETS} gets", listener, stream, read_of(scope))


def cost_of(what: str, listener: Any, stream: Any, read: bytes) -> None:
    """Print what one such read of this stream costs the loop."""
    number, real = stream.connection.number, listener.endpoint
    listener.endpoint = Endpoint(real, (DATA, number, stream.number, read, False))
    found = []
    for _ in range(REPETITIONS):
        before = time.thread_time()
        for _ in range(READS):
            listener._ready()
        found.append((time.thread_time() - before) / READS * 1e6)
    entered = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event == "call" and OURS in frame.f_code.co_filename

    sys.setprofile(count)
    listener._ready()
    sys.setprofile(None)
    print(f"{what}: {min(found):.1f} us, {entered} Python functions")
    listener.endpoint = real


async def prepare_gets(bus: quintet.Bus) -> None:
    cache = bus.kv("t/n/c")
    await cache.put(KEY, VALUE)
    await cache.get(KEY)


async def serve(prepare: Callable[[quintet.Bus], Awaitable[None]], measure: Callable[[Any], None]) -> None:
    """A broker whose topics are in memory, and one client of its Felix door, which says something before it is measured."""
    turns.TURN_S = math.inf  # type: ignore[misc]  # a busy machine ends no turn here
    with tempfile.TemporaryDirectory() as folder:
        keys = (*(door.key for door in doors.DOORS), "admin", "console", "flight")
        flags: dict[str, Any] = {"data": Path(folder), "dev": True, "topics.durability": "memory"}
        flags |= {f"listeners.{key}.port": 0 for key in keys}
        flags |= {f"listeners.{name}.enabled": False for name in ("flight", "console", "admin")}
        settings = Settings.load(None, {}, flags)
        server = Server(settings, lambda: settings)
        life = asyncio.create_task(server.run(False))
        while "felix" not in server.listeners:
            await asyncio.sleep(0.01)
        listener = server.listeners["felix"]
        url = f"felix://:dev-key@{listener.address}?ca={Path(folder) / 'tls' / CERTIFICATE_NAME}"
        async with quintet.connect(url) as bus:
            await prepare(bus)
            measure(listener)
        server._stop.set()
        await life


if __name__ == "__main__":
    logging.disable()
    uvloop.run(serve(prepare_gets, measure))
