"""Tells a batch that was never written whole from one that was, and was damaged later.

For topics that are written one batch at a time, each synced before the next (ADR 15). What lies behind the last sound batch of
such a log, and above its durable mark, is one write that was under way, or damage. A write under way lacks something: the
file ends within it, a sector of it was never written and reads as zeros, or its end was not. What lacks nothing is damage;
so is what one flipped bit explains, although it has zeros of its own.
"""

from typing import Final

from quintet import kernel
from quintet.model import limits
from quintet.model.batch import crc_of, length_of, set_length, span_of

SECTOR_BYTES: Final = 512  # disks write these whole or not at all
END_BYTES_MIN: Final = 32  # so many zeros at the end of a batch: its end was not written. Keys and links are no zeros
TRACE_BYTES_MIN: Final = 8  # fewer bytes that are not zero were no batch: something flipped in the empty end of a file
SPAN_MAX: Final = 1 << 20  # offsets that a batch which does not check out is believed to have had
EXPLAINED_BYTES_MAX: Final = 256 * limits.KIB  # of a batch in which the flipped bit is looked for: a second of a core


def is_torn(rest: bytes, position: int, seed: int) -> bool:
    """Is this what an unfinished write left? `rest` is all that the file has from `position` on."""
    written = rest.rstrip(b"\0")
    if len(written) - written.count(0) < TRACE_BYTES_MIN or len(rest) < limits.BATCH_HEADER_BYTES:
        return True
    length = length_of(rest)
    if _length_flipped(rest, len(written), length, seed):
        return False
    if not limits.BATCH_HEADER_BYTES <= length <= limits.BATCH_BYTES_MAX or length % 8:
        lacks = len(written) <= limits.BATCH_HEADER_BYTES - END_BYTES_MIN
        return lacks or _has_hole(rest, position, limits.BATCH_HEADER_BYTES)
    if len(written) > length:
        return _has_hole(rest, position, length)
    lacks = length > len(rest) or length - len(written) >= END_BYTES_MIN or _has_hole(rest, position, length)
    return lacks and not (length <= min(len(rest), EXPLAINED_BYTES_MAX) and _bit_flipped(rest[:length], seed))


def claimed_span(rest: bytes) -> int:
    """How many offsets a batch that does not check out had, if what it says can be true; 1 otherwise."""
    span = span_of(rest)
    return span if 1 <= span <= SPAN_MAX else 1


def _has_hole(rest: bytes, position: int, length: int) -> bool:
    """Is a sector, as far as the batch reaches into it, all zeros, or not there?"""
    at = 0
    while at < length:
        end = min(at + SECTOR_BYTES - (position + at) % SECTOR_BYTES, length)
        if not rest[at:end].strip(b"\0"):
            return True
        at = end
    return False


def _length_flipped(rest: bytes, written: int, length: int, seed: int) -> bool:
    """Is it a sound batch but for one bit of its length? It would end about where the zeros begin."""
    for bit in range(32):
        candidate = length ^ (1 << bit)
        if max(written, limits.BATCH_HEADER_BYTES) <= candidate <= min(written + SECTOR_BYTES, len(rest)):
            batch = bytearray(rest[:candidate])
            set_length(batch, candidate)
            if kernel.check(batch, 0, seed) == candidate:
                return True
    return False


def _bit_flipped(batch: bytes, seed: int) -> bool:
    """Does one flipped bit explain the checksum? It is linear: each bit changes it by a value that depends only on how many
    bytes follow."""
    difference = crc_of(batch) ^ kernel.crc32c(memoryview(batch)[8:], seed)
    if difference & (difference - 1) == 0:  # one bit of the checksum itself, or of the magic, which it does not cover
        return True
    nothing = kernel.crc32c(b"\0")
    table = [kernel.crc32c(bytes([value])) ^ nothing for value in range(256)]
    effects = [table[1 << bit] for bit in range(8)]
    for _ in range(len(batch) - 8):
        if difference in effects:
            return True
        effects = [effect >> 8 ^ table[effect & 255] for effect in effects]
    return False
