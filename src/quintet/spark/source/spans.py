"""Defines what a Spark task reads: ranges of offsets, and the segment files that hold them."""

from typing import NamedTuple

from quintet.flight import wire


class Span(NamedTuple):
    """Records first <= offset < last of a partition, and about how many bytes they are. `id` is the topic's number, as in its
    files; `identity` is unique among all topics."""

    topic: str
    id: int
    partition: int
    first: int
    last: int
    bytes: int = 0
    identity: str = ""

    @property
    def rows(self) -> int:
        return self.last - self.first


class MappedSpan(NamedTuple):
    """A span and the files that hold it, which processes on `machine` can map."""

    span: Span
    machine: wire.Machine | None = None
    files: tuple[wire.SegmentFile, ...] = ()
