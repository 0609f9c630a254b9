"""Takes legs from other nodes, for the process that leads a cell: greets each one, then it is a leg as any other (ADR 47).

    to the session      u32 length | Greeting in MessagePack | then as in wire.py
    from the session    as in wire.py

TLS is mutual where nodes have certificates (ADR 42): who connects is the node that its certificate names, and it has the same log. On
loopback without certificates every process of the machine may speak as a node, as at the cluster's listener.
"""

import ssl
from functools import partial
from typing import Final

import msgspec

from quintet.net.cells import wire
from quintet.net.cells.back import LEGS_MAX, LegSession, Makes
from quintet.net.cluster.trust import node_of
from quintet.net.cluster.wire import PeerRefused
from quintet.net.connection import Connection
from quintet.net.listener import Listener, ListenerOptions, Report
from quintet.net.output import OutputBudget
from quintet.net.turns import Turns

NAME: Final = "legs"  # among the listeners of a process
GREETING_BYTES_MAX: Final = 4_096


class Greeting(msgspec.Struct, frozen=True):
    """Who connects: a node, and the log that it follows."""

    node: str
    log: str


def greeting(said: Greeting) -> bytes:
    body = msgspec.msgpack.encode(said)
    return wire.LENGTH.pack(len(body)) + body


class RemoteLegs(Listener):
    """Where other nodes connect to. tls None: on loopback, without certificates."""

    def __init__(
        self,
        place: tuple[str, int],
        log: str,
        makes: Makes,
        report: Report,
        tls: ssl.SSLContext | None,
        output: OutputBudget,
        turns: Turns,
    ) -> None:
        options = ListenerOptions(NAME, *place, LEGS_MAX, LEGS_MAX, LEGS_MAX)
        super().__init__(options, partial(GreetedLeg, makes, log, tls is not None, report), report, tls, output, turns)


class GreetedLeg(LegSession):
    """Greeting, opening, login, the frames of the client."""

    __slots__ = ("_certified", "_greeted", "_log", "_report")

    def __init__(self, makes: Makes, log: str, certified: bool, report: Report, connection: Connection) -> None:
        super().__init__(makes, connection)
        self._log = log
        self._certified = certified
        self._report = report
        self._greeted = False

    def receive(self, view: memoryview, now: int) -> int:
        if self._greeted:
            return super().receive(view, now)
        if self._closing is not None or len(view) < wire.LENGTH.size:
            return 0
        size = int(wire.LENGTH.unpack_from(view)[0])
        end = wire.LENGTH.size + size
        if size > GREETING_BYTES_MAX:
            self._refuse(f"a greeting of {size} bytes, the limit is {GREETING_BYTES_MAX}")
            return 0
        if len(view) < end:
            return 0
        try:
            self._check(msgspec.msgpack.decode(view[wire.LENGTH.size : end], type=Greeting))
        except (PeerRefused, msgspec.MsgspecError) as error:
            self._refuse(str(error))
            return 0
        self._greeted = True
        return end + super().receive(view[end:], now)

    def _check(self, said: Greeting) -> None:
        if self._certified and (named := node_of(self._connection.certificate())) != said.node:
            raise PeerRefused(f"a node says that it is {said.node}, and its certificate is of {named}", reason="name")
        if said.log != self._log:
            raise PeerRefused(f"{said.node} has the log {said.log}, this node {self._log}", reason="log")

    def _refuse(self, reason: str) -> None:
        self._report("leg_refused", {"from": str(self._connection.peer), "reason": reason})
        self._closing = reason
