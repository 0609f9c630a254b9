"""Keeps the last batches that were read alone, one of a segment: who reads record by record has its batch checked once.

What is kept was checked, and is a copy: a page that rots later is not looked at. A segment that compaction put in the place of
another has another seed, and one that retention took is not asked for. Belongs to the loop thread. No I/O here.
"""

from typing import Final

from quintet.model import limits
from quintet.model.batch import RecordBatch

BATCHES_MAX: Final = 256
BYTES_MAX: Final = 8 * limits.MIB  # over all of them; a batch above a quarter of it is not kept

Place = tuple[str, int, int]  # path of a segment, its first offset, its seed


class RecentBatches:
    """At most BATCHES_MAX and BYTES_MAX; the one that was kept longest ago goes first."""

    __slots__ = ("_batches", "bytes")

    def __init__(self) -> None:
        self._batches: dict[Place, RecordBatch] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._batches)

    def find(self, place: Place, offset: int) -> RecordBatch | None:
        """The batch of this segment that holds the offset, if it is the one that was read last."""
        batch = self._batches.get(place)
        return batch if batch is not None and batch.base_offset <= offset < batch.next_offset else None

    def keep(self, place: Place, batch: RecordBatch) -> None:
        if batch.length > BYTES_MAX // 4:
            return
        self._drop(place)
        self._batches[place] = batch
        self.bytes += batch.length
        while self.bytes > BYTES_MAX or len(self._batches) > BATCHES_MAX:
            self._drop(next(iter(self._batches)))

    def _drop(self, place: Place) -> None:
        batch = self._batches.pop(place, None)
        if batch is not None:
            self.bytes -= batch.length
