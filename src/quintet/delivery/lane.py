"""Tracks one subscription in one partition: its position, what is in flight, what is due for redelivery.

Every offset below `position` is in exactly one of these, and moves only along these arrows:

    (not yet read) --take--> inflight --ack--> settled
                                |  ^
                        timeout |  | take again, attempt + 1
                                v  |
                               retry --ack--> settled        (a late acknowledgement still counts)
                                |
                 attempts used  v
                               dead ----dead letter durable--> settled

A record that is given back with a delay stays in flight, with nobody, until that is over. How long the acknowledgement of
a pushed record may take, and from when on that counts, is the business of its consumer (consumer.py).

Settled offsets are not remembered: what is pending is. So `state()` is small and a restart redelivers just what was not
acknowledged.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from quintet.delivery.consumer import Consumer, Flight
from quintet.delivery.delivered import LaneRanges
from quintet.delivery.sink import Sink
from quintet.delivery.traces import LaneTraces
from quintet.log.base import Partition
from quintet.model.batch import EXPIRY, SPARSE, RecordBatch

READ_BYTES = 1 << 20  # asked of the log at a time

# A run of records of one batch, and the QoS they are delivered with.
Run = tuple[RecordBatch, int, int]


class Lane:
    """One partition as one subscription sees it."""

    __slots__ = (
        "_fetching",
        "_held",
        "_held_from",
        "_order",
        "_timers",
        "_wakes",
        "_working",
        "dead",
        "failed",
        "inflight",
        "partition",
        "position",
        "retry",
        "skipped",
        "delivered_ranges",
        "traces",
    )

    def __init__(self, partition: Partition, position: int) -> None:
        self.partition = partition
        self.position = position
        self.inflight: dict[int, Flight] = {}
        self.retry: dict[int, int] = {}  # offset -> attempts made, in the order they became due
        self.dead: dict[int, int] = {}  # offset -> attempts made, on their way to the dead-letter topic
        self.skipped = 0  # records that expired, or that retention took, before they could be delivered
        self.delivered_ranges: LaneRanges | None = None  # what is told to the audit
        self.traces: LaneTraces | None = None  # and to who follows sampled messages
        self._timers: list[tuple[int, int, Flight]] = []
        self._order = 0
        self._working: dict[int, int] = {}  # offset -> when its consumer last said that it works on it
        self._held: list[RecordBatch] = []
        self._held_from = 0  # the offset they were asked for: the first of them may start behind it
        self.failed = False  # the last read from disk failed; none is tried until somebody sets this back
        self._fetching = False
        self._wakes: list[Callable[[], None]] = []

    # -- taking ----------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Delivered or due again, not settled."""
        return len(self.inflight) + len(self.retry) + len(self.dead)

    @property
    def reading(self) -> bool:
        """Batches are on their way from disk."""
        return self._fetching

    @property
    def floor(self) -> int:
        """Everything below is settled."""
        lowest = [min(table) for table in (self.inflight, self.retry, self.dead) if table]
        return min([self.position, *lowest])

    def take(self, limit: int, now: int, wake: Callable[[], None]) -> Run | None:
        """The next run of at most `limit` records, redeliveries first, or None: there is nothing now, or (`reading`) it
        is being read from disk and `wake` is called when it is there. Hand a run over with `sent` before the next."""
        while self.retry:
            offset = next(iter(self.retry))
            batch = self._batch_at(offset, wake)
            if batch is None:
                return None
            index = batch.index_of(offset)
            kept = batch.base_offset <= offset and index < batch.count and batch.offset(index) == offset
            if kept and _alive(batch, index, index + 1, now) > 0:
                last = self._retry_end(batch, index, limit)
                return (batch, index, index + _alive(batch, index, last, now))
            del self.retry[offset]  # it expired, or retention, compaction or quarantine took it
            self.skipped += 1
        while True:
            batch = self._batch_at(self.position, wake)
            if batch is None:
                return None
            base, count = batch.base_offset, batch.count
            if base > self.position:
                self.skipped += base - self.position
                self.position = base
            first = self.position - base if not batch.columns & SPARSE else batch.index_of(self.position)
            if first == count:
                self.position = batch.next_offset
                continue
            last = first + limit if first + limit < count else count
            alive = _alive(batch, first, last, now) if batch.columns & EXPIRY else last - first
            if alive > 0:
                return (batch, first, first + alive)
            self.skipped -= alive
            self.position = self._behind(batch, first - alive)

    def sent(
        self, run: Run, qos: int, sink: Sink, deadline: int, consumer: Consumer | None = None, monotonic: int = 0
    ) -> int:
        """The run was handed to a peer. QoS 1: it is in flight until `deadline`, or longer if the consumer has not reached
        it by then (`consumer`; `monotonic` is when it was sent). Returns the attempt number."""
        batch, first, last = run
        base = batch.base_offset
        offsets = range(base + first, base + last) if not batch.columns & SPARSE else self._offsets(batch, first, last)
        start = offsets[0]
        attempt = 1
        if self.retry and start in self.retry:
            attempt += self.retry[start]
            for offset in offsets:
                del self.retry[offset]
            end = offsets[-1] + 1
        else:
            end = self.position = base + batch.span if last == batch.count else batch.offset(last)
        if qos:
            flight = Flight(attempt, offsets, sink, consumer)
            if consumer is not None:
                consumer.handed(flight, monotonic, deadline - monotonic)
            if len(offsets) == 1:
                self.inflight[start] = flight
            else:
                self.inflight.update(dict.fromkeys(offsets, flight))
            self._order += 1
            heapq.heappush(self._timers, (deadline, self._order, flight))
        ranges = self.delivered_ranges
        if ranges is not None and (qos or ranges.every):
            if ranges.delivered_end == start:
                ranges.delivered_end = end
            else:
                ranges.delivered(start, end)
        if self.traces is not None:
            self.traces.delivered(start, end, attempt)
        return attempt

    def sent_next(self, offset: int, qos: int, sink: Sink, consumer: Consumer, monotonic: int, timeout_us: int) -> None:
        """The record at `position` was handed to a peer, for the first time, by who appended it: as `sent` of it alone, and nothing was read."""
        self.position = end = offset + 1
        if self._held:
            self._held = []  # of what was read before it: nothing in it is asked for next
        if qos:
            flight = Flight(1, range(offset, end), sink, consumer)
            consumer.handed(flight, monotonic, timeout_us)
            self.inflight[offset] = flight
            self._order += 1
            heapq.heappush(self._timers, (monotonic + timeout_us, self._order, flight))
        ranges = self.delivered_ranges
        if ranges is not None and (qos or ranges.every):
            if ranges.delivered_end == offset:
                ranges.delivered_end = end
            else:
                ranges.delivered(offset, end)
        if self.traces is not None:
            self.traces.delivered(offset, end, 1)

    def attempt_of(self, run: Run) -> int:
        """Which attempt handing out this run would be."""
        if not self.retry:
            return 1
        batch, first, _ = run
        return self.retry.get(batch.offset(first), 0) + 1

    # -- settling --------------------------------------------------------------------------------------------------

    def ack(self, offset: int) -> bool:
        """Settle one record; False if it is not pending."""
        flight = self.inflight.pop(offset, None)
        if flight is None:
            return bool(self.retry) and self.retry.pop(offset, None) is not None
        flight.left -= 1
        if flight.consumer is not None:
            flight.consumer.held -= 1
        if self._working:
            self._working.pop(offset, None)
        return True

    def _land(self, offset: int) -> Flight | None:
        """It is no longer in flight; the flight it was in."""
        flight = self.inflight.pop(offset, None)
        if flight is not None:
            flight.left -= 1
            if flight.consumer is not None:
                flight.consumer.held -= 1
            if self._working:
                self._working.pop(offset, None)
        return flight

    def _time(self, flight: Flight, deadline: int) -> None:
        self._order += 1
        heapq.heappush(self._timers, (deadline, self._order, flight))

    def working(self, offset: int, monotonic: int) -> bool:
        """The consumer works on it: its clock starts again. False if nobody has it."""
        flight = self.inflight.get(offset)
        if flight is None or flight.consumer is None:
            return False
        self._working[offset] = monotonic
        return True

    def nack(self, offset: int, due: int, attempts_max: int) -> bool:
        """The consumer failed: it is due again at `due`, or dead when its attempts are used up. False if nobody has it."""
        flight = self.inflight.get(offset)
        if flight is None or flight.sink is None:
            return False
        self._land(offset)
        if flight.attempt >= attempts_max:
            self.dead[offset] = flight.attempt
        else:
            self.inflight[offset] = waiting = Flight(flight.attempt, [offset], None)
            self._time(waiting, due)
            self._told_back(offset, flight)
        return True

    def settle(self, offset: int) -> None:
        """Settle one record wherever it is, any number of times. After a crash the position may be behind it: then what
        lies between is due."""
        if self._land(offset) is None and self.retry.pop(offset, None) is None:
            self.dead.pop(offset, None)
        if offset >= self.position:
            self.retry.update(dict.fromkeys(range(self.position, offset), 0))
            self.position = offset + 1

    def next_deadline(self) -> int | None:
        timers = self._timers
        while timers and not timers[0][2].left:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def expire(self, monotonic: int, attempts_max: int) -> None:
        """Move what was not acknowledged in time to retry, or to dead when its attempts are used up."""
        timers = self._timers
        while timers and timers[0][0] <= monotonic:
            flight = heapq.heappop(timers)[2]
            due = self._give_back(flight, monotonic, attempts_max)
            if due is not None:
                self._time(flight, due)

    def release(self, sink: Sink, attempts_max: int) -> None:
        """A peer is gone: what it had is due again at once. Only the record it was most likely working on, the first one
        it had not settled, counts as an attempt: what was merely sent ahead must not end as a dead letter."""
        held = [(offset, flight) for offset, flight in self.inflight.items() if flight.sink is sink]
        for number, (offset, flight) in enumerate(held):
            self._land(offset)
            if number == 0 and flight.attempt >= attempts_max:
                self.dead[offset] = flight.attempt
            else:
                self.retry[offset] = flight.attempt - (number > 0)
                self._told_back(offset, flight)
        if held and len(self.retry) > len(held):  # others were due already, and those came later
            self.retry = dict(sorted(self.retry.items()))

    def _give_back(self, flight: Flight, monotonic: int, attempts_max: int) -> int | None:
        """What its time is over for; when to look at the rest again, if there is any."""
        target = self.dead if flight.attempt >= attempts_max else self.retry
        due = None
        for offset in flight.offsets:
            if self.inflight.get(offset) is not flight:
                continue
            if flight.consumer is not None:
                since = flight.consumer.since(flight, offset, due is None)
                if since is None:  # it waits, and so does what is behind it: at the earliest it is reached now
                    return min(monotonic + flight.wait_us, due or monotonic + flight.wait_us)
                end = max(since, self._working.get(offset, 0)) + flight.wait_us
                if end > monotonic:
                    due = end if due is None else min(due, end)
                    continue
                flight.consumer.timed_out(monotonic)
            self._land(offset)
            target[offset] = flight.attempt
            if target is self.retry:
                self._told_back(offset, flight)
        return due

    def _told_back(self, offset: int, flight: Flight) -> None:
        if self.traces is not None and flight.sink is not None:
            self.traces.given_back(offset, flight.attempt)

    # -- what survives a restart -----------------------------------------------------------------------------------

    def state(self) -> tuple[int, list[tuple[int, int, int]]]:
        """(position, [(first, last, attempts)]): ranges still pending. In flight counts as one attempt less: it may
        never have reached the peer."""
        inflight = self.inflight
        pending = [(offset, offset + 1, attempts) for offset, attempts in (self.retry | self.dead).items()]
        for flight, still in Counter(inflight.values()).items():
            offsets, attempts = flight.offsets, flight.attempt - 1
            if still == len(offsets) and isinstance(offsets, range):  # the common case: nobody looks at each record
                pending.append((offsets.start, offsets.stop, attempts))
            else:
                pending += [(o, o + 1, attempts) for o in offsets if inflight.get(o) is flight]
        pending.sort()
        ranges: list[tuple[int, int, int]] = []
        for first, last, attempts in pending:
            if ranges and ranges[-1][1] == first and ranges[-1][2] == attempts:
                ranges[-1] = (ranges[-1][0], last, attempts)
            else:
                ranges.append((first, last, attempts))
        return self.position, ranges

    def restore(self, position: int, ranges: Iterable[tuple[int, int, int]]) -> None:
        self.position = position
        for first, last, attempts in ranges:
            self.retry.update(dict.fromkeys(range(first, min(last, position)), attempts))

    # -- batches ---------------------------------------------------------------------------------------------------

    def _batch_at(self, offset: int, wake: Callable[[], None]) -> RecordBatch | None:
        """The batch that holds offset, or the first one behind it; None if it is not in memory yet, or there is none."""
        if self._held:
            last = self._held[-1]
            if self._held_from <= offset < last.base_offset + last.span:
                for batch in self._held:
                    if offset < batch.base_offset + batch.span:
                        return batch
        found = self.partition.read(offset, READ_BYTES)
        if found is None:
            if self.failed:
                return None
            if wake not in self._wakes:
                self._wakes.append(wake)
            if not self._fetching:
                self._fetching = True
                self.partition.fetch(offset, READ_BYTES, partial(self._fetched, offset, self.partition.visible))
            return None
        self._held, self._held_from = found, offset
        for batch in found:
            if offset < batch.base_offset + batch.span:
                return batch
        return None

    def _fetched(self, offset: int, visible: int, batches: list[RecordBatch], error: Exception | None) -> None:
        """The disk answered. Nothing sound from `offset` on (all of it is quarantined): pass over it."""
        self._fetching = False
        self.failed = error is not None
        if batches:
            self._held, self._held_from = batches, offset
        elif error is None and self.retry.pop(offset, None) is None:
            self.skipped += max(0, visible - self.position)
            self.position = max(self.position, visible)
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def _retry_end(self, batch: RecordBatch, index: int, limit: int) -> int:
        """End of the run of records due again, with the same attempts as the first one."""
        attempts = self.retry[batch.offset(index)]
        last = index + 1
        while last < batch.count and last - index < limit and self.retry.get(batch.offset(last)) == attempts:
            last += 1
        return last

    def _behind(self, batch: RecordBatch, index: int) -> int:
        """The position behind record index - 1 of a batch."""
        return batch.next_offset if index == batch.count else batch.offset(index)

    def _offsets(self, batch: RecordBatch, first: int, last: int) -> Sequence[int]:
        """Of a batch with holes."""
        return [batch.offset(index) for index in range(first, last)]


def _alive(batch: RecordBatch, first: int, last: int, now: int) -> int:
    """How many records from `first` on have not expired, or minus how many have: the first decides which."""
    if last - first == 1 and batch.columns & EXPIRY:
        expiry = batch.expiry(first)
        return 1 if not expiry or expiry > now else -1
    table = batch.expiries(first, last)
    if table is None:
        return last - first
    expiry = table[0]
    if table.count(expiry) == last - first:  # most often all of a batch expire together
        return last - first if not expiry or expiry > now else first - last
    alive = [not expiry or expiry > now for expiry in table]
    run = alive.index(not alive[0]) if (not alive[0]) in alive else len(alive)
    return run if alive[0] else -run
