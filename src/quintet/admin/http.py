"""Runs uvicorn inside the broker's own loop: it gets a bound socket, and no say over signals or the process's life.

Strangers are bounded: one address has CONNECTIONS_PER_ADDRESS_MAX connections, and from the connection, or from the answer before,
to the end of the next answer EXCHANGE_S seconds. So neither silence, nor a request that comes a byte at a time, nor an answer that
nobody reads keeps a connection. An application that knows who asks may answer for longer: `scope["state"]["connection"].stream()`.
listener.py loads this file for the first connection.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from quintet.admin.app import App

KEEP_ALIVE_S = 5
TICK_S = 1.0  # how often the Date header is made anew
CONCURRENT_REQUESTS_MAX = 256
CONNECTIONS_PER_ADDRESS_MAX = 64
EXCHANGE_S = 10.0
STOP_S = 2  # open requests get this long when the broker stops


_REFUSAL: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b"
)


class _Bounded(H11Protocol):
    """One connection over HTTP. `addresses` counts those of the listener it belongs to."""

    addresses: Counter[str]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._limit: asyncio.TimerHandle | None = None
        self.app_state = {**self.app_state, "connection": self}

    def stream(self) -> None:
        """This answer lasts as long as its reader takes it: the application ends it."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "local"
        self.addresses[self._address] += 1
        self._refused = self.addresses[self._address] > CONNECTIONS_PER_ADDRESS_MAX
        if self._refused:
            text = f"more than {CONNECTIONS_PER_ADDRESS_MAX} connections of {self._address}\n".encode()
            transport.write(_REFUSAL % (len(text), text))
            transport.close()
            return
        super().connection_made(transport)
        self._await_answer()

    def _await_answer(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(EXCHANGE_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if not self._refused:
            super().data_received(data)

    def eof_received(self) -> None:
        if not self._refused:
            super().eof_received()

    def on_response_complete(self) -> None:
        self._await_answer()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self.addresses[self._address] -= 1
        if not self.addresses[self._address]:
            del self.addresses[self._address]
        if self._limit is not None:
            self._limit.cancel()
        if not self._refused:
            super().connection_lost(exc)


class Embedded(uvicorn.Server):
    """uvicorn's server, with the broker's signal handlers left alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """uvicorn's own looks ten times a second whether it should stop."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), TICK_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's own sleeps 0.1 s for the connections, also if there are none."""
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
            return
        for server in self.servers:
            server.close()
            await server.wait_closed()
        for bound in sockets or []:
            bound.close()


def embed(app: App, tls: ssl.SSLContext | None, backlog: int) -> Embedded:
    """A server for this application. `serve(sockets=...)` runs it."""

    class Bounded(_Bounded):
        addresses = Counter()  # noqa: RUF012 (one for each listener)

    config = uvicorn.Config(
        app,
        loop="none",
        http=Bounded,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=backlog,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=CONCURRENT_REQUESTS_MAX,
    )
    config.load()
    config.ssl = tls
    return Embedded(config)
