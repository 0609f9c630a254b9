"""Fast TCP Pub/Sub on a plain socket, packed by hand, with tokens made by hand: campaigns share no codec with what they judge.

CREATE 01 jwt8 name8 flags    SUBSCRIBE 02 jwt8 u32    PUBLISH 03 jwt8 u32 u32+payload    ROTATE_KEY 07 jwt8 u32 key8
MESSAGE 04 u32 u32+payload    KEY_UPDATE 06 u32 key8   EXTEND 70 version
OK 7e, ERROR 7f: request u8, topic u32, code u16, text8          x8: u8 length + bytes; all big-endian
"""

import base64
import hashlib
import hmac
import json
import socket
import struct
from typing import Any, NamedTuple

HANG_S = 20.0
MASTER = b"quintet-development-master-secret"
CREATE, SUBSCRIBE, PUBLISH, MESSAGE, UNSUBSCRIBE, KEY_UPDATE, ROTATE_KEY = range(1, 8)
EXTEND, OK, ERROR = 0x70, 0x7E, 0x7F
DURABLE = 1
WRONG_KEY = 419
_RESULT = struct.Struct(">BIHB")


class Gone(Exception):
    """The broker went away: what was asked may or may not have happened."""


class Answer(NamedTuple):
    """OK has code 0."""

    request: int
    topic: int
    code: int
    text: str


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(
    subject: str, key: str, *permissions: str, secret: bytes = MASTER, header: str = '{"alg":"HS256"}', **more: Any
) -> bytes:
    """A JWT, signed with HMAC-SHA256 whatever its header says."""
    claims = {"sub": subject, "queue_key": key, "permissions": list(permissions)} | more
    signed = _part(header.encode()) + b"." + _part(json.dumps(claims, separators=(",", ":")).encode())
    return signed + b"." + _part(hmac.digest(secret, signed, hashlib.sha256))


def number(name: str) -> int:
    """FNV-1a, 32 bits."""
    found = 0x811C9DC5
    for byte in name.encode():
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


def short(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def create(jwt: bytes, name: str, flags: int = DURABLE) -> bytes:
    return b"\x01" + short(jwt) + short(name.encode()) + bytes((flags,))


def publish(jwt: bytes, topic: int, payload: bytes) -> bytes:
    return b"\x03" + short(jwt) + struct.pack(">II", topic, len(payload)) + payload


def rotate(jwt: bytes, topic: int, key: str) -> bytes:
    return b"\x07" + short(jwt) + struct.pack(">I", topic) + short(key.encode())


class FastWire:
    """One connection in extended mode: every request is answered."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=HANG_S)
        except OSError as error:
            raise Gone(str(error)) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        try:
            found = self.ask(bytes((EXTEND, 1)))
            assert found == [Answer(EXTEND, 0, 0, "")], found
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> "FastWire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, data: bytes, answers: int = 1) -> list[Answer]:
        """Send requests and read their answers, in order."""
        try:
            self._socket.sendall(data)
            return [self._answer() for _ in range(answers)]
        except TimeoutError:
            raise AssertionError(f"no answer on the Fast door within {HANG_S} s") from None
        except OSError as error:
            raise Gone(str(error)) from None

    def subscribe(self, jwt: bytes, topic: int, count: int) -> list[bytes]:
        """SUBSCRIBE and the payloads of that many messages."""
        (answer,) = self.ask(b"\x02" + short(jwt) + struct.pack(">I", topic))
        assert answer.code == 0, answer
        found = []
        try:
            for _ in range(count):
                kind, about, size = struct.unpack(">BII", self._read(9))
                assert (kind, about) == (MESSAGE, topic), f"a packet of type {kind:#x} of topic {about:08x}"
                found.append(self._read(size))
        except TimeoutError:
            return found
        return found

    def _answer(self) -> Answer:
        kind = self._read(1)[0]
        assert kind in (OK, ERROR), f"a packet of type {kind:#x} where an answer was expected"
        request, topic, code, size = _RESULT.unpack(self._read(_RESULT.size))
        return Answer(request, topic, code, self._read(size).decode())

    def _read(self, size: int) -> bytes:
        found = self._file.read(size)
        if len(found) < size:
            raise ConnectionError("closed")
        return found
