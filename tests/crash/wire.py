"""A BlipMQ peer made of one blocking socket, for campaigns and abuse: sends any bytes, reads whole frames.

It shares no code with the broker or its client, so that both sides cannot be wrong in the same way.

    u32 length | u8 type | u64 correlation id | payload      big-endian, length counts what follows it
"""

import socket
import ssl
import struct
from typing import NamedTuple

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL, DELIVER = range(1, 11)
HANG_S = 5.0  # no reply for this long is reported as a hang
_HEAD = struct.Struct(">IBQ")
_DELIVER = struct.Struct(">BQH")


class Frame(NamedTuple):
    """One frame as it came."""

    kind: int
    id: int
    payload: bytes

    @property
    def refusal(self) -> tuple[int, str]:
        """Code and text of a NACK."""
        assert self.kind == NACK, self
        code, length = struct.unpack_from(">HH", self.payload)
        assert len(self.payload) == 4 + length, self
        return code, self.payload[4:].decode()

    @property
    def number(self) -> int:
        """The subscription id of an ACK."""
        assert self.kind == ACK, self
        return int(struct.unpack(">Q", self.payload)[0])


class Closed(Exception):
    """The broker closed the connection."""


class Hang(Exception):
    """Nothing came for HANG_S."""


def frame(kind: int, id: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(9 + len(payload), kind, id) + payload


def publish(id: int, topic: bytes, message: bytes, qos: int = 1) -> bytes:
    return frame(PUBLISH, id, struct.pack(">BH", qos, len(topic)) + topic + message)


def subscribe(id: int, topic: bytes, qos: int = 1) -> bytes:
    return frame(SUBSCRIBE, id, struct.pack(">H", len(topic)) + topic + bytes((qos,)))


def number(kind: int, id: int, value: int) -> bytes:
    """An ACK or a POLL."""
    return frame(kind, id, struct.pack(">Q", value))


def auth(id: int, key: bytes) -> bytes:
    return frame(AUTH, id, struct.pack(">H", len(key)) + key)


def delivery(found: Frame) -> tuple[int, str, bytes]:
    """(tag, topic, message) of a DELIVER (version 2) or a PUBLISH (version 1)."""
    if found.kind == DELIVER:
        _, tag, length = _DELIVER.unpack_from(found.payload)
        start = _DELIVER.size
    else:
        assert found.kind == PUBLISH, found
        _, length = struct.unpack_from(">BH", found.payload)
        tag, start = found.id, 3
    return tag, found.payload[start : start + length].decode(), found.payload[start + length :]


class Wire:
    """One connection. Every read has the deadline HANG_S unless told otherwise."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None, receive_buffer: int = 0) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.socket()
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(HANG_S)
        try:
            plain.connect((host, int(port)))
        except OSError:
            plain.close()
            raise
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket: socket.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="localhost")
        self._buffer = bytearray()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except TimeoutError as error:
            raise Hang("the broker takes no bytes") from error
        except OSError as error:
            raise Closed(str(error)) from error

    def read(self, timeout_s: float = HANG_S) -> Frame:
        """The next frame; Closed at the end of the stream, Hang if none comes in time."""
        while True:
            if len(self._buffer) >= 13:
                length, kind, id = _HEAD.unpack_from(self._buffer)
                if len(self._buffer) >= 4 + length:
                    found = Frame(kind, id, bytes(self._buffer[13 : 4 + length]))
                    del self._buffer[: 4 + length]
                    return found
            self._fill(timeout_s)

    def _fill(self, timeout_s: float) -> None:
        self.socket.settimeout(timeout_s)
        try:
            data = self.socket.recv(262_144)
        except TimeoutError as error:
            raise Hang(f"no answer for {timeout_s} s") from error
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("end of stream")
        self._buffer += data

    def greet(self, key: bytes = b"dev-key", version: int = 1) -> "Wire":
        """HELLO and AUTH."""
        self.send(frame(HELLO, 1, struct.pack(">H", version)) + auth(2, key))
        for id in (1, 2):
            reply = self.read()
            assert (reply.kind, reply.id) == (ACK, id), reply
        return self

    def ask(self, data: bytes) -> Frame:
        """Send and read one frame."""
        self.send(data)
        return self.read()

    def barrier(self, id: int = 1 << 62) -> list[Frame]:
        """PING; everything that came before its PONG."""
        self.send(frame(PING, id))
        before = []
        while (found := self.read()) != Frame(PONG, id, b""):
            before.append(found)
        return before
