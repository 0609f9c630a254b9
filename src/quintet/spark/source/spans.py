"""Defines what a Spark task reads: ranges of offsets, and the segment files that hold them. Numbers and names only."""

from typing import NamedTuple

from quintet.flight import wire


class Span(NamedTuple):
    """Records first <= offset < last of a partition, and about how many bytes they are. `id` is the topic's number, which its
    files bear; `identity` tells it from every other topic."""

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
    """A span and the files it is in, if they can be mapped by a process that is on `machine`."""

    span: Span
    machine: wire.Machine | None = None
    files: tuple[wire.SegmentFile, ...] = ()
