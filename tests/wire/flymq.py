"""FlyMQ: frames made and read by hand, and a blocking client with the operations that campaigns need.

AF 01 op flags u32 length | payload        str16: u16 length + text        bytes32: u32 length + bytes       big-endian

PRODUCE  01  str16 topic, bytes32 key, bytes32 value, i32 partition [u64 producer, u32 sequence]
             answer: str16 topic, i32 partition, u64 offset, i64 time ms, i32 key size, i32 value size
FETCH    07  str16 topic, i32 partition, u64 offset, i32 max [str16 filter]
             answer: u32 count, count * (bytes32 key, bytes32 value, u64 offset), u64 next offset
             of the SDK's dialect: u32 count, u64 next offset, count * (u64 offset, bytes32 key, bytes32 value)
ERROR    FF  bool success, str16 text;  of the SDK's dialect: i32 code, str16 text
"""

import struct
from typing import NamedTuple, Self

from tests.wire.connection import Closed, Connection, Hang

__all__ = ["Client", "Closed", "Hang"]

HEAD = struct.Struct(">BBBBI")
PRODUCE, CONSUME, CREATE, METADATA, SUBSCRIBE, COMMIT, FETCH = range(1, 8)
FETCH_DLQ, REPLAY_DLQ, DEAD_LETTER, DELAYED = 0x20, 0x21, 0x23, 0x30
BEGIN, TXN_COMMIT, ROLLBACK, TXN_PRODUCE, OFFSET = 0x40, 0x41, 0x42, 0x43, 0x60
AUTH, AUTH_RESPONSE, WHOAMI, ERROR = 0x70, 0x71, 0x72, 0xFF
STOPPING = "[E1700]"  # what was asked was not done, and the connection ends


class Refused(Exception):
    """An ERROR frame, with its text."""


class Frame(NamedTuple):
    """One frame as it came."""

    code: int
    flags: int
    payload: bytes

    @property
    def error(self) -> str:
        """Text of an ERROR."""
        assert self.code == ERROR, self
        success, length = struct.unpack_from(">BH", self.payload)
        assert success == 0 and len(self.payload) == 3 + length, self
        return self.payload[3:].decode()

    @property
    def error_sdk(self) -> tuple[int, str]:
        """Number and text of an ERROR of the SDK's dialect."""
        assert self.code == ERROR, self
        number, length = struct.unpack_from(">iH", self.payload)
        assert len(self.payload) == 6 + length, self
        return number, self.payload[6:].decode()


class Record(NamedTuple):
    offset: int
    key: bytes
    value: bytes


def frame(code: int, payload: bytes = b"", flags: int = 1) -> bytes:
    return HEAD.pack(0xAF, 1, code, flags, len(payload)) + payload


def split(data: bytes) -> tuple[list[Frame], bytes]:
    found, at = [], 0
    while len(data) - at >= HEAD.size:
        magic, version, code, flags, length = HEAD.unpack_from(data, at)
        if (magic, version) != (0xAF, 1):
            raise ValueError(f"no frame of FlyMQ: {data[at : at + 8].hex()}")
        if len(data) - at < HEAD.size + length:
            break
        at += HEAD.size + length
        found.append(Frame(code, flags, data[at - length : at]))
    return found, data[at:]


def frames_of(data: bytes) -> list[Frame]:
    """Every frame; fails on a partial one."""
    found, rest = split(data)
    assert not rest, f"a partial frame: {rest.hex()}"
    return found


# -- fields ------------------------------------------------------------------------------------------------------------


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(raw)) + raw


