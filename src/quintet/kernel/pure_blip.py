"""BlipMQ frames in pure Python: splitting reads, packing publishes and deliveries. Same results as the native twin.

Only bytes to items and back: what a frame means for a session (authentication, subscriptions, answers) is decided by
the protocol, not here. No I/O, no clock, no state.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import (
    AT_MOST_ONCE,
    EXPIRY,
    Records,
    data_end,
    fresh_head,
    head_of,
    ints,
    locate,
    pack,
    view_of,
)
from quintet.kernel.pure_records import ANY, records_split

#   0        4      5                13
#  |length  |type  |correlation_id  |payload...      big-endian; length counts everything behind itself
FRAME = struct.Struct(">IBQ")
FRAME_BYTES = FRAME.size
LENGTH_BYTES = 4
MIN_LENGTH = 9
MAX_FRAME_CEILING_BYTES = 32 * 1024 * 1024
MAX_TOPIC_BYTES = 255
MAX_U16 = 0xFFFF
MAX_I32 = 0x7FFFFFFF
MAX_U32 = 0xFFFFFFFF
MAX_U64 = 0xFFFFFFFFFFFFFFFF
# A group's batch must stay under the batch limit of 64 MiB with its offsets and expiries.
MAX_GROUP_BYTES = 32 * 1024 * 1024
MAX_GROUP_RECORDS = 1024 * 1024

ERROR, HELLO, AUTH, PUBLISH, ACK, POLL, DELIVER, RECORDS, MATCH = 0, 1, 2, 3, 5, 9, 10, 11, 12
# 3: version 2 with record sets and patterns. Sessions take apart patterns, and the sets for which nobody was asked yet.
LAST_TYPE = {1: POLL, 2: DELIVER, 3: MATCH}
RECORDS_TOPIC_AT = 3  # in its payload
TTL_BIT = 0x80
MICROSECONDS_PER_MILLISECOND = 1000

SHORT_LENGTH, LONG_LENGTH, UNKNOWN_TYPE, BAD_DELIVERY = 1, 2, 3, 4
BAD_PUBLISH, EMPTY_TOPIC, BAD_QOS, NUL_TOPIC, LONG_TOPIC, BAD_ACK, BAD_POLL, ZERO_SUBSCRIPTION = range(1, 9)

Item = tuple[object, ...]


class Group:
    """Publishes to one topic with one QoS, on their way into one batch."""

    __slots__ = ("expiries", "has_ttl", "ids", "qos", "size", "topic", "values")

    def __init__(self, topic: bytes, qos: int) -> None:
        self.topic = topic
        self.qos = qos
        self.values: list[bytes | None] = []
        self.ids: list[int] = []
        self.expiries: list[int] = []
        self.has_ttl = False
        self.size = 0

    def item(self, origin: bytes) -> Item:
        n = len(self.values)
        records = Records(self.values, None, None, None, self.expiries, [origin], None, None)
        head = fresh_head(0 if self.qos else AT_MOST_ONCE, n)
        batch = pack(records, EXPIRY if self.has_ttl else 0, head)
        return (PUBLISH, self.qos, self.topic, batch, struct.pack(f"<{n}Q", *self.ids))


class Publish(NamedTuple):
    qos: int
    topic: bytes
    ttl_ms: int  # -1: none
    body: int


def _parse_publish(view: memoryview, at: int, end: int, version: int) -> Publish | int:
    """The PUBLISH payload in view[at:end], or its error number.

    0      1              1 or 5      3 or 7
    |qos  |ttl_ms u32?   |topic_len  |topic...|message...        ttl_ms only in version 2 with bit 0x80 of qos
    """
    if end - at < 3:
        return BAD_PUBLISH
    qos, ttl_ms = view[at], -1
    at += 1
    if version == 2 and qos & TTL_BIT:
        if end - at < 6:
            return BAD_PUBLISH
        (ttl_ms,) = struct.unpack_from(">I", view, at)
        qos ^= TTL_BIT
        at += 4
    body = at + 2 + (view[at] << 8 | view[at + 1])
    if body > end:
        return BAD_PUBLISH
    topic = bytes(view[at + 2 : body])
    try:
        topic.decode()
    except UnicodeDecodeError:
        return BAD_PUBLISH
    if not topic:
        return EMPTY_TOPIC
    if qos > 1:
        return BAD_QOS
    if 0 in topic:
        return NUL_TOPIC
    if len(topic) > MAX_TOPIC_BYTES:
        return LONG_TOPIC
    return Publish(qos, topic, ttl_ms, body)


class Splitter:
    """Collects the items of one read: publishes wait in groups, acks and polls in runs, until something else comes."""

    def __init__(self, version: int, origin: bytes, now: int) -> None:
        self.version = version
        self.origin = origin
        self.now = now
        self.items: list[Item] = []
        self.groups: list[Group] = []
        self.by_topic: dict[bytes, Group] = {}
        self.run: tuple[int, int] = (0, 0)
        self.ranges: list[tuple[int, int]] = []
        self.ids: list[int] = []

    def flush(self) -> None:
        if self.groups:
            self.items.extend(group.item(self.origin) for group in self.groups)
            self.groups = []
            self.by_topic = {}
        if self.run[0]:
            self.items.append((*self.run, self.ranges if self.run[0] == ACK else self.ids))
            self.run, self.ranges, self.ids = (0, 0), [], []

    def plain(self, item: Item) -> None:
        self.flush()
        self.items.append(item)

    def publish(self, view: memoryview, at: int, end: int, cid: int) -> None:
        got = _parse_publish(view, at, end, self.version)
        if isinstance(got, int):
            self.plain((ERROR, cid, got))
            return
        if self.run[0]:
            self.flush()
        size = end - got.body
        group = self.by_topic.get(got.topic)
        if (
            group is None
            or group.qos != got.qos
            or group.size + size > MAX_GROUP_BYTES
            or len(group.ids) >= MAX_GROUP_RECORDS
        ):
            group = self.by_topic[got.topic] = Group(got.topic, got.qos)
            self.groups.append(group)
        group.values.append(bytes(view[got.body : end]))
        group.ids.append(cid)
        group.size += size
        if got.ttl_ms >= 0:
            group.has_ttl = True
            group.expiries.append(self.now + got.ttl_ms * MICROSECONDS_PER_MILLISECOND)
        else:
            group.expiries.append(0)

    def ack_or_poll(self, kind: int, view: memoryview, at: int, end: int, cid: int) -> None:
        if end - at != 8:
            self.plain((ERROR, cid, BAD_ACK if kind == ACK else BAD_POLL))
            return
        (subscription,) = struct.unpack_from(">Q", view, at)
        if not subscription:
            self.plain((ERROR, cid, ZERO_SUBSCRIPTION))
            return
        if self.run != (kind, subscription):
            self.flush()
            self.run = (kind, subscription)
        if kind == POLL:
            self.ids.append(cid)
        elif self.ranges and sum(self.ranges[-1]) == cid:
            self.ranges[-1] = (self.ranges[-1][0], self.ranges[-1][1] + 1)
        else:
            self.ranges.append((cid, 1))


def _known_set(sets: dict[bytes, int], payload: memoryview, origin: bytes, now: int) -> Item | None:
    """The head of a RECORDS payload, [u8 qos][u16 n][topic], the partitions and its batches, if its target is known. None: a session looks at it."""
    if len(payload) < RECORDS_TOPIC_AT:
        return None
    head = bytes(payload[: RECORDS_TOPIC_AT + (payload[1] << 8 | payload[2])])
    count = sets.get(head)
    if count is None or len(head) < RECORDS_TOPIC_AT + (head[1] << 8 | head[2]):
        return None
    if not 1 <= count <= MAX_I32:
        raise ValueError("a topic has 1 to 2**31 - 1 partitions")
    found = records_split(payload[len(head) :], ANY, count, origin, now, 0 if head[0] else AT_MOST_ONCE)
    return (head, count, found[0]) if len(found) == 2 else None


def _next_frame(view: memoryview, pos: int, max_frame: int, last_type: int) -> tuple[int, int, int, int]:
    """(end, type, cid, fatal) of the frame at pos. end 0: none yet. Length and type are judged as soon as they are in."""
    left = len(view) - pos
    if left < LENGTH_BYTES:
        return 0, 0, 0, 0
    length = int.from_bytes(view[pos : pos + LENGTH_BYTES], "big")
    if length < MIN_LENGTH:
        return 0, 0, 0, SHORT_LENGTH
    if length > max_frame:
        return 0, 0, 0, LONG_LENGTH
    if left > LENGTH_BYTES and not 1 <= view[pos + LENGTH_BYTES] <= last_type:
        return 0, 0, 0, UNKNOWN_TYPE
    if left < LENGTH_BYTES + length:
        return 0, 0, 0, 0
    _, kind, cid = FRAME.unpack_from(view, pos)
    return pos + LENGTH_BYTES + length, kind, cid, 0


def _bounds(view: memoryview, start: int, max_frame: int) -> None:
    if not 0 <= start <= len(view):
        raise ValueError("start is outside the buffer")
    if not MIN_LENGTH <= max_frame <= MAX_FRAME_CEILING_BYTES:
        raise ValueError("max_frame must be 9 bytes to 32 MiB")


def blip_split(
    data: Buffer,
    start: int,
    version: int,
    max_frame: int,
    origin: bytes,
    now: int,
    sets: dict[bytes, int] | None = None,
) -> tuple[list[tuple[int, ...] | tuple[object, ...]], int, int]:
    view = view_of(data)
    _bounds(view, start, max_frame)
    if version not in LAST_TYPE:
        raise ValueError("BlipMQ version must be 1 or 2, or 3 for 2 with record sets")
    if len(origin) > MAX_U16:
        raise ValueError("origin is over 65535 bytes")
    if not 0 <= now < 1 << 62:
        raise ValueError("now must be microseconds since 1970")
    splitter = Splitter(min(version, 2), origin, now)
    pos, fatal = start, 0
    while True:
        end, kind, cid, fatal = _next_frame(view, pos, max_frame, LAST_TYPE[version])
        if not end:
            break
        if kind == PUBLISH:
            splitter.publish(view, pos + FRAME_BYTES, end, cid)
        elif kind in (ACK, POLL):
            splitter.ack_or_poll(kind, view, pos + FRAME_BYTES, end, cid)
        elif kind == RECORDS and sets and (set := _known_set(sets, view[pos + FRAME_BYTES : end], origin, now)):
            splitter.plain((kind, cid, *set))
        else:
            splitter.plain((kind, cid, bytes(view[pos + FRAME_BYTES : end])))
        pos = end
        if kind in (HELLO, AUTH):
            break
    splitter.flush()
    return list(splitter.items), pos, fatal


def blip_deliver(
    version: int,
    topic: bytes,
    qos: int,
    batch: Buffer,
    first: int,
    last: int,
    first_tag: int,
    ids: bytes,
    now: int,
) -> tuple[bytes, int]:
    if version not in (1, 2):
        raise ValueError("BlipMQ version must be 1 or 2")
    if qos not in (0, 1):
        raise ValueError("BlipMQ QoS must be 0 or 1")
    if len(topic) > MAX_U16:
        raise ValueError("topic is over 65535 bytes")
    if not 0 <= first_tag <= MAX_U64:
        raise OverflowError("first_tag must be an unsigned 64-bit number")
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
    by_ids = qos == 0 and version == 1
    kind, fixed = (DELIVER, 11) if version == 2 else (PUBLISH, 3)
    tail = struct.pack(">H", len(topic)) + topic
    parts: list[bytes] = []
    frames = 0
    for i in range(n):
        a, b = offsets[i], offsets[i + 1]
        if not 0 <= a <= b <= limit:
            raise ValueError("batch columns do not add up: an entry lies outside its column")
        if expiries[i] and expiries[i] <= now:
            continue
        tag = 0
        if by_ids:
            if 8 * (frames + 1) > len(ids):
                raise ValueError("fewer correlation ids than frames; give one id for each record")
            (tag,) = struct.unpack_from("<Q", ids, 8 * frames)
        elif qos:
            tag = first_tag + deltas[i] - deltas[0]
            if not 0 <= tag <= MAX_U64:
                raise ValueError("delivery tag leaves the unsigned 64-bit range")
        parts.append(FRAME.pack(MIN_LENGTH + fixed + len(topic) + b - a, kind, tag))
        parts.append(struct.pack(">BQ", qos, tag) if version == 2 else bytes((qos,)))
        parts += (tail, bytes(view[where.value_data + a : where.value_data + b]))
        frames += 1
    return b"".join(parts), frames


def blip_publish(topic: bytes, qos: int, values: Sequence[bytes], first_id: int, ttl_ms: int) -> bytes:
    if qos not in (0, 1):
        raise ValueError("BlipMQ QoS must be 0 or 1")
    if len(topic) > MAX_U16:
        raise ValueError("topic is over 65535 bytes")
    if not 0 <= ttl_ms <= MAX_U32:
        raise OverflowError("ttl_ms must be an unsigned 32-bit number")
    if not 0 <= first_id <= MAX_U64:
        raise OverflowError("first_id must be an unsigned 64-bit number")
    if first_id and values and first_id + len(values) - 1 > MAX_U64:
        raise ValueError("correlation ids leave the unsigned 64-bit range")
    head = struct.pack(">BI", qos | TTL_BIT, ttl_ms) if ttl_ms else bytes((qos,))
    tail = head + struct.pack(">H", len(topic)) + topic
    step = 1 if first_id else 0
    parts: list[bytes] = []
    for number, value in enumerate(values):
        length = MIN_LENGTH + len(tail) + len(value)
        if length > MAX_FRAME_CEILING_BYTES:
            raise ValueError("message too large: a frame is over 32 MiB")
        parts += (FRAME.pack(length, PUBLISH, first_id + step * number), tail, value)
    return b"".join(parts)


def _parse_delivery(view: memoryview, at: int, end: int, kind: int) -> tuple[bytes, int, int] | None:
    """(topic, qos, body) of a PUBLISH or DELIVER payload sent by a server, or None if it is malformed."""
    lead = 9 if kind == DELIVER else 1
    if end - at < lead + 2 or view[at] > 1:
        return None
    qos = view[at]
    at += lead
    body = at + 2 + (view[at] << 8 | view[at + 1])
    if body > end:
        return None
    topic = bytes(view[at + 2 : body])
    try:
        topic.decode()
    except UnicodeDecodeError:
        return None
    return topic, qos, body


def blip_received(data: Buffer, start: int, max_frame: int) -> tuple[list[tuple[object, ...]], int, int]:
    view = view_of(data)
    _bounds(view, start, max_frame)
    items: list[Item] = []
    run: tuple[int, bytes] | None = None
    messages: list[tuple[int, int, bytes]] = []
    pos = start
    while True:
        end, kind, cid, fatal = _next_frame(view, pos, max_frame, MATCH)
        if not end:
            return items, pos, fatal
        if kind in (PUBLISH, DELIVER):
            got = _parse_delivery(view, pos + FRAME_BYTES, end, kind)
            if got is None:
                return items, pos, BAD_DELIVERY
            topic, qos, body = got
            if run != (kind, topic):
                run, messages = (kind, topic), []
                items.append((kind, topic, messages))
            messages.append((cid, qos, bytes(view[body:end])))
        else:
            run = None
            items.append((kind, cid, bytes(view[pos + FRAME_BYTES : end])))
        pos = end
