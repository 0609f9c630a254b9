"""Carries a client's frames to its session in another cell, and what that session says back: one leg for each cell it reaches.

A leg is a connection between two processes, with the pace of the slower side: when the client takes nothing, the leg is not read
from, and the session at its other end has no room. It is idle when all that was sent is answered. If it is lost, the client's
connection ends: what was not answered may have been done or not, as when a broker dies.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, cast

from quintet.model import limits
from quintet.net.cells import wire
from quintet.net.turns import Turns
from quintet.protocols.base import SessionConnection

UNSENT_BYTES_MAX: Final = limits.WRITE_HIGH_BYTES  # to another process; above it the client is not read from
CONNECT_S: Final = 5.0


class News:
    """What a leg has to tell its session, through the client's connection."""

    __slots__ = ("leg", "outputs")

    def __init__(self, leg: "Leg", outputs: list[bytes]) -> None:
        self.leg = leg
        self.outputs = outputs


class Links(Protocol):
    """The way to the other cells (net/cells/doors.py)."""

    def path(self, cell: int) -> str:
        """The socket of a cell's process."""

    def hand_over(self, cell: int, connection: SessionConnection, said: wire.Opening, read: bytes) -> bool:
        """Let a cell's process go on with a client, and with what was read from it. False: it stays here."""


class Carrier(asyncio.Protocol):
    """A connection to a socket of another process, or of this one, whose bytes go to a client's connection and come from it. Everything
    but the making of it happens in turns of the loop."""

    __slots__ = ("_early", "_lost", "_paused", "_sink", "_task", "_transport", "_turns")

    def __init__(self, sink: SessionConnection, turns: Turns, early: list[bytes]) -> None:
        self._sink = sink
        self._turns = turns
        self._early: list[bytes] | None = early
        self._lost: Callable[[], None] | None = None
        self._paused = False
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connect(self, path: str, lost: Callable[[], None]) -> None:
        self._lost = lost
        self._task = asyncio.get_running_loop().create_task(self._connect(path))

    async def _connect(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_unix_connection(lambda: self, path)
        except (OSError, TimeoutError):
            self._turns.run(self._fail)

    def _fail(self) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            lost()

    def send(self, data: bytes) -> None:
        if self._early is not None:
            self._early.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    @property
    def full(self) -> bool:
        """Must the client not be read from, because the other side does not take what it sends?"""
        if self._early is not None:
            return sum(map(len, self._early)) > UNSENT_BYTES_MAX
        return self._transport is not None and self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX

    def end(self) -> None:
        """The client is gone."""
        self._lost = None
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        early, self._early = self._early or [], None
        self._transport.writelines(early)

    def data_received(self, data: bytes) -> None:
        self._turns.run(self._received, data)

    def _received(self, data: bytes) -> None:
        raise NotImplementedError

    def _wait_for_room(self) -> None:
        """The client takes nothing more: neither does its connection here."""
        if not self._paused and self._transport is not None and self._sink.room() <= 0:
            self._paused = True
            self._transport.pause_reading()
            self._sink.park(self._go_on)

    def _go_on(self) -> None:
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._turns.run(self._fail)


class Leg(Carrier):
    """To a session in another cell, in words of wire.py."""

    __slots__ = ("_reader", "answered", "cell", "idle", "said", "sent")

    def __init__(self, cell: int, sink: SessionConnection, turns: Turns, said: wire.Opening) -> None:
        super().__init__(sink, turns, [wire.opening(said)])
        self.cell = cell
        self.said = said
        self.idle = True
        self._reader = wire.Reader()
        self.sent = self.answered = 0  # bytes

    def send(self, data: bytes) -> None:
        self.idle = False
        self.sent += len(data)
        super().send(data)

    def _received(self, data: bytes) -> None:
        outputs, reason = [], None
        for kind, body in self._reader.feed(data):
            if kind == wire.OUTPUT:
                outputs.append(body)
            elif kind == wire.IDLE:
                self.answered = wire.COUNT.unpack(body)[0]
                self.idle = self.answered == self.sent
            else:
                reason = body.decode(errors="replace")
        if self._lost is None:
            return
        self._sink.completed(News(self, outputs), None, None)
        if reason is not None:
            self._sink.evict(reason)
        if outputs:
            self._wait_for_room()
