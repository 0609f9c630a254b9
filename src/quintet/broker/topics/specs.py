"""Makes the properties of a topic: as asked for, of a cache, or as its row in `__topics` has them. The catalog alone makes topics."""

from dataclasses import replace
from typing import Literal

import msgspec

from quintet.broker.topics.names import is_cache_name
from quintet.log.base import Durability, TopicSpec

CACHE_SEGMENT_BYTES = 4 << 20  # compaction begins with the second segment: a cache of few keys stays small on disk
CACHE_TOMBSTONE_US = 3600 * 1_000_000  # for readers to see what was deleted

NO_EXTRA: dict[str, str] = {}
EXTRAS_MAX = 1_000  # kept for topics to come


class TopicRow(msgspec.Struct, frozen=True):
    """What `__topics` keeps of a topic."""

    id: int
    name: str
    partitions: int
    durability: Durability
    retention_us: int
    retention_bytes: int
    compact: bool
    segment_bytes: int
    extra: dict[str, str] = {}
    identity: str = ""  # "": a row from before topics had one


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


def row_of(spec: TopicSpec) -> TopicRow:
    return TopicRow(**{name: getattr(spec, name) for name in TopicRow.__struct_fields__})


class SameValues:
    """What rows before had: most topics have the same numbers, and the same owner, so one object serves all of them."""

    __slots__ = ("_extras", "_numbers")

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._extras: dict[tuple[tuple[str, str], ...], dict[str, str]] = {(): NO_EXTRA}

    def number(self, number: int) -> int:
        return self._numbers.setdefault(number, number)

    def extra(self, extra: dict[str, str]) -> dict[str, str]:
        """Nothing is ever put into what this returns: another one takes its place."""
        key = tuple(extra.items())
        if len(self._extras) >= EXTRAS_MAX:  # queues have a key each
            return self._extras.get(key, extra)
        return self._extras.setdefault(key, extra)


def spec_of(row: TopicRow, memory_bytes: int, same: SameValues) -> TopicSpec:
    number = same.number
    spec = TopicSpec(
        id=row.id,
        name=row.name,
        partitions=number(row.partitions),
        durability=row.durability,
        retention_us=number(row.retention_us),
        retention_bytes=number(row.retention_bytes),
        compact=row.compact,
        segment_bytes=number(row.segment_bytes),
        memory_bytes=memory_bytes,
        extra=same.extra(row.extra),
        identity=row.identity,
    )
    return replace(spec, tombstone_us=CACHE_TOMBSTONE_US) if is_cache(spec) else spec


def is_cache(spec: TopicSpec) -> bool:
    """Not one of three or five parts that is older than caches are."""
    return spec.compact and is_cache_name(spec.name)
