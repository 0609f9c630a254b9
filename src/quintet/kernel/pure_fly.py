"""FlyMQ frames in pure Python: splitting reads, packing replies, fetches and requests. Same results as the native twin.

Only bytes to items and back: what an operation means for a session (rights, topics, answers) is decided by the protocol,
not here. No I/O, no clock, no state.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import (
    KEY_NULLS,
    KEYS,
    Head,
    Layout,
    Records,
    data_end,
    fresh_head,
    head_of,
    ints,
    locate,
    pack,
    view_of,
)
from quintet.kernel.pure_crc import fnv1a
from quintet.kernel.pure_records import records_split

#   0      1         2    3       4        8
#  |0xAF  |version  |op  |flags  |length  |payload...      big-endian; length counts the payload only
FRAME = struct.Struct(">BBBBI")
FRAME_BYTES = FRAME.size
MAGIC, VERSION = 0xAF, 1
MAX_FRAME_CEILING_BYTES = 32 * 1024 * 1024
# A stored record of the longest frame comes back with a few bytes more around it.
MAX_REPLY_CEILING_BYTES = 64 * 1024 * 1024
MAX_FETCH_CEILING_BYTES = 1024 * 1024 * 1024
MAX_TOPIC_BYTES = 255
# A longer payload is handed out as it is, without a copy.
LARGE_PAYLOAD_BYTES = 1024 * 1024
# A run ends here, so a group's batch stays far below the batch limit of 64 MiB.
MAX_RUN_BYTES = 16 * 1024 * 1024
# A group's number must fit the u16 of the run's order.
MAX_RUN_GROUPS = 65_535
MAX_U8 = 0xFF
MAX_U16 = 0xFFFF
MAX_U32 = 0xFFFFFFFF
MAX_I32 = (1 << 31) - 1
MAX_I64 = (1 << 63) - 1
MICROSECONDS_PER_MILLISECOND = 1000

PRODUCE, FETCH, FETCH_BINARY, PRODUCE_RECORDS = 0x01, 0x07, 0x0B, 0x16
COMPRESSION_BITS = 0x0E
# "Choose for me": by the key if there is one.
AUTO = -1

BAD_MAGIC, BAD_VERSION, LONG_LENGTH, BAD_REPLY = 1, 2, 3, 4

Item = tuple[object, ...]

_PRODUCER, _PRODUCER_AT = struct.Struct("<QI"), 48  # of a batch


def _next_frame(view: memoryview, pos: int, max_frame: int) -> tuple[int, int, int, int]:
    """(end, op, flags, fatal) of the frame at pos. end 0: none yet. Each field is judged as soon as it is in."""
    left = len(view) - pos
    if left >= 1 and view[pos] != MAGIC:
        return 0, 0, 0, BAD_MAGIC
    if left >= 2 and view[pos + 1] != VERSION:
        return 0, 0, 0, BAD_VERSION
    if left < FRAME_BYTES:
        return 0, 0, 0, 0
    _, _, op, flags, length = FRAME.unpack_from(view, pos)
    if length > max_frame:
        return 0, 0, 0, LONG_LENGTH
    if left - FRAME_BYTES < length:
        return 0, 0, 0, 0
    return pos + FRAME_BYTES + length, op, flags, 0


def _bounds(view: memoryview, start: int, max_frame: int, ceiling: int) -> None:
    if not 0 <= start <= len(view):
        raise ValueError("start is outside the buffer")
    if not 1 <= max_frame <= ceiling:
        raise ValueError("max_frame must be 1 byte to 32 MiB, or to 64 MiB for a client")


def _small(name: str, number: int, low: int, high: int) -> None:
    if not low <= number <= high:
        raise OverflowError(f"{name} must be {low} to {high}")


# -- produces ---------------------------------------------------------------------------------------------------------


class Produce(NamedTuple):
    topic: bytes
    key: bytes
    value: bytes
    partition: int
    producer_id: int  # 0: without the suffix of idempotent producers
    sequence: int


def _parse_produce(view: memoryview, at: int, end: int) -> Produce | None:
    """The PRODUCE payload in view[at:end], or None if its fields do not add up.

    0          2
    |topic_len |topic...|key_len u32|key...|value_len u32|value...|partition i32|producer_id u64, sequence u32?|
    """
    if end - at < 2:
        return None
    topic_size = view[at] << 8 | view[at + 1]
    topic = at + 2
    key = topic + topic_size + 4
    if not 1 <= topic_size <= MAX_TOPIC_BYTES or key > end:
        return None
    value = key + int.from_bytes(view[key - 4 : key], "big") + 4
    if value > end:
        return None
    tail = value + int.from_bytes(view[value - 4 : value], "big")
    producer_id = sequence = 0
    if end - tail == 16:
        producer_id, sequence = struct.unpack_from(">QI", view, tail + 4)
        if not 1 <= producer_id <= MAX_I64:
            return None
    elif end - tail != 4:
        return None
    return Produce(
        bytes(view[topic : topic + topic_size]),
        bytes(view[key : value - 4]),
        bytes(view[value:tail]),
        int.from_bytes(view[tail : tail + 4], "big", signed=True),
        producer_id,
        sequence,
    )


class RecordSet(NamedTuple):
    """A PRODUCE_RECORDS without schema, delay and transaction."""

    topic: bytes
    partition: int
    data: memoryview
    producer_id: int  # 0: without an idempotent producer
    sequence: int


def _parse_records(payload: memoryview) -> RecordSet | None:
    """The PRODUCE_RECORDS of this payload, or None: its fields do not add up, or it has more of them.

    0          2
    |topic_len |topic...|partition i32|set_len u32|set...|producer_id u64, sequence u32?|
    """
    if len(payload) < 2:
        return None
    topic_end = 2 + (payload[0] << 8 | payload[1])
    at = topic_end + 8
    if at > len(payload):
        return None
    partition, size = struct.unpack_from(">iI", payload, topic_end)
    producer_id = sequence = 0
    if len(payload) - at - size == 12:
        producer_id, sequence = struct.unpack_from(">QI", payload, at + size)
    elif len(payload) - at != size:
        return None
    if producer_id > MAX_I64:
        return None
    return RecordSet(bytes(payload[2:topic_end]), partition, payload[at : at + size], producer_id, sequence)


def _known_set(payload: memoryview, counts: dict[bytes, int]) -> RecordSet | None:
    """A small record set whose topic is known and has its partition. None: Python looks at it."""
    found = _parse_records(payload) if len(payload) <= LARGE_PAYLOAD_BYTES else None
    return found if found is not None and AUTO <= found.partition < _count(counts, found.topic) else None


def _count(counts: dict[bytes, int], topic: bytes) -> int:
    """Its partitions; AUTO, which no partition is below: nobody knows it, or it was refused."""
    count = counts.get(topic, 0)
    if not 0 <= count <= MAX_I32:
        raise ValueError("a topic has 0 (refused) to 2**31 - 1 partitions")
    return count or AUTO


def _split_set(found: RecordSet, count: int, origin: bytes, now: int) -> Item | None:
    """Its groups and order, as those of a run. None: it is refused, and Python says why."""
    split = records_split(found.data, found.partition, count, origin, now)
    if len(split) == 3 or (found.producer_id and len(split[0]) > 1):
        return None
    if found.producer_id:
        _PRODUCER.pack_into(split[0][0][1], _PRODUCER_AT, found.producer_id, found.sequence)
    return PRODUCE_RECORDS, [(found.topic, *group) for group in split[0]], split[1]


class Group:
    """Records of one topic, partition and producer, on their way into one batch."""

    __slots__ = ("keys", "number", "partition", "producer_id", "sequence", "topic", "values")

    def __init__(self, number: int, topic: bytes, partition: int, producer_id: int, sequence: int) -> None:
        self.number = number
        self.topic = topic
        self.partition = partition
        self.producer_id = producer_id
        self.sequence = sequence
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []

    def item(self, origin: bytes) -> tuple[bytes, int, bytearray, int]:
        n = len(self.values)
        columns = 0
        if any(self.keys):
            columns = KEYS | (KEY_NULLS if None in self.keys else 0)
        head = fresh_head(0, n)._replace(producer_id=self.producer_id, sequence=self.sequence)
        batch = pack(Records(self.values, self.keys, None, None, None, [origin], None, None), columns, head)
        return self.topic, self.partition, batch, n


class Collector:
    """Collects the records of a run into their groups."""

    def __init__(self, counts: dict[bytes, int]) -> None:
        self.counts = counts
        self.groups: list[Group] = []
        self.latest: dict[tuple[bytes, int, int], Group] = {}
        self.order: list[int] = []

    def target(self, got: Produce) -> tuple[int, int] | None:
        """(partition, producer_id) that a record is grouped under, or None if nobody knows the topic."""
        count = self.counts.get(got.topic)
        if count is None:
            return None
        if not 0 <= count <= MAX_I32:
            raise ValueError("a topic has 0 (refused) to 2**31 - 1 partitions")
        if count == 0:
            return AUTO, 0
        if got.partition == AUTO and count == 1 and (got.key or not got.producer_id):
            return 0, got.producer_id
        if got.partition != AUTO or not got.key:
            return got.partition, got.producer_id
        return fnv1a(got.key) % count, got.producer_id

    def add(self, got: Produce, partition: int, producer_id: int) -> bool:
        """False if there is no room for another group."""
        group = self.latest.get((got.topic, partition, producer_id))
        if group is None or (producer_id and group.sequence + len(group.values) != got.sequence):
            if len(self.groups) == MAX_RUN_GROUPS:
                return False
            sequence = got.sequence if producer_id else 0
            group = Group(len(self.groups), got.topic, partition, producer_id, sequence)
            self.groups.append(group)
            self.latest[got.topic, partition, producer_id] = group
        group.keys.append(got.key or None)
        group.values.append(got.value)
        self.order.append(group.number)
        return True


def fly_split(
    data: Buffer, start: int, max_frame: int, counts: dict[bytes, int], origin: bytes, now: int
) -> tuple[list[tuple[object, ...]], int, int, bytes | None]:
    view = view_of(data)
    _bounds(view, start, max_frame, MAX_FRAME_CEILING_BYTES)
    if len(origin) > MAX_U16:
        raise ValueError("origin is over 65535 bytes")
    if not 0 <= now < 1 << 62:
        raise ValueError("now must be microseconds since 1970")
    run = Collector(counts)
    pos = start
    generic: Item | None = None
    unknown: bytes | None = None
    while True:
        end, op, flags, fatal = _next_frame(view, pos, max_frame)
        if not end:
            break
        payload = view[pos + FRAME_BYTES : end]
        large = len(payload) > LARGE_PAYLOAD_BYTES
        plain = op == PRODUCE and not flags & COMPRESSION_BITS and not large
        got = _parse_produce(view, pos + FRAME_BYTES, end) if plain else None
        if got is None:
            if op == PRODUCE_RECORDS and not flags & COMPRESSION_BITS and (found := _known_set(payload, counts)):
                if run.order:
                    break  # a set is a run of its own
                generic = _split_set(found, counts[found.topic], origin, now)
            generic = generic or (op, flags, payload if large else bytes(payload))
            pos = end
            break
        if pos > start and end - start > MAX_RUN_BYTES:
            break
        target = run.target(got)
        if target is None:
            unknown = got.topic
            break
        if not run.add(got, *target):
            break
        pos = end
    items: list[Item] = []
    if run.order:
        groups = [group.item(origin) for group in run.groups]
        items.append((PRODUCE, groups, struct.pack(f"<{len(run.order)}H", *run.order)))
    if generic:
        items.append(generic)
    return items, pos, fatal, unknown


def fly_split_one(
    payload: Buffer, counts: dict[bytes, int], origin: bytes
) -> tuple[list[tuple[bytes, int, bytearray, int]], bytes] | bytes | None:
    view = view_of(payload)
    if len(view) > MAX_FRAME_CEILING_BYTES:
        raise ValueError("a payload has at most 32 MiB")
    if len(origin) > MAX_U16:
        raise ValueError("origin is over 65535 bytes")
    got = _parse_produce(view, 0, len(view))
    if got is None:
        return None
    run = Collector(counts)
    target = run.target(got)
    if target is None:
        return got.topic
    run.add(got, *target)
    return [run.groups[0].item(origin)], b"\0\0"


# -- replies ----------------------------------------------------------------------------------------------------------


class Sizes:
    """Where the entries of a batch's keys and values lie, each checked when it is asked for."""

    __slots__ = ("head", "key_ends", "key_limit", "value_ends", "value_limit", "view", "where")

    def __init__(self, batch: Buffer) -> None:
        self.view = view_of(batch)
        self.head: Head = head_of(self.view, 0)
        self.where: Layout = locate(self.view, 0, self.head)
        n, w = self.head.records, self.where
        self.value_ends = ints(self.view, "i", w.value_offsets, n + 1)
        self.value_limit = data_end(self.view, w.value_offsets, 0, n)
        self.key_ends = ints(self.view, "i", w.key_offsets, n + 1) if w.key_offsets else ()
        self.key_limit = data_end(self.view, w.key_offsets, 0, n) if w.key_offsets else 0

    @staticmethod
    def _inside(ends: tuple[int, ...], limit: int, i: int) -> tuple[int, int]:
        a, b = ends[i], ends[i + 1]
        if not 0 <= a <= b <= limit:
            raise ValueError("batch columns do not add up: an entry lies outside its column")
        return a, b

    def value(self, i: int) -> bytes:
        a, b = self._inside(self.value_ends, self.value_limit, i)
        return bytes(self.view[self.where.value_data + a : self.where.value_data + b])

    def key(self, i: int) -> bytes:
        """Empty if there is none; a null entry holds no bytes."""
        if not self.key_ends:
            return b""
        a, b = self._inside(self.key_ends, self.key_limit, i)
        return bytes(self.view[self.where.key_data + a : self.where.key_data + b])

    def key_size(self, i: int) -> int:
        bitmap = self.where.key_bitmap
        if not self.key_ends or (bitmap and not self.view[bitmap + (i >> 3)] >> (i & 7) & 1):
            return -1
        return len(self.key(i))


