"""Writes one row for each range of delivered or acknowledged offsets to the topic `__events`.

    {"event":"deliver"|"ack", "door":"blipmq", "who":"ann", "topic":"orders", "partition":0, "first":10, "last":25,
     "time":1700000000000000, "group":"billing"}        the key is the topic's name

says that offsets 10 to 24 (first <= offset < last) were handed to ann, or settled by her. A range may span offsets that have
no record (expired, compacted away). `time` is when the row was made, in microseconds: up to EVERY_US after the delivery,
never before it. `group` is there for offsets that a consumer group committed: from what was committed before on. A row may
come twice (a crash between a row and the state it belongs to, a record delivered again), and says the truth each time.

Moves are collected (delivery/delivered.py for subscriptions, `delivered` and `acked` for doors that answer reads), joined, and
appended as one batch about every EVERY_US. What the broker keeps as state (positions of subscriptions, committed offsets)
goes through `after`, and is appended when the rows that explain it are durable: partitions are synced each by itself, so that
both in one turn, rows first, would promise nothing. A crash may lose rows of the last EVERY_US whose state is lost with them,
or that have none (QoS 0); it never leaves a position without the rows that led to it.

A disk that fails is reported, the rows are counted as lost, and delivery goes on: `after` calls in any case, in order.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Literal

import msgspec

from quintet import kernel
from quintet.delivery.delivered import DeliveredRanges, Kind, Move
from quintet.delivery.traces import Attributes, Traces
from quintet.log.base import Log, Partition, TopicSpec
from quintet.model import limits
from quintet.model.errors import QuintetError
from quintet.model.scheduler import Scheduler
from quintet.model.tasks import Promise

EVENTS_TOPIC: Final = (15, "__events")
EVENTS_CHECKED_MAX: Final = 10_000  # rows looked at by a start
SEGMENTS: Final = 8  # the topic's bytes are removed in pieces of this share
EVERY_US: Final = 200_000
EVENTS_WAITING_MAX: Final = 10_000  # ranges in memory; at so many they are appended at once
EVENTS_OF_BATCH_MAX: Final = 10_000  # rows
EVENTS_UNSYNCED_MAX: Final = 200_000  # rows that wait for the disk; what comes above is lost, and that is said
REPORT_EVERY_US: Final = 1_000_000

Mode = Literal["all", "acknowledged", "off"]
Report = Callable[[str, dict[str, object]], None]
Call = Callable[[], None]
_Where = tuple[Kind, str, str, str, int, str]  # event, door, who, topic, partition, group


class EventRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `__events` keeps, as JSON."""

    event: Kind
    door: str
    who: str
    topic: str
    partition: int
    first: int
    last: int
    time: int
    group: str = ""


