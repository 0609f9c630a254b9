"""Felix frames in pure Python: splitting reads, answering cache gets, packing publishes and events. As the native twin.

Only bytes to items and back: what a frame means for a session (authentication, tenants, answers) is decided by the
protocol, not here. The JSON that is looked at here is in `pure_felix_json.py`. No I/O, no clock, no state.
"""

import struct
from binascii import b2a_base64
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import KEYS, Layout, Records, data_end, fresh_head, head_of, ints, locate, pack, view_of
from quintet.kernel.pure_blip import MAX_GROUP_BYTES, MAX_GROUP_RECORDS, MAX_U16, MAX_U64

#   0       4         6       8        12
#  |magic  |version  |flags  |length  |payload...      big-endian; length counts the payload
HEADER = struct.Struct(">IHHI")
HEADER_BYTES = HEADER.size
MAGIC = 0x464C5831
VERSION = 1
MAX_FRAME_CEILING_BYTES = 32 * 1024 * 1024

#  flags on the wire and what the payload is
#  0x0000  one JSON object
#  0x0001  |tenant str16 |namespace str16 |stream str16 |count u32 |count times: length u32, value
#  0x0009  |request_id u64 |ack_mode u8 |the body of 0x0001
#  0x0002  |subscription_id u64 |count u32 |count times: length u32, value
#  0x0004  |count u32 |count times: length u32, value
#  0x0022  |subscription_id u64 |base_offset u64 |count u32 |...       0x0024 |base_offset u64 |count u32 |...
#  0x0010  |status u8 |request_id u64 |message str16
#  0x0040  on 0x0001, 0x0009, 0x0004 or 0x0024: the payload is packed; nobody here unpacks it. Where it was negotiated as the
#          published clients mean it (`key_flag`): |key str16 |, on 0x0001 before the tenant, on 0x0009 behind ack_mode
#  0x0100  the same key, and 0x0040 is free for packing; on 0x0004 and 0x0024 each value is |key size + 1, or 0 u32 |key |length u32 |value
BATCH, EVENTS_OF, EVENTS, ACKED, ACK, OFFSETS, PACKED = 0x0001, 0x0002, 0x0004, 0x0008, 0x0010, 0x0020, 0x0040
KEYED = 0x0100
RECORDS = 0x0400
MAX_FLAGS = 0xFFFF
ACKED_HEAD = struct.Struct(">QB")
ACK_HEAD = struct.Struct(">BQH")
COUNT_BYTES = 4
LENGTH_BYTES = 4
OFFSET_BYTES = 8
TARGET_NAMES = 3
MAX_ACK_MODE = 2

BAD_MAGIC, BAD_VERSION, LONG_FRAME, BAD_PAYLOAD, BAD_FLAGS = range(1, 6)
ENDS_EARLY, LARGE_COUNT, BYTES_BEHIND, BAD_ACK_MODE, BAD_NAME, TOO_MANY, LARGE_KEY = range(1, 8)
JSON_ITEM, BATCH_ITEM, MALFORMED_ITEM, FLAGS_ITEM, PACKED_ITEM = range(5)
NO_REQUEST = -1

# The document's bounds of an event_batch.
MAX_EVENTS = 64
MAX_EVENTS_BYTES = 64 * 1024

Item = tuple[object, ...]


def _bounds(view: memoryview, start: int, frame_bytes_max: int) -> None:
    if not 0 <= start <= len(view):
        raise ValueError("start is outside the buffer")
    frame_fits(frame_bytes_max)


def frame_fits(frame_bytes_max: int) -> None:
    if not 1 <= frame_bytes_max <= MAX_FRAME_CEILING_BYTES:
        raise ValueError("frame_bytes_max must be 1 byte to 32 MiB")


def _checked_origin(origin: bytes, now: int) -> None:
    if len(origin) > MAX_U16:
        raise ValueError("origin is over 65535 bytes")
    if not 0 <= now < 1 << 62:
        raise ValueError("now must be microseconds since 1970")


