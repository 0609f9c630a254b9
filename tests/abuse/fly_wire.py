"""A FlyMQ peer made of one blocking socket, for abuse: sends any bytes, reads whole frames of the document's dialect.

It shares no code with the broker or its client, so that both sides cannot be wrong in the same way.

    0xAF | 0x01 | op | flags | u32 length | payload      big-endian
"""

import socket
import struct
from typing import NamedTuple

HANG_S = 10.0  # no reply for this long is reported as a hang
ERROR, AUTH, AUTH_RESPONSE, WHOAMI = 0xFF, 0x70, 0x71, 0x72
_HEAD = struct.Struct(">BBBBI")


class Closed(Exception):
    """The broker closed the connection."""


class Hang(Exception):
    """Nothing came for HANG_S."""


class Frame(NamedTuple):
    """One frame as it came."""

    op: int
    flags: int
    payload: bytes

    @property
    def error(self) -> str:
        """Text of an ERROR."""
        assert self.op == ERROR, self
        success, length = struct.unpack_from(">BH", self.payload)
        assert success == 0 and len(self.payload) == 3 + length, self
        return self.payload[3:].decode()


def frame(op: int, payload: bytes = b"", flags: int = 1) -> bytes:
    return _HEAD.pack(0xAF, 1, op, flags, len(payload)) + payload


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(raw)) + raw


def data(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def produce(topic: str | bytes, value: bytes, partition: int = -1, key: bytes = b"") -> bytes:
    return frame(0x01, text(topic) + data(key) + data(value) + struct.pack(">i", partition))


def fetch(topic: str, offset: int = 0, most: int = 100, partition: int = 0, filter: str | bytes = "") -> bytes:
    return frame(0x07, text(topic) + struct.pack(">iQi", partition, offset, most) + (text(filter) if filter else b""))


def fetched(payload: bytes) -> tuple[list[bytes], int]:
    """(values, next offset) of a reply to FETCH."""
    (count,) = struct.unpack_from(">I", payload)
    at, values = 4, []
    for _ in range(count):
        (key,) = struct.unpack_from(">I", payload, at)
        (size,) = struct.unpack_from(">I", payload, at + 4 + key)
        at += 8 + key
        values.append(payload[at : at + size])
        at += size + 8
    assert at + 8 == len(payload)
    return values, int(struct.unpack_from(">Q", payload, at)[0])


class Wire:
    """A connection. Use as a context."""

    def __init__(self, address: str, receive_buffer: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(HANG_S)
        self.socket.connect((host.strip("[]"), int(port)))
        self._kept = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def read(self, wait_s: float = HANG_S) -> Frame:
        head = self._exactly(8, wait_s)
        magic, version, op, flags, length = _HEAD.unpack(head)
        assert (magic, version) == (0xAF, 1), head.hex()
        return Frame(op, flags, self._exactly(length, wait_s))

    def _exactly(self, size: int, wait_s: float) -> bytes:
        self.socket.settimeout(wait_s)
        while len(self._kept) < size:
            try:
                got = self.socket.recv(1 << 20)
            except TimeoutError:
                raise Hang(f"nothing for {wait_s} s") from None
            except OSError:
                got = b""
            if not got:
                raise Closed
            self._kept += got
        taken, self._kept = self._kept[:size], self._kept[size:]
        return taken

    def ask(self, raw: bytes) -> Frame:
        self.send(raw)
        return self.read()

    def login(self, user: str, password: str = "") -> "Wire":
        reply = self.ask(frame(AUTH, text(user) + text(password or f"{user}-password")))
        assert reply.op == AUTH_RESPONSE and reply.payload[0] == 1, reply
        return self

    def usable(self) -> bool:
        """It still answers who it is."""
        return self.ask(frame(WHOAMI)).op == WHOAMI
