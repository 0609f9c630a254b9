"""BlipMQ's nouns <-> ours: delivery tags <-> (partition, offset), records to frames, who a record came from, a publish without an answer yet.

A tag is the offset plus one, with the partition in the top 16 bits:

    63      48 47                     0
    | partition | offset + 1           |

So it is never 0, the same for every subscriber (a delivery is encoded once for all) and the same on redelivery and
after a restart.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from quintet import kernel
from quintet.delivery.subscription import Subscription
from quintet.model.batch import RecordBatch
from quintet.protocols import records
from quintet.protocols.base import Holds
from quintet.protocols.blipmq import codec, errors, frames

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


def encode(
    layout: int,
    frame_bytes_max: int,
    subscription: Subscription,
    partition: int,
    batch: RecordBatch,
    first: int,
    last: int,
    ids: bytes,
) -> bytes:
    """Delivery frames. A whole batch in version 2 looks the same to every subscriber: it is encoded once."""
    # Document, "PUBLISH" as delivery: the correlation id is the tag to acknowledge with QoS 1, that of the POLL with QoS 0.
    qos = 0 if batch.at_most_once else subscription.qos
    whole = layout >= 2 and first == 0 and last == batch.count
    if whole and batch.memo is not None and (found := batch.memo.get(("blipmq", layout, qos))) is not None:
        return found
    topic = subscription.topic_name
    if layout == 3:
        most = frame_bytes_max - frames.RECORDS_OVERHEAD_BYTES
        sets = records.sets(batch, first, last, 0, tag_of(partition, 0), most)
        data = b"".join([codec.records(0, topic, qos, made) for made, _, _ in sets])
    else:
        tag = tag_of(partition, batch.offset(first)) if qos else 0
        data, _ = kernel.blip_deliver(layout, topic, qos, batch.buffer, first, last, tag, ids, 0)
    if whole and batch.memo is not None:
        batch.memo["blipmq", layout, qos] = data
    return data


def pieces(
    layout: int,
    subscription: Subscription,
    partition: int,
    batch: RecordBatch,
    first: int,
    last: int,
    ids: Sequence[int],
) -> Iterator[bytes]:
    """As `encode`, record by record; a large value is sent from where it is."""
    qos = 0 if batch.at_most_once else subscription.qos
    topic = subscription.topic_name
    if layout == 3:
        for made, _, _ in records.sets(batch, first, last, 0, tag_of(partition, 0), 1):
            yield codec.records(0, topic, qos, made)
        return
    for index in range(first, last):
        offset, _, _, value, _, _, _ = batch.row(index)
        tag = tag_of(partition, offset) if qos else 0
        id = ids[index - first] if layout == 1 and not qos else tag
        yield codec.delivery_head(layout, topic, qos, id, len(value or b""))
        if value:
            yield value