def _key_flag_fits(key_flag: int) -> None:
    if not 0 <= key_flag <= MAX_FLAGS:
        raise OverflowError("key_flag must be an unsigned 16-bit number")
    if key_flag not in (PACKED, KEYED):
        raise ValueError("key_flag must be 0x0040 or 0x0100")


def frame(flags: int, payload: bytes) -> bytes:
    return HEADER.pack(MAGIC, VERSION, flags, len(payload)) + payload


def next_frame(view: memoryview, pos: int, frame_bytes_max: int) -> tuple[int, int, int]:
    """(end, flags, fatal) of the frame at pos; end 0: not whole yet. Each field is judged as soon as it is in."""
    left = len(view) - pos
    if left >= 4 and int.from_bytes(view[pos : pos + 4], "big") != MAGIC:
        return 0, 0, BAD_MAGIC
    if left >= 6 and int.from_bytes(view[pos + 4 : pos + 6], "big") != VERSION:
        return 0, 0, BAD_VERSION
    if left < HEADER_BYTES:
        return 0, 0, 0
    _, _, flags, length = HEADER.unpack_from(view, pos)
    if length > frame_bytes_max:
        return 0, 0, LONG_FRAME
    end = pos + HEADER_BYTES + length
    return (end, flags, 0) if end <= len(view) else (0, 0, 0)


# -- batches of a client ----------------------------------------------------------------------------------------------


class Body(NamedTuple):
    target: bytes
    key: bytes | None  # of every value
    values: list[bytes]
    size: int  # bytes of the values, and of the key with each


class Batch(NamedTuple):
    body: Body
    request_id: int
    ack_mode: int


class Malformed(NamedTuple):
    code: int
    request_id: int


def _values(view: memoryview, at: int, end: int) -> list[bytes] | int:
    """The count and the values of view[at:end], which must be all of it; or the error number."""
    if end - at < COUNT_BYTES:
        return ENDS_EARLY
    count = int.from_bytes(view[at : at + COUNT_BYTES], "big")
    at += COUNT_BYTES
    if count > (end - at) // LENGTH_BYTES:
        return LARGE_COUNT
    if count > MAX_GROUP_RECORDS:
        return TOO_MANY
    values = []
    for _ in range(count):
        if end - at < LENGTH_BYTES:
            return ENDS_EARLY
        size = int.from_bytes(view[at : at + LENGTH_BYTES], "big")
        at += LENGTH_BYTES
        if end - at < size:
            return ENDS_EARLY
        values.append(bytes(view[at : at + size]))
        at += size
    return BYTES_BEHIND if at != end else values


def _str16_end(view: memoryview, at: int, end: int) -> int:
    """Where the text behind a length of two bytes ends, or the error number with the sign turned."""
    if end - at < 2:
        return -ENDS_EARLY
    behind = at + 2 + int.from_bytes(view[at : at + 2], "big")
    return behind if behind <= end else -ENDS_EARLY


def _target_end(view: memoryview, at: int, end: int) -> int:
    """Where the three names from `at` on end, or the error number with the sign turned."""
    for _ in range(TARGET_NAMES):
        behind = _str16_end(view, at, end)
        if behind < 0:
            return behind
        try:
            bytes(view[at + 2 : behind]).decode()
        except UnicodeDecodeError:
            return -BAD_NAME
        at = behind
    return at


def _request_id(view: memoryview, at: int, end: int) -> int:
    return int.from_bytes(view[at : at + 8], "big") if end - at >= 8 else NO_REQUEST


