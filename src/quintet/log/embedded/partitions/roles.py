"""Defines a partition as the committer, the upkeep, the anchors and the memory bound see it, and the Chunk they pass around.

These modules stand below partition.py and never import it.
"""

from collections.abc import Generator
from typing import NamedTuple, Protocol

from quintet.log.base import Appended
from quintet.log.embedded.files.segment import HEADER_BYTES, Segment
from quintet.log.embedded.partitions.links import Links
from quintet.log.embedded.recovery.directories import Mark
from quintet.model.errors import StorageError


def place_number(topic_id: int, partition: int) -> int:
    """One number for both, as a key: a pair takes three times the memory, and there may be 100,000 of them."""
    return topic_id << 32 | partition


def place_of(number: int) -> tuple[int, int]:
    """The topic and the partition of a place_number."""
    return number >> 32, number & 0xFFFF_FFFF


class Chunk:
    """Batches that go into one segment one behind the other, and who waits for them."""

    __slots__ = ("began", "buffers", "end", "header", "late", "owed", "position", "segment", "waiters")

    def __init__(self, segment: Segment, position: int, began: int = 0) -> None:
        self.began = began  # when the first of them was appended, by the monotonic clock; 0: nobody asks
        self.segment = segment
        self.position = position
        self.end = position
        self.header = b""  # of the segment, if it is packed and begins with this chunk: written with it
        self.late = False  # the journal gets it, and its segment only after that
        self.owed = 0  # bytes as they were appended: merging makes fewer of them
        self.buffers: list[bytearray] = []
        self.waiters: list[tuple[bytearray, Appended | None, int]] = []

    @property
    def size(self) -> int:
        return self.end - self.position

    @property
    def journaled_bytes(self) -> int:
        """What it takes in a record of the journal."""
        return self.size + (0 if self.segment.created else HEADER_BYTES)


class Outcome(NamedTuple):
    """How many chunks are as durable as the topic promises, and why the next one is not."""

    written: int
    error: StorageError | None


# How a partition's chunks are written: yields a segment that must be durable, with its name, before it goes on. Whoever runs it throws in
# why that is not so.
Steps = Generator[Segment, None, Outcome]


class SegmentSync(Protocol):
    """What writes and syncs segments in a disk thread (writer.Writer)."""

    def sync_segment(self, segment: Segment) -> None: ...

    def sync_whole(self, files: list[Segment]) -> bool: ...

    def sync_failed(self, segment: Segment, error: Exception) -> StorageError: ...


class Committable(Protocol):
    """A partition with chunks to be made durable (commit.Committer)."""

    topic_id: int
    number: int

    @property
    def visible(self) -> int: ...

    @property
    def is_packed(self) -> bool: ...

    def write_direct(self) -> None: ...

    def small_chunk(self, bytes_max: int) -> Chunk | None: ...

    def put(self, chunk: Chunk, here: bool) -> StorageError | None: ...

    def restage(self, chunk: Chunk) -> None: ...

    def take_back(self, chunk: Chunk, error: BaseException) -> StorageError: ...

    def journaled(self, chunk: Chunk) -> None: ...

    def tell(self, chunk: Chunk) -> None: ...

    def refused(self, chunk: Chunk, error: StorageError) -> None: ...

    def is_synced(self, offset: int) -> bool: ...

    def begin_sync(self) -> tuple[SegmentSync, Segment, Mark] | None: ...

    def synced(self, mark: Mark, error: StorageError | BaseException | None) -> None: ...


class Maintained(Protocol):
    """A partition with files to be synced, probed or closed from time to time (upkeep.Upkeep)."""

    @property
    def idle_at(self) -> int: ...

    def probe(self, monotonic: int) -> bool: ...

    def sync_if_due(self, monotonic: int) -> bool: ...

    def rest(self, in_a_hurry: bool) -> bool: ...


class AnchoredPartition(Protocol):
    """A partition with a durable mark and the head of an audit chain (engine, anchoring)."""

    topic_id: int
    number: int
    mark: Mark | None
    links: Links

    @property
    def start(self) -> int: ...
