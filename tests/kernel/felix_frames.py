"""Random reads of Felix frames, and what a split of a read owes. Shared with fuzz/felix.py.

No twin vouches for itself: frames are those of tests/wire, and results are compared as flat lists in which neighbouring batches
without acknowledgement are record by record, so that every chunking of a read must give the same.
"""

import base64
import json
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tests.kernel import generate
from tests.wire import felix

NOW = 1_000_000
FRAME_MAX = 1 << 20
MAX_U64 = (1 << 64) - 1
KNOWN = 0x01FF
KEY_FLAG = 0x0100  # beside it, 0x0040 means packed
RECORD_KEYS = (None, None, b"", b"k", b"\xff" * 300)
ORIGIN = b"felix:c"
TENANTS = ("t1", "", "grün", "t" * 300)
TARGETS = [(t, "default", "demo") for t in TENANTS] + [("t1", "default", "other"), ("t1", "defaultd", "emo")]
IDS = (0, 1, 7, MAX_U64)
# Flags on which a split acts, and some that no client may send.
OTHER_FLAGS = (0x0002, 0x0004, 0x0008, 0x0010, 0x0020, 0x0024, 0x0003, 0x0080, 0x0040, 0x0100, 0x8001, 0x8009, 0xFFFF)
DEPTH = 6

Fields = tuple[Any, ...]


def frame(flags: int, payload: bytes, **wrong: int) -> bytes:
    return felix.frame(payload, flags, **wrong)


def target(tenant: str = "t1", namespace: str = "default", stream: str = "demo") -> bytes:
    return felix.names(tenant, namespace, stream)


def key_part(key: bytes | None) -> bytes:
    return b"" if key is None else felix.names(key)


def unacked(where: bytes, *values: bytes, key: bytes | None = None, key_flag: int = KEY_FLAG) -> bytes:
    flags = 0x0001 if key is None else 0x0001 | key_flag
    return frame(flags, key_part(key) + where + felix.values(*values))


def acked(
    where: bytes, request_id: int, ack_mode: int, *values: bytes, key: bytes | None = None, key_flag: int = KEY_FLAG
) -> bytes:
    flags = 0x0009 if key is None else 0x0009 | key_flag
    lead = struct.pack(">QB", request_id, ack_mode) + key_part(key)
    return frame(flags, lead + where + felix.values(*values))


def keyed_part(events: list[tuple[bytes | None, bytes]]) -> bytes:
    out = struct.pack(">I", len(events))
    for key, value in events:
        out += struct.pack(">I", 0 if key is None else len(key) + 1) + (key or b"")
        out += struct.pack(">I", len(value)) + value
    return out


# -- reads and what they owe ------------------------------------------------------------------------------------------

#  (1, target, values, request_id, ack_mode, key)   (0, payload)   (3, flags, payload)   (4, flags, payload)


def wire(one: Fields) -> bytes:
    if one[0] == 1:
        _, where, values, request_id, ack_mode, key = one
        return acked(where, request_id, ack_mode, *values, key=key) if ack_mode else unacked(where, *values, key=key)
    return frame(0, one[1]) if one[0] == 0 else frame(one[1], one[2])


def requests(r: random.Random, count: int) -> list[Fields]:
    out: list[Fields] = []
    while len(out) < count:
        kind, where = r.randrange(20), target(*r.choice(TARGETS))
        for _ in range(r.choice((1, 1, 2, 5))):
            values = [generate.blob(r) for _ in range(r.choice((0, 1, 1, 3, 9)))]
            if kind < 10:
                out.append((1, where, values, -1, 0, r.choice(RECORD_KEYS)))
            elif kind < 15:
                out.append((1, where, values, r.choice(IDS), r.randrange(1, 3), r.choice(RECORD_KEYS)))
            elif kind < 18:
                out.append((0, json_text(r)))
            elif kind < 19:
                out.append((4, r.choice((0x0041, 0x0049, 0x0141, 0x0149)), generate.blob(r)))
            else:
                out.append((3, r.choice(OTHER_FLAGS), generate.blob(r)))
    return out[:count]


