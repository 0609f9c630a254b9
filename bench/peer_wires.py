"""The peers' protocols as the load generators speak them: NATS, JetStream, Redis Streams, MQTT 3.1.1, Kafka, AMQP.

The same shape as quintet.bench.blipmq, so that every server meets the same load. Only what the loads need.
"""

import json
import socket
import struct
import time
from dataclasses import dataclass

from quintet.bench.wire import STALL_S, Address, BenchError, fixed_answers, open_socket, read_until

STREAM = "BENCH"
BY_RUST = "Messages of this peer are made by bench/loadgen alone, which needs cargo. Install Rust."
LEADER_POLL_S = 0.1
NATS_CONNECT = (
    b"CONNECT "
    + json.dumps(
        {"verbose": False, "pedantic": False, "lang": "raw", "version": "1", "protocol": 0, "headers": False}
    ).encode()
    + b"\r\nPING\r\n"
)


def _line_answers(data: bytes, refusal: bytes) -> tuple[int, bytes]:
    """Answers of two lines each (a length or header line and a body line): counted by line ends."""
    if refusal in data:
        raise BenchError(f"the server refused: {data[data.find(refusal) :][:200]!r}")
    lines = data.count(b"\n")
    if lines % 2 == 0 and data.endswith(b"\n"):
        return lines // 2, b""
    cut = data.rfind(b"\n")
    if lines % 2:
        cut = data.rfind(b"\n", 0, cut)
    return lines // 2, data[cut + 1 :]


@dataclass(frozen=True, slots=True)
class NatsWire:
    """nats-server core: PUB, SUB, MSG, and PING as barrier."""

    name: str = "nats core"
    noise: bytes = b"PING\r\n"  # the server measures its round trip about 2 s after a client came

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        sock = open_socket(address)
        read_until(sock, lambda data: data.endswith(b"\r\n"), "INFO")
        sock.sendall(NATS_CONNECT)
        read_until(sock, lambda data: data.endswith(b"PONG\r\n"), "PONG")
        return sock

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        sock.sendall(b"SUB %s 1\r\nPING\r\n" % topic.encode())
        read_until(sock, lambda data: data.endswith(b"PONG\r\n"), "PONG after SUB")
        return 1

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        return b"PUB %s %d\r\n%s\r\n" % (topic.encode(), len(payload), payload) * messages

    def barrier(self, qos: int) -> bytes:
        return b"PING\r\n"

    def answers(self, qos: int, messages: int) -> int:
        return 1

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        if data.startswith(b"PING\r\n"):
            data = data[6:]
        return fixed_answers(b"PONG\r\n", data, lambda said: f"nats-server said {said[:200]!r} instead of PONG")

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        return b"MSG %s 1 %d\r\n%s\r\n" % (topic.encode(), len(payload), payload)

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame: int) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class JetStreamWire(NatsWire):
    """A file stream in JetStream: every publish is answered when the stream has stored (and synced) it."""

    name: str = "nats jetstream"

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        sock = NatsWire.connect(self, address)
        # All answers of a connection come to one inbox of its own.
        sock.sendall(b"SUB _INBOX.%d 1\r\nPING\r\n" % connection)
        read_until(sock, lambda data: data.endswith(b"PONG\r\n"), "PONG after SUB")
        return sock

    def create_stream(self, address: Address, subject: str) -> None:
        """Make the stream, on file, one replica."""
        wanted = {
            "name": STREAM,
            "subjects": [subject],
            "storage": "file",
            "retention": "limits",
            "num_replicas": 1,
            "discard": "old",
            "max_consumers": -1,
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
        }
        body = json.dumps(wanted).encode()
        with self.connect(address, 0) as sock:
            sock.sendall(b"PUB $JS.API.STREAM.CREATE.%s _INBOX.0 %d\r\n%s\r\n" % (STREAM.encode(), len(body), body))
            answer = read_until(sock, lambda data: data.count(b"\n") >= 2, "STREAM.CREATE answer")
        if b'"error"' in answer:
            raise BenchError(f"JetStream made no stream: {answer[:300]!r}")

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        return b"PUB %s _INBOX.%d %d\r\n%s\r\n" % (topic.encode(), connection, len(payload), payload) * messages

    def barrier(self, qos: int) -> bytes:
        return b""

    def answers(self, qos: int, messages: int) -> int:
        return messages

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        if b"PING\r\n" in data:
            data = data.replace(b"PING\r\n", b"")
        return _line_answers(data, b'"error"')