class Events:
    """The rows of one broker. `delivered_ranges` is what subscriptions are made with: None when nothing is to be written."""

    def __init__(
        self,
        log: Log,
        scheduler: Scheduler,
        report: Report,
        *,
        mode: Mode = "all",
        bytes_max: int = limits.EVENTS_BYTES_DEFAULT,
        traces: Traces | None = None,
    ) -> None:
        segment_bytes = max(bytes_max // SEGMENTS, limits.SEGMENT_BYTES_MIN)
        spec = TopicSpec(*EVENTS_TOPIC, retention_bytes=bytes_max, segment_bytes=segment_bytes)
        self.recorded = self.lost = 0
        self.delivered_ranges = (
            None if mode == "off" else DeliveredRanges(mode == "all", EVENTS_WAITING_MAX, self.flush)
        )
        self.traces = traces  # told of the same, if messages are followed
        self._every = mode == "all"
        self.fetched = 0  # messages that FlyMQ's readers asked for; those of subscriptions are counted there
        self._log = log
        self._partition: Partition = log.open_topic(spec)[0]
        self._scheduler = scheduler
        self._report = report
        self._ranges: dict[_Where, list[tuple[int, int]]] = {}
        self._count = 0  # of these ranges
        self._calls: list[Call] = []  # to be made when the next flush is durable
        self._flying: deque[tuple[int, list[Call]]] = deque()  # rows of an append on its way, and what waits for it
        self._unsynced = 0  # rows
        self._armed = False
        self._flushed_at = scheduler.monotonic()
        self._reported_at = self._flushed_at - REPORT_EVERY_US  # the first loss is reported at once
        self._unreported = 0
        self._encode = msgspec.json.Encoder().encode

    @property
    def partition(self) -> Partition:
        """The topic, to be read."""
        return self._partition

    def load(self) -> None:
        """Look at the newest rows: they explain positions that are saved elsewhere. Blocks: only used at start. Raises
        TableDamaged."""
        offset = max(self._partition.start, self._partition.visible - EVENTS_CHECKED_MAX)
        while offset < self._partition.visible:
            batches = self._partition.read_now(offset)
            if not batches:
                break
            offset = batches[-1].next_offset
        self._log.check_sound(self._partition.topic_id, "the audit of deliveries (__events)")

    # -- collecting ------------------------------------------------------------------------------------------------

    def delivered(self, door: str, who: str, topic: str, partition: int, first: int, last: int) -> None:
        """Offsets first to last - 1 were handed to somebody, who need not say that they arrived."""
        if door == "flymq":
            self.fetched += last - first
        if self.traces is not None:
            self.traces.delivered(door, who, topic, partition, first, last)
        if self._every and first < last:
            where: _Where = ("deliver", door, who, topic, partition, "")
            ranges = self._ranges.get(where)
            if ranges is not None and ranges[-1][1] == first:  # whoever reads on: the common case
                ranges[-1] = (ranges[-1][0], last)
            else:
                self._note(where, first, last)

    def acked(self, door: str, who: str, topic: str, partition: int, first: int, last: int, group: str = "") -> None:
        """Offsets first to last - 1 were settled by somebody, for a consumer group or for itself."""
        if self.traces is not None:
            told: Attributes = {"messaging.consumer.group.name": group} if group else {}
            self.traces.settled("commit" if group else "ack", door, who, topic, partition, (first, last), told)
        if self.delivered_ranges is not None and first < last:
            self._note(("ack", door, who, topic, partition, group), first, last)

    def _note(self, where: _Where, first: int, last: int) -> None:
        ranges = self._ranges.setdefault(where, [])
        if ranges and ranges[-1][1] == first:
            ranges[-1] = (ranges[-1][0], last)
            return
        ranges.append((first, last))
        self._count += 1
        if self._count >= EVENTS_WAITING_MAX:
            self.flush()

    # -- writing ---------------------------------------------------------------------------------------------------

    def tick(self, monotonic: int) -> None:
        """Called about every 50 ms."""
        if monotonic - self._flushed_at >= EVERY_US:
            self.flush()

    def after(self, call: Call) -> None:
        """Call when all that was collected up to now is durable, or lost: at once if there is nothing on its way. Calls are
        made in the order in which they were given, and must not raise."""
        if self._calls or self._count or (self.delivered_ranges is not None and self.delivered_ranges.moved):
            self._calls.append(call)
            if not self._armed:  # at the end of the turn: all who wait in it share one batch
                self._armed = True
                self._scheduler.soon(self.flush)
        elif self._flying:
            self._flying[-1][1].append(call)
        else:
            call()

    async def written(self) -> None:
        """As `after`, for who awaits it."""
        promise: Promise[None] = Promise()
        self.after(partial(promise.resolve, None))
        await promise

    def flush(self) -> None:
        """Append what was collected."""
        self._armed = False
        self._flushed_at = self._scheduler.monotonic()
        rows = self._rows(self._scheduler.now())
        for first in range(0, len(rows), EVENTS_OF_BATCH_MAX):
            self._append(rows[first : first + EVENTS_OF_BATCH_MAX])
        calls, self._calls = self._calls, []
        if self._flying:
            self._flying[-1][1].extend(calls)
        else:
            self._each(iter(calls))

    def _rows(self, now: int) -> list[EventRow]:
        moves: list[Move] = [] if self.delivered_ranges is None else self.delivered_ranges.take()
        rows = [EventRow(*move, now) for move in moves]
        ranges, self._ranges, self._count = self._ranges, {}, 0
        for (event, door, who, topic, partition, group), found in ranges.items():
            rows += [EventRow(event, door, who, topic, partition, first, last, now, group) for first, last in found]
        return rows

    def _append(self, rows: list[EventRow]) -> None:
        if self._unsynced >= EVENTS_UNSYNCED_MAX:
            self._lose(len(rows), f"{self._unsynced} rows wait for the disk already")
            return
        encode = self._encode
        batch = kernel.build(
            [encode(row) for row in rows], [row.topic.encode() for row in rows], origin=b"quintet:broker"
        )
        try:
            self._partition.append(batch, self._appended)
        except QuintetError as error:
            self._lose(len(rows), str(error))
            return
        self._unsynced += len(rows)
        self._flying.append((len(rows), []))

    def _appended(self, _offset: int, error: Exception | None) -> None:
        """The oldest append on its way is over: appends of a partition end in their order."""
        rows, calls = self._flying.popleft()
        self._unsynced -= rows
        if error is None:
            self.recorded += rows
        else:
            self._lose(rows, str(error))
        self._each(iter(calls))

    def _each(self, calls: Iterator[Call]) -> None:
        """All of them, although one may raise."""
        try:
            for call in calls:
                call()
        except BaseException:
            self._scheduler.soon(partial(self._each, calls))
            raise

    def _lose(self, rows: int, why: str) -> None:
        """The disk would not have them: the broker's own log is the place that is left."""
        self.lost += rows
        self._unreported += rows
        monotonic = self._scheduler.monotonic()
        if monotonic - self._reported_at >= REPORT_EVERY_US:
            self._report("audit_lost", {"what": "deliver and ack", "rows": self._unreported, "error": why})
            self._reported_at, self._unreported = monotonic, 0
