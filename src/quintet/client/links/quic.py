"""Opens one QUIC connection of a client: an endpoint of its own, streams by number, and a Flow that gets the events of each.

    connect() --> Connection --open--> stream number --send, pause, stop-->
                      |
                      +-- events of the endpoint --> the Flow of each stream; `incoming` makes one for a stream of the peer

The endpoint is the kernel's, with a thread for the network; without a native kernel it is its twin on aioquic. UDP has no
refusal of its own: that nobody is there is learnt from the host, which answers a datagram to a closed port. So while
nothing is heard, one byte is sent from a second socket, and a refusal ends the waiting. Frames do not belong here.
"""

import asyncio
import re
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

from quintet import kernel
from quintet.client.core.errors import BadUrl, ConnectionLost
from quintet.client.core.message import log
from quintet.client.core.quiet import quiet_libraries
from quintet.client.core.url import Endpoint
from quintet.kernel.items import QuicEvent, SocketAddress
from quintet.model.extras import needed_by

CONNECTED, DATA, WRITABLE, STOPPED, RESET, CLOSED, SENT = range(1, 8)

IDLE_MS: Final = 10_000  # silence after which the connection is given up
KEEP_ALIVE_MS: Final = 3_000
TAKE_BYTES_MAX: Final = 1024 * 1024  # of stream data, in one turn of the loop
STREAM_WINDOW_BYTES: Final = 1024 * 1024
# Each stream has its own window; the sum has none that matters, so that a reader who pauses stops only itself.
CONNECTION_WINDOW_BYTES: Final = (1 << 31) - 1
SEND_WINDOW_BYTES: Final = 8 * 1024 * 1024
WRITE_HIGH_BYTES: Final = 4 * 1024 * 1024  # queued per stream; above it callers wait
WRITE_LOW_BYTES: Final = 1024 * 1024
STREAMS_IN_MAX: Final = 4_096  # event streams the server may have open
FORGOTTEN_MAX: Final = STREAMS_IN_MAX  # of them, that were given up here and of which something may still be on its way
TRY_FIRST_S: Final = 2.0  # one attempt to connect; each further one may take twice as long
PROBE_AFTER_S: Final = 0.3
PROBE_S: Final = 0.2  # for the host's refusal to come back
WATCH_S: Final = 0.5
QUIET_MAX: Final = int((KEEP_ALIVE_MS / 1000 + 1) / WATCH_S)  # checks without any datagram before the host is probed

TLS_CODES: Final = range(0x100, 0x200)  # of CONNECTION_CLOSE: 0x100 and an alert of TLS
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_PRIVATE_KEY: Final = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----\n?", re.DOTALL)
CA_HINT: Final = "add ?ca=FILE with the authority that signed the server's certificate (or that certificate itself)"
# What TLS says -> what to do, where another authority would not help; the first whose words are in it.
_TLS_HINTS: Final = (
    (
        "causedasendentity",
        "the server shows the certificate of an authority (CA:TRUE, as `openssl req -x509` makes it by itself): give it one "
        "made with -addext basicConstraints=critical,CA:FALSE, or one that the authority signed",
    ),
    ("for name", "write a name that is in the server's certificate into the URL, or have this one put into it"),
    ("match", "write a name that is in the server's certificate into the URL, or have this one put into it"),
    ("expired", "the server needs a new certificate; is the clock of this machine right?"),
    ("not valid", "is the clock of this machine right?"),
)
CERT_HINT: Final = "show who you are with ?cert=FILE&key=FILE: the server asks for a certificate that it knows"

quiet_libraries()


class Flow(Protocol):
    """Who one stream belongs to."""

    @property
    def waits(self) -> bool:
        """Whether an answer is owed."""

    def data(self, data: bytes, end: bool) -> None: ...

    def drained(self) -> None:
        """What waited to be sent is below WRITE_LOW_BYTES again."""

    def stopped(self, code: int) -> None:
        """The peer reads no more of it; what it says itself may still come."""

    def ended(self, code: int) -> None:
        """The peer broke off its side."""

    def gone(self, error: ConnectionLost) -> None:
        """The connection is no more."""


