"""Fast TCP packets in pure Python: splitting reads, packing publishes and messages. Same results as the native twin.

Only bytes to items and back: what a packet means for a session (tokens, keys, subscriptions, answers) is decided by the
protocol, not here. No I/O, no clock, no state.
"""

import struct
from collections.abc import Sequence
from typing import Any

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import (
    EXPIRY,
    KNOWN_FLAGS,
    Records,
    data_end,
    fresh_head,
    head_of,
    ints,
    locate,
    pack,
    view_of,
)
from quintet.kernel.pure_blip import MAX_GROUP_BYTES, MAX_GROUP_RECORDS, MAX_U16, MAX_U32

#  requests:  0      1     2       2+N         6+N          10+N
#  CREATE     |1    |N    |token  |T u8 |name T bytes |flags u8
#  SUBSCRIBE  |2    |N    |token  |topic u32                             UNSUBSCRIBE |5 is the same
#  PUBLISH    |3    |N    |token  |topic u32  |length u32  |payload
#  ROTATE     |7    |N    |token  |topic u32  |M u8 |new key M bytes
#  RECORDS    |0x71 |N    |token  |topic u32  |length u32  |record set       only where EXTEND came before
#  EXTEND     |0x70 |version                                             big-endian; there is no outer length
#  A token of no bytes may stand for the last one that was accepted: see `Splitter.meant`.
CREATE, SUBSCRIBE, PUBLISH, UNSUBSCRIBE, ROTATE, EXTEND, RECORDS = 1, 2, 3, 5, 7, 0x70, 0x71
REQUESTS = frozenset((CREATE, SUBSCRIBE, PUBLISH, UNSUBSCRIBE, ROTATE, EXTEND))
# Bytes behind the token that must be in before a packet's size is known.
FIXED_BYTES = {CREATE: 1, SUBSCRIBE: 4, PUBLISH: 8, UNSUBSCRIBE: 4, ROTATE: 5, RECORDS: 8}
ENDS_SPLITTING = frozenset((CREATE, ROTATE, EXTEND))

#  replies:   0             1           5           9
#  MESSAGE    |4           |topic u32  |length u32 |payload
#  KEY_UPDATE |6           |topic u32  |M u8 |new key M bytes
#             0             1           2          6         8     9
#  OK, ERROR  |0x7E, 0x7F  |request u8 |topic u32 |code u16 |L u8 |message L bytes
MESSAGE, MESSAGES, KEY_UPDATE, OK, ERROR = 4, 0x72, 6, 0x7E, 0x7F
MESSAGE_HEAD = struct.Struct(">BII")
RESULT_HEAD = struct.Struct(">BBIHB")

MAX_TOKEN_BYTES = 255
MAX_PAYLOAD_CEILING_BYTES = 32 * 1024 * 1024
MAX_TTL_US = (1 << 62) - 1

BAD_TYPE, LONG_PAYLOAD, BAD_OK = 1, 2, 3

Item = tuple[Any, ...]
Tokens = dict[bytes, bytes | None]
Topics = dict[int, tuple[int, int]]


def _u32(view: memoryview, at: int) -> int:
    return int.from_bytes(view[at : at + 4], "big")


def _request(view: memoryview, pos: int, payload_max: int, extended: bool) -> tuple[int, int]:
    """(end, fatal) of the request at pos; end 0: not whole yet. Type and payload length are judged when they are in."""
    left = len(view) - pos
    if not left:
        return 0, 0
    kind = view[pos]
    if kind not in REQUESTS and not (kind == RECORDS and extended):
        return 0, BAD_TYPE
    if left < 2:
        return 0, 0
    if kind == EXTEND:
        return pos + 2, 0
    size = 2 + view[pos + 1] + FIXED_BYTES[kind]
    if left < size:
        return 0, 0
    if kind == CREATE:
        size += view[pos + size - 1] + 1
    elif kind == ROTATE:
        size += view[pos + size - 1]
    elif kind in (PUBLISH, RECORDS):
        length = _u32(view, pos + size - 4)
        if length > payload_max:
            return 0, LONG_PAYLOAD
        size += length
    return (pos + size, 0) if left >= size else (0, 0)


def _bounds(view: memoryview, start: int, payload_max: int) -> None:
    if not 0 <= start <= len(view):
        raise ValueError("start is outside the buffer")
    if not 1 <= payload_max <= MAX_PAYLOAD_CEILING_BYTES:
        raise ValueError("payload_max must be 1 byte to 32 MiB")