def expected(fields: list[Fields]) -> list[Fields]:
    out: list[Fields] = []
    for one in fields:
        if one[0] == 1 and not one[4]:
            out += (("record", one[1], value, one[5]) for value in one[2])
        else:
            out.append(one if one[0] != 3 else (3, one[1], acked_id(one[1], one[2])))
    return out


def acked_id(flags: int, payload: bytes) -> int:
    """What a frame with flags that nobody knows is still known by."""
    return int.from_bytes(payload[:8], "big") if flags & 9 == 9 and len(payload) >= 8 else -1


def flat(twin: Any, items: list[Fields]) -> list[Fields]:
    """The items of a split as `expected` has them."""
    out: list[Fields] = []
    for item in items:
        if item[0] != 1:
            out.append(item)
            continue
        _, where, batch, count, request_id, ack_mode, *rest = item
        key = rest[0] if rest else None
        rows = twin.rows(batch, 0, count) if count else []
        if (batch is None) is not (count == 0) or any(row[6] != ORIGIN or row[5] for row in rows):
            raise AssertionError("a batch without records, or with another origin or an expiry")
        if any(row[2] != key for row in rows):
            raise AssertionError("a record without the key of its batch")
        if ack_mode:
            out.append((1, where, [row[3] for row in rows], request_id, ack_mode, key))
        elif request_id != -1:
            raise AssertionError("a request_id without acknowledgement")
        else:
            out += (("record", where, row[3], key) for row in rows)
    return out


def read_all(
    twin: Any, data: bytes, cuts: list[int], known: int = KNOWN, strict: bool = True, key_flag: int = KEY_FLAG
) -> tuple[list[Fields], int, int]:
    """(flat items, consumed, fatal) of a read that comes in pieces."""
    out: list[Fields] = []
    at = 0
    for stop in (*cuts, len(data)):
        items, at, fatal = twin.felix_split(data[:stop], at, FRAME_MAX, known, strict, ORIGIN, NOW, key_flag)
        out += flat(twin, items)
        if fatal:
            return out, at, fatal
    return out, at, 0


def replies(r: random.Random, count: int) -> list[bytes]:
    """Frames of a server."""
    out = []
    for _ in range(count):
        kind, values = r.randrange(10), felix.values(*(generate.blob(r) for _ in range(r.randrange(4))))
        if kind < 5:
            flags = r.choice((0x0002, 0x0004, 0x0022, 0x0024))
            lead = b"".join(struct.pack(">Q", r.choice(IDS)) for bit in (0x0002, 0x0020) if flags & bit)
            out.append(frame(flags, lead + values))
        elif kind < 6:
            flags = r.choice((0x0104, 0x0122, 0x0124))
            lead = b"".join(struct.pack(">Q", r.choice(IDS)) for bit in (0x0002, 0x0020) if flags & bit)
            out.append(
                frame(
                    flags, lead + keyed_part([(r.choice(RECORD_KEYS), generate.blob(r)) for _ in range(r.randrange(4))])
                )
            )
        elif kind < 7:
            out.append(felix.ack(r.randrange(2), r.choice(IDS), r.choice((b"", b"stream not found", "grün".encode()))))
        elif kind < 9:
            out.append(frame(0, json_text(r)))
        else:
            out.append(frame(r.choice((0x0044, 0x0064, 0x0144, 0x0164)), generate.blob(r)))
    return out


# -- JSON -------------------------------------------------------------------------------------------------------------

PIECES = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"a":', b'"\\u0061":', b'"b":', b'""', b'"a"', b" ", b"\t\r\n", b"0", b"-0"),
    *(b"1.5e+3", b"-", b"01", b"1.", b".5", b"1e", b"true", b"false", b"null", b"nul", b"NaN", b"\\", b'"\\', b'\\"'),
    *(
        b'"\\ud83d\\ude00"',
        b'"\\ud83d"',
        b'"\\ude00"',
        b'"\\ud83d\\n"',
        b'"\\n\\t\\/\\b\\f\\r\\\\"',
        b'"\\x"',
        b'"\\u12g4"',
    ),
    *(b"\xff", b"\x00", b"\xed\xa0\x80", "ü😀".encode(), "\ufeff".encode(), b"\x0c", b"\xa0", b"'a'"),
)