class Wire(Protocol):
    """The part of an endpoint that a client uses; see kernel.QuicEndpoint."""

    def fileno(self) -> int: ...
    def take(self, bytes_max: int) -> list[QuicEvent]: ...
    def hold(self) -> None: ...
    def flush(self) -> None: ...
    def send(self, connection: int, stream: int, data: list[bytes], end: bool) -> int: ...
    def open(self, connection: int, bidirectional: bool) -> int: ...
    def pause(self, connection: int, stream: int, paused: bool) -> None: ...
    def stop(self, connection: int, stream: int, code: int) -> None: ...
    def shut(self, connection: int, code: int, reason: bytes) -> None: ...
    def connect(self, host: str, port: int, server_name: str, ca: bytes, certificate: bytes, key: bytes) -> int: ...
    def figures(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class Address(NamedTuple):
    """Where a server is: an address that needs no resolving."""

    family: int
    address: SocketAddress


class Proof(NamedTuple):
    """What TLS needs: whom to trust (empty: the system's authorities), and who we are."""

    ca: bytes
    certificate: bytes
    key: bytes


def endpoint(family: int) -> Wire:
    """A socket of a client, on a free port."""
    return endpoint_class()(
        "::" if family == socket.AF_INET6 else "0.0.0.0",
        0,
        streams_max=0,
        uni_max=STREAMS_IN_MAX,
        idle_ms=IDLE_MS,
        keep_alive_ms=KEEP_ALIVE_MS,
        connections_max=1,
        half_open_max=1,
        retry_above=1,
        stream_window=STREAM_WINDOW_BYTES,
        connection_window=CONNECTION_WINDOW_BYTES,
        send_window=SEND_WINDOW_BYTES,
        write_high=WRITE_HIGH_BYTES,
        write_low=WRITE_LOW_BYTES,
    )


def endpoint_class() -> Callable[..., Wire]:
    """The kernel's endpoint, or the one in Python: it stands with the server's network code, and is all of it that a client
    may load. PackageMissing: there is neither."""
    native = getattr(kernel, "QuicEndpoint", None)
    if native is not None:
        return cast(Callable[..., Wire], native)
    with needed_by("felix:// without the native kernel", "felix"):
        from quintet.net.quic.twin import QuicEndpoint
    return cast(Callable[..., Wire], QuicEndpoint)


class Connection:
    """A connection that lives once. `lost` says why there is none any more."""

    def __init__(self, address: Address, incoming: Callable[[int], Flow]) -> None:
        self._address = address
        self._incoming = incoming
        self._loop = asyncio.get_running_loop()
        self._wire = endpoint(address.family)
        self._number = 0
        self._flows: dict[int, Flow] = {}
        self._forgotten: dict[int, None] = {}  # streams of the peer that were given up, the oldest first
        self._up: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._datagrams_seen = 0
        self._quiet = 0
        self._ended = False
        self._soon = False  # a flush is due
        self.lost: ConnectionLost | None = None
        self._loop.add_reader(self._wire.fileno(), self._ready)

    async def establish(self, where: Endpoint, proof: Proof, seconds: float) -> None:
        """The handshake; ConnectionLost says why it failed, TimeoutError that no answer came."""
        host, port = str(self._address.address[0]), int(self._address.address[1])
        try:
            self._number = self._wire.connect(host, port, where.host, *proof)
        except ValueError as error:
            raise BadUrl(f"cannot use ca=, cert= or key=: {error}", hint="they are PEM files") from error
        self._probe = self._loop.create_task(self._ask_host(PROBE_AFTER_S))
        async with asyncio.timeout(seconds):
            await asyncio.shield(self._up)
        self._timer = self._loop.call_later(WATCH_S, self._watch)

    # -- streams ---------------------------------------------------------------------------------------------------

    def open(self, flow: Flow) -> int:
        """A new stream in both directions."""
        stream = self._wire.open(self._number, True) if self.lost is None else -1
        if stream < 0:
            raise self.lost or ConnectionLost("the connection ended")
        self._flows[stream] = flow
        return stream

    def send(self, stream: int, data: Sequence[bytes], end: bool = False) -> bool:
        """Queue bytes; whether more than WRITE_HIGH_BYTES wait now. What is sent on a stream that is gone is dropped: its
        flow is told by other ways."""
        if self.lost is not None:
            return False
        if not self._soon:  # what one turn of the loop sends goes together
            self._soon = True
            self._wire.hold()
            self._loop.call_soon(self._flush)
        return self._wire.send(self._number, stream, list(data), end) > WRITE_HIGH_BYTES

    def _flush(self) -> None:
        self._soon = False
        self._wire.flush()

    def pause(self, stream: int, paused: bool) -> None:
        if self.lost is None:
            self._wire.pause(self._number, stream, paused)

    def forget(self, stream: int) -> None:
        """Nothing of this stream matters any more."""
        if self._flows.pop(stream, None) is not None and self.lost is None:
            self._wire.stop(self._number, stream, 0)
            if stream & 3 == 3:
                self._forgotten[stream] = None
                if len(self._forgotten) > FORGOTTEN_MAX:
                    del self._forgotten[next(iter(self._forgotten))]

    # -- events ----------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        self._soon = True  # output caused by these events is flushed below
        self._wire.hold()
        try:
            for event in self._wire.take(TAKE_BYTES_MAX):
                if event[1] == self._number and self.lost is None:
                    self._on(event)
        finally:
            self._flush()

    def _on(self, event: QuicEvent) -> None:
        kind = event[0]
        if kind == DATA:
            stream, data, end = event[2:]
            flow = self._flows.get(stream)
            if flow is None:
                if stream & 3 != 3 or stream in self._forgotten:
                    return  # data of a stream that was given up, which was still in flight
                flow = self._flows[stream] = self._incoming(stream)
            flow.data(data, end)
            if end and stream & 3 == 3:
                self._flows.pop(stream, None)
        elif kind == CONNECTED:
            if not self._up.done():
                self._up.set_result(None)
        elif kind == CLOSED:
            self._end(_closed(event[2], event[3], self._up.done()))
        elif kind in (WRITABLE, STOPPED, RESET):
            flow = self._flows.get(event[2])
            if flow is None:
                return
            if kind == WRITABLE:
                flow.drained()
            elif kind == STOPPED:
                flow.stopped(event[3])
            else:
                flow.ended(event[3])
                if event[2] & 3 == 3:
                    self._flows.pop(event[2], None)

    def _watch(self) -> None:
        """No datagram came although one is due: probe whether the port is open."""
        heard = self._wire.figures()["datagrams_in"]
        self._quiet = self._quiet + 1 if heard == self._datagrams_seen else 0
        self._datagrams_seen = heard
        waiting = self._quiet and any(flow.waits for flow in self._flows.values())
        if (waiting or self._quiet > QUIET_MAX) and (self._probe is None or self._probe.done()):
            self._probe = self._loop.create_task(self._ask_host(0))
        self._timer = self._loop.call_later(WATCH_S, self._watch)

    async def _ask_host(self, after: float) -> None:
        await asyncio.sleep(after)
        if self.lost is None and not (after and self._up.done()) and await _refused(self._address):
            hint = "is the broker running? `quintet serve --dev` starts one; this port is UDP"
            self._end(ConnectionLost("nobody listens there", hint=hint))

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self, error: ConnectionLost) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if not self._up.done():
            self._up.set_exception(error)
            self._up.exception()  # marks the exception as retrieved, in case nobody waits for it
        flows, self._flows = self._flows, {}
        for flow in flows.values():
            flow.gone(error)
        self._loop.call_soon(self.close)

    def close(self, code: int = 0, reason: str = "") -> None:
        """Say goodbye, and give the socket back."""
        if self._ended:
            return
        self._ended = True
        self._loop.remove_reader(self._wire.fileno())
        if self._timer is not None:
            self._timer.cancel()
        if self._probe is not None:
            self._probe.cancel()
        if self.lost is None and self._number:
            self._wire.shut(self._number, code, reason.encode())
        self._end(ConnectionLost("the connection was closed here"))
        self._wire.close()


