"""Translates TCP bytes to WebSocket messages and back, between a connection and a session of whole messages.

    FRESH     the head of an HTTP request, at most HEAD_BYTES_MAX: 101, or an answer in HTTP and the end
    OPEN      frames; text goes to the session, a ping is answered, what RFC 6455 forbids ends it
    PARTING   our close frame is out: what comes is thrown away until the peer's own close, or PART_US later

To the connection it is a session like any other, so accepting, limits per listener and address, back-pressure, slow
readers and the one shared read buffer are the same code as for every door. A connection between two messages holds no
buffer: a frame is collected only when it has begun to arrive, and never beyond what the session allows at that moment,
which is little before it knows who speaks. Extensions are not offered, so nothing is ever inflated.
"""

import asyncio
import base64
import binascii
import hashlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from quintet import kernel
from quintet.model import limits
from quintet.model.batch import RecordBatch
from quintet.net.listener import SHUTTING_DOWN

FRESH: Final = "fresh"
OPEN: Final = "open"
PARTING: Final = "parting"

HEAD_BYTES_MAX: Final = 8 * limits.KIB  # of the HTTP request
FRAGMENTS_MAX: Final = 1_024  # of one message
FRAGMENTS_US: Final = 10_000_000  # from the first fragment of a message to its last
PINGS_MAX: Final = 100  # PINGs answered between two beats; above it the connection is closed
PINGS_MISSED_MAX: Final = 2
PART_US: Final = 2_000_000
SKIPPED_AT_ONCE: Final = 4_096  # frames behind our close; then others have their turn
REASON_BYTES_MAX: Final = 123  # a control frame has 125 bytes, two are the code

TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10

GOING_AWAY: Final = (1001, "server shutting down")
PROTOCOL: Final = (1002, "broken WebSocket frame")
NOT_UTF8: Final = (1007, "text is not UTF-8")
POLICY: Final = 1008
TOO_BIG: Final = (1009, "message too big")
TOO_MANY_PINGS: Final = (1008, "too many pings")
SILENT: Final = (1002, "two pings were not answered")

OTHER_FRAME: Final = 3  # parts of an item of kernel.ws_split that is no whole text message

_FATAL: Final = {1: PROTOCOL, 2: TOO_BIG}  # of kernel.ws_split
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_KEY_BYTES: Final = 16
_PING_FRAME: Final = b"\x89\x00"


class Messages(Protocol):
    """A session that speaks in whole messages: the contract of protocols/base.py, and these."""

    closing: str | None
    close_code: int
    auth_failures: int
    principal_name: str | None
    holding: bool
    message_bytes_max: int
    """Of the next message."""
    out: list[bytes]
    """What it has to send, each a frame of kernel.ws_frame, or several; whoever takes them leaves an empty list."""

    @property
    def operation(self) -> str: ...
    @property
    def request(self) -> str: ...

    @property
    def unanswered(self) -> int: ...

    @property
    def enough(self) -> bool:
        """Its answers are large, or owed, or the turn is over: the next messages stay where they are for now."""

    def receive(self, view: memoryview, now: int) -> int: ...
    def receive_message(self, data: bytes, now: int) -> None: ...

    @property
    def split(self) -> Callable[[memoryview, int, int, int], tuple[Sequence[Any], int, int]]:
        """Does what kernel.ws_split does with the next read. Text messages that it could read are items of a kind of its own: no bytes, and no tuple
        of three."""

    def receive_plain(self, items: Sequence[object], now: int) -> int:
        """Such items. How many of them were taken: it stops in front of any other, and where it has `enough`."""

    def receive_binary(self) -> None:
        """A message that is not text."""

    def end_read(self) -> None:
        """The read is over, or failed."""

    def on_appended(self, token: object, offset: int, error: Exception | None) -> None: ...
    def on_completed(self, token: object, result: object, error: Exception | None) -> None: ...
    def on_records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None: ...
    def congestion(self) -> int: ...
    def deadline(self) -> int | None: ...
    def tick(self, monotonic: int) -> None: ...
    def closed(self) -> None: ...


