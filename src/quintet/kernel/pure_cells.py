"""The pure twin of kernel/src/cells_py.rs: how far the publishes at the beginning of a read go to one cell."""

from typing import Final

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import view_of
from quintet.kernel.pure_crc import fnv1a

BLIP_1: Final = 0
BLIP_2: Final = 1
FLY: Final = 2
FAST: Final = 3

_BLIP_HEAD: Final = 13
_BLIP_LENGTH_MIN: Final = 9
_BLIP_PUBLISH: Final = 3
_BLIP_PING: Final = 7
_BLIP_TTL: Final = 0x80
_FLY_HEAD: Final = 8
_FLY_START: Final = b"\xaf\x01\x01"
_FLY_COMPRESSED: Final = 0x0E
_FAST_PUBLISH: Final = 3
_FAST_TAIL: Final = 8
_SPREAD: Final = 0x9E3779B1
_WORD: Final = 0xFFFFFFFF
_ALONG: Final = -1  # where the frame before goes
_UNKNOWN: Final = -2

_Found = tuple[int, int]  # the cell, or one of the above; the end of the frame


def cell_run(
    kind: int, view: Buffer, position: int, bytes_max: int, count: int, own: int, suffix: bytes, token: bytes
) -> tuple[int, int]:
    d = view_of(view)
    if not 0 <= position <= len(d):
        raise ValueError("start and stop must lie in the buffer, in this order")
    chosen, at = -1, position
    while at < len(d) and count > 0:
        if kind in (BLIP_1, BLIP_2):
            cell, end = _blip(d, at, bytes_max, kind == BLIP_2, count, suffix)
        elif kind == FLY:
            cell, end = _fly(d, at, bytes_max, count, suffix)
        elif kind == FAST:
            cell, end = _fast(d, at, bytes_max, token, count, own)
        else:
            break
        if cell == _ALONG:
            cell = chosen if chosen >= 0 else _UNKNOWN
        if cell == _UNKNOWN or (chosen >= 0 and cell != chosen):
            break
        chosen, at = cell, end
    return chosen, at


def _number(d: memoryview, at: int, size: int) -> int | None:
    return int.from_bytes(d[at : at + size], "big") if at + size <= len(d) else None


def _plain(d: memoryview, at: int, end: int, count: int, suffix: bytes) -> int:
    """The cell of the name behind its length at `at`, in a frame that ends at `end`."""
    size = _number(d, at, 2) if at + 2 <= end else None
    if size is None or at + 2 + size > end:
        return _UNKNOWN
    name = bytes(d[at + 2 : at + 2 + size])
    if not name or name.startswith(b"__") or b"/" in name or (suffix and name.endswith(suffix)):
        return _UNKNOWN
    return _spread(fnv1a(name), count)


def _spread(number: int, count: int) -> int:
    return ((number * _SPREAD & _WORD) >> 16) % count


def _blip(d: memoryview, at: int, most: int, with_ttl: bool, count: int, suffix: bytes) -> _Found:
    length = _number(d, at, 4)
    if length is None or not _BLIP_LENGTH_MIN <= length <= most or at + 4 + length > len(d):
        return _UNKNOWN, at
    end = at + 4 + length
    if d[at + 4] == _BLIP_PING:
        return _ALONG, end
    start = at + _BLIP_HEAD
    if d[at + 4] != _BLIP_PUBLISH or start >= end:
        return _UNKNOWN, at
    ttl = 4 if with_ttl and d[start] & _BLIP_TTL else 0
    return _plain(d, start + 1 + ttl, end, count, suffix), end


def _fly(d: memoryview, at: int, most: int, count: int, suffix: bytes) -> _Found:
    length = _number(d, at + 4, 4)
    if length is None or bytes(d[at : at + 3]) != _FLY_START or d[at + 3] & _FLY_COMPRESSED or length > most:
        return _UNKNOWN, at
    end = at + _FLY_HEAD + length
    return (_plain(d, at + _FLY_HEAD, end, count, suffix), end) if end <= len(d) else (_UNKNOWN, at)


def _fast(d: memoryview, at: int, most: int, token: bytes, count: int, own: int) -> _Found:
    if d[at] != _FAST_PUBLISH or at + 1 >= len(d) or not token:
        return _UNKNOWN, at
    size = d[at + 1]
    tail = at + 2 + size
    number, length = _number(d, tail, 4), _number(d, tail + 4, 4)
    if (size and bytes(d[at + 2 : tail]) != token) or number is None or length is None or length > most:
        return _UNKNOWN, at
    end, cell = tail + _FAST_TAIL + length, _spread(number, count)
    if end > len(d) or (not size and cell != own):
        return _UNKNOWN, at
    return cell, end
