"""Moves the bytes of streams between their owner and aioquic, for the QUIC endpoint of twin.py.

    send() -> Flow.queue -> pump -> aioquic                      aioquic -> received -> Flow.held -> take() -> credit

`tell` hands an event to the owner of the endpoint; `touch` says that aioquic has something to send for a connection.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from quintet.kernel.items import QuicEvent as Event
from quintet.net.quic.engine import Engine
from quintet.net.quic.events import DATA, SENT, WRITABLE


class Flow:
    """One stream."""

    __slots__ = ("above", "consumed", "end", "ended", "fin", "held", "later", "marked", "paused", "queue", "queued", "sent",
                 "silent", "stopped")  # fmt: skip

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()
        self.queued = 0
        self.above = False  # queued was above write_high: WRITABLE is owed
        self.end = False  # FIN behind the queue ...
        self.ended = False  # ... was given to aioquic
        self.silent = False  # reset, or stopped by the peer: nothing more is sent
        self.held: list[bytes] = []
        self.fin = False
        self.sent = False  # the end, or the reset, is acknowledged
        self.marked = False  # an event for `held` is in the list
        self.paused = False
        self.stopped = False  # what comes is dropped
        self.consumed = 0
        self.later: list[Callable[[], None]] = []


class EngineConnection:
    """One connection."""

    __slots__ = ("alive", "cids", "connected", "consumed", "flows", "gone", "half_open", "number", "overdue", "peer",
                 "quic", "timer", "timer_at", "unfinished")  # fmt: skip

    def __init__(self, number: int, quic: Engine) -> None:
        self.number = number
        self.quic = quic
        self.flows: dict[int, Flow] = {}
        self.unfinished: set[int] = set()  # streams with a queue, or whose end is not acknowledged
        self.cids: set[bytes] = set()
        self.consumed = 0
        self.connected = self.gone = self.half_open = False
        self.peer = ""
        self.timer: asyncio.TimerHandle | None = None
        self.timer_at: float | None = None
        self.overdue: asyncio.TimerHandle | None = None
        self.alive: asyncio.TimerHandle | None = None


class StreamQueues:
    """The streams of all connections of one endpoint."""

    def __init__(
        self,
        tell: Callable[[Event], None],
        touch: Callable[[EngineConnection], None],
        *,
        stream_window: int,
        connection_window: int,
        send_window: int,
        write_low: int,
    ) -> None:
        self._tell = tell
        self._touch = touch
        self._stream_window, self._connection_window = stream_window, connection_window
        self._send_window, self._write_low = send_window, write_low

    def flow(self, link: EngineConnection, stream: int) -> Flow:
        flow = link.flows.get(stream)
        if flow is None:
            flow = link.flows[stream] = Flow()
        return flow

    def received(self, link: EngineConnection, stream: int, data: bytes, fin: bool) -> None:
        flow = self.flow(link, stream)
        if flow.stopped:
            self.credit(link, stream, flow, len(data))
            return
        if data:
            flow.held.append(data)
        flow.fin = fin
        if not flow.paused:
            self.mark(link, stream, flow)

    def mark(self, link: EngineConnection, stream: int, flow: Flow) -> None:
        if not flow.marked:
            flow.marked = True
            self._tell((DATA, link, stream, flow))

    def credit(self, link: EngineConnection, stream: int, flow: Flow, size: int) -> None:
        """Bytes are taken: the peer may send as many more. Told when it is worth a frame."""
        before, all_before = flow.consumed, link.consumed
        flow.consumed += size
        link.consumed += size
        half = self._stream_window // 2
        if before // half != flow.consumed // half:
            link.quic.raise_stream_limit(stream, flow.consumed + self._stream_window)
            self._touch(link)
        half = self._connection_window // 2
        if all_before // half != link.consumed // half:
            link.quic.raise_limit(link.consumed + self._connection_window)
            self._touch(link)

    def drop(self, link: EngineConnection, stream: int, flow: Flow) -> None:
        """Nobody reads on: what the peer has used of the connection's limit is given back."""
        if not flow.stopped:
            flow.stopped = True
            flow.held = []
            self.credit(link, stream, flow, max(0, link.quic.received(stream) - flow.consumed))

    def silence(self, flow: Flow) -> None:
        flow.silent = True
        flow.queue.clear()
        flow.queued = 0

    def pump(self, link: EngineConnection, stream: int, flow: Flow) -> None:
        """From the queue into aioquic, as far as its own buffer may grow; then what the owner waits to hear."""
        if flow.later:
            if link.quic.blocked(stream):
                return
            orders, flow.later = flow.later, []
            for order in orders:
                order()
            self._touch(link)
        if flow.silent:
            if link.quic.sent_whole(stream):
                self._sent(link, stream)
            return
        room = link.quic.room(stream, self._send_window)
        while flow.queue and room > 0:
            piece = flow.queue.popleft()
            if len(piece) > room:
                flow.queue.appendleft(piece[room:])
                piece = piece[:room]
            room -= len(piece)
            flow.queued -= len(piece)
            link.quic.send_stream_data(stream, piece)
        if flow.above and flow.queued <= self._write_low:
            flow.above = False
            self._tell((WRITABLE, link.number, stream))
        if flow.queue:
            return
        if not flow.end:
            link.unfinished.discard(stream)
        elif not flow.ended:
            flow.ended = True
            link.quic.send_stream_data(stream, b"", end_stream=True)
        elif link.quic.sent_whole(stream):
            self._sent(link, stream)

    def _sent(self, link: EngineConnection, stream: int) -> None:
        link.unfinished.discard(stream)
        link.flows[stream].sent = True
        self._tell((SENT, link.number, stream))
        self.tidy(link, stream)

    def tidy(self, link: EngineConnection, stream: int) -> None:
        """Forget a stream both of whose sides are done."""
        flow = link.flows.get(stream)
        if flow is None:
            return
        ours = bool(stream & 1) != link.quic.is_client
        read = flow.stopped or (flow.fin and not flow.held) or (stream & 2 and ours)
        if read and (flow.sent or (stream & 2 and not ours)):
            del link.flows[stream]

    def order(self, link: EngineConnection, stream: int, flow: Flow, call: Callable[[], None]) -> None:
        """Reset or stop a stream, now or when the peer allows that it begins."""
        link.unfinished.add(stream)
        if link.quic.blocked(stream):
            flow.later.append(call)
        else:
            call()
            self._touch(link)
