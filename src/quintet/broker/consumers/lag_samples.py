"""Samples how far every consumer group is behind, in messages and seconds, a few groups a turn.

Who asks gets the last whole sample at once; if that is old, a new one is begun. The age of a record may have to be read from
disk, so a sample is not taken within a scrape. Nothing is sampled while nobody asks.
"""

from typing import Final

import msgspec

from quintet.broker.consumers.coordinator import Groups
from quintet.broker.topics.catalog import Topics
from quintet.model.errors import QuintetError
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import next_turn, start_alone

SAMPLE_US: Final = 5_000_000  # a sample is taken for this long
PARTITIONS_AT_ONCE: Final = 32  # in one turn, about 10 us each where the record is in memory


class GroupLag(msgspec.Struct, frozen=True):
    """Over all partitions: messages not committed, the age of the oldest of them, and the sum of what is committed."""

    topic: str
    group: str
    messages: int
    seconds: float
    committed: int


class LagSamples:
    """The last sample of all groups."""

    def __init__(self, groups: Groups, topics: Topics, scheduler: Scheduler) -> None:
        self._groups = groups
        self._topics = topics
        self._scheduler = scheduler
        self.taken = -SAMPLE_US  # when the last sample was finished, by the monotonic clock
        self._sampling = False
        self._last: list[GroupLag] = []

    def latest(self) -> list[GroupLag]:
        """The groups furthest behind first."""
        if not self._sampling and self._scheduler.monotonic() - self.taken >= SAMPLE_US:
            self._sampling = True
            start_alone(self._scheduler, self._sample())
        return self._last

    async def _sample(self) -> None:
        found: list[GroupLag] = []
        steps = 0
        try:
            for info in self._groups.walk("", privileged=True):
                topic = None if info is None else self._topics.get(info.topic.encode())
                if info is None or topic is None:
                    continue
                messages, age_ms, committed = 0, 0, 0
                for number in range(len(topic.partitions)):
                    steps += 1
                    if steps % PARTITIONS_AT_ONCE == 0:
                        await next_turn(self._scheduler)
                    try:
                        lag = await self._groups.offsets.lag("", True, topic, info.group, number)
                    except QuintetError:  # the group or its topic went meanwhile, or a range is damaged
                        continue
                    messages += lag.lag_messages
                    committed += lag.committed
                    age_ms = max(age_ms, lag.lag_ms)
                found.append(GroupLag(info.topic, info.group, messages, age_ms / 1000, committed))
            found.sort(key=lambda each: (-each.messages, each.topic, each.group))
            self._last = found
        finally:
            self.taken = self._scheduler.monotonic()
            self._sampling = False
