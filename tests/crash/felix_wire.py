"""Felix on aioquic and a plain UDP socket, frames packed by hand: campaigns share no code with what they judge.

FLX1 u16 version u16 flags u32 length payload                                        all big-endian
0x0000  one JSON object               0x0009  u64 request, u8 mode, str16 * 3, u32 count, bytes32 * count
0x0010  u8 status, u64 request, str16 text                 0x0024  u64 base offset, u32 count, bytes32 * count

One connection, one thread. `ask` waits for the answer to one request; what else comes meanwhile (events, other answers)
waits in `events` and `answers`. A broker that is gone is told by the host at once, because the socket is connected.
"""

import base64
import json
import select
import socket
import ssl
import struct
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from aioquic.quic import events as quic
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

HANG_S = 20.0
HANDSHAKE_S = 10.0
KEEP_ALIVE_S = 0.2  # of silence; then a ping asks the host whether the broker is still there
DATAGRAM_BYTES = 65536
FLAGS = 0x003F | 0x0080  # all that is published, and the messages of this broker
ACKED_BATCH, ACK, EVENTS = 0x0009, 0x0010, 0x0024
PER_MESSAGE, PER_BATCH = 1, 2
_HEAD = struct.Struct(">4sHHI")


class Gone(Exception):
    """The connection ended, or this stream: what was asked may or may not have happened."""


class Event(NamedTuple):
    """Records of an event stream, or a message on it (`base` is -1)."""

    subscription: int
    base: int
    values: list[bytes]
    message: dict[str, Any]


def frame(payload: bytes, flags: int = 0) -> bytes:
    return _HEAD.pack(b"FLX1", 1, flags, len(payload)) + payload


def text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def bytes_of(value: str) -> bytes:
    return base64.b64decode(value)


def message(kind: str, **fields: Any) -> bytes:
    return frame(json.dumps({"type": kind, **fields}).encode())


def batch(request: int, mode: int, scope: tuple[str, str, str], values: list[bytes]) -> bytes:
    names = b"".join(struct.pack(">H", len(part.encode())) + part.encode() for part in scope)
    body = b"".join(struct.pack(">I", len(value)) + value for value in values)
    return frame(struct.pack(">QB", request, mode) + names + struct.pack(">I", len(values)) + body, ACKED_BATCH)


def stream_of(scope: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("tenant_id", "namespace", "stream"), scope, strict=True))


def cache_of(scope: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(("tenant_id", "namespace", "cache"), scope, strict=True))