class Shut(ConnectionLost):
    """A connection that ended with a code; `tls` if TLS refused a certificate."""

    def __init__(self, message: str, code: int, hint: str = "", tls: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.close_code = code
        self.tls = tls


def _closed(code: int, reason: str, up: bool) -> Shut:
    """What the end of a connection says; TLS says it with codes of its own."""
    if code in TLS_CODES or (not up and "certificate" in reason.lower()):
        return Shut(f"TLS failed: {reason}", code, CERT_HINT if up else _tls_hint(reason), tls=True)
    return Shut(reason or f"closed with code {code:#x}", code)


def _tls_hint(reason: str) -> str:
    return next((hint for words, hint in _TLS_HINTS if words in reason.lower()), CA_HINT)


async def _refused(address: Address) -> bool:
    """Whether the host says that the port is closed."""
    with socket.socket(address.family, socket.SOCK_DGRAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address.address)
            probe.send(b"\0")
            await asyncio.sleep(PROBE_S)
            probe.recv(1)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


# -- connecting --------------------------------------------------------------------------------------------------------


def proof_of(where: Endpoint) -> Proof:
    """The files that the URL names. BadUrl says which cannot be read."""
    ca, certificate, key = _read("ca", where.ca), _read("cert", where.cert), _read("key", where.key)
    for option, text in (("ca", ca), ("cert", certificate)):
        if text and _CERTIFICATE not in text:
            raise BadUrl(f"{option}={getattr(where, option)} holds no certificate", hint="it is a PEM file")
    if certificate and not key:
        found = _PRIVATE_KEY.search(certificate)
        if found is None:
            raise BadUrl(f"cert={where.cert} holds no private key", hint="name the file that does: ?key=FILE")
        key = found[0]
    return Proof(ca, certificate, key)


def _read(option: str, file: str | None) -> bytes:
    if file is None:
        return b""
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise BadUrl(f"cannot read {option}={file}: {error.strerror}") from error


async def connect(where: Endpoint, incoming: Callable[[int], Flow], seconds: float) -> Connection:
    """A connection past its handshake: all addresses of the host in turn, again until the time is over."""
    proof = proof_of(where)
    addresses = await _addresses(where)
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    turn, patience = 0, TRY_FIRST_S
    while True:
        address = addresses[turn % len(addresses)]
        turn += 1
        last = turn % len(addresses) == 0
        try:
            connection = Connection(address, incoming)
        except OSError as error:  # this machine has no IPv6, or no more sockets: the next address may do
            if last:
                raise ConnectionLost(f"cannot connect to {where}: no socket: {error.strerror or error}") from error
            continue
        try:
            await connection.establish(where, proof, min(patience, max(until - loop.time(), 0.01)))
            return connection
        except TimeoutError:
            connection.close()
            log.debug("%s has not answered for %g s", where, patience)
        except ConnectionLost as error:
            connection.close()
            if last or (isinstance(error, Shut) and error.tls):
                raise ConnectionLost(f"cannot connect to {where}: {error.message}", hint=error.hint) from error
        except BaseException:
            connection.close()
            raise
        patience *= 2 if last else 1
        if loop.time() >= until:
            hint = f"is {where} the Felix port (UDP) of a broker, and is UDP let through?"
            raise ConnectionLost(f"cannot connect to {where}: no answer within {seconds:g} s", hint=hint)


async def _addresses(where: Endpoint) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(where.host, where.port, type=socket.SOCK_DGRAM)
    except (socket.gaierror, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not the name of a host"
        raise ConnectionLost(f"cannot find {where.host}: {why}", hint="check the host in the URL") from error
    return list(dict.fromkeys(Address(family, address) for family, _, _, _, address in found))