@dataclass(frozen=True, slots=True)
class RedisWire:
    """Redis Streams: XADD, answered with the entry's id once it is as durable as appendfsync says."""

    name: str = "redis streams"
    noise: bytes = b""

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        sock = open_socket(address)
        sock.sendall(b"PING\r\n")
        read_until(sock, lambda data: data == b"+PONG\r\n", "PONG")
        return sock

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        raise BenchError("Redis Streams are pulled with XREAD: there is no pushed delivery to compare with.")

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        parts = [b"XADD", topic.encode(), b"*", b"d", payload]
        one = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        return one * messages

    def barrier(self, qos: int) -> bytes:
        return b""

    def answers(self, qos: int, messages: int) -> int:
        return messages

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        return _line_answers(data, b"-ERR")

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        raise BenchError("Redis Streams are pulled with XREAD: there is no pushed delivery to compare with.")

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame: int) -> bytes:
        return b""


def _mqtt_packet(kind: int, body: bytes) -> bytes:
    """MQTT: u8 type and flags | length in base 128, low part first | body."""
    length = len(body)
    digits = bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes([kind]) + bytes(digits) + body


def _string(text: str) -> bytes:
    """u16 length | text: as MQTT and Kafka both have it."""
    return struct.pack(">H", len(text)) + text.encode()


@dataclass(frozen=True, slots=True)
class MqttWire:
    """Mosquitto by MQTT 3.1.1: QoS 0 with PINGREQ as barrier, QoS 1 answered by PUBACK (not synced to disk)."""

    name: str = "mosquitto"
    noise: bytes = b""

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        sock = open_socket(address)
        # Clean session, no keep-alive, empty client id (the server picks one).
        sock.sendall(_mqtt_packet(0x10, _string("MQTT") + bytes([4, 2, 0, 0]) + _string("")))
        answer = read_until(sock, lambda data: len(data) >= 4, "CONNACK")
        if answer != b"\x20\x02\x00\x00":
            raise BenchError(f"mosquitto refused the connection: {answer!r}")
        return sock

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        sock.sendall(_mqtt_packet(0x82, struct.pack(">H", 1) + _string(topic) + bytes([qos])))
        read_until(sock, lambda data: len(data) >= 5, "SUBACK")
        return 1

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        if qos == 0:
            return _mqtt_packet(0x30, _string(topic) + payload) * messages
        return b"".join(
            _mqtt_packet(0x32, _string(topic) + struct.pack(">H", 1 + number) + payload) for number in range(messages)
        )

    def barrier(self, qos: int) -> bytes:
        return b"\xc0\x00" if qos == 0 else b""

    def answers(self, qos: int, messages: int) -> int:
        return 1 if qos == 0 else messages

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        if qos == 0:
            return fixed_answers(b"\xd0\x00", data, lambda said: f"mosquitto said {said[:64].hex()}, not PINGRESP")
        count = len(data) // 4
        if data[0 : count * 4 : 4] != b"\x40" * count:
            raise BenchError(f"mosquitto said {data[:64].hex()} instead of PUBACK")
        return count, data[count * 4 :]

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        return _mqtt_packet(0x30, _string(topic) + payload)

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame: int) -> bytes:
        return b""


