"""Pools large buffers for reading segments, and reuses one as soon as no view of its bytes is left.

A fresh buffer of some MiB costs as much as the read into it: the operating system hands out each page zeroed. A buffer
goes back at once, while batches still look into it; whether they do is asked when it is wanted again (a bytearray with a
view refuses to change its size), so a reader need not release a batch.

Segments are not mapped instead, although the copy would be saved: a media error under a map kills the process, and a page
that was checked can be dropped and read again, rotten, before it is served. What is checked here is what is served.

Used by several disk threads at a time: every step is one atomic operation of a deque.
"""

from collections import deque
from typing import Final

from quintet.log.embedded.files.recent import RecentBatches
from quintet.model import limits

SLACK_BYTES: Final = limits.INDEX_EVERY_BYTES  # beside what was asked for: from the index entry to the batch
PIECE_BYTES: Final = 4 * limits.MIB  # read at once: more is slower, and a batch that is looked at holds its whole piece

# (bytes, kept at most): 77 MiB altogether if there are readers of all kinds
_KEPT: Final = (
    (256 * limits.KIB + SLACK_BYTES, 16),
    (limits.MIB + SLACK_BYTES, 8),
    (PIECE_BYTES + SLACK_BYTES, 16),
)


class ReadBuffers:
    """A pool without accounts: `take` a buffer, fill it, make views, `give` it back."""

    __slots__ = ("_kept", "_taken", "recent")

    def __init__(self) -> None:
        self.recent = RecentBatches()  # of the loop thread alone
        self._kept: tuple[tuple[int, deque[bytearray]], ...] = tuple((size, deque(maxlen=n)) for size, n in _KEPT)
        self._taken = False

    def take(self, size: int) -> bytearray:
        """A buffer of at least this size (at most PIECE_BYTES + SLACK_BYTES), with anything in it."""
        self._taken = True
        for capacity, kept in self._kept:
            if size <= capacity:
                for _ in range(len(kept)):
                    try:
                        buffer = kept.popleft()
                    except IndexError:  # another thread was faster
                        break
                    if not _looked_at(buffer):
                        return buffer
                    kept.append(buffer)
                return bytearray(capacity)
        raise ValueError(f"a read of {size} bytes is more than {PIECE_BYTES + SLACK_BYTES}")

    def give(self, buffer: bytearray) -> None:
        """Put back, views and all. Where there are enough already, the one given longest ago is let go."""
        for capacity, kept in self._kept:
            if len(buffer) == capacity:
                kept.append(buffer)

    def release_idle(self) -> None:
        """Give the memory back if nobody took a buffer since the last call: a start leaves 9 MiB. About every second."""
        if not self._taken:
            for _, kept in self._kept:
                kept.clear()
        self._taken = False


def _looked_at(buffer: bytearray) -> bool:
    """Is there a view of it? Within the room it has, changing its size moves no bytes."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False
