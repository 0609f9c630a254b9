"""The clock of a pushed record starts when its consumer reaches it, and credit bounds what a consumer holds (ADR 14)."""

from collections import Counter, deque
from random import Random

import pytest

from quintet.delivery.consumer import STEPS_KEPT_MAX, STEPS_PER_TIMEOUT, Consumer
from quintet.delivery.lane import Lane
from quintet.delivery.subscription import Policy, Subscription
from quintet.model.batch import RecordBatch
from tests.delivery.test_lane import ListPartition

TIMEOUT = 1_600
JOB = 1_500  # what a consumer takes for one record: less than the time-out, more than half of it


class Watched(ListPartition):
    """A partition that nothing is appended to while it is watched."""

    def watch(self, call: object) -> None: ...

    def unwatch(self, call: object) -> None: ...


class Worker:
    """A consumer that works on one record after the other, in the order they come, and takes its time for each."""

    def __init__(self, **policy: int) -> None:
        self.now = 0
        self.partition = Watched()
        self.lane = Lane(self.partition, 0)  # type: ignore[arg-type]
        rules = Policy(push_timeout_us=TIMEOUT, attempts_max=3, poll_backoff_us=100, **policy)
        clock = lambda: self.now  # noqa: E731
        self.subscription = Subscription(
            1, "owner", b"t", 1, [self.lane], rules, clock, clock, lambda _: None, door="blipmq"
        )
        self.queue: deque[int] = deque()
        self.given: Counter[int] = Counter()

    # the Sink

    def room(self) -> int:
        return 1

    def records(self, subscription: object, partition: int, batch: RecordBatch, first: int, last: int) -> None:
        offsets = [batch.offset(index) for index in range(first, last)]
        self.queue.extend(offsets)
        self.given.update(offsets)

    # time

    def attach(self, credit: int = 0) -> None:
        self.subscription.grant(credit)
        self.subscription.attach(self)  # type: ignore[arg-type]

    def pass_time(self, duration: int) -> None:
        for _ in range(duration // 50):
            self.now += 50
            self.subscription.expire(self.now)

    def work(self, records: int, job: int = JOB) -> None:
        for _ in range(records):
            offset = self.queue.popleft()
            self.pass_time(job)
            self.subscription.ack(0, offset, 1)


@pytest.mark.parametrize("credit", [0, 1, 7])
@pytest.mark.parametrize("batch", [1, 20])
def test_what_waits_behind_a_steady_consumer_is_sent_once(credit: int, batch: int) -> None:
    worker = Worker()
    for _ in range(60 // batch):
        worker.partition.add(batch)
    worker.attach(credit)
    assert len(worker.queue) == (credit or 60)
    worker.work(60)
    assert worker.given == dict.fromkeys(range(60), 1)
    assert (worker.lane.dead, worker.lane.pending, worker.subscription.consumer.held) == ({}, 0, 0)


def test_what_waits_is_never_dead_however_long_one_job_takes() -> None:
    worker = Worker()
    worker.partition.add(20)
    worker.attach()
    worker.pass_time(100 * TIMEOUT)
    assert set(worker.lane.dead) <= set(range(20))
    assert max(worker.given.values()) - min(worker.given.values()) <= 1  # one record at a time was due, in turn


def test_a_record_passed_over_comes_again_while_others_are_acknowledged() -> None:
    worker = Worker()
    worker.partition.add(200)
    worker.attach()
    worker.queue.popleft()
    for offset in range(1, 150):
        if worker.given[0] > 1:
            break
        worker.pass_time(50)
        worker.subscription.ack(0, offset, 1)
    assert worker.given[0] == 2
    slack = TIMEOUT // STEPS_PER_TIMEOUT + 100
    assert TIMEOUT <= worker.now <= TIMEOUT + slack + 50
    assert worker.given.total() == 201


def test_a_passed_record_is_still_due_after_very_many_steps() -> None:
    worker = Worker(in_flight_max=100_000)
    worker.partition.add(1_000)
    worker.attach()
    for offset in range(1, 4 * STEPS_KEPT_MAX):
        worker.subscription.working(0, 0, 1)
        worker.pass_time(100)
        worker.subscription.ack(0, offset, 1)
    assert worker.given[0] == 1
    worker.pass_time(TIMEOUT)
    assert worker.given[0] == 2


def test_working_starts_the_clock_again() -> None:
    worker = Worker()
    worker.partition.add(3)
    worker.attach()
    for _ in range(10):
        worker.pass_time(TIMEOUT - 100)
        worker.subscription.working(0, 0, 1)
    assert worker.given == {0: 1, 1: 1, 2: 1}
    worker.pass_time(TIMEOUT)
    assert worker.given == {0: 2, 1: 1, 2: 1}
    worker.subscription.working(0, 99, 1)  # what it does not hold is passed over


def test_a_record_given_back_comes_after_its_delay_and_counts() -> None:
    worker = Worker()
    worker.partition.add(2)
    worker.attach(1)
    assert list(worker.queue) == [0]
    assert worker.subscription.nack(0, 0, 1, 5_000) == []
    assert list(worker.queue) == [0, 1]  # its credit was free at once
    worker.subscription.ack(0, 1, 1)
    worker.pass_time(4_950)
    assert worker.given[0] == 1
    worker.pass_time(50)
    assert worker.given[0] == 2
    assert worker.subscription.nack(0, 0, 1, None) == []
    worker.pass_time(200)
    assert worker.given[0] == 3
    worker.subscription.nack(0, 0, 1, 0)
    assert worker.lane.dead == {0: 3}
    assert worker.subscription.nack(0, 0, 2, 0) == [0, 1]
    assert worker.subscription.nack(9, 0, 1, 0) == [0]


def test_a_delayed_record_can_be_acknowledged_and_survives_its_consumer() -> None:
    worker = Worker()
    worker.partition.add(2)
    worker.attach()
    worker.subscription.nack(0, 0, 2, 10_000)
    assert worker.subscription.ack(0, 1, 1) == []
    worker.subscription.detach(worker)  # type: ignore[arg-type]
    worker.attach()
    worker.pass_time(9_950)
    assert worker.given == {0: 1, 1: 1}
    worker.pass_time(50)
    assert worker.given == {0: 2, 1: 1}


@pytest.mark.parametrize("seed", range(20))
def test_no_consumer_that_is_faster_than_the_time_out_gets_anything_twice(seed: int) -> None:
    """Several at a time, in any order, each done within less than the time-out after it was begun."""
    random = Random(seed)
    worker = Worker()
    for _ in range(100):
        worker.partition.add(random.randint(1, 5))
    total = worker.partition.visible
    worker.attach(random.choice([0, 1, 3, 50]))
    hands = random.randint(1, 8)
    busy: dict[int, int] = {}  # offset -> when it is done
    while worker.subscription.backlog():
        while worker.queue and len(busy) < hands:
            busy[worker.queue.popleft()] = worker.now + random.randint(1, TIMEOUT - 100)
        worker.pass_time(50)
        for offset in [offset for offset, done in busy.items() if done <= worker.now]:
            del busy[offset]
            assert worker.subscription.ack(0, offset, 1) == []
    assert worker.given == dict.fromkeys(range(total), 1)


def test_consumers_that_share_their_credit_take_turns() -> None:
    workers = [Worker(), Worker()]
    shared = Consumer(TIMEOUT)
    shared.credit = 1
    for worker in workers:
        worker.partition.add(3)
        worker.subscription.consumer = shared
        worker.subscription.attach(worker)  # type: ignore[arg-type]
    order = []
    for _ in range(6):
        (at,) = [number for number, worker in enumerate(workers) if worker.queue]
        order.append(at)
        workers[at].work(1, 50)
    assert order == [0, 0, 1, 0, 1, 1]