class _RustWire:
    """A wire that Python does not speak: its messages are made and counted by bench/loadgen alone."""

    __slots__ = ()

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        return open_socket(address)

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        raise BenchError(BY_RUST)

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        raise BenchError(BY_RUST)

    def barrier(self, qos: int) -> bytes:
        return b""

    def answers(self, qos: int, messages: int) -> int:
        return 1

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        raise BenchError(BY_RUST)

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        raise BenchError(BY_RUST)

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame: int) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class KafkaWire(_RustWire):
    """Kafka as far as Python needs it: topics are made here, records are made and counted by bench/loadgen alone."""

    name: str = "kafka"
    noise: bytes = b""

    def _ask(self, address: Address, key: int, version: int, body: bytes) -> bytes:
        """i32 size | i16 key | i16 version | i32 correlation | str client | body; answered by i32 size | i32 correlation."""
        request = struct.pack(">hhih", key, version, 1, -1) + body
        with open_socket(address) as sock:
            sock.sendall(struct.pack(">i", len(request)) + request)
            answer = read_until(
                sock, lambda data: len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"), "Kafka's answer"
            )
        return answer[8:]

    def create_topic(self, address: Address, topic: str, partitions: int) -> None:
        """CreateTopics version 2: one topic, one replica; answered by i32 throttle, i32 1, its name and an error."""
        body = struct.pack(">i", 1) + _string(topic) + struct.pack(">ihiiib", partitions, 1, 0, 0, 30_000, 0)
        answer = self._ask(address, 19, 2, body)
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic))
        if error:
            raise BenchError(f"Kafka made no topic {topic!r}: error {error}.")
        deadline = time.monotonic() + STALL_S
        for partition in range(partitions):
            # A partition exists before it has a leader, and refuses until then.
            while self._latest(address, topic, partition)[0]:
                if time.monotonic() > deadline:
                    raise BenchError(f"Kafka's topic {topic!r} has no leader after {STALL_S} s. See its log.")
                time.sleep(LEADER_POLL_S)

    def held(self, address: Address, topic: str, partition: int) -> int:
        """How many records a partition holds."""
        error, offset = self._latest(address, topic, partition)
        if error:
            raise BenchError(f"Kafka does not say what {topic!r} holds: error {error}.")
        return offset

    def _latest(self, address: Address, topic: str, partition: int) -> tuple[int, int]:
        """(error, next offset): ListOffsets version 2, of the latest."""
        body = struct.pack(">ibi", -1, 0, 1) + _string(topic) + struct.pack(">iiq", 1, partition, -1)
        error, _, offset = struct.unpack_from(">hqq", self._ask(address, 2, 2, body), 4 + 4 + 2 + len(topic) + 4 + 4)
        return int(error), int(offset)


def _amqp(channel: int, class_id: int, method: int, arguments: bytes) -> bytes:
    """AMQP: u8 1 | u16 channel | u32 size | u16 class | u16 method | arguments | 0xCE."""
    payload = struct.pack(">HH", class_id, method) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


@dataclass(frozen=True, slots=True)
class RabbitWire(_RustWire):
    """RabbitMQ by AMQP 0-9-1: a quorum queue, made with its first connection, that confirms what is on the disk."""

    name: str = "rabbitmq quorum"
    noise: bytes = b""

    def held(self, address: Address, queue: str) -> int:
        """How many messages a queue holds: the answer to declaring one that must be there already."""
        login, name = b"\0guest\0guest", queue.encode()
        start = bytes(4) + b"\5PLAIN" + struct.pack(">I", len(login)) + login + b"\5en_US"
        tune = _amqp(0, 10, 31, struct.pack(">HIH", 2047, 131_072, 0))
        passive = bytes(2) + bytes([len(name)]) + name + b"\1" + bytes(4)
        said = b""
        with open_socket(address) as sock:
            for words in (
                b"AMQP\0\0\x09\x01",
                _amqp(0, 10, 11, start),
                tune + _amqp(0, 10, 40, b"\1/\0\0"),
                _amqp(1, 20, 10, b"\0"),
                _amqp(1, 50, 10, passive),
            ):
                sock.sendall(words)
                said = read_until(sock, lambda data: data.endswith(b"\xce"), "RabbitMQ's answer")
        if said[7:11] != struct.pack(">HH", 50, 11):
            raise BenchError(f"RabbitMQ does not say what {queue!r} holds: {said[:200]!r}")
        return int.from_bytes(said[12 + len(name) : 16 + len(name)], "big")