def _parse_batch(view: memoryview, at: int, end: int, acked: bool, keyed: bool) -> Batch | Malformed:
    request_id, ack_mode = NO_REQUEST, 0
    if acked:
        request_id = _request_id(view, at, end)
        if end - at < ACKED_HEAD.size:
            return Malformed(ENDS_EARLY, request_id)
        ack_mode = view[at + 8]
        if not 1 <= ack_mode <= MAX_ACK_MODE:
            return Malformed(BAD_ACK_MODE, request_id)
        at += ACKED_HEAD.size
    key = None
    if keyed:
        behind = _str16_end(view, at, end)
        if behind < 0:
            return Malformed(-behind, request_id)
        key, at = bytes(view[at + 2 : behind]), behind
    behind = _target_end(view, at, end)
    if behind < 0:
        return Malformed(-behind, request_id)
    values = _values(view, behind, end)
    if isinstance(values, int):
        return Malformed(values, request_id)
    size = sum(map(len, values)) + len(key or b"") * len(values)
    if size > MAX_GROUP_BYTES:
        return Malformed(LARGE_KEY, request_id)
    return Batch(Body(bytes(view[at:behind]), key, values, size), request_id, ack_mode)


def _item(got: Batch, origin: bytes) -> Item:
    batch, values, key = None, got.body.values, got.body.key
    if values:
        keys: list[bytes | None] | None = None if key is None else [key] * len(values)
        records = Records(list(values), keys, None, None, None, [origin], None, None)
        batch = pack(records, 0 if key is None else KEYS, fresh_head(0, len(values)))
    item = (BATCH_ITEM, got.body.target, batch, len(values), got.request_id, got.ack_mode)
    return item if key is None else (*item, key)


class Splitter:
    """Collects the items of one read: unacknowledged batches wait, as long as their neighbours go to the same target."""

    def __init__(self, known: int, key_flag: int, strict: bool, origin: bytes) -> None:
        self.known = known
        self.key_flag = key_flag
        self.strict = strict
        self.origin = origin
        self.items: list[Item] = []
        self.waiting: Batch | None = None

    def flush(self) -> None:
        if self.waiting is not None:
            self.items.append(_item(self.waiting, self.origin))
            self.waiting = None

    def _unacked(self, got: Batch) -> None:
        last = self.waiting.body if self.waiting else None
        if (
            last is not None
            and last.target == got.body.target
            and last.key == got.body.key
            and last.size + got.body.size <= MAX_GROUP_BYTES
            and len(last.values) + len(got.body.values) <= MAX_GROUP_RECORDS
        ):
            last.values.extend(got.body.values)
            self.waiting = Batch(last._replace(size=last.size + got.body.size), NO_REQUEST, 0)
        else:
            self.flush()
            self.waiting = got

    def take(self, flags: int, view: memoryview, at: int, end: int) -> None:
        meant = flags if self.strict else flags & self.known
        if meant & ~self.known:
            meant = MAX_FLAGS  # no case below
        kind = meant & ~self.key_flag
        got = None
        if kind in (BATCH, BATCH | ACKED):
            got = _parse_batch(view, at, end, kind != BATCH, kind != meant)
        if isinstance(got, Batch) and got.ack_mode == 0:
            self._unacked(got)
            return
        self.flush()
        if isinstance(got, Batch):
            self.items.append(_item(got, self.origin))
        elif isinstance(got, Malformed):
            self.items.append((MALFORMED_ITEM, *got))
        elif meant == 0:
            self.items.append((JSON_ITEM, bytes(view[at:end])))
        elif kind in (BATCH | PACKED, BATCH | ACKED | PACKED) or (
            meant & RECORDS and meant & ~(RECORDS | PACKED) in (BATCH, BATCH | ACKED)
        ):  # a record set, packed or not, is taken apart by Python
            self.items.append((PACKED_ITEM, meant, bytes(view[at:end])))
        else:  # whatever else a bit stands for, the request_id of an acknowledged batch comes first
            acked = flags & (BATCH | ACKED) == BATCH | ACKED
            self.items.append((FLAGS_ITEM, flags, _request_id(view, at, end) if acked else NO_REQUEST))


