"""Serves plain TCP connections by sockets of the kernel, in place of the loop's own transports (ADR 54).

    loop --(epoll of all sockets)--> Hub._ready --wait, next--> reads that the kernel appended and answers by itself: nothing to do here
                                                          +---> a connection whose session has to see its bytes: buffer_updated
                                     (end of turn) one write, one sync for all of them --> release: the kernel sends their answers

A read that is alone in its pass does not wait for the end of the turn: if the log lets it (`KernelWrites`), the kernel writes, syncs and
answers it before it says anything here.

The kernel takes a read alone if the session of its connection has lent a reader (`Session.direct`) and nothing is left to offer. What
the session itself has not answered yet goes first: the kernel's answers wait behind it. As soon as Python has to act on such a
connection, it takes over what is not answered (`take_over`), each as a slot of its session, so answers leave in their order. A
partition that gives back what the kernel appended finds its waiter in the same way (`held_by`).

Rights, limits and back-pressure stay where they were: a reader is good for one epoch of rights only, and no read is taken by the
kernel while the disk is behind or the broker drains. TLS, Unix sockets, and every system without the native kernel keep the
transports of the loop; whatever serves connections must work with both.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable
from time import time_ns
from typing import Any, Final, Protocol, cast

from quintet import kernel
from quintet.kernel.items import DirectReader
from quintet.log.base import Appended, Held, KernelWrites
from quintet.model import limits
from quintet.net.disk_writes import BYTES_MAX as WRITTEN_BYTES_MAX
from quintet.net.turns import Turns

ACCEPTS_MAX: Final = 256  # in one callback
BACKLOG: Final = 1024  # connections that the system holds until they are accepted
ACCEPT_PAUSE_S: Final = 1.0  # after an accept that failed for want of descriptors or memory
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

READABLE: Final = -1  # what kernel.Sockets.next says in place of a number of bytes
WRITABLE: Final = -2
FAULT: Final = -3
NOTHING: Final = -2  # of what the kernel may write by itself


class Client(Protocol):
    """What is connected by such a socket (connection.Connection)."""

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def taken(self, nbytes: int, split: object, measured: bool) -> None:
        """The kernel has read so much into the shared buffer, and its session's own call gave this."""

    def adopt(self, unanswered: list[object]) -> list[Held | None]:
        """Answer these from now on."""

    def fault(self, where: str, error: Exception) -> None: ...

    def turn_facts(self) -> dict[str, object]:
        """For the log, if what it did took long."""

    def count_moved(self, bytes_in: int, bytes_out: int) -> None:
        """The kernel moved these by itself, and moves no more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def eof_received(self) -> bool: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class Publishing(Protocol):
    """What the hub has to know of the broker."""

    def epoch(self) -> int:
        """Another number whenever rights, or the secrets that tokens are judged by, may have changed."""

    def is_direct(self) -> bool:
        """May the kernel append what needs no decision? Not while the disk is behind, or the broker drains."""

    def appended(self) -> None:
        """Something was appended to memory topics."""

    def held(self, ticket: int, ways: int, held: Held) -> bool:
        """Something was appended to partitions in files (log.base.Log.tails_held)."""

    @property
    def kernel_writes(self) -> KernelWrites: ...


class _Nobody:
    """Who waits for a read whose connection is gone, or that nobody is told of."""

    def done(self) -> None: ...

    def waiter(self, number: int) -> Appended | None:
        return None


NOBODY: Final = _Nobody()


class _Pass:
    """The reads that the kernel took in one pass wait together (log.base.Held)."""

    __slots__ = ("_hub", "_number", "_ticket", "_ways")

    def __init__(self, hub: "Hub", number: int, ticket: int, ways: int) -> None:
        self._hub = hub
        self._number = number
        self._ticket = ticket
        self._ways = ways.bit_count()

    def done(self) -> None:
        self._ways -= 1
        if not self._ways:
            self._hub.release(self._number)

    def waiter(self, number: int) -> Appended | None:
        return self._hub.held_by(self._ticket).waiter(number)


class Hub:
    """One for all listeners of a loop. Belongs to the loop thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns, publishing: Publishing) -> None:
        assert kernel.Sockets is not None
        self.loop = loop
        self.read_view = memoryview(bytearray(limits.READ_BUFFER_BYTES))
        self.sockets = kernel.Sockets(self.read_view, limits.WRITE_HIGH_BYTES, limits.WRITE_LOW_BYTES)
        self.publishing = publishing
        self._kernel_writes = publishing.kernel_writes
        self.turns = self._turns = turns
        self.lent = 0  # connections whose reads the kernel may take; while there are none, nobody asks what readers are good for
        loop.add_reader(self.sockets.fileno(), self._ready)

    def close(self) -> None:
        self.loop.remove_reader(self.sockets.fileno())

    # -- one pass ------------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        count = self.sockets.wait()
        if count == 1:
            self._read_one()
        elif count:
            self._read_many()

    def _next(self, may: int = NOTHING) -> "tuple[SocketTransport, int, object, bool] | None":
        """may: what the kernel may write by itself (log.base.KernelWrites)."""
        publishing = self.publishing
        return self.sockets.next(time_ns() // 1000, publishing.epoch(), publishing.is_direct(), may, WRITTEN_BYTES_MAX)

    def _read_one(self) -> None:
        """A read that is alone ends its own turn (ADR 32)."""
        turns = self._turns
        turns.begin()
        ended: Callable[..., None] = self._ready
        try:
            found = self._next(self._kernel_writes.may_write()) if self.lent else self.sockets.next(0, 0, False)
            if found is None:
                gathers = turns.lone_read.under_way = turns.gather_many()
                self._hold_passed()
                if gathers:
                    turns.finish()
            else:
                turns.alone(True)
                owner, size, split, measured = found
                ended = owner.act
                ended(size, split, measured)
        finally:
            turns.end(ended)

    def _read_many(self) -> None:
        """Connections that are read together share one end of turn. Those that Python acts for have a turn of their own each."""
        turns = self._turns
        turns.alone(False)
        gathers = turns.gather_many()
        while True:
            turns.begin()
            try:
                found = self._next()
                self._hold_passed()
            finally:
                turns.end(self._ready)
            if found is None:
                break
            owner, size, split, measured = found
            owner.act(size, split, measured)
        if gathers:
            turns.run(turns.finish)

    def _hold_passed(self) -> None:
        """What the kernel appended by itself becomes durable, and visible, at the end of this turn, or at once."""
        number, reads, in_memory, ticket, ways, wrote, unwritten = self.sockets.passed()
        if not reads:
            return
        self._turns.reads += reads
        if wrote is not None:
            self._kernel_writes.wrote(wrote)
        if ways:
            held = _Pass(self, number, ticket, ways)
            if unwritten is not None:
                self._kernel_writes.unwritten(ticket, ways, held, unwritten)
            elif self.publishing.held(ticket, ways, held):
                self.release(number)
        elif in_memory:
            self.publishing.appended()

    def release(self, number: int) -> None:
        slots, above = self.sockets.release(number)
        for slot in slots:
            slot.done()
        for owner in above:
            owner.above_mark()

    def held_by(self, ticket: int) -> Held:
        """Who waits for the read with this ticket: its session does from now on."""
        owner = self.sockets.owner_of(ticket)
        if owner is not None:
            owner.take_over()
        return self.sockets.slot_of(ticket) or NOBODY


class SocketTransport(asyncio.Transport):
    """One connection."""

    __slots__ = (
        "_behind", "_closing", "_hub", "_id", "_lost", "_paused", "_protocol", "_reading", "_socket", "_sockets", "lent", "was_lent",
    )  # fmt: skip

    def __init__(self, hub: Hub, connected: socket.socket, protocol: Client, peer: object) -> None:
        super().__init__({"peername": peer})
        self._hub = hub
        self._sockets = hub.sockets
        self._socket = connected
        self._protocol = protocol
        self._closing = self._lost = False  # no more is read; the protocol was told, or will be
        self._paused = False  # the protocol was told that much is unsent
        self._reading = True
        self.lent = False  # the kernel was last given a reader
        self.was_lent = False  # it was ever given one: only then there may be something to take over
        self._behind = False  # its answers wait for the session's
        self._id = self._sockets.add(connected.fileno(), self)
        protocol.connection_made(self)

    # -- from the kernel -----------------------------------------------------------------------------------------------

    def act(self, size: int, split: object, measured: bool) -> None:
        """Something happened that the kernel does not decide."""
        if size == READABLE:
            self._read()
        elif size == WRITABLE:
            self._hub.turns.run(self._below_mark)
        elif size == FAULT:
            self._protocol.fault("receive", cast(Exception, split))
        else:
            self._protocol.taken(size, split, measured)

    def turn_facts(self) -> dict[str, object]:
        return self._protocol.turn_facts()

    def _read(self) -> None:
        if self._closing:
            return
        if self.was_lent:
            self.take_over()
        size = self._sockets.recv(self._id, self._protocol.get_buffer(-1))
        if size is None:
            return
        if size > 0:
            self._protocol.buffer_updated(size)
        elif size == 0:
            if not self._protocol.eof_received():
                self.close()
        else:
            self._lose(OSError(-size, os.strerror(-size)))

    def take_over(self) -> None:
        """The session answers what the kernel has not."""
        unanswered = self._sockets.unanswered(self._id)
        if unanswered:
            self._sockets.adopted(self._id, self._protocol.adopt(unanswered))

    def allow(self, reader: DirectReader | None, owed: bool) -> None:
        """The kernel may take reads by this reader, while rights are what they are. None: it may not. owed: the session has answers to send
        before those of the kernel, and calls this again when they are sent."""
        if not self._closing and (reader is not None or self.lent or self._behind):
            lent = reader is not None
            self._hub.lent += lent - self.lent
            self.lent = lent
            self.was_lent = self.was_lent or lent
            self._behind = owed and (lent or self._behind)
            if self._sockets.allow(self._id, reader, self._hub.publishing.epoch(), owed):
                self.above_mark()

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes that the kernel read and answered by itself."""
        return (0, 0) if self._lost else self._sockets.moved(self._id)

    # -- asyncio.Transport ---------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket if name == "socket" else super().get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False
        if not self._closing:
            self._sockets.set_reading(self._id, False)

    def resume_reading(self) -> None:
        self._reading = True
        if not self._closing:
            self._sockets.set_reading(self._id, True)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They are the same for all connections (model/limits.py)."""

    def get_write_buffer_size(self) -> int:
        return 0 if self._lost else max(0, self._sockets.unsent(self._id))

    def write(self, data: Any) -> None:
        if not self._lost:
            unsent = self._sockets.send(self._id, data)
            if unsent:
                self._sent(unsent)

    def writelines(self, list_of_data: Any) -> None:
        if not self._lost:
            self._sent(self._sockets.send_all(self._id, list_of_data))

    def _sent(self, unsent: int) -> None:
        if unsent < 0:
            self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        elif unsent > limits.WRITE_HIGH_BYTES:
            self.above_mark()

    def above_mark(self) -> None:
        if not self._paused and not self._lost:
            self._paused = True
            self._protocol.pause_writing()

    def _below_mark(self) -> None:
        if self._lost:
            return
        unsent = self._sockets.unsent(self._id)
        if unsent < 0:
            self._sent(unsent)
            return
        if self._paused and unsent <= limits.WRITE_LOW_BYTES:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and self.get_write_buffer_size() == 0:
            self._lose(None)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._sockets.allow(self._id, None, 0, True)
        self._sockets.set_reading(self._id, False)
        if self._sockets.unsent(self._id) <= 0:
            self._lose(None)

    def abort(self) -> None:
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """Once: the protocol hears of it in a later callback."""
        if self._lost:
            return
        in_, out = self.moved
        self._protocol.count_moved(in_, out)
        self._closing = self._lost = True
        self._hub.lent -= self.lent
        self._sockets.remove(self._id)
        self._hub.loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()


class Accepting:
    """Accepts the connections of one listener."""

    def __init__(self, hub: Hub, listening: list[socket.socket], make: Callable[[], Client]) -> None:
        self.sockets = listening
        self._hub = hub
        self._make = make
        for one in listening:
            one.setblocking(False)
            one.listen(BACKLOG)
            hub.loop.add_reader(one.fileno(), self._accept, one)

    def close(self) -> None:
        for one in self.sockets:
            if one.fileno() >= 0:
                self._hub.loop.remove_reader(one.fileno())
                one.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                connected, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in EXHAUSTED:  # it stays readable: wait, and let others close theirs
                    self._hub.loop.remove_reader(listening.fileno())
                    self._hub.loop.call_later(ACCEPT_PAUSE_S, self._accept_again, listening)
                    return
                continue  # that peer left
            connected.setblocking(False)
            if connected.family != socket.AF_UNIX:
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            SocketTransport(self._hub, connected, self._make(), peer)

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._hub.loop.add_reader(listening.fileno(), self._accept, listening)


async def bind(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[socket.socket]:
    """A socket for every address of this host, as the loop's create_server has it."""
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as made:
        bound = []
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = made.enter_context(contextlib.closing(socket.socket(family, kind, protocol)))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            bound.append(one)
        made.pop_all()
    return bound
