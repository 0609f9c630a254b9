"""Appends the acknowledged publishes of a Felix read to one topic in memory, in pure Python: the specification of `felix_append`.

All of a read or nothing. A publish in JSON that is anything but plain (an escape, an unknown field, a key) is left to the session,
and with it the read. No I/O, no clock, no state but that of the tails. `_native.pyi` says what it promises.
"""

import re
from binascii import a2b_base64, b2a_base64
from typing import TypeVar

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import head_of, view_of
from quintet.kernel.pure_blip import MAX_U16, MAX_U64
from quintet.kernel.pure_felix import (
    ACK,
    ACK_HEAD,
    ACKED,
    ACKED_HEAD,
    BATCH,
    BATCH_ITEM,
    HEADER_BYTES,
    felix_batch,
    frame,
    frame_fits,
    next_frame,
)
from quintet.kernel.pure_felix_json import flat_object
from quintet.kernel.pure_tails import Tails

View = TypeVar("View")

ACK_OFFSET = 0x1000
PARTITION_SHIFT = 48
PER_MESSAGE = 1
NAMES = (b"tenant_id", b"namespace", b"stream")
TEXTS = frozenset((b"type", *NAMES, b"payload", b"ack"))
FIELDS = TEXTS | {b"request_id"}
ACKS = (b'"per_message"', b'"per_batch"')
BASE64 = re.compile(rb"[A-Za-z0-9+/]*={0,2}")


def _plain_publish(text: bytes) -> bytes | None:
    """A plain `publish` that asks for an answer, as the body of 0x0009."""
    fields = flat_object(text, FIELDS)
    if fields is None or len(fields) != len(FIELDS) or fields[b"request_id"].startswith(b'"'):
        return None
    if fields[b"type"] != b'"publish"' or fields[b"ack"] not in ACKS:
        return None
    names, payload = [fields[name][1:-1] for name in NAMES], fields[b"payload"][1:-1]
    if len(payload) % 4 or not BASE64.fullmatch(payload) or max(map(len, names)) > MAX_U16:
        return None
    value = a2b_base64(payload)
    if b2a_base64(value, newline=False) != payload:
        return None  # bits are left over
    target = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    head = ACKED_HEAD.pack(int(fields[b"request_id"]), PER_MESSAGE)
    return b"".join((head, target, (1).to_bytes(4, "big"), len(value).to_bytes(4, "big"), value))


def _answer(request_id: int, offset: int | None, is_json: bool) -> bytes:
    if is_json:
        told = b"" if offset is None else b',"offset":%d' % offset
        return frame(0, b'{"type":"publish_ok","request_id":%d%b}' % (request_id, told))
    said = ACK_HEAD.pack(0, request_id, 0)
    return frame(ACK, said) if offset is None else frame(ACK | ACK_OFFSET, said + offset.to_bytes(8, "big"))


def felix_append(
    tails: Tails[View],
    handle: int,
    target: bytes,
    data: Buffer,
    frame_bytes_max: int,
    origin: bytes,
    now: int,
    offsets: bool,
) -> tuple[bytes, int, int, bool] | None:
    view = view_of(data)
    frame_fits(frame_bytes_max)
    if not 0 <= handle <= MAX_U64:
        raise OverflowError("handle must be an unsigned 64-bit number")
    if len(origin) > MAX_U16:
        raise ValueError("origin is over 65535 bytes")
    if not 0 <= now < 1 << 62:
        raise ValueError("now must be microseconds since 1970")
    if not tails.takes(handle, -1):
        return None
    found: list[tuple[bytearray, int, int, bool]] = []
    pos = 0
    while pos < len(view):
        end, flags, _ = next_frame(view, pos, frame_bytes_max)
        if not end or flags not in (0, BATCH | ACKED):
            return None
        payload = bytes(view[pos + HEADER_BYTES : end])
        body = payload if flags else _plain_publish(payload)
        item = (-1,) if body is None else felix_batch(body, BATCH | ACKED, origin, now)
        if item[0] != BATCH_ITEM:
            return None
        _, names, batch, count, request_id, _ = item
        if names != target or not isinstance(batch, bytearray):
            return None
        assert isinstance(count, int) and isinstance(request_id, int)
        found.append((batch, count, request_id, not flags))
        pos = end
    if not found:
        return None
    answers = b""
    for batch, count, request_id, is_json in found:
        offset = None
        if offsets:
            partition = tails.publish_at(handle, -1, batch, count, now)
            offset = partition << PARTITION_SHIFT | head_of(memoryview(batch), 0).base_offset
        else:
            tails.publish(handle, batch, count)
        answers += _answer(request_id, offset, is_json)
    return answers, sum(len(batch) for batch, _, _, _ in found), found[-1][2], found[-1][3]