def felix_split(
    data: Buffer, start: int, frame_bytes_max: int, known: int, strict: bool, origin: bytes, now: int, key_flag: int = 0
) -> tuple[list[Item], int, int]:
    view = view_of(data)
    _bounds(view, start, frame_bytes_max)
    if not 0 <= known <= MAX_FLAGS:
        raise OverflowError("known must be an unsigned 16-bit number")
    _checked_origin(origin, now)
    if key_flag:
        _key_flag_fits(key_flag)
    splitter = Splitter(known, key_flag, strict, origin)
    pos = start
    while True:
        end, flags, fatal = next_frame(view, pos, frame_bytes_max)
        if not end:
            break
        splitter.take(flags, view, pos + HEADER_BYTES, end)
        pos = end
    splitter.flush()
    return splitter.items, pos, fatal


def felix_batch(payload: Buffer, flags: int, origin: bytes, now: int) -> Item:
    view = view_of(payload)
    if not 0 <= flags <= MAX_FLAGS:
        raise OverflowError("flags must be an unsigned 16-bit number")
    if flags & ~(PACKED | KEYED) not in (BATCH, BATCH | ACKED):
        raise ValueError("not the flags of a batch: they are 0x0001 or 0x0009, with or without 0x0040 and 0x0100")
    if len(view) > MAX_FRAME_CEILING_BYTES:
        raise ValueError("payload is over 32 MiB")
    _checked_origin(origin, now)
    got = _parse_batch(view, 0, len(view), bool(flags & ACKED), bool(flags & KEYED))
    return (MALFORMED_ITEM, *got) if isinstance(got, Malformed) else _item(got, origin)


# -- events of a server -----------------------------------------------------------------------------------------------


def _keys(view: memoryview, where: Layout, count: int, first: int, last: int) -> list[bytes | None] | None:
    """The keys of the records first..last-1, if the batch has keys."""
    if not where.key_offsets:
        return None
    offsets = ints(view, "i", where.key_offsets + 4 * first, last - first + 1)
    limit = data_end(view, where.key_offsets, where.key_data, count) - where.key_data
    found: list[bytes | None] = []
    for i, (a, b) in enumerate(pairwise(offsets), first):
        if not 0 <= a <= b <= limit:
            raise ValueError("batch columns do not add up: an entry lies outside its column")
        there = not where.key_bitmap or view[where.key_bitmap + (i >> 3)] >> (i & 7) & 1
        found.append(bytes(view[where.key_data + a : where.key_data + b]) if there else None)
    return found


class Event(NamedTuple):
    row: int
    offset: int
    value: bytes
    key: bytes | None


def _events(batch: Buffer, first: int, last: int, now: int, keys: bool = False) -> tuple[list[Event], bool]:
    """The records first..last-1 that have not expired, and whether they have keys (if asked for)."""
    view = view_of(batch)
    head = head_of(view, 0)
    where = locate(view, 0, head)
    if not 0 <= first <= last <= head.records:
        raise ValueError("first and last must lie in the batch, in this order")
    n = last - first
    offsets = ints(view, "i", where.value_offsets + 4 * first, n + 1)
    limit = data_end(view, where.value_offsets, where.value_data, head.records) - where.value_data
    deltas = ints(view, "I", where.deltas + 4 * first, n) if where.deltas else range(first, last)
    expiries = ints(view, "q", where.expiries + 8 * first, n) if where.expiries else (0,) * n
    out = []
    known = _keys(view, where, head.records, first, last) if keys else None
    for i in range(n):
        a, b = offsets[i], offsets[i + 1]
        if not 0 <= a <= b <= limit:
            raise ValueError("batch columns do not add up: an entry lies outside its column")
        if not expiries[i] or expiries[i] > now:
            value = bytes(view[where.value_data + a : where.value_data + b])
            out.append(Event(first + i, head.base_offset + deltas[i], value, None if known is None else known[i]))
    return out, known is not None


Omitted = list[tuple[int, int, int]]  # where in the frames it would stand, its row, the bytes of its frame


