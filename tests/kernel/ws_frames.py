"""WebSocket frames of clients made by hand, in pieces, and frames of a server read back: for fuzz/peer_codec.py.

byte 0: last piece 80, opcode    byte 1: mask 80, length (126: u16, 127: u64 follow)    mask, payload
"""

import random


def piece(r: random.Random, kind: int, last: bool, data: bytes) -> bytes:
    """One frame of a client."""
    size, mask = len(data), r.randbytes(4)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    if size > 65_535:
        length = b"\xff" + size.to_bytes(8, "big")
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
    return bytes((0x80 * last | kind,)) + length + mask + masked


def pieces(r: random.Random, data: bytes) -> bytes:
    """A text message in some frames, perhaps with pings, pongs and a binary message around and between them."""
    cuts = sorted(r.randrange(len(data) + 1) for _ in range(r.choice((0, 0, 0, 1, 3))))
    parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    out = b""
    for number, part in enumerate(parts):
        if r.random() < 0.05:
            out += piece(r, r.choice((9, 10)), True, r.randbytes(r.choice((0, 5, 125))))
        out += piece(r, 0 if number else 1, number == len(parts) - 1, part)
    return out + (piece(r, 2, True, b"binary") if r.random() < 0.02 else b"")


def unframed(data: bytes) -> list[tuple[int, bytes]]:
    """(opcode, payload) of every frame of the broker; ValueError if it is not made of whole ones."""
    found, at = [], 0
    while at < len(data):
        size, start = data[at + 1] if len(data) > at + 1 else 255, at + 2
        if data[at] & 0xF0 != 0x80 or size & 0x80:
            raise ValueError(f"no frame of a server: {data[at : at + 20]!r}")
        if size >= 126:
            width = 2 if size == 126 else 8
            size, start = int.from_bytes(data[start : start + width], "big"), start + width
        if start + size > len(data):
            raise ValueError("the output ends inside a frame")
        found.append((data[at] & 15, data[start : start + size]))
        at = start + size
    return found
