"""Knows how old the state is that readers of a follower see: since when it is known to have been all there was.

A node asks Kafka where the WAL ends, and notes when it asked. All that was acknowledged before that moment is below the answer. When
the node has applied the WAL up to there, and all of that is visible, its state is at most as old as the question. No two clocks are
compared. Time is a parameter; who asks, and what is refused, is decided elsewhere.
"""

from collections import deque
from typing import Final, Protocol

ANSWERS_MAX: Final = (
    1_000  # that wait to be applied: at 5 a second, a node that is 200 s behind. Later ones are left out
)


class Applied(Protocol):
    """A partition that batches were applied to."""

    @property
    def visible(self) -> int: ...

    @property
    def end(self) -> int: ...


class Freshness:
    """`told` for each answer, `touched` for each partition that is applied to, `look` before `since` is asked. Times are monotonic
    microseconds."""

    def __init__(self) -> None:
        self.since: int | None = (
            None  # at this moment the state that is visible now was all there was; None: not known yet
        )
        self._answers: deque[tuple[int, int]] = deque()  # (end of the WAL, when it was asked for)
        self._touched: set[Applied] = set()  # partitions that may have batches which are not visible yet
        self._waiting: dict[Applied, int] | None = (
            None  # partitions, and how far they must be visible; None: for nothing
        )
        self._asked = 0  # the moment that is taken for `since` then

    def told(self, end: int, asked: int) -> None:
        """The WAL ended at `end` after this moment."""
        if len(self._answers) < ANSWERS_MAX:
            self._answers.append((end, asked))

    def touched(self, partition: Applied) -> None:
        self._touched.add(partition)

    def dropped(self, partition: Applied) -> None:
        """Its topic is deleted: nobody reads it, and nothing of it need become visible."""
        self._touched.discard(partition)
        if self._waiting is not None:
            self._waiting.pop(partition, None)

    def look(self, applied: int) -> None:
        """applied: the WAL offset that is applied next."""
        if self._waiting is None:
            asked = -1
            while self._answers and self._answers[0][0] <= applied:
                asked = self._answers.popleft()[1]
            if asked < 0:
                return
            self._asked = asked
            self._touched = {partition for partition in self._touched if partition.visible < partition.end}
            self._waiting = {partition: partition.end for partition in self._touched}
        if all(partition.visible >= end for partition, end in self._waiting.items()):
            self._waiting, self.since = None, self._asked