def _metadata(topic: bytes, partition: int, batch: Buffer, records: int, flags: int) -> list[bytes]:
    """The replies to the first records of a stored batch."""
    sizes = Sizes(batch)
    if records > sizes.head.records:
        raise ValueError("order names a group more often than its batch has records")
    lead = struct.pack(">H", len(topic)) + topic + struct.pack(">i", partition)
    head = FRAME.pack(MAGIC, VERSION, PRODUCE, flags, len(lead) + 24) + lead
    time = sizes.head.timestamp // MICROSECONDS_PER_MILLISECOND
    base = sizes.head.base_offset
    return [head + struct.pack(">Qqii", base + i, time, sizes.key_size(i), len(sizes.value(i))) for i in range(records)]


def fly_produced(groups: Sequence[tuple[bytes, int, Buffer | None, bytes]], order: bytes, flags: int) -> bytes:
    _small("flags", flags, 0, MAX_U8)
    if len(order) % 2:
        raise ValueError("order must be whole u16 group numbers")
    numbers = struct.unpack(f"<{len(order) // 2}H", order)
    if numbers and max(numbers) >= len(groups):
        raise ValueError("order names a group that is not there")
    records = [0] * len(groups)
    for number in numbers:
        records[number] += 1
    replies = []
    for (topic, partition, batch, error), n in zip(groups, records, strict=True):
        if len(topic) > MAX_U16:
            raise ValueError("topic is over 65535 bytes")
        _small("partition", partition, -MAX_I32 - 1, MAX_I32)
        replies.append(iter([error] * n if batch is None else _metadata(topic, partition, batch, n, flags)))
    return b"".join(next(replies[number]) for number in numbers)


