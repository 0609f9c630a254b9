"""Turns the record sets of publishers into batches, and batches into record sets, for every door that has an extended mode.

A record set carries key, headers, time and origin (kernel/pure_records.py draws its bytes; ADR 33). A set is taken whole or not at
all: its limits are judged before anything is stored. Which frame carries it is each door's own business.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quintet import kernel
from quintet.broker.topics.catalog import ANY
from quintet.model import limits
from quintet.model.batch import Header, RecordBatch
from quintet.model.errors import BadRequest, LimitExceeded, QuintetError, TooLarge

_RESERVED: Final = limits.HEADER_PREFIX_RESERVED.decode()


class Groups(NamedTuple):
    """The records of a set that go to one partition each (ANY: the next in turn), and the group of each record."""

    groups: list[tuple[int, bytearray, int]]
    order: bytes


def split(
    data: bytes | memoryview, partitions: int, origin: bytes, now: int, partition: int = ANY, flags: int = 0
) -> Groups:
    """The batches of a publisher's record set. BadRequest, LimitExceeded or TooLarge says what is wrong with it."""
    if len(data) > limits.RECORD_SET_BYTES_MAX:
        raise TooLarge(f"a record set of {len(data)} bytes, the limit is {limits.RECORD_SET_BYTES_MAX}")
    found = kernel.records_split(data, partition, partitions, origin, now, flags)
    if len(found) == 2:
        return Groups(*found)
    raise _refusal(*found)


def _refusal(code: int, record: int, size: int) -> QuintetError:
    """The error for what kernel.records_split refuses."""
    where = f"record {record} of the set"
    match code:
        case 1:
            return BadRequest(f"{where} ends early", hint="lengths and counts must add up to the end of the set")
        case 2:
            return BadRequest(f"{where} has bits {size:#04x} that a publisher does not set")
        case 3:
            return BadRequest("a record set has at least one record")
        case 4:
            return LimitExceeded(f"a record set has at most {limits.RECORDS_MAX:,} records", hint="send several")
        case 8:
            return BadRequest(f"the name of header {size} of {where} is not UTF-8", hint="values may be any bytes")
        case 9:
            return reserved_name(f"header {size} of {where}")
    return header_limit(code, where, size)


def header_limit(code: int, where: str, size: int) -> QuintetError:
    """Too many headers (5), too many bytes of them (6), or a name that is empty or too long (7)."""
    if code == 5:
        return LimitExceeded(f"{where} has {size:,} headers, the limit is {limits.HEADERS_MAX:,}")
    if code == 6:
        most = f"the limit is {limits.HEADERS_BYTES_MAX:,} for names and values together"
        return TooLarge(f"{where} has {size:,} bytes of headers, {most}", hint="put large data into the value")
    return BadRequest(f"a header name of {where} has {size} bytes, it needs 1 to {limits.HEADER_NAME_BYTES_MAX}")


def reserved_name(what: str) -> BadRequest:
    return BadRequest(
        f"the name of {what} begins with {_RESERVED}: such names are the broker's own", hint="choose another name"
    )


def check(headers: Sequence[Header], where: str = "the message") -> None:
    """The limits of a record's headers, for doors whose headers do not come in a record set. Raises as `split` does."""
    if len(headers) > limits.HEADERS_MAX:
        raise header_limit(5, where, len(headers))
    size = sum(len(name) + len(value or b"") for name, value in headers)
    if size > limits.HEADERS_BYTES_MAX:
        raise header_limit(6, where, size)
    for name, _ in headers:
        if not 0 < len(name) <= limits.HEADER_NAME_BYTES_MAX:
            raise header_limit(7, where, len(name))
        if name.startswith(limits.HEADER_PREFIX_RESERVED):
            raise reserved_name(f"a header of {where}")


def expiring(batch: bytearray, expiry: int) -> bytearray:
    """The same records, those that have no time to live of their own with this one."""
    made = RecordBatch(batch)
    _, _, keys, values, headers, expiries, origins = (list(column) for column in zip(*made.rows(), strict=True))
    own = [min(one, expiry) if one else expiry for one in expiries]
    return kernel.build(values, keys, headers, None, own, origins[0], made.flags)


def sets(
    batch: RecordBatch, first: int, last: int, now: int, base: int, bytes_max: int
) -> Iterator[tuple[bytes, int, int]]:
    """Record sets of at most bytes_max, each with the numbers in the batch of its first record and of the one behind its
    last. A record that alone is longer is a longer set."""
    while first < last:
        data, count, following = kernel.records_deliver(batch.buffer, first, last, now, base, bytes_max)
        if count:
            yield data, first, following
        first = following
