"""From a socket to a session and back: the only caller of a session, for every TCP door.

    socket -> buffer_updated -> session.receive -> (broker) ... -> session.take_output -> transport.writelines
    delivery / broker -> records, appended, completed -> session.on_* -> session.take_output -> transport.writelines

All connections of a listener share one read buffer: what a session does not consume is copied out before the next
read. Only a frame larger than that buffer gets one of its own, which grows with the bytes that really arrive. An idle
connection thus holds no buffer at all.
"""

import asyncio
from collections.abc import Callable
from time import time_ns
from typing import TYPE_CHECKING, cast

from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.protocols.base import STALL, WAIT, Session

if TYPE_CHECKING:
    from quintet.net.listener import Listener

LARGE_REST_BYTES = 64 * limits.KIB  # of an unfinished frame: above this it is collected in a buffer of its own
HELD_BYTES_MAX = (
    16 * limits.KIB
)  # read while a late answer is waited for, to notice a peer that goes; then reading pauses
STALL_STEP_S = 0.001  # how long a congested publisher is not read from before looking again ...
STALL_STEPS_MAX = 10  # ... and how often, when the reason is a slow subscriber and not the disk
STALL_STEPS_EVEN = 16  # looks of the same distance, then they come further apart, up to ...
STALL_STEP_MAX_S = 0.02  # ... this: thousands of connections may wait for one slow disk
CHOKE_BYTES = 4 * limits.WRITE_HIGH_BYTES  # of answers the peer does not take: above this it may not ask for more