def felix_deliver(
    batch: Buffer, first: int, last: int, now: int, offsets: bool, high: int, frame_bytes_max: int, keys: bool = False
) -> tuple[bytes, int, Omitted]:
    frame_fits(frame_bytes_max)
    if not 0 <= high <= MAX_U64:
        raise OverflowError("high must be an unsigned 64-bit number")
    events, keyed = _events(batch, first, last, now, keys)
    front = OFFSET_BYTES + COUNT_BYTES if offsets else COUNT_BYTES
    flags = EVENTS | (OFFSETS if offsets else 0) | (KEYED if keyed else 0)
    out = bytearray()
    run: list[bytes] = []
    omitted: Omitted = []
    begin, size = 0, front

    def close() -> None:
        nonlocal run, size
        if run:
            base = struct.pack(">Q", begin | high) if offsets else b""
            out.extend(frame(flags, base + struct.pack(">I", len(run)) + b"".join(run)))
        run, size = [], front

    for row, offset, value, key in events:
        entry = struct.pack(">I", len(value)) + value
        if keyed:
            entry = struct.pack(">I", 0 if key is None else len(key) + 1) + (key or b"") + entry
        if front + len(entry) > frame_bytes_max:
            close()
            omitted.append((len(out), row, front + len(entry)))
            continue
        if not run or size + len(entry) > frame_bytes_max or (offsets and offset != begin + len(run)):
            close()
            begin = offset
        run.append(entry)
        size += len(entry)
    close()
    return bytes(out), len(events) - len(omitted), omitted


def felix_events(
    batch: Buffer, first: int, last: int, now: int, target_json: bytes, frame_bytes_max: int
) -> tuple[bytes, int, Omitted]:
    frame_fits(frame_bytes_max)
    events, _ = _events(batch, first, last, now)
    target = b"," + target_json if target_json else b""
    most = min(frame_bytes_max, MAX_EVENTS_BYTES)
    many, one = b'{"type":"event_batch"' + target + b',"payloads":[', b'{"type":"event"' + target + b',"payload":'
    out = bytearray()
    run: list[bytes] = []
    omitted: Omitted = []
    size = 0

    def close() -> None:
        nonlocal run, size
        if len(run) > 1:
            out.extend(frame(0, many + b",".join(run) + b"]}"))
        elif run:
            out.extend(frame(0, one + run[0] + b"}"))
        run, size = [], len(many) + 1

    for event in events:
        text = b'"' + b2a_base64(event.value, newline=False) + b'"'
        if len(one) + len(text) + 1 > frame_bytes_max:
            close()
            omitted.append((len(out), event.row, len(one) + len(text) + 1))
            continue
        # As an event_batch: its front, the texts with a comma behind each but the last, and two brackets.
        if not run or len(run) == MAX_EVENTS or size + 1 + len(text) > most:
            close()
        run.append(text)
        size += 1 + len(text)
    close()
    return bytes(out), len(events) - len(omitted), omitted


# -- clients ----------------------------------------------------------------------------------------------------------


def felix_publish(
    target: bytes,
    values: Sequence[bytes],
    request_id: int,
    ack_mode: int,
    key: bytes | None = None,
    key_flag: int = KEYED,
) -> bytes:
    if not NO_REQUEST <= request_id <= MAX_U64:
        raise OverflowError("request_id must be -1 (none) or an unsigned 64-bit number")
    if not (ack_mode == 0 if request_id == NO_REQUEST else 1 <= ack_mode <= MAX_ACK_MODE):
        raise ValueError("ack_mode must be 0 without a request_id, and 1 or 2 with one")
    if _target_end(memoryview(target), 0, len(target)) != len(target):
        raise ValueError("target must be three names of UTF-8, each behind its length of two bytes")
    _key_flag_fits(key_flag)
    if key is not None and len(key) > MAX_U16:
        raise ValueError("key is over 65535 bytes")
    if len(values) > MAX_GROUP_RECORDS:
        raise ValueError("too many values: a batch holds at most 2**20")
    flags = BATCH if request_id == NO_REQUEST else BATCH | ACKED
    head = b"" if request_id == NO_REQUEST else ACKED_HEAD.pack(request_id, ack_mode)
    if key is not None:
        flags |= key_flag
        head += struct.pack(">H", len(key)) + key
    size = len(head) + len(target) + COUNT_BYTES + LENGTH_BYTES * len(values) + sum(map(len, values))
    if size > MAX_FRAME_CEILING_BYTES:
        raise ValueError("batch too large: a frame is over 32 MiB; send fewer values at once")
    parts = [head, target, struct.pack(">I", len(values))]
    for value in values:
        parts += (struct.pack(">I", len(value)), value)
    return frame(flags, b"".join(parts))


