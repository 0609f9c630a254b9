"""What the loads of the FlyMQ door need besides load: a small blocking client that makes topics, joins groups and fetches.

CREATE_TOPIC  topic:str16 partitions:i32 durability:str16 retention_ms:i64 retention_bytes:i64
SUBSCRIBE     topic:str16 group:str16 partition:i32 mode:str16
              -> offset:u64 generation:u32 assigned:{partition:i32 offset:u64}*                 (partition -1: join)
FETCH         topic:str16 partition:i32 offset:u64 max:i32 -> u32 count ...
"""

import contextlib
import socket
import struct
from collections.abc import Iterator, Sequence

from quintet.bench.flymq import ERROR, FlymqWire, frame, refusal, split, str16
from quintet.bench.wire import Address, BenchError

CREATE_TOPIC, SUBSCRIBE, FETCH = 0x03, 0x05, 0x07
JOIN = -1
ASKED_MAX = 100  # requests under way when many topics are made
READ_BYTES = 1 << 20


class FlyClient:
    """One authenticated connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._rest = b""

    def ask(self, requests: Sequence[bytes]) -> list[bytes]:
        """Send requests together; their answers, in order."""
        self._sock.sendall(b"".join(requests))
        answers: list[bytes] = []
        while len(answers) < len(requests):
            try:
                piece = self._sock.recv(READ_BYTES)
            except BlockingIOError as error:
                raise BenchError("the server does not answer. Look at its log.") from error
            if not piece:
                raise BenchError("the server closed the connection. Look at its log.")
            frames, self._rest = split(self._rest + piece)
            for op, payload in frames:
                if op == ERROR:
                    raise BenchError(f"the server refused: {refusal(payload)}")
                answers.append(payload)
        return answers

    def create_topics(self, names: Sequence[str], partitions: int, durability: str) -> None:
        """Make topics, all alike."""
        tail = struct.pack(">qq", 0, 0)
        for at in range(0, len(names), ASKED_MAX):
            self.ask(
                [
                    frame(CREATE_TOPIC, str16(name), struct.pack(">i", partitions), str16(durability), tail)
                    for name in names[at : at + ASKED_MAX]
                ]
            )

    def join(self, topic: str, group: str) -> tuple[int, list[tuple[int, int]]]:
        """(generation, partitions and where to begin in each) of this member."""
        asked = frame(SUBSCRIBE, str16(topic), str16(group), struct.pack(">i", JOIN), str16("earliest"))
        (answer,) = self.ask([asked])
        generation, count = struct.unpack_from(">II", answer, 8)
        return generation, [struct.unpack_from(">iQ", answer, 16 + 12 * number) for number in range(count)]

    def fetch(self, topic: str, partition: int, offset: int, most: int) -> int:
        """How many messages came."""
        (answer,) = self.ask([frame(FETCH, str16(topic), struct.pack(">iQi", partition, offset, most))])
        return int.from_bytes(answer[:4], "big")


@contextlib.contextmanager
def connected(address: Address) -> Iterator[FlyClient]:
    """A client that is closed in the end."""
    with FlymqWire().connect(address) as sock:
        yield FlyClient(sock)
