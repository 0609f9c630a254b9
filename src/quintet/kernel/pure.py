"""The pure-Python twin of the kernel: every name of `_native.pyi`, gathered from the files that hold the code.

The native twin and this one give equal bytes and refuse the same input; tests/kernel compares them. Nothing is written
here but the list.
"""

from quintet.kernel.pure_append import blip_append, fast_append, fly_append
from quintet.kernel.pure_arrow import gather, scatter
from quintet.kernel.pure_batch import (
    build,
    chain,
    check,
    find,
    follow,
    layout,
    merge,
    place,
    reseal,
    rows,
    seal,
    select,
    walk,
)
from quintet.kernel.pure_blip import blip_deliver, blip_publish, blip_received, blip_split
from quintet.kernel.pure_cache import CacheMemory
from quintet.kernel.pure_cells import cell_run
from quintet.kernel.pure_crc import crc32c, fnv1a
from quintet.kernel.pure_fast import fast_deliver, fast_publish, fast_received, fast_split
from quintet.kernel.pure_felix import (
    felix_batch,
    felix_deliver,
    felix_events,
    felix_publish,
    felix_received,
    felix_split,
)
from quintet.kernel.pure_felix_append import felix_append
from quintet.kernel.pure_felix_json import felix_gets, json_fault, json_head, json_shape
from quintet.kernel.pure_fly import fly_fetch, fly_produce, fly_produced, fly_received, fly_split, fly_split_one
from quintet.kernel.pure_peer import peer_deliver, peer_frame, peer_object, peer_split
from quintet.kernel.pure_records import (
    headers_pack,
    headers_unpack,
    records_deliver,
    records_pack,
    records_received,
    records_split,
)
from quintet.kernel.pure_segment import segment_head
from quintet.kernel.pure_tails import Routes, Tails
from quintet.kernel.pure_ws import ws_frame, ws_split

__all__ = [
    "CacheMemory",
    "Routes",
    "Tails",
    "blip_append",
    "blip_deliver",
    "blip_publish",
    "blip_received",
    "blip_split",
    "build",
    "cell_run",
    "chain",
    "check",
    "crc32c",
    "fast_append",
    "fast_deliver",
    "fast_publish",
    "fast_received",
    "fast_split",
    "felix_append",
    "felix_batch",
    "felix_deliver",
    "felix_events",
    "felix_gets",
    "felix_publish",
    "felix_received",
    "felix_split",
    "find",
    "fly_append",
    "fly_fetch",
    "fly_produce",
    "fly_produced",
    "fly_received",
    "fly_split",
    "fly_split_one",
    "fnv1a",
    "follow",
    "gather",
    "headers_pack",
    "headers_unpack",
    "json_fault",
    "json_head",
    "json_shape",
    "layout",
    "merge",
    "peer_deliver",
    "peer_frame",
    "peer_object",
    "peer_split",
    "place",
    "records_deliver",
    "records_pack",
    "records_received",
    "records_split",
    "reseal",
    "rows",
    "scatter",
    "seal",
    "segment_head",
    "select",
    "walk",
    "ws_frame",
    "ws_split",
]
