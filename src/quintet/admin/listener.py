"""uvicorn inside the broker's own loop: it gets a bound socket, and no say over signals or the process's life."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

BACKLOG = 128
KEEP_ALIVE_S = 5
CONCURRENT_REQUESTS_MAX = 256
STOP_S = 2  # open requests get this long when the broker stops


class _Embedded(uvicorn.Server):
    """uvicorn's server, with the broker's signal handlers left alone and a way to wait for the start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()


class AdminServer:
    """A running admin door. `address` is what --print-ready reports."""

    def __init__(self, server: _Embedded, bound: socket.socket) -> None:
        host, port = bound.getsockname()[:2]
        self.port: int = port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._server = server
        self._task = asyncio.create_task(server.serve(sockets=[bound]), name="admin")

    @property
    def accepting(self) -> bool:
        return self._server.started and not self._server.should_exit and not self._task.done()

    async def _started(self) -> None:
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait({up, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            up.cancel()
            self._task.result()
            raise RuntimeError("the admin listener ended while it started")

    async def stop(self) -> None:
        """Stop accepting, give open requests STOP_S seconds, then close. Safe to call twice."""
        self._server.should_exit = True
        await self._task


async def serve_admin(app: FastAPI, host: str, port: int) -> AdminServer:
    """Bind, start, and return once requests are accepted. OSError if the address cannot be bound."""
    config = uvicorn.Config(
        app,
        loop="none",
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        limit_concurrency=CONCURRENT_REQUESTS_MAX,
    )
    bound = await _bind(host, port)
    admin = AdminServer(_Embedded(config), bound)
    await admin._started()
    return admin


async def _bind(host: str, port: int) -> socket.socket:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.setblocking(False)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
    return bound
