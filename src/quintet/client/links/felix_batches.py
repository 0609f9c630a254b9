"""Encodes publish calls as batch frames of Felix, of bounded size, and says which messages each frame holds."""

from collections.abc import Callable, Sequence
from typing import Final

from quintet import kernel
from quintet.client.core.headers import Encoded
from quintet.client.core.publishing import Load, PublishCall
from quintet.client.links.felix_source import Names
from quintet.client.links.felix_wire import json_frame, packed
from quintet.protocols.felix import codec, frames

FRAME_VALUES_MAX: Final = 65_536  # messages of one batch frame; a call may have several frames
FRAME_VALUE_BYTES_MAX: Final = 4 * 1024 * 1024  # of several messages together
ZSTD_BYTES_MIN: Final = 1_024  # of a batch: below it, packing does not pay
PER_BATCH: Final = 2

Share = tuple[PublishCall, int, int]  # a call, where in it the messages of a frame begin, and how many they are


def is_whole(load: Load) -> bool:
    """Does it need a record set? A key alone has a place in any batch."""
    return load.headers is not None or load.ttl_ms > 0


def batches(
    calls: Sequence[PublishCall], names: Names, flags: int, new_id: Callable[[], int]
) -> tuple[list[bytes], dict[int, list[Share]]]:
    """The frames of calls of one topic, QoS and time to live, and by request what each of them holds. One frame has one key."""
    topic, qos = calls[0].load.topic, calls[0].load.qos
    found: list[bytes] = []
    owed: dict[int, list[Share]] = {}
    values: list[bytes] = []
    columns: list[tuple[bytes | None, Encoded]] = []  # key and headers of each, where they go as a record set
    whole, ttl_ms = is_whole(calls[0].load), calls[0].load.ttl_ms
    shares: list[Share] = []
    size = 0
    key: bytes | None = None

    def close() -> None:
        nonlocal values, columns, shares, size
        id = new_id() if qos else -1
        if qos:
            owed[id] = shares
        if whole:
            found.append(_records_frame(names, flags, topic, id, values, columns, ttl_ms))
        else:
            found.append(_frame(names, flags, topic, id, key, values))
        values, columns, shares, size = [], [], [], 0

    for call in calls:
        begun = 0
        keys, lists = call.load.keys, call.load.headers
        for at, value in enumerate(call.load.values):
            other = None if keys is None else keys[at]
            cost = len(value) + len(other or b"")  # the broker stores the key with every message
            if lists is not None:
                cost += len(lists[at])
            full = size + cost > FRAME_VALUE_BYTES_MAX or len(values) == FRAME_VALUES_MAX
            if values and (full or (other != key and not whole)):
                if at > begun:
                    shares.append((call, begun, at - begun))
                begun = at
                close()
            key = other
            values.append(value)
            if whole:
                columns.append((other, lists[at] if lists is not None else b""))
            size += cost
        shares.append((call, begun, len(call.load.values) - begun))
    close()
    return found, owed


def _records_frame(
    names: Names,
    flags: int,
    topic: str,
    id: int,
    values: list[bytes],
    columns: list[tuple[bytes | None, Encoded]],
    ttl_ms: int,
) -> bytes:
    """A record set as a batch."""
    keys, headers = [key for key, _ in columns], [own for _, own in columns]
    kind = frames.BATCH | frames.RECORDS | (frames.ACKED if id >= 0 else 0)
    front = codec.frame((b"" if id < 0 else id.to_bytes(8, "big") + bytes((PER_BATCH,))) + names.target(topic), kind)
    data = kernel.records_pack(values, keys, headers, ttl_ms, front, b"", (frames.LENGTH_AT,))
    return packed(data) if flags & frames.ZSTD and len(data) >= ZSTD_BYTES_MIN else data


def _frame(names: Names, flags: int, topic: str, id: int, key: bytes | None, values: list[bytes]) -> bytes:
    """`id` -1: no answer is wanted. If the server has no acknowledged batches, the batch is JSON."""
    if id >= 0 and not flags & frames.ACKED:
        tenant, namespace, stream = names.split(topic)
        scope = {"tenant_id": tenant, "namespace": namespace, "stream": stream}
        return json_frame({"type": "publish_batch", **scope, "payloads": values, "request_id": id, "ack": "per_batch"})
    data = kernel.felix_publish(names.target(topic), values, id, PER_BATCH if id >= 0 else 0, key)
    if flags & frames.ZSTD and len(data) >= ZSTD_BYTES_MIN:
        return packed(data)
    return data
