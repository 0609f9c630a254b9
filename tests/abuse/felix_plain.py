"""What bytes of Felix say, read by a few plain lines that share no code with the broker: frames, what each may bring to whom, and
the values of events. For fuzz/felix_live.py, whose frames are damaged: whatever cannot be read here brings nothing.
"""

import base64
import json
import struct
from typing import Any, NamedTuple

from backports import zstd

HEAD = struct.Struct(">IHHI")
MAGIC = b"FLX1\0\1"
BATCH, ACKED, ACK, OFFSETS, ZSTD = 0x0001, 0x0008, 0x0010, 0x0020, 0x0040


def read_frames(data: bytes, frame_bytes_max: int) -> tuple[list[tuple[int, bytes]], bytes, str]:
    """Whole frames, what is behind them, and whether that ends the connection: "", "fatal", or "maybe" when a wrong header is
    not all there."""
    out: list[tuple[int, bytes]] = []
    at = 0
    while len(data) - at >= HEAD.size:
        _, _, flags, length = HEAD.unpack_from(data, at)
        if data[at : at + 6] != MAGIC or length > frame_bytes_max:
            return out, data[at:], "fatal"
        if len(data) - at - HEAD.size < length:
            break
        out.append((flags, data[at + HEAD.size : at + HEAD.size + length]))
        at += HEAD.size + length
    rest = data[at:]
    return out, rest, "" if MAGIC.startswith(rest[:6]) else "maybe"


class Meaning(NamedTuple):
    """What a frame may do: ids it may be answered by, and what it may bring to whom."""

    ids: list[Any]
    brought: list[tuple[str, bytes]]


def meaning(flags: int, payload: bytes, document: bool) -> Meaning:
    flags = flags & BATCH if document else flags
    try:
        if flags & ZSTD:
            payload, flags = zstd.decompress(payload), flags & ~ZSTD
        if flags & BATCH:
            return _meaning_of_batch(payload, bool(flags & ACKED))
        found = json.loads(payload)
        values = [found.get("payload"), found.get("value"), *(found.get("payloads") or [])]
        tenant = str(found.get("tenant_id", "default"))
        return Meaning(
            [found.get("request_id")], [(tenant, one) for text in values if (one := plain(text)) is not None]
        )
    except (ValueError, AttributeError, TypeError, EOFError, RecursionError, zstd.ZstdError):
        return Meaning([struct.unpack_from(">Q", payload)[0]] if flags & ACKED and len(payload) >= 8 else [], [])


def plain(value: object) -> bytes | None:
    try:
        return base64.b64decode(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _meaning_of_batch(payload: bytes, acked: bool) -> Meaning:
    at = 9 if acked else 0

    def take(size: int) -> bytes:
        nonlocal at
        if len(payload) - at < size:
            raise EOFError
        at += size
        return payload[at - size : at]

    names = [take(int.from_bytes(take(2), "big")).decode() for _ in range(3)]
    count = int.from_bytes(take(4), "big")
    if count > len(payload):
        raise EOFError
    values = [take(int.from_bytes(take(4), "big")) for _ in range(count)]
    return Meaning([struct.unpack_from(">Q", payload)[0]] if acked else [], [(names[0], value) for value in values])


def values_of(flags: int, payload: bytes) -> list[bytes]:
    """The values in a frame of an event stream."""
    if flags & ZSTD:
        payload = zstd.decompress(payload)
    if flags & ~(ZSTD | OFFSETS) == 0x0004:
        at, out = (8 if flags & OFFSETS else 0), []
        (count,) = struct.unpack_from(">I", payload, at)
        at += 4
        for _ in range(count):
            (size,) = struct.unpack_from(">I", payload, at)
            out.append(payload[at + 4 : at + 4 + size])
            at += 4 + size
        return out
    if flags:
        raise ValueError(f"an event stream has a frame with flags {flags:#x}")
    said = json.loads(payload)
    told = [said.get("payload"), said.get("value"), *(said.get("payloads") or [])]
    return [base64.b64decode(one) for one in told if one is not None]
