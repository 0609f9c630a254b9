"""Connects a TCP socket with its session: reads for it, calls it, writes its output. The only caller of a session.

    socket -> buffer_updated -> session.receive -> (broker) ... -> session.take_output -> transport.write
    delivery / broker -> records, appended, completed -> session.on_* -> (end of turn) send -> session.take_output -> transport.write

All connections of a listener share one read buffer: what a session leaves is copied out before the next read. A frame larger than
that, or in many pieces, gets one of its own, which takes memory only for what arrives and is never used again: sessions keep views of it.

A session takes frames until the turn of the loop is over (net/turns.py, ADR 13); what it leaves is offered again in a later
turn, and until then nothing is read. Deliveries stop in the same way: when the turn is over there is no room.
A turn writes once to a connection, behind all that the turn brought for it (`Turns.owe`), except for large output: what is above
GATHERED_BYTES_MAX goes at once, and so does what a claim was made for.
An exception that a session raises while it receives ends its connection, and no other.
"""

import asyncio
import mmap
import os
import socket
from collections.abc import Callable
from functools import partial
from time import time_ns
from typing import Any, cast

from quintet.broker.identity.metering import Meter
from quintet.log.base import Held
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.client_address import ClientAddress
from quintet.model.errors import QuintetError
from quintet.model.histogram import SKIPPED
from quintet.net.connection_bytes import GATHERED_BYTES_MAX, doubled, mapped, queued_bytes, write_pieces
from quintet.net.flow_control import LARGE_REST_BYTES, FlowControl
from quintet.net.owner import Owner
from quintet.net.sockets import SocketTransport
from quintet.protocols.base import Direct, Session

HELD_BYTES_MAX = 16 * limits.KIB  # read while an answer is pending, to notice a peer that disconnects
COPIED_BYTES_MAX = limits.READ_BUFFER_BYTES * 7 // 8  # of an unfinished frame: the next read still has room behind it
COPIED_SHARE_MAX = 4  # times what was read since: a frame that comes in many pieces is not copied for each of them
LARGE_SPARE_BYTES = limits.MIB  # of such a buffer when it is made; then it doubles

QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)


def said_of(session: Session) -> dict[str, object]:
    """`operation` of its last request, and `request`, the id that the wire gave it, where the protocol has such ids."""
    request = getattr(session, "request", "")
    return {"operation": getattr(session, "operation", "")} | ({"request": request} if request else {})