def fly_fetch(
    batches: Sequence[Buffer],
    offset: int,
    max_records: int,
    max_bytes: int,
    now: int,
    op: int,
    flags: int,
    sdk: bool,
) -> tuple[bytes, int, int]:
    _small("op", op, 0, MAX_U8)
    _small("flags", flags, 0, MAX_U8)
    _small("offset", offset, 0, MAX_I64)
    _small("max_records", max_records, 0, MAX_I64)
    if not 0 <= max_bytes <= MAX_FETCH_CEILING_BYTES:
        raise ValueError("max_bytes must be 0 to 1 GiB")
    parts: list[bytes] = []
    count, size, next_offset, wanted = 0, 12, offset, True
    for batch in batches:
        sizes = Sizes(batch)
        head, where, n = sizes.head, sizes.where, sizes.head.records
        deltas = ints(sizes.view, "I", where.deltas, n) if where.deltas else range(n)
        expiries = ints(sizes.view, "q", where.expiries, n) if where.expiries else None
        first = next((i for i in range(n) if head.base_offset + deltas[i] >= offset), n)
        looked = 0
        for i in range(first, n):
            wanted = count < max_records
            if not wanted:
                break
            at = head.base_offset + deltas[i]
            if expiries is None or not expiries[i] or expiries[i] > now:
                record = _record(at, sizes.key(i), sizes.value(i), sdk)
                wanted = not count or size + len(record) <= max_bytes
                if not wanted:
                    break
                parts.append(record)
                count += 1
                size += len(record)
            looked = at + 1
        next_offset = max(next_offset, looked)
        if not wanted:
            break
        next_offset = max(next_offset, head.base_offset + head.span)
    behind = struct.pack(">Q", next_offset)
    front = FRAME.pack(MAGIC, VERSION, op, flags, size) + struct.pack(">I", count)
    whole = (front, behind, *parts) if sdk else (front, *parts, behind)
    return b"".join(whole), count, next_offset


