"""A Felix server that says what a test tells it to: over real QUIC, with a certificate of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from quintet.net.certificates import development_certificate
from quintet.net.quic.endpoint import make_endpoint
from quintet.net.quic.events import CONNECTED, DATA
from quintet.protocols.felix import frames
from tests.wire import felix

Message = dict[str, Any]  # JSON; a binary batch is {"type": "batch", "count": n, "request_id": n}
Answer = Callable[["FakeFelix", int, Message], None]  # (server, stream, message)


class FakeFelix:
    """One client at a time is enough: the last that connected is the one that is answered."""

    def __init__(self, folder: Path, answer: Answer, *, flags: int | None = frames.SERVER_FLAGS) -> None:
        certificate, key, self.ca = development_certificate(folder, ["127.0.0.1"])
        self.answer = answer
        self.flags = flags
        self.greet: Callable[[int], None] | None = None  # in place of the answer to auth
        self.heard: list[Message] = []
        self.endpoint = make_endpoint(
            "127.0.0.1", 0, certificate, key, b"", streams_max=100, uni_max=0, idle_ms=10_000, connections_max=10
        )
        self.connection = 0
        self.connections = 0
        self._tails: dict[tuple[int, int], bytes] = {}
        asyncio.get_running_loop().add_reader(self.endpoint.fileno(), self._ready)

    @property
    def url(self) -> str:
        return f"felix://:token@127.0.0.1:{self.endpoint.address[1]}?ca={self.ca}"

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.endpoint.fileno())
        self.endpoint.close()

    def say(self, stream: int, message: Message) -> None:
        self.send(stream, felix.json_frame(message))

    def send(self, stream: int, data: bytes, end: bool = False) -> None:
        self.endpoint.send(self.connection, stream, [data], end)

    def events(self, subscription: int) -> int:
        """An event stream, with its hello."""
        stream = self.endpoint.open(self.connection, False)
        self.say(stream, {"type": "event_stream_hello", "subscription_id": subscription})
        return stream

    def _ready(self) -> None:
        for event in self.endpoint.take(1 << 20):
            if event[0] == CONNECTED:
                self.connection = event[1]
                self.connections += 1
            elif event[0] == DATA:
                self._data(event[1], event[2], event[3])
                if event[4]:
                    self.endpoint.send(event[1], event[2], [], True)

    def _data(self, connection: int, stream: int, data: bytes) -> None:
        found, self._tails[connection, stream] = felix.split(self._tails.pop((connection, stream), b"") + data)
        for flags, payload in found:
            message: Message = {"type": "other"}
            if flags == 0:
                message = json.loads(payload)
            elif flags in (felix.BATCH, felix.BATCH | felix.ACKED):
                batch = felix.read_batch(payload, flags != felix.BATCH)
                count = len(batch.values)
                message = {"type": "batch", "target": batch.target, "count": count, "request_id": batch.request}
            self.heard.append(message)
            if message["type"] != "auth":
                self.answer(self, stream, message)
            elif self.greet is not None:
                self.greet(stream)
            elif self.flags is None:
                self.say(stream, {"type": "ok"})
            else:
                self.say(
                    stream, {"type": "auth_ok", "server_flags": self.flags & message["client_flags"], "quintet": 1}
                )


@asynccontextmanager
async def fake(folder: Path, answer: Answer, *, flags: int | None = frames.SERVER_FLAGS) -> AsyncIterator[FakeFelix]:
    server = FakeFelix(folder, answer, flags=flags)
    try:
        yield server
    finally:
        server.close()
