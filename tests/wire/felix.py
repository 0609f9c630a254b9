"""Felix: frames made and read by hand, and blocking clients on QUIC.

FLX1 u16 version u16 flags u32 length payload                                        all big-endian
0x0000  one JSON object               str16: u16 length + text     bytes32: u32 length + bytes
0x0001  str16 * 3 (tenant, namespace, stream), u32 count, bytes32 * count
0x0009  u64 request, u8 mode, then as 0x0001
0x0010  u8 status, u64 request, str16 text
0x0004  u32 count, bytes32 * count      0x0024  u64 base offset, then as 0x0004
0x0040  the rest is compressed with zstd      0x0100  str16 key of all records, behind request and mode
"""

import base64
import json
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from backports import zstd

from tests.wire import quic
from tests.wire.connection import Closed, Hang

__all__ = ["Client", "Closed", "Hang"]

HEAD = struct.Struct(">IHHI")
MAGIC = 0x464C5831
BATCH, EVENTS, ACKED, ACK, OFFSETS, ZSTD, EXTENDED, KEY = 0x0001, 0x0004, 0x0008, 0x0010, 0x0020, 0x0040, 0x0080, 0x0100
ALL_FLAGS = 0x00FF
OURS = 0x003F | EXTENDED  # all that was published first, and the messages of this broker
PER_MESSAGE, PER_BATCH = 1, 2
FRAME_BYTES_MAX = 16 << 20
HANG_S = 30.0
KEEP_ALIVE_S = 0.2  # of silence; then a ping asks the host whether the broker is still there

Scope = tuple[str, str, str]  # tenant, namespace, stream or cache


# -- making ------------------------------------------------------------------------------------------------------------


def frame(payload: bytes, flags: int = 0, magic: int = MAGIC, version: int = 1, length: int | None = None) -> bytes:
    return HEAD.pack(magic, version, flags, len(payload) if length is None else length) + payload


