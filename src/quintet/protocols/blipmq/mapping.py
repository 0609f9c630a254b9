"""BlipMQ's nouns <-> ours: delivery tags <-> (partition, offset), who a record came from, a publish that has no answer yet.

A tag is the offset plus one, with the partition in the top 16 bits:

    63      48 47                     0
    | partition | offset + 1           |

So it is never 0, the same for every subscriber (a delivery is encoded once for all) and the same on redelivery and
after a restart.
"""

from quintet.protocols.base import Slot

PARTITION_SHIFT = 48
_OFFSET_MASK = (1 << PARTITION_SHIFT) - 1


def tag_of(partition: int, offset: int) -> int:
    return partition << PARTITION_SHIFT | offset + 1


def offset_of(tag: int) -> tuple[int, int]:
    """(partition, offset) of a tag; offset -1 for a tag that no delivery can have had."""
    return tag >> PARTITION_SHIFT, (tag & _OFFSET_MASK) - 1


def origin_of(client: str) -> bytes:
    """The origin of what this client publishes, as stored with its records."""
    return b"blipmq:" + client.encode()[:200]


class Publish(Slot):
    """The reply slot of a durable publish on its way, how many batches it is, and the ids to refuse if one of them fails."""

    __slots__ = ("error", "ids", "missing")

    def __init__(self, ids: bytes, missing: int = 1) -> None:
        self.data = None
        self.ids = ids
        self.missing = missing
        self.error: Exception | None = None
