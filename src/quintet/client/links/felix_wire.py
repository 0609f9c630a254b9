"""Encodes and decodes frames of Felix for the client: JSON out, items in, and what an error means.

No connection and no decision lives here; felix.py has them.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from quintet import kernel
from quintet.client.core.base import Fields
from quintet.client.core.errors import ServerError, from_server
from quintet.kernel.items import FelixReply
from quintet.model.errors import (
    AuthError,
    BadName,
    BadRequest,
    Busy,
    Forbidden,
    LimitExceeded,
    ProtocolError,
    QuintetError,
    TopicNotFound,
)
from quintet.protocols.felix import codec, frames

FRAME_READ_MAX: Final = 32 * 1024 * 1024  # the largest payload a server can be told to send
AUTH_LATE: Final = 0x41

NAME_HINT: Final = "each of the three parts of a name has 1 to 200 bytes of UTF-8 without / and NUL"
_TOKEN_HINT: Final = (
    "put an API key or a token into the URL: felix://:TOKEN@HOST:5000; "
    "`quintet token inspect --jwks-file FILE` says whether a token is good"
)
# Text of an error that has no code -> the error, and what to do; the first it begins with.
_TEXTS: Final[tuple[tuple[str, type[QuintetError], str], ...]] = (
    ("auth", AuthError, _TOKEN_HINT),
    ("tenant '", LimitExceeded, "raise the limit in [[tenants]] of the server's configuration"),
    ("user '", LimitExceeded, "ask an administrator: `quintet quota show` has the quotas"),
    ("tenant mismatch", AuthError, "?tenant=, and the first part of a topic's name, must be the tenant of the token"),
    ("forbidden", Forbidden, "ask an administrator for the right to it"),
    ("stream not found", TopicNotFound, "the server makes no stream by its first use: make it there first"),
    ("cache scope not found", TopicNotFound, "the server makes no cache by its first use: make it there first"),
    ("max subscriptions", LimitExceeded, "raise subscriptions_max of the listener, or use another connection"),
    ("server overloaded", Busy, "try again in a moment"),
    ("ingress overloaded", Busy, "try again in a moment"),
    ("missing", BadRequest, ""),
    ("tenant_id: ", BadName, NAME_HINT),
    ("namespace: ", BadName, NAME_HINT),
    ("stream: ", BadName, NAME_HINT),
    ("unexpected message type", ProtocolError, "the server does not know this message"),
    ("unsupported frame flags", ProtocolError, "the server does not know this frame"),
)
# Application code of a closed connection -> an error that a later attempt would meet again.
CLOSE_CODES: Final[dict[int, tuple[type[QuintetError], str]]] = {
    frames.PROTOCOL_ERROR: (ProtocolError, "are the versions of client and server far apart?"),
    frames.LIMIT: (LimitExceeded, "raise the limit in the server's configuration"),
    frames.REVOKED: (AuthError, _TOKEN_HINT),
    AUTH_LATE: (AuthError, _TOKEN_HINT),
}

encode_json: Final = msgspec.json.Encoder().encode  # bytes become base64
decode_json: Final = msgspec.json.Decoder(Fields).decode


UNREADABLE: Final = (
    ProtocolError,
    msgspec.DecodeError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)  # what reading it may raise


def unreadable(where: str, error: Exception) -> ProtocolError:
    """A server's message that has other fields, or other types of them, than it should."""
    if isinstance(error, ProtocolError):
        return error
    return ProtocolError(f"{where} sent a message that cannot be read: {error!r}")


def error_of(text: str, code: object = None) -> QuintetError:
    """The typed error for what a server said."""
    if isinstance(code, str) and code:
        return from_server(code, text)
    for start, kind, hint in _TEXTS:
        if text.startswith(start):
            return kind(text, hint=hint)
    error = ServerError(text or "refused", hint="see the server's log")
    error.retryable = text.startswith("internal")
    return error


def json_frame(message: Fields) -> bytes:
    return codec.frame(encode_json(message))


def packed(data: bytes) -> bytes:
    """A whole frame, with its payload as one zstd frame."""
    _, _, flags, _ = frames.HEADER.unpack_from(data)
    return codec.frame(codec.pack(data[frames.HEADER.size :]), flags | frames.ZSTD)


def unpacked(flags: int, payload: bytes) -> FelixReply:
    """The item of a frame whose payload was packed. ValueError says why it is none."""
    body = codec.unpack(payload, FRAME_READ_MAX) if flags & frames.ZSTD else payload
    if flags & frames.RECORDS:
        return frames.RECORDS, flags, body
    plain = codec.frame(body, flags & ~frames.ZSTD)
    items, _, fatal = kernel.felix_received(plain, 0, FRAME_READ_MAX)
    if fatal or not items:
        raise ValueError("what is inside is no frame")
    return items[0]


class Inflow:
    """From the bytes of one stream to items of kernel.felix_received."""

    __slots__ = ("_tail", "_where", "wanted")

    def __init__(self, where: str) -> None:
        self._where = where
        self._tail = bytearray()
        self.wanted = 0  # bytes needed before another look at the tail can help

    def feed(self, data: bytes) -> Iterator[FelixReply]:
        """The items one by one, so that those before one that is wrong are dealt with."""
        if self._tail:
            self._tail += data
            if len(self._tail) < self.wanted:
                return
        source = self._tail or data
        items, consumed, fatal = kernel.felix_received(source, 0, FRAME_READ_MAX)
        head = bytes(source[consumed : consumed + frames.HEADER.size])
        whole = len(head) == frames.HEADER.size
        self.wanted = frames.HEADER.size + frames.HEADER.unpack(head)[3] if whole else 0
        if self._tail:
            del self._tail[:consumed]
        elif consumed < len(data):
            self._tail += memoryview(data)[consumed:]
        for item in items:
            if item[0] == frames.ZSTD:
                try:
                    item = unpacked(item[1], item[2])
                except ValueError as error:
                    raise ProtocolError(f"{self._where} sent a packed frame that does not unpack: {error}") from None
            yield item
        if fatal:
            raise ProtocolError(
                f"{self._where} sent what is not a frame of Felix (code {fatal})",
                hint="is this the Felix port of a broker?",
            )
