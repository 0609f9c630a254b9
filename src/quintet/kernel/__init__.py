"""The kernel: hot loops over whole buffers, native if it was built, else the pure twin. Same names, same results.

Import from here (`from quintet import kernel; kernel.seal(...)`). `NATIVE` says which twin is in use; the environment
variable QUINTET_PURE=1 forces the pure one. No I/O and no clock live here, except in Sockets, and in QuicEndpoint, which is a socket with
a thread; the only state is in it, in Tails, the newest part of partitions in memory, and in CacheMemory, the keys of a cache.
"""

import os
from typing import TYPE_CHECKING

NATIVE = False
# What to do about the pure twin, for whoever tells of it: people who installed a wheel have no Makefile.
PURE_HINT = "install a wheel with the native kernel (Linux, x86-64 or aarch64), or build it with Rust: `make setup` in a checkout"
if TYPE_CHECKING:
    from quintet.kernel import _native as _chosen
elif os.environ.get("QUINTET_PURE", "") in ("1", "true", "yes"):
    from quintet.kernel import pure as _chosen

    PURE_HINT = "the environment says QUINTET_PURE: unset it"
else:
    try:
        from quintet.kernel import _native as _chosen

        NATIVE = True
    except ImportError:
        from quintet.kernel import pure as _chosen

crc32c = _chosen.crc32c
cell_run = _chosen.cell_run
build = _chosen.build
merge = _chosen.merge
seal = _chosen.seal
place = _chosen.place
reseal = _chosen.reseal
chain = _chosen.chain
follow = _chosen.follow
check = _chosen.check
walk = _chosen.walk
find = _chosen.find
layout = _chosen.layout
rows = _chosen.rows
select = _chosen.select
gather = _chosen.gather
scatter = _chosen.scatter
blip_split = _chosen.blip_split
blip_append = _chosen.blip_append
blip_deliver = _chosen.blip_deliver
blip_publish = _chosen.blip_publish
blip_received = _chosen.blip_received
fast_split = _chosen.fast_split
fast_append = _chosen.fast_append
fast_deliver = _chosen.fast_deliver
fast_publish = _chosen.fast_publish
fast_received = _chosen.fast_received
fly_split = _chosen.fly_split
fly_append = _chosen.fly_append
fly_split_one = _chosen.fly_split_one
fnv1a = _chosen.fnv1a
fly_produced = _chosen.fly_produced
fly_fetch = _chosen.fly_fetch
fly_produce = _chosen.fly_produce
fly_received = _chosen.fly_received
headers_pack = _chosen.headers_pack
headers_unpack = _chosen.headers_unpack
records_split = _chosen.records_split
records_pack = _chosen.records_pack
records_deliver = _chosen.records_deliver
records_received = _chosen.records_received
segment_head = _chosen.segment_head
ws_split = _chosen.ws_split
ws_frame = _chosen.ws_frame
peer_object = _chosen.peer_object
peer_split = _chosen.peer_split
peer_deliver = _chosen.peer_deliver
peer_frame = _chosen.peer_frame
felix_split = _chosen.felix_split
felix_batch = _chosen.felix_batch
felix_append = _chosen.felix_append
felix_gets = _chosen.felix_gets
felix_deliver = _chosen.felix_deliver
felix_events = _chosen.felix_events
felix_publish = _chosen.felix_publish
felix_received = _chosen.felix_received
json_fault = _chosen.json_fault
json_head = _chosen.json_head
json_shape = _chosen.json_shape
Tails = _chosen.Tails
Routes = _chosen.Routes
CacheMemory = _chosen.CacheMemory
# Classes with threads, not functions over buffers: only the native kernel has them.
QuicEndpoint: "type[_chosen.QuicEndpoint] | None" = getattr(_chosen, "QuicEndpoint", None)
Sockets: "type[_chosen.Sockets] | None" = getattr(_chosen, "Sockets", None)
DirectReader: "type[_chosen.DirectReader] | None" = getattr(_chosen, "DirectReader", None)
DiskThreads: "type[_chosen.DiskThreads] | None" = getattr(_chosen, "DiskThreads", None)
