"""The words between two processes of one broker: who a leg is for, and what its session sends back.

    to the session      u32 length | Opening in MessagePack | then the client's frames as they are
    from the session    u8 kind | u32 length | ...
                        OUTPUT  bytes for the client, whole frames
                        IDLE    u64: so many bytes of the client's frames are taken, and all of them are answered
                        ENDED   text: why the session ends the connection

Both ends are of one version: they are forks of one process.
"""

import struct
from typing import Final

import msgspec

from quintet.model import limits

OUTPUT: Final = 1
IDLE: Final = 2
ENDED: Final = 3

HEAD: Final = struct.Struct(">BI")
LENGTH: Final = struct.Struct(">I")
COUNT: Final = struct.Struct(">Q")
OPENING_BYTES_MAX: Final = 4 * limits.UNAUTHENTICATED_FRAME_BYTES_MAX


class Opening(msgspec.Struct, frozen=True):
    """The first that is said on a leg."""

    door: str
    peer: str  # the client's address, for the audit
    name: str  # who the client is; empty: each of its requests says that
    login: bytes
    token: str = ""  # of a stream: the connection that it is of (streams.py)


def opening(said: Opening) -> bytes:
    body = msgspec.msgpack.encode(said)
    return LENGTH.pack(len(body)) + body


def output(pieces: list[bytes]) -> list[bytes]:
    """What a session made in one go."""
    return [HEAD.pack(OUTPUT, sum(map(len, pieces))), *pieces]


def idle(taken: int) -> bytes:
    return HEAD.pack(IDLE, COUNT.size) + COUNT.pack(taken)


def ended(reason: str) -> bytes:
    said = reason.encode()
    return HEAD.pack(ENDED, len(said)) + said


class Reader:
    """Takes apart what a session sends back."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Whole words, in order."""
        rest = self._rest
        rest += data
        found: list[tuple[int, bytes]] = []
        at = 0
        while len(rest) - at >= HEAD.size:
            kind, size = HEAD.unpack_from(rest, at)
            end = at + HEAD.size + size
            if end > len(rest):
                break
            found.append((kind, bytes(memoryview(rest)[at + HEAD.size : end])))
            at = end
        if at:
            del rest[:at]
        return found
