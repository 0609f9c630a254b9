"""BlipMQ, both versions: frames made and read by hand, and a blocking client.

u32 length | u8 type | u64 correlation id | payload      big-endian, length counts what follows it

HELLO      u16 version                   ACK, POLL  u64 subscription (of an answer: 0 if there is none)
AUTH       u16 n, key                    NACK       u16 code, u16 n, text
PUBLISH    u8 qos [u32 ttl ms, if qos has bit 7], u16 n, topic, message      also a delivery of version 1
NACK       of a client, version 0x5102 only: u16 word, u64 subscription, u32 argument
SUBSCRIBE  u16 n, topic, u8 qos          DELIVER    u8 qos, u64 tag, u16 n, topic, message
"""

import struct
from typing import ClassVar, NamedTuple, Self

from tests.wire.connection import Closed, Connection, Hang

__all__ = ["Client", "Closed", "Frame", "Hang"]

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL, DELIVER, RECORDS, MATCH = range(1, 13)
HANG_S = 30.0
OURS = 0x5102  # the version of this broker's own clients
WHOLE = 0x5103  # the same with record sets
TTL = 0x80  # bit of the qos
HEAD = struct.Struct(">IBQ")


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
        """The subscription id of an ACK or a POLL, the version of a HELLO."""
        assert (self.kind, len(self.payload)) in ((ACK, 8), (POLL, 8), (HELLO, 2)), self
        return int.from_bytes(self.payload, "big")

    @property
    def delivery(self) -> tuple[int, str, bytes]:
        """(tag, topic, message) of a DELIVER (version 2) or a PUBLISH (version 1)."""
        if self.kind == DELIVER:
            _, tag, length = struct.unpack_from(">BQH", self.payload)
            start = 11
        else:
            assert self.kind == PUBLISH, self
            tag, start = self.id, 3
            _, length = struct.unpack_from(">BH", self.payload)
        return tag, self.payload[start : start + length].decode(), self.payload[start + length :]


def frame(kind: int, id: int, payload: bytes = b"") -> bytes:
    return HEAD.pack(9 + len(payload), kind, id) + payload


def split(data: bytes) -> tuple[list[Frame], bytes]:
    found, at = [], 0
    while len(data) - at >= 4:
        (length,) = struct.unpack_from(">I", data, at)
        if length < 9:
            raise ValueError(f"a frame of length {length} at {at}")
        if len(data) - at < 4 + length:
            break
        _, kind, id = HEAD.unpack_from(data, at)
        found.append(Frame(kind, id, data[at + 13 : at + 4 + length]))
        at += 4 + length
    return found, data[at:]


def frames_of(data: bytes) -> list[Frame]:
    """Every frame; fails on a partial one."""
    found, rest = split(data)
    assert not rest, f"a partial frame: {rest.hex()}"
    return found


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def u64(value: int) -> bytes:
    return struct.pack(">Q", value)


def hello(id: int, version: int) -> bytes:
    return frame(HELLO, id, struct.pack(">H", version))


def auth(id: int, key: bytes) -> bytes:
    return frame(AUTH, id, text(key))


def publish(id: int, topic: bytes, message: bytes, qos: int = 1, ttl_ms: int | None = None) -> bytes:
    how = bytes((qos,)) if ttl_ms is None else struct.pack(">BI", qos | TTL, ttl_ms)
    return frame(PUBLISH, id, how + text(topic) + message)


def subscribe(id: int, topic: bytes, qos: int = 1) -> bytes:
    return frame(SUBSCRIBE, id, text(topic) + bytes((qos,)))


def ack(id: int, subscription: int) -> bytes:
    return frame(ACK, id, u64(subscription))


def poll(id: int, subscription: int) -> bytes:
    return frame(POLL, id, u64(subscription))


def ping(id: int) -> bytes:
    return frame(PING, id)


def pong(id: int) -> bytes:
    return frame(PONG, id)


def nack(id: int, code: int, words: str) -> bytes:
    return frame(NACK, id, struct.pack(">H", code) + text(words.encode()))


def word(id: int, what: int, subscription: int, argument: int) -> bytes:
    """A client's NACK of version OURS."""
    return frame(NACK, id, struct.pack(">HQI", what, subscription, argument))


def records(id: int, topic: bytes, qos: int, data: bytes) -> bytes:
    """A record set (records.py) of version WHOLE, either way."""
    return frame(RECORDS, id, bytes((qos,)) + text(topic) + data)


def match(id: int, version: int, *patterns: bytes) -> bytes:
    """A question for the topics that match, of version WHOLE."""
    return frame(MATCH, id, u64(version) + struct.pack(">H", len(patterns)) + b"".join(map(text, patterns)))


def matched(payload: bytes) -> tuple[int, bool, list[bytes]]:
    """Version, whether something changed, and the names, of a server's answer."""
    version, changed, count = struct.unpack_from(">QBI", payload)
    names, at = [], 13
    for _ in range(count):
        (size,) = struct.unpack_from(">H", payload, at)
        names.append(payload[at + 2 : at + 2 + size])
        at += 2 + size
    assert at == len(payload)
    return version, bool(changed), names


def deliver(tag: int, topic: bytes, message: bytes, qos: int = 1) -> bytes:
    return frame(DELIVER, tag, bytes((qos,)) + u64(tag) + text(topic) + message)


class Client(Connection):
    """One connection."""

    hang_s: ClassVar[float] = HANG_S

    def read(self, timeout_s: float | None = None) -> Frame:
        """The next frame; Closed at the end of the stream, Hang if none comes in time."""
        while len(self.buffer) < HEAD.size or len(self.buffer) < 4 + int.from_bytes(self.buffer[:4], "big"):
            self.fill(timeout_s)
        length, kind, id = HEAD.unpack(self.take(HEAD.size))
        return Frame(kind, id, self.take(length - 9))

    def ask(self, data: bytes) -> Frame:
        """Send and read one frame."""
        self.send(data)
        return self.read()

    def login(self, key: bytes = b"dev-key", version: int = 1) -> Self:
        """HELLO and AUTH."""
        self.send(hello(1, version) + auth(2, key))
        for id in (1, 2):
            reply = self.read()
            assert (reply.kind, reply.id) == (ACK, id), reply
        return self

    def barrier(self, id: int = 1 << 62) -> list[Frame]:
        """PING; everything that came before its PONG."""
        self.send(frame(PING, id))
        before = []
        while (found := self.read()) != Frame(PONG, id, b""):
            before.append(found)
        return before