def json_value(r: random.Random, depth: int) -> object:
    if depth == 0 or r.random() < 0.4:
        return r.choice((None, True, 0, -1.5e300, 2**70, "", "a", 'q"\\/\n', "grün😀", "x" * 40))
    if r.random() < 0.5:
        return [json_value(r, depth - 1) for _ in range(r.randrange(4))]
    # Over and under the number of keys from which the native twin hashes them.
    names = [f"k{i}" for i in range(r.choice((0, 1, 3, 12)))] + ["a", "ü", '"'][: r.randrange(4)]
    return {name: json_value(r, depth - 1) for name in names}


def json_text(r: random.Random) -> bytes:
    value = {str(i): json_value(r, r.randrange(DEPTH + 1)) for i in range(r.randrange(4))}
    indent = r.choice((None, None, 1))
    return json.dumps(value, ensure_ascii=r.random() < 0.5, indent=indent).encode()


def json_soup(r: random.Random) -> bytes:
    """Nearly JSON: pieces in any order, or a text with a few wrong or doubled ones."""
    if r.random() < 0.3:
        return b"{" + b"".join(r.choice(PIECES) for _ in range(r.randrange(8))) + b"}"
    out = bytearray(json_text(r))
    for _ in range(r.randrange(3)):
        at = r.randrange(len(out) + 1)
        out[at : at + r.randrange(3)] = r.choice(PIECES)
    return bytes(out)


class Refused(Exception):
    """A text that is not JSON."""


def _constant(name: str) -> None:
    raise Refused(name)


def json_faults(data: bytes, depth_max: int) -> set[int]:
    """The verdicts json_fault may give, found with the json module; 0 alone if nothing is wrong."""
    duplicate = False

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal duplicate
        for name, _ in found:
            name.encode()  # half of a surrogate pair is a ValueError
        duplicate = duplicate or len(dict(found)) < len(found)
        return {str(i): value for i, (_, value) in enumerate(found)}

    try:
        value = json.loads(
            data.decode(), object_pairs_hook=pairs, parse_constant=_constant, parse_int=float, parse_float=float
        )
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, Refused):
        # What is wrong first is named: behind a doubled key or too many brackets nobody looks.
        return {1, 2, 3}
    if not isinstance(value, dict):
        return {1}
    found = {code for code, is_so in ((2, duplicate), (3, _depth(value) > depth_max)) if is_so}
    return found or {0}


def _depth(value: object) -> int:
    """How deep it is, without recursion: level by level."""
    level: list[Any] = [value]
    depth = 0
    while True:
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return depth
        depth += 1
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]


# -- acknowledged publishes -------------------------------------------------------------------------------------------


def publish_fields(r: random.Random, value: bytes) -> dict[str, Any]:
    names = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
    asks = {"request_id": r.choice(IDS), "ack": r.choice(("per_message", "per_batch"))}
    return {"type": "publish", **names, "payload": base64.b64encode(value).decode(), **asks}


def acked_publish(r: random.Random) -> tuple[bytes, list[bytes], int, bool]:
    """A frame to the target of `target()`: its bytes, its values, its request_id, whether it is JSON."""
    if r.random() < 0.5:
        values, request_id = [generate.blob(r) for _ in range(r.randrange(1, 4))], r.choice(IDS)
        return acked(target(), request_id, r.choice((1, 2)), *values), values, request_id, False
    value = generate.blob(r)
    fields = publish_fields(r, value)
    return frame(0, get_text(r, fields)), [value], fields["request_id"], True


