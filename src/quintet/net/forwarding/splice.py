"""Splices TCP connections of a door to the leader: bytes as they come, both ways, with the pace of the slower side.

    client --> Side --> leader          paused while the leader's side has BUFFER_BYTES_MAX that it did not take
    client <-- Side <-- leader          alike

    a side ended (FIN)      the other is told so, and goes on by itself until it ends too
    a side was reset        the other is reset
    a side takes nothing for STALL_S although something waits for it: both are reset
    no leader, this node itself, or no answer within CONNECT_S: the door's last words if it has some, then a close

What one connection holds is bounded by two buffers and one read each; how many there are, by connections_max. Nothing is looked at.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from quintet.model import limits
from quintet.model.errors import NotLeader
from quintet.net.forwarding.addresses import is_ourselves, shown
from quintet.net.listener import Report

BUFFER_BYTES_MAX: Final = 256 * limits.KIB  # that one side has not taken; above it the other is not read from
BUFFER_BYTES_LOW: Final = 64 * limits.KIB
EARLY_BYTES_MAX: Final = (
    256 * limits.KIB
)  # read from a client before the leader's side is there; asyncio reads no more at once
CONNECT_S: Final = 5.0  # for the leader to take a connection
STALL_S: Final = limits.WRITE_STALL_US / 1_000_000
LINGER_S: Final = 5.0  # for the last bytes to a side that is being closed
WORDS_S: Final = 5.0  # for a client to ask something that the last words are the answer to
BACKLOG: Final = 1024
# A peer that is gone without a word is noticed after two minutes, also if nobody sends anything.
KEEP_ALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)
RESET: Final = struct.pack("ii", 1, 0)  # linger for 0 s: a close is a reset


class Side(asyncio.Protocol):
    """One of the two sockets of a splice."""

    __slots__ = ("_linger", "_splice", "_stall", "_untaken", "ended", "full", "gone", "other", "transport")

    def __init__(self, splice: "Splice") -> None:
        self._splice = splice
        self._stall: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._untaken = 0
        self.transport: asyncio.Transport | None = None
        self.other: Side
        self.ended = False  # it sends no more
        self.full = False  # it has not taken BUFFER_BYTES_MAX
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES_MAX, low=BUFFER_BYTES_LOW)
        for level, option, value in KEEP_ALIVE:
            self.transport.get_extra_info("socket").setsockopt(level, option, value)
        self._splice.made(self)

    def data_received(self, data: bytes) -> None:
        self._splice.received(self, data)

    def eof_received(self) -> bool:
        self.ended = True
        self._splice.side_ended(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = True
        for timer in (self._stall, self._linger):
            if timer is not None:
                timer.cancel()
        self._splice.side_gone(self, error)

    # -- back-pressure ---------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        if self.transport is None or self.gone:
            return
        self.full = True
        self.other.read(False)
        self._untaken = self.transport.get_write_buffer_size()
        self._stall = asyncio.get_running_loop().call_later(STALL_S, self._check)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        self.full = False
        self.other.read(True)

    def _check(self) -> None:
        """While it is paused nothing is added, so a smaller buffer means that the peer takes something."""
        assert self.transport is not None
        left = self.transport.get_write_buffer_size()
        if left >= self._untaken:
            self._splice.cut(f"a side took nothing for {STALL_S:g} s")
            return
        self._untaken = left
        self._stall = asyncio.get_running_loop().call_later(STALL_S, self._check)

    def read(self, wanted: bool) -> None:
        if self.transport is None or self.gone or self.ended or self.transport.is_closing():
            return
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.gone:
            self.transport.write(data)

    def finish(self) -> None:
        """FIN, behind all that waits."""
        if self.transport is not None and not self.gone and not self.transport.is_closing():
            self.transport.write_eof()

    def close(self) -> None:
        """Close when all that waits was taken; at once after LINGER_S."""
        if self.transport is not None and not self.gone:
            self.transport.close()
            if self._linger is None:
                self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.reset)

    def reset(self) -> None:
        """Without SO_LINGER the peer would be told of an orderly end."""
        if self.transport is not None and not self.gone:
            of = self.transport.get_extra_info("socket")
            with suppress(OSError):
                of.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.transport.abort()


class Splice:
    """A client's connection and the one to the leader that it is spliced to."""

    __slots__ = ("_early", "_joined", "_owner", "_task", "_words", "address", "client", "leader", "target")

    def __init__(self, owner: "Splices") -> None:
        self._owner = owner
        self.client, self.leader = Side(self), Side(self)
        self.client.other, self.leader.other = self.leader, self.client
        self.target: str | None = None  # the leader's host
        self.address = ""  # of the client, without its port
        self._early = b""
        self._joined = False
        self._words = b""  # said to what the client asks first
        self._task: asyncio.Task[None] | None = None

    def made(self, side: Side) -> None:
        if side is self.client:
            side.read(False)
            assert side.transport is not None
            self.address = str((side.transport.get_extra_info("peername") or ("",))[0])
            if self._owner.admit(self):
                self._task = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        """Connect to the leader; then let both sides flow."""
        error = await self._reach()
        if self.client.gone:
            self.leader.reset()
        elif error is not None:
            self._refuse(error)
        else:
            self._joined = True
            early, self._early = self._early, b""
            if early:
                self.leader.write(early)
            if self.client.ended:
                self.leader.finish()
            if self.leader.ended:
                self.client.finish()
            self.client.read(not self.leader.full)

    async def _reach(self) -> NotLeader | None:
        owner = self._owner
        self.target = host = owner.leader()
        if host is None:
            return NotLeader(hint="no node leads now: try again in a moment")
        where = shown(host, owner.target_port)
        try:
            async with asyncio.timeout(CONNECT_S):
                if await owner.is_ourselves(host):
                    return NotLeader(
                        hint="this node was named as the leader, and does not lead yet: try again in a moment"
                    )
                await asyncio.get_running_loop().create_connection(lambda: self.leader, host, owner.target_port)
        except TimeoutError:
            why = f"it did not answer within {CONNECT_S:g} s"
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
        else:
            return None
        owner.unreachable(where, why)
        return NotLeader(leader=where, hint=f"this node cannot reach it: {why}")

    def _refuse(self, error: NotLeader) -> None:
        """A close. Where the protocol has a word for it, that is the answer to what the client asks first."""
        if self._owner.last_words is None:
            self.client.close()
            return
        self._words = self._owner.last_words(error)
        if self._early:
            self._say()
        elif self.client.ended:
            self.client.close()
        else:
            asyncio.get_running_loop().call_later(WORDS_S, self.client.close)
            self.client.read(True)

    def _say(self) -> None:
        """Say it, end our side, and pass over what comes meanwhile: an unread request would make the close a reset."""
        words, self._words = self._words, b""
        if words:
            self.client.write(words)
            self.client.finish()
            asyncio.get_running_loop().call_later(LINGER_S, self.client.reset)
            self.client.read(True)

    # -- from the sides --------------------------------------------------------------------------------------------

    def received(self, side: Side, data: bytes) -> None:
        if self._joined or side is self.leader:
            self._owner.bytes_forwarded += len(data)
            side.other.write(data)
        elif self._words:
            self._say()
        elif self._task is not None and not self._task.done():
            self._early += data
            if len(self._early) > EARLY_BYTES_MAX:
                self.cut("more than it may say before the leader answers")

    def side_ended(self, side: Side) -> None:
        if side.other.ended:
            self.client.close()
            self.leader.close()
        elif self._joined:
            side.other.finish()
        elif self._task is not None and self._task.done():  # it was refused, and is done
            self.client.close()

    def side_gone(self, side: Side, error: Exception | None) -> None:
        if side is self.client and self._task is not None:
            self._task.cancel()
        if error is None:
            side.other.close()
        else:
            side.other.reset()
        if self.client.gone and (self.leader.gone or self.leader.transport is None):
            self._owner.forget(self)

    def cut(self, reason: str) -> None:
        self._owner.cut(reason)
        self.client.reset()
        self.leader.reset()

    def end(self) -> None:
        """The node leads now, or stops, or another one leads."""
        if self._task is not None:
            self._task.cancel()
        self.client.close()
        self.leader.close()


