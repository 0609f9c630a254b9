"""What the loop's thread spends on one message between its read and the write of its answer, for each TCP door, in one process.

    .venv/bin/python bench/loop_cost.py memory

The broker runs in this process with all its parts; a connection gets a transport that only keeps what is written. The figure is
the processor time of the thread (the least of some repetitions) with what one pass of the loop and this program cost, so it is
for comparing two versions on one machine, not for setting beside a peer. It hardly depends on what else the machine does. The
Python functions entered for one message are counted beside it.
"""

import asyncio
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs as a script from anywhere

from bench.dialogues import DIALOGUES, Dialogue

from quintet.config import Settings
from quintet.net.connection import Connection
from quintet.net.listener import Listener
from quintet.protocols import doors
from quintet.server import Server

WARM_UP = 300
MESSAGES = 300
REPETITIONS = 12
PASSES_MAX = 1_000_000  # of the loop for one answer
OURS = f"{os.sep}src{os.sep}quintet{os.sep}"


class Transport(asyncio.Transport):
    """Takes everything at once."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Client:
    """One connection that has the dialogue of its door over and over."""

    def __init__(self, listener: Listener, dialogue: Dialogue) -> None:
        self._transport = Transport()
        self._connection = Connection(listener)
        self._connection.connection_made(self._transport)
        self._dialogue = dialogue
        self._round = 0

    async def open(self) -> None:
        for sent, whole in self._dialogue.opening:
            await self._say(sent, whole)

    async def _say(self, data: bytes, whole: Any) -> tuple[int, int]:
        """How many passes of the loop the answer took, and how many writes."""
        writes = self._transport.writes
        writes.clear()
        self._connection.get_buffer(-1)[: len(data)] = data
        self._connection.buffer_updated(len(data))
        for passes in range(PASSES_MAX):
            if whole(b"".join(writes)):
                await asyncio.sleep(0)
                return passes, len(writes)
            await asyncio.sleep(0)
        raise TimeoutError("no answer")

    async def ask(self) -> tuple[int, int]:
        data = bytearray(self._dialogue.request)
        for place, number in ((self._dialogue.now_at, self._round), (self._dialogue.last_at, self._round - 1)):
            if place is not None and number >= 0:
                data[place : place + 9] = b"%09d" % number
        self._round += 1
        return await self._say(bytes(data), self._dialogue.whole)


async def measure(durability: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = (*(door.key for door in doors.DOORS), "admin", "console", "flight")
        flags: dict[str, Any] = {"data": Path(folder), "dev": True, "topics.durability": durability}
        flags |= {f"listeners.{key}.port": 0 for key in keys}
        flags |= {f"listeners.{name}.enabled": False for name in ("flight", "console", "admin")}
        settings = Settings.load(None, {}, flags)
        server = Server(settings, lambda: settings)
        life = asyncio.create_task(server.run(False))
        while "felix" not in server.listeners:
            await asyncio.sleep(0.01)
        for door, make in DIALOGUES.items():
            listener = server.listeners[door]
            assert isinstance(listener, Listener)
            client = Client(listener, make(1))
            await client.open()
            for _ in range(WARM_UP):
                passes, writes = await client.ask()
            found = []
            for _ in range(REPETITIONS):
                before = time.thread_time()
                for _ in range(MESSAGES):
                    await client.ask()
                found.append((time.thread_time() - before) / MESSAGES * 1e6)
            entered = await count_calls(client)
            print(
                f"{door:8} {durability:7} {min(found):6.1f} us, {entered} Python functions, {passes} passes, {writes} write"
            )
        server._stop.set()
        await life


async def count_calls(client: Client) -> int:
    """The least of some messages: others have a tick of the broker among them."""
    return min([await count_once(client) for _ in range(REPETITIONS)])


async def count_once(client: Client) -> int:
    entered = 0

    def count(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event == "call" and OURS in frame.f_code.co_filename

    sys.setprofile(count)
    await client.ask()
    sys.setprofile(None)
    return entered


if __name__ == "__main__":
    logging.disable()
    uvloop.run(measure(sys.argv[1] if len(sys.argv) > 1 else "memory"))
