"""WebSocket frames in pure Python: splitting what a client sent, making those of a server. Same results as the native twin.

What a frame means (fragments, pings, closing) is decided by net/websocket.py, not here. No I/O, no clock, no state.

    0            1           2
    | F RRR op   | M length  | u16 if length is 126, u64 if it is 127 | u32 mask if M | payload, byte i XOR mask byte i mod 4
    F: the last piece of a message; M: a client's frame, the server's have no mask
"""

import struct

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import view_of

TEXT = 1
_OPCODES = frozenset((0, 1, 2, 8, 9, 10))
_CONTROL = 8  # and above
_CONTROL_BYTES_MAX = 125
_MAX_BYTES_CEILING = 1 << 30
_BROKEN = 1
_TOO_BIG = 2


def ws_split(
    data: Buffer, start: int, max_bytes: int, frames_max: int
) -> tuple[list[bytes | tuple[int, bool, bytes]], int, int]:
    d = view_of(data)
    if not 0 <= start <= len(d):
        raise ValueError("start and stop must lie in the buffer, in this order")
    if not 1 <= max_bytes <= _MAX_BYTES_CEILING or frames_max < 0:
        raise ValueError("max_bytes must be 1 byte to 1 GiB, frames_max 0 or more")
    items: list[bytes | tuple[int, bool, bytes]] = []
    position, length = start, len(d)
    while length - position >= 2 and not (frames_max and len(items) == frames_max):
        first, size = d[position], d[position + 1] & 127
        opcode, last = first & 15, first >= 128
        control = opcode >= _CONTROL
        sound = opcode in _OPCODES and not first & 0x70 and d[position + 1] >= 128
        if not sound or (control and (not last or size > _CONTROL_BYTES_MAX)):
            return items, position, _BROKEN
        at = position + 2
        if size >= 126:
            more = 2 if size == 126 else 8
            if length - at < more:
                break
            size = int.from_bytes(d[at : at + more], "big")
            at += more
        if size > max_bytes and not control:
            return items, position, _TOO_BIG
        if length - at < 4 + size:
            break
        mask = bytes(d[at : at + 4])
        at += 4
        payload = bytes(d[at : at + size])
        if size and mask != b"\0\0\0\0":
            over = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
            payload = (int.from_bytes(payload, "little") ^ over).to_bytes(size, "little")
        items.append(payload if opcode == 1 and last else (opcode, last, payload))
        position = at + size
    return items, position, 0


def ws_frame(opcode: int, payload: bytes) -> bytes:
    if not 0 <= opcode <= 15:
        raise ValueError("an opcode has four bits")
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, size))
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x80 | opcode, 126, size)
    else:
        head = struct.pack(">BBQ", 0x80 | opcode, 127, size)
    return head + payload