class Connection(asyncio.BufferedProtocol):
    """One accepted socket. Implements delivery's Sink for its session."""

    __slots__ = (
        "_asked_at", "_claimed", "_failures", "_flow", "_fresh", "_large", "_large_used", "_listener", "_lost", "_opened_at", "_out", "_out_bytes", "_owed", "_pushed", "_queued", "_receiving",
        "_meter", "_moved_in", "_moved_out", "_rest", "_session", "_socket", "_transport", "_turns", "_waking", "id", "peer",
    )  # fmt: skip

    def __init__(self, listener: Owner) -> None:
        self._listener = listener
        self._turns = listener.turns
        self.id = next(listener.turns.connection_ids)
        self._moved_in = self._moved_out = 0
        self._transport: asyncio.Transport | None = None
        self._socket: SocketTransport | None = None  # the same, if the kernel may take reads of it
        self._session: Session
        self._rest = b""
        self._large: mmap.mmap | None = None
        self._large_used = 0
        self._flow = FlowControl()
        self._failures = 0
        self._opened_at = listener.monotonic()
        self._lost = False
        self._out: list[bytes] = []  # taken from the session in this turn and not written yet
        self._out_bytes = 0
        self._pushed = False  # the session has made output of one run of records, and it was not taken yet
        self._owed = False  # the end of this turn sends
        self._asked_at = 0.0  # when a request was read that is measured; 0: none is
        self._claimed = False  # bytes of the output budget are held for an answer that is being made
        self._receiving = False
        self._queued = False  # what the session left is offered again in a later turn
        self._waking = False  # those that are parked are woken in a later turn
        self._fresh = False  # this turn belongs to the parked calls: at least one of them runs
        self.peer = ClientAddress("", self.id)
        self._meter: Meter | None = None

    @property
    def bytes_in(self) -> int:
        """The listener adds up those of its connections when it is asked."""
        return self._moved_in + (self._socket.moved[0] if self._socket is not None else 0)

    @property
    def bytes_out(self) -> int:
        return self._moved_out + (self._socket.moved[1] if self._socket is not None else 0)

    @property
    def meter(self) -> Meter | None:
        """Of who has a rate."""
        return self._meter

    @meter.setter
    def meter(self, meter: Meter | None) -> None:
        self._meter = meter
        if meter is not None and self._socket is not None:
            self._socket.allow(None, True)

    # -- from the socket -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has another base class
        self._socket = transport if isinstance(transport, SocketTransport) else None
        address = transport.get_extra_info("peername")
        self.peer = ClientAddress(f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "local", self.id)
        self._transport.set_write_buffer_limits(high=limits.WRITE_HIGH_BYTES, low=limits.WRITE_LOW_BYTES)
        self._session = self._listener.make_session(self)
        self._listener.opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            if self._large_used == len(self._large):
                self._large = doubled(self._large)
            view = memoryview(self._large)[self._large_used : self._large_used + limits.TURN_BYTES]
        else:
            view = self._listener.read_view
            if self._rest:
                view[: len(self._rest)] = self._rest
                view = view[len(self._rest) :]
        return view if self._meter is None else view[: self._meter.read_bytes_max]

    def taken(self, nbytes: int, split: object, measured: bool) -> None:
        """The kernel read this, and there is something in it for the session, which was quiet: `split` is what its own call would have
        given (net/sockets.py)."""
        if self._socket is not None:
            self._socket.take_over()
        self.buffer_updated(nbytes, split, measured)

    def buffer_updated(self, nbytes: int, split: object = None, measured: bool | None = None) -> None:
        turns, listener, session, flow = self._turns, self._listener, self._session, self._flow
        if measured is None:  # no other has counted it
            turns.reads += 1
            measured = turns.reads & SKIPPED == 1
        began = turns.begin()
        if measured and not self._asked_at:
            self._asked_at = turns.began
        try:
            self._moved_in += nbytes
            if self._meter is not None:
                self._wait(self._meter.received(nbytes, listener.monotonic()))
            if self._large is not None:
                self._large_used = size = self._large_used + nbytes
                available = memoryview(self._large)[:size]
            else:
                available = listener.read_view[: len(self._rest) + nbytes]
            if flow.held and session.holding:
                self._keep(available)
            else:
                self._offer(available, nbytes, split)
            if self._transport is None or self._transport.is_closing():
                return
            if getattr(session, "quick_ack", False):
                self._acknowledge()
            if flow.held:
                self._go_on_with_rest()
            elif session.congestion():
                listener.stalls += 1
                self._stall(0)
        finally:
            if began:
                turns.end(self.buffer_updated)

    def _go_on_with_rest(self) -> None:
        """The session left something: offer it again if that can be now; until then little more is read."""
        if self._session.stopped or self._large is not None or len(self._rest) > HELD_BYTES_MAX:
            self._flow.ahead = False
            self._pause_or_read()
        self._let_go()

    def _offer(self, available: memoryview, brought: int = 0, split: object = None) -> bool:
        """Give the session what it has not consumed, keep what it leaves, end the turn if this is the only read of the pass, and
        send what was made: one write. True: the session left whole frames."""
        session = self._session
        gathers = self._turns.gather_if_alone()
        self._receiving = True
        left = False
        try:
            now = time_ns() // 1000
            consumed = (
                session.receive(available, now)
                if split is None
                else cast(Direct, session).receive(available, now, split)
            )
            if consumed != len(available) or self._rest or self._large is not None:
                self._keep(available[consumed:], consumed + brought)
            left = session.stopped or session.holding
            if left:
                # Before the turn is ended, which may produce the late answer: then the rest is offered again.
                self._hold()
        except Exception as fault:
            self.fault("receive", fault)
        if gathers:
            self._turns.finish()
        self._receiving = False
        if not self._lost and not ((left or self._owed) and self._gathers_more()):
            self._send("receive")
        return left

    def _gathers_more(self) -> bool:
        """The end of this turn sends, because what the session left may be taken in it, too. Not if there is much already."""
        if self._claimed or self._session.closing is not None or not self._owe():
            return False
        try:
            self._take(False)
        except Exception as fault:
            self.fault("receive", fault)
        return self._out_bytes <= GATHERED_BYTES_MAX

    def _measure(self) -> None:
        self._asked_at = self._turns.latencies.measure(self._listener.name, self._session, self._asked_at)

    def _acknowledge(self) -> None:
        """Let the system acknowledge at once what was read (Linux; elsewhere it stays as it is). It does so by itself up to
        40 ms later, and a peer that writes in small pieces with Nagle's algorithm sends the next one only then."""
        if QUICK_ACK is None or self._transport is None:
            return
        number = self._transport.get_extra_info("socket").fileno()
        # Not the transport's own object: uvloop's makes a second descriptor for every call.
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=number)
        try:
            borrowed.setsockopt(socket.IPPROTO_TCP, QUICK_ACK, 1)
        finally:
            borrowed.detach()

    def _count_failures(self) -> None:
        failed = self._session.auth_failures - self._failures
        self._failures += failed
        self._listener.auth_failed(self, failed)

    def turn_facts(self) -> dict[str, object]:
        return {
            "door": self._listener.name,
            **said_of(self._session),
            "connection": self.id,
            "peer": self.peer,
            "who": self.who,
        }

    def turn_over(self) -> bool:
        return self._turns.over()

    def _offer_again(self) -> None:
        self._queued = False
        if self._flow.held:
            self._let_go(fresh=True)

    def _waits_its_turn(self) -> bool:
        return self._queued

    def _let_go(self, fresh: bool = False) -> None:
        """The session left whole frames behind: offer them again, unless it still waits for a late answer or the peer
        for room. Reading goes on when it has taken them. `fresh`: this turn is its own, something is taken in any case."""
        session = self._session
        while not (self._queued or self._receiving or self._lost or session.holding or self._own_room() <= 0):
            if not self._rest and self._large is None and not session.stopped:
                self._go_on()
                return
            if self._turns.over() and not fresh:
                self._queued = True
                self._flow.ahead = False
                self._pause_or_read()
                self._turns.later(self._offer_again)
                return
            fresh = False
            left = memoryview(self._large)[: self._large_used] if self._large is not None else memoryview(self._rest)
            more = self._offer(left)
            if not self._flow.held or self._waits_its_turn():
                return  # draining produced a late answer, and that continued with the rest
            if not more:
                self._go_on()
                return

    def _hold(self) -> None:
        if not self._flow.held:
            self._flow.held = self._flow.ahead = True

    def _go_on(self) -> None:
        self._flow.held = False
        self._stall(0)

    def _pause_or_read(self) -> None:
        if self._transport is None or self._transport.is_closing() or not self._flow.changed():
            return
        if self._flow.paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _keep(self, rest: memoryview, moved: int = 0) -> None:
        """moved: bytes read or consumed since the last time. What is little beside them is copied: fresh pages cost eight times as much."""
        if not rest:
            self._rest, self._large = b"", None
        elif len(rest) <= LARGE_REST_BYTES or len(rest) <= min(COPIED_BYTES_MAX, COPIED_SHARE_MAX * moved):
            self._rest, self._large = bytes(rest), None
        elif self._large is None or len(rest) != self._large_used:
            self._large_used = len(rest)
            self._large = mapped(len(rest) + LARGE_SPARE_BYTES)
            self._large[: len(rest)] = rest
            self._rest = b""

    def _stall(self, step: int) -> None:
        """Back-pressure: not reading is all it takes."""
        if self._transport is None or self._transport.is_closing():
            return
        delay = self._flow.stall(self._session.congestion(), step)
        self._pause_or_read()
        if delay is not None:
            self._listener.loop.call_later(delay, self._turns.run, self._stall, step + 1)

    def _wait(self, wait_us: int) -> None:
        """Its user is above its rate: what is here is taken, and nothing more is read for so long. No time runs out meanwhile."""
        if not wait_us or self._flow.charged or self._lost:
            return
        self._flow.charged = True
        self._pause_or_read()
        postpone = getattr(self._session, "postpone", None)
        if postpone is not None:
            postpone(wait_us)
        self._listener.loop.call_later(wait_us / 1e6, self._turns.run, self._paid_back)

    def _paid_back(self) -> None:
        self._flow.charged = False
        self._pause_or_read()

    def _charge(self, meter: Meter, size: int, pushed: bool) -> None:
        """So much goes out. What answers requests holds up the next request, what is pushed the next push (room)."""
        monotonic = self._listener.monotonic()
        if pushed:
            meter.delivered(size, monotonic)
        else:
            self._wait(meter.answered(size, monotonic))

    def pause_writing(self) -> None:
        self._watch_unsent()

    def _watch_unsent(self) -> None:
        """From now on the peer has to take something every WRITE_STALL_US."""
        self._flow.watch(self._listener.monotonic(), self._untaken())
        self._listener.watch_stall(self)

    def resume_writing(self) -> None:
        self._turns.run(self._has_room)

    def _has_room(self) -> None:
        flow = self._flow
        flow.unwatch()
        if not self._claimed:
            self._listener.output.hold(self, 0)
        flow.choked = False
        self._pause_or_read()
        if flow.held:
            self._let_go()
        self._wake()

    def _wake(self) -> None:
        try:
            self._flow.wake(self.room, self.park)
        except Exception as fault:
            self.fault("room", fault)

    def _wake_later(self) -> None:
        self._waking = False
        self._fresh = True
        self._wake()
        self._fresh = False

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._flow.parked = None
        self._out = []
        try:
            self._session.closed()
        except Exception as fault:
            self.fault("closed", fault)
        self._listener.output.drop(self)
        self._listener.closed(self)
        self._transport = None

    # -- to and from another process of the same broker (net/cells/handing.py) -----------------------------------------

    def certificate(self) -> dict[str, Any]:
        """Of the peer, as `ssl` tells it; empty: it showed none."""
        return {} if self._transport is None else self._transport.get_extra_info("peercert") or {}

    def duplicate(self) -> int | None:
        """A descriptor of its socket for another process. None: it cannot be given away, for keys or output would stay behind."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() or self._out:
            return None
        if transport.get_extra_info("sslcontext") is not None or self._meter is not None:
            return None
        return os.dup(transport.get_extra_info("socket").fileno())

    def abandon(self) -> None:
        """Another process goes on with it: forget it, and say nothing to its peer."""
        self._lost = True  # nothing more enters the session but `closed`
        self._flow.parked = None
        if self._transport is not None:
            self._transport.abort()

    def take_over(self, login: bytes) -> bool:
        """Its peer has logged in at another process, by these bytes, and was answered. False: that does not hold here."""
        take_over = getattr(self._session, "take_over", None)
        if self._lost or take_over is None or not take_over(login, self._listener.now()):
            self.evict("its login does not hold any more: connect again")
            return False
        return True

    # -- from the broker: the Sink ---------------------------------------------------------------------------------

    def room(self) -> int:
        if self._meter is not None and self._meter.withheld(self._listener.monotonic()):
            return 0
        output = self._listener.output
        return 0 if output.used >= output.bytes_max or (self._turns.over() and not self._fresh) else self._own_room()

    @property
    def withheld(self) -> bool:
        """Its user is above the rate at which it may be sent something."""
        return self._meter is not None and self._meter.withheld(self._listener.monotonic()) > 0

    def _own_room(self) -> int:
        """Of its own socket, whatever others hold. What its peer asks for goes by this: a large answer has its claim, and
        nobody would offer the rest again when others have sent theirs."""
        if self._transport is None or self._transport.is_closing():
            return 0
        # One more than the mark: at the mark itself the transport has not paused, so no parked call would be woken.
        return limits.WRITE_HIGH_BYTES + 1 - self._transport.get_write_buffer_size()

    def park(self, call: Callable[[], None]) -> None:
        self._flow.park(call)
        if self._own_room() <= 0:
            return  # the transport calls
        if self._listener.output.full:  # this socket has room, but the budget of all sockets is used up
            self._listener.output.park(self, self._wake)
        elif not self._waking:  # only the turn is over, or its user is above its rate
            self._waking = True
            withheld = self._meter.withheld(self._listener.monotonic()) if self._meter is not None else 0
            if withheld:
                self._listener.loop.call_later(withheld / 1e6, self._turns.run, self._wake_later)
            else:
                self._turns.later(self._wake_later)

    def claim(self, size: int, token: object) -> bool:
        """See Link. What was claimed is given back when the answer was handed to the socket."""
        if self._lost:
            return False
        granted = self._listener.output.claim(self, size, partial(self._granted, token))
        self._claimed = granted or self._claimed
        return granted

    def _granted(self, token: object) -> None:
        """What it waited for is its own now: without this mark nobody would give it back, and its next claim would wait for
        ever."""
        self._claimed = True
        self.completed(token, None, None)

    def unclaim(self) -> None:
        if not self._lost:
            self._claimed = False
            self._listener.output.answered(self, self._unsent())

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        if not self._lost:
            try:
                self._session.on_appended(token, offset, error)
                self._answered()
            except Exception as fault:
                self.fault("appended", fault)

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        if not self._lost:
            try:
                if error is not None and not isinstance(error, QuintetError):
                    raise error  # a fault of a verb, and no refusal: reported, and it costs this connection alone
                self._session.on_completed(token, result, error)
                self._answered()
            except Exception as fault:
                self.fault("completed", fault)

    def _answered(self) -> None:
        if self._receiving:
            return  # the read in progress sends it together with its other output
        if self._meter is not None:
            self._take(False)  # now: what is pushed later in this turn is charged otherwise
        if self._claimed or not self._owe():
            self._send("answer")
        if self._flow.held:
            self._let_go()

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        self._fresh = False
        if not self._lost:
            try:
                self._session.on_records(subscription, partition, batch, first, last)
                if self._receiving and not self._pushed and self._meter is None:
                    self._pushed = True  # one run: the read in progress takes it, with its answers
                    return
                self._take(True)
                if self._out_bytes > GATHERED_BYTES_MAX or self._claimed or not (self._receiving or self._owe()):
                    self._send("records")
            except Exception as fault:
                self.fault("records", fault)

    def _owe(self) -> bool:
        """The end of this turn sends. False: no turn is under way."""
        if not self._owed:
            self._owed = self._turns.owe(self)
        return self._owed

    def send(self) -> None:
        """The turn ends."""
        self._owed = False
        if not self._lost:
            self._send("answer")

    def fault(self, where: str, error: Exception) -> None:
        """An exception in its session ends this connection and no other: the caller continues with the next one."""
        self._lost = True  # nothing more enters the session but `closed`
        self._flow.parked = None
        self._listener.fault(self, where, error)
        if self._transport is not None:
            self._transport.abort()

    @property
    def age_seconds(self) -> float:
        return (self._listener.monotonic() - self._opened_at) / 1e6

    def facts(self) -> dict[str, object]:
        """What an operator asks about it: its age, what it moved, what waits on either side, and how it is encrypted."""
        transport = self._transport
        unsent, tls, cipher = 0, "", ""
        if transport is not None and not transport.is_closing():
            unsent = transport.get_write_buffer_size() + queued_bytes(transport.get_extra_info("socket"))
            encrypted = transport.get_extra_info("ssl_object")
            if encrypted is not None:
                tls, cipher = encrypted.version() or "", (encrypted.cipher() or ("",))[0]
        return {"seconds": round(self.age_seconds, 3), "bytes_in": self.bytes_in, "bytes_out": self.bytes_out, "unsent_bytes": unsent,
                "unanswered": self._session.unanswered, "paused": self._flow.paused, "tls": tls, "cipher": cipher}  # fmt: skip

    def evict(self, reason: str) -> None:
        if self._lost:
            return
        self._session.closing = self._session.closing or reason
        self._send("evict")

    def recheck(self) -> None:
        """Credentials changed: let the session look at its own now, not only when the peer speaks next."""
        if not self._lost:
            self._receiving = True  # it may act on requests that it left before, and those may be answered at once
            try:
                self._session.receive(memoryview(b""), self._listener.now())
                self._receiving = False
                self._answered()
            except Exception as fault:
                self.fault("recheck", fault)

    def watch(self) -> None:
        """The session has a deadline again: the listener's sweep looks at it."""
        self._listener.watch_stall(self)

    # -- to the socket ---------------------------------------------------------------------------------------------

    def _take(self, pushed: bool) -> None:
        """Take over what the session has made, to be written later in this turn."""
        output = self._session.take_output()
        if output:
            size = len(output[0]) if len(output) == 1 else sum(map(len, output))
            self._out = self._out + output if self._out else output
            self._out_bytes += size
            if self._meter is not None:
                self._charge(self._meter, size, pushed)

    def _send(self, where: str) -> None:
        """Write what was made, close if that was the last, then see whether it answered the last request."""
        try:
            self._turns.last = self
            self._pushed = False
            session, transport, flow = self._session, self._transport, self._flow
            if self._out or self._meter is not None:
                self._take(False)
                output, size = self._out, self._out_bytes
                self._out, self._out_bytes = [], 0
            else:
                output = session.take_output()
                size = len(output[0]) if len(output) == 1 else sum(map(len, output))
            if output and transport is not None:
                self._moved_out += size
                if flow.watched:
                    flow.added(size)
                if len(output) == 1:
                    transport.write(output[0])
                else:
                    write_pieces(transport, output, size)
                if self._claimed and getattr(session, "making", False):
                    pass  # these are other answers: the one that was claimed for is not among them
                elif self._claimed or flow.watched:
                    self._claimed = False
                    self._listener.output.answered(self, self._unsent())
                if flow.watched and flow.choke(transport.get_write_buffer_size()):
                    self._pause_or_read()
            if session.closing is not None and transport is not None and not transport.is_closing():
                self._close(transport, session.closing)
            if session.auth_failures != self._failures:  # perhaps late: a password is judged in a thread
                self._count_failures()
            if self._asked_at:
                self._measure()
            if self._socket is not None and (self._socket.was_lent or getattr(session, "direct", None) is not None):
                self._lend_reader()
        except Exception as fault:
            self.fault(where, fault)

    def _lend_reader(self) -> None:
        """The kernel may take its next reads if nothing of it is left to offer, and may not otherwise. It answers behind the session."""
        session, flow = self._session, self._flow
        reader = getattr(session, "direct", None)
        assert self._socket is not None
        if reader is not None:
            busy = session.stopped or session.holding or flow.held or flow.stalling or flow.charged
            if busy or self._rest or self._large is not None or self._out or self._receiving or self._meter is not None:
                reader = None
        self._socket.allow(reader, bool(session.unanswered or self._out or self._receiving))

    def adopt(self, unanswered: list[Any]) -> list[Held | None]:
        """The session answers these from now on: reads that the kernel took, in their order."""
        adopt = cast(Direct, self._session).adopt
        return [adopt(one) for one in unanswered]

    def count_moved(self, bytes_in: int, bytes_out: int) -> None:
        """Its socket goes, with its own counts."""
        self._moved_in += bytes_in
        self._moved_out += bytes_out
        self._socket = None

    def _close(self, transport: asyncio.Transport, reason: str) -> None:
        if reason:  # empty: the peer closed, so there is nothing to report
            self._listener.closing(self, reason)
        transport.close()
        if transport.get_write_buffer_size():
            self._watch_unsent()  # a peer that reads nothing must not keep a closing connection for ever

    def _unsent(self) -> int:
        """What its peer has not taken, if that is more than the socket's own mark."""
        assert self._transport is not None
        return self._transport.get_write_buffer_size() if self._flow.watched else 0

    def _untaken(self) -> int:
        """What its peer's system has not acknowledged. The transport alone would not show that a slow peer reads: the socket
        takes more from it only when a third of its own buffer, which may be megabytes, is free."""
        assert self._transport is not None
        return self._transport.get_write_buffer_size() + queued_bytes(self._transport.get_extra_info("socket"))

    def check(self, monotonic: int) -> None:
        """Called by the listener's sweep while there is a deadline or a stalled write."""
        if self._lost:
            return
        try:
            deadline = self._session.deadline()
            if deadline is not None and monotonic >= deadline:
                self._session.tick(monotonic)
                self._send("tick")
        except Exception as fault:
            self.fault("tick", fault)
        if not self._flow.watched or self._transport is None:
            return
        unsent = self._transport.get_write_buffer_size()
        pressed = self._listener.output.pressed and unsent > limits.WRITE_HIGH_BYTES
        overdue = self._flow.overdue(monotonic, self._untaken(), pressed)
        if overdue:
            self._listener.closing(self, overdue)
            self._transport.abort()
        elif not self._claimed:
            self._listener.output.hold(self, unsent)

    @property
    def watched(self) -> bool:
        """Still has a deadline or a stalled write."""
        return not self._lost and (self._session.deadline() is not None or self._flow.watched)

    @property
    def who(self) -> str | None:
        return self._session.principal_name
