"""BlipMQ's nouns <-> ours: delivery tags <-> (partition, offset), who a record came from, a publish that has no answer yet.

A tag is the offset plus one, with the partition in the top 16 bits:

    63      48 47                     0
    | partition | offset + 1           |

So it is never 0, the same for every subscriber (a delivery is encoded once for all) and the same on redelivery and
after a restart.
"""

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from quintet.protocols.base import Holds
from quintet.protocols.blipmq import codec, errors

PARTITION_SHIFT = 48
IDS: Final = struct.Struct("<Q")  # correlation ids, packed as the kernel does
_NONE: Final[Mapping[int, Exception]] = MappingProxyType({})
_OFFSET_MASK = (1 << PARTITION_SHIFT) - 1


def tag_of(partition: int, offset: int) -> int:
    return partition << PARTITION_SHIFT | offset + 1


def offset_of(tag: int) -> tuple[int, int]:
    """(partition, offset) of a tag; offset -1 for a tag that no delivery can have had."""
    return tag >> PARTITION_SHIFT, (tag & _OFFSET_MASK) - 1


def origin_of(client: str) -> bytes:
    """The origin of what this client publishes, as stored with its records."""
    return b"blipmq:" + client.encode()[:200]


class Publish(Holds):
    """The reply slot of durable publishes on their way: (ids to refuse it by, packed `<Q`; pongs behind it) of each group, how many words of
    them are to come, and which of them failed."""

    __slots__ = ("errors", "groups")

    def __init__(self, groups: Sequence[tuple[bytes, bytes]], missing: int = 1) -> None:
        self.data = None
        self.groups = groups
        self.missing = missing
        self.errors: Mapping[int, Exception] = _NONE

    def answer(self) -> bytes:
        """Nothing for what is durable, a NACK for every publish of what is not, and the pongs between them."""
        if not self.errors and len(self.groups) == 1:
            return self.groups[0][1]
        parts = []
        for number, (ids, pongs) in enumerate(self.groups):
            if number in self.errors:
                parts.append(refusal(ids, self.errors[number]))
            parts.append(pongs)
        return b"".join(parts)


def refusal(ids: bytes, error: Exception) -> bytes:
    """A NACK for every publish of a refused batch."""
    code, text = errors.to_nack(error)
    return b"".join(codec.nack(id, code, text) for (id,) in IDS.iter_unpack(ids))