class MessageConnection(Protocol):
    """What it needs of its connection."""

    def completed(self, token: object, result: object, error: Exception | None) -> None: ...

    def watch(self) -> None:
        """Look at the deadline, which may have been none, until there is none again."""


class WebSocketSession:
    """See the table above. `origins` are the web origins that may connect beside the host's own."""

    __slots__ = (
        "_close_sent", "_deadline", "_fragments", "_fragments_bytes", "_heart", "_inner", "_link", "_monotonic", "_origins",
        "_out", "_pings", "_quiet", "_skip", "_state", "auth_failures", "closing", "congestion", "on_appended", "on_records", "stopped",
    )  # fmt: skip

    def __init__(
        self,
        inner: Messages,
        link: MessageConnection,
        heart: "Heartbeat",
        monotonic: Callable[[], int],
        origins: frozenset[str] = frozenset(),
    ) -> None:
        self.closing: str | None = None
        self.stopped = False
        self.auth_failures = 0
        # Passed on as they are: a function between would cost as much as to do it.
        self.congestion, self.on_appended, self.on_records = inner.congestion, inner.on_appended, inner.on_records
        self._inner = inner
        self._link = link
        self._origins = origins
        self._heart = heart
        self._monotonic = monotonic
        self._state = FRESH
        self._out: list[bytes] = []
        self._deadline: int | None = None
        self._fragments: list[bytes] | None = None
        self._fragments_bytes = 0
        self._pings = self._quiet = self._skip = 0
        self._close_sent = False

    # -- the contract ----------------------------------------------------------------------------------------------

    @property
    def principal_name(self) -> str | None:
        return self._inner.principal_name

    @property
    def operation(self) -> str:
        return self._inner.operation

    @property
    def request(self) -> str:
        return self._inner.request

    @property
    def unanswered(self) -> int:
        return self._inner.unanswered

    @property
    def holding(self) -> bool:
        return self._state is OPEN and self._inner.holding

    def receive(self, view: memoryview, now: int) -> int:
        self.stopped = False
        inner = self._inner
        position = self._upgrade(view) if self._state is FRESH else 0
        if self._state is OPEN:
            self._quiet = 0
            if not view:
                inner.receive(view, now)  # access rights changed: the session checks its own
            try:
                position = self._frames(view, position, now)
            finally:
                inner.end_read()
            self.auth_failures = inner.auth_failures
        if inner.closing is not None:
            self._end_with_session()
        if self._state is PARTING:
            position = self._throw_away(view, position)
        return position

    def on_completed(self, token: object, result: object, error: Exception | None) -> None:
        if isinstance(token, Heartbeat):
            self._beat()
        else:
            self._inner.on_completed(token, result, error)
            if self._inner.closing is not None:
                self._end_with_session()

    def postpone(self, paused_us: int) -> None:
        """Nothing is read for so long: the rest of a message in fragments may come later."""
        if self._fragments is not None and self._deadline is not None:
            self._deadline += paused_us

    def deadline(self) -> int | None:
        mine, inner = self._deadline, self._inner.deadline()
        return inner if mine is None else mine if inner is None else min(mine, inner)

    def tick(self, monotonic: int) -> None:
        if self._deadline is not None and monotonic >= self._deadline:
            self._deadline = None
            if self._state is PARTING:
                self.closing = self.closing or "the peer did not answer our close"
                return
            self._part((POLICY, f"a message in pieces took over {FRAGMENTS_US // 1_000_000} seconds"))
        self._inner.tick(monotonic)
        if self._inner.closing is not None:
            self._end_with_session()

    def take_output(self) -> list[bytes]:
        """Everything the session made, and a last word if the connection is about to end."""
        out, made = self._out, self._inner.out
        if self.closing is None and not out and not self._close_sent:
            if made:
                self._inner.out = []
            return made
        self._take_frames()
        if self.closing is not None and not self._close_sent:
            self._last_word(self.closing)
        out, self._out = self._out, []
        return out

    def _take_frames(self) -> None:
        """What the session has made so far, in front of what follows. Behind our close frame nothing follows."""
        made, self._inner.out = self._inner.out, []
        if self._state is OPEN and not self._close_sent:
            self._out += made

    def closed(self) -> None:
        self._heart.remove(self)
        self._fragments = None
        self._inner.closed()

    # -- the upgrade -----------------------------------------------------------------------------------------------

    def _upgrade(self, view: memoryview) -> int:
        """Bytes consumed: those of the request's head, once it is whole."""
        data = bytes(view[:HEAD_BYTES_MAX])
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if len(data) == HEAD_BYTES_MAX:
                self._refuse_http(431, "Request Header Fields Too Large", f"the head has over {HEAD_BYTES_MAX} bytes")
            return 0
        key, refusal = judge_upgrade(data[:end], self._origins)
        if refusal is not None:
            self._refuse_http(*refusal)
            return end + 4
        accept = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest())
        self._out.append(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
        self._state = OPEN
        self._heart.add(self, self._link)
        return end + 4

    def _refuse_http(self, status: int, phrase: str, why: str) -> None:
        body = f"{why}\n".encode()
        self._out.append(
            b"HTTP/1.1 %d %b\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b"
            % (status, phrase.encode(), len(body), body)
        )
        self._close_sent = True
        self.closing = why

    # -- frames ----------------------------------------------------------------------------------------------------

    def _frames(self, view: memoryview, position: int, now: int) -> int:
        inner, taken = self._inner, False
        while self._state is OPEN and inner.closing is None and self.closing is None and not inner.holding:
            before = position
            # Before anybody has registered one frame at a time: the next may be judged by other rules.
            most = 0 if inner.principal_name is not None else 1
            items, position, fatal = inner.split(view, position, inner.message_bytes_max, most)
            first = inner.receive_plain(items, now) if self._fragments is None and not taken else 0
            taken = taken or first > 0
            for number, item in enumerate(items[first:], first) if first < len(items) else ():
                if taken:
                    # The message before may have ended it, which mypy does not see.
                    if inner.closing is not None or self.closing is not None or self._state is not OPEN:  # type: ignore[redundant-expr]
                        break
                    if inner.enough:  # this one and those behind it are split again when it goes on
                        self.stopped = True
                        return kernel.ws_split(view, before, inner.message_bytes_max, number)[1] if number else before
                taken = True  # at least one, even if the turn is over
                if isinstance(item, bytes):
                    if self._fragments is None and item.isascii():
                        inner.receive_message(item, now)
                    else:
                        self._text(item, now)
                elif isinstance(item, tuple) and len(item) == OTHER_FRAME:
                    self._other(*item, now)
                elif self._fragments is None:
                    inner.receive_plain((item,), now)
                else:
                    self._part(PROTOCOL)
            if fatal:
                self._part(_FATAL[fatal])
            if position == before or position == len(view):
                break
        return position

    def _text(self, data: bytes, now: int) -> None:
        """A whole text message."""
        if self._fragments is not None:
            self._part(PROTOCOL)
        elif not data.isascii() and not _is_utf8(data):
            self._part(NOT_UTF8)
        else:
            self._inner.receive_message(data, now)

    def _other(self, opcode: int, last: bool, data: bytes, now: int) -> None:
        """Anything but a whole text message."""
        if opcode == PING:
            self._pings += 1
            if self._pings > PINGS_MAX:
                self._part(TOO_MANY_PINGS)
            else:
                self._out.append(kernel.ws_frame(PONG, data))
        elif opcode == CLOSE:
            self._peer_closes(data)
        elif opcode != PONG:  # a PONG has no other meaning than that it arrived
            self._fragment(opcode, last, data, now)

    def _fragment(self, opcode: int, last: bool, data: bytes, now: int) -> None:
        """Pieces of a message, or a whole binary one. The first says what it is; it is kept as the first of the list."""
        kept = self._fragments
        if (kept is None) is (opcode == 0):
            self._part(PROTOCOL)
            return
        if kept is None:
            if last:
                self._inner.receive_binary()
                return
            kept = self._fragments = [bytes((opcode,))]
            self._fragments_bytes = 0
            self._deadline = self._monotonic() + FRAGMENTS_US
            self._link.watch()
        kept.append(data)
        self._fragments_bytes += len(data)
        if self._fragments_bytes > self._inner.message_bytes_max or len(kept) > FRAGMENTS_MAX:
            self._part(TOO_BIG)
        elif last:
            self._fragments = self._deadline = None
            if kept[0][0] == TEXT:
                self._text(b"".join(kept[1:]), now)
            else:
                self._inner.receive_binary()

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end_with_session(self) -> None:
        """The session wants to end: say why. A code of 0: without a word."""
        reason = self._inner.closing
        assert reason is not None
        if self._state is FRESH:
            self._refuse_http(408, "Request Timeout", reason)
        elif self._state is OPEN:
            if self._inner.close_code:
                self._part((self._inner.close_code, reason))
            else:
                self._close_sent = True
                self.closing = reason

    def _part(self, how: tuple[int, str]) -> None:
        """Send our close frame, then give the peer a moment to answer it: closing at once, with something unread, would
        make the kernel throw away what we sent."""
        if self._state is not OPEN:
            return
        self._take_frames()
        self._say_close(how)
        self._inner.closing = self._inner.closing or how[1]
        self._state = PARTING
        self._fragments = None
        self._deadline = self._monotonic() + PART_US
        self._link.watch()

    def _say_close(self, how: tuple[int, str]) -> None:
        code, reason = how
        payload = struct.pack(">H", code) + reason.encode()[:REASON_BYTES_MAX]
        self._out.append(kernel.ws_frame(CLOSE, payload))
        self._close_sent = True

    def _peer_closes(self, data: bytes) -> None:
        """Its close is answered with its own code, and that was all."""
        self._take_frames()
        sound = len(data) != 1 and _is_utf8(data[2:])
        code = data[:2] if len(data) >= 2 and sound else struct.pack(">H", 1000)
        self._out.append(kernel.ws_frame(CLOSE, code))
        self._close_sent = True
        self.closing = ""

    def _last_word(self, reason: str) -> None:
        """The connection ends for a reason that is not the session's: a limit, or the broker stops."""
        if self._state is FRESH:
            self._refuse_http(503, "Service Unavailable", reason)
        elif self._state is OPEN and self._inner.closing is None:
            self._say_close(GOING_AWAY if reason == SHUTTING_DOWN else (POLICY, reason))
        elif self._state is OPEN and self._inner.close_code:
            self._say_close((self._inner.close_code, reason))

    def _throw_away(self, view: memoryview, position: int) -> int:
        """Frames are skipped without being kept; the peer's close ends it."""
        end, skipped = len(view), 0
        while position < end and self.closing is None:
            if skipped > SKIPPED_AT_ONCE:
                self.stopped = True
                break
            if self._skip:
                step = min(self._skip, end - position)
                self._skip -= step
                position += step
                continue
            size = frame_bytes(view, position)
            if size is None:
                break
            if view[position] & 15 == CLOSE:
                self.closing = self._inner.closing
                return end
            self._skip = size
            skipped += 1
        return position

    # -- beats -----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Nothing was received since the last beat: send a PING. After two without any answer the connection is closed."""
        if self._state is not OPEN:
            return
        self._pings = 0
        if self._inner.principal_name is None:
            return  # the deadline of the handshake ends it
        if self._inner.holding or self._inner.congestion():
            return  # reading is paused, so silence means nothing
        self._quiet += 1
        if self._quiet > PINGS_MISSED_MAX + 1:
            self._say_close(SILENT)
            self.closing = SILENT[1]
        elif self._quiet > 1:
            self._out.append(_PING_FRAME)


class Heartbeat:
    """One timer for all connections of a listener: each is visited once in `seconds`, a share of them at a time."""

    SHARES: Final = 32

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._step_s = seconds / self.SHARES
        self._shares: list[dict[WebSocketSession, MessageConnection]] = [{} for _ in range(self.SHARES)]
        self._turn = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(self._step_s, self._step)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _step(self) -> None:
        self._turn = (self._turn + 1) % self.SHARES
        for link in list(self._shares[self._turn].values()):
            link.completed(self, None, None)
        self.start()

    def add(self, session: WebSocketSession, link: MessageConnection) -> None:
        self._share_of(session)[session] = link

    def remove(self, session: WebSocketSession) -> None:
        self._share_of(session).pop(session, None)

    def _share_of(self, session: WebSocketSession) -> dict[WebSocketSession, MessageConnection]:
        return self._shares[id(session) // 64 % self.SHARES]


# -- bytes ------------------------------------------------------------------------------------------------------------

#     0               1               2 to 10
#     | F R R R op    | M length      | u16 if length is 126, u64 if 127 | u32 mask if M | payload
#     F: the last piece of a message; the server's frames have no mask


def frame_bytes(view: memoryview, position: int) -> int | None:
    """Length of the client's frame at position, head and mask included; None if its head is not all there."""
    if len(view) - position < 2:
        return None
    size, more = view[position + 1] & 127, 0
    if size >= 126:
        more = 2 if size == 126 else 8
        if len(view) - position < 2 + more:
            return None
        size = int.from_bytes(view[position + 2 : position + 2 + more], "big")
    return 2 + more + (4 if view[position + 1] & 128 else 0) + size


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# -- HTTP -------------------------------------------------------------------------------------------------------------

Refusal = tuple[int, str, str]  # status, phrase, why


def judge_upgrade(data: bytes, origins: frozenset[str]) -> tuple[bytes, Refusal | None]:
    """The key of a request for a WebSocket (its head, without the empty line), or why it is refused. Any path is good."""
    try:
        request, *lines = data.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        return b"", (400, "Bad Request", "the head of the request is not ASCII")
    method, _, rest = request.partition(" ")
    if method != "GET" or not rest.endswith(" HTTP/1.1"):
        return b"", (400, "Bad Request", "a WebSocket begins with GET and HTTP/1.1")
    headers: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return b"", (400, "Bad Request", "a header that cannot be read")
        headers.setdefault(name.lower(), []).append(value.strip())
    upgrade = ",".join(headers.get("upgrade", [])).lower()
    connection = [word.strip() for word in ",".join(headers.get("connection", [])).lower().split(",")]
    if upgrade != "websocket" or "upgrade" not in connection:
        return b"", (426, "Upgrade Required", "this door speaks WebSocket")
    if headers.get("sec-websocket-version") != ["13"]:
        return b"", (426, "Upgrade Required\r\nSec-WebSocket-Version: 13", "this door speaks version 13 of WebSocket")
    host, key = headers.get("host", []), headers.get("sec-websocket-key", [])
    if len(host) != 1 or len(key) != 1 or not _is_key(key[0]):
        return b"", (400, "Bad Request", "Host and Sec-WebSocket-Key are there once, and the key has 16 bytes")
    if not _origin_is_ours(headers.get("origin", []), host[0], origins):
        return b"", (
            403,
            "Forbidden",
            "pages of this origin may not connect; the broker's option `origins` lists who may",
        )
    return key[0].encode(), None


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except binascii.Error:
        return False


def _origin_is_ours(given: list[str], host: str, origins: frozenset[str]) -> bool:
    """Programs say none; a browser says where the page comes from, and only pages of this host or of `origins` may."""
    if not given:
        return True
    if len(given) > 1:
        return False
    try:
        return given[0] in origins or urlsplit(given[0]).netloc.lower() == host.lower()
    except ValueError:
        return False
