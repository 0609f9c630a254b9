"""Random input for the kernel: valid, slightly wrong and plainly random batches and frames, from one seeded source.

Used by test_differential.py and the fuzzers. Frames are those of tests/wire, not of a twin.
"""

import random
import struct
from typing import Any

from tests.wire import blipmq
from tests.wire.records import Record, pack

MAX_U64 = (1 << 64) - 1
TOPICS = (b"a", b"demo", b"t" * 13, b"t" * 14, b"sensor/1", "grün".encode(), b"x" * 255)
BAD_TOPICS = (b"", b"a\0b", b"\xff", b"y" * 256)
SIZES = (0, 1, 2, 15, 16, 17, 31, 33, 64, 130, 300)
CIDS = (0, 1, 2, 3, MAX_U64 - 1, MAX_U64)
MAX_MUTATIONS = 4


def blob(r: random.Random) -> bytes:
    return r.randbytes(r.choice(SIZES))


def cid(r: random.Random) -> int:
    return r.choice(CIDS) if r.random() < 0.5 else r.getrandbits(64)


def publish_payload(r: random.Random, topic: bytes, value: bytes) -> bytes:
    qos = r.choice((0, 1, 1, 1)) if r.random() < 0.95 else r.randrange(256)
    ttl = b""
    if r.random() < 0.15:
        qos, ttl = qos | 0x80, r.randbytes(4)
    return bytes((qos,)) + ttl + blipmq.text(topic) + value


def deliver_payload(r: random.Random, topic: bytes, value: bytes) -> bytes:
    return bytes((r.randrange(2),)) + r.randbytes(8) + blipmq.text(topic) + value


def record_set(r: random.Random) -> bytes:
    """Of a publisher, mostly sound."""

    def one() -> Record:
        names = (b"h", b"trace", b"quintet-x" if r.random() < 0.02 else b"n")
        headers = tuple((r.choice(names), r.choice((None, b"", blob(r)))) for _ in range(r.randrange(3)))
        value = None if r.random() < 0.1 else blob(r)
        return Record(value, r.choice((None, None, b"", b"k", b"key")), headers, r.choice((None, None, 0, 5)))

    made = pack(*[one() for _ in range(r.choice((1, 1, 2, 7)))])
    return made if r.random() < 0.95 else made[: r.randrange(len(made))]


def heads(r: random.Random) -> dict[bytes, int]:
    """Targets of record sets that a connection knows, and their partitions."""
    known = r.sample(TOPICS, r.randrange(len(TOPICS) + 1))
    return {bytes((qos,)) + blipmq.text(topic): r.choice((1, 1, 3, 1000)) for topic in known for qos in (0, 1)}


def frames(r: random.Random, count: int, sets: bool = False) -> list[bytes]:
    """Some runs of frames: long ones of one topic, mixed ones, and every other type; of version 3, which has record sets."""
    out: list[bytes] = []
    while len(out) < count:
        run = r.choice((1, 1, 2, 5, 20))
        kind = r.choice((3, 3, 3, 3, 5, 5, 9, 10, 4, 6, 7, 8) + (11, 11, 11, 12) * sets)
        if r.random() < 0.01:
            kind = r.choice((1, 2, 0, 11, 255))
        topic = r.choice(TOPICS if r.random() < 0.95 else BAD_TOPICS)
        value, first = blob(r), cid(r)
        subscription = r.choice((1, 1, 2, 0, r.getrandbits(64)))
        for i in range(run):
            number = (first + i) & MAX_U64 if r.random() < 0.9 else cid(r)
            if kind == 3:
                payload = publish_payload(r, topic, value if r.random() < 0.7 else blob(r))
            elif kind == 10:
                payload = deliver_payload(r, topic, value)
            elif kind == 11:
                payload = bytes((r.choice((0, 1, 1, 2)),)) + blipmq.text(topic) + record_set(r)
            elif kind in (5, 9):
                payload = blipmq.u64(subscription) if r.random() < 0.95 else r.randbytes(r.randrange(12))
            else:
                payload = r.randbytes(r.randrange(8))
            out.append(blipmq.frame(kind, number, payload))
    return out[:count]


def mutated(r: random.Random, data: bytes) -> bytes:
    """A few wrong bytes, a cut, a doubled or a missing piece."""
    out = bytearray(data)
    for _ in range(r.randrange(1, MAX_MUTATIONS + 1)):
        if not out:
            break
        at = r.randrange(len(out))
        how = r.randrange(6)
        if how == 0:
            out[at] ^= 1 << r.randrange(8)
        elif how == 1:
            out[at] = r.choice((0, 1, 7, 8, 9, 127, 128, 255))
        elif how == 2:
            del out[at : at + r.randrange(1, 9)]
        elif how == 3:
            out[at:at] = r.randbytes(r.randrange(1, 9))
        elif how == 4:
            del out[at:]
        elif at + 4 <= len(out):
            struct.pack_into("<I", out, at, r.choice((0, 1, 0xFFFFFFFF, 1 << 31, 1 << 24)))
    return bytes(out)


def batch_columns(r: random.Random) -> dict[str, Any]:
    """Arguments for build."""
    n = r.choice((1, 1, 2, 3, 7, 8, 9, 20, 65))

    def maybe(make: Any) -> list[Any] | None:
        return [make() for _ in range(n)] if r.random() < 0.4 else None

    def nullable() -> bytes | None:
        return r.randbytes(r.randrange(20)) if r.random() < 0.8 else None

    null_headers = r.random() < 0.5

    def header() -> bytes | None:
        return None if null_headers and r.random() < 0.3 else r.randbytes(3)

    plain = r.random() < 0.5
    return {
        "values": [r.randbytes(r.randrange(20)) if plain else nullable() for _ in range(n)],
        "keys": maybe(nullable),
        "headers": maybe(lambda: [(r.randbytes(r.randrange(5)), header()) for _ in range(r.randrange(3))]),
        "timestamps": maybe(lambda: r.getrandbits(64) - (1 << 63)),
        "expiries": maybe(lambda: r.choice((0, 0, 50, 100, 150))),
        "origin": b"o:%d" % r.randrange(4),
        "flags": r.choice((0, 0, 0, 1)),
    }
