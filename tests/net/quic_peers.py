"""A QUIC listener with a small session of its own, and a client that can refuse to read. Real sockets, no protocol.

Lines are the frames of this session: what ends in a newline is a frame, and each is a word it understands or is echoed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintet import kernel
from quintet.model.batch import RecordBatch
from quintet.net.certificates import development_certificate
from quintet.net.listener import SWEEP_S, ListenerOptions
from quintet.net.quic import events as quic_events
from quintet.net.quic import twin as quic_twin
from quintet.net.quic.listener import QuicListener
from quintet.net.quic.streams import Stream
from quintet.protocols.base import FLOWING, WAIT, Outlet
from quintet.protocols.options import QuicSection

WAIT_S = 120.0  # on a busy machine the twin loses packets, and slows down
NATIVE = getattr(kernel, "QuicEndpoint", None)


@dataclass
class Seen:
    """What the sessions of a listener were told."""

    sessions: "list[EchoSession]" = field(default_factory=list)
    closed: int = 0
    gone: list[int] = field(default_factory=list)
    shared_closed: int = 0
    reports: list[tuple[str, dict[str, object]]] = field(default_factory=list)

    async def stopped_reading(self) -> None:
        await until(lambda: self.sessions[0].waits or self.sessions[0].holding)


class Shared:
    """The protocol's state of a connection."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def closed(self) -> None:
        self._seen.shared_closed += 1