def _topic_fits(topic_id: int) -> None:
    if not 0 <= topic_id <= MAX_U32:
        raise OverflowError("topic_id must be an unsigned 32-bit number")


class Group:
    """Publishes with one token to one topic, on their way into one batch."""

    __slots__ = ("jwt", "size", "topic_id", "values")

    def __init__(self, jwt: bytes, topic_id: int) -> None:
        self.jwt = jwt
        self.topic_id = topic_id
        self.values: list[bytes | None] = []
        self.size = 0

    def item(self, origin: bytes | None, topics: Topics, now: int) -> Item:
        n = len(self.values)
        batch = None
        if origin is not None:
            flags, ttl = topics.get(self.topic_id, (0, 0))
            if not 0 <= flags <= KNOWN_FLAGS:
                raise ValueError("unknown batch flag; known are bits 0 to 2")
            if not 0 <= ttl <= MAX_TTL_US:
                raise ValueError("a time to live must be 0 (none) to 2**62 - 1 microseconds")
            expiries = [now + ttl] * n if ttl else None
            records = Records(self.values, None, None, None, expiries, [origin], None, None)
            batch = pack(records, EXPIRY if ttl else 0, fresh_head(flags, n))
        return (PUBLISH, self.jwt, self.topic_id, batch, n)


class Splitter:
    """Collects the items of one read: publishes wait in groups until something else comes."""

    def __init__(self, tokens: Tokens, topics: Topics, now: int, same: bytes | None) -> None:
        self.tokens = tokens
        self.same = same
        self.topics = topics
        self.now = now
        self.items: list[Item] = []
        self.groups: list[Group] = []
        self.by_topic: dict[int, Group] = {}

    def meant(self, shown: bytes) -> bytes:
        """The token that is meant by the one in a packet."""
        return shown or self.same or shown

    def knows(self, jwt: bytes) -> bool:
        """Whether the asker has judged it. An accepted one is what empty ones behind it stand for."""
        if jwt not in self.tokens:
            return False
        origin = self.tokens[jwt]
        if origin is not None:
            if len(origin) > MAX_U16:
                raise ValueError("origin is over 65535 bytes")
            if self.same is not None:
                self.same = jwt
        return True

    def flush(self) -> None:
        self.items.extend(group.item(self.tokens[group.jwt], self.topics, self.now) for group in self.groups)
        self.groups = []
        self.by_topic = {}

    def publish(self, jwt: bytes, topic_id: int, value: bytes) -> None:
        group = self.by_topic.get(topic_id)
        # A topic keeps its order, so one that another token published to since goes on in a new group.
        if (
            group is None
            or group.jwt != jwt
            or group.size + len(value) > MAX_GROUP_BYTES
            or len(group.values) >= MAX_GROUP_RECORDS
        ):
            group = self.by_topic[topic_id] = Group(jwt, topic_id)
            self.groups.append(group)
        group.values.append(value)
        group.size += len(value)

    def other(self, kind: int, jwt: bytes, view: memoryview, at: int, end: int) -> None:
        """A request that is no PUBLISH, whose fields behind the token are view[at:end]."""
        self.flush()
        if kind == CREATE:
            self.items.append((kind, jwt, bytes(view[at + 1 : end - 1]), view[end - 1]))
        elif kind == RECORDS:
            self.items.append((kind, jwt, _u32(view, at), bytes(view[at + 8 : end])))
        elif kind == ROTATE:
            self.items.append((kind, jwt, _u32(view, at), bytes(view[at + 5 : end])))
        else:
            self.items.append((kind, jwt, _u32(view, at)))


def fast_split(
    data: Buffer, start: int, payload_max: int, tokens: Tokens, topics: Topics, now: int, same: bytes | None
) -> tuple[list[Item], int, int, bytes | None, bytes | None]:
    view = view_of(data)
    _bounds(view, start, payload_max)
    if not 0 <= now < 1 << 62:
        raise ValueError("now must be microseconds since 1970")
    if len(same or b"") > MAX_TOKEN_BYTES:
        raise ValueError("same is over 255 bytes; no token is")
    splitter = Splitter(tokens, topics, now, same)
    pos, unknown = start, None
    while True:
        end, fatal = _request(view, pos, payload_max, splitter.same is not None)
        if not end:
            break
        kind, at = view[pos], pos + 2 + view[pos + 1]
        if kind == EXTEND:
            splitter.flush()
            splitter.items.append((kind, view[pos + 1]))
        else:
            jwt = splitter.meant(bytes(view[pos + 2 : at]))
            if not splitter.knows(jwt):
                unknown = jwt
                break
            if kind == PUBLISH:
                splitter.publish(jwt, _u32(view, at), bytes(view[at + 8 : end]))
            else:
                splitter.other(kind, jwt, view, at, end)
        pos = end
        if kind in ENDS_SPLITTING:
            break
    splitter.flush()
    return splitter.items, pos, fatal, unknown, splitter.same


