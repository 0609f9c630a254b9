"""Listens for HTTP and loads the server behind it (http.py) when the first connection comes.

uvicorn is six hundredths of a start, and a broker that nobody asks for its health or its figures has no use for it. The socket
listens from the start on, so whoever comes first waits in its backlog for the 25 ms that the import takes, in a thread.
"""

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from quintet.admin.app import App

if TYPE_CHECKING:
    from quintet.admin.http import Embedded

BACKLOG = 128


class HttpServer:
    """A listener over HTTP. `address` is what --print-ready reports."""

    def __init__(self, app: App, bound: socket.socket, name: str, tls: ssl.SSLContext | None) -> None:
        host, port = bound.getsockname()[:2]
        self.port: int = port
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._app, self._bound, self._name, self._tls = app, bound, name, tls
        self._server: Embedded | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        bound.listen(BACKLOG)
        try:
            asyncio.get_running_loop().add_reader(bound, self._first_came)
        except NotImplementedError:  # asyncio's own loop on Windows
            self._begin()

    @property
    def accepting(self) -> bool:
        return not self._stopping and (self._task is None or not self._task.done())

    def _first_came(self) -> None:
        asyncio.get_running_loop().remove_reader(self._bound)
        self._begin()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._serve(), name=self._name)

    async def _serve(self) -> None:
        server = await asyncio.get_running_loop().run_in_executor(None, self._load)
        if self._stopping:
            self._bound.close()
            return
        self._server = server
        await server.serve(sockets=[self._bound])

    def _load(self) -> "Embedded":
        from quintet.admin.http import embed  # late: see above

        return embed(self._app, self._tls, BACKLOG)

    async def stop(self) -> None:
        """Stop accepting, give open requests http.STOP_S seconds, then close. Safe to call twice."""
        first, self._stopping = not self._stopping, True
        if self._task is None:
            if first:
                asyncio.get_running_loop().remove_reader(self._bound)
                self._bound.close()
            return
        if self._server is not None:
            self._server.should_exit = True
            self._server.stopping.set()
        await self._task


async def serve_http(
    app: App, host: str, port: int, *, name: str = "admin", tls: ssl.SSLContext | None = None
) -> HttpServer:
    """Bind and listen: from now on connections are taken. OSError if the address cannot be bound."""
    return HttpServer(app, await _bind(host, port), name, tls)


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
