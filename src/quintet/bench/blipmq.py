"""Speaks BlipMQ for the load generators: version 2, so that deliveries are pushed.

    frame       u32 length | u8 type | u64 correlation id | payload          (big-endian; length counts type and id)
    PUBLISH 3   u8 qos | u16 topic length | topic | message
    DELIVER 10  u8 qos | u64 tag | u16 topic length | topic | message        (correlation id = tag; 0 for QoS 0)

Written from the protocol document and not with the broker's codec: a fault in the codec must not hide itself here.
"""

import socket
import struct
from dataclasses import dataclass

from quintet.bench.wire import Address, BenchError, fixed_answers, open_socket, read_until

HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, DELIVER = 1, 2, 3, 4, 5, 6, 7, 8, 10
HEAD = struct.Struct(">IBQ")
ACK_FRAME_BYTES = HEAD.size + 8
TAG_AT = 5  # the correlation id of a delivery, which is its tag
PUBLISH_ID = 0  # publishes are not answered, so one id serves all and the frames of a block are equal


def frame(kind: int, correlation: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return HEAD.pack(9 + len(payload), kind, correlation) + payload


def split(data: bytes) -> list[tuple[int, int, bytes]]:
    """The whole frames in data as (type, correlation id, payload); for handshakes and error texts."""
    frames = []
    at = 0
    while len(data) - at >= HEAD.size:
        length, kind, correlation = HEAD.unpack_from(data, at)
        if length < 9 or len(data) - at < 4 + length:
            break
        frames.append((kind, correlation, data[at + HEAD.size : at + 4 + length]))
        at += 4 + length
    return frames


PING_FRAME = frame(PING, 7)
PONG_FRAME = frame(PONG, 7)


def explain(data: bytes) -> str:
    """What a server said instead of PONG."""
    for kind, _, payload in split(data):
        if kind == NACK and len(payload) >= 4:
            code = int.from_bytes(payload[:2], "big")
            return f"the server refused with NACK {code} {payload[4:].decode('utf-8', 'replace')!r}; see its log."
        if kind not in (PONG, NACK):
            return f"the server sent frame type {kind} where only PONG was owed: is the topic also subscribed here?"
    return f"the server sent bytes that are no PONG: {data[:64].hex()}"


@dataclass(frozen=True, slots=True)
class BlipmqWire:
    """The BlipMQ door."""

    key: str = "dev-key"
    version: int = 2
    name: str = "quintet blipmq"
    noise: bytes = b""

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        """HELLO and AUTH, both acknowledged."""
        sock = open_socket(address)
        key = self.key.encode()
        sock.sendall(
            frame(HELLO, 1, struct.pack(">H", self.version)) + frame(AUTH, 2, struct.pack(">H", len(key)) + key)
        )
        for kind, _, payload in split(read_until(sock, lambda data: len(split(data)) >= 2, "HELLO and AUTH answers")):
            if kind != ACK:
                raise BenchError(f"handshake refused: {explain(frame(kind, 0, payload))} Is the API key right?")
        return sock

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        """SUBSCRIBE, acknowledged with the subscription's id."""
        name = topic.encode()
        sock.sendall(frame(SUBSCRIBE, 3, struct.pack(">H", len(name)) + name + bytes([qos])))
        kind, _, payload = split(read_until(sock, lambda data: bool(split(data)), "SUBSCRIBE answer"))[0]
        if kind != ACK:
            raise BenchError(f"SUBSCRIBE {topic!r} refused: {explain(frame(kind, 0, payload))}")
        return int.from_bytes(payload, "big")

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        """PUBLISH frames."""
        name = topic.encode()
        return frame(PUBLISH, PUBLISH_ID, bytes([qos]) + struct.pack(">H", len(name)) + name + payload) * messages

    def barrier(self, qos: int) -> bytes:
        """PING: its PONG comes when every publish before it is as durable as promised."""
        return PING_FRAME

    def answers(self, qos: int, messages: int) -> int:
        """One PONG per window."""
        return 1

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        """PONGs."""
        return fixed_answers(PONG_FRAME, data, explain)

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        """A DELIVER frame (tag 0)."""
        name = topic.encode()
        return frame(DELIVER, 0, bytes([qos]) + bytes(8) + struct.pack(">H", len(name)) + name + payload)

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame_bytes: int) -> bytes:
        """One ACK per delivery: the tags are copied column by column, without a loop over messages."""
        if qos == 0:
            return b""
        count = len(deliveries) // frame_bytes
        acks = bytearray(frame(ACK, 0, struct.pack(">Q", subscription)) * count)
        for byte in range(8):
            acks[TAG_AT + byte :: ACK_FRAME_BYTES] = deliveries[TAG_AT + byte :: frame_bytes]
        return bytes(acks)