def fast_deliver(topic_id: int, batch: Buffer, first: int, last: int, now: int) -> tuple[bytes, int]:
    _topic_fits(topic_id)
    view = view_of(batch)
    head = head_of(view, 0)
    where = locate(view, 0, head)
    if not 0 <= first <= last <= head.records:
        raise ValueError("first and last must lie in the batch, in this order")
    n = last - first
    offsets = ints(view, "i", where.value_offsets + 4 * first, n + 1)
    limit = data_end(view, where.value_offsets, where.value_data, head.records) - where.value_data
    expiries = ints(view, "q", where.expiries + 8 * first, n) if where.expiries else (0,) * n
    parts: list[bytes] = []
    for i in range(n):
        a, b = offsets[i], offsets[i + 1]
        if not 0 <= a <= b <= limit:
            raise ValueError("batch columns do not add up: an entry lies outside its column")
        if expiries[i] and expiries[i] <= now:
            continue
        parts.append(MESSAGE_HEAD.pack(MESSAGE, topic_id, b - a))
        parts.append(bytes(view[where.value_data + a : where.value_data + b]))
    return b"".join(parts), len(parts) // 2


def fast_publish(jwt: bytes, topic_id: int, values: Sequence[bytes]) -> bytes:
    _topic_fits(topic_id)
    if len(jwt) > MAX_TOKEN_BYTES:
        raise ValueError("token is over 255 bytes; mint one with fewer or shorter claims")
    front = bytes((PUBLISH, len(jwt))) + jwt + struct.pack(">I", topic_id)
    parts: list[bytes] = []
    for value in values:
        if len(value) > MAX_PAYLOAD_CEILING_BYTES:
            raise ValueError("message too large: a payload is over 32 MiB")
        parts += (front, struct.pack(">I", len(value)), value)
    return b"".join(parts)


def _reply(view: memoryview, pos: int, payload_max: int) -> tuple[int, int]:
    """(end, fatal) of the reply at pos, judged as _request does."""
    left = len(view) - pos
    if not left:
        return 0, 0
    kind = view[pos]
    if kind not in (MESSAGE, MESSAGES, KEY_UPDATE, OK, ERROR):
        return 0, BAD_TYPE
    size = 6 if kind == KEY_UPDATE else MESSAGE_HEAD.size if kind in (MESSAGE, MESSAGES) else RESULT_HEAD.size
    if left < size:
        return 0, 0
    if kind in (MESSAGE, MESSAGES):
        length = _u32(view, pos + 5)
        if length > payload_max:
            return 0, LONG_PAYLOAD
        size += length
    elif kind == OK:
        if any(view[pos + 6 : pos + 9]):
            return 0, BAD_OK
    else:
        size += view[pos + size - 1]
    return (pos + size, 0) if left >= size else (0, 0)


def fast_received(data: Buffer, start: int, payload_max: int) -> tuple[list[Item], int, int]:
    view = view_of(data)
    _bounds(view, start, payload_max)
    items: list[Item] = []
    pos = start
    while True:
        end, fatal = _reply(view, pos, payload_max)
        if not end:
            return items, pos, fatal
        kind, last = view[pos], items[-1] if items else ()
        if kind == MESSAGE:
            topic_id, value = _u32(view, pos + 1), bytes(view[pos + MESSAGE_HEAD.size : end])
            if last[:2] == (MESSAGE, topic_id):
                last[2].append(value)
            else:
                items.append((MESSAGE, topic_id, [value]))
        elif kind == MESSAGES:
            items.append((MESSAGES, _u32(view, pos + 1), bytes(view[pos + MESSAGE_HEAD.size : end])))
        elif kind == KEY_UPDATE:
            items.append((KEY_UPDATE, _u32(view, pos + 1), bytes(view[pos + 6 : end])))
        else:
            _, request, topic_id, code, _ = RESULT_HEAD.unpack_from(view, pos)
            if kind == ERROR:
                items.append((ERROR, request, topic_id, code, bytes(view[pos + RESULT_HEAD.size : end])))
            elif last[:3] == (OK, request, topic_id):
                items[-1] = (*last[:3], last[3] + 1)
            else:
                items.append((OK, request, topic_id, 1))
        pos = end