class EchoSession:
    """Lines in, lines out. The first line is its password: `in` is good, all else is not."""

    def __init__(self, stream: Stream, seen: Seen) -> None:
        self.closing: str | None = None
        self.close_code: int | None = None
        self.auth_failures = 0
        self.principal_name: str | None = None
        self.holding = False
        self.stopped = False
        self.operation = "line"
        self.unanswered = 0
        self.stream = stream
        self.seen = seen
        self.outlets: list[Outlet] = []
        self.waits = False
        self.got = 0
        self.rechecks = 0
        self.parked = 0
        self.due: int | None = None
        self._out: list[bytes] = []
        seen.sessions.append(self)
        if stream.streams.shared is None:
            stream.streams.shared = Shared(seen)

    def receive(self, view: memoryview, now: int) -> int:
        self.rechecks += not view
        self.stopped = self.stopped and bool(view)  # offered again, with nothing: it has taken all
        data = bytes(view)
        end = data.rfind(b"\n") + 1
        used = 0
        for line in data[:end].splitlines(keepends=True):
            if self.holding or self.closing is not None:
                return used
            used += len(line)
            self.got += len(line)
            self._line(line)
        return used

    def _line(self, line: bytes) -> None:
        word, _, rest = line.strip().partition(b" ")
        if self.principal_name is None:
            if word == b"in":
                self.principal_name = "ann"
            else:
                self.auth_failures += 1
        elif word == b"open":
            self.outlets.append(self.stream.streams.open(self.seen.gone.append))
        elif word == b"shut":
            self.closing, self.close_code = "as it was asked", int(rest)
        elif word == b"bye":
            self._out.append(b"bye\n")
            self.closing = ""
        elif word == b"hold":
            self.holding = True
        elif word == b"wait":
            self.waits = True
        elif word == b"fail":
            raise RuntimeError("a mistake")
        elif word == b"many":
            self._out.append(b"x" * int(rest) + b"\n")
        else:
            self._out.append(line)

    def ended(self, now: int) -> None:
        self._out.append(b"end\n")
        self.closing = ""

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None:
        self._out.append(b"appended %d\n" % offset)

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        self.holding = False

    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        raise AssertionError("it subscribes to nothing")

    def congestion(self) -> int:
        return WAIT if self.waits else FLOWING

    def deadline(self) -> int | None:
        return self.due

    def tick(self, monotonic: int) -> None:
        self.due = None
        self._out.append(b"tick\n")

    def take_output(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    def closed(self) -> None:
        self.seen.closed += 1


class ClockedListener(QuicListener):
    """Time goes on when the test says so."""

    ahead = 0

    def monotonic(self) -> int:
        return super().monotonic() + self.ahead


class EchoSection(QuicSection):
    """A door that lets strangers send long frames."""

    open: bool = True

    @property
    def open_to_strangers(self) -> bool:
        return self.open


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncIterator[tuple[ClockedListener, Seen]]:
    certificate, key, _ = development_certificate(folder, ("localhost", "127.0.0.1"))
    seen = Seen()
    chosen = {name: options.pop(name) for name in list(options) if name in ListenerOptions.__struct_fields__}
    listener = ClockedListener(
        ListenerOptions("echo", "127.0.0.1", 0, **chosen),
        EchoSection.model_construct(**options),  # a test may ask for less than an operator may
        (certificate, key, b""),
        lambda stream: EchoSession(stream, seen),
        lambda event, fields: seen.reports.append((event, fields)),
    )
    await listener.start()
    try:
        yield listener, seen
    finally:
        listener.close_all("the test is over")
        await until(lambda: not listener.running)


class Peer:
    """One client connection on the twin endpoint: what it was sent, by stream."""

    def __init__(self, address: str, ca: bytes, identity: tuple[bytes, bytes] = (b"", b""), **options: Any) -> None:
        self.endpoint = quic_twin.QuicEndpoint(
            "127.0.0.1", 0, **{"uni_max": 4096, "stream_window": 64 << 10, "connection_window": 8 << 20, **options}
        )
        host, _, port = address.rpartition(":")
        self.number = self.endpoint.connect(host, int(port), "localhost", ca, *identity)
        self.data: dict[int, bytearray] = {}
        self.fin: set[int] = set()
        self.resets: dict[int, int] = {}
        self.stopped: dict[int, int] = {}
        self.connected = False
        self.closed: tuple[int, str] | None = None
        asyncio.get_running_loop().add_reader(self.endpoint.fileno(), self._ready)

    def _ready(self) -> None:
        for event in self.endpoint.take(1 << 20):
            kind = event[0]
            if kind == quic_events.CONNECTED:
                self.connected = True
            elif kind == quic_events.DATA:
                self.data.setdefault(event[2], bytearray()).extend(event[3])
                if event[4]:
                    self.fin.add(event[2])
            elif kind == quic_events.RESET:
                self.resets[event[2]] = event[3]
            elif kind == quic_events.STOPPED:
                self.stopped[event[2]] = event[3]
            elif kind == quic_events.CLOSED:
                self.closed = (event[2], event[3])

    def open(self) -> int:
        return self.endpoint.open(self.number, True)

    def send(self, stream: int, data: bytes, end: bool = False) -> int:
        return self.endpoint.send(self.number, stream, [data], end)

    async def login(self) -> int:
        """A new stream, let in."""
        stream = self.open()
        self.send(stream, b"in\nhello\n")
        await self.answer(stream, b"hello\n")
        return stream

    async def answer(self, stream: int, data: bytes) -> None:
        await until(lambda: len(self.data.get(stream, b"")) >= len(data))
        found = bytes(self.data[stream])
        assert found == data, f"{found[:100]!r} is not {data[:100]!r}"
        self.data[stream].clear()

    async def finished(self, stream: int) -> None:
        await until(lambda: stream in self.fin)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.endpoint.fileno())
        self.endpoint.close()


@asynccontextmanager
async def peer_of(listener: QuicListener, folder: Path, **options: Any) -> AsyncIterator[Peer]:
    ca = development_certificate(folder, ("localhost", "127.0.0.1"))[0]
    async with connected(listener.address, ca, **options) as peer:
        yield peer


@asynccontextmanager
async def connected(
    address: str, ca: bytes, identity: tuple[bytes, bytes] = (b"", b""), **options: Any
) -> AsyncIterator[Peer]:
    """A peer whose handshake is over, one way or the other."""
    peer = Peer(address, ca, identity, **options)
    try:
        await until(lambda: peer.connected or peer.closed is not None)
        yield peer
    finally:
        peer.close()


async def until(true: Callable[[], Any]) -> None:
    """Wait for it; a test that waits in vain fails with the words of the condition's place."""
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


async def later(listener: ClockedListener, step: int, true: Callable[[], Any]) -> None:
    """Let the listener's time go on until it is so: a peer may have taken the last it could just before a look."""
    async with asyncio.timeout(WAIT_S):
        while not true():
            listener.ahead += step
            await asyncio.sleep(2 * SWEEP_S)
