"""Runs one owner's subscription to one topic: pushes records to an attached sink, or hands them out by polls.

Push pulls: before reading the log it asks the sink for room and the window for credit; without either it parks and is
woken. Nothing here is queued between log and socket. Saving the state, dead letters and the audit are the broker's
business (broker/consumers/subscriptions.py, broker/audit/delivery_events.py); this file only says when there is something to do (`changed`,
`collect_dead`), and what was handed over and settled (`delivered_ranges`), through which door and for whom.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from quintet.delivery.consumer import Consumer
from quintet.delivery.delivered import DeliveredRanges, LaneRanges
from quintet.delivery.lane import Lane, Run
from quintet.delivery.sink import Sink
from quintet.delivery.traces import LaneTraces, Traces
from quintet.log.base import Partition
from quintet.model.batch import AT_MOST_ONCE, RecordBatch
from quintet.model.histogram import SKIPPED, Histogram

MESSAGES_PER_RUN_MAX = 65_536
BACKOFF_DOUBLINGS_MAX = 8  # records of a dead-letter topic are tried without end, and still within minutes

ATTEMPTS_WITHOUT_END: Final = 1 << 30  # on a dead-letter topic itself, and in a group: there is nowhere further to go


class Policy(msgspec.Struct, frozen=True):
    """How hard delivery tries. Times in microseconds."""

    in_flight_max: int = 1_000
    attempts_max: int = 5
    poll_backoff_us: int = 500_000  # first redelivery of a polled record; doubles with each attempt
    push_timeout_us: int = 30_000_000  # the same for pushed ones


class Subscription:
    """`qos` is the highest a record is delivered with; a record published with QoS 0 stays at 0."""

    __slots__ = (
        "_changed", "_full", "_monotonic", "_now", "_parked", "_policy", "_pumping", "_delivered_ranges", "_traces", "_turn", "ages", "consumer", "delivered", "dirty", "door",
        "id", "lanes", "last_used", "name", "owner", "qos", "sink", "topic_name",
    )  # fmt: skip

    def __init__(
        self,
        id: int,
        owner: str,
        topic_name: bytes,
        qos: int,
        lanes: list[Lane],
        policy: Policy,
        now: Callable[[], int],
        monotonic: Callable[[], int],
        changed: Callable[["Subscription"], None],
        *,
        door: str,
        who: str = "",
        delivered_ranges: DeliveredRanges | None = None,
        traces: Traces | None = None,
        name: str = "",
    ) -> None:
        self.id = id
        self.name = name
        self.owner = owner
        self.topic_name = topic_name
        self.qos = qos
        self.lanes = lanes
        self.door = door
        self._delivered_ranges = delivered_ranges
        self._traces = traces
        self.served_by(who or owner)
        self.sink: Sink | None = None
        self.consumer = Consumer(policy.push_timeout_us)  # of its consumer, who may have others: then they share one
        self.dirty = False
        self.delivered = 0
        self.last_used = monotonic()
        self._policy = policy
        self._now = now  # judges what expires; deadlines are of the other clock
        self._monotonic = monotonic
        self._changed = changed
        self._pumping = False
        self._parked = False
        self._full = False  # a lane had as many in flight as it may have: an acknowledgement may bring the next
        self._turn = 0
        self.ages: Histogram | None = None  # of what is pushed: one batch in SAMPLED

    def served_by(self, who: str) -> None:
        """Who gets what is handed over from now on, for the audit; "": several do, and who hands it to them says which."""
        topic = self.topic_name.decode()
        if self._traces is not None:
            for lane in self.lanes:
                lane.traces = LaneTraces(self._traces, self.door, who, topic, lane.partition.number)
        if self._delivered_ranges is not None:
            for lane in self.lanes:
                lane.delivered_ranges = (
                    LaneRanges(self._delivered_ranges, self.door, who, topic, lane.partition.number) if who else None
                )

    def limit(self, *, in_flight_max: int = 0, attempts_max: int = 0) -> None:
        """Another window, or another number of attempts, than the configured ones; 0 leaves it as it is."""
        self._policy = replace(
            self._policy,
            in_flight_max=in_flight_max or self._policy.in_flight_max,
            attempts_max=attempts_max or self._policy.attempts_max,
        )

    # -- push ------------------------------------------------------------------------------------------------------

    def grant(self, credit: int) -> None:
        """The consumer holds at most so many at a time; 0: as many as configured."""
        self.consumer.credit = credit
        self.consumer.feed()
        self.pump()

    def attach(self, sink: Sink) -> None:
        """Push to this sink from now on; whoever had it before loses it."""
        if self.sink is sink:
            return
        if self.sink is not None:
            self.detach(self.sink)
        self.sink = sink
        self._parked = False
        for lane in self.lanes:
            lane.partition.watch(self.pump)
        self.pump()

    def detach(self, sink: Sink) -> None:
        """The sink is gone: stop pushing to it, and what it had in flight is due again."""
        for lane in self.lanes:
            lane.release(sink, self._policy.attempts_max)
        self.last_used = self._monotonic()
        self._touch()
        if self.sink is sink:
            self.sink = None
            for lane in self.lanes:
                lane.partition.unwatch(self.pump)
        else:
            self.pump()
        self.consumer.feed()  # what it held was of the credit of other subscriptions, too

    def pump(self) -> None:
        """Hand over all that there is room and credit for."""
        sink = self.sink
        if sink is None or self._pumping or self._parked:
            return
        self._pumping = True
        self._full = False
        try:
            for lane in self.lanes if len(self.lanes) == 1 else self._in_turn():
                if (lane.position < lane.partition.visible or lane.retry) and not self._pump_lane(lane, sink):
                    break
        finally:
            self._pumping = False

    def push_appended(self, partition: Partition, batch: RecordBatch) -> None:
        """One record was just appended to this partition, by somebody who still has it, and can be read: hand it over if it is the next one and nothing
        stands against it. If something does, `pump` comes to it: the partition calls that in the same turn."""
        sink, lane, consumer, policy = self.sink, self.lanes[partition.number], self.consumer, self._policy
        offset = batch.base_offset
        if sink is None or self._pumping or self._parked or lane.position != offset or lane.retry:
            return
        if lane.partition is not partition or len(lane.inflight) + len(lane.dead) >= policy.in_flight_max:
            return
        if (consumer.credit and consumer.held >= consumer.credit) or sink.room() <= 0:
            return
        lane.sent_next(offset, self.qos, sink, consumer, self._monotonic(), policy.push_timeout_us)
        self._turn += 1
        self.delivered += 1
        if not self.dirty:
            self._touch()
        if self.ages is not None and self._turn & SKIPPED == 1:
            self.ages.observe((self._now() - batch.timestamp) / 1e6)
        self._pumping = True
        try:
            sink.records(self, partition.number, batch, 0, 1)
        finally:
            self._pumping = False

    def _in_turn(self) -> list[Lane]:
        """The lanes, after every run another one first: one that always has something must not starve the others."""
        lanes = self.lanes
        turn = self._turn % len(lanes)
        return lanes[turn:] + lanes[:turn] if turn else lanes

    def _pump_lane(self, lane: Lane, sink: Sink) -> bool:
        """False when the sink has no more room (or is gone)."""
        policy, consumer = self._policy, self.consumer
        while True:  # `pump` saw that there is something
            if sink.room() <= 0:
                self._parked = True
                sink.park(self._unpark)
                return False
            limit = MESSAGES_PER_RUN_MAX
            if self.qos:
                limit = policy.in_flight_max - len(lane.inflight) - len(lane.dead)
                if consumer.credit and consumer.room < limit:
                    limit = consumer.room
                    if limit <= 0:
                        consumer.starve(self.pump)
            if limit <= 0:
                self._full = True
                return True
            run = lane.take(limit, self._now(), self.pump)
            if run is None:
                if lane.failed:
                    self._touch()
                return True
            self._hand_over(lane, run, sink, policy.push_timeout_us)
            if self.sink is not sink:
                return False
            if lane.position >= lane.partition.visible and not lane.retry:
                return True

    def _unpark(self) -> None:
        self._parked = False
        self.pump()

    def _credit(self, lane: Lane) -> int:
        return (
            MESSAGES_PER_RUN_MAX if not self.qos else self._policy.in_flight_max - len(lane.inflight) - len(lane.dead)
        )

    def _hand_over(self, lane: Lane, run: Run, sink: Sink, timeout_us: int) -> None:
        batch, first, last = run
        qos = 0 if batch.flags & AT_MOST_ONCE else self.qos
        monotonic = self._monotonic()
        deadline = monotonic + (_backoff(timeout_us, lane.attempt_of(run)) if lane.retry else timeout_us) if qos else 0
        lane.sent(run, qos, sink, deadline, self.consumer, monotonic)
        self._turn += 1
        self.delivered += last - first
        if not self.dirty:
            self._touch()
        if self.ages is not None and self._turn & SKIPPED == 1:
            self.ages.observe((self._now() - batch.timestamp) / 1e6)
        sink.records(self, lane.partition.number, batch, first, last)

    # -- poll ------------------------------------------------------------------------------------------------------

    def poll(
        self, count: int, sink: Sink, wake: Callable[[], None], bytes_max: int, timeout_us: int = 0
    ) -> tuple[list[tuple[int, Run]], bool]:
        """Up to count records now as (partition, run), no more of them once they have bytes_max; and whether more may come
        once `wake` was called (they are being read from disk). The first acknowledgement may take timeout_us; 0: as configured
        for polls."""
        runs: list[tuple[int, Run]] = []
        now, monotonic = self._now(), self._monotonic()
        self.last_used = monotonic
        for lane in self._in_turn():
            while count > 0 and bytes_max > 0 and (lane.position < lane.partition.visible or lane.retry):
                limit = min(count, self._credit(lane))
                if limit <= 0:
                    break
                run = lane.take(limit, now, wake)
                if run is None:
                    if lane.reading:
                        return runs, True
                    if lane.failed:
                        self._touch()
                    break
                qos = 0 if run[0].at_most_once else self.qos
                wait_us = _backoff(timeout_us or self._policy.poll_backoff_us, lane.attempt_of(run))
                lane.sent(run, qos, sink, monotonic + wait_us)
                self._turn += 1
                count -= run[2] - run[1]
                bytes_max -= run[0].length * (run[2] - run[1]) // run[0].count
                self.delivered += run[2] - run[1]
                self._touch()
                runs.append((lane.partition.number, run))
        return runs, False

    # -- settling --------------------------------------------------------------------------------------------------

    def ack(self, partition: int, first: int, count: int) -> list[int]:
        """Settle offsets first..first+count-1 of a partition; returns those that are not pending here."""
        if not self.dirty:
            self._touch()
        if not 0 <= partition < len(self.lanes):
            return list(range(first, first + min(count, MESSAGES_PER_RUN_MAX)))
        lane = self.lanes[partition]
        last = first + min(count, MESSAGES_PER_RUN_MAX)
        flight, number = lane.inflight.get(last - 1), -1
        if flight is not None and flight.consumer is self.consumer:
            number = flight.number if len(flight.offsets) == 1 else flight.number_of(last - 1)
        self.consumer.acknowledged(number, self._monotonic())
        if count == 1:
            unknown = [] if lane.ack(first) else [first]
        else:
            unknown = [offset for offset in range(first, last) if not lane.ack(offset)]
        ranges, traces = lane.delivered_ranges, lane.traces
        if ranges is not None or traces is not None:
            for missing in (*unknown, last):
                if first < missing and ranges is not None:
                    ranges.acked(first, missing)
                if first < missing and traces is not None:
                    traces.acked(first, missing)
                first = missing + 1
        if self.consumer.starving:
            self.consumer.feed()
        if self._full:  # whatever else it waits for calls `pump` by itself
            self.pump()
        return unknown

    def working(self, partition: int, first: int, count: int) -> None:
        """The consumer works on these: their clocks start again. What it does not hold is passed over: it was too late."""
        if 0 <= partition < len(self.lanes):
            lane, monotonic = self.lanes[partition], self._monotonic()
            for offset in range(first, first + min(count, MESSAGES_PER_RUN_MAX)):
                lane.working(offset, monotonic)

    def nack(self, partition: int, first: int, count: int, delay_us: int | None, *, give_up: bool = False) -> list[int]:
        """The consumer failed with these: each is due again after the delay (None: as polled ones are, doubling with each
        attempt), or dead when its attempts are used up, or at once if the consumer gives it up. Returns those that it does not
        hold."""
        self._touch()
        offsets = range(first, first + min(count, MESSAGES_PER_RUN_MAX))
        if not 0 <= partition < len(self.lanes):
            return list(offsets)
        lane, monotonic, policy = self.lanes[partition], self._monotonic(), self._policy
        unknown = []
        most = 0 if give_up and policy.attempts_max < ATTEMPTS_WITHOUT_END else policy.attempts_max
        for offset in offsets:
            flight = lane.inflight.get(offset)
            attempt = 1 if flight is None else flight.attempt
            wait = _backoff(policy.poll_backoff_us, attempt) if delay_us is None else delay_us
            if not lane.nack(offset, monotonic + wait, most):
                unknown.append(offset)
        self.consumer.acknowledged(-1, monotonic)
        self._freed()
        return unknown

    def _freed(self) -> None:
        """Places in the window, and credit, may have become free; or records are due again."""
        self.consumer.feed()
        self.pump()

    def _touch(self) -> None:
        if not self.dirty:
            self.dirty = True
            self._changed(self)

    def next_deadline(self) -> int | None:
        return min((d for lane in self.lanes if (d := lane.next_deadline()) is not None), default=None)

    def expire(self, monotonic: int) -> None:
        """Deadlines have passed: give back what was not acknowledged, and push again."""
        for lane in self.lanes:
            lane.expire(monotonic, self._policy.attempts_max)
        self._touch()
        self._freed()

    @property
    def failed(self) -> bool:
        """A read from disk failed and was not tried again yet."""
        return any(lane.failed for lane in self.lanes)

    def read_again(self) -> None:
        """Try reads that failed once more."""
        for lane in self.lanes:
            lane.failed = False
        self.pump()

    def collect_dead(self) -> list[tuple[Lane, dict[int, int]]]:
        """Per lane, the offsets whose attempts are used up (offset -> attempts). They stay pending until the broker
        has buried them."""
        return [(lane, dict(lane.dead)) for lane in self.lanes if lane.dead]

    def bytes_ahead(self) -> int:
        """About how many bytes are not delivered yet, over all partitions."""
        return sum(lane.partition.bytes_from(lane.position) for lane in self.lanes)

    def backlog(self) -> int:
        """Records not settled yet, over all partitions."""
        return sum(lane.partition.visible - lane.position + lane.pending for lane in self.lanes)

    @property
    def parked(self) -> bool:
        """The peer's socket is full. One that its quota withholds records from (ADR 41) slows no publisher down."""
        return self._parked and not getattr(self.sink, "withheld", False)

    @property
    def in_flight_max(self) -> int:
        return self._policy.in_flight_max

    @property
    def push_timeout_us(self) -> int:
        return self._policy.push_timeout_us

    @property
    def attempts_max(self) -> int:
        return self._policy.attempts_max


def _backoff(first_us: int, attempt: int) -> int:
    """How long to wait for the acknowledgement of this attempt."""
    return first_us << min(attempt - 1, BACKOFF_DOUBLINGS_MAX)
