"""Checks the header of a small segment at a start, in pure Python: the readable twin of the native kernel's segment_head.

Whatever is unusual gives None, and the log, which can mend and tell, looks at it itself. No I/O. The header is drawn in
log/embedded/files/segment.py.
"""

import struct

from quintet.kernel.buffer import Buffer
from quintet.kernel.pure_batch import LINK_BYTES
from quintet.kernel.pure_crc import crc32c

_MAGIC = b"QNTSEG1\0"
_HEADER = struct.Struct("<8sIIIIIIQq")
_CHAIN = struct.Struct("<II32s")
_HEADER_BYTES = 512
_NAME_AT = 48
_CHAIN_AT = 472
_CHAINED_VERSION = 2


def segment_head(
    data: Buffer, start: int, stop: int, end: int, topic_id: int, partition: int, name: bytes
) -> tuple[int, int, int, int, bytes] | None:
    view = memoryview(data)
    if not 0 <= start <= stop <= len(view):
        raise ValueError("start and stop must lie in the buffer, in this order")
    view = view[start:stop]
    if len(view) < _HEADER_BYTES or not _HEADER_BYTES <= end <= len(view):
        return None
    magic, crc, version, seed, of_topic, of_partition, length, base, created = _HEADER.unpack_from(view)
    if magic != _MAGIC or crc != crc32c(view[12:_HEADER_BYTES]) or version > _CHAINED_VERSION or seed == 0 or base:
        return None
    found = bytes(view[_NAME_AT : _NAME_AT + length]) if _NAME_AT + length <= _CHAIN_AT else None
    if (of_topic, of_partition, found) != (topic_id, partition, name) or any(view[end:]):
        return None
    kind, key_id, link = _CHAIN.unpack_from(view, _CHAIN_AT) if version == _CHAINED_VERSION else (0, 0, b"")
    if kind and end >= _HEADER_BYTES + LINK_BYTES:
        link = bytes(view[end - LINK_BYTES : end])
    return seed, created, kind, key_id, link if kind else b""