def odd_publish(r: random.Random) -> bytes:
    """A frame that is no plain acknowledged publish to the target of `target()`: the session decides."""
    fields = publish_fields(r, b"value")
    changes: tuple[tuple[str, Any], ...] = (
        ("payload", "dmFsdWU"), ("payload", "dmFsdWV="), ("payload", "dmFs\ndWU="), ("payload", "dmFs-_U="), ("payload", "===="),
        ("payload", "dm=="), ("payload", None), ("payload", 7), ("ack", "none"), ("ack", None), ("ack", "all"), ("key", "a2V5"),
        ("headers", []), ("more", 1), ("type", "publish_batch"), ("stream", "a\"b"), ("stream", "other"), ("request_id", "7"),
        ("request_id", -1), ("request_id", 1 << 64), ("request_id", 1.5), ("request_id", None),
    )  # fmt: skip
    name, value = r.choice(changes)
    text, left_out = json.dumps({**fields, name: value}).encode(), r.choice(list(fields))
    missing = json.dumps({one: fields[one] for one in fields if one != left_out}).encode()
    return r.choice(
        (
            frame(0, text),
            frame(0, text),
            frame(0, missing),
            frame(0, json.dumps(fields).encode() + b"x"),
            unacked(target(), b"v"),
            acked(target(), 1, 1),
            acked(target(), 1, 1, b"v", key=b"k"),
            acked(target(), 1, 3, b"v"),
            acked(target(stream="other"), 1, 1, b"v"),
            frame(r.choice(OTHER_FLAGS), b"payload"),
        )
    )


# -- gets of a cache --------------------------------------------------------------------------------------------------

SCOPES = (b"", b"t1\0default\0primary", b"t1\0default\0other", "grün\0\0".encode())
KEYS = ("a", "demo-key", "", "grün😀", "k" * 100, "sp ace")


def memory(k: Any, rows: Mapping[bytes, Sequence[Any]]) -> Any:
    """A cache of twin `k` with these rows: value, expires, used, version."""
    made = k.CacheMemory()
    for key, row in rows.items():
        made[key] = tuple(row)
    return made


def entries(r: random.Random) -> dict[bytes, dict[bytes, tuple[bytes, int, bool, int]]]:
    return {
        scope: {
            key.encode(): (generate.blob(r), r.choice((0, 0, NOW - 1, NOW, NOW + 1)), False, r.choice(IDS))
            for key in KEYS
            if r.random() < 0.7
        }
        for scope in SCOPES[: r.randrange(2, 5)]
    }


def get_fields(r: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": "cache_get"}
    scope = r.choice(SCOPES).decode()
    if scope:
        fields.update(zip(("tenant_id", "namespace", "cache"), scope.split("\0"), strict=True))
    fields["key"] = r.choice(KEYS)
    if r.random() < 0.8:
        fields["request_id"] = r.choice((*IDS, "", "r-1", "ü"))
    return fields


def odd_get(r: random.Random) -> bytes:
    """A get that no run may take: the session decides."""
    fields = get_fields(r)
    name, value = r.choice(
        (
            *(
                ("key", 'a"b'),
                ("key", "a\\b"),
                ("key", "a\n"),
                ("key", 7),
                ("key", None),
                ("type", "cache_put"),
                ("more", 1),
            ),
            *(
                ("request_id", -1),
                ("request_id", 1 << 64),
                ("request_id", 1.5),
                ("request_id", None),
                ("request_id", True),
            ),
        )
    )
    fields[name] = value
    if r.random() < 0.2:
        del fields[r.choice(("type", "key"))]
    return json.dumps(fields, ensure_ascii=False).encode()


def get_text(r: random.Random, fields: dict[str, Any]) -> bytes:
    """A plain get as somebody may write it: any order, any white space."""
    names = list(fields)
    r.shuffle(names)
    comma, colon = r.choice(((",", ":"), (", ", ": "), (" ,\n\t", "\r: ")))
    body = comma.join(f'"{name}"{colon}' + json.dumps(fields[name], ensure_ascii=False) for name in names)
    return r.choice(("{%s}", "{ %s }", "\n{%s\t}\r\n ")).replace("%s", body).encode()
