"""Fast TCP Pub/Sub: packets and tokens made and read by hand, and a blocking client.

CREATE     01 jwt8 name8 flags      SUBSCRIBE  02 jwt8 u32      PUBLISH     03 jwt8 u32 u32+payload
ROTATE_KEY 07 jwt8 u32 key8         UNSUBSCRIBE 05 jwt8 u32     EXTEND      70 version
MESSAGE    04 u32 u32+payload       KEY_UPDATE 06 u32 key8
OK 7e, ERROR 7f: request u8, topic u32, code u16, text8          x8: u8 length + bytes; all big-endian
"""

import base64
import hashlib
import hmac
import json
import struct
from typing import Any, NamedTuple

from tests.wire.connection import Closed, Connection, Hang

__all__ = ["Client", "Closed", "Hang"]

MASTER = b"quintet-development-master-secret"
CREATE, SUBSCRIBE, PUBLISH, MESSAGE, UNSUBSCRIBE, KEY_UPDATE, ROTATE_KEY = range(1, 8)
EXTEND, RECORDS, MESSAGES, OK, ERROR = 0x70, 0x71, 0x72, 0x7E, 0x7F
DURABLE = 1
WRONG_KEY = 419
PAYLOAD_BYTES_MAX = 16 << 20
_RESULT = struct.Struct(">BIHB")

Fields = tuple[Any, ...]  # of a request, its type first


class Message(NamedTuple):
    topic: int
    payload: bytes


class Messages(Message):
    """Of EXTEND 3: its payload is a record set (records.py)."""

    __slots__ = ()


class KeyUpdate(NamedTuple):
    topic: int
    key: bytes


class Answer(NamedTuple):
    """OK has code 0."""

    request: int
    topic: int
    code: int
    text: str


Packet = Message | KeyUpdate | Answer


# -- tokens and names --------------------------------------------------------------------------------------------------


def _part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def token(
    subject: str, key: str, *permissions: str, secret: bytes = MASTER, header: str = '{"alg":"HS256"}', **more: Any
) -> bytes:
    """A JWT, signed with HMAC-SHA256 whatever its header says."""
    claims = {"sub": subject, "queue_key": key, "permissions": list(permissions)} | more
    signed = _part(header.encode()) + b"." + _part(json.dumps(claims, separators=(",", ":")).encode())
    return signed + b"." + _part(hmac.digest(secret, signed, hashlib.sha256))


def topic_id(name: bytes) -> int:
    """FNV-1a, 32 bits."""
    found = 0x811C9DC5
    for byte in name:
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return found


# -- packets of a client -----------------------------------------------------------------------------------------------


def u32(number: int) -> bytes:
    return struct.pack(">I", number)


def short(data: bytes) -> bytes:
    return bytes((len(data),)) + data


def frame(kind: int, jwt: bytes, rest: bytes) -> bytes:
    """Any request but EXTEND."""
    return bytes((kind,)) + short(jwt) + rest


def create(jwt: bytes, name: bytes, flags: int = 0) -> bytes:
    return frame(CREATE, jwt, short(name) + bytes((flags,)))


def subscribe(jwt: bytes, topic: int) -> bytes:
    return frame(SUBSCRIBE, jwt, u32(topic))


def unsubscribe(jwt: bytes, topic: int) -> bytes:
    return frame(UNSUBSCRIBE, jwt, u32(topic))


def publish(jwt: bytes, topic: int, payload: bytes) -> bytes:
    return frame(PUBLISH, jwt, u32(topic) + u32(len(payload)) + payload)


def rotate_key(jwt: bytes, topic: int, key: bytes) -> bytes:
    return frame(ROTATE_KEY, jwt, u32(topic) + short(key))


def records(jwt: bytes, topic: int, data: bytes) -> bytes:
    """A record set (records.py), behind EXTEND."""
    return frame(RECORDS, jwt, u32(topic) + u32(len(data)) + data)


def extend(version: int = 1) -> bytes:
    return bytes((EXTEND, version))


def request(fields: Fields) -> bytes:
    """What `requests` reads back."""
    match fields:
        case (1, jwt, name, flags):
            return create(jwt, name, flags)
        case (3, jwt, topic, payload):
            return publish(jwt, topic, payload)
        case (7, jwt, topic, key):
            return rotate_key(jwt, topic, key)
        case (0x70, version):
            return extend(version)
        case (2 | 5 as kind, jwt, topic):
            return frame(kind, jwt, u32(topic))
    raise ValueError(f"no request has these fields: {fields}")


