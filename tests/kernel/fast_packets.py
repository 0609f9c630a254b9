"""Random Fast TCP packets from one seeded source, what a split of them owes, and a reader that does what a session does.

Used by test_fast.py, test_fast_differential.py and fuzz/fast.py. Packets are those of tests/wire: no twin vouches for itself.
"""

import random
import struct
from types import ModuleType

from tests.wire import fast
from tests.wire.fast import Fields

NOW = 1_000_000
PAYLOAD_MAX = 1 << 20
MAX_U32 = (1 << 32) - 1
TOKENS = (b"", b"t", b"u" * 187, b"u" * 186 + b"v", b"w" * 255)
REFUSED = b"u" * 186 + b"v"
TOPIC_IDS = (0, 1, 0xAEFD3536, MAX_U32)
TOPICS = {1: (1, 0), 0xAEFD3536: (0, 250), MAX_U32: (4, 1 << 40)}
NAMES = (b"", b"demo", "grün".encode(), b"\xff", b"n" * 255)
SIZES = (0, 1, 2, 15, 16, 17, 33, 64, 128, 129, 300)
SAMES = (None, b"", b"t", b"u" * 187, REFUSED)  # what an empty token stands for


def origin_of(jwt: bytes) -> bytes | None:
    return None if jwt == REFUSED else b"fast:" + jwt[:3]


def in_order(single: list[Fields]) -> list[Fields]:
    """PUBLISHes between two other items in the order of their topics, each topic's own order kept: what a split owes."""
    out: list[Fields] = []
    window: list[Fields] = []
    for one in (*single, ()):
        if one and one[0] == 3:
            window.append(one)
        else:
            out += sorted(window, key=lambda fields: int(fields[2]))
            window = []
            out.append(one)
    return out[:-1]


def meant(fields: list[Fields], same: bytes | None) -> tuple[list[Fields], bytes | None]:
    """The requests with the tokens that empty ones stand for, if they stand for any; and what one behind them would."""
    out: list[Fields] = []
    for one in fields:
        if same is None or one[0] == 0x70:
            out.append(one)
            continue
        jwt = one[1] if one[1] else same
        if origin_of(jwt) is not None:
            same = jwt
        out.append((one[0], jwt, *one[2:]))
    return out, same


def expected(fields: list[Fields], same: bytes | None = None) -> list[Fields]:
    """What read_all must give for these requests."""
    out: list[Fields] = []
    for one in meant(fields, same)[0]:
        if one[0] != 3:
            out.append(one)
            continue
        _, jwt, topic_id, value = one
        if origin_of(jwt) is None:
            out.append((3, jwt, topic_id, None))
        else:
            flags, ttl = TOPICS.get(topic_id, (0, 0))
            out.append((3, jwt, topic_id, value, flags, NOW + ttl if ttl else 0, origin_of(jwt)))
    return in_order(out)


def singles(twin: ModuleType, items: list[Fields]) -> list[Fields]:
    """Items with every PUBLISH on its own."""
    out: list[Fields] = []
    for item in items:
        if item[0] != 3:
            out.append(item)
            continue
        _, jwt, topic_id, batch, count = item
        if batch is None:
            out += [(3, jwt, topic_id, None)] * count
            continue
        flags, records = struct.unpack_from("<H", batch, 12)[0], struct.unpack_from("<I", batch, 24)[0]
        assert records == count, "the batch does not hold as many records as the item says"
        out += [(3, jwt, topic_id, row[3], flags, row[5], row[6]) for row in twin.rows(batch, 0, count)]
    return out


def read_all(
    twin: ModuleType, data: bytes, cuts: list[int], same: bytes | None = None
) -> tuple[list[Fields], int, int]:
    """(single items, consumed, fatal) of a session that got data[:cut] for each rising cut, and learns tokens as asked."""
    tokens: dict[bytes, bytes | None] = {}
    out: list[Fields] = []
    position = fatal = 0
    for cut in [*cuts, len(data)]:
        while not fatal and cut >= position:
            items, position, fatal, unknown, same = twin.fast_split(
                data[:cut], position, PAYLOAD_MAX, tokens, TOPICS, NOW, same
            )
            out += singles(twin, items)
            if unknown is not None:
                assert unknown not in tokens and not fatal
                tokens[unknown] = origin_of(unknown)
            elif not items:
                break
    return in_order(out), position, fatal


def requests(r: random.Random, count: int) -> list[Fields]:
    """Fields of requests: long runs of like publishes, mixed ones, and every other type."""
    out: list[Fields] = []
    while len(out) < count:
        jwt, topic_id, size = r.choice(TOKENS), r.choice(TOPIC_IDS), r.choice(SIZES)
        kind = r.choice((3, 3, 3, 3, 3, 3, 1, 2, 5, 7, 0x70))
        if kind == 1:
            out.append((1, jwt, r.choice(NAMES), r.randrange(256)))
        elif kind == 7:
            out.append((7, jwt, topic_id, r.choice(NAMES)))
        elif kind == 0x70:
            out.append((0x70, r.randrange(256)))
        elif kind == 3:
            for _ in range(r.choice((1, 1, 2, 5, 20))):
                other = r.random() < 0.2
                out.append((3, jwt, r.choice(TOPIC_IDS) if other else topic_id, r.randbytes(size)))
        else:
            out.append((kind, jwt, topic_id))
    return out[:count]


def replies(r: random.Random, count: int) -> list[bytes]:
    out: list[bytes] = []
    while len(out) < count:
        topic_id, kind = r.choice(TOPIC_IDS), r.choice((4, 4, 4, 6, 0x7E, 0x7E, 0x7F))
        for _ in range(r.choice((1, 1, 2, 5, 20))):
            if kind == 4:
                out.append(fast.message(topic_id, r.randbytes(r.choice(SIZES))))
            elif kind == 6:
                out.append(fast.key_update(topic_id, r.choice(NAMES)))
            elif kind == 0x7E:
                out.append(fast.result(kind, r.choice((3, 3, 3, 2)), topic_id))
            else:
                out.append(fast.result(kind, r.randrange(256), topic_id, r.randrange(1 << 16), r.choice(NAMES)))
    return out[:count]
