"""Runs the bidirectional streams of a QUIC connection, one session each. How they and outlets are written to is in writers.py.

When a stream is read and when its peer is cut is decided as for TCP (net/flow_control.py). Where reading is paused, the peer's
window fills up, for this stream only. Nothing is read ahead of a session that holds: the endpoint says by itself that a peer left.

Turns belong to the connection (QuicConnection.later): its streams that wait for one go on in the order in which they came,
as many as one turn has time for. A stream that ends keeps its place until the endpoint has sent everything, so that a peer which reads nothing is noticed.
"""

from collections.abc import Callable
from typing import Final

from quintet.broker.identity.metering import Meter
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.model.errors import QuintetError
from quintet.net.connection import said_of
from quintet.net.flow_control import LARGE_REST_BYTES
from quintet.net.quic.writers import CONNECTION_HIGH_BYTES, StreamConnection, Writer
from quintet.protocols.base import LOST, Streams, StreamSession

CODE_LIMIT: Final = 0x4C  # shuts the connection
LINGER_S = 2.0  # until no data can arrive any more that was read before the stream was stopped
CODE_DONE: Final = 0  # of STOP_SENDING, when an answer ends a stream before its peer does


class Stream(Writer):
    """One bidirectional stream and its session. Implements delivery's Sink for it."""

    __slots__ = (
        "_asked_at", "_failures", "_fin", "_fresh", "_open", "_receiving", "_rest", "_session", "_told_end", "meter", "streams",
    )  # fmt: skip

    def __init__(self, connection: StreamConnection, number: int) -> None:
        super().__init__(connection, number)
        self.streams: Streams = connection
        self.meter: Meter | None = None  # its connection has it
        self._rest: bytes | bytearray = b""  # not consumed by the session
        self._fresh = False  # there are bytes in `_rest` that it has never seen
        self._fin = False
        self._told_end = False
        self._asked_at = 0.0  # when a request was read that is measured; 0: none is
        self._receiving = False
        self._failures = 0
        self._open = True  # `closed` of the session was not called yet
        self._session: StreamSession = connection.listener.make_session(self)

    @property
    def peer(self) -> str:
        return self.connection.peer

    @property
    def who(self) -> str | None:
        return self._session.principal_name if self._open else None

    @property
    def unanswered(self) -> int:
        return self._session.unanswered if self._open else 0

    @property
    def paused(self) -> bool:
        return self._flow.paused

    # -- from the peer ---------------------------------------------------------------------------------------------

    def data(self, data: bytes, fin: bool) -> None:
        if self.dead or self.ending or self.connection.closing:
            return
        quick = getattr(self._session, "quick", None)
        if quick is not None and not (fin or self._rest or self._flow.paused) and self._answers_at_once(quick, data):
            return
        self._fin = self._fin or fin
        if data:
            self._append(data)
        if self._flow.paused:
            self._fresh = self._fresh or bool(data)
            return
        if data and self._crowded_out():
            self._flow.choked = self._fresh = True
            self._pause_or_read()
            return
        if data and self.connection.turns.over():
            self._flow.held = self._fresh = True
            self._pause_or_read()
            self.connection.later(self)
            return
        if data:
            self._offer()
        self._look()

    def _answers_at_once(self, quick: Callable[[bytes, int], bytes], data: bytes) -> bool:
        """The session answered all of a read in one call: nothing is kept, and nothing else has to be looked at, unless it says so."""
        connection, flow = self.connection, self._flow
        turns = connection.turns
        if turns.over() or connection.unsent > limits.WRITE_HIGH_BYTES:
            return False
        answer = quick(data, connection.listener.now())
        if not answer:
            return False
        turns.last = self
        if turns.latencies.sampled() and not self._asked_at:
            self._asked_at = turns.began
        if turns.calls or self._out is not None or flow.watched or flow.parked is not None:
            # What it says may be true only when this turn ends.
            self.push([answer])
            if flow.watched and flow.choke(self._queued + self._out_bytes):
                self._pause_or_read()
        else:
            self.send_now(answer)
        if self._asked_at:
            self._measure()
        if self._session.quick is None:  # type: ignore[attr-defined]  # it was there before
            self._look()
        return True

    def _crowded_out(self) -> bool:
        """Deliveries stop at the mark itself, so bytes above it are answers that the peer does not read, on any of its streams."""
        connection = self.connection
        if connection.unsent <= limits.WRITE_HIGH_BYTES:
            return False
        most = limits.WRITE_HIGH_BYTES if connection.listener.output.full else 2 * CONNECTION_HIGH_BYTES
        if connection.unsent > most and not connection.crowded:
            connection.crowd()
            connection.measure()
        return connection.unsent > most

    def _append(self, data: bytes) -> None:
        self.connection.kept += len(data)
        if not self._rest:
            self._rest = data
        elif isinstance(self._rest, bytearray):
            self._rest += data
        else:
            self._rest = bytearray(self._rest) + data

    def _offer(self) -> None:
        """Give the session what it has not consumed, keep what it leaves, send what it made."""
        self._fresh = False
        view = memoryview(self._rest)
        turns = self.connection.turns
        if turns.latencies.sampled() and not self._asked_at:
            self._asked_at = turns.began
        self._receiving = True
        try:
            consumed = self._session.receive(view, self.connection.listener.now())
        finally:
            self._receiving = False
        left = len(view) - consumed
        self.connection.kept -= consumed
        if not left:
            self._rest = b""
        elif consumed:
            self._rest = bytearray(view[consumed:]) if left > LARGE_REST_BYTES else bytes(view[consumed:])
        del view
        self._drain()
        if self._asked_at:
            self._measure()
        if self._session.auth_failures != self._failures:
            self._count_failures()
        if left and self.connection.kept > (most := self.connection.kept_max):
            self.connection.shut(CODE_LIMIT, f"more than {most // limits.KIB} KiB of unfinished frames")

    def _measure(self) -> None:
        connection = self.connection
        self._asked_at = connection.turns.latencies.measure(connection.listener.name, self._session, self._asked_at)

    def _forget_rest(self) -> None:
        self.connection.kept -= len(self._rest)
        self._rest = b""

    def _look(self) -> None:
        """After the session was offered something: may it be read on?"""
        session = self._session
        if self.ending or self.dead:
            return
        if session.stopped or session.holding:
            self._flow.held = True
            self._pause_or_read()
            self._let_go()
        elif session.congestion():
            self.connection.listener.stalls += 1
            self._stall(0)
        else:
            self._pause_or_read()  # the session has now seen what came while reading was paused
            if self._fin:
                self._end_if_done()

    def _count_failures(self) -> None:
        failed = self._session.auth_failures - self._failures
        self._failures += failed
        self.connection.auth_failed(failed, self.turn_facts())

    def _let_go(self, fresh: bool = False) -> None:
        """The session left whole frames behind: offer them again, unless it still waits for a late answer or the peer
        for room. Reading goes on when it has taken them. `fresh`: this turn is its own, something is taken in any case."""
        session = self._session
        while self._flow.held and not (self._receiving or session.holding or self._unsent_room() <= 0):
            if self.connection.turns.over() and not fresh:
                self.connection.later(self)
                return
            fresh = False
            if self._rest or session.stopped:
                self._offer()
            if self.dead or self.ending:
                return
            if not (self._session.holding or session.stopped):
                self._flow.held = False
                self._stall(0)

    def go_on(self) -> None:
        if self.dead:
            return
        if self._flow.held:
            self._let_go(fresh=True)
        super().go_on()

    def claim(self, size: int, token: object) -> bool:
        """See Link. It is the connection that holds; a stream's own answers keep within its room."""
        return True

    def unclaim(self) -> None:
        """Nothing was claimed."""

    def turn_over(self) -> bool:
        return self.connection.turns.over()

    def turn_facts(self) -> dict[str, object]:
        return {**super().turn_facts(), **said_of(self._session)}

    def _charge(self, meter: Meter, size: int) -> None:
        """Answers: the next request waits for them."""
        self.wait(meter.answered(size, self.connection.listener.monotonic()))

    def wait(self, wait_us: int) -> None:
        """Its user is above its rate: what is here is taken, and nothing more is read for so long."""
        if not wait_us or self._flow.charged or self.dead or self.ending or self.connection.closing:
            return
        self._flow.charged = True
        self._pause_or_read()
        self.connection.listener.loop.call_later(wait_us / 1e6, self.connection.turns.run, self._paid_back)

    def _paid_back(self) -> None:
        self._flow.charged = False
        if not self.connection.closing:
            self._go_on()

    def _stall(self, step: int) -> None:
        """Back-pressure: not reading is all it takes."""
        if self.dead or self.ending:
            return
        delay = self._flow.stall(self._session.congestion(), step)
        if delay is None:
            self._go_on()
            return
        self._pause_or_read()
        self.connection.listener.loop.call_later(delay, self.connection.turns.run, self._stall, step + 1)

    def _go_on(self) -> None:
        """One reason not to read is gone; perhaps it was the last."""
        if not self._flow.readable or self.dead or self.ending:
            return
        if self._fresh and self.connection.turns.over():
            self._flow.held = True
            self._pause_or_read()
            self.connection.later(self)
            return
        if self._fresh:
            self._offer()
            self._look()
            return
        self._pause_or_read()
        self._end_if_done()

    def _pause_or_read(self) -> None:
        if self._flow.changed():
            self.connection.listener.endpoint.pause(self.connection.number, self.number, self._flow.paused)

    def _end_if_done(self) -> None:
        """The peer finished its side and the session has seen all of it: call `ended`, once."""
        if self._fin and not (self._told_end or self._fresh or self._flow.held or self.ending or self.dead):
            self._told_end = True
            self._forget_rest()
            self._session.ended(self.connection.listener.now())
            self._drain()

    def writable(self) -> None:
        if self.dead:
            return
        self._read_on_if_room()
        super().writable()

    def wake_if_room(self) -> None:
        if self._unsent_room() > 0:
            self._read_on_if_room()
        super().wake_if_room()

    def _read_on_if_room(self) -> None:
        """The peer took something: two reasons not to read may be gone."""
        if self._flow.choked:
            self._flow.choked = False
            self._go_on()
        if self._flow.held:
            self._let_go()

    def was_reset(self, code: int) -> None:
        """The peer reset its side, so no answer can be read. While the stream ends, this is the reply to our STOP_SENDING."""
        if self.ending:
            return
        self._fin = True  # nothing more comes
        self.connection.listener.endpoint.reset(self.connection.number, self.number, code)
        self.gone(code)

    def gone(self, code: int) -> None:
        if self.die():
            connection = self.connection
            if code != LOST and not self._fin:
                connection.listener.endpoint.stop(connection.number, self.number, CODE_DONE)
                # It keeps its number for a while: what the endpoint read before it was stopped is no new stream.
                connection.keep(self)
                connection.listener.loop.call_later(LINGER_S, connection.forget, self)
            self._let_session_go()

    def _let_session_go(self) -> None:
        self._forget_rest()
        if self._open:
            self.connection.remember(self._session.principal_name)
            self._open = False
            self._session.closed()

    # -- from the broker: the Sink ---------------------------------------------------------------------------------

    def appended(self, token: object, offset: int, error: Exception | None) -> None:
        if self._open and not self.connection.closing:
            try:
                self._session.on_appended(token, offset, error)
                self._answered()
            except Exception as fault:
                self.connection.fault("appended", fault)

    def completed(self, token: object, result: object, error: Exception | None) -> None:
        if self._open and not self.connection.closing:
            try:
                if error is not None and not isinstance(error, QuintetError):
                    raise error  # a fault of a verb, and no refusal: reported, and it costs this connection alone
                self._session.on_completed(token, result, error)
                self._answered()
            except Exception as fault:
                self.connection.fault("completed", fault)

    def _answered(self) -> None:
        if not self._receiving:  # otherwise the read in progress sends it together with its other output
            self._drain()
            if (
                self._session.auth_failures != self._failures
            ):  # a password is judged in a thread, and the peer may hang up now
                self._count_failures()
            if self._asked_at:
                self._measure()
            if self._flow.held:
                self._let_go()

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        if self._open and not self.connection.closing:
            try:
                self._session.on_records(subscription, partition, batch, first, last)
                self._drain()
            except Exception as fault:
                self.connection.fault("records", fault)

    def evict(self, reason: str) -> None:
        if self._open and not self.connection.closing:
            try:
                self._session.closing = self._session.closing or reason
                self._drain()
            except Exception as fault:
                self.connection.fault("evict", fault)

    def recheck(self) -> None:
        """Credentials changed: let the session look at its own now, not only when the peer speaks next."""
        if self._open and not self.ending and not self.connection.closing:
            self._receiving = True  # it may act on requests that it left, and those may be answered at once
            try:
                self._session.receive(memoryview(b""), self.connection.listener.now())
                self._receiving = False
                self._answered()
            except Exception as fault:
                self.connection.fault("recheck", fault)

    def watch(self) -> None:
        """The session has a deadline again: the listener's sweep looks at it."""
        self.connection.watch(self)

    # -- to the peer -----------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self.dead or self.ending:
            return
        self.connection.turns.last = self
        output = self._session.take_output()
        if output:
            self.push(output)
            if self._flow.watched and self._flow.choke(self._queued + self._out_bytes):
                self._pause_or_read()
        if self._session.closing is not None:
            self._close(self._session.closing)

    def _close(self, reason: str) -> None:
        if self._session.close_code is not None:
            self.connection.shut(self._session.close_code, reason)
            return
        if reason:  # empty: the peer closed, so there is nothing to report
            self.connection.report_closing(reason, self.turn_facts())
        self.ending = True
        self._flow.parked = None
        self.connection.listener.touch(self)

    def flush(self) -> None:
        super().flush()
        if self.ending and self._open and not self.dead:
            # Not when it ended, but here: the broker may have been in the middle of a round over its subscriptions.
            if not self._fin:
                self.connection.listener.endpoint.stop(self.connection.number, self.number, CODE_DONE)
            self._let_session_go()
            return
        waits = self._flow.held or self._flow.choked
        if waits and self._queued <= limits.WRITE_HIGH_BYTES and self._unsent_room() > 0:
            self._read_on_if_room()  # all of it was taken at once: the endpoint owes no WRITABLE

    def check(self, monotonic: int) -> None:
        """Called by the sweep while there is a deadline or a stalled write."""
        if self._open and not self.ending:
            deadline = self._session.deadline()
            if deadline is not None and monotonic >= deadline:
                self._session.tick(monotonic)
                self._drain()
        super().check(monotonic)

    @property
    def watched(self) -> bool:
        if self.dead:
            return False
        waits = self._open and not self.ending and self._session.deadline() is not None
        return waits or self._flow.watched
