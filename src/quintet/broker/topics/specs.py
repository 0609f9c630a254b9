"""Makes the properties of a topic what was asked for, or those of a cache. The catalog alone makes topics of them."""

from dataclasses import replace
from typing import Literal

from quintet.log.base import Durability, TopicSpec

CACHE_SEGMENT_BYTES = 4 << 20  # compaction begins with the second segment: a cache of few keys stays small on disk
CACHE_TOMBSTONE_US = 3600 * 1_000_000  # for readers to see what was deleted


def given(durability: Durability | Literal[""], retention_us: int, retention_bytes: int, spec: TopicSpec) -> TopicSpec:
    """What was asked for in place of what the configuration says; 0 and "" ask for nothing."""
    return replace(
        spec,
        durability=durability or spec.durability,
        retention_us=retention_us or spec.retention_us,
        retention_bytes=retention_bytes or spec.retention_bytes,
    )


def as_cache(durability: Durability, spec: TopicSpec) -> TopicSpec:
    """A compacted topic that keeps every key."""
    return replace(
        spec,
        durability=durability,
        compact=True,
        retention_us=0,
        retention_bytes=0,
        segment_bytes=CACHE_SEGMENT_BYTES,
        tombstone_us=CACHE_TOMBSTONE_US,
    )