def blob(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


def text_at(data: bytes, at: int) -> tuple[str, int]:
    """The text there and where it ends."""
    end = at + 2 + struct.unpack_from(">H", data, at)[0]
    assert end <= len(data)
    return data[at + 2 : end].decode(), end


def blob_at(data: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + struct.unpack_from(">I", data, at)[0]
    assert end <= len(data)
    return data[at + 4 : end], end


# -- requests and answers ----------------------------------------------------------------------------------------------


def auth(user: str, password: str) -> bytes:
    return frame(AUTH, text(user) + text(password))


def produce(
    topic: str | bytes, value: bytes, key: bytes = b"", partition: int = -1, suffix: bytes = b"", flags: int = 1
) -> bytes:
    """`suffix` is that of an idempotent producer, or anything else that stands there."""
    return frame(PRODUCE, text(topic) + blob(key) + blob(value) + struct.pack(">i", partition) + suffix, flags)


def producer(id: int, sequence: int) -> bytes:
    return struct.pack(">QI", id, sequence)


def produced(topic: bytes, partition: int, offset: int, time_ms: int, key: int, value: int, flags: int = 1) -> bytes:
    return frame(PRODUCE, text(topic) + struct.pack(">iQqii", partition, offset, time_ms, key, value), flags)


def fetch(topic: str, offset: int = 0, most: int = 100, partition: int = 0, filter: str | bytes = "") -> bytes:
    return frame(FETCH, text(topic) + struct.pack(">iQi", partition, offset, most) + (text(filter) if filter else b""))


def fetched(
    records: list[tuple[int, bytes, bytes]], next_offset: int, sdk: bool, code: int = FETCH, flags: int = 1
) -> bytes:
    count, last = struct.pack(">I", len(records)), struct.pack(">Q", next_offset)
    if sdk:
        body = b"".join(struct.pack(">Q", offset) + blob(key) + blob(value) for offset, key, value in records)
        return frame(code, count + last + body, flags)
    body = b"".join(blob(key) + blob(value) + struct.pack(">Q", offset) for offset, key, value in records)
    return frame(code, count + body + last, flags)


def records_of(payload: bytes) -> tuple[list[Record], int]:
    """(records, next offset) of an answer to FETCH, document's dialect."""
    (count,) = struct.unpack_from(">I", payload)
    at, found = 4, []
    for _ in range(count):
        key, at = blob_at(payload, at)
        value, at = blob_at(payload, at)
        found.append(Record(struct.unpack_from(">Q", payload, at)[0], key, value))
        at += 8
    assert at + 8 == len(payload)
    return found, int(struct.unpack_from(">Q", payload, at)[0])


def values_of(payload: bytes) -> tuple[list[bytes], int]:
    records, following = records_of(payload)
    return [one.value for one in records], following


class Client(Connection):
    """One connection, document's dialect."""

    def read(self, timeout_s: float | None = None) -> Frame:
        while len(self.buffer) < HEAD.size:
            self.fill(timeout_s)
        magic, version, code, flags, length = HEAD.unpack_from(self.buffer)
        assert (magic, version) == (0xAF, 1), self.buffer[:8].hex()
        while len(self.buffer) < HEAD.size + length:
            self.fill(timeout_s)
        return Frame(code, flags, self.take(HEAD.size + length)[HEAD.size :])

    def ask(self, data: bytes) -> Frame:
        self.send(data)
        return self.read()

    def login(self, user: str = "admin", password: str = "admin") -> Self:
        try:
            reply = self.ask(auth(user, password))
            assert reply.code == AUTH_RESPONSE and reply.payload[0] == 1, reply
        except BaseException:
            self.close()
            raise
        return self

    def usable(self) -> bool:
        """It still answers who it is."""
        return self.ask(frame(WHOAMI)).code == WHOAMI

    # -- operations ------------------------------------------------------------------------------------------------

    def request(self, code: int, payload: bytes) -> bytes:
        """The answer's payload; Refused for an ERROR, Closed if it says that the broker is stopping or the cell moves."""
        return self._granted(frame(code, payload))

    def _granted(self, data: bytes) -> bytes:
        reply = self.ask(data)
        if reply.code == ERROR:
            raise (Closed if STOPPING in reply.error else Refused)(reply.error)
        return reply.payload

    def create(self, topic: str, partitions: int) -> None:
        self.request(CREATE, text(topic) + struct.pack(">i", partitions))

    def produce(self, topic: str, value: bytes, partition: int, id: int = 0, sequence: int = 0) -> int:
        suffix = producer(id, sequence) if id else b""
        return _offset_of(self._granted(produce(topic, value, partition=partition, suffix=suffix)))

    def delayed(self, topic: str, value: bytes, delay_ms: int) -> int:
        return _offset_of(self.request(DELAYED, text(topic) + blob(value) + struct.pack(">q", delay_ms)))

    def begin(self) -> str:
        return text_at(self.request(BEGIN, b""), 0)[0]

    def txn_produce(self, txn: str, topic: str, value: bytes, partition: int) -> None:
        self.request(TXN_PRODUCE, text(txn) + text(topic) + blob(value) + blob(b"") + struct.pack(">i", partition))

    def txn_offset(self, txn: str, topic: str, group: str, partition: int, offset: int) -> None:
        where = text(topic) + text(group) + struct.pack(">iQI", partition, offset, 0)
        self.request(COMMIT, where + text(txn))

    def commit(self, txn: str) -> None:
        self.request(TXN_COMMIT, text(txn))

    def rollback(self, txn: str) -> None:
        self.request(ROLLBACK, text(txn))

    def committed(self, topic: str, group: str, partition: int) -> int:
        body = self.request(OFFSET, text(topic) + text(group) + struct.pack(">i", partition))
        return int(struct.unpack(">Q", body)[0])

    def dead_letter(self, topic: str, partition: int, offset: int) -> None:
        self.request(DEAD_LETTER, text(topic) + struct.pack(">iQ", partition, offset) + text("poison"))

    def dead_letters(self, topic: str) -> dict[bytes, str]:
        """value -> id of every open dead letter."""
        found: dict[bytes, str] = {}
        after = ""
        while True:
            body = self.request(FETCH_DLQ, text(topic) + struct.pack(">i", 500) + text(after))
            (count,) = struct.unpack_from(">I", body)
            at = 4
            for _ in range(count):
                id, at = text_at(body, at)
                value, at = blob_at(body, at)
                _, at = text_at(body, at)
                at += 4
                assert value not in found, f"{value!r} is among the dead letters twice"
                found[value] = after = id
            if not count:
                return found

    def replay(self, topic: str, id: str) -> None:
        self.request(REPLAY_DLQ, text(topic) + text(id))

    def partitions(self, topic: str) -> int:
        body = self.request(METADATA, text(topic))
        return int(struct.unpack_from(">I", body, text_at(body, 0)[1])[0])

    def fetch(self, topic: str, partition: int, offset: int) -> tuple[list[Record], int]:
        """(records, next offset)."""
        return records_of(self._granted(fetch(topic, offset, 10_000, partition)))

    def everything(self, topic: str) -> list[bytes]:
        """All values of a topic; offsets must be dense from 0."""
        values: list[bytes] = []
        for partition in range(self.partitions(topic)):
            offset = 0
            while True:
                found, following = self.fetch(topic, partition, offset)
                assert [one.offset for one in found] == list(range(offset, offset + len(found))), "offsets are dense"
                values += [one.value for one in found]
                if not found:
                    break
                offset = following
        return values


def _offset_of(body: bytes) -> int:
    return int(struct.unpack_from(">iQ", body, text_at(body, 0)[1])[1])
