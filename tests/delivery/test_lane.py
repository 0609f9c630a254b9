"""Lane: whatever happens in whatever order, every record is settled once, or still pending; none is lost, none invented.

The model is three sets. The rules are what peers, time and restarts do; the control plants the mistake that matters most
(an offset forgotten on time-out) and must be caught by the same rules.
"""

from random import Random

import pytest

from quintet import kernel
from quintet.delivery.consumer import Consumer, Flight
from quintet.delivery.lane import Lane
from quintet.delivery.sink import Sink
from quintet.log.base import Appended, Fetched
from quintet.model.batch import RecordBatch

ATTEMPTS_MAX = 3
SINK: Sink = object()  # type: ignore[assignment]


class ListPartition:
    """Batches in a list; what `cold` says is on disk comes by fetch, when `deliver` is called."""

    topic_id = 16
    number = 0
    failure = None

    def __init__(self) -> None:
        self.batches: list[RecordBatch] = []
        self.cold = False
        self.start = 0
        self.waiting: list[tuple[int, Fetched]] = []

    @property
    def visible(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    end = visible

    def add(self, count: int, expiries: list[int] | None = None) -> None:
        batch = kernel.build([b"v%d" % (self.visible + n) for n in range(count)], expiries=expiries, origin=b"test:t")
        kernel.seal(batch, self.visible, 1, 0)
        self.batches.append(RecordBatch(batch))

    def read(self, offset: int, max_bytes: int) -> list[RecordBatch] | None:
        if self.cold:
            return None
        return [batch for batch in self.batches if batch.next_offset > offset][:2]

    def fetch(self, offset: int, max_bytes: int, done: Fetched) -> None:
        self.waiting.append((offset, done))

    def deliver(self) -> None:
        waiting, self.waiting = self.waiting, []
        for offset, done in waiting:
            done([batch for batch in self.batches if batch.next_offset > offset][:2], None)

    def append(self, batch: bytearray, done: Appended | None) -> int:
        raise NotImplementedError

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a lane does not use {name}")


class Model:
    """What must be true of a lane after every step."""

    def __init__(self, rng: Random, lane_type: type[Lane] = Lane) -> None:
        self.rng = rng
        self.partition = ListPartition()
        self.lane_type = lane_type
        self.lane = lane_type(self.partition, 0)  # type: ignore[arg-type]
        self.consumer = Consumer(16)
        self.now = 0
        self.settled: set[int] = set()

    def step(self) -> None:
        rng, lane = self.rng, self.lane
        choice = rng.random()
        if choice < 0.15:
            self.partition.add(rng.randint(1, 5))
        elif choice < 0.5:
            self.partition.cold = rng.random() < 0.3
            run = lane.take(rng.randint(1, 7), self.now, lambda: None)
            if run is not None:
                consumer = self.consumer if rng.random() < 0.7 else None  # pushed, or polled
                lane.sent(run, 1, SINK, self.now + rng.randint(1, 20), consumer, self.now)
            self.partition.deliver()
        elif choice < 0.75:
            known = [*lane.inflight, *lane.retry]
            offset = rng.choice(known) if known and rng.random() < 0.9 else rng.randint(0, 100)
            flight = lane.inflight.get(offset)
            if flight is not None and flight.consumer is not None:
                self.consumer.acknowledged(flight.number_of(offset), self.now)
            if lane.ack(offset):
                self.settled.add(offset)
        elif choice < 0.9:
            self.now += rng.randint(1, 15)
            lane.expire(self.now, ATTEMPTS_MAX)
        elif choice < 0.92:
            lane.working(rng.randint(0, 100), self.now)
        elif choice < 0.94:
            lane.nack(rng.randint(0, 100), self.now + rng.randint(0, 20), ATTEMPTS_MAX)
        elif choice < 0.96:
            lane.release(SINK, ATTEMPTS_MAX)
        else:
            self.consumer = Consumer(16)
            position, ranges = lane.state()
            self.lane = self.lane_type(self.partition, 0)  # type: ignore[arg-type]
            self.lane.restore(position, ranges)
        self.check()

    def check(self) -> None:
        lane = self.lane
        pending = [*lane.inflight, *lane.retry, *lane.dead]
        assert len(pending) == len(set(pending)), "an offset is in two places"
        assert not self.settled & set(pending), "a settled record came back"
        assert self.settled | set(pending) == set(range(lane.position)), "a record was lost or invented"
        assert lane.floor == min([lane.position, *pending])
        assert self.consumer.held == sum(flight.consumer is not None for flight in lane.inflight.values())
        for flight in set(lane.inflight.values()):
            assert flight.left == list(lane.inflight.values()).count(flight)
        assert (lane.next_deadline() is None) == (not lane.inflight), "something in flight has no deadline"


@pytest.mark.parametrize("seed", range(60))
def test_every_record_is_settled_or_pending(seed: int) -> None:
    model = Model(Random(seed))
    for _ in range(300):
        model.step()
    assert model.lane.position > 0


class ForgetfulLane(Lane):
    """Sabotage: a time-out forgets the last record of its flight."""

    __slots__ = ()

    def _give_back(self, flight: Flight, now: int, attempts_max: int) -> int | None:
        for offset in flight.offsets[-1:]:
            self._land(offset)
        return super()._give_back(flight, now, attempts_max)


def test_the_model_finds_a_forgetful_lane() -> None:
    with pytest.raises(AssertionError, match="lost or invented"):
        for seed in range(60):
            model = Model(Random(seed), ForgetfulLane)
            for _ in range(300):
                model.step()


def test_expired_records_are_passed_over_and_counted() -> None:
    partition = ListPartition()
    partition.add(6, expiries=[5, 5, 0, 100, 5, 0])
    lane = Lane(partition, 0)  # type: ignore[arg-type]
    taken = []
    while (run := lane.take(10, 50, lambda: None)) is not None:
        lane.sent(run, 0, SINK, 0)
        taken += [run[0].offset(index) for index in range(run[1], run[2])]
    assert taken == [2, 3, 5]
    assert lane.skipped == 3


def test_a_lost_peer_uses_up_an_attempt_of_the_first_record_only() -> None:
    partition = ListPartition()
    partition.add(3)
    lane = Lane(partition, 0)  # type: ignore[arg-type]
    for _ in range(ATTEMPTS_MAX):
        while (run := lane.take(10, 0, lambda: None)) is not None:
            lane.sent(run, 1, SINK, 1000)
        lane.release(SINK, ATTEMPTS_MAX)
    assert lane.dead == {0: ATTEMPTS_MAX}
    assert set(lane.retry) == {1, 2}


def test_two_waiters_for_one_read_are_both_woken() -> None:
    partition = ListPartition()
    partition.add(3)
    partition.cold = True
    lane = Lane(partition, 0)  # type: ignore[arg-type]
    woken: list[str] = []
    first, second = (lambda: woken.append("first")), (lambda: woken.append("second"))
    assert lane.take(1, 0, first) is None
    assert lane.take(1, 0, second) is None
    assert len(partition.waiting) == 1
    partition.deliver()
    assert woken == ["first", "second"]
    assert lane.take(1, 0, first) is not None


def test_a_batch_that_retention_took_is_skipped_not_waited_for() -> None:
    partition = ListPartition()
    partition.add(3)
    partition.add(2)
    lane = Lane(partition, 0)  # type: ignore[arg-type]
    lane.restore(3, [(1, 2, 1)])
    del partition.batches[0]
    run = lane.take(5, 0, lambda: None)
    assert run is not None
    assert run[0].offset(run[1]) == 3
    assert lane.skipped == 1