def _keyed_values(view: memoryview, at: int, end: int) -> tuple[list[bytes], list[bytes | None]] | None:
    """The values and keys of view[at:end], which must be all of it."""
    data = bytes(view[at:end])
    if len(data) < COUNT_BYTES:
        return None
    count, at = int.from_bytes(data[:COUNT_BYTES], "big"), COUNT_BYTES
    if count > MAX_GROUP_RECORDS:
        return None
    values: list[bytes] = []
    keys: list[bytes | None] = []
    for _ in range(count):
        size = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        behind = at + LENGTH_BYTES + max(0, size - 1)
        if behind + LENGTH_BYTES > len(data):
            return None
        keys.append(data[at + LENGTH_BYTES : behind] if size else None)
        at = behind + LENGTH_BYTES
        size = int.from_bytes(data[behind:at], "big")
        if at + size > len(data):
            return None
        values.append(data[at : at + size])
        at += size
    return (values, keys) if at == len(data) else None


def _received(flags: int, view: memoryview, at: int, end: int) -> Item | int:
    """The item of a server's frame, or what is fatal about it."""
    if flags == 0:
        return (0, bytes(view[at:end]))
    if flags & ~(OFFSETS | KEYED) == EVENTS | PACKED or flags & ~PACKED == EVENTS | RECORDS:
        return (PACKED, flags, bytes(view[at:end]))
    if flags == ACK:
        if end - at < ACK_HEAD.size:
            return BAD_PAYLOAD
        status, request_id, size = ACK_HEAD.unpack_from(view, at)
        try:
            message = bytes(view[at + ACK_HEAD.size : end]).decode()
        except UnicodeDecodeError:
            return BAD_PAYLOAD
        if status > 1 or end - at != ACK_HEAD.size + size:
            return BAD_PAYLOAD
        return (ACK, status, request_id, message)
    if flags & ~(OFFSETS | KEYED) not in (EVENTS_OF, EVENTS):
        return BAD_FLAGS
    subscription = base = -1
    wide = 8 * bool(flags & EVENTS_OF) + OFFSET_BYTES * bool(flags & OFFSETS)
    if end - at < wide:
        return BAD_PAYLOAD
    if flags & EVENTS_OF:
        subscription = int.from_bytes(view[at : at + 8], "big")
    if flags & OFFSETS:
        base = int.from_bytes(view[at + wide - OFFSET_BYTES : at + wide], "big")
    if flags & KEYED:
        both = _keyed_values(view, at + wide, end)
        return BAD_PAYLOAD if both is None else (EVENTS, subscription, base, *both)
    values = _values(view, at + wide, end)
    return BAD_PAYLOAD if isinstance(values, int) else (EVENTS, subscription, base, values)


def felix_received(data: Buffer, start: int, frame_bytes_max: int) -> tuple[list[Item], int, int]:
    view = view_of(data)
    _bounds(view, start, frame_bytes_max)
    items: list[Item] = []
    pos = start
    while True:
        end, flags, fatal = next_frame(view, pos, frame_bytes_max)
        if not end:
            return items, pos, fatal
        got = _received(flags, view, pos + HEADER_BYTES, end)
        if isinstance(got, int):
            return items, pos, got
        items.append(got)
        pos = end
