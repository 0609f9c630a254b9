"""Hands a client's socket over to the process of the first topic that it uses, so that most connections are where their topic is.

    front    nothing asked yet but the login; the first frame is another cell's --> descriptor, login and what was read
    there    a connection as any other: the login is said again, its answers are dropped, then what was read is received

Only where the login is answered at once (BlipMQ; Fast has none), without TLS, whose keys stay in the process, and with nothing unsent.
Everything else goes over legs, and so does a connection that uses a second cell later.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import msgspec

from quintet.model import limits
from quintet.net.cells import wire
from quintet.net.connection import Connection
from quintet.net.listener import Listener

READ_BYTES_MAX: Final = 64 * limits.KIB  # of what was read and is handed over: it fits a socket's buffer
MESSAGE_BYTES_MAX: Final = READ_BYTES_MAX + wire.OPENING_BYTES_MAX


class Handed(msgspec.Struct, frozen=True):
    """What goes with a descriptor."""

    said: wire.Opening
    read: bytes


class Taker(Protocol):
    """A session that can go on where another process was."""

    def take_over(self, login: bytes, now: int) -> bool:
        """Be what the client is; False: its login does not hold here."""


def hand_over(path: str, connection: Connection, said: wire.Opening, read: bytes) -> bool:
    """Give the connection to the process that listens at `path`. False: it stays, and nothing has happened to it."""
    if len(read) > READ_BYTES_MAX:
        return False
    descriptor = connection.duplicate()
    if descriptor is None:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as way:
            way.setblocking(False)
            way.connect(path)
            socket.send_fds(way, [msgspec.msgpack.encode(Handed(said, read))], [descriptor])
    except OSError:
        return False
    finally:
        os.close(descriptor)
    connection.abandon()
    return True


class TakenConnection(Connection):
    """A client that was at another process. What that one has read comes first: before this one reads anything of its own."""

    __slots__ = ("_handed",)

    def __init__(self, listener: Listener, handed: Handed) -> None:
        super().__init__(listener)
        self._handed = handed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._listener.turns.run(partial(_receive, self, self._handed))


class Taking:
    """Takes what other processes hand over. `listener`: that of the door that is named."""

    def __init__(self, listening: socket.socket, listener: Callable[[str], Listener]) -> None:
        self._listening = listening
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(listening.fileno(), self._accept)

    def stop(self) -> None:
        with contextlib.suppress(ValueError):
            self._loop.remove_reader(self._listening.fileno())

    def _accept(self) -> None:
        try:
            way, _ = self._listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        way.setblocking(False)
        self._loop.add_reader(way.fileno(), self._read, way)

    def _read(self, way: socket.socket) -> None:
        self._loop.remove_reader(way.fileno())
        with way:
            try:
                data, descriptors, _, _ = socket.recv_fds(way, MESSAGE_BYTES_MAX, 1)
            except OSError:
                return
        if not descriptors:
            return  # the other process died between the two
        handed = msgspec.msgpack.decode(data, type=Handed)
        client = socket.socket(fileno=descriptors[0])
        client.setblocking(False)
        task = self._loop.create_task(self._go_on(client, handed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _go_on(self, client: socket.socket, handed: Handed) -> None:
        listener = self._listener(handed.said.door)
        try:
            await self._loop.connect_accepted_socket(lambda: TakenConnection(listener, handed), client)
        except OSError:
            client.close()


def _receive(connection: Connection, handed: Handed) -> None:
    """As if it had been read here."""
    if not connection.take_over(handed.said.login) or not handed.read:
        return
    connection.get_buffer(-1)[: len(handed.read)] = handed.read
    connection.buffer_updated(len(handed.read))
