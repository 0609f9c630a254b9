"""Record sets packed and read by hand, from ADR 33: what the extended modes of all doors carry."""

import struct
from typing import NamedTuple

NUMBER, TIME, ORIGIN, KEY, HEADERS, TTL, NULL = 1, 2, 4, 8, 16, 32, 64
Headers = tuple[tuple[bytes, bytes | None], ...]


class Record(NamedTuple):
    """One record; what is None is not on the wire."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: Headers = ()
    ttl_ms: int | None = None
    number: int | None = None
    time: int | None = None
    origin: bytes | None = None


def _blob(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _headers(headers: Headers) -> bytes:
    out = struct.pack(">I", len(headers))
    for name, value in headers:
        out += _blob(name) + (struct.pack(">I", 0) if value is None else struct.pack(">I", len(value) + 1) + value)
    return out


def pack(*records: Record) -> bytes:
    """The bytes of a set."""
    out = b""
    for one in records:
        parts = [
            (NUMBER, None if one.number is None else struct.pack(">Q", one.number)),
            (TIME, None if one.time is None else struct.pack(">q", one.time)),
            (ORIGIN, None if one.origin is None else struct.pack(">H", len(one.origin)) + one.origin),
            (KEY, None if one.key is None else _blob(one.key)),
            (HEADERS, _headers(one.headers) if one.headers else None),
            (TTL, None if one.ttl_ms is None else struct.pack(">I", one.ttl_ms)),
        ]
        bits = sum(bit for bit, part in parts if part is not None) | (NULL if one.value is None else 0)
        out += bytes((bits,)) + b"".join(part for _, part in parts if part is not None)
        out += b"" if one.value is None else _blob(one.value)
    return out


def split(data: bytes) -> list[Record]:
    """The records of a set; ValueError if it does not add up."""
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        at += size
        if at > len(data):
            raise ValueError(f"the set ends {at - len(data)} bytes early")
        return data[at - size : at]

    def number(form: str) -> int:
        (found,) = struct.unpack(form, take(struct.calcsize(form)))
        return int(found)

    def headers() -> Headers:
        found: list[tuple[bytes, bytes | None]] = []
        for _ in range(number(">I")):
            name = take(number(">I"))
            size = number(">I")
            found.append((name, take(size - 1) if size else None))
        return tuple(found)

    records = []
    while at < len(data):
        bits = number(">B")
        if bits & ~(NUMBER | TIME | ORIGIN | KEY | HEADERS | TTL | NULL):
            raise ValueError(f"bits {bits:#04x}")
        of_server = (
            number(">Q") if bits & NUMBER else None,
            number(">q") if bits & TIME else None,
            take(number(">H")) if bits & ORIGIN else None,
        )
        key = take(number(">I")) if bits & KEY else None
        pairs = headers() if bits & HEADERS else ()
        ttl = number(">I") if bits & TTL else None
        value = None if bits & NULL else take(number(">I"))
        records.append(Record(value, key, pairs, ttl, *of_server))
    return records