class FelixWire:
    """A connection with one stream for requests, authenticated. `ca` is the certificate the broker made itself."""

    def __init__(self, address: str, ca: Path, token: str = "dev-key", tenant: str = "t") -> None:
        host, _, port = address.rpartition(":")
        self.answers: dict[int, dict[str, Any]] = {}
        self.events: deque[Event] = deque()
        self.ended: dict[
            int, int
        ] = {}  # subscriptions whose stream is over, and the code it was broken off with (0: none)
        self._requests = 0
        self._gone = ""
        self._over = ""  # of the stream for requests
        self._buffers: dict[int, bytearray] = {}
        self._of: dict[int, int] = {}  # stream -> subscription
        self._plain: deque[dict[str, Any]] = deque()
        self._heard = time.monotonic()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 21)
        self._socket.connect((host.strip("[]"), int(port)))
        self._socket.setblocking(False)
        options = QuicConfiguration(is_client=True, server_name=host.strip("[]"), verify_mode=ssl.CERT_REQUIRED)
        options.load_verify_locations(cadata=ca.read_bytes())
        options.idle_timeout = HANG_S
        self._quic = QuicConnection(configuration=options)
        try:
            self._peer = (host.strip("[]"), int(port))
            self._quic.connect(self._peer, time.monotonic())
            self.stream = self._quic.get_next_available_stream_id()
            auth = {"type": "auth", "tenant_id": tenant, "token": token, "client_flags": FLAGS, "quintet": 1}
            self.send(frame(json.dumps(auth).encode()))
            self._wait(lambda: bool(self._plain), HANDSHAKE_S, "auth")
            said = self._plain.popleft()
            if said.get("type") != "auth_ok":
                raise Gone(str(said.get("message")))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if not self._gone:
            self._gone = "closed here"
            self._quic.close()
            with suppress(Gone):  # it is gone already, and that is all we want
                self._flush()
        self._socket.close()

    def __enter__(self) -> "FelixWire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking ------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        self._requests += 1
        return self._requests

    def send(self, data: bytes) -> None:
        self.check()
        self._quic.send_stream_data(self.stream, data)
        self._flush()

    def finish(self) -> None:
        """Nothing more is asked: our side of the stream ends, what was subscribed to goes on."""
        self._quic.send_stream_data(self.stream, b"", end_stream=True)
        self._flush()

    def say(self, kind: str, **fields: Any) -> None:
        self.send(message(kind, **fields))

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The answer to one JSON request, whatever it says."""
        request = self.number()
        self.say(kind, **fields, request_id=request)
        return self.answer(request)

    def answer(self, request: int) -> dict[str, Any]:
        self._wait(lambda: request in self.answers, HANG_S, f"answer to request {request}")
        return self.answers.pop(request)

    def publish(self, scope: tuple[str, str, str], values: list[bytes], mode: int = PER_BATCH) -> str:
        """One acknowledged batch: "" or why it was refused."""
        request = self.number()
        self.send(batch(request, mode, scope, values))
        return str(self.answer(request).get("message", ""))

    def subscribe(self, scope: tuple[str, str, str], **fields: Any) -> int:
        said = self.ask("subscribe", **stream_of(scope), **fields)
        assert said.get("type") == "subscribed", said
        return int(said["subscription_id"])

    def next(self, timeout_s: float) -> Event | None:
        """The next of all event streams, or nothing."""
        until = time.monotonic() + timeout_s
        while not self.events and (left := until - time.monotonic()) > 0:
            self._pump(left)
        return self.events.popleft() if self.events else None

    def check(self) -> None:
        if self._gone or self._over:
            raise Gone(self._gone or self._over)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _wait(self, there: Any, timeout_s: float, what: str) -> None:
        until = time.monotonic() + timeout_s
        while not there():
            self.check()
            left = until - time.monotonic()
            assert left > 0, f"no {what} on the Felix door within {timeout_s} s"
            self._pump(left)

    def _pump(self, timeout_s: float) -> None:
        """Wait for datagrams at most so long, and do what they ask for."""
        if self._gone:
            raise Gone(self._gone)
        now = time.monotonic()
        timer = self._quic.get_timer()
        wait = min(timeout_s, KEEP_ALIVE_S, max(0.0, timer - now) if timer is not None else KEEP_ALIVE_S)
        if select.select([self._socket], [], [], wait)[0]:
            try:
                for _ in range(64):
                    self._quic.receive_datagram(self._socket.recv(DATAGRAM_BYTES), self._peer, time.monotonic())
                    self._heard = time.monotonic()
            except BlockingIOError:
                pass  # all that was there is read
            except OSError as error:
                self._gone = f"the socket says {error.strerror}"
        now = time.monotonic()
        if timer is not None and now >= timer:
            self._quic.handle_timer(now)
        if now - self._heard > KEEP_ALIVE_S:
            self._quic.send_ping(0)
            self._heard = now
        self._take()
        self._flush()

    def _flush(self) -> None:
        try:
            for data, _ in self._quic.datagrams_to_send(time.monotonic()):
                self._socket.send(data)
        except BlockingIOError:
            return  # as if lost: QUIC sends it again
        except OSError as error:
            self._gone = self._gone or f"the socket says {error.strerror}"
            raise Gone(self._gone) from None

    def _take(self) -> None:
        while (event := self._quic.next_event()) is not None:
            if isinstance(event, quic.StreamDataReceived):
                self._data(event.stream_id, event.data)
                if event.end_stream:
                    self._end(event.stream_id, 0)
            elif isinstance(event, quic.StreamReset):
                self._end(event.stream_id, event.error_code)
            elif isinstance(event, quic.ConnectionTerminated):
                self._gone = event.reason_phrase or f"closed with code {event.error_code:#x}"

    def _end(self, stream: int, code: int) -> None:
        if stream == self.stream:
            said = [str(each.get("message")) for each in self._plain]
            self._over = ", ".join(said) or "the stream was ended"
        elif stream in self._of:
            self.ended[self._of[stream]] = code

    def _data(self, stream: int, data: bytes) -> None:
        buffer = self._buffers.setdefault(stream, bytearray())
        buffer += data
        while len(buffer) >= _HEAD.size:
            magic, version, flags, size = _HEAD.unpack_from(buffer)
            assert (magic, version) == (b"FLX1", 1), bytes(buffer[:12])
            if len(buffer) < _HEAD.size + size:
                return
            payload = bytes(buffer[_HEAD.size : _HEAD.size + size])
            del buffer[: _HEAD.size + size]
            if stream == self.stream:
                self._reply(flags, payload)
            else:
                self._event(stream, flags, payload)

    def _reply(self, flags: int, payload: bytes) -> None:
        if flags == ACK:
            status, request, size = struct.unpack_from(">BQH", payload)
            assert len(payload) == 11 + size and status in (0, 1), payload
            self.answers[request] = {"message": payload[11:].decode()} if status else {}
            return
        assert flags == 0, f"a frame with flags {flags:#x} among the answers"
        said = json.loads(payload)
        request = said.get("request_id")
        if request is None:
            self._plain.append(said)
        else:
            self.answers[request] = said

    def _event(self, stream: int, flags: int, payload: bytes) -> None:
        if flags == 0:
            said = json.loads(payload)
            if said["type"] == "event_stream_hello":
                self._of[stream] = said["subscription_id"]
            else:
                self.events.append(Event(self._of[stream], -1, [], said))
            return
        assert flags == EVENTS, f"a frame with flags {flags:#x} on an event stream"
        base, count = struct.unpack_from(">QI", payload)
        at, values = 12, []
        for _ in range(count):
            (size,) = struct.unpack_from(">I", payload, at)
            values.append(payload[at + 4 : at + 4 + size])
            at += 4 + size
        assert at == len(payload), "bytes behind the last record"
        self.events.append(Event(self._of[stream], base, values, {}))