def requests(
    data: bytes, payload_max: int = PAYLOAD_BYTES_MAX, extended: bool = False
) -> tuple[list[Fields], int, int]:
    """(requests, consumed, fatal) of a read: fatal 1 is an unknown type, 2 a payload that is too long, 0 nothing.

    (1, jwt, name, flags)   (2 or 5, jwt, topic)   (3, jwt, topic, payload)   (7, jwt, topic, key)   (70, version)
    extended, behind an EXTEND: (71, jwt, topic, record set)
    """
    out: list[Fields] = []
    at = start = 0

    def take(size: int) -> bytes:
        nonlocal at
        if len(data) - at < size:
            raise EOFError
        at += size
        return data[at - size : at]

    def number(size: int) -> int:
        return int.from_bytes(take(size), "big")

    try:
        while True:
            start = at
            kind = number(1)
            if kind == EXTEND:
                out.append((kind, number(1)))
                continue
            if kind not in (CREATE, SUBSCRIBE, PUBLISH, UNSUBSCRIBE, ROTATE_KEY, *([RECORDS] if extended else [])):
                return out, start, 1
            jwt = take(number(1))
            if kind == CREATE:
                out.append((kind, jwt, take(number(1)), number(1)))
                continue
            topic = number(4)
            if kind in (PUBLISH, RECORDS):
                size = number(4)
                if size > payload_max:
                    return out, start, 2
                out.append((kind, jwt, topic, take(size)))
            else:
                out.append((kind, jwt, topic, take(number(1))) if kind == ROTATE_KEY else (kind, jwt, topic))
    except EOFError:
        return out, start, 0


# -- packets of the broker ---------------------------------------------------------------------------------------------


def messages(topic: int, data: bytes) -> bytes:
    return bytes((MESSAGES,)) + u32(topic) + u32(len(data)) + data


def message(topic: int, payload: bytes) -> bytes:
    return bytes((MESSAGE,)) + u32(topic) + u32(len(payload)) + payload


def key_update(topic: int, key: bytes) -> bytes:
    return bytes((KEY_UPDATE,)) + u32(topic) + short(key)


def result(kind: int, request: int, topic: int, code: int = 0, text: bytes = b"") -> bytes:
    return bytes((kind,)) + _RESULT.pack(request, topic, code, len(text)) + text


def ok(request: int, topic: int) -> bytes:
    return result(OK, request, topic)


def error(request: int, topic: int, code: int, text: str) -> bytes:
    return result(ERROR, request, topic, code, text.encode())


def _next(data: bytes | bytearray, at: int) -> tuple[Packet | None, int]:
    """The packet there and where it ends; None if it is not whole."""
    left = len(data) - at
    if not left:
        return None, at
    kind = data[at]
    if kind not in (MESSAGE, MESSAGES, KEY_UPDATE, OK, ERROR):
        raise ValueError(f"a packet of type {kind:#x}")
    head = 6 if kind == KEY_UPDATE else 9
    if left < head:
        return None, at
    long = kind in (MESSAGE, MESSAGES)
    size = int.from_bytes(data[at + 5 : at + 9], "big") if long else data[at + head - 1]
    end = at + head + size
    if len(data) < end:
        return None, at
    tail = bytes(data[at + head : end])
    if kind in (OK, ERROR):
        request, topic, code, _ = _RESULT.unpack_from(data, at + 1)
        if (kind == OK) is not (code == 0) or (code == 0 and size):
            raise ValueError(f"an answer of type {kind:#x} with code {code}")
        return Answer(request, topic, code, tail.decode()), end
    topic = int.from_bytes(data[at + 1 : at + 5], "big")
    if kind == KEY_UPDATE:
        return KeyUpdate(topic, tail), end
    return Messages(topic, tail) if kind == MESSAGES else Message(topic, tail), end


def split(data: bytes) -> tuple[list[Packet], bytes]:
    found: list[Packet] = []
    packet, at = _next(data, 0)
    while packet is not None:
        found.append(packet)
        packet, at = _next(data, at)
    return found, data[at:]


def packets_of(data: bytes) -> list[Packet]:
    """Every packet; a ValueError if the last is not whole."""
    found, rest = split(data)
    if rest:
        raise ValueError(f"the output ends inside a packet: {rest[:40].hex()}")
    return found


class Client(Connection):
    """One connection; in extended mode every request is answered."""

    def __init__(self, address: str, extended: bool = True) -> None:
        super().__init__(address)
        try:
            assert not extended or self.ask(extend()) == [Answer(EXTEND, 0, 0, "")]
        except BaseException:
            self.close()
            raise

    def read(self, timeout_s: float | None = None) -> Packet:
        while (found := _next(self.buffer, 0))[0] is None:
            self.fill(timeout_s)
        del self.buffer[: found[1]]
        return found[0]

    def ask(self, data: bytes, answers: int = 1) -> list[Answer]:
        """Send requests and read their answers, in order."""
        self.send(data)
        found = [self.read() for _ in range(answers)]
        assert all(isinstance(one, Answer) for one in found), f"not only answers came: {found}"
        return [one for one in found if isinstance(one, Answer)]

    def messages(self, jwt: bytes, topic: int, count: int) -> list[bytes]:
        """SUBSCRIBE and the payloads of that many messages, or of as many as come."""
        (answer,) = self.ask(subscribe(jwt, topic))
        assert answer.code == 0, answer
        found: list[bytes] = []
        while len(found) < count:
            try:
                one = self.read()
            except Hang:
                break
            assert isinstance(one, Message) and one.topic == topic, one
            found.append(one.payload)
        return found