def _record(offset: int, key: bytes, value: bytes, sdk: bool) -> bytes:
    """One record of a FETCH reply.

    document:  |key_len u32|key...|value_len u32|value...|offset u64|
    SDKs:      |offset u64|key_len u32|key...|value_len u32|value...|
    """
    body = b"".join((struct.pack(">I", len(key)), key, struct.pack(">I", len(value)), value))
    place = struct.pack(">Q", offset)
    return place + body if sdk else body + place


# -- the client's side ------------------------------------------------------------------------------------------------


def fly_produce(
    topic: bytes,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes],
    partition: int,
    producer_id: int,
    first_sequence: int,
    flags: int,
) -> bytes:
    _small("flags", flags, 0, MAX_U8)
    _small("partition", partition, -MAX_I32 - 1, MAX_I32)
    _small("first_sequence", first_sequence, 0, MAX_U32)
    if len(topic) > MAX_U16:
        raise ValueError("topic is over 65535 bytes")
    if not 0 <= producer_id <= MAX_I64:
        raise ValueError("producer_id must be 0 (none) to 2**63 - 1")
    if keys is not None and len(keys) != len(values):
        raise ValueError("keys and values differ in length; give each record one entry in both")
    if producer_id and first_sequence + len(values) > MAX_U32 + 1:
        raise ValueError("sequences leave the unsigned 32-bit range")
    lead = struct.pack(">H", len(topic)) + topic
    parts: list[bytes] = []
    for i, value in enumerate(values):
        key = (keys[i] if keys is not None else None) or b""
        tail = struct.pack(">i", partition)
        if producer_id:
            tail += struct.pack(">QI", producer_id, first_sequence + i)
        length = len(lead) + 8 + len(key) + len(value) + len(tail)
        if length > MAX_FRAME_CEILING_BYTES:
            raise ValueError("message too large: a frame is over 32 MiB")
        parts += (FRAME.pack(MAGIC, VERSION, PRODUCE, flags, length), lead, struct.pack(">I", len(key)), key)
        parts += (struct.pack(">I", len(value)), value, tail)
    return b"".join(parts)


