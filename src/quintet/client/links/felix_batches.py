"""Encodes publish calls as batch frames of Felix, of bounded size, and says which messages each frame holds."""

from collections.abc import Callable, Sequence
from typing import Final

from quintet import kernel
from quintet.client.core.publishing import PublishCall
from quintet.client.links.felix_source import Names
from quintet.client.links.felix_wire import json_frame, packed
from quintet.protocols.felix import frames

FRAME_VALUES_MAX: Final = 65_536  # messages of one batch frame; a call may have several frames
FRAME_VALUE_BYTES_MAX: Final = 4 * 1024 * 1024  # of several messages together
ZSTD_BYTES_MIN: Final = 1_024  # of a batch: below it, packing does not pay
PER_BATCH: Final = 2

Share = tuple[PublishCall, int, int]  # a call, where in it the messages of a frame begin, and how many they are


def batches(
    calls: Sequence[PublishCall], names: Names, flags: int, new_id: Callable[[], int]
) -> tuple[list[bytes], dict[int, list[Share]]]:
    """The frames of calls of one topic and QoS, and by request what each of them holds. One frame has one key."""
    topic, qos = calls[0].load.topic, calls[0].load.qos
    found: list[bytes] = []
    owed: dict[int, list[Share]] = {}
    values: list[bytes] = []
    shares: list[Share] = []
    size = 0
    key: bytes | None = None

    def close() -> None:
        nonlocal values, shares, size
        id = new_id() if qos else -1
        if qos:
            owed[id] = shares
        found.append(_frame(names, flags, topic, id, key, values))
        values, shares, size = [], [], 0

    for call in calls:
        begun = 0
        keys = call.load.keys
        for at, value in enumerate(call.load.values):
            other = None if keys is None else keys[at]
            cost = len(value) + len(other or b"")  # the broker stores the key with every message
            full = size + cost > FRAME_VALUE_BYTES_MAX or len(values) == FRAME_VALUES_MAX
            if values and (full or other != key):
                if at > begun:
                    shares.append((call, begun, at - begun))
                begun = at
                close()
            key = other
            values.append(value)
            size += cost
        shares.append((call, begun, len(call.load.values) - begun))
    close()
    return found, owed


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