class Connection(asyncio.BufferedProtocol):
    """One accepted socket. Implements delivery's Sink for its session."""

    __slots__ = (
        "_choked", "_failures", "_held", "_large", "_large_used", "_listener", "_lost", "_parked", "_receiving", "_rest",
        "_session", "_stalled_bytes", "_stalled_since", "_transport", "peer",
    )  # fmt: skip

    def __init__(self, listener: "Listener") -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._session: Session
        self._rest = b""
        self._large: bytearray | None = None
        self._large_used = 0
        self._parked: list[Callable[[], None]] | None = None
        self._stalled_since: int | None = None
        self._stalled_bytes = 0  # unsent when last looked at: fewer now means that the peer reads
        self._failures = 0
        self._lost = False
        self._choked = False
        self._held = False  # the session leaves whole frames here until a late answer
        self._receiving = False
        self.peer = ""

    # -- from the socket -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, but does not derive from it
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local"
        self._transport.set_write_buffer_limits(high=limits.WRITE_HIGH_BYTES, low=limits.WRITE_LOW_BYTES)
        self._session = self._listener.make_session(self)
        self._listener.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            if self._large_used == len(self._large):
                self._large.extend(bytes(len(self._large)))  # doubled, only after it was really filled
            return memoryview(self._large)[self._large_used :]
        view = self._listener.read_view
        if self._rest:
            view[: len(self._rest)] = self._rest
            return view[len(self._rest) :]
        return view

    def buffer_updated(self, nbytes: int) -> None:
        listener = self._listener
        listener.bytes_in += nbytes
        if self._large is not None:
            self._large_used = size = self._large_used + nbytes
            available = memoryview(self._large)[:size]
        else:
            size = len(self._rest) + nbytes
            available = listener.read_view[:size]
        session = self._session
        if self._held and session.holding:
            self._keep(available)
        else:
            self._offer(available)
        if self._transport is None or self._transport.is_closing():
            return
        if session.stopped or session.holding:
            self._held = True
            if session.stopped or self._large is not None or len(self._rest) > HELD_BYTES_MAX:
                self._transport.pause_reading()
            self._let_go()
        elif session.congestion():
            self._stall(0)

    def _offer(self, available: memoryview) -> None:
        """Give the session what it has not consumed, keep what it leaves, send what it made."""
        self._receiving = True
        consumed = self._session.receive(available, time_ns() // 1000)
        self._receiving = False
        if consumed != len(available) or self._rest or self._large is not None:
            self._keep(available[consumed:])
        self._drain()
        self._count_failures()

    def _count_failures(self) -> None:
        failed = self._session.auth_failures - self._failures
        if failed:
            self._failures += failed
            self._listener.auth_failed(self, failed)

    def _let_go(self) -> None:
        """The session left whole frames behind: offer them again, unless it still waits for a late answer or the peer
        for room. Reading goes on when it has taken them."""
        session = self._session
        while not (self._receiving or self._lost or session.holding or self.room() <= 0):
            if not self._rest and self._large is None:
                self._go_on()
                return
            left = memoryview(self._large)[: self._large_used] if self._large is not None else memoryview(self._rest)
            self._offer(left)
            if not session.stopped and not session.holding:
                self._go_on()
                return

    def _go_on(self) -> None:
        self._held = False
        self._stall(0, resuming=True)

    def _keep(self, rest: memoryview) -> None:
        if not rest:
            self._rest, self._large = b"", None
        elif len(rest) <= LARGE_REST_BYTES:
            self._rest, self._large = bytes(rest), None
        elif self._large is None or len(rest) != self._large_used:
            self._large_used = len(rest)
            self._large = bytearray(2 * len(rest))
            self._large[: len(rest)] = rest
            self._rest = b""

    def _stall(self, step: int, resuming: bool = False) -> None:
        """Back-pressure: not reading is all it takes. A slow disk may hold a publisher back as long as it is slow; a slow
        subscriber only for a few milliseconds per read, then it is the one who loses (D6)."""
        if self._transport is None or self._transport.is_closing():
            return
        congestion = self._session.congestion()
        if step == 0 and (congestion or not resuming):
            self._transport.pause_reading()
            self._listener.stalls += not resuming
        if congestion == WAIT or (congestion == STALL and step < STALL_STEPS_MAX):
            delay = min(STALL_STEP_S * (1 + step // STALL_STEPS_EVEN), STALL_STEP_MAX_S)
            self._listener.loop.call_later(delay, self._stall, step + 1)
        elif not self._choked and not self._held:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._watch_unsent()

    def _watch_unsent(self) -> None:
        """From now on the peer has to take something every WRITE_STALL_US."""
        assert self._transport is not None
        self._stalled_since = self._listener.now()
        self._stalled_bytes = self._transport.get_write_buffer_size()
        self._listener.watch_stall(self)

    def resume_writing(self) -> None:
        self._stalled_since = None
        if self._choked and self._transport is not None:
            self._choked = False
            if not self._held:
                self._transport.resume_reading()
        if self._held:
            self._let_go()
        parked, self._parked = self._parked, None
        for call in parked or ():
            call()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._parked = None
        self._session.closed()
        self._listener.closed(self)
        self._transport = None

    # -- from the broker: the Sink ---------------------------------------------------------------------------------

    def room(self) -> int:
        if self._transport is None or self._transport.is_closing():
            return 0
        # One more than the mark: at the mark itself the transport has not paused, so nobody would wake who parks.
        return limits.WRITE_HIGH_BYTES + 1 - self._transport.get_write_buffer_size()

    def park(self, call: Callable[[], None]) -> None:
        if self._parked is None:
            self._parked = []
        self._parked.append(call)

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        if not self._lost:
            self._session.on_appended(token, offset, error)
            self._answered()

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        if not self._lost:
            self._session.on_completed(token, result, error)
            self._answered()

    def _answered(self) -> None:
        if not self._receiving:  # else the read under way sends it, together with what else it makes
            self._drain()
            if self._held:
                self._let_go()

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        if not self._lost:
            self._session.on_records(subscription, partition, batch, first, last)
            self._drain()

    def evict(self, reason: str) -> None:
        self._session.closing = self._session.closing or reason
        self._drain()

    def recheck(self) -> None:
        """Credentials changed: let the session look at its own now, not only when the peer speaks next."""
        if not self._lost:
            self._session.receive(memoryview(b""), self._listener.now())
            self._drain()

    def watch(self) -> None:
        """The session has a deadline again: the listener's sweep looks at it."""
        self._listener.watch_stall(self)

    # -- to the socket ---------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        output = self._session.take_output()
        transport = self._transport
        if transport is None:
            return
        if output:
            if len(output) == 1:
                transport.write(output[0])
            else:
                transport.writelines(output)
            self._listener.bytes_out += sum(map(len, output))
            if self._stalled_since is not None and not self._choked and transport.get_write_buffer_size() > CHOKE_BYTES:
                self._choked = True  # deliveries stop by themselves (room); only replies come this far
                transport.pause_reading()
        if self._session.closing is not None and not transport.is_closing():
            if self._session.closing:  # empty: the peer wanted it, and there is nothing to say
                self._listener.closing(self, self._session.closing)
            transport.close()
            if transport.get_write_buffer_size():
                self._watch_unsent()  # a peer that reads nothing must not keep a closing connection for ever

    def check(self, now: int) -> None:
        """Called by the listener's sweep while there is a deadline or a stalled write."""
        deadline = self._session.deadline()
        if deadline is not None and now >= deadline:
            self._session.tick(now)
            self._drain()
        stalled = self._stalled_since
        if stalled is None or self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent < self._stalled_bytes:
            self._stalled_since, self._stalled_bytes = now, unsent
        elif now - stalled >= limits.WRITE_STALL_US:
            self._listener.closing(self, "the peer has read nothing for 10 seconds")
            self._transport.abort()

    @property
    def watched(self) -> bool:
        """Still has a deadline or a stalled write."""
        return not self._lost and (self._session.deadline() is not None or self._stalled_since is not None)

    @property
    def who(self) -> str | None:
        return self._session.principal_name
