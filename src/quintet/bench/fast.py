"""Speaks Fast TCP Pub/Sub for the load generators.

    CREATE    1 | u8 n | JWT | u8 t | topic name | u8 flags                         (big-endian)
    SUBSCRIBE 2 | u8 n | JWT | u32 topic id
    PUBLISH   3 | u8 n | JWT | u32 topic id | u32 length | payload
    MESSAGE   4 | u32 topic id | u32 length | payload
    EXTEND    0x70 | u8 version            ours: 1, every request is answered from here on; 2, a JWT may be left out
    OK        0x7E | u8 request | u32 topic id | u16 0 | u8 0

Written from the protocol document and not with the broker's codec: a fault in the codec must not hide itself here. The
document has no answers: publishers ask for them with their last packet only, so publishes are the document's own; those
of `bare` ones as well, but for the JWT, which has no bytes: it is shown once, before them.
"""

import base64
import hashlib
import hmac
import json
import socket
import struct
from dataclasses import dataclass

from quintet.bench.wire import Address, BenchError, fixed_answers, open_socket, read_until

CREATE, SUBSCRIBE, PUBLISH, MESSAGE, EXTEND, OK, ERROR = 1, 2, 3, 4, 0x70, 0x7E, 0x7F
ANSWER = struct.Struct(">BBIHB")
SIZED = struct.Struct(">II")
EXTEND_PACKET = bytes((EXTEND, 1))
EXTEND_QUIET = bytes((EXTEND, 2))
NO_TOKEN = bytes(1)
EXTENDED = ANSWER.pack(OK, EXTEND, 0, 0, 0)
QUEUE_KEY = "abc123xyz"


def topic_id(name: str) -> int:
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def token(secret: str, short: bool = False) -> bytes:
    """A JWT with all rights to queues of our key: as long as the document's example (187 bytes), or as short as the same
    claims can be said."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    header = {"alg": "HS256"} if short else {"alg": "HS256", "typ": "JWT"}
    claims = {"sub": "b" if short else "user123", "queue_key": QUEUE_KEY, "permissions": ["publish", "subscribe"]}
    signed = b".".join(part(json.dumps(piece, separators=(",", ":")).encode()) for piece in (header, claims))
    return signed + b"." + part(hmac.digest(secret.encode(), signed, hashlib.sha256))


def explain(data: bytes) -> str:
    """What a server said instead of OK."""
    if data[:1] == bytes((ERROR,)) and len(data) >= ANSWER.size:
        code = ANSWER.unpack_from(data)[3]
        return f"the server refused with ERROR {code} {data[ANSWER.size :].decode('utf-8', 'replace')!r}; see its log."
    return f"the server sent bytes that are no OK: {data[:64].hex()}"


@dataclass(frozen=True, slots=True)
class FastWire:
    """The Fast door. Topics are made with a key before they are used: each connection makes those named here."""

    secret: str = "quintet-development-master-secret"
    topics: tuple[str, ...] = ()
    flags: int = 0
    short: bool = False  # the token
    bare: bool = False  # the token is shown once, by CREATE, and left out of PUBLISH
    name: str = "quintet fast"
    noise: bytes = b""

    @property
    def _token(self) -> bytes:
        jwt = token(self.secret, self.short)
        return bytes((len(jwt),)) + jwt

    def connect(self, address: Address, connection: int = 0) -> socket.socket:
        """There is no handshake; packets are taken in order, so nothing waits for CREATE."""
        sock = open_socket(address)
        creates = b"".join(self.create(topic) for topic in self.topics)
        if self.bare:
            self._show(sock, creates)
        elif creates:
            sock.sendall(creates)
        return sock

    def _show(self, sock: socket.socket, creates: bytes) -> None:
        """An EXTEND on each side: the answer to the second comes when the CREATEs, and the token in them, are taken."""
        if not creates:
            raise BenchError("a bare publisher shows its token with CREATE: name the topics it publishes to")
        sock.sendall(EXTEND_QUIET + creates + EXTEND_QUIET)
        owed = EXTENDED * 2
        got = read_until(sock, lambda data: len(data) >= len(owed) or bytes((ERROR,)) in data[:1], "EXTEND answers")
        if got != owed:
            raise BenchError(f"EXTEND: {explain(got)}")

    def create(self, topic: str) -> bytes:
        """A CREATE packet."""
        name = topic.encode()
        return bytes((CREATE,)) + self._token + bytes((len(name),)) + name + bytes((self.flags,))

    def subscribe(self, sock: socket.socket, topic: str, qos: int) -> int:
        """CREATE and SUBSCRIBE, both answered: a subscriber may ask for answers without cost to what follows."""
        id = topic_id(topic)
        request = EXTEND_PACKET + self.create(topic) + bytes((SUBSCRIBE,)) + self._token + struct.pack(">I", id)
        sock.sendall(request)
        owed = EXTENDED + ANSWER.pack(OK, CREATE, id, 0, 0) + ANSWER.pack(OK, SUBSCRIBE, id, 0, 0)
        got = read_until(sock, lambda data: len(data) >= len(owed) or bytes((ERROR,)) in data[:1], "SUBSCRIBE answer")
        if got != owed:
            raise BenchError(f"SUBSCRIBE {topic!r}: {explain(got)}")
        return id

    def encode(self, topic: str, payload: bytes, qos: int, messages: int, connection: int = 0) -> bytes:
        """PUBLISH packets."""
        jwt = NO_TOKEN if self.bare else self._token
        return (bytes((PUBLISH,)) + jwt + SIZED.pack(topic_id(topic), len(payload)) + payload) * messages

    def barrier(self, qos: int) -> bytes:
        """EXTEND: its OK comes when all before it is taken."""
        return EXTEND_QUIET if self.bare else EXTEND_PACKET

    def answers(self, qos: int, messages: int) -> int:
        """One OK, for the barrier."""
        return 1

    def answered(self, qos: int, data: bytes) -> tuple[int, bytes]:
        """OKs of barriers."""
        return fixed_answers(EXTENDED, data, explain)

    def delivered(self, topic: str, payload: bytes, qos: int) -> bytes:
        """A MESSAGE packet."""
        return bytes((MESSAGE,)) + SIZED.pack(topic_id(topic), len(payload)) + payload

    def acknowledge(self, subscription: int, qos: int, deliveries: bytes, frame_bytes: int) -> bytes:
        """This wire has no acknowledgements."""
        return b""
