"""Speaks FlyMQ for the load generators, in the dialect of the document.

    frame     0xAF | 1 | op | flags (1: binary) | u32 length | payload                    (big-endian)
    PRODUCE   topic:str16 key:bytes32 value:bytes32 partition:i32       answered, each by itself, with the offset

Written from the protocol document and not with the broker's codec: a fault in the codec must not hide itself here.
FlyMQ has no push, so only publishing can be measured over it.
"""

import socket
import struct
from dataclasses import dataclass

from quintet.bench.wire import Address, BenchError, open_socket, read_until

MAGIC, VERSION, BINARY = 0xAF, 1, 1
PRODUCE, AUTH, AUTH_RESPONSE, ERROR = 0x01, 0x70, 0x71, 0xFF
HEAD = struct.Struct(">BBBBI")
ANY_PARTITION = -1
NO_PUSH = "FlyMQ has no pushed delivery: measure `pub`, or another door."


def frame(op: int, *parts: bytes) -> bytes:
    """One frame."""
    payload = b"".join(parts)
    return HEAD.pack(MAGIC, VERSION, op, BINARY, len(payload)) + payload


def str16(text: str) -> bytes:
    """A text behind its length."""
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def split(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """(the whole frames in data as (op, payload), the rest behind them)."""
    frames = []
    at = 0
    while len(data) - at >= HEAD.size:
        magic, version, op, _, length = HEAD.unpack_from(data, at)
        if (magic, version) != (MAGIC, VERSION):
            raise BenchError(f"the server sent bytes that are no FlyMQ: {data[at : at + 64].hex()}. Is it that door?")
        if len(data) - at < HEAD.size + length:
            break
        frames.append((op, data[at + HEAD.size : at + HEAD.size + length]))
        at += HEAD.size + length
    return frames, data[at:]


def refusal(payload: bytes) -> str:
    """The words of an ERROR frame: bool 0, str16."""
    return payload[3:].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class FlymqWire:
    """The FlyMQ door. How durable an answered message is says its topic, not the generator: qos changes nothing."""

    user: str = "admin"
    password: str = "admin"
    name: str = "quintet flymq"
    noise: bytes = b""

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        """AUTH, answered with success."""
        sock = open_socket(address)
        sock.sendall(frame(AUTH, str16(self.user), str16(self.password)))
        op, payload = split(read_until(sock, lambda data: bool(split(data)[0]), "AUTH answer"))[0][0]
        if op != AUTH_RESPONSE or payload[:1] != b"\1":
            sock.close()
            raise BenchError(f"AUTH as {self.user!r} refused: {refusal(payload)!r}. Give user and password in the URL.")
        return sock

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        """There is no push."""
        raise BenchError(NO_PUSH)

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        """PRODUCE frames without a key, to the partition the server chooses."""
        value = struct.pack(">I", len(payload)) + payload
        return frame(PRODUCE, str16(topic), bytes(4), value, struct.pack(">i", ANY_PARTITION)) * messages

    def barrier(self, qos: int) -> bytes:
        """None is needed: every PRODUCE is answered."""
        return b""

    def answers(self, qos: int, messages: int) -> int:
        """One each."""
        return messages

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        """Answers to one topic are of one length: counted without a look at each, but for their operation."""
        count = 0
        if len(data) >= HEAD.size:
            stride = HEAD.size + int(HEAD.unpack_from(data)[4])
            count = len(data) // stride
            if data[2 : count * stride : stride] == bytes([PRODUCE]) * count:
                data = data[count * stride :]
            else:
                count = 0
        frames, rest = split(data)
        for op, payload in frames:
            if op != PRODUCE:
                raise BenchError(f"the server answered PRODUCE with 0x{op:02x} {refusal(payload)!r}; see its log.")
        return count + len(frames), rest

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        """There is no push."""
        raise BenchError(NO_PUSH)

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame_bytes: int) -> bytes:
        """There is nothing to acknowledge."""
        return b""
