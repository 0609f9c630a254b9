"""Measures rates, lag and producers for the console: from counters and records that are there anyway, nothing per message.

Every EVERY_S seconds while somebody looks, every IDLE_S otherwise, one walk in slices over topics, groups, subscriptions and connections. A rate
is the difference of two walks. Who publishes is read from the records themselves, which carry their origin ("door:name"): of each
topic that grew, the newest batches that are in memory, at most SAMPLE_BYTES of a partition; shares are scaled to the whole growth.
After a restart the last records of a topic say who published, so the map is not empty before the next message.
"""

import asyncio
import contextlib
import itertools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from quintet import kernel
from quintet.broker.core import Broker
from quintet.broker.slices import Steps, Unwanted
from quintet.broker.topics.catalog import Topic
from quintet.broker.topics.seek import read_from
from quintet.console.awaiting import run, wait_for
from quintet.console.connections import ConnectionRates, Listeners
from quintet.log.base import Partition
from quintet.model.batch import RecordBatch
from quintet.model.errors import QuintetError

EVERY_S: Final = 2.0
IDLE_S: Final = 30.0
WATCHED_S: Final = 60.0  # after the last request
POINTS_MAX: Final = 300  # of one history: ten minutes while somebody looks
HISTORIES_MAX: Final = 2_000  # those that changed last
SAMPLE_BYTES: Final = 32 << 10  # read of one partition in one walk
SAMPLE_TOPICS_MAX: Final = 500  # looked into in one walk
DISK_LOOKS_MAX: Final = 10  # topics whose last records are read from disk, in one walk
IDLE_TOPICS_MAX: Final = 2_000  # with figures although nothing came to them since the start
LAST_RECORDS: Final = 100  # looked at of a topic that nobody looked at before
PRODUCERS_OF_TOPIC_MAX: Final = 100
FORGET_S: Final = 900.0  # a producer that was not seen for so long
_ORIGIN_COUNT: Final = 62  # place of the number of origins in a batch's header


