"""Runs the session at the other end of a leg: an ordinary session of its door, made what the client is by the client's own login.

The front judged the login before; here it is judged again, by the same configuration. If it does not hold any more (the client is
another one, or nobody), the leg ends and says so. The session's output goes back in words of wire.py, with a word when everything
that was taken is answered. The listener's socket is in a folder that only the broker's user may enter.
"""

import socket
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from quintet.model.batch import RecordBatch
from quintet.model.client_address import ClientAddress
from quintet.net.cells import wire
from quintet.net.connection import Connection
from quintet.net.listener import Listener, ListenerOptions, Report
from quintet.net.output import OutputBudget
from quintet.net.sockets import BACKLOG
from quintet.net.turns import Turns
from quintet.protocols.base import FLOWING, Session
from quintet.protocols.door import MakeSession

NAME: Final = "cells"
LEGS_MAX: Final = 1_000_000  # the bounds are those of the doors that legs come from
OPENING: Final = "opening"
LOGIN: Final = "login"
READY: Final = "ready"

Make = Callable[[Connection, ClientAddress, wire.Opening], Session | None]  # None: it cannot be, any more
Makes = Mapping[str, Make]


class LegListener(Listener):
    """Where the other processes of this broker connect to."""

    def __init__(
        self, accepting: socket.socket, makes: Makes, report: Report, output: OutputBudget, turns: Turns
    ) -> None:
        options = ListenerOptions(
            NAME,
            "",
            0,
            listening=accepting,
            connections_max=LEGS_MAX,
            connections_per_address_max=LEGS_MAX,
            unauthenticated_max=LEGS_MAX,
        )
        super().__init__(options, partial(LegSession, makes), report, None, output, turns)

    async def start(self) -> None:
        """Nothing is swept: deadlines are kept by the front, and a leg whose client is slow waits as long as the front lets it."""
        bound = self.options.listening
        more: dict[str, Any] = (
            {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        )  # others accept there later
        self._server = await self.loop.create_unix_server(lambda: Connection(self), sock=bound, backlog=BACKLOG, **more)

    @property
    def address(self) -> str:
        return NAME


class LegSession:
    """Opening, then login, then the frames of the client."""

    auth_failures = 0  # the front counts them

    __slots__ = (
        "_closing",
        "_connection",
        "_inner",
        "_login",
        "_makes",
        "_name",
        "_now",
        "_said",
        "_state",
        "_taken",
        "_told",
    )

    def __init__(self, makes: Makes, connection: Connection) -> None:
        self._makes = makes
        self._connection = connection
        self._state = OPENING
        self._inner: Session | None = None
        self._name = ""
        self._login = b""
        self._now = 0  # when it was opened
        self._taken = self._told = 0
        self._closing: str | None = None
        self._said = False  # why it ends

    @property
    def closing(self) -> str | None:
        return self._closing if self._inner is None else self._inner.closing or self._closing

    @closing.setter
    def closing(self, reason: str | None) -> None:
        self._closing = reason

    @property
    def principal_name(self) -> str | None:
        return None if self._inner is None else self._inner.principal_name

    @property
    def making(self) -> bool:
        return bool(getattr(self._inner, "making", False))

    @property
    def operation(self) -> str:
        return "" if self._inner is None else self._inner.operation

    @property
    def holding(self) -> bool:
        return self._state is LOGIN or (self._inner is not None and self._inner.holding)

    @property
    def stopped(self) -> bool:
        return self._inner is not None and self._inner.stopped

    @property
    def unanswered(self) -> int:
        return 0 if self._inner is None else self._inner.unanswered

    def congestion(self) -> int:
        return FLOWING if self._inner is None else self._inner.congestion()

    def deadline(self) -> int | None:
        return None  # the front keeps it

    def tick(self, monotonic: int) -> None:
        """It has no deadline."""

    def receive(self, view: memoryview, now: int) -> int:
        opened = self._open(view, now) if self._state is OPENING else 0
        return opened + (self._receive(view[opened:], now) if self._state is READY else 0)

    def _receive(self, view: memoryview, now: int) -> int:
        assert self._inner is not None
        taken = self._inner.receive(view, now)
        self._taken += taken
        return taken

    def _open(self, view: memoryview, now: int) -> int:
        if len(view) < wire.LENGTH.size:
            return 0
        size = int(wire.LENGTH.unpack_from(view)[0])
        end = wire.LENGTH.size + size
        if size > wire.OPENING_BYTES_MAX:
            self._closing = f"an opening of {size} bytes, the limit is {wire.OPENING_BYTES_MAX}"
            return 0
        if len(view) < end:
            return 0
        said = msgspec.msgpack.decode(view[wire.LENGTH.size : end], type=wire.Opening)
        peer = ClientAddress(said.peer, self._connection.id)
        make = self._makes.get(said.door)
        if make is None:
            self._closing = f"this cell has not opened {said.door}"
            return end
        self._inner = make(self._connection, peer, said)
        if self._inner is None:
            self._closing = "the connection of this stream has ended"
            return end
        self._state, self._name, self._login, self._now = LOGIN, said.name, said.login, now
        self._log_in(now)
        return end

    def _log_in(self, now: int) -> None:
        """Frame by frame, as far as it goes; what waits for a password goes on when that was checked."""
        inner = self._inner
        assert inner is not None
        while self._login and inner.closing is None and not inner.holding:
            taken = inner.receive(memoryview(self._login), now)
            if not taken:
                break
            self._login = self._login[taken:]
        if self._login or inner.holding or inner.unanswered:
            return
        inner.take_output()  # the client has its answers from the front
        if self._name and inner.principal_name != self._name:
            self._closing = f"this cell does not know {self._name!r}, or not by this login"
        self._state = READY

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        assert self._inner is not None
        self._inner.on_appended(token, offset, error)

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        assert self._inner is not None
        self._inner.on_completed(token, result, error)
        if self._state is LOGIN:
            self._log_in(self._now)

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        assert self._inner is not None
        self._inner.on_records(subscription, partition, batch, first, last)

    def take_output(self) -> list[bytes]:
        inner = self._inner
        if inner is None or self._state is not READY:
            return self._last_word([])
        made = inner.take_output()
        out = wire.output(made) if made else []  # never the session's own list
        if self._taken != self._told and not (inner.unanswered or inner.holding or inner.stopped):
            self._told = self._taken
            out.append(wire.idle(self._taken))
        return self._last_word(out)

    def _last_word(self, out: list[bytes]) -> list[bytes]:
        reason = self.closing
        if reason is not None and not self._said:
            self._said = True
            out.append(wire.ended(reason))
        return out

    def closed(self) -> None:
        if self._inner is not None:
            self._inner.closed()
        del self._connection  # connection and session hold each other: no work for the collector


def makes_for(make: MakeSession, address: Callable[[], str]) -> Make:
    """Sessions of a door for legs: as the door makes them."""

    def made(connection: Connection, peer: ClientAddress, _said: wire.Opening) -> Session:
        found: Session = make(connection, peer, address())
        return found

    return made
