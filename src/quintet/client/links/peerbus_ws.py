"""Carries peerbus inside a WebSocket, by picows: peerbus_wire.Wire with one object in each text message.

Loaded only for such a URL, because picows is not a package of every client (`quintet[peerbus]`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from picows import WSCloseCode, WSError, WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

from quintet.client.core.base import CLOSE_S, Setup, dial
from quintet.client.core.errors import Closed, ConnectionLost
from quintet.client.core.quiet import quiet_libraries
from quintet.client.links.peerbus_wire import READ_BYTES_MAX, Wire, closed_because
from quintet.client.sources.mailbox import Identity, PeerSource
from quintet.model.errors import ProtocolError

quiet_libraries()


class SocketWire(Wire):
    """The same over WebSocket: an object is a text message."""

    def __init__(self, where: str, me: Identity, mailbox: Callable[[], PeerSource | None] = lambda: None) -> None:
        super().__init__(where, me, mailbox)
        self.socket: WSTransport | None = None

    def send(self, objects: Sequence[bytes]) -> None:
        if self._lost is not None or self.socket is None:
            raise self._lost or Closed("the connection is not open yet")
        for data in objects:
            self.socket.send(WSMsgType.TEXT, data)

    def message(self, data: bytes) -> None:
        self._received_since_beat = True
        try:
            self.object(data)
        except ProtocolError as error:
            self.fail(error)

    def heard(self) -> None:
        self._received_since_beat = True

    async def close(self) -> None:
        if self.socket is not None and self._lost is None:
            self._flush_acks()
            self.socket.send_close(WSCloseCode.OK, b"bye")
        await super().close()


class PipedWire(SocketWire):
    """One whose objects go on as they are (pipe.py)."""

    def __init__(self, where: str, write: Callable[[bytes], None]) -> None:
        super().__init__(where, Identity("", b"", False))
        self._registered.set_result(None)
        self._write = write

    def object(self, data: bytes) -> None:
        self._write(data)

    def heartbeat(self) -> None:
        if self.socket is not None:
            self.socket.send_ping()


class _Frames(WSListener):
    """WebSocket frames of one SocketWire; messages in several frames are put together, within a bound."""

    def __init__(self, connection: SocketWire) -> None:
        super().__init__()
        self._connection = connection
        self._parts: list[bytes] = []
        self._size = 0

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._connection.socket = transport
        self._connection.connection_made(transport.underlying_transport)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        connection, kind = self._connection, frame.msg_type
        if kind == WSMsgType.CLOSE:
            data = frame.get_payload_as_bytes()
            transport.send_close(WSCloseCode.OK)
            connection.fail(
                closed_because(connection._where, int.from_bytes(data[:2], "big"), data[2:].decode(errors="replace"))
            )
        elif kind == WSMsgType.TEXT and frame.fin:
            connection.message(frame.get_payload_as_bytes())
        elif kind in (WSMsgType.TEXT, WSMsgType.CONTINUATION):
            self._size += frame.payload_size
            if self._size > READ_BYTES_MAX:
                connection.fail(
                    ProtocolError(f"{connection._where} sent a message of more than {READ_BYTES_MAX} bytes")
                )
                return
            self._parts.append(frame.get_payload_as_bytes())
            if frame.fin:
                whole, self._parts, self._size = b"".join(self._parts), [], 0
                connection.message(whole)
        else:
            connection.heard()

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._connection.connection_lost(None)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


async def _connect(opening: Coroutine[Any, Any, tuple[WSTransport, WSListener]]) -> None:
    """Finish what picows began, also if the caller is cancelled: it leaves its socket open if it is cancelled between the connect
    and the answer to its upgrade. A server that does not answer is left to picows' own time-out."""
    task = asyncio.get_running_loop().create_task(opening)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=CLOSE_S)
        if not task.done():
            task.cancel()
        elif not task.cancelled() and task.exception() is None:
            task.result()[0].disconnect()
        raise


async def dial_socket(setup: Setup, connection: SocketWire) -> None:
    """Open the WebSocket of a wire."""
    endpoint = setup.endpoint
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    url = f"{'wss' if endpoint.tls else 'ws'}://{host}:{endpoint.port}/"
    try:
        await dial(
            setup,
            connection,
            lambda tls: _connect(
                ws_connect(
                    lambda: _Frames(connection),
                    url,
                    ssl_context=tls,
                    websocket_handshake_timeout=setup.timeout,
                    max_frame_size=READ_BYTES_MAX,
                    max_redirects=0,
                )
            ),
        )
        if connection.socket is None:
            raise WSError("it closed the connection")
    except WSError as error:
        hint = f"is {endpoint} the peerbus port of a Quintet broker? peerbus+tcp:// is for the one without WebSocket"
        raise ConnectionLost(f"{endpoint} does not speak WebSocket: {error}", hint=hint) from error
