"""Passes peerbus objects through unchanged, for a program that speaks the protocol itself over a pipe: lines in, lines out.

Nothing is signed, verified or acknowledged here: that is the other program's business. What this adds is the way to the
broker: its address, TLS, WebSocket frames, and the register with the token, if the URL has a name.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from quintet.client.bus import TIMEOUT_S
from quintet.client.core import url as urls
from quintet.client.core.base import Setup, deadline, dial
from quintet.client.core.errors import BadUrl
from quintet.client.core.hosts import Hosts, in_turn
from quintet.client.core.url import Endpoint
from quintet.client.links.peerbus import CONNECTOR, check_packages
from quintet.client.links.peerbus_wire import Wire
from quintet.client.sources.mailbox import Identity
from quintet.protocols.peerbus import codec


class _Lines(Wire):
    """A connection whose objects go on as they are."""

    def __init__(self, where: str, write: Callable[[bytes], None]) -> None:
        super().__init__(where, Identity("", b"", False))
        self._registered.set_result(None)
        self._write = write

    def object(self, data: bytes) -> None:
        self._write(data)

    def heartbeat(self) -> None:
        """There is nothing to ask in somebody else's name."""


async def pipe(
    url: str,
    lines: AsyncIterator[list[bytes]],
    write: Callable[[bytes], None],
    *,
    name: str = "",
    linger: float = 0.0,
    timeout: float = TIMEOUT_S,
) -> None:
    """Send each line as one object, and hand each object that comes to `write`, until `lines` end and `linger` seconds
    have passed. Whatever ends the connection before is raised."""
    endpoint = urls.parse(url)
    if endpoint.door != "peerbus":
        raise BadUrl(
            f"peers need the protocol peerbus, and the URL is of {endpoint.door}",
            hint="use peerbus:// or peerbus+tcp://",
        )
    check_packages(endpoint)

    async def dialled(host: Endpoint, seconds: float) -> Wire:
        setup = Setup(host, CONNECTOR, "", seconds, False, None)
        async with deadline(seconds, f"connecting to {host}"):
            if host.lines:
                lines = _Lines(str(host), write)
                await dial(setup, lines)
                return lines
            from quintet.client.links import peerbus_ws

            wire = peerbus_ws.PipedWire(str(host), write)
            await peerbus_ws.dial_socket(setup, wire)
            return wire

    connection = await in_turn(Hosts(endpoint), endpoint, timeout, dialled)
    try:
        if endpoint.name or name:
            connection.send([codec.register(endpoint.secret, endpoint.name or name)])
        sending = asyncio.create_task(_send(connection, lines))
        ended = asyncio.create_task(connection.ended())
        await asyncio.wait({sending, ended}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and not ended.done():
            await asyncio.wait({ended}, timeout=linger)
        for task in (sending, ended):
            task.cancel()
        await asyncio.gather(sending, ended, return_exceptions=True)
        if sending.done() and not sending.cancelled() and (failed := sending.exception()) is not None:
            raise failed
        if connection.lost is not None:
            raise connection.lost
    finally:
        await connection.close()


async def _send(connection: Wire, lines: AsyncIterator[list[bytes]]) -> None:
    async for some in lines:
        objects = [line for line in some if line.strip()]
        if objects:
            await connection.writable()
            connection.send(objects)
