"""Random reads of FlyMQ frames, and what a session makes of a split. Frames are of tests/wire: no twin vouches for itself."""

import random
import struct
from types import ModuleType
from typing import Any

from tests.kernel import generate
from tests.wire.flymq import fetched, frame, produce, produced, producer, text

MAX_FRAME = 1 << 20
NOW = 1_000_000
ORIGIN = b"flymq:c"
MAX_I64 = (1 << 63) - 1
TOPICS = (b"a", b"demo", b"t" * 12, b"t" * 13, "grün".encode(), b"x" * 255)
BAD_TOPICS = (b"", b"y" * 256)
PARTITIONS = (-1, -1, -1, 0, 1, 7, -2, (1 << 31) - 1, -(1 << 31))
PRODUCERS = (1, 2, MAX_I64)
BAD_PRODUCERS = (0, MAX_I64 + 1)
OTHER_OPS = (0x00, 0x02, 0x07, 0x0B, 0x70, 0xFF)


def split(k: ModuleType, data: bytes | memoryview, counts: dict[bytes, int], max_frame: int = MAX_FRAME) -> Any:
    return k.fly_split(data, 0, max_frame, counts, ORIGIN, NOW)


def split_all(k: ModuleType, data: bytes, counts: dict[bytes, int], position: int = 0) -> tuple[list[Any], int, int]:
    """What a session sees that knows these topics and resolves no other: it stops at the first unknown one."""
    items: list[Any] = []
    while True:
        got, consumed, fatal, unknown = k.fly_split(data, position, MAX_FRAME, counts, ORIGIN, NOW)
        items += got
        stuck, position = consumed == position, consumed
        if fatal or unknown is not None or stuck:
            return items, position, fatal


# -- random -----------------------------------------------------------------------------------------------------------


def record_set(r: random.Random, topic: bytes, partition: int, flags: int) -> bytes:
    """A PRODUCE_RECORDS: plain, of a producer, with a schema, or with something left over."""
    made = generate.record_set(r)
    bad = producer(r.choice(BAD_PRODUCERS), 1)
    tails = (b"", b"", b"", producer(r.choice(PRODUCERS), r.choice((0, 5))), bad, producer(0, 0) + bytes(10), b"x")
    place = struct.pack(">iI", partition, len(made) + (r.random() < 0.02))
    return frame(0x16, text(topic) + place + made + r.choice(tails), flags)


def frames(r: random.Random, count: int) -> list[bytes]:
    """Runs of PRODUCE frames, alike and mixed, keyed and idempotent, slightly wrong ones, and other operations."""
    out: list[bytes] = []
    while len(out) < count:
        topic = r.choice(TOPICS if r.random() < 0.97 else BAD_TOPICS)
        value, key, partition = generate.blob(r), r.choice((b"", b"", r.randbytes(3))), r.choice(PARTITIONS)
        producer_id, sequence = r.choice((0, 0, *PRODUCERS)), r.choice((0, 5, 0xFFFFFFFE))
        flags = r.choice((0, 1, 1, 0xE1))
        if r.random() < 0.2:
            out.append(record_set(r, topic, partition, flags))
        if r.random() < 0.05:
            out.append(frame(r.choice(OTHER_OPS), r.randbytes(r.randrange(20)), r.randrange(256)))
        for i in range(r.choice((1, 1, 2, 5, 20))):
            suffix = b""
            if producer_id:
                number = sequence + i if r.random() < 0.9 else r.randrange(10)
                suffix = producer(producer_id, number & 0xFFFFFFFF)
            if r.random() < 0.02:
                suffix = r.choice((producer(r.choice(BAD_PRODUCERS), 1), r.randbytes(r.randrange(20))))
            if r.random() < 0.02:
                flags = r.randrange(256)
            one = value if r.random() < 0.7 else generate.blob(r)
            out.append(produce(topic, one, key if r.random() < 0.8 else generate.blob(r), partition, suffix, flags))
    return out[:count]


def counts(r: random.Random) -> dict[bytes, int]:
    known = r.choice((len(TOPICS), len(TOPICS), len(TOPICS), r.randrange(len(TOPICS))))
    return {topic: r.choice((0, 1, 1, 3, 8, 1000)) for topic in r.sample(TOPICS, known)}


def replies(r: random.Random, count: int, sdk: bool) -> list[bytes]:
    out: list[bytes] = []
    for _ in range(count):
        flags = 1 if r.random() < 0.95 else r.randrange(256)
        kind = r.randrange(4)
        if kind < 2:
            numbers = (r.choice(PARTITIONS), r.getrandbits(64), r.getrandbits(64) - (1 << 63), -1, 4)
            out.append(produced(r.choice((*TOPICS, b"")), *numbers, flags))
        elif kind == 2:
            records = [(r.getrandbits(64), r.choice((b"", b"key")), generate.blob(r)) for _ in range(r.randrange(5))]
            layout = sdk if r.random() < 0.95 else not sdk
            out.append(fetched(records, r.getrandbits(64), layout, r.choice((7, 11)), flags))
        else:
            out.append(frame(r.choice((0xFF, 0x02, 0x08)), r.randbytes(r.randrange(9)), flags))
    return out