def json_frame(value: object) -> bytes:
    return frame(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def message(type: str, **fields: Any) -> bytes:
    """A JSON frame of this type."""
    return json_frame({"type": type, **fields})


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def unb64(value: str) -> bytes:
    return base64.b64decode(value)


def stream_of(scope: Scope) -> dict[str, str]:
    return dict(zip(("tenant_id", "namespace", "stream"), scope, strict=True))


def cache_of(scope: Scope) -> dict[str, str]:
    return dict(zip(("tenant_id", "namespace", "cache"), scope, strict=True))


def names(*parts: str | bytes) -> bytes:
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(struct.pack(">H", len(part)) + part for part in raw)


def values(*found: bytes, count: int | None = None) -> bytes:
    head = struct.pack(">I", len(found) if count is None else count)
    return head + b"".join(struct.pack(">I", len(value)) + value for value in found)


def batch(
    scope: Scope, *found: bytes, request: int | None = None, mode: int = PER_BATCH, more: int = 0, packed: bool = False
) -> bytes:
    """0x0001, or 0x0009 with a request id; `more` are flags on top."""
    body, flags = names(*scope) + values(*found), BATCH | more
    if request is not None:
        body, flags = struct.pack(">QB", request, mode) + body, flags | ACKED
    return frame(zstd.compress(body), flags | ZSTD) if packed else frame(body, flags)


def ack(status: int, request: int, words: bytes = b"") -> bytes:
    return frame(struct.pack(">BQ", status, request) + names(words), ACK)


def events(*found: bytes, base: int | None = None) -> bytes:
    if base is None:
        return frame(values(*found), EVENTS)
    return frame(struct.pack(">Q", base) + values(*found), EVENTS | OFFSETS)


def auth(token: str = "alice-key", tenant: str = "t1", flags: int | None = ALL_FLAGS) -> bytes:
    told = {} if flags is None else {"client_flags": flags, "quintet": 1}
    return message("auth", tenant_id=tenant, token=token, **told)


# -- reading -----------------------------------------------------------------------------------------------------------


def _wrong(head: bytes, frame_bytes_max: int) -> str:
    """What is wrong with as much of a header as there is."""
    if len(head) >= 4 and int.from_bytes(head[:4], "big") != MAGIC:
        return "magic"
    if len(head) >= 6 and int.from_bytes(head[4:6], "big") != 1:
        return "version"
    if len(head) == HEAD.size and int.from_bytes(head[8:], "big") > frame_bytes_max:
        return "length"
    return "" if HEAD.pack(MAGIC, 1, 0, 0).startswith(head[:6]) else "maybe"


def read_frames(data: bytes, frame_bytes_max: int = FRAME_BYTES_MAX) -> tuple[list[tuple[int, bytes]], bytes, str]:
    """(flags, payload) of whole frames, what is behind them, and whether that ends the connection: "", "maybe" (too little of
    a wrong header), or what is wrong: "magic", "version", "length"."""
    out: list[tuple[int, bytes]] = []
    at = 0
    while not (wrong := _wrong(data[at : at + HEAD.size], frame_bytes_max)) and len(data) - at >= HEAD.size:
        _, _, flags, length = HEAD.unpack_from(data, at)
        if len(data) - at - HEAD.size < length:
            break
        out.append((flags, data[at + HEAD.size : at + HEAD.size + length]))
        at += HEAD.size + length
    return out, data[at:], wrong


def split(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    found, rest, wrong = read_frames(data)
    if wrong:
        raise ValueError(f"no frame of Felix: {rest[: HEAD.size]!r}")
    return found, rest


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Every frame; fails on a partial one."""
    found, rest = split(data)
    assert not rest, rest[:40]
    return found


class Malformed(ValueError):
    """A batch that is none: "short", "mode", "count", "text" or "long", and its request, or -1."""

    def __init__(self, reason: str, request: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.request = request


class Batch(NamedTuple):
    """What a batch says; without acknowledgement its request is -1 and its mode 0."""

    scope: list[str]
    target: bytes  # the three names as they came
    values: list[bytes]
    request: int
    mode: int
    key: bytes | None


def read_batch(payload: bytes, acked: bool, keyed: bool = False) -> Batch:
    at, request, mode, key = 0, -1, 0, None

    def take(size: int) -> bytes:
        nonlocal at
        if len(payload) - at < size:
            raise Malformed("short", request)
        at += size
        return payload[at - size : at]

    def number(size: int) -> int:
        return int.from_bytes(take(size), "big")

    if acked:
        request = number(8)
        mode = number(1)
        if mode not in (PER_MESSAGE, PER_BATCH):
            raise Malformed("mode", request)
    if keyed:
        key = take(number(2))
    start = at
    try:
        scope = [take(number(2)).decode() for _ in range(3)]
    except UnicodeDecodeError:
        raise Malformed("text", request) from None
    target, count = payload[start:at], number(4)
    if count > (len(payload) - at) // 4:
        raise Malformed("count", request)
    found = [take(number(4)) for _ in range(count)]
    if at < len(payload):
        raise Malformed("long", request)
    return Batch(scope, target, found, request, mode, key)


def read_ack(payload: bytes) -> tuple[int, int, str]:
    """(status, request, text)."""
    status, request, size = struct.unpack_from(">BQH", payload)
    assert len(payload) == 11 + size and status in (0, 1), payload
    return status, request, payload[11:].decode()


class Events(NamedTuple):
    """The values of a frame of an event stream. `base` is -1 if no offset is told; `keys` is None if they are not."""

    base: int
    values: list[bytes]
    keys: list[bytes | None] | None


def read_events(flags: int, payload: bytes) -> Events:
    """Binary or JSON; a ValueError if it is neither."""
    if flags == 0:
        said = json.loads(payload)
        told = [said.get("payload"), said.get("value"), *(said.get("payloads") or [])]
        return Events(-1, [unb64(one) for one in told if one is not None], None)
    if flags & ~(ZSTD | OFFSETS | KEY) != EVENTS:
        raise ValueError(f"an event stream has a frame with flags {flags:#x}")
    payload = zstd.decompress(payload) if flags & ZSTD else payload
    base, at = (int.from_bytes(payload[:8], "big"), 8) if flags & OFFSETS else (-1, 0)
    (count,) = struct.unpack_from(">I", payload, at)
    at, found, keys = at + 4, [], list[bytes | None]()
    for _ in range(count):
        if flags & KEY:
            (size,) = struct.unpack_from(">I", payload, at)
            at += 4 + max(size - 1, 0)
            keys.append(payload[at - size + 1 : at] if size else None)
        (size,) = struct.unpack_from(">I", payload, at)
        at += 4 + size
        found.append(payload[at - size : at])
    if at != len(payload):
        raise ValueError(f"{len(payload)} bytes of events, of which {at} are records")
    return Events(base, found, keys if flags & KEY else None)


# -- clients -----------------------------------------------------------------------------------------------------------


class Client(quic.Connection):
    """Any frames on any streams."""

    def login(self, token: str = "alice-key", tenant: str = "t1", flags: int | None = ALL_FLAGS) -> int:
        """A stream of a published client, let in."""
        stream = self.open(auth(token, tenant, flags))
        said = self.read(stream)
        assert said["type"] in ("auth_ok", "ok"), said
        return stream

    def take(self, stream: int) -> tuple[int, bytes]:
        """(flags, payload) of the next frame on a stream. EOFError: it ended instead."""

        def whole() -> bool:
            have = self.data.get(stream, b"")
            return len(have) >= HEAD.size and len(have) >= HEAD.size + int.from_bytes(have[8:12], "big")

        self.wait(lambda: whole() or stream in self.fin or stream in self.resets)
        if not whole():
            raise EOFError
        have = self.data[stream]
        magic, version, flags, length = HEAD.unpack_from(have)
        assert (magic, version) == (MAGIC, 1)
        payload = bytes(have[HEAD.size : HEAD.size + length])
        del have[: HEAD.size + length]
        return flags, payload

    def read(self, stream: int) -> dict[str, Any]:
        """The next frame, which must be JSON."""
        flags, payload = self.take(stream)
        assert flags == 0, f"flags {flags:#x}"
        found = json.loads(payload)
        assert isinstance(found, dict)
        return found

    def ask(self, stream: int, data: bytes) -> dict[str, Any]:
        self.send(stream, data)
        return self.read(stream)

    def acked(self, stream: int) -> tuple[int, int, str]:
        """(status, request id, text) of the next frame, which must be the answer to a batch."""
        flags, payload = self.take(stream)
        assert flags == ACK, (hex(flags), payload)
        return read_ack(payload)

    def event_stream(self) -> int:
        """The newest stream that the broker opened."""
        self.wait(lambda: any(number & 3 == 3 for number in self.data))
        return max(number for number in self.data if number & 3 == 3)

    def events(self, stream: int, count: int) -> list[bytes]:
        """So many values of an event stream, in binary frames or in JSON."""
        found: list[bytes] = []
        while len(found) < count:
            found += read_events(*self.take(stream)).values
        return found


class Event(NamedTuple):
    """Records of an event stream, or a message on it (`base` is -1)."""

    subscription: int
    base: int
    values: list[bytes]
    message: dict[str, Any]


class Session:
    """A connection with one stream for requests, authenticated. `ca` is the certificate the broker made itself.

    One thread. `ask` waits for the answer to one request; what else comes meanwhile (events, other answers) waits in
    `events` and `answers`. A broker that is gone is told by the host at once, because the socket is connected.
    """

    hang_s: ClassVar[float] = HANG_S
    idle_s: ClassVar[float] = HANG_S  # after which both sides take the connection for lost

    def __init__(self, address: str, ca: Path, token: str = "dev-key", tenant: str = "t") -> None:
        self.answers: dict[int, dict[str, Any]] = {}
        self.events: deque[Event] = deque()
        self.ended: dict[int, int] = {}  # subscriptions whose stream is over, and the code of its reset (0: none)
        self._requests = 0
        self._over = ""  # of the stream for requests
        self._of: dict[int, int] = {}  # stream -> subscription
        self._plain: deque[dict[str, Any]] = deque()
        self._line = quic.Connection(address, ca=ca.read_bytes(), idle_timeout=self.idle_s)
        try:
            self.stream = self._line.open(auth(token, tenant, OURS))
            self._wait(lambda: bool(self._plain), "auth")
            said = self._plain.popleft()
            if said.get("type") != "auth_ok":
                raise Closed(str(said.get("message")))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- asking ------------------------------------------------------------------------------------------------------

    def number(self) -> int:
        self._requests += 1
        return self._requests

    def send(self, data: bytes, end: bool = False) -> None:
        self.check()
        self._line.send(self.stream, data, end)

    def finish(self) -> None:
        """Nothing more is asked: our side of the stream ends, what was subscribed to goes on."""
        self.send(b"", end=True)

    def say(self, kind: str, **fields: Any) -> None:
        self.send(message(kind, **fields))

    def ask(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The answer to one JSON request, whatever it says."""
        request = self.number()
        self.say(kind, **fields, request_id=request)
        return self.answer(request)

    def answer(self, request: int) -> dict[str, Any]:
        self._wait(lambda: request in self.answers, f"answer to request {request}")
        return self.answers.pop(request)

    def publish(self, scope: Scope, found: list[bytes], mode: int = PER_BATCH) -> str:
        """One acknowledged batch: "" or why it was refused."""
        request = self.number()
        self.send(batch(scope, *found, request=request, mode=mode))
        return str(self.answer(request).get("message", ""))

    def subscribe(self, scope: Scope, **fields: Any) -> int:
        said = self.ask("subscribe", **stream_of(scope), **fields)
        assert said.get("type") == "subscribed", said
        return int(said["subscription_id"])

    def next(self, timeout_s: float) -> Event | None:
        """The next of all event streams, or nothing."""
        until = time.monotonic() + timeout_s
        while not self.events and (left := until - time.monotonic()) > 0:
            self._turn(left)
        return self.events.popleft() if self.events else None

    def check(self) -> None:
        if self._line.over is not None:
            raise self._line.over
        if self._over:
            raise Closed(self._over)

    # -- what comes --------------------------------------------------------------------------------------------------

    def _wait(self, there: Any, what: str) -> None:
        until = time.monotonic() + self.hang_s
        while not there():
            self.check()
            left = until - time.monotonic()
            if left <= 0:
                raise Hang(f"no {what} on the Felix door within {self.hang_s} s")
            self._turn(left)

    def _turn(self, timeout_s: float) -> None:
        line = self._line
        if line.over is not None:
            raise line.over
        line.turn(min(timeout_s, KEEP_ALIVE_S))
        if time.monotonic() - line.heard > KEEP_ALIVE_S:
            line.ping()
        for stream, data in line.data.items():
            if data:
                found, rest = split(bytes(data))
                line.data[stream] = bytearray(rest)
                for flags, payload in found:
                    (self._reply if stream == self.stream else self._event)(stream, flags, payload)
        for stream in [*line.fin, *line.resets]:
            if stream == self.stream:
                self._over = ", ".join(str(each.get("message")) for each in self._plain) or "the stream was ended"
            elif stream in self._of:
                self.ended[self._of[stream]] = line.resets.get(stream, 0)

    def _reply(self, _stream: int, flags: int, payload: bytes) -> None:
        if flags == ACK:
            status, request, words = read_ack(payload)
            self.answers[request] = {"message": words} if status else {}
            return
        assert flags == 0, f"a frame with flags {flags:#x} among the answers"
        said = json.loads(payload)
        if said.get("request_id") is None:
            self._plain.append(said)
        else:
            self.answers[said["request_id"]] = said

    def _event(self, stream: int, flags: int, payload: bytes) -> None:
        said = {} if flags else json.loads(payload)
        if said.get("type") == "event_stream_hello":
            self._of[stream] = said["subscription_id"]
            return
        assert flags in (0, EVENTS | OFFSETS), f"a frame with flags {flags:#x} on an event stream"
        base, found, _ = read_events(flags, payload) if flags else Events(-1, [], None)
        self.events.append(Event(self._of[stream], base, found, said))