class History:
    """Points of (seconds since 1970, value), the oldest first."""

    __slots__ = ("times", "values")

    def __init__(self) -> None:
        self.times = array("d")
        self.values = array("d")

    def add(self, time: float, value: float) -> None:
        self.times.append(time)
        self.values.append(value)
        if len(self.times) > POINTS_MAX + POINTS_MAX // 4:
            del self.times[: POINTS_MAX // 4], self.values[: POINTS_MAX // 4]

    def points(self) -> dict[str, list[float]]:
        return {"times": [round(time, 1) for time in self.times], "values": [round(value, 2) for value in self.values]}


@dataclass(slots=True)
class Producer:
    """One origin in one topic."""

    rate: float = 0.0
    seen: float = 0.0  # seconds since 1970
    records: int = 0  # that were looked at


# Of topics that nobody looked into yet. Nothing is ever put into these.
NO_PRODUCERS: Final[dict[str, Producer]] = {}
NOT_LOOKED: Final[list[int]] = []


@dataclass(slots=True)
class TopicFigures:
    """What two walks say of a topic."""

    published: int = 0
    rate: float = 0.0
    bytes: int = 0
    byte_rate: float = 0.0
    producers: dict[str, Producer] = field(default_factory=lambda: NO_PRODUCERS)
    looked: list[int] = field(default_factory=lambda: NOT_LOOKED)  # the next offset to look at, of each partition


@dataclass(slots=True)
class ReaderFigures:
    """What two walks say of a group or subscription: `done` counts what it is through with."""

    done: int = 0
    rate: float = 0.0
    lag: int = 0
    trend: float = 0.0  # change of the lag, a second
    behind_ms: int = 0  # age of the oldest record a group has not read


Reader = tuple[str, str]  # (topic, group), or ("", id of a subscription)


class Sampler:
    """The figures of one broker. Reads, never changes."""

    def __init__(self, broker: Broker, listeners: Callable[[], Listeners]) -> None:
        self._broker = broker
        self.connections = ConnectionRates(listeners)
        self.topics: dict[str, TopicFigures] = {}
        self.readers: dict[Reader, ReaderFigures] = {}
        self.publish_rate = 0.0
        self.deliver_rate = 0.0
        self._delivered = 0
        self._lag_taken = 0
        self._histories: OrderedDict[tuple[str, ...], History] = OrderedDict()
        self._walked = 0.0
        self._watched = 0.0
        self._asked = asyncio.Event()
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.generation = 0  # of walks

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="console sampler")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def watched(self) -> None:
        """Somebody looks: walk often for a while."""
        self._watched = self._elapsed()
        self._asked.set()

    async def next_walk(self) -> None:
        """Go on when there are newer figures."""
        await self._fresh.wait()

    def history(self, *place: str) -> dict[str, list[float]]:
        found = self._histories.get(place)
        return found.points() if found is not None else {"times": [], "values": []}

    # -- walking ---------------------------------------------------------------------------------------------------

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(
                QuintetError, Unwanted
            ):  # too many long requests, or a disk that fails: the next may
                await self._walk()
            fresh, self._fresh = self._fresh, asyncio.Event()
            self.generation += 1
            fresh.set()
            self._asked.clear()
            await asyncio.sleep(EVERY_S)
            if self._elapsed() - self._watched > WATCHED_S:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), IDLE_S - EVERY_S)

    async def _walk(self) -> None:
        grown = await wait_for(self._broker.slices.finish(self._figures()))
        looks = DISK_LOOKS_MAX
        for topic, figures, growth, seconds in grown[:SAMPLE_TOPICS_MAX]:
            first = not figures.looked
            if first and looks:
                looks -= await self._look_back(topic, figures)
            self._look(topic, figures, growth, seconds)

    def _figures(self) -> Steps[list[tuple[Topic, TopicFigures, int, float]]]:
        """The counters of everything; topics that grew, or that nobody looked into. Of very many topics most are idle and
        have no figures: the first message that comes to one gives it some, and counts, because there was none before."""
        passed, wall = self._elapsed(), self._broker.scheduler.now() / 1e6
        seconds = passed - self._walked if self._walked else 0.0
        fresh: dict[str, TopicFigures] = {}
        grown: list[tuple[Topic, TopicFigures, int, float]] = []
        total = 0.0
        for topic in self._broker.topics.all():
            figures, published = self.topics.get(topic.name), topic.published
            if figures is None and not published and (len(grown) >= SAMPLE_TOPICS_MAX or len(fresh) >= IDLE_TOPICS_MAX):
                yield
                continue
            size = size_of(topic)
            if figures is None:
                figures = TopicFigures(published=published if not seconds else 0, bytes=size)
            growth = published - figures.published
            figures.rate = max(growth, 0) / seconds if seconds else 0.0
            figures.byte_rate = max(size - figures.bytes, 0) / seconds if seconds else 0.0
            figures.published, figures.bytes = published, size
            total += figures.rate
            fresh[topic.name] = figures
            if growth > 0 or not figures.looked or any(found.rate for found in figures.producers.values()):
                grown.append((topic, figures, growth, seconds))
            if growth > 0 or ("topic", topic.name) in self._histories:
                self._note(("topic", topic.name), wall, figures.rate)
            yield
        self.topics = fresh
        self.publish_rate = total
        self._note(("published",), wall, total)
        yield from self._reader_figures(seconds, wall)
        yield from self.connections.walk(seconds, passed)
        self._walked = passed
        return grown

    def _reader_figures(self, seconds: float, wall: float) -> Iterator[None]:
        fresh: dict[Reader, ReaderFigures] = {}
        yield from self._group_figures(fresh, wall)
        delivered = 0
        for subscription in self._broker.subscriptions.all():
            place = ("", str(subscription.id))
            delivered += subscription.delivered
            self._follow(fresh, place, subscription.delivered, subscription.backlog(), seconds, wall)
            yield
        self.readers = fresh
        pushed = max(delivered - self._delivered, 0) / seconds if seconds else 0.0
        self.deliver_rate = pushed + sum(figures.rate for (topic, _), figures in fresh.items() if topic)
        self._delivered = delivered
        self._note(("delivered",), wall, self.deliver_rate)

    def _group_figures(self, fresh: dict[Reader, ReaderFigures], wall: float) -> Iterator[None]:
        """From the samples that the metrics have, too; they are taken every few seconds while somebody asks."""
        samples = self._broker.lag
        rows, taken = samples.latest(), samples.taken
        between = (taken - self._lag_taken) / 1e6 if self._lag_taken else 0.0
        for row in rows:
            place = (row.topic, row.group)
            self._follow(fresh, place, row.committed, row.messages, between, wall)
            fresh[place].behind_ms = int(row.seconds * 1000)
            yield
        self._lag_taken = taken

    def _follow(
        self, fresh: dict[Reader, ReaderFigures], place: Reader, done: int, lag: int, seconds: float, wall: float
    ) -> None:
        found = self.readers.get(place)
        if found is None:
            found = ReaderFigures(done, 0.0, lag)
        elif seconds:
            found.rate = max(done - found.done, 0) / seconds
            found.trend = (lag - found.lag) / seconds
        found.done, found.lag = done, lag
        fresh[place] = found
        if lag or ("lag", *place) in self._histories:
            self._note(("lag", *place), wall, lag)

    def _note(self, place: tuple[str, ...], time: float, value: float) -> None:
        found = self._histories.get(place)
        if found is None:
            found = self._histories[place] = History()
            if len(self._histories) > HISTORIES_MAX:
                self._histories.popitem(last=False)
        if value:
            self._histories.move_to_end(place)
        found.add(time, value)

    # -- producers -------------------------------------------------------------------------------------------------

    async def _look_back(self, topic: Topic, figures: TopicFigures) -> int:
        """Who wrote the last records of a topic: how many reads from disk that took."""
        wall, looks = self._broker.scheduler.now() / 1e6, 0
        for partition in topic.partitions[:4]:
            first = max(partition.start, partition.visible - LAST_RECORDS)
            if first < partition.visible:
                looks += partition.read(first, 1) is None
                try:
                    batches = await run(read_from(partition, first, SAMPLE_BYTES))
                except QuintetError:
                    continue
                for batch in batches:
                    time = min(batch.max_timestamp / 1e6, wall)
                    for origin, count in origins_of(batch).items():
                        self._seen(figures, origin, count, time)
        figures.looked = [partition.visible for partition in topic.partitions]
        return looks

    def _look(self, topic: Topic, figures: TopicFigures, growth: int, seconds: float) -> None:
        """Who wrote what came since the last walk, as far as it is in memory."""
        wall = self._broker.scheduler.now() / 1e6
        if len(figures.looked) != len(topic.partitions):
            figures.looked = [partition.visible for partition in topic.partitions]
        found: Counter[str] = Counter()
        for number, partition in enumerate(topic.partitions):
            found += self._sample(partition, figures.looked[number])
            figures.looked[number] = partition.visible
        looked = sum(found.values())
        for producer in figures.producers.values():
            producer.rate = 0.0
        for origin, count in found.items():
            share = count / looked
            self._seen(figures, origin, count, wall).rate = share * growth / seconds if seconds else 0.0
        for origin in [name for name, producer in figures.producers.items() if wall - producer.seen > FORGET_S]:
            if len(figures.producers) > 1:  # the last one stays: who published is never forgotten altogether
                del figures.producers[origin]

    @staticmethod
    def _sample(partition: Partition, first: int) -> Counter[str]:
        """The origins of the newest records from `first` on that are in memory."""
        found: Counter[str] = Counter()
        if first >= partition.visible:
            return found
        for batch in partition.read(max(first, partition.start), SAMPLE_BYTES) or ():
            found += origins_of(batch)
        return found

    @staticmethod
    def _seen(figures: TopicFigures, origin: str, count: int, time: float) -> Producer:
        known = figures.producers.get(origin)
        if known is None:
            if not figures.producers:
                figures.producers = {}
            if len(figures.producers) >= PRODUCERS_OF_TOPIC_MAX:
                oldest = min(figures.producers, key=lambda name: figures.producers[name].seen)
                del figures.producers[oldest]
            known = figures.producers[origin] = Producer()
        known.seen = max(known.seen, time)
        known.records += count
        return known


def size_of(topic: Topic) -> int:
    """Bytes of its records, on disk or in memory."""
    return sum(partition.bytes_from(partition.start) for partition in topic.partitions)


def origins_of(batch: RecordBatch) -> Counter[str]:
    """How many records of a batch each origin has, without a look at a record."""
    buffer = memoryview(batch.buffer)
    number = int.from_bytes(buffer[_ORIGIN_COUNT : _ORIGIN_COUNT + 2], "little")
    offsets, data, index, *_ = kernel.layout(batch.buffer)
    ends = [int.from_bytes(buffer[at : at + 4], "little") for at in range(offsets, offsets + 4 * (number + 1), 4)]
    names = [bytes(buffer[data + a : data + b]).decode(errors="replace") for a, b in itertools.pairwise(ends)]
    if number <= 1 or not index:
        return Counter({name: batch.count for name in names[:1]})
    return Counter({names[at]: count for at, count in Counter(buffer[index : index + batch.count]).items()})