class Splices:
    """All connections of one TCP door."""

    def __init__(
        self,
        name: str,
        target_port: int,
        connections_max: int,
        per_address_max: int,
        last_words: Callable[[NotLeader], bytes] | None,
        report: Report,
    ) -> None:
        self.name = name
        self.target_port = target_port
        self.last_words = last_words
        self.bytes_forwarded = self._accepted = self._refused = self._unreachable = self._cut = 0
        self.leader: Callable[[], str | None] = lambda: None
        self._bound = ("", 0)
        self._ourselves: dict[str, bool] = {}  # hosts that were named as leaders -> whether that is this node
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._addresses: Counter[str] = Counter()
        self._report = report
        self._server: asyncio.Server | None = None
        self._splices: set[Splice] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self, host: str, port: int, leader: Callable[[], str | None]) -> None:
        self.leader = leader
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Splice(self).client, host, port, backlog=BACKLOG, reuse_address=True
        )
        self._bound = self._server.sockets[0].getsockname()[:2]

    async def start_on(self, bound: socket.socket, leader: Callable[[], str | None]) -> None:
        self.leader, self._bound = leader, bound.getsockname()[:2]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Splice(self).client, sock=bound, backlog=BACKLOG)

    @property
    def address(self) -> str:
        return shown(*self._bound)

    async def is_ourselves(self, host: str) -> bool:
        if host not in self._ourselves:
            self._ourselves[host] = await is_ourselves(host, self.target_port, self._bound)
        return self._ourselves[host]

    def admit(self, splice: Splice) -> bool:
        """Whether there is room for one more; else it is closed."""
        self._accepted += 1
        self._splices.add(splice)
        self._addresses[splice.address] += 1
        self._empty.clear()
        fields: dict[str, object] = {"door": self.name}
        if len(self._splices) > self._connections_max:
            fields["connections_max"] = self._connections_max
        elif self._addresses[splice.address] > self._per_address_max:
            fields |= {"address": splice.address, "connections_per_address_max": self._per_address_max}
        else:
            return True
        self._refused += 1
        self._report("forwarding_full", fields)
        splice.client.close()
        return False

    def forget(self, splice: Splice) -> None:
        if splice in self._splices:
            self._splices.remove(splice)
            self._addresses[splice.address] -= 1
            if not self._addresses[splice.address]:
                del self._addresses[splice.address]
        if not self._splices:
            self._empty.set()

    def unreachable(self, where: str, why: str) -> None:
        self._unreachable += 1
        self._report("leader_unreachable", {"door": self.name, "leader": where, "error": why})

    def cut(self, reason: str) -> None:
        self._cut += 1
        self._report("forwarding_cut", {"door": self.name, "reason": reason})

    def leader_changed(self) -> None:
        host = self.leader()
        self._ourselves.clear()
        for splice in list(self._splices):
            if splice.target != host:
                splice.end()

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        for splice in list(self._splices):
            splice.end()
        try:
            async with asyncio.timeout(LINGER_S):
                await self._empty.wait()
        except TimeoutError:
            for splice in list(self._splices):
                splice.client.reset()
                splice.leader.reset()

    def figures(self) -> dict[str, int]:
        return {
            "connections": len(self._splices),
            "accepted": self._accepted,
            "refused": self._refused,
            "unreachable": self._unreachable,
            "cut": self._cut,
            "bytes": self.bytes_forwarded,
        }