def _parse_metadata(payload: bytes) -> tuple[bytes, int, int, int] | None:
    """(topic, partition, offset, timestamp in milliseconds), or None if the payload does not add up."""
    size = int.from_bytes(payload[:2], "big")
    if len(payload) != 2 + size + 28:
        return None
    return (payload[2 : 2 + size], *struct.unpack_from(">iQq", payload, 2 + size))


def _parse_fetch(payload: bytes, sdk: bool) -> tuple[list[tuple[int, bytes | None, bytes]], int] | None:
    """(records, next_offset), or None if the payload does not add up."""
    records: list[tuple[int, bytes | None, bytes]] = []
    try:
        (count,) = struct.unpack_from(">I", payload)
        at, offset, next_offset = 4, 0, 0
        if sdk:
            (next_offset,) = struct.unpack_from(">Q", payload, at)
            at += 8
        for _ in range(count):
            if sdk:
                (offset,) = struct.unpack_from(">Q", payload, at)
                at += 8
            (size,) = struct.unpack_from(">I", payload, at)
            key = payload[at + 4 : at + 4 + size]
            at += 4 + size
            (size,) = struct.unpack_from(">I", payload, at)
            value = payload[at + 4 : at + 4 + size]
            at += 4 + size
            if not sdk:
                (offset,) = struct.unpack_from(">Q", payload, at)
                at += 8
            if at > len(payload):
                return None
            records.append((offset, key or None, value))
        if not sdk:
            (next_offset,) = struct.unpack_from(">Q", payload, at)
            at += 8
    except struct.error:
        return None
    return (records, next_offset) if at == len(payload) else None


def fly_received(data: Buffer, start: int, max_frame: int, sdk: bool) -> tuple[list[tuple[object, ...]], int, int]:
    view = view_of(data)
    _bounds(view, start, max_frame, MAX_REPLY_CEILING_BYTES)
    items: list[Item] = []
    run: list[tuple[bytes, int, int, int]] | None = None
    pos = start
    while True:
        end, op, flags, fatal = _next_frame(view, pos, max_frame)
        if not end:
            return items, pos, fatal
        payload = bytes(view[pos + FRAME_BYTES : end])
        if op == PRODUCE and not flags & COMPRESSION_BITS:
            reply = _parse_metadata(payload)
            if reply is None:
                return items, pos, BAD_REPLY
            if run is None:
                run = []
                items.append((PRODUCE, run))
            run.append(reply)
        elif op in (FETCH, FETCH_BINARY) and not flags & COMPRESSION_BITS:
            run = None
            got = _parse_fetch(payload, sdk)
            if got is None:
                return items, pos, BAD_REPLY
            items.append((op, *got))
        else:
            run = None
            items.append((op, flags, payload))
        pos = end
