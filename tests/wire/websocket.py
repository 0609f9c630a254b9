"""WebSocket frames (RFC 6455) of clients made by hand, and frames of a server read back.

byte 0: last piece 80, reserved 70, opcode    byte 1: mask 80, length (126: u16, 127: u64 follow)    mask, payload
"""

import base64
import hashlib

PIECE, TEXT, BINARY = 0, 1, 2
CLOSE, PING, PONG = 8, 9, 10
_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def upgrade(host: str, key: bytes = bytes(16), more: str = "") -> bytes:
    """The request that asks for WebSocket."""
    head = (
        f"GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    )
    return f"{head}Sec-WebSocket-Key: {base64.b64encode(key).decode()}\r\n{more}\r\n".encode()


def is_upgraded(head: bytes, key: bytes = bytes(16)) -> bool:
    """Whether this answer agrees to that request."""
    proof = base64.b64encode(hashlib.sha1(base64.b64encode(key) + _ACCEPT, usedforsecurity=False).digest())
    return head.startswith(b"HTTP/1.1 101") and proof in head


def frame(
    payload: bytes, opcode: int = TEXT, last: bool = True, mask: bytes = b"\x01\x02\x83\xf4", reserved: int = 0
) -> bytes:
    """One frame as a client sends it."""
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    else:
        length = b"\xfe" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xff" + size.to_bytes(8, "big")
    key = (mask * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")
    return bytes((0x80 * last | reserved | opcode,)) + length + mask + masked


def next_frame(data: bytes | bytearray, at: int = 0) -> tuple[int, bytes, int] | None:
    """(opcode, payload, end) of the frame of a server there, which has no mask and sends no pieces; None if it is not whole."""
    if len(data) - at < 2:
        return None
    size, start = data[at + 1], at + 2
    if data[at] & 0xF0 != 0x80 or size & 0x80:
        raise ValueError(f"no frame of a server: {bytes(data[at : at + 20])!r}")
    if size >= 126:
        width = 2 if size == 126 else 8
        if len(data) < start + width:
            return None
        size, start = int.from_bytes(data[start : start + width], "big"), start + width
    end = start + size
    return (data[at] & 15, bytes(data[start:end]), end) if end <= len(data) else None


def split(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """(opcode, payload) of the whole frames of a server, and what is behind them."""
    found, at = [], 0
    while one := next_frame(data, at):
        found.append(one[:2])
        at = one[2]
    return found, data[at:]


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    """Every frame; a ValueError if the last is not whole."""
    found, rest = split(data)
    if rest:
        raise ValueError(f"the output ends inside a frame: {rest[:20]!r}")
    return found


def close_of(payload: bytes) -> tuple[int, str]:
    """Code and reason of a close frame."""
    return int.from_bytes(payload[:2], "big"), payload[2:].decode()
