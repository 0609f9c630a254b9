"""Computes a digest of records that does not depend on batches, tasks or how they were read.

Each column is a few streams of bytes, and a CRC-32C runs through each stream:

    offset, timestamp     8 bytes of each row
    key, value            4 bytes of each row: its length, -1 for null        | the bytes
    headers               4 bytes of each row: how many it has                | the same two streams for names and for values

The CRC of two parts can be computed from those of the parts (`joined`), so many cores can read a partition in pieces. The digest finds
accidental damage. It is no protection against forgery: hash chains and signatures are.
"""

import hashlib
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # pyarrow ships no types

from quintet import kernel

COLUMNS: Final = ("key", "value", "headers", "offset", "timestamp")
STREAMS: Final = 2 + 2 + 5 + 1 + 1  # as COLUMNS has them
DIGEST_BYTES: Final = 8
NULL: Final = -1
POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, lowest bit first

Chain = tuple[int, int]  # a CRC, and the number of bytes it covers
Chains = tuple[Chain, ...]
EMPTY: Final[Chains] = ((0, 0),) * STREAMS


def extended(chains: Chains, batch: pa.RecordBatch) -> Chains:
    """The chains with these rows added."""
    streams = (stream for name in COLUMNS for stream in _streams(batch.column(name)))
    return tuple(
        (kernel.crc32c(data, crc), size + data.nbytes) for (crc, size), data in zip(chains, streams, strict=True)
    )


def joined(first: Chains, second: Chains) -> Chains:
    """The chains of the rows of `first` and then those of `second`."""
    return tuple((_shifted(a, n) ^ b, m + n) for (a, m), (b, n) in zip(first, second, strict=True))


def shown(rows: int, chains: Chains) -> str:
    """The digest of all streams and the number of rows, as text."""
    words = struct.pack(f"<{1 + 2 * STREAMS}Q", rows, *(number for chain in chains for number in chain))
    return hashlib.blake2b(words, digest_size=DIGEST_BYTES).hexdigest()


def _streams(array: pa.Array) -> Iterator[memoryview]:
    """The streams of a column; only lengths are copied."""
    kind = array.type
    if pa.types.is_list(kind):
        yield _lengths(array)
        yield from _streams(array.flatten())
    elif pa.types.is_struct(kind):
        for field in array.flatten():
            yield from _streams(field)
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        yield _lengths(array)
        ends = _ends(array)
        yield memoryview(array.buffers()[2] or b"").cast("B")[ends[0] : ends[-1]]
    else:
        width = kind.bit_width // 8
        yield memoryview(array.buffers()[1] or b"").cast("B")[
            array.offset * width : (array.offset + len(array)) * width
        ]


def _ends(array: pa.Array) -> "np.typing.NDArray[np.int32]":
    buffer = array.buffers()[1]
    if not len(array) or buffer is None:
        return np.zeros(1, "<i4")
    return np.frombuffer(buffer, "<i4", len(array) + 1, 4 * array.offset)


def _lengths(array: pa.Array) -> memoryview:
    lengths = np.diff(_ends(array))
    if array.null_count:
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = NULL
    return lengths.data.cast("B")


def _times(a: int, b: int) -> int:
    """The product of two polynomials, modulo the CRC's."""
    product = 0
    for bit in range(31, -1, -1):
        if b >> bit & 1:
            product ^= a
        a = a >> 1 ^ (POLYNOMIAL if a & 1 else 0)
    return product


def _shifted(crc: int, size: int) -> int:
    """The CRC after `size` more zero bytes, without its initial and final complement: the product with x ** (8 * size)."""
    power = 1 << 23  # x ** 8
    while size:
        if size & 1:
            crc = _times(crc, power)
        power = _times(power, power)
        size >>= 1
    return crc
