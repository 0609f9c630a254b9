"""FlyMQ on a plain socket, packed by hand: the campaigns must not share a codec with what they judge.

AF 01 op flags u32 length | payload        str16: u16 length + text        bytes32: u32 length + bytes
"""

import socket
import struct

HANG_S = 20.0
HEADER = struct.Struct(">BBBBI")
PRODUCE, FETCH, CREATE, METADATA, COMMIT, OFFSET = 0x01, 0x07, 0x03, 0x04, 0x06, 0x60
BEGIN, TXN_COMMIT, ROLLBACK, TXN_PRODUCE = 0x40, 0x41, 0x42, 0x43
DELAYED, DEAD_LETTER, FETCH_DLQ, REPLAY_DLQ = 0x30, 0x23, 0x20, 0x21
AUTH, ERROR = 0x70, 0xFF


class Gone(Exception):
    """The broker went away: what was asked may or may not have happened."""


class Refused(Exception):
    """An ERROR frame, with its text."""


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def blob(value: bytes) -> bytes:
    return struct.pack(">I", len(value)) + value


class FlyWire:
    """One connection, logged in as the development user."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=HANG_S)
        except OSError as error:
            raise Gone(str(error)) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            reply = self.ask(AUTH, text("admin") + text("admin"))
            assert reply[0] == 1, reply
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "FlyWire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, op: int, payload: bytes) -> bytes:
        """The reply's payload; Refused for an ERROR; Gone if the connection ended."""
        try:
            self._socket.sendall(HEADER.pack(0xAF, 1, op, 1, len(payload)) + payload)
            _, _, code, _, length = HEADER.unpack(self._read(8))
            body = self._read(length)
        except TimeoutError:
            raise AssertionError(f"no answer to operation {op:#x} within {HANG_S} s") from None
        except OSError as error:
            raise Gone(str(error)) from None
        if code == ERROR:
            raise Refused(body[3:].decode())
        return body

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            piece = self._socket.recv(size - len(found))
            if not piece:
                raise ConnectionError("closed")
            found += piece
        return found

    # -- operations ------------------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int) -> None:
        self.ask(CREATE, text(topic) + struct.pack(">i", partitions))

    def produce(self, topic: str, value: bytes, partition: int, producer: int = 0, sequence: int = 0) -> int:
        payload = text(topic) + blob(b"") + blob(value) + struct.pack(">i", partition)
        if producer:
            payload += struct.pack(">QI", producer, sequence)
        return _offset_of(self.ask(PRODUCE, payload))

    def delayed(self, topic: str, value: bytes, delay_ms: int) -> int:
        return _offset_of(self.ask(DELAYED, text(topic) + blob(value) + struct.pack(">q", delay_ms)))

    def begin(self) -> str:
        body = self.ask(BEGIN, b"")
        return body[2 : 2 + struct.unpack_from(">H", body)[0]].decode()

    def txn_produce(self, txn: str, topic: str, value: bytes, partition: int) -> None:
        self.ask(TXN_PRODUCE, text(txn) + text(topic) + blob(value) + blob(b"") + struct.pack(">i", partition))

    def txn_offset(self, txn: str, topic: str, group: str, partition: int, offset: int) -> None:
        where = text(topic) + text(group) + struct.pack(">iQI", partition, offset, 0)
        self.ask(COMMIT, where + text(txn))

    def commit(self, txn: str) -> None:
        self.ask(TXN_COMMIT, text(txn))

    def rollback(self, txn: str) -> None:
        self.ask(ROLLBACK, text(txn))

    def committed(self, topic: str, group: str, partition: int) -> int:
        body = self.ask(OFFSET, text(topic) + text(group) + struct.pack(">i", partition))
        return int(struct.unpack(">Q", body)[0])

    def dead_letter(self, topic: str, partition: int, offset: int) -> None:
        self.ask(DEAD_LETTER, text(topic) + struct.pack(">iQ", partition, offset) + text("poison"))

    def dead_letters(self, topic: str) -> dict[bytes, str]:
        """value -> id of every open dead letter."""
        found: dict[bytes, str] = {}
        after = ""
        while True:
            body = self.ask(FETCH_DLQ, text(topic) + struct.pack(">i", 500) + text(after))
            (count,) = struct.unpack_from(">I", body)
            at = 4
            for _ in range(count):
                id, at = _text(body, at)
                value, at = _blob(body, at)
                _, at = _text(body, at)
                at += 4
                assert value not in found, f"{value!r} is among the dead letters twice"
                found[value] = after = id
            if not count:
                return found

    def replay(self, topic: str, id: str) -> None:
        self.ask(REPLAY_DLQ, text(topic) + text(id))

    def partitions(self, topic: str) -> int:
        body = self.ask(METADATA, text(topic))
        _, at = _text(body, 0)
        return int(struct.unpack_from(">I", body, at)[0])

    def fetch(self, topic: str, partition: int, offset: int) -> tuple[list[tuple[int, bytes]], int]:
        """((offset, value) ..., next offset), as the document lays it out."""
        body = self.ask(FETCH, text(topic) + struct.pack(">iQi", partition, offset, 10_000))
        (count,) = struct.unpack_from(">I", body)
        at = 4
        found = []
        for _ in range(count):
            _, at = _blob(body, at)
            value, at = _blob(body, at)
            found.append((struct.unpack_from(">Q", body, at)[0], value))
            at += 8
        return found, struct.unpack_from(">Q", body, at)[0]

    def everything(self, topic: str) -> list[bytes]:
        """All values of a topic; offsets must be dense from 0."""
        values: list[bytes] = []
        for partition in range(self.partitions(topic)):
            offset = 0
            while True:
                found, following = self.fetch(topic, partition, offset)
                assert [at for at, _ in found] == list(range(offset, offset + len(found))), "offsets are dense"
                values += [value for _, value in found]
                if not found:
                    break
                offset = following
        return values


def _offset_of(body: bytes) -> int:
    _, at = _text(body, 0)
    return int(struct.unpack_from(">iQ", body, at)[1])


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + struct.unpack_from(">H", body, at)[0]
    return body[at + 2 : end].decode(), end


def _blob(body: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + struct.unpack_from(">I", body, at)[0]
    return body[at + 4 : end], end
