"""Removes reply addresses that nothing came to for a while: topics `reply/...`, which clients make to be answered and leave behind.

A client whose address was removed makes another one with its next question.
"""

from collections.abc import Callable
from typing import Final

from quintet.broker.topics.catalog import REPLY_PREFIX, Topic, Topics
from quintet.model.errors import QuintetError

CHECK_EVERY_US: Final = 60_000_000
IDLE_US: Final = 3_600_000_000
REMOVED_AT_ONCE: Final = 1_000


class ReplyTopics:
    """What each address had at the last look, and since when."""

    def __init__(self, topics: Topics, delete: Callable[[Topic], object]) -> None:
        self._topics = topics
        self._delete = delete
        self._checked_at = 0
        self._seen: dict[bytes, tuple[int, int]] = {}  # name -> next offset, and since when

    def tick(self, monotonic: int) -> None:
        if monotonic - self._checked_at < CHECK_EVERY_US:
            return
        self._checked_at = monotonic
        seen: dict[bytes, tuple[int, int]] = {}
        removed = 0
        for topic in self._topics.all():
            if not topic.raw.startswith(REPLY_PREFIX):
                continue
            at = sum(partition.visible for partition in topic.partitions)
            before = self._seen.get(topic.raw)
            since = before[1] if before is not None and before[0] == at else monotonic
            if monotonic - since >= IDLE_US and not topic.subscriptions and removed < REMOVED_AT_ONCE:
                removed += 1
                try:
                    self._delete(topic)
                    continue
                except QuintetError:  # a full disk: later
                    pass
            seen[topic.raw] = (at, since)
        self._seen = seen
